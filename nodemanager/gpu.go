package nodemanager

import (
	"context"
	"time"
)

// GPUHealth is what the node thinks of a device. The resource manager grants healthy ones only.
type GPUHealth string

// The states of a device.
const (
	Healthy GPUHealth = "HEALTHY"
	// Suspect: something happened that may pass; healthy again after a quiet time.
	Suspect GPUHealth = "SUSPECT"
	// Quarantined: needs a reset, a restart of the machine, or rest; then it is probed.
	Quarantined GPUHealth = "QUARANTINED"
	// Probing: it has rested, and is tried before it is granted again.
	Probing GPUHealth = "PROBING"
	// Retired: it was quarantined too often, or is broken; only a person takes it back.
	Retired GPUHealth = "RETIRED"
)

// GPU is one device, a whole GPU or a MIG instance of one: an individual, never a count.
type GPU struct {
	// UUID is NVML's and identifies the device for its life.
	UUID   string `json:"uuid"`
	Model  string `json:"model"`
	Memory int64  `json:"memory"` // bytes
	// Minor is the number in /dev/nvidia<minor>.
	Minor int    `json:"minor"`
	PCI   string `json:"pci,omitempty"`
	// Island: devices with the same non-empty island are joined by NVLink.
	Island string `json:"island,omitempty"`
	// Divided: the GPU is in MIG mode. Nobody gets it, but the instances that it is divided into, which follow it in a list.
	Divided bool `json:"divided,omitempty"`
	// Profile is that of a MIG instance, such as 1g.10gb, and Parent the UUID of its GPU, whose Minor and PCI it has; empty: it is a GPU.
	Profile string `json:"profile,omitempty"`
	Parent  string `json:"parent,omitempty"`
	// Instance and Compute are the numbers of a MIG instance's GPU instance, on its GPU, and compute instance, in that.
	Instance int `json:"instance,omitempty"`
	Compute  int `json:"compute,omitempty"`
	// Simulated devices come from a file, not from a driver.
	Simulated bool `json:"simulated,omitempty"`
	// Recovers: the driver says by itself whether the device needs a reset, so that its silence about that means something.
	Recovers     bool      `json:"-"`
	Health       GPUHealth `json:"health"`
	HealthReason string    `json:"health_reason,omitempty"`
	// Usage is nil where the device does not tell.
	Usage *GPUUsage `json:"usage,omitempty"`
}

// Whole reports whether the device is a GPU that can be granted, and not one in MIG mode or an instance.
func (g *GPU) Whole() bool { return !g.Divided && g.Profile == "" }

// GPUUsage is what a device does at one moment.
type GPUUsage struct {
	Utilization float64 `json:"utilization"` // percent of time in which a kernel ran
	MemoryUsed  int64   `json:"memory_used"` // bytes
	// Blind: it does not tell, and Utilization says nothing.
	Blind bool    `json:"blind,omitempty"`
	Power float64 `json:"power,omitempty"` // watts
	// Energy is what it has spent since the driver was loaded, in joules; 0: it does not tell.
	Energy      float64 `json:"energy,omitempty"`
	Temperature float64 `json:"temperature,omitempty"` // degrees Celsius
	Processes   []int   `json:"processes,omitempty"`   // process ids that compute on it
}

// GPUUse is what a container has done with one of its devices since it began.
type GPUUse struct {
	UUID string `json:"uuid"`
	// Held is how long it had the device while somebody looked, Busy how much of that a kernel ran.
	Held time.Duration `json:"held"`
	Busy time.Duration `json:"busy"`
	// MemoryPeak is the most memory of the device that was seen in use, in bytes.
	MemoryPeak int64 `json:"memory_peak"`
	// Energy is the device's in that time, in joules.
	Energy float64 `json:"energy"`
	// Idle is for how long it has done nothing now; 0: it does something, or does not tell.
	Idle time.Duration `json:"idle"`
}

// GPUEvent is something that happened to a device.
type GPUEvent struct {
	UUID string
	At   time.Time
	// XID is the driver's error number (NVIDIA "XID Errors"), 0: none.
	XID int
	// Health, when not empty, is set as it is.
	Health GPUHealth
	Reason string
}

// GPURecord is what happened to a device, as far as a restart of the node manager must not forget it.
type GPURecord struct {
	UUID   string    `json:"uuid"`
	Health GPUHealth `json:"health"`
	Reason string    `json:"reason,omitempty"`
	// Last is when health became what it is, Transient are the latest errors that may pass by themselves.
	Last      time.Time   `json:"last"`
	Transient []time.Time `json:"transient,omitempty"`
	// Quarantines are when it was quarantined lately. Hardware: only a reset takes the cause away.
	Quarantines []time.Time `json:"quarantines,omitempty"`
	Hardware    bool        `json:"hardware,omitempty"`
}

// GPUSource knows the devices of a machine. Implementations are safe for concurrent use.
type GPUSource interface {
	// Name is nvml, file, sim or none.
	Name() string
	// Devices lists the devices in the order of their PCI addresses, each GPU in MIG mode before its instances, whose health is their GPU's
	// besides their own. Health is the source's own view, without the history
	// of events.
	Devices(ctx context.Context) ([]GPU, error)
	// Watch calls report, on one goroutine, for what happens from now on. It returns nil when ctx is done.
	Watch(ctx context.Context, report func(GPUEvent)) error
	Close() error
}
