// Package fake simulates devices: so many of them, or those that a file describes. Everything it returns is marked
// simulated. A file looks like this:
//
//	gpus:
//	  - {uuid: GPU-a, model: Simulated H100, memory: 80GiB, minor: 0, pci: "0000:17:00.0", links: {GPU-b: NVLINK}}
//	  - {uuid: GPU-b, model: Simulated H100, memory: 80GiB, minor: 1}
//	  - {uuid: GPU-c, model: Simulated A100, memory: 40GiB, mig: [3g.20gb, 2g.10gb, 1g.5gb]}
//	script:
//	  - {at: 10s, gpu: GPU-a, utilization: 85, memory_used: 20GiB}
//	  - {at: 60s, gpu: GPU-a, xid: 79}
//	  - {at: 2m,  gpu: GPU-a, health: HEALTHY, reason: reset}
//	  - {at: 3m,  gpu: GPU-c, mig: [1g.5gb, 1g.5gb]}
//	  - {at: 4m,  gpu: GPU-c, mig: none}
//
// Links join devices to islands. A GPU with mig is in MIG mode and has instances of these profiles, none for []; a line of the script
// divides it anew, or with none ends the mode. The times of the script count from the first call of Watch.
package fake

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/nodemanager"
)

// Source is a simulated set of devices. It implements nodemanager.GPUSource.
type Source struct {
	name    string
	devices []nodemanager.GPU
	// layouts are the profiles of the instances of GPUs that begin in MIG mode, by UUID.
	layouts map[string][]string
	script  []step

	mu    sync.Mutex
	start time.Time // of the script; zero: not watched yet
}

// step is one line of a script.
type step struct {
	at          time.Duration
	gpu         string
	xid         int
	health      nodemanager.GPUHealth
	reason      string
	utilization *float64
	memoryUsed  *int64
	// mig: the GPU has instances of these profiles from now on, or with whole none and is not in MIG mode.
	mig   []string
	whole bool
}

// Simulate makes n devices of one NVLink island. The same seed makes the same UUIDs.
func Simulate(n int, seed string) *Source {
	s := &Source{name: "sim"}
	for i := range n {
		h := sha256.Sum256(fmt.Appendf(nil, "%s/%d", seed, i))
		d := nodemanager.GPU{
			UUID:  fmt.Sprintf("GPU-%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16]),
			Model: "Simulated H100", Memory: 80 << 30, Minor: i, PCI: fmt.Sprintf("0000:%02x:00.0", i+1),
			Simulated: true, Health: nodemanager.Healthy,
		}
		if n > 1 {
			d.Island = "sim-" + fmt.Sprintf("%x", sha256.Sum256([]byte(seed)))[:8]
		}
		s.devices = append(s.devices, d)
	}
	return s
}

// Name implements nodemanager.GPUSource.
func (s *Source) Name() string { return s.name }

// Close implements nodemanager.GPUSource.
func (s *Source) Close() error { return nil }

// Devices implements nodemanager.GPUSource.
func (s *Source) Devices(context.Context) ([]nodemanager.GPU, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	devices := slices.Clone(s.devices)
	for i := range devices {
		devices[i].Usage = &nodemanager.GPUUsage{}
	}
	layouts := maps.Clone(s.layouts)
	if s.start.IsZero() {
		return divide(devices, layouts), nil
	}
	elapsed := time.Since(s.start)
	for _, st := range s.script {
		if st.at > elapsed {
			break
		}
		i := slices.IndexFunc(devices, func(d nodemanager.GPU) bool { return d.UUID == st.gpu })
		if st.utilization != nil {
			devices[i].Usage.Utilization = *st.utilization
		}
		if st.memoryUsed != nil {
			devices[i].Usage.MemoryUsed = *st.memoryUsed
		}
		switch {
		case st.whole:
			delete(layouts, st.gpu)
		case st.mig != nil:
			if layouts == nil {
				layouts = map[string][]string{}
			}
			layouts[st.gpu] = st.mig
		}
	}
	return divide(devices, layouts), nil
}

// divide puts the instances of GPUs in MIG mode behind these.
func divide(devices []nodemanager.GPU, layouts map[string][]string) []nodemanager.GPU {
	if len(layouts) == 0 {
		return devices
	}
	var out []nodemanager.GPU
	for _, d := range devices {
		profiles, divided := layouts[d.UUID]
		if !divided {
			out = append(out, d)
			continue
		}
		d.Divided, d.Island = true, ""
		d.Usage.Blind = true
		out = append(out, d)
		for i, profile := range profiles {
			h := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%s", d.UUID, i, profile))
			out = append(out, nodemanager.GPU{
				UUID:  fmt.Sprintf("MIG-%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16]),
				Model: d.Model, Memory: memoryOf(profile), Minor: d.Minor, PCI: d.PCI, Profile: profile, Parent: d.UUID, Instance: i + 1,
				Simulated: true, Health: nodemanager.Healthy, Usage: &nodemanager.GPUUsage{Blind: true},
			})
		}
	}
	return out
}

// memoryOf is the memory of an instance, as the name of its profile says; 0: it does not.
func memoryOf(profile string) int64 {
	_, rest, _ := strings.Cut(profile, "g.")
	digits, _, ok := strings.Cut(rest, "gb")
	n, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil {
		return 0
	}
	return int64(n) << 30
}

// Watch implements nodemanager.GPUSource: it plays the script.
func (s *Source) Watch(ctx context.Context, report func(nodemanager.GPUEvent)) error {
	s.mu.Lock()
	if s.start.IsZero() {
		s.start = time.Now()
	}
	start := s.start
	s.mu.Unlock()
	for _, st := range s.script {
		if st.xid == 0 && st.health == "" {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(start.Add(st.at))):
		}
		report(nodemanager.GPUEvent{UUID: st.gpu, At: start.Add(st.at), XID: st.xid, Health: st.health, Reason: st.reason})
	}
	<-ctx.Done()
	return nil
}
