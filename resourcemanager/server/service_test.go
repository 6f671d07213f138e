package server

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
	"github.com/gohops/hops/resourcemanager/state"
)

// administer sends an operator's request in the name of a user and returns the status and the text.
func (c *testCluster) administer(user, action string, body rest.AdminRequest) (int, string) {
	c.t.Helper()
	body.Action = action
	var text string
	code, _ := c.http("POST", "/api/v1/admin/nodes", user, body, &text)
	return code, text
}

// operate is administer by the superuser, who is let.
func (c *testCluster) operate(action string, body rest.AdminRequest) {
	c.t.Helper()
	if code, text := c.administer(c.door.Daemon(), action, body); code != http.StatusOK {
		c.t.Fatalf("%s %v: %d %s", action, body.Nodes, code, text)
	}
}

// shown is the state of a node as operators see it.
func (c *testCluster) shown(n *fakeNode) rm.NodeState {
	if v := c.leader().View().Node(rm.NodeID(n.id)); v != nil {
		return v.ShownHere()
	}
	return ""
}

func (c *testCluster) awaitShown(n *fakeNode, want rm.NodeState) {
	c.t.Helper()
	eventually(c.t, n.id+" to be "+string(want), func() bool { return c.shown(n) == want })
}

func seconds(n int64) *int64 { return &n }

// A node that is decommissioned gets nothing new, what runs there may end, and then it is let go; it comes back at once.
func TestADecommissionedNodeWaitsForWhatItHolds(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	done := make(chan struct{})
	program := programs(c, func(ctx context.Context, _ *pb.ContainerSpec) int {
		select {
		case <-ctx.Done():
			return 143
		case <-done:
			return 0
		}
	})
	n := c.node("127.0.0.1:1001", 2, program)
	var logs atomic.Bool
	n.set(func() {
		n.spoil = func(r *pb.NodeReport) {
			if logs.Load() {
				r.Logs = []*pb.LogsUnderway{{ApplicationId: "application_1_0001"}}
			}
		}
	})
	id := c.submit("ann", `{"argv":["train"],"resources":{"gpus":1}}`)
	eventually(t, "the command to run", func() bool { return len(n.running(false)) == 1 })
	logs.Store(true)
	c.operate("decommission", rest.AdminRequest{Nodes: []string{n.id}})
	c.awaitShown(n, rm.NodeDecommissioning)
	var nodes string
	c.http("GET", "/ws/v1/cluster/nodes?states=DECOMMISSIONING", "", nil, &nodes)
	if !strings.Contains(nodes, `"state":"DECOMMISSIONING"`) || !strings.Contains(nodes, `"availMemoryMB":0`) || !strings.Contains(nodes, "is being decommissioned by "+c.door.Daemon()) {
		t.Errorf("YARN's node: %s", nodes)
	}
	second := c.submit("ann", `{"argv":["train"],"resources":{"gpus":1}}`)
	if r := c.awaitReason(second, rm.ReasonNoNodes); !strings.Contains(r.Text, "taken out of service") {
		t.Errorf("reason %v", r)
	}
	close(done)
	if j := c.await(id, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded {
		t.Errorf("what ran there: %+v", j)
	}
	eventually(t, "nothing to run there", func() bool { return c.leader().View().Node(rm.NodeID(n.id)).Live == 0 })
	if c.leader().View().Node(rm.NodeID(n.id)).Retired {
		t.Error("it was let go while it has logs")
	}
	logs.Store(false)
	c.awaitShown(n, rm.NodeDecommissioned)
	c.http("GET", "/ws/v1/cluster/metrics", "", nil, &nodes)
	if !strings.Contains(nodes, `"decommissionedNodes":1`) || !strings.Contains(nodes, `"activeNodes":0`) {
		t.Errorf("metrics: %s", nodes)
	}
	c.operate("recommission", rest.AdminRequest{Nodes: []string{"127.0.0.1"}})
	c.awaitShown(n, rm.NodeRunning)
	if j := c.await(second, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded {
		t.Errorf("what waited: %+v", j)
	}
	c.check()
}

// What outlives its time on a node that leaves is preempted, with the reason; a gang goes on whole elsewhere.
func TestWhatOutlivesADecommissionIsPreempted(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	var elsewhere atomic.Bool
	program := programs(c, func(ctx context.Context, _ *pb.ContainerSpec) int {
		if elsewhere.Load() {
			return 0
		}
		return untilStopped(ctx, nil)
	})
	n := c.node("127.0.0.1:1001", 4, program)
	c.awaitOpen(n)
	id := c.submit("ann", `{"argv":["train"],"instances":2,"gang":true,"retry":{"max":1,"on":["preempted"]},"resources":{"gpus":2}}`)
	eventually(t, "the gang to run", func() bool { return len(n.running(false)) == 2 })
	lone := c.submit("bob", `{"argv":["train"],"retry":{"max":1,"on":["failure"]}}`)
	eventually(t, "the lone one to run", func() bool { return len(n.running(false)) == 3 })
	other := c.node("127.0.0.1:1002", 4, program)
	c.awaitOpen(other)
	elsewhere.Store(true)
	c.operate("decommission", rest.AdminRequest{Nodes: []string{n.id}, Timeout: seconds(0)})
	if j := c.await(id, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded {
		t.Errorf("the gang: %+v", j)
	}
	j := c.await(lone, rm.StateFinished)
	for _, want := range []string{"preempted (-102)", "node " + n.id + " is taken out of service by " + c.door.Daemon()} {
		if j.FinalStatus != rm.FinalFailed || !strings.Contains(j.Diagnostics, want) {
			t.Errorf("the user reads %q, which lacks %q", j.Diagnostics, want)
		}
	}
	c.awaitShown(n, rm.NodeDecommissioned)
	for _, k := range c.job(id).Containers {
		if k.Node == n.id && !k.Master && (k.ExitStatus == nil || *k.ExitStatus != int(rm.ExitPreempted)) {
			t.Errorf("container %+v", k)
		}
	}
	c.check()
}

// Masters hear that their containers are to leave, with the time that is left and the reason.
func TestMastersHearOfADecommission(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	heard := make(chan *pb.Preempt, 10)
	commands := programs(c, untilStopped)
	n := c.node("127.0.0.1:1001", 1, func(ctx context.Context, spec *pb.ContainerSpec) int {
		if !spec.ApplicationMaster {
			return commands(ctx, spec)
		}
		masters := mastersAt(t, c.peers[0].GRPC, tokenKey(c, spec.ContainerId, spec.Token))
		go func() { // beside the master that is there
			stream, err := masters.Events(ctx, &pb.EventsRequest{ApplicationId: spec.ApplicationId, Attempt: 1, Epoch: 1})
			if err != nil {
				return
			}
			for {
				e, err := stream.Recv()
				if err != nil {
					return
				}
				if p := e.GetPreempt(); p != nil {
					select {
					case heard <- p:
					default:
					}
				}
			}
		}()
		return commands(ctx, spec)
	})
	c.submit("ann", `{"argv":["train"],"resources":{"gpus":1}}`)
	eventually(t, "the command to run", func() bool { return len(n.running(false)) == 1 })
	id := n.running(false)[0].ContainerId
	c.operate("decommission", rest.AdminRequest{Nodes: []string{n.id}, Timeout: seconds(3600)})
	eventually(t, "the event to be kept", func() bool {
		a, err := rm.ParseContainerID(id)
		return err == nil && slices.ContainsFunc(c.leader().View().Events(a.Attempt.Application, 0), func(e state.Event) bool { return e.Preempt == a }) || len(heard) > 0
	})
	select {
	case p := <-heard:
		if p.ContainerId != id || p.DeadlineMs == 0 || !strings.Contains(p.Reason, "is being decommissioned by") {
			t.Errorf("the master heard %v", p)
		}
	default:
	}
}

// What operators want of nodes outlives the leader; a maintenance ends by itself.
func TestADecommissionSurvivesAFailover(t *testing.T) {
	c := newTestCluster(t, 3, nil)
	n := c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	m := c.node("127.0.0.1:1002", 0, programs(c, untilStopped))
	c.awaitOpen(n, m)
	c.operate("decommission", rest.AdminRequest{Nodes: []string{n.id}})
	c.operate("maintenance", rest.AdminRequest{Nodes: []string{m.id}, For: 3600})
	c.awaitShown(n, rm.NodeDecommissioned)
	c.awaitShown(m, rm.NodeInMaintenance)
	c.kill(slices.Index(c.live, c.leader()))
	if s := c.shown(n); s != rm.NodeDecommissioned {
		t.Errorf("after the fail-over it is %s", s)
	}
	if w := c.leader().View().Node(rm.NodeID(m.id)).Wish; w == nil || !w.Maintenance || w.Until == 0 || w.By != c.door.Daemon() {
		t.Errorf("after the fail-over the maintenance is %+v", w)
	}
	id := c.submit("ann", `{"argv":["train"]}`)
	eventually(t, "a reason", func() bool { return c.waits(id) == rm.ReasonNoNodes })
	c.operate("maintenance", rest.AdminRequest{Nodes: []string{m.id}, For: 1})
	c.awaitShown(m, rm.NodeRunning)
	eventually(t, "it to take work again", func() bool { return len(m.running(true)) == 1 })
	c.check()
}

// A node that is cordoned gets nothing new, and what runs there goes on and hears nothing of it; it can be drained from there.
func TestACordonedNode(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 2, programs(c, untilStopped))
	c.awaitOpen(n)
	c.raise()
	c.submit("ann", `{"argv":["train"],"resources":{"gpus":1}}`)
	eventually(t, "the command to run", func() bool { return len(n.running(false)) == 1 })
	c.operate("cordon", rest.AdminRequest{Nodes: []string{n.id}, Reason: "its fan is loud"})
	c.awaitShown(n, rm.NodeCordoned)
	second := c.submit("ann", `{"argv":["train"]}`)
	eventually(t, "a reason", func() bool { return c.waits(second) == rm.ReasonNoNodes })
	var text string
	eventually(t, "an explanation", func() bool {
		var e rest.ExplainedJob
		c.http("GET", "/api/v1/jobs/"+second.String()+"/explain", "ann", nil, &e)
		return len(e.Asks) == 1 && len(e.OutOfService) == 1 && strings.Contains(e.OutOfService[0], "is cordoned by "+c.door.Daemon()+": its fan is loud")
	})
	c.http("GET", "/api/v1/nodes", "", nil, &text)
	for _, want := range []string{`"state":"CORDONED"`, `"cordon":true`, `"reason":"its fan is loud"`, "is cordoned by " + c.door.Daemon() + ": its fan is loud"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
	if c.http("GET", "/ws/v1/cluster/nodes", "", nil, &text); !strings.Contains(text, `"state":"RUNNING"`) {
		t.Errorf("YARN's words: %s", text)
	}
	if row := c.leader().View().Node(rm.NodeID(n.id)); row.Leaves() || row.Retired || len(n.running(false)) != 1 {
		t.Errorf("it leaves: %+v", row)
	}
	for _, row := range []struct {
		request rest.AdminRequest
		words   string
	}{
		{rest.AdminRequest{Timeout: seconds(5)}, "what runs behind a cordon is not ended"},
		{rest.AdminRequest{Reason: "a\nb"}, "in one line"},
	} {
		row.request.Nodes = []string{n.id}
		if code, text := c.administer(c.door.Daemon(), "cordon", row.request); code != http.StatusBadRequest || !strings.Contains(text, row.words) {
			t.Errorf("%+v: %d %s", row.request, code, text)
		}
	}
	c.operate("maintenance", rest.AdminRequest{Nodes: []string{n.id}, Timeout: seconds(0)})
	if code, text := c.administer(c.door.Daemon(), "cordon", rest.AdminRequest{Nodes: []string{n.id}}); code != http.StatusBadRequest || !strings.Contains(text, "gets nothing new already") {
		t.Errorf("a cordon of what leaves: %d %s", code, text)
	}
	c.awaitShown(n, rm.NodeInMaintenance)
	c.operate("recommission", rest.AdminRequest{Nodes: []string{n.id}})
	eventually(t, "what waited to run", func() bool { return c.job(second).Phase == "RUNNING" })
	c.check()
}

// Who may take a node out of service, and what is refused.
func TestWhoMayAdministerNodes(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	c.awaitOpen(n)
	boss := c.door.Daemon()
	for _, row := range []struct {
		name, method, path string
		body               any
		code               int
		words              string
	}{
		{"an ordinary user decommissions a node", "POST", "/api/v1/admin/nodes?user.name=ann", rest.AdminRequest{Action: "decommission", Nodes: []string{n.id}}, 403, "User ann doesn't have permission to call 'refreshNodes'"},
		{"nobody decommissions a node", "POST", "/api/v1/admin/nodes", rest.AdminRequest{Action: "decommission", Nodes: []string{n.id}}, 403, "User dr.who doesn't have permission to call 'refreshNodes'"},
		{"an ordinary user has the list of nodes read", "POST", "/api/v1/admin/refresh-nodes?user.name=ann", nil, 403, "User ann doesn't have permission to call 'refreshNodes'"},
		{"an ordinary user has the queues read", "POST", "/api/v1/admin/refresh-queues?user.name=ann", nil, 403, "User ann doesn't have permission to call 'refreshQueues'"},
		{"an ordinary user has the groups forgotten", "POST", "/api/v1/admin/refresh-groups?user.name=ann", nil, 403, "User ann doesn't have permission to call 'refreshUserToGroupsMappings'"},
		{"an ordinary user has the proxy users read", "POST", "/api/v1/admin/refresh-proxy-users?user.name=ann", nil, 403, "User ann doesn't have permission to call 'refreshSuperUserGroupsConfiguration'"},
		{"an ordinary user has the superusers read", "POST", "/api/v1/admin/refresh-superusers?user.name=ann", nil, 403, "User ann doesn't have permission to call 'refreshAdminAcls'"},
		{"an ordinary user resizes a node", "PUT", "/api/v1/admin/nodes/" + n.id + "/resource?memory_mib=1&vcores=1&user.name=ann", nil, 403, "User ann doesn't have permission to call 'updateNodeResource'"},
		{"a superuser names a node that is not there", "POST", "/api/v1/admin/nodes?user.name=" + boss, rest.AdminRequest{Action: "decommission", Nodes: []string{n.id, "m9"}}, 404, `no node \"m9\"`},
		{"a superuser names no node", "POST", "/api/v1/admin/nodes?user.name=" + boss, rest.AdminRequest{Action: "decommission"}, 400, "want 1 to 1000"},
		{"a superuser wants something else of a node", "POST", "/api/v1/admin/nodes?user.name=" + boss, rest.AdminRequest{Action: "explode", Nodes: []string{n.id}}, 400, "is not decommission, maintenance, cordon or recommission"},
		{"a superuser wants a decommission that ends by itself", "POST", "/api/v1/admin/nodes?user.name=" + boss, rest.AdminRequest{Action: "decommission", Nodes: []string{n.id}, For: 5}, 400, "only a maintenance or a cordon ends by itself"},
		{"a cordon before the cluster is raised", "POST", "/api/v1/admin/nodes?user.name=" + boss, rest.AdminRequest{Action: "cordon", Nodes: []string{n.id}}, 400, "until the cluster is raised"},
		{"a superuser gives a century", "POST", "/api/v1/admin/nodes?user.name=" + boss, rest.AdminRequest{Action: "maintenance", Nodes: []string{n.id}, For: 1 << 31}, 400, "up to 8760h0m0s"},
		{"a superuser gives a node less than nothing", "PUT", "/api/v1/admin/nodes/" + n.id + "/resource?memory_mib=-1&vcores=1&user.name=" + boss, nil, 400, "give both"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var text string
			if code, _ := c.http(row.method, row.path, "", row.body, &text); code != row.code || !strings.Contains(text, row.words) {
				t.Errorf("%d %s, want %d %s", code, text, row.code, row.words)
			}
		})
	}
	if s := c.shown(n); s != rm.NodeRunning {
		t.Errorf("the node is %s", s)
	}
}

// The file of excluded nodes counts from the moment it is read, whole or not at all.
func TestTheListOfExcludedNodes(t *testing.T) {
	list := filepath.Join(t.TempDir(), "exclude")
	write := func(text string) {
		if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := newTestCluster(t, 1, func(c *Config) { c.NodesExclude = list })
	n := c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	m := c.node("127.0.0.1:1002", 0, programs(c, untilStopped))
	c.awaitOpen(n, m)
	refresh := func(query string) (int, string) {
		var text string
		code, _ := c.http("POST", "/api/v1/admin/refresh-nodes"+query, c.door.Daemon(), nil, &text)
		return code, text
	}
	if code, text := refresh(""); code != http.StatusNotFound || !strings.Contains(text, "yarn.resourcemanager.nodes.exclude-path") {
		t.Errorf("a file that is not there: %d %s", code, text)
	}
	write("# on its way out\n127.0.0.1:1001   m7\n")
	if code, text := refresh("?timeout_s=-1"); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	c.awaitShown(n, rm.NodeDecommissioned)
	if s := c.shown(m); s != rm.NodeRunning {
		t.Errorf("the other is %s", s)
	}
	for text, words := range map[string]string{"<hosts/>": "XML is not supported", "ok\nb\x01d\n": "line 2"} {
		write(text)
		if code, text := refresh(""); code != http.StatusBadRequest || !strings.Contains(text, words) || !strings.Contains(text, "stays as it was") {
			t.Errorf("a bad list: %d %s, want %s", code, text, words)
		}
	}
	if s := c.shown(n); s != rm.NodeDecommissioned {
		t.Errorf("after a bad list it is %s", s)
	}
	if code, text := c.administer(c.door.Daemon(), "recommission", rest.AdminRequest{Nodes: []string{n.id}}); code != http.StatusBadRequest || !strings.Contains(text, "take it off the file") {
		t.Errorf("taken back by name: %d %s", code, text)
	}
	late := c.node("127.0.0.1:1003", 0, programs(c, untilStopped))
	c.awaitOpen(late)
	write("")
	if code, text := refresh(""); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	c.awaitShown(n, rm.NodeRunning)
}

// A node has what an operator says, whatever it reports, until it is told otherwise.
func TestANodeIsResized(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	c.awaitOpen(n)
	set := func(memory, vcores int) {
		t.Helper()
		if code, _ := c.http("PUT", fmt.Sprintf("/api/v1/admin/nodes/%s/resource?memory_mib=%d&vcores=%d", n.id, memory, vcores), c.door.Daemon(), nil, nil); code != http.StatusOK {
			t.Fatal(code)
		}
	}
	set(512, 1)
	job := `{"argv":["train"],"resources":{"memory":"1GiB"}}`
	var text string
	if code, _ := c.http("POST", "/api/v1/jobs", "ann", job, &text); code != http.StatusBadRequest || !strings.Contains(text, "the most is 512") {
		t.Errorf("a job that is too large now: %d %s", code, text)
	}
	n.set(func() { n.capacity.Vcores = 32 }) // it registers anew
	eventually(t, "the new report", func() bool { return c.leader().View().Node(rm.NodeID(n.id)).Reported.VCores == 32 })
	if got := c.leader().View().Node(rm.NodeID(n.id)).Capacity; got.Memory != 512*rm.MiB || got.VCores != 1 {
		t.Errorf("after its report it has %v", got)
	}
	set(0, 0)
	c.submit("ann", job)
	eventually(t, "the command to run", func() bool { return len(n.running(false)) == 1 })
	c.check()
}

// Queues are read anew on every member, without a stop, and bad ones change nothing.
func TestQueuesAreReadAnew(t *testing.T) {
	var next atomic.Pointer[Configured]
	var wrong atomic.Pointer[error]
	c := newTestCluster(t, 2, func(c *Config) {
		c.Configured = func() (Configured, error) {
			if err := wrong.Load(); err != nil {
				return Configured{}, *err
			}
			return *next.Load(), nil
		}
	})
	n := c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	c.awaitOpen(n)
	refresh := func(i int, query string) (int, string) {
		for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			request, err := http.NewRequest(http.MethodPost, "http://"+c.peers[i].HTTP+"/api/v1/admin/refresh-queues?user.name="+c.door.Daemon()+query, nil)
			if err != nil {
				t.Fatal(err)
			}
			var text string
			code, _ := c.do(request, &text)
			if code != http.StatusServiceUnavailable && code != http.StatusGatewayTimeout || time.Now().After(end) { // leaders change on a busy machine
				return code, text
			}
		}
	}
	running := c.submit("ann", `{"argv":["train"]}`)
	eventually(t, "it to run", func() bool { return len(n.running(false)) == 1 })
	eventually(t, "both members to know it", func() bool {
		return c.live[0].View().Application(running) != nil && c.live[1].View().Application(running) != nil
	})
	before := c.leader().Queues().Hash()
	for _, bad := range []struct {
		queues rm.QueueConfig
		words  string
	}{
		{rm.QueueConfig{Children: map[string]rm.QueueConfig{"default": {Capacity: "50%"}, "b": {Capacity: "40%"}}}, "Failed to re-init queues : queue root: capacities of its children add up to 90%, not 100%"},
		{rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "50%"}, "b": {Capacity: "50%"}}}, "of ann loses its queue root.default"},
	} {
		next.Store(&Configured{Queues: bad.queues})
		for i := range c.live {
			if code, text := refresh(i, ""); code != http.StatusBadRequest || !strings.Contains(text, bad.words) || strings.Contains(text, `\n`) {
				t.Errorf("bad queues: %d %s, want %s", code, text, bad.words)
			}
		}
	}
	err := fmt.Errorf("hops.yaml: line 3: unknown key\nhops.yaml: line 9: a size")
	wrong.Store(&err)
	if code, text := refresh(0, ""); code != http.StatusBadRequest || !strings.Contains(text, "line 3: unknown key; hops.yaml: line 9") {
		t.Errorf("a bad file: %d %s", code, text)
	}
	wrong.Store(nil)
	if c.leader().Queues().Hash() != before {
		t.Error("bad queues count")
	}
	next.Store(&Configured{Queues: rm.QueueConfig{Children: map[string]rm.QueueConfig{"default": {Capacity: "50%"}, "b": {Capacity: "50%"}}}})
	if code, text := refresh(0, "&check=true"); code != http.StatusOK || c.live[0].Queues().Hash() != before {
		t.Errorf("looked at only: %d %s", code, text)
	}
	for i := range c.live {
		if code, text := refresh(i, ""); code != http.StatusOK {
			t.Errorf("%d %s", code, text)
		}
	}
	eventually(t, "all members to go by the same", func() bool {
		_, hash := c.leader().View().Leader()
		return hash == c.live[0].Queues().Hash() && hash == c.live[1].Queues().Hash() && hash != before
	})
	second := c.submit("ann", `{"argv":["train"],"queue":"b"}`)
	eventually(t, "both to run", func() bool { return len(n.running(false)) == 2 })
	for _, id := range []rm.ApplicationID{running, second} {
		if j := c.job(id); j.State != rm.StateRunning {
			t.Errorf("%v is %s", id, j.State)
		}
	}
	c.check()
}

func TestAnOperatorJudgesAGPU(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:45454", 2, nil)
	c.awaitOpen(n)
	var uuid string
	for v := range c.leader().View().Nodes() {
		uuid = v.GPUs[1].UUID
	}
	judge := func(user, uuid, health string) (int, string) {
		var text string
		code, _ := c.http("PUT", "/api/v1/admin/gpus/"+uuid+"/health?health="+health, user, nil, &text)
		return code, text
	}
	root := c.door.Daemon()
	for _, try := range []struct {
		user, uuid, health string
		code               int
		says               string
	}{
		{"ann", uuid, "RETIRED", http.StatusForbidden, "ann"},
		{root, "GPU-none", "RETIRED", http.StatusNotFound, "no node has a GPU"},
		{root, uuid, "SUSPECT", http.StatusBadRequest, "give HEALTHY"},
		{root, uuid, "", http.StatusBadRequest, "give HEALTHY"},
		{root, uuid, "retired", http.StatusOK, ""},
	} {
		if code, text := judge(try.user, try.uuid, try.health); code != try.code || !strings.Contains(text, try.says) {
			t.Errorf("%s says that %s is %q: %d %s", try.user, try.uuid, try.health, code, text)
		}
	}
	eventually(t, "the node is told, once", func() (told bool) {
		n.set(func() { told = len(n.judged) > 0 })
		return told
	})
	n.set(func() {
		if want := []string{uuid + " RETIRED " + root}; !slices.Equal(n.judged, want) {
			t.Errorf("%q, want %q", n.judged, want)
		}
	})
}
