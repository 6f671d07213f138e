package rest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/jersey"
	rm "github.com/gohops/hops/resourcemanager"
)

// YARN's explainers of what waits (YARN-4104, YARN-8967). There a first call has the scheduler note what it does next, and a later one
// shows that, node by node. Here the scheduler knows a reason for everything that waits, from its last look at all nodes together: so every
// call is answered at once, with no node named, as in YARN with placement over many nodes.

type activitiesInfo struct {
	Node        string               `json:"nodeId,omitempty"`
	Timestamp   int64                `json:"timestamp,omitempty"`
	Date        string               `json:"dateTime,omitempty"`
	Diagnostic  string               `json:"diagnostic,omitempty"`
	Allocations []activityAllocation `json:"allocations,omitempty"`
}

type activityAllocation struct {
	Partition string   `json:"partition"`
	Final     string   `json:"finalAllocationState"`
	Root      activity `json:"root"`
}

// activity is a queue, an application or a request in the tree of what the scheduler looked at. Numbers are pointers: they are absent where
// they make no sense.
type activity struct {
	Name            string     `json:"name"`
	AppPriority     *int       `json:"appPriority,omitempty"`
	RequestPriority *int       `json:"requestPriority,omitempty"`
	AllocationID    *int64     `json:"allocationRequestId,omitempty"`
	State           string     `json:"allocationState"`
	Diagnostic      string     `json:"diagnostic,omitempty"`
	Children        []activity `json:"children,omitempty"`
}

type appActivities struct {
	App         string          `json:"applicationId"`
	Diagnostic  string          `json:"diagnostic,omitempty"`
	Timestamp   int64           `json:"timestamp,omitempty"`
	Date        string          `json:"dateTime,omitempty"`
	Allocations []appAllocation `json:"allocations,omitempty"`
}

type appAllocation struct {
	Timestamp int64             `json:"timestamp"`
	Date      string            `json:"dateTime"`
	Queue     string            `json:"queueName"`
	Priority  int               `json:"appPriority"`
	State     string            `json:"allocationState"`
	Children  []requestActivity `json:"children"`
}

type requestActivity struct {
	Priority     int    `json:"requestPriority"`
	AllocationID int64  `json:"allocationRequestId"`
	State        string `json:"allocationState"`
	Diagnostic   string `json:"diagnostic"`
	// Ask and Code are ours: which of the application's requests it is, and the stable code of the reason.
	Ask  string        `json:"ask,omitempty"`
	Code rm.ReasonCode `json:"code"`
}

const noNeed = "Queue does not need more resource"

// grouping reads groupBy; the diagnostic is empty when it is good.
func (q *request) grouping() string {
	if g := q.r.URL.Query().Get("groupBy"); g != "" && !strings.EqualFold(g, "diagnostic") {
		return fmt.Sprintf("Got invalid groupBy: %.100s, valid groupBy types: [DIAGNOSTIC]", g)
	}
	return ""
}

func (q *request) activities() {
	if bad := q.grouping(); bad != "" {
		q.answer("activities", jersey.Natural, activitiesInfo{Diagnostic: bad})
		return
	}
	if n := q.r.URL.Query().Get("nodeId"); n != "" && q.view.Node(rm.NodeID(n)) == nil {
		q.answer("activities", jersey.Natural, activitiesInfo{Diagnostic: fmt.Sprintf("Got invalid node id: %.100s", n)})
		return
	}
	q.answer("activities", jersey.Natural, q.lastLook())
}

func (q *request) bulkActivities() {
	if text := q.r.URL.Query().Get("activitiesCount"); text != "" {
		if n, err := strconv.Atoi(text); err != nil || n < 1 || n > 500 {
			q.badRequest(fmt.Sprintf("java.lang.Exception: activitiesCount %.40q is not between 1 and 500", text))
			return
		}
	}
	if bad := q.grouping(); bad != "" {
		q.badRequest("java.lang.Exception: " + bad)
		return
	}
	q.answer("bulkActivities", jersey.Natural, struct {
		List []activitiesInfo `json:"activities"`
	}{[]activitiesInfo{q.lastLook()}})
}

// lastLook is what the scheduler found when it last looked at all that waits.
func (q *request) lastLook() activitiesInfo {
	waiting := map[string][]activity{} // by queue
	for a := range q.view.Live() {
		if list := q.refusals(a); len(list) > 0 {
			app := activity{Name: a.ID.String(), AppPriority: &a.Priority, State: "REJECTED"}
			for i, r := range list {
				app.Children = append(app.Children, activity{
					Name: fmt.Sprintf("request_%d_%d", r.Priority, i), RequestPriority: &list[i].Priority, AllocationID: &list[i].AllocationID,
					State: r.State, Diagnostic: r.Diagnostic,
				})
			}
			waiting[a.Queue] = append(waiting[a.Queue], app)
		}
	}
	var look func(k *rm.Queue) (activity, bool)
	look = func(k *rm.Queue) (activity, bool) {
		out := activity{Name: k.Path, State: "SKIPPED", Children: waiting[k.Path]}
		if len(out.Children) > 0 {
			out.State = "REJECTED"
		}
		for _, child := range k.Children {
			c, _ := look(child)
			out.Children = append(out.Children, c)
		}
		needed := slices.ContainsFunc(out.Children, func(c activity) bool { return c.Diagnostic != noNeed })
		if !needed {
			out.Diagnostic, out.Children = noNeed, nil
		}
		return out, needed
	}
	root, _ := look(q.queues().Root)
	now := time.Now()
	return activitiesInfo{Timestamp: now.UnixMilli(), Date: jersey.Date(now), Allocations: []activityAllocation{{Final: "SKIPPED", Root: root}}}
}

// refusals are the requests of an application that wait, with why.
func (q *request) refusals(a *rm.Application) []requestActivity {
	var out []requestActivity
	asks := q.view.Asks(a.ID)
	for _, w := range q.Cluster.Waiting(a.ID) {
		r := requestActivity{AllocationID: -1, State: "REJECTED", Diagnostic: w.Reason.Text, Ask: w.Ask, Code: w.Reason.Code}
		if i := slices.IndexFunc(asks, func(k rm.Ask) bool { return k.ID == w.Ask }); i >= 0 {
			r.Priority = asks[i].Priority
		}
		out = append(out, r)
	}
	return out
}

func (q *request) appActivities() {
	now := time.Now()
	out := appActivities{App: q.id.String(), Timestamp: now.UnixMilli(), Date: jersey.Date(now)}
	switch bad := q.grouping(); {
	case bad != "":
		out.Diagnostic = bad
	case q.app == nil || q.app.State.Final():
		out.Diagnostic = "fail to get application activities after finished"
	default:
		list := q.refusals(q.app)
		if len(list) == 0 {
			out.Diagnostic = "Application does not need more resource"
			break
		}
		out.Timestamp, out.Date = 0, ""
		out.Allocations = []appAllocation{{now.UnixMilli(), jersey.Date(now), q.app.Queue, q.app.Priority, "SKIPPED", list}}
	}
	q.answer("appActivities", jersey.Natural, out)
}
