package search

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gohops/hops/internal/glob"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/feed"
	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

var (
	super = metadata.Caller{User: "hops", Groups: []string{"supergroup"}, Superuser: true}
	alice = metadata.Caller{User: "alice", Groups: []string{"users"}}
	bob   = metadata.Caller{User: "bob", Groups: []string{"users"}}
)

// member is a namespace with its feed and its index, and the log from which they are made.
type member struct {
	store, index kv.Store
	dir          string
	feedBytes    int64
	disk         journal.Disk // of the feed; nil: the operating system's
	ns           *namespace.Namespace
	feed         *feed.Log
	x            *Index
	log          [][]byte
	applied      atomic.Uint64 // the last entry of which the feed has all events
	time         int64
	first        int64 // the first block
	blocks       int64
}

func newMember(t testing.TB) *member {
	t.Helper()
	m := &member{store: mem.New(), index: mem.New(), dir: filepath.Join(t.TempDir(), "feed")}
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	m.open(t)
	v := m.do(t, super, &logpb.Command_ReserveIds{ReserveIds: &logpb.ReserveIDs{Blocks: 1 << 20, Generations: 1 << 20, Owner: "hops"}}).Reserved
	m.first = int64(v.FirstBlock)
	m.mkdir(t, super, "/", 0o777)
	return m
}

func (m *member) open(t testing.TB) {
	t.Helper()
	var err error
	m.ns, err = namespace.Open(namespace.Config{
		Store: m.store, Owner: "hops", Supergroup: "supergroup", Memory: 1,
		OnEvents: func(index uint64, at namespace.LogTime, events []metadata.Event) {
			m.feed.Append(index, int64(at), events)
		},
		OnCheckpoint: func(index uint64) {
			if err := m.feed.Sync(index); err != nil {
				t.Error(err)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.feed, err = feed.Open(feed.Config{Dir: m.dir, Bytes: m.feedBytes, Applied: m.ns.AppliedIndex(), Disk: m.disk, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.feed.Close() })
	for i := m.ns.AppliedIndex(); i < uint64(len(m.log)); i++ {
		m.ns.Apply(i+1, [][]byte{m.log[i]})
	}
	m.applied.Store(m.ns.AppliedIndex())
	m.openIndex(t)
}

func (m *member) openIndex(t testing.TB) {
	t.Helper()
	var err error
	m.x, err = Open(Config{
		Store: m.index, Namespace: m.ns, Feed: m.feed, Applied: m.applied.Load, Checkpoint: func() error { return m.checkpoint() }, Memory: 4 << 10,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (m *member) checkpoint() error {
	s, err := m.ns.Freeze()
	if err != nil {
		return err
	}
	defer s.Release()
	_, err = s.WriteTo(io.Discard)
	return err
}

// catchUp has the index look at all there is, and write now and then.
func (m *member) catchUp(t testing.TB) {
	t.Helper()
	for range 10_000 {
		m.x.mu.Lock()
		wanted := m.x.wanted
		m.x.mu.Unlock()
		if wanted {
			if err := m.x.rebuild(t.Context()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := m.x.save(); err != nil {
			t.Fatal(err)
		}
		more, err := m.x.follow()
		if err == errLost {
			m.x.Rebuild()
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return
		}
	}
	t.Fatal("it does not come to an end")
}

// flush has everything written.
func (m *member) flush(t testing.TB) {
	t.Helper()
	x := m.x
	x.mu.Lock()
	flushing := x.flushing
	x.mu.Unlock()
	if flushing != nil {
		x.ended(<-flushing)
	}
	x.mu.Lock()
	ok := x.freeze()
	x.mu.Unlock()
	if ok {
		x.ended(write(x.cfg.Store, x.frozen, x.frozenAt))
	}
	if x.failed != nil {
		t.Fatal(x.failed)
	}
}

func target(t testing.TB, path string) *logpb.Target {
	t.Helper()
	out, err := namespace.TargetOf(path)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// do applies a command that need not succeed. op is one of logpb.Command's.
func (m *member) do(t testing.TB, c metadata.Caller, op any) *namespace.Result {
	t.Helper()
	m.time += 10
	cmd := namespace.NewCommand(c, nil, -1, metadata.Time(1_000_000+m.time))
	cmd.LogTime = m.time
	switch op := op.(type) {
	case *logpb.Command_ReserveIds:
		cmd.Op = op
	case *logpb.Command_Mkdirs:
		cmd.Op = op
	case *logpb.Command_Create:
		cmd.Op = op
	case *logpb.Command_AddBlock:
		cmd.Op = op
	case *logpb.Command_Complete:
		cmd.Op = op
	case *logpb.Command_Delete:
		cmd.Op = op
	case *logpb.Command_Rename:
		cmd.Op = op
	case *logpb.Command_Concat:
		cmd.Op = op
	case *logpb.Command_Truncate:
		cmd.Op = op
	case *logpb.Command_Append:
		cmd.Op = op
	case *logpb.Command_SetXattr:
		cmd.Op = op
	case *logpb.Command_RemoveXattr:
		cmd.Op = op
	case *logpb.Command_SetPermission:
		cmd.Op = op
	case *logpb.Command_SetOwner:
		cmd.Op = op
	case *logpb.Command_SetAcl:
		cmd.Op = op
	case *logpb.Command_ChangeSnapshots:
		cmd.Op = op
	default:
		t.Fatalf("%T", op)
	}
	data, err := cmd.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	m.log = append(m.log, data)
	defer m.applied.Store(uint64(len(m.log))) // a read sees an entry before its events are told
	return m.ns.Apply(uint64(len(m.log)), [][]byte{data})[0].(*namespace.Result)
}

func (m *member) mkdir(t testing.TB, c metadata.Caller, path string, mode uint32) {
	m.do(t, c, &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: target(t, path), Mode: mode, CreateParent: true}})
	m.do(t, c, &logpb.Command_SetPermission{SetPermission: &logpb.SetPermission{Target: target(t, path), Mode: mode}})
}

// file makes a file of a size, and leaves it open if that is negative.
func (m *member) file(t testing.TB, c metadata.Caller, path string, size int64) {
	t.Helper()
	r := m.do(t, c, &logpb.Command_Create{Create: &logpb.Create{
		Target: target(t, path), Mode: 0o644, ClientName: "c", Create: true, Overwrite: true, CreateParent: true, Replication: 3, BlockSize: 1 << 20,
	}})
	if r.Err != nil || r.Status == nil || size < 0 {
		return
	}
	complete := &logpb.Complete{Inode: uint64(r.Status.ID), ClientName: "c"}
	if size > 0 {
		b := &logpb.Block{Id: m.first + m.blocks, Generation: uint64(1001 + m.blocks)}
		m.blocks++
		if r := m.do(t, c, &logpb.Command_AddBlock{AddBlock: &logpb.AddBlock{Inode: uint64(r.Status.ID), ClientName: "c", Block: b}}); r.Err != nil {
			t.Fatal(r.Err)
		}
		complete.Last = &logpb.Block{Id: b.Id, Generation: b.Generation, Length: size}
	}
	if r := m.do(t, c, &logpb.Command_Complete{Complete: complete}); r.Err != nil {
		t.Fatal(r.Err)
	}
}

func (m *member) tag(t testing.TB, c metadata.Caller, path, name, value string) {
	m.do(t, c, &logpb.Command_SetXattr{SetXattr: &logpb.SetXAttr{
		Target: target(t, path), Create: true, Replace: true, Attribute: &logpb.XAttr{Name: name, Value: []byte(value)},
	}})
}

// walk is what a query should give: by listing every directory that the caller may list.
func (m *member) walk(t testing.TB, c metadata.Caller, q metadata.Query) (paths []string) {
	t.Helper()
	holds := func(st *metadata.FileStatus, full string) bool {
		if q.Files != q.Directories && st.IsDir() != q.Directories || (q.Min != nil || q.Max != nil) && st.IsDir() {
			return false
		}
		if q.Min != nil && st.Length < *q.Min || q.Max != nil && st.Length > *q.Max {
			return false
		}
		if q.Name != "" {
			pattern, name := q.Name, path.Base(full)
			if q.Fold {
				pattern, name = strings.ToLower(pattern), strings.ToLower(name)
			}
			re, err := glob.Compile(pattern)
			if err != nil {
				t.Fatal(err)
			}
			if !re.MatchString(name) {
				return false
			}
		}
		if len(q.Tags) == 0 {
			return true
		}
		have, err := m.ns.ListXAttrs(c, full)
		if err != nil {
			return false
		}
		for _, want := range q.Tags {
			if !slices.ContainsFunc(have, func(a metadata.XAttr) bool {
				return a.Namespace == metadata.XAttrUser && a.Name == want.Name && (want.Value == nil || *want.Value == string(a.Value))
			}) {
				return false
			}
		}
		return true
	}
	var down func(st *metadata.FileStatus, full string)
	down = func(st *metadata.FileStatus, full string) {
		if full != "/" && holds(st, full) {
			paths = append(paths, full)
		}
		if !st.IsDir() {
			return
		}
		l, err := m.ns.List(c, full, "", 10_000)
		if err != nil || l == nil {
			return
		}
		for i := range l.Entries {
			down(&l.Entries[i], path.Join(full, l.Entries[i].Name))
		}
	}
	st, err := m.ns.Stat(c, q.Path)
	if err != nil || st == nil {
		return nil
	}
	down(st, q.Path)
	slices.Sort(paths)
	return paths
}

// find asks the index, page by page.
func (m *member) find(t testing.TB, c metadata.Caller, q metadata.Query) (paths []string) {
	t.Helper()
	for range 10_000 {
		answer, err := m.x.Find(t.Context(), c, q)
		if err != nil {
			if kind := metadata.KindOf(err); kind == metadata.ErrNotExist || kind == metadata.ErrPermission || kind == metadata.ErrParentNotDirectory {
				return nil
			}
			t.Fatal(err)
		}
		for _, f := range answer.Found {
			paths = append(paths, f.Path)
		}
		if q.Cursor = answer.Next; q.Cursor == "" {
			slices.Sort(paths)
			return paths
		}
	}
	t.Fatal("it does not come to an end")
	return nil
}

// names are what files and directories are called here.
var names = []string{"a", "b", "ab", "abc", "B", "part-1", "part-10", "x*y", ".hid", "日本"}

func drawnPath(r *rand.Rand) string {
	p := ""
	for range 1 + r.IntN(3) {
		p += "/" + names[r.IntN(len(names))]
	}
	return p
}

var tagValues = []string{"", "vision", "v", "a\x00b", strings.Repeat("l", keptValue), strings.Repeat("l", keptValue+1), strings.Repeat("l", keptValue) + "m", strings.Repeat("l", keptValue) + "mm"}

// query draws one.
func drawnQuery(r *rand.Rand) metadata.Query {
	q := metadata.Query{Path: "/", Limit: []int{1, 2, 3, 100}[r.IntN(4)]}
	if r.IntN(2) == 0 {
		q.Path = drawnPath(r)
	}
	if r.IntN(2) == 0 {
		q.Name = []string{"*", "a*", "part-*", "ab", "x\\*y", "?", "[a-b]*", "*1*", "日?", "B", ".*", "none"}[r.IntN(12)]
		q.Fold = r.IntN(3) == 0
	}
	for r.IntN(3) == 0 && len(q.Tags) < 3 {
		c := metadata.TagCondition{Name: []string{"team", "t", "tea"}[r.IntN(3)]}
		if r.IntN(2) == 0 {
			c.Value = new(tagValues[r.IntN(len(tagValues))])
		}
		q.Tags = append(q.Tags, c)
	}
	if r.IntN(3) == 0 {
		if r.IntN(2) == 0 {
			q.Min = new(int64(r.IntN(6)))
		}
		if r.IntN(2) == 0 {
			q.Max = new(int64(r.IntN(6)))
		}
	}
	q.Files = r.IntN(4) == 0
	q.Directories = r.IntN(4) == 0 && q.Min == nil && q.Max == nil
	return q
}

// compare holds queries against walks.
func (m *member) compare(t testing.TB, r *rand.Rand, queries int, what string) {
	t.Helper()
	for range queries {
		q := drawnQuery(r)
		c := []metadata.Caller{super, alice, bob}[r.IntN(3)]
		want, got := m.walk(t, c, q), m.find(t, c, q)
		if q.Min != nil || q.Max != nil { // what is being written has the size of before
			got, want = m.closed(t, got), m.closed(t, want)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: %s asks %s: the index has\n%q\nthe walk\n%q\n%s", what, c.User, show(q), got, want, m.dump())
		}
	}
	if s := m.x.Status(); s.Surprises > 0 {
		t.Fatalf("%s: %+v", what, s)
	}
}

func (m *member) closed(t testing.TB, paths []string) []string {
	return slices.DeleteFunc(paths, func(p string) bool {
		st, err := m.ns.Stat(super, p)
		if err != nil {
			t.Fatal(err)
		}
		return st == nil || st.UnderConstruction
	})
}

func show(q metadata.Query) string {
	s := fmt.Sprintf("%+v", q)
	for _, c := range q.Tags {
		if c.Value != nil {
			s += fmt.Sprintf(" %s=%q", c.Name, *c.Value)
		}
	}
	for _, n := range []*int64{q.Min, q.Max} {
		if n != nil {
			s += fmt.Sprint(" ", *n)
		}
	}
	return s
}

// content is the whole index.
func (m *member) content(fn func(key, value []byte)) error {
	x := m.x
	l := layers{x.recent, x.frozen, x.cfg.Store.View(x.stored)}
	defer l.view.Close()
	return l.scan("", "", func(key, value []byte) bool {
		fn(key, value)
		return true
	})
}

func (m *member) dump() string {
	var b strings.Builder
	err := m.content(func(key, value []byte) {
		fmt.Fprintf(&b, "%q", key)
		if n, err := decode(value); key[0] == classINode && err == nil {
			fmt.Fprintf(&b, " %+v", *n)
		}
		b.WriteByte('\n')
	})
	return fmt.Sprintf("%s%+v %v", b.String(), m.x.Status(), err)
}
