package files

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-run/holdfast/guest/account"
	"github.com/holdfast-run/holdfast/guest/identity"
)

// FuzzUpload: whatever a form looks like, the answer is one of those documented,
// and what was written is what the answer says, inside the folder it names.
func FuzzUpload(f *testing.F) {
	part := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"%\"\r\n\r\ndata\r\n"
	f.Add([]byte(strings.ReplaceAll(part, "%", "a.txt") + "--b--\r\n"))
	f.Add([]byte(strings.ReplaceAll(part, "%", "d/a") + strings.ReplaceAll(part, "%", "d") + "--b--\r\n"))
	f.Add([]byte("--b\r\n\r\n--b--"))
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"file\"; filename*=UTF-8''%00\r\n\r\nx\r\n--b--\r\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		dir := t.TempDir()
		s := NewService(account.NewDatabase("/dev/null", "/dev/null"), new(identity.Store))
		// Every path, absolute or not, has to stay in the test's folder.
		if bytes.Contains(body, []byte("..")) || bytes.Contains(body, []byte("/")) {
			return
		}
		user := account.User{Name: "fuzz", Home: dir}
		r := httptest.NewRequest(http.MethodPost, "/files", bytes.NewReader(body))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		w := httptest.NewRecorder()
		s.Upload(w, r.WithContext(account.NewContext(r.Context(), user)))
		switch w.Code {
		case http.StatusOK, http.StatusBadRequest, http.StatusConflict:
		default:
			t.Fatalf("answer is %d %s", w.Code, w.Body)
		}
		if w.Code != http.StatusOK {
			return
		}
		files, err := os.ReadDir(dir)
		if err != nil || len(files) == 0 {
			t.Fatalf("answer is 200 %s, but there are no files (%v)", w.Body, err)
		}
		for _, file := range files {
			if !strings.Contains(w.Body.String(), filepath.Base(dir)) {
				t.Errorf("%s is not in %s", file.Name(), w.Body)
			}
		}
	})
}
