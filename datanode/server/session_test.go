package server

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// A replica that was received before anybody heard that it was being received is announced once; the order of a block's
// other changes stays. Only what a leader has to know is urgent.
func TestChangesOfAReplicaAreToldOnceAndInOrder(t *testing.T) {
	n, err := newSession(&Server{cfg: Config{Credentials: securitytest.Credentials(t)}}, "127.0.0.1:1", 1)
	check(t, err)
	defer n.conn.Close()
	change := func(kind datanode.ChangeKind, id int, volume string) {
		n.enqueue(wireChange(datanode.Change{Kind: kind, Block: metadata.Block{ID: metadata.BlockID(id), Generation: 1001}, Volume: volume}))
	}
	urgent := func() bool {
		select {
		case <-n.pending:
			return true
		default:
			return false
		}
	}
	change(datanode.Receiving, 9, "a")
	if len(n.queue) > 0 {
		t.Fatal("a change is told where nobody has registered")
	}

	n.registered = true
	change(datanode.Receiving, 1, "a")
	change(datanode.Receiving, 2, "a")
	change(datanode.Received, 1, "a")
	change(datanode.Received, 2, "b") // of another volume
	change(datanode.Deleted, 1, "a")
	change(datanode.Received, 1, "a") // again, after it was deleted
	if urgent() {
		t.Error("changes are urgent for a namenode that does not lead")
	}
	n.orders = &pb.Orders{Leader: true}
	change(datanode.Receiving, 3, "a")
	if urgent() {
		t.Error("that a replica is being received is urgent")
	}
	change(datanode.Deleted, 3, "a")
	if !urgent() {
		t.Error("a change is not urgent for the leader")
	}
	change(datanode.Received, 3, "a")

	var got []string
	for _, c := range n.queue {
		got = append(got, fmt.Sprintf("%v %d %s", c.Kind, c.Block.Id, c.VolumeId))
	}
	want := []string{
		"RECEIVED 1 a", "RECEIVING 2 a", "RECEIVED 2 b", "DELETED 1 a", "RECEIVED 1 a",
		"RECEIVING 3 a", "DELETED 3 a", "RECEIVED 3 a",
	}
	if !slices.Equal(got, want) {
		t.Errorf("told is %q, want %q", got, want)
	}
}
