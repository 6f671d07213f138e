package scheduler

import (
	"cmp"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	rm "github.com/gohops/hops/resourcemanager"
)

// tagged are the containers of an application that carry tags, by tag and node, with those that are assumed.
type tagged struct {
	on map[string]map[*node]int
	// version is another with each change; shapes are those with constraints about them.
	version uint64
	shapes  map[*shape]bool
}

func (m *Model) tagsOf(app rm.ApplicationID) *tagged {
	t := m.tags[app]
	if t == nil {
		t = &tagged{on: map[string]map[*node]int{}, shapes: map[*shape]bool{}}
		m.tags[app] = t
		m.retagged(t)
	}
	return t
}

// retagged notes a change; no two of any application have one number.
func (m *Model) retagged(t *tagged) {
	m.tagVersions++
	t.version = m.tagVersions
}

func (m *Model) forgetShape(s *shape) {
	if t := m.tags[s.App]; t != nil && len(s.constraints) > 0 {
		delete(t.shapes, s)
		m.forgetTags(s.App, t)
	}
}

func (m *Model) forgetTags(app rm.ApplicationID, t *tagged) {
	if len(t.on) == 0 && len(t.shapes) == 0 {
		delete(m.tags, app)
	}
}

// tag counts containers of an application on a node, or takes them off again, and opens what may have a place now.
func (m *Model) tag(app rm.ApplicationID, n *node, tags rm.Tags, count int) {
	if tags.IsZero() {
		return
	}
	t := m.tagsOf(app)
	for _, tag := range tags.List() {
		on := t.on[tag]
		if on == nil {
			on = map[*node]int{}
			t.on[tag] = on
		}
		if on[n] += count; on[n] == 0 {
			delete(on, n)
		}
		if len(on) == 0 {
			delete(t.on, tag)
		}
	}
	m.retagged(t)
	if !m.still {
		for s := range t.shapes {
			if s.closed {
				m.open(s)
			}
		}
	}
	m.forgetTags(app, t)
}

func (m *Model) tagGrant(g *grant, sign int) {
	if g.tags.IsZero() {
		return
	}
	for _, n := range g.nodes {
		if m.nodes[n.ID] == n {
			m.tag(g.app.ID, n, g.tags, sign)
		}
	}
}

// retag follows a change of what a node holds, or of where it stands.
func (m *Model) retag(n *node, to *Node) {
	plain := func(h Hold) bool { return h.Tags.IsZero() }
	alike := func(a, b Hold) bool { return a.App == b.App && a.Tags == b.Tags }
	if n.Rack == to.Rack && slices.EqualFunc(n.Holds, to.Holds, alike) || !slices.ContainsFunc(n.Holds, func(h Hold) bool { return !plain(h) }) &&
		!slices.ContainsFunc(to.Holds, func(h Hold) bool { return !plain(h) }) {
		return
	}
	for _, h := range n.Holds {
		m.tag(h.App, n, h.Tags, -1)
	}
	for _, h := range to.Holds {
		m.tag(h.App, n, h.Tags, 1)
	}
}

// constraint is one of a shape's.
type constraint struct {
	rm.Constraint
	// self: what is placed carries the tag itself.
	self bool
	// near counts those that are there by the part of the network that is the scope, all everywhere.
	near map[string]int
	all  int
}

func constraintsOf(f *form) []constraint {
	if f.Constraints.IsZero() {
		return nil
	}
	var out []constraint
	tags := f.Tags.List()
	for _, c := range f.Constraints.List() {
		out = append(out, constraint{Constraint: c, self: slices.Contains(tags, c.Tag)})
	}
	return out
}

// part is the part of the network that a scope means around a node.
func (n *node) part(scope string) string {
	switch scope {
	case rm.ScopeNode:
		return string(n.ID)
	case rm.ScopeRack:
		return n.Rack
	}
	return above(n.Rack, depth(scope))
}

// recountTags brings what a shape's constraints count up to date.
func (m *Model) recountTags(s *shape) {
	t := m.tags[s.App]
	if t != nil {
		if s.counted == t.version {
			return
		}
		s.counted = t.version
	}
	for i := range s.constraints {
		c := &s.constraints[i]
		c.near, c.all = map[string]int{}, 0
		if t == nil {
			continue
		}
		for n, count := range t.on[c.Tag] {
			c.near[n.part(c.Scope)] += count
			c.all += count
		}
	}
}

// bounds are how many of a unit a part of the network may take, if it takes any, as far as one constraint goes.
func (c *constraint) bounds(part string, unit int) (low, high int) {
	there := c.near[part]
	least := c.Min
	if c.self && c.all == 0 && unit == 1 { // the first
		least = 0
	}
	if c.self { // each sees those that are there and the others of its unit
		return max(least-there+1, 1), min(c.Max-there+1, unit)
	}
	if there < least || there > c.Max {
		return 1, 0
	}
	return 1, unit
}

// lets reports whether a node may be used for a shape: reservations let it pass and, of what comes alone, its constraints.
func (m *Model) lets(n *node, s *shape) bool {
	if !m.passes(n, s) || s.Pins != nil && !m.keepsCell(n, s.Pins) {
		return false
	}
	if len(s.constraints) == 0 || s.Unit > 1 {
		return true
	}
	m.recountTags(s)
	for i := range s.constraints {
		c := &s.constraints[i]
		if low, high := c.bounds(n.part(c.Scope), 1); low > 1 || high < 1 {
			return false
		}
	}
	return true
}

// numbers is a set of numbers from 0 to a limit.
type numbers []uint64

func newNumbers(limit int) numbers { return make(numbers, limit/64+1) }

func (x numbers) has(n int) bool { return x[n/64]&(1<<(n%64)) != 0 }
func (x numbers) add(n int)      { x[n/64] |= 1 << (n % 64) }

func (x numbers) largest() int {
	for i := len(x) - 1; i >= 0; i-- {
		if x[i] != 0 {
			return 64*i + bits.Len64(x[i]) - 1
		}
	}
	return -1
}

// size is how many are in the set.
func (x numbers) size() int {
	n := 0
	for _, w := range x {
		n += bits.OnesCount64(w)
	}
	return n
}

// plus is the set of all sums of a number of x and one of y, up to a limit.
func (x numbers) plus(y numbers, limit int) numbers {
	out := newNumbers(limit)
	a, b := x.largest(), y.largest()
	if x.size() == a+1 && y.size() == b+1 { // both are all from 0 on
		for n := range min(a+b, limit) + 1 {
			out.add(n)
		}
		return out
	}
	for n := range b + 1 {
		if !y.has(n) {
			continue
		}
		words, rest := n/64, n%64
		for i := len(out) - 1; i >= words; i-- {
			out[i] |= x[i-words] << rest
			if rest > 0 && i > words {
				out[i] |= x[i-words-1] >> (64 - rest)
			}
		}
	}
	for n := limit + 1; n < 64*len(out); n++ {
		out[n/64] &^= 1 << (n % 64)
	}
	return out
}

// branch is a part of the network with the nodes in it that take some of a unit: the whole, then the levels of paths from outside, then
// racks, then nodes.
type branch struct {
	key      string
	level    int
	children []*branch
	named    map[string]*branch
	node     *node // of a node
	fits     int
	// low and high bound how many of the unit it takes, if any; can are those that it can take, and sums of its children up to each.
	low, high int
	can       numbers
	sums      []numbers
}

// arrangeTagged takes room for one unit whose members' constraints count each other, or proves that there is none. The parts of the network
// lie in each other, so which numbers of members a part can take follows from those of its parts.
func (m *Model) arrangeTagged(s *shape, from []candidate) ([]seat, bool) {
	m.recountTags(s)
	m.looks += len(from) * (1 + s.Unit/64)
	deepest := max(depth(s.Within), 1)
	for _, c := range from {
		deepest = max(deepest, strings.Count(c.Rack, "/"))
	}
	for _, c := range s.constraints {
		deepest = max(deepest, depth(c.Scope))
	}
	levels := make([]string, 0, deepest+2)
	for i := range deepest {
		levels = append(levels, strconv.Itoa(i+1))
	}
	levels = append(levels, rm.ScopeRack, rm.ScopeNode)
	root := &branch{low: 1, high: s.Unit}
	for _, c := range from {
		at := root
		for i, scope := range levels {
			at = at.child(c.part(scope), i+1, scope, s)
		}
		at.node, at.fits = c.node, c.fits
	}
	root.solve(s.Unit)
	least := 0
	switch {
	case s.Within == "node":
		least = len(levels)
	case s.Within != "":
		least = depth(s.Within)
	}
	best := root.innermost(s.Unit, least)
	if best == nil {
		return nil, false
	}
	return best.seats(s.Unit, nil), true
}

func (b *branch) child(key string, level int, scope string, s *shape) *branch {
	if x := b.named[key]; x != nil {
		return x
	}
	x := &branch{key: key, level: level, low: 1, high: s.Unit}
	for i := range s.constraints {
		if c := &s.constraints[i]; c.Scope == scope {
			low, high := c.bounds(key, s.Unit)
			x.low, x.high = max(x.low, low), min(x.high, high)
		}
	}
	if b.named == nil {
		b.named = map[string]*branch{}
	}
	b.named[key] = x
	b.children = append(b.children, x)
	return x
}

// solve finds how many of a unit a branch can take.
func (b *branch) solve(unit int) {
	all := newNumbers(unit)
	all.add(0)
	if b.node != nil {
		for n := range min(b.fits, unit) + 1 {
			all.add(n)
		}
	}
	for _, c := range b.children {
		c.solve(unit)
	}
	slices.SortFunc(b.children, func(x, y *branch) int { // the roomiest first
		return cmp.Or(-cmp.Compare(x.can.largest(), y.can.largest()), cmp.Compare(x.key, y.key))
	})
	for _, c := range b.children {
		b.sums = append(b.sums, all)
		all = all.plus(c.can, unit)
	}
	b.can = newNumbers(unit)
	b.can.add(0)
	for n := b.low; n <= b.high; n++ {
		if all.has(n) {
			b.can.add(n)
		}
	}
}

// innermost is the deepest branch, at a level at least, that can take a whole unit; of several the one with least to spare. nil: none.
func (b *branch) innermost(unit, least int) *branch {
	if b.low > unit || b.high < unit || !b.can.has(unit) && len(b.children) == 0 {
		return nil
	}
	var best *branch
	if b.can.has(unit) && b.level >= least {
		best = b
	}
	for _, c := range b.children {
		x := c.innermost(unit, least)
		if x != nil && (best == nil || cmp.Or(-cmp.Compare(x.level, best.level), cmp.Compare(x.spare(), best.spare()), cmp.Compare(x.key, best.key)) < 0) {
			best = x
		}
	}
	return best
}

// spare is what a branch has room for, whatever may be there.
func (b *branch) spare() int {
	n := b.fits
	for _, c := range b.children {
		n += c.spare()
	}
	return n
}

// seats divides n members, which it can take, among the nodes of a branch.
func (b *branch) seats(n int, out []seat) []seat {
	if b.node != nil {
		if n > 0 {
			out = append(out, seat{b.node, -1, n})
		}
		return out
	}
	for i := len(b.children) - 1; i >= 0; i-- {
		own := 0
		for !b.children[i].can.has(own) || !b.sums[i].has(n-own) {
			own++
		}
		if own > 0 {
			out = b.children[i].seats(own, out)
		}
		n -= own
	}
	return out
}
