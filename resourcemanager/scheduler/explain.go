package scheduler

import (
	"cmp"
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// MaxBlockers bounds those that an explanation names, MaxOtherQueues the queues that it looks at.
const (
	MaxBlockers    = 10
	MaxOtherQueues = 32
)

// Explanation says why an ask waits, who holds what it waits for, and what would start now.
type Explanation struct {
	App rm.ApplicationID
	// Ask as the model knows it, Unit how many of it come at once.
	Ask  rm.Ask
	Unit int
	// Reason is the current one; zero: nothing waits, or its turn has not come since something changed.
	Reason rm.Reason
	// Limit and Used are of Reason.Resource (or of applications) where a limit of Reason.Queue says no.
	Limit, Used int64
	// Since is when it began to wait; 0: not known.
	Since metadata.Time
	// Blockers are the live applications that hold what it waits for, largest first, MaxBlockers at most.
	Blockers []Blocker
	// Changes are such that with any one of them a unit of it would start now.
	Changes []Change
	// Preempts is who goes, or would go when it has waited for long enough, so that it finds room; nil: nobody, for the reason NoPreemption.
	Preempts     *Eviction
	NoPreemption string
	// Starts is when there is room at the latest, from what is known of the ends of what runs; 0: nobody knows.
	Starts metadata.Time
}

// Blocker is an application that holds some of what another waits for.
type Blocker struct {
	App   rm.ApplicationID
	User  string
	Queue string
	// Resource by YARN's name, and how much of it (memory in bytes); empty: applications are counted, Amount is 1.
	Resource string
	Amount   int64
	// Reserved: it waits itself, and the room is kept for it.
	Reserved bool
}

// ChangeKind is what another ask would have otherwise.
type ChangeKind string

// The kinds of changes.
const (
	// FewerMembers: a gang of fewer; FewerGPUs: fewer for each container.
	FewerMembers ChangeKind = "members"
	FewerGPUs    ChangeKind = "gpus"
	// OtherQueue: the whole application in another queue.
	OtherQueue ChangeKind = "queue"
	// The rest leave a requirement out: the NVLink island, the level of the network, the label, the model and memory of GPUs, the nodes
	// that it insists on, those that it excludes.
	AnyIsland    ChangeKind = "island"
	AnyPlace     ChangeKind = "within"
	AnyLabel     ChangeKind = "label"
	AnyModel     ChangeKind = "gpu_model"
	AnyNode      ChangeKind = "nodes"
	AlsoExcluded ChangeKind = "excluded"
	// The conditions for attributes, and that the node must be its own.
	AnyAttributes ChangeKind = "attributes"
	SharedNode    ChangeKind = "exclusive"
	// The constraints for tags.
	AnyNeighbours ChangeKind = "constraints"
	// Where its data lies.
	AnyDistance ChangeKind = "near"
)

// Change is what would let an ask start now.
type Change struct {
	Kind ChangeKind
	// Members of a gang at most, GPUs of each at most, and the queue: of those kinds.
	Members, GPUs int
	Queue         string
	// Ask is the changed one.
	Ask rm.Ask
}

// Explain explains an ask of an application by look-ups in the model as it is; nothing is granted and nothing changes. queues are the
// paths of others to which its user may submit. ok is false when there is no such ask.
func (m *Model) Explain(id rm.ApplicationID, ask string, queues []string, now metadata.Time) (e Explanation, ok bool) {
	a := m.apps[id]
	if a == nil {
		return Explanation{}, false
	}
	i := slices.IndexFunc(a.wants, func(w *want) bool { return w.ID == ask })
	if i < 0 {
		return Explanation{}, false
	}
	defer m.at(now)()
	return m.explain(a.wants[i], queues), true
}

// at sets the time of a question, and returns what sets it back with the numbers that it used up.
func (m *Model) at(now metadata.Time) func() {
	if m.cells.stale {
		m.recell()
	}
	before, last := m.now, m.last
	if now > 0 {
		m.now = now
	}
	return func() { m.now, m.last = before, last }
}

func (m *Model) explain(w *want, queues []string) Explanation {
	e := Explanation{App: w.app.ID, Ask: w.Ask, Unit: w.unit(), Reason: m.why(w, nil)}
	if e.Reason.IsZero() {
		return e
	}
	q := w.app.queue
	if w.master() && w.app.uses().IsZero() {
		e.Since = w.app.Submitted
	}
	if q != nil && q.head.want == w && q.head.since > 0 && (e.Since == 0 || e.Since > q.head.since) {
		e.Since = q.head.since
	}
	if q == nil || w.lane == nil { // of a queue that is there no more
		e.Changes = m.otherQueues(w, m.formFor(w), queues)
		return e
	}
	l := w.lane
	if x := m.limit(l, w); x.by != nil && m.tooMany(l.shape) == 0 {
		e.Limit, e.Used = x.limit, x.used
		e.Blockers = m.usersOf(x, w)
	} else {
		if e.Blockers = m.holders(l.shape, e.Reason); e.Reason.Code == rm.ReasonCells {
			e.Blockers = m.breakers()
		}
		if l.delay != nil {
			e.Starts = l.delay.last
		} else if own := q.head.reservation; own != nil && own.want == w {
			e.Starts = own.starts
		} else if x.by == nil && m.tooMany(l.shape) == 0 {
			if r := m.keep(w); r != nil && r.starts > m.now {
				e.Starts = r.starts
			}
		}
	}
	if m.tooMany(l.shape) == 0 {
		e.Preempts, e.NoPreemption = m.preempts(l)
	}
	e.Changes = m.changes(w, queues)
	return e
}

// usersOf are the applications that use what a limit bounds.
func (m *Model) usersOf(x refusal, w *want) []Blocker {
	var out []Blocker
	for _, a := range m.apps {
		if a.queue == nil || x.user != "" && a.User != x.user {
			continue
		}
		inside := false
		for at := a.queue; at != nil && !inside; at = at.parent {
			inside = at == x.by
		}
		if !inside {
			continue
		}
		b := Blocker{App: a.ID, User: a.User, Queue: a.queue.Path, Resource: x.resource}
		switch x.code {
		case rm.ReasonApplicationLimit:
			if a.counted {
				b.Amount = 1
			}
		case rm.ReasonMasterShare:
			masters := a.Masters.Add(a.assumedMasters)
			b.Amount = masters.Get(x.resource)
		default:
			uses := a.uses()
			b.Amount = uses.Get(x.resource)
		}
		if b.Amount > 0 {
			out = append(out, b)
		}
	}
	return largest(out)
}

// holders are the applications that hold what a shape waits for on nodes that could take it.
func (m *Model) holders(s *shape, why rm.Reason) []Blocker {
	name := why.Resource
	switch why.Code {
	case rm.ReasonResources, rm.ReasonIsland, rm.ReasonGang, rm.ReasonTopology, rm.ReasonContainers, rm.ReasonReserved:
	default:
		return nil // no end of anybody helps
	}
	if name == "" {
		name = rm.MemoryName
		if s.Resource.GPUs > 0 {
			name = rm.GPUName
		} else {
			for instances := range s.Resource.Other.Instances().All() {
				name = instances
			}
		}
	}
	count := func(r rm.Resource) int64 {
		if why.Code == rm.ReasonContainers {
			return 1
		}
		return r.Get(name)
	}
	if why.Code == rm.ReasonContainers {
		name = ""
	}
	held := map[rm.ApplicationID]int64{}
	kept := map[rm.ApplicationID]int64{}
	for _, n := range m.nodes {
		if !n.admits(s) || n.capable(s, 1) == 0 {
			continue
		}
		for i := range n.Holds {
			held[n.Holds[i].App] += count(n.Holds[i].Resource)
		}
		if r := n.reserved; r != nil && !m.passes(n, s) {
			kept[r.want.app.ID] += count(r.form.Resource) * int64(r.nodes[n])
		}
	}
	for _, g := range m.assumed {
		for i, n := range g.nodes {
			if n.admits(s) && n.capable(s, 1) > 0 {
				held[g.app.ID] += count(g.group.Gets(g.group.Placements[i]))
			}
		}
	}
	var out []Blocker
	for _, by := range []struct {
		amounts  map[rm.ApplicationID]int64
		reserved bool
	}{{held, false}, {kept, true}} {
		for id, amount := range by.amounts {
			if amount == 0 {
				continue
			}
			b := Blocker{App: id, Resource: name, Amount: amount, Reserved: by.reserved}
			if a := m.apps[id]; a != nil {
				b.User, b.Queue = a.User, a.Queue
			}
			out = append(out, b)
		}
	}
	return largest(out)
}

func largest(list []Blocker) []Blocker {
	slices.SortFunc(list, func(a, b Blocker) int {
		reserved := 0
		if a.Reserved != b.Reserved { // nobody may have the room before it
			if reserved = 1; a.Reserved {
				reserved = -1
			}
		}
		return cmp.Or(reserved, -cmp.Compare(a.Amount, b.Amount), a.App.Compare(b.App))
	})
	return list[:min(len(list), MaxBlockers)]
}

// starts reports whether a unit of a form would be granted now in the queue of an application.
func (m *Model) starts(q *queue, a *app, f form, master bool) bool {
	f.Pins = m.pins(q, master)
	s := m.newShape(f)
	if m.tooMany(s) > 0 {
		return false
	}
	if x := m.limitIn(q, a, &f, master); x.by != nil {
		return false
	}
	seats, _ := m.seatsFor(q, a, s, master)
	return seats != nil && !m.declines(&lane{laneKey: laneKey{shape: s}}, seats)
}

// changes finds what would let an ask start now.
func (m *Model) changes(w *want, queues []string) []Change {
	var out []Change
	f := m.formFor(w)
	would := func(f form) bool { return m.starts(w.app.queue, w.app, f, w.master()) }
	// Both are monotone: what has room has it with less, too.
	if n := most(f.Unit-1, func(n int) bool {
		less := f
		if less.Unit = n; n == 1 {
			one := w.Ask
			one.Gang = 1
			less.Wait = m.nearWait(&one)
		}
		return would(less)
	}); n > 0 {
		c := Change{Kind: FewerMembers, Members: n, Ask: w.Ask}
		c.Ask.Count, c.Ask.Gang = n, n
		out = append(out, c)
	}
	if n := most(f.Resource.GPUs-1, func(n int) bool { less := f; less.Resource.GPUs = n; return would(less) }); n > 0 {
		c := Change{Kind: FewerGPUs, GPUs: n, Ask: w.Ask}
		c.Ask.Resource.GPUs = n
		out = append(out, c)
	}
	leave := func(kind ChangeKind, there bool, out *[]Change, drop func(a *rm.Ask)) {
		if !there {
			return
		}
		c := Change{Kind: kind, Ask: w.Ask}
		drop(&c.Ask)
		if would(m.formLike(w.app.ID, f, &c.Ask)) {
			*out = append(*out, c)
		}
	}
	leave(AnyIsland, f.Island, &out, func(a *rm.Ask) { a.Island = false })
	leave(AnyPlace, f.Within != "", &out, func(a *rm.Ask) { a.Within = "" })
	leave(AnyLabel, f.Label != "", &out, func(a *rm.Ask) { a.Label = "" })
	leave(AnyModel, f.Model != "" || f.GPUMemory > 0, &out, func(a *rm.Ask) { a.Model, a.GPUMemory = "", 0 })
	leave(AnyNode, f.Strict, &out, func(a *rm.Ask) { a.Strict = false })
	leave(AnyAttributes, !f.Attributes.IsZero(), &out, func(a *rm.Ask) { a.Attributes = rm.Conditions{} })
	leave(SharedNode, f.Exclusive, &out, func(a *rm.Ask) { a.Exclusive = false })
	leave(AnyNeighbours, !f.Constraints.IsZero(), &out, func(a *rm.Ask) { a.Constraints = rm.Constraints{} })
	leave(AnyDistance, !f.Near.IsZero() && !f.Strict, &out, func(a *rm.Ask) { a.Near = rm.Near{} })
	leave(AlsoExcluded, f.Excluded != "", &out, func(a *rm.Ask) { a.Excluded = nil })
	return append(out, m.otherQueues(w, f, queues)...)
}

// formLike is the form of a changed ask, of which as many come at once, with what depends on more than the ask.
func (m *Model) formLike(app rm.ApplicationID, f form, a *rm.Ask) form {
	g := m.formOf(app, a, f.Unit)
	if g.Lasts, g.Reservation, g.Pins = f.Lasts, f.Reservation, f.Pins; g.Reservation != 0 {
		g.Wait = 0
	}
	return g
}

// most is the largest n of 1..limit for which ok holds, which holds for all below it, too; 0: none.
func most(limit int, ok func(n int) bool) int {
	low, high := 0, max(limit, 0)
	for low < high {
		if mid := (low + high + 1) / 2; ok(mid) {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low
}

// otherQueues are the queues in which an ask would start now, if its application were there with all that it has.
func (m *Model) otherQueues(w *want, f form, queues []string) []Change {
	a := w.app
	f.Reservation, f.Pins = 0, nil
	if m.cells.gpus > 0 && !a.uses().IsZero() { // where it is counts, too, and is not looked at
		return nil
	}
	if _, ok := m.find(m.newShape(f)); !ok { // the same in all queues
		return nil
	}
	// An ask of its own that a limit holds back here may be served there before this one.
	for _, o := range a.wants {
		if o != w && o.lane != nil && o.lane.by != nil && before(o, w) {
			return nil
		}
	}
	var out []Change
	for _, path := range queues[:min(len(queues), MaxOtherQueues)] {
		q := m.byQueue[m.config.Queues.Find(path)]
		if q == nil || !q.Leaf() || q == a.queue || m.frees(a, q) {
			continue
		}
		back := m.carry(a, q)
		ok := m.starts(q, a, f, w.master())
		back()
		if ok {
			out = append(out, Change{Kind: OtherQueue, Queue: q.Path, Ask: w.Ask})
		}
	}
	return out
}

// frees reports whether others wait for less use of a queue that an application would leave: it may be they who start then.
func (m *Model) frees(a *app, to *queue) bool {
	for at := a.queue; at != nil; at = at.parent {
		if at.holds(to) {
			return false
		}
		for _, l := range at.blocked {
			if l.by == at && len(l.wants.list) > 0 && (len(l.wants.list) > 1 || l.first().app != a) {
				return true
			}
		}
	}
	return false
}

// holds reports whether a queue is another or lies above it.
func (q *queue) holds(o *queue) bool {
	for ; o != nil; o = o.parent {
		if o == q {
			return true
		}
	}
	return false
}

// carry counts what an application has, and that it wants something, against another queue, where only limits look, until it is called
// back.
func (m *Model) carry(a *app, to *queue) (back func()) {
	uses, masters := a.uses(), a.Masters.Add(a.assumedMasters)
	book := func(q *queue, sign int) {
		if q == nil {
			return
		}
		running := 0
		if a.counted {
			running = sign
		}
		for at := q; at != nil; at = at.parent {
			at.used = at.used.Add(uses.Times(sign))
			at.running += running
		}
		q.masters = q.masters.Add(masters.Times(sign))
		if q.limitsUsers() {
			u := q.userOf(a.User)
			u.used = u.used.Add(uses.Times(sign))
			u.running += running
			for _, w := range a.wants {
				if w.lane != nil || w.tried {
					q.asks(u, sign)
				}
			}
		}
	}
	book(a.queue, -1)
	book(to, 1)
	return func() {
		book(to, -1)
		book(a.queue, 1)
	}
}
