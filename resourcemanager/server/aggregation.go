package server

import (
	"slices"
	"sync"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// logSilence is how long a node that still has logs to copy may be silent before they are given up (YARN's
// yarn.log-aggregation-status.time-out.ms).
const logSilence = 10 * time.Minute

// logStates is what nodes say of the logs that they still have to copy into the filesystem. It is soft: nodes repeat it.
type logStates struct {
	mu    sync.Mutex
	apps  map[string]map[rm.NodeID]*pb.LogsUnderway
	nodes map[rm.NodeID][]string
	heard map[rm.NodeID]time.Time
}

// report takes in what a node says; it replaces what it said before.
func (l *logStates) report(node rm.NodeID, list []*pb.LogsUnderway, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, app := range l.nodes[node] {
		delete(l.apps[app], node)
		if len(l.apps[app]) == 0 {
			delete(l.apps, app)
		}
	}
	delete(l.nodes, node)
	delete(l.heard, node)
	if len(list) == 0 {
		return
	}
	if l.apps == nil {
		l.apps, l.nodes, l.heard = map[string]map[rm.NodeID]*pb.LogsUnderway{}, map[rm.NodeID][]string{}, map[rm.NodeID]time.Time{}
	}
	l.heard[node] = now
	for _, u := range list[:min(len(list), maxContainers)] {
		if l.apps[u.ApplicationId] == nil {
			l.apps[u.ApplicationId] = map[rm.NodeID]*pb.LogsUnderway{}
		}
		l.apps[u.ApplicationId][node] = u
		l.nodes[node] = append(l.nodes[node], u.ApplicationId)
	}
}

// holds reports whether a node has logs that are not in the filesystem yet. Those that it has lost are no reason to wait.
func (l *logStates) holds(node rm.NodeID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.nodes[node], func(app string) bool { return !l.apps[app][node].GetLost() })
}

// of is the state of an ended application's logs, the worst of all nodes first, in YARN's words (LogAggregationStatus).
func (l *logStates) of(id rm.ApplicationID, now time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	words := []string{"SUCCEEDED", "RUNNING", "RUNNING_WITH_FAILURE", "TIME_OUT", "FAILED"}
	worst := 0
	for node, u := range l.apps[id.String()] {
		state := 1
		switch {
		case u.Lost:
			state = 4
		case now.Sub(l.heard[node]) > logSilence:
			state = 3
		case u.Failing:
			state = 2
		}
		worst = max(worst, state)
	}
	return words[worst]
}

// LogAggregation implements rest.Cluster.
func (s *Server) LogAggregation(id rm.ApplicationID) string { return s.logs.of(id, time.Now()) }
