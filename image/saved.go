package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/holdfast-run/holdfast/layers"
)

// archiveKind is what a tar archive holds.
type archiveKind int

const (
	rootArchive   archiveKind = iota // a root file system
	dockerArchive                    // docker save: has manifest.json
	ociArchive                       // an OCI layout: has oci-layout and index.json
)

// savedEntry matches the names that saved images consist of.
var savedEntry = regexp.MustCompile(`^(manifest\.json|repositories|index\.json|oci-layout|blobs(/.*)?|[0-9a-f]{64}(\.json|\.tar|\.tar\.gz)?|sha256:[0-9a-f]{64}|[0-9a-f]{64}/.*|[0-9a-f]{64}\.tar\.gz)$`)

// detectArchive reads names until one cannot belong to a saved image, for a root
// file system the first, or the archive ends.
func detectArchive(ctx context.Context, file string) (archiveKind, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	plain, err := layers.Decompress(until(ctx, f))
	if err != nil {
		return 0, err
	}
	defer plain.Close()
	seen := map[string]bool{}
	for t := tar.NewReader(plain); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		entry := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if !savedEntry.MatchString(entry) {
			return rootArchive, nil
		}
		seen[entry] = true
	}
	switch {
	case seen["manifest.json"]:
		return dockerArchive, nil
	case seen["oci-layout"] && seen["index.json"]:
		return ociArchive, nil
	}
	return rootArchive, nil
}

// importDockerArchive reads an archive of docker save. Its parts are looked up
// many times, so a compressed one is unpacked beside the store first.
func importDockerArchive(ctx context.Context, store *layers.Store, src Source, o Options) (Result, error) {
	dir, err := os.MkdirTemp("", "holdfast-image-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	file, err := uncompressed(ctx, src.Path, dir)
	if err != nil {
		return Result{}, invalid(src.String(), "cannot be read: %w", err)
	}
	opener := func() (io.ReadCloser, error) { return os.Open(file) }
	manifest, err := tarball.LoadManifest(opener)
	if err != nil {
		return Result{}, invalid(src.String(), "has no readable manifest.json: %w", err)
	}
	tag, err := chooseTag(src, manifest)
	if err != nil {
		return Result{}, err
	}
	img, err := tarball.Image(opener, tag)
	if err != nil {
		return Result{}, invalid(src.String(), "cannot be read: %w", err)
	}
	r, err := importImage(ctx, store, src, img, o)
	if err != nil {
		return Result{}, badArchive(src, err)
	}
	return r, nil
}

func chooseTag(src Source, m tarball.Manifest) (*name.Tag, error) {
	if src.Tag == "" {
		if len(m) == 1 {
			return nil, nil
		}
		var tags []string
		for _, d := range m {
			tags = append(tags, d.RepoTags...)
		}
		return nil, invalid(src.String(), "holds %d images", len(m)).WithNext("choose one of %s, as in %s#NAME", strings.Join(tags, ", "), src.Path)
	}
	tag, err := name.NewTag(src.Tag)
	if err != nil {
		return nil, invalid(src.String(), "asks for %q, which is no image name: %w", src.Tag, err)
	}
	return &tag, nil
}

// uncompressed gives file itself, or a copy in dir in the clear.
func uncompressed(ctx context.Context, file, dir string) (string, error) {
	in, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer in.Close()
	if _, err := tar.NewReader(in).Next(); err == nil {
		return file, nil
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	plain, err := layers.Decompress(until(ctx, in))
	if err != nil {
		return "", err
	}
	defer plain.Close()
	out, err := os.Create(filepath.Join(dir, "image.tar"))
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, plain)
	return out.Name(), errors.Join(err, out.Close())
}

// importOCIArchive unpacks a layout out of its archive and imports that.
func importOCIArchive(ctx context.Context, store *layers.Store, src Source, o Options) (Result, error) {
	dir, err := os.MkdirTemp("", "holdfast-image-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	if err := unpackLayout(ctx, src.Path, dir); err != nil {
		return Result{}, invalid(src.String(), "cannot be read: %w", err)
	}
	return importLayout(ctx, store, src, dir, o)
}

// unpackLayout writes the regular files of a layout; names were matched against
// savedEntry and are cleaned, and the folder is a root that they cannot leave.
func unpackLayout(ctx context.Context, file, dir string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	plain, err := layers.Decompress(until(ctx, in))
	if err != nil {
		return err
	}
	defer plain.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for t := tar.NewReader(plain); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		entry := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if err := root.MkdirAll(path.Dir(entry), 0o700); err != nil {
			return err
		}
		out, err := root.Create(entry)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, t)
		if err = errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
}

// importLayout imports the image of a layout folder that fits this machine.
func importLayout(ctx context.Context, store *layers.Store, src Source, dir string, o Options) (Result, error) {
	if _, err := os.Stat(filepath.Join(dir, "oci-layout")); errors.Is(err, fs.ErrNotExist) {
		return Result{}, invalid(src.String(), "is a folder without an oci-layout file").WithNext(forms)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return Result{}, invalid(src.String(), "is not a readable OCI layout: %w", err)
	}
	found, err := imagesIn(index, src.Tag, src.Tag == "")
	if err != nil {
		return Result{}, invalid(src.String(), "is not a readable OCI layout: %w", err)
	}
	switch {
	case len(found) == 0 && src.Tag != "":
		return Result{}, invalid(src.String(), "holds no image named %q for %s", src.Tag, platform())
	case len(found) == 0:
		return Result{}, invalid(src.String(), "holds no image for %s", platform())
	case len(found) > 1:
		var names []string
		for _, f := range found {
			names = append(names, f.name)
		}
		return Result{}, invalid(src.String(), "holds %d images", len(found)).WithNext("choose one of %s, as in %s#NAME", strings.Join(names, ", "), src.Path)
	}
	r, err := importImage(ctx, store, src, found[0].image, o)
	if err != nil {
		return Result{}, badArchive(src, err)
	}
	return r, nil
}

type namedImage struct {
	name  string
	image v1.Image
}

// refName is the annotation that names an image in a layout.
const refName = "org.opencontainers.image.ref.name"

// imagesIn lists the images of an index, nested ones included, that this machine
// can run and that have the tag; under holds below an entry that had it.
func imagesIn(index v1.ImageIndex, tag string, under bool) ([]namedImage, error) {
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var found []namedImage
	for _, d := range m.Manifests {
		named := under || d.Annotations[refName] == tag
		switch {
		case d.MediaType.IsIndex():
			nested, err := index.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			list, err := imagesIn(nested, tag, named)
			if err != nil {
				return nil, err
			}
			found = append(found, list...)
		case d.MediaType.IsImage() && named && (d.Platform == nil || d.Platform.Satisfies(platform())):
			img, err := index.Image(d.Digest)
			if err != nil {
				return nil, err
			}
			found = append(found, namedImage{firstOf(d.Annotations[refName], d.Digest.String()), img})
		}
	}
	return found, nil
}

func firstOf(list ...string) string {
	for _, s := range list {
		if s != "" {
			return s
		}
	}
	return ""
}

func sha256Hex(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}
