package rest

import (
	"context"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/gohops/hops/internal/jersey/jerseytest"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// recordedOperator does what the recorded requests ask of one.
type recordedOperator struct{ *queueOperator }

func (o recordedOperator) Resize(_ context.Context, _ metadata.Caller, id rm.NodeID, r rm.Resource) error {
	return o.c.do(&statepb.Command{Op: &statepb.Command_ResizeNode{ResizeNode: &statepb.ResizeNode{Node: string(id), Resource: state.Resource(r)}}}).Err
}

func (o recordedOperator) ChangeLabels(_ context.Context, _ metadata.Caller, add []rm.NodeLabel, remove []string) error {
	c := &statepb.ChangeLabels{Remove: remove}
	for _, l := range add {
		c.Add = append(c.Add, &statepb.Label{Name: l.Name, Exclusive: l.Exclusive})
	}
	return o.c.do(&statepb.Command{Op: &statepb.Command_ChangeLabels{ChangeLabels: c}}).Err
}

func (o recordedOperator) MarkNodes(_ context.Context, _ metadata.Caller, marks []NodeMarks, known bool) error {
	c := &statepb.MarkNodes{Known: known}
	for _, m := range marks {
		c.Nodes = append(c.Nodes, &statepb.NodeMarks{Node: m.Node, Labels: &statepb.Labels{Names: m.Labels}})
	}
	return o.c.do(&statepb.Command{Op: &statepb.Command_MarkNodes{MarkNodes: c}}).Err
}

// recordedCluster is the cluster of the recordings: one node with 8 GPUs, a queue of each kind, and the applications that the
// requests name, put there when the recordings had them.
type recordedCluster struct {
	*fakeCluster
	t *testing.T
	// asks wait; they are those of recordings 76 to 254.
	asks map[rm.ApplicationID][]Waiting
}

func (c *recordedCluster) Waiting(id rm.ApplicationID) []Waiting { return c.asks[id] }

// started is when the recorded resource manager began, which is in all ids.
const started = 1795248047013

func newRecordedCluster(t *testing.T) *recordedCluster {
	q, err := rm.NewQueues(rm.QueueConfig{Administer: []string{"root", "admin"}, Children: map[string]rm.QueueConfig{
		"default": {Capacity: "40%"}, "prod": {Capacity: "60%", Children: map[string]rm.QueueConfig{
			"a": {Capacity: "40%"}, "b": {Capacity: "30%", Submit: []string{"bob"}}, "stopped": {Capacity: "10%", State: rm.QueueStopped}, "plan": {Capacity: "20%"},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c := &recordedCluster{fakeCluster: &fakeCluster{t: t, state: state.New(state.Config{}), queues: q, leading: true, level: 2}, t: t, asks: map[rm.ApplicationID][]Waiting{}}
	c.do(&statepb.Command{NowMs: started, Op: &statepb.Command_Begin{Begin: &statepb.Begin{}}})
	c.node()
	c.runs(1, "ds-quick", "root.default")
	c.do(&statepb.Command{Op: &statepb.Command_Finish{Finish: &statepb.Finish{Application: state.ApplicationID(c.id(1)), Attempt: 1, Epoch: 1, Final: "SUCCEEDED"}}})
	for _, k := range c.View().Containers(c.id(1)) {
		c.do(&statepb.Command{Op: &statepb.Command_Statuses{Statuses: &statepb.Statuses{Epoch: 1, Node: "host.example:8041", Incarnation: "i", Statuses: []*statepb.Status{{Container: state.ContainerID(k.ID), State: "COMPLETE"}}}}})
	}
	e := c.runs(2, "ds-gpu", "root.prod.a")
	worker := rm.Resource{Memory: 128 * rm.MiB, VCores: 1, GPUs: 2}
	c.wants(2, e, worker, 2)
	c.grant(2, "w", worker, "GPU-0", "GPU-1")
	c.grant(2, "w", worker, "GPU-2", "GPU-3")
	return c
}

func (c *recordedCluster) id(n int64) rm.ApplicationID {
	return rm.ApplicationID{Cluster: started, Sequence: n}
}

func (c *recordedCluster) node(labels ...string) {
	n := &rm.Node{
		ID: "host.example:8041", Incarnation: "i", Host: "host.example", HTTP: "host.example:8042", Rack: "/default-rack", Version: "3.4.1", Labels: labels,
		State: rm.NodeRunning, Capacity: rm.Resource{Memory: 8192 * rm.MiB, VCores: 16, GPUs: 8},
	}
	for i := range 8 {
		n.GPUs = append(n.GPUs, rm.GPU{UUID: fmt.Sprint("GPU-", i)})
	}
	c.must(&statepb.Command{Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: 1, Node: state.Node(n)}}})
}

func (c *recordedCluster) must(command *statepb.Command) *state.Result {
	c.t.Helper()
	r := c.do(command)
	if r.Err != nil {
		c.t.Fatal(r.Err)
	}
	return r
}

func (c *recordedCluster) submit(n int64, name, queue string) {
	c.t.Helper()
	if _, _, err := c.Submit(context.Background(), metadata.Caller{User: "alice"}, Submission{ID: c.id(n), Name: name, Queue: queue, Type: "YARN", Kind: rm.KindCommand, Priority: 1, Document: []byte(`{}`)}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *recordedCluster) grant(n int64, ask string, r rm.Resource, gpus ...string) {
	c.t.Helper()
	g := c.must(&statepb.Command{Op: &statepb.Command_Grant{Grant: &statepb.Grant{Epoch: 1, Groups: []*statepb.Group{{
		Application: state.ApplicationID(c.id(n)), Attempt: 1, Ask: ask, Placements: []*statepb.Placement{{Node: "host.example:8041", Resource: state.Resource(r), Gpus: gpus}},
	}}}}}).Groups[0]
	if len(g.Containers) != 1 {
		c.t.Fatal(g.Reason)
	}
	c.must(&statepb.Command{Op: &statepb.Command_Statuses{Statuses: &statepb.Statuses{
		Epoch: 1, Node: "host.example:8041", Incarnation: "i", Statuses: []*statepb.Status{{Container: state.ContainerID(g.Containers[0]), State: string(rm.ContainerRunning)}},
	}}})
}

// launched gives an application that was submitted its master, which does not register.
func (c *recordedCluster) launched(n int64) {
	c.grant(n, "", c.View().Application(c.id(n)).Master)
}

func (c *recordedCluster) runs(n int64, name, queue string) (epoch uint64) {
	c.submit(n, name, queue)
	c.launched(n)
	return c.register(c.id(n), "")
}

func (c *recordedCluster) wants(n int64, epoch uint64, r rm.Resource, count int) {
	c.must(&statepb.Command{Op: &statepb.Command_Allocate{Allocate: &statepb.Allocate{
		Application: state.ApplicationID(c.id(n)), Attempt: 1, Epoch: epoch, Sequence: 1,
		Asks: []*statepb.WantedAsk{{Ask: state.Ask(rm.Ask{ID: "w", Resource: r, Count: count}), Launch: &statepb.Launch{Argv: []string{"x"}}}},
	}}})
}

// before is what happened in the recorded cluster before an exchange.
func (c *recordedCluster) before(name string) {
	switch name[:3] {
	case "076":
		e := c.runs(26, "ds-wait", "root.default")
		c.wants(26, e, rm.Resource{Memory: 128 * rm.MiB, VCores: 1, GPUs: 2}, 1)
		c.asks[c.id(26)] = []Waiting{{Ask: "w", Reason: rm.Reason{Code: rm.ReasonResources, Text: "no node has 2 GPUs left"}}}
	case "127":
		c.launched(7)
	case "137":
		c.submit(16, "sleep", "root.default")
	case "138":
		c.launched(6)
	case "143":
		c.submit(20, "toobig", "root.default")
	case "172":
		c.node("gpuA100", "h100")
	case "174":
		c.node("h100")
	case "178":
		c.node()
	}
}

// optionalMembers need not be in an answer.
var optionalMembers = map[string][]string{
	// YARN's figures of how long its masters take and of its event queues: there is nothing alike here.
	"251-jmx": {
		".beans[].AMContainerAllocationDelayNumOps", ".beans[].AMContainerAllocationDelayAvgTime", ".beans[].AMLaunchDelayNumOps", ".beans[].AMLaunchDelayAvgTime",
		".beans[].AMRegisterDelayNumOps", ".beans[].AMRegisterDelayAvgTime", ".beans[].ContainerAssignedPerSecond", ".beans[].RmDispatcherEventQueueSize",
		".beans[].RmEventProcCPUAvg", ".beans[].RmEventProcCPUMax", ".beans[].SchedulerDispatcherEventQueueSize", ".beans[].UtilizedVirtualCores",
	},
	// Nothing has to be switched on first: the answer is there.
	"075-activities-arm": {".activities.diagnostic"},
	// The scheduler looks at all nodes at once, and names none.
	"076-app-activities": {".appActivities.allocations[].nodeId"}, "142-app-activities-grouped": {".appActivities.allocations[].nodeId"},
	"077-activities": {".activities.nodeId"}, "078-activities-groupby": {".activities.nodeId"}, "079-bulk-activities": {".bulkActivities.activities[].nodeId", ".bulkActivities.activities[].allocations[].root.diagnostic"},
	// Only a reservable queue has queues below a leaf.
	"072-scheduler-running": {".scheduler.schedulerInfo.queues.queue[].queues.queue[].queues"},
}

// deviations are all answers that are not as recorded. One that agrees by now must be taken off, one that gets worse put right.
var deviations = map[string]jerseytest.Deviation{
	"031-app-404-xml": {Status: 404, Why: "who asks for XML gets the error in XML, not status 500 and nothing"},

	"061-containers-drwho":       {Status: 200, Why: "everybody may read what runs, as in YARN without ACLs, its default; what programs print is for their owners"},
	"081-new-application-nouser": {Status: 403, Why: "who does not say who they are may change nothing"},
	"103-submit-nouser":          {Status: 403, Why: "who does not say who they are may change nothing"},
	"119-priority-bad":           {Status: 400, Why: "what is no number is not priority 0"},
	"122-timeout-missing":        {Status: 400, Why: "a bad request is not a failing server"},
	"123-timeout-baddate":        {Status: 400, Why: "a bad request is not a failing server"},
	"124-timeout-past":           {Status: 400, Why: "a bad request is not a failing server"},
	"188-node-resource-alice":    {Status: 403, Why: "in stock YARN anybody may resize nodes"},
	"191-signal-other-user":      {Status: 403, Why: "in stock YARN anybody may end anybody's containers"},
	"194-reservation-submit":     {Status: 400, Why: "no queue takes reservations, and that is YARN's answer for such a queue"},
	"195-reservation-list":       {Status: 400, Why: "no queue takes reservations, and that is YARN's answer for such a queue"},
	"196-reservation-update":     {Status: 400, Why: "no queue takes reservations, so that there is none to update"},
	"197-reservation-delete":     {Status: 400, Why: "no queue takes reservations, so that there is none to delete"},
	"199-reservation-list-empty": {Status: 400, Why: "no queue takes reservations, and that is YARN's answer for such a queue"},

	"252-jmx-queue":      {Status: 200, Why: "the figures of queues are at /metrics"},
	"310-timeline-about": {Status: 404, Why: "there is no timeline store"},
	"315-timeline-put":   {Status: 404, Why: "there is no timeline store"},
}

// Every recorded exchange with a resource manager of Hadoop 3.4.1 is replayed, in the order of the recording.
func TestRecordedExchanges(t *testing.T) {
	c := newRecordedCluster(t)
	door := security.NewDoor(security.Config{Supergroup: "admins", Groups: func(user string) []string {
		if user == "root" {
			return []string{"admins"}
		}
		return nil
	}})
	s := httptest.NewServer(New(Config{Cluster: c, Door: door, Operator: recordedOperator{&queueOperator{c: c.fakeCluster}}}))
	defer s.Close()
	files, err := filepath.Glob(filepath.Join(vectors, "*.http"))
	if err != nil || len(files) < 120 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	// The first resource manager is epoch 1 here, 0 there, and the epoch is in the names of containers.
	jerseytest.Check(t, files, s.URL, c.before, optionalMembers, deviations, "container_1795", "container_e01_1795")
}
