package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Options say how to import.
type Options struct {
	// Progress is called with each step, from one goroutine at a time; may be nil.
	Progress func(Step)
	// Auth finds registry credentials; nil reads the docker configuration of the
	// user that runs the program.
	Auth authn.Keychain
	// PlainHTTP allows a registry without TLS.
	PlainHTTP bool
	// Refresh makes a bootstrap anew although one of the same suite and packages
	// exists. Other sources notice a change by themselves.
	Refresh bool
}

// Step is one line of progress.
type Step struct {
	Name   string // what is being done: "pull", "unpack", "bootstrap", "prepare"
	Detail string // human-readable
	Done   int64  // bytes so far, where known
	Total  int64  // bytes in all; 0 when not known
}

func (o Options) step(name, format string, args ...any) {
	if o.Progress != nil {
		o.Progress(Step{Name: name, Detail: fmt.Sprintf(format, args...)})
	}
}

// Result is an imported image.
type Result struct {
	Layers []string // ids, bottom first; the last one is the setup layer of Prepare
	Config Config
	// Digest identifies the content that was imported: equal content, equal digest.
	Digest string
	Source string // as ParseSource reads it
}

// Config is what an image says about running it.
type Config struct {
	Env        map[string]string
	User       string // as the image says it: name, uid, or with a group; may be ""
	Workdir    string
	Entrypoint []string
	Cmd        []string
	Labels     map[string]string
}

// defaultPath is what a process gets when the image sets none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Import brings a source into the store. Layers that are there already are used
// again, so importing the same image twice is quick. On top lies a setup layer
// that makes any image fit for a sandbox; see Prepare.
//
// Errors are *sandbox.Error: InvalidRequest when the source cannot be what it
// should be, NotFound when it is absent, Authentication when a registry refuses,
// Unavailable when a registry or mirror does not answer.
func Import(ctx context.Context, store *layers.Store, src Source, o Options) (Result, error) {
	r, err := importFiles(ctx, store, src, o)
	if err != nil {
		return Result{}, classify(src, err)
	}
	o.step("prepare", "set up the user, name resolution and work folders")
	l, err := Prepare(ctx, store, r.Layers)
	if err != nil {
		return Result{}, classify(src, err)
	}
	r.Layers = append(r.Layers, l.ID)
	if r.Config.Env == nil {
		r.Config.Env = map[string]string{}
	}
	for k, v := range map[string]string{"PATH": defaultPath, "LANG": "C.UTF-8"} {
		if _, ok := r.Config.Env[k]; !ok {
			r.Config.Env[k] = v
		}
	}
	r.Source = src.String()
	return r, nil
}

// classify leaves classified errors as they are and gives others a kind.
func classify(src Source, err error) error {
	var classified *sandbox.Error
	if errors.As(err, &classified) {
		return err
	}
	kind := sandbox.KindOf(err) // context errors and internal
	if errors.Is(err, fs.ErrNotExist) && src.Path != "" {
		kind = sandbox.NotFound
	}
	return sandbox.Errorf(kind, fmt.Sprintf("image source %q", src), "cannot be imported: %w", err)
}

func importFiles(ctx context.Context, store *layers.Store, src Source, o Options) (Result, error) {
	switch src.Kind {
	case Registry:
		return importRegistry(ctx, store, src, o)
	case Bootstrap:
		return importBootstrap(ctx, store, src, o)
	case Tarball:
		return importTarball(ctx, store, src, o)
	case Path, Saved:
		return importPath(ctx, store, src, o)
	}
	return Result{}, invalid(src.String(), "has the unknown kind %q", src.Kind)
}

// importPath finds out what a file or folder is and imports it.
func importPath(ctx context.Context, store *layers.Store, src Source, o Options) (Result, error) {
	st, err := os.Stat(src.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return Result{}, sandbox.Errorf(sandbox.NotFound, fmt.Sprintf("image source %q", src), "does not exist: %w", err)
	}
	if err != nil {
		return Result{}, err
	}
	if st.IsDir() {
		return importLayout(ctx, store, src, src.Path, o)
	}
	o.step("unpack", "look into %s", src.Path)
	kind, err := detectArchive(ctx, src.Path)
	if err != nil {
		return Result{}, invalid(src.String(), "is no archive that can be read: %w", err).WithNext(forms)
	}
	switch {
	case kind == dockerArchive:
		return importDockerArchive(ctx, store, src, o)
	case kind == ociArchive:
		return importOCIArchive(ctx, store, src, o)
	case src.Kind == Saved || src.Tag != "":
		return Result{}, invalid(src.String(), "is a tar archive but holds no saved image").
			WithNext("import it as a root file system with tar:%s", dotted(src.Path))
	}
	return importTarball(ctx, store, src, o)
}

// importTarball makes one layer of a root file system. Its key is the hash of
// the file as it is, compressed or not.
func importTarball(ctx context.Context, store *layers.Store, src Source, o Options) (Result, error) {
	f, err := os.Open(src.Path)
	if err != nil {
		return Result{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Result{}, err
	}
	if !st.Mode().IsRegular() {
		return Result{}, invalid(src.String(), "is not a regular file")
	}
	o.step("unpack", "hash %s", src.Path)
	sum := sha256.New()
	if _, err := io.Copy(sum, until(ctx, f)); err != nil {
		return Result{}, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Result{}, err
	}
	digest := "sha256:" + hex.EncodeToString(sum.Sum(nil))
	l, err := store.Extract(ctx, o.counted("unpack", src.Path, f, st.Size()), layers.ExtractOptions{Digest: "tarball:" + digest, Plain: true})
	if err != nil {
		return Result{}, badArchive(src, err)
	}
	return Result{Layers: []string{l.ID}, Digest: digest}, nil
}

// badArchive tells a damaged archive from a failure of this machine.
func badArchive(src Source, err error) error {
	var classified *sandbox.Error
	if errors.As(err, &classified) || machineFault(err) || sandbox.KindOf(err) == sandbox.Timeout {
		return err
	}
	return invalid(src.String(), "cannot be unpacked: %w", err)
}

// machineFault tells that this machine, not what was read, is the reason.
func machineFault(err error) bool {
	for _, e := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EPERM, unix.EACCES, unix.EIO, unix.EMFILE, unix.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// readerFunc is a function as a reader.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// until ends a long read when ctx does.
func until(ctx context.Context, r io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(p)
	})
}

// counted reports how much of r was read, every 4 MiB.
func (o Options) counted(name, detail string, r io.Reader, total int64) io.Reader {
	if o.Progress == nil {
		return r
	}
	return &counter{r: r, report: o.Progress, step: Step{Name: name, Detail: detail, Total: total}}
}

type counter struct {
	r      io.Reader
	report func(Step)
	step   Step
	told   int64
}

func (c *counter) Read(p []byte) (int, error) {
	const every = 4 << 20
	n, err := c.r.Read(p)
	c.step.Done += int64(n)
	if c.step.Done-c.told >= every || (err == io.EOF && c.told != c.step.Done) {
		c.told = c.step.Done
		c.report(c.step)
	}
	return n, err
}

// envMap reads NAME=value pairs, the form that images have.
func envMap(pairs []string) map[string]string {
	env := map[string]string{}
	for _, p := range pairs {
		if k, v, _ := strings.Cut(p, "="); k != "" {
			env[k] = v
		}
	}
	return env
}
