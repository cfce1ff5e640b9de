package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/holdfast-run/holdfast/sandbox"
)

// errConns: the sandbox that a request was routed to anew has too many.
var errConns = errors.New("too many open requests")

// errGone carries the refusal that a second routing gave.
type errGone struct{ refusal }

func (*errGone) Error() string { return "sandbox is gone" }

// transport sends a request to the sandbox it was routed to and, where the
// sandbox's process was replaced under it, once more to the new one.
type transport struct{ g *Gateway }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	q := requestOf(r.Context())
	if r.Body != nil && r.Body != http.NoBody {
		q.body = &watchedBody{ReadCloser: r.Body}
		r.Body = q.body
	}
	resp, err := q.up.transport.RoundTrip(r)
	if err == nil || r.Context().Err() != nil || !repeatable(r, q.body, err) {
		return resp, err
	}
	return t.again(r, q, err)
}

// again routes anew and repeats the request if that leads to another process.
// Only a request that never left may wake the sandbox: one that was under way
// when the sandbox was paused must not undo the pause.
func (t transport) again(r *http.Request, q *request, first error) (*http.Response, error) {
	var unsent *dialError
	rt, err := t.g.router.Route(r.Context(), q.id, false)
	if err != nil && errors.As(first, &unsent) {
		if rt, err = t.g.router.Route(r.Context(), q.id, true); err != nil {
			return nil, &errGone{*t.g.routeError(q.id, err)}
		}
	}
	if err != nil || rt.Generation == q.route.Generation {
		return nil, first // the same process: the port is what is closed
	}
	up := t.g.enter(q.id, rt)
	if up == nil {
		return nil, errConns
	}
	q.up.leave()
	q.up, q.route = up, rt
	return up.transport.RoundTrip(r)
}

// repeatable tells whether sending r again cannot do anything twice: nothing of
// it was sent, or it changes nothing and has no body.
func repeatable(r *http.Request, body *watchedBody, err error) bool {
	var unsent *dialError
	if errors.As(err, &unsent) {
		return body == nil || !body.read.Load()
	}
	return body == nil && (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions)
}

// watchedBody knows how far it was read. It is not closed by a failed attempt,
// so that a second one can send it; the server closes it in the end.
type watchedBody struct {
	io.ReadCloser
	read, ended atomic.Bool
}

// Read does not ask the server's body again after its end. http.Transport does,
// to see whether there is more than Content-Length says, and by then the server
// may have closed the body because the answer has begun: that error would tear
// down the connection the answer is coming on.
func (b *watchedBody) Read(p []byte) (int, error) {
	if b.ended.Load() {
		return 0, io.EOF
	}
	b.read.Store(true)
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

func (b *watchedBody) Close() error { return nil }

// duplex lets a stream of an answer go out while the request is still coming
// in, which an HTTP/1 server allows only when asked. Not asked for otherwise:
// then the server itself deals with what an early answer leaves unread. Here
// only the end of the connection does, for with the rest of a body before it no
// next request could be read. HTTP/2 needs nothing and cannot be asked.
func (q *request) duplex(resp *http.Response) {
	if q.body == nil || q.body.ended.Load() || resp.ContentLength >= 0 || resp.StatusCode >= 300 {
		return
	}
	if http.NewResponseController(q.w).EnableFullDuplex() == nil {
		resp.Header.Set("Connection", "close")
	}
}

// modifyResponse is the last look at an answer before it goes out.
func modifyResponse(resp *http.Response) error {
	q := requestOf(resp.Request.Context())
	q.duplex(resp)
	if q.port == GuestPort && resp.Request.Header.Get("Origin") != "" {
		openToBrowsers(resp.Header)
	}
	return nil
}

func (g *Gateway) proxyError(w http.ResponseWriter, r *http.Request, err error) {
	q := requestOf(r.Context())
	var gone *errGone
	var de *dialError
	switch {
	case errors.Is(r.Context().Err(), context.Canceled):
		// The client left; there is nobody to answer.
		panic(http.ErrAbortHandler)
	case errors.As(err, &gone):
		g.refuse(w, r, gone.refusal)
	case errors.Is(err, errConns):
		g.refuse(w, r, refusal{status: http.StatusTooManyRequests, id: q.id, port: q.port, message: "The sandbox has too many open requests"})
	case errors.As(err, &de):
		g.refuse(w, r, *g.portClosed(r, q))
	default:
		g.refuse(w, r, refusal{
			status: http.StatusBadGateway, id: q.id, port: q.port,
			message: "The connection to the sandbox broke before it answered",
		})
	}
}

// portClosed tells a closed port from a sandbox that went away meanwhile.
func (g *Gateway) portClosed(r *http.Request, q *request) *refusal {
	if _, err := g.router.Route(r.Context(), q.id, false); sandbox.IsKind(err, sandbox.NotFound) {
		return notFound(q.id)
	}
	return &refusal{
		status: http.StatusBadGateway, id: q.id, port: q.port,
		message: "The sandbox is running but port is not open",
	}
}
