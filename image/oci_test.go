package image

import (
	"archive/tar"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/holdfast-run/holdfast/sandbox"
)

// testRegistry serves a registry; damage may change what it answers.
func testRegistry(t *testing.T, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func push(t *testing.T, ref string, img v1.Image) {
	t.Helper()
	r, err := name.ParseReference(ref)
	must(t, err)
	must(t, remote.Write(r, img))
}

func TestImportFromRegistry(t *testing.T) {
	s := openStore(t)
	host := testRegistry(t, nil)
	img := testImage(t, nil)
	push(t, host+"/team/app:1", img)
	var steps []Step
	o := Options{Progress: func(s Step) { steps = append(steps, s) }}
	r, err := importText(t, s, host+"/team/app:1", o)
	must(t, err)
	checkTestImage(t, s, r)
	if digest, err := img.Digest(); err != nil || r.Digest != digest.String() {
		t.Errorf("digest %s, %v; want %s", r.Digest, err, digest)
	}
	if r.Source != "docker://"+host+"/team/app:1" {
		t.Errorf("source %s", r.Source)
	}
	for _, want := range []string{"pull", "unpack", "prepare"} {
		if !slices.ContainsFunc(steps, func(s Step) bool { return s.Name == want }) {
			t.Errorf("no step %s in %v", want, steps)
		}
	}
	again, err := importText(t, s, "docker://"+host+"/team/app:1", Options{})
	if err != nil || !slices.Equal(again.Layers, r.Layers) {
		t.Fatalf("again: %v, %v; want %v", again.Layers, err, r.Layers)
	}
}

func TestImportPicksThePlatform(t *testing.T) {
	s := openStore(t)
	host := testRegistry(t, nil)
	other := testImage(t, func(c *v1.ConfigFile) { c.Architecture = "s390x" })
	ours := testImage(t, nil)
	p := platform()
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: ours, Descriptor: v1.Descriptor{Platform: &p}})
	ref, err := name.ParseReference(host + "/multi")
	must(t, err)
	must(t, remote.WriteIndex(ref, index))
	r, err := importText(t, s, host+"/multi", Options{})
	must(t, err)
	checkTestImage(t, s, r)

	push(t, host+"/foreign", other)
	_, err = importText(t, s, host+"/foreign", Options{})
	wantError(t, err, sandbox.InvalidRequest, "linux/s390x", platform().String())
	foreign := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}})
	ref, err = name.ParseReference(host + "/foreign-index")
	must(t, err)
	must(t, remote.WriteIndex(ref, foreign))
	_, err = importText(t, s, host+"/foreign-index", Options{})
	wantError(t, err, sandbox.InvalidRequest, platform().String())
}

func TestRegistryErrors(t *testing.T) {
	s := openStore(t)
	host := testRegistry(t, nil)
	_, err := importText(t, s, host+"/none:1", Options{})
	wantError(t, err, sandbox.NotFound, host+"/none:1", "check the name")

	locked := testRegistry(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, password, _ := r.BasicAuth(); user != "u" || password != "secret" {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	_, err = importText(t, s, locked+"/app", Options{})
	wantError(t, err, sandbox.Authentication, "log in")
	_, err = importText(t, s, locked+"/app", Options{Auth: keychain{"u", "secret"}})
	wantError(t, err, sandbox.NotFound)
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the password shows: %v", err)
	}

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, silent.Close())
	_, err = importText(t, s, silent.Addr().String()+"/app", Options{})
	wantError(t, err, sandbox.Unavailable, "can be reached", "debootstrap://")
	if len(s.List()) != 0 {
		t.Errorf("layers left: %v", s.List())
	}
}

type keychain struct{ user, password string }

func (k keychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return &authn.Basic{Username: k.user, Password: k.password}, nil
}

func TestDamagedLayerIsNotImported(t *testing.T) {
	s := openStore(t)
	img := testImage(t, nil)
	list, err := img.Layers()
	must(t, err)
	digest, err := list[1].Digest()
	must(t, err)
	host := testRegistry(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, digest.String()) {
				_, err := w.Write(gzipped(t, tarOf(t, [2]string{"evil", "x"})))
				must(t, err)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	push(t, host+"/app", img)
	if r, err := importText(t, s, host+"/app", Options{}); err == nil {
		t.Fatalf("imported %+v", r)
	}
	if len(s.List()) != 1 { // the good one below stays for the next try
		t.Errorf("layers: %v", s.List())
	}
}

func TestImportLayoutAndArchives(t *testing.T) {
	img := testImage(t, nil)
	dir := t.TempDir()
	l, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	must(t, err)
	must(t, l.AppendImage(img, layout.WithAnnotations(map[string]string{refName: "app:1"})))
	tag, err := name.NewTag("app:1")
	must(t, err)
	must(t, tarball.WriteToFile(filepath.Join(dir, "docker.tar"), tag, img))
	docker, err := os.ReadFile(filepath.Join(dir, "docker.tar"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "docker.tar.gz"), gzipped(t, docker), 0o600))
	oci := archiveFolder(t, filepath.Join(dir, "layout"))
	must(t, os.WriteFile(filepath.Join(dir, "oci.tar"), oci, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "oci"), gzipped(t, oci), 0o600))

	s := openStore(t)
	first := ""
	for _, source := range []string{"layout", "layout#app:1", "docker.tar", "docker.tar.gz", "docker.tar#app:1", "oci.tar", "oci"} {
		for _, scheme := range []string{"", "oci:"} {
			t.Run(scheme+source, func(t *testing.T) {
				r, err := importText(t, s, scheme+filepath.Join(dir, source), Options{})
				must(t, err)
				checkTestImage(t, s, r)
				if first == "" {
					first = r.Layers[0]
				}
				if r.Layers[0] != first {
					t.Error("the same layer was unpacked again")
				}
			})
		}
	}
	for source, words := range map[string][]string{
		"layout#other":     {`no image named "other"`},
		"docker.tar#other": {"other"},
	} {
		_, err := importText(t, s, filepath.Join(dir, source), Options{})
		wantError(t, err, sandbox.InvalidRequest, words...)
	}
}

func archiveFolder(t *testing.T, dir string) []byte {
	t.Helper()
	var b strings.Builder
	w := tar.NewWriter(&b)
	must(t, w.AddFS(os.DirFS(dir)))
	must(t, w.Close())
	return []byte(b.String())
}

func TestSeveralImagesMustBeChosenFrom(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t)
	one, two := testImage(t, nil), testImage(t, func(c *v1.ConfigFile) { c.Config.User = "" })
	l, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	must(t, err)
	images := map[name.Reference]v1.Image{}
	for tag, img := range map[string]v1.Image{"app:1": one, "app:2": two} {
		must(t, l.AppendImage(img, layout.WithAnnotations(map[string]string{refName: tag})))
		ref, err := name.NewTag(tag)
		must(t, err)
		images[ref] = img
	}
	must(t, tarball.MultiRefWriteToFile(filepath.Join(dir, "docker.tar"), images))
	for _, source := range []string{"layout", "docker.tar"} {
		_, err := importText(t, s, filepath.Join(dir, source), Options{})
		wantError(t, err, sandbox.InvalidRequest, "holds 2 images", "app:1", "app:2", "#NAME")
		r, err := importText(t, s, filepath.Join(dir, source)+"#app:2", Options{})
		if err != nil || r.Config.User != "" {
			t.Errorf("%s: %+v, %v", source, r.Config, err)
		}
	}
}

func TestBadSavedImages(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t)
	file := func(name string, data []byte) string {
		p := filepath.Join(dir, name)
		must(t, os.WriteFile(p, data, 0o600))
		return p
	}
	must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	l, err := layout.Write(filepath.Join(dir, "incomplete"), empty.Index)
	must(t, err)
	img := testImage(t, nil)
	must(t, l.AppendImage(img))
	list, err := img.Layers()
	must(t, err)
	digest, err := list[0].Digest()
	must(t, err)
	must(t, os.Remove(filepath.Join(dir, "incomplete/blobs/sha256", digest.Hex)))
	_, err = layout.Write(filepath.Join(dir, "empty"), empty.Index)
	must(t, err)

	for source, c := range map[string]struct {
		kind  sandbox.Kind
		words []string
	}{
		filepath.Join(dir, "absent.tar"):                                                       {sandbox.NotFound, []string{"absent.tar", "does not exist"}},
		filepath.Join(dir, "folder"):                                                           {sandbox.InvalidRequest, []string{"without an oci-layout file", "debian:12"}},
		filepath.Join(dir, "empty"):                                                            {sandbox.InvalidRequest, []string{"no image for " + platform().String()}},
		filepath.Join(dir, "incomplete"):                                                       {sandbox.InvalidRequest, []string{"incomplete", "cannot be unpacked"}},
		file("text.tar", []byte(strings.Repeat("text ", 500))):                                 {sandbox.InvalidRequest, []string{"no archive that can be read"}},
		"oci:" + file("rootfs.tar", tarOf(t, debianLike...)):                                   {sandbox.InvalidRequest, []string{"holds no saved image", "tar:"}},
		file("manifest.tar", tarOf(t, [2]string{"manifest.json", "{"})):                        {sandbox.InvalidRequest, []string{"manifest.json"}},
		file("oci.tar", tarOf(t, [2]string{"oci-layout", "{}"}, [2]string{"index.json", "{"})): {sandbox.InvalidRequest, []string{"not a readable OCI layout"}},
	} {
		_, err := importText(t, s, source, Options{})
		wantError(t, err, c.kind, c.words...)
	}
	if len(s.List()) != 0 {
		t.Errorf("layers left: %v", s.List())
	}
}
