package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

func TestWebSocket(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		c, err := websocket.Accept(w, q, &websocket.AcceptOptions{Subprotocols: []string{"echo"}})
		if err != nil {
			return
		}
		defer func() { _ = c.CloseNow() }()
		c.SetReadLimit(-1)
		for {
			kind, msg, err := c.Read(q.Context())
			if err != nil || c.Write(q.Context(), kind, append([]byte("re: "), msg...)) != nil {
				return
			}
		}
	})
	dial := func() *websocket.Conn {
		t.Helper()
		c, _, err := websocket.Dial(t.Context(), strings.Replace(r.front.URL, "http", "ws", 1)+"/ws", &websocket.DialOptions{
			Host: r.request("GET", "/", nil).Host, Subprotocols: []string{"echo"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.CloseNow() })
		return c
	}
	say := func(c *websocket.Conn, text string) {
		t.Helper()
		if err := c.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(t.Context()); err != nil || string(got) != "re: "+text {
			t.Fatalf("got %q %v", got, err)
		}
	}
	c := dial()
	if c.Subprotocol() != "echo" {
		t.Fatalf("subprotocol %q", c.Subprotocol())
	}
	c.SetReadLimit(-1)
	say(c, "one")
	say(c, strings.Repeat("x", 1<<20))
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}

	c = dial()
	say(c, "two")
	r.gw.Disconnect(boxID)
	if _, _, err := c.Read(t.Context()); err == nil {
		t.Fatal("the socket outlives the sandbox's process")
	}
}

// Every event arrives when it was sent, not when the answer is complete.
func TestServerSentEvents(t *testing.T) {
	next := make(chan string)
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for e := range next {
			fmt.Fprintf(w, "data: %s\n\n", e)
			_ = http.NewResponseController(w).Flush()
		}
	})
	defer close(next)
	q := r.request("GET", "/events", nil)
	answered := make(chan *http.Response, 1)
	go func() {
		resp, err := r.front.Client().Do(q)
		if err != nil {
			t.Error(err)
		}
		answered <- resp
	}()
	next <- "0"
	resp := <-answered
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for i := range 5 {
		if !lines.Scan() || lines.Text() != fmt.Sprint("data: ", i) {
			t.Fatalf("event %d: %q %v", i, lines.Text(), lines.Err())
		}
		lines.Scan()
		next <- fmt.Sprint(i + 1)
	}
}

// The answer begins while the request is still being sent.
func TestBothDirectionsAtOnce(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		lines := bufio.NewScanner(q.Body)
		for lines.Scan() {
			fmt.Fprintln(w, "re:", lines.Text())
			_ = rc.Flush()
		}
	})
	in, out := io.Pipe()
	answered := make(chan *http.Response, 1)
	q := r.request("POST", "/", in)
	go func() {
		resp, err := r.front.Client().Do(q)
		if err != nil {
			t.Error(err)
		}
		answered <- resp
	}()
	fmt.Fprintln(out, "0")
	resp := <-answered
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for i := range 3 {
		if !lines.Scan() || lines.Text() != fmt.Sprint("re: ", i) {
			t.Fatalf("line %d: %q %v", i, lines.Text(), lines.Err())
		}
		fmt.Fprintln(out, i+1)
	}
	_ = out.Close()
}

// A stream that ends before the request does.
func TestAnswerEndsBeforeTheRequest(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		w.Header().Set("Connection", "close")
		_, _ = q.Body.Read(make([]byte, 1))
		_, _ = io.WriteString(w, "enough")
		_ = rc.Flush()
	})
	for range 3 {
		in, out := io.Pipe()
		go func() { _, _ = io.WriteString(out, "x") }()
		r.do(r.request("POST", "/", in)).is(t, 200, "enough")
		_ = in.Close()
	}
}

func TestTrailersPass(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.WriteString(w, "x")
		w.Header().Set("Grpc-Status", "0")
	})
	resp, err := r.front.Client().Do(r.request("GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if got := resp.Trailer.Get("Grpc-Status"); got != "0" {
		t.Fatalf("trailer %q", got)
	}
}

// zeros gives n zero bytes and notes the most memory in use meanwhile.
type zeros struct {
	left int64
	peak *uint64
}

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	if z.left%(16<<20) < int64(len(p)) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		*z.peak = max(*z.peak, m.HeapAlloc)
	}
	n := int(min(int64(len(p)), z.left))
	clear(p[:n])
	z.left -= int64(n)
	return n, nil
}

func TestLargeBodiesAreNotHeld(t *testing.T) {
	var up, down uint64
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodPut {
			n, err := io.Copy(io.Discard, q.Body)
			fmt.Fprint(w, n, err)
			return
		}
		_, _ = io.Copy(w, &zeros{largeBody, &down})
	})
	q := r.request("PUT", "/", &zeros{largeBody, &up})
	q.ContentLength = -1
	r.do(q).is(t, 200, fmt.Sprint(largeBody, " <nil>"))

	resp, err := r.front.Client().Do(r.request("GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); n != largeBody || err != nil {
		t.Fatalf("download: %d %v", n, err)
	}
	const most = 32 << 20
	if up == 0 || down == 0 || up > most || down > most {
		t.Fatalf("heap was %d MB while uploading, %d MB while downloading", up>>20, down>>20)
	}
}

func TestCancelReachesTheServerInside(t *testing.T) {
	arrived, cancelled := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(_ http.ResponseWriter, q *http.Request) {
		close(arrived)
		<-q.Context().Done()
		close(cancelled)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if _, err := r.front.Client().Do(r.request("GET", "/", nil).WithContext(ctx)); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	<-cancelled
}

// A server that refuses an upload early is heard.
func TestEarlyAnswerToAnUpload(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInsufficientStorage)
		_, _ = io.WriteString(w, "full")
	})
	for _, size := range []int{0, 1, 64 << 10, 200 << 10} {
		// Twice: what an answer leaves unread must not be taken for a request.
		for range 2 {
			r.do(r.request("PUT", "/", bytes.NewReader(make([]byte, size)))).is(t, 507, "full")
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	r := newRig(b, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	for b.Loop() {
		resp, err := r.front.Client().Do(r.request("GET", "/", nil))
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

func BenchmarkUpload(b *testing.B)   { benchTransfer(b, http.MethodPut) }
func BenchmarkDownload(b *testing.B) { benchTransfer(b, http.MethodGet) }

func benchTransfer(b *testing.B, method string) {
	const size = 256 << 20
	var peak uint64
	r := newRig(b, func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodGet {
			_, _ = io.Copy(w, &zeros{size, &peak})
			return
		}
		_, _ = io.Copy(io.Discard, q.Body)
	})
	b.SetBytes(size)
	for b.Loop() {
		var body io.Reader
		if method == http.MethodPut {
			body = &zeros{size, &peak}
		}
		resp, err := r.front.Client().Do(r.request(method, "/", body))
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}
