package blockmanager

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/placement"
)

const warm, hot, cold, oneSSD, allSSD = 5, 7, 2, 10, 12

func TestReplicasAreBroughtToWhereALaterPolicyWantsThem(t *testing.T) {
	for name, c := range map[string]struct {
		before, after uint8
		want          int
		nodes         []string
		types         string
		moved, sent   int
		stuck         int64
	}{
		"inside of nodes":                 {hot, allSSD, 3, []string{"a=DISK", "b=DISK", "c=DISK", "d"}, "SSD SSD SSD", 3, 0, 0},
		"back":                            {allSSD, hot, 3, []string{"a=SSD", "b=SSD", "c=SSD"}, "DISK DISK DISK", 3, 0, 0},
		"one":                             {hot, oneSSD, 3, []string{"a=DISK", "b=DISK", "c=DISK"}, "DISK DISK SSD", 1, 0, 0},
		"one is enough":                   {allSSD, oneSSD, 3, []string{"a=SSD", "b=SSD", "c=SSD"}, "DISK DISK SSD", 2, 0, 0},
		"nothing to do":                   {hot, hot, 2, []string{"a=DISK", "b=DISK"}, "DISK DISK", 0, 0, 0},
		"to other nodes":                  {hot, allSSD, 2, []string{"a=DISK-SSD", "b=DISK-SSD", "c", "d"}, "SSD SSD", 0, 2, 0},
		"to another node where it has to": {hot, allSSD, 2, []string{"a=DISK-SSD", "b=DISK", "c"}, "SSD SSD", 1, 1, 0},
		"no room for one":                 {hot, allSSD, 2, []string{"a=DISK-SSD", "b=DISK"}, "DISK SSD", 1, 0, 1},
		"no such volume at all":           {hot, cold, 2, []string{"a=DISK", "b=DISK"}, "DISK DISK", 0, 0, 1},
		"too few replicas":                {hot, allSSD, 3, []string{"a=DISK", "b=DISK"}, "SSD SSD", 2, 0, 0},
		"by the fallback":                 {hot, warm, 2, []string{"a=DISK", "b=DISK"}, "DISK DISK", 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(c.before, c.want, c.nodes...)
			before := s.settle()
			s.m.Put(s.now, Block{Block: shelfBlock, Replication: c.want, Policy: c.after})
			s.moved, s.sent = 0, 0
			if got := s.settle(); got != before {
				t.Fatalf("%q became %q before anybody asked for it", before, got)
			}
			s.m.Tier(shelfBlock.ID)
			if got := s.settle(); got != c.types {
				t.Fatalf("%q, want %q: %s", got, c.types, s.m.show(1))
			}
			s.m.check(t)
			got := s.m.Tiered()
			want := Tiered{Replicas: int64(c.moved + c.sent), Moved: int64(c.moved+c.sent) * shelfBlock.Length, Stuck: c.stuck}
			if got != want || s.moved != c.moved || s.sent != c.sent {
				t.Fatalf("%+v, want %+v; %d moved, %d sent", got, want, s.moved, s.sent)
			}
		})
	}
}

// A report that was made before a replica moved, and comes after the word that it has, does not take it back.
func TestReportsOfWhereAReplicaWasAreLate(t *testing.T) {
	s := newShelf(allSSD, 1, "a=DISK")
	v := s.volumes("a")
	s.m.Report(s.now, "a", 2, v[0].ID, nil, false)
	s.m.Changes(s.now, "a", []namenode.Change{{Kind: namenode.Received, Block: shelfBlock, Volume: v[1].ID}})
	s.m.Report(s.now, "a", 2, v[0].ID, []namenode.Replica{{Block: shelfBlock, State: namenode.Finalized}}, false)
	s.m.Report(s.now, "a", 2, v[1].ID, nil, true)
	if at, _ := s.m.Locate(shelfBlock.ID, ""); len(at) != 1 || at[0].Type != namenode.SSD {
		t.Fatalf("%+v", at)
	}
	s.m.check(t)
}

// depot is nodes with volumes of three types that obey, sometimes late or not at all, in property tests.
type depot struct {
	m     *Manager
	now   time.Time
	nodes []*store
	term  uint64
	want  map[metadata.BlockID]int
	code  map[metadata.BlockID]uint8
}

type store struct {
	id     namenode.NodeID
	rack   string
	types  []namenode.StorageType
	has    map[metadata.BlockID]namenode.StorageType
	silent bool
	wire   []namenode.Change // not delivered yet
}

func (d *depot) volumes(s *store) (out []namenode.Volume) {
	for _, t := range s.types {
		out = append(out, namenode.Volume{ID: namenode.VolumeID(fmt.Sprint(s.id, t)), Type: t, Capacity: 1 << 40, Remaining: 1 << 39})
	}
	return out
}

func (d *depot) report(s *store) {
	s.wire = nil
	d.m.Register(d.now, namenode.Node{ID: s.id, IP: string(s.id), Rack: s.rack, TransferPort: 1}, d.volumes(s), 1)
	for _, v := range d.volumes(s) {
		var rs []namenode.Replica
		for id, t := range s.has {
			if t == v.Type {
				rs = append(rs, namenode.Replica{Block: depotBlock(id), State: namenode.Finalized})
			}
		}
		d.m.Report(d.now, s.id, uint64(d.now.UnixNano()), v.ID, rs, false)
	}
	d.m.Report(d.now, s.id, uint64(d.now.UnixNano()), "", nil, true)
}

func depotBlock(id metadata.BlockID) metadata.Block {
	if id.Striped() {
		return metadata.Block{ID: id, Generation: 1, Length: depotCell}
	}
	return metadata.Block{ID: id, Generation: 1, Length: 10}
}

// depotCell is the length of each internal block of a group that has one row of stripes.
const depotCell = 1 << 20

// step lets a time pass. lose says which of the orders get lost.
func (d *depot) step(by time.Duration, lose func() bool) {
	d.now = d.now.Add(by)
	for _, s := range d.nodes {
		if s.silent {
			continue
		}
		if !d.m.Beat(d.now, s.id, d.volumes(s), 0) {
			d.report(s)
		}
	}
	d.m.Tick(d.now)
	for _, s := range d.nodes {
		if s.silent {
			continue
		}
		o := d.m.Orders(d.now, s.id)
		if o.Report {
			d.report(s)
		}
		for _, r := range o.Replicate {
			if _, has := s.has[r.Block.ID]; !has || lose() {
				continue
			}
			at := d.nodes[slices.IndexFunc(d.nodes, func(x *store) bool { return x.id == r.Target.ID })]
			if _, there := at.has[r.Block.ID]; at != s && (there || at.silent) {
				continue
			}
			kind := r.Type
			if !slices.Contains(at.types, kind) {
				kind = at.types[0]
			}
			at.has[r.Block.ID] = kind
			at.wire = append(at.wire, namenode.Change{Kind: namenode.Received, Block: r.Block, Volume: namenode.VolumeID(fmt.Sprint(at.id, kind))})
		}
		for _, b := range o.Delete {
			if t, has := s.has[b.ID]; has && !lose() {
				delete(s.has, b.ID)
				s.wire = append(s.wire, namenode.Change{Kind: namenode.Deleted, Block: b, Volume: namenode.VolumeID(fmt.Sprint(s.id, t))})
			}
		}
	}
	for _, s := range d.nodes {
		if !s.silent && !lose() {
			wire := s.wire
			s.wire = nil
			d.m.Changes(d.now, s.id, wire)
		}
	}
}

// kinds are the types of the volumes on which a block's replicas are, in fact.
func (d *depot) kinds(id metadata.BlockID) (out []namenode.StorageType) {
	for _, s := range d.nodes {
		if t, ok := s.has[id]; ok {
			out = append(out, t)
		}
	}
	slices.Sort(out)
	return out
}

// racks are those on which a block's replicas are, in fact.
func (d *depot) racks(id metadata.BlockID) map[string]bool {
	out := map[string]bool{}
	for _, s := range d.nodes {
		if _, ok := s.has[id]; ok {
			out[s.rack] = true
		}
	}
	return out
}

// A replica that nobody waits for comes while another one of the block is being moved, and that move comes to nothing: the one too many goes, and not the one that was to be moved, which
// is alone on its rack.
func TestASurplusThatComesDuringAMoveGoes(t *testing.T) {
	d := &depot{m: New(Config{Seed: 1}), now: time.Unix(1e9, 0)}
	add := func(id namenode.NodeID, rack string, kind namenode.StorageType, has bool) *store {
		s := &store{id: id, rack: rack, types: []namenode.StorageType{kind}, has: map[metadata.BlockID]namenode.StorageType{}}
		if has {
			s.has[1] = kind
		}
		d.nodes = append(d.nodes, s)
		return s
	}
	add("a", "/r0", namenode.Disk, true)
	add("b", "/r0", namenode.Disk, true)
	moved := add("c", "/r1", namenode.SSD, true)
	late := add("d", "/r0", namenode.Disk, false)
	target := add("e", "/r1", namenode.Disk, false)
	d.m.SetHorizon(100)
	d.m.Put(d.now, Block{Block: depotBlock(1), Replication: 3})
	for _, s := range d.nodes {
		d.report(s)
	}
	d.m.Lead(d.now, 1)
	d.m.Tier(1)
	target.silent = true // from the order on
	d.m.Tick(d.now)
	if b := d.m.blocks.get(1); d.m.pending(b) != 1 || b.more.yields != moved.id {
		t.Fatalf("it is not being moved: %s", d.m.show(1))
	}
	late.has[1] = namenode.Disk // as a leader before had ordered
	d.m.Changes(d.now, late.id, []namenode.Change{{Kind: namenode.Received, Block: depotBlock(1), Volume: d.volumes(late)[0].ID}})
	obey := func() bool { return false }
	for range 100 {
		d.step(2*time.Second, obey)
	}
	if _, there := moved.has[1]; !there || len(d.kinds(1)) != 3 {
		t.Fatalf("%d replicas, that alone on its rack: %t; %s", len(d.kinds(1)), there, d.m.show(1))
	}
	target.silent = false
	d.m.Tier(1)
	for range 100 {
		d.step(2*time.Second, obey)
	}
	d.m.check(t)
	if _, there := target.has[1]; !there || len(d.kinds(1)) != 3 || d.m.Tiered().Waiting != 0 {
		t.Fatalf("%d replicas, where it belongs: %t; %s; %+v", len(d.kinds(1)), there, d.m.show(1), d.m.Tiered())
	}
}

// newGroupDepot is a depot with a group whose internal blocks lie on disks of as many nodes on some racks, and nodes with other volumes.
func newGroupDepot(seed uint64, policy string, disks []string, others map[namenode.StorageType][]string) (d *depot, group metadata.Block) {
	d = &depot{m: New(Config{Seed: seed}), now: time.Unix(1e9, 0)}
	code, _ := metadata.ErasurePolicyNamed(policy)
	group = metadata.Block{ID: metadata.FirstGroupID, Generation: 1, Length: int64(code.Layout.Data) * depotCell}
	for i := range code.Layout.Units() {
		d.nodes = append(d.nodes, &store{
			id: namenode.NodeID(fmt.Sprintf("d%d", i)), rack: disks[i], types: []namenode.StorageType{namenode.Disk},
			has: map[metadata.BlockID]namenode.StorageType{group.ID.Internal(i): namenode.Disk},
		})
	}
	for _, kind := range []namenode.StorageType{namenode.Disk, namenode.SSD} {
		for i, rack := range others[kind] {
			d.nodes = append(d.nodes, &store{id: namenode.NodeID(fmt.Sprintf("%v%d", kind, i)), rack: rack, types: []namenode.StorageType{kind}, has: map[metadata.BlockID]namenode.StorageType{}})
		}
	}
	d.m.SetGroupHorizon(group.ID + metadata.GroupStep)
	d.m.Put(d.now, Block{Block: group, Erasure: code.ID, Replication: 3, Policy: allSSD})
	for _, s := range d.nodes {
		d.report(s)
	}
	d.term++
	d.m.Lead(d.now, d.term)
	d.m.Tier(group.ID)
	return d, group
}

// lies is on how many racks a group lies, with how many internal blocks each, and how many of them are on SSDs. once: each lies on one node.
func (d *depot) lies(group metadata.BlockID, units int) (on map[string]int, fast int, once bool) {
	on, once = map[string]int{}, true
	for i := range units {
		n := 0
		for _, s := range d.nodes {
			if kind, there := s.has[group.Internal(i)]; there {
				on[s.rack]++
				n++
				if kind == namenode.SSD {
					fast++
				}
			}
		}
		once = once && n == 1
	}
	return on, fast, once
}

// The internal blocks of a group stay as evenly on their racks when they move as they can, and those go to another rack, as in HDFS, that have no other way to a volume that the policy
// wants. No rack is lost: whose move would cost it stays.
func TestInternalBlocksThatMoveKeepTheirRacks(t *testing.T) {
	r := func(racks string) (out []string) {
		for _, c := range racks {
			out = append(out, "/r"+string(c))
		}
		return out
	}
	for name, c := range map[string]struct {
		policy      string
		disks, ssds string
		want        map[string]int
		fast        int
		stuck       int64
	}{
		"room on each rack":            {"RS-3-2-1024k", "01010", "00011", map[string]int{"/r0": 3, "/r1": 2}, 5, 0},
		"one of them has too little":   {"RS-3-2-1024k", "01010", "000010", map[string]int{"/r0": 4, "/r1": 1}, 5, 0},
		"room on one rack":             {"RS-3-2-1024k", "01010", "000000", map[string]int{"/r0": 4, "/r1": 1}, 4, 1},
		"evenly, and room on one rack": {"RS-6-3-1024k", "012012012", "0000000000", map[string]int{"/r0": 7, "/r1": 1, "/r2": 1}, 7, 2},
		"room on a new rack":           {"RS-3-2-1024k", "01234", "99999", nil, 1, 4}, // which of them goes is chance
		"each alone on its rack":       {"RS-3-2-1024k", "01234", "44444", map[string]int{"/r0": 1, "/r1": 1, "/r2": 1, "/r3": 1, "/r4": 1}, 1, 4},
	} {
		for seed := range uint64(10) {
			d, group := newGroupDepot(seed, c.policy, r(c.disks), map[namenode.StorageType][]string{namenode.SSD: r(c.ssds)})
			for range 200 {
				d.step(2*time.Second, func() bool { return false })
			}
			d.m.check(t)
			on, fast, once := d.lies(group.ID, len(c.disks))
			if c.want == nil && (len(on) != 5 || on["/r9"] != 1) || c.want != nil && !maps.Equal(on, c.want) {
				t.Errorf("%s: on %v, want %v", name, on, c.want)
			}
			if fast != c.fast || !once || d.m.Tiered().Stuck != c.stuck {
				t.Errorf("%s: %d on SSDs, want %d; %+v, want %d stuck", name, fast, c.fast, d.m.Tiered(), c.stuck)
			}
		}
	}
}

// Wherever a group's internal blocks and the volumes that it wants are, and whatever orders and words get lost: no rack is lost, none is without all of its internal blocks, and in the end those alone are on the
// wrong volumes that cannot leave without the group losing a rack.
func TestMovingInternalBlocksKeepsRacks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rack := func(what string) string { return fmt.Sprintf("/r%d", rapid.IntRange(0, 3).Draw(t, what)) }
		racks := func(what string, n int) (out []string) {
			for range n {
				out = append(out, rack(what))
			}
			return out
		}
		policy := rapid.SampledFrom([]string{"RS-3-2-1024k", "RS-6-3-1024k", "XOR-2-1-1024k"}).Draw(t, "policy")
		code, _ := metadata.ErasurePolicyNamed(policy)
		units := code.Layout.Units()
		d, group := newGroupDepot(rapid.Uint64().Draw(t, "seed"), policy, racks("disk", units), map[namenode.StorageType][]string{
			namenode.Disk: racks("empty disk", rapid.IntRange(0, 2).Draw(t, "empty disks")), namenode.SSD: racks("ssd", rapid.IntRange(0, units+2).Draw(t, "ssds")),
		})
		on, _, _ := d.lies(group.ID, units)
		least := len(on)
		keeps := func() {
			t.Helper()
			on, _, once := d.lies(group.ID, units)
			for i := range units {
				if len(d.kinds(group.ID.Internal(i))) == 0 {
					t.Fatalf("internal block %d is gone", i)
				}
			}
			if len(on) < least {
				t.Fatalf("the group was on %d racks and is on %v", least, on)
			}
			if once {
				least = len(on)
			}
		}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			if rapid.IntRange(0, 15).Draw(t, "what") == 0 {
				d.m.Follow()
				d.term++
				d.m.Lead(d.now, d.term)
				d.m.Tier(group.ID)
			}
			d.step(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds"))*time.Second, func() bool { return rapid.IntRange(0, 9).Draw(t, "lost") == 0 })
			keeps()
		}
		for range 3 { // what is given up meanwhile is asked for again, as a person would
			for range 150 {
				d.step(2*time.Second, func() bool { return false })
				keeps()
			}
			d.m.Tier(group.ID)
		}
		d.m.check(t)
		on, _, once := d.lies(group.ID, units)
		if !once {
			t.Fatalf("%v: not each of %d internal blocks lies on one node", on, units)
		}
		for _, from := range d.nodes {
			if len(from.has) == 0 || from.types[0] == namenode.SSD {
				continue
			}
			for _, to := range d.nodes {
				if to.types[0] == namenode.SSD && len(to.has) == 0 && (to.rack == from.rack || on[from.rack] > 1 || on[to.rack] == 0) {
					t.Fatalf("%s of %s keeps what could go to %s of %s; %v; %+v", from.id, from.rack, to.id, to.rack, on, d.m.Tiered())
				}
			}
		}
	})
}

// Whatever policies, silences, lost orders and new leaders come: no block is ever left with fewer replicas than it should have and had, or on one rack when it was on more, and in the end all lie as their policies
// say.
func TestMovingBetweenTypesKeepsReplicas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &depot{m: New(Config{Seed: rapid.Uint64().Draw(t, "seed")}), now: time.Unix(1e9, 0), want: map[metadata.BlockID]int{}, code: map[metadata.BlockID]uint8{}}
		all := []namenode.StorageType{namenode.Disk, namenode.SSD, namenode.Archive}
		racks := rapid.IntRange(2, 3).Draw(t, "racks")
		for i := range rapid.IntRange(4, 7).Draw(t, "nodes") {
			s := &store{id: namenode.NodeID(fmt.Sprintf("n%d", i)), rack: fmt.Sprintf("/r%d", i%racks), types: all, has: map[metadata.BlockID]namenode.StorageType{}}
			if i >= 4 { // the first have all that is needed
				s.types = all[rapid.IntRange(0, 2).Draw(t, "type"):][:1]
			}
			d.nodes = append(d.nodes, s)
		}
		blocks := metadata.BlockID(rapid.IntRange(1, 8).Draw(t, "blocks"))
		for id := range blocks {
			id++
			d.want[id] = rapid.IntRange(1, 3).Draw(t, "replicas")
			first := rapid.IntRange(0, len(d.nodes)-1).Draw(t, "first")
			for i := range d.want[id] {
				s := d.nodes[(first+i)%len(d.nodes)]
				s.has[id] = s.types[0]
			}
			d.m.Put(d.now, Block{Block: depotBlock(id), Replication: d.want[id]})
		}
		d.m.SetHorizon(100)
		for _, s := range d.nodes {
			d.report(s)
		}
		d.term++
		d.m.Lead(d.now, d.term)
		lossy := func() bool { return rapid.IntRange(0, 9).Draw(t, "lost") == 0 }
		tier := func() {
			for id := range blocks {
				d.m.Tier(id + 1)
			}
		}
		wide := map[metadata.BlockID]bool{}
		keeps := func() {
			t.Helper()
			for id, want := range d.want {
				if n := len(d.kinds(id)); n < want {
					t.Fatalf("block %d has %d replicas, should have %d", id, n, want)
				}
				racks := len(d.racks(id))
				if racks == 1 && wide[id] {
					t.Fatalf("block %d was on two racks, and is on one: %s", id, d.m.show(id))
				}
				wide[id] = racks > 1 && want > 1
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 0:
				id := metadata.BlockID(rapid.Int64Range(1, int64(blocks)).Draw(t, "block"))
				d.code[id] = rapid.SampledFrom([]uint8{cold, warm, hot, oneSSD, allSSD}).Draw(t, "policy")
				d.m.Put(d.now, Block{Block: depotBlock(id), Replication: d.want[id], Policy: d.code[id]})
				d.m.Tier(id)
			case 1:
				s := rapid.SampledFrom(d.nodes).Draw(t, "node")
				s.silent = !s.silent
			case 2:
				d.m.Follow()
				d.term++
				d.m.Lead(d.now, d.term)
				tier()
			default:
				d.step(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds"))*time.Second, lossy)
			}
			keeps()
		}
		for _, s := range d.nodes {
			s.silent = false
		}
		for range 2 { // what is given up meanwhile is asked for again, as a person would
			for range 150 {
				d.step(2*time.Second, func() bool { return false })
				keeps()
			}
			tier()
		}
		for range 150 {
			d.step(2*time.Second, func() bool { return false })
			keeps()
		}
		d.m.check(t)
		for id, want := range d.want {
			over, need := placement.Difference(namenode.StoragePolicyByID(d.code[id]), want, d.kinds(id))
			if len(over)+len(need) > 0 {
				t.Fatalf("block %d, policy %d, wants %d replicas and lies on %v: %s; %+v", id, d.code[id], want, d.kinds(id), d.m.show(id), d.m.Tiered())
			}
		}
		if x := d.m.Tiered(); x.Waiting != 0 || x.Moving != 0 {
			t.Fatalf("at the end: %+v", x)
		}
	})
}
