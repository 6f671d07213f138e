package resourcemanager

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Queue is a queue of a tree. Queues are immutable.
type Queue struct {
	// Path is root, or root.a.b.
	Path   string
	Name   string
	Parent *Queue
	// Children are sorted by name; only leaves hold applications.
	Children []*Queue
	// Guarantee and Limit are the capacity and the max of the configuration; Resolve says what they are in a cluster.
	Guarantee, Limit Capacity
	// Capacity and Max are shares of the parent, AbsoluteCapacity and AbsoluteMax of the cluster, all in 0..1, as far as they are the same
	// for every resource and every cluster: a vector or an amount counts as 0 in a capacity and as 1 in a max. For what people see; what
	// counts is Resolve.
	Capacity, Max                 float64
	AbsoluteCapacity, AbsoluteMax float64
	// UserLimitPercent, 0 to 100, and UserLimitFactor say how much one user may have; 0: 100, and no limit. See QueueConfig.
	UserLimitPercent, UserLimitFactor float64
	// MaxApplications and MaxApplicationsPerUser bound the live applications here and below; 0: none.
	MaxApplications, MaxApplicationsPerUser int
	// MasterShare is the part of the maximum that masters may use together, 0 to 1; 0: one half.
	MasterShare float64
	// Priority orders siblings; Ordering, OrderFIFO or OrderFair, the applications of one priority.
	Priority           int
	Ordering           string
	PreemptionDisabled bool
	PreemptByPriority  bool
	// Cells are guaranteed, whole nodes of CellGPUs GPUs or more; 0: none.
	Cells, CellGPUs int
	// State is STOPPED also below a stopped queue, and never DRAINING.
	State QueueState
	// DefaultPriority and MaxPriority are of applications; 0: the cluster's.
	DefaultPriority, MaxPriority int
	// MaxLifetime and DefaultLifetime are of applications, also as set above; 0: none.
	MaxLifetime, DefaultLifetime time.Duration
	Submit, SubmitGroups         []string
	Administer, AdministerGroups []string
	// AutoCreate is what queues are like that are made below; nil: none are. Created: this one was made.
	AutoCreate *QueueConfig
	Created    bool

	index int // in All
}

// Leaf reports whether the queue holds applications.
func (q *Queue) Leaf() bool { return len(q.Children) == 0 && q.AutoCreate == nil }

func listed(user string, groups, users, userGroups []string) bool {
	return slices.Contains(users, "*") || slices.Contains(users, user) || slices.ContainsFunc(groups, func(g string) bool { return slices.Contains(userGroups, g) })
}

// ApplicationPriority is the priority that an application gets that is submitted with p; 0 or less says none.
func (q *Queue) ApplicationPriority(p int) int {
	if p <= 0 && q.DefaultPriority > 0 {
		p = q.DefaultPriority
	}
	return min(p, q.HighestPriority())
}

// HighestPriority is the highest that an application of the queue may have; of no queue: the cluster's.
func (q *Queue) HighestPriority() int {
	if q != nil && q.MaxPriority > 0 {
		return q.MaxPriority
	}
	return MaxPriority
}

// Lifetime is how long an application may take from its submission; 0: as long as it wants. timeout is its own.
func (q *Queue) Lifetime(timeout time.Duration) time.Duration {
	if timeout == 0 && q.DefaultLifetime > 0 {
		return q.DefaultLifetime
	}
	return q.MaxLifetime
}

// MaySubmit reports whether a user in groups may submit to q: the nearest list up the tree decides.
func (q *Queue) MaySubmit(user string, groups ...string) bool {
	for ; q != nil; q = q.Parent {
		if len(q.Submit)+len(q.SubmitGroups) > 0 {
			return listed(user, groups, q.Submit, q.SubmitGroups)
		}
	}
	return true
}

// Invites reports whether a user may submit to q because a list says so, not because there is none.
func (q *Queue) Invites(user string, groups ...string) bool {
	for up := q; up != nil; up = up.Parent {
		if len(up.Submit)+len(up.SubmitGroups) > 0 {
			return q.MaySubmit(user, groups...)
		}
	}
	return false
}

// MayAdminister reports whether a user is an administrator of q or of a queue above it.
func (q *Queue) MayAdminister(user string, groups ...string) bool {
	for ; q != nil; q = q.Parent {
		if listed(user, groups, q.Administer, q.AdministerGroups) {
			return true
		}
	}
	return false
}

// Queues is a tree of queues. The zero value is unusable; see NewQueues.
type Queues struct {
	Root *Queue
	// All queues, parents before children, by name among siblings.
	All []*Queue
	// Mapping are the rules for applications that name no queue.
	Mapping []MappingRule
	// CellGPUs is how many GPUs a cell has at least; 0: no queue is guaranteed any.
	CellGPUs int

	config  QueueConfig
	created []string // paths of the queues that were made, in their order
	byPath  map[string]*Queue
	byName  map[string][]*Queue // of those that are configured
}

// Config is what the tree was built from. It must not be changed.
func (t *Queues) Config() QueueConfig { return t.config }

// Hash tells configurations apart: the same for two that treat every application alike, however they are written down. Queues that
// were made are no part of it.
func (t *Queues) Hash() string {
	h := sha256.New()
	sorted := func(l []string) []string { return slices.Sorted(slices.Values(l)) }
	for _, q := range t.All {
		if q.Created {
			continue
		}
		fmt.Fprintf(h, "%q %v %v %q %q %q %q %v %v %v %d %d %v %d %q %v %v %d %d %v %v", q.Path, q.Guarantee, q.Limit,
			sorted(q.Submit), sorted(q.SubmitGroups), sorted(q.Administer), sorted(q.AdministerGroups), q.State,
			q.UserLimitPercent, q.UserLimitFactor, q.MaxApplications, q.MaxApplicationsPerUser, q.MasterShare, q.Priority, q.Ordering, q.PreemptionDisabled, q.PreemptByPriority,
			q.DefaultPriority, q.MaxPriority, q.MaxLifetime, q.DefaultLifetime)
		if q.Cells > 0 {
			fmt.Fprintf(h, " cells %d/%d", q.Cells, q.CellGPUs)
		}
		if q.AutoCreate != nil {
			h.Write(template(*q.AutoCreate).Document())
		}
		fmt.Fprintln(h)
	}
	if len(t.Mapping) > 0 {
		rules, err := json.Marshal(t.Mapping)
		if err != nil {
			panic(err) // text
		}
		h.Write(rules)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// NewQueues builds the tree under root, whose own capacity is the whole cluster. A root without children gets the one leaf
// "default". The error lists every mistake; errors.As finds a SumError in it.
func NewQueues(root QueueConfig) (*Queues, error) { return newQueues(root, nil) }

func newQueues(root QueueConfig, created []string) (*Queues, error) {
	if len(root.Children) == 0 {
		root.Children = map[string]QueueConfig{"default": {Capacity: "100%"}}
	}
	t := &Queues{config: root, created: created, Mapping: root.Mapping, byPath: map[string]*Queue{}, byName: map[string][]*Queue{}}
	below := map[string][]string{} // names of queues that were made, by parent
	for _, path := range created {
		parent, name, _ := cutLast(path)
		below[parent] = append(below[parent], name)
	}
	var errs []error
	var build func(parent *Queue, name string, c QueueConfig, made bool, depth int) *Queue
	build = func(parent *Queue, name string, c QueueConfig, made bool, depth int) *Queue {
		q := &Queue{Name: name, Path: name, Parent: parent, Created: made, index: len(t.All)}
		if parent != nil {
			q.Path = parent.Path + "." + name
			if !validQueueName(name) {
				errs = append(errs, fmt.Errorf("queue %q: a name is 1 to 64 letters, digits, '-' or '_'", q.Path))
			}
		}
		errs = append(errs, q.fill(c)...)
		t.All = append(t.All, q)
		t.byPath[q.Path] = q
		if !made {
			t.byName[name] = append(t.byName[name], q)
		}
		if depth == maxQueueDepth && len(c.Children) > 0 {
			errs = append(errs, fmt.Errorf("queue %s: queues more than %d deep", q.Path, maxQueueDepth))
			return q
		}
		children := maps.Clone(c.Children)
		if q.AutoCreate != nil {
			for _, n := range below[q.Path] {
				if _, configured := children[n]; !configured {
					if children == nil {
						children = map[string]QueueConfig{}
					}
					children[n] = template(*q.AutoCreate)
				}
			}
		}
		for _, n := range slices.Sorted(maps.Keys(children)) {
			if len(t.All) >= maxQueues {
				break
			}
			_, configured := c.Children[n]
			q.Children = append(q.Children, build(q, n, children[n], !configured, depth+1))
		}
		if len(q.Children) > 0 {
			errs = append(errs, q.checkSums()...)
		}
		return q
	}
	t.Root = build(nil, "root", root, false, 0)
	if len(t.All) >= maxQueues {
		errs = append(errs, fmt.Errorf("queue root: %d queues or more: too many", maxQueues))
	}
	errs = append(errs, t.checkMapping()...)
	errs = append(errs, t.checkCells()...)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	t.shares()
	return t, nil
}

func validQueueName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, r := range s {
		if !(isAlphanumeric(r) || r == '-' || r == '_') {
			return false
		}
	}
	return true
}

// Find looks a queue up by full path or by a name that only one configured queue has; nil when there is none such. Queues that were made
// go by their paths alone: whoever makes one takes no name from anybody.
func (t *Queues) Find(name string) *Queue {
	if q := t.byPath[name]; q != nil {
		return q
	}
	if c := t.byName[name]; len(c) == 1 {
		return c[0]
	}
	return nil
}

// Place finds the queue that an application is submitted to: as Find, or else one that would be made for it, which is not in the tree.
func (t *Queues) Place(name string) *Queue { return t.place(name) }

func (t *Queues) place(name string) *Queue {
	if q := t.Find(name); q != nil {
		return q
	}
	above, last, ok := cutLast(name)
	parent := t.Find(above)
	if !ok || parent == nil || parent.AutoCreate == nil || !validQueueName(last) || len(t.All)+1 >= maxQueues {
		return nil
	}
	q := &Queue{Name: last, Path: parent.Path + "." + last, Parent: parent, Created: true, index: -1}
	if len(q.fill(template(*parent.AutoCreate))) > 0 {
		return nil
	}
	return q
}

// RoomToMake says whether one more queue may be made below a parent of the tree, where made are there already, so many of them below it.
//
// Error: ErrQueueFull.
func (t *Queues) RoomToMake(parent *Queue, made, below int) error {
	if below >= maxMade {
		return fmt.Errorf("%w: %d queues are made below %s, as many as may: submit to another queue, or again when applications have ended", ErrQueueFull, below, parent.Path)
	}
	if n := len(t.All) - len(t.created) + made; n >= maxQueues-spareQueues {
		return fmt.Errorf("%w: there are %d queues, and no more are made: submit to another queue, or again when applications have ended", ErrQueueFull, n)
	}
	return nil
}

// With is the tree with the queues at some paths made, where queues may be made there, and no others made; if they are too many, with
// the first ones.
func (t *Queues) With(paths []string) *Queues {
	var created []string
	for _, p := range slices.Sorted(slices.Values(paths)) {
		above, name, _ := cutLast(p)
		if parent := t.byPath[above]; parent != nil && parent.AutoCreate != nil && validQueueName(name) {
			if q := t.byPath[p]; q == nil || q.Created {
				created = append(created, p)
			}
		}
	}
	created = slices.Compact(created)
	if room := maxQueues - 1 - (len(t.All) - len(t.created)); len(created) > room {
		created = created[:room]
	}
	if slices.Equal(created, t.created) {
		return t
	}
	next, err := newQueues(t.config, created)
	if err != nil {
		return t // the configuration is right, and a queue that is made is of its template
	}
	return next
}

// Made are the paths of the queues that were made.
func (t *Queues) Made() []string { return t.created }

// Below reports whether q is other, or below it.
func (q *Queue) Below(other *Queue) bool {
	return q.Path == other.Path || strings.HasPrefix(q.Path, other.Path+".")
}
