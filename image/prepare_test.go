package image

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/sandbox"
)

// rootfs imports a root file system with these files and mounts it.
func rootfs(t *testing.T, files ...[2]string) (string, Result) {
	t.Helper()
	s := openStore(t)
	p := filepath.Join(t.TempDir(), "rootfs.tar")
	must(t, os.WriteFile(p, tarOf(t, files...), 0o600))
	r, err := importText(t, s, p, Options{})
	must(t, err)
	return mounted(t, s, r.Layers), r
}

func TestPrepareDebianLike(t *testing.T) {
	root, r := rootfs(t, debianLike...)
	wantFile(t, root+"/etc/passwd", "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/usr/sbin/nologin\nuser:x:1000:1000::/home/user:/bin/bash\n")
	wantFile(t, root+"/etc/group", "root:x:0:\ndaemon:x:1:\nuser:x:1000:\n")
	wantFile(t, root+"/etc/shadow", "root:*:1::::::\nuser:*:19000:0:99999:7:::\n")
	wantFile(t, root+"/etc/gshadow", "root:*::\nuser:!::\n")
	wantFile(t, root+"/home/user/.bashrc", "# skel\n")
	wantMode(t, root+"/home/user/.bashrc", 0o755, 1000, 1000)
	wantMode(t, root+"/home/user", 0o755, 1000, 1000)
	wantMode(t, root+"/workspace", 0o755, 1000, 1000)
	wantFile(t, root+"/etc/sudoers.d/holdfast", "user ALL=(ALL:ALL) NOPASSWD: ALL\n")
	wantMode(t, root+"/etc/sudoers.d/holdfast", 0o440, 0, 0)
	wantFile(t, root+"/etc/sudoers", "root ALL=(ALL:ALL) ALL\n@includedir /etc/sudoers.d\n")
	wantFile(t, root+"/etc/resolv.conf", "nameserver 192.0.0.1\n")
	if st, err := os.Lstat(root + "/etc/resolv.conf"); err != nil || !st.Mode().IsRegular() {
		t.Errorf("resolv.conf is still a link: %v, %v", st.Mode(), err)
	}
	wantFile(t, root+"/etc/machine-id", "")
	hosts, err := os.ReadFile(root + "/etc/hosts")
	if err != nil || !strings.Contains(string(hosts), "127.0.0.1\tlocalhost") {
		t.Errorf("hosts %q, %v", hosts, err)
	}
	wantMode(t, root+"/tmp", 0o1777, 0, 0)
	wantMode(t, root+"/tmp/.X11-unix", 0o1777, 0, 0)
	for _, d := range []string{"dev", "proc", "sys", "run", "var/tmp", "root"} {
		if st, err := os.Stat(root + "/" + d); err != nil || !st.IsDir() {
			t.Errorf("/%s: %v", d, err)
		}
	}
	if r.Config.Env["PATH"] != defaultPath || r.Config.Env["LANG"] != "C.UTF-8" || r.Config.User != "" {
		t.Errorf("config %+v", r.Config)
	}
}

func TestPrepareForeignImages(t *testing.T) {
	for name, c := range map[string]struct {
		files [][2]string
		check func(t *testing.T, root string)
	}{
		"nothing but a program": {[][2]string{{"app", "x"}}, func(t *testing.T, root string) {
			wantFile(t, root+"/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
			wantFile(t, root+"/etc/group", "root:x:0:\nuser:x:1000:\n")
			wantMode(t, root+"/home/user", 0o755, 1000, 1000)
			wantAbsent(t, root+"/etc/shadow")
			wantAbsent(t, root+"/etc/sudoers.d")
		}},
		"uid 1000 is another's": {[][2]string{{"etc/passwd", "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n"}, {"etc/group", "root:x:0:\nnode:x:1000:\nx:x:1001:\n"}}, func(t *testing.T, root string) {
			wantFile(t, root+"/etc/passwd", "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\nuser:x:1002:1002::/home/user:/bin/sh\n")
			wantMode(t, root+"/workspace", 0o755, 1002, 1002)
		}},
		"the user is there": {[][2]string{{"etc/passwd", "user:x:501:20::/srv/me:/bin/sh"}, {"srv/", ""}, {"workspace/", ""}}, func(t *testing.T, root string) {
			wantFile(t, root+"/etc/passwd", "user:x:501:20::/srv/me:/bin/sh")
			wantMode(t, root+"/srv/me", 0o755, 501, 20)
			wantMode(t, root+"/workspace", 0o755, 0, 0) // the image's own is left alone
			wantAbsent(t, root+"/home/user")
		}},
		"a group of that name": {[][2]string{{"etc/passwd", "root:x:0:0::/root:/bin/sh\n"}, {"etc/group", "user:x:77:\n"}}, func(t *testing.T, root string) {
			wantMode(t, root+"/home/user", 0o755, 1000, 77)
		}},
		"sudo that includes nothing": {[][2]string{{"usr/bin/sudo", "x"}, {"etc/sudoers", "root ALL=(ALL) ALL"}}, func(t *testing.T, root string) {
			wantFile(t, root+"/etc/sudoers", "root ALL=(ALL) ALL\n@includedir /etc/sudoers.d\n")
			wantMode(t, root+"/etc/sudoers", 0o440, 0, 0)
		}},
		"absolute links": {[][2]string{{"var/", ""}, {"var/home/", ""}, {"home", "->/var/home"}, {"etc", "->/var/etc"}, {"var/etc/", ""}, {"run", "->/var/run"}, {"var/run/", ""}}, func(t *testing.T, root string) {
			wantMode(t, root+"/var/home/user", 0o755, 1000, 1000)
			wantFile(t, root+"/var/etc/resolv.conf", "nameserver 192.0.0.1\n")
		}},
		"a machine id of dbus": {[][2]string{{"var/lib/dbus/machine-id", "x"}}, func(t *testing.T, root string) {
			wantAbsent(t, root+"/var/lib/dbus/machine-id")
		}},
		"links out of the root": {[][2]string{{"etc/", ""}, {"etc/hosts", "->../../../../../../etc/hosts"}, {"etc/passwd", "->/etc/passwd.real"}, {"etc/passwd.real", "root:x:0:0::/:/bin/sh\n"}}, func(t *testing.T, root string) {
			if b, err := os.ReadFile(root + "/etc/passwd"); err != nil || !strings.Contains(string(b), "user:x:1000") {
				t.Errorf("passwd %q, %v", b, err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := os.ReadFile("/etc/hosts")
			must(t, err)
			root, _ := rootfs(t, c.files...)
			c.check(t, root)
			wantFile(t, "/etc/hosts", string(before)) // the host's own
		})
	}
}

func TestPrepareRefusesWhatItCannotRead(t *testing.T) {
	for name, files := range map[string][][2]string{
		"uid":    {{"etc/passwd", "user:x:many:1::/:/bin/sh\n"}},
		"folder": {{"etc/passwd/", ""}},
		"file":   {{"etc", "a file"}},
		"huge":   {{"etc/passwd", strings.Repeat("x", maxTextFile+1)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t)
			p := filepath.Join(t.TempDir(), "rootfs.tar")
			must(t, os.WriteFile(p, tarOf(t, files...), 0o600))
			_, err := importText(t, s, p, Options{})
			wantError(t, err, sandbox.Internal, "prepare image", "etc")
			if list := s.List(); len(list) != 1 {
				t.Errorf("layers %v", list)
			}
			if left, err := layers.Mounts(s.Dir()); err != nil || len(left) != 0 {
				t.Errorf("mounts %v, %v", left, err)
			}
		})
	}
}

func TestImportTarball(t *testing.T) {
	s := openStore(t)
	dir := t.TempDir()
	plain := tarOf(t, debianLike...)
	var z bytes.Buffer
	w, err := zstd.NewWriter(&z)
	must(t, err)
	_, err = w.Write(plain)
	must(t, err)
	must(t, w.Close())
	for name, data := range map[string][]byte{"plain.tar": plain, "a.tgz": gzipped(t, plain), "b.tar.zst": z.Bytes(), "noext": gzipped(t, plain)} {
		p := filepath.Join(dir, name)
		must(t, os.WriteFile(p, data, 0o600))
		r, err := importText(t, s, p, Options{})
		must(t, err)
		wantFile(t, mounted(t, s, r.Layers)+"/bin/bash", "#!")
		count := len(s.List())
		again, err := importText(t, s, "tar:"+p, Options{})
		if err != nil || !slices.Equal(again.Layers, r.Layers) || len(s.List()) != count {
			t.Errorf("%s again: %v, %v; want %v", name, again.Layers, err, r.Layers)
		}
	}
	p := filepath.Join(dir, "cut.tar")
	must(t, os.WriteFile(p, plain[:len(plain)/2], 0o600))
	_, err = importText(t, s, p, Options{})
	wantError(t, err, sandbox.InvalidRequest, "cut.tar", "cannot be unpacked")
	_, err = importText(t, s, "tar:"+dir, Options{})
	wantError(t, err, sandbox.InvalidRequest, "not a regular file")
	_, err = importText(t, s, "tar:"+dir+"/none", Options{})
	wantError(t, err, sandbox.NotFound, "none")
}
