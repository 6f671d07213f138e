package scheduler

import (
	"fmt"

	rm "github.com/gohops/hops/resourcemanager"
)

// queue is a queue during a pass.
type queue struct {
	*rm.Queue
	parent   *queue
	children []*queue
	used     rm.Resource
	masters  rm.Resource // leaves only
	open     []*want     // leaves only, in order
}

// use counts r against the queue and all above it.
func (q *queue) use(r rm.Resource) {
	for ; q != nil; q = q.parent {
		q.used = q.used.Add(r)
	}
}

func (q *queue) hasOpen() bool {
	if len(q.open) > 0 {
		return true
	}
	for _, c := range q.children {
		if c.hasOpen() {
			return true
		}
	}
	return false
}

// neediest walks down from q to a leaf with open asks, at each step into the child that uses the smallest part of its
// guarantee; equal ones in the order of their names. nil: nothing is open.
func (p *pass) neediest(q *queue) *queue {
	for {
		if q.Leaf() {
			if len(q.open) == 0 {
				return nil
			}
			return q
		}
		var best *queue
		var least float64
		for _, c := range q.children {
			if !c.hasOpen() {
				continue
			}
			if r := p.ratio(c); best == nil || r < least {
				best, least = c, r
			}
		}
		if best == nil {
			return nil
		}
		q = best
	}
}

// unguaranteed puts queues without a guarantee behind all that have one.
const unguaranteed = 1e9

// ratio is the dominant share: the largest used/guaranteed over the resources that the cluster has.
func (p *pass) ratio(q *queue) float64 {
	dominant := 0.0
	for _, name := range p.total.Names() {
		if total := float64(p.total.Get(name)); total > 0 {
			dominant = max(dominant, float64(q.used.Get(name))/total)
		}
	}
	if q.AbsoluteCapacity <= 0 {
		return unguaranteed + dominant
	}
	return dominant / q.AbsoluteCapacity
}

// amount prints n of a resource for people.
func amount(name string, n int64) string {
	switch name {
	case rm.MemoryName:
		if n%rm.MiB != 0 {
			return fmt.Sprintf("%.1f MiB memory", float64(n)/rm.MiB)
		}
		return fmt.Sprintf("%d MiB memory", n/rm.MiB)
	case rm.GPUName:
		if n == 1 {
			return "1 GPU"
		}
		return fmt.Sprintf("%d GPUs", n)
	}
	if name != rm.VCoresName {
		return fmt.Sprintf("%d of %s", n, name)
	}
	if n == 1 {
		return "1 vcore"
	}
	return fmt.Sprintf("%d vcores", n)
}

// limits checks the maximum of the queue and of all above it, and the share of masters.
func (p *pass) limits(q *queue, w *want, unit int) rm.Reason {
	need := w.Resource.Times(unit)
	for at := q; at != nil; at = at.parent {
		if at.AbsoluteMax >= 1 { // the cluster is its limit, and the nodes guard that
			continue
		}
		for _, name := range need.Names() {
			n := need.Get(name)
			if n == 0 {
				continue
			}
			limit := share(at.AbsoluteMax, p.total.Get(name))
			if have := limit - at.used.Get(name); n > have {
				text := fmt.Sprintf("queue %s may use %s at most and uses %s; this needs %s more",
					at.Path, amount(name, limit), amount(name, at.used.Get(name)), amount(name, n))
				return rm.Reason{Code: rm.ReasonQueueMaximum, Text: text, Resource: name, Queue: at.Path, Need: n, Have: max(have, 0)}
			}
		}
	}
	if w.ID != "" || q.masters.IsZero() {
		return rm.Reason{}
	}
	for _, name := range need.Names() {
		if n := need.Get(name); n > 0 {
			limit := share(q.AbsoluteMax*p.share, p.total.Get(name))
			if have := limit - q.masters.Get(name); n > have {
				text := fmt.Sprintf("masters of queue %s may use %s together and use %s; this one needs %s",
					q.Path, amount(name, limit), amount(name, q.masters.Get(name)), amount(name, n))
				return rm.Reason{Code: rm.ReasonMasterShare, Text: text, Resource: name, Queue: q.Path, Need: n, Have: max(have, 0)}
			}
		}
	}
	return rm.Reason{}
}

// share is a part of an amount, rounded down, forgiving what binary fractions lose: 100 % of 8 is 8.
func share(part float64, of int64) int64 {
	return int64(part*float64(of) + 1e-6)
}
