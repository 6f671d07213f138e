package security

import (
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/release"
)

// A connection between servers is TLS 1.3, on which both ends show a certificate of the cluster's authority. An application's
// master has none. It makes sure of the other end's, and then proves the token of its container, which it does not show:
//
//	dialer → acceptor    length of the container's id | id | HMAC(token, "hops container" id K)
//
// A machine that joins has nothing to prove yet, and says so by a length of 0. It shows its token in the call that follows, bound to the
// connection. K is keying material of the connection (RFC 9266): what a stranger passes on to another server does not fit there.
const (
	maxKeyID = 128
	// proofTime is how long a peer may take to prove who it is: as long as the dialer gives it.
	proofTime = 10 * time.Second
	// maxStrangers is how many connections of a listener may be without proof. One more, and one of them is closed: at once the oldest of an
	// address that has more than its share of them; else the oldest as soon as it has had its time, which one that has not said anything
	// yet has less of. So all machines of a cluster may come at the same moment, when their server has died, and are served one
	// after the other; were the oldest closed for the newest, none of them would get to the end of its handshake.
	maxStrangers  = 256
	shareOfPlaces = maxStrangers / 4
	silentTime    = 100 * time.Millisecond
	strangerTime  = 2 * time.Second
	// A machine that joins has one call to make: joinTime is how long its connection may last, and joinBytes how much it may send.
	joinTime  = 30 * time.Second
	joinBytes = 128 << 10
)

// Key is what a dialer proves, and to whom.
type Key struct {
	member  *authority.Member // a server
	visitor authority.Visitor // a container
	id      string            // of the container
	token   []byte
	roles   []authority.Role
}

// Credentials are what a server proves who it is with: its machine's identity, and what all servers that sign something share.
type Credentials struct {
	Secret
	Member *authority.Member
	// Here says whether both ends of a connection are on this machine; nil: Here. Tests set it.
	Here func(remote, local netip.Addr) bool
}

// Dialer is for connections to other servers at their ports for clients.
func (c Credentials) Dialer() *Dialer { return &Dialer{Member: c.Member, Here: c.Here} }

// Key is for connections to servers with one of the roles.
func (c Credentials) Key(roles ...authority.Role) Key { return Key{member: c.Member, roles: roles} }

// TokenKey is the key of a container that has a token, for connections to servers with one of the roles.
func TokenKey(trust *authority.Trust, container, token string, roles ...authority.Role) Key {
	return Key{visitor: authority.Visitor{Trust: trust, Now: time.Now}, id: container, token: []byte(token), roles: roles}
}

// Principal is who has proved a key.
type Principal struct {
	// Container is the id of the container whose token was proved; empty: it is none.
	Container string
	// Server is the server; nil: it is none.
	Server *authority.Name
	// Program is of which version a server is.
	Program release.Program
	// Joining is keying material of the connection of a machine that has no certificate yet and has proved nothing; nil: it is none.
	Joining []byte
}

// AuthType implements credentials.AuthInfo.
func (Principal) AuthType() string { return "hops" }

// Keyring knows the keys that an acceptor takes.
type Keyring struct {
	Member *authority.Member
	// Roles of which a server that dials needs one; none: any server is let in.
	Roles []authority.Role
	// Token finds the token of a container; nil: none is let in.
	Token func(container string) (token string, ok bool)
	// Joining machines are let in, for services of that right.
	Joining bool
}

// find returns the token of a container. An unknown one has a token that nobody knows, so that it is refused like a wrong proof.
func (k Keyring) find(id string) []byte {
	if token, ok := k.Token(id); ok && token != "" {
		return []byte(token)
	}
	return NewSecret().key
}

// Listen makes accepted connections prove a key before their first byte is read or written. Accept itself does not wait
// for that. Strangers hold few places, of which the oldest is given to the newest.
func (k Keyring) Listen(l net.Listener) net.Listener {
	return &provingListener{Listener: l, keys: k, from: map[string]int{}}
}

type provingListener struct {
	net.Listener
	keys Keyring

	mu        sync.Mutex
	strangers list.List      // of *provenConn, the oldest in front
	from      map[string]int // how many of them there are, by address
	left      chan struct{}  // closed when one is a stranger no more; nil: nobody waits for it
}

func (l *provingListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p := &provenConn{Conn: c, listener: l, came: time.Now(), from: fromOf(c)}
		l.mu.Lock()
		for l.strangers.Len() >= maxStrangers {
			leaver, wait := l.leaver(time.Now())
			if leaver != nil {
				l.forget(leaver)
				l.mu.Unlock()
				leaver.Conn.Close()
				l.mu.Lock()
				continue
			}
			if l.left == nil {
				l.left = make(chan struct{})
			}
			left := l.left
			l.mu.Unlock()
			select { // those behind wait in the kernel
			case <-left:
			case <-time.After(wait):
			}
			l.mu.Lock()
		}
		p.stranger = l.strangers.PushBack(p)
		if p.from != "" {
			l.from[p.from]++
		}
		l.mu.Unlock()
		return p, nil
	}
}

// fromOf is the address that a connection comes from; empty: this machine, whose processes are told apart by their users before they get here.
func fromOf(c net.Conn) string {
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok || a.IP.IsLoopback() {
		return ""
	}
	if a.IP.To4() == nil && len(a.IP) == net.IPv6len {
		return string(a.IP[:8]) // who has one address of a network has all
	}
	return string(a.IP)
}

// leaver is the stranger that gives its place to a newcomer, or how long until the first has had its time. l.mu is held.
func (l *provingListener) leaver(now time.Time) (*provenConn, time.Duration) {
	wait := strangerTime
	for e := l.strangers.Front(); e != nil; e = e.Next() {
		p := e.Value.(*provenConn)
		time := strangerTime
		if !p.spoke.Load() {
			time = silentTime
		}
		left := time - now.Sub(p.came)
		if left <= 0 || p.from != "" && l.from[p.from] > shareOfPlaces {
			return p, 0
		}
		wait = min(wait, left)
	}
	return nil, wait
}

// forget takes a connection off the strangers. l.mu is held.
func (l *provingListener) forget(p *provenConn) {
	if p.stranger == nil {
		return
	}
	l.strangers.Remove(p.stranger)
	p.stranger = nil
	if p.from != "" {
		if l.from[p.from]--; l.from[p.from] == 0 {
			delete(l.from, p.from)
		}
	}
	if l.left != nil {
		close(l.left)
		l.left = nil
	}
}

// known takes a connection off the strangers.
func (l *provingListener) known(p *provenConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(p)
}

// Dial connects to a proving listener.
func (k Key) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := connect(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	out, err := k.prove(ctx, c)
	if err != nil {
		return nil, err // nil, and no Conn that is nil
	}
	return out, nil
}

// prove runs the dialer's side, within the proof's time and ctx. When it fails, c is closed.
func (k Key) prove(ctx context.Context, c net.Conn) (net.Conn, error) {
	door := authority.Door{Roles: k.roles, Protocols: protocols}
	if k.member != nil {
		out, err := k.member.Connect(ctx, c, door)
		if err != nil {
			return nil, proofError(err)
		}
		return out, nil
	}
	out, _, err := k.visitor.Connect(ctx, c, door, func(c *tls.Conn) error {
		proof, err := proofOf(c, k.id, k.token)
		if err != nil {
			return err
		}
		_, err = c.Write(append(append([]byte{byte(len(k.id))}, k.id...), proof...))
		return err
	})
	if err != nil {
		return nil, proofError(err)
	}
	return out, nil
}

// protocols of ALPN: gRPC wants to see its own.
var protocols = []string{"h2"}

// proofError marks errors that say that one of the two is not who it should be; others are of the network.
func proofError(err error) error {
	for _, e := range []error{
		authority.ErrForeign, authority.ErrTime, authority.ErrRevoked, authority.ErrRole, authority.ErrRefused,
		release.ErrOlder, release.ErrNewer,
	} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", ErrProof, err)
		}
	}
	return err
}

// provenConn is an accepted connection that proves its key with its first read or write.
type provenConn struct {
	net.Conn // as it was accepted
	listener *provingListener
	once     sync.Once
	secure   *authority.Conn
	who      Principal
	err      error
	over     *time.Timer // ends the connection of a machine that joins
	left     int         // what it may still send, in bytes; the reader's alone
	came     time.Time
	from     string      // fromOf
	spoke    atomic.Bool // something was read from it

	stranger *list.Element // under the listener's lock; nil once the connection is no stranger
}

// NetConn is the connection below.
func (c *provenConn) NetConn() net.Conn { return c.Conn }

func (c *provenConn) handshake() error {
	c.once.Do(func() {
		c.secure, c.who, c.err = c.listener.keys.challenge(c.Conn, func() { c.spoke.Store(true) })
		if g, ok := c.Conn.(*guardedConn); ok && c.who.Server != nil {
			g.door.certified(&g.peer, c.who.Server, nil)
			g.way.places.entered(g)
		}
		if c.err == nil && c.who.Joining != nil { // it stays a stranger
			c.over, c.left = time.AfterFunc(joinTime, func() { c.Conn.Close() }), joinBytes
			return
		}
		c.listener.known(c)
	})
	return c.err
}

func (c *provenConn) Read(p []byte) (int, error) {
	if err := c.handshake(); err != nil {
		return 0, err
	}
	if c.over == nil {
		return c.secure.Read(p)
	}
	if c.left <= 0 {
		return 0, fmt.Errorf("%w: a machine that joins sent more than %d bytes", ErrProof, joinBytes)
	}
	n, err := c.secure.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

func (c *provenConn) Write(p []byte) (int, error) {
	if err := c.handshake(); err != nil {
		return 0, err
	}
	return c.secure.Write(p)
}

func (c *provenConn) Close() error {
	c.listener.known(c)
	err := c.Conn.Close() // ends a handshake, too
	if c.handshake() == nil {
		c.secure.Close()
	}
	if c.over != nil {
		c.over.Stop()
	}
	return err
}

// ErrProof: one end of a connection is not who the other one takes it for.
var ErrProof = errors.New("not let in")

// challenge runs the acceptor's side. heard is called when the other end has said something.
func (k Keyring) challenge(c net.Conn, heard func()) (*authority.Conn, Principal, error) {
	ctx, cancel := context.WithTimeout(context.Background(), proofTime)
	defer cancel()
	door := authority.Door{Roles: k.Roles, Protocols: protocols, Heard: heard}
	var who Principal
	if k.Token != nil || k.Joining {
		door.Guest = func(c *authority.Conn) (err error) {
			who, err = k.checkProof(c.Conn)
			return err
		}
	}
	out, err := k.Member.Accept(ctx, c, door)
	if err != nil {
		return nil, Principal{}, proofError(err)
	}
	if peer := out.Peer(); peer != nil {
		who = Principal{Server: peer, Program: out.Program()}
	}
	return out, who, nil
}

// errToken says nothing of which of the two is wrong.
var errToken = fmt.Errorf("%w: the container or its token is not known", ErrProof)

// checkProof is whose token the other end of a connection knows, or that it joins.
func (k Keyring) checkProof(c *tls.Conn) (Principal, error) {
	answer := make([]byte, maxKeyID+sha256.Size)
	if _, err := io.ReadFull(c, answer[:1]); err != nil {
		return Principal{}, err
	}
	n := int(answer[0])
	switch {
	case n == 0 && k.Joining:
		bound, err := joinBinding(c)
		return Principal{Joining: bound}, err
	case n > 0 && k.Token == nil:
		return Principal{}, fmt.Errorf("%w: this is no place for containers", ErrProof)
	case n == 0 || n > maxKeyID:
		return Principal{}, fmt.Errorf("the peer's container has an id of %d bytes, want 1 to %d", n, maxKeyID)
	}
	answer = answer[:n+sha256.Size]
	if _, err := io.ReadFull(c, answer); err != nil {
		return Principal{}, err
	}
	id := string(answer[:n])
	want, err := proofOf(c, id, k.find(id))
	if err != nil {
		return Principal{}, err
	}
	if !hmac.Equal(answer[n:], want) {
		return Principal{}, errToken
	}
	return Principal{Container: id}, nil
}

// proofOf shows knowledge of a container's token on one connection.
func proofOf(c *tls.Conn, id string, token []byte) ([]byte, error) {
	state := c.ConnectionState()
	material, err := state.ExportKeyingMaterial("EXPORTER-hops-container", nil, sha256.Size)
	if err != nil {
		return nil, err
	}
	h := hmac.New(sha256.New, token)
	io.WriteString(h, "hops container")
	io.WriteString(h, id)
	h.Write(material)
	return h.Sum(nil), nil
}

// Credentials are those of a gRPC client with this key.
func (k Key) Credentials() credentials.TransportCredentials { return provenCredentials{k} }

// Credentials are those of a gRPC server on a listener of Listen; a call's Principal is who has proved the key.
func (k Keyring) Credentials() credentials.TransportCredentials { return provenCredentials{} }

// provenCredentials make gRPC run the handshake: with its key as the dialer, as the acceptor on connections of a proving
// listener.
type provenCredentials struct{ key Key }

func (p provenCredentials) ClientHandshake(ctx context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	out, err := p.key.prove(ctx, c)
	return out, Principal{}, err
}

func (provenCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	p, ok := c.(*provenConn)
	if !ok {
		return nil, nil, fmt.Errorf("%w: the connection was not accepted by a listener that asks for proof", ErrProof)
	}
	if err := p.handshake(); err != nil {
		return nil, nil, err
	}
	return p, p.who, nil
}

func (provenCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (p provenCredentials) Clone() credentials.TransportCredentials { return p }
func (provenCredentials) OverrideServerName(string) error           { return nil }
