package e2b_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

const session = `"templateID":"tbase","sandboxID":"` + box + `","clientID":"holdfast","alias":"base","envdVersion":"0.7.0"`

func TestCreateDefaults(t *testing.T) {
	open := sandbox.Network{AllowInternet: true, AllowPublicTraffic: true}
	kill := sandbox.Lifecycle{OnTimeout: sandbox.Kill, KeepMemory: true}
	for _, c := range []struct {
		name, path, body string
		want             sandbox.CreateOptions
		answer           string
	}{
		{
			"v1, nothing said", "/sandboxes", `{"templateID":"base"}`,
			sandbox.CreateOptions{Timeout: 15 * time.Second, Lifecycle: kill, Network: open},
			`{` + session + `,"trafficAccessToken":null,"domain":null}`,
		},
		{
			"v2, nothing said", "/v2/sandboxes", `{"templateID":"base"}`,
			sandbox.CreateOptions{Timeout: 300 * time.Second, Lifecycle: kill, Network: open, Secure: true},
			`{` + session + `,"envdAccessToken":"access","trafficAccessToken":null,"domain":null}`,
		},
		{
			"v1 as SDK 2.50 sends it", "/sandboxes",
			`{"templateID":"base","timeout":300,"secure":true,"allow_internet_access":true,"autoPause":false,"mcp":null}`,
			sandbox.CreateOptions{Timeout: 300 * time.Second, Lifecycle: kill, Network: open, Secure: true},
			`"envdAccessToken":"access"`,
		},
		{
			"v2 as SDK 2.51 sends it", "/v2/sandboxes",
			`{"templateID":"base","metadata":{"a":"b"},"envVars":{"K":"v"},"network":{"allowOut":["1.1.1.1"],"denyOut":["0.0.0.0/0"]},"autoPause":true,"autoResume":{"enabled":true},"volumeMounts":[]}`,
			sandbox.CreateOptions{
				Timeout: 300 * time.Second, Secure: true,
				Metadata: map[string]string{"a": "b"}, Env: map[string]string{"K": "v"},
				Lifecycle: sandbox.Lifecycle{OnTimeout: sandbox.Pause, KeepMemory: true, AutoResume: true},
				Network:   sandbox.Network{AllowInternet: true, AllowPublicTraffic: true, AllowOut: []string{"1.1.1.1"}, DenyOut: []string{"0.0.0.0/0"}},
			}, `"sandboxID"`,
		},
		{
			"null is absent, unknown harmless fields are ignored", "/v2/sandboxes",
			`{"templateID":"base","timeout":null,"network":null,"metadata":null,"autoResume":null,"colour":"red"}`,
			sandbox.CreateOptions{Timeout: 300 * time.Second, Lifecycle: kill, Network: open, Secure: true},
			`"sandboxID"`,
		},
		{
			"the other casing of known fields", "/sandboxes",
			`{"template_id":"base","allowInternetAccess":false,"auto_pause":true,"auto_pause_memory":false,"env_vars":{"A":"1"},"secure":true,"network":{"allow_public_traffic":false,"deny_out":["10.0.0.0/8"],"mask_request_host":"app:${PORT}"}}`,
			sandbox.CreateOptions{
				Timeout: 15 * time.Second, Secure: true, Env: map[string]string{"A": "1"},
				Lifecycle: sandbox.Lifecycle{OnTimeout: sandbox.Pause},
				Network:   sandbox.Network{DenyOut: []string{"10.0.0.0/8"}, MaskRequestHost: "app:${PORT}"},
			}, `"trafficAccessToken":"traffic"`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript()
			call(t, s, "POST", c.path, c.body).is(201, c.answer)
			c.want.Space, c.want.Template, c.want.Lifecycle.Timeout = "acme", "base", c.want.Timeout
			if !reflect.DeepEqual(s.create, c.want) {
				t.Fatalf("asked the backend for\n%+v\nwant\n%+v", s.create, c.want)
			}
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	deep := `{"templateID":"base","metadata":{"k":"` + strings.Repeat("x", 10<<20) + `"}}`
	for _, c := range []struct {
		body   string // or the fields after templateID
		status int
		want   string
	}{
		// form
		{``, 400, "request body is empty"},
		{`{`, 400, "request body is not valid JSON"},
		{`{"templateID":"base"} x`, 400, "request body is not valid JSON"},
		{`[1]`, 400, "request body must be an object, got a list"},
		{`null`, 400, "request body must be an object, got null"},
		{`{}`, 400, `field "templateID" is needed`},
		{`{"templateID":""}`, 400, `field "templateID" is needed`},
		{`{"templateID":"a\u0000b"}`, 400, "NUL"},
		{deep, 413, "request body is larger than 1048576 bytes"},

		// types
		{`{"templateID":7}`, 400, `field "templateID" must be a string, got a number`},
		{`,"timeout":"60"`, 400, `field "timeout" must be a whole number, got a string`},
		{`,"timeout":1.5`, 400, `field "timeout" must be a whole number, got 1.5`},
		{`,"secure":"true"`, 400, `field "secure" must be a boolean, got a string`},
		{`,"secure":1`, 400, `field "secure" must be a boolean, got a number`},
		{`,"metadata":{"a":1}`, 400, `field "metadata.a" must be a string, got a number`},
		{`,"metadata":{"a":null}`, 400, `field "metadata.a" must be a string, got null`},
		{`,"metadata":[]`, 400, `field "metadata" must be an object, got a list`},
		{`,"network":"open"`, 400, `field "network" must be an object, got a string`},
		{`,"network":{"allowOut":"1.1.1.1"}`, 400, `field "network.allowOut" must be a list of strings, got a string`},
		{`,"network":{"allowOut":[1]}`, 400, `field "network.allowOut[0]" must be a string, got a number`},
		{`,"network":{"denyOut":[null]}`, 400, `field "network.denyOut[0]" must be a string, got null`},
		{`,"autoResume":true`, 400, `field "autoResume" must be an object, got a boolean`},
		{`,"autoResume":{}`, 400, `field "autoResume.enabled" is needed`},
		{`,"envVars":{"A=B":"x"}`, 400, `"A=B" is not the name of an environment variable`},
		{`,"envVars":{"A":"x\u0000"}`, 400, "NUL"},

		// values
		{`,"timeout":0`, 400, "Timeout must be greater than 0"},
		{`,"timeout":-5`, 400, "Timeout must be greater than 0"},
		{`,"timeout":31536001`, 400, "Timeout cannot be greater than 8760 hours"},
		{`,"timeout":1e300`, 400, "Timeout cannot be greater than 8760 hours"},
		{`,"timeout":1e999`, 400, "Timeout cannot be greater than 8760 hours"},
		{`,"timeout":-1e999`, 400, "Timeout must be greater than 0"},
		{`,"autoPauseMemory":false`, 400, "autoPauseMemory false needs autoPause true"},
		{`,"autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}`, 400, "does not go together with autoResume"},
		{`,"network":{"allowPublicTraffic":false}`, 400, "network.allowPublicTraffic false needs secure true"},
		{`,"network":{"denyOut":["example.com"]}`, 400, `"example.com" is not an address or CIDR`},
		{`,"network":{"denyOut":["fe80::1%eth0"]}`, 400, `is not an address or CIDR`},
		{`,"network":{"allowOut":["example.com"]}`, 400, "you must include 'ALL_TRAFFIC'"},
		{`,"network":{"maskRequestHost":"a b"}`, 400, "is not a host name"},
		{`,"network":{"maskRequestHost":"a\r\nX: y"}`, 400, "is not a host name"},

		// security fields spelt wrong
		{`,"Secure":true`, 400, `unknown field "Secure"; did you mean "secure"?`},
		{`,"secured":true`, 400, `did you mean "secure"?`},
		{`,"allow_internet_acess":false`, 400, `did you mean "allow_internet_access"?`},
		{`,"allowinternetaccess":false`, 400, `did you mean "allow_internet_access"?`},
		{`,"ALLOW_INTERNET_ACCESS":false`, 400, `did you mean "allow_internet_access"?`},
		{`,"internetAccess":false`, 400, "sounds like a security setting"},
		{`,"blockAll":true`, 400, "sounds like a security setting"},
		{`,"networks":{}`, 400, `did you mean "network"?`},
		{`,"denyOut":["0.0.0.0/0"]`, 400, `unknown field "denyOut"; did you mean "network.denyOut"?`},
		{`,"allowPublicTrafic":false`, 400, `did you mean "network.allowPublicTraffic"?`},
		{`,"network":{"denyOuts":[]}`, 400, `unknown field "network.denyOuts"; did you mean "network.denyOut"?`},
		{`,"network":{"DenyOut":[]}`, 400, `did you mean "network.denyOut"?`},
		{`,"network":{"anything":1}`, 400, `unknown field "network.anything"`},
		{`,"network":{"denyIn":["0.0.0.0/0"]}`, 400, `field "network.denyIn" is not known here`},
		{`,"network":{"allow_internet_access":false}`, 400, "unknown field \"network.allow_internet_access\"; did you mean \"allow_internet_access\"?"},
		{`,"secure":true,"secure":false`, 400, `field "secure" is given twice`},
		{`,"allow_internet_access":false,"allowInternetAccess":true`, 400, `are the same one`},
		{`,"network":{"denyOut":[],"denyOut":["0.0.0.0/0"]}`, 400, `field "network.denyOut" is given twice`},

		// known, and not there yet
		{`,"network":{"rules":{"a.com":[]}}`, 501, `field "network.rules" is not supported yet`},
		{`,"network":{"egressProxy":{"address":"a:1"}}`, 501, `field "network.egressProxy" is not supported yet`},
		{`,"network":{"httpsPorts":[443]}`, 501, `field "network.httpsPorts" is not supported yet`},
		{`,"network":{"allowOut":["a.com"],"denyOut":["0.0.0.0/0"]}`, 501, `"a.com", and domains are not supported yet`},
		{`,"mcp":{"x":{}}`, 501, `field "mcp" is not supported yet`},
		{`,"iam":{"tokens":{}}`, 501, `field "iam" is not supported yet`},
		{`,"volumeMounts":[{"name":"a","path":"/a"}]`, 501, `field "volumeMounts" is not supported yet`},
	} {
		name := c.body[:min(len(c.body), 60)]
		t.Run(name, func(t *testing.T) {
			body := c.body
			if strings.HasPrefix(body, ",") {
				body = `{"templateID":"base"` + body + `}`
			}
			s := newScript()
			call(t, s, "POST", "/sandboxes", body).is(c.status, c.want)
			if len(s.called) > 0 {
				t.Fatalf("the backend was asked: %v", s.called)
			}
		})
	}
}

// Harmless names must not be taken for security settings.
func TestHarmlessUnknownFieldsAreIgnored(t *testing.T) {
	for _, name := range []string{"colour", "labels", "priority", "cpuCount", "name", "tags", "alias", "version", "timezone", "source"} {
		call(t, newScript(), "POST", "/v2/sandboxes", fmt.Sprintf(`{"templateID":"base",%q:1}`, name)).is(201, box)
	}
}

// A kind becomes a status in one way, whatever the route.
func TestKindsOnTheWire(t *testing.T) {
	for kind, want := range map[sandbox.Kind]string{
		sandbox.NotFound:       `{"code":404,"message":"it broke; try this"}`,
		sandbox.Terminal:       `{"code":404,"message":"it broke; try this"}`,
		sandbox.Authentication: `{"code":401,"message":"it broke; try this"}`,
		sandbox.InvalidRequest: `{"code":400,"message":"it broke; try this"}`,
		sandbox.Unsupported:    `{"code":501,"message":"it broke; try this","error_code":"unsupported"}`,
		sandbox.Conflict:       `{"code":409,"message":"it broke; try this"}`,
		sandbox.Capacity:       `{"code":429,"message":"it broke; try this","error_code":"sandbox_capacity_unavailable"}`,
		sandbox.Timeout:        `{"code":504,"message":"it broke; try this","error_code":"sandbox_placement_timeout"}`,
		sandbox.Unavailable:    `{"code":503,"message":"it broke; try this","error_code":"unavailable"}`,
		sandbox.Internal:       `{"code":500,"message":"it broke; try this","error_code":"internal_server_error"}`,
	} {
		s := newScript()
		s.err = fmt.Errorf("wrapped: %w", sandbox.Errorf(kind, "it", "broke").WithNext("try this"))
		if a := call(t, s, "POST", "/sandboxes", `{"templateID":"base"}`); a.body != want || !strings.Contains(want, fmt.Sprint(a.status)) {
			t.Errorf("%s: %d %s\nwant %s", kind, a.status, a.body, want)
		}
	}
	s := newScript()
	s.err = fmt.Errorf("disk on fire")
	call(t, s, "POST", "/sandboxes", `{"templateID":"base"}`).is(500, "disk on fire")
}
