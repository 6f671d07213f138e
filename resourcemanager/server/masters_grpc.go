package server

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/job"
)

// applicationMasters serves the masters. Their connections have proved the token of the master's container.
type applicationMasters struct {
	pb.UnimplementedApplicationMastersServer
	s *Server
}

// tokenOf is the token of a container, by which its master's connection is known.
func (s *Server) tokenOf(container string) (string, bool) {
	id, err := rm.ParseContainerID(container)
	if err != nil {
		return "", false
	}
	c := s.state.View().Container(id)
	if c == nil || !c.Master {
		return "", false
	}
	return s.token(c.Salt), true
}

// authenticate checks that the container whose token was proved is that of the attempt that the caller claims to be. Only
// then does it say that a newer attempt exists.
func (m *applicationMasters) authenticate(ctx context.Context, application string, attempt int32) (rm.AttemptID, error) {
	if m.s.reign.Load() == nil {
		return rm.AttemptID{}, m.s.notLeader()
	}
	id, err := rm.ParseApplicationID(application)
	if err != nil {
		return rm.AttemptID{}, status.Error(codes.InvalidArgument, err.Error())
	}
	refused := status.Error(codes.Unauthenticated, "the token is not that of this attempt's container")
	who, _ := security.PrincipalOf(ctx)
	view := m.s.state.View()
	a := view.Application(id)
	if a == nil || attempt < 1 || int(attempt) > len(a.Attempts) {
		return rm.AttemptID{}, refused
	}
	c := view.Container(a.Attempts[attempt-1].Container)
	if c == nil || who.Container == "" || c.ID.String() != who.Container {
		return rm.AttemptID{}, refused
	}
	return c.ID.Attempt, nil
}

// Register implements the service.
func (m *applicationMasters) Register(ctx context.Context, q *pb.RegisterRequest) (*pb.RegisterResponse, error) {
	id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return nil, err
	}
	r, err := m.s.RegisterMaster(ctx, id, rm.Registration{HTTP: q.HttpAddress, TrackingURL: q.TrackingUrl, Certificate: q.HttpCertificate})
	if err != nil {
		return nil, m.s.wire(err)
	}
	out := &pb.RegisterResponse{Epoch: r.Epoch, Maximum: resourcesOf(r.Maximum), Queue: r.Queue, Change: changeOf(r.Change), Succeeded: r.Succeeded}
	for i := range r.Containers {
		out.Containers = append(out.Containers, containerOf(&r.Containers[i]))
	}
	return out, nil
}

// endedPerPage and endedBytes bound a page of Ended: diagnostics are of 4 KiB each.
const (
	endedPerPage = 1_000
	endedBytes   = 1 << 20
)

// Ended implements the service.
func (m *applicationMasters) Ended(ctx context.Context, q *pb.EndedRequest) (*pb.EndedResponse, error) {
	id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return nil, err
	}
	var after rm.ContainerID
	if q.After != "" {
		if after, err = rm.ParseContainerID(q.After); err != nil {
			return nil, m.s.wire(err)
		}
	}
	if err := m.s.group.Load().ReadWait(ctx); err != nil {
		return nil, m.s.wire(err)
	}
	out, size := &pb.EndedResponse{}, 0
	for _, c := range m.s.state.View().Containers(id.Application) {
		if c.Live() || c.Master || !after.IsZero() && c.ID.Compare(after) <= 0 {
			continue
		}
		if len(out.Ended) == m.s.config.endedPerPage || size > endedBytes {
			out.More = true
			break
		}
		out.Ended = append(out.Ended, completedOf(&rm.MasterContainer{Container: c, LogDir: m.s.logDir(c.User, c.ID)}))
		size += len(c.Diagnostics)
	}
	return out, nil
}

// Allocate implements the service.
func (m *applicationMasters) Allocate(ctx context.Context, q *pb.AllocateRequest) (*pb.AllocateResponse, error) {
	id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return nil, err
	}
	r := rm.Request{Epoch: q.Epoch, Sequence: q.Sequence, Cancel: q.Cancel, Acknowledged: q.Acknowledged, Progress: float64(q.Progress)}
	if q.Epoch == 0 { // which means another thing there
		return nil, m.s.wire(unregistered(id))
	}
	for _, a := range q.Asks {
		w, err := wantedAsk(a)
		if err != nil {
			return nil, m.s.wire(err)
		}
		r.Asks = append(r.Asks, w)
	}
	for _, text := range q.Release {
		id, err := rm.ParseContainerID(text)
		if err != nil {
			return nil, m.s.wire(err)
		}
		r.Release = append(r.Release, id)
	}
	if err := m.s.Allocate(ctx, id, r); err != nil {
		return nil, m.s.wire(err)
	}
	return &pb.AllocateResponse{Sequence: q.Sequence}, nil
}

// wantedAsk translates an ask.
func wantedAsk(a *pb.Ask) (rm.WantedAsk, error) {
	r, err := resourceOf(a.Resources)
	if err != nil {
		return rm.WantedAsk{}, badAsk(a.AskId, "%v", err)
	}
	placement, err := placementOf(a.Placement)
	if err != nil {
		return rm.WantedAsk{}, badAsk(a.AskId, "placement: %v", err)
	}
	near, err := nearOf(a.Near)
	if err != nil {
		return rm.WantedAsk{}, badAsk(a.AskId, "%v", err)
	}
	return rm.WantedAsk{
		Ask: rm.Ask{
			ID: a.AskId, Priority: int(a.Priority), Resource: r, Count: int(a.Count), Gang: int(a.GangMin), Model: a.GpuModel, Island: a.GpuIsland,
			Nodes: a.Nodes, Strict: a.StrictLocality, Excluded: a.ExcludedNodes, Label: a.Label, Instances: a.Instances, Held: a.Held,
			GPUMemory: a.GpuMemory, Within: a.Within, Walltime: time.Duration(a.WalltimeMs) * time.Millisecond, Placement: placement, Near: near,
		},
		Run: launchOf(a.Launch),
	}, nil
}

func nearOf(p *pb.Near) (rm.Near, error) {
	w := rm.NearWords{Paths: p.GetPaths(), Racks: p.GetRacks()}
	for _, h := range p.GetHosts() {
		w.Hosts = append(w.Hosts, rm.NearHost{Host: h.Host, Weight: int(h.Weight)})
	}
	if p != nil && p.WaitMs != nil {
		if *p.WaitMs < 0 || *p.WaitMs > rm.MaxNearWait.Milliseconds() {
			return rm.Near{}, metadata.Errorf(metadata.ErrInvalidArgument, "near: wait_ms %d is not from 0 to %d", *p.WaitMs, rm.MaxNearWait.Milliseconds())
		}
		if w.Wait = time.Duration(*p.WaitMs) * time.Millisecond; w.Wait == 0 {
			w.Wait = rm.NoWait
		}
	}
	return rm.NewNear(w)
}

func placementOf(p *pb.Placement) (rm.Placement, error) {
	words := job.Placement{Attributes: p.GetAttributes(), Exclusive: p.GetExclusive(), Tags: p.GetTags()}
	for _, c := range p.GetConstraints() {
		x := job.Constraint{Tag: c.Tag, Scope: c.Scope, Min: int(c.Min)}
		if c.Max != nil {
			x.Max = new(int(*c.Max))
		}
		words.Constraints = append(words.Constraints, x)
	}
	return words.Words()
}

// launchOf translates a launch; nil is nil.
func launchOf(p *pb.Launch) *rm.Launch {
	if p == nil {
		return nil
	}
	l := &rm.Launch{
		Argv: p.Argv, Env: job.Env(p.Env), Grace: time.Duration(p.GraceMs) * time.Millisecond, Fenced: p.Fencing == pb.Fencing_FENCING_STRICT,
		Dialect: p.Dialect, Tokens: p.Tokens,
	}
	for _, f := range p.Artifacts {
		l.Artifacts = append(l.Artifacts, rm.Artifact{
			Name: f.Name, URI: f.Uri, Kind: f.Kind, Size: f.Size, SHA256: f.Sha256, Timestamp: f.Timestamp,
			Visibility: f.Visibility, Content: f.Content, Pattern: f.Pattern,
		})
	}
	return l
}

// LaunchContainers implements the service.
func (m *applicationMasters) LaunchContainers(ctx context.Context, q *pb.MasterLaunchRequest) (*pb.LaunchContainersResponse, error) {
	id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return nil, err
	}
	if q.Epoch == 0 {
		return nil, m.s.wire(unregistered(id))
	}
	return m.s.launchWire(ctx, id, q.Epoch, q.Launches, nil)
}

// Checkpointed implements the service.
func (m *applicationMasters) Checkpointed(ctx context.Context, q *pb.CheckpointedRequest) (*pb.CheckpointedResponse, error) {
	id, err := rm.ParseAttemptID(q.Attempt)
	if err == nil {
		id, err = m.authenticate(ctx, id.Application.String(), int32(id.Number))
	}
	if err != nil {
		return nil, m.s.wire(err)
	}
	var containers []rm.ContainerID
	for _, text := range q.ContainerIds {
		k, err := rm.ParseContainerID(text)
		if err != nil {
			return nil, m.s.wire(err)
		}
		containers = append(containers, k)
	}
	if err := m.s.Checkpointed(ctx, id, containers, q.Step); err != nil {
		return nil, m.s.wire(err)
	}
	return &pb.CheckpointedResponse{}, nil
}

// LaunchContainers implements the service: who receives a launch at a node has verified which attempt says it.
func (n *nodeManagers) LaunchContainers(ctx context.Context, q *pb.LaunchContainersRequest) (*pb.LaunchContainersResponse, error) {
	s := n.s
	if s.reign.Load() == nil {
		return nil, s.notLeader()
	}
	id, err := rm.ParseAttemptID(q.Attempt)
	if err != nil {
		return nil, s.wire(err)
	}
	if err := s.group.Load().ReadWait(ctx); err != nil { // another one may lead, and know of grants
		return nil, s.wire(err)
	}
	view, machine := s.state.View(), machineOf(ctx)
	if !n.isOn(view.Node(rm.NodeID(q.NodeId)), machine) {
		s.log.Warn("a node manager launches containers on a node that is not on its machine", "machine", machine, "node", q.NodeId)
		return nil, status.Errorf(codes.PermissionDenied, "%.100q is no node of machine %s", q.NodeId, machine)
	}
	return s.launchWire(ctx, id, 0, q.Launches, func(id rm.ContainerID) error {
		if c := view.Container(id); c != nil && c.Node != rm.NodeID(q.NodeId) {
			return status.Errorf(codes.PermissionDenied, "%v is not on node %s", id, q.NodeId)
		}
		return nil
	})
}

// launchWire carries out launches of a wire. What refuses says no to one of them; nil: nothing is refused.
func (s *Server) launchWire(ctx context.Context, id rm.AttemptID, epoch uint64, launches []*pb.ContainerLaunch, refuses func(rm.ContainerID) error) (*pb.LaunchContainersResponse, error) {
	if len(launches) > maxLaunches {
		return nil, status.Errorf(codes.InvalidArgument, "%d launches at once: at most %d", len(launches), maxLaunches)
	}
	out := &pb.LaunchContainersResponse{}
	var taken []rm.ContainerLaunch
	var places []int
	outcome := func(o *pb.LaunchOutcome, err error) {
		if err != nil {
			said := status.Convert(s.wire(err))
			o.Code, o.Message = int32(said.Code()), said.Message()
		}
	}
	for i, l := range launches {
		o := &pb.LaunchOutcome{ContainerId: l.ContainerId}
		out.Outcomes = append(out.Outcomes, o)
		id, err := rm.ParseContainerID(l.ContainerId)
		if err == nil && refuses != nil {
			err = refuses(id)
		}
		if outcome(o, err); err == nil {
			taken, places = append(taken, rm.ContainerLaunch{Container: id, Launch: launchOf(l.Launch)}), append(places, i)
		}
	}
	errs, err := s.launchContainers(ctx, id, epoch, taken)
	if err != nil {
		return nil, s.wire(err)
	}
	for i, err := range errs {
		outcome(out.Outcomes[places[i]], err)
	}
	return out, nil
}

// Finish implements the service.
func (m *applicationMasters) Finish(ctx context.Context, q *pb.FinishRequest) (*pb.FinishResponse, error) {
	id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return nil, err
	}
	if q.Epoch == 0 {
		return nil, m.s.wire(unregistered(id))
	}
	if err := m.s.FinishMaster(ctx, id, rm.Finish{Epoch: q.Epoch, Final: rm.FinalStatus(q.FinalStatus), Diagnostics: q.Diagnostics, TrackingURL: q.TrackingUrl}); err != nil {
		return nil, m.s.wire(err)
	}
	return &pb.FinishResponse{}, nil
}

// Fate implements the service.
func (m *applicationMasters) Fate(ctx context.Context, q *pb.FateRequest) (*pb.FateResponse, error) {
	id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return nil, err
	}
	if err := m.s.group.Load().ReadWait(ctx); err != nil {
		return nil, m.s.wire(err)
	}
	a := m.s.state.View().Application(id.Application)
	if a == nil { // forgotten meanwhile
		return nil, status.Errorf(codes.NotFound, "%v is not known any more", id.Application)
	}
	return &pb.FateResponse{State: string(a.State), Diagnostics: a.Diagnostics}, nil
}

// Events implements the service: who the resource managers are, what is not acknowledged, again and from the start, then what comes.
func (m *applicationMasters) Events(q *pb.EventsRequest, stream pb.ApplicationMasters_EventsServer) error {
	ctx := stream.Context()
	id, err := m.authenticate(ctx, q.ApplicationId, q.Attempt)
	if err != nil {
		return err
	}
	if q.Epoch == 0 {
		return m.s.wire(unregistered(id))
	}
	events, err := m.s.masterEvents(ctx, id, q.Epoch, q.Acknowledged, true)
	if err != nil {
		return m.s.wire(err)
	}
	defer events.Close()
	for ctx.Err() == nil {
		news, err := events.Next(ctx, time.Hour)
		if err != nil {
			return m.s.wire(err)
		}
		for _, e := range news {
			if err := stream.Send(eventOf(e)); err != nil {
				return err
			}
		}
	}
	return nil
}

func eventOf(e rm.MasterEvent) *pb.Event {
	out := &pb.Event{Sequence: e.Sequence}
	switch {
	case e.Granted != nil:
		out.Event = &pb.Event_Granted{Granted: containerOf(e.Granted)}
	case e.Completed != nil:
		out.Event = &pb.Event_Completed{Completed: completedOf(e.Completed)}
	case e.Preempt != nil:
		out.Event = &pb.Event_Preempt{Preempt: &pb.Preempt{ContainerId: e.Preempt.Container.String(), DeadlineMs: int64(e.Preempt.Deadline), Reason: e.Preempt.Reason, Withdrawn: e.Preempt.Withdrawn}}
	case e.Changed != nil:
		out.Event = &pb.Event_Changed{Changed: changeOf(*e.Changed)}
	case e.NodeLost != "":
		out.Event = &pb.Event_NodeLost{NodeLost: &pb.NodeLost{NodeId: string(e.NodeLost)}}
	case e.Pending != nil:
		out.Event = &pb.Event_Pending{Pending: &pb.Pending{AskId: e.Pending.Ask, Code: string(e.Pending.Reason.Code), Message: e.Pending.Reason.Text}}
	case e.Managers != nil:
		out.Event = &pb.Event_Managers{Managers: &pb.Managers{Addresses: e.Managers}}
	}
	return out
}

// changeOf is what users have changed of a command; nil: nothing.
func changeOf(c rm.JobChange) *pb.JobChange {
	if c.Size == (rm.Size{}) && len(c.Members) == 0 {
		return nil
	}
	out := &pb.JobChange{Instances: int32(c.Size.Max), GangMin: int32(c.Size.Min)}
	for _, m := range c.Members {
		out.Members = append(out.Members, &pb.MemberChange{Number: m.Number, Killed: m.Killed, Forgiven: m.Forgiven})
	}
	return out
}

// containerOf describes a grant to the application's master.
func containerOf(c *rm.MasterContainer) *pb.Container {
	p := &pb.Container{
		ContainerId: c.ID.String(), NodeId: string(c.Node), Host: c.Host, NodeHttp: c.NodeHTTP, Resources: resourcesOf(c.Resource), AskId: c.Ask,
		Priority: int32(c.Priority), Token: c.Token, Instance: int32(max(c.Instance, 0)),
	}
	for _, g := range c.Devices {
		p.Gpus = append(p.Gpus, &pb.GPU{
			Uuid: g.UUID, Model: g.Model, Memory: g.Memory, Minor: int32(g.Minor), Pci: g.PCI, Island: g.Island,
			Simulated: g.Simulated, Health: string(g.Health), HealthReason: g.HealthReason, Profile: g.Profile, Parent: g.Parent,
		})
	}
	return p
}

func completedOf(c *rm.MasterContainer) *pb.Completed {
	return &pb.Completed{
		ContainerId: c.ID.String(), ExitStatus: int32(c.Exit), Diagnostics: c.Diagnostics, NodeId: string(c.Node), AskId: c.Ask,
		LogDir: c.LogDir, Instance: int32(max(c.Instance, 0)),
	}
}
