package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
)

// borrowed is a cluster of one node with 4 GPUs, all of which queue a has with a job of 4 instances, and a job of queue b that wants 2.
func borrowed(t *testing.T, members int, notice time.Duration) (c *testCluster, n *fakeNode, a, b rm.ApplicationID) {
	c = newTestCluster(t, members, func(c *Config) {
		c.Queues = rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "50%"}, "b": {Capacity: "50%"}}}
		c.Preemption = Preemption{After: 20 * time.Millisecond, Notice: notice, RoundShare: 1}
	})
	c.raise()
	n = c.node("127.0.0.1:1001", 4, programs(c, func(ctx context.Context, spec *pb.ContainerSpec) int {
		if spec.Argv[0] == "short" {
			return 0
		}
		return untilStopped(ctx, spec)
	}))
	n.set(func() { n.capacity.Vcores = 64 })
	a = c.submit("ann", `{"argv":["long"],"queue":"a","instances":4,"resources":{"gpus":1,"memory":"128MiB"}}`)
	eventually(t, "all GPUs to be taken", func() bool { return len(n.running(false)) == 4 })
	b = c.submit("bob", `{"argv":["short"],"queue":"b","instances":2,"gang":true,"resources":{"gpus":1,"memory":"128MiB"}}`)
	return c, n, a, b
}

// noticed are the containers that were told to go.
func (c *testCluster) noticed() (out []*rm.Container) {
	for k := range c.leader().state.View().Noticed() {
		out = append(out, k)
	}
	return out
}

// saved says with a container's own token that it has saved its work.
func (c *testCluster) saved(path string, k *rm.Container) int {
	c.t.Helper()
	for unknown := false; ; {
		url := fmt.Sprintf("http://%s/api/v1/applications/%v/attempts/1/containers/%v/checkpointed", c.leader().peer(c.leader().config.ID).HTTP, k.ID.Attempt.Application, path)
		r, err := http.NewRequest("POST", url, bytes.NewReader([]byte(`{"step":7}`)))
		if err != nil {
			c.t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+c.leader().token(k.Salt))
		var answer string
		switch code, _ := c.do(r, &answer); {
		case code == http.StatusGatewayTimeout: // which says that nobody knows
			unknown = true
		case unknown && (code == http.StatusUnauthorized || code == http.StatusNotFound): // it has ended since
			return http.StatusOK
		case code != http.StatusServiceUnavailable:
			return code
		}
	}
}

func TestWhoHasSavedItsWorkMakesRoomAtOnce(t *testing.T) {
	c, n, a, b := borrowed(t, 1, time.Hour)
	eventually(t, "two to be told", func() bool { return len(c.noticed()) == 2 })
	told := c.noticed()
	eventually(t, "an explanation", func() bool { // there is none while its turn comes again, because room is kept for it now
		var e map[string]any
		if code, _ := c.http("GET", "/api/v1/jobs/"+b.String()+"/explain", "bob", nil, &e); code != http.StatusOK {
			t.Fatalf("%d %v", code, e)
		}
		asks, _ := e["asks"].([]any)
		return len(asks) == 1 && asks[0].(map[string]any)["preempts"] != nil
	})
	for _, k := range told {
		if k.ID.Attempt.Application != a || k.Notice.For != b || k.Notice.Queue != "root.b" || k.Notice.Deadline-k.Notice.Since < metadata.Time(time.Minute.Milliseconds()) {
			t.Errorf("%v: %+v", k.ID, k.Notice)
		}
	}
	eventually(t, "its node to hear of it", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.notices) == 2
	})
	if code := c.saved(told[1].ID.String(), told[0]); code == http.StatusOK {
		t.Errorf("a container speaks for another")
	}
	if err := c.leader().Checkpointed(t.Context(), rm.AttemptID{Application: b, Number: 1}, []rm.ContainerID{told[0].ID}, 7); !errors.Is(err, metadata.ErrPermission) {
		t.Errorf("a master speaks for another's container: %v", err)
	}
	for _, k := range told {
		if code := c.saved(k.ID.String(), k); code != http.StatusOK {
			t.Fatalf("%d", code)
		}
	}
	if err := c.leader().Checkpointed(t.Context(), rm.AttemptID{Application: a, Number: 1}, []rm.ContainerID{{Attempt: rm.AttemptID{Application: a, Number: 1}, Number: 99}}, 7); !errors.Is(err, metadata.ErrNotExist) {
		t.Errorf("a container that never was: %v", err)
	}
	if j := c.await(b, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded {
		t.Fatalf("%+v", j)
	}
	for _, k := range told {
		if k := c.leader().state.View().Container(k.ID); k.Exit != rm.ExitPreempted || k.Step != 7 {
			t.Errorf("%+v", k)
		}
	}
	// Those that went are asked for again, without a policy for retries.
	eventually(t, "all four to run again", func() bool { return len(n.running(false)) == 4 })
	if j := c.job(a); j.State != rm.StateRunning {
		t.Errorf("%+v", j)
	}
	if got := c.leader().figures.evicted.Load(); got != 2 {
		t.Errorf("%d evicted", got)
	}
	c.check()
}

func TestADeadlineOutlivesItsLeader(t *testing.T) {
	c, n, _, b := borrowed(t, 3, time.Hour)
	eventually(t, "two to be told", func() bool { return len(c.noticed()) == 2 })
	told := c.noticed()
	deadline := told[0].Notice.Deadline.Time()
	c.kill(slices.Index(c.live, c.leader())) // one look: leaders may change
	c.awaitOpen(n)
	if left := c.noticed(); len(left) != 2 || *left[0].Notice != *told[0].Notice {
		t.Errorf("under a new leader %+v are told, they were %+v", left, told)
	}
	end := func(now moment) {
		if r := c.leader().reign.Load(); r != nil {
			r.endNoticed(now)
		}
	}
	end(at(deadline.Add(-time.Second)))
	if n := len(c.noticed()); n != 2 {
		t.Errorf("%d are left before the deadline", n)
	}
	// Who was told by a leader that is gone may not have heard of it: it has as long to save its work under this one.
	end(moment{time.Now(), metadata.TimeOf(deadline)})
	if n := len(c.noticed()); n != 2 {
		t.Errorf("%d are left at the deadline, of a leader that has just begun", n)
	}
	eventually(t, "those to go who were told", func() bool {
		end(at(time.Now().Add(time.Hour)))
		return len(c.noticed()) == 0
	})
	if j := c.await(b, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded {
		t.Fatalf("%+v", j)
	}
	c.check()
}

// A resource manager that stood still past the deadline could tell nobody, or let nobody say that its work is saved.
func TestAStandstillIsNoNotice(t *testing.T) {
	c, _, _, b := borrowed(t, 1, time.Hour)
	eventually(t, "two to be told", func() bool { return len(c.noticed()) == 2 })
	r := c.leader().reign.Load()
	later := time.Now().Add(2 * time.Hour)
	r.awake(later)
	r.endNoticed(at(later))
	r.endNoticed(at(later.Add(59 * time.Minute)))
	if n := len(c.noticed()); n != 2 {
		t.Errorf("%d are left when it goes on", n)
	}
	eventually(t, "those to go who were told", func() bool {
		r.endNoticed(at(later.Add(time.Hour)))
		return len(c.noticed()) == 0
	})
	c.await(b, rm.StateFinished)
	c.check()
}

// The next attempt of a master hears which containers are to go, and until when, though the one before was told.
func TestANewAttemptIsToldWhoIsToGo(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 4, untilStopped)
	c.awaitOpen(n)
	c.raise()
	id := c.holder(n)
	held := c.hold(id, 2)
	s := c.leader()
	for _, k := range held {
		if errs, err := s.LaunchContainers(t.Context(), id, []rm.ContainerLaunch{{Container: k.ID, Launch: &rm.Launch{Argv: []string{"work"}}}}); err != nil || errs[0] != nil {
			t.Fatal(errs, err)
		}
	}
	eventually(t, "both to run", func() bool { return len(n.running(false)) == 2 })
	c.awaitOpen(c.node("127.0.0.1:1002", 0, untilStopped)) // for the next attempt
	c.operate("decommission", rest.AdminRequest{Nodes: []string{n.id}, Timeout: seconds(3600)})
	deadline := s.View().Node(rm.NodeID(n.id)).Wish.Deadline
	r := s.reign.Load()
	r.stop(s.View().Master(s.View().Application(id.Application)).ID, rm.ExitAborted, "it died")
	id.Number = 2
	eventually(t, "the next attempt", func() bool {
		a := s.View().Application(id.Application).Attempt()
		return a.Number == 2 && a.State == rm.AttemptLaunched
	})
	registered, err := s.RegisterMaster(t.Context(), id, rm.Registration{})
	if err != nil || len(registered.Containers) != 2 {
		t.Fatalf("%+v %v", registered, err)
	}
	events, err := s.MasterEvents(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	var told []*rm.Preemption
	eventually(t, "the notice", func() bool {
		news, err := events.Next(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range news {
			if e.Preempt != nil {
				told = append(told, e.Preempt)
			}
		}
		return len(told) >= 2
	})
	for i, p := range told {
		if i >= 2 || p.Container != held[i].ID || p.Withdrawn || p.Deadline != deadline {
			t.Errorf("%+v", p)
		}
	}
	c.check()
}

func TestANoticeIsWithdrawn(t *testing.T) {
	c, n, a, b := borrowed(t, 1, time.Hour)
	eventually(t, "two to be told", func() bool { return len(c.noticed()) == 2 })
	if code, _ := c.http("PUT", "/ws/v1/cluster/apps/"+b.String()+"/state", "bob", `{"state":"KILLED"}`, nil); code >= 300 {
		t.Fatal(code)
	}
	eventually(t, "nobody to be told any more", func() bool { return len(c.noticed()) == 0 })
	eventually(t, "its node to hear of it", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.notices) == 0
	})
	if len(n.running(false)) != 4 || c.job(a).State != rm.StateRunning {
		t.Error("somebody went for nothing")
	}
	c.check()
}

// Two nodes are half full, with programs that say that they write checkpoints, and a job wants a whole one: one of them is moved to the other, where room is
// kept for it.
func TestWhoWritesCheckpointsIsMoved(t *testing.T) {
	c := newTestCluster(t, 1, func(c *Config) {
		c.Queues = rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "100%"}}}
		c.Preemption = Preemption{
			After: 20 * time.Millisecond, Notice: time.Hour, RoundShare: 1, Defragment: true, DefragmentAfter: 20 * time.Millisecond, DefragmentRest: time.Millisecond,
			DefragmentPrice: time.Hour,
		}
	})
	c.raise()
	program := programs(c, func(ctx context.Context, spec *pb.ContainerSpec) int {
		if spec.Argv[0] == "short" {
			return 0
		}
		return untilStopped(ctx, spec)
	})
	nodes := []*fakeNode{c.node("127.0.0.1:1001", 4, program), c.node("127.0.0.1:1002", 4, program)}
	for _, n := range nodes {
		n.set(func() { n.capacity.Vcores = 64 })
	}
	running := func() int { return len(nodes[0].running(false)) + len(nodes[1].running(false)) }
	half := func() rm.ApplicationID {
		before := running()
		id := c.submit("ann", `{"argv":["long"],"queue":"a","resources":{"gpus":2,"memory":"128MiB"}}`)
		eventually(t, "half a node to be taken", func() bool { return running() > before })
		return id
	}
	stays := []rm.ApplicationID{half()}
	filler := half() // beside it, where least is left
	stays = append(stays, half())
	if code, _ := c.http("PUT", "/ws/v1/cluster/apps/"+filler.String()+"/state", "ann", `{"state":"KILLED"}`, nil); code >= 300 {
		t.Fatal(code)
	}
	work := func(id rm.ApplicationID) *rm.Container {
		for _, k := range c.leader().state.View().Containers(id) {
			if !k.Master && k.Live() {
				return k
			}
		}
		return nil
	}
	eventually(t, "both nodes to be half free", func() bool { return running() == 2 && work(filler) == nil })
	if work(stays[0]).Node == work(stays[1]).Node {
		t.Fatal("they are on one node")
	}
	for _, id := range stays {
		if code := c.saved(work(id).ID.String(), work(id)); code != http.StatusOK {
			t.Fatalf("%d", code)
		}
	}
	b := c.submit("bob", `{"argv":["short"],"queue":"a","resources":{"gpus":4,"memory":"128MiB"}}`)
	var told *rm.Container
	eventually(t, "one to be told", func() bool {
		list := c.noticed()
		if len(list) == 1 {
			told = list[0]
		}
		return told != nil
	})
	if !told.Notice.Moves || told.Notice.For != b || !strings.Contains(told.Notice.String(), "defragmentation") {
		t.Fatalf("%+v", told.Notice)
	}
	if code := c.saved(told.ID.String(), told); code != http.StatusOK {
		t.Fatalf("%d", code)
	}
	if j := c.await(b, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded {
		t.Fatalf("%+v", j)
	}
	id := told.ID.Attempt.Application
	eventually(t, "it to run on the other node", func() bool { k := work(id); return k != nil && k.ID != told.ID && k.Started > 0 })
	if k := work(id); k.Node == told.Node {
		t.Errorf("it is where it was, %s", k.Node)
	}
	if got := c.leader().figures.moved.Load(); got != 1 {
		t.Errorf("%d moved", got)
	}
	c.check()
}
