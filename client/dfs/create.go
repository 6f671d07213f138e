package dfs

import (
	"context"
	"fmt"

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
	// LazyPersist gives the file the storage policy LAZY_PERSIST: one replica of each block is written to memory, and to a disk later. What the machine has not saved when it ends is
	// lost, but for what was synced.
	LazyPersist bool
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
	flagLazy      = 16
	flagNewBlock  = 32
	flagReplicate = 128
)

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
	if options.LazyPersist {
		flags |= flagLazy
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
	w.fileID.Store(status.GetFileId())
	w.replication = firstSet(int(status.GetBlockReplication()), w.replication)
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
		path: name, sum: sum,
		blockSize:   int64(status.GetBlocksize()),
		replication: int(status.GetBlockReplication()),
	})
	w.fileID.Store(status.GetFileId())
	w.lease()
	w.length.Store(int64(status.GetLength()))
	if err := w.coded("append", status.GetEcPolicy()); err != nil {
		w.Abort()
		return nil, err
	}
	if b := answer.GetBlock(); b != nil && len(b.GetLocs()) > 0 && !options.NewBlock {
		w.block = newBlockWriter(w, b, true)
		if err := w.block.reopen(w.life); err != nil {
			err = w.fail(wrap("append", name, w.reason(err)))
			w.Abort() // the namenode has opened it, and the lease of this client's other files would keep it open
			return nil, err
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
