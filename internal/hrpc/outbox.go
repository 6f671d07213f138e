package hrpc

import (
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// outbox collects frames that go out on a connection, so that one system call sends many. Whoever finds it idle sends;
// those who add meanwhile leave their frames to the sender.
type outbox struct {
	conn    net.Conn
	timeout time.Duration   // for one write to be taken by the peer
	wake    chan struct{}   // tells the writer goroutine that there is something; capacity one
	raw     syscall.RawConn // of conn; nil if it is no socket

	// Of the sender.
	push   func(fd uintptr) bool // o.pushRest
	rest   []byte
	failed error

	mu       sync.Mutex
	pending  []byte
	spare    []byte
	sending  bool
	held     bool // the reader promises to flush soon
	err      error
	deadline time.Time
	room     *sync.Cond // something has been sent
}

func newOutbox(conn net.Conn, timeout time.Duration) *outbox {
	o := &outbox{conn: conn, timeout: timeout, wake: make(chan struct{}, 1)}
	o.room = sync.NewCond(&o.mu)
	o.push = o.pushRest
	if socket, ok := conn.(syscall.Conn); ok {
		o.raw, _ = socket.SyscallConn() // without it Conn.Write does
	}
	return o
}

// atOnce is the most that goes to the kernel without telling the scheduler.
const atOnce = 64 << 10

// write gives b to the kernel, waiting while the peer does not take it.
func (o *outbox) write(b []byte) error {
	if o.raw == nil || len(b) > atOnce {
		_, err := o.conn.Write(b)
		return err
	}
	o.rest, o.failed = b, nil
	err := o.raw.Write(o.push)
	o.rest = nil
	if err == nil {
		err = o.failed
	}
	return err
}

// pushRest writes what the socket takes; false: it takes no more now.
func (o *outbox) pushRest(fd uintptr) bool {
	for len(o.rest) > 0 {
		n, errno := writeSocket(fd, o.rest)
		switch {
		case errno == syscall.EAGAIN:
			return false
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
// error and no change. After the connection has failed add returns why.
func (o *outbox) add(encode func([]byte) ([]byte, error)) error { return o.put(encode, false) }

// put is add; with now the caller sends what is little, if nobody else does.
func (o *outbox) put(encode func([]byte) ([]byte, error), now bool) error {
	o.mu.Lock()
	if o.err != nil {
		o.mu.Unlock()
		return o.err
	}
	out, err := encode(o.pending)
	if err == nil {
		o.pending = out
	}
	tell := err == nil && !o.sending && !o.held
	if tell && now && len(out) <= atOnce {
		err, tell = o.send(), false
	}
	o.mu.Unlock()
	if tell {
		o.signal()
	}
	return err
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// hold says whether the caller will flush in a moment, so that nobody else need.
func (o *outbox) hold(yes bool) (waiting int) {
	o.mu.Lock()
	o.held = yes
	waiting = len(o.pending)
	o.mu.Unlock()
	return waiting
}

// release ends a hold and flushes.
func (o *outbox) release() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = false
	return o.send()
}

// flush sends until nothing is pending; while another goroutine sends it returns at once.
func (o *outbox) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.send()
}

// send is flush under mu, which it gives up while it writes.
func (o *outbox) send() error {
	if o.sending {
		return o.err
	}
	o.sending = true
	for len(o.pending) > 0 && o.err == nil {
		out := o.pending
		o.pending, o.spare = o.spare[:0], nil
		now := time.Now()
		if o.deadline.Sub(now) < o.timeout/2 {
			o.deadline = now.Add(o.timeout)
			_ = o.conn.SetWriteDeadline(o.deadline)
		}
		o.mu.Unlock()
		err := o.write(out)
		o.mu.Lock()
		if cap(out) <= keepBuffer {
			o.spare = out[:0]
		}
		if err != nil && o.err == nil {
			o.err = err
		}
		o.room.Broadcast()
	}
	o.sending = false
	return o.err
}

// drain waits, helping if nobody sends, until at most limit bytes are pending.
func (o *outbox) drain(limit int) error {
	for {
		o.mu.Lock()
		for o.sending && len(o.pending) > limit && o.err == nil {
			o.room.Wait()
		}
		done, err := len(o.pending) <= limit, o.err
		o.mu.Unlock()
		if done || err != nil {
			return err
		}
		if err := o.flush(); err != nil {
			return err
		}
	}
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
