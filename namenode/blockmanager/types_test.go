package blockmanager

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// shelf is nodes with a disk and an SSD each, and what lies there.
type shelf struct {
	m   *Manager
	now time.Time
	has map[namenode.NodeID]namenode.StorageType // of the block, by node
	// lacks are the types that nodes have no volume of.
	lacks map[namenode.NodeID]namenode.StorageType
	// sent is what was copied from one node to another, and moved what was inside of one.
	sent, moved int
}

var shelfBlock = metadata.Block{ID: 1, Generation: 7, Length: 10}

func (s *shelf) volume(n namenode.NodeID, t namenode.StorageType) namenode.VolumeID {
	return namenode.VolumeID(fmt.Sprintf("%s-%v", n, t))
}

func newShelf(policy uint8, want int, nodes ...string) *shelf {
	s := &shelf{m: New(Config{Seed: 1}), now: time.Unix(1e9, 0), has: map[namenode.NodeID]namenode.StorageType{}, lacks: map[namenode.NodeID]namenode.StorageType{}}
	for _, n := range nodes { // NAME or NAME=TYPE, and -TYPE if it has no volume of that
		n, lacks, without := strings.Cut(n, "-")
		name, kind, found := strings.Cut(n, "=")
		id := namenode.NodeID(name)
		if without {
			s.lacks[id] = namenode.ParseStorageType(lacks)
		}
		if found {
			s.has[id] = namenode.ParseStorageType(kind)
		} else {
			s.has[id] = 0
		}
		s.m.Register(s.now, namenode.Node{ID: id, IP: name, TransferPort: 1}, s.volumes(id), 1)
		s.report(id)
	}
	s.m.SetHorizon(100)
	s.m.Lead(s.now, 1)
	s.m.Put(s.now, Block{Block: shelfBlock, Replication: want, Policy: policy})
	return s
}

func (s *shelf) volumes(n namenode.NodeID) []namenode.Volume {
	var out []namenode.Volume
	for _, t := range []namenode.StorageType{namenode.Disk, namenode.SSD} {
		if s.lacks[n] == t {
			continue
		}
		out = append(out, namenode.Volume{ID: s.volume(n, t), Type: t, Capacity: 1 << 40, Remaining: 1 << 39})
	}
	return out
}

func (s *shelf) report(n namenode.NodeID) {
	for _, v := range s.volumes(n) {
		t := v.Type
		var rs []namenode.Replica
		if s.has[n] == t {
			rs = append(rs, namenode.Replica{Block: shelfBlock, State: namenode.Finalized})
		}
		s.m.Report(s.now, n, 1, s.volume(n, t), rs, false)
	}
	s.m.Report(s.now, n, 1, "", nil, true)
}

// settle has the nodes that beat obey for a while.
func (s *shelf) settle(silent ...namenode.NodeID) string {
	for range 200 {
		s.now = s.now.Add(time.Second)
		for id := range s.has {
			if !slices.Contains(silent, id) {
				s.m.Beat(s.now, id, s.volumes(id), 0)
			}
		}
		s.m.Tick(s.now)
		for id := range s.has {
			if slices.Contains(silent, id) {
				continue
			}
			o := s.m.Orders(s.now, id)
			if o.Report {
				s.m.Register(s.now, namenode.Node{ID: id, IP: string(id), TransferPort: 1}, s.volumes(id), 1)
				s.report(id)
			}
			for _, r := range o.Replicate {
				if r.Target.ID == id {
					s.moved++
				} else {
					s.sent++
				}
				s.has[r.Target.ID] = r.Type
				s.m.Changes(s.now, r.Target.ID, []namenode.Change{{Kind: namenode.Received, Block: shelfBlock, Volume: s.volume(r.Target.ID, r.Type)}})
			}
			for range o.Delete {
				t := s.has[id]
				s.has[id] = 0
				s.m.Changes(s.now, id, []namenode.Change{{Kind: namenode.Deleted, Block: shelfBlock, Volume: s.volume(id, t)}})
			}
		}
	}
	var out []string
	for id, t := range s.has {
		if t != 0 && !slices.Contains(silent, id) {
			out = append(out, t.String())
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestMendingKeepsToTheStoragePolicy(t *testing.T) {
	const hot, oneSSD, allSSD = 7, 10, 12
	for name, c := range map[string]struct {
		policy uint8
		want   int
		nodes  []string
		silent []namenode.NodeID
		types  string
	}{
		"the SSD is lost":            {oneSSD, 3, []string{"a=SSD", "b=DISK", "c=DISK", "d"}, []namenode.NodeID{"a"}, "DISK DISK SSD"},
		"a disk is lost":             {oneSSD, 3, []string{"a=SSD", "b=DISK", "c=DISK", "d"}, []namenode.NodeID{"b"}, "DISK DISK SSD"},
		"all lie on SSDs":            {allSSD, 3, []string{"a=SSD", "b=SSD", "c=SSD", "d"}, []namenode.NodeID{"c"}, "SSD SSD SSD"},
		"no policy":                  {0, 3, []string{"a=DISK", "b=DISK", "c=DISK", "d"}, []namenode.NodeID{"c"}, "DISK DISK DISK"},
		"the one on an SSD goes":     {hot, 2, []string{"a=DISK", "b=SSD", "c=DISK"}, nil, "DISK DISK"},
		"the second on an SSD goes":  {oneSSD, 2, []string{"a=DISK", "b=SSD", "c=SSD"}, nil, "DISK SSD"},
		"the one that is not an SSD": {allSSD, 2, []string{"a=DISK", "b=SSD", "c=SSD"}, nil, "SSD SSD"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(c.policy, c.want, c.nodes...)
			if got := s.settle(c.silent...); got != c.types {
				t.Fatalf("%q, want %q: %s", got, c.types, s.m.show(1))
			}
			s.m.check(t)
		})
	}
}
