package hdfs

import (
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// PolicyByName finds a storage policy by its name, in letters of any case (BlockStoragePolicySuite.getPolicy).
func PolicyByName(name string) (*namenode.StoragePolicy, error) {
	for i := range namenode.StoragePolicies {
		if strings.EqualFold(namenode.StoragePolicies[i].Name, name) {
			return &namenode.StoragePolicies[i], nil
		}
	}
	return nil, metadata.Errorf(metadata.ErrInvalidArgument, "Cannot find a block policy with the name %s", name)
}

// ErasureCodec is a code and the names of what computes it.
type ErasureCodec struct{ Name, Coders string }

// ErasureCodecs are the codes that policies can be of, by name.
func ErasureCodecs() []ErasureCodec {
	var all []ErasureCodec
	for _, p := range metadata.ErasurePolicies() {
		if c := (ErasureCodec{p.Codec, p.Codec + "_go"}); p.Built() && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// ErasureName is what a content summary says of the erasure coding of a file, or of files that are made in a directory.
func ErasureName(s *metadata.ContentSummary) string {
	p, coded := metadata.ErasurePolicyOf(s.Erasure)
	if !coded && s.Directories == 0 { // a file
		return "Replicated"
	}
	return p.Name
}
