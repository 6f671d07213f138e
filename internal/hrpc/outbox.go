package hrpc

import (
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/security"
)

// outbox collects frames that go out on a connection, so that one system call sends many. Whoever finds it idle sends;
// those who add meanwhile leave their frames to the sender.
type outbox struct {
	conn    net.Conn
	timeout time.Duration   // for one write to be taken by the peer
	tell    func(*outbox)   // there is something to send: somebody has to flush, or sendAtOnce
	broken  func()          // sendAtOnce has failed; may be nil
	raw     syscall.RawConn // of conn; nil if it is no socket

	// Of the sender.
	push   func(fd uintptr) bool // o.pushRest
	rest   []byte
	hasty  bool // does not wait for the peer
	failed error

	mu       sync.Mutex
	sealed   [][]byte // is sent before pending
	pending  []byte
	spare    []byte
	waiting  int // bytes of sealed and pending
	sending  bool
	told     bool // and sendAtOnce has not begun
	held     bool // the reader promises to flush soon
	err      error
	deadline time.Time
	room     *sync.Cond // something has been sent, or sending has ended
	leaving  int        // memory of what the sender has

	// account pays for the memory; nil: nobody does. paid is how many bytes it holds.
	account *security.Account
	paid    int
}

func newOutbox(conn net.Conn, timeout time.Duration, tell func(*outbox)) *outbox {
	o := &outbox{conn: conn, timeout: timeout, tell: tell}
	o.room = sync.NewCond(&o.mu)
	o.push = o.pushRest
	return o
}

// plain says which socket is written directly, before anything is sent; nil: Conn.Write does it.
func (o *outbox) plain(raw syscall.RawConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.raw = raw
}

const (
	// atOnce is the most that goes to the kernel without telling the scheduler.
	atOnce = 64 << 10
	// sealAt is when frames begin in new memory: what waits for a slow peer is not copied again and again, and takes no
	// more memory than about its size.
	sealAt = 256 << 10
)

// write gives b to the kernel, waiting while the peer does not take it.
func (o *outbox) write(b []byte) error {
	if o.raw == nil || len(b) > atOnce {
		_, err := o.conn.Write(b)
		return err
	}
	_, err := o.give(b, false)
	return err
}

// give is write for a socket; a hasty one returns what the peer does not take now.
func (o *outbox) give(b []byte, hasty bool) (rest []byte, err error) {
	o.rest, o.hasty, o.failed = b, hasty, nil
	err = o.raw.Write(o.push)
	rest, o.rest = o.rest, nil
	if err == nil {
		err = o.failed
	}
	return rest, err
}

// pushRest writes what the socket takes; false: it takes no more now.
func (o *outbox) pushRest(fd uintptr) bool {
	for len(o.rest) > 0 {
		n, errno := writeSocket(fd, o.rest)
		switch {
		case errno == syscall.EAGAIN:
			return o.hasty
		case errno == syscall.EINTR:
		case errno != 0:
			o.failed = os.NewSyscallError("write", errno)
			return true
		default:
			o.rest = o.rest[n:]
		}
	}
	return true
}

// add runs encode on what is pending and makes sure that somebody sends it. encode appends whole frames, or returns an
// error and no change; if it panics, that is an *encodingPanic. After the connection has failed add returns why.
func (o *outbox) add(encode func([]byte) ([]byte, error)) error { return o.put(encode, false) }

// put is add; with now the caller sends what is little, if nobody else does.
func (o *outbox) put(encode func([]byte) ([]byte, error), now bool) error {
	o.mu.Lock()
	if o.err != nil {
		o.mu.Unlock()
		return o.err
	}
	out, err := encoded(encode, o.pending)
	if err == nil {
		o.waiting += len(out) - len(o.pending)
		if o.pending = out; len(out) >= sealAt {
			o.sealed = append(o.sealed, out)
			o.pending, o.spare = o.spare[:0], nil
		}
		o.pay()
	}
	tell := err == nil && !o.sending && !o.held
	if tell && now && len(out) <= atOnce {
		err, tell = o.send(time.Now()), false
	}
	tell = tell && !o.told
	o.told = o.told || tell
	o.mu.Unlock()
	if tell {
		o.tell(o)
	}
	return err
}

// encodingPanic is what a panic of an encoder has become: everybody on the connection needs the lock that is held then.
type encodingPanic struct {
	value any
	stack []byte
}

func (p *encodingPanic) Error() string { return fmt.Sprintf("its encoder panicked: %v", p.value) }

// encoded is encode(dst), and an error where that panics: what was appended does not count.
func encoded(encode func([]byte) ([]byte, error), dst []byte) (out []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, &encodingPanic{value: r, stack: debug.Stack()}
		}
	}()
	return encode(dst)
}

// hold says whether the caller will flush in a moment, so that nobody else need.
func (o *outbox) hold(yes bool) (waiting int) {
	o.mu.Lock()
	o.held = yes
	waiting = o.waiting
	o.mu.Unlock()
	return waiting
}

// release ends a hold that began now and flushes.
func (o *outbox) release(now time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = false
	return o.send(now)
}

// flush sends until nothing is pending; while another goroutine sends it returns at once.
func (o *outbox) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = false
	return o.send(time.Now())
}

// send is flush under mu, which it gives up while it writes.
func (o *outbox) send(now time.Time) error {
	if o.sending {
		return o.err
	}
	o.sending = true
	for o.waiting > 0 && o.err == nil {
		out := o.next(now)
		o.mu.Unlock()
		err := o.write(out)
		o.mu.Lock()
		o.sent(out, err)
		if o.waiting > 0 {
			now = time.Now()
		}
	}
	o.ended()
	return o.err
}

// sendAtOnce is flush for who must not wait: what the peer does not take now is left to a goroutine of its own.
func (o *outbox) sendAtOnce() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = false
	if o.sending || o.held {
		return // who does that sends this too
	}
	o.sending = true
	for o.waiting > 0 && o.err == nil {
		out := o.next(time.Now())
		if o.raw == nil || len(out) > atOnce {
			go o.sendRest(out, out)
			return
		}
		o.mu.Unlock()
		rest, err := o.give(out, true)
		o.mu.Lock()
		if err == nil && len(rest) > 0 {
			go o.sendRest(out, rest)
			return
		}
		o.sent(out, err)
	}
	o.ended()
	o.report()
}

// sendRest writes what is left of out, and all that is pending.
func (o *outbox) sendRest(out, rest []byte) {
	err := o.write(rest)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent(out, err)
	o.sending = false      // it stays this goroutine's: mu is held
	_ = o.send(time.Now()) // reported
	o.report()
}

// report tells of a failure, under mu, which it gives up meanwhile.
func (o *outbox) report() {
	if o.err != nil && o.broken != nil {
		o.mu.Unlock()
		o.broken()
		o.mu.Lock()
	}
}

// next takes what is to be sent first, for the sender. mu is held.
func (o *outbox) next(now time.Time) []byte {
	out := o.pending
	if len(o.sealed) > 0 {
		out = o.sealed[0]
		o.sealed[0] = nil
		if o.sealed = o.sealed[1:]; len(o.sealed) == 0 {
			o.sealed = nil
		}
	} else {
		o.pending, o.spare = o.spare[:0], nil
	}
	o.waiting -= len(out)
	o.leaving = cap(out)
	if o.deadline.Sub(now) < o.timeout/2 {
		o.deadline = now.Add(o.timeout)
		_ = o.conn.SetWriteDeadline(o.deadline)
	}
	return out
}

// sent takes the memory back of what the sender has written. mu is held.
func (o *outbox) sent(out []byte, err error) {
	if o.leaving = 0; cap(out) <= keepBuffer && cap(out) > cap(o.spare) {
		o.spare = out[:0]
	}
	o.pay()
	if err != nil && o.err == nil {
		o.err = err
	}
	o.room.Broadcast()
}

// pay settles with the account for the memory that is held now. mu is held.
func (o *outbox) pay() {
	if o.account == nil {
		return
	}
	n := cap(o.pending) + cap(o.spare) + o.leaving
	for _, b := range o.sealed {
		n += cap(b)
	}
	switch {
	case n > o.paid:
		o.account.Force(int64(n - o.paid))
	case n < o.paid:
		o.account.Give(int64(o.paid - n))
	}
	o.paid = n
}

// shrink gives the memory back that a quiet connection does not need.
func (o *outbox) shrink() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.sending && o.waiting == 0 {
		o.pending, o.spare = nil, nil
		o.pay()
	}
}

// await waits until at most limit bytes are pending.
func (o *outbox) await(limit int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.waiting > limit && o.err == nil {
		o.room.Wait()
	}
	return o.err
}

// ended says that nobody sends any more. mu is held.
func (o *outbox) ended() {
	o.sending = false
	o.room.Broadcast()
}

// drain waits, helping if nobody sends, until at most limit bytes are pending; with a limit of 0, until the kernel has
// them.
func (o *outbox) drain(limit int) error {
	for {
		o.mu.Lock()
		for o.sending && (o.waiting > limit || limit == 0) && o.err == nil {
			o.room.Wait()
		}
		done, err := o.waiting <= limit, o.err
		o.mu.Unlock()
		if done || err != nil {
			return err
		}
		if err := o.flush(); err != nil {
			return err
		}
	}
}

// settle waits until nobody sends, which is soon once the connection is closed, and gives the memory back. fail has to
// have been called.
func (o *outbox) settle() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.sending {
		o.room.Wait()
	}
	o.sealed, o.pending, o.spare, o.waiting = nil, nil, nil, 0
	o.pay()
}

// fail makes every later add return err.
func (o *outbox) fail(err error) {
	o.mu.Lock()
	if o.err == nil {
		o.err = err
	}
	o.room.Broadcast()
	o.mu.Unlock()
}

// failure is why nothing can be sent any more, nil while it can.
func (o *outbox) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
