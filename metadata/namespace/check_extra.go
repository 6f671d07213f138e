package namespace

import (
	"slices"

	"github.com/gohops/hops/metadata"
)

// visitExtra looks at what few inodes have, and notes what n counts for quotas.
func (c *checker) visitExtra(n *inode, s *seen) {
	s.usage = usage{names: 1}
	if n.file != nil {
		s.usage = usage{names: 1}.plus(n.uses(n.file.space()))
	}
	x := n.extra
	if x == nil {
		return
	}
	if x.empty() {
		c.report("inode %d has an empty extra", n.id)
	}
	if !slices.IsSortedFunc(x.xattrs, compareXAttrs) || visible(x.xattrs) > metadata.MaxXAttrs {
		c.report("inode %d has %d extended attributes, or not in order", n.id, len(x.xattrs))
	}
	if list, err := validACL(n.logicalACL()); err != nil {
		c.report("inode %d: %w", n.id, err)
	} else if !slices.Equal(list, n.logicalACL()) {
		c.report("inode %d has an access control list that is not in order", n.id)
	}
	if len(x.inherited) > 0 && !n.isDir() {
		c.report("inode %d is a file and has default entries", n.id)
	}
	s.kept, s.claim = x.kept, x.claim
	s.usage = s.usage.plus(x.kept.usage())
	if x.quota != nil {
		c.quotas++
		s.quota = x.quota
		if x.quota.types != nil {
			c.typeQuotas++
		}
		if !n.isDir() || x.quota.names < 0 && x.quota.space < 0 && (x.quota.types == nil || !x.quota.types.limited()) {
			c.report("inode %d has the quota %d, %d", n.id, x.quota.names, x.quota.space)
		}
	}
}

// quotaUsage counts what lies below directories with a quota.
func (c *checker) quotaUsage() {
	if c.quotas == 0 {
		return
	}
	used := map[metadata.INodeID]usage{}
	for id, s := range c.inodes {
		at := id
		for range 2 * metadata.MaxPathDepth {
			a := c.inodes[at]
			if a == nil {
				break
			}
			if a.quota != nil {
				used[at] = used[at].plus(s.usage)
			}
			at = a.parent
		}
	}
	for id, s := range c.inodes {
		if s.quota == nil || !c.attached(id) {
			continue
		}
		if u, q := used[id], s.quota; u.total() != q.used || q.types != nil && u.types != q.types.used {
			c.report("directory %d has %+v below it, its quota says %+v", id, u, q.usage())
		}
	}
}

// attached reports whether an inode is below the root.
func (c *checker) attached(id metadata.INodeID) bool {
	for range 2 * metadata.MaxPathDepth {
		s := c.inodes[id]
		if s == nil {
			return false
		}
		if s.parent == 0 {
			return id == metadata.RootID
		}
		id = s.parent
	}
	return false
}
