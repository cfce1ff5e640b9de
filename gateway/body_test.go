package gateway

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// closedAtEnd is a body as the server's is once the answer has begun: read to
// its end, then closed.
type closedAtEnd struct {
	io.Reader
	over bool
}

func (b *closedAtEnd) Read(p []byte) (int, error) {
	if b.over {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.Reader.Read(p)
	if n > 0 && err == nil { // the server's body gives its end with the last bytes
		err = io.EOF
	}
	b.over = errors.Is(err, io.EOF)
	return n, err
}

func (b *closedAtEnd) Close() error { return nil }

func TestBodyIsNotReadPastItsEnd(t *testing.T) {
	body := &watchedBody{ReadCloser: &closedAtEnd{Reader: strings.NewReader("hello")}}
	got, err := io.ReadAll(body)
	if err != nil || string(got) != "hello" {
		t.Fatalf("read %q, %v", got, err)
	}
	if n, err := body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("a read past the end gives %d, %v; want 0, EOF", n, err)
	}
}
