package fake

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gohops/hops/nodemanager"
)

const described = `
gpus:
  - {uuid: GPU-a, model: Simulated H100, memory: 80GiB, pci: "0000:17:00.0", links: {GPU-b: NVLINK}}
  - {uuid: GPU-b, model: Simulated H100, memory: 80GiB}
  - uuid: GPU-c
    model: Simulated A10
    memory: 24GiB
script:
  - {at: 60s, gpu: GPU-a, xid: 79}
  - {at: 10s, gpu: GPU-c, utilization: 85.5, memory_used: 20GiB}
  - {at: 2m, gpu: GPU-a, health: HEALTHY, reason: reset}
`

func TestFileDescribesDevicesAndScript(t *testing.T) {
	s, err := Parse("gpus.yaml", []byte(described))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var events []nodemanager.GPUEvent
		var at []time.Duration
		begin := time.Now()
		done := make(chan error)
		go func() {
			done <- s.Watch(ctx, func(e nodemanager.GPUEvent) { events, at = append(events, e), append(at, time.Since(begin)) })
		}()
		synctest.Wait()
		d, err := s.Devices(ctx)
		if err != nil || len(d) != 3 {
			t.Fatal(d, err)
		}
		if d[0].Island != "GPU-a" || d[1].Island != "GPU-a" || d[2].Island != "" {
			t.Errorf("islands %q %q %q", d[0].Island, d[1].Island, d[2].Island)
		}
		for i, d := range d {
			if !d.Simulated || d.Minor != i || d.Health != nodemanager.Healthy {
				t.Errorf("%+v", d)
			}
		}
		if d[0].Memory != 80<<30 || d[2].Usage.Utilization != 0 {
			t.Errorf("%+v", d)
		}
		time.Sleep(11 * time.Second)
		if d, _ := s.Devices(ctx); d[2].Usage.Utilization != 85.5 || d[2].Usage.MemoryUsed != 20<<30 {
			t.Errorf("after the script's line: %+v", d[2].Usage)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(events) != 2 || events[0].XID != 79 || at[0] != time.Minute || events[1].Health != nodemanager.Healthy || at[1] != 2*time.Minute {
			t.Errorf("%+v at %v", events, at)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestMistakesInAFileNameTheLine(t *testing.T) {
	for _, test := range []struct{ change, to, want string }{
		{"memory: 24GiB", "memory: lots", `gpus.yaml: line 5: memory of GPU-c: "lots"`},
		{"uuid: GPU-b", "uuid: GPU-a", "line 4: uuid GPU-a is used a second time"},
		{"uuid: GPU-c", `uuid: "a,b"`, "line 5: uuid"},
		{"model: Simulated A10", `model: ""`, "line 5: device GPU-c has no model"},
		{"links: {GPU-b: NVLINK}", "links: {GPU-z: NVLINK}", `line 3: link of GPU-a to "GPU-z"`},
		{"at: 60s", "at: soon", `line 9: at: "soon"`},
		{"gpu: GPU-c", "gpu: GPU-x", `line 10: gpu "GPU-x"`},
		{"health: HEALTHY", "health: WELL", `line 11: health "WELL"`},
		{"utilization: 85.5", "utilization: 101", "line 10: utilization 101"},
		{"xid: 79", "xid: -1", "line 9: xid"},
		{"xid: 79", "reason: none", "line 9: the line changes nothing"},
		{"  - uuid: GPU-c", "  - minor: -3\n    uuid: GPU-c", "line 5: minor -3"},
		{"model: Simulated A10", "modell: Simulated A10", "line 6: unknown key gpus[2].modell (did you mean model?)"},
		{"script:", "script: [", "gpus.yaml: line "},
		{"xid: 79", "xid: seventy-nine", "gpus.yaml: line 9: "},
	} {
		_, err := Parse("gpus.yaml", []byte(strings.Replace(described, test.change, test.to, 1)))
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s -> %s: got %v, want %s", test.change, test.to, err, test.want)
		}
	}
	if _, err := Parse("big.yaml", bytes.Repeat([]byte("#"), 2<<20)); err == nil {
		t.Error("a huge file is read")
	}
}

func TestInstancesOfGPUsInMIGMode(t *testing.T) {
	s, err := Parse("gpus.yaml", []byte(`
gpus:
  - {uuid: GPU-a, model: Simulated A100, memory: 40GiB, mig: [1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb]}
  - {uuid: GPU-b, model: Simulated A100, memory: 40GiB, mig: [3g.20gb, 2g.10gb, 1g.5gb+me], links: {GPU-a: NVLINK}}
  - {uuid: GPU-c, model: Simulated A100, memory: 40GiB, mig: []}
  - {uuid: GPU-d, model: Simulated A100, memory: 40GiB}
script:
  - {at: 10s, gpu: GPU-a, mig: none}
  - {at: 10s, gpu: GPU-b, mig: [1g.5gb]}
  - {at: 10s, gpu: GPU-d, mig: []}
`))
	if err != nil {
		t.Fatal(err)
	}
	list := func() string {
		all, err := s.Devices(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out, seen := "", map[string]bool{}
		for i, d := range all {
			if seen[d.UUID] || !d.Simulated || d.Usage == nil {
				t.Errorf("%+v", d)
			}
			seen[d.UUID] = true
			switch {
			case d.Profile != "":
				parent := all[slices.IndexFunc(all[:i], func(p nodemanager.GPU) bool { return p.UUID == d.Parent })]
				if !strings.HasPrefix(d.UUID, "MIG-") || d.Minor != parent.Minor || !parent.Divided || d.Island != "" || d.Memory >= parent.Memory {
					t.Errorf("%+v of %+v", d, parent)
				}
				out += " " + d.Profile
			case d.Divided:
				out += " " + d.UUID + "/"
			default:
				out += " " + d.UUID
			}
		}
		return strings.TrimSpace(out)
	}
	before := "GPU-a/ 1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb GPU-b/ 3g.20gb 2g.10gb 1g.5gb+me GPU-c/ GPU-d"
	if got := list(); got != before {
		t.Errorf("%s, want %s", got, before)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Watch(ctx, func(nodemanager.GPUEvent) {}) }()
		time.Sleep(9 * time.Second)
		if got := list(); got != before {
			t.Errorf("%s, want %s", got, before)
		}
		time.Sleep(2 * time.Second)
		if got, want := list(), "GPU-a GPU-b/ 1g.5gb GPU-c/ GPU-d/"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for layout, want := range map[string]string{
		"[1g.5gb, 7g.40gb]": "line 2: mig: 2 instances of 8 slices", "[large]": `line 2: mig: "large" is no profile`, "[3g.200gb]": "200 GB",
		"off": `mig: "off" is neither`, "[1g]": `"1g" is no profile`, "[\"1g.5gb,x\"]": "is no profile",
	} {
		_, err := Parse("gpus.yaml", []byte("gpus:\n  - {uuid: GPU-a, model: A100, memory: 40GiB, mig: "+layout+"}\n"))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", layout, err, want)
		}
	}
}

func TestSimulatedDevicesDifferBetweenSeedsOnly(t *testing.T) {
	a, b, again := Simulate(2, "nm1"), Simulate(2, "nm2"), Simulate(2, "nm1")
	seen := map[string]bool{}
	for _, s := range []*Source{a, b} {
		for _, d := range s.devices {
			if seen[d.UUID] || !d.Simulated || !strings.Contains(d.Model, "Simulated") || len(d.UUID) != 40 {
				t.Errorf("%+v", d)
			}
			seen[d.UUID] = true
		}
	}
	if a.devices[1].UUID != again.devices[1].UUID {
		t.Error("the same seed made other devices")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(described))
	f.Add([]byte("gpus: [{uuid: x, model: y, memory: 1, minor: 2, links: {x: y}}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse("f", text)
		if err == nil {
			for _, d := range s.devices {
				if d.UUID == "" || d.Memory <= 0 || !d.Simulated {
					t.Errorf("%+v", d)
				}
			}
		}
	})
}
