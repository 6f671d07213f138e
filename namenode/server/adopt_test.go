package server

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

func closed(at metadata.Time, inode metadata.INodeID, length int64) metadata.Event {
	return metadata.Event{Kind: metadata.EventClose, Position: metadata.PositionOf(uint64(at), 0), Time: at, INode: inode, Length: length}
}

func TestWhichEventsAreDue(t *testing.T) {
	s := &Server{config: Config{SmallFileDelay: time.Minute}}
	a := &adopting{s: s}
	now := s.clock.wall()
	for what, c := range map[string]struct {
		ages []metadata.Time // in seconds
		want int
	}{
		"none":                    {nil, 0},
		"all old":                 {[]metadata.Time{300, 61}, 2},
		"one":                     {[]metadata.Time{61, 30, 61}, 1},
		"too young":               {[]metadata.Time{10}, 0},
		"of a wrong clock":        {[]metadata.Time{-500, -100, 70, 5}, 3},
		"of the wrong clock only": {[]metadata.Time{-500}, 1},
	} {
		var events []metadata.Event
		for _, age := range c.ages {
			events = append(events, closed(now-1000*age, 1, 1))
		}
		n, wait := a.due(events)
		if n != c.want || (n < len(events)) != (wait > 0) || wait > time.Minute {
			t.Errorf("%s: %d of %d, the next one in %v", what, n, len(events), wait)
		}
	}
}

func TestWhichFilesAreCandidates(t *testing.T) {
	a := &adopting{s: &Server{config: Config{SmallFileLimit: 1000}}}
	events := []metadata.Event{
		closed(1, 10, 5), closed(2, 11, 1000), closed(3, 12, 1001), closed(4, 13, 0), closed(5, 10, 7), // of the last
		{Kind: metadata.EventCreate, INode: 14, Position: 6},
		{Kind: metadata.EventTruncate, INode: 15, Length: 4, Position: metadata.PositionOf(7, 0)},
		{Kind: metadata.EventClose, INode: 16, Length: 4, Path: rewrites + "/99", Position: 8},
		closed(9, 17, 10), closed(10, 17, 5000),
	}
	got := map[metadata.INodeID]int64{}
	for _, f := range a.candidates(events) {
		got[f.inode] = f.length
		if f.inode == 10 && f.event != events[4].Position {
			t.Error("it is of position", f.event)
		}
	}
	if want := map[metadata.INodeID]int64{10: 7, 11: 1000, 15: 4}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// What fails is tried again, later and later, for as long as it fails; when more wait than there is room for, those that wait longest are given up.
func TestFilesAreTriedAgain(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.leader()
	a := &adopting{s: m.Server, again: time.Minute}
	fresh := []*adoptee{{inode: 1, failed: true}, {inode: 2}, {inode: 3, failed: true}}
	a.settle(fresh)
	if len(a.retries) != 2 || a.retries[0].tries != 1 || time.Until(a.retries[0].next) < 50*time.Second {
		t.Fatalf("%+v", a.retries)
	}
	first := a.retries[0]
	a.retries[1].tried = true
	a.settle(nil) // that one was kept
	if len(a.retries) != 1 || a.retries[0] != first || first.tries != 1 {
		t.Fatalf("%+v", a.retries)
	}
	var pauses []time.Duration
	for range 100 {
		first.tried, first.failed = true, true
		a.settle(nil)
		pauses = append(pauses, time.Until(first.next).Round(time.Minute))
	}
	if fmt.Sprint(pauses[:7]) != "[2m0s 4m0s 8m0s 16m0s 32m0s 1h4m0s 1h4m0s]" || pauses[99] != adoptSeldom*time.Minute || len(a.retries) != 1 || m.adoptions.dropped.Load() != 0 {
		t.Fatalf("%+v, after %v, %d dropped", a.retries, pauses, m.adoptions.dropped.Load())
	}
	many := make([]*adoptee, adoptRetries+7)
	for i := range many {
		many[i] = &adoptee{inode: metadata.INodeID(i), failed: true}
	}
	a.settle(many)
	if len(a.retries) != adoptRetries || m.adoptions.dropped.Load() != 7 || m.adoptions.waiting.Load() != adoptRetries {
		t.Errorf("%d wait, %d dropped", len(a.retries), m.adoptions.dropped.Load())
	}
}

// A leader notes how far it has come, in front of what it will try again, and not all the time.
func TestTheRegisterSaysWhatWasLookedAt(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.leader()
	if at := m.adoptedUpTo(); at != 0 {
		t.Fatal("a new cluster begins at", at)
	}
	far := metadata.PositionOf(9, 0)
	a := &adopting{s: m.Server, at: far, news: true, retries: []*adoptee{{event: metadata.PositionOf(7, 3)}, {event: metadata.PositionOf(8, 0)}}}
	a.note(t.Context())
	if at := m.adoptedUpTo(); at != metadata.PositionOf(7, 3)-1 {
		t.Errorf("it is at %v", at)
	}
	a.retries, a.news = nil, true
	a.note(t.Context())
	if at := m.adoptedUpTo(); at == far {
		t.Error("it is noted at once")
	}
	a.notedAt = time.Time{}
	a.note(t.Context())
	if at := m.adoptedUpTo(); at != far || a.noted != far || a.news {
		t.Errorf("it is at %v", at)
	}
	must(t, m.await(func(done func(error)) {
		_, version := m.ns.Item(adoptItem)
		m.proposeItems([]*logpb.ItemChange{itemChange(adoptItem, "nonsense", version)}, func(_ bool, err error) { done(err) })
	}))
	if at := m.adoptedUpTo(); at != 0 {
		t.Error("what cannot be read is", at)
	}
}

// Nothing becomes small in safe mode, and on a disk that is nearly full.
func TestWhenNothingIsAdopted(t *testing.T) {
	var free atomic.Int64
	free.Store(8 << 30)
	c := newCluster(t, 1, nil)
	c.nodes[0].stop()
	c.reserve = 1 << 30
	c.disk = func(string) (int64, int64, error) { return free.Load(), 10 << 30, nil }
	c.start(0)
	c.await(0)
	m := c.leader()
	eventually(t, "files may be kept", func() bool { return m.mayAdopt() == nil })
	must(t, m.SetSafeMode(true))
	if err := m.mayAdopt(); metadata.KindOf(err) != metadata.ErrSafeMode {
		t.Error("in safe mode:", err)
	}
	must(t, m.SetSafeMode(false))
	free.Store(900 << 20)
	eventually(t, "none is kept for want of room", func() bool { return metadata.KindOf(m.mayAdopt()) == metadata.ErrNoSpace })
	free.Store(8 << 30)
	eventually(t, "files may be kept again", func() bool { return m.mayAdopt() == nil })
}

// write makes a file as Hadoop's clients do.
func write(t *testing.T, fs *dfs.Client, path string, data []byte, o dfs.CreateOptions) {
	t.Helper()
	w, err := fs.Create(t.Context(), path, o)
	must(t, err)
	_, err = w.Write(data)
	must(t, err)
	must(t, w.Close())
}

// A file on a datanode is kept with its block's id, its replicas go, and a reader that has its places from before finds the bytes at the namenode; a datanode that lacks the replica leads to
// another try, and the next leader begins where this one has noted it.
func TestFilesOnDatanodesBecomeSmall(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) { c.SmallFileDelay = 50 * time.Millisecond })
	m := c.raised()
	stop := c.realDatanode("dn")
	fs, user := c.root(), m.config.Door.Daemon()
	eventually(t, "safe mode is over", func() bool { return m.SafeMode() == "" })
	data := smallBytes(30_000, 1)
	var path string
	var id metadata.INodeID
	var before *namespace.FileInfo
	var r *dfs.Reader
	files := 0
	eventually(t, "a file is opened before it is kept", func() bool {
		path = fmt.Sprint("/f", files)
		files++
		write(t, fs, path, data, dfs.CreateOptions{Replication: 1})
		var err error
		id, err = m.ns.Resolve(m.myself(), path)
		must(t, err)
		r, err = fs.Open(t.Context(), path)
		must(t, err)
		before, _ = m.ns.FileByID(id)
		if before.IsBody(0) {
			r.Close()
			return false
		}
		return true
	})
	defer r.Close()
	some := make([]byte, 10)
	_, err := io.ReadFull(r, some)
	must(t, err)
	eventually(t, "it is kept", func() bool { f, _ := m.ns.FileByID(id); return f.IsBody(0) })
	after, _ := m.ns.FileByID(id)
	if len(after.Blocks) != 1 || after.Blocks[0] != before.Blocks[0] || !reflect.DeepEqual(after.Status, before.Status) {
		t.Errorf("%+v, before %+v", after, before)
	}
	b := before.Blocks[0]
	eventually(t, "its replica is gone", func() bool {
		left := 0
		for _, d := range m.Datanodes() {
			m.soft.mu.Lock()
			for range m.soft.m.BlocksOf(d.Node.ID) {
				left++
			}
			m.soft.mu.Unlock()
		}
		return left == 0
	})
	stop()
	l, err := c.located(user, path)
	if err != nil || len(l.GetBlocks()) != 1 || l.Blocks[0].B.GetBlockId() != uint64(b.ID) || !namenode.IsDoor(namenode.NodeID(l.Blocks[0].Locs[0].Id.GetDatanodeUuid())) {
		t.Fatal(l, err)
	}
	rest, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(append(some, rest...), data) {
		t.Errorf("%d bytes after %d, %v", len(rest), len(some), err)
	}
	if n, size := m.adoptions.files.Load(), m.adoptions.bytes.Load(); n != int64(files) || size != n*int64(len(data)) {
		t.Errorf("%d files of %d bytes are counted", n, size)
	}
	eventually(t, "the register knows", func() bool { return m.adoptedUpTo() > 0 })
	noted := m.adoptedUpTo()
	m.stop()
	c.start(0)
	c.await(0)
	m = c.leader()
	if at := m.adoptedUpTo(); at < noted {
		t.Errorf("after a start it begins at %v, noted was %v", at, noted)
	}
}

// A datanode that is away for long has its files kept when it is back.
func TestFilesOfADatanodeThatWasAwayBecomeSmall(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) { c.SmallFileDelay = 20 * time.Millisecond })
	m := c.raised()
	stop := c.realDatanode("dn")
	fs := c.root()
	eventually(t, "safe mode is over", func() bool { return m.SafeMode() == "" })
	var id metadata.INodeID
	kept := func() bool { f, _ := m.ns.FileByID(id); return f.IsBody(0) }
	eventually(t, "a file is there before it is kept", func() bool {
		path := fmt.Sprint("/f", time.Now().UnixNano())
		write(t, fs, path, smallBytes(30_000, 1), dfs.CreateOptions{Replication: 1})
		must(t, m.SetSafeMode(true))
		var err error
		id, err = m.ns.Resolve(m.myself(), path)
		must(t, err)
		if kept() {
			must(t, m.SetSafeMode(false))
			return false
		}
		return true
	})
	stop()
	must(t, m.SetSafeMode(false))
	eventually(t, "it waits for another try", func() bool { return m.adoptions.waiting.Load() == 1 })
	time.Sleep(20 * m.config.SmallFileDelay)
	if m.adoptions.waiting.Load() != 1 || m.adoptions.dropped.Load() != 0 {
		t.Errorf("%d wait, %d were dropped", m.adoptions.waiting.Load(), m.adoptions.dropped.Load())
	}
	c.realDatanode("dn")
	eventually(t, "it is kept", kept)
}

// What a datanode does not give is tried again until it does, or the file is gone.
func TestFilesWhoseBytesCannotBeHad(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) { c.SmallFileDelay = 20 * time.Millisecond })
	m := c.raised()
	d := c.datanode("fake") // which serves no bytes
	eventually(t, "safe mode is over", func() bool { return m.SafeMode() == "" })
	w := m.begin(t, "/f", "writer", 1)
	_, err := w.addBlock()
	must(t, err)
	b := w.block(10)
	d.has(b, pb.ReplicaState_FINALIZED)
	eventually(t, "the file is closed", func() bool { ok, err := w.complete(); must(t, err); return ok })
	eventually(t, "it waits", func() bool { return m.adoptions.waiting.Load() == 1 })
	_, err = c.root().Delete(t.Context(), "/f", false)
	must(t, err)
	eventually(t, "it waits no more", func() bool { return m.adoptions.waiting.Load() == 0 })
	if m.adoptions.files.Load() != 0 || m.adoptions.dropped.Load() != 0 {
		t.Error("something is counted as kept, or dropped")
	}
}
