package hadoop

import (
	"slices"
	"strings"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

// What YARN says in place of a text that is not there.
const notAvailable = "N/A"

// states translates states of applications.
var states = map[rm.State]pb.YarnApplicationStateProto{
	rm.StateAccepted: pb.YarnApplicationStateProto_ACCEPTED, rm.StateRunning: pb.YarnApplicationStateProto_RUNNING,
	rm.StateFinished: pb.YarnApplicationStateProto_FINISHED, rm.StateFailed: pb.YarnApplicationStateProto_FAILED, rm.StateKilled: pb.YarnApplicationStateProto_KILLED,
}

// finals translates final statuses.
var finals = map[rm.FinalStatus]pb.FinalApplicationStatusProto{
	rm.FinalUndefined: pb.FinalApplicationStatusProto_APP_UNDEFINED, rm.FinalSucceeded: pb.FinalApplicationStatusProto_APP_SUCCEEDED,
	rm.FinalFailed: pb.FinalApplicationStatusProto_APP_FAILED, rm.FinalKilled: pb.FinalApplicationStatusProto_APP_KILLED,
}

// attemptStates translates states of attempts.
var attemptStates = map[rm.AttemptState]pb.YarnApplicationAttemptStateProto{
	rm.AttemptScheduled: pb.YarnApplicationAttemptStateProto_APP_ATTEMPT_SCHEDULED, rm.AttemptAllocated: pb.YarnApplicationAttemptStateProto_APP_ATTEMPT_ALLOCATED,
	rm.AttemptLaunched: pb.YarnApplicationAttemptStateProto_APP_ATTEMPT_LAUNCHED, rm.AttemptRunning: pb.YarnApplicationAttemptStateProto_APP_ATTEMPT_RUNNING,
	rm.AttemptFinishing: pb.YarnApplicationAttemptStateProto_APP_ATTEMPT_FINISHING, rm.AttemptFinished: pb.YarnApplicationAttemptStateProto_APP_ATTEMPT_FINISHED,
	rm.AttemptFailed: pb.YarnApplicationAttemptStateProto_APP_ATTEMPT_FAILED, rm.AttemptKilled: pb.YarnApplicationAttemptStateProto_APP_ATTEMPT_KILLED,
}

// logStates translates LogAggregationStatus, by its words.
var logStates = map[string]pb.LogAggregationStatusProto{
	"DISABLED": pb.LogAggregationStatusProto_LOG_DISABLED, "NOT_START": pb.LogAggregationStatusProto_LOG_NOT_START, "RUNNING": pb.LogAggregationStatusProto_LOG_RUNNING,
	"RUNNING_WITH_FAILURE": pb.LogAggregationStatusProto_LOG_RUNNING_WITH_FAILURE, "SUCCEEDED": pb.LogAggregationStatusProto_LOG_SUCCEEDED,
	"FAILED": pb.LogAggregationStatusProto_LOG_FAILED, "TIME_OUT": pb.LogAggregationStatusProto_LOG_TIME_OUT,
}

// stateOf is an application's state as YARN has it: a command that fails is a master that ended without having finished.
func stateOf(a *rm.Application) pb.YarnApplicationStateProto {
	if a.State == rm.StateFinished && a.Final == rm.FinalFailed && a.Kind == rm.KindCommand {
		return pb.YarnApplicationStateProto_FAILED
	}
	return states[a.State]
}

// web is a link to a page of this resource manager.
func (c *call) web(path string) string {
	return strings.TrimSuffix(security.PageOf(c.HTTP), "/") + path
}

func orNone(text string) *string {
	if text == "" {
		text = notAvailable
	}
	return &text
}

// report is an application as YARN reports it.
func (c *call) report(a *rm.Application) *pb.ApplicationReportProto {
	now := metadata.TimeOf(c.Now())
	state, final := stateOf(a), finals[a.Final]
	out := &pb.ApplicationReportProto{
		ApplicationId: pb.Application(a.ID), User: &a.User, Queue: &a.Queue, Name: &a.Name, Host: new(notAvailable), RpcPort: new(int32(-1)),
		YarnApplicationState: &state, TrackingUrl: new(notAvailable), OriginalTrackingUrl: new(notAvailable), Diagnostics: new(c.diagnostics(a)),
		StartTime: new(int64(a.Submitted)), SubmitTime: new(int64(a.Submitted)), LaunchTime: new(int64(a.Launched)), FinishTime: new(int64(a.Finished)),
		FinalApplicationStatus: &final, Progress: new(float32(c.Cluster.Progress(a.ID))), ApplicationType: &a.Type, ApplicationTags: a.Tags,
		LogAggregationStatus: pb.LogAggregationStatusProto_LOG_NOT_START.Enum(), UnmanagedApplication: new(bool),
		Priority: &pb.PriorityProto{Priority: new(int32(a.Priority))}, AppNodeLabelExpression: new("<Not set>"), AmNodeLabelExpression: new("<DEFAULT_PARTITION>"),
	}
	kind := pb.ApplicationTimeoutTypeProto_APP_TIMEOUT_LIFETIME
	timeout := &pb.ApplicationTimeoutProto{ApplicationTimeoutType: &kind, ExpireTime: new("UNLIMITED"), RemainingTime: new(int64(-1))}
	if expiry := a.Expiry(); expiry > 0 {
		left := int64(0)
		if !a.State.Final() {
			left = max(0, int64(expiry-now)/1000)
		}
		timeout.ExpireTime, timeout.RemainingTime = new(expiry.Time().UTC().Format(jersey.Timeout)), &left
	}
	out.AppTimeouts = []*pb.AppTimeoutsMapProto{{ApplicationTimeoutType: &kind, ApplicationTimeout: timeout}}
	if t := a.Attempt(); t != nil {
		out.CurrentApplicationAttemptId = pb.Attempt(rm.AttemptID{Application: a.ID, Number: t.Number})
		if t.Epoch != 0 {
			out.Host, out.RpcPort = orNone(t.Host), new(int32(t.Port))
			if t.Host == "" {
				*out.RpcPort = -1
			}
		}
		if a.State == rm.StateRunning || a.State.Final() && a.Launched > 0 {
			out.TrackingUrl, out.OriginalTrackingUrl = new(c.web("/proxy/"+a.ID.String()+"/")), orNone(a.TrackingURL)
		}
	}
	if a.State.Final() {
		if s, ok := logStates[c.Cluster.LogAggregation(a.ID)]; ok {
			out.LogAggregationStatus = &s
		}
	}
	out.AppResource_Usage = c.usage(a, now)
	return out
}

// diagnostics says why an application ended, or what it waits for.
func (c *call) diagnostics(a *rm.Application) string {
	text := a.Diagnostics
	if first, _, more := strings.Cut(text, "\n"); more && !c.mayModify(a) { // behind it stands what the program printed last
		text = first
	}
	if a.State != rm.StateAccepted {
		return text
	}
	add := func(s string) {
		if text != "" {
			text += "; "
		}
		text += s
	}
	if t := a.Attempt(); t != nil && t.State == rm.AttemptLaunched {
		add("AM container is launched, waiting for AM container to Register with RM")
	}
	for _, w := range c.Cluster.Waiting(a.ID) {
		add("The master waits: " + w.Reason.Text)
	}
	return text
}

// pending sums what an application waits for.
func (c *call) pending(a *rm.Application) (sum rm.Resource, n int) {
	if a.State.Final() {
		return sum, 0
	}
	if a.WantsMaster() {
		sum, n = a.Master, 1
	}
	for _, ask := range c.view.Asks(a.ID) {
		sum, n = sum.Add(ask.Resource.Times(ask.Count)), n+ask.Count
	}
	return sum, n
}

func (c *call) usage(a *rm.Application, now metadata.Time) *pb.ApplicationResourceUsageReportProto {
	spent := a.Spent
	if a.Live > 0 {
		for _, k := range c.view.Containers(a.ID) {
			if k.Live() {
				spent = spent.Add(k.Resource, max(0, int64(now-k.Granted)))
			}
		}
	}
	pending, _ := c.pending(a)
	out := &pb.ApplicationResourceUsageReportProto{
		NumUsedContainers: new(int32(a.Live)), NumReservedContainers: new(int32), UsedResources: c.resource(a.Used), ReservedResources: c.resource(rm.Resource{}),
		NeededResources: c.resource(a.Used.Add(pending)), MemorySeconds: new(spent.MiB / 1000), VcoreSeconds: new(spent.VCores / 1000),
		QueueUsagePercentage: new(float32), ClusterUsagePercentage: new(float32), PreemptedMemorySeconds: new(int64), PreemptedVcoreSeconds: new(int64),
		ApplicationResourceUsageMap: []*pb.StringLongMapProto{
			{Key: new(rm.MemoryName), Value: new(spent.MiB / 1000)}, {Key: new(rm.GPUName), Value: new(spent.GPUs / 1000)}, {Key: new(rm.VCoresName), Value: new(spent.VCores / 1000)},
		},
	}
	if a.State.Final() {
		*out.NumUsedContainers, *out.NumReservedContainers = -1, -1
		return out
	}
	share := 100 * dominant(a.Used, c.total())
	*out.ClusterUsagePercentage = float32(share)
	if q := c.queues().Find(a.Queue); q != nil && q.AbsoluteCapacity > 0 {
		*out.QueueUsagePercentage = float32(share / q.AbsoluteCapacity)
	}
	return out
}

// total is what the nodes have together that are not lost.
func (c *call) total() rm.Resource {
	var total rm.Resource
	for n := range c.view.Nodes() {
		switch {
		case n.State == rm.NodeLost:
		case n.Wish != nil: // the cluster has no more of it than is in use
			total = total.Add(n.Used)
		default:
			total = total.Add(n.Capacity)
		}
	}
	return total
}

// dominant is the largest share of any resource.
func dominant(used, total rm.Resource) float64 {
	d := 0.0
	for _, name := range used.Names() {
		if have := total.Get(name); have > 0 {
			d = max(d, float64(used.Get(name))/float64(have))
		}
	}
	return d
}

func (c *call) getApplications(q *pb.GetApplicationsRequestProto) (hrpc.Message, error) {
	out, limit := &pb.GetApplicationsResponseProto{}, int64(1<<62)
	if q.Limit != nil && *q.Limit >= 0 {
		limit = *q.Limit
	}
	keep := c.filter(q)
	for a := range c.view.Applications() {
		if int64(len(out.Applications)) >= limit {
			break
		}
		if keep(a) {
			out.Applications = append(out.Applications, c.report(a))
			if len(out.Applications)%listStep == 0 {
				if err := c.Admit(int64(len(out.Applications)) * reportBytes); err != nil {
					return nil, err
				}
			}
		}
	}
	return out, nil
}

const (
	// reportBytes is about what a report takes until it is sent.
	reportBytes = 4 << 10
	// listStep is after how many of them room is asked for more.
	listStep = 1_000
)

// filter reads all that a request of getApplications may name.
func (c *call) filter(q *pb.GetApplicationsRequestProto) func(*rm.Application) bool {
	within := func(t metadata.Time, begin, end *int64) bool {
		return (begin == nil || int64(t) >= *begin) && (end == nil || int64(t) <= *end)
	}
	var queues []string
	for _, name := range q.Queues {
		if queue := c.queues().Find(name); queue != nil {
			queues = append(queues, queue.Path)
		}
	}
	return func(a *rm.Application) bool {
		switch {
		case len(q.ApplicationStates) > 0 && !slices.Contains(q.ApplicationStates, stateOf(a)),
			len(q.Users) > 0 && !slices.Contains(q.Users, a.User),
			len(q.Queues) > 0 && !slices.Contains(queues, a.Queue),
			q.Name != nil && *q.Name != a.Name,
			!within(a.Submitted, q.StartBegin, q.StartEnd),
			!within(a.Finished, q.FinishBegin, q.FinishEnd),
			q.GetScope() == pb.ApplicationsRequestScopeProto_OWN && a.User != c.Caller.User,
			len(q.ApplicationTypes) > 0 && !slices.ContainsFunc(q.ApplicationTypes, func(t string) bool { return strings.EqualFold(t, a.Type) }),
			len(q.ApplicationTags) > 0 && !slices.ContainsFunc(q.ApplicationTags, func(t string) bool { return slices.Contains(a.Tags, strings.ToLower(t)) }):
			return false
		}
		return true
	}
}

// attempt finds the attempt of a request.
func (c *call) attempt(p *pb.ApplicationAttemptIdProto) (*rm.Application, *rm.Attempt, error) {
	a, err := c.application(p.GetApplicationId())
	if err != nil {
		return nil, nil, err
	}
	if n := int(p.GetAttemptId()); n < 1 || n > len(a.Attempts) {
		return nil, nil, thrown(attemptNotFound, "ApplicationAttempt with id '%v' doesn't exist in RM.", rm.AttemptID{Application: a.ID, Number: n})
	}
	return a, &a.Attempts[p.GetAttemptId()-1], nil
}

func (c *call) attemptReport(a *rm.Application, t *rm.Attempt) *pb.ApplicationAttemptReportProto {
	state := attemptStates[t.State]
	text := t.Diagnostics
	if first, _, more := strings.Cut(text, "\n"); more && !c.mayModify(a) {
		text = first
	}
	out := &pb.ApplicationAttemptReportProto{
		ApplicationAttemptId: pb.Attempt(rm.AttemptID{Application: a.ID, Number: t.Number}), Host: new(notAvailable), RpcPort: new(int32(-1)),
		TrackingUrl: new(c.web("/proxy/" + a.ID.String() + "/")), OriginalTrackingUrl: orNone(t.TrackingURL), Diagnostics: &text,
		YarnApplicationAttemptState: &state, StartTime: new(int64(t.Started)), FinishTime: new(int64(t.Finished)),
	}
	if t.Epoch != 0 && t.Host != "" {
		out.Host, out.RpcPort = &t.Host, new(int32(t.Port))
	}
	if !t.Container.IsZero() {
		out.AmContainerId = pb.Container(t.Container)
	}
	return out
}

func (c *call) getApplicationAttemptReport(q *pb.GetApplicationAttemptReportRequestProto) (hrpc.Message, error) {
	a, t, err := c.attempt(q.ApplicationAttemptId)
	if err != nil {
		return nil, err
	}
	return &pb.GetApplicationAttemptReportResponseProto{ApplicationAttemptReport: c.attemptReport(a, t)}, nil
}

func (c *call) getApplicationAttempts(q *pb.GetApplicationAttemptsRequestProto) (hrpc.Message, error) {
	a, err := c.application(q.ApplicationId)
	if err != nil {
		return nil, err
	}
	out := &pb.GetApplicationAttemptsResponseProto{}
	for i := range a.Attempts {
		out.ApplicationAttempts = append(out.ApplicationAttempts, c.attemptReport(a, &a.Attempts[i]))
	}
	return out, nil
}

// nodeID is the id by which YARN's clients know a node: the address of its ipc, or of its HTTP where it has none.
func nodeID(n *rm.Node) *pb.NodeIdProto {
	address := n.IPC
	if address == "" {
		address = string(n.ID)
	}
	id, _ := pb.Node(address)
	return id
}

func (c *call) containerReport(k *rm.Container) *pb.ContainerReportProto {
	state := pb.ContainerStateProto_C_RUNNING
	switch {
	case !k.Live():
		state = pb.ContainerStateProto_C_COMPLETE
	case k.State == rm.ContainerGranted:
		state = pb.ContainerStateProto_C_NEW
	}
	id, _ := pb.Node(string(k.Node))
	out := &pb.ContainerReportProto{
		ContainerId: pb.Container(k.ID), Resource: c.resource(k.Resource), NodeId: id, Priority: &pb.PriorityProto{Priority: new(int32(k.Priority))},
		CreationTime: new(int64(k.Granted)), FinishTime: new(int64(k.Finished)), DiagnosticsInfo: &k.Diagnostics, ContainerExitStatus: new(int32(k.Exit)), ContainerState: &state,
		ExecutionType: pb.ExecutionTypeProto_GUARANTEED.Enum(),
	}
	if n := c.view.Node(k.Node); n != nil {
		page := strings.TrimSuffix(security.PageOf(n.HTTP), "/")
		out.NodeId, out.NodeHttpAddress = nodeID(n), &page
		out.LogUrl = new(page + "/node/containerlogs/" + k.ID.String() + "/" + k.User)
	}
	return out
}

func (c *call) getContainerReport(q *pb.GetContainerReportRequestProto) (hrpc.Message, error) {
	id, ok := pb.ParseContainer(q.ContainerId)
	if !ok {
		return nil, thrown(containerNotFound, "Container with id 'null' doesn't exist in RM.")
	}
	if _, _, err := c.attempt(pb.Attempt(id.Attempt)); err != nil {
		return nil, err
	}
	k := c.view.Container(id)
	if k == nil || !k.Live() { // those that ended are the history server's, which answers in its place
		return nil, thrown(containerNotFound, "Container with id '%v' doesn't exist in RM.", id)
	}
	return &pb.GetContainerReportResponseProto{ContainerReport: c.containerReport(k)}, nil
}

func (c *call) getContainers(q *pb.GetContainersRequestProto) (hrpc.Message, error) {
	a, t, err := c.attempt(q.ApplicationAttemptId)
	if err != nil {
		return nil, err
	}
	out := &pb.GetContainersResponseProto{}
	for _, k := range c.view.Containers(a.ID) {
		if k.Live() && k.ID.Attempt.Number == t.Number {
			out.Containers = append(out.Containers, c.containerReport(k))
		}
	}
	return out, nil
}
