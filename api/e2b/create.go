package e2b

import (
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// createDefaults is what the versions of the create route differ in.
type createDefaults struct {
	timeout      int // seconds
	alwaysSecure bool
}

var (
	createV1 = createDefaults{timeout: 15}
	createV2 = createDefaults{timeout: 300, alwaysSecure: true}
)

func (s *Server) create(d createDefaults) handler {
	return func(w http.ResponseWriter, c call) error {
		o, err := parseCreate(w, c.Request, d)
		if err != nil {
			return err
		}
		o.Space = c.space
		sb, err := s.backend.Create(c.Context(), o)
		if err != nil {
			return err
		}
		return reply(w, http.StatusCreated, s.session(sb))
	}
}

func parseCreate(w http.ResponseWriter, r *http.Request, d createDefaults) (sandbox.CreateOptions, error) {
	none := sandbox.CreateOptions{}
	body, err := readObject(w, r, true)
	if err != nil {
		return none, err
	}
	o := sandbox.CreateOptions{
		Template: body.string("templateID"),
		Metadata: body.stringMap("metadata"),
		Env:      body.stringMap("envVars"),
		Secure:   body.bool("secure", false) || d.alwaysSecure,
	}
	timeout := body.int("timeout", d.timeout)
	autoPause := body.bool("autoPause", false)
	keepMemory := body.bool("autoPauseMemory", true)
	autoResume := false
	if ar := body.object("autoResume"); ar != nil {
		if !ar.has("enabled") {
			ar.fail("field %q is needed", "autoResume.enabled")
		}
		autoResume = ar.bool("enabled", false)
		if err := ar.end(false); err != nil {
			return none, err
		}
	}
	network := sandbox.Network{
		AllowInternet:      body.bool("allow_internet_access", true),
		AllowPublicTraffic: true,
	}
	policy := body.object("network")
	body.refuse("mcp", "start the MCP server as a process in the sandbox")
	body.refuse("iam", "pass credentials in envVars")
	body.refuse("volumeMounts", "files persist in the sandbox itself")
	if err := body.end(false); err != nil {
		return none, err
	}
	if policy != nil {
		if err := parsePolicy(policy, &network); err != nil {
			return none, err
		}
	}

	o.Network = network
	o.Lifecycle = sandbox.Lifecycle{OnTimeout: sandbox.Kill, KeepMemory: keepMemory, AutoResume: autoResume}
	if autoPause {
		o.Lifecycle.OnTimeout = sandbox.Pause
	}
	if o.Timeout, err = timeoutOf(timeout); err != nil {
		return none, err
	}
	o.Lifecycle.Timeout = o.Timeout
	return o, checkCreate(o, autoPause)
}

// checkCreate refuses what contradicts itself.
func checkCreate(o sandbox.CreateOptions, autoPause bool) error {
	switch {
	case o.Template == "":
		return invalid("field \"templateID\" is needed, e.g. %q", sandbox.DefaultTemplate)
	case strings.ContainsRune(o.Template, 0):
		return invalid("field \"templateID\" must not contain NUL")
	case !o.Lifecycle.KeepMemory && !autoPause:
		return invalid("autoPauseMemory false needs autoPause true: without it nothing is paused")
	case !o.Lifecycle.KeepMemory && o.Lifecycle.AutoResume:
		return invalid("autoPauseMemory false does not go together with autoResume: a request cannot wait for a boot; " +
			"keep memory, or resume with connect")
	case !o.Network.AllowPublicTraffic && !o.Secure:
		return invalid("network.allowPublicTraffic false needs secure true")
	}
	for name, value := range o.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return invalid("field \"envVars\": %q is not the name of an environment variable", name)
		}
		if strings.ContainsRune(value, 0) {
			return invalid("field \"envVars.%s\" must not contain NUL", name)
		}
	}
	return nil
}

// timeoutOf checks a timeout in seconds that must be positive.
func timeoutOf(seconds int) (time.Duration, error) {
	if seconds <= 0 {
		return 0, invalid("Timeout must be greater than 0")
	}
	return deadlineOf(seconds)
}

// deadlineOf checks a timeout in seconds that may be 0.
func deadlineOf(seconds int) (time.Duration, error) {
	d := time.Duration(seconds) * time.Second
	if seconds < 0 {
		return 0, invalid("Timeout must not be negative")
	}
	if d > sandbox.MaxTimeout {
		return 0, invalid("Timeout cannot be greater than %d hours", int(math.Round(sandbox.MaxTimeout.Hours())))
	}
	return d, nil
}
