package blockmanager

import (
	"testing"
	"time"

	"github.com/gohops/hops/namenode"
)

// A machine whose rack is another one again and again costs others no turn: its blocks are counted to the end, and then it waits behind those that
// came meanwhile.
func TestARackThatFlapsHoldsUpNobody(t *testing.T) {
	m, now := fleet(100, 4*turnsPerTick, 2) // all blocks on node 0
	flapping, other := m.order[0], m.order[1]
	for range 20 { // what the start has to count
		now = now.Add(200 * time.Millisecond)
		m.beatAll(now, -1)
		m.Tick(now)
	}
	for i := range 40 {
		rack := "/r0"
		if i%2 == 0 {
			rack = "/r1"
		}
		m.SetRack(flapping.info.IP, rack)
		if i == 0 {
			m.SetRack(other.info.IP, "/r7")
		}
		now = now.Add(200 * time.Millisecond)
		m.beatAll(now, -1)
		m.Tick(now)
	}
	if other.order[0].turned {
		t.Error("a rack that changed once was not looked at")
	}
	for range 10 {
		now = now.Add(200 * time.Millisecond)
		m.beatAll(now, -1)
		m.Tick(now)
	}
	if len(m.turned) > 0 {
		t.Errorf("%d volumes are still to be counted after the last change", len(m.turned))
	}
}

// A machine that restarts on another rack is where it says.
func TestAMachineThatComesBackOnAnotherRack(t *testing.T) {
	s := newShelf(0, 2, "a=DISK", "b=DISK", "c")
	s.m.SetRack("b", "/r2")
	s.m.SetRack("c", "/r2")
	s.settle()
	if b := s.m.blocks.get(1); b.priority >= 0 || len(s.m.turned) > 0 || s.m.Requeue(1) {
		t.Fatalf("a block on two racks: priority %d", b.priority)
	}
	s.m.Register(s.now, namenode.Node{ID: "b", IP: "b", TransferPort: 1}, s.volumes("b"), 1)
	s.m.Tick(s.now)
	if b := s.m.blocks.get(1); b.priority != crowded && s.m.pending(b) == 0 {
		t.Errorf("a block whose machines stand on one rack now: priority %d", b.priority)
	} else if queued := s.m.Requeue(1); queued != (s.m.pending(b) == 0) {
		t.Errorf("it is queued: %v, with %d copies on their way", queued, s.m.pending(b))
	}
	if s.m.Requeue(4711) {
		t.Error("a block that nobody knows is queued")
	}
}
