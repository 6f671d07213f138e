package server

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/nodemanager"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// The memory of a device that nobody has is at its base, or the device is held back, and after a while quarantined.
func TestMemoryThatDoesNotComeBackHoldsADevice(t *testing.T) {
	now := time.Unix(1000, 0)
	d := &deviceState{}
	g := nodemanager.GPU{UUID: "a", Memory: 80 << 30, Usage: &nodemanager.GPUUsage{}}
	for i, step := range []struct {
		after      time.Duration
		used       int64
		held, busy bool
		over, leak bool
	}{
		{0, 500 << 20, false, false, false, false},
		{time.Second, 70 << 30, true, true, false, false}, // a container computes
		{time.Second, 70 << 30, false, true, false, false},
		{time.Second, 40 << 30, false, false, true, false}, // its memory comes back
		{time.Second, 600 << 20, false, false, false, false},
		{time.Second, 70 << 30, true, true, false, false},
		{time.Second, 2 << 30, false, false, true, false}, // this does not
		{leakTime, 2 << 30, false, false, true, false},
		{1, 2 << 30, false, false, true, true},
		{time.Second, 400 << 20, false, false, false, false},
	} {
		now = now.Add(step.after)
		g.Usage = &nodemanager.GPUUsage{MemoryUsed: step.used}
		if step.busy {
			g.Usage.Processes = []int{1}
		}
		d.list = []nodemanager.GPU{g}
		d.weigh(g, step.held, now)
		why := d.leaked(now)["a"]
		if over := !d.over["a"].IsZero(); over != step.over || (why != "") != step.leak {
			t.Errorf("step %d: over %v, leaked %q", i, over, why)
		}
		if step.leak && why != "2147.5 MB of its memory are used, though no process is on it; otherwise it is 524.3 MB" && !strings.Contains(why, "though no process is on it") {
			t.Errorf("%q", why)
		}
	}
	// What was leaked before we came is no base.
	g.Usage = &nodemanager.GPUUsage{MemoryUsed: 60 << 30}
	d = &deviceState{list: []nodemanager.GPU{g}}
	if d.weigh(g, false, now); d.over["a"].IsZero() {
		t.Error("60 GiB of 80 count as what a driver needs")
	}
}

func TestAProgramProbesADevice(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	c.GPUs = &drivenGPUs{}
	c.GPUProbe = filepath.Join(t.TempDir(), "probe")
	n := run(t, c)
	for script, want := range map[string]string{
		`[ "$CUDA_VISIBLE_DEVICES" = ` + driven + ` ]`:             "",
		"echo first; echo the sum is wrong; exit 3":                "exit status 3: the sum is wrong",
		"yes | head -c 100000; echo; echo the end >&2; kill -9 $$": "signal: killed: the end",
	} {
		// Another process writes it: one that this one starts meanwhile would have the open file for a moment, and it could not be run.
		write := exec.Command("sh", "-c", `cat > "$0" && chmod 700 "$0"`, c.GPUProbe)
		write.Stdin = strings.NewReader("#!/bin/sh\n" + script + "\n")
		if out, err := write.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		err := n.probe(t.Context(), driven)
		if (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", script, err, want)
		}
	}
	if err := os.Remove(c.GPUProbe); err != nil {
		t.Fatal(err)
	}
	if err := n.probe(t.Context(), driven); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a program that is not there: %v", err)
	}
}

func TestAnOperatorJudgesADevice(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	c.GPUs = &drivenGPUs{}
	run(t, c)
	m.until("a report", func(r *rmpb.NodeReport) bool { return len(r.Gpus) == 1 && r.Gpus[0].Health == "HEALTHY" })
	m.order(&rmpb.NodeOrders{Devices: []*rmpb.DeviceOrder{{Uuid: "GPU-other", Health: "RETIRED", By: "op"}, {Uuid: driven, Health: "BROKEN", By: "op"}}})
	m.order(&rmpb.NodeOrders{Devices: []*rmpb.DeviceOrder{{Uuid: driven, Health: "RETIRED", By: "op"}}})
	m.until("it is retired", func(r *rmpb.NodeReport) bool {
		return r.Gpus[0].Health == "RETIRED" && r.Gpus[0].HealthReason == "retired by op"
	})
	m.order(&rmpb.NodeOrders{Devices: []*rmpb.DeviceOrder{{Uuid: driven, Health: "HEALTHY", By: "op"}}})
	m.until("it is back", func(r *rmpb.NodeReport) bool { return r.Gpus[0].Health == "HEALTHY" })
}
