package server

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/erasure"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// stripes are the internal blocks of a group of random bytes.
func stripes(t *testing.T, policy string, length int64) (metadata.ErasurePolicy, [][]byte) {
	t.Helper()
	p, _ := metadata.ErasurePolicyNamed(policy)
	coder, err := erasure.New(p)
	check(t, err)
	data := make([]byte, length)
	_, _ = rand.NewChaCha8([32]byte{byte(length)}).Read(data)
	units := make([][]byte, p.Layout.Units())
	for piece := range p.Layout.Pieces(0, length) {
		units[piece.Unit] = append(units[piece.Unit], data[piece.Offset:piece.Offset+piece.Length]...)
	}
	for i := p.Layout.Data; i < len(units); i++ {
		units[i] = make([]byte, p.Layout.UnitLength(length, i))
	}
	check(t, coder.Encode(units[:p.Layout.Data], units[p.Layout.Data:]))
	return p, units
}

// contents are the bytes of a finalized replica, compared with its checksums.
func contents(t *testing.T, d *Server, b metadata.Block) string {
	t.Helper()
	check(t, d.store.Verify(t.Context(), b.ID, datanode.VerifyOptions{}))
	r, err := d.store.Open(b)
	check(t, err)
	defer r.Close()
	if have := r.Replica(); have.Block != b || have.State != datanode.Finalized {
		t.Fatalf("replica is %v, want %v", have, b)
	}
	out := make([]byte, b.Length)
	if _, err := r.ReadAt(out, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return string(out)
}

// Internal blocks of a group are stored, reported and served as any replicas; of those that are left a datanode computes the lost ones, for itself and for another, although
// one of its sources is damaged and another does not answer.
func TestLostInternalBlocksAreComputed(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	var nodes []*Server
	var dirs []string
	for range 8 {
		dirs = append(dirs, t.TempDir())
		d, _ := startDatanode(t, credentials, dirs[len(dirs)-1], n)
		nodes = append(nodes, d)
	}
	waitReady(t, nodes...)
	const length = 6<<20 + 2<<20 + 12345
	p, units := stripes(t, "RS-6-3-1024k", length)
	group := metadata.Block{ID: metadata.FirstGroupID + 7*metadata.GroupStep, Generation: 1001, Length: length}
	unit := func(i int) metadata.Block {
		return metadata.Block{ID: group.ID.Internal(i), Generation: 1001, Length: p.Layout.UnitLength(length, i)}
	}
	order := &pb.Rebuild{Group: wireBlock(group), Erasure: uint32(p.ID)}
	for i, at := range []int{-1, 0, 1, 2, 3, 4, 5, -1, 6} {
		if at < 0 {
			continue
		}
		if b := put(t, nodes[at], int64(unit(i).ID), 1001, string(units[i])); b != unit(i) {
			t.Fatalf("stored %v", b)
		}
		order.Sources = append(order.Sources, &pb.Part{Unit: uint32(i), Node: nodes[at].id})
		within(t, "reported", func() bool { return n.heard(nodes[at], fmt.Sprintf("RECEIVED %d_1001", unit(i).ID)) })
	}
	flip(t, dirs[2], fmt.Sprintf("blk_%d", unit(3).ID), 700_000)
	// 0 and 7 are lost, and 3 turns out to be: six are left, one of which lies on the node that is to get one of them.
	order.Targets = []*pb.Part{{Unit: 0, Node: nodes[7].id, Type: uint32(datanode.SSD)}, {Unit: 7, Node: nodes[0].id}}
	within(t, "both are there", func() bool {
		n.order(nodes[7], &pb.Orders{Rebuild: []*pb.Rebuild{order}})
		return n.heard(nodes[7], fmt.Sprintf("RECEIVED %d_1001", unit(0).ID)) && n.heard(nodes[0], fmt.Sprintf("RECEIVED %d_1001", unit(7).ID))
	})
	if contents(t, nodes[7], unit(0)) != string(units[0]) || contents(t, nodes[0], unit(7)) != string(units[7]) {
		t.Error("computed wrong")
	}
	if r, _ := nodes[7].store.Replica(unit(0).ID); nodes[7].store.Volumes()[1].ID != r.Volume {
		t.Error("it does not lie on a volume of the type that was ordered")
	}
	within(t, "its datanode finds the damaged one", func() bool { return n.heard(nodes[2], fmt.Sprintf("CORRUPT %d_1001", unit(3).ID)) })
	within(t, "it is counted", func() bool { return nodes[7].rebuilt.blocks.Load() == 2 && nodes[7].rebuilt.read.Load() > 0 })

	// The damaged one is computed where it lies, with a source that is down in front.
	down := &pb.DatanodeID{Uuid: "down", Ip: "127.0.0.1", TransferPort: 1}
	order = &pb.Rebuild{ // another one: some of the first may be under way
		Group: wireBlock(group), Erasure: uint32(p.ID),
		Sources: slices.Concat([]*pb.Part{{Unit: 0, Node: down}}, order.Sources, []*pb.Part{{Unit: 7, Node: nodes[0].id}}),
		Targets: []*pb.Part{{Unit: 3, Node: nodes[2].id}},
	}
	within(t, "it is there again", func() bool {
		n.order(nodes[2], &pb.Orders{Rebuild: []*pb.Rebuild{order}})
		return n.heard(nodes[2], fmt.Sprintf("RECEIVED %d_1001", unit(3).ID)) && nodes[2].rebuilt.blocks.Load() > 0
	})
	if contents(t, nodes[2], unit(3)) != string(units[3]) {
		t.Error("computed wrong")
	}
	// An order that is repeated, because the namenode has lost track of what it asks for, finds everything there, and the namenode hears of it again.
	before, told := nodes[2].rebuilt.tasks.Load(), n.times(nodes[2], fmt.Sprintf("RECEIVED %d_1001", unit(3).ID))
	within(t, "another order", func() bool {
		n.order(nodes[2], &pb.Orders{Rebuild: []*pb.Rebuild{order}})
		return nodes[2].rebuilt.tasks.Load() > before
	})
	within(t, "it is announced again", func() bool { return n.times(nodes[2], fmt.Sprintf("RECEIVED %d_1001", unit(3).ID)) > told })
	if n := n.times(nodes[2], fmt.Sprintf("CORRUPT %d_1001", unit(3).ID)); n != 1 {
		t.Errorf("%d words of damage", n)
	}
	if failed := nodes[2].rebuilt.failed.Load(); failed != 0 {
		t.Errorf("%d failed", failed)
	}
}

// A group is made of a replicated block. What a target does not take is told, and does not keep the others from being made; who repeats the order with another target gets the rest.
func TestGroupIsMadeOfAReplicatedBlock(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	var nodes []*Server
	for range 4 {
		d, _ := startDatanode(t, credentials, t.TempDir(), n)
		nodes = append(nodes, d)
	}
	waitReady(t, nodes...)
	const length = 1<<20 + 777
	p, units := stripes(t, "RS-3-2-1024k", length)
	tail := put(t, nodes[0], 5, 1001, string(units[0])+string(units[1]))
	group := metadata.Block{ID: metadata.FirstGroupID, Generation: 1002, Length: length}
	unit := func(i int) metadata.Block {
		return metadata.Block{ID: group.ID.Internal(i), Generation: 1002, Length: p.Layout.UnitLength(length, i)}
	}
	down := &pb.DatanodeID{Uuid: "down", Ip: "127.0.0.1", TransferPort: 1}
	order := &pb.Rebuild{
		Group: wireBlock(group), Erasure: uint32(p.ID), Tail: wireBlock(tail), TailAt: []*pb.DatanodeID{nodes[0].id},
		Targets: []*pb.Part{{Unit: 0, Node: nodes[0].id}, {Unit: 1, Node: nodes[1].id}, {Unit: 3, Node: nodes[2].id}, {Unit: 4, Node: down}},
	}
	there := func(at map[int]*Server) {
		t.Helper()
		for i, d := range at {
			within(t, fmt.Sprintf("internal block %d is reported", i), func() bool { return n.heard(d, fmt.Sprintf("RECEIVED %d_1002", unit(i).ID)) })
			if contents(t, d, unit(i)) != string(units[i]) {
				t.Errorf("internal block %d is wrong", i)
			}
		}
	}
	within(t, "what was not taken is told", func() bool {
		n.order(nodes[0], &pb.Orders{Rebuild: []*pb.Rebuild{order}})
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.Contains(n.refusals, fmt.Sprintf("%s %d_1002 down", nodes[0].UUID(), unit(4).ID))
	})
	made := map[int]*Server{0: nodes[0], 1: nodes[1], 3: nodes[2]}
	there(made)
	again := &pb.Rebuild{Group: order.Group, Erasure: order.Erasure, Tail: order.Tail, TailAt: order.TailAt, Targets: slices.Clone(order.Targets)}
	again.Targets[3] = &pb.Part{Unit: 4, Node: nodes[3].id}
	within(t, "the rest is made", func() bool {
		n.order(nodes[0], &pb.Orders{Rebuild: []*pb.Rebuild{again}})
		return n.heard(nodes[3], fmt.Sprintf("RECEIVED %d_1002", unit(4).ID))
	})
	made[4] = nodes[3]
	there(made)
}

// Files of an internal block that are gone behind the datanode's back are noticed when it is to be computed, and it is made again; one that is there is announced.
func TestInternalBlockWhoseFilesAreGoneIsMadeAgain(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	dir := t.TempDir()
	d, _ := startDatanode(t, credentials, dir, n)
	waitReady(t, d)
	const length = 3 << 20
	p, units := stripes(t, "RS-3-2-1024k", length)
	group := metadata.Block{ID: metadata.FirstGroupID, Generation: 1001, Length: length}
	order := &pb.Rebuild{Group: wireBlock(group), Erasure: uint32(p.ID), Targets: []*pb.Part{{Unit: 4, Node: d.id}}}
	for i := range 3 {
		put(t, d, int64(group.ID.Internal(i)), 1001, string(units[i]))
		order.Sources = append(order.Sources, &pb.Part{Unit: uint32(i), Node: d.id})
	}
	made := metadata.Block{ID: group.ID.Internal(4), Generation: 1001, Length: p.Layout.UnitLength(length, 4)}
	for i, want := range [][]int{{4}, nil, {4}, nil} {
		if i == 2 {
			gone(t, dir, fmt.Sprintf("blk_%d", made.ID))
		}
		told := n.times(d, fmt.Sprintf("RECEIVED %d_1001", made.ID))
		if got, err := d.rebuildUnits(t.Context(), group, order, new(progress)); err != nil || !slices.Equal(got, want) {
			t.Fatalf("order %d: %v was computed (%v), want %v", i, got, err, want)
		}
		if contents(t, d, made) != string(units[4]) {
			t.Errorf("order %d: computed wrong", i)
		}
		within(t, "it is announced", func() bool { return n.times(d, fmt.Sprintf("RECEIVED %d_1001", made.ID)) > told })
	}
}

// A source that takes a connection and says nothing is left for the others.
func TestComputingLeavesASilentSource(t *testing.T) {
	p := newPair(t, 24*time.Hour, nil)
	p.sourceTime = 100 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	var held []net.Conn
	var taking sync.WaitGroup
	taking.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			held = append(held, c)
		}
	})
	t.Cleanup(func() {
		l.Close()
		taking.Wait()
		for _, c := range held {
			c.Close()
		}
	})
	const length = 3 << 20
	policy, units := stripes(t, "RS-3-2-1024k", length)
	group := metadata.Block{ID: metadata.FirstGroupID, Generation: 1001, Length: length}
	made := metadata.Block{ID: group.ID.Internal(4), Generation: 1001, Length: policy.Layout.UnitLength(length, 4)}
	silent := &pb.DatanodeID{Uuid: "silent", Ip: "127.0.0.1", TransferPort: uint32(l.Addr().(*net.TCPAddr).Port)}
	order := &pb.Rebuild{
		Group: wireBlock(group), Erasure: uint32(policy.ID),
		Sources: []*pb.Part{{Unit: 0, Node: silent}}, Targets: []*pb.Part{{Unit: 4, Node: p.id, Type: uint32(datanode.SSD)}},
	}
	for i := 1; i < 4; i++ {
		put(t, p.Server, int64(group.ID.Internal(i)), 1001, string(units[i]))
		order.Sources = append(order.Sources, &pb.Part{Unit: uint32(i), Node: p.id})
	}
	within(t, "it is computed", func() bool {
		p.n.order(p.Server, &pb.Orders{Rebuild: []*pb.Rebuild{order}})
		return p.n.heard(p.Server, fmt.Sprintf("RECEIVED %d_1001", made.ID))
	})
	if contents(t, p.Server, made) != string(units[4]) {
		t.Error("computed wrong")
	}
	if n := p.rebuilt.failed.Load(); n != 0 {
		t.Errorf("%d orders have failed", n)
	}
}

// What cannot be computed leaves nothing behind, and is counted.
func TestInternalBlocksThatCannotBeComputed(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	var nodes []*Server
	for range 3 {
		d, _ := startDatanode(t, credentials, t.TempDir(), n)
		nodes = append(nodes, d)
	}
	waitReady(t, nodes...)
	p, units := stripes(t, "RS-3-2-1024k", 4<<20)
	group := metadata.Block{ID: metadata.FirstGroupID, Generation: 1001, Length: 4 << 20}
	put(t, nodes[0], int64(group.ID), 1001, string(units[0]))
	put(t, nodes[1], int64(group.ID)+1, 1001, string(units[1]))
	part := func(unit uint32, d *Server) *pb.Part { return &pb.Part{Unit: unit, Node: d.id} }
	good := []*pb.Part{part(0, nodes[0]), part(1, nodes[1])}
	for name, order := range map[string]*pb.Rebuild{
		"too few":        {Group: wireBlock(group), Erasure: uint32(p.ID), Sources: good, Targets: []*pb.Part{part(2, nodes[2])}},
		"not there":      {Group: wireBlock(group), Erasure: uint32(p.ID), Sources: append(slices.Clone(good), part(3, nodes[0])), Targets: []*pb.Part{part(2, nodes[2]), part(4, nodes[1])}},
		"no policy":      {Group: wireBlock(group), Erasure: 99, Sources: good, Targets: []*pb.Part{part(2, nodes[2])}},
		"legacy":         {Group: wireBlock(group), Erasure: 3, Sources: good, Targets: []*pb.Part{part(2, nodes[2])}},
		"no such block":  {Group: wireBlock(group), Erasure: uint32(p.ID), Sources: good, Targets: []*pb.Part{part(1<<31, nodes[2])}},
		"no such source": {Group: wireBlock(group), Erasure: uint32(p.ID), Sources: []*pb.Part{part(77, nodes[0])}, Targets: []*pb.Part{part(2, nodes[2])}},
		"too many":       {Group: wireBlock(group), Erasure: uint32(p.ID), Sources: good, Targets: []*pb.Part{part(2, nodes[2]), part(3, nodes[2]), part(4, nodes[2])}},
		"no group":       {Group: &pb.Block{Id: 7, Generation: 1}, Erasure: uint32(p.ID), Sources: good, Targets: []*pb.Part{part(2, nodes[2])}},
		"nothing":        {},
	} {
		nodes[2].rebuild(t.Context(), order, new(progress))
		if nodes[2].rebuilt.failed.Swap(0) != 1 {
			t.Errorf("%s: it did not fail", name)
		}
	}
	left := func() (left []datanode.Replica) {
		for _, d := range nodes {
			for _, v := range d.store.Volumes() {
				d.store.Each(v.ID, func(r datanode.Replica) bool {
					if r.Block.ID > group.ID+1 {
						left = append(left, r)
					}
					return true
				})
			}
		}
		return left
	}
	for deadline := time.Now().Add(time.Minute); len(left()) > 0; time.Sleep(time.Millisecond) { // who was to have one hears of the end later
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", left())
		}
	}
}

// gone removes the files whose names begin so.
func gone(t *testing.T, dir, prefix string) {
	t.Helper()
	found := false
	check(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() != prefix && !strings.HasPrefix(e.Name(), prefix+"_") {
			return err
		}
		found = true
		return os.Remove(path)
	}))
	if !found {
		t.Fatalf("no file %s", prefix)
	}
}

// flip changes a byte of a file whose name begins so.
func flip(t *testing.T, dir, prefix string, at int64) {
	t.Helper()
	found := false
	check(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() != prefix && !strings.HasPrefix(e.Name(), prefix+"_") || strings.HasSuffix(path, ".meta") {
			return err
		}
		found = true
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, at); err != nil {
			return err
		}
		b[0] ^= 0x40
		_, err = f.WriteAt(b, at)
		return err
	}))
	if !found {
		t.Fatalf("there is no %s", prefix)
	}
}
