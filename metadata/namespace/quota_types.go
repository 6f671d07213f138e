package namespace

import (
	"slices"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// A quota may limit what lies on volumes of a type. What counts is what the storage policy wants that a file's blocks obey (placed), not where replicas are: replica i of a block is on the
// policy's type i, or its last one. So the books change with files alone, and not when a directory above gets another policy, or replicas fall back to other volumes. Internal blocks of groups all
// count for the policy's last type. What only snapshots have counts for no type.

const quotaTypes = len(metadata.QuotaTypes)

// typed is bytes by type of volume, in the order of metadata.QuotaTypes.
type typed [quotaTypes]int64

// The indices of types, and the one of what has no quota.
const (
	onDisk = iota
	onSSD
	onArchive
	onProvided
	onNVDIMM
	onMemory
)

// policyTypes are the types of the replicas of each storage policy; of the others it is that of the default.
var policyTypes = [maxPolicy + 1][]int{
	1: {onProvided, onDisk}, 2: {onArchive}, 5: {onDisk, onArchive}, hotPolicy: {onDisk}, 10: {onSSD, onDisk}, 12: {onSSD}, 14: {onNVDIMM}, lazyPersistPolicy: {onMemory, onDisk},
}

func (t typed) plus(u typed) typed {
	for i := range t {
		t[i] += u[i]
	}
	return t
}

func (t typed) minus(u typed) typed {
	for i := range t {
		t[i] -= u[i]
	}
	return t
}

// spread is on which types bytes in all of so many replicas of a file lie.
func (n *inode) spread(bytes int64, replication uint16) (t typed) {
	return spreadBy(n.placed(), n.file.coded(), bytes, replication)
}

// spreadBy is spread of a file that obeys a storage policy, in groups or replicated.
func spreadBy(policy uint8, coded bool, bytes int64, replication uint16) (t typed) {
	types := policyTypes[policy]
	if types == nil {
		types = policyTypes[hotPolicy]
	}
	add := func(i int, bytes int64) {
		if i != onMemory {
			t[i] += bytes
		}
	}
	last := types[len(types)-1]
	if coded {
		add(last, bytes)
		return t
	}
	if replication == 0 { // damaged, as Check tells
		return t
	}
	left, each := int64(replication), bytes/int64(replication)
	for _, i := range types[:len(types)-1] {
		if left > 0 {
			add(i, each)
			left--
		}
	}
	add(last, left*each)
	return t
}

// uses is what bytes in all replicas of a file are for quotas.
func (n *inode) uses(bytes int64) usage {
	return usage{space: bytes, types: n.spread(bytes, n.file.replication)}
}

// typeQuota limits types of volumes.
type typeQuota struct {
	limits [quotaTypes]int64 // metadata.QuotaUnset: no limit
	used   typed
}

func (q *typeQuota) limited() bool {
	return slices.ContainsFunc(q.limits[:], func(n int64) bool { return n >= 0 })
}

// with is the quota with another limit; nil: it limits nothing. q may be nil.
func (q *typeQuota) with(i int, limit int64) *typeQuota {
	next := &typeQuota{}
	if q != nil {
		*next = *q
	} else {
		for i := range next.limits {
			next.limits[i] = metadata.QuotaUnset
		}
	}
	if next.limits[i] = limit; !next.limited() {
		return nil
	}
	return next
}

func (q *typeQuota) encode(r *logpb.Quota) {
	if q == nil {
		return
	}
	for i := range q.limits {
		r.TypeLimits = append(r.TypeLimits, uint64(q.limits[i]+1))
	}
	r.UsedTypes = append(r.UsedTypes, q.used[:]...)
}

// decodeTypeQuota is the inverse of encode. False: the record is damaged.
func decodeTypeQuota(r *logpb.Quota) (*typeQuota, bool) {
	if len(r.TypeLimits) == 0 && len(r.UsedTypes) == 0 {
		return nil, true
	}
	if len(r.TypeLimits) != quotaTypes || len(r.UsedTypes) != quotaTypes {
		return nil, false
	}
	q := &typeQuota{used: typed(r.UsedTypes)}
	for i, n := range r.TypeLimits {
		q.limits[i] = int64(n - 1)
	}
	return q, q.limited()
}

// check checks that the limits allow more after free has been given back.
//
// Errors: ErrTypeQuota.
func (q *typeQuota) check(dir *inode, free, more typed) error {
	for i, limit := range q.limits {
		if used := q.used[i] - free[i] + more[i]; limit >= 0 && more[i] > 0 && used > limit {
			return metadata.Errorf(metadata.ErrTypeQuota, "Quota by storage type : %s on path : %s is exceeded. quota = %s but space consumed = %s",
				metadata.QuotaTypes[i].Name, dir.path(), humanBytes(limit), humanBytes(used))
		}
	}
	return nil
}

// list are the limits as callers see them.
func (q *typeQuota) list() (all []metadata.TypeQuota) {
	if q == nil {
		return nil
	}
	for i, t := range metadata.QuotaTypes {
		all = append(all, metadata.TypeQuota{QuotaType: t, Quota: q.limits[i], Consumed: q.used[i]})
	}
	return all
}

// typedOf is what a command's proposer has counted.
func typedOf(counted []int64) (t typed, ok bool) {
	if len(counted) != quotaTypes {
		return t, false
	}
	return typed(counted), !slices.ContainsFunc(counted, func(n int64) bool { return n < 0 })
}

// counted is what a survey has counted, if that is all that has to be.
func (ns *Namespace) counted(valid bool, names, space int64, types []int64) (u usage, ok bool) {
	t, all := typedOf(types)
	u = usage{names: names, space: space, types: t}
	return u, valid && names > 0 && space >= 0 && (all || ns.meta.typeQuotas == 0 && len(types) == 0)
}
