package authority

import (
	"net"
	"sync"
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

	mu    sync.Mutex
	holds int
	buf   *[]byte // nil while it holds nothing
	err   error   // of what was sent after its writer had gone
}

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

// Read reads ahead while much comes. A connection that is quiet has no buffer here.
func (b *batch) Read(p []byte) (int, error) {
	if b.ahead == nil {
		if !b.more || len(p) >= batchSize {
			n, err := b.Conn.Read(p)
			b.more = n == len(p)
			return n, err
		}
		buf := aheads.Get().(*[]byte)
		n, err := b.Conn.Read((*buf)[:batchSize])
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
