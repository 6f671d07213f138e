package server

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// raise brings a cluster to the newest level.
func (c *testCluster) raise() {
	c.t.Helper()
	// Each member looks by itself, and the next leader is one of them.
	for _, m := range c.live {
		if m != nil {
			m.config.Credentials.Member.Raise(release.Level)
			eventually(c.t, "a member to be raised", func() bool { g := m.group.Load(); return g != nil && g.Level() == release.Level })
		}
	}
}

// holder is a master whose program does nothing: the test speaks for it.
func (c *testCluster) holder(n *fakeNode) rm.AttemptID {
	c.t.Helper()
	id := rm.AttemptID{Application: c.submit("ann", `{"kind":"master","argv":["my-master","--flag"],"env":{"A":"b"},"resources":{"memory":"256MiB"}}`), Number: 1}
	eventually(c.t, "its master to run", func() bool {
		for _, s := range n.running(true) {
			if s.ApplicationId == id.Application.String() {
				return c.leader().View().Application(id.Application).Attempt().State == rm.AttemptLaunched
			}
		}
		return false
	})
	if _, err := c.leader().RegisterMaster(c.t.Context(), id, rm.Registration{Host: "h", Port: 7}); err != nil {
		c.t.Fatal(err)
	}
	return id
}

// hold waits for containers that are granted to an ask that holds them.
func (c *testCluster) hold(id rm.AttemptID, count int) []rm.MasterContainer {
	c.t.Helper()
	ask := rm.WantedAsk{Ask: rm.Ask{ID: "w", Count: count, Held: true, Resource: rm.Resource{Memory: 256 << 20, VCores: 1, GPUs: 1}}}
	if err := c.leader().Allocate(c.t.Context(), id, rm.Request{Asks: []rm.WantedAsk{ask}}); err != nil {
		c.t.Fatal(err)
	}
	events, err := c.leader().MasterEvents(c.t.Context(), id, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer events.Close()
	var held []rm.MasterContainer
	for len(held) < count {
		news, err := events.Next(c.t.Context(), time.Minute)
		if err != nil || len(news) == 0 {
			c.t.Fatal(news, err)
		}
		for _, e := range news {
			if e.Granted != nil {
				held = append(held, *e.Granted)
			}
		}
	}
	return held
}

func TestAMasterThatLaunchesWhatItHolds(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 4, untilStopped)
	c.awaitOpen(n)
	var refused map[string]any
	if code, _ := c.http("POST", "/api/v1/jobs", "ann", `{"kind":"master","argv":["m"]}`, &refused); code != 400 || !strings.Contains(refused["detail"].(string), "until the cluster is raised") {
		t.Errorf("before the cluster is raised: %d %v", code, refused)
	}
	c.raise()
	id := c.holder(n)
	s := c.leader()
	m := n.running(true)[0]
	if strings.Join(m.Argv, " ") != "my-master --flag" || m.Env["A"] != "b" || m.Resources.Memory != 256<<20 || m.Artifacts[0].Name != "job.json" {
		t.Errorf("the master is what the document says: %+v", m)
	}
	if a := s.View().Application(id.Application).Attempt(); a.Host != "h" || a.Port != 7 {
		t.Errorf("%+v", a)
	}
	held := c.hold(id, 3)
	if held[0].Host != "127.0.0.1" || len(held[0].Devices) != 1 || held[0].Token == "" || !held[0].Held() {
		t.Errorf("%+v", held[0])
	}
	launch := &rm.Launch{Argv: []string{"work"}, Tokens: []byte("HDTS of the launch"), Dialect: rm.DialectYARN}
	errs, err := s.LaunchContainers(t.Context(), id, []rm.ContainerLaunch{{Container: held[0].ID, Launch: launch}, {Container: held[0].ID, Launch: &rm.Launch{Argv: []string{"other"}}}})
	if err != nil || errs[0] != nil || !errors.Is(errs[1], rm.ErrLaunched) {
		t.Fatal(errs, err)
	}
	eventually(t, "what was launched to run", func() bool { return len(n.running(false)) == 1 })
	spec := n.running(false)[0]
	if spec.ContainerId != held[0].ID.String() || spec.Argv[0] != "work" || spec.Dialect != "yarn" || !spec.Tokens || len(spec.GpuUuids) != 1 {
		t.Errorf("%+v", spec)
	}
	// The same again is no error, though the seal of its tokens is made anew.
	if errs, err := s.LaunchContainers(t.Context(), id, []rm.ContainerLaunch{{Container: held[0].ID, Launch: launch}}); err != nil || errs[0] != nil {
		t.Error(errs, err)
	}
	if stored := s.View().Launch(id.Application, s.View().Container(held[0].ID).Launch); strings.Contains(string(stored.Tokens), "HDTS") {
		t.Error("tokens are kept in plain")
	}
	if got, err := c.pull(spec.ContainerId, true); err != nil || string(got.LaunchTokens) != "HDTS of the launch" {
		t.Errorf("%v %v", got, err)
	}

	// A node manager hands on what it was told, for its own node only.
	nodes := c.nodesAt(c.credentials.Key())
	q := &pb.LaunchContainersRequest{NodeId: n.id, Attempt: id.String(), Launches: []*pb.ContainerLaunch{
		{ContainerId: held[1].ID.String(), Launch: &pb.Launch{Argv: []string{"more"}}},
		{ContainerId: "container_1_0001_01_000099", Launch: &pb.Launch{Argv: []string{"more"}}},
		{ContainerId: held[0].ID.String(), Launch: &pb.Launch{Argv: []string{"more"}}},
		{ContainerId: held[2].ID.String(), Launch: &pb.Launch{}},
	}}
	answer, err := nodes.LaunchContainers(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []codes.Code{codes.OK, codes.PermissionDenied, codes.AlreadyExists, codes.InvalidArgument} {
		if got := answer.Outcomes[i]; codes.Code(got.Code) != want || (want != codes.OK) != (got.Message != "") {
			t.Errorf("launch %d: %v, want %v", i, got, want)
		}
	}
	if _, err := c.nodesAt(c.machine("elsewhere", authority.NodeManager)).LaunchContainers(t.Context(), q); status.Code(err) != codes.PermissionDenied {
		t.Errorf("another machine: %v", err)
	}
	eventually(t, "both to run", func() bool { return len(n.running(false)) == 2 })

	// What is released before it is launched ends at once, and the node hears nothing of it.
	if err := s.Allocate(t.Context(), id, rm.Request{Release: []rm.ContainerID{held[2].ID}, Progress: -1}); err != nil {
		t.Fatal(err)
	}
	if row := s.View().Container(held[2].ID); row.Live() || row.Exit != rm.ExitAborted {
		t.Errorf("%+v", row)
	}
	n.set(func() {
		if n.starts[held[2].ID.String()] != 0 || n.containers[held[2].ID.String()] != nil {
			t.Error("the node was told of what nobody launched")
		}
	})
	if err := s.FinishMaster(t.Context(), id, rm.Finish{Final: rm.FinalSucceeded}); err != nil {
		t.Fatal(err)
	}
	c.await(id.Application, rm.StateFinished)
	if _, err := s.LaunchContainers(t.Context(), id, nil); !errors.Is(err, rm.ErrStaleAttempt) {
		t.Errorf("after the end: %v", err)
	}
	c.check()
}

func TestWhatNobodyLaunchesEnds(t *testing.T) {
	c := newTestCluster(t, 1, func(c *Config) { c.LaunchWithin = 50 * time.Millisecond })
	n := c.node("127.0.0.1:1001", 4, untilStopped)
	c.awaitOpen(n)
	c.raise()
	id := c.holder(n)
	held := c.hold(id, 2)
	eventually(t, "what is held to end", func() bool {
		a, b := c.leader().View().Container(held[0].ID), c.leader().View().Container(held[1].ID)
		return !a.Live() && !b.Live() && a.Exit == rm.ExitAborted && strings.Contains(b.Diagnostics, "not launched within 50ms")
	})
	if errs, err := c.leader().LaunchContainers(t.Context(), id, []rm.ContainerLaunch{{Container: held[0].ID, Launch: &rm.Launch{Argv: []string{"late"}}}}); err != nil || !errors.Is(errs[0], metadata.ErrNotExist) {
		t.Error(errs, err)
	}
	c.check()
}

// A resource manager whose clock was two hours fast has led. What begins under the next one ends in time all the same.
func TestALeaderWhoseClockWasFast(t *testing.T) {
	c := newTestCluster(t, 1, func(c *Config) { c.LaunchWithin = 50 * time.Millisecond })
	command, err := state.Encode(&statepb.Command{NowMs: time.Now().Add(2 * time.Hour).UnixMilli(), Op: &statepb.Command_NewApplication{NewApplication: &statepb.NewApplication{}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.leader().group.Load().Propose(t.Context(), command); err != nil {
		t.Fatal(err)
	}
	c.kill(0)
	c.start(0)
	n := c.node("127.0.0.1:1001", 4, untilStopped)
	c.awaitOpen(n)
	c.raise()
	id := c.holder(n)
	held := c.hold(id, 2)
	if ahead := time.Until(held[0].Granted.Time()); ahead < time.Hour {
		t.Errorf("the state's time went back: a grant is %v ahead", ahead)
	}
	eventually(t, "what is held to end", func() bool {
		a, b := c.leader().View().Container(held[0].ID), c.leader().View().Container(held[1].ID)
		return !a.Live() && !b.Live()
	})
	if a, b := c.leader().View().Container(held[0].ID), c.leader().View().Container(held[0].ID); a.Finished <= a.Granted || b.Finished <= b.Granted {
		t.Errorf("granted at %v, ended at %v", a.Granted.Time(), a.Finished.Time())
	}
	// What its user says when is by the clock.
	due := c.submit("ann", `{"argv":["train"],"deadline":"1h"}`)
	c.leader().reign.Load().endOverdue(c.leader().clock.moment())
	if j := c.job(due); j.State.Final() {
		t.Errorf("an hour before its deadline: %+v", j)
	}
	c.check()
}

// What masters do wrong costs them an error, and nobody else anything.
func TestMastersThatDoHarm(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 4, untilStopped)
	c.awaitOpen(n)
	c.raise()
	id, other := c.holder(n), c.holder(n)
	theirs := c.hold(other, 1)[0].ID
	s := c.leader()
	one := rm.WantedAsk{Ask: rm.Ask{ID: "a", Count: 1, Held: true}}
	many := make([]rm.WantedAsk, maxAsks+1)
	for i := range many {
		many[i] = one
		many[i].ID = strings.Repeat("x", i%200+1) + string(rune('a'+i/200%26))
	}
	both, nothing := one, one
	both.Run = &rm.Launch{Argv: []string{"x"}}
	nothing.Held = false
	for name, test := range map[string]struct {
		q    rm.Request
		want error
		says string
	}{
		"releases what is another's": {rm.Request{Release: []rm.ContainerID{theirs}}, metadata.ErrPermission, "is no container of"},
		"has more asks than may be":  {rm.Request{Asks: many}, metadata.ErrInvalidArgument, "at most 10000 at a time; an ask has a count"},
		"holds and launches at once": {rm.Request{Asks: []rm.WantedAsk{both}}, metadata.ErrInvalidArgument, "give one of them"},
		"has nothing to run":         {rm.Request{Asks: []rm.WantedAsk{nothing}}, metadata.ErrInvalidArgument, "there is nothing to run"},
		"is of another epoch":        {rm.Request{Epoch: 1 << 40, Asks: []rm.WantedAsk{one}}, rm.ErrStaleAttempt, "is not the current one"},
	} {
		if err := s.Allocate(t.Context(), id, test.q); !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("who %s: %v", name, err)
		}
	}
	huge := &rm.Launch{Argv: []string{"x"}, Env: []rm.EnvVar{{Name: "A", Value: strings.Repeat("x", maxLaunchBytes)}}}
	errs, err := s.LaunchContainers(t.Context(), id, []rm.ContainerLaunch{{Container: theirs, Launch: &rm.Launch{Argv: []string{"x"}}}, {Container: theirs, Launch: huge}, {Container: theirs}})
	if err != nil || !errors.Is(errs[0], metadata.ErrPermission) || !errors.Is(errs[1], metadata.ErrInvalidArgument) || !errors.Is(errs[2], metadata.ErrInvalidArgument) {
		t.Error(errs, err)
	}
	if !s.View().Container(theirs).Held() {
		t.Error("another's container was launched or released")
	}
	var streams []rm.MasterStream
	for {
		x, err := s.MasterEvents(t.Context(), id, 0)
		if err != nil {
			if !errors.Is(err, rm.ErrBusy) || len(streams) != maxStreams {
				t.Errorf("%d streams, %v", len(streams), err)
			}
			break
		}
		streams = append(streams, x)
	}
	for _, x := range streams {
		x.Close()
	}
	c.check()
}
