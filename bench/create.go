package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/sandbox"
)

// createPool: from the create request until the output of the first command in
// the sandbox is there. Before each sample the pool is full again.
func createPool(ctx context.Context, b *run, m *measurement) error {
	return b.each(m, func(int) error {
		if err := b.poolFull(ctx); err != nil {
			return err
		}
		return b.firstOutput(ctx, "create_pool", false)
	}, func(int) error { return b.dockerFirstOutput(ctx, "create_pool") })
}

// createCold: the same, made from the template's memory image.
func createCold(ctx context.Context, b *run, m *measurement) error {
	return b.each(m, func(int) error { return b.firstOutput(ctx, "create_cold", true) },
		func(int) error { return b.dockerFirstOutput(ctx, "create_cold") })
}

func (b *run) firstOutput(ctx context.Context, name string, fresh bool) error {
	start := time.Now()
	sb, err := b.create(ctx, fresh)
	if err != nil {
		return err
	}
	defer b.remove(ctx, sb)
	if err := hello(ctx, sb); err != nil {
		return err
	}
	b.add(name, since(start))
	return nil
}

func (b *run) dockerFirstOutput(ctx context.Context, name string) error {
	start := time.Now()
	out, err := b.Docker.command(ctx, "run", "--rm", b.Docker.Image, "/bin/echo", "hello")
	if err != nil {
		return err
	}
	if strings.TrimSpace(out) != "hello" {
		return fmt.Errorf("docker run printed %q", out)
	}
	b.addPeer(name, since(start))
	return nil
}

// hello runs one command and insists on its output.
func hello(ctx context.Context, sb *client.Sandbox) error {
	out, err := sb.Command(ctx, "/bin/echo", "hello").Output()
	if err != nil {
		return err
	}
	if string(out) != "hello\n" {
		return fmt.Errorf("command in sandbox %s printed %q", sb.ID, out)
	}
	return nil
}

// poolFull waits until the template's pool is.
func (b *run) poolFull(ctx context.Context) error {
	deadline := time.Now().Add(time.Minute)
	for {
		st, err := b.c.Status(ctx)
		if err != nil {
			return err
		}
		if st.Node == nil || st.Node.Pool[b.Template].Want == 0 {
			return sandbox.Errorf(sandbox.Unsupported, "template "+b.Template, "has no pool").
				WithNext("set pool in holdfast.yaml, e.g. HOLDFAST_POOL=%s=2", b.Template)
		}
		pool := st.Node.Pool[b.Template]
		if pool.Ready >= pool.Want {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("pool of %s does not fill: %d of %d", b.Template, pool.Ready, pool.Want)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// burst is how many are created at once.
const burst = 20

// createBurst: from the first of 20 create requests at once, none from the
// pool, until the last one's first output is there.
func createBurst(ctx context.Context, b *run, m *measurement) error {
	return b.each(m, func(int) error {
		boxes := make([]*client.Sandbox, burst)
		defer func() { b.remove(ctx, boxes...) }()
		start := time.Now()
		err := together(burst, func(i int) error {
			sb, err := b.create(ctx, true)
			if err != nil {
				return err
			}
			boxes[i] = sb
			return hello(ctx, sb)
		})
		if err != nil {
			return err
		}
		b.add("create_burst20", since(start))
		return nil
	}, func(int) error {
		start := time.Now()
		err := together(burst, func(int) error {
			_, err := b.Docker.command(ctx, "run", "--rm", b.Docker.Image, "/bin/echo", "hello")
			return err
		})
		if err != nil {
			return err
		}
		b.addPeer("create_burst20", since(start))
		return nil
	})
}

// together calls f n times at once and joins the errors.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// execWarm: from the request that starts a command in a running sandbox until
// its output and end are there, through the gateway.
func execWarm(ctx context.Context, b *run, m *measurement) error {
	sb, err := b.create(ctx, false)
	if err != nil {
		return err
	}
	defer b.remove(ctx, sb)
	var container string
	if b.Docker != nil {
		if container, err = b.Docker.start(ctx); err != nil {
			return err
		}
		defer b.Docker.remove(ctx, container)
	}
	return b.each(m, func(int) error {
		start := time.Now()
		if err := hello(ctx, sb); err != nil {
			return err
		}
		b.add("exec_warm", since(start))
		return nil
	}, func(i int) error {
		if i%10 != 0 {
			return nil // docker exec is slow: a tenth of the samples tells enough
		}
		start := time.Now()
		if _, err := b.Docker.command(ctx, "exec", container, "/bin/echo", "hello"); err != nil {
			return err
		}
		b.addPeer("exec_warm", since(start))
		return nil
	})
}
