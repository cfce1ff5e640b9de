package v1

import (
	"net/http"

	"github.com/holdfast-run/holdfast/sandbox"
)

// maxForks bounds one request, as E2B does.
const maxForks = 100

func (s *server) snapshotSandbox(w http.ResponseWriter, c *call) error {
	var req SnapshotRequest
	if err := decode(c.Request, &req); err != nil {
		return err
	}
	sn, err := ability[sandbox.Snapshotter](s, "snapshot")
	if err != nil {
		return err
	}
	sb, err := s.find(c.Context(), c.space, c.PathValue("ref"))
	if err != nil {
		return err
	}
	t, err := sn.Snapshot(c.Context(), sb.ID, sandbox.SnapshotOptions{Name: req.Name, FilesOnly: req.FilesOnly})
	if err != nil {
		return err
	}
	reply(w, http.StatusCreated, fromTemplate(t))
	return nil
}

func (s *server) forkSandbox(w http.ResponseWriter, c *call) error {
	req := ForkRequest{Count: 1}
	if err := decode(c.Request, &req); err != nil {
		return err
	}
	if req.Count < 1 || req.Count > maxForks {
		return sandbox.Errorf(sandbox.InvalidRequest, "field count", "must be 1 to %d, not %d", maxForks, req.Count)
	}
	sn, err := ability[sandbox.Snapshotter](s, "fork")
	if err != nil {
		return err
	}
	sb, err := s.find(c.Context(), c.space, c.PathValue("ref"))
	if err != nil {
		return err
	}
	def := sb.Lifecycle.Timeout
	if def <= 0 {
		def = sandbox.DefaultTimeout
	}
	d, err := timeout("timeout_seconds", req.TimeoutSeconds, def)
	if err != nil {
		return err
	}
	results, err := sn.Fork(c.Context(), sb.ID, sandbox.ForkOptions{Count: req.Count, Timeout: d})
	if err != nil {
		return err
	}
	out := ForkResponse{Forks: make([]Fork, len(results))}
	for i, r := range results {
		if r.Err != nil {
			out.Forks[i].Error = wireError(r.Err)
			continue
		}
		sb := FromSandbox(r.Sandbox)
		out.Forks[i].Sandbox = &sb
	}
	reply(w, http.StatusCreated, out)
	return nil
}

func (s *server) rollbackSandbox(w http.ResponseWriter, c *call) error {
	var req RollbackRequest
	if err := decode(c.Request, &req); err != nil {
		return err
	}
	if req.Snapshot == "" {
		return sandbox.Errorf(sandbox.InvalidRequest, "field snapshot", "is missing").WithNext("name one of the sandbox's snapshots")
	}
	sn, err := ability[sandbox.Snapshotter](s, "rollback")
	if err != nil {
		return err
	}
	sb, err := s.find(c.Context(), c.space, c.PathValue("ref"))
	if err != nil {
		return err
	}
	snapshot := req.Snapshot
	if t, ok := s.Backend.(sandbox.Templater); ok {
		found, err := s.findTemplate(c.Context(), t, c.space, snapshot, true)
		if err != nil {
			return err
		}
		snapshot = found.ID
	}
	sb, err = sn.Rollback(c.Context(), sb.ID, snapshot)
	if err != nil {
		return err
	}
	reply(w, http.StatusOK, FromSandbox(sb))
	return nil
}
