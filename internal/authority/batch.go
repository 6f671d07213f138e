package authority

import (
	"net"
	"sync"
)

// record is the most that one record of TLS holds (RFC 8446, 5.1), in bytes.
const record = 16 << 10

// batchSize is how much is sent with one system call.
const batchSize = 128 << 10

// batch is the socket below a connection of TLS, which writes each record by itself. While it is held, records are kept
// until there are enough of them, or the holder lets go.
type batch struct {
	net.Conn

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
