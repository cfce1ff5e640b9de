// Package image turns what people have (a container image, a saved image, a root
// file system, a Debian mirror) into layers and a configuration that sandboxes
// can start from.
package image

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/holdfast-run/holdfast/sandbox"
)

// Kind is where an image comes from.
type Kind string

// The kinds of source.
const (
	Registry  Kind = "registry"  // an OCI image reference, pulled
	Path      Kind = "path"      // a file or folder; what it is shows when it is read
	Saved     Kind = "saved"     // an OCI layout folder, an OCI archive or a docker save archive
	Tarball   Kind = "tarball"   // a root file system as a tar archive
	Bootstrap Kind = "bootstrap" // Debian or a derivative, from the machine's package mirror
)

// Source says where an image comes from. Make one with ParseSource.
type Source struct {
	Kind Kind
	Ref  string // Registry: the reference as given
	Path string // Path, Saved, Tarball
	Tag  string // Path, Saved: which image, when there are several

	Suite    string   // Bootstrap: e.g. "bookworm"
	Packages []string // Bootstrap: beside the essential ones
	Mirror   string   // Bootstrap: instead of the machine's own, "" for that
}

const forms = `give one of:
  debian:12, registry.example/team/app:1       an image reference
  ./layout, oci:./image.tar, image.tar#tag     an OCI layout folder, OCI archive or docker save archive
  ./rootfs.tar.zst, tar:./rootfs.tar           a root file system (tar; gzip, zstd, xz, bzip2)
  debootstrap://bookworm?packages=git,curl     a Debian bootstrap from the machine's package mirror`

var (
	schemePattern  = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*)://`)
	suitePattern   = regexp.MustCompile(`^[a-z][a-z0-9.-]*$`)
	packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*$`)
	filePattern    = regexp.MustCompile(`\.(tar|tgz|tzst|txz|tbz2?|tar\.(gz|zst|xz|bz2))$`)
)

func invalid(source, format string, args ...any) *sandbox.Error {
	return sandbox.Errorf(sandbox.InvalidRequest, fmt.Sprintf("image source %q", source), format, args...)
}

// ParseSource reads a source as a person writes it. It looks at nothing but the
// text. The error is InvalidRequest and lists the forms where none fits.
func ParseSource(s string) (Source, error) {
	if strings.ContainsRune(s, 0) {
		return Source{}, invalid(s, "contains a NUL byte")
	}
	if m := schemePattern.FindStringSubmatch(s); m != nil {
		switch rest := s[len(m[0]):]; m[1] {
		case "debootstrap":
			return parseBootstrap(s, rest)
		case "docker":
			return parseRef(s, rest)
		default:
			return Source{}, invalid(s, "has the unknown scheme %q", m[1]).WithNext(forms)
		}
	}
	if rest, ok := strings.CutPrefix(s, "oci:"); ok && isPath(rest) {
		return parsePath(s, Saved, rest)
	}
	if rest, ok := strings.CutPrefix(s, "tar:"); ok && isPath(rest) {
		return Source{Kind: Tarball, Path: path.Clean(rest)}, nil
	}
	file, _, _ := strings.Cut(s, "#")
	if isPath(s) || filePattern.MatchString(file) {
		return parsePath(s, Path, s)
	}
	return parseRef(s, s)
}

func isPath(s string) bool {
	return strings.HasPrefix(s, "/") || strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../") || s == "." || s == ".."
}

func parsePath(s string, kind Kind, rest string) (Source, error) {
	p, tag, tagged := strings.Cut(rest, "#")
	if tagged && tag == "" {
		return Source{}, invalid(s, `has no image name after "#"`)
	}
	return Source{Kind: kind, Path: path.Clean(p), Tag: tag}, nil
}

func parseRef(s, ref string) (Source, error) {
	if _, err := name.ParseReference(ref); err != nil {
		return Source{}, invalid(s, "is not an image reference (%w)", err).WithNext(forms)
	}
	return Source{Kind: Registry, Ref: ref}, nil
}

func parseBootstrap(s, rest string) (Source, error) {
	suite, query, _ := strings.Cut(rest, "?")
	if !suitePattern.MatchString(suite) {
		return Source{}, invalid(s, "needs a suite, as in debootstrap://bookworm")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return Source{}, invalid(s, "cannot be read: %w", err)
	}
	src := Source{Kind: Bootstrap, Suite: suite}
	for key, list := range values {
		switch key {
		case "packages":
			for _, v := range list {
				for p := range strings.SplitSeq(v, ",") {
					if !packagePattern.MatchString(p) {
						return Source{}, invalid(s, "names the package %q, which is no package name", p)
					}
					src.Packages = append(src.Packages, p)
				}
			}
		case "mirror":
			u, err := url.Parse(list[0])
			if err != nil || len(list) > 1 || u.Host == "" || u.User != nil || (u.Scheme != "http" && u.Scheme != "https") || strings.ContainsAny(list[0], " \t\n[]") {
				return Source{}, invalid(s, "has the mirror %q, which is not one http or https address", strings.Join(list, " "))
			}
			src.Mirror = list[0]
		default:
			return Source{}, invalid(s, "has the unknown option %q; options are packages and mirror", key)
		}
	}
	slices.Sort(src.Packages) // order means nothing: equal sources are equal
	src.Packages = slices.Compact(src.Packages)
	return src, nil
}

// String gives the source in the form that ParseSource reads.
func (s Source) String() string {
	tag := ""
	if s.Tag != "" {
		tag = "#" + s.Tag
	}
	switch s.Kind {
	case Registry:
		return "docker://" + s.Ref
	case Saved:
		return "oci:" + dotted(s.Path) + tag
	case Tarball:
		return "tar:" + dotted(s.Path)
	case Bootstrap:
		q := url.Values{}
		if len(s.Packages) > 0 {
			q.Set("packages", strings.Join(s.Packages, ","))
		}
		if s.Mirror != "" {
			q.Set("mirror", s.Mirror)
		}
		text := "debootstrap://" + s.Suite
		if len(q) > 0 {
			text += "?" + q.Encode()
		}
		return text
	}
	return dotted(s.Path) + tag
}

// dotted makes a relative path recognisable as a path.
func dotted(p string) string {
	if isPath(p) {
		return p
	}
	return "./" + p
}
