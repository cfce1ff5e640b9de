package e2e

import (
	"io"
	"regexp"
	"sync"
	"testing"
)

// screen collects what a terminal shows.
type screen struct {
	mu  sync.Mutex
	all []byte
}

func newScreen(r io.Reader) *screen {
	s := &screen{}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			s.mu.Lock()
			s.all = append(s.all, buf[:n]...)
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.all)
}

func (s *screen) has(pattern string) bool {
	return regexp.MustCompile(pattern).MatchString(s.text())
}

func (s *screen) shows(t *testing.T, pattern string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("screen:\n%s", s.text())
		}
	}()
	eventually(t, "the terminal shows "+pattern, func() bool { return s.has(pattern) })
}
