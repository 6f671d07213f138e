package namespace

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// oddPath is a path of a few names, and odd ones at times.
func oddPath(rng *rand.Rand) string {
	var b strings.Builder
	for range 1 + rng.IntN(5) {
		b.WriteByte('/')
		b.WriteByte("abc"[rng.IntN(3)])
	}
	if rng.IntN(40) == 0 {
		return b.String() + []string{"/", "//x", "/..", "/a:b", "/.snapshot", "/.snapshot/s/a", "/" + strings.Repeat("n", 300)}[rng.IntN(7)]
	}
	return b.String()
}

// drawChange makes up a command by paths, with blocks of a reserved range.
func drawChange(rng *rand.Rand, ids *IDRange) any {
	t := to(oddPath(rng))
	modes := []uint32{0o777, 0o777, 0o755, 0o700, 0o1777, 0o666}
	mode := modes[rng.IntN(len(modes))]
	dirs, files := []string{"/a", "/a/b", "/c/a"}, []string{"/d", "/e", "/f", "/g"} // files that are no directories
	switch rng.IntN(22) {
	case 19, 20: // of neighbours, mostly
		var sources []*logpb.Target
		dir := dirs[rng.IntN(len(dirs))]
		for range 1 + rng.IntN(3) {
			source := to(dir + files[rng.IntN(len(files))])
			if rng.IntN(20) == 0 {
				source = to(oddPath(rng))
			}
			sources = append(sources, source)
		}
		return &logpb.Concat{Target: to(dir + files[rng.IntN(len(files))]), Sources: sources}
	case 17, 18:
		change := []logpb.ChangeSnapshots_Change{
			logpb.ChangeSnapshots_ALLOW, logpb.ChangeSnapshots_DISALLOW, logpb.ChangeSnapshots_CREATE, logpb.ChangeSnapshots_DELETE,
			logpb.ChangeSnapshots_RENAME,
		}[rng.IntN(5)]
		names := []string{"s", "t", "", "a/b"}
		return &logpb.ChangeSnapshots{Target: t, Change: change, Name: names[min(rng.IntN(8), 3)*rng.IntN(2)], NewName: names[rng.IntN(4)]}
	case 16, 21:
		s := &logpb.Store{Create: &logpb.Create{Target: t, Mode: 0o644, ClientName: "c", Create: true, Overwrite: rng.IntN(3) == 0, Replication: 1, BlockSize: 1 << 20}, ByDefault: true}
		if rng.IntN(4) > 0 {
			s.Create.Target = to(dirs[rng.IntN(len(dirs))] + files[rng.IntN(len(files))])
			b := &logpb.Block{Id: int64(ids.FirstBlock) + rng.Int64N(int64(ids.EndBlock-ids.FirstBlock)), Generation: uint64(ids.FirstGeneration), Length: 1 + rng.Int64N(9)}
			s.Body, s.Data = b, bytesOf(b.Id, b.Length)
			s.Crc = sumOf(s.Data)
		}
		return s
	case 0, 1, 2:
		return &logpb.Mkdirs{Target: t, Mode: mode, CreateParent: rng.IntN(2) == 0}
	case 3, 4, 5:
		return &logpb.Create{Target: t, Mode: 0o644, ClientName: "c", Create: true, Overwrite: rng.IntN(3) == 0, CreateParent: rng.IntN(2) == 0, Replication: 1, BlockSize: 1 << 20}
	case 6, 7:
		return &logpb.Rename{Source: t, Target: to(oddPath(rng)), Legacy: true}
	case 8:
		return &logpb.Rename{Source: t, Target: to(oddPath(rng)), Overwrite: rng.IntN(2) == 0, ToTrash: rng.IntN(2) == 0}
	case 9:
		return &logpb.Delete{Target: t, Recursive: rng.IntN(2) == 0}
	case 10:
		return &logpb.SetPermission{Target: t, Mode: mode}
	case 11:
		return &logpb.SetOwner{Target: t, Owner: []string{"bob", "alice", ""}[rng.IntN(3)], Group: []string{"staff", "dev", ""}[rng.IntN(3)]}
	case 12:
		return &logpb.SetTimes{Target: t, Mtime: int64(rng.IntN(1000)), Atime: -1}
	case 13:
		return &logpb.SetACL{Target: t, Change: logpb.SetACL_MODIFY, Entries: []*logpb.ACLEntry{{Type: logpb.ACLEntry_USER, Name: "alice", Rights: uint32(rng.IntN(8))}}}
	case 14:
		return &logpb.SetXAttr{Target: t, Attribute: &logpb.XAttr{Name: "a", Value: []byte{byte(rng.IntN(9))}}, Create: true, Replace: true}
	}
	return &logpb.Append{Target: t, ClientName: "d"}
}

// Commands that were resolved under an earlier state do what they do with paths, to the letter of what they answer, or nothing at all; however much came in
// between, and whatever is in memory.
func TestResolvedCommandsDoWhatPathsDo(t *testing.T) {
	rounds := 6000
	if testing.Short() {
		rounds = 1500
	}
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 7))
		byPath, byINode := newWorld(t, Config{}), newWorld(t, Config{})
		byINode.cfg.Memory = 1
		byINode.open()
		for _, w := range []*world{byPath, byINode} {
			w.do(super, &logpb.Mkdirs{Target: &logpb.Target{Base: uint64(metadata.RootID), Path: "first", Version: 1}, Mode: 0o755}) // from which on it counts
			w.do(super, &logpb.SetPermission{Target: to("/"), Mode: 0o777})
		}
		var ids *IDRange
		for _, w := range []*world{byPath, byINode} {
			ids = w.do(super, &logpb.ReserveIDs{Blocks: 1 << 16, Generations: 1}).Reserved
		}
		joined := 0
		type waiting struct {
			plain, resolved []byte
			done            bool
		}
		var queue []waiting
		resolved, stale := 0, 0
		for i := range rounds {
			who := []metadata.Caller{super, bob, bob, alice}[rng.IntN(4)]
			cmd := numbered(command(who, drawChange(rng, ids)), "0123456789abcdef", int32(rng.IntN(rounds)))
			cmd.Now, cmd.LogTime = int64(1000+i), int64(1000+i)
			var w waiting
			var err error
			if w.plain, err = cmd.MarshalVT(); err != nil {
				t.Fatal(err)
			}
			r := byINode.ns.ResolveTargets(who, cmd)
			w.done = r.Done()
			if w.resolved, err = cmd.MarshalVT(); err != nil {
				t.Fatal(err)
			}
			r.Undo()
			if again, _ := cmd.MarshalVT(); string(again) != string(w.plain) {
				t.Fatal("the command is not what it was")
			}
			if queue = append(queue, w); len(queue) <= rng.IntN(4) {
				continue
			}
			w, queue = queue[0], queue[1:]
			want := byPath.entry(w.plain)[0].(*Result)
			got := byINode.entry(w.resolved)[0].(*Result)
			if w.done {
				resolved++
			}
			if errors.Is(got.Err, ErrStale) {
				stale++
				got = byINode.entry(w.plain)[0].(*Result)
			}
			if fmt.Sprint(got.Err) != fmt.Sprint(want.Err) || got.OK != want.OK || (got.Status == nil) != (want.Status == nil) {
				t.Fatalf("%d.%d: %v %t, by paths %v %t", seed, i, got.Err, got.OK, want.Err, want.OK)
			}
			if c := new(logpb.Command); w.done && got.OK && c.UnmarshalVT(w.resolved) == nil && c.GetConcat() != nil {
				joined++
			}
			for byPath.ns.Counts().Reclaiming+byINode.ns.Counts().Reclaiming > 0 { // what is deleted is named by its entry, and one has more of these
				for _, w := range []*world{byPath, byINode} {
					w.do(super, &logpb.Reclaim{Limit: 1000})
				}
			}
			if a, b := byINode.ns.Hash(), byPath.ns.Hash(); a != b {
				t.Fatalf("%d.%d: the states differ", seed, i)
			}
			if rng.IntN(50) == 0 {
				takeSnapshot(t, byINode.ns, discard{})
			}
		}
		t.Logf("%d of %d were resolved, %d of them were stale; %d files were joined", resolved, rounds, stale, joined)
		if resolved < rounds/20 || stale < rounds/200 || joined < rounds/1500 {
			t.Error("that shows nothing")
		}
		checkSound(t, byINode.ns)
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// counted is a world that has seen a resolved target.
func counted(t *testing.T) *world {
	w := newWorld(t, Config{})
	before := w.ns.Hash()
	w.do(super, &logpb.SetPermission{Target: to("/"), Mode: 0o777})
	if w.ns.meta.tree != 0 || w.ns.Hash() == before {
		t.Fatal("it counts before there is something to count for")
	}
	if r := w.do(super, &logpb.Mkdirs{Target: &logpb.Target{Base: uint64(metadata.RootID), Path: "first", Version: 1}, Mode: 0o755}); !errors.Is(r.Err, ErrStale) {
		t.Fatal(r.Err)
	}
	return w
}

// What changes where a path leads, or whom it lets through, makes what was resolved before stale, and what does not, does not.
func TestWhatMakesAResolvedTargetStale(t *testing.T) {
	for what, c := range map[string]struct {
		op    any
		stale bool
	}{
		"a directory above moves":              {&logpb.Rename{Source: to("/a"), Target: to("/z"), Legacy: true}, true},
		"the directory moves":                  {&logpb.Rename{Source: to("/a/b"), Target: to("/z"), Legacy: true}, true},
		"a directory above goes":               {&logpb.Delete{Target: to("/a"), Recursive: true}, true},
		"the directory goes, empty":            {&logpb.Delete{Target: to("/a/b")}, true},
		"a directory above is closed":          {&logpb.SetPermission{Target: to("/a"), Mode: 0o700}, true},
		"a directory above is somebody else's": {&logpb.SetOwner{Target: to("/a"), Owner: "carol"}, true},
		"a directory above gets a list":        {&logpb.SetACL{Target: to("/a"), Change: logpb.SetACL_MODIFY, Entries: []*logpb.ACLEntry{{Type: logpb.ACLEntry_USER, Name: "bob"}}}, true},
		"a file goes":                          {&logpb.Delete{Target: to("/f")}, false},
		"a file moves":                         {&logpb.Rename{Source: to("/f"), Target: to("/g"), Legacy: true}, false},
		"a file gets another mode":             {&logpb.SetPermission{Target: to("/f"), Mode: 0o600}, false},
		"another directory comes":              {&logpb.Mkdirs{Target: to("/a/b/d"), Mode: 0o755}, false},
		"another directory goes, empty":        {&logpb.Delete{Target: to("/e")}, false},
	} {
		w := counted(t)
		w.do(super, &logpb.Mkdirs{Target: to("/a/b"), Mode: 0o777, CreateParent: true})
		w.do(super, &logpb.Mkdirs{Target: to("/e"), Mode: 0o777})
		w.do(super, create("/f", "c"))
		cmd := command(bob, &logpb.Mkdirs{Target: to("/a/b/c"), Mode: 0o755})
		if r := w.ns.ResolveTargets(bob, cmd); !r.Done() {
			t.Fatal("not resolved")
		}
		if r := w.do(super, c.op); r.Err != nil || !r.OK {
			t.Fatalf("%s: %v", what, r.Err)
		}
		if r := w.apply(cmd); errors.Is(r.Err, ErrStale) != c.stale || !c.stale && r.Err != nil {
			t.Errorf("%s: %v", what, r.Err)
		}
	}
}

// A target that claims to be resolved and is not a name in a directory is refused; one that is nowhere is stale.
func TestFaultyResolvedTargets(t *testing.T) {
	w := counted(t)
	w.do(super, &logpb.Mkdirs{Target: to("/a/b"), Mode: 0o777, CreateParent: true})
	w.do(super, create("/f", "c"))
	version := w.ns.meta.version()
	dir, err := w.ns.Resolve(super, "/a")
	if err != nil {
		t.Fatal(err)
	}
	file, err := w.ns.Resolve(super, "/f")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		target *logpb.Target
		want   error
	}{
		{&logpb.Target{Path: "x", Version: version}, metadata.ErrInvalidArgument},
		{&logpb.Target{Base: uint64(dir), Version: version}, metadata.ErrInvalidArgument},
		{&logpb.Target{Base: uint64(dir), Path: "b/c", Version: version}, metadata.ErrInvalidArgument},
		{&logpb.Target{Base: uint64(dir), Path: ".snapshot", Version: version}, metadata.ErrInvalidArgument},
		{&logpb.Target{Base: uint64(dir), Path: "..", Version: version}, metadata.ErrInvalidPath},
		{&logpb.Target{Base: uint64(dir), Path: "x", Version: version + 1}, ErrStale},
		{&logpb.Target{Base: uint64(reclaimID), Path: "x", Version: version}, ErrStale},
		{&logpb.Target{Base: uint64(file), Path: "x", Version: version}, ErrStale},
		{&logpb.Target{Base: 1 << 40, Path: "x", Version: version}, ErrStale},
	} {
		if r := w.do(super, &logpb.Mkdirs{Target: c.target, Mode: 0o755}); !errors.Is(r.Err, c.want) {
			t.Errorf("%v: %v, want %v", c.target, r.Err, c.want)
		}
	}
}

// What is not in memory is read when a command is resolved, and not when it is applied.
func TestResolvingReadsWhatIsCold(t *testing.T) {
	store := mem.New()
	ns := fresh(t, store, 0)
	dirs := []string{"/a/b/c/d", "/a/b/e/f"}
	first, err := command(super, &logpb.Mkdirs{Target: &logpb.Target{Base: uint64(metadata.RootID), Path: "first", Version: 1}, Mode: 0o755}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	commands := [][]byte{first}
	for _, d := range dirs {
		data, err := command(super, &logpb.Mkdirs{Target: to(d), Mode: 0o777, CreateParent: true}).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		commands = append(commands, data)
	}
	ns.Apply(1, commands)
	takeSnapshot(t, ns, discard{})
	ns = fresh(t, store, 0)
	cmd := command(bob, &logpb.Rename{Source: to(dirs[0]), Target: to(dirs[1] + "/x"), Legacy: true})
	if r := ns.ResolveTargets(bob, cmd); !r.Done() {
		t.Fatal("not resolved")
	}
	if cmd.GetRename().Source.Path != "d" || cmd.GetRename().Target.Path != "x" {
		t.Error(cmd)
	}
	before := ns.misses.Load()
	data, err := cmd.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	if r := ns.Apply(2, [][]byte{data})[0].(*Result); !r.OK {
		t.Fatal(r.Err)
	}
	if n := ns.misses.Load() - before; n != 0 {
		t.Errorf("%d times while it was applied", n)
	}
	if s, err := ns.Stat(bob, dirs[1]+"/x"); s == nil || err != nil {
		t.Error(s, err)
	}
}

// BenchmarkResolve is what a proposer spends on resolving, and how long the command is then.
func BenchmarkResolve(b *testing.B) {
	for _, depth := range []int{3, 10} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			ns := benchNamespace(b)
			dir := strings.Repeat("/directory", depth-1)
			ns.Apply(2, [][]byte{encode(b, command(super, &logpb.Mkdirs{Target: to(dir), Mode: 0o777, CreateParent: true}))})
			var commands []*logpb.Command
			for i := range 1024 {
				commands = append(commands, command(bob, &logpb.Mkdirs{Target: to(fmt.Sprintf("%s/part-%08d", dir, i)), Mode: 0o755}))
			}
			long := len(encode(b, commands[0]))
			short := commands[0]
			b.ReportAllocs()
			defer cpu(b)()
			i := 0
			for b.Loop() {
				i = (i + 1) % len(commands)
				r := ns.ResolveTargets(bob, commands[i])
				r.Undo()
			}
			ns.ResolveTargets(bob, short)
			b.ReportMetric(float64(long), "B-paths")
			b.ReportMetric(float64(len(encode(b, short))), "B-resolved")
		})
	}
}
