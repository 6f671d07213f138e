package state

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// cluster drives a state as a leader would.
type cluster struct {
	t testing.TB
	*State
	index uint64
	now   int64
}

func newCluster(t testing.TB, config Config) *cluster {
	c := &cluster{t: t, State: New(config), now: 1_000_000}
	c.do(&statepb.Command{Op: &statepb.Command_Begin{Begin: &statepb.Begin{Leader: "rm1"}}})
	return c
}

func (c *cluster) do(command *statepb.Command) *Result {
	c.t.Helper()
	c.index++
	c.now += 10
	command.NowMs = c.now
	b, err := Encode(command)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.Apply(c.index, [][]byte{b})[0].(*Result)
}

// must fails the test when the command had no effect, or when the state is inconsistent after it.
func (c *cluster) must(command *statepb.Command) *Result {
	c.t.Helper()
	r := c.do(command)
	if r.Err != nil {
		c.t.Fatalf("%v: %v", command, r.Err)
	}
	c.sound()
	return r
}

func (c *cluster) sound() {
	c.t.Helper()
	for _, err := range c.Check() {
		c.t.Fatal(err)
	}
}

func (c *cluster) node(id, incarnation string, gpus int) *Result {
	n := &rm.Node{
		ID: rm.NodeID(id), Incarnation: incarnation, Host: id, State: rm.NodeRunning,
		Capacity: rm.Resource{Memory: 8 << 30, VCores: 8, GPUs: gpus},
	}
	for i := range gpus {
		n.GPUs = append(n.GPUs, rm.GPU{UUID: fmt.Sprintf("%s-%d", id, i)})
	}
	return c.do(&statepb.Command{Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: c.epoch, Node: Node(n)}}})
}

func (c *cluster) submit(a *rm.Application) *Result {
	if a.User == "" {
		a.User = "ann"
	}
	a.Queue = "root.default"
	a.Master = rm.Resource{Memory: 1 << 30, VCores: 1}
	if a.MaxAttempts == 0 {
		a.MaxAttempts = 2
	}
	return c.do(&statepb.Command{Op: &statepb.Command_Submit{Submit: &statepb.Submit{Application: Application(a)}}})
}

func (c *cluster) grant(epoch uint64, app rm.ApplicationID, ask string, r rm.Resource, node string, gpus ...string) GroupResult {
	c.t.Helper()
	a := c.View().Application(app)
	res := c.do(&statepb.Command{Op: &statepb.Command_Grant{Grant: &statepb.Grant{Epoch: epoch, Groups: []*statepb.Group{{
		Application: ApplicationID(app), Attempt: int32(a.Attempt().Number), Ask: ask,
		Placements: []*statepb.Placement{{Node: node, Resource: Resource(r), Gpus: gpus, Salt: []byte{1}}},
	}}}}})
	c.sound()
	if res.Err != nil {
		return GroupResult{Reason: rm.Reason{Code: "ERROR", Text: res.Err.Error()}}
	}
	return res.Groups[0]
}

func (c *cluster) status(node, incarnation string, id rm.ContainerID, state rm.ContainerState, exit rm.ExitStatus) *Result {
	return c.do(&statepb.Command{Op: &statepb.Command_Statuses{Statuses: &statepb.Statuses{
		Epoch: c.epoch, Node: node, Incarnation: incarnation,
		Statuses: []*statepb.Status{{Container: ContainerID(id), State: string(state), Exit: int32(exit)}},
	}}})
}

func (c *cluster) register(app rm.ApplicationID, attempt int32) *Result {
	return c.do(&statepb.Command{Op: &statepb.Command_RegisterMaster{RegisterMaster: &statepb.RegisterMaster{
		Application: ApplicationID(app), Attempt: attempt, Http: "127.0.0.1:1", HttpCertificate: make([]byte, 32),
	}}})
}

func (c *cluster) allocate(app rm.ApplicationID, attempt int32, epoch, sequence, acknowledged uint64, asks ...rm.Ask) *Result {
	cmd := &statepb.Allocate{Application: ApplicationID(app), Attempt: attempt, Epoch: epoch, Sequence: sequence, Acknowledged: acknowledged}
	for _, a := range asks {
		cmd.Asks = append(cmd.Asks, &statepb.WantedAsk{Ask: Ask(a), Launch: &statepb.Launch{Argv: []string{"run", a.ID}}})
	}
	return c.do(&statepb.Command{Op: &statepb.Command_Allocate{Allocate: cmd}})
}

var (
	master  = rm.Resource{Memory: 1 << 30, VCores: 1}
	oneGPU  = rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 1}
	gpuAsk  = rm.Ask{ID: "w", Resource: oneGPU, Count: 2}
	nodeOne = "n1:1"
)

// running brings an application to RUNNING with its master on node n1:1.
func (c *cluster) running(a *rm.Application) (rm.ApplicationID, rm.ContainerID, uint64) {
	c.t.Helper()
	id := c.submit(a).Application
	g := c.grant(c.epoch, id, "", master, nodeOne)
	if len(g.Containers) != 1 {
		c.t.Fatal(g.Reason)
	}
	c.status(nodeOne, "i", g.Containers[0], rm.ContainerRunning, 0)
	r := c.register(id, int32(c.View().Application(id).Attempt().Number))
	if r.Err != nil {
		c.t.Fatal(r.Err)
	}
	return id, g.Containers[0], r.Epoch
}

func TestLifeOfAnApplication(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 2)
	id, am, epoch := c.running(&rm.Application{Name: "job"})
	if got := id.String(); got != "application_1000010_0001" {
		t.Errorf("id %s", got)
	}
	if got := am.String(); got != "container_e01_1000010_0001_01_000001" {
		t.Errorf("container %s", got)
	}
	if a := c.View().Application(id); a.State != rm.StateRunning || a.Launched == 0 || a.Used != master {
		t.Errorf("running: %+v", a)
	}
	c.allocate(id, 1, epoch, 1, 0, gpuAsk)
	g := c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-0")
	if len(g.Containers) != 1 {
		t.Fatal(g.Reason)
	}
	if left := c.View().Asks(id); len(left) != 1 || left[0].Count != 1 {
		t.Errorf("asks left: %+v", left)
	}
	if l := c.View().Launch(id, c.View().Container(g.Containers[0]).Launch); l == nil || l.Argv[1] != "w" {
		t.Errorf("launch %+v", l)
	}
	if r := c.status(nodeOne, "i", g.Containers[0], rm.ContainerComplete, 3); r.Err != nil {
		t.Fatal(r.Err)
	}
	events := c.View().Events(id, 0)
	if len(events) != 2 || events[0].Granted != g.Containers[0] || events[1].Completed != g.Containers[0] {
		t.Fatalf("events %+v", events)
	}
	c.allocate(id, 1, epoch, 2, events[1].Sequence)
	if len(c.View().Events(id, 0)) != 0 {
		t.Error("acknowledged events are kept")
	}
	r := c.do(&statepb.Command{Op: &statepb.Command_Finish{Finish: &statepb.Finish{Application: ApplicationID(id), Attempt: 1, Epoch: epoch, Final: "SUCCEEDED"}}})
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	c.sound()
	if a := c.View().Application(id); a.State != rm.StateFinished || a.Final != rm.FinalSucceeded || a.Live != 1 {
		t.Errorf("finished: %+v", a)
	}
	c.status(nodeOne, "i", am, rm.ContainerComplete, 0)
	if a := c.View().Application(id); a.Live != 0 || a.Attempt().State != rm.AttemptFinished || a.Spent.GPUs == 0 {
		t.Errorf("ended: %+v", a)
	}
	c.sound()
}

func TestAGPUIsNeverGrantedTwice(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 2)
	id, _, epoch := c.running(&rm.Application{})
	c.allocate(id, 1, epoch, 1, 0, rm.Ask{ID: "w", Resource: oneGPU, Count: 9})
	first := c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-0")
	for name, g := range map[string]GroupResult{
		"again":        c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-0"),
		"unknown GPU":  c.grant(1, id, "w", oneGPU, nodeOne, "n2:1-0"),
		"too few":      c.grant(1, id, "w", oneGPU, nodeOne),
		"unknown node": c.grant(1, id, "w", oneGPU, "n9:1", "n1:1-1"),
		"other size":   c.grant(1, id, "w", master, nodeOne),
	} {
		if g.Reason.Code != rm.ReasonConflict || len(g.Containers) != 0 {
			t.Errorf("%s: %+v", name, g)
		}
	}
	// A leader that leads no more commits nothing.
	c.must(&statepb.Command{Op: &statepb.Command_Begin{Begin: &statepb.Begin{Leader: "rm2"}}})
	if g := c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-1"); g.Reason.Code != "ERROR" {
		t.Errorf("old epoch: %+v", g)
	}
	// The device is free again only when its container has ended.
	if g := c.grant(2, id, "w", oneGPU, nodeOne, "n1:1-0"); g.Reason.Code != rm.ReasonConflict {
		t.Errorf("new leader: %+v", g)
	}
	c.status(nodeOne, "i", first.Containers[0], rm.ContainerComplete, 0)
	if g := c.grant(2, id, "w", oneGPU, nodeOne, "n1:1-0"); len(g.Containers) != 1 || g.Containers[0].Epoch != 2 {
		t.Errorf("freed: %+v", g)
	}
	// Neither is it when another node claims to have it.
	n := &rm.Node{ID: "n2:1", Incarnation: "i", State: rm.NodeRunning, Capacity: oneGPU.Times(4), GPUs: []rm.GPU{{UUID: "n1:1-0"}}}
	r := c.do(&statepb.Command{Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: 2, Node: Node(n)}}})
	if !errors.Is(r.Err, metadata.ErrExist) {
		t.Errorf("a device of two nodes: %v", r.Err)
	}
}

func TestAGangIsGrantedWhole(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 2)
	id, _, epoch := c.running(&rm.Application{})
	c.allocate(id, 1, epoch, 1, 0, rm.Ask{ID: "w", Resource: oneGPU, Count: 2, Gang: 2})
	if g := c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-0"); g.Reason.Code != rm.ReasonConflict {
		t.Errorf("half a gang: %+v", g)
	}
	place := func(gpu string) *statepb.Placement {
		return &statepb.Placement{Node: nodeOne, Resource: Resource(oneGPU), Gpus: []string{gpu}}
	}
	group := func(p ...*statepb.Placement) GroupResult {
		r := c.must(&statepb.Command{Op: &statepb.Command_Grant{Grant: &statepb.Grant{Epoch: 1, Groups: []*statepb.Group{{
			Application: ApplicationID(id), Attempt: 1, Ask: "w", Placements: p,
		}}}}})
		return r.Groups[0]
	}
	if g := group(place("n1:1-0"), place("n1:1-0")); g.Reason.Code != rm.ReasonConflict {
		t.Errorf("one device twice in a gang: %+v", g)
	}
	if g := group(place("n1:1-0"), place("n1:1-1")); len(g.Containers) != 2 {
		t.Errorf("gang: %+v", g)
	}
}

func TestLostNodeEndsItsContainersAndTellsTheirMasters(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 1)
	c.node("n2:1", "i", 2)
	id, _, epoch := c.running(&rm.Application{})
	c.allocate(id, 1, epoch, 1, 0, gpuAsk)
	a := c.grant(1, id, "w", oneGPU, "n2:1", "n2:1-0")
	c.must(&statepb.Command{Op: &statepb.Command_LoseNode{LoseNode: &statepb.LoseNode{Epoch: 1, Node: "n2:1", Reason: "silent"}}})
	if got := c.View().Container(a.Containers[0]); got.Exit != rm.ExitAborted || got.Live() {
		t.Errorf("container %+v", got)
	}
	events := c.View().Events(id, 1)
	if len(events) != 2 || events[0].Completed != a.Containers[0] || events[1].NodeLost != "n2:1" {
		t.Errorf("events %+v", events)
	}
	if g := c.grant(1, id, "w", oneGPU, "n2:1", "n2:1-0"); g.Reason.Code != rm.ReasonConflict {
		t.Errorf("granted on a lost node: %+v", g)
	}
	// It comes back empty.
	if r := c.node("n2:1", "i", 2); r.Err != nil {
		t.Fatal(r.Err)
	}
	b := c.grant(1, id, "w", oneGPU, "n2:1", "n2:1-0")
	if len(b.Containers) != 1 {
		t.Fatal(b.Reason)
	}
	// A new incarnation has lost what ran.
	c.node("n2:1", "j", 2)
	c.sound()
	if got := c.View().Container(b.Containers[0]); got.Live() {
		t.Error("container survives the loss of its node manager's state")
	}
	if r := c.status("n2:1", "i", b.Containers[0], rm.ContainerRunning, 0); r.Err == nil {
		t.Error("the old incarnation is still heard")
	}
	for g := range c.View().Ledger() {
		if g.To == 0 {
			t.Errorf("open line %+v", g)
		}
	}
}

func TestAMasterThatDiesIsStartedAgainUntilItsTriesAreSpent(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 2)
	id, am, epoch := c.running(&rm.Application{KeepContainers: true})
	c.allocate(id, 1, epoch, 1, 0, gpuAsk)
	w := c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-0").Containers[0]
	c.status(nodeOne, "i", w, rm.ContainerRunning, 0)
	c.status(nodeOne, "i", am, rm.ContainerComplete, 1)
	c.sound()
	a := c.View().Application(id)
	if a.State != rm.StateAccepted || !a.WantsMaster() || a.Failures != 1 || len(c.View().Asks(id)) != 0 {
		t.Fatalf("after the first: %+v", a)
	}
	if r := c.allocate(id, 1, epoch, 2, 0, gpuAsk); !errors.Is(r.Err, rm.ErrStaleAttempt) {
		t.Errorf("the old attempt allocates: %v", r.Err)
	}
	if r := c.register(id, 1); !errors.Is(r.Err, rm.ErrStaleAttempt) {
		t.Errorf("the old attempt registers: %v", r.Err)
	}
	g := c.grant(1, id, "", master, nodeOne)
	if len(g.Containers) != 1 || g.Containers[0].Attempt.Number != 2 {
		t.Fatalf("second master: %+v", g)
	}
	r := c.register(id, 2)
	if r.Err != nil || len(r.Containers) != 1 || r.Containers[0] != w {
		t.Fatalf("what the second attempt finds: %+v", r)
	}
	if again := c.register(id, 2); again.Epoch != r.Epoch {
		t.Errorf("epoch %d, then %d", r.Epoch, again.Epoch)
	}
	c.status(nodeOne, "i", g.Containers[0], rm.ContainerComplete, 1)
	c.sound()
	a = c.View().Application(id)
	if a.State != rm.StateFailed || a.Final != rm.FinalFailed || a.Attempt().State != rm.AttemptFailed {
		t.Errorf("after the second: %+v", a)
	}
	if got := c.View().Container(w); got.StopStatus != rm.ExitApplicationDone {
		t.Errorf("worker is not stopped: %+v", got)
	}
}

func TestFailuresBeforeALongRunAreForgotten(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 0)
	id, am, _ := c.running(&rm.Application{})
	for range 5 {
		c.now += (failuresInterval + time.Second).Milliseconds()
		c.status(nodeOne, "i", am, rm.ContainerComplete, 1)
		if a := c.View().Application(id); a.State != rm.StateAccepted || a.Failures != 1 {
			t.Fatalf("after a run of more than %s: %+v", failuresInterval, a)
		}
		g := c.grant(1, id, "", master, nodeOne)
		am = g.Containers[0]
		c.status(nodeOne, "i", am, rm.ContainerRunning, 0)
		if r := c.register(id, int32(am.Attempt.Number)); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	c.status(nodeOne, "i", am, rm.ContainerComplete, 1)
	if a := c.View().Application(id); a.State != rm.StateFailed {
		t.Errorf("two failures within the interval: %+v", a)
	}
	c.sound()
}

func TestTheClusterFaultCostsNoTry(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 0)
	id, am, _ := c.running(&rm.Application{MaxAttempts: 1})
	c.status(nodeOne, "i", am, rm.ContainerComplete, rm.ExitPreempted)
	if a := c.View().Application(id); a.State != rm.StateAccepted || a.Failures != 0 || len(a.Attempts) != 2 {
		t.Errorf("%+v", a)
	}
}

func TestApplicationsAreUpdatedWhileTheyLive(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 2)
	id, _, epoch := c.running(&rm.Application{Queue: "root.a", Priority: 3})
	c.allocate(id, 1, epoch, 1, 0, gpuAsk)
	c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-0")
	update := func(u *statepb.UpdateApplication) *Result {
		u.Application = ApplicationID(id)
		return c.do(&statepb.Command{Op: &statepb.Command_UpdateApplication{UpdateApplication: u}})
	}
	before := *c.View().Application(id)
	priority := int32(7)
	for _, u := range []*statepb.UpdateApplication{{Priority: &priority}, {Queue: "root.b"}, {ExpiresMs: 99}, {}} {
		if r := update(u); r.Err != nil || r.State != rm.StateRunning {
			t.Fatalf("%v: %+v", u, r)
		}
	}
	a := c.View().Application(id)
	if a.Priority != 7 || a.Queue != "root.b" || a.Expires != 99 || a.Expiry() != 99 {
		t.Errorf("%+v", a)
	}
	if a.Used != before.Used || a.Live != before.Live || a.State != before.State { // it goes with all that it holds
		t.Errorf("%+v, before %+v", a, before)
	}
	tooHigh, below := int32(1<<30), int32(-1)
	for _, u := range []*statepb.UpdateApplication{{Priority: &tooHigh}, {Priority: &below}, {ExpiresMs: -1}, {Queue: strings.Repeat("q", 1<<11)}} {
		if r := update(u); !errors.Is(r.Err, metadata.ErrInvalidArgument) {
			t.Errorf("%.80v: %v", u, r.Err)
		}
	}
	c.must(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(id)}}})
	if r := update(&statepb.UpdateApplication{Queue: "root.c"}); r.Err != nil || r.State != rm.StateKilled || c.View().Application(id).Queue != "root.b" {
		t.Errorf("one that has ended: %+v", r)
	}
	id.Sequence = 404
	if r := update(&statepb.UpdateApplication{Queue: "root.c"}); !errors.Is(r.Err, metadata.ErrNotExist) {
		t.Errorf("an unknown one: %v", r.Err)
	}
}

func TestKillStopsEverything(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 2)
	id, am, epoch := c.running(&rm.Application{})
	c.allocate(id, 1, epoch, 1, 0, gpuAsk)
	w := c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-0").Containers[0]
	kill := &statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(id), Diagnostics: "by ann"}}}
	if r := c.must(kill); r.State != rm.StateKilled {
		t.Errorf("state %s", r.State)
	}
	for _, k := range []rm.ContainerID{am, w} {
		if got := c.View().Container(k); got.StopStatus != rm.ExitKilledByResourceManager || !got.Live() {
			t.Errorf("%+v", got)
		}
	}
	// The GPU is held until the node manager says that the container is gone; SIGKILL is then ours.
	c.status(nodeOne, "i", w, rm.ContainerComplete, 137)
	if got := c.View().Container(w); got.Exit != rm.ExitKilledByResourceManager {
		t.Errorf("exit %v", got.Exit)
	}
	c.status(nodeOne, "i", am, rm.ContainerComplete, 143)
	if a := c.View().Application(id); a.Attempt().State != rm.AttemptKilled || a.Live != 0 {
		t.Errorf("%+v", a)
	}
	if r := c.must(kill); r.State != rm.StateKilled {
		t.Errorf("again: %s", r.State)
	}
}

func TestRepeatsAreHarmless(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 4)
	one := c.submit(&rm.Application{IdempotencyKey: "k", Digest: "d"})
	two := c.submit(&rm.Application{IdempotencyKey: "k", Digest: "d"})
	if one.Application != two.Application || !two.Existing {
		t.Errorf("%+v, %+v", one, two)
	}
	if r := c.submit(&rm.Application{IdempotencyKey: "k", Digest: "other"}); !errors.Is(r.Err, rm.ErrKeyReused) {
		t.Errorf("other submission: %v", r.Err)
	}
	if r := c.submit(&rm.Application{User: "bob", IdempotencyKey: "k", Digest: "d"}); r.Existing || r.Err != nil {
		t.Errorf("other user: %+v", r)
	}
	id, _, epoch := c.running(&rm.Application{})
	ask := rm.Ask{ID: "w", Resource: oneGPU, Count: 2}
	c.allocate(id, 1, epoch, 1, 0, ask)
	c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-0")
	c.allocate(id, 1, epoch, 1, 0, ask) // a retry of the same request
	if left := c.View().Asks(id); left[0].Count != 1 {
		t.Errorf("a repeated request asks again: %+v", left)
	}
	// A request that says what the master knows of does not ask again for what is on its way.
	seen := c.View().Events(id, 0)[0].Sequence
	c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-1")
	c.allocate(id, 1, epoch, 2, seen, rm.Ask{ID: "w", Resource: oneGPU, Count: 1})
	if left := c.View().Asks(id); len(left) != 0 {
		t.Errorf("the grant on its way is not counted: %+v", left)
	}
	c.sound()
}

func TestLimits(t *testing.T) {
	c := newCluster(t, Config{MaxApplications: 6, MaxEnded: 2, MaxEndedContainers: 2, MaxLedger: 1})
	c.node(nodeOne, "i", 2)
	for range 3 {
		c.submit(&rm.Application{})
	}
	if r := c.submit(&rm.Application{}); !errors.Is(r.Err, rm.ErrBusy) {
		t.Errorf("fourth: %v", r.Err)
	}
	var ids []rm.ApplicationID
	for a := range c.View().Applications() {
		ids = append(ids, a.ID)
	}
	for _, id := range ids {
		c.must(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(id)}}})
	}
	for range 4 {
		id, am, epoch := c.running(&rm.Application{})
		c.allocate(id, 1, epoch, 1, 0, gpuAsk)
		w := c.grant(1, id, "w", oneGPU, nodeOne, "n1:1-0").Containers[0]
		c.must(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(id)}}})
		c.status(nodeOne, "i", w, rm.ContainerComplete, 0)
		c.status(nodeOne, "i", am, rm.ContainerComplete, 0)
		c.submit(&rm.Application{})
		c.sound()
		for a := range c.View().Live() {
			c.must(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(a.ID)}}})
		}
	}
	if n := c.apps.Len(); n > 3 {
		t.Errorf("%d applications are remembered", n)
	}
	if n := c.containers.Len(); n > 2 {
		t.Errorf("%d containers are remembered", n)
	}
	if n := c.ledger.Len(); n > 1 {
		t.Errorf("%d lines are remembered", n)
	}
}

func TestEntriesAreAppliedOnce(t *testing.T) {
	c := newCluster(t, Config{})
	before := c.Hash()
	b, _ := Encode(&statepb.Command{Op: &statepb.Command_NewApplication{NewApplication: &statepb.NewApplication{}}})
	if got := c.Apply(c.index, [][]byte{b}); got[0] != nil {
		t.Errorf("an old entry answers %v", got[0])
	}
	if c.Hash() != before {
		t.Error("an old entry has an effect")
	}
}

func TestForeignBytesStopTheReplica(t *testing.T) {
	for name, b := range map[string][]byte{"noise": {0xff, 0xff}, "newer": {}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: accepted", name)
				}
			}()
			New(Config{}).Apply(1, [][]byte{b})
		}()
	}
}

func TestDamagedSnapshotsAreRefused(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 2)
	c.running(&rm.Application{Document: []byte("{}")})
	var b bytes.Buffer
	f, err := c.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	hash := c.Hash()
	for cut := range b.Len() {
		if err := c.Restore(bytes.NewReader(b.Bytes()[:cut])); err == nil {
			t.Fatalf("cut at %d of %d is accepted", cut, b.Len())
		}
	}
	if c.Hash() != hash {
		t.Error("a refused snapshot has an effect")
	}
	if err := c.Restore(&b); err != nil || c.Hash() != hash {
		t.Error("whole:", err)
	}
	c.sound()
}

// Something of a newer version anywhere in a command stops the member before anything of the command is done; so it does in a snapshot.
func TestWhatANewerVersionWroteStops(t *testing.T) {
	field := protowire.AppendBytes(protowire.AppendTag(nil, 400, protowire.BytesType), []byte("x"))
	node := &statepb.Node{Id: "n1", Incarnation: "i", State: "RUNNING", Gpus: []*statepb.GPU{{Uuid: "g"}}}
	register := func() *statepb.Command {
		return &statepb.Command{NowMs: 1, Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: 1, Node: proto.Clone(node).(*statepb.Node)}}}
	}
	commands := map[string]*statepb.Command{"an operation, or a field of the command": {}, "a field of the operation": register(), "a field of a part": register(), "a field of a part in a list": register()}
	commands["an operation, or a field of the command"].ProtoReflect().SetUnknown(field)
	commands["a field of the operation"].GetRegisterNode().ProtoReflect().SetUnknown(field)
	commands["a field of a part"].GetRegisterNode().Node.ProtoReflect().SetUnknown(field)
	commands["a field of a part in a list"].GetRegisterNode().Node.Gpus[0].ProtoReflect().SetUnknown(field)
	for what, command := range commands {
		c := newCluster(t, Config{})
		before := c.Hash()
		b, err := Encode(command)
		if err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !errors.Is(err, release.ErrOlder) || !strings.Contains(err.Error(), "log entry 2: command of a newer version") {
					t.Errorf("%s: %v", what, err)
				}
			}()
			c.Apply(2, [][]byte{b})
			t.Errorf("%s: it was applied", what)
		}()
		c.State.mu.Unlock() // the process has ended, in truth
		if c.Hash() != before {
			t.Errorf("%s: a part of it was done", what)
		}
	}
	var snapshot bytes.Buffer
	for _, r := range []*statepb.Record{
		{Item: &statepb.Record_Header{Header: &statepb.Header{Version: version, Index: 1}}},
		{Item: &statepb.Record_Node{Node: commands["a field of a part"].GetRegisterNode().Node}},
	} {
		if _, err := protodelim.MarshalTo(&snapshot, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := New(Config{}).Restore(&snapshot); !errors.Is(err, release.ErrOlder) {
		t.Errorf("a snapshot: %v", err)
	}
}

// What an allocation costs does not grow with its asks times the events that its application left unheard.
func TestManyAsksBesideManyUnheardEvents(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 2)
	id, am, epoch := c.running(&rm.Application{})
	c.allocate(id, 1, epoch, 1, 0, gpuAsk, rm.Ask{ID: "n", Resource: oneGPU, Count: 3, Instances: []int32{4, 5, 6}})
	first := c.app(id)
	c.event(first, Event{NodeLost: "n9:1"}) // which it has handled
	c.setApp(first)
	for ask, gpu := range map[string]string{"w": "n1:1-0", "n": "n1:1-1"} {
		if g := c.grant(1, id, ask, oneGPU, nodeOne, gpu); len(g.Containers) != 1 {
			t.Fatal(g.Reason)
		}
	}
	const many = 1000
	a := c.app(id)
	for range many {
		c.event(a, Event{Granted: am})
	}
	c.setApp(a)
	asks := []rm.Ask{{ID: "w", Resource: oneGPU, Count: 2}, {ID: "n", Resource: oneGPU, Count: 3, Instances: []int32{4, 5, 6}}}
	for i := range many / 10 {
		asks = append(asks, rm.Ask{ID: fmt.Sprint("x", i), Resource: oneGPU, Count: 1})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := c.allocate(id, 1, epoch, 2, 1, asks...)
	runtime.ReadMemStats(&after)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	if n := after.Mallocs - before.Mallocs; n > many*many/20 {
		t.Errorf("%d allocations for %d asks beside %d events", n, len(asks), many)
	}
	for _, ask := range c.View().Asks(id) {
		switch {
		case ask.ID == "w" && ask.Count != 1, ask.ID == "n" && (ask.Count != 2 || !slices.Equal(ask.Instances, []int32{5, 6})), ask.ID[0] == 'x' && ask.Count != 1:
			t.Errorf("left: %+v", ask)
		}
	}
	c.sound()
}
