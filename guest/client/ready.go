package client

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	firstPause = time.Millisecond
	longPause  = 20 * time.Millisecond
	// A SYN that meets no network yet is sent again by the kernel after a second;
	// so a try is given up much sooner, and made anew.
	firstDial = 20 * time.Millisecond
	longDial  = time.Second
)

// WaitReady returns once the guest answers. It is on the way of every create: it
// asks after 1 ms first, then less and less often, at least every 20 ms.
func (c *Client) WaitReady(ctx context.Context) error {
	return c.wait(ctx, func() error { return c.Healthy(ctx) })
}

// WaitInit is WaitReady and Init with one round trip fewer.
func (c *Client) WaitInit(ctx context.Context, req InitRequest) error {
	var refused *Error
	err := c.wait(ctx, func() error {
		err := c.Init(ctx, req)
		if errors.As(err, &refused) {
			return nil // the guest is there; asking again will not change its mind
		}
		return err
	})
	if refused != nil {
		return fmt.Errorf("init guest: %w", refused)
	}
	return err
}

// wait tries until it works; directly reachable guests are first waited for by connecting.
func (c *Client) wait(ctx context.Context, try func() error) error {
	pause, dial := firstPause, firstDial
	for {
		err := c.knock(ctx, dial)
		if err == nil {
			err = try()
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("guest at %s does not answer: %w (last: %w)", c.base, ctx.Err(), err)
		case <-time.After(pause):
		}
		pause, dial = min(pause*3/2, longPause), min(dial*2, longDial)
	}
}

func (c *Client) knock(ctx context.Context, d time.Duration) error {
	if c.addr == "" {
		return nil
	}
	conn, err := dialOnce(ctx, c.addr, d)
	if err != nil {
		return err
	}
	return conn.Close()
}
