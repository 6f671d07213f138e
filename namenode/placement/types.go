package placement

import (
	"slices"

	"github.com/gohops/hops/namenode"
)

// typeSet is a set of storage types.
type typeSet uint16

const (
	// anyType is for who has no policy.
	anyType = ^typeSet(0)
	// unserved are the types of which nothing is placed: what is in memory is lost with its machine, and nobody writes it to a disk in
	// time (LAZY_PERSIST); PROVIDED is another system's.
	unserved = 1<<namenode.RAMDisk | 1<<namenode.Provided
)

func (s typeSet) has(t namenode.StorageType) bool { return s>>t&1 != 0 }

func setOf(ts []namenode.StorageType) (s typeSet) {
	for _, t := range ts {
		s |= 1 << t
	}
	return s
}

// wanted are the types of n replicas (BlockStoragePolicy.chooseStorageTypes).
func wanted(p *namenode.StoragePolicy, n int) []namenode.StorageType {
	ts := make([]namenode.StorageType, n)
	for i := range ts {
		ts[i] = p.Types[min(i, len(p.Types)-1)]
	}
	return ts
}

// subtract takes the members of b off a, each as often as b has it, and returns what is left of both.
func subtract(a, b []namenode.StorageType) (left, over []namenode.StorageType) {
	left = slices.Clone(a)
	for _, t := range b {
		if i := slices.Index(left, t); i >= 0 {
			left = slices.Delete(left, i, i+1)
		} else {
			over = append(over, t)
		}
	}
	return left, over
}

// Difference is what a block with n replicas wanted has too much of by its policy, and what it lacks, each type as often as that. For types of which nothing is placed here stands
// what the policy falls back to.
func Difference(p *namenode.StoragePolicy, n int, have []namenode.StorageType) (over, need []namenode.StorageType) {
	want := wanted(p, n)
	for i, t := range want {
		if typeSet(unserved).has(t) {
			want[i] = p.ReplicationFallback[slices.IndexFunc(p.ReplicationFallback, func(f namenode.StorageType) bool { return !typeSet(unserved).has(f) })]
		}
	}
	need, over = subtract(want, have)
	return over, need
}

// Excess are the types of which a block with n replicas wanted has more than its policy says, each as often as that
// (BlockStoragePolicy.chooseExcess).
func Excess(p *namenode.StoragePolicy, n int, have []namenode.StorageType) []namenode.StorageType {
	_, over := subtract(wanted(p, n), have)
	return over
}

// missing are the types that a block lacks which has replicas on volumes of some types and is to have n, when volumes of
// others can take none. Fewer than n are the answer when no type is left for some.
func missing(p *namenode.StoragePolicy, n int, have []namenode.StorageType, gone typeSet, isNew bool) []namenode.StorageType {
	need, over := subtract(wanted(p, n), have)
	fallback := p.ReplicationFallback
	if isNew {
		fallback = p.CreationFallback
	}
	out := need[:0]
	for _, t := range need {
		if gone.has(t) {
			i := slices.IndexFunc(fallback, func(f namenode.StorageType) bool { return !gone.has(f) })
			if i < 0 {
				continue
			}
			t = fallback[i]
		}
		out = append(out, t)
	}
	// What the block has too many of may be what another type fell back to.
	out, _ = subtract(out, over)
	return out[:min(len(out), max(0, n-len(have)))]
}
