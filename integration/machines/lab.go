// Package machines makes a group of machines out of one: each is a network, mount, process, IPC and hostname namespace of its own with
// a network card on a common bridge and a root directory of its own, which is this machine's with what it writes kept apart. Needs root, and changes
// nothing outside: everything, the bridge too, is in namespaces that end with the process that made them, however it ends.
package machines

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The environment says which of a lab's processes this one is.
const (
	roleVariable = "HOPS_MACHINES"
	roleFirst    = "first"   // process 1 of the lab
	roleInside   = "inside"  // the program itself, in the lab
	roleMachine  = "machine" // process 1 of a machine
)

// Main does what this process is for, if it is one of a lab's own; otherwise it returns. It has to be called first in main and in TestMain.
func Main() {
	var err error
	switch os.Getenv(roleVariable) {
	case roleFirst:
		err = first()
	case roleMachine:
		err = machine()
	default:
		return
	}
	fmt.Fprintln(os.Stderr, "machines:", err)
	os.Exit(1)
}

// ErrNotRoot: namespaces with a network and a root directory take root.
var ErrNotRoot = errors.New("needs root, to make network namespaces and mounts (sudo make cluster)")

// Inside reports whether this process is in a lab already, where New works.
func Inside() bool { return os.Getenv(roleVariable) == roleInside }

// Enter runs this program again, with the same arguments, in a new lab, and returns its exit status. When it returns, or this process
// dies, nothing of the lab is left.
func Enter(ctx context.Context) (int, error) {
	if os.Geteuid() != 0 {
		return 0, ErrNotRoot
	}
	for _, program := range []string{"ip", "nsenter", "runuser", "dpkg", "useradd"} {
		if _, err := exec.LookPath(program); err != nil {
			return 0, fmt.Errorf("%s is not installed (Debian: apt install iproute2 util-linux dpkg passwd)", program)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	runtime.LockOSThread() // the lab dies with the thread that made it
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleFirst)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC, Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Run(); err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
			return exit.ExitCode(), nil
		}
		return 0, fmt.Errorf("the lab: %w", err)
	}
	return 0, nil
}

// first is process 1 of the lab: it makes the mounts, runs the program and takes up who is left behind.
func first() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleInside)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case pid == cmd.Process.Pid && status.Exited():
			os.Exit(status.ExitStatus())
		case pid == cmd.Process.Pid:
			os.Exit(128 + int(status.Signal()))
		}
	}
}

// Lab is the network with its machines. Its methods are for one goroutine at a time.
type Lab struct {
	dir      string
	machines []*Machine
}

// The bridge and its networks.
const (
	bridge   = "hops0"
	network4 = "10.88.0."
	network6 = "fd00:88::"
)

// New makes the network of this lab and the root directory that its machines have in common, into which prepare may install. It has to be
// called within Enter.
func New(ctx context.Context, prepare ...func(root string) error) (*Lab, error) {
	if !Inside() {
		return nil, errors.New("not in a lab: call Enter")
	}
	l := &Lab{dir: "/mnt"} // of this mount namespace alone
	if err := unix.Mount("machines", l.dir, "tmpfs", 0, "mode=0711"); err != nil {
		return nil, fmt.Errorf("mount %s: %w", l.dir, err)
	}
	for _, words := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", bridge, "type", "bridge"},
		{"addr", "add", network4 + "254/24", "dev", bridge},
		{"addr", "add", network6 + "fe/64", "dev", bridge, "nodad"},
		{"link", "set", bridge, "up"},
	} {
		if err := ip(ctx, words...); err != nil {
			return nil, err
		}
	}
	root := filepath.Join(l.dir, "root")
	if err := errors.Join(os.MkdirAll(root, 0o755), overlay(filepath.Join(l.dir, "base"), "/", root)); err != nil {
		return nil, err
	}
	proc := filepath.Join(root, "proc")
	if err := unix.Mount("proc", proc, "proc", 0, ""); err != nil {
		return nil, fmt.Errorf("mount %s: %w", proc, err)
	}
	for _, f := range prepare {
		if err := f(root); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(unix.Unmount(proc, 0), unix.Unmount(root, 0)); err != nil {
		return nil, fmt.Errorf("unmount %s: %w", root, err)
	}
	return l, nil
}

// Deb installs a package.
func Deb(ctx context.Context, path string) func(root string) error {
	return func(root string) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		inside := filepath.Join(root, "var", "cache", "hops.deb")
		if err := os.WriteFile(inside, text, 0o644); err != nil {
			return err
		}
		return errors.Join(chroot(ctx, root, "dpkg", "--install", "/var/cache/hops.deb"), os.Remove(inside))
	}
}

// File puts a file of root's in place of the one that is there.
func File(from, to string, mode os.FileMode) func(root string) error {
	return func(root string) error {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		at := filepath.Join(root, to)
		return errors.Join(os.WriteFile(at, text, mode), os.Chmod(at, mode))
	}
}

// User adds a user with a home directory.
func User(ctx context.Context, name string, uid int) func(root string) error {
	return func(root string) error {
		return chroot(ctx, root, "useradd", "--create-home", "--user-group", "--shell", "/bin/sh", "--uid", fmt.Sprint(uid), name)
	}
}

func chroot(ctx context.Context, root string, words ...string) error {
	cmd := exec.CommandContext(ctx, "chroot", append([]string{root}, words...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(words, " "), err, out)
	}
	return nil
}

// overlay mounts at root what lies in lower, from the top down and parted by colons, with changes going to dir.
func overlay(dir, lower, root string) error {
	upper, work := filepath.Join(dir, "upper"), filepath.Join(dir, "work")
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
		return err
	}
	if err := unix.Mount("overlay", root, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work); err != nil {
		return fmt.Errorf("mount an overlay of %s: %w", lower, err)
	}
	return nil
}

func ip(ctx context.Context, words ...string) error {
	if out, err := exec.CommandContext(ctx, "ip", words...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(words, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Machines are those of the lab, in the order in which they were added.
func (l *Lab) Machines() []*Machine { return l.machines }

// hosts is /etc/hosts: every machine of the lab by name.
func (l *Lab) hosts() string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
	for _, m := range l.machines {
		fmt.Fprintf(&b, "%s %s\n%s %s\n", m.Address, m.Name, m.Address6, m.Name)
	}
	return b.String()
}

// Add makes machines of these names and starts them. The names are known in all of them.
func (l *Lab) Add(ctx context.Context, names ...string) error {
	for _, name := range names {
		n := len(l.machines) + 1
		if n > 200 {
			return errors.New("no more than 200 machines")
		}
		m := &Machine{
			Name: name, lab: l, number: n, dir: filepath.Join(l.dir, name),
			Address: netip.MustParseAddr(fmt.Sprintf("%s%d", network4, n)), Address6: netip.MustParseAddr(fmt.Sprintf("%s%x", network6, n)),
		}
		if err := os.MkdirAll(filepath.Join(m.dir, "root"), 0o755); err != nil {
			return err
		}
		l.machines = append(l.machines, m)
	}
	for _, m := range l.machines {
		if m.process == nil {
			if err := m.Boot(ctx); err != nil {
				return err
			}
			continue
		}
		if err := m.Write("/etc/hosts", l.hosts(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
