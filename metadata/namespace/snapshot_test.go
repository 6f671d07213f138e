package namespace

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/raftstore"
)

func snapshotChange(path string, change logpb.ChangeSnapshots_Change, names ...string) *logpb.ChangeSnapshots {
	op := &logpb.ChangeSnapshots{Target: to(path), Change: change}
	if len(names) > 0 {
		op.Name = names[0]
	}
	if len(names) > 1 {
		op.NewName = names[1]
	}
	return op
}

const (
	allowSnapshots    = logpb.ChangeSnapshots_ALLOW
	disallowSnapshots = logpb.ChangeSnapshots_DISALLOW
	createSnapshot    = logpb.ChangeSnapshots_CREATE
	deleteSnapshot    = logpb.ChangeSnapshots_DELETE
	renameSnapshot    = logpb.ChangeSnapshots_RENAME
)

// file writes a closed file with blocks of the lengths, and returns its blocks.
func (w *world) file(path string, lengths ...int64) []metadata.BlockID {
	w.t.Helper()
	r := w.do(super, create(path, "writer"))
	if r.Err != nil {
		w.t.Fatal(r.Err)
	}
	return w.write(r.Status.ID, lengths...)
}

// write adds blocks to an open file and closes it.
func (w *world) write(id metadata.INodeID, lengths ...int64) (ids []metadata.BlockID) {
	w.t.Helper()
	var last *logpb.Block
	for _, length := range lengths {
		v := w.do(super, &logpb.ReserveIDs{Blocks: 1, Generations: 1}).Reserved
		b := &logpb.Block{Id: int64(v.FirstBlock), Generation: uint64(v.FirstGeneration)}
		if r := w.do(super, &logpb.AddBlock{Inode: uint64(id), ClientName: "writer", Previous: last, Block: b}); r.Err != nil {
			w.t.Fatal(r.Err)
		}
		b.Length = length
		last = b
		ids = append(ids, v.FirstBlock)
	}
	if r := w.do(super, &logpb.Complete{Inode: uint64(id), ClientName: "writer", Last: last}); r.Err != nil || !r.OK {
		w.t.Fatal(r.Err, r.OK)
	}
	return ids
}

func TestSnapshotRefusalsAreHDFSs(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, &logpb.Mkdirs{Target: to("/d/e"), Mode: 0o777, CreateParent: true})
	w.do(super, &logpb.Mkdirs{Target: to("/other/e"), Mode: 0o777, CreateParent: true})
	w.file("/d/f", 10)
	w.file("/d/g", 10)
	for _, step := range []struct {
		who  metadata.Caller
		op   any
		kind *metadata.Kind
		want string
	}{
		{bob, snapshotChange("/d", allowSnapshots), metadata.ErrPermission, "Access denied for user bob. Superuser privilege is required for operation allowSnapshot"},
		{super, snapshotChange("/none", allowSnapshots), metadata.ErrNotExist, "Directory does not exist: /none"},
		{super, snapshotChange("/d/f", allowSnapshots), metadata.ErrNotDirectory, "`/d/f': Is not a directory"},
		{super, snapshotChange("/d", createSnapshot, "s"), metadata.ErrSnapshot, "Directory is not a snapshottable directory: /d"},
		{bob, snapshotChange("/d", createSnapshot, "s"), metadata.ErrPermission, "Permission denied. user=bob is not the owner of inode=/d"},
		{super, snapshotChange("/d", allowSnapshots), nil, ""},
		{super, snapshotChange("/d", allowSnapshots), nil, ""},
		{super, snapshotChange("/d/e", allowSnapshots), metadata.ErrSnapshot, "Nested snapshottable directories not allowed: path=/d/e, the ancestor /d is already a snapshottable directory."},
		{super, snapshotChange("/", allowSnapshots), metadata.ErrSnapshot, "Nested snapshottable directories not allowed: path=/, the subdirectory /d is already a snapshottable directory."},
		{super, snapshotChange("/other/e", allowSnapshots), nil, ""},
		{super, &logpb.Rename{Source: to("/other"), Target: to("/d/other")}, metadata.ErrSnapshot, "Unable to rename because /other has snapshottable descendant directories and /d is a descent of a snapshottable directory, and HDFS does not support nested snapshottable directory."},
		{super, snapshotChange("/d", createSnapshot, "a:b"), metadata.ErrInvalidPath, "Invalid path name Invalid snapshot name: a:b"},
		{super, snapshotChange("/d", createSnapshot, "a/b"), metadata.ErrInvalidPath, "Invalid path name Invalid snapshot name: a/b"},
		{super, snapshotChange("/d", createSnapshot, ".snapshot"), metadata.ErrInvalidPath, "Invalid path name Invalid snapshot name: .snapshot"},
		{super, snapshotChange("/d", createSnapshot, strings.Repeat("x", 256)), metadata.ErrNameTooLong, ""},
		{super, snapshotChange("/d", createSnapshot, "s1"), nil, ""},
		{super, snapshotChange("/d", createSnapshot, "s1"), metadata.ErrSnapshot, "Failed to add snapshot: there is already a snapshot with the same name \"s1\"."},
		{super, snapshotChange("/d", createSnapshot, "s2"), nil, ""},
		{super, snapshotChange("/d", renameSnapshot, "s1", "s2"), metadata.ErrSnapshot, "The snapshot s2 already exists for directory /d"},
		{super, snapshotChange("/d", renameSnapshot, "s9", "s3"), metadata.ErrSnapshot, "The snapshot s9 does not exist for directory /d"},
		{super, snapshotChange("/d", renameSnapshot, "s1", "a/b"), metadata.ErrInvalidArgument, "Snapshot name cannot contain \"/\""},
		{super, snapshotChange("/d", renameSnapshot, "s1", ".."), metadata.ErrInvalidPath, "Invalid path name Invalid snapshot name: .."},
		{super, snapshotChange("/d", renameSnapshot, "s9", ".."), metadata.ErrSnapshot, "The snapshot s9 does not exist for directory /d"},
		{super, snapshotChange("/d", deleteSnapshot, "s9"), metadata.ErrSnapshot, "Cannot delete snapshot s9 from path /d: the snapshot does not exist."},
		{super, snapshotChange("/d", disallowSnapshots), metadata.ErrSnapshot, "The directory /d has snapshot(s). Please redo the operation after removing all the snapshots."},
		{super, &logpb.Delete{Target: to("/d"), Recursive: true}, metadata.ErrSnapshot, "The directory /d cannot be deleted since /d is snapshottable and already has snapshots"},
		{super, &logpb.Rename{Source: to("/d"), Target: to("/x")}, metadata.ErrSnapshot, "The directory /d cannot be deleted since /d is snapshottable and already has snapshots"},
		{super, &logpb.Concat{Target: to("/d/f"), Sources: []*logpb.Target{to("/d/g")}}, metadata.ErrSnapshot, "Concat: the source file /d/g is in snapshot"},
		{super, &logpb.Truncate{Target: to("/d/f"), Length: 3, ClientName: "c", RecoveryId: 1002}, metadata.ErrRetriable, "A snapshot of /d/f was made meanwhile: try again"},
		{super, &logpb.Delete{Target: to("/d/.snapshot/s1/f")}, metadata.ErrSnapshotReadOnly, "Modification on a read-only snapshot is disallowed"},
		{super, create("/d/.snapshot/s1/new", "c"), metadata.ErrSnapshotReadOnly, "Modification on a read-only snapshot is disallowed"},
		{super, &logpb.Mkdirs{Target: to("/d/.snapshot/s9")}, metadata.ErrSnapshotReadOnly, ""},
		{super, &logpb.Mkdirs{Target: to("/d/e/.snapshot")}, metadata.ErrInvalidArgument, "\".snapshot\" is a reserved name."},
		{super, snapshotChange("/d/.snapshot/s1", createSnapshot, "s"), metadata.ErrSnapshotReadOnly, ""},
	} {
		r := w.do(step.who, step.op)
		if (r.Err == nil) != (step.kind == nil) || r.Err != nil && (metadata.KindOf(r.Err) != step.kind || step.want != "" && r.Err.Error() != step.want) {
			t.Errorf("%v: %v (%v), want %q (%v)", step.op, r.Err, metadata.KindOf(r.Err), step.want, step.kind)
		}
	}
	w.now = 1_795_365_000_123
	if r := w.do(super, snapshotChange("/d", createSnapshot)); r.Err != nil || r.Snapshot != "/d/.snapshot/s20261122-163000.123" {
		t.Errorf("a snapshot without a name is %s (%v)", r.Snapshot, r.Err)
	}
	st, err := w.ns.Stat(super, "/d/e/.snapshot")
	if st != nil || err != nil {
		t.Errorf(".snapshot of a directory without: %v, %v", st, err)
	}
	w.check()
}

func TestBlocksStayAsLongAsASnapshotHasThem(t *testing.T) {
	w := newWorld(t, Config{})
	removed := map[metadata.BlockID]bool{}
	w.ns.cfg.OnEffects = func(e Effects) {
		for _, b := range e.Removed {
			removed[b.ID] = true
		}
	}
	w.do(super, &logpb.Mkdirs{Target: to("/d/e"), Mode: 0o777, CreateParent: true})
	w.do(super, snapshotChange("/d", allowSnapshots))
	blocks := w.file("/d/e/f", 1<<20, 100)
	w.do(super, snapshotChange("/d", createSnapshot, "s1"))

	// An append leaves the block that the snapshot has alone, and begins a new one.
	r := w.do(super, &logpb.Append{Target: to("/d/e/f"), ClientName: "writer"})
	if r.Err != nil || r.Block != nil {
		t.Fatalf("append: %v, %v", r.Err, r.Block)
	}
	more := w.write(r.Status.ID, 50)
	w.do(super, snapshotChange("/d", createSnapshot, "s2"))
	length := func(path string, want int64) {
		t.Helper()
		f, err := w.ns.Blocks(super, path, 0, 1<<40)
		if err != nil || f.Length != want || f.UnderConstruction {
			t.Errorf("%s: %+v (%v), want %d bytes", path, f, err, want)
		}
	}
	length("/d/e/f", 1<<20+150)
	length("/d/.snapshot/s1/e/f", 1<<20+100)
	length("/d/.snapshot/s2/e/f", 1<<20+150)

	// What is deleted, or goes to the trash elsewhere and is deleted there, stays in the snapshots.
	w.do(super, &logpb.Mkdirs{Target: to("/trash"), Mode: 0o777})
	if r := w.do(super, &logpb.Rename{Source: to("/d/e"), Target: to("/trash/e")}); r.Err != nil {
		t.Fatal(r.Err)
	}
	w.do(super, &logpb.Truncate{Target: to("/trash/e/f"), Length: 1 << 20, ClientName: "c", RecoveryId: 1})
	w.do(super, &logpb.Delete{Target: to("/trash/e"), Recursive: true})
	w.reopen()
	w.ns.cfg.OnEffects = func(e Effects) {
		for _, b := range e.Removed {
			removed[b.ID] = true
		}
	}
	length("/d/.snapshot/s1/e/f", 1<<20+100)
	length("/d/.snapshot/s2/e/f", 1<<20+150)
	if len(removed) > 0 {
		t.Errorf("%v were removed", removed)
	}
	for _, id := range append(slices.Clone(blocks), more...) {
		if o, ok := w.ns.BlockOwner(id); !ok || o.Replication != 3 || o.UnderConstruction {
			t.Errorf("block %d is owned by %+v", id, o)
		}
	}
	sum, err := w.ns.ContentSummary(super, "/d")
	if err != nil || sum.Snapshot != (metadata.SnapshotSummary{Length: 1<<20 + 150, Files: 1, Directories: 1, SpaceConsumed: 3 * (1<<20 + 150)}) ||
		sum.Present().Files != 0 || sum.Present().Directories != 1 {
		t.Errorf("summary %+v (%v)", sum, err)
	}

	w.do(super, snapshotChange("/d", deleteSnapshot, "s2"))
	w.do(super, &logpb.Reclaim{Limit: 100})
	if len(removed) != 1 || !removed[more[0]] {
		t.Errorf("%v were removed, want %v", removed, more)
	}
	w.check()
	w.do(super, snapshotChange("/d", deleteSnapshot, "s1"))
	w.do(super, &logpb.Reclaim{Limit: 100})
	if len(removed) != 3 || w.ns.Counts().Blocks != 0 || w.ns.Counts().Snapshots != 0 {
		t.Errorf("%v were removed, %+v is left", removed, w.ns.Counts())
	}
	w.check()
}

func TestSnapshotDiffIsHDFSs(t *testing.T) {
	w := newWorld(t, Config{})
	for _, path := range []string{"/d/a/x", "/d/b", "/d/gone/sub", "/d/same"} {
		w.do(super, &logpb.Mkdirs{Target: to(path), Mode: 0o755, CreateParent: true})
	}
	w.do(super, snapshotChange("/d", allowSnapshots))
	w.file("/d/a/f", 10)
	w.file("/d/b/moved", 10)
	w.file("/d/b/replaced", 10)
	w.do(super, snapshotChange("/d", createSnapshot, "s1"))
	r := w.do(super, &logpb.Append{Target: to("/d/a/f"), ClientName: "writer"})
	w.write(r.Status.ID, 5)
	w.file("/d/a/new", 1)
	w.do(super, &logpb.Rename{Source: to("/d/b/moved"), Target: to("/d/a/x/here")})
	w.do(super, &logpb.Delete{Target: to("/d/b/replaced")})
	w.file("/d/b/replaced", 10)
	w.do(super, &logpb.Delete{Target: to("/d/gone"), Recursive: true})
	w.do(super, &logpb.SetPermission{Target: to("/d/same"), Mode: 0o700})
	w.do(super, &logpb.SetPermission{Target: to("/d/same"), Mode: 0o755})
	w.file("/d/a/passing", 1)
	w.do(super, &logpb.Delete{Target: to("/d/a/passing")})
	w.do(super, snapshotChange("/d", createSnapshot, "s2"))
	for _, c := range []struct{ from, to, want string }{
		{"s1", "s2", "M .; - gone; M a; + a/new; M b; + b/replaced; R b/moved a/x/here; - b/replaced; M a/f; M a/x"},
		{"s2", "s1", "M .; + gone; M a; - a/new; M b; - b/replaced; R a/x/here b/moved; + b/replaced; M a/f; M a/x"},
		{"s1", "", "M .; - gone; M a; + a/new; M b; + b/replaced; R b/moved a/x/here; - b/replaced; M a/f; M a/x"},
		{"s2", "", ""},
		{"", "", ""},
		{"s1", "s1", ""},
	} {
		entries, err := w.ns.SnapshotDiff(super, "/d", c.from, c.to)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, e := range entries {
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Type.Label(), max(e.Path, "."), e.Target)))
		}
		if got := strings.Join(lines, "; "); got != c.want {
			t.Errorf("from %q to %q:\n%s\nwant\n%s", c.from, c.to, got, c.want)
		}
	}
	if _, err := w.ns.SnapshotDiff(super, "/d", "s9", ""); err == nil || err.Error() != "Cannot find the snapshot of directory /d with name s9" {
		t.Error(err)
	}
	entries, err := w.ns.SnapshotDiff(super, "/d/a", "s1", "s2")
	if want := []metadata.DiffEntry{{Type: metadata.DiffModify}, {Path: "new"}, {Type: metadata.DiffModify, Path: "f"}, {Type: metadata.DiffModify, Path: "x"}, {Path: "x/here"}}; err != nil || !slices.Equal(entries, want) {
		t.Errorf("below /d: %+v (%v)", entries, err)
	}
	if _, err := w.ns.SnapshotDiff(bob, "/d", "s1", "s2"); err != nil {
		t.Errorf("bob may read all of it: %v", err)
	}
}

func TestWhatCameOutOfADirectoryThatHasGoneIsNew(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, &logpb.Mkdirs{Target: to("/d/b"), Mode: 0o755, CreateParent: true})
	w.do(super, snapshotChange("/d", allowSnapshots))
	w.file("/d/b/c", 10)
	w.do(super, snapshotChange("/d", createSnapshot, "s1"))
	w.do(super, &logpb.Rename{Source: to("/d/b"), Target: to("/elsewhere")})
	w.do(super, &logpb.Rename{Source: to("/elsewhere/c"), Target: to("/d/c")})
	for _, from := range []string{"s1", ""} {
		entries, err := w.ns.SnapshotDiff(super, "/d", from, map[string]string{"": "s1"}[from])
		if err != nil {
			t.Fatal(err)
		}
		came, went := metadata.DiffCreate, metadata.DiffDelete
		if from == "" {
			came, went = went, came
		}
		if want := []metadata.DiffEntry{{Type: metadata.DiffModify}, {Type: came, Path: "c"}, {Type: went, Path: "b"}}; !slices.Equal(entries, want) {
			t.Errorf("from %q: %+v, want %+v", from, entries, want)
		}
	}
	if err := w.ns.CheckAccess(super, "/d/.snapshot", metadata.Execute); metadata.KindOf(err) != metadata.ErrNotExist {
		t.Errorf("access to the list of snapshots: %v", err)
	}
	if err := w.ns.CheckAccess(super, "/d/.snapshot/s1", metadata.Execute); err != nil {
		t.Errorf("access to a snapshot: %v", err)
	}
}

func TestRepeatedCreateSnapshotMakesOne(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, snapshotChange("/", allowSnapshots))
	ask := func() *Result {
		cmd := command(super, snapshotChange("/", createSnapshot))
		cmd.ClientId, cmd.CallId = []byte("0123456789abcdef"), 7
		w.now += 1000
		return w.apply(cmd)
	}
	first := ask()
	w.reopen()
	if again := ask(); first.Err != nil || again.Err != nil || !again.Replayed || again.Snapshot != first.Snapshot || w.ns.Counts().Snapshots != 1 {
		t.Errorf("%+v, then %+v", first, again)
	}
	w.check()
}

// A large directory in a snapshot is listed by pages, in order and without a name twice, also when much of it went.
func TestLargeDirectoryOfASnapshot(t *testing.T) {
	w := newWorld(t, Config{Memory: 1 << 14})
	w.do(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.do(super, snapshotChange("/d", allowSnapshots))
	const n = 2500
	for i := range n {
		w.do(super, &logpb.Mkdirs{Target: to(fmt.Sprintf("/d/%05d", i)), Mode: 0o755})
	}
	w.do(super, snapshotChange("/d", createSnapshot, "s"))
	for i := 0; i < n; i += 3 {
		w.do(super, &logpb.Delete{Target: to(fmt.Sprintf("/d/%05d", i))})
		w.do(super, &logpb.Mkdirs{Target: to(fmt.Sprintf("/d/%05d-new", i)), Mode: 0o755})
	}
	w.reopen()
	seen, after := 0, ""
	for {
		l, err := w.ns.List(super, "/d/.snapshot/s", after, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range l.Entries {
			if e.Name != fmt.Sprintf("%05d", seen) {
				t.Fatalf("entry %d is %s", seen, e.Name)
			}
			seen++
			after = e.Name
		}
		if l.Remaining == 0 {
			break
		}
	}
	if seen != n {
		t.Errorf("%d of %d entries are listed", seen, n)
	}
	w.do(super, snapshotChange("/d", deleteSnapshot, "s"))
	for w.ns.Counts().DeletedSnapshots > 0 {
		w.do(super, &logpb.Reclaim{Limit: 1000})
	}
	w.check()
}

// Who may not list a directory, at one of the two states, learns nothing of what changed in it: in what order the records are looked at does not
// matter, and also not what is a page.
func TestSnapshotDiffKeepsSecrets(t *testing.T) {
	for what, change := range map[string]func(w *world){
		"an entry":                         func(w *world) { w.file("/d/secret/plan", 1) },
		"an entry that is gone":            func(w *world) { w.do(super, &logpb.Delete{Target: to("/d/secret/old")}) },
		"a file, and the directory":        func(w *world) { touchBoth(w, "/d/secret", "/d/secret/old") },
		"a directory below, and an entry":  func(w *world) { touchBoth(w, "/d/secret", "/d/secret/sub"); w.file("/d/secret/sub/plan", 1) },
		"what went away from there":        func(w *world) { w.do(super, &logpb.Rename{Source: to("/d/secret/old"), Target: to("/d/open/old")}) },
		"what came there":                  func(w *world) { w.do(super, &logpb.Rename{Source: to("/d/open/f"), Target: to("/d/secret/f")}) },
		"an entry of one that was secret":  func(w *world) { w.file("/d/secret/plan", 1); chmod(w, "/d/secret", 0o755) },
		"an entry of one that can be seen": func(w *world) { chmod(w, "/d/open", 0o711); w.file("/d/open/plan", 1) },
		"an entry of a hidden directory":   func(w *world) { chmod(w, "/d/secret/sub", 0o755); w.file("/d/secret/sub/plan", 1) },
		"a file in one that came somewhere": func(w *world) {
			w.do(super, &logpb.Rename{Source: to("/d/secret"), Target: to("/d/open/secret")})
			touchBoth(w, "/d/open/secret/old")
		},
	} {
		w := newWorld(t, Config{})
		for _, path := range []string{"/d/secret/sub", "/d/open"} {
			w.do(super, &logpb.Mkdirs{Target: to(path), Mode: 0o755, CreateParent: true})
		}
		w.file("/d/secret/old", 1)
		w.file("/d/open/f", 1)
		chmod(w, "/d/secret", 0o700)
		w.do(super, snapshotChange("/d", allowSnapshots))
		w.do(super, snapshotChange("/d", createSnapshot, "s1"))
		change(w)
		for _, way := range [][2]string{{"s1", ""}, {"", "s1"}} {
			entries, err := w.ns.SnapshotDiff(bob, "/d", way[0], way[1])
			if !errors.Is(err, metadata.ErrPermission) {
				t.Errorf("%s, from %q to %q: %+v (%v)", what, way[0], way[1], entries, err)
			}
			for after := ""; ; {
				page, err := w.ns.snapshotDiffPage(bob, "/d", way[0], way[1], after, 1, 1)
				if errors.Is(err, metadata.ErrPermission) {
					break
				}
				if err != nil || page.Next == "" {
					t.Errorf("%s, from %q to %q, by pages, the last one: %+v (%v)", what, way[0], way[1], page, err)
					break
				}
				after = page.Next
			}
		}
	}
}

func chmod(w *world, path string, mode uint32) {
	w.t.Helper()
	if r := w.do(super, &logpb.SetPermission{Target: to(path), Mode: mode}); r.Err != nil {
		w.t.Fatal(r.Err)
	}
}

// touchBoth changes the owner of files, which a comparison shows.
func touchBoth(w *world, paths ...string) {
	w.t.Helper()
	for _, path := range paths {
		if r := w.do(super, &logpb.SetOwner{Target: to(path), Owner: "root", Group: "other"}); r.Err != nil {
			w.t.Fatal(r.Err)
		}
	}
}

// heldSync is a store whose Sync waits.
type heldSync struct {
	kv.Store
	until <-chan struct{}
}

func (s heldSync) Sync() error {
	<-s.until
	return s.Store.Sync()
}

// Who reads a snapshot looks at nothing of what is in memory that a checkpoint changes beside; run with -race.
func TestSnapshotsAreReadBesideACheckpoint(t *testing.T) {
	w := newWorld(t, Config{Store: mem.New()})
	w.do(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.do(super, snapshotChange("/d", allowSnapshots))
	const files = 300 // -race does not notice each
	for i := range files {
		w.do(super, create(fmt.Sprint("/d/f", i), "c"))
	}
	w.do(super, snapshotChange("/d", createSnapshot, "s"))
	frozen, err := w.ns.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Release()
	read := make(chan struct{})
	w.ns.cfg.Store = heldSync{w.ns.cfg.Store, read}
	var both sync.WaitGroup
	both.Go(func() {
		if _, err := frozen.(raftstore.Checkpoint).Write(); err != nil {
			t.Error(err)
		}
	})
	both.Go(func() {
		defer close(read)
		if l, err := w.ns.List(super, "/d/.snapshot/s", "", 0); err != nil || l == nil || len(l.Entries) != files {
			t.Error(l, err)
		}
	})
	both.Wait()
}

// What a reader has of a snapshot stays as it is when what it was made of changes.
func TestWhatIsInASnapshotStays(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, &logpb.Mkdirs{Target: to("/d/e"), Mode: 0o750, CreateParent: true})
	mayRead := &logpb.SetACL{Target: to("/d/e"), Change: logpb.SetACL_MODIFY, Entries: []*logpb.ACLEntry{{Type: logpb.ACLEntry_USER, Name: "bob", Rights: 5}}}
	if r := w.do(super, mayRead); r.Err != nil {
		t.Fatal(r.Err)
	}
	w.file("/d/e/f", 10)
	w.do(super, snapshotChange("/d", allowSnapshots))
	w.do(super, snapshotChange("/d", createSnapshot, "s"))
	ghost := func(path string) (g *inode) {
		if err := w.ns.find(super, path, func(p *place, _ *caller) error {
			g = p.last()
			return nil
		}); err != nil || g == nil {
			t.Fatal(g, err)
		}
		return g
	}
	dir, file := ghost("/d/.snapshot/s/e"), ghost("/d/.snapshot/s/e/f")
	w.do(super, &logpb.SetACL{Target: to("/d/e"), Change: logpb.SetACL_REMOVE})
	was := file.file.blocks[0]
	generation := w.do(super, &logpb.ReserveIDs{Generations: 1}).Reserved.FirstGeneration
	if r := w.do(super, &logpb.Truncate{Target: to("/d/e/f"), ClientName: "writer", RecoveryId: uint64(generation)}); r.Err != nil || !r.OK {
		t.Fatal(r.Err, r.OK)
	}
	r := w.do(super, &logpb.Append{Target: to("/d/e/f"), ClientName: "writer"})
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	w.write(r.Status.ID, 12)
	who := callerOf(bob)
	if !who.may(dir, metadata.Read|metadata.Execute) {
		t.Error("who could read the directory cannot read it in the snapshot")
	}
	if is := file.file.blocks[0]; is != was {
		t.Errorf("the block of the file in the snapshot is %v, and was %v", is, was)
	}
}

// A block that only snapshots have leads to its file in the oldest of them that stays.
func TestBlocksOfSnapshotsHavePaths(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/s/d"), Mode: 0o755, CreateParent: true})
	gone := w.file("/s/d/gone", 10)[0]
	moved := w.file("/s/d/moved", 20)[0]
	w.must(snapshotChange("/s", allowSnapshots))
	w.must(snapshotChange("/s", createSnapshot, "first"))
	w.must(&logpb.Rename{Source: to("/s/d"), Target: to("/s/e")})
	w.must(snapshotChange("/s", createSnapshot, "second"))
	w.must(&logpb.Delete{Target: to("/s/e/gone")})
	w.must(&logpb.Rename{Source: to("/s/e/moved"), Target: to("/out")})
	path := func(id metadata.BlockID, want string) {
		t.Helper()
		for _, stage := range []string{"in memory", "restarted"} {
			if got, ok := w.ns.FileOfBlock(id); got != want || ok != (want != "") {
				t.Errorf("%s: %q, want %q", stage, got, want)
			}
			w.reopen()
		}
	}
	path(moved, "/out")
	path(gone, "/s/.snapshot/second/e/gone")
	w.must(&logpb.Delete{Target: to("/out")})
	path(moved, "/s/.snapshot/second/e/moved")
	w.must(snapshotChange("/s", renameSnapshot, "second", "other"))
	path(moved, "/s/.snapshot/other/e/moved")
	w.must(snapshotChange("/s", deleteSnapshot, "other"))
	w.must(&logpb.Reclaim{Limit: 100})
	path(gone, "/s/.snapshot/first/d/gone")
	w.must(snapshotChange("/s", deleteSnapshot, "first"))
	w.must(&logpb.Reclaim{Limit: 100})
	path(gone, "")
}
