package machines

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Machine is one machine of a lab. What it wrote is there again after Boot.
type Machine struct {
	Name string
	// Address and Address6 are those on the lab's network.
	Address, Address6 netip.Addr

	lab     *Lab
	number  int
	dir     string
	process *exec.Cmd // its process 1; nil: switched off
}

// boot is what a machine's process 1 is told.
type boot struct {
	Name, Root, Dir, Lower, Hosts string
}

const machineReady = "ready"

// Boot switches the machine on.
func (m *Machine) Boot(ctx context.Context) error {
	if m.process != nil {
		return fmt.Errorf("%s is on", m.Name)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	order, err := json.Marshal(boot{
		Name: m.Name, Root: filepath.Join(m.dir, "root"), Dir: m.dir, Lower: filepath.Join(m.lab.dir, "base", "upper") + ":/", Hosts: m.lab.hosts(),
	})
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = []string{roleVariable + "=" + roleMachine}
	cmd.Stdin = bytes.NewReader(order)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Setsid:     true, // Ctrl-C is for the program, which ends the lab
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", m.Name, err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != machineReady {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("%s does not start: %w: %s", m.Name, errors.Join(err), said.String())
	}
	m.process = cmd
	pid := fmt.Sprint(cmd.Process.Pid)
	inside := fmt.Sprintf("hops-in%d", m.number)
	for _, words := range [][]string{
		{"link", "add", m.card(), "type", "veth", "peer", "name", inside, "address", fmt.Sprintf("02:88:00:00:00:%02x", m.number)}, // a machine that lost power has the card that it had
		{"link", "set", inside, "netns", pid, "name", "eth0"},
		{"link", "set", m.card(), "master", bridge, "up"},
	} {
		if err := ip(ctx, words...); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	for _, words := range [][]string{
		{"link", "set", "lo", "up"},
		{"addr", "add", m.Address.String() + "/24", "dev", "eth0"},
		{"addr", "add", m.Address6.String() + "/64", "dev", "eth0", "nodad"},
		{"link", "set", "eth0", "up"},
		{"route", "add", "default", "via", network4 + "254"}, // nothing is behind it; programs find their address by it
		{"-6", "route", "add", "default", "via", network6 + "fe"},
	} {
		if out, err := m.Command(ctx, "root", append([]string{"ip"}, words...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: ip %s: %w: %s", m.Name, strings.Join(words, " "), err, out)
		}
	}
	return nil
}

// card is the bridge's end of the machine's cable.
func (m *Machine) card() string { return fmt.Sprintf("hops-m%d", m.number) }

// machine is process 1 of a machine: it makes the root directory and then takes up who is left behind, until it is killed.
func machine() error {
	var b boot
	if err := json.NewDecoder(io.LimitReader(os.Stdin, 1<<20)).Decode(&b); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := overlay(b.Dir, b.Lower, b.Root); err != nil {
		return err
	}
	at := func(path string) string { return filepath.Join(b.Root, path) }
	for _, mount := range []struct {
		source, target, kind string
		flags                uintptr
		options              string
	}{
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", unix.MS_RDONLY, ""},
		{"/dev", "/dev", "", unix.MS_BIND | unix.MS_REC, ""},
		{"tmpfs", "/tmp", "tmpfs", 0, "mode=1777"},
		{"tmpfs", "/run", "tmpfs", 0, "mode=0755"},
		{"tmpfs", "/mnt", "tmpfs", 0, "mode=0755"}, // the other machines are not seen
	} {
		if err := unix.Mount(mount.source, at(mount.target), mount.kind, mount.flags, mount.options); err != nil {
			return fmt.Errorf("mount %s: %w", mount.target, err)
		}
	}
	if err := errors.Join(
		os.WriteFile(at("/etc/hosts"), []byte(b.Hosts), 0o644), os.WriteFile(at("/etc/hostname"), []byte(b.Name+"\n"), 0o644),
		unix.Sethostname([]byte(b.Name)),
	); err != nil {
		return err
	}
	// Its root is the whole of its mounts, not a chroot: containers may make namespaces of their own.
	if err := os.Chdir(b.Root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "mnt"); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := errors.Join(os.Chdir("/"), unix.Unmount("/mnt", unix.MNT_DETACH)); err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	fmt.Println(machineReady)
	for range ended {
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && !errors.Is(err, unix.EINTR) {
				break // the others live
			}
		}
	}
	return nil
}

// Command is a command in the machine, of a user of it, with that user's groups, in /. What it leaves running ends with the machine. A context that ends
// kills it with its process group.
func (m *Machine) Command(ctx context.Context, user string, words ...string) *exec.Cmd {
	pid := "0"
	if m.process != nil {
		pid = fmt.Sprint(m.process.Process.Pid)
	}
	args := []string{"--target", pid, "--mount", "--uts", "--ipc", "--net", "--pid", "--"}
	home := "/root"
	if user != "root" {
		home = "/home/" + user
		args = append(args, "runuser", "-u", user, "--")
	}
	cmd := exec.CommandContext(ctx, "nsenter", append(args, words...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, "USER=" + user, "LOGNAME=" + user, "LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// Run runs a command in the machine and returns what it said on both channels; the error has its end.
func (m *Machine) Run(ctx context.Context, user string, words ...string) (string, error) {
	out, err := m.Command(ctx, user, words...).CombinedOutput()
	text := string(out)
	if err != nil {
		tail := strings.TrimSpace(text)
		if len(tail) > 2000 {
			tail = "..." + tail[len(tail)-2000:]
		}
		return text, fmt.Errorf("%s@%s: %s: %w: %s", user, m.Name, strings.Join(words, " "), err, tail)
	}
	return text, nil
}

// Write makes a file of root's in the machine.
func (m *Machine) Write(path, text string, mode os.FileMode) error {
	cmd := m.Command(context.Background(), "root", "sh", "-c", `umask 077; cat > "$0" && chmod "$1" "$0"`, path, fmt.Sprintf("%o", mode))
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: write %s: %w: %s", m.Name, path, err, out)
	}
	return nil
}

// Link takes the machine's network card down, as a pulled cable does, or up.
func (m *Machine) Link(ctx context.Context, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return ip(ctx, "link", "set", m.card(), state)
}

// PowerOff kills everything in the machine at once, as a power failure does; its files stay.
func (m *Machine) PowerOff(ctx context.Context) error {
	if m.process == nil {
		return fmt.Errorf("%s is off", m.Name)
	}
	if err := m.process.Process.Kill(); err != nil {
		return err
	}
	_ = m.process.Wait() // killed
	m.process = nil
	_ = ip(ctx, "link", "del", m.card()) // the kernel may have taken it away with the machine's network
	return nil
}
