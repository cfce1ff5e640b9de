// Package snapshot makes a folder of files a snapshot: a manifest, written last,
// says what belongs to it. A folder without a manifest was never finished; one
// whose files differ from it was damaged. Both are found before anything is
// restored from them.
package snapshot

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/zeebo/xxh3"
)

// Version is the format that Write makes. Load reads this and every older one.
const Version = 1

// Name is the manifest's file name inside a snapshot's folder.
const Name = "manifest.json"

// Manifest says what a snapshot consists of.
type Manifest struct {
	Version int       `json:"version"` // set by Write
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Layers  []string  `json:"layers"`           // ids, bottom first
	Memory  *Memory   `json:"memory,omitempty"` // nil for files only
	Guest   string    `json:"guest,omitempty"`  // sha256 of the guest program
	// Config is the caller's: what a template or sandbox was set up with.
	Config json.RawMessage `json:"config,omitempty"`
}

// Memory describes the memory image in a snapshot's folder.
type Memory struct {
	Runtime     string   `json:"runtime"`                // sha256 of the runtime that can restore it
	CPUFeatures []string `json:"cpu_features,omitempty"` // what the restoring machine must have
	Files       []File   `json:"files"`
}

// Bytes is the size of the memory image.
func (m *Memory) Bytes() int64 {
	var sum int64
	for _, f := range m.Files {
		sum += f.Size
	}
	return sum
}

// File is one file of a memory image.
type File struct {
	Name string `json:"name"` // relative to the snapshot's folder
	Size int64  `json:"size"` // bytes
	Hash string `json:"hash"` // see hashPrefix
}

// Errors of Load and Verify; TornError carries the details of ErrTorn.
var (
	// ErrMissing: there is no manifest, so the snapshot was never complete.
	ErrMissing = errors.New("snapshot has no manifest")
	// ErrTorn: the manifest or a file that it lists is damaged or absent.
	ErrTorn = errors.New("snapshot is damaged")
	// ErrVersion: the manifest was written by a newer program.
	ErrVersion = errors.New("snapshot format is not known")
)

// TornError says what is damaged. errors.Is(err, ErrTorn) holds for it.
type TornError struct {
	Dir  string
	File string // relative to Dir
	Why  string
}

func (e *TornError) Error() string {
	return fmt.Sprintf("snapshot %s is damaged: %s %s", e.Dir, e.File, e.Why)
}

// Is makes every TornError an ErrTorn.
func (e *TornError) Is(target error) bool { return target == ErrTorn }

// envelope is the file: the manifest's bytes and their hash.
type envelope struct {
	Hash     string          `json:"hash"`
	Manifest json.RawMessage `json:"manifest"`
}

// Write completes the snapshot in dir. Of m.Memory.Files the names count; sizes
// and hashes are filled in from the files, whose data must be on stable storage
// already. The manifest appears by a rename once it is there as well. The
// manifest as written is returned.
func Write(ctx context.Context, dir string, m Manifest) (Manifest, error) {
	m.Version = Version
	if m.Memory != nil {
		memory := *m.Memory
		files, err := hashFiles(ctx, dir, memory.Files)
		if err != nil {
			return Manifest{}, fmt.Errorf("write manifest of %s: %w", dir, err)
		}
		memory.Files, m.Memory = files, &memory
	}
	body, err := json.Marshal(m)
	if err != nil {
		return Manifest{}, fmt.Errorf("write manifest of %s: %w", dir, err)
	}
	if err := write(dir, m, body); err != nil {
		return Manifest{}, fmt.Errorf("write manifest of %s: %w", dir, err)
	}
	var written Manifest
	if err := json.Unmarshal(body, &written); err != nil {
		return Manifest{}, fmt.Errorf("write manifest of %s: %w", dir, err)
	}
	return written, nil
}

func write(dir string, m Manifest, body []byte) error {
	data, err := json.Marshal(envelope{Hash: hashBytes(body), Manifest: body})
	if err != nil {
		return err
	}
	// The folders first: a manifest must not survive a power cut that its files' names did not.
	folders := map[string]bool{dir: true}
	if m.Memory != nil {
		for _, f := range m.Memory.Files {
			folders[filepath.Dir(filepath.Join(dir, f.Name))] = true
		}
	}
	delete(folders, dir) // follows after the rename
	for folder := range folders {
		if err := syncFolder(folder); err != nil {
			return err
		}
	}
	tmp := filepath.Join(dir, Name+".tmp")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, Name)); err != nil {
		return err
	}
	return syncFolder(dir)
}

func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func hashBytes(b []byte) string {
	sum := xxh3.Hash128(b).Bytes()
	return "xxh3:" + hex.EncodeToString(sum[:])
}

// Load reads the manifest in dir. It does not look at the files; Verify does.
func Load(dir string) (Manifest, error) {
	data, err := os.ReadFile(filepath.Join(dir, Name))
	if errors.Is(err, fs.ErrNotExist) {
		return Manifest{}, fmt.Errorf("load %s: %w; it was not finished and can be removed", dir, ErrMissing)
	}
	if err != nil {
		return Manifest{}, fmt.Errorf("load snapshot: %w", err)
	}
	torn := func(why string) (Manifest, error) { return Manifest{}, &TornError{dir, Name, why} }
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return torn("is not readable: " + err.Error())
	}
	if e.Hash != hashBytes(e.Manifest) {
		return torn("does not match its own hash")
	}
	var version struct{ Version int }
	if err := json.Unmarshal(e.Manifest, &version); err != nil {
		return torn("is not readable: " + err.Error())
	}
	if version.Version < 1 || version.Version > Version {
		return Manifest{}, fmt.Errorf("load %s: %w: version %d, this program knows 1 to %d; use the program that made it or a newer one", dir, ErrVersion, version.Version, Version)
	}
	var m Manifest
	if err := json.Unmarshal(e.Manifest, &m); err != nil {
		return torn("is not readable: " + err.Error())
	}
	return m, nil
}

// Verify compares the files in dir with the manifest: all sizes first, which
// finds most damage at once, then the hashes.
func Verify(ctx context.Context, dir string, m Manifest) error {
	if m.Memory == nil {
		return nil
	}
	for _, f := range m.Memory.Files {
		if err := checkSize(dir, f); err != nil {
			return err
		}
	}
	found, err := hashFiles(ctx, dir, m.Memory.Files)
	if err != nil {
		return fmt.Errorf("verify %s: %w", dir, err)
	}
	for i, f := range m.Memory.Files {
		if found[i] != f {
			return &TornError{dir, f.Name, fmt.Sprintf("hashes to %s, expected %s", found[i].Hash, f.Hash)}
		}
	}
	return nil
}

func checkSize(dir string, f File) error {
	if !filepath.IsLocal(f.Name) {
		return &TornError{dir, f.Name, "is not a name inside the folder"}
	}
	st, err := os.Lstat(filepath.Join(dir, f.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return &TornError{dir, f.Name, "is missing"}
	}
	if err != nil {
		return fmt.Errorf("verify snapshot: %w", err)
	}
	if !st.Mode().IsRegular() {
		return &TornError{dir, f.Name, "is not a regular file"}
	}
	if st.Size() != f.Size {
		return &TornError{dir, f.Name, fmt.Sprintf("has %d bytes, expected %d", st.Size(), f.Size)}
	}
	return nil
}
