package server

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// A group is made of a replicated block, the open end of a file whose writer has gone: stripe by stripe, which is what it takes of memory.

// sealUnits reads the block from whoever has it, and writes the internal blocks to where the order says. The namenodes hear of each target that fails. All are ended at the same time: what the
// group is for is to be there in more places than one.
func (s *Server) sealUnits(ctx context.Context, group metadata.Block, order *pb.Rebuild, coder *erasure.Coder, told *progress) (made []int, err error) {
	layout := coder.Layout()
	tail := blockOf(order.Tail)
	if tail.Length != group.Length || tail.ID.Striped() || len(order.Targets) > layout.Units() || len(order.TailAt) == 0 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "an order to make group %v of block %v", group, tail)
	}
	pool := s.store.Identity().BlockPool
	all := make([]int, len(order.TailAt))
	for i := range all {
		all[i] = i
	}
	sum, err := s.wantedOf(ctx, pool, all, func(i int) (metadata.Block, *hadooppb.DatanodeInfoProto) { return tail, hadoopNode(order.TailAt[i]) })
	if err != nil {
		return nil, err
	}
	units := make([]sink, layout.Units())
	nodes := make([]*pb.DatanodeID, layout.Units())
	var errs []error
	begun := 0
	unitOf := func(unit int) metadata.Block {
		return metadata.Block{ID: group.ID.Internal(unit), Generation: group.Generation, Length: layout.UnitLength(group.Length, unit)}
	}
	failed := func(unit int, err error) {
		errs, units[unit] = append(errs, err), nil
		s.notCopied(ctx, unitOf(unit), nodes[unit])
	}
	for _, p := range order.Targets {
		unit := int(min(p.Unit, uint32(layout.Units())))
		if unit == layout.Units() || nodes[unit] != nil {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "an order to make internal block %d of %d, or twice", p.Unit, layout.Units())
		}
		nodes[unit] = p.Node
		out, err := s.sinkFor(ctx, pool, unitOf(unit), p, sum, true)
		if err != nil {
			failed(unit, err)
			continue
		}
		if out != nil { // else it is there already
			defer out.Close()
			units[unit] = out
			begun++
		}
	}
	if begun == 0 {
		return nil, errors.Join(errs...)
	}
	in, err := s.readTail(ctx, pool, tail, order.TailAt)
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	defer in.Close()
	give := func(unit int, cell []byte) {
		if out := units[unit]; out != nil && len(cell) > 0 {
			if _, err := out.Write(cell); err != nil {
				failed(unit, err)
			}
		}
	}
	told.total.Store(tail.Length)
	memory := make([]byte, int64(layout.Units())*layout.Cell)
	cells := make([][]byte, layout.Units())
	for left := tail.Length; left > 0; {
		n := min(left, layout.Stripe())
		if err := s.paceRebuild(ctx, n); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(in, memory[:n]); err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
		for i := range cells {
			at := int64(i) * layout.Cell
			cells[i] = memory[at : at+min(layout.Cell, n)]
			if i < layout.Data {
				cells[i] = memory[min(at, n):min(at+layout.Cell, n)]
			}
		}
		if err := coder.Encode(cells[:layout.Data], cells[layout.Data:]); err != nil {
			return nil, err
		}
		for i, cell := range cells {
			give(i, cell)
		}
		left -= n
		told.add(n)
		s.rebuilt.read.Add(n)
	}
	ends := make([]error, len(units))
	var ending sync.WaitGroup
	for unit, out := range units {
		if out != nil {
			ending.Go(func() { ends[unit] = out.Finish() })
		}
	}
	ending.Wait()
	for unit, out := range units {
		switch {
		case out == nil:
		case ends[unit] != nil:
			failed(unit, ends[unit])
		case out.Made():
			made = append(made, unit)
			s.rebuilt.blocks.Add(1)
			s.rebuilt.written.Add(unitOf(unit).Length)
		}
	}
	return made, errors.Join(errs...)
}

// readTail opens the block at the first datanode that gives it. What is read was compared with its checksums.
func (s *Server) readTail(ctx context.Context, pool string, tail metadata.Block, at []*pb.DatanodeID) (io.ReadCloser, error) {
	var errs []error
	for _, node := range at {
		r, err := s.transfer.Fetch(ctx, pool, tail, hadoopNode(node), 0, tail.Length)
		if err == nil {
			return r, nil
		}
		s.log.Warn("the end of a file cannot be read to make a group of it", "block", tail.String(), "node", dtp.TransferAddr(hadoopNode(node).GetId(), false), "err", err)
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
