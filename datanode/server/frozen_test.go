package server

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// frozen is a datanode as others see one that is stopped: it takes connections and says nothing.
func frozen(t *testing.T) *pb.DatanodeID {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { l.Close() })
	return &pb.DatanodeID{Uuid: "frozen", Ip: "127.0.0.1", TransferPort: uint32(l.Addr().(*net.TCPAddr).Port)}
}

func (n *fakeNamenode) told(refusal string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.refusals, refusal)
}

// What goes to several datanodes gets to those that take it, while another one is waited for, and the namenode hears at once which has not taken it: the next beat was not due.
func TestATargetThatIsFrozenHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	source, _ := runDatanode(t, func() Config {
		c := configOf(t, credentials, t.TempDir(), n)
		c.Heartbeat = time.Hour
		return c
	}())
	good, _ := startDatanode(t, credentials, t.TempDir(), n)
	waitReady(t, source, good)
	stopped := frozen(t)
	b := put(t, source, 7, 1001, strings.Repeat("data", 100_000))
	n.order(source, &pb.Orders{Replicate: []*pb.Replicate{{Block: wireBlock(b), Targets: []*pb.DatanodeID{stopped, good.id}}}})
	within(t, "the other one has it", func() bool { return n.heard(good, "RECEIVED 7_1001") })
	if n.told(source.UUID() + " 7_1001 frozen") {
		t.Error("it has waited for the one that is frozen")
	}
	within(t, "the namenode hears of the one that is frozen", func() bool { return n.told(source.UUID() + " 7_1001 frozen") })
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.refusals) != 1 {
		t.Errorf("heard %v", n.refusals)
	}
}

// Of several internal blocks those are made whose datanodes take them, long before the disk of another one is given up, and the namenode hears which one has not taken its own.
func TestComputingLeavesATargetWhoseDiskHangs(t *testing.T) {
	t.Parallel()
	p := newPair(t, 45*time.Second, nil)
	d, _ := startDatanode(t, p.cfg.Credentials, t.TempDir(), p.n)
	waitReady(t, d)
	const length = 3 << 20
	policy, units := stripes(t, "RS-3-2-1024k", length)
	group := metadata.Block{ID: metadata.FirstGroupID, Generation: 1001, Length: length}
	order := &pb.Rebuild{Group: wireBlock(group), Erasure: uint32(policy.ID)}
	for i := range 3 {
		put(t, d, int64(group.ID.Internal(i)), 1001, string(units[i]))
		order.Sources = append(order.Sources, &pb.Part{Unit: uint32(i), Node: d.id})
	}
	order.Targets = []*pb.Part{{Unit: 3, Node: p.id, Type: uint32(datanode.Disk)}, {Unit: 4, Node: d.id}}
	p.hang("write")
	p.n.order(d, &pb.Orders{Rebuild: []*pb.Rebuild{order}})
	lost, made := group.ID.Internal(3), metadata.Block{ID: group.ID.Internal(4), Generation: 1001, Length: policy.Layout.UnitLength(length, 4)}
	within(t, "the other one is made", func() bool { return p.n.heard(d, fmt.Sprintf("RECEIVED %d_1001", made.ID)) })
	if p.stuck.Load() == 0 || p.store.Volumes()[0].Failed != nil {
		t.Error("nothing hangs, or the disk was given up first")
	}
	if contents(t, d, made) != string(units[4]) {
		t.Error("computed wrong")
	}
	within(t, "the namenode hears of the one that hangs", func() bool { return p.n.told(fmt.Sprintf("%s %d_1001 %s", d.UUID(), lost, p.UUID())) })
	p.free()
	within(t, "no half of it is left", func() bool { // all of it may be in the buffers on the way
		r, there := p.store.Replica(lost)
		return !there || r.State == datanode.Finalized && r.Block.Length == int64(len(units[3]))
	})
}
