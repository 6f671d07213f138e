package server

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

func TestBlockIsMadeOfTheBeginningOfAnother(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	var nodes []*Server
	var ids []*pb.DatanodeID
	for range 3 {
		d, _ := startDatanode(t, credentials, t.TempDir(), n)
		nodes = append(nodes, d)
		ids = append(ids, d.id)
	}
	waitReady(t, nodes...)
	text := strings.Repeat("0123456789", 1000)
	source := put(t, nodes[0], 7, 1001, text)
	put(t, nodes[1], 7, 1001, text)
	put(t, nodes[1], 8, 1005, "what an attempt before has left") // nodes[2] has neither
	n.order(nodes[0], &pb.Orders{Recover: []*pb.Recover{{
		Block: &pb.Block{Id: 8, Generation: 1004, Length: 777}, RecoveryId: 1010, Replicas: ids, Truncate: 778, Source: wireBlock(source),
	}}})
	within(t, "the result is committed", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.commits) == 1
	})
	m := n.commits[0]
	if m.Length != 777 || m.RecoveryId != 1010 || !m.Close || m.DeleteBlock || len(m.Locations) != 2 {
		t.Errorf("committed %v", m)
	}
	want := metadata.Block{ID: 8, Generation: 1010, Length: 777}
	for _, d := range nodes[:2] {
		if r, _ := d.store.Replica(8); r.Block != want || r.State != datanode.Finalized {
			t.Errorf("replica is %v", r)
		}
		if r, _ := d.store.Replica(7); r.Block != source {
			t.Errorf("the source is %v", r)
		}
		r, err := d.store.Open(want)
		check(t, err)
		got := make([]byte, 777)
		if _, err := r.ReadAt(got, 0); err != nil && !errors.Is(err, io.EOF) || string(got) != text[:777] {
			t.Errorf("%q, %v", got, err)
		}
		check(t, r.Close())
		check(t, d.store.Verify(t.Context(), 8, datanode.VerifyOptions{}))
		within(t, "reported", func() bool { return n.heard(d, "RECEIVED 8_1010") })
	}
}

func TestCopiesOfAReplica(t *testing.T) {
	credentials := securitytest.Credentials(t)
	d, _ := startDatanode(t, credentials, t.TempDir(), startNamenode(t, credentials, "lab"))
	waitReady(t, d)
	text := strings.Repeat("x", 3*copyPiece/2)
	source := put(t, d, 7, 1001, text)
	for i, length := range []int64{1, 511, 512, 513, copyPiece - 1, copyPiece, copyPiece + 1, copyPiece + 513, source.Length - 1, source.Length} {
		b := metadata.Block{ID: metadata.BlockID(100 + i), Generation: 1010, Length: length}
		for range 2 { // the second one finds that of the first
			if err := copyReplica(t.Context(), d.store, source, b); err != nil {
				t.Fatalf("%d bytes: %v", length, err)
			}
		}
		if r, _ := d.store.Replica(b.ID); r.Block != b || r.State != datanode.Finalized {
			t.Errorf("%d bytes: %v", length, r)
		}
		check(t, d.store.Verify(t.Context(), b.ID, datanode.VerifyOptions{}))
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for what, f := range map[string]func() error{
		"more than there is": func() error {
			return copyReplica(t.Context(), d.store, source, metadata.Block{ID: 200, Generation: 1010, Length: source.Length + 1})
		},
		"itself": func() error {
			return copyReplica(t.Context(), d.store, source, metadata.Block{ID: 7, Generation: 1010, Length: 5})
		},
		"what is not there": func() error {
			return copyReplica(t.Context(), d.store, metadata.Block{ID: 9, Generation: 1001, Length: 9}, metadata.Block{ID: 200, Generation: 1010, Length: 5})
		},
		"what is older": func() error {
			return copyReplica(t.Context(), d.store, source, metadata.Block{ID: 100, Generation: 1009, Length: 5})
		},
		"after the end": func() error {
			return copyReplica(canceled, d.store, source, metadata.Block{ID: 200, Generation: 1010, Length: 5})
		},
	} {
		if err := f(); err == nil {
			t.Errorf("copy of %s is no error", what)
		}
	}
	if _, ok := d.store.Replica(200); ok {
		t.Error("a copy that failed is there")
	}
}
