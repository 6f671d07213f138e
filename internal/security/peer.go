package security

import (
	"context"
	"crypto/tls"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/metadata"
)

// ConnAddrs are the ends of a connection as the server sees them.
type ConnAddrs struct{ Local, Remote net.Addr }

// AddrsOf returns the ends of a connection.
func AddrsOf(c net.Conn) ConnAddrs { return ConnAddrs{Local: c.LocalAddr(), Remote: c.RemoteAddr()} }

// Peer is the far end of a connection, as far as the connection itself says who that is: which local user has it, or which
// certificate it has shown. Of a connection that a guarded listener accepted it is complete after Enter.
type Peer struct {
	ConnAddrs
	from origin
	uid  uint32
	// secure: the connection is TLS, in this state after the handshake.
	secure bool
	tls    *tls.ConnectionState
	// name is whose certificate was shown; nil: none, or none that is good.
	name *authority.Name
	// refused is why a certificate is not good that was shown.
	refused error
	err     error // why a name that it gives is not believed
}

// Nobody is the user whose share of a budget connections have whose owner is not known.
const Nobody = ^uint32(0)

// UID is whose share of budgets the far end uses: the user of the operating system that owns a local socket, this process's
// user for another server of the cluster, and a number from 1<<31 on for the user of a certificate, or for an address. Nobody
// if nothing is known.
func (p *Peer) UID() uint32 {
	if p.from == here && p.err != nil {
		return Nobody
	}
	return p.uid
}

// Local reports whether the far end is another process of this machine.
func (p *Peer) Local() bool { return p.from == here }

// Trusted reports whether the far end is in a network whose clients are believed who they say they are.
func (p *Peer) Trusted() bool { return p.from == trusted }

// Secure reports whether the connection is TLS.
func (p *Peer) Secure() bool { return p.secure }

// Certified is who has shown a certificate; nil: nobody.
func (p *Peer) Certified() *authority.Name { return p.name }

// Err says why nobody is believed on the connection itself; nil: somebody is. Errors are of kind metadata.ErrUnauthorized.
func (p *Peer) Err() error { return p.err }

// Refused says why nothing may be asked for on the connection, whatever else it carries: it comes in plain from elsewhere, or
// with a certificate that is not good. nil: it may.
func (p *Peer) Refused() error {
	if p.refused != nil || !p.secure && p.from == elsewhere {
		return p.err
	}
	return nil
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

// PeerAt finds out who has the far end of a plain connection between two addresses.
func (d *Door) PeerAt(ends ConnAddrs) *Peer {
	p := &Peer{ConnAddrs: ends, from: d.originOf(ends), uid: shareOf(addrOf(ends.Remote).String())}
	switch p.from {
	case here:
		uid, err := d.config.Owner(ends)
		if err != nil {
			p.err = metadata.Errorf(metadata.ErrUnauthorized, "cannot tell who owns the connection from %v: %v", ends.Remote, err)
			break
		}
		p.uid = uid
	case elsewhere:
		p.err = d.strange(ends.Remote)
	}
	return p
}

// strange refuses what comes in plain from another machine.
func (d *Door) strange(remote net.Addr) error {
	if d.config.Pinned != nil {
		return d.throughProxy(remote)
	}
	if d.config.Member == nil {
		return metadata.Errorf(metadata.ErrUnauthorized, "%v may not connect: without TLS only loopback is served", remote)
	}
	return metadata.Errorf(metadata.ErrUnauthorized, "%v is not on this machine, and a name that it gives in plain proves nothing: "+
		"connect by TLS, prove a token or Kerberos, or have its network listed in clients.simple of hops.yaml", remote)
}

// throughProxy refuses who asks an application itself, which knows nobody but its containers.
func (d *Door) throughProxy(remote net.Addr) error {
	return metadata.Errorf(metadata.ErrUnauthorized, "%v is not on this machine: an application is reached through the resource manager's /proxy", remote)
}

// certified takes note of a handshake: whose certificate the far end has shown, or why it is not good.
func (d *Door) certified(p *Peer, name *authority.Name, refused error) {
	p.secure, p.name, p.refused = true, name, refused
	switch {
	case refused != nil: // also here: who shows a certificate wants it to count
		p.err = metadata.Errorf(metadata.ErrUnauthorized, "%v", refused)
	case name != nil && name.User != "": // it counts more than the network, or the owner of the socket
		p.from, p.err, p.uid = elsewhere, nil, shareOf("user "+name.User)
	case p.from == here: // whose owner counts
	case name == nil && p.from == trusted:
	case d.config.Pinned != nil:
		p.err = d.throughProxy(p.Remote)
	case name == nil:
		p.err = metadata.Errorf(metadata.ErrUnauthorized, "%v has shown no certificate and no token: run `hops login`", p.Remote)
	default:
		p.err, p.uid = nil, d.uid
	}
}

// shareOf is the number of a share that is no user's of this machine. Two that have the same one share it.
func shareOf(name string) uint32 {
	h := fnv.New32a()
	io.WriteString(h, name)
	return min(h.Sum32()|1<<31, Nobody-1)
}

// own reports whether the servers' user, root, or a namenode or resource manager of the cluster has the far end.
func (d *Door) own(p *Peer) bool {
	return p.err == nil && (p.from == here && (p.uid == 0 || p.uid == d.uid) || p.server() && !p.lesser())
}

// server reports whether a server of the cluster has shown its certificate.
func (p *Peer) server() bool { return p.name != nil && p.name.Machine != "" }

// lesser reports whether it is a server that has neither namenode nor resource manager on its machine, and so nothing that others'
// keys follow from: its key must not open what makes other keys.
func (p *Peer) lesser() bool {
	return p.server() && !p.name.Has(authority.Namenode) && !p.name.Has(authority.ResourceManager)
}

// Proof is what the name of a caller rests on who claims it on a connection.
type Proof uint8

const (
	// Proved: the owner of the connection within this machine, a certificate, or a server that everything is open to.
	Proved Proof = iota
	// Believed: nothing, in a trusted network.
	Believed
	// Vouched: the word of a server that is neither namenode nor resource manager. It works in users' names, and is no operator.
	Vouched
)

// NoOperator refuses an operator's command to a caller that a server has Vouched for.
func NoOperator(command string) error {
	return metadata.Errorf(metadata.ErrPermission, "%s is for operators, and a server that is neither namenode nor resource manager is none, whatever name it gives: "+
		"ask on one of their machines, or with a user token", command)
}

// Proof is what a name rests on that the far end claims, if Claim does not refuse it.
func (d *Door) Proof(p *Peer) Proof {
	switch {
	case p.from == here && (p.uid == 0 || p.uid == d.uid): // on the servers' own machine they prove nothing to each other
		return Proved
	case p.lesser():
		return Vouched
	case p.from == trusted && p.name == nil:
		return Believed
	}
	return Proved
}

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
	p, _ := d.peerOfRequest(r)
	if p == nil {
		return Nobody
	}
	return p.UID()
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
