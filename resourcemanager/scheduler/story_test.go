package scheduler

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

var rewrite = flag.Bool("rewrite", false, "write what the stories answer into testdata")

// TestStories plays testdata/*.txt: commands, "----", what they answer. The commands are
//
//	queues root.a=60 root.b=40,max=50        the tree; capacities in percent of the parent
//	node ID memory=8g vcores=8 gpus=0-3,4-7 mig=1g.5gb,2g.10gb model=H100 gpumem=80g rack=/r1 labels=x,y attributes=zone:a used=0,1 closed
//	app ID queue=root.a priority=1 used=1g,2,3
//	ask APP ID count=2 gpus=4 mig=1g.5gb:2 memory=1g vcores=1 gang=2 island model=H100 near=a,b only excluded=c label=x priority=1 within=node gpumem=80g attributes=zone:!a/b exclusive tags=x constraints=x:node:0:0 hosts=a:3,b racks
//	schedule                                 one pass; grants are kept
//	free NODE                                everything on the node ends
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no stories", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { play(t, file) })
	}
}

func play(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld()
	var out strings.Builder
	for i, block := range strings.Split(strings.TrimRight(string(text), "\n"), "\n\n") {
		command, want, _ := strings.Cut(block, "\n----\n")
		var got strings.Builder
		for line := range strings.Lines(command) {
			line = strings.TrimSpace(line)
			if line == "" || line[0] == '#' {
				continue
			}
			got.WriteString(w.do(t, line))
		}
		answer := strings.TrimRight(got.String(), "\n")
		if !*rewrite && answer != strings.TrimRight(want, "\n") && strings.Contains(block, "\n----") {
			t.Errorf("block %d:\n%s\ngot:\n%s\nwant:\n%s", i+1, command, answer, want)
		}
		out.WriteString(strings.TrimRight(strings.TrimSuffix(command, "\n----"), "\n"))
		if answer != "" {
			out.WriteString("\n----\n" + answer)
		}
		out.WriteString("\n\n")
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(strings.TrimRight(out.String(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// world is a cluster that keeps what was granted.
type world struct {
	queues *rm.Queues
	nodes  map[string]*Node
	apps   map[string]*App
	order  []string
	live   []held
}

// failer is what *testing.T and *rapid.T share.
type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

type held struct {
	app, ask, node string
	resource       rm.Resource
	tags           rm.Tags
}

func newWorld() *world {
	q, err := rm.NewQueues(rm.QueueConfig{})
	if err != nil {
		panic(err)
	}
	return &world{queues: q, nodes: map[string]*Node{}, apps: map[string]*App{}}
}

func (w *world) do(t failer, line string) string {
	t.Helper()
	f := strings.Fields(line)
	args := map[string]string{}
	var names []string
	for _, a := range f[1:] {
		if k, v, ok := strings.Cut(a, "="); ok {
			args[k] = v
		} else if slices.Contains([]string{"island", "only", "closed", "exclusive"}, a) {
			args[a] = "yes"
		} else {
			names = append(names, a)
		}
	}
	list := func(k string) []string {
		if args[k] == "" {
			return nil
		}
		return strings.Split(args[k], ",")
	}
	num := func(s string) int {
		n, err := strconv.Atoi(s)
		if s != "" && err != nil {
			t.Fatal(line, err)
		}
		return n
	}
	switch f[0] {
	case "queues":
		root := rm.QueueConfig{Children: map[string]rm.QueueConfig{}}
		for _, a := range f[1:] {
			path, spec, _ := strings.Cut(a, "=")
			capacity, limit, _ := strings.Cut(spec, ",max=")
			c := rm.QueueConfig{Capacity: capacity, Max: limit}
			parts := strings.Split(path, ".")[1:]
			insertQueue(&root, parts, c)
		}
		q, err := rm.NewQueues(root)
		if err != nil {
			t.Fatal(err)
		}
		w.queues = q
	case "node":
		n := &Node{ID: rm.NodeID(names[0]), Host: names[0], Rack: args["rack"], Labels: list("labels"), Closed: args["closed"] != ""}
		n.Capacity = rm.Resource{Memory: size(t, args["memory"], 64<<30), VCores: 64}
		if args["vcores"] != "" {
			n.Capacity.VCores = num(args["vcores"])
		}
		used := list("used")
		for i, island := range list("gpus") {
			from, to, ok := strings.Cut(island, "-")
			if !ok {
				to = from
			}
			for m := num(from); m <= num(to); m++ {
				g := GPU{Memory: size(t, args["gpumem"], 80<<30), UUID: fmt.Sprintf("%s:%d", names[0], m), Model: args["model"], Minor: m, Island: strconv.Itoa(i)}
				g.Free = !slices.Contains(used, strconv.Itoa(m))
				n.GPUs = append(n.GPUs, g)
			}
		}
		for i, profile := range list("mig") {
			m := 100 + i
			g := GPU{UUID: fmt.Sprintf("%s:%d", names[0], m), Model: args["model"], Minor: m, Profile: profile, Free: !slices.Contains(used, strconv.Itoa(m))}
			n.GPUs = append(n.GPUs, g)
		}
		countDevices(n)
		n.Attributes = attributes(t, list("attributes"))
		w.nodes[names[0]] = n
	case "app":
		a := &App{ID: rm.ApplicationID{Cluster: 1, Sequence: int64(len(w.apps) + 1)}, Queue: "root.default", Priority: num(args["priority"])}
		if args["queue"] != "" {
			a.Queue = args["queue"]
		}
		a.Submitted = metadata.Time(len(w.apps))
		w.apps[names[0]] = a
		w.order = append(w.order, names[0])
	case "ask":
		a := rm.Ask{
			Priority: num(args["priority"]), Count: max(1, num(args["count"])), Gang: num(args["gang"]), Model: args["model"],
			Island: args["island"] != "", Nodes: list("near"), Strict: args["only"] != "", Excluded: list("excluded"), Label: args["label"],
			Within: args["within"], GPUMemory: size(t, args["gpumem"], 0),
		}
		a.Exclusive = args["exclusive"] != ""
		a.Attributes = conditions(t, list("attributes"))
		a.Placement.Tags, a.Constraints = tags(t, list("tags")), constraints(t, list("constraints"))
		a.Near = nearTo(t, list("hosts"), list("racks"), args["wait"])
		if names[1] != "master" {
			a.ID = names[1]
		}
		a.Resource = rm.Resource{Memory: size(t, args["memory"], 1<<30), VCores: max(1, num(args["vcores"])), GPUs: num(args["gpus"])}
		instances := map[string]int64{}
		for _, x := range list("mig") {
			profile, n, _ := strings.Cut(x, ":")
			instances[rm.ProfileResource(profile)] = int64(max(1, num(n)))
		}
		a.Resource.Other = amounts(t, instances)
		w.apps[names[0]].Asks = append(w.apps[names[0]].Asks, a)
	case "free":
		n := w.nodes[names[0]]
		n.Used, n.Containers, n.Exclusive, n.Holds = rm.Resource{}, 0, false, nil
		for i := range n.GPUs {
			n.GPUs[i].Free = true
		}
		w.live = slices.DeleteFunc(w.live, func(h held) bool {
			if h.node == names[0] {
				a := w.apps[h.app]
				a.Used = a.Used.Sub(h.resource)
				if h.ask == "" {
					a.Masters = a.Masters.Sub(h.resource)
				}
			}
			return h.node == names[0]
		})
	case "schedule":
		return w.schedule(t)
	default:
		t.Fatalf("unknown command %q", line)
	}
	return ""
}

// countDevices sets the capacity of a node by its devices.
func countDevices(n *Node) {
	n.Capacity.DropDevices()
	for i := range n.GPUs {
		n.Capacity.AddDevice(&rm.GPU{Profile: n.GPUs[i].Profile})
	}
}

func amounts(t failer, byName map[string]int64) rm.Amounts {
	out, err := rm.NewAmounts(byName)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func attributes(t failer, list []string) rm.Attributes {
	out, err := rm.NewAttributes(pairs(list))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func conditions(t failer, list []string) rm.Conditions {
	out, err := rm.NewConditions(pairs(list))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tags(t failer, list []string) rm.Tags {
	out, err := rm.NewTags(list)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// nearTo reads hosts as name:weight, and for how long to wait for them; 0: not at all.
func nearTo(t failer, hosts, racks []string, wait string) rm.Near {
	w := rm.NearWords{Racks: racks}
	for _, x := range hosts {
		name, weight, _ := strings.Cut(x, ":")
		n, _ := strconv.Atoi(weight)
		w.Hosts = append(w.Hosts, rm.NearHost{Host: name, Weight: n})
	}
	if wait == "0" {
		w.Wait = rm.NoWait
	} else if wait != "" {
		d, err := time.ParseDuration(wait)
		if err != nil {
			t.Fatal(err)
		}
		w.Wait = d
	}
	n, err := rm.NewNear(w)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// constraints reads tag:scope:min:max, without max for any number.
func constraints(t failer, list []string) rm.Constraints {
	var out []rm.Constraint
	for _, x := range list {
		f := strings.Split(x, ":")
		c := rm.Constraint{Tag: f[0], Scope: f[1], Max: rm.Unbounded}
		c.Min, _ = strconv.Atoi(f[2])
		if f[3] != "" {
			c.Max, _ = strconv.Atoi(f[3])
		}
		out = append(out, c)
	}
	c, err := rm.NewConstraints(out)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// neighbours reports whether a container of an ask that is on a node, with those that live and some more of the ask on other nodes, has as
// many others near it as it wants. single: it comes alone, and need not have any of its own tag if it is the first with that.
func (w *world) neighbours(app string, a *rm.Ask, node string, single bool, more []string) bool {
	for _, c := range a.Constraints.List() {
		near := func(other string) bool {
			x, y := w.nodes[node], w.nodes[other]
			return c.Scope == "node" && x == y || c.Scope == "rack" && x.Rack == y.Rack ||
				c.Scope == "1" && strings.Split(x.Rack, "/")[1] == strings.Split(y.Rack, "/")[1]
		}
		self := slices.Contains(a.Placement.Tags.List(), c.Tag)
		n, all := 0, len(more)
		for _, h := range w.live {
			if h.app == app && slices.Contains(h.tags.List(), c.Tag) && w.nodes[h.node] != nil {
				if all++; near(h.node) {
					n++
				}
			}
		}
		for _, o := range more {
			if self && near(o) {
				n++
			}
		}
		if self {
			n-- // itself
		}
		if n > c.Max || n < c.Min && !(single && self && all == 1) {
			return false
		}
	}
	return true
}

// pairs reads name:value, with / for the commas of a value.
func pairs(list []string) map[string]string {
	out := map[string]string{}
	for _, x := range list {
		name, value, _ := strings.Cut(x, ":")
		out[name] = strings.ReplaceAll(value, "/", ",")
	}
	return out
}

func insertQueue(q *rm.QueueConfig, path []string, c rm.QueueConfig) {
	if q.Children == nil {
		q.Children = map[string]rm.QueueConfig{}
	}
	child := q.Children[path[0]]
	if len(path) == 1 {
		c.Children = child.Children
		child = c
	} else {
		insertQueue(&child, path[1:], c)
	}
	q.Children[path[0]] = child
}

func size(t failer, s string, otherwise int64) int64 {
	if s == "" {
		return otherwise
	}
	unit := int64(1)
	switch s[len(s)-1] {
	case 'g':
		unit = 1 << 30
	case 'm':
		unit = 1 << 20
	}
	n, err := strconv.ParseInt(strings.TrimRight(s, "gm"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * unit
}

func (w *world) snapshot() Snapshot {
	s := Snapshot{Queues: w.queues}
	for _, k := range slices.Sorted(maps.Keys(w.nodes)) {
		s.Nodes = append(s.Nodes, *w.nodes[k])
	}
	for _, k := range w.order {
		s.Apps = append(s.Apps, *w.apps[k])
	}
	return s
}

func (w *world) schedule(t failer) string {
	plan := Schedule(w.snapshot(), 0)
	if err := w.apply(plan); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	name := func(id rm.ApplicationID) string { return w.order[id.Sequence-1] }
	ask := func(id string) string {
		if id == "" {
			return "master"
		}
		return id
	}
	for _, g := range plan.Groups {
		fmt.Fprintf(&b, "%s/%s ->", name(g.App), ask(g.Ask))
		for _, p := range g.Placements {
			fmt.Fprintf(&b, " %s", p.Node)
			for i, u := range p.GPUs {
				_, minor, _ := strings.Cut(u, ":")
				fmt.Fprintf(&b, "%s%s", []string{":", ","}[min(i, 1)], minor)
			}
		}
		b.WriteByte('\n')
	}
	for _, n := range plan.Waiting {
		fmt.Fprintf(&b, "%s/%s waits: %v\n", name(n.App), ask(n.Ask), n.Reason)
	}
	if b.Len() == 0 {
		return "nothing to do\n"
	}
	return b.String()
}

// apply makes a plan real and checks what must hold of every plan: devices are free and given once, nodes are not
// overfilled, gangs come whole.
func (w *world) apply(plan Plan) error {
	for _, g := range plan.Groups {
		app := w.apps[w.order[g.App.Sequence-1]]
		i := slices.IndexFunc(app.Asks, func(a rm.Ask) bool { return a.ID == g.Ask })
		if i < 0 {
			return fmt.Errorf("granted an ask that nobody made: %+v", g)
		}
		a := &app.Asks[i]
		if a.Gang > 1 && len(g.Placements) < a.Gang || len(g.Placements) > a.Count {
			return fmt.Errorf("group of %d for gang %d, count %d", len(g.Placements), a.Gang, a.Count)
		}
		for _, p := range g.Placements {
			n := w.nodes[string(p.Node)]
			if n == nil || n.Closed {
				return fmt.Errorf("granted on %s, which takes nothing", p.Node)
			}
			gets := g.Gets(p)
			named := gets
			named.DropDevices()
			for _, u := range p.GPUs {
				if j := slices.IndexFunc(n.GPUs, func(d GPU) bool { return d.UUID == u }); j >= 0 {
					named.AddDevice(&rm.GPU{Profile: n.GPUs[j].Profile})
				}
			}
			if named != gets || !g.Resource.FitsIn(gets) {
				return fmt.Errorf("devices %q for %v, %v", p.GPUs, gets, g.Resource)
			}
			if n.Exclusive || a.Exclusive && n.Containers > 0 {
				return fmt.Errorf("%s is not free as a whole", p.Node)
			}
			if unmet := a.Attributes.Unmet(n.Attributes); unmet != "" {
				return fmt.Errorf("%s has not %s", p.Node, unmet)
			}
			if gets.Memory != n.Capacity.Memory && a.Exclusive {
				return fmt.Errorf("%v is not all of %s", gets, p.Node)
			}
			n.Exclusive = a.Exclusive
			n.Containers++
			n.Holds = append(slices.Clone(n.Holds), Hold{App: app.ID, Resource: gets, GPUs: p.GPUs, Tags: a.Placement.Tags})
			for _, u := range p.GPUs {
				j := slices.IndexFunc(n.GPUs, func(d GPU) bool { return d.UUID == u })
				if j < 0 || !n.GPUs[j].Free {
					return fmt.Errorf("device %s of %s is not free", u, p.Node)
				}
				n.GPUs[j].Free = false
			}
			n.Used = n.Used.Add(gets)
			app.Used = app.Used.Add(gets)
			if g.Ask == "" {
				app.Masters = app.Masters.Add(gets)
			}
			w.live = append(w.live, held{w.order[g.App.Sequence-1], g.Ask, string(p.Node), gets, a.Placement.Tags})
			if n.Used.Memory > n.Capacity.Memory || n.Used.VCores > n.Capacity.VCores {
				return fmt.Errorf("%s is overfilled: %v of %v", p.Node, n.Used, n.Capacity)
			}
		}
		for _, p := range g.Placements {
			if !w.neighbours(w.order[g.App.Sequence-1], a, string(p.Node), len(g.Placements) == 1, nil) {
				return fmt.Errorf("on %s its neighbours are not %v", p.Node, a.Constraints)
			}
		}
		a.Count -= len(g.Placements)
		a.Gang = 0
		if a.Count == 0 {
			app.Asks = slices.Delete(slices.Clone(app.Asks), i, i+1)
		}
	}
	return nil
}
