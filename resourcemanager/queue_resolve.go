package resourcemanager

import "math"

// shares works out Capacity, Max and the absolute ones.
func (t *Queues) shares() {
	t.Root.Capacity, t.Root.Max, t.Root.AbsoluteCapacity, t.Root.AbsoluteMax = 1, 1, 1, 1
	for _, parent := range t.All {
		percents, weights := 0.0, 0.0
		for _, c := range parent.Children {
			switch whole := c.Guarantee.Whole; {
			case c.Guarantee.Vector != nil:
			case whole.Unit == UnitPercent:
				percents += whole.Value / 100
			case whole.Unit == UnitWeight:
				weights += whole.Value
			}
		}
		for _, c := range parent.Children {
			c.Max = 1
			if c.Limit.Vector == nil {
				c.Max = c.Limit.Whole.Value / 100
			}
			switch whole := c.Guarantee.Whole; {
			case c.Guarantee.Vector != nil:
			case whole.Unit == UnitPercent:
				c.Capacity = whole.Value / 100
			case whole.Unit == UnitWeight:
				c.Capacity = max(1-percents, 0) * whole.Value / weights
			}
			c.AbsoluteCapacity, c.AbsoluteMax = parent.AbsoluteCapacity*c.Capacity, parent.AbsoluteMax*c.Max
		}
	}
}

// Resolve works out what each queue is guaranteed of a cluster with total, and the most that it may use, in the order of All; rounded
// down. Of every resource by itself, the children of a queue get amounts first (all of them less when the parent has not so much),
// percentages of what these leave, and weights share the rest: YARN's order (YARN-11000). No queue is guaranteed more than its maximum,
// and the children of a queue together not more than it is.
func (t *Queues) Resolve(total Resource) (guaranteed, maximum []Resource) {
	names := total.Names()
	guaranteed, maximum = make([]Resource, len(t.All)), make([]Resource, len(t.All))
	others := make([][2][]amount, len(t.All))
	low, high := make([]float64, len(t.All)), make([]float64, len(t.All))
	whole := make([]int64, len(t.All))
	for _, name := range names {
		low[0], high[0] = float64(total.Get(name)), float64(total.Get(name))
		whole[0] = total.Get(name)
		for _, parent := range t.All {
			if len(parent.Children) > 0 {
				parent.divide(name, low, high)
				rest := whole[parent.index]
				for _, c := range parent.Children {
					whole[c.index] = min(down(low[c.index]), rest)
					rest -= whole[c.index]
				}
			}
		}
		for i := range t.All {
			set(&guaranteed[i], &others[i][0], name, whole[i])
			most := total.Get(name)
			if i > 0 {
				most = down(high[i])
			}
			set(&maximum[i], &others[i][1], name, most)
		}
	}
	for i := range others {
		guaranteed[i].Other, maximum[i].Other = amountsOf(others[i][0]), amountsOf(others[i][1])
	}
	return guaranteed, maximum
}

// down rounds, forgiving what binary fractions lose: 100 % of 8 is 8.
func down(f float64) int64 { return int64(math.Floor(f + 1e-6)) }

// set puts n of a resource into r, or into others, which are in the order of names.
func set(r *Resource, others *[]amount, name string, n int64) {
	switch name {
	case MemoryName:
		r.Memory = n
	case VCoresName:
		r.VCores = int(n)
	case GPUName:
		r.GPUs = int(n)
	default:
		*others = append(*others, amount{name, n})
	}
}

// divide gives the children of q what they get of one resource: low is guaranteed, high the most.
func (q *Queue) divide(name string, low, high []float64) {
	have, most := low[q.index], high[q.index]
	amounts, percents, weights := 0.0, 0.0, 0.0
	for _, c := range q.Children {
		switch g, _ := c.Guarantee.Of(name); g.Unit {
		case UnitAmount:
			amounts += float64(g.Amount)
		case UnitPercent:
			percents += g.Value
		case UnitWeight:
			weights += g.Value
		}
	}
	scale := 1.0
	if amounts > have {
		scale = have / amounts
	}
	rest := max(have-amounts*scale, 0)
	percent := rest / max(percents, 100)
	last := max(rest-percent*percents, 0)
	for _, c := range q.Children {
		g, _ := c.Guarantee.Of(name)
		switch g.Unit {
		case UnitAmount:
			low[c.index] = float64(g.Amount) * scale
		case UnitPercent:
			low[c.index] = percent * g.Value
		case UnitWeight:
			low[c.index] = last * g.Value / weights
		}
		high[c.index] = most
		if l, limited := c.Limit.Of(name); limited {
			if l.Unit == UnitPercent {
				high[c.index] = most * l.Value / 100
			} else {
				high[c.index] = min(most, float64(l.Amount))
			}
		}
		low[c.index] = min(low[c.index], high[c.index])
	}
}
