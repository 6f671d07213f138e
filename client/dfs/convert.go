package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// ConvertOptions are the choices of Convert.
type ConvertOptions struct {
	// Policy is the name of an erasure coding policy, or namenode.ReplicationPolicy.
	Policy string
	// Replication of a file that is to be replicated; zero means that of new files (Config.Replication). What it was before it was coded nobody knows.
	Replication int
	// Copied, if not nil, hears of bytes as they are copied.
	Copied func(n int64)
}

// Convert stores a file in another form: coded by a policy, or replicated. It is copied beside, and the copy takes its place in one step, for readers that
// have it open too; inode, owner, times and all else stay, and snapshots keep the blocks that they have. The checksums are of the kind that the file has; an
// empty one gets that of new files. A copy that is given up changes nothing, and is removed.
//
// Errors: ErrBeingCreated for a file that is open, ErrIO when it was changed meanwhile, ErrInvalidRequest when its blocks have checksums of different kinds, ErrSpaceQuota, ErrPermission without READ and WRITE,
// ErrInvalidArgument for a policy that is not enabled, ErrUnsupported where the cluster is not of the level, and by Hadoop's namenodes, ErrNotReplicatedYet
// when so little of the copy is stored, for minutes, that it does not outlive the loss of a datanode, ErrRetriable when the namenode does not know, for minutes, what is stored.
func (c *Client) Convert(ctx context.Context, name string, o ConvertOptions) error {
	name, err := clean("convert", name)
	if err != nil {
		return err
	}
	replication := o.Replication
	if replication == 0 {
		replication = max(c.config.Replication, 0)
	}
	sum, checked, err := c.checksumKind(ctx, name)
	if err != nil {
		return wrap("convert", name, err)
	}
	var made hadooppb.BeginRewriteResponseProto
	begin := &hadooppb.BeginRewriteRequestProto{Src: &name, ClientName: &c.name, Policy: &o.Policy, Replication: new(uint32(max(replication, 0)))}
	if err := c.operate(ctx, "convert", name, "beginRewrite", begin, &made); err != nil {
		return err
	}
	_, err = c.copyBeside(ctx, &made, sum, func(out *Writer) error {
		in, err := c.Open(ctx, name)
		if err != nil {
			return err
		}
		defer in.Close()
		now, err := c.locate(ctx, c.call, name, 0, 1<<62)
		if err != nil {
			return err
		}
		if in.Size() != int64(made.GetLength()) || checked.GetUnderConstruction() || !sameBlocks(now, checked) {
			return &Error{Op: "convert", Path: name, Kind: metadata.ErrIO, Message: "it was changed while it was converted"}
		}
		return copyAll(&copied{out, o.Copied}, in, in.Size())
	})
	if errors.Is(err, metadata.ErrNotExist) {
		switch now, gone := c.Stat(ctx, name); {
		case gone != nil: // it is not there itself
		case uint64(now.ID) != checked.GetFileId():
			err = &Error{Op: "convert", Path: name, Kind: metadata.ErrIO, Message: "it was deleted, or moved, while it was converted, and another one has its name"}
		default: // it is the copy that is not there
			err = &Error{Op: "convert", Path: name, Kind: metadata.ErrBeingCreated, Message: "somebody else has begun to convert it meanwhile: what this one had copied is gone"}
		}
	}
	if err != nil {
		c.dropCopy(ctx, name, made.Source)
		return wrap("convert", name, err)
	}
	known, err := c.exchange(ctx, name, &made)
	if err != nil && known {
		c.dropCopy(ctx, name, made.Source)
	}
	return err
}

// exchange has a finished copy take the place of the file. The copy stays at the namenode while it lacks something that may come, and is asked to be exchanged again for times.exchange, which is less
// than it is kept for. The error is the namenode's last refusal where it is the time that is over. known: with an error, that nothing has been exchanged; else nobody can say, because an answer was lost.
func (c *Client) exchange(ctx context.Context, name string, made *hadooppb.BeginRewriteResponseProto) (known bool, err error) {
	patient, end := context.WithTimeout(ctx, c.times.exchange)
	defer end()
	deadline, _ := patient.Deadline()
	request := &hadooppb.EndRewriteRequestProto{Src: &name, Source: made.Source, Blocks: made.Blocks}
	var refused error
	for wait := exchangeAgain; ; wait = min(2*wait, exchangeSeldom) {
		err := c.hinted(c.rpc.Call(patient, operatorProtocol, "endRewrite", request, new(hadooppb.EndRewriteResponseProto)))
		if err == nil {
			return false, nil
		}
		said := lastWord(err)
		switch {
		case said != nil:
			refused = wrap("convert", name, said)
		case refused != nil && ctx.Err() == nil && patient.Err() != nil:
			return false, refused
		default:
			return false, wrap("convert", name, err)
		}
		if !errors.Is(refused, metadata.ErrNotReplicatedYet) || time.Now().Add(wait+exchangeAnswer).After(deadline) {
			return true, refused
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return true, refused
		}
	}
}

// A copy is asked to be exchanged again after pauses that double from exchangeAgain up to exchangeSeldom, and not when less than exchangeAnswer is left: the namenode waits for 10 s for what is not stored yet.
const (
	exchangeAgain, exchangeSeldom = 250 * time.Millisecond, 10 * time.Second
	exchangeAnswer                = 15 * time.Second
)

// lastWord is what a server has refused a call with; nil: it is not known what became of it. A call that is refused for the moment is repeated (hrpc.Failover) until its context ends.
func lastWord(err error) *hrpc.RemoteError {
	causes := []error{err}
	if nobody, ok := errors.AsType[*hrpc.UnreachableError](err); ok {
		causes = nobody.Errors
	}
	var word *hrpc.RemoteError
	for _, cause := range causes {
		if cause == nil {
			continue
		}
		if remote, ok := errors.AsType[*hrpc.RemoteError](cause); ok {
			if !remote.Standby() {
				word = remote
			}
		} else if broken, ok := errors.AsType[*hrpc.ConnError](cause); !ok || !broken.Dial {
			return nil
		}
	}
	return word
}

// nowhere is a path that no file ever has.
const nowhere = "/.reserved/.inodes/none"

// dropCopy has the namenode remove what a file was copied to, which the owner cannot do himself: it does that when the file that it should take the place of is not there. What it does not hear of it removes later.
func (c *Client) dropCopy(ctx context.Context, name string, source *uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.times.abort)
	defer cancel()
	err := c.operate(ctx, "convert", name, "endRewrite", &hadooppb.EndRewriteRequestProto{Src: new(nowhere), Source: source}, new(hadooppb.EndRewriteResponseProto))
	if !errors.Is(err, metadata.ErrNotExist) {
		c.log.Debug("the copy of a file that was not converted stays for the moment", "path", name, "inode", *source, "error", err)
	}
}

// kindsAtOnce is how many blocks of a file datanodes are asked about at a time.
const kindsAtOnce = 8

// checksumKind is how a file is checked, all of its blocks alike, or how new ones are if it is empty, and where its blocks are. A block keeps its kind for its life, whoever appends to it,
// so the kinds of two may differ.
func (c *Client) checksumKind(ctx context.Context, name string) (dtp.Checksum, *hadooppb.LocatedBlocksProto, error) {
	list, err := c.locate(ctx, c.call, name, 0, 1<<62)
	if err != nil {
		return dtp.Checksum{}, nil, err
	}
	blocks := slices.DeleteFunc(slices.Clone(list.GetBlocks()), func(b *hadooppb.LocatedBlockProto) bool {
		return b.GetB().GetNumBytes() == 0 || list.GetUnderConstruction() // which the namenode refuses
	})
	kinds := make([]dtp.Checksum, len(blocks))
	asking, together := errgroup.WithContext(ctx)
	asking.SetLimit(kindsAtOnce)
	for i, b := range blocks {
		asking.Go(func() error {
			answer, err := c.blockChecksum(together, name, b, list.GetEcPolicy(), 1, MD5MD5CRC)
			if err == nil {
				kinds[i] = kindOf(answer)
			}
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return dtp.Checksum{}, nil, err
	}
	for i, kind := range kinds {
		if kind != kinds[0] {
			words := func(i int) string {
				return fmt.Sprintf("blk_%d %v of %d bytes", int64(blocks[i].GetB().GetBlockId()), kinds[i].Type, kinds[i].BytesPer)
			}
			return dtp.Checksum{}, nil, &Error{
				Op: "convert", Path: name, Kind: metadata.ErrInvalidRequest,
				Message: fmt.Sprintf("its blocks have checksums of different kinds (%s, %s), and a converted file has one: copy it to a new file and convert that", words(0), words(i)),
			}
		}
	}
	if len(kinds) > 0 {
		return kinds[0], list, nil
	}
	defaults, err := c.ServerDefaults(ctx)
	if err != nil {
		return dtp.Checksum{}, nil, err
	}
	sum, err := c.checksum(defaults, ChecksumOption{})
	return sum, list, err
}

// sameBlocks reports whether a file has the blocks that it had.
func sameBlocks(now, then *hadooppb.LocatedBlocksProto) bool {
	return slices.EqualFunc(now.GetBlocks(), then.GetBlocks(), func(a, b *hadooppb.LocatedBlockProto) bool {
		x, y := a.GetB(), b.GetB()
		return x.GetBlockId() == y.GetBlockId() && x.GetGenerationStamp() == y.GetGenerationStamp() && x.GetNumBytes() == y.GetNumBytes()
	})
}

// copied counts what is written.
type copied struct {
	io.Writer
	told func(int64)
}

func (c *copied) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	if c.told != nil {
		c.told(int64(n))
	}
	return n, err
}
