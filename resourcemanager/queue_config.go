package resourcemanager

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// QueueConfig is a queue as written down; its name is its key in the parent's Children. It is what configuration files hold, what
// the REST interface takes and shows, and what the replicated state keeps.
type QueueConfig struct {
	// Capacity is guaranteed, and Max is the most that the queue may use: see ParseCapacity. Percentages are of the parent. A Max has no
	// weights; without one it is what the parent may use. The percentages of a queue's children add up to 100, or less where amounts or
	// weights are beside them.
	Capacity string `json:"capacity,omitempty"`
	Max      string `json:"max,omitempty"`
	// Submit lists the users that may submit, "*" anyone, and SubmitGroups the groups. Both empty: as the parent; for the root anyone
	// who comes from a process of the user who runs the servers: containers run as that user, so letting other local users in is a
	// decision. (In YARN a queue cannot be closed to those whom its parent lets in.)
	Submit       []string `json:"acl_submit,omitempty"`
	SubmitGroups []string `json:"acl_submit_groups,omitempty"`
	// Administer and AdministerGroups list who may see logs of and end any application in it, besides those of the parent.
	Administer       []string `json:"acl_administer,omitempty"`
	AdministerGroups []string `json:"acl_administer_groups,omitempty"`
	// State is RUNNING (default) or STOPPED: no new application comes in, neither into the queues below; what is there goes on.
	State QueueState `json:"state,omitempty"`
	// UserLimit is the part of the queue that each user gets at least when several want it, "25%"; default 100%, first come first
	// served (YARN's minimum-user-limit-percent).
	UserLimit string `json:"user_limit,omitempty"`
	// UserLimitFactor is how often its guarantee one user may have of the queue; 0: no limit. (YARN's default is 1.)
	UserLimitFactor float64 `json:"user_limit_factor,omitempty"`
	// MaxApplications bounds the applications that have not ended in the queue and below it, MaxApplicationsPerUser those of one user
	// among them; 0: no limit but the cluster's.
	MaxApplications        int `json:"max_applications,omitempty"`
	MaxApplicationsPerUser int `json:"max_applications_per_user,omitempty"`
	// MasterShare is the part of the queue that masters may use together; default that of the parent, and 50% (YARN's maximum-am-resource-percent).
	MasterShare string `json:"master_share,omitempty"`
	// Priority orders the queue among its siblings: larger is served first.
	Priority int `json:"priority,omitempty"`
	// Ordering of the applications of one priority: fifo (default), or fair, the one that has least first.
	Ordering string `json:"ordering,omitempty"`
	// PreemptionDisabled: what runs in the queue is not ended for the guarantees of others, nor below it.
	PreemptionDisabled bool `json:"preemption_disabled,omitempty"`
	// PreemptByPriority: an application of higher priority ends containers of other users' applications in the queue, or in one below. Without
	// it a user's applications make room for those of the same user only: anybody may say that work is urgent (YARN's
	// intra-queue-preemption is off, too, until somebody turns it on).
	PreemptByPriority bool `json:"preempt_by_priority,omitempty"`
	// Cells are whole nodes that the queue is guaranteed, by their kind: {"node/8": 4} are four nodes of 8 GPUs or more. What other queues run
	// and cannot be preempted leaves so many free, or to the queue. All cells of a tree are of one kind (HiveD, OSDI 2020).
	Cells map[string]int `json:"cells,omitempty"`
	// DefaultPriority is that of applications submitted without one, MaxPriority the highest that one may have; 0: the cluster's.
	DefaultPriority int `json:"default_priority,omitempty"`
	MaxPriority     int `json:"max_priority,omitempty"`
	// MaxLifetime is how long an application may take from its submission, DefaultLifetime how long one that says nothing may:
	// durations as 24h; empty: for ever. They hold for the queues below that have none.
	MaxLifetime     string `json:"max_lifetime,omitempty"`
	DefaultLifetime string `json:"default_lifetime,omitempty"`
	// AutoCreate is what queues are like that are made under this one for the first application that is submitted to them. They are
	// leaves, their capacity is a weight (default 1w), and they are gone with their last application.
	AutoCreate *QueueConfig `json:"auto_create,omitempty"`
	// Mapping says into which queue applications go that name none (or "default"): the first rule that fits counts. For the root only.
	Mapping  []MappingRule          `json:"mapping,omitempty"`
	Children map[string]QueueConfig `json:"children,omitempty"`
}

// QueueState says whether a queue takes applications.
type QueueState string

// The states of a queue. DRAINING is shown, not configured: a stopped queue in which applications have not ended yet (YARN-5556).
const (
	QueueRunning  QueueState = "RUNNING"
	QueueStopped  QueueState = "STOPPED"
	QueueDraining QueueState = "DRAINING"
)

// The orders of applications in a queue.
const (
	OrderFIFO = "fifo"
	OrderFair = "fair"
)

const (
	// maxQueues and maxQueueDepth bound a tree.
	maxQueues = 10_000
	// maxMade bounds the queues that are made below one, spareQueues keeps those that can be made below maxQueues: an operator has room
	// to configure more.
	maxMade       = 1_000
	spareQueues   = 500
	maxQueueDepth = 32
	// maxQueuePriority bounds those of queues, and maxQueueApplications the limits on applications.
	maxQueuePriority     = 1 << 20
	maxQueueApplications = 1 << 30
	// maxACL bounds the names of one list.
	maxACL = 10_000
	// longestLifetime of an application.
	longestLifetime = 10 * 365 * 24 * time.Hour
)

// fill takes over what c says, and returns every mistake. The parent, if there is one, is complete.
func (q *Queue) fill(c QueueConfig) (errs []error) {
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("queue %s: "+format, append([]any{q.Path}, args...)...))
	}
	var err error
	q.Guarantee, q.Limit = Capacity{Whole: Quantity{Unit: UnitPercent, Value: 100}}, Capacity{Whole: Quantity{Unit: UnitPercent, Value: 100}}
	switch {
	case q.Parent == nil && (c.Capacity != "" || c.Max != ""):
		wrong("its capacity and max are the whole cluster and not set")
	case q.Parent == nil:
	default:
		q.Guarantee.Whole.Value = 0
		if c.Capacity != "" {
			if q.Guarantee, err = ParseCapacity(c.Capacity); err != nil {
				wrong("capacity: %w", err)
			}
		}
		if c.Max != "" {
			if q.Limit, err = ParseCapacity(c.Max); err != nil {
				wrong("max: %w", err)
			}
		}
		if q.Limit.Vector == nil && q.Limit.Whole == (Quantity{Unit: UnitPercent}) { // as ever: a max of 0 is none
			q.Limit.Whole.Value = 100
		}
		if q.Limit.Whole.Unit == UnitWeight || slices.ContainsFunc(slices.Collect(maps.Values(q.Limit.Vector)), func(v Quantity) bool { return v.Unit == UnitWeight }) {
			wrong("max: %s has a weight: a maximum is percentages or amounts", q.Limit)
		}
		errs = append(errs, q.checkMax()...)
	}
	q.Submit, q.SubmitGroups, q.Administer, q.AdministerGroups = c.Submit, c.SubmitGroups, c.Administer, c.AdministerGroups
	for key, list := range map[string][]string{"acl_submit": c.Submit, "acl_submit_groups": c.SubmitGroups, "acl_administer": c.Administer, "acl_administer_groups": c.AdministerGroups} {
		if len(list) > maxACL {
			wrong("%s: more than %d names", key, maxACL)
		}
		for _, name := range list {
			if name == "" || strings.TrimSpace(name) != name {
				wrong("%s: %.100q is no name: it is empty, or has blanks at an end", key, name)
				break
			}
		}
	}
	switch q.State = c.State; {
	case c.State == "":
		q.State = QueueRunning
	case c.State != QueueRunning && c.State != QueueStopped:
		wrong("state: %.40q is neither %s nor %s", c.State, QueueRunning, QueueStopped)
	}
	if q.Parent != nil && q.Parent.State == QueueStopped {
		q.State = QueueStopped
	}
	percent := func(key, text string) float64 {
		if text == "" {
			return 0
		}
		quantity, err := parseQuantity(strings.TrimSpace(text), "")
		if err != nil || quantity.Unit != UnitPercent {
			wrong("%s: %.40q is not a percentage between 0 and 100", key, text)
		}
		return quantity.Value
	}
	q.UserLimitPercent, q.MasterShare = percent("user_limit", c.UserLimit), percent("master_share", c.MasterShare)/100
	if c.MasterShare == "" && q.Parent != nil {
		q.MasterShare = q.Parent.MasterShare
	}
	if q.UserLimitFactor = c.UserLimitFactor; !(c.UserLimitFactor >= 0 && c.UserLimitFactor <= maxWeight) {
		wrong("user_limit_factor: %g is not between 0 and %.0f", c.UserLimitFactor, maxWeight)
	}
	count := func(key string, n, most int) int {
		if n < 0 || n > most {
			wrong("%s: %d is not between 0 and %d", key, n, most)
		}
		return n
	}
	q.MaxApplications = count("max_applications", c.MaxApplications, maxQueueApplications)
	q.MaxApplicationsPerUser = count("max_applications_per_user", c.MaxApplicationsPerUser, maxQueueApplications)
	q.Priority = count("priority", c.Priority, maxQueuePriority)
	q.DefaultPriority = count("default_priority", c.DefaultPriority, MaxPriority)
	q.MaxPriority = count("max_priority", c.MaxPriority, MaxPriority)
	if q.MaxPriority > 0 && q.DefaultPriority > q.MaxPriority {
		wrong("default_priority: %d is above max_priority %d", q.DefaultPriority, q.MaxPriority)
	}
	switch q.Ordering = c.Ordering; c.Ordering {
	case "":
		q.Ordering = OrderFIFO
	case OrderFIFO, OrderFair:
	default:
		wrong("ordering: %.40q is neither %s nor %s", c.Ordering, OrderFIFO, OrderFair)
	}
	q.PreemptionDisabled = c.PreemptionDisabled || q.Parent != nil && q.Parent.PreemptionDisabled
	q.PreemptByPriority = c.PreemptByPriority || q.Parent != nil && q.Parent.PreemptByPriority
	if err := q.fillCells(c); err != nil {
		errs = append(errs, err)
	}
	duration := func(key, text string, above time.Duration) time.Duration {
		if text == "" {
			return above
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Second || d > longestLifetime {
			wrong("%s: %.40q is no time between 1s and %dh, as 90m or 24h", key, text, int(longestLifetime.Hours()))
		}
		return d
	}
	var longest, usual time.Duration
	if q.Parent != nil {
		longest, usual = q.Parent.MaxLifetime, q.Parent.DefaultLifetime
	}
	q.MaxLifetime, q.DefaultLifetime = duration("max_lifetime", c.MaxLifetime, longest), duration("default_lifetime", c.DefaultLifetime, usual)
	if q.MaxLifetime > 0 && q.DefaultLifetime > q.MaxLifetime {
		if c.DefaultLifetime != "" {
			wrong("default_lifetime: %v is longer than max_lifetime %v", q.DefaultLifetime, q.MaxLifetime)
		}
		q.DefaultLifetime = q.MaxLifetime
	}
	if q.Parent != nil && len(c.Mapping) > 0 {
		wrong("mapping: rules are the root's")
	}
	if q.AutoCreate = c.AutoCreate; c.AutoCreate != nil {
		errs = append(errs, q.checkTemplate(*c.AutoCreate)...)
	}
	return errs
}

// checkTemplate verifies what queues are like that are made under q.
func (q *Queue) checkTemplate(c QueueConfig) (errs []error) {
	if q.Parent == nil {
		return []error{fmt.Errorf("queue %s: auto_create: queues are made below other queues, as root.users, not at the top", q.Path)}
	}
	if len(c.Cells) > 0 {
		errs = append(errs, fmt.Errorf("queue %s: auto_create: the queues that are made are guaranteed no cells", q.Path))
	}
	if len(c.Children) > 0 || c.AutoCreate != nil {
		errs = append(errs, fmt.Errorf("queue %s: auto_create: the queues that are made have none below them", q.Path))
	}
	made := &Queue{Name: "*", Path: q.Path + ".*", Parent: q}
	errs = append(errs, made.fill(template(c))...)
	if made.Guarantee.Vector != nil || made.Guarantee.Whole.Unit != UnitWeight {
		errs = append(errs, fmt.Errorf("queue %s: auto_create: capacity %s: a queue that is made has a weight, as 1w", q.Path, made.Guarantee))
	}
	return errs
}

// template is what a queue is like that is made.
func template(c QueueConfig) QueueConfig {
	if c.Capacity == "" {
		c.Capacity = "1w"
	}
	return c
}

// MappingRule says into which queue some applications go.
type MappingRule struct {
	// One of these says whose: a user, a group that the user is in, or the name of the application; "*" fits all of its kind.
	User        string `json:"user,omitempty"`
	Group       string `json:"group,omitempty"`
	Application string `json:"application,omitempty"`
	// Queue is a path or a name, in which %user, %primary_group and %application stand for the application's own.
	Queue string `json:"queue"`
	// Fallback says what happens when there is no such queue and none can be made: skip (default) goes on to the next rule, reject
	// refuses the application, default puts it into the queue default.
	Fallback string `json:"fallback,omitempty"`
}

// What a rule does without its queue, as YARN's fallbackResult.
const (
	FallbackSkip    = "skip"
	FallbackReject  = "reject"
	FallbackDefault = "default"
)

// maxMapping bounds the rules.
const maxMapping = 1_000

// checkMapping verifies the rules against the tree.
func (t *Queues) checkMapping() (errs []error) {
	if len(t.Mapping) > maxMapping {
		return []error{fmt.Errorf("queue root: mapping: more than %d rules", maxMapping)}
	}
	for i, r := range t.Mapping {
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("queue root: mapping: rule %d: "+format, append([]any{i + 1}, args...)...))
		}
		kinds := 0
		for _, s := range []string{r.User, r.Group, r.Application} {
			if s != "" {
				kinds++
			}
		}
		if kinds != 1 {
			wrong("it names one of user, group and application")
		}
		switch r.Fallback {
		case "", FallbackSkip, FallbackReject, FallbackDefault:
		default:
			wrong("fallback: %.40q is none of %s, %s, %s", r.Fallback, FallbackSkip, FallbackReject, FallbackDefault)
		}
		parent, _, deep := cutLast(r.Queue)
		switch {
		case r.Queue == "":
			wrong("it names no queue")
		case !strings.Contains(r.Queue, "%"):
			if q := t.place(r.Queue); q == nil || !q.Leaf() {
				wrong("%.100q is no queue that takes applications", r.Queue)
			}
		case deep && !strings.Contains(parent, "%"):
			if q := t.Find(parent); q == nil || q.Leaf() {
				wrong("%.100q is no queue with others below it", parent)
			}
		}
		if rest := strings.NewReplacer(variables("", "", "")...).Replace(r.Queue); strings.Contains(rest, "%") {
			wrong("%.100q: the variables are %%user, %%primary_group and %%application", r.Queue)
		}
	}
	return errs
}

func variables(user, group, application string) []string {
	return []string{"%user", queueWord(user), "%primary_group", queueWord(group), "%application", queueWord(application)}
}

// queueWord is a name as part of a queue's path: YARN writes _dot_ for a dot.
func queueWord(s string) string { return strings.ReplaceAll(s, ".", "_dot_") }

func cutLast(path string) (parent, name string, ok bool) {
	i := strings.LastIndexByte(path, '.')
	if i < 0 {
		return "", path, false
	}
	return path[:i], path[i+1:], true
}

// Map finds the queue of an application that names none: nil, with no refusal, when no rule says anything about it. rule is the one
// that counted, from 1.
func (t *Queues) Map(user string, groups []string, application string) (q *Queue, rule int, refusal string) {
	primary := ""
	if len(groups) > 0 {
		primary = groups[0]
	}
	for i, r := range t.Mapping {
		fits := func(want string, have ...string) bool {
			return want != "" && (want == "*" || slices.Contains(have, want))
		}
		if !fits(r.User, user) && !(fits(r.Group, groups...) && len(groups) > 0) && !fits(r.Application, application) {
			continue
		}
		name := strings.NewReplacer(variables(user, primary, application)...).Replace(r.Queue)
		if q := t.place(name); q != nil && q.Leaf() {
			return q, i + 1, ""
		}
		switch r.Fallback {
		case FallbackReject:
			return nil, i + 1, fmt.Sprintf("rule %d of the mapping puts it into queue %s, which there is not", i+1, name)
		case FallbackDefault:
			if q := t.Find("root.default"); q != nil && q.Leaf() {
				return q, i + 1, ""
			}
			return nil, i + 1, fmt.Sprintf("rule %d of the mapping puts it into queue %s or else into root.default, neither of which there is", i+1, name)
		}
	}
	return nil, 0, ""
}

// ParseQueueConfig reads a tree as JSON. Members that there are not are mistakes.
func ParseQueueConfig(document []byte) (QueueConfig, error) {
	var c QueueConfig
	d := json.NewDecoder(strings.NewReader(string(document)))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("queues: %w", err)
	}
	return c, nil
}

// Document is a tree that NewQueues takes as JSON; equal trees, written alike, give equal bytes.
func (c QueueConfig) Document() []byte {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // a number that is none, which NewQueues refuses
	}
	return b
}
