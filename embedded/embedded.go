// Package embedded holds the programs that holdfast carries inside itself: the
// gVisor runtime and the guest. They are built by embedded/build, compressed, and
// unpacked by package runtimes.
package embedded

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/klauspost/compress/zstd"
)

//go:embed all:assets
var assets embed.FS

// Names of the programs.
const (
	Runsc = "runsc"
	Guest = "guest"
)

// ErrMissing: the binary carries no such program.
var ErrMissing = errors.New("this binary was built without its runtime; build with make build")

// Asset describes an embedded program.
type Asset struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"` // of the unpacked file, lower-case hex
	Size    int64  `json:"size"`   // of the unpacked file, bytes
	Key     string `json:"key"`    // what it was built from
}

// Describe tells what is embedded under name, without unpacking it.
// ErrMissing when nothing is.
func Describe(name string) (Asset, error) { return describe(assets, name) }

// Open gives the unpacked program. The caller closes it and verifies what it
// read against Describe.
func Open(name string) (io.ReadCloser, error) { return open(assets, name) }

func describe(fsys fs.FS, name string) (Asset, error) {
	var a Asset
	b, err := fs.ReadFile(fsys, "assets/"+name+".json")
	if errors.Is(err, fs.ErrNotExist) {
		return a, fmt.Errorf("embedded %s: %w", name, ErrMissing)
	}
	if err != nil {
		return a, fmt.Errorf("embedded %s: %w", name, err)
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("embedded %s: description: %w", name, err)
	}
	return a, nil
}

func open(fsys fs.FS, name string) (io.ReadCloser, error) {
	f, err := fsys.Open("assets/" + name + ".zst")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("embedded %s: %w", name, ErrMissing)
	}
	if err != nil {
		return nil, fmt.Errorf("embedded %s: %w", name, err)
	}
	d, err := zstd.NewReader(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("embedded %s: %w", name, err)
	}
	return &asset{d, f}, nil
}

type asset struct {
	*zstd.Decoder
	file fs.File
}

func (a *asset) Close() error {
	a.Decoder.Close()
	return a.file.Close()
}
