package server

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/blockmanager"
)

// policySummary counts blocks by the types of the volumes that they lie on, and by the storage policies that they should obey: HDFS's
// StoragePolicySummary. There are few combinations, so it stays small.
type policySummary struct {
	counts map[policyCount]int64
	blocks int64
}

// policyCount is a storage policy, and on how many volumes of each type a block lies, in the order of volumeTypes.
type policyCount struct {
	policy *namenode.StoragePolicy
	types  [len(volumeTypes)]int
}

// volumeTypes are in the order of Java's StorageType, in which HDFS sorts and prints them.
var volumeTypes = [...]namenode.StorageType{namenode.RAMDisk, namenode.SSD, namenode.Disk, namenode.Archive, namenode.Provided, namenode.NVDIMM}

// add counts a block, of which the damaged replicas count if there are no others, as a client of HDFS is told of these then.
func (s *policySummary) add(policy *namenode.StoragePolicy, r *blockmanager.BlockReport, corrupt bool) {
	c := policyCount{policy: policy}
	for _, at := range r.At {
		if !at.Dead && (at.Good || corrupt && at.Corrupt) {
			c.types[max(0, slices.Index(volumeTypes[:], at.Type))]++
		}
	}
	if s.counts == nil {
		s.counts = map[policyCount]int64{}
	}
	s.counts[c]++
	s.blocks++
}

// obeyed is the first policy that wants a block exactly where it is; nil: none does.
func (c *policyCount) obeyed() *namenode.StoragePolicy {
	var lie []int // the types of its replicas, sorted
	for i, n := range c.types {
		for range n {
			lie = append(lie, i)
		}
	}
	for i := range namenode.StoragePolicies {
		p := &namenode.StoragePolicies[i]
		want := make([]int, len(p.Types))
		for j, t := range p.Types {
			want[j] = slices.Index(volumeTypes[:], t)
		}
		slices.Sort(want)
		if len(want) > len(lie) || !slices.Equal(want, lie[:len(want)]) {
			continue
		}
		last := want[len(want)-1] // that of all further ones, as HDFS's summary has it
		if !slices.ContainsFunc(lie[len(want):], func(t int) bool { return t != last }) {
			return p
		}
	}
	return nil
}

// where says where a block lies: DISK:2,ARCHIVE:1(WARM).
func (c *policyCount) where() string {
	var parts []string
	for i, n := range c.types {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%v:%d", volumeTypes[i], n))
		}
	}
	text := strings.Join(parts, ",")
	if p := c.obeyed(); p != nil {
		text += "(" + p.Name + ")"
	}
	return text
}

// print is StoragePolicySummary.toString, the most frequent ones first.
func (s *policySummary) print(w io.Writer) {
	rows := slices.SortedFunc(maps.Keys(s.counts), func(a, b policyCount) int {
		return cmp.Or(cmp.Compare(s.counts[b], s.counts[a]), strings.Compare(a.where(), b.where()), strings.Compare(a.policy.Name, b.policy.Name))
	})
	var others strings.Builder
	fmt.Fprint(w, "\nBlocks satisfying the specified storage policy:\nStorage Policy                  # of blocks       % of blocks\n")
	for _, c := range rows {
		n := s.counts[c]
		percent := fmt.Sprintf("%.4f%%", 100*float64(n)/float64(s.blocks))
		if c.obeyed() == c.policy {
			fmt.Fprintf(w, "%-25s %10d  %20s\n", c.where(), n, percent)
			continue
		}
		if others.Len() == 0 {
			others.WriteString("\nBlocks NOT satisfying the specified storage policy:\nStorage Policy                  Specified Storage Policy      # of blocks       % of blocks\n")
		}
		fmt.Fprintf(&others, "%-35s %-20s %10d  %20s\n", c.where(), c.policy.Name, n, percent)
	}
	if others.Len() == 0 {
		others.WriteString("\nAll blocks satisfy specified storage policy.\n")
	}
	fmt.Fprint(w, others.String())
}
