package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

type stage = hadooppb.OpWriteBlockProto_BlockConstructionStage

const (
	stageAppend            = hadooppb.OpWriteBlockProto_PIPELINE_SETUP_APPEND
	stageAppendRecovery    = hadooppb.OpWriteBlockProto_PIPELINE_SETUP_APPEND_RECOVERY
	stageStreamingRecovery = hadooppb.OpWriteBlockProto_PIPELINE_SETUP_STREAMING_RECOVERY
	stageCloseRecovery     = hadooppb.OpWriteBlockProto_PIPELINE_CLOSE_RECOVERY
	stageCreate            = hadooppb.OpWriteBlockProto_PIPELINE_SETUP_CREATE
	stageTransferRBW       = hadooppb.OpWriteBlockProto_TRANSFER_RBW
	stageTransferFinalized = hadooppb.OpWriteBlockProto_TRANSFER_FINALIZED
)

// write serves WRITE_BLOCK in its two uses: a client's pipeline (setup answer, acknowledgements), and a copy, that a client ordered to repair its pipeline, or the namenode (one answer,
// at the end, or as soon as it is refused, or found to be here).
func (c *conn) write(ctx context.Context, op *hadooppb.OpWriteBlockProto) error {
	in := &receiver{conn: c, op: op, stage: op.GetStage()}
	in.client = op.GetHeader().GetClientName() != ""
	in.copying = in.stage == stageTransferRBW || in.stage == stageTransferFinalized
	if len(op.Targets) > 0 {
		if err := c.checkTarget(ctx, op.Targets[0]); err != nil {
			err = c.refuse(dtp.OpWriteBlock, hadooppb.Status_ERROR, dtp.TransferAddr(op.Targets[0].GetId(), false), err)
			if follows(op) {
				c.linger()
			}
			return err
		}
	}
	if follows(op) {
		return in.small(ctx)
	}
	if err := in.open(); err != nil {
		if in.client && !in.copying {
			return c.refuse(dtp.OpWriteBlock, statusOf(err), "", err)
		}
		if errors.Is(err, metadata.ErrExist) && in.stage != stageTransferRBW && in.store.Confirm(in.block) {
			return in.haveCopy()
		}
		return in.refuseCopy(err)
	}
	defer in.close()
	if len(op.Targets) > 0 && in.client { // a copy is not passed on: who ordered it for others, too, orders it of the source again
		mirror, err := c.connectDownstream(ctx, op)
		if err != nil {
			return in.refuseFor(op.Targets[0], err)
		}
		in.mirror = mirror
		defer func() {
			if in.ended {
				c.mirrors.put(mirror)
			} else {
				mirror.Close()
			}
		}()
	}
	if in.client && !in.copying {
		answer := dtp.Success()
		if in.mirror == nil || in.mirror.packetData >= dtp.LargeSize {
			answer.PacketData = new(uint32(dtp.LargeSize))
		}
		if err := dtp.WriteResponse(c.nc, answer); err != nil {
			return err
		}
	}
	switch {
	case in.stage == stageCloseRecovery: // no packets follow
		return errDone
	case in.client && !in.copying:
		return in.pipeline(ctx)
	default:
		return in.copy(ctx)
	}
}

// receiver is one WRITE_BLOCK.
type receiver struct {
	*conn
	op      *hadooppb.OpWriteBlockProto
	stage   stage
	client  bool // a client's request, not a datanode's
	copying bool // TRANSFER_*
	block   metadata.Block
	sum     dtp.Checksum    // of the packets
	stored  dtp.Checksum    // of the replica
	w       datanode.Writer // nil for CLOSE_RECOVERY
	mirror  *peer           // nil if there is none, or none any more (see responder)
	pieces  []datanode.Piece
	sums    []byte // of pieces, where they are made here
	summed  bool   // the packets to be stored come from this process, and so do their checksums
	ended   bool   // in order, so that another request may follow on the mirror's connection

	refreshed time.Time // when the deadlines were last moved
}

// open checks the request and opens the replica as its stage says.
func (in *receiver) open() error {
	var err error
	if in.block, err = in.blockOf(in.op.GetHeader().GetBaseHeader().GetBlock()); err != nil {
		return err
	}
	if in.sum, err = dtp.ChecksumOf(in.op.GetRequestedChecksum()); err != nil {
		return err
	}
	wanted := in.sum
	if in.op.WantedChecksum != nil {
		if wanted, err = dtp.ChecksumOf(in.op.WantedChecksum); err != nil {
			return err
		}
	}
	b := in.block
	gen := metadata.Generation(in.op.GetLatestGenerationStamp())
	if gen == 0 {
		gen = b.Generation // as the Go client sends it
	}
	minimum, maximum := int64(in.op.GetMinBytesRcvd()), int64(in.op.GetMaxBytesRcvd())
	if minimum < 0 || maximum < 0 || gen < b.Generation {
		return metadata.Errorf(metadata.ErrInvalidArgument, "write of %v with generation %d and %d to %d bytes", b, gen, minimum, maximum)
	}
	sized := b
	sized.Length = minimum
	options := datanode.CreateOptions{Type: datanode.StorageType(in.op.GetStorageType()), Expect: b.Length, Checksum: kept(wanted)}
	switch in.stage {
	case stageCreate:
		options.Temporary = !in.client
		in.w, err = in.store.Create(b, options)
	case stageAppend, stageAppendRecovery:
		in.w, err = in.store.Append(sized, gen, in.stage == stageAppendRecovery)
	case stageStreamingRecovery:
		in.w, err = in.store.Resume(b, gen, minimum, maximum)
	case stageCloseRecovery:
		var r datanode.Replica
		if r, err = in.store.Close(sized, gen); err == nil {
			in.block = r.Block
		}
	case stageTransferRBW, stageTransferFinalized:
		if len(in.op.Targets) > 0 {
			return metadata.Errorf(metadata.ErrInvalidArgument, "%v with %d further targets", in.stage, len(in.op.Targets))
		}
		options.Temporary = true
		if in.w, err = in.store.Create(b, options); errors.Is(err, metadata.ErrExist) && in.outdated(b) {
			in.w, err = in.store.Create(b, options)
		}
	default:
		return metadata.Errorf(metadata.ErrInvalidArgument, "a write cannot begin in stage %v", in.stage)
	}
	if err == nil && in.w != nil {
		in.stored = storedOf(in.w.Checksum())
	}
	return err
}

// outdated puts into the trash what an older pipeline has left here of a block that is copied here for a newer one: the datanode left
// that pipeline, and its replica counts for nothing since. A replica of the same generation, or a finished one, stays. It
// reports whether there is room for the copy now (HDFS's createTemporary does likewise).
func (in *receiver) outdated(b metadata.Block) bool {
	old, ok := in.store.Replica(b.ID)
	if !ok || old.Block.Generation >= b.Generation || old.State != datanode.RBW && old.State != datanode.RWR {
		return false
	}
	if err := in.store.Discard(old.Block); err != nil {
		in.log.Warn("replica of an older pipeline not removed", "block", old.Block.String(), "err", err)
		return false
	}
	in.log.Info("replica of an older pipeline makes room for a copy", "block", old.Block.String(), "generation", uint64(b.Generation))
	return true
}

func (in *receiver) close() {
	if in.w != nil {
		if err := in.w.Close(); err != nil {
			in.log.Warn("replica not let go cleanly", "block", in.block.String(), "err", err)
		}
	}
}

// refuseFor answers a client that the pipeline could not be set up from target on. A replica that was just created for
// it is dropped: the client abandons the block and asks for another.
func (in *receiver) refuseFor(target *hadooppb.DatanodeInfoProto, cause error) error {
	status, badLink := hadooppb.Status_ERROR, dtp.TransferAddr(target.GetId(), false)
	if re, ok := errors.AsType[*dtp.ResponseError](cause); ok {
		status = re.Status
		if re.BadLink != "" {
			badLink = re.BadLink
		}
	}
	if in.stage == stageCreate {
		in.drop()
	}
	return in.refuse(dtp.OpWriteBlock, status, badLink, cause)
}

// drop removes a replica that was created by this request and is of no use.
func (in *receiver) drop() {
	in.close()
	if err := in.store.Delete(in.block); err != nil {
		in.log.Warn("unused replica not removed", "block", in.block.String(), "err", err)
	}
}

const (
	// refreshEvery spares setting deadlines for each packet.
	refreshEvery = 2 * time.Second
	// quietAfter is how long a connection says nothing, at most, before its buffer is given back.
	quietAfter = 2 * refreshEvery
)

// refresh moves the deadlines before another packet is awaited: after quietAfter the stream looks around.
func (in *receiver) refresh() {
	now := time.Now()
	if now.Sub(in.refreshed) < refreshEvery {
		return
	}
	in.refreshed = now
	in.deadlines(quietAfter, in.cfg.Write)
}

// silence moves the deadlines so that the peer may be silent for as long as it is allowed to.
func (in *receiver) silence() {
	in.refreshed = time.Time{}
	in.deadlines(in.cfg.Read+time.Duration(len(in.op.Targets)+1)*perHop, in.cfg.Write)
}

// copy receives a replica that another datanode copies here. There are no acknowledgements but the last.
func (in *receiver) copy(ctx context.Context) error {
	packets := in.newStream(func([]byte) {}, func(batch []dtp.Packet) error {
		_, err := in.keep(batch)
		if last := batch[len(batch)-1]; err == nil && last.Last {
			err = in.complete(last.Offset)
		}
		return err
	})
	defer packets.close()
	if err := packets.run(ctx); err != nil {
		return in.refuseCopy(fmt.Errorf("copy of %v: %w", in.block, err))
	}
	if err := dtp.WriteResponse(in.nc, dtp.Success()); err != nil {
		return err
	}
	return errDone
}

// refuseCopy tells who sends a copy that it is not taken. Nothing of it is left here by then.
func (in *receiver) refuseCopy(cause error) error {
	in.close()
	in.deadlines(in.cfg.Read, in.cfg.Write)
	err := in.refuse(dtp.OpWriteBlock, statusOf(cause), "", cause)
	in.linger()
	return err
}

// haveCopy tells who sends a copy that it is here: another order was faster, or who gave this one does not know of it.
func (in *receiver) haveCopy() error {
	in.deadlines(in.cfg.Read, in.cfg.Write)
	answer := dtp.Success()
	answer.Message = new("it is here") // HDFS's have none with a success
	if err := dtp.WriteResponse(in.nc, answer); err != nil {
		return err
	}
	in.log.Info("replica that is to be copied here is here", "block", in.block.String(), "remote", in.nc.RemoteAddr().String())
	in.linger()
	return errDone
}

// complete ends a copy of the given length.
func (in *receiver) complete(length int64) error {
	if r := in.w.Replica(); r.Block.Length != length {
		return metadata.Errorf(metadata.ErrInvalidArgument, "it ends at %d after %d bytes", length, r.Block.Length)
	}
	var err error
	defer in.flushed(time.Now())
	if in.stage == stageTransferRBW {
		_, err = in.w.Promote()
	} else {
		_, err = in.w.Finalize()
	}
	return err
}

// unexpected turns the end of a stream that should have gone on into an error that says so.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
