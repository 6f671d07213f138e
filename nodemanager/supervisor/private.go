package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Private is what a container has for itself when its command runs under its user's own id and root started it.
//
//	node manager ── mount, process and IPC namespace ──► supervisor (root, process 1) ──► command (the user)
//
// The supervisor is the first process of the namespace, so it is the parent of all orphans, sees none but the container's processes, and if it
// is killed the kernel kills them all. The command can neither see nor signal nor trace a process of another container,
// of the same user's neither.
type Private struct {
	// Tmp lies at /tmp and /var/tmp.
	Tmp string `json:"tmp"`
	// Devices are the device files besides everyday ones (null, zero, full, random, urandom, tty and pseudo terminals) that the
	// container has in its /dev.
	Devices []string `json:"devices,omitempty"`
	// Shared bounds /dev/shm in bytes; 0: half of the memory. What is written there counts as memory of the container.
	Shared int64 `json:"shared,omitempty"`
}

// everyday are the device files that every container has.
var everyday = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}

// openPrivate holds what is to be shown under other names, before anything is covered.
type openPrivate struct {
	*Private
	tmp     int
	devices map[string]int
}

// temporary are the directories over which Private.Tmp lies.
var temporary = []string{"/tmp", "/var/tmp"}

// open takes hold of directories and devices; nil if there is nothing private.
func (p *Private) open() (o *openPrivate, err error) {
	if p == nil {
		return nil, nil
	}
	o = &openPrivate{Private: p, tmp: -1, devices: map[string]int{}}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	if o.tmp, err = unix.Open(p.Tmp, unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0); err != nil {
		return o, fmt.Errorf("%s: %w", p.Tmp, err)
	}
	for i, path := range append(everyday[:len(everyday):len(everyday)], p.Devices...) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(err, fs.ErrNotExist) && i < len(everyday) {
			continue
		}
		if err != nil {
			return o, fmt.Errorf("device %s: %w", path, err)
		}
		o.devices[path] = fd
		if !within(path, "/dev") {
			return o, fmt.Errorf("device %s is not below /dev", path)
		}
	}
	return o, nil
}

func (o *openPrivate) close() {
	if o == nil {
		return
	}
	for _, fd := range o.devices {
		unix.Close(fd)
	}
	if o.tmp >= 0 {
		unix.Close(o.tmp)
	}
}

// disks are the block devices to hide; a private /dev has none.
func (o *openPrivate) disks() []string {
	if o != nil {
		return nil
	}
	return blockDevices()
}

// covers are the directories that are covered by what is private.
func (o *openPrivate) covers() []string {
	if o == nil {
		return nil
	}
	return temporary
}

func (o *openPrivate) mountTemporary() error {
	if o == nil {
		return nil
	}
	for _, dir := range temporary {
		err := unix.Mount("/proc/self/fd/"+strconv.Itoa(o.tmp), dir, "", unix.MS_BIND, "")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("private %s: %w", dir, err)
		}
	}
	return nil
}

// mount makes /proc, which shows the processes of the namespace only, and of those the user's own, and /dev.
func (o *openPrivate) mount() error {
	if o == nil {
		return nil
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "hidepid=2"); err != nil {
		return fmt.Errorf("private /proc: %w", err)
	}
	if err := unix.Mount("dev", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=64k,nr_inodes=1000"); err != nil {
		return fmt.Errorf("private /dev: %w", err)
	}
	for path, fd := range o.devices {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		point, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		point.Close()
		if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("private %s: %w", path, err)
		}
	}
	size := ""
	if o.Shared > 0 {
		size = ",size=" + strconv.FormatInt(o.Shared, 10)
	}
	for _, m := range []struct{ dir, kind, options string }{
		{"/dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=0620"},
		{"/dev/shm", "tmpfs", "mode=1777" + size},
		{"/dev/mqueue", "mqueue", ""},
	} {
		if err := os.Mkdir(m.dir, 0o755); err != nil {
			return err
		}
		err := unix.Mount(m.kind, m.dir, m.kind, unix.MS_NOSUID|unix.MS_NOEXEC, m.options)
		if err != nil && m.kind != "mqueue" { // which not every kernel has
			return fmt.Errorf("private %s: %w", m.dir, err)
		}
	}
	for name, to := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(to, filepath.Join("/dev", name)); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/dev", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("private /dev: %w", err)
	}
	return nil
}
