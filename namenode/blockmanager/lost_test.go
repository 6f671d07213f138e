package blockmanager

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Lost agrees with what Statistics counts as missing, whatever happens to the blocks.
func TestLostAreTheMissing(t *testing.T) {
	m := New(Config{})
	now := time.Unix(0, 0)
	for i := range 3 {
		id := namenode.NodeID(fmt.Sprint("dn", i))
		m.Register(now, namenode.Node{ID: id, IP: fmt.Sprint("10.0.0.", i)}, []namenode.Volume{{ID: namenode.VolumeID("v" + id)}}, 1)
		m.Report(now, id, 1, "", nil, true)
	}
	r := rand.New(rand.NewPCG(3, 4))
	seen := 0
	for step := range 5000 {
		now = now.Add(10 * time.Millisecond)
		b := metadata.Block{ID: metadata.BlockID(1<<30 + r.Int64N(40)), Generation: metadata.Generation(1 + r.IntN(2)), Length: 5}
		node := namenode.NodeID(fmt.Sprint("dn", r.IntN(3)))
		change := namenode.Change{Volume: namenode.VolumeID("v" + node), Block: b}
		switch r.IntN(8) {
		case 0, 1:
			m.Put(now, Block{Block: b, Replication: 1 + r.IntN(2), Open: r.IntN(3) == 0})
		case 2:
			m.Remove(b.ID)
		case 3, 4:
			change.Kind = namenode.Received
			m.Changes(now, node, []namenode.Change{change})
		case 5:
			change.Kind = namenode.Deleted
			m.Changes(now, node, []namenode.Change{change})
		case 6:
			change.Kind = namenode.Corrupt
			m.Changes(now, node, []namenode.Change{change})
		case 7:
			if r.IntN(200) == 0 {
				m.Reset()
			}
			for i := range 3 {
				m.Beat(now, namenode.NodeID(fmt.Sprint("dn", i)), nil, 0)
			}
			m.Tick(now)
		}
		var want []metadata.BlockID
		for id, b := range m.blocks.all() {
			if b.health >= missing {
				want = append(want, id)
			}
		}
		slices.Sort(want)
		if got := m.Lost(0, 1000); !slices.Equal(got, want) || int64(len(got)) != m.Statistics().Missing {
			t.Fatalf("step %d: lost %v, want %v; %d are counted", step, got, want, m.Statistics().Missing)
		}
		seen += len(want)
	}
	if seen < 5000 {
		t.Fatalf("only %d blocks were missing in all steps together", seen)
	}
}

// What lies on a disk that has failed, or was taken out, may come back: blocks that nobody has are not known to be nowhere. With memory it is gone.
func TestADiskThatFailsMayHaveWhatNobodyHas(t *testing.T) {
	m := New(Config{})
	now := time.Unix(0, 0)
	volumes := func(disk, memory bool) []namenode.Volume {
		return []namenode.Volume{{ID: "disk", Type: namenode.Disk, Failed: disk}, {ID: "memory", Type: namenode.RAMDisk, Failed: memory}}
	}
	m.Register(now, namenode.Node{ID: "dn", IP: "10.0.0.1"}, volumes(false, false), 1)
	if m.Complete() {
		t.Error("before its report")
	}
	m.Report(now, "dn", 1, "", nil, true)
	for i, c := range []struct{ disk, memory, want bool }{{false, false, true}, {false, true, true}, {true, false, false}, {false, false, true}} {
		m.Beat(now, "dn", volumes(c.disk, c.memory), 0)
		if got := m.Complete(); got != c.want {
			t.Errorf("%d: %t", i, got)
		}
	}
	m.Register(now, namenode.Node{ID: "dn", IP: "10.0.0.1"}, volumes(false, false)[1:], 2)
	m.Report(now, "dn", 2, "", nil, true)
	if m.Complete() {
		t.Error("without the disk")
	}
}
