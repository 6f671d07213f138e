package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// The defaults of Config.
const (
	DefaultPatience = 64
	DefaultWait     = 5 * time.Minute
)

// maxReservations bounds those at a time, of either sort: each is found by a look at all nodes.
const maxReservations = 16

// head is the first ask of a leaf that finds no room, while it is that.
type head struct {
	want *want
	// share is what one unit needs of the cluster; passed are the containers that were granted since, to asks that need less.
	share       float64
	since       metadata.Time
	passed      int
	reservation *reservation
	// vain counts, for each node, how often it was kept without coming nearer, and tries how often something was.
	vain  map[*node]int
	tries int
}

// reservation keeps nodes free for an ask. It is made again by the next leader, see resume; nobody but the model knows of it.
type reservation struct {
	number int64
	want   *want
	queue  *queue
	// starts is when everything is free, from what is known of the ends of what runs; 0: nobody knows.
	starts metadata.Time
	// nodes and how many containers each is to take.
	nodes map[*node]int
	form  form
	// lacks and fits are the least that was missing so far and the most that has had room, nearer is since when, and came whether that was since the
	// patience began. limited is since when a limit holds back the ask; 0: none does. looked is when stale looked last.
	lacks, fits             int64
	nearer, limited, looked metadata.Time
	came                    bool
	// evicts: others make room for it, see preempt.go, for so many units. idle is since when none of them is left; 0: some are.
	evicts bool
	units  int
	idle   metadata.Time
}

// text says it for the one who waits.
func (r *reservation) text() string {
	if r.evicts {
		return fmt.Sprintf("; others make room for it on %d nodes", len(r.nodes))
	}
	if r.starts == 0 {
		return fmt.Sprintf("; room is kept for it on %d nodes as it becomes free", len(r.nodes))
	}
	return fmt.Sprintf("; room is kept for it on %d nodes, which are free at %s at the latest", len(r.nodes), r.starts.Time().UTC().Format(time.RFC3339))
}

// pass counts a unit that is about to be granted against those that wait for room for more.
func (m *Model) pass(w *want) {
	if m.config.Patience < 0 || m.trials > 0 {
		return
	}
	for _, q := range m.waitingHeads {
		h := &q.head
		if h.want == nil || h.want == w || h.reservation != nil {
			continue
		}
		if m.demand(w.lane.shape) < h.share {
			h.passed += w.lane.shape.Unit
		}
	}
	if q := w.app.queue; q.head.want == w {
		if r := q.head.reservation; r != nil && r.units > 1 {
			r.units-- // the rest of the room is for it, too
			return
		}
		q.served = q.head
		m.release(w)
	}
}

// demand is the part of the cluster that one unit needs.
func (m *Model) demand(s *shape) float64 {
	r := s.Resource
	if s.Unit > 1 {
		r = r.Times(s.Unit)
	}
	return share(&r, &m.total)
}

// release ends the reservation of an ask, and that it is the head of its queue.
func (m *Model) release(w *want) {
	q := w.app.queue
	if q == nil || q.head.want != w {
		return
	}
	r := q.head.reservation
	q.head = head{}
	m.waitingHeads = slices.DeleteFunc(m.waitingHeads, func(x *queue) bool { return x == q })
	if r != nil {
		m.drop(r)
	}
}

func (m *Model) drop(r *reservation) {
	m.reservations = slices.DeleteFunc(m.reservations, func(x *reservation) bool { return x == r })
	for n := range r.nodes {
		m.touch(n)
		n.before = room{} // for others it is new
		n.reserved = nil
		m.file(n)
	}
}

// reserve looks after those who wait for room at the head of their queues: whoever was passed too often, or too long, gets nodes kept.
func (m *Model) reserve() {
	if m.config.Patience < 0 || m.trials > 0 {
		return
	}
	for _, r := range slices.Clone(m.reservations) {
		awaits := r.evicts && !m.resumed // nodes that have not spoken to this leader
		if slices.ContainsFunc(keys(r.nodes), func(n *node) bool { return n.Closed && !awaits || m.nodes[n.ID] != n }) || r.want.lane == nil || r.want.lane.shape.Resource != r.form.Resource ||
			r.form.Pins != nil && !m.keepsCells(r.nodes, r.form.Pins) {
			w := r.want
			m.release(w) // it is looked at anew below
			if w.lane != nil {
				m.leave(w)
				m.enter(w)
			}
		}
	}
	for _, r := range slices.Clone(m.reservations) {
		if !r.evicts && m.stale(r) && m.revise(r) {
			return // one look at all nodes at a time; the next plan looks further
		}
	}
	for _, q := range m.queues {
		if !q.Leaf() || q.head.reservation != nil {
			continue
		}
		first := q.firstClosed()
		if first == nil {
			if q.head.want != nil {
				m.release(q.head.want)
			}
			continue
		}
		if w := first.first(); q.head.want != w {
			if q.head.want != nil {
				m.release(q.head.want)
			}
			q.head = head{want: w, share: m.demand(first.shape), since: m.now}
			if w.app.Submitted <= q.served.since { // it has been passed by as many as the one before it
				q.head.since, q.head.passed = q.served.since, q.served.passed
				if q.served.want == w { // a limit held it back meanwhile
					q.head.vain, q.head.tries = q.served.vain, q.served.tries
				}
			}
			m.waitingHeads = append(m.waitingHeads, q)
		}
	}
	due := make([]*queue, 0, maxReservations)
	for _, q := range m.waitingHeads {
		h := &q.head
		if h.reservation == nil && h.passed > 0 && (h.passed >= m.config.Patience || m.now-h.since >= metadata.Time(m.config.Wait.Milliseconds())) {
			due = append(due, q)
		}
	}
	slices.SortFunc(due, func(a, b *queue) int {
		return cmp.Or(cmp.Compare(a.head.since, b.head.since), cmp.Compare(a.number, b.number))
	})
	for _, q := range due {
		if m.kept(false) >= maxReservations {
			break
		}
		w := q.head.want
		if m.limit(w.lane, w).by != nil {
			continue
		}
		r := m.keep(w)
		if r == nil {
			q.head.passed = 0 // ask again after as many
			q.head.since = m.now
			continue
		}
		m.install(r)
		m.leave(w)
		m.enter(w) // into a lane of its own
		return     // one at a time; the next plan looks further
	}
}

// firstClosed is the lane of the first ask of a leaf that finds no room, those left out that a limit holds back.
func (q *queue) firstClosed() *lane {
	var first *lane
	for _, l := range q.all {
		if l.closed && l.by == nil && l.shape.closed && (first == nil || before(l.first(), first.first())) {
			first = l
		}
	}
	return first
}

// install keeps the nodes of a reservation for the head of its leaf.
func (m *Model) install(r *reservation) {
	r.queue.head.reservation = r
	m.reservations = append(m.reservations, r)
	for n := range r.nodes {
		m.unfile(n)
		n.reserved = r
		m.file(n)
	}
	r.lacks, r.fits = m.lacking(r)
	r.nearer = m.now
	m.version++
}

// staleLook is how often it is looked whether a reservation came nearer, in milliseconds, and staleLeast for how long it may come no nearer at the least.
const (
	staleLook  = 1000
	staleLeast = 60 * 1000
)

// stale reports whether a reservation has come no nearer for the patience with it, or a limit has held back its ask for as long. What is known to end is
// waited for. Only room that never was there before counts, so nothing that comes and goes beside what is kept makes it last. The patience is doubled with each
// that was given up, so that nodes on which containers take their time are kept long enough at last.
func (m *Model) stale(r *reservation) bool {
	if m.now-r.looked < staleLook {
		return false
	}
	r.looked = m.now
	w := r.want
	if m.limit(w.lane, w).by == nil {
		r.limited = 0
	} else if r.limited == 0 {
		r.limited = m.now
	}
	lacks, fits := m.lacking(r)
	if lacks < r.lacks || fits > r.fits {
		r.lacks, r.fits, r.nearer = min(lacks, r.lacks), max(fits, r.fits), m.now
		r.came = true
	}
	wait := max(metadata.Time(m.config.Wait.Milliseconds()), staleLeast)
	return m.now-max(r.nearer, r.starts) >= wait<<min(r.queue.head.tries, 20) || r.limited > 0 && m.now-r.limited >= wait
}

// lacking is what the nodes of a reservation lack for it, in millionths of a node, and how many of its containers have room.
func (m *Model) lacking(r *reservation) (lacks, fits int64) {
	for n, k := range r.nodes {
		fits += int64(min(n.fits(r.want.lane.shape, k), k))
		need := r.form.Resource.Times(k)
		if r.form.Exclusive {
			need = n.Capacity
		}
		for _, name := range need.Names() {
			if c := n.Capacity.Get(name); c > 0 {
				lacks += int64(1e6 * float64(max(need.Get(name)-n.room.Get(name), 0)) / float64(c))
			}
		}
	}
	return lacks, fits
}

// revise gives up a reservation that is stale. If its ask is still the first of its leaf that finds no room, and no limit holds it back, other nodes are
// kept for it in their place: those that came to nothing are the last choice. Where it came nearer meanwhile, or there are no others, these stay, for longer. false: nothing had
// to be looked for.
func (m *Model) revise(r *reservation) bool {
	w, q := r.want, r.queue
	first := q.firstClosed()
	if r.limited > 0 || first == nil || before(first.first(), w) {
		served := q.head
		m.yield(r)
		served.reservation = nil
		q.served = served // who comes next, and it itself, was passed by as many
		return false
	}
	h := &q.head
	h.tries++
	if r.came { // containers end there: it may take twice as long
		r.came, r.nearer = false, m.now
		return false
	}
	if h.vain == nil {
		h.vain = map[*node]int{}
	}
	for n, k := range r.nodes {
		if n.fits(w.lane.shape, k) < k {
			h.vain[n]++
		}
	}
	next := m.keep(w)
	if next == nil || maps.Equal(next.nodes, r.nodes) {
		r.nearer = m.now
		return true
	}
	next.form = r.form
	m.drop(r)
	m.install(next)
	waits := w.waits
	m.leave(w)
	m.enter(w) // into the lane of the other one
	w.waits = waits
	return true
}

func keys(nodes map[*node]int) []*node {
	out := make([]*node, 0, len(nodes))
	for n := range nodes {
		out = append(out, n)
	}
	return out
}

// passes reports whether a shape may take room of a node in spite of a reservation.
func (m *Model) passes(n *node, s *shape) bool {
	r := n.reserved
	if r == nil || r.number == s.Reservation {
		return true
	}
	if s.Lasts > 0 && r.starts > 0 && m.now+metadata.Time(s.Lasts.Milliseconds()) <= r.starts {
		return true
	}
	// What is there besides what runs and what is kept, if all of that stays.
	if s.Resource.GPUs > 0 && (r.form.Island || r.form.Model != "" || r.form.GPUMemory > 0) {
		return false
	}
	if s.Exclusive || r.form.Exclusive {
		return false
	}
	used := n.inUse(n.Used.Add(n.assumed))
	kept := r.form.Resource.Times(r.nodes[n]).Add(used)
	_, no := exceeds(&s.Resource, &kept, &n.Capacity) // of what it does not want it takes nothing
	return !no
}

// step is room for more containers on a node from a time on.
type step struct {
	node *node
	at   metadata.Time // math.MaxInt64: when what runs there ends, which nobody knows
	fits int
	busy float64 // the part of the node that has to end
}

// keep finds the nodes that will be free the earliest for an ask, those last that were kept for it in vain. nil: not even an empty cluster has room, or none is left to keep.
func (m *Model) keep(w *want) *reservation {
	s := w.lane.shape
	if len(s.constraints) > 0 { // whom its neighbours will be nobody knows
		return nil
	}
	var vain map[*node]int
	if h := &w.app.queue.head; h.want == w {
		vain = h.vain
	}
	byPart := map[string][]step{}
	for _, n := range m.nodes {
		if !n.admits(s) || n.reserved != nil && n.reserved.want != w || s.Pins != nil && !m.keepsCell(n, s.Pins) {
			continue
		}
		part := ""
		if d := depth(s.Within); d > 0 {
			part = above(n.Rack, d)
		}
		if s.Within == "node" {
			part = string(n.ID)
		}
		byPart[part] = append(byPart[part], m.steps(n, s)...)
	}
	m.last++
	var best *reservation
	fewest := 0 // of best: how often its nodes were kept in vain
	parts := make([]string, 0, len(byPart))
	for part := range byPart {
		parts = append(parts, part)
	}
	slices.Sort(parts)
	for _, part := range parts {
		steps := byPart[part]
		slices.SortFunc(steps, func(a, b step) int {
			return cmp.Or(cmp.Compare(vain[a.node], vain[b.node]), cmp.Compare(a.at, b.at), cmp.Compare(a.busy, b.busy), -cmp.Compare(a.fits, b.fits), cmp.Compare(a.node.ID, b.node.ID))
		})
		r := &reservation{number: m.last, want: w, queue: w.app.queue, nodes: map[*node]int{}, form: s.form}
		sum := 0
		trial := m.pinning(s.Pins)
		for _, x := range steps {
			if more := min(x.fits-r.nodes[x.node], s.Unit-sum); more > 0 && (r.nodes[x.node] > 0 || trial.take(x.node)) {
				r.nodes[x.node] += more
				sum += more
				r.starts = max(r.starts, x.at)
			}
			if sum == s.Unit {
				break
			}
		}
		trial.end()
		kept := 0
		for n := range r.nodes {
			kept += vain[n]
		}
		if sum == s.Unit && (best == nil || kept < fewest || kept == fewest && r.starts < best.starts) {
			best, fewest = r, kept
		}
	}
	if best != nil && best.starts == math.MaxInt64 {
		best.starts = 0
	}
	return best
}

// steps says when a node has room for how many containers of a shape.
func (m *Model) steps(n *node, s *shape) []step {
	most := n.capable(s, s.Unit)
	if most == 0 {
		return nil
	}
	now := n.fits(s, s.Unit)
	out := []step{}
	if now > 0 {
		out = append(out, step{n, m.now, now, 0})
	}
	if now == most {
		return out
	}
	type end struct {
		at   metadata.Time
		hold Hold
	}
	var ends []end
	var known rm.Resource
	for _, h := range n.Holds {
		at := h.Ends
		if a := m.apps[h.App]; a != nil && a.Ends > 0 && (at == 0 || a.Ends < at) {
			at = a.Ends
		}
		if at > 0 {
			ends = append(ends, end{max(at, m.now), h})
			known = known.Add(h.Resource)
		}
	}
	slices.SortFunc(ends, func(a, b end) int { return cmp.Compare(a.at, b.at) })
	then := node{Node: n.Node, devices: slices.Clone(n.devices), given: n.given, profiles: n.profiles, assumed: n.assumed, assumedContainers: n.assumedContainers, assumedGPUs: n.assumedGPUs}
	then.GPUs = slices.Clone(n.GPUs)
	then.assumedWhole, then.Exclusive = n.assumedWhole, n.Exclusive
	then.islands = make([]island, len(n.islands))
	for _, e := range ends {
		then.Used = then.Used.Sub(e.hold.Resource)
		then.Containers--
		then.Exclusive = then.Exclusive && then.Containers > 0
		for i := range then.GPUs {
			if !then.GPUs[i].Broken && slices.Contains(e.hold.GPUs, then.GPUs[i].UUID) {
				then.GPUs[i].Free = true
			}
		}
		then.refresh()
		if fits := then.fits(s, s.Unit); fits > now {
			now = fits
			out = append(out, step{n, e.at, fits, 0})
		}
	}
	if now < most {
		used := n.inUse(n.Used.Sub(known))
		out = append(out, step{n, math.MaxInt64, most, share(&used, &n.Capacity)})
	}
	return out
}

// keptFree is the reason of those for whom there would be room that is kept for somebody else.
func (m *Model) keptFree(s *shape, nodes []sample) rm.Reason {
	var first *reservation
	for _, x := range nodes {
		if r := x.reserved; r != nil && x.fits(s, 1) > 0 && (first == nil || r.number < first.number) {
			first = r
		}
	}
	until := "until that starts"
	if first.starts > 0 {
		until = "until " + first.starts.Time().UTC().Format(time.RFC3339)
	}
	return rm.Reason{
		Code: rm.ReasonReserved, Queue: first.queue.Path,
		Text: fmt.Sprintf("the room that there is is kept for %v, which waits longer and needs more, %s; what says that it ends before may have it", first.want.app.ID, until),
	}
}
