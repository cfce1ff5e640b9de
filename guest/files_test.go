package guest_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/guest/client"
	"github.com/holdfast-run/holdfast/guest/files"
	pb "github.com/holdfast-run/holdfast/guest/proto/filesystempb"
	"github.com/holdfast-run/holdfast/guest/signature"
)

// answer is what a REST route said.
type answer struct {
	status int
	header http.Header
	body   string
}

// request calls a REST route with the token; headers come in pairs, and an empty
// value removes one.
func (s *sandbox) request(t *testing.T, method, path string, body io.Reader, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.addr+path, body)
	must(t, err)
	req.Header.Set("X-Access-Token", token)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		if headers[i+1] == "" {
			req.Header.Del(headers[i])
		}
	}
	resp, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// wantError checks E2B's error body.
func (a answer) wantError(t *testing.T, what string, status int) {
	t.Helper()
	var body struct {
		Code    int
		Message string
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil || a.status != status || body.Code != status || body.Message == "" {
		t.Errorf("%s: answer is %d %q, want %d and a message", what, a.status, a.body, status)
	}
}

func at(path string, more ...string) string {
	q := url.Values{"path": {path}}
	for i := 0; i < len(more); i += 2 {
		q.Set(more[i], more[i+1])
	}
	return "/files?" + q.Encode()
}

// form is a multipart body with one part for each pair of name and contents.
func form(t *testing.T, pairs ...string) (io.Reader, string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(pairs); i += 2 {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", fmt.Sprintf(`form-data; name="file"; filename="%s"`, pairs[i]))
		part, err := w.CreatePart(h)
		must(t, err)
		_, err = part.Write([]byte(pairs[i+1]))
		must(t, err)
	}
	must(t, w.Close())
	return &b, w.FormDataContentType()
}

const octets = "application/octet-stream"

func written(t *testing.T, a answer) []files.Written {
	t.Helper()
	var list []files.Written
	if err := json.Unmarshal([]byte(a.body), &list); err != nil || a.status != http.StatusOK {
		t.Fatalf("answer is %d %q", a.status, a.body)
	}
	return list
}

func TestDownload(t *testing.T) {
	s := start(t)
	path := filepath.Join(s.home, "näme 1.txt")
	write(t, path, "0123456789")
	for _, tc := range []struct {
		name, path string
		headers    []string
		status     int
		body       string
	}{
		{"whole", path, nil, 200, "0123456789"},
		{"relative to home", "näme 1.txt", nil, 200, "0123456789"},
		{"by tilde", "~/näme 1.txt", nil, 200, "0123456789"},
		{"dots", s.home + "/x/../näme 1.txt", nil, 200, "0123456789"},
		{"range", path, []string{"Range", "bytes=2-4"}, 206, "234"},
		{"range to the end", path, []string{"Range", "bytes=-3"}, 206, "789"},
		{"range with gzip is not compressed", path, []string{"Range", "bytes=0-0", "Accept-Encoding", "gzip"}, 206, "0"},
	} {
		a := s.request(t, "GET", at(tc.path), nil, tc.headers...)
		equal(t, tc.name+" status", a.status, tc.status)
		equal(t, tc.name+" body", a.body, tc.body)
		equal(t, tc.name+" length", a.header.Get("Content-Length"), strconv.Itoa(len(tc.body)))
		equal(t, tc.name+" disposition", a.header.Get("Content-Disposition"), "inline; filename*=utf-8''n%C3%A4me%201.txt")
	}
	must(t, syscall.Mkfifo(filepath.Join(s.home, "fifo"), 0o666))
	for path, status := range map[string]int{
		"missing": 404, "missing/x": 404, s.home: 400, "~": 400, "fifo": 400, "/dev/zero": 400, "a\x00b": 400,
		"näme 1.txt/x": 400, strings.Repeat("x", 300): 400,
	} {
		s.request(t, "GET", at(path), nil).wantError(t, path, status)
	}
	s.request(t, "GET", at(path), nil, "Range", "bytes=99-").wantStatus(t, 416)
	s.request(t, "GET", at(path, "username", "ghost"), nil).wantError(t, "unknown user", 401)
	s.request(t, "GET", "/nothing", nil).wantError(t, "unknown route", 404)
}

func (a answer) wantStatus(t *testing.T, status int) {
	t.Helper()
	equal(t, "status", a.status, status)
}

func TestDownloadOfFilesThatTheKernelMakesUp(t *testing.T) {
	s := start(t)
	equal(t, "of size 0", s.request(t, "GET", at("/proc/sys/kernel/ostype"), nil).body, "Linux\n")
	equal(t, "empty", s.request(t, "GET", at("/proc/1/mem-not", "username", "root"), nil).status, 404)
	write(t, filepath.Join(s.home, "empty"), "")
	equal(t, "a really empty one", s.request(t, "GET", at("empty"), nil).body, "")
}

func TestDownloadCompression(t *testing.T) {
	s := start(t)
	text := strings.Repeat("compressible ", 1000)
	write(t, filepath.Join(s.home, "f"), text)
	for accept, want := range map[string]string{
		"":                           "identity",
		"gzip":                       "gzip",
		"gzip, identity;q=0.5":       "gzip",
		"gzip;q=0":                   "identity",
		"gzip, deflate":              "identity", // what an HTTP stack says by itself
		"gzip, deflate, br, zstd":    "identity",
		"br":                         "identity",
		"identity;q=0, gzip":         "gzip",
		"identity;q=0, gzip, br":     "gzip",
		"*":                          "identity",
		"identity;q=0, *":            "gzip",
		"identity;q=0":               "406",
		"br, identity;q=0, gzip;q=0": "406",
		"*;q=0":                      "406",
	} {
		a := s.request(t, "GET", at("f"), nil, "Accept-Encoding", accept)
		got := "identity"
		switch {
		case a.status == http.StatusNotAcceptable:
			got = "406"
		case a.header.Get("Content-Encoding") == "gzip":
			got = "gzip"
			zr, err := gzip.NewReader(strings.NewReader(a.body))
			must(t, err)
			b, err := io.ReadAll(zr)
			must(t, err)
			a.body = string(b)
		}
		equal(t, "coding for "+strconv.Quote(accept), got, want)
		if got != "406" {
			equal(t, "contents for "+strconv.Quote(accept), a.body == text, true)
		}
	}
}

func TestUpload(t *testing.T) {
	s := start(t)
	in := func(p string) string { return filepath.Join(s.home, p) }
	post := func(path string, body io.Reader, headers ...string) answer {
		return s.request(t, "POST", path, body, headers...)
	}

	got := written(t, post(at("new/deep/a.txt"), strings.NewReader("bytes"), "Content-Type", octets))
	equal(t, "answer", fmt.Sprint(got), fmt.Sprint([]files.Written{{Path: in("new/deep/a.txt"), Name: "a.txt", Type: "file"}}))
	equal(t, "contents", read(t, in("new/deep/a.txt")), "bytes")
	equal(t, "modes", s.sh(t, "stat -c %a new new/deep new/deep/a.txt"), "755\n755\n644")
	equal(t, "uid of all", s.sh(t, "stat -c %u:%g new new/deep new/deep/a.txt"), "1000:1000\n1000:1000\n1000:1000")

	body, kind := form(t, "one.txt", "1", "sub/two.txt", "2", in("three.txt"), "3")
	got = written(t, post("/files", body, "Content-Type", kind))
	equal(t, "files written", len(got), 3)
	equal(t, "contents of all", s.sh(t, "cat one.txt sub/two.txt three.txt"), "123")

	body, kind = form(t, "ignored", "by path")
	written(t, post(at("named.txt"), body, "Content-Type", kind))
	equal(t, "path wins over file name", read(t, in("named.txt")), "by path")

	must(t, os.Chmod(in("named.txt"), 0o600))
	written(t, post(at("named.txt"), strings.NewReader("s"), "Content-Type", octets))
	equal(t, "overwritten, mode kept", s.sh(t, "cat named.txt; stat -c %a named.txt"), "s600")

	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	_, err := zw.Write([]byte("unzipped"))
	must(t, errors.Join(err, zw.Close()))
	written(t, post(at("z.txt", "username", "root"), bytes.NewReader(zipped.Bytes()), "Content-Type", octets, "Content-Encoding", "gzip"))
	equal(t, "gzip, in the home of who was named", read(t, "/root/z.txt"), "unzipped")
	must(t, os.Remove("/root/z.txt"))

	must(t, syscall.Mkfifo(in("fifo"), 0o666))
	must(t, os.Chmod(in("fifo"), 0o666))
	for name, tc := range map[string]struct {
		path, body string
		headers    []string
		status     int
	}{
		"no path":            {"/files", "x", []string{"Content-Type", octets}, 400},
		"directory":          {at("new"), "x", []string{"Content-Type", octets}, 400},
		"FIFO":               {at("fifo"), "x", []string{"Content-Type", octets}, 400},
		"through a file":     {at("named.txt/x"), "x", []string{"Content-Type", octets}, 400},
		"NUL":                {at("a\x00b"), "x", []string{"Content-Type", octets}, 400},
		"unknown user":       {at("a", "username", "ghost"), "x", []string{"Content-Type", octets}, 401},
		"no content type":    {at("a"), "x", nil, 400},
		"other content type": {at("a"), "x", []string{"Content-Type", "text/plain"}, 400},
		"other encoding":     {at("a"), "x", []string{"Content-Type", octets, "Content-Encoding", "br"}, 400},
		"not gzip":           {at("a"), "x", []string{"Content-Type", octets, "Content-Encoding", "gzip"}, 400},
		"no boundary":        {at("a"), "x", []string{"Content-Type", "multipart/form-data"}, 400},
		"broken form":        {at("a"), "--b\r\nx", []string{"Content-Type", "multipart/form-data; boundary=b"}, 400},
		"form without file":  {at("a"), "--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\ny\r\n--b--\r\n", []string{"Content-Type", "multipart/form-data; boundary=b"}, 400},
		"part without name":  {"/files", "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\ny\r\n--b--\r\n", []string{"Content-Type", "multipart/form-data; boundary=b"}, 400},
		"metadata too large": {at("a"), "x", []string{"Content-Type", octets, "X-Metadata-K", strings.Repeat("v", 4097)}, 400},
		"metadata key long":  {at("a"), "x", []string{"Content-Type", octets, "X-Metadata-" + strings.Repeat("k", 247), "v"}, 400},
	} {
		post(tc.path, strings.NewReader(tc.body), tc.headers...).wantError(t, name, tc.status)
	}
	body, kind = form(t, "x", "1", "y", "2")
	post(at("twice"), body, "Content-Type", kind).wantError(t, "one path for two parts", 400)
	equal(t, "of which the first was written", read(t, in("twice")), "1")
}

func TestUploadMetadata(t *testing.T) {
	s := start(t)
	list := written(t, s.request(t, "POST", at("m"), strings.NewReader("x"), "Content-Type", octets, "X-Metadata-Kind", "note", "X-Metadata-Who", "me"))
	equal(t, "answer", fmt.Sprint(list[0].Metadata), "map[kind:note who:me]")
	stat := func() string {
		info, err := s.Filesystem.Stat(t.Context(), &pb.StatRequest{Path: "m"})
		must(t, err)
		return fmt.Sprint(info.GetEntry().GetMetadata())
	}
	equal(t, "stat", stat(), "map[kind:note who:me]")
	written(t, s.request(t, "POST", at("m"), strings.NewReader("y"), "Content-Type", octets, "X-Metadata-Kind", "other"))
	equal(t, "replaced with the contents", stat(), "map[kind:other]")
	value := make([]byte, 16)
	n, err := syscall.Getxattr(filepath.Join(s.home, "m"), "user.e2b.kind", value)
	must(t, err)
	equal(t, "extended attribute", string(value[:n]), "other")
}

func TestFilesKeepToTheUsersRights(t *testing.T) {
	s := start(t)
	dir := filepath.Join(filepath.Dir(s.home), "srv")
	must(t, os.Mkdir(dir, 0o755))
	write(t, filepath.Join(dir, "secret"), "root's")
	must(t, os.Chmod(filepath.Join(dir, "secret"), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "closed"), 0o700))
	must(t, os.Symlink(filepath.Join(dir, "secret"), filepath.Join(s.home, "link")))

	s.request(t, "GET", at(dir+"/secret"), nil).wantError(t, "read", 403)
	s.request(t, "GET", at("link"), nil).wantError(t, "read through a link", 403)
	s.request(t, "GET", at(dir+"/closed/x"), nil).wantError(t, "look into a closed folder", 403)
	up := func(path string) answer {
		return s.request(t, "POST", at(path), strings.NewReader("x"), "Content-Type", octets)
	}
	up(dir+"/secret").wantError(t, "overwrite", 403)
	up("link").wantError(t, "overwrite through a link", 403)
	up(dir+"/closed/x").wantError(t, "create in a closed folder", 403)
	up(dir+"/closed/sub/x").wantError(t, "create below a closed folder", 403)
	equal(t, "the file is as it was", read(t, filepath.Join(dir, "secret")), "root's")
	equal(t, "as root", s.request(t, "GET", at(dir+"/secret", "username", "root"), nil).body, "root's")

	// As in E2B a new file may be put where the user can look but not write.
	written(t, up(dir+"/app/main.py"))
	equal(t, "and is theirs", s.sh(t, "stat -c %u:%g "+dir+"/app "+dir+"/app/main.py"), "1000:1000\n1000:1000")
	written(t, up(dir+"/plain"))
	equal(t, "also without a new folder", s.sh(t, "stat -c %u:%g:%a "+dir+"/plain"), "1000:1000:644")
}

func TestUploadOnFullDisk(t *testing.T) {
	s := start(t)
	small := filepath.Join(filepath.Dir(s.home), "small")
	must(t, os.Mkdir(small, 0o755))
	must(t, syscall.Mount("tmpfs", small, "tmpfs", 0, "size=64k,mode=0777"))
	t.Cleanup(func() { must(t, syscall.Unmount(small, syscall.MNT_DETACH)) })
	// The guest is in this mount namespace, so it sees the mount.
	big := bytes.NewReader(make([]byte, 16<<20))
	s.request(t, "POST", at(small+"/big"), big, "Content-Type", octets).wantError(t, "full disk", 507)
	// Whoever sends much gets to hear why it was not taken, instead of a reset.
	for what, headers := range map[string][]string{
		"wrong token":  {"X-Access-Token", "wrong"},
		"unknown user": {"Authorization", "Basic Z2hvc3Q6"},
		"wrong kind":   {"Content-Type", "text/plain"},
	} {
		body := bytes.NewReader(make([]byte, 16<<20))
		a := s.request(t, "POST", at("big"), body, headers...)
		if a.status != 401 && a.status != 400 {
			t.Errorf("%s: answer is %d %s", what, a.status, a.body)
		}
	}
}

func TestLargeFileRoundTrip(t *testing.T) {
	s := start(t)
	data := make([]byte, 48<<20+13)
	_, _ = rand.Read(data)
	began := time.Now()
	must(t, s.WriteFile(t.Context(), "large", bytes.NewReader(data)))
	up := time.Since(began)
	began = time.Now()
	body, err := s.ReadFile(t.Context(), "large")
	must(t, err)
	sum := sha256.New()
	_, err = io.Copy(sum, body)
	must(t, errors.Join(err, body.Close()))
	t.Logf("%d bytes: up %v, down %v", len(data), up, time.Since(began))
	equal(t, "contents came back", [32]byte(sum.Sum(nil)), sha256.Sum256(data))
	_, err = s.ReadFile(t.Context(), "missing")
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Status != 404 {
		t.Errorf("error is %v", err)
	}
}

func TestUploadThatBreaksOff(t *testing.T) {
	s := start(t)
	pr, pw := io.Pipe()
	go func() {
		_, _ = pw.Write([]byte("begin"))
		_ = pw.CloseWithError(errors.New("client gives up"))
	}()
	if err := s.WriteFile(t.Context(), "broken", pr); err == nil {
		t.Error("a broken body was taken for a whole one")
	}
	equal(t, "the guest goes on", s.sh(t, "echo on"), "on")
}

func TestCompose(t *testing.T) {
	s := start(t)
	compose := func(body string) answer {
		return s.request(t, "POST", "/files/compose", strings.NewReader(body), "Content-Type", "application/json")
	}
	s.sh(t, "echo a >a; echo b >b; echo c >c; echo old >all; mkdir d")
	a := compose(`{"source_paths":["a","b","~/c"],"destination":"new/all"}`)
	var one files.Written
	must(t, json.Unmarshal([]byte(a.body), &one))
	equal(t, "answer", fmt.Sprint(one), fmt.Sprint(files.Written{Path: filepath.Join(s.home, "new/all"), Name: "all", Type: "file"}))
	equal(t, "joined, sources gone", s.sh(t, "cat new/all; ls -Am . new; stat -c %u new/all"), "a\nb\nc\n.:\nall, d, new\n\nnew:\nall\n1000")
	s.sh(t, "echo 1 >p; echo 2 >q")
	compose(`{"source_paths":["p","q","missing"],"destination":"all"}`).wantError(t, "missing source", 404)
	equal(t, "nothing was touched", s.sh(t, "cat all p q"), "old\n1\n2")
	equal(t, "onto one of its sources", compose(`{"source_paths":["p","q"],"destination":"p"}`).status, 200)
	equal(t, "which stays", s.sh(t, "cat p; ls q 2>&1 | wc -l"), "1\n2\n1")
	for name, tc := range map[string]struct {
		body   string
		status int
	}{
		"no sources":        {`{"destination":"x"}`, 400},
		"no destination":    {`{"source_paths":["p"]}`, 400},
		"not JSON":          {`{`, 400},
		"wrong type":        {`{"source_paths":"p","destination":"x"}`, 400},
		"directory":         {`{"source_paths":["d"],"destination":"x"}`, 400},
		"NUL":               {`{"source_paths":["p"],"destination":"a\u0000b"}`, 400},
		"unknown user":      {`{"source_paths":["p"],"destination":"x","username":"ghost"}`, 401},
		"closed to user":    {`{"source_paths":["/etc/shadow"],"destination":"x"}`, 403},
		"onto a directory":  {`{"source_paths":["p"],"destination":"d"}`, 409},
		"larger than taken": {`{"source_paths":["` + strings.Repeat("x", 2<<20) + `"],"destination":"x"}`, 400},
	} {
		compose(tc.body).wantError(t, name, tc.status)
	}
}

func TestSignedFiles(t *testing.T) {
	s := start(t)
	write(t, filepath.Join(s.home, "hello.txt"), "hi")
	future, past := strconv.FormatInt(time.Now().Unix()+1000, 10), "1000000000"
	sign := signature.Sign
	for name, tc := range map[string]struct {
		method, path, sig, user, expires string
		status                           int
		message                          string
	}{
		"read":                  {"GET", "hello.txt", sign(token, "hello.txt", "read", "", ""), "", "", 200, ""},
		"read, known vector":    {"GET", "hello.txt", "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E", "user", "", 200, ""},
		"read until":            {"GET", "hello.txt", sign(token, "hello.txt", "read", "user", future), "user", future, 200, ""},
		"expired":               {"GET", "hello.txt", sign(token, "hello.txt", "read", "user", past), "user", past, 401, "signature is already expired"},
		"expiration not signed": {"GET", "hello.txt", sign(token, "hello.txt", "read", "", ""), "", future, 401, "invalid signature"},
		"none":                  {"GET", "hello.txt", "", "", "", 401, "missing signature query parameter"},
		"wrong":                 {"GET", "hello.txt", "v1_x", "", "", 401, "invalid signature"},
		"of another path":       {"GET", "other.txt", sign(token, "hello.txt", "read", "", ""), "", "", 401, "invalid signature"},
		"of another user":       {"GET", "hello.txt", sign(token, "hello.txt", "read", "", ""), "root", "", 401, "invalid signature"},
		"of another token":      {"GET", "hello.txt", sign("x", "hello.txt", "read", "", ""), "", "", 401, "invalid signature"},
		"write with read's":     {"POST", "hello.txt", sign(token, "hello.txt", "read", "", ""), "", "", 401, "invalid signature"},
		"write":                 {"POST", "w.txt", sign(token, "w.txt", "write", "", ""), "", "", 200, ""},
	} {
		query := []string{}
		for k, v := range map[string]string{"signature": tc.sig, "username": tc.user, "signature_expiration": tc.expires} {
			if v != "" {
				query = append(query, k, v)
			}
		}
		var body io.Reader
		if tc.method == "POST" {
			body = strings.NewReader("x")
		}
		a := s.request(t, tc.method, at(tc.path, query...), body, "X-Access-Token", "", "Content-Type", octets)
		equal(t, name+" status", a.status, tc.status)
		if !strings.Contains(a.body, tc.message) {
			t.Errorf("%s: body is %q, want %q", name, a.body, tc.message)
		}
	}
	q := at("hello.txt", "signature", sign(token, "hello.txt", "read", "", ""))
	s.request(t, "GET", q, nil, "X-Access-Token", "wrong").wantError(t, "a wrong token is not saved by a signature", 401)
	s.request(t, "POST", "/files/compose", strings.NewReader("{}"), "X-Access-Token", "").wantError(t, "compose takes no signature", 401)
}
