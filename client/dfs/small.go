package dfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// smallBlock is up to how many bytes a block may have that is sent whole, in bytes.
const smallBlock = 32 << 10

// postpone leaves a new block without a pipeline while it is small, so that it can be sent whole when it ends: request,
// data and end at once, and one answer for all of it. That is for datanodes of which is known that they keep connections
// after writes: Hadoop's do not, and one that refuses a request and hangs up while data comes may not be heard.
func (b *blockWriter) postpone() bool {
	b.postponed = b.c.peers.keeps(b.addr(b.nodes[0]))
	return b.postponed
}

// open sets up the pipeline of a block that has none so far, or of another one in its place.
func (w *Writer) open() error {
	if !w.block.postponed {
		return nil
	}
	w.block.postponed = false
	if err := w.block.create(w.life); err != nil {
		return w.replace(err)
	}
	return nil
}

// replace gives up a block of which nothing has been acknowledged, and begins another one with the same data.
func (w *Writer) replace(cause error) error {
	old := w.block
	w.block = nil
	defer old.release()
	if err := w.leave(old, cause); err != nil {
		return err
	}
	if err := w.nextBlock(w.life, false); err != nil {
		return err
	}
	w.block.filling.Append(old.filling.Data())
	return nil
}

// finishSmall sends a block whole, and waits until the datanodes have stored it.
func (w *Writer) finishSmall() error {
	err := w.block.sendWhole(w.life)
	if err == nil {
		return nil
	}
	if err := w.replace(err); err != nil {
		return err
	}
	return w.block.finish(w.life)
}

// sendWhole sends the block with its request, through a pipeline that is set up with it and done with it. After an error
// nothing of it may count. An error that is a *pipelineError says which node is at fault.
func (b *blockWriter) sendWhole(ctx context.Context) error {
	b.postponed = false
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
		p, err := b.c.peers.get(ctx, b.nodes[0].GetId(), b.c.config.DatanodeTimeout, fresh)
		if err != nil {
			return &pipelineError{0, err}
		}
		b.w.breakMu.Lock()
		b.w.breakup = func() { p.conn.Close() }
		b.w.breakMu.Unlock()
		answered, err := b.exchange(p, head, data, end)
		b.w.breakMu.Lock()
		b.w.breakup = nil
		b.w.breakMu.Unlock()
		switch {
		case err == nil:
			b.block.NumBytes = &length
			b.c.peers.put(p, true)
			return nil
		case p.reused && !answered:
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

// exchange sends a whole block and takes the answer and the acknowledgements of data and end. answered: the datanode has
// said something.
func (b *blockWriter) exchange(p *peer, head, data, end []byte) (answered bool, err error) {
	_ = p.conn.SetDeadline(time.Now().Add(b.patience()))
	message := net.Buffers{p.owed, head, data, end}
	p.owed = nil
	if _, err := message.WriteTo(p.conn); err != nil {
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
			return true, &pipelineError{node, fmt.Errorf("datanode %d of %d acknowledges a block with %v", node+1, len(b.nodes), status)}
		}
		if ack.Seqno != seqno || len(ack.Replies) != len(b.nodes) {
			return true, fmt.Errorf("%w: acknowledgement of packet %d by %d datanodes is not expected", dtp.ErrProtocol, ack.Seqno, len(ack.Replies))
		}
	}
	return true, nil
}

// leave gives a block back to the namenode that could not be written, and leaves the datanode at fault out of the next
// one. That a token was refused, which may have expired while the block waited, is a datanode's fault the second time only.
func (w *Writer) leave(b *blockWriter, cause error) error {
	bad := b.nodes[max(b.blamed(cause), 0)]
	w.c.log.Warn("pipeline cannot be set up", "path", w.path, "block", b.block.GetBlockId(), "node", b.addr(bad), "error", cause)
	expired := refusedToken(cause)
	if !expired || w.refused {
		w.exclude = append(slices.Clip(w.exclude), bad)
	}
	w.refused = expired
	return w.c.call(w.life, "write", w.path, "abandonBlock", &hadooppb.AbandonBlockRequestProto{
		B: b.block, Src: &w.path, Holder: &w.c.name, FileId: &w.fileID,
	}, new(hadooppb.AbandonBlockResponseProto))
}
