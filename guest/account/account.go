// Package account answers who a request acts for: users and groups from
// /etc/passwd and /etc/group (parsed here, the guest has no libc), their
// environment and paths, and doing file work with their credentials.
package account

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrUnknown says that no such user exists. Its text is what E2B's clients look for.
var ErrUnknown = errors.New("invalid username")

// ErrNUL says that a path holds a NUL byte.
var ErrNUL = errors.New("path holds a NUL byte; remove it")

// DefaultPath is PATH for a process whose environment sets none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// User is an account inside the sandbox.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary, GID included
	Home   string
	Shell  string
}

// Env is the part of a process's environment that follows from its user.
func (u User) Env() map[string]string {
	return map[string]string{
		"PATH":    DefaultPath,
		"HOME":    u.Home,
		"USER":    u.Name,
		"LOGNAME": u.Name,
		"SHELL":   u.Shell,
	}
}

// Resolve makes path absolute and clean: "~" and "~/x" start at the user's home,
// other relative paths at workdir, or at home when workdir is "".
func (u User) Resolve(path, workdir string) (string, error) {
	if strings.IndexByte(path, 0) >= 0 {
		return "", ErrNUL
	}
	switch {
	case path == "~" || strings.HasPrefix(path, "~/"):
		return filepath.Join(u.home(), path[1:]), nil
	case filepath.IsAbs(path):
		return filepath.Clean(path), nil
	case workdir == "":
		return filepath.Join(u.home(), path), nil
	case workdir == "~" || strings.HasPrefix(workdir, "~/"):
		return filepath.Join(u.home(), workdir[1:], path), nil
	}
	return filepath.Join("/", workdir, path), nil
}

func (u User) home() string {
	if u.Home == "" {
		return "/"
	}
	return u.Home
}

// Root is the account that needs no /etc/passwd.
func Root() User {
	return User{Name: "root", Home: "/root", Shell: "/bin/sh", Groups: []uint32{0}}
}

// Database looks accounts up in a passwd and a group file. It reads them again
// when they change. The zero value is not usable; see NewDatabase.
type Database struct {
	passwd, group string

	mu     sync.Mutex
	stamp  [2]stamp
	users  []User
	groups []group
}

type stamp struct {
	size  int64
	mtime time.Time
}

type group struct {
	name    string
	gid     uint32
	members []string
}

// NewDatabase uses the files passwd and group, e.g. /etc/passwd and /etc/group.
func NewDatabase(passwd, group string) *Database {
	return &Database{passwd: passwd, group: group}
}

// Lookup finds a user by name or decimal uid. A uid without an account is a user
// of that uid in group 0, as container images expect. "root" always exists.
// Otherwise the error wraps ErrUnknown and reads `invalid username: 'x'`.
func (d *Database) Lookup(name string) (User, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.load()
	for _, u := range d.users {
		if u.Name == name {
			return d.withGroups(u), nil
		}
	}
	if name == "root" {
		return Root(), nil
	}
	if uid, err := strconv.ParseUint(name, 10, 32); err == nil {
		for _, u := range d.users {
			if u.UID == uint32(uid) {
				return d.withGroups(u), nil
			}
		}
		return User{Name: name, UID: uint32(uid), Groups: []uint32{0}, Home: "/", Shell: "/bin/sh"}, nil
	}
	return User{}, fmt.Errorf("%w: '%s'", ErrUnknown, name)
}

// UserName is the name of uid, or its decimal form.
func (d *Database) UserName(uid uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.load()
	for _, u := range d.users {
		if u.UID == uid {
			return u.Name
		}
	}
	return strconv.FormatUint(uint64(uid), 10)
}

// GroupName is the name of gid, or its decimal form.
func (d *Database) GroupName(gid uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.load()
	for _, g := range d.groups {
		if g.gid == gid {
			return g.name
		}
	}
	return strconv.FormatUint(uint64(gid), 10)
}

func (d *Database) withGroups(u User) User {
	u.Groups = []uint32{u.GID}
	for _, g := range d.groups {
		if g.gid == u.GID {
			continue
		}
		for _, m := range g.members {
			if m == u.Name {
				u.Groups = append(u.Groups, g.gid)
				break
			}
		}
	}
	return u
}

// load reads what changed since last time. A missing file is an empty one.
func (d *Database) load() {
	if s := stampOf(d.passwd); s != d.stamp[0] {
		d.stamp[0], d.users = s, parsePasswd(read(d.passwd))
	}
	if s := stampOf(d.group); s != d.stamp[1] {
		d.stamp[1], d.groups = s, parseGroup(read(d.group))
	}
}

func stampOf(path string) stamp {
	fi, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	return stamp{fi.Size(), fi.ModTime()}
}

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return string(b)
}

func parsePasswd(text string) []User {
	var users []User
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimRight(line, "\r\n"), ":")
		if len(f) < 7 || f[0] == "" || f[0][0] == '#' {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		u := User{Name: f[0], UID: uint32(uid), GID: uint32(gid), Home: f[5], Shell: f[6]}
		if u.Shell == "" {
			u.Shell = "/bin/sh"
		}
		users = append(users, u)
	}
	return users
}

func parseGroup(text string) []group {
	var groups []group
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimRight(line, "\r\n"), ":")
		if len(f) < 4 || f[0] == "" || f[0][0] == '#' {
			continue
		}
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		groups = append(groups, group{f[0], uint32(gid), strings.Split(f[3], ",")})
	}
	return groups
}

type contextKey struct{}

// NewContext keeps the user a request acts for.
func NewContext(ctx context.Context, u User) context.Context {
	return context.WithValue(ctx, contextKey{}, u)
}

// FromContext gives the user a request acts for; without one it is nobody with
// no rights, so that a missing check fails closed.
func FromContext(ctx context.Context) User {
	if u, ok := ctx.Value(contextKey{}).(User); ok {
		return u
	}
	return User{Name: "nobody", UID: 65534, GID: 65534, Groups: []uint32{65534}, Home: "/", Shell: "/bin/false"}
}
