package localsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/security"
)

// buffer is how many bytes wait in each direction of a connection: several packets of a block.
const buffer = 512 << 10

// Listener is a Unix-domain socket that everybody may connect to. It is this process's as long as it lives: a lock beside it,
// which ends with the process, tells a socket that is in use from one that was left behind.
type Listener struct {
	*net.UnixListener
	lock *os.File
}

// Listen opens the socket at a path. Errors say what to do.
func Listen(path string) (*Listener, error) {
	if err := CheckForm(path); err != nil {
		return nil, err
	}
	if err := makePlace(filepath.Dir(path)); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	l, err := listenLocked(path, lock)
	if err != nil {
		lock.Close()
		return nil, err
	}
	return l, nil
}

func listenLocked(path string, lock *os.File) (*Listener, error) {
	inUse := fmt.Errorf("%s is in use by another datanode: with %s in its path each has its own", path, Port)
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, inUse
		}
		return nil, &os.PathError{Op: "flock", Path: lock.Name(), Err: err}
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("%s is there and is no socket: remove it, or choose another path", path)
	default:
		c, err := net.Dial("unix", path) // which does not wait
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, unix.ECONNREFUSED) { // a server that takes no lock, perhaps with a full queue
			return nil, inUse
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("a socket that was left behind: %w", err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// Who may connect says nothing yet: a block's token does.
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, err
	}
	return &Listener{l, lock}, nil
}

// Accept takes the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err // nil, and no UnixConn that is nil
	}
	widen(c)
	return c, nil
}

// Close ends the listener and removes its socket.
func (l *Listener) Close() error {
	err := l.UnixListener.Close()
	l.lock.Close()
	return err
}

// widen gives a connection its buffers. The kernel's limits may make them smaller.
func widen(c *net.UnixConn) {
	_ = c.SetReadBuffer(buffer)
	_ = c.SetWriteBuffer(buffer)
}

// ErrStranger: somebody else listens at a path than at the TCP address that it stands for.
var ErrStranger = errors.New("is not who listens at the address")

// Dial connects to the server beside a TCP address of this machine. Root and this process's own user are believed; anybody
// else has to be who listens at the TCP address.
func Dial(ctx context.Context, path string, tcp netip.AddrPort) (*net.UnixConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	c := conn.(*net.UnixConn)
	if err := believe(c, tcp); err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	widen(c)
	return c, nil
}

func believe(c *net.UnixConn, tcp netip.AddrPort) error {
	uid, err := security.SocketUser(c)
	if err != nil || uid == 0 || uid == uint32(os.Geteuid()) {
		return err
	}
	owner, err := security.ListenerOwner(tcp)
	if err != nil {
		return fmt.Errorf("user %d listens, and nobody can be found at %v to compare: %w", uid, tcp, err)
	}
	if owner != uid {
		return fmt.Errorf("user %d %w %v (user %d)", uid, ErrStranger, tcp, owner)
	}
	return nil
}

// Addresses knows which addresses are this machine's. The zero value is ready to use.
type Addresses struct {
	mu   sync.Mutex
	own  map[netip.Addr]bool
	when time.Time
}

// addressesKept is how long the addresses of the machine are not looked up again.
const addressesKept = 30 * time.Second

// Own reports whether an address is of this machine.
func (a *Addresses) Own(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if ip.IsLoopback() {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.own == nil || time.Since(a.when) > addressesKept {
		a.own, a.when = map[netip.Addr]bool{}, time.Now()
		all, _ := net.InterfaceAddrs() // without them nothing else is this machine's
		for _, one := range all {
			if n, ok := one.(*net.IPNet); ok {
				if own, ok := netip.AddrFromSlice(n.IP); ok {
					a.own[own.Unmap()] = true
				}
			}
		}
	}
	return a.own[ip]
}
