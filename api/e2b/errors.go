package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/holdfast-run/holdfast/sandbox"
)

// wireError is an error with a status of its own, for what is about HTTP and
// not about sandboxes.
type wireError struct {
	status  int
	message string
}

func (e *wireError) Error() string { return e.message }

// invalid is a 400 whose whole text is the message.
func invalid(format string, args ...any) error {
	return &wireError{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...)}
}

// errorBody is the shape of every error. Clients branch on Code in the body.
type errorBody struct {
	Code      int    `json:"code"`
	Message   string `json:"message"`
	ErrorCode string `json:"error_code,omitempty"`
}

// wire gives status and stable code of each kind.
var wire = map[sandbox.Kind]struct {
	status int
	code   string
}{
	sandbox.NotFound:       {http.StatusNotFound, ""},
	sandbox.Terminal:       {http.StatusNotFound, ""},
	sandbox.Authentication: {http.StatusUnauthorized, ""},
	sandbox.InvalidRequest: {http.StatusBadRequest, ""},
	sandbox.Unsupported:    {http.StatusNotImplemented, "unsupported"},
	sandbox.Conflict:       {http.StatusConflict, ""},
	sandbox.Capacity:       {http.StatusTooManyRequests, "sandbox_capacity_unavailable"},
	sandbox.Timeout:        {http.StatusGatewayTimeout, "sandbox_placement_timeout"},
	sandbox.Unavailable:    {http.StatusServiceUnavailable, "unavailable"},
	sandbox.Internal:       {http.StatusInternalServerError, "internal_server_error"},
}

// bodyOf maps an error to the wire. It is the only place that does.
func bodyOf(err error) errorBody {
	var we *wireError
	if errors.As(err, &we) {
		return errorBody{Code: we.status, Message: we.message}
	}
	var mine *sandbox.Error
	text := err.Error()
	if errors.As(err, &mine) {
		text = mine.Error()
	}
	m := wire[sandbox.KindOf(err)]
	return errorBody{Code: m.status, Message: text, ErrorCode: m.code}
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	b := bodyOf(err)
	if b.Code >= 500 && b.Code != http.StatusNotImplemented && !errors.Is(r.Context().Err(), context.Canceled) {
		s.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "status", b.Code, "error", err)
	}
	if b.Code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	_ = reply(w, b.Code, b)
}

// reply writes v as JSON. A client that went away is nobody's error.
func reply(w http.ResponseWriter, status int, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(append(raw, '\n'))
	return nil
}

func noContent(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// noSandbox is E2B's own text, which clients' tests look for.
func noSandbox(id string) error {
	return &wireError{
		status:  http.StatusNotFound,
		message: fmt.Sprintf("Sandbox %q doesn't exist or you don't have access to it", id),
	}
}

// unsupported says that the backend lacks an ability.
func unsupported(what string) error {
	return sandbox.Errorf(sandbox.Unsupported, what, "is not supported by this backend")
}
