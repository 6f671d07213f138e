package authority

import (
	"net"
	"sync"
	"syscall"
)

// record is the most that one record of TLS holds (RFC 8446, 5.1), in bytes.
const record = 16 << 10

// batchSize is how much is sent with one system call.
const batchSize = 128 << 10

// batch is the socket below a connection of TLS, which reads and writes each record by itself. While it is held, records are kept
// until there are enough of them, or the holder lets go. Reads take what is there when there is more than was asked for.
type batch struct {
	net.Conn

	ahead *[]byte // what was read ahead, from at; nil while there is nothing
	at    int
	more  bool // the last read filled its buffer
	taken int  // bytes that TLS took and of which nothing was read yet, about
	mode  mode
	now   *Socket // once it was needed

	mu    sync.Mutex
	holds int
	buf   *[]byte // nil while it holds nothing
	err   error   // of what was sent after its writer had gone
}

// mode says what a read does when nothing was read ahead.
type mode int

const (
	wait     mode = iota // wait for something
	here                 // take what has come
	buffered             // take nothing
)

// overhead is what a record of TLS 1.3 has beside the data, in bytes (RFC 8446, 5.2). Where it is another number, a read looks for more
// in vain, once.
const overhead = 5 + 1 + 16

// errNothing is what a read in another mode than wait ends with. It is a temporary one, after which TLS goes on where it was.
var errNothing net.Error = nothing{}

type nothing struct{}

func (nothing) Error() string   { return "nothing has come" }
func (nothing) Timeout() bool   { return true }
func (nothing) Temporary() bool { return true }

var batches = sync.Pool{New: func() any { return new(make([]byte, 0, batchSize+record)) }}

func (b *batch) hold() {
	b.mu.Lock()
	b.holds++
	b.mu.Unlock()
}

// release sends what is kept, when nobody else holds it.
func (b *batch) release() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds--; b.holds > 0 {
		return b.err
	}
	return b.flush()
}

// flush is under mu.
func (b *batch) flush() error {
	if b.buf == nil {
		return b.err
	}
	if b.err == nil {
		_, b.err = b.Conn.Write(*b.buf)
	}
	*b.buf = (*b.buf)[:0]
	batches.Put(b.buf)
	b.buf = nil
	return b.err
}

var aheads = sync.Pool{New: func() any { return new(make([]byte, 0, batchSize)) }}

// Read gives TLS what is there.
func (b *batch) Read(p []byte) (int, error) {
	n, err := b.read(p)
	b.taken += n
	return n, err
}

// read reads ahead while much comes. A connection that is quiet has no buffer here.
func (b *batch) read(p []byte) (int, error) {
	if b.ahead == nil {
		if b.mode == buffered {
			return 0, errNothing
		}
		if !b.more || len(p) >= batchSize {
			n, err := b.receive(p)
			b.more = n == len(p)
			return n, err
		}
		buf := aheads.Get().(*[]byte)
		n, err := b.receive((*buf)[:batchSize])
		if n <= 0 {
			aheads.Put(buf)
			return n, err
		}
		*buf = (*buf)[:n]
		b.ahead, b.at, b.more = buf, 0, n == batchSize
	}
	n := copy(p, (*b.ahead)[b.at:])
	if b.at += n; b.at == len(*b.ahead) {
		aheads.Put(b.ahead)
		b.ahead = nil
	}
	return n, nil
}

// receive reads from the socket.
func (b *batch) receive(p []byte) (int, error) {
	if b.mode == wait {
		return b.Conn.Read(p)
	}
	if b.now == nil {
		s, ok := b.Conn.(syscall.Conn)
		if !ok {
			return 0, errNothing
		}
		raw, err := s.SyscallConn()
		if err != nil {
			return 0, err
		}
		b.now = NewSocket(raw)
	}
	n, err := b.now.ReadNow(p)
	if n == 0 && err == nil {
		err = errNothing
	}
	return n, err
}

// Write keeps p, or sends it.
func (b *batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	if b.holds == 0 && b.err == nil {
		b.mu.Unlock()
		return b.Conn.Write(p)
	}
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	if b.buf == nil {
		b.buf = batches.Get().(*[]byte)
	}
	*b.buf = append(*b.buf, p...)
	if len(*b.buf) < batchSize {
		return len(p), nil
	}
	if err := b.flush(); err != nil {
		return 0, err
	}
	return len(p), nil
}
