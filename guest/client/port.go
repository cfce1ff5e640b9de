package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
)

// ErrPortClosed says that the sandbox runs, but nothing listens on the port.
var ErrPortClosed = errors.New("port is not open")

// DialPort connects to a port of the sandbox at addr: directly, and if that is
// refused through the guest, which also reaches servers that listen on the
// sandbox's loopback only. Only the host can do that. The error wraps
// ErrPortClosed when nothing listens either way.
func DialPort(ctx context.Context, addr netip.Addr, port uint16) (net.Conn, error) {
	return dialPort(ctx, addr, port, Port)
}

// DialPort is the function DialPort for this client's sandbox. Behind a gateway it
// fails: use the gateway's own address for ports.
func (c *Client) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	guest, err := netip.ParseAddrPort(c.addr)
	if err != nil {
		return nil, fmt.Errorf("dial port %d: guest at %s is not directly reachable; go through the gateway", port, c.base)
	}
	return dialPort(ctx, guest.Addr(), port, guest.Port())
}

func dialPort(ctx context.Context, addr netip.Addr, port, guestPort uint16) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, port).String())
	if err == nil {
		return conn, nil
	}
	if !errors.Is(err, syscall.ECONNREFUSED) || port == guestPort {
		return nil, fmt.Errorf("dial port %d: %w", port, err)
	}
	conn, err = d.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, guestPort).String())
	if err != nil {
		return nil, fmt.Errorf("dial port %d: reach guest: %w", port, err)
	}
	joined, err := join(ctx, conn, port)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("dial port %d: %w", port, err)
	}
	return joined, nil
}

// join asks the guest at the other end of conn to forward to port.
func join(ctx context.Context, conn net.Conn, port uint16) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest/forward?port="+strconv.Itoa(int(port)), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "tcp")
	if err := req.Write(conn); err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req) //nolint:bodyclose // an upgraded connection has none
	if err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	switch resp.StatusCode {
	case http.StatusSwitchingProtocols:
		if !stop() {
			return nil, ctx.Err()
		}
		return &forwarded{Conn: conn, r: r}, nil
	case http.StatusBadGateway:
		return nil, ErrPortClosed
	}
	return nil, answered(resp)
}

// forwarded is a connection whose first bytes may have been read already.
type forwarded struct {
	net.Conn
	r *bufio.Reader
}

func (f *forwarded) Read(b []byte) (int, error) {
	if f.r.Buffered() > 0 {
		return f.r.Read(b)
	}
	return f.Conn.Read(b)
}

// CloseWrite ends the one direction.
func (f *forwarded) CloseWrite() error {
	if c, ok := f.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}
