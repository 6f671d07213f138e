package server

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/datanode/transfer"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// obey takes what a namenode says. Orders count only from a leader whose term is the highest heard of from anybody: one
// that was deposed without knowing it is not obeyed.
func (n *session) obey(o *pb.Orders) {
	for {
		highest := n.term.Load()
		if o.Term <= highest || n.term.CompareAndSwap(highest, o.Term) {
			break
		}
	}
	n.mu.Lock()
	n.heard = time.Now()
	again := o.Report && !n.reporting
	n.reporting = n.reporting || again
	n.orders = &pb.Orders{Term: o.Term, Leader: o.Leader}
	if o.Leader {
		poke(n.pending) // what it did not have to know before it led
	}
	n.mu.Unlock()
	if o.TrustVersion != n.trusted.Load() {
		poke(n.untold)
	}
	n.checkReady()
	if again {
		n.log.Info("namenode asks for a full report", "namenode", n.addr)
		n.renew.Store(true)
		n.reportNow()
	}
	if !o.Leader || o.Term < n.term.Load() {
		if len(o.Replicate)+len(o.Delete)+len(o.Discard)+len(o.Recover)+len(o.Verify)+len(o.Rebuild)+len(o.Cache)+len(o.Uncache) > 0 {
			n.log.Warn("orders of a namenode that does not lead are refused", "namenode", n.addr, "term", o.Term, "highest", n.term.Load())
		}
		return
	}
	n.bandwidth.Store(o.Bandwidth)
	valid := func() bool { return n.term.Load() == o.Term }
	remove := func(b *pb.Block, how func(metadata.Block) error) {
		block := blockOf(b)
		n.deletes.add(job{block: block.ID, generation: block.Generation}, func(context.Context, *progress) {
			if !valid() {
				return
			}
			if err := how(block); err != nil {
				n.log.Warn("replica not deleted", "block", block.String(), "err", err)
			}
		})
	}
	for _, b := range o.Delete {
		remove(b, n.store.Delete)
	}
	for _, b := range o.Discard {
		remove(b, n.store.Discard)
	}
	for _, b := range o.Verify {
		n.scrub.Order(metadata.BlockID(b.GetId()))
	}
	for _, all := range o.Replicate {
		b := blockOf(all.Block)
		for _, r := range each(all) {
			n.replicas.add(job{block: b.ID, generation: b.Generation, target: r.Targets[0].GetUuid()}, func(ctx context.Context, p *progress) {
				if valid() {
					n.replicate(ctx, b, r, p)
				}
			})
		}
	}
	for _, id := range o.Uncache { // first: it makes room
		n.memory.Drop(metadata.BlockID(id))
	}
	for _, r := range o.Cache {
		b := blockOf(r)
		n.caching.add(job{block: b.ID, generation: b.Generation}, func(ctx context.Context, _ *progress) {
			if valid() {
				n.memory.Add(ctx, b)
			}
		})
	}
	for _, r := range o.Rebuild {
		b := blockOf(r.Group)
		n.rebuilds.add(job{block: b.ID, generation: b.Generation}, func(ctx context.Context, p *progress) {
			if valid() {
				n.rebuild(ctx, r, p)
			}
		})
	}
	for _, r := range o.Recover {
		b := blockOf(r.Block)
		n.recovers.addWhere(n.concerned(r), job{block: b.ID, generation: metadata.Generation(r.RecoveryId)}, func(ctx context.Context, _ *progress) {
			if valid() {
				n.recoverBlock(ctx, r)
			}
		})
	}
}

// each makes an order for each target, so that none waits for another one.
func each(r *pb.Replicate) []*pb.Replicate {
	var all []*pb.Replicate
	for i, target := range r.Targets {
		kind := uint32(datanode.Disk)
		if i < len(r.Types) {
			kind = r.Types[i]
		}
		all = append(all, &pb.Replicate{Block: r.Block, Targets: []*pb.DatanodeID{target}, Bandwidth: r.Bandwidth, Types: []uint32{kind}})
	}
	return all
}

// replicate carries out an order with one target.
func (s *Server) replicate(ctx context.Context, b metadata.Block, r *pb.Replicate, p *progress) {
	p.total.Store(b.Length)
	node, kind := r.Targets[0], r.Types[0]
	if node.GetUuid() == s.id.Uuid {
		s.move(ctx, b, datanode.StorageType(kind), r.Bandwidth, p)
		return
	}
	target := hadoopNode(node)
	name := dtp.TransferAddr(target.GetId(), false)
	start := time.Now()
	if err := s.transfer.Replicate(ctx, s.store.Identity().BlockPool, b, target, hadooppb.StorageTypeProto(kind), r.Bandwidth, p.add); err != nil {
		s.log.Warn("replica not copied", "block", b.String(), "target", name, "err", err)
		if _, its := errors.AsType[*transfer.TargetError](err); its {
			s.notCopied(ctx, b, node)
		}
		return
	}
	s.log.Info("replica copied", "block", b.String(), "target", name, "took", time.Since(start).Round(time.Millisecond))
}

// mostNotTaken is how many replicas that were not taken a beat tells of.
const mostNotTaken = 1024

// notCopied tells the namenodes at once that a datanode has not taken a replica, unless it is this one that ends. What they do not hear, because their sessions end, they find out by what does not get on.
func (s *Server) notCopied(ctx context.Context, b metadata.Block, target *pb.DatanodeID) {
	if ctx.Err() != nil {
		return
	}
	for _, n := range s.all() {
		n.mu.Lock()
		if n.registered && len(n.notTaken) < mostNotTaken {
			n.notTaken = append(n.notTaken, &pb.NotCopied{Block: wireBlock(b), Target: target.GetUuid()})
		}
		n.mu.Unlock()
		n.beatNow()
	}
}

// move puts a replica on another volume of this datanode: the order names no other.
func (s *Server) move(ctx context.Context, b metadata.Block, kind datanode.StorageType, bandwidth int64, p *progress) {
	start := time.Now()
	err := s.store.Move(ctx, b, kind, func(n int64) error {
		p.add(n)
		if bandwidth <= 0 {
			return nil
		}
		return s.transfer.PaceMove(ctx, n, bandwidth)
	})
	if err != nil {
		s.log.Warn("replica not moved", "block", b.String(), "to", kind.String(), "err", err)
		return
	}
	s.log.Info("replica moved", "block", b.String(), "to", kind.String(), "took", time.Since(start).Round(time.Millisecond))
}

func hadoopNode(d *pb.DatanodeID) *hadooppb.DatanodeInfoProto {
	return &hadooppb.DatanodeInfoProto{
		Id: &hadooppb.DatanodeIDProto{
			IpAddr: new(d.GetIp()), HostName: new(d.GetHost()), DatanodeUuid: new(d.GetUuid()),
			XferPort: new(d.GetTransferPort()), InfoPort: new(d.GetHttpPort()), IpcPort: new(d.GetIpcPort()),
		},
		Location: new("/default-rack"),
	}
}

// job identifies an order; one that is queued or under way is not taken again.
type job struct {
	block      metadata.BlockID
	generation metadata.Generation
	target     string // of a copy: the uuid of the datanode that is to have it
}

// progress is how far an order has come, which the namenodes are told. The zero value waits.
type progress struct {
	begun       atomic.Bool
	done, total atomic.Int64 // bytes to be sent or made
}

func (p *progress) add(n int64) { p.done.Add(n) }

// tell is what is said of the order.
func (p *progress) tell(j job) *pb.Progress {
	out := &pb.Progress{Block: wireBlock(metadata.Block{ID: j.block, Generation: j.generation}), Waits: !p.begun.Load(), Target: j.target}
	if total := p.total.Load(); total > 0 {
		out.Percent = uint32(min(max(float64(p.done.Load())/float64(total)*100, 0), 100))
	}
	return out
}

// crew carries out orders of one kind, a few at a time.
type crew struct {
	name    string
	workers int
	queue   chan task
	mu      *sync.Mutex
	known   map[job]*progress
}

type task struct {
	job job
	do  func(context.Context, *progress)
}

// crews are a crew for each volume: one whose disk does not answer holds up its own orders only.
type crews struct {
	store   *blockstore.Store
	name    string
	workers int
	changed chan struct{} // capacity 1: they are not those of before
	// elsewhere has the orders of which nothing is here, if there are such; nil: there are none.
	elsewhere *crew

	mu sync.Mutex       // guards the map
	of map[string]*crew // by storage uuid
}

func newCrews(store *blockstore.Store, name string, workers int) *crews {
	c := &crews{store: store, name: name, workers: workers, changed: make(chan struct{}, 1)}
	c.refresh()
	return c
}

// refresh takes the volumes that the store has now.
func (c *crews) refresh() {
	there := map[string]*crew{}
	volumes := c.store.Volumes() // which may wait for a disk
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range volumes {
		if there[v.ID] = c.of[v.ID]; there[v.ID] == nil {
			crew := newCrew(c.name, c.workers)
			there[v.ID] = &crew
		}
	}
	c.of = there
	poke(c.changed)
}

// add hands an order to the crew of the volume where the replica lies. Where there is none the namenode is told so: it would repeat the
// order, and take the block to be here. Of a volume that comes or goes just now the order is dropped, and repeated.
func (c *crews) add(j job, do func(context.Context, *progress)) {
	v, ok := c.store.VolumeOf(j.block)
	if !ok {
		c.store.Disown(j.block)
		return
	}
	c.mu.Lock()
	crew := c.of[v]
	c.mu.Unlock()
	if crew != nil {
		crew.add(j, do)
	}
}

// addWhere hands an order to the crew of the volume where the first of some replicas lies that is here, or to that for what is elsewhere.
func (c *crews) addWhere(ids []metadata.BlockID, j job, do func(context.Context, *progress)) {
	one := c.elsewhere
	for _, id := range ids {
		if v, ok := c.store.VolumeOf(id); ok {
			c.mu.Lock()
			one = c.of[v]
			c.mu.Unlock()
			break
		}
	}
	if one != nil { // else the volume comes or goes just now
		one.add(j, do)
	}
}

// progress is how far the orders of all volumes have come.
func (c *crews) progress() (out []*pb.Progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.of {
		out = append(out, one.progress()...)
	}
	return out
}

// run works until ctx is done.
func (c *crews) run(ctx context.Context) {
	var g sync.WaitGroup
	defer g.Wait()
	running := map[*crew]context.CancelFunc{}
	for {
		c.mu.Lock()
		now := slices.Collect(maps.Values(c.of))
		c.mu.Unlock()
		if c.elsewhere != nil {
			now = append(now, c.elsewhere)
		}
		for one, end := range running {
			if !slices.Contains(now, one) {
				end()
				delete(running, one)
			}
		}
		for _, one := range now {
			if running[one] == nil {
				own, end := context.WithCancel(ctx)
				running[one] = end
				g.Go(func() {
					defer end()
					one.run(own)
				})
			}
		}
		select {
		case <-c.changed:
		case <-ctx.Done():
			return
		}
	}
}

// maxQueued is how many orders of a kind wait; further ones are dropped, the namenode repeats them.
const maxQueued = 8192

func newCrew(name string, workers int) crew {
	return crew{name: name, workers: workers, queue: make(chan task, maxQueued), mu: new(sync.Mutex), known: map[job]*progress{}}
}

func (c *crew) add(j job, do func(context.Context, *progress)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.known[j]; ok {
		return
	}
	select {
	case c.queue <- task{j, do}:
		c.known[j] = &progress{}
	default:
	}
}

// progress is how far the orders have come that are queued or under way.
func (c *crew) progress() (out []*pb.Progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for j, p := range c.known {
		out = append(out, p.tell(j))
	}
	return out
}

// run works until ctx is done.
func (c *crew) run(ctx context.Context) {
	var g sync.WaitGroup
	for range c.workers {
		g.Go(func() {
			for {
				select {
				case t := <-c.queue:
					c.mu.Lock()
					p := c.known[t.job]
					c.mu.Unlock()
					p.begun.Store(true)
					t.do(ctx, p)
					c.mu.Lock()
					delete(c.known, t.job)
					c.mu.Unlock()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	g.Wait()
}
