package hadoop

import (
	"slices"

	"github.com/gohops/hops/internal/hrpc"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

// nodeStates translates the states of nodes as they are shown.
var nodeStates = map[rm.NodeState]pb.NodeStateProto{
	rm.NodeRunning: pb.NodeStateProto_NS_RUNNING, rm.NodeLost: pb.NodeStateProto_NS_LOST, rm.NodeUnhealthy: pb.NodeStateProto_NS_UNHEALTHY,
	rm.NodeDecommissioning: pb.NodeStateProto_NS_DECOMMISSIONING, rm.NodeDecommissioned: pb.NodeStateProto_NS_DECOMMISSIONED,
}

func (c *call) getClusterMetrics(*pb.GetClusterMetricsRequestProto) (hrpc.Message, error) {
	var active, lost, unhealthy, leaving, left int32
	for n := range c.view.Nodes() {
		switch n.Shown() {
		case rm.NodeLost:
			lost++
		case rm.NodeUnhealthy:
			unhealthy++
		case rm.NodeDecommissioning:
			leaving++
		case rm.NodeDecommissioned:
			left++
		default:
			active++
		}
	}
	return &pb.GetClusterMetricsResponseProto{ClusterMetrics: &pb.YarnClusterMetricsProto{
		NumNodeManagers: new(active + unhealthy + leaving), NumActiveNms: &active, NumLostNms: &lost, NumUnhealthyNms: &unhealthy, NumDecommissioningNms: &leaving,
		NumDecommissionedNms: &left, NumRebootedNms: new(int32), NumShutdownNms: new(int32),
	}}, nil
}

func (c *call) nodeReport(n *rm.Node) *pb.NodeReportProto {
	state := nodeStates[n.Shown()]
	live := c.Cluster.Liveness(n.ID)
	var physical int64
	for _, b := range live.Memory {
		physical += b / rm.MiB
	}
	total := n.Capacity
	if n.Wish != nil { // nothing is free on a node that leaves
		total = n.Used
	}
	health := n.HealthReport
	if why := n.Why(); why != "" && health != "" {
		health = why + "; " + health
	} else if why != "" {
		health = why
	}
	out := &pb.NodeReportProto{
		NodeId: nodeID(n), HttpAddress: &n.HTTP, RackName: &n.Rack, Used: c.resource(n.Used), Capability: c.resource(total), NumContainers: new(int32(n.Live)),
		NodeState: &state, HealthReport: &health, LastHealthReportTime: new(int64), NodeLabels: n.Labels,
		ContainersUtilization: &pb.ResourceUtilizationProto{Pmem: new(int32(physical)), Vmem: new(int32), Cpu: new(float32)},
	}
	if !live.Heard.IsZero() {
		*out.LastHealthReportTime = live.Heard.UnixMilli()
	}
	if n.Wish != nil && n.Wish.Deadline > 0 && !n.Retired {
		out.DecommissioningTimeout = new(uint32(max(0, (int64(n.Wish.Deadline)-c.Now().UnixMilli())/1000)))
	}
	return out
}

func (c *call) getClusterNodes(q *pb.GetClusterNodesRequestProto) (hrpc.Message, error) {
	out := &pb.GetClusterNodesResponseProto{}
	for n := range c.view.Nodes() {
		if len(q.NodeStates) == 0 || slices.Contains(q.NodeStates, nodeStates[n.Shown()]) {
			out.NodeReports = append(out.NodeReports, c.nodeReport(n))
		}
	}
	return out, nil
}

// queue finds a queue that a request names.
func (c *call) queue(name string) (*rm.Queue, error) {
	if q := c.queues().Find(name); q != nil {
		return q, nil
	}
	return nil, thrown("java.io.IOException", "Unknown queue: %s", name)
}

func (c *call) getQueueInfo(q *pb.GetQueueInfoRequestProto) (hrpc.Message, error) {
	queue, err := c.queue(q.GetQueueName())
	if err != nil { // YARN answers without one
		return &pb.GetQueueInfoResponseProto{}, nil
	}
	total := c.total()
	depth := 0
	if q.GetIncludeChildQueues() {
		depth = 1
	}
	if q.GetRecursive() {
		depth = 1 << 10
	}
	info := c.queueInfo(queue, total, depth, c.byQueue())
	if q.GetIncludeApplications() {
		for a := range c.view.Applications() {
			if inside(c.queues().Find(a.Queue), queue) && !a.State.Final() {
				info.Applications = append(info.Applications, c.report(a))
			}
		}
	}
	return &pb.GetQueueInfoResponseProto{QueueInfo: info}, nil
}

// inside reports whether a queue is another one or below it.
func inside(q, of *rm.Queue) bool {
	for ; q != nil; q = q.Parent {
		if q == of {
			return true
		}
	}
	return false
}

// queueUse is what the applications of a queue, and of those below it, are doing.
type queueUse struct {
	used, pending                                                                rm.Resource
	containers, waiting, submitted, running, accepted, completed, killed, failed int64
	users                                                                        map[string]bool
}

// byQueue walks over the applications once.
func (c *call) byQueue() map[*rm.Queue]*queueUse {
	out := map[*rm.Queue]*queueUse{}
	for a := range c.view.Applications() {
		pending, waiting := c.pending(a)
		for q := c.queues().Find(a.Queue); q != nil; q = q.Parent {
			u := out[q]
			if u == nil {
				u = &queueUse{users: map[string]bool{}}
				out[q] = u
			}
			u.submitted++
			switch stateOf(a) {
			case pb.YarnApplicationStateProto_RUNNING:
				u.running++
			case pb.YarnApplicationStateProto_FINISHED:
				u.completed++
			case pb.YarnApplicationStateProto_FAILED:
				u.failed++
			case pb.YarnApplicationStateProto_KILLED:
				u.killed++
			default:
				u.accepted++
			}
			if !a.State.Final() {
				u.users[a.User] = true
			}
			u.used, u.containers = u.used.Add(a.Used), u.containers+int64(a.Live)
			u.pending, u.waiting = u.pending.Add(pending), u.waiting+int64(waiting)
		}
	}
	return out
}

func (c *call) queueInfo(q *rm.Queue, total rm.Resource, depth int, uses map[*rm.Queue]*queueUse) *pb.QueueInfoProto {
	use := uses[q]
	if use == nil {
		use = &queueUse{}
	}
	state := pb.QueueStateProto_Q_RUNNING
	if q.State == rm.QueueStopped {
		state = pb.QueueStateProto_Q_STOPPED
	}
	current := 0.0
	if q.AbsoluteCapacity > 0 {
		current = dominant(use.used, total) / q.AbsoluteCapacity
	}
	free := total.Part(q.AbsoluteMax).Sub(use.used).Max(rm.Resource{})
	out := &pb.QueueInfoProto{
		QueueName: &q.Name, QueuePath: &q.Path, Capacity: new(float32(q.Capacity)), MaximumCapacity: new(float32(q.Max)), CurrentCapacity: new(float32(current)),
		State: &state, SchedulerType: new("CapacityScheduler"), DefaultNodeLabelExpression: new(""), AccessibleNodeLabels: []string{"*"}, PreemptionDisabled: new(true), IntraQueuePreemptionDisabled: new(true),
		Weight: new(float32(-1)), MaxParallelApps: new(int32(1<<31 - 1)),
		QueueStatistics: &pb.QueueStatisticsProto{
			NumAppsSubmitted: &use.submitted, NumAppsRunning: &use.running, NumAppsPending: &use.accepted, NumAppsCompleted: &use.completed, NumAppsKilled: &use.killed,
			NumAppsFailed: &use.failed, NumActiveUsers: new(int64(len(use.users))), AvailableMemoryMB: new(free.MemoryMiB()), AllocatedMemoryMB: new(use.used.MemoryMiB()),
			PendingMemoryMB: new(use.pending.MemoryMiB()), ReservedMemoryMB: new(int64), AvailableVCores: new(int64(free.VCores)), AllocatedVCores: new(int64(use.used.VCores)),
			PendingVCores: new(int64(use.pending.VCores)), ReservedVCores: new(int64), AllocatedContainers: &use.containers, PendingContainers: &use.waiting, ReservedContainers: new(int64),
		},
		QueueConfigurationsMap: []*pb.QueueConfigurationsMapProto{{PartitionName: new(""), QueueConfigurations: &pb.QueueConfigurationsProto{
			Capacity: new(float32(q.Capacity)), AbsoluteCapacity: new(float32(q.AbsoluteCapacity)), MaxCapacity: new(float32(q.Max)), AbsoluteMaxCapacity: new(float32(q.AbsoluteMax)),
			EffectiveMinCapacity: c.resource(total.Part(q.AbsoluteCapacity)), EffectiveMaxCapacity: c.resource(total.Part(q.AbsoluteMax)),
		}}},
	}
	if depth > 0 {
		for _, child := range q.Children {
			out.ChildQueues = append(out.ChildQueues, c.queueInfo(child, total, depth-1, uses))
		}
	}
	return out
}

func (c *call) getQueueUserAcls(*pb.GetQueueUserAclsInfoRequestProto) (hrpc.Message, error) {
	out := &pb.GetQueueUserAclsInfoResponseProto{}
	for _, q := range c.queues().All {
		info := &pb.QueueUserACLInfoProto{QueueName: &q.Path}
		administers := c.Caller.Superuser || q.MayAdminister(c.Caller.User)
		if administers || q.MaySubmit(c.Caller.User) {
			info.UserAcls = append(info.UserAcls, pb.QueueACLProto_QACL_SUBMIT_APPLICATIONS)
		}
		if administers {
			info.UserAcls = append(info.UserAcls, pb.QueueACLProto_QACL_ADMINISTER_QUEUE)
		}
		out.QueueUserAcls = append(out.QueueUserAcls, info)
	}
	return out, nil
}

// resourceTypes are all types of resources, as the clients learn them.
func (c *call) resourceTypes() []*pb.ResourceTypeInfoProto {
	var out []*pb.ResourceTypeInfoProto
	for _, name := range c.names() {
		unit := ""
		if name == rm.MemoryName {
			unit = "Mi"
		}
		out = append(out, &pb.ResourceTypeInfoProto{Name: &name, Units: &unit, Type: pb.ResourceTypesProto_COUNTABLE.Enum()})
	}
	return out
}

func (c *call) getResourceTypeInfo(*pb.GetAllResourceTypeInfoRequestProto) (hrpc.Message, error) {
	return &pb.GetAllResourceTypeInfoResponseProto{ResourceTypeInfo: c.resourceTypes()}, nil
}

// labels are those that nodes carry, with the nodes.
func (c *call) labels() (names []string, nodes map[string][]*pb.NodeIdProto) {
	nodes = map[string][]*pb.NodeIdProto{}
	for n := range c.view.Nodes() {
		for _, l := range n.Labels {
			if nodes[l] == nil {
				names = append(names, l)
			}
			nodes[l] = append(nodes[l], nodeID(n))
		}
	}
	slices.Sort(names)
	return names, nodes
}

// getClusterNodeLabels answers what nodes say of themselves. None is exclusive in YARN's sense: who asks for no label may get a node
// with one.
func (c *call) getClusterNodeLabels(*pb.GetClusterNodeLabelsRequestProto) (hrpc.Message, error) {
	out := &pb.GetClusterNodeLabelsResponseProto{}
	names, _ := c.labels()
	for _, name := range names {
		out.NodeLabels = append(out.NodeLabels, &pb.NodeLabelProto{Name: &name, IsExclusive: new(bool)})
	}
	return out, nil
}

func (c *call) getNodeToLabels(*pb.GetNodesToLabelsRequestProto) (hrpc.Message, error) {
	out := &pb.GetNodesToLabelsResponseProto{}
	for n := range c.view.Nodes() {
		if len(n.Labels) > 0 {
			out.NodeToLabels = append(out.NodeToLabels, &pb.NodeIdToLabelsProto{NodeId: nodeID(n), NodeLabels: n.Labels})
		}
	}
	return out, nil
}

func (c *call) getLabelsToNodes(q *pb.GetLabelsToNodesRequestProto) (hrpc.Message, error) {
	out := &pb.GetLabelsToNodesResponseProto{}
	names, nodes := c.labels()
	for _, name := range names {
		if len(q.NodeLabels) == 0 || slices.Contains(q.NodeLabels, name) {
			out.LabelsToNodes = append(out.LabelsToNodes, &pb.LabelsToNodeIdsProto{NodeLabels: &name, NodeId: nodes[name]})
		}
	}
	return out, nil
}
