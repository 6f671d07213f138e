package server

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/scheduler"
	"github.com/gohops/hops/resourcemanager/state"
)

// barrier lets the instances of an application meet: await returns true when all of one try run, false when ctx ends.
type barrier struct {
	mu   sync.Mutex
	here map[string]map[string]chan struct{} // by application and try: closed when complete
	seen map[string]map[string]bool
}

func newBarrier() *barrier {
	return &barrier{here: map[string]map[string]chan struct{}{}, seen: map[string]map[string]bool{}}
}

func (b *barrier) await(ctx context.Context, spec *pb.ContainerSpec) bool {
	n, err := strconv.Atoi(spec.Env["HOPS_INSTANCES"])
	if err != nil {
		return false
	}
	b.mu.Lock()
	app, try := spec.ApplicationId, spec.Env["HOPS_TRY"]
	if b.here[app] == nil {
		b.here[app] = map[string]chan struct{}{}
	}
	if b.here[app][try] == nil {
		b.here[app][try] = make(chan struct{})
		b.seen[app+try] = map[string]bool{}
	}
	met := b.here[app][try]
	if b.seen[app+try][spec.Env["HOPS_INSTANCE"]] = true; len(b.seen[app+try]) == n {
		close(met)
	}
	b.mu.Unlock()
	select {
	case <-met:
		return true
	case <-ctx.Done():
		return false
	}
}

// Two jobs whose four instances need each other, on four GPUs, in two queues that take turns: with two each they would
// wait for ever.
func TestTwoGangsDoNotDeadlock(t *testing.T) {
	c := newTestCluster(t, 1, func(c *Config) {
		c.Queues = rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "50%"}, "b": {Capacity: "50%"}}}
	})
	b := newBarrier()
	both := make(chan struct{}) // both jobs wait
	n := c.node("127.0.0.1:1001", 4, programs(c, func(ctx context.Context, spec *pb.ContainerSpec) int {
		if spec.Argv[0] == "block" {
			select {
			case <-both:
				return 0
			case <-ctx.Done():
				return 143
			}
		}
		if !b.await(ctx, spec) {
			return 143
		}
		return 0
	}))
	n.set(func() { n.capacity.Vcores = 64 })
	c.submit("ann", `{"argv":["block"],"queue":"a","resources":{"gpus":4}}`)
	eventually(t, "all GPUs to be taken", func() bool { return len(n.running(false)) == 1 })
	var ids []rm.ApplicationID
	for _, queue := range []string{"a", "b"} {
		ids = append(ids, c.submit("ann", map[string]any{
			"argv": []string{"train"}, "queue": queue, "instances": 4, "gang": true, "resources": map[string]any{"gpus": 1, "memory": "128MiB"},
		}))
	}
	for _, id := range ids {
		eventually(t, "the job to wait", func() bool { return c.waits(id) == rm.ReasonResources && len(c.leader().View().Asks(id)) > 0 })
	}
	close(both)
	for _, id := range ids {
		if j := c.await(id, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded {
			t.Errorf("%+v", j)
		}
	}
	c.check()
}

// A gang of which one member fails starts again as a whole, with numbers that are the same.
func TestAGangStartsAgainAsAWhole(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	b := newBarrier()
	var mu sync.Mutex
	tries := map[string]int{}
	c.node("127.0.0.1:1001", 4, programs(c, func(ctx context.Context, spec *pb.ContainerSpec) int {
		mu.Lock()
		tries[spec.Env["HOPS_TRY"]+"/"+spec.Env["HOPS_INSTANCE"]]++
		mu.Unlock()
		if !b.await(ctx, spec) {
			return 143
		}
		switch {
		case spec.Env["HOPS_TRY"] == "1" && spec.Env["HOPS_INSTANCE"] == "2":
			return 9
		case spec.Env["HOPS_TRY"] == "1": // waits for its peer, as a collective operation does
			<-ctx.Done()
			return 143
		}
		return 0
	}))
	id := c.submit("ann", `{"argv":["train"],"instances":4,"gang":true,"retry":{"max":1},"resources":{"gpus":1,"memory":"128MiB"}}`)
	if j := c.await(id, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded {
		t.Fatalf("%+v", j)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, try := range []string{"1", "2"} {
		for i := range 4 {
			if got := tries[try+"/"+strconv.Itoa(i)]; got == 0 {
				t.Errorf("instance %d did not run in try %s: %v", i, try, tries)
			}
		}
	}
	c.check()
}

// A member of a gang that succeeds in the moment in which it is released, because another one has failed, has succeeded. The
// other one is asked for again all the same.
func TestAGangGoesOnWhenTheLastOfItSucceedsWhileItIsReleased(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	b := newBarrier()
	var n *fakeNode
	n = c.node("127.0.0.1:1001", 2, programs(c, func(ctx context.Context, spec *pb.ContainerSpec) int {
		if spec.Env["HOPS_TRY"] != "1" {
			return 0
		}
		if !b.await(ctx, spec) {
			return 143
		}
		if spec.Env["HOPS_INSTANCE"] == "1" {
			n.set(func() { n.deaf = true })
			return 9
		}
		id, err := rm.ParseContainerID(spec.ContainerId)
		if err != nil {
			t.Error(err)
		}
		eventually(t, "the release", func() bool { return c.leader().View().Container(id).StopStatus != 0 })
		return 0
	}))
	id := c.submit("ann", `{"argv":["train"],"instances":2,"gang":true,"retry":{"max":1},"resources":{"gpus":1,"memory":"128MiB"}}`)
	eventually(t, "the success", func() bool {
		return slices.ContainsFunc(c.leader().View().Containers(id), func(k *rm.Container) bool { return !k.Master && !k.Live() && k.Exit == rm.ExitSuccess })
	})
	n.set(func() { n.deaf = false })
	if j := c.await(id, rm.StateFinished); j.FinalStatus != rm.FinalSucceeded {
		t.Fatalf("%+v", j)
	}
	c.check()
}

// While no resource manager speaks, only what asked for it ends.
func TestAnOutageOfTheResourceManagersEndsOnlyWhatIsFenced(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 2, programs(c, untilStopped))
	free := c.submit("ann", `{"name":"free","argv":["train"],"resources":{"gpus":1}}`)
	fenced := c.submit("ann", `{"name":"fenced","argv":["train"],"fencing":"strict","retry":{"max":0},"resources":{"gpus":1}}`)
	eventually(t, "both commands", func() bool { return len(n.running(false)) == 2 })
	c.kill(0)
	n.endLease("the end of the fenced one", func() bool { return len(n.running(false)) == 1 })
	left := n.running(false)[0]
	if left.ApplicationId != free.String() || left.Fencing != pb.Fencing_FENCING_NONE {
		t.Errorf("%v is left", left)
	}
	c.start(0)
	c.awaitOpen(n)
	c.await(fenced, rm.StateFinished)
	if r := n.running(false); len(r) != 1 || r[0].ContainerId != left.ContainerId || c.job(free).State != rm.StateRunning || c.job(free).Attempt != 1 {
		t.Errorf("after the outage %v runs, %+v", r, c.job(free))
	}
	c.check()
}

// The lease of the cluster is made shorter, or differs between members: nodes keep to what they were promised, and so does
// who waits for its end.
func TestAShorterLeaseDoesNotCountForWhatAnEarlierLeaderPromised(t *testing.T) {
	lease := 4 * time.Second
	c := newTestCluster(t, 1, func(k *Config) { k.NodeLease = lease })
	one := c.node("127.0.0.1:1001", 1, programs(c, untilStopped))
	c.awaitOpen(one)
	c.submit("ann", `{"argv":["train"],"fencing":"strict","resources":{"gpus":1},"retry":{"max":50}}`)
	eventually(t, "the training", func() bool { return len(one.running(false)) == 1 })
	c.kill(0)
	one.set(func() { one.mute = true }) // cut off
	lease = time.Second
	c.start(0)
	two := c.node("127.0.0.1:1002", 1, programs(c, func(ctx context.Context, spec *pb.ContainerSpec) int {
		if !spec.ApplicationMaster && time.Now().Before(one.leaseEnd()) {
			t.Error("the second try runs while the first may")
		}
		return untilStopped(ctx, spec)
	}))
	eventually(t, "the second try", func() bool { return len(two.running(false)) == 1 })
	// Only when it has waited once does the next leader not wait again.
	eventually(t, "the longer lease to be forgotten", func() bool { return c.leader().View().Lease() == lease })
	c.check()
}

// A grant that could not be recorded is the reason why its ask waits, and is forgotten with its application.
func TestAFailedGrantIsForgottenWithItsApplication(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	leader := c.leader()
	r := leader.reign.Load()
	id := c.submit("ann", `{"argv":["train"]}`)
	eventually(t, "the scheduler to begin", func() bool {
		r.plans.mu.Lock()
		defer r.plans.mu.Unlock()
		return r.plans.model != nil
	})
	fail := func() int {
		r.plans.mu.Lock()
		model := r.plans.model
		r.plans.mu.Unlock()
		r.settled(commitment{model: model, groups: []grant{{Group: scheduler.Group{App: id}}}, err: errors.New("no majority")})
		r.plans.mu.Lock()
		defer r.plans.mu.Unlock()
		return len(r.plans.failed)
	}
	if n := fail(); n != 1 {
		t.Errorf("%d applications have grants that failed", n)
	}
	if _, err := leader.Kill(t.Context(), id, "enough"); err != nil {
		t.Fatal(err)
	}
	if n := fail(); n != 0 {
		t.Errorf("%d applications have grants that failed, and none is there", n)
	}
}

// Who asks the model, and finds that everything may have changed, puts another one in the place of that by which the scheduler has planned what is
// being recorded: what the race detector has to say of it.
func TestAModelIsReplacedWhileGrantsAreRecorded(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 0, untilStopped)
	c.awaitOpen(n)
	r := c.leader().reign.Load()
	over := make(chan struct{})
	var asking sync.WaitGroup
	defer asking.Wait()
	defer close(over)
	asking.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond): // a grant takes longer to record
			}
			r.plans.note(state.Effects{Restored: true})
			r.plans.mu.Lock()
			r.tell()
			r.plans.mu.Unlock()
		}
	})
	for range 3 {
		c.submit("ann", `{"argv":["train"]}`)
	}
	eventually(t, "their masters", func() bool { return len(n.running(true)) == 3 })
	c.check()
}
