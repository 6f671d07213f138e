package blockstore

import (
	"fmt"
	"os"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/metadata"
)

// choose picks a volume for a new replica: those of the wanted type first, in turn, and slow ones only where there is no other. In memory lies only what is wanted there, and where
// there is no room goes to a disk.
func (s *Store) choose(typ datanode.StorageType, expect int64) (*volume, error) {
	start, all := int(s.next.Add(1)), s.all()
	var firstErr error
	instead := datanode.Disk
	kinds := []func(*volume) bool{
		func(v *volume) bool { return v.typ == typ },
		func(v *volume) bool { return v.typ == instead && typ != instead },
		func(v *volume) bool { return v.typ != typ && v.typ != instead && !v.inMemory() },
	}
	for turn := range 2 * len(kinds) {
		for i := range all {
			v := all[(start+i)%len(all)]
			if v.err() != nil || !kinds[turn%len(kinds)](v) || v.slow.Load() != (turn >= len(kinds)) {
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
	defer s.letGo(r)
	if !r.acquire(&r.mu) {
		return nil
	}
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
		if o.Type == datanode.RAMDisk { // a copy is not for memory
			o.Type = datanode.Disk
		}
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
	w := newWriter(s, r)
	r.open.owner = w
	r.io.Lock()
	defer r.io.Unlock()
	r.mu.Lock()
	sh := s.shard(b.ID)
	sh.mu.Lock()
	old := s.holdLocked(sh, b.ID)
	defer s.letGo(old)
	if old != nil && old.vol.failed.Load() == nil {
		sh.mu.Unlock()
		r.mu.Unlock()
		if !old.acquire(&old.mu) {
			return nil, fmt.Errorf("create %v: %w", b, old.vol.err())
		}
		view := old.viewLocked()
		old.mu.Unlock()
		return nil, metadata.Errorf(metadata.ErrExist, "Block blk_%d_%d already exists in state %v and thus cannot be created.", b.ID, b.Generation, view.State)
	}
	if old != nil && s.arrives(old) {
		sh.mu.Unlock()
		r.mu.Unlock()
		return nil, metadata.Errorf(metadata.ErrRetriable, "block %d is being brought to another volume from one that has failed", b.ID)
	}
	if v.leaving.Load() { // since it was chosen
		sh.mu.Unlock()
		r.mu.Unlock()
		return s.Create(b, o)
	}
	s.enterLocked(sh, r)
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
	switch {
	case v.inMemory():
		s.memory.written.Add(1)
	case o.Type == datanode.RAMDisk:
		s.memory.fallbacks.Add(1)
	}
	return w, nil
}

// openFiles opens the replica's files; one that has none gets them. r.io is held.
func (w *writer) openFiles() error {
	r, v := w.r(), w.r().vol
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
	if w.sums, err = v.fs.OpenFile(r.sumsPath(), os.O_RDWR, 0); err != nil {
		w.data.Close()
		w.data = nil
		return v.check(err)
	}
	return nil
}
