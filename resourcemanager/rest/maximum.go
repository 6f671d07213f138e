package rest

import (
	"encoding/json"
	"fmt"
	"strings"

	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
	"github.com/gohops/hops/resourcemanager/state"
)

// most is the most that one container can get of each resource: what the largest node has, but no more than is
// configured; of what neither says there is no limit. Nodes that are lost count, because a machine that restarts is one
// that comes back. known: some node has ever registered.
func (q *request) most() (out rm.Resource, known bool) {
	_, limit := q.Cluster.Limits()
	return Most(q.view, limit)
}

// Most is the most that one container can get of each resource under the configured limit, see request.most.
func Most(view *state.View, limit rm.Resource) (out rm.Resource, known bool) {
	for n := range view.Nodes() {
		known = true
		out = out.Max(n.Capacity)
	}
	for _, d := range []struct{ have, limit *int64 }{{&out.Memory, &limit.Memory}} {
		if *d.limit > 0 && (!known || *d.limit < *d.have) {
			*d.have = *d.limit
		}
	}
	for _, d := range []struct{ have, limit *int }{{&out.VCores, &limit.VCores}, {&out.GPUs, &limit.GPUs}} {
		if *d.limit > 0 && (!known || *d.limit < *d.have) {
			*d.have = *d.limit
		}
	}
	return out, known
}

// excess names the resources of which a container wants more than it can ever get; together: it can get each of them,
// but no node has all at once. Nothing is said of resources that nothing bounds.
func (q *request) excess(want rm.Resource) (names []string, most rm.Resource, together bool) {
	_, limit := q.Cluster.Limits()
	return excess(q.view, limit, want)
}

func excess(view *state.View, limit, want rm.Resource) (names []string, most rm.Resource, together bool) {
	most, known := Most(view, limit)
	for _, name := range want.Names() {
		if most := most.Get(name); want.Get(name) > most && (known || most > 0) {
			names = append(names, name)
		}
	}
	if len(names) > 0 || !known {
		return names, most, false
	}
	for n := range view.Nodes() {
		if want.FitsIn(n.Capacity) {
			return nil, most, false
		}
	}
	return nil, most, true
}

// raised is what a container gets that asks for r.
func (q *request) raised(r rm.Resource) rm.Resource {
	minimum, _ := q.Cluster.Limits()
	return r.Raise(minimum)
}

// tooLarge says in people's words why no container of that size can ever be granted; empty: one can.
func (q *request) tooLarge(want rm.Resource) string {
	want = q.raised(want)
	names, most, together := q.excess(want)
	var parts []string
	for _, name := range names {
		switch name {
		case rm.MemoryName:
			parts = append(parts, fmt.Sprintf("resources.memory: %d MiB in one container, the most is %d", want.MemoryMiB(), most.MemoryMiB()))
		case rm.VCoresName:
			parts = append(parts, fmt.Sprintf("resources.vcores: %d in one container, the most is %d", want.VCores, most.VCores))
		case rm.GPUName:
			parts = append(parts, fmt.Sprintf("resources.gpus: %d in one container, the most is %d", want.GPUs, most.GPUs))
		default:
			if profile, ok := rm.ProfileOf(name); ok {
				parts = append(parts, noProfile(profile, want.Get(name), most))
				continue
			}
			parts = append(parts, fmt.Sprintf("resources.other.%s: %d in one container, the most is %d", name, want.Get(name), most.Get(name)))
		}
	}
	if together {
		parts = append(parts, fmt.Sprintf("resources: no node has %v together", want))
	}
	return strings.Join(parts, "; ")
}

// noProfile says that no container can have so many MIG instances of a profile, and which there are.
func noProfile(profile string, want int64, most rm.Resource) string {
	if n := most.Get(rm.ProfileResource(profile)); n > 0 {
		return fmt.Sprintf("resources: %d MIG instances %s in one container, the most is %d", want, profile, n)
	}
	var there []string
	for name, n := range most.Other.Instances().All() {
		p, _ := rm.ProfileOf(name)
		there = append(there, fmt.Sprintf("%s (%d on one node at most)", p, n))
	}
	if len(there) == 0 {
		return fmt.Sprintf("resources: no node has MIG instances, and so none of profile %s", profile)
	}
	return fmt.Sprintf("resources: no node has MIG instances of profile %s; there are %s", profile, strings.Join(there, ", "))
}

// TooLargeYARN says in YARN's words (SchedulerUtils.throwInvalidResourceException) why no container of that size can ever be granted; empty: one can.
func TooLargeYARN(c Cluster, view *state.View, want rm.Resource) string {
	minimum, configured := c.Limits()
	want = want.Raise(minimum)
	names, most, together := excess(view, configured, want)
	if together {
		return fmt.Sprintf("Invalid resource request! Requested resource=%v, which no node has together", want)
	}
	if len(names) == 0 {
		return ""
	}
	if configured.IsZero() {
		configured = most
	}
	return fmt.Sprintf("Invalid resource request! Cannot allocate containers as requested resource is greater than maximum allowed allocation. "+
		"Requested resource type=[%s], Requested resource=%v, maximum allowed allocation=%v, please note that maximum allowed allocation is calculated by "+
		"scheduler based on maximum resource of registered NodeManagers, which might be less than configured maximum allocation=%v",
		names[0], want, most, configured)
}

// wants is the size of the containers that a job will ask for. What cannot be read of an experiment is its controller's to
// refuse.
func wants(s *job.Spec) rm.Resource {
	if s.Kind != rm.KindExperiment {
		return s.Resources.Amount()
	}
	var e struct {
		Resources struct {
			Memory job.Memory
			VCores int
			GPUs   int
		}
	}
	if json.Unmarshal(s.Experiment, &e) != nil {
		return rm.Resource{}
	}
	r := rm.Resource{Memory: int64(e.Resources.Memory), VCores: e.Resources.VCores, GPUs: e.Resources.GPUs}
	if r.Memory < 0 || r.VCores < 0 || r.GPUs < 0 {
		return rm.Resource{}
	}
	return r
}
