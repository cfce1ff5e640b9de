package config

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// readFile applies a holdfast.yaml. It walks the syntax tree instead of
// decoding into the struct so that every error can name its line and an unknown
// key its nearest neighbour.
func (c *Config) readFile(path string, content []byte) []error {
	tree, err := parser.ParseBytes(content, 0)
	if err != nil {
		return []error{fmt.Errorf("configuration file %s is not YAML: %w", path, err)}
	}
	r := &fileReader{c: c, name: filepath.Base(path)}
	if len(tree.Docs) > 1 {
		return []error{fmt.Errorf("configuration file %s has %d documents; keep one", path, len(tree.Docs))}
	}
	for _, doc := range tree.Docs {
		r.mapping("", doc.Body)
	}
	return r.errs
}

type fileReader struct {
	c    *Config
	name string
	errs []error
}

func (r *fileReader) fail(n ast.Node, key, value, near, format string, args ...any) {
	r.errs = append(r.errs, &Error{
		Key: key, Value: value, Near: near, Reason: fmt.Sprintf(format, args...),
		Source: fmt.Sprintf("%s:%d", r.name, n.GetToken().Position.Line),
	})
}

// mapping reads the keys below prefix ("" or "limits").
func (r *fileReader) mapping(prefix string, n ast.Node) {
	pairs, ok := pairsOf(n)
	if !ok {
		name := prefix
		if name == "" {
			name = "the file"
		}
		r.fail(n, name, "", "", "must hold key: value lines")
		return
	}
	seen := map[string]bool{}
	for _, pair := range pairs {
		name := join(prefix, scalar(pair.Key))
		if seen[name] {
			r.fail(pair, name, "", "", "is set twice")
			continue
		}
		seen[name] = true
		k, known := Lookup(name)
		switch {
		case known:
			r.value(k, pair.Value)
		case isSection(name):
			r.mapping(name, pair.Value)
		default:
			r.fail(pair, name, "", nearest(name, names()), "is not known")
		}
	}
}

func (r *fileReader) value(k Key, n ast.Node) {
	v, err := flatten(k.Shape, n)
	if err == nil {
		err = k.set(r.c, v)
	}
	if err != nil {
		r.fail(n, k.Name, v, "", "%s", err)
	}
}

// flatten makes the one-string form of a value that flags and variables use.
func flatten(shape Shape, n ast.Node) (string, error) {
	switch n := n.(type) {
	case *ast.NullNode:
		return "", nil
	case *ast.SequenceNode:
		if shape != List {
			return "", fmt.Errorf("must be a %s, not a list", shape)
		}
		parts := make([]string, len(n.Values))
		for i, v := range n.Values {
			parts[i] = scalar(v)
		}
		return strings.Join(parts, ","), nil
	}
	if pairs, ok := pairsOf(n); ok {
		if shape != Map {
			return "", fmt.Errorf("must be a %s, not a map", shape)
		}
		parts := make([]string, len(pairs))
		for i, p := range pairs {
			parts[i] = scalar(p.Key) + "=" + scalar(p.Value)
		}
		return strings.Join(parts, ","), nil
	}
	return scalar(n), nil
}

// pairsOf gives the pairs of a mapping; a file of nothing but comments has none.
func pairsOf(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := n.(type) {
	case nil, *ast.NullNode, *ast.CommentGroupNode:
		return nil, true
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

func scalar(n ast.Node) string {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return n.Value.Value
	case *ast.MappingKeyNode:
		return scalar(n.Value)
	}
	return n.GetToken().Value
}

func isSection(name string) bool {
	for _, k := range Keys {
		if strings.HasPrefix(k.Name, name+".") {
			return true
		}
	}
	return false
}

// names are all keys and sections, as candidates for the nearest one.
func names() []string {
	var out []string
	for _, k := range Keys {
		out = append(out, k.Name)
		if section, _, ok := strings.Cut(k.Name, "."); ok && (len(out) < 2 || !strings.HasPrefix(out[len(out)-2], section)) {
			out = append(out, section)
		}
	}
	return out
}

func join(prefix, name string) string {
	if prefix == "" {
		return name
	}
	return prefix + "." + name
}
