package security

import (
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A congestion control that paces, as BBR does, takes what a peer within the machine has got round to for what a network can carry: it guesses a rate from when
// acknowledgements come, sends no faster, and wakes by a timer for every segment of 64 KiB. Between two ends on one machine there is nothing to be
// careful with, and a transfer of large blocks costs two to three times as much CPU so. Where the machine is set to such a control, sockets are therefore made with
// one that does not pace, and those that turn out to lead elsewhere get the machine's own back before anything is sent. The other way round would
// not do: a connection that was once paced is paced by its next control as well.

// unpacedControl is in every kernel, and everybody may choose it.
const unpacedControl = "reno"

// pacing is the congestion control that this machine was set to when the process first asked, if it is one that paces; else it is empty and nothing is done.
var pacing = sync.OnceValue(func() string {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	name := strings.TrimSpace(string(text))
	if err != nil || !strings.HasPrefix(name, "bbr") || !mayChange(name) {
		return ""
	}
	return name
})

// mayChange reports whether a socket can be given another control and this one again, which the kernel may keep to administrators.
func mayChange(name string) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return setControl(uintptr(fd), unpacedControl) == nil && setControl(uintptr(fd), name) == nil
}

// unpace is the Control of listeners, whose connections inherit it, and of dialers.
func unpace(_, _ string, raw syscall.RawConn) error {
	if pacing() == "" {
		return nil
	}
	return raw.Control(func(fd uintptr) { _ = setControl(fd, unpacedControl) }) // else all is as the machine is set
}

// leads gives a new connection that leads elsewhere the machine's congestion control. A route may have another one, which stays.
func leads(c net.Conn, here bool) {
	if here || pacing() == "" {
		return
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		if now, err := controlOf(fd); err == nil && now == unpacedControl {
			_ = setControl(fd, pacing())
		}
	})
}

func setControl(fd uintptr, name string) error {
	return unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
}

func controlOf(fd uintptr) (string, error) {
	return unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
}

// local reports whether both ends of a connection are on this machine.
func local(c net.Conn) bool { return Here(addrOf(c.RemoteAddr()), addrOf(c.LocalAddr())) }

// connect is net.Dial. A connection within the machine is not paced.
func connect(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{Control: unpace}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	leads(c, local(c))
	return c, nil
}

// listen is net.Listen, for TCP. Connections within the machine are not paced.
func listen(addr string) (net.Listener, error) {
	l, err := (&net.ListenConfig{Control: unpace}).Listen(context.Background(), "tcp", addr)
	if err != nil || pacing() == "" {
		return l, err
	}
	return &pacingListener{l, local}, nil
}

// pacingListener has connections from elsewhere paced.
type pacingListener struct {
	net.Listener
	local func(net.Conn) bool
}

func (l *pacingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	leads(c, l.local(c))
	return c, nil
}
