package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-run/holdfast/guest/files"
)

// dialLocal bounds the wait for a server on the sandbox's own loopback.
const dialLocal = 5 * time.Second

// forward joins the host's connection to a port that a server opened on the
// sandbox's loopback only. It answers 101, then bytes flow; 502 when nothing listens.
func (s *Server) forward(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 {
		files.Fail(w, http.StatusBadRequest, "query parameter port must be 1 to 65535")
		return
	}
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		files.Fail(w, http.StatusHTTPVersionNotSupported, "forward needs HTTP/1.1")
		return
	}
	server, err := dialLoopback(r.Context(), strconv.FormatUint(port, 10))
	if err != nil {
		files.Fail(w, http.StatusBadGateway, fmt.Sprintf("port %d is not open: %v", port, err))
		return
	}
	defer server.Close()
	client, buffered, err := hijacker.Hijack()
	if err != nil {
		return // the client has left
	}
	defer client.Close()
	_, err = io.WriteString(client, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
	if err != nil {
		return
	}
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
	if _, err := server.Write(early); err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		pipe(server, client)
	}()
	pipe(client, server)
	<-done
}

func dialLoopback(ctx context.Context, port string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLocal)
	defer cancel()
	var d net.Dialer
	conn, err4 := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port))
	if err4 == nil {
		return conn, nil
	}
	conn, err6 := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", port))
	if err6 == nil {
		return conn, nil
	}
	return nil, errors.Join(err4, err6)
}

// pipe copies until the end of from and passes that end on, so that a protocol
// that closes one direction first works.
func pipe(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		_ = to.Close()
		_ = from.Close()
		return
	}
	if c, ok := to.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}
