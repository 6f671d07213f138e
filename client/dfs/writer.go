package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Writer writes a file through a pipeline of datanodes. When a datanode fails, the rest goes on, and another one takes
// its place if the replication asks for that; a Write, flush or Close fails only when not enough is left to go on with, and
// from then on all do.
//
// Data is readable by others once Hflush has returned or Close has. Without Close the file stays open until the lease
// runs out; Abort gives it up at once. A Writer may be used by several goroutines; each Write, flush and Close is done as a
// whole, ReadFrom in pieces.
//
// The context that a Writer was opened with lives with it: when it ends, so do the calls that wait, and all later ones fail
// with its error. Abort has to be called then too, if others should not wait for the lease to run out. Within is for who
// wants to bound the opening only.
type Writer struct {
	c           *Client
	path        string
	fileID      atomic.Uint64 // 0 while it is not made; set by who has the turn
	sum         dtp.Checksum
	blockSize   int64
	replication int
	length      atomic.Int64 // of the file, with what is not sent yet
	large       atomic.Bool  // all datanodes of the block's pipeline take large packets

	// turn is held by the one call that works on what follows. Nothing foreign is called by who holds it.
	turn       turn
	err        error // why the writer is of no more use
	closed     bool
	settled    bool                         // finished or given up: nothing is left to do
	block      *blockWriter                 // being written
	last       *hadooppb.ExtendedBlockProto // finished before it
	exclude    []*hadooppb.DatanodeInfoProto
	without    []*hadooppb.DatanodeInfoProto // that the last block was asked for
	lastResort bool                          // nobody is left but those that failed
	refused    bool                          // the last block could not be written because its token was refused
	coder      *erasure.Coder                // of a file with an erasure coding policy; nil: it is replicated
	group      *groupWriter                  // being written, in place of block; block is the open end then (openend.go)
	unsealed   bool                          // last is an open end
	unseen     bool                          // last is a group that the namenode has not been told to be finished
	endless    error                         // why the server makes no open ends
	held       *held                         // the file is not made yet; nil: it is

	// life ends with the context of the Writer, with Abort and when nothing is left to do, and every wait with it.
	life context.Context
	kill context.CancelFunc
	// breakMu guards what abandon needs while a call that hangs has the turn.
	breakMu sync.Mutex
	breakup func()
}

// turn is a lock that can be waited for with a context.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx, life context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	default:
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-life.Done():
		return life.Err()
	}
}

// wait takes the turn however long that is; whoever has it is about to give it back.
func (t turn) wait() { t <- struct{}{} }

func (t turn) give() { <-t }

// Name is the path of the file.
func (w *Writer) Name() string { return w.path }

// INode returns the id of the file's inode, 0 while it is not made, under which "/.reserved/.inodes/<id>" finds it wherever it is renamed to.
func (w *Writer) INode() metadata.INodeID { return metadata.INodeID(w.fileID.Load()) }

func (w *Writer) byID() string { return fmt.Sprintf("/.reserved/.inodes/%d", w.fileID.Load()) }

// Size is the length of the file with everything written so far.
func (w *Writer) Size() int64 { return w.length.Load() }

const (
	// largeFrom is from where on in a file packets are large, in bytes, where datanodes take such.
	largeFrom = 1 << 20
)

// packet returns an empty packet for data that comes in bulk.
func (w *Writer) packet() *outPacket {
	return w.packetOf(w.large.Load() && w.length.Load() >= largeFrom)
}

// packetOf returns an empty packet, of one or the other size.
func (w *Writer) packetOf(large bool) *outPacket {
	pool, size := &w.c.packets, dtp.DataSize
	if large {
		pool, size = &w.c.large, dtp.LargeSize
	}
	p, _ := pool.Get().(*outPacket)
	if p == nil || p.sum != w.sum {
		p = &outPacket{Builder: dtp.NewBuilder(w.sum, max(size/w.sum.BytesPer, 1)*w.sum.BytesPer), sum: w.sum, large: large}
	}
	p.Reset()
	p.start, p.last = 0, false
	return p
}

// putPacket gives a packet back.
func (c *Client) putPacket(p *outPacket) {
	if p.large {
		c.large.Put(p)
	} else {
		c.packets.Put(p)
	}
}

// begin takes the turn for an operation that ends with ctx. Without an error the turn has to be given back.
func (w *Writer) begin(ctx context.Context, op string) error {
	if err := w.turn.take(ctx, w.life); err != nil {
		return wrap(op, w.path, w.reason(err))
	}
	if err := w.usable(op); err != nil {
		w.turn.give()
		return err
	}
	return nil
}

// alive returns a context that ends with ctx and with the life of the writer, until done is called.
func (w *Writer) alive(ctx context.Context) (both context.Context, done func()) {
	if ctx == w.life || w.life.Err() != nil {
		return w.life, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(w.life, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// reason is why the life of the writer is over if err only says that it is.
func (w *Writer) reason(err error) error {
	if w.life.Err() != nil && contextual(err) {
		return context.Cause(w.life)
	}
	return err
}

// log warns of something, unless it only goes wrong because the writer was given up.
func (w *Writer) log(ctx context.Context, message string, facts ...any) {
	level := slog.LevelWarn
	if ctx.Err() != nil || w.life.Err() != nil {
		level = slog.LevelDebug
	}
	w.c.log.Log(ctx, level, message, facts...)
}

// Write adds p to the file. It returns when the datanodes' share of memory has room for it, not when it is safe.
func (w *Writer) Write(p []byte) (int, error) {
	if err := w.begin(w.life, "write"); err != nil {
		return 0, err
	}
	defer w.turn.give()
	if w.held != nil {
		if kept, err := w.hold(p); err != nil || kept {
			return len(p), err
		}
	}
	return w.add(p)
}

// add is Write for who has the turn.
func (w *Writer) add(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if w.coder != nil && w.block == nil {
			m, err := w.addStriped(p[n:])
			return n + m, err
		}
		if err := w.haveBlock(w.life); err != nil {
			return n, w.fail(err)
		}
		m := w.block.put(p[n:])
		n += m
		if err := w.filled(m); err != nil {
			return n, w.fail(err)
		}
	}
	return n, nil
}

// ReadFrom adds everything that r has, reading straight into packets. While r is read nothing is held: other calls go on,
// what they write comes between, and a producer may take all the time it wants.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) {
	n, all, err := w.readHeld(r)
	if all || err != nil {
		return n, err
	}
	if w.coder != nil {
		m, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, dtp.LargeSize))
		return n + m, err
	}
	empty := 0
	p := w.packet()
	defer func() { w.c.putPacket(p) }()
	room := p.Room()
	for {
		if err := w.life.Err(); err != nil {
			return n, w.ended("write")
		}
		m, readErr := r.Read(p.Space()[:room])
		if m > 0 {
			empty = 0
			p.Grow(m)
			var err error
			var added int
			if p, room, added, err = w.addPacket(p); err != nil {
				return n + int64(added), err
			}
			n += int64(m)
		}
		switch {
		case errors.Is(readErr, io.EOF):
			return n, nil
		case readErr != nil:
			return n, readErr
		}
		if m == 0 {
			if empty++; empty == 100 {
				return n, io.ErrNoProgress
			}
		}
	}
}

// addPacket adds the bytes of a packet that is no part of a block yet. It returns an empty one to go on with, how many
// bytes had better be put into it, so that they need not be copied, and how many of its bytes were added.
func (w *Writer) addPacket(p *outPacket) (next *outPacket, room, added int, err error) {
	if err := w.begin(w.life, "write"); err != nil {
		return p, 0, 0, err
	}
	defer w.turn.give()
	if err := w.haveBlock(w.life); err != nil {
		return p, 0, 0, w.fail(err)
	}
	m := p.Len()
	if w.block.exchange(p) {
		p = w.packet()
		if err := w.filled(m); err != nil {
			return p, 0, 0, w.fail(err)
		}
	} else {
		added, err = w.add(p.Data())
		p.Reset()
		if err != nil {
			return p, 0, added, err
		}
	}
	room = p.Room()
	if w.block != nil {
		room = min(room, max(w.block.room(), 1))
	}
	return p, room, m, nil
}

// haveBlock begins a block if none is being written.
func (w *Writer) haveBlock(ctx context.Context) error {
	if w.block != nil {
		return nil
	}
	return w.nextBlock(ctx, nil, true)
}

// filled counts n bytes that were put into the packet being filled; a full packet is sent, a full block finished.
func (w *Writer) filled(n int) error {
	w.length.Add(int64(n))
	if w.block.at() == blockNew {
		if w.block.filling.Len() <= smallBlock && w.block.room() > 0 {
			return nil
		}
	}
	if err := w.open(w.life); err != nil {
		return err
	}
	if w.block.room() > 0 {
		return nil
	}
	if err := w.block.send(w.life, false); err != nil {
		return err
	}
	if w.block.sent == w.blockSize {
		return w.finishBlock()
	}
	return nil
}

// Hflush returns when everything written is in the memory of every datanode of the pipeline and new readers see it. If
// ctx ends first, the wait is over but the data is still under way.
func (w *Writer) Hflush(ctx context.Context) error { return w.flush(ctx, false) }

// Hsync returns when everything written is on the disk of every datanode of the pipeline. If ctx ends first, the wait is
// over but the data is still under way.
func (w *Writer) Hsync(ctx context.Context) error { return w.flush(ctx, true) }

func (w *Writer) flush(ctx context.Context, sync bool) error {
	if err := w.begin(ctx, "flush"); err != nil {
		return err
	}
	defer w.turn.give()
	if err := ctx.Err(); err != nil {
		return wrap("flush", w.path, w.reason(err))
	}
	if w.held != nil {
		if err := w.make(); err != nil {
			return err
		}
	}
	if w.coder != nil && w.block == nil {
		if err := w.openEnd(); err != nil {
			return err
		}
	}
	if w.block == nil {
		return nil // nothing written, or all of it in finished blocks
	}
	err := w.open(ctx)
	if err == nil {
		err = w.block.flush(ctx, sync)
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && w.life.Err() == nil && contextual(err) && w.block.at() != blockLost {
		return wrap("flush", w.path, err)
	}
	return w.fail(err)
}
