// Package placement chooses the datanodes that get the replicas of a block. It is pure: the same nodes, request and
// seed give the same choice.
//
// The rules are HDFS's default policy (BlockPlacementPolicyDefault): the first replica goes to the writer's own node, the
// second to another rack, the third to the rack of the second, the rest anywhere. A rule that no node meets is
// dropped, never the replica: fewer racks, busier nodes, slow volumes and finally silent nodes are better than no place at all.
//
// Types of storage are no such rule but a requirement, as in HDFS (BlockStoragePolicy): where no volume of a type has room the policy's fallbacks are
// tried, and nothing else, so that one who fills the disks does not fill the SSDs of others. Unlike in HDFS a policy that names only types of which
// the cluster has no volume asks for nothing: with SSDs alone files can be made without setting a policy first. Memory (RAM_DISK) is only for new blocks whose policy names it.
package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Candidate is a datanode as the chooser sees it.
type Candidate struct {
	Node    *namenode.Node
	Volumes []namenode.Volume
	// Xceivers is the number of transfers in progress that the node reported, plus those promised since.
	Xceivers int
	// Scheduled is the number of bytes promised to the node and not yet reported as used.
	Scheduled int64
	// Stale nodes have been silent for a while and are chosen only when nothing else is left.
	Stale bool
	// Dead nodes are never chosen.
	Dead bool
	// Leaving nodes are being decommissioned or go into maintenance, and are never chosen.
	Leaving bool
	// Full nodes have as many copies coming as they may, and are not chosen for another one.
	Full bool
}

// Request is one choice to make.
type Request struct {
	// Want is how many targets to find, beside those in Have.
	Want int
	// BlockSize in bytes must be free on a target.
	BlockSize int64
	// Writer is the host or IP of the writing client, or the datanode that it is part of; a node there gets the first replica. Empty: no
	// preference.
	Writer string
	// NoLocal forbids that preference and the writer's node with it (Hadoop's NO_LOCAL_WRITE) while another node will do.
	NoLocal bool
	// Favoured nodes, as uuid, IP:port, host:port, host or IP, are tried before any other.
	Favoured []string
	// Exclude lists nodes that must not be chosen.
	Exclude []namenode.NodeID
	// Have lists nodes that hold, or will hold, other replicas of the block; they are not chosen again and count for
	// the spread over racks.
	Have []*namenode.Node
	// Policy says which types of storage the replicas need; nil: any. HaveTypes are those of the replicas that there are, or will be.
	Policy    *namenode.StoragePolicy
	HaveTypes []namenode.StorageType
	// NewRack wants a target on a rack that none in Have stands on, or none at all.
	NewRack bool
	// Spread puts each replica on one of the racks that have the fewest, as the internal blocks of a group want it (BlockPlacementPolicyRackFaultTolerant).
	Spread bool
	// Copy: it is for a replica of a finished block, which can wait. Full and Stale nodes are ruled out.
	Copy bool
	// Survey is that of the nodes, if the caller has it already: it is the same for many requests at one time.
	Survey *Survey
	// Seed makes the choice among equals.
	Seed uint64
}

// Survey is what a choice has to know of all nodes together.
type Survey struct {
	live  int
	limit int  // transfers above which a node is busy
	racks bool // there is more than one rack
	// byRack are the nodes of each rack, in a survey for many requests: one wants a certain rack as often as not.
	byRack map[string][]*Candidate
}

// Look makes a survey of nodes for many requests.
func Look(nodes []*Candidate) Survey {
	s := look(nodes)
	if s.racks {
		s.byRack = map[string][]*Candidate{}
		for _, n := range nodes {
			s.byRack[n.Node.Rack] = append(s.byRack[n.Node.Rack], n)
		}
	}
	return s
}

// look is Look for one request: one pass, nothing but sums.
func look(nodes []*Candidate) Survey {
	var s Survey
	load, serving, rack := 0, 0, ""
	for _, n := range nodes {
		if n.Dead {
			continue
		}
		s.live++
		if n.Leaving {
			continue
		}
		serving++
		load += n.Xceivers
		if rack == "" {
			rack = n.Node.Rack
		} else if rack != n.Node.Rack {
			s.racks = true
		}
	}
	if serving > 0 {
		s.limit = 2*load/serving + busySlack
	}
	return s
}

// Choice is the answer: at most Want targets, none twice.
type Choice struct {
	Targets []namenode.Location
	// Live is the number of nodes that are not dead.
	Live int
	// Looked is how many candidates the choice looked at: its work, without the survey.
	Looked int
	// Excluded is the number of live nodes that the request itself ruled out.
	Excluded int
	// Reasons counts the live, not excluded nodes that were refused, by cause. Like Excluded it is filled in only when
	// fewer targets than wanted were found.
	Reasons Reasons
}

// Reasons counts refusals.
type Reasons struct {
	NoType  int
	NoSpace int
	Stale   int
	Leaving int
}

func (r Reasons) String() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{r.NoType, "without a volume of the type that the storage policy wants"}, {r.NoSpace, "without enough space"}, {r.Stale, "silent"}, {r.Leaving, "decommissioned or in maintenance"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	return strings.Join(parts, ", ")
}

// Err is nil when there is at least one target, and HDFS's message for path otherwise.
func (c *Choice) Err(path string) error {
	if len(c.Targets) > 0 {
		return nil
	}
	return c.refuse(path, 0, 1, "minReplication nodes")
}

// refuse makes the sentence that clients and people know by heart; only the reasons are ours.
func (c *Choice) refuse(path string, found, needed int, nodes string) error {
	excluded := "no"
	if c.Excluded > 0 {
		excluded = fmt.Sprint(c.Excluded)
	}
	text := fmt.Sprintf("File %s could only be written to %d of the %d %s. "+
		"There are %d datanode(s) running and %s node(s) are excluded in this operation.", path, found, needed, nodes, c.Live, excluded)
	if why := c.Reasons.String(); why != "" {
		text += " Of the others: " + why + "."
	}
	return metadata.Errorf(metadata.ErrIO, "%s", text)
}

// GroupErr is Err for a block group: as many targets as it has data blocks are enough.
func (c *Choice) GroupErr(path string, p metadata.ErasurePolicy) error {
	if len(c.Targets) >= p.Layout.Data {
		return nil
	}
	return c.refuse(path, len(c.Targets), p.Layout.Data, "required nodes for "+p.Name)
}

// strictness is what a pass over the candidates insists on.
type strictness uint8

const (
	anyNode  strictness = iota // alive and with space
	awake                      // and not stale
	quick                      // and to a volume that is not slow
	unloaded                   // and not busier than twice the average
)

// busySlack transfers above twice the average make a node busy; without it an idle cluster would call every node
// with one transfer busy.
const busySlack = 4

type chooser struct {
	nodes  []*Candidate
	req    *Request
	taken  []*namenode.Node
	choice Choice
	Survey
	rand uint64
	// need are the types that are still to be found, in the policy's order, mask the set of them; have those that were found; gone those that
	// nobody has room on. free: types do not matter.
	need, have []namenode.StorageType
	mask, gone typeSet
	free       bool
	// spared: a slow volume was passed over since the last target was found.
	spared bool
}

// Choose finds targets among nodes. The slice is only read, its order matters for the choice.
func Choose(nodes []*Candidate, r Request) Choice {
	c := chooser{nodes: nodes, req: &r, rand: r.Seed}
	c.taken = append(make([]*namenode.Node, 0, len(r.Have)+r.Want), r.Have...)
	if r.Survey != nil {
		c.Survey = *r.Survey
	} else {
		c.Survey = look(nodes)
	}
	c.choice.Live = c.live
	if r.Want <= 0 || c.choice.Live == 0 {
		return c.choice
	}
	c.choice.Targets = make([]namenode.Location, 0, r.Want)
	c.gone, c.mask, c.free = unserved, anyType, r.Policy == nil
	if !r.Copy {
		c.gone &^= memory // where a policy names it
	}
	if !c.free {
		c.have = slices.Clone(r.HaveTypes)
		c.require()
	} else {
		c.mask &^= unserved
	}

	for _, f := range r.Favoured {
		if len(c.choice.Targets) < r.Want {
			c.pick(quick, func(n *Candidate) bool { return is(n.Node, f) })
		}
	}
	if r.Writer != "" && !r.NoLocal && len(c.taken) == 0 {
		c.pick(unloaded, func(n *Candidate) bool { return at(n.Node, r.Writer) })
	}
	for len(c.choice.Targets) < r.Want {
		if !c.next() && !c.fallBack() {
			if !r.Copy { // nobody reads why a copy has to wait
				c.explain()
			}
			break
		}
	}
	return c.choice
}

// require finds out which types are still needed.
func (c *chooser) require() {
	if ts := c.req.Policy.Types; len(ts) == 1 && !c.gone.has(ts[0]) && !slices.ContainsFunc(c.have, func(t namenode.StorageType) bool { return t != ts[0] }) {
		c.need, c.mask = ts, 1<<ts[0] // nearly always
		return
	}
	n := len(c.have) + c.req.Want - len(c.choice.Targets)
	c.need = missing(c.req.Policy, n, c.have, c.gone, !c.req.Copy)
	c.mask = setOf(c.need)
}

// fallBack gives up the types that were needed, for those that the policy has in their place. False: there are none.
func (c *chooser) fallBack() bool {
	if c.free {
		return false
	}
	c.gone |= c.mask
	if c.require(); c.mask != 0 {
		return true
	}
	named := c.named()
	for _, n := range c.nodes {
		if !n.Dead && offers(n, named) {
			return false
		}
	}
	c.free, c.mask = true, anyType&^unserved
	return true
}

// named are the types on which the policy lets a replica lie, anyType when types do not matter.
func (c *chooser) named() typeSet {
	switch p := c.req.Policy; {
	case c.free:
		return anyType
	case c.req.Copy:
		return (setOf(p.Types) | setOf(p.ReplicationFallback)) &^ unserved
	default:
		return (setOf(p.Types) | setOf(p.CreationFallback)) &^ (1 << namenode.Provided)
	}
}

// next picks one more target: first under all rules, then with one rule less after the other.
func (c *chooser) next() bool {
	if c.mask == 0 {
		return false
	}
	if c.req.NewRack {
		other := func(n *Candidate) bool {
			return !slices.ContainsFunc(c.taken, func(t *namenode.Node) bool { return t.Rack == n.Node.Rack })
		}
		return c.pick(unloaded, other) || c.pick(quick, other)
	}
	all := c.nodes
	rack, pool := c.rackRule()
	var away func(*Candidate) bool
	if c.req.NoLocal && c.req.Writer != "" {
		away = func(n *Candidate) bool { return !at(n.Node, c.req.Writer) }
	}
	both := rack
	if rack != nil && away != nil {
		both = func(n *Candidate) bool { return rack(n) && away(n) }
	}
	for _, s := range [...]strictness{unloaded, quick, awake} {
		if s == awake && !c.spared { // it would find nothing
			break
		}
		if pool != nil {
			c.nodes = pool
		}
		found := both != nil && c.pick(s, both)
		c.nodes = all
		if found || away != nil && c.pick(s, away) || c.pick(s, nil) {
			return true
		}
	}
	// Silent nodes only rather than nothing at all: a pipeline through one costs the writer a timeout.
	return len(c.taken) == 0 && c.pick(anyNode, nil)
}

// emptiest are the racks with the fewest of the replicas already placed.
func (c *chooser) emptiest() func(*Candidate) bool {
	on := map[string]int{}
	for _, t := range c.taken {
		on[t.Rack]++
	}
	least := len(c.taken)
	for _, n := range c.nodes {
		if !n.Dead && !n.Leaving {
			least = min(least, on[n.Node.Rack])
		}
	}
	return func(n *Candidate) bool { return on[n.Node.Rack] == least }
}

// rackRule says where the next replica should go, given those already placed; nil is anywhere. pool, if not nil, are all who
// meet it.
func (c *chooser) rackRule() (rule func(*Candidate) bool, pool []*Candidate) {
	if !c.racks || len(c.taken) == 0 {
		return nil, nil
	}
	if c.req.Spread {
		return c.emptiest(), nil
	}
	first := c.taken[0].Rack
	if !slices.ContainsFunc(c.taken, func(t *namenode.Node) bool { return t.Rack != first }) {
		return func(n *Candidate) bool { return n.Node.Rack != first }, nil
	}
	if len(c.taken) == 2 {
		second := c.taken[1].Rack
		return func(n *Candidate) bool { return n.Node.Rack == second }, c.byRack[second]
	}
	return nil, nil
}

// explain finds the reasons to report when not all targets could be found.
func (c *chooser) explain() {
	named := c.named()
	for _, n := range c.nodes {
		switch {
		case n.Dead || c.isTaken(n.Node):
		case c.excluded(n.Node), c.req.Copy && n.Full:
			c.choice.Excluded++
		case n.Leaving:
			c.choice.Reasons.Leaving++
		case !c.free && !offers(n, named):
			c.choice.Reasons.NoType++
		case volumeFor(n, c.req.BlockSize, named) == nil:
			c.choice.Reasons.NoSpace++
		case n.Stale:
			c.choice.Reasons.Stale++
		}
	}
}

// probes is how many nodes are tried at random before all are looked at.
const probes = 6

// pick takes one suitable node, each with the same probability.
func (c *chooser) pick(s strictness, want func(*Candidate) bool) bool {
	suits := func(n *Candidate) *namenode.Volume {
		c.choice.Looked++
		if n.Dead || n.Leaving || c.req.Copy && (n.Full || n.Stale) || (s >= awake && n.Stale) || (s >= unloaded && n.Xceivers > c.limit) ||
			(want != nil && !want(n)) || c.isTaken(n.Node) || c.excluded(n.Node) {
			return nil
		}
		return c.volumeOn(n, s >= quick)
	}
	for range probes {
		n := c.nodes[c.next64()%uint64(len(c.nodes))]
		if v := suits(n); v != nil {
			c.take(n, v)
			return true
		}
	}
	var node *Candidate
	var volume *namenode.Volume
	seen := uint64(0)
	for _, n := range c.nodes {
		if v := suits(n); v != nil {
			seen++
			if c.next64()%seen == 0 { // reservoir of one
				node, volume = n, v
			}
		}
	}
	if node == nil {
		return false
	}
	c.take(node, volume)
	return true
}

func (c *chooser) take(n *Candidate, v *namenode.Volume) {
	c.spared = false
	c.taken = append(c.taken, n.Node)
	c.choice.Targets = append(c.choice.Targets, namenode.Location{Node: n.Node, Volume: v.ID, Type: v.Type})
	if !c.free {
		c.have = append(c.have, v.Type)
		c.require()
	}
}

// offers reports whether a node has a working volume of one of the types.
func offers(n *Candidate, types typeSet) bool {
	return slices.ContainsFunc(n.Volumes, func(v namenode.Volume) bool { return !v.Failed && types.has(v.Type) })
}

// volumeOn is the volume of a node that a replica goes to, of the first type needed that the node has room on; nil: none. quick: it must not be slow.
func (c *chooser) volumeOn(n *Candidate, quick bool) *namenode.Volume {
	if c.free || len(c.need) == 1 {
		return c.roomOn(n, c.mask, quick)
	}
	seen := typeSet(0)
	for _, t := range c.need {
		if seen.has(t) {
			continue
		}
		if v := c.roomOn(n, 1<<t, quick); v != nil {
			return v
		}
		seen |= 1 << t
	}
	return nil
}

func (c *chooser) roomOn(n *Candidate, types typeSet, quick bool) *namenode.Volume {
	v, spared := mostRoom(n, c.req.BlockSize, types, quick)
	c.spared = c.spared || spared
	return v
}

// volumeFor is the working volume of some types with most room if the node can take size more bytes on these, else nil.
func volumeFor(n *Candidate, size int64, types typeSet) *namenode.Volume {
	v, _ := mostRoom(n, size, types, false)
	return v
}

// mostRoom is volumeFor. quick: slow volumes do not count, and spared says that there is one.
func mostRoom(n *Candidate, size int64, types typeSet, quick bool) (best *namenode.Volume, spared bool) {
	total := -n.Scheduled
	for i := range n.Volumes {
		v := &n.Volumes[i]
		if v.Failed || !types.has(v.Type) {
			continue
		}
		if quick && v.Slow {
			spared = true
			continue
		}
		total += v.Remaining
		if v.Remaining >= size && (best == nil || v.Remaining > best.Remaining) {
			best = v
		}
	}
	if total < size {
		return nil, spared
	}
	return best, spared
}

func (c *chooser) isTaken(n *namenode.Node) bool {
	for _, t := range c.taken {
		if t.ID == n.ID {
			return true
		}
	}
	return false
}

func (c *chooser) excluded(n *namenode.Node) bool {
	for _, e := range c.req.Exclude {
		if e == n.ID {
			return true
		}
	}
	return false
}

// next64 is SplitMix64.
func (c *chooser) next64() uint64 {
	c.rand += 0x9e3779b97f4a7c15
	z := c.rand
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// at reports whether a node runs on host, given as name or IP, or is the one of that ID.
func at(n *namenode.Node, host string) bool {
	return n.IP == host || n.Host == host || string(n.ID) == host
}

// is reports whether name means the node.
func is(n *namenode.Node, name string) bool {
	if at(n, name) || name == n.TransferAddr() {
		return true
	}
	host, ok := strings.CutSuffix(name, fmt.Sprintf(":%d", n.TransferPort))
	return ok && host == n.Host
}
