package rest

import (
	"fmt"
	"slices"
	"strings"

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

func vector(percent float64) capacityVector {
	v := fmt.Sprint(mustFloat(percent)) + "%"
	return capacityVector{
		fmt.Sprintf("[%s=%s,%s=%s,%s=%s]", rm.MemoryName, v, rm.GPUName, v, rm.VCoresName, v),
		[]vectorEntry{{rm.MemoryName, v}, {rm.GPUName, v}, {rm.VCoresName, v}},
	}
}

// mustFloat prints a number as float does.
func mustFloat(f float64) string {
	b, _ := float(f).MarshalJSON()
	return string(b)
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
	Type             string         `json:"type"`
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
	Type              string       `json:"type,omitempty"` // leaves only
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

func part(r rm.Resource, f float64) rm.Resource {
	return rm.Resource{Memory: int64(float64(r.Memory) * f), VCores: int(float64(r.VCores)*f + 1e-6), GPUs: int(float64(r.GPUs)*f + 1e-6)}
}

// unlimited is YARN's word for no limit on parallel applications.
const unlimited = 2147483647

func acls(k *rm.Queue) queueACLs {
	list := func(l []string) string {
		if slices.Contains(l, "*") {
			return "*"
		}
		return strings.Join(l, ",") + " "
	}
	submit := list(k.Submit)
	if len(k.Submit) == 0 && k.Parent == nil {
		submit = "*"
	}
	return queueACLs{[]queueACL{{"ADMINISTER_QUEUE", list(k.Administer)}, {"APPLICATION_MAX_PRIORITY", "*"}, {"SUBMIT_APP", submit}}}
}

func (q *request) queueInfo(k *rm.Queue, uses map[*rm.Queue]*queueUse, total, largest rm.Resource) queueInfo {
	u := uses[k]
	absolute := dominant(u.used, total)
	used := 0.0
	if k.AbsoluteCapacity > 0 {
		used = absolute / k.AbsoluteCapacity
	}
	none := resource(rm.Resource{})
	low, high := resource(part(total, k.AbsoluteCapacity)), resource(part(total, k.AbsoluteMax))
	out := queueInfo{
		Path: k.Path, Name: k.Name, Capacity: float(100 * k.Capacity), Used: float(100 * used), Max: float(100 * k.Max),
		AbsoluteCapacity: float(100 * k.AbsoluteCapacity), AbsoluteMax: float(100 * k.AbsoluteMax), AbsoluteUsed: float(100 * absolute), Weight: -1,
		Applications: u.apps, MaxParallelApps: unlimited, State: "RUNNING", ResourcesUsed: resource(u.used), Labels: []string{"*"},
		Allocated: u.containers, PendingCount: u.pendingContainers, MinEffective: low, MaxEffective: high, MaximumAlloc: resource(largest),
		ACLs: acls(k), Ordering: "utilization", Mode: "percentage", QueueType: "parent", Creation: "static", AutoCreation: "off",
	}
	if k.State == rm.QueueStopped {
		out.State = "STOPPED"
	}
	out.Capacities.ByPartition = []partitionCapacity{{
		Vector: vector(100 * k.Capacity), Capacity: out.Capacity, Used: out.Used, Max: out.Max,
		AbsoluteCapacity: out.AbsoluteCapacity, AbsoluteUsed: out.AbsoluteUsed, AbsoluteMax: out.AbsoluteMax, Weight: -1,
		ConfiguredMin: none, ConfiguredMax: none, EffectiveMin: low, EffectiveMax: high,
	}}
	plain := usagePlain{Used: resource(u.used), Reserved: none, Pending: resource(u.pending)}
	if !k.Leaf() {
		out.Resources = usagesPlain{[]usagePlain{plain}}
		out.Queues = &queueList{}
		for _, c := range k.Children {
			out.Queues.Queue = append(out.Queues.Queue, q.queueInfo(c, uses, total, largest))
		}
		return out
	}
	amLimit := resource(part(total, k.AbsoluteMax/2))
	out.Type, out.Ordering, out.QueueType = "capacitySchedulerLeafQueueInfo", "fifo", "leaf"
	out.Capacities.ByPartition[0].MaxAMLimit = 50
	out.Resources = usages{[]usage{{Used: plain.Used, Reserved: none, Pending: plain.Pending, AMUsed: resource(u.masters), AMLimit: amLimit, UserAMLimit: amLimit}}}
	out.leafInfo = &leafInfo{
		Active: u.active, PendingApps: u.waiting, Containers: u.containers, MaxApplications: 10_000, MaxPerUser: 5_000,
		UserLimit: 100, UserLimitFactor: -1, // users have no limit but the queue's
		ConfiguredMaxAM: 0.5, AMLimit: amLimit, AMUsed: resource(u.masters), UserAMLimit: amLimit,
		NoPreemption: true, NoIntraQueue: true, MaxLifetime: -1, DefaultLifetime: -1,
	}
	for _, name := range sortedKeys(u.users) {
		v := u.users[name]
		out.Users.List = append(out.Users.List, userInfo{
			Name: name, Used: resource(v.used), Pending: v.waiting, Active: v.active, AMUsed: resource(v.masters),
			Limit: high, Resources: usages{[]usage{{
				Used: resource(v.used), Reserved: none, Pending: resource(v.pending), AMUsed: resource(v.masters),
				AMLimit: amLimit, UserAMLimit: amLimit,
			}}}, Weight: 1, IsActive: v.active > 0,
		})
	}
	return out
}

func (q *request) scheduler() {
	total, used, _ := q.totals()
	largest, _ := q.most()
	root := q.queues().Root
	info := q.queueInfo(root, q.queueUses(), total, largest)
	none := resource(rm.Resource{})
	out := rootQueue{
		Type: "capacityScheduler", Capacity: 100, Used: float(100 * dominant(used, total)), Max: 100, Weight: -1, Vector: vector(100),
		Name: "root", Path: "root", MaxParallelApps: unlimited, Queues: *info.Queues, Capacities: info.Capacities,
		Health: health{LastRun: int64(q.view.Now())}, MaximumAlloc: resource(largest), ACLs: info.ACLs, Ordering: "utilization", Mode: "percentage",
		QueueType: "parent", Creation: "static", AutoCreation: "off",
	}
	for _, op := range []string{"last-allocation", "last-release", "last-preemption", "last-reservation"} {
		out.Health.Operations = append(out.Health.Operations, lastOperation{op, "N/A", "N/A", "N/A"})
	}
	for _, op := range []string{"releases", "allocations", "reservations"} {
		out.Health.Details = append(out.Health.Details, runDetail{op, 0, none})
	}
	q.json(map[string]map[string]rootQueue{"scheduler": {"schedulerInfo": out}})
}
