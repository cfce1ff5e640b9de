package v1

import (
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// NameKey is the metadata key that holds a sandbox's name.
const NameKey = "name"

// FromSandbox gives s as it is on the wire, tokens included.
func FromSandbox(s *sandbox.Sandbox) Sandbox {
	out := Sandbox{
		ID: s.ID, Name: s.Metadata[NameKey], Template: s.Template, TemplateID: s.TemplateID,
		State: string(s.State), Reason: s.Reason, Recovered: string(s.Recovered),
		CreatedAt: s.CreatedAt.UTC(), StartedAt: utc(s.StartedAt), PausedAt: utc(s.PausedAt),
		Lifecycle: Lifecycle{
			TimeoutSeconds: s.Lifecycle.Timeout.Seconds(), OnTimeout: string(s.Lifecycle.OnTimeout),
			KeepMemory: s.Lifecycle.KeepMemory, AutoResume: s.Lifecycle.AutoResume,
		},
		Resources: Resources(s.Resources), Network: Network(s.Network), Metadata: s.Metadata,
		User: s.User, Workdir: s.Workdir, AccessToken: s.AccessToken, TrafficToken: s.TrafficToken,
	}
	if s.State == sandbox.Running {
		out.EndAt = utc(s.EndAt)
	}
	return out
}

func fromTemplate(t *sandbox.Template) Template {
	return Template{
		ID: t.ID, Name: t.Name, Names: t.Names, CreatedAt: t.CreatedAt.UTC(), Source: t.Source,
		SandboxID: t.SourceID, Snapshot: t.Snapshot, HasMemory: t.HasMemory, Resources: Resources(t.Resources),
		User: t.User, Workdir: t.Workdir, FilesBytes: t.FilesBytes, ImageBytes: t.ImageBytes,
		SpawnCount: t.SpawnCount, LastUsedAt: utc(t.LastUsedAt),
	}
}

func fromEvent(e sandbox.Event) Event {
	return Event{Seq: e.Seq, Time: e.Time.UTC(), SandboxID: e.SandboxID, Kind: e.Kind, Message: e.Message, Fields: e.Fields}
}

func fromFindings(list []sandbox.Finding) []Finding {
	out := make([]Finding, len(list))
	for i, f := range list {
		out[i] = Finding{
			Check: f.Check, Severity: string(f.Severity), Thing: f.Thing,
			Reason: f.Reason, Next: f.Next, Repaired: f.Repaired,
		}
	}
	return out
}

func fromInspection(i *sandbox.Inspection) *Host {
	h := &Host{
		Layers: i.Layers, ImageBytes: i.ImageBytes, DiskBytes: i.DiskBytes,
		MemoryBytes: i.MemoryBytes, Tasks: i.PIDs, PID: i.PID, Runtime: i.Runtime,
	}
	if i.Addr.IsValid() {
		h.Address = i.Addr.String()
	}
	return h
}

func fromMetric(m *sandbox.Metric) *Usage {
	return &Usage{
		Time: m.Time.UTC(), CPUPercent: m.CPUUsedPct,
		MemoryBytes: m.MemUsed, MemoryTotalBytes: m.MemTotal, DiskBytes: m.DiskUsed, DiskTotalBytes: m.DiskTotal,
	}
}

func fromNodeStatus(n *sandbox.NodeStatus) *NodeStatus {
	out := &NodeStatus{
		Engine: n.Engine, EngineVersion: n.EngineVersion, Platform: n.Platform, Runtime: n.Runtime,
		Missing: n.Missing, Sandboxes: map[string]int{}, Templates: n.Templates, Snapshots: n.Snapshots,
		Pool: map[string]Pool{}, UsedCPUs: n.Used.CPUs, UsedMemoryMB: n.Used.MemoryMB,
		DiskUsedBytes: n.DiskUsed, DiskFreeBytes: n.DiskFree,
	}
	for state, count := range n.Sandboxes {
		out.Sandboxes[string(state)] = count
	}
	for name, p := range n.Pool {
		out.Pool[name] = Pool(p)
	}
	return out
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}

// seconds gives a duration of a request's number. It is the caller's duty to
// check the range before: NaN and overflow never get here.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
