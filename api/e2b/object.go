package e2b

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/holdfast-run/holdfast/sandbox"
)

// maxBody bounds a request body, bytes.
const maxBody = 1 << 20

// object is a JSON object whose fields are taken out one by one. The first
// wrong one is remembered and returned by end, so that a handler reads as a
// list of its fields.
//
// A field is known by one name but accepted in camelCase and snake_case; null
// is the same as absent.
type object struct {
	path   string                     // prefix in messages: "" or "network."
	fields map[string]json.RawMessage // by the name the client used
	taken  map[string]bool            // names of fields that were there when asked for
	asked  map[string]bool            // fields that were asked for
	err    error
}

// readObject reads the body of r. required false makes an empty body {}.
func readObject(w http.ResponseWriter, r *http.Request, required bool) (*object, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		return nil, &wireError{
			status:  http.StatusRequestEntityTooLarge,
			message: fmt.Sprintf("request body is larger than %d bytes; write large data as files into the sandbox", maxBody),
		}
	case err != nil:
		return nil, invalid("request body cannot be read: %v", err)
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		if required {
			return nil, invalid("request body is empty; send a JSON object")
		}
		raw = []byte("{}")
	}
	return parseObject("", raw)
}

// parseObject splits a JSON object. A name given twice is refused: which of the
// two counts is for no one to guess.
func parseObject(path string, raw []byte) (*object, error) {
	what := "request body"
	if path != "" {
		what = fmt.Sprintf("field %q", strings.TrimSuffix(path, "."))
	}
	if !json.Valid(raw) {
		var v any
		return nil, invalid("%s is not valid JSON: %v", what, json.Unmarshal(raw, &v))
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, invalid("%s must be an object, got %s", what, kindOfJSON(raw))
	}
	o := &object{path: path, fields: map[string]json.RawMessage{}, taken: map[string]bool{}, asked: map[string]bool{}}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, invalid("%s is not valid JSON: %v", what, err)
		}
		name := t.(string) // a key of valid JSON
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, invalid("%s is not valid JSON: %v", what, err)
		}
		if _, twice := o.fields[name]; twice {
			return nil, invalid("field %q is given twice", path+name)
		}
		o.fields[name] = v
	}
	return o, nil
}

// get takes a field out; nil when absent or null.
func (o *object) get(name string) json.RawMessage {
	var v json.RawMessage
	o.asked[name] = true
	for i, n := range spellings(name) {
		raw, ok := o.fields[n]
		if !ok {
			continue
		}
		o.taken[n] = true
		if i > 0 && v != nil {
			o.fail("fields %q and %q are the same one; send one of them", o.path+spellings(name)[0], o.path+n)
		}
		v = raw
	}
	if string(v) == "null" {
		return nil
	}
	return v
}

func (o *object) fail(format string, args ...any) {
	if o.err == nil {
		o.err = invalid(format, args...)
	}
}

func (o *object) wrongType(name, want string, raw json.RawMessage) {
	o.fail("field %q must be %s, got %s", o.path+name, want, kindOfJSON(raw))
}

// has tells whether the field is given and not null.
func (o *object) has(name string) bool { return o.get(name) != nil }

func (o *object) bool(name string, absent bool) bool {
	raw := o.get(name)
	switch string(raw) {
	case "":
		return absent
	case "true":
		return true
	case "false":
		return false
	}
	o.wrongType(name, "a boolean", raw)
	return absent
}

func (o *object) string(name string) string {
	raw := o.get(name)
	if raw == nil {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		o.wrongType(name, "a string", raw)
	}
	return s
}

// int gives a whole number; one beyond int32 becomes the nearest that fits,
// which is beyond every limit here and refused by it.
func (o *object) int(name string, absent int) int {
	raw := o.get(name)
	if raw == nil {
		return absent
	}
	var f float64
	var outOfRange *json.UnmarshalTypeError
	err := json.Unmarshal(raw, &f)
	if errors.As(err, &outOfRange) && strings.HasPrefix(outOfRange.Value, "number") {
		f, err = math.Copysign(math.Inf(1), sign(raw)), nil
	}
	switch {
	case err != nil:
		o.wrongType(name, "a whole number", raw)
	case f > math.MaxInt32:
		return math.MaxInt32
	case f < math.MinInt32:
		return math.MinInt32
	case f != math.Trunc(f):
		o.fail("field %q must be a whole number, got %s", o.path+name, raw)
	default:
		return int(f)
	}
	return absent
}

func sign(raw json.RawMessage) float64 {
	if raw[0] == '-' {
		return -1
	}
	return 1
}

func (o *object) strings(name string) []string {
	raw := o.get(name)
	if raw == nil {
		return nil
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		o.wrongType(name, "a list of strings", raw)
		return nil
	}
	list := make([]string, len(items))
	for i, item := range items {
		if item[0] != '"' || json.Unmarshal(item, &list[i]) != nil {
			o.fail("field %q must be a string, got %s", fmt.Sprintf("%s%s[%d]", o.path, name, i), kindOfJSON(item))
		}
	}
	return list
}

// stringMap gives a map from name to string.
func (o *object) stringMap(name string) map[string]string {
	raw := o.get(name)
	if raw == nil {
		return nil
	}
	in, err := parseObject(o.path+name+".", raw)
	if err != nil {
		if o.err == nil {
			o.err = err
		}
		return nil
	}
	m := make(map[string]string, len(in.fields))
	for k, v := range in.fields {
		var s string
		if v[0] != '"' || json.Unmarshal(v, &s) != nil {
			o.fail("field %q must be a string, got %s", in.path+k, kindOfJSON(v))
		}
		m[k] = s
	}
	return m
}

// object gives an object field, or nil.
func (o *object) object(name string) *object {
	raw := o.get(name)
	if raw == nil {
		return nil
	}
	in, err := parseObject(o.path+name+".", raw)
	if err != nil && o.err == nil {
		o.err = err
	}
	return in
}

// refuse says 501 for a known field that is given, not null and not empty: to
// go on without it would give less than was asked for.
func (o *object) refuse(name, reason string) {
	raw := o.get(name)
	if raw == nil || o.err != nil {
		return
	}
	if compact := strings.Map(dropSpace, string(raw)); compact == "{}" || compact == "[]" {
		return
	}
	o.err = sandbox.Errorf(sandbox.Unsupported, fmt.Sprintf("field %q", o.path+name), "is not supported yet").
		WithNext("%s", reason)
}

func dropSpace(r rune) rune {
	if strings.ContainsRune(" \t\r\n", r) {
		return -1
	}
	return r
}

// end gives the first thing that was wrong. Of the names nobody took, those
// that might be a security setting spelt wrong are refused, for to ignore such
// a one would weaken what was asked for; strict refuses all.
func (o *object) end(strict bool) error {
	if o.err != nil {
		return o.err
	}
	names := []string{}
	for n := range o.fields {
		if !o.taken[n] {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		near, ofNetwork, risky := mayBeSecurity(n)
		if o.asked[near] {
			near = o.path + near
		} else if ofNetwork {
			near = "network." + near
		}
		switch {
		case near == o.path+n:
			return invalid("field %q is not known here", near)
		case near != "":
			return invalid("unknown field %q; did you mean %q?", o.path+n, near)
		case risky:
			return invalid("unknown field %q: it sounds like a security setting and would have no effect; remove it", o.path+n)
		case strict:
			return invalid("unknown field %q", o.path+n)
		}
	}
	return nil
}

func kindOfJSON(raw []byte) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}
