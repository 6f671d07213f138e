package scheduler

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	rm "github.com/gohops/hops/resourcemanager"
)

// TestPlansAreSoundAndLeaveNothing draws tiny clusters with a few queues and asks and compares with an oracle that
// tries everything: whatever a plan grants is possible (world.apply checks that), no queue exceeds its maximum, and what
// it leaves waiting is impossible.
func TestPlansAreSoundAndLeaveNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for round := range 3 {
			plan := Schedule(w.snapshot(), 0)
			if again := Schedule(w.snapshot(), 0); !reflect.DeepEqual(plan, again) {
				t.Fatal("one snapshot, two plans")
			}
			if err := w.apply(plan); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			w.checkQueues(t)
			limited := false // a whole node that a queue may not have: another may be smaller, which is not looked for
			for _, n := range plan.Waiting {
				limited = limited || n.Reason.Code == rm.ReasonQueueMaximum || n.Reason.Code == rm.ReasonMasterShare
			}
			whole := false
			for _, a := range w.apps {
				whole = whole || slices.ContainsFunc(a.Asks, func(a rm.Ask) bool { return a.Exclusive })
			}
			limited = limited && whole
			// The same where another ask has taken that node since: there is room in the smaller one, and the reason speaks of that.
			passed := func(a *App, ask rm.Ask, code rm.ReasonCode) bool {
				return code == rm.ReasonGang && ask.Exclusive && w.queues.Find(a.Queue).AbsoluteMax < 1
			}
			for _, n := range plan.Waiting {
				a := w.apps[w.order[n.App.Sequence-1]]
				limited = limited || slices.ContainsFunc(a.Asks, func(ask rm.Ask) bool { return ask.ID == n.Ask && passed(a, ask, n.Reason.Code) })
			}
			if second := Schedule(w.snapshot(), 0); len(second.Groups) != 0 && !limited {
				t.Fatalf("a second pass found more: %+v; before %+v", second.Groups, plan)
			}
			waiting := map[string]rm.Reason{}
			for _, n := range plan.Waiting {
				waiting[fmt.Sprint(n.App, n.Ask)] = n.Reason
			}
			for _, name := range w.order {
				a := w.apps[name]
				for _, ask := range a.Asks {
					r, said := waiting[fmt.Sprint(a.ID, ask.ID)]
					if !said || r.Code == "" || r.Text == "" {
						t.Fatalf("%s/%s waits without a reason", name, ask.ID)
					}
					if r.Code == rm.ReasonQueueMaximum || r.Code == rm.ReasonMasterShare || r.Code == rm.ReasonUserLimit || passed(a, ask, r.Code) {
						continue
					}
					if r.Code == rm.ReasonLocality && !ask.Strict { // it leaves room to others that is too far away
						near := ask
						near.Strict = true
						if words := ask.Near.Words(); len(words.Hosts) > 0 && w.alive(words.Hosts) {
							near.Near, _ = rm.NewNear(rm.NearWords{Hosts: words.Hosts})
						}
						if ask.Near.Wait() == rm.NoWait || ask.Gang > 1 || w.possible(name, near) || !w.possible(name, ask) {
							t.Fatalf("%s/%+v waits (%v)", name, ask, r)
						}
						continue
					}
					if r.Code == rm.ReasonLocality && ask.Strict && w.possible(name, ask) {
						near := ask
						if near.Near, _ = rm.NewNear(rm.NearWords{Hosts: ask.Near.Words().Hosts}); !w.possible(name, near) {
							continue
						}
					}
					if w.possible(name, ask) {
						t.Fatalf("%s/%+v waits (%v) although there is room", name, ask, r)
					}
				}
			}
			if len(w.nodes) > 0 {
				w.do(t, "free "+rapid.SampledFrom(w.nodeNames()).Draw(t, "freed"))
			}
		}
	})
}

func (w *world) nodeNames() []string {
	var out []string
	for n := range w.nodes {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

func (w *world) checkQueues(t *rapid.T) {
	total := rm.Resource{}
	for _, n := range w.nodes {
		total = total.Add(n.Capacity)
	}
	for _, q := range w.queues.All {
		used := rm.Resource{}
		for _, a := range w.apps {
			for at := w.queues.Find(a.Queue); at != nil; at = at.Parent {
				if at == q {
					used = used.Add(a.Used)
				}
			}
		}
		for _, name := range total.Names() {
			if float64(used.Get(name)) > q.AbsoluteMax*float64(total.Get(name))+1e-3 {
				t.Fatalf("queue %s uses %v of at most %g of %v", q.Path, used, q.AbsoluteMax, total)
			}
		}
	}
}

// alive reports whether some of the hosts takes work.
func (w *world) alive(hosts []rm.NearHost) bool {
	return slices.ContainsFunc(hosts, func(h rm.NearHost) bool { n := w.nodes[h.Host]; return n != nil && !n.Closed })
}

// farFrom says how far a node is from where an ask is wanted.
func farFrom(near rm.Near, n *Node) distance {
	w := near.Words()
	if slices.ContainsFunc(w.Hosts, func(h rm.NearHost) bool { return h.Host == n.Host }) {
		return onHost
	}
	if slices.ContainsFunc(w.Racks, func(r string) bool { return n.Rack == r || strings.HasPrefix(n.Rack, r+"/") }) {
		return inRack
	}
	return elsewhere
}

// possible tries every way to place one unit of an ask.
func (w *world) possible(app string, a rm.Ask) bool {
	unit := max(1, a.Gang)
	type room struct {
		memory int64
		vcores int
		gpus   []GPU
		mig    rm.Amounts // free instances
	}
	var rooms []room
	var names, members []string
	for _, name := range w.nodeNames() {
		n := w.nodes[name]
		if n.Closed || a.Label != "" && !slices.Contains(n.Labels, a.Label) || slices.Contains(a.Excluded, name) ||
			a.Strict && !slices.Contains(a.Nodes, name) && farFrom(a.Near, n) == elsewhere || n.Exclusive || a.Exclusive && n.Containers > 0 || a.Attributes.Unmet(n.Attributes) != "" {
			continue
		}
		r := room{memory: n.Capacity.Memory - n.Used.Memory, vcores: n.Capacity.VCores - n.Used.VCores}
		for _, g := range n.GPUs {
			if g.Free && g.Profile != "" {
				r.mig = r.mig.Add(amounts(nil, map[string]int64{rm.ProfileResource(g.Profile): 1}))
			} else if g.Free && (a.Model == "" || g.Model == a.Model) {
				r.gpus = append(r.gpus, g)
			}
		}
		rooms = append(rooms, r)
		names = append(names, name)
	}
	var try func(left int) bool
	try = func(left int) bool {
		if left == 0 {
			return !slices.ContainsFunc(members, func(node string) bool { return !w.neighbours(app, &a, node, unit == 1, members) })
		}
		for i := range rooms {
			r := rooms[i]
			if r.memory < a.Resource.Memory || r.vcores < a.Resource.VCores || !a.Resource.Other.FitsIn(r.mig) {
				continue
			}
			for _, set := range subsets(r.gpus, a.Resource.GPUs) {
				if a.Island && !together(set) {
					continue
				}
				if a.Exclusive {
					rooms[i] = room{memory: -1}
				} else {
					rooms[i] = room{r.memory - a.Resource.Memory, r.vcores - a.Resource.VCores, without(r.gpus, set), r.mig.Sub(a.Resource.Other)}
				}
				members = append(members, names[i])
				if try(left - 1) {
					return true
				}
				members = members[:len(members)-1]
				rooms[i] = r
			}
		}
		return false
	}
	return try(unit)
}

func subsets(from []GPU, k int) [][]GPU {
	if k == 0 {
		return [][]GPU{nil}
	}
	var out [][]GPU
	for i := range from {
		for _, rest := range subsets(from[i+1:], k-1) {
			out = append(out, append([]GPU{from[i]}, rest...))
		}
	}
	return out
}

func together(set []GPU) bool {
	for _, g := range set[min(1, len(set)):] {
		if g.Island == "" || g.Island != set[0].Island {
			return false
		}
	}
	return true
}

func without(all, some []GPU) []GPU {
	return slices.DeleteFunc(slices.Clone(all), func(g GPU) bool { return slices.Contains(some, g) })
}

// queueShapes are trees of which some have queues in common.
var queueShapes = []rm.QueueConfig{
	{},
	{Children: map[string]rm.QueueConfig{"default": {Capacity: "50%", Max: "60%"}, "b": {Capacity: "50%"}}},
	{Children: map[string]rm.QueueConfig{"default": {Capacity: "0%"}, "b": {Capacity: "100%", Max: "100%", Children: map[string]rm.QueueConfig{
		"c": {Capacity: "30%", Max: "40%"}, "d": {Capacity: "70%", Max: "100%"},
	}}}},
	{Children: map[string]rm.QueueConfig{"default": {Capacity: "50%", Ordering: rm.OrderFair, UserLimit: "60%"}, "b": {
		Capacity: "50%", AutoCreate: &rm.QueueConfig{}, Children: map[string]rm.QueueConfig{"c": {Capacity: "1w"}}, Priority: 1,
	}}},
}

func drawWorld(t *rapid.T) *world {
	w := newWorld()
	q, err := rm.NewQueues(rapid.SampledFrom(queueShapes).Draw(t, "queues"))
	if err != nil {
		t.Fatal(err)
	}
	w.queues = q
	var leaves []string
	for _, q := range q.All {
		if q.Leaf() {
			leaves = append(leaves, q.Path)
		}
	}
	small := rapid.IntRange(0, 3)
	for i := range rapid.IntRange(0, 3).Draw(t, "nodes") {
		name := string(rune('a' + i))
		n := &Node{
			ID: rm.NodeID(name), Host: name, Rack: rapid.SampledFrom([]string{"/1", "/2", "/1/a"}).Draw(t, "rack"),
			Closed: rapid.IntRange(0, 9).Draw(t, "closed") == 0,
		}
		if rapid.Bool().Draw(t, "labelled") {
			n.Labels = []string{"x"}
		}
		n.Attributes = attributes(t, rapid.SampledFrom([][]string{nil, {"zone:a"}, {"zone:b"}}).Draw(t, "attributes"))
		for m := range rapid.IntRange(0, 5).Draw(t, "gpus") {
			n.GPUs = append(n.GPUs, GPU{
				UUID: fmt.Sprintf("%s:%d", name, m), Minor: m, Model: rapid.SampledFrom([]string{"A", "B"}).Draw(t, "model"),
				Island: rapid.SampledFrom([]string{"", "0", "1"}).Draw(t, "island"), Free: small.Draw(t, "free") > 0,
			})
		}
		for i := range rapid.SampledFrom([]int{0, 0, 2, 4}).Draw(t, "instances") {
			n.GPUs = append(n.GPUs, GPU{
				UUID: fmt.Sprintf("%s:%d", name, 100+i), Minor: 100, Model: "A", Profile: rapid.SampledFrom([]string{"1g", "1g", "3g"}).Draw(t, "profile"), Free: small.Draw(t, "free") > 0,
			})
		}
		n.Capacity = rm.Resource{Memory: int64(rapid.IntRange(0, 8).Draw(t, "memory")), VCores: rapid.IntRange(0, 6).Draw(t, "vcores")}
		countDevices(n)
		w.nodes[name] = n
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "apps") {
		name := fmt.Sprintf("app%d", i)
		a := &App{ID: rm.ApplicationID{Cluster: 1, Sequence: int64(i + 1)}, Queue: rapid.SampledFrom(leaves).Draw(t, "queue"), User: rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "user"), Priority: small.Draw(t, "priority")}
		for j := range rapid.IntRange(0, 3).Draw(t, "asks") {
			ask := rm.Ask{
				ID: fmt.Sprint(j), Priority: small.Draw(t, "askpriority"), Count: rapid.IntRange(1, 4).Draw(t, "count"),
				Island: rapid.Bool().Draw(t, "inisland"), Strict: small.Draw(t, "strict") == 0,
			}
			if j == 0 && rapid.Bool().Draw(t, "master") {
				ask.ID, ask.Count = "", 1
			}
			ask.Resource = rm.Resource{Memory: int64(small.Draw(t, "askmemory")), VCores: small.Draw(t, "askvcores"), GPUs: small.Draw(t, "askgpus")}
			ask.Resource.Other = amounts(nil, rapid.SampledFrom([]map[string]int64{nil, nil, nil, {rm.MIGPrefix + "1g": 1}, {rm.MIGPrefix + "1g": 2}, {rm.MIGPrefix + "3g": 1}, {rm.MIGPrefix + "1g": 1, rm.MIGPrefix + "3g": 1}}).Draw(t, "mig"))
			if g := small.Draw(t, "gang"); g <= ask.Count {
				ask.Gang = g
			}
			nodes := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID)
			ask.Nodes = nodes.Draw(t, "near")
			if small.Draw(t, "data") == 0 {
				ask.Nodes = nil
				ask.Near = nearTo(t, nodes.Draw(t, "hosts"), rapid.SampledFrom([][]string{nil, {"/1"}, {"/2"}, {"/1/a", "/2"}}).Draw(t, "racks"), "")
				if w := ask.Near.Words(); !ask.Near.IsZero() && rapid.Bool().Draw(t, "no wait") {
					w.Wait = rm.NoWait
					ask.Near, _ = rm.NewNear(w)
				}
			}
			if small.Draw(t, "excludes") == 0 {
				ask.Excluded = nodes.Draw(t, "excluded")
			}
			ask.Model = rapid.SampledFrom([]string{"", "", "A", "B"}).Draw(t, "askmodel")
			ask.Exclusive = small.Draw(t, "exclusive") == 0
			ask.Attributes = conditions(t, rapid.SampledFrom([][]string{nil, nil, nil, {"zone:a"}, {"zone:!a"}, {"zone:a/b"}, {"zone:*"}}).Draw(t, "conditions"))
			ask.Placement.Tags = tags(t, rapid.SampledFrom([][]string{nil, {"x"}, {"y"}, {"x", "y"}}).Draw(t, "tags"))
			ask.Constraints = constraints(t, rapid.SampledFrom([][]string{
				nil, nil, nil, {"x:node:0:0"}, {"x:node:0:1"}, {"y:rack:0:0"}, {"x:node:1:"}, {"x:rack:1:"}, {"y:1:1:2"}, {"x:rack:0:1", "y:node:0:0"}, {"x:rack:1:3", "x:node:0:0"},
			}).Draw(t, "constraints"))
			ask.Label = rapid.SampledFrom([]string{"", "", "", "x"}).Draw(t, "label")
			a.Asks = append(a.Asks, ask)
		}
		w.apps[name] = a
		w.order = append(w.order, name)
	}
	return w
}

// BenchmarkFill fills 1,000 machines of 8 GPUs from 20 queues, one container after the other.
func BenchmarkFill(b *testing.B) {
	root := rm.QueueConfig{Children: map[string]rm.QueueConfig{}}
	for i := range 20 {
		root.Children[fmt.Sprintf("q%02d", i)] = rm.QueueConfig{Capacity: "5%"}
	}
	queues, err := rm.NewQueues(root)
	if err != nil {
		b.Fatal(err)
	}
	s := Snapshot{Queues: queues}
	for i := range 1000 {
		n := Node{ID: rm.NodeID(fmt.Sprintf("n%04d:1", i)), Host: fmt.Sprintf("n%04d", i), Rack: fmt.Sprint(i / 40), Capacity: rm.Resource{Memory: 1 << 40, VCores: 96, GPUs: 8}}
		for m := range 8 {
			n.GPUs = append(n.GPUs, GPU{UUID: fmt.Sprint(i, m), Minor: m, Island: "0", Free: true})
		}
		s.Nodes = append(s.Nodes, n)
	}
	for i := range 200 {
		s.Apps = append(s.Apps, App{
			ID: rm.ApplicationID{Sequence: int64(i)}, Queue: fmt.Sprintf("root.q%02d", i%20),
			Asks: []rm.Ask{{ID: "w", Count: 40, Resource: rm.Resource{Memory: 1 << 30, VCores: 1, GPUs: 1}}},
		})
	}
	for b.Loop() {
		if got := len(Schedule(s, 0).Groups); got != 8000 {
			b.Fatalf("%d placements", got)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/8000, "us/placement")
}
