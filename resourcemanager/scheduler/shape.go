package scheduler

import (
	"slices"
	"strings"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
)

// form is everything of an ask on which it depends where there is room for it.
type form struct {
	Resource  rm.Resource
	Unit      int // containers that are granted at once
	Model     string
	GPUMemory int64
	Island    bool
	Within    string
	Label     string
	Strict    bool
	rm.Placement
	// Nodes and Excluded are names of nodes, each with a zero byte behind it.
	Nodes, Excluded string
	// Near is where its data lies, and Wait how long it waits for room there, at each stage.
	Near rm.Near
	Wait time.Duration
	// Lasts is for how long at most, rounded up; 0: unknown.
	Lasts time.Duration
	// App is whose it is, where it has constraints, which are about containers of that alone.
	App rm.ApplicationID
	// Reservation is the number of the one that it has; 0: none.
	Reservation int64
	// Pins is its queue where it cannot be preempted, and others are guaranteed cells.
	Pins *queue
}

// shape is a form that somebody asks for. Asks of one shape have one verdict.
type shape struct {
	form
	nodes, excluded []string
	places          *places // nil: it does not matter where
	// anyKind: every GPU will do. kinds says which will: 0 not looked at yet, 1 yes, -1 no.
	anyKind bool
	kinds   []int8
	// met says of classes of nodes whether they meet the conditions: 0 not looked at yet, 1 yes, -1 no.
	met []int8
	m   *Model
	// constraints, and what they are counted with, see tags.go.
	constraints []constraint
	counted     uint64
	// lanes that have asks of the shape.
	lanes []*lane
	// closed: there was no room for one unit at the last plan, and no node has grown since that would take some of it.
	closed bool
	// said is why, at a version of the model.
	said   rm.Reason
	saidAt uint64
}

func (m *Model) formOf(app rm.ApplicationID, a *rm.Ask, unit int) form {
	f := form{
		Resource: a.Resource, Unit: unit, Label: a.Label, Within: a.Within,
		Strict: a.Strict, Nodes: joined(a.Nodes), Excluded: joined(a.Excluded), Lasts: roundUp(a.Walltime),
		Placement: a.Placement, Near: a.Near, Wait: m.nearWait(a),
	}
	if f.Constraints.IsZero() {
		f.Tags = rm.Tags{} // nobody asks for its own
	} else {
		f.App = app
	}
	if f.Resource.GPUs > 0 {
		f.Model, f.GPUMemory, f.Island = strings.ToLower(a.Model), a.GPUMemory, a.Island
		if f.Model == "any" {
			f.Model = ""
		}
	}
	return f
}

func joined(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return strings.Join(names, "\x00") + "\x00"
}

// split is the names, sorted.
func split(names string) []string {
	if names == "" {
		return nil
	}
	list := strings.Split(strings.TrimSuffix(names, "\x00"), "\x00")
	slices.Sort(list)
	return list
}

// roundUp makes few lengths out of many: four steps between a power of two and the next.
func roundUp(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	step := time.Second
	for 8*step < d {
		step *= 2
	}
	return (d + step - 1) / step * step
}

func (m *Model) shape(f form) *shape {
	s := m.shapes[f]
	if s == nil {
		s = m.newShape(f)
		m.shapes[f] = s
		if len(s.constraints) > 0 {
			m.tagsOf(f.App).shapes[s] = true
		}
	}
	return s
}

func (m *Model) newShape(f form) *shape {
	return &shape{
		form: f, m: m, nodes: split(f.Nodes), excluded: split(f.Excluded), places: placesOf(f.Near), anyKind: f.Model == "" && f.GPUMemory == 0, constraints: constraintsOf(&f),
	}
}

// kind is one sort of GPU.
type kind struct {
	model  string
	memory int64
}

// kind numbers the sort of a device.
func (m *Model) kind(g *GPU) int {
	k := kind{strings.ToLower(g.Model), g.Memory}
	if i := slices.Index(m.kinds, k); i >= 0 {
		return i
	}
	m.kinds = append(m.kinds, k)
	return len(m.kinds) - 1
}

// takes reports whether a sort of device is what the shape asks for.
func (s *shape) takes(kind int) bool {
	if s.anyKind {
		return true
	}
	for len(s.kinds) <= kind {
		s.kinds = append(s.kinds, 0)
	}
	if s.kinds[kind] == 0 {
		k := s.m.kinds[kind]
		s.kinds[kind] = -1
		if strings.Contains(k.model, s.Model) && k.memory >= s.GPUMemory {
			s.kinds[kind] = 1
		}
	}
	return s.kinds[kind] > 0
}

// meets reports whether nodes of a class have the attributes that the shape asks for.
func (s *shape) meets(c *class) bool {
	if s.Attributes.IsZero() {
		return true
	}
	for len(s.met) <= c.number {
		s.met = append(s.met, 0)
	}
	if s.met[c.number] == 0 {
		s.met[c.number] = -1
		if s.Attributes.Unmet(c.attributes) == "" {
			s.met[c.number] = 1
		}
	}
	return s.met[c.number] > 0
}

// admits applies what does not depend on amounts.
func (n *node) admits(s *shape) bool {
	return !n.Closed && s.meets(n.class) && (s.Label == "" || slices.Contains(n.Labels, s.Label)) && !n.named(s.excluded) && (!s.Strict || s.insists(n))
}
