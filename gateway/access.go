package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"path"
	"strings"

	"github.com/holdfast-run/holdfast/sandbox"
)

const (
	headerTrafficToken = "E2b-Traffic-Access-Token"
	headerAccessToken  = "X-Access-Token"
)

// guestPrefixes are the guest's services that are open to clients. All others
// (init, prepare, forward and what may come) are the host's alone: a list of
// what may pass cannot be outgrown by a new route.
var guestPrefixes = []string{"/health", "/metrics", "/envs", "/files", "/process.Process", "/filesystem.Filesystem"}

func guestServes(p string) bool {
	if p != path.Clean(p) && p != path.Clean(p)+"/" {
		return false // "//init" and "/files/../init"
	}
	for _, prefix := range guestPrefixes {
		if p == prefix || strings.HasPrefix(p, prefix+"/") {
			return true
		}
	}
	return false
}

func healthCheck(r *http.Request, port int) bool {
	return port == GuestPort && r.URL.Path == "/health"
}

// authorise checks the traffic token, which the ports of a sandbox with public
// traffic off ask for. The guest's port has a token of its own.
func authorise(r *http.Request, id string, port int, public bool, token string) *refusal {
	if port == GuestPort || public {
		return nil
	}
	given := r.Header.Get(headerTrafficToken)
	message := "The traffic access token is missing; send it in the " + strings.ToLower(headerTrafficToken) + " header"
	if given != "" {
		if token != "" && same(given, token) {
			return nil
		}
		message = "The traffic access token is invalid"
	}
	return &refusal{status: http.StatusForbidden, id: id, message: message}
}

// authoriseGuest checks what the guest will check again once it runs: its
// access token, or a signature made with it.
func authoriseGuest(r *http.Request, sb *sandbox.Sandbox) *refusal {
	if sb.AccessToken == "" || same(r.Header.Get(headerAccessToken), sb.AccessToken) {
		return nil
	}
	q := r.URL.Query()
	if given := q.Get("signature"); r.URL.Path == "/files" && given != "" {
		op := "read"
		if r.Method == http.MethodPost {
			op = "write"
		}
		if same(given, signature(q.Get("path"), op, q.Get("username"), sb.AccessToken, q.Get("signature_expiration"))) {
			return nil
		}
	}
	return &refusal{
		status: http.StatusUnauthorized, id: sb.ID,
		message: "The access token is missing or invalid; send it in the " + headerAccessToken + " header",
	}
}

// signature is that of a file URL. Whether it has expired is for the guest.
func signature(filePath, op, user, token, expiration string) string {
	s := filePath + ":" + op + ":" + user + ":" + token
	if expiration != "" {
		s += ":" + expiration
	}
	sum := sha256.Sum256([]byte(s))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// answerPreflight answers the question browsers ask before they call the guest
// from another origin, for a paused sandbox too.
func answerPreflight(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS")
	h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
	h.Set("Access-Control-Max-Age", "7200")
	h.Set("Vary", "Access-Control-Request-Headers")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// exposed are the response headers that SDKs in browsers read.
const exposed = "Connect-Content-Encoding, Connect-Accept-Encoding, Content-Disposition, Content-Length, Content-Range, " +
	"Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, Location, Cache-Control, X-Content-Type-Options"

// openToBrowsers lets pages of any origin read the guest's answers. The ports of
// the user's own servers answer for themselves.
func openToBrowsers(h http.Header) {
	if h.Get("Access-Control-Allow-Origin") == "" {
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Access-Control-Expose-Headers", exposed)
	}
}
