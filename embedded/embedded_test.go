package embedded

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
)

func TestMissingSaysHowToBuild(t *testing.T) {
	empty := fstest.MapFS{"assets/README": {Data: []byte("x")}}
	if _, err := describe(empty, Runsc); !errors.Is(err, ErrMissing) {
		t.Errorf("describe: %v, want ErrMissing", err)
	}
	if _, err := open(empty, Guest); !errors.Is(err, ErrMissing) {
		t.Errorf("open: %v, want ErrMissing", err)
	}
}

func TestRoundTrip(t *testing.T) {
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("program "), 1000)
	if _, err := w.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	fsys := fstest.MapFS{
		"assets/guest.zst":  {Data: packed.Bytes()},
		"assets/guest.json": {Data: []byte(`{"name":"guest","version":"v1","sha256":"ab","size":8000,"key":"k"}`)},
	}
	a, err := describe(fsys, Guest)
	if err != nil || a.Version != "v1" || a.Size != 8000 {
		t.Fatalf("describe = %+v, %v", a, err)
	}
	r, err := open(fsys, Guest)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read %d bytes, %v", len(got), err)
	}
}

func TestBrokenDescription(t *testing.T) {
	fsys := fstest.MapFS{"assets/runsc.json": {Data: []byte(`{`)}}
	if _, err := describe(fsys, Runsc); err == nil || errors.Is(err, ErrMissing) {
		t.Fatalf("describe: %v, want a parse error", err)
	}
}
