package blockmanager

import (
	"slices"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Every block of a node on volumes of a type is told of once, wherever that begins, and what comes or goes meanwhile spoils nothing.
func TestHosted(t *testing.T) {
	m, now := New(Config{Seed: 1}), time.Unix(1e9, 0)
	m.SetHorizon(1 << 40)
	m.Lead(now, 1)
	volumes := []namenode.Volume{{ID: "d1", Type: namenode.Disk, Capacity: 1 << 40, Remaining: 1 << 40}, {ID: "s", Type: namenode.SSD, Capacity: 1 << 40, Remaining: 1 << 40}, {ID: "d2", Type: namenode.Disk, Capacity: 1 << 40, Remaining: 1 << 40}, {ID: "empty", Type: namenode.Archive}}
	m.Register(now, namenode.Node{ID: "n", IP: "ip", TransferPort: 1}, volumes, 1)
	var disks, all []metadata.BlockID
	for i := range 3 {
		var list []namenode.Replica
		for k := range 1500 {
			b := metadata.Block{ID: metadata.BlockID(1 + i + 3*k), Generation: 1, Length: int64(k % 7)}
			m.Put(now, Block{Block: b, Replication: 1})
			list = append(list, namenode.Replica{Block: b, State: namenode.Finalized})
			all = append(all, b.ID)
			if i != 1 {
				disks = append(disks, b.ID)
			}
		}
		m.Report(now, "n", 1, volumes[i].ID, list, i == 2)
	}
	first := map[metadata.BlockID]bool{}
	for range 30 {
		for kind, want := range map[namenode.StorageType][]metadata.BlockID{0: all, namenode.Disk: disks, namenode.Archive: nil} {
			got := slices.Collect(m.Hosted("n", kind))
			if kind == namenode.Disk {
				first[got[0]] = true
			}
			slices.Sort(got)
			want = slices.Sorted(slices.Values(want))
			if !slices.Equal(got, want) {
				t.Fatalf("%d blocks on volumes of type %d, want %d", len(got), kind, len(want))
			}
		}
	}
	if len(first) < 10 {
		t.Errorf("it begins at %v only", first)
	}
	for range m.Hosted("nobody", 0) {
		t.Fatal("nobody has a block")
	}
	seen := 0
	for id := range m.Hosted("n", 0) {
		m.Changes(now, "n", []namenode.Change{{Kind: namenode.Deleted, Block: metadata.Block{ID: id, Generation: 1}}})
		seen++
	}
	if seen < len(all)-idsAtOnce || seen > len(all) {
		t.Errorf("%d blocks while each one went", seen)
	}
}

func TestMovable(t *testing.T) {
	s := newScales("/r1", "/r1", "/r2")
	for id := range metadata.BlockID(4) {
		s.m.Put(s.now, Block{Block: scaleReplica(id + 1), Replication: 2, Open: id == 1})
		s.has["n0"][id+1], s.has["n1"][id+1] = true, id != 2
	}
	delete(s.has["n1"], 3)
	s.report()
	for _, v := range []struct {
		what  string
		id    metadata.BlockID
		node  namenode.NodeID
		least int64
		want  bool
	}{
		{"sound", 1, "n0", scaleBlock, true},
		{"too small", 1, "n0", scaleBlock + 1, false},
		{"not there", 1, "n2", 1, false},
		{"being written", 2, "n0", 1, false},
		{"a replica is missing", 3, "n0", 1, false},
		{"no block", 9, "n0", 1, false},
		{"no node", 1, "n9", 1, false},
	} {
		b, ok := s.m.Movable(v.id, v.node, v.least)
		if ok != v.want || ok && (b.Block != scaleReplica(v.id) || len(b.Locations) != 2) {
			t.Errorf("%s: %v, %v", v.what, b, ok)
		}
	}
}

// Of a group the whole is told, whichever internal block the node has; one with a loss is not moved.
func TestMovableGroup(t *testing.T) {
	a := newArray(t, "RS-3-2-1024k", 6, 6)
	g := a.group(0, 4<<20)
	a.write(g, 0)
	a.run(2 * time.Minute) // the pipeline counts for nothing any more
	unit := a.unit(g, 1)
	b, ok := a.m.Movable(unit.ID, "n01", g.Length)
	if !ok || b.Block != g || b.Erasure != a.code.ID || !slices.Equal(b.Units, []byte{0, 1, 2, 3, 4}) || len(b.Locations) != 5 || b.Locations[1].Node.ID != "n01" {
		t.Errorf("%+v, %t", b, ok)
	}
	if _, ok := a.m.Movable(unit.ID, "n01", g.Length+1); ok {
		t.Error("a small one is moved")
	}
	a.m.Changes(a.now, "n04", []namenode.Change{{Kind: namenode.Deleted, Block: a.unit(g, 4)}})
	if b, ok := a.m.Movable(unit.ID, "n01", 1); ok {
		t.Errorf("%+v is moved, and lacks a block", b)
	}
}
