package localsocket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// SendFiles sends bytes, one at least, with files beside them. The receiver gets descriptors of its own.
func SendFiles(c *net.UnixConn, b []byte, files ...*os.File) error {
	fds := make([]int, 0, len(files))
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil {
			return err
		}
	}
	n, rights, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	if err != nil {
		return err
	}
	if n < len(b) || rights == 0 {
		return io.ErrShortWrite
	}
	return nil
}

// Unread is how much of what was sent the other end has not read; 0: nothing.
func Unread(c *net.UnixConn) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	if failed := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); failed != nil {
		return 0, failed
	}
	return n, err
}

// maxFiles is how many descriptors a message may bring.
const maxFiles = 8

// Receiver reads bytes together with the files that come beside them. No buffer may read ahead of it.
type Receiver struct {
	Conn  *net.UnixConn
	files []*os.File
}

// Read reads bytes and keeps the files that come with them.
func (r *Receiver) Read(b []byte) (int, error) {
	rights := make([]byte, unix.CmsgSpace(maxFiles*4))
	n, k, flags, _, err := r.Conn.ReadMsgUnix(b, rights)
	var came []*os.File
	if k > 0 {
		var bad error
		if came, bad = filesOf(rights[:k]); bad != nil && err == nil {
			err = bad
		}
	}
	r.files = append(r.files, came...)
	switch {
	case err != nil:
		return n, err
	case flags&unix.MSG_CTRUNC != 0 || len(r.files) > maxFiles:
		return n, errors.New("more descriptors came than are expected, or than this process may have")
	case n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// Files are those that have come. They are the caller's.
func (r *Receiver) Files() []*os.File {
	out := r.files
	r.files = nil
	return out
}

// Close closes the files that nobody has taken.
func (r *Receiver) Close() {
	for _, f := range r.files {
		f.Close()
	}
	r.files = nil
}

func filesOf(rights []byte) (out []*os.File, err error) {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, fmt.Errorf("descriptors: %w", err)
	}
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			continue // something else, such as credentials
		}
		for _, fd := range fds {
			out = append(out, os.NewFile(uintptr(fd), "received"))
		}
	}
	return out, nil
}

// Memory is a file in memory that holds what was written to it. Nobody can change it, and Reopen gives others descriptors that
// cannot write.
type Memory struct{ file *os.File }

// NewMemory makes an empty file in memory, which can be sealed.
func NewMemory(name string) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // a kernel before 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Seal makes a Memory of bytes.
func Seal(name string, parts ...[]byte) (*Memory, error) {
	f, err := NewMemory(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for _, p := range parts {
		if _, err := f.Write(p); err != nil {
			return nil, err
		}
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL); err != nil {
		return nil, os.NewSyscallError("sealing", err)
	}
	m := &Memory{}
	if m.file, err = reopen(f); err != nil {
		return nil, err
	}
	return m, nil
}

// Reopen opens the memory anew for reading. The file is the caller's.
func (m *Memory) Reopen() (*os.File, error) { return reopen(m.file) }

func reopen(f *os.File) (*os.File, error) {
	defer runtime.KeepAlive(f)
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDONLY, 0)
}

// Held reports whether anybody but the Memory itself has it open, by a descriptor or in a mapping: a lease for writing is
// granted only if not (fcntl(2)). Where that cannot be found out it is held.
func (m *Memory) Held() bool {
	if _, err := unix.FcntlInt(m.file.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return true
	}
	_, err := unix.FcntlInt(m.file.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err != nil
}

// Close gives up what the Memory has of it. It goes when the last descriptor does.
func (m *Memory) Close() error { return m.file.Close() }
