package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	rm "github.com/gohops/hops/resourcemanager"
)

// candidate is a node that can take some of the containers of an ask.
type candidate struct {
	*node
	fits int
}

// place finds room for unit containers of an ask, all or none, and takes it. Because the containers are alike and nodes
// do not depend on each other, room exists exactly if the nodes' counts add up to unit, so the choice below never has
// to be undone.
func (p *pass) place(w *want, unit int) ([]Placement, rm.Reason) {
	var near, all []candidate
	nearSum, sum := 0, 0
	for _, n := range p.nodes {
		if !n.admits(w) {
			continue
		}
		fits := n.fits(w, unit)
		if fits == 0 {
			continue
		}
		all = append(all, candidate{n, fits})
		sum += fits
		if n.named(w.Nodes) {
			near = append(near, candidate{n, fits})
			nearSum += fits
		}
	}
	if nearSum >= unit {
		return choose(w, unit, near), rm.Reason{}
	}
	if sum < unit || w.Strict {
		return nil, p.refuse(w, unit, sum)
	}
	return choose(w, unit, all), rm.Reason{}
}

// admits applies what does not depend on amounts.
func (n *node) admits(w *want) bool {
	return !n.Closed && (w.Label == "" || slices.Contains(n.Labels, w.Label)) && !n.named(w.Excluded) &&
		(!w.Strict || n.named(w.Nodes))
}

// choose takes room for n containers from candidates whose counts add up to at least n: in one island if one can hold
// them all, else on one node, else in one rack, filling the roomiest nodes first. Among several that can, the one that
// is left with least.
func choose(w *want, n int, from []candidate) []Placement {
	var out []Placement
	for n > 0 {
		if c, i := oneIsland(w, n, from); c != nil {
			for range n {
				out = append(out, c.grant(w, i))
			}
			return out
		}
		if c := oneNode(w, n, from); c != nil {
			for range n {
				out = append(out, c.grant(w, nil))
			}
			return out
		}
		from = oneRack(n, from)
		i := 0
		for j := range from {
			if from[j].fits > from[i].fits {
				i = j
			}
		}
		for range from[i].fits {
			out = append(out, from[i].grant(w, nil))
		}
		n -= from[i].fits
		from = slices.Delete(slices.Clone(from), i, i+1)
	}
	return out
}

func oneIsland(w *want, n int, from []candidate) (*node, *island) {
	k := w.Resource.GPUs
	if k == 0 {
		return nil, nil
	}
	var at *node
	var best *island
	for _, c := range from {
		if c.fits < n {
			continue
		}
		for _, i := range c.islands {
			if i.count(w.Model) < n*k {
				continue
			}
			if best == nil || cmp.Or(cmp.Compare(len(i.free), len(best.free)), c.compare(w, at)) < 0 {
				at, best = c.node, i
			}
		}
	}
	return at, best
}

func oneNode(w *want, n int, from []candidate) *node {
	var best *node
	for _, c := range from {
		if c.fits >= n && (best == nil || c.compare(w, best) < 0) {
			best = c.node
		}
	}
	return best
}

// compare says which of two nodes that fit is better for an ask; negative: n. Asks without GPUs leave machines with
// GPUs alone; otherwise the fuller node is better, so that whole nodes stay free.
func (n *node) compare(w *want, o *node) int {
	if w.Resource.GPUs == 0 {
		if c := cmp.Compare(len(n.GPUs), len(o.GPUs)); (len(n.GPUs) == 0) != (len(o.GPUs) == 0) {
			return c
		}
	}
	return cmp.Or(cmp.Compare(n.freeGPUs(""), o.freeGPUs("")), cmp.Compare(n.memory, o.memory),
		cmp.Compare(n.vcores, o.vcores), cmp.Compare(n.ID, o.ID))
}

// oneRack keeps only the nodes of the rack that holds n with least to spare, or all when no rack can.
func oneRack(n int, from []candidate) []candidate {
	sums := map[string]int{}
	for _, c := range from {
		sums[c.Rack] += c.fits
	}
	best, found := "", false
	for _, c := range from { // in the nodes' order, not the map's
		if s := sums[c.Rack]; s >= n && (!found || s < sums[best]) {
			best, found = c.Rack, true
		}
	}
	if !found {
		return from
	}
	return slices.DeleteFunc(slices.Clone(from), func(c candidate) bool { return c.Rack != best })
}

// noNodes is the reason when no node takes work at all; zero: some do.
func (p *pass) noNodes() rm.Reason {
	switch {
	case slices.ContainsFunc(p.nodes, func(n *node) bool { return !n.Closed }):
		return rm.Reason{}
	case len(p.nodes) == 0:
		return rm.Reason{Code: rm.ReasonNoNodes, Text: "no node manager has registered"}
	}
	return rm.Reason{Code: rm.ReasonNoNodes, Text: fmt.Sprintf("none of %d nodes takes work: silent, unhealthy, or taken out of service", len(p.nodes))}
}

// refuse explains why unit containers of an ask have no room. It narrows the nodes down in the order in which a person
// would and stops at the step that leaves none.
func (p *pass) refuse(w *want, unit, sum int) rm.Reason {
	left := p.nodes
	keep := func(f func(n *node) bool) bool {
		var kept []*node
		for _, n := range left {
			if f(n) {
				kept = append(kept, n)
			}
		}
		left = kept
		return len(left) > 0
	}
	keep(func(n *node) bool { return !n.Closed }) // some are left, see noNodes
	open := len(left)
	if !keep(func(n *node) bool { return w.Label == "" || slices.Contains(n.Labels, w.Label) }) {
		return rm.Reason{Code: rm.ReasonLabel, Text: fmt.Sprintf("none of %d nodes has the label %q", open, w.Label)}
	}
	if !keep(func(n *node) bool { return !w.Strict || n.named(w.Nodes) }) {
		return rm.Reason{Code: rm.ReasonLocality, Text: fmt.Sprintf("none of the nodes %q that it insists on is there", w.Nodes)}
	}
	if w.Model != "" && w.Resource.GPUs > 0 {
		if !keep(func(n *node) bool { return slices.ContainsFunc(n.GPUs, func(g GPU) bool { return model(g, w.Model) }) }) {
			return rm.Reason{
				Code: rm.ReasonModel, Resource: rm.GPUName, Need: int64(w.Resource.GPUs),
				Text: fmt.Sprintf("none of %d nodes has a GPU of model %q", open, w.Model),
			}
		}
	}
	possible := left
	if !keep(func(n *node) bool { return n.couldHold(w) }) {
		return tooLarge(w, possible)
	}
	if !keep(func(n *node) bool { return !n.named(w.Excluded) }) {
		return rm.Reason{Code: rm.ReasonExcluded, Text: "the application has excluded every node that could hold it"}
	}
	if sum > 0 {
		return rm.Reason{
			Code: rm.ReasonGang, Need: int64(unit), Have: int64(sum),
			Text: fmt.Sprintf("a gang of %d needs room at once; there is room for %d of it", unit, sum),
		}
	}
	able := len(left)
	if !keep(func(n *node) bool { return n.places > 0 }) {
		return rm.Reason{
			Code: rm.ReasonContainers, Need: 1,
			Text: fmt.Sprintf("%d of %d nodes that could hold it run %d containers, as many as a node may", able, able, rm.MaxContainersPerNode),
		}
	}
	return short(w, left)
}

func tooLarge(w *want, nodes []*node) rm.Reason {
	best := rm.Resource{}
	for _, n := range nodes {
		best = best.Max(n.Capacity)
	}
	for _, name := range w.Resource.Names() {
		if need, have := w.Resource.Get(name), best.Get(name); need > have {
			return rm.Reason{
				Code: rm.ReasonTooLarge, Resource: name, Need: need, Have: have,
				Text: fmt.Sprintf("needs %s on one node; the largest node has %s", amount(name, need), amount(name, have)),
			}
		}
	}
	what := "together on one node"
	if w.Resource.GPUs > 0 && w.Island {
		what = "in one NVLink island"
	}
	return rm.Reason{
		Code: rm.ReasonTooLarge, Resource: rm.GPUName, Need: int64(w.Resource.GPUs),
		Text: fmt.Sprintf("no node has %v %s", w.Resource, what),
	}
}

// short names the resource that most nodes lack.
func short(w *want, nodes []*node) rm.Reason {
	worst, lacking := "", 0
	var most int64
	for _, name := range w.Resource.Names() {
		count, best := 0, int64(0)
		for _, n := range nodes {
			have := rm.Resource{Memory: n.memory, VCores: n.vcores, GPUs: n.freeGPUs(w.Model), Other: n.other}.Get(name)
			best = max(best, have)
			if w.Resource.Get(name) > have {
				count++
			}
		}
		if count > lacking {
			worst, lacking, most = name, count, best
		}
	}
	need := int64(0)
	if lacking > 0 {
		need = w.Resource.Get(worst)
	}
	if lacking < len(nodes) && w.Island && w.Resource.GPUs > 0 {
		best := 0
		for _, n := range nodes {
			for _, i := range n.islands {
				best = max(best, i.count(w.Model))
			}
		}
		if best < w.Resource.GPUs {
			return rm.Reason{
				Code: rm.ReasonIsland, Resource: rm.GPUName, Need: int64(w.Resource.GPUs), Have: int64(best),
				Text: fmt.Sprintf("needs %s in one NVLink island; the best island has %d free", amount(rm.GPUName, int64(w.Resource.GPUs)), best),
			}
		}
	}
	if lacking == 0 { // only islands with enough devices lie on nodes that lack something else
		return rm.Reason{Code: rm.ReasonResources, Text: "no node has all that it needs at the same time"}
	}
	return rm.Reason{
		Code: rm.ReasonResources, Resource: worst, Need: need, Have: most,
		Text: fmt.Sprintf("needs %s on one node; %d of %d nodes that could hold it have less free, %s at most",
			amount(worst, need), lacking, len(nodes), amount(worst, most)),
	}
}
