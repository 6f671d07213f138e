package simulator

import (
	"cmp"
	"slices"

	rm "github.com/gohops/hops/resourcemanager"
)

// YARN is like the CapacityScheduler of YARN 3.4 with node heartbeats: queues by used/guaranteed, applications of a leaf in the order of
// priority and arrival, one container at a time, GPUs as a number. It knows no gang: masters hold what they get until the
// rest is there. See DESIGN.md for what it leaves out; all of that is in YARN's favour or without effect here.
type YARN struct {
	// Preempt takes back what queues borrowed, as ProportionalCapacityPreemptionPolicy does, whose monitor is off by default.
	Preempt bool
	// GiveUp is how long a master holds some of its containers in vain before it gives them back and starts again; 0: for ever.
	GiveUp int64
	// Backoff is how long it then asks for nothing.
	Backoff int64
	// Unreserved leaves out reservations of nodes, without which large containers starve; YARN has no such switch. With GPUs it helps
	// most jobs, because a node that is reserved idles what it has free.
	Unreserved bool
}

// Name is yarn-like, with what is not the default behind it.
func (y YARN) Name() string {
	name := "yarn-like"
	if y.Preempt {
		name += " with preemption"
	}
	if y.Unreserved {
		name += " without reservations"
	}
	return name
}

func (y YARN) begin(w *world) decider {
	return &yarn{world: w, YARN: y, reserved: map[*machine]*part{}, reservations: map[*part]int{}, until: map[*part]int64{}, used: map[*rm.Queue]rm.Resource{}}
}

type yarn struct {
	*world
	YARN
	// reserved nodes give what becomes free to one part, which is how a large container is not starved by small ones.
	reserved     map[*machine]*part
	reservations map[*part]int
	// until is when a part that gave up asks again.
	until map[*part]int64
	// used is what queues have during a pass, reservations among it.
	used map[*rm.Queue]rm.Resource
	// apps are the jobs of each leaf with open parts, in their order, during a pass.
	apps  map[*rm.Queue][]*part
	round int64 // of preemption, the last one
}

// whole: a master keeps the containers that it still has.
func (y *yarn) whole() bool { return false }

// pass is a heartbeat of every node, again and again until none gets anything.
func (y *yarn) pass() error {
	y.giveUp()
	y.count()
	for again := true; again; {
		again = false
		for _, n := range y.nodes {
			for !n.down && y.assign(n) {
				again = true
			}
		}
	}
	if y.Preempt {
		y.preempt()
	}
	return nil
}

// giveUp lets a master that has waited for too long give back what it holds. Several do it one after the other, so that those that
// waited with it may begin with what the first one held.
func (y *yarn) giveUp() {
	if y.GiveUp == 0 {
		return
	}
	done := false
	for _, r := range y.live {
		for _, p := range r.parts {
			if p.heldSince < 0 || p.running || p.Gang < 2 || len(p.live) == 0 {
				continue
			}
			if at := p.heldSince + y.GiveUp; y.now < at {
				y.wake(at)
				continue
			}
			if done {
				y.wake(y.now + second)
				continue
			}
			done = true
			y.release(p)
			y.stats.gaveUp++
			y.until[p] = y.now + y.Backoff
			y.wake(y.until[p])
		}
	}
}

// count makes the pass's view of queues.
func (y *yarn) count() {
	clear(y.used)
	y.apps = map[*rm.Queue][]*part{}
	for _, n := range y.nodes { // a reservation of what is wanted no more goes
		if p := y.reserved[n]; p != nil && (n.down || !p.open || p.wanted < y.reservations[p] || y.until[p] > y.now) {
			y.unreserve(n)
		}
	}
	for _, r := range y.live {
		for _, p := range r.parts {
			y.use(r.queue, p.Resource().Times(len(p.live)+y.reservations[p]))
			if p.open && p.wanted > 0 && y.until[p] <= y.now {
				y.apps[r.queue] = append(y.apps[r.queue], p)
			}
		}
	}
	for _, parts := range y.apps {
		slices.SortStableFunc(parts, func(a, b *part) int {
			return cmp.Or(-cmp.Compare(a.run.Priority, b.run.Priority), cmp.Compare(a.run.Arrival, b.run.Arrival), cmp.Compare(a.run.number, b.run.number), cmp.Compare(a.Priority, b.Priority))
		})
	}
}

func (y *yarn) use(q *rm.Queue, r rm.Resource) {
	for ; q != nil; q = q.Parent {
		y.used[q] = y.used[q].Add(r)
	}
}

func (y *yarn) unreserve(n *machine) {
	p := y.reserved[n]
	delete(y.reserved, n)
	y.reservations[p]--
	if y.reservations[p] == 0 {
		delete(y.reservations, p)
	}
}

// assign gives one container of a node, or reserves the node; false: it did neither.
func (y *yarn) assign(n *machine) bool {
	if p := y.reserved[n]; p != nil {
		if n.fits(p) == 0 {
			return false
		}
		y.unreserve(n)
		y.use(p.run.queue, p.Resource().Times(-1))
		y.take(p, n)
		return true
	}
	return y.descend(y.queues.Root, n)
}

// descend tries the leaves below a queue, those first that use the smallest part of their guarantee.
func (y *yarn) descend(q *rm.Queue, n *machine) bool {
	if q.Leaf() {
		return y.serve(q, n)
	}
	children := slices.Clone(q.Children)
	slices.SortStableFunc(children, func(a, b *rm.Queue) int { return cmp.Compare(y.ratio(a), y.ratio(b)) })
	for _, c := range children {
		if y.descend(c, n) {
			return true
		}
		if y.reserved[n] != nil {
			return false // the node is not offered to others
		}
	}
	return false
}

// unguaranteed puts queues without a guarantee behind all that have one.
const unguaranteed = 1e9

// ratio is used/guaranteed, of the resource of which that is most.
func (y *yarn) ratio(q *rm.Queue) float64 {
	used, guaranteed, ratio := y.used[q], y.guaranteed[q], 0.0
	for _, name := range y.total.Names() {
		switch total, have := y.total.Get(name), guaranteed.Get(name); {
		case total == 0 || used.Get(name) == 0:
		case have == 0:
			ratio = max(ratio, unguaranteed+float64(used.Get(name))/float64(total))
		default:
			ratio = max(ratio, float64(used.Get(name))/float64(have))
		}
	}
	if guaranteed.IsZero() {
		return max(ratio, unguaranteed)
	}
	return ratio
}

// serve tries the applications of a leaf on one node.
func (y *yarn) serve(q *rm.Queue, n *machine) bool {
	for _, p := range y.apps[q] {
		if p.wanted == 0 || !n.admits(p) || n.holds(p, n.Resource(), n.GPUs) == 0 {
			continue
		}
		if p.master && !y.master(p) {
			continue
		}
		if !y.within(q, p.Resource(), func(q *rm.Queue) rm.Resource { return y.used[q] }) {
			continue
		}
		if n.fits(p) > 0 {
			if y.reservations[p] >= p.wanted { // it got what it had reserved elsewhere
				for _, other := range y.nodes {
					if y.reserved[other] == p {
						y.unreserve(other)
						y.use(q, p.Resource().Times(-1))
						break
					}
				}
			}
			y.take(p, n)
			return true
		}
		if !y.Unreserved && y.reservations[p] < p.wanted {
			y.reserved[n] = p
			y.reservations[p]++
			y.use(q, p.Resource())
			return false
		}
	}
	return false
}

func (y *yarn) take(p *part, n *machine) {
	y.use(p.run.queue, p.Resource())
	y.grant(p, n, n.lowest(p.GPUs))
	if y.GiveUp > 0 && p.heldSince == y.now {
		y.wake(y.now + y.GiveUp)
	}
}

// masterShare is yarn.scheduler.capacity.maximum-am-resource-percent as Hadoop's example has it.
const masterShare = 0.1

// master reports whether a leaf may have one more master; the first may always come.
func (y *yarn) master(p *part) bool {
	q := p.run.queue
	var masters rm.Resource
	for _, r := range y.live {
		if r.queue == q && r.master != nil {
			masters = masters.Add(r.master.Resource().Times(len(r.master.live)))
		}
	}
	if masters.IsZero() {
		return true
	}
	limit := y.maximum[q].Part(masterShare)
	masters = masters.Add(p.Resource())
	return masters.Memory <= limit.Memory && masters.VCores <= limit.VCores
}

// Figures of ProportionalCapacityPreemptionPolicy, as yarn-default.xml has them.
const (
	monitorInterval = 3 * second
	waitBeforeKill  = 15 * second
	perRound        = 0.1 // of the cluster
	naturalEnd      = 0.2 // of what is missing is taken in a round
	maxIgnored      = 0.1 // over its guarantee a queue is left alone
)

// preempt marks containers of queues above their guarantee for queues below theirs that wait, and ends what has been marked for
// long enough. GPUs count; without any, memory.
func (y *yarn) preempt() {
	if y.now < y.round+monitorInterval && y.round > 0 {
		y.wake(y.round + monitorInterval)
		return
	}
	y.round = y.now
	of := func(r rm.Resource) float64 { return float64(r.GPUs) }
	if y.total.GPUs == 0 {
		of = func(r rm.Resource) float64 { return float64(r.Memory) }
	}
	total, free := of(y.total), 0.0
	for _, n := range y.nodes {
		if !n.down {
			free += of(n.Resource().Sub(n.used))
		}
	}
	missing := -free
	for _, q := range y.queues.All { // in their order, because sums of fractions depend on it
		want := 0.0
		for _, p := range y.apps[q] {
			want += of(p.Resource().Times(p.wanted))
		}
		missing += max(0, min(of(y.guaranteed[q])-of(y.held(q)), want))
	}
	budget := min(missing*naturalEnd, perRound*total)
	if missing > 0 {
		budget = max(budget, 1)
	}
	changed := false
	for _, q := range y.queues.All {
		if !q.Leaf() {
			continue
		}
		surplus := of(y.held(q)) - of(y.guaranteed[q])
		if surplus > 0 && missing > 0 { // reservations go before containers
			for _, n := range y.nodes {
				if p := y.reserved[n]; p != nil && p.run.queue == q {
					y.unreserve(n)
				}
			}
		}
		chosen := y.victims(q, surplus, of(y.guaranteed[q]), of, &missing, &budget)
		for _, c := range y.marked(q) {
			if !chosen[c] {
				c.marked = -1
			}
		}
		for _, r := range y.live {
			for _, p := range r.parts {
				for _, c := range slices.Clone(p.live) {
					switch {
					case !chosen[c] || c.gone:
					case c.marked < 0:
						c.marked = y.now
						changed = true
						y.wake(y.now + waitBeforeKill)
					case y.now >= c.marked+waitBeforeKill:
						y.stats.preemptions++
						y.lose(c, &y.stats.lostToPreemption, false)
						changed = true
					}
				}
			}
		}
	}
	if changed {
		y.wake(y.now + monitorInterval)
	}
}

// held is what the containers of a leaf have, without reservations.
func (y *yarn) held(q *rm.Queue) rm.Resource {
	var sum rm.Resource
	for _, r := range y.live {
		if r.queue == q {
			for _, p := range r.parts {
				sum = sum.Add(p.Resource().Times(len(p.live)))
			}
		}
	}
	return sum
}

func (y *yarn) marked(q *rm.Queue) []*container {
	var out []*container
	for _, r := range y.live {
		if r.queue == q {
			for _, p := range r.parts {
				for _, c := range p.live {
					if c.marked >= 0 {
						out = append(out, c)
					}
				}
			}
		}
	}
	return out
}

// victims picks containers of a leaf: those of the youngest applications, the newest first, masters never. What was marked before
// is paid for already.
func (y *yarn) victims(q *rm.Queue, surplus, guarantee float64, of func(rm.Resource) float64, missing, budget *float64) map[*container]bool {
	out := map[*container]bool{}
	if surplus <= guarantee*maxIgnored {
		return out
	}
	for i := len(y.live) - 1; i >= 0; i-- {
		r := y.live[i]
		if r.queue != q {
			continue
		}
		for _, p := range slices.Backward(r.parts) {
			if p.master {
				continue
			}
			for _, c := range slices.Backward(p.live) {
				size := of(p.Resource())
				if size == 0 || surplus < size || *missing <= 0 || c.marked < 0 && *budget <= 0 {
					continue
				}
				out[c] = true
				surplus -= size
				*missing -= size
				if c.marked < 0 {
					*budget -= size
				}
			}
		}
	}
	return out
}
