package blockmanager

import (
	"slices"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// A node that was given up is nowhere any more and nothing waits for it; when it comes back it counts, and dies, like any other.
func TestForget(t *testing.T) {
	m := New(Config{})
	now := time.Unix(0, 0)
	m.Lead(now, 1)
	b := metadata.Block{ID: 1 << 30, Generation: 5}
	register := func(id namenode.NodeID, replicas ...namenode.Replica) {
		m.Register(now, namenode.Node{ID: id, IP: string(id), TransferPort: 1}, []namenode.Volume{{ID: "v" + namenode.VolumeID(id)}}, 1)
		m.Report(now, id, 1, "v"+namenode.VolumeID(id), replicas, true)
	}
	pass := func(d time.Duration, alive ...namenode.NodeID) {
		for range int(d / time.Second) {
			now = now.Add(time.Second)
			for _, id := range alive {
				m.Beat(now, id, []namenode.Volume{{ID: "v" + namenode.VolumeID(id)}}, 0)
			}
			m.Tick(now)
		}
	}
	pipeline := []string{"dn1"}
	listed := func() bool {
		return slices.ContainsFunc(m.Nodes(), func(r namenode.NodeReport) bool { return r.Node.ID == "dn1" })
	}

	m.Put(now, Block{Block: b, Replication: 1, Open: true})
	register("dn1", namenode.Replica{Block: b, State: namenode.Writing})
	register("dn2")
	pass(2*time.Minute, "dn2")
	m.Recover(now, b.ID, 9)
	if got := m.Missing(b.ID); !slices.Equal(got, []namenode.NodeID{"dn1"}) || m.Nowhere(b.ID, pipeline) || !listed() {
		t.Fatalf("dead: missing %v, nowhere %t, listed %t", got, m.Nowhere(b.ID, pipeline), listed())
	}

	m.Forget([]namenode.NodeID{"dn1", "dn2"}) // dn2 lives, which the server sees to
	if got := m.Missing(b.ID); len(got) != 0 || !m.Nowhere(b.ID, pipeline) || !m.GivenUp(pipeline) || listed() || m.Dead("dn1") {
		t.Fatalf("forgotten: missing %v, nowhere %t, listed %t", got, m.Nowhere(b.ID, pipeline), listed())
	}
	if back := m.Returned(); !slices.Equal(back, []namenode.NodeID{"dn2"}) || m.Live() != 1 || len(m.candidates) != 1 {
		t.Fatalf("returned %v, %d live, %d candidates", back, m.Live(), len(m.candidates))
	}

	register("dn1", namenode.Replica{Block: b, State: namenode.Waiting})
	if m.Nowhere(b.ID, pipeline) || !listed() || !m.Known("dn1") {
		t.Fatal("what has come back does not count")
	}
	m.Forget(nil)
	pass(2*time.Minute, "dn2")
	if late := m.Late(pipeline); !slices.Equal(late, pipeline) || !listed() {
		t.Fatalf("dead again: late %v, listed %t", late, listed())
	}
	// Given up while it is still counted as alive here, as by a leader that hears less.
	register("dn1")
	m.Forget([]namenode.NodeID{"dn1"})
	if !listed() {
		t.Fatal("a node that lives is not listed")
	}
	pass(2*time.Minute, "dn2")
	if listed() {
		t.Fatal("it is still listed after its death")
	}
}
