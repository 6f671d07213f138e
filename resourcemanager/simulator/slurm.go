package simulator

import (
	"cmp"
	"slices"

	rm "github.com/gohops/hops/resourcemanager"
)

// Slurm is like Slurm with sched/backfill: jobs in the order of priority and arrival, gangs whole, and EASY backfill by the walltimes
// that users give. Its queues have no guarantee, only a maximum, as a QOS with GrpTRES.
type Slurm struct {
	// Tree places a gang in the rack that it fills best, as topology/tree; without it the first nodes with room are taken.
	Tree bool
}

// Name is slurm-like.
func (s Slurm) Name() string {
	if s.Tree {
		return "slurm-like"
	}
	return "slurm-like without topology"
}

func (s Slurm) begin(w *world) decider { return &slurm{world: w, Slurm: s} }

type slurm struct {
	*world
	Slurm
	used map[*rm.Queue]rm.Resource
}

// whole: a job that loses a node is requeued.
func (s *slurm) whole() bool { return true }

// room is what a node has for a job.
type room struct {
	free rm.Resource
	gpus int
}

// pass starts jobs in their order. The first that has no room gets a reservation, for the earliest moment at which the walltimes
// of what runs leave room for it; those behind it start where they do not delay that.
func (s *slurm) pass() error {
	s.used = map[*rm.Queue]rm.Resource{}
	var waiting []*part
	for _, r := range s.live {
		for _, p := range r.parts {
			s.use(r.queue, p.Resource().Times(len(p.live)))
			if p.open && p.wanted > 0 && (p.Gang == 0 || !p.running) { // the size of a job is fixed when it starts
				waiting = append(waiting, p)
			}
		}
	}
	slices.SortStableFunc(waiting, func(a, b *part) int {
		return cmp.Or(-cmp.Compare(a.run.Priority, b.run.Priority), cmp.Compare(a.run.Arrival, b.run.Arrival), cmp.Compare(a.run.number, b.run.number), cmp.Compare(a.Priority, b.Priority))
	})
	now := make([]room, len(s.nodes))
	for i, n := range s.nodes {
		now[i] = room{n.Resource().Sub(n.used), n.freeGPUs}
	}
	var spare []room // of each node when the reservation begins, beside what is reserved; nil: there is none
	var shadow int64
	for _, p := range waiting {
		for p.wanted > 0 {
			unit, most := 1, 1
			if p.Gang > 0 {
				unit, most = p.Gang, p.Count
			}
			for most > unit && !s.within(p.run.queue, p.Resource().Times(most), s.usedBy) {
				most--
			}
			if !s.within(p.run.queue, p.Resource().Times(unit), s.usedBy) {
				break
			}
			offer := now
			long := spare != nil && s.now+walltime(p) > shadow
			if long {
				offer = make([]room, len(now))
				for i := range now {
					offer[i] = room{least(now[i].free, spare[i].free), min(now[i].gpus, spare[i].gpus)}
				}
			}
			at := s.choose(p, unit, most, offer)
			if at == nil {
				if spare == nil {
					shadow, spare = s.reserve(p, unit, now)
				}
				break
			}
			for i, k := range at {
				for range k {
					s.grant(p, s.nodes[i], s.nodes[i].lowest(p.GPUs))
				}
				taken := p.Resource().Times(k)
				now[i] = room{now[i].free.Sub(taken), now[i].gpus - taken.GPUs}
				if long {
					spare[i] = room{spare[i].free.Sub(taken), spare[i].gpus - taken.GPUs}
				}
				s.use(p.run.queue, taken)
			}
			if p.Gang > 0 {
				break
			}
		}
	}
	return nil
}

func (s *slurm) usedBy(q *rm.Queue) rm.Resource { return s.used[q] }

func (s *slurm) use(q *rm.Queue, r rm.Resource) {
	for ; q != nil; q = q.Parent {
		s.used[q] = s.used[q].Add(r)
	}
}

// least is the smaller of each amount.
func least(a, b rm.Resource) rm.Resource {
	return rm.Resource{Memory: min(a.Memory, b.Memory), VCores: min(a.VCores, b.VCores), GPUs: min(a.GPUs, b.GPUs)}
}

// walltime is how long a part may run, as its user said; for ever when nothing was said.
func walltime(p *part) int64 {
	if p.run.Walltime == 0 {
		return maxMillis
	}
	return p.run.Walltime
}

// choose says how many containers each node gets, together at least unit and at most most; nil: there is no room for unit.
func (s *slurm) choose(p *part, unit, most int, offer []room) []int {
	fits, sum := make([]int, len(s.nodes)), 0
	racks, order := map[string]int{}, []string(nil)
	for i, n := range s.nodes {
		if n.down || !n.admits(p) || len(n.live) >= rm.MaxContainersPerNode {
			continue
		}
		fits[i] = min(n.holds(p, offer[i].free, offer[i].gpus), rm.MaxContainersPerNode-len(n.live))
		sum += fits[i]
		if fits[i] > 0 {
			if _, known := racks[n.Rack]; !known {
				order = append(order, n.Rack)
			}
			racks[n.Rack] += fits[i]
		}
	}
	if sum < unit {
		return nil
	}
	n := min(sum, most)
	best, found := "", false
	for _, rack := range order {
		if have := racks[rack]; s.Tree && have >= n && (!found || have < racks[best]) {
			best, found = rack, true
		}
	}
	out := make([]int, len(s.nodes))
	nodes := make([]int, 0, len(s.nodes))
	for i := range s.nodes {
		if fits[i] > 0 && (!found || s.nodes[i].Rack == best) {
			nodes = append(nodes, i)
		}
	}
	if s.Tree { // one node that it fills best, else the roomiest first
		one := -1
		for _, i := range nodes {
			if fits[i] >= n && (one < 0 || fits[i] < fits[one]) {
				one = i
			}
		}
		if one >= 0 {
			out[one] = n
			return out
		}
		slices.SortStableFunc(nodes, func(a, b int) int { return -cmp.Compare(fits[a], fits[b]) })
	}
	for _, i := range nodes {
		out[i] = min(n, fits[i])
		if n -= out[i]; n == 0 {
			break
		}
	}
	return out
}

// reserve finds the earliest moment at which a part has room if everything runs as long as its user said, and what is then free
// beside it. What has run longer is expected to end in a minute.
func (s *slurm) reserve(p *part, unit int, now []room) (int64, []room) {
	type end struct {
		at   int64
		node int
		c    *container
	}
	var ends []end
	for i, n := range s.nodes {
		for _, c := range n.live {
			at := c.granted + walltime(c.part)
			if at <= s.now {
				at = s.now + minute
			}
			ends = append(ends, end{at, i, c})
		}
	}
	slices.SortFunc(ends, func(a, b end) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.c.serial, b.c.serial)) })
	then := slices.Clone(now)
	for k := 0; k < len(ends); {
		at := ends[k].at
		for ; k < len(ends) && ends[k].at == at; k++ {
			r := ends[k].c.part.Resource()
			i := ends[k].node
			then[i] = room{then[i].free.Add(r), then[i].gpus + r.GPUs}
		}
		if place := s.choose(p, unit, unit, then); place != nil {
			for i, n := range place {
				r := p.Resource().Times(n)
				then[i] = room{then[i].free.Sub(r), then[i].gpus - r.GPUs}
			}
			return at, then
		}
	}
	return maxMillis, then // it waits for a node that is down: nothing is held back for it
}
