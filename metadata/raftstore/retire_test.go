package raftstore

import (
	"errors"
	"testing"
)

// A leader whose checkpoint store fails hands over and ends, with the reason; what was acknowledged is there, and it comes back.
func TestLeaderWhoseStoreFailsEnds(t *testing.T) {
	c := newVaults(t, 3)
	leader := c.form()
	id := leader.host.cfg.ID
	c.write(5, 1)
	c.save(leader)
	c.write(5, 2)
	c.vaults[id].broken.Store(true)
	if err := leader.Save(); err == nil {
		t.Fatal("a snapshot in a store that fails")
	}
	nd := c.nodes[id]
	if err := <-nd.ended; !errors.Is(err, ErrStoreFailed) {
		t.Fatalf("the member ended with %v", err)
	}
	nd.mu.Lock()
	if len(nd.fatal) != 1 || !errors.Is(nd.fatal[0], ErrStoreFailed) {
		t.Errorf("told: %v", nd.fatal)
	}
	nd.mu.Unlock()
	nd.stop()
	nd.stop = nil
	clear(nd.groups)
	c.write(5, 3, id)
	c.begin(id, nil)
	c.agrees(id)
	c.write(5, 4)
	c.agrees(id)
}
