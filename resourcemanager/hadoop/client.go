package hadoop

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
	"github.com/gohops/hops/resourcemanager/rest"
)

// client registers ApplicationClientProtocol.
func (s *Server) client() {
	handle(s, clientProtocol, "getNewApplication", security.Named, users, (*call).getNewApplication)
	handle(s, clientProtocol, "submitApplication", security.Named, users, (*call).submitApplication)
	handle(s, clientProtocol, "getApplicationReport", security.Anyone, users, (*call).getApplicationReport)
	handle(s, clientProtocol, "forceKillApplication", security.Owner, users, (*call).forceKillApplication)
	handle(s, clientProtocol, "getApplications", security.Anyone, users, (*call).getApplications)
	handle(s, clientProtocol, "getClusterMetrics", security.Anyone, users, (*call).getClusterMetrics)
	handle(s, clientProtocol, "getClusterNodes", security.Anyone, users, (*call).getClusterNodes)
	handle(s, clientProtocol, "getQueueInfo", security.Anyone, users, (*call).getQueueInfo)
	handle(s, clientProtocol, "getQueueUserAcls", security.Anyone, users, (*call).getQueueUserAcls)
	handle(s, clientProtocol, "getApplicationAttemptReport", security.Anyone, users, (*call).getApplicationAttemptReport)
	handle(s, clientProtocol, "getApplicationAttempts", security.Anyone, users, (*call).getApplicationAttempts)
	handle(s, clientProtocol, "getContainerReport", security.Anyone, users, (*call).getContainerReport)
	handle(s, clientProtocol, "getContainers", security.Anyone, users, (*call).getContainers)
	handle(s, clientProtocol, "getResourceTypeInfo", security.Anyone, users, (*call).getResourceTypeInfo)
	handle(s, clientProtocol, "getClusterNodeLabels", security.Anyone, users, (*call).getClusterNodeLabels)
	handle(s, clientProtocol, "getNodeToLabels", security.Anyone, users, (*call).getNodeToLabels)
	handle(s, clientProtocol, "getLabelsToNodes", security.Anyone, users, (*call).getLabelsToNodes)
	handle(s, clientProtocol, "signalToContainer", security.Owner, users, (*call).signalToContainer)
	s.changes()
	for name, why := range unsupported {
		handle(s, clientProtocol, name, security.Named, users, func(*call, *ignored) (hrpc.Message, error) { return nil, why })
	}
}

// ignored is a request that is not looked into.
type ignored struct{}

// UnmarshalVT implements hrpc.Message.
func (*ignored) UnmarshalVT([]byte) error { return nil }

// MarshalToSizedBufferVT implements hrpc.Message.
func (*ignored) MarshalToSizedBufferVT([]byte) (int, error) { return 0, nil }

// SizeVT implements hrpc.Message.
func (*ignored) SizeVT() int { return 0 }

// noReservations is what YARN answers where no queue has a plan.
var noReservations = thrown(yarnException, "The ReservationSystem is not enabled. Please enable & configure the reservation system, and then try again.")

func unsupportedHere(what string) error {
	return metadata.Errorf(metadata.ErrUnsupported, "%s is not supported by this resource manager", what)
}

// unsupported are the methods that this resource manager does not have, with what it answers: as YARN does with the feature off.
var unsupported = map[string]error{
	"getNewReservation": noReservations, "submitReservation": noReservations, "updateReservation": noReservations,
	"deleteReservation": noReservations, "listReservations": noReservations,
	"getResourceProfiles":      thrown(featureNotEnabled, "Resource profile is not enabled, please enable resource profile feature before using its functions. (by setting yarn.resourcemanager.resource-profiles.enabled to true)"),
	"getResourceProfile":       thrown(featureNotEnabled, "Resource profile is not enabled, please enable resource profile feature before using its functions. (by setting yarn.resourcemanager.resource-profiles.enabled to true)"),
	"getDelegationToken":       metadata.Errorf(metadata.ErrIO, "Delegation Token can be issued only with kerberos authentication"),
	"renewDelegationToken":     metadata.Errorf(metadata.ErrIO, "Delegation Token can be renewed only with kerberos authentication"),
	"cancelDelegationToken":    metadata.Errorf(metadata.ErrIO, "Delegation Token can be cancelled only with kerberos authentication"),
	"getClusterNodeAttributes": unsupportedHere("getClusterNodeAttributes"), "getAttributesToNodes": unsupportedHere("getAttributesToNodes"),
	"getNodesToAttributes": unsupportedHere("getNodesToAttributes"),
}

// application finds the application of a request.
func (c *call) application(p *pb.ApplicationIdProto) (*rm.Application, error) {
	id, ok := pb.ParseApplication(p)
	if p == nil || !ok {
		return nil, thrown(appNotFound, "Invalid application id: null")
	}
	if a := c.view.Application(id); a != nil {
		return a, nil
	}
	return nil, noApplication(id)
}

func (c *call) getNewApplication(*pb.GetNewApplicationRequestProto) (hrpc.Message, error) {
	id, err := c.Cluster.NewApplication(c.ctx)
	if err != nil {
		return nil, err
	}
	return &pb.GetNewApplicationResponseProto{ApplicationId: pb.Application(id), MaximumCapability: c.resource(c.maximum())}, nil
}

// names are the resources that some node has, or that are limited.
func (c *call) names() []string { return c.maximum().Names() }

func (c *call) resource(r rm.Resource) *pb.ResourceProto { return pb.Resource(r, c.names()) }

// unknownMaximum is what is told as the most that one container can get where nothing is configured and no node has registered.
var unknownMaximum = rm.Resource{Memory: 1 << 40, VCores: 1 << 10}

// maximum is the most that one container can get: as configured, and where nothing is, what the largest node has that has ever
// registered.
func (c *call) maximum() rm.Resource {
	_, limit := c.Cluster.Limits()
	most, known := rest.Most(c.view, limit)
	most = most.Max(limit)
	if !known {
		if most.Memory == 0 {
			most.Memory = unknownMaximum.Memory
		}
		if most.VCores == 0 {
			most.VCores = unknownMaximum.VCores
		}
	}
	return most
}

func (c *call) submitApplication(q *pb.SubmitApplicationRequestProto) (hrpc.Message, error) {
	context, err := submissionContext(q.ApplicationSubmissionContext)
	if err != nil {
		return nil, err
	}
	if a := c.view.Application(context.ID); a != nil { // a repeat, as after a fail-over
		if a.User != c.Caller.User {
			return nil, thrown(yarnException, "Application with id %v is already present! Cannot add a duplicate!", context.ID)
		}
		return &pb.SubmitApplicationResponseProto{}, nil
	}
	if len(context.Tokens) > 0 {
		if _, err := token.Prepend(context.Tokens, token.Token{}); err != nil {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "the credentials of %v: %v", context.ID, err)
		}
	}
	submission, err := context.Submission()
	if err != nil {
		return nil, err
	}
	if names, _ := c.labels(); context.Label != "" && !slices.Contains(names, context.Label) {
		return nil, thrown(yarnExceptions+"InvalidLabelResourceRequestException", "Invalid label resource request, cluster do not contain , label= %s", context.Label) // sic
	}
	if why := rest.TooLargeYARN(c.Cluster, c.view, context.Resource); why != "" {
		return nil, thrown(invalidRequest, "%s", why)
	}
	submission.Foreign = !c.Own
	if _, _, err := c.Cluster.Submit(c.ctx, c.Caller, submission); err != nil {
		return nil, err
	}
	return &pb.SubmitApplicationResponseProto{}, nil
}

// kinds translates types of local resources.
var kinds = map[pb.LocalResourceTypeProto]string{
	pb.LocalResourceTypeProto_FILE: "file", pb.LocalResourceTypeProto_ARCHIVE: "archive", pb.LocalResourceTypeProto_PATTERN: "pattern",
}

// submissionContext reads what is submitted. What is asked for and cannot be had is refused, not passed over.
func submissionContext(p *pb.ApplicationSubmissionContextProto) (rest.SubmissionContext, error) {
	bad := func(format string, args ...any) (rest.SubmissionContext, error) {
		return rest.SubmissionContext{}, metadata.Errorf(metadata.ErrInvalidArgument, format, args...)
	}
	id, ok := pb.ParseApplication(p.GetApplicationId())
	if p.GetApplicationId() == nil || !ok {
		return rest.SubmissionContext{}, thrown(yarnExceptions+"ApplicationIdNotProvidedException", "ApplicationId is not provided in ApplicationSubmissionContext")
	}
	spec := p.GetAmContainerSpec()
	switch {
	case p.GetUnmanagedAm():
		return bad("%v: an unmanaged application master is not supported", id)
	case len(p.ReservationId) > 0:
		return rest.SubmissionContext{}, noReservations
	case p.GetNodeLabelExpression() != "":
		return bad("%v: a label for all containers of an application is not supported: name it in each request", id)
	case len(spec.GetServiceData()) > 0:
		return bad("The auxService:%s does not exist", spec.ServiceData[0].GetKey())
	}
	capability, label := p.GetResource(), ""
	for _, r := range p.GetAmContainerResourceRequest() {
		switch {
		case r.GetResourceName() != "*" && !r.GetRelaxLocality():
			return bad("%v: a master that insists on its node %.100q is not supported", id, r.GetResourceName())
		case r.GetResourceName() == "*":
			capability, label = r.GetCapability(), r.GetNodeLabelExpression()
		}
	}
	resource, err := pb.ParseResource(capability)
	if err != nil {
		return rest.SubmissionContext{}, thrown(invalidRequest, "%v", err)
	}
	out := rest.SubmissionContext{
		ID: id, Name: p.GetApplicationName(), Queue: p.GetQueue(), Type: p.GetApplicationType(), MaxAttempts: int(p.GetMaxAppAttempts()),
		Keep: p.GetKeepContainersAcrossApplicationAttempts(), Tags: p.GetApplicationTags(), Resource: resource, Label: label, Commands: spec.GetCommand(),
		Env: map[string]string{}, Tokens: spec.GetTokens(),
	}
	if p.Priority != nil {
		n := int(p.Priority.GetPriority())
		out.Priority = &n
	}
	for _, t := range p.GetApplicationTimeouts() {
		if t.GetApplicationTimeoutType() == pb.ApplicationTimeoutTypeProto_APP_TIMEOUT_LIFETIME && t.GetTimeout() > 0 {
			out.Lifetime = time.Duration(min(t.GetTimeout(), 1<<31)) * time.Second
		}
	}
	for _, e := range spec.GetEnvironment() {
		out.Env[e.GetKey()] = e.GetValue()
	}
	for _, l := range spec.GetLocalResources() {
		f, err := artifact(l)
		if err != nil {
			return rest.SubmissionContext{}, err
		}
		out.Local = append(out.Local, f)
	}
	return out, nil
}

// artifact reads a local resource.
func artifact(l *pb.StringLocalResourceMapProto) (rm.Artifact, error) {
	kind, ok := kinds[l.GetValue().GetType()]
	if !ok {
		return rm.Artifact{}, metadata.Errorf(metadata.ErrInvalidArgument, "local resource %.100s: type %v is not supported", l.GetKey(), l.GetValue().GetType())
	}
	f := l.GetValue()
	return rm.Artifact{
		Name: l.GetKey(), URI: pb.URL(f.GetResource()), Kind: kind, Size: f.GetSize(), Timestamp: f.GetTimestamp(),
		Visibility: strings.ToLower(f.GetVisibility().String()), Pattern: f.GetPattern(),
	}, nil
}

func (c *call) getApplicationReport(q *pb.GetApplicationReportRequestProto) (hrpc.Message, error) {
	a, err := c.application(q.ApplicationId)
	if err != nil {
		return nil, err
	}
	return &pb.GetApplicationReportResponseProto{ApplicationReport: c.report(a)}, nil
}

// owned finds an application that the caller may change.
func (c *call) owned(p *pb.ApplicationIdProto) (*rm.Application, error) {
	a, err := c.application(p)
	if err != nil {
		return nil, err
	}
	if !c.mayModify(a) {
		// The class is YARN's wrapper; the refusal is in its text, as in ClientRMService.
		why := metadata.Errorf(metadata.ErrPermission, "User %s cannot perform operation MODIFY_APP on %v", c.Caller.User, a.ID)
		c.Door.Record(security.Decision{Caller: c.Caller, Port: "rpc", Command: c.Method, Source: a.ID.String(), Reason: why.Error()})
		return nil, thrown(yarnException, "java.security.AccessControlException: %v", why)
	}
	return a, nil
}

func (c *call) forceKillApplication(q *pb.KillApplicationRequestProto) (hrpc.Message, error) {
	a, err := c.owned(q.ApplicationId)
	if err != nil {
		return nil, err
	}
	if a.State.Final() {
		return &pb.KillApplicationResponseProto{IsKillCompleted: new(true)}, nil
	}
	text := fmt.Sprintf("Application %v was killed by user %s at %s", a.ID, c.Caller.User, c.Caller.Host)
	if why := strings.ToValidUTF8(q.GetDiagnostics(), "?"); why != "" {
		text += " with diagnostic message: " + why[:min(len(why), maxText)]
	}
	state, err := c.Cluster.Kill(c.ctx, a.ID, strings.ToValidUTF8(text, "?"))
	if err != nil {
		return nil, err
	}
	return &pb.KillApplicationResponseProto{IsKillCompleted: new(state.Final())}, nil
}

// signals are YARN's SignalContainerCommand.
var signals = map[pb.SignalContainerCommandProto]syscall.Signal{
	pb.SignalContainerCommandProto_OUTPUT_THREAD_DUMP: syscall.SIGQUIT, pb.SignalContainerCommandProto_GRACEFUL_SHUTDOWN: syscall.SIGTERM,
	pb.SignalContainerCommandProto_FORCEFUL_SHUTDOWN: syscall.SIGKILL,
}

func (c *call) signalToContainer(q *pb.SignalContainerRequestProto) (hrpc.Message, error) {
	id, ok := pb.ParseContainer(q.ContainerId)
	if !ok {
		return nil, thrown(containerNotFound, "Container with id 'null' doesn't exist in RM.")
	}
	if _, err := c.owned(pb.Application(id.Attempt.Application)); err != nil {
		return nil, err
	}
	if k := c.view.Container(id); k == nil || !k.Live() {
		return nil, thrown(yarnException, "Trying to signal an absent container %v", id)
	}
	signal, ok := signals[q.GetCommand()]
	if !ok {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "signal %v is none", q.GetCommand())
	}
	return &pb.SignalContainerResponseProto{}, c.Cluster.Signal(id, signal)
}
