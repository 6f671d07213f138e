package namespace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/faulty"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/raftstore"
)

// What is written of a sheet is read again, whatever changed on it, and each way is found.
func TestSheetsKeepWays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const first = 1 << 20
		store := mem.New()
		model := map[metadata.INodeID]string{}
		next := metadata.INodeID(first)
		for at := range uint64(rapid.IntRange(1, 6).Draw(t, "checkpoints")) {
			v := &checkpointView{View: store.View(at), ids: ids{nextINode: next}, layout: layout{sheets: first + 4*inodesPerSheet}}
			changes := map[metadata.INodeID][]byte{}
			for range rapid.IntRange(0, 60).Draw(t, "changes") {
				id := first + metadata.INodeID(rapid.IntRange(0, 12*inodesPerSheet).Draw(t, "inode"))
				if _, there := model[id]; there && rapid.Bool().Draw(t, "gone") {
					changes[id] = nil
					delete(model, id)
				} else if there || id >= next {
					parent := rapid.SampledFrom([]uint64{16385, 16386, 1 << 40, 1<<64 - 1}).Draw(t, "parent")
					changes[id] = append(binary.BigEndian.AppendUint64(nil, parent), rapid.StringN(1, 5, 10).Draw(t, "name")...)
					model[id] = string(changes[id])
				}
			}
			for id := range model {
				next = max(next, id+1)
			}
			var ways []way
			for id, where := range changes {
				ways = append(ways, way{id, where})
			}
			b := store.Batch(at + 1)
			if err := writeWays(b, v, ways); err != nil {
				t.Fatal(err)
			}
			if err := b.Flush(); err != nil {
				t.Fatal(err)
			}
			v.Close()
			v = &checkpointView{View: store.View(at + 1), ids: ids{nextINode: next}, layout: v.layout}
			found := map[metadata.INodeID]bool{}
			err := v.Scan([]byte{classINode}, nil, func(key, value []byte) bool {
				if _, err := eachWay(key, value, func(id metadata.INodeID) { found[id] = true }); err != nil {
					t.Fatal(err)
				}
				return true
			})
			if err != nil || len(found) != len(model) {
				t.Fatalf("%d ways are there of %d (%v)", len(found), len(model), err)
			}
			for id := metadata.INodeID(first); id < next+inodesPerSheet; id++ {
				where, err := v.way(id)
				if want, there := model[id]; err != nil || there != (where != nil) || string(where) != want {
					t.Fatalf("inode %d is at %q (%v), it was put at %q", id, where, err, want)
				}
			}
			v.Close()
		}
	})
}

// A sheet that is damaged is an error, or says something else: nothing panics, and what is read can be written again.
func TestDamagedSheets(t *testing.T) {
	for _, b := range damagedSheets() {
		lookAtSheet(t, b)
	}
}

func damagedSheets() (all [][]byte) {
	var ways []way
	for i := range metadata.INodeID(inodesPerSheet) {
		ways = append(ways, way{64 + i, fmt.Appendf(binary.BigEndian.AppendUint64(nil, uint64(1000+i/5)), "name-%d", i)})
	}
	whole, err := appendSheet(nil, nil, ways, 0)
	if err != nil {
		panic(err)
	}
	all = append(all, whole)
	for i := range whole {
		all = append(all, whole[:i], flipped(whole, i), append(bytes.Clone(whole[:i]), 0xff))
		all = append(all, slices.Insert(bytes.Clone(whole), i, 0x80))
	}
	return all
}

func lookAtSheet(t *testing.T, b []byte) {
	t.Helper()
	ways, err := readWays(nil, 64, b)
	if _, other := eachWay(sheetKey(64), b, func(metadata.INodeID) {}); (err == nil) != (other == nil) && len(b) > 0 {
		t.Errorf("%x: %v, %v", b, err, other)
	}
	if err != nil {
		return
	}
	again, err := appendSheet(nil, nil, ways, 0)
	if err != nil {
		t.Fatal(err)
	}
	if more, err := readWays(nil, 64, again); err != nil || !slices.EqualFunc(ways, more, func(a, b way) bool { return a.id == b.id && bytes.Equal(a.where, b.where) }) {
		t.Errorf("%x reads as %v, written again as %v (%v)", b, ways, more, err)
	}
}

func FuzzSheet(f *testing.F) {
	for _, b := range damagedSheets() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { lookAtSheet(t, b) })
}

// ways counts those in records of their own, and sheets.
func (w *world) ways() (singles, sheets int) {
	err := w.ns.cfg.Store.View(kv.Newest).Scan([]byte{classINode}, nil, func(key, value []byte) bool {
		if sheet, err := eachWay(key, value, func(metadata.INodeID) {}); err != nil {
			w.t.Fatal(err)
		} else if sheet {
			sheets++
		} else {
			singles++
		}
		return true
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return singles, sheets
}

// Before the cluster has been raised a checkpoint is as the version before writes it; what comes behind the first checkpoint after that is on sheets.
func TestSheetsComeWithTheirLevel(t *testing.T) {
	raised := false
	w := newWorld(t, Config{Memory: 1, Sheets: func() bool { return raised }})
	ids := map[string]metadata.INodeID{}
	file := func(from, to int) {
		for i := from; i < to; i++ {
			path := fmt.Sprintf("/d%d/f%d", i%7, i)
			w.closedFile(path)
			ids[path] = metadata.INodeID(w.inode(path))
		}
	}
	look := func(version uint16) {
		t.Helper()
		data := w.snapshot()
		if _, got, err := readHeader(bytes.NewReader(data)); err != nil || got != version {
			t.Errorf("the copy has version %d (%v), want %d", got, err, version)
		}
		other := newWorld(t, Config{Memory: 1})
		if err := other.ns.Restore(bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		w.open()
		for _, ns := range []*Namespace{w.ns, other.ns} {
			checkSound(t, ns)
			for path, id := range ids {
				if _, ok := ns.FileByID(id); !ok {
					t.Fatalf("inode %d, %s, is not found", id, path)
				}
			}
		}
	}
	for i := range 7 {
		w.do(super, &logpb.Mkdirs{Target: to(fmt.Sprintf("/d%d", i)), Mode: 0o755})
	}
	file(0, 50)
	look(streamVersion)
	file(50, 100)
	look(streamVersion)
	raised = true
	file(100, 150)
	look(bodiesVersion)
	if singles, sheets := w.ways(); singles != 150+7+2 || sheets != 0 {
		t.Errorf("%d ways in records of their own, %d sheets at first", singles, sheets)
	}
	file(150, 300)
	look(bodiesVersion)
	singles, sheets := w.ways()
	if most := 150 + 7 + 2 + inodesPerSheet; singles > most || sheets < 150/inodesPerSheet-1 || sheets > 150/inodesPerSheet+1 {
		t.Errorf("%d ways in records of their own, %d sheets", singles, sheets)
	}
	raised = false // a process that is starting does not know yet
	for i, path := range slices.Sorted(maps.Keys(ids)) {
		switch i % 3 {
		case 0:
			w.do(super, &logpb.Delete{Target: to(path)})
			delete(ids, path)
		case 1:
			moved := fmt.Sprintf("/d%d/moved-%d", rand.IntN(7), i) //nolint:gosec // not a secret
			w.do(super, &logpb.Rename{Source: to(path), Target: to(moved)})
			ids[moved] = ids[path]
			delete(ids, path)
		}
	}
	look(bodiesVersion)
	for path := range ids {
		w.do(super, &logpb.Delete{Target: to(path)})
	}
	clear(ids)
	look(bodiesVersion)
	if singles, sheets := w.ways(); singles != 7+2 || sheets != 0 {
		t.Errorf("%d ways in records of their own and %d sheets are left of empty directories", singles, sheets)
	}
}

// An inode that moves, changes or goes while a checkpoint is being written is found in that as it was, and in the next one as it is.
func TestSheetsOfWhatChangesMeanwhile(t *testing.T) {
	w := newWorld(t, Config{Memory: 1})
	w.do(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.do(super, &logpb.Mkdirs{Target: to("/e"), Mode: 0o755})
	w.snapshot()
	paths := map[metadata.INodeID]string{}
	for i := range 3 * inodesPerSheet {
		path := fmt.Sprintf("/d/f%d", i)
		w.closedFile(path)
		paths[metadata.INodeID(w.inode(path))] = path
	}
	s, err := w.ns.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	frozen := maps.Clone(paths)
	for id, path := range frozen {
		switch id % 4 {
		case 0:
			w.do(super, &logpb.Delete{Target: to(path)})
			delete(paths, id)
		case 1:
			paths[id] = "/e/" + path[3:]
			w.do(super, &logpb.Rename{Source: to(path), Target: to(paths[id])})
		case 2:
			w.do(super, &logpb.SetPermission{Target: to(path), Mode: 0o600})
		}
	}
	look := func(ns *Namespace, want map[metadata.INodeID]string) {
		t.Helper()
		checkSound(t, ns)
		for id := range frozen {
			n, ok := ns.FileByID(id)
			if path, there := want[id]; ok != there || ok && n.Path != path {
				t.Errorf("inode %d is found: %v, at %q; want %q", id, ok, n.Path, path)
			}
		}
	}
	var copied bytes.Buffer
	if _, err := s.WriteTo(&copied); err != nil {
		t.Fatal(err)
	}
	s.Release()
	other := newWorld(t, Config{Memory: 1})
	if err := other.ns.Restore(&copied); err != nil {
		t.Fatal(err)
	}
	look(other.ns, frozen)
	look(w.ns, paths)
	w.reopen()
	look(w.ns, paths)
}

// A checkpoint of a process that did not know yet that the cluster had been raised is cut. The next one, which does, begins with sheets behind all that that
// one may have left in records of their own.
func TestSheetsBeginBehindACutCheckpoint(t *testing.T) {
	inner := mem.New()
	store := faulty.New(inner, nil)
	raised := false
	w := newWorld(t, Config{Store: store, Memory: 1, Sheets: func() bool { return raised }})
	w.do(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.snapshot()
	for i := range 4 * inodesPerSheet {
		w.closedFile(fmt.Sprintf("/d/f%d", i))
	}
	s, err := w.ns.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	store.Reset(faulty.FailAt(1, faulty.Sync))
	if _, err := s.WriteTo(io.Discard); err == nil {
		t.Fatal("the checkpoint was not cut")
	}
	raised = true
	w.cfg.Store = inner.Crash(nil)
	w.open()
	if singles, _ := w.ways(); singles < 4*inodesPerSheet {
		t.Fatalf("the cut checkpoint has left %d records of one way", singles)
	}
	for i := w.ns.AppliedIndex(); i < w.index; i++ {
		w.ns.Apply(i+1, w.log[i])
		if i == w.index/2 {
			takeSnapshot(t, w.ns, io.Discard)
		}
	}
	for range 2 { // the first one is where sheets begin
		for range inodesPerSheet {
			w.closedFile(fmt.Sprintf("/d/last-%d", w.index))
		}
		if err := newWorld(t, Config{}).ns.Restore(bytes.NewReader(w.snapshot())); err != nil {
			t.Fatal(err)
		}
		w.check()
	}
	if _, sheets := w.ways(); sheets != 1 && sheets != 2 {
		t.Errorf("%d sheets, want those of the last files", sheets)
	}
}

// Many sheets are read a part at a time, in their order where many of them have changed, each by itself where few have.
func TestManySheets(t *testing.T) {
	const first, count = 1 << 20, (2*sheetsAtOnce + 7) * inodesPerSheet
	store := mem.New()
	where := func(id metadata.INodeID, name string) way {
		return way{id, fmt.Appendf(binary.BigEndian.AppendUint64(nil, 16385), "%s%d", name, id)}
	}
	write := func(at uint64, ways []way) {
		t.Helper()
		b := store.Batch(at)
		v := &checkpointView{View: store.View(at - 1), ids: ids{nextINode: first}, layout: layout{sheets: first}}
		if at > 1 {
			v.nextINode += count
		}
		defer v.Close()
		if err := writeWays(b, v, ways); err != nil {
			t.Fatal(err)
		}
		if err := b.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	want := map[metadata.INodeID]string{}
	var ways []way
	for id := metadata.INodeID(first); id < first+count; id++ {
		ways = append(ways, where(id, "a"))
		want[id] = string(where(id, "a").where)
	}
	write(1, ways)
	for i, step := range []metadata.INodeID{inodesPerSheet * sheetsPassed * 3, 5} {
		ways = nil
		for id := metadata.INodeID(first); id < first+count; id += step {
			if w := where(id, "b"); id%2 == 0 {
				ways, want[id] = append(ways, w), string(w.where)
			} else {
				ways = append(ways, way{id: id})
				delete(want, id)
			}
		}
		write(uint64(i)+2, ways)
		v := &checkpointView{View: store.View(kv.Newest), layout: layout{sheets: first}}
		for id := metadata.INodeID(first); id < first+count; id++ {
			if got, err := v.way(id); err != nil || string(got) != want[id] {
				t.Fatalf("every %dth inode has changed: %d is at %q (%v), want %q", step, id, got, err, want[id])
			}
		}
		v.Close()
	}
}

// A store that has lost a sheet, as one may whose block is damaged, says nothing of it. A checkpoint that needs it ends, and the store is not used again.
func TestCheckpointWithoutASheetThatIsNeeded(t *testing.T) {
	store := &condemned{Store: mem.New()}
	w := newWorld(t, Config{Store: store, Memory: 1})
	w.do(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.snapshot()
	for i := range 3 * inodesPerSheet {
		w.closedFile(fmt.Sprintf("/d/f%d", i))
	}
	w.snapshot()
	w.cold(string(sheetKey(sheetOf(metadata.INodeID(w.inode("/d/f20"))))), nil)
	w.do(super, &logpb.Delete{Target: to("/d/f20")})
	s, err := w.ns.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.(*snapshot).Write(); !errors.Is(err, metadata.ErrCorrupt) || !errors.Is(err, raftstore.ErrStoreFailed) {
		t.Errorf("the checkpoint: %v", err)
	}
	if store.times != 1 {
		t.Errorf("the store was condemned %d times", store.times)
	}
}

// condemned counts how often a store was condemned.
type condemned struct {
	kv.Store
	times int
}

func (c *condemned) Condemn() error {
	c.times++
	return c.Store.Condemn()
}
