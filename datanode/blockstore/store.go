package blockstore

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	// Tolerated is how many volumes may have failed when the store is opened, and afterwards as Tolerable has it; nil is all but one.
	Tolerated *int
	// DiskTimeout is how long a call of a disk may take while the store is being opened before its volume has failed; 0 is 30 s.
	DiskTimeout time.Duration
	// Keep is how long replicas are kept that Discard removed; 0 is DefaultKeep, negative keeps nothing.
	Keep time.Duration
	// Unsynced finalizes replicas without syncing them (dfs.datanode.synconclose=false), unless something of one is durable, or it is a copy. Settle syncs them later.
	Unsynced bool
	// Now is the clock of the trash; nil is time.Now.
	Now func() time.Time
	// OnChange hears of every change of a replica, in order per block. It must be quick and must not call the store.
	OnChange func(datanode.Change)
	// OnVolumeFailed hears of a volume that was given up; its replicas are gone from the store then.
	OnVolumeFailed func(datanode.VolumeStatus)
	// OnVolumeSlow hears that a volume has become slow, or is slow no more. It must be quick.
	OnVolumeSlow func()
	// OnStuck hears that who waits for some replica waits in vain: Mute or GaveUp say of which. It is called again and again while a volume is mute, and once when one was given up.
	OnStuck func()
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
	shards   [1 << shardBits]shard
	places   places
	tidying  int      // the shard that the watchdog looks at next
	moves    sync.Map // metadata.BlockID of the replicas that are being copied to another volume: *atomic.Pointer[volume] of that one, see beginMove
	memory   memoryCounts
	rescue   chan struct{} // capacity 1: a volume has failed

	swapMu    sync.Mutex          // held by who changes the list of volumes, or their identities after Open
	swappers  atomic.Int32        // administrators who wait for swapMu
	reviving  atomic.Bool         // Revive has swapMu
	patient   map[string]patience // by path, see Revive; guarded by swapMu
	removed   map[string]*volume  // by path, those that were given back, or not opened, while their disks did not answer; guarded by swapMu
	idMu      sync.Mutex          // guards the identities; after swapMu
	leaveOnce sync.Once
	leaves    chan struct{} // closed by Leave: no disk is waited for any more by who opens a volume
	// opened: the store serves, and what is found on a volume that comes is not alone.
	opened atomic.Bool
	own    Identity // of the datanode
}

var _ datanode.BlockStore = (*Store)(nil)

func (s *Store) emit(kind datanode.ChangeKind, r datanode.Replica) {
	s.announce(datanode.Change{Kind: kind, Block: r.Block, Volume: r.Volume})
}

func (s *Store) announce(c datanode.Change) {
	if s.cfg.OnChange != nil {
		s.cfg.OnChange(c)
	}
}

// all are the volumes, failed ones too. The list is replaced as a whole, by Add and Remove.
func (s *Store) all() []*volume {
	if list := s.listed.Load(); list != nil {
		return *list
	}
	return nil
}

// Shutdown releases the volumes. Nothing may use the store any more; what is not finalized becomes RWR at the next Open.
func (s *Store) Shutdown() error {
	s.closePacks()
	s.indexAll()
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
	select {
	case s.rescue <- struct{}{}:
	default:
	}
	if s.cfg.OnVolumeFailed != nil && slices.Contains(s.all(), v) {
		s.cfg.OnVolumeFailed(v.status())
	}
}

// Volumes implements datanode.BlockStore. The disks are asked side by side: several that do not answer are waited for as long as one.
func (s *Store) Volumes() []datanode.VolumeStatus {
	all := s.all()
	out := make([]datanode.VolumeStatus, len(all))
	var g sync.WaitGroup
	for i, v := range all[:max(len(all)-1, 0)] {
		g.Go(func() { out[i] = v.status() })
	}
	if last := len(all) - 1; last >= 0 {
		out[last] = all[last].status()
	}
	g.Wait()
	return out
}

// VolumeOf is the storage uuid of the volume on which a replica lies. It waits for nothing.
func (s *Store) VolumeOf(id metadata.BlockID) (string, bool) {
	v, _ := s.whereIs(id)
	if v == nil || v.failed.Load() != nil {
		return "", false
	}
	return v.id.Storage, true
}

// Replica implements datanode.BlockStore.
func (s *Store) Replica(id metadata.BlockID) (datanode.Replica, bool) {
	for {
		if view, there, away := s.lookAt(id); !away {
			return view, there
		}
	}
}

// lookAt is Replica, unless the replica goes to another volume just then; nothing is made of one at rest.
func (s *Store) lookAt(id metadata.BlockID) (view datanode.Replica, there, away bool) {
	sh := s.shard(id)
	sh.mu.RLock()
	r := sh.replicas[id]
	if r == nil {
		defer sh.mu.RUnlock()
		e, ok := sh.resting.get(id)
		if !ok {
			return view, false, false
		}
		v := s.places.at(e).v
		return datanode.Replica{Block: e.block(), State: datanode.Finalized, Visible: e.length(), Volume: v.id.Storage}, v.failed.Load() == nil, false
	}
	r.users.Add(1)
	sh.mu.RUnlock()
	defer s.letGo(r)
	if r.vol.failed.Load() != nil || !r.acquire(&r.mu) {
		return view, false, false
	}
	defer r.mu.Unlock()
	return r.viewLocked(), !r.gone, r.gone && r.away.Load()
}

// Each implements datanode.BlockStore. It locks one shard at a time, to list its blocks, and calls fn without a lock.
func (s *Store) Each(storage string, fn func(datanode.Replica) bool) {
	v, err := s.volumeOf(storage)
	if err != nil { // there is none, or it has failed
		return
	}
	var ids []metadata.BlockID
	for i := range s.shards {
		ids = s.idsOn(&s.shards[i], ids[:0], v)
		for _, id := range ids {
			if view, there := s.Replica(id); there && view.Volume == storage && !fn(view) {
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
	defer s.letGo(r)
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
