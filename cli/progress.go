package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	v1 "github.com/holdfast-run/holdfast/api/v1"
)

// progress shows what goes on: on a terminal one line that is redrawn once a
// second has passed, elsewhere a line for each new step.
type progress struct {
	w     io.Writer
	tty   bool
	what  string
	start time.Time
	mu    sync.Mutex
	step  v1.Step
	drawn bool
	stop  chan struct{}
	done  sync.WaitGroup
}

func (a *app) progress(what string) *progress {
	p := &progress{w: a.err, tty: a.errTTY, what: what, start: time.Now(), stop: make(chan struct{})}
	if p.tty {
		p.done.Go(p.spin)
	}
	return p
}

// Step tells the current step.
func (p *progress) Step(s v1.Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.tty && s.Name != p.step.Name {
		fmt.Fprintf(p.w, "%s: %s\n", p.what, stepText(s))
	}
	p.step = s
}

// Done clears the line.
func (p *progress) Done() {
	close(p.stop)
	p.done.Wait()
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func (p *progress) spin() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for frame := 0; ; frame++ {
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
		since := time.Since(p.start)
		if since < time.Second {
			continue
		}
		p.mu.Lock()
		s := p.step
		p.mu.Unlock()
		p.drawn = true
		fmt.Fprintf(p.w, "\r\x1b[K%c %s: %s (%ds)", `|/-\`[frame%4], p.what, stepText(s), int(since.Seconds()))
	}
}

func stepText(s v1.Step) string {
	text := s.Name
	if s.Detail != "" {
		text += " " + firstLine(s.Detail, 60)
	}
	switch {
	case s.TotalBytes > 0:
		text += fmt.Sprintf(" %s of %s", size(s.DoneBytes), size(s.TotalBytes))
	case s.DoneBytes > 0:
		text += " " + size(s.DoneBytes)
	}
	if text == "" {
		return "working"
	}
	return text
}

func firstLine(s string, limit int) string {
	s, _, _ = strings.Cut(s, "\n")
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}
