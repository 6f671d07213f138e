package server

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// Whoever says of more replicas that they are damaged than anybody is heard with does not fill the log with it.
func TestReadersThatAreNotHeardDoNotFillTheLog(t *testing.T) {
	var logged lockedBuffer
	c := newCluster(t, 1, func(conf *Config) { conf.Logger = slog.New(slog.NewTextHandler(&logged, nil)) })
	dn := c.datanode("dn1")
	m := c.leader()
	w := m.begin(t, "/f", "writer", 1)
	const more, heard = 300, 256
	var said []namenode.LocatedBlock
	at := namenode.Location{Node: &namenode.Node{ID: "dn1"}}
	for range more {
		if _, err := w.addBlock(); err != nil {
			t.Fatal(err)
		}
		b := w.block(10)
		dn.has(b, pb.ReplicaState_FINALIZED)
		said = append(said, namenode.LocatedBlock{Block: b, Locations: slices.Repeat([]namenode.Location{at}, 10)})
	}
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatalf("complete: %t, %v", ok, err)
	}
	got := make(chan error, 1)
	m.ReportBad(metadata.Caller{User: "bob"}, said, func(err error) { got <- err })
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	text := logged.String()
	if n := strings.Count(text, "a reader says that a replica is corrupt"); n != heard {
		t.Errorf("bob was heard %d times, want %d", n, heard)
	}
	if n := strings.Count(text, "too many replicas are suspect"); n != 1 || !strings.Contains(text, "replicas=440") {
		t.Errorf("the log says %d times that bob is not heard, want once and of how many", n)
	}
}
