package server

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/size"
	"github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/nodemanager"
)

// pages are those of every server. readyz is 200 while the node takes work and is in touch with the resource manager.
func (s *Server) pages() *status.Pages {
	return status.New(status.Config{
		Role: "nodemanager", Port: "node manager HTTP", Aliases: []string{"/node", "/node/node"}, Report: s.statusReport, Figures: s.figures,
	})
}

func (s *Server) statusReport() status.Report {
	healthy, notes := s.healthReport()
	lease := s.leaseHolds()
	devices, containers := s.devices.current(), s.shown()
	r := status.Report{
		ID: string(s.config.NodeID), State: "running",
		Facts: []status.Fact{
			{Name: "host", Value: s.config.Host},
			{Name: "containers", Value: strconv.Itoa(len(containers))},
			{Name: "memory, vcores", Value: fmt.Sprintf("%s, %d", size.About(s.config.Memory), s.config.VCores)},
			{Name: "notes", Value: notes},
		},
		Links: []status.Link{{Address: "/ws/v1/node/containers", Text: "containers"}, {Address: "/ws/v1/node/info", Text: "YARN's REST interface"}},
		Detail: struct {
			Healthy    bool   `json:"healthy"`
			Report     string `json:"report"`
			Lease      bool   `json:"lease"`
			Containers int    `json:"containers"`
			// Service is DECOMMISSIONING, DECOMMISSIONED, ENTERING_MAINTENANCE or IN_MAINTENANCE; absent: the node serves.
			Service string `json:"service,omitempty"`
		}{healthy, notes, lease, len(containers), s.service.Load().GetState()},
	}
	if state, note := s.leaving(); state != "" {
		r.State = state
		r.Warnings = append(r.Warnings, note)
	}
	for _, d := range devices {
		text := d.Model + ", " + string(d.Health)
		switch {
		case d.Divided:
			text = d.Model + " in MIG mode, " + string(d.Health)
		case d.Profile != "":
			text = "MIG instance " + d.Profile + " of " + d.Parent + ", " + string(d.Health)
		}
		if d.HealthReason != "" {
			text += ": " + d.HealthReason
		}
		r.Facts = append(r.Facts, status.Fact{Name: d.UUID, Value: text})
	}
	switch {
	case !healthy:
		r.State, r.Problem = "unhealthy", notes
	case !lease:
		r.State, r.Problem = "alone", "no resource manager has answered for a while"
	}
	return r
}

func (s *Server) figures(to status.Sample) {
	healthy, _ := s.healthReport()
	to.Gauge("hops_nodemanager_healthy", "1 while the node's disk can take work, and its health script finds nothing wrong.", status.Bool(healthy))
	to.Gauge("hops_nodemanager_leaving", "1 while an operator has the node leave: it gets no work.", status.Bool(s.service.Load() != nil))
	to.Gauge("hops_nodemanager_in_touch", "1 while a resource manager has answered lately.", status.Bool(s.leaseHolds()))
	states := map[nodemanager.State]int{}
	used := int64(0)
	for _, c := range s.shown() {
		record, memory, _ := c.view()
		states[record.State]++
		if record.State != nodemanager.Complete {
			used += memory
		}
	}
	for _, state := range []nodemanager.State{nodemanager.New, nodemanager.Localizing, nodemanager.Running, nodemanager.Stopping, nodemanager.Complete} { // at 0 too
		to.Gauge("hops_nodemanager_containers", "Containers by state.", float64(states[state]), "state", string(state))
	}
	to.Gauge("hops_nodemanager_memory_used_bytes", "Memory that containers use.", float64(used))
	var st unix.Statfs_t
	if unix.Statfs(s.store.Dir(), &st) == nil {
		to.Gauge("hops_nodemanager_disk_capacity_bytes", "Size of the disk of the work directory.", float64(st.Blocks)*float64(st.Bsize))
		to.Gauge("hops_nodemanager_disk_free_bytes", "What is free there.", float64(st.Bavail)*float64(st.Bsize))
		to.Gauge("hops_nodemanager_disk_reserve_bytes", "What has to be free there for the node to take work.", float64(s.config.Reserve))
	}
	to.Counter("hops_nodemanager_localizations_total", "Preparations of containers' directories.", float64(s.localized.count.Load()))
	to.Counter("hops_nodemanager_localization_seconds_total", "Time of these.", time.Duration(s.localized.nanoseconds.Load()).Seconds())
	to.Gauge("hops_nodemanager_memory_bytes", "Memory that the node offers.", float64(s.config.Memory))
	to.Gauge("hops_nodemanager_vcores", "Vcores that the node offers.", float64(s.config.VCores))
	s.gpuFigures(to)
}

func (s *Server) gpuFigures(to status.Sample) {
	devices, idle := s.devices.current(), s.idle()
	each := func(name, help string, value func(*nodemanager.GPUUsage) (float64, bool), kind func(string, string, float64, ...string)) {
		for _, d := range devices {
			if d.Usage == nil {
				continue
			}
			if v, ok := value(d.Usage); ok {
				kind("hops_nodemanager_gpu_"+name, help, v, "gpu", d.UUID)
			}
		}
	}
	for _, d := range devices {
		if d.Divided {
			continue
		}
		to.Gauge("hops_nodemanager_gpu_healthy", "1 while the GPU may be granted.", status.Bool(d.Health == nodemanager.Healthy), "gpu", d.UUID)
	}
	for _, d := range devices {
		if d.Divided {
			continue
		}
		_, does := idle[d.UUID]
		to.Gauge("hops_nodemanager_gpu_idle", "1 while a container holds the GPU and has done nothing with it for longer than nodemanager.gpu_idle.", status.Bool(does), "gpu", d.UUID)
	}
	each("utilization_ratio", "Part of the time in which a kernel ran on the GPU.", func(u *nodemanager.GPUUsage) (float64, bool) { return u.Utilization / 100, !u.Blind }, to.Gauge)
	each("memory_used_bytes", "Memory of the GPU that is in use.", func(u *nodemanager.GPUUsage) (float64, bool) { return float64(u.MemoryUsed), true }, to.Gauge)
	each("power_watts", "Power that the GPU takes.", func(u *nodemanager.GPUUsage) (float64, bool) { return u.Power, u.Power > 0 }, to.Gauge)
	each("temperature_celsius", "Temperature of the GPU.", func(u *nodemanager.GPUUsage) (float64, bool) { return u.Temperature, u.Temperature > 0 }, to.Gauge)
	each("energy_joules_total", "Energy that the GPU has spent since its driver was loaded.", func(u *nodemanager.GPUUsage) (float64, bool) { return u.Energy, u.Energy > 0 }, to.Counter)
}

// latency sums durations, for Prometheus to divide.
type latency struct{ count, nanoseconds atomic.Int64 }

func (l *latency) add(d time.Duration) {
	l.count.Add(1)
	l.nanoseconds.Add(max(0, d.Nanoseconds()))
}
