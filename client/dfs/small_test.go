package dfs

import (
	"testing"
	"time"
)

// keeping is a cluster whose datanodes are known to keep connections after writes.
func keeping(t *testing.T, datanodes int) (*cluster, *Client) {
	t.Helper()
	c, client := newCluster(t, datanodes)
	patient(client)
	for _, n := range c.nodes {
		n.set(func() { n.keeps = true })
	}
	// The second write finds the connection of the first, unless that was too long ago.
	eventually(t, "a datanode that is known to keep connections", func() bool {
		if err := client.WriteFile(t.Context(), "/before", pattern(100), true); err != nil {
			t.Fatal(err)
		}
		return client.peers.keeps(c.nodes[0].addr)
	})
	return c, client
}

func wholes(n *fakeNode) (whole int) {
	n.set(func() { whole = n.whole })
	return whole
}

func TestSmallBlocksAreSentWhole(t *testing.T) {
	c, client := keeping(t, 3)
	for i, size := range []int{1, 512, 4096, smallBlock} {
		data := pattern(size)
		if err := client.WriteFile(t.Context(), "/f", data, true); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
		for at, n := range c.nodes {
			if got := wholes(n); got != i+1 {
				t.Errorf("datanode %d has got %d blocks whole, want %d", at, got, i+1)
			}
		}
	}
}

// What does not end as a small block is written as any other.
func TestBlocksThatTurnOutLargerOrAreFlushedHaveAPipeline(t *testing.T) {
	c, client := keeping(t, 3)
	for _, size := range []int{0, smallBlock + 1, 65536, 200_000} {
		data := pattern(size)
		w := create(t, client, "/f")
		for i := 0; i < size; i += 10_000 {
			write(t, w, data[i:min(i+10_000, size)])
		}
		if err := w.Close(); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		sameBytes(t, "stored", c.content("/f"), data)
	}
	data := pattern(3000)
	w := create(t, client, "/flushed")
	write(t, w, data[:1000])
	if err := w.Hflush(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, w, data[1000:])
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "stored", c.content("/flushed"), data)
	if n := wholes(c.nodes[0]); n != 0 {
		t.Errorf("%d blocks were sent whole", n)
	}
}

// A block that was sent whole and not acknowledged is given up, and its data is written into another one.
func TestSmallBlockThatFailsIsReplaced(t *testing.T) {
	faults := map[string]func(*fakeNode){
		"refuses":                   func(n *fakeNode) { n.refuse = true },
		"dies with the data":        func(n *fakeNode) { n.dieAfter = 1 },
		"dies at the end":           func(n *fakeNode) { n.dieAtEnd = true },
		"acknowledges with failure": func(n *fakeNode) { n.badAck = 1 },
		"was gone":                  func(n *fakeNode) { n.killLocked() },
	}
	for name, fault := range faults {
		for at := range 3 {
			c, client := keeping(t, 5)
			c.nodes[at].set(func() { fault(c.nodes[at]) })
			data := pattern(4096)
			if err := client.WriteFile(t.Context(), "/f", data, true); err != nil {
				t.Fatalf("datanode %d %s: %v", at, name, err)
			}
			sameBytes(t, "stored", c.content("/f"), data)
			if n := c.count("abandonBlock"); n == 0 {
				t.Errorf("datanode %d %s: no block was given up", at, name)
			}
			if n := c.replicas("/f"); n[0] != 3 {
				t.Errorf("datanode %d %s: %d replicas", at, name, n[0])
			}
		}
	}
}

func TestAbortFreesAWriterThatWaitsForASmallBlock(t *testing.T) {
	c, client := keeping(t, 1)
	c.nodes[0].set(func() { c.nodes[0].mute = true })
	w := create(t, client, "/f")
	write(t, w, pattern(100))
	closed := make(chan error, 1)
	go func() { closed <- w.Close() }()
	for wholes(c.nodes[0]) == 0 {
		time.Sleep(time.Millisecond)
	}
	w.Abort()
	if err := <-closed; err == nil {
		t.Error("a file whose block was not acknowledged is closed")
	}
}
