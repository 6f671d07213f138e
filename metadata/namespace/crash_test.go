package namespace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/kv/faulty"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/raftstore"
)

// scribble makes n random operations that mostly succeed.
func scribble(w *world, r *rand.Rand, n int) {
	var block int64
	call := int32(w.index)
	path := func() string {
		p := ""
		for range 1 + r.IntN(3) {
			p += fmt.Sprintf("/%c", 'a'+r.IntN(4))
		}
		return p
	}
	for range n {
		w.now += 1000
		call++
		var op any
		switch r.IntN(24) {
		case 21, 22, 23:
			one := path()
			length := int64(0)
			blocks := w.blocksOf(one)
			for _, b := range blocks {
				length += b.Length
			}
			if length == 0 || length > metadata.MaxBody {
				continue
			}
			v := w.do(super, &logpb.ReserveIDs{Blocks: 1, Generations: 1}).Reserved
			keep := keepOf
			if r.IntN(2) == 0 {
				keep = keepHere
			}
			op = keep(one, blocks, &logpb.Block{Id: int64(v.FirstBlock), Generation: uint64(v.FirstGeneration)}, length)
		case 19, 20:
			dir, c := path(), &logpb.Concat{}
			l, err := w.ns.List(super, dir, "", 10)
			if err != nil || l == nil {
				continue
			}
			for _, e := range l.Entries {
				switch one := to(join(dir, e.Name)); {
				case e.IsDir():
				case c.Target == nil:
					c.Target = one
				case e.Length > 0:
					c.Sources = append(c.Sources, one)
				}
			}
			op = c
		case 17, 18:
			v := w.do(super, &logpb.ReserveIDs{Blocks: 1, Generations: 1}).Reserved
			s := storeOf(path(), "client9", &logpb.Block{Id: int64(v.FirstBlock), Generation: uint64(v.FirstGeneration)}, []int64{0, 5, 1025, 3000}[r.IntN(4)])
			s.Create.Overwrite = r.IntN(2) == 0
			op = s
		case 14, 15, 16:
			op = snapshotOp(r, path())
		case 13:
			op = &logpb.RollTokenKey{After: w.ns.TokenFigures(0).NewestKey, Seed: seeds(1, r.Uint32())[0]}
		case 12:
			op = &logpb.IssueToken{Renewer: "yarn", Expires: int64(w.now) + 5000, MaxDate: int64(w.now) + 9000, MaxTokens: 10, MaxOfUser: 10}
			if r.IntN(3) == 0 {
				op = &logpb.ExpireTokens{}
			}
		case 11:
			name := string(rune('a' + r.IntN(6)))
			_, version := w.ns.Item(name)
			op = &logpb.ChangeRegister{Changes: []*logpb.ItemChange{{Name: name, Value: fmt.Append(nil, r.Uint64()), Remove: r.IntN(3) == 0, Version: version}}}
		case 10:
			op = &logpb.RollBlockKeys{After: w.ns.NewestBlockKey(), Seeds: seeds(1, r.Uint32()), Keep: 3000}
		case 0, 1:
			op = &logpb.Mkdirs{Target: to(path()), Mode: 0o755, CreateParent: true}
		case 2, 3, 4:
			c := create(path(), fmt.Sprintf("client%d", r.IntN(5)))
			c.Overwrite = r.IntN(2) == 0
			op = c
		case 5:
			op = &logpb.Delete{Target: to(path()), Recursive: true}
		case 6:
			op = &logpb.Rename{Source: to(path()), Target: to(path()), Legacy: r.IntN(2) == 0, Overwrite: true}
		case 7:
			op = &logpb.SetTimes{Target: to(path()), Mtime: int64(w.now) + 5, Atime: -1}
		default:
			leases := w.ns.Leases()
			if len(leases) == 0 {
				continue
			}
			l := leases[r.IntN(len(leases))]
			id := l.Files[r.IntN(len(l.Files))]
			f, ok := w.ns.FileByID(id)
			if !ok {
				continue
			}
			var last *logpb.Block
			if len(f.Blocks) > 0 {
				b := f.Blocks[len(f.Blocks)-1]
				last = &logpb.Block{Id: int64(b.ID), Generation: uint64(b.Generation), Length: max(b.Length, 9)}
			}
			if r.IntN(2) == 0 {
				op = &logpb.Complete{Inode: uint64(id), ClientName: l.Holder, Last: last}
				break
			}
			v := w.do(super, &logpb.ReserveIDs{Blocks: 1, Generations: 1}).Reserved
			block = int64(v.FirstBlock)
			op = &logpb.AddBlock{
				Inode: uint64(id), ClientName: l.Holder, Previous: last,
				Block: &logpb.Block{Id: block, Generation: uint64(v.FirstGeneration)},
			}
		}
		cmd := command(super, op)
		cmd.ClientId, cmd.CallId = []byte("0123456789abcdef"), call
		w.apply(cmd)
	}
}

// catchUp replays what is behind a namespace's checkpoint and compares it with the world's.
func (w *world) catchUp(t *testing.T, what string, ns *Namespace) {
	t.Helper()
	for i := ns.AppliedIndex(); i < w.index; i++ {
		ns.Apply(i+1, w.log[i])
	}
	if got, want := ns.Hash(), w.ns.Hash(); got != want {
		t.Errorf("%s: hash %016x, want %016x", what, got, want)
	}
	for _, err := range ns.Check() {
		t.Errorf("%s: %v", what, err)
	}
}

// The checkpoint is cut at every call of the store, while commands change what is being written. Whatever is left, a new
// process finds the former or the new checkpoint, and the log leads to the same state; a power cut may take unsynced
// writes besides. A process that lives on after the failure writes a good checkpoint the next time.
func TestCheckpointCutAnywhere(t *testing.T) {
	for cut := 1; ; cut++ {
		inner := mem.New()
		store := faulty.New(inner, nil)
		w := newWorld(t, Config{Store: store, Memory: 1})
		r := rand.New(rand.NewPCG(1, 1))
		scribble(w, r, 60)
		w.snapshot()
		former := w.index
		scribble(w, r, 60)

		s, err := w.ns.Freeze()
		if err != nil {
			t.Fatal(err)
		}
		frozenAt := w.index
		busy := false
		store.Reset(func(n int, call faulty.Call) error {
			if busy {
				return nil
			}
			if n%5 == 1 { // commands go on
				busy = true
				scribble(w, r, 1)
				busy = false
			}
			if n >= cut {
				return faulty.ErrInjected
			}
			return nil
		})
		_, err = s.WriteTo(io.Discard)
		store.Reset(nil)

		for range 3 {
			for name, source := range map[string]*rand.Rand{"killed": nil, "power cut": r} {
				ns := fresh(t, inner.Crash(source), 0)
				if at := ns.AppliedIndex(); at != former && at != frozenAt {
					t.Fatalf("cut at call %d, %s: starts at %d, checkpoints were at %d and %d", cut, name, at, former, frozenAt)
				}
				w.catchUp(t, fmt.Sprintf("cut at call %d, %s", cut, name), ns)
			}
		}
		s.Release()
		scribble(w, r, 5)
		w.check()
		w.snapshot()
		w.catchUp(t, fmt.Sprintf("cut at call %d, lived on", cut), fresh(t, inner.Crash(nil), 0))
		if t.Failed() {
			t.FailNow()
		}
		if err == nil {
			t.Logf("the checkpoint takes %d calls", cut-1)
			return
		}
		if !errors.Is(err, faulty.ErrInjected) {
			t.Fatal(err)
		}
	}
}

// What comes and goes between two checkpoints is let go long before the second, and the checkpoint is whole all the same.
func TestComingAndGoingLeavesLittle(t *testing.T) {
	w := newWorld(t, Config{})
	r := rand.New(rand.NewPCG(7, 7))
	scribble(w, r, 60)
	w.snapshot()
	w.do(super, &logpb.Mkdirs{Target: to("/keep"), Mode: 0o755})
	for i := range 400 {
		name := fmt.Sprintf("/keep/f%d", i%7)
		w.do(super, create(name, "c"))
		w.do(super, &logpb.Delete{Target: to(name)})
	}
	if n := w.ns.dirty.list.size + w.ns.dirty.old.size; n > 40 {
		t.Errorf("%d inodes wait for the checkpoint", n)
	}
	ns := w.ns
	scribble(w, r, 20)
	hash := ns.Hash()
	w.snapshot()
	w.reopen()
	if w.ns.Hash() != hash {
		t.Error("the checkpoint is of another state")
	}
	for _, err := range w.ns.Check() {
		t.Error(err)
	}
}

// A store that failed once may fail for ever: the member is told to end, whichever call it was, and a new one over the same files has everything.
// A snapshot that somebody gave up meanwhile is no such failure.
func TestFailingStoreEndsTheMember(t *testing.T) {
	for _, call := range []faulty.Call{faulty.Put, faulty.Flush, faulty.Sync} {
		for nth := range 2 {
			inner := mem.New()
			store := faulty.New(inner, nil)
			w := newWorld(t, Config{Store: store})
			r := rand.New(rand.NewPCG(uint64(nth), 5))
			scribble(w, r, 40)
			w.snapshot()
			scribble(w, r, 40)
			passed := 0
			store.Reset(func(_ int, c faulty.Call) error { // reading goes on
				if c != call {
					return nil
				}
				if passed++; passed <= nth {
					return nil
				}
				return faulty.ErrInjected
			})
			for range 2 {
				s, err := w.ns.Freeze()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.(*snapshot).Write(); !errors.Is(err, raftstore.ErrStoreFailed) || !errors.Is(err, faulty.ErrInjected) {
					t.Fatalf("%s %d: %v", call, nth, err)
				}
				s.Release()
				if _, err := s.(*snapshot).Write(); err == nil || errors.Is(err, raftstore.ErrStoreFailed) {
					t.Fatalf("%s %d: a snapshot that was given up: %v", call, nth, err)
				}
				scribble(w, r, 10)
			}
			w.catchUp(t, fmt.Sprintf("%s %d", call, nth), fresh(t, inner.Crash(r), 0))
		}
	}
}

// A snapshot that is given up, or fails half-way, leaves its changes to the next one.
func TestSnapshotsGivenUp(t *testing.T) {
	defer func(turn int) { thawsPerTurn = turn }(thawsPerTurn)
	thawsPerTurn = 3
	for seed := range uint64(40) {
		inner := mem.New()
		store := faulty.New(inner, nil)
		r := rand.New(rand.NewPCG(seed, 9))
		w := newWorld(t, Config{Store: store, Memory: 1, Sheets: sometimes(r, seed)})
		for round := range 6 {
			scribble(w, r, 15)
			s, err := w.ns.Freeze()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.ns.Freeze(); err == nil {
				t.Fatal("two snapshots at once")
			}
			scribble(w, r, 10)
			if r.IntN(2) == 0 {
				store.Reset(faulty.FailAt(1 + r.IntN(30)))
				s.WriteTo(io.Discard)
				store.Reset(nil)
			}
			var releasing sync.WaitGroup
			releasing.Go(s.Release) // in turns, between which commands go on
			scribble(w, r, 10)
			releasing.Wait()
			s.Release()
			if _, err := s.WriteTo(io.Discard); err == nil && w.ns.frozen != nil {
				t.Fatal("a snapshot that was given up writes")
			}
			scribble(w, r, 10)
			if round%2 == 1 {
				w.snapshot()
				w.catchUp(t, fmt.Sprintf("seed %d round %d", seed, round), fresh(t, inner.Crash(nil), 0))
			}
			w.check()
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}

// copyFolder copies a folder. Of files that were made large before there is much in them it copies what is in them.
func copyFolder(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		info, err := in.Stat()
		if err != nil {
			return err
		}
		out, err := os.OpenFile(filepath.Join(to, rel), os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm()|0o600)
		if err != nil {
			return err
		}
		defer out.Close()
		for at, end := int64(0), info.Size(); ; {
			if at, err = in.Seek(at, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) { // nothing but a hole
				return out.Truncate(end)
			}
			var hole int64
			if err == nil {
				hole, err = in.Seek(at, unix.SEEK_HOLE)
			}
			if err == nil {
				_, err = io.Copy(io.NewOffsetWriter(out, at), io.NewSectionReader(in, at, hole-at))
			}
			if err != nil {
				return err
			}
			at = hole
		}
	})
}

// copyAtOnce copies a folder as it is at one moment: once more if it has changed meanwhile, because badger works beside us.
func copyAtOnce(t *testing.T, dir string) string {
	look := func() (out string) {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			out += fmt.Sprintln(path, info.Size(), info.ModTime())
			return err
		})
		return out + fmt.Sprint(err)
	}
	for {
		before, to := look(), filepath.Join(t.TempDir(), "copy")
		err := copyFolder(to, dir)
		if before != look() {
			continue
		}
		if err != nil {
			t.Error(err)
		}
		return to
	}
}

// mixed is a copy of a store's folder in which the database of a class is that of another copy.
func mixed(t *testing.T, dir, other string, class rune) string {
	to := filepath.Join(t.TempDir(), "mixed")
	part := filepath.Join("data", string(class))
	if err := errors.Join(copyFolder(to, dir), os.RemoveAll(filepath.Join(to, part)), copyFolder(filepath.Join(to, part), filepath.Join(other, part))); err != nil {
		t.Fatal(err)
	}
	return to
}

// The same with the real store, whose folder is copied in the middle as a kill would leave it.
func TestBadgerFolderCopiedMidway(t *testing.T) {
	dir := t.TempDir()
	quiet := badger.Options{Apart: Apart, Logger: slog.New(slog.DiscardHandler)}
	inner, err := badger.Open(dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	store := faulty.New(inner, nil)
	w := newWorld(t, Config{Store: store})
	r := rand.New(rand.NewPCG(2, 2))
	scribble(w, r, 40)
	w.snapshot()
	former := w.index
	scribble(w, r, 40)
	s, err := w.ns.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	frozenAt := w.index
	var copies []string
	ended, synced := false, 0
	store.Reset(func(n int, call faulty.Call) error {
		if call == faulty.Sync && synced == 0 {
			synced = len(copies) // all but the marker has been handed over
		}
		if n%23 == 1 || call == faulty.Flush || call == faulty.Sync || call == faulty.Scan && !ended {
			ended = call == faulty.Scan
			copies = append(copies, copyAtOnce(t, dir))
		}
		return nil
	})
	if _, err := s.WriteTo(io.Discard); err != nil {
		t.Fatal(err)
	}
	store.Reset(nil)
	// A power cut may leave one database of the store as it was before others: until they are synced, when the marker is not there.
	for _, class := range Apart {
		for _, at := range []int{0, synced / 2, synced} {
			copies = append(copies, mixed(t, copies[at], copies[synced-at], class), mixed(t, copies[synced], copies[at], class), mixed(t, copies[at], copies[synced], class))
		}
	}
	starts := map[uint64]int{}
	for i, dir := range copies {
		c, err := badger.Open(dir, quiet)
		if err != nil {
			t.Fatal(err)
		}
		ns := fresh(t, c, 0)
		starts[ns.AppliedIndex()]++
		w.catchUp(t, fmt.Sprintf("copy %d", i), ns)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if starts[former] == 0 || starts[frozenAt] == 0 || len(starts) != 2 {
		t.Errorf("copies start at %v; the checkpoints are at %d and %d", starts, former, frozenAt)
	}
}

// A namespace on badger is stopped and started, and loads what it needs.
func TestRestartOnBadger(t *testing.T) {
	dir := t.TempDir()
	quiet := badger.Options{Apart: Apart, Logger: slog.New(slog.DiscardHandler)}
	var w *world
	r := rand.New(rand.NewPCG(3, 3))
	for round := range 4 {
		store, err := badger.Open(dir, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if w == nil {
			w = newWorld(t, Config{Store: store, Memory: 1})
		} else {
			w.cfg.Store = store
			w.open()
		}
		if got := w.ns.AppliedIndex(); got != w.index {
			t.Fatalf("round %d starts at %d, want %d", round, got, w.index)
		}
		scribble(w, r, 200)
		w.snapshot()
		w.check()
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	again := fresh(t, mem.New(), 0)
	w.replay(again)
	if got, want := w.ns.Hash(), again.Hash(); got != want {
		t.Errorf("hash %016x, want %016x", got, want)
	}
}

// The stream is checked to the last bit before anything of it counts.
func TestDamagedSnapshotChangesNothing(t *testing.T) {
	w := newWorld(t, Config{})
	r := rand.New(rand.NewPCG(4, 4))
	scribble(w, r, 80)
	good := w.snapshot()
	other := newWorld(t, Config{})
	scribble(other, r, 20)
	other.snapshot()
	scribble(other, r, 20)
	hash, index := other.ns.Hash(), other.ns.AppliedIndex()
	refused := func(what string, stream []byte) {
		t.Helper()
		err := other.ns.Restore(bytes.NewReader(stream))
		if !errors.Is(err, metadata.ErrCorrupt) {
			t.Fatalf("%s: %v", what, err)
		}
		if other.ns.Hash() != hash || other.ns.AppliedIndex() != index {
			t.Fatalf("%s: something changed", what)
		}
	}
	for at := 0; at < len(good); at += 7 {
		bad := bytes.Clone(good)
		bad[at] ^= 1 << (at % 8)
		refused(fmt.Sprintf("bit %d of byte %d flipped", at%8, at), bad)
		refused(fmt.Sprintf("cut at %d", at), good[:at])
	}
	other.check()
	scribble(other, r, 20)
	other.snapshot()
	other.check()
	if err := other.ns.Restore(bytes.NewReader(good)); err != nil {
		t.Fatal(err)
	}
	if other.ns.Hash() != w.ns.Hash() {
		t.Error("the good one does not give the same state")
	}
	other.check()
}

// A store that dies while a snapshot is installed leaves the state that was there.
func TestRestoreCutAnywhere(t *testing.T) {
	w := newWorld(t, Config{})
	r := rand.New(rand.NewPCG(5, 5))
	scribble(w, r, 60)
	stream := w.snapshot()
	for cut := 1; ; cut++ {
		inner := mem.New()
		store := faulty.New(inner, nil)
		other := newWorld(t, Config{Store: store})
		scribble(other, r, 10)
		other.snapshot()
		hash := other.ns.Hash()
		store.Reset(faulty.FailAt(cut, faulty.Put, faulty.Replace))
		err := other.ns.Restore(bytes.NewReader(stream))
		store.Reset(nil)
		if err == nil {
			if fresh(t, inner.Crash(nil), 0).Hash() != w.ns.Hash() {
				t.Error("the installed snapshot is another state")
			}
			return
		}
		if other.ns.Hash() != hash || fresh(t, inner.Crash(nil), 0).Hash() != hash {
			t.Fatalf("cut at call %d: the state changed", cut)
		}
		other.check()
	}
}

// A checkpoint that cannot be understood is thrown away: the namespace asks for a snapshot by being at 0.
func TestDoubtfulCheckpointStartsEmpty(t *testing.T) {
	root := string(classDirectory) + entryKey(0, "")[1:]
	damage := map[string]func(t *testing.T, s kv.Store, at uint64){
		"marker of noise": func(t *testing.T, s kv.Store, at uint64) {
			overwrite(t, s, at+1, string(markerKey), []byte{0xff, 1, 2})
		},
		"no root":       func(t *testing.T, s kv.Store, at uint64) { overwrite(t, s, at, root, nil) },
		"root of noise": func(t *testing.T, s kv.Store, at uint64) { overwrite(t, s, at, root, []byte{0xff}) },
		"open file without a lease": func(t *testing.T, s kv.Store, at uint64) {
			overwrite(t, s, at, idKey(classOpen, 20000), []byte("nobody"))
		},
		"retry of noise": func(t *testing.T, s kv.Store, at uint64) {
			overwrite(t, s, at, idKey(classRetry, 77), []byte{0xff})
		},
	}
	for name, damage := range damage {
		t.Run(name, func(t *testing.T) {
			store := mem.New()
			w := newWorld(t, Config{Store: store})
			scribble(w, rand.New(rand.NewPCG(6, 6)), 20)
			w.snapshot()
			damage(t, store, w.index)
			ns := fresh(t, store, 0)
			if at := ns.AppliedIndex(); at != 0 {
				t.Fatalf("it starts at %d", at)
			}
			w.catchUp(t, "from an empty start", ns)
		})
	}
}

// A checkpoint of another version is nobody's damage: the program says both versions, and touches nothing.
func TestCheckpointOfAnotherVersionIsRefused(t *testing.T) {
	store := mem.New()
	w := newWorld(t, Config{Store: store})
	scribble(w, rand.New(rand.NewPCG(6, 6)), 20)
	w.snapshot()
	value, err := (&logpb.Marker{Version: 99, Index: w.index + 1}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, store, w.index+1, string(markerKey), value)
	for range 2 {
		_, err = Open(Config{Store: store})
		if !errors.Is(err, metadata.ErrUnsupported) || !strings.Contains(err.Error(), "version 99") || !strings.Contains(err.Error(), fmt.Sprint(formatVersion)) {
			t.Fatal(err)
		}
	}
	view := store.View(w.index)
	defer view.Close()
	if m, _, err := markerOf(view); err != nil || m.Index != w.index {
		t.Errorf("the checkpoint was touched: %v", err)
	}
}

func overwrite(t *testing.T, s kv.Store, at uint64, key string, value []byte) {
	t.Helper()
	b := s.Batch(at)
	var err error
	if value == nil {
		err = b.Delete([]byte(key))
	} else {
		err = b.Put([]byte(key), value)
	}
	if err := errors.Join(err, b.Flush(), s.Sync()); err != nil {
		t.Fatal(err)
	}
}

// A read that fails condemns the checkpoint: reads end in an error, a command stops the process, and the next start is
// from a snapshot.
func TestFailingReadCondemnsCheckpoint(t *testing.T) {
	inner := mem.New()
	store := faulty.New(inner, nil)
	w := newWorld(t, Config{Store: store})
	w.do(super, &logpb.Mkdirs{Target: to("/a/b"), Mode: 0o755, CreateParent: true})
	w.reopen()
	store.Reset(faulty.FailAt(1, faulty.Get, faulty.Scan))
	if _, err := w.ns.Stat(super, "/a/b"); !errors.Is(err, faulty.ErrInjected) {
		t.Errorf("stat gave %v", err)
	}
	store.Reset(nil)
	if _, err := w.ns.Stat(super, "/"); err == nil {
		t.Error("it reads on")
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it applies on")
			}
		}()
		w.do(super, &logpb.Mkdirs{Target: to("/a/c"), Mode: 0o755})
	}()
	if ns := fresh(t, inner.Crash(nil), 0); ns.AppliedIndex() != 0 {
		t.Error("the next start trusts the checkpoint")
	}
}

// snapshotOp is a random change of snapshots.
func snapshotOp(r *rand.Rand, path string) any {
	op := &logpb.ChangeSnapshots{Target: to(path[:2]), Change: logpb.ChangeSnapshots_Change(r.IntN(6)), Name: fmt.Sprint("s", r.IntN(4))}
	if op.Change > logpb.ChangeSnapshots_RENAME || op.Change == logpb.ChangeSnapshots_DISALLOW {
		op.Change = logpb.ChangeSnapshots_CREATE
	}
	op.NewName = fmt.Sprint("s", r.IntN(4))
	return op
}

// The first checkpoint of a member is cut, and leaves records without a marker. The next start empties the store, and goes on from the log.
func TestFirstCheckpointCutOnBadger(t *testing.T) {
	dir := t.TempDir()
	openStore := func() *badger.Store {
		t.Helper()
		s, err := badger.Open(dir, badger.Options{Apart: Apart, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	store := openStore()
	w := newWorld(t, Config{Store: store})
	for i := range 40 {
		w.closedFile(fmt.Sprintf("/d/f%d", i))
	}
	b := store.Batch(w.index)
	if err := errors.Join(b.Put([]byte(entryKey(metadata.RootID, "left")), w.raw("/d/f1")), b.Put(sheetKey(1<<20), []byte{1}), b.Flush(), store.Sync()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		store = openStore()
		w.cfg.Store = store
		w.open()
		if last := store.Last(); last != 0 || w.ns.AppliedIndex() != 0 {
			t.Errorf("the store has something at %d, the namespace is at %d", last, w.ns.AppliedIndex())
		}
	}
	w.replay(w.ns)
	w.snapshot()
	w.check()
	w.reopen()
	w.check()
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}
