package yarnpb

import (
	"math"
	"net"
	"net/url"
	"strconv"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// Application writes an application's id.
func Application(id rm.ApplicationID) *ApplicationIdProto {
	return &ApplicationIdProto{Id: new(int32(id.Sequence)), ClusterTimestamp: new(id.Cluster)}
}

// ParseApplication reads what Application writes; false: it is none.
func ParseApplication(p *ApplicationIdProto) (rm.ApplicationID, bool) {
	id := rm.ApplicationID{Cluster: p.GetClusterTimestamp(), Sequence: int64(p.GetId())}
	return id, id.Cluster >= 0 && id.Sequence > 0
}

// Attempt writes an attempt's id.
func Attempt(id rm.AttemptID) *ApplicationAttemptIdProto {
	return &ApplicationAttemptIdProto{ApplicationId: Application(id.Application), AttemptId: new(int32(id.Number))}
}

// ParseAttempt reads what Attempt writes; false: it is none.
func ParseAttempt(p *ApplicationAttemptIdProto) (rm.AttemptID, bool) {
	app, ok := ParseApplication(p.GetApplicationId())
	return rm.AttemptID{Application: app, Number: int(p.GetAttemptId())}, ok && p.GetAttemptId() > 0
}

// epochBits is where the epoch begins in the number of a container (ContainerId.CONTAINER_ID_BITMASK is 40 ones).
const epochBits = 40

// Container writes a container's id: its epoch is above its number, in one integer.
func Container(id rm.ContainerID) *ContainerIdProto {
	return &ContainerIdProto{AppAttemptId: Attempt(id.Attempt), Id: new(id.Epoch<<epochBits | id.Number)}
}

// ParseContainer reads what Container writes, and what older clients write, who name the application beside the attempt; false: it is
// none.
func ParseContainer(p *ContainerIdProto) (rm.ContainerID, bool) {
	attempt, ok := ParseAttempt(p.GetAppAttemptId())
	n := p.GetId()
	return rm.ContainerID{Attempt: attempt, Epoch: n >> epochBits, Number: n & (1<<epochBits - 1)}, ok && n > 0
}

// Node writes an address host:port of a node manager's ipc, as which YARN's clients know a node; false: it is none.
func Node(address string) (*NodeIdProto, bool) {
	host, text, err := net.SplitHostPort(address)
	port, err2 := strconv.ParseUint(text, 10, 16)
	if err != nil || err2 != nil || host == "" {
		return &NodeIdProto{Host: &address, Port: new(int32)}, false
	}
	return &NodeIdProto{Host: &host, Port: new(int32(port))}, true
}

// ParseNode is host:port of what Node writes.
func ParseNode(p *NodeIdProto) string {
	return net.JoinHostPort(p.GetHost(), strconv.Itoa(int(p.GetPort())))
}

// Resource writes a resource in both forms that YARN's clients read: two amounts, and a list with all names, zero amounts too. Names are
// those to list beside memory and vcores.
func Resource(r rm.Resource, names []string) *ResourceProto {
	countable := ResourceTypesProto_COUNTABLE
	list := []*ResourceInformationProto{
		{Key: new(rm.MemoryName), Value: new(r.MemoryMiB()), Units: new("Mi"), Type: &countable},
		{Key: new(rm.VCoresName), Value: new(int64(r.VCores)), Units: new(""), Type: &countable},
	}
	for _, name := range names {
		if name != rm.MemoryName && name != rm.VCoresName {
			list = append(list, &ResourceInformationProto{Key: new(name), Value: new(r.Get(name)), Units: new(""), Type: &countable})
		}
	}
	return &ResourceProto{Memory: new(r.MemoryMiB()), VirtualCores: new(int32(min(r.VCores, math.MaxInt32))), ResourceValueMap: list}
}

// units are those of YARN's ResourceProto, and how many of one make a unit of none (UnitsConversionUtil). Fractions of one are not
// countable.
var units = map[string]int64{"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}

// ParseResource reads a resource as YARN does: memory and vcores from their own fields, the others from the list. A nil one is zero.
// Errors are of kind metadata.ErrInvalidArgument.
func ParseResource(p *ResourceProto) (rm.Resource, error) {
	bad := func(name string, n int64, unit string) error {
		return metadata.Errorf(metadata.ErrInvalidArgument, "Invalid resource request! Cannot allocate containers as requested resource is not countable! Requested resource type=[%.100s], Requested resource=%d%.10s", name, n, unit)
	}
	if m := p.GetMemory(); m < 0 || m > math.MaxInt64>>20 {
		return rm.Resource{}, bad(rm.MemoryName, m, "")
	}
	if n := p.GetVirtualCores(); n < 0 {
		return rm.Resource{}, bad(rm.VCoresName, int64(n), "")
	}
	out := rm.Resource{Memory: p.GetMemory() << 20, VCores: int(p.GetVirtualCores())}
	other := map[string]int64{}
	for _, i := range p.GetResourceValueMap() {
		name, n, unit := i.GetKey(), i.GetValue(), i.GetUnits()
		of, ok := units[unit]
		if name == rm.MemoryName || name == rm.VCoresName {
			continue
		}
		if !ok || n < 0 || n > math.MaxInt32/of {
			return rm.Resource{}, bad(name, n, unit)
		}
		if n *= of; name == rm.GPUName {
			out.GPUs = int(n)
		} else if n > 0 {
			other[name] = n
		}
	}
	var err error
	out.Other, err = rm.NewAmounts(other)
	return out, err
}

// URL writes a URL of YARN's as text; without a scheme it is a path of the default filesystem.
func URL(p *URLProto) string {
	if p.GetScheme() == "" {
		return p.GetFile()
	}
	u := url.URL{Scheme: p.GetScheme(), Host: p.GetHost(), Path: p.GetFile()}
	if u.Host != "" && p.GetPort() > 0 {
		u.Host = net.JoinHostPort(u.Host, strconv.Itoa(int(p.GetPort())))
	}
	return u.String()
}
