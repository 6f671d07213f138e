package security

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/metadata"
)

// A port for clients takes TLS from who begins with its handshake, and the port's own protocol from who does not: that
// never begins with the same byte (HTTP: a letter; Hadoop IPC: "hrpc"; data transfer: 0, or 0xDE of SASL).
const tlsHandshake = 0x16 // ContentType of TLS, RFC 8446, 5.1

// maxEntering is how many connections from elsewhere a port has at a time that have not said anything, or are in the middle
// of a handshake. One more, and the oldest of the address with most of them is closed.
const maxEntering = 256

// origin is where a connection comes from, which says how much its plain bytes count for.
type origin uint8

const (
	elsewhere origin = iota
	// here: another process of this machine, whose user is known.
	here
	// trusted: an address of the networks whose clients may say who they are (Config.Simple).
	trusted
)

// originOf finds out where the far end is. What comes from one of this machine's own addresses is local as what comes from
// loopback is: the kernel lets nobody else use them.
func (d *Door) originOf(ends ConnAddrs) origin {
	remote, local := addrOf(ends.Remote), addrOf(ends.Local)
	switch {
	case !remote.IsValid(), d.config.Stranger != nil && d.config.Stranger(ends):
		return elsewhere
	case d.config.Here(remote, local):
		return here
	case d.isTrusted(remote):
		return trusted
	}
	return elsewhere
}

// Here reports whether both ends of a connection are on this machine.
func Here(remote, local netip.Addr) bool {
	return remote.IsLoopback() || remote.IsValid() && remote == local
}

func (d *Door) isTrusted(a netip.Addr) bool {
	for _, p := range d.config.Simple {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// addrOf is the address of one end of a TCP connection, without a zone and as IPv4 where it is that.
func addrOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// Enter waits for the first byte of an accepted connection and, if it is of TLS, for the end of the handshake: afterwards it
// is known who has the far end, as far as the connection itself says it. A first Read does the same. Connections that no
// Door guards are as they are.
func Enter(c net.Conn) error {
	if g, ok := c.(*guardedConn); ok {
		return g.enter()
	}
	return nil
}

// Raw is the socket of a connection whose bytes are the protocol's own; nil when they are TLS's, or there is no socket. Of
// an accepted connection it is known after Enter.
func Raw(c net.Conn) syscall.RawConn {
	if g, ok := c.(*guardedConn); ok {
		if g.secure.Load() != nil {
			return nil
		}
		c = g.sock
	}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// HangUp ends a connection and does not wait for calls on it that are under way, as Close does: the kernel may be sending a file there whose disk does not answer. Who reads at the far end
// hears of it in any case, who writes there once there is no such call.
func HangUp(c net.Conn) {
	go c.Close()
	if g, ok := c.(*guardedConn); ok {
		c = g.sock
	}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
		}
	}
}

// Immediate reads what has come on a connection without waiting for more. It is nil where that cannot be done. Of an accepted connection
// it is known after Enter.
func Immediate(c net.Conn) func(p []byte) (int, error) {
	if g, ok := c.(*guardedConn); ok {
		if t := g.secure.Load(); t != nil {
			return func(p []byte) (int, error) {
				g.touch()
				return t.ReadNow(p)
			}
		}
	}
	raw := Raw(c)
	if raw == nil {
		return nil
	}
	return authority.NewSocket(raw).ReadNow
}

// Ahead writes what more follows at once, so that the kernel does not send the end of it as a segment of its own. It is nil where that cannot be
// done. Of an accepted connection that is known after Enter.
func Ahead(c net.Conn) func(b []byte) (int, error) {
	raw := Raw(c)
	if raw == nil {
		return nil
	}
	return func(b []byte) (n int, err error) {
		var failed error
		err = raw.Write(func(fd uintptr) bool {
			for n < len(b) {
				k, e := unix.SendmsgN(int(fd), b[n:], nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
				switch {
				case errors.Is(e, unix.EINTR):
				case errors.Is(e, unix.EAGAIN):
					return false
				case e != nil:
					failed = &net.OpError{Op: "write", Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError("sendmsg", e)}
					return true
				default:
					n += k
				}
			}
			return true
		})
		return n, errors.Join(err, failed)
	}
}

// Plain reports whether what is written to w goes to a socket as it is, so that the kernel can send files by itself.
func Plain(w io.Writer) bool {
	g, ok := w.(*guardedConn)
	return !ok || g.secure.Load() == nil
}

// enter looks at the first byte, once. It waits no longer than the connection's deadline; who reads again later goes on.
func (c *guardedConn) enter() error {
	if c.entered.Load() {
		return nil
	}
	c.entering.Lock()
	defer c.entering.Unlock()
	if c.entered.Load() || c.refused != nil {
		return c.refused
	}
	first, err := firstByte(c.sock)
	if err != nil {
		return err
	}
	if first == tlsHandshake {
		if err := c.secured(); err != nil {
			c.refused = err
			return err
		}
	}
	c.way.places.entered(c)
	c.entered.Store(true)
	return nil
}

var errNoIdentity = metadata.Errorf(metadata.ErrUnauthorized, "this server has no certificate, and takes no TLS")

// secured runs the handshake and takes note of who has shown a certificate.
func (c *guardedConn) secured() error {
	var t *authority.Conn
	var err error
	switch config := &c.door.config; { // the handshake's time is the authority's
	case config.Member != nil:
		t, err = config.Member.Accept(context.Background(), c.sock, authority.Door{Strangers: true, Old: c.way.OldTLS, Protocols: c.way.Protocols})
	case config.Pinned != nil:
		t, err = config.Pinned.Accept(context.Background(), c.sock)
	default:
		err = errNoIdentity
	}
	if err != nil {
		return err
	}
	c.secure.Store(t)
	if c.closed.Load() { // meanwhile: Close has not seen it
		t.Close()
		return net.ErrClosed
	}
	state := t.ConnectionState()
	c.peer.tls = &state
	c.door.certified(&c.peer, t.Peer(), t.Refused())
	return nil
}

// firstByte looks at what comes first, and leaves it there. A closed connection is io.EOF.
func firstByte(c socket) (byte, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var b [1]byte
	n, failed := 0, error(nil)
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, _, failed = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if !errors.Is(failed, unix.EINTR) {
				return !errors.Is(failed, unix.EAGAIN)
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case failed != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: failed}
	case n == 0:
		return 0, io.EOF
	}
	return b[0], nil
}
