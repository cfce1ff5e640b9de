package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/sandbox"
)

// place is one side of a copy.
type place struct {
	sandbox string // "" for this machine
	path    string // "-" on this machine is standard input or output
}

// parsePlace reads SANDBOX:PATH or a path of this machine. What begins with /,
// ./ or ../, or has a / before its first colon, is a path here.
func parsePlace(s string) place {
	ref, inside, ok := strings.Cut(s, ":")
	if !ok || ref == "" || strings.ContainsRune(ref, '/') || strings.HasPrefix(ref, ".") {
		return place{path: s}
	}
	return place{sandbox: ref, path: inside}
}

func (a *app) cp() *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use:   "cp SANDBOX:PATH PATH | cp PATH SANDBOX:PATH",
		Short: "Copy files and folders into or out of a sandbox",
		Long: `Copy a file or a folder between this machine and a sandbox, resuming it when it is
paused. A path inside that is not absolute starts at the user's home. When the
destination is an existing folder, the copy is made in it; a source ending in
"/." copies what is in the folder. "-" is standard input or output, for a file.`,
		Example: `  holdfast cp ./src dev:/workspace
  holdfast cp dev:/workspace/out.csv .
  echo hello | holdfast cp - dev:greeting.txt
  holdfast cp dev:/var/log/syslog -`,
		Args: cobra.ExactArgs(2),
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "`user` inside who reads or owns the files")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		from, to := parsePlace(args[0]), parsePlace(args[1])
		if (from.sandbox == "") == (to.sandbox == "") {
			return usagef("one of %q and %q must be SANDBOX:PATH, the other a path here", args[0], args[1])
		}
		ref, inside := to.sandbox, to.path
		if from.sandbox != "" {
			ref, inside = from.sandbox, from.path
		}
		if inside == "" {
			return usagef("%s: has no path; write %s:. for the home folder", ref, ref)
		}
		sb, err := a.wake(cmd, ref)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		go keepAlive(ctx, sb)
		x := &copier{sb: sb, files: sb.Files(user), user: user}
		p := a.progress("copying")
		defer p.Done()
		switch {
		case to.sandbox != "" && from.path == "-":
			return x.files.Write(ctx, to.path, a.in)
		case to.sandbox != "":
			return x.upload(ctx, from.path, to.path)
		case to.path == "-":
			return x.print(ctx, from.path, a.out)
		}
		return x.download(ctx, from.path, to.path)
	}
	complete(a, cmd, nil, nil)
	cmd.ValidArgsFunction = nil // both sides may be paths here
	return cmd
}

// copier copies between this machine and one sandbox.
type copier struct {
	sb    *client.Sandbox
	files *client.Files
	user  string
}

// remote describes a path inside; nil when nothing is there.
func (x *copier) remote(ctx context.Context, p string) (*client.Entry, error) {
	ok, err := x.files.Exists(ctx, p)
	if err != nil || !ok {
		return nil, err
	}
	e, err := x.files.Stat(ctx, p)
	if err != nil || e.Target == "" {
		return e, err
	}
	// A link to a folder is as good as the folder.
	if _, err := x.files.ReadDir(ctx, p, 1); err == nil {
		e.Dir = true
	}
	return e, nil
}

func (x *copier) upload(ctx context.Context, from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	dest, err := x.remote(ctx, to)
	if err != nil {
		return err
	}
	contents := strings.HasSuffix(from, "/.") || filepath.Clean(from) == "."
	intoFolder := dest != nil && dest.Dir || dest == nil && strings.HasSuffix(to, "/") && !info.IsDir()
	if !info.IsDir() {
		if intoFolder {
			to = path.Join(to, filepath.Base(from))
		}
		return x.uploadFile(ctx, from, to, info.Mode())
	}
	switch {
	case dest != nil && !dest.Dir:
		return sandbox.Errorf(sandbox.Conflict, "path "+to, "is a file; a folder cannot be copied onto it")
	case dest != nil && !contents:
		abs, err := filepath.Abs(from)
		if err != nil {
			return fmt.Errorf("copy: %w", err)
		}
		to = path.Join(to, filepath.Base(abs))
	}
	if err := x.files.Mkdir(ctx, to); err != nil && !sandbox.IsKind(err, sandbox.Conflict) {
		return err
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := packFolder(w, from)
		packed <- errors.Join(err, w.CloseWithError(err))
	}()
	unpackErr := x.tar(ctx, r, nil, "-xof", "-", "-C", to)
	_ = r.CloseWithError(io.ErrClosedPipe) // so that packing ends when unpacking did
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		return packErr
	}
	return unpackErr
}

func (x *copier) uploadFile(ctx context.Context, from, to string, mode os.FileMode) error {
	f, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer f.Close()
	if err := x.files.Write(ctx, to, f); err != nil {
		return err
	}
	if mode&0o111 == 0 {
		return nil
	}
	// The file service makes plain files; what can be run here can be run there.
	c := x.sb.Command(ctx, "chmod", fmt.Sprintf("%o", mode.Perm()), "--", to)
	c.User = x.user
	if out, err := c.CombinedOutput(); err != nil {
		return sandbox.Errorf(sandbox.Internal, "path "+to, "was copied, but could not be made executable: %s%w", out, err)
	}
	return nil
}

func (x *copier) download(ctx context.Context, from, to string) error {
	src, err := x.remote(ctx, from)
	if err != nil {
		return err
	}
	if src == nil {
		return sandbox.Errorf(sandbox.NotFound, "path "+from, "does not exist in the sandbox")
	}
	info, err := os.Stat(to)
	exists := err == nil
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("copy: %w", err)
	}
	intoFolder := exists && info.IsDir()
	if !src.Dir {
		if intoFolder || strings.HasSuffix(to, "/") {
			to = filepath.Join(to, src.Name)
		}
		return x.downloadFile(ctx, from, to, os.FileMode(src.Mode).Perm())
	}
	if exists && !intoFolder {
		return fmt.Errorf("copy: %s is a file; a folder cannot be copied onto it", to)
	}
	if intoFolder && !strings.HasSuffix(from, "/.") && path.Clean(from) != "." {
		to = filepath.Join(to, src.Name)
	}
	if err := os.MkdirAll(to, 0o755); err != nil { //nolint:gosec // an ordinary folder of the user's
		return fmt.Errorf("copy: %w", err)
	}
	r, w := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		err := unpackFolder(r, to)
		_ = r.CloseWithError(err)
		unpacked <- err
	}()
	packErr := x.tar(ctx, nil, w, "-cf", "-", "-C", from, ".")
	_ = w.CloseWithError(packErr)
	if err := <-unpacked; err != nil && packErr == nil {
		return err
	}
	return packErr
}

func (x *copier) downloadFile(ctx context.Context, from, to string, mode os.FileMode) (err error) {
	r, err := x.files.Open(ctx, from)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode|0o200)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer func() {
		if closeErr := f.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("copy: %w", closeErr)
		}
	}()
	if _, err := io.Copy(f, r); err != nil {
		return fmt.Errorf("copy of %s broke off: %w", from, err)
	}
	return nil
}

// print writes a file, or a folder as a tar archive, to w.
func (x *copier) print(ctx context.Context, from string, w io.Writer) error {
	src, err := x.remote(ctx, from)
	if err != nil {
		return err
	}
	if src != nil && src.Dir {
		return x.tar(ctx, nil, w, "-cf", "-", "-C", from, ".")
	}
	r, err := x.files.Open(ctx, from)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.Copy(w, r); err != nil {
		return fmt.Errorf("copy of %s broke off: %w", from, err)
	}
	return nil
}

// tar runs tar inside.
func (x *copier) tar(ctx context.Context, in io.Reader, out io.Writer, args ...string) error {
	c := x.sb.Command(ctx, "tar", args...)
	var said strings.Builder
	c.User, c.Stdin, c.Stdout, c.Stderr = x.user, in, out, &said
	err := c.Run()
	var exit *client.ExitError
	switch {
	case errors.As(err, &exit):
		return sandbox.Errorf(sandbox.Internal, "tar in the sandbox", "failed (%s): %s", exit.Status, firstLine(strings.TrimSpace(said.String()), 300))
	case sandbox.IsKind(err, sandbox.NotFound):
		var e *sandbox.Error
		if errors.As(err, &e) {
			return e.WithNext("folders are copied by tar inside; install it there, or copy single files")
		}
	}
	return err
}
