// Package config is everything that can be set: one struct, filled from
// defaults, then holdfast.yaml, then HOLDFAST_* variables, then flags; later
// sources win key by key. Keys (keys.go) is the one table that names, documents
// and parses each of them for all three sources.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/holdfast-run/holdfast/sandbox"
)

// Defaults.
const (
	DefaultData   = "/var/lib/holdfast"
	DefaultListen = "127.0.0.1:7070"
	SystemFile    = "/etc/holdfast/holdfast.yaml"
	FileName      = "holdfast.yaml" // in the data folder
	EnvPrefix     = "HOLDFAST_"
)

// Config is what one daemon, or one command that talks to it, was told.
type Config struct {
	Data        string         // folder of everything the daemon keeps
	Listen      string         // host:port of the one listener
	SocketGroup string         // group that may use the socket; "" for root alone
	Domain      string         // what SDKs are told as sandbox domain; "" for none
	URL         string         // daemon to talk to; "" for the socket in Data
	APIKey      string         // key for URL
	Pool        map[string]int // template → ready sandboxes to keep
	Limits      Limits
	Network     Network
	Platform    string // "systrap", "kvm" or "auto"
	Log         Log
	Templates   Templates

	// File is the configuration file that was read; "" when there was none.
	File string
}

// Limits bound what all sandboxes of the node may use together; 0 is no limit.
type Limits struct {
	Sandboxes int // running at once
	CPUs      int // cores of running sandboxes
	MemoryMB  int // MiB of running sandboxes
	DiskMB    int // MiB of the data folder
}

// Network is the node's side of sandbox networking.
type Network struct {
	Subnet netip.Prefix     // IPv4, /8 to /28; the zero Prefix lets the node choose
	DNS    []netip.AddrPort // upstream resolvers; empty: the machine's own
}

// Log says how to log.
type Log struct {
	Level  string // "debug", "info", "warn" or "error"
	Format string // "text" or "json"
}

// Templates says where templates come from.
type Templates struct {
	Base string // source of the base template; "" lets the node choose
}

// Default gives the configuration of a machine that was told nothing.
func Default() *Config {
	return &Config{
		Data:     DefaultData,
		Listen:   DefaultListen,
		Pool:     map[string]int{sandbox.DefaultTemplate: 2},
		Platform: "systrap",
		Log:      Log{Level: "info", Format: "text"},
	}
}

// Socket is the path of the daemon's Unix socket.
func (c *Config) Socket() string { return filepath.Join(c.Data, "holdfast.sock") }

// LogFile is where a daemon started by `up` writes.
func (c *Config) LogFile() string { return filepath.Join(c.Data, "holdfast.log") }

// ListenURL is the URL under which this machine reaches the listener.
func (c *Config) ListenURL() string {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return "http://" + c.Listen
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// Sources are where Load looks.
type Sources struct {
	// File is an explicit configuration file, which must exist. Otherwise
	// HOLDFAST_CONFIG, <data>/holdfast.yaml and /etc/holdfast/holdfast.yaml are tried.
	File string
	// SystemFile replaces /etc/holdfast/holdfast.yaml when set.
	SystemFile string
	Environ    []string          // as os.Environ
	Flags      map[string]string // key name → value, only of flags that were given
}

// Load gives the checked configuration. The error joins one *Error for each
// thing that is wrong.
func Load(s Sources) (*Config, error) {
	c := Default()
	env, errs := readEnviron(s.Environ)

	// The data folder decides which file is read, so it is looked at first.
	data := c.Data
	if v, ok := env["data"]; ok {
		data = v
	}
	if v, ok := s.Flags["data"]; ok {
		data = v
	}
	file, content, err := findFile(s, data)
	if err != nil {
		return nil, err
	}
	if file != "" {
		c.File = file
		errs = append(errs, c.readFile(file, content)...)
	}
	errs = append(errs, c.setAll(env, func(k Key) string { return k.EnvName() })...)
	errs = append(errs, c.setAll(s.Flags, func(k Key) string { return "--" + k.FlagName() })...)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if abs, err := filepath.Abs(c.Data); err == nil {
		c.Data = abs
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

func findFile(s Sources, data string) (string, []byte, error) {
	explicit := s.File
	if explicit == "" {
		explicit = lookup(s.Environ, EnvPrefix+"CONFIG")
	}
	if explicit != "" {
		b, err := os.ReadFile(explicit)
		if err != nil {
			return "", nil, fmt.Errorf("configuration file %s cannot be read: %w", explicit, err)
		}
		return explicit, b, nil
	}
	system := s.SystemFile
	if system == "" {
		system = SystemFile
	}
	for _, f := range []string{filepath.Join(data, FileName), system} {
		b, err := os.ReadFile(f)
		switch {
		case err == nil:
			return f, b, nil
		case errors.Is(err, os.ErrPermission) && f != system:
			continue // an ordinary user asks a daemon of root's: the client side needs nothing of it
		case !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission):
			return "", nil, fmt.Errorf("configuration file %s cannot be read: %w", f, err)
		}
	}
	return "", nil, nil
}

func lookup(environ []string, name string) string {
	for _, e := range environ {
		if k, v, _ := strings.Cut(e, "="); k == name {
			return v
		}
	}
	return ""
}

// setAll applies values in the order of the table, so that errors come in a
// stable order.
func (c *Config) setAll(values map[string]string, source func(Key) string) []error {
	var errs []error
	for _, k := range Keys {
		v, ok := values[k.Name]
		if !ok {
			continue
		}
		if err := k.set(c, v); err != nil {
			errs = append(errs, &Error{Key: k.Name, Source: source(k), Value: v, Reason: err.Error()})
		}
	}
	return errs
}

// readEnviron gives the keys set by HOLDFAST_* variables. A variable that is
// nearly a known one is an error; others are left to whoever reads them.
func readEnviron(environ []string) (map[string]string, []error) {
	values := map[string]string{}
	var errs []error
	names := make([]string, 0, len(Keys))
	byEnv := map[string]string{EnvPrefix + "CONFIG": ""}
	for _, k := range Keys {
		byEnv[k.EnvName()] = k.Name
		names = append(names, k.EnvName())
	}
	for _, e := range environ {
		name, v, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, EnvPrefix) || v == "" {
			continue // an empty variable means "not set", as everywhere
		}
		key, known := byEnv[name]
		switch near := nearest(name, names); {
		case known && key != "":
			values[key] = v
		case !known && near != "":
			errs = append(errs, &Error{Key: name, Source: "environment", Reason: "is not known", Near: near})
		}
	}
	return values, errs
}

// Error is one thing wrong with the configuration.
type Error struct {
	Key    string // e.g. "limits.cpus"
	Source string // "--listen", "HOLDFAST_LISTEN" or "file:line"
	Value  string
	Reason string
	Near   string // the nearest known key, for an unknown one
}

// Error gives `source: key "value" reason`.
func (e *Error) Error() string {
	s := e.Key
	if e.Value != "" {
		s += " " + strconv.Quote(e.Value)
	}
	s += " " + e.Reason
	if e.Source != "" && e.Source != e.Key {
		s = e.Source + ": " + s
	}
	if e.Near != "" {
		s += "; did you mean " + e.Near + "?"
	}
	return s
}

// Validate checks values against each other and the limits of what they name;
// the form of each was checked when it was read. The error joins *Errors.
func (c *Config) Validate() error {
	var errs []error
	bad := func(key, value, format string, args ...any) {
		errs = append(errs, &Error{Key: key, Value: value, Reason: fmt.Sprintf(format, args...)})
	}
	// A Unix socket's path has 108 bytes; the daemon's is <data>/holdfast.sock.
	if n := len(c.Socket()); n > 107 {
		bad("data", c.Data, "is too long: the socket in it would have %d bytes, 107 are possible", n)
	}
	if p := c.Network.Subnet; p.IsValid() && (!p.Addr().Is4() || p.Bits() < 8 || p.Bits() > 28) {
		bad("network.subnet", p.String(), "must be an IPv4 network from /8 to /28")
	}
	for name, n := range c.Pool {
		if n > 0 && c.Limits.Sandboxes > 0 && n > c.Limits.Sandboxes {
			bad("pool", fmt.Sprintf("%s=%d", name, n), "is more than limits.sandboxes (%d)", c.Limits.Sandboxes)
		}
	}
	return errors.Join(errs...)
}
