// Package fake simulates devices: so many of them, or those that a file describes. Everything it returns is marked
// simulated. A file looks like this:
//
//	gpus:
//	  - {uuid: GPU-a, model: Simulated H100, memory: 80GiB, minor: 0, pci: "0000:17:00.0", links: {GPU-b: NVLINK}}
//	  - {uuid: GPU-b, model: Simulated H100, memory: 80GiB, minor: 1}
//	script:
//	  - {at: 10s, gpu: GPU-a, utilization: 85, memory_used: 20GiB}
//	  - {at: 60s, gpu: GPU-a, xid: 79}
//	  - {at: 2m,  gpu: GPU-a, health: HEALTHY, reason: reset}
//
// Links join devices to islands. The times of the script count from the first call of Watch.
package fake

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/nodemanager"
)

// Source is a simulated set of devices. It implements nodemanager.GPUSource.
type Source struct {
	name    string
	devices []nodemanager.GPU
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
	if s.start.IsZero() {
		return devices, nil
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
	}
	return devices, nil
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
