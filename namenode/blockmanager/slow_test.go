package blockmanager

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Blocks come into memory where they can be read for it: a node whose volume is slow is asked when no other has room.
func TestCachingTurnsToQuickVolumesFirst(t *testing.T) {
	s := newMemory(t, 1<<20, 1)
	s.m.BeatCache("a", 1<<30, 0) // it has most room
	s.do(t, "volume a slow")
	s.do(t, "tick 1s")
	s.want(2)
	s.settle(time.Second)
	if held := s.m.nodes["a"].cache.holds; len(held) != 0 || s.m.InMemory(1) != 2 {
		t.Errorf("the slow one has %v in memory, in all it is there %d times", held, s.m.InMemory(1))
	}
	s.want(3)
	s.settle(time.Second)
	if s.m.InMemory(1) != 3 {
		t.Error("it is not asked although there is no other")
	}
}

// Who leads a recovery has its replica on a quick volume, if there is one that was not tried.
func TestPrimariesAreOnQuickVolumes(t *testing.T) {
	s := newStage()
	for _, n := range []string{"a", "b", "c"} {
		s.do(t, "node "+n)
		s.do(t, "report "+n)
	}
	s.do(t, "block 1 gen=1001 len=0 want=3 open")
	for _, n := range []string{"a", "b", "c"} {
		s.do(t, "receiving "+n+" 1:1001:0")
	}
	s.do(t, "lead 1")
	s.do(t, "volume a slow")
	s.do(t, "volume b slow")
	s.do(t, "tick 1s")
	for i, want := range []string{"c", "a", "b", "c"} {
		s.do(t, fmt.Sprintf("recover 1 as %d", 1010+i))
		if got := s.do(t, "orders"); !strings.HasPrefix(got, want+": recover 1_1001") {
			t.Errorf("try %d: %s", i, got)
		}
	}
}

// Of replicas too many the one on a slow volume goes, unless racks want it to stay.
func TestSurplusGoesFromSlowVolumes(t *testing.T) {
	for want, racks := range map[string][3]string{"c": {"/r", "/r", "/r"}, "a": {"/r", "/r", "/q"}} {
		s := newStage()
		for i, n := range []string{"a", "b", "c"} {
			s.do(t, "node "+n+" rack="+racks[i]+fmt.Sprintf(" free=%d", (i+1)<<30)) // a is the fullest
		}
		s.do(t, "block 1 gen=1001 len=10 want=2")
		for _, n := range []string{"a", "b", "c"} {
			s.do(t, "report "+n+" 1:1001:10")
		}
		s.do(t, "lead 1")
		s.do(t, "volume c slow")
		s.do(t, "horizon 100")
		got := ""
		for range 4 {
			s.do(t, "tick 1s")
			for _, n := range []string{"a", "b", "c"} { // what the leader asks for
				s.do(t, "restart "+n+" rack="+racks[strings.Index("abc", n)])
				s.do(t, "report "+n+" 1:1001:10")
			}
			got += s.do(t, "orders")
		}
		if !strings.Contains(got, want+": delete 1_1001") || strings.Count(got, "delete") != 1 {
			t.Errorf("%s is to give it up: %s", want, got)
		}
	}
}

// A block whose other source has no stream left waits for it, not for ever, and not if it is one of those that are mended first.
func TestCopiesWaitForGoodSources(t *testing.T) {
	for what, c := range map[string]struct {
		want, have int // replicas
		slowAtOnce bool
	}{"it may wait": {4, 2, false}, "it is urgent": {7, 2, true}} {
		s := newStage()
		for _, n := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			s.do(t, "node "+n)
		}
		streams := s.m.config.Streams
		var onA []string
		for i := range streams {
			s.do(t, fmt.Sprintf("block %d gen=1001 len=10 want=2", 10+i))
			onA = append(onA, fmt.Sprintf("%d:1001:10", 10+i))
		}
		for _, n := range []string{"b", "c", "d", "e", "f", "g", "h"} {
			s.do(t, "report "+n)
		}
		s.do(t, "report a "+strings.Join(onA, " "))
		s.do(t, "lead 1")
		s.do(t, "tick 1s")
		if s.m.nodes["a"].outgoing != streams {
			t.Fatal("its streams are", s.m.nodes["a"].outgoing)
		}
		s.do(t, "volume b slow")
		s.do(t, "tick 1s")
		s.do(t, fmt.Sprintf("block 1 gen=1001 len=10 want=%d", c.want))
		s.do(t, "received a 1:1001:10")
		s.do(t, "received b 1:1001:10")
		copied := func() bool {
			for _, t := range s.m.nodes["b"].outs {
				if t.block.ID == 1 {
					return true
				}
			}
			return false
		}
		for i := range 5 {
			s.do(t, "tick 10s")
			if copied() != c.slowAtOnce {
				t.Errorf("%s: after %d s it comes from the slow one: %t", what, 10*(i+1), copied())
			}
		}
		for range 8 {
			for _, o := range s.m.nodes["a"].outs { // they get on, so nobody gives them up
				o.moved = s.now
			}
			s.do(t, "tick 10s")
		}
		if !copied() {
			t.Error(what, "and waits for ever")
		}
	}
}

// A copy from a volume that has failed, or to one, is not waited for: it is ordered of another source, and for another target, at once. So decommission does not wait for a disk that hangs.
func TestCopiesEndWithTheirVolumes(t *testing.T) {
	for _, end := range []string{"source", "target"} {
		s := newStage()
		for _, n := range []string{"a", "b", "c", "d"} {
			s.do(t, "node "+n)
			s.do(t, "report "+n)
		}
		s.do(t, "block 1 gen=1001 len=100 want=2")
		s.do(t, "received a 1:1001:100")
		s.do(t, "received b 1:1001:100")
		s.do(t, "lead 1")
		s.do(t, "tick 1s")
		s.do(t, "decommission a")
		s.do(t, "tick 1s")
		s.do(t, "orders")
		copied := func() (from, to string) {
			b := s.m.blocks.get(1)
			if b.more == nil || len(b.more.copies) != 1 || b.more.copies[0].over() {
				t.Fatalf("%s: not one copy: %+v", end, b.more)
			}
			c := b.more.copies[0]
			return string(c.source.info.ID), string(s.m.volumes[c.target].node.info.ID)
		}
		from, to := copied()
		away := map[string]string{"source": from, "target": to}[end]
		s.do(t, "volume "+away+" slow")
		s.do(t, "tick 1s")
		if f, w := copied(); f != from || w != to {
			t.Errorf("%s: what is slow only is given up", end)
		}
		s.do(t, "volume "+away+" fails")
		s.do(t, "tick 1s")
		s.do(t, "tick 1s")
		f, w := copied()
		if f == away || w == away {
			t.Errorf("%s: it goes from %s to %s, %s has failed", end, f, w, away)
		}
		for _, n := range s.m.order {
			want := 0
			if string(n.info.ID) == f {
				want = 1
			}
			if n.outgoing != want {
				t.Errorf("%s: %s has %d streams", end, n.info.ID, n.outgoing)
			}
		}
	}
}
