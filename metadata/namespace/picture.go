package namespace

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Picture is what the newest complete checkpoint has of files and directories. It never changes, and who reads it is in nobody's way.
type Picture struct {
	// Index is the last entry of the log that is in it, 0 before there is a checkpoint: it is empty then.
	Index uint64
	v     *version
	apart bool
}

// Pictured is a file or a directory of a picture.
type Pictured struct {
	ID metadata.INodeID
	// Parent is the directory that it is in. It is 0 for the root and for the hidden directory of what was deleted.
	Parent metadata.INodeID
	Name   string
	Dir    bool
	// Open: a writer has the file open. Length is that of its finished blocks, in bytes.
	Open   bool
	Length int64
	XAttrs []metadata.XAttr
}

// Picture opens the newest checkpoint for reading. It has to be closed.
func (ns *Namespace) Picture() *Picture {
	of := &ns.versions
	of.content.RLock()
	defer of.content.RUnlock()
	of.mu.Lock()
	defer of.mu.Unlock()
	p := &Picture{Index: of.current, v: &version{ns: ns, life: of.life}, apart: of.apart}
	p.v.ref.Index = of.current
	if of.open == nil {
		of.open = map[uint64]int{}
	}
	of.open[of.current]++
	return p
}

// Close lets the checkpoint go.
func (p *Picture) Close() { p.v.Close() }

// Read calls visit with what comes behind a place, nil for the beginning, most of it at most. It returns the place to go on; nil: that was all.
//
// Errors: fs.ErrNotExist when the state was replaced by that of another member meanwhile; that of visit; those of the store.
func (p *Picture) Read(after []byte, most int, visit func(*Pictured) error) (next []byte, err error) {
	if p.Index == 0 {
		return nil, nil
	}
	of := &p.v.ns.versions
	of.content.RLock()
	defer of.content.RUnlock()
	of.mu.Lock()
	gone := of.life != p.v.life
	of.mu.Unlock()
	if gone {
		return nil, fmt.Errorf("namespace: checkpoint %d: %w", p.Index, fs.ErrNotExist)
	}
	view := p.v.ns.cfg.Store.View(p.Index)
	defer view.Close()
	return p.scan(view, after, most, visit)
}

func (p *Picture) scan(view kv.View, after []byte, most int, visit func(*Pictured) error) (next []byte, err error) {
	var last []byte
	var record logpb.INode
	bad := eachEntry(view, p.apart, []byte{classEntry}, after, most, func(key, value []byte) bool {
		if string(key) == string(after) {
			return true
		}
		if most--; most < 0 {
			next = last
			return false
		}
		parent, name, ok := splitEntry(key[1:])
		record.Reset()
		if uerr := record.UnmarshalVT(value); uerr != nil || !ok {
			err = errors.Join(fmt.Errorf("namespace: checkpoint %d: a record of class %c: %w", p.Index, classEntry, metadata.ErrCorrupt), uerr)
			return false
		}
		n := Pictured{ID: metadata.INodeID(record.Id), Parent: parent, Name: name, Dir: record.File == nil}
		if f := record.File; f != nil {
			n.Open = f.Construction != nil
			for _, l := range f.BlockLength {
				n.Length += l
			}
		}
		for _, a := range record.Xattrs {
			n.XAttrs = append(n.XAttrs, metadata.XAttr{Namespace: metadata.XAttrNamespace(a.Namespace), Name: a.Name, Value: a.Value})
		}
		last = append(last[:0], key...)
		err = visit(&n)
		return err == nil
	})
	return next, errors.Join(err, bad)
}

// FindBelow tells of inodes what a caller would see who lists the tree at the directory top, and all below: those that are there now, in directories that
// may be read and searched from top on, and reached from the root. top itself is one of them. Others, and those that are gone, are nil.
//
// Errors: those of the checkpoint.
func (ns *Namespace) FindBelow(c metadata.Caller, top metadata.INodeID, ids []metadata.INodeID) ([]*metadata.Found, error) {
	who := callerOf(c)
	found := make([]*metadata.Found, len(ids))
	for i, id := range ids {
		err := ns.read(func() error {
			found[i] = nil
			n, err := ns.byID(id)
			if err != nil || n == nil || !n.attached() || !who.mayFind(n, top) {
				return err
			}
			f := &metadata.Found{}
			n.describe(&f.FileStatus, n.policies())
			f.Name, f.Path = n.name, n.path()
			if n.extra != nil && who.may(n, metadata.Read) {
				for _, a := range n.extra.xattrs {
					if who.sees(a) {
						f.XAttrs = append(f.XAttrs, a)
					}
				}
			}
			found[i] = f
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// mayFind reports whether n is below top, or top, and c comes to see it by listing the directories between.
func (c *caller) mayFind(n *inode, top metadata.INodeID) bool {
	inside, want := n.id == top, metadata.Execute
	if !inside {
		want |= metadata.Read
	}
	for n = n.parent; n != nil; n = n.parent {
		if !c.may(n, want) {
			return false
		}
		if n.id == top {
			inside, want = true, metadata.Execute
		}
	}
	return inside
}
