package namespace

import (
	"fmt"
	"strings"

	"github.com/gohops/hops/metadata"
)

// quota limits what lies below a directory, the directory included. What is used is kept up to date by every command;
// nobody counts a tree but setQuota, and commands that move or delete a directory across the border of a quota, and those
// count small ones only: see op_survey_tree.go.
type quota struct {
	names, space int64 // metadata.QuotaUnset: no limit
	used         total
	types        *typeQuota // nil: types of volumes are not limited, and not counted
}

// usage is what counts for quotas: inodes, and bytes in all replicas and internal blocks. A block that is not complete counts as a full one.
// What only snapshots have is part of it: see snapshot_quota.go.
type usage struct {
	names, space int64
	types        typed // of space; see quota_types.go
}

func (u usage) minus(v usage) usage {
	return usage{u.names - v.names, u.space - v.space, u.types.minus(v.types)}
}

func (u usage) plus(v usage) usage {
	return usage{u.names + v.names, u.space + v.space, u.types.plus(v.types)}
}

// total is a usage without types of volumes.
type total struct{ names, space int64 }

func (u usage) total() total { return total{u.names, u.space} }

func (t total) usage() usage { return usage{names: t.names, space: t.space} }

// usage is what a quota has counted.
func (q *quota) usage() usage {
	u := q.used.usage()
	if q.types != nil {
		u.types = q.types.used
	}
	return u
}

func (n *inode) quota() *quota {
	if n.extra == nil {
		return nil
	}
	return n.extra.quota
}

// usageOf counts a tree. Directories with a quota know theirs. It gives up with errLargeTree when there are more entries
// than most; 0: never.
func (ns *Namespace) usageOf(top *inode, most int) (usage, error) {
	return ns.usageFor(top, ns.meta.typeQuotas > 0, most)
}

// usageFor is usageOf, where the types of volumes need not be counted.
func (ns *Namespace) usageFor(top *inode, types bool, most int) (usage, error) {
	var sum usage
	entries := 0
	if ns.meta.snapshots > 0 {
		most = min(most, historiesPerTurn)
	}
	stack := []*inode{top}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if n.file != nil {
			space, err := ns.spaceOf(n)
			if err != nil {
				return sum, err
			}
			sum = sum.plus(usage{1, space, n.spread(n.file.space(), n.file.replication)})
			continue
		}
		if q := n.quota(); q != nil && (q.types != nil || !types) {
			sum = sum.plus(q.usage())
			continue
		}
		sum = sum.plus(n.kept())
		sum.names++
		if entries += n.dir.entries; most > 0 && entries > most {
			return sum, errLargeTree
		}
		if n.dir.entries == 0 {
			continue
		}
		if err := ns.looked(looksPerDirectory + looksPerEntry*n.dir.entries); err != nil {
			return sum, err
		}
		if err := ns.loadAll(n); err != nil {
			return sum, err
		}
		n.dir.children.each("", func(child *inode) bool {
			stack = append(stack, child)
			return true
		})
	}
	return sum, nil
}

// charge adds u to what the quotas at and above dir have counted, and tells the surveys above it.
func (ns *Namespace) charge(dir *inode, u usage) {
	if u == (usage{}) {
		return
	}
	ns.unsettle(dir)
	if ns.meta.quotas == 0 {
		return
	}
	for ; dir != nil; dir = dir.parent {
		if q := dir.quota(); q != nil {
			ns.touch(dir)
			q.used = q.used.usage().plus(u).total()
			if q.types != nil {
				q.types.used = q.types.used.plus(u.types)
			}
		}
	}
}

// metered returns what a file uses now; recharge tells the quotas above it what became of that.
func (ns *Namespace) metered(n *inode) usage {
	if !ns.meters() {
		return usage{}
	}
	space, err := ns.spaceOf(n)
	if err != nil {
		ns.fatal(err)
	}
	return usage{space: space, types: n.spread(n.file.space(), n.file.replication)}
}

// meters reports whether somebody wants to know what files use.
func (ns *Namespace) meters() bool { return ns.meta.quotas > 0 || len(ns.meta.surveys) > 0 }

func (ns *Namespace) recharge(n *inode, before usage) {
	if !ns.meters() {
		return
	}
	ns.charge(n.parent, ns.metered(n).minus(before))
}

// limited reports whether there is a quota at or above dir, and below stop.
func (ns *Namespace) limited(dir, stop *inode) bool {
	if ns.meta.quotas == 0 {
		return false
	}
	for ; dir != nil && dir != stop; dir = dir.parent {
		if dir.quota() != nil {
			return true
		}
	}
	return false
}

// checkQuota checks that the quotas at and above dir, and below stop, allow more, after free has been given back.
//
// Errors: ErrNamespaceQuota, ErrSpaceQuota, ErrTypeQuota of the deepest directory that does not.
func (ns *Namespace) checkQuota(dir, stop *inode, free, more usage) error {
	if ns.meta.quotas == 0 {
		return nil
	}
	for ; dir != nil && dir != stop; dir = dir.parent {
		q := dir.quota()
		if q == nil {
			continue
		}
		used := q.used.usage().minus(free)
		if q.names >= 0 && more.names > 0 && used.names+more.names > q.names {
			return metadata.Errorf(metadata.ErrNamespaceQuota,
				"The NameSpace quota (directories and files) of directory %s is exceeded: quota=%d file count=%d",
				dir.path(), q.names, used.names+more.names)
		}
		if q.space >= 0 && more.space > 0 && used.space+more.space > q.space {
			return metadata.Errorf(metadata.ErrSpaceQuota,
				"The DiskSpace quota of %s is exceeded: quota = %d B = %s but diskspace consumed = %d B = %s",
				dir.path(), q.space, humanBytes(q.space), used.space+more.space, humanBytes(used.space+more.space))
		}
		if q.types != nil {
			if err := q.types.check(dir, free.types, more.types); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkRoomFor checks that count inodes can be made below dir one after the other, as HDFS does.
func (ns *Namespace) checkRoomFor(dir *inode, count int, free usage) error {
	if ns.meta.quotas == 0 {
		return nil
	}
	for i := 1; i <= count; i++ {
		if err := ns.checkQuota(dir, nil, free, usage{names: int64(i)}); err != nil {
			return err
		}
	}
	return nil
}

// humanBytes is Hadoop's TraditionalBinaryPrefix.long2String with two decimals.
func humanBytes(n int64) string {
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	if n < 1024 {
		return fmt.Sprintf("%s%d B", sign, n)
	}
	const prefixes = "KMGTPE"
	i := 0
	for i+1 < len(prefixes) && n >= 1<<(10*(i+2)) {
		i++
	}
	shift := 10 * (i + 1)
	if n&(1<<shift-1) == 0 {
		return fmt.Sprintf("%s%d %cB", sign, n>>shift, prefixes[i])
	}
	s := fmt.Sprintf("%.2f", float64(n)/float64(int64(1)<<shift))
	if strings.HasPrefix(s, "1024") && i+1 < len(prefixes) {
		s, i = "1.00", i+1
	}
	return fmt.Sprintf("%s%s %cB", sign, s, prefixes[i])
}
