package smallfile

import (
	"cmp"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/gohops/hops/metadata"
)

// segment is a file of bodies that is written no more. seq, salt, bytes and the index do not change; victim, suspect and asked are guarded by
// Store.mu.
type segment struct {
	seq, salt uint64
	index
	bytes int64
	// dead is about how many bytes belong to bodies that were removed.
	dead atomic.Int64
	// victim: it is about to be removed, with what was found to be dead, or elsewhere. Nothing that is put from then on relies on it.
	victim bool
	// suspect: it has no sound footer, or its sync has failed. It is not known to be durable, and the next Sync copies it.
	suspect bool
	// worn: something of it is not what was written, and its next copy is better.
	worn atomic.Bool
	// asked is when Live was asked of all its ids last, in calls of Compact.
	asked uint64
}

// first is the least id, 0 if there is none.
func (g *segment) first() metadata.BlockID {
	if g.len() == 0 {
		return 0
	}
	return g.min()
}

func (g *segment) min() metadata.BlockID { return g.ids[0] }
func (g *segment) max() metadata.BlockID { return g.ids[g.len()-1] }

// wear notes what reading the segment has shown: what is not what was written is copied, as far as it is sound, and does not lie beside what is put again.
// An error that may pass shows nothing.
func (g *segment) wear(err error) {
	if errors.Is(err, errDamaged) {
		g.worn.Store(true)
	}
}

// live is about how many bytes of bodies are not dead.
func (g *segment) live() int64 {
	return max(g.bytes-recordsBegin-trailerSize-int64(g.len())*indexEntry-g.dead.Load(), 0)
}

// place is where a body lies.
type place struct {
	*segment
	entry
}

// table finds the segments that may have an id: those in whose range it is. It does not change. Segments are in the order of their least ids, which
// makes a balanced tree whose root is in the middle; top is the greatest id below a node.
type table struct {
	segments []*segment
	top      []metadata.BlockID
}

func newTable(all []*segment) *table {
	t := &table{}
	for _, g := range all {
		if g.len() > 0 {
			t.segments = append(t.segments, g)
		}
	}
	slices.SortFunc(t.segments, func(a, b *segment) int { return cmp.Or(cmp.Compare(a.min(), b.min()), cmp.Compare(a.seq, b.seq)) })
	t.top = make([]metadata.BlockID, len(t.segments))
	t.build(0, len(t.segments))
	return t
}

func (t *table) build(from, to int) metadata.BlockID {
	if from == to {
		return 0
	}
	middle := (from + to) / 2
	t.top[middle] = max(t.segments[middle].max(), t.build(from, middle), t.build(middle+1, to))
	return t.top[middle]
}

// places appends to found where an id lies: one place, but for bodies that were copied or put again.
func (t *table) places(id metadata.BlockID, found []place) []place {
	return t.search(id, 0, len(t.segments), found)
}

func (t *table) search(id metadata.BlockID, from, to int, found []place) []place {
	for from < to {
		middle := (from + to) / 2
		if t.top[middle] < id {
			return found
		}
		found = t.search(id, from, middle, found)
		g := t.segments[middle]
		if g.min() > id {
			return found
		}
		if g.max() >= id {
			if e, ok := g.find(id); ok {
				found = append(found, place{g, e})
			}
		}
		from = middle + 1
	}
	return found
}
