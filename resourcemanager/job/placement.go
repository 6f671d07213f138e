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
}

// IsZero reports whether it says nothing.
func (p Placement) IsZero() bool { return len(p.Attributes) == 0 && !p.Exclusive }

// Words checks what is said. Errors are of kind metadata.ErrInvalidArgument.
func (p Placement) Words() (rm.Placement, error) {
	attributes, err := rm.NewConditions(p.Attributes)
	if err != nil {
		return rm.Placement{}, err
	}
	return rm.Placement{Attributes: attributes, Exclusive: p.Exclusive}, nil
}
