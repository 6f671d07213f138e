package transfer

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// testTrust trusts the datanodes of the tests and the bearers of tokens that it signed.
type testTrust struct {
	keys  *security.BlockKeys
	mu    sync.Mutex
	nodes map[string]bool
}

var (
	testSeeds = []metadata.BlockKey{{ID: 1, Seed: "the first"}, {ID: 2, Seed: "the second"}}
	trusted   = &testTrust{keys: security.NewSecret().BlockKeys(testSeeds), nodes: map[string]bool{}}
)

func (t *testTrust) Check(_ context.Context, tok security.Token, pool string, b metadata.BlockID, mode security.BlockMode) error {
	return t.keys.Check(tok, pool, b, mode, time.Now())
}

func (t *testTrust) Sign(pool string, b metadata.BlockID, mode security.BlockMode) security.Token {
	return t.keys.Sign(security.BlockGrant{User: "dn", Pool: pool, Block: b, Modes: mode}, time.Now().Add(time.Minute))
}

func (t *testTrust) Datanode(_ context.Context, addr string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.nodes[addr] {
		return fmt.Errorf("%s is a stranger", addr)
	}
	return nil
}

func (t *testTrust) add(addr string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes[addr] = true
}

const anyMode = security.ReadBlock | security.WriteBlock | security.CopyBlock | security.ReplaceBlock

func grant(b metadata.BlockID, modes security.BlockMode) security.BlockGrant {
	return security.BlockGrant{User: "ann", Pool: pool, Block: b, Modes: modes}
}

func tokenFor(g security.BlockGrant) *hadooppb.TokenProto {
	return tokenProto(trusted.keys.Sign(g, time.Now().Add(time.Hour)))
}

// requests are all that can be asked about a block, by what its token must allow.
func requests(h *hadooppb.ClientOperationHeaderProto, target *hadooppb.DatanodeInfoProto) map[string]struct {
	op   dtp.Op
	m    dtp.Message
	mode security.BlockMode
} {
	type request = struct {
		op   dtp.Op
		m    dtp.Message
		mode security.BlockMode
	}
	one := []*hadooppb.DatanodeInfoProto{target}
	out := map[string]request{
		"read":            {dtp.OpReadBlock, &hadooppb.OpReadBlockProto{Header: h, Offset: new(uint64(0)), Len: new(uint64(4))}, security.ReadBlock},
		"checksum":        {dtp.OpBlockChecksum, &hadooppb.OpBlockChecksumProto{Header: h.BaseHeader}, security.ReadBlock},
		"short circuit":   {dtp.OpShortCircuitFDs, &hadooppb.OpRequestShortCircuitAccessProto{Header: h.BaseHeader, MaxVersion: new(uint32(1))}, security.ReadBlock},
		"group checksum":  {dtp.OpGroupChecksum, &hadooppb.OpBlockGroupChecksumProto{Header: h.BaseHeader, Datanodes: &hadooppb.DatanodeInfosProto{}, EcPolicy: &hadooppb.ErasureCodingPolicyProto{Id: new(uint32(1))}, RequestedNumBytes: new(uint64(4))}, security.ReadBlock},
		"transfer":        {dtp.OpTransferBlock, &hadooppb.OpTransferBlockProto{Header: h, Targets: one}, security.CopyBlock},
		"copy":            {dtp.OpCopyBlock, &hadooppb.OpCopyBlockProto{Header: h.BaseHeader}, security.ReadBlock},
		"replace":         {dtp.OpReplaceBlock, &hadooppb.OpReplaceBlockProto{Header: h.BaseHeader, DelHint: new("x"), Source: target}, security.ReplaceBlock},
		"write of a copy": {dtp.OpWriteBlock, writeRequest(&hadooppb.ClientOperationHeaderProto{BaseHeader: h.BaseHeader, ClientName: new("")}, stageCreate), security.WriteBlock},
	}
	for _, s := range []stage{
		stageAppend, stageAppendRecovery, hadooppb.OpWriteBlockProto_DATA_STREAMING, stageStreamingRecovery,
		hadooppb.OpWriteBlockProto_PIPELINE_CLOSE, stageCloseRecovery, stageCreate, stageTransferRBW, stageTransferFinalized,
	} {
		out["write, "+s.String()] = request{dtp.OpWriteBlock, writeRequest(h, s), security.WriteBlock}
	}
	small := writeRequest(h, stageCreate)
	small.MaxBytesRcvd = new(h.BaseHeader.Block.GetNumBytes())
	out["small write"] = request{dtp.OpWriteBlock, small, security.WriteBlock}
	return out
}

func writeRequest(h *hadooppb.ClientOperationHeaderProto, s stage) *hadooppb.OpWriteBlockProto {
	return &hadooppb.OpWriteBlockProto{
		Header: h, Stage: s.Enum(), PipelineSize: new(uint32(1)), MinBytesRcvd: new(uint64(4)), MaxBytesRcvd: new(uint64(0)),
		LatestGenerationStamp: new(uint64(5000)), RequestedChecksum: dtp.DefaultChecksum.Proto(),
	}
}

// Nothing is done, and nothing told, about a block without a token for it, whatever the request is, and whether there is
// such a block or not.
func TestRequestsWithoutRightToTheBlockAreRefused(t *testing.T) {
	nodes := start(t, 2)
	d, target := nodes[0], nodes[1].info
	data := []byte("data")
	mustBegin(t, block(7, 1001, 0), setup{stage: stageCreate}, d).writeAll(0, data, "S")
	now := time.Now()
	sign := func(g security.BlockGrant) *hadooppb.TokenProto { return tokenFor(g) }
	tokens := func(b metadata.BlockID, mode security.BlockMode) map[string]*hadooppb.TokenProto {
		good := grant(b, mode)
		other, otherPool, otherMode := good, good, good
		other.Block += 2
		otherPool.Pool = "BP-2-127.0.0.1-2"
		otherMode.Modes = anyMode &^ mode
		flipped := trusted.keys.Sign(good, now.Add(time.Hour))
		flipped.Password = bytes.Clone(flipped.Password)
		flipped.Password[len(flipped.Password)-1] ^= 1
		return map[string]*hadooppb.TokenProto{
			"no token":     nil,
			"empty token":  tokenProto(security.Token{}),
			"other block":  sign(other),
			"other pool":   sign(otherPool),
			"other mode":   sign(otherMode),
			"expired":      tokenProto(trusted.keys.Sign(good, now.Add(-time.Millisecond))),
			"foreign key":  tokenProto(security.NewSecret().BlockKeys(testSeeds).Sign(good, now.Add(time.Hour))),
			"unknown key":  tokenProto(security.NewSecret().BlockKeys([]metadata.BlockKey{{ID: 99}}).Sign(good, now.Add(time.Hour))),
			"changed byte": tokenProto(flipped),
			"garbage":      tokenProto(security.Token{Identifier: []byte{0x8a, 1, 2}, Password: []byte("x")}),
		}
	}
	before, _ := d.store.Replica(7)
	var told map[string]string
	for _, b := range []metadata.Block{block(7, 1001, 4), block(8, 1001, 4)} { // one that is there, and one that is not
		h := &hadooppb.ClientOperationHeaderProto{BaseHeader: &hadooppb.BaseHeaderProto{Block: protoOf(pool, b)}, ClientName: new("c")}
		said := map[string]string{}
		for what, q := range requests(h, target) {
			for name, token := range tokens(b.ID, q.mode) {
				h.BaseHeader.Token = token
				c := dial(t, d)
				check(t, dtp.WriteOp(c, q.op, q.m))
				m, err := dtp.ReadResponse(c.r)
				if err != nil {
					t.Fatalf("%s of %v, %s: %v", what, b, name, err)
				}
				if m.GetStatus() != hadooppb.Status_ERROR_ACCESS_TOKEN {
					t.Errorf("%s of %v, %s: %v", what, b, name, m)
				}
				said[what+", "+name] = m.GetMessage()
				c.Close()
			}
		}
		for k, v := range said {
			if told != nil && told[k] != v {
				t.Errorf("%s: the answer tells whether there is a block: %q, %q", k, told[k], v)
			}
			if strings.Contains(v, "1001") || strings.Contains(v, "blk_") {
				t.Errorf("%s: the answer tells of the block: %q", k, v)
			}
		}
		told = said
	}
	if after, _ := d.store.Replica(7); after != before || after.State != datanode.Finalized {
		t.Errorf("the replica was %v and is %v", before, after)
	}
	d.wantContent(block(7, 1001, 0), data)
	d.wantNone(8)
	nodes[1].wantNone(7)
}

// A small block comes with its request, before its sender can know that it is refused: the sender hears why.
func TestRefusedSmallBlockIsAnswered(t *testing.T) {
	d := start(t, 1)[0]
	b := block(7, 1001, 0)
	b.Length = 60_000
	op := writeRequest(&hadooppb.ClientOperationHeaderProto{BaseHeader: &hadooppb.BaseHeaderProto{Block: protoOf(pool, b)}, ClientName: new("c")}, stageCreate)
	op.MaxBytesRcvd = new(uint64(60_000))
	var message bytes.Buffer
	check(t, dtp.WriteOp(&message, dtp.OpWriteBlock, op))
	data := pattern(60_000)
	packets := dtp.NewPacketWriter(&message)
	check(t, packets.Write(dtp.Header{}, dtp.DefaultChecksum.Append(nil, data), data))
	check(t, packets.Write(dtp.Header{Offset: 60_000, Seqno: 1, Last: true}, nil, nil))
	for range 20 {
		c := dial(t, d)
		_, err := c.Write(message.Bytes())
		check(t, err)
		if m, err := dtp.ReadResponse(c.r); err != nil || m.GetStatus() != hadooppb.Status_ERROR_ACCESS_TOKEN {
			t.Fatalf("answer %v, %v", m, err)
		}
		c.Close()
	}
	d.wantNone(7)
}

// A datanode connects to datanodes of its cluster only, whatever a client's request says.
func TestNothingIsSentToStrangers(t *testing.T) {
	d := start(t, 1)[0]
	data := pattern(1000)
	mustBegin(t, block(7, 1001, 0), setup{stage: stageCreate}, d).writeAll(0, data, "S")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	reached := make(chan struct{})
	go func() {
		defer close(reached)
		if c, err := l.Accept(); err == nil {
			t.Error("the datanode connects to a stranger")
			c.Close()
		}
	}()
	stranger := &hadooppb.DatanodeInfoProto{Id: &hadooppb.DatanodeIDProto{
		IpAddr: new("127.0.0.1"), HostName: new("localhost"), DatanodeUuid: d.info.GetId().DatanodeUuid,
		XferPort: new(uint32(l.Addr().(*net.TCPAddr).Port)), InfoPort: new(uint32(0)), IpcPort: new(uint32(0)),
	}}
	bad := dtp.TransferAddr(stranger.GetId(), false)
	h := header(block(8, 1001, 4096), "c")
	pipeline := writeRequest(h, stageCreate)
	pipeline.Targets = []*hadooppb.DatanodeInfoProto{stranger, d.info}
	small := writeRequest(h, stageCreate)
	small.MaxBytesRcvd = new(uint64(4096))
	small.Targets = pipeline.Targets
	adopt := writeRequest(header(block(7, 1001, 1000), "c"), stageAppend)
	adopt.MinBytesRcvd = new(uint64(1000))
	adopt.Targets = pipeline.Targets
	for name, q := range map[string]struct {
		op dtp.Op
		m  dtp.Message
	}{
		"pipeline": {dtp.OpWriteBlock, pipeline},
		"small":    {dtp.OpWriteBlock, small},
		"append":   {dtp.OpWriteBlock, adopt},
		"transfer": {dtp.OpTransferBlock, &hadooppb.OpTransferBlockProto{Header: header(block(7, 1001, 1000), "c"), Targets: []*hadooppb.DatanodeInfoProto{stranger}}},
	} {
		c := dial(t, d)
		check(t, dtp.WriteOp(c, q.op, q.m))
		m, err := dtp.ReadResponse(c.r)
		check(t, err)
		if m.GetStatus() != hadooppb.Status_ERROR || m.GetFirstBadLink() != bad || !strings.Contains(m.GetMessage(), "stranger") {
			t.Errorf("%s: %v", name, m)
		}
	}
	l.Close()
	<-reached
	d.wantNone(8)
	d.wantContent(block(7, 1001, 0), data)
}

// Data goes on through a pipeline with the client's token; a copy goes with one of the datanode's own, because the
// client's lets it order a copy and not write one.
func TestCopyOrderedByAClientNeedsNoRightToWrite(t *testing.T) {
	nodes := start(t, 2)
	data := pattern(70_000)
	mustBegin(t, block(7, 1001, 0), setup{stage: stageCreate}, nodes[0]).writeAll(0, data, "S")
	h := header(block(7, 1001, 70_000), "c")
	h.BaseHeader.Token = tokenFor(grant(7, security.CopyBlock))
	c := dial(t, nodes[0])
	check(t, dtp.WriteOp(c, dtp.OpTransferBlock, &hadooppb.OpTransferBlockProto{Header: h, Targets: []*hadooppb.DatanodeInfoProto{nodes[1].info}}))
	m, err := dtp.ReadResponse(c.r)
	check(t, err)
	check(t, dtp.CheckResponse(dtp.OpTransferBlock, m))
	nodes[1].wantContent(block(7, 1001, 0), data)
}

// A copy that the other datanode refuses is an error here.
func TestCopyThatIsRefusedIsNotTakenForDone(t *testing.T) {
	a := start(t, 1)[0]
	foreign := &testTrust{keys: security.NewSecret().BlockKeys(testSeeds), nodes: trusted.nodes}
	b := startOne(t, func(c *Config) { c.Trust = foreign })
	mustBegin(t, block(7, 1001, 0), setup{stage: stageCreate}, a).writeAll(0, pattern(1000), "S")
	err := a.srv.Replicate(context.Background(), pool, block(7, 1001, 0), b.info, hadooppb.StorageTypeProto_DISK, 0, nil)
	if err == nil || !strings.Contains(err.Error(), "ERROR_ACCESS_TOKEN") {
		t.Errorf("copy ended in %v", err)
	}
	b.wantNone(7)
}

// Whatever a request is, it is about a block and needs a right to it, or is not supported.
func FuzzAuthorize(f *testing.F) {
	d := &Server{cfg: Config{Trust: trusted}}
	h := header(block(7, 1001, 4), "c")
	for _, q := range requests(h, &hadooppb.DatanodeInfoProto{Id: &hadooppb.DatanodeIDProto{
		IpAddr: new("127.0.0.1"), HostName: new("h"), DatanodeUuid: new("u"), XferPort: new(uint32(1)), InfoPort: new(uint32(1)), IpcPort: new(uint32(1)),
	}}) {
		message, err := dtp.AppendOp(nil, q.op, q.m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message)
	}
	known := tokenFor(grant(7, anyMode))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, m, err := dtp.ReadOp(bufio.NewReaderSize(bytes.NewReader(data), idleBuffer))
		if err != nil {
			return
		}
		base, mode := blockOfRequest(m)
		if mode == 0 {
			return
		}
		err = d.authorize(context.Background(), base, mode)
		if err == nil && (base.GetBlock().GetBlockId() != 7 || base.GetBlock().GetPoolId() != pool || len(base.GetToken().GetIdentifier()) != len(known.GetIdentifier())) {
			t.Fatalf("authorized: %v", base)
		}
	})
}
