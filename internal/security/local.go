package security

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/metadata"
)

// localPeer finds out who has the far end of an accepted Unix-domain socket. Its address says so, for logs.
func localPeer(c *net.UnixConn) Peer {
	uid, err := SocketUser(c)
	p := Peer{from: here, uid: uid, ConnAddrs: ConnAddrs{
		Local: c.LocalAddr(), Remote: &net.UnixAddr{Name: fmt.Sprintf("%s, user %d", c.LocalAddr(), uid), Net: "unix"},
	}}
	if err != nil {
		p.err = metadata.Errorf(metadata.ErrUnauthorized, "cannot tell who has connected to %v: %v", c.LocalAddr(), err)
	}
	return p
}

// Local is the Unix-domain socket whose bytes a connection's are; nil: it is TCP, or something else lies between.
func Local(c net.Conn) *net.UnixConn {
	if g, ok := c.(*guardedConn); ok {
		c = g.sock
	}
	u, _ := c.(*net.UnixConn)
	return u
}

// sendFile writes what r has to a Unix-domain socket. Of a limited file the kernel sends it, which net does for TCP only.
func sendFile(c *net.UnixConn, r io.Reader) (int64, error) {
	limited, ok := r.(*io.LimitedReader)
	if !ok {
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	file, ok := limited.R.(*os.File)
	if !ok {
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	to, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	from, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var sent int64
	var failed, broken error
	err = from.Control(func(in uintptr) {
		failed = to.Write(func(out uintptr) bool {
			for limited.N > 0 {
				n, e := unix.Sendfile(int(out), int(in), nil, int(min(limited.N, maxSend)))
				switch {
				case n > 0:
					sent += int64(n)
					limited.N -= int64(n)
				case errors.Is(e, unix.EINTR):
				case errors.Is(e, unix.EAGAIN):
					return false
				case e != nil:
					broken = &net.OpError{Op: "write", Net: "unix", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError("sendfile", e)}
					return true
				default: // the file's end
					return true
				}
			}
			return true
		})
	})
	return sent, errors.Join(err, failed, broken)
}

// maxSend is how much sendfile is asked for at a time: the kernel's limit is 2 GiB less a page.
const maxSend = 1 << 30
