package search

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/faulty"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

// step carries out a drawn operation, which may be refused.
func (m *member) step(t testing.TB, r *rand.Rand) {
	t.Helper()
	c := []metadata.Caller{super, super, alice, bob}[r.IntN(4)]
	p := drawnPath(r)
	switch r.IntN(14) {
	case 0, 1:
		m.do(t, c, &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: target(t, p), Mode: []uint32{0o755, 0o700, 0o711, 0o744, 0o777}[r.IntN(5)], CreateParent: true}})
	case 2, 3, 4:
		m.file(t, c, p, int64(r.IntN(7)-1))
	case 5:
		if r.IntN(3) > 0 {
			m.file(t, c, p, int64(r.IntN(6)))
			break
		}
		m.do(t, c, &logpb.Command_Delete{Delete: &logpb.Delete{Target: target(t, p), Recursive: true}})
	case 6, 7:
		m.do(t, c, &logpb.Command_Rename{Rename: &logpb.Rename{Source: target(t, p), Target: target(t, drawnPath(r)), Legacy: r.IntN(2) == 0, Overwrite: true}})
	case 8, 9:
		m.tag(t, c, p, []string{"team", "t", "tea"}[r.IntN(3)], tagValues[r.IntN(len(tagValues))])
	case 10:
		m.do(t, c, &logpb.Command_RemoveXattr{RemoveXattr: &logpb.RemoveXAttr{Target: target(t, p), Name: "team"}})
	case 11:
		if r.IntN(2) == 0 {
			m.do(t, super, &logpb.Command_SetOwner{SetOwner: &logpb.SetOwner{Target: target(t, p), Owner: []string{"alice", "bob"}[r.IntN(2)]}})
			break
		}
		m.do(t, super, &logpb.Command_SetPermission{SetPermission: &logpb.SetPermission{Target: target(t, p), Mode: []uint32{0o755, 0o700, 0o711, 0o744, 0o777}[r.IntN(5)]}})
	case 12:
		m.do(t, super, &logpb.Command_SetAcl{SetAcl: &logpb.SetACL{
			Target: target(t, p), Change: logpb.SetACL_MODIFY, Entries: []*logpb.ACLEntry{{Type: logpb.ACLEntry_USER, Name: "bob", Rights: uint32(r.IntN(8))}},
		}})
	case 13:
		switch r.IntN(3) {
		case 0:
			m.file(t, super, "/a/a", 4)
			m.file(t, super, "/a/b", 1)
			m.do(t, super, &logpb.Command_Concat{Concat: &logpb.Concat{Target: target(t, "/a/a"), Sources: []*logpb.Target{target(t, "/a/b")}}})
		case 1:
			m.do(t, super, &logpb.Command_Truncate{Truncate: &logpb.Truncate{Target: target(t, p), ClientName: "c", Length: 0}})
		case 2:
			m.do(t, super, &logpb.Command_ChangeSnapshots{ChangeSnapshots: &logpb.ChangeSnapshots{Target: target(t, "/a"), Change: logpb.ChangeSnapshots_ALLOW}})
			m.do(t, super, &logpb.Command_ChangeSnapshots{ChangeSnapshots: &logpb.ChangeSnapshots{Target: target(t, "/a"), Change: logpb.ChangeSnapshots_CREATE, Name: fmt.Sprint("s", r.Int())}})
		}
	}
}

// What the index answers is what a walk of the namespace finds, for every caller and whatever was done, with stops, kills and power cuts of the namenode, and
// where the index was made anew between.
func TestAnswersAreThoseOfAWalk(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			m := newMember(t)
			for range 300 {
				switch r.IntN(40) {
				case 0:
					if err := m.checkpoint(); err != nil {
						t.Fatal(err)
					}
				case 1, 2, 3:
					m.catchUp(t)
					m.compare(t, r, 10, "caught up")
				case 4:
					m.catchUp(t)
					m.flush(t)
				case 5:
					m.x.Rebuild()
				case 6:
					m.restart(t, r)
				case 7:
					m.x.sweep.active, m.x.sweep.from = true, ""
					for m.x.sweep.active && !m.x.wanted {
						m.catchUp(t)
						if _, err := m.x.sweepSome(); err != nil {
							t.Fatal(err)
						}
						m.flush(t)
						m.step(t, r) // much that was swept is written at a later position only, and the sweep goes on behind that
					}
				default:
					m.step(t, r)
				}
			}
			m.catchUp(t)
			m.compare(t, r, 300, "in the end")
			m.checkWhole(t)
		})
	}
}

// restart ends the process, by a stop, a kill or a power cut, and begins another one.
func (m *member) restart(t testing.TB, r *rand.Rand) {
	t.Helper()
	switch r.IntN(3) {
	case 0:
		m.x.finish()
		m.feed.Close()
		m.index = m.index.(*mem.Store).Crash(nil)
	case 1:
		m.index = m.index.(*mem.Store).Crash(nil)
	case 2:
		m.index = m.index.(*mem.Store).Crash(r)
	}
	copied := filepath.Join(t.TempDir(), "feed")
	copyFiles(t, copied, m.dir)
	m.feed.Close()
	m.dir, m.store = copied, m.store.(*mem.Store).Crash(nil)
	m.open(t)
}

// copyFiles makes a directory with what another one has, in which files may come and go.
func copyFiles(t testing.TB, to, from string) {
	t.Helper()
	names, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		data, err := os.ReadFile(filepath.Join(from, n.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, n.Name()), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// checkWhole holds the index against itself: every key belongs to what a record says, all of them are there, and they are counted.
func (m *member) checkWhole(t testing.TB) {
	t.Helper()
	var want, got []string
	entries := int64(0)
	err := m.content(func(key, value []byte) {
		if key[0] == classMarker {
			return
		}
		got = append(got, string(key))
		if key[0] == classINode {
			n, err := decode(value)
			if err != nil {
				t.Fatal(err)
			}
			entries++
			want = append(want, string(key))
			n.each(idOf(key), func(key string) { want = append(want, key) })
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	known := map[metadata.INodeID]string{}
	l := layers{m.x.recent, m.x.frozen, m.x.cfg.Store.View(m.x.stored)}
	defer l.view.Close()
	up := climber{layers: &l, top: metadata.RootID, known: map[metadata.INodeID]bool{}}
	err = m.content(func(key, value []byte) {
		if n, err := decode(value); key[0] == classINode && err == nil {
			if inside, err := up.under(n.parent); err != nil || inside || idOf(key) == metadata.RootID {
				known[idOf(key)] = n.name
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	there := map[metadata.INodeID]string{metadata.RootID: ""}
	for _, p := range m.walk(t, super, metadata.Query{Path: "/"}) {
		st, err := m.ns.Stat(super, p)
		if err != nil {
			t.Fatal(err)
		}
		there[st.ID] = path.Base(p)
	}
	if !maps.Equal(known, there) {
		t.Fatalf("the index knows\n%v\nthere are\n%v", known, there)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) || entries != m.x.entries {
		t.Fatalf("%d entries, counted as %d\n%q\nwant\n%q", entries, m.x.entries, got, want)
	}
}

// Wherever a namenode is killed or loses its power, between any two calls of the index's store, the next one goes on behind what is durable, and the index is
// whole.
func TestIndexIsWholeAfterACrashAnywhere(t *testing.T) {
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 7))
		m := newMember(t)
		inner := mem.New()
		var clones []*mem.Store
		m.index = faulty.New(inner, func(int, faulty.Call) error {
			if r.IntN(4) > 0 { // a part of all places, another one with each seed
				return nil
			}
			source := r
			if r.IntN(2) == 0 {
				source = nil
			}
			clones = append(clones, inner.Crash(source))
			return nil
		})
		m.openIndex(t)
		for i := range 60 {
			m.step(t, r)
			if i%5 == 0 {
				m.catchUp(t)
			}
			if i%10 == 0 {
				m.flush(t)
			}
			if i == 30 {
				if err := m.checkpoint(); err != nil {
					t.Fatal(err)
				}
				m.x.Rebuild()
			}
		}
		m.catchUp(t)
		m.flush(t)
		if len(clones) < 20 {
			t.Fatalf("only %d crashes", len(clones))
		}
		for i, clone := range clones {
			m.index = clone
			m.openIndex(t)
			m.catchUp(t)
			m.checkWhole(t)
			// What it writes next covers what the crash has left.
			if i%4 == 0 {
				m.flush(t)
				m.openIndex(t)
				m.catchUp(t)
				m.checkWhole(t)
				m.compare(t, r, 5, fmt.Sprintf("seed %d, crash %d", seed, i))
			}
		}
	}
}

// What a sweep takes out is in no feed: where a crash has left a part of that, the index is made anew.
func TestIndexIsWholeAfterASweepThatWasCut(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 9))
	m := newMember(t)
	inner := mem.New()
	var clones []*mem.Store
	store := faulty.New(inner, nil)
	m.index = store
	m.openIndex(t)
	m.x.cfg.Memory = 1 << 20 // nothing is written beside
	for i := range 20 {
		m.file(t, super, fmt.Sprintf("/gone/d/f%d", i), 3)
	}
	m.catchUp(t)
	m.flush(t)
	m.do(t, super, &logpb.Command_Delete{Delete: &logpb.Delete{Target: target(t, "/gone"), Recursive: true}})
	m.mkdir(t, super, "/stays", 0o755)
	m.catchUp(t)
	m.x.sweep.active = true
	if _, err := m.x.sweepSome(); err != nil || m.x.sweep.active {
		t.Fatal(err)
	}
	m.checkWhole(t)
	store.Reset(func(int, faulty.Call) error {
		clones = append(clones, inner.Crash(nil), inner.Crash(r), inner.Crash(r))
		return nil
	})
	m.flush(t)
	store.Reset(nil)
	for _, clone := range append(clones, inner.Crash(nil)) {
		m.index = clone
		m.openIndex(t)
		for range 2 {
			m.catchUp(t)
			m.checkWhole(t)
			m.flush(t)
			m.checkWhole(t)
			m.openIndex(t)
		}
	}
}

// Where the feed has no more what comes next, the index is made anew, of a checkpoint that is written for it if there has to be one.
func TestHolesAreFilledByARebuild(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	m := newMember(t)
	m.feed.Close()
	m.feedBytes = 1 // the least there is
	m.store = m.store.(*mem.Store).Crash(nil)
	m.open(t)
	m.catchUp(t)
	long := "/" + strings.Repeat("x", 200)
	for range 3 {
		before := m.x.Status().Rebuilds
		for i := range 12_000 {
			m.do(t, super, &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: target(t, fmt.Sprint(long, i%10)), Mode: 0o755}})
			m.do(t, super, &logpb.Command_Delete{Delete: &logpb.Delete{Target: target(t, fmt.Sprint(long, i%10))}})
		}
		for range 50 {
			m.step(t, r)
		}
		m.catchUp(t)
		if after := m.x.Status().Rebuilds; after == before {
			t.Fatal("it was not made anew")
		}
		m.compare(t, r, 50, "behind a hole")
		m.checkWhole(t)
	}
}

// Changes go on while the index is made anew.
func TestRebuildBesideChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 9))
	m := newMember(t)
	changing := false
	m.index = faulty.New(mem.New(), func(n int, call faulty.Call) error {
		if call == faulty.Put && n%7 == 0 && !changing && m.x.Status().State == Rebuilding {
			changing = true
			m.step(t, r)
			changing = false
		}
		return nil
	})
	m.openIndex(t)
	for range 20 {
		for range 20 {
			m.step(t, r)
		}
		if err := m.checkpoint(); err != nil {
			t.Fatal(err)
		}
		m.x.Rebuild()
		m.catchUp(t)
		m.compare(t, r, 20, "made anew")
		m.checkWhole(t)
	}
}

// A store that fails stops the index, which says so, and nothing else; when it works again nothing is missing.
func TestFullDisk(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 9))
	m := newMember(t)
	store := faulty.New(mem.New(), nil)
	m.index = store
	m.openIndex(t)
	m.catchUp(t)
	store.Reset(faulty.FailAt(1, faulty.Put, faulty.Delete, faulty.Flush, faulty.Sync))
	var failed error
	for range 2000 {
		m.step(t, r)
		if _, failed = m.x.turn(t.Context()); failed != nil {
			break
		}
	}
	if !errors.Is(failed, faulty.ErrInjected) {
		t.Fatalf("it goes on: %v, %+v", failed, m.x.Status())
	}
	m.x.fail(failed)
	if _, err := m.x.Find(t.Context(), super, metadata.Query{Path: "/"}); metadata.KindOf(err) != metadata.ErrRetriable {
		t.Fatal(err)
	}
	if s := m.x.Status(); s.State != Failing || s.Problem == "" {
		t.Fatalf("%+v", s)
	}
	store.Reset(nil)
	m.x.retry = time.Time{}
	for m.x.Status().State != Following {
		if _, err := m.x.turn(t.Context()); err != nil {
			m.x.retry = time.Time{}
			runtime.Gosched()
		}
	}
	m.catchUp(t)
	m.compare(t, r, 50, "there is room again")
	m.checkWhole(t)
}

// A rebuild that could not empty the store is tried again: nobody waits for a second word of the writing that was under way.
func TestRebuildThatFailsBesideWriting(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 9))
	m := newMember(t)
	store := faulty.New(mem.New(), nil)
	m.index = store
	m.openIndex(t)
	m.catchUp(t)
	m.x.cfg.Memory = 1
	for m.x.flushing == nil {
		m.step(t, r)
		if _, err := m.x.turn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	m.x.Rebuild()
	store.Reset(faulty.FailAt(1, faulty.Replace))
	if _, err := m.x.turn(t.Context()); !errors.Is(err, faulty.ErrInjected) {
		t.Fatalf("%v, %+v", err, m.x.Status())
	}
	store.Reset(nil)
	m.catchUp(t)
	m.compare(t, r, 50, "made anew")
	m.checkWhole(t)
}

// Searches go on beside changes, checkpoints and rebuilds, and one that waits for a position sees what was done before.
func TestSearchesBesideEverything(t *testing.T) {
	m := newMember(t)
	ctx := t.Context()
	stopped := make(chan struct{})
	run, cancel := context.WithCancel(ctx)
	go func() {
		defer close(stopped)
		m.x.Run(run)
	}()
	var readers sync.WaitGroup
	over := make(chan struct{})
	for i := range 2 {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 11))
			for {
				select {
				case <-over:
					return
				default:
				}
				q := drawnQuery(r)
				q.Path = "/"
				if _, err := m.x.Find(ctx, alice, q); err != nil && metadata.KindOf(err) != metadata.ErrRetriable {
					t.Error(err)
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(4, 11))
	for i := range 300 {
		m.step(t, r)
		if i%100 == 50 {
			if err := m.checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
		if i%100 == 70 {
			m.x.Rebuild()
		}
		if i%30 == 0 {
			m.file(t, super, fmt.Sprintf("/own-%d", i), 3)
			for {
				err := m.x.Await(ctx, metadata.EndOf(m.ns.AppliedIndex()))
				if err == nil {
					break
				}
				if metadata.KindOf(err) != metadata.ErrRetriable {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
			}
			if st, err := m.ns.Stat(super, fmt.Sprintf("/own-%d", i)); err != nil || st == nil {
				continue
			}
			if got := m.find(t, super, metadata.Query{Path: "/", Name: fmt.Sprintf("own-%d", i)}); len(got) != 1 {
				t.Fatalf("%q", got)
			}
		}
	}
	close(over)
	readers.Wait()
	cancel()
	<-stopped
	m.openIndex(t)
	m.catchUp(t)
	m.compare(t, r, 50, "in the end")
	m.checkWhole(t)
}

// closedDisk is the operating system's, where no file can be opened while open says why.
type closedDisk struct {
	journal.Disk
	open atomic.Pointer[error]
}

func (d *closedDisk) Open(path string) (journal.File, error) {
	if err := d.open.Load(); err != nil {
		return nil, *err
	}
	return d.Disk.Open(path)
}

// While the feed cannot be read, because the process has no descriptor left or a disk fails for a moment, the index says so, answers as it is, and who waits
// for more waits. It follows when that has passed, and is not made anew.
func TestFeedThatCannotBeReadForAWhile(t *testing.T) {
	for _, failure := range []error{syscall.EMFILE, syscall.EIO} {
		m := newMember(t)
		disk := &closedDisk{Disk: journal.FileSystem{}}
		m.disk = disk
		m.catchUp(t)
		m.flush(t)
		m.file(t, super, "/late", 3)
		if err := m.checkpoint(); err != nil { // the events are in a file, and in memory no more after the start
			t.Fatal(err)
		}
		m.feed.Close()
		m.open(t)
		disk.open.Store(&failure)
		run, cancel := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			m.x.Run(run)
		}()
		for m.x.Status().Problem == "" {
			time.Sleep(time.Millisecond)
		}
		if s := m.x.Status(); s.State != Following {
			t.Errorf("%v: %+v", failure, s)
		}
		if got := m.find(t, super, metadata.Query{Path: "/"}); len(got) > 0 {
			t.Errorf("%v: %q", failure, got)
		}
		waiting, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if err := m.x.Await(waiting, metadata.EndOf(m.ns.AppliedIndex())); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: %v", failure, err)
		}
		stop()
		disk.open.Store(nil)
		if err := m.x.Await(t.Context(), metadata.EndOf(m.ns.AppliedIndex())); err != nil {
			t.Errorf("%v: %v", failure, err)
		}
		if got := m.find(t, super, metadata.Query{Path: "/"}); !slices.Equal(got, []string{"/late"}) {
			t.Errorf("%v: %q", failure, got)
		}
		cancel()
		<-stopped
		if s := m.x.Status(); s.Problem != "" || s.Rebuilds != 0 {
			t.Errorf("%v: %+v", failure, s)
		}
	}
}

// A page ends where it takes much memory, or when it has taken its time, and leads on.
func TestPagesAreBounded(t *testing.T) {
	m := newMember(t)
	const files = 40
	for i := range files {
		p := fmt.Sprintf("/f%02d", i)
		m.file(t, super, p, 0)
		for j := range 3 {
			m.tag(t, super, p, fmt.Sprint("t", j), strings.Repeat("x", 16_000))
		}
	}
	m.catchUp(t)
	q := metadata.Query{Path: "/", Limit: metadata.MaxQueryLimit}
	found, pages := 0, 0
	for {
		page, err := m.x.Find(t.Context(), super, q)
		if err != nil {
			t.Fatal(err)
		}
		if size := page.Size(); size > maxBytes+50_000 {
			t.Errorf("a page takes %d bytes", size)
		}
		found, pages = found+len(page.Found), pages+1
		if q.Cursor = page.Next; q.Cursor == "" {
			break
		}
	}
	if found != files || pages < 4 {
		t.Errorf("%d found on %d pages", found, pages)
	}
}

func FuzzDecode(f *testing.F) {
	n := node{parent: 7, name: "name", sized: true, size: 1 << 40, tags: []tag{{"team", "vision", 6}, {"x", "", 0}}}
	f.Add(n.encode())
	f.Add((&node{dir: true}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := decode(b)
		if err != nil {
			return
		}
		again, err := decode(n.encode())
		if err != nil || !reflect.DeepEqual(n, again) {
			t.Fatalf("%+v %+v %v", n, again, err)
		}
	})
}
