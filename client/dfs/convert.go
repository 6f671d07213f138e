package dfs

import (
	"context"
	"errors"
	"io"

	"github.com/gohops/hops/internal/dtp"
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
// have it open too; inode, owner, times and all else stay, and snapshots keep the blocks that they have. The checksums are of the kind that the file has, if a datanode says which that is,
// else of that of new files. A copy that is given up changes nothing, and the namenode removes it.
//
// Errors: ErrBeingCreated for a file that is open, ErrIO when it was changed meanwhile, ErrSpaceQuota, ErrPermission without READ and WRITE,
// ErrInvalidArgument for a policy that is not enabled, ErrUnsupported where the cluster is not of the level, and by Hadoop's namenodes.
func (c *Client) Convert(ctx context.Context, name string, o ConvertOptions) error {
	name, err := clean("convert", name)
	if err != nil {
		return err
	}
	replication := o.Replication
	if replication == 0 {
		replication = max(c.config.Replication, 0)
	}
	sum, err := c.checksumKind(ctx, name)
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
		if in.Size() != int64(made.GetLength()) {
			return &Error{Op: "convert", Path: name, Kind: metadata.ErrIO, Message: "it was changed while it was converted"}
		}
		return copyAll(&copied{out, o.Copied}, in, in.Size())
	})
	if errors.Is(err, metadata.ErrNotExist) {
		if _, gone := c.Stat(ctx, name); gone == nil { // it is the copy that is not there
			err = &Error{Op: "convert", Path: name, Kind: metadata.ErrBeingCreated, Message: "somebody else has begun to convert it meanwhile: what this one had copied is gone"}
		}
	}
	if err != nil {
		return wrap("convert", name, err)
	}
	return c.operate(ctx, "convert", name, "endRewrite",
		&hadooppb.EndRewriteRequestProto{Src: &name, Source: made.Source, Blocks: made.Blocks}, new(hadooppb.EndRewriteResponseProto))
}

// checksumKind is how a file is checked, as its first block says, or how new ones are.
func (c *Client) checksumKind(ctx context.Context, name string) (dtp.Checksum, error) {
	list, err := c.locate(ctx, c.read, name, 0, 1)
	if err != nil {
		return dtp.Checksum{}, err
	}
	if blocks := list.GetBlocks(); len(blocks) > 0 && list.GetFileLength() > 0 {
		if answer, err := c.blockChecksum(ctx, name, blocks[0], list.GetEcPolicy(), 1, MD5MD5CRC); err == nil {
			return kindOf(answer), nil
		}
	}
	defaults, err := c.ServerDefaults(ctx)
	if err != nil {
		return dtp.Checksum{}, err
	}
	return c.checksum(defaults, ChecksumOption{})
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
