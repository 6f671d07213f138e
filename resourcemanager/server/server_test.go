package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
)

func TestACommandRunsToItsEnd(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	specs := make(chan *pb.ContainerSpec, 16)
	n := c.node("127.0.0.1:1001", 4, programs(c, func(_ context.Context, spec *pb.ContainerSpec) int {
		specs <- spec
		return 0
	}))
	id := c.submit("ann", `{"name":"hello","argv":["echo","hi"],"instances":3,"resources":{"gpus":1,"memory":"1GiB"},"env":{"A":"1","HOPS_USER":"forged"}}`)
	j := c.await(id, rm.StateFinished)
	if j.FinalStatus != rm.FinalSucceeded || j.Progress != 1 || j.Name != "hello" || j.User != "ann" || j.Queue != "root.default" {
		t.Errorf("job %+v", j)
	}
	seen := map[string]bool{}
	for range 3 {
		spec := <-specs
		seen[spec.Env["HOPS_INSTANCE"]] = true
		if spec.ApplicationMaster || !slices.Equal(spec.Argv, []string{"echo", "hi"}) || len(spec.GpuUuids) != 1 || spec.User != "ann" || len(spec.Token) < 32 ||
			spec.LogDir != "/logs/ann/"+id.String()+"/"+spec.ContainerId {
			t.Errorf("spec %+v", spec)
		}
		for name, want := range map[string]string{
			"A": "1", "HOPS_USER": "ann", "HOPS_APPLICATION_ID": id.String(), "HOPS_CONTAINER_ID": spec.ContainerId,
			"HOPS_RM": c.peers[0].HTTP, "HOPS_RM_GRPC": c.peers[0].GRPC, "HOPS_FS": "hdfs://127.0.0.1:8020", "HOPS_WEBHDFS": "127.0.0.1:9870", "HOPS_ATTEMPT": "1",
		} {
			if spec.Env[name] != want {
				t.Errorf("%s=%q, want %q", name, spec.Env[name], want)
			}
		}
	}
	for _, k := range j.Containers {
		if (k.Instance == nil) != k.Master || k.Instance != nil && !seen[strconv.Itoa(*k.Instance)] {
			t.Errorf("container %+v", k)
		}
	}
	if len(seen) != 3 {
		t.Errorf("instances %v", seen)
	}
	eventually(t, "all containers to be over and forgotten", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.containers) == 0 && c.leader().View().Application(id).Live == 0
	})
	var grants struct {
		Grants []struct {
			GPUs     []string
			From, To int64
		}
	}
	c.http("GET", "/api/v1/grants", "", nil, &grants)
	if len(grants.Grants) != 3 || grants.Grants[0].To == 0 {
		t.Errorf("ledger %+v", grants)
	}
	c.check()
}

func TestAFailedCommandIsTriedAgainAndThenExplained(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	var runs atomic.Int32
	c.node("127.0.0.1:1001", 0, programs(c, func(context.Context, *pb.ContainerSpec) int {
		runs.Add(1)
		return 3
	}))
	id := c.submit("ann", `{"argv":["false"],"retry":{"max":2}}`)
	j := c.await(id, rm.StateFinished)
	if j.FinalStatus != rm.FinalFailed || runs.Load() != 3 {
		t.Errorf("%s after %d runs", j.FinalStatus, runs.Load())
	}
	for _, want := range []string{"container_e01_", "127.0.0.1:1001", "exit status 3", "/logs/ann/" + id.String()} {
		if !strings.Contains(j.Diagnostics, want) {
			t.Errorf("diagnostics lack %q: %s", want, j.Diagnostics)
		}
	}
	once := c.await(c.submit("ann", `{"argv":["false"],"retry":{"max":2,"on":["node_lost"]}}`), rm.StateFinished)
	if runs.Load() != 4 || once.FinalStatus != rm.FinalFailed {
		t.Errorf("a cause that is not retried: %d runs", runs.Load()-3)
	}
	c.check()
}

func TestAKilledJobEndsEverywhere(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 2, programs(c, untilStopped))
	id := c.submit("ann", `{"argv":["sleep","1000"],"instances":2,"resources":{"gpus":1}}`)
	eventually(t, "two commands to run", func() bool { return len(n.running(false)) == 2 })
	if code, _ := c.http("DELETE", "/api/v1/jobs/"+id.String(), "bob", nil, nil); code != http.StatusForbidden {
		t.Errorf("another user's kill: %d", code)
	}
	if code, _ := c.http("DELETE", "/api/v1/jobs/"+id.String(), "", nil, nil); code != http.StatusForbidden {
		t.Errorf("nobody's kill: %d", code)
	}
	if code, _ := c.http("DELETE", "/api/v1/jobs/"+id.String(), "ann", nil, nil); code != http.StatusAccepted {
		t.Errorf("kill: %d", code)
	}
	eventually(t, "nothing to run", func() bool { return c.leader().View().Application(id).Live == 0 })
	j := c.job(id)
	if j.State != rm.StateKilled || j.FinalStatus != rm.FinalKilled || !strings.Contains(j.Diagnostics, "killed by user ann") {
		t.Errorf("%+v", j)
	}
	for _, k := range j.Containers {
		// The master may hear of the end, and leave by itself, before it is stopped.
		if k.ExitStatus == nil || *k.ExitStatus != int(rm.ExitKilledByResourceManager) && !(k.Master && *k.ExitStatus == 0) {
			t.Errorf("container %+v", k)
		}
	}
	c.check()
}

func TestATimeoutKills(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	j := c.await(c.submit("ann", `{"argv":["sleep","1000"],"timeout":0.2}`), rm.StateKilled)
	if !strings.Contains(j.Diagnostics, "timeout of 200ms") {
		t.Errorf("%+v", j)
	}
}

// R1 of the fault matrix.
func TestARestartedResourceManagerKeepsApplicationsAndContainers(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	done := make(chan struct{})
	n := c.node("127.0.0.1:1001", 2, programs(c, func(ctx context.Context, _ *pb.ContainerSpec) int {
		select {
		case <-ctx.Done():
			return 143
		case <-done:
			return 0
		}
	}))
	id := c.submit("ann", `{"argv":["train"],"instances":2,"resources":{"gpus":1}}`)
	eventually(t, "two commands to run", func() bool { return len(n.running(false)) == 2 })
	waiting := c.submit("bob", `{"argv":["train"],"resources":{"gpus":2}}`)
	if r := c.awaitReason(waiting, rm.ReasonResources); r.Resource != rm.GPUName || r.Need != 2 || r.Have != 0 {
		t.Errorf("reason %+v", r)
	}
	before := n.running(false)
	for range 2 {
		c.kill(0)
		c.start(0)
		c.leader()
	}
	if j := c.job(id); j.State != rm.StateRunning || len(j.Containers) != 3 {
		t.Errorf("after the restart: %+v", j)
	}
	eventually(t, "the node to be open again", func() bool { return c.leader().Liveness(rm.NodeID(n.id)).Open })
	after := n.running(false)
	if len(after) != 2 || after[0] != before[0] || after[1] != before[1] {
		t.Error("containers did not survive")
	}
	close(done)
	if j := c.await(id, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded || j.Attempt != 1 {
		t.Errorf("%+v", j)
	}
	if j := c.await(waiting, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded {
		t.Errorf("%+v", j)
	}
	c.check()
}

// R3 of the fault matrix: the containers of a silent node are dead before their GPUs are granted again.
func TestASilentNodeIsLostOnlyAfterItsLease(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 1, programs(c, untilStopped))
	stay := c.node("127.0.0.1:1002", 0, programs(c, untilStopped))
	c.awaitOpen(n, stay)
	// The master must not be on the node that goes silent: whole GPUs there, no room for it.
	id := c.submit("ann", `{"argv":["train"],"fencing":"strict","resources":{"gpus":1},"retry":{"max":5,"on":["node_lost"]}}`)
	eventually(t, "the command to run", func() bool { return len(n.running(false)) == 1 })
	if len(stay.running(true)) != 1 {
		t.Fatal("the master should avoid the machine with the GPU")
	}
	first := n.running(false)[0]
	n.set(func() { n.mute = true })
	r := c.leader().reign.Load()
	patience := c.lease + r.s.config.LeaseMargin
	// silence is as if the silent node, and nobody else, had been silent for so long.
	silence := func(d time.Duration) {
		eventually(t, "the other node to be heard of later", func() bool {
			at := c.heard(n) // moves on when a report was on its way
			if !c.heard(stay).After(at) {
				return false
			}
			r.loseSilentNodes(at.Add(d))
			return true
		})
	}
	silence(patience)
	if state := c.leader().View().Node(rm.NodeID(n.id)).State; state == rm.NodeLost {
		t.Error("lost although its lease and the margin are not over")
	}
	until := n.leaseEnd() // before: a report that is on its way moves both
	if end := c.heard(n).Add(patience); end.Before(until) {
		t.Errorf("would be lost at %v, and its containers may run until %v", end, until)
	}
	n.endLease("the container to end", func() bool { return len(n.running(false)) == 0 })
	eventually(t, "the node to be lost after its lease and the margin", func() bool {
		silence(patience + 1)
		return c.leader().View().Node(rm.NodeID(n.id)).State == rm.NodeLost
	})
	if state := c.leader().View().Node(rm.NodeID(stay.id)).State; state != rm.NodeRunning {
		t.Errorf("the other node is %s", state)
	}
	n.set(func() { n.mute = false })
	eventually(t, "the command to run again", func() bool { r := n.running(false); return len(r) == 1 && r[0] != first })
	j := c.job(id)
	i := slices.IndexFunc(j.Containers, func(k rest.JobContainer) bool { return k.ID == first.ContainerId })
	if k := j.Containers[i]; k.ExitStatus == nil || *k.ExitStatus != int(rm.ExitAborted) || !strings.Contains(k.Diagnostics, "is lost") {
		t.Errorf("first container %+v", k)
	}
	c.check()
}

// A node whose reports are refused and that then goes away was never registered: nobody goes on declaring it lost.
func TestANodeThatNeverRegisteredIsForgotten(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	c.leader()
	n := c.node("127.0.0.1:1001", maxGPUs+1, nil)
	heard := func() (at time.Time, known bool) {
		r := c.leader().reign.Load()
		r.mu.Lock()
		defer r.mu.Unlock()
		if soft := r.nodes[rm.NodeID(n.id)]; soft != nil {
			return soft.heard, true
		}
		return at, false
	}
	eventually(t, "the node to be heard of", func() bool { _, known := heard(); return known })
	n.kill()
	eventually(t, "the node to be forgotten", func() bool {
		at, known := heard()
		r := c.leader().reign.Load()
		r.loseSilentNodes(at.Add(c.lease + r.s.config.LeaseMargin + 1))
		return !known
	})
}

// A new leader knows nothing of when its predecessor heard of a node: it waits a full lease.
func TestANewLeaderWaitsOneLeaseForSilentNodes(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 1, programs(c, untilStopped))
	c.submit("ann", `{"argv":["train"],"resources":{"gpus":1}}`)
	eventually(t, "the command to run", func() bool { return len(n.running(false)) == 1 })
	n.set(func() { n.mute = true })
	c.kill(0)
	began := time.Now()
	c.start(0)
	leader := c.leader()
	if leader.Liveness(rm.NodeID(n.id)).Open {
		t.Error("a node that this leader has not heard of takes work")
	}
	if c.heard(n).Before(began) {
		t.Errorf("its lease counts from %v, this leader has begun after %v", c.heard(n), began)
	}
	r := leader.reign.Load()
	patience := c.lease + r.s.config.LeaseMargin
	r.loseSilentNodes(c.heard(n).Add(patience))
	if leader.View().Node(rm.NodeID(n.id)).State == rm.NodeLost {
		t.Error("lost although its lease and the margin are not over")
	}
	eventually(t, "it to be lost after its lease and the margin", func() bool { // they are longer if this process stands still meanwhile
		r.loseSilentNodes(c.heard(n).Add(patience + 1))
		return leader.View().Node(rm.NodeID(n.id)).State == rm.NodeLost
	})
	c.check()
}

// A resource manager that stood still itself, with its process or its whole machine, has heard of nobody: that is nobody's silence.
// A look that takes long, because it ends much, is no standstill: silence goes on counting.
func TestALeaderThatStoodStillLosesNobody(t *testing.T) {
	heard := time.Now()
	at, seen := heard, heard.Add(time.Second)
	r := &reign{
		s:       &Server{log: testLog(t)},
		nodes:   map[rm.NodeID]*softNode{"n": {heard: heard}},
		masters: map[rm.AttemptID]*softMaster{{}: {seen: seen}},
	}
	moved := func() (node, master time.Duration) {
		return r.nodes["n"].heard.Sub(heard), r.masters[rm.AttemptID{}].seen.Sub(seen)
	}
	for range 20 {
		at = at.Add(standstill / 2)
		r.awake(at) // by beat, while a look waits
	}
	if node, master := moved(); node != 0 || master != 0 {
		t.Errorf("a silent node was heard %v later, a silent master %v", node, master)
	}
	r.awake(at.Add(time.Hour))
	if node, master := moved(); node != time.Hour || master != time.Hour {
		t.Errorf("after an hour's standstill a node was heard %v later, a master %v", node, master)
	}
	// Whoever was heard while this process had stopped between two moments of beat was not heard in the future.
	r.nodes["n"].heard = at.Add(2 * time.Hour)
	r.awake(at.Add(2 * time.Hour))
	if node := r.nodes["n"].heard; node != at.Add(2*time.Hour) {
		t.Errorf("heard at %v, in the future", node)
	}
}

// Many applications whose time is over do not keep silent nodes waiting.
func TestALookEndsSome(t *testing.T) {
	c := newTestCluster(t, 1, func(config *Config) {
		config.Queues = rm.QueueConfig{Children: map[string]rm.QueueConfig{"default": {Capacity: "100%", MaxLifetime: "1h"}}}
	})
	leader := c.leader()
	var ids []rm.ApplicationID
	for range maxOverdue + 10 {
		ids = append(ids, c.submit("ann", `{"argv":["train"]}`))
	}
	for look, want := range []int{maxOverdue, len(ids)} {
		leader.reign.Load().endOverdue(at(time.Now().Add(2 * time.Hour)))
		killed := 0
		for _, id := range ids {
			if leader.View().Application(id).State == rm.StateKilled {
				killed++
			}
		}
		if killed != want {
			t.Errorf("look %d: %d applications have ended, not %d", look+1, killed, want)
		}
	}
	c.check()
}

func TestANodeThatLostItsStateLostItsContainers(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 1, programs(c, untilStopped))
	c.awaitOpen(n, c.node("127.0.0.1:1002", 0, programs(c, untilStopped)))
	id := c.submit("ann", `{"argv":["train"],"resources":{"gpus":1},"retry":{"max":1}}`)
	eventually(t, "the command to run", func() bool { return len(n.running(false)) == 1 })
	first := n.running(false)[0]
	n.set(func() {
		n.incarnation = "two"
		n.containers[first.ContainerId].cancel()
		delete(n.containers, first.ContainerId)
	})
	n.poke()
	eventually(t, "the command to run again", func() bool { r := n.running(false); return len(r) == 1 && r[0].ContainerId != first.ContainerId })
	for _, k := range c.job(id).Containers {
		if k.ID == first.ContainerId && (k.ExitStatus == nil || *k.ExitStatus != int(rm.ExitAborted)) {
			t.Errorf("%+v", k)
		}
	}
	c.check()
}

// A container that the resource manager counts as ended is stopped, and its GPU stays closed until it is gone.
func TestStrangersAreStoppedBeforeTheirGPUsAreGranted(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 1, programs(c, func(context.Context, *pb.ContainerSpec) int { return 0 }))
	ghost := &pb.ContainerSpec{ContainerId: "container_e01_1_0001_01_000001", GpuUuids: []string{"GPU-127.0.0.1:1001-0"}}
	var stopped atomic.Bool
	n.set(func() { // which it has reported without it, perhaps
		n.containers[ghost.ContainerId] = &fakeContainer{
			spec: ghost, cancel: func() { stopped.Store(true) },
			status: &pb.ContainerStatus{ContainerId: ghost.ContainerId, State: pb.ContainerStatus_RUNNING, GpuUuids: ghost.GpuUuids},
		}
	})
	eventually(t, "the stranger to be known, and told to stop", func() bool {
		r := c.leader().reign.Load()
		r.mu.Lock()
		defer r.mu.Unlock()
		known := r.nodes[rm.NodeID(n.id)]
		return known != nil && known.open && known.strangers == 1 && stopped.Load()
	})
	id := c.submit("ann", `{"argv":["train"],"resources":{"gpus":1}}`)
	c.awaitReason(id, rm.ReasonResources)
	for _, k := range c.leader().View().Containers(id) {
		if !k.Master {
			t.Error("the GPU was granted while the stranger ran")
		}
	}
	n.set(func() {
		n.containers[ghost.ContainerId].status = &pb.ContainerStatus{ContainerId: ghost.ContainerId, State: pb.ContainerStatus_COMPLETE}
	})
	n.poke()
	c.await(id, rm.StateFinished)
	eventually(t, "the stranger to be cleaned up", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.containers[ghost.ContainerId] == nil
	})
}

// What the resource manager will never grant ends the job with the reason, not a master that asks for ever.
func TestAnAskThatIsRefusedForGoodEndsTheJob(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	master := realMaster(c)
	id := c.submit("ann", `{"argv":["train"],"resources":{"gpus":65536}}`) // while no node has said how many there can be
	c.node("127.0.0.1:1001", 0, func(ctx context.Context, spec *pb.ContainerSpec) int { return master(ctx, spec) })
	if j := c.await(id, rm.StateFinished, rm.StateFailed); j.FinalStatus != rm.FinalFailed || j.Attempt != 1 || !strings.Contains(j.Diagnostics, "the job cannot run: ") ||
		!strings.Contains(j.Diagnostics, "out of range") {
		t.Errorf("%+v", j)
	}
	c.check()
}

func TestStreamsOfEventsAreBounded(t *testing.T) {
	r := &reign{streams: map[rm.ApplicationID]map[*eventStream]bool{}, masters: map[rm.AttemptID]*softMaster{}}
	id := rm.AttemptID{Application: rm.ApplicationID{Cluster: 1, Sequence: 1}, Number: 1}
	var leaves []func()
	for {
		leave, ok := r.join(id, &eventStream{}, true)
		if !ok {
			break
		}
		leaves = append(leaves, leave)
	}
	if len(leaves) != maxStreams {
		t.Errorf("%d streams of one application", len(leaves))
	}
	leaves[0]()
	if _, ok := r.join(id, &eventStream{}, true); !ok {
		t.Error("none may come for one that is gone")
	}
	if _, ok := r.join(rm.AttemptID{Application: rm.ApplicationID{Cluster: 1, Sequence: 2}, Number: 1}, &eventStream{}, true); !ok {
		t.Error("another application's stream is refused")
	}
}

// A master that has opened its stream since a look at all applications began is not forgotten by it: it would count as silent.
func TestAMasterWhoseStreamIsNewIsNotForgotten(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	c.leader()
	r := c.leader().reign.Load()
	id := rm.AttemptID{Application: rm.ApplicationID{Cluster: 1, Sequence: 1}, Number: 1} // unknown to the look, as one that comes later
	known := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.masters[id] != nil
	}
	leave, _ := r.join(id, &eventStream{wake: make(chan struct{}, 1)}, true)
	r.endOverdue(at(time.Now()))
	if !known() {
		t.Error("it is forgotten")
	}
	leave()
	if r.endOverdue(at(time.Now())); known() {
		t.Error("it stays when its stream is gone")
	}
}

// One user's fat jobs are refused before they are replicated, and another user's job runs.
func TestFatJobsAreRefusedBeforeTheyAreReplicated(t *testing.T) {
	c := newTestCluster(t, 1, func(c *Config) { c.limits.MaxBytes = 256 << 10 })
	fat := `{"argv":["x"],"env":{"X":"` + strings.Repeat("x", 30<<10) + `"}}`
	leader := c.leader()
	for range 10 {
		before := leader.state.AppliedIndex()
		var answer string
		code, header := c.http("POST", "/api/v1/jobs", "mallory", fat, &answer)
		if code == http.StatusCreated {
			continue
		}
		if code != http.StatusTooManyRequests || header.Get("Retry-After") == "" || !strings.Contains(answer, "of user mallory hold") {
			t.Fatalf("%d %s", code, answer)
		}
		if after := leader.state.AppliedIndex(); after != before {
			t.Errorf("a refused submission was replicated: %d entries", after-before)
		}
		c.submit("ann", `{"argv":["x"]}`)
		c.check()
		return
	}
	t.Error("everything was taken")
}

func TestAMasterThatDiesFindsItsContainersAgain(t *testing.T) {
	c := newTestCluster(t, 1, func(c *Config) { c.endedPerPage = 2 })
	done, training := make(chan struct{}), make(chan struct{}) // training: the last instance runs
	var masters atomic.Int32
	var id rm.ApplicationID
	submitted := make(chan struct{})
	master := realMaster(c)
	n := c.node("127.0.0.1:1001", 0, func(ctx context.Context, spec *pb.ContainerSpec) int {
		if spec.ApplicationMaster {
			if masters.Add(1) == 1 {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				go func() {
					select {
					case <-training:
						cancel()
					case <-ctx.Done():
					}
				}()
				master(ctx, spec)
				return 9
			}
			return master(ctx, spec)
		}
		if spec.Env["HOPS_INSTANCE"] != "4" {
			return 0
		}
		<-submitted
		eventually(t, "the other instances to have ended", func() bool {
			n := 0
			for _, k := range c.leader().View().Containers(id) {
				if !k.Live() {
					n++
				}
			}
			return n == 4
		})
		close(training)
		select {
		case <-ctx.Done():
			return 143
		case <-done:
			return 0
		}
	})
	id = c.submit("ann", `{"argv":["train"],"instances":5}`)
	close(submitted)
	eventually(t, "the second attempt", func() bool { j := c.job(id); return j.Attempt == 2 && j.State == rm.StateRunning })
	if len(n.running(false)) != 1 {
		t.Errorf("%d commands run", len(n.running(false)))
	}
	close(done)
	j := c.await(id, rm.StateFinished)
	if j.FinalStatus != rm.FinalSucceeded || len(j.Containers) != 7 {
		t.Errorf("%+v", j)
	}
	c.check()
}

func TestOnlyTheContainerOfAnAttemptSpeaksForIt(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	specs := make(chan *pb.ContainerSpec, 4)
	c.node("127.0.0.1:1001", 0, func(ctx context.Context, spec *pb.ContainerSpec) int {
		specs <- spec
		return untilStopped(ctx, spec)
	})
	id := c.submit("ann", `{"argv":["true"]}`)
	spec := <-specs
	if spec.Argv[0] != "/opt/hops/bin/hops" || spec.Argv[1] != "am" || !spec.ApplicationMaster || spec.Artifacts[0].Name != "job.json" {
		t.Fatalf("master's spec %+v", spec)
	}
	var document map[string]any
	if err := json.Unmarshal(spec.Artifacts[0].Content, &document); err != nil || document["id"] != id.String() || document["user"] != "ann" {
		t.Errorf("job.json %s", spec.Artifacts[0].Content)
	}
	as := func(key security.Key, options ...grpc.DialOption) pb.ApplicationMastersClient {
		return mastersAt(t, c.peers[0].GRPC, key, options...)
	}
	m := as(tokenKey(c, spec.ContainerId, spec.Token))
	register := func(m pb.ApplicationMastersClient, attempt int32, address string) (*pb.RegisterResponse, codes.Code) {
		r, err := m.Register(t.Context(), &pb.RegisterRequest{ApplicationId: id.String(), Attempt: attempt, HttpAddress: address})
		return r, status.Code(err)
	}
	for name, test := range map[string]struct {
		master  pb.ApplicationMastersClient
		attempt int32
		address string
		want    codes.Code
	}{
		"wrong token":             {as(tokenKey(c, spec.ContainerId, "x"), stranger()), 1, "", codes.Unavailable},
		"no container":            {as(tokenKey(c, "container_1_0001_01_000009", spec.Token), stranger()), 1, "", codes.Unavailable},
		"a server's secret":       {as(c.credentials.Key(authority.ResourceManager)), 1, "", codes.PermissionDenied},
		"attempt that is not yet": {m, 2, "", codes.Unauthenticated},
		"attempt 0":               {m, 0, "", codes.Unauthenticated},
		"another host":            {m, 1, "192.0.2.1:80", codes.InvalidArgument},
		"no port":                 {m, 1, "localhost", codes.InvalidArgument},
	} {
		if _, got := register(test.master, test.attempt, test.address); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	r, code := register(m, 1, "127.0.0.1:4711")
	if code != codes.OK || r.Epoch == 0 || r.Queue != "root.default" {
		t.Fatalf("%v %v", r, code)
	}
	for name, ask := range map[string]*pb.Ask{
		"no id":     {Count: 1},
		"nothing":   {AskId: "a", Count: 1, Resources: &pb.Resources{Memory: 1}},
		"negative":  {AskId: "a", Count: 1, Resources: &pb.Resources{Memory: -1}},
		"big gang":  {AskId: "a", Count: 1, GangMin: 2, Resources: &pb.Resources{Memory: 1}},
		"outside":   {AskId: "a", Count: 1, Resources: &pb.Resources{Memory: 1}, Launch: &pb.Launch{Argv: []string{"a"}, Artifacts: []*pb.Artifact{{Name: "../x"}}}},
		"too large": {AskId: "a", Count: 1, Resources: &pb.Resources{Memory: 1}, Launch: &pb.Launch{Argv: []string{strings.Repeat("a", 2<<20)}}},
	} {
		_, err := m.Allocate(t.Context(), &pb.AllocateRequest{ApplicationId: id.String(), Attempt: 1, Epoch: r.Epoch, Sequence: 1, Asks: []*pb.Ask{ask}})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	stale := func(what string, err error) {
		t.Helper()
		if status.Code(err) != codes.Aborted || !strings.HasPrefix(status.Convert(err).Message(), "STALE_ATTEMPT") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := m.Allocate(t.Context(), &pb.AllocateRequest{ApplicationId: id.String(), Attempt: 1, Epoch: r.Epoch + 1, Sequence: 1})
	stale("another epoch", err)
	events, err := m.Events(t.Context(), &pb.EventsRequest{ApplicationId: id.String(), Attempt: 1, Epoch: r.Epoch})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Finish(t.Context(), &pb.FinishRequest{ApplicationId: id.String(), Attempt: 1, Epoch: r.Epoch, FinalStatus: "DONE"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a status that is none: %v", err)
	}
	for range 2 { // a repeat is harmless
		if _, err := m.Finish(t.Context(), &pb.FinishRequest{ApplicationId: id.String(), Attempt: 1, Epoch: r.Epoch, FinalStatus: "SUCCEEDED"}); err != nil {
			t.Error(err)
		}
	}
	e, err := events.Recv()
	for ; e.GetManagers() != nil && err == nil; e, err = events.Recv() { // it had begun
	}
	stale("events after the end", err)
	_, err = m.Allocate(t.Context(), &pb.AllocateRequest{ApplicationId: id.String(), Attempt: 1, Epoch: r.Epoch, Sequence: 9})
	stale("after the end", err)
}

func TestNodesNeedTheSecret(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	c.leader()
	other := &testCluster{t: t, peers: c.peers, credentials: securitytest.Credentials(t)}
	n := other.node("127.0.0.1:1001", 0, untilStopped)
	time.Sleep(100 * time.Millisecond)
	if c.leader().View().Node(rm.NodeID(n.id)) != nil {
		t.Error("a node without the secret registered")
	}
}

func TestTwoNodesWithOneGPUAreRefused(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	a := c.node("127.0.0.1:1001", 1, untilStopped)
	eventually(t, "the first node", func() bool { return c.leader().Liveness(rm.NodeID(a.id)).Open })
	nodes := c.nodesAt(c.credentials.Key())
	stream, err := nodes.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	report := &pb.NodeReport{
		NodeId: "127.0.0.1:1002", Incarnation: "x", Sequence: 1, Healthy: true, Capacity: &pb.Resources{Memory: 1, Gpus: 1},
		Gpus: []*pb.GPU{{Uuid: "GPU-127.0.0.1:1001-0"}},
	}
	if err := stream.Send(report); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.AlreadyExists || !strings.Contains(err.Error(), a.id) {
		t.Errorf("second owner: %v", err)
	}
	for name, bad := range map[string]*pb.NodeReport{
		"no id":          {Incarnation: "x", Capacity: &pb.Resources{}},
		"no port":        {NodeId: "host", Incarnation: "x", Capacity: &pb.Resources{}},
		"no incarnation": {NodeId: "h:1", Capacity: &pb.Resources{}},
		"no capacity":    {NodeId: "h:1", Incarnation: "x"},
		"negative":       {NodeId: "h:1", Incarnation: "x", Capacity: &pb.Resources{Memory: -1}},
		"nameless GPU":   {NodeId: "h:1", Incarnation: "x", Capacity: &pb.Resources{}, Gpus: []*pb.GPU{{}}},
		"no container":   {NodeId: "h:1", Incarnation: "x", Capacity: &pb.Resources{}, Containers: []*pb.ContainerStatus{{ContainerId: "x"}}},
	} {
		stream, err := nodes.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(bad); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every member has its own configuration file. Those of the leader rule, and who has others says so.
func TestMembersWithOtherQueuesThanTheLeaderSaySo(t *testing.T) {
	c := newTestCluster(t, 2, func(c *Config) {
		if c.ID == "rm2" {
			c.Queues = rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "50%"}, "b": {Capacity: "50%"}}}
		}
	})
	type health struct {
		Ready      bool
		QueuesHash string `json:"queues_hash"`
		Warnings   []string
	}
	of := func(i int) (h health) {
		request, err := http.NewRequest(http.MethodGet, "http://"+c.peers[i].HTTP+"/health", nil)
		if err != nil {
			t.Fatal(err)
		}
		var body string
		if c.do(request, &body); json.Unmarshal([]byte(body), &h) != nil {
			t.Fatal(body)
		}
		return h
	}
	eventually(t, "the follower to warn, and the leader not", func() bool {
		leader := slices.Index(c.live, c.leader())
		follows, leads := of(1-leader), of(leader)
		warns := func(h health) bool {
			return slices.ContainsFunc(h.Warnings, func(w string) bool { return strings.Contains(w, "not those of the leader "+c.peers[leader].ID) })
		}
		return follows.Ready && leads.Ready && warns(follows) && !warns(leads) && follows.QueuesHash != leads.QueuesHash && leads.QueuesHash != ""
	})
}

func TestThreeResourceManagersSurviveTheirLeader(t *testing.T) {
	c := newTestCluster(t, 3, nil)
	done := make(chan struct{})
	n := c.node("127.0.0.1:1001", 2, programs(c, func(ctx context.Context, _ *pb.ContainerSpec) int {
		select {
		case <-ctx.Done():
			return 143
		case <-done:
			return 0
		}
	}))
	id := c.submit("ann", `{"argv":["train"],"instances":2,"resources":{"gpus":1}}`)
	eventually(t, "two commands to run", func() bool { return len(n.running(false)) == 2 })
	for i := range c.live {
		// A follower sends its callers to the leader, which may be another one on a busy machine.
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		eventually(t, "every follower to name the leader", func() bool {
			leader := c.leader()
			if c.live[i] == leader {
				return true
			}
			response, err := client.Get("http://" + c.peers[i].HTTP + "/ws/v1/cluster/info")
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			return response.StatusCode == http.StatusTemporaryRedirect &&
				response.Header.Get("Location") == "http://"+leader.peer(leader.config.ID).HTTP+"/ws/v1/cluster/info"
		})
	}
	first := c.leader()
	c.kill(slices.Index(c.live, first))
	second := c.leader()
	if second == first {
		t.Fatal("nobody took over")
	}
	c.awaitOpen(n)
	if len(n.running(false)) != 2 {
		t.Error("containers did not survive")
	}
	close(done)
	j := c.await(id, rm.StateFinished)
	if j.FinalStatus != rm.FinalSucceeded {
		t.Errorf("%+v", j)
	}
	// A repeated submission after the failover finds the first.
	eventually(t, "both members in step", func() bool {
		var hashes []uint64
		for _, m := range c.live {
			if m != nil {
				hashes = append(hashes, m.state.Hash())
			}
		}
		return hashes[0] == hashes[1]
	})
	c.check()
}

// tokenKey is the key of a container of the cluster.
func tokenKey(c *testCluster, container, token string) security.Key {
	return security.TokenKey(trustOf(c), container, token, authority.ResourceManager)
}

// trustOf is what containers of the cluster are told.
func trustOf(c *testCluster) *authority.Trust {
	return &authority.Trust{Cluster: c.credentials.Member.Self().Cluster, Roots: c.credentials.Member.Roots()}
}

// A signal reaches the container's node once, and nobody waits for a node that does not speak.
func TestASignalReachesTheContainer(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	c.submit("ann", `{"argv":["train"]}`)
	eventually(t, "the command to run", func() bool { return len(n.running(false)) == 1 })
	id := n.running(false)[0].ContainerId
	path := "/ws/v1/cluster/containers/" + id + "/signal/"
	if code, _ := c.http("POST", path+"GRACEFUL_SHUTDOWN", "bob", nil, nil); code != http.StatusForbidden {
		t.Errorf("another user: %d", code)
	}
	for _, command := range []string{"OUTPUT_THREAD_DUMP", "GRACEFUL_SHUTDOWN"} {
		if code, _ := c.http("POST", path+command, "ann", nil, nil); code != http.StatusOK {
			t.Errorf("%s: %d", command, code)
		}
	}
	var got []string
	eventually(t, "both signals", func() bool {
		n.set(func() { got = slices.Clone(n.signals) })
		return len(got) >= 2
	})
	if want := []string{id + " 3", id + " 15"}; !slices.Equal(got, want) {
		t.Errorf("the node was told %q, want %q", got, want)
	}
	container, err := rm.ParseContainerID(id)
	if err != nil {
		t.Fatal(err)
	}
	// What a node has not been told when it falls silent is not told when it is back: that may be hours later.
	r := c.leader().reign.Load()
	left := func(signals ...*pb.Signal) (n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, node := range r.nodes {
			node.signals = append(node.signals, signals...)
			n += len(node.signals)
		}
		return n
	}
	n.set(func() { n.mute = true })
	left(&pb.Signal{ContainerId: id, Signal: 15})
	n.kill()
	eventually(t, "the node to be silent", func() bool { // a signal would not tell: for who does not look, only so many wait
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.nodes[rm.NodeID(n.id)].session == nil
	})
	if err := c.leader().Signal(container, syscall.SIGTERM); !errors.Is(err, metadata.ErrRetriable) {
		t.Errorf("a signal for a node that is not there: %v", err)
	}
	if n := left(); n != 0 {
		t.Errorf("%d signals wait for a node that is not there", n)
	}
}
