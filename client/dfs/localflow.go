package dfs

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// localBuffer is how much is read at a time by descriptors, in bytes: it stays in a processor's cache between the file, the
// checksums and whoever wants it.
const localBuffer = 256 << 10

// localChunk is how many bytes a checksum covers at least.
const localChunk = 512

var localBuffers = sync.Pool{New: func() any { return new(localBytes) }}

// localBytes are bytes of a replica with their checksums.
type localBytes struct {
	data [localBuffer]byte
	sums [localBuffer / localChunk * 4]byte
}

// localFlow reads a range of a block by descriptors that a datanode of this machine has handed over, and checks every byte of
// it. Whatever goes wrong, the datanode is asked for the rest over a socket: what it has changed since it handed them over looks
// like damage here, and what is damaged looks so there, too.
type localFlow struct {
	r   *Reader
	ctx context.Context
	b   *located
	d   *descriptors
	buf *localBytes
	// pos is where the next bytes are in the block, end that of the range.
	pos, end int64
	data     []byte // read and not handed out
}

// openLocal opens length bytes at offset of a block whose replica is on this machine; nil: it is read as others are.
func (r *Reader) openLocal(ctx context.Context, b *located, offset, length int64) *localFlow {
	if r.c.config.NoShortCircuit || r.c.config.DomainSocket == "" || b.group != nil || b.open || b.size < localLeast {
		return nil
	}
	for _, node := range b.nodes {
		if r.isBad(b, node) {
			continue
		}
		if d := r.c.local.get(ctx, b, node); d != nil {
			return &localFlow{r: r, ctx: ctx, b: b, d: d, pos: offset, end: offset + length}
		}
	}
	return nil
}

func (f *localFlow) read() ([]byte, error) {
	if len(f.data) > 0 {
		b := f.data
		f.data = nil
		f.pos += int64(len(b))
		return b, nil
	}
	if f.pos >= f.end {
		f.close()
		return nil, io.EOF
	}
	b, err := f.next()
	if err != nil {
		f.abandon(err)
		return nil, err
	}
	return b, nil
}

// next reads what follows.
func (f *localFlow) next() ([]byte, error) {
	if err := f.ctx.Err(); err != nil {
		return nil, err
	}
	if f.buf == nil {
		f.buf = localBuffers.Get().(*localBytes)
	}
	per := int64(f.d.sum.BytesPer)
	start := f.pos - f.pos%per
	stop := min(start+localBuffer/per*per, (f.end+per-1)/per*per, f.d.size)
	data := f.buf.data[:stop-start]
	sums := f.buf.sums[:f.d.sum.SumsLen(len(data))]
	l := f.r.c.local
	if err := l.readSums(f.ctx, f.d, sums, metaHeader+start/per*4); err != nil {
		return nil, fmt.Errorf("checksums: %w", err)
	}
	if err := l.readFile(f.ctx, f.d, f.d.data, data, start); err != nil {
		return nil, err
	}
	if err := f.d.sum.Verify(sums, data); err != nil {
		return nil, fmt.Errorf("at offset %d: %w", start, err)
	}
	b := data[f.pos-start : min(stop, f.end)-start]
	f.pos += int64(len(b))
	l.bytes.Add(int64(len(b)))
	return b, nil
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

// abandon has the datanode asked over a socket, by this reader and by others for a while, unless it is the reader who does not
// want to wait.
func (f *localFlow) abandon(err error) {
	if f.ctx.Err() == nil {
		f.r.c.log.Debug("a replica on this machine is read over a socket now", "path", f.r.path, "block", f.b.block.GetBlockId(), "offset", f.pos, "error", err)
		f.r.c.local.reject(f.d, err)
	}
	f.close()
}

// failed blames nobody: abandon has seen to it.
func (f *localFlow) failed(error) error { return nil }

func (f *localFlow) close() {
	f.data = nil
	if f.buf != nil {
		localBuffers.Put(f.buf)
		f.buf = nil
	}
	if f.d != nil {
		f.r.c.local.put(f.d)
		f.d = nil
	}
}
