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

// transfer serves TRANSFER_BLOCK: a client repairs its pipeline and wants this datanode's replica, as far as it is
// visible, on others too.
func (c *conn) transfer(ctx context.Context, op *hadooppb.OpTransferBlockProto) error {
	b, err := c.blockOf(op.GetHeader().GetBaseHeader().GetBlock())
	if err != nil {
		return c.refuse(dtp.OpTransferBlock, hadooppb.Status_ERROR, "", err)
	}
	for _, target := range op.GetTargets() {
		if err := c.checkTarget(ctx, target); err != nil {
			return c.refuse(dtp.OpTransferBlock, hadooppb.Status_ERROR, dtp.TransferAddr(target.GetId(), false), err)
		}
	}
	_ = c.nc.SetDeadline(time.Time{}) // the copying has deadlines of its own
	for i, target := range op.GetTargets() {
		request := &hadooppb.OpWriteBlockProto{
			Header:  op.Header,
			Targets: []*hadooppb.DatanodeInfoProto{target},
			Stage:   stageTransferRBW.Enum(),
		}
		if i < len(op.TargetStorageTypes) {
			request.TargetStorageTypes = op.TargetStorageTypes[i : i+1]
		}
		if i < len(op.TargetStorageIds) {
			request.TargetStorageIds = op.TargetStorageIds[i : i+1]
		}
		if err := c.copyTo(ctx, b, request); err != nil {
			c.deadlines(c.cfg.Read, c.cfg.Write)
			return c.refuse(dtp.OpTransferBlock, statusOf(err), "", err)
		}
	}
	c.deadlines(c.cfg.Read, c.cfg.Write)
	if err := dtp.WriteResponse(c.nc, dtp.Success()); err != nil {
		return err
	}
	return errDone
}

// Replicate copies a finalized replica to another datanode, on a volume of a kind. With a bandwidth, in bytes a second,
// which is for balancing, all copies under way that have one take no more than that together; those without mend, at Config.MendRate. sent is told
// of what has gone, headers and checksums included, and may be nil. It returns when the other one is done with it; whether it has it the namenode learns from its reports. What is
// the other one's fault is a *TargetError.
func (s *Server) Replicate(ctx context.Context, pool string, b metadata.Block, target *hadooppb.DatanodeInfoProto, kind hadooppb.StorageTypeProto, bandwidth int64, sent func(n int64)) error {
	s.active.Add(1)
	defer s.active.Add(-1)
	budget := &s.balancing
	if bandwidth <= 0 {
		budget, bandwidth = &s.mending, s.cfg.MendRate
	}
	return s.copyAt(ctx, b, &paced{budget: budget, rate: bandwidth, sent: sent, ctx: ctx}, &hadooppb.OpWriteBlockProto{
		Header: &hadooppb.ClientOperationHeaderProto{
			BaseHeader: &hadooppb.BaseHeaderProto{Block: protoOf(pool, b)},
			ClientName: new(string),
		},
		Targets: []*hadooppb.DatanodeInfoProto{target}, TargetStorageTypes: []hadooppb.StorageTypeProto{kind},
		Stage: stageCreate.Enum(),
	})
}

// copyTo sends the replica of b to the target of request, with a token of this datanode's own. The target answers when it has it, also if it had it before, or as soon as it refuses it. One of a release that does
// not, where the namenode has ordered the copy, only closes the connection, as does one that ends: it is asked whether it has it. The data is verified on the way, so that damage does not
// spread.
func (s *Server) copyTo(ctx context.Context, b metadata.Block, request *hadooppb.OpWriteBlockProto) error {
	return s.copyAt(ctx, b, nil, request)
}

// copyAt is copyTo at a pace; nil: as fast as it goes.
func (s *Server) copyAt(ctx context.Context, b metadata.Block, pace *paced, request *hadooppb.OpWriteBlockProto) error {
	rd, err := s.store.Open(b)
	if err != nil {
		return err
	}
	defer rd.Close()
	have := rd.Replica()
	ordered := request.GetStage() == stageTransferRBW
	if have.State == datanode.Finalized && ordered {
		request.Stage = stageTransferFinalized.Enum()
	} else if have.State != datanode.Finalized && !ordered {
		return metadata.Errorf(metadata.ErrInvalidArgument, "copy of %v: the replica is %v", b, have.State)
	}
	pool := request.GetHeader().GetBaseHeader().GetBlock().GetPoolId()
	own := s.ownToken(pool, b.ID) // a client's token lets it order a copy, not write one
	target := request.Targets[0]
	block := have.Block
	block.Length = have.Visible
	request.Header = &hadooppb.ClientOperationHeaderProto{
		BaseHeader: &hadooppb.BaseHeaderProto{Block: protoOf(pool, block), Token: own},
		ClientName: request.Header.ClientName,
	}
	request.PipelineSize = new(uint32)
	request.MinBytesRcvd, request.MaxBytesRcvd, request.LatestGenerationStamp = new(uint64), new(uint64), new(uint64)
	stored, wanted := storedOf(rd.Checksum()), wantedOf(rd.Checksum())
	request.RequestedChecksum = stored.Proto()
	if wanted != stored {
		request.WantedChecksum = wanted.Proto()
	}
	failed := func(err error) error {
		if err != nil && ctx.Err() == nil {
			err = &TargetError{b, dtp.TransferAddr(target.GetId(), false), err}
		}
		return err
	}
	p, err := s.dial(ctx, target, own)
	if err != nil {
		return failed(err)
	}
	to := s.watch(ctx, p, pool, b, target, false)
	defer to.Close()
	to.deadlines(s.cfg.Read+perHop, s.cfg.Write)
	if err := dtp.WriteOp(to, dtp.OpWriteBlock, downstream(request)); err != nil {
		return failed(to.refused(err))
	}
	out := &sender{w: to, rd: rd, sum: stored, verify: true, refresh: func() { to.refresh(s.cfg.Write) }}
	if pace != nil {
		pace.w = to
		out.w = pace
	}
	if err := out.send(0, have.Visible); err != nil {
		if out.failed != nil {
			s.broken(b.ID)
			return fmt.Errorf("copy of %v to %s: %w", b, p.addr, err)
		}
		return failed(to.refused(err))
	}
	_ = to.SetReadDeadline(time.Now().Add(s.cfg.Read + perHop))
	answer, err := dtp.ReadResponse(to.r)
	if !ordered && errors.Is(err, io.EOF) {
		return failed(s.has(ctx, pool, block, target))
	}
	if err == nil {
		err = dtp.CheckResponse(dtp.OpWriteBlock, answer)
	}
	return failed(unexpected(err))
}
