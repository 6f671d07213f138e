package namespace

import (
	"sort"

	"github.com/tidwall/btree"
)

// children are the entries of a directory that are in memory, in the order of their names. The zero value has none.
//
// A path ends in one of a few entries mostly, and what finding it costs is waiting for memory: a tree of names looks at four
// names of sixteen, each somewhere else. So a small directory is a list with the hashes of the names beside the entries, which
// is read in one go, and the only name that is looked at is, as good as always, the right one.
type children struct {
	few  []child // while there is no tree
	many *btree.Map[string, *inode]
}

// child is an entry with the hash of its name.
type child struct {
	hash uint64
	node *inode
}

// fewChildren is how many entries a directory has at most without a tree.
const fewChildren = 64

// count returns how many there are.
func (c *children) count() int {
	if c.many != nil {
		return c.many.Len()
	}
	return len(c.few)
}

// get returns the entry of a name; nil when there is none.
func (c *children) get(name string) *inode {
	if c.many != nil {
		n, _ := c.many.Get(name)
		return n
	}
	if i := c.find(name); i >= 0 {
		return c.few[i].node
	}
	return nil
}

// find returns the place of a name among few; -1 when it is not there.
func (c *children) find(name string) int {
	if len(c.few) == 0 {
		return -1
	}
	hash := hashName(name)
	for i := range c.few {
		if c.few[i].hash == hash && c.few[i].node.name == name {
			return i
		}
	}
	return -1
}

// add puts n in under its name, in place of what has it.
func (c *children) add(n *inode) {
	if c.many != nil {
		c.many.Set(n.name, n)
		return
	}
	if i := c.find(n.name); i >= 0 {
		c.few[i].node = n
		return
	}
	if len(c.few) == fewChildren {
		c.many = new(btree.Map[string, *inode])
		for _, e := range c.few {
			c.many.Set(e.node.name, e.node)
		}
		c.few = nil
		c.many.Set(n.name, n)
		return
	}
	i := c.after(n.name)
	c.few = append(c.few, child{})
	copy(c.few[i+1:], c.few[i:])
	c.few[i] = child{hashName(n.name), n}
}

// remove takes a name out, if it is there.
func (c *children) remove(name string) {
	if c.many != nil {
		if c.many.Delete(name); c.many.Len() == 0 {
			c.many = nil
		}
		return
	}
	i := c.find(name)
	if i < 0 {
		return
	}
	copy(c.few[i:], c.few[i+1:])
	c.few[len(c.few)-1] = child{}
	if c.few = c.few[:len(c.few)-1]; len(c.few) == 0 {
		c.few = nil
	}
}

// first returns the entry with the least name; nil when there is none.
func (c *children) first() *inode {
	if c.many != nil {
		_, n, _ := c.many.Min()
		return n
	}
	if len(c.few) > 0 {
		return c.few[0].node
	}
	return nil
}

// after returns how many entries have a name up to and including this one.
func (c *children) after(name string) int {
	if c.many != nil {
		return sort.Search(c.many.Len(), func(i int) bool {
			s, _, _ := c.many.GetAt(i) // the tree finds the ith entry fast
			return s > name
		})
	}
	// Names that come in their order are common.
	if k := len(c.few); k > 0 && c.few[k-1].node.name <= name {
		return k
	}
	return sort.Search(len(c.few), func(i int) bool { return c.few[i].node.name > name })
}

// each calls fn with the entries behind a name, in the order of their names, until it returns false; no entry has the empty
// name, so behind that are all. Small directories' entries are not looked at.
func (c *children) each(behind string, fn func(n *inode) bool) {
	if c.many != nil {
		c.many.Ascend(behind, func(name string, n *inode) bool { return name == behind || fn(n) })
		return
	}
	from := 0
	if behind != "" {
		from = c.after(behind)
	}
	for _, e := range c.few[from:] {
		if !fn(e.node) {
			return
		}
	}
}

// hashName is a hash of a name, or of a path, that is quick for short ones. Nothing but time depends on it.
func hashName[S string | []byte](s S) uint64 {
	const prime = 0x9E3779B97F4A7C15
	h := uint64(len(s)) * prime
	for ; len(s) >= 8; s = s[8:] {
		h ^= uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		h *= prime
		h ^= h >> 32
	}
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * prime
	}
	return h
}
