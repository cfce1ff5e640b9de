// Package stream takes the options of a long-lived stream out of its request.
//
// E2B gives Connect-Timeout-Ms a meaning of its own: how long the process may
// live. The Connect library would cancel the request with it, and 0, which means
// for ever, would cancel at once. So the header is taken away before the library sees it.
package stream

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// defaultKeepalive is the time between keep-alive events of an idle stream.
const defaultKeepalive = 90 * time.Second

// maxKeepalive in seconds; more is the same as never.
const maxKeepalive = 86400

// Options of one request.
type Options struct {
	Timeout   time.Duration // 0: none
	Keepalive time.Duration // > 0
	abort     func()
}

// Abort ends the request's connection: a write that a dead reader blocks returns.
func (o Options) Abort() {
	if o.abort != nil {
		o.abort()
	}
}

// Take moves the options of r from its headers into its context.
func Take(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	o := Options{
		Keepalive: defaultKeepalive,
		abort: func() {
			past := time.Unix(1, 0)
			_ = http.NewResponseController(w).SetWriteDeadline(past)
		},
	}
	ms, err := number(r.Header, "Connect-Timeout-Ms")
	if err != nil {
		return r, err
	}
	o.Timeout = time.Duration(ms) * time.Millisecond
	seconds, err := number(r.Header, "Keepalive-Ping-Interval")
	if err != nil {
		return r, err
	}
	if seconds > 0 {
		o.Keepalive = time.Duration(min(seconds, maxKeepalive)) * time.Second
	}
	r.Header.Del("Connect-Timeout-Ms")
	return r.WithContext(context.WithValue(r.Context(), contextKey{}, o)), nil
}

func number(h http.Header, name string) (int64, error) {
	v := h.Get(name)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 || len(v) > 10 {
		return 0, fmt.Errorf("header %s is %q; give a whole number from 0 to 9999999999", name, v)
	}
	return n, nil
}

type contextKey struct{}

// FromContext gives the options of the request; where the protocol (gRPC) put a
// deadline on the context that is the timeout.
func FromContext(ctx context.Context) Options {
	o, ok := ctx.Value(contextKey{}).(Options)
	if !ok {
		o.Keepalive = defaultKeepalive
	}
	if deadline, ok := ctx.Deadline(); ok && o.Timeout == 0 {
		o.Timeout = max(time.Until(deadline), time.Millisecond)
	}
	return o
}
