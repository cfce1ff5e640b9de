package e2b

import (
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// session is E2B's "Sandbox": the answer to create, connect, resume and fork.
type session struct {
	TemplateID         string  `json:"templateID"`
	SandboxID          string  `json:"sandboxID"`
	ClientID           string  `json:"clientID"`
	Alias              string  `json:"alias,omitempty"`
	EnvdVersion        string  `json:"envdVersion"`
	EnvdAccessToken    string  `json:"envdAccessToken,omitempty"`
	TrafficAccessToken *string `json:"trafficAccessToken"`
	Domain             *string `json:"domain"`
}

type listed struct {
	TemplateID   string            `json:"templateID"`
	Alias        string            `json:"alias,omitempty"`
	SandboxID    string            `json:"sandboxID"`
	ClientID     string            `json:"clientID"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	CPUCount     int               `json:"cpuCount"`
	MemoryMB     int               `json:"memoryMB"`
	DiskSizeMB   int               `json:"diskSizeMB"`
	State        string            `json:"state"`
	EnvdVersion  string            `json:"envdVersion"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	VolumeMounts []struct{}        `json:"volumeMounts"`
}

type detail struct {
	listed
	EnvdAccessToken     string    `json:"envdAccessToken,omitempty"`
	Domain              *string   `json:"domain"`
	AllowInternetAccess *bool     `json:"allowInternetAccess"`
	Network             network   `json:"network"`
	Lifecycle           lifecycle `json:"lifecycle"`
}

type network struct {
	AllowPublicTraffic bool     `json:"allowPublicTraffic"`
	AllowOut           []string `json:"allowOut,omitempty"`
	DenyOut            []string `json:"denyOut,omitempty"`
	MaskRequestHost    string   `json:"maskRequestHost,omitempty"`
}

type lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"`
}

func (s *Server) session(sb *sandbox.Sandbox) session {
	out := session{
		TemplateID: sb.TemplateID, SandboxID: sb.ID, ClientID: clientID, Alias: alias(sb),
		EnvdVersion: EnvdVersion, EnvdAccessToken: sb.AccessToken, Domain: s.domainOrNull(),
	}
	if !sb.Network.AllowPublicTraffic && sb.TrafficToken != "" {
		out.TrafficAccessToken = &sb.TrafficToken
	}
	return out
}

func (s *Server) domainOrNull() *string {
	if s.domain == "" {
		return nil
	}
	return &s.domain
}

func toListed(sb *sandbox.Sandbox) listed {
	end := sb.EndAt
	if end.IsZero() {
		end = sb.PausedAt
	}
	return listed{
		TemplateID: sb.TemplateID, Alias: alias(sb), SandboxID: sb.ID, ClientID: clientID,
		StartedAt: sb.StartedAt.UTC(), EndAt: end.UTC(),
		CPUCount: sb.Resources.CPUs, MemoryMB: sb.Resources.MemoryMB, DiskSizeMB: sb.Resources.DiskMB,
		State: stateName(sb.State), EnvdVersion: EnvdVersion, Metadata: sb.Metadata, VolumeMounts: []struct{}{},
	}
}

func (s *Server) detail(sb *sandbox.Sandbox) detail {
	n := sb.Network
	return detail{
		listed: toListed(sb), EnvdAccessToken: sb.AccessToken, Domain: s.domainOrNull(),
		AllowInternetAccess: &n.AllowInternet,
		Network: network{
			AllowPublicTraffic: n.AllowPublicTraffic, AllowOut: n.AllowOut, DenyOut: n.DenyOut,
			MaskRequestHost: n.MaskRequestHost,
		},
		Lifecycle: lifecycle{AutoResume: sb.Lifecycle.AutoResume, OnTimeout: string(sb.Lifecycle.OnTimeout)},
	}
}

func alias(sb *sandbox.Sandbox) string {
	if sb.Template == sb.TemplateID {
		return ""
	}
	return sb.Template
}

// The dialect knows two states. Which of ours go under which name: a failed
// sandbox is one that connect brings back, as it does a paused one.
var (
	runningStates = []sandbox.State{sandbox.Running, sandbox.Resuming}
	pausedStates  = []sandbox.State{sandbox.Paused, sandbox.Pausing, sandbox.Failed}
)

func stateName(s sandbox.State) string {
	switch s {
	case sandbox.Paused, sandbox.Pausing, sandbox.Failed:
		return "paused"
	}
	return "running"
}

type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

func toMetric(m *sandbox.Metric) metric {
	return metric{
		Timestamp: m.Time.UTC(), TimestampUnix: m.Time.Unix(), CPUCount: m.CPUs, CPUUsedPct: m.CPUUsedPct,
		MemUsed: m.MemUsed, MemTotal: m.MemTotal, DiskUsed: m.DiskUsed, DiskTotal: m.DiskTotal,
	}
}
