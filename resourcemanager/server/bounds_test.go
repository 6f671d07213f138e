package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/am"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/scheduler"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// asking is a master that wants something and then waits for its end. Other containers run until they are stopped.
func asking(c *testCluster, wants func(*pb.ContainerSpec) []*pb.Ask) func(context.Context, *pb.ContainerSpec) int {
	return func(ctx context.Context, spec *pb.ContainerSpec) int {
		if !spec.ApplicationMaster {
			return untilStopped(ctx, spec)
		}
		id, err := rm.ParseApplicationID(spec.ApplicationId)
		if err != nil {
			c.t.Error(err)
			return 1
		}
		s, err := am.Dial(am.SessionConfig{
			ResourceManagers: strings.Split(spec.Env["HOPS_RM_GRPC"], ","), Application: id, Attempt: int(spec.Attempt), Container: spec.ContainerId,
			Token: spec.Token, Trust: trustOf(c), Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			c.t.Error(err)
			return 1
		}
		defer s.Close()
		if _, err := s.Register(ctx, "", ""); err == nil {
			if asks := wants(spec); len(asks) > 0 {
				err = s.Allocate(ctx, am.Request{Asks: asks})
			}
			if err != nil && ctx.Err() == nil {
				c.t.Errorf("%s: %v", spec.User, err)
			}
		}
		return untilStopped(ctx, spec)
	}
}

var train = &pb.Launch{Argv: []string{"train"}}

// A plan is committed in as many parts as it takes, and a gang that fits into none of them gets its reason and stops
// nobody behind it.
func TestALargePlanIsGrantedAndAGangThatIsTooLargeStopsNobody(t *testing.T) {
	c := newTestCluster(t, 1, func(c *Config) { c.grantBytes = 2 << 10 })
	small := &pb.Resources{Memory: 1, Vcores: 1}
	const gangs, members = 20, 10
	ask := make(chan struct{})
	n := c.node("127.0.0.1:1001", 0, asking(c, func(spec *pb.ContainerSpec) (asks []*pb.Ask) {
		<-ask
		switch spec.User {
		case "ann":
			for i := range gangs {
				asks = append(asks, &pb.Ask{AskId: fmt.Sprint("gang-", i), Count: members, GangMin: members, Priority: 1, Resources: small, Launch: train})
			}
		case "eve":
			asks = append(asks, &pb.Ask{AskId: "huge", Count: 100, GangMin: 100, Resources: small, Launch: train})
		default:
			asks = append(asks, &pb.Ask{AskId: "behind", Count: members, GangMin: members, Priority: 1, Resources: small, Launch: train})
		}
		return asks
	}))
	n.set(func() { n.capacity = &pb.Resources{Memory: 1 << 40, Vcores: 1 << 20} })
	c.awaitOpen(n)
	var ids []rm.ApplicationID
	for _, user := range []string{"eve", "ann", "bob"} {
		id := c.submit(user, map[string]any{"argv": []string{"x"}})
		c.await(id, rm.StateRunning)
		ids = append(ids, id)
	}
	close(ask)
	granted := func(id rm.ApplicationID) int { return c.leader().View().Application(id).Live - 1 }
	eventually(t, "the gangs", func() bool { return granted(ids[1]) == gangs*members })
	eventually(t, "the gang behind them", func() bool { return granted(ids[2]) == members })
	eventually(t, "the reason of what cannot be granted", func() bool {
		r := c.job(ids[0]).PendingReason
		return r != nil && r.Code == rm.ReasonGrantTooLarge
	})
	c.check()
}

// What the scheduler takes for small enough is taken by the group of resource managers.
func TestNoPartOfAPlanIsTooLargeForOneCommand(t *testing.T) {
	s := state.New(state.Config{})
	apply := func(index uint64, c *statepb.Command) *state.Result {
		c.NowMs = 1
		b, err := state.Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		return s.Apply(index, [][]byte{b})[0].(*state.Result)
	}
	apply(1, &statepb.Command{Op: &statepb.Command_Begin{Begin: &statepb.Begin{Leader: "rm1"}}})
	app := apply(2, &statepb.Command{Op: &statepb.Command_Submit{Submit: &statepb.Submit{Application: state.Application(&rm.Application{User: "ann"})}}}).Application
	// As many and as large as masters may ask for: 200 gangs of 100, and one of 1,000 with eight devices each.
	var groups []scheduler.Group
	group := func(members, gpus int) {
		g := scheduler.Group{App: app, Ask: "a", Resource: rm.Resource{Memory: 1 << 39, VCores: 1 << 20, GPUs: gpus}}
		for i := range members {
			p := scheduler.Placement{Node: rm.NodeID(fmt.Sprintf("node%05d.example.org:8042", i))}
			for k := range gpus {
				p.GPUs = append(p.GPUs, fmt.Sprintf("GPU-%08d-0000-0000-0000-%012d", i, k))
			}
			g.Placements = append(g.Placements, p)
		}
		groups = append(groups, g)
	}
	for range 200 {
		group(100, 0)
	}
	group(1000, 8)
	r := &reign{s: &Server{config: Config{grantBytes: grantBytes}}}
	count := 0
	for _, part := range r.entries(s.View(), groups) {
		c := &statepb.Grant{Epoch: 1 << 60}
		for _, g := range part {
			c.Groups = append(c.Groups, g.record)
		}
		count += len(part)
		b, err := state.Encode(&statepb.Command{NowMs: 1 << 60, Op: &statepb.Command_Grant{Grant: c}})
		if err != nil || len(b) > raftstore.MaxCommand {
			t.Errorf("a command of %d groups has %d bytes: %v", len(part), len(b), err)
		}
	}
	if count != len(groups) {
		t.Errorf("%d groups of %d", count, len(groups))
	}
}

// Tiny containers are raised to a minimum, and a node takes only so many of whatever size: a node that runs more than it
// can report of would be lost with everybody's work.
func TestManySmallContainersDoNotKillTheirNode(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 0, asking(c, func(spec *pb.ContainerSpec) []*pb.Ask {
		if spec.User != "ann" {
			return nil
		}
		return []*pb.Ask{{AskId: "a", Count: 10_001, Priority: 1, Resources: &pb.Resources{Memory: 1}, Launch: train}}
	}))
	n.set(func() { n.capacity = &pb.Resources{Memory: 1 << 40, Vcores: 1 << 20} })
	c.awaitOpen(n)
	bob := c.submit("bob", map[string]any{"argv": []string{"x"}})
	c.await(bob, rm.StateRunning)
	ann := c.submit("ann", map[string]any{"argv": []string{"x"}})
	c.await(ann, rm.StateRunning)
	eventually(t, "the node to have all that it may", func() bool { return c.leader().View().Node(rm.NodeID(n.id)).Live == rm.MaxContainersPerNode })
	eventually(t, "the reason why the rest waits", func() bool {
		r := c.job(ann).PendingReason
		return r != nil && r.Code == rm.ReasonContainers
	})
	for _, k := range c.leader().View().Containers(ann) {
		if least := (rm.Resource{Memory: 128 * rm.MiB, VCores: 1}); !least.FitsIn(k.Resource) {
			t.Fatalf("%v has %v", k.ID, k.Resource)
		}
	}
	if j := c.job(bob); j.Attempt != 1 || j.State != rm.StateRunning {
		t.Errorf("bob's job: attempt %d %s", j.Attempt, j.State)
	}
	c.check()
}

// What a node manager that lies, or another program, says of its node is refused before it reaches the state: where, and what is wrong.
func TestReportsThatLieAreRefused(t *testing.T) {
	good := func() *pb.NodeReport {
		return &pb.NodeReport{
			NodeId: "127.0.0.1:1", Incarnation: "one", Rack: "/row7/rack3", Capacity: &pb.Resources{Memory: 1 << 30, Vcores: 1},
			Gpus: []*pb.GPU{{Uuid: "GPU-1", Memory: 1 << 30}},
		}
	}
	if err := errors.Join(checkName(good()), checkReport(good())); err != nil {
		t.Fatal(err)
	}
	many := strings.Repeat("x", maxWord+1)
	for what, test := range map[string]struct {
		lie  func(*pb.NodeReport)
		says string
	}{
		"no port":              {func(r *pb.NodeReport) { r.NodeId = "host" }, "is not host:port"},
		"no incarnation":       {func(r *pb.NodeReport) { r.Incarnation = "" }, "incarnation is missing"},
		"a long name":          {func(r *pb.NodeReport) { r.Host = many }, "longer than"},
		"a rack of no path":    {func(r *pb.NodeReport) { r.Rack = "rack" }, "no path of a rack"},
		"a deep rack":          {func(r *pb.NodeReport) { r.Rack = strings.Repeat("/a", 100) }, "at most 8 parts"},
		"no capacity":          {func(r *pb.NodeReport) { r.Capacity = nil }, "capacity"},
		"less than no memory":  {func(r *pb.NodeReport) { r.Capacity.Memory = -1 }, "capacity"},
		"all memory there is":  {func(r *pb.NodeReport) { r.Capacity.Memory = math.MaxInt64 }, "capacity"},
		"a resource below 0":   {func(r *pb.NodeReport) { r.Capacity.Other = map[string]int64{"a/b": -1} }, "a/b"},
		"a GPU of no name":     {func(r *pb.NodeReport) { r.Gpus[0].Uuid = "" }, "a GPU without uuid"},
		"a GPU of a long name": {func(r *pb.NodeReport) { r.Gpus[0].Model = strings.Repeat(many, 8) }, "too long"},
		"a GPU's memory":       {func(r *pb.NodeReport) { r.Gpus[0].Memory = -1 }, "less than no memory"},
		"a million GPUs":       {func(r *pb.NodeReport) { r.Gpus = make([]*pb.GPU, 1_000_000) }, "1000000 GPUs"},
		"a million containers": {func(r *pb.NodeReport) { r.Containers = make([]*pb.ContainerStatus, 1_000_000) }, "1000000 containers"},
		"the use of many GPUs": {func(r *pb.NodeReport) {
			r.Containers = []*pb.ContainerStatus{{ContainerId: "container_e01_1795399882961_0001_01_000001", GpuUse: make([]*pb.GPUUse, maxGPUs+1)}}
		}, "uses 1025 GPUs"},
	} {
		r := good()
		test.lie(r)
		if err := cmp.Or(checkName(r), checkReport(r)); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A report that cannot be taken in closes its node for new work. What runs there goes on.
func TestARefusedReportEndsNoLease(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	id := c.submit("ann", map[string]any{"argv": []string{"train"}})
	eventually(t, "the command", func() bool { return len(n.running(false)) == 1 })
	for what, spoil := range map[string]func(*pb.NodeReport){
		"too many labels": func(r *pb.NodeReport) { r.Labels = make([]string, maxLabels+1) },
		"a bad attribute": func(r *pb.NodeReport) { r.Attributes = map[string]string{"a b": "c"} },
		"a strange id":    func(r *pb.NodeReport) { r.Containers = append(r.Containers, &pb.ContainerStatus{ContainerId: "x"}) },
	} {
		n.set(func() { n.spoil = spoil })
		eventually(t, what, func() bool { return c.leader().Liveness(rm.NodeID(n.id)).Refused != "" })
		if c.leader().Liveness(rm.NodeID(n.id)).Open {
			t.Errorf("%s: the node takes work", what)
		}
		before := n.leaseEnd()
		eventually(t, "the lease to go on", func() bool { return n.leaseEnd().After(before.Add(200 * time.Millisecond)) })
		n.set(func() { n.spoil = nil })
		c.awaitOpen(n)
		if got := c.leader().Liveness(rm.NodeID(n.id)).Refused; got != "" {
			t.Errorf("still refused: %s", got)
		}
	}
	if len(n.running(false)) != 1 || c.job(id).State != rm.StateRunning {
		t.Error("the command did not survive")
	}
	c.check()
}

func TestQueuesOfAFileAreTaken(t *testing.T) {
	q := Queues(config.Queues{"root": {Children: config.Queues{
		"default": {Capacity: "40%", Stopped: true}, "research": {Capacity: "60", ACLSubmit: []string{"ann"}, ACLAdminister: []string{"eve"}},
	}}})
	tree, err := rm.NewQueues(q)
	if err != nil {
		t.Fatal(err)
	}
	research := tree.Find("research")
	if tree.Find("default").State != rm.QueueStopped || research.State != rm.QueueRunning || !research.MayAdminister("eve") || research.MayAdminister("ann") || !research.MaySubmit("ann") || research.MaySubmit("bob") {
		t.Errorf("%+v", q)
	}
}

// A start that a node will not carry out is answered, and ends the job with what the node says.
func TestARefusedStartEndsTheJob(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	c.node("127.0.0.1:1001", 0, func(context.Context, *pb.ContainerSpec) int { return int(rm.ExitUnknown) })
	j := c.await(c.submit("ann", map[string]any{"argv": []string{"x"}}), rm.StateFailed)
	if j.Attempt != 2 || !strings.Contains(j.Diagnostics, "not started (-1000)") {
		t.Errorf("%+v", j)
	}
	c.check()
}

// An outage of the filesystem is nobody's fault: the container is started again without a try.
func TestAnOutageOfTheFilesystemCostsNoTry(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	var masters, commands atomic.Int32
	real := realMaster(c)
	c.node("127.0.0.1:1001", 0, func(ctx context.Context, spec *pb.ContainerSpec) int {
		switch {
		case spec.ApplicationMaster && masters.Add(1) <= 3, !spec.ApplicationMaster && commands.Add(1) <= 3:
			return int(rm.ExitNoFilesystem)
		case spec.ApplicationMaster:
			return real(ctx, spec)
		}
		if spec.Env["HOPS_TRY"] != "1" {
			t.Errorf("try %s", spec.Env["HOPS_TRY"])
		}
		return 0
	})
	if j := c.await(c.submit("ann", map[string]any{"argv": []string{"x"}}), rm.StateFinished, rm.StateFailed); j.FinalStatus != rm.FinalSucceeded {
		t.Errorf("%+v", j)
	}
	c.check()
}

// Devices on which a node sees processes that are no container's are granted to nobody until they are gone.
func TestOccupiedDevicesAreNotGranted(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 1, programs(c, untilStopped))
	n.set(func() { n.spoil = func(r *pb.NodeReport) { r.OccupiedGpus = []string{r.Gpus[0].Uuid} } })
	eventually(t, "a report that names it", func() bool {
		r := c.leader().reign.Load()
		r.mu.Lock()
		defer r.mu.Unlock()
		known := r.nodes[rm.NodeID(n.id)]
		return known != nil && known.busy["GPU-127.0.0.1:1001-0"]
	})
	id := c.submit("ann", `{"argv":["train"],"resources":{"gpus":1}}`)
	eventually(t, "the job to wait", func() bool { return c.waits(id) == rm.ReasonResources })
	n.set(func() { n.spoil = nil })
	eventually(t, "the command", func() bool { return len(n.running(false)) == 1 })
	c.check()
}
