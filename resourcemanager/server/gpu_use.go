package server

import (
	"math"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
)

// observe keeps what a node says of its devices and of what containers do with them. It is in no state: the next report says it anew.
func (n *softNode) observe(report *pb.NodeReport) {
	n.loads, n.uses, n.divided = nil, nil, dividedOf(report)
	for _, list := range [][]*pb.GPU{report.Gpus, report.Divided} {
		for _, g := range list {
			if g.Load != nil {
				if n.loads == nil {
					n.loads = make(map[string]*pb.GPULoad, len(report.Gpus)+len(report.Divided))
				}
				n.loads[g.Uuid] = g.Load
			}
		}
	}
	for _, st := range report.Containers {
		if len(st.GpuUse) == 0 {
			continue
		}
		if id, err := rm.ParseContainerID(st.ContainerId); err == nil {
			if n.uses == nil {
				n.uses = map[rm.ContainerID][]*pb.GPUUse{}
			}
			n.uses[id] = st.GpuUse
		}
	}
}

// gpuLoads puts what devices do into the words of pages.
func gpuLoads(from map[string]*pb.GPULoad) map[string]rest.GPULoad {
	if len(from) == 0 {
		return nil
	}
	out := make(map[string]rest.GPULoad, len(from))
	for uuid, l := range from {
		v := rest.GPULoad{MemoryUsed: max(0, l.MemoryUsed), Power: measured(l.Power), Temperature: measured(l.Temperature)}
		if u := measured(l.Utilization); !l.Blind {
			v.Utilization = &u
		}
		out[uuid] = v
	}
	return out
}

// gpuUses does the same for what containers did with theirs.
func gpuUses(from map[rm.ContainerID][]*pb.GPUUse) map[rm.ContainerID][]rest.GPUUse {
	if len(from) == 0 {
		return nil
	}
	out := make(map[rm.ContainerID][]rest.GPUUse, len(from))
	for id, uses := range from {
		for _, u := range uses {
			out[id] = append(out[id], rest.GPUUse{
				UUID: u.Uuid, Held: max(0, u.HeldMs), Busy: max(0, u.BusyMs), MemoryPeak: max(0, u.MemoryPeak), Energy: measured(u.Energy),
				Idle: max(0, u.IdleMs), Unused: u.Idle,
			})
		}
	}
	return out
}

// measured is a number of a node that may be anything: JSON has no infinity.
func measured(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return 0
	}
	return v
}
