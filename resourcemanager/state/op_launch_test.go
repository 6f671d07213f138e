package state

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// holding brings an application to RUNNING with two containers that are held.
func holding(t *testing.T, c *cluster, a *rm.Application) (rm.ApplicationID, uint64, []rm.ContainerID) {
	t.Helper()
	c.node(nodeOne, "i", 4)
	id, _, epoch := c.running(a)
	ask := gpuAsk
	ask.Held = true
	if r := c.do(&statepb.Command{Op: &statepb.Command_Allocate{Allocate: &statepb.Allocate{
		Application: ApplicationID(id), Attempt: 1, Epoch: epoch, Sequence: 1, Asks: []*statepb.WantedAsk{{Ask: Ask(ask)}},
	}}}); r.Err != nil {
		t.Fatal(r.Err)
	}
	var held []rm.ContainerID
	for _, gpu := range []string{"n1:1-0", "n1:1-1"} {
		g := c.grant(c.epoch, id, "w", oneGPU, nodeOne, gpu)
		if len(g.Containers) != 1 {
			t.Fatal(g.Reason)
		}
		held = append(held, g.Containers...)
	}
	return id, epoch, held
}

func (c *cluster) launch(id rm.ApplicationID, attempt int32, epoch uint64, what string, containers ...rm.ContainerID) *Result {
	l := &statepb.ContainerLaunch{Launch: &statepb.Launch{Argv: []string{what}, Tokens: []byte("sealed")}}
	for _, k := range containers {
		l.Containers = append(l.Containers, ContainerID(k))
	}
	r := c.do(&statepb.Command{Op: &statepb.Command_LaunchContainers{LaunchContainers: &statepb.LaunchContainers{
		Application: ApplicationID(id), Attempt: attempt, Epoch: epoch, Launches: []*statepb.ContainerLaunch{l},
	}}})
	c.sound()
	return r
}

func TestAGrantThatIsLaunchedLater(t *testing.T) {
	c := newCluster(t, Config{})
	id, epoch, held := holding(t, c, &rm.Application{})
	for _, k := range held {
		if row := c.View().Container(k); !row.Held() || row.State != rm.ContainerGranted || len(row.GPUs) != 1 {
			t.Errorf("%+v", row)
		}
	}
	if n := c.View().Node(rm.NodeID(nodeOne)); n.Live != 3 || n.Used.GPUs != 2 {
		t.Errorf("they hold what they have: %+v", n)
	}
	// A node knows nothing of them: it cannot say that they run.
	c.status(nodeOne, "i", held[0], rm.ContainerRunning, 0)
	if row := c.View().Container(held[0]); row.State != rm.ContainerGranted {
		t.Errorf("%+v", row)
	}
	if r := c.launch(id, 1, epoch, "run", held...); r.Err != nil || r.Launches[0] != nil {
		t.Fatal(r.Err, r.Launches)
	}
	l := c.View().Launch(id, c.View().Container(held[1]).Launch)
	if l == nil || l.Argv[0] != "run" || string(l.Tokens) != "sealed" || c.View().Container(held[0]).Launch != c.View().Container(held[1]).Launch {
		t.Errorf("%+v", l)
	}
	// The same again is no error, and takes no more room; another one is.
	used := c.State.usedBytes[id]
	if r := c.launch(id, 1, epoch, "run", held[0], held[0]); r.Err != nil || r.Launches[0] != nil || c.State.usedBytes[id] != used {
		t.Error(r.Err, r.Launches)
	}
	if r := c.launch(id, 1, epoch, "other", held[0]); r.Err != nil || !errors.Is(r.Launches[0], rm.ErrLaunched) {
		t.Error(r.Err, r.Launches)
	}
	// From here on they are as any other.
	c.status(nodeOne, "i", held[0], rm.ContainerRunning, 0)
	c.must(&statepb.Command{Op: &statepb.Command_Stop{Stop: &statepb.Stop{
		Epoch: c.epoch, Status: int32(rm.ExitAborted), Held: true, Containers: []*statepb.ContainerID{ContainerID(held[0]), ContainerID(held[1])},
	}}})
	for _, k := range held {
		if row := c.View().Container(k); !row.Live() || row.StopStatus != 0 {
			t.Errorf("what was launched meanwhile is let be: %+v", row)
		}
	}
	c.status(nodeOne, "i", held[0], rm.ContainerComplete, 3)
	if row := c.View().Container(held[0]); row.Exit != 3 {
		t.Errorf("%+v", row)
	}
	c.status(nodeOne, "i", held[1], rm.ContainerComplete, 0)
	c.sound()
	if c.View().Launch(id, 1) != nil {
		t.Error("what ran in them is kept")
	}
}

func TestWhatIsHeldEndsAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(c *cluster, id rm.ApplicationID, epoch uint64, held []rm.ContainerID)
		exit rm.ExitStatus
		says string
	}{
		"when it is released": {func(c *cluster, id rm.ApplicationID, epoch uint64, held []rm.ContainerID) {
			c.must(&statepb.Command{Op: &statepb.Command_Allocate{Allocate: &statepb.Allocate{
				Application: ApplicationID(id), Attempt: 1, Epoch: epoch, Sequence: 2, Release: []*statepb.ContainerID{ContainerID(held[0]), ContainerID(held[1])},
			}}})
		}, rm.ExitAborted, "released by its application"},
		"when nobody launches it in time": {func(c *cluster, _ rm.ApplicationID, _ uint64, held []rm.ContainerID) {
			c.must(&statepb.Command{Op: &statepb.Command_Stop{Stop: &statepb.Stop{
				Epoch: c.epoch, Status: int32(rm.ExitAborted), Reason: "not launched", Held: true,
				Containers: []*statepb.ContainerID{ContainerID(held[0]), ContainerID(held[1])},
			}}})
		}, rm.ExitAborted, "not launched"},
		"with its attempt, even where others are kept": {func(c *cluster, id rm.ApplicationID, _ uint64, _ []rm.ContainerID) {
			c.status(nodeOne, "i", c.View().Master(c.View().Application(id)).ID, rm.ContainerComplete, 1)
		}, rm.ExitAborted, "attempt 1 of"},
		"with its application": {func(c *cluster, id rm.ApplicationID, epoch uint64, _ []rm.ContainerID) {
			c.must(&statepb.Command{Op: &statepb.Command_Finish{Finish: &statepb.Finish{Application: ApplicationID(id), Attempt: 1, Epoch: epoch, Final: "SUCCEEDED"}}})
		}, rm.ExitApplicationDone, "has ended: FINISHED"},
		"when its application is killed": {func(c *cluster, id rm.ApplicationID, _ uint64, _ []rm.ContainerID) {
			c.must(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(id), Diagnostics: "by ann"}}})
		}, rm.ExitKilledByResourceManager, "by ann"},
		"with its node": {func(c *cluster, _ rm.ApplicationID, _ uint64, _ []rm.ContainerID) {
			c.must(&statepb.Command{Op: &statepb.Command_LoseNode{LoseNode: &statepb.LoseNode{Epoch: c.epoch, Node: nodeOne, Reason: "silent"}}})
		}, rm.ExitAborted, "attempt 1 of"}, // the master was there, too
		"with its node's state": {func(c *cluster, _ rm.ApplicationID, _ uint64, _ []rm.ContainerID) {
			c.node(nodeOne, "another", 4)
		}, rm.ExitAborted, "attempt 1 of"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, Config{MaxEndedContainers: 3})
			id, epoch, held := holding(t, c, &rm.Application{KeepContainers: true})
			test.end(c, id, epoch, held)
			c.sound()
			for _, k := range held {
				row := c.View().Container(k)
				if row.Live() || row.Exit != test.exit || !strings.Contains(row.Diagnostics, test.says) {
					t.Errorf("%+v", row)
				}
			}
			if n := c.View().Node(rm.NodeID(nodeOne)); n.Used.GPUs != 0 {
				t.Errorf("its devices are not free: %+v", n)
			}
			if r := c.launch(id, 1, epoch, "run", held[0]); r.Err == nil && !errors.Is(r.Launches[0], metadata.ErrNotExist) {
				t.Error(r.Launches)
			}
		})
	}
}

// A master that asks, is granted and releases for ever fills nothing.
func TestWhatWasHeldIsForgotten(t *testing.T) {
	c := newCluster(t, Config{MaxEndedContainers: 3})
	id, epoch, held := holding(t, c, &rm.Application{})
	ask := gpuAsk
	ask.Held, ask.Count = true, 1
	for i := range uint64(20) {
		c.must(&statepb.Command{Op: &statepb.Command_Allocate{Allocate: &statepb.Allocate{
			Application: ApplicationID(id), Attempt: 1, Epoch: epoch, Sequence: 2 + i, Acknowledged: c.View().Application(id).LastEvent,
			Release: []*statepb.ContainerID{ContainerID(held[0])}, Asks: []*statepb.WantedAsk{{Ask: Ask(ask)}},
		}}})
		held[0] = c.grant(c.epoch, id, "w", oneGPU, nodeOne, "n1:1-0").Containers[0]
	}
	if n := len(c.View().Containers(id)); n > 2+1+4 {
		t.Errorf("%d containers are remembered", n)
	}
}

func TestWhoMayLaunchWhat(t *testing.T) {
	c := newCluster(t, Config{MaxBytes: 40_000})
	id, epoch, held := holding(t, c, &rm.Application{})
	other, _, otherEpoch := c.running(&rm.Application{User: "bob"})
	for name, test := range map[string]struct {
		r    *Result
		want error
	}{
		"another application's":     {c.launch(other, 1, otherEpoch, "run", held[0]), metadata.ErrPermission},
		"one that never was":        {c.launch(id, 1, epoch, "run", rm.ContainerID{Attempt: held[0].Attempt, Number: 99}), metadata.ErrNotExist},
		"its own master's":          {c.launch(id, 1, epoch, "run", c.View().Master(c.View().Application(id)).ID), metadata.ErrPermission},
		"with more than there may":  {c.launch(id, 1, epoch, strings.Repeat("x", 20_000), held[0]), metadata.ErrInvalidArgument},
		"of an attempt that is not": {c.launch(id, 2, epoch, "run", held[0]), rm.ErrStaleAttempt},
		"of another epoch":          {c.launch(id, 1, epoch+7, "run", held[0]), rm.ErrStaleAttempt},
	} {
		err := test.r.Err
		if err == nil {
			err = test.r.Launches[0]
		}
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	for _, k := range held {
		if !c.View().Container(k).Held() {
			t.Errorf("%v was launched all the same", k)
		}
	}
}

// What is held, and what is launched with tokens, is in a snapshot, in the order of the grants.
func TestSnapshotOfWhatIsHeld(t *testing.T) {
	c := newCluster(t, Config{})
	id, epoch, held := holding(t, c, &rm.Application{Tokens: []byte("master's")})
	c.launch(id, 1, epoch, "run", held[0])
	var b bytes.Buffer
	f, err := c.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	late := New(Config{})
	if err := late.Restore(&b); err != nil {
		t.Fatal(err)
	}
	if errs := late.Check(); errs != nil || late.Hash() != c.Hash() {
		t.Fatal(errs, late.Hash(), c.Hash())
	}
	var waits []rm.ContainerID
	for k := range late.View().Held() {
		waits = append(waits, k.ID)
	}
	if !slices.Equal(waits, held[1:]) {
		t.Errorf("%v are held, want %v", waits, held[1:])
	}
	if l := late.View().Launch(id, late.View().Container(held[0]).Launch); string(l.Tokens) != "sealed" || string(late.View().Application(id).Tokens) != "master's" {
		t.Errorf("%+v", l)
	}
}

// Resources by name are a map, which has nothing in it that a program could not know.
func TestAnAskForAResourceByName(t *testing.T) {
	c := newCluster(t, Config{})
	c.node(nodeOne, "i", 1)
	id, _, epoch := c.running(&rm.Application{})
	fpga, err := rm.NewAmounts(map[string]int64{"fpga": 1})
	if err != nil {
		t.Fatal(err)
	}
	ask := rm.Ask{ID: "f", Count: 1, Held: true, Resource: rm.Resource{Memory: 1, VCores: 1, Other: fpga}}
	if r := c.allocate(id, 1, epoch, 1, 0, ask); r.Err != nil {
		t.Fatal(r.Err)
	}
	if got := c.View().Asks(id); len(got) != 1 || got[0].Resource != ask.Resource {
		t.Errorf("%+v", got)
	}
}
