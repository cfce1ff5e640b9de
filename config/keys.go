package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Shape is what a key holds.
type Shape string

// Shapes.
const (
	Scalar Shape = "value"
	List   Shape = "list" // in one string: a,b
	Map    Shape = "map"  // in one string: a=1,b=2
)

// Key is one thing that can be set.
type Key struct {
	Name   string // in holdfast.yaml, nesting by dots: "limits.cpus"
	Shape  Shape
	Doc    string // one sentence, with the unit
	Client bool   // also read by commands that only talk to a daemon
	set    func(c *Config, v string) error
	get    func(c *Config) string
}

// EnvName is the key's variable, e.g. HOLDFAST_LIMITS_CPUS.
func (k Key) EnvName() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(k.Name, ".", "_"))
}

// FlagName is the key's flag without dashes, e.g. limits-cpus.
func (k Key) FlagName() string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(k.Name)
}

// Value gives the key's value in c as one string.
func (k Key) Value(c *Config) string { return k.get(c) }

// Keys are all there are, in the order of the documentation.
var Keys = []Key{
	text("data", "Folder of everything the daemon keeps.", true, func(c *Config) *string { return &c.Data }, notEmpty),
	text("listen", "host:port of the one listener for APIs and sandbox traffic.", false, func(c *Config) *string { return &c.Listen }, hostPort),
	text("socket_group", "Group that may use the Unix socket besides root.", false, func(c *Config) *string { return &c.SocketGroup }, nil),
	text("domain", "Domain under which sandboxes are reached as <port>-<id>.<domain>.", false, func(c *Config) *string { return &c.Domain }, domain),
	text("url", "Daemon to talk to, e.g. http://host:7070; default: the socket in the data folder.", true, func(c *Config) *string { return &c.URL }, httpURL),
	text("api_key", "API key for the URL.", true, func(c *Config) *string { return &c.APIKey }, nil),
	{
		Name: "pool", Shape: Map,
		Doc: "Ready sandboxes to keep for each template, e.g. base=2; create takes one of them.",
		set: setPool, get: poolString,
	},
	number("limits.sandboxes", "Sandboxes that may run at once; 0: no limit.", func(c *Config) *int { return &c.Limits.Sandboxes }),
	number("limits.cpus", "Cores that running sandboxes may ask for together; 0: no limit.", func(c *Config) *int { return &c.Limits.CPUs }),
	number("limits.memory_mb", "MiB of memory that running sandboxes may ask for together; 0: no limit.", func(c *Config) *int { return &c.Limits.MemoryMB }),
	number("limits.disk_mb", "MiB that the data folder may take; 0: no limit.", func(c *Config) *int { return &c.Limits.DiskMB }),
	{
		Name: "network.subnet", Shape: Scalar,
		Doc: "IPv4 network for sandboxes, e.g. 10.200.0.0/16; default: chosen once by the node.",
		set: func(c *Config, v string) error {
			p, err := netip.ParsePrefix(v)
			if err != nil || p != p.Masked() {
				return errors.New("must be a network like 10.200.0.0/16")
			}
			c.Network.Subnet = p
			return nil
		},
		get: func(c *Config) string {
			if !c.Network.Subnet.IsValid() {
				return ""
			}
			return c.Network.Subnet.String()
		},
	},
	{
		Name: "network.dns", Shape: List,
		Doc: "Resolvers that sandboxes' questions are passed to, addresses with optional port; default: the machine's own.",
		set: setDNS, get: func(c *Config) string {
			s := make([]string, len(c.Network.DNS))
			for i, a := range c.Network.DNS {
				s[i] = a.String()
			}
			return strings.Join(s, ",")
		},
	},
	text("platform", "gVisor's platform: systrap, kvm, or auto to probe for kvm.", false, func(c *Config) *string { return &c.Platform }, oneOf("systrap", "kvm", "auto")),
	text("log.level", "Least level that is logged: debug, info, warn or error.", false, func(c *Config) *string { return &c.Log.Level }, oneOf("debug", "info", "warn", "error")),
	text("log.format", "Form of the log: text or json.", false, func(c *Config) *string { return &c.Log.Format }, oneOf("text", "json")),
	text("templates.base", "Source of the base template: image reference, archive, folder or debootstrap:// URL; default: what is reachable.", false, func(c *Config) *string { return &c.Templates.Base }, nil),
}

// Lookup finds a key by name.
func Lookup(name string) (Key, bool) {
	for _, k := range Keys {
		if k.Name == name {
			return k, true
		}
	}
	return Key{}, false
}

func text(name, doc string, client bool, field func(*Config) *string, check func(string) error) Key {
	return Key{
		Name: name, Shape: Scalar, Doc: doc, Client: client,
		get: func(c *Config) string { return *field(c) },
		set: func(c *Config, v string) error {
			if check != nil {
				if err := check(v); err != nil {
					return err
				}
			}
			*field(c) = v
			return nil
		},
	}
}

func number(name, doc string, field func(*Config) *int) Key {
	return Key{
		Name: name, Shape: Scalar, Doc: doc,
		get: func(c *Config) string { return strconv.Itoa(*field(c)) },
		set: func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < 0 {
				return errors.New("must be a whole number, 0 or more")
			}
			*field(c) = n
			return nil
		},
	}
}

func setPool(c *Config, v string) error {
	pool := map[string]int{}
	for _, part := range splitList(v) {
		name, count, ok := strings.Cut(part, "=")
		n, err := strconv.Atoi(count)
		if !ok || name == "" || err != nil || n < 0 {
			return fmt.Errorf("must be template=count, count 0 or more; %q is not", part)
		}
		pool[name] = n
	}
	c.Pool = pool
	return nil
}

func poolString(c *Config) string {
	s := make([]string, 0, len(c.Pool))
	for name, n := range c.Pool {
		s = append(s, fmt.Sprintf("%s=%d", name, n))
	}
	slices.Sort(s)
	return strings.Join(s, ",")
}

func setDNS(c *Config, v string) error {
	var list []netip.AddrPort
	for _, part := range splitList(v) {
		if a, err := netip.ParseAddr(part); err == nil {
			list = append(list, netip.AddrPortFrom(a, 53))
			continue
		}
		a, err := netip.ParseAddrPort(part)
		if err != nil {
			return fmt.Errorf("must be addresses like 9.9.9.9 or 127.0.0.1:5353; %q is not", part)
		}
		list = append(list, a)
	}
	c.Network.DNS = list
	return nil
}

// splitList splits a,b and drops empty parts: "" is the empty list.
func splitList(v string) []string {
	var out []string
	for part := range strings.SplitSeq(v, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

func notEmpty(v string) error {
	if v == "" {
		return errors.New("must not be empty")
	}
	return nil
}

func hostPort(v string) error {
	_, port, err := net.SplitHostPort(v)
	if err != nil {
		return errors.New("must be host:port like 127.0.0.1:7070")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return errors.New("must end with a port from 0 to 65535")
	}
	return nil
}

func httpURL(v string) error {
	if v == "" {
		return nil
	}
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("must be a URL like http://127.0.0.1:7070")
	}
	return nil
}

var domainPattern = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(:[0-9]{1,5})?$`)

func domain(v string) error {
	if v != "" && !domainPattern.MatchString(v) {
		return errors.New("must be a domain name in lower case like sandboxes.example.com")
	}
	return nil
}

func oneOf(choices ...string) func(string) error {
	return func(v string) error {
		if !slices.Contains(choices, v) {
			err := fmt.Errorf("must be one of %s", strings.Join(choices, ", "))
			if near := nearest(v, choices); near != "" {
				err = fmt.Errorf("%w; did you mean %s?", err, near)
			}
			return err
		}
		return nil
	}
}

// nearest gives the choice with the smallest edit distance to s, if that is at
// most a third of its length (and 3); "" otherwise.
func nearest(s string, choices []string) string {
	best, bestDistance := "", 4
	for _, c := range choices {
		if d := distance(s, c); d < bestDistance && d <= max(1, len(c)/3) {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is Levenshtein's, by bytes, where two swapped neighbours count once.
func distance(a, b string) int {
	before, prev := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(row[j]+1, prev[j+1]+1, prev[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, prev = prev, row
	}
	return prev[len(b)]
}
