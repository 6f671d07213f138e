package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// unitOffer is what a datanode has of an internal block of the group in recovery.
type unitOffer struct {
	offer
	unit int
	// decided is how long the group was to be by the earlier recovery that has cut this; 0: that is not known.
	decided int64
}

// decisions remember, of the internal blocks that recoveries have cut here, how long their groups were to be: a recovery that has decided, and whose end was not recorded, has cut what
// its decision followed from. They are in memory: one internal block of the group whose datanode has not restarted is enough.
type decisions struct {
	mu    sync.Mutex
	all   map[metadata.BlockID]decision
	order []metadata.BlockID // those in all; at mostDecisions the one at next is the oldest
	next  int
}

type decision struct {
	generation metadata.Generation // of the internal block
	length     int64               // of the group
}

// mostDecisions is how many are remembered. One is of use until the next attempt, some seconds later.
const mostDecisions = 4096

func (d *decisions) note(id metadata.BlockID, is decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[metadata.BlockID]decision{}
	}
	if _, there := d.all[id]; !there {
		if len(d.order) < mostDecisions {
			d.order = append(d.order, id)
		} else {
			delete(d.all, d.order[d.next])
			d.order[d.next] = id
			d.next = (d.next + 1) % mostDecisions
		}
	}
	d.all[id] = is
}

// of is the length that was decided when a replica got its generation, 0 if that is not known.
func (d *decisions) of(b metadata.Block) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if is := d.all[b.ID]; is.generation == b.Generation {
		return is.length
	}
	return 0
}

// updateReplica is UpdateReplica of a store, which remembers of an internal block how long its group is to be.
func updateReplica(store datanode.BlockStore, d *decisions, b metadata.Block, recovery metadata.Generation, length, group int64) (datanode.Replica, error) {
	r, err := store.UpdateReplica(b, recovery, length)
	if err == nil && b.ID.Striped() && group > 0 {
		d.note(b.ID, decision{recovery, group})
	}
	return r, err
}

// recoverGroup is recoverBlock for a block group (HDFS's RecoveryTaskStriped): every internal block is fenced; decideGroup says how long the group is; those that have
// their part of it are cut to that, restamped and finalized; the leader is told. What the others lack of it is computed later.
func (s *Server) recoverGroup(ctx context.Context, order *pb.Recover, log *slog.Logger) {
	group, recovery := blockOf(order.Block), metadata.Generation(order.RecoveryId)
	policy, known := metadata.ErasurePolicyOf(metadata.ErasurePolicyID(min(order.Erasure, 255)))
	switch {
	case !known || group.ID.Group() != group.ID || len(order.Units) != len(order.Replicas) || order.Truncate > 0 || order.Source != nil:
		log.Warn("the recovery of a block group is refused: the order is not one", "policy", order.Erasure, "truncate", order.Truncate)
		return
	case len(order.Replicas) > stripe.MaxUnits*maxHolders:
		log.Warn("the recovery of a block group is refused: too many datanodes", "datanodes", len(order.Replicas))
		return
	}
	offers, silent, err := s.collectUnits(ctx, group, recovery, order, policy.Layout)
	if err != nil {
		log.Warn("block recovery given up", "err", err)
		return
	}
	for _, id := range order.Missing {
		silent = append(silent, fmt.Errorf("%s is dead", id))
	}
	part, length := decideGroup(policy.Layout, group.Length, offers)
	decided := int64(0)
	for _, o := range offers {
		decided = max(decided, o.decided)
	}
	if len(silent) > 0 {
		var why error
		switch {
		case distinct(offers) < policy.Layout.Data && distinct(offers)+len(silent) >= policy.Layout.Data:
			why = fmt.Errorf("those that answer have %d internal blocks of the %d that are needed", distinct(offers), policy.Layout.Data)
		case length < group.Length:
			why = fmt.Errorf("the internal blocks of those that answer have %d bytes, and %d were acknowledged", length, group.Length)
		case length < decided:
			why = fmt.Errorf("the internal blocks of those that answer have %d bytes, and an earlier recovery has found %d", length, decided)
		}
		if why != nil && !order.PatienceOver {
			log.Warn("block recovery failed", "err", fmt.Errorf("%w, and some datanodes do not answer: %w", why, errors.Join(silent...)))
			return
		}
		if why != nil {
			log.Error("block recovery goes on without datanodes that may have more of the group: they were waited for long enough", "length", length, "reason", why, "absent", errors.Join(silent...))
		}
	}
	if length > 0 && length < group.Length { // the leader refuses that before, and nothing may be cut for it
		if !order.PatienceOver {
			log.Warn("block recovery failed: what is left of the group is shorter than what was acknowledged", "length", length, "acknowledged", group.Length)
			return
		}
		log.Error("block recovery cuts a group to fewer bytes than were acknowledged: the internal blocks of the others were waited for long enough", "length", length, "acknowledged", group.Length)
	}
	request := &pb.CommitBlockSynchronizationRequest{Block: order.Block, RecoveryId: order.RecoveryId, Length: length, Close: true}
	if length == 0 {
		request.DeleteBlock = true
		part = offers // those say how many internal blocks were found
	} else {
		part = s.updateUnits(ctx, group, recovery, length, policy.Layout, part)
		if n := distinct(part); n < policy.Layout.Used(length)-policy.Layout.Parity {
			log.Warn("block recovery failed: too few internal blocks could be updated", "updated", n)
			return
		}
	}
	for _, o := range part {
		request.Locations, request.Units = append(request.Locations, o.node), append(request.Units, uint32(o.unit))
	}
	if err := s.commit(ctx, request); err != nil {
		log.Warn("block recovery not committed", "err", err)
		return
	}
	log.Info("block group recovered", "length", length, "internal", len(part), "deleted", request.DeleteBlock)
}

// maxHolders is how many datanodes may be named for each internal block.
const maxHolders = 8

// collectUnits asks for all internal blocks at once, as collect does for replicas.
func (s *Server) collectUnits(ctx context.Context, group metadata.Block, recovery metadata.Generation, order *pb.Recover, layout stripe.Layout) (offers []unitOffer, silent []error, err error) {
	answers := make([]datanode.Replica, len(order.Replicas))
	decided := make([]int64, len(order.Replicas))
	errs := make([]error, len(order.Replicas))
	var g sync.WaitGroup
	for i, d := range order.Replicas {
		if int64(order.Units[i]) >= int64(layout.Units()) {
			return nil, nil, metadata.Errorf(metadata.ErrInvalidArgument, "internal block %d of %d", order.Units[i], layout.Units())
		}
		g.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, s.peerTime)
			defer cancel()
			answers[i], decided[i], errs[i] = s.initReplica(ctx, d, metadata.Block{ID: group.ID.Internal(int(order.Units[i])), Generation: group.Generation}, recovery)
		})
	}
	g.Wait()
	for i, d := range order.Replicas {
		switch e := errs[i]; {
		case e == nil:
			if b := answers[i].Block; b.Generation >= group.Generation {
				offers = append(offers, unitOffer{offer{node: d, block: b, state: answers[i].State}, int(order.Units[i]), decided[i]})
			}
		case errors.Is(e, metadata.ErrRecoveryInProgress):
			return nil, nil, fmt.Errorf("%s: %w", d.GetUuid(), e)
		case errors.Is(e, metadata.ErrReplicaNotFound):
		default:
			silent = append(silent, fmt.Errorf("%s: %w", d.GetUuid(), e))
		}
	}
	return offers, silent, nil
}

// distinct is how many internal blocks are among the offers.
func distinct(offers []unitOffer) int {
	var seen [stripe.MaxUnits]bool
	n := 0
	for _, o := range offers {
		if !seen[o.unit] {
			seen[o.unit] = true
			n++
		}
	}
	return n
}

// decideGroup is how many bytes of a group are sure, and the internal blocks that have their part of them, each once.
//
// Those are the whole stripes of which as many cells are whole as the code needs; parity of a stripe that is not full may be of more data than is kept of it. A writer that
// ended all internal blocks, and died before it said so, has left the group complete: that keeps its last stripe, too. HDFS keeps whole stripes in either case.
//
// Known is how many bytes the namenode knows to have been acknowledged. So many, or as many as an earlier recovery has decided, are sure if enough internal blocks have their part of
// them: HDFS does not ask.
func decideGroup(layout stripe.Layout, known int64, offers []unitOffer) (part []unitOffer, length int64) {
	longest := make([]*unitOffer, layout.Units())
	lengths := make([]int64, layout.Units())
	for i := range lengths {
		lengths[i] = -1
	}
	for i := range offers {
		o := &offers[i]
		best := longest[o.unit]
		if best == nil || o.block.Length > best.block.Length || o.block.Length == best.block.Length && better(best.state, o.state) != best.state {
			longest[o.unit], lengths[o.unit] = o, o.block.Length
		}
	}
	length = ended(layout, longest)
	if length < 0 {
		length = sure(layout, lengths)
	}
	length = max(length, kept(layout, lengths, known))
	for _, o := range offers {
		length = max(length, kept(layout, lengths, o.decided))
	}
	for i, o := range longest {
		if n := layout.UnitLength(length, i); n > 0 && lengths[i] >= n {
			part = append(part, *o)
		}
	}
	return part, length
}

// sure is Layout.Safe without a last stripe of which it is not known that it was full: the parity of one that begins with a whole cell has whole cells, too. HDFS takes
// what lacks there for zeros.
func sure(layout stripe.Layout, lengths []int64) int64 {
	length := layout.Safe(lengths)
	end := layout.Span(length)
	known := 0
	for i, n := range lengths {
		if n > end { // another stripe was begun
			return length
		}
		if i < layout.Data && n >= end {
			known++
		}
	}
	if known == layout.Data {
		return length
	}
	return max(length-layout.Stripe(), 0)
}

// kept is how much is left of so many bytes that were in a group for sure: all, the whole stripes of them, or nothing. What is told of a last stripe that is not full is told when the
// group ends, of which its parity is then; where more was written behind it that cannot be.
func kept(layout stripe.Layout, lengths []int64, length int64) int64 {
	whole := length - length%layout.Stripe()
	for _, n := range []int64{length, whole} {
		have, more := 0, false
		for i, found := range lengths {
			part := layout.UnitLength(n, i)
			if found >= part || part == 0 {
				have++
			}
			more = more || found > part
		}
		if have >= layout.Data && (n == whole || !more) {
			return n
		}
	}
	return 0
}

// ended is the length of a group whose writer ended all that is left of it, -1 if that is not sure. A data block that nobody has is known to be empty only in the first
// stripe, behind a cell that is shorter than the parity's or than a cell can be.
func ended(layout stripe.Layout, units []*unitOffer) int64 {
	length, span := int64(0), int64(-1)
	for i, o := range units {
		switch {
		case o == nil:
			continue
		case o.state != datanode.Finalized:
			return -1
		case i < layout.Data:
			length += o.block.Length
		case span >= 0 && o.block.Length != span:
			return -1
		default:
			span = o.block.Length
		}
	}
	if span < 0 {
		return -1
	}
	short := false
	for i, o := range units {
		switch {
		case o != nil && o.block.Length != layout.UnitLength(length, i):
			return -1
		case o == nil && i < layout.Data && (!short || span > layout.Cell):
			return -1
		case o != nil && i < layout.Data && o.block.Length < layout.Cell:
			short = true
		}
	}
	return length
}

// updateUnits has all participants cut and restamped, and returns those that did it.
func (s *Server) updateUnits(ctx context.Context, group metadata.Block, recovery metadata.Generation, length int64, layout stripe.Layout, part []unitOffer) []unitOffer {
	done := make([]bool, len(part))
	var g sync.WaitGroup
	for i, o := range part {
		g.Go(func() {
			b := metadata.Block{ID: group.ID.Internal(o.unit), Generation: group.Generation}
			done[i] = len(s.update(ctx, b, recovery, layout.UnitLength(length, o.unit), []offer{o.offer}, length)) == 1
		})
	}
	g.Wait()
	var out []unitOffer
	for i, o := range part {
		if done[i] {
			out = append(out, o)
		}
	}
	return out
}
