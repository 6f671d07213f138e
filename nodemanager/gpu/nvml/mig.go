//go:build cgo && linux

package nvml

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gohops/hops/nodemanager"
)

// instance is what we use of a MIG device.
type instance interface {
	GetUUID() (string, nvml.Return)
	GetName() (string, nvml.Return)
	GetMemoryInfo() (nvml.Memory, nvml.Return)
	GetAttributes() (nvml.DeviceAttributes, nvml.Return)
	GetGpuInstanceId() (int, nvml.Return)
	GetComputeInstanceId() (int, nvml.Return)
	GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return)
}

var _ instance = nvml.Device(nil)

// divide marks a GPU that is in MIG mode and lists the instances that it has now. What ends while they are listed is left out.
func (s *Source) divide(h device, d *nodemanager.GPU) ([]nodemanager.GPU, error) {
	mode, _, ret := h.GetMigMode()
	if ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return nil, nil // it has no such mode, or is not in it
	}
	d.Divided = true
	most, ret := h.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, s.failure("count MIG instances of "+d.UUID, ret)
	}
	var out []nodemanager.GPU
	for i := range most {
		x, ret := h.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT { // indexes have gaps
			continue
		}
		var g nodemanager.GPU
		if ret == nvml.SUCCESS {
			g, ret = part(x, h, d)
		}
		switch ret {
		case nvml.SUCCESS:
			out = append(out, g)
		case nvml.ERROR_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT:
		default:
			return nil, s.failure(fmt.Sprintf("MIG instance %d of %s", i, d.UUID), ret)
		}
	}
	slices.SortStableFunc(out, func(a, b nodemanager.GPU) int {
		if a.Instance != b.Instance {
			return a.Instance - b.Instance
		}
		return a.Compute - b.Compute
	})
	return out, nil
}

// part describes a MIG instance of a GPU. It has no load of its own but memory and processes.
func part(x instance, h device, d *nodemanager.GPU) (nodemanager.GPU, nvml.Return) {
	g := nodemanager.GPU{Model: d.Model, Minor: d.Minor, PCI: d.PCI, Parent: d.UUID, Recovers: d.Recovers, Health: nodemanager.Healthy}
	var ret nvml.Return
	if g.UUID, ret = x.GetUUID(); ret != nvml.SUCCESS {
		return g, ret
	}
	if g.Instance, ret = x.GetGpuInstanceId(); ret != nvml.SUCCESS {
		return g, ret
	}
	if g.Compute, ret = x.GetComputeInstanceId(); ret != nvml.SUCCESS {
		return g, ret
	}
	memory, ret := x.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return g, ret
	}
	g.Memory = int64(memory.Total)
	name, ret := x.GetName()
	if _, word, ok := strings.Cut(name, " MIG "); ok && ret == nvml.SUCCESS {
		g.Profile = strings.TrimSpace(word)
	} else { // a driver whose names do not say
		a, ret := x.GetAttributes()
		if ret != nvml.SUCCESS {
			return g, ret
		}
		g.Profile = profile(a, d.Memory)
	}
	g.Usage = &nodemanager.GPUUsage{MemoryUsed: int64(memory.Used), Blind: true}
	if processes, ret := x.GetComputeRunningProcesses(); ret == nvml.SUCCESS {
		for _, p := range processes {
			g.Usage.Processes = append(g.Usage.Processes, int(p.Pid))
		}
	} else if processes, ret := h.GetComputeRunningProcesses(); ret == nvml.SUCCESS {
		for _, p := range processes {
			if int(p.GpuInstanceId) == g.Instance && int(p.ComputeInstanceId) == g.Compute {
				g.Usage.Processes = append(g.Usage.Processes, int(p.Pid))
			}
		}
	}
	return g, nvml.SUCCESS
}

// profile is the name of an instance's profile as the driver makes it: compute slices where they are not all of the GPU instance's, slices of
// the GPU instance, and its memory: so many eighths of the GPU's, in whole GB.
func profile(a nvml.DeviceAttributes, memory int64) string {
	eighths := math.Ceil(float64(a.MemorySizeMB<<20) / float64(max(memory, 1)) * 8)
	total := float64((memory + 1<<30 - 1) >> 30)
	name := fmt.Sprintf("%dg.%dgb", a.GpuInstanceSliceCount, int(math.Round(eighths/8*total)))
	if a.ComputeInstanceSliceCount != a.GpuInstanceSliceCount {
		name = fmt.Sprintf("%dc.%s", a.ComputeInstanceSliceCount, name)
	}
	return name
}
