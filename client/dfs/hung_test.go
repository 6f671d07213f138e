package dfs

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Readers may be many more than hedged reads: all of them leave a datanode that is frozen in a moment.
func TestManyReadersLeaveAFrozenDatanode(t *testing.T) {
	c, _ := newCluster(t, 2)
	client := c.client(Config{BlockSize: 16 << 10, DatanodeTimeout: 10 * limit})
	const readers = 100
	data := bigFile(t, client, readers*16<<10)
	r := open(t, client, "/big")
	c.nodes[0].freeze()
	within(t, "all reads", func() {
		var all sync.WaitGroup
		for i := range readers {
			all.Go(func() {
				got := make([]byte, 16<<10)
				if _, err := r.ReadAt(got, int64(i)*16<<10); err != nil {
					t.Error(err)
				}
				sameBytes(t, "read", got, data[i*16<<10:][:16<<10])
			})
		}
		all.Wait()
	})
}

// The datanode that is asked beside a silent one may fail, too: then a third one is asked.
func TestAHedgeThatFailsIsReplaced(t *testing.T) {
	for what, middle := range map[string]bool{"at the beginning": false, "in the middle": true} {
		c, _ := newCluster(t, 3)
		client := c.client(Config{DatanodeTimeout: 10 * limit})
		data := bigFile(t, client, 3<<20)
		r := open(t, client, "/big")
		got := make([]byte, len(data))
		n := 0
		if middle {
			for ; n < 300_000; n += 100_000 {
				if _, err := r.Read(got[n:][:100_000]); err != nil {
					t.Fatal(err)
				}
			}
		}
		c.nodes[0].freeze()
		c.nodes[1].set(func() { c.nodes[1].gone = true })
		within(t, "a read, the first one frozen "+what, func() {
			for n < len(got) {
				k, err := r.Read(got[n:])
				if n += k; err != nil {
					t.Fatal(err)
				}
			}
			sameBytes(t, "read", got, data)
		})
		c.nodes[0].thaw()
	}
}

// A datanode that says that its disk does not answer at the moment is asked again for some time if nobody else has the block, and left for another one at once otherwise.
func TestADiskThatDoesNotAnswerIsWaitedForIfThereIsNoOther(t *testing.T) {
	c, client := newCluster(t, 1)
	client.times.retry, client.times.many = time.Millisecond, 10*limit
	data := bigFile(t, client, 100_000)
	c.nodes[0].set(func() { c.nodes[0].disk = 3 * readRounds })
	within(t, "a read of a disk that answers again", func() {
		got, err := client.ReadFile(t.Context(), "/big")
		if err != nil {
			t.Error(err)
		}
		sameBytes(t, "read", got, data)
	})
	client.times.many = 300 * time.Millisecond
	c.nodes[0].set(func() { c.nodes[0].disk = -1 })
	within(t, "a read of a disk that hangs", func() {
		_, err := client.ReadFile(t.Context(), "/big")
		if !errors.Is(err, metadata.ErrIO) || strings.Count(err.Error(), "volume /data/1: the disk does not answer") != 1 {
			t.Error(err)
		}
	})

	c, client = newCluster(t, 2)
	client.times.retry = 10 * limit
	data = bigFile(t, client, 100_000)
	c.nodes[0].set(func() { c.nodes[0].disk = -1 })
	within(t, "a read beside a disk that hangs", func() {
		got, err := client.ReadFile(t.Context(), "/big")
		if err != nil {
			t.Error(err)
		}
		sameBytes(t, "read", got, data)
	})
}

// Where that is wanted, datanodes that are silent, or cannot be reached, cost what is read from them one wait in all and not one for each block, and are read from again after their first word.
func TestSilentDatanodesAreAskedOnce(t *testing.T) {
	for what, gone := range map[string]bool{"one refuses": true, "all hang": false} {
		c, _ := newCluster(t, 3)
		const size = 16 << 10
		client := c.client(Config{BlockSize: size, DatanodeTimeout: 500 * time.Millisecond, LeaveSilent: true, HedgedReads: -1})
		data := bigFile(t, c.client(Config{BlockSize: size}), 6*size)
		var silent atomic.Bool
		silent.Store(true)
		client.mute = func(*hadooppb.DatanodeInfoProto) bool { return silent.Load() }
		client.times.forgive = time.Millisecond
		r := open(t, client, "/big")
		for i, n := range c.nodes {
			if gone && i == 0 {
				n.l.Close()
			} else {
				n.freeze()
			}
		}
		asked := func() (all int) {
			for _, n := range c.nodes {
				n.set(func() { all += n.accepted })
			}
			return all
		}
		before, first := asked(), 0
		got := make([]byte, size)
		for i := range int64(6) {
			_, err := r.ReadAt(got, i*size)
			if !errors.Is(err, metadata.ErrIO) {
				t.Fatalf("%s: block %d: %v", what, i, err)
			}
			for _, n := range c.nodes {
				if !strings.Contains(err.Error(), n.addr+": ") {
					t.Errorf("%s: block %d: %v; it says nothing of %s", what, i, err, n.addr)
				}
			}
			if n := asked() - before; i == 0 {
				first = n
			} else if n != first {
				t.Errorf("%s: block %d: datanodes were asked %d times, and for the first block %d", what, i, n, first)
			}
		}
		if first > len(c.nodes) {
			t.Errorf("%s: datanodes were asked %d times for a block", what, first)
		}
		for _, n := range c.nodes {
			n.thaw()
		}
		silent.Store(false)
		eventually(t, "a datanode is read from again", func() bool {
			_, err := r.ReadAt(got, size)
			return err == nil
		})
		sameBytes(t, what, got, data[size:][:size])
	}
}

// A datanode that was asked beside another one and said nothing either is not asked again for the same bytes.
func TestASilentHedgeIsNotAskedAgain(t *testing.T) {
	c, _ := newCluster(t, 2)
	client := c.client(Config{DatanodeTimeout: 500 * time.Millisecond, LeaveSilent: true, HedgeAfter: time.Millisecond})
	bigFile(t, c.client(Config{}), 100_000)
	client.mute = func(*hadooppb.DatanodeInfoProto) bool { return true }
	r := open(t, client, "/big")
	var before [2]int
	for i, n := range c.nodes {
		n.set(func() { before[i] = n.accepted })
		n.freeze()
		defer n.thaw()
	}
	if _, err := r.ReadAt(make([]byte, 10), 0); !errors.Is(err, metadata.ErrIO) {
		t.Fatal(err)
	}
	for i, n := range c.nodes {
		n.set(func() {
			if k := n.accepted - before[i]; k != 1 {
				t.Errorf("datanode %d was asked %d times", i, k)
			}
		})
	}
}
