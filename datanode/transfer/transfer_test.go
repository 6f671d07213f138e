package transfer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/leaktest"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// node is a datanode as far as this package goes: a store and a server.
type node struct {
	t     testing.TB
	store *blockstore.Store
	srv   *Server
	info  *hadooppb.DatanodeInfoProto
	dir   string
	kill  func() // cuts all connections and waits

	mu       sync.Mutex
	suspects []metadata.BlockID // broken
	accused  []metadata.BlockID
	changes  []datanode.Change // of the store
}

const pool = "BP-1-127.0.0.1-1"

func start(t testing.TB, n int) []*node {
	t.Helper()
	var out []*node
	for range n {
		out = append(out, startOne(t))
	}
	return out
}

func startOne(t testing.TB, change ...func(*Config)) *node {
	t.Helper()
	return startOneAt(t, nil, change...)
}

// startOneAt serves beside further listeners.
func startOneAt(t testing.TB, also []net.Listener, change ...func(*Config)) *node {
	t.Helper()
	d := &node{t: t, dir: t.TempDir()}
	var err error
	d.store, err = blockstore.Open(blockstore.Config{
		FS: vfs.OS, Volumes: []blockstore.VolumeConfig{{Path: d.dir}}, Reserve: -1, Logger: slog.New(slog.DiscardHandler),
		OnChange: func(c datanode.Change) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.changes = append(d.changes, c)
		},
	})
	check(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	d.info = &hadooppb.DatanodeInfoProto{Id: &hadooppb.DatanodeIDProto{
		IpAddr: new("127.0.0.1"), HostName: new("localhost"), DatanodeUuid: new(d.store.Identity().Datanode),
		XferPort: new(uint32(port)), InfoPort: new(uint32(0)), IpcPort: new(uint32(0)),
	}, Location: new("/default-rack")}
	trusted.add(dtp.TransferAddr(d.info.GetId(), false))
	cfg := Config{
		Store: d.store, Trust: trusted, BlockPool: func() string { return pool }, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		KeepAlive: time.Minute, // a test may be paused between two requests
		Broken: func(id metadata.BlockID) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.suspects = append(d.suspects, id)
		},
		Accused: func(id metadata.BlockID, _ uint32) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.accused = append(d.accused, id)
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	d.srv = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.srv.Serve(ctx, append(also, l)...) }()
	d.kill = sync.OnceFunc(func() {
		cancel()
		check(t, <-done)
	})
	t.Cleanup(func() {
		d.kill()
		check(t, d.store.Shutdown())
	})
	return d
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func pattern(n int) []byte {
	r := rand.New(rand.NewPCG(5, 6))
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b
}

func block(id, gen, length int64) metadata.Block {
	return metadata.Block{ID: metadata.BlockID(id), Generation: metadata.Generation(gen), Length: length}
}

// hang is how long a connection of a test may last: some carry 12 MiB through three datanodes, which a busy machine takes a minute for under the race detector.
const hang = 10 * time.Minute

// client is one connection to a datanode.
type client struct {
	t testing.TB
	net.Conn
	r     *bufio.Reader
	seqno int64
	came  dtp.Checksum // what was read last
}

func dial(t testing.TB, d *node) *client { return dialFrom(t, d, nil) }

// dialFrom connects from an address of this machine; nil: any.
func dialFrom(t testing.TB, d *node, from net.IP) *client {
	t.Helper()
	var dialer net.Dialer
	if from != nil {
		dialer.LocalAddr = &net.TCPAddr{IP: from}
	}
	nc, err := dialer.DialContext(t.Context(), "tcp", dtp.TransferAddr(d.info.GetId(), false))
	check(t, err)
	check(t, nc.SetDeadline(time.Now().Add(hang)))
	t.Cleanup(func() { nc.Close() })
	return &client{t: t, Conn: nc, r: dtp.NewReader(nc)}
}

func header(b metadata.Block, name string) *hadooppb.ClientOperationHeaderProto {
	return &hadooppb.ClientOperationHeaderProto{
		BaseHeader: &hadooppb.BaseHeaderProto{Block: protoOf(pool, b), Token: tokenFor(grant(b.ID, anyMode))}, ClientName: &name,
	}
}

type setup struct {
	within   bool // from the datanode's own process
	stage    stage
	gen      int64
	min, max int64
	sum      dtp.Checksum
	name     string
	from     net.IP
	kind     hadooppb.StorageTypeProto // 0 is not said
}

// begin sends WRITE_BLOCK to the first of the nodes and returns the answer.
func begin(t testing.TB, b metadata.Block, o setup, nodes ...*node) (*client, *hadooppb.BlockOpResponseProto) {
	t.Helper()
	if o.sum == (dtp.Checksum{}) {
		o.sum = dtp.DefaultChecksum
	}
	if o.name == "" {
		o.name = "DFSClient_NONMAPREDUCE_1"
	}
	c := dialFrom(t, nodes[0], o.from)
	if o.within {
		c.Conn = nodes[0].srv.Within()
		check(t, c.SetDeadline(time.Now().Add(hang)))
		c.r = dtp.NewReader(c.Conn)
		t.Cleanup(func() { c.Conn.Close() })
	}
	op := &hadooppb.OpWriteBlockProto{
		Header: header(b, o.name), Stage: o.stage.Enum(), PipelineSize: new(uint32(len(nodes))),
		MinBytesRcvd: new(uint64(o.min)), MaxBytesRcvd: new(uint64(o.max)), LatestGenerationStamp: new(uint64(o.gen)),
		RequestedChecksum: o.sum.Proto(),
	}
	for _, d := range nodes[1:] {
		op.Targets = append(op.Targets, d.info)
	}
	if o.kind != 0 {
		op.StorageType = o.kind.Enum()
	}
	check(t, dtp.WriteOp(c, dtp.OpWriteBlock, op))
	m, err := dtp.ReadResponse(c.r)
	check(t, err)
	return c, m
}

func mustBegin(t testing.TB, b metadata.Block, o setup, nodes ...*node) *client {
	t.Helper()
	c, m := begin(t, b, o, nodes...)
	check(t, dtp.CheckResponse(dtp.OpWriteBlock, m))
	return c
}

func (c *client) packet(off int64, data []byte, sync bool) {
	c.t.Helper()
	sums := dtp.DefaultChecksum.Append(nil, data)
	check(c.t, dtp.NewPacketWriter(c).Write(dtp.Header{Offset: off, Seqno: c.seqno, Sync: sync}, sums, data))
	c.seqno++
}

func (c *client) last(off int64) {
	c.t.Helper()
	check(c.t, dtp.NewPacketWriter(c).Write(dtp.Header{Offset: off, Seqno: c.seqno, Last: true}, nil, nil))
	c.seqno++
}

// ack reads an acknowledgement and returns its statuses as a text, S for success.
func (c *client) ack(seqno int64) string {
	c.t.Helper()
	var a dtp.Ack
	check(c.t, dtp.ReadAck(c.r, &a))
	if a.Seqno != seqno {
		c.t.Fatalf("acknowledgement of %d, want %d", a.Seqno, seqno)
	}
	var out []string
	for _, s := range a.Replies {
		if s == hadooppb.Status_SUCCESS {
			out = append(out, "S")
		} else {
			out = append(out, s.String())
		}
	}
	return strings.Join(out, " ")
}

func (c *client) wantAck(seqno int64, want string) {
	c.t.Helper()
	if got := c.ack(seqno); got != want {
		c.t.Fatalf("acknowledgement of packet %d is %q, want %q", seqno, got, want)
	}
}

// writeAll writes data from off in packets and waits for all acknowledgements.
func (c *client) writeAll(off int64, data []byte, want string) {
	c.t.Helper()
	from := c.seqno
	end := off + int64(len(data))
	for len(data) > 0 {
		n := min(len(data), 64512)
		if off%512 != 0 {
			n = min(n, int(512-off%512))
		}
		c.packet(off, data[:n], false)
		off, data = off+int64(n), data[n:]
	}
	c.last(end)
	for s := from; s < c.seqno; s++ {
		c.wantAck(s, want)
	}
}

// read reads a range from one datanode, verifying as a client does.
func (c *client) read(b metadata.Block, off, n int64) ([]byte, error) {
	c.t.Helper()
	check(c.t, dtp.WriteOp(c, dtp.OpReadBlock, &hadooppb.OpReadBlockProto{Header: header(b, "c"), Offset: new(uint64(off)), Len: new(uint64(n))}))
	m, err := dtp.ReadResponse(c.r)
	if err == nil {
		err = dtp.CheckResponse(dtp.OpReadBlock, m)
	}
	if err != nil {
		return nil, err
	}
	at := int64(m.GetReadOpChecksumInfo().GetChunkOffset())
	if at > off || at <= off-512 {
		c.t.Fatalf("first chunk at %d for offset %d", at, off)
	}
	first := at
	var out []byte
	packets := dtp.NewPacketReader(c.r)
	for seqno := int64(0); ; seqno++ {
		p, err := packets.Next()
		if err != nil {
			return nil, err
		}
		if n > 0 && p.Offset != at || p.Seqno != seqno || !p.Last && p.DataLen == 0 {
			c.t.Fatalf("packet %+v, want offset %d, seqno %d", p.Header, at, seqno)
		}
		if p.Last {
			break
		}
		if c.came, err = dtp.ChecksumOf(m.GetReadOpChecksumInfo().GetChecksum()); err == nil {
			err = c.came.Verify(p.Sums, p.Data)
		}
		if err != nil {
			packets.Done()
			check(c.t, dtp.WriteMessage(c, &hadooppb.ClientReadStatusProto{Status: hadooppb.Status_ERROR_CHECKSUM.Enum()}))
			return nil, err
		}
		out = append(out, p.Data...)
		at += int64(p.DataLen)
	}
	packets.Done()
	check(c.t, dtp.WriteMessage(c, &hadooppb.ClientReadStatusProto{Status: hadooppb.Status_CHECKSUM_OK.Enum()}))
	if n == 0 && len(out) == 0 {
		return nil, nil
	}
	if int64(len(out)) < off-first+n {
		c.t.Fatalf("%d bytes from %d, want %d from %d", len(out), first, n, off)
	}
	return out[off-first : off-first+n], nil
}

func (d *node) wantContent(b metadata.Block, want []byte) {
	d.t.Helper()
	got, err := dial(d.t, d).read(b, 0, int64(len(want)))
	check(d.t, err)
	if !bytes.Equal(got, want) {
		d.t.Fatalf("%v on a datanode is not what was written", b)
	}
	r, ok := d.store.Replica(b.ID)
	if !ok || r.State != datanode.Finalized || r.Block.Length != int64(len(want)) || r.Block.Generation != b.Generation {
		d.t.Fatalf("replica is %v, want %v of %d bytes", r, b, len(want))
	}
}

func TestWriteThroughThreeAndReadFromEach(t *testing.T) {
	nodes := start(t, 3)
	for i, size := range []int{0, 1, 511, 512, 513, 64512, 64513, 300_000, 5_000_000} {
		b := block(int64(i+1), 1001, 0)
		data := pattern(size)
		mustBegin(t, b, setup{stage: stageCreate}, nodes...).writeAll(0, data, "S S S")
		for _, d := range nodes {
			d.wantContent(b, data)
		}
		c := dial(t, nodes[1]) // several reads on one connection
		r := rand.New(rand.NewPCG(1, uint64(i)))
		for range 20 {
			off := r.Int64N(int64(size) + 1)
			n := r.Int64N(int64(size) - off + 1)
			got, err := c.read(b, off, n)
			check(t, err)
			if !bytes.Equal(got, data[off:off+n]) {
				t.Fatalf("read of %d bytes at %d of %d is wrong", n, off, size)
			}
		}
	}
}

func TestHeartbeatsAndOtherSeqnoStarts(t *testing.T) {
	nodes := start(t, 2)
	b := block(1, 1001, 0)
	c := mustBegin(t, b, setup{stage: stageCreate}, nodes...)
	c.seqno = 1 // as the Go client counts
	c.packet(0, pattern(1000), false)
	check(t, dtp.NewPacketWriter(c).Write(dtp.Header{Seqno: dtp.HeartbeatSeqno}, nil, nil))
	c.wantAck(1, "S S")
	c.wantAck(-1, "S S")
	c.packet(1000, pattern(10), true)
	c.wantAck(2, "S S")
	c.last(1010)
	c.wantAck(3, "S S")
	nodes[1].wantContent(b, append(pattern(1000), pattern(10)...))
}

// Each position of a pipeline of three dies in the middle of a block. What was acknowledged before is on the survivors,
// and the client's recovery (new generation, a replacement filled by TRANSFER_BLOCK) completes the block.
func TestPipelineRecoveryAtEachPosition(t *testing.T) {
	for victim := range 3 {
		for _, replace := range []bool{false, true} {
			nodes := start(t, 4)
			b := block(7, 1001, 0)
			data := pattern(700_000)
			c := mustBegin(t, b, setup{stage: stageCreate}, nodes[:3]...)
			c.packet(0, data[:64_512], false)
			c.packet(64_512, data[64_512:100_000], false)
			c.wantAck(0, "S S S")
			c.wantAck(1, "S S S")
			nodes[victim].kill()
			var a dtp.Ack
			_ = dtp.NewPacketWriter(c).Write(dtp.Header{Offset: 99_840, Seqno: 2}, dtp.DefaultChecksum.Append(nil, data[99_840:160_000]), data[99_840:160_000])
			err := dtp.ReadAck(c.r, &a)
			if victim == 0 {
				if err == nil {
					t.Fatalf("the dead datanode answered %+v", a)
				}
			} else {
				check(t, err)
				if i, _ := a.Blame(); i != victim {
					t.Fatalf("victim %d, acknowledgement %+v blames %d", victim, a, i)
				}
			}
			c.Close()
			var survivors []*node
			for i, d := range nodes[:3] {
				if i != victim {
					survivors = append(survivors, d)
					if r, _ := d.store.Replica(7); r.Visible < 100_000 && i == 0 {
						t.Errorf("survivor %d shows %d acknowledged bytes", i, r.Visible)
					}
				}
			}
			if replace {
				tc := dial(t, survivors[0])
				check(t, dtp.WriteOp(tc, dtp.OpTransferBlock, &hadooppb.OpTransferBlockProto{
					Header: header(b, "c"), Targets: []*hadooppb.DatanodeInfoProto{nodes[3].info},
				}))
				m, err := dtp.ReadResponse(tc.r)
				check(t, err)
				check(t, dtp.CheckResponse(dtp.OpTransferBlock, m))
				survivors = append(survivors, nodes[3])
			}
			c = mustBegin(t, b, setup{stage: stageStreamingRecovery, gen: 1002, min: 100_000, max: 160_000}, survivors...)
			c.writeAll(99_840, data[99_840:], strings.TrimSpace(strings.Repeat("S ", len(survivors))))
			for _, d := range survivors {
				d.wantContent(block(7, 1002, 0), data)
			}
		}
	}
}

// Who writes through datanodes of ours alone is told that packets may be large; behind one of Hadoop's nobody knows.
func TestLargePacketsAreAnnounced(t *testing.T) {
	nodes := start(t, 3)
	for n := range nodes {
		_, m := begin(t, block(int64(7+n), 1001, 0), setup{stage: stageCreate}, nodes[:n+1]...)
		if check(t, dtp.CheckResponse(dtp.OpWriteBlock, m)); m.GetPacketData() != dtp.LargeSize {
			t.Errorf("%d datanodes: %v", n+1, m)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	var going sync.WaitGroup
	t.Cleanup(func() { l.Close(); going.Wait() })
	going.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		r := bufio.NewReader(c)
		if _, _, err := dtp.ReadOp(r); err != nil {
			t.Error(err)
			return
		}
		_ = dtp.WriteResponse(c, dtp.Success())
		_, _ = io.Copy(io.Discard, r) // until the pipeline ends
	})
	hadoop := &node{info: proto.Clone(nodes[2].info).(*hadooppb.DatanodeInfoProto)}
	hadoop.info.Id.XferPort = new(uint32(l.Addr().(*net.TCPAddr).Port))
	trusted.add(l.Addr().String())
	c, m := begin(t, block(10, 1001, 0), setup{stage: stageCreate}, nodes[0], nodes[1], hadoop)
	if check(t, dtp.CheckResponse(dtp.OpWriteBlock, m)); m.PacketData != nil {
		t.Errorf("behind is one of Hadoop's: %v", m)
	}
	c.Close()
}

func TestUnreachableTargetIsNamed(t *testing.T) {
	nodes := start(t, 3)
	nodes[2].kill()
	_, m := begin(t, block(7, 1001, 0), setup{stage: stageCreate}, nodes...)
	if want := dtp.TransferAddr(nodes[2].info.GetId(), false); m.GetStatus() != hadooppb.Status_ERROR || m.GetFirstBadLink() != want {
		t.Errorf("answer %v, want the bad link %s", m, want)
	}
	for i := range 2 {
		deadline := time.Now().Add(time.Minute)
		for {
			if _, ok := nodes[i].store.Replica(7); !ok {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("a replica of the block that was never written is left")
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func TestDamagedPacketIsRefusedAndNothingOfItStored(t *testing.T) {
	nodes := start(t, 2)
	c := mustBegin(t, block(7, 1001, 0), setup{stage: stageCreate}, nodes...)
	data := pattern(2000)
	c.packet(0, data, false)
	c.wantAck(0, "S S")
	sums := dtp.DefaultChecksum.Append(nil, data)
	sums[3] ^= 1
	check(t, dtp.NewPacketWriter(c).Write(dtp.Header{Offset: 1536, Seqno: 1}, sums, data))
	c.wantAck(1, "ERROR_CHECKSUM")
	if _, err := c.r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("connection goes on: %v", err)
	}
	for _, d := range nodes {
		if r, _ := d.store.Replica(7); r.Block.Length != 2000 {
			t.Errorf("replica is %v", r)
		}
	}
}

func TestAppendAndCloseRecoveryThroughThePipeline(t *testing.T) {
	nodes := start(t, 3)
	data := pattern(10_000)
	mustBegin(t, block(7, 1, 0), setup{stage: stageCreate}, nodes...).writeAll(0, data[:1300], "S S S")
	c := mustBegin(t, block(7, 1, 0), setup{stage: stageAppend, gen: 2, min: 1300}, nodes...)
	c.writeAll(1300, data[1300:5000], "S S S")
	// The same generation again, as native clients do it.
	c = mustBegin(t, block(7, 2, 0), setup{stage: stageAppend, gen: 2, min: 5000}, nodes...)
	c.writeAll(5000, data[5000:9000], "S S S")
	// Everything is acknowledged but the last packet.
	c = mustBegin(t, block(7, 2, 0), setup{stage: stageAppend, gen: 3, min: 9000}, nodes...)
	c.packet(9000, data[9000:9216], false)
	c.wantAck(0, "S S S")
	c.Close()
	mustBegin(t, block(7, 3, 0), setup{stage: stageCloseRecovery, gen: 4, min: 9216}, nodes...)
	for _, d := range nodes {
		d.wantContent(block(7, 4, 0), data[:9216])
	}
	for _, bad := range []setup{
		{stage: stageAppend, gen: 5, min: 9215},
		{stage: stageAppend, gen: 3, min: 9216},
		{stage: stageStreamingRecovery, gen: 5, max: 1 << 30},
		{stage: hadooppb.OpWriteBlockProto_DATA_STREAMING, gen: 5},
		{stage: stageCreate},
	} {
		if _, m := begin(t, block(7, 4, 0), bad, nodes[0]); m.GetStatus() != hadooppb.Status_ERROR || m.GetMessage() == "" {
			t.Errorf("%v: answer %v", bad.stage, m)
		}
	}
}

func TestReadersFollowAWriter(t *testing.T) {
	d := start(t, 1)[0]
	d.srv.growWait = time.Minute // however late the writer is on a busy machine
	b := block(7, 1, 0)
	data := pattern(3000)
	w := mustBegin(t, b, setup{stage: stageCreate}, d)
	w.packet(0, data[:700], false)
	w.wantAck(0, "S")
	got, err := dial(t, d).read(b, 100, 600)
	check(t, err)
	if !bytes.Equal(got, data[100:700]) {
		t.Fatal("wrong bytes")
	}
	var wg sync.WaitGroup
	wg.Go(func() { // asks for more than there is yet
		got, err := dial(t, d).read(b, 0, 1500)
		if err != nil || !bytes.Equal(got, data[:1500]) {
			t.Errorf("read ahead of the writer: %v", err)
		}
	})
	time.Sleep(20 * time.Millisecond)
	w.packet(512, data[512:1500], false) // the chunk again, as Java does
	w.wantAck(1, "S")
	wg.Wait()
	w.last(1500)
	w.wantAck(2, "S")
}

func TestRefusedReads(t *testing.T) {
	d := start(t, 1)[0]
	mustBegin(t, block(7, 5, 0), setup{stage: stageCreate}, d).writeAll(0, pattern(1000), "S")
	for _, c := range []struct {
		b      metadata.Block
		off, n int64
		text   string
	}{
		{block(8, 5, 0), 0, 1, "Replica not found"},
		{block(7, 6, 0), 0, 1, "gen stamp"},
		{block(7, 5, 0), 0, 1001, "1000 bytes"},
		{block(7, 5, 0), 2000, 0, "1000 bytes"},
		{block(7, 0, 0), 0, 1, "generation stamp"},
		{block(7, 5, 0), -1, 1, "offset"},
	} {
		if _, err := dial(t, d).read(c.b, c.off, c.n); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v at %d, %d bytes: %v, want %q", c.b, c.off, c.n, err, c.text)
		}
	}
	if got, err := dial(t, d).read(block(7, 4, 0), 0, 1000); err != nil || len(got) != 1000 {
		t.Errorf("an older generation may be asked for: %v", err)
	}
}

func TestCopiesBetweenDatanodes(t *testing.T) {
	nodes := start(t, 3)
	data := pattern(400_000)
	mustBegin(t, block(7, 5, 0), setup{stage: stageCreate}, nodes[0]).writeAll(0, data, "S")
	for _, to := range nodes[1:] {
		check(t, nodes[0].srv.Replicate(context.Background(), pool, block(7, 5, 0), to.info, hadooppb.StorageTypeProto_DISK, 0, nil))
	}
	nodes[1].wantContent(block(7, 5, 0), data)
	for range 30_000 {
		if r, ok := nodes[2].store.Replica(7); ok && r.State == datanode.Finalized {
			break
		}
		time.Sleep(time.Millisecond)
	}
	nodes[2].wantContent(block(7, 5, 0), data)
}

// What mends takes no more of a datanode than it is let; what balances has a pace of its own.
func TestMendingHasARate(t *testing.T) {
	source, target := startOne(t, func(c *Config) { c.MendRate = 2 << 20 }), startOne(t)
	data := pattern(1 << 20)
	for i, c := range []struct {
		bandwidth int64
		least     time.Duration // half a second at the rate, less what may go at once and the last packet
	}{{0, 250 * time.Millisecond}, {1 << 30, 0}} {
		b := block(int64(7+i), 5, 0)
		mustBegin(t, b, setup{stage: stageCreate}, source).writeAll(0, data, "S")
		began := time.Now()
		check(t, source.srv.Replicate(t.Context(), pool, b, target.info, hadooppb.StorageTypeProto_DISK, c.bandwidth, nil))
		if took := time.Since(began); took < c.least {
			t.Errorf("with a bandwidth of %d a copy of 1 MiB took %v", c.bandwidth, took)
		}
		target.wantContent(b, data)
	}
}

func TestDamageIsNotCopiedAndIsReported(t *testing.T) {
	nodes := start(t, 2)
	data := pattern(400_000)
	mustBegin(t, block(7, 5, 0), setup{stage: stageCreate}, nodes[0]).writeAll(0, data, "S")
	flip(t, nodes[0].dir+"/blocks/00/00/blk_7", 200_000)
	if err := nodes[0].srv.Replicate(context.Background(), pool, block(7, 5, 0), nodes[1].info, hadooppb.StorageTypeProto_DISK, 0, nil); !errors.Is(err, dtp.ErrChecksum) {
		t.Fatalf("copying ended in %v", err)
	}
	for range 30_000 {
		if _, ok := nodes[1].store.Replica(7); !ok {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if r, ok := nodes[1].store.Replica(7); ok {
		t.Errorf("the target has %v", r)
	}
	if _, err := dial(t, nodes[0]).read(block(7, 5, 0), 0, 400_000); !errors.Is(err, dtp.ErrChecksum) {
		t.Errorf("read ended in %v", err)
	}
	nodes[0].heard("what it found itself, and what a client said", func(n *node) bool { return len(n.suspects) == 1 && len(n.accused) == 1 })
}

// heard waits until the server has told enough of its suspicions.
func (d *node) heard(what string, ok func(n *node) bool) {
	d.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		d.mu.Lock()
		done, suspects, accused := ok(d), slices.Clone(d.suspects), slices.Clone(d.accused)
		d.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(end) {
			d.t.Fatalf("%s: never; suspects are %v, accused are %v", what, suspects, accused)
		}
	}
}

// A data file that became shorter is found by whoever reads it to the end, also when the kernel sends it.
func TestAShortenedReplicaIsNoticed(t *testing.T) {
	d := startOne(t)
	data := pattern(400_000)
	mustBegin(t, block(7, 5, 0), setup{stage: stageCreate}, d).writeAll(0, data, "S")
	check(t, os.Truncate(d.dir+"/blocks/00/00/blk_7", 300_000))
	if _, err := dial(t, d).read(block(7, 5, 0), 0, 400_000); err == nil {
		t.Fatal("a replica that lost its end was read")
	}
	d.heard("a shortened replica", func(n *node) bool { return slices.Contains(n.suspects, 7) })
	if err := d.store.Verify(context.Background(), 7, datanode.VerifyOptions{}); !errors.Is(err, metadata.ErrCorrupt) {
		t.Errorf("verified: %v", err)
	}
}

// Readers leave when they have what they want. That is no reason to read the block.
func TestAReaderWhoLeavesEarlySuspectsNothing(t *testing.T) {
	d := startOne(t)
	data := pattern(8 << 20)
	w := mustBegin(t, block(7, 5, 0), setup{stage: stageCreate}, d)
	w.writeAll(0, data, "S")
	w.Close()
	c := dial(t, d)
	check(t, dtp.WriteOp(c, dtp.OpReadBlock, &hadooppb.OpReadBlockProto{Header: header(block(7, 5, 0), "reader"), Offset: new(uint64(0)), Len: new(uint64(len(data)))}))
	if _, err := dtp.ReadResponse(c.r); err != nil {
		t.Fatal(err)
	}
	c.Close()
	for end := time.Now().Add(time.Minute); d.srv.Active() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.srv.Active() > 0 || len(d.suspects)+len(d.accused) > 0 {
		t.Errorf("%d connections; suspects are %v, accused are %v", d.srv.Active(), d.suspects, d.accused)
	}
}

func flip(t testing.TB, name string, off int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	var b [1]byte
	_, err = f.ReadAt(b[:], off)
	check(t, err)
	b[0] ^= 0x10
	_, err = f.WriteAt(b[:], off)
	check(t, err)
}

func (c *client) checksum(b metadata.Block, o *hadooppb.BlockChecksumOptionsProto) *hadooppb.OpBlockChecksumResponseProto {
	c.t.Helper()
	check(c.t, dtp.WriteOp(c, dtp.OpBlockChecksum, &hadooppb.OpBlockChecksumProto{Header: header(b, "").BaseHeader, BlockChecksumOptions: o}))
	m, err := dtp.ReadResponse(c.r)
	check(c.t, err)
	check(c.t, dtp.CheckResponse(dtp.OpBlockChecksum, m))
	return m.GetChecksumResponse()
}

func TestBlockChecksums(t *testing.T) {
	d := start(t, 1)[0]
	mustBegin(t, block(1, 1, 0), setup{stage: stageCreate}, d).writeAll(0, []byte("bar\n"), "S")
	m := dial(t, d).checksum(block(1, 1, 4), nil)
	// The file's checksum that the Go client's tests expect of this content.
	file := md5.Sum(append(m.GetBlockChecksum(), make([]byte, 16)...))
	if got := hex.EncodeToString(file[:]); got != "27c076e4987344253650d3335a5d08ce" {
		t.Errorf("file checksum of bar is %s", got)
	}
	if m.GetBytesPerCrc() != 512 || m.GetCrcPerBlock() != 1 {
		t.Errorf("answer %v", m)
	}
	data := pattern(10_000)
	mustBegin(t, block(2, 1, 0), setup{stage: stageCreate}, d).writeAll(0, data, "S")
	kind := hadooppb.BlockChecksumTypeProto_COMPOSITE_CRC.Enum()
	for _, n := range []int{0, 1, 512, 700, 9999, 10_000} {
		m := dial(t, d).checksum(block(2, 1, int64(n)), &hadooppb.BlockChecksumOptionsProto{BlockChecksumType: kind})
		want := binary.BigEndian.AppendUint32(nil, dtp.DefaultChecksum.Update(0, data[:n]))
		if !bytes.Equal(m.GetBlockChecksum(), want) || m.GetBlockChecksumOptions().GetBlockChecksumType() != *kind {
			t.Errorf("composite checksum of %d bytes is %x, want %x", n, m.GetBlockChecksum(), want)
		}
		m = dial(t, d).checksum(block(2, 1, int64(n)), nil)
		sum := md5.Sum(dtp.DefaultChecksum.Append(nil, data[:n]))
		if !bytes.Equal(m.GetBlockChecksum(), sum[:]) {
			t.Errorf("MD5 of %d bytes' checksums is %x, want %x", n, m.GetBlockChecksum(), sum)
		}
	}
	m = dial(t, d).checksum(block(2, 1, 10_000), &hadooppb.BlockChecksumOptionsProto{BlockChecksumType: kind, StripeLength: new(uint64(4096))})
	var want []byte
	for off := 0; off < len(data); off += 4096 {
		want = binary.BigEndian.AppendUint32(want, dtp.DefaultChecksum.Update(0, data[off:min(off+4096, len(data))]))
	}
	if !bytes.Equal(m.GetBlockChecksum(), want) {
		t.Errorf("checksums of stripes are %x, want %x", m.GetBlockChecksum(), want)
	}
}

func TestUnsupportedAndBrokenRequests(t *testing.T) {
	d := start(t, 1)[0]
	for op, m := range map[dtp.Op]dtp.Message{
		dtp.OpShortCircuitFDs: &hadooppb.OpRequestShortCircuitAccessProto{Header: header(block(1, 1, 0), "").BaseHeader, MaxVersion: new(uint32(1))},
		dtp.OpCustom:          &hadooppb.OpCustomProto{CustomId: new("x")},
	} {
		c := dial(t, d)
		check(t, dtp.WriteOp(c, op, m))
		answer, err := dtp.ReadResponse(c.r)
		check(t, err)
		if answer.GetStatus() != hadooppb.Status_ERROR_UNSUPPORTED {
			t.Errorf("%v is answered %v", op, answer)
		}
	}
	for _, junk := range []string{"", "\x00", "GET / HTTP/1.1\r\n\r\n", "\x00\x1c\x63\x00", "\x00\x1c\x50\xff\xff\xff\xff\x07", "\x00\x1c\x51\x02\xff\xff"} {
		c := dial(t, d)
		_, err := c.Write([]byte(junk))
		check(t, err)
		check(t, c.Conn.(*net.TCPConn).CloseWrite())
		if _, err := c.r.ReadByte(); err == nil {
			t.Errorf("%q got an answer", junk)
		}
	}
	other := block(1, 1, 0)
	c := dial(t, d)
	h := header(other, "c")
	h.BaseHeader.Block.PoolId = new("BP-other")
	foreign := grant(1, anyMode)
	foreign.Pool = "BP-other"
	h.BaseHeader.Token = tokenFor(foreign)
	check(t, dtp.WriteOp(c, dtp.OpReadBlock, &hadooppb.OpReadBlockProto{Header: h, Offset: new(uint64(0)), Len: new(uint64(0))}))
	if m, err := dtp.ReadResponse(c.r); err != nil || !strings.Contains(m.GetMessage(), "block pool") {
		t.Errorf("another pool is answered %v, %v", m, err)
	}
}

func TestRecoveryTakesTheReplicaFromAStuckClient(t *testing.T) {
	nodes := start(t, 2)
	c := mustBegin(t, block(7, 1, 0), setup{stage: stageCreate}, nodes...)
	c.packet(0, pattern(1000), false)
	c.wantAck(0, "S S")
	_, err := nodes[0].store.InitRecovery(block(7, 1, 0), 10)
	check(t, err)
	if _, err := c.r.ReadByte(); err == nil {
		t.Error("the client of a recovered block is not cut off")
	}
}

// tellingStore notes what its readers say that the kernel sends.
type tellingStore struct {
	datanode.BlockStore
	mu   sync.Mutex
	said []string
}

type tellingReader struct {
	datanode.Reader
	s *tellingStore
}

func (s *tellingStore) Open(b metadata.Block) (datanode.Reader, error) {
	rd, err := s.BlockStore.Open(b)
	return tellingReader{rd, s}, err
}

func (r tellingReader) Sending(off, n int64) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.s.said = append(r.s.said, fmt.Sprintf("%d+%d", off, n))
	r.Reader.Sending(off, n)
}

// The store knows at every time what the kernel sends, so that it notices a disk that hangs in it.
func TestTheStoreKnowsWhatTheKernelSends(t *testing.T) {
	store := &tellingStore{}
	d := startOne(t, func(c *Config) { store.BlockStore, c.Store = c.Store, store })
	data := pattern(3 * packetData / 2)
	mustBegin(t, block(7, 5, 0), setup{stage: stageCreate}, d).writeAll(0, data, "S")
	if got, err := dial(t, d).read(block(7, 5, 0), 0, int64(len(data))); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("read %d bytes, %v", len(got), err)
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	want := []string{fmt.Sprintf("0+%d", packetData), "0+0", fmt.Sprintf("%d+%d", packetData, packetData/2), fmt.Sprintf("%d+0", packetData)}
	if !slices.Equal(store.said, want) {
		t.Errorf("the store heard %v, want %v", store.said, want)
	}
}

// What is synced leaves memory before that is acknowledged, in the middle of a block and with its end (SYNC_BLOCK).
func TestWhatIsSyncedIsNotInMemory(t *testing.T) {
	d := startOne(t)
	memory := filepath.Join(t.TempDir(), "memory")
	check(t, d.store.Add(blockstore.VolumeConfig{Path: memory, Type: datanode.RAMDisk}))
	data := pattern(100_000)
	for i, size := range []int{1000, len(data)} { // in a pack first, and in files
		for j, sync := range []string{"never", "within", "end"} {
			b := block(int64(10*i+j+1), 1, 0)
			c := mustBegin(t, b, setup{stage: stageCreate, kind: hadooppb.StorageTypeProto_RAM_DISK}, d)
			c.packet(0, data[:size], sync == "within")
			c.wantAck(0, "S")
			check(t, dtp.NewPacketWriter(c).Write(dtp.Header{Offset: int64(size), Seqno: c.seqno, Last: true, Sync: sync == "end"}, nil, nil))
			c.wantAck(1, "S")
			r, _ := d.store.Replica(b.ID)
			for _, v := range d.store.Volumes() {
				if v.ID == r.Volume && (v.Path == memory) != (sync == "never") {
					t.Errorf("%d bytes, synced %s: on %v", size, sync, v.Type)
				}
			}
			got, err := dial(t, d).read(b, 0, int64(size))
			check(t, err)
			if !bytes.Equal(got, data[:size]) {
				t.Errorf("%d bytes, synced %s: read wrong", size, sync)
			}
		}
	}
}

// Where the store does not sync what it closes, the end of a block is synced if its last packet says so (SYNC_BLOCK).
func TestTheEndOfABlockIsSyncedOnDemand(t *testing.T) {
	d := startOne(t, func(c *Config) {
		d := c.Store.(*blockstore.Store)
		dir := d.Volumes()[0].Path
		check(t, d.Shutdown())
		var err error
		c.Store, err = blockstore.Open(blockstore.Config{Volumes: []blockstore.VolumeConfig{{Path: dir}}, Reserve: -1, Logger: slog.New(slog.DiscardHandler), Unsynced: true})
		check(t, err)
	})
	for i, sync := range []bool{false, true} {
		b := block(int64(i+1), 1, 0)
		c := mustBegin(t, b, setup{stage: stageCreate}, d)
		c.packet(0, pattern(50_000), false)
		c.wantAck(0, "S")
		check(t, dtp.NewPacketWriter(c).Write(dtp.Header{Offset: 50_000, Seqno: c.seqno, Last: true, Sync: sync}, nil, nil))
		c.wantAck(1, "S")
		names, err := filepath.Glob(filepath.Join(d.dir, fmt.Sprintf("blocks/*/*/blk_%d_1*", b.ID)))
		check(t, err)
		if want := map[bool]string{false: "_50000.unsynced", true: ".meta"}[sync]; len(names) != 1 || !strings.HasSuffix(names[0], want) {
			t.Errorf("synced at its end: %v; it lies in %q", sync, names)
		}
	}
}
