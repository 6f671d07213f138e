package resourcemanager

import (
	"maps"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
)

// MaxLabels bounds the labels that the cluster knows without a node that carries them, and maxLabel the length of one (as in YARN).
const (
	MaxLabels = 1_000
	maxLabel  = 255
)

// NodeLabel is a label that the cluster knows, whether or not a node carries it.
type NodeLabel struct {
	Name string
	// Exclusive is shown as it was said. Here no label keeps work off that does not ask for it.
	Exclusive bool
}

// ValidLabel is an error of metadata.ErrInvalidArgument when a node cannot carry a label (CommonNodeLabelsManager.checkAndThrowLabelName).
func ValidLabel(name string) error {
	ok := name != "" && len(name) <= maxLabel && isAlphanumeric(rune(name[0])) && !strings.ContainsFunc(name, func(r rune) bool {
		return !isAlphanumeric(r) && r != '-' && r != '_'
	})
	if !ok {
		return metadata.Errorf(metadata.ErrInvalidArgument, "label name should only contains {0-9, a-z, A-Z, -, _} and should not started with {-,_}, now it is= %.100s", name)
	}
	return nil
}

// Mark works out the labels and attributes that a node has, of its own and those that an operator has set.
func (n *Node) Mark() {
	n.Labels = n.OwnLabels
	if n.Labelled {
		n.Labels = n.SetLabels
	}
	all := n.OwnAttributes.Map()
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, n.SetAttributes.Map())
	var err error
	if n.Attributes, err = NewAttributes(all); err != nil { // together they are too many
		n.Attributes = n.OwnAttributes
	}
}

// Carries reports whether the node has a label.
func (n *Node) Carries(label string) bool { return slices.Contains(n.Labels, label) }
