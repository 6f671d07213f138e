package smallfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/gohops/hops/metadata"
)

// operation is an entry of the log: a body is put, or removed.
type operation struct {
	id      metadata.BlockID
	removed bool
}

// world is a namespace that uses a store as the real one does: a state, a checkpoint of it, and a log of what came since.
type world struct {
	t     *testing.T
	r     *rand.Rand
	disk  *memoryDisk
	s     *Store
	next  metadata.BlockID
	state map[metadata.BlockID]bool // what lives now
	point map[metadata.BlockID]bool // what lives in the checkpoint
	log   []operation               // since then
	most  int                       // length of bodies
	inner func()                    // called while a call of the store is under way
	// mends: what is damaged is put again, as it comes from another member.
	mends bool
}

func newWorld(t *testing.T, seed uint64) *world {
	return &world{
		t: t, r: rand.New(rand.NewPCG(seed, 5)), disk: newDisk(), next: firstID, most: 700,
		state: map[metadata.BlockID]bool{}, point: map[metadata.BlockID]bool{},
	}
}

func (w *world) open() {
	w.t.Helper()
	w.disk.trouble(w.between)
	var err error
	w.s, err = tryOpen(Config{Disk: w.disk, Live: w.live})
	if err != nil {
		w.t.Fatal(err)
	}
}

// between is called before each call of the disk.
func (w *world) between(op, path string) error {
	if inner := w.inner; inner != nil && op != "open" && op != "read" {
		w.inner = nil
		inner()
		w.inner = inner
	}
	return nil
}

func (w *world) live(ids []metadata.BlockID) ([]bool, error) {
	lives := make([]bool, len(ids))
	for i, id := range ids {
		lives[i] = w.state[id] || w.point[id]
	}
	return lives, nil
}

func (w *world) apply(o operation) {
	if o.removed {
		delete(w.state, o.id)
		w.s.Removed(o.id, len(bodyOf(o.id, w.most)))
	} else {
		w.s.Put(o.id, bodyOf(o.id, w.most))
		w.state[o.id] = true
	}
}

func (w *world) do(o operation) {
	w.log = append(w.log, o)
	w.apply(o)
}

// some is any of some ids; 0 if there is none.
func (w *world) some(of map[metadata.BlockID]bool) metadata.BlockID {
	if len(of) == 0 {
		return 0
	}
	for id := firstID + metadata.BlockID(w.r.IntN(int(w.next-firstID)+3)); ; id++ {
		if of[id] {
			return id
		}
		if id > w.next+3 {
			id = firstID - 1
		}
	}
}

func (w *world) change() {
	if w.r.IntN(5) < 3 {
		// Nearly in order.
		id := w.next + metadata.BlockID(w.r.IntN(3))
		w.next = max(w.next, id+1)
		if !w.state[id] && !slices.ContainsFunc(w.log, func(o operation) bool { return o.id == id }) && !w.point[id] {
			w.do(operation{id: id})
		}
		return
	}
	if id := w.some(w.state); id != 0 {
		w.do(operation{id: id, removed: true})
	}
}

// verify reads a body that has to be there.
func (w *world) verify(id metadata.BlockID) {
	w.t.Helper()
	b, err := w.s.Get(id)
	if w.mends && errors.Is(err, metadata.ErrCorrupt) {
		w.s.Put(id, bodyOf(id, w.most))
		b, err = w.s.Get(id)
	}
	if err != nil || !bytes.Equal(b, bodyOf(id, w.most)) {
		w.t.Fatalf("body %d: %d bytes, %v", id, len(b), err)
	}
	if !w.s.Has(id) {
		w.t.Fatalf("body %d is not here", id)
	}
}

func (w *world) verifyAll() {
	w.t.Helper()
	all := maps.Clone(w.state)
	maps.Copy(all, w.point)
	ids := slices.Sorted(maps.Keys(all))
	for _, id := range ids {
		w.verify(id)
	}
	seen := 0
	w.s.GetMany(ids, func(i int, body []byte, err error) {
		seen++
		if w.mends && errors.Is(err, metadata.ErrCorrupt) {
			return
		}
		if err != nil || !bytes.Equal(body, bodyOf(ids[i], w.most)) {
			w.t.Fatalf("body %d of many: %v", ids[i], err)
		}
	})
	if seen != len(ids) {
		w.t.Fatalf("%d of %d bodies", seen, len(ids))
	}
}

// step makes one call.
func (w *world) step() error {
	switch n := w.r.IntN(40); {
	case n < 32:
		w.change()
	case n < 35:
		w.s.ioMu.Lock()
		defer w.s.ioMu.Unlock()
		return w.s.flush(1000)
	case n < 37:
		before, taken := len(w.log), maps.Clone(w.state)
		if err := w.s.Sync(); err != nil {
			if w.mends {
				for _, id := range w.s.Damaged(1000) {
					w.s.Put(id, bodyOf(id, w.most))
				}
			}
			return err
		}
		w.point, w.log = taken, slices.Clone(w.log[before:])
	case n < 39:
		w.inner = func() {
			for range w.r.IntN(4) {
				w.change()
			}
			if id := w.some(w.state); id != 0 {
				w.verify(id)
			}
		}
		defer func() { w.inner = nil }()
		_, err := w.s.Compact(context.Background())
		return err
	default:
		if id := w.some(w.state); id != 0 {
			w.verify(id)
		}
	}
	return nil
}

// restart opens what a crash has left, and applies the log again.
func (w *world) restart(power bool) {
	w.t.Helper()
	w.inner = nil
	var chance *rand.Rand
	if power {
		chance = w.r
	}
	after := w.disk.crash(chance)
	w.disk.trouble(func(string, string) error { return errPower })
	w.s.Close()
	w.disk = after
	w.state = maps.Clone(w.point)
	w.open()
	for id := range w.point {
		w.verify(id)
	}
	for _, o := range w.log {
		w.apply(o)
	}
	w.verifyAll()
}

// Whenever the process or the power ends, no body that lives is lost, and none is wrong.
func TestNothingIsLostInCrashes(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed)
			w.open()
			for range 4 {
				w.disk.mu.Lock()
				w.disk.cutAt = w.disk.calls + 1 + w.r.IntN(1+w.r.IntN(120))
				w.disk.mu.Unlock()
				var err error
				for range 400 {
					if err = w.step(); err != nil {
						break
					}
				}
				if err != nil && !errors.Is(err, errPower) {
					t.Fatal(err)
				}
				w.restart(w.r.IntN(3) > 0)
			}
			w.settle()
		})
	}
}

// settle lets everything come to rest: what lives is there, and the space of what does not is given back.
func (w *world) settle() {
	w.t.Helper()
	for range 3 {
		if err := w.s.Sync(); err != nil {
			w.t.Fatal(err)
		}
		w.point, w.log = maps.Clone(w.state), nil
		if _, err := w.s.Compact(context.Background()); err != nil {
			w.t.Fatal(err)
		}
	}
	w.verifyAll()
	var live int64
	for id := range w.state {
		live += int64(len(bodyOf(id, w.most)) + recordHeader + indexEntry)
	}
	f := w.s.Figures()
	if most := live*3/2 + 5*leastSegment; w.disk.size() > most || f.Bytes > most {
		w.t.Fatalf("%d bytes of bodies take %d, %d are fine: %+v", live, w.disk.size(), most, f)
	}
	for id := range w.state {
		w.do(operation{id: id, removed: true})
	}
	w.point = map[metadata.BlockID]bool{}
	if err := w.s.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.open()
	if _, err := w.s.Compact(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	if f := w.s.Figures(); f.Segments > 0 || w.disk.size() > 0 || f.Damaged > 0 {
		w.t.Fatalf("%d bytes are left: %+v", w.disk.size(), f)
	}
	w.s.Close()
	for path, f := range w.disk.files {
		if f.opened > 0 {
			w.t.Errorf("%s is open %d times", path, f.opened)
		}
	}
}

// Calls that fail lose nothing, in memory, after a kill, or after a power cut: not even a failed sync after which the next one says that all is well.
func TestFailingCalls(t *testing.T) {
	seeds := uint64(100)
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed+1000)
			w.open()
			for range 4 {
				failures, reads := 1+w.r.IntN(6), w.r.IntN(6)
				w.mends = true
				w.disk.trouble(func(op, path string) error {
					w.between(op, path)
					if reads > 0 && op == "read" && w.r.IntN(20) == 0 {
						reads--
						return fmt.Errorf("%s %s: %w", op, path, syscall.EIO)
					}
					if failures > 0 && op != "read" && op != "open" && w.r.IntN(6) == 0 {
						failures--
						return fmt.Errorf("%s %s: %w", op, path, []error{syscall.EIO, syscall.ENOSPC}[w.r.IntN(2)])
					}
					return nil
				})
				for range 300 {
					if err := w.step(); err != nil && errors.Is(err, fs.ErrNotExist) {
						t.Fatal(err)
					}
					if w.r.IntN(100) == 0 {
						w.verifyAll()
					}
				}
				w.mends = false
				w.restart(w.r.IntN(3) > 0)
			}
			w.settle()
		})
	}
}

// Whatever call the power fails at while a segment that a crash has left is copied, while others are compacted, or both, all that was durable stays.
func TestPowerFailsAtEachCall(t *testing.T) {
	const n, most = 60, 300
	for _, what := range []string{"sync", "compact", "close", "both"} {
		left, names := stored(t, n, most, what == "compact")
		for id := firstID; id < firstID+n; id++ {
			names.set(id, id%3 == 0)
		}
		for call := 1; ; call++ {
			disk := left.crash(nil)
			s := open(t, Config{Disk: disk, Live: names.live})
			disk.cutAt = call
			var err error
			switch what {
			case "sync":
				err = s.Sync()
			case "compact":
				_, err = s.Compact(context.Background())
			case "close":
				err = s.Close()
			case "both":
				if _, err = s.Compact(context.Background()); err == nil {
					err = s.Sync()
				}
			}
			for seed := range uint64(20) {
				after := open(t, Config{Disk: disk.crash(rand.New(rand.NewPCG(seed, uint64(call)))), Live: names.live})
				for id := range names.ids {
					if b, err := after.Get(id); err != nil || !bytes.Equal(b, bodyOf(id, most)) {
						t.Fatalf("%s, call %d: %v", what, call, err)
					}
				}
				after.Close()
			}
			s.Close()
			if disk.calls < call {
				if err != nil || call < 4 {
					t.Fatal(what, call, err)
				}
				break
			}
		}
	}
}
