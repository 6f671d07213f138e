package scheduler

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// Config is what a model knows besides nodes and applications. The zero values of all but Queues are defaults.
type Config struct {
	Queues *rm.Queues
	// MasterShare is how much of a queue's maximum masters may use together, 0..1, where the queue does not say; one master is always
	// let in. 0 means one half. It keeps masters from filling a queue and then waiting for each other's containers for ever.
	MasterShare float64
	// GroupBytes bounds what a group takes when it is recorded, see placementBytes; 0: it is not bounded.
	GroupBytes int
	// Patience is how many containers, each wanting less, may pass the first ask of a queue that finds no room, or for how long, before
	// room is kept for it. 0: DefaultPatience, DefaultWait. Negative: for ever.
	Patience int
	Wait     time.Duration
	// NearWait is how long containers wait for room near their data, see rm.NearWords.Wait, where their ask does not say. 0: DefaultNearWait;
	// negative: not at all.
	NearWait time.Duration
	Preempt  Preemption
}

// App is a live application.
type App struct {
	ID        rm.ApplicationID
	Queue     string
	User      string
	Priority  int
	Submitted metadata.Time
	// Used is granted to it, Masters the part of that for its master.
	Used, Masters rm.Resource
	// Ends is when all that it has ends at the latest, Lasts how long it may run once it has begun; 0: nobody knows.
	Ends  metadata.Time
	Lasts time.Duration
	// Asks with an empty ID are for the master.
	Asks []rm.Ask
}

// app is an application of the model.
type app struct {
	App
	// queue is nil when the application's is configured no more.
	queue *queue
	wants []*want // in the order of Asks
	// assumed is granted by plans that are not settled, assumedMasters the part of that for its master.
	assumed, assumedMasters rm.Resource
	// share is what it used of the cluster when it was weighed last, in fair queues; unweighed counts the changes since.
	share     float64
	unweighed int
	// counted: it is among the running ones of its queue.
	counted bool
}

// Model is a cluster as the scheduler sees it: nodes, queues and applications, with indexes by which a plan costs as much as it grants
// and not as much as there is. It is told of changes by Set and Remove, and equals one that was made from the whole. It has no clock,
// no goroutine and no randomness, and is not safe for concurrent use.
type Model struct {
	config Config
	total  rm.Resource
	nodes  map[rm.NodeID]*node
	names  map[string][]*node // by host and by id
	racks  map[string][]*node // by each part of the path of their rack, in the order of ids
	apps   map[rm.ApplicationID]*app
	// leavers are the nodes with containers that are about to go, stopping is since when nodes were seen to be told to end them, see noteEnding.
	leavers  map[rm.NodeID]*node
	stopping map[rm.ContainerID]metadata.Time

	queues     []*queue // as in rm.Queues.All
	byQueue    map[*rm.Queue]*queue
	root       *queue
	unresolved bool

	kinds   []kind
	classes map[string]*class
	buckets map[string]*bucket
	lists   []list
	shapes  map[form]*shape
	tags    map[rm.ApplicationID]*tagged
	// tagVersions is the last of tagged.version.
	tagVersions uint64
	scratch     []byte

	// changed are the nodes that something other than a plan changed since the last plan.
	changed []*node
	// version counts changes.
	version uint64
	// looks counts the looks at nodes one by one, weighed the asks that were moved because their application uses more or less.
	looks, weighed int
	// unweighed are applications of fair queues that use more or less than when they were weighed, weighedBy the cluster as it was then.
	unweighed []*app
	weighedBy rm.Resource
	// nodeNames and deviceNames count names by their length: the longest says how much a placement takes.
	nodeNames, deviceNames lengths
	// deviceCounts are the numbers of devices of nodes.
	deviceCounts lengths

	assumed map[int64]*grant
	last    int64 // number of a group given last
	journal []int64
	trials  int
	// still: what happens now is taken back before anybody looks, so nothing opens by it.
	still bool

	now          metadata.Time
	reservations []*reservation
	// resumed: Preempt goes on with what an earlier leader began; until then resume does.
	resumed bool
	// waitingHeads are the leaves with a head.
	waitingHeads []*queue
	// delays are the lanes that wait for room near their data, the one that waits the shortest first.
	delays heap[*delay]
	// berths are kept for those that are moved, mended is when somebody was looked for last who could be.
	berths []*berth
	mended metadata.Time
	cells  cellBook
}

// NewModel returns a cluster of no nodes and no applications.
func NewModel(c Config) *Model {
	m := &Model{
		nodes: map[rm.NodeID]*node{}, names: map[string][]*node{}, racks: map[string][]*node{}, apps: map[rm.ApplicationID]*app{}, classes: map[string]*class{},
		buckets: map[string]*bucket{}, shapes: map[form]*shape{}, tags: map[rm.ApplicationID]*tagged{}, assumed: map[int64]*grant{}, leavers: map[rm.NodeID]*node{},
	}
	m.delays.less = func(a, b *delay) bool { return a.until < b.until }
	m.Configure(c)
	return m
}

// Configure replaces the configuration. A queue of the same path and kind stays what it is, with its applications, its asks and what is
// kept for them; where only queues were made or went, it costs a look at every queue and application.
func (m *Model) Configure(c Config) {
	if c.MasterShare <= 0 {
		c.MasterShare = 0.5
	}
	if c.Patience == 0 {
		c.Patience = DefaultPatience
	}
	if c.Wait == 0 {
		c.Wait = DefaultWait
	}
	if c.NearWait == 0 {
		c.NearWait = DefaultNearWait
	}
	was := m.config
	was.Queues = c.Queues
	if m.root != nil && (was != c || !sameCells(m.config.Queues, c.Queues)) { // what was refused may not be any more
		for _, q := range m.queues {
			q.replaced = true
		}
	}
	for _, q := range m.queues {
		if to := c.Queues.Find(q.Path); to == nil || to.Path != q.Path || !q.becomes(to) || c.Queues.CellGPUs > 0 && q.PreemptionDisabled != to.PreemptionDisabled {
			q.replaced = true
		}
	}
	var moved []*app
	for _, a := range m.apps {
		to := c.Queues.Find(a.Queue)
		if to != nil && !to.Leaf() {
			to = nil
		}
		if a.queue != nil && to != nil && !a.queue.replaced && a.queue.Path == to.Path {
			continue
		}
		moved = append(moved, a)
	}
	slices.SortFunc(moved, func(a, b *app) int { return a.ID.Compare(b.ID) })
	for _, a := range moved {
		m.remove(a)
	}
	m.config = c
	m.setQueues(c.Queues)
	for _, a := range moved {
		m.add(a)
	}
	m.version++
}

// lengths counts names, or lists, by length.
type lengths []int

func (l *lengths) add(length, n int) {
	for len(*l) <= length {
		*l = append(*l, 0)
	}
	(*l)[length] += n
}

func (l lengths) longest() int {
	for i := len(l) - 1; i > 0; i-- {
		if l[i] > 0 {
			return i
		}
	}
	return 0
}

func (m *Model) nameNode(n *node, sign int) {
	m.nodeNames.add(len(n.ID), sign)
	m.deviceCounts.add(len(n.GPUs), sign)
	for i := range n.GPUs {
		m.deviceNames.add(len(n.GPUs[i].UUID), sign)
	}
	for _, name := range slices.Compact([]string{n.Host, string(n.ID)}) {
		if sign > 0 {
			m.names[name] = append(m.names[name], n)
		} else if rest := slices.DeleteFunc(m.names[name], func(x *node) bool { return x == n }); len(rest) > 0 {
			m.names[name] = rest
		} else {
			delete(m.names, name)
		}
	}
}

// touch notes that something other than a plan is about to change a node, and takes it out of its bucket.
func (m *Model) touch(n *node) {
	if !n.changed && !m.still {
		n.changed, n.before = true, n.roomNow()
		if n.Closed {
			n.before = room{}
		}
		m.changed = append(m.changed, n)
	}
	m.unfile(n)
	m.version++
}

// SetNode says what a node is, has and holds. The model keeps the slices.
func (m *Model) SetNode(to Node) {
	n := m.nodes[to.ID]
	if n == nil {
		n = &node{Node: Node{ID: to.ID, Host: to.Host, Closed: true}}
		m.nodes[to.ID] = n
		m.nameNode(n, 1)
		m.classify(n)
	}
	m.touch(n)
	if n.Capacity != to.Capacity {
		m.total = m.total.Sub(n.Capacity).Add(to.Capacity)
		m.unresolved = true
	}
	rebuild := len(n.GPUs) != len(to.GPUs)
	for i := 0; i < len(to.GPUs) && !rebuild; i++ {
		a, b := n.GPUs[i], to.GPUs[i]
		b.Free = a.Free
		rebuild = a != b
	}
	if rebuild || n.Host != to.Host {
		m.nameNode(n, -1)
		n.Host, n.GPUs = to.Host, to.GPUs
		m.nameNode(n, 1)
		n.build(m)
		n.before.free, n.another = 0, true
	}
	if relabelled := !slices.Equal(n.Labels, to.Labels) || n.Attributes != to.Attributes; relabelled || n.Closed != to.Closed || n.Rack != to.Rack || n.Capacity != to.Capacity {
		n.before, n.another = room{}, true // it counts as one that was not there before
	}
	m.retag(n, &to)
	m.stand(n, n.Rack, to.Rack)
	m.letGo(n)
	n.Node = to
	m.hold(n)
	if slices.ContainsFunc(n.Holds, func(h Hold) bool { return h.Stopping || h.For != "" }) {
		m.leavers[n.ID] = n
	} else {
		delete(m.leavers, n.ID)
	}
	m.classify(n)
	n.refresh()
	m.file(n)
}

// RemoveNode forgets a node.
func (m *Model) RemoveNode(id rm.NodeID) {
	n := m.nodes[id]
	if n == nil {
		return
	}
	m.touch(n)
	m.retag(n, &Node{})
	for _, g := range m.assumed {
		for _, at := range g.nodes {
			if at == n {
				m.tag(g.app.ID, n, g.tags, -1)
			}
		}
	}
	m.letGo(n)
	n.cell = false
	n.Closed, n.another = true, true
	m.total = m.total.Sub(n.Capacity)
	m.unresolved = true
	m.nameNode(n, -1)
	m.stand(n, n.Rack, "")
	delete(m.nodes, id)
	delete(m.leavers, id)
}

// SetApp says what an application has and wants. The model keeps the slices.
func (m *Model) SetApp(to App) {
	m.version++
	a := m.apps[to.ID]
	if a == nil {
		a = &app{App: to}
		m.apps[to.ID] = a
		m.add(a)
		return
	}
	if a.Queue != to.Queue || a.User != to.User || a.Lasts != to.Lasts || a.Priority != to.Priority || a.Submitted != to.Submitted {
		m.remove(a)
		a.App = to
		m.add(a)
		return
	}
	if a.Used != to.Used || a.Masters != to.Masters {
		old, masters := a.Used, a.Masters
		a.Used, a.Masters = to.Used, to.Masters
		m.recount(a, to.Used.Sub(old), to.Masters.Sub(masters))
	}
	a.Ends = to.Ends
	m.setAsks(a, to.Asks)
}

// RemoveApp forgets an application.
func (m *Model) RemoveApp(id rm.ApplicationID) {
	a := m.apps[id]
	if a == nil {
		return
	}
	m.version++
	m.remove(a)
	delete(m.apps, id)
}

// uses is what an application has, with what is assumed.
func (a *app) uses() rm.Resource { return a.Used.Add(a.assumed) }

// add places an application in its queue, remove takes it out.
func (m *Model) add(a *app) {
	a.queue = m.byQueue[m.config.Queues.Find(a.Queue)]
	if a.queue != nil && !a.queue.Leaf() {
		a.queue = nil
	}
	m.moveCells(a)
	m.recount(a, a.uses(), a.Masters.Add(a.assumedMasters))
	asks := a.Asks
	a.Asks = nil
	m.setAsks(a, asks)
}

func (m *Model) remove(a *app) {
	m.moveCells(a)
	asks := a.Asks
	m.setAsks(a, nil)
	a.Asks = asks
	m.recount(a, rm.Resource{}.Sub(a.uses()), rm.Resource{}.Sub(a.Masters).Sub(a.assumedMasters))
	if a.counted {
		m.count(a, -1)
	}
	a.queue, a.share, a.unweighed = nil, 0, 0
}

// recount follows a change of what an application has: more, of which masters.
func (m *Model) recount(a *app, more, masters rm.Resource) {
	q := a.queue
	if q == nil {
		return
	}
	sign := 1
	if !(rm.Resource{}).FitsIn(more) { // some is less
		sign, more = -1, rm.Resource{}.Sub(more)
	}
	m.use(q, more, sign)
	if !masters.IsZero() {
		q.masters = q.masters.Add(masters)
		m.unblock(q)
	}
	if q.limitsUsers() {
		u := q.userOf(a.User)
		if sign < 0 {
			u.used = u.used.Sub(more)
			m.unblock(q)
		} else {
			u.used = u.used.Add(more)
		}
	}
	if running := !a.uses().IsZero(); running != a.counted {
		if running {
			m.count(a, 1)
		} else {
			m.count(a, -1)
		}
	}
	if q.Ordering == rm.OrderFair {
		m.reweigh(a)
	}
}

// count follows the number of applications that run in a queue.
func (m *Model) count(a *app, n int) {
	a.counted = n > 0
	for q := a.queue; q != nil; q = q.parent {
		q.running += n
		if n < 0 {
			m.unblock(q)
		}
	}
	if a.queue.limitsUsers() {
		a.queue.userOf(a.User).running += n
	}
}

// setAsks replaces what an application wants.
func (m *Model) setAsks(a *app, asks []rm.Ask) {
	old := a.wants
	if len(asks) == len(old) {
		same := true
		for i := range asks {
			same = same && sameAsk(&asks[i], &old[i].Ask)
		}
		if same {
			return
		}
	}
	a.Asks = asks
	byID := make(map[string]*want, len(old))
	for _, w := range old {
		byID[w.ID] = w
	}
	a.wants = make([]*want, 0, len(asks))
	for i := range asks {
		w := byID[asks[i].ID]
		delete(byID, asks[i].ID)
		if w == nil {
			w = &want{app: a, Ask: asks[i]}
			for _, g := range m.assumed { // of one that was withdrawn and made again
				if g.app == a && g.group.Ask == w.ID {
					w.assumed += len(g.group.Placements)
				}
			}
			m.enter(w)
		} else if !sameAsk(&w.Ask, &asks[i]) {
			m.leave(w)
			if m.formOf(a.ID, &w.Ask, w.Gang) != m.formOf(a.ID, &asks[i], asks[i].Gang) { // what is kept for it is not what it wants
				m.release(w)
				w.pace = pace{}
			}
			w.Ask = asks[i]
			m.enter(w)
		}
		a.wants = append(a.wants, w)
	}
	for _, w := range old {
		if byID[w.ID] == w {
			m.leave(w)
			m.release(w)
		}
	}
}

// sameAsk reports whether two asks are one to the scheduler.
func sameAsk(a, b *rm.Ask) bool {
	return a.ID == b.ID && a.Priority == b.Priority && a.Resource == b.Resource && a.Count == b.Count && a.Gang == b.Gang && a.Model == b.Model &&
		a.Island == b.Island && a.Strict == b.Strict && a.Label == b.Label && a.GPUMemory == b.GPUMemory &&
		a.Within == b.Within && a.Placement == b.Placement && a.Near == b.Near && a.Walltime == b.Walltime && slices.Equal(a.Nodes, b.Nodes) && slices.Equal(a.Excluded, b.Excluded)
}

// grant is a group whose commit is in flight.
type grant struct {
	group Group
	app   *app
	nodes []*node // of the placements
	tags  rm.Tags
	// tried: it is no ask of the application's own.
	tried bool
}

func (g *grant) find() *want {
	if g.tried {
		return nil
	}
	if i := slices.IndexFunc(g.app.wants, func(w *want) bool { return w.ID == g.group.Ask }); i >= 0 {
		return g.app.wants[i]
	}
	return nil
}

// assume takes the room of a group, and counts it against its application and queue.
func (m *Model) assume(w *want, s *shape, seats []seat) *grant {
	m.last++
	g := &grant{app: w.app, tags: w.Placement.Tags, tried: w.tried, group: Group{Number: m.last, App: w.app.ID, Ask: w.ID, Resource: s.Resource}}
	g.group.Placements = make([]Placement, 0, s.Unit)
	for _, at := range seats {
		m.unfile(at.node)
		for range at.n {
			p := Placement{Node: at.node.ID, GPUs: at.node.choose(s, at.island)}
			if s.Exclusive {
				p.Whole = new(at.node.whole())
			}
			at.node.assume(g.group.Gets(p), p.GPUs, s.Exclusive)
			g.group.Placements = append(g.group.Placements, p)
			g.nodes = append(g.nodes, at.node)
		}
		m.file(at.node)
	}
	m.useGrant(g, 1)
	m.leave(w)
	w.assumed += s.Unit
	m.charge(g, 1)
	m.enter(w)
	m.tagGrant(g, 1)
	m.assumed[g.group.Number] = g
	if m.trials > 0 {
		m.journal = append(m.journal, g.group.Number)
	}
	m.version++
	return g
}

// charge counts a group against its application and queue, or takes it off again.
func (m *Model) charge(g *grant, sign int) {
	r := g.group.total().Times(sign)
	g.app.assumed = g.app.assumed.Add(r)
	masters := rm.Resource{}
	if g.group.Ask == "" {
		masters = r
		g.app.assumedMasters = g.app.assumedMasters.Add(r)
	}
	m.recount(g.app, r, masters)
}

// Settle takes back what a plan assumed: the groups were recorded, and nodes and applications say so by now, or they were refused.
func (m *Model) Settle(groups ...int64) {
	for _, number := range groups {
		g := m.assumed[number]
		if g == nil {
			continue
		}
		delete(m.assumed, number)
		for i, p := range g.group.Placements {
			n := g.nodes[i]
			m.touch(n)
			n.give(g.group.Gets(p), p.GPUs, p.Whole != nil)
			m.file(n)
		}
		m.useGrant(g, -1)
		w := g.find()
		if w != nil {
			m.leave(w)
			w.assumed -= len(g.group.Placements)
		}
		m.charge(g, -1)
		m.tagGrant(g, -1)
		if w != nil {
			m.enter(w)
		}
	}
}

// Mark begins a trial: Undo takes back all that was planned since.
func (m *Model) Mark() int {
	m.trials++
	return len(m.journal)
}

// Undo ends the trial that began with a mark.
func (m *Model) Undo(mark int) {
	m.trials--
	for len(m.journal) > mark {
		m.Settle(m.journal[len(m.journal)-1])
		m.journal = m.journal[:len(m.journal)-1]
	}
}

// sortedApps are the applications in the order of ids.
func (m *Model) sortedApps() []*app {
	out := make([]*app, 0, len(m.apps))
	for _, a := range m.apps {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *app) int { return a.ID.Compare(b.ID) })
	return out
}
