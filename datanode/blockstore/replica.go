package blockstore

import (
	"sync"
	"sync/atomic"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/metadata"
)

// replica is what is known of one block: the handle of those that are not at rest (table.go).
type replica struct {
	// users hold the handle, which stays the replica's only one while there are any: see get. Who adds to it has the lock of the shard, is one of them, or has a replica in memory, which never rests.
	users atomic.Int32

	io sync.Mutex // held by whoever changes the files; excludes writers from each other

	mu       sync.Mutex // guards what follows
	vol      *volume
	open     *opened // while not finalized; set and taken away only by who holds io as well
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

	// Of a replica in memory: its copy on a disk, changed by who holds io, and whether it was read lately.
	saved atomic.Pointer[moved]
	read  atomic.Bool
	// onto is the disk that it is leaving memory for; set with the lock of the shard as well.
	onto atomic.Pointer[volume]
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
	// promised: something of it was made durable before its end, which is durable too then, as of one that is not whole after a power cut nobody gets anything.
	promised bool
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

// mustLast reports whether an open replica has to be durable once it is finalized, though the store leaves others to Settle.
func (r *replica) mustLast() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.vol.inMemory() ||
		r.state == datanode.Temporary || // what it is a copy of may be durable, and is removed where there are too many
		r.open != nil && r.open.promised
}

// wakeLocked tells those who wait for the replica to grow or to change its state. r.mu is held.
func (r *replica) wakeLocked() {
	if r.open != nil && r.open.changed != nil {
		close(r.open.changed)
		r.open.changed = nil
	}
}

// settleLocked ends the replica's time as an open one. r.io, if anybody else knows the replica, and r.mu are held.
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
