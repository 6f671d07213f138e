// Package scheduler decides which containers are granted where. It is a pure function of a snapshot: no clock, no
// goroutine, no randomness, no I/O, so equal snapshots give equal plans. See DESIGN.md for the order and the rules.
package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// Snapshot is everything a decision may depend on. Schedule does not change it.
type Snapshot struct {
	Queues *rm.Queues
	Nodes  []Node
	// Apps are all live applications, also those that want nothing: what they use counts against their queues.
	Apps []App
	// MasterShare is how much of a queue's maximum masters may use together, 0..1; one master is always let in. 0 means
	// one half. It keeps masters from filling a queue and then waiting for each other's containers for ever.
	MasterShare float64
	// GroupBytes bounds what a group takes when it is recorded, see placementBytes; 0: it is not bounded.
	GroupBytes int
}

// Node is a machine as the scheduler sees it.
type Node struct {
	ID     rm.NodeID
	Host   string
	Rack   string
	Labels []string
	// Capacity is what the node has, GPUs included. Used is granted; of it only memory and vcores are read.
	Capacity, Used rm.Resource
	// Containers run there, of which a node takes rm.MaxContainersPerNode.
	Containers int
	GPUs       []GPU
	// Closed nodes count as part of the cluster but take nothing: silent, unhealthy, or not heard of by this leader yet.
	Closed bool
}

// GPU is a device of a node.
type GPU struct {
	UUID, Model, Island string
	Minor               int
	// Free devices are healthy and nobody's.
	Free bool
}

// App is a live application.
type App struct {
	ID        rm.ApplicationID
	Queue     string
	Priority  int
	Submitted metadata.Time
	// Used is granted to it, Masters the part of that for its master.
	Used, Masters rm.Resource
	// Asks with an empty ID are for the master.
	Asks []rm.Ask
}

// Plan is what to do now. Its groups are in the order in which they were decided.
type Plan struct {
	Groups []Group
	// Waiting names every ask that is not fully granted by this plan, with the reason.
	Waiting []Waiting
}

// Group is granted whole or not at all.
type Group struct {
	App        rm.ApplicationID
	Ask        string
	Resource   rm.Resource
	Placements []Placement
}

// Placement is one container of a group.
type Placement struct {
	Node rm.NodeID
	GPUs []string
}

// Waiting is a "no".
type Waiting struct {
	App    rm.ApplicationID
	Ask    string
	Reason rm.Reason
}

// Schedule plans one pass over all asks. Time is an argument because reservations and runtime estimates depend on it;
// the present rules do not.
func Schedule(s Snapshot, _ metadata.Time) Plan {
	p := newPass(s)
	for {
		q := p.neediest(p.root)
		if q == nil {
			break
		}
		p.serve(q)
	}
	slices.SortStableFunc(p.plan.Waiting, func(a, b Waiting) int {
		return cmp.Or(a.App.Compare(b.App), cmp.Compare(a.Ask, b.Ask))
	})
	return p.plan
}

// pass is one run of Schedule: the snapshot's amounts as they change while the plan grows. Nothing in a pass is ever
// given back, so an ask that was refused once is refused for the rest of the pass.
type pass struct {
	total rm.Resource
	nodes []*node
	root  *queue
	share float64
	plan  Plan
	// none is the reason why nothing can be granted, see noNodes.
	none rm.Reason
	// groupBytes bounds a group; nodeName and deviceName are the longest names that a placement may hold.
	groupBytes           int
	nodeName, deviceName int
}

func newPass(s Snapshot) *pass {
	p := &pass{share: s.MasterShare, groupBytes: s.GroupBytes}
	if p.share <= 0 {
		p.share = 0.5
	}
	for i := range s.Nodes {
		p.total = p.total.Add(s.Nodes[i].Capacity)
		p.nodes = append(p.nodes, newNode(&s.Nodes[i]))
		p.nodeName = max(p.nodeName, len(s.Nodes[i].ID))
		for _, g := range s.Nodes[i].GPUs {
			p.deviceName = max(p.deviceName, len(g.UUID))
		}
	}
	slices.SortFunc(p.nodes, func(a, b *node) int { return cmp.Compare(a.ID, b.ID) })
	p.none = p.noNodes()
	queues := map[*rm.Queue]*queue{}
	for _, q := range s.Queues.All {
		own := &queue{Queue: q, parent: queues[q.Parent]}
		if own.parent != nil {
			own.parent.children = append(own.parent.children, own)
		}
		queues[q] = own
	}
	p.root = queues[s.Queues.Root]
	for i := range s.Apps {
		app := &s.Apps[i]
		q := queues[s.Queues.Find(app.Queue)]
		if q == nil || !q.Leaf() {
			for _, a := range app.Asks {
				p.wait(app, a, rm.Reason{
					Code: rm.ReasonQueueMissing, Queue: app.Queue,
					Text: "queue " + app.Queue + " is configured no more, or holds queues instead of applications",
				})
			}
			continue
		}
		q.use(app.Used)
		q.masters = q.masters.Add(app.Masters)
		for _, a := range app.Asks {
			if a.Count > 0 {
				q.open = append(q.open, &want{app: app, Ask: a})
			}
		}
	}
	for _, q := range queues {
		slices.SortFunc(q.open, before)
	}
	return p
}

// want is an ask that is still open in this pass.
type want struct {
	app *App
	rm.Ask
}

// before is the order within a queue: applications by priority, then age; their master first, then by their own order.
func before(a, b *want) int {
	return cmp.Or(
		-cmp.Compare(a.app.Priority, b.app.Priority),
		cmp.Compare(a.app.Submitted, b.app.Submitted),
		a.app.ID.Compare(b.app.ID),
		cmp.Compare(a.Priority, b.Priority),
		cmp.Compare(a.ID, b.ID))
}

func (p *pass) wait(app *App, a rm.Ask, r rm.Reason) {
	p.plan.Waiting = append(p.plan.Waiting, Waiting{app.ID, a.ID, r})
}

// placementBytes is what one container of an ask takes at most where grants are recorded: the name of its node, its
// devices, its amounts and what its token is made of.
func (p *pass) placementBytes(w *want) int {
	return 64 + p.nodeName + w.Resource.GPUs*(4+p.deviceName)
}

// tooMany refuses a gang that cannot be recorded in one piece, before it takes any room.
func (p *pass) tooMany(w *want, unit int) rm.Reason {
	each := p.placementBytes(w)
	if p.groupBytes == 0 || unit == 1 || unit*each <= p.groupBytes {
		return rm.Reason{}
	}
	return rm.Reason{
		Code: rm.ReasonGrantTooLarge, Need: int64(unit), Have: int64(p.groupBytes / each),
		Text: fmt.Sprintf("a gang of %d containers with %s each is more than can be granted at once, %d: make it smaller, with more in each",
			unit, amount(rm.GPUName, int64(w.Resource.GPUs)), p.groupBytes/each),
	}
}

// serve grants one unit, a gang or a container, to the first ask of a leaf, or closes that ask.
func (p *pass) serve(q *queue) {
	w := q.open[0]
	unit := 1
	if w.Gang > 1 {
		unit = w.Gang
	}
	reason := p.tooMany(w, unit)
	if reason.IsZero() {
		reason = p.none
	}
	if reason.IsZero() {
		reason = p.limits(q, w, unit)
	}
	if reason.IsZero() {
		var placed []Placement
		if placed, reason = p.place(w, unit); reason.IsZero() {
			p.plan.Groups = append(p.plan.Groups, Group{w.app.ID, w.ID, w.Resource, placed})
			q.use(w.Resource.Times(unit))
			if w.ID == "" {
				q.masters = q.masters.Add(w.Resource)
			}
			w.Count -= unit
			w.Gang = 0
			if w.Count > 0 {
				return
			}
			q.open = q.open[1:]
			return
		}
	}
	p.wait(w.app, w.Ask, reason)
	q.open = q.open[1:]
}
