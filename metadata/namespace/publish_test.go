package namespace

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// publishOf is a publish of operations, of which a deletion is one of what may not be there if that is said behind it.
func publishOf(ops ...any) *logpb.Publish {
	p := &logpb.Publish{}
	for _, op := range ops {
		step := &logpb.PublishStep{}
		switch op := op.(type) {
		case *logpb.Rename:
			step.Op = &logpb.PublishStep_Rename{Rename: op}
		case *logpb.Delete:
			step.Op = &logpb.PublishStep_Delete{Delete: op}
		case *logpb.SetXAttr:
			step.Op = &logpb.PublishStep_SetXattr{SetXattr: op}
		case *logpb.RemoveXAttr:
			step.Op = &logpb.PublishStep_RemoveXattr{RemoveXattr: op}
		case *logpb.ChangeSnapshots:
			step.Op = &logpb.PublishStep_Snapshot{Snapshot: op}
		case ifThere:
			p.Steps[len(p.Steps)-1].IfThere = true
			continue
		case nil:
		default:
			panic(fmt.Sprintf("no step for %T", op))
		}
		p.Steps = append(p.Steps, step)
	}
	return p
}

type ifThere struct{}

func renameOf(src, dst string) *logpb.Rename {
	return &logpb.Rename{Source: to(src), Target: to(dst)}
}

func replaceOf(src, dst string) *logpb.Rename {
	return &logpb.Rename{Source: to(src), Target: to(dst), Overwrite: true}
}

func attributeOf(path, name, value string) *logpb.SetXAttr {
	return &logpb.SetXAttr{Target: to(path), Create: true, Replace: true, Attribute: &logpb.XAttr{Name: name, Value: []byte(value)}}
}

// content is the state but for clocks: the sum of all records, and the counters.
type content struct {
	records uint64
	meta    meta
}

func contentOf(ns *Namespace) content {
	c := content{ns.hash - ns.metaHash, ns.meta}
	c.meta.now, c.meta.logTime = 0, 0
	return c
}

// unsavedOf is what the next checkpoint has to write beside what was touched.
func unsavedOf(ns *Namespace) map[string]string {
	unsaved := map[string]string{}
	for key, value := range ns.pending {
		unsaved[key] = fmt.Sprintf("%v %x", value == nil, value)
	}
	ns.snaps.recent.Scan(func(key string) bool {
		unsaved[key] += " in order"
		return true
	})
	return unsaved
}

// A publish that fails in its last step leaves everything as it was, whatever the steps before have done: records, counters, quotas, what snapshots
// have, surveys and the version of the tree, on a member that has all in memory and on one that has nothing. It tells no event and no effect.
func TestPublishThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	fails := &logpb.RemoveXAttr{Target: to("/q"), Name: "none"}
	for name, ops := range map[string][]any{
		"rename of a file":              {renameOf("/q/s/f", "/q/g")},
		"rename of a directory":         {renameOf("/q/s/d", "/e")},
		"there and back":                {renameOf("/q/s/d", "/e"), renameOf("/e", "/q/s/d")},
		"replaced file":                 {replaceOf("/q/s/f", "/q/s/g")},
		"replaced file of a snapshot":   {replaceOf("/new", "/q/s/f")},
		"replaced directory":            {replaceOf("/q/s/d", "/q/s/empty")},
		"replaced directory with quota": {replaceOf("/q/s/d", "/limited")},
		"file that is deleted":          {&logpb.Delete{Target: to("/q/s/f")}},
		"tree that is deleted":          {&logpb.Delete{Target: to("/q/s/d"), Recursive: true}},
		"empty directory":               {&logpb.Delete{Target: to("/q/s/empty")}},
		"open file":                     {&logpb.Delete{Target: to("/q/open")}},
		"small file":                    {&logpb.Delete{Target: to("/q/small")}, renameOf("/q/s/f", "/q/small")},
		"attributes":                    {attributeOf("/q/s/f", "a", "2"), attributeOf("/q/s/g", "b", "1"), &logpb.RemoveXAttr{Target: to("/q/s/f"), Name: "a"}},
		"name that is taken":            {&logpb.Delete{Target: to("/q/s/f")}, renameOf("/q/s/g", "/q/s/f"), attributeOf("/q/s/f", "a", "3")},
		"many":                          {renameOf("/q/s/d", "/e"), &logpb.Delete{Target: to("/none")}, ifThere{}, renameOf("/e/x", "/q/s/x"), &logpb.Delete{Target: to("/e"), Recursive: true}, &logpb.Delete{Target: to("/limited")}},
		"above a snapshot":              {renameOf("/new", "/q/s/d/new"), renameOf("/q/s/d/new", "/q/new"), replaceOf("/q/new", "/q/s/f")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, cold := range []bool{false, true} {
				w := publishWorld(t)
				var events []metadata.Event
				effects := 0
				w.cfg.OnEvents = func(_ uint64, _ LogTime, e []metadata.Event) { events = append(events, e...) }
				w.cfg.OnEffects = func(Effects) { effects++ }
				if cold {
					w.cfg.Memory = 1
				}
				w.reopen()
				if w.ns.meta.tree == 0 {
					t.Fatal("the tree has no version")
				}
				before, diff, unsaved := contentOf(w.ns), w.diff("/q/s", "s1"), unsavedOf(w.ns)
				effects = 0
				w.now += 5000
				op := publishOf(slices.Concat(ops, []any{fails})...)
				r, n := w.do(super, op), len(op.Steps)
				if want := fmt.Sprintf("step %d of %d (remove user.none of /q): No matching attributes found for remove operation", n, n); r.Err == nil || r.Err.Error() != want || r.OK ||
					r.Step != n || r.INode != 0 {
					t.Fatalf("%+v, want %s", r, want)
				}
				if after := contentOf(w.ns); !reflect.DeepEqual(before, after) {
					t.Errorf("cold %v: the state has changed: %+v, before %+v", cold, after, before)
				}
				if after := unsavedOf(w.ns); !maps.Equal(after, unsaved) {
					t.Errorf("cold %v: to be written is %q, before %q", cold, after, unsaved)
				}
				if after := w.diff("/q/s", "s1"); after != diff {
					t.Errorf("cold %v: the snapshot differs by %s, before by %s", cold, after, diff)
				}
				if len(events) > 0 || effects > 0 {
					t.Errorf("events %+v, %d effects", events, effects)
				}
				w.check()
				w.now += 5000
				w.must(&logpb.Mkdirs{Target: to("/later"), Mode: 0o755}) // the state goes on, and a checkpoint has it
				hash := w.ns.Hash()
				w.reopen()
				if w.ns.Hash() != hash {
					t.Error("a restart changes the state")
				}
				w.check()
			}
		})
	}
}

// publishWorld has files and directories below quotas and in a snapshot, and much that came and went since that.
func publishWorld(t testing.TB) *world {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/q/s/d/x"), Mode: 0o777, CreateParent: true})
	w.must(&logpb.Mkdirs{Target: to("/q/s/empty"), Mode: 0o777})
	w.must(&logpb.Mkdirs{Target: to("/limited"), Mode: 0o777})
	for _, f := range []string{"/q/s/f", "/q/s/g", "/q/s/d/h", "/new"} {
		w.file(f, 100, 50)
	}
	w.must(attributeOf("/q/s/f", "a", "1"))
	w.must(&logpb.SetQuota{Target: to("/q"), Names: 100, Space: 1 << 40})
	w.must(&logpb.SetQuota{Target: to("/q/s"), Names: 50, Space: 1 << 40})
	w.must(&logpb.SetQuota{Target: to("/limited"), Names: 50, Space: 1 << 40})
	w.must(snapshotChange("/q/s", allowSnapshots))
	w.must(snapshotChange("/q/s", createSnapshot, "s1"))
	w.must(&logpb.SetXAttr{Target: to("/q/s"), Create: true, Attribute: &logpb.XAttr{Name: "later"}})
	w.must(create("/q/open", "writer"))
	ids := w.must(&logpb.ReserveIDs{Blocks: 1, Generations: 1}).Reserved
	w.must(storeOf("/q/small", "writer", &logpb.Block{Id: int64(ids.FirstBlock), Generation: uint64(ids.FirstGeneration)}, 5000))
	w.must(&logpb.SurveyTree{Target: to("/q/s/d")})
	stale := &logpb.Target{Base: uint64(metadata.RootID), Path: "q", Version: 1}
	if r := w.do(super, &logpb.SetPermission{Target: stale, Mode: 0o777}); !errors.Is(r.Err, ErrStale) {
		t.Fatal(r.Err)
	}
	return w
}

// diff is what has changed since a snapshot.
func (w *world) diff(root, snapshot string) string {
	w.t.Helper()
	d, err := w.ns.SnapshotDiff(super, root, snapshot, "")
	if err != nil {
		w.t.Fatal(err)
	}
	return fmt.Sprintf("%+v", d)
}

// A publish that succeeds is its steps one after the other, and one that does not is nothing: with everything that commands can come upon, quotas that are
// reached, and snapshots. Members agree, with everything in memory and with hardly anything.
func TestPublishIsItsStepsOrNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorldIn(t)
		scribble(w, rand.New(rand.NewPCG(rapid.Uint64Range(0, 1000).Draw(t, "seed"), 2)), 40)
		for _, dir := range []string{"/a", "/b/a", "/b/b", "/e/a/b"} {
			w.do(super, &logpb.Mkdirs{Target: to(dir), Mode: 0o777, CreateParent: true})
			w.do(super, &logpb.SetPermission{Target: to(dir), Mode: 0o777})
			if ids := w.do(super, &logpb.ReserveIDs{Blocks: 1, Generations: 1}).Reserved; ids != nil {
				w.do(bob, storeOf(dir+"/c", "writer", &logpb.Block{Id: int64(ids.FirstBlock), Generation: uint64(ids.FirstGeneration)}, 3000))
			}
		}
		path := func() string { // mostly one that is there
			if rapid.IntRange(0, 9).Draw(t, "any") == 0 {
				return drawPath(t, "path")
			}
			return rapid.SampledFrom(pathsOf(w.ns)[1:]).Draw(t, "there")
		}
		place := func() string { return join(path(), rapid.SampledFrom(testNames).Draw(t, "name")) }
		for range rapid.IntRange(0, 3).Draw(t, "quotas") {
			w.do(super, &logpb.SetQuota{Target: to(path()), Names: rapid.Int64Range(1, 12).Draw(t, "names"), Space: rapid.Int64Range(1, 50).Draw(t, "space") << 20})
		}
		for range rapid.IntRange(0, 3).Draw(t, "roots") {
			root := path()
			w.do(super, snapshotChange(root, allowSnapshots))
			w.do(super, snapshotChange(root, createSnapshot, "s0"))
		}
		for range rapid.IntRange(1, 6).Draw(t, "publishes") {
			w.settleAll()
			var ops []any
			for range rapid.IntRange(1, 4).Draw(t, "steps") {
				switch rapid.IntRange(0, 6).Draw(t, "step") {
				case 0, 1:
					ops = append(ops, &logpb.Rename{Source: to(path()), Target: to(place()), Overwrite: rapid.Bool().Draw(t, "overwrite")})
				case 2:
					ops = append(ops, &logpb.Delete{Target: to(path()), Recursive: true})
				case 3:
					ops = append(ops, &logpb.Delete{Target: to(place())}, ifThere{})
				case 4, 5:
					ops = append(ops, attributeOf(path(), "t", path()))
				default:
					ops = append(ops, &logpb.RemoveXAttr{Target: to(path()), Name: "t"})
				}
			}
			if rapid.IntRange(0, 3).Draw(t, "snapshot") == 0 {
				ops = append(ops, snapshotChange(path(), createSnapshot, fmt.Sprintf("s%d", w.index)))
			}
			c := drawCaller(t)
			var stream bytes.Buffer
			takeSnapshot(t, w.ns, &stream)
			single, cold := newWorldIn(t), openCold(t, mem.New())
			for _, ns := range []*Namespace{single.ns, cold} {
				if err := ns.Restore(bytes.NewReader(stream.Bytes())); err != nil {
					t.Fatal(err)
				}
			}
			for _, x := range []*Namespace{w.ns, single.ns, cold} { // versions of the tree are counted
				if x.meta.tree == 0 {
					x.meta.tree = 1
				}
			}
			single.index, single.now, single.log = w.index, w.now, make([][][]byte, w.index)
			before, unsaved := contentOf(w.ns), unsavedOf(w.ns)
			r := w.do(c, publishOf(ops...))
			cold.Apply(w.index, w.log[w.index-1])
			if w.ns.Hash() != cold.Hash() {
				t.Fatal("two members have different states")
			}
			failed := 0
			var err error
			for i, step := range publishOf(ops...).Steps {
				one := single.do(c, stepOperation(step))
				if err = one.Err; err == nil && !one.OK && step.GetDelete().Target.Path == "" {
					err = metadata.Errorf(metadata.ErrIO, "the root directory cannot be deleted")
				} else if err == nil && !one.OK && !step.IfThere {
					err = metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", describeTarget(step.GetDelete().Target))
				}
				if err != nil {
					failed = i + 1
					break
				}
			}
			alike := r.Step == failed && (r.Err == nil) == (err == nil)
			if alike && err != nil {
				alike = metadata.KindOf(r.Err) == metadata.KindOf(err) && strings.HasSuffix(r.Err.Error(), err.Error())
			}
			if !alike {
				t.Fatalf("step %d: %v; one after the other step %d: %v", r.Step, r.Err, failed, err)
			}
			if failed > 0 {
				if after := contentOf(w.ns); !reflect.DeepEqual(before, after) {
					t.Fatalf("%+v, before %+v", after, before)
				}
				if after := unsavedOf(w.ns); !maps.Equal(after, unsaved) {
					t.Fatalf("to be written is %q, before %q", after, unsaved)
				}
				continue
			}
			w.settleAll()
			single.settleAll()
			if a, b := shown(w.ns), shown(single.ns); a != b {
				t.Fatalf("%s\none after the other:\n%s", a, b)
			}
			// The records of a snapshot may say more of what is being taken apart when it is made.
			if a, b := contentOf(w.ns), contentOf(single.ns); r.Snapshot == "" && !reflect.DeepEqual(a, b) {
				t.Fatalf("%+v; one after the other %+v\n%s\n%s", a, b, dumpNamespace(w.ns), dumpNamespace(single.ns))
			}
		}
	})
}

// shown is what users see of a namespace, its snapshots included.
func shown(ns *Namespace) string {
	var out strings.Builder
	for _, path := range pathsOf(ns) {
		st, err := ns.Stat(super, path)
		xattrs, xerr := ns.XAttrs(super, path, nil)
		fmt.Fprintf(&out, "%s %+v %v %v %v\n", path, st, xattrs, err, xerr)
		if st.IsDir() {
			u, err := ns.QuotaUsage(super, path)
			fmt.Fprintf(&out, "%s %+v %v\n", path, u, err)
		}
	}
	roots, err := ns.Snapshottable(super)
	fmt.Fprintf(&out, "%d %v\n", len(roots), err)
	for _, root := range roots {
		path := join(root.Parent, root.Status.Name)
		all, err := ns.Snapshots(super, path)
		fmt.Fprintf(&out, "%s %d %v\n", path, len(all), err)
		for _, s := range all {
			fmt.Fprintf(&out, "%+v\n%s", s, dumpSnapshot(ns, join(path, snapshotFolder+"/"+s.Status.Name)))
			d, err := ns.SnapshotDiff(super, path, s.Status.Name, "")
			fmt.Fprintf(&out, "%+v %v\n", d, err)
		}
	}
	return out.String()
}

// pathsOf are the paths of all that is there.
func pathsOf(ns *Namespace) (paths []string) {
	for line := range strings.SplitSeq(strings.TrimSpace(dumpNamespace(ns)), "\n") {
		path, _, _ := strings.Cut(line, " ")
		paths = append(paths, path)
	}
	return paths
}

// A repeated publish is answered as the first one, and done once, also on a member that has restarted.
func TestPublishIsDoneOnce(t *testing.T) {
	t.Parallel()
	w := publishWorld(t)
	request := numbered(command(super, publishOf(renameOf("/q/s/f", "/q/s/published"), snapshotChange("/q/s", createSnapshot, "s2"))), "0123456789abcdef", 7)
	first := w.apply(request)
	if first.Err != nil || !first.OK || first.Snapshot != "/q/s/.snapshot/s2" || first.Replayed {
		t.Fatalf("%+v", first)
	}
	w.file("/q/s/f", 1)
	if r := w.apply(numbered(command(bob, publishOf(attributeOf("/q/s/published", "a", "1"))), "0123456789abcdef", 7)); !errors.Is(r.Err, metadata.ErrPermission) || r.Replayed {
		t.Errorf("another user's request with the same numbers: %+v", r)
	}
	for range 2 {
		if r := w.apply(request); r.Err != nil || !r.OK || r.Snapshot != first.Snapshot || !r.Replayed {
			t.Errorf("%+v", r)
		}
		w.reopen()
	}
	w.must(snapshotChange("/q/s", deleteSnapshot, "s2"))
	if r := w.apply(request); r.Err != nil || !r.OK || r.Snapshot != "" || !r.Replayed {
		t.Errorf("when the snapshot is gone: %+v", r)
	}
	plain := numbered(command(super, publishOf(renameOf("/q/s/published", "/q/s/again"))), "0123456789abcdef", 8)
	for range 2 {
		if r := w.apply(plain); r.Err != nil || !r.OK || r.Snapshot != "" {
			t.Errorf("without a snapshot: %+v", r)
		}
		w.reopen()
	}
	w.check()
}

// What can be no publish is refused as a whole.
func TestPublishesThatCannotBe(t *testing.T) {
	t.Parallel()
	w := publishWorld(t)
	rename := renameOf("/q/s/f", "/q/s/z")
	many := make([]any, MaxPublishSteps+1)
	for i := range many {
		many[i] = attributeOf("/q", "a", "1")
	}
	var large []any
	for range MaxPublishBytes/(metadata.MaxXAttrSize-100) + 1 {
		large = append(large, attributeOf("/q", "a", strings.Repeat("x", metadata.MaxXAttrSize-100)))
	}
	condition := publishOf(rename)
	condition.Steps[0].IfThere = true
	legacy, trash, resolved := renameOf("/q/s/f", "/z"), renameOf("/q/s/f", "/z"), renameOf("/q/s/f", "/z")
	legacy.Legacy, trash.ToTrash, resolved.Target.Version = true, true, 1
	for name, op := range map[string]*logpb.Publish{
		"no steps":               publishOf(),
		"too many steps":         publishOf(many...),
		"too many bytes":         publishOf(large...),
		"nothing to do":          publishOf(rename, nil),
		"nothing at all":         {Steps: []*logpb.PublishStep{{}}},
		"rename from nowhere":    publishOf(&logpb.Rename{Target: to("/z")}),
		"rename to nowhere":      publishOf(&logpb.Rename{Source: to("/z")}),
		"delete of nothing":      publishOf(rename, &logpb.Delete{}),
		"attribute that is none": publishOf(&logpb.SetXAttr{Target: to("/q")}),
		"attribute of nothing":   publishOf(&logpb.RemoveXAttr{}),
		"snapshot of nothing":    publishOf(&logpb.ChangeSnapshots{Change: createSnapshot}),
		"snapshot in between":    publishOf(snapshotChange("/q/s", createSnapshot, "s2"), rename),
		"snapshot that goes":     publishOf(rename, snapshotChange("/q/s", deleteSnapshot, "s1")),
		"rename if it is there":  condition,
		"HDFS's first rename":    publishOf(legacy),
		"rename to the trash":    publishOf(trash),
		"resolved target":        publishOf(resolved),
	} {
		before := contentOf(w.ns)
		r := w.do(super, op)
		if !errors.Is(r.Err, metadata.ErrInvalidArgument) || r.OK || r.Step != 0 {
			t.Errorf("%s: %+v", name, r)
		}
		if after := contentOf(w.ns); !reflect.DeepEqual(before, after) {
			t.Errorf("%s changes something", name)
		}
	}
	if r := w.do(super, publishOf(many[1:]...)); r.Err != nil {
		t.Errorf("as many steps as there may be: %v", r.Err)
	}
	w.check()
}

// Steps on a large tree of others are surveyed before, each one that needs it.
func TestPublishOfLargeTrees(t *testing.T) {
	t.Parallel()
	w := homeOf(t, 2, 1500)
	w.must(&logpb.Mkdirs{Target: to("/bobs"), Mode: 0o777})
	w.must(&logpb.SetQuota{Target: to("/bobs"), Names: 1 << 20, Space: 1 << 50})
	w.must(&logpb.SetOwner{Target: to("/bobs"), Owner: "bob"})
	moved, gone := renameOf("/home/bob/t/d0", "/bobs/d0"), &logpb.Delete{Target: to("/home/bob/t"), Recursive: true}
	op := publishOf(moved, gone, attributeOf("/bobs/d0", "a", "1"))
	before := contentOf(w.ns)
	for i, step := range []struct {
		path   string
		survey *uint64
		names  *int64
	}{{"/home/bob/t/d0", &moved.Survey, &moved.Names}, {"/home/bob/t", &gone.Survey, &gone.Names}} {
		r := w.do(bob, op)
		if !errors.Is(r.Err, metadata.ErrRetriable) || r.Step != i+1 {
			t.Fatalf("%s: %+v", step.path, r)
		}
		if id, err := w.ns.Resolve(super, step.path); err != nil || id != r.INode {
			t.Fatalf("%s is inode %d, not %d: %v", step.path, id, r.INode, err)
		}
		if i == 0 && !reflect.DeepEqual(before, contentOf(w.ns)) {
			t.Error("something was changed")
		}
		s := w.do(bob, &logpb.SurveyTree{Target: &logpb.Target{Base: uint64(r.INode)}})
		u, err := w.ns.Survey(bob, s.INode)
		if err != nil || s.Err != nil {
			t.Fatal(err, s.Err)
		}
		*step.survey, *step.names = s.Survey, u.Names
	}
	if len(w.ns.meta.surveys) != 2 {
		t.Errorf("surveys end with a publish that is not done: %v", w.ns.meta.surveys)
	}
	if r := w.do(bob, op); r.Err != nil || !r.OK {
		t.Fatalf("with both surveys: %v", r.Err)
	}
	if len(w.ns.meta.surveys) != 0 {
		t.Errorf("the surveys go on: %v", w.ns.meta.surveys)
	}
	w.settleAll()
	w.uses("/bobs", 1502, 0)
}

// deletedTrees are as many directories of so many entries each as a publish has steps, of bob below a quota, and the steps that delete them.
func deletedTrees(t testing.TB, do func(metadata.Caller, any) *Result, entries int) (ops []any) {
	t.Helper()
	must := func(c metadata.Caller, op any) {
		t.Helper()
		if r := do(c, op); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	must(super, &logpb.Mkdirs{Target: to("/bobs"), Mode: 0o755})
	must(super, &logpb.SetOwner{Target: to("/bobs"), Owner: "bob"})
	must(super, &logpb.SetQuota{Target: to("/bobs"), Names: 1 << 20, Space: 1 << 50})
	for i := range MaxPublishSteps {
		dir := fmt.Sprintf("/bobs/d%03d", i)
		must(bob, &logpb.Mkdirs{Target: to(dir), Mode: 0o755})
		for k := range entries {
			must(bob, &logpb.Mkdirs{Target: to(fmt.Sprintf("%s/e%d", dir, k)), Mode: 0o755})
		}
		ops = append(ops, &logpb.Delete{Target: to(dir), Recursive: true})
	}
	return ops
}

// Trees that are deleted, or moved, are looked at before the first step, in turns, and not again: others never wait for all of it.
func TestPublishLooksAtTreesInTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	ops := deletedTrees(t, func(c metadata.Caller, op any) *Result { return w.do(c, op) }, 128)
	w.ns.looksMost = 0
	if r := w.do(bob, publishOf(ops...)); r.Err != nil || !r.OK {
		t.Fatal(r.Err)
	}
	if most := maxPublishLooks / 4; w.ns.looksMost > most {
		t.Errorf("%d looks while all others waited, want %d at most", w.ns.looksMost, most)
	}
	w.uses("/bobs", 1, 0)
	w.settleAll()
	w.check()

	w = newWorld(t, Config{})
	ops = deletedTrees(t, func(c metadata.Caller, op any) *Result { return w.do(c, op) }, 128)
	for i := range ops {
		ops[i] = renameOf(fmt.Sprintf("/bobs/d%03d", i), fmt.Sprintf("/other/d%03d", i))
	}
	w.must(&logpb.Mkdirs{Target: to("/other"), Mode: 0o777})
	w.must(&logpb.SetQuota{Target: to("/other"), Names: 1 << 20, Space: 1 << 50})
	w.ns.looksMost = 0
	if r := w.do(bob, publishOf(ops...)); r.Err != nil || !r.OK {
		t.Fatal(r.Err)
	}
	if most := maxPublishLooks / 16; w.ns.looksMost > most {
		t.Errorf("renames: %d looks while all others waited, want %d at most", w.ns.looksMost, most)
	}
	w.uses("/bobs", 1, 0)
	w.uses("/other", 1+256*129, 0)
	w.check()
}

// What is known of a tree that a step deletes is not what steps before have made of it.
func TestPublishLooksAgainAtTreesThatChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	for _, dir := range []string{"/bobs/d/e", "/bobs/x/d/e", "/bobs/y/d", "/other"} {
		w.must(&logpb.Mkdirs{Target: to(dir), Mode: 0o777, CreateParent: true})
	}
	for _, dir := range []string{"/bobs", "/bobs/d", "/bobs/d/e", "/bobs/x", "/bobs/x/d", "/bobs/x/d/e", "/bobs/y", "/bobs/y/d"} {
		w.must(&logpb.SetOwner{Target: to(dir), Owner: "bob"})
	}
	w.must(&logpb.Mkdirs{Target: to("/bobs/alices/full"), Mode: 0o700, CreateParent: true})
	w.must(&logpb.SetOwner{Target: to("/bobs/alices"), Owner: "alice"})
	w.must(&logpb.SetPermission{Target: to("/bobs/alices"), Mode: 0o700})
	w.must(&logpb.SetQuota{Target: to("/bobs"), Names: 100, Space: 1 << 30})
	for i := range 3 {
		w.file(fmt.Sprintf("/other/f%d", i), 1)
		w.must(&logpb.SetOwner{Target: to(fmt.Sprintf("/other/f%d", i)), Owner: "bob"})
	}
	refused := func(path string, ops ...any) {
		t.Helper()
		before := contentOf(w.ns)
		r := w.do(bob, publishOf(append(ops, &logpb.Delete{Target: to(path), Recursive: true})...))
		if !errors.Is(r.Err, metadata.ErrPermission) || r.Step != len(ops)+1 {
			t.Errorf("%+v", r)
		}
		if after := contentOf(w.ns); !reflect.DeepEqual(before, after) {
			t.Errorf("the state has changed: %+v, before %+v", after, before)
		}
	}
	refused("/bobs/d", renameOf("/bobs/alices", "/bobs/d/e/alices"))
	refused("/bobs/x", renameOf("/bobs/d", "/bobs/x/d/e/d"), renameOf("/bobs/alices", "/bobs/x/d/e/d/e/alices"))
	refused("/bobs/d", renameOf("/bobs/alices", "/bobs/y/d/alices"), renameOf("/bobs/y", "/bobs/d/e/y"))

	r := w.do(super, publishOf(
		renameOf("/other/f0", "/bobs/d/e/f"), renameOf("/other/f1", "/bobs/x/d/f"), renameOf("/bobs/x/d", "/bobs/y/d/d"), renameOf("/other/f2", "/bobs/y/d/d/e/f"),
		&logpb.Delete{Target: to("/bobs/d"), Recursive: true}, &logpb.Delete{Target: to("/bobs/x"), Recursive: true}, &logpb.Delete{Target: to("/bobs/y"), Recursive: true}))
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	w.uses("/bobs", 3, 0) // itself and what alice has
	w.settleAll()
	w.check()
}

// What steps look at is read before the first of them changes anything, while others go on.
func TestPublishReadsBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	var ops []any
	for i := range 50 {
		w.must(&logpb.Mkdirs{Target: to(fmt.Sprintf("/d%d/a/b", i)), Mode: 0o755, CreateParent: true})
		w.must(create(fmt.Sprintf("/d%d/a/b/f", i), "c"))
		ops = append(ops, renameOf(fmt.Sprintf("/d%d/a/b/f", i), fmt.Sprintf("/d%d/g", i)), attributeOf(fmt.Sprintf("/d%d/g", i), "a", "1"),
			&logpb.Delete{Target: to(fmt.Sprintf("/d%d/a", i)), Recursive: true})
	}
	w.reopen()
	w.ns.loadedMost = 0
	if r := w.do(super, publishOf(ops...)); r.Err != nil || !r.OK {
		t.Fatal(r.Err)
	}
	if w.ns.loadedMost > 0 {
		t.Errorf("%d records were read while all others waited", w.ns.loadedMost)
	}
	w.settleAll()
}

// What is somewhere else when its step comes, by the steps before, is looked at where it is before the first one: nothing is read while all others wait.
func TestPublishReadsWhereItsStepsLead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.must(&logpb.SetPermission{Target: to("/"), Mode: 0o777})
	for _, dir := range []string{"/a/d/x", "/a/d/y/z/g", "/b/t/u/h", "/b/t/v", "/q/r/s", "/c/one/two"} {
		w.must(&logpb.Mkdirs{Target: to(dir), Mode: 0o777, CreateParent: true})
	}
	for _, dir := range []string{"/a", "/a/d", "/a/d/y", "/a/d/y/z", "/b", "/b/t", "/b/t/u", "/q", "/q/r", "/c", "/c/one"} {
		w.must(&logpb.SetPermission{Target: to(dir), Mode: 0o777})
	}
	w.must(&logpb.SetQuota{Target: to("/q"), Names: 1000, Space: 1 << 40})
	inode := func(path, rest string) *logpb.Target {
		id, err := w.ns.Resolve(super, path)
		if err != nil {
			t.Fatal(err)
		}
		return &logpb.Target{Base: uint64(id), Path: rest}
	}
	var stream bytes.Buffer
	takeSnapshot(t, w.ns, &stream)
	for name, ops := range map[string][]any{
		"behind a rename":           {renameOf("/a/d", "/e"), attributeOf("/e/y/z", "t", "1")},
		"behind two":                {renameOf("/a/d", "/e"), renameOf("/e", "/b/f"), attributeOf("/b/f/y/z", "t", "1")},
		"of what is in it":          {renameOf("/a/d", "/e"), renameOf("/e/y/z", "/e/x/z"), attributeOf("/e/x/z/g", "t", "1")},
		"two that change places":    {renameOf("/a", "/tmp"), renameOf("/b", "/a"), renameOf("/tmp", "/b"), attributeOf("/b/d/y/z", "t", "1"), attributeOf("/a/t/u/h", "t", "1")},
		"in the place of another":   {&logpb.Delete{Target: to("/a"), Recursive: true}, renameOf("/b", "/a"), attributeOf("/a/t/u/h", "t", "1")},
		"that replaces":             {replaceOf("/a/d", "/c/one/two"), attributeOf("/c/one/two/y/z", "t", "1")},
		"tree that is deleted":      {renameOf("/a/d", "/e"), &logpb.Delete{Target: to("/e"), Recursive: true}},
		"tree that is counted":      {renameOf("/a/d", "/e"), renameOf("/e", "/q/r/d"), &logpb.Delete{Target: to("/q/r/d/y"), Recursive: true}},
		"tree with one moved in":    {renameOf("/b/t", "/a/d/t"), renameOf("/a/d", "/q/r/d")},
		"deleted with one moved in": {renameOf("/b/t", "/a/d/t"), &logpb.Delete{Target: to("/a/d"), Recursive: true}},
		"what is not there":         {renameOf("/a/d", "/e"), &logpb.Delete{Target: to("/e/y/none")}, ifThere{}, renameOf("/e/x", "/e/y/new")},
		"by inodes":                 {renameOf("/a/d", "/e"), &logpb.Rename{Source: to("/b/t"), Target: inode("/a/d", "x/t")}, attributeOf("/e/x/t/u/h", "t", "1"), &logpb.Delete{Target: inode("/a", ""), Recursive: true}},
		"by inodes within":          {&logpb.Rename{Source: inode("/b", "t"), Target: inode("/a/d", "t")}, &logpb.SetXAttr{Target: inode("/a/d", "t/u/h"), Create: true, Attribute: &logpb.XAttr{Name: "t"}}},
		"slashes":                   {renameOf("/a/d", "/e"), &logpb.SetXAttr{Target: &logpb.Target{Path: "/e//y/z/"}, Create: true, Attribute: &logpb.XAttr{Name: "t"}}},
	} {
		t.Run(name, func(t *testing.T) {
			cold := fresh(t, mem.New(), 0)
			if err := cold.Restore(bytes.NewReader(stream.Bytes())); err != nil {
				t.Fatal(err)
			}
			cold.loadedMost = 0
			r := cold.Apply(w.index+1, [][]byte{mustMarshal(t, command(bob, publishOf(ops...)))})[0].(*Result)
			if r.Err != nil || !r.OK {
				t.Fatal(r.Err)
			}
			if cold.loadedMost > 0 {
				t.Errorf("%d records were read while all others waited", cold.loadedMost)
			}
			checkSound(t, cold)
		})
	}
}

// What a publish does is one operation for those who follow events.
func TestEventsOfAPublish(t *testing.T) {
	t.Parallel()
	w := publishWorld(t)
	var events []metadata.Event
	w.cfg.OnEvents = func(_ uint64, _ LogTime, e []metadata.Event) { events = append(events, slices.Clone(e)...) }
	w.reopen()
	w.must(publishOf(&logpb.Delete{Target: to("/q/s/g")}, replaceOf("/new", "/q/s/f"), attributeOf("/q/s/f", "a", "2"), &logpb.RemoveXAttr{Target: to("/q/s/f"), Name: "a"}))
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprint(e.Kind, " ", e.Path, " ", e.Target, " ", e.Continued, " ", e.Removed))
	}
	want := []string{
		fmt.Sprint(metadata.EventUnlink, " /q/s/g  false false"), fmt.Sprint(metadata.EventRename, " /new /q/s/f true false"),
		fmt.Sprint(metadata.EventMetadata, " /q/s/f  true false"), fmt.Sprint(metadata.EventMetadata, " /q/s/f  true true"),
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// publish draws some steps, which the model takes one after the other, or not at all.
func (s *machine) publish(t *rapid.T) {
	if rapid.Bool().Draw(t, "settled") {
		for s.w.ns.Counts().Reclaiming > 0 || s.w.ns.Counts().DeletedSnapshots > 0 {
			s.do(t, super, &logpb.Reclaim{Limit: 1000})
		}
	}
	settled := s.w.ns.Counts().Reclaiming == 0 && s.w.ns.Counts().DeletedSnapshots == 0
	before := contentOf(s.w.ns)
	c := drawCaller(t)
	s.adoptAll()
	former := s.m.clone()
	var ops []any
	failed, kind := 0, (*metadata.Kind)(nil)
	step := func(op any, ok bool, k *metadata.Kind) {
		if k == nil && !ok {
			k = metadata.ErrNotExist
		}
		if ops = append(ops, op); failed == 0 && k != nil {
			failed, kind = len(ops), k
		}
	}
	for range rapid.IntRange(1, 4).Draw(t, "steps") {
		if failed > 0 { // what comes then has to be nothing
			s.m = s.m.clone()
		}
		path := drawPath(t, "path")
		switch rapid.IntRange(0, 4).Draw(t, "step") {
		case 0, 1:
			dst, overwrite := drawPath(t, "dst"), rapid.Bool().Draw(t, "overwrite")
			step(&logpb.Rename{Source: to(path), Target: to(dst), Overwrite: overwrite}, true, s.m.rename2(c, path, dst, overwrite))
		case 2:
			ok, k := s.m.delete(c, path, true)
			if path == "/" && k == nil {
				k = metadata.ErrIO
			}
			step(&logpb.Delete{Target: to(path), Recursive: true}, ok, k)
		case 3:
			k := s.m.attributed(c, path)
			if k == nil {
				s.m[path].tag = path
			}
			step(attributeOf(path, "tag", path), true, k)
		case 4:
			k := s.m.attributed(c, path)
			if k == nil && s.m[path].tag == "" {
				k = metadata.ErrIO
			} else if k == nil {
				s.m[path].tag = ""
			}
			step(&logpb.RemoveXAttr{Target: to(path), Name: "tag"}, true, k)
		}
	}
	var taken *modelNode
	root, name := "", drawSnapshot(t, "name")
	if rapid.IntRange(0, 3).Draw(t, "snapshot") == 0 {
		root = s.drawRoot(t)
		n, k := s.m.snapshottable(c, root)
		if k == nil && n.snapshots[name] != nil {
			k = metadata.ErrSnapshot
		}
		step(snapshotChange(root, createSnapshot, name), true, k)
		taken = n
	}
	r := s.do(t, c, publishOf(ops...))
	what := fmt.Sprint("publish ", ops)
	if !s.same(t, what, r, kind) {
		if s.m = former; r.Step != failed {
			t.Fatalf("%s: step %d, the model says %d: %v", what, r.Step, failed, r.Err)
		}
		if after := contentOf(s.w.ns); settled && !reflect.DeepEqual(before, after) {
			t.Fatalf("%s: %v: the state was %+v, and is %+v", what, r.Err, before, after)
		}
		return
	}
	if taken != nil {
		if taken.snapshots == nil {
			taken.snapshots, taken.age = map[string]model{}, map[string]uint32{}
		}
		taken.age[name] = uint32(r.INode)
		taken.snapshots[name] = s.m.copyOf(root)
	}
}

// clone is a model of its own, but for snapshots, which nobody changes.
func (m model) clone() model {
	c := model{}
	for path, n := range m {
		twin := *n
		twin.blocks, twin.serial, twin.snapshots, twin.age = slices.Clone(n.blocks), slices.Clone(n.serial), maps.Clone(n.snapshots), maps.Clone(n.age)
		c[path] = &twin
	}
	return c
}

// attributed says whether a user's attribute of a path may be changed.
func (m model) attributed(c metadata.Caller, path string) *metadata.Kind {
	if n := m[path]; n != nil && n.dir && n.mode&metadata.Sticky != 0 {
		return m.attribute(c, path, true, 0)
	}
	return m.attribute(c, path, false, metadata.Write)
}

// compareTags compares the attributes of all that is there, and was in snapshots.
func (s *machine) compareTags(t *rapid.T) {
	compare := func(path string, n *modelNode) {
		all, err := s.w.ns.XAttrs(super, path, nil)
		if err != nil || len(all) > 1 || (len(all) == 1) != (n.tag != "") || n.tag != "" && string(all[0].Value) != n.tag {
			t.Fatalf("%s has the attributes %v (%v), the model %q", path, all, err, n.tag)
		}
	}
	for path, n := range s.m {
		compare(path, n)
		for name, m := range n.snapshots {
			for rel, was := range m {
				compare(strings.TrimSuffix(join(join(path, snapshotFolder+"/"+name), rel[1:]), "/"), was)
			}
		}
	}
}

// As many steps as there may be, done and taken back: for so long others wait.
func BenchmarkPublish(b *testing.B) {
	for _, fails := range []bool{false, true} {
		b.Run(map[bool]string{false: "done", true: "taken back"}[fails], func(b *testing.B) {
			w := newWorld(b, Config{})
			var there, back []any
			for i := range MaxPublishSteps / 2 {
				from, to := fmt.Sprintf("/a/d%03d", i), fmt.Sprintf("/b/d%03d", i)
				w.must(&logpb.Mkdirs{Target: &logpb.Target{Path: from[1:]}, Mode: 0o755, CreateParent: true})
				there, back = append(there, renameOf(from, to), attributeOf(to, "a", "1")), append(back, renameOf(to, from), attributeOf(from, "a", "1"))
			}
			w.must(&logpb.Mkdirs{Target: to("/b"), Mode: 0o755})
			if fails {
				there[len(there)-1] = &logpb.RemoveXAttr{Target: to("/b"), Name: "none"}
				back = there
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				op := there
				if i%2 > 0 {
					op = back
				}
				if r := w.do(super, publishOf(op...)); (r.Err != nil) != fails {
					b.Fatal(r.Err)
				}
				w.log = w.log[:0]
			}
		})
	}
}

// What all steps look at is bounded: others wait for them. A publish that would look at more is refused, and has changed nothing; members with everything
// in memory and with nothing agree.
func TestPublishLooksAtSoMuch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	for _, dir := range []string{"/a", "/b", "/s/a", "/s/b"} {
		w.must(&logpb.Mkdirs{Target: to(dir), Mode: 0o777, CreateParent: true})
		w.must(&logpb.SetQuota{Target: to(dir), Names: 1 << 20, Space: 1 << 50})
	}
	for i := range 120 {
		w.must(&logpb.Mkdirs{Target: to(fmt.Sprintf("/a/d/d%d/d", i)), Mode: 0o777, CreateParent: true})
	}
	w.must(&logpb.Mkdirs{Target: to("/s/a/d"), Mode: 0o777})
	for i := range 200 {
		w.file(fmt.Sprintf("/s/a/d/f%d", i), 1)
	}
	w.must(snapshotChange("/s", allowSnapshots))
	w.must(snapshotChange("/s", createSnapshot, "s1"))
	deep := strings.Repeat("/x", metadata.MaxPathDepth-10)
	w.must(&logpb.Mkdirs{Target: to(deep), Mode: 0o777, CreateParent: true})
	id, err := w.ns.Resolve(super, deep)
	if err != nil {
		t.Fatal(err)
	}
	thereAndBack := func(one, other string, steps int) (ops []any) {
		for len(ops) < steps {
			ops = append(ops, renameOf(one, other))
			one, other = other, one
		}
		return ops
	}
	fails := &logpb.RemoveXAttr{Target: to("/a"), Name: "none"}
	for _, test := range []struct {
		name string
		ops  func(steps int) []any
		most int
	}{
		{"trees", func(n int) []any { return thereAndBack("/a/d", "/b/d", n) }, 30},
		{"what snapshots have", func(n int) []any { return thereAndBack("/s/a/d", "/s/b/d", n) }, 18},
		{"deep paths", func(n int) (ops []any) {
			for range n {
				ops = append(ops, &logpb.SetXAttr{Target: &logpb.Target{Base: uint64(id)}, Create: true, Replace: true, Attribute: &logpb.XAttr{Name: "a"}})
			}
			return ops
		}, 60},
	} {
		t.Run(test.name, func(t *testing.T) {
			few := append(test.ops(test.most), fails)
			if r := w.do(super, publishOf(few...)); r.Step != len(few) || !errors.Is(r.Err, metadata.ErrIO) {
				t.Fatalf("%d steps: %+v", len(few), r)
			}
			var stream bytes.Buffer
			takeSnapshot(t, w.ns, &stream)
			cold := fresh(t, mem.New(), 1)
			if err := cold.Restore(bytes.NewReader(stream.Bytes())); err != nil {
				t.Fatal(err)
			}
			before, unsaved := contentOf(w.ns), unsavedOf(w.ns)
			r := w.do(super, publishOf(append(test.ops(MaxPublishSteps-1), fails)...))
			if !errors.Is(r.Err, metadata.ErrInvalidArgument) || r.Step <= test.most || r.Step == MaxPublishSteps || !strings.HasSuffix(r.Err.Error(), errManyLooks.Error()) {
				t.Errorf("%+v", r)
			}
			if after := contentOf(w.ns); !reflect.DeepEqual(before, after) {
				t.Errorf("the state has changed: %+v, before %+v", after, before)
			}
			if after := unsavedOf(w.ns); !maps.Equal(after, unsaved) {
				t.Errorf("to be written is %q, before %q", after, unsaved)
			}
			if other, ok := cold.Apply(w.index, w.log[w.index-1])[0].(*Result); !ok || other.Step != r.Step || fmt.Sprint(other.Err) != fmt.Sprint(r.Err) || cold.Hash() != w.ns.Hash() {
				t.Errorf("a member with nothing in memory: %+v, not %+v", other, r)
			}
		})
	}
	w.check()
}

// A deletion of what may not be there is one as well where its path begins at an inode that is gone, as after an earlier step.
func TestPublishDeletesWhatIsGoneByItsINode(t *testing.T) {
	t.Parallel()
	w := publishWorld(t)
	id, err := w.ns.Resolve(super, "/q/s/f")
	if err != nil {
		t.Fatal(err)
	}
	gone := func() *logpb.Delete { return &logpb.Delete{Target: &logpb.Target{Base: uint64(id)}} }
	for range 2 {
		if r := w.do(super, publishOf(gone(), ifThere{}, gone(), ifThere{}, attributeOf("/q", "a", "1"))); r.Err != nil || !r.OK {
			t.Errorf("%+v", r)
		}
	}
	if r := w.do(super, publishOf(gone())); !errors.Is(r.Err, metadata.ErrNotExist) || r.Step != 1 {
		t.Errorf("of what has to be there: %+v", r)
	}
	if r := w.do(super, publishOf(&logpb.Delete{Target: &logpb.Target{Base: uint64(noINode)}}, ifThere{})); !errors.Is(r.Err, metadata.ErrNotExist) {
		t.Errorf("of what is no inode: %+v", r)
	}
	w.check()
}
