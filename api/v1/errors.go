package v1

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/holdfast-run/holdfast/sandbox"
)

// Error is a sandbox.Error on the wire.
type Error struct {
	Kind   string `json:"kind"`
	Thing  string `json:"thing"`
	Reason string `json:"reason"`
	Next   string `json:"next,omitempty"`
}

// ErrorBody is the body of an answer that is an error.
type ErrorBody struct {
	Error *Error `json:"error"`
}

// Err gives the error back as the *sandbox.Error it was; nil for nil.
func (e *Error) Err() error {
	if e == nil {
		return nil
	}
	return &sandbox.Error{Kind: sandbox.Kind(e.Kind), Thing: e.Thing, Reason: e.Reason, Next: e.Next}
}

var statusOf = map[sandbox.Kind]int{
	sandbox.NotFound:       http.StatusNotFound,
	sandbox.Terminal:       http.StatusGone,
	sandbox.Authentication: http.StatusUnauthorized,
	sandbox.InvalidRequest: http.StatusBadRequest,
	sandbox.Unsupported:    http.StatusNotImplemented,
	sandbox.Conflict:       http.StatusConflict,
	sandbox.Capacity:       http.StatusTooManyRequests,
	sandbox.Timeout:        http.StatusGatewayTimeout,
	sandbox.Unavailable:    http.StatusServiceUnavailable,
	sandbox.Internal:       http.StatusInternalServerError,
}

// statusError has a status of its own within its kind.
type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

func wireError(err error) *Error {
	var e *sandbox.Error
	if !errors.As(err, &e) {
		return &Error{Kind: string(sandbox.KindOf(err)), Thing: "request", Reason: "failed: " + err.Error()}
	}
	// The cause's text belongs to the reason: the wire has no causes.
	whole := *e
	whole.Next = ""
	reason := e.Reason
	if text := whole.Error(); len(text) > len(e.Thing)+1 {
		reason = text[len(e.Thing)+1:]
	}
	return &Error{Kind: string(e.Kind), Thing: e.Thing, Reason: reason, Next: e.Next}
}

func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	kind := sandbox.KindOf(err)
	status, ok := statusOf[kind]
	if !ok {
		status = http.StatusInternalServerError
	}
	var own statusError
	if errors.As(err, &own) {
		status = own.status
	}
	if kind == sandbox.Internal && r.Context().Err() == nil {
		s.Logger.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	reply(w, status, ErrorBody{Error: wireError(err)})
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The status is out: an error here means the client is gone.
	_ = json.NewEncoder(w).Encode(body)
}
