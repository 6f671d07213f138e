package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// clock is a model with a time of its own that is told of a world.
type clock struct {
	*Model
	w   *world
	now metadata.Time
}

func newClock(w *world, lines ...string) *clock {
	c := &clock{Model: NewModel(Config{Queues: w.queues}), w: w, now: metadata.TimeOf(time.Unix(1_000_000, 0))}
	for _, l := range lines {
		w.do(failure{}, l)
	}
	return c
}

// failure is for what cannot fail.
type failure struct{}

func (failure) Helper()                   {}
func (failure) Fatal(a ...any)            { panic(fmt.Sprint(a...)) }
func (failure) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// plan says after some time who is granted what: app/ask node, and who waits: app/ask CODE.
func (c *clock) plan(t failer, after time.Duration) string {
	t.Helper()
	c.now += metadata.Time(after.Milliseconds())
	s := c.w.snapshot()
	for _, n := range s.Nodes {
		n.GPUs = slices.Clone(n.GPUs)
		c.SetNode(n)
	}
	for _, a := range s.Apps {
		a.Asks = slices.Clone(a.Asks)
		c.SetApp(a)
	}
	plan := c.Plan(Budget{}, c.now)
	var out []string
	var numbers []int64
	for _, g := range plan.Groups {
		for _, p := range g.Placements {
			out = append(out, fmt.Sprintf("%s/%s %s", c.w.order[g.App.Sequence-1], g.Ask, p.Node))
		}
		numbers = append(numbers, g.Number)
	}
	if err := c.w.apply(plan); err != nil {
		t.Fatal(err)
	}
	for _, a := range c.w.snapshot().Apps {
		a.Asks = slices.Clone(a.Asks)
		c.SetApp(a)
	}
	for _, n := range c.w.snapshot().Nodes {
		n.GPUs = slices.Clone(n.GPUs)
		c.SetNode(n)
	}
	c.Settle(numbers...)
	if again := c.Plan(Budget{}, c.now); len(again.Groups) > 0 {
		t.Fatalf("granted %+v, and then %+v", plan.Groups, again.Groups)
	}
	for _, x := range c.Waiting() {
		out = append(out, fmt.Sprintf("%s/%s %s", c.w.order[x.App.Sequence-1], x.Ask, x.Reason.Code))
	}
	return strings.Join(out, "; ")
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// An ask takes a host that has its data; then it waits for one, then for its rack, and then it takes what there is.
func TestHostThenRackThenAnywhere(t *testing.T) {
	c := newClock(newWorld(),
		"node a memory=2g rack=/r1", "node b memory=1g rack=/r1", "node c memory=1g rack=/r2", "node d memory=8g rack=/r2",
		"app x", "ask x m count=3 hosts=a racks=/r1")
	expect(t, c.plan(t, 0), "x/m a; x/m a; x/m LOCALITY")
	e, _ := c.Explain(c.w.apps["x"].ID, "m", nil, c.now)
	if want := "waits for room on host a, where its data is, until 1970-01-12T13:46:43Z; there is room farther away"; e.Reason.Text != want || e.Starts != c.now+3000 {
		t.Errorf("%v, at last at %v", e.Reason, e.Starts)
	}
	if len(e.Changes) != 1 || e.Changes[0].Kind != AnyDistance || !e.Changes[0].Ask.Near.IsZero() {
		t.Errorf("%+v", e.Changes)
	}
	expect(t, c.plan(t, 2999*time.Millisecond), "x/m LOCALITY")
	expect(t, c.plan(t, time.Millisecond), "x/m b")
	c.w.do(t, "ask x n count=2 hosts=a racks=/r1")
	expect(t, c.plan(t, 0), "x/n LOCALITY")
	expect(t, c.plan(t, 3*time.Second), "x/n LOCALITY")
	e, _ = c.Explain(c.w.apps["x"].ID, "n", nil, c.now)
	if want := "waits for room on rack /r1, where its data is, until 1970-01-12T13:46:49Z; there is room farther away"; e.Reason.Text != want {
		t.Errorf("%v", e.Reason)
	}
	expect(t, c.plan(t, 3*time.Second), "x/n c; x/n d") // which takes all that there is
}

// A host that is free in time is taken at once, and so is what is free nearer by than the lane has come.
func TestAHostThatIsFreeInTime(t *testing.T) {
	c := newClock(newWorld(), "node a memory=1g", "node b memory=8g", "app x", "ask x m count=2 hosts=a", "app y")
	expect(t, c.plan(t, 0), "x/m a; x/m LOCALITY")
	c.w.do(t, "ask y m")
	expect(t, c.plan(t, time.Second), "y/m b; x/m LOCALITY") // which others may have meanwhile
	c.w.do(t, "free a")
	expect(t, c.plan(t, time.Second), "x/m a")
}

// In a full cluster each wait is a new one: what is free next is declined for as long. A host that cannot help is not waited for.
func TestWaitsOfAFullClusterBeginAnew(t *testing.T) {
	c := newClock(newWorld(), "node a memory=1g", "node b memory=1g", "app x", "ask x m count=4 hosts=a wait=10s")
	expect(t, c.plan(t, 0), "x/m a; x/m LOCALITY")
	expect(t, c.plan(t, 10*time.Second), "x/m b; x/m RESOURCES")
	expect(t, c.plan(t, time.Hour), "x/m RESOURCES")
	c.w.do(t, "free b")
	expect(t, c.plan(t, 0), "x/m LOCALITY")
	c.now -= metadata.Time(time.Hour.Milliseconds()) // a clock that is set back lengthens no wait by more than itself
	expect(t, c.plan(t, 0), "x/m LOCALITY")
	expect(t, c.plan(t, 10*time.Second), "x/m b; x/m RESOURCES")
	c.w.nodes["a"].Closed = true
	c.w.do(t, "free b")
	expect(t, c.plan(t, time.Hour), "x/m b")
	c = newClock(newWorld(), "node a memory=1g", "node b memory=8g", "app x", "ask x m hosts=a memory=2g", "ask x n hosts=gone racks=/none", "ask x o hosts=a wait=0 memory=2g")
	expect(t, c.plan(t, 0), "x/m b; x/n a; x/o b")
}

// Hosts with more of the data come first, and a gang is placed near its data if it has room there, and never waits.
func TestWeightsAndGangs(t *testing.T) {
	c := newClock(newWorld(),
		"node a memory=2g rack=/r1", "node b memory=3g rack=/r1", "node c memory=9g rack=/r2",
		"app x", "ask x m hosts=a:1,b:8", "ask x n count=3 gang=3 hosts=a,b", "ask x o count=2 gang=2 hosts=a,b racks=/r1")
	expect(t, c.plan(t, 0), "x/m b; x/n a; x/n a; x/n b; x/o c; x/o c")
}

// NVLink counts for more than where the data lies, and the data for more than how full nodes are.
func TestIslandsBeforeData(t *testing.T) {
	c := newClock(newWorld(),
		"node a gpus=0-1,2-3 model=H100 rack=/r1", "node b gpus=0-3 model=A100 rack=/r2", "node c gpus=0-3 model=H100 rack=/r1",
		"app x", "ask x m gpus=4 hosts=a wait=0", "ask x n gpus=2 hosts=a", "ask x o gpus=2 model=A100 hosts=a")
	expect(t, c.plan(t, 0), "x/m b; x/n a; x/o RESOURCES")
	c.w.do(t, "free b")
	expect(t, c.plan(t, 0), "x/o b")
}

// What insists on hosts and racks waits for them for ever, and for the hosts first.
func TestStrictNear(t *testing.T) {
	c := newClock(newWorld(),
		"node a memory=1g rack=/r1", "node b memory=1g rack=/r1/x", "node c memory=8g rack=/r10",
		"app x", "ask x m count=3 hosts=a racks=/r1 only", "ask x n hosts=z racks=/r2 only")
	expect(t, c.plan(t, 0), "x/m a; x/m LOCALITY; x/n LOCALITY")
	expect(t, c.plan(t, 3*time.Second), "x/m b; x/m RESOURCES; x/n LOCALITY")
	e, _ := c.Explain(c.w.apps["x"].ID, "n", nil, c.now)
	if want := `none of the nodes ["z" "/r2"] that it insists on is there`; e.Reason.Text != want {
		t.Errorf("%v", e.Reason)
	}
}

// What waits for its data takes nobody's room away and has none kept.
func TestWhatWaitsForItsDataIsNotStarving(t *testing.T) {
	c := newClock(newWorld(), "node a memory=1g", "node b memory=90g", "app x", "ask x m count=2 hosts=a wait=1h", "app y")
	c.plan(t, 0)
	for i := range 70 {
		c.w.do(t, fmt.Sprintf("ask y %d", i))
		if got := c.plan(t, time.Second); !strings.Contains(got, "y/") {
			t.Fatal(got)
		}
	}
	if len(c.reservations) > 0 || len(c.delays.list) != 1 {
		t.Errorf("%d reservations, %d wait", len(c.reservations), len(c.delays.list))
	}
}

// TestNobodyWaitsForDataForLong draws clusters and lets time pass: an ask that leaves room to others because of its data has, at the latest after
// two waits, what there is; what it takes is as near as there was room; and nothing is left behind in the model.
func TestNobodyWaitsForDataForLong(t *testing.T) {
	waited := 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for _, name := range w.order {
			for i := range w.apps[name].Asks {
				a := &w.apps[name].Asks[i]
				a.Nodes, a.Strict, a.Constraints, a.Within = nil, false, rm.Constraints{}, ""
				if a.ID != "" {
					a.Near = nearTo(t, rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(t, "data"), rapid.SampledFrom([][]string{nil, {"/1"}}).Draw(t, "in"), "")
				}
			}
		}
		c := newClock(w)
		c.Configure(Config{Queues: w.queues, Patience: -1})
		since := map[string]metadata.Time{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			said := c.plan(t, time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms"))*time.Millisecond)
			late := map[string]metadata.Time{}
			for _, x := range strings.Split(said, "; ") {
				name, code, _ := strings.Cut(x, " ")
				if code != string(rm.ReasonLocality) {
					continue
				}
				waited++
				late[name] = c.now
				if first, ok := since[name]; ok {
					late[name] = first
				}
				if c.now-late[name] >= 2*metadata.Time(DefaultNearWait.Milliseconds()) {
					t.Fatalf("%s has waited for %d ms: %s", name, c.now-late[name], said)
				}
			}
			since = late
			if len(w.nodes) > 0 && rapid.Bool().Draw(t, "frees") {
				w.do(t, "free "+rapid.SampledFrom(w.nodeNames()).Draw(t, "freed"))
			}
		}
		for _, d := range c.delays.list {
			if d.lane.delay != d || !d.lane.closed || len(d.lane.wants.list) == 0 {
				t.Fatalf("%+v waits, and should not", d)
			}
		}
		for _, name := range w.order {
			w.apps[name].Asks = nil
		}
		if c.plan(t, 0); len(c.delays.list) > 0 {
			t.Fatal("nobody asks, and somebody waits")
		}
	})
	if waited == 0 {
		t.Log("nobody waited")
	}
}

// The nodes of racks are filed as they are.
func (m *Model) standing() string {
	out := ""
	for path, list := range m.racks {
		for i, n := range list {
			if m.nodes[n.ID] != n || n.Rack != path && !strings.HasPrefix(n.Rack, path+"/") || i > 0 && list[i-1].ID >= n.ID {
				out += fmt.Sprintln("node", n.ID, "does not stand in", path)
			}
		}
	}
	for _, n := range m.nodes {
		if n.Rack != "" && !slices.Contains(m.racks[n.Rack], n) {
			out += fmt.Sprintln("node", n.ID, "does not stand in its rack")
		}
	}
	return out
}
