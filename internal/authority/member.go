package authority

import (
	"cmp"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/internal/release"
)

// handshakeTime is how long a peer may take to show who it is.
const handshakeTime = 10 * time.Second

// Config of a member.
type Config struct {
	// Key and Certificate are the member's own; the certificate is in DER.
	Key         crypto.Signer
	Certificate []byte
	Trust       *Trust
	// Program is of which version this member is; zero: release.This.
	Program release.Program
	// Now is the clock.
	Now func() time.Time
}

// Member is this machine, or user, as the others meet it: it makes connections on which both ends show who they are. Its
// certificate and what it trusts are replaced while it runs. It is safe for concurrent use.
type Member struct {
	now     func() time.Time
	key     crypto.Signer
	program release.Program

	mu     sync.Mutex
	level  int // that the cluster has been raised to; 0: it was not heard
	own    *tls.Certificate
	rooted *tls.Certificate // with the authority's root, for who knows its fingerprint
	self   *Name
	trust  *Trust
	open   map[*Conn]struct{}
}

// NewMember checks that key, certificate and trust fit each other.
func NewMember(c Config) (*Member, error) {
	m := &Member{now: c.Now, key: c.Key, program: cmp.Or(c.Program, release.This), open: map[*Conn]struct{}{}, trust: c.Trust}
	if err := m.Renewed(c.Certificate); err != nil {
		return nil, err
	}
	return m, nil
}

// Self is who this member is.
func (m *Member) Self() *Name {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.self
}

// Renewed takes a newer certificate for the same key. Connections that are open stay so.
func (m *Member) Renewed(der []byte) error {
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("this member's certificate: %w", err)
	}
	public, ok := m.key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(leaf.PublicKey) {
		return errors.New("this member's certificate is for another key")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	self, err := m.trust.Verify(leaf, m.now())
	if err != nil {
		return fmt.Errorf("this member's own certificate: %w", err)
	}
	m.self = self
	m.show(leaf)
	return nil
}

// show puts together what is shown. The caller has locked mu.
func (m *Member) show(leaf *x509.Certificate) {
	m.own = &tls.Certificate{Certificate: m.trust.chain(leaf, false), PrivateKey: m.key, Leaf: leaf}
	m.rooted = &tls.Certificate{Certificate: m.trust.chain(leaf, true), PrivateKey: m.key, Leaf: leaf}
}

// Roots are the authorities that it trusts.
func (m *Member) Roots() []*x509.Certificate {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.trust.Roots
}

// Certificate is the member's own.
func (m *Member) Certificate() *x509.Certificate {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.own.Leaf
}

// Issuer is the authority that issued the member's certificate.
func (m *Member) Issuer() Fingerprint {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.trust.Roots {
		if m.own.Leaf.CheckSignatureFrom(r) == nil {
			return FingerprintOf(r)
		}
	}
	return Fingerprint{}
}

// Trusts is what it trusts now.
func (m *Member) Trusts() *Trust {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.trust
}

// Addresses are the names and addresses at which its certificate says that it answers.
func (m *Member) Addresses() []string {
	leaf := m.certificate().Leaf
	out := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		out = append(out, ip.String())
	}
	return out
}

// RenewAt is when the certificate should be replaced: after two thirds of its life.
func (m *Member) RenewAt() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	begin := m.own.Leaf.NotBefore.Add(backdated)
	return begin.Add(m.own.Leaf.NotAfter.Sub(begin) * 2 / 3)
}

// Believe takes a newer trust, and closes connections to those who have lost it.
func (m *Member) Believe(t *Trust) {
	m.believe(func(*Trust) *Trust { return t })
}

// trustRoots takes other authorities, which the cluster has named, and the links to them.
func (m *Member) trustRoots(roots, links []*x509.Certificate) {
	m.believe(func(before *Trust) *Trust {
		t := *before
		t.Roots, t.Links = roots, links
		return &t
	})
}

// believe makes a newer trust of the one before in one step, so that no other is lost in between.
func (m *Member) believe(change func(before *Trust) *Trust) {
	m.mu.Lock()
	t := change(m.trust)
	m.trust = t
	m.show(m.own.Leaf)
	now := m.now()
	var lost []*Conn
	for c := range m.open {
		if _, err := t.Verify(c.leaf, now); err != nil && !errors.Is(err, ErrTime) { // what was shown in time stays good
			lost = append(lost, c)
		}
	}
	m.mu.Unlock()
	for _, c := range lost {
		c.Close()
	}
}

// Conn is a connection whose other end has shown who it is, or is a client without a certificate.
type Conn struct {
	*tls.Conn
	socket  *batch
	reading sync.Mutex
	peer    *Name
	leaf    *x509.Certificate
	refused error
	member  *Member
	program release.Program // of the other end; zero: it is no member that says so, or is a client
}

// Peer is who the other end is; nil for a client without a good certificate.
func (c *Conn) Peer() *Name { return c.peer }

// Program is of which version the other end is; zero: it is no member, or did not say.
func (c *Conn) Program() release.Program {
	if c.member == nil {
		return release.Program{}
	}
	c.member.mu.Lock()
	defer c.member.mu.Unlock()
	return c.program
}

// Refused says why a client's certificate is not good; nil when it is, or when there is none.
func (c *Conn) Refused() error { return c.refused }

// Write sends many bytes with few system calls: TLS makes a record of each 16 KiB.
func (c *Conn) Write(p []byte) (int, error) {
	if len(p) <= record {
		return c.Conn.Write(p)
	}
	c.socket.hold()
	n, err := c.Conn.Write(p)
	return n, errors.Join(err, c.socket.release())
}

// Read reads as many records as were received with the first one, and fit into p.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	n, err := c.Conn.Read(p)
	if c.socket.taken -= n + overhead; c.socket.taken > 0 && err == nil && n < len(p) {
		n += c.more(p[n:], buffered)
	}
	return n, err
}

// ReadNow reads what has come, perhaps nothing, and does not wait for more.
func (c *Conn) ReadNow(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.socket.mode = here
	n, err := c.Conn.Read(p)
	c.socket.mode = wait
	c.socket.taken -= n + overhead
	if errors.Is(err, errNothing) {
		c.socket.taken = 0
		return n, nil
	}
	if err == nil && n < len(p) {
		n += c.more(p[n:], here)
	}
	return n, err
}

// more reads what there is without waiting. An error stays with TLS, for the next read.
func (c *Conn) more(p []byte, m mode) (n int) {
	c.socket.mode = m
	defer func() { c.socket.mode = wait }()
	for n < len(p) {
		k, err := c.Conn.Read(p[n:])
		n += k
		c.socket.taken -= k + overhead
		if err != nil {
			c.socket.taken = 0
			return n
		}
	}
	return n
}

// WriteBuffers writes all of several buffers, as Write does.
func (c *Conn) WriteBuffers(b *net.Buffers) (n int64, err error) {
	c.socket.hold()
	for len(*b) > 0 && err == nil {
		var k int
		k, err = c.Conn.Write((*b)[0])
		n += int64(k)
		*b = (*b)[1:]
	}
	return n, errors.Join(err, c.socket.release())
}

// Close closes the connection.
func (c *Conn) Close() error {
	if c.member == nil { // a visitor's
		return c.Conn.Close()
	}
	c.member.mu.Lock()
	delete(c.member.open, c)
	c.member.mu.Unlock()
	return c.Conn.Close()
}

func (m *Member) certificate() *tls.Certificate {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.own
}

// config is what both sides have in common. Sessions are not resumed: who was removed must show a certificate each time.
func (m *Member) config(protocols []string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true, NextProtos: protocols, Time: m.now,
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if h.ServerName == rootWanted {
				m.mu.Lock()
				defer m.mu.Unlock()
				return m.rooted, nil
			}
			return m.certificate(), nil
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return m.certificate(), nil },
	}
}

// Door says whom a side of a connection lets in.
type Door struct {
	// Roles of which the peer needs one; none: any member of the cluster.
	Roles []Role
	// Strangers may come without a certificate, or with one that is not good: clients, which show who they are in another way
	// and are answered in the protocol that follows. There is no verdict then.
	Strangers bool
	// Guest says, before the verdict, whether an acceptor lets in who comes without a certificate and shows in another way who it
	// is; nil: nobody comes without one. It ends with the connection's deadline.
	Guest func(c *Conn) error
	// Heard, if set, is called when the first message of who connects has come.
	Heard func()
	// Old: TLS 1.2 is taken too, for clients that are not ours.
	Old bool
	// Protocols are those of ALPN, such as h2.
	Protocols []string
}

// allows says whether a peer has one of the roles.
func (d *Door) allows(n *Name) error {
	if len(d.Roles) > 0 && !slices.ContainsFunc(d.Roles, n.Has) {
		return fmt.Errorf("%w: %s is not %s", ErrRole, n, join(d.Roles))
	}
	return nil
}

// Between members the acceptor says its verdict first, since an alert of TLS tells nobody what to do:
//
//	acceptor → dialer    its level [1] | the oldest it works with [1] | length of the reason [2] | reason; no reason: come in
const maxVerdict = 1 << 10

// Accept runs the server's side of a connection. It ends with ctx, and after 10 s. When it fails, c is closed.
func (m *Member) Accept(ctx context.Context, c net.Conn, d Door) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	config := m.config(d.Protocols)
	if config.ClientAuth = tls.RequireAnyClientCert; d.Strangers || d.Guest != nil {
		config.ClientAuth = tls.RequestClientCert
	}
	if d.Old {
		config.MinVersion = tls.VersionTLS12
	}
	var offered []string
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		offered = hello.SupportedProtos
		if d.Heard != nil {
			d.Heard()
		}
		return nil, nil
	}
	b := &batch{Conn: c}
	t := tls.Server(b, config)
	out, err := m.handshake(ctx, b, t, d)
	if out == nil { // not even a certificate
		c.Close()
		return nil, fmt.Errorf("%s: %w", c.RemoteAddr(), err)
	}
	if d.Strangers {
		out.refused, err = err, nil
	} else {
		err = within(ctx, t, func() error {
			switch {
			case err != nil:
			case out.peer == nil:
				err = d.Guest(out)
			case out.peer.Machine != "":
				err = m.suits(out, programOf(offered))
			}
			return errors.Join(err, writeVerdict(t, m.program, err))
		})
	}
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("%s: %w", c.RemoteAddr(), err)
	}
	return out, nil
}

// Connect runs the dialer's side, to a peer with one of the door's roles. It ends with ctx, and after 10 s. When it fails, c is
// closed.
func (m *Member) Connect(ctx context.Context, c net.Conn, d Door) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	protocols := d.Protocols
	if !d.Strangers {
		protocols = m.offer(protocols)
	}
	config := m.config(protocols)
	// A member is who its certificate says, wherever it answers: handshake looks at that before anything is sent.
	config.InsecureSkipVerify = true
	b := &batch{Conn: c}
	t := tls.Client(b, config)
	out, err := m.handshake(ctx, b, t, d)
	if err == nil && !d.Strangers {
		err = within(ctx, t, func() error {
			p, err := readVerdict(t)
			if err == nil {
				err = m.suits(out, p)
			}
			return err
		})
	}
	if err != nil {
		c.Close()
		if out != nil {
			out.Close()
		}
		return nil, fmt.Errorf("%s: %w", c.RemoteAddr(), err)
	}
	return out, nil
}

// handshake returns a connection when the peer has shown a certificate, or may come without one, and an error when it is not let
// in.
func (m *Member) handshake(ctx context.Context, b *batch, c *tls.Conn, d Door) (*Conn, error) {
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	out := &Conn{Conn: c, socket: b, member: m}
	shown := c.ConnectionState().PeerCertificates
	if len(shown) == 0 {
		return out, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.trust.Verify(shown[0], m.now())
	if err == nil {
		err = d.allows(n)
	}
	if err == nil {
		out.peer, out.leaf = n, shown[0]
		m.open[out] = struct{}{}
	}
	return out, err
}

// within runs what reads or writes, until ctx ends.
func within(ctx context.Context, c net.Conn, do func() error) error {
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	err := do()
	if !stop() {
		return ctx.Err()
	}
	return err
}

func writeVerdict(w io.Writer, p release.Program, refused error) error {
	var text string
	if refused != nil {
		text = refused.Error()
	}
	text = text[:min(len(text), maxVerdict)]
	_, err := w.Write(append(binary.BigEndian.AppendUint16([]byte{byte(p.Level), byte(p.Oldest)}, uint16(len(text))), text...))
	return err
}

// ErrRefused: the peer does not let this member in.
var ErrRefused = errors.New("it refuses this member")

// readVerdict returns the acceptor's version, or why it refuses.
func readVerdict(r io.Reader) (release.Program, error) {
	var p release.Program
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return p, fmt.Errorf("no verdict: %w", err)
	}
	p = release.Program{Level: int(head[0]), Oldest: int(head[1])}
	n := binary.BigEndian.Uint16(head[2:])
	if n == 0 {
		return p, nil
	}
	if n > maxVerdict {
		return p, fmt.Errorf("a verdict of %d bytes, %d are allowed", n, maxVerdict)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return p, fmt.Errorf("half a verdict: %w", err)
	}
	return p, fmt.Errorf("%w: %q", ErrRefused, text)
}
