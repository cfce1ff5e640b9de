package files

import (
	"encoding/json"
	"io"
	"net/http"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/account"
)

// Fail answers a REST request with E2B's error body.
func Fail(w http.ResponseWriter, status int, message string) {
	answer(w, status, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, message})
}

// drainLimit is how much of a body nobody wants is still read, in bytes.
const drainLimit = 1 << 30

// Drain reads what is left of a request's body. A server that answers and closes
// in the middle of an upload resets the connection, and the client sees that
// instead of the answer.
func Drain(r *http.Request) {
	_, _ = io.CopyN(io.Discard, r.Body, drainLimit)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has left if this fails
}

// fail answers with what err means.
func fail(w http.ResponseWriter, path string, err error) {
	ce := classify(path, err)
	Fail(w, status(ce.Code()), ce.Message())
}

func status(code connect.Code) int {
	switch code {
	case connect.CodeInvalidArgument:
		return http.StatusBadRequest
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeAlreadyExists:
		return http.StatusConflict
	case connect.CodeResourceExhausted:
		return http.StatusInsufficientStorage
	}
	return http.StatusInternalServerError
}

// userOf gives the user a REST request acts for: the query's, else the one that
// the request came in as. It has answered if ok is false.
func (s *Service) userOf(w http.ResponseWriter, r *http.Request, name string) (u account.User, ok bool) {
	if name == "" {
		return account.FromContext(r.Context()), true
	}
	u, err := s.accounts.Lookup(name)
	if err != nil {
		Fail(w, http.StatusUnauthorized, err.Error())
		return u, false
	}
	return u, true
}
