package scheduler

import (
	"cmp"
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// Node is a machine as the scheduler sees it.
type Node struct {
	ID     rm.NodeID
	Host   string
	Rack   string
	Labels []string
	// Attributes are what else is true of it.
	Attributes rm.Attributes
	// Capacity is what the node has, GPUs included. Used is granted; of it the GPUs are not read.
	Capacity, Used rm.Resource
	// Containers run there, of which a node takes rm.MaxContainersPerNode.
	Containers int
	GPUs       []GPU
	// Exclusive: what runs there has the node for itself.
	Exclusive bool
	// Closed nodes count as part of the cluster but take nothing: silent, unhealthy, or not heard of by this leader yet.
	Closed bool
	// Holds are its live containers. What of Used is in none of them stays for ever, as far as is known.
	Holds []Hold
}

// GPU is a device of a node: a whole GPU, or with a profile a MIG instance.
type GPU struct {
	UUID, Model, Island, Profile string
	// Memory is in bytes.
	Memory int64
	Minor  int
	// Free devices are healthy and nobody's.
	Free bool
	// Broken ones are not free either when the container ends that holds them.
	Broken bool
}

// Hold is a live container on a node.
type Hold struct {
	App      rm.ApplicationID
	Resource rm.Resource
	GPUs     []string
	Tags     rm.Tags
	// Ends is when it is over at the latest, beside the end of its application, see App.Ends; 0: nobody knows.
	Ends metadata.Time

	// The rest is read where room is taken from some for others. Without a Container it stays.
	Container rm.ContainerID
	Master    bool
	// Gang numbers those of its application that were granted at once, and go together; 0: it came alone.
	Gang int64
	// Saved is until when its work is saved, as far as is known: its last checkpoint, or its start.
	Saved metadata.Time
	// For is the path of the queue for which it was told to go; empty: it was not. Stopping: its node is told to end it.
	// ForApp and ForAsk say for which of its asks.
	For      string
	ForApp   rm.ApplicationID
	ForAsk   string
	Stopping bool
	// Moves: it was told so that another finds room in one piece, and goes elsewhere.
	Moves bool
	// Began is when it was granted, Asked what for, of which the counts are not read; nil: nobody knows. Checkpoints: it has said that its work is
	// saved.
	Began       metadata.Time
	Asked       *rm.Ask
	Checkpoints bool
}

// node is a node of the model.
type node struct {
	position // in its bucket
	Node
	class  *class
	bucket *bucket
	// devices in the order in which they are given: by minor, then UUID. given says where the i-th of Node.GPUs is.
	devices []device
	given   []int
	islands []island
	// profiles are the names of the resources that its MIG instances are.
	profiles []string
	// assumed is granted by plans that are not settled: amounts, containers, and devices by UUID.
	assumed           rm.Resource
	assumedContainers int
	assumedGPUs       map[string]bool
	// assumedWhole: of what is assumed one has it for itself.
	assumedWhole bool
	// vacated: the one that has it for itself is taken off for a trial.
	vacated bool
	// room is what is left: amounts with the number of free devices, and places for containers.
	room   rm.Resource
	places int
	// changed: something other than a plan changed it since the last plan, before which it had the room of before.
	changed bool
	before  room
	// another: since then it has become another node: come, gone, closed, moved, or of other capacity.
	another bool
	// reserved is for whom it is kept free, see reserve.go.
	reserved *reservation
	// cell: it is one that queues may be guaranteed; uses are by whom it is used, of which held are its containers', see cells.go.
	cell bool
	uses []use
	held []account
}

// device is a GPU of a node.
type device struct {
	uuid   string
	kind   int // of Model.kinds
	island int // -1: it is a MIG instance
	// profile of a MIG instance is in node.profiles.
	profile int
	free    bool // as SetNode says
}

// island is a set of devices that NVLink joins. A device without an island is one of its own.
type island struct {
	free  []int // devices, in their order
	kinds []count
}

type count struct{ kind, n int }

// room is what a node has left.
type room struct {
	amounts rm.Resource
	places  int
	free    uint64 // which of the first 64 devices
}

func (n *node) roomNow() room {
	r := room{amounts: n.room, places: n.places}
	for i := range min(len(n.devices), 64) {
		if d := &n.devices[i]; d.free && !n.assumedGPUs[d.uuid] {
			r.free |= 1 << i
		}
	}
	return r
}

// grew reports whether something may fit the node that did not at the last plan.
func (n *node) grew() bool {
	now := n.roomNow()
	return len(n.devices) > 64 || now.free&^n.before.free != 0 || now.places > n.before.places || !now.amounts.FitsIn(n.before.amounts)
}

// named reports whether one of the names, which are sorted, means this node.
func (n *node) named(in []string) bool {
	if len(in) == 0 {
		return false
	}
	_, host := slices.BinarySearch(in, n.Host)
	_, id := slices.BinarySearch(in, string(n.ID))
	return host || id
}

// build derives devices and islands from the node's GPUs.
func (n *node) build(m *Model) {
	order := make([]int, len(n.GPUs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(n.GPUs[a].Minor, n.GPUs[b].Minor), cmp.Compare(n.GPUs[a].UUID, n.GPUs[b].UUID))
	})
	key := func(g *GPU) string {
		if g.Island == "" {
			return "\x00" + g.UUID
		}
		return g.Island
	}
	var names []string
	n.profiles = nil
	for i := range n.GPUs {
		if p := n.GPUs[i].Profile; p != "" {
			if name := rm.ProfileResource(p); !slices.Contains(n.profiles, name) {
				n.profiles = append(n.profiles, name)
			}
		} else if k := key(&n.GPUs[i]); !slices.Contains(names, k) {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	slices.Sort(n.profiles)
	n.islands = make([]island, len(names))
	n.devices, n.given = make([]device, len(n.GPUs)), make([]int, len(n.GPUs))
	for at, i := range order {
		g := &n.GPUs[i]
		if n.given[i] = at; g.Profile != "" {
			n.devices[at] = device{uuid: g.UUID, kind: -1, island: -1, profile: slices.Index(n.profiles, rm.ProfileResource(g.Profile))}
			continue
		}
		n.devices[at] = device{uuid: g.UUID, kind: m.kind(g), island: slices.Index(names, key(g))}
	}
}

// refresh derives what is left.
func (n *node) refresh() {
	n.room = n.Capacity.Sub(n.Used).Sub(n.assumed)
	n.places = rm.MaxContainersPerNode - n.Containers - n.assumedContainers
	if n.Exclusive || n.assumedWhole {
		n.places = 0
	}
	for i := range n.GPUs {
		n.devices[n.given[i]].free = n.GPUs[i].Free
	}
	for i := range n.islands {
		n.islands[i].free, n.islands[i].kinds = n.islands[i].free[:0], n.islands[i].kinds[:0]
	}
	n.room.GPUs = 0
	for i := range n.devices {
		d := &n.devices[i]
		if !d.free || len(n.assumedGPUs) > 0 && n.assumedGPUs[d.uuid] {
			continue
		}
		if d.island < 0 {
			continue
		}
		own := &n.islands[d.island]
		own.free = append(own.free, i)
		own.add(d.kind, 1)
		n.room.GPUs++
	}
	n.countInstances()
}

func (i *island) add(kind, n int) {
	for k := range i.kinds {
		if i.kinds[k].kind == kind {
			i.kinds[k].n += n
			return
		}
	}
	i.kinds = append(i.kinds, count{kind, n})
	slices.SortFunc(i.kinds, func(a, b count) int { return cmp.Compare(a.kind, b.kind) })
}

// count is how many free devices of an island a shape may have.
func (i *island) count(s *shape) int {
	if s.anyKind {
		return len(i.free)
	}
	n := 0
	for _, c := range i.kinds {
		if s.takes(c.kind) {
			n += c.n
		}
	}
	return n
}

// freeGPUs counts the free devices that a shape may have.
func (n *node) freeGPUs(s *shape) int {
	if s.anyKind {
		return n.room.GPUs
	}
	sum := 0
	for i := range n.islands {
		sum += n.islands[i].count(s)
	}
	return sum
}

// times is how often r, without its GPUs, fits into what is there, at most limit.
func times(there rm.Resource, r *rm.Resource, limit int) int {
	if r.Memory > 0 {
		limit = min(limit, int(there.Memory/r.Memory))
	}
	if r.VCores > 0 {
		limit = min(limit, there.VCores/r.VCores)
	}
	if !r.Other.IsZero() {
		for name, each := range r.Other.All() {
			limit = min(limit, int(there.Other.Get(name)/each))
		}
	}
	return max(limit, 0)
}

// fits counts how many containers of a shape the node can take now, at most limit.
func (n *node) fits(s *shape, limit int) int { return n.holds(s, min(limit, n.places)) }

// holds is fits but for the places that the node has for containers.
func (n *node) holds(s *shape, limit int) int {
	if s.Exclusive {
		if limit = min(limit, 1); !n.empty() {
			return 0
		}
	}
	limit = times(n.room, &s.Resource, limit)
	k := s.Resource.GPUs
	if k == 0 || limit == 0 {
		return limit
	}
	sum := 0
	if s.Island {
		for i := range n.islands {
			sum += n.islands[i].count(s) / k
		}
	} else {
		sum = n.freeGPUs(s) / k
	}
	return min(limit, sum)
}

// empty reports whether nothing runs there.
func (n *node) empty() bool {
	return n.Containers == 0 && n.assumedContainers == 0 && n.Used.Memory == 0 && n.Used.VCores == 0
}

// whole is what a container gets that has an empty node for itself.
func (n *node) whole() rm.Resource {
	r := n.Capacity
	r.GPUs = n.room.GPUs
	r.Other = r.Other.WithInstances(n.room.Other.Instances())
	return r
}

// capable counts how many containers of a shape the node could take if it were empty, at most limit.
func (n *node) capable(s *shape, limit int) int {
	limit = times(n.Capacity, &s.Resource, min(limit, rm.MaxContainersPerNode))
	if s.Exclusive {
		limit = min(limit, 1)
	}
	k := s.Resource.GPUs
	if k == 0 || limit == 0 {
		return limit
	}
	if k > n.Capacity.GPUs {
		return 0
	}
	sum := 0
	byIsland := make([]int, len(n.islands))
	for i := range n.devices {
		if d := &n.devices[i]; d.island >= 0 && s.takes(d.kind) {
			byIsland[d.island]++
			sum++
		}
	}
	if s.Island {
		sum = 0
		for _, c := range byIsland {
			sum += c / k * k
		}
	}
	return min(limit, sum/k)
}

// choose names the devices of one container. only restricts them to one island when it is not negative.
func (n *node) choose(s *shape, only int) []string {
	k := s.Resource.GPUs
	if s.Exclusive {
		return n.all()
	}
	instances := n.instances(s)
	if k == 0 {
		return instances
	}
	out := make([]string, 0, k+len(instances))
	take := func(i int) {
		for _, d := range n.islands[i].free {
			if len(out) < k && s.takes(n.devices[d].kind) {
				out = append(out, n.devices[d].uuid)
			}
		}
	}
	if only < 0 {
		only = n.tightest(s, k)
	}
	if only >= 0 {
		take(only)
		return append(out, instances...)
	}
	// No island has them all: take from as few as possible.
	order := make([]int, len(n.islands))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(n.islands[b].count(s), n.islands[a].count(s)) })
	for _, i := range order {
		take(i)
	}
	return append(out, instances...)
}

// tightest is the island with the fewest free devices that still has k for the shape; -1 when there is none.
func (n *node) tightest(s *shape, k int) int {
	best := -1
	for i := range n.islands {
		if n.islands[i].count(s) >= k && (best < 0 || len(n.islands[i].free) < len(n.islands[best].free)) {
			best = i
		}
	}
	return best
}

// assume takes one container's room until give gives it back.
func (n *node) assume(r rm.Resource, gpus []string, whole bool) {
	n.assumed = n.assumed.Add(r)
	n.assumedContainers++
	free := n.room.GPUs
	n.room = n.room.Sub(r)
	n.room.GPUs = free // counted below
	if n.places--; whole {
		n.assumedWhole, n.places = true, 0
	}
	for _, u := range gpus {
		if n.assumedGPUs == nil {
			n.assumedGPUs = map[string]bool{}
		}
		n.assumedGPUs[u] = true
		at := slices.IndexFunc(n.devices, func(d device) bool { return d.uuid == u })
		if at < 0 || n.devices[at].island < 0 { // instances are amounts, too, and off already
			continue
		}
		i := &n.islands[n.devices[at].island]
		if f := slices.Index(i.free, at); f >= 0 {
			i.free = slices.Delete(i.free, f, f+1)
			i.add(n.devices[at].kind, -1)
			n.room.GPUs--
		}
	}
}

func (n *node) give(r rm.Resource, gpus []string, whole bool) {
	n.assumedWhole = n.assumedWhole && !whole
	n.assumed = n.assumed.Sub(r)
	n.assumedContainers--
	for _, u := range gpus {
		delete(n.assumedGPUs, u)
	}
	n.refresh()
}
