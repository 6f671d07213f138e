package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// DefaultNearWait is how long a container waits for a host that it is wanted near to, and then for a rack, while there is room elsewhere: delay
// scheduling (Zaharia et al., EuroSys 2010). YARN counts heartbeats of nodes instead (node-locality-delay); Spark's locality.wait is 3 s, too.
const DefaultNearWait = 3 * time.Second

// maxRackNodes is how many nodes of racks are looked at for one unit before all others are.
const maxRackNodes = 1_000

// distance is how far a node is from where something is wanted.
type distance int8

const (
	onHost distance = iota
	inRack
	elsewhere
)

// places are where a shape is wanted.
type places struct {
	hosts   []string
	weights map[string]int
	racks   []string
	in      map[string]bool // racks
}

func placesOf(n rm.Near) *places {
	if n.IsZero() {
		return nil
	}
	w := n.Words()
	p := &places{weights: make(map[string]int, len(w.Hosts)), racks: w.Racks, in: make(map[string]bool, len(w.Racks))}
	for _, h := range w.Hosts {
		p.hosts = append(p.hosts, h.Host)
		p.weights[h.Host] = h.Weight
	}
	for _, r := range w.Racks {
		p.in[r] = true
	}
	return p
}

// weight is how much of what is read a node has; 0: nothing.
func (p *places) weight(n *node) int {
	if p == nil {
		return 0
	}
	return max(p.weights[n.Host], p.weights[string(n.ID)])
}

// prefer compares two nodes by weight; negative: a is nearer.
func (p *places) prefer(a, b *node) int {
	if p == nil {
		return 0
	}
	return -cmp.Compare(p.weight(a), p.weight(b))
}

func (p *places) distance(n *node) distance {
	switch {
	case p == nil:
		return elsewhere
	case p.weight(n) > 0:
		return onHost
	}
	if len(p.in) > 0 {
		for path := n.Rack; len(path) > 1; path = path[:max(0, strings.LastIndexByte(path, '/'))] {
			if p.in[path] {
				return inRack
			}
		}
	}
	return elsewhere
}

// farthest is the distance of the farthest seat.
func (p *places) farthest(seats []seat) distance {
	d := onHost
	for _, x := range seats {
		d = max(d, p.distance(x.node))
	}
	return d
}

// insists reports whether a shape that is strict may have a node.
func (s *shape) insists(n *node) bool {
	return n.named(s.nodes) || s.places.distance(n) < elsewhere
}

// insisted names the nodes that a strict shape insists on.
func (s *shape) insisted() string {
	names := slices.Clone(s.nodes)
	if s.places != nil {
		names = slices.Concat(names, s.places.hosts, s.places.racks)
	}
	text := fmt.Sprintf("%q", names[:min(len(names), maxInsisted)])
	if more := len(names) - maxInsisted; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// stand files a node under its rack and each part of the network above it, or moves it there from another one; an empty path is none.
func (m *Model) stand(n *node, from, to string) {
	if from == to {
		return
	}
	byID := func(x *node, id rm.NodeID) int { return cmp.Compare(x.ID, id) }
	for path := from; len(path) > 1; path = path[:max(0, strings.LastIndexByte(path, '/'))] {
		list := m.racks[path]
		if i, ok := slices.BinarySearchFunc(list, n.ID, byID); ok {
			list = slices.Delete(list, i, i+1)
		}
		if m.racks[path] = list; len(list) == 0 {
			delete(m.racks, path)
		}
	}
	for path := to; len(path) > 1; path = path[:max(0, strings.LastIndexByte(path, '/'))] {
		if i, ok := slices.BinarySearchFunc(m.racks[path], n.ID, byID); !ok {
			m.racks[path] = slices.Insert(m.racks[path], i, n)
		}
	}
}

// tier is the candidates among some nodes, and how many containers they take together.
type tier struct {
	list []candidate
	sum  int
}

func (m *Model) tier(s *shape, nodes []*node) tier {
	m.looks += len(nodes)
	var t tier
	for _, n := range nodes {
		if c := m.candidate(s, n); c.fits > 0 {
			t.list = append(t.list, c)
			t.sum += c.fits
		}
	}
	if s.Pins != nil && s.Unit > 1 {
		t.list, t.sum = m.sparing(s, t.list)
	}
	slices.SortFunc(t.list, s.roomier)
	return t
}

// roomier is the order in which nodes are filled: the roomiest first, of equal ones the nearest.
func (s *shape) roomier(a, b candidate) int {
	return cmp.Or(-cmp.Compare(a.fits, b.fits), s.places.prefer(a.node, b.node), cmp.Compare(a.ID, b.ID))
}

// tiers are the nodes that a shape prefers to all others, the nearest first, each with those before it; for a strict shape the last is all that it
// may have.
func (m *Model) tiers(s *shape) []tier {
	var out []tier
	all := m.namedNodes(s.nodes)
	if len(s.nodes) > 0 {
		out = append(out, m.tier(s, all))
	}
	if s.places == nil {
		return out
	}
	add := func(more []*node) {
		all = append(all, more...)
		slices.SortFunc(all, func(a, b *node) int { return cmp.Compare(a.ID, b.ID) })
		all = slices.Compact(all)
		out = append(out, m.tier(s, all))
	}
	if len(s.places.hosts) > 0 {
		add(m.namedNodes(s.places.hosts))
	}
	if len(s.places.racks) > 0 {
		if near := m.rackNodes(s.places.racks, !s.Strict); len(near) < len(m.nodes) || s.Strict { // otherwise it is anywhere
			add(near)
		}
	}
	return out
}

// rackNodes are the nodes below some racks, in the order of racks and ids: if few, no more than maxRackNodes.
func (m *Model) rackNodes(racks []string, few bool) []*node {
	var out []*node
	for _, r := range racks {
		list := m.racks[r]
		if left := maxRackNodes - len(out); few && len(list) > left {
			return append(out, list[:left]...)
		}
		out = append(out, list...)
	}
	return out
}

// findNear is find for a shape that prefers nodes. Where GPUs are joined by NVLink matters more than where data lies: what takes more than one
// GPU is placed in one island wherever there is one, else on one node, and of those near its data.
func (m *Model) findNear(s *shape) (seats []seat, ok bool) {
	tiers := m.tiers(s)
	tagged := s.Unit > 1 && len(s.constraints) > 0
	if s.places != nil && !s.Strict && !tagged && s.Unit*s.Resource.GPUs > 1 {
		n, island := m.best(s, s.Unit)
		for _, joined := range []bool{true, false} {
			for _, t := range tiers {
				if one, ok := oneNode(s, s.Unit, t.list); ok && (one.island >= 0 || !joined) {
					return []seat{one}, true
				}
			}
			if n != nil && (island >= 0 || !joined) {
				return []seat{{n, island, s.Unit}}, true
			}
		}
	}
	for _, t := range tiers {
		if t.sum < s.Unit {
			continue
		}
		arrange := m.arrange
		if tagged {
			arrange = m.arrangeTagged
		}
		if seats, ok := arrange(s, t.list); ok {
			return seats, true
		}
	}
	return nil, false
}

// pace is since when the asks of a lane leave room to others that is too far from their data, if they are counting. It ends when all of the cluster
// is in use, and not with each container that finds room near its data: otherwise a few of these would hold back all the rest (SPARK-18886).
type pace struct {
	counting bool
	since    metadata.Time
}

// delay is what a lane waits for in spite of the room that there is: room at a distance, until a time, after which the next distance will do,
// or any; which is so at last at the end.
type delay struct {
	position // in Model.delays
	lane     *lane
	stage    distance
	until    metadata.Time
	last     metadata.Time
}

// nearWait is how long the containers of an ask wait at each stage; 0: they do not. The members of a gang never do: half of one that
// waits for the other half keeps what it has from everybody.
func (m *Model) nearWait(a *rm.Ask) time.Duration {
	if a.Near.IsZero() || a.Gang > 1 {
		return 0
	}
	switch w := a.Near.Wait(); {
	case w == rm.NoWait:
		return 0
	case w > 0:
		return w
	}
	return max(m.config.NearWait, 0)
}

// helps reports whether a stage is worth its wait: some node there could take a container of the shape, if it were empty.
func (m *Model) helps(s *shape, at distance) bool {
	var nodes []*node
	if at == onHost {
		nodes = m.namedNodes(s.places.hosts)
	} else {
		nodes = m.rackNodes(s.places.racks, true)
	}
	return slices.ContainsFunc(nodes, func(n *node) bool { return n.admits(s) && n.capable(s, 1) > 0 })
}

// declines reports whether a lane leaves the room that there is to others, because it is too far away yet.
func (m *Model) declines(l *lane, seats []seat) bool {
	s := l.shape
	l.delay = nil
	if s.Wait == 0 {
		return false
	}
	far := s.places.farthest(seats)
	wait, since := metadata.Time(s.Wait.Milliseconds()), m.now
	if l.counting {
		since = min(l.since, m.now) // clocks may be set back
	}
	for at, until := onHost, since; at < far; at++ {
		if !m.helps(s, at) {
			continue
		}
		if until += wait; m.now < until {
			l.counting, l.since = true, since
			l.delay = &delay{lane: l, stage: at, until: until, last: until}
			for at++; at < far; at++ {
				if m.helps(s, at) {
					l.delay.last += wait
				}
			}
			return true
		}
	}
	return false
}

func (m *Model) unhold(l *lane) {
	if l.delay != nil && l.delay.at() >= 0 {
		m.delays.remove(l.delay)
	}
	l.delay = nil
}

// undelay opens the lanes that have waited for long enough, those for which a node has grown that is near enough, and all when there are
// others than before: the nodes that one waits for may have gone.
func (m *Model) undelay(grown []*node, others bool) {
	for len(m.delays.list) > 0 {
		first := m.delays.list[0]
		if first.until > m.now && first.lane.since <= m.now {
			break
		}
		m.reopen(first.lane)
	}
	if len(grown) == 0 && !others {
		return
	}
	var open []*lane
	for _, d := range m.delays.list {
		l := d.lane
		if others || len(grown) > 100 || slices.ContainsFunc(grown, func(n *node) bool {
			return l.shape.places.distance(n) <= d.stage && n.admits(l.shape) && n.fits(l.shape, 1) > 0
		}) {
			open = append(open, l)
		}
	}
	for _, l := range open {
		m.reopen(l)
	}
}

// maxInsisted is how many names a reason has at most.
const maxInsisted = 20

// maxNamed is how many hosts or racks a reason names.
const maxNamed = 3

// reason says it in words.
func (d *delay) reason() rm.Reason {
	names, what := d.lane.shape.places.hosts, "host"
	if d.stage > onHost {
		names, what = d.lane.shape.places.racks, "rack"
	}
	list := what + " " + names[0]
	if len(names) > 1 {
		list = what + "s " + strings.Join(names[:min(len(names), maxNamed)], ", ")
	}
	if more := len(names) - maxNamed; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return rm.Reason{Code: rm.ReasonLocality, Text: fmt.Sprintf("waits for room on %s, where its data is, until %s; there is room farther away",
		list, d.until.Time().UTC().Format(time.RFC3339))}
}
