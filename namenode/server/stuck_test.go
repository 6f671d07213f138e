package server

import (
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/status"
)

// A namenode that carries nothing out is nobody's to ask, and says what to look at.
func TestStuckNamenodeIsNotReady(t *testing.T) {
	h := health{Leader: "nn1", State: "standby", Stuck: true, StuckAt: 7, stuckSince: time.Now().Add(-time.Hour)}
	if problem := h.problem(); !strings.Contains(problem, "is stuck at entry 7, since "+status.Stamp(h.stuckSince)) {
		t.Errorf("its problem is %q", problem)
	}
	h.Stuck = false
	if problem := h.problem(); problem != "" {
		t.Errorf("the problem of one that works is %q", problem)
	}
}

// One that takes over a state answers nobody meanwhile, which is what to be told of; one that is given an entry and does not come back with it is stuck.
func TestJoiningNamenodeIsNotStuckBecauseItIsSilent(t *testing.T) {
	h := health{Leader: "nn1", State: "joining", Joining: true, Stuck: true, StuckAt: 7, stuckSince: time.Now().Add(-time.Hour)}
	h.Late = []overdue{{What: theNamespace, of: 2 * status.Hangs}}
	if problem := h.problem(); !strings.Contains(problem, "takes over the others' state") {
		t.Errorf("its problem is %q", problem)
	}
	h.applying = 7
	if problem := h.problem(); !strings.Contains(problem, "is stuck at entry 7") {
		t.Errorf("with an entry that it does not come back with its problem is %q", problem)
	}
}
