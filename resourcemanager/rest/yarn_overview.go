package rest

import (
	"fmt"
	"os/user"
	"strings"
	"sync"

	"github.com/gohops/hops/internal/jersey"
	rm "github.com/gohops/hops/resourcemanager"
)

// login is the user that this process runs as.
var login = sync.OnceValue(func() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
})

func (q *request) userInfo() {
	q.answer("clusterUserInfo", jersey.Mapped, struct {
		Login     string `json:"rmLoginUser"`
		Requested string `json:"requestedUser"`
	}{login(), q.caller.User})
}

// schedulerOverview is YARN's page of the scheduler in short (YARN-10935).
func (q *request) schedulerOverview() {
	low, _ := q.Cluster.Limits()
	high, _ := q.most()
	types := []string{rm.MemoryName + " (unit=Mi)", rm.VCoresName, rm.GPUName}
	for name := range high.Other.All() {
		types = append(types, name)
	}
	q.answer("scheduler", jersey.Mapped, struct {
		Type     string       `json:"schedulerType"`
		Resource string       `json:"schedulingResourceType"`
		Minimum  resourceInfo `json:"minimumAllocation"`
		Maximum  resourceInfo `json:"maximumAllocation"`
		Priority int          `json:"applicationPriority"`
		Busy     int          `json:"schedulerBusy"`
		Queue    int          `json:"rmDispatcherEventQueueSize"`
		Events   int          `json:"schedulerDispatcherEventQueueSize"`
	}{"Capacity Scheduler", strings.Join(types, ","), resource(low), resource(high), rm.MaxPriority, 0, 0, 0})
}

type statistics struct {
	Items []statItem `json:"statItem"`
}

type statItem struct {
	State string `json:"state"`
	Type  string `json:"type"`
	Count int64  `json:"count"`
}

// appStatistics counts applications by state, of one type or of all.
func (q *request) appStatistics() {
	states, ok := q.statesOf("states")
	if !ok {
		return
	}
	types := q.list("applicationTypes")
	if len(types) > 1 {
		q.badRequest(fmt.Sprintf("java.lang.Exception: # of applicationTypes = %d, we temporarily support at most one applicationType", len(types)))
		return
	}
	kind := "*"
	if len(types) == 1 {
		kind = strings.ToLower(types[0])
	}
	if len(states) == 0 {
		states = appStates
	}
	counts := map[string]int64{}
	for a := range q.view.Applications() {
		if kind == "*" || strings.EqualFold(kind, a.Type) {
			counts[string(yarnState(a))]++
		}
	}
	var out statistics
	for _, s := range states {
		out.Items = append(out.Items, statItem{s, kind, counts[s]})
	}
	q.answer("appStatInfo", jersey.Natural, out)
}
