package supervisor

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager/shell"
)

// terminal is a pseudo terminal (pty(7)): what is written to it the program reads, and the other way round.
type terminal struct{ *os.File }

// openTerminal makes a terminal in the devices of the container, and its far end for the program, whose user may open it again by name.
// uid is negative for our own.
func openTerminal(size shell.Size, uid int) (t terminal, far *os.File, err error) {
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return t, nil, fmt.Errorf("terminal: %w", err)
	}
	t = terminal{f}
	err = t.control(func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno != 0 {
			return errno
		}
		far = os.NewFile(n, "terminal")
		return nil
	})
	if err == nil && uid >= 0 {
		err = far.Chown(uid, -1)
	}
	if err == nil {
		err = t.resize(size)
	}
	if err != nil {
		t.Close()
		if far != nil {
			far.Close()
		}
		return t, nil, fmt.Errorf("terminal: %w", err)
	}
	return t, far, nil
}

// control calls with the descriptor, which stays one that does not block.
func (t terminal) control(do func(fd int) error) error {
	raw, err := t.SyscallConn()
	if err != nil {
		return err
	}
	var did error
	if err := raw.Control(func(fd uintptr) { did = do(int(fd)) }); err != nil {
		return err
	}
	return did
}

// resize gives it a size; the program hears SIGWINCH.
func (t terminal) resize(s shell.Size) error {
	return t.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Columns})
	})
}

// controls makes the terminal that is the process's standard input the one that controls it, so that Ctrl-C reaches it.
func controls(attr *syscall.SysProcAttr) { attr.Setctty, attr.Ctty = true, 0 }

// members are the processes of the session whose first process is leader, and those below it.
func members(leader int) []process {
	all := descendants(leader)
	for _, pid := range allPids() {
		sid, err := unix.Getsid(pid)
		if err != nil || sid != leader {
			continue
		}
		if p, ok := readProcess(pid); ok && !p.zombie {
			all = append(all, p)
		}
	}
	return all
}
