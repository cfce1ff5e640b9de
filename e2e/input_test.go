package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/e2e/harness"
)

// refusal is E2B's error body.
type refusal struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// TestBadInput sends what no client library would, and wants E2B's error body
// with a message that names what is wrong.
func TestBadInput(t *testing.T) {
	t.Parallel()
	harness.Shared(t)
	const missing = "/sandboxes/i00000000000000000000"
	for _, c := range []struct {
		name, method, path, body string
		code                     int
		says                     string // in the message, whatever its case
	}{
		{"unknown template", "POST", "/v2/sandboxes", `{"templateID":"no-such-thing"}`, 404, "no-such-thing"},
		{"no template", "POST", "/v2/sandboxes", `{}`, 400, "templateID"},
		{"not JSON", "POST", "/v2/sandboxes", `{"templateID":`, 400, ""},
		{"JSON of another kind", "POST", "/v2/sandboxes", `["base"]`, 400, ""},
		{"field of wrong type", "POST", "/v2/sandboxes", `{"templateID":"base","timeout":"long"}`, 400, "timeout"},
		{"metadata of wrong type", "POST", "/v2/sandboxes", `{"templateID":"base","metadata":{"a":1}}`, 400, "metadata"},
		{"negative timeout", "POST", "/v2/sandboxes", `{"templateID":"base","timeout":-1}`, 400, "Timeout must be greater than 0"},
		{"zero timeout", "POST", "/sandboxes", `{"templateID":"base","timeout":0}`, 400, "Timeout must be greater than 0"},
		{"endless timeout", "POST", "/v2/sandboxes", `{"templateID":"base","timeout":999999999999}`, 400, "Timeout"},
		{"misspelt security field", "POST", "/v2/sandboxes", `{"templateID":"base","network":{"denyOuts":["0.0.0.0/0"]}}`, 400, "denyOuts"},
		{"misspelt internet access", "POST", "/v2/sandboxes", `{"templateID":"base","allow_internet_acess":false}`, 400, "allow_internet_acess"},
		{"bad network rule", "POST", "/v2/sandboxes", `{"templateID":"base","network":{"denyOut":["not-an-address"]}}`, 400, "not-an-address"},
		{"unknown sandbox", "GET", missing, "", 404, "doesn't exist or you don't have access to it"},
		{"unknown sandbox, delete", "DELETE", missing, "", 404, "i00000000000000000000"},
		{"unknown sandbox, pause", "POST", missing + "/pause", "{}", 404, "i00000000000000000000"},
		{"unknown sandbox, connect", "POST", "/v2" + missing + "/connect", "{}", 404, "i00000000000000000000"},
		{"id that cannot be one", "GET", "/sandboxes/..%2f..%2fetc", "", 404, ""},
		{"unknown cursor", "GET", "/v2/sandboxes?nextToken=garbage", "", 400, ""},
		{"limit out of range", "GET", "/v2/sandboxes?limit=100000", "", 400, "limit"},
		{"unknown state", "GET", "/v2/sandboxes?state=sleeping", "", 400, "sleeping"},
		{"unknown route", "GET", "/no/such/route", "", 404, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := harness.Shared(t)
			res := d.Do(c.method, c.path, strings.NewReader(c.body), http.Header{"Content-Type": {"application/json"}})
			got := body(t, res)
			if res.StatusCode != c.code || got.Code != c.code {
				t.Errorf("status %d, code %d; want %d: %s", res.StatusCode, got.Code, c.code, got.Message)
			}
			if got.Message == "" || !strings.Contains(strings.ToLower(got.Message), strings.ToLower(c.says)) {
				t.Errorf("message %q does not say %q", got.Message, c.says)
			}
		})
	}
	t.Run("ten megabytes of JSON", func(t *testing.T) {
		t.Parallel()
		d := harness.Shared(t)
		big := `{"templateID":"base","metadata":{"a":"` + strings.Repeat("x", 10<<20) + `"}}`
		res := d.Do("POST", "/v2/sandboxes", strings.NewReader(big), http.Header{"Content-Type": {"application/json"}})
		if res.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("status %d, want 413: %s", res.StatusCode, body(t, res).Message)
		}
	})
	t.Run("without a key", func(t *testing.T) {
		t.Parallel()
		d := harness.Shared(t)
		for _, key := range []string{"", "e2b_0000000000000000000000000000000000000000", "nonsense"} {
			for _, path := range []string{"/v2/sandboxes", "/v1/sandboxes", "/v1/status", "/templates"} {
				res := d.Do("GET", path, nil, http.Header{"X-Api-Key": {key}})
				if res.StatusCode != http.StatusUnauthorized {
					t.Errorf("GET %s with key %q: status %d, want 401", path, key, res.StatusCode)
				}
			}
		}
	})
}

// TestBadPaths asks a sandbox's file service for what it must not give.
func TestBadPaths(t *testing.T) {
	t.Parallel()
	d := harness.Shared(t)
	sb := d.Create(v1.CreateRequest{})
	d.Sh(sb, "ln -s /../../../../../../etc/shadow /tmp/up && ln -s /proc/1/root/root /tmp/through")
	header := http.Header{"E2b-Sandbox-Id": {sb.ID}, "E2b-Sandbox-Port": {"49983"}, "X-Access-Token": {sb.AccessToken}}
	for _, c := range []struct {
		name, path string
		codes      []int
	}{
		{"NUL in the path", "a%00b", []int{400}},
		{"no path", "", []int{400}},
		{"the host's data folder by dots", "/../../../../../../.." + d.Data + "/node.db", []int{404}},
		{"a link to what only root may read", "/tmp/up", []int{400, 401, 403, 404}},
		{"through /proc to root's home", "/tmp/through/x", []int{400, 401, 403, 404}},
		{"a folder", "/etc", []int{400}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := harness.Shared(t)
			res := d.Do("GET", "/files?path="+c.path, nil, header)
			for _, code := range c.codes {
				if res.StatusCode == code {
					return
				}
			}
			t.Errorf("status %d, want one of %v: %s", res.StatusCode, c.codes, text(t, res))
		})
	}
	t.Run("an unknown user", func(t *testing.T) {
		d := harness.Shared(t)
		res := d.Do("GET", "/files?path=x&username=nobody-here", nil, header)
		if res.StatusCode != 401 || !strings.Contains(text(t, res), "nobody-here") {
			t.Errorf("status %d: %s", res.StatusCode, text(t, res))
		}
	})
	t.Run("without the sandbox's token", func(t *testing.T) {
		d := harness.Shared(t)
		other := header.Clone()
		other.Set("X-Access-Token", "wrong")
		if res := d.Do("GET", "/files?path=/etc/hostname", nil, other); res.StatusCode != 401 {
			t.Errorf("status %d, want 401", res.StatusCode)
		}
	})
	t.Run("a port that is not open", func(t *testing.T) {
		d := harness.Shared(t)
		res := d.Do("GET", "/", nil, http.Header{"Host": {"1234-" + sb.ID + ".example.com"}})
		want := `{"code":502,"message":"The sandbox is running but port is not open","port":1234,"sandboxId":"` + sb.ID + `"}`
		if res.StatusCode != 502 || !sameJSON(t, text(t, res), want) {
			t.Errorf("status %d: %s", res.StatusCode, text(t, res))
		}
	})
}

func body(t *testing.T, res *http.Response) refusal {
	t.Helper()
	var r refusal
	raw := text(t, res)
	if err := json.Unmarshal([]byte(raw), &r); err != nil {
		t.Fatalf("status %d with a body that is no error: %q", res.StatusCode, raw)
	}
	return r
}

// text reads the body and leaves it to be read again.
func text(t *testing.T, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	res.Body = io.NopCloser(bytes.NewReader(b))
	return string(b)
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	p, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	q, err := json.Marshal(y)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Equal(p, q)
}
