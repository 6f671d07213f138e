package resourcemanager

import "strings"

// MIGPrefix begins the names of the resources that are MIG instances of GPUs: nvidia.com/mig-1g.10gb. They are Kubernetes' names (the
// mixed strategy of NVIDIA's device plugin), because YARN has none. Each profile is a resource of its own, whose amount counts
// individual instances as GPUName counts individual GPUs; nobody declares them but the devices of the nodes.
const MIGPrefix = "nvidia.com/mig-"

// ProfileResource is the name of the resource that instances of a MIG profile are. The driver's 1g.10gb+me is 1g.10gb.me there.
func ProfileResource(profile string) string { return MIGPrefix + strings.ReplaceAll(profile, "+", ".") }

// ProfileOf is the profile of which a resource of that name is; ok is false of all other resources.
func ProfileOf(name string) (profile string, ok bool) { return strings.CutPrefix(name, MIGPrefix) }

// ValidProfile reports whether a word can be a MIG profile: of a name of a resource the part that is the profile's.
func ValidProfile(profile string) bool {
	return profile != "" && len(profile) <= 32 && profile[0] >= '0' && profile[0] <= '9' && ValidResourceName(ProfileResource(profile))
}

// ProfileSlices is of how many compute slices an instance is, by the name of its profile: 3 of 3g.40gb; 1 when that says nothing. A GPU
// has seven.
func ProfileSlices(profile string) int {
	for part := range strings.SplitSeq(profile, ".") {
		if n, ok := strings.CutSuffix(part, "g"); ok && len(n) == 1 && n[0] >= '1' && n[0] <= '9' {
			return int(n[0] - '0')
		}
	}
	return 1
}

// Instances are the amounts that count MIG instances.
func (a Amounts) Instances() Amounts { return a.pick(true) }

// WithInstances is a with other MIG instances in place of its own.
func (a Amounts) WithInstances(instances Amounts) Amounts { return a.pick(false).Add(instances) }

// pick keeps the amounts that count MIG instances, or the others.
func (a Amounts) pick(instances bool) Amounts {
	if !strings.Contains(a.text, MIGPrefix) {
		if instances {
			return Amounts{}
		}
		return a
	}
	var out []amount
	for _, x := range a.list() {
		if strings.HasPrefix(x.name, MIGPrefix) == instances {
			out = append(out, x)
		}
	}
	return amountsOf(out)
}

// Instances counts the MIG instances of r, Devices those and its whole GPUs: as many individuals has who has r.
func (r Resource) Instances() int {
	if !strings.Contains(r.Other.text, MIGPrefix) {
		return 0
	}
	n := int64(0)
	for _, count := range r.Other.pick(true).All() {
		n += count
	}
	return int(n)
}

// Devices counts the individuals that who has r holds: GPUs and MIG instances.
func (r Resource) Devices() int { return r.GPUs + r.Instances() }

// GPUShare is how many GPUs r is worth: whole ones, and of the divided ones what its MIG instances have of their compute slices.
func (r Resource) GPUShare() float64 {
	share := float64(r.GPUs)
	for name, n := range r.Other.Instances().All() {
		profile, _ := ProfileOf(name)
		share += float64(n) * float64(ProfileSlices(profile)) / 7
	}
	return share
}

// WholeGPUs counts the devices of a node that are no MIG instances.
func (n *Node) WholeGPUs() int {
	whole := 0
	for i := range n.GPUs {
		if n.GPUs[i].Profile == "" {
			whole++
		}
	}
	return whole
}

// DropDevices takes all devices out of r, AddDevice adds one: so a capacity is counted.
func (r *Resource) DropDevices() { r.GPUs, r.Other = 0, r.Other.WithInstances(Amounts{}) }

// AddDevice counts a device, see DropDevices.
func (r *Resource) AddDevice(g *GPU) {
	if g.Profile == "" {
		r.GPUs++
		return
	}
	r.Other = r.Other.Add(Amounts{ProfileResource(g.Profile) + "=1"})
}
