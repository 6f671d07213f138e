package resourcemanager

import (
	"iter"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
)

// MaxAttributes bounds the attributes of one node, maxAttributeValue the length of a value in bytes.
const (
	MaxAttributes     = 64
	maxAttributeValue = 128
)

// Attributes are what is true of a node, by name: gpu_driver=570, zone=a (YARN-3409). Unlike labels they divide nothing, and a node has one
// value of each. They can be compared with ==, and the zero value is none.
type Attributes struct{ text string } // name=value, in the order of names, with commas

// NewAttributes takes values by name.
//
// Error: metadata.ErrInvalidArgument for a name that is none, see ValidResourceName; for a value that is none, see ValidAttributeValue;
// and for more than MaxAttributes.
func NewAttributes(byName map[string]string) (Attributes, error) {
	if len(byName) > MaxAttributes {
		return Attributes{}, metadata.Errorf(metadata.ErrInvalidArgument, "%d attributes of a node: at most %d", len(byName), MaxAttributes)
	}
	list := make([]string, 0, len(byName))
	for name, value := range byName {
		if err := ValidAttribute(name, value); err != nil {
			return Attributes{}, err
		}
		list = append(list, name+"="+value)
	}
	slices.SortFunc(list, byNameFirst)
	return Attributes{strings.Join(list, ",")}, nil
}

// ValidAttribute is an error of metadata.ErrInvalidArgument when a node cannot have an attribute of the name and value.
func ValidAttribute(name, value string) error {
	switch {
	case !ValidResourceName(name):
		return metadata.Errorf(metadata.ErrInvalidArgument, "%.100q is no name of an attribute: up to 64 letters, digits, '.', '_', '-', and one '/' after a prefix", name)
	case !ValidAttributeValue(value):
		return metadata.Errorf(metadata.ErrInvalidArgument, "%.100q, of attribute %s, is no value of one: up to %d letters, digits and '.', '_', '-', '+', ':', '/', '@'", value, name, maxAttributeValue)
	}
	return nil
}

// ValidAttributeValue reports whether an attribute can have the value. It may be empty, where it matters only that there is one.
func ValidAttributeValue(s string) bool {
	return len(s) <= maxAttributeValue && !strings.ContainsFunc(s, func(r rune) bool { return !isAlphanumeric(r) && !strings.ContainsRune("._-+:/@", r) })
}

// All yields the attributes in the order of names.
func (a Attributes) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		if a.text == "" {
			return
		}
		for x := range strings.SplitSeq(a.text, ",") {
			name, value, _ := strings.Cut(x, "=")
			if !yield(name, value) {
				return
			}
		}
	}
}

// Get is the value of an attribute; false: there is none of that name.
func (a Attributes) Get(name string) (string, bool) {
	for n, value := range a.All() {
		if n == name {
			return value, true
		}
	}
	return "", false
}

// Map is all attributes by name; nil when there are none.
func (a Attributes) Map() map[string]string {
	if a.text == "" {
		return nil
	}
	out := map[string]string{}
	for name, value := range a.All() {
		out[name] = value
	}
	return out
}

// distributed is the prefix under which YARN shows what node managers say of themselves (NodeAttribute.PREFIX_DISTRIBUTED).
const distributed = "nm.yarn.io"

// YARNAttribute splits a name into YARN's prefix and name.
func YARNAttribute(name string) (prefix, own string) {
	if prefix, own, ok := strings.Cut(name, "/"); ok {
		return prefix, own
	}
	return distributed, name
}

// IsZero reports whether there are none.
func (a Attributes) IsZero() bool { return a.text == "" }

// String is name=value, in the order of names, with commas.
func (a Attributes) String() string { return a.text }
