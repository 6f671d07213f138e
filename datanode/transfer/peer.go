package transfer

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// peer is a connection to another datanode.
type peer struct {
	net.Conn
	r    *bufio.Reader
	addr string // as firstBadLink names it
	// dialled is where it leads, which is another word for addr if datanodes dial each other by name.
	dialled string
	stop    func() bool

	packetData uint32 // how much data packets may have for all datanodes from it on; 0: it has not said

	kept      time.Time // since when it has been idle
	reused    bool      // the other side may have closed it meanwhile
	refreshed time.Time // when the write deadline was last moved
}

// dial connects to a datanode. The connection is cut when ctx is done or the server stops.
func (s *Server) dial(ctx context.Context, target *hadooppb.DatanodeInfoProto, t *hadooppb.TokenProto) (*peer, error) {
	dialled := dtp.TransferAddr(target.GetId(), s.cfg.UseHostnames)
	connect, cancel := context.WithTimeout(ctx, s.cfg.Connect)
	defer cancel()
	var nc net.Conn
	if s.cfg.Near != nil {
		nc = s.cfg.Near(connect, dtp.TransferAddr(target.GetId(), false))
	}
	if nc == nil {
		var err error
		if nc, err = s.cfg.Dial(connect, dialled); err != nil {
			return nil, err
		}
		if nc, err = s.secureTo(connect, nc, t); err != nil {
			return nil, fmt.Errorf("%s: %w", dialled, err)
		}
	}
	return &peer{
		Conn: nc,
		r:    bufio.NewReaderSize(nc, idleBuffer),
		addr: dtp.TransferAddr(target.GetId(), false), dialled: dialled,
		stop: context.AfterFunc(ctx, func() { nc.Close() }),
	}, nil
}

func (p *peer) Close() error {
	p.stop()
	return p.Conn.Close()
}

// deadlines limits the peer's silence from now on.
func (p *peer) deadlines(read, write time.Duration) {
	now := time.Now()
	_ = p.SetReadDeadline(now.Add(read))
	_ = p.SetWriteDeadline(now.Add(write))
}

// refresh moves the write deadline, now and then.
func (p *peer) refresh(write time.Duration) {
	if now := time.Now(); now.Sub(p.refreshed) >= refreshEvery {
		p.refreshed = now
		_ = p.SetWriteDeadline(now.Add(write))
	}
}

// downstream makes the request for the first of op's targets from the one received: the rest is the same.
func downstream(op *hadooppb.OpWriteBlockProto) *hadooppb.OpWriteBlockProto {
	next := &hadooppb.OpWriteBlockProto{
		Header:                op.Header,
		Targets:               op.Targets[1:],
		Source:                op.Source,
		Stage:                 op.Stage,
		PipelineSize:          op.PipelineSize,
		MinBytesRcvd:          op.MinBytesRcvd,
		MaxBytesRcvd:          op.MaxBytesRcvd,
		LatestGenerationStamp: op.LatestGenerationStamp,
		RequestedChecksum:     op.RequestedChecksum,
		WantedChecksum:        op.WantedChecksum,
		CachingStrategy:       op.CachingStrategy,
		AllowLazyPersist:      op.AllowLazyPersist,
		StorageType:           hadooppb.StorageTypeProto_DISK.Enum(),
	}
	if t := op.TargetStorageTypes; len(t) > 0 {
		next.StorageType, next.TargetStorageTypes = t[0].Enum(), t[1:]
	}
	if t := op.TargetStorageIds; len(t) > 0 {
		next.StorageId, next.TargetStorageIds = &t[0], t[1:]
	}
	if t := op.TargetPinnings; len(t) > 0 {
		next.Pinning, next.TargetPinnings = &t[0], t[1:]
	}
	return next
}

// connectDownstream opens the rest of a pipeline, and returns when all of it has answered. A kept
// connection that turns out to be closed is replaced by a new one.
func (c *conn) connectDownstream(ctx context.Context, op *hadooppb.OpWriteBlockProto) (*peer, error) {
	hops := time.Duration(len(op.Targets)) * perHop
	for fresh := false; ; fresh = true {
		p, err := c.mirror(ctx, op, fresh)
		if err != nil {
			return nil, err
		}
		p.deadlines(c.cfg.Read+hops, c.cfg.Write)
		var answer *hadooppb.BlockOpResponseProto
		if err = dtp.WriteOp(p, dtp.OpWriteBlock, downstream(op)); err == nil {
			answer, err = dtp.ReadResponse(p.r)
		}
		if err != nil && p.reused {
			p.Close()
			continue
		}
		if err == nil {
			err = dtp.CheckResponse(dtp.OpWriteBlock, answer)
		}
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("%s: %w", p.addr, err)
		}
		p.packetData = answer.GetPacketData()
		return p, nil
	}
}
