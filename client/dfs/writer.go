package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
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
}

// Flags of create and append, with HDFS's numbers.
const (
	flagCreate    = 1
	flagOverwrite = 2
	flagAppend    = 4
	flagNewBlock  = 32
)

// Writer writes a file through a pipeline of datanodes. When a datanode fails, the rest goes on, and another one takes
// its place if the replication asks for that; a Write, flush or Close fails only when nothing is left to go on with, and
// from then on all do.
//
// Data is readable by others once Hflush has returned or Close has. Without Close the file stays open until the lease
// runs out; Abort gives it up at once. A Writer may be used by several goroutines; each call is done as a whole.
type Writer struct {
	c           *Client
	path        string
	fileID      uint64
	sum         dtp.Checksum
	blockSize   int64
	replication int

	mu      sync.Mutex
	err     error // why the writer is of no more use
	closed  bool
	block   *blockWriter                 // being written
	last    *hadooppb.ExtendedBlockProto // finished before it
	length  int64                        // of the file, with what is not sent yet
	exclude []*hadooppb.DatanodeInfoProto
	refused bool // the last block could not be written because its token was refused

	// life ends with Abort, and with it every wait of a call that hangs.
	life context.Context
	kill context.CancelFunc
	// breakMu guards what abandon needs while mu is held by a call that hangs.
	breakMu sync.Mutex
	breakup func()
}

// abortTimeout bounds what is done about a file that was given up.
const abortTimeout = 2 * time.Second

// Create makes a file and opens it for writing.
func (c *Client) Create(ctx context.Context, name string, options CreateOptions) (*Writer, error) {
	name, err := clean("create", name)
	if err != nil {
		return nil, err
	}
	defaults, err := c.ServerDefaults(ctx)
	if err != nil {
		return nil, wrap("create", name, err)
	}
	if defaults.EncryptDataTransfer {
		return nil, &Error{Op: "create", Path: name, Kind: metadata.ErrUnsupported, Message: "encrypted data transfer is not supported"}
	}
	replication := firstSet(options.Replication, c.config.Replication, defaults.Replication)
	if replication == NoReplication {
		replication = 0
	}
	blockSize := firstSet(options.BlockSize, c.config.BlockSize, defaults.BlockSize)
	sum := defaults.checksum()
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
	var answer hadooppb.CreateResponseProto
	err = c.call(ctx, "create", name, "create", &hadooppb.CreateRequestProto{
		Src:          &name,
		Masked:       perm(masked),
		Unmasked:     perm(mode),
		ClientName:   &c.name,
		CreateFlag:   &flags,
		CreateParent: &options.Parents,
		Replication:  new(uint32(replication)),
		BlockSize:    new(uint64(blockSize)),
	}, &answer)
	if err != nil {
		return nil, err
	}
	status := answer.GetFs()
	if status.GetEcPolicy().GetId() != 0 || status.GetFileEncryptionInfo() != nil {
		return nil, &Error{Op: "create", Path: name, Kind: metadata.ErrUnsupported, Message: "erasure-coded and encrypted directories are not supported"}
	}
	w := &Writer{
		c: c, path: name, fileID: status.GetFileId(), sum: sum,
		blockSize:   blockSize,
		replication: firstSet(int(status.GetBlockReplication()), replication),
	}
	w.life, w.kill = context.WithCancel(context.Background())
	c.leases.add(w)
	return w, nil
}

// AppendOptions say how a file is gone on with.
type AppendOptions struct {
	// NewBlock leaves the last block as it is, however short.
	NewBlock bool
}

// Append opens a file to write behind its end.
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
	if defaults.EncryptDataTransfer {
		return nil, &Error{Op: "append", Path: name, Kind: metadata.ErrUnsupported, Message: "encrypted data transfer is not supported"}
	}
	flags := uint32(flagAppend)
	if options.NewBlock {
		flags |= flagNewBlock
	}
	var answer hadooppb.AppendResponseProto
	err = c.call(ctx, "append", name, "append",
		&hadooppb.AppendRequestProto{Src: &name, ClientName: &c.name, Flag: &flags}, &answer)
	if err != nil {
		return nil, err
	}
	status := answer.GetStat()
	if status == nil {
		return nil, &Error{Op: "append", Path: name, Kind: metadata.ErrUnsupported, Message: "the server is older than Hadoop 2.7"}
	}
	w := &Writer{
		c: c, path: name, fileID: status.GetFileId(), sum: defaults.checksum(),
		blockSize:   int64(status.GetBlocksize()),
		replication: int(status.GetBlockReplication()),
		length:      int64(status.GetLength()),
	}
	w.life, w.kill = context.WithCancel(context.Background())
	c.leases.add(w)
	if b := answer.GetBlock(); b != nil && len(b.GetLocs()) > 0 && !options.NewBlock {
		w.block = newBlockWriter(w, b, true)
		w.mu.Lock()
		defer w.mu.Unlock()
		if err := w.block.reopen(ctx); err != nil {
			return nil, w.fail(wrap("append", name, err))
		}
	} else if b != nil {
		w.last = b.GetB()
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

// INode returns the id of the file's inode, under which "/.reserved/.inodes/<id>" finds it wherever it is renamed to.
func (w *Writer) INode() metadata.INodeID { return metadata.INodeID(w.fileID) }

func (w *Writer) byID() string { return fmt.Sprintf("/.reserved/.inodes/%d", w.fileID) }

// Size is the length of the file with everything written so far.
func (w *Writer) Size() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.length
}

// Write adds p to the file. It returns when the datanodes' share of memory has room for it, not when it is safe.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.usable("write"); err != nil {
		return 0, err
	}
	n := 0
	for n < len(p) {
		space, err := w.space()
		if err != nil {
			return n, w.fail(err)
		}
		m := copy(space, p[n:])
		n += m
		if err := w.filled(m); err != nil {
			return n, w.fail(err)
		}
	}
	return n, nil
}

// ReadFrom adds everything that r has, reading straight into packets.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.usable("write"); err != nil {
		return 0, err
	}
	var n int64
	empty := 0
	for {
		space, err := w.space()
		if err != nil {
			return n, w.fail(err)
		}
		m, readErr := r.Read(space)
		n += int64(m)
		if err := w.filled(m); err != nil {
			return n, w.fail(err)
		}
		if errors.Is(readErr, io.EOF) {
			return n, nil
		}
		if readErr != nil {
			return n, readErr
		}
		if empty++; m > 0 {
			empty = 0
		} else if empty == 100 {
			return n, io.ErrNoProgress
		}
	}
}

// space returns where the next bytes go, at least one, beginning a block if none is being written.
func (w *Writer) space() ([]byte, error) {
	if w.block == nil {
		if err := w.nextBlock(w.life, true); err != nil {
			return nil, err
		}
	}
	return w.block.space(), nil
}

// filled counts n bytes that were put into space; a full packet is sent, a full block finished.
func (w *Writer) filled(n int) error {
	w.length += int64(n)
	if w.block.postponed {
		w.block.filling.Grow(n)
		if w.block.filling.Len() <= smallBlock && w.block.room() > 0 {
			return nil
		}
		if err := w.open(); err != nil {
			return err
		}
		n = 0
	}
	full, err := w.block.filled(n)
	if err != nil {
		return err
	}
	if full {
		return w.finishBlock()
	}
	return nil
}

// Hflush returns when everything written is in the memory of every datanode of the pipeline and new readers see it. If
// ctx ends first, the wait is over but the data is still under way.
func (w *Writer) Hflush(ctx context.Context) error { return w.flush(ctx, false) }

// Hsync returns when everything written is on the disk of every datanode of the pipeline.
func (w *Writer) Hsync(ctx context.Context) error { return w.flush(ctx, true) }

func (w *Writer) flush(ctx context.Context, sync bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.usable("flush"); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return wrap("flush", w.path, err)
	}
	if w.block == nil {
		return nil // nothing written, or all of it in finished blocks
	}
	if err := w.open(); err != nil {
		return w.fail(err)
	}
	if err := w.block.flush(ctx, sync); err != nil {
		if ctx.Err() != nil {
			return wrap("flush", w.path, ctx.Err())
		}
		return w.fail(err)
	}
	return nil
}

// Close finishes the file: when it returns nil, all of it is stored and readable. Closing twice is an error.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return fmt.Errorf("close %s: %w", w.path, fs.ErrClosed)
	}
	w.closed = true
	if w.err != nil {
		return w.err
	}
	if w.block != nil {
		if err := w.finishBlock(); err != nil {
			return w.fail(err)
		}
	}
	if err := w.complete(w.life); err != nil {
		return w.fail(err)
	}
	w.end()
	return nil
}

// Abort gives the file up without finishing it: what datanodes have acknowledged may remain. It asks the namenode to
// close the file, so that others need not wait for the lease to run out.
func (w *Writer) Abort() {
	w.abandon()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.closed = true
	_ = w.fail(fmt.Errorf("write %s: aborted", w.path))
	ctx, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	// By its id, because meanwhile it may have another name, and another file this one.
	if _, err := w.c.RecoverLease(ctx, w.byID()); err != nil && !errors.Is(err, metadata.ErrNotExist) {
		w.c.log.Debug("aborted file stays open until its lease runs out", "path", w.path, "error", err)
	}
}

// abandon breaks the pipeline under a call that may be going on, and ends its waits.
func (w *Writer) abandon() {
	w.kill()
	w.breakMu.Lock()
	defer w.breakMu.Unlock()
	if w.breakup != nil {
		w.breakup()
	}
}

func (w *Writer) usable(op string) error {
	if w.closed {
		return fmt.Errorf("%s %s: %w", op, w.path, fs.ErrClosed)
	}
	return w.err
}

// fail makes the writer useless, with err as the reason.
func (w *Writer) fail(err error) error {
	if w.err == nil {
		w.err = err
	}
	if w.block != nil {
		w.block.disconnect()
		w.block.release()
		w.block = nil
	}
	w.end()
	return w.err
}

// end lets go of the lease.
func (w *Writer) end() {
	w.kill()
	w.c.leases.remove(w)
}

// nextBlock gets a block from the namenode and a pipeline for it, which may be postponed. A datanode that cannot be set up
// is left out of the next try.
func (w *Writer) nextBlock(ctx context.Context, later bool) error {
	const tries = 5
	var causes []error
	for try := 0; try < tries; try++ {
		b, err := w.addBlock(ctx)
		if err != nil {
			if len(w.exclude) > 0 && try+1 < tries && errors.Is(err, metadata.ErrIO) {
				// Perhaps nobody is left but those that failed: give them another chance.
				w.exclude = nil
				causes = append(causes, err)
				time.Sleep(100 * time.Millisecond << try)
				continue
			}
			return errors.Join(append([]error{err}, causes...)...)
		}
		block := newBlockWriter(w, b, false)
		if later && block.postpone() {
			w.block = block
			return nil
		}
		if err = block.create(ctx); err == nil {
			w.block = block
			return nil
		}
		block.release()
		causes = append(causes, fmt.Errorf("%s: %w", block.addr(block.nodes[max(block.blamed(err), 0)]), err))
		if err := w.leave(block, err); err != nil {
			return err
		}
	}
	return &Error{Op: "write", Path: w.path, Kind: metadata.ErrIO, Message: "no pipeline could be set up: " + errors.Join(causes...).Error()}
}

// addBlock gets the next block, waiting while the one before the last is not replicated enough.
func (w *Writer) addBlock(ctx context.Context) (*hadooppb.LocatedBlockProto, error) {
	var b *hadooppb.LocatedBlockProto
	err := w.insist(ctx, func() error {
		var answer hadooppb.AddBlockResponseProto
		err := w.c.call(ctx, "write", w.path, "addBlock", &hadooppb.AddBlockRequestProto{
			Src: &w.path, ClientName: &w.c.name, Previous: w.last, ExcludeNodes: w.exclude, FileId: &w.fileID,
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
	for pause := time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := f()
		wait, ok := errors.AsType[*notYet](err)
		if !ok {
			return err
		}
		if time.Now().After(deadline) {
			return wait.error
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return wrap("close", w.path, ctx.Err())
		}
	}
}

// finishBlock sends what is left of the block and waits until it is stored.
func (w *Writer) finishBlock() error {
	finish := func() error { return w.block.finish(w.life) }
	if w.block.postponed && w.block.filling.Len() > 0 {
		finish = w.finishSmall
	} else if err := w.open(); err != nil {
		return err
	}
	if err := finish(); err != nil {
		return err
	}
	w.last = w.block.block
	w.block.release()
	w.block = nil
	return nil
}

// ReadFile returns the contents of a file.
func (c *Client) ReadFile(ctx context.Context, name string) ([]byte, error) {
	r, err := c.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data := make([]byte, r.Size())
	if _, err := r.ReadAtContext(ctx, data, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return data, nil
}

// WriteFile makes a file with the given contents; one that is there is replaced only if overwrite. A file that cannot be
// finished, or is not when ctx ends, is removed.
func (c *Client) WriteFile(ctx context.Context, name string, data []byte, overwrite bool) error {
	w, err := c.Create(ctx, name, CreateOptions{Overwrite: overwrite})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, w.Abort)
	defer stop()
	if _, err = w.Write(data); err == nil {
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
