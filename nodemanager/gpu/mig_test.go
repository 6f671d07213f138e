package gpu

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/nodemanager"
)

// migGPUs are one GPU in MIG mode with two instances, one without, and a whole one.
func migGPUs() []nodemanager.GPU {
	return []nodemanager.GPU{
		{UUID: "GPU-a", Model: "A100", Memory: 40 << 30, Divided: true, Recovers: true},
		{UUID: "MIG-1", Model: "A100", Profile: "3g.20gb", Parent: "GPU-a", Memory: 20 << 30, Recovers: true, Instance: 1},
		{UUID: "MIG-2", Model: "A100", Profile: "3g.20gb", Parent: "GPU-a", Memory: 20 << 30, Recovers: true, Instance: 2},
		{UUID: "GPU-b", Model: "A100", Memory: 40 << 30, Minor: 1, Divided: true},
		{UUID: "GPU-c", Model: "A100", Memory: 40 << 30, Minor: 2},
	}
}

func healths(list []nodemanager.GPU) string {
	var out []string
	for _, g := range list {
		out = append(out, string(g.Health))
	}
	return strings.Join(out, " ")
}

func TestAGPUTakesItsInstancesWithIt(t *testing.T) {
	var m Monitor
	now := time.Unix(1000, 0)
	look := func() []nodemanager.GPU {
		list := migGPUs()
		m.Apply(list, now)
		return list
	}
	m.Observe(nodemanager.GPUEvent{UUID: "GPU-a", XID: 48}, now)
	list := look()
	if got, want := healths(list), "QUARANTINED QUARANTINED QUARANTINED HEALTHY HEALTHY"; got != want || list[1].HealthReason != "its GPU GPU-a: XID 48: uncorrectable memory error" {
		t.Fatalf("%s (%s), want %s", got, list[1].HealthReason, want)
	}
	if all := m.Records(); len(all) != 1 || all[0].UUID != "GPU-a" { // theirs is its
		t.Errorf("%+v", all)
	}
	now = now.Add(rest)
	if due := m.Due(migGPUs(), now); !slices.Equal(due, []string{"GPU-a"}) {
		t.Errorf("due %q", due)
	}
	m.Probed("GPU-a", nil, now)
	m.Observe(nodemanager.GPUEvent{UUID: "MIG-2", Health: nodemanager.Quarantined, Reason: "its memory does not come back"}, now)
	if got, want := healths(look()), "HEALTHY HEALTHY QUARANTINED HEALTHY HEALTHY"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestInstancesAreDescribed(t *testing.T) {
	got := Describe(migGPUs())
	for _, want := range []string{"1 × A100 (" + nodemanager.ByteSize(40<<30) + ") in MIG mode without instances", "2 × MIG instance 3g.20gb of A100", "1 × A100 (" + nodemanager.ByteSize(40<<30) + ")"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
	if strings.Count(got, "×") != 3 {
		t.Error(got)
	}
}

// A container gets the file of the GPU and the capabilities of its own instances, and of no other.
func TestDeviceFilesOfInstances(t *testing.T) {
	list := filepath.Join(t.TempDir(), "mig-minors")
	text := "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi2/access 21\ngpu0/gi2/ci0/access 22\ngpu1/gi1/access 147\ngpu1/gi1/ci0/access large\n"
	if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := capabilities(list, nodemanager.GPU{Profile: "1g.5gb", Minor: 0, Instance: 2})
	if want := []string{"/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	for _, test := range []struct {
		g    nodemanager.GPU
		want string
	}{
		{nodemanager.GPU{Minor: 0, Instance: 3}, "does not name gpu0/gi3/access"},
		{nodemanager.GPU{Minor: 0, Instance: 1, Compute: 1}, "does not name gpu0/gi1/ci1/access"},
		{nodemanager.GPU{Minor: 1, Instance: 1}, "gpu1/gi1/ci0/access"},
	} {
		if _, err := capabilities(list, test.g); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %s", test.g, err, test.want)
		}
	}
	if _, err := capabilities(filepath.Join(t.TempDir(), "none"), nodemanager.GPU{}); err == nil {
		t.Error("a driver without capabilities names them")
	}
}
