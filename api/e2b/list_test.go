package e2b

import (
	"encoding/base64"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-run/holdfast/sandbox"
)

// asClientsSend escapes a filter as the SDKs do: keys and values, the query
// string of them, and the value in the URL.
func asClientsSend(m map[string]string) string {
	inner := url.Values{}
	for k, v := range m {
		inner.Set(escape(k), escape(v))
	}
	return url.Values{"metadata": {inner.Encode()}}.Encode()
}

func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

func TestMetadataFilter(t *testing.T) {
	for query, want := range map[string]map[string]string{
		"":                          nil,
		"metadata=":                 nil,
		"metadata=a%3Db%252520c":    {"a": "b c"}, // captured from the JS SDK
		"metadata=a%3Db":            {"a": "b"},
		"metadata=a%3Db%26c%3Dd":    {"a": "b", "c": "d"},
		"metadata=a%3D":             {"a": ""},
		"metadata=a%3Db%3Dc":        {"a": "b=c"},
		"metadata=k%253D1%3Dv%2525": nil, // refused below
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseMetadata(q.Get("metadata"))
		if strings.HasPrefix(query, "metadata=k%253D") {
			if err == nil {
				t.Errorf("%s: %v, want an error", query, got)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v %v, want %v", query, got, err, want)
		}
	}
	for _, bad := range []string{"a", "a=b&c", "=b", "a=%zz", "%2", "&", "a=b&"} {
		if got, err := parseMetadata(bad); err == nil {
			t.Errorf("%q: %v, want an error", bad, got)
		}
	}
}

func TestMetadataFilterOfClientsIsUnderstood(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.MapOfN(rapid.StringN(1, 10, -1), rapid.String(), 1, 4).Draw(t, "metadata")
		q, err := url.ParseQuery(asClientsSend(m))
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseMetadata(q.Get("metadata"))
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%q: %q %v", m, got, err)
		}
	})
}

func FuzzMetadataFilter(f *testing.F) {
	f.Add("a=b%20c&d=e")
	f.Add("%2525=&=")
	f.Fuzz(func(t *testing.T, v string) {
		m, err := parseMetadata(v)
		if err == nil && v != "" && len(m) == 0 {
			t.Fatalf("%q filters nothing", v)
		}
		if _, ok := m[""]; ok {
			t.Fatalf("%q has an empty key", v)
		}
	})
}

func TestCursorRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := sandbox.Cursor{
			StartedAt: time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC(),
			ID:        rapid.StringMatching(`i[a-z0-9]{20}`).Draw(t, "id"),
		}
		asc := rapid.Bool().Draw(t, "ascending")
		got, gotAsc, err := decodeCursor(encodeCursor(want, asc))
		if err != nil || gotAsc != asc || !got.StartedAt.Equal(want.StartedAt) || got.ID != want.ID {
			t.Fatalf("%+v %v: %+v %v %v", want, asc, got, gotAsc, err)
		}
	})
}

func FuzzCursor(f *testing.F) {
	f.Add(encodeCursor(sandbox.Cursor{StartedAt: time.Unix(1, 2), ID: "i0"}, true))
	f.Add(base64.RawURLEncoding.EncodeToString([]byte("2026-01-02T03:04:05Z__i0__desc")))
	f.Add("====")
	f.Fuzz(func(t *testing.T, token string) {
		c, asc, err := decodeCursor(token)
		if err != nil {
			return
		}
		again, asc2, err := decodeCursor(encodeCursor(c, asc))
		if err != nil || asc2 != asc || again.ID != c.ID || !again.StartedAt.Equal(c.StartedAt) {
			t.Fatalf("%q: %+v becomes %+v %v", token, c, again, err)
		}
	})
}

func FuzzObject(f *testing.F) {
	f.Add([]byte(`{"a":1,"a":2}`))
	f.Add([]byte(`{"secure":true,"network":{"denyOut":["0.0.0.0/0"]}}`))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		o, err := parseObject("", raw)
		if err != nil {
			return
		}
		o.string("a")
		o.int("timeout", 1)
		o.stringMap("metadata")
		o.strings("list")
		if n := o.object("network"); n != nil {
			_ = parsePolicy(n, &sandbox.Network{})
		}
		o.refuse("mcp", "")
		_ = o.end(true)
	})
}
