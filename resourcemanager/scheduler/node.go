package scheduler

import (
	"cmp"
	"slices"
	"strings"

	rm "github.com/gohops/hops/resourcemanager"
)

// node is a node during a pass.
type node struct {
	*Node
	memory int64      // free
	other  rm.Amounts // free
	vcores int        // free
	places int        // for containers
	// islands hold the free devices. A device without an island is one of its own.
	islands []*island
}

// island is a set of free devices that NVLink joins.
type island struct {
	name string
	free []GPU // by minor, then UUID
}

func newNode(n *Node) *node {
	own := &node{Node: n, memory: n.Capacity.Memory - n.Used.Memory, vcores: n.Capacity.VCores - n.Used.VCores, other: n.Capacity.Other.Sub(n.Used.Other), places: rm.MaxContainersPerNode - n.Containers}
	byName := map[string]*island{}
	for _, g := range n.GPUs {
		if !g.Free {
			continue
		}
		name := g.Island
		if name == "" {
			name = "\x00" + g.UUID
		}
		i := byName[name]
		if i == nil {
			i = &island{name: name}
			byName[name] = i
			own.islands = append(own.islands, i)
		}
		i.free = append(i.free, g)
	}
	slices.SortFunc(own.islands, func(a, b *island) int { return cmp.Compare(a.name, b.name) })
	for _, i := range own.islands {
		slices.SortFunc(i.free, func(a, b GPU) int {
			return cmp.Or(cmp.Compare(a.Minor, b.Minor), cmp.Compare(a.UUID, b.UUID))
		})
	}
	return own
}

// is reports whether a name of an ask means this node.
func (n *node) is(name string) bool { return name == n.Host || name == string(n.ID) }

func (n *node) named(in []string) bool { return slices.ContainsFunc(in, n.is) }

// model reports whether a device is of the model that an ask names.
func model(g GPU, want string) bool {
	return want == "" || strings.EqualFold(want, "any") || strings.Contains(strings.ToLower(g.Model), strings.ToLower(want))
}

// free counts the devices of an island that are of a model.
func (i *island) count(want string) int {
	if want == "" {
		return len(i.free)
	}
	n := 0
	for _, g := range i.free {
		if model(g, want) {
			n++
		}
	}
	return n
}

// take removes k devices of a model from the island.
func (i *island) take(k int, want string) []string {
	var out []string
	i.free = slices.DeleteFunc(i.free, func(g GPU) bool {
		if len(out) < k && model(g, want) {
			out = append(out, g.UUID)
			return true
		}
		return false
	})
	return out
}

// freeGPUs counts the free devices of a model.
func (n *node) freeGPUs(want string) int {
	sum := 0
	for _, i := range n.islands {
		sum += i.count(want)
	}
	return sum
}

// fits counts how many containers of an ask the node can take now, at most limit.
func (n *node) fits(w *want, limit int) int {
	limit = min(limit, n.places)
	if w.Resource.Memory > 0 {
		limit = min(limit, int(n.memory/w.Resource.Memory))
	}
	if w.Resource.VCores > 0 {
		limit = min(limit, n.vcores/w.Resource.VCores)
	}
	for name, each := range w.Resource.Other.All() {
		limit = min(limit, int(n.other.Get(name)/each))
	}
	if k := w.Resource.GPUs; k > 0 && limit > 0 {
		sum := 0
		for _, i := range n.islands {
			if w.Island {
				sum += i.count(w.Model) / k
			} else {
				sum += i.count(w.Model)
			}
		}
		if !w.Island {
			sum /= k
		}
		limit = min(limit, sum)
	}
	return max(limit, 0)
}

// grant takes one container's resources. only restricts its devices to one island when it is not nil.
func (n *node) grant(w *want, only *island) Placement {
	n.memory -= w.Resource.Memory
	n.vcores -= w.Resource.VCores
	n.other = n.other.Sub(w.Resource.Other)
	n.places--
	p := Placement{Node: n.ID}
	k := w.Resource.GPUs
	if k == 0 {
		return p
	}
	if only == nil {
		only = n.tightest(k, w.Model)
	}
	if only != nil {
		p.GPUs = only.take(k, w.Model)
		return p
	}
	// No island has them all: take from as few as possible.
	islands := slices.Clone(n.islands)
	slices.SortStableFunc(islands, func(a, b *island) int { return cmp.Compare(b.count(w.Model), a.count(w.Model)) })
	for _, i := range islands {
		if need := k - len(p.GPUs); need > 0 {
			p.GPUs = append(p.GPUs, i.take(need, w.Model)...)
		}
	}
	return p
}

// tightest is the island with the fewest free devices that still has k of the model; nil when there is none.
func (n *node) tightest(k int, want string) *island {
	var best *island
	for _, i := range n.islands {
		if i.count(want) >= k && (best == nil || len(i.free) < len(best.free)) {
			best = i
		}
	}
	return best
}

// couldHold reports whether one container would fit the node if it were empty.
func (n *node) couldHold(w *want) bool {
	if !w.Resource.FitsIn(n.Capacity) {
		return false
	}
	if w.Resource.GPUs == 0 {
		return true
	}
	sum, byIsland := 0, map[string]int{}
	for _, g := range n.GPUs {
		if model(g, w.Model) {
			sum++
			if g.Island == "" {
				byIsland["\x00"+g.UUID]++
			} else {
				byIsland[g.Island]++
			}
		}
	}
	if !w.Island {
		return sum >= w.Resource.GPUs
	}
	for _, c := range byIsland {
		if c >= w.Resource.GPUs {
			return true
		}
	}
	return false
}
