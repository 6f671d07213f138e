package server

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/blockmanager"
	"github.com/gohops/hops/namenode/placement"
)

// Open ends whose writers have gone without sealing them are sealed here: the leader makes the file beside, and has a datanode that has the block write the
// group. Everything that it does in between is found again, or removed, by the next leader.

const (
	// sealsAtOnce is how many ends are being sealed at a time.
	sealsAtOnce = 4
	// sealAgain and sealSeldom are how long to wait after a try that failed: the one doubles up to the other.
	sealAgain, sealSeldom = 10 * time.Second, 10 * time.Minute
	// sealPatience is for how long a datanode may get no further with a group, and sealPace how many bytes a second those have to make before which it has not begun.
	sealPatience, sealPace = time.Minute, 4 << 20
	// refusedFor is how long new groups are not on a datanode that did not take an internal block.
	refusedFor = time.Minute
	// sealClient writes the files beside.
	sealClient = "hops-seal"
	// sealRepeat is how long an order stays without being repeated.
	sealRepeat = 5 * time.Second
	// sweepEvery is how often the directory of rewrites is looked through.
	sweepEvery = time.Minute
)

// sealing is what the leader does about open ends.
type sealing struct {
	mu    sync.Mutex
	tries map[metadata.BlockID]*sealTry
	// ordered are the groups that datanodes are to make.
	ordered []*sealOrder
	// refused are the datanodes that did not take an internal block, with when they may be asked for one again.
	refused map[namenode.NodeID]time.Time
}

type sealTry struct {
	running bool
	next    time.Time
	wait    time.Duration
}

type sealOrder struct {
	node    namenode.NodeID
	message *pb.Rebuild
	sent    time.Time
	// percent is how much the node says that it has made, at most so far, and moved when that became more, as with copies (blockmanager/progress.go). It has to be
	// begun until start.
	percent      int
	moved, start time.Time
	refused      []namenode.NodeID // targets that did not take what they should
	// missing is how many targets lacked theirs at the last look, and stored when that changed.
	missing int
	stored  time.Time
}

// newSealOrder is one of a group of so many bytes.
func newSealOrder(now time.Time, node namenode.NodeID, length int64) *sealOrder {
	return &sealOrder{node: node, moved: now, start: now.Add(sealPatience + time.Duration(length/sealPace)*time.Second)}
}

// progress tells how far a node has come with its orders to compute.
func (x *sealing) progress(now time.Time, id namenode.NodeID, list []blockmanager.Progress) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range x.ordered {
		if o.node != id {
			continue
		}
		at := slices.IndexFunc(list, func(p blockmanager.Progress) bool {
			return p.ID == metadata.BlockID(o.message.Group.Id) && p.Generation == metadata.Generation(o.message.Group.Generation)
		})
		switch {
		case at < 0:
		case list[at].Waits:
			if now.Before(o.start) {
				o.moved = now
			}
		case list[at].Percent > o.percent:
			o.percent, o.moved = list[at].Percent, now
		}
	}
}

// notTaken hears from a node that a target of its order did not take an internal block.
func (x *sealing) notTaken(now time.Time, id namenode.NodeID, unit metadata.Block, target namenode.NodeID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range x.ordered {
		is := func(p *pb.Part) bool { return p.Node.Uuid == string(target) }
		if o.node == id && metadata.BlockID(o.message.Group.Id) == unit.ID.Group() && metadata.Generation(o.message.Group.Generation) == unit.Generation &&
			slices.ContainsFunc(o.message.Targets, is) {
			if !slices.Contains(o.refused, target) {
				o.refused = append(o.refused, target)
			}
			if x.refused == nil {
				x.refused = map[namenode.NodeID]time.Time{}
			}
			x.refused[target] = now.Add(refusedFor)
		}
	}
}

// avoid are the datanodes that a new group had better not be on.
func (x *sealing) avoid(now time.Time) (without []namenode.NodeID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, until := range x.refused {
		if now.Before(until) {
			without = append(without, id)
		} else {
			delete(x.refused, id)
		}
	}
	slices.Sort(without)
	return without
}

// over ends an order.
func (x *sealing) over(o *sealOrder) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ordered = slices.DeleteFunc(x.ordered, func(other *sealOrder) bool { return other == o })
}

// verdict says whether to go on waiting for an order, of which internal blocks are not stored on the datanodes missing, and so many of the others may be lost. Where one may it is enough when those that
// are missing were refused, or there was no progress for grace. Without an error and not enough it is waited for.
func (x *sealing) verdict(now time.Time, o *sealOrder, missing []namenode.NodeID, spare int, grace time.Duration) (enough bool, err error) {
	stands := x.stands(now, o)
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(missing) != o.missing {
		o.missing, o.stored = len(missing), now
	}
	refused := !slices.ContainsFunc(missing, func(id namenode.NodeID) bool { return !slices.Contains(o.refused, id) })
	still := now.Sub(o.moved) >= grace && now.Sub(o.stored) >= grace
	switch {
	case len(missing) == 0 || spare > 0 && (refused || still):
		return true, nil
	case refused:
		return false, metadata.Errorf(metadata.ErrNotReplicatedYet, "datanodes %s did not take what they should", missing)
	case stands:
		return false, context.DeadlineExceeded
	}
	return false, nil
}

// stands reports whether an order has not got on for too long.
func (x *sealing) stands(now time.Time, o *sealOrder) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return now.Sub(o.moved) >= sealPatience
}

// orders are what a node is to be told now.
func (x *sealing) orders(now time.Time, id namenode.NodeID) []*pb.Rebuild {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []*pb.Rebuild
	for _, o := range x.ordered {
		if o.node == id && now.Sub(o.sent) >= sealRepeat {
			o.sent = now
			out = append(out, o.message)
		}
	}
	return out
}

// due are the ends to be tried now, and notes that they are.
func (x *sealing) due(now time.Time, ends []metadata.BlockID) []metadata.BlockID {
	x.mu.Lock()
	defer x.mu.Unlock()
	there := make(map[metadata.BlockID]bool, len(ends))
	for _, id := range ends {
		there[id] = true
	}
	running := 0
	for id, try := range x.tries {
		if try.running {
			running++
		} else if !there[id] {
			delete(x.tries, id)
		}
	}
	var due []metadata.BlockID
	for _, id := range ends {
		try := x.tries[id]
		if running == sealsAtOnce {
			break
		}
		if try == nil {
			try = &sealTry{wait: sealAgain}
			if x.tries == nil {
				x.tries = map[metadata.BlockID]*sealTry{}
			}
			x.tries[id] = try
		}
		if !try.running && !now.Before(try.next) {
			try.running = true
			running++
			due = append(due, id)
		}
	}
	return due
}

// ended notes how a try went.
func (x *sealing) ended(id metadata.BlockID, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	try := x.tries[id]
	if try == nil {
		return
	}
	if err == nil {
		delete(x.tries, id)
		return
	}
	try.running, try.next = false, time.Now().Add(try.wait)
	try.wait = min(2*try.wait, sealSeldom)
}

// sealEnds begins to seal open ends of closed files.
func (s *Server) sealEnds(r *reign, now time.Time) {
	if s.group.Level() < release.SealedTails || s.safe.check(s) != nil {
		return
	}
	s.soft.mu.Lock()
	var ends []metadata.BlockID
	files := map[metadata.BlockID]metadata.INodeID{}
	for id, inode := range s.soft.ends {
		ends = append(ends, id)
		files[id] = inode
	}
	s.soft.mu.Unlock()
	slices.Sort(ends)
	ends = slices.DeleteFunc(ends, func(id metadata.BlockID) bool {
		f, ok := s.ns.FileByID(files[id])
		return !ok || f.UnderConstruction || len(f.Blocks) == 0 || f.Blocks[len(f.Blocks)-1].ID != id
	})
	for _, id := range r.ends.due(now, ends) {
		go func() {
			err := s.sealEnd(r, files[id])
			r.ends.ended(id, err)
			if err != nil && s.reign.Load() == r {
				s.log.Warn("the end of a file stays replicated for the moment, though the file has an erasure coding policy", "block", id, "inode", uint64(files[id]), "error", err)
			}
		}()
	}
}

// sealEnd seals the open end of a closed file.
func (s *Server) sealEnd(r *reign, inode metadata.INodeID) error {
	f, ok := s.ns.FileByID(inode)
	if !ok || f.UnderConstruction || len(f.Blocks) == 0 {
		return nil
	}
	policy, coded := metadata.ErasurePolicyOf(f.Status.Erasure)
	tail := f.Blocks[len(f.Blocks)-1]
	if !coded || tail.ID.Striped() {
		return nil
	}
	source, group, err := s.groupBeside(r, f, tail, policy, nil)
	if err == nil {
		e := newEnvelope()
		e.command.Op = &logpb.Command_SealTail{SealTail: &logpb.SealTail{Inode: uint64(inode), Tail: blockOf(tail), Source: uint64(source)}}
		err = s.await(func(done func(error)) {
			c := s.myself()
			s.simple(&c, namenode.Retry{}, e, done)
		})
	}
	switch {
	case err == nil:
		s.log.Info("the end of a file was sealed", "file", f.Path, "block", tail.String(), "group", group)
	case source != 0: // the next try, or who converts the file, finds nothing in the way
		_ = s.await(func(done func(error)) { s.dropCopy(s.myself(), source, func() { done(nil) }) })
	}
	return err
}

// groupBeside has a file made beside f, of the group that a block of f becomes; of none if it is empty. doors are where the block is if it is a body, nil if datanodes have it.
// The source may be there with an error, too, and is 0 else. Nothing is made that could not be finished as things are, and what somebody else copies f to is left alone (ErrBeingCreated).
func (s *Server) groupBeside(
	r *reign, f *namespace.FileInfo, b metadata.Block, policy metadata.ErasurePolicy, doors []namenode.Location,
) (source metadata.INodeID, group *metadata.Block, err error) {
	var without []namenode.NodeID
	if b.Length > 0 {
		without, err = s.hasPlaces(r, f, b, policy, doors)
	}
	if err == nil {
		err = s.clearBeside(f)
	}
	if err == nil {
		err = s.await(func(done func(error)) {
			s.copyBeside(s.myself(), f, namenode.Retry{}, sealClient, 1+uint32(policy.ID), 1, false, func(made *metadata.FileStatus, err error) {
				if err == nil {
					source = made.ID
				}
				done(err)
			})
		})
	}
	if err == nil && b.Length > 0 {
		group, err = s.orderGroup(r, source, b, policy, doors, without)
	}
	if err == nil {
		err = s.completeSource(r, source, group)
	}
	return source, group, err
}

// hasPlaces says why no group can be made of a block of f at the moment: nobody gives the block, or there are too few datanodes that the group could go to. without are the ones that have refused others a
// moment ago, nil if a group on the rest would not outlive a loss.
func (s *Server) hasPlaces(r *reign, f *namespace.FileInfo, b metadata.Block, policy metadata.ErasurePolicy, doors []namenode.Location) (without []namenode.NodeID, err error) {
	want := placement.Request{Want: policy.Layout.Units(), BlockSize: f.Status.BlockSize, Spread: true, Policy: namenode.StoragePolicyByID(f.Policy)}
	if want.Policy.Types[0] == namenode.RAMDisk {
		want.Policy = namenode.HotPolicy
	}
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	if at, _ := s.soft.m.Locate(b.ID, ""); len(doors) == 0 && len(at) == 0 {
		return nil, nobodyGives(b)
	}
	if want.Exclude = r.ends.avoid(time.Now()); len(want.Exclude) > 0 {
		if choice := s.soft.m.Foresee(want); len(choice.Targets) > policy.Layout.Data {
			return want.Exclude, nil
		}
		want.Exclude = nil
	}
	choice := s.soft.m.Foresee(want)
	return nil, choice.GroupErr(f.Path, policy)
}

func nobodyGives(b metadata.Block) error {
	return metadata.Errorf(metadata.ErrIO, "no datanode has %v, or none that has it is there", b)
}

// orderGroup has a datanode make the group, one that has the block or, of a body, one that is to have the group, and waits until its internal blocks that have bytes are stored: what it
// takes the place of outlives as many losses as the group then does, and is deleted at once. It may lack what datanodes did not take, or what does not come within soft.whole, if one more of the others
// may be lost (whole): that is computed when the group is closed.
func (s *Server) orderGroup(
	r *reign, source metadata.INodeID, tail metadata.Block, policy metadata.ErasurePolicy, doors []namenode.Location, without []namenode.NodeID,
) (*metadata.Block, error) {
	var l *namenode.LocatedBlock
	err := s.await(func(done func(error)) {
		s.AddBlock(s.myself(), namenode.AddBlockRequest{File: namenode.FileRef{INode: source}, Client: sealClient, Anywhere: true, Exclude: without}, func(b *namenode.LocatedBlock, err error) {
			l = b
			done(err)
		})
	})
	if err != nil {
		return nil, err
	}
	at, makers := doors, l.Locations
	if len(doors) == 0 {
		s.soft.mu.Lock()
		at, _ = s.soft.m.Locate(tail.ID, "")
		s.soft.mu.Unlock()
		makers = at
	}
	if len(makers) == 0 {
		return nil, nobodyGives(tail)
	}
	group := l.Block
	group.Length = tail.Length
	order := newSealOrder(time.Now(), makers[0].Node.ID, tail.Length)
	order.message = &pb.Rebuild{Group: wireBlock(group), Erasure: uint32(policy.ID), Tail: wireBlock(tail)}
	for _, from := range at {
		order.message.TailAt = append(order.message.TailAt, wireNode(from.Node))
	}
	order.message.Targets = sealTargets(policy.Layout, tail.Length, l)
	x := &r.ends
	x.mu.Lock()
	x.ordered = append(x.ordered, order)
	x.mu.Unlock()
	defer x.over(order)
	missing := func() (missing []namenode.NodeID) {
		for _, p := range order.message.Targets {
			unit := metadata.Block{ID: group.ID.Internal(int(p.Unit)), Generation: group.Generation, Length: policy.Layout.UnitLength(group.Length, int(p.Unit))}
			if unit.Length > 0 && s.soft.m.Replicated(unit) == 0 {
				missing = append(missing, namenode.NodeID(p.Node.Uuid))
			}
		}
		return missing
	}
	all := func(metadata.Block, func() int) bool { return len(missing()) == 0 }
	for {
		s.kick([]namenode.NodeID{order.node})
		durable := make(chan bool, 1)
		s.soft.awaitAll([]metadata.Block{group}, &s.soft.patience, all, func(ok bool) { durable <- ok })
		select {
		case ok := <-durable:
			if ok {
				return &group, nil
			}
		case <-s.stopped:
			return nil, namenode.ErrStandbyWrite
		}
		if s.reign.Load() != r {
			return nil, namenode.ErrStandbyWrite
		}
		s.soft.mu.Lock()
		lacks, grace := missing(), s.soft.whole
		_, _, spare := s.soft.m.Stored(group, 0)
		s.soft.mu.Unlock()
		enough, err := x.verdict(time.Now(), order, lacks, spare, grace)
		switch {
		case err != nil:
			return nil, fmt.Errorf("datanode %s has not made all of the group %v of %v: %w", order.node, group, tail, err)
		case enough:
			if len(lacks) > 0 {
				s.log.Info("a group takes the place of a block before all of it is stored", "group", group, "block", tail.String(), "missing", fmt.Sprint(lacks))
			}
			return &group, nil
		}
	}
}

// sealTargets are where the internal blocks that have bytes are to go. Where there are too few datanodes for all of a group, one for which there is none goes where another would have been empty.
func sealTargets(layout stripe.Layout, length int64, l *namenode.LocatedBlock) []*pb.Part {
	var at [stripe.MaxUnits]*namenode.Location
	var free []*namenode.Location
	for i := range l.Locations {
		if unit := int(l.Units[i]); layout.UnitLength(length, unit) > 0 {
			at[unit] = &l.Locations[i]
		} else {
			free = append(free, &l.Locations[i])
		}
	}
	var targets []*pb.Part
	for unit := range layout.Units() {
		to := at[unit]
		if to == nil && layout.UnitLength(length, unit) > 0 && len(free) > 0 {
			to, free = free[0], free[1:]
		}
		if to != nil {
			targets = append(targets, &pb.Part{Unit: uint32(unit), Node: wireNode(to.Node), Type: uint32(to.Type)})
		}
	}
	return targets
}

// completeSource closes the file beside.
func (s *Server) completeSource(r *reign, source metadata.INodeID, group *metadata.Block) error {
	for deadline := time.Now().Add(sealPatience); ; {
		closed := false
		err := s.await(func(done func(error)) {
			s.Complete(s.myself(), namenode.FileRef{INode: source}, sealClient, group, func(ok bool, err error) {
				closed = ok
				done(err)
			})
		})
		switch {
		case err != nil || closed:
			return err
		case s.reign.Load() != r:
			return namenode.ErrStandbyWrite
		case time.Now().After(deadline):
			return metadata.Errorf(metadata.ErrNotReplicatedYet, "the group %v has too few internal blocks", group)
		}
	}
}

// sweepRewrites removes what was copied to and not exchanged.
func (s *Server) sweepRewrites(r *reign, now time.Time) {
	if now.Sub(r.sweptAt) < sweepEvery || s.group.Level() < release.SealedTails || !r.sweeping.CompareAndSwap(false, true) {
		return
	}
	r.sweptAt = now
	go func() {
		defer r.sweeping.Store(false)
		if err := s.sweep(); err != nil && s.reign.Load() == r {
			s.log.Warn("looking for copies of files that nobody needs", "directory", rewrites, "error", err)
		}
	}()
}

func (s *Server) sweep() error {
	list, err := s.entries(s.myself(), rewrites)
	if err != nil {
		return err
	}
	for _, e := range list {
		id, err := strconv.ParseUint(e.Name, 10, 64)
		if err != nil || e.IsDir() {
			continue // an administrator's
		}
		_, needed := s.ns.FileByID(metadata.INodeID(id))
		left := !e.UnderConstruction && s.clock.wall()-e.MTime > metadata.Time(rewriteStays.Milliseconds())
		if needed && !left {
			continue
		}
		if err := s.await(func(done func(error)) {
			s.Delete(s.myself(), namenode.Retry{}, rewrites+"/"+e.Name, false, func(_ bool, err error) { done(err) })
		}); err != nil {
			return err
		}
	}
	return nil
}
