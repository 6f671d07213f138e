package namespace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/faulty"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// While memory is far over the budget and a checkpoint is being written, commands are to be held back until that has ended.
func TestCommandsAreHeldBackBehindACheckpoint(t *testing.T) {
	w := newWorld(t, Config{Memory: 1 << 20})
	w.do(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	tooMuch := 2*w.cfg.Memory + behindSlack + 1
	for _, give := range []bool{false, true} {
		w.ns.resident += tooMuch
		if w.ns.Behind() != nil {
			t.Error("there is nothing to wait for")
		}
		s, err := w.ns.Freeze()
		if err != nil {
			t.Fatal(err)
		}
		behind := w.ns.Behind()
		select {
		case <-behind:
			t.Error("it has ended before it was written")
		default:
		}
		w.ns.resident -= tooMuch
		if w.ns.Behind() != nil {
			t.Error("held back with memory to spare")
		}
		if !give {
			if _, err := s.(*snapshot).Write(); err != nil {
				t.Fatal(err)
			}
		}
		s.Release()
		<-behind
	}
}

// Many more files than the budget has room for are made, closed and listed, and memory stays near it as long as checkpoints
// are taken when the namespace asks for them.
func TestMemoryFollowsItsBudget(t *testing.T) {
	const budget = 4 << 20
	files, perEntry := 100_000, 500
	if testing.Short() {
		files = 40_000
	}
	w := newWorld(t, Config{Memory: budget})
	most, snapshots := int64(0), 0
	look := func() {
		if w.ns.Crowded() {
			takeSnapshot(t, w.ns, io.Discard)
			snapshots++
		}
		most = max(most, w.ns.Counts().ResidentBytes)
	}
	for i := 0; i < files; i += perEntry {
		next := uint64(w.ns.meta.nextINode)
		if i%10_000 == 0 { // with a directory of its own
			next++
		}
		var creates, completes [][]byte
		for j := range perEntry {
			path := fmt.Sprintf("/d%03d/f%06d", i/10_000, i+j)
			creates = append(creates, marshal(nil, command(super, create(path, "c"))))
			completes = append(completes, marshal(nil, command(super, &logpb.Complete{Inode: next + uint64(j), ClientName: "c"})))
		}
		w.entry(creates...)
		for _, r := range w.entry(completes...) {
			if r := r.(*Result); r.Err != nil || !r.OK {
				t.Fatal(r.Err)
			}
		}
		look()
	}
	takeSnapshot(t, w.ns, io.Discard)
	for d := range files / 10_000 {
		after, seen := "", 0
		for {
			l, err := w.ns.List(super, fmt.Sprintf("/d%03d", d), after, 1000)
			if err != nil {
				t.Fatal(err)
			}
			look()
			if seen += len(l.Entries); l.Remaining == 0 {
				break
			}
			after = l.Entries[len(l.Entries)-1].Name
		}
		if seen != 10_000 {
			t.Errorf("directory %d lists %d files", d, seen)
		}
	}
	if sum, err := w.ns.ContentSummary(super, "/"); err != nil || sum.Files != int64(files) {
		t.Error(sum, err)
	}
	look()
	if most > 2*budget || snapshots < 2 {
		t.Errorf("%d bytes in memory with a budget of %d, after %d snapshots", most, budget, snapshots)
	}
	if c := w.ns.Counts(); c.ResidentBytes > budget+readSlack || c.Evicted < int64(files)/2 {
		t.Errorf("in the end: %+v", c)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		i := r.IntN(files)
		if st, err := w.ns.Stat(bob, fmt.Sprintf("/d%03d/f%06d", i/10_000, i)); st == nil || err != nil {
			t.Fatal(i, st, err)
		}
	}
}

// What is used stays, what is not goes.
func TestWhatIsUsedStaysInMemory(t *testing.T) {
	w := newWorld(t, Config{})
	for i := range 2000 {
		w.do(super, &logpb.Mkdirs{Target: to(fmt.Sprintf("/d%04d", i)), Mode: 0o755})
	}
	w.snapshot()
	w.ns.cfg.Memory = w.ns.resident / 2
	hot := func() {
		for i := range 100 {
			w.ns.Stat(bob, fmt.Sprintf("/d%04d", 7*i))
		}
	}
	for range 60 {
		hot()
		w.ns.evict(100)
	}
	if w.ns.over() {
		t.Fatal("the budget is not kept")
	}
	before := w.ns.misses.Load()
	hot()
	if misses := w.ns.misses.Load() - before; misses > 0 {
		t.Errorf("%d of 100 directories that were in use all the time are not in memory", misses)
	}
	w.check()
}

// The bytes that inodes count for are about those that they take.
func TestEstimateOfMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("looks at the whole heap")
	}
	for name, add := range map[string]func(i int) []any{
		"files": func(i int) []any { return []any{create(fmt.Sprintf("/a/d%03d/part-%06d", i/500, i), "c")} },
		"directories": func(i int) []any {
			return []any{&logpb.Mkdirs{Target: to(fmt.Sprintf("/a/%d", i)), Mode: 0o755, CreateParent: true}}
		},
	} {
		const n = 50_000
		before := heap()
		ns := fresh(t, mem.New(), 0)
		var entry [][]byte
		for i := range n {
			for _, op := range add(i) {
				entry = append(entry, marshal(nil, command(super, op)))
			}
			if len(entry) >= 1000 {
				ns.Apply(ns.AppliedIndex()+1, entry)
				entry = nil
			}
		}
		if l := ns.leases["c"]; l != nil {
			for id := range l.files {
				entry = append(entry, marshal(nil, command(super, &logpb.Complete{Inode: uint64(id), ClientName: "c"})))
			}
			ns.Apply(ns.AppliedIndex()+1, entry)
			entry = nil
		}
		takeSnapshot(t, ns, io.Discard)
		ns.cfg.Store, ns.view = nil, nil
		real, estimate := float64(heap()-before)/n, float64(ns.resident)/n
		t.Logf("%s: %.0f bytes, %.0f are estimated", name, real, estimate)
		if estimate < real*0.75 || estimate > real*1.35 {
			t.Errorf("%s take %.0f bytes, %.0f are estimated", name, real, estimate)
		}
		runtime.KeepAlive(ns)
	}
}

// gate is a store whose reads stop until they are let through.
type gate struct {
	mu     sync.Mutex
	closed chan struct{} // nil: open
	waits  chan string   // told of each read that stops
	reads  int
}

func newGate() *gate { return &gate{waits: make(chan string, 1000)} }

func (g *gate) before(_ int, call faulty.Call) error {
	if call != faulty.Get && call != faulty.Scan {
		return nil
	}
	g.mu.Lock()
	closed := g.closed
	g.reads++
	g.mu.Unlock()
	if closed != nil {
		g.waits <- string(call)
		<-closed
	}
	return nil
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed, g.reads = make(chan struct{}), 0
}

func (g *gate) open() (reads int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.closed)
	g.closed = nil
	return g.reads
}

// A store that does not answer holds up who asks for what is not in memory, and nobody else: neither those who read what is,
// nor commands, nor a checkpoint. Whatever many miss is read once.
func TestSlowStoreHoldsUpNobodyElse(t *testing.T) {
	g := newGate()
	w := newWorld(t, Config{Store: faulty.New(mem.New(), g.before)})
	w.do(super, create("/cold/a", "c"))
	w.do(super, create("/cold/b", "c"))
	var big [][]byte
	for i := range 2 * smallDirectory {
		big = append(big, marshal(nil, command(super, create(fmt.Sprintf("/big/f%05d", i), "c"))))
	}
	w.entry(big...)
	id, err := w.ns.Resolve(super, "/cold/b")
	if err != nil {
		t.Fatal(err)
	}
	w.do(super, &logpb.Mkdirs{Target: to("/hot/x"), Mode: 0o777, CreateParent: true})
	w.reopen()
	for _, path := range []string{"/hot/x", "/cold", "/big"} {
		w.ns.Stat(super, path)
	}

	g.shut()
	var readers sync.WaitGroup
	for range 20 {
		readers.Go(func() {
			if st, err := w.ns.Stat(super, "/cold/a"); st == nil || err != nil {
				t.Error(st, err)
			}
		})
	}
	readers.Go(func() {
		if f, ok := w.ns.FileByID(id); !ok || f.Status.ID != id {
			t.Error(f, ok)
		}
	})
	readers.Go(func() {
		l, err := w.ns.List(super, "/big", "", 10)
		if err != nil || len(l.Entries) != 10 || l.Entries[0].Name != "f00000" || l.Remaining < 2*smallDirectory-11 {
			t.Error(l, err)
		}
	})
	for range 3 {
		<-g.waits
	}
	for i := range 100 {
		if st, err := w.ns.Stat(super, "/hot/x"); st == nil || err != nil {
			t.Fatal(st, err)
		}
		if r := w.do(super, &logpb.Mkdirs{Target: to("/hot/x"), Mode: 0o777, CreateParent: true}); r.Err != nil {
			t.Fatal(i, r.Err)
		}
	}
	// The checkpoint that they read is followed by another one.
	w.do(super, &logpb.Mkdirs{Target: to("/hot/x/y"), Mode: 0o777})
	done := make(chan error, 1)
	s, err := w.ns.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer s.Release()
		done <- w.ns.writeCheckpoint(s.(*snapshot).frozen)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// A command that misses something waits, with the lock free.
	gone := make(chan *Result, 1)
	go func() { gone <- w.do(super, &logpb.Delete{Target: to("/big/f00001")}) }()
	<-g.waits
	if st, err := w.ns.Stat(super, "/hot/x/y"); st == nil || err != nil {
		t.Fatal(st, err)
	}
	if reads := g.open(); reads > 6 {
		t.Errorf("%d reads of the store for five things", reads)
	}
	readers.Wait()
	if r := <-gone; r.Err != nil || !r.OK {
		t.Error(r.Err, r.OK)
	}
	w.check()
}

// A snapshot that comes from the leader waits for who reads the store, and they read the new state then.
func TestRestoreWaitsForReaders(t *testing.T) {
	g := newGate()
	w := newWorld(t, Config{Store: faulty.New(mem.New(), g.before)})
	w.do(super, create("/d/old", "c"))
	stream := w.snapshot()
	w.do(super, &logpb.Delete{Target: to("/d/old")})
	w.do(super, create("/d/new", "c"))
	w.reopen()
	newer := w.snapshot()
	g.shut()
	var readers sync.WaitGroup
	readers.Go(func() {
		if st, err := w.ns.Stat(super, "/d/new"); err != nil {
			t.Error(st, err)
		}
	})
	readers.Go(func() {
		if _, err := w.ns.ContentSummary(super, "/d"); err != nil && !errors.Is(err, metadata.ErrNotExist) {
			t.Error(err)
		}
	})
	<-g.waits
	restored := make(chan error, 1)
	go func() { restored <- w.ns.Restore(bytes.NewReader(stream)) }()
	g.open()
	if err := <-restored; err != nil {
		t.Fatal(err)
	}
	readers.Wait()
	for path, want := range map[string]bool{"/d/old": true, "/d/new": false} {
		if st, err := w.ns.Stat(super, path); err != nil || (st != nil) != want {
			t.Error(path, st, err)
		}
	}
	w.check()
	if err := w.ns.Restore(bytes.NewReader(newer)); err != nil {
		t.Fatal(err)
	}
	w.check()
}

// A store that fails ends the read that needed it in an error, whoever reads it meanwhile, and the next start begins anew.
func TestFailingStoreEndsReads(t *testing.T) {
	for _, read := range []func(ns *Namespace) error{
		func(ns *Namespace) error { _, err := ns.Stat(super, "/d/f00001"); return err },
		func(ns *Namespace) error { _, err := ns.List(super, "/d", "", 10); return err },
		func(ns *Namespace) error { _, err := ns.ContentSummary(super, "/d"); return err },
		func(ns *Namespace) error { return ns.EachBlock(func(BlockOwner) bool { return true }) },
	} {
		inner := mem.New()
		store := faulty.New(inner, nil)
		w := newWorld(t, Config{Store: store})
		for i := range 5 {
			w.do(super, create(fmt.Sprintf("/d/f%05d", i), "c"))
		}
		w.reopen()
		store.Reset(faulty.FailAt(1, faulty.Get, faulty.Scan))
		var readers sync.WaitGroup
		for range 4 {
			readers.Go(func() {
				if err := read(w.ns); !errors.Is(err, faulty.ErrInjected) {
					t.Error(err)
				}
			})
		}
		readers.Wait()
		if ns := fresh(t, inner.Crash(nil), 0); ns.AppliedIndex() != 0 {
			t.Error("a store that failed was not condemned")
		}
	}
}

// Pages of a directory that is not in memory are those that a directory in memory has, whatever came and went since the
// checkpoint and while one is being written.
func TestColdPagesAreThoseOfMemory(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	warm, cold := newWorld(t, Config{}), newWorld(t, Config{Memory: 1})
	both := func(commands ...[]byte) {
		warm.entry(commands...)
		cold.entry(commands...)
	}
	name := func(i int) string { return fmt.Sprintf("/d/f%05d", i) }
	const files = 3 * smallDirectory
	var entry [][]byte
	for i := range files {
		entry = append(entry, marshal(nil, command(super, create(name(2*i), "c"))))
	}
	both(entry...)
	both(marshal(nil, command(super, &logpb.Mkdirs{Target: to("/e"), Mode: 0o777})))
	cold.reopen()
	var held interface{ Release() }
	for round := range 30 {
		for range r.IntN(40) {
			i := r.IntN(2 * files)
			switch r.IntN(4) {
			case 0:
				both(marshal(nil, command(super, create(name(i), "c"))))
			case 1:
				both(marshal(nil, command(super, &logpb.Rename{Source: to(name(i)), Target: to(fmt.Sprintf("/e/%d", i))})))
			default:
				from := r.IntN(2 * files)
				for j := from; j < from+r.IntN(30); j++ {
					both(marshal(nil, command(super, &logpb.Delete{Target: to(name(j))})))
				}
			}
		}
		switch {
		case held != nil:
			held.Release()
			held = nil
		case round%7 == 3:
			takeSnapshot(t, cold.ns, io.Discard)
		case round%7 == 5:
			s, err := cold.ns.Freeze()
			if err != nil {
				t.Fatal(err)
			}
			held = s
		case round%20 == 19:
			cold.reopen()
		}
		after, limit := "", 1+r.IntN(1500)
		if r.IntN(2) == 0 {
			after = name(r.IntN(2 * files))[3:]
		}
		for page := range 3 {
			want, err := warm.ns.List(super, "/d", after, limit)
			if err != nil {
				t.Fatal(err)
			}
			got, err := cold.ns.List(super, "/d", after, limit)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(want.Entries) != fmt.Sprint(got.Entries) {
				t.Fatalf("round %d, page %d after %q, limit %d: %d entries, want %d", round, page, after, limit, len(got.Entries), len(want.Entries))
			}
			if want.Remaining > 0 && got.Remaining == 0 || want.Remaining == 0 && got.Remaining > 0 && len(got.Entries) < limit {
				t.Fatalf("round %d: %d remain, want %d", round, got.Remaining, want.Remaining)
			}
			if len(want.Entries) == 0 {
				break
			}
			after = want.Entries[len(want.Entries)-1].Name
		}
		a, _ := warm.ns.ContentSummary(super, "/")
		b, err := cold.ns.ContentSummary(super, "/")
		if err != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("round %d: %+v, want %+v (%v)", round, b, a, err)
		}
		if a, b := warm.ns.Hash(), cold.ns.Hash(); a != b {
			t.Fatalf("round %d: hashes differ", round)
		}
	}
	cold.check()
}

// Deep trees are found by the number of what is below, and paths that lead into them.
func TestColdInodesDeepDown(t *testing.T) {
	w := newWorld(t, Config{Memory: 1})
	path := ""
	var id metadata.INodeID
	for range 200 {
		path += "/d"
		w.do(super, &logpb.Mkdirs{Target: to(path), Mode: 0o755})
	}
	id, err := w.ns.Resolve(super, path)
	if err != nil {
		t.Fatal(err)
	}
	w.reopen()
	if st, err := w.ns.Stat(super, fmt.Sprintf("/.reserved/.inodes/%d", id)); err != nil || st == nil || st.ID != id {
		t.Fatal(st, err)
	}
	w.reopen()
	if st, err := w.ns.Stat(super, path); err != nil || st == nil || st.ID != id {
		t.Fatal(st, err)
	}
	w.check()
}

// A command that misses something starts over. What it did before it looked, it does once all the same: members whose
// memory differs expire the same answers.
func TestAnswersExpireOnceForACommandThatStartsOver(t *testing.T) {
	w := newWorld(t, Config{})
	store := mem.New()
	cold := newWorld(t, Config{Store: store, Memory: 1})
	call := int32(0)
	do := func(op any) {
		cmd := command(super, op)
		call++
		cmd.ClientId, cmd.CallId = []byte("0123456789abcdef"), call
		w.apply(cmd)
		cold.ns.Apply(w.index, w.log[w.index-1])
	}
	for i := range 8 {
		do(create(fmt.Sprintf("/a/b/c/d/f%d", i), "c"))
		w.now += metadata.Time(2 * chunkSpan)
	}
	takeSnapshot(t, cold.ns, io.Discard)
	cold.open() // nothing is in memory
	w.now += metadata.Time(2 * RetryExpiry)
	do(&logpb.Delete{Target: to("/a/b/c/d/f3")})
	if hot, other := w.ns.retries.answers, cold.ns.retries.answers; hot != other {
		t.Errorf("%d answers are left where everything is in memory, %d where nothing was", hot, other)
	}
	if w.ns.Hash() != cold.ns.Hash() {
		t.Error("the hashes differ")
	}
}
