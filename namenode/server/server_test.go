package server

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func ptr[T any](v T) *T { return &v }

func TestNamesOverIPC(t *testing.T) {
	c := newCluster(t, 1, nil)
	ctx, fs := t.Context(), c.root()
	if err := fs.Mkdirs(ctx, "/a/b", 0o755, true); err != nil {
		t.Fatal(err)
	}
	w, err := fs.Create(ctx, "/a/b/f", dfs.CreateOptions{Mode: 0o640})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	st, err := fs.Stat(ctx, "/a/b/f")
	if err != nil || st.IsDir() || st.Length != 0 || st.Owner != fs.User() || st.Group != "supergroup" || st.UnderConstruction {
		t.Fatalf("stat: %+v, %v", st, err)
	}
	list, err := fs.List(ctx, "/a")
	if err != nil || len(list) != 1 || list[0].Name != "b" || list[0].Children != 1 {
		t.Fatalf("list: %+v, %v", list, err)
	}
	if ok, err := fs.Rename(ctx, "/a/b/f", "/a"); err != nil || !ok {
		t.Fatalf("rename: %t, %v", ok, err)
	}
	if _, err := fs.Stat(ctx, "/a/b/f"); !errors.Is(err, metadata.ErrNotExist) {
		t.Fatalf("stat of what was renamed: %v", err)
	}
	if s, err := fs.ContentSummary(ctx, "/a"); err != nil || s.Files != 1 || s.Directories != 2 {
		t.Fatalf("summary: %+v, %v", s, err)
	}
	if ok, err := fs.Delete(ctx, "/a", true); err != nil || !ok {
		t.Fatalf("delete: %t, %v", ok, err)
	}
	if ok, err := fs.Delete(ctx, "/a", true); err != nil || ok {
		t.Fatalf("second delete: %t, %v", ok, err)
	}
}

func TestPermissionsAreCheckedForTheCaller(t *testing.T) {
	c := newCluster(t, 1, nil)
	ctx := t.Context()
	err := c.client("alice").Mkdirs(ctx, "/alice", 0o755, true)
	if !errors.Is(err, metadata.ErrPermission) || !strings.Contains(err.Error(), `Permission denied: user=alice, access=WRITE, inode="/":`) {
		t.Fatalf("mkdir in / by alice: %v", err)
	}
	if _, err := c.client("alice").SafeMode(ctx, dfs.SafeModeEnter); !errors.Is(err, metadata.ErrPermission) {
		t.Fatalf("safe mode by alice: %v", err)
	}
}

// writing is a file on its way through bare calls.
type writing struct {
	t      *testing.T
	rpc    *hrpc.Client
	path   string
	client string
	id     uint64
	last   *hadoop.ExtendedBlockProto
}

func (m *member) begin(t *testing.T, path, client string, replication uint32) *writing {
	t.Helper()
	w := &writing{t: t, rpc: m.rpc(t), path: path, client: client}
	var created hadoop.CreateResponseProto
	err := w.rpc.Call(t.Context(), clientprotocol.Name, "create", &hadoop.CreateRequestProto{
		Src: &path, Masked: &hadoop.FsPermissionProto{Perm: ptr(uint32(0o644))}, ClientName: &client, CreateFlag: ptr(uint32(1)),
		CreateParent: ptr(true), Replication: &replication, BlockSize: ptr(uint64(1 << 20)),
	}, &created)
	if err != nil {
		t.Fatal(err)
	}
	w.id = created.Fs.GetFileId()
	return w
}

// addBlock asks again, as clients do, while what datanodes have of the block before the last one is on its way.
func (w *writing) addBlock() (*hadoop.LocatedBlockProto, error) {
	for deadline := time.Now().Add(limit); ; {
		var added hadoop.AddBlockResponseProto
		err := w.rpc.Call(w.t.Context(), clientprotocol.Name, "addBlock", &hadoop.AddBlockRequestProto{
			Src: &w.path, ClientName: &w.client, Previous: w.last, FileId: &w.id,
		}, &added)
		if remote, ok := errors.AsType[*hrpc.RemoteError](err); ok && remote.Class == hdfs.NotReplicatedYet && time.Now().Before(deadline) {
			continue
		}
		if err == nil {
			w.last = added.Block.B
		}
		return added.Block, err
	}
}

func (w *writing) block(length uint64) metadata.Block {
	w.last.NumBytes = &length
	return metadata.Block{ID: metadata.BlockID(w.last.GetBlockId()), Generation: metadata.Generation(w.last.GetGenerationStamp()), Length: int64(length)}
}

// complete asks again, as clients do, while what datanodes have of the last blocks is on its way.
func (w *writing) complete() (bool, error) {
	for deadline := time.Now().Add(limit); ; {
		if ok, err := w.completeOnce(); ok || err != nil || time.Now().After(deadline) {
			return ok, err
		}
	}
}

func (w *writing) completeOnce() (bool, error) {
	var done hadoop.CompleteResponseProto
	err := w.rpc.Call(w.t.Context(), clientprotocol.Name, "complete", &hadoop.CompleteRequestProto{
		Src: &w.path, ClientName: &w.client, Last: w.last, FileId: &w.id,
	}, &done)
	return done.GetResult(), err
}

func TestCompleteWaitsForTheReportAndNotLonger(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn := c.datanode("dn1")
	w := c.leader().begin(t, "/f", "writer", 3)
	b, err := w.addBlock()
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Locs) != 1 || len(b.StorageIDs) != 1 || len(b.StorageTypes) != 1 || b.StorageIDs[0] != "DS-dn1" ||
		b.Locs[0].GetLocation() != "/default-rack" || b.Locs[0].Id.GetXferPort() != dn.port || b.B.GetPoolId() != c.nodes[0].BlockPool() {
		t.Fatalf("located block: %v", b)
	}
	blk := w.block(100)
	dn.has(metadata.Block{ID: blk.ID, Generation: blk.Generation}, pb.ReplicaState_RBW)
	soft := &c.leader().soft
	patience := func(d time.Duration) {
		soft.mu.Lock()
		soft.patience = d
		soft.mu.Unlock()
	}
	patience(20 * time.Millisecond)
	began := time.Now()
	if ok, err := w.completeOnce(); err != nil || ok || time.Since(began) < 20*time.Millisecond {
		t.Fatalf("complete without a finalized replica: %t, %v after %v", ok, err, time.Since(began))
	}
	patience(time.Hour)
	time.AfterFunc(50*time.Millisecond, func() { dn.has(blk, pb.ReplicaState_FINALIZED) })
	if ok, err := w.completeOnce(); err != nil || !ok {
		t.Fatalf("complete with a report on its way: %t, %v", ok, err)
	}
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatalf("repeated complete: %t, %v", ok, err)
	}
	st, err := c.root().Stat(t.Context(), "/f")
	if err != nil || st.Length != 100 || st.UnderConstruction {
		t.Fatalf("stat: %+v, %v", st, err)
	}
}

func TestBlocksOfAFile(t *testing.T) {
	c := newCluster(t, 1, nil)
	d1, d2 := c.datanode("dn1"), c.datanode("dn2")
	w := c.leader().begin(t, "/f", "writer", 2)
	for range 3 {
		if _, err := w.addBlock(); err != nil {
			t.Fatal(err)
		}
		b := w.block(1 << 20)
		d1.has(b, pb.ReplicaState_FINALIZED)
		d2.has(b, pb.ReplicaState_FINALIZED)
	}
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatalf("complete: %t, %v", ok, err)
	}
	eventually(t, "all replicas are known", func() bool { return c.leader().Statistics().UnderReplicated == 0 })
	get := func(offset, length uint64) *hadoop.LocatedBlocksProto {
		t.Helper()
		var r hadoop.GetBlockLocationsResponseProto
		err := w.rpc.Call(t.Context(), clientprotocol.Name, "getBlockLocations", &hadoop.GetBlockLocationsRequestProto{Src: ptr("/f"), Offset: &offset, Length: &length}, &r)
		if err != nil {
			t.Fatal(err)
		}
		return r.Locations
	}
	l := get(0, 1<<63-1)
	if l.GetFileLength() != 3<<20 || len(l.Blocks) != 3 || l.GetUnderConstruction() || !l.GetIsLastBlockComplete() || l.LastBlock == nil {
		t.Fatalf("locations: %v", l)
	}
	for i, b := range l.Blocks {
		if b.GetOffset() != uint64(i)<<20 || len(b.Locs) != 2 || len(b.StorageIDs) != 2 || len(b.StorageTypes) != 2 || b.GetCorrupt() || b.BlockToken == nil {
			t.Errorf("block %d: %v", i, b)
		}
	}
	if l := get(1<<20, 1); len(l.Blocks) != 1 || l.Blocks[0].GetOffset() != 1<<20 || l.LastBlock.GetOffset() != 2<<20 {
		t.Errorf("one byte of the middle: %v", l)
	}
	// Deleting the file deletes the replicas.
	if _, err := c.root().Delete(t.Context(), "/f", false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replicas are gone", func() bool {
		d1.mu.Lock()
		defer d1.mu.Unlock()
		return len(d1.replicas) == 0
	})
}

func TestAddBlockWithoutDatanodesIsHDFSsSentence(t *testing.T) {
	c := newCluster(t, 1, nil)
	w := c.leader().begin(t, "/f", "writer", 3)
	_, err := w.addBlock()
	remote, ok := errors.AsType[*hrpc.RemoteError](err)
	if !ok || remote.Class != hdfs.IOException || !strings.HasPrefix(remote.Message, "File /f could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s) running and no node(s) are excluded") {
		t.Fatalf("got %v", err)
	}
}

func TestSecondWriterIsRefused(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.leader()
	m.begin(t, "/f", "writer", 1)
	path := "/f"
	err := m.rpc(t).Call(t.Context(), clientprotocol.Name, "create", &hadoop.CreateRequestProto{
		Src: &path, Masked: &hadoop.FsPermissionProto{Perm: ptr(uint32(0o644))}, ClientName: ptr("other"), CreateFlag: ptr(uint32(1)),
		CreateParent: ptr(true), Replication: ptr(uint32(1)), BlockSize: ptr(uint64(1 << 20)),
	}, new(hadoop.CreateResponseProto))
	if remote, ok := errors.AsType[*hrpc.RemoteError](err); !ok || remote.Class != hdfs.AlreadyBeingCreated {
		t.Fatalf("got %v", err)
	}
}

func TestARepeatedRequestTakesEffectOnce(t *testing.T) {
	c := newCluster(t, 1, nil)
	m := c.leader()
	if err := c.root().Mkdirs(t.Context(), "/a", 0o755, true); err != nil {
		t.Fatal(err)
	}
	retry := namenode.Retry{ClientID: []byte("0123456789abcdef"), CallID: 5}
	for i := range 2 {
		got := make(chan error, 1)
		m.Rename(m.caller(), retry, "/a", "/b", func(ok bool, err error) {
			if err == nil && !ok {
				err = errors.New("false")
			}
			got <- err
		})
		if err := <-got; err != nil {
			t.Fatalf("rename, try %d: %v", i+1, err)
		}
	}
}

// The golden frames of a call that fails, from the preamble to the exception.
func TestGoldenBytesOfAnException(t *testing.T) {
	c := newCluster(t, 1, nil)
	conn, err := net.Dial("tcp", c.nodes[0].ipc)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	user := c.nodes[0].config.Door.Daemon()
	send := func(hexes ...string) {
		for _, h := range hexes {
			b, err := hex.DecodeString(h)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(b); err != nil {
				t.Fatal(err)
			}
		}
	}
	protocol := "2e" + hex.EncodeToString([]byte(clientprotocol.Name))
	send("68727063090000")
	info := "0a" + hexLength(len(user)) + hex.EncodeToString([]byte(user))
	context := "12" + hexLength(len(info)/2) + info + "1a" + protocol
	frame := "1a0802100018052210" + hex.EncodeToString([]byte("0123456789abcdef")) + "2801" + hexLength(len(context)/2) + context
	send(hexFrame(frame))
	// getBlockLocations("/x", 0, 1), call 7.
	method := "0a11" + hex.EncodeToString([]byte("getBlockLocations")) + "12" + protocol + "1801"
	frame = "1a08021000180e2210" + hex.EncodeToString([]byte("0123456789abcdef")) + "2800" + hexLength(len(method)/2) + method + "08" + "0a022f78" + "1000" + "1801"
	send(hexFrame(frame))
	want := "0000005554080710011809221d6a6176612e696f2e46696c654e6f74466f756e64457863657074696f6e2a1746696c6520646f6573206e6f742065786973743a202f7830013a103031323334353637383961626364656640"
	got := make([]byte, 4+0x55)
	if _, err := io.ReadFull(conn, got); err != nil {
		t.Fatal(err)
	}
	if h := hex.EncodeToString(got); h != want+"00" {
		t.Fatalf("got  %s\nwant %s00", h, want)
	}
}

func hexLength(n int) string { return hex.EncodeToString([]byte{byte(n)}) }

func hexFrame(body string) string {
	n := len(body) / 2
	return hex.EncodeToString([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) + body
}

func TestRecoverLeaseClosesAnAbandonedFile(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn := c.datanode("dn1")
	w := c.leader().begin(t, "/f", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	dn.has(w.block(77), pb.ReplicaState_RBW)
	fs := c.root()
	if _, err := fs.RecoverLease(t.Context(), "/f"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file is closed", func() bool {
		closed, err := fs.IsFileClosed(t.Context(), "/f")
		return err == nil && closed
	})
	dn.received("recover", func(o *pb.Orders) bool {
		return len(o.Recover) == 1 && o.Term > 0 && o.Recover[0].RecoveryId > uint64(w.last.GetGenerationStamp())
	})
	if st, err := fs.Stat(t.Context(), "/f"); err != nil || st.Length != 77 {
		t.Fatalf("stat: %+v, %v", st, err)
	}
	// The writer is fenced.
	if _, err := w.complete(); err == nil || metadata.KindOf(hdfs.Error(err.(*hrpc.RemoteError).Class, "")) != metadata.ErrLeaseExpired {
		t.Fatalf("complete by the old writer: %v", err)
	}
}

func TestABlockThatNobodyHasIsDroppedByRecovery(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.datanode("dn1")
	m := c.leader()
	w := m.begin(t, "/f", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	// A new leader does not know the pipeline, and no replica was ever reported.
	m.soft.mu.Lock()
	m.soft.m.Expect(metadata.BlockID(w.last.GetBlockId()), nil)
	m.soft.mu.Unlock()
	fs := c.root()
	closed, err := fs.RecoverLease(t.Context(), "/f")
	if err != nil || !closed {
		t.Fatalf("recoverLease: %t, %v", closed, err)
	}
	if st, err := fs.Stat(t.Context(), "/f"); err != nil || st.Length != 0 || st.UnderConstruction {
		t.Fatalf("stat: %+v, %v", st, err)
	}
}

func TestWritersOfADeadDatanodesDoorAreRecoveredAtOnce(t *testing.T) {
	c := newCluster(t, 1, nil)
	door, other := c.datanode("dn1"), c.datanode("dn2")
	w := c.leader().begin(t, "/f", namenode.DoorWriter("dn1", "1"), 2)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	door.has(w.block(10), pb.ReplicaState_RBW)
	other.has(w.block(10), pb.ReplicaState_RBW)
	door.die()
	eventually(t, "the file is closed", func() bool {
		closed, err := c.root().IsFileClosed(t.Context(), "/f")
		return err == nil && closed
	})
}

func TestAReplicaLostWithItsDatanodeIsCopied(t *testing.T) {
	c := newCluster(t, 1, nil)
	idle := map[string]*datanode{"dn1": c.datanode("dn1"), "dn2": c.datanode("dn2"), "dn3": c.datanode("dn3")}
	w := c.leader().begin(t, "/f", "writer", 2)
	l, err := w.addBlock()
	if err != nil {
		t.Fatal(err)
	}
	b := w.block(10)
	var pipeline []*datanode
	for _, loc := range l.Locs {
		d := idle[loc.Id.GetDatanodeUuid()]
		delete(idle, d.uuid)
		pipeline = append(pipeline, d)
		d.has(b, pb.ReplicaState_FINALIZED)
	}
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatalf("complete: %t, %v", ok, err)
	}
	pipeline[0].die()
	for _, target := range idle {
		pipeline[1].received("copy", func(o *pb.Orders) bool {
			return len(o.Replicate) == 1 && o.Replicate[0].Block.Id == int64(b.ID) && o.Replicate[0].Targets[0].Uuid == target.uuid
		})
		target.has(b, pb.ReplicaState_FINALIZED)
	}
	eventually(t, "the block is healthy", func() bool { return c.leader().Statistics().UnderReplicated == 0 })
}

func TestSafeModeUntilBlocksAreReported(t *testing.T) {
	c := newCluster(t, 1, nil)
	dn := c.datanode("dn1")
	w := c.leader().begin(t, "/f", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	b := w.block(10)
	dn.has(b, pb.ReplicaState_FINALIZED)
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatalf("complete: %t, %v", ok, err)
	}
	dn.stop()
	c.nodes[0].stop()
	c.start(0)
	c.await(0)

	fs, ctx := c.root(), t.Context()
	if on, err := fs.SafeMode(ctx, dfs.SafeModeGet); err != nil || !on {
		t.Fatalf("safe mode: %t, %v", on, err)
	}
	err := fs.Mkdirs(ctx, "/d", 0o755, true)
	if !errors.Is(err, metadata.ErrSafeMode) || !strings.Contains(err.Error(), "The reported blocks 0 needs additional 1 blocks") {
		t.Fatalf("mkdir in safe mode: %v", err)
	}
	if _, err := fs.Stat(ctx, "/f"); err != nil {
		t.Fatalf("stat in safe mode: %v", err)
	}
	if _, err := fs.BlockLocations(ctx, "/f", 0, 10); !errors.Is(err, metadata.ErrSafeMode) {
		t.Fatalf("locations in safe mode: %v", err)
	}
	dn = c.datanode("dn1")
	dn.has(b, pb.ReplicaState_FINALIZED)
	eventually(t, "safe mode ends", func() bool { on, err := fs.SafeMode(ctx, dfs.SafeModeGet); return err == nil && !on })
	if err := fs.Mkdirs(ctx, "/d", 0o755, true); err != nil {
		t.Fatal(err)
	}
	if on, err := fs.SafeMode(ctx, dfs.SafeModeEnter); err != nil || !on {
		t.Fatalf("enter safe mode: %t, %v", on, err)
	}
	if err := fs.Mkdirs(ctx, "/e", 0o755, true); !errors.Is(err, metadata.ErrSafeMode) || !strings.Contains(err.Error(), "turned on manually") {
		t.Fatalf("mkdir in manual safe mode: %v", err)
	}
	if on, err := fs.SafeMode(ctx, dfs.SafeModeLeave); err != nil || on {
		t.Fatalf("leave safe mode: %t, %v", on, err)
	}
}

func TestFullDiskIsReadOnly(t *testing.T) {
	c := newCluster(t, 1, nil)
	if err := c.root().Mkdirs(t.Context(), "/d", 0o755, true); err != nil {
		t.Fatal(err)
	}
	c.nodes[0].stop()
	// Below the reserve, but not so far that Raft itself can write nothing. What is free on a disk that others use would not stay.
	c.reserve = 3 << 30
	c.disk = func(string) (int64, int64, error) { return 2 << 30, 10 << 30, nil }
	c.start(0)
	c.await(0)
	fs := c.root()
	if _, err := fs.Stat(t.Context(), "/d"); err != nil {
		t.Fatalf("stat: %v", err)
	}
	err := fs.Mkdirs(t.Context(), "/e", 0o755, true)
	if !errors.Is(err, metadata.ErrSafeMode) || !strings.Contains(err.Error(), "Resources are low on NN") {
		t.Fatalf("mkdir: %v", err)
	}
}

func TestDatanodeOfAnotherClusterIsRefused(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) { c.ClusterID = "CID-lab" })
	client := c.dialGRPC(c.credentials)
	_, err := client.Register(t.Context(), &pb.RegisterRequest{
		Datanode: &pb.DatanodeID{Uuid: "dn1", Ip: "127.0.0.1", TransferPort: 1}, ClusterId: "CID-other",
	})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "datanode dn1 belongs to cluster CID-other, this is cluster CID-lab") {
		t.Fatalf("got %v", err)
	}
	r, err := client.Register(t.Context(), &pb.RegisterRequest{Datanode: &pb.DatanodeID{Uuid: "dn1", Ip: "127.0.0.1", TransferPort: 1}})
	if err != nil || r.ClusterId != "CID-lab" || !strings.HasPrefix(r.BlockPool, "BP-") {
		t.Fatalf("got %v, %v", r, err)
	}
	for _, bad := range []*pb.DatanodeID{
		{Ip: "127.0.0.1", TransferPort: 1}, {Uuid: "x", Ip: "0.0.0.0", TransferPort: 1}, {Uuid: "x", Ip: "127.0.0.1"}, {Uuid: "x", Ip: "nowhere", TransferPort: 1}, nil,
	} {
		if _, err := client.Register(t.Context(), &pb.RegisterRequest{Datanode: bad}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("register %v: %v", bad, err)
		}
	}
	if _, err := client.BlocksChanged(t.Context(), &pb.BlocksChangedRequest{DatanodeUuid: "stranger"}); !errors.Is(pb.FromStatus(err), metadata.ErrNotExist) {
		t.Errorf("changes of an unknown datanode: %v", err)
	}
	if _, err := c.dialGRPC(securitytest.Credentials(c.t)).Register(t.Context(), &pb.RegisterRequest{}); err == nil {
		t.Error("a peer without the secret was let in")
	}
}

// What a datanode has given up to tell while the namenode was busy is not taken in afterwards: what it told since would be older.
func TestWhatADatanodeHasGivenUpToTellIsNotHeard(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.datanode("dn1")
	leader := c.leader()
	if err := c.root().Mkdirs(t.Context(), "/d", 0o755, true); err != nil {
		t.Fatal(err)
	}
	w := leader.begin(t, "/d/f", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	b := w.block(10)
	changes := &pb.BlocksChangedRequest{DatanodeUuid: "dn1", Changes: []*pb.BlockChange{{Kind: pb.BlockChange_RECEIVED, Block: wireBlock(b), VolumeId: "DS-dn1"}}}
	registration := &pb.RegisterRequest{
		Datanode: &pb.DatanodeID{Uuid: "dn2", Ip: "127.0.0.1", TransferPort: 1, HttpPort: 1, IpcPort: 1, GrpcPort: 1}, Incarnation: 1,
	}
	for name, call := range map[string]func(ctx context.Context) error{
		"changes":        func(ctx context.Context) error { _, err := leader.datanodes.BlocksChanged(ctx, changes); return err },
		"a registration": func(ctx context.Context) error { _, err := leader.datanodes.Register(ctx, registration); return err },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan error, 1)
		leader.soft.mu.Lock()
		go func() { answer <- call(ctx) }()
		cancel()
		leader.soft.mu.Unlock()
		if err := <-answer; status.Code(err) != codes.Canceled {
			t.Errorf("%s: %v", name, err)
		}
	}
	leader.soft.mu.Lock()
	r, _ := leader.soft.m.Describe(b.ID)
	_, known := leader.soft.m.Node("dn2")
	leader.soft.mu.Unlock()
	for _, at := range r.At {
		if at.State == namenode.Finalized {
			t.Errorf("it was heard: %+v", r)
		}
	}
	if known {
		t.Error("the registration was taken")
	}
	if _, err := leader.datanodes.BlocksChanged(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	leader.knows(t, b, 1)
}

func (c *cluster) dialGRPC(credentials security.Credentials) pb.DatanodesClient {
	conn, err := grpc.NewClient(c.nodes[0].grpc, grpc.WithTransportCredentials(credentials.Key(authority.Namenode).Credentials()))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	return pb.NewDatanodesClient(conn)
}

func TestDirectoryOfAnotherClusterIsRefused(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) { c.ClusterID = "CID-one" })
	c.nodes[0].stop()
	conf := c.nodes[0].config
	raft, err := net.Listen("tcp", c.members[0].Address)
	if err != nil {
		t.Fatal(err)
	}
	conf.ClusterID = "CID-two"
	conf.IPC, conf.HTTP, conf.GRPC, conf.Host = listen(t), listen(t), listen(t), c.host("nn1", raft, conf.Logger)
	s, err := New(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer conf.Host.Close()
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "CID-one") || !strings.Contains(err.Error(), "CID-two") {
		t.Fatalf("got %v", err)
	}
}

func TestThreeNamenodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	dn := c.datanode("dn1")
	leader := c.leader()
	ctx, fs := t.Context(), c.root()
	if err := fs.Mkdirs(ctx, "/d", 0o755, true); err != nil {
		t.Fatal(err)
	}
	w := leader.begin(t, "/d/f", "writer", 1)
	if _, err := w.addBlock(); err != nil {
		t.Fatal(err)
	}
	b := w.block(10)
	dn.has(b, pb.ReplicaState_FINALIZED)
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatalf("complete: %t, %v", ok, err)
	}

	// Followers say so, in every wire.
	follower := c.nodes[slices.IndexFunc(c.nodes, func(m *member) bool { return m != leader })]
	rpc := follower.rpc(t)
	for _, call := range []struct {
		method  string
		request hrpc.Message
	}{
		{"getFileInfo", &hadoop.GetFileInfoRequestProto{Src: ptr("/d")}},
		{"getServerDefaults", &hadoop.GetServerDefaultsRequestProto{}},
		{"getFsStats", &hadoop.GetFsStatusRequestProto{}},
		{"renewLease", &hadoop.RenewLeaseRequestProto{ClientName: ptr("x")}},
		{"delete", &hadoop.DeleteRequestProto{Src: ptr("/d"), Recursive: ptr(true)}},
		{"msync", &hadoop.MsyncRequestProto{}},
	} {
		err := rpc.Call(ctx, clientprotocol.Name, call.method, call.request, new(hadoop.MsyncResponseProto))
		if remote, ok := errors.AsType[*hrpc.RemoteError](err); !ok || remote.Class != hdfs.Standby || !strings.Contains(remote.Message, "is not supported in state standby. Visit https://s.apache.org/sbnn-error") {
			t.Errorf("%s on a follower: %v", call.method, err)
		}
	}
	var state hadoop.GetHAServiceStateResponseProto
	if err := rpc.Call(ctx, clientprotocol.Name, "getHAServiceState", &hadoop.GetHAServiceStateRequestProto{}, &state); err != nil || state.GetState() != hadoop.HAServiceStateProto_STANDBY {
		t.Errorf("state of a follower: %v, %v", state.GetState(), err)
	}
	var report hadoop.GetDatanodeReportResponseProto
	if err := rpc.Call(ctx, clientprotocol.Name, "getDatanodeReport", &hadoop.GetDatanodeReportRequestProto{Type: hadoop.DatanodeReportTypeProto_LIVE.Enum()}, &report); err != nil || len(report.Di) != 1 {
		t.Errorf("datanodes on a follower: %v, %v", report.Di, err)
	}
	if _, err := follower.datanodesClient(t, c).CommitBlockSynchronization(ctx, &pb.CommitBlockSynchronizationRequest{Block: wireBlock(b)}); !errors.Is(pb.FromStatus(err), metadata.ErrStandby) {
		t.Errorf("commit of a recovery on a follower: %v", err)
	}

	// A new leader knows where the blocks are, and ids do not come again.
	open := leader.begin(t, "/d/open", "survivor", 1)
	if _, err := open.addBlock(); err != nil {
		t.Fatal(err)
	}
	dn.has(open.block(5), pb.ReplicaState_RBW)
	c.know(b, 1)
	leader.stop()
	c.nodes[slices.Index(c.nodes, leader)] = nil
	next := c.leader()
	l, err := fs.BlockLocations(ctx, "/d/f", 0, 10)
	if err != nil || len(l) != 1 || len(l[0].Datanodes) != 1 {
		t.Fatalf("locations after the failover: %+v, %v", l, err)
	}
	w2 := next.begin(t, "/d/g", "writer2", 1)
	b2, err := w2.addBlock()
	if err != nil {
		t.Fatal(err)
	}
	if b2.B.GetBlockId() <= open.last.GetBlockId() || b2.B.GetGenerationStamp() <= open.last.GetGenerationStamp() {
		t.Errorf("block %v after the failover, %v before", b2.B, open.last)
	}
	// The writer goes on with the new leader.
	open.rpc = next.rpc(t)
	dn.has(open.block(5), pb.ReplicaState_FINALIZED)
	if ok, err := open.complete(); err != nil || !ok {
		t.Fatalf("complete after the failover: %t, %v", ok, err)
	}
}

func (m *member) datanodesClient(t *testing.T, c *cluster) pb.DatanodesClient {
	conn, err := grpc.NewClient(m.grpc, grpc.WithTransportCredentials(c.credentials.Key().Credentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return pb.NewDatanodesClient(conn)
}
