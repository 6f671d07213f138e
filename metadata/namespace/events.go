package namespace

import (
	"strings"

	"github.com/gohops/hops/metadata"
)

// Events tell what commands have changed, as HDFS's inotify does: they are made where an operation succeeds, and never matter to the state. Quotas,
// storage policies, snapshots, leases and blocks of files that are being written make none, as in HDFS.

// keptEvents is how many events have memory that is used again.
const keptEvents = 4096

// tell adds an event about n, which is where its path says; nil: nobody wants to know.
func (ns *Namespace) tell(kind metadata.EventKind, n *inode) *metadata.Event {
	if ns.cfg.OnEvents == nil {
		return nil
	}
	ns.events = append(ns.events, metadata.Event{Kind: kind, Time: ns.meta.now, INode: n.id, Path: n.path()})
	e := &ns.events[len(ns.events)-1]
	if n.parent != nil {
		e.Parent = n.parent.id
	}
	return e
}

// tellCreate tells of a new inode; replaced is what it took the place of, 0 for nothing.
func (ns *Namespace) tellCreate(n *inode, overwrite bool, replaced metadata.INodeID) {
	e := ns.tell(metadata.EventCreate, n)
	if e == nil {
		return
	}
	e.Owner, e.Group, e.Mode, e.Overwrite, e.Replaced, e.Dir = n.owner.Value(), n.group.Value(), n.mode, overwrite, replaced, n.isDir()
	if n.file != nil {
		e.Replication, e.BlockSize = n.file.shownReplication(), n.file.blockSize
	}
	if n.extra.hasACL() {
		e.ACL = n.logicalACL()
	}
}

func (ns *Namespace) tellClose(n *inode) {
	if e := ns.tell(metadata.EventClose, n); e != nil {
		e.Length = n.file.length
	}
}

func (ns *Namespace) tellAppend(n *inode, newBlock bool) {
	if e := ns.tell(metadata.EventAppend, n); e != nil {
		e.NewBlock = newBlock
	}
}

func (ns *Namespace) tellTruncate(n *inode, length int64) {
	if e := ns.tell(metadata.EventTruncate, n); e != nil {
		e.Length = length
	}
}

// tellUnlink is called while n is still there.
func (ns *Namespace) tellUnlink(n *inode) { ns.tell(metadata.EventUnlink, n) }

// tellRename completes the event of a rename that tell began when n was where it came from. replaced is what was there, nil for nothing.
func (ns *Namespace) tellRename(e *metadata.Event, n, replaced *inode) {
	if e == nil {
		return
	}
	e.Target, e.TargetParent = n.path(), n.parent.id
	if replaced != nil {
		e.Overwrite, e.Replaced = true, replaced.id
	}
}

// tellUpdate tells what n has now; update completes it where that is not all.
func (ns *Namespace) tellUpdate(n *inode, what metadata.EventUpdate, update func(e *metadata.Event)) {
	e := ns.tell(metadata.EventMetadata, n)
	if e == nil {
		return
	}
	e.Update = what
	switch what {
	case metadata.UpdateReplication:
		e.Replication = n.file.replication
	case metadata.UpdatePermission:
		e.Mode = n.mode
	case metadata.UpdateACL:
		e.Mode = n.mode
		if n.extra.hasACL() {
			e.ACL = n.logicalACL()
		}
	}
	if update != nil {
		update(e)
	}
}

// continued says that the events from the ith on belong to one operation.
func (ns *Namespace) continued(i int) {
	for i++; i < len(ns.events); i++ {
		ns.events[i].Continued = true
	}
}

// VisibleEvents leaves of events what c may see: those whose directory is still where it was then, can be reached, and may be listed. Of a rename
// that may be one end only, the other one is empty then. Extended attributes are told to who may read them now.
func (ns *Namespace) VisibleEvents(c metadata.Caller, events []metadata.Event) ([]metadata.Event, error) {
	who := callerOf(c)
	visible := events[:0]
	type directory struct {
		id   metadata.INodeID
		path string
	}
	known := map[directory]bool{}
	listed := func(id metadata.INodeID, path string) (bool, error) {
		if path == "" {
			return false, nil
		}
		if id == 0 { // the root itself
			return true, nil
		}
		d := directory{id, path[:max(strings.LastIndexByte(path, '/'), 1)]}
		may, ok := known[d]
		if ok {
			return may, nil
		}
		err := ns.read(func() error {
			n, err := ns.byID(d.id)
			may = err == nil && n != nil && n.isDir() && n.attached() && who.may(n, metadata.Read) && n.path() == d.path
			for ; may && n != nil; n = n.parent {
				may = who.may(n, metadata.Execute)
			}
			return err
		})
		known[d] = may
		return may, err
	}
	for _, e := range events {
		from, err := listed(e.Parent, e.Path)
		if err != nil {
			return nil, err
		}
		to := false
		if e.Kind == metadata.EventRename {
			if to, err = listed(e.TargetParent, e.Target); err != nil {
				return nil, err
			}
		}
		if !from && !to {
			continue
		}
		if !from {
			e.Path, e.Parent = "", 0
		}
		if e.Kind == metadata.EventRename && !to {
			e.Target, e.TargetParent, e.Overwrite = "", 0, false
		}
		if e.Kind == metadata.EventMetadata && e.Update == metadata.UpdateXAttrs {
			if e.XAttrs, err = ns.visibleOf(&who, e.INode, e.XAttrs); err != nil {
				return nil, err
			}
			if len(e.XAttrs) == 0 {
				continue
			}
		}
		visible = append(visible, e)
	}
	return visible, nil
}

// visibleOf are those attributes of an inode that c may read where it is now.
func (ns *Namespace) visibleOf(c *caller, id metadata.INodeID, all []metadata.XAttr) (visible []metadata.XAttr, err error) {
	err = ns.read(func() error {
		visible = nil
		n, err := ns.byID(id)
		if err != nil || n == nil || !n.attached() || !c.may(n, metadata.Read) {
			return err
		}
		for dir := n.parent; dir != nil; dir = dir.parent {
			if !c.may(dir, metadata.Execute) {
				return nil
			}
		}
		for _, a := range all {
			if c.sees(a) {
				visible = append(visible, a)
			}
		}
		return nil
	})
	return visible, err
}
