package transfer

import (
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
)

const (
	// laneRoom is how many bytes that were copied may wait in one direction of a lane.
	laneRoom = 256 << 10
	// laneGather is how long who reads for a batch waits until that is full. A sender is never far away here, and would be followed packet by
	// packet: long writes to a file cost much less.
	laneGather = time.Millisecond
)

// Within connects to this server from its own process, as the HTTP door does that writes a block here: nothing passes through the kernel, and
// nobody has to prove what this process knows. The token for the block is looked at as always. It returns nil while the server does not run.
//
// The connection also takes memory without copying it: Lend.
func (s *Server) Within() net.Conn {
	near, far := newLane()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving == nil || s.down {
		return nil
	}
	ctx := s.serving
	c := newConn(s, far)
	c.own = true
	s.conns[far] = c
	s.active.Add(1)
	s.served.Go(func() {
		defer s.untrack(far)
		c.serve(ctx)
	})
	return near
}

// lane is one end of a connection within the process.
type lane struct{ in, out *way }

func newLane() (near, far *lane) {
	there, back := newWay(), newWay()
	return &lane{in: back, out: there}, &lane{in: there, out: back}
}

// way is one direction of a lane.
type way struct {
	mu   sync.Mutex
	wake *sync.Cond
	// parts wait to be read, size bytes in all. Those that were lent are the sender's memory.
	parts [][]byte
	size  int
	lent  bool // whether any of parts is
	want  int  // how many bytes the reader waits for
	ended bool // nothing follows
	deaf  bool // nobody reads any more
	// reading and writing are until when.
	reading, writing limit
}

func newWay() *way {
	w := &way{}
	w.wake = sync.NewCond(&w.mu)
	return w
}

// limit is a deadline.
type limit struct {
	at    time.Time
	timer *time.Timer
}

func (l *limit) over() bool { return !l.at.IsZero() && !time.Now().Before(l.at) }

// set moves a deadline of the way.
func (w *way) set(l *limit, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l.at = at
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if at.IsZero() {
		return
	}
	l.timer = time.AfterFunc(time.Until(at), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wake.Broadcast()
	})
}

// read waits for something and copies as much as p has room for.
func (w *way) read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.size == 0 || w.deaf {
		switch {
		case w.deaf:
			return 0, net.ErrClosed
		case w.ended:
			return 0, io.EOF
		case w.reading.over():
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		}
		w.await(1)
	}
	return w.take(p), nil
}

// gather waits until p can be filled, for laneGather at most, and copies what there is then: perhaps nothing.
func (w *way) gather(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.soon(len(p))
	if w.deaf {
		return 0, net.ErrClosed
	}
	return w.take(p), nil
}

// packets waits until n bytes can be read, for laneGather at most, and reports whether packet will return one then.
func (w *way) packets(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.soon(n)
	if len(w.parts) == 0 || w.deaf {
		return false
	}
	_, ok := dtp.Whole(w.parts[0])
	return ok
}

// packet takes a packet out of the lane, as it lies in the memory of the sender; ok: the next thing to be read is one as a whole. The memory
// stays as it is until the packet is answered to, even if the sender closes its end meanwhile.
func (w *way) packet() (p dtp.Packet, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.parts) == 0 || w.deaf {
		return p, false
	}
	if p, ok = dtp.Whole(w.parts[0]); !ok {
		return p, false
	}
	if w.size -= len(w.parts[0]); w.size == 0 {
		w.lent = false
	}
	left := copy(w.parts, w.parts[1:])
	clear(w.parts[left:])
	w.parts = w.parts[:left]
	w.wake.Broadcast()
	return p, true
}

// soon waits for n bytes, for laneGather at most. w.mu is held.
func (w *way) soon(n int) {
	if w.size < n && !w.ended && !w.deaf {
		over := false
		timer := time.AfterFunc(laneGather, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			over = true
			w.wake.Broadcast()
		})
		for w.size < n && !w.ended && !w.deaf && !over {
			w.await(n)
		}
		timer.Stop()
	}
}

// await waits for so many bytes, or for something else to happen. w.mu is held.
func (w *way) await(n int) {
	w.want = n
	w.wake.Wait()
	w.want = 0
}

// take copies what waits. w.mu is held.
func (w *way) take(p []byte) int {
	n, used := 0, 0
	for used < len(w.parts) && n < len(p) {
		k := copy(p[n:], w.parts[used])
		n += k
		if w.parts[used] = w.parts[used][k:]; len(w.parts[used]) == 0 {
			used++
		}
	}
	left := copy(w.parts, w.parts[used:])
	clear(w.parts[left:])
	w.parts = w.parts[:left]
	if w.size -= n; w.size == 0 {
		w.lent = false
	}
	if n > 0 {
		w.wake.Broadcast()
	}
	return n
}

// something returns when there is something to read, or the end.
func (w *way) something() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.size == 0 && !w.ended && !w.deaf {
		if w.reading.over() {
			return os.ErrDeadlineExceeded
		}
		w.await(1)
	}
	return nil
}

// broken is why nothing can be sent; nil: it can. w.mu is held.
func (w *way) broken() error {
	switch {
	case w.ended:
		return net.ErrClosed
	case w.deaf:
		return io.ErrClosedPipe
	case w.writing.over():
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (w *way) write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for n < len(p) {
		if err := w.broken(); err != nil {
			return n, err
		}
		if w.size >= laneRoom {
			w.wake.Wait()
			continue
		}
		k := min(len(p)-n, laneRoom)
		w.parts = append(w.parts, append([]byte(nil), p[n:n+k]...))
		w.size += k
		n += k
		w.wake.Broadcast()
	}
	return n, nil
}

// end is for who has sent and sends no more. What was copied can still be read; what was lent cannot.
func (w *way) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.lent {
		w.drop()
	}
	w.stop()
}

// deafen is for who has read and reads no more.
func (w *way) deafen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaf = true
	w.drop()
	w.stop()
}

func (w *way) drop() { w.parts, w.size, w.lent = nil, 0, false }

func (w *way) stop() {
	for _, l := range []*limit{&w.reading, &w.writing} {
		if l.timer != nil && (w.ended && w.deaf) {
			l.timer.Stop()
		}
	}
	w.wake.Broadcast()
}

func (l *lane) Read(p []byte) (int, error)  { return l.in.read(p) }
func (l *lane) Write(p []byte) (int, error) { return l.out.write(p) }

// Lend sends parts without copying them: they must stay as they are until the far end has answered to them, whatever becomes of the lane: it
// may be writing them to a disk. It does not wait, so that who lends sees to it that not too much is under way.
func (l *lane) Lend(parts [][]byte) error {
	w := l.out
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.broken(); err != nil {
		return err
	}
	for _, p := range parts {
		if len(p) > 0 {
			w.parts = append(w.parts, p)
			w.size += len(p)
			w.lent = true
		}
	}
	if w.size >= w.want {
		w.wake.Broadcast()
	}
	return nil
}

func (l *lane) Close() error {
	l.out.end()
	l.in.deafen()
	return nil
}

func (l *lane) SetReadDeadline(t time.Time) error {
	l.in.set(&l.in.reading, t)
	return nil
}

func (l *lane) SetWriteDeadline(t time.Time) error {
	l.out.set(&l.out.writing, t)
	return nil
}

func (l *lane) SetDeadline(t time.Time) error {
	_ = l.SetReadDeadline(t)
	return l.SetWriteDeadline(t)
}

type laneAddr struct{}

func (laneAddr) Network() string { return "process" }
func (laneAddr) String() string  { return "this process" }

func (l *lane) LocalAddr() net.Addr  { return laneAddr{} }
func (l *lane) RemoteAddr() net.Addr { return laneAddr{} }

// waits returns what tells without a buffer that something has come on a connection, and what reads that without waiting for more, or not for
// long; nil where that cannot be done.
func waits(nc net.Conn) (await func() error, now func(p []byte) (int, error)) {
	if l, ok := nc.(*lane); ok {
		return l.in.something, l.in.gather
	}
	if raw := security.Raw(nc); raw != nil {
		await = func() error { return raw.Read(peek) }
	}
	return await, security.Immediate(nc)
}
