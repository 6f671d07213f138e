package namespace

import (
	"bytes"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// machine drives a namespace and its model with the same random operations. A second namespace applies the same log with
// hardly anything in memory, and is stopped, started, and put back to a snapshot on the way: it must have the same hash.
type machine struct {
	w      *world
	m      model
	cold   *Namespace
	store  *mem.Store
	bodies *memBodies // of the cold one
	keys   modelKeys
	items  modelRegister
	tokens modelTokens
	caches modelCaching
	mirror *mirror
	blocks map[metadata.BlockID]bool // as effects tell
	next   int64                     // next free block
	end    int64
}

var testNames = []string{"a", "b", "c"}

func drawPath(t *rapid.T, label string) string {
	names := rapid.SliceOfN(rapid.SampledFrom(testNames), 0, 4).Draw(t, label)
	path := "/"
	for _, n := range names {
		path = join(path, n)
	}
	return path
}

func drawCaller(t *rapid.T) metadata.Caller {
	return rapid.SampledFrom([]metadata.Caller{super, super, bob, alice}).Draw(t, "caller")
}

func drawMode(t *rapid.T) metadata.Mode {
	return metadata.Mode(rapid.SampledFrom([]int{0o777, 0o777, 0o755, 0o1777, 0o700, 0o711, 0o640}).Draw(t, "mode"))
}

func (s *machine) do(t *rapid.T, c metadata.Caller, op any) *Result {
	s.w.now += 10
	r := s.w.do(c, op)
	s.cold.Apply(s.w.index, s.w.log[s.w.index-1])
	return r
}

func (s *machine) same(t *rapid.T, what string, r *Result, want *metadata.Kind) bool {
	var got *metadata.Kind
	if r.Err != nil {
		got = metadata.KindOf(r.Err)
	}
	if got != want {
		t.Fatalf("%s: %v, the model says %v", what, r.Err, want)
	}
	return want == nil
}

func (s *machine) sameOK(t *rapid.T, what string, r *Result, ok bool, want *metadata.Kind) {
	if s.same(t, what, r, want) && r.OK != ok {
		t.Fatalf("%s: %v, the model says %v", what, r.OK, ok)
	}
}

func (s *machine) block(t *rapid.T) *logpb.Block {
	if s.next == s.end {
		r := s.do(t, super, &logpb.ReserveIDs{Blocks: 100, Generations: 100}).Reserved
		s.next, s.end = int64(r.FirstBlock), int64(r.EndBlock)
	}
	s.next++
	return &logpb.Block{Id: s.next - 1, Generation: uint64(s.next - 1 - int64(metadata.FirstBlockID) + int64(metadata.FirstGeneration))}
}

// openFile picks a file that somebody writes, the real one and the model's.
func (s *machine) openFile(t *rapid.T) (*FileInfo, *modelNode) {
	var open []metadata.INodeID
	for _, l := range s.w.ns.Leases() {
		open = append(open, l.Files...)
	}
	if len(open) == 0 {
		t.Skip("nothing is open")
	}
	id := rapid.SampledFrom(open).Draw(t, "inode")
	f, ok := s.w.ns.FileByID(id)
	n := s.m.byID(int(id))
	if !ok || n == nil {
		t.Fatalf("inode %d is open and there is no such file: %v, %v", id, f, n)
	}
	return f, n
}

func (s *machine) adopt(path string) {
	if st, err := s.w.ns.Stat(super, path); err == nil && st != nil && s.m[path] != nil {
		s.m[path].id = int(st.ID)
	}
}

func TestOperationsAgreeWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { runMachine(t) })
}

// Histories of short files that are written to datanodes, kept, changed, and had by snapshots.
func TestKeptFilesAgreeWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runMachine(t, "write", "keep", "append", "add block", "complete", "rename2", "delete", "set replication", "stop and start the other one", "kill the other one",
			"put the other one back to a snapshot")
	})
}

// runMachine takes operations at random, of some kinds and snapshots alone if any are named.
func runMachine(t *rapid.T, kinds ...string) {
	store := mem.New()
	s := &machine{w: newWorldIn(t), m: newModel(), store: store, blocks: map[metadata.BlockID]bool{}, mirror: newMirror()}
	s.w.ns.cfg.OnEffects, s.w.ns.cfg.OnEvents = s.follow, s.mirror.take
	s.cold = s.openCold(t, store)
	actions := map[string]func(*rapid.T){
		"mkdirs": func(t *rapid.T) {
			c, path, mode, parents := drawCaller(t), drawPath(t, "path"), drawMode(t), rapid.Bool().Draw(t, "parents")
			r := s.do(t, c, &logpb.Mkdirs{Target: to(path), Mode: uint32(mode), CreateParent: parents})
			ok, kind := s.m.mkdirs(c, path, mode, parents)
			s.sameOK(t, "mkdirs "+path, r, ok, kind)
		},
		"create": func(t *rapid.T) {
			c, path, mode := drawCaller(t), drawPath(t, "path"), drawMode(t)
			overwrite, parents := rapid.Bool().Draw(t, "overwrite"), rapid.Bool().Draw(t, "parents")
			client := rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "client")
			op := create(path, client)
			op.Mode, op.Overwrite, op.CreateParent = uint32(mode), overwrite, parents
			r := s.do(t, c, op)
			if s.same(t, "create "+path, r, s.m.create(c, path, client, mode, overwrite, parents)) {
				s.adopt(path)
			}
		},
		"store": s.storeSmall, "store again": s.storeSmall, "keep": s.keepSmall, "keep again": s.keepSmall,
		"write": s.writeShort, "write again": s.writeShort,
		"append": func(t *rapid.T) {
			c, path := drawCaller(t), drawPath(t, "path")
			exact := rapid.Bool().Draw(t, "exact")
			r := s.do(t, c, &logpb.Append{Target: to(path), ClientName: "c3", Exact: exact})
			s.same(t, "append "+path, r, s.m.append(c, path, "c3", exact))
		},
		"add block": func(t *rapid.T) {
			f, n := s.openFile(t)
			previous := rapid.SampledFrom([]int64{1 << 20, 1 << 20, 77}).Draw(t, "previous")
			op := &logpb.AddBlock{Inode: uint64(f.Status.ID), ClientName: f.Holder, Block: s.block(t)}
			if n.blind && rapid.Bool().Draw(t, "blind") {
				s.same(t, "add block", s.do(t, super, op), s.m.addBlind(n))
				return
			}
			n.blind = false
			if len(f.Blocks) > 0 {
				last := f.Blocks[len(f.Blocks)-1]
				previous = max(previous, last.Length)
				op.Previous = &logpb.Block{Id: int64(last.ID), Generation: uint64(last.Generation), Length: previous}
			}
			if r := s.do(t, super, op); r.Err != nil {
				t.Fatal(r.Err)
			}
			s.m.addBlock(n, previous)
		},
		"abandon block": func(t *rapid.T) {
			f, n := s.openFile(t)
			if len(f.Blocks) == 0 {
				t.Skip("no block")
			}
			last := f.Blocks[len(f.Blocks)-1]
			r := s.do(t, super, &logpb.AbandonBlock{Inode: uint64(f.Status.ID), ClientName: f.Holder, Block: &logpb.Block{Id: int64(last.ID)}})
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			if n.lastOpen {
				n.blocks, n.lastOpen = n.blocks[:len(n.blocks)-1], false
			}
		},
		"fsync": func(t *rapid.T) {
			f, n := s.openFile(t)
			length := rapid.Int64Range(0, 1000).Draw(t, "length")
			if r := s.do(t, super, &logpb.Fsync{Inode: uint64(f.Status.ID), ClientName: f.Holder, LastBlockLength: length}); r.Err != nil {
				t.Fatal(r.Err)
			}
			if n.lastOpen && length > n.blocks[len(n.blocks)-1] {
				n.blocks[len(n.blocks)-1] = length
			}
		},
		"complete": func(t *rapid.T) {
			f, n := s.openFile(t)
			op := &logpb.Complete{Inode: uint64(f.Status.ID), ClientName: f.Holder}
			if len(f.Blocks) > 0 {
				last := f.Blocks[len(f.Blocks)-1]
				last.Length += rapid.Int64Range(0, 100).Draw(t, "more")
				op.Last = &logpb.Block{Id: int64(last.ID), Generation: uint64(last.Generation), Length: last.Length}
				if n.lastOpen {
					n.blocks[len(n.blocks)-1] = last.Length
				}
			}
			if r := s.do(t, super, op); r.Err != nil || !r.OK {
				t.Fatal(r.Err, r.OK)
			}
			n.holder, n.lastOpen = "", false
		},
		"rename": func(t *rapid.T) {
			c, src, dst := drawCaller(t), drawPath(t, "src"), drawPath(t, "dst")
			r := s.do(t, c, &logpb.Rename{Source: to(src), Target: to(dst), Legacy: true})
			ok, kind := s.m.rename(c, src, dst)
			s.sameOK(t, "rename "+src+" "+dst, r, ok, kind)
		},
		"rename2": func(t *rapid.T) {
			c, src, dst, overwrite := drawCaller(t), drawPath(t, "src"), drawPath(t, "dst"), rapid.Bool().Draw(t, "overwrite")
			r := s.do(t, c, &logpb.Rename{Source: to(src), Target: to(dst), Overwrite: overwrite})
			s.same(t, "rename2 "+src+" "+dst, r, s.m.rename2(c, src, dst, overwrite))
		},
		"delete": func(t *rapid.T) {
			c, path, recursive := drawCaller(t), drawPath(t, "path"), rapid.Bool().Draw(t, "recursive")
			r := s.do(t, c, &logpb.Delete{Target: to(path), Recursive: recursive})
			ok, kind := s.m.delete(c, path, recursive)
			s.sameOK(t, "delete "+path, r, ok, kind)
		},
		"set permission": func(t *rapid.T) {
			c, path, mode := drawCaller(t), drawPath(t, "path"), drawMode(t)
			r := s.do(t, c, &logpb.SetPermission{Target: to(path), Mode: uint32(mode)})
			if s.same(t, "setPermission "+path, r, s.m.attribute(c, path, true, 0)) {
				s.m[path].mode = mode
			}
		},
		"set owner": func(t *rapid.T) {
			path := drawPath(t, "path")
			owner := rapid.SampledFrom([]string{"bob", "alice", "", "bob\n"}).Draw(t, "owner")
			group := rapid.SampledFrom([]string{"staff", "dev", ""}).Draw(t, "group")
			r := s.do(t, super, &logpb.SetOwner{Target: to(path), Owner: owner, Group: group})
			kind := s.m.attribute(super, path, true, 0)
			if owner == "bob\n" {
				kind = metadata.ErrInvalidArgument
			}
			if s.same(t, "setOwner "+path, r, kind) {
				if owner != "" {
					s.m[path].owner = owner
				}
				if group != "" {
					s.m[path].group = group
				}
			}
		},
		"set replication": func(t *rapid.T) {
			c, path := drawCaller(t), drawPath(t, "path")
			r := s.do(t, c, &logpb.SetReplication{Target: to(path), Replication: 2})
			kind := s.m.attribute(c, path, false, metadata.Write)
			n := s.m[path]
			if kind == metadata.ErrNotExist {
				kind = nil
			}
			ok := kind == nil && n != nil && !n.dir
			s.sameOK(t, "setReplication "+path, r, ok, kind)
			if ok {
				n.replication = 2
			}
		},
		"publish": s.publish, "publish again": s.publish,
		"roll the block keys": func(t *rapid.T) { s.rollKeys(t) },
		"change the register": func(t *rapid.T) { s.changeRegister(t) },
		"change the tokens":   func(t *rapid.T) { s.changeTokens(t) },
		"change the caching":  func(t *rapid.T) { s.changeCaching(t) },
		"stop and start the other one": func(t *rapid.T) {
			if s.cold.AppliedIndex() > 0 {
				takeSnapshot(t, s.cold, new(bytes.Buffer))
				s.compact(t)
			}
			s.cold = s.openCold(t, s.store)
		},
		"kill the other one": func(t *rapid.T) {
			s.store, s.bodies = s.store.Crash(nil), s.bodies.crash(nil)
			s.cold = s.openCold(t, s.store)
			for i := s.cold.AppliedIndex(); i < s.w.index; i++ {
				s.cold.Apply(i+1, s.w.log[i])
			}
		},
		"put the other one back to a snapshot": func(t *rapid.T) {
			if s.w.ns.AppliedIndex() == 0 {
				t.Skip("nothing to take a snapshot of")
			}
			var buf bytes.Buffer
			takeSnapshot(t, s.w.ns, &buf)
			if rapid.Bool().Draw(t, "without bodies") {
				s.bodies = newMemBodies()
				s.cold.cfg.Bodies = s.bodies
			}
			if err := s.cold.Restore(&buf); err != nil {
				t.Fatal(err)
			}
		},
		"": func(t *rapid.T) {
			if a, b := s.w.ns.Hash(), s.cold.Hash(); a != b {
				t.Fatalf("hashes differ: %016x, %016x", a, b)
			}
		},
	}
	if len(kinds) > 0 {
		maps.DeleteFunc(actions, func(name string, _ func(*rapid.T)) bool {
			return name != "" && !slices.Contains(kinds, strings.TrimSuffix(name, " again"))
		})
	}
	maps.Copy(actions, s.snapshotActions())
	t.Repeat(actions)
	for name, ns := range map[string]*Namespace{"the one": s.w.ns, "the other one": s.cold} {
		if errs := ns.Check(); len(errs) > 0 {
			t.Fatalf("%s: %v", name, errors.Join(errs...))
		}
		if got, want := dumpNamespace(ns), s.m.dump(); got != want {
			t.Fatalf("%s:\n%s\nthe model:\n%s", name, got, want)
		}
		s.compareSnapshots(t, name, ns)
		s.compareDiffs(t, name, ns)
		s.keys.compare(t, name, ns)
		s.items.compare(t, name, ns)
		s.tokens.compare(t, name, ns)
		s.caches.compare(t, name, ns)
		s.compareBodies(t, ns)
	}
	s.compareBlocks(t)
	if s.cold.AppliedIndex() > 0 {
		takeSnapshot(t, s.cold, new(bytes.Buffer))
		s.compact(t)
	}
	if found, left := s.compareBodies(t, s.cold), s.bodies.ids(); !slices.Equal(slices.Sorted(maps.Keys(found)), left) {
		t.Fatalf("bodies %v are needed, %v are there", found, left)
	}
	s.compareQuotas(t)
	s.compareTags(t)
	s.compareSummary(t)
	s.mirror.compare(t, s.w.ns)
}

func (s *machine) storeSmall(t *rapid.T) {
	c, path, mode := drawCaller(t), drawPath(t, "path"), drawMode(t)
	overwrite, parents := rapid.Bool().Draw(t, "overwrite"), rapid.Bool().Draw(t, "parents")
	length := rapid.SampledFrom([]int64{0, 1, 1024, 1025, 4096}).Draw(t, "length")
	op := storeOf(path, "c1", s.block(t), length)
	op.Create.Mode, op.Create.Overwrite, op.Create.CreateParent = uint32(mode), overwrite, parents
	r := s.do(t, c, op)
	if s.same(t, "store "+path, r, s.m.store(c, path, mode, length, overwrite, parents)) {
		s.adopt(path)
	}
}

// writeShort makes a closed file of one short block, as Hadoop's clients do.
func (s *machine) writeShort(t *rapid.T) {
	c, path, mode := drawCaller(t), drawPath(t, "path"), drawMode(t)
	length := rapid.SampledFrom([]int64{1, 1024, 1025, 4096}).Draw(t, "length")
	op := create(path, "c1")
	op.Mode, op.Overwrite, op.CreateParent = uint32(mode), true, true
	r := s.do(t, c, op)
	if !s.same(t, "write "+path, r, s.m.create(c, path, "c1", mode, true, true)) {
		return
	}
	s.adopt(path)
	n, id, b := s.m[path], uint64(r.Status.ID), s.block(t)
	if r := s.do(t, super, &logpb.AddBlock{Inode: id, ClientName: "c1", Block: b}); r.Err != nil {
		t.Fatal(r.Err)
	}
	s.m.addBlock(n, 0)
	if r := s.do(t, super, &logpb.Complete{Inode: id, ClientName: "c1", Last: &logpb.Block{Id: b.Id, Generation: b.Generation, Length: length}}); r.Err != nil || !r.OK {
		t.Fatal(r.Err, r.OK)
	}
	n.blocks[len(n.blocks)-1], n.holder, n.lastOpen = length, "", false
}

// keepSmall makes a small file of one with blocks.
func (s *machine) keepSmall(t *rapid.T) {
	c := drawCaller(t)
	var files []string
	for path, n := range s.m {
		if !n.dir {
			files = append(files, path)
		}
	}
	if len(files) == 0 {
		t.Skip("no file")
	}
	slices.Sort(files)
	path := rapid.SampledFrom(files).Draw(t, "path")
	n := s.m[path]
	s.adopt(path)
	length := int64(0)
	for _, b := range n.blocks {
		length += b
	}
	keep, inPlace := keepOf, rapid.Bool().Draw(t, "in place")
	if inPlace {
		keep = keepHere
	}
	op := keep(path, s.w.blocksOf(path), s.block(t), min(length, metadata.MaxBody))
	s.snapshotBetween(t, path)
	r := s.do(t, c, op)
	s.same(t, "keep "+path, r, s.m.keep(c, path, length, inPlace))
}

// snapshotBetween may take a snapshot of a directory above a file, behind the last look at that.
func (s *machine) snapshotBetween(t *rapid.T, path string) {
	if !rapid.Bool().Draw(t, "snapshot between") {
		return
	}
	above := parentOf(path)
	for above != "/" && !s.m[above].allowed {
		above = parentOf(above)
	}
	if !s.m[above].allowed {
		above = parentOf(path)
		r := s.do(t, super, &logpb.ChangeSnapshots{Target: to(above), Change: logpb.ChangeSnapshots_ALLOW})
		s.same(t, "allowSnapshot "+above, r, s.m.allow(above, true))
	}
	s.takeSnapshot(t, super, above)
}

// compact drops the bodies of the cold one that are not needed, behind a checkpoint, which is the only version that is kept.
func (s *machine) compact(t *rapid.T) {
	s.cold.Retain([]uint64{s.cold.AppliedIndex()})
	if err := s.bodies.compact(s.cold); err != nil {
		t.Fatal(err)
	}
}

// compareBodies reads the bodies of all files and snapshots.
func (s *machine) compareBodies(t *rapid.T, ns *Namespace) map[metadata.BlockID]bool {
	found := checkBodies(t, ns, "/")
	for path, n := range s.m {
		for name := range n.snapshots {
			maps.Copy(found, checkBodies(t, ns, join(path, ".snapshot/"+name)))
		}
	}
	return found
}

// compareSummary compares what is counted with the model, when nothing is left to be taken apart: that counts until then.
func (s *machine) compareSummary(t *rapid.T) {
	sum, err := s.w.ns.ContentSummary(super, "/")
	if err != nil {
		t.Fatal(err)
	}
	sum.Files, sum.Directories = sum.Files-sum.Snapshot.Files, sum.Directories-sum.Snapshot.Directories
	sum.Length, sum.SpaceConsumed = sum.Length-sum.Snapshot.Length, sum.SpaceConsumed-sum.Snapshot.SpaceConsumed
	sum.Snapshot = metadata.SnapshotSummary{}
	var want metadata.ContentSummary
	for _, n := range s.m {
		if n.dir {
			want.Directories++
			continue
		}
		want.Files++
		for _, b := range n.blocks {
			want.Length += b
		}
		want.SpaceConsumed += s.m.space(n)
	}
	want.Quota, want.SpaceQuota = metadata.QuotaKeep, metadata.QuotaUnset // of the root
	if s.m["/"].quota {
		want.Quota, want.SpaceQuota = 1<<40, 1<<60
	}
	if !reflect.DeepEqual(*sum, want) {
		t.Fatalf("summary %+v, the model's %+v", *sum, want)
	}
}

func (s *machine) openCold(t *rapid.T, store *mem.Store) *Namespace {
	ns := openCold(t, store)
	if s.bodies == nil {
		s.bodies = newMemBodies()
	}
	ns.cfg.Bodies = s.bodies
	ns.cfg.OnEvents = s.mirror.again
	return ns
}

func newWorldIn(t *rapid.T) *world {
	ns, err := Open(Config{Store: mem.New(), Bodies: newMemBodies(), Owner: "hops", Supergroup: "supergroup", OnMistake: mistake(t)})
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: rapidTB{T: t}, ns: ns, now: 1_000_000}
}

func openCold(t *rapid.T, store *mem.Store) *Namespace {
	ns, err := Open(Config{Store: store, Owner: "hops", Supergroup: "supergroup", Memory: 1, OnMistake: mistake(t)})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// rapidTB lets helpers that want a testing.TB report to rapid.
type rapidTB struct {
	testing.TB
	T *rapid.T
}

func (r rapidTB) Helper()                   {}
func (r rapidTB) Fatal(args ...any)         { r.T.Fatal(args...) }
func (r rapidTB) Errorf(f string, a ...any) { r.T.Errorf(f, a...) }
func (r rapidTB) Fatalf(f string, a ...any) { r.T.Fatalf(f, a...) }
func (r rapidTB) Name() string              { return "rapid" }
