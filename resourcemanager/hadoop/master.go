package hadoop

import (
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/yarntoken"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

// master is what this process knows of the master of an attempt in one reign. It is made when the master registers; in the next reign,
// also of this process, the master is told to register again, and says once more all that it wants.
type master struct {
	// reign is the number of the reign in which it registered.
	reign uint64

	mu sync.Mutex
	// stream tells what happens to the application; delivered is the last event of it that an answer has told.
	stream    rm.MasterStream
	delivered uint64
	// last is the answer of before, with its number, in case that the master asks for it again.
	last *pb.AllocateResponseProto
	// wants is what the master wants.
	wants wants
	// given is by which key the master can speak to a node.
	given map[rm.NodeID]int32
	// released are containers that the master has been told of as ended when it released them.
	released map[rm.ContainerID]bool
	// token is the period of the AMRMToken that the master has, visits that in which it has last been given a new NMToken for each node
	// where its application has containers; 0: in none yet.
	token, visits int32
}

// masterMethods registers ApplicationMasterProtocol.
func (s *Server) masterMethods() {
	handle(s, masterProtocol, "registerApplicationMaster", security.ContainersOnly, masters, (*call).registerApplicationMaster)
	handle(s, masterProtocol, "allocate", security.ContainersOnly, masters, (*call).allocate)
	handle(s, masterProtocol, "finishApplicationMaster", security.ContainersOnly, masters, (*call).finishApplicationMaster)
}

// admit refuses the token of an attempt that is over.
func (s *Server) admit(id rm.AttemptID) error {
	a := s.Cluster.View().Application(id.Application)
	if a == nil || len(a.Attempts) != id.Number {
		return metadata.Errorf(metadata.ErrToken, "%v not found in AMRMTokenSecretManager.", id)
	}
	return nil
}

// speaker is the attempt whose token the connection has shown.
func (c *call) speaker() (rm.AttemptID, error) {
	id, err := rm.ParseAttemptID(c.Caller.User)
	if err != nil {
		return id, metadata.Errorf(metadata.ErrPermission, "the connection is that of no application's master")
	}
	return id, nil
}

// known finds what is known of a master that has registered in this reign. What is left of an earlier one is dropped: another process led
// since, and told the master what is not known here.
func (s *Server) known(id rm.AttemptID) (*master, error) {
	reign, _ := s.Cluster.Reign()
	if reign == 0 {
		return nil, errStandby
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.masters[id]; m != nil && m.reign == reign {
		return m, nil
	} else if m != nil && m.reign < reign { // and not because this call has looked at the reign before a registration in a newer one
		m.stream.Close()
		delete(s.masters, id)
	}
	return nil, thrown(masterNotRegistered, "AppMaster is not registered with this ResourceManager: %v has to register again and to say what it wants", id)
}

// forget drops what is known of masters that are over, or that registered in an earlier reign.
func (s *Server) forget() {
	view := s.Cluster.View()
	reign, _ := s.Cluster.Reign()
	over := func(id rm.AttemptID) bool {
		a := view.Application(id.Application)
		return a == nil || a.State.Final() || len(a.Attempts) != id.Number
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, m := range s.masters {
		if over(id) || m.reign < reign {
			m.stream.Close()
			delete(s.masters, id)
		}
	}
}

// drop forgets one master.
func (s *Server) drop(id rm.AttemptID, m *master) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.masters[id] == m {
		m.stream.Close()
		delete(s.masters, id)
	}
}

func (c *call) registerApplicationMaster(q *pb.RegisterApplicationMasterRequestProto) (hrpc.Message, error) {
	id, err := c.speaker()
	if err != nil {
		return nil, err
	}
	if len(q.PlacementConstraints) > 0 {
		return nil, thrown(featureNotEnabled, "placement constraints are not supported by this ResourceManager")
	}
	if m, _ := c.known(id); m != nil {
		m.mu.Lock()
		began := m.last.GetResponseId() > 0
		m.mu.Unlock()
		if began {
			return nil, thrown(invalidMasterRequest, "Application Master is already registered : %v", id.Application)
		}
	}
	reign, _ := c.Cluster.Reign() // before anything is said in it
	registration := rm.Registration{TrackingURL: q.GetTrackingUrl(), Host: q.GetHost(), Port: int(q.GetRpcPort()), HTTP: addressOf(q.GetTrackingUrl())}
	registered, err := c.Masters.RegisterMaster(c.ctx, id, registration)
	if err != nil && registration.HTTP != "" && metadata.KindOf(err) == metadata.ErrInvalidArgument { // users do not reach it through the proxy
		registration.HTTP = ""
		registered, err = c.Masters.RegisterMaster(c.ctx, id, registration)
	}
	if err != nil {
		return nil, err
	}
	c.view = c.Cluster.View()
	a := c.view.Application(id.Application)
	if a == nil {
		return nil, noApplication(id.Application)
	}
	// A master that registers again with another leader says anew what it wants: what it has taken back meanwhile must not stay.
	if left := c.view.Asks(id.Application); len(left) > 0 {
		again := rm.Request{Progress: -1}
		for _, ask := range left {
			again.Cancel = append(again.Cancel, ask.ID)
		}
		if err := c.Masters.Allocate(c.ctx, id, again); err != nil {
			return nil, err
		}
	}
	stream, err := c.Masters.MasterEvents(c.ctx, id, a.Acknowledged)
	if err != nil {
		return nil, err
	}
	c.forget()
	m := &master{
		reign: reign, stream: stream, delivered: a.Acknowledged, last: &pb.AllocateResponseProto{ResponseId: new(int32)}, wants: newWants(),
		given: map[rm.NodeID]int32{}, released: map[rm.ContainerID]bool{}, token: c.Key,
	}
	m.mu.Lock() // whoever finds it waits for the rest of the registration
	defer m.mu.Unlock()
	c.mu.Lock()
	if old := c.masters[id]; old != nil {
		old.stream.Close()
	}
	c.masters[id] = m
	c.mu.Unlock()

	out := &pb.RegisterApplicationMasterResponseProto{
		MaximumCapability: c.resource(c.maximum()), Queue: &registered.Queue, ResourceTypes: c.resourceTypes(),
		SchedulerResourceTypes: []pb.SchedulerResourceTypes{pb.SchedulerResourceTypes_MEMORY, pb.SchedulerResourceTypes_CPU},
	}
	for _, kind := range []pb.ApplicationAccessTypeProto{pb.ApplicationAccessTypeProto_APPACCESS_VIEW_APP, pb.ApplicationAccessTypeProto_APPACCESS_MODIFY_APP} {
		out.Application_ACLs = append(out.Application_ACLs, &pb.ApplicationACLMapProto{AccessType: &kind, Acl: new(a.User + " ")})
	}
	for i := range registered.Containers {
		k := &registered.Containers[i]
		if k.ID.Attempt.Number == id.Number { // the master of this attempt knows them
			continue
		}
		out.ContainersFromPreviousAttempts = append(out.ContainersFromPreviousAttempts, c.grant(k))
		if t := c.visit(m, id, a.User, k.Node); t != nil {
			out.NmTokensFromPreviousAttempts = append(out.NmTokensFromPreviousAttempts, t)
		}
	}
	return out, nil
}

// addressOf is host:port of a URL, or of an address without a scheme; empty: it is none.
func addressOf(tracking string) string {
	if u, err := url.Parse(tracking); err == nil && u.Scheme == "http" && u.Port() != "" {
		return u.Host
	}
	return ""
}

// grant is a container as its master is told of it, with the token by which it starts it.
func (c *call) grant(k *rm.MasterContainer) *pb.ContainerProto {
	key, _ := parseAsk(k.Ask)
	out := &pb.ContainerProto{
		Id: pb.Container(k.ID), Resource: c.resource(k.Resource), Priority: &pb.PriorityProto{Priority: new(int32(k.Priority))},
		NodeHttpAddress: &k.NodeHTTP, ExecutionType: pb.ExecutionTypeProto_GUARANTEED.Enum(), AllocationRequestId: &key.request, Version: new(int32),
	}
	// As long as a container may be held: the resource manager counts from the beginning of its reign, too.
	_, since := c.Cluster.Reign()
	expires := max(k.Granted, metadata.TimeOf(since)) + metadata.Time(c.LaunchWithin.Milliseconds())
	n := c.view.Node(k.Node)
	if n == nil {
		out.NodeId, _ = pb.Node(string(k.Node))
		return out
	}
	out.NodeId = nodeID(n)
	out.ContainerToken = yarntoken.Write(c.Tokens.Container(c.Now(), n.ID, yarntoken.Grant{
		Container: k.ID, Address: n.IPC, User: k.User, Resource: k.Resource, Created: k.Granted, Expires: expires,
		Priority: k.Priority, Request: key.request,
	}))
	return out
}

// visit is the token by which a master speaks to a node; nil: it has one.
func (c *call) visit(m *master, id rm.AttemptID, user string, node rm.NodeID) *pb.NMTokenProto {
	n := c.view.Node(node)
	key := yarntoken.KeyID(c.Now())
	if n == nil || m.given[node] == key {
		return nil
	}
	m.given[node] = key
	return &pb.NMTokenProto{NodeId: nodeID(n), Token: yarntoken.Write(c.Tokens.Node(c.Now(), node, yarntoken.Visit{Attempt: id, Address: n.IPC, User: user}))}
}

// visitAgain gives the master new tokens for the nodes where its application has containers, once in a period: those of before end with
// the next one, and Java's masters ask those nodes as long as the containers are there. A master that has registered is given them, too:
// nobody knows which it has of the leader of before.
func (c *call) visitAgain(m *master, id rm.AttemptID, a *rm.Application, out *pb.AllocateResponseProto) {
	key := yarntoken.KeyID(c.Now())
	if m.visits == key {
		return
	}
	m.visits = key
	for _, k := range c.view.Containers(id.Application) {
		if !k.Live() || k.Master {
			continue
		}
		if t := c.visit(m, id, a.User, k.Node); t != nil {
			out.NmTokens = append(out.NmTokens, t)
		}
	}
}

// grantTime is how long an answer to new asks waits for what can be granted at once.
const grantTime = 100 * time.Millisecond

func (c *call) allocate(q *pb.AllocateRequestProto) (hrpc.Message, error) {
	id, err := c.speaker()
	if err != nil {
		return nil, err
	}
	m, err := c.known(id)
	if err != nil {
		if a := c.view.Application(id.Application); a == nil || a.State.Final() || len(a.Attempts) != id.Number {
			return nil, thrown(attemptNotFound, "Application attempt %v doesn't exist in ApplicationMasterService cache.", id)
		}
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch at, last := q.GetResponseId(), m.last.GetResponseId(); {
	case at+1 == last: // the answer was lost
		return m.last, nil
	case at != last:
		return nil, thrown(invalidMasterRequest, "Invalid responseId in AllocateRequest from application attempt: %v, expect responseId to be %d, but get %d", id, last, at)
	}
	out, err := c.allocated(m, id, q)
	switch {
	case errors.Is(err, rm.ErrStaleAttempt):
		c.drop(id, m)
		return nil, thrown(attemptNotFound, "Application attempt %v doesn't exist in ApplicationMasterService cache: %v", id, err)
	case metadata.KindOf(err) == metadata.ErrStandby:
		c.drop(id, m)
	}
	if err != nil {
		return nil, err
	}
	m.last = out
	return out, nil
}

func (c *call) allocated(m *master, id rm.AttemptID, q *pb.AllocateRequestProto) (*pb.AllocateResponseProto, error) {
	switch n := len(q.Ask) + len(q.Release) + len(q.BlacklistRequest.GetBlacklistAdditions()) + len(q.BlacklistRequest.GetBlacklistRemovals()); {
	case n > maxAsks:
		return nil, thrown(invalidMasterRequest, "%d asks, releases and names of nodes: %d at most", n, maxAsks)
	case len(q.SchedulingRequests) > 0:
		return nil, thrown(yarnException, "Found non empty SchedulingRequest in AllocateRequest, this should not happen! Scheduling requests with placement constraints are not supported by this ResourceManager.")
	}
	next := m.wants.clone()
	changed, err := next.take(c, q)
	if err != nil {
		return nil, err
	}
	request := rm.Request{Progress: float64(q.GetProgress()), Acknowledged: m.delivered}
	if q.Progress == nil {
		request.Progress = -1
	}
	if request.Asks, request.Cancel, err = next.asks(c, changed); err != nil {
		return nil, err
	}
	out := &pb.AllocateResponseProto{ResponseId: new(q.GetResponseId() + 1)}
	for _, p := range q.Release {
		k, ok := pb.ParseContainer(p)
		if !ok || k.Attempt.Application != id.Application {
			return nil, thrown(invalidRelease, "Cannot release container : %v not belonging to this application attempt : %v", k, id)
		}
		request.Release = append(request.Release, k)
		if live := c.view.Container(k); live != nil && live.Live() && !live.Master {
			out.CompletedContainerStatuses = append(out.CompletedContainerStatuses, completed(live, rm.ExitAborted, "Container released by application"))
		}
	}
	if err := c.Masters.Allocate(c.ctx, id, request); err != nil {
		return nil, err
	}
	m.wants = next
	for _, k := range request.Release {
		if live := c.view.Container(k); live != nil && live.Live() && !live.Master {
			m.released[k] = true
		}
	}
	events, err := m.stream.Next(c.ctx, 0)
	if err == nil && len(request.Asks) > 0 && !grants(events) {
		var more []rm.MasterEvent
		more, err = m.stream.Next(c.ctx, grantTime)
		events = append(events, more...)
	}
	if err != nil {
		return nil, err
	}
	c.view = c.Cluster.View()
	a := c.view.Application(id.Application)
	if a == nil {
		return nil, fmt.Errorf("%w: %v is forgotten", rm.ErrStaleAttempt, id.Application)
	}
	c.tell(m, id, a, events, out)
	c.visitAgain(m, id, a, out)
	c.surroundings(a, out)
	for _, u := range q.UpdateRequests {
		out.UpdateErrors = append(out.UpdateErrors, &pb.UpdateContainerErrorProto{
			Reason: new("changing a container is not supported by this ResourceManager"), UpdateRequest: u, CurrentContainerVersion: new(int32),
		})
	}
	if key := yarntoken.KeyID(c.Now()); m.token < key {
		m.token = key
		out.AmRmToken = yarntoken.Write(c.Tokens.Master(c.Now(), id))
	}
	return out, nil
}

func grants(events []rm.MasterEvent) bool {
	for _, e := range events {
		if e.Granted != nil {
			return true
		}
	}
	return false
}

// tell writes events into an answer.
func (c *call) tell(m *master, id rm.AttemptID, a *rm.Application, events []rm.MasterEvent, out *pb.AllocateResponseProto) {
	for i := range events {
		e := &events[i]
		m.delivered = max(m.delivered, e.Sequence)
		switch {
		case e.Granted != nil:
			if k := c.view.Container(e.Granted.ID); k == nil || !k.Held() { // launched already, or over: then its end is told
				continue
			}
			out.AllocatedContainers = append(out.AllocatedContainers, c.grant(e.Granted))
			if t := c.visit(m, id, a.User, e.Granted.Node); t != nil {
				out.NmTokens = append(out.NmTokens, t)
			}
		case e.Completed != nil:
			k := e.Completed
			if m.released[k.ID] {
				delete(m.released, k.ID)
				continue
			}
			out.CompletedContainerStatuses = append(out.CompletedContainerStatuses, completed(k.Container, k.Exit, k.Diagnostics))
		case e.NodeLost != "":
			if n := c.view.Node(e.NodeLost); n != nil {
				report := c.nodeReport(n)
				report.NodeUpdateType = pb.NodeUpdateTypeProto_NODE_UNUSABLE.Enum()
				out.UpdatedNodes = append(out.UpdatedNodes, report)
			}
		case e.Preempt != nil:
			if out.Preempt == nil {
				out.Preempt = &pb.PreemptionMessageProto{StrictContract: &pb.StrictPreemptionContractProto{}}
			}
			out.Preempt.StrictContract.Container = append(out.Preempt.StrictContract.Container, &pb.PreemptionContainerProto{Id: pb.Container(e.Preempt.Container)})
		}
	}
}

// completed is the end of a container, in YARN's numbers.
func completed(k *rm.Container, exit rm.ExitStatus, diagnostics string) *pb.ContainerStatusProto {
	if exit == rm.ExitNoFilesystem { // which YARN has no number for: it is not the application's fault
		exit = rm.ExitAborted
	}
	return &pb.ContainerStatusProto{
		ContainerId: pb.Container(k.ID), State: pb.ContainerStateProto_C_COMPLETE.Enum(), Diagnostics: &diagnostics, ExitStatus: new(int32(exit)),
		Capability: pb.Resource(k.Resource, k.Resource.Names()), ExecutionType: pb.ExecutionTypeProto_GUARANTEED.Enum(), ContainerSubState: pb.ContainerSubStateProto_CSS_DONE.Enum(),
	}
}

// surroundings says how much more the application could get, of which cluster.
func (c *call) surroundings(a *rm.Application, out *pb.AllocateResponseProto) {
	room := c.roomOf(a.Queue)
	out.Limit, out.NumClusterNodes = c.resource(room.free), new(int32(room.nodes))
	out.ApplicationPriority = &pb.PriorityProto{Priority: new(int32(max(a.Priority, 0)))}
	out.EnhancedHeadroom = &pb.EnhancedHeadroomProto{TotalPendingCount: new(int32(min(room.waiting, 1<<30))), TotalActiveCores: new(int32(min(room.cores, 1<<30)))}
}

func (c *call) finishApplicationMaster(q *pb.FinishApplicationMasterRequestProto) (hrpc.Message, error) {
	id, err := c.speaker()
	if err != nil {
		return nil, err
	}
	final := rm.FinalFailed
	switch q.GetFinalApplicationStatus() {
	case pb.FinalApplicationStatusProto_APP_SUCCEEDED, pb.FinalApplicationStatusProto_APP_ENDED:
		final = rm.FinalSucceeded
	case pb.FinalApplicationStatusProto_APP_KILLED:
		final = rm.FinalKilled
	}
	if a := c.view.Application(id.Application); a != nil && len(a.Attempts) == id.Number && a.Attempt().Epoch == 0 {
		return nil, thrown(masterNotRegistered, "Application Master is trying to unregister before registering for: %v", id.Application)
	}
	if err := c.Masters.FinishMaster(c.ctx, id, rm.Finish{Final: final, Diagnostics: q.GetDiagnostics(), TrackingURL: q.GetTrackingUrl()}); err != nil {
		return nil, err
	}
	if m, err := c.known(id); err == nil {
		c.drop(id, m)
	}
	return &pb.FinishApplicationMasterResponseProto{IsUnregistered: new(true)}, nil
}
