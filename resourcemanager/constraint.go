package resourcemanager

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/metadata"
)

// MaxTags bounds the tags and MaxConstraints the constraints of one ask. Unbounded is a constraint's Max that bounds nothing.
const (
	MaxTags        = 8
	MaxConstraints = 8
	Unbounded      = math.MaxInt32
)

// Tags are what the containers of an ask carry, so that constraints can name them (allocation tags, YARN-6592). They can be compared with
// ==, and the zero value is none.
type Tags struct{ text string } // sorted, with commas

// NewTags takes tags in any order.
//
// Error: metadata.ErrInvalidArgument for a name that is none, see ValidResourceName; and for more than MaxTags.
func NewTags(list []string) (Tags, error) {
	sorted := slices.Compact(slices.Sorted(slices.Values(list)))
	if len(sorted) > MaxTags {
		return Tags{}, metadata.Errorf(metadata.ErrInvalidArgument, "%d tags: at most %d", len(sorted), MaxTags)
	}
	for _, tag := range sorted {
		if !ValidResourceName(tag) {
			return Tags{}, metadata.Errorf(metadata.ErrInvalidArgument, "%.100q is no tag: up to 64 letters, digits, '.', '_', '-', and one '/' after a prefix", tag)
		}
	}
	return Tags{strings.Join(sorted, ",")}, nil
}

// List is the tags, sorted; nil when there are none.
func (t Tags) List() []string {
	if t.text == "" {
		return nil
	}
	return strings.Split(t.text, ",")
}

// IsZero reports whether there are none.
func (t Tags) IsZero() bool { return t.text == "" }

// Constraint says how many containers of the same application with a tag may be near a container: of the others in its scope, counted
// when all that is granted at once is placed, at least Min and at most Max. Max 0 is anti-affinity, Min 1 affinity (YARN-6592,
// targetNotIn, targetIn and cardinality). The first container with a tag needs no other: of one that carries the tag itself and comes
// alone, Min counts only once its application has some.
type Constraint struct {
	Tag string
	// Scope is node, rack, or the depth of a rack's path, 1 being the outermost.
	Scope    string
	Min, Max int
}

// The words of Constraint.Scope beside depths.
const (
	ScopeNode = "node"
	ScopeRack = "rack"
)

// String says it for people.
func (c Constraint) String() string {
	where := "in one part of level " + c.Scope + " of the network"
	switch c.Scope {
	case ScopeNode:
		where = "on one node"
	case ScopeRack:
		where = "in one rack"
	}
	switch {
	case c.Max == Unbounded:
		return fmt.Sprintf("%d others at least with tag %s %s", c.Min, c.Tag, where)
	case c.Min == 0:
		return fmt.Sprintf("%d others at most with tag %s %s", c.Max, c.Tag, where)
	}
	return fmt.Sprintf("%d to %d others with tag %s %s", c.Min, c.Max, c.Tag, where)
}

// Constraints are those of an ask, all of which hold. They can be compared with ==, and the zero value is none.
type Constraints struct{ text string } // tag scope min max, with ;

// NewConstraints takes constraints.
//
// Error: metadata.ErrInvalidArgument for a tag or a scope that is none, for bounds that are none, and for more than MaxConstraints.
func NewConstraints(list []Constraint) (Constraints, error) {
	if len(list) > MaxConstraints {
		return Constraints{}, metadata.Errorf(metadata.ErrInvalidArgument, "%d constraints: at most %d", len(list), MaxConstraints)
	}
	var parts []string
	for _, c := range list {
		depth, err := strconv.Atoi(c.Scope)
		switch {
		case !ValidResourceName(c.Tag):
			return Constraints{}, metadata.Errorf(metadata.ErrInvalidArgument, "%.100q is no tag: up to 64 letters, digits, '.', '_', '-', and one '/' after a prefix", c.Tag)
		case c.Scope != ScopeNode && c.Scope != ScopeRack && (err != nil || depth < 1 || depth > MaxDepth || c.Scope != strconv.Itoa(depth)):
			return Constraints{}, metadata.Errorf(metadata.ErrInvalidArgument, "scope %.100q is not node, rack, or the depth of a rack's path", c.Scope)
		case c.Min < 0 || c.Max < c.Min || c.Max > Unbounded || c.Min == 0 && c.Max == Unbounded:
			return Constraints{}, metadata.Errorf(metadata.ErrInvalidArgument, "min %d and max %d, for tag %s, bound nothing, or leave nothing", c.Min, c.Max, c.Tag)
		}
		parts = append(parts, fmt.Sprintf("%s %s %d %d", c.Tag, c.Scope, c.Min, c.Max))
	}
	return Constraints{strings.Join(parts, ";")}, nil
}

// List is the constraints; nil when there are none.
func (c Constraints) List() []Constraint {
	if c.text == "" {
		return nil
	}
	var out []Constraint
	for part := range strings.SplitSeq(c.text, ";") {
		f := strings.Fields(part)
		x := Constraint{Tag: f[0], Scope: f[1]}
		x.Min, _ = strconv.Atoi(f[2])
		x.Max, _ = strconv.Atoi(f[3])
		out = append(out, x)
	}
	return out
}

// IsZero reports whether there are none.
func (c Constraints) IsZero() bool { return c.text == "" }

// String says them for people.
func (c Constraints) String() string {
	var parts []string
	for _, x := range c.List() {
		parts = append(parts, x.String())
	}
	return strings.Join(parts, ", ")
}
