package dfs

import (
	"context"
	"io"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// ConvertOptions are the choices of Convert.
type ConvertOptions struct {
	// Policy is the name of an erasure coding policy, or namenode.ReplicationPolicy.
	Policy string
	// Replication of a file that is to be replicated; zero means the server's default.
	Replication int
	// Copied, if not nil, hears of bytes as they are copied.
	Copied func(n int64)
}

// Convert stores a file in another form: coded by a policy, or replicated. It is copied beside, and the copy takes its place in one step, for readers that
// have it open too; inode, owner, times and all else stay, and snapshots keep the blocks that they have. A copy that is given up changes nothing, and the namenode removes it.
//
// Errors: ErrBeingCreated for a file that is open, ErrIO when it was changed meanwhile, ErrSpaceQuota, ErrPermission without READ and WRITE,
// ErrInvalidArgument for a policy that is not enabled, ErrUnsupported where the cluster is not of the level, and by Hadoop's namenodes.
func (c *Client) Convert(ctx context.Context, name string, o ConvertOptions) error {
	name, err := clean("convert", name)
	if err != nil {
		return err
	}
	var made hadooppb.BeginRewriteResponseProto
	begin := &hadooppb.BeginRewriteRequestProto{Src: &name, ClientName: &c.name, Policy: &o.Policy, Replication: new(uint32(max(o.Replication, 0)))}
	if err := c.operate(ctx, "convert", name, "beginRewrite", begin, &made); err != nil {
		return err
	}
	_, err = c.copyBeside(ctx, &made, func(out *Writer) error {
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
	if err != nil {
		return wrap("convert", name, err)
	}
	return c.operate(ctx, "convert", name, "endRewrite",
		&hadooppb.EndRewriteRequestProto{Src: &name, Source: made.Source, Blocks: made.Blocks}, new(hadooppb.EndRewriteResponseProto))
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
