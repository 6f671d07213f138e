package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// PlaceAtOnce is how many files one command places.
const PlaceAtOnce = 256

// placeFiles has the blocks of files obey the policies that hold for them now. What is no file any more is passed over.
//
// Errors: ErrInvalidArgument for more files than PlaceAtOnce.
func (ns *Namespace) placeFiles(t *txn, op *logpb.PlaceFiles) {
	if len(op.Inodes) > PlaceAtOnce {
		t.failf(metadata.ErrInvalidArgument, "%d files are to be placed at once, %d may", len(op.Inodes), PlaceAtOnce)
		return
	}
	var files []*inode
	for _, id := range op.Inodes {
		n, err := ns.byID(metadata.INodeID(id))
		if err != nil {
			t.fail(err)
			return
		}
		if n != nil && n.file != nil && n.attached() && n.placed() != n.placing() {
			files = append(files, n)
		}
	}
	for _, n := range files {
		if n.placed() == n.placing() { // named twice
			continue
		}
		before := ns.metered(n)
		ns.touch(n)
		n.own().placed = n.placing()
		n.tidy()
		ns.recharge(n, before)
		ns.allChanged(n)
	}
	t.result.OK = true
}

// Placeable are those of some files for which quotas of types have room if they obey the policies that hold for them now, all together: what was renamed to below another policy, or lies below
// one that was given later, counts for what it obeyed until it is placed. over is how many blocks the others have. What is no file any more is passed over.
//
// Errors: those of the store.
func (ns *Namespace) Placeable(files []PlacedFile) (roomy []uint64, over int64, err error) {
	err = ns.read(func() error {
		more := map[metadata.INodeID]typed{} // of directories with quotas, by those before
		for _, f := range files {
			n, err := ns.byID(f.INode)
			if err != nil {
				return err
			}
			if n == nil || n.file == nil || !n.attached() {
				continue
			}
			change := spreadBy(n.placing(), n.file.coded(), n.file.space(), n.file.replication).minus(n.spread(n.file.space(), n.file.replication))
			fits := true
			for dir := n.parent; dir != nil && fits; dir = dir.parent {
				if q := dir.quota(); q != nil && q.types != nil {
					fits = q.types.check(dir, typed{}.minus(more[dir.id]), change) == nil
				}
			}
			if !fits {
				over += int64(len(n.file.blocks))
				continue
			}
			for dir := n.parent; dir != nil; dir = dir.parent {
				if q := dir.quota(); q != nil && q.types != nil {
					more[dir.id] = more[dir.id].plus(change)
				}
			}
			roomy = append(roomy, uint64(n.id))
		}
		return nil
	})
	return roomy, over, err
}

// PlacedFile is a file as Files tells of it.
type PlacedFile struct {
	INode metadata.INodeID
	// Stale: its blocks obey another storage policy than holds for it now.
	Stale bool
	// Blocks are those that it has.
	Blocks []metadata.BlockID
}

// Files goes through the files of a tree, or the one file that its top is, some at a time, and lets commands in between: what comes, goes or moves meanwhile may be left out or come
// twice. fn is called without a lock; it may keep what it gets, and its error ends the walk.
func (ns *Namespace) Files(top metadata.INodeID, fn func([]PlacedFile) error) error {
	stack := []metadata.INodeID{top}
	var pages page
	for len(stack) > 0 {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for after, more := "", true; more; {
			var files []PlacedFile
			err := ns.read(func() error {
				files, more = files[:0], false
				n, err := ns.byID(id)
				if err != nil || n == nil || !n.attached() {
					return err
				}
				add := func(n *inode) error {
					// What was not made to be lazily persisted does not become so: it could be lost with its machine, and be deleted for it.
					stale := n.placed() != n.placing() && n.placing() != lazyPersistPolicy
					f := PlacedFile{INode: n.id, Stale: stale, Blocks: make([]metadata.BlockID, len(n.file.blocks))}
					for i, b := range n.file.blocks {
						f.Blocks[i] = b.ID
					}
					files = append(files, f)
					return nil
				}
				if !n.isDir() {
					return add(n)
				}
				var below []metadata.INodeID
				upTo, again, err := ns.turn(n, after, &pages, func(child *inode) error {
					if child.isDir() {
						below = append(below, child.id)
						return nil
					}
					return add(child)
				})
				if err == nil {
					stack = append(stack, below...)
					after, more = upTo, again
				}
				return err
			})
			if err == nil && len(files) > 0 {
				err = fn(files)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
