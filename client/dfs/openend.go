package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The open end of a file with an erasure coding policy: what is flushed before a stripe is full goes to a replicated block at the end, which is written,
// repaired and recovered as any. When it is full, or the file is closed, it is sealed: its bytes are written to a file beside this one, in groups, whose
// blocks the namenode puts in its place.
//
//	groups ──flush──▶ the group ends; one without a whole stripe is given back and written again ──▶ open end ──full──▶ sealed, and groups go on
//	                                                                                    ╰───close──▶ sealed, or, if that fails, left to the namenode

// openEnd makes what was written since the last group ended part of an open end, which is flushed as any block then. It does nothing if all of it can
// be read already. It lives as long as the writer, whatever the flush is bounded by: what it gives back is in memory only until it is written again.
func (w *Writer) openEnd() error {
	if w.group == nil && !w.unseen {
		return nil
	}
	if w.endless != nil {
		return wrap("flush", w.path, w.endless)
	}
	if err := w.sealed(); err != nil {
		return w.fail(err)
	}
	var data []byte // what is not in finished groups
	if g := w.group; g != nil && g.length < min(g.layout.Stripe(), w.blockSize) {
		data = g.unsent()
		if err := w.abandonGroup(); err != nil {
			return w.fail(err)
		}
		w.length.Add(-int64(len(data)))
	} else if g != nil {
		if err := w.finishGroup(); err != nil {
			return w.fail(err)
		}
	}
	err := w.nextBlock(w.life, nil, true)
	if errors.Is(err, metadata.ErrUnsupported) {
		w.endless = metadata.Errorf(metadata.ErrUnsupported, "a file with an erasure coding policy cannot be flushed by this server, it is readable when it is closed: %v", err)
		if _, err := w.addStriped(data); err != nil {
			return err
		}
		return wrap("flush", w.path, w.endless)
	}
	if err != nil {
		return w.fail(err)
	}
	_, err = w.add(data)
	return err
}

// unsent is the data of a group that has not come to the end of its first stripe.
func (g *groupWriter) unsent() []byte {
	data := make([]byte, 0, g.length)
	if g.now != nil {
		for _, cell := range g.now.cells[:g.layout.Data] {
			data = append(data, cell...)
		}
	}
	return data
}

// abandonGroup gives the group back to the namenode.
func (w *Writer) abandonGroup() error {
	g := w.group
	w.group = nil
	g.close()
	return w.giveBack(g.block)
}

// giveBack has the namenode forget the last block.
func (w *Writer) giveBack(b *hadooppb.ExtendedBlockProto) error {
	return w.c.call(w.life, "write", w.path, "abandonBlock", &hadooppb.AbandonBlockRequestProto{
		B: b, Src: &w.path, Holder: &w.c.name, FileId: new(w.fileID.Load()),
	}, new(hadooppb.AbandonBlockResponseProto))
}

// dropEmpty gives back an open end that nothing was written to.
func (w *Writer) dropEmpty() error {
	b := w.block
	b.disconnect()
	b.release()
	w.block = nil
	return w.giveBack(b.block)
}

// sealTries is how often it is tried to seal an end that something has to follow.
const sealTries = 3

// sealed seals the end if that is open, so that something may follow.
func (w *Writer) sealed() error {
	if !w.unsealed {
		return nil
	}
	var err error
	for range sealTries {
		if err = w.seal(); err == nil || w.life.Err() != nil || errors.Is(err, metadata.ErrPermission) || errors.Is(err, metadata.ErrLeaseExpired) {
			return err
		}
		w.log(w.life, "the end of the file was not sealed", "path", w.path, "error", err)
	}
	return err
}

// seal writes the bytes of the open end, which is finished, in groups, and has these put in its place.
func (w *Writer) seal() error {
	tail := int64(w.last.GetNumBytes())
	begin := &hadooppb.BeginRewriteRequestProto{Src: &w.path, FileId: new(w.fileID.Load()), ClientName: &w.c.name, Tail: new(true)}
	var made hadooppb.BeginRewriteResponseProto
	if err := w.c.operate(w.life, "seal", w.path, "beginRewrite", begin, &made); err != nil {
		return err
	}
	length := w.length.Load()
	_, err := w.c.copyBeside(w.life, &made, w.sum, func(out *Writer) error {
		list, err := w.c.locate(w.life, w.c.call, w.byID(), length-tail, tail)
		if err != nil {
			return err
		}
		in, err := w.c.newReader(w.life, w.byID(), list)
		if err != nil {
			return err
		}
		defer in.Close()
		in.length = length
		in.learn(list)
		if _, err := in.Seek(length-tail, io.SeekStart); err != nil {
			return err
		}
		return copyAll(out, in, tail)
	})
	if err != nil {
		return err
	}
	var answer hadooppb.EndRewriteResponseProto
	err = w.c.operate(w.life, "seal", w.path, "endRewrite",
		&hadooppb.EndRewriteRequestProto{Src: &w.path, FileId: new(w.fileID.Load()), ClientName: &w.c.name, Tail: w.last, Source: made.Source}, &answer)
	if err != nil {
		return err
	}
	w.last, w.unsealed, w.unseen = answer.GetLast(), false, false
	return nil
}

// copyBeside writes a file that beginRewrite has made, with checksums of a kind.
func (c *Client) copyBeside(ctx context.Context, made *hadooppb.BeginRewriteResponseProto, sum dtp.Checksum, write func(*Writer) error) (*Writer, error) {
	out := c.newWriter(ctx, &Writer{
		path: fmt.Sprintf("/.reserved/.inodes/%d", made.GetSource()), sum: sum, blockSize: int64(made.GetBlockSize()),
		replication: int(made.GetReplication()),
	})
	out.fileID.Store(made.GetSource())
	out.lease()
	err := out.coded("seal", made.GetEcPolicy())
	if err == nil {
		err = write(out)
	}
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		out.Abort() // the namenode removes it
		return nil, err
	}
	return out, nil
}

// copyAll copies n bytes.
func copyAll(to io.Writer, from io.WriterTo, n int64) error {
	copied, err := from.WriteTo(to)
	if err == nil && copied != n {
		err = metadata.Errorf(metadata.ErrIO, "%d bytes were read of %d", copied, n)
	}
	return err
}

// operate is call of a method that is hops' own.
func (c *Client) operate(ctx context.Context, op, name, method string, request, response hrpc.Message) error {
	return wrap(op, name, c.hinted(c.rpc.Call(ctx, operatorProtocol, method, request, response)))
}
