package image

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/holdfast-run/holdfast/layers/tree"
)

// The account that commands in a sandbox run as unless a caller says otherwise.
// E2B's clients expect this name, with this uid where it is free.
const (
	UserName = "user"
	UserHome = "/home/user"
	firstID  = 1000
	lastID   = 59999
)

// account is what Prepare needs to know about a user of the image.
type account struct {
	uid, gid int
	home     string
}

// maxTextFile bounds what is read of an account file: a real one has kilobytes.
const maxTextFile = 4 << 20

// table is a file of lines of fields with colons between: passwd, group, shadow.
type table struct {
	name  string
	attr  tree.Attr
	lines [][]string
	found bool
}

func readTable(root *tree.Root, name string, attr tree.Attr) (table, error) {
	t := table{name: name, attr: attr}
	data, err := root.ReadFile(name, maxTextFile)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	st, err := root.Stat(name)
	if err != nil {
		return t, err
	}
	t.found = true
	t.attr = tree.Attr{Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid)}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			t.lines = append(t.lines, strings.Split(line, ":"))
		}
	}
	return t, nil
}

func (t *table) write(root *tree.Root) error {
	var b bytes.Buffer
	for _, fields := range t.lines {
		b.WriteString(strings.Join(fields, ":"))
		b.WriteByte('\n')
	}
	return root.Replace(t.name, t.attr, &b)
}

// find gives the line whose first field is name, or nil.
func (t *table) find(name string) []string {
	for _, fields := range t.lines {
		if fields[0] == name {
			return fields
		}
	}
	return nil
}

func (t *table) add(fields ...string) { t.lines = append(t.lines, fields) }

// free gives the first id from firstID on that no table has in its third field.
func free(tables ...table) (int, error) {
	taken := map[string]bool{}
	for _, t := range tables {
		for _, fields := range t.lines {
			if len(fields) > 2 {
				taken[fields[2]] = true
			}
		}
	}
	for id := firstID; id <= lastID; id++ {
		if !taken[strconv.Itoa(id)] {
			return id, nil
		}
	}
	return 0, fmt.Errorf("no user id between %d and %d is free", firstID, lastID)
}

// ensureUser finds the account UserName in the image or makes it, with a group
// of its own name and, where the id is free, the id firstID.
func ensureUser(root *tree.Root) (account, error) {
	passwd, err := readTable(root, "etc/passwd", tree.Attr{Mode: 0o644})
	if err != nil {
		return account{}, err
	}
	group, err := readTable(root, "etc/group", tree.Attr{Mode: 0o644})
	if err != nil {
		return account{}, err
	}
	if fields := passwd.find(UserName); len(fields) >= 6 {
		uid, uerr := strconv.Atoi(fields[2])
		gid, gerr := strconv.Atoi(fields[3])
		if err := errors.Join(uerr, gerr); err != nil {
			return account{}, fmt.Errorf("etc/passwd: user %s: %w", UserName, err)
		}
		return account{uid, gid, firstOf(fields[5], UserHome)}, nil
	}
	if passwd.find("root") == nil {
		passwd.add("root", "x", "0", "0", "root", "/root", shell(root))
	}
	if group.find("root") == nil {
		group.add("root", "x", "0", "")
	}
	uid, err := free(passwd, group)
	if err != nil {
		return account{}, err
	}
	a := account{uid: uid, gid: uid, home: UserHome}
	if fields := group.find(UserName); len(fields) >= 3 {
		if a.gid, err = strconv.Atoi(fields[2]); err != nil {
			return account{}, fmt.Errorf("etc/group: group %s: %w", UserName, err)
		}
	} else {
		group.add(UserName, "x", strconv.Itoa(a.gid), "")
	}
	passwd.add(UserName, "x", strconv.Itoa(a.uid), strconv.Itoa(a.gid), "", UserHome, shell(root))
	for _, t := range []table{passwd, group} {
		if err := t.write(root); err != nil {
			return account{}, err
		}
	}
	return a, lockPasswords(root)
}

// lockPasswords gives the new account no password where the image has shadow
// files. "*" never matches one and, unlike "!", does not count as locked for sshd.
func lockPasswords(root *tree.Root) error {
	for _, f := range []struct {
		name   string
		fields []string
	}{
		{"etc/shadow", []string{UserName, "*", "19000", "0", "99999", "7", "", "", ""}},
		{"etc/gshadow", []string{UserName, "!", "", ""}},
	} {
		t, err := readTable(root, f.name, tree.Attr{Mode: 0o640})
		if err != nil {
			return err
		}
		if !t.found || t.find(UserName) != nil {
			continue
		}
		t.add(f.fields...)
		if err := t.write(root); err != nil {
			return err
		}
	}
	return nil
}

// shell gives the best login shell that the image has.
func shell(root *tree.Root) string {
	for _, s := range []string{"/bin/bash", "/usr/bin/bash"} {
		if _, err := root.Stat(s); err == nil {
			return s
		}
	}
	return "/bin/sh"
}
