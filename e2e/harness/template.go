package harness

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"testing"

	v1 "github.com/holdfast-run/holdfast/api/v1"
)

// Template is an archive that tests import.
type Template struct {
	Name    string
	archive func() ([]byte, error)
}

// Small is a root file system of a few kilobytes around busybox: an import and
// a create of it cost little, and the faults it is put through are the same.
var Small = &Template{Name: "small", archive: smallArchive}

// Import makes the template in the daemon.
func (tpl *Template) Import(t testing.TB, d *Daemon) *v1.Template {
	t.Helper()
	archive, err := tpl.archive()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	made, err := d.Client.Import(ctx, v1.ImportRequest{Name: tpl.Name}, bytes.NewReader(archive), nil)
	if err != nil {
		t.Fatalf("import %s: %v", tpl.Name, err)
	}
	return made
}

// busyboxes are where the static busybox of a distribution is.
var busyboxes = []string{"/bin/busybox", "/usr/bin/busybox"}

// applets are the commands that tests use in the small template.
var applets = []string{
	"sh", "ash", "cat", "cp", "date", "dd", "echo", "env", "false", "head", "hostname", "id", "kill", "ln", "ls", "mkdir",
	"mv", "nc", "ps", "pwd", "rm", "sha256sum", "sleep", "stat", "sync", "tail", "test", "touch", "true", "wc", "wget", "httpd",
}

func smallArchive() ([]byte, error) {
	var program []byte
	err := os.ErrNotExist
	for _, path := range busyboxes {
		if program, err = os.ReadFile(path); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err // busybox-static is missing: hack/setup.sh test
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err == nil {
			err = w.WriteHeader(&h)
		}
		if err == nil {
			_, err = w.Write(content)
		}
	}
	for _, dir := range []string{"bin", "dev", "etc", "home", "home/user", "proc", "root", "sys", "tmp", "usr", "usr/bin", "var", "run"} {
		mode := int64(0o755)
		if dir == "tmp" {
			mode = 0o1777
		}
		h := tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: mode}
		if dir == "home/user" {
			h.Uid, h.Gid = 1000, 1000
		}
		add(h, nil)
	}
	add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, program)
	for _, a := range applets {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + a, Linkname: "busybox", Mode: 0o777}, nil)
	}
	// E2B's clients run everything through bash.
	add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/bash", Mode: 0o755}, []byte("#!/bin/sh\nexec /bin/sh \"$@\"\n"))
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n",
		"etc/group":  "root:x:0:\nuser:x:1000:\n",
	}
	for name, content := range files {
		add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, []byte(content))
	}
	if err == nil {
		err = w.Close()
	}
	return b.Bytes(), err
}
