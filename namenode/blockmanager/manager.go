package blockmanager

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/placement"
)

// Config tunes a Manager. The zero value is the default.
type Config struct {
	// DeadAfter is the silence after which a node's replicas are lost and copied again. Default 90 s. More makes short
	// outages cheaper and losses last longer.
	DeadAfter time.Duration
	// StaleAfter is the silence after which a node is avoided by writers and asked last by readers. Default 10 s.
	StaleAfter time.Duration
	// MinReplication is how many finalized replicas make a block durable enough for its file to be closed. Default 1.
	MinReplication int
	// MaintenanceReplication is how many replicas a block must have elsewhere while nodes that hold it are in maintenance
	// (dfs.namenode.maintenance.replication.min). Default 1; see NoMaintenanceReplication.
	MaintenanceReplication int
	// DefaultReplication is what new files get. A node is let go when its blocks have that many replicas elsewhere, even if
	// more are wanted: the rest is copied afterwards. Default 3.
	DefaultReplication int
	// Streams limits the copies under way from one node, and to one node. Default 4. Of blocks that only lack replicas because
	// nodes are decommissioned or in maintenance half as many are copied from a node at a time.
	Streams int
	// CopyTimeout is how long a copy may go without getting on before it is ordered elsewhere (see progress.go); the computing of an internal block may
	// three times as long. Default 2 min. HDFS gives a copy 5 min in all (dfs.namenode.reconstruction.pending.timeout-sec).
	CopyTimeout time.Duration
	// RepeatAfter is how long an order may go without a report that reflects it before it is sent again. Default 5 s.
	RepeatAfter time.Duration
	// RecoveryTimeout is how long the primary of a block recovery has before another attempt is due. Default 10 s.
	RecoveryTimeout time.Duration
	// RecoveryPatience is how long the recovery of a block waits for holders that do not answer, while those that do may have
	// lost the end of their replicas. Then it settles on what there is, and what the others come back with goes to their
	// trash. Default 10 min. More waits longer for machines that boot slowly; less closes files of lost ones sooner.
	RecoveryPatience time.Duration
	// Grace is how long the nodes of a just finished pipeline have to report their replicas before the block counts as
	// under-replicated. Default 10 s.
	Grace time.Duration
	// ReportPatience is how long deletions wait for a live node that does not come to the end of a full report. Default 5 min.
	ReportPatience time.Duration
	// Deletes limits the deletions in one order. Default 4000.
	Deletes int
	// Seed makes the choices among equals.
	Seed uint64
}

// NoMaintenanceReplication lets nodes into maintenance that have the only replica of a block.
const NoMaintenanceReplication = -1

func (c *Config) setDefaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&c.DeadAfter, 90*time.Second)
	set(&c.StaleAfter, 10*time.Second)
	set(&c.CopyTimeout, 2*time.Minute)
	set(&c.RepeatAfter, 5*time.Second)
	set(&c.RecoveryTimeout, 10*time.Second)
	set(&c.RecoveryPatience, 10*time.Minute)
	set(&c.Grace, 10*time.Second)
	set(&c.ReportPatience, 5*time.Minute)
	if c.MinReplication <= 0 {
		c.MinReplication = 1
	}
	switch {
	case c.MaintenanceReplication == 0:
		c.MaintenanceReplication = 1
	case c.MaintenanceReplication < 0:
		c.MaintenanceReplication = 0
	}
	if c.DefaultReplication <= 0 {
		c.DefaultReplication = 3
	}
	if c.Streams <= 0 {
		c.Streams = 4
	}
	if c.Deletes <= 0 {
		c.Deletes = 4000
	}
}

// Manager is the replica map. See the package comment.
type Manager struct {
	config Config
	seed   uint64

	blocks  blocks
	groups  map[metadata.BlockID]*group
	orphans map[metadata.BlockID][]odd

	nodes      map[namenode.NodeID]*node
	forgotten  map[namenode.NodeID]struct{}             // given up for good by an operator
	wish       func(*namenode.Node) namenode.AdminState // see Administer
	order      []*node                                  // by registration, for replayable walks
	candidates []*placement.Candidate
	volumes    []*volume // indexed by place
	unreported int       // live nodes that have not reported in full and are waited for
	awake      int       // nodes in service that are neither dead nor stale, at the last Tick
	turned     []*volume // those with turned set
	work       Work
	membership uint64 // counts changes of which nodes live where
	racks      bool   // live nodes that stay stand on several racks, at the last Tick

	counts counts
	lost   idSet // complete blocks that are missing or corrupt
	needs  [priorities]queue
	tidy   queue // blocks with surplus or odd replicas
	stray  queue // orphans, on the leader
	graces []grace
	copies []*transfer
	// refused are the nodes that did not take a copy of a block a moment ago, and refusals when they are asked again, in that order.
	refused  map[metadata.BlockID][]namenode.NodeID
	refusals []refusal

	recovering []metadata.BlockID

	doubtful  queue          // blocks in doubt
	words     map[string]int // suspects per user
	suspected int            // all of them

	watched   map[metadata.BlockID]int
	satisfied []metadata.BlockID

	balance *balancing // nil: nobody balances
	tiers   tiering
	caching caching
	now     time.Time // of the last Tick

	leading      bool
	paused       bool
	listing      bool
	term         uint64
	led          time.Time
	horizon      metadata.BlockID
	groupHorizon metadata.BlockID // 0: not known
}

// New makes an empty Manager.
func New(c Config) *Manager {
	c.setDefaults()
	return &Manager{
		config:  c,
		seed:    c.Seed,
		blocks:  newBlocks(),
		groups:  map[metadata.BlockID]*group{},
		orphans: map[metadata.BlockID][]odd{},
		nodes:   map[namenode.NodeID]*node{},
		watched: map[metadata.BlockID]int{},
		words:   map[string]int{},
	}
}

// Lead begins the time in which Orders gives orders, under term. Work ordered by others is not known and may be
// ordered again; it is idempotent.
func (m *Manager) Lead(now time.Time, term uint64) {
	m.forgetOrders()
	m.leading, m.term, m.led = true, term, now
	for _, id := range sortedKeys(m.orphans) {
		m.stray.push(id)
	}
}

// Follow ends the time begun by Lead.
func (m *Manager) Follow() {
	m.forgetOrders()
	m.leading = false
}

// Pause stops (or resumes) scheduling of copies and deletions, as safe mode does. Recoveries go on.
func (m *Manager) Pause(on bool) { m.paused = on }

// List tells that Put does not name all blocks yet, or that it has named them. Until then no replica is taken for an orphan, and no node for one
// without blocks.
func (m *Manager) List(on bool) { m.listing = on }

// Has reports whether a block is known.
func (m *Manager) Has(id metadata.BlockID) bool { return m.blocks.slot(id) != nil }

// SetHorizon tells the highest block id ever handed out. Orphans above it are kept, all of them before the first call.
func (m *Manager) SetHorizon(id metadata.BlockID) { m.horizon = max(m.horizon, id) }

// SetGroupHorizon is SetHorizon for the ids of groups.
func (m *Manager) SetGroupHorizon(id metadata.BlockID) {
	if m.groupHorizon == 0 || id > m.groupHorizon {
		m.groupHorizon = id
	}
}

// given reports whether the id of an orphan was surely handed out.
func (m *Manager) given(id metadata.BlockID) bool {
	if id.Striped() {
		return m.groupHorizon != 0 && id.Group() <= m.groupHorizon
	}
	return m.horizon != 0 && id <= m.horizon
}

func (m *Manager) forgetOrders() {
	m.balance, m.tiers = nil, tiering{}
	m.forgetCaching()
	var touched []metadata.BlockID
	for _, n := range m.order {
		touched = append(touched, sortedKeys(n.doomed)...)
		n.doomed, n.doomNew, n.doomSent = nil, queue{}, queue{}
		n.verify = nil
		n.incoming, n.outgoing = 0, 0
		n.outs, n.ins, n.primaries, n.dirty = nil, nil, nil, false
		n.candidate.Full = false
		n.fresh, n.asked, n.askedAt = false, false, time.Time{}
		n.candidate.Scheduled = 0
	}
	for _, t := range m.copies {
		touched = append(touched, t.block.ID)
		if b := m.blocks.get(t.block.ID); b != nil && b.more != nil {
			b.more.copies = nil
			b.trim()
		}
	}
	m.copies = nil
	m.refused, m.refusals = nil, nil
	for _, id := range m.recovering {
		if b := m.blocks.get(id); b != nil && b.more != nil {
			b.more.endRecovery()
		}
	}
	m.recovering = nil
	m.stray = queue{}
	for _, id := range touched {
		if b := m.blocks.get(id); b != nil {
			m.update(id, b)
		}
	}
}

// Reset forgets all blocks, but neither nodes nor what lies on them: replicas become orphans until Put names their
// blocks again. For a namespace that was replaced as a whole by a snapshot.
func (m *Manager) Reset() {
	for id, b := range m.blocks.all() {
		m.toOrphans(id, b)
	}
	m.blocks = newBlocks()
	m.groups = map[metadata.BlockID]*group{}
	m.counts, m.lost = counts{}, idSet{}
	m.needs = [priorities]queue{}
	m.tidy = queue{}
	m.graces, m.copies, m.recovering = nil, nil, nil
	m.refused, m.refusals = nil, nil
	m.tiers = tiering{}
	m.forgetCaching()
	m.doubtful, m.words, m.suspected = queue{}, map[string]int{}, 0
}

// random draws from the seeded source.
func (m *Manager) random() uint64 {
	m.seed += 0x9e3779b97f4a7c15
	return mix(m.seed)
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func sortedKeys[V any](m map[metadata.BlockID]V) []metadata.BlockID {
	keys := make([]metadata.BlockID, 0, len(m))
	for id := range m {
		keys = append(keys, id)
	}
	slices.Sort(keys)
	return keys
}

// queue is a first-in-first-out set of block ids. Members may be dropped lazily: whoever pops an id checks whether it
// still belongs.
type queue struct {
	ids  []metadata.BlockID
	head int
	in   idSet
}

func (q *queue) push(id metadata.BlockID) {
	if q.in.add(id) {
		q.ids = append(q.ids, id)
	}
}

func (q *queue) pop() (metadata.BlockID, bool) {
	if q.head == len(q.ids) {
		return 0, false
	}
	id := q.ids[q.head]
	q.head++
	q.in.drop(id)
	switch {
	case q.head == len(q.ids): // at a start every block passes through
		*q = queue{}
	case q.head > 1024 && q.head > len(q.ids)/2:
		q.ids = slices.Clone(q.ids[q.head:])
		q.head = 0
	}
	return id, true
}

// unpop puts the id just popped back to the front.
func (q *queue) unpop(id metadata.BlockID) {
	if q.head == 0 {
		q.ids = slices.Insert(q.ids, 0, id)
	} else {
		q.head--
		q.ids[q.head] = id
	}
	q.in.add(id)
}

func (q *queue) len() int { return len(q.ids) - q.head }

// Registered is how many datanodes there are, the dead included.
func (m *Manager) Registered() int { return len(m.order) }

// Places is how many datanodes could have replicas: they live, are not silent and do not leave.
func (m *Manager) Places() int {
	n := 0
	for _, x := range m.order {
		if x.alive && !x.stale && x.stays() {
			n++
		}
	}
	return n
}
