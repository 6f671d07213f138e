package hadoop

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
	"github.com/gohops/hops/resourcemanager/rest"
)

// askKey is what the rows of one ask of a master have in common: they name it by hosts, racks and "*", each with a count that replaces
// the one of before.
type askKey struct {
	priority int32
	request  int64  // allocation_request_id
	size     string // of the capability, short
}

const askPrefix = "yarn"

// String is the id of the ask. Containers carry it, so that what they were granted for is known after a change of leader.
func (k askKey) String() string {
	return fmt.Sprintf("%s/%d/%d/%s", askPrefix, k.priority, k.request, k.size)
}

// parseAsk reads what String writes; false: it is no ask of this protocol.
func parseAsk(id string) (askKey, bool) {
	parts := strings.Split(id, "/")
	if len(parts) != 4 || parts[0] != askPrefix {
		return askKey{request: -1}, false
	}
	priority, err := strconv.ParseInt(parts[1], 10, 32)
	request, err2 := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || err2 != nil {
		return askKey{request: -1}, false
	}
	return askKey{int32(priority), request, parts[3]}, true
}

// want is one ask by its rows.
type want struct {
	resource rm.Resource
	label    string
	count    int
	relax    bool
	// hosts that are preferred, and racks: true where a container may be elsewhere in the rack than on one of the hosts.
	hosts, racks map[string]bool
}

// wants are all asks of a master, with the nodes that it avoids. Rows are those said last: absolute, as in YARN.
type wants struct {
	by    map[askKey]*want
	avoid map[string]bool
}

func newWants() wants { return wants{map[askKey]*want{}, map[string]bool{}} }

// clone copies, so that a request that is refused changes nothing.
func (w wants) clone() wants {
	out := wants{make(map[askKey]*want, len(w.by)), maps.Clone(w.avoid)}
	for k, v := range w.by {
		c := *v
		c.hosts, c.racks = maps.Clone(v.hosts), maps.Clone(v.racks)
		out.by[k] = &c
	}
	return out
}

// The bounds of what one master may want at a time.
const (
	maxKeys   = 1_000
	maxPlaces = 20_000 // hosts, racks and nodes to avoid
	maxCount  = 1_000_000
	// maxPreferred nodes are told to the scheduler of an ask that others may serve, too (its own limit; see server.Allocate).
	maxPreferred = 1_000
	// maxNames of nodes may the asks name together that one request changes, each with all nodes to avoid.
	maxNames = 100_000
)

// take reads the rows of a request, and answers which asks they change.
func (w *wants) take(c *call, q *pb.AllocateRequestProto) ([]askKey, error) {
	changed := map[askKey]bool{}
	for _, r := range q.Ask {
		key, err := w.row(c, r)
		if err != nil {
			return nil, err
		}
		changed[key] = true
	}
	if b := q.BlacklistRequest; len(b.GetBlacklistAdditions())+len(b.GetBlacklistRemovals()) > 0 {
		for _, name := range b.BlacklistAdditions {
			if name == "*" {
				return nil, thrown(invalidBlacklist, "Cannot add * to the blacklist!")
			}
			if !validPlace(name) {
				return nil, thrown(invalidBlacklist, "%.100q is no node", name)
			}
			w.avoid[name] = true
		}
		for _, name := range b.BlacklistRemovals {
			delete(w.avoid, name)
		}
		for key := range w.by {
			changed[key] = true
		}
	}
	places := len(w.avoid)
	for _, v := range w.by {
		places += len(v.hosts) + len(v.racks)
	}
	if len(w.by) > maxKeys || places > maxPlaces {
		return nil, thrown(invalidMasterRequest, "%d asks with %d names of nodes: %d and %d at most", len(w.by), places, maxKeys, maxPlaces)
	}
	return slices.SortedFunc(maps.Keys(changed), func(a, b askKey) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.request, b.request), cmp.Compare(a.size, b.size))
	}), nil
}

func validPlace(name string) bool {
	return name != "" && len(name) <= 255 && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' })
}

// row takes one row.
func (w *wants) row(c *call, r *pb.ResourceRequestProto) (askKey, error) {
	resource, err := pb.ParseResource(r.Capability)
	if err != nil {
		return askKey{}, thrown(invalidRequest, "%v", err)
	}
	name, n := r.GetResourceName(), int(r.GetNumContainers())
	key := askKey{r.GetPriority().GetPriority(), r.GetAllocationRequestId(), sizeOf(resource)}
	switch {
	case name != "*" && !validPlace(name):
		return key, thrown(invalidRequest, "Invalid resource request, no resource name has been specified: %.100q", name)
	case n < 0 || n > maxCount:
		return key, thrown(invalidRequest, "Invalid resource request! num_containers %d is not from 0 to %d", n, maxCount)
	case key.priority < 0:
		return key, thrown(invalidRequest, "Invalid resource request! priority %d is below 0", key.priority)
	case r.GetExecutionTypeRequest().GetExecutionType() == pb.ExecutionTypeProto_OPPORTUNISTIC && r.GetExecutionTypeRequest().GetEnforceExecutionType():
		return key, thrown(invalidRequest, "Invalid resource request! Opportunistic containers are not supported by this ResourceManager")
	case strings.ContainsAny(r.GetNodeLabelExpression(), "&|! "):
		return key, thrown(yarnExceptions+"InvalidLabelResourceRequestException", "Invalid resource request, queue does not have permission to access all labels in resource request: a request names one label, and not %.100q", r.GetNodeLabelExpression())
	}
	if n > 0 {
		if why := rest.TooLargeYARN(c.Cluster, c.view, resource); why != "" {
			return key, thrown(invalidRequest, "%s", why)
		}
	}
	v := w.by[key]
	if v == nil {
		v = &want{resource: resource, relax: true, hosts: map[string]bool{}, racks: map[string]bool{}}
		w.by[key] = v
	}
	switch {
	case name == "*":
		v.count, v.relax, v.label = n, r.GetRelaxLocality(), r.GetNodeLabelExpression()
	case strings.HasPrefix(name, "/"):
		if delete(v.racks, name); n > 0 {
			v.racks[name] = r.GetRelaxLocality()
		}
	default:
		set(v.hosts, name, n > 0)
	}
	return key, nil
}

func set(m map[string]bool, name string, on bool) {
	if on {
		m[name] = true
	} else {
		delete(m, name)
	}
}

// sizeOf tells capabilities apart in the id of an ask.
func sizeOf(r rm.Resource) string {
	h := sha256.Sum256([]byte(r.String()))
	return hex.EncodeToString(h[:6])
}

// asks are what the scheduler is told of those that a request changes; cancel are those of which nothing is wanted any more.
func (w *wants) asks(c *call, changed []askKey) (asks []rm.WantedAsk, cancel []string, err error) {
	avoid, names := append(slices.Sorted(maps.Keys(w.avoid)), c.mute()...), 0
	for _, key := range changed {
		ask, ok, err := w.ask(c, key, avoid)
		if err != nil {
			return nil, nil, thrown(invalidRequest, "%v", err)
		}
		if !ok {
			cancel = append(cancel, key.String())
			continue
		}
		if names += len(w.by[key].hosts) + len(w.by[key].racks) + len(ask.Excluded); names > maxNames {
			return nil, nil, thrown(invalidMasterRequest, "the asks of one request name more than %d nodes, each with the %d to avoid: avoid or name fewer nodes, or change fewer asks at a time",
				maxNames, len(avoid))
		}
		asks = append(asks, rm.WantedAsk{Ask: ask})
	}
	return asks, cancel, nil
}

// ask is what the scheduler is told of one; false: nothing is wanted any more. Containers are wanted on the hosts, then in the racks, then anywhere;
// how far a master does not relax that is required. Preferences are cut where there are too many: they are wishes.
func (w *wants) ask(c *call, key askKey, avoid []string) (rm.Ask, bool, error) {
	v := w.by[key]
	if v == nil || v.count == 0 {
		if v != nil && len(v.hosts)+len(v.racks) == 0 {
			delete(w.by, key)
		}
		return rm.Ask{}, false, nil
	}
	minimum, _ := c.Cluster.Limits()
	strict := !v.relax && len(v.hosts)+len(v.racks) > 0
	hosts, words := slices.Sorted(maps.Keys(v.hosts)), rm.NearWords{}
	if !strict {
		hosts = hosts[:min(len(hosts), maxPreferred)]
	}
	for _, h := range hosts {
		words.Hosts = append(words.Hosts, rm.NearHost{Host: h})
	}
	for _, rack := range slices.Sorted(maps.Keys(v.racks)) {
		if strings.Trim(rack, "/") == "" || strings.Count(rack, "/") > rm.MaxDepth {
			continue // no node stands there
		}
		if v.racks[rack] && (strict || len(words.Racks) < rm.MaxNearRacks) {
			words.Racks = append(words.Racks, rack)
		}
	}
	near, err := rm.NewNear(words)
	return rm.Ask{
		ID: key.String(), Priority: int(key.priority), Resource: v.resource.Raise(minimum), Count: v.count, Held: true, Near: near,
		Strict: strict, Excluded: avoid, Label: v.label,
	}, true, err
}

// mute are the nodes that do not speak YARN's protocol, on which a master could start nothing.
func (c *call) mute() (out []string) {
	for n := range c.view.Nodes() {
		if n.IPC == "" && n.State != rm.NodeLost {
			out = append(out, string(n.ID))
		}
	}
	return out
}

// room is what a queue has left.
type room struct {
	free           rm.Resource
	nodes          int
	waiting, cores int64
}

// rooms are those of all queues at one time: masters ask every second or so, and a walk over all nodes and applications for each of them
// would be felt.
type rooms struct {
	at    time.Time
	queue map[string]room
}

// roomsLast is how long they count.
const roomsLast = time.Second

// roomOf is what the queue of an application has left.
func (c *call) roomOf(path string) room {
	c.mu.Lock()
	known := c.room
	c.mu.Unlock()
	if now := c.Now(); known == nil || now.Sub(known.at) >= roomsLast || now.Before(known.at) {
		known = c.measure(now)
		c.mu.Lock()
		c.room = known
		c.mu.Unlock()
	}
	return known.queue[path]
}

func (c *call) measure(now time.Time) *rooms {
	out := &rooms{now, map[string]room{}}
	nodes := 0
	for n := range c.view.Nodes() {
		if n.Takes() {
			nodes++
		}
	}
	total, uses := c.total(), map[*rm.Queue]*queueUse{}
	for a := range c.view.Live() {
		pending, waiting := c.pending(a)
		for q := c.queues().Find(a.Queue); q != nil; q = q.Parent {
			u := uses[q]
			if u == nil {
				u = &queueUse{}
				uses[q] = u
			}
			u.used, u.pending, u.waiting = u.used.Add(a.Used), u.pending.Add(pending), u.waiting+int64(waiting)
		}
	}
	for _, q := range c.queues().All {
		r := room{free: total.Part(q.AbsoluteMax), nodes: nodes}
		if u := uses[q]; u != nil {
			r.free, r.waiting, r.cores = r.free.Sub(u.used).Max(rm.Resource{}), u.waiting, int64(u.used.VCores)
		}
		if q.Parent != nil { // what is left of the queues above, too
			r.free = least(r.free, out.queue[q.Parent.Path].free)
		}
		out.queue[q.Path] = r
	}
	return out
}

// least is the smaller of each amount.
func least(a, b rm.Resource) rm.Resource {
	return a.Sub(a.Sub(b).Max(rm.Resource{}))
}
