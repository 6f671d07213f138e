package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
)

// Jobs that wait for others do so over a change of the leader, say for what, and start or end as those end.
func TestJobsThatWaitForOthers(t *testing.T) {
	c := newTestCluster(t, 3, nil)
	n := c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	c.awaitOpen(n)
	c.raise()
	first := c.submit("ann", `{"argv":["train"]}`)
	c.await(first, rm.StateRunning)
	on := func(state string) string {
		return `{"argv":["test"],"after":[{"application":"` + first.String() + `","state":"` + state + `"}]}`
	}
	then := c.submit("bob", on("ended"))
	never := c.submit("ann", strings.Replace(on("succeeded"), `,"state":"succeeded"`, "", 1))
	r := c.awaitReason(then, rm.ReasonDependency)
	if j := c.job(then); len(j.After) != 1 || j.After[0].Application != first.String() || !strings.Contains(r.Text, "waits for "+first.String()+" to have ended") {
		t.Errorf("it says %+v %+v", j.After, r)
	}
	var text string
	if c.http("GET", "/api/v1/jobs/"+then.String()+"/explain", "ann", nil, &text); !strings.Contains(text, `"DEPENDENCY"`) {
		t.Errorf("explained as %s", text)
	}
	if code, _ := c.http("POST", "/api/v1/jobs?dry_run=true", "ann", on("ended"), &text); code != http.StatusOK || !strings.Contains(text, `"starts":false`) || !strings.Contains(text, "to have ended") {
		t.Errorf("planned: %d %s", code, text)
	}
	c.kill(0)
	c.leader()
	c.awaitOpen(n)
	if j := c.job(then); j.State != rm.StateAccepted || len(j.After) != 1 {
		t.Errorf("under the next leader: %+v", j)
	}
	if code, _ := c.http("DELETE", "/api/v1/jobs/"+first.String(), "ann", nil, nil); code != http.StatusAccepted {
		t.Fatalf("killed: %d", code)
	}
	c.await(then, rm.StateRunning)
	if j := c.await(never, rm.StateKilled); !strings.Contains(j.Diagnostics, "it can never start") || j.Phase != "KILLED" {
		t.Errorf("what waited in vain: %+v", j)
	}
	c.check()
}

func TestDependenciesAndDeadlinesThatAreRefused(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	c.leader()
	refused := func(document, want string) {
		t.Helper()
		var text string
		if code, _ := c.http("POST", "/api/v1/jobs", "ann", document, &text); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %s", document, code, text, want)
		}
	}
	refused(`{"argv":["a"],"deadline":"8h"}`, "until the cluster is raised")
	c.raise()
	refused(`{"argv":["a"],"after":[{"application":"application_1_0009"}]}`, "there is no application application_1_0009")
	refused(`{"argv":["a"],"after":[{"application":"me"}]}`, "after[0].application")
	refused(`{"argv":["a"],"after":[{"application":"application_1_0009","state":"sat"}]}`, "is not one of succeeded, failed, ended, started")
	refused(`{"argv":["a"],"deadline":"yesterday"}`, "is neither a time")
	refused(`{"argv":["a"],"deadline":"-5m"}`, "is neither a time")
	refused(`{"argv":["a"],"deadline":"2020-01-31T18:00:00Z"}`, "its deadline, 2020-01-31T18:00:00Z, is over")
	refused(`{"argv":["a"],"deadline":"1h","timeout":"2h"}`, "is nearer than its timeout of 2h0m0s")
}

// A job has to have ended by its deadline, and to have started so long before that it can.
func TestDeadlines(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	c.awaitOpen(n)
	c.raise()
	runs := c.submit("ann", `{"argv":["train"],"deadline":"3h","timeout":"2h"}`)
	c.await(runs, rm.StateRunning)
	c.operate("cordon", rest.AdminRequest{Nodes: []string{n.id}})
	waits := c.submit("ann", `{"argv":["train"],"deadline":"3h","timeout":"2h"}`)
	open := c.submit("ann", `{"argv":["train"],"deadline":"3h"}`)
	var text string
	if c.http("GET", "/api/v1/jobs/"+waits.String()+"/explain", "ann", nil, &text); !strings.Contains(text, "it is ended at 20") || !strings.Contains(text, "if it has not started by then") {
		t.Errorf("explained as %s", text)
	}
	end := func(after time.Duration) {
		c.leader().reign.Load().endOverdue(at(time.Now().Add(after)))
	}
	end(50 * time.Minute)
	for _, id := range []rm.ApplicationID{runs, waits, open} {
		if j := c.job(id); j.State.Final() || j.Deadline == 0 {
			t.Errorf("too early: %+v", j)
		}
	}
	end(61 * time.Minute)
	if j := c.job(waits); j.State != rm.StateKilled || !strings.Contains(j.Diagnostics, "has not started in time: its deadline, ") {
		t.Errorf("what could not end in time: %+v", j)
	}
	if j := c.job(open); j.State.Final() {
		t.Errorf("what may be short: %+v", j)
	}
	end(181 * time.Minute)
	if j := c.job(open); j.State != rm.StateKilled {
		t.Errorf("what waited too long: %+v", j)
	}
	if j := c.job(runs); j.State != rm.StateKilled {
		t.Errorf("what ran too long: %+v", j)
	}
}
