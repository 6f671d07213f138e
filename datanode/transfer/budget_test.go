package transfer

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// byAddress makes a user of each address: 127.0.0.2 is user 70002.
func byAddress(c net.Conn) uint32 {
	return 70000 + uint32(c.RemoteAddr().(*net.TCPAddr).IP.To4()[3])
}

func (d *node) await(what string, ok func() bool) {
	d.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	d.t.Fatalf("never: %s", what)
}

// Packets that never end come to hold their user's share, and another user's blocks are written.
func TestUnfinishedPacketsAreBounded(t *testing.T) {
	packets := security.NewBudget(security.BudgetConfig{Purpose: "packets", Total: 24 << 20, Patience: 300 * time.Millisecond})
	d := startOne(t, func(c *Config) { c.Packets, c.Share = packets, byAddress })
	data := pattern(4 << 20)
	packet := packetOf(dtp.Header{}, data)
	const writers = 10
	refused := make(chan error, writers)
	var attackers []*client
	for id := range int64(writers) {
		c := mustBegin(t, block(id+1, 1001, 0), setup{stage: stageCreate, from: net.IPv4(127, 0, 0, 2)}, d)
		attackers = append(attackers, c)
		go func() {
			_, _ = c.Write(packet[:len(packet)-1])
			_, err := c.Read(make([]byte, 1))
			refused <- err
		}()
	}
	d.await("a writer is refused", func() bool { return len(refused) > 0 })
	b := block(100, 1001, 0)
	healthy := mustBegin(t, b, setup{stage: stageCreate, from: net.IPv4(127, 0, 0, 3)}, d)
	healthy.writeAll(0, data[:2<<20], "S")
	d.wantContent(b, data[:2<<20])
	if packets.Peak() > packets.Total() {
		t.Errorf("%d bytes were held, %d are allowed", packets.Peak(), packets.Total())
	}
	for _, c := range append(attackers, healthy) {
		c.Close()
	}
	d.await("all is given back", func() bool { return packets.Used() == 0 })
}

// A file that is open and not written to holds nothing, and is written to as before.
func TestQuietWriterHoldsNoBuffer(t *testing.T) {
	t.Parallel() // it waits for a few seconds
	packets := security.NewBudget(security.BudgetConfig{Purpose: "packets", Total: 8 << 20})
	d := startOne(t, func(c *Config) { c.Packets, c.Share = packets, byAddress })
	data := pattern(3 << 20)
	b := block(1, 1001, 0)
	c := mustBegin(t, b, setup{stage: stageCreate}, d)
	c.packet(0, data[:1<<20], false)
	c.wantAck(0, "S")
	d.await("the buffer is given back", func() bool { return packets.Used() == 0 })
	c.writeAll(1<<20, data[1<<20:], "S")
	d.wantContent(b, data)
}

// A small block comes with its request; what is announced beyond that is refused before it is there.
func TestSmallBlockIsNoLargePacket(t *testing.T) {
	d := startOne(t)
	c := dial(t, d)
	b := block(1, 1001, 1000)
	check(t, dtp.WriteOp(c, dtp.OpWriteBlock, &hadooppb.OpWriteBlockProto{
		Header: header(b, "c"), Stage: stageCreate.Enum(), PipelineSize: new(uint32(1)), MinBytesRcvd: new(uint64),
		MaxBytesRcvd: new(uint64(1000)), LatestGenerationStamp: new(uint64), RequestedChecksum: dtp.DefaultChecksum.Proto(),
	}))
	_, err := c.Write(packetOf(dtp.Header{}, pattern(1<<20))[:100])
	check(t, err)
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("read %d, %v, want the connection closed", n, err)
	}
}
