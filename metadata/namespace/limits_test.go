package namespace

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

func TestLimits(t *testing.T) {
	long := strings.Repeat("n", metadata.MaxNameLength)
	deep := strings.Repeat("/d", metadata.MaxPathDepth)
	// A path of exactly MaxPathLength bytes.
	wide := strings.Repeat("/"+strings.Repeat("w", 99), metadata.MaxPathLength/100)
	mkdirs := func(path string) any {
		return &logpb.Mkdirs{Target: &logpb.Target{Path: path[1:]}, Mode: 0o755, CreateParent: true}
	}
	rename := func(dst string) any {
		return &logpb.Rename{Source: to("/src"), Target: &logpb.Target{Path: dst[1:]}}
	}
	for _, test := range []struct {
		name string
		op   any
		want *metadata.Kind
	}{
		{"name at the limit", mkdirs("/" + long), nil},
		{"name over it", mkdirs("/" + long + "n"), metadata.ErrNameTooLong},
		{"name over it, of a file", create("/"+long+"n", "c"), metadata.ErrNameTooLong},
		{"name over it, above what is made", mkdirs("/new/" + long + "n/x"), metadata.ErrNameTooLong},
		{"name over it, of a destination", rename("/" + long + "n"), metadata.ErrNameTooLong},
		{"depth at the limit", mkdirs(deep), nil},
		{"depth over it", mkdirs(deep + "/d"), metadata.ErrIO},
		{"length at the limit", mkdirs(wide), nil},
		{"length over it", mkdirs(wide + "/" + strings.Repeat("w", 99)), metadata.ErrIO},
		{"NUL", mkdirs("/a\x00b"), metadata.ErrInvalidPath},
		{"not UTF-8", mkdirs("/a\xff"), metadata.ErrInvalidPath},
		{"not UTF-8, with a colon", mkdirs("/é:"), metadata.ErrInvalidPath},
		{"unicode", mkdirs("/\u00e9/e\u0301/\u202e/\U0001f600"), nil},
		{"client name", &logpb.Create{Target: to("/f"), Create: true, Replication: 1, BlockSize: 1 << 20, ClientName: long + "n"}, metadata.ErrInvalidArgument},
		{"no client name", &logpb.Create{Target: to("/f"), Create: true, Replication: 1, BlockSize: 1 << 20}, metadata.ErrInvalidArgument},
		{"block size", &logpb.Create{Target: to("/f"), Create: true, Replication: 1, BlockSize: 1 << 62, ClientName: "c"}, metadata.ErrInvalidArgument},
		{"negative block size", &logpb.Create{Target: to("/f"), Create: true, Replication: 1, BlockSize: -1, ClientName: "c"}, metadata.ErrIO},
		{"block size by the command", &logpb.Create{Target: to("/f"), Create: true, Replication: 1, BlockSize: 1024, ClientName: "c", MinBlockSize: 1024}, nil},
		{"owner", &logpb.SetOwner{Target: to("/src"), Owner: long + "n"}, metadata.ErrInvalidArgument},
		{"owner with NUL", &logpb.SetOwner{Target: to("/src"), Owner: "bob\x00root"}, metadata.ErrInvalidArgument},
		{"group with the end of a line", &logpb.SetOwner{Target: to("/src"), Group: "staff\nroot"}, metadata.ErrInvalidArgument},
		{"owner not UTF-8", &logpb.SetOwner{Target: to("/src"), Owner: "b\xff"}, metadata.ErrInvalidArgument},
		{"owner in letters of other languages", &logpb.SetOwner{Target: to("/src"), Owner: "\u00e9milie"}, nil},
		{"name in an ACL", &logpb.SetACL{Target: to("/src"), Change: logpb.SetACL_MODIFY, Entries: []*logpb.ACLEntry{{Type: logpb.ACLEntry_USER, Name: "bob\n", Rights: 7}}}, metadata.ErrInvalidArgument},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Config{})
			w.do(super, &logpb.Mkdirs{Target: to("/src"), Mode: 0o755})
			before := w.ns.Counts()
			r := w.do(super, test.op)
			if test.want == nil && r.Err != nil || test.want != nil && !errors.Is(r.Err, test.want) {
				t.Fatalf("got %v, want %v", r.Err, test.want)
			}
			if test.want != nil && w.ns.Counts() != before {
				t.Errorf("something was made: %+v, before %+v", w.ns.Counts(), before)
			}
			w.check()
		})
	}
}

// What is too long to be made may be there by a rename of what is above it: reads and changes look, and find nothing.
// HDFS makes missing directories one after the other: a quota that the first of them exceeds is met before a later name
// that is too long.
func TestQuotaBeforeALongNameBelow(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, &logpb.Mkdirs{Target: to("/q"), Mode: 0o755})
	if r := w.do(super, &logpb.SetQuota{Target: to("/q"), Names: 2, Space: metadata.QuotaKeep}); r.Err != nil {
		t.Fatal(r.Err)
	}
	long := strings.Repeat("n", metadata.MaxNameLength+1)
	for _, test := range []struct {
		path string
		want *metadata.Kind
	}{
		{"/q/" + long, metadata.ErrNameTooLong},
		{"/q/a/" + long, metadata.ErrNameTooLong},
		{"/q/a/b/" + long, metadata.ErrNamespaceQuota},
	} {
		for _, op := range []any{&logpb.Mkdirs{Target: to(test.path), Mode: 0o755, CreateParent: true}, create(test.path, "c")} {
			if r := w.do(super, op); !errors.Is(r.Err, test.want) {
				t.Errorf("%T of %.10s: %v, want %v", op, test.path, r.Err, test.want)
			}
		}
	}
	w.check()
}

func TestLongPathsMayBeAskedFor(t *testing.T) {
	w := newWorld(t, Config{})
	for _, path := range []string{
		"/" + strings.Repeat("x", metadata.MaxPathLength), strings.Repeat("/d", metadata.MaxPathDepth+1), "/" + strings.Repeat("x", 300),
	} {
		if st, err := w.ns.Stat(bob, path); st != nil || err != nil {
			t.Errorf("path of %d bytes: %v, %v", len(path), st, err)
		}
		if r := w.do(super, &logpb.Delete{Target: to(path)}); r.Err != nil || r.OK {
			t.Errorf("delete of %d bytes: %v, %v", len(path), r.OK, r.Err)
		}
	}
	if _, err := TargetOf("/" + strings.Repeat("x", longestPath)); !errors.Is(err, metadata.ErrInvalidPath) {
		t.Errorf("a path without end: %v", err)
	}
}

// A directory moved down takes what is below it beyond the limits, where it can still be reached.
func TestTreeMovedBeyondTheLimitsCanBeReached(t *testing.T) {
	w := newWorld(t, Config{})
	deep := strings.Repeat("/d", metadata.MaxPathDepth-1)
	w.do(super, &logpb.Mkdirs{Target: to("/src" + deep), Mode: 0o755, CreateParent: true})
	w.do(super, &logpb.Mkdirs{Target: to("/dst" + deep[2:]), Mode: 0o755, CreateParent: true})
	moved := "/dst" + deep[2:] + "/src"
	if r := w.do(super, &logpb.Rename{Source: to("/src"), Target: to(moved)}); r.Err != nil {
		t.Fatal(r.Err)
	}
	if st, err := w.ns.Stat(bob, moved+deep); err != nil || st == nil {
		t.Errorf("%v, %v", st, err)
	}
	w.check()
}

func TestFullDirectoryTakesNoMore(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, &logpb.Mkdirs{Target: to("/full/sub"), Mode: 0o755, CreateParent: true})
	w.do(super, &logpb.Mkdirs{Target: to("/src"), Mode: 0o755})
	id, err := w.ns.Resolve(super, "/full")
	if err != nil {
		t.Fatal(err)
	}
	w.ns.inodes[id].dir.entries = metadata.MaxDirectory
	for name, op := range map[string]any{
		"mkdirs": &logpb.Mkdirs{Target: to("/full/y"), Mode: 0o755},
		"create": create("/full/y", "c"),
		"rename": &logpb.Rename{Source: to("/src"), Target: to("/full/y")},
	} {
		if r := w.do(super, op); !errors.Is(r.Err, metadata.ErrDirectoryFull) {
			t.Errorf("%s: %v", name, r.Err)
		}
	}
	if r := w.do(super, &logpb.Rename{Source: to("/full/sub"), Target: to("/full/y")}); r.Err != nil {
		t.Errorf("within the directory: %v", r.Err)
	}
}

func TestFileOfTooManyBlocks(t *testing.T) {
	w := newWorld(t, Config{})
	v := w.do(super, &logpb.ReserveIDs{Blocks: MaxBlocks + 1, Generations: MaxBlocks + 1}).Reserved
	id := uint64(w.do(super, create("/f", "c")).Status.ID)
	var previous *logpb.Block
	var entry [][]byte
	for i := range int64(MaxBlocks + 1) {
		next := &logpb.Block{Id: int64(v.FirstBlock) + i, Generation: uint64(v.FirstGeneration) + uint64(i)}
		data, err := command(super, &logpb.AddBlock{Inode: id, ClientName: "c", Previous: previous, Block: next}).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		entry = append(entry, data)
		next.Length = 1
		previous = next
	}
	for i, r := range w.entry(entry...) {
		err := r.(*Result).Err
		if i < MaxBlocks && err != nil || i == MaxBlocks && !errors.Is(err, metadata.ErrIO) {
			t.Fatalf("block %d: %v", i, err)
		}
	}
	w.reopen()
	w.check()
}

// A large directory is gone at once, and taken apart by and by.
func TestLargeDirectoryIsReclaimedInSteps(t *testing.T) {
	const files = 3000
	w := newWorld(t, Config{})
	w.do(super, &logpb.ReserveIDs{Blocks: files, Generations: files})
	var removed int
	w.cfg.OnEffects = func(e Effects) { removed += len(e.Removed) }
	w.open()
	w.replay(w.ns)
	for i := range files {
		id := uint64(w.do(super, create(fmt.Sprintf("/big/%d/%d", i%7, i), fmt.Sprintf("c%d", i))).Status.ID)
		b := &logpb.Block{Id: int64(metadata.FirstBlockID) + int64(i), Generation: uint64(metadata.FirstGeneration) + uint64(i)}
		w.do(super, &logpb.AddBlock{Inode: id, ClientName: fmt.Sprintf("c%d", i), Block: b})
	}
	w.reopen()
	if r := w.do(super, &logpb.Delete{Target: to("/big"), Recursive: true}); r.Err != nil || !r.OK {
		t.Fatal(r.Err)
	}
	if st, err := w.ns.Stat(super, "/big"); st != nil || err != nil {
		t.Fatal("it is still there")
	}
	if removed == 0 || removed > ReclaimDelete+ReclaimStep {
		t.Errorf("%d blocks were removed at once", removed)
	}
	// It cannot be reached, by path or by inode; its writers find it deleted; the name is free.
	leases := w.ns.Leases()
	inside := leases[0].Files[0]
	if _, ok := w.ns.FileByID(inside); ok {
		t.Error("a file inside is found")
	}
	r := w.do(super, &logpb.Complete{Inode: uint64(inside), ClientName: leases[0].Holder})
	if !errors.Is(r.Err, metadata.ErrNotExist) {
		t.Errorf("a writer inside: %v", r.Err)
	}
	if _, err := w.ns.Stat(super, fmt.Sprintf("/.reserved/.inodes/%d", inside)); !errors.Is(err, metadata.ErrNotExist) {
		t.Errorf("by inode: %v", err)
	}
	r = w.do(super, &logpb.StartRecovery{Inode: uint64(inside), Holder: leases[0].Holder, RecoveryId: 1})
	if r.Err != nil || !r.OK {
		t.Errorf("recovery: %v", r.Err)
	}
	w.check()
	for step := 0; w.ns.Counts().Reclaiming > 0; step++ {
		before := removed
		if step%3 == 0 {
			w.reopen()
		}
		switch step % 2 {
		case 0: // any command helps
			w.do(super, &logpb.Mkdirs{Target: to("/big"), Mode: 0o755})
		case 1:
			w.do(super, &logpb.Reclaim{Limit: 200})
		}
		if removed-before > 200+ReclaimStep {
			t.Fatalf("step %d removed %d blocks", step, removed-before)
		}
		if step > files {
			t.Fatal("it does not end")
		}
	}
	if c := w.ns.Counts(); removed != files || c.Files != 0 || c.Blocks != 0 || c.OpenFiles != 0 || c.Directories != 2 {
		t.Errorf("%d of %d blocks removed, left: %+v", removed, files, c)
	}
	w.check()
	again := fresh(t, w.cfg.Store, 0)
	w.catchUp(t, "restarted", again)
	warm := fresh(t, newWorld(t, Config{}).cfg.Store, 0)
	w.replay(warm)
	if warm.Hash() != w.ns.Hash() {
		t.Error("in one go the state is another")
	}
}

// Trees grow beyond any path that can be made by renames of what is above them. What lies at their end is found all the
// same, also when nothing on the way to it is in memory.
func TestTreesDeeperThanPathsAreLoaded(t *testing.T) {
	w := newWorld(t, Config{})
	must := func(op any) {
		t.Helper()
		if r := w.do(super, op); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	const deep = metadata.MaxPathDepth - 10
	bottom := func(top string) string { return top + strings.Repeat("/d", deep-1) }
	for _, top := range []string{"/a", "/b", "/c"} {
		must(&logpb.Mkdirs{Target: to(bottom(top)), Mode: 0o755, CreateParent: true})
	}
	r := w.do(super, create(bottom("/a")+"/f", "client"))
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	must(&logpb.Rename{Source: to("/a"), Target: to(bottom("/b") + "/a")})
	must(&logpb.Rename{Source: to("/b"), Target: to(bottom("/c") + "/b")})
	w.reopen()
	if info, ok := w.ns.FileByID(r.Status.ID); !ok || info.Status.ID != r.Status.ID {
		t.Errorf("a file %d levels down is not found by its id", 3*deep)
	}
	w.check()
}

// The greatest records that commands can make have to fit a checkpoint and a snapshot: otherwise whoever makes one stops
// every member. There is one of each class, and the two kinds of inodes.
func TestGreatestRecordsFitACheckpoint(t *testing.T) {
	w := newWorld(t, Config{})
	long := strings.Repeat("o", MaxName)
	must := func(op any) *Result {
		t.Helper()
		r := w.do(super, op)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		return r
	}
	owner := metadata.Caller{User: long, Superuser: true, Host: long}
	file, dir := "/"+strings.Repeat("f", metadata.MaxNameLength), "/"+strings.Repeat("d", metadata.MaxNameLength)
	op := create(file, strings.Repeat("c", MaxName))
	op.ClientNode, op.BlockSize, op.Replication = strings.Repeat("n", MaxName), maxLength, metadata.MaxReplication
	opened := w.do(owner, op)
	if opened.Err != nil {
		t.Fatal(opened.Err)
	}
	must(&logpb.Mkdirs{Target: to(dir), Mode: 0o1777})
	must(&logpb.SetQuota{Target: to(dir), Names: math.MaxInt64 - 1, Space: math.MaxInt64 - 1})
	for _, path := range []string{file, dir} {
		target := to(path)
		for i := range metadata.MaxXAttrs {
			name := fmt.Sprintf("%04d", i)
			must(&logpb.SetXAttr{Target: target, Create: true, Attribute: &logpb.XAttr{
				Namespace: logpb.XAttr_TRUSTED, Name: name, Value: make([]byte, metadata.MaxXAttrSize-len(name)),
			}})
		}
		if path == file { // does not count among those
			must(&logpb.SetXAttr{Target: target, Create: true, Attribute: &logpb.XAttr{Namespace: logpb.XAttr_SECURITY, Name: unreadableBySuperuser[len("security."):]}})
		}
		acl := &logpb.SetACL{Target: target, Change: logpb.SetACL_MODIFY}
		for i := range metadata.MaxACLEntries - 4 { // the others are those of the mode
			acl.Entries = append(acl.Entries, &logpb.ACLEntry{Name: fmt.Sprintf("%0*d", MaxName, i), Rights: 7})
			if path == dir {
				acl.Entries = append(acl.Entries, &logpb.ACLEntry{Default: true, Name: fmt.Sprintf("%0*d", MaxName, i), Rights: 7})
			}
		}
		must(acl)
		must(&logpb.SetOwner{Target: target, Owner: long, Group: long})
		must(&logpb.SetStoragePolicy{Target: target, Policy: 12})
		must(&logpb.SetTimes{Target: target, Mtime: math.MaxInt64, Atime: math.MaxInt64})
	}
	v := must(&logpb.ReserveIDs{Blocks: 1, Generations: 1, Owner: long, Group: long, ClusterId: long}).Reserved
	add := &logpb.AddBlock{Inode: uint64(opened.Status.ID), ClientName: op.ClientName, Block: &logpb.Block{Id: int64(v.FirstBlock), Generation: uint64(v.FirstGeneration)}}
	for i := range maxPipeline {
		add.Nodes = append(add.Nodes, fmt.Sprintf("%0*d", MaxName, i))
	}
	if r := w.do(owner, add); r.Err != nil {
		t.Fatal(r.Err)
	}
	groups := make([]string, surveyGroups)
	for i := range groups {
		groups[i] = fmt.Sprintf("%0*d", MaxName, i)
	}
	for range maxSurveys {
		if r := w.do(metadata.Caller{User: long, Groups: groups, Superuser: true}, &logpb.SurveyTree{Target: to(dir)}); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	seeds := func(n int) (out [][]byte) {
		for range n {
			out = append(out, make([]byte, metadata.KeySeedSize))
		}
		return out
	}
	must(&logpb.RollBlockKeys{Seeds: seeds(2), Keep: maxKeep})
	for i := range maxBlockKeys - 2 {
		must(&logpb.RollBlockKeys{After: int32(i + 2), Seeds: seeds(1), Keep: maxKeep})
	}
	must(&logpb.ChangeRegister{Changes: []*logpb.ItemChange{{Name: strings.Repeat("n", MaxItemName), Value: make([]byte, MaxItem)}}})
	for i := range maxTokenKeys {
		must(&logpb.RollTokenKey{After: int32(i), Seed: make([]byte, metadata.KeySeedSize)})
		if r := w.do(owner, &logpb.IssueToken{Renewer: long, RealUser: long, Expires: 1 << 53, MaxDate: 1 << 53, MaxTokens: 100, MaxOfUser: 100}); !r.OK {
			t.Fatal(r.Err)
		}
	}
	for i := range maxForgotten {
		must(&logpb.ForgetDatanode{Uuid: fmt.Sprintf("%0*d", maxDatanodeID, i)})
	}
	must(&logpb.AddCachePool{Pool: &logpb.CachePoolInfo{Name: long, Owner: &long, Group: &long, Mode: new(uint32(0o1777)), Limit: new(int64(math.MaxInt64))}})
	must(&logpb.AddCacheDirective{Directive: &logpb.CacheDirectiveInfo{Path: new("/" + strings.Repeat("p", metadata.MaxPathLength-1)), Pool: &long, Replication: new(int32(maxReplicas))}})
	// Blocks with the numbers that take the most bytes: ids and generations are never that great.
	n := w.ns.inodes[opened.Status.ID]
	w.ns.touch(n)
	for range MaxBlocks - 1 {
		n.file.blocks = append(n.file.blocks, metadata.Block{ID: math.MaxInt64, Generation: math.MaxInt64, Length: maxLength})
	}
	w.do(super, &logpb.Mkdirs{Target: to("/settle"), Mode: 0o755})
	_, value := w.ns.enc.entry(n)
	t.Logf("the greatest record has %d bytes, a store takes %d", len(value), kv.MaxValue)
	if len(value) < kv.MaxValue/2 {
		t.Error("that is not the greatest")
	}
	stream := w.snapshot()
	restore(t, stream)
	w.open()
	if _, ok := w.ns.FileByID(opened.Status.ID); !ok {
		t.Error("the file is not in the checkpoint")
	}
	if st, err := w.ns.Stat(super, dir); err != nil || st == nil {
		t.Errorf("the directory is not in the checkpoint: %v", err)
	}
}

// A command of a faulty program is refused before it does what no member could undo.
func TestCommandsWithAbsurdNumbers(t *testing.T) {
	w := newWorld(t, Config{})
	first := w.do(super, create("/one", "c1")).Status.ID
	second := w.do(super, create("/two", "c2")).Status.ID
	w.do(super, &logpb.ReserveIDs{Blocks: 10, Generations: 10})
	block := &logpb.Block{Id: int64(metadata.FirstBlockID), Generation: uint64(metadata.FirstGeneration)}
	if r := w.do(super, &logpb.AddBlock{Inode: uint64(first), ClientName: "c1", Block: block}); r.Err != nil {
		t.Fatal(r.Err)
	}
	small := create("/small", "c")
	small.BlockSize, small.MinBlockSize = 0, -1
	for name, test := range map[string]struct {
		op   any
		want *metadata.Kind
	}{
		"a block of another file":              {&logpb.AddBlock{Inode: uint64(second), ClientName: "c2", Block: block}, metadata.ErrInvalidArgument},
		"no block size":                        {small, metadata.ErrIO},
		"an attribute of no namespace":         {&logpb.SetXAttr{Target: to("/one"), Create: true, Attribute: &logpb.XAttr{Namespace: -256, Name: "a"}}, metadata.ErrInvalidArgument},
		"removing one of no namespace":         {&logpb.RemoveXAttr{Target: to("/one"), Namespace: 256, Name: "a"}, metadata.ErrInvalidArgument},
		"an entry of a list of no type":        {&logpb.SetACL{Target: to("/one"), Entries: []*logpb.ACLEntry{{Type: -1}}}, metadata.ErrInvalidArgument},
		"a change of a list that is none":      {&logpb.SetACL{Target: to("/one"), Change: -1, Entries: []*logpb.ACLEntry{{}}}, metadata.ErrInvalidArgument},
		"more ids than there are":              {&logpb.ReserveIDs{Blocks: 1 << 62}, metadata.ErrInvalidArgument},
		"a replication of the next 16 bits":    {&logpb.SetReplication{Target: to("/one"), Replication: 1<<16 + 1}, metadata.ErrIO},
		"a length that overflows":              {&logpb.Fsync{Inode: uint64(first), ClientName: "c1", LastBlockLength: math.MaxInt64}, metadata.ErrInvalidArgument},
		"a policy of the next 8 bits":          {&logpb.SetStoragePolicy{Target: to("/one"), Policy: 256 + 7}, metadata.ErrInvalidArgument},
		"a recovery to a length below nothing": {&logpb.CommitRecovery{Block: block, Length: -1}, metadata.ErrIO},
	} {
		t.Run(name, func(t *testing.T) {
			if r := w.do(super, test.op); !errors.Is(r.Err, test.want) {
				t.Errorf("got %v, want %v", r.Err, test.want)
			}
			w.check()
		})
	}
}
