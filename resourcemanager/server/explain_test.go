package server

import (
	"net/http"
	"slices"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
)

// A job that waits is explained: its reason, who holds the GPUs, what would start now. A dry run says what would be placed, is refused as
// a submission is, and leaves nothing.
func TestAJobIsExplainedAndPlanned(t *testing.T) {
	c := newTestCluster(t, 1, func(c *Config) {
		c.Queues = rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "50%", Max: "100%"}, "b": {Capacity: "50%", Max: "100%", Submit: []string{"bob"}}}}
	})
	n := c.node("127.0.0.1:1001", 4, programs(c, untilStopped))
	n.set(func() { n.capacity.Vcores = 64 })
	c.awaitOpen(n)
	plan := func(user, document string, answer any) int {
		code, _ := c.http("POST", "/api/v1/jobs?dry_run=true", user, document, answer)
		return code
	}
	var free rest.Planned
	if code := plan("ann", `{"argv":["x"],"queue":"a","instances":2,"gang":true,"resources":{"gpus":2}}`, &free); code != http.StatusOK || !free.Starts || free.Queue != "root.a" || len(free.Placements) != 3 {
		t.Fatalf("%d %+v", code, free)
	}
	var gpus []string
	for _, p := range free.Placements {
		if gpus = append(gpus, p.GPUs...); p.Node != "127.0.0.1:1001" || p.Master != (len(p.GPUs) == 0) {
			t.Errorf("%+v", p)
		}
	}
	if slices.Sort(gpus); len(slices.Compact(gpus)) != 4 {
		t.Errorf("planned GPUs %q", gpus)
	}
	first := c.submit("ann", `{"argv":["x"],"queue":"a","resources":{"gpus":3}}`)
	eventually(t, "it to run", func() bool { return len(n.running(false)) == 1 })
	second := c.submit("ann", `{"argv":["x"],"queue":"a","instances":2,"gang":true,"resources":{"gpus":1}}`)
	eventually(t, "the job to wait", func() bool { return c.waits(second) == rm.ReasonGang && len(c.leader().View().Asks(second)) > 0 })
	var e rest.ExplainedJob
	if code, _ := c.http("GET", "/api/v1/jobs/"+second.String()+"/explain", "", nil, &e); code != http.StatusOK || len(e.Asks) != 1 || e.Live != 1 {
		t.Fatalf("%d %+v", code, e)
	}
	if a := e.Asks[0]; a.Reason.Code != rm.ReasonGang || a.Together != 2 || len(a.Blockers) != 1 || a.Blockers[0].Job != first.String() || a.Blockers[0].Amount != 3 ||
		len(a.WouldStart) != 1 || a.WouldStart[0].Members != 1 {
		t.Errorf("%+v", a)
	}
	e = rest.ExplainedJob{}
	if code, _ := c.http("GET", "/api/v1/jobs/"+first.String()+"/explain", "", nil, &e); code != http.StatusOK || len(e.Asks) != 0 || e.Used.GPUs != 3 || e.Text == "" {
		t.Errorf("%d %+v", code, e)
	}
	var full rest.Planned
	if code := plan("ann", `{"argv":["x"],"queue":"a","resources":{"gpus":4}}`, &full); code != http.StatusOK || full.Starts || len(full.Placements) != 1 || len(full.Waits) != 1 || full.Waits[0].WouldStart[0].GPUs != 1 {
		t.Errorf("%d %+v", code, full)
	}
	var problem rest.Problem
	if code := plan("ann", `{"argv":["x"],"queue":"b"}`, &problem); code != http.StatusForbidden {
		t.Errorf("planned in a queue of others: %d %+v", code, problem)
	}
	if code := plan("ann", `{"argv":["x"],"queue":"a","resources":{"gpus":5}}`, &problem); code != http.StatusBadRequest {
		t.Errorf("planned what no node has: %d %+v", code, problem)
	}
	count := 0
	for range c.leader().View().Applications() {
		count++
	}
	if count != 2 {
		t.Errorf("%d applications after dry runs, submitted 2", count)
	}
	c.check()
}
