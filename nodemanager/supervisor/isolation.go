package supervisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Isolation keeps what belongs to the servers from a container that runs under their user id. It needs no privilege.
//
//	node manager ── user and mount namespace 1 ──► supervisor: puts empty files and directories over the hidden paths
//	                                                  └── user and mount namespace 2 ──► command
//
// The command is in a user namespace below the supervisor's, so that its mounts are locked (mount_namespaces(7): nothing
// that a more privileged namespace mounted can be taken away one by one, by whatever namespace it makes for itself) and so
// that the kernel lets it look into no process outside of it (ptrace(2): root, cwd, fd, environ, mem in /proc). Every user
// and group id stands for itself, so files have the owners that they have, and devices are as usable as before.
type Isolation struct {
	// Hide are files and directories, absolute; what is not there is not hidden.
	Hide []string `json:"hide"`
	// Show are files and directories that stay, even below a hidden one.
	Show []string `json:"show"`
	// ShowReadOnly are like Show, but nobody in the container can change them.
	ShowReadOnly []string `json:"show_read_only,omitempty"`
	// Private is what a command under another user id than the servers' has for itself. Only root may give it.
	Private *Private `json:"private,omitempty"`
}

// attributes are those of a process in namespaces of its own. One that is to mount keeps the right to over its start.
func (i *Isolation) attributes(attr *syscall.SysProcAttr, mounts bool) {
	if i.Private != nil {
		if mounts { // the command shares what its supervisor has, and has no privilege to change it
			attr.Cloneflags |= unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC
		}
		return
	}
	attr.Cloneflags |= unix.CLONE_NEWUSER | unix.CLONE_NEWNS
	attr.UidMappings, attr.GidMappings = ownID(os.Geteuid()), ownID(os.Getegid())
	if os.Geteuid() == 0 {
		if uids, gids := allIDs("uid_map"), allIDs("gid_map"); uids != nil && gids != nil {
			attr.UidMappings, attr.GidMappings, attr.GidMappingsEnableSetgroups = uids, gids, true
		}
	}
	if mounts {
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
}

func ownID(id int) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
}

// allIDs maps every id that exists here to itself (user_namespaces(7)).
func allIDs(file string) []syscall.SysProcIDMap {
	text, err := os.ReadFile("/proc/self/" + file)
	if err != nil {
		return nil
	}
	var all []syscall.SysProcIDMap
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil
		}
		id, err1 := strconv.Atoi(fields[0])
		n, err2 := strconv.Atoi(fields[2])
		if err1 != nil || err2 != nil {
			return nil
		}
		all = append(all, syscall.SysProcIDMap{ContainerID: id, HostID: id, Size: n})
	}
	return all
}

// enter hides what is to be hidden, in a process that was started with namespaces of its own.
func (i *Isolation) enter() error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	private, err := i.Private.open()
	if err != nil {
		return err
	}
	defer private.close()
	var hide []string
	for _, path := range append(slices.Clone(i.Hide), private.disks()...) {
		real, err := filepath.EvalSymlinks(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
		hide = append(hide, mounts.aliases(real)...)
	}
	slices.Sort(hide) // parents first
	hide = slices.Compact(hide)
	type shown struct {
		path     string
		fd       int
		dir      bool
		readOnly bool
	}
	var show []shown
	for n, path := range append(slices.Clone(i.Show), i.ShowReadOnly...) {
		real, err := filepath.EvalSymlinks(path)
		if err != nil || !slices.ContainsFunc(append(hide, private.covers()...), func(h string) bool { return within(real, h) }) {
			continue
		}
		info, err := os.Stat(real)
		if err != nil {
			continue
		}
		fd, err := unix.Open(real, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("show %s: %w", real, err)
		}
		defer unix.Close(fd)
		show = append(show, shown{real, fd, info.IsDir(), n >= len(i.Show)})
	}
	if err := private.mountTemporary(); err != nil {
		return err
	}
	c := cover{}
	for _, dirs := range []bool{true, false} { // directories first: a file below one is hidden with it
		for _, path := range hide {
			if info, err := os.Lstat(path); err != nil || info.IsDir() != dirs || slices.Contains(c.dirs, path) {
				continue
			}
			if err := c.hide(path); err != nil {
				return fmt.Errorf("hide %s: %w", path, err)
			}
		}
	}
	for _, s := range show {
		if err := c.place(s.path, s.dir); err != nil {
			return fmt.Errorf("show %s: %w", s.path, err)
		}
		if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(s.fd), s.path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("show %s: %w", s.path, err)
		}
		if s.readOnly {
			if err := readOnly(s.path); err != nil {
				return fmt.Errorf("show %s for reading only: %w", s.path, err)
			}
		}
		for _, path := range hide { // what the mount has brought back
			if path != s.path && within(path, s.path) {
				if err := c.hide(path); err != nil {
					return fmt.Errorf("hide %s: %w", path, err)
				}
			}
		}
	}
	for _, dir := range c.dirs {
		flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV)
		if err := unix.Mount("", dir, "", flags, ""); err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	return private.mount()
}

// readOnly lets nobody write through a mount. What else is denied there stays denied: in a user namespace of our own we could not
// allow it (mount_namespaces(7)).
func readOnly(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return err
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY)
	for _, f := range []struct{ has, mount uintptr }{
		{unix.ST_NOSUID, unix.MS_NOSUID},
		{unix.ST_NODEV, unix.MS_NODEV},
		{unix.ST_NOEXEC, unix.MS_NOEXEC},
		{unix.ST_NOATIME, unix.MS_NOATIME},
		{unix.ST_NODIRATIME, unix.MS_NODIRATIME},
		{unix.ST_RELATIME, unix.MS_RELATIME},
	} {
		if uintptr(st.Flags)&f.has != 0 {
			flags |= f.mount
		}
	}
	return unix.Mount("", path, "", flags, "")
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// cover puts empty things over paths.
type cover struct {
	dirs []string // that are empty now
}

func (c *cover) hide(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // below a hidden directory
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		c.dirs = append(c.dirs, path)
		return unix.Mount("hidden", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,nr_inodes=1000,mode=0755")
	}
	return unix.Mount(c.file(), path, "", unix.MS_BIND, "")
}

// file is an empty one that nobody may read, in the first hidden directory.
func (c *cover) file() string {
	if len(c.dirs) > 0 {
		name := filepath.Join(c.dirs[0], ".hidden")
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0)
		if err == nil {
			f.Close()
		}
		if err == nil || errors.Is(err, fs.ErrPermission) { // made before
			return name
		}
	}
	return os.DevNull
}

// place makes a mount point in what is hidden.
func (c *cover) place(path string, dir bool) error {
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if dir {
		return os.MkdirAll(path, 0o711)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// blockDevices are the disks that this user may read, as root may: all that is hidden is on them.
func blockDevices() []string {
	names, _ := os.ReadDir("/sys/class/block")
	var all []string
	for _, n := range names {
		dev := "/dev/" + strings.ReplaceAll(n.Name(), "!", "/")
		if unix.Access(dev, unix.R_OK) == nil {
			all = append(all, dev)
		}
	}
	return all
}

// mountTable is what is mounted where (proc(5), mountinfo).
type mountTable []mountEntry

type mountEntry struct{ device, root, at string }

func readMounts() (mountTable, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(string(text)), nil
}

func parseMounts(text string) mountTable {
	var table mountTable
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) >= 5 {
			table = append(table, mountEntry{fields[2], unescape.Replace(fields[3]), unescape.Replace(fields[4])})
		}
	}
	return table
}

// aliases are all names of a path: its own, and those through other mounts of the same filesystem. The whole filesystem,
// or a part of it, may be mounted twice.
func (t mountTable) aliases(path string) []string {
	var own mountEntry
	for _, m := range t {
		if within(path, m.at) && len(m.at) >= len(own.at) {
			own = m // a later one lies on top
		}
	}
	names := []string{path}
	if own.at == "" {
		return names
	}
	inside := filepath.Join(own.root, strings.TrimPrefix(path, strings.TrimSuffix(own.at, "/")))
	for _, m := range t {
		switch {
		case m.device != own.device:
		case within(inside, m.root):
			names = append(names, filepath.Join(m.at, strings.TrimPrefix(inside, strings.TrimSuffix(m.root, "/"))))
		case within(m.root, inside): // a part of what is hidden
			names = append(names, m.at)
		}
	}
	return names
}

// tryIsolation is the argument with which the program finds out whether this kernel isolates.
const (
	tryIsolation = "--try-isolation"
	tryCommand   = "--try-command"
)

// TryIsolation says why containers cannot be isolated here; nil: they can. argv is the prefix that starts a supervisor,
// dir a directory that may be hidden for the attempt.
//
// Error: context.DeadlineExceeded, among others, when the attempt took too long to say anything.
func TryIsolation(ctx context.Context, argv []string, dir string) error {
	return try(ctx, argv, &Isolation{Hide: []string{dir}})
}

// TryPrivate is TryIsolation for containers that have a Private, which lies in dir.
func TryPrivate(ctx context.Context, argv []string, dir string) error {
	return try(ctx, argv, &Isolation{Hide: []string{dir}, Private: &Private{Tmp: dir}})
}

func try(ctx context.Context, argv []string, i *Isolation) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, argv[0], append(slices.Clone(argv[1:]), tryIsolation, string(text))...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	i.attributes(cmd.SysProcAttr, true)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("the attempt to isolate a process did not end: %w", ctx.Err())
	}
	said := strings.TrimSpace(string(out))
	return fmt.Errorf("the kernel does not give this user namespaces: %s", cmp.Or(said, err.Error()))
}

// attempt is the supervisor's part of TryIsolation, in its namespaces.
func attempt(text string) error {
	i := new(Isolation)
	if err := json.Unmarshal([]byte(text), i); err != nil {
		return err
	}
	if err := i.enter(); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1], tryCommand)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	i.attributes(cmd.SysProcAttr, false)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w %s", err, out)
	}
	return nil
}
