package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// smallBlock is up to how many bytes a block may have that is sent whole, in bytes.
const smallBlock = 32 << 10

// puttable reports whether a new block may stay without a pipeline while it is small, so that it can be sent whole when it
// ends: request, data and end at once, and one answer for all of it. That is for datanodes of which is known that they keep
// connections after writes: Hadoop's do not, and one that refuses a request and hangs up while data comes may not be heard.
func (b *blockWriter) puttable() bool {
	first := b.nodes[0]
	return b.c.peers.keeps(b.c.transferAddr(first)) || b.c.peers.keeps(withinAddr(first.GetId().GetDatanodeUuid()))
}

// open sets up the pipeline of a block that has none so far, or of another one in its place.
func (w *Writer) open(ctx context.Context) error {
	at := w.block.at()
	if at != blockNew && at != blockSpoilt && at != blockAbandoned {
		return nil
	}
	ctx, done := w.alive(ctx)
	defer done()
	if at != blockNew {
		return w.replace(ctx, nil)
	}
	err := w.block.create(ctx)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		w.block.move(blockSpoilt)
		return ctx.Err()
	}
	return w.replace(ctx, err)
}

// replace gives up a block of which nothing has been acknowledged, and begins another one with the same data. cause is what
// a datanode is to blame for; nil: nobody is. Until there is another block the old one keeps the data.
func (w *Writer) replace(ctx context.Context, cause error) error {
	old := w.block
	if old.at() != blockAbandoned {
		if err := w.leave(ctx, old, cause); err != nil {
			return err
		}
	}
	err := w.nextBlock(ctx, old.filling.Data(), false)
	if w.block != old {
		old.release()
	}
	return err
}

// finishSmall sends a block whole, and waits until the datanodes have stored it.
func (w *Writer) finishSmall() error {
	err := w.block.sendWhole(w.life)
	if err == nil {
		return nil
	}
	if w.life.Err() != nil {
		return w.life.Err()
	}
	if err := w.replace(w.life, err); err != nil {
		return err
	}
	return w.block.finish(w.life)
}

// sendWhole sends the block with its request, through a pipeline that is set up with it and done with it. After an error
// nothing of it may count. An error that is a *pipelineError says which node is at fault.
func (b *blockWriter) sendWhole(ctx context.Context) error {
	length := uint64(b.filling.Len())
	request := b.pipelineRequest(stageCreate, 0)
	request.Header.BaseHeader.Block.NumBytes, request.MaxBytesRcvd = &length, &length // say that it follows
	head, err := dtp.AppendOp(nil, dtp.OpWriteBlock, request)
	if err != nil {
		return err
	}
	data := b.filling.Finish(dtp.Header{})
	end := dtp.AppendHeader(nil, dtp.Header{Offset: int64(length), Seqno: 1, Last: true}, 0)
	for fresh := false; ; fresh = true {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p, err := b.c.peers.toWrite(ctx, b.nodes[0].GetId(), tokenOfRequest(request), b.c.config.DatanodeTimeout, fresh)
		if err != nil {
			return &pipelineError{nil, err}
		}
		p.timeout = b.c.patience(len(b.nodes))
		over := b.watchSetup(p, stageCreate)
		stop := p.during(ctx)
		answered, err := b.exchangeWhole(p, head, data, end)
		if !stop() && err == nil {
			err = ctx.Err()
		}
		over()
		switch {
		case err == nil:
			b.block.NumBytes = &length
			b.move(blockStored)
			b.c.peers.put(p, true)
			return nil
		case p.reused && !answered && p.cut.Load() == nil:
			b.c.peers.stale(p)
		default:
			p.close()
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return &pipelineError{b.blamed(err), err}
		}
	}
}

// exchangeWhole sends a whole block and takes the answer and the acknowledgements of data and end. answered: the datanode
// has said something.
func (b *blockWriter) exchangeWhole(p *peer, head, data, end []byte) (answered bool, err error) {
	owed := p.owed
	p.owed = nil
	if err := p.send(owed, head, data, end); err != nil {
		return false, err
	}
	answer, err := dtp.ReadResponse(p.r)
	if err != nil {
		return false, err
	}
	if err := dtp.CheckResponse(dtp.OpWriteBlock, answer); err != nil {
		return true, err
	}
	var ack dtp.Ack
	for seqno := range int64(2) {
		if err := dtp.ReadAck(p.r, &ack); err != nil {
			return true, err
		}
		if node, status := ack.Blame(); node >= 0 {
			node = min(node, len(b.nodes)-1)
			return true, &pipelineError{[]int{node}, fmt.Errorf("datanode %d of %d acknowledges a block with %v", node+1, len(b.nodes), status)}
		}
		if ack.Seqno != seqno || len(ack.Replies) != len(b.nodes) {
			return true, fmt.Errorf("%w: acknowledgement of packet %d by %d datanodes is not expected", dtp.ErrProtocol, ack.Seqno, len(ack.Replies))
		}
	}
	return true, nil
}

// leave gives a block back to the namenode that could not be written, and leaves the datanodes at fault out of the next
// one. That a token was refused, which may have expired while the block waited, is a datanode's fault the second time only.
func (w *Writer) leave(ctx context.Context, b *blockWriter, cause error) error {
	if cause != nil {
		expired := refusedToken(cause)
		for _, at := range b.blamed(cause) {
			w.log(ctx, "pipeline cannot be set up", "path", w.path, "block", b.block.GetBlockId(), "node", w.c.transferAddr(b.nodes[at]), "error", cause)
			if !expired || w.refused {
				w.exclude = append(slices.Clip(w.exclude), b.nodes[at])
			}
		}
		w.refused = expired
		if b.at() == blockNew {
			b.move(blockSpoilt)
		}
	}
	err := w.c.call(ctx, "write", w.path, "abandonBlock", &hadooppb.AbandonBlockRequestProto{
		B: b.block, Src: &w.path, Holder: &w.c.name, FileId: new(w.fileID.Load()),
	}, new(hadooppb.AbandonBlockResponseProto))
	if err == nil {
		b.move(blockAbandoned)
	}
	return err
}
