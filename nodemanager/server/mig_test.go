package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gohops/hops/nodemanager"
	rm "github.com/gohops/hops/resourcemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// dividedGPUs are GPUs that an administrator divides as the test says.
type dividedGPUs struct {
	mu   sync.Mutex
	list []nodemanager.GPU
}

func (d *dividedGPUs) Name() string { return "file" }

func (d *dividedGPUs) Devices(context.Context) ([]nodemanager.GPU, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]nodemanager.GPU(nil), d.list...), nil
}

func (d *dividedGPUs) Watch(ctx context.Context, _ func(nodemanager.GPUEvent)) error {
	<-ctx.Done()
	return nil
}

func (d *dividedGPUs) Close() error { return nil }

// divide makes GPU n one in MIG mode with instances of the profiles.
func (d *dividedGPUs) divide(n int, profiles ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	parent := fmt.Sprintf("GPU-%d", n)
	var out []nodemanager.GPU
	for _, g := range d.list {
		if g.UUID != parent && g.Parent != parent {
			out = append(out, g)
		}
	}
	out = append(out, nodemanager.GPU{UUID: parent, Model: "Simulated A100", Memory: 40 << 30, Minor: n, Divided: true, Simulated: true})
	for i, p := range profiles {
		out = append(out, nodemanager.GPU{
			UUID: fmt.Sprintf("MIG-%d-%s-%d", n, p, i), Model: "Simulated A100", Memory: 5 << 30, Minor: n, Profile: p, Parent: parent, Instance: i, Simulated: true,
		})
	}
	d.list = out
}

// dividedOf is what a report says of GPUs in MIG mode and their instances.
func dividedOf(r *rmpb.NodeReport) string {
	var words []string
	for _, g := range r.Divided {
		if g.Profile == "" {
			words = append(words, g.Uuid+":")
		} else {
			words = append(words, g.Profile)
		}
		if g.Health != "HEALTHY" {
			words = append(words, g.Health)
		}
	}
	return strings.Join(words, " ")
}

// A container that is granted an instance sees that and no other device; a GPU in MIG mode is in no list of those that are granted, and what is
// divided anew is noticed.
func TestInstancesAreOfferedAndGranted(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	c := baseConfig(t, work, m.address)
	gpus := &dividedGPUs{list: []nodemanager.GPU{{UUID: "GPU-9", Model: "Simulated H100", Memory: 80 << 30, Minor: 9, Simulated: true}}}
	gpus.divide(0, "1g.5gb", "1g.5gb", "3g.20gb")
	gpus.divide(1)
	c.GPUs = gpus
	n := run(t, c)
	r := m.until("a report", func(r *rmpb.NodeReport) bool { return len(r.Divided) > 0 })
	if got, want := dividedOf(r), "GPU-0: 1g.5gb 1g.5gb 3g.20gb GPU-1:"; got != want || len(r.Gpus) != 1 || r.Capacity.Gpus != 1 {
		t.Errorf("%s and %v, want %s and GPU-9 (%v)", got, r.Gpus, want, r.Capacity)
	}
	if want := "GPU GPU-1 is in MIG mode and has no instances"; !strings.Contains(r.HealthReport, want) || strings.Contains(r.HealthReport, "GPU-0 is") {
		t.Errorf("health report %q lacks %q", r.HealthReport, want)
	}
	s := spec(t, 2, "sh", "-c", "env > seen; exec sleep 1000")
	s.GpuUuids = []string{"MIG-0-1g.5gb-1"}
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	seen := func() string {
		text, _ := os.ReadFile(filepath.Join(work, "containers", s.ContainerId, "work", "seen"))
		return string(text)
	}
	eventually(t, "its environment", func() bool {
		return strings.Contains(seen(), "\nCUDA_VISIBLE_DEVICES=MIG-0-1g.5gb-1\n") && strings.Contains(seen(), "\nNVIDIA_VISIBLE_DEVICES=MIG-0-1g.5gb-1\n")
	})

	// What another has, a GPU in MIG mode, and one of which another has a part, are refused.
	for i, uuid := range []string{"MIG-0-1g.5gb-1", "GPU-0", "MIG-none"} {
		s := spec(t, 10+i, "true")
		s.GpuUuids = []string{uuid}
		m.start(s)
		want := []string{"is held by container", "is in MIG mode", "is not on this node"}[i]
		if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); !strings.Contains(got.Diagnostics, want) {
			t.Errorf("%s: %s, want %s", uuid, got.Diagnostics, want)
		}
	}
	for page, want := range map[string]string{
		rm.MIGPrefix + "1g.5gb": "MIG-0-1g.5gb-0 MIG-0-1g.5gb-1", rm.MIGPrefix + "3g.20gb": "MIG-0-3g.20gb-2", rm.GPUName: "GPU-9",
	} {
		response, err := http.Get("http://" + c.HTTP.Addr().String() + "/ws/v1/node/resources/" + strings.ReplaceAll(page, "/", "%2F"))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		total, _, _ := strings.Cut(string(text), `"assignedGpuDevices"`)
		_, total, _ = strings.Cut(total, `"totalGpuDevices"`)
		for _, uuid := range strings.Fields(want) {
			if !strings.Contains(total, `"`+uuid+`"`) {
				t.Errorf("%s: %s lacks %s", page, text, uuid)
			}
		}
		if strings.Count(total, `"uuid"`) != len(strings.Fields(want)) {
			t.Errorf("%s: %s", page, text)
		}
	}

	// The GPU under the container is divided anew: what is gone is offered no more, and the container goes on.
	gpus.divide(0, "7g.40gb")
	gpus.divide(1, "1g.5gb")
	n.devices.asked <- struct{}{}
	r = m.until("the new layout", func(r *rmpb.NodeReport) bool {
		got := dividedOf(r)
		return got == "GPU-0: 7g.40gb GPU-1: 1g.5gb"
	})
	if got := find(r, s.ContainerId); got == nil || got.State != rmpb.ContainerStatus_RUNNING || strings.Contains(r.HealthReport, "MIG mode") {
		t.Errorf("%v, %s", got, r.HealthReport)
	}

	// An operator retires a GPU, and with it its instances.
	m.order(&rmpb.NodeOrders{Devices: []*rmpb.DeviceOrder{{Uuid: "GPU-1", Health: "RETIRED", By: "op"}}})
	r = m.until("its instances are out", func(r *rmpb.NodeReport) bool { return strings.HasSuffix(dividedOf(r), "GPU-1: RETIRED 1g.5gb RETIRED") })
	if last := r.Divided[len(r.Divided)-1]; last.HealthReason != "its GPU GPU-1: retired by op" || strings.Count(r.HealthReport, "RETIRED") != 1 {
		t.Errorf("%v, %s", last, r.HealthReport)
	}
}

// An instance of a GPU that somebody has as a whole, since before it was divided, is not started on.
func TestAPartOfWhatIsHeldIsRefused(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	gpus := &dividedGPUs{list: []nodemanager.GPU{{UUID: "GPU-0", Model: "Simulated A100", Memory: 40 << 30, Simulated: true}}}
	c.GPUs = gpus
	n := run(t, c)
	whole := spec(t, 1, "sleep", "1000")
	whole.GpuUuids = []string{"GPU-0"}
	m.start(whole)
	m.untilState(whole.ContainerId, rmpb.ContainerStatus_RUNNING)
	gpus.divide(0, "1g.5gb")
	n.devices.asked <- struct{}{}
	m.until("the instance", func(r *rmpb.NodeReport) bool { return dividedOf(r) == "GPU-0: 1g.5gb" })
	part := spec(t, 2, "true")
	part.GpuUuids = []string{"MIG-0-1g.5gb-0"}
	m.start(part)
	if got := m.untilState(part.ContainerId, rmpb.ContainerStatus_COMPLETE); !strings.Contains(got.Diagnostics, "GPU GPU-0 is held by container "+whole.ContainerId) {
		t.Errorf("%s", got.Diagnostics)
	}
}

// A quarantined GPU is tried by its instances; processes on an instance hold that back, and not its GPU.
func TestTheGPUOfInstancesIsProbedByThese(t *testing.T) {
	list := []nodemanager.GPU{
		{UUID: "GPU-0", Divided: true, Usage: &nodemanager.GPUUsage{Processes: []int{7}}},
		{UUID: "MIG-1", Parent: "GPU-0", Profile: "1g.5gb"},
		{UUID: "MIG-2", Parent: "GPU-0", Profile: "1g.5gb", Usage: &nodemanager.GPUUsage{Processes: []int{7}}},
		{UUID: "GPU-1", Divided: true},
		{UUID: "GPU-2"},
	}
	for uuid, want := range map[string]string{"GPU-0": "[MIG-1 MIG-2]", "GPU-1": "[]", "GPU-2": "[GPU-2]", "MIG-1": "[MIG-1]"} {
		if got := fmt.Sprint(partsOf(list, uuid)); got != want {
			t.Errorf("%s: %s, want %s", uuid, got, want)
		}
	}
	s := &Server{}
	s.devices.list = list
	if got := s.occupied(); len(got) != 1 || !strings.Contains(got["MIG-2"], "process 7") {
		t.Errorf("%v", got)
	}
}
