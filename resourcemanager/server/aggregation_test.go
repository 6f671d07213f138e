package server

import (
	"testing"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

func TestLogAggregationIsWhatTheNodesSay(t *testing.T) {
	id := rm.ApplicationID{Cluster: 1, Sequence: 7}
	now := time.Unix(0, 0)
	var l logStates
	say := func(node rm.NodeID, u ...*pb.LogsUnderway) { l.report(node, u, now) }
	want := func(word string) {
		t.Helper()
		if got := l.of(id, now); got != word {
			t.Errorf("%s, want %s", got, word)
		}
	}
	want("SUCCEEDED")
	say("a", &pb.LogsUnderway{ApplicationId: id.String()}, &pb.LogsUnderway{ApplicationId: "application_1_0008", Lost: true})
	want("RUNNING")
	say("b", &pb.LogsUnderway{ApplicationId: id.String(), Failing: true})
	want("RUNNING_WITH_FAILURE")
	say("b")
	want("RUNNING")
	now = now.Add(logSilence + time.Second)
	want("TIME_OUT")
	say("b", &pb.LogsUnderway{ApplicationId: id.String(), Failing: true, Lost: true})
	want("FAILED")
	say("b")
	say("a")
	want("SUCCEEDED")
	if len(l.apps)+len(l.nodes)+len(l.heard) != 0 {
		t.Errorf("what was shipped is remembered: %+v", &l)
	}
}
