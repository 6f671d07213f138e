package security

import (
	"container/list"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/authority"
)

// DefaultConnections is how many connections a doorway serves at a time unless it says otherwise.
const DefaultConnections = 4096

// Doorway is one listening port of a Door.
type Doorway struct {
	// Name of the port, for messages.
	Name string
	// Limit is how many connections it has at a time; 0 is DefaultConnections.
	Limit int
	// Descriptors is how many a connection uses at most while it is served, its own included; 0 is 1.
	Descriptors int
	// Servers: of this machine only the servers' own user and root may connect.
	Servers bool
	// Proves: the port's protocol is TLS, in which who connects proves who it is (Keyring). Otherwise TLS is taken beside the
	// port's own protocol.
	Proves bool
	// OldTLS: clients that are not ours may use TLS 1.2.
	OldTLS bool
}

// Guard makes a listener's connections known and bounded. The owner of a local one is looked up when it comes; one without
// an owner, or of a user who has no business here, is closed at once. One from elsewhere shows who it is by TLS, in the
// protocol, or is in a trusted network; before its first bytes it counts among few. When the doorway, or the process, has no
// place left, the idlest connection of the user with most of them makes room: who opens many loses their own, and a newcomer
// is served. The cluster's servers, their user and root keep three quarters of the places as long as they use them,
// everybody else together a quarter.
func (d *Door) Guard(l net.Listener, way Doorway) net.Listener {
	if way.Limit <= 0 {
		way.Limit = DefaultConnections
	}
	way.Descriptors = max(way.Descriptors, 1)
	return &guardedListener{Listener: l, door: d, way: d.places.open(way)}
}

type guardedListener struct {
	net.Listener
	door *Door
	way  *doorway
}

func (l *guardedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		g := &guardedConn{door: l.door, way: l.way}
		switch sock := c.(type) {
		case *net.TCPConn:
			g.sock, g.peer = sock, *l.door.PeerAt(AddrsOf(c))
		case *net.UnixConn:
			g.sock, g.peer = sock, localPeer(sock)
			g.entered.Store(true) // no TLS: nothing leaves the machine
		default:
			c.Close()
			continue
		}
		own := l.door.own(&g.peer)
		ok := false
		switch g.peer.from {
		case here:
			ok = g.peer.err == nil && (own || !l.way.Servers)
		case elsewhere:
			ok = l.door.config.Member != nil || l.door.config.Pinned != nil || l.door.config.Stranger != nil
		case trusted:
			ok = true
		}
		if !ok {
			c.Close()
			continue
		}
		if l.way.Proves {
			g.entered.Store(true)
		}
		l.door.places.take(g, own)
		return g, nil
	}
}

// socket is what a port accepts: a *net.TCPConn or a *net.UnixConn.
type socket interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// guardedConn is a connection that holds a place. It has no method but those below: bytes that a method of the socket's own
// would send go in plain where TLS was agreed.
type guardedConn struct {
	sock socket
	door *Door
	way  *doorway
	peer Peer
	// busy: something was read or written since the last look for an idle connection.
	busy   atomic.Bool
	closed atomic.Bool

	entered  atomic.Bool // nothing below changes any more
	entering sync.Mutex
	refused  error
	secure   atomic.Pointer[authority.Conn] // nil: the connection is plain

	// Of the places, under their lock.
	holder *holder
	at     *list.Element // nil once the place is given back
	new    *list.Element // among those that have not entered
}

// Touch says that a connection is in use, for who reads and writes its socket directly.
func Touch(c net.Conn) {
	if g, ok := c.(*guardedConn); ok {
		g.touch()
	}
}

func (c *guardedConn) touch() {
	if !c.busy.Load() {
		c.busy.Store(true)
	}
}

func (c *guardedConn) Read(p []byte) (int, error) {
	c.touch()
	if err := c.enter(); err != nil {
		return 0, err
	}
	if t := c.secure.Load(); t != nil {
		return t.Read(p)
	}
	return c.sock.Read(p)
}

func (c *guardedConn) Write(p []byte) (int, error) {
	c.touch()
	if err := c.enter(); err != nil {
		return 0, err
	}
	if t := c.secure.Load(); t != nil {
		return t.Write(p)
	}
	return c.sock.Write(p)
}

// ReadFrom implements io.ReaderFrom.
func (c *guardedConn) ReadFrom(r io.Reader) (int64, error) {
	c.touch()
	if err := c.enter(); err != nil {
		return 0, err
	}
	if t := c.secure.Load(); t != nil {
		return io.Copy(struct{ io.Writer }{t}, r)
	}
	if unix, ok := c.sock.(*net.UnixConn); ok {
		return sendFile(unix, r)
	}
	return c.sock.(*net.TCPConn).ReadFrom(r)
}

// CloseWrite ends what is sent.
func (c *guardedConn) CloseWrite() error {
	if t := c.secure.Load(); t != nil {
		return t.CloseWrite()
	}
	return c.sock.CloseWrite()
}

// Close closes the connection, also in the middle of a handshake.
func (c *guardedConn) Close() error {
	c.closed.Store(true)
	var err error
	if t := c.secure.Load(); t != nil {
		err = t.Close()
	} else {
		err = c.sock.Close()
	}
	c.way.places.give(c)
	return err
}

func (c *guardedConn) LocalAddr() net.Addr                { return c.sock.LocalAddr() }
func (c *guardedConn) RemoteAddr() net.Addr               { return c.peer.Remote }
func (c *guardedConn) SetDeadline(t time.Time) error      { return c.sock.SetDeadline(t) }
func (c *guardedConn) SetReadDeadline(t time.Time) error  { return c.sock.SetReadDeadline(t) }
func (c *guardedConn) SetWriteDeadline(t time.Time) error { return c.sock.SetWriteDeadline(t) }

// places are the connections of all doorways of a process.
type places struct {
	capacity int // descriptors that connections may use
	log      *slog.Logger

	mu   sync.Mutex
	used int // descriptors
	ways []*doorway
	told time.Time // when an overflow was logged
}

// doorway is a Doorway with its connections.
type doorway struct {
	Doorway
	places       *places
	users        map[uint32]*holder
	own, foreign int       // connections
	new          list.List // of *guardedConn from elsewhere that have not entered, the oldest in front
}

// holder are the connections of a user at a doorway, those that were looked at longest ago in front.
type holder struct {
	uid   uint32
	own   bool
	conns list.List // of *guardedConn
}

// reservedDescriptors are not for connections that come: files, connections that this process makes itself.
const reservedDescriptors = 256

// connectionDescriptors is how many of the process's descriptors connections may use: two thirds of what it may open.
func connectionDescriptors() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		limit.Cur = 1024
	}
	usable := int(min(limit.Cur, 1<<20)) - reservedDescriptors
	return max(2*usable/3, 64)
}

func (p *places) open(way Doorway) *doorway {
	w := &doorway{Doorway: way, places: p, users: map[uint32]*holder{}}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ways = append(p.ways, w)
	return w
}

// take gives a connection its place, at the cost of another one if there is none.
func (p *places) take(c *guardedConn, own bool) {
	p.mu.Lock()
	w := c.way
	w.hold(c, own)
	var drop []*guardedConn
	if c.peer.from != here && !c.entered.Load() {
		if w.new.Len() >= maxEntering {
			oldest := w.oldest()
			p.remove(oldest)
			drop = append(drop, oldest)
		}
		c.new = w.new.PushBack(c)
	}
	for w.held() > w.Limit {
		drop = append(drop, p.evict(w, w.Limit, c))
	}
	for p.used > p.capacity {
		fullest := w
		for _, other := range p.ways {
			if other.held()*other.Descriptors > fullest.held()*fullest.Descriptors {
				fullest = other
			}
		}
		if fullest.held() == 0 || fullest == w && w.held() == 1 {
			break // the newcomer is all there is
		}
		drop = append(drop, p.evict(fullest, fullest.held(), c))
	}
	tell := len(drop) > 0 && time.Since(p.told) > time.Minute
	if tell {
		p.told = time.Now()
	}
	p.mu.Unlock()
	for _, c := range drop {
		if tell {
			p.log.Warn("too many connections: the idlest of the user with most is closed, and so on while that lasts",
				"port", c.way.Name, "peer", c.RemoteAddr().String(), "limit", c.way.Limit, "descriptors", p.capacity)
			tell = false
		}
		c.sock.Close()
	}
}

// hold counts a connection in. mu is held.
func (w *doorway) hold(c *guardedConn, own bool) {
	h := w.users[c.peer.uid]
	if h == nil {
		h = &holder{uid: c.peer.uid, own: own}
		w.users[c.peer.uid] = h
	}
	c.holder, c.at = h, h.conns.PushBack(c)
	w.count(h, 1)
}

// oldest is the connection that gives its place among those that have not entered: the oldest of the address with most.
func (w *doorway) oldest() *guardedConn {
	of, most := map[uint32]int{}, 0
	for e := w.new.Front(); e != nil; e = e.Next() {
		uid := e.Value.(*guardedConn).holder.uid
		of[uid]++
		most = max(most, of[uid])
	}
	for e := w.new.Front(); ; e = e.Next() {
		if c := e.Value.(*guardedConn); of[c.holder.uid] == most {
			return c
		}
	}
}

// entered takes a connection off those that have not shown who they are, and lets it count for who that is.
func (p *places) entered(c *guardedConn) {
	if c.peer.from == here {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.at == nil {
		return // closed meanwhile
	}
	p.remove(c)
	c.way.hold(c, c.door.own(&c.peer))
}

func (p *places) give(c *guardedConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(c)
}

// remove is give under mu.
func (p *places) remove(c *guardedConn) {
	if c.at == nil {
		return
	}
	c.holder.conns.Remove(c.at)
	c.at = nil
	c.way.count(c.holder, -1)
	if c.holder.conns.Len() == 0 {
		delete(c.way.users, c.holder.uid)
	}
	if c.new != nil {
		c.way.new.Remove(c.new)
		c.new = nil
	}
}

func (w *doorway) held() int { return w.own + w.foreign }

func (w *doorway) count(h *holder, n int) {
	if h.own {
		w.own += n
	} else {
		w.foreign += n
	}
	w.places.used += n * w.Descriptors
}

// secondChances bounds the search for an idle connection: of so many that were all busy, the one that was looked at
// longest ago goes.
const secondChances = 64

// evict takes the place of a connection other than the newcomer at a doorway whose capacity is used up, and returns it.
// mu is held; there is another one, or the newcomer goes.
func (p *places) evict(w *doorway, capacity int, newcomer *guardedConn) *guardedConn {
	ofOwn := w.own > 0 && w.foreign <= capacity/4
	var most *holder
	for _, h := range w.users {
		if h.own == ofOwn && (most == nil || h.conns.Len() > most.conns.Len()) {
			most = h
		}
	}
	var c *guardedConn
	for range min(secondChances, most.conns.Len()) {
		c = most.conns.Front().Value.(*guardedConn)
		if c != newcomer && !c.busy.Swap(false) {
			break
		}
		most.conns.MoveToBack(c.at)
	}
	p.remove(c)
	return c
}
