package namespace

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unique"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Limits and times that are part of the state machine: changing one changes what commands do, so they are no settings.
const (
	// SoftLimit is how long after its last renewal a lease may be taken over by another writer.
	SoftLimit = LogTime(60 * 1000)
	// RecoveryHolder holds the leases of files whose last block is being recovered.
	RecoveryHolder = "HDFS_NameNode"
	// MaxBlocks is how many blocks a file may have (dfs.namenode.fs-limits.max-blocks-per-file).
	MaxBlocks = 10000
	// MaxName is the longest user, group or client name, in bytes.
	MaxName = 255
	// ReclaimStep is how many inodes of deleted directories each command reclaims beside its own work, more than it can make, and
	// ReclaimDelete how many the command that deletes reclaims at once. An entry has hundreds of commands, and who proposed something else
	// waits for all of it.
	ReclaimStep   = 4
	ReclaimDelete = 128
)

// ReclaimAtOnce is how many inodes of deleted directories a leader has reclaimed by one command, when others do not do it on the way: less
// than a millisecond's work, which others wait for. It is no part of the state machine: the command says it.
const ReclaimAtOnce = 256

// LogTime is milliseconds for which leaders have led, since the cluster's first one did, as their monotonic clocks counted
// them: no wall clock moves it, and it stands still while nobody leads. Commands carry it. Leases, answers and keys are
// counted in it.
type LogTime int64

// maxIdle bounds by how much one command may advance log time, a year: a leader that was idle for longer is unlikely, and
// a number that some fault made would end everything that is counted in it.
const maxIdle = LogTime(365 * 24 * 3600 * 1000)

// DefaultMinBlockSize is HDFS's dfs.namenode.fs-limits.min-block-size.
const DefaultMinBlockSize = 1 << 20

// reclaimID is the hidden directory in which deleted directories wait to be taken apart.
const reclaimID metadata.INodeID = 1

const reclaimName = "reclaim"

// Config is what a Namespace needs from outside.
type Config struct {
	// Store holds the checkpoint. The namespace does not close it.
	Store kv.Store
	// Owner and Supergroup own "/" until a ReserveIDs command settles the question for all members alike.
	Owner      string
	Supergroup string
	// MinBlockSize is the smallest block size of a new file when the command does not say; 0 means DefaultMinBlockSize.
	MinBlockSize int64
	// Memory is how many bytes files, directories and blocks may take in memory, by an estimate; 0: any number. What changed
	// since the last checkpoint, and files that are open, stay in memory in any case: see Crowded.
	Memory int64
	// OnEffects is told what a log entry did to blocks, in the order of the log, before its results are returned. It
	// runs on the goroutine of Apply or Restore and must be quick. It may call the read methods.
	OnEffects func(Effects)
	// OnEvents is told what the commands of a log entry changed, if they did, in the order of the log and before its results are returned: on the
	// goroutine of Apply, which it must not hold up. The events are good until it returns. nil: none are made.
	OnEvents func(index uint64, logTime LogTime, events []metadata.Event)
	// OnCheckpoint is called before the entries up to an index are durable in a checkpoint, which may then be the last time that anybody has
	// heard of their events.
	OnCheckpoint func(index uint64)
	// Bodies has the bytes of small files that are not in their records; nil: nobody does, and reading one is refused. What commands do does not depend on it.
	Bodies Bodies
	// MendBody gets a body that this member cannot read, for the given reason, from another one, for copies of versions; nil: they come without.
	MendBody func(r BodyRef, why error) ([]byte, error)
	// Sheets reports whether checkpoints may have the ways to several inodes in a record, and directories in a class of their own, which programs before level 6
	// refuse; once one has, all have.
	// nil: they may.
	Sheets func() bool
	// OnMistake is told of a panic that was answered as a refusal, with the log entry, the panic's value and its stack. It
	// must not call the Namespace.
	OnMistake func(index uint64, what any, stack []byte)
}

// Namespace is the state machine. Make one with Open.
type Namespace struct {
	cfg Config

	// checkpointMu is held while a checkpoint is written or replaced.
	checkpointMu sync.Mutex
	versions     versions

	near atomic.Pointer[near]
	// pins counts who reads a view without the lock. Who does never waits for mu; it begins with mu held.
	pins      sync.WaitGroup
	misses    atomic.Int64 // reads of the checkpoint
	gaps      atomic.Int64 // bodies that versions came without
	flightsMu sync.Mutex   // guards flights; no other lock is taken below it
	flights   map[string]*flight
	// safeMode, registerVersion, newestBlockKey and forgotten are meta's as of the last entry, for those who ask all the time, and have to go on while mu is held by who waits for a disk.
	safeMode        atomic.Bool
	registerVersion atomic.Uint64
	newestBlockKey  atomic.Int32
	forgotten       atomic.Pointer[[]string]

	mu sync.RWMutex // guards what follows

	applied  uint64 // last log index in the state
	meta     meta
	metaHash uint64 // the part of hash that meta made when it was settled
	hash     uint64
	// applying: an entry is applied in part; hash does not fit the state.
	applying bool
	// published is hash as of applied.
	published uint64

	root   *inode
	trash  *inode // the reclaim directory
	inodes map[metadata.INodeID]*inode
	blocks map[metadata.BlockID]*inode
	leases map[string]*lease
	// openFiles is how many files all leases have.
	openFiles int
	retries   *retryCache
	items     map[string]*item // of the register
	itemBytes int              // of all of them
	tokens    tokens
	caching   caching
	snaps     snapshots

	// ring has those of inodes; resident is what they count for, in bytes, and evicted how many were forgotten.
	ring     ring
	resident int64
	evicted  int64

	// memory is the budget at present, Config.Memory at most, and fitted the collection after which it was set; see FitMemory.
	memory int64
	fitted uint64

	view *checkpointView
	// apart: checkpoints have directories in a class of their own. Whether they do is decided when the first one is frozen, for the life of the content of the store.
	apart, decided bool
	loading        loading
	sweep          sweep

	// leftover is the index up to which the store had records, of a cut checkpoint perhaps, when it was opened.
	leftover uint64

	// Changes since the last freeze.
	epoch    uint32
	dirty    changes           // with epoch == Namespace.epoch
	pending  map[string][]byte // records other than live entries; nil: deleted
	gone     goneINodes        // whose records of class inode are deleted; these are not in pending
	frozen   *frozen           // what a snapshot is being written of, or nil
	listings []*blockListing   // that go on

	// Of the entry that is being applied. number: which of its commands; changed: that has changed something, and undo is how it is taken back; owed is how many inodes of deleted
	// directories are to be taken apart because of it.
	number        int
	changed       bool
	undo          *journal // nil unless the command may have to be taken back
	owed          int
	touched       []*inode
	touchedLeases []*lease
	effects       Effects
	events        []metadata.Event // memory is used again
	arriving      []arrival        // bodies that go to Bodies when the entry was applied
	goneBodies    []metadata.Block
	enc           encoder
	callers       callers
	decoded       []logpb.Command // of the entry that is being applied; memory is used again
	lastUser      unique.Handle[string]

	// loaded is how many inodes a command has read with the lock held, loadedMost the most so far. A test looks at it.
	loaded, loadedMost int
	// looksMost is the most that a publish has looked at in one go with the lock held. A test looks at it.
	looksMost int

	broken error // set when the state is not usable any more
}

// meta are the counters of the state; they are part of its hash.
type meta struct {
	now            metadata.Time // wall clock of the last command's proposer
	logTime        LogTime
	leasesRenewed  LogTime // when all leases were renewed together
	nextGeneration metadata.Generation
	ids
	nextRetry     uint64
	clusterID     string
	owned         bool
	files         uint64
	directories   uint64
	blocks        uint64
	quotas        uint64            // directories with a quota
	typeQuotas    uint64            // those that limit types of volumes
	keys          []*logpb.BlockKey // by id; nobody changes what is in it
	rolled        LogTime           // when the last key came
	surveys       []*logpb.Survey   // by id; nobody changes what is in it
	lastSurvey    uint64            // the last one given
	safeMode      bool
	forgotten     []string          // datanodes that were given up; nobody changes what is in it
	itemVersion   uint64            // that an item of the register got last
	tokenKeys     []*logpb.TokenKey // by id; nobody changes what is in it
	tokenRolled   LogTime           // when the last of them came
	lastToken     int32             // the sequence number that a token got last
	lastCached    int64             // the number that a cache directive got last
	snapshots     uint32            // how many there are, those that are being taken apart included
	snapshottable uint32            // directories that they may be taken of
	lastSnapshot  uint32            // the number that one got last
	bodies        uint64            // how many of blocks are bodies of small files
	bodyBytes     uint64            // of all of them
	tree          uint64            // how often paths may have come to lead elsewhere: see rerouted
}

// ids are those of inodes, blocks and groups that were not given out yet.
type ids struct {
	nextINode metadata.INodeID
	nextBlock metadata.BlockID
	groups    uint64 // ids of block groups that were given out
}

// nextGroup is the first id of a group that was not given out.
func (m *ids) nextGroup() metadata.BlockID {
	return metadata.FirstGroupID + metadata.BlockID(m.groups)*metadata.GroupStep
}

// given says whether there may be a block or group of this id.
func (m *ids) given(id metadata.BlockID) bool {
	if id.Striped() {
		return id >= metadata.FirstGroupID && id < m.nextGroup() && id.Group() == id
	}
	return id >= metadata.FirstBlockID && id < m.nextBlock
}

const (
	formatVersion = 2
	// loadedEpoch marks inodes that are as the checkpoint has them.
	loadedEpoch uint32 = 1
)

// Open loads what has to be in memory from the store's last complete checkpoint. A store without one, or with one that
// cannot be understood, gives an empty namespace with AppliedIndex 0: it waits for a snapshot or for the whole log.
func Open(cfg Config) (*Namespace, error) {
	if cfg.Store == nil {
		return nil, errors.New("namespace: no store")
	}
	if cfg.MinBlockSize == 0 {
		cfg.MinBlockSize = DefaultMinBlockSize
	}
	ns := &Namespace{cfg: cfg, memory: cfg.Memory, flights: map[string]*flight{}}
	err := ns.load()
	if errors.Is(err, metadata.ErrCorrupt) {
		// A checkpoint is a derived cache: raft brings the state back.
		if err := cfg.Store.SetAside(err); err != nil {
			return nil, fmt.Errorf("namespace: setting a damaged checkpoint aside: %w", err)
		}
		err = ns.load()
	}
	if err != nil {
		return nil, fmt.Errorf("namespace: %w", err)
	}
	return ns, nil
}

// clear makes the state of a namespace that has not seen a command.
func (ns *Namespace) clear() {
	ns.applied, ns.hash, ns.published, ns.applying = 0, 0, 0, false
	ns.meta = meta{
		ids:            ids{nextINode: metadata.RootID + 1, nextBlock: metadata.FirstBlockID},
		nextGeneration: metadata.FirstGeneration,
	}
	ns.root, ns.trash = nil, nil
	ns.inodes, ns.ring, ns.resident = map[metadata.INodeID]*inode{}, ring{}, 0
	ns.sweep = sweep{}
	ns.blocks = map[metadata.BlockID]*inode{}
	ns.leases, ns.openFiles = map[string]*lease{}, 0
	ns.retries = newRetryCache()
	ns.items, ns.itemBytes = map[string]*item{}, 0
	ns.tokens = newTokens()
	ns.caching.clear()
	ns.snaps = newSnapshots()
	ns.epoch = loadedEpoch + 1
	ns.apart, ns.decided = false, false
	ns.dirty, ns.pending, ns.gone, ns.frozen = changes{}, map[string][]byte{}, goneINodes{}, nil
	ns.touched, ns.touchedLeases, ns.effects, ns.undo = nil, nil, Effects{}, nil
	ns.arriving, ns.goneBodies = nil, nil
	ns.lastUser = unique.Make("")
	ns.broken = nil
}

// format makes the root directory of a new namespace.
func (ns *Namespace) format() {
	ns.root = ns.newDirectory(metadata.RootID, "", ns.cfg.Owner, ns.cfg.Supergroup, 0o755)
	ns.trash = ns.newDirectory(reclaimID, reclaimName, "", "", 0)
	ns.meta.directories = 1
	ns.metaHash = 0
	ns.settle()
}

func (ns *Namespace) newDirectory(id metadata.INodeID, name, owner, group string, mode metadata.Mode) *inode {
	n := &inode{
		id: id, name: name, mode: mode,
		owner: unique.Make(owner), group: unique.Make(group),
		mtime: ns.meta.now,
		dir:   &directory{},
	}
	ns.born(n)
	return n
}

// about is how many bytes the records take, by the numbers of them.
func (m *meta) about() int64 {
	return int64(m.files+m.directories)*300 + int64(m.blocks)*40
}

// hash is the part of the state's hash that the counters make.
func (m *meta) hash() uint64 {
	r := m.marker()
	value := marshal(nil, &r)
	return hashRecord(markerKey, value)
}

// marker is the record of the counters, without index and hash.
func (m *meta) marker() logpb.Marker {
	return logpb.Marker{
		Version:        formatVersion,
		Now:            int64(m.now),
		LogTime:        int64(m.logTime),
		LeasesRenewed:  int64(m.leasesRenewed),
		NextInode:      uint64(m.nextINode),
		NextBlock:      int64(m.nextBlock),
		NextGeneration: uint64(m.nextGeneration),
		NextRetry:      m.nextRetry,
		ClusterId:      m.clusterID,
		Owned:          m.owned,
		Files:          m.files,
		Directories:    m.directories,
		Blocks:         m.blocks,
		Quotas:         m.quotas,
		TypeQuotas:     m.typeQuotas,
		BlockKeys:      m.keys,
		KeysRolled:     int64(m.rolled),
		Surveys:        m.surveys,
		LastSurvey:     m.lastSurvey,
		SafeMode:       m.safeMode,
		Forgotten:      m.forgotten,

		RegisterVersion: m.itemVersion,
		TokenKeys:       m.tokenKeys,
		TokenKeysRolled: int64(m.tokenRolled),
		LastToken:       m.lastToken,

		LastCacheDirective: m.lastCached,

		Snapshots:     m.snapshots,
		Snapshottable: m.snapshottable,
		LastSnapshot:  m.lastSnapshot,
		Tree:          m.tree,
		Groups:        m.groups,
		Bodies:        m.bodies,
		BodyBytes:     m.bodyBytes,
	}
}

func metaOf(r *logpb.Marker) meta {
	return meta{
		now:            metadata.Time(r.Now),
		logTime:        LogTime(r.LogTime),
		leasesRenewed:  LogTime(r.LeasesRenewed),
		ids:            ids{nextINode: metadata.INodeID(r.NextInode), nextBlock: metadata.BlockID(r.NextBlock), groups: r.Groups},
		nextGeneration: metadata.Generation(r.NextGeneration),
		nextRetry:      r.NextRetry,
		clusterID:      r.ClusterId,
		owned:          r.Owned,
		files:          r.Files,
		directories:    r.Directories,
		blocks:         r.Blocks,
		quotas:         r.Quotas,
		typeQuotas:     r.TypeQuotas,
		keys:           r.BlockKeys,
		rolled:         LogTime(r.KeysRolled),
		surveys:        r.Surveys,
		lastSurvey:     r.LastSurvey,
		safeMode:       r.SafeMode,
		forgotten:      r.Forgotten,
		itemVersion:    r.RegisterVersion,
		tokenKeys:      r.TokenKeys,
		tokenRolled:    LogTime(r.TokenKeysRolled),
		lastToken:      r.LastToken,
		lastCached:     r.LastCacheDirective,
		snapshots:      r.Snapshots,
		snapshottable:  r.Snapshottable,
		lastSnapshot:   r.LastSnapshot,
		tree:           r.Tree,
		bodies:         r.Bodies,
		bodyBytes:      r.BodyBytes,
	}
}

// AppliedIndex is the last log index contained in the state; 0 for an empty one.
func (ns *Namespace) AppliedIndex() uint64 {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return ns.applied
}

// Hash is the hash of the state after the last applied entry. Members at one index have one hash.
func (ns *Namespace) Hash() uint64 {
	_, hash := ns.StateHash()
	return hash
}

// StateHash returns an index and the state's hash at it.
func (ns *Namespace) StateHash() (index, hash uint64) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return ns.applied, ns.published
}

// LogTime is the log time of the state.
func (ns *Namespace) LogTime() LogTime {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return ns.meta.logTime
}

// Now is the wall clock of whoever proposed the last command.
func (ns *Namespace) Now() metadata.Time {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return ns.meta.now
}

// ClusterID is the name that the first ReserveIDs command gave the cluster; empty before.
func (ns *Namespace) ClusterID() string {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return ns.meta.clusterID
}

// BlockKeys are the keys that sign block tokens, by ascending id, and the log time at which the last one came.
// The last but one signs.
func (ns *Namespace) BlockKeys() (keys []metadata.BlockKey, rolled LogTime) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	for _, k := range ns.meta.keys {
		keys = append(keys, metadata.BlockKey{ID: k.Id, Seed: metadata.KeySeed(k.Seed)})
	}
	return keys, ns.meta.rolled
}

// NewestBlockKey is the id of the last key, 0 if there is none. It takes no lock.
func (ns *Namespace) NewestBlockKey() int32 { return ns.newestBlockKey.Load() }

// publishMeta publishes what is told of meta without the lock. mu is held alone, or this is the start.
func (ns *Namespace) publishMeta() {
	ns.safeMode.Store(ns.meta.safeMode)
	if v := ns.meta.itemVersion; v != ns.registerVersion.Load() { // stores cost more, and this is for each entry
		ns.registerVersion.Store(v)
	}
	if k := newestKey(ns.meta.keys); k != ns.newestBlockKey.Load() {
		ns.newestBlockKey.Store(k)
	}
	ns.publishForgotten()
}

// Counts are sizes of the namespace.
type Counts struct {
	Files       int64
	Directories int64
	Blocks      int64
	OpenFiles   int64
	Leases      int64
	// Reclaiming is how many deleted directories are not yet taken apart.
	Reclaiming int64
	// Snapshots is how many there are, DeletedSnapshots how many others are not yet taken apart, and Snapshottable of how many
	// directories there may be any.
	Snapshots, DeletedSnapshots, Snapshottable int64
	// Resident is how many inodes are in memory, ResidentBytes what they count for there, of MemoryBytes at most (0: no
	// limit); Misses is how often something was read from the checkpoint, Evicted how many inodes were forgotten since the
	// start.
	Resident      int64
	ResidentBytes int64
	MemoryBytes   int64
	Misses        int64
	Evicted       int64
	// Retries is how many answers are kept for repetition.
	Retries int64
	// RetryBytes is what they count as, of RetryBytes at most, and RetriesEvicted how many had to go before their time since
	// the start.
	RetryBytes     int64
	RetriesEvicted int64
}

// Counts returns the sizes.
func (ns *Namespace) Counts() Counts {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	c := Counts{
		Files:       int64(ns.meta.files),
		Directories: int64(ns.meta.directories),
		Blocks:      int64(ns.meta.blocks),
		OpenFiles:   int64(ns.openFiles),
		Leases:      int64(len(ns.leases)),
		Reclaiming:  int64(ns.trash.dir.entries),
		Snapshots:   int64(ns.meta.snapshots),
		Resident:    int64(len(ns.inodes)),

		ResidentBytes: ns.resident, MemoryBytes: ns.memory, Misses: ns.misses.Load(), Evicted: ns.evicted,

		Retries: int64(ns.retries.answers),

		RetryBytes: int64(ns.retries.size()), RetriesEvicted: ns.retries.evicted,
	}
	c.DeletedSnapshots, c.Snapshottable = int64(len(ns.snaps.deleted)), int64(len(ns.snaps.allowed))
	c.Snapshots -= c.DeletedSnapshots
	return c
}
