package namespace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/kv/faulty"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/raftstore"
)

// checkpoint makes a version.
func (w *world) checkpoint() raftstore.Reference {
	w.t.Helper()
	s, err := w.ns.Freeze()
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Release()
	ref, err := s.(raftstore.Checkpoint).Write()
	if err != nil {
		w.t.Fatal(err)
	}
	return ref
}

// pull puts a version of one namespace beside the content of another.
func pull(from *Namespace, ref raftstore.Reference, in raftstore.Intake) error {
	v, err := from.Version(ref)
	if err != nil {
		return err
	}
	defer v.Close()
	for !in.Complete() {
		piece, _, err := v.Read(in.Position())
		if err != nil {
			return err
		}
		if err := in.Put(piece); err != nil {
			return err
		}
	}
	return nil
}

// What snapshots refer to stays as it was, through checkpoints, restarts and power cuts; what nothing refers to goes.
func TestVersionsStayWhileTheyAreRetained(t *testing.T) {
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 4))
		inner := mem.New()
		store := faulty.New(inner, nil)
		w := newWorld(t, Config{Store: store, Memory: 1})
		type kept struct {
			ref  raftstore.Reference
			copy []byte
		}
		var all []kept
		for range 8 {
			scribble(w, r, 25)
			ref := w.checkpoint()
			v, err := w.ns.Version(ref)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if _, err := v.WriteTo(&b); err != nil {
				t.Fatal(err)
			}
			v.Close()
			all = append(all, kept{ref, b.Bytes()})
			two := all[max(0, len(all)-2):]
			var indexes []uint64
			for _, k := range two {
				indexes = append(indexes, k.ref.Index)
			}
			w.ns.Retain(indexes)
			ns := w.ns
			if r.IntN(2) == 0 { // a cut checkpoint, and another process
				scribble(w, r, 10)
				store.Reset(faulty.FailAt(1+r.IntN(20), faulty.Put, faulty.Delete, faulty.Flush, faulty.Sync))
				if s, err := ns.Freeze(); err == nil {
					s.WriteTo(io.Discard)
					s.Release()
				}
				store.Reset(nil)
				ns = fresh(t, inner.Crash(r), 0)
				bodies := w.cfg.Bodies.(*memBodies).crash(r)
				ns.cfg.Bodies = bodies
				ns.Retain(indexes)
				if err := bodies.compact(ns); err != nil {
					t.Fatal(err)
				}
			}
			for _, k := range two {
				v, err := ns.Version(k.ref)
				if err != nil {
					t.Fatalf("version %d: %v", k.ref.Index, err)
				}
				var b bytes.Buffer
				if _, err := v.WriteTo(&b); err != nil || !bytes.Equal(b.Bytes(), k.copy) {
					t.Fatalf("version %d has changed, %v", k.ref.Index, err)
				}
				v.Close()
			}
			for _, k := range all[:max(0, len(all)-2)] {
				if _, err := ns.Version(k.ref); !errors.Is(err, fs.ErrNotExist) {
					t.Fatalf("version %d is still there: %v", k.ref.Index, err)
				}
			}
		}
		w.check()
	}
}

// An open version stays although nothing else retains it, and its reader learns when the content was exchanged.
func TestOpenVersionStays(t *testing.T) {
	w := newWorld(t, Config{})
	r := rand.New(rand.NewPCG(8, 1))
	scribble(w, r, 60)
	ref := w.checkpoint()
	v, err := w.ns.Version(ref)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for range 3 {
		scribble(w, r, 60)
		w.ns.Retain([]uint64{w.checkpoint().Index})
	}
	var b bytes.Buffer
	if _, err := v.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if got := restore(t, b.Bytes()).Hash(); got != ref.Hash {
		t.Errorf("hash %016x, want %016x", got, ref.Hash)
	}
	if err := w.ns.Restore(&b); err != nil {
		t.Fatal(err)
	}
	if _, _, err := v.Read(nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it reads on: %v", err)
	}
}

// A process that has not been told which versions stay lets none go, and a content that came from elsewhere has none of the former one's. A
// reference to another state of the same index leads nowhere.
func TestVersionsStayUntilSomebodySaysWhich(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	w := newWorld(t, Config{})
	scribble(w, r, 20)
	first := w.checkpoint()
	readable := func(ref raftstore.Reference) error {
		v, err := w.ns.Version(ref)
		if err != nil {
			return err
		}
		defer v.Close()
		_, err = v.WriteTo(io.Discard)
		return err
	}
	if err := readable(raftstore.Reference{Index: first.Index, Hash: first.Hash + 1}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another state of the index: %v", err)
	}
	v, err := w.ns.Version(first)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := v.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	v.Close()
	w.reopen()
	scribble(w, r, 20)
	second := w.checkpoint()
	if err := readable(first); err != nil {
		t.Errorf("nobody has said which versions stay, and one is gone: %v", err)
	}
	w.ns.Retain([]uint64{second.Index})
	if err := readable(first); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a version that is not retained: %v", err)
	}
	if err := w.ns.Restore(&b); err != nil {
		t.Fatal(err)
	}
	if err := readable(first); err != nil {
		t.Errorf("the version that was restored: %v", err)
	}
}

// A pull is cut at every call of the receiver's store, by a failure and by a crash: the receiver is as before, or has the version.
func TestPullCutAnywhere(t *testing.T) {
	w := newWorld(t, Config{})
	r := rand.New(rand.NewPCG(5, 7))
	scribble(w, r, 80)
	ref := w.checkpoint()
	for cut := 1; ; cut++ {
		inner := mem.New()
		store := faulty.New(inner, nil)
		other := newWorld(t, Config{Store: store})
		scribble(other, r, 10)
		other.snapshot()
		hash := other.ns.Hash()
		store.Reset(faulty.FailAt(cut, faulty.Put, faulty.Replace))
		in, err := other.ns.Receive(ref)
		if err == nil {
			if err = pull(w.ns, ref, in); err == nil {
				if got := fresh(t, inner.Crash(nil), 0).Hash(); got != hash {
					t.Fatalf("cut at call %d: something changed before Commit", cut)
				}
				err = in.Commit()
			}
			in.Cancel()
		}
		store.Reset(nil)
		if err == nil {
			if fresh(t, inner.Crash(r), 0).Hash() != ref.Hash || other.ns.Hash() != ref.Hash {
				t.Error("what was pulled is another state")
			}
			other.check()
			t.Logf("%d calls", cut-1)
			return
		}
		if other.ns.Hash() != hash || fresh(t, inner.Crash(r), 0).Hash() != hash {
			t.Fatalf("cut at call %d: the state changed", cut)
		}
		scribble(other, r, 3)
		other.check()
	}
}

// A member reads, applies and writes checkpoints while it pulls; a second pull takes the place of the first.
func TestPullBesideEverythingElse(t *testing.T) {
	dir := t.TempDir()
	store, err := badger.Open(dir, badger.Options{Apart: Apart, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	from, other := newWorld(t, Config{}), newWorld(t, Config{Store: store})
	r := rand.New(rand.NewPCG(6, 7))
	scribble(from, r, 200)
	ref := from.checkpoint()
	scribble(other, r, 50)
	first, err := other.ns.Receive(ref)
	if err != nil {
		t.Fatal(err)
	}
	scribble(other, r, 50)
	other.snapshot()
	in, err := other.ns.Receive(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Put(nil); err == nil {
		t.Error("the first one goes on")
	}
	if err := pull(from.ns, ref, in); err != nil {
		t.Fatal(err)
	}
	scribble(other, r, 50)
	other.check()
	s, err := other.ns.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.(raftstore.Checkpoint).Write(); err == nil {
		t.Error("a checkpoint of what is gone was written")
	}
	s.Release()
	other.check()
	if other.ns.Hash() != ref.Hash {
		t.Error("another state")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "data.*")); len(left) != 0 {
		t.Error(left)
	}
	if v, err := other.ns.Version(ref); err != nil {
		t.Error(err)
	} else {
		v.Close()
	}
}

// Whoever sends something else than was promised is found out, and nothing has changed then.
func TestPiecesOfLiars(t *testing.T) {
	w := newWorld(t, Config{})
	r := rand.New(rand.NewPCG(9, 7))
	scribble(w, r, 40)
	w.do(super, &logpb.Delete{Target: to("/"), Recursive: true})
	for _, name := range []string{"a", "b", "c", "d"} {
		w.do(super, &logpb.Delete{Target: to("/" + name), Recursive: true})
	}
	w.do(super, &logpb.Reclaim{Limit: 1 << 16})
	for _, name := range []string{"/x", "/y"} {
		v := w.do(super, &logpb.ReserveIDs{Blocks: 1, Generations: 1}).Reserved
		w.do(super, storeOf(name, "c", &logpb.Block{Id: int64(v.FirstBlock), Generation: uint64(v.FirstGeneration)}, 1500))
	}
	ref := w.checkpoint()
	v, err := w.ns.Version(ref)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	whole, _, err := v.Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	whole = bytes.Clone(whole)
	var frames [][]byte // each with its head
	var buf []byte
	for in := bytes.NewReader(whole); in.Len() > 0; {
		at := len(whole) - in.Len()
		if _, _, err := readFrame(in, &buf); err != nil {
			t.Fatal(err)
		}
		frames = append(frames, whole[at:len(whole)-in.Len()])
	}
	if len(frames) != 5 || frames[2][0] != frameBody || frames[3][0] != frameBody {
		t.Fatalf("%d frames", len(frames))
	}
	join := func(f ...[]byte) []byte { return bytes.Join(f, nil) }
	bodies := join(frames[2], frames[3])
	framed := func(kind byte, payload []byte) []byte {
		var c piece
		c.open()
		c.bytes = append(c.bytes, payload...)
		c.close(kind)
		return c.bytes
	}
	body := frames[2][frameHeader:]
	first, last := join(frames[:2]...), frames[4]
	for what, piece := range map[string][]byte{
		"records twice":       join(first, frames[1], last),
		"none":                join(frames[0], last),
		"two ends":            join(whole, last),
		"a second beginning":  join(first, bodies, frames[0], last),
		"no bodies":           join(first, last),
		"one body":            join(first, frames[3], last),
		"bodies out of order": join(first, frames[3], frames[2], last),
		"a body twice":        join(first, bodies, frames[3], last),
		"a body too early":    join(frames[0], frames[2], frames[1], bodies, last),
		"other bytes":         join(first, framed(frameBody, flipped(body, len(body)-1)), frames[3], last),
		"another checksum":    join(first, framed(frameBody, flipped(body, 17)), frames[3], last),
		"another generation":  join(first, framed(frameBody, flipped(body, 9)), frames[3], last),
		"a short body":        join(first, framed(frameBody, body[:len(body)-1]), frames[3], last),
		"half a body":         join(first, framed(frameBody, body[:18]), frames[3], last),
		"half a gap":          join(first, framed(frameGap, body[:15]), frames[3], last),
		"a gap of another":    join(first, framed(frameGap, flipped(body[:16], 0)), frames[3], last),
		"half a frame":        whole[:len(whole)-5],
		"a flipped bit":       flipped(whole, len(whole)/2),
		"an enormous frame":   append(bytes.Clone(frames[0]), 'R', 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0),
		"another kind":        append(bytes.Clone(frames[0]), 'x', 0, 0, 0, 0, 0, 0, 0, 0),
		"a length of nothing": {0},
	} {
		other := newWorld(t, Config{})
		scribble(other, r, 5)
		hash := other.ns.Hash()
		in, err := other.ns.Receive(ref)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Put(piece); !errors.Is(err, metadata.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
		in.Cancel()
		if err := in.Commit(); err == nil {
			t.Errorf("%s: it counts", what)
		}
		if other.ns.Hash() != hash {
			t.Errorf("%s: something changed", what)
		}
	}
	in, err := w.ns.Receive(raftstore.Reference{Index: ref.Index, Hash: ref.Hash ^ 1})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Cancel()
	if err := in.Put(whole); !errors.Is(err, metadata.ErrCorrupt) {
		t.Errorf("another hash than promised: %v", err)
	}
	// One that lacks a body says so, and is good for the rest.
	other := newWorld(t, Config{})
	lacking, err := other.ns.Receive(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := lacking.Put(join(first, framed(frameGap, body[:16]), frames[3], last)); err != nil || !lacking.Complete() {
		t.Fatal(err)
	}
	if other.cfg.Bodies.(*memBodies).holds != 1 {
		t.Error("nobody holds the bodies of a version that is received")
	}
	if err := lacking.Commit(); err != nil || other.cfg.Bodies.(*memBodies).holds != 0 || other.ns.BodyGaps() != 1 || other.ns.Hash() != ref.Hash {
		t.Fatal(err, other.ns.BodyGaps())
	}
	if errs := other.ns.Check(); len(errs) != 1 || !strings.Contains(errs[0].Error(), "is missing on this member") {
		t.Error(errs)
	}
	if got := other.cfg.Bodies.(*memBodies).lacked; len(got) != 1 || uint64(got[0]) != binary.LittleEndian.Uint64(body) {
		t.Errorf("missing are %v", got)
	}
}

// Records that are in no hash are counted: a version that lacks one, as a store may whose table is damaged, is none.
func TestPiecesWithoutAWay(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, &logpb.ChangeSnapshots{Target: to("/"), Change: logpb.ChangeSnapshots_ALLOW})
	w.do(super, &logpb.ChangeSnapshots{Target: to("/"), Change: logpb.ChangeSnapshots_CREATE, Name: "s"})
	w.closedFile("/closed")
	w.do(super, create("/open", "c"))
	w.do(super, &logpb.SetPermission{Target: to("/"), Mode: 0o700})
	ref := w.checkpoint()
	view := w.ns.cfg.Store.View(ref.Index)
	defer view.Close()
	for _, class := range []byte{0, classINode, classBlock, classOpen, classSnapshotIndex} {
		var marker []byte
		var whole piece
		whole.begin(0, nil)
		left := 0
		err := view.Scan(nil, nil, func(key, value []byte) bool {
			switch {
			case key[0] == classMarker:
				marker = bytes.Clone(value)
			case key[0] == class && left == 0:
				left++
			default:
				return whole.record(key, value, w.ns.ReadBody) == nil
			}
			return true
		})
		if err != nil || class != 0 && left == 0 {
			t.Fatalf("class %c: %d, %v", class, left, err)
		}
		if err := whole.finish(marker, w.ns.ReadBody); err != nil {
			t.Fatal(err)
		}
		in, err := newWorld(t, Config{}).ns.Receive(ref)
		if err != nil {
			t.Fatal(err)
		}
		err = in.Put(whole.bytes)
		if in.Complete() != (class == 0) || class != 0 && !errors.Is(err, metadata.ErrCorrupt) {
			t.Errorf("class %c: %v", class, err)
		}
		in.Cancel()
	}
}

func flipped(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 4
	return b
}

// The store of a member whose folder is damaged starts empty, and keeps the damaged files for people.
func TestDamagedFolderIsKept(t *testing.T) {
	dir := t.TempDir()
	quiet := badger.Options{Apart: Apart, Logger: slog.New(slog.DiscardHandler)}
	store, err := badger.Open(dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Config{Store: store})
	scribble(w, rand.New(rand.NewPCG(1, 7)), 20)
	w.snapshot()
	overwrite(t, store, w.index+1, string(markerKey), []byte{0xff, 1, 2})
	for round := range 2 {
		ns := fresh(t, store, 0)
		if at := ns.AppliedIndex(); at != 0 {
			t.Fatalf("round %d: it starts at %d", round, at)
		}
		if _, err := os.Stat(filepath.Join(dir, "data.damaged", "MANIFEST")); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		if store, err = badger.Open(dir, quiet); err != nil {
			t.Fatal(err)
		}
	}
	store.Close()
}

// Pieces are bounded, and a pull that goes on at any of them ends with the same.
func TestPiecesAreBounded(t *testing.T) {
	w := newWorld(t, Config{})
	var ops []any
	for i := range 12000 {
		ops = append(ops, create(fmt.Sprintf("/d%d/%0200d", i%7, i), "c"))
	}
	for _, op := range ops {
		w.do(super, op)
	}
	ref := w.checkpoint()
	other := newWorld(t, Config{})
	in, err := other.ns.Receive(ref)
	if err != nil {
		t.Fatal(err)
	}
	pieces := 0
	for !in.Complete() {
		v, err := w.ns.Version(ref)
		if err != nil {
			t.Fatal(err)
		}
		piece, _, err := v.Read(in.Position())
		if err != nil {
			t.Fatal(err)
		}
		if len(piece) > raftstore.MaxPiece || len(in.Position()) > raftstore.MaxPosition {
			t.Fatalf("a piece of %d bytes, a position of %d", len(piece), len(in.Position()))
		}
		if err := in.Put(piece); err != nil {
			t.Fatal(err)
		}
		v.Close()
		pieces++
	}
	if err := in.Commit(); err != nil {
		t.Fatal(err)
	}
	if other.ns.Hash() != ref.Hash || pieces < 3 {
		t.Errorf("%d pieces, hash %016x, want %016x", pieces, other.ns.Hash(), ref.Hash)
	}
}
