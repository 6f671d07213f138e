package namespace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Files and directories that are apart are told in the order of their keys, from anywhere, as far as one goes on, and found by their names.
func TestEntriesOfBothClasses(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 8))
		store := mem.New()
		b := store.Batch(1)
		var keys []string
		among := 1 + r.IntN(20) // how many are files for each directory, or the other way round
		for range 1 + r.IntN(3000) {
			parent, name := metadata.INodeID(2+r.IntN(3)), fmt.Sprintf("%x", r.Uint32())
			key := entryKey(parent, name)
			if slices.Contains(keys, key) {
				continue
			}
			keys = append(keys, key)
			stored := []byte(key)
			if (r.IntN(among+1) == 0) != (seed%2 == 0) {
				stored[0] = classDirectory
			}
			value := []byte(key)
			if r.IntN(500) == 0 {
				value = append(value, make([]byte, directoriesBytes/2)...)
			}
			if err := b.Put(stored, value); err != nil {
				t.Fatal(err)
			}
		}
		// What is beside both classes is no entry.
		for _, other := range []byte{classDirectory - 1, classDirectory + 1, classEntry - 1, classEntry + 1} {
			if err := b.Put([]byte{other, 0, 0, 0, 0, 0, 0, 0, 2, 'x'}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Flush(); err != nil {
			t.Fatal(err)
		}
		slices.Sort(keys)
		v := &checkpointView{View: store.View(1), layout: layout{apart: true}}
		for range 40 {
			prefix := []byte{classEntry}
			if r.IntN(3) > 0 {
				prefix = appendID(nil, classEntry, uint64(1+r.IntN(5)))
			}
			from := slices.Clone(prefix)
			switch r.IntN(4) {
			case 0:
				from = nil
			case 1:
				from = []byte(keys[r.IntN(len(keys))])
			case 2:
				from = append([]byte(keys[r.IntN(len(keys))]), 0)
			}
			most := 1 + r.IntN(2*len(keys))
			var want []string
			for _, key := range keys {
				if bytes.HasPrefix([]byte(key), prefix) && key >= string(from) && len(want) < most {
					want = append(want, key)
				}
			}
			var got []string
			if err := v.eachEntry(prefix, from, 1+r.IntN(2*most), func(key, value []byte) bool {
				if !bytes.HasPrefix(value, key) {
					t.Fatalf("%x has %x", key, value)
				}
				got = append(got, string(key))
				return len(got) < most
			}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, prefix %x from %x: %d entries, want %d", seed, prefix, from, len(got), len(want))
			}
		}
		for _, key := range keys[:min(len(keys), 100)] {
			if value, err := v.record(key); err != nil || !bytes.HasPrefix(value, []byte(key)) {
				t.Fatalf("%x has %x, %v", key, value, err)
			}
			if value, err := v.record(key + "-"); err != nil || value != nil {
				t.Fatalf("%x- has %x, %v", key, value, err)
			}
		}
		v.Close()
	}
}

// A name that a checkpoint has for a file and for a directory is damage.
func TestNameOfFileAndDirectory(t *testing.T) {
	store := mem.New()
	b := store.Batch(1)
	for _, name := range []string{"a", "b", "c"} {
		key := []byte(entryKey(metadata.RootID, name))
		if err := b.Put(key, nil); err != nil {
			t.Fatal(err)
		}
		key[0] = classDirectory
		if name != "b" {
			continue
		}
		if err := b.Put(key, nil); err != nil {
			t.Fatal(err)
		}
	}
	v := store.View(1)
	defer v.Close()
	told := 0
	if err := eachEntry(v, true, []byte{classEntry}, nil, 5, func(_, _ []byte) bool { told++; return true }); !errors.Is(err, metadata.ErrCorrupt) || told != 1 {
		t.Errorf("%d entries, %v", told, err)
	}
}

// perClass counts the files and the directories that the newest checkpoint has in each class of entries.
func (w *world) perClass() (files, directories map[byte]int) {
	w.t.Helper()
	files, directories = map[byte]int{}, map[byte]int{}
	v := w.cfg.Store.View(kv.Newest)
	defer v.Close()
	for _, class := range []byte{classEntry, classDirectory} {
		if err := v.Scan([]byte{class}, nil, func(_, value []byte) bool {
			if file, _, ok := kindOf(value); !ok {
				w.t.Errorf("record %x", value)
			} else if file {
				files[class]++
			} else {
				directories[class]++
			}
			return true
		}); err != nil {
			w.t.Fatal(err)
		}
	}
	return files, directories
}

// Files and directories take each other's names between checkpoints, also of those that are given up and when a process goes on behind one that was cut.
func TestFilesAndDirectoriesTakeEachOthersNames(t *testing.T) {
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 9))
		inner := mem.New()
		w := newWorld(t, Config{Store: inner, Memory: int64(r.IntN(2))})
		name := func() string { return "/" + string(rune('a'+r.IntN(3))) }
		change := func() {
			w.now += 1000
			switch r.IntN(5) {
			case 0:
				w.do(super, &logpb.Mkdirs{Target: to(name()), Mode: 0o755})
			case 1, 2:
				v := w.do(super, &logpb.ReserveIDs{Blocks: 1, Generations: 1}).Reserved
				w.do(super, storeOf(name(), "client", &logpb.Block{Id: int64(v.FirstBlock), Generation: uint64(v.FirstGeneration)}, 5))
			case 3:
				w.do(super, &logpb.Delete{Target: to(name()), Recursive: true})
			case 4:
				w.do(super, &logpb.Rename{Source: to(name()), Target: to(name())})
			}
		}
		for range 12 {
			for range r.IntN(6) {
				change()
			}
			if w.ns.AppliedIndex() == 0 {
				continue
			}
			switch r.IntN(4) {
			case 0:
				w.snapshot()
			case 1: // given up, as it is or with a part of it written
				s, err := w.ns.Freeze()
				if err != nil {
					t.Fatal(err)
				}
				for range r.IntN(4) {
					change()
				}
				if r.IntN(2) == 0 {
					b := inner.Batch(s.Index())
					if _, err := w.ns.writeINodes(b, w.ns.frozen); err != nil {
						t.Fatal(err)
					}
				}
				s.Release()
			case 2: // written while there are changes, and then the process dies
				s, err := w.ns.Freeze()
				if err != nil {
					t.Fatal(err)
				}
				for range r.IntN(4) {
					change()
				}
				if r.IntN(2) == 0 {
					if _, err := s.WriteTo(io.Discard); err != nil {
						t.Fatal(err)
					}
				} else if _, err := w.ns.writeINodes(inner.Batch(s.Index()), w.ns.frozen); err != nil {
					t.Fatal(err)
				}
				inner = inner.Crash(nil)
				w.cfg.Store = inner
				w.open()
				for i := w.ns.AppliedIndex(); i < w.index; i++ {
					w.ns.Apply(i+1, w.log[i])
					if r.IntN(10) == 0 {
						takeSnapshot(t, w.ns, io.Discard)
					}
				}
			}
			w.check()
		}
		w.snapshot()
		w.check()
		if files, directories := w.perClass(); files[classDirectory] > 0 || directories[classEntry] > 0 {
			t.Errorf("seed %d: files by class %v, directories %v", seed, files, directories)
		}
		w.catchUp(t, fmt.Sprint("seed ", seed), fresh(t, inner.Crash(nil), int64(r.IntN(2))))
		if t.Failed() {
			t.FailNow()
		}
	}
}

// Where the first checkpoint was written before the cluster had been raised, directories stay among the files, until the member takes the state anew.
func TestDirectoriesApartFromTheFirstCheckpoint(t *testing.T) {
	raised := false
	w := newWorld(t, Config{Memory: 1, Sheets: func() bool { return raised }})
	grow := func(name string) {
		w.closedFile("/" + name + "/sub/file")
		w.snapshot()
		w.check()
	}
	grow("first")
	raised = true
	grow("second")
	w.reopen()
	grow("third")
	if files, directories := w.perClass(); files[classEntry] != 3 || directories[classEntry] != 8 || len(files)+len(directories) != 2 {
		t.Errorf("files by class %v, directories %v", files, directories)
	}
	old := w.snapshot()

	// A copy of it becomes one with directories apart in a member that may write that, and stays what it is in one that may not.
	for _, may := range []bool{false, true} {
		class := map[bool]byte{false: classEntry, true: classDirectory}[may]
		other := newWorld(t, Config{Memory: 1, Sheets: func() bool { return may }})
		if err := other.ns.Restore(bytes.NewReader(old)); err != nil {
			t.Fatal(err)
		}
		if got, want := other.ns.Hash(), w.ns.Hash(); got != want {
			t.Errorf("may %t: hash %016x, want %016x", may, got, want)
		}
		other.index, other.now = w.index, w.now
		for _, name := range []string{"fourth", "fifth"} {
			other.closedFile("/" + name + "/sub/file")
			other.must(&logpb.Rename{Source: to("/" + name), Target: to("/first/" + name)})
			other.snapshot()
			other.check()
		}
		if files, directories := other.perClass(); files[classEntry] != 5 || directories[class] != 12 || len(files)+len(directories) != 2 {
			t.Errorf("may %t: files by class %v, directories %v", may, files, directories)
		}
		if !may {
			continue
		}
		// One that may not write it yet goes on with what it is given.
		copied := other.snapshot()
		third := newWorld(t, Config{Memory: 1, Sheets: func() bool { return false }})
		if err := third.ns.Restore(bytes.NewReader(copied)); err != nil {
			t.Fatal(err)
		}
		third.index, third.now = other.index, other.now
		third.must(&logpb.Delete{Target: to("/first"), Recursive: true})
		third.snapshot()
		third.check()
		if files, directories := third.perClass(); directories[classEntry] != 0 || directories[classDirectory] == 0 {
			t.Errorf("of an apart copy: files by class %v, directories %v", files, directories)
		}
	}
}

// Directories in the wrong class are refused, wherever a version is read.
func TestDirectoriesInTheWrongClass(t *testing.T) {
	for _, apart := range []bool{false, true} {
		for what, wrong := range map[string]func(key, value []byte) (byte, []byte){
			"a directory in the other class": func(key, value []byte) (byte, []byte) {
				return classEntry ^ classDirectory ^ key[0], value
			},
			"a file among the directories": func(_, _ []byte) (byte, []byte) {
				return classDirectory, marshal(nil, &logpb.INode{Id: 99, File: &logpb.FileState{}})
			},
			"what cannot be read": func(key, _ []byte) (byte, []byte) { return key[0], []byte{0x0a, 0xff} },
		} {
			w := newWorld(t, Config{Sheets: func() bool { return apart }})
			w.closedFile("/d/sub/file")
			w.snapshot()
			if _, err := InspectCheckpoint(w.cfg.Store, func(_, _ []byte) error { return nil }); err != nil {
				t.Fatal(err)
			}
			class := byte(classEntry)
			if apart {
				class = classDirectory
			}
			n, err := w.ns.lookup(w.ns.root, "d")
			if err != nil {
				t.Fatal(err)
			}
			key := append([]byte{class}, entryKey(n.id, "sub")[1:]...)
			v := w.cfg.Store.View(kv.Newest)
			value, err := v.Get(key)
			v.Close()
			if err != nil {
				t.Fatal(err)
			}
			b := w.cfg.Store.Batch(w.index)
			err = b.Delete(key)
			key[0], value = wrong(key, value)
			if err := errors.Join(err, b.Put(key, value), b.Flush()); err != nil {
				t.Fatal(err)
			}
			if _, err := InspectCheckpoint(w.cfg.Store, func(_, _ []byte) error { return nil }); !errors.Is(err, metadata.ErrCorrupt) {
				t.Errorf("apart %t, %s: %v", apart, what, err)
			}
		}
	}
}
