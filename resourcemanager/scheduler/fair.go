package scheduler

// weighEach is how many of an application's asks wait for one change of what it uses, before they are moved to their new place in a
// fair queue in the middle of a plan. Each plan begins with all in their places.
const weighEach = 16

// reweigh notes that an application of a fair queue uses more or less. Its asks move at once if they are few; what many asks cost is
// shared out among the changes.
func (m *Model) reweigh(a *app) {
	if a.unweighed++; a.unweighed*weighEach >= len(a.wants) {
		m.weigh(a)
	} else if a.unweighed == 1 {
		m.unweighed = append(m.unweighed, a)
	}
}

// weighAll brings the asks of all applications of fair queues to their places.
func (m *Model) weighAll() {
	for _, a := range m.unweighed {
		if a.unweighed > 0 {
			m.weigh(a)
		}
	}
	m.unweighed = m.unweighed[:0]
}

// weigh moves the asks of an application of a fair queue to where they belong by what it uses.
func (m *Model) weigh(a *app) {
	a.unweighed = 0
	used := a.uses()
	to := share(&used, &m.total)
	if to == a.share {
		return
	}
	var open []*lane // which are out of order until all asks have moved
	for _, w := range a.wants {
		l := w.lane
		if l == nil || w.tried {
			continue
		}
		if l.at() >= 0 {
			l.queue.lanes.remove(l)
			open = append(open, l)
		}
		l.wants.remove(w)
	}
	a.share = to
	for _, w := range a.wants {
		if w.lane != nil && !w.tried {
			w.lane.wants.push(w)
			m.weighed++
		}
	}
	for _, l := range open {
		l.queue.lanes.push(l)
	}
}
