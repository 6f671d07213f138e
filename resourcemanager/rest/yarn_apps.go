package rest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

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

type timeouts struct {
	List []timeoutInfo `json:"timeout"`
}

type timeoutInfo struct {
	Type      string `json:"type"`
	Expiry    string `json:"expiryTime"`
	Remaining int64  `json:"remainingTimeInSeconds"`
}

// javaTime is how YARN writes the time of a timeout.
const javaTime = "2006-01-02T15:04:05.000-0700"

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
			badRequest(q.w, fmt.Sprintf("java.lang.Exception: Invalid deSelects string %s specified. It should be one of [%s]", name, strings.Join(names, ", ")))
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
	now := metadata.TimeOf(time.Now())
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
		Timeouts:       &timeouts{[]timeoutInfo{{Type: "LIFETIME", Expiry: "UNLIMITED", Remaining: -1}}},
		AppLabels:      new(string), AMLabels: new(string),
	}
	if len(a.Attempts) > 0 {
		out.ResourceSeconds.Entry = []entry{
			{rm.MemoryName, strconv.FormatInt(spent.MiB/1000, 10)},
			{rm.GPUName, strconv.FormatInt(spent.GPUs/1000, 10)},
			{rm.VCoresName, strconv.FormatInt(spent.VCores/1000, 10)},
		}
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
	if a.Timeout > 0 && a.Launched > 0 {
		expiry := a.Launched + metadata.Time(a.Timeout.Milliseconds())
		left := int64(0)
		if !a.State.Final() {
			left = max(0, int64(expiry-now)/1000)
		}
		out.Timeouts.List[0] = timeoutInfo{"LIFETIME", expiry.Time().UTC().Format(javaTime), left}
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

// appFilter reads the parameters of /apps; bad ones are answered and make it nil.
func (q *request) appFilter() func(*rm.Application) bool {
	var states []string
	for _, s := range append(q.list("state"), q.list("states")...) {
		up := strings.ToUpper(s)
		if !slices.Contains(appStates, up) {
			badRequest(q.w, fmt.Sprintf("java.lang.Exception: Invalid application-state %s specified. It should be one of [%s]", strings.TrimSpace(s), strings.Join(appStates, ", ")))
			return nil
		}
		states = append(states, up)
	}
	p := q.r.URL.Query()
	final := strings.ToUpper(p.Get("finalStatus"))
	if final != "" && !slices.Contains([]string{"UNDEFINED", "SUCCEEDED", "FAILED", "KILLED", "ENDED"}, final) {
		illegalArgument(q.w, "No enum constant org.apache.hadoop.yarn.api.records.FinalApplicationStatus."+p.Get("finalStatus"))
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
				badRequest(q.w, `java.lang.NumberFormatException: For input string: "`+text+`"`)
				return 0, 0, false
			}
			if n < 0 {
				badRequest(q.w, "java.lang.Exception: "+name+f.key+" must be greater than 0")
				return 0, 0, false
			}
			*f.at = n
		}
		if begin > end {
			badRequest(q.w, "java.lang.Exception: "+name+"End must be greater than "+strings.Replace(name, "startedTime", "startTime", 1)+"Begin") // sic
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

func (q *request) apps() {
	keep := q.appFilter()
	if keep == nil {
		return
	}
	drop, ok := q.selection()
	if !ok {
		return
	}
	limit := 1 << 30
	if text := q.r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			badRequest(q.w, `java.lang.NumberFormatException: For input string: "`+text+`"`)
			return
		}
		if n <= 0 {
			badRequest(q.w, "java.lang.Exception: limit value must be greater then 0")
			return
		}
		limit = n
	}
	stream(q, `{"apps":{"app":[`, `]}}`, `{"apps":{}}`, func(yield func(appInfo) bool) {
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
		q.json(map[string]appInfo{"app": drop(q.appInfo(q.app))})
	}
}

func (q *request) appState() {
	if q.known() {
		q.json(map[string]string{"state": string(yarnState(q.app))})
	}
}

func (q *request) appQueue() {
	if q.known() {
		q.json(map[string]string{"queue": q.app.Queue})
	}
}

func (q *request) appPriority() {
	if q.known() {
		q.json(map[string]int{"priority": q.app.Priority})
	}
}

type attemptInfo struct {
	ID          int    `json:"id"`
	Start       int64  `json:"startTime"`
	Finished    int64  `json:"finishedTime"`
	Container   string `json:"containerId"`
	NodeHTTP    string `json:"nodeHttpAddress"`
	Node        string `json:"nodeId"`
	Logs        string `json:"logsLink"`
	Blacklisted string `json:"blacklistedNodes"`
	// BySystem is absent until the attempt is launched.
	BySystem    *string `json:"nodesBlacklistedBySystem,omitempty"`
	AttemptID   string  `json:"appAttemptId"`
	ExportPorts string  `json:"exportPorts"`
	State       string  `json:"appAttemptState"`
}

func (q *request) attempts() {
	if !q.known() {
		return
	}
	var list []attemptInfo
	for _, t := range q.app.Attempts {
		out := attemptInfo{
			ID: t.Number, Start: int64(t.Started), Finished: int64(t.Finished), State: string(t.State),
			AttemptID: rm.AttemptID{Application: q.id, Number: t.Number}.String(),
		}
		if !t.Container.IsZero() {
			out.Container, out.Node = t.Container.String(), string(t.Node)
			out.BySystem, out.ExportPorts = new(string), "null"
			if n, c := q.view.Node(t.Node), q.view.Container(t.Container); n != nil && c != nil {
				out.NodeHTTP, out.Logs = n.HTTP, logLink(q.r, n, c)
			}
		}
		list = append(list, out)
	}
	q.json(rooted("appAttempts", "appAttempt", list))
}

// attemptReport is of dialect M: no root, everything text.
type attemptReport struct {
	AttemptID   string `json:"appAttemptId"`
	Host        string `json:"host"`
	RPCPort     string `json:"rpcPort"`
	TrackingURL string `json:"trackingUrl"`
	OriginalURL string `json:"originalTrackingUrl"`
	Diagnostics string `json:"diagnosticsInfo"`
	State       string `json:"appAttemptState"`
	Container   string `json:"amContainerId"`
	Started     string `json:"startedTime"`
	Finished    string `json:"finishedTime"`
}

// theAttempt finds the attempt of the path; answers when there is none.
func (q *request) theAttempt() *rm.Attempt {
	text := q.r.PathValue("attempt")
	id, err := rm.ParseAttemptID(text)
	if err != nil {
		badRequest(q.w, "java.lang.IllegalArgumentException: Invalid AppAttemptId: "+text)
		return nil
	}
	if !q.known() {
		return nil
	}
	if id.Application != q.id || id.Number < 1 || id.Number > len(q.app.Attempts) {
		remoteException(q.w, http.StatusNotFound, "NotFoundException", "org.apache.hadoop.yarn.exceptions.ApplicationAttemptNotFoundException: ApplicationAttempt with id '"+
			text+"' doesn't exist in RM.", "org.apache.hadoop.yarn.webapp.NotFoundException")
		return nil
	}
	return &q.app.Attempts[id.Number-1]
}

func (q *request) attempt() {
	t := q.theAttempt()
	if t == nil {
		return
	}
	out := attemptReport{
		AttemptID: rm.AttemptID{Application: q.id, Number: t.Number}.String(), Host: "N/A", RPCPort: "-1",
		TrackingURL: ownScheme(q.r) + q.r.Host + "/proxy/" + q.id.String() + "/", OriginalURL: "N/A", Diagnostics: q.shown(q.app, t.Diagnostics), State: string(t.State),
		Started: strconv.FormatInt(int64(t.Started), 10), Finished: strconv.FormatInt(int64(t.Finished), 10),
	}
	if t.TrackingURL != "" {
		out.OriginalURL = t.TrackingURL
	}
	if !t.Container.IsZero() {
		out.Container = t.Container.String()
	}
	if n := q.view.Node(t.Node); n != nil && t.Epoch != 0 {
		out.Host = n.Host
	}
	q.json(out)
}

// containerInfo is of dialect M.
type containerInfo struct {
	ID              string  `json:"containerId"`
	AllocatedMB     string  `json:"allocatedMB"`
	AllocatedVCores string  `json:"allocatedVCores"`
	AssignedNode    string  `json:"assignedNodeId"`
	Priority        string  `json:"priority"`
	Started         string  `json:"startedTime"`
	Finished        string  `json:"finishedTime"`
	Elapsed         string  `json:"elapsedTime"`
	LogURL          string  `json:"logUrl"`
	Exit            string  `json:"containerExitStatus"`
	State           string  `json:"containerState"`
	NodeHTTP        string  `json:"nodeHttpAddress"`
	Node            string  `json:"nodeId"`
	Allocated       entries `json:"allocatedResources"`
	ExposedPorts    string  `json:"exposedPorts"`
}

func (q *request) containerInfo(c *rm.Container) containerInfo {
	text := func(n int64) string { return strconv.FormatInt(n, 10) }
	out := containerInfo{
		ID: c.ID.String(), AllocatedMB: text(c.Resource.MemoryMiB()), AllocatedVCores: text(int64(c.Resource.VCores)),
		AssignedNode: string(c.Node), Priority: text(int64(c.Priority)), Started: text(int64(c.Granted)), Finished: text(int64(c.Finished)),
		Elapsed: text(time.Now().UnixMilli() - int64(c.Granted)), Exit: "0", State: "RUNNING", Node: string(c.Node),
		Allocated: entries{[]entry{
			{rm.MemoryName, text(c.Resource.MemoryMiB())},
			{rm.GPUName, text(int64(c.Resource.GPUs))},
			{rm.VCoresName, text(int64(c.Resource.VCores))},
		}},
	}
	for name, n := range c.Resource.Other.All() {
		out.Allocated.Entry = append(out.Allocated.Entry, entry{name, text(n)})
	}
	if c.State == rm.ContainerGranted {
		out.State = "NEW"
	}
	if n := q.view.Node(c.Node); n != nil {
		out.NodeHTTP, out.LogURL = schemeOf(q.r, n.HTTP)+n.HTTP, logLink(q.r, n, c)
	}
	return out
}

// liveContainers of an attempt; YARN's resource manager knows no others.
func (q *request) liveContainers(t *rm.Attempt) []containerInfo {
	var list []containerInfo
	for _, c := range q.view.Containers(q.id) {
		if c.Live() && c.ID.Attempt.Number == t.Number {
			list = append(list, q.containerInfo(c))
		}
	}
	return list
}

func (q *request) containers() {
	t := q.theAttempt()
	if t == nil {
		return
	}
	list := q.liveContainers(t)
	if len(list) == 0 {
		q.json(struct{}{})
		return
	}
	q.json(map[string][]containerInfo{"container": list})
}

func (q *request) container() {
	t := q.theAttempt()
	if t == nil {
		return
	}
	text := q.r.PathValue("container")
	if _, err := rm.ParseContainerID(text); err != nil {
		badRequest(q.w, "java.lang.IllegalArgumentException: Invalid ContainerId: "+text)
		return
	}
	for _, c := range q.liveContainers(t) {
		if c.ID == text {
			q.json(c)
			return
		}
	}
	remoteException(q.w, http.StatusNotFound, "NotFoundException", "org.apache.hadoop.yarn.exceptions.ContainerNotFoundException: Container with id '"+
		text+"' doesn't exist in RM.", "org.apache.hadoop.yarn.webapp.NotFoundException")
}
