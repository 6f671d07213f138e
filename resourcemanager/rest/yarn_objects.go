package rest

import (
	"math"

	rm "github.com/gohops/hops/resourcemanager"
)

// The types of this file and of the other yarn_*.go are YARN's objects with YARN's order of fields
// (reference: Hadoop 3.4.1, recorded answers). In the dialects' terms: N objects have numbers as numbers and maps as
// {"entry": [...]}, M objects have everything as text.

type resourceInfo struct {
	Memory       int64        `json:"memory"`
	VCores       int          `json:"vCores"`
	Informations informations `json:"resourceInformations"`
}

type informations struct {
	List []information `json:"resourceInformation"`
}

type information struct {
	Attributes struct{} `json:"attributes"`
	Maximum    int64    `json:"maximumAllocation"`
	Minimum    int64    `json:"minimumAllocation"`
	Name       string   `json:"name"`
	Type       string   `json:"resourceType"`
	Units      string   `json:"units"`
	Value      int64    `json:"value"`
}

func resource(r rm.Resource) resourceInfo {
	item := func(name, units string, value int64) information {
		return information{Maximum: math.MaxInt64, Name: name, Type: "COUNTABLE", Units: units, Value: value}
	}
	list := []information{item(rm.MemoryName, "Mi", r.MemoryMiB()), item(rm.GPUName, "", int64(r.GPUs)), item(rm.VCoresName, "", int64(r.VCores))}
	for name, n := range r.Other.All() {
		list = append(list, item(name, "", n))
	}
	return resourceInfo{r.MemoryMiB(), r.VCores, informations{list}}
}

type entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// entries is a map; an empty one is {}.
type entries struct {
	Entry []entry `json:"entry,omitempty"`
}

type usage struct {
	Partition   string       `json:"partitionName"`
	Used        resourceInfo `json:"used"`
	Reserved    resourceInfo `json:"reserved"`
	Pending     resourceInfo `json:"pending"`
	AMUsed      resourceInfo `json:"amUsed"`
	AMLimit     resourceInfo `json:"amLimit"`
	UserAMLimit resourceInfo `json:"userAmLimit"`
}

type usages struct {
	ByPartition []usage `json:"resourceUsagesByPartition"`
}
