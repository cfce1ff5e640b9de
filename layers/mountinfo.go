package layers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// overlay is one overlay mount as the kernel lists it.
type overlay struct {
	target string
	lower  []string // as given at the mount, top first
	upper  string
}

// overlays lists this mount namespace's overlay mounts.
func overlays() ([]overlay, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var list []overlay
	for line := range bytes.Lines(data) {
		if o, ok := parseMountinfo(string(line)); ok {
			list = append(list, o)
		}
	}
	return list, nil
}

// parseMountinfo reads one line of proc_pid_mountinfo(5):
// id parent dev root target options [tags…] - type source superoptions
func parseMountinfo(line string) (overlay, bool) {
	left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
	if !ok {
		return overlay{}, false
	}
	l, r := strings.Fields(left), strings.Fields(right)
	if len(l) < 6 || len(r) < 3 || r[0] != "overlay" {
		return overlay{}, false
	}
	o := overlay{target: unescape(l[4])}
	for _, opt := range splitOptions(r[2], ',') {
		k, v, _ := strings.Cut(opt, "=")
		switch k {
		case "lowerdir": // all in one, the way we mount
			for _, d := range splitOptions(v, ':') {
				o.lower = append(o.lower, plain(d))
			}
		case "lowerdir+": // one each, what newer kernels may show
			o.lower = append(o.lower, plain(v))
		case "upperdir":
			o.upper = plain(v)
		}
	}
	return o, true
}

// unescape undoes the octal escapes of /proc files (\040 for a space).
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// splitOptions cuts at sep where no backslash stands before it.
func splitOptions(s string, sep byte) []string {
	var list []string
	start := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case sep:
			list = append(list, s[start:i])
			start = i + 1
		}
	}
	return append(list, s[start:])
}

// plain undoes both escapes of an option: /proc's octal ones and overlayfs's
// backslash before a comma, colon or backslash.
func plain(s string) string {
	s = unescape(s)
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Mounts lists where overlays are mounted at or under a folder, deepest first,
// the order in which to unmount them.
func Mounts(prefix string) ([]string, error) {
	prefix, err := filepath.Abs(prefix)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	all, err := overlays()
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var list []string
	for _, o := range all {
		if o.target == prefix || strings.HasPrefix(o.target, strings.TrimSuffix(prefix, "/")+"/") {
			list = append(list, o.target)
		}
	}
	slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) })
	return list, nil
}

// mounted gives a mount that shows the layer, or "".
func (s *Store) mounted(id string) (string, error) {
	all, err := overlays()
	if err != nil {
		return "", err
	}
	for _, o := range all {
		if slices.Contains(o.lower, id+"/"+filesName) || slices.Contains(o.lower, s.Path(id)) {
			return o.target, nil
		}
	}
	return "", nil
}

// isMountpoint tells whether something is mounted at path. It asks for the path
// alone: reading the whole mount table costs milliseconds on a busy machine.
func isMountpoint(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}
