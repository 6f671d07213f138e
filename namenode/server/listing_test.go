package server

import (
	"errors"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
)

// What is told of blocks while they are listed is newer than what the listing finds, and nothing is changed before it has ended.
func TestBlocksAreListedBesideTheWork(t *testing.T) {
	c := newCluster(t, 1, nil)
	s := c.nodes[0].Server
	owner := func(id metadata.BlockID, length int64) namespace.BlockOwner {
		return namespace.BlockOwner{Block: metadata.Block{ID: id, Generation: 1001, Length: length}, Replication: 1}
	}
	const first = metadata.FirstBlockID + 500_000 // which nobody else has
	l := &listing{gone: map[metadata.BlockID]struct{}{}}
	s.soft.mu.Lock()
	s.soft.m.List(true)
	s.soft.listing = l
	s.listing.Store(true)
	s.soft.mu.Unlock()
	if err := c.root().Mkdirs(t.Context(), "/a", 0o755, true); err == nil {
		t.Fatal("a change while blocks are listed")
	}
	if _, err := c.root().Stat(t.Context(), "/"); err != nil {
		t.Fatalf("a read while blocks are listed: %v", err)
	}
	s.effects(namespace.Effects{Added: []namespace.BlockOwner{owner(first, 1)}, Changed: []namespace.BlockOwner{owner(first+1, 2)}, Removed: []metadata.Block{{ID: first + 2}}})
	for i := range metadata.BlockID(4) {
		s.listed(l, owner(first+i, 7))
	}
	for i, want := range []int64{1, 2, -1, 7} {
		s.soft.mu.Lock()
		r, there := s.soft.m.Describe(first + metadata.BlockID(i))
		s.soft.mu.Unlock()
		if there != (want >= 0) || there && r.Length != want {
			t.Errorf("block %d: there %v, length %d, want %d", i, there, r.Length, want)
		}
	}
	if err := s.safe.check(s); !errors.Is(err, metadata.ErrSafeMode) {
		t.Fatalf("safe mode: %v", err)
	}
	s.relist() // which takes the place of that one
	eventually(t, "the blocks are listed", func() bool { return !s.listing.Load() })
	if s.listed(l, owner(first, 9)) {
		t.Fatal("a listing that is over goes on")
	}
}
