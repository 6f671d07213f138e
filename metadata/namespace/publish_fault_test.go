package namespace

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/faulty"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// applies applies an entry, and returns what it panics with; nil: it does not.
func applies(ns *Namespace, index uint64, commands [][]byte) (r *Result, stopped any) {
	defer func() { stopped = recover() }()
	r, _ = ns.Apply(index, commands)[0].(*Result)
	return r, nil
}

// drawTarget draws what a step may be about, and what no step can be.
func drawTarget(t *rapid.T, w *world) *logpb.Target {
	path := drawPath(t, "path")
	if rapid.IntRange(0, 2).Draw(t, "there") > 0 {
		path = rapid.SampledFrom(pathsOf(w.ns)).Draw(t, "path")
	}
	target := to(path)
	switch rapid.IntRange(0, 24).Draw(t, "target") {
	case 0:
		target.Path = rapid.SampledFrom([]string{
			"", "/", "//", "a//b", "/a/", "a/./b", "..", ".snapshot", "a/.snapshot", "a/.snapshot/s0/b", ".reserved", ".reserved/.inodes", ".reserved/raw/a",
			"a:b", "\xff", "a/\x00", strings.Repeat("x", metadata.MaxNameLength+1), strings.Repeat("a/", 1200), "system/x",
		}).Draw(t, "odd path")
	case 1:
		target.Base = rapid.SampledFrom([]uint64{uint64(metadata.RootID), uint64(noINode), 2, 1 << 40, 1<<64 - 1}).Draw(t, "odd base")
	case 2, 3, 4:
		if id, err := w.ns.Resolve(super, path); err == nil {
			target.Base, target.Path = uint64(id), rapid.SampledFrom([]string{"", "a", "b/a"}).Draw(t, "rest")
		}
	case 5:
		target.Version = rapid.SampledFrom([]uint64{1, 1 << 60}).Draw(t, "version")
	}
	return target
}

// drawStep draws a step, mostly one that can be.
func drawStep(t *rapid.T, w *world, last bool) any {
	odd := func(label string) bool { return rapid.IntRange(0, 14).Draw(t, label) == 0 }
	name := rapid.SampledFrom([]string{"t", "t", "t", "u", "", "\xff", strings.Repeat("n", metadata.MaxXAttrSize+1)}).Draw(t, "attribute")
	space := logpb.XAttr_Namespace(rapid.SampledFrom([]int32{0, 0, 0, 1, 2, 3, 99, -1}).Draw(t, "namespace"))
	switch rapid.IntRange(0, 8).Draw(t, "step") {
	case 0, 1, 2:
		r := &logpb.Rename{Source: drawTarget(t, w), Target: drawTarget(t, w), Overwrite: rapid.Bool().Draw(t, "overwrite"), Legacy: odd("legacy"), ToTrash: odd("trash")}
		if odd("survey") {
			r.Survey, r.Names, r.Space = rapid.Uint64().Draw(t, "survey"), rapid.Int64().Draw(t, "names"), rapid.Int64().Draw(t, "space")
		}
		return r
	case 3, 4:
		d := &logpb.Delete{Target: drawTarget(t, w), Recursive: !odd("recursive")}
		if odd("survey") {
			d.Survey, d.Names, d.Space = rapid.Uint64().Draw(t, "survey"), rapid.Int64().Draw(t, "names"), rapid.Int64().Draw(t, "space")
		}
		return d
	case 5, 6:
		return &logpb.SetXAttr{Target: drawTarget(t, w), Create: !odd("create"), Replace: !odd("replace"), Attribute: &logpb.XAttr{Namespace: space, Name: name, Value: []byte(name)}}
	case 7:
		return &logpb.RemoveXAttr{Target: drawTarget(t, w), Namespace: space, Name: name}
	default:
		if !last && !odd("early") {
			return &logpb.Delete{Target: drawTarget(t, w)}
		}
		return &logpb.ChangeSnapshots{
			Target: drawTarget(t, w), Change: logpb.ChangeSnapshots_Change(rapid.SampledFrom([]int32{2, 2, 2, 0, 1, 3, 4, 77}).Draw(t, "change")),
			Name: rapid.SampledFrom([]string{"s0", "", "a/b", ".snapshot", fmt.Sprint("s", w.index)}).Draw(t, "snapshot"),
		}
	}
}

// TestPublishesOfAnything draws lists of steps, also such as no client sends, on trees with quotas and snapshots. None makes the program panic, and one that fails leaves
// everything as it was. A member with nothing in memory agrees; where its store fails, at any place, it stops without an answer, and after the restart it agrees.
func TestPublishesOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorldIn(t)
		scribble(w, rand.New(rand.NewPCG(rapid.Uint64Range(0, 1000).Draw(t, "seed"), 5)), 30)
		for _, dir := range []string{"/a", "/b/a", "/b/b/c", "/c/a/b"} {
			w.do(super, &logpb.Mkdirs{Target: to(dir), Mode: 0o777, CreateParent: true})
			w.do(super, create(dir+"/f", "c"))
		}
		for range rapid.IntRange(0, 3).Draw(t, "quotas") {
			w.do(super, &logpb.SetQuota{Target: to(drawPath(t, "quota")), Names: rapid.Int64Range(1, 20).Draw(t, "names"), Space: rapid.Int64Range(1, 50).Draw(t, "space") << 20})
		}
		for range rapid.IntRange(0, 2).Draw(t, "roots") {
			root := drawPath(t, "root")
			w.do(super, snapshotChange(root, allowSnapshots))
			w.do(super, snapshotChange(root, createSnapshot, "s0"))
		}
		for range rapid.IntRange(1, 4).Draw(t, "publishes") {
			var ops []any
			for n := rapid.IntRange(1, 6).Draw(t, "steps"); len(ops) < n; {
				ops = append(ops, drawStep(t, w, len(ops) == n-1))
			}
			op := publishOf(ops...)
			if rapid.IntRange(0, 2).Draw(t, "if there") == 0 {
				op.Steps[rapid.IntRange(0, len(ops)-1).Draw(t, "which")].IfThere = true
			}
			var stream bytes.Buffer
			takeSnapshot(t, w.ns, &stream)
			before, unsaved := contentOf(w.ns), unsavedOf(w.ns)
			r := w.do(drawCaller(t), op)
			if r.Err != nil {
				if after := contentOf(w.ns); !reflect.DeepEqual(before, after) || r.OK {
					t.Fatalf("%v: the state has changed: %+v, before %+v", r.Err, after, before)
				}
				if after := unsavedOf(w.ns); !maps.Equal(after, unsaved) {
					t.Fatalf("%v: to be written is %q, before %q", r.Err, after, unsaved)
				}
			}
			commands, hash, answer := w.log[w.index-1], w.ns.Hash(), fmt.Sprint(r.Step, r.OK, r.Snapshot, r.INode, r.Err)
			agrees := func(ns *Namespace) {
				t.Helper()
				r, stopped := applies(ns, w.index, commands)
				if stopped != nil {
					t.Fatalf("it stops: %v", stopped)
				}
				if got := fmt.Sprint(r.Step, r.OK, r.Snapshot, r.INode, r.Err); got != answer || ns.Hash() != hash {
					t.Fatalf("a member with nothing in memory answers %s, not %s, or has another state", got, answer)
				}
			}
			calls := 0
			for try := range 4 {
				inner := mem.New()
				store := faulty.New(inner, nil)
				cold, err := Open(Config{Store: store, Owner: "hops", Supergroup: "supergroup", Memory: 1, OnMistake: mistake(t)})
				if err == nil {
					err = cold.Restore(bytes.NewReader(stream.Bytes()))
				}
				if err != nil {
					t.Fatal(err)
				}
				if try == 0 {
					store.Reset(nil)
					agrees(cold)
					if calls = store.Calls(); calls == 0 {
						break
					}
					continue
				}
				store.Reset(faulty.FailAt(rapid.IntRange(1, calls).Draw(t, "fails at")))
				r, stopped := applies(cold, w.index, commands)
				if stopped == nil {
					t.Fatalf("the store failed, and it answers %+v", r)
				}
				if err, ok := stopped.(error); !ok || !errors.Is(err, faulty.ErrInjected) {
					t.Fatalf("it stops with %v", stopped)
				}
				again, err := Open(Config{Store: inner.Crash(nil), Owner: "hops", Supergroup: "supergroup", Memory: 1, OnMistake: mistake(t)})
				if err != nil {
					t.Fatal(err)
				}
				if again.AppliedIndex() != 0 {
					t.Fatal("the next start trusts the checkpoint")
				}
				if err := again.Restore(bytes.NewReader(stream.Bytes())); err != nil {
					t.Fatal(err)
				}
				agrees(again)
			}
		}
		w.check()
	})
}

// A mistake of the program that shows in a later step, before that step has changed anything, is a refusal as in any other command: what the steps before have
// done is taken back. Behind a change of its own the member stops.
func TestPanicOfAStepIsARefusal(t *testing.T) {
	w := publishWorld(t)
	var seen []string
	w.ns.cfg.OnMistake = func(_ uint64, what any, stack []byte) {
		seen = append(seen, fmt.Sprint(what))
		if !strings.Contains(string(stack), "tryStep") {
			t.Errorf("stack %s", stack)
		}
	}
	id, err := w.ns.Resolve(super, "/q/s/empty")
	if err != nil {
		t.Fatal(err)
	}
	before, diff, unsaved := contentOf(w.ns), w.diff("/q/s", "s1"), unsavedOf(w.ns)
	op := publishOf(renameOf("/new", "/q/new"), attributeOf("/q/new", "a", "1"), &logpb.Delete{Target: to("/q/s/d"), Recursive: true}, renameOf("/q/s/empty", "/limited/e"))
	data, err := command(super, op).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	n := w.ns.inodes[id]
	dir := n.dir
	n.dir = nil // an inode that is nothing, which shows when the last step counts it
	r, stopped := applies(w.ns, w.index+1, [][]byte{data})
	n.dir = dir
	if stopped != nil {
		t.Fatalf("the member stops, and would at every start: %v", stopped)
	}
	w.index++
	w.log = append(w.log, [][]byte{data})
	if !errors.Is(r.Err, metadata.ErrIO) || !strings.Contains(r.Err.Error(), "nothing was changed") || r.OK || len(seen) != 1 {
		t.Errorf("%+v, told of %q", r, seen)
	}
	if after := contentOf(w.ns); !reflect.DeepEqual(before, after) {
		t.Errorf("the state has changed: %+v, before %+v", after, before)
	}
	if after := unsavedOf(w.ns); !maps.Equal(after, unsaved) {
		t.Errorf("to be written is %q, before %q", after, unsaved)
	}
	if after := w.diff("/q/s", "s1"); after != diff {
		t.Errorf("the snapshot differs by %s, before by %s", after, diff)
	}
	w.check()
	if r := w.do(super, op); r.Err != nil || !r.OK {
		t.Fatalf("without the mistake: %v", r.Err)
	}
	w.check()

	w.ns.trash = nil // what is deleted cannot go anywhere, which shows when it is cut off already
	if _, stopped := applies(w.ns, w.index+1, [][]byte{mustMarshal(t, command(super, publishOf(attributeOf("/q", "a", "1"), &logpb.Delete{Target: to("/q/s/f")})))}); stopped == nil {
		t.Error("half of a step was done, and it goes on")
	}
}

func mustMarshal(t *testing.T, cmd *logpb.Command) []byte {
	t.Helper()
	data, err := cmd.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return data
}
