package security

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/gohops/hops/metadata"
)

// ConnAddrs are the ends of a connection as the server sees them.
type ConnAddrs struct{ Local, Remote net.Addr }

// AddrsOf returns the ends of a connection.
func AddrsOf(c net.Conn) ConnAddrs { return ConnAddrs{Local: c.LocalAddr(), Remote: c.RemoteAddr()} }

// Peer is the far end of a connection: which local user has it. A connection that a guarded listener accepted was looked
// up once, when it came.
type Peer struct {
	ConnAddrs
	uid uint32
	err error // why nobody is known to own it
	// stranger: it is let in only to prove who it is.
	stranger bool
}

// Nobody is the user whose share of a budget connections have whose owner is not known.
const Nobody = ^uint32(0)

// UID is the user of the operating system that owns the socket, Nobody if that is not known.
func (p *Peer) UID() uint32 {
	if p.err != nil {
		return Nobody
	}
	return p.uid
}

// Peer finds out who has the far end of a connection.
func (d *Door) Peer(c net.Conn) *Peer {
	for {
		switch w := c.(type) {
		case *guardedConn:
			return &w.peer
		case interface{ NetConn() net.Conn }:
			c = w.NetConn()
		default:
			return d.PeerAt(AddrsOf(c))
		}
	}
}

// PeerAt finds out who has the far end of the connection between two addresses.
func (d *Door) PeerAt(ends ConnAddrs) *Peer {
	p := &Peer{ConnAddrs: ends}
	if p.stranger = d.config.Stranger != nil && d.config.Stranger(ends); p.stranger {
		p.err = metadata.Errorf(metadata.ErrUnauthorized, "%v has to prove who it is: a name that it claims does not count from there", ends.Remote)
		return p
	}
	remote, ok := ends.Remote.(*net.TCPAddr)
	if !ok || !remote.IP.IsLoopback() {
		p.err = metadata.Errorf(metadata.ErrUnauthorized, "%v may not connect: without TLS only loopback is served", ends.Remote)
		return p
	}
	uid, err := d.config.Owner(ends)
	if err != nil {
		p.err = metadata.Errorf(metadata.ErrUnauthorized, "cannot tell who owns the connection from %v: %v", remote, err)
	}
	p.uid = uid
	return p
}

// own reports whether the servers' user, or root, has the far end.
func (d *Door) own(p *Peer) bool { return p.err == nil && (p.uid == 0 || p.uid == d.uid) }

type peerKey struct{}

// withPeer lets handlers of HTTP requests know who has the connection (http.Server's ConnContext).
func (d *Door) withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, d.Peer(c))
}

// peerOfRequest is the peer of the connection that a request came on.
func (d *Door) peerOfRequest(r *http.Request) (*Peer, error) {
	if p, ok := r.Context().Value(peerKey{}).(*Peer); ok {
		return p, p.err
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	remote, err := tcpAddr(r.RemoteAddr)
	if err != nil || local == nil {
		return nil, metadata.Errorf(metadata.ErrUnauthorized, "cannot tell where the request comes from")
	}
	p := d.PeerAt(ConnAddrs{local, remote})
	return p, p.err
}

// UIDOfRequest is the user that owns the far end of a request's connection, Nobody if that is not known.
func (d *Door) UIDOfRequest(r *http.Request) uint32 {
	p, err := d.peerOfRequest(r)
	if err != nil {
		return Nobody
	}
	return p.uid
}

func tcpAddr(hostport string) (*net.TCPAddr, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, err
	}
	ip := net.ParseIP(host)
	n, err := strconv.Atoi(port)
	if ip == nil || err != nil {
		return nil, fmt.Errorf("%q is not an address", hostport)
	}
	return &net.TCPAddr{IP: ip, Port: n}, nil
}
