package rest

import (
	"slices"
	"strings"

	"github.com/gohops/hops/internal/jersey"
	rm "github.com/gohops/hops/resourcemanager"
)

type capacityVector struct {
	Configured string        `json:"configuredCapacityVector"`
	Entries    []vectorEntry `json:"capacityVectorEntries"`
}

type vectorEntry struct {
	Name  string `json:"resourceName"`
	Value string `json:"resourceValue"`
}

// vector writes what a capacity is of each resource that the cluster has.
func vector(c rm.Capacity, total rm.Resource) capacityVector {
	var out capacityVector
	var parts []string
	for _, name := range append([]string{rm.MemoryName, rm.GPUName, rm.VCoresName}, total.Names()[3:]...) {
		quantity, _ := c.Of(name)
		v := mustFloat(quantity.Value)
		switch {
		case quantity.Unit == rm.UnitPercent:
			v += "%"
		case quantity.Unit == rm.UnitWeight:
			v += "w"
		case name == rm.MemoryName:
			v = mustFloat(float64(quantity.Amount / rm.MiB))
		default:
			v = mustFloat(float64(quantity.Amount))
		}
		parts = append(parts, name+"="+v)
		out.Entries = append(out.Entries, vectorEntry{name, v})
	}
	out.Configured = "[" + strings.Join(parts, ",") + "]"
	return out
}

// mode is how a queue's capacity is written, and weight, which is -1 for another mode.
func mode(k *rm.Queue) (mode string, weight float64) {
	switch {
	case k.Guarantee.Vector != nil:
		return "absolute", -1
	case k.Guarantee.Whole.Unit == rm.UnitWeight:
		return "weight", k.Guarantee.Whole.Value
	}
	return "percentage", -1
}

// mustFloat prints a number as float does.
func mustFloat(f float64) string {
	return float(f).String()
}

type capacities struct {
	ByPartition []partitionCapacity `json:"queueCapacitiesByPartition"`
}

type partitionCapacity struct {
	Partition        string         `json:"partitionName"`
	Vector           capacityVector `json:"queueCapacityVectorInfo"`
	Capacity         float          `json:"capacity"`
	Used             float          `json:"usedCapacity"`
	Max              float          `json:"maxCapacity"`
	AbsoluteCapacity float          `json:"absoluteCapacity"`
	AbsoluteUsed     float          `json:"absoluteUsedCapacity"`
	AbsoluteMax      float          `json:"absoluteMaxCapacity"`
	MaxAMLimit       float          `json:"maxAMLimitPercentage"`
	Weight           float          `json:"weight"`
	NormalizedWeight float          `json:"normalizedWeight"`
	ConfiguredMin    resourceInfo   `json:"configuredMinResource"`
	ConfiguredMax    resourceInfo   `json:"configuredMaxResource"`
	EffectiveMin     resourceInfo   `json:"effectiveMinResource"`
	EffectiveMax     resourceInfo   `json:"effectiveMaxResource"`
}

type queueACLs struct {
	List []queueACL `json:"queueAcl"`
}

type queueACL struct {
	Type string `json:"accessType"`
	List string `json:"accessControlList"`
}

type properties struct {
	List []struct{} `json:"property,omitempty"`
}

// rootQueue is the object under schedulerInfo.
type rootQueue struct {
	Type             string         `json:"type" xml:"type"`
	Capacity         float          `json:"capacity"`
	Used             float          `json:"usedCapacity"`
	Max              float          `json:"maxCapacity"`
	Weight           float          `json:"weight"`
	NormalizedWeight float          `json:"normalizedWeight"`
	Vector           capacityVector `json:"queueCapacityVectorInfo"`
	Name             string         `json:"queueName"`
	Path             string         `json:"queuePath"`
	MaxParallelApps  int            `json:"maxParallelApps"`
	Absolute         bool           `json:"isAbsoluteResource"`
	Queues           queueList      `json:"queues"`
	Capacities       capacities     `json:"capacities"`
	Health           health         `json:"health"`
	MaximumAlloc     resourceInfo   `json:"maximumAllocation"`
	ACLs             queueACLs      `json:"queueAcls"`
	Priority         int            `json:"queuePriority"`
	Ordering         string         `json:"orderingPolicyInfo"`
	Mode             string         `json:"mode"`
	QueueType        string         `json:"queueType"`
	Creation         string         `json:"creationMethod"`
	AutoCreation     string         `json:"autoCreationEligibility"`
	Templates        properties     `json:"autoQueueTemplateProperties"`
	ParentTemplates  properties     `json:"autoQueueParentTemplateProperties"`
	LeafTemplates    properties     `json:"autoQueueLeafTemplateProperties"`
}

type queueList struct {
	Queue []queueInfo `json:"queue"`
}

type health struct {
	LastRun    int64           `json:"lastrun"`
	Operations []lastOperation `json:"operationsInfo"`
	Details    []runDetail     `json:"lastRunDetails"`
}

type lastOperation struct {
	Operation string `json:"operation"`
	Node      string `json:"nodeId"`
	Container string `json:"containerId"`
	Queue     string `json:"queue"`
}

type runDetail struct {
	Operation string       `json:"operation"`
	Count     int          `json:"count"`
	Resources resourceInfo `json:"resources"`
}

type queueInfo struct {
	Type              string       `json:"type,omitempty" xml:"type"` // leaves only
	Path              string       `json:"queuePath"`
	Capacity          float        `json:"capacity"`
	Used              float        `json:"usedCapacity"`
	Max               float        `json:"maxCapacity"`
	AbsoluteCapacity  float        `json:"absoluteCapacity"`
	AbsoluteMax       float        `json:"absoluteMaxCapacity"`
	AbsoluteUsed      float        `json:"absoluteUsedCapacity"`
	Weight            float        `json:"weight"`
	NormalizedWeight  float        `json:"normalizedWeight"`
	Applications      int          `json:"numApplications"`
	MaxParallelApps   int          `json:"maxParallelApps"`
	Name              string       `json:"queueName"`
	Absolute          bool         `json:"isAbsoluteResource"`
	State             string       `json:"state"`
	Queues            *queueList   `json:"queues,omitempty"` // parents only
	ResourcesUsed     resourceInfo `json:"resourcesUsed"`
	HideReservation   bool         `json:"hideReservationQueues"`
	Labels            []string     `json:"nodeLabels"`
	Allocated         int          `json:"allocatedContainers"`
	ReservedCount     int          `json:"reservedContainers"`
	PendingCount      int          `json:"pendingContainers"`
	Capacities        capacities   `json:"capacities"`
	Resources         any          `json:"resources"`
	MinEffective      resourceInfo `json:"minEffectiveCapacity"`
	MaxEffective      resourceInfo `json:"maxEffectiveCapacity"`
	MaximumAlloc      resourceInfo `json:"maximumAllocation"`
	ACLs              queueACLs    `json:"queueAcls"`
	Priority          int          `json:"queuePriority"`
	Ordering          string       `json:"orderingPolicyInfo"`
	AutoCreateEnabled bool         `json:"autoCreateChildQueueEnabled"`
	LeafTemplate      properties   `json:"leafQueueTemplate"`
	Mode              string       `json:"mode"`
	QueueType         string       `json:"queueType"`
	Creation          string       `json:"creationMethod"`
	AutoCreation      string       `json:"autoCreationEligibility"`
	Templates         properties   `json:"autoQueueTemplateProperties"`
	ParentTemplates   properties   `json:"autoQueueParentTemplateProperties"`
	LeafTemplates     properties   `json:"autoQueueLeafTemplateProperties"`
	*leafInfo                      // leaves only
}

type leafInfo struct {
	Active          int          `json:"numActiveApplications"`
	PendingApps     int          `json:"numPendingApplications"`
	Containers      int          `json:"numContainers"`
	MaxApplications int          `json:"maxApplications"`
	MaxPerUser      int          `json:"maxApplicationsPerUser"`
	UserLimit       float        `json:"userLimit"`
	Users           users        `json:"users"`
	UserLimitFactor float        `json:"userLimitFactor"`
	ConfiguredMaxAM float        `json:"configuredMaxAMResourceLimit"`
	AMLimit         resourceInfo `json:"AMResourceLimit"`
	AMUsed          resourceInfo `json:"usedAMResource"`
	UserAMLimit     resourceInfo `json:"userAMResourceLimit"`
	NoPreemption    bool         `json:"preemptionDisabled"`
	NoIntraQueue    bool         `json:"intraQueuePreemptionDisabled"`
	DefaultPriority int          `json:"defaultPriority"`
	AutoCreated     bool         `json:"isAutoCreatedLeafQueue"`
	MaxLifetime     int64        `json:"maxApplicationLifetime"`
	DefaultLifetime int64        `json:"defaultApplicationLifetime"`
}

type users struct {
	List []userInfo `json:"user,omitempty"`
}

type userInfo struct {
	Name      string       `json:"username"`
	Used      resourceInfo `json:"resourcesUsed"`
	Pending   int          `json:"numPendingApplications"`
	Active    int          `json:"numActiveApplications"`
	AMUsed    resourceInfo `json:"AMResourceUsed"`
	Limit     resourceInfo `json:"userResourceLimit"`
	Resources usages       `json:"resources"`
	Weight    float        `json:"userWeight"`
	IsActive  bool         `json:"isActive"`
}

// usagesPlain is usages without the limits of masters.
type usagesPlain struct {
	ByPartition []usagePlain `json:"resourceUsagesByPartition"`
}

type usagePlain struct {
	Partition string       `json:"partitionName"`
	Used      resourceInfo `json:"used"`
	Reserved  resourceInfo `json:"reserved"`
	Pending   resourceInfo `json:"pending"`
}

// queueUse is what happens in a queue.
type queueUse struct {
	used, pending, masters        rm.Resource
	apps, active, waiting         int
	containers, pendingContainers int
	users                         map[string]*queueUse
}

func (u *queueUse) add(used, pending, masters rm.Resource, active bool, containers, pendingContainers int) {
	u.used, u.pending, u.masters = u.used.Add(used), u.pending.Add(pending), u.masters.Add(masters)
	u.apps++
	if active {
		u.active++
	} else {
		u.waiting++
	}
	u.containers += containers
	u.pendingContainers += pendingContainers
}

// queueUses sums up the live applications for every queue.
func (q *request) queueUses() map[*rm.Queue]*queueUse {
	uses := map[*rm.Queue]*queueUse{}
	for _, k := range q.queues().All {
		uses[k] = &queueUse{users: map[string]*queueUse{}}
	}
	for a := range q.view.Live() {
		pending, n := q.pending(a)
		var masters rm.Resource
		if m := q.view.Master(a); m != nil && m.Live() {
			masters = m.Resource
		}
		active := a.State == rm.StateRunning
		for k := q.queues().Find(a.Queue); k != nil; k = k.Parent {
			u := uses[k]
			u.add(a.Used, pending, masters, active, a.Live, n)
			if u.users[a.User] == nil {
				u.users[a.User] = &queueUse{}
			}
			u.users[a.User].add(a.Used, pending, masters, active, a.Live, n)
		}
	}
	return uses
}

// unlimited is YARN's word for no limit on parallel applications.
const unlimited = 2147483647

func acls(k *rm.Queue) queueACLs {
	list := func(l, groups []string) string {
		if slices.Contains(l, "*") {
			return "*"
		}
		return strings.Join(l, ",") + " " + strings.Join(groups, ",")
	}
	submit := list(k.Submit, k.SubmitGroups)
	if len(k.Submit)+len(k.SubmitGroups) == 0 && k.Parent == nil {
		submit = "*"
	}
	return queueACLs{[]queueACL{{"ADMINISTER_QUEUE", list(k.Administer, k.AdministerGroups)}, {"APPLICATION_MAX_PRIORITY", "*"}, {"SUBMIT_APP", submit}}}
}

// atMostOf is the smaller of each amount.
func atMostOf(r, most rm.Resource) rm.Resource { return r.Add(most).Sub(r.Max(most)) }

// queuePage is what the objects of all queues are made from: what happens in each, what it is guaranteed, and the most that it may use.
type queuePage struct {
	uses           map[*rm.Queue]*queueUse
	low, high      map[*rm.Queue]rm.Resource
	total, largest rm.Resource
}

func (q *request) queuePage() *queuePage {
	p := &queuePage{uses: q.queueUses(), low: map[*rm.Queue]rm.Resource{}, high: map[*rm.Queue]rm.Resource{}}
	p.total, _, _ = q.totals()
	p.largest, _ = q.most()
	low, high := q.queues().Resolve(p.total)
	for i, k := range q.queues().All {
		p.low[k], p.high[k] = low[i], high[i]
	}
	return p
}

// shares are what a queue is guaranteed and may use, as parts of its parent and of the cluster, 0 to 1: of the configuration, and where
// that does not say the same of all resources, of the present nodes and the resource of which it is most.
func (p *queuePage) shares(k *rm.Queue) (capacity, limit, ofAll, atMost float64) {
	capacity, limit, ofAll, atMost = k.Capacity, k.Max, k.AbsoluteCapacity, k.AbsoluteMax
	mixed := false
	for up := k; up.Parent != nil; up = up.Parent {
		for _, c := range up.Parent.Children {
			mixed = mixed || c.Guarantee.Vector != nil
		}
		if up.Limit.Vector != nil {
			atMost = dominant(p.high[k], p.total)
		}
	}
	if mixed {
		capacity, ofAll = dominant(p.low[k], p.low[k.Parent]), dominant(p.low[k], p.total)
	}
	if k.Limit.Vector != nil {
		limit = dominant(p.high[k], p.high[k.Parent])
	}
	return capacity, limit, ofAll, atMost
}

func (q *request) queueInfo(k *rm.Queue, p *queuePage) queueInfo {
	u, total, largest := p.uses[k], p.total, p.largest
	share, limit, ofAll, atMost := p.shares(k)
	absolute := dominant(u.used, total)
	used := 0.0
	if ofAll > 0 {
		used = absolute / ofAll
	}
	none := resource(rm.Resource{})
	low, high := resource(p.low[k]), resource(p.high[k])
	mode, weight := mode(k)
	normalized := 0.0
	if weight >= 0 {
		normalized = share
	}
	out := queueInfo{
		Path: k.Path, Name: k.Name, Capacity: float(100 * share), Used: float(100 * used), Max: float(100 * limit),
		AbsoluteCapacity: float(100 * ofAll), AbsoluteMax: float(100 * atMost), AbsoluteUsed: float(100 * absolute), Weight: float(weight), NormalizedWeight: float(normalized),
		Applications: u.apps, MaxParallelApps: unlimited, State: string(queueState(k, u)), Absolute: k.Guarantee.Vector != nil, ResourcesUsed: resource(u.used), Labels: []string{"*"},
		Allocated: u.containers, PendingCount: u.pendingContainers, MinEffective: low, MaxEffective: high, MaximumAlloc: resource(largest),
		ACLs: acls(k), Priority: k.Priority, Ordering: "utilization", Mode: mode, QueueType: "parent", Creation: "static", AutoCreation: "off",
		AutoCreateEnabled: k.AutoCreate != nil,
	}
	if k.Created {
		out.Creation = "dynamicFlexible"
	}
	if k.AutoCreate != nil {
		out.AutoCreation = "flexible"
	}
	out.Capacities.ByPartition = []partitionCapacity{{
		Vector: vector(k.Guarantee, total), Capacity: out.Capacity, Used: out.Used, Max: out.Max,
		AbsoluteCapacity: out.AbsoluteCapacity, AbsoluteUsed: out.AbsoluteUsed, AbsoluteMax: out.AbsoluteMax, Weight: out.Weight, NormalizedWeight: out.NormalizedWeight,
		ConfiguredMin: none, ConfiguredMax: none, EffectiveMin: low, EffectiveMax: high,
	}}
	plain := usagePlain{Used: resource(u.used), Reserved: none, Pending: resource(u.pending)}
	if !k.Leaf() {
		out.Resources = usagesPlain{[]usagePlain{plain}}
		out.Queues = &queueList{}
		for _, c := range k.Children {
			out.Queues.Queue = append(out.Queues.Queue, q.queueInfo(c, p))
		}
		return out
	}
	masters := k.MasterShare
	if masters == 0 {
		masters = 0.5
	}
	amLimit := resource(p.high[k].Part(masters))
	out.Type, out.Ordering, out.QueueType = "capacitySchedulerLeafQueueInfo", k.Ordering, "leaf"
	out.Capacities.ByPartition[0].MaxAMLimit = float(100 * masters)
	out.Resources = usages{[]usage{{Used: plain.Used, Reserved: none, Pending: plain.Pending, AMUsed: resource(u.masters), AMLimit: amLimit, UserAMLimit: amLimit}}}
	out.leafInfo = &leafInfo{
		Active: u.active, PendingApps: u.waiting, Containers: u.containers, MaxApplications: 10_000, MaxPerUser: 5_000,
		UserLimit: 100, UserLimitFactor: -1, // users have no limit but the queue's
		ConfiguredMaxAM: float(masters), AMLimit: amLimit, AMUsed: resource(u.masters), UserAMLimit: amLimit,
		NoPreemption: k.PreemptionDisabled, NoIntraQueue: k.PreemptionDisabled || !k.PreemptByPriority, DefaultPriority: k.DefaultPriority, AutoCreated: k.Created, MaxLifetime: -1, DefaultLifetime: -1,
	}
	if k.MaxApplications > 0 {
		out.MaxApplications, out.MaxPerUser = k.MaxApplications, k.MaxApplications
	}
	if k.MaxApplicationsPerUser > 0 {
		out.MaxPerUser = k.MaxApplicationsPerUser
	}
	if k.UserLimitPercent > 0 {
		out.UserLimit = float(k.UserLimitPercent)
	}
	perUser := high
	if k.UserLimitFactor > 0 {
		out.UserLimitFactor = float(k.UserLimitFactor)
		perUser = resource(atMostOf(p.low[k].Part(k.UserLimitFactor), p.high[k]))
	}
	if k.MaxLifetime > 0 {
		out.MaxLifetime = int64(k.MaxLifetime.Seconds())
	}
	if k.DefaultLifetime > 0 {
		out.DefaultLifetime = int64(k.DefaultLifetime.Seconds())
	}
	for _, name := range sortedKeys(u.users) {
		v := u.users[name]
		out.Users.List = append(out.Users.List, userInfo{
			Name: name, Used: resource(v.used), Pending: v.waiting, Active: v.active, AMUsed: resource(v.masters),
			Limit: perUser, Resources: usages{[]usage{{
				Used: resource(v.used), Reserved: none, Pending: resource(v.pending), AMUsed: resource(v.masters),
				AMLimit: amLimit, UserAMLimit: amLimit,
			}}}, Weight: 1, IsActive: v.active > 0,
		})
	}
	return out
}

func (q *request) scheduler() {
	_, used, _ := q.totals()
	root := q.queues().Root
	page := q.queuePage()
	info := q.queueInfo(root, page)
	none := resource(rm.Resource{})
	out := rootQueue{
		Type: "capacityScheduler", Capacity: 100, Used: float(100 * dominant(used, page.total)), Max: 100, Weight: -1, Vector: vector(root.Guarantee, page.total),
		Name: "root", Path: "root", MaxParallelApps: unlimited, Queues: *info.Queues, Capacities: info.Capacities,
		Health: health{LastRun: int64(q.view.Now())}, MaximumAlloc: resource(page.largest), ACLs: info.ACLs, Ordering: "utilization", Mode: "percentage",
		QueueType: "parent", Creation: "static", AutoCreation: "off",
	}
	for _, op := range []string{"last-allocation", "last-release", "last-preemption", "last-reservation"} {
		out.Health.Operations = append(out.Health.Operations, lastOperation{op, "N/A", "N/A", "N/A"})
	}
	for _, op := range []string{"releases", "allocations", "reservations"} {
		out.Health.Details = append(out.Health.Details, runDetail{op, 0, none})
	}
	q.answer("scheduler", jersey.Natural, struct {
		Info rootQueue `json:"schedulerInfo"`
	}{out})
}
