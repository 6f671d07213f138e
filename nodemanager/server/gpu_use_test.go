package server

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/nodemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// metered is the UUID of a meteredGPU.
var metered = "GPU-metered-" + thisRun

// meteredGPU is a device that does what the test says.
type meteredGPU struct {
	mu    sync.Mutex
	usage nodemanager.GPUUsage
}

func (d *meteredGPU) Name() string { return "nvml" }

func (d *meteredGPU) Devices(context.Context) ([]nodemanager.GPU, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	usage := d.usage
	return []nodemanager.GPU{{UUID: metered, Model: "H100", Memory: 80 << 30, Health: nodemanager.Healthy, Usage: &usage}}, nil
}

func (d *meteredGPU) Watch(ctx context.Context, _ func(nodemanager.GPUEvent)) error {
	<-ctx.Done()
	return nil
}

func (d *meteredGPU) Close() error { return nil }

func (d *meteredGPU) does(busy, joules float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.usage = nodemanager.GPUUsage{Utilization: busy, MemoryUsed: 100 << 20, Power: 250, Energy: joules, Temperature: 51}
}

// What a container does with its device is in the reports, on the node's pages and in its metrics, also after a restart of the node manager.
func TestWhatAContainerDoesWithItsDevices(t *testing.T) {
	m := newManager(t, "")
	source, work := &meteredGPU{}, t.TempDir()
	c := baseConfig(t, work, m.address)
	c.GPUs, c.GPUIdle = source, time.Nanosecond
	source.does(80, 1000)
	n := run(t, c)
	s := spec(t, 1, "sleep", "1000")
	s.GpuUuids = []string{metered}
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	use := func(what string, ok func(*rmpb.GPUUse) bool) *rmpb.GPUUse {
		var u *rmpb.GPUUse
		m.until(what, func(r *rmpb.NodeReport) bool {
			if c := find(r, s.ContainerId); c != nil && len(c.GpuUse) == 1 {
				u = c.GpuUse[0]
			}
			return u != nil && ok(u)
		})
		return u
	}
	source.does(80, 2000)
	n.devices.asked <- struct{}{}
	u := use("busy", func(u *rmpb.GPUUse) bool { return u.Energy > 0 })
	if u.Uuid != metered || u.Energy > 1000 || u.MemoryPeak != 100<<20 || u.Idle || u.BusyMs > u.HeldMs {
		t.Errorf("%v", u)
	}
	source.does(0, 3000)
	n.devices.asked <- struct{}{}
	before := use("idle", func(u *rmpb.GPUUse) bool { return u.Idle })
	_, page, _ := n.get("/ws/v1/node/containers/"+s.ContainerId, "")
	_, device, _ := n.get("/ws/v1/node/resources/yarn.io%2Fgpu", "")
	_, metrics, _ := n.get("/metrics", "")
	for text, want := range map[string][]string{
		page:   {`"gpuUse":[{"uuid":"` + metered + `","heldSeconds":`, `"peakMemoryMiB":100,"energyJoules":`, `"idleSeconds":`},
		device: {`"powerDraw":250`, `"energyJoules":3000`},
		metrics: {
			`hops_nodemanager_gpu_idle{gpu="` + metered + `"} 1`, `hops_nodemanager_gpu_utilization_ratio{gpu="` + metered + `"} 0`, `hops_nodemanager_gpu_power_watts{gpu="` + metered + `"} 250`,
			`hops_nodemanager_gpu_energy_joules_total{gpu="` + metered + `"} 3000`, `hops_nodemanager_gpu_memory_used_bytes{gpu="` + metered + `"} 1.048576e+08`,
		},
	} {
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("lacks %s: %.3000s", w, text)
			}
		}
	}
	n.close(false)
	c = baseConfig(t, work, m.address)
	c.NodeID, c.GPUs, c.GPUIdle = n.config.NodeID, source, time.Hour
	m.forget()
	n = run(t, c)
	use("what was added up before", func(u *rmpb.GPUUse) bool { return u.Energy >= before.Energy })
	source.does(0, 4000)
	n.devices.asked <- struct{}{}
	if u := use("added up since the beginning", func(u *rmpb.GPUUse) bool { return u.Energy > before.Energy }); u.HeldMs < before.HeldMs || u.Idle {
		t.Errorf("after the restart %v, before %v", u, before)
	}
	m.order(&rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: s.ContainerId, ExitStatus: -100}}})
	m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE)
}
