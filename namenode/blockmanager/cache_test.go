package blockmanager

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// memory is a stage whose datanodes take into memory what they are told to, if they can.
type memory struct {
	*stage
	t    *testing.T
	full map[string]bool // takes nothing
	deaf map[string]bool // does nothing
}

// newMemory has three datanodes with so many bytes for each, and blocks of 8192 bytes on all of them.
func newMemory(t *testing.T, capacity int64, blocks int) *memory {
	s := &memory{stage: newStage(), t: t, full: map[string]bool{}, deaf: map[string]bool{}}
	var replicas []string
	for i := range blocks {
		s.do(t, fmt.Sprintf("block %d gen=1001 len=8192 want=3", i+1))
		replicas = append(replicas, fmt.Sprintf("%d:1001:8192", i+1))
	}
	for _, n := range []string{"a", "b", "c"} {
		s.do(t, "node "+n)
		s.do(t, "report "+n+" "+strings.Join(replicas, " "))
		s.m.BeatCache(namenode.NodeID(n), capacity, 0)
	}
	s.do(t, "lead 1")
	return s
}

// want says on how many nodes blocks are to be in memory, from the first one on.
func (s *memory) want(replicas ...uint16) {
	var w []CacheWish
	for i, n := range replicas {
		w = append(w, CacheWish{metadata.BlockID(i + 1), n})
	}
	if !s.m.CacheBlocks(s.m.CacheEpoch(), w) {
		s.t.Fatal("what was wanted was forgotten")
	}
	s.m.CacheReady(s.m.CacheEpoch())
}

// settle lets time pass, and the datanodes do as they are told, and says how often each block is in memory.
func (s *memory) settle(d time.Duration) string {
	for ; d >= 0; d -= 200 * time.Millisecond {
		s.do(s.t, "tick 200ms")
		for _, n := range []string{"a", "b", "c"} {
			o := s.m.Orders(s.now, namenode.NodeID(n))
			if s.deaf[n] {
				continue
			}
			var told []namenode.Change
			for _, b := range o.Cache {
				kind := namenode.Cached
				if s.full[n] {
					kind = namenode.Uncached
				}
				told = append(told, namenode.Change{Kind: kind, Block: b})
			}
			for _, id := range o.Uncache {
				told = append(told, namenode.Change{Kind: namenode.Uncached, Block: metadata.Block{ID: id}})
			}
			s.m.Changes(s.now, namenode.NodeID(n), told)
		}
	}
	s.m.check(s.t)
	var out []string
	for id := metadata.BlockID(1); s.m.Has(id); id++ {
		out = append(out, fmt.Sprint(s.m.InMemory(id)))
	}
	return strings.Join(out, " ")
}

func (s *memory) expect(d time.Duration, want string) {
	s.t.Helper()
	if got := s.settle(d); got != want {
		s.t.Fatalf("in memory %s, want %s", got, want)
	}
}

const oneBlock = 12288 // 8192 bytes and their checksums, in pages

func TestBlocksComeIntoMemoryAndLeaveIt(t *testing.T) {
	s := newMemory(t, 10*oneBlock, 3)
	s.want(1, 3, 0)
	s.expect(time.Second, "1 3 0")
	locations, _ := s.m.Locate(1, "")
	if !locations[0].Cached || locations[1].Cached || locations[2].Cached {
		t.Errorf("%+v", locations)
	}
	s.want(2, 1, 1)
	s.expect(time.Second, "2 1 1")
	s.want(0, 0, 0)
	s.expect(time.Second, "0 0 0")
	if capacity, _ := s.m.CacheCapacity(); capacity != 30*oneBlock {
		t.Error(capacity)
	}
}

func TestFullNodesTakeNoMore(t *testing.T) {
	s := newMemory(t, oneBlock, 5)
	s.want(3, 3, 3, 3, 3)
	got := s.settle(time.Second)
	if n := strings.Count(got, "1") + 2*strings.Count(got, "2") + 3*strings.Count(got, "3"); n != 3 {
		t.Errorf("%s on nodes with room for one", got)
	}
	s.want(0, 0, 0, 0, 1)
	s.expect(time.Minute, "0 0 0 0 1")
}

// One datanode that refuses, or says nothing, holds up what it was asked for and nothing else.
func TestOtherNodesTakeWhatOneDoesNot(t *testing.T) {
	s := newMemory(t, 10*oneBlock, 4)
	s.full["a"] = true
	s.want(2, 2, 2, 2)
	s.expect(30*time.Second, "2 2 2 2")
	s = newMemory(t, 10*oneBlock, 4)
	s.deaf["a"] = true
	s.want(2, 2, 2, 2)
	s.settle(time.Second)
	s.expect(cachePatience+time.Minute, "2 2 2 2")
}

// What a datanode says of blocks that it does not have, or has no room for, is not believed.
func TestLiesAboutMemoryAreNotBelieved(t *testing.T) {
	s := newMemory(t, oneBlock, 3)
	var told []namenode.Change
	for id := range metadata.BlockID(1000) {
		told = append(told, namenode.Change{Kind: namenode.Cached, Block: metadata.Block{ID: id, Generation: 1001, Length: 8192}})
	}
	s.m.Changes(s.now, "a", told)
	if n := s.m.Nodes()[0].Cached; n != 1 {
		t.Errorf("%d blocks in memory that has room for one", n)
	}
	s.want(1, 1, 1)
	s.expect(time.Minute, "1 1 1")
}

func TestMemoryIsForgottenWithItsNode(t *testing.T) {
	s := newMemory(t, 10*oneBlock, 2)
	s.want(3, 3)
	s.expect(time.Second, "3 3")
	s.do(t, "restart a")
	s.do(t, "report a 1:1001:8192 2:1001:8192")
	if got := s.m.InMemory(1); got != 2 {
		t.Errorf("in memory of %d nodes, of which one was started anew", got)
	}
	s.expect(20*time.Second, "3 3") // and is asked again
	s.do(t, "silent b")
	s.expect(2*time.Minute, "2 2")
}

// A block that is written to again leaves memory, and comes back when it is closed.
func TestOpenBlocksAreNotKeptInMemory(t *testing.T) {
	s := newMemory(t, 10*oneBlock, 2)
	s.want(3, 3)
	s.expect(time.Second, "3 3")
	s.do(t, "block 1 gen=1002 len=8192 want=3 open")
	s.expect(time.Second, "0 3")
	s.do(t, "block 1 gen=1002 len=9000 want=3")
	for _, n := range []string{"a", "b", "c"} {
		s.do(t, "received "+n+" 1:1002:9000")
	}
	s.expect(20*time.Second, "3 3")
}

// A new leader knows what is in memory, and leaves it there until it knows what is wanted.
func TestNewLeaderLeavesMemoryAlone(t *testing.T) {
	s := newMemory(t, 10*oneBlock, 2)
	s.want(2, 1)
	s.expect(time.Second, "2 1")
	epoch := s.m.CacheEpoch()
	s.do(t, "follow")
	s.do(t, "lead 2")
	for _, n := range []string{"a", "b", "c"} {
		s.do(t, "restart "+n)
		s.do(t, "report "+n+" 1:1001:8192 2:1001:8192")
	}
	s.m.Changes(s.now, "a", []namenode.Change{{Kind: namenode.Cached, Block: metadata.Block{ID: 1}}, {Kind: namenode.Cached, Block: metadata.Block{ID: 2}}})
	s.expect(time.Minute, "1 1")
	if s.m.CacheBlocks(epoch, []CacheWish{{1, 3}}) {
		t.Error("what was said before the last leader ended counts")
	}
	s.want(2)
	s.expect(time.Minute, "2 0")
}

func TestWhoLiesAboutItsMemoryMakesNobodysLess(t *testing.T) {
	s := newMemory(t, math.MaxInt64, 1)
	if capacity, used := s.m.CacheCapacity(); capacity != 3*mostCache || used != 0 {
		t.Errorf("%d bytes, %d of them used", capacity, used)
	}
	if room := s.m.nodes["a"].room(); room != 1000 {
		t.Errorf("%d thousandths are free", room)
	}
}
