package scheduler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// stream is a cluster of nodes with 4 GPUs under an endless stream of small jobs, in steps of a second.
type stream struct {
	m      *Model
	rnd    *rand.Rand
	known  bool // jobs say how long they run at most
	now    metadata.Time
	nodes  []Node
	live   []running
	next   int64
	began  map[int64]metadata.Time
	booked map[int64]int // containers of an application that run
	length time.Duration // of the longest
	most   int           // devices that one has
}

type running struct {
	app  int64
	node int
	gpus []string
	ends metadata.Time
}

func newStream(t *testing.T, seed uint64, nodes int, known bool) *stream {
	q, err := rm.NewQueues(rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "50%"}, "b": {Capacity: "50%"}}})
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{m: NewModel(Config{Queues: q, Patience: 10}), rnd: rand.New(rand.NewPCG(seed, 1)), known: known, began: map[int64]metadata.Time{}, booked: map[int64]int{}, length: small, most: 2}
	for i := range nodes {
		n := Node{ID: rm.NodeID(fmt.Sprint("n", i)), Host: fmt.Sprint("n", i), Capacity: rm.Resource{Memory: 64 << 30, VCores: 64, GPUs: 4}}
		for g := range 4 {
			n.GPUs = append(n.GPUs, GPU{UUID: fmt.Sprintf("n%d:%d", i, g), Minor: g, Island: "0", Free: true})
		}
		s.nodes = append(s.nodes, n)
	}
	return s
}

const small = 20 * time.Second

// submit brings an application of one ask.
func (s *stream) submit(queue string, a rm.Ask, lasts time.Duration) int64 {
	s.next++
	app := App{ID: rm.ApplicationID{Cluster: 1, Sequence: s.next}, Queue: queue, Submitted: s.now, Asks: []rm.Ask{a}}
	if s.known {
		app.Asks[0].Walltime = lasts
	}
	s.m.SetApp(app)
	return s.next
}

// step lets a second pass: what is over ends, two small jobs come to each queue, and what has room begins.
func (s *stream) step(t *testing.T) {
	s.now += 1000
	s.live = slices.DeleteFunc(s.live, func(r running) bool {
		if r.ends > s.now {
			return false
		}
		n := &s.nodes[r.node]
		n.GPUs = slices.Clone(n.GPUs)
		for i := range n.GPUs {
			if slices.Contains(r.gpus, n.GPUs[i].UUID) {
				n.GPUs[i].Free = true
			}
		}
		n.Used, n.Containers = n.Used.Sub(rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: len(r.gpus)}), n.Containers-1
		if s.booked[r.app]--; s.booked[r.app] == 0 {
			s.m.RemoveApp(rm.ApplicationID{Cluster: 1, Sequence: r.app})
		}
		return true
	})
	for _, q := range []string{"root.a", "root.a", "root.b", "root.b"} {
		s.submit(q, rm.Ask{ID: "s", Count: 1, Resource: rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 1 + s.rnd.IntN(s.most)}}, s.length)
	}
	s.tell()
	for more := true; more; {
		p := s.m.Plan(Budget{}, s.now)
		for _, g := range p.Groups {
			for _, at := range g.Placements {
				var i int
				fmt.Sscanf(string(at.Node), "n%d", &i)
				n := &s.nodes[i]
				n.GPUs = slices.Clone(n.GPUs)
				for k := range n.GPUs {
					if slices.Contains(at.GPUs, n.GPUs[k].UUID) {
						if !n.GPUs[k].Free {
							t.Fatalf("%s is granted twice", n.GPUs[k].UUID)
						}
						n.GPUs[k].Free = false
					}
				}
				n.Used, n.Containers = n.Used.Add(g.Resource), n.Containers+1
				length := metadata.Time(1000 * (1 + s.rnd.IntN(int(s.length/time.Second))))
				s.live = append(s.live, running{g.App.Sequence, i, at.GPUs, s.now + length})
				s.booked[g.App.Sequence]++
			}
			s.began[g.App.Sequence] = s.now
			s.m.SetApp(App{ID: g.App, Queue: "root.a"}) // it has what it wanted; what it uses does not matter here
			s.m.Settle(g.Number)
		}
		s.tell()
		more = p.More && len(p.Groups) > 0
	}
}

func (s *stream) tell() {
	for i := range s.nodes {
		n := s.nodes[i]
		n.Holds = nil
		for _, r := range s.live {
			if r.node == i {
				h := Hold{App: rm.ApplicationID{Cluster: 1, Sequence: r.app}, Resource: rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: len(r.gpus)}, GPUs: r.gpus}
				if s.known {
					h.Ends = r.ends
				}
				n.Holds = append(n.Holds, h)
			}
		}
		s.m.SetNode(n)
	}
}

// A gang that needs all of half the cluster starts under an endless stream of small jobs, whether anybody knows how long these run or
// not: within the patience and the longest of what ran when room began to be kept.
func TestSmallJobsStarveNoGang(t *testing.T) {
	for seed := range uint64(10) {
		for _, known := range []bool{false, true} {
			s := newStream(t, seed, 4, known)
			for range 10 {
				s.step(t)
			}
			big := s.submit("root.b", rm.Ask{ID: "g", Count: 2, Gang: 2, Resource: rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 4}}, time.Minute)
			asked := s.now
			for s.began[big] == 0 {
				if s.now-asked > 5*60*1000 {
					t.Fatalf("seed %d, known %v: the gang waits for %v", seed, known, s.m.WaitingFor(rm.ApplicationID{Cluster: 1, Sequence: big}))
				}
				s.step(t)
			}
			for _, r := range s.m.reservations {
				if r.want.lane == nil || r.want.app.ID.Sequence == big {
					t.Fatalf("room is still kept for %v", r.want.app.ID)
				}
			}
		}
	}
}

// Queues that are made and go end neither the patience with a gang nor what is kept for it.
func TestQueuesThatComeAndGoStarveNoGang(t *testing.T) {
	tree, err := rm.NewQueues(rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "50%"}, "b": {Capacity: "50%"}, "users": {Capacity: "0%", AutoCreate: &rm.QueueConfig{}}}})
	if err != nil {
		t.Fatal(err)
	}
	s := newStream(t, 1, 4, false)
	config := s.m.config
	config.Queues = tree
	s.m.Configure(config)
	for range 10 {
		s.step(t)
	}
	big := s.submit("root.b", rm.Ask{ID: "g", Count: 2, Gang: 2, Resource: rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 4}}, time.Minute)
	for asked := s.now; s.began[big] == 0; {
		if s.now-asked > 5*60*1000 {
			t.Fatalf("the gang waits for %v", s.m.WaitingFor(rm.ApplicationID{Cluster: 1, Sequence: big}))
		}
		s.step(t)
		config.Queues = tree
		if s.now/1000%2 == 0 {
			config.Queues = tree.With([]string{fmt.Sprint("root.users.", s.now)})
		}
		s.m.Configure(config)
	}
}

// Room that is kept is used by what says that it ends before, and by nothing else; who waits is told so.
func TestBackfill(t *testing.T) {
	s := newStream(t, 1, 2, true)
	s.m.Configure(Config{Queues: s.m.config.Queues, Patience: 1})
	one := rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 1}
	hold := func(node int, ends metadata.Time) { // all but one device of a node
		n := &s.nodes[node]
		n.GPUs = slices.Clone(n.GPUs)
		for i := range 3 {
			n.GPUs[i].Free = false
			n.Holds = append(n.Holds, Hold{App: rm.ApplicationID{Cluster: 2, Sequence: 1}, Resource: one, GPUs: []string{n.GPUs[i].UUID}, Ends: ends})
		}
		n.Used, n.Containers = one.Times(3), 3
		s.m.SetNode(*n)
	}
	s.now = 1_000_000
	hold(0, s.now+600_000)
	hold(1, s.now+900_000)
	big := s.submit("root.a", rm.Ask{ID: "g", Count: 1, Resource: rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 4}}, time.Hour)
	s.m.Plan(Budget{}, s.now)
	passing := s.submit("root.b", rm.Ask{ID: "s", Count: 1, Resource: one}, time.Hour)
	p := s.m.Plan(Budget{}, s.now)
	if len(p.Groups) != 1 || p.Groups[0].App.Sequence != passing || len(s.m.reservations) != 1 {
		t.Fatalf("%+v, %d reservations", p, len(s.m.reservations))
	}
	at := p.Groups[0].Placements[0].Node
	want := rm.NodeID("n0") // free the earliest, unless the hour-long one went there
	if at == "n0" {
		want = "n1"
	}
	r := s.m.reservations[0]
	for n := range r.nodes {
		if n.ID != want || r.want.app.ID.Sequence != big {
			t.Fatalf("%v is kept, for %v", n.ID, r.want.app.ID)
		}
	}
	long := s.submit("root.b", rm.Ask{ID: "s", Count: 1, Resource: one}, time.Hour)
	unknown := s.submit("root.b", rm.Ask{ID: "s", Count: 1, Resource: one}, 0)
	short := s.submit("root.b", rm.Ask{ID: "s", Count: 1, Resource: one}, 5*time.Minute)
	var granted []int64
	for _, g := range s.m.Plan(Budget{}, s.now).Groups {
		granted = append(granted, g.App.Sequence)
	}
	if !slices.Equal(granted, []int64{short}) {
		t.Fatalf("granted %v, not only %d", granted, short)
	}
	s.m.SetApp(App{ID: rm.ApplicationID{Cluster: 1, Sequence: short}, Queue: "root.b"})
	for _, n := range []int64{long, unknown} {
		if w := s.m.WaitingFor(rm.ApplicationID{Cluster: 1, Sequence: n}); len(w) != 1 || w[0].Reason.Code == "" {
			t.Errorf("%d waits for %v", n, w)
		}
	}
	if w := s.m.WaitingFor(rm.ApplicationID{Cluster: 1, Sequence: big}); len(w) != 1 || !strings.Contains(w[0].Reason.Text, "room is kept for it on 1 nodes, which are free at 1970-01-01T00:") {
		t.Errorf("%v", w)
	}
}

// An ask that becomes another one gives back what was kept for it; one of which only the count is another does not.
func TestAChangedAskGivesBackWhatIsKept(t *testing.T) {
	q, err := rm.NewQueues(rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "50%"}, "b": {Capacity: "50%"}}})
	if err != nil {
		t.Fatal(err)
	}
	m := NewModel(Config{Queues: q, Patience: 1})
	one := rm.Resource{Memory: 1, VCores: 1, GPUs: 1}
	for i, n := range []struct {
		label string
		free  bool
	}{{"x", false}, {"x", true}, {"y", false}} {
		node := Node{ID: rm.NodeID(fmt.Sprint("n", i)), Host: fmt.Sprint("n", i), Labels: []string{n.label}, Capacity: rm.Resource{Memory: 100, VCores: 100, GPUs: 1}}
		node.GPUs = []GPU{{UUID: fmt.Sprint("g", i), Free: n.free}}
		if !n.free {
			node.Used, node.Containers = one, 1
		}
		m.SetNode(node)
	}
	small := func(n int64) App {
		return App{ID: rm.ApplicationID{Cluster: 1, Sequence: n}, Queue: "root.b", User: "u", Asks: []rm.Ask{{ID: "s", Count: 1, Resource: one}}}
	}
	gang := App{ID: rm.ApplicationID{Cluster: 1, Sequence: 1}, Queue: "root.a", User: "u", Asks: []rm.Ask{{ID: "g", Count: 2, Gang: 2, Label: "x", Resource: one}}}
	m.SetApp(gang)
	m.Plan(Budget{}, 0)
	m.SetApp(small(2))
	p := m.Plan(Budget{}, 1)
	if len(p.Groups) != 1 {
		t.Fatalf("%+v", p)
	}
	m.Settle(p.Groups[0].Number)
	m.RemoveApp(p.Groups[0].App)
	m.Plan(Budget{}, 2)
	ask := gang.Asks[0]
	ask.Count = 3
	gang.Asks = []rm.Ask{ask}
	m.SetApp(gang)
	m.SetApp(small(3))
	if p := m.Plan(Budget{}, 3); len(p.Groups) > 0 || len(m.reservations) != 1 {
		t.Fatalf("%+v, %d reservations", p, len(m.reservations))
	}
	ask.Label = "y"
	gang.Asks = []rm.Ask{ask}
	m.SetApp(gang)
	if p := m.Plan(Budget{}, 4); len(p.Groups) != 1 || p.Groups[0].App.Sequence != 3 {
		t.Fatalf("%+v, %d reservations", p, len(m.reservations))
	}
}

// endless puts a container on a node's first device that nobody knows an end of, and that has none.
func (s *stream) endless(node int) {
	n := &s.nodes[node]
	n.GPUs[0].Free = false
	n.Used, n.Containers = rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 1}, 1
	s.live = append(s.live, running{1_000_000, node, []string{n.GPUs[0].UUID}, math.MaxInt64})
	s.booked[1_000_000] = 1
}

// free counts the free devices of a node.
func (s *stream) free(node int) (n int) {
	for _, g := range s.nodes[node].GPUs {
		if g.Free {
			n++
		}
	}
	return n
}

// A whole node is wanted. One has a container that never ends, and is the nearest to be free; on the other containers come and go. The second is kept when the
// first has come no nearer, and the first is given back. So it is where containers take longer than the patience.
func TestWhatIsKeptInVainIsGivenBack(t *testing.T) {
	firsts := 0
	for seed := range 20 {
		length := []time.Duration{small, 10 * time.Minute}[seed%2]
		s := newStream(t, uint64(seed), 2, false)
		s.length, s.most = length, 1
		s.m.Configure(Config{Queues: s.m.config.Queues, Patience: 10, Wait: time.Minute})
		s.endless(0)
		for range 10 {
			s.step(t)
		}
		big := s.submit("root.a", rm.Ask{ID: "g", Count: 1, Resource: rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 4}}, time.Minute)
		first, second, idle := false, false, 0
		for asked := s.now; s.began[big] == 0; s.step(t) {
			if s.now-asked > 60*60*1000 {
				t.Fatalf("containers of %v: it waits for %v", length, s.m.WaitingFor(rm.ApplicationID{Cluster: 1, Sequence: big}))
			}
			for _, r := range s.m.reservations {
				for n := range r.nodes {
					first, second = first || n.ID == "n0", second || n.ID == "n1"
				}
			}
			if idle++; !second || s.m.nodes["n0"].reserved != nil || s.free(0) == 0 {
				idle = 0
			}
			if idle > 2 { // what is given back at the end of a plan is given out by the next
				t.Fatalf("containers of %v: %d devices of the node that is given back are idle", length, s.free(0))
			}
		}
		if first {
			firsts++
		}
		if !second {
			t.Errorf("containers of %v: it began on a node that was not kept", length)
		}
	}
	if firsts < 15 {
		t.Errorf("the nearest node was kept %d times of 20: the test shows nothing", firsts)
	}
}

// Where no other node could take it, what is kept stays, and it begins when there is room at last.
func TestWhatIsKeptStaysWhereThereIsNoOther(t *testing.T) {
	s := newStream(t, 1, 1, false)
	s.m.Configure(Config{Queues: s.m.config.Queues, Patience: 10, Wait: time.Minute})
	s.endless(0)
	for range 10 {
		s.step(t)
	}
	big := s.submit("root.a", rm.Ask{ID: "g", Count: 1, Resource: rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 4}}, time.Minute)
	for range 600 {
		s.step(t)
	}
	if len(s.m.reservations) != 1 || s.began[big] != 0 || s.free(0) != 3 {
		t.Fatalf("%d reservations, %d devices are free", len(s.m.reservations), s.free(0))
	}
	for i := range s.live {
		s.live[i].ends = s.now // the one without an end
	}
	s.step(t)
	if s.began[big] == 0 {
		t.Errorf("it waits for %v", s.m.WaitingFor(rm.ApplicationID{Cluster: 1, Sequence: big}))
	}
}

// What is kept for an ask that a limit holds back meanwhile is given back after the patience, and kept again at once when the limit has gone.
func TestALimitGivesBackWhatIsKept(t *testing.T) {
	q, err := rm.NewQueues(rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "50%", Max: "50%"}, "b": {Capacity: "50%"}}})
	if err != nil {
		t.Fatal(err)
	}
	s := newStream(t, 1, 2, false)
	s.m.Configure(Config{Queues: q, Patience: 1, Wait: time.Minute})
	other := App{ID: rm.ApplicationID{Cluster: 3, Sequence: 1}, Queue: "root.a"}
	s.m.SetApp(other)
	quiet := func(seconds int) {
		for range seconds {
			s.now += 1000
			s.m.Plan(Budget{}, s.now)
		}
	}
	for i := range s.nodes {
		s.endless(i)
	}
	s.tell()
	big := s.submit("root.a", rm.Ask{ID: "g", Count: 1, Resource: rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 4}}, time.Minute)
	quiet(1)
	s.submit("root.b", rm.Ask{ID: "s", Count: 1, Resource: rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 1}}, time.Minute)
	quiet(8)
	if len(s.m.reservations) != 1 || s.m.reservations[0].want.app.ID.Sequence != big {
		t.Fatalf("%d reservations", len(s.m.reservations))
	}
	other.Used = rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 1}
	s.m.SetApp(other)
	quiet(40)
	if len(s.m.reservations) != 1 {
		t.Error("it is given back at once: limits come and go")
	}
	quiet(30)
	if len(s.m.reservations) != 0 {
		t.Error("room is kept for what a limit holds back")
	}
	other.Used = rm.Resource{}
	s.m.SetApp(other)
	quiet(1)
	if len(s.m.reservations) != 1 {
		t.Error("it has lost its turn")
	}
}

// What wants no GPU is not refused for those that are kept, as long as it leaves what else is kept.
func TestWhatIsKeptIsNotRefusedToWhoDoesNotWantIt(t *testing.T) {
	s := newStream(t, 1, 1, false)
	s.m.Configure(Config{Queues: s.m.config.Queues, Patience: 1})
	s.endless(0)
	s.tell()
	s.submit("root.a", rm.Ask{ID: "g", Count: 1, Resource: rm.Resource{Memory: 1 << 30, VCores: 40, GPUs: 4}}, time.Minute)
	s.m.Plan(Budget{}, s.now)
	s.submit("root.b", rm.Ask{ID: "s", Count: 1, Resource: rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 1}}, time.Minute)
	if p := s.m.Plan(Budget{}, s.now); len(p.Groups) != 1 || len(s.m.reservations) != 1 {
		t.Fatalf("%+v, %d reservations", p, len(s.m.reservations))
	}
	s.submit("root.b", rm.Ask{ID: "c", Count: 30, Resource: rm.Resource{Memory: 1 << 30, VCores: 1}}, time.Minute)
	if p := s.m.Plan(Budget{}, s.now); len(p.Groups) != 22 { // of 64 vcores 40 are kept and two in use
		t.Errorf("%d containers without GPUs have room", len(p.Groups))
	}
}
