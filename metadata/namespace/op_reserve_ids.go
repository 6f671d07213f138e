package namespace

import (
	"unique"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// maxReserved bounds one reservation, so that a mistake does not use up the ids.
const maxReserved = 1 << 32

// reserveIDs hands out ranges of ids of blocks and groups, and of generations, that nobody else will get. The first command with an owner
// settles who owns the root directory and what the cluster is called, for all members alike.
//
// Errors: ErrInvalidArgument.
func (ns *Namespace) reserveIDs(t *txn, op *logpb.ReserveIDs) {
	if op.Blocks < 0 || op.Blocks > maxReserved || op.Groups < 0 || op.Groups > maxReserved || op.Generations > maxReserved ||
		len(op.Owner) > MaxName || len(op.Group) > MaxName || len(op.ClusterId) > MaxName {
		t.failf(metadata.ErrInvalidArgument, "Reservation of %d blocks, %d groups and %d generations", op.Blocks, op.Groups, op.Generations)
		return
	}
	m := &ns.meta
	r := new(IDRange)
	r.FirstBlock, r.FirstGeneration = m.nextBlock, m.nextGeneration
	r.FirstGroup = m.nextGroup()
	m.nextBlock += metadata.BlockID(op.Blocks)
	m.groups += uint64(op.Groups)
	m.nextGeneration += metadata.Generation(op.Generations)
	r.EndBlock, r.EndGeneration, r.EndGroup = m.nextBlock, m.nextGeneration, m.nextGroup()
	if op.Owner != "" && !m.owned {
		m.owned = true
		ns.touch(ns.root)
		ns.root.owner = unique.Make(op.Owner)
		ns.root.group = unique.Make(op.Group)
		ns.rerouted(ns.root)
		ns.tellUpdate(ns.root, metadata.UpdateOwner, func(e *metadata.Event) { e.Owner, e.Group = op.Owner, op.Group })
	}
	if m.clusterID == "" {
		m.clusterID = op.ClusterId
	}
	t.result.OK, t.result.Reserved = true, r
}
