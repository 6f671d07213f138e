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

// localFlow reads a range of a block by descriptors that a datanode of this machine has handed over, and checks every byte of
// it. Whatever goes wrong, the datanode is asked for the rest over a socket: what it has changed since it handed them over looks
// like damage here, and what is damaged looks so there, too.
//
// Who reads in order has what follows read and checked by other goroutines meanwhile, within the range. None of these waits for a
// disk once the flow ends, and its end waits for them.
type localFlow struct {
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

// localPiece are bytes that are read ahead.
type localPiece struct {
	buf  *localBytes
	done chan struct{} // closed when what follows is known
	data []byte
	err  error
}

// openLocal opens length bytes at offset of a block whose replica is on this machine; nil: it is read as others are.
func (r *Reader) openLocal(ctx context.Context, a *attempt, b *located, offset, length int64) *localFlow {
	if r.c.config.NoShortCircuit || r.c.config.DomainSocket == "" || b.group != nil || b.open || b.size < localLeast {
		return nil
	}
	for _, node := range b.nodes {
		if r.isBad(b, node) {
			continue
		}
		if d := r.c.local.get(ctx, b, node); d != nil {
			return &localFlow{r: r, ctx: ctx, b: b, node: node, d: d, pos: offset, end: offset + length, began: offset - a.sequence}
		}
	}
	return nil
}

func (f *localFlow) read() ([]byte, error) {
	b := f.data
	f.data = nil
	if len(b) == 0 {
		if f.pos >= f.end {
			f.close()
			return nil, io.EOF
		}
		var err error
		if b, err = f.next(); err != nil {
			f.abandon(err)
			return nil, err
		}
		f.r.c.local.bytes.Add(int64(len(b)))
	}
	f.pos += int64(len(b))
	return b, nil
}

// next reads what follows.
func (f *localFlow) next() ([]byte, error) {
	if err := f.ctx.Err(); err != nil {
		return nil, err
	}
	if f.buf != nil {
		localBuffers.Put(f.buf)
		f.buf = nil
	}
	if f.inOrder(f.pos) {
		f.readAhead()
	}
	if len(f.ahead) == 0 {
		f.buf = localBuffers.Get().(*localBytes)
		return f.fill(f.ctx, f.buf, f.pos)
	}
	p := f.take()
	f.buf = p.buf
	return p.data, p.err
}

// readAhead has what follows read by other goroutines, as far as there is room.
func (f *localFlow) readAhead() {
	l := f.r.c.local
	f.asked = max(f.asked, f.pos)
	if f.stop == nil && f.asked < f.end {
		f.ctx, f.stop = context.WithCancel(f.ctx)
	}
	for f.asked < f.end && len(f.ahead) < localWindow {
		if l.ahead.Add(1) > localAhead {
			l.ahead.Add(-1)
			return
		}
		p := &localPiece{buf: localBuffers.Get().(*localBytes), done: make(chan struct{})}
		ctx, at := f.ctx, f.asked
		go func() {
			defer close(p.done)
			p.data, p.err = f.fill(ctx, p.buf, at)
		}()
		f.ahead = append(f.ahead, p)
		_, f.asked = f.extent(at)
	}
}

// take waits for the first of what is read ahead.
func (f *localFlow) take() *localPiece {
	p := f.ahead[0]
	f.ahead = slices.Delete(f.ahead, 0, 1)
	<-p.done
	f.r.c.local.ahead.Add(-1)
	return p
}

// inOrder reports whether so much before pos is read in order that what follows will be wanted.
func (f *localFlow) inOrder(pos int64) bool { return pos-f.began >= localSequence }

// extent is what is read at a time to have the byte at pos: the chunks from start to stop, in the block.
func (f *localFlow) extent(pos int64) (start, stop int64) {
	per, most := int64(f.d.sum.BytesPer), int64(localFirst)
	if f.inOrder(pos) {
		most = localBuffer
	}
	start = pos - pos%per
	return start, min(start+most/per*per, (f.end+per-1)/per*per, f.d.size)
}

// fill reads the bytes at pos, as many as go into buf, and checks them. It changes nothing of the flow.
func (f *localFlow) fill(ctx context.Context, buf *localBytes, pos int64) ([]byte, error) {
	start, stop := f.extent(pos)
	data := buf.data[:stop-start]
	sums := buf.sums[:f.d.sum.SumsLen(len(data))]
	l := f.r.c.local
	if err := l.readFile(ctx, f.d, f.d.sums, sums, metaHeader+start/int64(f.d.sum.BytesPer)*4); err != nil {
		return nil, fmt.Errorf("checksums: %w", err)
	}
	if err := l.readFile(ctx, f.d, f.d.data, data, start); err != nil {
		return nil, err
	}
	if err := f.d.sum.Verify(sums, data); err != nil {
		return nil, fmt.Errorf("at offset %d: %w", start, err)
	}
	return data[pos-start : min(stop, f.end)-start], nil
}

func (f *localFlow) unread(b []byte) {
	f.data = b
	f.pos -= int64(len(b))
}

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
// want to wait.
func (f *localFlow) abandon(err error) {
	if f.ctx.Err() == nil {
		f.r.c.log.Debug("a replica on this machine is read over a socket now", "path", f.r.path, "block", f.b.block.GetBlockId(), "offset", f.pos, "error", err)
		f.r.c.local.reject(f.d, err)
		if errors.Is(err, errSlowDisk) { // the datanode would wait for it as well: others are asked first
			f.r.c.suspect(f.node, f.b.block, f.b.token, true)
		}
	}
	f.close()
}

// failed blames nobody: abandon has seen to it.
func (f *localFlow) failed(error) error { return nil }

func (f *localFlow) close() {
	f.data = nil
	if f.stop != nil {
		f.stop()
		f.stop = nil
	}
	for len(f.ahead) > 0 {
		localBuffers.Put(f.take().buf)
	}
	if f.buf != nil {
		localBuffers.Put(f.buf)
		f.buf = nil
	}
	if f.d != nil {
		f.r.c.local.put(f.d)
		f.d = nil
	}
}
