package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// A group through the calls of a client: addBlock with places and tokens, a pipeline that loses a datanode, complete, and where it can be read. No door gives
// a directory a policy yet, so the command is proposed here.
func TestGroupOfAFile(t *testing.T) {
	c := newCluster(t, 1, nil)
	lead := c.leader()

	propose := func(op *logpb.SetErasurePolicy) {
		t.Helper()
		done := make(chan error, 1)
		e := newEnvelope()
		e.command.Op = &logpb.Command_SetErasurePolicy{SetErasurePolicy: op}
		caller := lead.caller()
		lead.change(&caller, namenode.Retry{}, e, func(_ *namespace.Result, err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	propose(&logpb.SetErasurePolicy{Target: &logpb.Target{}, Policy: 1 + 2}) // RS-3-2

	w := lead.begin(t, "/f", "writer", 3)
	nodes := map[string]*datanode{}
	for i := range 2 {
		nodes[fmt.Sprintf("dn%d", i)] = c.datanode(fmt.Sprintf("dn%d", i))
	}
	if _, err := w.addBlock(); err == nil {
		t.Fatal("a group of three data blocks is written to two datanodes")
	}
	for i := 2; i < 5; i++ {
		nodes[fmt.Sprintf("dn%d", i)] = c.datanode(fmt.Sprintf("dn%d", i))
	}
	b, err := w.addBlock()
	if err != nil {
		t.Fatal(err)
	}
	id := metadata.BlockID(b.B.GetBlockId())
	if !id.Striped() || id.Group() != id || len(b.Locs) != 5 || len(b.BlockIndices) != 5 || len(b.BlockTokens) != 5 {
		t.Fatalf("group %d: %v", id, b)
	}
	again := b.B
	w.last = nil
	if repeated, err := w.addBlock(); err != nil || repeated.B.GetBlockId() != again.GetBlockId() || len(repeated.BlockIndices) != 5 {
		t.Fatalf("repeated: %v, %v", repeated, err)
	}
	var bumped hadoop.UpdateBlockForPipelineResponseProto
	if err := w.rpc.Call(t.Context(), clientprotocol.Name, "updateBlockForPipeline", &hadoop.UpdateBlockForPipelineRequestProto{Block: w.last, ClientName: &w.client}, &bumped); err != nil {
		t.Fatal(err)
	}
	if n := bumped.Block; len(n.BlockIndices) != 5 || len(n.BlockTokens) != 5 || len(n.Locs) != 0 {
		t.Fatalf("bumped: %v", n)
	}
	update := &hadoop.UpdatePipelineRequestProto{ClientName: &w.client, OldBlock: w.last, NewBlock: bumped.Block.B}
	for i, at := range b.Locs {
		one := &hadoop.DatanodeIDProto{IpAddr: ptr("null"), HostName: ptr("null"), DatanodeUuid: ptr("null"), XferPort: ptr(uint32(0)), InfoPort: ptr(uint32(0)), IpcPort: ptr(uint32(0))}
		volume := ""
		if i != 1 { // the streamer of internal block 1 failed
			one, volume = at.Id, b.StorageIDs[i]
		}
		update.NewNodes, update.StorageIDs = append(update.NewNodes, one), append(update.StorageIDs, volume)
	}
	if err := w.rpc.Call(t.Context(), clientprotocol.Name, "updatePipeline", update, new(hadoop.UpdatePipelineResponseProto)); err != nil {
		t.Fatal(err)
	}
	if f, ok := lead.ns.FileByID(metadata.INodeID(w.id)); !ok || len(f.Nodes) != 5 || f.Nodes[0] != b.Locs[0].Id.GetDatanodeUuid() || f.Nodes[1] != "" || f.Nodes[4] != b.Locs[4].Id.GetDatanodeUuid() {
		t.Errorf("the pipeline is recorded as %q", f.Nodes)
	}
	w.last = bumped.Block.B
	group := w.block(4<<20 + 5)
	layout := metadata.ErasurePolicies()[1].Layout
	for i, at := range b.Locs {
		if i != 1 {
			nodes[at.Id.GetDatanodeUuid()].has(metadata.Block{ID: id.Internal(i), Generation: group.Generation, Length: layout.UnitLength(group.Length, i)}, pb.ReplicaState_FINALIZED)
		}
	}
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatalf("complete: %t, %v", ok, err)
	}
	var r hadoop.GetBlockLocationsResponseProto
	get := &hadoop.GetBlockLocationsRequestProto{Src: &w.path, Offset: ptr(uint64(0)), Length: ptr(uint64(1 << 40))}
	eventually(t, "four internal blocks are known", func() bool {
		r.Reset()
		return w.rpc.Call(t.Context(), clientprotocol.Name, "getBlockLocations", get, &r) == nil && len(r.Locations.GetBlocks()) == 1 && len(r.Locations.Blocks[0].Locs) == 4
	})
	if l := r.Locations; l.EcPolicy.GetId() != 2 || l.GetFileLength() != 4<<20+5 || string(l.Blocks[0].BlockIndices) != "\x00\x02\x03\x04" || len(l.Blocks[0].BlockTokens) != 4 {
		t.Errorf("located: %v", l)
	}
	checked := func(want ...string) {
		t.Helper()
		_, text := lead.fsck(t, lead.config.Door.Daemon(), "path", "/f", "files", "1", "blocks", "1", "locations", "1")
		for _, line := range want {
			if !strings.Contains(text, line) {
				t.Errorf("fsck has no %q:\n%s", line, text)
			}
		}
	}
	checked("/f 4194309 bytes, erasure-coded: policy=RS-3-2-1024k, 1 block(s): ", "Target Replicas is 5 but found 4 live replica(s)", fmt.Sprintf("Live_repl=4  [blk_%d:DatanodeInfoWithStorage[", id),
		"\n Total files:\t1\n Total block groups (validated):\t1 (avg. block group size 4194309 B)\n Minimally erasure-coded block groups:\t1 (100.0 %)", "Missing internal blocks:\t1 (20.0 %)",
		"The filesystem under path '/f' is HEALTHY")
	if g := lead.Statistics().Groups; g != (namenode.GroupStatistics{All: 1, UnderReplicated: 1}) {
		t.Errorf("groups: %+v", g)
	}
}

// A recovery may not end with less of a group than its writer has told, while those who may have more are waited for.
func TestRecoveryKeepsWhatIsKnownOfAGroup(t *testing.T) {
	for _, patience := range []time.Duration{time.Hour, time.Nanosecond} {
		c := newCluster(t, 1, func(cfg *Config) { cfg.RecoveryPatience = patience })
		m := c.leader()
		check(t, m.group.Raise(release.ErasureCoding))
		check(t, c.root().SwitchErasurePolicy(t.Context(), "RS-3-2-1024k", true))
		check(t, c.root().SetErasurePolicy(t.Context(), "/", "RS-3-2-1024k"))
		var nodes []*datanode
		for i := range 5 {
			d := c.datanode(fmt.Sprintf("dn%d", i))
			d.mu.Lock()
			d.mute = true
			d.mu.Unlock()
			nodes = append(nodes, d)
		}
		eventually(t, "five datanodes", func() bool {
			m.soft.mu.Lock()
			defer m.soft.mu.Unlock()
			return m.soft.m.Places() == 5
		})
		w := m.begin(t, "/wal", "writer", 1)
		b, err := w.addBlock()
		check(t, err)
		var bumped hadoop.UpdateBlockForPipelineResponseProto
		check(t, w.rpc.Call(t.Context(), clientprotocol.Name, "updateBlockForPipeline", &hadoop.UpdateBlockForPipelineRequestProto{Block: w.last, ClientName: &w.client}, &bumped))
		update := &hadoop.UpdatePipelineRequestProto{ClientName: &w.client, OldBlock: w.last, NewBlock: bumped.Block.B}
		update.NewBlock.NumBytes = new(uint64(5 << 19))
		for i, at := range b.Locs {
			update.NewNodes, update.StorageIDs = append(update.NewNodes, at.Id), append(update.StorageIDs, b.StorageIDs[i])
		}
		check(t, w.rpc.Call(t.Context(), clientprotocol.Name, "updatePipeline", update, new(hadoop.UpdatePipelineResponseProto)))
		w.last = bumped.Block.B
		group := w.block(5 << 19)
		recoverLease(t, c)
		id := metadata.INodeID(w.id)
		commit := func(length int64) error {
			t.Helper()
			f, ok := m.ns.FileByID(id)
			if !ok {
				t.Fatal("the file is gone")
			}
			_, err := nodes[0].links[0].client.CommitBlockSynchronization(t.Context(), &pb.CommitBlockSynchronizationRequest{
				Block: wireBlock(group), RecoveryId: uint64(f.RecoveryID), Close: true, Length: length, DeleteBlock: length == 0,
			})
			return pb.FromStatus(err)
		}
		want := int64(1 << 20) // accepted at last
		if patience == time.Hour {
			want = group.Length
			for _, length := range []int64{0, 1 << 20, group.Length - 1} {
				if err, f := commit(length), fileOf(m, id); err == nil || !f.UnderConstruction || len(f.Blocks) != 1 {
					t.Fatalf("the group ends with %d bytes: %v, %+v", length, err, f)
				}
			}
		}
		eventually(t, "it ends", func() bool { return commit(want) == nil }) // under another id if this takes long
		if f := fileOf(m, id); f.UnderConstruction || f.Status.Length != want {
			t.Errorf("it ends as %+v, want %d bytes", f, want)
		}
	}
}

func fileOf(m *member, id metadata.INodeID) *namespace.FileInfo {
	f, _ := m.ns.FileByID(id)
	return f
}
