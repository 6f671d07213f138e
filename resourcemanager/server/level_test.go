package server

import (
	"testing"

	"github.com/gohops/hops/internal/release"
	rm "github.com/gohops/hops/resourcemanager"
)

// What came with a level is in nobody's log before the cluster has been raised to it, whatever the nodes' programs are; afterwards it is in everybody's.
func TestNothingOfALaterLevelBeforeTheClusterIsRaised(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("n1:8042", 0, untilStopped)
	c.awaitOpen(n)
	level := func() int { return c.leader().state.View().Node(rm.NodeID(n.id)).Level }
	if got := level(); got != 0 || c.leader().group.Load().Level() != 1 {
		t.Errorf("level %d before", got)
	}
	c.leader().config.Credentials.Member.Raise(release.Level)
	eventually(t, "the node's level is recorded", func() bool { n.poke(); return level() == release.Level })
	if got := c.leader().group.Load().Level(); got != release.Level {
		t.Errorf("the directory is marked with %d", got)
	}
}
