package roles

import (
	"net"

	"github.com/gohops/hops/internal/security"
)

// listen opens a listener for a configured address.
func (b *Builder) listen(addr string) (net.Listener, error) {
	if b.Listen != nil {
		return b.Listen(addr)
	}
	if err := b.Door.CheckBind(addr); err != nil {
		return nil, err
	}
	return security.Listen(addr, b.File.Cluster.Bind)
}

// advertise is how a datanode that listens for an address is known: its IP address, and its name if it has one.
func advertise(addr string) (ip, host string, err error) {
	if host, _, err = net.SplitHostPort(addr); err != nil {
		return "", "", err
	}
	if security.Loopback(host) {
		return "", "", nil // as it listens
	}
	a, err := security.Reachable(host)
	return a.String(), host, err
}
