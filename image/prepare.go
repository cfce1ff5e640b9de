package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/layers/tree"
)

// Workspace is the folder for an agent's work that every sandbox has.
const Workspace = "/workspace"

// Nameserver is the address inside every sandbox at which its machine answers
// DNS queries. It is written into images and must not change.
const Nameserver = "192.0.0.1"

// prepareVersion is part of the key of setup layers: raise it with any change to
// what Prepare does, so that later imports get the new setup.
const prepareVersion = "1"

// epoch dates the files we make: equal images give equal layers.
var epoch = time.Unix(0, 0)

// Prepare makes the setup layer for a stack of layers, bottom first. It is
// computed from the image's own files and holds
//   - the user "user" with home, /workspace and, where sudo exists, the right to use
//     it without a password;
//   - name resolution by the sandbox's own machine;
//   - the folders that the runtime mounts over, and a /tmp that is not empty;
//   - an empty machine id, for every sandbox to have its own.
//
// What the image has already is left alone, except for resolv.conf, hosts and the
// machine id. The same stack gives the same layer.
func Prepare(ctx context.Context, store *layers.Store, lower []string) (layers.Layer, error) {
	key := "prepare:" + prepareVersion + ":" + sha256Hex(strings.Join(lower, ":"))
	l, err := store.Derive(ctx, key, lower, func(root *tree.Root) error {
		for _, step := range []func(*tree.Root) error{prepareFolders, prepareNetwork, prepareMachineID, prepareUser} {
			if err := step(root); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return layers.Layer{}, fmt.Errorf("prepare image: %w", err)
	}
	return l, nil
}

func prepareFolders(root *tree.Root) error {
	folder := tree.Attr{Mode: 0o755, ModTime: epoch}
	shared := tree.Attr{Mode: 0o1777, ModTime: epoch}
	for _, d := range []struct {
		name string
		attr tree.Attr
	}{
		{"dev", folder}, {"proc", folder}, {"sys", folder}, {"run", folder}, {"etc", folder}, {"home", folder},
		{"root", tree.Attr{Mode: 0o700, ModTime: epoch}},
		{"tmp", shared}, {"tmp/.X11-unix", shared}, {"var", folder}, {"var/tmp", shared},
	} {
		if err := root.MkdirAll(d.name, d.attr); err != nil {
			return err
		}
	}
	return nil
}

func prepareNetwork(root *tree.Root) error {
	file := tree.Attr{Mode: 0o644, ModTime: epoch}
	for _, f := range []struct{ name, text string }{
		{"etc/resolv.conf", "nameserver " + Nameserver + "\n"},
		{"etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"},
	} {
		if err := root.Replace(f.name, file, strings.NewReader(f.text)); err != nil {
			return err
		}
	}
	return nil
}

func prepareMachineID(root *tree.Root) error {
	if err := root.Replace("etc/machine-id", tree.Attr{Mode: 0o444, ModTime: epoch}, strings.NewReader("")); err != nil {
		return err
	}
	// Normally a link to the above; a copy would give all sandboxes one identity.
	if st, err := root.Lstat("var/lib/dbus/machine-id"); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		return root.RemoveAll("var/lib/dbus/machine-id")
	}
	return nil
}

func prepareUser(root *tree.Root) error {
	user, err := ensureUser(root)
	if err != nil {
		return err
	}
	owned := tree.Attr{Mode: 0o755, UID: user.uid, GID: user.gid, ModTime: epoch}
	for _, dir := range []string{user.home, Workspace} {
		if _, err := root.Stat(dir); err == nil {
			continue
		}
		if err := root.MkdirAll(path.Dir(tree.Clean(dir)), tree.Attr{Mode: 0o755, ModTime: epoch}); err != nil {
			return err
		}
		if err := root.Mkdir(dir, owned); err != nil {
			return err
		}
		if dir == user.home {
			if err := copySkeleton(root, user); err != nil {
				return err
			}
		}
	}
	return prepareSudo(root)
}

// copySkeleton gives a new home the files that the image has for one.
func copySkeleton(root *tree.Root, user account) error {
	names, err := root.ReadDir("etc/skel")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		from := path.Join("etc/skel", name)
		st, err := root.Lstat(from)
		if err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		f, err := root.Open(from)
		if err != nil {
			return err
		}
		err = root.Create(path.Join(user.home, name), tree.Attr{Mode: st.Mode & 0o777, UID: user.uid, GID: user.gid, ModTime: epoch}, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func prepareSudo(root *tree.Root) error {
	if _, err := root.Stat("usr/bin/sudo"); err != nil {
		return nil // nothing to allow
	}
	if err := root.MkdirAll("etc/sudoers.d", tree.Attr{Mode: 0o750, ModTime: epoch}); err != nil {
		return err
	}
	rule := UserName + " ALL=(ALL:ALL) NOPASSWD: ALL\n"
	// sudo ignores names with a dot and files that others may write.
	if err := root.Replace("etc/sudoers.d/holdfast", tree.Attr{Mode: 0o440, ModTime: epoch}, strings.NewReader(rule)); err != nil {
		return err
	}
	main, err := root.ReadFile("etc/sudoers", maxTextFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(main)) {
		f := strings.Fields(line)
		if len(f) == 2 && (f[0] == "@includedir" || f[0] == "#includedir") && f[1] == "/etc/sudoers.d" {
			return nil
		}
	}
	text := strings.TrimRight(string(main), "\n") + "\n@includedir /etc/sudoers.d\n"
	if len(main) == 0 {
		text = "root ALL=(ALL:ALL) ALL\n" + text
	}
	return root.Replace("etc/sudoers", tree.Attr{Mode: 0o440, ModTime: epoch}, strings.NewReader(text))
}
