package resourcemanager

import (
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
)

// Placement are the words of an ask that say beside what its containers may be. The zero value says nothing, and two can be compared with ==.
type Placement struct {
	// Attributes that a node must have.
	Attributes Conditions
	// Exclusive: each container gets a whole node on which nobody else is: all of its memory, vcores and GPUs, and what else it has. Nobody
	// else is placed there while it lives. The resources of the ask are the least that the node must have.
	Exclusive bool
	// Tags that each container carries, and Constraints about how many with a tag are near it.
	Tags        Tags
	Constraints Constraints
}

// IsZero reports whether nothing is said.
func (p Placement) IsZero() bool { return p == Placement{} }

// Bytes is how long its words are.
func (p Placement) Bytes() int {
	return len(p.Attributes.text) + len(p.Tags.text) + len(p.Constraints.text)
}

// MaxConditions bounds the conditions of one ask.
const MaxConditions = 16

// Conditions say what the attributes of a node must be, all at the same time (YARN-7812 has equal and not equal). For each name an
// expression: "570", one value; "a,b", one of several; "*", any; and behind a "!" the opposite, which a node without that attribute
// meets, too. They can be compared with ==, and the zero value is none.
type Conditions struct{ text string } // name=expression, in the order of names, with ;

// NewConditions takes expressions by name.
//
// Error: metadata.ErrInvalidArgument for a name or an expression that is none, and for more than MaxConditions.
func NewConditions(byName map[string]string) (Conditions, error) {
	if len(byName) > MaxConditions {
		return Conditions{}, metadata.Errorf(metadata.ErrInvalidArgument, "%d conditions for attributes: at most %d", len(byName), MaxConditions)
	}
	list := make([]string, 0, len(byName))
	for name, expression := range byName {
		text := strings.ReplaceAll(expression, " ", "")
		values := strings.Split(strings.TrimPrefix(text, "!"), ",")
		if len(values) > 1 || values[0] != "*" {
			for _, v := range values {
				if err := ValidAttribute(name, v); err != nil || v == "" {
					return Conditions{}, metadata.Errorf(metadata.ErrInvalidArgument,
						`%.100q is no condition for attribute %.100q: a value, several with commas, or *, and a ! before it for the opposite`, expression, name)
				}
			}
		} else if err := ValidAttribute(name, ""); err != nil {
			return Conditions{}, err
		}
		list = append(list, name+"="+text)
	}
	slices.SortFunc(list, byNameFirst)
	return Conditions{strings.Join(list, ";")}, nil
}

// byNameFirst is the order of name=… by name.
func byNameFirst(a, b string) int {
	x, _, _ := strings.Cut(a, "=")
	y, _, _ := strings.Cut(b, "=")
	return strings.Compare(x, y)
}

// IsZero reports whether there are none.
func (c Conditions) IsZero() bool { return c.text == "" }

// String is name=expression, in the order of names, with semicolons.
func (c Conditions) String() string { return c.text }

// Map is the expressions by name; nil when there are none.
func (c Conditions) Map() map[string]string {
	if c.text == "" {
		return nil
	}
	out := map[string]string{}
	for x := range strings.SplitSeq(c.text, ";") {
		name, expression, _ := strings.Cut(x, "=")
		out[name] = expression
	}
	return out
}

// Unmet is the first condition, as name=expression, that a node with these attributes does not meet; empty: it meets all.
func (c Conditions) Unmet(a Attributes) string {
	if c.text == "" {
		return ""
	}
	for x := range strings.SplitSeq(c.text, ";") {
		name, expression, _ := strings.Cut(x, "=")
		value, there := a.Get(name)
		values, not := strings.CutPrefix(expression, "!")
		met := there && (values == "*" || slices.Contains(strings.Split(values, ","), value))
		if met == not {
			return x
		}
	}
	return ""
}
