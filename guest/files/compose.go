package files

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/holdfast-run/holdfast/guest/account"
)

// maxComposeBody bounds the request of Compose, in bytes.
const maxComposeBody = 1 << 20

// Compose serves POST /files/compose: it joins files into one and removes them.
// The joined file replaces the destination only when it is complete.
func (s *Service) Compose(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Sources     []string `json:"source_paths"`
		Destination string   `json:"destination"`
		Username    string   `json:"username"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxComposeBody)).Decode(&req); err != nil {
		Fail(w, http.StatusBadRequest, "body cannot be read: "+err.Error())
		return
	}
	u, ok := s.userOf(w, r, req.Username)
	if !ok {
		return
	}
	written, err := s.compose(r.Context(), u, req.Sources, req.Destination)
	if err != nil {
		fail(w, req.Destination, err)
		return
	}
	answer(w, http.StatusOK, written)
}

func (s *Service) compose(ctx context.Context, u account.User, sources []string, destination string) (*Written, error) {
	if len(sources) == 0 || destination == "" {
		return nil, invalid("source_paths and destination must not be empty")
	}
	to, err := s.resolve(u, destination)
	if err != nil {
		return nil, err
	}
	from := make([]string, len(sources))
	for i, path := range sources {
		if from[i], err = s.resolve(u, path); err != nil {
			return nil, err
		}
	}
	// In the destination's folder, so that the last step is a rename.
	part := filepath.Join(filepath.Dir(to), "."+filepath.Base(to)+".compose")
	out, _, err := create(u, part)
	if err != nil {
		return nil, classify(to, err)
	}
	err = s.join(ctx, u, out, from)
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = u.Do(func() error { return os.Rename(part, to) })
	}
	if err != nil {
		_ = u.Do(func() error { return os.Remove(part) })
		return nil, classify(to, err)
	}
	err = u.Do(func() (err error) {
		for _, path := range from {
			if path != to {
				err = errors.Join(err, os.Remove(path))
			}
		}
		return err
	})
	if err != nil {
		return nil, classify(to, err)
	}
	return &Written{Path: to, Name: filepath.Base(to), Type: "file"}, nil
}

func (s *Service) join(ctx context.Context, u account.User, out *os.File, from []string) error {
	for _, path := range from {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		in, _, err := openRegular(u, path)
		if err != nil {
			return classify(path, err)
		}
		_, err = io.Copy(out, in) // copy_file_range where the file system has it
		_ = in.Close()
		if err != nil {
			return classify(path, err)
		}
	}
	return nil
}
