package image

import (
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-run/holdfast/sandbox"
)

func TestParseSource(t *testing.T) {
	for text, want := range map[string]Source{
		"debian:12": {Kind: Registry, Ref: "debian:12"},
		"registry.example:5000/team/app@sha256:" + strings.Repeat("0", 64): {Kind: Registry, Ref: "registry.example:5000/team/app@sha256:" + strings.Repeat("0", 64)},
		"docker://debian":        {Kind: Registry, Ref: "debian"},
		"/srv/layout":            {Kind: Path, Path: "/srv/layout"},
		"./image#app:1":          {Kind: Path, Path: "image", Tag: "app:1"},
		"../x/../rootfs.tar.zst": {Kind: Path, Path: "../rootfs.tar.zst"},
		"image.tar#app":          {Kind: Path, Path: "image.tar", Tag: "app"},
		"rootfs.tgz":             {Kind: Path, Path: "rootfs.tgz"},
		"rootfs.tar.xz":          {Kind: Path, Path: "rootfs.tar.xz"},
		"oci:/srv/layout#a":      {Kind: Saved, Path: "/srv/layout", Tag: "a"},
		"oci:latest":             {Kind: Registry, Ref: "oci:latest"},
		"tar:./rootfs":           {Kind: Tarball, Path: "rootfs"},
		"debootstrap://bookworm": {Kind: Bootstrap, Suite: "bookworm"},
		"debootstrap://trixie?packages=git,curl,git":                            {Kind: Bootstrap, Suite: "trixie", Packages: []string{"curl", "git"}},
		"debootstrap://trixie?packages=g++&mirror=http://mirror.example/debian": {Kind: Bootstrap, Suite: "trixie", Packages: []string{"g  "}},
	} {
		if strings.Contains(text, "g++") { // a plus must be escaped in a query, or it is a space
			if _, err := ParseSource(text); !sandbox.IsKind(err, sandbox.InvalidRequest) {
				t.Errorf("%s: got %v", text, err)
			}
			text = strings.Replace(text, "g++", "g%2B%2B", 1)
			want = Source{Kind: Bootstrap, Suite: "trixie", Packages: []string{"g++"}, Mirror: "http://mirror.example/debian"}
		}
		got, err := ParseSource(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestParseSourceRefuses(t *testing.T) {
	for text, words := range map[string][]string{
		"":                              {"not an image reference", "debian:12", "oci:", "tar:", "debootstrap://"},
		"ftp://example/rootfs":          {`unknown scheme "ftp"`, "debian:12", "OCI layout folder", "root file system", "debootstrap://bookworm"},
		"Debian:12":                     {"not an image reference"},
		"two words":                     {"not an image reference"},
		"a\x00b":                        {"NUL"},
		"./image#":                      {`no image name after "#"`},
		"debootstrap://":                {"needs a suite"},
		"debootstrap://--help":          {"needs a suite"},
		"debootstrap://a/../b":          {"needs a suite"},
		"debootstrap://b?packages=-o":   {`the package "-o"`},
		"debootstrap://b?packages=":     {`the package ""`},
		"debootstrap://b?package=git":   {`unknown option "package"`, "packages and mirror"},
		"debootstrap://b?mirror=/local": {"not one http or https address"},
		"debootstrap://b?mirror=http://user:pass@mirror.example/": {"not one http"},
		"debootstrap://b?packages=%zz":                            {"cannot be read"},
	} {
		_, err := ParseSource(text)
		if !sandbox.IsKind(err, sandbox.InvalidRequest) {
			t.Errorf("%q: got %v", text, err)
			continue
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: %q does not mention %q", text, err, w)
			}
		}
	}
}

// FuzzParseSource: what is accepted has one canonical form that means the same.
func FuzzParseSource(f *testing.F) {
	for _, s := range []string{"debian:12", "docker://a/b:c", "./x#y", "oci:/a#b", "tar:/a", "x.tar.gz#t", "debootstrap://bookworm?packages=a,b&mirror=http://m/d", "zip://x", ".", "a#b.tar"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		src, err := ParseSource(s)
		if err != nil {
			if !sandbox.IsKind(err, sandbox.InvalidRequest) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		again, err := ParseSource(src.String())
		if err != nil || !reflect.DeepEqual(again, src) {
			t.Fatalf("%q is %+v, but %q is %+v, %v", s, src, src.String(), again, err)
		}
	})
}
