package server

import (
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/jersey"
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

// What YARN's REST changes of an application that lives takes effect once the cluster has been raised to the level of it.
func TestApplicationsAreChangedWhileTheyLive(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	id := c.submit("ann", `{"argv":["sleep","1000"]}`)
	c.await(id, rm.StateRunning)
	app := "/ws/v1/cluster/apps/" + id.String()
	soon := func(d time.Duration) map[string]any {
		return map[string]any{"timeout": map[string]string{"type": "LIFETIME", "expiryTime": time.Now().Add(d).UTC().Format(jersey.Timeout)}}
	}
	var text string
	if code, _ := c.http("PUT", app+"/priority", "ann", map[string]int{"priority": 5}, &text); code != 400 || !strings.Contains(text, "hops cluster finalize") {
		t.Errorf("before the cluster was raised: %d %s", code, text)
	}
	c.leader().config.Credentials.Member.Raise(release.Level)
	eventually(t, "the level", func() bool { return c.leader().group.Load().Level() == release.Level })
	var set struct{ Priority int }
	if code, _ := c.http("PUT", app+"/priority", "ann", map[string]int{"priority": 99}, &set); code != 200 || set.Priority != rm.MaxPriority || c.leader().state.View().Application(id).Priority != rm.MaxPriority {
		t.Errorf("%d %+v", code, set)
	}
	if code, _ := c.http("PUT", app+"/timeout", "eve", soon(time.Hour), &text); code != 403 || !strings.Contains(text, "Unauthorized attempt to change timeout of app") {
		t.Errorf("another user: %d %s", code, text)
	}
	if code, _ := c.http("PUT", app+"/timeout", "ann", soon(time.Hour), &text); code != 200 {
		t.Errorf("%d %s", code, text)
	}
	for d := time.Second; ; d *= 2 { // on a busy machine it may be over when it arrives
		if code, _ := c.http("PUT", app+"/timeout", "ann", soon(d), &text); code == 200 {
			break
		} else if code != 400 || !strings.Contains(text, "is over") {
			t.Fatalf("%d %s", code, text)
		}
	}
	if j := c.await(id, rm.StateKilled); !strings.Contains(j.Diagnostics, "time was over") {
		t.Errorf("%+v", j)
	}
	c.check()
}
