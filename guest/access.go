package guest

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/account"
	"github.com/holdfast-run/holdfast/guest/files"
	"github.com/holdfast-run/holdfast/guest/identity"
	"github.com/holdfast-run/holdfast/guest/proto/filesystempb/filesystempbconnect"
	"github.com/holdfast-run/holdfast/guest/proto/processpb/processpbconnect"
	"github.com/holdfast-run/holdfast/guest/signature"
	"github.com/holdfast-run/holdfast/guest/stream"
)

// tokenHeader carries the sandbox's access token.
const tokenHeader = "X-Access-Token"

// HostOnly tells whether path, decoded, is a route for the host alone.
func HostOnly(path string) bool {
	switch path {
	case "/init", "/prepare", "/forward":
		return true
	}
	return false
}

// hostOnly lets only the host's own address through, and only with POST: what
// runs inside comes from other addresses, and the gateway passes none of these
// paths on. A root process inside can give itself any address, but then it can
// also stop this program: the boundary is the sandbox, not this check.
func (s *Server) hostOnly(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || peer.Addr().Unmap() != s.config.Host {
			files.Fail(w, http.StatusForbidden, r.URL.Path+" is for the host only")
			return
		}
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			files.Fail(w, http.StatusMethodNotAllowed, r.URL.Path+" takes POST")
			return
		}
		next(w, r)
	})
}

// authorised lets requests through that carry the token or a signature, and
// finds the user they act for.
func (s *Server) authorised(next http.Handler) http.Handler {
	failure := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse := func(status int, code connect.Code, err error) {
			if isRPC(r.URL.Path) {
				_ = failure.Write(w, r, connect.NewError(code, err)) // the client has left if this fails
			} else {
				files.Drain(r)
				files.Fail(w, status, err.Error())
			}
		}
		id := s.identity.Get()
		if id == nil {
			w.Header().Set("Retry-After", "1")
			refuse(http.StatusServiceUnavailable, connect.CodeUnavailable, errNoIdentity)
			return
		}
		if err := permit(id, r); err != nil {
			refuse(http.StatusUnauthorized, connect.CodeUnauthenticated, err)
			return
		}
		r.Header.Del(tokenHeader) // a long request must not keep it in memory
		u, err := s.userOf(id, r)
		if err != nil {
			refuse(http.StatusUnauthorized, connect.CodeUnauthenticated, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(account.NewContext(r.Context(), u)))
	})
}

func isRPC(path string) bool {
	return strings.HasPrefix(path, "/"+processpbconnect.ProcessName+"/") ||
		strings.HasPrefix(path, "/"+filesystempbconnect.FilesystemName+"/")
}

var errNoIdentity = errors.New("sandbox has no identity yet; try again in a moment")

var errToken = errors.New("unauthorized access, please provide a valid access token or method signing if supported")

func permit(id *identity.Identity, r *http.Request) error {
	if id.Token == "" {
		return nil
	}
	token, given := r.Header.Get(tokenHeader), len(r.Header.Values(tokenHeader)) > 0
	if given {
		if id.Allows(token) {
			return nil
		}
		return errToken
	}
	if r.URL.Path == "/files" {
		switch r.Method {
		case http.MethodGet, http.MethodHead:
			return signature.Check(r.URL.Query(), id.Token, signature.Read, time.Now())
		case http.MethodPost:
			return signature.Check(r.URL.Query(), id.Token, signature.Write, time.Now())
		}
	}
	return errToken
}

// userOf reads the user from Basic authorisation; its password means nothing.
func (s *Server) userOf(id *identity.Identity, r *http.Request) (account.User, error) {
	name, _, ok := r.BasicAuth()
	if !ok || name == "" {
		name = id.User
	}
	return s.accounts.Lookup(name)
}

// rpc takes the stream options out of the headers.
func (s *Server) rpc(next http.Handler) http.Handler {
	failure := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, err := stream.Take(w, r)
		if err != nil {
			_ = failure.Write(w, r, connect.NewError(connect.CodeInvalidArgument, err))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// cors lets pages of any origin use the services, as E2B does: a token, not a
// cookie, is what opens them.
func cors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" {
			h := w.Header()
			h.Set("Access-Control-Allow-Origin", "*")
			h.Set("Access-Control-Expose-Headers", "*")
			if r.Method == http.MethodOptions {
				h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE")
				h.Set("Access-Control-Allow-Headers", "*, Authorization")
				h.Set("Access-Control-Max-Age", "7200")
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
