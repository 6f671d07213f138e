package rest

import (
	"os"

	"github.com/gohops/hops/internal/jmx"
	rm "github.com/gohops/hops/resourcemanager"
)

// beans are what tools that watch YARN read at /jmx, with the names and types of Hadoop 3.4.3. What there is nothing of here is left out.
func (a *API) beans() []jmx.Bean {
	l := a.load()
	host, _ := os.Hostname() // without one the tag is empty
	return []jmx.Bean{{Name: "Hadoop:service=ResourceManager,name=ClusterMetrics", Type: "ClusterMetrics", Attributes: jmx.Pairs(
		"tag.ClusterMetrics", "ResourceManager", "tag.Context", "yarn", "tag.Hostname", host,
		"CapabilityMB", l.total.Memory/rm.MiB, "CapabilityVirtualCores", l.total.VCores, "Capability.yarn.io/gpu", l.total.GPUs,
		"NumActiveNMs", l.nodes[rm.NodeRunning], "NumDecommissionedNMs", l.nodes[rm.NodeDecommissioned], "NumDecommissioningNMs", l.nodes[rm.NodeDecommissioning],
		"NumLostNMs", l.nodes[rm.NodeLost], "NumRebootedNMs", 0, "NumShutdownNMs", 0, "NumUnhealthyNMs", l.nodes[rm.NodeUnhealthy],
		"UtilizedMB", l.memory/rm.MiB,
	)}}
}
