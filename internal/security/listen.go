package security

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// ErrElsewhere: an address is another machine's, or is translated on the way to this one.
var ErrElsewhere = errors.New("not an address of this machine")

// lookupTime is how long a start waits for the address of a name.
const lookupTime = 10 * time.Second

// Listen opens a TCP listener for the address, host:port, at which others reach a server. bind is the IP address that it
// listens at instead, if that is not empty and the server is not for this machine alone. The listener's own address is the one
// that others use. Errors say what to do.
func Listen(addr, bind string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	at := host
	if !Loopback(host) {
		ip, err := Reachable(host)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", addr, err)
		}
		if at = ip.String(); bind != "" {
			at = bind
		}
	}
	l, err := listen(net.JoinHostPort(at, port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is taken by another program: end it, or choose another port", net.JoinHostPort(at, port))
	case errors.Is(err, syscall.EADDRNOTAVAIL) && at == bind:
		return nil, fmt.Errorf("cluster.bind: %s is not an address of this machine, which has %s", bind, ownAddresses())
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s: %s is %w, which has %s; if others reach it there all the same, say in cluster.bind where to listen", addr, at, ErrElsewhere, ownAddresses())
	case err != nil:
		return nil, err
	case at == host:
		return l, nil
	}
	if port == "0" {
		_, port, _ = net.SplitHostPort(l.Addr().String())
	}
	return &advertised{l, name(net.JoinHostPort(host, port))}, nil
}

// advertised is a listener that others reach at another address than that of its socket.
type advertised struct {
	net.Listener
	addr name
}

func (a *advertised) Addr() net.Addr { return a.addr }

// name is host:port.
type name string

func (name) Network() string  { return "tcp" }
func (n name) String() string { return string(n) }

// Reachable is the address that a host's name stands for on other machines, too.
func Reachable(host string) (netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(found) == 0 {
		return netip.Addr{}, fmt.Errorf("no address is known for the name %s: enter it in the DNS or in /etc/hosts of every machine, or use the machine's address (%w)", host, err)
	}
	for _, ip := range found {
		if !ip.IsLoopback() {
			return ip.Unmap(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("the name %s stands for %s, at which only this machine reaches itself: correct /etc/hosts, or use the machine's address", host, found[0].Unmap())
}

// ownAddresses lists where this machine can listen, for messages.
func ownAddresses() string {
	var out []string
	addrs, err := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
			out = append(out, n.IP.String())
		}
	}
	if err != nil || len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}
