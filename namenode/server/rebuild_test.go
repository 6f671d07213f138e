package server

import (
	"bytes"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// striped is a file with one block group on its way through bare calls.
type striped struct {
	*writing
	policy metadata.ErasurePolicy
	group  *hadoop.LocatedBlockProto
	data   []byte
	units  [][]byte
}

// newStriped begins a file under a policy, with a group of random bytes of which nothing is written yet.
func newStriped(t *testing.T, m *member, path, policy string, length int) *striped {
	t.Helper()
	f := &striped{writing: &writing{t: t, rpc: m.rpc(t), path: path, client: "writer of " + path}, data: make([]byte, length)}
	f.policy, _ = metadata.ErasurePolicyNamed(policy)
	done := make(chan error, 1)
	e := newEnvelope()
	e.command.Op = &logpb.Command_SetErasurePolicy{SetErasurePolicy: &logpb.SetErasurePolicy{Target: &logpb.Target{}, Policy: 1 + uint32(f.policy.ID)}}
	caller := m.caller()
	m.Server.change(&caller, namenode.Retry{}, e, func(_ *namespace.Result, err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var created hadoop.CreateResponseProto
	if err := f.rpc.Call(t.Context(), clientprotocol.Name, "create", &hadoop.CreateRequestProto{
		Src: &path, Masked: &hadoop.FsPermissionProto{Perm: ptr(uint32(0o644))}, ClientName: &f.client, CreateFlag: ptr(uint32(1)),
		CreateParent: ptr(true), Replication: ptr(uint32(3)), BlockSize: ptr(uint64(8 << 20)),
	}, &created); err != nil {
		t.Fatal(err)
	}
	f.id = created.Fs.GetFileId()
	var err error
	if f.group, err = f.addBlock(); err != nil {
		t.Fatal(err)
	}
	_, _ = rand.NewChaCha8([32]byte{byte(length)}).Read(f.data)
	l := f.policy.Layout
	f.units = make([][]byte, l.Units())
	for p := range l.Pieces(0, int64(length)) {
		f.units[p.Unit] = append(f.units[p.Unit], f.data[p.Offset:p.Offset+p.Length]...)
	}
	for i := l.Data; i < l.Units(); i++ {
		f.units[i] = make([]byte, l.UnitLength(int64(length), i))
	}
	coder, err := erasure.New(f.policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := coder.Encode(f.units[:l.Data], f.units[l.Data:]); err != nil {
		t.Fatal(err)
	}
	return f
}

// write sends the first bytes of an internal block to its datanode, and ends it.
func (f *striped) write(unit, n int, end bool) {
	f.t.Helper()
	fail := func(err error) {
		f.t.Helper()
		if err != nil {
			f.t.Fatal(err)
		}
	}
	nc, err := net.Dial("tcp", dtp.TransferAddr(f.group.Locs[unit].GetId(), false))
	fail(err)
	defer nc.Close()
	fail(nc.SetDeadline(time.Now().Add(limit)))
	b := *f.group.B.BlockId + uint64(unit)
	fail(dtp.WriteOp(nc, dtp.OpWriteBlock, &hadoop.OpWriteBlockProto{
		Header: &hadoop.ClientOperationHeaderProto{
			BaseHeader: &hadoop.BaseHeaderProto{
				Block: &hadoop.ExtendedBlockProto{PoolId: f.group.B.PoolId, BlockId: &b, GenerationStamp: f.group.B.GenerationStamp, NumBytes: ptr(uint64(0))},
				Token: f.group.BlockTokens[unit],
			}, ClientName: &f.client,
		},
		Stage: hadoop.OpWriteBlockProto_PIPELINE_SETUP_CREATE.Enum(), PipelineSize: ptr(uint32(1)), MinBytesRcvd: ptr(uint64(0)), MaxBytesRcvd: ptr(uint64(0)),
		LatestGenerationStamp: f.group.B.GenerationStamp, RequestedChecksum: dtp.DefaultChecksum.Proto(),
	}))
	r := dtp.NewReader(nc)
	answer, err := dtp.ReadResponse(r)
	fail(err)
	fail(dtp.CheckResponse(dtp.OpWriteBlock, answer))
	out := dtp.NewPacketWriter(nc)
	var ack dtp.Ack
	seqno, data := int64(0), f.units[unit][:n]
	send := func(off int, piece []byte, last bool) {
		fail(out.Write(dtp.Header{Offset: int64(off), Seqno: seqno, Last: last}, dtp.DefaultChecksum.Append(nil, piece), piece))
		fail(dtp.ReadAck(r, &ack))
		seqno++
	}
	for off := 0; off < n; off += dtp.DataSize {
		send(off, data[off:min(n, off+dtp.DataSize)], false)
	}
	if end {
		send(n, nil, true)
	}
}

// internalBlocks is what the internal blocks that the namenode lists have, by number.
func (c *cluster) internalBlocks(t *testing.T, path string) (*hadoop.LocatedBlockProto, map[int][]byte) {
	t.Helper()
	l, err := c.located("root", path)
	if err != nil || len(l.GetBlocks()) != 1 {
		t.Fatalf("%v, %v", l, err)
	}
	b := l.Blocks[0]
	policy, _ := metadata.ErasurePolicyOf(metadata.ErasurePolicyID(l.EcPolicy.GetId()))
	out := map[int][]byte{}
	for i, unit := range b.BlockIndices {
		one := &hadoop.LocatedBlockProto{B: &hadoop.ExtendedBlockProto{
			PoolId: b.B.PoolId, BlockId: ptr(b.B.GetBlockId() + uint64(unit)), GenerationStamp: b.B.GenerationStamp,
			NumBytes: ptr(uint64(policy.Layout.UnitLength(int64(b.B.GetNumBytes()), int(unit)))),
		}}
		answer, data := speak(t, b.Locs[i], dtp.OpReadBlock, readOp(one, b.BlockTokens[i]))
		if err := dtp.CheckResponse(dtp.OpReadBlock, answer); err != nil {
			t.Fatal(err)
		}
		out[int(unit)] = data
	}
	return b, out
}

// checksumOf asks a datanode of the group for its checksum.
func checksumOf(t *testing.T, policy metadata.ErasurePolicy, b *hadoop.LocatedBlockProto) []byte {
	t.Helper()
	m := &hadoop.OpBlockGroupChecksumProto{
		Header: &hadoop.BaseHeaderProto{Block: b.B, Token: b.BlockToken}, Datanodes: &hadoop.DatanodeInfosProto{Datanodes: b.Locs}, BlockTokens: b.BlockTokens,
		EcPolicy: &hadoop.ErasureCodingPolicyProto{Id: ptr(uint32(policy.ID))}, RequestedNumBytes: b.B.NumBytes,
		BlockChecksumOptions: &hadoop.BlockChecksumOptionsProto{BlockChecksumType: hadoop.BlockChecksumTypeProto_MD5CRC.Enum()},
	}
	for _, unit := range b.BlockIndices {
		m.BlockIndices = append(m.BlockIndices, uint32(unit))
	}
	answer, _ := speak(t, b.Locs[0], dtp.OpGroupChecksum, m)
	if err := dtp.CheckResponse(dtp.OpGroupChecksum, answer); err != nil {
		t.Fatal(err)
	}
	return answer.GetChecksumResponse().GetBlockChecksum()
}

// A namenode with real datanodes: a group is written, two of its datanodes die, and it is whole again on others, to the byte; the checksum is the same
// before, while two are lost, and after. Then the writer of another one dies.
func TestGroupsAreMendedAndRecovered(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	lead := c.leader()
	stops := map[string]func(){}
	for i := range 7 {
		name := string(rune('a' + i))
		stop := c.realDatanode(name)
		for _, d := range lead.Datanodes() {
			if id := string(d.Node.ID); stops[id] == nil {
				stops[id] = stop
			}
		}
	}
	f := newStriped(t, lead, "/f", "RS-3-2-1024k", 7<<20+4321)
	for i, data := range f.units {
		f.write(i, len(data), true)
	}
	f.block(uint64(len(f.data)))
	if ok, err := f.complete(); err != nil || !ok {
		t.Fatalf("complete: %t, %v", ok, err)
	}
	var b *hadoop.LocatedBlockProto
	var have map[int][]byte
	whole := func() bool {
		b, have = c.internalBlocks(t, "/f")
		return len(have) == 5 && !slices.ContainsFunc([]int{0, 1, 2, 3, 4}, func(i int) bool { return !bytes.Equal(have[i], f.units[i]) })
	}
	eventually(t, "five internal blocks are listed", whole)
	sum := checksumOf(t, f.policy, b)

	dead := []string{b.Locs[1].Id.GetDatanodeUuid(), b.Locs[3].Id.GetDatanodeUuid()}
	for _, id := range dead {
		stops[id]()
		lead.buries(t, id)
	}
	if got := checksumOf(t, f.policy, b); !bytes.Equal(got, sum) {
		t.Errorf("the checksum is %x with two of its datanodes dead, and was %x", got, sum)
	}
	eventually(t, "it is whole again, elsewhere", func() bool {
		l, err := c.located("root", "/f")
		if err != nil || len(l.Blocks) != 1 || len(l.Blocks[0].Locs) != 5 || slices.ContainsFunc(l.Blocks[0].Locs, func(d *hadoop.DatanodeInfoProto) bool { return slices.Contains(dead, d.Id.GetDatanodeUuid()) }) {
			return false
		}
		return whole()
	})
	if got := checksumOf(t, f.policy, b); !bytes.Equal(got, sum) {
		t.Errorf("the checksum is %x after it was mended, and was %x", got, sum)
	}

	// Two stripes are sure, one internal block lags behind, one was not begun: that is computed.
	g := newStriped(t, lead, "/g", "RS-3-2-1024k", 9<<20)
	for i, n := range []int{3 << 20, 2<<20 + 700, 2 << 20, 1 << 20} {
		g.write(i, n, false)
	}
	eventually(t, "the lease is recovered", func() bool {
		var r hadoop.RecoverLeaseResponseProto
		err := g.rpc.Call(t.Context(), clientprotocol.Name, "recoverLease", &hadoop.RecoverLeaseRequestProto{Src: &g.path, ClientName: ptr("another")}, &r)
		return err == nil && r.GetResult()
	})
	if st, err := c.root().Stat(t.Context(), "/g"); err != nil || st.Length != 6<<20 || st.UnderConstruction {
		t.Fatalf("stat: %+v, %v", st, err)
	}
	eventually(t, "all of what was kept is there", func() bool {
		_, have = c.internalBlocks(t, "/g")
		return len(have) == 5 && !slices.ContainsFunc([]int{0, 1, 2, 3, 4}, func(i int) bool { return !bytes.Equal(have[i], g.units[i][:2<<20]) })
	})

	// Of less than a stripe nothing is kept, nor of what was not begun.
	for _, path := range []string{"/h", "/i"} {
		h := newStriped(t, lead, path, "RS-3-2-1024k", 9<<20)
		if path == "/h" {
			h.write(0, 1<<20, false)
			h.write(1, 500, false)
		}
		eventually(t, "the lease is recovered", func() bool {
			var r hadoop.RecoverLeaseResponseProto
			err := h.rpc.Call(t.Context(), clientprotocol.Name, "recoverLease", &hadoop.RecoverLeaseRequestProto{Src: &h.path, ClientName: ptr("another")}, &r)
			return err == nil && r.GetResult()
		})
		if st, err := c.root().Stat(t.Context(), path); err != nil || st.Length != 0 || st.UnderConstruction {
			t.Fatalf("stat: %+v, %v", st, err)
		}
	}
}
