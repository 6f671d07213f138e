package server

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/client/shell"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/blockmanager"
	hdfspb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Who begins to convert a file needs READ and WRITE on the very file that is copied, by whichever number beside whichever path it is named, and a snapshot's is
// refused before anything is copied.
func TestWhichFilesMayBeConverted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	m := c.leader()
	root, ctx := c.root(), t.Context()
	check(t, m.group.Raise(release.SealedTails))
	check(t, root.Mkdirs(ctx, "/d", 0o777, true))
	check(t, root.SetPermission(ctx, "/d", 0o777))
	check(t, root.WriteFile(ctx, "/d/private", []byte("root's own"), false))
	check(t, root.SetPermission(ctx, "/d/private", 0o600))
	check(t, c.client("alice").WriteFile(ctx, "/d/mine", []byte("alice's own"), false))
	private, err := root.Stat(ctx, "/d/private")
	check(t, err)
	check(t, root.AllowSnapshot(ctx, "/d", true))
	_, err = root.CreateSnapshot(ctx, "/d", "s")
	check(t, err)

	for _, x := range []struct{ what, user, path, class string }{
		{"another one's by number", "alice", "", "AccessControlException"},
		{"another one's by number, and by path the own one", "alice", "/d/mine", "AccessControlException"},
		{"a snapshot's", m.config.Door.Daemon(), "/d/.snapshot/s/private", "SnapshotAccessControlException"},
	} {
		request := &hdfspb.BeginRewriteRequestProto{ClientName: new("c"), Policy: new(namenode.ReplicationPolicy)}
		if x.path != "" {
			request.Src = &x.path
		}
		if x.user == "alice" {
			request.FileId = new(uint64(private.ID))
		}
		var made hdfspb.BeginRewriteResponseProto
		if err := m.operator(t, x.user, "beginRewrite", request, &made); err == nil || !strings.Contains(err.Error(), x.class) {
			t.Errorf("%s: %v, want %s; inode %d was made", x.what, err, x.class, made.GetSource())
		}
	}
	if list, err := root.List(ctx, rewrites); err == nil && len(list) > 0 || err != nil && !errors.Is(err, metadata.ErrNotExist) {
		t.Errorf("%s has %+v (%v)", rewrites, list, err)
	}
}

// A copy under way counts for no quota. Its owner has no way to keep it, and it gets no longer than what it is a copy of.
func TestCopiesAreNoRoomBesideAQuota(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	m := c.leader()
	root, alice, ctx := c.root(), c.client("alice"), t.Context()
	check(t, m.group.Raise(release.SealedTails))
	check(t, root.Mkdirs(ctx, "/d", 0o777, true))
	check(t, root.SetPermission(ctx, "/d", 0o777))
	check(t, alice.WriteFile(ctx, "/d/mine", []byte("alice's own"), false))
	check(t, root.Mkdirs(ctx, rewrites, 0o711, true)) // as there are some
	mine, err := root.Stat(ctx, "/d/mine")
	check(t, err)
	var made hdfspb.BeginRewriteResponseProto
	begin := &hdfspb.BeginRewriteRequestProto{Src: new("/d/mine"), ClientName: new("c"), Policy: new("RS-6-3-1024k")}
	check(t, m.operator(t, "alice", "beginRewrite", begin, &made))
	copied := fmt.Sprintf("%s/%d", rewrites, mine.ID)
	for _, path := range []string{copied, fmt.Sprintf("/.reserved/.inodes/%d", made.GetSource())} {
		_, opened := alice.Open(ctx, path)
		_, appended := alice.Append(ctx, path)
		for what, err := range map[string]error{"opened": opened, "appended to": appended, "touched": alice.SetTimes(ctx, path, 1<<42, -1)} {
			if !errors.Is(err, metadata.ErrPermission) {
				t.Errorf("%s is %s: %v", path, what, err)
			}
		}
	}
	for _, x := range []struct {
		path     string
		length   int64
		previous int64 // beyond
		ok       bool
	}{{copied, 0, 0, true}, {copied, 10, 0, true}, {copied, 11, 0, false}, {copied, 5, 6, false}, {copied, 5, 5, true}, {"/d/mine", 11, 11, true}} {
		f := &namespace.FileInfo{Path: x.path, Blocks: []metadata.Block{{ID: 7}}}
		f.Status.Length = x.length
		if err := m.mayGrow(f, &metadata.Block{ID: 7, Length: x.previous}); (err == nil) != x.ok {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

// Who gives a conversion up has the copy removed by naming a file that is not there; that of somebody else stays.
func TestACopyThatIsGivenUpIsRemovedForItsOwner(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	m := c.leader()
	root, ctx := c.root(), t.Context()
	check(t, m.group.Raise(release.SealedTails))
	check(t, root.Mkdirs(ctx, "/d", 0o777, true))
	check(t, root.SetPermission(ctx, "/d", 0o777))
	check(t, c.client("alice").WriteFile(ctx, "/d/mine", []byte("alice's own"), false))
	var made hdfspb.BeginRewriteResponseProto
	begin := &hdfspb.BeginRewriteRequestProto{Src: new("/d/mine"), ClientName: new("c"), Policy: new("RS-6-3-1024k")}
	check(t, m.operator(t, "alice", "beginRewrite", begin, &made))
	for _, x := range []struct {
		user string
		gone bool
	}{{"bob", false}, {"alice", true}, {"alice", true}} {
		err := m.operator(t, x.user, "endRewrite", &hdfspb.EndRewriteRequestProto{Src: new("/.reserved/.inodes/none"), Source: made.Source}, new(hdfspb.EndRewriteResponseProto))
		if err == nil || !strings.Contains(err.Error(), "FileNotFoundException") {
			t.Errorf("%s: %v", x.user, err)
		}
		if _, there := m.ns.FileByID(metadata.INodeID(made.GetSource())); there == x.gone {
			t.Errorf("after %s the copy is there: %t", x.user, there)
		}
	}
	if _, err := root.ReadFile(ctx, "/d/mine"); err != nil {
		t.Error(err)
	}
}

// HDFS's shell passes over files with an erasure coding policy, which have no replication to be changed.
func TestSetrepPassesOverCodedFiles(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	ctx, root := t.Context(), c.root()
	check(t, c.leader().group.Raise(release.Level))
	w, err := root.Create(ctx, "/d/coded", dfs.CreateOptions{Parents: true, Policy: "RS-6-3-1024k"})
	check(t, err)
	check(t, w.Close())
	check(t, root.WriteFile(ctx, "/d/plain", nil, false))
	var out, errs bytes.Buffer
	s := &shell.Shell{Stdout: &out, Stderr: &errs, Dial: func(string, map[string]string) (*dfs.Client, string, error) { return c.root(), "hdfs://here", nil }}
	const want = "Did not set replication for: /d/coded, because it's an erasure coded file.\nReplication 2 set: /d/plain\n"
	if status := s.Run(ctx, []string{"-setrep", "-w", "2", "/d"}); status != shell.ExitOK || !strings.HasPrefix(out.String(), want) || strings.Contains(out.String(), "Waiting for /d/coded") {
		t.Errorf("%d: %s%s, want %s", status, &out, &errs, want)
	}
}

// Blocks take the place of others when all of them is stored. One that lacks something is waited for, and then has to outlive a loss; else its copy stays, and can be
// asked for again.
func TestExchangeWaitsForAllOfTheCopy(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	m := c.leader()
	ctx, root := t.Context(), c.root()
	check(t, m.group.Raise(release.SealedTails))
	check(t, root.SwitchErasurePolicy(ctx, "RS-3-2-1024k", true))
	policy, _ := metadata.ErasurePolicyNamed("RS-3-2-1024k")
	nodes := map[string]*datanode{}
	for i := range 5 {
		nodes[fmt.Sprintf("dn%d", i)] = c.datanode(fmt.Sprintf("dn%d", i))
	}
	eventually(t, "five datanodes", func() bool {
		m.soft.mu.Lock()
		defer m.soft.mu.Unlock()
		return m.soft.m.Places() == 5
	})
	for _, x := range []struct {
		path  string
		first []int // internal blocks that are stored before the exchange is asked for
		later []int // and after that
		wait  time.Duration
		ok    bool
	}{
		{"/one", []int{0}, nil, 50 * time.Millisecond, false},
		{"/two", []int{0, 3}, nil, 50 * time.Millisecond, true},
		{"/all", []int{0, 3, 4}, nil, time.Hour, true},
		{"/late", []int{0}, []int{4, 3}, time.Hour, true},
	} {
		w := m.begin(t, x.path, "writer", 1)
		b, err := w.addBlock()
		check(t, err)
		old := w.block(777)
		nodes[b.Locs[0].Id.GetDatanodeUuid()].has(old, pb.ReplicaState_FINALIZED)
		if ok, err := w.complete(); err != nil || !ok {
			t.Fatalf("complete: %t, %v", ok, err)
		}
		var made hdfspb.BeginRewriteResponseProto
		begin := &hdfspb.BeginRewriteRequestProto{Src: &x.path, ClientName: new("c"), Policy: &policy.Name}
		check(t, m.operator(t, m.config.Door.Daemon(), "beginRewrite", begin, &made))
		copied := &writing{t: t, rpc: w.rpc, path: fmt.Sprintf("/.reserved/.inodes/%d", made.GetSource()), client: "c", id: made.GetSource()}
		b, err = copied.addBlock()
		check(t, err)
		group := copied.block(777)
		if len(b.Locs) != 5 {
			t.Fatalf("%s: the group is at %v", x.path, b.Locs)
		}
		store := func(units []int) {
			for _, i := range units {
				nodes[b.Locs[i].Id.GetDatanodeUuid()].has(metadata.Block{ID: group.ID.Internal(i), Generation: group.Generation, Length: policy.Layout.UnitLength(777, i)}, pb.ReplicaState_FINALIZED)
			}
		}
		store(x.first)
		if ok, err := copied.complete(); err != nil || !ok {
			t.Fatalf("complete: %t, %v", ok, err)
		}
		eventually(t, "the first ones are known", func() bool {
			m.soft.mu.Lock()
			defer m.soft.mu.Unlock()
			stored, _, _ := m.soft.m.Stored(group, 0)
			m.soft.whole = x.wait
			return stored == len(x.first)
		})
		done := make(chan error, 1)
		go func() {
			done <- m.operator(t, m.config.Door.Daemon(), "endRewrite",
				&hdfspb.EndRewriteRequestProto{Src: &x.path, Source: made.Source, Blocks: made.Blocks}, new(hdfspb.EndRewriteResponseProto))
		}()
		store(x.later)
		err = <-done
		f, _ := m.ns.FileByID(metadata.INodeID(w.id))
		if (err == nil) != x.ok || len(f.Blocks) != 1 || (f.Blocks[0].ID == group.ID) != x.ok {
			t.Errorf("%s: %v, and its blocks are %v", x.path, err, f.Blocks)
		}
		_, there := m.ns.FileByID(metadata.INodeID(made.GetSource()))
		if there == x.ok {
			t.Errorf("%s: the copy is there: %t", x.path, there)
		}
		if x.ok || !there {
			continue
		}
		store([]int{3, 4}) // it was late
		m.soft.mu.Lock()
		m.soft.whole = time.Hour
		m.soft.mu.Unlock()
		check(t, m.operator(t, m.config.Door.Daemon(), "endRewrite",
			&hdfspb.EndRewriteRequestProto{Src: &x.path, Source: made.Source, Blocks: made.Blocks}, new(hdfspb.EndRewriteResponseProto)))
		if f, _ := m.ns.FileByID(metadata.INodeID(w.id)); len(f.Blocks) != 1 || f.Blocks[0].ID != group.ID {
			t.Errorf("%s: asked for again its blocks are %v", x.path, f.Blocks)
		}
	}
}

// Who waits for many blocks looks at each as it arrives, and at all of them in the end.
func TestWaitingForManyBlocksLooksAtEachOnce(t *testing.T) {
	const n = 1000
	var f soft
	f.init(blockmanager.Config{})
	blocks := make([]metadata.Block, n)
	for i := range blocks {
		blocks[i].ID = metadata.BlockID(i + 1)
	}
	looks, stored := 0, map[metadata.BlockID]bool{}
	patience, done := time.Hour, false
	f.awaitAll(blocks, &patience, func(b metadata.Block, _ func() int) bool { looks++; return stored[b.ID] }, func(bool) { done = true })
	arrive := func(id metadata.BlockID) {
		stored[id] = true
		f.mu.Lock()
		woken := f.arrived([]metadata.BlockID{id, id, id})
		f.mu.Unlock()
		wake(woken)
	}
	for id := metadata.BlockID(n); id > 1; id-- {
		arrive(id)
	}
	delete(stored, 7) // lost meanwhile
	if arrive(1); done {
		t.Error("one that is gone again is not waited for")
	}
	if arrive(7); !done || len(f.waiting) > 0 {
		t.Errorf("done: %t, %d blocks are waited for", done, len(f.waiting))
	}
	if looks > 5*n {
		t.Errorf("%d looks at %d blocks", looks, n)
	}
}
