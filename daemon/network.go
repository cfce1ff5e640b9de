package daemon

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/holdfast-run/holdfast/network"
	"github.com/holdfast-run/holdfast/node"
)

// links shows the network to the node.
type links struct {
	*network.Manager
	log *slog.Logger
}

func (l links) Sync(ctx context.Context, used map[int]network.Policy) error {
	done, err := l.Manager.Sync(ctx, used)
	if len(done.Rebuilt)+len(done.Removed) > 0 {
		l.log.Info("network made whole", "rebuilt", len(done.Rebuilt), "removed", len(done.Removed))
	}
	return err
}

func (l links) Leftovers() ([]string, error) {
	slots, err := l.Manager.Leftovers()
	names := make([]string, len(slots))
	for i, n := range slots {
		names[i] = fmt.Sprintf("network slot %d (%s)", n, l.Addr(n))
	}
	return names, err
}

var _ node.Network = links{}
