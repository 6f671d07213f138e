package server

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/rest"
)

// checkOther verifies what a node has beside memory, vcores and GPUs: its own resources by name, and MIG instances, which only devices
// are.
func checkOther(r *pb.NodeReport) error {
	all := map[string]int64{}
	maps.Copy(all, r.Capacity.Other)
	for name := range all {
		if strings.HasPrefix(name, rm.MIGPrefix) {
			return fmt.Errorf("%.100s is no resource that a node declares: its MIG instances are counted", name)
		}
	}
	for _, g := range r.Divided {
		if g.Profile == "" {
			continue
		}
		if !rm.ValidProfile(g.Profile) {
			return fmt.Errorf("%.100q is no MIG profile", g.Profile)
		}
		all[rm.ProfileResource(g.Profile)]++
	}
	_, err := rm.NewAmounts(all)
	return err
}

// divides reports whether a GPU of a node is in MIG mode.
func (n *softNode) divides(uuid string) bool {
	return n != nil && slices.ContainsFunc(n.divided, func(g rest.DividedGPU) bool { return g.UUID == uuid })
}

// dividedOf are the GPUs in MIG mode of a report, which are granted to nobody as a whole.
func dividedOf(report *pb.NodeReport) []rest.DividedGPU {
	var out []rest.DividedGPU
	for _, g := range report.Divided {
		if g.Profile != "" {
			continue
		}
		d := rest.DividedGPU{UUID: g.Uuid, Model: g.Model, Memory: g.Memory, Minor: int(g.Minor), PCI: g.Pci, Simulated: g.Simulated, Health: rm.GPUHealth(g.Health), HealthReason: g.HealthReason}
		for _, x := range report.Divided {
			if x.Profile != "" && x.Parent == g.Uuid {
				d.Instances++
			}
		}
		if g.Load != nil {
			load := gpuLoads(map[string]*pb.GPULoad{g.Uuid: g.Load})[g.Uuid]
			d.Load = &load
		}
		out = append(out, d)
	}
	return out
}
