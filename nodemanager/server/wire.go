package server

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/nodemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// specOf takes a container spec off the wire.
func specOf(p *rmpb.ContainerSpec) nodemanager.Spec {
	s := nodemanager.Spec{
		ID: nodemanager.ContainerID(p.GetContainerId()), Application: nodemanager.ApplicationID(p.GetApplicationId()),
		Attempt: int(p.GetAttempt()), User: nodemanager.User(p.GetUser()), Queue: p.GetQueue(), Argv: p.GetArgv(), Env: p.GetEnv(),
		Resources: nodemanager.Resources{
			Memory: p.GetResources().GetMemory(), VCores: int(p.GetResources().GetVcores()), GPUs: p.GetGpuUuids(),
		},
		LogDir: p.GetLogDir(), Grace: time.Duration(p.GetGraceMs()) * time.Millisecond, Token: p.GetToken(), Master: p.GetApplicationMaster(),
		Secrets: p.GetSecrets(),
		Strict:  p.GetFencing() == rmpb.Fencing_FENCING_STRICT,
		Dialect: nodemanager.Dialect(p.GetDialect()), Tokens: p.GetTokens(),
	}
	for _, a := range p.GetArtifacts() {
		s.Artifacts = append(s.Artifacts, nodemanager.Artifact{
			Name: a.GetName(), URI: a.GetUri(), Kind: nodemanager.ArtifactKind(a.GetKind()), Size: a.GetSize(), SHA256: a.GetSha256(),
			Timestamp: a.GetTimestamp(), Visibility: nodemanager.Visibility(strings.ToLower(a.GetVisibility())), Content: a.GetContent(), Pattern: a.GetPattern(),
		})
	}
	return s
}

var wireStates = map[nodemanager.State]rmpb.ContainerStatus_State{
	nodemanager.New:        rmpb.ContainerStatus_LOCALIZING,
	nodemanager.Localizing: rmpb.ContainerStatus_LOCALIZING,
	nodemanager.Running:    rmpb.ContainerStatus_RUNNING,
	nodemanager.Stopping:   rmpb.ContainerStatus_STOPPING,
	nodemanager.Complete:   rmpb.ContainerStatus_COMPLETE,
}

// status puts a container on the wire; nil for one that is forgotten.
func (c *container) status() *rmpb.ContainerStatus {
	r, memory, _ := c.view()
	if r.Forgotten {
		return nil
	}
	p := &rmpb.ContainerStatus{
		ContainerId: string(c.id), State: wireStates[r.State], ExitStatus: int32(nodemanager.Invalid), StartedMs: r.Started,
		FinishedMs: r.Finished, MemoryUsed: memory, GpuUuids: r.Spec.Resources.GPUs, LogDir: logDir(&r.Spec),
	}
	for _, u := range r.GPUs {
		p.GpuUse = append(p.GpuUse, &rmpb.GPUUse{
			Uuid: u.UUID, HeldMs: u.Held.Milliseconds(), BusyMs: u.Busy.Milliseconds(), MemoryPeak: u.MemoryPeak, Energy: u.Energy,
			IdleMs: u.Idle.Milliseconds(), Idle: r.Exit == nil && u.Idle >= c.server.config.GPUIdle,
		})
	}
	p.Diagnostics = c.waiting()
	if r.Exit != nil {
		p.ExitStatus, p.Diagnostics = int32(r.Exit.Status), r.Exit.Diagnostics
	}
	return p
}

func gpuOf(d nodemanager.GPU) *rmpb.GPU {
	g := &rmpb.GPU{
		Uuid: d.UUID, Model: d.Model, Memory: d.Memory, Minor: int32(d.Minor), Pci: d.PCI, Island: d.Island, Simulated: d.Simulated,
		Health: string(d.Health), HealthReason: d.HealthReason, Profile: d.Profile, Parent: d.Parent,
	}
	if u := d.Usage; u != nil {
		g.Load = &rmpb.GPULoad{Utilization: u.Utilization, Blind: u.Blind, MemoryUsed: u.MemoryUsed, Power: u.Power, Temperature: u.Temperature}
	}
	return g
}

// maxReportText bounds the diagnostics of one report in bytes. The resource manager takes messages of 8 MiB, and a node
// whose report is larger is lost with all that runs on it; what is cut is in the log and on the node's own pages.
const maxReportText = 4 << 20

// report is everything the resource manager should know now.
func (s *Server) report(sequence uint64) *rmpb.NodeReport {
	devices := s.devices.current()
	r := &rmpb.NodeReport{
		NodeId: s.config.NodeID, Incarnation: s.store.Incarnation(), Sequence: sequence, Host: s.config.Host,
		HttpAddress: s.config.HTTP.Addr().String(),
		Capacity:    &rmpb.Resources{Memory: s.config.Memory, Vcores: int32(s.config.VCores), Other: s.config.Other.Map()},
		Rack:        s.config.Rack, Labels: s.config.Labels, Attributes: s.config.Attributes.Map(), Version: s.config.Version,
		DatanodeUuid: s.health.neighbour(), IpcAddress: s.ipcAddress(),
	}
	for _, d := range devices {
		if d.Whole() {
			r.Gpus = append(r.Gpus, gpuOf(d))
		} else {
			r.Divided = append(r.Divided, gpuOf(d))
		}
	}
	r.Capacity.Gpus = int32(len(r.Gpus))
	text := maxReportText
	for _, c := range s.list() {
		if st := c.status(); st != nil {
			if text -= len(st.Diagnostics); text < 0 {
				st.Diagnostics = nodemanager.Shorten(firstLine(st.Diagnostics), 200)
			}
			r.Containers = append(r.Containers, st)
		}
	}
	// After the containers: a device whose container is COMPLETE in this report is in this list until it is known to be free.
	occupied := s.occupied()
	r.OccupiedGpus = slices.Sorted(maps.Keys(occupied))
	r.Healthy, r.HealthReport = s.healthWith(devices, occupied)
	r.Logs = s.logsUnderway()
	r.Kept = s.kept()
	return r
}
