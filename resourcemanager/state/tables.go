package state

import (
	"cmp"
	"math"
	"time"

	"github.com/tidwall/btree"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// tables are the state. Rows are never changed in place: a change sets a changed copy. Trees are copied on write, so
// that copying all tables is O(1).
type tables struct {
	applied uint64
	now     metadata.Time
	// cluster is the time of the first epoch. With the number of series of ids that are used up it is the first part of the next
	// application's id.
	cluster int64
	series  int64
	// recovered is how often the group was made anew.
	recovered int64
	epoch     uint64
	// level is the highest that a command has said: which rules count of those that came with a release (release.Forgetting).
	level int
	// lease is the longest that a node may still hold: this leader's, or that of one before it.
	lease time.Duration
	// leader is who began the epoch, and queuesHash says by which queues it grants.
	leader, queuesHash string
	// excluded are the names on the list of excluded nodes, sorted, never changed in place, and excludedBy who had it read.
	excluded   []string
	excludedBy string
	// labels are those that the cluster knows beside the ones that nodes carry, sorted, never changed in place.
	labels []rm.NodeLabel
	// queues are the cluster's; without a tree they are those of the leader's file.
	queues queuesRow
	// lastApplication, registrations, ended and lastLedger are the numbers given last.
	lastApplication int64
	registrations   uint64
	ended           uint64
	lastLedger      uint64
	// sized is the index at which a node last came, went or got another size. It is not kept in snapshots.
	sized uint64

	apps       *btree.BTreeG[*rm.Application]
	asks       *btree.BTreeG[askRow]
	launches   *btree.BTreeG[launchRow]
	containers *btree.BTreeG[*rm.Container]
	nodes      *btree.BTreeG[*rm.Node]
	events     *btree.BTreeG[Event]
	ledger     *btree.BTreeG[ledgerRow]
	// credentials of applications that have not ended, and of ended ones until they are cancelled.
	credentials *btree.BTreeG[*rm.Credential]

	// Derived, and kept here because readers need them too: applications that are not final or still have live
	// containers, the live containers of each node, and those that are held.
	live   *btree.BTreeG[rm.ApplicationID]
	byNode *btree.BTreeG[nodeRow]
	onHold *btree.BTreeG[heldRow]
	// noticed are the containers that are to go and were not ended yet, by their deadline.
	noticed *btree.BTreeG[noticedRow]
	// untold counts, by user, the ended containers of live applications whose masters have not acknowledged that; untoldCount is the sum.
	untold      *btree.BTreeG[untoldRow]
	untoldCount int
}

type askRow struct {
	app rm.ApplicationID
	rm.Ask
}

type launchRow struct {
	app    rm.ApplicationID
	number uint64
	launch *rm.Launch
}

// Event is something that happened to an application and that its master has not acknowledged. Exactly one of the others
// is set.
type Event struct {
	Application rm.ApplicationID
	Sequence    uint64
	Granted     rm.ContainerID
	Completed   rm.ContainerID
	NodeLost    rm.NodeID
	// Preempt is to leave its node.
	Preempt rm.ContainerID
	// Changed: the application's size or its members have.
	Changed bool
}

type ledgerRow struct {
	number uint64
	rm.Grant
}

// heldRow is a container that is held, in the order of their grants.
type heldRow struct {
	granted   metadata.Time
	container rm.ContainerID
}

type noticedRow struct {
	deadline  metadata.Time
	container rm.ContainerID
}

type untoldRow struct {
	user  string
	count int
}

type nodeRow struct {
	node      rm.NodeID
	container rm.ContainerID
}

func tree[T any](compare func(a, b T) int) *btree.BTreeG[T] {
	return btree.NewBTreeGOptions(func(a, b T) bool { return compare(a, b) < 0 }, btree.Options{NoLocks: true})
}

func newTables() tables {
	return tables{
		apps: tree(func(a, b *rm.Application) int { return a.ID.Compare(b.ID) }),
		asks: tree(func(a, b askRow) int { return cmp.Or(a.app.Compare(b.app), cmp.Compare(a.ID, b.ID)) }),
		launches: tree(func(a, b launchRow) int {
			return cmp.Or(a.app.Compare(b.app), cmp.Compare(a.number, b.number))
		}),
		containers: tree(func(a, b *rm.Container) int { return a.ID.Compare(b.ID) }),
		nodes:      tree(func(a, b *rm.Node) int { return cmp.Compare(a.ID, b.ID) }),
		events: tree(func(a, b Event) int {
			return cmp.Or(a.Application.Compare(b.Application), cmp.Compare(a.Sequence, b.Sequence))
		}),
		ledger: tree(func(a, b ledgerRow) int { return cmp.Compare(a.number, b.number) }),
		credentials: tree(func(a, b *rm.Credential) int {
			return cmp.Or(a.Application.Compare(b.Application), cmp.Compare(a.Number, b.Number))
		}),
		live: tree(rm.ApplicationID.Compare),
		byNode: tree(func(a, b nodeRow) int {
			return cmp.Or(cmp.Compare(a.node, b.node), a.container.Compare(b.container))
		}),
		noticed: tree(func(a, b noticedRow) int {
			return cmp.Or(cmp.Compare(a.deadline, b.deadline), a.container.Compare(b.container))
		}),
		untold: tree(func(a, b untoldRow) int { return cmp.Compare(a.user, b.user) }),
		onHold: tree(func(a, b heldRow) int {
			return cmp.Or(cmp.Compare(a.granted, b.granted), a.container.Compare(b.container))
		}),
	}
}

func (t *tables) copy() tables {
	c := *t
	c.apps, c.asks, c.launches = t.apps.Copy(), t.asks.Copy(), t.launches.Copy()
	c.containers, c.nodes = t.containers.Copy(), t.nodes.Copy()
	c.events, c.ledger = t.events.Copy(), t.ledger.Copy()
	c.credentials = t.credentials.Copy()
	c.live, c.byNode, c.onHold, c.noticed = t.live.Copy(), t.byNode.Copy(), t.onHold.Copy(), t.noticed.Copy()
	c.untold = t.untold.Copy()
	return c
}

// index is what only Apply looks up. It follows from the tables.
type index struct {
	// holders of devices: no device is in two live containers.
	holders map[string]rm.ContainerID
	// owners of devices: the node that registered each.
	owners map[string]rm.NodeID
	// keys are the idempotency keys by user.
	keys map[userKey]rm.ApplicationID
	// open are the ledger lines of live containers.
	open map[rm.ContainerID]uint64
	// uses counts the asks and live containers that need a launch.
	uses map[launchKey]int
	// over are the ended applications that hold nothing any more, ending those that still do.
	over, ending endedApps
	// endedContainers of each application are in the order of their ends; containerCount is how many there are, and gone those whose application
	// has ended too, over all.
	endedContainers map[rm.ApplicationID]*btree.Map[uint64, rm.ContainerID]
	containerCount  int
	gone            *btree.Map[uint64, rm.ContainerID]
	// held is what each user's live applications hold, total the sum; usedBytes is what each application's asks and
	// launches count for.
	held      map[string]share
	total     share
	usedBytes map[rm.ApplicationID]int64
	// placed counts live applications by queue, and by queue and user.
	placed map[placeKey]int
	// after lists who waits for whom.
	after *btree.BTreeG[afterRow]
	// moved: a queue has got its first live application, or lost the last one, since the last view.
	moved bool
}

type userKey struct{ user, key string }

type launchKey struct {
	app    rm.ApplicationID
	number uint64
}

// buildIndex derives the index, live, byNode, onHold, noticed and untold, and the sums in nodes and applications, from the other tables.
func (t *tables) buildIndex() index {
	x := index{
		holders: map[string]rm.ContainerID{}, owners: map[string]rm.NodeID{}, keys: map[userKey]rm.ApplicationID{},
		open: map[rm.ContainerID]uint64{}, uses: map[launchKey]int{},
		over: newEndedApps(), ending: newEndedApps(), endedContainers: map[rm.ApplicationID]*btree.Map[uint64, rm.ContainerID]{}, gone: new(btree.Map[uint64, rm.ContainerID]),
		held: map[string]share{}, usedBytes: map[rm.ApplicationID]int64{}, placed: map[placeKey]int{},
		after: tree(compareAfter),
	}
	fresh := newTables()
	t.live, t.byNode, t.onHold, t.noticed = fresh.live, fresh.byNode, fresh.onHold, fresh.noticed
	t.untold, t.untoldCount = fresh.untold, 0
	type sum struct {
		used      rm.Resource
		live      int
		exclusive bool
	}
	byApp, byNode := map[rm.ApplicationID]sum{}, map[rm.NodeID]sum{}
	t.containers.Scan(func(c *rm.Container) bool {
		if !c.Live() {
			a, ok := t.apps.Get(&rm.Application{ID: c.ID.Attempt.Application})
			x.addEndedContainer(c, ok && a.State.Final())
			return true
		}
		a, n := byApp[c.ID.Attempt.Application], byNode[c.Node]
		byApp[c.ID.Attempt.Application] = sum{used: a.used.Add(c.Resource), live: a.live + 1}
		byNode[c.Node] = sum{n.used.Add(c.Resource), n.live + 1, n.exclusive || c.Exclusive}
		t.byNode.Set(nodeRow{c.Node, c.ID})
		for _, u := range c.GPUs {
			x.holders[u] = c.ID
		}
		if c.Notice != nil && c.StopStatus == 0 {
			t.noticed.Set(noticedRow{c.Notice.Deadline, c.ID})
		}
		switch {
		case c.Held():
			t.onHold.Set(heldRow{c.Granted, c.ID})
		case c.Launch != 0:
			x.uses[launchKey{c.ID.Attempt.Application, c.Launch}]++
		}
		return true
	})
	for _, a := range t.apps.Items() {
		c := *a
		c.Used, c.Live = byApp[a.ID].used, byApp[a.ID].live
		t.apps.Set(&c)
		if !a.State.Final() || c.Live > 0 {
			t.live.Set(a.ID)
			x.hold(a.User, 1, 0)
			x.place(a.Queue, a.User, 1)
		}
		if a.State.Final() {
			c.Document, c.Tokens = nil, nil // a snapshot of an earlier program may have it
			if c.Live > 0 {
				x.ending.add(&c)
			} else {
				x.over.add(&c)
			}
		} else {
			x.hold(a.User, 0, documentBytes(a))
		}
		for _, d := range a.After {
			x.after.Set(afterRow{d.Application, a.ID})
		}
		if a.IdempotencyKey != "" {
			x.keys[userKey{a.User, a.IdempotencyKey}] = a.ID
		}
	}
	for _, n := range t.nodes.Items() {
		c := *n
		c.Used, c.Live, c.Exclusive = byNode[n.ID].used, byNode[n.ID].live, byNode[n.ID].exclusive
		t.nodes.Set(&c)
		if n.State != rm.NodeLost {
			for _, g := range n.GPUs {
				x.owners[g.UUID] = n.ID
			}
		}
	}
	t.asks.Scan(func(a askRow) bool {
		if a.Launch != 0 {
			x.uses[launchKey{a.app, a.Launch}]++
		}
		x.use(t.userOf(a.app), a.app, askBytes(&a.Ask))
		return true
	})
	t.launches.Scan(func(l launchRow) bool {
		x.use(t.userOf(l.app), l.app, launchBytes(l.launch))
		return true
	})
	t.events.Scan(func(e Event) bool {
		if !e.Completed.IsZero() {
			t.countUntold(t.userOf(e.Application), 1)
		}
		return true
	})
	t.ledger.Scan(func(l ledgerRow) bool {
		if l.To == 0 {
			x.open[l.Container] = l.number
		}
		return true
	})
	return x
}

// endedApps are ended applications by user, in the order of their ends.
type endedApps struct {
	of    map[string]*btree.Map[uint64, rm.ApplicationID]
	count int
}

func newEndedApps() endedApps {
	return endedApps{of: map[string]*btree.Map[uint64, rm.ApplicationID]{}}
}

// add and drop may be called again.
func (e *endedApps) add(a *rm.Application) {
	if e.of[a.User] == nil {
		e.of[a.User] = new(btree.Map[uint64, rm.ApplicationID])
	}
	if _, there := e.of[a.User].Set(a.Ended, a.ID); !there {
		e.count++
	}
}

func (e *endedApps) drop(a *rm.Application) {
	apps := e.of[a.User]
	if apps == nil {
		return
	}
	if _, there := apps.Delete(a.Ended); there {
		e.count--
	}
	if apps.Len() == 0 {
		delete(e.of, a.User)
	}
}

// oldestOf is the application that ended longest ago of the user who has most of them.
func oldestOf(sets ...*endedApps) rm.ApplicationID {
	counts := map[string]int{}
	most, of := 0, ""
	for _, e := range sets {
		for user, apps := range e.of {
			counts[user] += apps.Len()
		}
	}
	for user, n := range counts {
		if n > most || n == most && user < of {
			most, of = n, user
		}
	}
	first, id := uint64(math.MaxUint64), rm.ApplicationID{}
	for _, e := range sets {
		if apps := e.of[of]; apps != nil {
			if ended, app, ok := apps.Min(); ok && ended < first {
				first, id = ended, app
			}
		}
	}
	return id
}

// addEndedContainer and dropEndedContainer keep endedContainers and gone.
func (x *index) addEndedContainer(c *rm.Container, gone bool) {
	id := c.ID.Attempt.Application
	if x.endedContainers[id] == nil {
		x.endedContainers[id] = new(btree.Map[uint64, rm.ContainerID])
	}
	x.endedContainers[id].Set(c.Ended, c.ID)
	x.containerCount++
	if gone {
		x.gone.Set(c.Ended, c.ID)
	}
}

func (x *index) dropEndedContainer(c *rm.Container) {
	id := c.ID.Attempt.Application
	if x.endedContainers[id] == nil {
		return
	}
	if _, ok := x.endedContainers[id].Delete(c.Ended); ok {
		x.containerCount--
	}
	if x.endedContainers[id].Len() == 0 {
		delete(x.endedContainers, id)
	}
	x.gone.Delete(c.Ended)
}

// oldestEndedContainer is the one that ended longest ago of an ended application, and where there is none, of the live application that has most, among those of
// which one may be forgotten. Without one that is the zero id.
func (x *index) oldestEndedContainer(may func(rm.ContainerID) bool) rm.ContainerID {
	if _, id, ok := x.gone.Min(); ok {
		return id
	}
	most, of, oldest := 0, rm.ApplicationID{}, rm.ContainerID{}
	for app, containers := range x.endedContainers {
		if n := containers.Len(); n > most || n == most && app.Compare(of) < 0 {
			if _, id, ok := containers.Min(); ok && may(id) {
				most, of, oldest = n, app, id
			}
		}
	}
	return oldest
}

// app returns a copy of an application's row, to be changed and set; nil: there is none.
func (t *tables) app(id rm.ApplicationID) *rm.Application {
	row, ok := t.apps.Get(&rm.Application{ID: id})
	if !ok {
		return nil
	}
	c := *row
	c.Attempts = append([]rm.Attempt(nil), row.Attempts...)
	return &c
}

func (t *tables) node(id rm.NodeID) *rm.Node {
	row, ok := t.nodes.Get(&rm.Node{ID: id})
	if !ok {
		return nil
	}
	c := *row
	return &c
}

func (t *tables) container(id rm.ContainerID) *rm.Container {
	row, ok := t.containers.Get(&rm.Container{ID: id})
	if !ok {
		return nil
	}
	c := *row
	return &c
}
