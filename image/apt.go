package image

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// aptSource is one package source in the machine's apt configuration.
type aptSource struct {
	uri        string
	suite      string
	components []string
	signedBy   string // key file, "" for apt's default
}

// line gives the source in the one-line form of sources.list(5).
func (s aptSource) line() string {
	option := ""
	if s.signedBy != "" {
		option = "[signed-by=" + s.signedBy + "] "
	}
	return fmt.Sprintf("deb %s%s %s %s", option, s.uri, s.suite, strings.Join(s.components, " "))
}

// archive tells that the source is the distribution's own archive rather than
// somebody's additions: it is signed by an archive keyring, or by apt's default.
func (s aptSource) archive() bool {
	return slices.Contains(s.components, "main") && (s.signedBy == "" || strings.Contains(filepath.Base(s.signedBy), "-archive-keyring"))
}

// aptSources reads the sources that are switched on in an apt folder (/etc/apt).
func aptSources(dir string) ([]aptSource, error) {
	files := []string{filepath.Join(dir, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		more, err := filepath.Glob(filepath.Join(dir, "sources.list.d", pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	var list []aptSource
	for _, file := range files {
		data, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(file, ".sources") {
			list = append(list, parseDeb822(string(data))...)
		} else {
			list = append(list, parseSourcesList(string(data))...)
		}
	}
	return list, nil
}

// parseSourcesList reads the one-line form:
// deb [option=value …] uri suite component…
func parseSourcesList(text string) []aptSource {
	var list []aptSource
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		var s aptSource
		rest = strings.TrimSpace(rest)
		if options, after, ok := strings.Cut(rest, "]"); ok && strings.HasPrefix(rest, "[") {
			for o := range strings.FieldsSeq(options[1:]) {
				if k, v, _ := strings.Cut(o, "="); k == "signed-by" {
					s.signedBy = keyFile(v)
				}
			}
			rest = after
		}
		if f := strings.Fields(rest); len(f) >= 3 {
			s.uri, s.suite, s.components = f[0], f[1], f[2:]
			list = append(list, s)
		}
	}
	return list
}

// parseDeb822 reads the form with a paragraph of fields for each source.
func parseDeb822(text string) []aptSource {
	var list []aptSource
	fields := map[string]string{}
	flush := func() {
		if slices.Contains(strings.Fields(fields["types"]), "deb") && !strings.EqualFold(fields["enabled"], "no") {
			for uri := range strings.FieldsSeq(fields["uris"]) {
				for suite := range strings.FieldsSeq(fields["suites"]) {
					if c := strings.Fields(fields["components"]); len(c) > 0 {
						list = append(list, aptSource{uri, suite, c, keyFile(fields["signed-by"])})
					}
				}
			}
		}
		clear(fields)
	}
	last := ""
	for scan := bufio.NewScanner(strings.NewReader(text)); scan.Scan(); {
		line := scan.Text()
		switch {
		case strings.TrimSpace(line) == "":
			flush()
		case strings.HasPrefix(line, "#"):
		case line[0] == ' ' || line[0] == '\t':
			fields[last] += "\n" + strings.TrimSpace(line)
		default:
			k, v, _ := strings.Cut(line, ":")
			last = strings.ToLower(strings.TrimSpace(k))
			fields[last] = strings.TrimSpace(v)
		}
	}
	flush()
	return list
}

// keyFile gives the key file of a Signed-By. A key written into the field itself
// or a bare fingerprint stands for one that apt knows anyway.
func keyFile(signedBy string) string {
	if f := strings.Fields(signedBy); len(f) == 1 && filepath.IsAbs(f[0]) {
		return f[0]
	}
	return ""
}

// sourcesFor gives the archive's sources for a suite with its updates and security
// fixes. Where the machine has none of that suite, those of its own are taken with
// the name changed. none is an empty list.
func sourcesFor(all []aptSource, suite, own string) []aptSource {
	pick := func(from string) []aptSource {
		var list []aptSource
		for _, s := range all {
			rest, ok := strings.CutPrefix(s.suite, from)
			if !ok || !s.archive() || (rest != "" && rest != "-updates" && rest != "-security") {
				continue
			}
			s.suite = suite + rest
			list = append(list, s)
		}
		return list
	}
	if list := pick(suite); len(list) > 0 || own == "" {
		return list
	}
	return pick(own)
}

// osRelease reads one field of an os-release file.
func osRelease(file, field string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), field+"="); ok {
			return strings.Trim(v, `"'`), nil
		}
	}
	return "", nil
}
