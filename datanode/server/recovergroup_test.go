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
	whole := 0
	for range 50_000 {
		layout := stripe.Layout{Data: 1 + random.IntN(6), Parity: 1 + random.IntN(3), Cell: 1 + random.Int64N(10)}
		written := random.Int64N(4*layout.Stripe() + 1)
		finished := random.IntN(2) == 0
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
			offers = append(offers, unitOffer{offer{block: metadata.Block{Length: n}, state: state}, i})
		}
		if random.IntN(5) == 0 && len(offers) > 0 { // a datanode that left the pipeline has less
			o := offers[random.IntN(len(offers))]
			o.block.Length /= 2
			o.state = datanode.RWR
			if !finished {
				offers = append(offers, o)
			}
		}
		part, length := decideGroup(layout, offers)
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
	if whole < 1000 {
		t.Errorf("%d that were ended", whole)
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
	if len(n.commits) != 4 {
		t.Errorf("committed %v", n.commits[4:])
	}
}
