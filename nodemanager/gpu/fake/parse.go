package fake

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/yaml"
	"github.com/gohops/hops/nodemanager"
	rm "github.com/gohops/hops/resourcemanager"
)

type document struct {
	GPUs   []deviceLine `yaml:"gpus"`
	Script []scriptLine `yaml:"script"`
}

type deviceLine struct {
	UUID   string            `yaml:"uuid"`
	Model  string            `yaml:"model"`
	Memory string            `yaml:"memory"`
	Minor  *int              `yaml:"minor"`
	PCI    string            `yaml:"pci"`
	Links  map[string]string `yaml:"links"`
	// MIG is a list of profiles, or none.
	MIG any `yaml:"mig"`
}

type scriptLine struct {
	At          string   `yaml:"at"`
	GPU         string   `yaml:"gpu"`
	XID         int      `yaml:"xid"`
	Health      string   `yaml:"health"`
	Reason      string   `yaml:"reason"`
	Utilization *float64 `yaml:"utilization"`
	MemoryUsed  string   `yaml:"memory_used"`
	MIG         any      `yaml:"mig"`
}

// maxDevices and maxScript bound a file.
const (
	maxDevices = 1024
	maxScript  = 10000
	// maxInstances is NVML's, of one GPU.
	maxInstances = 8
)

// Parse reads a description. Errors name the file and the line.
func Parse(name string, text []byte) (*Source, error) {
	lines, err := yaml.ReadLines(name, text)
	if err != nil {
		return nil, err
	}
	var doc document
	if err := yaml.UnmarshalStrict(name, text, &doc); err != nil {
		return nil, err
	}
	p := &parsing{name: name, lines: lines, minors: map[int]bool{}}
	s := &Source{name: "file"}
	if len(doc.GPUs) > maxDevices || len(doc.Script) > maxScript {
		return nil, fmt.Errorf("%s: %d devices and %d script lines, the most are %d and %d", name, len(doc.GPUs), len(doc.Script), maxDevices, maxScript)
	}
	index := map[string]int{}
	for i, g := range doc.GPUs {
		d, err := p.device(i, g)
		if err != nil {
			return nil, err
		}
		if first, ok := index[d.UUID]; ok {
			return nil, p.errorf(i, "gpus", "uuid %s is used a second time, first by device %d", d.UUID, first+1)
		}
		index[d.UUID] = i
		profiles, err := p.layout(i, "gpus", d, g.MIG)
		if err != nil {
			return nil, err
		}
		if profiles != nil {
			if s.layouts == nil {
				s.layouts = map[string][]string{}
			}
			s.layouts[d.UUID] = profiles
		}
		s.devices = append(s.devices, d)
	}
	if err := p.islands(doc, s.devices, index); err != nil {
		return nil, err
	}
	for i, l := range doc.Script {
		st, err := p.step(i, l, index, s.devices)
		if err != nil {
			return nil, err
		}
		s.script = append(s.script, st)
	}
	slices.SortStableFunc(s.script, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return s, nil
}

type parsing struct {
	name   string
	lines  *yaml.Lines
	minors map[int]bool
}

// errorf names the line on which element i of a list begins.
func (p *parsing) errorf(i int, list, format string, args ...any) error {
	where := ""
	if line := p.lines.Of(fmt.Sprintf("$.%s[%d]", list, i)); line > 0 {
		where = fmt.Sprintf(" line %d:", line)
	}
	return fmt.Errorf("%s:%s %s", p.name, where, fmt.Sprintf(format, args...))
}

func (p *parsing) device(i int, g deviceLine) (nodemanager.GPU, error) {
	d := nodemanager.GPU{UUID: g.UUID, Model: g.Model, Minor: i, PCI: g.PCI, Simulated: true, Health: nodemanager.Healthy}
	if g.UUID == "" || strings.ContainsAny(g.UUID, ", \t\n=") {
		return d, p.errorf(i, "gpus", "uuid %q is empty or has a comma, space or equals sign", g.UUID)
	}
	if g.Model == "" {
		return d, p.errorf(i, "gpus", "device %s has no model", g.UUID)
	}
	size, err := config.ParseSize(g.Memory)
	if err != nil || size <= 0 {
		return d, p.errorf(i, "gpus", "memory of %s: %q is not a size such as 80GiB", g.UUID, g.Memory)
	}
	d.Memory = int64(size)
	if g.Minor != nil {
		d.Minor = *g.Minor
	}
	if d.Minor < 0 || p.minors[d.Minor] {
		return d, p.errorf(i, "gpus", "minor %d of %s is negative or used twice", d.Minor, g.UUID)
	}
	p.minors[d.Minor] = true
	return d, nil
}

// layout reads the profiles of a GPU's instances, which must fit it; nil: it is not divided.
func (p *parsing) layout(i int, list string, d nodemanager.GPU, mig any) ([]string, error) {
	if mig == nil || mig == "none" {
		return nil, nil
	}
	all, ok := mig.([]any)
	if !ok {
		return nil, p.errorf(i, list, "mig: %.100q is neither a list of profiles nor none", fmt.Sprint(mig))
	}
	profiles, count, sum := []string{}, 0, int64(0)
	for _, x := range all {
		profile, _ := x.(string)
		memory := memoryOf(profile)
		if !rm.ValidProfile(profile) || memory == 0 {
			return nil, p.errorf(i, list, "mig: %.100q is no profile such as 1g.5gb", fmt.Sprint(x))
		}
		profiles, count, sum = append(profiles, profile), count+rm.ProfileSlices(profile), sum+memory
	}
	if count > 7 || len(profiles) > maxInstances || sum > d.Memory {
		return nil, p.errorf(i, list, "mig: %d instances of %d slices with %s of memory are more than %s has, 7 slices with %s", len(profiles), count,
			nodemanager.ByteSize(sum), d.UUID, nodemanager.ByteSize(d.Memory))
	}
	return profiles, nil
}

// islands joins linked devices; an island is called after its first device.
func (p *parsing) islands(doc document, devices []nodemanager.GPU, index map[string]int) error {
	root := make([]int, len(devices))
	for i := range root {
		root[i] = i
	}
	find := func(i int) int {
		for root[i] != i {
			i = root[i]
		}
		return i
	}
	linked := make([]bool, len(devices))
	for i, g := range doc.GPUs {
		for peer := range g.Links {
			j, ok := index[peer]
			if !ok || j == i {
				return p.errorf(i, "gpus", "link of %s to %q, which is not another device of this file", g.UUID, peer)
			}
			linked[i], linked[j] = true, true
			a, b := find(i), find(j)
			root[max(a, b)] = min(a, b)
		}
	}
	for i := range devices {
		if linked[i] {
			devices[i].Island = devices[find(i)].UUID
		}
	}
	return nil
}

func (p *parsing) step(i int, l scriptLine, index map[string]int, devices []nodemanager.GPU) (step, error) {
	st := step{gpu: l.GPU, xid: l.XID, health: nodemanager.GPUHealth(l.Health), reason: l.Reason, utilization: l.Utilization}
	var err error
	if st.at, err = time.ParseDuration(l.At); err != nil || st.at < 0 {
		return st, p.errorf(i, "script", "at: %q is not a time such as 30s", l.At)
	}
	at, ok := index[l.GPU]
	if !ok {
		return st, p.errorf(i, "script", "gpu %q is not a device of this file", l.GPU)
	}
	if l.MIG != nil {
		var err error
		if st.mig, err = p.layout(i, "script", devices[at], l.MIG); err != nil {
			return st, err
		}
		st.whole = st.mig == nil
	}
	if l.XID < 0 {
		return st, p.errorf(i, "script", "xid %d is negative", l.XID)
	}
	switch st.health {
	case "", nodemanager.Healthy, nodemanager.Suspect, nodemanager.Quarantined, nodemanager.Retired:
	default:
		return st, p.errorf(i, "script", "health %q is none of HEALTHY, SUSPECT, QUARANTINED, RETIRED", l.Health)
	}
	if u := l.Utilization; u != nil && (*u < 0 || *u > 100) {
		return st, p.errorf(i, "script", "utilization %v is outside 0..100", *u)
	}
	if l.MemoryUsed != "" {
		size, err := config.ParseSize(l.MemoryUsed)
		if err != nil {
			return st, p.errorf(i, "script", "memory_used: %v", err)
		}
		n := int64(size)
		st.memoryUsed = &n
	}
	if st.xid == 0 && st.health == "" && st.utilization == nil && st.memoryUsed == nil && l.MIG == nil {
		return st, p.errorf(i, "script", "the line changes nothing: it has neither xid, health, utilization, memory_used nor mig")
	}
	return st, nil
}
