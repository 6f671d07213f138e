package job

import (
	rm "github.com/gohops/hops/resourcemanager"
)

// Placement says beside what containers may be, see rm.Placement.
type Placement struct {
	// Attributes are conditions for those of the node, by name: "570", "a,b" for one of them, "*" for any, "!a" for the opposite.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Exclusive: each gets a whole node, with all that it has.
	Exclusive bool `json:"exclusive,omitempty"`
	// Tags that each carries, for constraints.
	Tags        []string     `json:"tags,omitempty"`
	Constraints []Constraint `json:"constraints,omitempty"`
}

// Constraint says how many others of the job with a tag may be near each container: none at all with max 0 (anti-affinity), at least one
// with min 1 (affinity).
type Constraint struct {
	Tag string `json:"tag"`
	// Scope is node (default), rack, or the depth of a rack's path, 1 being the outermost.
	Scope string `json:"scope,omitempty"`
	Min   int    `json:"min,omitempty"`
	// Max is absent where there may be any number.
	Max *int `json:"max,omitempty"`
}

// IsZero reports whether it says nothing.
func (p Placement) IsZero() bool {
	return len(p.Attributes)+len(p.Tags)+len(p.Constraints) == 0 && !p.Exclusive
}

// Words checks what is said. Errors are of kind metadata.ErrInvalidArgument.
func (p Placement) Words() (rm.Placement, error) {
	attributes, err := rm.NewConditions(p.Attributes)
	if err != nil {
		return rm.Placement{}, err
	}
	tags, err := rm.NewTags(p.Tags)
	if err != nil {
		return rm.Placement{}, err
	}
	var list []rm.Constraint
	for _, c := range p.Constraints {
		x := rm.Constraint{Tag: c.Tag, Scope: c.Scope, Min: c.Min, Max: rm.Unbounded}
		if x.Scope == "" {
			x.Scope = rm.ScopeNode
		}
		if c.Max != nil {
			x.Max = *c.Max
		}
		list = append(list, x)
	}
	constraints, err := rm.NewConstraints(list)
	if err != nil {
		return rm.Placement{}, err
	}
	return rm.Placement{Attributes: attributes, Exclusive: p.Exclusive, Tags: tags, Constraints: constraints}, nil
}
