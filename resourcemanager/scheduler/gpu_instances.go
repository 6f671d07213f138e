package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	rm "github.com/gohops/hops/resourcemanager"
)

// MIG instances are amounts of resources, one for each profile, and individuals. What a node has left of such a resource is how many of
// its instances are free, so that limits, buckets and verdicts need to know nothing more; which they are is chosen at the end. They belong
// to no island.

// countInstances sets what is left of the resources that are MIG instances.
func (n *node) countInstances() {
	if len(n.profiles) == 0 {
		n.room.Other = n.room.Other.WithInstances(rm.Amounts{}) // one that is gone may be somebody's still
		return
	}
	free := make(map[string]int64, len(n.profiles))
	for i := range n.devices {
		if d := &n.devices[i]; d.island < 0 && d.free && !n.assumedGPUs[d.uuid] {
			free[n.profiles[d.profile]]++
		}
	}
	left, _ := rm.NewAmounts(free) // a node has no more of them than rm.MaxAmounts
	n.room.Other = n.room.Other.WithInstances(left)
}

// instances names the MIG instances of one container, those of the first GPUs that have some free.
func (n *node) instances(s *shape) []string {
	if len(n.profiles) == 0 || s.Resource.Other.IsZero() {
		return nil
	}
	var out []string
	for name, k := range s.Resource.Other.Instances().All() {
		for i := range n.devices {
			if d := &n.devices[i]; k > 0 && d.island < 0 && n.profiles[d.profile] == name && d.free && !n.assumedGPUs[d.uuid] {
				out = append(out, d.uuid)
				k--
			}
		}
	}
	return out
}

// all names all free devices, whole GPUs first.
func (n *node) all() []string {
	var whole, instances []string
	for i := range n.devices {
		switch d := &n.devices[i]; {
		case !d.free || n.assumedGPUs[d.uuid]:
		case d.island < 0:
			instances = append(instances, d.uuid)
		default:
			whole = append(whole, d.uuid)
		}
	}
	return append(whole, instances...)
}

// inUse is what somebody has of a node, or cannot be had, of devices as of amounts.
func (n *node) inUse(amounts rm.Resource) rm.Resource {
	amounts.GPUs = n.Capacity.GPUs - n.room.GPUs
	if len(n.profiles) > 0 {
		amounts.Other = amounts.Other.WithInstances(n.Capacity.Other.Instances().Sub(n.room.Other.Instances()))
	}
	return amounts
}

// unprofiled is the reason of a shape that wants MIG instances of a profile that none of the nodes has; zero: some node has them all.
func unprofiled(s *shape, nodes []sample) rm.Reason {
	for name, need := range s.Resource.Other.Instances().All() {
		if slices.ContainsFunc(nodes, func(x sample) bool { return slices.Contains(x.profiles, name) }) {
			continue
		}
		profile, _ := rm.ProfileOf(name)
		return rm.Reason{
			Code: rm.ReasonProfile, Resource: name, Need: need,
			Text: fmt.Sprintf("none of %d nodes has MIG instances of profile %s; there are: %s", nodesIn(nodes), profile, cmp.Or(profilesOf(nodes), "none at all")),
		}
	}
	return rm.Reason{}
}

// profilesOf lists the MIG instances of nodes: "14 of 1g.10gb, 2 of 3g.40gb"; empty: they have none.
func profilesOf(nodes []sample) string {
	var sum rm.Amounts
	for _, x := range nodes {
		sum = sum.Add(x.Capacity.Other.Instances().Times(x.n))
	}
	var list []string
	for name, n := range sum.All() {
		profile, _ := rm.ProfileOf(name)
		list = append(list, fmt.Sprintf("%d of %s", n, profile))
	}
	return strings.Join(list, ", ")
}

// dividedNote says, to who wants whole GPUs where there are none, that there are parts of some.
func dividedNote(nodes []sample) string {
	if there := profilesOf(nodes); there != "" {
		return "; of GPUs that are divided there are MIG instances, which only those get who name a profile: " + there
	}
	return ""
}
