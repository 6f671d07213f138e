package server

import (
	"math/rand/v2"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// Whatever a writer leaves, what is kept are bytes that it has written, that can be computed of those that take part, and with parity that is of just them.
func TestDecideGroup(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(8, 9))
	whole, sure := 0, 0
	for range 50_000 {
		layout := stripe.Layout{Data: 1 + random.IntN(6), Parity: 1 + random.IntN(3), Cell: 1 + random.Int64N(10)}
		written := random.Int64N(4*layout.Stripe() + 1)
		finished := random.IntN(2) == 0
		known := int64(0) // of what is written, whole stripes or, in the end, all
		switch {
		case random.IntN(2) == 0:
		case finished:
			known = written
		default:
			known = random.Int64N(written/layout.Stripe()+1) * layout.Stripe()
		}
		var offers []unitOffer
		var found [stripe.MaxUnits]bool
		for i := range layout.Units() {
			if random.IntN(4) == 0 {
				continue
			}
			n := layout.UnitLength(written, i)
			state := datanode.Finalized
			switch {
			case !finished && i < layout.Data:
				n, state = n-random.Int64N(n+1)/3, datanode.RBW
			case !finished: // parity is written when a stripe is full, or when the group ends, as here perhaps
				if state = datanode.RWR; random.IntN(2) == 0 {
					n = layout.UnitLength(written/layout.Stripe()*layout.Stripe(), i)
				}
				n -= random.Int64N(n+1) / 3
			case n == 0: // some clients do not make those
				continue
			}
			found[i] = true
			offers = append(offers, unitOffer{offer{block: metadata.Block{Length: n}, state: state}, i, 0})
		}
		if random.IntN(5) == 0 && len(offers) > 0 { // a datanode that left the pipeline has less
			o := offers[random.IntN(len(offers))]
			o.block.Length /= 2
			o.state = datanode.RWR
			if !finished {
				offers = append(offers, o)
			}
		}
		told := known
		if len(offers) > 0 && random.IntN(2) == 0 { // an earlier recovery knew it
			offers[random.IntN(len(offers))].decided, told = known, 0
		}
		part, length := decideGroup(layout, told, offers)
		if length > written || length < 0 {
			t.Fatalf("%+v: %d bytes of %d written", layout, length, written)
		}
		var lengths []int64
		for i := range layout.Units() {
			n := int64(-1)
			for _, o := range offers {
				if o.unit == i {
					n = max(n, o.block.Length)
				}
			}
			lengths = append(lengths, n)
		}
		if safe := layout.Safe(lengths); length < safe-layout.Stripe() || length > safe && (!finished || length != written) {
			t.Fatalf("%+v: %d bytes of %d written, %d are safe", layout, length, written, safe)
		}
		have := 0
		for i := range layout.Data {
			if layout.UnitLength(length, i) == 0 {
				have++
			}
		}
		seen := map[int]bool{}
		for _, o := range part {
			if seen[o.unit] || o.block.Length < layout.UnitLength(length, o.unit) || o.unit >= layout.Data && length%layout.Stripe() != 0 && length != written {
				t.Fatalf("%+v: %d bytes, with %+v", layout, length, part)
			}
			seen[o.unit] = true
			have++
		}
		if length > 0 && have < layout.Data {
			t.Fatalf("%+v: %d bytes cannot be read of %+v", layout, length, part)
		}
		left := 0
		for i, n := range lengths {
			if part := layout.UnitLength(known, i); part == 0 || n >= part {
				left++
			}
		}
		if left >= layout.Data && length < known {
			t.Fatalf("%+v: %d bytes of %d that are known to be there", layout, length, known)
		}
		if known > 0 && left >= layout.Data {
			sure++
		}
		all, parity := true, false
		for i := range layout.Units() {
			if i < layout.Data {
				all = all && (found[i] || layout.UnitLength(written, i) == 0 && written <= layout.Cell-1)
			} else {
				parity = parity || found[i]
			}
		}
		if finished && all && parity && written > 0 {
			if whole++; length != written {
				t.Fatalf("%+v: %d bytes of %d that were ended", layout, length, written)
			}
		}
	}
	if whole < 1000 || sure < 1000 {
		t.Errorf("%d that were ended, %d of which is known how long they are", whole, sure)
	}
}

// A group whose writer died is recovered to its whole stripes, and one that it had ended with all bytes; one without a stripe goes, but not while too few internal
// blocks are found for that to be sure.
func TestGroupRecoveryThroughThePrimary(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	var nodes []*Server
	for range 5 {
		d, _ := startDatanode(t, credentials, t.TempDir(), n)
		nodes = append(nodes, d)
	}
	waitReady(t, nodes...)
	const cell = 1 << 20
	p, units := stripes(t, "RS-3-2-1024k", 9*cell+cell/2)
	order := func(id metadata.BlockID, recovery uint64) *pb.Recover {
		o := &pb.Recover{Block: &pb.Block{Id: int64(id), Generation: 1001}, RecoveryId: recovery, Erasure: uint32(p.ID)}
		for i, d := range nodes {
			o.Replicas, o.Units = append(o.Replicas, d.id), append(o.Units, uint32(i))
		}
		return o
	}
	commit := func(d *Server, o *pb.Recover) *pb.CommitBlockSynchronizationRequest {
		t.Helper()
		n.mu.Lock()
		before := len(n.commits)
		n.mu.Unlock()
		n.order(d, &pb.Orders{Recover: []*pb.Recover{o}})
		within(t, "the result is committed", func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return len(n.commits) > before
		})
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.commits[len(n.commits)-1]
	}

	// Two whole stripes; block 1 is behind by a cell, and the second parity block by two; nobody else has more of the third stripe.
	id := metadata.FirstGroupID
	for i, length := range []int{3 * cell, cell, 2*cell + 500, 2 * cell, 0} {
		putOpen(t, nodes[i], int64(id.Internal(i)), 1001, string(units[i][:length]))
	}
	m := commit(nodes[3], order(id, 1010))
	if m.Length != 6*cell || m.RecoveryId != 1010 || !m.Close || m.DeleteBlock || len(m.Locations) != 3 || len(m.Units) != 3 || m.Block.Id != int64(id) {
		t.Fatalf("committed %v", m)
	}
	for i, unit := range m.Units {
		b := metadata.Block{ID: id.Internal(int(unit)), Generation: 1010, Length: 2 * cell}
		if m.Locations[i].Uuid != nodes[unit].UUID() || contents(t, nodes[unit], b) != string(units[unit][:2*cell]) {
			t.Errorf("internal block %d is not what was kept", unit)
		}
	}

	// All was ended, and only the namenode not told.
	id += metadata.GroupStep
	for i := range nodes {
		if i != 4 {
			put(t, nodes[i], int64(id.Internal(i)), 1001, string(units[i]))
		}
	}
	if m = commit(nodes[0], order(id, 1011)); m.Length != 9*cell+cell/2 || len(m.Units) != 4 {
		t.Fatalf("committed %v", m)
	}
	if contents(t, nodes[0], metadata.Block{ID: id, Generation: 1011, Length: int64(len(units[0]))}) != string(units[0]) {
		t.Error("internal block 0 is not what was kept")
	}

	// Less than a stripe.
	id += metadata.GroupStep
	for i, length := range []int{cell, 700, 0} {
		putOpen(t, nodes[i], int64(id.Internal(i)), 1001, string(units[i][:length]))
	}
	if m = commit(nodes[0], order(id, 1012)); !m.DeleteBlock || m.Length != 0 || len(m.Units) != 3 {
		t.Fatalf("committed %v", m)
	}

	// Others may have more while somebody is silent, as long as there is patience.
	id += metadata.GroupStep
	for i, length := range []int{2 * cell, 2 * cell} {
		putOpen(t, nodes[i], int64(id.Internal(i)), 1001, string(units[i][:length]))
	}
	o := order(id, 1013)
	o.Missing = []string{"dead"}
	nodes[0].recoverBlock(t.Context(), o)
	n.mu.Lock()
	commits := len(n.commits)
	n.mu.Unlock()
	if commits != 3 {
		t.Errorf("%d commits: two internal blocks decided, and there may be a third", commits)
	}
	o = order(id, 1014)
	o.Missing, o.PatienceOver = []string{"dead"}, true
	if m = commit(nodes[0], o); !m.DeleteBlock || len(m.Units) != 2 {
		t.Errorf("committed %v", m)
	}

	// The namenode was told how long the group is, and then a datanode that had ended its internal block of the generation before was given up: what is left can be read.
	id += metadata.GroupStep
	_, short := stripes(t, "RS-3-2-1024k", 2*cell+cell/2)
	for i, generation := range []int64{1001, 1000, 1001, 1001, 1001} {
		put(t, nodes[i], int64(id.Internal(i)), generation, string(short[i]))
	}
	o = order(id, 1016)
	o.Block.Length = 2*cell + cell/2
	if m = commit(nodes[3], o); m.DeleteBlock || m.Length != 2*cell+cell/2 || len(m.Units) != 4 {
		t.Fatalf("committed %v", m)
	}
	for i, unit := range m.Units {
		b := metadata.Block{ID: id.Internal(int(unit)), Generation: 1016, Length: int64(len(short[unit]))}
		if m.Locations[i].Uuid != nodes[unit].UUID() || contents(t, nodes[unit], b) != string(short[unit]) {
			t.Errorf("internal block %d is not what was kept", unit)
		}
	}

	// Nothing is cut to less than was acknowledged, while there is patience.
	id += metadata.GroupStep
	for i := range 3 {
		putOpen(t, nodes[i], int64(id.Internal(i)), 1001, string(units[i][:cell+10]))
	}
	o = order(id, 1017)
	o.Block.Length = 6 * cell
	nodes[0].recoverBlock(t.Context(), o)
	for i := range 3 {
		if r, ok := nodes[i].store.Replica(id.Internal(i)); !ok || r.Block.Length != cell+10 || r.Block.Generation != 1001 {
			t.Errorf("internal block %d is %v", i, r)
		}
	}
	o.RecoveryId, o.PatienceOver = 1018, true
	if m = commit(nodes[0], o); m.DeleteBlock || m.Length != 3*cell || len(m.Units) != 3 {
		t.Fatalf("committed %v", m)
	}

	// What is no order.
	for _, change := range []func(o *pb.Recover){
		func(o *pb.Recover) { o.Units = o.Units[1:] },
		func(o *pb.Recover) { o.Units[0] = 5 },
		func(o *pb.Recover) { o.Erasure = 0 },
		func(o *pb.Recover) { o.Truncate = 1 },
		func(o *pb.Recover) { o.Block.Id++ },
	} {
		o := order(id, 1015)
		change(o)
		nodes[0].recoverBlock(t.Context(), o)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.commits) != 6 {
		t.Errorf("committed %v", n.commits[6:])
	}
}

// A recovery that has cut the internal blocks, and whose result was not taken, is repeated with the same result, though what it followed from was cut with them.
func TestRepeatedGroupRecoveryKeepsItsLength(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	var nodes []*Server
	for range 4 {
		d, _ := startDatanode(t, credentials, t.TempDir(), n)
		nodes = append(nodes, d)
	}
	waitReady(t, nodes...)
	const cell = 1 << 20
	p, units := stripes(t, "RS-3-2-1024k", 6*cell+500)
	id := metadata.FirstGroupID
	numbers := []int{0, 1, 3, 4} // the third data block is lost
	for i, unit := range numbers {
		data := units[unit]
		if unit != 0 { // who has the first one has begun a third stripe
			data = data[:2*cell]
		}
		putOpen(t, nodes[i], int64(id.Internal(unit)), 1001, string(data))
	}
	for try := range 4 {
		o := &pb.Recover{Block: &pb.Block{Id: int64(id), Generation: 1001}, RecoveryId: uint64(1010 + try), Erasure: uint32(p.ID)}
		for i, unit := range numbers {
			o.Replicas, o.Units = append(o.Replicas, nodes[i].id), append(o.Units, uint32(unit))
		}
		n.mu.Lock()
		n.refuses, n.commits = try < 3, nil
		n.mu.Unlock()
		nodes[try].recoverBlock(t.Context(), o)
		n.mu.Lock()
		if len(n.commits) != 1 || n.commits[0].Length != 6*cell || n.commits[0].DeleteBlock || len(n.commits[0].Units) != 4 {
			t.Errorf("try %d: committed %v", try, n.commits)
		}
		n.mu.Unlock()
	}
	for i, unit := range numbers {
		if contents(t, nodes[i], metadata.Block{ID: id.Internal(unit), Generation: 1013, Length: 2 * cell}) != string(units[unit][:2*cell]) {
			t.Errorf("internal block %d is not what was kept", unit)
		}
	}
}

// Decisions are remembered of the internal blocks that were cut last, by their generation.
func TestDecisionsAreBounded(t *testing.T) {
	var d decisions
	for i := range metadata.BlockID(mostDecisions + 10) {
		d.note(i, decision{7, int64(i) + 1})
		d.note(i, decision{8, int64(i) + 1})
	}
	for i := range metadata.BlockID(mostDecisions + 10) {
		want := int64(i) + 1
		if i < 10 {
			want = 0
		}
		if got := d.of(metadata.Block{ID: i, Generation: 8}); got != want {
			t.Fatalf("block %d: %d, want %d", i, got, want)
		}
		if got := d.of(metadata.Block{ID: i, Generation: 7}); got != 0 {
			t.Fatalf("block %d before it was cut again: %d", i, got)
		}
	}
	if len(d.all) != mostDecisions || len(d.order) != mostDecisions {
		t.Errorf("%d and %d are remembered", len(d.all), len(d.order))
	}
}
