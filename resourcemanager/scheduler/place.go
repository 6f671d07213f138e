package scheduler

import (
	"cmp"
	"slices"
	"strings"
)

// candidate is a node that can take some of the containers of a shape.
type candidate struct {
	*node
	fits int
}

// seat is room for containers on one node, in one island if that is not negative.
type seat struct {
	node   *node
	island int
	n      int
}

// find looks for room for one unit of a shape, all or none. Because the containers of a unit are alike and nodes do not depend on each
// other, there is room exactly if the nodes' counts add up to the unit, so nothing has to be tried and undone. What is found is valid
// until something changes.
func (m *Model) find(s *shape) ([]seat, bool) {
	if len(s.nodes) > 0 || s.places != nil || s.Strict {
		if seats, ok := m.findNear(s); ok || s.Strict {
			return seats, ok
		}
	}
	if s.Unit > 1 && len(s.constraints) > 0 {
		all, sum := m.candidates(s, s.Unit)
		if sum < s.Unit {
			return nil, false
		}
		return m.arrangeTagged(s, all)
	}
	if n, island := m.best(s, s.Unit); n != nil {
		return []seat{{n, island, s.Unit}}, true
	}
	if s.Unit == 1 || s.Within == "node" {
		return nil, false
	}
	all, sum := m.candidates(s, s.Unit)
	if sum < s.Unit {
		return nil, false
	}
	return m.arrange(s, all)
}

func (m *Model) candidate(s *shape, n *node) candidate {
	if !n.admits(s) || !m.lets(n, s) {
		return candidate{n, 0}
	}
	return candidate{n, n.fits(s, s.Unit)}
}

// namedNodes are the nodes that names mean, in the order of ids.
func (m *Model) namedNodes(names []string) []*node {
	var out []*node
	for _, name := range names {
		out = append(out, m.names[name]...)
	}
	slices.SortFunc(out, func(a, b *node) int { return cmp.Compare(a.ID, b.ID) })
	return slices.Compact(out)
}

// admits reports whether the nodes of a bucket can be meant at all; names of nodes are looked at for each node.
func (b *bucket) admits(s *shape) bool {
	return s.meets(b.class) && (s.Label == "" || slices.Contains(b.class.labels, s.Label))
}

// member is the first of a bucket's nodes that takes n containers, of which the bucket has room for as many; nil: none.
func (m *Model) member(b *bucket, s *shape, n int) *node {
	first := b.node()
	if (len(s.excluded) == 0 || !first.named(s.excluded)) && first.places >= n && m.lets(first, s) {
		return first
	}
	first = nil
	m.looks += len(b.members.list)
	for _, x := range b.members.list {
		if x.places >= n && !x.named(s.excluded) && (first == nil || x.ID < first.ID) && m.lets(x, s) {
			first = x
		}
	}
	return first
}

// best is the node that takes n containers of a shape, and the island if one takes them all, so that the least is left: the fullest
// island, else the fullest node. nil: no node has room for n.
func (m *Model) best(s *shape, n int) (*node, int) {
	k := s.Resource.GPUs
	if s.Exclusive && n > 1 {
		return nil, -1
	}
	if k == 0 {
		for i := range m.lists {
			if at := m.first(&m.lists[i], s, n); at != nil {
				return at, -1
			}
		}
		return nil, -1
	}
	var at *node
	island, left := -1, 0
	for i := n*k + 1; i < len(m.lists); i++ {
		l := &m.lists[i]
		if at != nil && l.spread == 0 { // here an island has as many free as the node, and so more than the one found
			continue
		}
		buckets := l.from(s.Resource.Memory * int64(n))
		for j, b := range buckets {
			if at != nil && island >= 0 && left == n*k {
				break
			}
			if !b.admits(s) || b.node().holds(s, n) < n {
				continue
			}
			where := b.node().tightest(s, n*k)
			if where < 0 {
				continue
			}
			free := len(b.node().islands[where].free)
			if at != nil && free >= left {
				continue
			}
			x := m.member(b, s, n)
			if x == nil {
				continue
			}
			x = m.equals(buckets[j+1:], b, s, n, free, x)
			at, island, left = x, x.tightest(s, n*k), free
		}
	}
	if at != nil {
		return at, island
	}
	for i := n*k + 1; i < len(m.lists); i++ {
		if at := m.first(&m.lists[i], s, n); at != nil {
			return at, -1
		}
	}
	return nil, -1
}

// first is the first node of a list that takes n containers.
func (m *Model) first(l *list, s *shape, n int) *node {
	buckets := l.from(s.Resource.Memory * int64(n))
	for i, b := range buckets {
		if !b.admits(s) || b.node().holds(s, n) < n {
			continue
		}
		if x := m.member(b, s, n); x != nil {
			return m.equals(buckets[i+1:], b, s, n, -1, x)
		}
	}
	return nil
}

// equals is, of those that leave as much, the node with the least id: x of bucket b, or one of the buckets that follow. free is what an
// island that takes them has free; -1: it does not matter.
func (m *Model) equals(rest []*bucket, b *bucket, s *shape, n, free int, x *node) *node {
	for _, o := range rest {
		if o.node().room.Memory != b.node().room.Memory || o.node().room.VCores != b.node().room.VCores {
			break
		}
		if !o.admits(s) || o.node().holds(s, n) < n {
			continue
		}
		if y := m.member(o, s, n); y != nil && y.ID < x.ID {
			if free >= 0 {
				if i := y.tightest(s, n*s.Resource.GPUs); i < 0 || len(y.islands[i].free) != free {
					continue
				}
			}
			x = y
		}
	}
	return x
}

// candidates are the nodes that take at least one container of a shape, each with how many, up to limit.
func (m *Model) candidates(s *shape, limit int) (all []candidate, sum int) {
	first := 0
	if s.Resource.GPUs > 0 {
		first = s.Resource.GPUs + 1
	}
	for i := first; i < len(m.lists); i++ {
		for _, b := range m.lists[i].from(s.Resource.Memory) {
			if !b.admits(s) {
				continue
			}
			most := b.node().holds(s, limit)
			if most == 0 {
				continue
			}
			m.looks += len(b.members.list)
			for _, n := range b.members.list {
				if fits := min(most, n.places); fits > 0 && !n.named(s.excluded) && m.lets(n, s) {
					all = append(all, candidate{n, fits})
					sum += fits
				}
			}
		}
	}
	if s.Pins != nil && s.Unit > 1 {
		return m.sparing(s, all)
	}
	return all, sum
}

// arrange takes room for one unit from candidates whose counts add up to at least that: in one island if one can hold them all, else
// on one node, else in the innermost part of the network that can, filling the roomiest nodes first. Among several that can, the one
// that is left with least. ok is false only where the shape has to be within a part of the network that has no room.
func (m *Model) arrange(s *shape, from []candidate) (out []seat, ok bool) {
	slices.SortFunc(from, s.roomier)
	if s.Within == "" || s.Within == "node" {
		if one, ok := oneNode(s, s.Unit, from); ok {
			return []seat{one}, true
		}
		if s.Within == "node" {
			return nil, false
		}
	}
	near := around(s, from)
	if from, ok = near.narrow(s.Unit, from); !ok {
		return nil, false
	}
	for n := s.Unit; n > 0; {
		if one, ok := oneNode(s, n, from); ok {
			return append(out, one), true
		}
		from, _ = near.narrow(n, from)
		out = append(out, seat{from[0].node, -1, from[0].fits})
		n -= from[0].fits
		near.take(from[0])
		from = from[1:]
	}
	return out, true
}

// oneNode is room for n containers on one of the candidates, the roomiest of which are first.
func oneNode(s *shape, n int, from []candidate) (best seat, ok bool) {
	k := s.Resource.GPUs
	for _, c := range from {
		if c.fits < n {
			break
		}
		if k == 0 {
			break
		}
		i := c.tightest(s, n*k)
		if i < 0 {
			continue
		}
		if !ok || cmp.Or(s.places.prefer(c.node, best.node), cmp.Compare(len(c.islands[i].free), len(best.node.islands[best.island].free)), c.compare(s, best.node)) < 0 {
			best, ok = seat{c.node, i, n}, true
		}
	}
	if ok {
		return best, true
	}
	for _, c := range from {
		if c.fits < n {
			break
		}
		if !ok || cmp.Or(s.places.prefer(c.node, best.node), c.compare(s, best.node)) < 0 {
			best, ok = seat{c.node, -1, n}, true
		}
	}
	return best, ok
}

// compare says which of two nodes that fit is better for a shape; negative: n. Asks without GPUs leave machines with GPUs alone;
// otherwise the fuller node is better, so that whole nodes stay free.
func (n *node) compare(s *shape, o *node) int {
	if s.Resource.GPUs == 0 {
		if c := cmp.Compare(len(n.GPUs), len(o.GPUs)); (len(n.GPUs) == 0) != (len(o.GPUs) == 0) {
			return c
		}
	}
	return cmp.Or(cmp.Compare(n.room.GPUs, o.room.GPUs), cmp.Compare(n.room.Memory, o.room.Memory),
		cmp.Compare(n.room.VCores, o.room.VCores), cmp.Compare(n.ID, o.ID))
}

// depth is the level of a path that an ask names, counted from outside; 0: none.
func depth(within string) int {
	n := 0
	for _, c := range within {
		if c < '0' || c > '9' || n > 100 {
			return 0
		}
		n = 10*n + int(c-'0')
	}
	return n
}

// above is the first n parts of a path, or all of a shorter one.
func above(path string, n int) string {
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			if n--; n == 0 {
				return path[:i]
			}
		}
	}
	return path
}

// network counts what candidates have room for in each part of the network, by level from outside.
type network struct {
	least, deepest int
	required       bool
	sums           []map[string]int
}

func around(s *shape, from []candidate) *network {
	w := &network{least: max(depth(s.Within), 1), required: depth(s.Within) > 0}
	w.count(from)
	return w
}

func (w *network) count(from []candidate) {
	w.deepest = w.least
	for _, c := range from {
		w.deepest = max(w.deepest, strings.Count(c.Rack, "/"))
	}
	w.sums = make([]map[string]int, w.deepest+1)
	for level := w.least; level <= w.deepest; level++ {
		w.sums[level] = map[string]int{}
		for _, c := range from {
			w.sums[level][above(c.Rack, level)] += c.fits
		}
	}
}

func (w *network) take(c candidate) {
	for level := w.least; level <= w.deepest; level++ {
		w.sums[level][above(c.Rack, level)] -= c.fits
	}
}

// narrow keeps only the candidates of the innermost part of the network that holds n, of several the one with least to spare; all when
// none does, which is no answer where a level is required.
func (w *network) narrow(n int, from []candidate) ([]candidate, bool) {
	for level := w.deepest; level >= w.least; level-- {
		best, found, sums := "", false, w.sums[level]
		for name, sum := range sums {
			if sum >= n && (!found || sum < sums[best] || sum == sums[best] && name < best) {
				best, found = name, true
			}
		}
		if !found {
			continue
		}
		if len(sums) == 1 {
			return from, true
		}
		var kept []candidate
		for _, c := range from {
			if above(c.Rack, level) == best {
				kept = append(kept, c)
			}
		}
		w.count(kept)
		return kept, true
	}
	return from, !w.required
}
