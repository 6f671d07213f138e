package scheduler

import (
	"fmt"
	"maps"
	"slices"

	rm "github.com/gohops/hops/resourcemanager"
)

// use counts the containers of a leaf on a node, and those of them that are pinned: they cannot be preempted. What belongs to no queue that there is
// is the root's.
type use struct {
	queue       *queue
	all, pinned int
}

// account is as what a container of a node was counted.
type account struct {
	queue  *queue
	pinned bool
}

// cells counts whole nodes, of a queue and all below it.
type cells struct {
	// pinned are those where it has all that is pinned. Each of the others is these, and of those where nothing is pinned: touched where it runs
	// something, sole where it does and no other queue that is below the root with it, own where nobody else does.
	pinned, touched, sole, own int
	// lacks is how many more it is guaranteed than it has, or what those below it lack if that is more; below is what these do. They are of the last
	// answer of lackCells or cellClaim.
	lacks, below int
}

// cellBook is what a model keeps where queues are guaranteed cells; see rm.QueueConfig.Cells.
type cellBook struct {
	// gpus is how many a cell has at least; 0: nobody is guaranteed any. queues are those that are, parents first.
	gpus   int
	queues []*queue
	// free are the cells with nothing that is pinned.
	free int
	// heldBy counts the containers of nodes by application.
	heldBy map[rm.ApplicationID]int
	// stale: all has to be counted anew.
	stale bool
	// version counts changes, seen is that at the last plan.
	version, seen uint64
	// memo are answers of keepsCell, at a version.
	memo   map[[2]*queue]bool
	memoAt uint64
}

// pins is the queue as whose containers that cannot be preempted are looked at; nil: they can be, or nobody is guaranteed cells.
func (m *Model) pins(q *queue, master bool) *queue {
	if m.cells.gpus == 0 || q == nil || !master && m.config.Preempt.Enabled && !q.PreemptionDisabled {
		return nil
	}
	return q
}

// sameCells reports whether two trees guarantee the same cells.
func sameCells(a, b *rm.Queues) bool {
	if a == nil || a.CellGPUs == 0 && b.CellGPUs == 0 {
		return b.CellGPUs == 0
	}
	list := func(t *rm.Queues) (out []string) {
		for _, q := range t.All {
			if q.Cells > 0 {
				out = append(out, fmt.Sprint(q.Path, q.Cells, q.CellGPUs))
			}
		}
		return out
	}
	return slices.Equal(list(a), list(b))
}

// setCells takes over what the tree guarantees.
func (m *Model) setCells() {
	was := m.cells.gpus
	if m.cells.gpus = m.config.Queues.CellGPUs; m.cells.gpus == 0 && was == 0 {
		return
	}
	m.cells.queues = nil
	for _, q := range m.queues {
		if q.Cells > 0 {
			m.cells.queues = append(m.cells.queues, q)
		}
	}
	m.cells.stale = true
}

// moveCells notes that an application comes into a queue, or leaves it.
func (m *Model) moveCells(a *app) {
	if m.cells.gpus > 0 && (m.cells.heldBy[a.ID] > 0 || !a.assumed.IsZero() || len(m.berths) > 0) {
		m.cells.stale, m.unresolved = true, true
	}
}

// recell counts everything anew.
func (m *Model) recell() {
	m.cells.stale = false
	m.cells.free, m.cells.heldBy = 0, map[rm.ApplicationID]int{}
	m.cells.version++
	for _, q := range m.queues {
		q.cells = cells{}
	}
	for _, n := range m.nodes {
		n.cell, n.uses, n.held = false, nil, nil
	}
	if m.cells.gpus == 0 {
		return
	}
	for _, n := range m.nodes {
		m.hold(n)
	}
	for _, g := range m.assumed {
		m.useGrant(g, 1)
	}
	for _, b := range m.berths {
		m.useBerth(b, 1)
	}
}

// hold counts what the containers of a node use, and whether it is a cell.
func (m *Model) hold(n *node) {
	if m.cells.gpus == 0 || m.cells.stale {
		return
	}
	if n.held == nil {
		n.held = make([]account, 0, len(n.Holds)+1)
	}
	known := map[string]bool{}
	for i := range n.Holds {
		h := &n.Holds[i]
		m.cells.heldBy[h.App]++
		for _, id := range h.GPUs {
			known[id] = true
		}
		u := account{m.root, true}
		if a := m.apps[h.App]; a != nil && a.queue != nil {
			u = account{a.queue, m.pins(a.queue, h.Master || h.Container.IsZero()) != nil}
		}
		n.held = append(n.held, u)
		m.addUse(n, u.queue, u.pinned, 1)
	}
	whole, stray := 0, n.Containers > len(n.Holds)
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if g.Profile == "" && !g.Broken {
			whole++
		}
		stray = stray || !g.Free && !g.Broken && !known[g.UUID]
	}
	if stray { // nobody knows when that ends
		n.held = append(n.held, account{m.root, true})
		m.addUse(n, m.root, true, 1)
	}
	if n.cell = !n.Closed && whole >= m.cells.gpus; n.cell {
		m.countCell(n, 1)
	}
}

// letGo takes back what hold counted.
func (m *Model) letGo(n *node) {
	if m.cells.gpus == 0 || m.cells.stale {
		return
	}
	if n.cell {
		m.countCell(n, -1)
		n.cell = false
	}
	for i := range n.Holds {
		if id := n.Holds[i].App; m.cells.heldBy[id] > 1 {
			m.cells.heldBy[id]--
		} else {
			delete(m.cells.heldBy, id)
		}
	}
	for _, u := range n.held {
		m.addUse(n, u.queue, u.pinned, -1)
	}
	n.held = n.held[:0]
}

// useHold counts a container of a node, or takes it off for a trial.
func (m *Model) useHold(n *node, h *Hold, by int) {
	if m.cells.gpus == 0 || m.cells.stale {
		return
	}
	for i := range n.Holds {
		if &n.Holds[i] == h {
			m.addUse(n, n.held[i].queue, n.held[i].pinned, by)
			return
		}
	}
}

// useGrant counts what is assumed, or takes it off.
func (m *Model) useGrant(g *grant, sign int) {
	if m.cells.gpus == 0 || m.cells.stale {
		return
	}
	q := g.app.queue
	pinned := q == nil || m.pins(q, g.group.Ask == "") != nil
	for _, n := range g.nodes {
		m.addUse(n, q, pinned, sign)
	}
}

// useBerth counts what is kept for those who are moved, or takes it off.
func (m *Model) useBerth(b *berth, sign int) {
	if m.cells.gpus == 0 || m.cells.stale {
		return
	}
	for _, n := range b.nodes {
		m.addUse(n, b.app.queue, false, sign)
	}
}

// addUse counts containers of a leaf on a node.
func (m *Model) addUse(n *node, q *queue, pinned bool, by int) {
	if q == nil {
		q = m.root
	}
	i := slices.IndexFunc(n.uses, func(u use) bool { return u.queue == q })
	if i < 0 {
		i = len(n.uses)
	}
	now := use{queue: q}
	if i < len(n.uses) {
		now = n.uses[i]
	}
	next := now
	if next.all += by; pinned {
		next.pinned += by
	}
	changes := n.cell && ((now.all > 0) != (next.all > 0) || (now.pinned > 0) != (next.pinned > 0))
	if changes {
		m.countCell(n, -1)
	}
	switch {
	case i == len(n.uses):
		n.uses = append(n.uses, next)
	case next.all == 0 && next.pinned == 0:
		n.uses[i] = n.uses[len(n.uses)-1]
		n.uses = n.uses[:len(n.uses)-1]
	default:
		n.uses[i] = next
	}
	if changes {
		m.countCell(n, 1)
	}
}

// countCell counts a cell by whom uses it, or takes it off.
func (m *Model) countCell(n *node, sign int) {
	m.cells.version++
	all, pinned := n.users()
	if pinned == nil {
		m.cells.free += sign
	}
	for q := pinned; q != nil; q = q.parent {
		q.cells.add(cells{pinned: sign, touched: sign, sole: sign, own: sign})
	}
	if pinned != nil {
		return
	}
	for q := all; q != nil; q = q.parent {
		q.cells.add(cells{own: sign})
	}
	for i, u := range n.uses {
		top := u.queue
		for top.parent != nil && top.parent != m.root {
			top = top.parent
		}
		for q := u.queue; q != nil && !slices.ContainsFunc(n.uses[:i], func(o use) bool { return q.holds(o.queue) }); q = q.parent {
			q.cells.add(cells{touched: sign})
			if !slices.ContainsFunc(n.uses, func(o use) bool { return top.holds(o.queue) && !q.holds(o.queue) }) {
				q.cells.add(cells{sole: sign})
			}
		}
	}
}

func (c *cells) add(o cells) {
	c.pinned += o.pinned
	c.touched += o.touched
	c.sole += o.sole
	c.own += o.own
}

// users are the innermost queues that have all that runs on a node, and all of it that is pinned; nil: nothing does, or is.
func (n *node) users() (all, pinned *queue) {
	for _, u := range n.uses {
		if all = join(all, u.queue); u.pinned > 0 {
			pinned = join(pinned, u.queue)
		}
	}
	return all, pinned
}

// owner is the innermost queue that has all of a node that is pinned, or, where nothing is, all that runs there; nil: nothing does.
func (n *node) owner() *queue {
	all, pinned := n.users()
	if pinned != nil {
		return pinned
	}
	return all
}

// join is the innermost queue that holds both.
func join(a, b *queue) *queue {
	if a == nil {
		return b
	}
	for a.parent != nil && !a.holds(b) {
		a = a.parent
	}
	return a
}

// lackCells is how many cells are to stay free for their queues.
func (m *Model) lackCells() int {
	m.root.cells.below = 0
	for _, q := range m.cells.queues {
		q.cells.below = 0
	}
	for _, q := range slices.Backward(m.cells.queues) {
		q.cells.lacks = max(q.cells.below, q.Cells-q.cells.pinned)
		q.parent.cells.below += q.cells.lacks
	}
	return m.root.cells.below
}

// missing is how many cells are too few.
func (m *Model) missing() int { return max(m.lackCells()-m.cells.free, 0) }

// pin counts a cell as if something of a queue that cannot be preempted were there beside what is, of the queue was; or takes that back.
func (m *Model) pin(was, q *queue, sign int) {
	if was == nil {
		m.cells.free -= sign
	}
	for at := was; at != nil; at = at.parent {
		at.cells.pinned -= sign
	}
	for at := join(was, q); at != nil; at = at.parent {
		at.cells.pinned += sign
	}
}

// keepsCell reports whether a container of a queue that cannot be preempted may come to a node: afterwards no more cells are missing than before.
func (m *Model) keepsCell(n *node, q *queue) bool {
	if !n.cell {
		return true
	}
	_, was := n.users()
	if was != nil && was.holds(q) {
		return true
	}
	if m.cells.memoAt != m.cells.version || m.cells.memo == nil {
		m.cells.memo, m.cells.memoAt = map[[2]*queue]bool{}, m.cells.version
	}
	key := [2]*queue{was, q}
	ok, found := m.cells.memo[key]
	if !found {
		before := m.missing()
		m.pin(was, q, 1)
		ok = m.missing() <= before
		m.pin(was, q, -1)
		m.cells.memo[key] = ok
	}
	return ok
}

// pinning is a trial of nodes for work of a queue that cannot be preempted: one after the other, as long as no more cells are missing than before.
type pinning struct {
	m      *Model
	queue  *queue
	before int
	was    []*queue
}

func (m *Model) pinning(q *queue) *pinning {
	p := &pinning{m: m, queue: q}
	if q != nil {
		p.before = m.missing()
	}
	return p
}

// take reports whether the work may come to the node beside those that it was let come to.
func (p *pinning) take(n *node) bool {
	if p.queue == nil || !n.cell {
		return true
	}
	_, was := n.users()
	if was != nil && was.holds(p.queue) {
		return true
	}
	p.m.pin(was, p.queue, 1)
	if p.m.missing() > p.before {
		p.m.pin(was, p.queue, -1)
		return false
	}
	p.was = append(p.was, was)
	return true
}

// end takes the trial back.
func (p *pinning) end() {
	for _, was := range p.was {
		p.m.pin(was, p.queue, -1)
	}
}

// keepsCells reports whether work of a queue that cannot be preempted may come to all of some nodes together.
func (m *Model) keepsCells(nodes map[*node]int, q *queue) bool {
	trial := m.pinning(q)
	defer trial.end()
	for n := range nodes {
		if !trial.take(n) {
			return false
		}
	}
	return true
}

// sparing leaves out of the candidates for a gang that cannot be preempted those that would be too many together: of each part of the network in which
// it may be, the least roomy ones of those that take a cell from somebody.
func (m *Model) sparing(s *shape, from []candidate) ([]candidate, int) {
	part := func(c candidate) string {
		if d := depth(s.Within); d > 0 {
			return above(c.Rack, d)
		}
		return ""
	}
	byPart := map[string][]candidate{}
	for _, c := range from {
		byPart[part(c)] = append(byPart[part(c)], c)
	}
	sum := 0
	out := from[:0]
	for _, name := range slices.Sorted(maps.Keys(byPart)) {
		list := byPart[name]
		slices.SortFunc(list, s.roomier)
		trial := m.pinning(s.Pins)
		for _, c := range list {
			if trial.take(c.node) {
				out = append(out, c)
				sum += c.fits
			}
		}
		trial.end()
	}
	return out, sum
}

// openCells lets all be looked at again that was refused a cell, when these are used otherwise.
func (m *Model) openCells() {
	if m.cells.gpus == 0 || m.cells.seen == m.cells.version {
		return
	}
	m.cells.seen = m.cells.version
	for _, s := range m.shapes {
		if s.closed && s.Pins != nil {
			m.open(s)
		}
	}
}

// cellClaim is the level, from the leaf upwards, of the first queue that is within its cells with units more of a shape that wants whole cells;
// negative: none is.
func (m *Model) cellClaim(q *queue, s *shape, units int) int {
	if m.cells.gpus == 0 || s.Resource.GPUs < m.cells.gpus && (!s.Exclusive || s.Resource.GPUs == 0) {
		return -1
	}
	for _, o := range m.cells.queues {
		o.cells.below = 0
	}
	for _, o := range slices.Backward(m.cells.queues) {
		o.cells.lacks = max(o.cells.below, o.Cells-o.cells.sole)
		o.parent.cells.below += o.cells.lacks
	}
	// What those below are guaranteed, and do not have yet, is not for others; left is what they lack beside the ask.
	for at, left := 0, 0; q.parent != nil; q, at = q.parent, at+1 {
		if q.Cells > 0 && q.cells.touched+units+left <= q.Cells {
			return at
		}
		lacks := 0
		if q.Cells > 0 {
			lacks = q.cells.lacks
		}
		left = q.parent.cells.below - lacks + max(left, q.Cells-q.cells.sole-units)
	}
	return -1
}

// inCell reports whether some of a victim is in a cell.
func (v *victim) inCell() bool {
	return slices.ContainsFunc(v.parts, func(x part) bool { return x.node.cell })
}

// guarded reports whether all of a victim is in cells that its queue, or one above it below common, is guaranteed and has for its own.
func (m *Model) guarded(v *victim, common *queue) bool {
	if m.cells.gpus == 0 {
		return false
	}
	for q := v.app.queue; q != common; q = q.parent {
		if q.Cells > 0 && q.cells.own <= q.Cells && !slices.ContainsFunc(v.parts, func(x part) bool {
			own := x.node.owner()
			return !x.node.cell || own == nil || !q.holds(own)
		}) {
			return true
		}
	}
	return false
}

// cellsOnly is the reason of those for whom there would be room that others are guaranteed; zero: it is not that.
func (m *Model) cellsOnly(s *shape) rm.Reason {
	if s.Pins == nil {
		return rm.Reason{}
	}
	f := s.form
	f.Pins = nil
	if _, ok := m.find(m.newShape(f)); !ok {
		return rm.Reason{}
	}
	lacks := m.lackCells()
	r := rm.Reason{Code: rm.ReasonCells, Need: int64(lacks), Have: int64(m.cells.free)}
	for _, q := range m.cells.queues {
		if !q.holds(s.Pins) && (r.Queue == "" || q.cells.lacks > 0 && q.cells.below == 0) {
			r.Queue = q.Path
			r.Text = fmt.Sprintf("there is room only where it would break whole nodes that others are guaranteed, and what runs here in queue %s is not preempted: queue %s is guaranteed %d nodes of %d GPUs and has %d; %d such nodes are to stay free, and %d are",
				s.Pins.Path, q.Path, q.Cells, q.CellGPUs, q.cells.pinned, lacks, m.cells.free)
			if q.cells.lacks > 0 {
				break
			}
		}
	}
	return r
}

// breakers are the applications that would have to end, or some of them, so that more cells are free: what they have cannot be preempted, and is in
// cells that are nobody's own by guarantee.
func (m *Model) breakers() []Blocker {
	count := map[rm.ApplicationID]int64{}
	for _, n := range m.nodes {
		if _, was := n.users(); !n.cell || was == nil || m.guaranteedTo(was) {
			continue
		}
		for i := range n.Holds {
			if n.held[i].pinned {
				count[n.Holds[i].App]++
			}
		}
		for _, g := range m.assumed {
			for _, at := range g.nodes {
				if at == n && m.pins(g.app.queue, g.group.Ask == "") != nil {
					count[g.app.ID]++
				}
			}
		}
	}
	var out []Blocker
	for id, containers := range count {
		b := Blocker{App: id, Amount: containers}
		if a := m.apps[id]; a != nil {
			b.User, b.Queue = a.User, a.Queue
		}
		out = append(out, b)
	}
	return largest(out)
}

// guaranteedTo reports whether a queue, or one above it, has no more cells than it is guaranteed.
func (m *Model) guaranteedTo(q *queue) bool {
	for ; q != nil; q = q.parent {
		if q.Cells > 0 && q.cells.pinned <= q.Cells {
			return true
		}
	}
	return false
}

// MissingCells is how many whole nodes are too few for what queues are guaranteed: nodes are gone, or were in use for something that cannot be
// preempted before the guarantee was given.
func (m *Model) MissingCells() int {
	if m.unresolved {
		m.resolve()
	}
	if m.cells.gpus == 0 {
		return 0
	}
	return m.missing()
}
