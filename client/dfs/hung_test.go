package dfs

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
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
