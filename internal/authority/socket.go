package authority

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Socket reads what has come on a socket, and does not wait for more.
type Socket struct {
	raw   syscall.RawConn
	try   func(fd uintptr) bool
	into  []byte
	got   int
	tried error
}

// NewSocket makes a reader of a socket.
func NewSocket(raw syscall.RawConn) *Socket {
	s := &Socket{raw: raw}
	s.try = func(fd uintptr) bool {
		s.got, s.tried = unix.Read(int(fd), s.into)
		return true
	}
	return s
}

// ReadNow returns 0 and no error when nothing has come.
func (s *Socket) ReadNow(p []byte) (int, error) {
	s.into = p
	err := s.raw.Read(s.try)
	s.into = nil
	switch {
	case err != nil:
		return 0, err
	case errors.Is(s.tried, unix.EAGAIN), errors.Is(s.tried, unix.EINTR):
		return 0, nil
	case s.tried != nil:
		return 0, os.NewSyscallError("read", s.tried)
	case s.got == 0:
		return 0, io.EOF
	}
	return s.got, nil
}
