package server

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/gpu/fake"
	"github.com/gohops/hops/nodemanager/state"
	"github.com/gohops/hops/nodemanager/supervisor"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// The node manager is killed, its work directory is lost or another one is configured, and it starts again: the resource
// manager counts its containers as ended when it hears of the new incarnation, and grants their devices.
func TestNoDeviceIsOfferedWhileAForgottenProcessHasIt(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	start := func(work string) *exec.Cmd {
		cmd := exec.Command(self(t), "nodemanager", work, m.address)
		cmd.Stderr = testWriter{t}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	nm := start(work)
	s := spec(t, 2, "sh", "-c", `trap '' TERM; echo $$ > main.pid; "$SELF" orphan; while :; do sleep 0.02; done`)
	devices, _ := fake.Simulate(4, "x").Devices(t.Context())
	for _, d := range devices {
		s.GpuUuids = append(s.GpuUuids, d.UUID)
	}
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	main, orphan := pidIn(t, work, 2, "main.pid"), pidIn(t, work, 2, "orphan.pid")
	t.Cleanup(func() {
		if t.Failed() { // else others may have their numbers by then
			syscall.Kill(main, syscall.SIGKILL)
			syscall.Kill(orphan, syscall.SIGKILL)
		}
	})
	old := m.report().Incarnation
	nm.Process.Kill()
	nm.Wait()
	var once sync.Once
	m.set(func() {
		m.seen = func(r *rmpb.NodeReport) {
			if r.Incarnation != old {
				once.Do(func() {
					// A machine may take longer to end them than the node manager waits. Then it offers none of what they have.
					if len(r.OccupiedGpus) < len(r.Gpus) && (lives(main) || lives(orphan)) {
						t.Errorf("the first report of the new incarnation offers %d devices, and processes %d and %d still have them: %v, %v; held back: %v",
							len(r.Gpus), main, orphan, lives(main), lives(orphan), r.OccupiedGpus)
					}
				})
			}
		}
	})
	start(t.TempDir())
	m.until("a new incarnation", func(r *rmpb.NodeReport) bool { return r.Incarnation != old })
	eventually(t, "the forgotten processes end", func() bool { return !lives(main) && !lives(orphan) })
	eventually(t, "the container's supervisor has written the end down", func() bool {
		alive, _ := supervisor.Alive(filepath.Join(work, "containers", containerName(2)))
		return !alive
	})
}

// What runs in a container of ours is not forgotten, whatever it says of itself, also before the node manager has spoken to the container.
func TestAContainerNotYetSpokenToIsNotForgotten(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	n := run(t, c)
	s := spec(t, 2, "sh", "-c", `HOPS_CONTAINER_ID=`+containerName(3)+` sleep 1000 & echo $! > lies; wait`)
	m.start(s)
	liar := pidIn(t, c.Work, 2, "lies")
	eventually(t, "it lies", func() bool {
		return slices.ContainsFunc(supervisor.Carrying("HOPS_CONTAINER_ID"), func(p supervisor.Process) bool {
			return p.PID == liar && p.Get("HOPS_CONTAINER_ID") == containerName(3)
		})
	})
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	known := n.find(nodemanager.ContainerID(s.ContainerId))
	record, _, _ := known.view()
	fresh := &Server{config: n.config, log: n.log, store: n.store, containers: map[nodemanager.ContainerID]*container{}} // which has heard of it
	fresh.containers[known.id] = fresh.newContainer(&record)
	forgotten, foreign := fresh.forgottenProcesses()
	for _, p := range slices.Concat(forgotten, foreign) {
		if p.PID == liar {
			t.Errorf("it counts as a process of %s", p.Get("HOPS_CONTAINER_ID"))
		}
	}
}

// driven is the one device of drivenGPUs.
var driven = "GPU-driven-" + thisRun

// drivenGPUs are devices of a driver that says who computes on them.
type drivenGPUs struct {
	fake.Source
	mu        sync.Mutex
	processes []int
	events    chan nodemanager.GPUEvent
}

func (d *drivenGPUs) Name() string { return "nvml" }

func (d *drivenGPUs) Devices(context.Context) ([]nodemanager.GPU, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return []nodemanager.GPU{{
		UUID: driven, Model: "H100", Memory: 80 << 30, Health: nodemanager.Healthy, Usage: &nodemanager.GPUUsage{Processes: slices.Clone(d.processes)},
	}}, nil
}

func (d *drivenGPUs) Watch(ctx context.Context, report func(nodemanager.GPUEvent)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-d.events:
			report(e)
		}
	}
}

func (d *drivenGPUs) set(pids ...int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes = pids
}

func TestADeviceIsFreeWhenItsDriverSaysSo(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	source := &drivenGPUs{}
	source.set(4711)
	c.GPUs = source
	n := run(t, c)
	r := m.until("a device with a stranger's process is held back", func(r *rmpb.NodeReport) bool { return slices.Contains(r.OccupiedGpus, driven) })
	if !strings.Contains(r.HealthReport, "GPU "+driven+" is held back: process 4711") {
		t.Errorf("health: %q", r.HealthReport)
	}
	early := spec(t, 2, "true")
	early.GpuUuids = []string{driven}
	m.start(early)
	if got := m.untilState(early.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -100 || !strings.Contains(got.Diagnostics, "held back: process 4711") {
		t.Errorf("%v", got)
	}
	source.set()
	n.devices.asked <- struct{}{} // the next look, which is due within seconds
	m.until("free", func(r *rmpb.NodeReport) bool { return len(r.OccupiedGpus) == 0 })
	// A container on it: held by the container, then by its process in the driver until that is gone there too.
	holder := spec(t, 3, "sh", "-c", "sleep 100")
	holder.GpuUuids = []string{driven}
	m.start(holder)
	m.untilState(holder.ContainerId, rmpb.ContainerStatus_RUNNING)
	source.set(12)
	early1 := false
	m.set(func() {
		m.seen = func(r *rmpb.NodeReport) {
			if c := find(r, holder.ContainerId); c.GetState() == rmpb.ContainerStatus_COMPLETE && len(r.OccupiedGpus) == 0 {
				early1 = true
			}
		}
	})
	m.order(&rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: holder.ContainerId, ExitStatus: -100}}})
	m.untilState(holder.ContainerId, rmpb.ContainerStatus_COMPLETE)
	m.more(3)
	m.set(func() {
		if early1 {
			t.Error("offered while the driver shows a process of the ended container")
		}
		m.seen = nil
	})
	source.set()
	n.devices.asked <- struct{}{} // the next look, which is due within seconds
	m.until("free again", func(r *rmpb.NodeReport) bool { return len(r.OccupiedGpus) == 0 })
}

// What happened to a device is not undone by a restart of the node manager, also of one that is killed.
func TestADeviceStaysQuarantinedOverARestart(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	source := &drivenGPUs{events: make(chan nodemanager.GPUEvent)}
	start := func() *node {
		c := baseConfig(t, work, m.address)
		c.GPUs = source
		return run(t, c)
	}
	quarantined := func(r *rmpb.NodeReport) bool { return len(r.Gpus) == 1 && r.Gpus[0].Health == "QUARANTINED" }
	n := start()
	source.events <- nodemanager.GPUEvent{UUID: driven, XID: 63}
	source.events <- nodemanager.GPUEvent{UUID: driven, XID: 79}
	m.until("quarantine", quarantined)
	eventually(t, "it is written down", func() bool {
		text, _ := os.ReadFile(filepath.Join(work, "gpus.json"))
		return strings.Contains(string(text), "XID 79")
	})
	n.close(false)
	m.forget()
	n = start()
	if r := m.until("a report", func(*rmpb.NodeReport) bool { return true }); !quarantined(r) || !strings.Contains(r.Gpus[0].HealthReason, "XID 79") {
		t.Errorf("after a restart: %v", r.Gpus)
	}
	// A machine that was restarted has reset its devices, and so has whoever removes the file.
	n.close(false)
	text, err := os.ReadFile(filepath.Join(work, "gpus.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "gpus.json"), []byte(strings.Replace(string(text), state.BootID(), "another", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	m.forget()
	start()
	if r := m.until("a report", func(*rmpb.NodeReport) bool { return true }); quarantined(r) {
		t.Errorf("after a restart of the machine: %v", r.Gpus)
	}
}

func TestTheDatanodeBesideTheNodeManagerIsNamedWhenItIsKnown(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	var known atomic.Value
	known.Store("")
	c.Datanode, c.Rack = func() string { return known.Load().(string) }, "/row7/rack3"
	n := run(t, c)
	if r := m.until("a report", func(*rmpb.NodeReport) bool { return true }); r.DatanodeUuid != "" || r.Rack != "/row7/rack3" {
		t.Errorf("%v", r)
	}
	known.Store("d-n")
	n.findDatanode() // the next look at the node's health
	m.until("the datanode", func(r *rmpb.NodeReport) bool { return r.DatanodeUuid == "d-n" })
}

// A look at every process of the machine is for who has devices, or has begun lately, or knows of processes that are left.
func TestWhoHasNoDevicesSeldomLooksForForgottenProcesses(t *testing.T) {
	now := time.Now()
	long := now.Add(-time.Hour)
	for what, test := range map[string]struct {
		s      *Server
		sought time.Time
		want   bool
	}{
		"nothing to look for": {&Server{born: long}, now.Add(-5 * time.Second), false},
		"not looked for long": {&Server{born: long}, now.Add(-forgottenEvery), true},
		"begun lately":        {&Server{born: now.Add(-10 * time.Second)}, now.Add(-5 * time.Second), true},
		"devices":             {&Server{born: long, devices: deviceState{list: []nodemanager.GPU{{}}}}, now.Add(-5 * time.Second), true},
		"processes that stay": {&Server{born: long, devices: deviceState{strays: []supervisor.Process{{}}}}, now.Add(-5 * time.Second), true},
	} {
		if got := test.s.seeks(now, test.sought); got != test.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
