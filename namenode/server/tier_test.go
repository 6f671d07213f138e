package server

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// moves are the blocks that orders have the datanode itself bring to an SSD.
func (d *datanode) moves(o *pb.Orders) (blocks []int64) {
	for _, r := range o.Replicate {
		if len(r.Targets) == 1 && r.Targets[0].Uuid == d.uuid && slices.Equal(r.Types, []uint32{2}) && r.Bandwidth > 0 {
			blocks = append(blocks, r.Block.Id)
		}
	}
	return blocks
}

func TestSatisfyingAStoragePolicyOutlivesTheLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	d := c.datanode("dn1")
	lead := c.leader()
	root, alice := c.root(), c.client("alice")
	ctx := t.Context()
	var blocks []metadata.Block
	for _, path := range []string{"/d/deep/one", "/d/two"} {
		w := lead.begin(t, path, "writer of "+path, 1)
		if _, err := w.addBlock(); err != nil {
			t.Fatal(err)
		}
		b := w.block(100)
		d.has(b, pb.ReplicaState_FINALIZED)
		eventually(t, path+" is closed", func() bool { done, err := w.complete(); return err == nil && done })
		blocks = append(blocks, b)
	}
	for _, b := range blocks {
		c.know(b, 1)
	}
	check(t, root.SetStoragePolicy(ctx, "/d", "ALL_SSD"))
	refused := func(what string, err error, kind *metadata.Kind, words string) {
		t.Helper()
		if !errors.Is(err, kind) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %v: %s", what, err, kind, words)
		}
	}
	refused("before the cluster is raised", root.SatisfyStoragePolicy(ctx, "/d"), metadata.ErrUnsupported, "needs a cluster of level 6")
	for _, m := range c.nodes {
		check(t, m.group.Raise(release.Tiers))
	}
	refused("where nothing is", root.SatisfyStoragePolicy(ctx, "/e"), metadata.ErrNotExist, "/e")
	refused("without WRITE", alice.SatisfyStoragePolicy(ctx, "/d"), metadata.ErrPermission, "access=WRITE")
	_, err := alice.Tier(ctx, "/d", false)
	refused("looking without WRITE", err, metadata.ErrPermission, "access=WRITE")
	check(t, root.AllowSnapshot(ctx, "/d", true))
	_, err = root.CreateSnapshot(ctx, "/d", "s")
	check(t, err)
	refused("of a snapshot", root.SatisfyStoragePolicy(ctx, "/d/.snapshot/s"), metadata.ErrPermission, "read-only snapshot")
	check(t, root.DeleteSnapshot(ctx, "/d", "s"))
	check(t, root.SatisfyStoragePolicy(ctx, "/d"))
	refused("twice", root.SatisfyStoragePolicy(ctx, "/d"), metadata.ErrIO, "was already called for satisfying storage policy")
	if s, err := root.Tier(ctx, "/d", true); err != nil || !s.Waiting || s.Known || s.Paths != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	both := func() {
		t.Helper()
		seen := map[int64]bool{}
		d.received("move both blocks to its SSD", func(o *pb.Orders) bool {
			for _, id := range d.moves(o) {
				seen[id] = true
			}
			return len(seen) == len(blocks)
		})
	}
	both()
	// The next leader goes on: the datanode has not obeyed.
	at := slices.Index(c.nodes, lead)
	lead.stop()
	c.nodes[at] = nil
	d.mu.Lock()
	d.orders = nil
	d.mu.Unlock()
	next := c.leader()
	client := root
	both()
	if s, err := client.Tier(ctx, "/d", false); err != nil || !s.Waiting {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, b := range blocks {
		for _, l := range d.links {
			l.changes <- &pb.BlockChange{Kind: pb.BlockChange_RECEIVED, Block: wireBlock(b), VolumeId: "SSD-" + d.uuid}
		}
	}
	eventually(t, "it is done", func() bool {
		s, err := client.Tier(ctx, "/d", false)
		return err == nil && !s.Waiting && s.Known && s.Stuck == 0 && s.Replicas == 2 && s.Moved == 200 && s.Paths == 0
	})
	if value, _ := next.ns.Item(tierItem); value != nil {
		t.Errorf("the register still has %s", value)
	}
}

// What was renamed to below a policy is not moved to volumes of a type of which a quota has no room for it.
func TestSatisfyingAStoragePolicyKeepsQuotasOfTypes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	d := c.datanode("dn1")
	lead, root, ctx := c.leader(), c.root(), t.Context()
	check(t, lead.group.Raise(release.Tiers))
	check(t, root.Mkdirs(ctx, "/ssd", 0o755, true))
	check(t, root.SetStoragePolicy(ctx, "/ssd", "ALL_SSD"))
	check(t, root.SetTypeQuota(ctx, "/ssd", namenode.SSD, 150))
	var blocks []metadata.Block
	for _, name := range []string{"one", "two"} {
		w := lead.begin(t, "/disk/"+name, "writer", 1)
		if _, err := w.addBlock(); err != nil {
			t.Fatal(err)
		}
		b := w.block(100)
		d.has(b, pb.ReplicaState_FINALIZED)
		eventually(t, name+" is closed", func() bool { done, err := w.complete(); return err == nil && done })
		c.know(b, 1)
		check(t, root.RenameStrict(ctx, "/disk/"+name, "/ssd/"+name))
		blocks = append(blocks, b)
	}
	check(t, root.SatisfyStoragePolicy(ctx, "/ssd"))
	d.received("move the first block to its SSD", func(o *pb.Orders) bool { return slices.Contains(d.moves(o), int64(blocks[0].ID)) })
	for _, l := range d.links {
		l.changes <- &pb.BlockChange{Kind: pb.BlockChange_RECEIVED, Block: wireBlock(blocks[0]), VolumeId: "SSD-" + d.uuid}
	}
	eventually(t, "it is done, with one block that is not moved", func() bool {
		s, err := root.Tier(ctx, "/ssd", false)
		return err == nil && !s.Waiting && s.Known && s.Stuck == 1 && s.Moved == 100
	})
}
