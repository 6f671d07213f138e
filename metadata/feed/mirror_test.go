package feed_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/feed"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
)

var super = metadata.Caller{User: "hops", Groups: []string{"supergroup"}, Superuser: true}

// node is what a mirror knows of a file or directory.
type node struct {
	id          metadata.INodeID
	dir, open   bool
	owner       string
	mode        metadata.Mode
	length      int64
	replication uint16
	xattrs      map[string]string
}

// mirror is a tree made of the feed alone.
type mirror struct {
	nodes map[string]*node
	at    metadata.Position
}

func newMirror() *mirror {
	return &mirror{nodes: map[string]*node{"/": {id: metadata.RootID, dir: true, owner: "hops", mode: 0o755, xattrs: map[string]string{}}}}
}

func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func (m *mirror) apply(e metadata.Event) {
	n := m.nodes[e.Path]
	switch e.Kind {
	case metadata.EventCreate:
		m.nodes[e.Path] = &node{id: e.INode, dir: e.Dir, open: !e.Dir, owner: e.Owner, mode: e.Mode, replication: e.Replication, xattrs: map[string]string{}}
	case metadata.EventClose:
		n.open, n.length = false, e.Length
	case metadata.EventAppend:
		n.open = true
	case metadata.EventTruncate:
		n.length = e.Length
	case metadata.EventUnlink:
		maps.DeleteFunc(m.nodes, func(p string, _ *node) bool { return under(p, e.Path) })
	case metadata.EventRename:
		moved := map[string]*node{}
		for p, n := range m.nodes {
			if under(p, e.Path) {
				moved[e.Target+p[len(e.Path):]] = n
				delete(m.nodes, p)
			}
		}
		maps.Copy(m.nodes, moved)
	case metadata.EventMetadata:
		switch e.Update {
		case metadata.UpdateOwner:
			n.owner = e.Owner
		case metadata.UpdatePermission, metadata.UpdateACL:
			n.mode = e.Mode
		case metadata.UpdateReplication:
			n.replication = e.Replication
		case metadata.UpdateXAttrs:
			for _, x := range e.XAttrs {
				if n.xattrs[x.Name] = string(x.Value); e.Removed {
					delete(n.xattrs, x.Name)
				}
			}
		}
	}
}

// follow reads what is new.
func (m *mirror) follow(t *testing.T, l *feed.Log) {
	t.Helper()
	for {
		page, err := l.Read(m.at, 7, 1<<20)
		if err != nil || page.Missing {
			t.Fatalf("%+v, %v", page, err)
		}
		if m.at = page.Next; len(page.Events) == 0 {
			return
		}
		for _, e := range page.Events {
			m.apply(e)
		}
	}
}

func (m *mirror) String() string {
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(m.nodes)) {
		n := *m.nodes[path]
		if n.open {
			n.length = 0
		}
		fmt.Fprintf(&b, "%s %+v\n", path, n)
	}
	return b.String()
}

// of reads a namespace.
func of(t *testing.T, ns *namespace.Namespace) *mirror {
	t.Helper()
	m := &mirror{nodes: map[string]*node{}}
	var walk func(path string)
	walk = func(path string) {
		st, err := ns.Stat(super, path)
		if err != nil || st == nil {
			t.Fatal(path, st, err)
		}
		n := &node{id: st.ID, dir: st.IsDir(), open: st.UnderConstruction, owner: st.Owner, mode: st.Mode, length: st.Length, replication: st.Replication, xattrs: map[string]string{}}
		m.nodes[path] = n
		all, err := ns.ListXAttrs(super, path)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range all {
			n.xattrs[x.Name] = string(x.Value)
		}
		if n.dir {
			l, err := ns.List(super, path, "", 1000)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range l.Entries {
				walk(strings.TrimSuffix(path, "/") + "/" + e.Name)
			}
		}
	}
	walk("/")
	return m
}

// member is a namespace with its feed, and the log from which both are made.
type member struct {
	store *mem.Store
	dir   string
	ns    *namespace.Namespace
	feed  *feed.Log
	log   [][]byte
}

func (m *member) open(t *testing.T) {
	t.Helper()
	var err error
	m.ns, err = namespace.Open(namespace.Config{
		Store: m.store, Owner: "hops", Supergroup: "supergroup", Memory: 1,
		OnEvents: func(index uint64, at namespace.LogTime, events []metadata.Event) {
			m.feed.Append(index, int64(at), events)
		},
		OnCheckpoint: func(index uint64) { m.sync(t, index) },
	})
	if err != nil {
		t.Fatal(err)
	}
	m.feed, err = feed.Open(feed.Config{Dir: m.dir, Applied: m.ns.AppliedIndex(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for i := m.ns.AppliedIndex(); i < uint64(len(m.log)); i++ {
		m.ns.Apply(i+1, [][]byte{m.log[i]})
	}
}

func (m *member) sync(t *testing.T, index uint64) {
	if err := m.feed.Sync(index); err != nil {
		t.Error(err)
	}
}

func (m *member) checkpoint(t *testing.T) {
	t.Helper()
	if len(m.log) == 0 {
		return // there is nothing yet
	}
	s, err := m.ns.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	if _, err := s.WriteTo(discard{}); err != nil {
		t.Fatal(err)
	}
}

// copyFiles makes a directory with what another one has, in which files may come and go.
func copyFiles(t *testing.T, to, from string) {
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

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// A tree that is made of the feed alone is the namespace's, whatever operations are drawn, and wherever processes end between and behind them. The
// mirror goes on at its position each time.
func TestMirrorFollowsThroughCrashes(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 3))
		m := &member{store: mem.New(), dir: filepath.Join(t.TempDir(), "feed")}
		if err := os.Mkdir(m.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		m.open(t)
		tree := newMirror()
		for step := range 400 {
			switch r.IntN(40) {
			case 0:
				m.checkpoint(t)
			case 1, 2: // a kill, or a stop: what the feed had in memory is gone, or not
				if r.IntN(2) == 0 {
					m.feed.Close()
				}
				copied := filepath.Join(t.TempDir(), "feed")
				copyFiles(t, copied, m.dir)
				m.feed.Close()
				m.dir, m.store = copied, m.store.Crash(nil)
				m.open(t)
			case 3:
				tree.follow(t, m.feed)
			default:
				m.do(t, r, step)
			}
		}
		tree.follow(t, m.feed)
		if got, want := tree.String(), of(t, m.ns).String(); got != want {
			t.Fatalf("seed %d: a tree made of the feed:\n%s\nthe namespace:\n%s", seed, got, want)
		}
		m.feed.Close()
	}
}

// do carries out a drawn operation, which may be refused.
func (m *member) do(t *testing.T, r *rand.Rand, step int) {
	t.Helper()
	target := func() *logpb.Target {
		path := ""
		for range 1 + r.IntN(3) {
			path += "/" + string(rune('a'+r.IntN(4)))
		}
		out, err := namespace.TargetOf(path)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	cmd := namespace.NewCommand(super, nil, -1, metadata.Time(1_000_000+int64(step)*10))
	cmd.LogTime = int64(step) * 10
	switch r.IntN(11) {
	case 0, 1:
		cmd.Op = &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: target(), Mode: 0o755, CreateParent: true}}
	case 2, 3, 4:
		cmd.Op = &logpb.Command_Create{Create: &logpb.Create{
			Target: target(), Mode: 0o644, ClientName: "c", Create: true, Overwrite: r.IntN(2) == 0, CreateParent: true, Replication: 3, BlockSize: 1 << 20,
		}}
	case 5:
		cmd.Op = &logpb.Command_Delete{Delete: &logpb.Delete{Target: target(), Recursive: true}}
	case 6:
		cmd.Op = &logpb.Command_Rename{Rename: &logpb.Rename{Source: target(), Target: target(), Legacy: r.IntN(2) == 0, Overwrite: true}}
	case 7:
		cmd.Op = &logpb.Command_SetXattr{SetXattr: &logpb.SetXAttr{
			Target: target(), Create: true, Replace: true, Attribute: &logpb.XAttr{Name: string(rune('x' + r.IntN(3))), Value: fmt.Append(nil, step)},
		}}
	case 8:
		cmd.Op = &logpb.Command_SetOwner{SetOwner: &logpb.SetOwner{Target: target(), Owner: []string{"alice", "bob"}[r.IntN(2)]}}
	case 9:
		cmd.Op = &logpb.Command_SetPermission{SetPermission: &logpb.SetPermission{Target: target(), Mode: uint32(r.IntN(512))}}
	case 10:
		leases := m.ns.Leases()
		if len(leases) == 0 {
			return
		}
		files := leases[r.IntN(len(leases))]
		cmd.Op = &logpb.Command_Complete{Complete: &logpb.Complete{Inode: uint64(files.Files[r.IntN(len(files.Files))]), ClientName: "c"}}
	}
	data, err := cmd.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	m.log = append(m.log, data)
	m.ns.Apply(uint64(len(m.log)), [][]byte{data})
}
