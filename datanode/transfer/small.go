package transfer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// maxFollowing is how many bytes of data may follow a request at once.
const maxFollowing = 64 << 10

// follows reports whether all of a new block comes right behind its request: its sender does not wait for the answer.
// Such a request says that so much has been sent as the block has. Hadoop's clients have sent nothing at that time.
func follows(op *hadooppb.OpWriteBlockProto) bool {
	n := op.GetMaxBytesRcvd()
	return op.GetHeader().GetClientName() != "" && op.GetStage() == stageCreate && n > 0 && n <= maxFollowing &&
		n == op.GetHeader().GetBaseHeader().GetBlock().GetNumBytes()
}

// messages are what is sent for small blocks, in one piece.
var messages = sync.Pool{New: func() any { return new([]byte) }}

// small receives a block that follows its request: one packet with all data and one that ends it. It goes on to the next
// datanode with its request, while it is stored here, and the answer goes back together with both acknowledgements, when
// the block is on disk here and behind. So one goroutine does all, and each datanode is woken twice.
//
// What goes wrong is answered as if the pipeline could not be set up: the replica is dropped, and the client, to whom
// nothing was acknowledged, writes the data into another block.
func (in *receiver) small(ctx context.Context) error {
	packets := dtp.NewPacketReader(in.r)
	packets.Limit(maxFollowing + maxFollowing/2) // checksums of small chunks included
	defer packets.Done()
	message := messages.Get().(*[]byte)
	defer messages.Put(message)
	onward := (*message)[:0]
	defer func() { *message = onward[:0] }()

	targets := in.op.Targets
	var err error
	if len(targets) > 0 {
		if onward, err = dtp.AppendOp(onward, dtp.OpWriteBlock, downstream(in.op)); err != nil {
			return err
		}
	}
	var data, last dtp.Packet
	if data, err = packets.Next(); err != nil {
		return fmt.Errorf("write of a small block: %w", unexpected(err))
	}
	onward = append(onward, data.Raw...)
	body := onward[len(onward)-len(data.Sums)-len(data.Data):] // what was read is gone with the next packet
	data.Sums, data.Data, data.Raw = body[:len(data.Sums)], body[len(data.Sums):], nil
	if last, err = packets.Next(); err != nil {
		return fmt.Errorf("write of a small block: %w", unexpected(err))
	}
	onward = append(onward, last.Raw...)
	length := int64(in.op.GetMaxBytesRcvd())
	if data.Heartbeat() || data.Last || data.Offset != 0 || int64(data.DataLen) != length || !last.Last || last.Offset != length || last.Seqno != data.Seqno+1 {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "a block of %d bytes was announced, %d bytes at %d came and an end at %d", length, data.DataLen, data.Offset, last.Offset)
	}
	if err == nil {
		err = in.open()
	}
	if err != nil {
		return in.refuse(dtp.OpWriteBlock, statusOf(err), "", err)
	}
	defer in.close()

	if len(targets) > 0 {
		if in.mirror, err = in.sendOn(ctx, onward, false); err != nil {
			return in.refuseFor(targets[0], err)
		}
		defer func() {
			if in.ended {
				in.mirrors.put(in.mirror)
			} else if in.mirror != nil {
				in.mirror.Close()
			}
		}()
	}
	if _, err = in.keep([]dtp.Packet{data}); err == nil {
		err = in.finish(length)
	}
	if err != nil {
		in.drop()
		return in.refuse(dtp.OpWriteBlock, statusOf(err), "", err)
	}
	replies := make([]hadooppb.Status, 1, 1+len(targets))
	if len(targets) > 0 {
		if err := in.await(ctx, onward, data.Seqno); err != nil {
			return in.refuseFor(targets[0], err)
		}
		replies = replies[:1+len(targets)]
		in.ended = true
	}
	if onward, err = dtp.AppendMessage(onward[:0], dtp.Success()); err != nil {
		return err
	}
	onward = dtp.AppendAck(onward, &dtp.Ack{Seqno: data.Seqno, Replies: replies})
	onward = dtp.AppendAck(onward, &dtp.Ack{Seqno: last.Seqno, Replies: replies})
	_, err = in.nc.Write(onward)
	return err
}

// sendOn connects with the next datanode and sends it a request and what follows.
func (in *receiver) sendOn(ctx context.Context, message []byte, fresh bool) (*peer, error) {
	for ; ; fresh = true {
		p, err := in.Server.mirror(ctx, in.op, fresh)
		if err != nil {
			return nil, err
		}
		p.deadlines(in.cfg.Read+time.Duration(len(in.op.Targets))*perHop, in.cfg.Write)
		began := time.Now()
		_, err = p.Write(message)
		in.wroteMirror(began, p)
		if err == nil {
			return p, nil
		}
		p.Close()
		if !p.reused {
			return nil, fmt.Errorf("request to %s: %w", p.addr, err)
		}
	}
}

// await returns when all datanodes behind have the block. If the kept connection to the next one turns out to be closed,
// everything is sent again through a new one.
func (in *receiver) await(ctx context.Context, message []byte, seqno int64) error {
	p := in.mirror
	answer, err := dtp.ReadResponse(p.r)
	if err != nil && p.reused {
		p.Close()
		if in.mirror, err = in.sendOn(ctx, message, true); err != nil {
			return err
		}
		p = in.mirror
		answer, err = dtp.ReadResponse(p.r)
	}
	if err == nil {
		err = dtp.CheckResponse(dtp.OpWriteBlock, answer)
	}
	var ack dtp.Ack
	for due := seqno; err == nil && due <= seqno+1; due++ {
		if err = dtp.ReadAck(p.r, &ack); err == nil {
			err = in.allStored(&ack, due)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.addr, err)
	}
	return nil
}

// allStored checks that an acknowledgement is the one of packet seqno by all datanodes behind. One that failed is named in
// the error.
func (in *receiver) allStored(ack *dtp.Ack, seqno int64) error {
	if at, status := ack.Blame(); at >= 0 {
		bad := in.op.Targets[min(at, len(in.op.Targets)-1)]
		return &dtp.ResponseError{Op: dtp.OpWriteBlock, Status: status, BadLink: dtp.TransferAddr(bad.GetId(), false), Message: "packet not stored"}
	}
	if ack.Seqno != seqno || len(ack.Replies) != len(in.op.Targets) {
		return fmt.Errorf("acknowledgement of packet %d by %d datanodes where %d was due: %w", ack.Seqno, len(ack.Replies), seqno, dtp.ErrProtocol)
	}
	return nil
}
