// Command pid1 is what the conformance suite runs inside an instance: a small
// HTTP server that does what a test asks for.
package main

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

var (
	count   atomic.Int64
	memory  [][]byte
	deleted *os.File
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "sleep" {
		time.Sleep(time.Hour)
		return
	}
	go func() {
		for {
			count.Add(1)
			time.Sleep(5 * time.Millisecond)
		}
	}()
	handle("/count", func(*http.Request) (string, error) { return strconv.FormatInt(count.Load(), 10), nil })
	handle("/hostname", func(*http.Request) (string, error) { return os.Hostname() })
	handle("/env", func(r *http.Request) (string, error) { return os.Getenv(r.FormValue("name")), nil })
	handle("/args", func(*http.Request) (string, error) { return strings.Join(os.Args, " "), nil })
	handle("/exit", func(r *http.Request) (string, error) {
		go func() {
			time.Sleep(20 * time.Millisecond)
			os.Exit(number(r, "code"))
		}()
		return "", nil
	})
	handle("/print", func(r *http.Request) (string, error) {
		line := strings.Repeat("x", 1023) + "\n"
		for range number(r, "kb") {
			fmt.Print(line)
		}
		return "", nil
	})
	handle("/burn", burn)
	handle("/fill", fill)
	handle("/sum", sum)
	handle("/spawn", spawn)
	handle("/keep", keep)
	handle("/kept", kept)
	handle("/read", func(r *http.Request) (string, error) {
		b, err := os.ReadFile(r.FormValue("path"))
		return string(b), err
	})
	handle("/write", func(r *http.Request) (string, error) {
		return "", os.WriteFile(r.FormValue("path"), []byte(r.FormValue("data")), 0o644)
	})
	fmt.Println("pid1 is up")
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":8080", nil))
	os.Exit(1)
}

func handle(path string, f func(*http.Request) (string, error)) {
	http.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		out, err := f(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, out)
	})
}

func number(r *http.Request, name string) int {
	n, _ := strconv.Atoi(r.FormValue(name))
	return n
}

// burn keeps n threads busy for ever.
func burn(r *http.Request) (string, error) {
	for range number(r, "n") {
		go func() {
			for x := uint64(1); ; x = x*6364136223846793005 + 1 {
				if x == 0 {
					count.Add(1)
				}
			}
		}()
	}
	return "", nil
}

// fill takes mb MiB of random bytes and answers with their digest.
func fill(r *http.Request) (string, error) {
	for range number(r, "mb") {
		b := make([]byte, 1<<20)
		if _, err := rand.Read(b); err != nil {
			return "", err
		}
		memory = append(memory, b)
	}
	return sum(r)
}

func sum(*http.Request) (string, error) {
	h := sha256.New()
	for _, b := range memory {
		h.Write(b)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// spawn starts n children and tells how many it could start.
func spawn(r *http.Request) (string, error) {
	started := 0
	for range number(r, "n") {
		cmd := exec.Command("/proc/self/exe", "sleep")
		if err := cmd.Start(); err != nil {
			return fmt.Sprintf("%d %v", started, err), nil
		}
		started++
	}
	return strconv.Itoa(started), nil
}

// keep holds a file open that has no name any more.
func keep(r *http.Request) (string, error) {
	f, err := os.Create("/kept")
	if err != nil {
		return "", err
	}
	if _, err := f.WriteString(r.FormValue("data")); err != nil {
		return "", err
	}
	deleted = f
	return "", os.Remove("/kept")
}

func kept(*http.Request) (string, error) {
	if deleted == nil {
		return "", os.ErrNotExist
	}
	b := make([]byte, 1<<16)
	n, err := deleted.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return "", err
	}
	return string(b[:n]), nil
}
