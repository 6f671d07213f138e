package rest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/internal/security"
	rm "github.com/gohops/hops/resourcemanager"
)

// yarnRoutes are YARN's.
var yarnRoutes = []Route{
	{Method: "GET", Path: "/ws/v1/cluster", Right: security.Anyone, handle: (*request).info},
	{Method: "GET", Path: "/ws/v1/cluster/{$}", Right: security.Anyone, handle: (*request).info},
	{Method: "GET", Path: "/ws/v1/cluster/info", Right: security.Anyone, handle: (*request).info},
	{Method: "GET", Path: "/ws/v1/cluster/metrics", Right: security.Anyone, handle: (*request).metrics},
	{Method: "GET", Path: "/ws/v1/cluster/scheduler", Right: security.Anyone, handle: (*request).scheduler},
	{Method: "GET", Path: "/ws/v1/cluster/nodes", Right: security.Anyone, handle: (*request).nodes},
	{Method: "GET", Path: "/ws/v1/cluster/nodes/{node}", Right: security.Anyone, handle: (*request).node},
	{Method: "GET", Path: "/ws/v1/cluster/apps", Right: security.Anyone, handle: (*request).apps},
	{Method: "POST", Path: "/ws/v1/cluster/apps", Right: security.Named, handle: (*request).submitYARN},
	{Method: "POST", Path: "/ws/v1/cluster/apps/new-application", Right: security.Named, handle: (*request).newApplication},
	{Method: "GET", Path: "/ws/v1/cluster/apps/{app}", Right: security.Anyone, handle: (*request).oneApp},
	{Method: "GET", Path: "/ws/v1/cluster/apps/{app}/state", Right: security.Anyone, handle: (*request).appState},
	{Method: "PUT", Path: "/ws/v1/cluster/apps/{app}/state", Right: security.Owner, handle: (*request).setAppState},
	{Method: "POST", Path: "/ws/v1/cluster/containers/{containerid}/signal/{command}", Right: security.Owner, handle: (*request).signalContainer},
	{Method: "GET", Path: "/ws/v1/cluster/apps/{app}/queue", Right: security.Anyone, handle: (*request).appQueue},
	{Method: "PUT", Path: "/ws/v1/cluster/apps/{app}/queue", Right: security.Owner, handle: (*request).setAppQueue, act: "move appid"},
	{Method: "GET", Path: "/ws/v1/cluster/apps/{app}/priority", Right: security.Anyone, handle: (*request).appPriority},
	{Method: "PUT", Path: "/ws/v1/cluster/apps/{app}/priority", Right: security.Owner, handle: (*request).setAppPriority, act: "change priority of appid"},
	{Method: "GET", Path: "/ws/v1/cluster/apps/{app}/timeouts", Right: security.Anyone, handle: (*request).appTimeouts},
	{Method: "GET", Path: "/ws/v1/cluster/apps/{app}/timeouts/{type}", Right: security.Anyone, handle: (*request).appTimeout},
	{Method: "PUT", Path: "/ws/v1/cluster/apps/{app}/timeout", Right: security.Owner, handle: (*request).setAppTimeout, act: "change timeout of app"},
	{Method: "GET", Path: "/ws/v1/cluster/userinfo", Right: security.Anyone, handle: (*request).userInfo},
	{Method: "GET", Path: "/ws/v1/cluster/scheduler-overview", Right: security.Anyone, handle: (*request).schedulerOverview},
	{Method: "GET", Path: "/ws/v1/cluster/appstatistics", Right: security.Anyone, handle: (*request).appStatistics},
	{Method: "GET", Path: "/ws/v1/cluster/scheduler/activities", Right: security.Anyone, handle: (*request).activities},
	{Method: "GET", Path: "/ws/v1/cluster/scheduler/bulk-activities", Right: security.Anyone, handle: (*request).bulkActivities},
	{Method: "GET", Path: "/ws/v1/cluster/scheduler/app-activities/{app}", Right: security.Anyone, handle: (*request).appActivities},
	{Method: "GET", Path: "/ws/v1/cluster/get-node-labels", Right: security.Anyone, handle: (*request).nodeLabels},
	{Method: "GET", Path: "/ws/v1/cluster/get-rm-node-labels", Right: security.Anyone, handle: (*request).rmNodeLabels},
	{Method: "GET", Path: "/ws/v1/cluster/get-node-to-labels", Right: security.Anyone, handle: (*request).nodeToLabels},
	{Method: "GET", Path: "/ws/v1/cluster/label-mappings", Right: security.Anyone, handle: (*request).labelMappings},
	{Method: "GET", Path: "/ws/v1/cluster/nodes/{node}/get-labels", Right: security.Anyone, handle: (*request).labelsOfNode},
	{Method: "POST", Path: "/ws/v1/cluster/add-node-labels", Right: security.Named, handle: (*request).addLabels},
	{Method: "POST", Path: "/ws/v1/cluster/remove-node-labels", Right: security.Named, handle: (*request).removeLabels},
	{Method: "POST", Path: "/ws/v1/cluster/replace-node-to-labels", Right: security.Named, handle: (*request).replaceLabels},
	{Method: "POST", Path: "/ws/v1/cluster/nodes/{node}/replace-labels", Right: security.Named, handle: (*request).replaceLabelsOfNode},
	{Method: "POST", Path: "/ws/v1/cluster/nodes/{node}/resource", Right: security.Superuser, handle: (*request).yarnResize, admin: "updateNodeResource"},
	{Method: "POST", Path: "/ws/v1/cluster/delegation-token", Right: security.Named, handle: (*request).noDelegationToken},
	{Method: "DELETE", Path: "/ws/v1/cluster/delegation-token", Right: security.Named, handle: (*request).noDelegationToken},
	{Method: "POST", Path: "/ws/v1/cluster/delegation-token/expiration", Right: security.Named, handle: (*request).noDelegationToken},
	{Method: "POST", Path: "/ws/v1/cluster/reservation/new-reservation", Right: security.Named, handle: (*request).newReservation},
	{Method: "POST", Path: "/ws/v1/cluster/reservation/submit", Right: security.Named, handle: (*request).submitReservation},
	{Method: "POST", Path: "/ws/v1/cluster/reservation/update", Right: security.Named, handle: (*request).changeReservation},
	{Method: "POST", Path: "/ws/v1/cluster/reservation/delete", Right: security.Named, handle: (*request).changeReservation},
	{Method: "GET", Path: "/ws/v1/cluster/reservation/list", Right: security.Anyone, handle: (*request).listReservations},
	{Method: "GET", Path: "/logLevel", Right: security.Anyone, handle: (*request).logLevel, each: true},
	{Method: "GET", Path: "/conf", Right: security.Anyone, handle: (*request).conf, each: true},
	{Method: "GET", Path: "/ws/v1/cluster/apps/{app}/appattempts", Right: security.Anyone, handle: (*request).attempts},
	{Method: "GET", Path: "/ws/v1/cluster/apps/{app}/appattempts/{attempt}", Right: security.Anyone, handle: (*request).attempt},
	{Method: "GET", Path: "/ws/v1/cluster/apps/{app}/appattempts/{attempt}/containers", Right: security.Anyone, handle: (*request).containers},
	{Method: "GET", Path: "/ws/v1/cluster/apps/{app}/appattempts/{attempt}/containers/{container}", Right: security.Anyone, handle: (*request).container},
}

// version is what YARN's clients are told that they talk to.
const version = "3.4.1"

type clusterInfo struct {
	ID           int64  `json:"id"`
	StartedOn    int64  `json:"startedOn"`
	State        string `json:"state"`
	HAState      string `json:"haState"`
	Store        string `json:"rmStateStoreName"`
	Version      string `json:"resourceManagerVersion"`
	Build        string `json:"resourceManagerBuildVersion"`
	BuiltOn      string `json:"resourceManagerVersionBuiltOn"`
	Hadoop       string `json:"hadoopVersion"`
	HadoopBuild  string `json:"hadoopBuildVersion"`
	HadoopBuilt  string `json:"hadoopVersionBuiltOn"`
	ZooKeeperSay string `json:"haZooKeeperConnectionState"`
}

func (q *request) info() {
	q.answer("clusterInfo", jersey.Natural, clusterInfo{
		ID: q.view.Cluster(), StartedOn: q.Cluster.Started().UnixMilli(), State: "STARTED", HAState: "ACTIVE",
		Store: "hops.raft", Version: version, Build: version + " of hops", BuiltOn: "", Hadoop: version, HadoopBuild: version + " of hops",
		ZooKeeperSay: "Could not find leader elector. Verify both HA and automatic failover are enabled.",
	})
}

type clusterMetrics struct {
	AppsSubmitted                  int          `json:"appsSubmitted"`
	AppsCompleted                  int          `json:"appsCompleted"`
	AppsPending                    int          `json:"appsPending"`
	AppsRunning                    int          `json:"appsRunning"`
	AppsFailed                     int          `json:"appsFailed"`
	AppsKilled                     int          `json:"appsKilled"`
	ReservedMB                     int64        `json:"reservedMB"`
	AvailableMB                    int64        `json:"availableMB"`
	AllocatedMB                    int64        `json:"allocatedMB"`
	PendingMB                      int64        `json:"pendingMB"`
	ReservedVirtualCores           int          `json:"reservedVirtualCores"`
	AvailableVirtualCores          int          `json:"availableVirtualCores"`
	AllocatedVirtualCores          int          `json:"allocatedVirtualCores"`
	PendingVirtualCores            int          `json:"pendingVirtualCores"`
	ContainersAllocated            int          `json:"containersAllocated"`
	ContainersReserved             int          `json:"containersReserved"`
	ContainersPending              int          `json:"containersPending"`
	TotalMB                        int64        `json:"totalMB"`
	UtilizedMB                     int64        `json:"utilizedMB"`
	TotalVirtualCores              int          `json:"totalVirtualCores"`
	UtilizedVirtualCores           int          `json:"utilizedVirtualCores"`
	UtilizedMBPercent              int          `json:"utilizedMBPercent"`
	UtilizedVirtualCoresPercent    int          `json:"utilizedVirtualCoresPercent"`
	RMSchedulerBusyPercent         int          `json:"rmSchedulerBusyPercent"`
	TotalNodes                     int          `json:"totalNodes"`
	LostNodes                      int          `json:"lostNodes"`
	UnhealthyNodes                 int          `json:"unhealthyNodes"`
	DecommissioningNodes           int          `json:"decommissioningNodes"`
	DecommissionedNodes            int          `json:"decommissionedNodes"`
	RebootedNodes                  int          `json:"rebootedNodes"`
	ActiveNodes                    int          `json:"activeNodes"`
	ShutdownNodes                  int          `json:"shutdownNodes"`
	ContainerAssignedPerSecond     int          `json:"containerAssignedPerSecond"`
	TotalUsedAcrossPartition       resourceInfo `json:"totalUsedResourcesAcrossPartition"`
	TotalClusterAcrossPartition    resourceInfo `json:"totalClusterResourcesAcrossPartition"`
	TotalReservedAcrossPartition   resourceInfo `json:"totalReservedResourcesAcrossPartition"`
	TotalContainersAcrossPartition int          `json:"totalAllocatedContainersAcrossPartition"`
	CrossPartitionMetricsAvailable bool         `json:"crossPartitionMetricsAvailable"`
	RMEventQueueSize               int          `json:"rmEventQueueSize"`
	SchedulerEventQueueSize        int          `json:"schedulerEventQueueSize"`
}

// pending sums what an application waits for.
func (q *request) pending(a *rm.Application) (rm.Resource, int) {
	sum, n := rm.Resource{}, 0
	if a.State.Final() {
		return sum, 0
	}
	if a.WantsMaster() {
		sum, n = a.Master, 1
	}
	for _, ask := range q.view.Asks(a.ID) {
		sum, n = sum.Add(ask.Resource.Times(ask.Count)), n+ask.Count
	}
	return sum, n
}

// totals sums the nodes that are not lost.
func (q *request) totals() (total, used rm.Resource, containers int) {
	for n := range q.view.Nodes() {
		switch {
		case n.State == rm.NodeLost:
		case n.Wish != nil: // the cluster has no more of it than is in use
			total, used, containers = total.Add(n.Used), used.Add(n.Used), containers+n.Live
		default:
			total, used, containers = total.Add(n.Capacity), used.Add(n.Used), containers+n.Live
		}
	}
	return total, used, containers
}

func (q *request) metrics() {
	m := clusterMetrics{CrossPartitionMetricsAvailable: true}
	total, used, containers := q.totals()
	for n := range q.view.Nodes() {
		switch n.Shown() {
		case rm.NodeLost:
			m.LostNodes++
			continue
		case rm.NodeDecommissioned:
			m.DecommissionedNodes++
			continue
		case rm.NodeDecommissioning:
			m.DecommissioningNodes++
		case rm.NodeUnhealthy:
			m.UnhealthyNodes++
		default:
			m.ActiveNodes++
		}
		for _, b := range q.Cluster.Liveness(n.ID).Memory {
			m.UtilizedMB += b / rm.MiB
		}
	}
	m.TotalNodes = m.ActiveNodes + m.UnhealthyNodes + m.DecommissioningNodes
	var pending rm.Resource
	for a := range q.view.Applications() {
		m.AppsSubmitted++
		switch yarnState(a) {
		case rm.StateAccepted:
			m.AppsPending++
		case rm.StateRunning:
			m.AppsRunning++
		case rm.StateFinished:
			m.AppsCompleted++
		case rm.StateFailed:
			m.AppsFailed++
		case rm.StateKilled:
			m.AppsKilled++
		}
		r, n := q.pending(a)
		pending, m.ContainersPending = pending.Add(r), m.ContainersPending+n
	}
	m.AvailableMB, m.AllocatedMB, m.PendingMB, m.TotalMB = total.Sub(used).MemoryMiB(), used.MemoryMiB(), pending.MemoryMiB(), total.MemoryMiB()
	m.AvailableVirtualCores, m.AllocatedVirtualCores = total.VCores-used.VCores, used.VCores
	m.PendingVirtualCores, m.TotalVirtualCores = pending.VCores, total.VCores
	m.ContainersAllocated, m.TotalContainersAcrossPartition = containers, containers
	if m.TotalMB > 0 {
		m.UtilizedMBPercent = int(100 * m.UtilizedMB / m.TotalMB)
	}
	m.TotalUsedAcrossPartition, m.TotalClusterAcrossPartition = resource(used), resource(total)
	m.TotalReservedAcrossPartition = resource(rm.Resource{})
	q.answer("clusterMetrics", jersey.Natural, m)
}

type nodeInfo struct {
	Rack                  string         `json:"rack"`
	State                 string         `json:"state"`
	ID                    string         `json:"id"`
	Host                  string         `json:"nodeHostName"`
	HTTP                  string         `json:"nodeHTTPAddress"`
	LastHealthUpdate      int64          `json:"lastHealthUpdate"`
	Version               string         `json:"version"`
	HealthReport          string         `json:"healthReport"`
	Containers            int            `json:"numContainers"`
	UsedMB                int64          `json:"usedMemoryMB"`
	AvailMB               int64          `json:"availMemoryMB"`
	UsedVCores            int            `json:"usedVirtualCores"`
	AvailVCores           int            `json:"availableVirtualCores"`
	MemUtilization        float          `json:"memUtilization"`
	CPUUtilization        float          `json:"cpuUtilization"`
	RunningOpportunistic  int            `json:"numRunningOpportContainers"`
	UsedOpportunisticGB   int            `json:"usedMemoryOpportGB"`
	UsedOpportunisticCore int            `json:"usedVirtualCoresOpport"`
	Queued                int            `json:"numQueuedContainers"`
	Labels                []string       `json:"nodeLabels,omitempty"`
	AllocationTags        struct{}       `json:"allocationTags"`
	Utilization           utilization    `json:"resourceUtilization"`
	Used                  resourceInfo   `json:"usedResource"`
	Available             resourceInfo   `json:"availableResource"`
	Attributes            nodeAttributes `json:"nodeAttributesInfo"`
	Total                 resourceInfo   `json:"totalResource"`
}

type nodeAttributes struct {
	List []nodeAttribute `json:"nodeAttributeInfo,omitempty"`
}

type nodeAttribute struct {
	Prefix string `json:"prefix"`
	Name   string `json:"name"`
	Type   string `json:"type"`
	Value  string `json:"value"`
}

type utilization struct {
	NodePhysicalMB       int64 `json:"nodePhysicalMemoryMB"`
	NodeVirtualMB        int64 `json:"nodeVirtualMemoryMB"`
	NodeCPU              float `json:"nodeCPUUsage"`
	ContainersPhysicalMB int64 `json:"aggregatedContainersPhysicalMemoryMB"`
	ContainersVirtualMB  int64 `json:"aggregatedContainersVirtualMemoryMB"`
	ContainersCPU        float `json:"containersCPUUsage"`
}

func (q *request) nodeInfo(n *rm.Node) nodeInfo {
	live := q.Cluster.Liveness(n.ID)
	total := n.Capacity
	if n.Wish != nil { // as in YARN: nothing is free on a node that leaves
		total = n.Used
	}
	out := nodeInfo{
		Rack: n.Rack, State: string(n.Shown()), ID: string(n.ID), Host: n.Host, HTTP: n.HTTP, Version: n.Version,
		HealthReport: healthOf(n), Containers: n.Live, UsedMB: n.Used.MemoryMiB(), AvailMB: total.Sub(n.Used).MemoryMiB(),
		UsedVCores: n.Used.VCores, AvailVCores: total.VCores - n.Used.VCores, Labels: n.Labels,
		Used: resource(n.Used), Available: resource(total.Sub(n.Used)), Total: resource(total),
	}
	if !live.Heard.IsZero() {
		out.LastHealthUpdate = live.Heard.UnixMilli()
	}
	for _, b := range live.Memory {
		out.Utilization.ContainersPhysicalMB += b / rm.MiB
	}
	if m := n.Capacity.MemoryMiB(); m > 0 {
		out.MemUtilization = float(100 * float64(out.Utilization.ContainersPhysicalMB) / float64(m))
	}
	for name, value := range n.Attributes.All() {
		prefix, own := rm.YARNAttribute(name)
		out.Attributes.List = append(out.Attributes.List, nodeAttribute{prefix, own, "STRING", value})
	}
	if n.State == rm.NodeLost {
		out.HTTP = ""
	}
	return out
}

// healthOf is what a node says of its health, behind what an operator wants of it.
func healthOf(n *rm.Node) string {
	why := n.Why()
	if why != "" && n.HealthReport != "" {
		why += "; "
	}
	return why + n.HealthReport
}

// nodeStates are the words that a filter may use.
var nodeStates = []string{"NEW", "RUNNING", "UNHEALTHY", "DECOMMISSIONED", "LOST", "REBOOTED", "DECOMMISSIONING", "SHUTDOWN"}

func (q *request) nodes() {
	var want []string
	for _, s := range q.list("states") {
		up := strings.ToUpper(s)
		if !slices.Contains(nodeStates, up) {
			q.illegalArgument("No enum constant org.apache.hadoop.yarn.api.records.NodeState." + up)
			return
		}
		want = append(want, up)
	}
	streamYARN(q, jersey.Natural, "nodes", "node", func(yield func(nodeInfo) bool) {
		for n := range q.view.Nodes() {
			if (len(want) == 0 || slices.Contains(want, string(n.Shown()))) && !yield(q.nodeInfo(n)) {
				return
			}
		}
	})
}

func (q *request) node() {
	id := q.r.PathValue("node")
	if !strings.Contains(id, ":") {
		q.illegalArgument(fmt.Sprintf("Invalid NodeId [%s]. Expected host:port", id))
		return
	}
	n := q.view.Node(rm.NodeID(id))
	if n == nil {
		q.notFoundYARN("nodeId, " + id + ", is not found")
		return
	}
	q.answer("node", jersey.Natural, q.nodeInfo(n))
}

func (q *request) notFoundYARN(message string) {
	jersey.NotFound(q.w, q.r, "java.lang.Exception: "+message)
}

// list reads a parameter that may be repeated and comma-separated.
func (q *request) list(name string) []string {
	var out []string
	for _, v := range q.r.URL.Query()[name] {
		for _, s := range strings.Split(v, ",") {
			if s = strings.TrimSpace(s); s != "" {
				out = append(out, s)
			}
		}
	}
	return out
}
