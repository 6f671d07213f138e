package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

// maxAppendEntries is how many entries one request to a follower carries: 4 MiB at most when they are full batches.
const maxAppendEntries = 64

// Member is one voter of a group.
type Member struct {
	ID string
	// Address is the host:port of the member's Host.
	Address string
}

// Timers are the times of a group with several voters; a single voter elects itself at once whatever they are. The zero
// value is for members on one machine or in one room: a leader whose process has ended is replaced after a third of a second, one that is silent after 0.5-1 s, plus an election.
type Timers struct {
	// Heartbeat is how long a follower waits for its leader, up to twice that at random; default 500 ms. Leaders send
	// ten times as often. Raised: fewer needless elections on overloaded machines, slower failover.
	Heartbeat time.Duration
	// Election is how long a candidate waits for votes before it tries again, up to twice that; default Heartbeat.
	Election time.Duration
	// Lease is how long a leader without answers of a majority stays, and how long who has heard a leader votes for nobody; default 2/3 of Heartbeat,
	// Heartbeat at most. Raised: reads need fewer rounds on overloaded machines, a leader whose process has ended is replaced later.
	Lease time.Duration
	// Commit is how often an idle leader tells followers how far they may apply; default 50 ms.
	Commit time.Duration
}

func (t Timers) withDefaults() Timers {
	if t.Heartbeat == 0 {
		t.Heartbeat = 500 * time.Millisecond
	}
	if t.Election == 0 {
		t.Election = t.Heartbeat
	}
	if t.Lease == 0 {
		t.Lease = t.Heartbeat * 2 / 3
	}
	if t.Commit == 0 {
		t.Commit = 50 * time.Millisecond
	}
	return t
}

// GroupConfig describes a group as this member sees it. Name is required.
type GroupConfig struct {
	// Name is the group's in the whole cluster and of its directory here: lower-case letters, digits and dashes.
	Name string
	// Cluster is the cluster's id, if known: directories and peers of another one are refused.
	Cluster string
	// Members are the voters of a new group, and where to reach those of an old one. Addresses here win over those
	// that the group recorded before Open. A group of one may leave it empty.
	Members []Member
	// Bootstrap makes the group when this member's directory is empty and every other member in the list has been asked
	// and is empty, too. Set it at the first start of a cluster, on one member or on all; left on, a member that lost its
	// disk finds that another one has a history and joins it.
	Bootstrap bool
	Timers    Timers
	// QuorumReads has Glance never rely on a lease. Set it where machines may stand still together with their clocks, as virtual ones that are paused
	// from outside: a leader that goes on then may answer reads from before until it hears of the next one, for milliseconds.
	QuorumReads bool
	clock       func() time.Duration // of leases, for tests
	// Command is the program with which people change the group's members, for messages ("hops namenode"); empty: there is none.
	Command string
	// Headroom is how many bytes the state machine's own store may write without asking Host.Room, which stay free as part
	// of the host's reserve; nil: none.
	Headroom func() int64
	// SnapshotBytes is how much log makes a snapshot due; default 64 MiB. Raised: fewer snapshots, longer replay
	// after a restart. A group at rest takes one sooner, at an eighth. Up to twice what makes one due lies in the log; in a group of one, whose
	// state machine keeps versions, twice as much as a copy of the state if that is more.
	SnapshotBytes int64
	// SegmentBytes is the size of a file of the log, which is written in full before it is used; default 4 MiB.
	SegmentBytes int
	// CacheBytes is how much of the log's end is kept in memory for followers; default 16 MiB.
	CacheBytes int64
}

var groupName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

func (c *GroupConfig) validate(self, address string) error {
	var mistakes []error
	if !groupName.MatchString(c.Name) {
		mistakes = append(mistakes, fmt.Errorf("name %q: want up to 64 lower-case letters, digits and dashes", c.Name))
	}
	if len(c.Cluster) > 255 {
		mistakes = append(mistakes, errors.New("the cluster id is longer than 255 bytes"))
	}
	if len(c.Members) == 0 {
		c.Members = []Member{{ID: self, Address: address}}
	}
	seen := make(map[string]bool)
	for _, m := range c.Members {
		if m.ID == "" || m.Address == "" {
			mistakes = append(mistakes, fmt.Errorf("member %q at %q: id or address is missing", m.ID, m.Address))
		}
		if seen[m.ID] || seen[m.Address] {
			mistakes = append(mistakes, fmt.Errorf("member %q at %q: id or address is there twice", m.ID, m.Address))
		}
		seen[m.ID], seen[m.Address] = true, true
		if m.ID == self && m.Address != address {
			mistakes = append(mistakes, fmt.Errorf("member %s is at %s in the list, but at %s in truth", self, m.Address, address))
		}
	}
	if c.Bootstrap && !seen[self] {
		mistakes = append(mistakes, fmt.Errorf("cannot bootstrap: %s is not among the members", self))
	}
	c.Timers = c.Timers.withDefaults()
	if t := c.Timers; t.Lease > t.Heartbeat || t.Election < t.Heartbeat || min(t.Heartbeat, t.Lease, t.Commit) < 5*time.Millisecond {
		mistakes = append(mistakes, fmt.Errorf("timers %+v: want lease <= heartbeat <= election and all at least 5ms", t))
	}
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = 64 << 20
	}
	if c.SnapshotBytes < 0 || c.SegmentBytes < 0 || c.CacheBytes < 0 {
		mistakes = append(mistakes, errors.New("a size is negative"))
	}
	if err := errors.Join(mistakes...); err != nil {
		return fmt.Errorf("group %q: %w", c.Name, err)
	}
	return nil
}

// Group is this process's member of one group. All methods may be called from any goroutine.
type Group struct {
	name      string
	host      *Host
	cfg       GroupConfig
	log       *slog.Logger
	dir       *directory
	dirMu     sync.Mutex // held while dir's identity changes
	journal   *journal.Journal
	snapshots *snapshots
	streams   *streams
	wire      *wire
	fsm       *fsm
	members   *addressBook
	raft      *raft.Raft
	batches   *batcher
	reads     reader
	horizons  horizons

	// reign is set while this member leads and is ready. lastReign is the last one that was set, whether it has ended or not.
	reign      atomic.Pointer[reign]
	lastReign  atomic.Pointer[reign]
	leadership atomic.Pointer[Leadership]
	pulls      pulls
	lending    lending
	copying    sync.Mutex // held while a copy is made
	keeping    sync.Mutex // held while it is told what snapshots there are: what is told last is what there is
	// solo: this member is the only voter, and was when the group was opened; the first AddMember ends it.
	solo atomic.Bool
	// joining: see identity.Joining.
	joining atomic.Bool
	// voted is the highest term in which this member has given its vote, in this life or a former one.
	voted atomic.Uint64
	// over: the group failed or is being closed; nothing new is taken.
	over     atomic.Bool
	failOnce sync.Once
	failure  atomic.Pointer[error]
	// stranger is why this member is none of the group's, nil when it is one or nobody knows.
	stranger atomic.Pointer[string]
	// started: raft runs, so that Close has something to stop.
	started atomic.Bool
	// running: raft's goroutines may run, and whoever finds it set may use raft and wire.
	running atomic.Bool
	hashes  hashes
	snapNow chan struct{}  // capacity 1: a snapshot is due whatever the log's size
	copyNow chan struct{}  // capacity 1: a copy may be due
	slow    chan slowWrite // capacity 1: a write of the log takes too long
	stuck   atomic.Bool    // the state machine does not come back with an entry
	// hang is where it was so last: where it is while stuck is set.
	hang atomic.Pointer[hang]
	// dying is closed when nothing is worth waiting for any more, stop after that, when raft has stopped.
	dying     chan struct{}
	dyingOnce sync.Once
	stop      chan struct{}
	workers   sync.WaitGroup

	closeOnce sync.Once
	closeErr  error

	watchMu  sync.Mutex
	watchers []func(Leadership)
}

// openGroup opens the directory, joins state machine, snapshot and log, and starts raft.
func openGroup(h *Host, cfg GroupConfig, machine StateMachine) (_ *Group, err error) {
	log := h.log.With("group", cfg.Name)
	want := identity{Format: formatVersion, Cluster: cfg.Cluster, Group: cfg.Name, Member: h.cfg.ID, Joining: true}
	d, err := openDirectory(filepath.Join(h.cfg.Dir, cfg.Name), want, false)
	if errors.Is(err, metadata.ErrCorrupt) {
		err = fmt.Errorf("%w; this member does not serve: reinstall it from its peers", err)
	}
	if err != nil {
		return nil, err
	}
	if d.Damaged != "" {
		return nil, errors.Join(metadata.Errorf(metadata.ErrCorrupt, "%s; this member does not serve: reinstall it from its peers", d.Damaged), d.close())
	}
	g := &Group{
		name: cfg.Name, host: h, cfg: cfg, log: log, dir: d,
		batches: newBatcher(), reads: reader{wake: make(chan struct{}, 1)}, horizons: horizons{wake: make(chan struct{}, 1)},
		snapNow: make(chan struct{}, 1), copyNow: make(chan struct{}, 1), slow: make(chan slowWrite, 1), dying: make(chan struct{}), stop: make(chan struct{}),
	}
	g.leadership.Store(&Leadership{})
	g.fsm = &fsm{group: g, machine: machine, progress: make(chan struct{}, 1)}
	g.streams = newStreams(h, g.name, func() string { return g.identity().lineage() })
	defer func() {
		if err == nil {
			return
		}
		if g.wire != nil {
			g.wire.Close()
		}
		g.streams.Close()
		if g.journal != nil {
			g.journal.Close()
		}
		d.close()
	}()
	if err := g.recover(); err != nil {
		if errors.Is(err, metadata.ErrCorrupt) {
			err = fmt.Errorf("%w; this member does not serve: reinstall it from its peers", err)
		}
		return nil, err
	}
	if err := g.start(); err != nil {
		return nil, err
	}
	return g, nil
}

// recover opens snapshots and log and brings the state machine to the newest sound snapshot.
func (g *Group) recover() error {
	var err error
	if g.snapshots, err = openSnapshots(g.dir.snapshots(), g.fsm.machine.AppliedIndex(), g.log); err != nil {
		return err
	}
	g.snapshots.versioned, g.snapshots.wantsCopy = g.versioned() != nil, g.wantsCopy
	g.snapshots.room = g.host.space.room
	had := len(g.snapshots.all())
	covered, err := g.restore()
	if err != nil {
		return err
	}
	g.journal, err = journal.Open(journal.Config{
		Dir: g.dir.logs(), Disk: g.host.cfg.LogDisk, SegmentBytes: g.cfg.SegmentBytes, CacheBytes: g.cfg.CacheBytes,
		Deadline: g.host.cfg.WriteDeadline, SlowAfter: g.host.cfg.SlowWrite, Slow: g.tardy, Patient: g.patient, Appended: g.appended, Covered: covered, Voted: !g.dir.Joining, Refuse: g.host.space.append, Fatal: g.fail, Logger: g.log,
	})
	if err != nil {
		if had > 0 && covered.Index == 0 {
			err = errors.Join(err, errNotRestored)
		}
		return err
	}
	if err := g.refer(); err != nil {
		return err
	}
	g.keep()
	g.snapshots.changed = g.keep
	g.snapshots.lost = g.wantSnapshot
	last, err := g.journal.LastIndex()
	if err != nil {
		return err
	}
	applied := g.fsm.machine.AppliedIndex()
	if end := max(last, covered.Index); applied > end {
		if end == 0 {
			return fmt.Errorf("the state machine is at index %d, but the directory %s is empty: a checkpoint without log and snapshot belongs to another life; delete it", applied, g.dir.path)
		}
		return metadata.Errorf(metadata.ErrCorrupt, "the state machine is at index %d, but log and snapshot end at %d", applied, end)
	}
	g.fsm.applied.Store(max(applied, covered.Index))
	return nil
}

// restore brings the state machine to the newest sound snapshot, if it is behind that.
func (g *Group) restore() (journal.Covered, error) {
	list := g.snapshots.all()
	for i, s := range list {
		if newest, lost := dangling(list[:i]); lost && g.others() {
			if back, _ := g.replays(newest); s.meta.Index < back {
				break // the copy of a backup: the log behind it has gone
			}
		}
		ok, err := g.restoreFrom(s)
		if err != nil {
			return journal.Covered{}, fmt.Errorf("restore snapshot %s: %w", s.id, err)
		}
		if !ok {
			continue // the one before it and the log may do
		}
		return covers(s), g.dropDangling(list[:i])
	}
	if newest, lost := dangling(list); lost && g.others() {
		least, sound := g.replays(newest)
		if !sound {
			least = newest
		}
		if least > 0 { // else the log is all that there ever was
			s, err := g.heal(least)
			return covers(s), err
		}
	}
	return journal.Covered{}, g.dropDangling(list)
}

// replays returns the entry behind which the log begins, 0 also if it cannot be read, when the newest snapshot's version is lost. sound: it
// goes on from there to that snapshot at least.
func (g *Group) replays(newest uint64) (back uint64, sound bool) {
	log, err := journal.Read(g.dir.logs(), func(*raft.Log, int) error { return nil })
	if err != nil || log.First == 0 {
		return 0, false
	}
	return log.First - 1, len(log.Damage) == 0 && log.Last >= newest
}

func covers(s stored) journal.Covered { return journal.Covered{Index: s.meta.Index, Term: s.meta.Term} }

// restoreFrom reports whether the state machine has all that a snapshot has, perhaps since now. Damaged ones are set aside.
func (g *Group) restoreFrom(s stored) (bool, error) {
	if applied := g.fsm.machine.AppliedIndex(); applied >= s.state && applied > 0 {
		return true, nil
	}
	if !s.whole() {
		return false, nil
	}
	_, r, err := g.snapshots.openFrames(s.id)
	if errors.Is(err, metadata.ErrCorrupt) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer r.Close()
	frames, err := newFrameReader(r)
	if err == nil {
		err = g.fsm.restore(frames)
	}
	if err != nil {
		return false, err
	}
	g.log.Info("restored snapshot", "index", s.meta.Index, "bytes", s.size)
	return true, nil
}

// dangling looks for references in front of which the state machine is, and returns the index of the newest.
func dangling(list []stored) (index uint64, found bool) {
	for _, s := range list {
		if !s.whole() {
			return s.meta.Index, true
		}
	}
	return 0, false
}

// dropDangling sets references aside that the state machine has not come to.
func (g *Group) dropDangling(list []stored) error {
	for _, s := range list {
		if s.whole() {
			continue // set aside already
		}
		if err := g.snapshots.drop(s.id, fmt.Errorf("the checkpoint is at %d and has lost the version at %d", g.fsm.machine.AppliedIndex(), s.state)); err != nil {
			return err
		}
	}
	return nil
}

// refer looks for the versions to which the snapshots refer.
func (g *Group) refer() error {
	machine := g.versioned()
	if machine == nil {
		return nil
	}
	for i, s := range g.snapshots.all() {
		if s.ref == nil {
			continue
		}
		v, err := machine.Version(*s.ref)
		switch {
		case err == nil:
			v.Close()
		case errors.Is(err, fs.ErrNotExist):
			g.snapshots.emptied(s.id)
			if i == 0 {
				g.wantSnapshot()
			}
		default:
			return err
		}
	}
	return nil
}

// versioned is the state machine if it keeps versions, else nil.
func (g *Group) versioned() Versioned {
	v, _ := g.fsm.machine.(Versioned)
	return v
}

// wantSnapshot makes one due whatever the log's size.
func (g *Group) wantSnapshot() {
	select {
	case g.snapNow <- struct{}{}:
	default:
	}
}

// keep tells the journal and the state machine what snapshots there are: the journal answers for the newest and keeps entries behind the
// oldest, and behind what others are pulling; the state machine keeps the versions.
func (g *Group) keep() {
	g.keeping.Lock()
	defer g.keeping.Unlock()
	list := g.snapshots.all()
	if len(list) == 0 {
		return
	}
	g.journal.Cover(covers(list[0]))
	if machine := g.versioned(); machine != nil {
		var versions []uint64
		for _, s := range list {
			if s.ref != nil && !s.hollow && !(s.copied() && s.meta.Index < list[min(keptSnapshots, len(list))-1].meta.Index) {
				versions = append(versions, s.ref.Index)
			}
		}
		machine.Retain(versions)
	}
	floor, ok := g.floor(list)
	if ok {
		g.journal.Keep(min(floor, g.lending.floor()))
	}
}

// floor is up to where the log may go: the older of two snapshots; of a group of one that keeps copies, the newest copy.
func (g *Group) floor(list []stored) (uint64, bool) {
	if len(list) < keptSnapshots {
		return 0, false
	}
	floor := list[keptSnapshots-1].meta.Index
	if g.versioned() == nil || g.several(list[0]) {
		return floor, true
	}
	for _, s := range list {
		if s.copied() {
			return min(floor, s.meta.Index), true
		}
	}
	return 0, false
}

// others reports whether the group has voters besides this member, as far as it knows.
func (g *Group) others() bool {
	if r := g.running.Load(); r {
		return voters(g.raft.GetConfiguration().Configuration()) > 1
	}
	if list := g.snapshots.all(); len(list) > 0 {
		return voters(list[0].meta.Configuration) > 1
	}
	return len(g.cfg.Members) > 1
}

// several reports whether the group has voters besides this member, and the next start will know that from its newest snapshot: until then it
// might look for a copy.
func (g *Group) several(newest stored) bool {
	return g.others() && voters(newest.meta.Configuration) > 1
}

// What raft knows of snapshots: see start.
const (
	snapshotThreshold = math.MaxUint64
	snapshotInterval  = 24 * time.Hour
	trailingLogs      = 1
)

// start makes the raft instance and the group's goroutines.
func (g *Group) start() error {
	h, t := g.host, g.cfg.Timers
	rlog := newLogger(g.log)
	last, err := g.journal.LastIndex()
	if err != nil {
		return err
	}
	g.members = newAddressBook(g.cfg.Members, last)
	g.wire = newWire(g, raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider:   g.members,
		Logger:                  rlog,
		Stream:                  g.streams,
		MaxPool:                 3,
		MaxRPCsInFlight:         1, // hashicorp/raft#612: replication that is pipelined can stop for good
		Timeout:                 max(5*time.Second, 4*t.Heartbeat),
		MsgpackUseNewTimeFormat: true,
	}))
	notify := make(chan bool)
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(h.cfg.ID)
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout, conf.CommitTimeout = t.Heartbeat, t.Election, t.Lease, t.Commit
	conf.MaxAppendEntries = maxAppendEntries
	conf.BatchApplyCh = true
	conf.ShutdownOnRemove = false
	conf.NoSnapshotRestoreOnStart = true // recover has done it
	// Snapshots are due by bytes (watchSize), and the journal knows what may go; raft keeps one entry so that it never
	// asks to delete the whole log but when a snapshot was installed.
	conf.SnapshotThreshold, conf.SnapshotInterval, conf.TrailingLogs = snapshotThreshold, snapshotInterval, trailingLogs
	conf.NotifyCh = notify
	conf.Logger = rlog
	conf.NoLegacyTelemetry = true

	founds, err := g.bootstrap(conf)
	if err != nil {
		return err
	}
	votes, err := newBallots(g.journal, g)
	if err != nil {
		return err
	}
	g.joining.Store(g.dir.Joining)
	if last == 0 && g.dir.Joining && !founds {
		g.log.Info("the data directory is empty; waiting to be found by a leader")
	}
	// From here on raft may call back.
	pumped := make(chan struct{})
	ready := make(chan struct{})
	go func() {
		defer close(pumped)
		<-ready
		g.wire.pump()
	}()
	g.raft, err = raft.NewRaft(conf, g.fsm, entries{g.journal, g}, votes, g.snapshots, g.wire)
	g.running.Store(err == nil)
	if g.over.Load() { // it failed while there was no wire yet
		g.wire.cut.Store(true)
	}
	close(ready)
	if err != nil {
		g.wire.Close()
		<-pumped
		return err
	}
	observed := make(chan raft.Observation, 1)
	g.raft.RegisterObserver(raft.NewObserver(observed, false, func(o *raft.Observation) bool {
		switch data := o.Data.(type) {
		case raft.RaftState:
			if data == raft.Candidate {
				g.log.Info("standing for election", "cause", g.wire.silence())
			}
			return true
		case raft.LeaderObservation:
			return true
		}
		return false
	}))
	g.workers.Go(func() { <-pumped })
	g.workers.Go(func() { g.follow(notify, observed, g.stop) })
	g.workers.Go(g.serveReads)
	g.workers.Go(g.serveHorizons)
	g.workers.Go(g.ship)
	g.workers.Go(g.land)
	g.workers.Go(g.watchSize)
	g.workers.Go(g.watchSpace)
	if h.cfg.SlowApply > 0 {
		g.workers.Go(g.watchMachine)
	}
	if g.versioned() != nil {
		g.workers.Go(g.watchLoans)
		g.workers.Go(g.watchCopies)
	}
	if _, ok := g.fsm.machine.(Hasher); ok {
		g.workers.Go(g.watchHashes)
	}
	if len(g.cfg.Members) > 1 {
		g.workers.Go(g.watchStanding)
	}
	g.workers.Go(g.watchLeader)
	if founds {
		g.workers.Go(g.found)
	}
	h.mu.Lock()
	h.groups[g.name] = g // before anybody closes it, which takes it off
	h.mu.Unlock()
	g.started.Store(true)
	if failure := g.failure.Load(); failure != nil {
		g.Close()
		return *failure
	}
	if alone(g.raft.GetConfiguration().Configuration(), conf.LocalID) {
		g.solo.Store(true)
		g.wire.electNow()
	}
	return nil
}

// every calls fn at an interval until it returns false or the group ends.
func (g *Group) every(interval time.Duration, fn func() (goOn bool)) {
	t := pace.NewBeat(interval)
	defer t.Stop()
	for {
		select {
		case <-g.dying:
			return
		case <-t.C:
			t.Next()
		}
		if !fn() {
			return
		}
	}
}

// identity is what the directory says of this member.
func (g *Group) identity() identity {
	g.dirMu.Lock()
	defer g.dirMu.Unlock()
	return g.dir.identity
}

// alter replaces what the directory says of this member.
func (g *Group) alter(change func(*identity)) error {
	g.dirMu.Lock()
	defer g.dirMu.Unlock()
	next := g.dir.identity
	change(&next)
	if next == g.dir.identity {
		return nil
	}
	before := g.dir.identity
	g.dir.identity = next
	err := g.dir.save()
	if err != nil {
		g.dir.identity = before // nobody goes by what a start may not find
	}
	return err
}

// Raise notes that entries of a level may come, before one does: an older program refuses the directory from then on. A lower level than before
// changes nothing.
func (g *Group) Raise(level int) error {
	return g.alter(func(i *identity) { i.Level = max(i.Level, level) })
}

// Level is the one that Raise has noted, in this life or before; at least 1.
func (g *Group) Level() int {
	g.dirMu.Lock()
	defer g.dirMu.Unlock()
	return max(g.dir.Level, 1)
}

// NameCluster notes the cluster's id when it was not known at Open: peers and commands of another cluster are refused from
// then on.
func (g *Group) NameCluster(id string) error {
	return g.alter(func(i *identity) {
		if i.Cluster == "" {
			i.Cluster = id
		}
	})
}

// entries is the raft.LogStore of a group: the journal, and an end for raft when it has failed.
type entries struct {
	*journal.Journal
	group *Group
}

// GetLog implements raft.LogStore.
func (e entries) GetLog(index uint64, entry *raft.Log) error {
	err := e.Journal.GetLog(index, entry)
	if err != nil && e.group.started.Load() {
		e.group.halt()
	}
	return err
}

// halt ends the goroutine of raft's that calls it if the journal has failed. raft would panic, in a process that is told to go on
// when a group fails (HostConfig.OnFatal); nothing that it does is of use any more.
func (g *Group) halt() {
	if g.journal.Failed() {
		<-g.dying // whoever found out tells the group
		runtime.Goexit()
	}
}

// bootstrap makes the first entry of a new group of one. In a group of several an empty member joins, and founds says that
// it may make the group when the others have been asked.
func (g *Group) bootstrap(conf *raft.Config) (founds bool, err error) {
	exists, err := raft.HasExistingState(g.journal, g.journal, g.snapshots)
	if err != nil || exists {
		return false, err
	}
	founds = g.cfg.Bootstrap && !g.dir.Reinstalled
	joining := !founds || len(g.cfg.Members) > 1
	if g.dir.Joining != joining {
		if err := g.setJoining(joining); err != nil {
			return false, err
		}
	}
	if !founds || joining {
		return founds, nil
	}
	return false, raft.BootstrapCluster(conf, g.journal, g.journal, g.snapshots, g.wire, g.cfg.configuration())
}

// voters counts them.
func voters(c raft.Configuration) (n int) {
	for _, s := range c.Servers {
		if s.Suffrage == raft.Voter {
			n++
		}
	}
	return n
}

func alone(c raft.Configuration, self raft.ServerID) bool {
	return len(c.Servers) == 1 && c.Servers[0].ID == self && c.Servers[0].Suffrage == raft.Voter
}

// joined ends the time in which an empty member does not vote.
func (g *Group) joined() {
	if err := g.alter(func(i *identity) { i.Joining, i.Reinstalled = false, false }); err != nil {
		g.fail(fmt.Errorf("%s: %w", g.dir.file(), err))
		return
	}
	g.joining.Store(false)
	g.log.Info("caught up with the group; voting from now on")
}

// fail ends the group because its disk or its state cannot be trusted: nothing is acknowledged any more, peers hear
// nothing any more, OnFatal is called.
func (g *Group) fail(err error) {
	g.failOnce.Do(func() {
		err = fmt.Errorf("group %s: %w", g.name, err)
		g.failure.Store(&err)
		g.over.Store(true)
		if g.running.Load() { // else start does it
			g.wire.cut.Store(true)
		}
		g.log.Error("group failed", "err", err)
		g.host.cfg.OnFatal(err)
		select {
		case g.host.fatal <- err:
		default:
		}
		g.die()
		if !g.started.Load() {
			return // start, or openGroup, cleans up
		}
		// Not here: the caller may be raft's main goroutine.
		go func() {
			g.publish(Leadership{Term: g.Leadership().Term})
			g.Close()
		}()
	})
}

// retire is fail for a member whose log is sound and that cannot go on all the same: another one leads first, if this one does.
func (g *Group) retire(err error) {
	if g.over.Load() { // it is ending already, its store may have been closed
		return
	}
	g.log.Error("this member ends, and another one leads; nothing that was acknowledged is lost, and the next start goes on from the checkpoint before", "err", err)
	g.handOver()
	g.fail(err)
}

// leave ends the goroutine of raft that came here because of err, when the group has failed. It would go on with a state that is not right,
// or panic while the process, or a test, is ending already.
func (g *Group) leave(err error) {
	if g.running.Load() {
		runtime.Goexit()
	}
	panic(err)
}

func (g *Group) die() { g.dyingOnce.Do(func() { close(g.dying) }) }

// Close stops the member: it refuses new commands, hands leadership over if it leads, waits briefly for commands under
// way and stops. The directory is free for another process afterwards. It may be called more than once.
func (g *Group) Close() error {
	g.closeOnce.Do(func() { g.closeErr = g.close() })
	return g.closeErr
}

func (g *Group) close() error {
	failed := g.failure.Load() != nil
	if !failed {
		g.handOver()
	}
	g.over.Store(true)
	patience, hangs := 2*g.cfg.Timers.Lease, 20*time.Second
	if failed {
		patience, hangs = 0, 5*time.Second
	}
	g.batches.close(g.notLeader, patience)
	g.die()
	defer func() { // at the end: a host that stops waits for the groups that it still has
		g.host.mu.Lock()
		delete(g.host.groups, g.name)
		g.host.mu.Unlock()
	}()

	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		g.raft.Shutdown().Error() // closes the wire too
		g.wire.Close()
		g.streams.Close()
	}()
	select {
	case <-stopped:
	case <-time.After(hangs): // of the log, or of the state machine's store
		// What it holds must stay open, and nobody else may use the directory.
		g.wire.cut.Store(true)
		g.streams.Close()
		close(g.stop)
		return fmt.Errorf("group %s does not stop: a write hangs", g.name)
	}
	close(g.stop)
	g.publish(Leadership{Term: g.Leadership().Term})
	g.pulls.close()
	g.copying.Lock()   // one that is being made has been told
	g.copying.Unlock() //nolint:staticcheck // it is waited for, that is all
	g.workers.Wait()
	return errors.Join(g.journal.Close(), g.dir.close())
}

// handOver gives leadership to another voter before this one goes, so that the others need not miss it first.
func (g *Group) handOver() {
	if g.raft.State() != raft.Leader {
		return
	}
	if voters(g.raft.GetConfiguration().Configuration()) < 2 {
		return
	}
	r := g.reign.Load()
	if r == nil {
		return
	}
	to, ok := g.heir(r.term)
	if !ok {
		g.log.Debug("nobody to hand over to")
		return
	}
	if err := g.yield(to); err != nil {
		g.log.Debug("nobody took over", "err", err)
	}
}
