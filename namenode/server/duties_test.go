package server

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs"
)

// Log time goes on from where the log has it, by the monotonic clock, and has nothing to do with the wall's.
func TestLogTimeGoesOnFromTheLog(t *testing.T) {
	var c clock
	began := time.Now()
	if got := c.log(began); got != 0 {
		t.Errorf("%d before a reign", got)
	}
	c.start(5000, began)
	if got := c.log(began.Add(3 * time.Second)); got != 8000 {
		t.Errorf("%d three seconds after 5000", got)
	}
	// The process is stopped for an hour: nothing is counted but what may be a busy machine.
	c.tick(began.Add(3 * time.Second))
	if got := c.log(began.Add(time.Hour)); got != 13000 {
		t.Errorf("%d when the process has just gone on", got)
	}
	c.tick(began.Add(time.Hour))
	if got := c.log(began.Add(time.Hour + time.Second)); got != 14000 {
		t.Errorf("%d a second later", got)
	}
	c.stop()
	if got := c.log(began.Add(4 * time.Second)); got != 0 {
		t.Errorf("%d after a reign", got)
	}
}

func TestIDsComeOnce(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.leader()
	r := m.reign.Load()
	var mu sync.Mutex
	blocks, generations := map[metadata.BlockID]bool{}, map[metadata.Generation]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 4000 {
				done := make(chan struct{})
				m.newBlock(r, blockID, func(b metadata.Block, err error) {
					mu.Lock()
					defer mu.Unlock()
					defer close(done)
					if err != nil || blocks[b.ID] || generations[b.Generation] {
						t.Errorf("%v, %v: again", b, err)
					}
					blocks[b.ID], generations[b.Generation] = true, true
				})
				<-done
			}
		})
	}
	wg.Wait()
	if len(blocks) != 32000 {
		t.Errorf("%d ids, want 32000", len(blocks))
	}
}

// beyondHardLimit is longer than a writer may be silent.
var beyondHardLimit = namespace.LogTime(config.DefaultProperties().LeaseHardLimit+1) * 1000

func TestALeaseBeyondTheHardLimitIsRecovered(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn := c.datanode("dn1")
	m := c.leader()
	w := m.begin(t, "/f", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	dn.has(w.block(9), pb.ReplicaState_RBW)
	m.checkLeases(m.reign.Load())
	if f, _ := m.ns.Stat(m.caller(), "/f"); !f.UnderConstruction {
		t.Fatal("the file is closed before the limit")
	}
	m.clock.pass(beyondHardLimit)
	m.checkLeases(m.reign.Load()) // as the leader does every 2 s
	eventually(t, "the file is closed", func() bool {
		closed, err := c.root().IsFileClosed(t.Context(), "/f")
		return err == nil && closed
	})
}

func TestASilentWritersFileCanBeTakenOver(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.leader()
	m.begin(t, "/f", "silent", 1)
	create := func(client string) error {
		got := make(chan error, 1)
		m.Create(m.caller(), namenode.CreateRequest{Path: "/f", Mode: 0o644, Client: client, Create: true, Replication: 1, BlockSize: 1 << 20},
			func(_ *metadata.FileStatus, err error) { got <- err })
		return <-got
	}
	if err := create("other"); !errors.Is(err, metadata.ErrBeingCreated) {
		t.Fatalf("before the soft limit: %v", err)
	}
	m.clock.pass(2 * namespace.SoftLimit)
	if err := create("other"); !errors.Is(err, metadata.ErrRecoveryInProgress) {
		t.Fatalf("after the soft limit: %v", err)
	}
	eventually(t, "the file is closed", func() bool { return errors.Is(create("other"), metadata.ErrExist) })
}

// Nobody can take over from a writer because its namenode was away: all leases are renewed before a new leader serves.
func TestLeasesAreRenewedBeforeALeaderServes(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.leader().begin(t, "/f", "writer", 1)
	m := c.leader()
	m.clock.pass(2 * namespace.SoftLimit)
	mkdir := make(chan error, 1)
	m.Mkdirs(m.caller(), namenode.MkdirsRequest{Path: "/d", Mode: 0o755}, func(err error) { mkdir <- err })
	if err := <-mkdir; err != nil {
		t.Fatal(err)
	}
	before := m.ns.LogTime()
	if renewed, _ := m.ns.Lease("writer"); before-renewed < namespace.SoftLimit {
		t.Fatalf("renewed at %d, it is %d", renewed, before)
	}
	m.stop()
	c.start(0)
	m = c.leader()
	if renewed, ok := m.ns.Lease("writer"); !ok || renewed < before {
		t.Errorf("it leads, the lease was renewed at %d, log time was %d before", renewed, before)
	}
}

func TestRenewedLeasesLast(t *testing.T) {
	var l leases
	l.init()
	now := namespace.LogTime(7)
	if l.renew("idle", now) {
		t.Error("a client without files is replicated")
	}
	l.opened("writer", now)
	if l.renew("writer", now+renewEvery-1000) {
		t.Error("a renewal soon after the last is replicated")
	}
	if !l.renew("writer", now+renewEvery) {
		t.Error("a later renewal is not replicated")
	}
	if l.renew("writer", now+renewEvery+1000) {
		t.Error("it is replicated again at once")
	}
}

func TestDeletedTreesAreTakenApart(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.leader()
	var wg sync.WaitGroup
	for i := range 4000 {
		wg.Add(1)
		m.Mkdirs(m.caller(), namenode.MkdirsRequest{Path: fmt.Sprintf("/d/%d/%d", i%10, i), Mode: 0o755, Parents: true}, func(err error) {
			if err != nil {
				t.Error(err)
			}
			wg.Done()
		})
	}
	wg.Wait()
	if _, err := c.root().Delete(t.Context(), "/d", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is left of it", func() bool { n := m.ns.Counts(); return n.Reclaiming == 0 && n.Directories == 1 })
}

// A user deletes a large tree of his, which is looked at beside the commands, and not one in which something is not his; so is
// one that gets a quota counted.
func TestOwnersDeleteLargeTrees(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.leader()
	bob := metadata.Caller{User: "bob", Host: "127.0.0.1"}
	wait := func(n int, call func(done func(error))) (last error) {
		t.Helper()
		got := make(chan error, n)
		call(func(err error) { got <- err })
		for range n {
			if err := <-got; err != nil {
				last = err
			}
		}
		return last
	}
	fill := func(root string) {
		t.Helper()
		if err := wait(1, func(done func(error)) {
			m.Mkdirs(m.caller(), namenode.MkdirsRequest{Path: root, Mode: 0o755, Parents: true}, done)
		}); err != nil {
			t.Fatal(err)
		}
		if err := wait(1, func(done func(error)) { m.SetOwner(m.caller(), root, "bob", "", done) }); err != nil {
			t.Fatal(err)
		}
		const dirs = 2500
		if err := wait(dirs, func(done func(error)) {
			for i := range dirs {
				m.Mkdirs(bob, namenode.MkdirsRequest{Path: fmt.Sprintf("%s/t/%d/%d", root, i%10, i), Mode: 0o755, Parents: true}, done)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(path string) error {
		t.Helper()
		return wait(1, func(done func(error)) {
			m.Delete(bob, namenode.Retry{}, path, true, func(ok bool, err error) {
				if err == nil && !ok {
					err = errors.New("nothing was deleted")
				}
				done(err)
			})
		})
	}
	fill("/bob")
	if err := wait(1, func(done func(error)) { m.SetQuota(m.caller(), "/bob", 10_000, metadata.QuotaKeep, done) }); err != nil {
		t.Error(err)
	}
	if u, err := m.ns.QuotaUsage(m.caller(), "/bob"); err != nil || u.Names != 2+10+2500 || u.NameQuota != 10_000 {
		t.Errorf("its usage: %+v, %v", u, err)
	}
	if err := remove("/bob/t"); err != nil {
		t.Error(err)
	}
	if st, err := m.ns.Stat(bob, "/bob/t"); st != nil || err != nil {
		t.Errorf("it is still there: %v", err)
	}
	fill("/bob")
	if err := wait(1, func(done func(error)) {
		m.Mkdirs(m.caller(), namenode.MkdirsRequest{Path: "/bob/t/3/closed/x", Mode: 0o700, Parents: true}, done)
	}); err != nil {
		t.Fatal(err)
	}
	if err := remove("/bob/t"); !errors.Is(err, metadata.ErrPermission) {
		t.Errorf("with a directory that is not his: %v", err)
	}
	if err := wait(1, func(done func(error)) {
		m.RenameTo(bob, namenode.Retry{}, "/bob/t", "/bob/trash", false, true, done)
	}); !errors.Is(err, metadata.ErrPermission) {
		t.Errorf("to the trash: %v", err)
	}
}

// Safe mode that an administrator has set is the cluster's: the next leader is in it, and so is one that restarts.
func TestSafeModeByHandOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	first := c.leader()
	eventually(t, "it is out of the safe mode of the start", func() bool { return first.SafeMode() == "" })
	if err := first.SetSafeMode(true); err != nil {
		t.Fatal(err)
	}
	i := slices.Index(c.nodes, first)
	first.stop()
	c.nodes[i] = nil
	next := c.leader()
	mkdir := func(m *member) error {
		got := make(chan error, 1)
		m.Mkdirs(m.caller(), namenode.MkdirsRequest{Path: "/d", Mode: 0o755}, func(err error) { got <- err })
		return <-got
	}
	if err := mkdir(next); !errors.Is(err, metadata.ErrSafeMode) || !strings.Contains(next.SafeMode(), "turned on manually") {
		t.Errorf("the next leader: %v, %q", err, next.SafeMode())
	}
	if err := next.SetSafeMode(false); err != nil {
		t.Fatal(err)
	}
	if err := mkdir(next); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	c.start(i)
	c.await(i)
	again := c.nodes[i]
	eventually(t, "the one that restarted has heard that it is over", func() bool { return !strings.Contains(again.SafeMode(), "manually") })
}

func TestAdditionalDatanodesAndNewPipelines(t *testing.T) {
	c := newCluster(t, 1, nil)
	all := map[string]*datanode{"dn1": c.datanode("dn1"), "dn2": c.datanode("dn2"), "dn3": c.datanode("dn3")}
	m := c.leader()
	w := m.begin(t, "/f", "writer", 2)
	l, err := w.addBlock()
	if err != nil {
		t.Fatal(err)
	}
	first, second := l.Locs[0].Id.GetDatanodeUuid(), l.Locs[1].Id.GetDatanodeUuid()
	b := w.block(0)
	for _, id := range []string{first, second} {
		all[id].has(b, pb.ReplicaState_RBW)
	}
	// The second fails; a third is asked for.
	type answer struct {
		l   *namenode.LocatedBlock
		err error
	}
	got := make(chan answer, 1)
	request := namenode.MoreTargetsRequest{
		File: namenode.FileRef{Path: "/f"}, Client: "writer", Block: b, Want: 1, Exclude: []namenode.NodeID{namenode.NodeID(second)},
		Existing: []namenode.Location{{Node: &namenode.Node{ID: namenode.NodeID(first)}}},
	}
	m.MoreTargets(m.caller(), request, func(l *namenode.LocatedBlock, err error) { got <- answer{l, err} })
	a := <-got
	if a.err != nil || len(a.l.Locations) != 2 || string(a.l.Locations[0].Node.ID) != first || string(a.l.Locations[1].Node.ID) == second {
		t.Fatalf("more targets: %+v, %v", a.l, a.err)
	}
	third := string(a.l.Locations[1].Node.ID)
	request.Existing[0].Node = &namenode.Node{ID: "stranger"}
	m.MoreTargets(m.caller(), request, func(l *namenode.LocatedBlock, err error) { got <- answer{l, err} })
	if a := <-got; a.err == nil {
		t.Error("an unknown datanode is part of a pipeline")
	}
	// A new generation, which changes nothing yet.
	type bumped struct {
		b   metadata.Block
		err error
	}
	bump := make(chan bumped, 1)
	tell := func(l *namenode.LocatedBlock, err error) {
		if err != nil {
			l = &namenode.LocatedBlock{}
		}
		bump <- bumped{l.Block, err}
	}
	m.BumpBlock(m.caller(), "writer", b, tell)
	n := <-bump
	if n.err != nil || n.b.ID != b.ID || n.b.Generation <= b.Generation {
		t.Fatalf("new generation: %+v", n)
	}
	m.BumpBlock(m.caller(), "thief", b, tell)
	if n := <-bump; !errors.Is(n.err, metadata.ErrLeaseExpired) {
		t.Errorf("new generation for somebody else: %+v", n)
	}
	done := make(chan error, 1)
	m.UpdatePipeline(m.caller(), namenode.UpdatePipelineRequest{
		Client: "writer", Old: b, New: n.b, Nodes: []namenode.NodeID{namenode.NodeID(first), namenode.NodeID(third)},
	}, func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// The stale replica of the second does not count, and goes when the file is closed.
	w.last.GenerationStamp = ptr(uint64(n.b.Generation))
	finished := metadata.Block{ID: b.ID, Generation: n.b.Generation, Length: 5}
	w.last.NumBytes = ptr(uint64(5))
	all[first].has(finished, pb.ReplicaState_FINALIZED)
	all[third].has(finished, pb.ReplicaState_FINALIZED)
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatalf("complete: %t, %v", ok, err)
	}
	all[second].received("discard the stale replica", func(o *pb.Orders) bool {
		return len(o.Discard) == 1 && o.Discard[0].Id == int64(b.ID) && o.Discard[0].Generation == uint64(b.Generation)
	})
}

func TestAppendReopensTheLastBlock(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn := c.datanode("dn1")
	m := c.leader()
	w := m.begin(t, "/f", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	b := w.block(10)
	dn.has(b, pb.ReplicaState_FINALIZED)
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatalf("complete: %t, %v", ok, err)
	}
	type answer struct {
		l   *namenode.LocatedBlock
		f   *metadata.FileStatus
		err error
	}
	got := make(chan answer, 1)
	add := func(client string) answer {
		m.Append(m.caller(), namenode.AppendRequest{Path: "/f", Client: client}, func(l *namenode.LocatedBlock, f *metadata.FileStatus, err error) {
			got <- answer{l, f, err}
		})
		return <-got
	}
	a := add("second")
	if a.err != nil || a.l == nil || a.l.Block != b || len(a.l.Locations) != 1 || a.f.Length != 10 {
		t.Fatalf("append: %+v", a)
	}
	if a := add("third"); !errors.Is(a.err, metadata.ErrBeingCreated) {
		t.Errorf("append to an open file: %v", a.err)
	}
	if a := add("third"); metadata.KindOf(a.err) != metadata.ErrBeingCreated {
		t.Errorf("again: %v", a.err)
	}
	m.Append(m.caller(), namenode.AppendRequest{Path: "/nope", Client: "x"}, func(l *namenode.LocatedBlock, f *metadata.FileStatus, err error) { got <- answer{l, f, err} })
	if a := <-got; !errors.Is(a.err, metadata.ErrNotExist) {
		t.Errorf("append to nothing: %v", a.err)
	}
}

func TestPathLimitsAreErrorsWithAName(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.leader()
	long := make([]byte, 9000)
	for i := range long {
		long[i] = 'a'
		if i%100 == 0 {
			long[i] = '/'
		}
	}
	for path, class := range map[string]string{
		string(long): hdfs.IOException, "relative": hdfs.InvalidPath, "/a/../b": hdfs.InvalidPath, "/ordinary": "",
	} {
		got := make(chan error, 1)
		m.Mkdirs(m.caller(), namenode.MkdirsRequest{Path: path, Mode: 0o755, Parents: true}, func(err error) { got <- err })
		err := <-got
		if class == "" {
			if err != nil {
				t.Errorf("mkdir %.20s: %v", path, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("mkdir %.20s succeeded", path)
			continue
		}
		if got, _ := hdfs.Exception(err); got != class {
			t.Errorf("mkdir %.20s: %s %v, want %s", path, got, err, class)
		}
	}
}

// Reading sets a file's access time, but not more often than once in the precision, and not at all with none.
func TestReadsSetTheAccessTime(t *testing.T) {
	for name, test := range map[string]struct {
		precision int
		set       bool
	}{"with a precision": {3600 * 1000, true}, "without": {0, false}} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, func(c *Config) { c.Properties.AccessTimePrecision = test.precision })
			m := c.leader()
			w := m.begin(t, "/f", "writer", 1)
			if ok, err := w.complete(); err != nil || !ok {
				t.Fatalf("complete: %t, %v", ok, err)
			}
			change := func(mtime, atime metadata.Time) {
				t.Helper()
				got := make(chan error, 1)
				m.SetTimes(m.caller(), "/f", mtime, atime, func(err error) { got <- err })
				if err := <-got; err != nil {
					t.Fatal(err)
				}
			}
			times := func() (mtime, atime metadata.Time) {
				t.Helper()
				got := make(chan *metadata.FileStatus, 1)
				m.Stat(m.caller(), "/f", func(f *metadata.FileStatus, _ error) { got <- f })
				f := <-got
				return f.MTime, f.ATime
			}
			read := func() {
				t.Helper()
				got := make(chan error, 1)
				m.Locate(metadata.Caller{User: "reader", Groups: []string{"supergroup"}}, namenode.LocateRequest{Path: "/f", Length: 1}, func(_ *namenode.LocatedFile, err error) { got <- err })
				if err := <-got; err != nil {
					t.Fatal(err)
				}
				change(7, -1) // goes through the log behind what the read has set off
			}
			_, fresh := times()
			read()
			if _, atime := times(); atime != fresh {
				t.Errorf("a read soon after the file was made changed its access time from %d to %d", fresh, atime)
			}
			change(-1, 1000)
			read()
			switch mtime, atime := times(); {
			case mtime != 7:
				t.Errorf("modification time %d", mtime)
			case test.set && atime < fresh, !test.set && atime != 1000:
				t.Errorf("access time %d after a read, %d before", atime, 1000)
			}
		})
	}
}
