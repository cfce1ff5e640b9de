package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var equalAddrs = cmpopts.EquateComparable(netip.Prefix{}, netip.AddrPort{})

// write puts content into a data folder's holdfast.yaml and returns the folder.
func write(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, FileName), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestLoadPrecedence(t *testing.T) {
	dir := write(t, "listen: 127.0.0.1:1001\ndomain: file.example\nlog:\n  level: warn\n")
	c, err := Load(Sources{
		SystemFile: filepath.Join(t.TempDir(), "none.yaml"),
		Environ:    []string{"HOLDFAST_DATA=" + dir, "HOLDFAST_LISTEN=127.0.0.1:1002", "HOLDFAST_DOMAIN=env.example", "HOLDFAST_URL="},
		Flags:      map[string]string{"listen": "127.0.0.1:1003"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Data, want.Listen, want.Domain, want.Log.Level = dir, "127.0.0.1:1003", "env.example", "warn"
	want.File = filepath.Join(dir, FileName)
	if d := cmp.Diff(want, c, equalAddrs); d != "" {
		t.Error(d)
	}
}

func TestLoadFileSearch(t *testing.T) {
	data := write(t, "domain: data.example\n")
	system := filepath.Join(write(t, "domain: system.example\n"), FileName)
	explicit := filepath.Join(write(t, "domain: explicit.example\n"), FileName)
	for _, tt := range []struct {
		name string
		s    Sources
		want string
	}{
		{"data folder first", Sources{Flags: map[string]string{"data": data}}, "data.example"},
		{"then the system's", Sources{Flags: map[string]string{"data": t.TempDir()}}, "system.example"},
		{"an explicit one wins", Sources{File: explicit, Flags: map[string]string{"data": data}}, "explicit.example"},
		{"also by variable", Sources{Environ: []string{"HOLDFAST_CONFIG=" + explicit, "HOLDFAST_DATA=" + data}}, "explicit.example"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.s.SystemFile = system
			c, err := Load(tt.s)
			if err != nil {
				t.Fatal(err)
			}
			if c.Domain != tt.want {
				t.Errorf("domain %q, want %q", c.Domain, tt.want)
			}
		})
	}
	if _, err := Load(Sources{File: filepath.Join(data, "absent.yaml")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an explicit file that is absent: %v, want os.ErrNotExist", err)
	}
}

func TestFileEveryKey(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "all.yaml")
	content := `# all keys
data: ` + dir + `
listen: ":7071"
socket_group: staff
domain: sandboxes.example.com
url: https://node:7070
api_key: e2b_0a
pool: {base: 3, "snap:v2": 1}
limits:
  sandboxes: 10
  cpus: 8
  memory_mb: 4096
  disk_mb: 20480
network:
  subnet: 10.9.0.0/16
  dns: [9.9.9.9, "127.0.0.1:5353"]
platform: auto
log: {level: debug, format: json}
templates:
  base: debootstrap://bookworm?packages=jq,git
`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(Sources{File: file})
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Data: dir, Listen: ":7071", SocketGroup: "staff", Domain: "sandboxes.example.com",
		URL: "https://node:7070", APIKey: "e2b_0a", Pool: map[string]int{"base": 3, "snap:v2": 1},
		Limits:   Limits{Sandboxes: 10, CPUs: 8, MemoryMB: 4096, DiskMB: 20480},
		Network:  Network{Subnet: netip.MustParsePrefix("10.9.0.0/16"), DNS: []netip.AddrPort{netip.MustParseAddrPort("9.9.9.9:53"), netip.MustParseAddrPort("127.0.0.1:5353")}},
		Platform: "auto", Log: Log{Level: "debug", Format: "json"},
		Templates: Templates{Base: "debootstrap://bookworm?packages=jq,git"}, File: file,
	}
	if d := cmp.Diff(want, got, equalAddrs); d != "" {
		t.Error(d)
	}
	// The one-string form of every key is what flags and variables take: setting
	// it gives the same configuration.
	flags := map[string]string{}
	for _, k := range Keys {
		flags[k.Name] = k.Value(got)
	}
	again, err := Load(Sources{SystemFile: filepath.Join(dir, "none"), Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	got.File = ""
	if d := cmp.Diff(got, again, equalAddrs); d != "" {
		t.Errorf("flags: %s", d)
	}
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		name, file string
		env        []string
		flags      map[string]string
		want       string
	}{
		{name: "unknown key", file: "listn: x\n", want: "holdfast.yaml:1: listn is not known; did you mean listen?"},
		{name: "unknown key far from all", file: "\nzebra: x\n", want: "holdfast.yaml:2: zebra is not known"},
		{name: "unknown nested key", file: "limits:\n  memory: 3\n", want: "holdfast.yaml:2: limits.memory is not known; did you mean limits.memory_mb?"},
		{name: "unknown section", file: "limit:\n  cpus: 3\n", want: "holdfast.yaml:1: limit is not known; did you mean limits?"},
		{name: "swapped letters", file: "dommain: x\n", want: "did you mean domain?"},
		{name: "twice", file: "log:\n  level: info\n  format: text\nlisten: \":1\"\nlisten: \":2\"\n", want: "listen"},
		{name: "number", file: "limits: {cpus: many}\n", want: `holdfast.yaml:1: limits.cpus "many" must be a whole number, 0 or more`},
		{name: "negative", flags: map[string]string{"limits.cpus": "-1"}, want: `--limits-cpus: limits.cpus "-1" must be a whole number, 0 or more`},
		{name: "choice", file: "platform: kwm\n", want: `platform "kwm" must be one of systrap, kvm, auto; did you mean kvm?`},
		{name: "list for a value", file: "domain: [a, b]\n", want: "domain must be a value, not a list"},
		{name: "map for a value", file: "domain: {a: b}\n", want: "domain must be a value, not a map"},
		{name: "value for a section", file: "limits: 3\n", want: "limits must hold key: value lines"},
		{name: "list as file", file: "- a\n", want: "the file must hold key: value lines"},
		{name: "not yaml", file: "a: [\n", want: "is not YAML"},
		{name: "two documents", file: "domain: a\n---\ndomain: b\n", want: "has 2 documents"},
		{name: "listen", env: []string{"HOLDFAST_LISTEN=7070"}, want: `HOLDFAST_LISTEN: listen "7070" must be host:port`},
		{name: "port", env: []string{"HOLDFAST_LISTEN=:70700"}, want: "port from 0 to 65535"},
		{name: "variable misspelt", env: []string{"HOLDFAST_LISTN=:1"}, want: "environment: HOLDFAST_LISTN is not known; did you mean HOLDFAST_LISTEN?"},
		{name: "url", flags: map[string]string{"url": "node:7070"}, want: "--url: url"},
		{name: "subnet bits", flags: map[string]string{"network.subnet": "10.0.0.1/16"}, want: "must be a network"},
		{name: "subnet size", flags: map[string]string{"network.subnet": "10.0.0.0/30"}, want: "from /8 to /28"},
		{name: "dns", flags: map[string]string{"network.dns": "9.9.9.9,dns.example"}, want: `"dns.example" is not`},
		{name: "pool", flags: map[string]string{"pool": "base"}, want: `"base" is not`},
		{name: "pool above limit", flags: map[string]string{"pool": "base=5", "limits.sandboxes": "3"}, want: "is more than limits.sandboxes (3)"},
		{name: "domain", flags: map[string]string{"domain": "http://x"}, want: "must be a domain name"},
		{name: "data empty", flags: map[string]string{"data": ""}, want: "must not be empty"},
		{name: "data too long", flags: map[string]string{"data": "/" + strings.Repeat("x", 100)}, want: "is too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Sources{SystemFile: filepath.Join(t.TempDir(), "none"), Environ: tt.env, Flags: map[string]string{"data": write(t, tt.file)}}
			for k, v := range tt.flags {
				s.Flags[k] = v
			}
			_, err := Load(s)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want …%s…", err, tt.want)
			}
		})
	}
}

func TestErrorsAreAllReported(t *testing.T) {
	_, err := Load(Sources{Flags: map[string]string{
		"data": write(t, "listn: 1\nplatform: x\n"), "log.level": "loud",
	}})
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) || len(joined.Unwrap()) != 3 {
		t.Fatalf("want three errors, got %v", err)
	}
	var e *Error
	if !errors.As(err, &e) || e.Key != "listn" || e.Near != "listen" {
		t.Errorf("first error %+v", e)
	}
}

func TestForeignVariablesAreLeftAlone(t *testing.T) {
	_, err := Load(Sources{Flags: map[string]string{"data": write(t, "")}, Environ: []string{"HOLDFAST_TEST_CACHE=/x", "HOME=/root"}})
	if err != nil {
		t.Error(err)
	}
}

func TestListenURL(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:7070": "http://127.0.0.1:7070",
		":8080":          "http://127.0.0.1:8080",
		"0.0.0.0:1":      "http://127.0.0.1:1",
		"[::]:1":         "http://127.0.0.1:1",
		"[fd00::1]:1":    "http://[fd00::1]:1",
		"node:1":         "http://node:1",
	} {
		if got := (&Config{Listen: listen}).ListenURL(); got != want {
			t.Errorf("ListenURL of %s = %s, want %s", listen, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"listen", "listen", 0}, {"listn", "listen", 1}, {"lisetn", "listen", 1}, {"abc", "xyz", 3}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
