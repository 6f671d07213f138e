package resourcemanager

import (
	"fmt"
	"strings"
)

// Resource is an amount of each countable resource. The zero value is nothing.
type Resource struct {
	// Memory is in bytes; YARN counts MiB.
	Memory int64
	VCores int
	// GPUs counts whole devices, YARN's yarn.io/gpu.
	GPUs int
}

// Names of the resources, as YARN's REST interface has them.
const (
	MemoryName = "memory-mb"
	VCoresName = "vcores"
	GPUName    = "yarn.io/gpu"
)

// MiB is 2^20 bytes, YARN's unit of memory.
const MiB = 1 << 20

// Add returns r + o.
func (r Resource) Add(o Resource) Resource {
	return Resource{r.Memory + o.Memory, r.VCores + o.VCores, r.GPUs + o.GPUs}
}

// Sub returns r - o; amounts may become negative.
func (r Resource) Sub(o Resource) Resource {
	return Resource{r.Memory - o.Memory, r.VCores - o.VCores, r.GPUs - o.GPUs}
}

// Times returns n * r.
func (r Resource) Times(n int) Resource {
	return Resource{r.Memory * int64(n), r.VCores * n, r.GPUs * n}
}

// Raise is r brought up to a minimum, with memory in whole MiB, as YARN normalizes requests.
func (r Resource) Raise(minimum Resource) Resource {
	r = r.Max(minimum)
	if rest := r.Memory % MiB; rest != 0 {
		r.Memory += MiB - rest
	}
	return r
}

// FitsIn reports whether every amount of r is at most that of o.
func (r Resource) FitsIn(o Resource) bool {
	return r.Memory <= o.Memory && r.VCores <= o.VCores && r.GPUs <= o.GPUs
}

// IsZero reports whether r is nothing.
func (r Resource) IsZero() bool { return r == Resource{} }

// Max returns the larger of each amount.
func (r Resource) Max(o Resource) Resource {
	return Resource{max(r.Memory, o.Memory), max(r.VCores, o.VCores), max(r.GPUs, o.GPUs)}
}

// MemoryMiB is the memory in YARN's unit, rounded down.
func (r Resource) MemoryMiB() int64 { return r.Memory / MiB }

// String is how YARN prints a resource: <memory:512, vCores:1, yarn.io/gpu: 2>. GPUs are left out when there are none.
func (r Resource) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "<memory:%d, vCores:%d", r.MemoryMiB(), r.VCores)
	if r.GPUs != 0 {
		fmt.Fprintf(&b, ", %s: %d", GPUName, r.GPUs)
	}
	b.WriteByte('>')
	return b.String()
}

// GPUHealth is what a node manager thinks of a device.
type GPUHealth string

// The states of a device. Only healthy ones are granted.
const (
	GPUHealthy     GPUHealth = "HEALTHY"
	GPUSuspect     GPUHealth = "SUSPECT"
	GPUQuarantined GPUHealth = "QUARANTINED"
)

// GPU is one device: an individual, never a count.
type GPU struct {
	// UUID is NVML's and identifies the device for its life.
	UUID  string
	Model string
	// Memory is in bytes.
	Memory int64
	Minor  int
	PCI    string
	// Island: devices of a node with the same non-empty island are joined by NVLink. A device with an empty one is
	// alone.
	Island string
	// Simulated devices come from a file, not from a driver.
	Simulated    bool
	Health       GPUHealth
	HealthReason string
}

// Usable reports whether the device may be granted. A node manager that does not know health sends none.
func (g GPU) Usable() bool { return g.Health == GPUHealthy || g.Health == "" }
