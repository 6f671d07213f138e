package dfs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const (
	// peerIdle is how long a connection to a datanode is kept for the next request; datanodes keep their end for 4 s.
	peerIdle = 3 * time.Second
	// peersKept is how many are kept for one datanode.
	peersKept = 64
	// dialTimeout bounds connecting to a datanode.
	dialTimeout = 10 * time.Second
	// wideRead is from how many bytes on an answer is read through a wide buffer, wideBuffer its size: what has come of a cell of a block group
	// (1 MiB in eight packets of our datanodes) is taken with one call, as most of it has come while others were read. maxWide may be in use at a time.
	wideRead   = 2 << 20
	wideBuffer = 1040 << 10
	maxWide    = 32
	// slowAgain is the longest pause between two calls of peer.slow.
	slowAgain = time.Second
)

// peer is a connection to a datanode's transfer port. Its reads and writes end with the peer's timeout, and when somebody
// interrupts it.
type peer struct {
	conn   net.Conn
	r      *bufio.Reader // reads through the peer
	addr   string
	kept   time.Time // since when it has been idle
	reused bool      // it may have been closed by the other side meanwhile
	wrote  bool      // the last request was a write, after which Hadoop's datanodes close the connection and ours do not
	// timeout is how long the datanode may say nothing while it is read from, or take nothing; 0: for ever.
	timeout time.Duration
	// slow, if set, is called from a read that has waited for slowAfter, and again while it waits, after twice as long each time and slowAgain at most.
	slow      func()
	slowAfter time.Duration
	// cut is why reads and writes end from now on; nil: they do not.
	cut atomic.Pointer[error]
	// owed goes out with the next request, or at the end: how the last read went. A datanode is woken once less.
	owed []byte
}

// readers and wideReaders are the buffers that packets are read into.
var (
	readers     = sync.Pool{New: func() any { return dtp.NewReader(nil) }}
	wideReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, wideBuffer) }}
	wideInUse   atomic.Int32
)

// close ends the connection.
func (p *peer) close() {
	if len(p.owed) > 0 {
		_ = p.conn.SetWriteDeadline(time.Now().Add(lastWords))
		_, _ = p.conn.Write(p.owed) // who closes a connection does not need an answer
	}
	p.conn.Close()
	p.unbuffer()
}

// buffer takes a buffer to read through.
func (p *peer) buffer() {
	p.r = readers.Get().(*bufio.Reader)
	p.r.Reset(p)
}

// widen takes a wide buffer in place of the one that nothing has been read into, if one may be had.
func (p *peer) widen() {
	if wideInUse.Add(1) > maxWide {
		wideInUse.Add(-1)
		return
	}
	p.unbuffer()
	p.r = wideReaders.Get().(*bufio.Reader)
	p.r.Reset(p)
}

// unbuffer gives the buffer back.
func (p *peer) unbuffer() {
	if p.r == nil {
		return
	}
	p.r.Reset(nil)
	if p.r.Size() == wideBuffer {
		wideReaders.Put(p.r)
		wideInUse.Add(-1)
	} else {
		readers.Put(p.r)
	}
	p.r = nil
}

// request sends a request.
func (p *peer) request(op dtp.Op, m dtp.Message) error {
	b, err := dtp.AppendOp(p.owed, op, m)
	p.owed = nil
	if err == nil {
		err = p.send(b)
	}
	return err
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// interrupt ends the read and the write under way and all later ones with cause. It may be called at any time, by anybody.
func (p *peer) interrupt(cause error) {
	if p.cut.CompareAndSwap(nil, &cause) {
		_ = p.conn.SetDeadline(past)
	}
}

// during interrupts the peer when ctx ends. stop says that this is over; false: the peer has been interrupted, or is about
// to be, and is of no more use.
func (p *peer) during(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { p.interrupt(context.Cause(ctx)) })
}

// ended is why the peer was interrupted, or err if it was not.
func (p *peer) ended(err error) error {
	if cause := p.cut.Load(); cause != nil {
		return *cause
	}
	return err
}

// Read is the buffer's way to the datanode's bytes.
func (p *peer) Read(b []byte) (int, error) {
	if p.timeout == 0 {
		n, err := p.conn.Read(b)
		if err != nil {
			err = p.ended(err)
		}
		return n, err
	}
	now := time.Now()
	end := now.Add(p.timeout)
	after := p.slowAfter
	next := now.Add(after)
	for {
		deadline := end
		if p.slow != nil && next.Before(end) {
			deadline = next
		}
		_ = p.conn.SetReadDeadline(deadline)
		if p.cut.Load() != nil { // which may have been before the deadline was set
			return 0, p.ended(nil)
		}
		n, err := p.conn.Read(b)
		if n > 0 || err == nil {
			return n, err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || p.cut.Load() != nil || deadline.Equal(end) {
			return 0, p.ended(err)
		}
		p.slow()
		after = min(2*after, slowAgain)
		next = time.Now().Add(after)
	}
}

// lender is a connection within the process, which takes memory without copying it.
type lender interface{ Lend(parts [][]byte) error }

// lends reports whether what is sent may be read from where it lies until it is answered to.
func (p *peer) lends() bool {
	_, ok := p.conn.(lender)
	return ok
}

// send writes all of the parts, with one system call where that is possible.
func (p *peer) send(parts ...[]byte) error {
	if p.timeout > 0 {
		_ = p.conn.SetWriteDeadline(time.Now().Add(p.timeout))
	}
	if p.cut.Load() != nil {
		return p.ended(nil)
	}
	var err error
	if l, ok := p.conn.(lender); ok {
		err = l.Lend(parts)
	} else if len(parts) == 1 {
		_, err = p.conn.Write(parts[0])
	} else {
		buffers := net.Buffers(parts)
		if t, ok := p.conn.(interface {
			WriteBuffers(b *net.Buffers) (int64, error)
		}); ok {
			_, err = t.WriteBuffers(&buffers)
		} else {
			_, err = buffers.WriteTo(p.conn)
		}
	}
	if err != nil {
		return p.ended(err)
	}
	return nil
}

// peerPool keeps connections between requests.
type peerPool struct {
	byHostname bool
	dial       func(ctx context.Context, role authority.Role, addr string, timeout time.Duration) (net.Conn, error)
	// secure makes the handshake on a new connection, with the token of the first request; it returns the connection as it is where none is
	// wanted.
	secure func(context.Context, net.Conn, *hadooppb.TokenProto) (net.Conn, error)
	// within is Config.Within.
	within func(datanode string) net.Conn
	// near connects to a datanode of this machine, IP:port, by a socket that never leaves it; nil, or a nil connection: there is none.
	near func(ctx context.Context, addr string) net.Conn
	// keep is the constant, more in tests.
	keep time.Duration

	mu     sync.Mutex
	idle   map[string][]*peer // the longest idle first, without buffers
	closes map[string]bool    // the datanodes that close connections after writes
	kept   map[string]bool    // those that have taken a request after a write
	purge  *time.Timer
	closed bool
}

func newPeerPool(
	byHostname bool, dial func(context.Context, authority.Role, string, time.Duration) (net.Conn, error), secure func(context.Context, net.Conn, *hadooppb.TokenProto) (net.Conn, error),
) *peerPool {
	return &peerPool{byHostname: byHostname, dial: dial, secure: secure, keep: peerIdle, idle: map[string][]*peer{}, closes: map[string]bool{}, kept: map[string]bool{}}
}

// get returns an idle connection, the last one used, or makes a new one, for a request with a token.
func (pp *peerPool) get(ctx context.Context, id *hadooppb.DatanodeIDProto, t *hadooppb.TokenProto, timeout time.Duration, fresh bool) (*peer, error) {
	addr := dtp.TransferAddr(id, pp.byHostname)
	if !fresh {
		if p := pp.take(addr); p != nil {
			p.timeout = timeout
			p.buffer()
			return p, nil
		}
	}
	var conn net.Conn
	if pp.near != nil && roleOf(id) == authority.Datanode {
		conn = pp.near(ctx, dtp.TransferAddr(id, false))
	}
	if conn == nil {
		var err error
		if conn, err = pp.dial(ctx, roleOf(id), addr, timeout); err != nil {
			return nil, err
		}
		if conn, err = pp.secure(ctx, conn, t); err != nil {
			return nil, fmt.Errorf("%s: %w", addr, err)
		}
	}
	p := &peer{conn: conn, addr: addr, timeout: timeout}
	p.buffer()
	return p, nil
}

// withinAddr is the address of a datanode of this process among those of idle connections.
func withinAddr(datanode string) string { return "within:" + datanode }

// toWrite is get for a request to write a block: if the datanode is in this process, the bytes do not go through the kernel.
func (pp *peerPool) toWrite(ctx context.Context, id *hadooppb.DatanodeIDProto, t *hadooppb.TokenProto, timeout time.Duration, fresh bool) (*peer, error) {
	if pp.within == nil {
		return pp.get(ctx, id, t, timeout, fresh)
	}
	addr := withinAddr(id.GetDatanodeUuid())
	if !fresh {
		if p := pp.take(addr); p != nil {
			p.timeout = timeout
			p.buffer()
			return p, nil
		}
	}
	conn := pp.within(id.GetDatanodeUuid())
	if conn == nil {
		return pp.get(ctx, id, t, timeout, fresh)
	}
	p := &peer{conn: conn, addr: addr, timeout: timeout}
	p.buffer()
	return p, nil
}

// roleOf is what the machine of a datanode's address has to be: that of a namenode, where small files are read.
func roleOf(id *hadooppb.DatanodeIDProto) authority.Role {
	if namenode.IsDoor(namenode.NodeID(id.GetDatanodeUuid())) {
		return authority.Namenode
	}
	return authority.Datanode
}

func (c *Client) dialDatanode(ctx context.Context, role authority.Role, addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, min(timeout, dialTimeout))
	defer cancel()
	return c.config.Dial(ctx, string(role), addr)
}

func (pp *peerPool) take(addr string) *peer {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	for {
		list := pp.idle[addr]
		if len(list) == 0 {
			return nil
		}
		p := list[len(list)-1]
		pp.idle[addr] = list[:len(list)-1]
		if time.Since(p.kept) < pp.keep {
			p.reused = true
			return p
		}
		p.close()
	}
}

// stale closes a connection that was kept in vain, and remembers what that says about its datanode.
func (pp *peerPool) stale(p *peer) {
	p.close()
	if p.wrote {
		pp.mu.Lock()
		defer pp.mu.Unlock()
		pp.closes[p.addr] = true
	}
}

// answered notes that a request was answered.
func (pp *peerPool) answered(p *peer) {
	if p.reused && p.wrote {
		pp.mu.Lock()
		defer pp.mu.Unlock()
		pp.kept[p.addr] = true
	}
}

// keeps reports whether a datanode is known to keep connections after writes.
func (pp *peerPool) keeps(addr string) bool {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	return pp.kept[addr] && !pp.closes[addr]
}

// put keeps a connection on which a request has ended in order.
func (pp *peerPool) put(p *peer, wrote bool) {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	p.slow = nil
	if pp.closed || p.cut.Load() != nil || p.r.Buffered() > 0 || wrote && pp.closes[p.addr] {
		p.close()
		return
	}
	p.unbuffer()
	p.wrote = wrote
	p.kept = time.Now()
	list := pp.idle[p.addr]
	if len(list) == peersKept {
		list[0].close()
		list = append(list[:0], list[1:]...)
	}
	pp.idle[p.addr] = append(list, p)
	if pp.purge == nil {
		pp.purge = time.AfterFunc(pp.keep, pp.purgeIdle)
	}
}

// purgeIdle closes what has been idle too long, and comes again while anything is left.
func (pp *peerPool) purgeIdle() {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	pp.purge = nil
	for addr, list := range pp.idle {
		n := 0
		for n < len(list) && time.Since(list[n].kept) >= pp.keep {
			list[n].close()
			n++
		}
		if n == len(list) {
			delete(pp.idle, addr)
		} else {
			pp.idle[addr] = append(list[:0], list[n:]...)
		}
	}
	if len(pp.idle) > 0 && !pp.closed {
		pp.purge = time.AfterFunc(pp.keep/2, pp.purgeIdle)
	}
}

func (pp *peerPool) close() {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	pp.closed = true
	for _, list := range pp.idle {
		for _, p := range list {
			p.close()
		}
	}
	clear(pp.idle)
	if pp.purge != nil {
		pp.purge.Stop()
	}
}

// ipcAddr is where a datanode takes calls.
func ipcAddr(id *hadooppb.DatanodeIDProto, byHostname bool) string {
	host := id.GetIpAddr()
	if byHostname {
		host = id.GetHostName()
	}
	return net.JoinHostPort(host, strconv.FormatUint(uint64(id.GetIpcPort()), 10))
}

// ask sends a request to a datanode and returns its answer, which has succeeded, and the connection with what follows. A
// kept connection that turns out to be closed is replaced by a new one.
func (c *Client) ask(ctx context.Context, id *hadooppb.DatanodeIDProto, op dtp.Op, request dtp.Message) (*peer, *hadooppb.BlockOpResponseProto, error) {
	for fresh := false; ; fresh = true {
		p, err := c.peers.get(ctx, id, tokenOfRequest(request), c.config.DatanodeTimeout, fresh)
		if err != nil {
			return nil, nil, err
		}
		if m, ok := request.(*hadooppb.OpReadBlockProto); ok && m.GetLen() >= wideRead {
			p.widen()
		}
		answer, err := p.exchange(ctx, op, request)
		if err == nil {
			err = dtp.CheckResponse(op, answer)
			if err != nil {
				p.close()
				return nil, nil, err
			}
			return p, answer, nil
		}
		if p.reused && ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.peers.stale(p)
			continue
		}
		p.close()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, err
	}
}

// exchange sends a request and reads the answer to it, both while ctx lasts.
func (p *peer) exchange(ctx context.Context, op dtp.Op, request dtp.Message) (*hadooppb.BlockOpResponseProto, error) {
	stop := p.during(ctx)
	err := p.request(op, request)
	var answer *hadooppb.BlockOpResponseProto
	if err == nil {
		answer, err = dtp.ReadResponse(p.r)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	return answer, err
}
