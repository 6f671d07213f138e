package scheduler

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// berthPatience is for how long a berth is kept for a container that has ended and is not asked for again.
const berthPatience = 2 * time.Minute

// berthUntold is after how long a berth is given up of whose containers none was told to go.
const berthUntold = time.Minute

// berth is the room of a container, or a gang, that is moved: it is nobody else's from the moment when it is told to go. What room there is only
// when others have gone counts as taken already. Only the model knows of berths, as of reservations.
type berth struct {
	number int64
	app    *app
	// queue is the path of that for which it is moved.
	queue string
	// form is what it was asked for, see likeOf.
	form form
	// group is where it goes, on nodes; old where it is.
	group Group
	nodes []*node
	old   []seatOf
	// charged: so many of old have ended, and count as used by the berth. since is when the last did; 0: some are there.
	charged int
	since   metadata.Time
	// made is when it was; who is to be moved hears of it soon after, or never.
	made metadata.Time
}

// seatOf is a container on a node.
type seatOf struct {
	node      rm.NodeID
	container rm.ContainerID
}

// likeOf is a form without what differs between two asks for the same container.
func likeOf(f form) form {
	f.Unit, f.Lasts, f.Reservation, f.Pins = 0, 0, 0, nil
	f.Near, f.Wait = rm.Near{}, 0 // it may be asked for again by paths, or near other hosts
	return f
}

// moor keeps a berth.
func (m *Model) moor(b *berth) {
	m.last++
	b.number, b.made = m.last, m.now
	m.berths = append(m.berths, b)
	m.occupy(b, len(b.nodes))
	m.version++
}

// occupy takes the room of the last n containers of a berth, vacate gives that of all back.
func (m *Model) occupy(b *berth, n int) {
	m.useBerth(b, 1)
	for i := len(b.nodes) - n; i < len(b.nodes); i++ {
		at := b.nodes[i]
		m.unfile(at)
		at.assume(b.group.Resource, b.group.Placements[i].GPUs, false)
		at.refresh()
		m.file(at)
	}
}

func (m *Model) vacate(b *berth) {
	m.useBerth(b, -1)
	for i, at := range b.nodes {
		m.unfile(at)
		at.give(b.group.Resource, b.group.Placements[i].GPUs, false)
		m.file(at)
	}
}

// charge counts n more containers of a berth as used by its application.
func (b *berth) charge(m *Model, n int) {
	r := b.group.Resource.Times(n)
	b.charged += n
	b.app.assumed = b.app.assumed.Add(r)
	m.recount(b.app, r, rm.Resource{})
}

// unmoor forgets a berth; others may have its room.
func (m *Model) unmoor(b *berth) {
	for _, at := range b.nodes {
		m.touch(at)
		m.file(at)
	}
	m.vacate(b)
	b.charge(m, -b.charged)
	m.berths = slices.DeleteFunc(m.berths, func(x *berth) bool { return x == b })
	m.version++
	m.reenter(b.app)
}

// reenter brings an application's asks into the lanes of what is kept for them now.
func (m *Model) reenter(a *app) {
	if m.apps[a.ID] != a {
		return
	}
	for _, w := range a.wants {
		if w.lane != nil && !w.tried {
			waits := w.waits
			m.leave(w)
			m.enter(w)
			w.waits = waits
		}
	}
}

// followBerths notes who has ended of those that are moved, and gives up what nobody comes for.
func (m *Model) followBerths() {
	for _, b := range slices.Clone(m.berths) {
		there, told := 0, false
		for _, o := range b.old {
			n := m.nodes[o.node]
			if n == nil {
				continue
			}
			if i := slices.IndexFunc(n.Holds, func(h Hold) bool { return h.Container == o.container }); i >= 0 {
				there++
				told = told || n.Holds[i].For != "" || n.Holds[i].Stopping
			}
		}
		if more := len(b.old) - there - b.charged; more > 0 && b.since == 0 {
			b.charge(m, more)
		}
		switch {
		case slices.ContainsFunc(b.nodes, func(n *node) bool { return n.Closed || m.nodes[n.ID] != n }) || m.apps[b.app.ID] != b.app:
			m.unmoor(b)
		case there > 0 && !told && m.now-b.made > metadata.Time(berthUntold.Milliseconds()):
			m.unmoor(b) // nobody was told after all, or may stay again
		case there == 0 && b.since == 0:
			b.since = m.now
			m.reenter(b.app)
		case b.since > 0 && m.now-b.since > metadata.Time(berthPatience.Milliseconds()):
			m.unmoor(b)
		}
	}
}

// berthFor is the number of the berth that is there for an ask; 0: none.
func (m *Model) berthFor(w *want, f form) int64 {
	f = likeOf(f)
	for _, b := range m.berths {
		if b.app == w.app && b.since > 0 && b.form == f {
			return b.number
		}
	}
	return 0
}

// berthOf is that of a container that is told to go; nil: it has none.
func (m *Model) berthOf(v *victim) *berth {
	for _, b := range m.berths {
		if slices.ContainsFunc(b.old, func(o seatOf) bool { return o.container == v.parts[0].hold.Container }) {
			return b
		}
	}
	return nil
}

// land gives the first ask of a lane its berth, or, where that is not what it wants any more, any room. nil: there is none, or a limit says no,
// that of the queue answered; the berth stays then.
func (m *Model) land(b *berth, l *lane) ([]seat, *queue) {
	s := l.shape
	m.vacate(b)
	charged := b.charged
	still := m.still
	m.still = true // nobody else comes in between
	b.charge(m, -charged)
	m.still = still
	back := func() {
		m.occupy(b, len(b.nodes))
		m.still = true
		b.charge(m, charged)
		m.still = still
	}
	if x := m.limit(l, l.first()); x.by != nil {
		back()
		return nil, x.by
	}
	if n := s.Unit; n <= len(b.nodes) {
		var seats []seat
		fits := true
		for _, at := range b.nodes[:n] {
			if i := slices.IndexFunc(seats, func(x seat) bool { return x.node == at }); i >= 0 {
				seats[i].n++
			} else {
				seats = append(seats, seat{at, -1, 1})
			}
		}
		for _, at := range seats {
			fits = fits && at.node.admits(s) && at.node.fits(s, at.n) == at.n
		}
		if fits {
			b.nodes, b.group.Placements = b.nodes[n:], b.group.Placements[n:]
			m.occupy(b, len(b.nodes))
			if len(b.nodes) == 0 {
				m.berths = slices.DeleteFunc(m.berths, func(x *berth) bool { return x == b })
			} else {
				b.charge(m, len(b.nodes))
			}
			return seats, nil
		}
	}
	seats, x := m.seatsFor(l.queue, l.first().app, s, l.master)
	if seats == nil {
		if back(); x.by == nil {
			s.closed = true
		}
		return nil, x.by
	}
	for _, at := range b.nodes { // the rest is for others
		m.touch(at)
		at.before = room{}
		m.file(at)
	}
	m.berths = slices.DeleteFunc(m.berths, func(x *berth) bool { return x == b })
	return seats, nil
}
