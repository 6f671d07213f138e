package server

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"time"

	"github.com/gohops/hops/internal/jmx"
	"github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/namenode"
)

// beans are what tools that watch HDFS read at /jmx, with the names and types of Hadoop 3.4.3. What there is nothing of here is left
// out, and so is what names users or files, which anybody may read here.
func (s *Server) beans() []jmx.Bean {
	x, st := s.look(), s.Statistics()
	counts, nodes := &x.state.Value.counts, x.nodes
	state, fsState, safe := "standby", "Operational", s.SafeMode()
	if s.Active() {
		state = "active"
	}
	if safe != "" {
		fsState = "safeMode"
	}
	d := surveyDatanodes(nodes)
	host, _ := os.Hostname() // without one the tag is empty
	group := s.group.Status()
	load := jmx.Pairs(
		"CapacityTotal", st.Capacity, "CapacityUsed", st.Used, "CapacityRemaining", st.Remaining, "TotalLoad", d.load, "BlocksTotal", counts.Blocks,
		"FilesTotal", counts.Files+counts.Directories, "UnderReplicatedBlocks", st.UnderReplicated, "LowRedundancyBlocks", st.UnderReplicated, "PendingDeletionBlocks", st.PendingDeletion,
		"NumLiveDataNodes", d.live, "NumDeadDataNodes", d.dead, "NumDecomLiveDataNodes", d.decommissioned[true], "NumDecomDeadDataNodes", d.decommissioned[false],
		"NumInServiceLiveDataNodes", d.inService, "VolumeFailuresTotal", d.failedVolumes, "NumDecommissioningDataNodes", d.decommissioning,
		"NumInMaintenanceLiveDataNodes", d.maintained[true], "NumInMaintenanceDeadDataNodes", d.maintained[false], "NumEnteringMaintenanceDataNodes", d.entering,
	)
	out := []jmx.Bean{
		{Name: "Hadoop:service=NameNode,name=NameNodeStatus", Type: "org.apache.hadoop.hdfs.server.namenode.NameNode", Attributes: jmx.Pairs(
			"State", state, "NNRole", "NameNode", "HostAndPort", s.Address(), "SecurityEnabled", len(s.config.Offers) > 0, "SlowDisksReport", text(d.slowDisks),
		)},
		{Name: "Hadoop:service=NameNode,name=NameNodeInfo", Type: fsNamesystem, Attributes: jmx.Pairs(
			"Version", status.Version, "SoftwareVersion", status.Version, "BlockPoolId", s.BlockPool(), "ClusterId", s.ClusterID(), "Used", st.Used, "Free", st.Remaining,
			"Total", st.Capacity, "Safemode", safe, "PercentUsed", share(st.Used, st.Capacity), "BlockPoolUsedSpace", st.Used, "PercentBlockPoolUsed", share(st.Used, st.Capacity),
			"PercentRemaining", share(st.Remaining, st.Capacity), "TotalBlocks", counts.Blocks, "NumberOfMissingBlocks", st.Missing,
			"CacheCapacity", d.cacheCapacity, "CacheUsed", d.cacheUsed,
			"NumberOfMissingBlocksWithReplicationFactorOne", st.MissingReplicationOne, "HighestPriorityLowRedundancyReplicatedBlocks", st.Critical,
			"LiveNodes", text(d.liveNodes), "DeadNodes", text(d.deadNodes), "DecomNodes", text(d.decomNodes), "EnteringMaintenanceNodes", text(d.enteringNodes),
			"NodeUsage", nodeUsage(nodes), "NNStartedTimeInMillis", jmx.Started.UnixMilli(), "NumberOfSnapshottableDirs", int(counts.Snapshottable),
			"JournalTransactionInfo", text(map[string]string{"MostRecentCheckpointTxId": fmt.Sprint(group.Snapshot), "LastAppliedOrWrittenTxId": fmt.Sprint(group.Applied)}),
		)},
		{Name: "Hadoop:service=NameNode,name=FSNamesystemState", Type: fsNamesystem, Attributes: slices.Concat(load, jmx.Pairs("FSState", fsState, "NumStaleDataNodes", d.stale, "MaxObjects", int64(0),
			"SnapshotStats", text(map[string]int64{"SnapshottableDirectories": counts.Snapshottable, "Snapshots": counts.Snapshots})))},
		{Name: "Hadoop:service=NameNode,name=FSNamesystem", Type: "FSNamesystem", Attributes: slices.Concat(
			jmx.Pairs("tag.Context", "dfs", "tag.HAState", state, "tag.Hostname", host, "MissingBlocks", st.Missing, "MissingReplOneBlocks", st.MissingReplicationOne,
				"TransactionsSinceLastCheckpoint", int64(group.Applied-min(group.Snapshot, group.Applied)), "LastWrittenTransactionId", int64(group.Last)),
			load,
			jmx.Pairs("CapacityTotalGB", gigabytes(st.Capacity), "CapacityUsedGB", gigabytes(st.Used), "CapacityRemainingGB", gigabytes(st.Remaining), "CorruptBlocks", st.Corrupt,
				"NumFilesUnderConstruction", counts.OpenFiles, "NumActiveClients", counts.Leases, "StaleDataNodes", d.stale,
				"SnapshottableDirectories", int(counts.Snapshottable), "Snapshots", int(counts.Snapshots), "PendingSPSPaths", x.state.Value.tiers),
		)},
		{Name: "Hadoop:service=NameNode,name=ReplicatedBlocksState", Type: fsNamesystem, Attributes: jmx.Pairs(
			"LowRedundancyReplicatedBlocks", st.UnderReplicated-st.Groups.UnderReplicated, "CorruptReplicatedBlocks", st.Corrupt-st.Groups.Corrupt,
			"MissingReplicatedBlocks", st.Missing-st.Groups.Missing, "MissingReplicationOneBlocks", st.MissingReplicationOne,
			"PendingDeletionReplicatedBlocks", st.PendingDeletion, "TotalReplicatedBlocks", counts.Blocks-st.Groups.All,
		)},
		{Name: "Hadoop:service=NameNode,name=ECBlockGroupsState", Type: fsNamesystem, Attributes: jmx.Pairs(
			"LowRedundancyECBlockGroups", st.Groups.UnderReplicated, "CorruptECBlockGroups", st.Groups.Corrupt, "MissingECBlockGroups", st.Groups.Missing,
			"TotalECBlockGroups", st.Groups.All, "EnabledEcPolicies", x.state.Value.policies,
		)},
	}
	return append(out, s.ipc.Bean("NameNode", "ClientNamenodeProtocol", s.config.IPC.Addr()))
}

const fsNamesystem = "org.apache.hadoop.hdfs.server.namenode.FSNamesystem"

// survey is what the beans say of datanodes.
type survey struct {
	live, dead, stale, inService, decommissioning, entering int
	decommissioned, maintained                              map[bool]int // by whether they live
	load, failedVolumes                                     int
	cacheCapacity, cacheUsed                                int64

	liveNodes, deadNodes, decomNodes, enteringNodes map[string]map[string]any
	// slowDisks are those that do not answer. Of latencies nothing is known.
	slowDisks []map[string]any
}

func surveyDatanodes(nodes []namenode.NodeReport) survey {
	d := survey{
		slowDisks:      []map[string]any{},
		decommissioned: map[bool]int{}, maintained: map[bool]int{},
		liveNodes: map[string]map[string]any{}, deadNodes: map[string]map[string]any{}, decomNodes: map[string]map[string]any{}, enteringNodes: map[string]map[string]any{},
	}
	for i := range nodes {
		n := &nodes[i]
		name := net.JoinHostPort(n.Node.Host, fmt.Sprint(n.Node.TransferPort))
		contact := int64(max(time.Since(n.LastBeat), 0).Seconds())
		about := func(more map[string]any) map[string]any {
			more["xferaddr"], more["location"] = n.Node.TransferAddr(), n.Node.Rack
			return more
		}
		switch n.Node.Admin {
		case namenode.Normal:
			if n.Alive {
				d.inService++
			}
		case namenode.DecommissionInProgress:
			d.decommissioning++
			d.decomNodes[name] = about(map[string]any{"underReplicatedBlocks": n.Leaving.Blocks, "decommissionOnlyReplicas": n.Leaving.Only, "underReplicateInOpenFiles": n.Leaving.Open})
		case namenode.Decommissioned:
			d.decommissioned[n.Alive]++
		case namenode.EnteringMaintenance:
			d.entering++
			d.enteringNodes[name] = about(map[string]any{"lowRedundancyBlocks": n.Leaving.Blocks, "maintenanceOnlyReplicas": n.Leaving.Only, "lowRedundancyInOpenFiles": n.Leaving.Open})
		case namenode.InMaintenance:
			d.maintained[n.Alive]++
		}
		failed := 0
		for _, v := range n.Volumes {
			if v.Failed {
				failed++
			} else if v.Slow && n.Alive {
				d.slowDisks = append(d.slowDisks, map[string]any{"SlowDiskID": name + ":" + string(v.ID), "Latencies": map[string]float64{}})
			}
		}
		if !n.Alive {
			d.dead++
			d.deadNodes[name] = about(map[string]any{"lastContact": contact, "decommissioned": n.Node.Admin == namenode.Decommissioned, "adminState": adminWord(n.Node.Admin)})
			continue
		}
		d.live++
		d.load += n.Xceivers
		d.cacheCapacity += n.CacheCapacity
		d.cacheUsed += n.CacheUsed
		d.failedVolumes += failed
		if n.Stale {
			d.stale++
		}
		one := about(map[string]any{
			"infoAddr": net.JoinHostPort(n.Node.IP, fmt.Sprint(n.Node.HTTPPort)), "lastContact": contact, "adminState": adminWord(n.Node.Admin), "capacity": n.Capacity(), "used": n.Used(),
			"usedSpace": n.Used(), "remaining": n.Remaining(), "blockPoolUsed": n.Used(), "blockPoolUsedPercent": share(n.Used(), n.Capacity()), "numBlocks": n.Blocks, "volfails": failed,
		})
		if !n.LastReport.IsZero() {
			one["lastBlockReport"] = int64(max(time.Since(n.LastReport), 0).Minutes())
		}
		d.liveNodes[name] = one
	}
	return d
}

// adminWord is Hadoop's word of an administrative state in beans (DatanodeInfo.AdminStates).
func adminWord(a namenode.AdminState) string {
	words := [...]string{"In Service", "Decommission In Progress", "Decommissioned", "Entering Maintenance", "In Maintenance"}
	return words[min(int(a), len(words)-1)]
}

// text is a value as JSON inside a string, as Hadoop has lists and maps in beans.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers always can be
	}
	return string(b)
}

// share is a part of a whole in percent.
func share(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// gigabytes are whole GiB, as a double.
func gigabytes(n int64) float64 { return math.Round(float64(n) / (1 << 30)) }

// nodeUsage tells how unevenly live datanodes are filled.
func nodeUsage(nodes []namenode.NodeReport) string {
	var used []float64
	sum := 0.0
	for _, n := range nodes {
		if n.Alive && n.Capacity() > 0 && n.Node.Admin.InService() {
			used = append(used, share(n.Used(), n.Capacity()))
			sum += used[len(used)-1]
		}
	}
	least, median, most, deviation := 0.0, 0.0, 0.0, 0.0
	if len(used) > 0 {
		slices.Sort(used)
		least, median, most = used[0], used[len(used)/2], used[len(used)-1]
		for _, u := range used {
			deviation += (u - sum/float64(len(used))) * (u - sum/float64(len(used)))
		}
		deviation = math.Sqrt(deviation / float64(len(used)))
	}
	percent := func(x float64) string { return fmt.Sprintf("%.2f%%", x) }
	return text(map[string]map[string]string{"nodeUsage": {"min": percent(least), "median": percent(median), "max": percent(most), "stdDev": percent(deviation)}})
}
