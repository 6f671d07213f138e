package rest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

type appInfo struct {
	ID                   string  `json:"id"`
	User                 string  `json:"user"`
	Name                 string  `json:"name"`
	Queue                string  `json:"queue"`
	State                string  `json:"state"`
	FinalStatus          string  `json:"finalStatus"`
	Progress             float   `json:"progress"`
	TrackingUI           string  `json:"trackingUI"`
	TrackingURL          string  `json:"trackingUrl,omitempty"`
	Diagnostics          string  `json:"diagnostics"`
	ClusterID            int64   `json:"clusterId"`
	Type                 string  `json:"applicationType"`
	Tags                 string  `json:"applicationTags"`
	Priority             int     `json:"priority"`
	StartedTime          int64   `json:"startedTime"`
	LaunchTime           int64   `json:"launchTime"`
	FinishedTime         int64   `json:"finishedTime"`
	ElapsedTime          int64   `json:"elapsedTime"`
	AMContainerLogs      string  `json:"amContainerLogs,omitempty"`
	AMHostHTTP           string  `json:"amHostHttpAddress,omitempty"`
	MasterNode           string  `json:"masterNodeId"`
	AllocatedMB          int64   `json:"allocatedMB"`
	AllocatedVCores      int     `json:"allocatedVCores"`
	ReservedMB           int64   `json:"reservedMB"`
	ReservedVCores       int     `json:"reservedVCores"`
	RunningContainers    int     `json:"runningContainers"`
	MemorySeconds        int64   `json:"memorySeconds"`
	VCoreSeconds         int64   `json:"vcoreSeconds"`
	QueueUsage           float   `json:"queueUsagePercentage"`
	ClusterUsage         float   `json:"clusterUsagePercentage"`
	ResourceSeconds      entries `json:"resourceSecondsMap"`
	PreemptedMB          int64   `json:"preemptedResourceMB"`
	PreemptedVCores      int     `json:"preemptedResourceVCores"`
	PreemptedContainers  int     `json:"numNonAMContainerPreempted"`
	PreemptedMasters     int     `json:"numAMContainerPreempted"`
	PreemptedMemSeconds  int64   `json:"preemptedMemorySeconds"`
	PreemptedCoreSeconds int64   `json:"preemptedVcoreSeconds"`
	PreemptedSeconds     entries `json:"preemptedResourceSecondsMap"`

	Requests       []resourceRequest `json:"resourceRequests,omitempty"`
	LogAggregation string            `json:"logAggregationStatus"`
	Unmanaged      bool              `json:"unmanagedApplication"`
	AppLabels      *string           `json:"appNodeLabelExpression,omitempty"`
	AMLabels       *string           `json:"amNodeLabelExpression,omitempty"`
	Resources      *usages           `json:"resourceInfo,omitempty"`
	Timeouts       *timeouts         `json:"timeouts,omitempty"`
}

type resourceRequest struct {
	Priority      int           `json:"priority"`
	AllocationID  int64         `json:"allocationRequestId"`
	Name          string        `json:"resourceName"`
	Capability    resourceInfo  `json:"capability"`
	Containers    int           `json:"numContainers"`
	RelaxLocality bool          `json:"relaxLocality"`
	Label         string        `json:"nodeLabelExpression"`
	Execution     executionType `json:"executionTypeRequest"`
}

type executionType struct {
	Type    string `json:"executionType"`
	Enforce bool   `json:"enforceExecutionType"`
}

// yarnState is an application's state as YARN has it: a command that fails is an application master that ended without
// having finished, which is FAILED there.
func yarnState(a *rm.Application) rm.State {
	if a.State == rm.StateFinished && a.Final == rm.FinalFailed && a.Kind == rm.KindCommand {
		return rm.StateFailed
	}
	return a.State
}

// unselected are the members that ?deSelects= may leave out (YARN-6280, YARN-6871), in YARN's order.
var unselected = []struct {
	name string
	drop func(*appInfo)
}{
	{"resourceRequests", func(i *appInfo) { i.Requests = nil }},
	{"timeouts", func(i *appInfo) { i.Timeouts = nil }},
	{"appNodeLabelExpression", func(i *appInfo) { i.AppLabels = nil }},
	{"amNodeLabelExpression", func(i *appInfo) { i.AMLabels = nil }},
	{"resourceInfo", func(i *appInfo) { i.Resources = nil }},
}

// selection reads deSelects; a name that is none is answered, and ok is false.
func (q *request) selection() (drop func(appInfo) appInfo, ok bool) {
	var drops []func(*appInfo)
	for _, name := range q.list("deSelects") {
		found := false
		var names []string
		for _, u := range unselected {
			names = append(names, u.name)
			if strings.EqualFold(u.name, name) {
				drops, found = append(drops, u.drop), true
			}
		}
		if !found {
			q.badRequest(fmt.Sprintf("java.lang.Exception: Invalid deSelects string %s specified. It should be one of [%s]", name, strings.Join(names, ", ")))
			return nil, false
		}
	}
	return func(i appInfo) appInfo {
		for _, d := range drops {
			d(&i)
		}
		return i
	}, true
}

func (q *request) appInfo(a *rm.Application) appInfo {
	now := q.now()
	end := now
	if a.Finished > 0 {
		end = a.Finished
	}
	spent := q.spent(a, now)
	out := appInfo{
		ID: a.ID.String(), User: a.User, Name: a.Name, Queue: a.Queue, State: string(yarnState(a)), FinalStatus: string(a.Final),
		Progress: float(100 * q.Cluster.Progress(a.ID)), TrackingUI: "UNASSIGNED", Diagnostics: q.diagnostics(a), ClusterID: a.ID.Cluster,
		Type: a.Type, Tags: strings.Join(a.Tags, ","), Priority: a.Priority, StartedTime: int64(a.Submitted), LaunchTime: int64(a.Launched),
		FinishedTime: int64(a.Finished), ElapsedTime: int64(end - a.Submitted), MemorySeconds: spent.MiB / 1000, VCoreSeconds: spent.VCores / 1000,
		LogAggregation: "NOT_START",
		Timeouts:       &timeouts{[]timeoutInfo{lifetime(a, now)}},
		AppLabels:      new(string), AMLabels: new(string),
	}
	if len(a.Attempts) > 0 {
		out.ResourceSeconds.Put(rm.MemoryName, strconv.FormatInt(spent.MiB/1000, 10))
		out.ResourceSeconds.Put(rm.GPUName, strconv.FormatInt(spent.GPUs/1000, 10))
		out.ResourceSeconds.Put(rm.VCoresName, strconv.FormatInt(spent.VCores/1000, 10))
	}
	switch {
	case a.State == rm.StateRunning:
		out.TrackingUI = "ApplicationMaster"
	case a.State.Final() && a.Launched > 0:
		out.TrackingUI = "History"
		if a.Final == rm.FinalSucceeded {
			out.Progress = 100
		}
	}
	if out.TrackingUI != "UNASSIGNED" {
		out.TrackingURL = ownScheme(q.r) + q.r.Host + "/proxy/" + a.ID.String() + "/"
	}
	if c := q.view.Master(a); c != nil {
		out.MasterNode = string(c.Node)
		if n := q.view.Node(c.Node); n != nil {
			out.AMHostHTTP = n.HTTP
			out.AMContainerLogs = logLink(q.r, n, c)
		}
	}
	if a.State.Final() {
		out.AllocatedMB, out.AllocatedVCores, out.ReservedMB, out.ReservedVCores, out.RunningContainers = -1, -1, -1, -1, -1
		out.LogAggregation = q.Cluster.LogAggregation(a.ID)
		return out
	}
	out.AllocatedMB, out.AllocatedVCores, out.RunningContainers = a.Used.MemoryMiB(), a.Used.VCores, a.Live
	if q.total == nil { // once, not for each application of a list
		total, _, _ := q.totals()
		q.total = &total
	}
	out.ClusterUsage = float(100 * dominant(a.Used, *q.total))
	if queue := q.queues().Find(a.Queue); queue != nil && queue.AbsoluteCapacity > 0 {
		out.QueueUsage = out.ClusterUsage / float(queue.AbsoluteCapacity)
	}
	pending, _ := q.pending(a)
	use := usage{Used: resource(a.Used), Pending: resource(pending)}
	use.Reserved = resource(rm.Resource{})
	use.AMLimit, use.UserAMLimit, use.AMUsed = use.Reserved, use.Reserved, use.Reserved
	if c := q.view.Master(a); c != nil && c.Live() {
		use.AMUsed = resource(c.Resource)
	}
	out.Resources = &usages{[]usage{use}}
	asks := q.view.Asks(a.ID)
	if a.WantsMaster() {
		asks = append(asks, rm.Ask{Resource: a.Master, Count: 1})
	}
	for _, ask := range asks {
		out.Requests = append(out.Requests, resourceRequest{
			Priority: ask.Priority, AllocationID: -1, Name: "*", Capability: resource(ask.Resource),
			Containers: ask.Count, RelaxLocality: !ask.Strict, Label: ask.Label, Execution: executionType{Type: "GUARANTEED"},
		})
	}
	return out
}

// dominant is the largest share of any resource.
func dominant(used, total rm.Resource) float64 {
	d := 0.0
	for _, p := range [][2]int64{{used.Memory, total.Memory}, {int64(used.VCores), int64(total.VCores)}, {int64(used.GPUs), int64(total.GPUs)}} {
		if p[1] > 0 {
			d = max(d, float64(p[0])/float64(p[1]))
		}
	}
	return d
}

// now is the time by which what goes on is shown: that of the replicated state where it is ahead of this machine's clock.
func (q *request) now() metadata.Time { return max(metadata.TimeOf(time.Now()), q.view.Now()) }

// spent adds what live containers have used so far.
func (q *request) spent(a *rm.Application, now metadata.Time) rm.Spent {
	sum := a.Spent
	if a.Live > 0 {
		for _, c := range q.view.Containers(a.ID) {
			if c.Live() {
				sum = sum.Add(c.Resource, max(0, int64(now-c.Granted)))
			}
		}
	}
	return sum
}

// diagnostics says what an application waits for, in YARN's words where it has some.
func (q *request) diagnostics(a *rm.Application) string {
	if a.State.Final() || a.State == rm.StateRunning {
		return q.shown(a, a.Diagnostics)
	}
	text := q.shown(a, a.Diagnostics)
	if t := a.Attempt(); t != nil && t.State == rm.AttemptLaunched {
		text = join(text, "AM container is launched, waiting for AM container to Register with RM")
	}
	for _, w := range q.Cluster.Waiting(a.ID) {
		text = join(text, "The master waits: "+w.Reason.Text)
	}
	return text
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

func logLink(r *http.Request, n *rm.Node, c *rm.Container) string {
	return fmt.Sprintf("%s%s/node/containerlogs/%v/%s", schemeOf(r, n.HTTP), n.HTTP, c.ID, c.User)
}

// appStates are the words that a filter may use.
var appStates = []string{"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "FINISHED", "FAILED", "KILLED"}

// statesOf reads states from parameters; a bad one is answered, and ok is false.
func (q *request) statesOf(parameters ...string) (states []string, ok bool) {
	for _, p := range parameters {
		for _, s := range q.list(p) {
			up := strings.ToUpper(s)
			if !slices.Contains(appStates, up) {
				q.badRequest(fmt.Sprintf("java.lang.Exception: Invalid application-state %s specified. It should be one of [%s]", s, strings.Join(appStates, ", ")))
				return nil, false
			}
			if !slices.Contains(states, up) {
				states = append(states, up)
			}
		}
	}
	return states, true
}

// appFilter reads the parameters of /apps; bad ones are answered and make it nil.
func (q *request) appFilter() func(*rm.Application) bool {
	states, ok := q.statesOf("state", "states")
	if !ok {
		return nil
	}
	p := q.r.URL.Query()
	final := strings.ToUpper(p.Get("finalStatus"))
	if final != "" && !slices.Contains([]string{"UNDEFINED", "SUCCEEDED", "FAILED", "KILLED", "ENDED"}, final) {
		q.illegalArgument("No enum constant org.apache.hadoop.yarn.api.records.FinalApplicationStatus." + p.Get("finalStatus"))
		return nil
	}
	span := func(name string) (begin, end int64, ok bool) {
		begin, end = 0, int64(1<<62)
		for _, f := range []struct {
			key string
			at  *int64
		}{{"Begin", &begin}, {"End", &end}} {
			text := p.Get(name + f.key)
			if text == "" {
				continue
			}
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				q.badRequest(`java.lang.NumberFormatException: For input string: "` + text + `"`)
				return 0, 0, false
			}
			if n < 0 {
				q.badRequest("java.lang.Exception: " + name + f.key + " must be greater than 0")
				return 0, 0, false
			}
			*f.at = n
		}
		if begin > end {
			q.badRequest("java.lang.Exception: " + name + "End must be greater than " + strings.Replace(name, "startedTime", "startTime", 1) + "Begin") // sic
			return 0, 0, false
		}
		return begin, end, true
	}
	startFrom, startTo, ok := span("startedTime")
	if !ok {
		return nil
	}
	endFrom, endTo, ok := span("finishedTime")
	if !ok {
		return nil
	}
	types, tags := q.list("applicationTypes"), q.list("applicationTags")
	queue := q.queues().Find(p.Get("queue"))
	return func(a *rm.Application) bool {
		switch {
		case len(states) > 0 && !slices.Contains(states, string(yarnState(a))),
			final != "" && string(a.Final) != final,
			p.Get("user") != "" && a.User != p.Get("user"),
			p.Get("name") != "" && a.Name != p.Get("name"),
			p.Get("queue") != "" && (queue == nil || a.Queue != queue.Path || a.State.Final()),
			int64(a.Submitted) < startFrom || int64(a.Submitted) > startTo,
			int64(a.Finished) < endFrom || int64(a.Finished) > endTo,
			len(types) > 0 && !slices.ContainsFunc(types, func(t string) bool { return strings.EqualFold(t, a.Type) }),
			len(tags) > 0 && !slices.ContainsFunc(tags, func(t string) bool { return slices.Contains(a.Tags, strings.ToLower(t)) }):
			return false
		}
		return true
	}
}

// limit is how many applications are asked for; a bad one is answered, and ok is false.
func (q *request) limit() (n int, ok bool) {
	text := q.r.URL.Query().Get("limit")
	if text == "" {
		return 1 << 30, true
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		q.badRequest(`java.lang.NumberFormatException: For input string: "` + text + `"`)
		return 0, false
	}
	if n <= 0 {
		q.badRequest("java.lang.Exception: limit value must be greater then 0")
		return 0, false
	}
	return n, true
}

func (q *request) apps() {
	keep := q.appFilter()
	if keep == nil {
		return
	}
	drop, ok := q.selection()
	if !ok {
		return
	}
	limit, ok := q.limit()
	if !ok {
		return
	}
	streamYARN(q, jersey.Natural, "apps", "app", func(yield func(appInfo) bool) {
		for a := range q.view.Applications() {
			if !keep(a) {
				continue
			}
			if limit--; !yield(drop(q.appInfo(a))) || limit == 0 {
				return
			}
		}
	})
}

// known answers 404 for an unknown application.
func (q *request) known() bool {
	if q.app == nil {
		q.notFoundYARN(fmt.Sprintf("app with id: %v not found", q.id))
		return false
	}
	return true
}

func (q *request) oneApp() {
	if !q.known() {
		return
	}
	if drop, ok := q.selection(); ok {
		q.answer("app", jersey.Natural, drop(q.appInfo(q.app)))
	}
}
