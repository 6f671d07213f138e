package blockstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// promise is what a power cut may not take away from a block.
type promise struct {
	gen    metadata.Generation
	length int64 // the first so many bytes
	closed bool  // exactly these, finalized
}

// story runs random operations on a store and knows what each promised.
type story struct {
	*harness
	r        *rand.Rand
	data     []byte // block id's bytes are data[id:]
	promises map[int64]promise
	written  map[int64]int64 // the longest it ever was
	writers  map[int64]datanode.Writer
	finals   map[metadata.Block]bool // what a replica was finalized as, or was about to be
	gen      int64
	emptied  map[int64]bool // it has lost the beginning of its checksum file, where it says how it is checked
	memory   bool           // one volume is lost with the machine
	indexes  *rand.Rand     // the index is written now and then, if it is not nil
	log      []string       // promises and calls to the disk, for the failure's report
}

func (s *story) bytesOf(id, from, to int64) []byte { return s.data[id*17+from : id*17+to] }

// wantedOf is how each of the blocks is checked.
var wantedOf = []datanode.Checksum{
	datanode.DefaultChecksum, {Type: datanode.CRC32, BytesPer: 512}, {Type: datanode.CRC32C, BytesPer: 4096}, {Type: datanode.NoChecksum, BytesPer: 512},
}

// promise notes that a replica is complete, which is for ever on a disk, if it was synced.
func (s *story) promise(v datanode.Replica) {
	id := int64(v.Block.ID)
	switch r := s.get(v.Block.ID); {
	case s.on(id) == datanode.RAMDisk:
		delete(s.promises, id)
	case r.suffix != sufUnsynced && !(r.packed != nil && r.packed.p.unsettled.Load()):
		s.promises[id] = promise{v.Block.Generation, v.Block.Length, true}
	}
}

// final notes that a replica is about to be finalized.
func (s *story) final(b metadata.Block, gen metadata.Generation, length int64) {
	s.finals[metadata.Block{ID: b.ID, Generation: gen, Length: length}] = true
}

// indexed has the index written now and then, on a disk whose clock makes that possible.
func (s *story) indexed(disk *mem.FS, seed uint64) {
	ticking(disk, seed)
	s.indexes = rand.New(rand.NewPCG(seed, 10))
}

// step performs one operation on one block. Promises are lowered before an operation may break them and raised after it
// returned.
func (s *story) step() error {
	s.log = append(s.log, fmt.Sprint(s.promises))
	if s.indexes != nil && s.indexes.IntN(4) == 0 {
		if err := writeIndexes(s.Store); err != nil && !errors.Is(err, metadata.ErrNoSpace) {
			return err
		}
	}
	id := int64(s.r.IntN(4) + 1)
	rep, have := s.Replica(metadata.BlockID(id))
	w := s.writers[id]
	s.gen++
	gen := metadata.Generation(s.gen)
	switch {
	case w != nil && s.r.IntN(3) > 0:
		from := rep.Block.Length
		to := from + int64(1+s.r.IntN(900))
		if s.r.IntN(3) > 0 && from%chunk != 0 {
			to = min(to, from-from%chunk+chunk)
		} else {
			from -= from % chunk // as Java does after hflush
		}
		to = min(to, 12_000)
		if to <= from {
			return nil
		}
		s.written[id] = max(s.written[id], to)
		var pieces []datanode.Piece
		for rest := s.bytesOf(id, from, to); len(rest) > 0; {
			n := len(rest)
			if from%chunk == 0 && s.r.IntN(2) == 0 {
				n = min(n, (1+s.r.IntN(2))*chunk)
			}
			pieces = append(pieces, datanode.Piece{Off: from, Data: rest[:n], Sums: sumsBy(w.Checksum(), rest[:n])})
			from, rest = from+int64(n), rest[n:]
		}
		if _, err := w.WriteAll(pieces); err != nil {
			return err
		}
		if s.r.IntN(2) == 0 {
			w.Acked(to)
		}
	case w != nil && s.r.IntN(3) == 0:
		if err := w.Sync(); err != nil {
			return err
		}
		if rep.State != datanode.Temporary {
			s.promises[id] = promise{rep.Block.Generation, rep.Block.Length, false}
		}
		w.Acked(rep.Block.Length)
	case w != nil && s.r.IntN(4) == 0:
		delete(s.writers, id)
		return w.Close()
	case w != nil:
		delete(s.writers, id)
		s.final(rep.Block, rep.Block.Generation, rep.Block.Length)
		v, err := w.Finalize()
		if err != nil {
			return err
		}
		s.promise(v)
	case !have:
		var err error
		delete(s.promises, id)
		o := datanode.CreateOptions{Temporary: s.r.IntN(4) == 0, Checksum: wantedOf[id-1]}
		if s.memory && s.r.IntN(4) > 0 {
			o.Type = datanode.RAMDisk
		}
		if w, err = s.Create(metadata.Block{ID: metadata.BlockID(id), Generation: gen}, o); err != nil {
			return err
		}
		s.writers[id] = w
	case s.r.IntN(12) == 0:
		delete(s.promises, id)
		remove := s.Delete
		if s.r.IntN(2) == 0 {
			remove = s.Discard
		}
		return remove(metadata.Block{ID: metadata.BlockID(id), Generation: rep.Block.Generation})
	case s.r.IntN(3) == 0: // block recovery
		rep, err := s.InitRecovery(metadata.Block{ID: metadata.BlockID(id), Generation: rep.Block.Generation}, gen)
		if err != nil {
			return err
		}
		length := rep.Block.Length
		if s.r.IntN(3) > 0 {
			length = s.r.Int64N(length + 1)
		}
		p := s.promises[id]
		s.promises[id] = promise{p.gen, min(p.length, length), false}
		s.final(rep.Block, gen, length)
		v, err := s.UpdateReplica(metadata.Block{ID: metadata.BlockID(id)}, gen, length)
		if err != nil {
			return err
		}
		s.promise(v)
	case s.memory && s.r.IntN(3) == 0:
		for _, v := range s.all() {
			if v.inMemory() && s.r.IntN(2) == 0 {
				s.persist(context.Background(), v)
			} else if v.inMemory() {
				s.evict(v, 1+s.r.Int64N(10_000))
			}
			for _, r := range v.memory.saved {
				if r.saved.Load() != nil {
					s.promises[int64(r.id)] = promise{r.gen, r.length, true}
				}
			}
		}
	case s.cfg.Unsynced && rep.State == datanode.Finalized && s.r.IntN(3) == 0:
		for _, v := range s.all() {
			s.settle(context.Background(), v, time.Now())
		}
		every(s.Store, func(v datanode.Replica) bool {
			if v.State == datanode.Finalized {
				s.promise(v)
			}
			return true
		})
	case rep.State == datanode.Finalized && len(s.all()) > 1 && s.r.IntN(3) > 0:
		if s.memory {
			return s.Move(context.Background(), rep.Block, datanode.Disk, nil)
		}
		if err := s.Move(context.Background(), rep.Block, []datanode.StorageType{datanode.Disk, datanode.SSD}[s.r.IntN(2)], nil); err != nil {
			return err
		}
		s.promise(rep)
	case rep.State == datanode.Finalized:
		p := s.promises[id]
		p.closed = false
		s.promises[id] = p
		var err error
		if s.r.IntN(3) == 0 {
			gen = rep.Block.Generation // as gohdfs does
		}
		if w, err = s.Append(rep.Block, gen, s.r.IntN(2) == 0); err != nil {
			return err
		}
		s.writers[id] = w
	case rep.State == datanode.RBW:
		p := s.promises[id]
		p.length, p.closed = min(p.length, rep.Visible), false
		s.promises[id] = p
		var err error
		if w, err = s.Resume(rep.Block, gen, 0, rep.Block.Length); err != nil {
			return err
		}
		s.writers[id] = w
	}
	return nil
}

// verify opens the disk as it was left by a crash and holds the store to the promises.
func (s *story) verify(t *testing.T, crash int, disk *mem.FS, promises map[int64]promise) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("crash %d of\n%s", crash, strings.Join(s.log, "\n"))
		}
	}()
	var volumes []string
	for _, v := range s.Volumes() {
		volumes = append(volumes, v.Path)
	}
	h, err := tryOpen(t, disk, volumes...)
	if err != nil {
		t.Fatalf("open after the crash: %v", err)
	}
	for id, p := range promises {
		rep, ok := h.Replica(metadata.BlockID(id))
		switch {
		case !ok && p.length > 0 || !ok && p.closed:
			t.Fatalf("block %d is gone, promised %+v", id, p)
		case ok && rep.Block.Generation < p.gen:
			t.Fatalf("block %d came back as %v, promised %+v", id, rep, p)
		case ok && rep.Block.Length < p.length:
			t.Fatalf("block %d came back as %v, promised %+v", id, rep, p)
		case ok && rep.State == datanode.Finalized && !s.finals[rep.Block]:
			t.Fatalf("block %d came back as %v, which it never was, promised %+v", id, rep, p)
		case ok && p.closed && (rep.State != datanode.Finalized || rep.Block.Length != p.length):
			t.Fatalf("block %d came back as %v, promised %+v", id, rep, p)
		}
	}
	every(h.Store, func(rep datanode.Replica) bool {
		id := int64(rep.Block.ID)
		if rep.State == datanode.RWR {
			gen := rep.Block.Generation + 1000
			must[datanode.Replica](t)(h.InitRecovery(rep.Block, gen))
			must[datanode.Replica](t)(h.UpdateReplica(rep.Block, gen, rep.Block.Length))
		}
		got := h.content(id)
		if have := must[datanode.Reader](t)(h.Store.Open(block(id, 0, 0))); have.Checksum() != wantedOf[id-1] && len(got) > 0 && !s.emptied[id] {
			t.Fatalf("block %d is checked by %v after the crash, not by %v", id, have.Checksum(), wantedOf[id-1])
		} else {
			have.Close()
		}
		want := s.bytesOf(id, 0, int64(len(got)))
		if int64(len(got)) > s.written[id] || !bytes.Equal(got, want) {
			t.Fatalf("block %d has %d bytes after the crash, equal to what was written up to %d", id, len(got), commonPrefix(got, want))
		}
		return true
	})
	if len(h.Corrupt()) > 0 {
		t.Fatalf("corrupt after the crash: %v", h.Corrupt())
	}
	_ = h.Shutdown()
}

// every goes through the replicas of all volumes.
func every(s *Store, fn func(datanode.Replica) bool) {
	for _, v := range s.Volumes() {
		s.Each(v.ID, fn)
	}
}

// newStory begins a story; that of an even seed has two volumes, between which replicas move.
func newStory(t *testing.T, seed uint64, disk *faulty.FS) *story {
	volumes := []string{"/v"}
	if seed%2 == 0 {
		volumes = append(volumes, "/ssd")
	}
	return newStoryOn(t, seed, disk, volumes...)
}

func newStoryOn(t *testing.T, seed uint64, disk *faulty.FS, volumes ...string) *story {
	h := open(t, disk, volumes...)
	for _, v := range h.all() {
		v.packSize = 16 << 10
		v.packLimit = []int64{0, 300, packLimit}[seed%3]
	}
	return &story{
		harness: h, r: rand.New(rand.NewPCG(seed, 7)), data: pattern(20_000), gen: 1000,
		promises: map[int64]promise{}, written: map[int64]int64{}, finals: map[metadata.Block]bool{}, writers: map[int64]datanode.Writer{}, emptied: map[int64]bool{},
	}
}

// Power is cut before some call to the disk; of what was not synced any part may survive.
func TestPowerCutLosesNothingPromised(t *testing.T) { powerCut(t, false) }

// Without a sync at the end, what was synced before it is not lost either, nothing is served that was not written, and what claims to be finalized is whole.
func TestPowerCutLosesNothingSyncedBeforeTheEnd(t *testing.T) { powerCut(t, true) }

func powerCut(t *testing.T, unsynced bool) {
	seeds := 300
	if testing.Short() {
		seeds = 60
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inner := mem.New(1 << 20)
			disk := faulty.New(inner)
			s := newStory(t, seed, disk)
			if seed%4 > 1 {
				s.indexed(inner, seed)
			}
			s.cfg.Unsynced = unsynced
			cut := rand.New(rand.NewPCG(seed, 8))
			type crash struct {
				disk     *mem.FS
				promises map[int64]promise
			}
			var crashes []crash
			var calls sync.Mutex // several replicas are synced at the same time
			disk.Set(func(op faulty.Op) error {
				calls.Lock()
				defer calls.Unlock()
				s.log = append(s.log, fmt.Sprint(op))
				if cut.IntN(40) == 0 {
					p := map[int64]promise{}
					for k, v := range s.promises {
						p[k] = v
					}
					survive := []float64{0, 0.1, 0.5, 0.9, 1}[cut.IntN(5)]
					s.log = append(s.log, fmt.Sprint("crash ", len(crashes), " with ", survive))
					crashes = append(crashes, crash{inner.Crash(cut, survive), p})
				}
				return nil
			})
			for range 120 {
				check(t, s.step())
			}
			disk.Set(nil)
			for i, c := range crashes {
				s.verify(t, i, c.disk, c.promises)
			}
		})
	}
}

// The process is killed: everything written is still there, so every acknowledged byte is, synced or not.
func TestKilledProcessLosesNoAcknowledgedByte(t *testing.T) {
	for seed := range uint64(60) {
		inner := mem.New(1 << 20)
		disk := faulty.New(inner)
		s := newStory(t, seed, disk)
		if seed%4 > 1 {
			s.indexed(inner, seed)
		}
		s.cfg.Unsynced = seed%3 > 0
		visible := func() map[int64]promise {
			p := map[int64]promise{}
			every(s.Store, func(r datanode.Replica) bool {
				if r.State != datanode.Temporary {
					p[int64(r.Block.ID)] = promise{length: r.Visible, closed: r.State == datanode.Finalized}
				}
				return true
			})
			return p
		}
		for range 120 {
			check(t, s.step())
		}
		promises := visible()
		// Killed inside one more write, at each of its calls.
		for n := 1; n <= 2; n++ {
			for id, w := range s.writers {
				rep := w.Replica()
				from := rep.Block.Length - rep.Block.Length%chunk
				p := s.bytesOf(id, from, rep.Block.Length+100)
				disk.Set(faulty.Nth(n, "write", "", true, syscall.EMFILE))
				_ = w.Write(from, p, nil)
				disk.Set(nil)
				s.written[id] = max(s.written[id], rep.Block.Length+100)
			}
			s.verify(t, 0, inner.Crash(rand.New(rand.NewPCG(seed, 9)), 1), promises)
		}
	}
}

// Each call in turn fails with an I/O error: the volume is given up, nothing panics or hangs, and what was promised is
// there after the disk has been repaired and the machine lost power.
func TestEveryCallMayFail(t *testing.T) {
	for n := 1; n <= 400; n += 3 {
		inner := mem.New(1 << 20)
		disk := faulty.New(inner)
		s := newStory(t, uint64(n), disk)
		if n%4 > 1 {
			s.indexed(inner, uint64(n))
		}
		s.cfg.Unsynced = n%2 == 0
		disk.Set(faulty.Nth(n, "", "", true, syscall.EIO))
		for range 150 {
			if err := s.step(); err != nil {
				break
			}
		}
		disk.Set(nil)
		s.verify(t, 0, inner.Crash(rand.New(rand.NewPCG(uint64(n), 9)), 0.5), s.promises)
	}
}
