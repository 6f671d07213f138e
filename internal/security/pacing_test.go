package security

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
)

// asIf has the machine's congestion control held for one that paces, whatever it is, and returns it.
func asIf(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		t.Skip("the kernel does not say which congestion control it has: ", err)
	}
	name := strings.TrimSpace(string(text))
	if name == unpacedControl {
		t.Skipf("this machine is set to %s: nothing tells a socket that was changed from one that was not", unpacedControl)
	}
	before := pacing
	pacing = func() string { return name }
	t.Cleanup(func() { pacing = before })
	return name
}

// control is the congestion control of a connection.
func control(t *testing.T, c net.Conn) (name string) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { name, err = controlOf(fd) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// pairOf dials a listener.
func pairOf(t *testing.T, l net.Listener, dial func(addr string) (net.Conn, error)) (dialled, accepted net.Conn) {
	t.Helper()
	t.Cleanup(func() { l.Close() })
	dialled, err := dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close() })
	if accepted, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return dialled, accepted
}

// Within the machine neither end is paced, at whichever address the port listens; sockets of others are as they were.
func TestConnectionsWithinTheMachineAreNotPaced(t *testing.T) {
	machine := asIf(t)
	l, err := Listen("127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	all, err := listen("0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []net.Listener{l, all} {
		dialled, accepted := pairOf(t, l, func(addr string) (net.Conn, error) { return new(Dialer).Dial(t.Context(), addr) })
		if d, a := control(t, dialled), control(t, accepted); d != unpacedControl || a != unpacedControl {
			t.Errorf("%v: within the machine the dialled end has %s and the accepted one %s, want %s", l.Addr(), d, a, unpacedControl)
		}
	}
	plain, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if got := control(t, plain); got != machine {
		t.Errorf("a connection of somebody else's has %s, want the machine's %s", got, machine)
	}
}

func TestConnectionsFromElsewhereArePacedAsTheMachineIsSet(t *testing.T) {
	machine := asIf(t)
	l, err := listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.(*pacingListener).local = func(net.Conn) bool { return false }
	dialled, accepted := pairOf(t, l, func(addr string) (net.Conn, error) { return connect(t.Context(), "tcp", addr) })
	if got := control(t, accepted); got != machine {
		t.Errorf("accepted from elsewhere: %s, want the machine's %s", got, machine)
	}
	leads(dialled, false)
	if got := control(t, dialled); got != machine {
		t.Errorf("dialled elsewhere: %s, want the machine's %s", got, machine)
	}
}

// A route that has a congestion control of its own keeps it.
func TestCongestionControlOfARouteStays(t *testing.T) {
	machine := asIf(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, accepted := pairOf(t, l, func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) })
	pacing = func() string { return unpacedControl }
	leads(accepted, false)
	if got := control(t, accepted); got != machine {
		t.Errorf("the connection has %s, want %s as before", got, machine)
	}
}

// Where the machine is not set to a control that paces, sockets are left alone.
func TestOtherCongestionControlsAreLeftAlone(t *testing.T) {
	machine := asIf(t)
	pacing = func() string { return "" }
	l, err := listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := l.(*pacingListener); ok {
		t.Error("connections are looked at without a need")
	}
	dialled, accepted := pairOf(t, l, func(addr string) (net.Conn, error) { return connect(context.Background(), "tcp", addr) })
	if d, a := control(t, dialled), control(t, accepted); d != machine || a != machine {
		t.Errorf("the dialled end has %s and the accepted one %s, want the machine's %s", d, a, machine)
	}
}
