package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// NoReplication asks for a replication of zero, which servers refuse in words of their own; zero itself means the default.
const NoReplication = -1

// CreateOptions are the choices of Create; the zero value makes a new file with the defaults in a directory that exists.
type CreateOptions struct {
	// Overwrite replaces a file that is there.
	Overwrite bool
	// Existing makes no file where none is (HDFS's OVERWRITE without CREATE).
	Existing bool
	// Parents makes missing directories above.
	Parents bool
	// Mode before the umask; zero means 0666.
	Mode metadata.Mode
	// Masked is the mode after a umask that somebody else has applied; nil: the client applies its own. A Mode of zero is
	// then the same as Masked.
	Masked *metadata.Mode
	// Replication and BlockSize (bytes); zero means the client's, then the server's default.
	Replication int
	BlockSize   int64
	// Policy is the name of the erasure coding policy, namenode.ReplicationPolicy for none; empty: that of the directory.
	Policy string
	// Checksum is how its blocks are checked.
	Checksum ChecksumOption
	// Late lets the file be made only when it is closed or flushed, or when more than 64 KiB have been written, with the errors that come of that: a small
	// file is one call then where the namenodes keep such files. Until then it is not there, and its INode is 0.
	Late bool
}

// Flags of create and append, with HDFS's numbers.
const (
	flagCreate    = 1
	flagOverwrite = 2
	flagAppend    = 4
	flagNewBlock  = 32
	flagReplicate = 128
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
	fileID      uint64
	sum         dtp.Checksum
	blockSize   int64
	replication int
	length      atomic.Int64 // of the file, with what is not sent yet

	// turn is held by the one call that works on what follows. Nothing foreign is called by who holds it.
	turn       turn
	err        error // why the writer is of no more use
	closed     bool
	settled    bool                         // finished or given up: nothing is left to do
	block      *blockWriter                 // being written
	last       *hadooppb.ExtendedBlockProto // finished before it
	exclude    []*hadooppb.DatanodeInfoProto
	lastResort bool           // nobody is left but those that failed
	refused    bool           // the last block could not be written because its token was refused
	coder      *erasure.Coder // of a file with an erasure coding policy; nil: it is replicated
	group      *groupWriter   // being written, in place of block; block is the open end then (openend.go)
	unsealed   bool           // last is an open end
	unseen     bool           // last is a group that the namenode has not been told to be finished
	endless    error          // why the server makes no open ends
	held       *held          // the file is not made yet; nil: it is

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

// abortTimeout bounds what is done about a file that was given up.
const abortTimeout = 2 * time.Second

// Create makes a file and opens it for writing. ctx lives with the Writer.
func (c *Client) Create(ctx context.Context, name string, options CreateOptions) (*Writer, error) {
	name, err := clean("create", name)
	if err != nil {
		return nil, err
	}
	defaults, err := c.ServerDefaults(ctx)
	if err != nil {
		return nil, wrap("create", name, err)
	}
	replication := firstSet(options.Replication, c.config.Replication, defaults.Replication)
	if replication == NoReplication {
		replication = 0
	}
	blockSize := firstSet(options.BlockSize, c.config.BlockSize, defaults.BlockSize)
	sum, err := c.checksum(defaults, options.Checksum)
	if err != nil {
		return nil, wrap("create", name, err)
	}
	if blockSize%int64(sum.BytesPer) != 0 {
		return nil, &Error{
			Op: "create", Path: name, Kind: metadata.ErrInvalidArgument,
			Message: fmt.Sprintf("Invalid values: dfs.bytes-per-checksum (=%d) must divide block size (=%d).", sum.BytesPer, blockSize),
		}
	}
	mode := firstSet(options.Mode, 0o666)
	masked := mode &^ c.umask
	if options.Masked != nil {
		masked, mode = *options.Masked, firstSet(options.Mode, *options.Masked)
	}
	var flags uint32
	if !options.Existing {
		flags = flagCreate
	}
	if options.Overwrite {
		flags |= flagOverwrite
	}
	request := &hadooppb.CreateRequestProto{
		Src:          &name,
		Masked:       perm(masked),
		Unmasked:     perm(mode),
		ClientName:   &c.name,
		CreateFlag:   &flags,
		CreateParent: &options.Parents,
		Replication:  new(uint32(replication)),
		BlockSize:    new(uint64(blockSize)),
	}
	switch options.Policy {
	case "":
	case namenode.ReplicationPolicy:
		flags |= flagReplicate
	default:
		request.EcPolicyName = &options.Policy
	}
	w := c.newWriter(ctx, &Writer{path: name, sum: sum, blockSize: blockSize, replication: replication})
	if sum == dtp.DefaultChecksum && c.holds(options, request) { // a small file has no others
		w.held = &held{request: request, most: int(min(int64(c.small.most()), blockSize))}
		return w, nil
	}
	if err := w.create(request); err != nil {
		w.Abort()
		return nil, err
	}
	return w, nil
}

// create makes the file.
func (w *Writer) create(request *hadooppb.CreateRequestProto) error {
	var answer hadooppb.CreateResponseProto
	if err := w.c.call(w.life, "create", w.path, "create", request, &answer); err != nil {
		return err
	}
	status := answer.GetFs()
	if status.GetFileEncryptionInfo() != nil {
		return &Error{Op: "create", Path: w.path, Kind: metadata.ErrUnsupported, Message: "encrypted directories are not supported"}
	}
	w.fileID, w.replication = status.GetFileId(), firstSet(int(status.GetBlockReplication()), w.replication)
	w.lease()
	return w.coded("create", status.GetEcPolicy())
}

// coded has w write by an erasure coding policy, if there is one. A file that cannot be written is to be given up.
func (w *Writer) coded(op string, policy *hadooppb.ErasureCodingPolicyProto) error {
	var err error
	if w.coder, err = coderOf(policy, w.sum); err != nil {
		return wrap(op, w.path, err)
	}
	if w.coder != nil { // the open end
		w.replication = w.coder.Layout().Parity + 1
	}
	return nil
}

// newWriter completes a Writer that lives as long as ctx.
func (c *Client) newWriter(ctx context.Context, w *Writer) *Writer {
	w.c, w.turn = c, newTurn()
	w.life, w.kill = context.WithCancel(ctx)
	context.AfterFunc(w.life, w.abandon)
	return w
}

// lease has the lease of the file renewed for as long as the writer lives.
func (w *Writer) lease() {
	w.c.leases.add(w)
	if w.life.Err() != nil {
		w.c.leases.remove(w)
	}
}

// Within calls open, which creates a file or appends to one with the context it is given, and ends that context when ctx
// ends while open runs. From then on the Writer lives until Close or Abort, whatever becomes of ctx.
func Within(ctx context.Context, open func(life context.Context) (*Writer, error)) (*Writer, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	w, err := open(life)
	if !stop() && err == nil {
		w.Abort()
		err = ctx.Err()
	}
	if err != nil {
		end()
		return nil, err
	}
	context.AfterFunc(w.life, end)
	return w, nil
}

// AppendOptions say how a file is gone on with.
type AppendOptions struct {
	// NewBlock leaves the last block as it is, however short.
	NewBlock bool
}

// Append opens a file to write behind its end. ctx lives with the Writer.
func (c *Client) Append(ctx context.Context, name string) (*Writer, error) {
	return c.AppendWith(ctx, name, AppendOptions{})
}

// AppendWith is Append with options.
func (c *Client) AppendWith(ctx context.Context, name string, options AppendOptions) (*Writer, error) {
	name, err := clean("append", name)
	if err != nil {
		return nil, err
	}
	defaults, err := c.ServerDefaults(ctx)
	if err != nil {
		return nil, wrap("append", name, err)
	}
	sum, err := c.checksum(defaults, ChecksumOption{})
	if err != nil {
		return nil, wrap("append", name, err)
	}
	flags := uint32(flagAppend)
	if options.NewBlock {
		flags |= flagNewBlock
	}
	var answer hadooppb.AppendResponseProto
	err = c.call(ctx, "append", name, "append",
		&hadooppb.AppendRequestProto{Src: &name, ClientName: &c.name, Flag: &flags, Tails: new(true)}, &answer)
	if err != nil {
		return nil, err
	}
	status := answer.GetStat()
	if status == nil {
		return nil, &Error{Op: "append", Path: name, Kind: metadata.ErrUnsupported, Message: "the server is older than Hadoop 2.7"}
	}
	w := c.newWriter(ctx, &Writer{
		path: name, fileID: status.GetFileId(), sum: sum,
		blockSize:   int64(status.GetBlocksize()),
		replication: int(status.GetBlockReplication()),
	})
	w.lease()
	w.length.Store(int64(status.GetLength()))
	if err := w.coded("append", status.GetEcPolicy()); err != nil {
		w.Abort()
		return nil, err
	}
	if b := answer.GetBlock(); b != nil && len(b.GetLocs()) > 0 && !options.NewBlock {
		w.block = newBlockWriter(w, b, true)
		if err := w.block.reopen(w.life); err != nil {
			return nil, w.fail(wrap("append", name, w.reason(err)))
		}
	} else if b != nil {
		w.last, w.unsealed = b.GetB(), w.coder != nil && !striped(b)
	}
	return w, nil
}

func firstSet[T comparable](values ...T) T {
	var zero T
	for _, v := range values {
		if v != zero {
			return v
		}
	}
	return zero
}

// Name is the path of the file.
func (w *Writer) Name() string { return w.path }

// INode returns the id of the file's inode, 0 while it is not made, under which "/.reserved/.inodes/<id>" finds it wherever it is renamed to.
func (w *Writer) INode() metadata.INodeID { return metadata.INodeID(w.fileID) }

func (w *Writer) byID() string { return fmt.Sprintf("/.reserved/.inodes/%d", w.fileID) }

// Size is the length of the file with everything written so far.
func (w *Writer) Size() int64 { return w.length.Load() }

const (
	// largePacket is how much data the packets of a client have that writes within its process: fewer calls for the same bytes. A datanode's
	// smallest buffer holds one.
	largePacket = 240 << 10
	// largeFrom is from where on in a file.
	largeFrom = 1 << 20
)

// packet returns an empty packet.
func (w *Writer) packet() *outPacket {
	pool, size := &w.c.packets, dtp.DataSize
	large := w.c.config.Within != nil && w.length.Load() >= largeFrom
	if large {
		pool, size = &w.c.large, largePacket
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
		m, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, largePacket))
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

// Close finishes the file: when it returns nil, all of it is stored and readable. Closing twice is an error.
func (w *Writer) Close() error {
	w.turn.wait()
	defer w.turn.give()
	if w.closed {
		return fmt.Errorf("close %s: %w", w.path, fs.ErrClosed)
	}
	w.closed = true
	if w.err == nil && w.life.Err() != nil {
		_ = w.fail(w.ended("close"))
	}
	if w.err != nil {
		return w.err
	}
	if w.held != nil {
		if done, err := w.finishHeld(); err != nil {
			return err
		} else if done {
			w.settled = true
			w.end()
			return nil
		}
	}
	if w.block != nil {
		if err := w.finishBlock(); err != nil {
			return w.fail(err)
		}
	}
	if w.group != nil {
		if err := w.finishGroup(); err != nil {
			return w.fail(err)
		}
	}
	if w.unsealed {
		if err := w.seal(); err != nil { // all bytes are safe, and the namenode has it done later
			w.log(w.life, "the end of the file stays replicated for the moment", "path", w.path, "error", err)
		}
	}
	if err := w.complete(w.life); err != nil {
		return w.fail(err)
	}
	w.settled = true
	w.end()
	return nil
}

// Abort gives the file up without finishing it: what datanodes have acknowledged may remain. It asks the namenode to
// close the file, so that others need not wait for the lease to run out. After a Close that succeeded it does nothing,
// after one that failed it does that.
func (w *Writer) Abort() {
	w.kill()
	w.turn.wait()
	defer w.turn.give()
	if w.settled {
		return
	}
	w.closed, w.settled = true, true
	_ = w.fail(fmt.Errorf("write %s: aborted", w.path))
	w.giveUp()
}

// giveUp asks the namenode to close the file, if it was made.
func (w *Writer) giveUp() {
	if w.fileID == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	// By its id, because meanwhile it may have another name, and another file this one.
	if _, err := w.c.RecoverLease(ctx, w.byID()); err != nil && !errors.Is(err, metadata.ErrNotExist) {
		w.c.log.Debug("aborted file stays open until its lease runs out", "path", w.path, "error", err)
	}
}

// abandon breaks the pipeline under a call that may be going on, when the life of the writer is over, and lets go of the
// lease.
func (w *Writer) abandon() {
	w.c.leases.remove(w)
	w.breakMu.Lock()
	defer w.breakMu.Unlock()
	if w.breakup != nil {
		w.breakup()
	}
}

// breakWith says how to break what the writer waits for; nil: it waits for nothing. If the writer's life is over, that is
// done at once.
func (w *Writer) breakWith(breakup func()) {
	w.breakMu.Lock()
	w.breakup = breakup
	w.breakMu.Unlock()
	if breakup != nil && w.life.Err() != nil {
		breakup()
	}
}

func (w *Writer) usable(op string) error {
	if w.closed {
		return fmt.Errorf("%s %s: %w", op, w.path, fs.ErrClosed)
	}
	if w.err == nil && w.life.Err() != nil {
		return w.fail(w.ended(op))
	}
	return w.err
}

// ended is the error of an operation after the writer's life.
func (w *Writer) ended(op string) error { return wrap(op, w.path, context.Cause(w.life)) }

// fail makes the writer useless, with err as the reason.
func (w *Writer) fail(err error) error {
	if w.err == nil {
		w.err = w.reason(err)
	}
	if w.block != nil {
		w.block.disconnect()
		w.block.release()
		w.block = nil
	}
	if w.group != nil {
		w.group.close()
		w.group = nil
	}
	w.end()
	return w.err
}

// end lets go of the lease.
func (w *Writer) end() {
	w.kill()
	w.c.leases.remove(w)
}

// nextBlock gets a block from the namenode and a pipeline for it, which may be put off, and puts data into it. A datanode
// that cannot be set up is left out of the next try. If ctx ends, the data is in w.block all the same if there is one.
func (w *Writer) nextBlock(ctx context.Context, data []byte, later bool) error {
	const tries = 5
	var causes []error
	for try := 0; try < tries; try++ {
		b, err := w.addBlock(ctx, w.coder != nil)
		if err != nil {
			if !w.lastResort && len(w.leftOut()) > 0 && try+1 < tries && errors.Is(err, metadata.ErrIO) {
				// Perhaps nobody is left but those that failed: give them another chance.
				w.exclude, w.lastResort = nil, true
				causes = append(causes, err)
				if err := pause(ctx, 100*time.Millisecond<<try); err != nil {
					return err
				}
				continue
			}
			return errors.Join(append([]error{err}, causes...)...)
		}
		block := newBlockWriter(w, b, false)
		block.filling.Append(data)
		if later && block.puttable() {
			w.block = block
			return nil
		}
		if err = block.create(ctx); err == nil {
			w.block = block
			return nil
		}
		if ctx.Err() != nil { // some of them may have it, so it cannot be set up once more
			block.move(blockSpoilt)
			w.block = block
			return ctx.Err()
		}
		causes = append(causes, fmt.Errorf("%s: %w", w.c.transferAddr(block.nodes[block.blamed(err)[0]]), err))
		err = w.leave(ctx, block, err)
		block.release()
		if err != nil {
			return err
		}
	}
	return &Error{Op: "write", Path: w.path, Kind: metadata.ErrIO, Message: "no pipeline could be set up: " + strings.ReplaceAll(errors.Join(causes...).Error(), "\n", "; ")}
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leftOut are the datanodes that a new block had better not be on: those that failed before and, unless that leaves nobody,
// those that are silent.
func (w *Writer) leftOut() []*hadooppb.DatanodeInfoProto {
	if w.lastResort {
		return w.exclude
	}
	return w.c.withSuspects(w.exclude)
}

// addBlock gets the next block, waiting while the one before the last is not replicated enough. end: the open end of a file with an erasure coding policy.
func (w *Writer) addBlock(ctx context.Context, end bool) (*hadooppb.LocatedBlockProto, error) {
	var b *hadooppb.LocatedBlockProto
	err := w.insist(ctx, func() error {
		var answer hadooppb.AddBlockResponseProto
		err := w.c.call(ctx, "write", w.path, "addBlock", &hadooppb.AddBlockRequestProto{
			Src: &w.path, ClientName: &w.c.name, Previous: w.last, ExcludeNodes: w.leftOut(), FileId: &w.fileID, Tail: new(end),
		}, &answer)
		if err != nil && !errors.Is(err, metadata.ErrNotReplicatedYet) {
			return err
		}
		b = answer.GetBlock()
		if err == nil && len(b.GetLocs()) == 0 {
			return &Error{Op: "write", Path: w.path, Kind: metadata.ErrIO, Message: "the namenode gave a block without datanodes"}
		}
		if err != nil {
			return &notYet{err}
		}
		return nil
	})
	if err == nil && end && striped(b) { // a server that does not know open ends
		if err := w.giveBack(b.GetB()); err != nil {
			return nil, err
		}
		return nil, metadata.Errorf(metadata.ErrUnsupported, "the server has no replicated blocks in files with an erasure coding policy")
	}
	if err == nil {
		w.unseen = false
	}
	return b, err
}

// complete closes the file at the namenode, waiting until its blocks are stored.
func (w *Writer) complete(ctx context.Context) error {
	return w.insist(ctx, func() error {
		var answer hadooppb.CompleteResponseProto
		err := w.c.call(ctx, "close", w.path, "complete",
			&hadooppb.CompleteRequestProto{Src: &w.path, ClientName: &w.c.name, Last: w.last, FileId: &w.fileID}, &answer)
		if err == nil && !answer.GetResult() {
			return &notYet{&Error{Op: "close", Path: w.path, Kind: metadata.ErrNotReplicatedYet, Message: "the last block has too few replicas"}}
		}
		return err
	})
}

// notYet marks an error that goes away when datanodes have reported.
type notYet struct{ error }

func (n *notYet) Unwrap() error { return n.error }

// insist calls f until it does not return notYet, with pauses of 1 ms growing to 200 ms, for the close timeout.
func (w *Writer) insist(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(w.c.config.CloseTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		err := f()
		late, ok := errors.AsType[*notYet](err)
		if !ok {
			return err
		}
		if time.Now().After(deadline) {
			return late.error
		}
		if err := pause(ctx, wait); err != nil {
			return wrap("close", w.path, err)
		}
	}
}

// finishBlock sends what is left of the block and waits until it is stored.
func (w *Writer) finishBlock() error {
	if w.coder != nil && w.block.empty() {
		return w.dropEmpty()
	}
	small := w.block.at() == blockNew && w.block.filling.Len() > 0
	var err error
	if small {
		err = w.finishSmall()
	} else if err = w.open(w.life); err == nil {
		err = w.block.finish(w.life)
	}
	if err != nil {
		return err
	}
	w.last, w.unsealed = w.block.block, w.coder != nil
	w.block.release()
	w.block = nil
	w.lastResort = false
	return nil
}

// ReadFile returns the contents of a file.
func (c *Client) ReadFile(ctx context.Context, name string) ([]byte, error) {
	return c.readOne(ctx, name, 0)
}

// WriteFile makes a file with the given contents; one that is there is replaced only if overwrite. A file that cannot be
// finished, or is not when ctx ends, is removed.
func (c *Client) WriteFile(ctx context.Context, name string, data []byte, overwrite bool) error {
	w, err := c.Create(ctx, name, CreateOptions{Overwrite: overwrite, Late: len(data) <= c.small.most()})
	if err != nil {
		return err
	}
	if w.held != nil && len(data) <= w.held.most {
		w.held.data = data
		done, failed := w.finishHeld()
		if done || w.fileID == 0 { // a failure leaves nothing that would have to be removed
			w.settled, w.closed = true, true
			w.end()
			return failed
		}
		if err = failed; err == nil {
			err = w.Close()
		}
	} else if _, err = w.Write(data); err == nil {
		err = w.Close()
	}
	if err != nil {
		w.Abort()
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
		defer cancel()
		_, _ = c.Delete(after, name, false) // err says more
		if ctx.Err() != nil {
			err = wrap("write", name, ctx.Err())
		}
	}
	return err
}
