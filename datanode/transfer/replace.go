package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// What Hadoop's balancer and mover have done, who move replicas themselves: REPLACE_BLOCK has this datanode get a replica from another one by COPY_BLOCK, and tell the namenode
// whose is one too many then. It is the namenode that has that one deleted, or another one, or none.

const (
	// maxReplacing bounds the replicas that are got at a time; who asks for more waits.
	maxReplacing = 16
	// maxHint is the length of the uuid of a datanode, at most.
	maxHint = 128
	// silentLook is how often it is looked whether the disk answers.
	silentLook = time.Second
)

var errPanicked = errors.New("a mistake of this program, which its log describes")

// replace serves REPLACE_BLOCK. It says that it is at work as often as makes the balancer stay, and gives up when that has gone.
func (c *conn) replace(ctx context.Context, op *hadooppb.OpReplaceBlockProto) error {
	refuse := func(err error) error { return c.refuse(dtp.OpReplaceBlock, statusOf(err), "", err) }
	b, err := c.blockOf(op.GetHeader().GetBlock())
	if err == nil && b.Length == 0 {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "%v has no bytes to be moved", b)
	}
	if err == nil && len(op.GetDelHint()) > maxHint {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "a hint of %d bytes, %d are allowed", len(op.GetDelHint()), maxHint)
	}
	if err == nil {
		err = c.checkTarget(ctx, op.GetSource())
	}
	if err != nil {
		return refuse(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	var placed atomic.Bool
	leave := func() { // the place is somebody else's
		if placed.Swap(false) {
			<-c.replacing
		}
	}
	go func() {
		err := errPanicked
		defer func() {
			if what := recover(); what != nil {
				c.log.Error("a mistake of this program: a replacement panicked; please report it", "block", b.String(), "panic", what, "stack", string(debug.Stack()))
			}
			leave()
			done <- err
		}()
		err = c.get(ctx, b, op, &placed)
	}()
	look := time.NewTicker(silentLook)
	defer look.Stop()
	alive := time.NewTicker(c.cfg.Read / 6) // Hadoop's balancer waits for 60 s
	defer alive.Stop()
	var gone error
	for {
		select {
		case err := <-done:
			if gone != nil {
				return gone
			}
			c.deadlines(c.cfg.Read, c.cfg.Write)
			if err != nil {
				return refuse(err)
			}
			return dtp.WriteResponse(c.nc, dtp.Success())
		case <-look.C:
			if c.cfg.Silent == nil || !placed.Load() || !c.cfg.Silent(b.ID) {
				continue
			}
			if leave(); gone != nil {
				return gone
			}
			c.deadlines(c.cfg.Read, c.cfg.Write)
			return refuse(metadata.Errorf(metadata.ErrIO, "the disk to which %v was to go does not answer", b))
		case <-alive.C:
			if gone != nil {
				continue
			}
			c.deadlines(c.cfg.Read, c.cfg.Write)
			if err := dtp.WriteResponse(c.nc, &hadooppb.BlockOpResponseProto{Status: hadooppb.Status_IN_PROGRESS.Enum()}); err != nil {
				cancel()
				gone = fmt.Errorf("the balancer has gone: %w", err)
			}
		}
	}
}

// get brings a replica here: from another datanode, or from another volume of this one. placed: it has a place among those that may, which the caller gives back.
func (s *Server) get(ctx context.Context, b metadata.Block, op *hadooppb.OpReplaceBlockProto, placed *atomic.Bool) error {
	select {
	case s.replacing <- struct{}{}:
		placed.Store(true)
	case <-ctx.Done():
		return ctx.Err()
	}
	kind := datanode.StorageType(op.GetStorageType())
	if s.cfg.Move != nil && op.GetSource().GetId().GetDatanodeUuid() == s.cfg.UUID {
		return s.cfg.Move(ctx, b, kind, func(n int64) error { return s.balancing.Take(ctx, n, s.bandwidth()) })
	}
	pool := op.GetHeader().GetBlock().GetPoolId()
	sum, err := s.Wanted(ctx, pool, b, op.GetSource())
	if err != nil {
		return err
	}
	in, err := s.fetchBy(ctx, dtp.OpCopyBlock, pool, b, op.GetSource(), 0, b.Length)
	if err != nil {
		return fmt.Errorf("copy of %v from %s: %w", b, dtp.TransferAddr(op.GetSource().GetId(), false), err)
	}
	defer in.Close()
	w, err := s.store.Create(b, datanode.CreateOptions{Type: kind, Temporary: true, Expect: b.Length, Checksum: sum, Instead: op.GetDelHint()})
	if err != nil {
		return err
	}
	defer w.Close()
	for buf, off := make([]byte, packetData), int64(0); off < b.Length; {
		n, err := io.ReadFull(in, buf[:min(packetData, b.Length-off)])
		if err == nil {
			err = w.Write(off, buf[:n], nil)
		}
		if err == nil {
			err = s.balancing.Take(ctx, int64(n), s.bandwidth())
		}
		if err != nil {
			return err
		}
		off += int64(n)
	}
	if _, err = w.Finalize(); err == nil {
		s.log.Info("replica received for a balancer", "block", b.String(), "from", dtp.TransferAddr(op.GetSource().GetId(), false), "instead of", op.GetDelHint())
	}
	return err
}

// bandwidth is how many bytes a second go to balancers, and come of them.
func (s *Server) bandwidth() int64 {
	if s.cfg.Bandwidth != nil {
		if n := s.cfg.Bandwidth(); n > 0 {
			return n
		}
	}
	return defaultBandwidth
}

// defaultBandwidth is HDFS's dfs.datanode.balance.bandwidthPerSec, which counts until a namenode has said another one.
const defaultBandwidth = 100 << 20

// copyBlock serves COPY_BLOCK: another datanode gets the whole of a finalized replica, at the pace of balancers, and verified. It is a read, and needs the right to it.
func (c *conn) copyBlock(ctx context.Context, op *hadooppb.OpCopyBlockProto) error {
	b, err := c.blockOf(op.GetHeader().GetBlock())
	var rd datanode.Reader
	if err == nil {
		rd, err = c.store.Open(b)
	}
	if err != nil {
		return c.refuse(dtp.OpCopyBlock, statusOf(err), "", err)
	}
	defer rd.Close()
	if have := rd.Replica(); have.State != datanode.Finalized || have.Block != b {
		err := metadata.Errorf(metadata.ErrInvalidArgument, "copy of %v, but the replica is %v", b, have)
		return c.refuse(dtp.OpCopyBlock, statusOf(err), "", err)
	}
	sum := storedOf(rd.Checksum())
	if err := dtp.WriteResponse(c.nc, dtp.ReadSuccess(sum, 0)); err != nil {
		return err
	}
	out := &sender{
		w: &paced{w: c.nc, budget: &c.balancing, rate: c.bandwidth(), ctx: ctx}, rd: rd, sum: sum, verify: true,
		refresh: func() { _ = c.nc.SetWriteDeadline(time.Now().Add(c.cfg.Write)) },
	}
	if err := out.send(0, b.Length); err != nil {
		if out.failed != nil {
			c.broken(b.ID)
		}
		return err
	}
	return errDone
}
