package transfer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const benchBlock = 128 << 20

// send writes one block, with at most 80 packets in flight as Hadoop's client does.
func (c *client) send(data []byte, size int64) {
	builder := dtp.NewBuilder(dtp.DefaultChecksum, dtp.DataSize)
	window := make(chan struct{}, 80)
	done := make(chan error, 1)
	packets := int((size + dtp.DataSize - 1) / dtp.DataSize)
	go func() {
		var a dtp.Ack
		for range packets + 1 {
			if err := dtp.ReadAck(c.r, &a); err != nil {
				done <- err
				return
			}
			if i, s := a.Blame(); i >= 0 {
				done <- fmt.Errorf("datanode %d: %v", i, s)
				return
			}
			<-window
		}
		done <- nil
	}()
	for off := int64(0); off < size; off += dtp.DataSize {
		window <- struct{}{}
		builder.Reset()
		builder.Append(data[:min(dtp.DataSize, size-off)])
		_, err := c.Write(builder.Finish(dtp.Header{Offset: off, Seqno: c.seqno}))
		check(c.t, err)
		c.seqno++
	}
	window <- struct{}{}
	c.last(size)
	check(c.t, <-done)
}

func BenchmarkWrite(b *testing.B) {
	for _, replicas := range []int{1, 3} {
		b.Run(fmt.Sprintf("replicas=%d", replicas), func(b *testing.B) {
			nodes := start(b, replicas)
			data := pattern(dtp.DataSize)
			b.SetBytes(benchBlock)
			id := int64(1)
			for b.Loop() {
				mustBegin(b, block(id, 1, 0), setup{stage: stageCreate}, nodes...).send(data, benchBlock)
				b.StopTimer()
				for _, d := range nodes {
					check(b, d.store.Delete(block(id, 1, 0)))
				}
				id++
				b.StartTimer()
			}
		})
	}
}

// BenchmarkFile is what dd with fsync does: the yardstick of BenchmarkWrite.
func BenchmarkFile(b *testing.B) {
	data := pattern(1 << 20)
	name := filepath.Join(b.TempDir(), "f")
	b.SetBytes(benchBlock)
	for b.Loop() {
		f, err := os.Create(name)
		check(b, err)
		for range benchBlock >> 20 {
			_, err = f.Write(data)
			check(b, err)
		}
		check(b, f.Sync())
		check(b, f.Close())
		b.StopTimer()
		check(b, os.Remove(name))
		b.StartTimer()
	}
}

func BenchmarkRead(b *testing.B) {
	d := start(b, 1)[0]
	mustBegin(b, block(1, 1, 0), setup{stage: stageCreate}, d).send(pattern(dtp.DataSize), benchBlock)
	b.Run("sequential", func(b *testing.B) {
		c := dial(b, d)
		b.SetBytes(benchBlock)
		for b.Loop() {
			c.drain(b, 0, benchBlock)
		}
	})
	b.Run("random 4 KiB", func(b *testing.B) {
		c := dial(b, d)
		off := int64(0)
		for b.Loop() {
			off = (off + 4096*1237) % (benchBlock - 4096)
			c.drain(b, off, 4096)
		}
	})
}

// drain reads and verifies a range.
func (c *client) drain(b *testing.B, off, n int64) {
	check(b, dtp.WriteOp(c, dtp.OpReadBlock, &hadooppb.OpReadBlockProto{Header: header(block(1, 1, 0), "c"), Offset: new(uint64(off)), Len: new(uint64(n))}))
	m, err := dtp.ReadResponse(c.r)
	check(b, err)
	check(b, dtp.CheckResponse(dtp.OpReadBlock, m))
	packets := dtp.NewPacketReader(c.r)
	for {
		p, err := packets.Next()
		check(b, err)
		if p.Last {
			break
		}
		check(b, dtp.DefaultChecksum.Verify(p.Sums, p.Data))
	}
	packets.Done()
	check(b, dtp.WriteMessage(c, &hadooppb.ClientReadStatusProto{Status: hadooppb.Status_CHECKSUM_OK.Enum()}))
}

func BenchmarkVerify(b *testing.B) {
	d := start(b, 1)[0]
	mustBegin(b, block(1, 1, 0), setup{stage: stageCreate}, d).send(pattern(dtp.DataSize), benchBlock)
	b.SetBytes(benchBlock)
	for b.Loop() {
		check(b, d.store.Verify(context.Background(), 1, datanode.VerifyOptions{}))
	}
}
