package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/datanode/rebuild"
	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// rebuilding computes what is lost of block groups, as the namenode orders.
type rebuilding struct {
	mu     sync.Mutex
	coders map[metadata.ErasurePolicyID]*erasure.Coder

	tasks, failed, blocks, read, written atomic.Int64
}

// coder is the one of a policy.
func (r *rebuilding) coder(id metadata.ErasurePolicyID) (*erasure.Coder, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.coders[id]; c != nil {
		return c, nil
	}
	p, known := metadata.ErasurePolicyOf(id)
	if !known {
		return nil, metadata.Errorf(metadata.ErrUnsupported, "erasure coding policy %d is not known", id)
	}
	c, err := erasure.New(p)
	if err != nil {
		return nil, err
	}
	if r.coders == nil {
		r.coders = map[metadata.ErasurePolicyID]*erasure.Coder{}
	}
	r.coders[id] = c
	return c, nil
}

// rebuild carries out an order: it reads as many internal blocks as are needed from other datanodes, and makes the lost ones here or elsewhere. One that fails is ordered again.
func (s *Server) rebuild(ctx context.Context, order *pb.Rebuild, p *progress) {
	group := blockOf(order.Group)
	log := s.log.With("group", group.String())
	start := time.Now()
	s.rebuilt.tasks.Add(1)
	made, err := s.rebuildUnits(ctx, group, order, p)
	if err != nil {
		if ctx.Err() == nil {
			s.rebuilt.failed.Add(1)
			log.Warn("internal blocks of a group not computed", "computed", made, "err", err)
		}
		return
	}
	log.Info("internal blocks of a group computed", "computed", made, "took", time.Since(start).Round(time.Millisecond))
}

func (s *Server) rebuildUnits(ctx context.Context, group metadata.Block, order *pb.Rebuild, told *progress) (made []int, err error) {
	coder, err := s.rebuilt.coder(metadata.ErasurePolicyID(min(order.Erasure, 255)))
	if err != nil {
		return nil, err
	}
	layout := coder.Layout()
	if order.Tail != nil {
		return s.sealUnits(ctx, group, order, coder, told)
	}
	if len(order.Targets) > layout.Parity || len(order.Sources) > layout.Units() || group.Length < 0 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "an order to compute %d internal blocks of %d", len(order.Targets), len(order.Sources))
	}
	at := map[int]*hadooppb.DatanodeInfoProto{}
	job := &rebuild.Job{Group: group, Coder: coder, Pace: s.paceRebuild, Slow: s.sourceTime}
	for _, p := range order.Sources {
		unit := int(min(p.Unit, stripe.MaxUnits))
		job.Sources = append(job.Sources, unit)
		at[unit] = hadoopNode(p.Node)
	}
	pool := s.store.Identity().BlockPool
	unitOf := func(unit int) metadata.Block {
		return metadata.Block{ID: group.ID.Internal(unit), Generation: group.Generation, Length: layout.UnitLength(group.Length, unit)}
	}
	job.Open = func(ctx context.Context, unit int, off, n int64) (io.ReadCloser, error) {
		r, err := s.transfer.Fetch(ctx, pool, unitOf(unit), at[unit], off, n)
		if err != nil {
			return nil, err
		}
		return &counted{r, &s.rebuilt.read}, nil
	}
	job.Failed = func(unit int, err error) {
		s.log.Warn("an internal block is not used any more to compute others", "group", group.String(), "unit", unit, "node", at[unit].GetId().GetDatanodeUuid(), "err", err)
	}
	sum, err := s.wantedOf(ctx, pool, job.Sources, func(unit int) (metadata.Block, *hadooppb.DatanodeInfoProto) { return unitOf(unit), at[unit] })
	if err != nil {
		return nil, err
	}
	var errs []error
	var sinks []sink
	var nodes []*pb.DatanodeID
	for _, p := range order.Targets {
		unit := int(min(p.Unit, stripe.MaxUnits))
		if unit >= layout.Units() {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "an order to compute internal block %d of %d", unit, layout.Units())
		}
		out, err := s.sinkFor(ctx, pool, unitOf(unit), p, sum, len(order.Targets) > 1)
		if err != nil {
			errs = append(errs, err)
			s.notCopied(ctx, unitOf(unit), p.Node)
			continue
		}
		if out != nil {
			defer out.Close()
			sinks = append(sinks, out)
			told.total.Add(unitOf(unit).Length)
			job.Targets = append(job.Targets, rebuild.Target{Unit: unit, Length: -1, Writer: &telling{out, told, func() { s.notCopied(ctx, unitOf(unit), p.Node) }}})
			nodes = append(nodes, p.Node)
		}
	}
	if len(sinks) == 0 {
		return nil, errors.Join(errs...)
	}
	failed, err := job.Run(ctx)
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	for i, out := range sinks {
		err := failed[i]
		if err == nil {
			if err = out.Finish(); err != nil {
				s.notCopied(ctx, unitOf(job.Targets[i].Unit), nodes[i])
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !out.Made() {
			continue
		}
		unit := job.Targets[i].Unit
		made = append(made, unit)
		s.rebuilt.blocks.Add(1)
		s.rebuilt.written.Add(unitOf(unit).Length)
	}
	return made, errors.Join(errs...)
}

// sourceTime is how long a source may say nothing, or take for a slice, while there are others.
const sourceTime = 5 * time.Second

// wantedOf asks who has internal blocks of a group, one after the other, how its writer wants it to be checked. Who is silent is asked again behind the others, and has longer then.
func (s *Server) wantedOf(ctx context.Context, pool string, of []int, at func(int) (metadata.Block, *hadooppb.DatanodeInfoProto)) (datanode.Checksum, error) {
	if len(of) == 0 {
		return datanode.DefaultChecksum, nil
	}
	var errs []error
	for _, limit := range []time.Duration{s.sourceTime, 12 * sourceTime} {
		var silent []int
		for _, i := range of {
			b, node := at(i)
			asking, cancel := context.WithTimeout(ctx, limit)
			sum, err := s.transfer.Wanted(asking, pool, b, node)
			late := asking.Err() != nil
			cancel()
			switch {
			case err == nil:
				return sum, nil
			case ctx.Err() != nil:
				return datanode.Checksum{}, ctx.Err()
			case late:
				silent = append(silent, i)
			}
			errs = append(errs, err)
		}
		of = silent
	}
	return datanode.Checksum{}, errors.Join(errs...)
}

// paceRebuild holds all computing of this datanode together to the rate that is configured.
func (s *Server) paceRebuild(ctx context.Context, n int64) error {
	return s.transfer.PaceRebuild(ctx, n, s.cfg.RebuildRate)
}

// sink is where a computed internal block goes. It is there after Finish, and nothing of it if it is closed before.
type sink interface {
	io.WriteCloser
	Finish() error
	// Made reports, after Finish, whether it was not there before.
	Made() bool
}

// sinkFor begins an internal block at a target, of which there are others, too, if it is hurried. nil without an error: it is there already, and
// was announced again.
func (s *Server) sinkFor(ctx context.Context, pool string, b metadata.Block, p *pb.Part, sum datanode.Checksum, hurried bool) (sink, error) {
	if p.GetNode().GetUuid() != s.id.Uuid {
		out, err := s.transfer.Place(ctx, pool, b, hadoopNode(p.Node), hadooppb.StorageTypeProto(p.Type), sum, hurried)
		if err != nil { // no nil in an interface
			return nil, err
		}
		return out, nil
	}
	o := datanode.CreateOptions{Type: datanode.StorageType(p.Type), Temporary: true, Expect: b.Length, Checksum: sum}
	out := &own{Server: s, id: b.ID}
	if err := out.do(func() error { return out.begin(b, o) }); err != nil {
		_ = out.Close()
		return nil, err
	}
	if out.w == nil {
		return nil, nil //nolint:nilnil // as said above
	}
	return out, nil
}

// own is a sink on a volume of this datanode. One whose disk does not answer has failed: what is being done there comes to its end with memory of its own, and nobody waits for it.
type own struct {
	*Server
	id   metadata.BlockID
	w    datanode.Writer // nil: the block is here already
	off  int64
	data []byte
	// left is closed when the call has come back for which nobody waits; nil: there is none.
	left chan struct{}
}

// Made implements sink: what is here gets no sink.
func (o *own) Made() bool { return true }

// do calls the disk.
func (o *own) do(f func() error) error {
	if o.left != nil {
		return metadata.Errorf(metadata.ErrIO, "the disk of block %d does not answer", o.id)
	}
	over := make(chan struct{})
	err := o.store.Patiently(o.id, func() error {
		defer close(over)
		return f()
	})
	select {
	case <-over:
	default:
		o.left = over
	}
	return err
}

func (o *own) begin(b metadata.Block, options datanode.CreateOptions) error {
	w, err := o.store.Create(b, options)
	if old, there := o.store.Replica(b.ID); there && errors.Is(err, metadata.ErrExist) {
		switch {
		case old.Block == b && old.State == datanode.Finalized:
			if o.store.Confirm(b) { // who gave the order does not know of it
				return nil
			}
			if w, err = o.store.Create(b, options); err != nil { // unless its files are gone: then there is none any more
				return err
			}
			o.w = w
			return nil
		case old.Block.Generation > b.Generation || old.State == datanode.Temporary:
			return err
		}
		// The namenode has counted it out: it was not written to its end.
		if err = o.store.Discard(old.Block); err == nil {
			w, err = o.store.Create(b, options)
		}
	}
	if err != nil { // no nil in an interface
		return err
	}
	o.w = w
	return nil
}

func (o *own) Write(p []byte) (int, error) {
	err := errors.New("the sink has failed")
	if o.left == nil {
		o.data = append(o.data[:0], p...)
		err = o.do(func() error { return o.w.Write(o.off, o.data, nil) })
	}
	if err != nil {
		return 0, err
	}
	o.off += int64(len(p))
	return len(p), nil
}

func (o *own) Finish() error {
	return o.do(func() error {
		_, err := o.w.Finalize()
		return err
	})
}

func (o *own) Close() error {
	shut := func() error {
		if o.w == nil {
			return nil
		}
		return o.w.Close()
	}
	if left := o.left; left != nil {
		o.unanswered.Go(func() {
			<-left
			_ = shut() // what was written of it goes
		})
		return nil
	}
	return o.do(shut)
}

// telling counts what is written as progress.
type telling struct {
	io.Writer
	p      *progress
	failed func() // is told that it cannot be written to
}

func (t *telling) Write(b []byte) (int, error) {
	n, err := t.Writer.Write(b)
	t.p.add(int64(n))
	if err != nil {
		t.failed()
	}
	return n, err
}

// counted counts what is read.
type counted struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}
