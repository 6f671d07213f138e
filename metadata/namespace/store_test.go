package namespace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/smallfile"
)

// A member of a cluster has its bodies in a smallfile.Store.
var _ Bodies = (*smallfile.Store)(nil)

// mustBy is must by a caller.
func (w *world) mustBy(c metadata.Caller, op any) *Result {
	w.t.Helper()
	r := w.do(c, op)
	if r.Err != nil || !r.OK {
		w.t.Fatalf("%T: %v, %v", op, r.OK, r.Err)
	}
	return r
}

// lateBodies is a Bodies that says that something comes, and takes it when it may.
type lateBodies struct {
	*memBodies
	comes, may chan struct{}
}

func (b *lateBodies) Put(id metadata.BlockID, body []byte) {
	close(b.comes)
	<-b.may
	b.memBodies.Put(id, body)
}

// A body that came with an entry, and is on its way to Bodies, is not missing.
func TestABodyOnItsWayIsNotMissing(t *testing.T) {
	bodies := &lateBodies{newMemBodies(), make(chan struct{}), make(chan struct{})}
	w := newWorld(t, Config{Bodies: bodies})
	b := w.block()
	stored := make(chan *Result, 1)
	go func() { stored <- w.do(super, storeOf("/a", "c", b, 2000)) }()
	<-bodies.comes
	checkBodies(t, w.ns, "/")
	errs := w.ns.Check()
	close(bodies.may)
	if r := <-stored; r.Err != nil || errs != nil {
		t.Fatal(r.Err, errs)
	}
	w.check()
}

// A small file counts for quotas what a closed file of its length does, and needs no more room than that.
func TestSmallFilesCountAsFilesOfTheirLength(t *testing.T) {
	w := newWorld(t, Config{})
	w.mustBy(super, &logpb.Mkdirs{Target: to("/q"), Mode: 0o777})
	w.mustBy(super, &logpb.SetQuota{Target: to("/q"), Names: 5, Space: 3 * 3000})
	used := func(names, space int64) {
		t.Helper()
		u, err := w.ns.QuotaUsage(super, "/q")
		if err != nil || u.Names != names || u.Space != space {
			t.Fatalf("%+v, %v; want %d, %d", u, err, names, space)
		}
		w.check()
	}
	w.mustBy(bob, storeOf("/q/a", "c", w.block(), 1000))
	w.mustBy(bob, storeOf("/q/d/b", "c", w.block(), 2000)) // and d
	used(4, 9000)
	for what, r := range map[string]*Result{
		"a byte":   w.do(bob, storeOf("/q/c", "c", w.block(), 1)),
		"two more": w.do(bob, storeOf("/q/e/f", "c", w.block(), 0)),
	} {
		if k := metadata.KindOf(r.Err); k != metadata.ErrSpaceQuota && k != metadata.ErrNamespaceQuota {
			t.Errorf("%s: %v", what, r.Err)
		}
	}
	used(4, 9000)
	replace := storeOf("/q/a", "c", w.block(), 1000)
	replace.Create.Overwrite = true
	w.mustBy(bob, replace) // what it replaces is free
	used(4, 9000)
	w.mustBy(bob, storeOf("/q/empty", "c", &logpb.Block{}, 0))
	used(5, 9000)
	w.mustBy(bob, &logpb.SetReplication{Target: to("/q/a"), Replication: 1})
	used(5, 7000)
	w.mustBy(bob, cutOf("/q/a", w.infoOf("/q/a").Blocks[0], w.block(), 10))
	used(5, 6010)

	// In a snapshot it goes on to count.
	w.mustBy(super, &logpb.ChangeSnapshots{Target: to("/q"), Change: logpb.ChangeSnapshots_ALLOW})
	w.mustBy(super, &logpb.ChangeSnapshots{Target: to("/q"), Change: logpb.ChangeSnapshots_CREATE, Name: "s"})
	w.mustBy(bob, &logpb.Delete{Target: to("/q/d"), Recursive: true})
	w.mustBy(super, &logpb.Reclaim{Limit: 100})
	used(5, 6010)
	again := storeOf("/q/a", "c", w.block(), 10)
	again.Create.Overwrite, again.Create.Replication = true, 1
	if r := w.do(bob, again); metadata.KindOf(r.Err) != metadata.ErrNamespaceQuota {
		t.Errorf("what a snapshot has gives no room: %v", r.Err)
	}
	checkBodies(t, w.ns, "/q/.snapshot/s")
	w.mustBy(super, &logpb.ChangeSnapshots{Target: to("/q"), Change: logpb.ChangeSnapshots_DELETE, Name: "s"})
	w.mustBy(super, &logpb.Reclaim{Limit: 100})
	used(3, 10)
	if n, size := w.ns.Bodies(); n != 1 || size != 10 {
		t.Errorf("%d bodies of %d bytes", n, size)
	}
}

func (w *world) infoOf(path string) *FileInfo {
	w.t.Helper()
	id, err := w.ns.Resolve(super, path)
	if err != nil {
		w.t.Fatal(err)
	}
	f, ok := w.ns.FileByID(id)
	if !ok {
		w.t.Fatal("no file ", path)
	}
	return f
}

// What a command for a small file says has to be so before anything changes.
func TestFaultyStoresChangeNothing(t *testing.T) {
	w := newWorld(t, Config{})
	w.mustBy(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.mustBy(super, storeOf("/d/there", "c", w.block(), 20))
	there := w.infoOf("/d/there").Blocks[0]
	w.mustBy(super, create("/d/open", "other"))
	w.mustBy(super, &logpb.Mkdirs{Target: to("/off"), Mode: 0o777})
	w.mustBy(super, &logpb.SetStoragePolicy{Target: to("/off"), SmallFiles: 1 + smallFilesOff})
	w.mustBy(super, &logpb.SetStoragePolicy{Target: to("/off"), Policy: 7})
	good := w.block()
	change := func(fn func(s *logpb.Store)) *logpb.Store {
		s := storeOf("/d/new", "c", good, 2000)
		fn(s)
		return s
	}
	for what, one := range map[string]struct {
		by   metadata.Caller
		op   *logpb.Store
		want *metadata.Kind
	}{
		"another checksum":     {super, change(func(s *logpb.Store) { s.Crc++ }), metadata.ErrInvalidArgument},
		"another length":       {super, change(func(s *logpb.Store) { s.Body.Length++ }), metadata.ErrInvalidArgument},
		"no body":              {super, change(func(s *logpb.Store) { s.Body = nil }), metadata.ErrInvalidArgument},
		"a group":              {super, change(func(s *logpb.Store) { s.Body.Id = int64(metadata.FirstGroupID) }), metadata.ErrInvalidArgument},
		"an id of nobody":      {super, change(func(s *logpb.Store) { s.Body.Id++ }), metadata.ErrInvalidArgument},
		"an id of another":     {super, change(func(s *logpb.Store) { s.Body.Id = int64(there.ID) }), metadata.ErrInvalidArgument},
		"a later generation":   {super, change(func(s *logpb.Store) { s.Body.Generation++ }), metadata.ErrInvalidArgument},
		"too many bytes":       {super, storeOf("/d/new", "c", good, metadata.MaxBody+1), metadata.ErrInvalidArgument},
		"more than a block":    {super, change(func(s *logpb.Store) { s.Create.MinBlockSize, s.Create.BlockSize = 1, 1999 }), metadata.ErrUnsupported},
		"no client":            {super, storeOf("/d/new", "", good, 5), metadata.ErrInvalidArgument},
		"no right":             {bob, storeOf("/d/new", "c", good, 5), metadata.ErrPermission},
		"a directory":          {super, storeOf("/d", "c", good, 5), metadata.ErrExist},
		"below a file":         {super, storeOf("/d/there/x", "c", good, 5), metadata.ErrParentNotDirectory},
		"a file that is there": {super, storeOf("/d/there", "c", good, 5), metadata.ErrExist},
		"one that is open":     {super, storeOf("/d/open", "c", good, 5), metadata.ErrBeingCreated},
		"where it is off":      {super, storeOf("/off/deep/er", "c", good, 5), metadata.ErrUnsupported},
	} {
		counts := w.ns.Counts()
		r := w.do(one.by, one.op)
		if metadata.KindOf(r.Err) != one.want || r.Err == nil {
			t.Errorf("%s: %v", what, r.Err)
		}
		if after := w.ns.Counts(); after.Files != counts.Files || after.Directories != counts.Directories || after.Blocks != counts.Blocks {
			t.Errorf("%s: something was made", what)
		}
	}
	w.check()
	w.mustBy(super, storeOf("/off/deep/er", "c", &logpb.Block{}, 0)) // an empty file has nothing to store
	w.mustBy(super, storeOf("/d/new", "c", good, 2000))
	for _, c := range []*logpb.Truncate{
		func() *logpb.Truncate {
			c := cutOf("/d/new", w.infoOf("/d/new").Blocks[0], w.block(), 5)
			c.Crc++
			return c
		}(),
		func() *logpb.Truncate {
			c := cutOf("/d/new", w.infoOf("/d/new").Blocks[0], w.block(), 5)
			c.Length++
			return c
		}(),
		cutOf("/d/new", w.infoOf("/d/new").Blocks[0], good, 5),
	} {
		if r := w.do(super, c); metadata.KindOf(r.Err) != metadata.ErrInvalidArgument {
			t.Error(r.Err)
		}
	}
	if r := w.do(super, cutOf("/d/new", there, w.block(), 5)); metadata.KindOf(r.Err) != metadata.ErrRetriable {
		t.Error(r.Err)
	}
	if r := w.do(super, &logpb.SetStoragePolicy{Target: to("/d/new"), SmallFiles: 2}); metadata.KindOf(r.Err) != metadata.ErrNotDirectory {
		t.Error(r.Err)
	}
	if r := w.do(super, &logpb.SetStoragePolicy{Target: to("/d"), SmallFiles: 4}); metadata.KindOf(r.Err) != metadata.ErrInvalidArgument {
		t.Error(r.Err)
	}
	w.check()
}

// A request that comes again is answered again, and makes no second file; its events are those of a create and a close.
func TestStoreIsDoneOnce(t *testing.T) {
	var told []metadata.Event
	w := newWorld(t, Config{OnEvents: func(_ uint64, _ LogTime, events []metadata.Event) { told = append(told, events...) }})
	w.mustBy(super, &logpb.SetErasurePolicy{Target: to("/"), Policy: 2})
	w.mustBy(super, &logpb.SetACL{Target: to("/"), Change: logpb.SetACL_MODIFY, Entries: []*logpb.ACLEntry{{Default: true, Name: "alice", Rights: 7}}})
	told = nil
	op := storeOf("/a/b", "c", w.block(), 1500)
	op.Create.Unmasked = new(uint32(0o666))
	cmd := func(op *logpb.Store) *logpb.Command { return numbered(command(super, op), "0123456789abcdef", 7) }
	first := w.apply(cmd(op))
	if first.Err != nil || first.Status.Length != 1500 || first.Status.UnderConstruction || first.Status.Erasure != 0 || !first.Status.ACL {
		t.Fatalf("%+v %v", first.Status, first.Err)
	}
	var kinds []string
	for _, e := range told {
		kinds = append(kinds, fmt.Sprintf("%v %s %d %v", e.Kind, e.Path, e.Length, e.Continued))
	}
	if got := strings.Join(kinds, "; "); got != fmt.Sprintf("%v /a 0 false; %v /a/b 0 false; %v /a/b 1500 true", metadata.EventCreate, metadata.EventCreate, metadata.EventClose) {
		t.Error(got)
	}
	for range 2 {
		again := w.apply(cmd(storeOf("/a/b", "c", w.block(), 1500)))
		if again.Err != nil || !again.Replayed || again.Status.ID != first.Status.ID {
			t.Fatalf("%+v", again)
		}
		w.reopen()
	}
	w.mustBy(super, &logpb.Delete{Target: to("/a/b")})
	if again := w.apply(cmd(storeOf("/a/b", "c", w.block(), 1500))); !again.Replayed || metadata.KindOf(again.Err) != metadata.ErrNotExist {
		t.Fatalf("%+v", again)
	}
	w.check()
}

// writtenFile makes a closed file of blocks of these lengths.
func (w *world) writtenFile(path string, lengths ...int64) []metadata.Block {
	op := create(path, "writer")
	op.MinBlockSize, op.BlockSize = 1, 4000
	id := uint64(w.mustBy(super, op).Status.ID)
	var last *logpb.Block
	for _, length := range lengths {
		b := w.block()
		w.must(&logpb.AddBlock{Inode: id, ClientName: "writer", Previous: last, Block: b})
		last = &logpb.Block{Id: b.Id, Generation: b.Generation, Length: length}
	}
	w.mustBy(super, &logpb.Complete{Inode: id, ClientName: "writer", Last: last})
	return w.blocks(path)
}

func (w *world) usage(path string) *metadata.QuotaUsage {
	u, err := w.ns.QuotaUsage(super, path)
	if err != nil {
		w.t.Fatal(path, err)
	}
	return u
}

// A file that was written to datanodes becomes a small file: nothing but its blocks changes, which snapshots go on to have, and it is done once.
func TestFilesBecomeSmallFiles(t *testing.T) {
	var removed []metadata.Block
	w := newWorld(t, Config{OnEffects: func(e Effects) { removed = append(removed, e.Removed...) }})
	w.mustBy(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.mustBy(super, &logpb.SetQuota{Target: to("/d"), Names: -1, Space: 100_000})
	w.mustBy(super, snapshotChange("/d", allowSnapshots))
	for i, length := range []int64{10, 4000} {
		path, kept := fmt.Sprintf("/d/%d", i), fmt.Sprintf("/d/kept%d", i)
		blocks := w.writtenFile(path, length)
		before, usage := w.infoOf(path).Status, w.usage("/d")
		op := keepOf(path, blocks, w.block(), length)
		cmd := func() *logpb.Command { return numbered(command(super, op), "0123456789abcdef", int32(i)) }
		removed = nil
		for range 2 {
			if r := w.apply(cmd()); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		if !slices.Equal(removed, blocks) {
			t.Errorf("%s: blocks %v are gone, want %v", path, removed, blocks)
		}
		f := w.infoOf(path)
		if after := f.Status; after.Length != before.Length || after.MTime != before.MTime || after.ID != before.ID || after.Replication != before.Replication || !f.IsBody(0) || len(f.Blocks) != 1 {
			t.Errorf("%s: %+v, before %+v; %v", path, after, before, f.Blocks)
		}
		if now := w.usage("/d"); !reflect.DeepEqual(now, usage) {
			t.Errorf("%s: %+v is used, before %+v", path, now, usage)
		}
		checkBodies(t, w.ns, "/d")

		blocks = w.writtenFile(kept, length)
		snapshot := fmt.Sprint("s", i)
		w.mustBy(super, snapshotChange("/d", createSnapshot, snapshot))
		removed = nil
		w.mustBy(super, keepOf(kept, blocks, w.block(), length))
		if len(removed) > 0 {
			t.Errorf("blocks %v of a snapshot are gone", removed)
		}
		if old := w.blocks("/d/.snapshot/" + snapshot + kept[2:]); !slices.Equal(old, blocks) {
			t.Errorf("the snapshot has %v in place of %v", old, blocks)
		}
		w.check()
		w.reopen()
		w.check()
		checkBodies(t, w.ns, "/d")
		w.mustBy(super, snapshotChange("/d", deleteSnapshot, snapshot))
		w.mustBy(super, &logpb.Reclaim{Limit: 100})
		if !slices.Equal(removed, blocks) {
			t.Errorf("with the snapshot %v are gone, want %v", removed, blocks)
		}
		w.check()
	}
}

// In place the body has the id of the file's block, whose replicas go even so. What a snapshot has is left alone, unless somebody asks for it.
func TestBodiesTakeThePlaceOfBlocks(t *testing.T) {
	var removed []metadata.Block
	w := newWorld(t, Config{OnEffects: func(e Effects) {
		removed = append(removed, e.Removed...)
		for _, o := range slices.Concat(e.Added, e.Changed) {
			if slices.ContainsFunc(removed, func(b metadata.Block) bool { return b.ID == o.Block.ID }) {
				t.Errorf("block %v is told of after it was removed", o.Block)
			}
		}
	}})
	w.mustBy(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.mustBy(super, snapshotChange("/d", allowSnapshots))
	for i, length := range []int64{10, 4000} {
		path := fmt.Sprintf("/d/%d", i)
		blocks := w.writtenFile(path, length)
		counts := w.ns.Counts()
		removed = nil
		w.mustBy(super, keepHere(path, blocks, w.block(), length))
		f := w.infoOf(path)
		if !slices.Equal(f.Blocks, blocks) || !f.IsBody(0) || !slices.Equal(removed, blocks) {
			t.Fatalf("%s has %v, and %v are gone; before %v", path, f.Blocks, removed, blocks)
		}
		if _, ok := w.ns.BlockOwner(blocks[0].ID); ok {
			t.Error("it is a block of datanodes")
		}
		if after := w.ns.Counts(); after.Blocks != counts.Blocks {
			t.Errorf("there are %d blocks, before %d", after.Blocks, counts.Blocks)
		}
		if err := w.ns.EachBlock(func(o BlockOwner) bool { t.Errorf("%v is listed", o.Block); return true }); err != nil {
			t.Fatal(err)
		}
		w.check()
		checkBodies(t, w.ns, "/d")
		w.reopen()
		w.check()
		checkBodies(t, w.ns, "/d")

		// A snapshot has the body from now on; it goes with the last of them.
		snapshot := fmt.Sprint("s", i)
		w.mustBy(super, snapshotChange("/d", createSnapshot, snapshot))
		if r := w.do(super, keepHere(path, blocks, w.block(), length)); metadata.KindOf(r.Err) != metadata.ErrUnsupported {
			t.Error("kept twice:", r.Err)
		}
		w.mustBy(super, cutOf(path, blocks[0], w.block(), length-3))
		checkBodies(t, w.ns, "/d")
		w.mustBy(super, snapshotChange("/d", deleteSnapshot, snapshot))
		w.mustBy(super, &logpb.Reclaim{Limit: 100})
		if r, err := w.ns.FindBody(blocks[0].ID, 0); r != nil || err != nil {
			t.Errorf("it is still there: %v, %v", r, err)
		}
		w.mustBy(super, &logpb.Delete{Target: to(path)})
		if !slices.Equal(removed, blocks) {
			t.Errorf("datanodes hear that %v are gone, want %v", removed, blocks)
		}
		w.check()
	}
	// A file of which a snapshot has the block is left alone, also when the snapshot was taken behind the look at it: its bytes would be there, and count, twice.
	blocks := w.writtenFile("/d/f", 2000)
	w.mustBy(super, &logpb.SetQuota{Target: to("/d"), Names: metadata.QuotaKeep, Space: 1 << 30})
	if _, ok := w.ns.Keepable(w.infoOf("/d/f").Status.ID, 2000, true); !ok {
		t.Error("it may not be kept")
	}
	w.mustBy(super, snapshotChange("/d", createSnapshot, "s"))
	before, err := w.ns.QuotaUsage(super, "/d")
	if err != nil {
		t.Fatal(err)
	}
	if r := w.do(super, keepHere("/d/f", blocks, w.block(), 2000)); metadata.KindOf(r.Err) != metadata.ErrUnsupported || !strings.Contains(r.Err.Error(), "a snapshot has its blocks") {
		t.Error("a snapshot has it:", r.Err)
	}
	if after, err := w.ns.QuotaUsage(super, "/d"); err != nil || after.Space != before.Space {
		t.Errorf("%+v is used, before %+v (%v)", after, before, err)
	}
	if f := w.infoOf("/d/f"); !slices.Equal(f.Blocks, blocks) || f.IsBody(0) {
		t.Error("it has", f.Blocks)
	}
	// Who asks for it by name gets it, and pays for it twice. What the snapshot has keeps its id there.
	w.mustBy(super, keepOf("/d/f", blocks, w.block(), 2000))
	if after, err := w.ns.QuotaUsage(super, "/d"); err != nil || after.Space != before.Space+3*2000 {
		t.Errorf("%+v is used, before %+v (%v)", after, before, err)
	}
	if f, old := w.infoOf("/d/f"), w.blocks("/d/.snapshot/s/f"); f.Blocks[0].ID == blocks[0].ID || !slices.Equal(old, blocks) {
		t.Errorf("it has %v, the snapshot %v, before %v", f.Blocks, old, blocks)
	}
	checkBodies(t, w.ns, "/d")
	w.check()
	// So does a file of several blocks.
	blocks = w.writtenFile("/d/two", 4000)
	blocks = append(blocks, w.writtenFile("/d/more", 1000)...)
	w.mustBy(super, &logpb.Concat{Target: to("/d/two"), Sources: []*logpb.Target{to("/d/more")}})
	if r := w.do(super, keepHere("/d/two", blocks, w.block(), 5000)); metadata.KindOf(r.Err) != metadata.ErrUnsupported {
		t.Error("a file longer than its block size:", r.Err)
	}
	w.check()
}

func TestWhichFilesAreKeepable(t *testing.T) {
	w := newWorld(t, Config{})
	w.mustBy(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.mustBy(super, &logpb.Mkdirs{Target: to("/off"), Mode: 0o755})
	w.mustBy(super, &logpb.SetStoragePolicy{Target: to("/off"), SmallFiles: 1 + smallFilesOff})
	w.mustBy(super, &logpb.Mkdirs{Target: to("/on"), Mode: 0o755})
	w.mustBy(super, &logpb.SetStoragePolicy{Target: to("/on"), SmallFiles: 1 + smallFilesOn})
	w.writtenFile("/d/f", 2000)
	w.writtenFile("/d/empty")
	w.writtenFile("/d/long", 4000, 10)
	w.writtenFile("/off/f", 2000)
	w.writtenFile("/on/f", 2000)
	w.writtenFile("/d/gone", 2000)
	gone := w.infoOf("/d/gone").Status.ID
	w.mustBy(super, &logpb.Delete{Target: to("/d/gone")})
	w.mustBy(super, storeOf("/d/small", "c", w.block(), 20))
	open := create("/d/open", "c")
	w.mustBy(super, open)
	coded := create("/d/coded", "c")
	coded.Erasure = 1 + rs32
	w.mustBy(super, &logpb.Complete{Inode: uint64(w.mustBy(super, coded).Status.ID), ClientName: "c"})
	w.mustBy(super, &logpb.Mkdirs{Target: to("/ec"), Mode: 0o755})
	w.writtenFile("/ec/f", 2000)
	w.mustBy(super, &logpb.Mkdirs{Target: to("/ec/plain"), Mode: 0o755})
	w.mustBy(super, &logpb.SetErasurePolicy{Target: to("/ec"), Policy: 1 + rs32})
	w.mustBy(super, &logpb.SetErasurePolicy{Target: to("/ec/plain"), Policy: 1})
	w.writtenFile("/ec/plain/f", 2000)
	for path, want := range map[string]struct {
		length             int64
		byDefault, without bool // without: where none is said
	}{
		"/ec/f": {2000, false, false}, "/ec/plain/f": {2000, true, false},
		"/d/f": {2000, true, false}, "/d/empty": {0, false, false}, "/d/long": {4010, false, false}, "/off/f": {2000, false, false}, "/on/f": {2000, true, true}, "/d/small": {20, false, false},
		"/d/open": {0, false, false}, "/d/coded": {0, false, false}, "/d": {0, false, false},
	} {
		id, err := w.ns.Resolve(super, path)
		if err != nil {
			t.Fatal(path, err)
		}
		for i, ok := range []bool{want.byDefault, want.without} {
			b, got := w.ns.Keepable(id, want.length, i == 0)
			if got != ok || ok && b != w.blocks(path)[0] {
				t.Errorf("%s: %v %t", path, b, got)
			}
			if _, got := w.ns.Keepable(id, want.length+1, i == 0); got {
				t.Errorf("%s of another length", path)
			}
		}
	}
	if _, ok := w.ns.Keepable(gone, 2000, true); ok {
		t.Error("a file that is gone")
	}
	id := w.infoOf("/d/f").Status.ID
	w.mustBy(super, snapshotChange("/d", allowSnapshots))
	w.mustBy(super, snapshotChange("/d", createSnapshot, "s"))
	if _, ok := w.ns.Keepable(id, 2000, true); ok {
		t.Error("a file of a snapshot")
	}
	w.mustBy(super, snapshotChange("/d", deleteSnapshot, "s"))
	w.reopen() // it is read from the checkpoint
	if _, ok := w.ns.Keepable(id, 2000, true); !ok {
		t.Error("not after the snapshot")
	}
}

// A small file is to be coded when it grows where files that are made are coded, at that moment.
func TestWhichSmallFilesAreCodable(t *testing.T) {
	w := newWorld(t, Config{})
	for _, dir := range []string{"/ec/below/plain", "/d"} {
		w.mustBy(super, &logpb.Mkdirs{Target: to(dir), Mode: 0o755, CreateParent: true})
	}
	for _, path := range []string{"/ec/f", "/ec/below/f", "/ec/below/plain/f", "/d/f", "/ec/open"} {
		w.mustBy(super, storeOf(path, "c", w.block(), 1500))
	}
	w.writtenFile("/ec/replicated", 2000)
	w.mustBy(super, &logpb.Store{Create: create("/ec/empty", "c")})
	w.mustBy(super, &logpb.SetErasurePolicy{Target: to("/ec"), Policy: 1 + rs32})
	w.mustBy(super, &logpb.SetErasurePolicy{Target: to("/ec/below/plain"), Policy: 1})
	w.mustBy(super, &logpb.Append{Target: to("/ec/open"), ClientName: "c"})
	w.reopen()
	for path, want := range map[string]bool{
		"/ec/f": true, "/ec/below/f": true, "/ec/below/plain/f": false, "/d/f": false, "/ec/open": false, "/ec/replicated": false, "/ec/empty": false, "/ec": false,
	} {
		id, err := w.ns.Resolve(super, path)
		if err != nil {
			t.Fatal(path, err)
		}
		if f, policy, ok := w.ns.Codable(id); ok != want || ok && (policy.ID != rs32 || f.Path != path) {
			t.Errorf("%s: %v %v %+v", path, ok, policy.Name, f)
		}
	}
	for path, want := range map[string]metadata.ErasurePolicyID{
		"/ec/new": rs32, "/ec/f": rs32, "/ec/new/new": rs32, "/ec/below/new": rs32, "/ec/below/plain/new": 0, "/d/new": 0, "/new": 0, "/": 0, "/ec/f/new": 0, "no path": 0,
	} {
		if policy, coded := w.ns.CodingAt(super, path); policy.ID != want || coded != (want != 0) {
			t.Errorf("files at %q are coded by %v", path, policy.Name)
		}
	}
	w.mustBy(super, &logpb.Rename{Source: to("/d/f"), Target: to("/ec/moved")})
	if _, policy, ok := w.ns.Codable(w.infoOf("/ec/moved").Status.ID); !ok || policy.ID != rs32 {
		t.Error("not one that was moved there")
	}
}

func TestFilesThatBecomeNoSmallFiles(t *testing.T) {
	w := newWorld(t, Config{})
	w.mustBy(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	blocks := w.writtenFile("/d/f", 2000)
	w.writtenFile("/d/empty")
	long := w.writtenFile("/d/long", 4000, 10)
	w.mustBy(super, storeOf("/d/small", "c", w.block(), 20))
	coded := create("/d/coded", "c")
	coded.Erasure = 1 + rs32
	w.mustBy(super, &logpb.Complete{Inode: uint64(w.mustBy(super, coded).Status.ID), ClientName: "c"})
	w.mustBy(super, create("/d/open", "other"))
	w.mustBy(super, &logpb.Mkdirs{Target: to("/off"), Mode: 0o777})
	w.mustBy(super, &logpb.SetStoragePolicy{Target: to("/off"), SmallFiles: 1 + smallFilesOff})
	off := w.writtenFile("/off/f", 2000)
	w.mustBy(super, &logpb.Mkdirs{Target: to("/full"), Mode: 0o755})
	full := w.writtenFile("/full/f", 2000)
	w.mustBy(super, snapshotChange("/full", allowSnapshots))
	w.mustBy(super, snapshotChange("/full", createSnapshot, "s"))
	w.mustBy(super, &logpb.SetQuota{Target: to("/full"), Names: -1, Space: w.usage("/full").Space + 1})
	good := w.block()
	change := func(fn func(op *logpb.KeepFile)) *logpb.KeepFile {
		op := keepOf("/d/f", blocks, good, 2000)
		fn(op)
		return op
	}
	for what, one := range map[string]struct {
		by   metadata.Caller
		op   *logpb.KeepFile
		want *metadata.Kind
	}{
		"another checksum":   {super, change(func(op *logpb.KeepFile) { op.Crc++ }), metadata.ErrInvalidArgument},
		"another length":     {super, change(func(op *logpb.KeepFile) { op.Body.Length++ }), metadata.ErrInvalidArgument},
		"no body":            {super, change(func(op *logpb.KeepFile) { op.Body = nil }), metadata.ErrInvalidArgument},
		"an id of nobody":    {super, change(func(op *logpb.KeepFile) { op.Body.Id++ }), metadata.ErrInvalidArgument},
		"an id of the file":  {super, change(func(op *logpb.KeepFile) { op.Body.Id = int64(blocks[0].ID) }), metadata.ErrInvalidArgument},
		"a later generation": {super, change(func(op *logpb.KeepFile) { op.Body.Generation++ }), metadata.ErrInvalidArgument},
		"other blocks":       {super, change(func(op *logpb.KeepFile) { op.Blocks++ }), metadata.ErrIO},
		"fewer bytes":        {super, keepOf("/d/f", blocks, good, 1999), metadata.ErrIO},
		"more bytes":         {super, keepOf("/d/f", blocks, good, 2001), metadata.ErrIO},
		"more than a block":  {super, keepOf("/d/long", long, good, 4010), metadata.ErrUnsupported},
		"no right":           {bob, keepOf("/d/f", blocks, good, 2000), metadata.ErrPermission},
		"no file":            {super, keepOf("/d/none", blocks, good, 2000), metadata.ErrNotExist},
		"a directory":        {super, keepOf("/d", blocks, good, 2000), metadata.ErrNotExist},
		"an open file":       {super, keepOf("/d/open", nil, good, 5), metadata.ErrBeingCreated},
		"a small file":       {super, keepOf("/d/small", w.blocks("/d/small"), good, 20), metadata.ErrUnsupported},
		"an empty file":      {super, keepOf("/d/empty", nil, good, 0), metadata.ErrUnsupported},
		"a coded file":       {super, keepOf("/d/coded", nil, good, 0), metadata.ErrUnsupported},
		"where it is off":    {super, keepOf("/off/f", off, good, 2000), metadata.ErrUnsupported},
		"no room":            {super, keepOf("/full/f", full, good, 2000), metadata.ErrSpaceQuota},
	} {
		counts := w.ns.Counts()
		if r := w.do(one.by, one.op); metadata.KindOf(r.Err) != one.want || r.Err == nil {
			t.Errorf("%s: %v", what, r.Err)
		}
		if after := w.ns.Counts(); after != counts {
			t.Errorf("%s: %+v, before %+v", what, after, counts)
		}
	}
	if got := w.blocks("/d/f"); !slices.Equal(got, blocks) {
		t.Errorf("%v, before %v", got, blocks)
	}
	w.check()
}

// What is appended to a small file, or concatenated, goes behind its body.
func TestSmallFilesGrow(t *testing.T) {
	var removed []metadata.Block
	w := newWorld(t, Config{OnEffects: func(e Effects) { removed = append(removed, e.Removed...) }})
	w.mustBy(super, storeOf("/small", "c", w.block(), 3000))
	body := w.infoOf("/small").Blocks[0]
	id := w.mustBy(super, &logpb.Append{Target: to("/small"), ClientName: "w"}).Status.ID
	w.mustBy(super, &logpb.Complete{Inode: uint64(id), ClientName: "w"}) // nothing was written
	w.mustBy(super, &logpb.Append{Target: to("/small"), ClientName: "w"})
	b := w.block()
	for range 2 { // the answer to the first was lost
		if r := w.do(super, &logpb.AddBlock{Inode: uint64(id), ClientName: "w", Block: b}); r.Err != nil || r.Block.ID != metadata.BlockID(b.Id) || r.Offset != 3000 {
			t.Fatal(r.Block, r.Offset, r.Err)
		}
	}
	w.mustBy(super, &logpb.Complete{Inode: uint64(id), ClientName: "w", Last: &logpb.Block{Id: b.Id, Generation: b.Generation, Length: 9}})
	w.closedFile("/more")
	w.mustBy(super, &logpb.Concat{Target: to("/small"), Sources: []*logpb.Target{to("/more")}})
	f := w.infoOf("/small")
	if len(f.Blocks) != 3 || !f.IsBody(0) || f.Blocks[0] != body || f.Status.Length != 3018 {
		t.Fatalf("%+v", f)
	}
	for range 2 {
		checkBodies(t, w.ns, "/")
		w.check()
		w.reopen()
	}
	w.mustBy(super, &logpb.Truncate{Target: to("/small"), Length: 3000, ClientName: "w", RecoveryId: w.block().Generation})
	w.mustBy(super, cutOf("/small", body, w.block(), 1))
	w.mustBy(super, &logpb.Truncate{Target: to("/small"), Length: 0, ClientName: "w", RecoveryId: w.block().Generation})
	if f := w.infoOf("/small"); len(f.Bodies) != 0 || len(f.Blocks) != 0 {
		t.Fatalf("%+v", f)
	}
	if slices.ContainsFunc(removed, func(b metadata.Block) bool { return b.ID == body.ID }) || len(removed) != 2 {
		t.Errorf("datanodes were told to remove %v", removed)
	}
	w.check()
}

// Concat moves bodies as it moves blocks: wherever they are in a file they are read, cut, kept by snapshots, counted and sent to other members.
func TestSmallFilesAreConcatenated(t *testing.T) {
	var removed []metadata.Block
	bodies := newMemBodies()
	w := newWorld(t, Config{Bodies: bodies, OnEffects: func(e Effects) { removed = append(removed, e.Removed...) }})
	w.mustBy(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.mustBy(super, &logpb.SetQuota{Target: to("/d"), Names: 20, Space: 1000 * mib})
	w.mustBy(super, &logpb.ChangeSnapshots{Target: to("/d"), Change: logpb.ChangeSnapshots_ALLOW})
	sums := func(files int64, bodies, length uint64, path string) {
		t.Helper()
		for range 2 {
			checkBodies(t, w.ns, "/d")
			w.check()
			w.reopen()
		}
		if n, _ := w.ns.Bodies(); n != bodies || w.ns.Counts().Files != files {
			t.Fatalf("%d files, %d bodies", w.ns.Counts().Files, n)
		}
		if f := w.infoOf(path); f.Status.Length != int64(length) {
			t.Fatalf("%s: %+v", path, f)
		}
	}
	concat := func(target string, sources ...string) {
		t.Helper()
		op := &logpb.Concat{Target: to("/d/" + target)}
		for _, s := range sources {
			op.Sources = append(op.Sources, to("/d/"+s))
		}
		w.mustBy(super, op)
	}
	few, many := w.block(), w.block()
	w.mustBy(super, storeOf("/d/few", "c", few, 10))
	w.mustBy(super, storeOf("/d/many", "c", many, 5000))
	w.closedFile("/d/blocks")
	length := uint64(w.infoOf("/d/blocks").Status.Length)
	concat("blocks", "few", "many") // bodies behind a block
	sums(1, 2, length+5010, "/d/blocks")
	w.mustBy(super, storeOf("/d/first", "c", w.block(), 700))
	concat("first", "blocks") // and behind a body
	sums(1, 3, length+5710, "/d/first")
	w.mustBy(super, storeOf("/d/empty", "c", &logpb.Block{}, 0))
	concat("empty", "first") // and at the beginning
	sums(1, 3, length+5710, "/d/empty")
	if f := w.infoOf("/d/empty"); !slices.Equal(f.Bodies, []int{0, 2, 3}) {
		t.Fatal(f.Bodies)
	}
	if r, err := w.ns.FindBody(metadata.BlockID(few.Id), 0); err != nil || r == nil || r.Data != nil {
		t.Fatal("few bytes that came from a source are in the record of the target", r, err)
	}
	if id, ok := w.ns.BlockOwner(metadata.BlockID(many.Id)); ok {
		t.Fatal("datanodes are told of a body", id)
	}

	// Behind a body a block begins, whether the answer comes or not.
	id := w.mustBy(super, &logpb.Append{Target: to("/d/empty"), ClientName: "w"}).Status.ID
	b := w.block()
	for range 2 {
		if r := w.do(super, &logpb.AddBlock{Inode: uint64(id), ClientName: "w", Block: b}); r.Err != nil || r.Block.ID != metadata.BlockID(b.Id) {
			t.Fatal(r.Block, r.Err)
		}
	}
	if blocks, state := w.ns.LastBlocks(id, "w"); len(blocks) != 1 || blocks[0].ID != metadata.BlockID(b.Id) || state != UnderConstruction {
		t.Fatal("the last blocks that datanodes have", blocks, state)
	}
	w.mustBy(super, &logpb.Complete{Inode: uint64(id), ClientName: "w", Last: &logpb.Block{Id: b.Id, Generation: b.Generation, Length: 9}})
	sums(1, 3, length+5719, "/d/empty")

	// Hadoop's clients go on in a block of their own.
	if r := w.mustBy(super, &logpb.Append{Target: to("/d/empty"), ClientName: "w", Tails: true}); r.Block == nil || r.Block.ID != metadata.BlockID(b.Id) {
		t.Fatal("who can append anywhere gets", r.Block)
	}
	w.mustBy(super, &logpb.Complete{Inode: uint64(id), ClientName: "w", Last: &logpb.Block{Id: b.Id, Generation: b.Generation, Length: 9}})
	if r := w.mustBy(super, &logpb.Append{Target: to("/d/empty"), ClientName: "w"}); r.Block != nil {
		t.Fatal("a client that appends at a multiple of the block size gets", r.Block)
	}
	b = w.block()
	for range 2 {
		if r := w.do(super, &logpb.AddBlock{Inode: uint64(id), ClientName: "w", Block: b}); r.Err != nil || r.Block.ID != metadata.BlockID(b.Id) {
			t.Fatal(r.Block, r.Err)
		}
	}
	w.mustBy(super, &logpb.Complete{Inode: uint64(id), ClientName: "w", Last: &logpb.Block{Id: b.Id, Generation: b.Generation, Length: 1}})
	w.mustBy(super, &logpb.Truncate{Target: to("/d/empty"), ClientName: "w", Length: int64(length) + 5719, RecoveryId: w.block().Generation})
	sums(1, 3, length+5719, "/d/empty")

	// A snapshot keeps what is cut off.
	w.mustBy(super, &logpb.ChangeSnapshots{Target: to("/d"), Change: logpb.ChangeSnapshots_CREATE, Name: "s"})
	if r := w.do(super, &logpb.Truncate{Target: to("/d/empty"), Length: int64(length) + 711, ClientName: "c1", RecoveryId: w.block().Generation}); metadata.KindOf(r.Err) != metadata.ErrRetriable {
		t.Fatal("a cut inside of a body without what stays:", r.Err)
	}
	w.mustBy(super, w.cutting("/d/empty", int64(length)+711, w.block())) // a byte of many
	sums(1, 4, length+711, "/d/empty")
	w.mustBy(super, w.cutting("/d/empty", int64(length)+701, w.block())) // a byte of few
	sums(1, 4, length+701, "/d/empty")
	checkBodies(t, w.ns, "/d/.snapshot/s")
	if err := bodies.compact(w.ns); err != nil {
		t.Log(err)
	}

	// Another member gets them with the state.
	var copied bytes.Buffer
	takeSnapshot(t, w.ns, &copied)
	other := fresh(t, mem.New(), 0)
	other.cfg.Bodies = newMemBodies()
	if err := other.Restore(&copied); err != nil {
		t.Fatal(err)
	}
	checkBodies(t, other, "/d")
	checkBodies(t, other, "/d/.snapshot/s")
	checkSound(t, other)

	if len(removed) > 0 && slices.ContainsFunc(removed, func(b metadata.Block) bool {
		return b.ID == metadata.BlockID(few.Id) || b.ID == metadata.BlockID(many.Id)
	}) {
		t.Errorf("datanodes were told to remove %v", removed)
	}
	w.mustBy(super, &logpb.Delete{Target: to("/d/empty")})
	w.mustBy(super, &logpb.ChangeSnapshots{Target: to("/d"), Change: logpb.ChangeSnapshots_DELETE, Name: "s"})
	w.mustBy(super, &logpb.Reclaim{Limit: 100})
	if n, size := w.ns.Bodies(); n != 0 || size != 0 {
		t.Errorf("%d bodies of %d bytes are left", n, size)
	}
	w.check()
}

// Nothing of a body is synced but before a checkpoint's marker. After a power cut the log brings back what was not, and who compacts meanwhile takes nothing
// that somebody may need.
func TestBodiesSurvivePowerCuts(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 40 {
		store, bodies := mem.New(), newMemBodies()
		w := newWorld(t, Config{Store: store, Bodies: bodies, Memory: 1})
		for range 4 {
			scribble(w, r, 40)
			if r.IntN(3) == 0 {
				w.mustBy(super, &logpb.SetPermission{Target: to("/"), Mode: 0o755})
				bodies.err = io.ErrShortWrite
				s, err := w.ns.Freeze()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.WriteTo(io.Discard); !errors.Is(err, io.ErrShortWrite) {
					t.Fatalf("a checkpoint whose bodies are not durable: %v", err)
				}
				s.Release()
				bodies.err = nil
			}
			if r.IntN(2) == 0 {
				w.snapshot()
				if err := bodies.compact(w.ns); err != nil {
					t.Fatal(err)
				}
			}
		}
		left := bodies.crash(r)
		ns := fresh(t, store.Crash(r), 1)
		ns.cfg.Bodies = left
		w.catchUp(t, "power cut", ns)
		checkBodies(t, ns, "/")
	}
}

// The same with the real stores, and a member that pulls the version.
func TestBodiesOnDisk(t *testing.T) {
	open := func(dir string) (*Namespace, func()) {
		store, err := badger.Open(dir+"/checkpoint", badger.Options{Apart: Apart})
		if err != nil {
			t.Fatal(err)
		}
		var ns *Namespace
		bodies, err := smallfile.Open(smallfile.Config{Dir: dir, Live: func(ids []metadata.BlockID) ([]bool, error) { return ns.LiveBodies(ids) }, SegmentBytes: 16 << 10})
		if err != nil {
			t.Fatal(err)
		}
		ns, err = Open(Config{Store: store, Bodies: bodies, Owner: "hops", Supergroup: "supergroup", OnMistake: mistake(t)})
		if err != nil {
			t.Fatal(err)
		}
		return ns, func() { bodies.Close(); store.Close() }
	}
	one, two := t.TempDir(), t.TempDir()
	w := newWorld(t, Config{})
	var closing func()
	w.ns, closing = open(one)
	w.mustBy(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.mustBy(super, &logpb.ChangeSnapshots{Target: to("/d"), Change: logpb.ChangeSnapshots_ALLOW})
	for i := range 40 {
		w.mustBy(super, storeOf(fmt.Sprintf("/d/%d", i), "c", w.block(), int64(1+i*1500)))
	}
	w.mustBy(super, &logpb.ChangeSnapshots{Target: to("/d"), Change: logpb.ChangeSnapshots_CREATE, Name: "s"})
	for i := range 40 {
		if i%2 == 0 {
			w.mustBy(super, &logpb.Delete{Target: to(fmt.Sprintf("/d/%d", i))})
		}
	}
	w.mustBy(super, storeOf("/gone", "c", w.block(), 60000))
	w.mustBy(super, &logpb.Delete{Target: to("/gone")})
	ref := w.checkpoint()
	w.ns.Retain([]uint64{ref.Index})
	bodies := w.ns.cfg.Bodies.(*smallfile.Store)
	if _, err := bodies.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	read := func(ns *Namespace) {
		t.Helper()
		checkBodies(t, ns, "/d")
		checkBodies(t, ns, "/d/.snapshot/s")
		checkSound(t, ns)
	}
	read(w.ns)
	other, closeOther := open(two)
	in, err := other.Receive(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := pull(w.ns, ref, in); err != nil {
		t.Fatal(err)
	}
	if err := in.Commit(); err != nil || other.BodyGaps() != 0 {
		t.Fatal(err)
	}
	read(other)
	var copied bytes.Buffer
	takeSnapshot(t, other, &copied)
	closing()
	closeOther()
	for _, dir := range []string{one, two} {
		ns, closing := open(dir)
		if ns.AppliedIndex() == 0 {
			t.Fatal("it starts from nothing")
		}
		read(ns)
		closing()
	}
	census, err := InspectCopy(bytes.NewReader(copied.Bytes()))
	if err != nil || census.Version != bodiesVersion || census.Bodies != 40 || census.BodiesMissing != 0 {
		t.Fatalf("%+v %v", census, err)
	}
	third, closeThird := open(t.TempDir())
	defer closeThird()
	if err := third.Restore(&copied); err != nil {
		t.Fatal(err)
	}
	read(third)
}

// A small file beside the same file with a block, in Apply: 4 KiB, entries of 64 commands, all that came with each.
func BenchmarkStore(b *testing.B) {
	const size = 4096
	run := func(b *testing.B, perFile int, commands func(ns *Namespace, i int, block *logpb.Block) []*logpb.Command) {
		ns := benchNamespace(b)
		ns.cfg.Bodies = newMemBodies()
		ids := ns.Apply(2, [][]byte{encode(b, command(super, &logpb.ReserveIDs{Blocks: int64(b.N), Generations: uint64(b.N)}))})[0].(*Result).Reserved
		next := uint64(ns.meta.nextINode)
		entries := make([][][]byte, perFile*(b.N/benchBatch+1))
		for i := range b.N {
			block := &logpb.Block{Id: int64(ids.FirstBlock) + int64(i), Generation: uint64(ids.FirstGeneration) + uint64(i)}
			for k, cmd := range commands(ns, int(next)+i, block) {
				at := perFile*(i/benchBatch) + k
				entries[at] = append(entries[at], encode(b, numbered(cmd, "0123456789abcdef", int32(perFile*i+k))))
			}
		}
		b.ResetTimer()
		defer cpu(b)()
		for _, e := range entries {
			if len(e) == 0 {
				continue
			}
			for _, r := range ns.Apply(ns.AppliedIndex()+1, e) {
				if r := r.(*Result); r.Err != nil {
					b.Fatal(r.Err)
				}
			}
		}
	}
	path := func(i int) string { return fmt.Sprintf("/a/b/c/f%d", i) }
	b.Run("store", func(b *testing.B) {
		run(b, 1, func(_ *Namespace, i int, block *logpb.Block) []*logpb.Command {
			return []*logpb.Command{command(bob, storeOf(path(i), "c", block, size))}
		})
	})
	b.Run("create, addBlock, complete", func(b *testing.B) {
		run(b, 3, func(_ *Namespace, i int, block *logpb.Block) []*logpb.Command {
			last := &logpb.Block{Id: block.Id, Generation: block.Generation, Length: size}
			return []*logpb.Command{
				command(bob, create(path(i), "c")),
				command(bob, &logpb.AddBlock{Inode: uint64(i), ClientName: "c", Block: block}),
				command(bob, &logpb.Complete{Inode: uint64(i), ClientName: "c", Last: last}),
			}
		})
	})
}
