package server

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// quiet: what is left behind may have something to say after the test.
func quiet(c *Config) { c.Logger = slog.New(slog.DiscardHandler) }

// A datanode ends although calls of a disk have not come back: reads, writes, deletions, verifications and moves that wait there are left behind.
func TestADatanodeEndsBesideAHungDisk(t *testing.T) {
	for _, call := range []string{"read", "write", "sync", "rename", "open", "remove", ""} {
		t.Run("call "+call, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, 10*time.Second, quiet)
			for id := range int64(10) {
				p.keep(100+id, datanode.Disk, 100+int(id%2)*100_000)
			}
			b := func(id int64) metadata.Block { return metadata.Block{ID: metadata.BlockID(id), Generation: 1001} }
			w, err := p.store.Create(b(300), datanode.CreateOptions{Type: datanode.Disk})
			check(t, err)
			check(t, w.Write(0, make([]byte, 100_001), nil))
			p.hang(call)
			p.lost.Go(func() { _ = w.Write(100_001, make([]byte, 1_000_000), nil); _, _ = w.Finalize() })
			p.lost.Go(func() { _ = p.store.CheckSizes(107) })
			orders := &pb.Orders{Term: 1, Leader: true}
			for id := range int64(4) {
				orders.Verify = append(orders.Verify, wireBlock(b(100+id)))
				orders.Delete = append(orders.Delete, wireBlock(b(104+id)))
			}
			p.all()[0].obey(orders)
			within(t, "a call hangs", func() bool { return p.stuck.Load() > 0 })
			ended := make(chan error, 1)
			go func() { ended <- p.stop() }()
			select {
			case err := <-ended:
				check(t, err)
			case <-time.After(30 * time.Second):
				p.free()
				t.Fatal("it waits for the disk:", <-ended)
			}
		})
	}
}

// So it does when it ends by itself because that disk was given up and no volume may fail.
func TestADatanodeWhoseDiskIsGivenUpEnds(t *testing.T) {
	p := newPair(t, 3*time.Second, func(c *Config) { quiet(c); c.Tolerated = new(0) })
	p.keep(100, datanode.Disk, 100_000)
	p.hang("read")
	p.all()[0].obey(&pb.Orders{Term: 1, Leader: true, Verify: []*pb.Block{{Id: 100, Generation: 1001}}})
	within(t, "it ends", func() bool {
		c, err := net.Dial("tcp", p.cfg.Transfer.Addr().String())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	ended := make(chan error, 1)
	go func() { ended <- p.stop() }()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "no more than 0 volumes may fail") {
			t.Error(err)
		}
	case <-time.After(45 * time.Second):
		p.free()
		t.Fatal("it waits for the disk:", <-ended)
	}
}
