package keys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// readOrCreate gives the secret kept in path, or keeps the one that make gives.
// The file appears whole or not at all, and of two processes that create it at
// once both use the same one: link fails where a file exists already.
func readOrCreate(path string, check func(string) bool, make func() string) (string, error) {
	for {
		raw, err := os.ReadFile(path)
		if err == nil {
			s := strings.TrimSpace(string(raw))
			if !check(s) {
				return "", fmt.Errorf("secret file %s is damaged; restore it, or remove it to have a new one made", path)
			}
			// A copy or an editor may have widened the mode.
			if err := os.Chmod(path, 0o600); err != nil {
				return "", fmt.Errorf("protect secret file: %w", err)
			}
			return s, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("read secret file: %w", err)
		}
		if err := create(path, make()+"\n"); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("create secret file: %w", err)
		}
	}
}

// create writes a new file of mode 0600, durable when it returns; fs.ErrExist
// when there is one.
func create(path, content string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".new-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(content)
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
