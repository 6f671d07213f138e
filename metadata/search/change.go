package search

import (
	"cmp"
	"path"
	"slices"

	"github.com/gohops/hops/metadata"
)

// writer changes the content by events, each of which is taken once.
type writer struct {
	layers
	entries int64
	// odd is how many events were of what is not there.
	odd int64
	// orphans: a directory is gone, and what was below it is still in the index.
	orphans bool
}

// present is the value of keys that have none.
var present = []byte{}

func (w *writer) node(id metadata.INodeID) (*node, error) {
	return w.layers.node(id)
}

// node is what the index knows of an inode, nil if nothing.
func (l *layers) node(id metadata.INodeID) (*node, error) {
	value, err := l.get(idKey(classINode, id))
	if value == nil || err != nil {
		return nil, err
	}
	return decode(value)
}

// replace puts what is known of an inode in the place of what was; nil: nothing.
func (w *writer) replace(id metadata.INodeID, before, after *node) {
	var keep []string
	if after != nil {
		after.each(id, func(key string) { keep = append(keep, key) })
	}
	if before == nil {
		w.entries++
	} else {
		before.each(id, func(key string) {
			if i := slices.Index(keep, key); i >= 0 {
				keep = slices.Delete(keep, i, i+1) // it is there
				return
			}
			w.recent.set(key, nil)
		})
	}
	for _, key := range keep {
		w.recent.set(key, present)
	}
	if after == nil {
		w.entries--
		w.recent.set(idKey(classINode, id), nil)
		return
	}
	w.recent.set(idKey(classINode, id), after.encode())
}

// remove takes an inode out, if it is there.
func (w *writer) remove(id metadata.INodeID) error {
	n, err := w.node(id)
	if n == nil || err != nil {
		return err
	}
	w.replace(id, n, nil)
	w.orphans = w.orphans || n.dir
	return nil
}

// change applies fn to what is known of an inode.
func (w *writer) change(id metadata.INodeID, fn func(n *node)) error {
	before, err := w.node(id)
	if err != nil {
		return err
	}
	if before == nil {
		w.odd++
		return nil
	}
	after := *before
	after.tags = slices.Clone(before.tags)
	fn(&after)
	w.replace(id, before, &after)
	return nil
}

// take applies an event.
func (w *writer) take(e *metadata.Event) error {
	switch e.Kind {
	case metadata.EventCreate:
		if e.Replaced != 0 {
			if err := w.remove(e.Replaced); err != nil {
				return err
			}
		}
		w.replace(e.INode, nil, &node{parent: e.Parent, name: path.Base(e.Path), dir: e.Dir})
	case metadata.EventClose, metadata.EventTruncate:
		return w.change(e.INode, func(n *node) { n.sized, n.size = true, e.Length })
	case metadata.EventRename:
		if e.Replaced != 0 {
			if err := w.remove(e.Replaced); err != nil {
				return err
			}
		}
		return w.change(e.INode, func(n *node) { n.parent, n.name = e.TargetParent, path.Base(e.Target) })
	case metadata.EventUnlink:
		return w.remove(e.INode)
	case metadata.EventMetadata:
		if e.Update == metadata.UpdateXAttrs && slices.ContainsFunc(e.XAttrs, isTag) {
			return w.change(e.INode, func(n *node) { n.retag(e.XAttrs, e.Removed) })
		}
	}
	return nil
}

func isTag(a metadata.XAttr) bool {
	_, ok := tagOf(a)
	return ok
}

// retag sets or removes tags.
func (n *node) retag(attributes []metadata.XAttr, removed bool) {
	for _, a := range attributes {
		t, ok := tagOf(a)
		if !ok {
			continue
		}
		i, there := slices.BinarySearchFunc(n.tags, t, func(a, b tag) int { return cmp.Compare(a.name, b.name) })
		switch {
		case there && removed:
			n.tags = slices.Delete(n.tags, i, i+1)
		case there:
			n.tags[i] = t
		case !removed:
			n.tags = slices.Insert(n.tags, i, t)
		}
	}
}
