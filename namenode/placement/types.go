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
	// memory is the type of which only replicas of new blocks are placed, as a policy wants it: their datanode brings them to a disk of its own.
	memory = 1 << namenode.RAMDisk
	// unserved are the types to which nothing is copied or moved; PROVIDED is another system's.
	unserved = memory | 1<<namenode.Provided
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

// Difference is what a block with n replicas wanted has too much of by its policy, and what it lacks, each type as often as that. For types to which nothing is moved stands
// what the policy falls back to, and a replica in memory that the policy wants there, as long as its datanode leaves it there, is neither.
func Difference(p *namenode.StoragePolicy, n int, have []namenode.StorageType) (over, need []namenode.StorageType) {
	want, have := inMemory(wanted(p, n), have)
	for i, t := range want {
		if typeSet(unserved).has(t) {
			want[i] = p.ReplicationFallback[slices.IndexFunc(p.ReplicationFallback, func(f namenode.StorageType) bool { return !typeSet(unserved).has(f) })]
		}
	}
	need, over = subtract(want, have)
	return over, need
}

// inMemory takes the memory that is wanted off both, where it is there.
func inMemory(want, have []namenode.StorageType) (w, h []namenode.StorageType) {
	at, is := slices.Index(want, namenode.RAMDisk), slices.Index(have, namenode.RAMDisk)
	if at < 0 || is < 0 {
		return want, have
	}
	return slices.Delete(slices.Clone(want), at, at+1), slices.Delete(slices.Clone(have), is, is+1)
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
