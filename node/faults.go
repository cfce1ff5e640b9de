package node

import (
	"errors"

	"golang.org/x/sys/unix"
)

// isNoSpace tells whether a write failed for lack of space or quota.
func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
