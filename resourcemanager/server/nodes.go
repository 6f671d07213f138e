package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/topology"
	"github.com/gohops/hops/internal/yarntoken"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// nodeManagers serves the node managers.
type nodeManagers struct {
	pb.UnimplementedNodeManagersServer
	s *Server
}

// session is one stream of one node manager.
type session struct {
	r    *reign
	node rm.NodeID
	// machine is the name in the certificate that the node manager has shown.
	machine string
	// wake asks for orders to be sent.
	wake chan struct{}
	// over carries why the session must end; capacity 1.
	over chan error
	// program is of which version the node manager is.
	program release.Program

	// The rest belongs to the stream's goroutine.

	// known is the last state reported on this stream, by container; first: the first report has been worked through.
	known       map[rm.ContainerID]rm.ContainerState
	first       bool
	incarnation string
	// started and stopped are when an order was sent on this stream.
	started, stopped map[rm.ContainerID]time.Time
	// strangers run there although they should not: they are stopped, and their devices stay closed until they are gone.
	strangers map[rm.ContainerID]*pb.ContainerStatus
	sequence  uint64
	// hasKeys is the period for which the node has been given the keys of its tokens; 0: it has none.
	hasKeys int32
}

func (x *session) end(why error) {
	select {
	case x.over <- why:
	default:
	}
}

// repeatOrders is how long an order may stay without effect in a status before it is sent again.
const repeatOrders = time.Second

// Session implements the service: reports in, orders out, until the node, the leadership or the stream ends.
func (n *nodeManagers) Session(stream pb.NodeManagers_SessionServer) error {
	r := n.s.reign.Load()
	if r == nil {
		return n.s.notLeader()
	}
	type arrival struct {
		report *pb.NodeReport
		at     time.Time
	}
	arrivals := make(chan arrival)
	broken := make(chan error, 1)
	go func() { // ends with the stream's context, which ends with this handler
		for {
			report, err := stream.Recv()
			if err != nil {
				broken <- err
				return
			}
			select {
			case arrivals <- arrival{report, time.Now()}:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	who, _ := security.PrincipalOf(stream.Context())
	x := &session{
		r: r, program: who.Program, machine: machineOf(stream.Context()), wake: make(chan struct{}, 1), over: make(chan error, 1), known: map[rm.ContainerID]rm.ContainerState{},
		started: map[rm.ContainerID]time.Time{}, stopped: map[rm.ContainerID]time.Time{}, strangers: map[rm.ContainerID]*pb.ContainerStatus{},
	}
	defer x.close()
	for {
		var orders *pb.NodeOrders
		select {
		case <-r.ctx.Done():
			return n.s.notLeader()
		case why := <-x.over:
			return why
		case <-stream.Context().Done(): // the goroutine with a report in hand says nothing then
			return nil
		case err := <-broken:
			if stream.Context().Err() != nil {
				return nil
			}
			return err
		case a := <-arrivals:
			err := x.report(stream.Context(), a.report, a.at)
			if refused(err) {
				err = x.keep(stream.Context(), a.report, err)
			}
			if err != nil {
				return n.s.wire(err)
			}
			orders = &pb.NodeOrders{Acknowledged: a.report.Sequence, Ended: r.ended(a.report.Kept)}
		case <-x.wake:
			if !x.first {
				continue
			}
			orders = &pb.NodeOrders{Acknowledged: x.sequence}
		}
		orders.Term, orders.LeaseMs, orders.ReportMs = r.term, n.s.config.NodeLease.Milliseconds(), x.reportEvery().Milliseconds()
		if x.first {
			orders.TokenKeys = x.newKeys(time.Now())
			x.order(orders)
		}
		if err := stream.Send(orders); err != nil {
			return err
		}
	}
}

// reportsPerSecond is how many reports all nodes together send in a second when nothing changes: what a report costs times this is what a
// cluster at rest costs, however many nodes it has. See DESIGN.md.
const reportsPerSecond = 2_000

// reportEvery is how long the node may wait with its next report when nothing changes; 0: it knows best itself. A node manager goes by its own
// time if that is longer, and by a sixth of the lease if that is shorter.
func (x *session) reportEvery() time.Duration {
	if x.r.s.group.Load().Level() < release.Requests {
		return 0
	}
	x.r.mu.Lock()
	defer x.r.mu.Unlock()
	return time.Duration(len(x.r.nodes)) * time.Second / reportsPerSecond
}

// refused reports whether a report is not what it should be, as opposed to not being worked through now.
func refused(err error) bool {
	return errors.Is(err, metadata.ErrInvalidArgument) || errors.Is(err, metadata.ErrExist)
}

// keep lets a known node live on whose report is refused: what runs there is not to blame. The node gets no more work, and
// its page says why, but its lease goes on. A node that is not registered has nothing to lose: for it the refusal is the
// answer, and so for one whose report is not about it.
func (x *session) keep(ctx context.Context, report *pb.NodeReport, why error) error {
	r := x.r
	if n := r.s.state.View().Node(x.node); n == nil || x.node != rm.NodeID(report.NodeId) || n.Incarnation != report.Incarnation || n.State == rm.NodeLost {
		return why
	}
	r.mu.Lock()
	n := r.nodes[x.node]
	if n == nil || n.session != x {
		r.mu.Unlock()
		return why
	}
	if n.refused != why.Error() {
		r.s.log.Error("report of a node is refused; it gets no more work", "node", x.node, "err", why)
	}
	n.refused, n.open = why.Error(), false
	r.stir(x.node)
	r.mu.Unlock()
	return r.s.group.Load().ReadWait(ctx) // as every acknowledged report
}

// close takes the session off its node, which gets nothing more until it speaks again.
func (x *session) close() {
	x.r.mu.Lock()
	defer x.r.mu.Unlock()
	if n := x.r.nodes[x.node]; n != nil && n.session == x {
		n.session, n.open, n.signals, n.devices = nil, false, nil, nil
		x.r.stir(x.node)
	}
}

// report works through one report. When it returns nil everything final in the report is durable and this process was
// the leader after the report had arrived: only then may it be acknowledged.
func (x *session) report(ctx context.Context, report *pb.NodeReport, at time.Time) error {
	if err := checkName(report); err != nil {
		return err
	}
	if x.node == "" {
		x.node, x.incarnation = rm.NodeID(report.NodeId), report.Incarnation
	} else if x.node != rm.NodeID(report.NodeId) {
		return metadata.Errorf(metadata.ErrInvalidArgument, "a session of node %s cannot report for %s", x.node, report.NodeId)
	} else if x.incarnation != report.Incarnation { // what it has to say of its devices must come with its first report
		return metadata.Errorf(metadata.ErrInvalidArgument, "node %s changes its incarnation within a session", x.node)
	}
	if err := x.heard(report, at); err != nil {
		return err
	}
	if err := checkReport(report); err != nil {
		return err
	}
	proposed, err := x.register(ctx, report)
	if err != nil {
		return err
	}
	told, err := x.statuses(ctx, report)
	if err != nil {
		return err
	}
	if !proposed && !told { // a commit would have confirmed it
		if err := x.r.s.group.Load().ReadWait(ctx); err != nil {
			return err
		}
	}
	x.sequence = report.Sequence
	x.publish(report)
	x.first = true
	return nil
}

// heard notes that the node lives. A node that is being declared lost is not heard any more.
func (x *session) heard(report *pb.NodeReport, at time.Time) error {
	r := x.r
	have := r.s.state.View().Node(x.node)
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[x.node]
	owner := ""
	switch {
	case n != nil && n.session != nil: // which may not be registered yet
		owner = n.session.machine
	case have != nil && have.State != rm.NodeLost:
		owner = have.Machine
	}
	if owner != "" && owner != x.machine { // before anything is done to the session of the machine that the node is on
		return metadata.Errorf(metadata.ErrPermission, "node %s is on machine %s, and the certificate is that of machine %s", x.node, owner, x.machine)
	}
	if n == nil {
		n = &softNode{}
		r.nodes[x.node] = n
	}
	if n.losing {
		return errNodeLost
	}
	if n.session != x {
		if x.first { // another session took the node over
			return errReplaced
		}
		if n.session != nil {
			n.session.end(errReplaced)
		}
		n.session, n.open = x, false
		r.stir(x.node)
		r.s.log.Info("node manager connected", "node", x.node, "incarnation", report.Incarnation)
	}
	n.heard = at
	return nil
}

// register commits what the node is and has, if that is new.
func (x *session) register(ctx context.Context, report *pb.NodeReport) (bool, error) {
	want := nodeOf(report)
	want.Machine = x.machine
	if want.Rack == topology.DefaultRack { // the node manager's own configuration says nothing
		host, _, _ := net.SplitHostPort(report.NodeId)
		want.Rack = x.r.s.racks.Lookup(host)
	}
	if x.r.s.group.Load().Level() >= release.NodePrograms {
		want.Level = x.program.Level
	}
	if x.r.s.group.Load().Level() < release.Requests {
		want.Capacity.Other = rm.Amounts{}
		if want.GPUs = slices.DeleteFunc(want.GPUs, func(g rm.GPU) bool { return g.Profile != "" }); len(want.GPUs) == 0 {
			want.GPUs = nil // as the state has it
		}
		want.IPC = ""
		want.Attributes = rm.Attributes{}
	}
	if have := x.r.s.state.View().Node(want.ID); have != nil {
		same := *have
		same.Registered, same.Used, same.Live, same.Exclusive = 0, rm.Resource{}, 0, false
		same.Capacity, same.Reported, same.Resized, same.Wish, same.Retired = same.Reported, rm.Resource{}, rm.Resource{}, nil, false
		same.Labels, same.OwnLabels, same.SetLabels, same.Labelled = same.OwnLabels, nil, nil, false
		same.Attributes, same.OwnAttributes, same.SetAttributes = same.OwnAttributes, rm.Attributes{}, rm.Attributes{}
		if reflect.DeepEqual(&same, want) {
			return false, nil
		}
	}
	_, err := x.r.s.propose(ctx, &statepb.Command{Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: x.r.epoch, Node: state.Node(want)}}})
	if err == nil {
		x.r.s.log.Info("node registered", "node", want.ID, "state", want.State, "capacity", want.Capacity.String(), "gpus", len(want.GPUs))
	}
	return true, err
}

// statusesPerEntry and maxDiagnostics keep a command well below the largest that the group takes.
const (
	statusesPerEntry = 100
	maxDiagnostics   = 4 << 10
)

// maxWaits bounds the text of what a container waits for.
const maxWaits = 500

// statuses commits what is news in the statuses, and finds containers that run there although they should not.
func (x *session) statuses(ctx context.Context, report *pb.NodeReport) (bool, error) {
	x.r.s.logs.report(x.node, report.Logs, time.Now()) // before a status may end the application
	view := x.r.s.state.View()
	var news []*statepb.Status
	listed := map[rm.ContainerID]bool{}
	for _, st := range report.Containers {
		id, err := rm.ParseContainerID(st.ContainerId)
		if err != nil {
			return false, err
		}
		listed[id] = true
		now := stateOf(st.State)
		x.known[id] = now
		c := view.Container(id)
		if c == nil || !c.Live() || c.Node != x.node {
			if now == rm.ContainerComplete {
				delete(x.strangers, id)
			} else {
				x.strangers[id] = st
			}
			continue
		}
		if now.After(c.State) && (!c.Held() || now == rm.ContainerComplete) { // it knows nothing of what is held
			if now == rm.ContainerRunning {
				x.r.s.figures.starts.add(time.Since(time.UnixMilli(int64(c.Granted))))
			}
			news = append(news, &statepb.Status{
				Container: state.ContainerID(id), State: string(now), Exit: st.ExitStatus,
				Diagnostics: cut(st.Diagnostics, maxDiagnostics), StartedMs: st.StartedMs, FinishedMs: st.FinishedMs,
			})
		}
	}
	for _, c := range view.On(x.node) {
		if !listed[c.ID] && c.State != rm.ContainerGranted && !x.first {
			// It was there, and the first report of a session lists all that the node manager knows.
			news = append(news, &statepb.Status{
				Container: state.ContainerID(c.ID), State: string(rm.ContainerComplete), Exit: int32(rm.ExitAborted),
				Diagnostics: fmt.Sprintf("node manager %s does not know the container any more", x.node),
			})
		}
	}
	for batch := range slices.Chunk(news, statusesPerEntry) {
		_, err := x.r.s.propose(ctx, &statepb.Command{Op: &statepb.Command_Statuses{Statuses: &statepb.Statuses{
			Epoch: x.r.epoch,
			Node:  string(x.node), Incarnation: report.Incarnation, Statuses: batch,
		}}})
		if err != nil {
			return false, err
		}
	}
	return len(news) > 0, nil
}

// publish opens the node for grants and tells the scheduler what strangers hold.
func (x *session) publish(report *pb.NodeReport) {
	r := x.r
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[x.node]
	if n == nil || n.session != x {
		return
	}
	busy, taken := map[string]bool{}, rm.Resource{}
	for _, u := range report.OccupiedGpus {
		busy[u] = true
	}
	for id, st := range x.strangers {
		for _, u := range st.GpuUuids {
			busy[u] = true
		}
		if c := r.s.state.View().Container(id); c != nil {
			taken = taken.Add(c.Resource)
		}
	}
	n.observe(report)
	n.memory, n.waits = map[rm.ContainerID]int64{}, map[rm.ContainerID]string{}
	for _, st := range report.Containers {
		id, err := rm.ParseContainerID(st.ContainerId)
		if err == nil && st.MemoryUsed > 0 {
			n.memory[id] = st.MemoryUsed
		}
		if err == nil && st.State == pb.ContainerStatus_LOCALIZING && st.Diagnostics != "" {
			n.waits[id] = cut(st.Diagnostics, maxWaits)
		}
	}
	if !n.open || n.healthy != report.Healthy || !reflect.DeepEqual(n.busy, busy) || n.taken != taken || n.strangers != len(x.strangers) {
		r.stir(x.node)
	}
	n.open, n.healthy, n.busy, n.taken, n.strangers, n.refused = true, report.Healthy, busy, taken, len(x.strangers), ""
}

// ended are those of applications that are over: they have a final state, or nobody knows them any more. It counts for what a report
// names, after the report has been worked through: then this process has led, and what it knows is of now.
func (r *reign) ended(applications []string) []string {
	var out []string
	view := r.s.state.View()
	for _, name := range applications[:min(len(applications), maxKept)] {
		id, err := rm.ParseApplicationID(name)
		if err != nil {
			out = append(out, name)
			continue
		}
		if a := view.Application(id); a == nil || a.State.Final() {
			out = append(out, name)
		}
	}
	return out
}

// order fills in what the node has to do: everything that the state wants of it and that it has not shown yet.
func (x *session) order(o *pb.NodeOrders) {
	s := x.r.s
	x.r.mu.Lock()
	if n := x.r.nodes[x.node]; n != nil && n.session == x {
		o.Signal, n.signals = n.signals, nil
		o.Devices, n.devices = n.devices, nil
	}
	x.r.mu.Unlock()
	view := s.state.View()
	if n := view.Node(x.node); n != nil && n.Wish != nil {
		o.Service = &pb.NodeService{State: string(n.ShownHere()), DeadlineMs: int64(x.r.deadline(n.Wish.Since, n.Wish.Deadline)), By: n.Wish.By}
		if n.Wish.Until > 0 {
			o.Service.UntilMs = int64(x.r.stamp(n.Wish.Until))
		}
	}
	now := time.Now()
	due := func(sent map[rm.ContainerID]time.Time, id rm.ContainerID) bool {
		if t, ok := sent[id]; ok && now.Sub(t) < repeatOrders {
			return false
		}
		sent[id] = now
		return true
	}
	if s.notices() {
		o.Notices = &pb.Notices{}
	}
	live := map[rm.ContainerID]bool{}
	for _, c := range view.On(x.node) {
		live[c.ID] = true
		if n := c.Notice; n != nil && o.Notices != nil {
			o.Notices.Notices = append(o.Notices.Notices, &pb.Notice{ContainerId: c.ID.String(), SinceMs: int64(x.r.stamp(n.Since)), DeadlineMs: int64(x.r.deadline(n.Since, n.Deadline)), Reason: n.String()})
		}
		known := x.known[c.ID]
		switch {
		case known == rm.ContainerComplete: // being recorded
		case c.Held(): // until its application says what runs in it
		case c.StopStatus != 0:
			// A node that does not know the container answers with COMPLETE, and starts it no more.
			if due(x.stopped, c.ID) {
				o.Stop = append(o.Stop, &pb.Stop{ContainerId: c.ID.String(), ExitStatus: int32(c.StopStatus), Reason: c.StopReason})
			}
		case known == "" && c.State == rm.ContainerGranted && due(x.started, c.ID):
			spec, err := s.spec(view, c)
			if err != nil {
				s.log.Error("container cannot be started", "container", c.ID, "err", err)
				x.r.stop(c.ID, rm.ExitKilledByResourceManager, err.Error())
				delete(x.started, c.ID)
				continue
			}
			o.Start = append(o.Start, spec)
		}
	}
	for id := range x.strangers {
		if due(x.stopped, id) {
			o.Stop = append(o.Stop, &pb.Stop{ContainerId: id.String(), ExitStatus: int32(rm.ExitAborted), Reason: "the resource manager counts this container as ended"})
		}
	}
	for id, known := range x.known {
		if known == rm.ContainerComplete && !live[id] {
			o.Cleanup = append(o.Cleanup, id.String())
			delete(x.known, id)
			delete(x.started, id)
			delete(x.stopped, id)
		}
	}
	slices.Sort(o.Cleanup)
}

// newKeys are the keys of the node's tokens, unless it has been given them.
func (x *session) newKeys(now time.Time) []*pb.TokenKey {
	id := yarntoken.KeyID(now)
	if x.hasKeys == id {
		return nil
	}
	x.hasKeys = id
	var out []*pb.TokenKey
	for _, k := range x.r.s.yarnTokens.NodeKeys(now, x.node) {
		out = append(out, &pb.TokenKey{Id: k.ID, Node: k.Node, Container: k.Container})
	}
	return out
}

// The limits of a report.
const (
	maxContainers = 10_000
	maxGPUs       = 1_024
	maxLabels     = 100
	maxWord       = 1_024
	maxKept       = 1_000
)

func badReport(format string, args ...any) error {
	return metadata.Errorf(metadata.ErrInvalidArgument, "node report: "+format, args...)
}

// checkName refuses a report that does not say whose it is.
func checkName(r *pb.NodeReport) error {
	if _, port, err := net.SplitHostPort(r.NodeId); err != nil || port == "" || len(r.NodeId) > maxWord {
		return badReport("node_id %.100q is not host:port", r.NodeId)
	}
	if r.Incarnation == "" || len(r.Incarnation) > maxWord {
		return badReport("incarnation is missing, or longer than %d bytes", maxWord)
	}
	return nil
}

// checkReport refuses what no node manager of ours sends.
func checkReport(r *pb.NodeReport) error {
	bad := badReport
	for _, s := range append([]string{r.Host, r.HttpAddress, r.IpcAddress, r.Rack, r.Version, r.DatanodeUuid}, r.Labels...) {
		if len(s) > maxWord {
			return bad("a word is longer than %d bytes", maxWord)
		}
	}
	if r.IpcAddress != "" {
		if _, ok := yarnpb.Node(r.IpcAddress); !ok {
			return bad("ipc_address %.100q is not host:port", r.IpcAddress)
		}
	}
	if r.Rack != "" {
		if err := topology.Check(r.Rack); err != nil { // the scheduler works through its levels for every gang
			return bad("rack %v", err)
		}
	}
	if c := r.Capacity; c == nil || c.Memory < 0 || c.Vcores < 0 || c.Memory > 1<<50 || c.Vcores > 1<<20 {
		return bad("the capacity is missing or out of range")
	}
	if err := checkOther(r); err != nil {
		return bad("%v", err)
	}
	if _, err := rm.NewAttributes(r.Attributes); err != nil {
		return bad("%v", err)
	}
	if len(r.Gpus)+len(r.Divided) > maxGPUs || len(r.OccupiedGpus) > maxGPUs || len(r.Containers) > maxContainers || len(r.Labels) > maxLabels {
		return bad("%d GPUs, %d of them occupied, %d containers and %d labels: %d, %d and %d are the most that are taken",
			len(r.Gpus)+len(r.Divided), len(r.OccupiedGpus), len(r.Containers), len(r.Labels), maxGPUs, maxContainers, maxLabels)
	}
	if len(r.Kept) > maxKept {
		return bad("something is kept for %d applications: %d are the most that are taken", len(r.Kept), maxKept)
	}
	for _, c := range r.Containers {
		if _, err := rm.ParseContainerID(c.ContainerId); err != nil { // nothing that this cluster could have granted
			return bad("%v", err)
		}
		if len(c.GpuUse) > maxGPUs {
			return bad("container %s uses %d GPUs, %d are the most", c.ContainerId, len(c.GpuUse), maxGPUs)
		}
		for _, u := range c.GpuUse {
			if len(u.Uuid) > maxWord {
				return bad("container %s uses a GPU whose uuid is too long", c.ContainerId)
			}
		}
	}
	for _, list := range [][]*pb.GPU{r.Gpus, r.Divided} {
		for _, g := range list {
			if g.Uuid == "" || len(g.Uuid)+len(g.Model)+len(g.Pci)+len(g.Island)+len(g.Health)+len(g.HealthReason)+len(g.Parent) > 8*maxWord || g.Memory < 0 {
				return bad("a GPU without uuid, with words that are too long, or with less than no memory")
			}
		}
	}
	return nil
}

func nodeOf(r *pb.NodeReport) *rm.Node {
	n := &rm.Node{
		ID: rm.NodeID(r.NodeId), Incarnation: r.Incarnation, Host: r.Host, HTTP: r.HttpAddress, IPC: r.IpcAddress, Rack: r.Rack, Version: r.Version,
		Datanode: r.DatanodeUuid, State: rm.NodeRunning, HealthReport: cut(r.HealthReport, maxDiagnostics),
		Capacity: rm.Resource{Memory: r.Capacity.Memory, VCores: int(r.Capacity.Vcores), GPUs: len(r.Gpus)},
	}
	n.Capacity.Other, _ = rm.NewAmounts(r.Capacity.Other) // see checkReport
	n.Attributes, _ = rm.NewAttributes(r.Attributes)
	if len(r.Labels) > 0 {
		n.Labels = slices.Clone(r.Labels)
	}
	if n.Host == "" {
		n.Host, _, _ = net.SplitHostPort(r.NodeId)
	}
	if n.HTTP == "" {
		n.HTTP = r.NodeId
	}
	if n.Rack == "" {
		n.Rack = topology.DefaultRack
	}
	if !r.Healthy {
		n.State = rm.NodeUnhealthy
	}
	for _, g := range r.Gpus {
		n.GPUs = append(n.GPUs, deviceOf(g))
	}
	for _, g := range r.Divided {
		if g.Profile == "" { // a GPU in MIG mode is nobody's
			continue
		}
		d := deviceOf(g)
		d.Profile, d.Parent, d.Island = g.Profile, g.Parent, "" // NVLink joins no instances
		n.GPUs = append(n.GPUs, d)
		n.Capacity.AddDevice(&d)
	}
	return n
}

func deviceOf(g *pb.GPU) rm.GPU {
	return rm.GPU{
		UUID: g.Uuid, Model: g.Model, Memory: g.Memory, Minor: int(g.Minor), PCI: g.Pci, Island: g.Island,
		Simulated: g.Simulated, Health: rm.GPUHealth(g.Health), HealthReason: g.HealthReason,
	}
}

func stateOf(s pb.ContainerStatus_State) rm.ContainerState {
	switch s {
	case pb.ContainerStatus_LOCALIZING:
		return rm.ContainerLocalizing
	case pb.ContainerStatus_RUNNING:
		return rm.ContainerRunning
	case pb.ContainerStatus_STOPPING:
		return rm.ContainerStopping
	case pb.ContainerStatus_COMPLETE:
		return rm.ContainerComplete
	}
	return rm.ContainerLocalizing // known to the node, not running yet
}

// cut shortens text at a character's border.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "..."
}
