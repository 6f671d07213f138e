package resourcemanager

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/metadata"
)

// Percent is a share of the parent queue, 0 to 100. As text it may carry a percent sign.
type Percent float64

// UnmarshalText reads "40", "40%" or "12.5 %".
func (p *Percent) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(string(text)), "%"))
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f <= 100) {
		return metadata.Errorf(metadata.ErrInvalidArgument, "%q is not a percentage between 0 and 100", text)
	}
	*p = Percent(f)
	return nil
}

// MarshalText writes "40%".
func (p Percent) MarshalText() ([]byte, error) {
	return []byte(strconv.FormatFloat(float64(p), 'g', -1, 64) + "%"), nil
}

// QueueConfig is a queue as configured; its name is its key in the parent's Children.
type QueueConfig struct {
	// Capacity is guaranteed, in percent of the parent. The children of a queue add up to 100.
	Capacity Percent `yaml:"capacity" json:"capacity"`
	// Max is the most it may use, in percent of the parent; 0 means 100.
	Max Percent `yaml:"max" json:"max"`
	// Submit lists the users that may submit, "*" anyone. Empty: as the parent; for the root anyone who comes from a process
	// of the user who runs the servers: containers run as that user, so letting other local users in is a decision. (In
	// YARN a queue cannot be closed to those whom its parent lets in.)
	Submit []string `yaml:"acl_submit" json:"acl_submit"`
	// Administer lists the users that may see logs of and end any application in it, besides those of the parent.
	Administer []string `yaml:"acl_administer" json:"acl_administer"`
	// Stopped queues take no new application.
	Stopped  bool                   `yaml:"stopped" json:"stopped"`
	Children map[string]QueueConfig `yaml:"children" json:"children"`
}

// Queue is a queue of a tree. Queues are immutable.
type Queue struct {
	// Path is root, or root.a.b.
	Path   string
	Name   string
	Parent *Queue
	// Children are sorted by name; a queue without is a leaf, and only leaves hold applications.
	Children []*Queue
	// Capacity and Max are shares of the parent, AbsoluteCapacity and AbsoluteMax of the cluster, all in 0..1.
	Capacity, Max                 float64
	AbsoluteCapacity, AbsoluteMax float64
	Submit, Administer            []string
	Stopped                       bool
}

// Leaf reports whether the queue holds applications.
func (q *Queue) Leaf() bool { return len(q.Children) == 0 }

// MaySubmit reports whether user may submit to q: the nearest list up the tree decides.
func (q *Queue) MaySubmit(user string) bool {
	for ; q != nil; q = q.Parent {
		if len(q.Submit) > 0 {
			return slices.Contains(q.Submit, "*") || slices.Contains(q.Submit, user)
		}
	}
	return true
}

// Invites reports whether user may submit to q because a list says so, not because there is none.
func (q *Queue) Invites(user string) bool {
	for up := q; up != nil; up = up.Parent {
		if len(up.Submit) > 0 {
			return q.MaySubmit(user)
		}
	}
	return false
}

// MayAdminister reports whether user is an administrator of q or of a queue above it.
func (q *Queue) MayAdminister(user string) bool {
	for ; q != nil; q = q.Parent {
		if slices.Contains(q.Administer, user) {
			return true
		}
	}
	return false
}

// Queues is a tree of queues. The zero value is unusable; see NewQueues.
type Queues struct {
	Root *Queue
	// All queues, parents before children, by name among siblings.
	All    []*Queue
	byPath map[string]*Queue
	byName map[string][]*Queue
}

// Resolve works out what each queue is guaranteed of a cluster with total, and the most that it may use, in the order of All; rounded
// down.
func (t *Queues) Resolve(total Resource) (guaranteed, maximum []Resource) {
	for _, q := range t.All {
		guaranteed = append(guaranteed, total.Part(q.AbsoluteCapacity))
		maximum = append(maximum, total.Part(q.AbsoluteMax))
	}
	return guaranteed, maximum
}

// Hash tells trees apart: the same for two that treat every application alike, however they are written down.
func (t *Queues) Hash() string {
	h := sha256.New()
	for _, q := range t.All {
		fmt.Fprintf(h, "%q %v %v %q %q %v\n", q.Path, q.Capacity, q.Max, slices.Sorted(slices.Values(q.Submit)), slices.Sorted(slices.Values(q.Administer)), q.Stopped)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// NewQueues builds the tree under root, whose own capacity is the whole cluster. A root without children gets the one
// leaf "default". The error lists every mistake.
func NewQueues(root QueueConfig) (*Queues, error) {
	if len(root.Children) == 0 {
		root.Children = map[string]QueueConfig{"default": {Capacity: 100}}
	}
	t := &Queues{byPath: map[string]*Queue{}, byName: map[string][]*Queue{}}
	var errs []error
	var build func(parent *Queue, name string, c QueueConfig) *Queue
	build = func(parent *Queue, name string, c QueueConfig) *Queue {
		q := &Queue{Name: name, Path: name, Parent: parent, Submit: c.Submit, Administer: c.Administer, Stopped: c.Stopped}
		capacity, limit := float64(c.Capacity)/100, float64(c.Max)/100
		if c.Max == 0 {
			limit = 1
		}
		if parent == nil {
			capacity, limit = 1, 1
			q.AbsoluteCapacity, q.AbsoluteMax = 1, 1
		} else {
			q.Path = parent.Path + "." + name
			q.AbsoluteCapacity, q.AbsoluteMax = parent.AbsoluteCapacity*capacity, parent.AbsoluteMax*limit
			if !validQueueName(name) {
				errs = append(errs, fmt.Errorf("queue %q: a name is 1 to 64 letters, digits, '-' or '_'", q.Path))
			}
			if limit < capacity {
				errs = append(errs, fmt.Errorf("queue %s: max %g%% is below its capacity %g%%", q.Path, limit*100, capacity*100))
			}
			q.Stopped = q.Stopped || parent.Stopped
		}
		q.Capacity, q.Max = capacity, limit
		t.All = append(t.All, q)
		t.byPath[q.Path] = q
		t.byName[name] = append(t.byName[name], q)
		names := make([]string, 0, len(c.Children))
		for n := range c.Children {
			names = append(names, n)
		}
		slices.Sort(names)
		sum := 0.0
		for _, n := range names {
			child := build(q, n, c.Children[n])
			q.Children = append(q.Children, child)
			sum += child.Capacity
		}
		if len(names) > 0 && math.Abs(sum-1) > 1e-6 {
			errs = append(errs, fmt.Errorf("queue %s: capacities of its children add up to %g%%, not 100%%", q.Path, sum*100))
		}
		return q
	}
	t.Root = build(nil, "root", root)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return t, nil
}

func validQueueName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_') {
			return false
		}
	}
	return true
}

// Find looks a queue up by full path or by a name that only one queue has; nil when there is none such.
func (t *Queues) Find(name string) *Queue {
	if q := t.byPath[name]; q != nil {
		return q
	}
	if c := t.byName[name]; len(c) == 1 {
		return c[0]
	}
	return nil
}
