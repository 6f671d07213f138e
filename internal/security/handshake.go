package security

import (
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// Both ends of a connection between servers, or between an application's master and a resource manager, prove that they
// know a key before anything else is said, and neither shows it:
//
//	acceptor → dialer    "HOPS" | version 2 | nonce S [32]
//	dialer → acceptor    length of the key's id | id | nonce C [32] | HMAC(key, "dialer" ends S C)
//	acceptor → dialer    HMAC(key, "acceptor" ends S C)
//
// The key without an id is the cluster's secret; others are tokens of containers, by the container's id. ends are the id
// and the acceptor's address as each side sees it: what a stranger at one address passes on to a server at another one
// does not fit.
const (
	handshakeMagic = "HOPS\x02"
	nonceBytes     = 32
	maxKeyID       = 128
	// proofTime is how long a peer may take to prove its key.
	proofTime = 5 * time.Second
	// maxStrangers is how many connections of a listener may be without proof; one more, and the oldest is closed.
	maxStrangers = 256
)

// Key is what a dialer proves.
type Key struct {
	id  string
	key []byte
}

// Key is the cluster's secret as the key of a server.
func (s Secret) Key() Key { return Key{key: s.key} }

// TokenKey is the key of a container that has a token.
func TokenKey(container, token string) Key { return Key{container, []byte(token)} }

// Principal is who has proved a key.
type Principal struct {
	// Container is the id of the container whose token was proved; empty: a server of the cluster.
	Container string
}

// AuthType implements credentials.AuthInfo.
func (Principal) AuthType() string { return "hops" }

// Keyring knows the keys that an acceptor takes.
type Keyring struct {
	Secret Secret
	// Token finds the token of a container; nil: only servers are let in.
	Token func(container string) (token string, ok bool)
}

// find returns the key of an id. An unknown one has a key that nobody knows, so that it is refused like a wrong proof.
func (k Keyring) find(id string) []byte {
	if id == "" && len(k.Secret.key) > 0 {
		return k.Secret.key
	}
	if id != "" && k.Token != nil {
		if token, ok := k.Token(id); ok && token != "" {
			return []byte(token)
		}
	}
	return NewSecret().key
}

// Listen makes accepted connections prove a key before their first byte is read or written. Accept itself does not wait
// for that. Strangers hold few places, of which the oldest is given to the newest.
func (k Keyring) Listen(l net.Listener) net.Listener {
	return &provingListener{Listener: l, keys: k}
}

type provingListener struct {
	net.Listener
	keys Keyring

	mu        sync.Mutex
	strangers list.List // of *provenConn, the oldest in front
}

func (l *provingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	p := &provenConn{Conn: c}
	var oldest *provenConn
	l.mu.Lock()
	if l.strangers.Len() >= maxStrangers {
		oldest = l.strangers.Remove(l.strangers.Front()).(*provenConn)
		oldest.stranger = nil
	}
	p.stranger = l.strangers.PushBack(p)
	l.mu.Unlock()
	if oldest != nil {
		oldest.Conn.Close()
	}
	p.prove = func() error {
		defer l.known(p)
		var err error
		p.who, err = l.keys.challenge(c)
		return err
	}
	p.closed = func() { l.known(p) }
	return p, nil
}

// known takes a connection off the strangers.
func (l *provingListener) known(p *provenConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.stranger != nil {
		l.strangers.Remove(p.stranger)
		p.stranger = nil
	}
}

// Dial connects to a proving listener.
func (k Key) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if err := k.prove(ctx, c); err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return c, nil
}

// prove runs the dialer's side, within the proof's time and ctx.
func (k Key) prove(ctx context.Context, c net.Conn) error {
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c.SetDeadline(time.Now().Add(proofTime))
	if err := k.respond(c); err != nil {
		return err
	}
	if !stop() {
		return ctx.Err()
	}
	return c.SetDeadline(time.Time{})
}

// provenConn is an accepted connection that proves its key with its first read or write.
type provenConn struct {
	net.Conn
	prove  func() error
	closed func()
	once   sync.Once
	who    Principal
	err    error

	stranger *list.Element // under the listener's lock; nil once the connection is no stranger
}

// NetConn is the connection below.
func (c *provenConn) NetConn() net.Conn { return c.Conn }

func (c *provenConn) handshake() error {
	c.once.Do(func() {
		c.Conn.SetDeadline(time.Now().Add(proofTime))
		if c.err = c.prove(); c.err != nil {
			c.Conn.Close()
			return
		}
		c.err = c.Conn.SetDeadline(time.Time{})
	})
	return c.err
}

func (c *provenConn) Read(p []byte) (int, error) {
	if err := c.handshake(); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *provenConn) Write(p []byte) (int, error) {
	if err := c.handshake(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *provenConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// ErrProof: the peer does not know the key that a connection needs.
var ErrProof = errors.New("the peer does not know this cluster's secret, or the container's token")

// challenge runs the acceptor's side.
func (k Keyring) challenge(c net.Conn) (Principal, error) {
	hello := make([]byte, len(handshakeMagic)+nonceBytes)
	copy(hello, handshakeMagic)
	theirs := hello[len(handshakeMagic):]
	rand.Read(theirs)
	if _, err := c.Write(hello); err != nil {
		return Principal{}, err
	}
	answer := make([]byte, maxKeyID+nonceBytes+sha256.Size)
	if _, err := io.ReadFull(c, answer[:1]); err != nil {
		return Principal{}, err
	}
	n := int(answer[0])
	if n > maxKeyID {
		return Principal{}, fmt.Errorf("the peer's key has an id of %d bytes, %d are allowed", n, maxKeyID)
	}
	answer = answer[:n+nonceBytes+sha256.Size]
	if _, err := io.ReadFull(c, answer); err != nil {
		return Principal{}, err
	}
	id, nonce, shown := string(answer[:n]), answer[n:n+nonceBytes], answer[n+nonceBytes:]
	key, at := k.find(id), c.LocalAddr().String()
	if !hmac.Equal(shown, proofOf(key, "dialer", id, at, theirs, nonce)) {
		return Principal{}, ErrProof
	}
	_, err := c.Write(proofOf(key, "acceptor", id, at, theirs, nonce))
	return Principal{id}, err
}

// respond runs the dialer's side.
func (k Key) respond(c net.Conn) error {
	hello := make([]byte, len(handshakeMagic)+nonceBytes)
	if _, err := io.ReadFull(c, hello); err != nil {
		return fmt.Errorf("%w (it does not begin as one that does: %w)", ErrProof, err)
	}
	if string(hello[:len(handshakeMagic)]) != handshakeMagic {
		return fmt.Errorf("%w: what listens there is something else, or of another version", ErrProof)
	}
	theirs := hello[len(handshakeMagic):]
	nonce := make([]byte, nonceBytes)
	rand.Read(nonce)
	at := c.RemoteAddr().String()
	b := append([]byte{byte(len(k.id))}, k.id...)
	b = append(append(b, nonce...), proofOf(k.key, "dialer", k.id, at, theirs, nonce)...)
	if _, err := c.Write(b); err != nil {
		return err
	}
	shown := make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, shown); err != nil {
		return fmt.Errorf("%w (%w)", ErrProof, err)
	}
	if !hmac.Equal(shown, proofOf(k.key, "acceptor", k.id, at, theirs, nonce)) {
		return ErrProof
	}
	return nil
}

// proofOf shows knowledge of a key for one side of one connection.
func proofOf(key []byte, side, id, at string, theirs, nonce []byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, part := range [][]byte{[]byte("hops connection"), []byte(side), []byte(id), []byte(at), theirs, nonce} {
		h.Write(binary.BigEndian.AppendUint16(nil, uint16(len(part))))
		h.Write(part)
	}
	return h.Sum(nil)
}

// Credentials are those of a gRPC client with this key.
func (k Key) Credentials() credentials.TransportCredentials { return provenCredentials{k} }

// Credentials are those of a gRPC server on a listener of Listen; a call's Principal is who has proved the key.
func (k Keyring) Credentials() credentials.TransportCredentials { return provenCredentials{} }

// provenCredentials make gRPC run the handshake: with its key as the dialer, as the acceptor on connections of a proving
// listener.
type provenCredentials struct{ key Key }

func (p provenCredentials) ClientHandshake(ctx context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, Principal{}, p.key.prove(ctx, c)
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
	return credentials.ProtocolInfo{SecurityProtocol: "hops"}
}

func (p provenCredentials) Clone() credentials.TransportCredentials { return p }
func (provenCredentials) OverrideServerName(string) error           { return nil }
