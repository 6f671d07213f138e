package gpu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/nodemanager"
)

func TestDetect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpus.yaml")
	if err := os.WriteFile(file, []byte("gpus: [{uuid: GPU-x, model: Simulated T4, memory: 16GiB}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		spec, name, line string
		n                int
	}{
		{"none", "none", "no GPUs", 0},
		{"sim:0", "sim", "no GPUs", 0},
		{"sim:3", "sim", "3 × simulated: Simulated H100 (80 GB)", 3},
		{file, "file", "1 × simulated: Simulated T4 (16 GB)", 1},
	} {
		source, line, err := Detect(test.spec, "seed")
		if err != nil {
			t.Fatal(err)
		}
		devices, err := source.Devices(t.Context())
		if err != nil || source.Name() != test.name || len(devices) != test.n || !strings.HasPrefix(line, test.line) {
			t.Errorf("%s: %s, %d devices, %q, %v", test.spec, source.Name(), len(devices), line, err)
		}
	}
	for _, bad := range []string{"sim:", "sim:x", "sim:-1", "sim:65", "h100", "/no/such/file.yaml"} {
		if _, _, err := Detect(bad, ""); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if source, line, err := Detect("auto", ""); err != nil || line == "" {
		t.Errorf("auto: %v %q %v", source, line, err)
	}
}

func TestHealthFollowsEvents(t *testing.T) {
	var m Monitor
	now := time.Unix(1000, 0)
	health := func() nodemanager.GPUHealth {
		devices := []nodemanager.GPU{{UUID: "a"}, {UUID: "b"}}
		m.Apply(devices, now)
		if devices[1].Health != nodemanager.Healthy {
			t.Errorf("the neighbour became %s", devices[1].Health)
		}
		return devices[0].Health
	}
	xid := func(n int) { m.Observe(nodemanager.GPUEvent{UUID: "a", XID: n}, now) }
	for _, step := range []struct {
		do    func()
		after time.Duration
		want  nodemanager.GPUHealth
	}{
		{func() { xid(13); xid(31); xid(43) }, 0, nodemanager.Healthy}, // the job's fault
		{func() { xid(63) }, 0, nodemanager.Suspect},
		{func() {}, 59 * time.Second, nodemanager.Suspect},
		{func() {}, time.Second, nodemanager.Healthy},
		{func() { xid(4711) }, 0, nodemanager.Suspect}, // unknown
		{func() { xid(63) }, time.Second, nodemanager.Quarantined},
		{func() { xid(63) }, 2 * time.Minute, nodemanager.Quarantined}, // does not heal by waiting
		{func() { m.Observe(nodemanager.GPUEvent{UUID: "a", Health: nodemanager.Healthy}, now) }, 0, nodemanager.Healthy},
		{func() { xid(63) }, 0, nodemanager.Suspect}, // strikes were forgotten
		{func() { xid(79) }, 0, nodemanager.Quarantined},
	} {
		now = now.Add(step.after)
		step.do()
		if got := health(); got != step.want {
			t.Fatalf("got %s, want %s", got, step.want)
		}
	}
	// A monitor that goes on from what another knew has its strikes, and times of a clock that was wrong do no harm.
	xids := func(m *Monitor, uuid string, n int, at time.Time) {
		m.Observe(nodemanager.GPUEvent{UUID: uuid, XID: n}, at)
	}
	var before, after Monitor
	xids(&before, "twice", 63, now)
	xids(&before, "twice", 63, now)
	xids(&before, "broken", 79, now)
	xids(&before, "fine", 13, now)
	xids(&before, "later", 63, now.Add(1000*time.Hour))
	after.Recall(before.Records(), false, now)
	xids(&after, "twice", 63, now.Add(window-1))
	devices := []nodemanager.GPU{{UUID: "twice"}, {UUID: "broken"}, {UUID: "fine"}, {UUID: "later"}}
	after.Apply(devices, now.Add(window-1))
	for i, want := range []nodemanager.GPUHealth{nodemanager.Quarantined, nodemanager.Quarantined, nodemanager.Healthy, nodemanager.Healthy} {
		if d := devices[i]; d.Health != want {
			t.Errorf("%s is %s, want %s", d.UUID, d.Health, want)
		}
	}
	if r := after.Records(); len(r) != 3 || r[0].UUID != "broken" || r[0].Reason != "XID 79: the device has fallen off the bus" {
		t.Errorf("%+v", r)
	}
	for _, n := range []int{48, 79, 94, 95} { // fenced within one report
		if class, _ := Classify(n); class != Hardware {
			t.Errorf("XID %d is %v", n, class)
		}
	}
}

// A story of one device, told by what happens, how long after the event before, and what it is then.
func TestAQuarantinedDeviceComesBackByProbing(t *testing.T) {
	good, bad := error(nil), errors.New("it computes nonsense")
	type event struct {
		after time.Duration
		do    string
		want  nodemanager.GPUHealth
	}
	for name, story := range map[string][]event{
		"strikes, rest, a good probe": {
			{0, "transient", nodemanager.Suspect},
			{time.Second, "transient", nodemanager.Suspect},
			{time.Second, "transient", nodemanager.Quarantined},
			{rest - 1, "due", nodemanager.Quarantined},
			{1, "due", nodemanager.Probing},
			{time.Minute, "good", nodemanager.Healthy},
			{time.Second, "transient", nodemanager.Suspect}, // strikes are forgotten
		},
		"it has not rested while it errs or computes": {
			{0, "third", nodemanager.Quarantined},
			{rest - 1, "transient", nodemanager.Quarantined},
			{rest - 1, "busy", nodemanager.Quarantined},
			{rest - 1, "due", nodemanager.Quarantined},
			{1, "due", nodemanager.Probing},
		},
		"hardware errors wait for a reset that the driver speaks of": {
			{0, "hardware", nodemanager.Quarantined},
			{1000 * time.Hour, "due", nodemanager.Quarantined},
			{0, "told", nodemanager.Probing},
			{0, "good", nodemanager.Healthy},
		},
		"what fails the probe three times in a week is retired": {
			{0, "third", nodemanager.Quarantined},
			{rest, "due", nodemanager.Probing},
			{0, "bad", nodemanager.Quarantined},
			{rest, "due", nodemanager.Probing},
			{0, "bad", nodemanager.Retired},
			{1000 * time.Hour, "told", nodemanager.Retired},
			{0, "hardware", nodemanager.Retired},
			{0, "returned", nodemanager.Healthy},
			{0, "hardware", nodemanager.Quarantined},
		},
		"three times in more than a week are not": {
			{0, "third", nodemanager.Quarantined},
			{rest, "due", nodemanager.Probing},
			{0, "good", nodemanager.Healthy},
			{term / 2, "third", nodemanager.Quarantined},
			{rest, "due", nodemanager.Probing},
			{0, "good", nodemanager.Healthy},
			{term, "third", nodemanager.Quarantined},
		},
		"an error while it is probed": {
			{0, "third", nodemanager.Quarantined}, {rest, "due", nodemanager.Probing}, {0, "transient", nodemanager.Quarantined}, {0, "good", nodemanager.Quarantined},
		},
		"the driver's own view, which counts for no retirement": {
			{0, "sick", nodemanager.Quarantined},
			{time.Hour, "sick", nodemanager.Quarantined},
			{quiet - 1, "told", nodemanager.Quarantined},
			{1, "told", nodemanager.Probing},
			{0, "good", nodemanager.Healthy},
			{0, "sick", nodemanager.Quarantined},
			{quiet, "told", nodemanager.Probing},
			{0, "good", nodemanager.Healthy},
			{0, "sick", nodemanager.Quarantined},
			{quiet, "told", nodemanager.Probing},
			{0, "good", nodemanager.Healthy},
		},
		"broken memory": {{0, "worn", nodemanager.Retired}, {time.Hour, "told", nodemanager.Retired}},
		"a restart of the machine": {
			{0, "hardware", nodemanager.Quarantined},
			{0, "restart", nodemanager.Healthy},
			{0, "hardware", nodemanager.Quarantined},
			{0, "again", nodemanager.Quarantined},
			{0, "restart", nodemanager.Healthy},
			{0, "hardware", nodemanager.Retired},
			{0, "restart", nodemanager.Retired},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var m Monitor
			now := time.Unix(1000, 0)
			xid := func(n int) { m.Observe(nodemanager.GPUEvent{UUID: "a", XID: n}, now) }
			for i, e := range story {
				now = now.Add(e.after)
				d := nodemanager.GPU{UUID: "a", Health: nodemanager.Healthy, Usage: &nodemanager.GPUUsage{}}
				switch e.do {
				case "transient":
					xid(63)
				case "third":
					for range strikes {
						xid(63)
					}
				case "hardware":
					xid(79)
				case "busy":
					d.Usage.Processes = []int{1}
				case "told":
					d.Recovers = true
				case "sick":
					d.Health, d.HealthReason, d.Recovers = nodemanager.Quarantined, "the driver asks for a reset", true
				case "worn":
					d.Health = nodemanager.Retired
				case "good":
					m.Probed("a", good, now)
				case "bad":
					m.Probed("a", bad, now)
				case "returned":
					m.Observe(nodemanager.GPUEvent{UUID: "a", Health: nodemanager.Healthy}, now)
				case "restart", "again":
					records := m.Records()
					m = Monitor{}
					m.Recall(records, e.do == "restart", now)
				}
				list := []nodemanager.GPU{d}
				m.Look(list, now)
				if e.do != "restart" && e.do != "again" {
					m.Due(list, now)
				}
				m.Apply(list, now)
				if list[0].Health != e.want {
					t.Fatalf("event %d, %s: %s (%s), want %s", i, e.do, list[0].Health, list[0].HealthReason, e.want)
				}
			}
		})
	}
}
