package scheduler

import (
	"fmt"
	"slices"

	rm "github.com/gohops/hops/resourcemanager"
)

// why says why an ask waits, as things are now; the zero reason: nothing of it waits, or its turn has not come since something changed.
func (m *Model) why(w *want, e *Effort) rm.Reason {
	if m.cells.stale {
		m.recell()
	}
	switch {
	case w.Count <= 0:
		return rm.Reason{}
	case w.app.queue == nil:
		return rm.Reason{
			Code: rm.ReasonQueueMissing, Queue: w.app.Queue,
			Text: "queue " + w.app.Queue + " is configured no more, or holds queues instead of applications",
		}
	case w.lane == nil || !w.lane.closed:
		return rm.Reason{}
	}
	l := w.lane
	s := l.shape
	if most := m.tooMany(s); most > 0 {
		return rm.Reason{
			Code: rm.ReasonGrantTooLarge, Need: int64(s.Unit), Have: int64(most),
			Text: fmt.Sprintf("a gang of %d containers with %s each is more than can be granted at once, %d: make it smaller, with more in each",
				s.Unit, amount(rm.GPUName, int64(s.Resource.GPUs)), most),
		}
	}
	if none := m.noNodes(); !none.IsZero() {
		return none
	}
	if x := m.limit(l, w); x.by != nil {
		return x.reason()
	}
	if s.Exclusive {
		if _, x := m.seatsFor(l.queue, w.app, s, l.master); x.by != nil {
			return x.reason()
		}
	}
	if l.delay != nil {
		if seats, _ := m.seatsFor(l.queue, w.app, s, l.master); seats != nil { // others may have taken it meanwhile
			return l.delay.reason()
		}
	}
	r := s.reason(e)
	if own := l.queue.head.reservation; own != nil && own.want == w {
		r.Text += own.text()
	}
	return r
}

// sample is some nodes that are alike in what counts.
type sample struct {
	*node
	n int
}

// samples are the open nodes: one for each bucket, or each for itself where an ask names nodes.
func (m *Model) samples(s *shape) []sample {
	var out []sample
	if s.Strict || len(s.excluded) > 0 {
		for _, n := range m.nodes {
			if !n.Closed {
				out = append(out, sample{n, 1})
			}
		}
	} else {
		for _, b := range m.buckets {
			alike := true // capacities and models that have nothing free are not part of a bucket's key
			for _, n := range b.members.list {
				if alike = n.Capacity == b.node().Capacity && len(n.GPUs) == 0 && (n.places > 0) == (b.node().places > 0) && !n.Exclusive && !n.assumedWhole; !alike {
					break
				}
			}
			if alike {
				out = append(out, sample{b.node(), len(b.members.list)})
				continue
			}
			for _, n := range b.members.list {
				out = append(out, sample{n, 1})
			}
		}
	}
	return out
}

func nodesIn(list []sample) int {
	sum := 0
	for _, s := range list {
		sum += s.n
	}
	return sum
}

// noNodes is the reason when no node takes work at all; zero: some do.
func (m *Model) noNodes() rm.Reason {
	switch {
	case len(m.buckets) > 0:
		return rm.Reason{}
	case len(m.nodes) == 0:
		return rm.Reason{Code: rm.ReasonNoNodes, Text: "no node manager has registered"}
	}
	return rm.Reason{Code: rm.ReasonNoNodes, Text: fmt.Sprintf("none of %d nodes takes work: silent, unhealthy, or taken out of service", len(m.nodes))}
}

// refuse explains why one unit of a shape has no room. It narrows the nodes down in the order in which a person would and stops at the
// step that leaves none.
func (m *Model) refuse(s *shape) rm.Reason {
	if r := m.cellsOnly(s); !r.IsZero() {
		return r
	}
	left := m.samples(s)
	m.looks += len(left)
	keep := func(f func(n *node) bool) bool {
		left = slices.DeleteFunc(slices.Clone(left), func(x sample) bool { return !f(x.node) })
		return len(left) > 0
	}
	open := nodesIn(left)
	if !keep(func(n *node) bool { return s.Label == "" || slices.Contains(n.Labels, s.Label) }) {
		return rm.Reason{Code: rm.ReasonLabel, Text: fmt.Sprintf("none of %d nodes has the label %q", open, s.Label)}
	}
	labelled := nodesIn(left)
	if !keep(func(n *node) bool { return s.meets(n.class) }) {
		return rm.Reason{Code: rm.ReasonAttributes, Text: fmt.Sprintf("none of %d nodes has the attributes that it needs, %v", labelled, s.Attributes)}
	}
	if !keep(func(n *node) bool { return !s.Strict || s.insists(n) }) {
		return rm.Reason{Code: rm.ReasonLocality, Text: fmt.Sprintf("none of the nodes %s that it insists on is there", s.insisted())}
	}
	if !s.anyKind {
		if !keep(func(n *node) bool {
			return slices.ContainsFunc(n.devices, func(d device) bool { return d.island >= 0 && s.takes(d.kind) })
		}) {
			return rm.Reason{
				Code: rm.ReasonModel, Resource: rm.GPUName, Need: int64(s.Resource.GPUs),
				Text: fmt.Sprintf("none of %d nodes has a GPU %s", open, s.gpu()),
			}
		}
	}
	if none := unprofiled(s, left); !none.IsZero() {
		return none
	}
	possible := left
	if !keep(func(n *node) bool { return n.capable(s, 1) > 0 }) {
		return tooLarge(s, possible)
	}
	if !keep(func(n *node) bool { return !n.named(s.excluded) }) {
		return rm.Reason{Code: rm.ReasonExcluded, Text: "the application has excluded every node that could hold it"}
	}
	able := nodesIn(left)
	room, kept := 0, 0
	for _, x := range left {
		if fits := x.fits(s, s.Unit); fits > 0 {
			if m.passes(x.node, s) {
				room += fits * x.n
			} else {
				kept++
			}
		}
	}
	switch {
	case room >= s.Unit && len(s.constraints) > 0:
		return rm.Reason{
			Code: rm.ReasonConstraints, Need: int64(s.Unit), Have: int64(room),
			Text: fmt.Sprintf("there is room for %d of it, but not where its neighbours are as it wants: %v", room, s.Constraints),
		}
	case room >= s.Unit && s.Within != "":
		return rm.Reason{
			Code: rm.ReasonTopology, Need: int64(s.Unit), Have: int64(room),
			Text: fmt.Sprintf("a gang of %d needs room %s; there is room for %d of it, but further apart", s.Unit, within(s.Within), room),
		}
	case room > 0:
		return rm.Reason{
			Code: rm.ReasonGang, Need: int64(s.Unit), Have: int64(room),
			Text: fmt.Sprintf("a gang of %d needs room at once; there is room for %d of it", s.Unit, room),
		}
	case kept > 0:
		return m.keptFree(s, left)
	}
	if s.Exclusive && !keep((*node).empty) {
		return rm.Reason{
			Code: rm.ReasonExclusive, Need: 1,
			Text: fmt.Sprintf("needs a node for itself; on each of %d nodes that could hold it something runs", able),
		}
	}
	if !keep(func(n *node) bool { return !n.Exclusive && !n.assumedWhole }) {
		return rm.Reason{
			Code: rm.ReasonExclusive, Need: 1,
			Text: fmt.Sprintf("each of %d nodes that could hold it is somebody's alone", able),
		}
	}
	if !keep(func(n *node) bool { return n.places > 0 }) {
		return rm.Reason{
			Code: rm.ReasonContainers, Need: 1,
			Text: fmt.Sprintf("%d of %d nodes that could hold it run %d containers, as many as a node may", able, able, rm.MaxContainersPerNode),
		}
	}
	return short(s, left)
}

// gpu says which devices a shape asks for.
func (s *shape) gpu() string {
	switch {
	case s.GPUMemory == 0:
		return fmt.Sprintf("of model %q", s.model())
	case s.Model == "":
		return fmt.Sprintf("with %d MiB of memory", s.GPUMemory/rm.MiB)
	}
	return fmt.Sprintf("of model %q with %d MiB of memory", s.model(), s.GPUMemory/rm.MiB)
}

// model is the name as somebody wrote it.
func (s *shape) model() string {
	for _, l := range s.lanes {
		return l.first().Model
	}
	return s.Model
}

func within(level string) string {
	if level == "node" {
		return "on one node"
	}
	return "within one part of level " + level + " of the network"
}

func tooLarge(s *shape, nodes []sample) rm.Reason {
	best := rm.Resource{}
	for _, n := range nodes {
		best = best.Max(n.Capacity)
	}
	for _, name := range s.Resource.Names() {
		if need, have := s.Resource.Get(name), best.Get(name); need > have {
			note := ""
			if name == rm.GPUName {
				note = dividedNote(nodes)
			}
			return rm.Reason{
				Code: rm.ReasonTooLarge, Resource: name, Need: need, Have: have,
				Text: fmt.Sprintf("needs %s on one node; the largest node has %s%s", amount(name, need), amount(name, have), note),
			}
		}
	}
	what := "together on one node"
	if s.Island {
		what = "in one NVLink island"
	}
	return rm.Reason{
		Code: rm.ReasonTooLarge, Resource: rm.GPUName, Need: int64(s.Resource.GPUs),
		Text: fmt.Sprintf("no node has %v %s", s.Resource, what),
	}
}

// short names the resource that most nodes lack.
func short(s *shape, nodes []sample) rm.Reason {
	worst, lacking, all := "", 0, nodesIn(nodes)
	var most int64
	for _, name := range s.Resource.Names() {
		count, best := 0, int64(0)
		for _, n := range nodes {
			have := n.room.Get(name)
			if name == rm.GPUName {
				have = int64(n.freeGPUs(s))
			}
			best = max(best, have)
			if s.Resource.Get(name) > have {
				count += n.n
			}
		}
		if count > lacking {
			worst, lacking, most = name, count, best
		}
	}
	if lacking < all && s.Island {
		best := 0
		for _, n := range nodes {
			for i := range n.islands {
				best = max(best, n.islands[i].count(s))
			}
		}
		if best < s.Resource.GPUs {
			return rm.Reason{
				Code: rm.ReasonIsland, Resource: rm.GPUName, Need: int64(s.Resource.GPUs), Have: int64(best),
				Text: fmt.Sprintf("needs %s in one NVLink island; the best island has %d free", amount(rm.GPUName, int64(s.Resource.GPUs)), best),
			}
		}
	}
	if lacking == 0 { // only islands with enough devices lie on nodes that lack something else
		return rm.Reason{Code: rm.ReasonResources, Text: "no node has all that it needs at the same time"}
	}
	return rm.Reason{
		Code: rm.ReasonResources, Resource: worst, Need: s.Resource.Get(worst), Have: most,
		Text: fmt.Sprintf("needs %s on one node; %d of %d nodes that could hold it have less free, %s at most",
			amount(worst, s.Resource.Get(worst)), lacking, all, amount(worst, most)),
	}
}
