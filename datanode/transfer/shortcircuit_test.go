package transfer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// nearNode is a node that serves a Unix-domain socket, too.
type nearNode struct {
	*node
	path string
}

func startNear(t testing.TB, change ...func(*Config)) *nearNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "hops-s") //nolint:usetesting // paths of sockets are short
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &nearNode{path: filepath.Join(dir, "dn")}
	l, err := localsocket.Listen(n.path)
	check(t, err)
	n.node = startOneAt(t, []net.Listener{l}, change...)
	return n
}

// near connects by the socket.
func (n *nearNode) near() *net.UnixConn {
	n.t.Helper()
	c, err := net.Dial("unix", n.path)
	check(n.t, err)
	check(n.t, c.SetDeadline(time.Now().Add(hang)))
	n.t.Cleanup(func() { c.Close() })
	return c.(*net.UnixConn)
}

// stored writes a finished block over TCP.
func (n *nearNode) stored(b metadata.Block, data []byte) {
	n.t.Helper()
	mustBegin(n.t, b, setup{stage: stageCreate, gen: int64(b.Generation)}, n.node).writeAll(0, data, "S")
}

func fdsRequest(b metadata.Block) *hadooppb.OpRequestShortCircuitAccessProto {
	return &hadooppb.OpRequestShortCircuitAccessProto{
		Header: &hadooppb.BaseHeaderProto{Block: protoOf(pool, b), Token: tokenFor(grant(b.ID, security.ReadBlock))}, MaxVersion: new(uint32(1)),
	}
}

// ask sends a request for descriptors and returns the answer, with what came.
func ask(t testing.TB, c *net.UnixConn, op *hadooppb.OpRequestShortCircuitAccessProto) (*hadooppb.BlockOpResponseProto, []*os.File) {
	t.Helper()
	check(t, dtp.WriteOp(c, dtp.OpShortCircuitFDs, op))
	from := &localsocket.Receiver{Conn: c}
	var answer hadooppb.BlockOpResponseProto
	check(t, dtp.ReadUnbuffered(from, &answer))
	if answer.GetStatus() != hadooppb.Status_SUCCESS {
		return &answer, nil
	}
	var b [1]byte
	_, err := from.Read(b[:])
	check(t, err)
	if (b[0] == 1) != op.GetSupportsReceiptVerification() {
		t.Fatalf("byte %d", b[0])
	}
	if b[0] == 1 {
		_, err := c.Write([]byte{0})
		check(t, err)
	}
	files := from.Files()
	if len(files) != 2 {
		t.Fatalf("%d descriptors", len(files))
	}
	t.Cleanup(func() {
		for _, f := range files {
			f.Close()
		}
	})
	return &answer, files
}

// What a client gets is what Hadoop's reads: the block's bytes, and a header of version 1 with the CRCs behind it.
func TestDescriptors(t *testing.T) {
	d := startNear(t)
	c := d.near()
	for i, size := range []int{0, 1, 511, 512, 513, 4096, 40_000, 300_001} {
		b, data := block(int64(100+i), 1001, int64(size)), pattern(size + 8)[:size]
		d.stored(b, data)
		op := fdsRequest(b)
		op.SupportsReceiptVerification = new(i%2 == 0)
		answer, files := ask(t, c, op)
		if answer.GetShortCircuitAccessVersion() != 1 {
			t.Fatalf("answer %v", answer)
		}
		got, err := io.ReadAll(files[0])
		check(t, err)
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes: other bytes", size)
		}
		meta, err := io.ReadAll(files[1])
		check(t, err)
		want := dtp.DefaultChecksum.Append([]byte{0, 1, 2, 0, 0, 2, 0}, data)
		if !bytes.Equal(meta, want) {
			t.Errorf("%d bytes: checksums %x, want %x", size, meta, want)
		}
		for k, f := range files {
			if _, err := f.WriteAt([]byte{1}, 0); err == nil {
				t.Errorf("descriptor %d can be written to", k)
			}
			if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE != unix.O_RDONLY {
				t.Errorf("descriptor %d has flags %x, %v", k, flags, err)
			}
		}
	}
	d.await("all are counted", func() bool { return d.srv.NearCounts().Passed == 8 }) // behind the answer
	if n := d.srv.NearCounts(); n.Refused != 0 || n.Connections != 1 {
		t.Errorf("%+v", n)
	}
}

// The bytes of an answer, as Hadoop's client takes them apart.
func TestDescriptorsOnTheWire(t *testing.T) {
	d := startNear(t)
	b := block(77, 1001, 3)
	d.stored(b, []byte("abc"))
	c := d.near()
	check(t, dtp.WriteOp(c, dtp.OpShortCircuitFDs, fdsRequest(b)))
	from := &localsocket.Receiver{Conn: c}
	defer from.Close()
	got := make([]byte, 6)
	_, err := io.ReadFull(from, got)
	check(t, err)
	// length 4; status SUCCESS; shortCircuitAccessVersion 1; the byte that descriptors come with
	if want := "040800" + "3001" + "00"; hex.EncodeToString(got) != want {
		t.Errorf("%x, want %s", got, want)
	}
	files := from.Files()
	meta, err := io.ReadAll(files[1])
	check(t, err)
	if want := "0001" + "02" + "00000200" + "364b3fb7"; hex.EncodeToString(meta) != want { // CRC-32C of "abc"
		t.Errorf("%x, want %s", meta, want)
	}
	for _, f := range files {
		f.Close()
	}
	check(t, dtp.WriteOp(c, dtp.OpShortCircuitMemory, &hadooppb.ShortCircuitShmRequestProto{ClientName: new("c")}))
	var answer hadooppb.ShortCircuitShmResponseProto
	check(t, dtp.ReadUnbuffered(from, &answer))
	if answer.GetStatus() != hadooppb.Status_SUCCESS || answer.Id == nil || answer.Error != nil {
		t.Errorf("%v", &answer)
	}
	_, err = from.Read(got[:1])
	check(t, err)
	files = from.Files()
	if len(files) != 1 || got[0] != 0 {
		t.Fatalf("%d files, byte %d", len(files), got[0])
	}
	defer files[0].Close()
	if info, err := files[0].Stat(); err != nil || info.Size() != 8192 {
		t.Errorf("%v, %v", info.Size(), err)
	}
}

// Descriptors are withheld from who has no right to the block, over TCP, and of what is being written; nobody learns more than
// that, and the connection goes on where Hadoop's client does.
func TestDescriptorsWithheld(t *testing.T) {
	d := startNear(t)
	b, open := block(200, 1001, 600), block(201, 1001, 600)
	d.stored(b, pattern(600))
	w := mustBegin(t, open, setup{stage: stageCreate, gen: 1001}, d.node)
	w.packet(0, pattern(600), false)
	w.wantAck(0, "S")

	other := fdsRequest(b)
	other.Header.Token = tokenFor(grant(open.ID, security.ReadBlock))
	writes := fdsRequest(b)
	writes.Header.Token = tokenFor(grant(b.ID, security.WriteBlock))
	none := fdsRequest(b)
	none.Header.Token = nil
	for name, op := range map[string]*hadooppb.OpRequestShortCircuitAccessProto{"another block": other, "write": writes, "none": none} {
		answer, files := ask(t, d.near(), op)
		if answer.GetStatus() != hadooppb.Status_ERROR_ACCESS_TOKEN || files != nil || strings.Contains(answer.GetMessage(), "1001") {
			t.Errorf("token for %s: %v", name, answer)
		}
	}
	c := d.near()
	old := fdsRequest(b)
	old.MaxVersion = new(uint32(0))
	elsewhere := fdsRequest(b)
	elsewhere.Header.Block.PoolId = new("BP-2")
	elsewhere.Header.Token = tokenFor(security.BlockGrant{User: "ann", Pool: "BP-2", Block: b.ID, Modes: security.ReadBlock})
	slot := fdsRequest(b)
	slot.SlotId = &hadooppb.ShortCircuitShmSlotProto{ShmId: &hadooppb.ShortCircuitShmIdProto{Hi: new(int64(1)), Lo: new(int64(2))}, SlotIdx: new(int32(3))}
	for name, op := range map[string]*hadooppb.OpRequestShortCircuitAccessProto{
		"being written": fdsRequest(open), "absent": fdsRequest(block(999, 1001, 5)), "newer": fdsRequest(block(200, 1002, 600)), "version": old, "pool": elsewhere, "slot": slot,
	} {
		answer, _ := ask(t, c, op) // on one connection
		if answer.GetStatus() != hadooppb.Status_ERROR_UNSUPPORTED || answer.ShortCircuitAccessVersion == nil || answer.GetMessage() == "" {
			t.Errorf("%s: %v", name, answer)
		}
	}
	if _, files := ask(t, c, fdsRequest(b)); len(files) != 2 {
		t.Error("the connection is of no use any more")
	}
	tcp := dial(t, d.node)
	check(t, dtp.WriteOp(tcp, dtp.OpShortCircuitFDs, fdsRequest(b)))
	m, err := dtp.ReadResponse(tcp.r)
	if err != nil || m.GetStatus() != hadooppb.Status_ERROR_UNSUPPORTED {
		t.Errorf("over TCP: %v, %v", m, err)
	}
	tcp = dial(t, d.node)
	var shm hadooppb.ShortCircuitShmResponseProto
	check(t, dtp.WriteOp(tcp, dtp.OpShortCircuitMemory, &hadooppb.ShortCircuitShmRequestProto{ClientName: new("c")}))
	if err := dtp.ReadMessage(tcp.r, &shm); err != nil || shm.GetStatus() != hadooppb.Status_ERROR_INVALID {
		t.Errorf("a segment over TCP: %v, %v", &shm, err)
	}
	var release hadooppb.ReleaseShortCircuitAccessResponseProto
	check(t, dtp.WriteOp(tcp, dtp.OpReleaseFDs, &hadooppb.ReleaseShortCircuitAccessRequestProto{SlotId: slot.SlotId}))
	if err := dtp.ReadMessage(tcp.r, &release); err != nil || release.GetStatus() != hadooppb.Status_ERROR_INVALID {
		t.Errorf("a slot over TCP: %v, %v", &release, err)
	}
}

// Of a block that lies in one file with others a client gets a copy, and never the file.
func TestDescriptorOfPackedBlock(t *testing.T) {
	d := startNear(t)
	b, data := block(300, 1001, 5000), pattern(5000)
	whole := dial(t, d.node)
	whole.wantStored(whole.sendWhole(b, data, len(data), false), "S")
	rd, err := d.store.Open(b)
	check(t, err)
	packed := rd.File() == nil
	check(t, rd.Close())
	if !packed {
		t.Fatal("the block is not packed")
	}
	_, files := ask(t, d.near(), fdsRequest(b))
	got, err := io.ReadAll(files[0])
	check(t, err)
	if !bytes.Equal(got, data) {
		t.Error("other bytes")
	}
	seals, err := unix.FcntlInt(files[0].Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_WRITE == 0 {
		t.Errorf("seals %x, %v", seals, err)
	}
}

// What was handed over goes on to show what it showed when the replica is deleted; the slot says that it is over.
func TestSlots(t *testing.T) {
	d := startNear(t)
	a, b := block(400, 1001, 700), block(401, 1001, 700)
	d.stored(a, pattern(700))
	d.stored(b, pattern(700))
	shm := d.near()
	id, mem := segmentFor(t, shm)
	flags := func(i int) *uint64 { return (*uint64)(unsafe.Pointer(&mem[64*i])) }
	slot := func(i int) *hadooppb.ShortCircuitShmSlotProto {
		return &hadooppb.ShortCircuitShmSlotProto{ShmId: id, SlotIdx: new(int32(i))}
	}
	c := d.near()
	with := func(b metadata.Block, i int) (*hadooppb.BlockOpResponseProto, []*os.File) {
		op := fdsRequest(b)
		op.SlotId = slot(i)
		return ask(t, c, op)
	}
	if answer, _ := with(a, 0); answer.GetStatus() != hadooppb.Status_ERROR_UNSUPPORTED || !strings.Contains(answer.GetMessage(), "not marked as valid") {
		t.Errorf("a slot that the client has not marked: %v", answer)
	}
	for i := range 3 {
		atomic.StoreUint64(flags(i), 1<<63|5) // five anchors
	}
	_, ofA := with(a, 0)
	_, ofB := with(b, 1)
	if ofA == nil || ofB == nil {
		t.Fatal("no descriptors")
	}
	if answer, _ := with(b, 1); answer.GetStatus() != hadooppb.Status_ERROR_UNSUPPORTED || !strings.Contains(answer.GetMessage(), "in use") {
		t.Errorf("a slot that is in use: %v", answer)
	}
	for _, wrong := range []int{-1, 128, 1 << 30} {
		if answer, _ := with(b, wrong); answer.GetStatus() != hadooppb.Status_ERROR_UNSUPPORTED {
			t.Errorf("slot %d: %v", wrong, answer)
		}
	}
	check(t, d.store.Delete(a))
	d.srv.Changed(a.ID)
	if got := atomic.LoadUint64(flags(0)); got != 5 {
		t.Errorf("flags of the deleted one %x", got)
	}
	if got := atomic.LoadUint64(flags(1)); got != 1<<63|5 {
		t.Errorf("flags of the other one %x", got)
	}
	if got, err := io.ReadAll(ofA[0]); err != nil || !bytes.Equal(got, pattern(700)) {
		t.Errorf("what was deleted shows %d bytes, %v", len(got), err)
	}
	release := func(i int) hadooppb.Status {
		var answer hadooppb.ReleaseShortCircuitAccessResponseProto
		check(t, dtp.WriteOp(c, dtp.OpReleaseFDs, &hadooppb.ReleaseShortCircuitAccessRequestProto{SlotId: slot(i)}))
		check(t, dtp.ReadUnbuffered(c, &answer))
		return answer.GetStatus()
	}
	for i, want := range []hadooppb.Status{hadooppb.Status_SUCCESS, hadooppb.Status_SUCCESS, hadooppb.Status_ERROR_INVALID} {
		if got := release(i); got != want {
			t.Errorf("release of slot %d: %v", i, got)
		}
	}
	if release(0) != hadooppb.Status_ERROR_INVALID {
		t.Error("a slot is released twice")
	}
	atomic.StoreUint64(flags(0), 1<<63)
	if _, files := with(b, 0); files == nil {
		t.Error("a released slot is not free")
	}
	shm.Close()
	d.await("the segment and its slots are gone", func() bool {
		d.srv.slots.mu.Lock()
		defer d.srv.slots.mu.Unlock()
		return len(d.srv.slots.blocks)+len(d.srv.slots.segments) == 0
	})
	if release(0) != hadooppb.Status_ERROR_INVALID {
		t.Error("a slot of a segment that is gone is released")
	}
	d.srv.Changed(b.ID) // of nobody
}

func segmentFor(t testing.TB, c *net.UnixConn) (*hadooppb.ShortCircuitShmIdProto, []byte) {
	t.Helper()
	check(t, dtp.WriteOp(c, dtp.OpShortCircuitMemory, &hadooppb.ShortCircuitShmRequestProto{ClientName: new("c")}))
	from := &localsocket.Receiver{Conn: c}
	var answer hadooppb.ShortCircuitShmResponseProto
	check(t, dtp.ReadUnbuffered(from, &answer))
	if answer.GetStatus() != hadooppb.Status_SUCCESS {
		t.Fatalf("%v", &answer)
	}
	_, err := from.Read(make([]byte, 1))
	check(t, err)
	f := from.Files()[0]
	defer f.Close()
	if err := f.Truncate(0); err == nil {
		t.Error("the client can take the memory away")
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Munmap(mem)) })
	return answer.Id, mem
}

// A user's descriptors are paid for until they are closed, whoever closes them, and no longer.
func TestSharedMemoryIsPaidFor(t *testing.T) {
	budget := security.NewBudget(security.BudgetConfig{Purpose: "tests", Total: 4*sheetLeast + 64<<10})
	user := uint32(4711) // who is not the server's
	d := startNear(t, func(c *Config) { c.Shared, c.Share = budget, func(net.Conn) uint32 { return user } })
	var held [][]*os.File
	c := d.near()
	most := 0
	for i := range 4 {
		b := block(int64(500+i), 1001, 900)
		d.stored(b, pattern(900))
		answer, files := ask(t, c, fdsRequest(b))
		if files == nil {
			if !strings.Contains(answer.GetMessage(), "too much memory") || answer.ShortCircuitAccessVersion == nil {
				t.Errorf("%v", answer)
			}
			break
		}
		if _, again := ask(t, c, fdsRequest(b)); again == nil { // the same memory
			t.Error("a second descriptor of a replica costs as much as the first")
		} else {
			again[0].Close()
			again[1].Close()
		}
		held = append(held, files)
		most++
	}
	if most != 2 { // a half of what is left
		t.Fatalf("the user gets %d", most)
	}
	if _, files := ask(t, c, fdsRequest(block(502, 1001, 900))); files != nil {
		t.Fatal("beyond the share")
	}
	held[0][0].Close()
	if _, files := ask(t, c, fdsRequest(block(502, 1001, 900))); files != nil {
		t.Fatal("the data's descriptor is not what is paid for")
	}
	held[0][1].Close()
	if _, files := ask(t, c, fdsRequest(block(502, 1001, 900))); files == nil {
		t.Fatal("what was closed is not free")
	}
	if n := d.srv.NearCounts(); n.Sheets != 2 || n.Shared != 2*sheetLeast {
		t.Errorf("%+v", n)
	}
	d.kill()
	if budget.Used() != 0 {
		t.Errorf("%d bytes are in use after the end", budget.Used())
	}
}

// Blocks are written, read and passed on over the socket, also where a handshake is asked for of everybody else.
func TestTransfersByTheSocket(t *testing.T) {
	for _, encrypt := range []bool{false, true} {
		d := startNear(t, func(c *Config) {
			c.Encrypt = encrypt
			if encrypt {
				c.Protection = []sasl.Quality{sasl.Privacy}
			}
		})
		conn := d.near()
		c := &client{t: t, Conn: conn, r: dtp.NewReader(conn)}
		b, data := block(600, 1001, 200_000), pattern(200_000)
		check(t, dtp.WriteOp(c, dtp.OpWriteBlock, &hadooppb.OpWriteBlockProto{
			Header: header(b, "c"), Stage: stageCreate.Enum(), PipelineSize: new(uint32(1)), MinBytesRcvd: new(uint64(0)), MaxBytesRcvd: new(uint64(0)),
			LatestGenerationStamp: new(uint64(1001)), RequestedChecksum: dtp.DefaultChecksum.Proto(),
		}))
		m, err := dtp.ReadResponse(c.r)
		check(t, err)
		check(t, dtp.CheckResponse(dtp.OpWriteBlock, m))
		c.writeAll(0, data, "S")
		got, err := c.read(b, 1000, 150_000)
		check(t, err)
		if !bytes.Equal(got, data[1000:151_000]) {
			t.Error("other bytes")
		}
		if encrypt {
			tcp := dial(t, d.node)
			check(t, dtp.WriteOp(tcp, dtp.OpReadBlock, &hadooppb.OpReadBlockProto{Header: header(b, "c"), Offset: new(uint64(0)), Len: new(uint64(5))}))
			m, err := dtp.ReadResponse(tcp.r)
			if err != nil || m.GetStatus() != hadooppb.Status_ERROR {
				t.Errorf("without a handshake over TCP: %v, %v", m, err)
			}
		}
	}
}

// A pipeline goes on by the socket of the next datanode.
func TestPipelineByTheSocket(t *testing.T) {
	next := startNear(t)
	first := startNear(t, func(c *Config) {
		c.Near = func(ctx context.Context, addr string) net.Conn {
			if addr != dtp.TransferAddr(next.info.GetId(), false) {
				return nil
			}
			conn, err := new(net.Dialer).DialContext(ctx, "unix", next.path)
			check(t, err)
			return conn
		}
	})
	b, data := block(700, 1001, 100_000), pattern(100_000)
	mustBegin(t, b, setup{stage: stageCreate, gen: 1001}, first.node, next.node).writeAll(0, data, "S S")
	first.wantContent(b, data)
	next.wantContent(b, data)
	if n := next.srv.NearCounts(); n.Connections != 1 {
		t.Errorf("%+v", n)
	}
}

// Whatever a client sends on the socket, it gets descriptors of its own block or none, and the server leaks none.
func TestHostileRequestsLeakNothing(t *testing.T) {
	d := startNear(t)
	b := block(800, 1001, 900)
	d.stored(b, pattern(900))
	ask(t, d.near(), fdsRequest(b))
	count := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		check(t, err)
		return len(all)
	}
	d.await("the first connections have ended", func() bool { return d.srv.Active() <= 2 })
	before := count()
	good, err := dtp.AppendOp(nil, dtp.OpShortCircuitFDs, fdsRequest(b))
	check(t, err)
	rapid.Check(t, func(rt *rapid.T) {
		bad := bytes.Clone(good)
		for range rapid.IntRange(0, 4).Draw(rt, "flips") {
			bad[rapid.IntRange(0, len(bad)-1).Draw(rt, "at")] ^= byte(rapid.IntRange(1, 255).Draw(rt, "bits"))
		}
		bad = bad[:rapid.IntRange(0, len(bad)).Draw(rt, "cut")]
		c, err := net.Dial("unix", d.path)
		check(t, err)
		defer c.Close()
		_, err = c.Write(bad)
		check(t, err)
		if rapid.Bool().Draw(rt, "wait") {
			check(t, c.(*net.UnixConn).CloseWrite())
			from := &localsocket.Receiver{Conn: c.(*net.UnixConn)}
			_, _ = io.Copy(io.Discard, bufio.NewReader(from))
			for _, f := range from.Files() {
				if got, err := io.ReadAll(f); err != nil || len(got) != 900 && len(got) != 7+8 {
					rt.Errorf("a descriptor of %d bytes, %v", len(got), err)
				}
				f.Close()
			}
		}
	})
	// The last connection may not even have been accepted yet.
	d.await(fmt.Sprintf("all connections have ended, and there are %d descriptors as before", before), func() bool { return d.srv.Active() <= 2 && count() <= before })
}

// Who asks again and again and reads nothing has two descriptors under way, and no connection any more.
func TestDescriptorsThatNobodyReads(t *testing.T) {
	d := startNear(t)
	b := block(850, 1001, 900)
	d.stored(b, pattern(900))
	one, err := dtp.AppendOp(nil, dtp.OpShortCircuitFDs, fdsRequest(b))
	check(t, err)
	c := d.near()
	_, err = c.Write(bytes.Repeat(one, 20))
	check(t, err)
	d.await("the connection has ended", func() bool { return d.srv.NearCounts().Connections == 1 && d.srv.Active() <= 1 })
	d.await("the first one is counted", func() bool { return d.srv.NearCounts().Passed == 1 })
}

// A process that asks, takes, and is killed leaves nothing.
func TestClientsThatAreKilled(t *testing.T) {
	if path := os.Getenv("HOPS_TEST_NEAR"); path != "" { // the client
		d := &nearNode{node: &node{t: t}, path: path}
		request, err := hex.DecodeString(os.Getenv("HOPS_TEST_REQUEST"))
		check(t, err)
		op := new(hadooppb.OpRequestShortCircuitAccessProto)
		check(t, op.UnmarshalVT(request))
		segmentFor(t, d.near())
		if _, files := ask(t, d.near(), op); files == nil {
			t.Fatal("no descriptors")
		}
		fmt.Println("has them")
		select {}
	}
	budget := security.NewBudget(security.BudgetConfig{Purpose: "tests", Total: 64 << 20})
	d := startNear(t, func(c *Config) { c.Shared = budget })
	b := block(900, 1001, 900)
	d.stored(b, pattern(900))
	exe, err := os.Executable()
	check(t, err)
	cmd := exec.Command(exe, "-test.run", "^TestClientsThatAreKilled$")
	request, err := fdsRequest(b).MarshalVT() // the keys are of this process
	check(t, err)
	cmd.Env = append(os.Environ(), "HOPS_TEST_NEAR="+d.path, "HOPS_TEST_REQUEST="+hex.EncodeToString(request))
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.Contains(line, "has them") {
		t.Fatalf("%q, %v", line, err)
	}
	d.srv.sheets.mu.Lock()
	d.srv.sheets.sweepLocked(time.Now())
	d.srv.sheets.mu.Unlock()
	if n := d.srv.NearCounts(); n.Sheets != 1 {
		t.Errorf("while it lives: %+v", n)
	}
	check(t, cmd.Process.Kill())
	_ = cmd.Wait()
	d.await("its segment is gone", func() bool {
		d.srv.slots.mu.Lock()
		defer d.srv.slots.mu.Unlock()
		return len(d.srv.slots.segments) == 0
	})
	d.await("all it had is given back", func() bool { // the segment behind its end, and the sheet when the request for it has ended
		d.srv.sheets.mu.Lock()
		d.srv.sheets.sweepLocked(time.Now())
		d.srv.sheets.mu.Unlock()
		return d.srv.NearCounts().Sheets == 0 && budget.Used() == 0
	})
}

// Slots against a model: a flag is valid until its block changes, and no slot hears of a block that it was not registered for.
func TestSlotsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSlots()
		const user = 7
		type state struct {
			block metadata.BlockID
			valid bool
		}
		segments := map[[2]int64]map[int32]*state{}
		var ids [][2]int64
		pick := func() [2]int64 { return ids[rapid.IntRange(0, len(ids)-1).Draw(rt, "segment")] }
		blocks := rapid.Int64Range(1, 4)
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			op := rapid.IntRange(0, 9).Draw(rt, "op")
			if len(ids) == 0 {
				op = 0
			}
			switch {
			case op == 0:
				id, f, err := s.create(user)
				check(t, err)
				f.Close()
				ids = append(ids, id)
				segments[id] = map[int32]*state{}
			case op == 1 && len(ids) > 1:
				id := pick()
				s.drop(id)
				delete(segments, id)
				for i := range ids {
					if ids[i] == id {
						ids = append(ids[:i], ids[i+1:]...)
						break
					}
				}
			case op < 6:
				id, i, b := pick(), rapid.Int32Range(0, 5).Draw(rt, "slot"), metadata.BlockID(blocks.Draw(rt, "block"))
				if segments[id][i] == nil {
					atomic.StoreUint64(s.segments[id].flags(i), slotValid)
				}
				err := s.register(slotID{id[0], id[1], i}, user, b)
				if (err == nil) != (segments[id][i] == nil) {
					rt.Fatalf("register: %v", err)
				}
				if err == nil {
					segments[id][i] = &state{b, true}
				}
				if s.register(slotID{id[0], id[1], i}, user+1, b) == nil {
					rt.Fatal("another user's segment is taken")
				}
			case op < 8:
				id, i := pick(), rapid.Int32Range(0, 5).Draw(rt, "slot")
				err := s.release(slotID{id[0], id[1], i}, user)
				if (err == nil) != (segments[id][i] != nil) {
					rt.Fatalf("release: %v", err)
				}
				delete(segments[id], i)
			default:
				b := metadata.BlockID(blocks.Draw(rt, "block"))
				s.changed(b)
				for _, of := range segments {
					for _, st := range of {
						st.valid = st.valid && st.block != b
					}
				}
			}
			for id, of := range segments {
				for i, st := range of {
					if valid := atomic.LoadUint64(s.segments[id].flags(i))&slotValid != 0; valid != st.valid {
						rt.Fatalf("slot %d is valid: %v, want %v", i, valid, st.valid)
					}
				}
			}
		}
		for _, id := range ids {
			s.drop(id)
		}
		if len(s.blocks)+len(s.segments) != 0 {
			rt.Fatal("something is left")
		}
	})
}
