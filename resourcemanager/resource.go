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
	// Other are amounts of what else machines have.
	Other Amounts
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
	return Resource{r.Memory + o.Memory, r.VCores + o.VCores, r.GPUs + o.GPUs, r.Other.Add(o.Other)}
}

// Sub returns r - o; amounts may become negative.
func (r Resource) Sub(o Resource) Resource {
	return Resource{r.Memory - o.Memory, r.VCores - o.VCores, r.GPUs - o.GPUs, r.Other.Sub(o.Other)}
}

// Times returns n * r.
func (r Resource) Times(n int) Resource {
	return Resource{r.Memory * int64(n), r.VCores * n, r.GPUs * n, r.Other.Times(n)}
}

// Part is a share of r, 0 to 1, of each amount, rounded down, forgiving what binary fractions lose: all of 8 is 8.
func (r Resource) Part(share float64) Resource {
	part := func(n int64) int64 { return int64(share*float64(n) + 1e-6) }
	return Resource{
		Memory: part(r.Memory), VCores: int(part(int64(r.VCores))), GPUs: int(part(int64(r.GPUs))),
		Other: r.Other.merge(Amounts{}, func(n, _ int64) int64 { return part(n) }),
	}
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
	return r.Memory <= o.Memory && r.VCores <= o.VCores && r.GPUs <= o.GPUs && r.Other.FitsIn(o.Other)
}

// IsZero reports whether r is nothing.
func (r Resource) IsZero() bool { return r == Resource{} }

// Max returns the larger of each amount.
func (r Resource) Max(o Resource) Resource {
	return Resource{max(r.Memory, o.Memory), max(r.VCores, o.VCores), max(r.GPUs, o.GPUs), r.Other.Max(o.Other)}
}

// Get is the amount of a resource by YARN's name, memory in bytes; 0 for a name that r has nothing of.
func (r Resource) Get(name string) int64 {
	switch name {
	case MemoryName:
		return r.Memory
	case VCoresName:
		return int64(r.VCores)
	case GPUName:
		return int64(r.GPUs)
	}
	return r.Other.Get(name)
}

// Names are those of the resources that r may have something of: the three that every machine has, GPUs first, and what else r has.
func (r Resource) Names() []string {
	names := []string{GPUName, VCoresName, MemoryName}
	for name := range r.Other.All() {
		names = append(names, name)
	}
	return names
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
	for name, n := range r.Other.All() {
		fmt.Fprintf(&b, ", %s: %d", name, n)
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
	GPUProbing     GPUHealth = "PROBING"
	GPURetired     GPUHealth = "RETIRED"
)

// GPU is one device, a whole GPU or a MIG instance of one: an individual, never a count.
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
	// Profile is that of a MIG instance, such as 1g.10gb, and Parent the UUID of its GPU; empty: it is a whole GPU. Memory is the
	// instance's, Minor and PCI its GPU's.
	Profile, Parent string
}

// Usable reports whether the device may be granted. A node manager that does not know health sends none.
func (g GPU) Usable() bool { return g.Health == GPUHealthy || g.Health == "" }
