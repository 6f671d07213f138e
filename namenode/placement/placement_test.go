package placement

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

const mib = 1 << 20

func node(i int, rack string) *Candidate {
	return &Candidate{
		Node: &namenode.Node{
			ID: namenode.NodeID(fmt.Sprintf("dn%d", i)), IP: fmt.Sprintf("10.0.0.%d", i), Host: fmt.Sprintf("h%d", i),
			Rack: rack, TransferPort: 9866,
		},
		Volumes: []namenode.Volume{{ID: namenode.VolumeID(fmt.Sprintf("v%d", i)), Type: namenode.Disk, Capacity: 1 << 30, Remaining: 1 << 30}},
	}
}

func nodes(racks ...string) []*Candidate {
	var out []*Candidate
	for i, r := range racks {
		out = append(out, node(i+1, r))
	}
	return out
}

func ids(ls []namenode.Location) []string {
	var out []string
	for _, l := range ls {
		out = append(out, string(l.Node.ID))
	}
	return out
}

func TestWritersOwnNodeComesFirst(t *testing.T) {
	ns := nodes("/a", "/a", "/a", "/a")
	for seed := range uint64(50) {
		for _, writer := range []string{"10.0.0.3", "h3", "dn3"} {
			c := Choose(ns, Request{Want: 3, BlockSize: mib, Writer: writer, Seed: seed})
			if got := ids(c.Targets); len(got) != 3 || got[0] != "dn3" {
				t.Fatalf("writer %s, seed %d: got %v, want dn3 first of 3", writer, seed, got)
			}
		}
	}
}

func TestNoLocalWriteAvoidsTheWritersNodeWhileOthersAreLeft(t *testing.T) {
	ns := nodes("/a", "/a", "/a")
	for seed := range uint64(50) {
		c := Choose(ns, Request{Want: 2, BlockSize: mib, Writer: "10.0.0.1", NoLocal: true, Seed: seed})
		for _, id := range ids(c.Targets) {
			if id == "dn1" {
				t.Fatalf("seed %d: the writer's node was chosen: %v", seed, ids(c.Targets))
			}
		}
	}
	c := Choose(ns, Request{Want: 3, BlockSize: mib, Writer: "10.0.0.1", NoLocal: true})
	if len(c.Targets) != 3 {
		t.Fatalf("got %v, want all three", ids(c.Targets))
	}
}

func TestSecondReplicaOnAnotherRackThirdBesideIt(t *testing.T) {
	ns := nodes("/a", "/a", "/a", "/b", "/b", "/b")
	for seed := range uint64(100) {
		c := Choose(ns, Request{Want: 3, BlockSize: mib, Seed: seed})
		r := [3]string{c.Targets[0].Node.Rack, c.Targets[1].Node.Rack, c.Targets[2].Node.Rack}
		if r[0] == r[1] || r[1] != r[2] {
			t.Fatalf("seed %d: racks %v, want x y y", seed, r)
		}
	}
}

func TestReReplicationSpreadsOverRacks(t *testing.T) {
	ns := nodes("/a", "/a", "/a", "/b")
	for seed := range uint64(50) {
		c := Choose(ns, Request{Want: 1, BlockSize: mib, Have: []*namenode.Node{ns[0].Node, ns[1].Node}, Seed: seed})
		if got := ids(c.Targets); len(got) != 1 || got[0] != "dn4" {
			t.Fatalf("got %v, want dn4: both replicas are on one rack", got)
		}
	}
}

func TestFavouredNodesAreTriedFirst(t *testing.T) {
	ns := nodes("/a", "/a", "/a", "/a", "/a")
	for _, name := range []string{"dn4", "10.0.0.4", "h4", "10.0.0.4:9866", "h4:9866"} {
		c := Choose(ns, Request{Want: 3, BlockSize: mib, Writer: "10.0.0.1", Favoured: []string{name}})
		if got := ids(c.Targets); len(got) != 3 || got[0] != "dn4" {
			t.Fatalf("favoured %s: got %v", name, got)
		}
	}
}

func TestExcludedDeadAndFullNodesAreNotChosen(t *testing.T) {
	ns := nodes("/a", "/a", "/a", "/a", "/a", "/a")
	ns[1].Dead = true
	ns[2].Volumes[0].Remaining = mib - 1
	ns[3].Volumes[0].Failed = true
	ns[4].Scheduled = 1 << 30
	c := Choose(ns, Request{Want: 3, BlockSize: mib, Exclude: []namenode.NodeID{"dn1"}})
	if got := ids(c.Targets); len(got) != 1 || got[0] != "dn6" {
		t.Fatalf("got %v, want only dn6", got)
	}
	if c.Live != 5 || c.Excluded != 1 || c.Reasons.NoSpace != 3 {
		t.Fatalf("live %d excluded %d reasons %+v", c.Live, c.Excluded, c.Reasons)
	}
}

func TestFewerThanWantedIsAnAnswer(t *testing.T) {
	c := Choose(nodes("/a"), Request{Want: 3, BlockSize: mib})
	if len(c.Targets) != 1 || c.Err("/f") != nil {
		t.Fatalf("got %v, %v", ids(c.Targets), c.Err("/f"))
	}
}

func TestNoTargetIsHDFSsSentence(t *testing.T) {
	c := Choose(nodes("/a", "/a"), Request{Want: 3, BlockSize: mib, Exclude: []namenode.NodeID{"dn1", "dn2"}})
	err := c.Err("/d/f")
	const want = "File /d/f could only be written to 0 of the 1 minReplication nodes. There are 2 datanode(s) running and 2 node(s) are excluded in this operation."
	if err == nil || err.Error() != want || !errors.Is(err, metadata.ErrIO) {
		t.Fatalf("got %v\nwant %s", err, want)
	}
	c = Choose(nil, Request{Want: 1, BlockSize: mib})
	const none = "File /f could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s) running and no node(s) are excluded in this operation."
	if err := c.Err("/f"); err == nil || err.Error() != none {
		t.Fatalf("got %v\nwant %s", err, none)
	}
}

func TestBusyNodesOnlyWhenNothingElseIsLeft(t *testing.T) {
	ns := nodes("/a", "/a", "/a", "/a")
	ns[0].Xceivers = 100
	for seed := range uint64(50) {
		for _, id := range ids(Choose(ns, Request{Want: 3, BlockSize: mib, Seed: seed}).Targets) {
			if id == "dn1" {
				t.Fatalf("seed %d: busy node chosen", seed)
			}
		}
	}
	if c := Choose(ns, Request{Want: 4, BlockSize: mib}); len(c.Targets) != 4 {
		t.Fatalf("got %v, want all four", ids(c.Targets))
	}
}

func TestSilentNodesOnlyRatherThanNone(t *testing.T) {
	ns := nodes("/a", "/a", "/a")
	ns[0].Stale, ns[1].Stale = true, true
	if got := ids(Choose(ns, Request{Want: 3, BlockSize: mib}).Targets); len(got) != 1 || got[0] != "dn3" {
		t.Fatalf("got %v, want only the awake dn3", got)
	}
	ns[2].Stale = true
	if got := Choose(ns, Request{Want: 3, BlockSize: mib}).Targets; len(got) != 1 {
		t.Fatalf("got %v, want one silent node rather than none", ids(got))
	}
}

// A slow volume is passed over for another one of its node, and a node with no other for another node, whatever the rules prefer; where there is none it is used, also by copies, before a silent node is.
func TestSlowVolumesOnlyWhenNothingElseIsLeft(t *testing.T) {
	for _, copies := range []bool{false, true} {
		ns := nodes("/a", "/a", "/b", "/b")
		ns[0].Volumes[0].Slow = true
		ns[1].Volumes[0].Slow = true
		ns[1].Volumes = append(ns[1].Volumes, namenode.Volume{ID: "quick", Type: namenode.Disk, Remaining: 1 << 29})
		for seed := range uint64(50) {
			c := Choose(ns, Request{Want: 3, BlockSize: mib, Writer: "dn1", Favoured: []string{"dn1"}, Copy: copies, Seed: seed})
			for _, l := range c.Targets {
				if l.Node.ID == "dn1" || l.Volume == "v2" {
					t.Fatalf("seed %d: slow volume %s chosen", seed, l.Volume)
				}
			}
			if len(c.Targets) != 3 {
				t.Fatalf("seed %d: got %v", seed, ids(c.Targets))
			}
		}
		if c := Choose(ns, Request{Want: 4, BlockSize: mib, Copy: copies}); len(c.Targets) != 4 {
			t.Errorf("got %v, want all four", ids(c.Targets))
		}
		ns[1].Xceivers = 100 // busy rather than slow
		if got := ids(Choose(ns, Request{Want: 3, BlockSize: mib, Copy: copies, Exclude: []namenode.NodeID{"dn3"}}).Targets); len(got) != 3 || got[2] != "dn1" {
			t.Errorf("got %v, want the slow one last", got)
		}
		// Of the types that the policy wants a slow one is taken before those that it falls back to.
		ns = nodes("/a", "/a")
		for _, n := range ns {
			n.Volumes = append(n.Volumes, namenode.Volume{ID: "ssd", Type: namenode.SSD, Remaining: 1 << 29, Slow: true})
		}
		if c := Choose(ns, Request{Want: 1, BlockSize: mib, Policy: namenode.StoragePolicyByID(12), Copy: copies}); len(c.Targets) != 1 || c.Targets[0].Type != namenode.SSD {
			t.Errorf("got %+v", c.Targets)
		}
	}
	ns := nodes("/a", "/a")
	ns[0].Stale, ns[1].Volumes[0].Slow = true, true
	if got := ids(Choose(ns, Request{Want: 1, BlockSize: mib}).Targets); len(got) != 1 || got[0] != "dn2" {
		t.Errorf("got %v, want the slow one rather than the silent one", got)
	}
}

func TestTheRoomiestVolumeThatFits(t *testing.T) {
	ns := nodes("/a")
	ns[0].Volumes = []namenode.Volume{
		{ID: "small", Type: namenode.Disk, Remaining: mib},
		{ID: "broken", Type: namenode.SSD, Remaining: 1 << 40, Failed: true},
		{ID: "big", Type: namenode.SSD, Remaining: 10 * mib},
	}
	c := Choose(ns, Request{Want: 1, BlockSize: mib})
	if l := c.Targets[0]; l.Volume != "big" || l.Type != namenode.SSD {
		t.Fatalf("got %+v", l)
	}
}

func TestChoiceIsFairAndReplayable(t *testing.T) {
	ns := nodes("/a", "/a", "/a", "/a", "/a")
	count := map[string]int{}
	for seed := range uint64(5000) {
		a := Choose(ns, Request{Want: 3, BlockSize: mib, Seed: seed})
		b := Choose(ns, Request{Want: 3, BlockSize: mib, Seed: seed})
		if fmt.Sprint(ids(a.Targets)) != fmt.Sprint(ids(b.Targets)) {
			t.Fatalf("seed %d: %v and %v", seed, ids(a.Targets), ids(b.Targets))
		}
		for _, id := range ids(a.Targets) {
			count[id]++
		}
	}
	for id, n := range count {
		if n < 2700 || n > 3300 {
			t.Errorf("%s chosen %d times of 5000, want about 3000", id, n)
		}
	}
}

// Whatever the cluster and the request, a choice keeps its hard rules and is as long as those rules allow.
func TestHardRulesHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 12).Draw(t, "nodes")
		var ns []*Candidate
		for i := range n {
			c := node(i+1, fmt.Sprintf("/r%d", rapid.IntRange(0, 2).Draw(t, "rack")))
			c.Dead = rapid.Bool().Draw(t, "dead")
			c.Stale = rapid.Bool().Draw(t, "stale")
			c.Xceivers = rapid.IntRange(0, 50).Draw(t, "load")
			c.Volumes[0].Remaining = rapid.Int64Range(0, 3*mib).Draw(t, "remaining")
			ns = append(ns, c)
		}
		r := Request{
			Want: rapid.IntRange(0, 5).Draw(t, "want"), BlockSize: mib, Seed: rapid.Uint64().Draw(t, "seed"),
			NoLocal: rapid.Bool().Draw(t, "nolocal"), Writer: rapid.SampledFrom([]string{"", "10.0.0.1", "h2"}).Draw(t, "writer"),
		}
		usable, silent := 0, 0
		for _, c := range ns {
			ex := rapid.IntRange(0, 3).Draw(t, "exclude") == 0
			if ex {
				r.Exclude = append(r.Exclude, c.Node.ID)
			}
			if ex || c.Dead || c.Volumes[0].Remaining < mib {
				continue
			}
			if c.Stale {
				silent++
			} else {
				usable++
			}
		}
		got := Choose(ns, r)
		seen := map[namenode.NodeID]bool{}
		for _, l := range got.Targets {
			if seen[l.Node.ID] {
				t.Fatalf("%s twice", l.Node.ID)
			}
			seen[l.Node.ID] = true
			for _, c := range ns {
				if c.Node.ID == l.Node.ID && (c.Dead || c.Volumes[0].Remaining < mib) {
					t.Fatalf("unusable node %s chosen", c.Node.ID)
				}
			}
			for _, e := range r.Exclude {
				if e == l.Node.ID {
					t.Fatalf("excluded node %s chosen", e)
				}
			}
		}
		want := min(r.Want, usable)
		if usable == 0 && silent > 0 {
			want = min(r.Want, 1)
		}
		if len(got.Targets) != want {
			t.Fatalf("%d targets, want %d (usable %d, silent %d)", len(got.Targets), want, usable, silent)
		}
	})
}

func BenchmarkChoose(b *testing.B) {
	for _, n := range []int{4, 100, 3000} {
		var ns []*Candidate
		for i := range n {
			ns = append(ns, node(i, fmt.Sprintf("/r%d", i/40)))
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				Choose(ns, Request{Want: 3, BlockSize: mib, Seed: uint64(i)})
			}
		})
	}
}
