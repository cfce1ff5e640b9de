package layers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// New makes an empty layer that is still open: a sandbox's upper. Its owner
// writes to it until it is stacked below another; from then on it is a layer like
// any other, so freezing is the owner's journal row and moves nothing. Measure
// then fills in its size.
func (s *Store) New(ctx context.Context) (Layer, error) {
	if err := ctx.Err(); err != nil {
		return Layer{}, fmt.Errorf("new layer: %w", err)
	}
	l := Layer{ID: NewID(), Created: time.Now().UTC(), Bytes: -1, Inodes: -1}
	dir := filepath.Join(s.dir, l.ID)
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = errors.Join(os.Mkdir(filepath.Join(dir, filesName), 0o755), s.add(l), syncDir(s.dir))
	}
	if err != nil {
		return Layer{}, errors.Join(fmt.Errorf("new layer %s: %w", l.ID, err), os.RemoveAll(dir))
	}
	return l, nil
}
