package transfer

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
)

// packetOf is a packet as it goes over the wire.
func packetOf(h dtp.Header, data []byte) []byte {
	sums := dtp.DefaultChecksum.Append(nil, data)
	h.DataLen = len(data)
	return slices.Concat(dtp.AppendHeader(nil, h, len(sums)), sums, data)
}

// Packets of all sizes, in pieces that have nothing to do with them, with pauses in which a flushing client waits.
func TestPacketsOfAnySizeInAnyPieces(t *testing.T) {
	nodes := start(t, 3)
	r := rand.New(rand.NewPCG(3, 4))
	data := pattern(12 << 20)
	for id := range int64(4) {
		b := block(id+1, 1001, 0)
		c := mustBegin(t, b, setup{stage: stageCreate}, nodes...)
		var wire []byte
		var seqno, acked int64
		wait := func() { // for everything sent so far
			for len(wire) > 0 {
				n := min(1+r.IntN(2<<20), len(wire))
				_, err := c.Write(wire[:n])
				check(t, err)
				wire = wire[n:]
			}
			for ; acked < seqno; acked++ {
				c.wantAck(acked, "S S S")
			}
		}
		off := 0
		for off < len(data) {
			n := min([]int{1, 700, 4096, 65_536, 126 * 512, 300_000, 3 << 20}[r.IntN(7)], len(data)-off)
			if room := 512 - off%512; room < 512 {
				n = min(n, room)
			}
			wire = append(wire, packetOf(dtp.Header{Offset: int64(off), Seqno: seqno, Sync: r.IntN(50) == 0}, data[off:off+n])...)
			off += n
			if seqno++; seqno-acked > 60 || r.IntN(20) == 0 {
				wait()
			}
		}
		wire = append(wire, packetOf(dtp.Header{Offset: int64(off), Seqno: seqno, Last: true}, nil)...)
		seqno++
		wait()
		for _, d := range nodes {
			d.wantContent(b, data)
		}
	}
	// They are given back behind the last acknowledgement.
	nodes[0].await("no large buffer is in use after all writes", func() bool { return largeInUse.Load() == 0 })
}

// Packets from this process, some of which lie in the sender's memory as a whole: nobody looks at that after the acknowledgement.
func TestPacketsFromThisProcess(t *testing.T) {
	nodes := start(t, 2)
	r := rand.New(rand.NewPCG(5, 6))
	data := pattern(8 << 20)
	for id := range int64(6) {
		pipeline := nodes[:1+id%2]
		b, want := block(id+1, 1001, 0), strings.TrimSpace(strings.Repeat("S ", len(pipeline)))
		c := mustBegin(t, b, setup{stage: stageCreate, within: true}, pipeline...)
		lane := c.Conn.(*lane)
		var lent [][]byte
		send := func(h dtp.Header, data []byte) {
			p := packetOf(h, data)
			switch r.IntN(10) {
			case 0:
				_, err := c.Write(p)
				check(t, err)
			case 1:
				n := r.IntN(len(p))
				check(t, lane.Lend([][]byte{p[:n], p[n:]}))
			default:
				check(t, lane.Lend([][]byte{p}))
			}
			lent = append(lent, p)
		}
		var acked int64
		answered := func() {
			for ; len(lent) > 0; acked++ {
				c.wantAck(acked, want)
				clear(lent[0])
				lent = lent[1:]
			}
		}
		off, seqno := 0, int64(0)
		for ; off < len(data); seqno++ {
			n := min([]int{1, 700, 4096, 65_536, 240 << 10}[r.IntN(5)], len(data)-off)
			if room := 512 - off%512; room < 512 {
				n = min(n, room)
			}
			send(dtp.Header{Offset: int64(off), Seqno: seqno, Sync: r.IntN(50) == 0}, data[off:off+n])
			if off += n; len(lent) > 60 || r.IntN(20) == 0 {
				answered()
			}
		}
		send(dtp.Header{Offset: int64(off), Seqno: seqno, Last: true}, nil)
		answered()
		for _, d := range pipeline {
			d.wantContent(b, data)
		}
	}
}

// Of packets that come together, those before a bad one count.
func TestABadPacketAmongMany(t *testing.T) {
	data := pattern(600_000)
	good := func(i int64) []byte {
		return packetOf(dtp.Header{Offset: i * 51_200, Seqno: i}, data[i*51_200:(i+1)*51_200])
	}
	damaged := good(3)
	damaged[len(damaged)-1] ^= 1
	for name, bad := range map[string][]byte{
		"ERROR_CHECKSUM": damaged,
		"ERROR":          packetOf(dtp.Header{Offset: 3 * 51_200, Seqno: 5}, data[3*51_200:4*51_200]),
	} {
		d := startOne(t)
		b := block(1, 1001, 0)
		c := mustBegin(t, b, setup{stage: stageCreate}, d)
		_, err := c.Write(slices.Concat(good(0), good(1), good(2), bad, good(4)))
		check(t, err)
		for i := range int64(3) {
			c.wantAck(i, "S")
		}
		seqno := int64(3)
		if name == "ERROR" {
			seqno = 5
		}
		c.wantAck(seqno, name)
		if err := dtp.ReadAck(c.r, new(dtp.Ack)); err == nil {
			t.Error("something is acknowledged after the error")
		}
		if r, ok := d.store.Replica(b.ID); !ok || r.Visible != 3*51_200 || r.Block.Length != 3*51_200 {
			t.Errorf("%s: replica %+v", name, r)
		}
	}
}

// When the client goes in the middle of a packet, what came before is stored: a recovery may count on it.
func TestWhatCameBeforeTheEndOfTheConnectionIsStored(t *testing.T) {
	d := startOne(t)
	b := block(1, 1001, 0)
	data := pattern(100_000)
	c := mustBegin(t, b, setup{stage: stageCreate}, d)
	_, err := c.Write(slices.Concat(packetOf(dtp.Header{Seqno: 0}, data[:51_200]), packetOf(dtp.Header{Offset: 51_200, Seqno: 1}, data[51_200:])[:20_000]))
	check(t, err)
	check(t, c.Conn.(*net.TCPConn).CloseWrite())
	c.wantAck(0, "S")
	if err := dtp.ReadAck(c.r, new(dtp.Ack)); err == nil {
		t.Error("half a packet is acknowledged")
	}
	got, err := dial(t, d).read(metadata.Block{ID: b.ID, Generation: b.Generation}, 0, 51_200)
	check(t, err)
	if !bytes.Equal(got, data[:51_200]) {
		t.Error("the bytes are wrong")
	}
}

// Memory for receiving is bounded: more writers than there are large buffers go on with small ones.
func TestManyWritersAtOnce(t *testing.T) {
	d := startOne(t)
	largeInUse.Store(maxLarge - 1)
	defer largeInUse.Store(0)
	data := pattern(3 << 20)
	var clients []*client
	for id := range int64(4) {
		clients = append(clients, mustBegin(t, block(id+1, 1001, 0), setup{stage: stageCreate}, d))
	}
	for off := 0; off < len(data); off += 1 << 20 { // all in step
		for _, c := range clients {
			for at := off; at < off+1<<20; at += 1 << 16 {
				c.packet(int64(at), data[at:at+1<<16], false)
			}
		}
	}
	for id, c := range clients {
		for s := range c.seqno {
			c.wantAck(s, "S")
		}
		if n := largeInUse.Load(); n > maxLarge {
			t.Errorf("%d large buffers are in use", n)
		}
		c.last(int64(len(data)))
		c.wantAck(c.seqno-1, "S")
		d.wantContent(block(int64(id)+1, 1001, 0), data)
	}
	for deadline := time.Now().Add(time.Minute); largeInUse.Load() != maxLarge-1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d large buffers are in use after all writes", largeInUse.Load())
		}
	}
}

// Also while many ask for the last one at once, no more are counted than there are, and one of them has it.
func TestTheLastLargeBuffer(t *testing.T) {
	largeInUse.Store(maxLarge - 1)
	defer largeInUse.Store(0)
	var had, over atomic.Int32
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for range 2000 {
				if countLarge() {
					had.Add(1)
					largeInUse.Add(-1)
				}
				if largeInUse.Load() > maxLarge {
					over.Add(1)
				}
			}
		})
	}
	asking.Wait()
	if over.Load() > 0 || had.Load() == 0 || largeInUse.Load() != maxLarge-1 {
		t.Errorf("%d times more than all were counted, %d had the last one, %d are counted at the end", over.Load(), had.Load(), largeInUse.Load())
	}
}

// A client that leaves a packet out after a recovery: what does not join on to what is there is refused by every datanode
// and changes nothing, and what was acknowledged can be gone on with.
func TestPacketBehindAHoleIsRefused(t *testing.T) {
	nodes := start(t, 2)
	data := pattern(20_000)
	c := mustBegin(t, block(7, 1001, 0), setup{stage: stageCreate}, nodes...)
	c.packet(0, data[:5000], false)
	c.wantAck(0, "S S")
	c.Close()
	holed := setup{stage: stageStreamingRecovery, gen: 1002, min: 5000, max: 20_000}
	c = mustBegin(t, block(7, 1001, 0), holed, nodes...)
	c.seqno = 2
	c.packet(8704, data[8704:], false) // 1, from 4608 on, was due
	c.wantAck(2, "ERROR")
	if _, err := c.r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection goes on: %v", err)
	}
	for i, d := range nodes {
		if r, _ := d.store.Replica(7); r.Block.Length != 5000 || r.Visible != 5000 {
			t.Errorf("datanode %d has %v", i, r)
		}
	}
	c = mustBegin(t, block(7, 1002, 0), setup{stage: stageStreamingRecovery, gen: 1003, min: 5000, max: 20_000}, nodes...)
	c.seqno = 1
	c.packet(4608, data[4608:9000], false)
	c.wantAck(1, "S S")
	c.writeAll(8704, data[8704:], "S S")
	for _, d := range nodes {
		d.wantContent(block(7, 1003, 0), data)
	}
	// The end behind a hole is no end.
	c = mustBegin(t, block(8, 1001, 0), setup{stage: stageCreate}, nodes...)
	c.packet(0, data[:5000], false)
	c.wantAck(0, "S S")
	c.last(9000)
	c.wantAck(1, "ERROR")
}
