package raftstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/internal/security"
)

// A connection belongs to one group. Behind the proof of the cluster's secret its first bytes are
//
//	dialer:   "HOPSRAFT", "HOPSASKS", "HOPSKNOW" or "HOPSPULL" | version 1 | length, name of the group | length, cluster id
//	acceptor: 0, or 1 | length, reason
//
// and then hashicorp/raft's protocol, questions (ask.go), the answer of found.go, or a version (pull.go). Lengths are one byte.
const (
	streamMagic   = "HOPSRAFT"
	questionMagic = "HOPSASKS"
	knowMagic     = "HOPSKNOW"
	pullMagic     = "HOPSPULL"
	streamVersion = 1
	// headerTimeout is for a peer that connects and says nothing.
	headerTimeout = 5 * time.Second
)

// Routes lists what a Raft port does.
func Routes() []security.Route {
	return []security.Route{
		{Port: "Raft", Name: streamMagic, Right: security.ServersOnly},
		{Port: "Raft", Name: questionMagic, Right: security.ServersOnly},
		{Port: "Raft", Name: knowMagic, Right: security.ServersOnly},
		{Port: "Raft", Name: pullMagic, Right: security.ServersOnly},
	}
}

func writeHeader(w io.Writer, kind, group, cluster string) error {
	b := append([]byte(kind), streamVersion, byte(len(group)))
	b = append(b, group...)
	b = append(b, byte(len(cluster)))
	b = append(b, cluster...)
	_, err := w.Write(b)
	return err
}

func readHeader(r io.Reader) (kind, group, cluster string, err error) {
	var magic [len(streamMagic) + 1]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil {
		return "", "", "", err
	}
	if kind = string(magic[:len(streamMagic)]); kind != streamMagic && kind != questionMagic && kind != knowMagic && kind != pullMagic {
		return "", "", "", errors.New("this is not a Raft connection of hops")
	}
	if v := magic[len(streamMagic)]; v != streamVersion {
		return "", "", "", fmt.Errorf("the peer speaks stream version %d, this program %d", v, streamVersion)
	}
	if group, err = readShort(r); err != nil {
		return "", "", "", err
	}
	cluster, err = readShort(r)
	return kind, group, cluster, err
}

func readShort(r io.Reader) (string, error) {
	var b [256]byte
	if _, err := io.ReadFull(r, b[:1]); err != nil {
		return "", err
	}
	text := b[1 : 1+int(b[0])]
	_, err := io.ReadFull(r, text)
	return string(text), err
}

// accept hands the listener's connections to the groups they ask for, until the listener is closed.
func (h *Host) accept(ctx context.Context) error {
	var wait sync.WaitGroup
	defer wait.Wait()
	for {
		conn, err := h.listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EINVAL) { // EINVAL: it was shut down, and accepts nothing any more
				return fmt.Errorf("raft listener: %w", err)
			}
			h.log.Warn("cannot accept a Raft connection", "err", err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(50 * time.Millisecond): // descriptors may come free
			}
			continue
		}
		wait.Go(func() {
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			if err := h.route(conn); err != nil {
				h.log.Debug("refused a Raft connection", "remote", conn.RemoteAddr().String(), "err", err)
				conn.Close()
			}
		})
	}
}

// route reads the header of a new connection and passes the connection on.
func (h *Host) route(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(h.headerTimeout)); err != nil {
		return err
	}
	kind, name, cluster, err := readHeader(conn)
	if err != nil {
		return err
	}
	h.mu.Lock()
	g := h.groups[name]
	h.mu.Unlock()
	if g == nil {
		err = fmt.Errorf("member %s does not carry group %q", h.cfg.ID, name)
	} else {
		err = g.related(kind, cluster)
	}
	if err != nil {
		reason := err.Error()
		conn.Write(append([]byte{1, byte(min(len(reason), 255))}, reason[:min(len(reason), 255)]...))
		return err
	}
	if kind == knowMagic {
		return g.tellKnowledge(conn)
	}
	if _, err := conn.Write([]byte{0}); err != nil {
		return err
	}
	// The handshake of the secret clears the deadline on both ends; this makes sure of it.
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if kind == questionMagic {
		tracked := g.streams.track(conn)
		if tracked == nil {
			return errClosed
		}
		go g.answer(tracked)
		return nil
	}
	if kind == pullMagic {
		tracked := g.streams.track(conn)
		if tracked == nil {
			return errClosed
		}
		go g.serveVersion(tracked)
		return nil
	}
	return g.streams.deliver(conn)
}

// related refuses a connection of another cluster, or of the group before or after it was recovered. An empty member takes
// over the number of the leader that finds it.
func (g *Group) related(kind, lineage string) error {
	own := g.identity()
	cluster, recovered := ofLineage(lineage)
	switch {
	case cluster != "" && own.Cluster != "" && cluster != own.Cluster:
		return fmt.Errorf("group %s of member %s belongs to cluster %s, not to %s", g.name, own.Member, own.Cluster, cluster)
	case recovered == own.Recovered || kind == knowMagic:
		return nil
	case recovered > own.Recovered && kind == streamMagic && g.joining.Load() && g.raft.LastIndex() == 0:
		return g.alter(func(i *identity) { i.Recovered = recovered })
	}
	return fmt.Errorf("group %s of member %s was recovered %d times, the caller knows of %d: whoever knows less has to be reinstalled and added again",
		g.name, own.Member, own.Recovered, recovered)
}

// streams is one group's share of the listener: a raft.StreamLayer.
type streams struct {
	host    *Host
	group   string
	lineage func() string
	in      chan net.Conn
	done    chan struct{}
	// ended is told when a connection of a peer's raft has ended; capacity 1.
	ended chan struct{}

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]struct{}
}

func newStreams(h *Host, group string, lineage func() string) *streams {
	return &streams{
		host: h, group: group, lineage: lineage,
		in: make(chan net.Conn), done: make(chan struct{}), ended: make(chan struct{}, 1), open: make(map[net.Conn]struct{}),
	}
}

// deliver hands an accepted connection to raft, which owns it from then on.
func (s *streams) deliver(conn net.Conn) error {
	tracked := s.track(conn)
	if tracked == nil {
		return errClosed
	}
	select {
	case s.in <- &peerConn{Conn: tracked, ended: s.ended}:
		return nil
	case <-s.done:
		return errClosed
	}
}

// Accept implements net.Listener.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case c := <-s.in:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Dial implements raft.StreamLayer.
func (s *streams) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return s.dial(context.Background(), streamMagic, address, timeout)
}

// dial makes a connection of a kind.
func (s *streams) dial(ctx context.Context, kind string, address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := s.host.cfg.Credentials.Key(s.host.cfg.Role).Dial(ctx, "tcp", string(address))
	if err != nil {
		return nil, err
	}
	if err := s.greet(conn, kind, timeout); err != nil {
		conn.Close()
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	if tracked := s.track(conn); tracked != nil {
		return tracked, nil
	}
	conn.Close()
	return nil, errClosed
}

func (s *streams) greet(conn net.Conn, kind string, timeout time.Duration) error {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if err := writeHeader(conn, kind, s.group, s.lineage()); err != nil {
		return err
	}
	var status [1]byte
	if _, err := io.ReadFull(conn, status[:]); err != nil {
		return err
	}
	if status[0] != 0 {
		reason, err := readShort(bufio.NewReader(conn))
		if err != nil {
			return err
		}
		return fmt.Errorf("refused: %s", reason)
	}
	return conn.SetDeadline(time.Time{})
}

// track remembers a connection so that Close can end it; nil after Close.
func (s *streams) track(conn net.Conn) net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.open[conn] = struct{}{}
	return &trackedConn{Conn: conn, streams: s}
}

type trackedConn struct {
	net.Conn
	streams *streams
}

func (c *trackedConn) Close() error {
	c.streams.mu.Lock()
	delete(c.streams.open, c.Conn)
	c.streams.mu.Unlock()
	return c.Conn.Close()
}

// peerConn is a connection on which a peer's raft speaks.
type peerConn struct {
	net.Conn
	ended chan<- struct{}
}

// Close tells that it has ended.
func (c *peerConn) Close() error {
	err := c.Conn.Close()
	select {
	case c.ended <- struct{}{}:
	default:
	}
	return err
}

// Close implements net.Listener: it ends all connections of the group and leaves the host's listener alone.
func (s *streams) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	close(s.done)
	for c := range s.open {
		c.Close()
	}
	clear(s.open)
	return nil
}

// Addr implements net.Listener: what peers are told to connect to.
func (s *streams) Addr() net.Addr { return address(s.host.cfg.Advertise) }

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }
