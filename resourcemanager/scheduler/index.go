package scheduler

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	rm "github.com/gohops/hops/resourcemanager"
)

// class is what nodes have in common that does not change with what runs on them.
type class struct {
	number     int
	labels     []string
	attributes rm.Attributes
}

// bucket holds the open nodes that are alike in everything that counts for a placement: class, amounts left, and free devices by
// island and kind. What is true of one is true of all.
type bucket struct {
	key     string
	class   *class
	list    int
	members heap[*node] // the least id first
}

// list holds the buckets of nodes with one number of free devices, in the order in which they are used up: by memory left, then
// vcores. Nodes that have no GPUs at all are in the first list, so that work without GPUs finds them first.
type list struct {
	buckets []*bucket
	// spread counts those in which the free devices are in more than one island.
	spread int
}

func (b *bucket) node() *node { return b.members.list[0] }

func (b *bucket) compare(o *bucket) int {
	x, y := b.node(), o.node()
	return cmp.Or(cmp.Compare(x.room.Memory, y.room.Memory), cmp.Compare(x.room.VCores, y.room.VCores), cmp.Compare(b.key, o.key))
}

// isSpread reports whether no island has all free devices of a node.
func (n *node) isSpread() bool {
	some := 0
	for i := range n.islands {
		if len(n.islands[i].free) > 0 {
			some++
		}
	}
	return some > 1
}

// classify finds the class of a node.
func (m *Model) classify(n *node) {
	key := strings.Join(n.Labels, "\x00") + "\x00\x00" + n.Attributes.String()
	c := m.classes[key]
	if c == nil {
		c = &class{number: len(m.classes), labels: n.Labels, attributes: n.Attributes}
		m.classes[key] = c
	}
	n.class = c
}

// key is that of the bucket in which a node belongs.
func (m *Model) key(n *node) []byte {
	b := m.scratch[:0]
	b = binary.AppendUvarint(b, uint64(n.class.number))
	b = binary.AppendVarint(b, n.room.Memory)
	b = binary.AppendVarint(b, int64(n.room.VCores))
	flags := byte(0)
	if n.places > 0 {
		flags |= 1
	}
	if len(n.devices) == 0 {
		flags |= 2
	}
	if n.empty() {
		flags |= 4
	}
	b = append(b, flags)
	if n.reserved != nil {
		b = append(b, n.ID...) // one of its own
	}
	b = append(b, 0)
	for name, amount := range n.room.Other.All() {
		b = append(b, name...)
		b = binary.AppendVarint(append(b, 0), amount)
	}
	b = append(b, 0)
	if len(n.islands) == 1 {
		b = n.islands[0].key(b)
	} else if len(n.islands) > 1 {
		parts := make([]string, 0, len(n.islands))
		for i := range n.islands {
			if len(n.islands[i].free) > 0 {
				parts = append(parts, string(n.islands[i].key(nil)))
			}
		}
		slices.Sort(parts)
		for _, p := range parts {
			b = append(binary.AppendUvarint(b, uint64(len(p))), p...)
		}
	}
	m.scratch = b
	return b
}

func (i *island) key(b []byte) []byte {
	for _, c := range i.kinds {
		if c.n > 0 {
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(c.kind)), uint64(c.n))
		}
	}
	return b
}

// file puts an open node into its bucket, unfile takes it out. Between them its room may change.
func (m *Model) file(n *node) {
	if n.Closed {
		return
	}
	k := m.key(n)
	b := m.buckets[string(k)]
	if b != nil {
		n.bucket = b
		b.members.push(n)
		return
	}
	b = &bucket{key: string(k), class: n.class}
	if len(n.devices) > 0 {
		b.list = n.room.GPUs + 1
	}
	b.members.less = func(x, y *node) bool { return x.ID < y.ID }
	m.buckets[b.key] = b
	n.bucket = b
	b.members.push(n)
	for len(m.lists) <= b.list {
		m.lists = append(m.lists, list{})
	}
	l := &m.lists[b.list]
	at, _ := slices.BinarySearchFunc(l.buckets, b, (*bucket).compare)
	l.buckets = slices.Insert(l.buckets, at, b)
	if n.isSpread() {
		l.spread++
	}
}

func (m *Model) unfile(n *node) {
	b := n.bucket
	if b == nil {
		return
	}
	if len(b.members.list) == 1 {
		l := &m.lists[b.list]
		at, _ := slices.BinarySearchFunc(l.buckets, b, (*bucket).compare)
		l.buckets = slices.Delete(l.buckets, at, at+1)
		if n.isSpread() {
			l.spread--
		}
		delete(m.buckets, b.key)
	}
	b.members.remove(n)
	n.bucket = nil
}

// from is where in a list the first bucket is that has the memory.
func (l *list) from(memory int64) []*bucket {
	if memory <= 0 {
		return l.buckets
	}
	i, _ := slices.BinarySearchFunc(l.buckets, memory, func(b *bucket, need int64) int {
		return cmp.Or(cmp.Compare(b.node().room.Memory, need), 1)
	})
	return l.buckets[i:]
}
