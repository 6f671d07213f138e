package blockstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// VolumeConfig is one directory to keep blocks in.
type VolumeConfig struct {
	// Path is made if it is not there, unless the other volumes know of one that is missing; it must be empty then, or a
	// volume of this datanode.
	Path string
	Type datanode.StorageType
}

// Config configures a store.
type Config struct {
	Volumes []VolumeConfig
	// FS is the disk; nil is vfs.OS.
	FS vfs.FS
	// Reserve is how many bytes of each volume stay free: below it new replicas and appends are refused. 0 means a
	// twentieth of the volume, 1 GiB at most; -1 means none.
	Reserve int64
	// Tolerated is how many volumes may have failed when the store is opened; nil is all but one.
	Tolerated *int
	// DiskTimeout is how long a call of a disk may take while the store is being opened before its volume has failed; 0 is 30 s.
	DiskTimeout time.Duration
	// Keep is how long replicas are kept that Discard removed; 0 is DefaultKeep, negative keeps nothing.
	Keep time.Duration
	// Now is the clock of the trash; nil is time.Now.
	Now func() time.Time
	// OnChange hears of every change of a replica, in order per block. It must be quick and must not call the store.
	OnChange func(datanode.Change)
	// OnVolumeFailed hears of a volume that was given up; its replicas are gone from the store then.
	OnVolumeFailed func(datanode.VolumeStatus)
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Store is a datanode.BlockStore on disk. Once it is open it has no goroutines but Watch's and those that wait for a disk.
type Store struct {
	cfg      Config
	log      *slog.Logger
	datanode string
	listed   atomic.Pointer[[]*volume] // see all
	next     atomic.Uint32             // where the choice of a volume starts
	shards   [256]shard
	moves    sync.Map // metadata.BlockID of the replicas that are being moved to another volume

	swapMu sync.Mutex // held by who changes the list of volumes, or their identities after Open
	idMu   sync.Mutex // guards the identities; after swapMu
	// opened: the store serves, and what is found on a volume that comes is not alone.
	opened atomic.Bool
	own    Identity // of the datanode
}

var _ datanode.BlockStore = (*Store)(nil)

type shard struct {
	mu       sync.RWMutex
	replicas map[metadata.BlockID]*replica
}

// replica is what is known of one block.
type replica struct {
	io sync.Mutex // held by whoever changes the files; excludes writers from each other

	mu       sync.Mutex // guards what follows
	vol      *volume
	open     *opened // while not finalized
	id       metadata.BlockID
	gen      metadata.Generation
	recovery metadata.Generation // the highest recovery id promised; 0 if none runs
	length   int64
	state    datanode.ReplicaState
	suffix   suffix      // of the checksum file on disk; 0 while there are no files
	usual    bool        // known to have DefaultChecksum
	packed   *slot       // where the replica lies instead of files; guarded by io as well
	bad      bool        // announced as corrupt
	gone     bool        // deleted, or away
	away     atomic.Bool // the block's replica is on another volume now
}

// opened is what a replica needs beyond its length while it grows.
type opened struct {
	owner   *writer
	visible int64
	sum     datanode.Checksum
	// visibleCRC and lastCRC are the checksums of the chunks cut by visible and length, 0 if none is cut.
	visibleCRC, lastCRC uint32
	// ends are the packet ends that are not acknowledged yet.
	ends []end
	// unsynced: the directory does not durably hold the current names.
	unsynced bool
	tailSeq  uint64
	// expect is what is left of the writer's share of volume.expected.
	expect int64
	// instead is as in datanode.CreateOptions.
	instead string
	// changed is closed when visible or the state changes; nil if nobody waits.
	changed chan struct{}
}

type end struct {
	off int64
	crc uint32
}

func (s *Store) shard(id metadata.BlockID) *shard {
	x := uint64(id) * 0x9e3779b97f4a7c15
	return &s.shards[x>>56]
}

// get returns the replica of a block, nil if there is none or its volume has failed.
func (s *Store) get(id metadata.BlockID) *replica {
	sh := s.shard(id)
	sh.mu.RLock()
	r := sh.replicas[id]
	sh.mu.RUnlock()
	if r == nil || r.vol.failed.Load() != nil {
		return nil
	}
	return r
}

func (s *Store) forget(r *replica) {
	sh := s.shard(r.id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.replicas[r.id] == r {
		delete(sh.replicas, r.id)
		r.vol.replicas.Add(-1)
	}
}

func notFound(b metadata.Block) error {
	return metadata.Errorf(metadata.ErrReplicaNotFound, "Replica not found for blk_%d_%d", b.ID, b.Generation)
}

// blockLocked is the replica's block as it is now. r.mu is held.
func (r *replica) blockLocked() metadata.Block {
	return metadata.Block{ID: r.id, Generation: r.gen, Length: r.length}
}

// viewLocked is the replica's description. r.mu is held.
func (r *replica) viewLocked() datanode.Replica {
	v := datanode.Replica{Block: r.blockLocked(), State: r.state, Volume: r.vol.id.Storage}
	switch {
	case r.state == datanode.Finalized:
		v.Visible = r.length
	case r.state == datanode.RBW && r.open != nil:
		v.Visible = r.open.visible
	}
	return v
}

// view is viewLocked under the lock.
func (r *replica) view() datanode.Replica {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.viewLocked()
}

// wakeLocked tells those who wait for the replica to grow or to change its state. r.mu is held.
func (r *replica) wakeLocked() {
	if r.open != nil && r.open.changed != nil {
		close(r.open.changed)
		r.open.changed = nil
	}
}

// settleLocked ends the replica's time as an open one. r.mu is held.
func (r *replica) settleLocked() {
	r.wakeLocked()
	if r.open != nil {
		r.releaseLocked()
		r.open = nil
	}
}

// releaseLocked gives back what the writer had announced and did not write. r.mu is held.
func (r *replica) releaseLocked() {
	r.vol.expected.Add(-r.open.expect)
	r.open.expect = 0
}

func (s *Store) emit(kind datanode.ChangeKind, r datanode.Replica) {
	s.announce(datanode.Change{Kind: kind, Block: r.Block, Volume: r.Volume})
}

func (s *Store) announce(c datanode.Change) {
	if s.cfg.OnChange != nil {
		s.cfg.OnChange(c)
	}
}

// Open opens the volumes: locks them, checks whose they are, and recovers what a crash left. Replicas that were being
// written become RWR, cut to what their checksums cover. A volume that cannot be opened, or whose disk does not answer, has failed; the others serve.
func Open(cfg Config) (*Store, error) {
	if cfg.FS == nil {
		cfg.FS = vfs.OS
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Keep == 0 {
		cfg.Keep = DefaultKeep
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if len(cfg.Volumes) == 0 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "a datanode needs at least one volume")
	}
	s := &Store{cfg: cfg, log: cfg.Logger}
	for i := range s.shards {
		s.shards[i].replicas = map[metadata.BlockID]*replica{}
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Shutdown())
	}
	s.opened.Store(true)
	return s, nil
}

func (s *Store) open() error {
	if err := s.list(); err != nil {
		return err
	}
	defer watchOpening(s.all(), s.cfg.DiskTimeout)()
	if err := s.survey(); err != nil {
		return err
	}
	if err := s.agree(); err != nil {
		return err
	}
	var g errgroup.Group
	for _, v := range s.all() {
		if v.err() != nil {
			continue
		}
		g.Go(func() error {
			if err := v.ask(func() error { return s.load(v) }); err != nil {
				v.fail(explain(err))
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are the volumes'
	return s.tolerate()
}

// survey looks at all volumes and locks those that are there. One that cannot be read is a failed volume. An empty directory
// is a new volume, unless one of the others knows of a volume that is missing: then it is that one's place, and its disk is
// not mounted or was replaced.
func (s *Store) survey() error {
	var fresh []*volume
	accepted := map[*volume]bool{}
	found := make([]claimed, len(s.all()))
	var g sync.WaitGroup
	for i, v := range s.all() {
		g.Go(func() {
			var silent error
			if found[i], silent = answerOf(v, func() claimed { return claim(v.fs, v.path) }, claimed.release); silent != nil {
				found[i].err = silent
			}
		})
	}
	g.Wait()
	for i, v := range s.all() {
		f := found[i]
		v.id, v.lock = f.id, f.lock
		switch {
		case errors.Is(f.err, datanode.ErrVolumeInUse):
			return fmt.Errorf("volume %s: %w", v.path, f.err)
		case f.err != nil:
			v.broken = f.err
		case f.fresh:
			fresh = append(fresh, v)
			accepted[v] = f.accepted
		}
	}
	missing := missing(s.all())
	for _, v := range fresh {
		if len(missing) > 0 && !accepted[v] {
			v.broken = fmt.Errorf("there is nothing, but volume %s of this datanode is missing: is its disk not mounted? If it was replaced by a new one, put an empty file named %s there: %w",
				strings.Join(missing, " or "), acceptFile, datanode.ErrVolumeVersion)
			continue
		}
		made, silent := answerOf(v, func() claimed {
			err := mkdirAll(v.fs, v.path)
			if err != nil {
				return claimed{err: err}
			}
			lock, err := lockVolume(v.fs, v.path)
			return claimed{lock: lock, err: err}
		}, claimed.release)
		v.lock, v.broken = made.lock, errors.Join(made.err, silent)
		if errors.Is(v.broken, datanode.ErrVolumeInUse) {
			return fmt.Errorf("volume %s: %w", v.path, v.broken)
		}
	}
	for _, v := range s.all() {
		if v.broken == nil {
			g.Go(func() { v.broken = s.size(v) })
		}
	}
	g.Wait()
	s.nameBroken(missing)
	return nil
}

// list makes the volumes of the configuration, without a look at any disk.
func (s *Store) list() error {
	var list []*volume
	for _, c := range s.cfg.Volumes {
		v, err := s.newVolume(c, list)
		if err != nil {
			return err
		}
		list = append(list, v)
	}
	s.listed.Store(&list)
	return nil
}

// newVolume makes a volume beside others, without a look at its disk.
func (s *Store) newVolume(c VolumeConfig, others []*volume) (*volume, error) {
	path, err := filepath.Abs(c.Path)
	if err != nil || c.Path == "" {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "volume path %q is not usable", c.Path)
	}
	if slices.ContainsFunc(others, func(v *volume) bool { return v.path == path }) {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "volume %s is listed twice", path)
	}
	v := newVolume(s.cfg.FS, path, c.Type, 0, s.log)
	v.onFail = s.volumeFailed
	v.trash.keep, v.trash.now = s.cfg.Keep, s.cfg.Now
	if v.typ == 0 {
		v.typ = datanode.Disk
	}
	return v, nil
}

// all are the volumes, failed ones too. The list is replaced as a whole, by Add and Remove.
func (s *Store) all() []*volume {
	if list := s.listed.Load(); list != nil {
		return *list
	}
	return nil
}

// size finds how much a volume holds.
func (s *Store) size(v *volume) error {
	type answer struct {
		u   vfs.Usage
		err error
	}
	a, err := answerOf(v, func() answer {
		u, err := v.fs.Usage(v.path)
		return answer{u, err}
	}, nil)
	if err = errors.Join(a.err, err); err != nil {
		return err
	}
	u := a.u
	switch {
	case s.cfg.Reserve == 0:
		v.reserve = min(u.Total/20, 1<<30)
	case s.cfg.Reserve > 0:
		v.reserve = s.cfg.Reserve
	}
	v.trash.limit = u.Total / trashShare
	return nil
}

// missing lists the volumes that the others know of and that are not there, in order.
func missing(volumes []*volume) []string {
	there := map[string]bool{}
	known := map[string]bool{}
	for _, v := range volumes {
		there[v.id.Storage] = true
		for _, id := range strings.Split(v.id.Siblings, ",") {
			known[id] = true
		}
	}
	var out []string
	for id := range known {
		if id != "" && !there[id] {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// nameBroken gives up the volumes that could not be opened. Which of the missing ones each was cannot be known; the namenode
// hears that they have failed.
func (s *Store) nameBroken(missing []string) {
	for _, v := range s.all() {
		if v.broken == nil {
			continue
		}
		if v.id.Storage == "" && len(missing) > 0 {
			v.id.Storage, missing = missing[0], missing[1:]
		}
		if v.id.Storage == "" {
			v.id.Storage = fmt.Sprintf("DS-unknown-%08x", crcOf([]byte(v.path)))
		}
		v.fail(explain(v.broken))
	}
}

// tolerate decides whether there are enough volumes that work.
func (s *Store) tolerate() error {
	var errs []error
	for _, v := range s.all() {
		if p := v.failed.Load(); p != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", v.path, *p))
		}
	}
	limit := len(s.all()) - 1
	if s.cfg.Tolerated != nil {
		limit = min(limit, *s.cfg.Tolerated)
	}
	switch {
	case len(errs) <= limit:
		return nil
	case len(errs) == 1:
		return errs[0]
	}
	return fmt.Errorf("%d of %d volumes do not work, %d may; the first is %w", len(errs), len(s.all()), limit, errs[0])
}

// explain adds what to do about the errors that operators meet.
func explain(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: the datanode's user must own the directory and be able to read and write it", err)
	}
	return err
}

// agree checks that all volumes that work are of one datanode and one cluster, gives new ones that identity, and tells each
// of all.
func (s *Store) agree() error {
	var first *volume
	for _, v := range s.all() {
		if v.id.Datanode == "" || v.err() != nil {
			continue
		}
		if first == nil {
			first = v
		}
		if v.id.Datanode != first.id.Datanode {
			return fmt.Errorf("volume %s is of datanode %s, volume %s of datanode %s: %w", first.path, first.id.Datanode, v.path, v.id.Datanode, datanode.ErrVolumeOwner)
		}
		if v.id.Cluster != "" && first.id.Cluster != "" && v.id.Cluster != first.id.Cluster {
			return fmt.Errorf("volume %s is of cluster %s, volume %s of cluster %s: %w", first.path, first.id.Cluster, v.path, v.id.Cluster, datanode.ErrVolumeOwner)
		}
		if first.id.Cluster == "" {
			first = v
		}
	}
	s.datanode = uuid.NewString()
	if first != nil {
		s.own = first.id
		s.datanode = first.id.Datanode
	}
	wants := make([]Identity, len(s.all()))
	var all []string
	for i, v := range s.all() {
		wants[i] = v.id
		if v.err() == nil && v.id.Datanode == "" {
			wants[i] = newIdentity(s.datanode)
		}
		if v.err() == nil || !strings.HasPrefix(wants[i].Storage, "DS-unknown-") {
			all = append(all, wants[i].Storage)
		}
	}
	slices.Sort(all)
	s.own = Identity{Datanode: s.datanode, Cluster: s.own.Cluster, BlockPool: s.own.BlockPool}
	for i, v := range s.all() {
		if v.err() != nil {
			continue
		}
		want := wants[i]
		want.Cluster, want.BlockPool, want.Siblings = s.own.Cluster, s.own.BlockPool, strings.Join(all, ",")
		if want == v.id {
			continue
		}
		isNew := v.id.Datanode == ""
		err := v.ask(func() error {
			err := writeIdentity(v.fs, v.path, want)
			if err == nil && isNew {
				err = removeFile(v.fs, filepath.Join(v.path, acceptFile))
			}
			return err
		})
		v.id = want
		if err != nil {
			v.fail(explain(err))
		}
	}
	return nil
}

// Identity is the datanode's uuid and the cluster that it belongs to; Storage is empty.
func (s *Store) Identity() Identity {
	s.idMu.Lock()
	defer s.idMu.Unlock()
	return s.own
}

// joined: every volume that works knows the cluster.
func (s *Store) joined(cluster, blockPool string) bool {
	s.idMu.Lock()
	defer s.idMu.Unlock()
	return s.own.Cluster == cluster && s.own.BlockPool == blockPool && !slices.ContainsFunc(s.all(), func(v *volume) bool {
		return v.err() == nil && (v.id.Cluster != cluster || v.id.BlockPool != blockPool)
	})
}

// Join records the cluster on every volume, durably. A store that belongs to another one refuses.
func (s *Store) Join(cluster, blockPool string) error {
	if s.joined(cluster, blockPool) {
		return nil
	}
	s.swapMu.Lock()
	defer s.swapMu.Unlock()
	s.idMu.Lock()
	defer s.idMu.Unlock()
	for _, v := range s.all() {
		if v.err() == nil && v.id.Cluster != "" && v.id.Cluster != cluster {
			return fmt.Errorf("volume %s is of cluster %s, the namenode of cluster %s: %w", v.path, v.id.Cluster, cluster, datanode.ErrVolumeOwner)
		}
	}
	for _, v := range s.all() {
		want := v.id
		want.Cluster, want.BlockPool = cluster, blockPool
		if want == v.id || v.err() != nil {
			continue
		}
		if err := v.check(writeIdentity(v.fs, v.path, want)); err != nil {
			return err
		}
		v.id.Cluster, v.id.BlockPool = cluster, blockPool
	}
	s.own.Cluster, s.own.BlockPool = cluster, blockPool
	return nil
}

// Shutdown releases the volumes. Nothing may use the store any more; what is not finalized becomes RWR at the next Open.
func (s *Store) Shutdown() error {
	s.closePacks()
	var errs []error
	for _, v := range s.all() {
		if v.lock != nil {
			errs = append(errs, v.lock.Close())
			v.lock = nil
		}
	}
	return errors.Join(errs...)
}

func (s *Store) volumeFailed(v *volume) {
	if s.cfg.OnVolumeFailed != nil && slices.Contains(s.all(), v) {
		s.cfg.OnVolumeFailed(v.status())
	}
}

// Volumes implements datanode.BlockStore.
func (s *Store) Volumes() []datanode.VolumeStatus {
	all := s.all()
	out := make([]datanode.VolumeStatus, len(all))
	for i, v := range all {
		out[i] = v.status()
	}
	return out
}

// VolumeOf is the storage uuid of the volume on which a replica lies. It waits for nothing.
func (s *Store) VolumeOf(id metadata.BlockID) (string, bool) {
	r := s.get(id)
	if r == nil {
		return "", false
	}
	return r.vol.id.Storage, true
}

// Replica implements datanode.BlockStore.
func (s *Store) Replica(id metadata.BlockID) (datanode.Replica, bool) {
	v, err := again(s, id, func() (datanode.Replica, error) {
		r := s.get(id)
		if r == nil || !r.acquire(&r.mu) {
			return datanode.Replica{}, errNone
		}
		defer r.mu.Unlock()
		if r.gone {
			return r.viewLocked(), errNone
		}
		return r.viewLocked(), nil
	})
	return v, err == nil
}

// errNone: there is no replica.
var errNone = metadata.Errorf(metadata.ErrReplicaNotFound, "there is none")

// Each implements datanode.BlockStore. It locks one shard at a time and calls fn without a lock.
func (s *Store) Each(storage string, fn func(datanode.Replica) bool) {
	var batch []*replica
	for i := range s.shards {
		sh := &s.shards[i]
		batch = batch[:0]
		sh.mu.RLock()
		for _, r := range sh.replicas {
			if r.vol.id.Storage == storage && r.vol.failed.Load() == nil {
				batch = append(batch, r)
			}
		}
		sh.mu.RUnlock()
		for _, r := range batch {
			if !r.acquire(&r.mu) {
				break // the volume has failed meanwhile
			}
			view, gone := r.viewLocked(), r.gone
			r.mu.Unlock()
			if !gone && !fn(view) {
				return
			}
		}
	}
}

// Wait implements datanode.BlockStore.
func (s *Store) Wait(ctx context.Context, id metadata.BlockID, length int64) {
	r := s.get(id)
	if r == nil {
		return
	}
	for {
		if !r.acquire(&r.mu) {
			return
		}
		if r.gone || r.open == nil || r.state != datanode.RBW || r.open.visible >= length {
			r.mu.Unlock()
			return
		}
		if r.open.changed == nil {
			r.open.changed = make(chan struct{})
		}
		changed := r.open.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Delete implements datanode.BlockStore. Readers that have the replica open can finish.
func (s *Store) Delete(b metadata.Block) error { return s.delete(b, false) }

func (s *Store) delete(b metadata.Block, keep bool) error {
	r := s.get(b.ID)
	if r == nil {
		return nil
	}
	if !r.acquire(&r.mu) {
		return r.vol.err()
	}
	if r.gone {
		r.mu.Unlock()
		if r.away.Load() {
			return s.delete(b, keep)
		}
		return nil
	}
	if r.gen > b.Generation {
		gen := r.gen
		r.mu.Unlock()
		return metadata.Errorf(metadata.ErrInvalidArgument, "delete of %v: the replica is of the newer generation %d", b, gen)
	}
	r.fenceLocked()
	r.mu.Unlock()

	if !r.acquire(&r.io) {
		return r.vol.err()
	}
	err := s.removeReplica(r, b.Generation, keep)
	r.io.Unlock()
	if err == nil && r.away.Load() { // meanwhile
		return s.delete(b, keep)
	}
	return err
}

// removeReplica removes the files, or keeps them in the trash, and forgets the replica, unless it is of a generation above
// limit by now. r.io is held.
func (s *Store) removeReplica(r *replica, limit metadata.Generation, keep bool) error {
	r.mu.Lock()
	if r.gone || r.gen > limit {
		r.mu.Unlock()
		return nil
	}
	temporary := r.state == datanode.Temporary
	view := r.viewLocked()
	r.gone = true
	r.settleLocked()
	remove := r.discard
	if keep {
		remove = r.bin
	}
	err := remove()
	r.packed = nil
	r.vol.used.Add(-(r.length + sumsSize(r.length)))
	r.mu.Unlock()
	if !temporary {
		s.emit(datanode.Deleted, view) // before another replica of the block can be announced
	}
	s.forget(r)
	return err
}

// Disown announces that there is no replica of a block, unless there is one: somebody takes one to be here. Of what was on a volume
// that has failed nothing is said; it may come back.
func (s *Store) Disown(id metadata.BlockID) {
	sh := s.shard(id)
	sh.mu.RLock() // a replica that comes is announced behind
	defer sh.mu.RUnlock()
	if sh.replicas[id] == nil {
		s.emit(datanode.Deleted, datanode.Replica{Block: metadata.Block{ID: id}})
	}
}

// choose picks a volume for a new replica: those of the wanted type first, in turn.
func (s *Store) choose(typ datanode.StorageType, expect int64) (*volume, error) {
	start, all := int(s.next.Add(1)), s.all()
	var firstErr error
	for _, exact := range []bool{true, false} {
		for i := range all {
			v := all[(start+i)%len(all)]
			if v.err() != nil || (v.typ == typ) != exact {
				continue
			}
			room, err := v.room(expect)
			if err != nil && firstErr == nil {
				firstErr = err
			}
			if err == nil && room > 0 && room >= expect {
				return v, nil
			}
		}
	}
	if firstErr != nil {
		return nil, firstErr
	}
	return nil, metadata.Errorf(metadata.ErrNoSpace, "no volume has %d bytes left above its reserve", max(1, expect))
}

// makeWay lets a copy that comes take the place of a replica that was found damaged.
func (s *Store) makeWay(b metadata.Block) error {
	r := s.get(b.ID)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	damaged := r.bad && r.state == datanode.Finalized && r.gen <= b.Generation
	r.mu.Unlock()
	if !damaged {
		return nil
	}
	return s.Discard(b)
}

// maxExpect limits what a writer's announcement may block of a volume; Hadoop clients announce the block size.
const maxExpect = 1 << 30

// Create implements datanode.BlockStore.
func (s *Store) Create(b metadata.Block, o datanode.CreateOptions) (datanode.Writer, error) {
	if b.Generation == 0 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "create of block %d: generation 0", b.ID)
	}
	if o.Type == 0 {
		o.Type = datanode.Disk
	}
	if o.Checksum == (datanode.Checksum{}) {
		o.Checksum = datanode.DefaultChecksum
	}
	if o.Checksum.Type > datanode.CRC32C || o.Checksum.BytesPer == 0 || o.Checksum.BytesPer > maxBytesPer {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "create of block %d with checksums of type %d over %d bytes", b.ID, o.Checksum.Type, o.Checksum.BytesPer)
	}
	expect := min(max(o.Expect, 0), maxExpect)
	if o.Temporary {
		if err := s.makeWay(b); err != nil {
			return nil, fmt.Errorf("create %v: %w", b, err)
		}
	}
	v, err := s.choose(o.Type, expect)
	if err != nil {
		return nil, fmt.Errorf("create %v: %w", b, err)
	}
	r := &replica{vol: v, id: b.ID, gen: b.Generation, state: datanode.RBW, open: &opened{unsynced: true, expect: expect, sum: o.Checksum, instead: o.Instead}}
	r.usual = o.Checksum == datanode.DefaultChecksum
	if o.Temporary {
		r.state = datanode.Temporary
	}
	w := &writer{store: s, r: r, lost: make(chan struct{})}
	r.open.owner = w
	r.io.Lock()
	defer r.io.Unlock()
	r.mu.Lock()
	sh := s.shard(b.ID)
	sh.mu.Lock()
	if old := sh.replicas[b.ID]; old != nil && old.vol.failed.Load() == nil {
		sh.mu.Unlock()
		r.mu.Unlock()
		return nil, metadata.Errorf(metadata.ErrExist, "Block blk_%d_%d already exists in state %v and thus cannot be created.", b.ID, b.Generation, old.view().State)
	}
	sh.replicas[b.ID] = r
	sh.mu.Unlock()
	v.replicas.Add(1)
	v.expected.Add(expect)
	v.used.Add(headerSize)
	if o.Temporary { // others get their files with the first write, unless that is packed
		if err = v.ensureDir(b.ID); err == nil {
			if w.data, w.sums, err = v.createFiles(b.ID, b.Generation, sufTmp, o.Checksum); err == nil {
				r.suffix = sufTmp
			}
		}
	}
	if err != nil {
		r.gone = true
		r.settleLocked()
		v.used.Add(-headerSize)
		r.mu.Unlock()
		s.forget(r)
		return nil, fmt.Errorf("create %v: %w", b, err)
	}
	view := r.viewLocked()
	r.mu.Unlock()
	if !o.Temporary {
		s.emit(datanode.Receiving, view)
	}
	return w, nil
}

// openFiles opens the replica's files; one that has none gets them. r.io is held.
func (w *writer) openFiles() error {
	r, v := w.r, w.r.vol
	if w.data != nil {
		return nil
	}
	if r.packed != nil {
		return w.unpack()
	}
	if r.suffix == 0 {
		err := v.ensureDir(r.id)
		if err == nil {
			w.data, w.sums, err = v.createFiles(r.id, r.gen, sufRBW, w.Checksum())
		}
		if err == nil {
			r.mu.Lock()
			r.suffix = sufRBW
			r.mu.Unlock()
		}
		return err
	}
	var err error
	if w.data, err = v.fs.OpenFile(v.dataPath(r.id), os.O_RDWR, 0); err != nil {
		return v.check(err)
	}
	if w.sums, err = v.fs.OpenFile(v.sumsPath(r.id, r.gen, r.suffix), os.O_RDWR, 0); err != nil {
		w.data.Close()
		w.data = nil
		return v.check(err)
	}
	return nil
}
