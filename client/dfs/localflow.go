package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const (
	// localFirst is how much is read at a time by descriptors, in bytes: it stays in a processor's cache between the file, the
	// checksums and whoever wants it. It is localBuffer after localSequence bytes in order; then what follows is read ahead.
	localFirst    = 256 << 10
	localBuffer   = 512 << 10
	localSequence = 1 << 20
	// localChunk is how many bytes a checksum covers at least.
	localChunk = 512
	// localWindow is how many buffers a reader has that reads ahead: its own, and those that are filled meanwhile. localAhead
	// bounds the latter of all readers of a client; who gets none reads as before.
	localWindow = 3
	localAhead  = 64
)

var localBuffers = sync.Pool{New: func() any { return new(localBytes) }}

// localBytes are bytes of a replica with their checksums.
type localBytes struct {
	data [localBuffer]byte
	sums [localBuffer / localChunk * 4]byte
}

// localStream reads a range of a replica, which may be an internal block of a group, by descriptors that a datanode of this machine has handed over,
// and checks every byte of it. Whatever goes wrong, the datanode is asked for the rest over a socket: what it has changed since it handed them over
// looks like damage here, and what is damaged looks so there, too.
//
// Who reads in order has what follows read and checked by other goroutines meanwhile, within the range. None of these waits for a
// disk once the stream ends, and its end waits for them.
type localStream struct {
	r    *Reader
	ctx  context.Context
	b    *located
	node *hadooppb.DatanodeInfoProto // whose replica it is
	d    *descriptors
	buf  *localBytes // that of the bytes which read has returned last
	// pos is where the next bytes are in the block, end that of the range.
	pos, end int64
	data     []byte // read and not handed out
	// began is where in the block, or before it, reading in order began.
	began int64

	// What is read ahead, in order, up to where in the block, and what ends it.
	ahead []*localPiece
	asked int64
	stop  context.CancelFunc
}

// errAbandoned: what the descriptors showed was not what it should be, and a socket is the way now.
var errAbandoned = errors.New("a replica on this machine is read over a socket now")

// localFlow reads a range of a block by descriptors.
type localFlow struct{ *localStream }

// localPiece are bytes that are read ahead.
type localPiece struct {
	buf  *localBytes
	done chan struct{} // closed when what follows is known
	data []byte
	err  error
}

// openLocal opens length bytes at offset of a block whose replica is on this machine; nil: it is read as others are.
func (r *Reader) openLocal(ctx context.Context, a *attempt, b *located, offset, length int64) *localFlow {
	if b.group != nil || b.open {
		return nil
	}
	for _, node := range b.nodes {
		if r.isBad(b, node) {
			continue
		}
		if s := r.localStream(ctx, b, node, offset, length); s != nil {
			s.began -= a.sequence
			return &localFlow{s}
		}
	}
	return nil
}

// localStream opens length bytes at offset of a datanode's replica of b, which is finished; nil: it is not to be had by descriptors.
func (r *Reader) localStream(ctx context.Context, b *located, node *hadooppb.DatanodeInfoProto, offset, length int64) *localStream {
	if r.c.config.NoShortCircuit || r.c.config.DomainSocket == "" || b.size < localLeast {
		return nil
	}
	d := r.c.local.get(ctx, b, node)
	if d == nil {
		return nil
	}
	return &localStream{r: r, ctx: ctx, b: b, node: node, d: d, pos: offset, end: offset + length, began: offset}
}

func (s *localStream) read() ([]byte, error) {
	b := s.data
	s.data = nil
	if len(b) == 0 {
		if s.pos >= s.end {
			s.close()
			return nil, io.EOF
		}
		var err error
		if b, err = s.next(); err != nil {
			return nil, s.abandon(err)
		}
		s.r.c.local.bytes.Add(int64(len(b)))
	}
	s.pos += int64(len(b))
	return b, nil
}

// next reads what follows.
func (s *localStream) next() ([]byte, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	if s.buf != nil {
		localBuffers.Put(s.buf)
		s.buf = nil
	}
	if s.inOrder(s.pos) {
		s.readAhead()
	}
	if len(s.ahead) == 0 {
		s.buf = localBuffers.Get().(*localBytes)
		return s.fill(s.ctx, s.buf, s.pos)
	}
	p := s.take()
	s.buf = p.buf
	return p.data, p.err
}

// readAhead has what follows read by other goroutines, as far as there is room.
func (s *localStream) readAhead() {
	l := s.r.c.local
	s.asked = max(s.asked, s.pos)
	if s.stop == nil && s.asked < s.end {
		s.ctx, s.stop = context.WithCancel(s.ctx)
	}
	for s.asked < s.end && len(s.ahead) < localWindow {
		if l.ahead.Add(1) > localAhead {
			l.ahead.Add(-1)
			return
		}
		p := &localPiece{buf: localBuffers.Get().(*localBytes), done: make(chan struct{})}
		ctx, at := s.ctx, s.asked
		go func() {
			defer close(p.done)
			p.data, p.err = s.fill(ctx, p.buf, at)
		}()
		s.ahead = append(s.ahead, p)
		_, s.asked = s.extent(at)
	}
}

// take waits for the first of what is read ahead.
func (s *localStream) take() *localPiece {
	p := s.ahead[0]
	s.ahead = slices.Delete(s.ahead, 0, 1)
	<-p.done
	s.r.c.local.ahead.Add(-1)
	return p
}

// inOrder reports whether so much before pos is read in order that what follows will be wanted.
func (s *localStream) inOrder(pos int64) bool { return pos-s.began >= localSequence }

// extent is what is read at a time to have the byte at pos: the chunks from start to stop, in the block.
func (s *localStream) extent(pos int64) (start, stop int64) {
	per, most := int64(s.d.sum.BytesPer), int64(localFirst)
	if s.inOrder(pos) {
		most = localBuffer
	}
	start = pos - pos%per
	return start, min(start+most/per*per, (s.end+per-1)/per*per, s.d.size)
}

// fill reads the bytes at pos, as many as go into buf, and checks them. It changes nothing of the stream.
func (s *localStream) fill(ctx context.Context, buf *localBytes, pos int64) ([]byte, error) {
	start, stop := s.extent(pos)
	data := buf.data[:stop-start]
	sums := buf.sums[:s.d.sum.SumsLen(len(data))]
	l := s.r.c.local
	if err := l.readFile(ctx, s.d, s.d.sums, sums, metaHeader+start/int64(s.d.sum.BytesPer)*4); err != nil {
		return nil, fmt.Errorf("checksums: %w", err)
	}
	if err := l.readFile(ctx, s.d, s.d.data, data, start); err != nil {
		return nil, err
	}
	if err := s.d.sum.Verify(sums, data); err != nil {
		return nil, fmt.Errorf("at offset %d: %w", start, err)
	}
	return data[pos-start : min(stop, s.end)-start], nil
}

func (s *localStream) unread(b []byte) {
	s.data = b[:len(b)+len(s.data)]
	s.pos -= int64(len(b))
}

func (s *localStream) place() (pos, end int64) { return s.pos, s.end }

func (f *localFlow) during(*attempt) {}
func (f *localFlow) until() int64    { return f.b.end() }

func (f *localFlow) settle() bool {
	if f.pos < f.end {
		return false
	}
	f.close()
	return true
}

// abandon has the datanode, or another one where its disk is slow, asked over a socket, by this reader and by others for a while, unless it is the reader who does not
// want to wait. The error is errAbandoned then, otherwise err.
func (s *localStream) abandon(err error) error {
	if s.ctx.Err() == nil {
		s.r.c.log.Debug(errAbandoned.Error(), "path", s.r.path, "block", s.d.key.block, "offset", s.pos, "error", err)
		s.r.c.local.reject(s.d, err)
		if errors.Is(err, errSlowDisk) { // the datanode would wait for it as well: others are asked first
			s.r.c.suspect(s.node, s.b.block, s.b.token, true)
		}
		err = fmt.Errorf("%w: %w", errAbandoned, err)
	}
	s.close()
	return err
}

// failed blames nobody: abandon has seen to it.
func (f *localFlow) failed(error) error { return nil }

// part needs no more than close: what was not read is nobody's loss.
func (s *localStream) part() { s.close() }

func (s *localStream) close() {
	s.data = nil
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
	for len(s.ahead) > 0 {
		localBuffers.Put(s.take().buf)
	}
	if s.buf != nil {
		localBuffers.Put(s.buf)
		s.buf = nil
	}
	if s.d != nil {
		s.r.c.local.put(s.d)
		s.d = nil
	}
}
