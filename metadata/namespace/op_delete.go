package namespace

import (
	"errors"
	"fmt"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// delete removes an inode, with all that is below it when that is asked for. OK when something was removed; a missing
// path and the root are not.
//
// A directory with entries is only cut off, whatever its size: it goes to the hidden reclaim directory, from which this
// and later commands take it apart in small steps, reporting its blocks as they go.
//
// Errors: ErrNotEmpty; ErrPermission, also for a directory below that the caller may not empty; ErrRetriable with INode for
// a tree that has to be surveyed, again if op carries a survey.
func (ns *Namespace) delete(t *txn, op *logpb.Delete) {
	p := newPlace()
	defer p.release()
	if err := checkNotReserved(op.Target); err != nil {
		t.fail(err)
		return
	}
	if err := ns.resolveTarget(p, t, op.Target, toUse); err != nil {
		t.fail(err)
		return
	}
	n := p.last()
	full := n != nil && n.isDir() && n.dir.entries > 0
	free, counted := ns.surveyed(&t.caller, n, op.Survey)
	tree := ns.foresaw(n)
	if err := ns.check(p, &t.caller, checks{parent: metadata.Write, subtree: !free && !tree.free}); err != nil {
		t.fail(err)
		if errors.Is(err, errLargeTree) {
			t.result.INode = n.id
		}
		return
	}
	if full && !op.Recursive {
		t.failf(metadata.ErrNotEmpty, "`%s is non empty': Directory is not empty", p)
		return
	}
	if n == nil || p.isRoot() {
		return
	}
	if _, err := ns.checkUnsnapped(n); err != nil {
		t.fail(err)
		return
	}
	parent := n.parent
	var u usage
	if ns.limited(parent, nil) {
		var ok bool
		if u, ok = ns.counted(counted, op.Names, op.Space, op.Types); !ok && tree.counted {
			u, ok = tree.usage, true
		}
		if !ok {
			var err error
			if u, err = ns.usageOf(n, smallTree); err != nil {
				t.fail(err)
				if errors.Is(err, errLargeTree) {
					t.result.INode = n.id
				}
				return
			}
		}
		ns.charge(parent, usage{}.minus(u))
	}
	ns.tellUnlink(n)
	ns.detach(n)
	ns.modified(parent)
	if full || ns.undo != nil {
		ns.throwOut(t, n, ns.newestLeaving(), u)
	} else {
		ns.bury(n)
	}
	t.result.OK = true
}

// reclaim removes up to limit inodes of deleted directories, from the bottom up and in the order of names, so that every
// member removes the same ones. It is not part of a command, and others get turns meanwhile, also while the store is read.
func (ns *Namespace) reclaim(limit int) {
	snapshots := (limit + 3) / 4 // which takes longer for each
	since, fetched := 0, 0
	for limit > 0 && ns.trash.dir.entries > 0 {
		if since > changesPerTurn {
			ns.pause()
			since = 0
		}
		n, err := ns.nextToReclaim(fetched < maxSweeps)
		if miss, ok := errors.AsType[*cold](err); ok {
			loading := ns.loading
			ns.loading = never
			ns.mu.Unlock()
			err = ns.fetchSweep(miss)
			ns.mu.Lock()
			ns.loading = loading
			if fetched++; err == nil {
				continue // what was on the way may have been forgotten
			}
		}
		if err != nil {
			ns.fatal(err)
		}
		fetched = 0
		since += 2
		if n.file != nil {
			since += len(n.file.blocks) / 4
		}
		if err := ns.redeem(n); err != nil {
			ns.fatal(err)
		}
		parent := n.parent
		ns.cut(n)
		ns.bury(n)
		if ns.sweep.at = parent; parent == ns.trash {
			ns.sweep.at = nil
		} else {
			parent.dir.swept = n.name
		}
		limit--
	}
	const perTurn = 16 // which what a step leaves may depend on: it is part of the state machine
	for ; snapshots > 0 && len(ns.snaps.deleted) > 0; snapshots -= perTurn {
		ns.sweepSnapshots(min(snapshots, perTurn))
		if snapshots > perTurn {
			ns.pause()
		}
	}
}

// sweep is how far the directory that is being taken apart was read: what it has up to a name is in memory, as long as
// nothing was forgotten since.
type sweep struct {
	dir     *inode
	upTo    string
	evicted int64
	// at is the directory out of which something was taken last, nil for none. It is the first entry of the one above it, and so on: nothing comes
	// into what was deleted, and trees are taken apart in the order in which they were deleted. So whoever goes on there need not come down again
	// from the top, however deep that is.
	at *inode
	// steps is how often it went from a directory to its first entry. A test looks at it.
	steps int
}

// nextToReclaim finds the inode that is reached through the first entry of each directory: it has no entries. Errors: *cold, if it is to be read
// without the lock; those of the store.
func (ns *Namespace) nextToReclaim(unlocked bool) (*inode, error) {
	n := ns.trash
	if at := ns.sweep.at; at != nil && at.parent != nil { // else it was forgotten
		n = at
	}
	for n.isDir() && n.dir.entries > 0 {
		first, err := ns.firstEntry(n, unlocked)
		if err != nil {
			return nil, err
		}
		n = first
	}
	return n, nil
}

const (
	// sweepAhead is how many entries are read at a time.
	sweepAhead = 128
	// maxSweeps is how often they are read for one inode before the lock is kept meanwhile: they could be forgotten again and again.
	maxSweeps = 16
)

// firstEntry returns the entry of a directory that is first by name, and reads a few more. Errors: *cold, if it is to be read without the
// lock; those of the store.
func (ns *Namespace) firstEntry(dir *inode, unlocked bool) (*inode, error) {
	ns.sweep.steps++
	n := dir.dir.children.first()
	if dir.complete() {
		return n, nil
	}
	from := dir.dir.swept
	if ns.sweep.dir == dir && ns.sweep.evicted == ns.evicted {
		if n != nil && n.name <= ns.sweep.upTo {
			return n, nil
		}
		from = max(from, ns.sweep.upTo) // what was read has gone
	}
	if unlocked {
		return nil, &cold{dir: dir.id, page: &page{dir: dir.id, after: from}}
	}
	upTo, err := ns.loadSome(dir, from, sweepAhead)
	if err != nil {
		return nil, err
	}
	ns.sweep.dir, ns.sweep.upTo, ns.sweep.evicted = dir, upTo, ns.evicted
	if n = dir.dir.children.first(); n == nil {
		return nil, fmt.Errorf("directory %d has %d entries and no first one: %w", dir.id, dir.dir.entries, metadata.ErrCorrupt)
	}
	return n, nil
}

// fetchSweep brings the next entries of a directory that is being taken apart into memory. The lock is not held. Errors: those of the
// store, and ErrCorrupt; the state is broken then.
func (ns *Namespace) fetchSweep(c *cold) error {
	ns.misses.Add(1)
	v, err := ns.pinned()
	if err != nil {
		return err
	}
	g := c.page
	bad := g.read(v, g.after, sweepAhead, pageBytes)
	return ns.settleFetch(v, bad, func() error {
		dir, evicted := ns.inodes[g.dir], ns.evicted
		if err := ns.installPage(g); err != nil {
			return err
		}
		if dir != nil && ns.view == v && ns.evicted == evicted && !g.end {
			ns.sweep.dir, ns.sweep.upTo, ns.sweep.evicted = dir, g.upTo, evicted
		}
		return nil
	})
}
