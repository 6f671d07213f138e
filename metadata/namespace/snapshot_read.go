package namespace

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// A ghost is an inode as a snapshot has it, made for one path: its parents are ghosts up to the directory .snapshot, which is
// one, too, and whose parent is the snapshottable directory. It is in no table, and nobody changes it.
const ghostEpoch = ^uint32(0)

func (n *inode) isGhost() bool { return n.epoch == ghostEpoch }

// snapshot is the number of the snapshot that a ghost is of; 0: it is the directory .snapshot.
func (n *inode) snapshot() uint32 { return uint32(n.hash) }

// step finds the entry name of a directory, which may be a ghost, or .snapshot.
func (ns *Namespace) step(at *inode, name string) (*inode, error) {
	if at.isGhost() {
		return ns.ghostEntry(at, name)
	}
	if name == snapshotFolder && ns.meta.snapshottable > 0 {
		if _, ok := ns.snaps.allowed[at.id]; ok {
			return &inode{
				id: at.id, parent: at, name: snapshotFolder, owner: at.owner, group: at.group, mode: at.mode, mtime: at.mtime,
				dir: &directory{entries: len(ns.snaps.live[at.id])}, epoch: ghostEpoch,
			}, nil
		}
	}
	return ns.lookup(at, name)
}

// checkWritable refuses to change what is in a snapshot (FSDirectory.checkTraverse).
func (ns *Namespace) checkWritable(p *place) error {
	if ns.meta.snapshottable == 0 {
		return nil
	}
	if slices.ContainsFunc(p.nodes, func(n *inode) bool { return n != nil && n.isGhost() }) {
		return metadata.Errorf(metadata.ErrSnapshotReadOnly, "Modification on a read-only snapshot is disallowed")
	}
	return nil
}

// ghostEntry finds the entry name of a ghost; nil when there is none.
func (ns *Namespace) ghostEntry(at *inode, name string) (*inode, error) {
	if at.snapshot() == 0 {
		s := ns.snaps.find(at.id, name)
		if s == nil {
			return nil, nil
		}
		return ns.ghostOf(s.root, s.id, name, at)
	}
	if name == "" || len(name) > metadata.MaxNameLength || strings.IndexByte(name, 0) >= 0 {
		return nil, nil
	}
	id, err := ns.entryAt(at.id, name, at.snapshot())
	if err != nil || id == 0 {
		return nil, err
	}
	return ns.ghostOf(id, at.snapshot(), name, at)
}

// ghostOf makes the ghost of an inode that a snapshot has, as the entry name of parent.
func (ns *Namespace) ghostOf(id metadata.INodeID, s uint32, name string, parent *inode) (*inode, error) {
	n, err := ns.stateAt(id, s)
	if err != nil {
		return nil, err
	}
	if n == nil {
		return nil, corrupt("inode %d of snapshot %d is not there", id, s)
	}
	n.name, n.parent = name, parent
	return n, nil
}

// stateAt makes the ghost of an inode, without name and parent: its state at a snapshot, or now if s is present. nil: it is
// neither in the snapshot nor there now.
func (ns *Namespace) stateAt(id metadata.INodeID, s uint32) (*inode, error) {
	var n *inode
	if s != present {
		_, value, err := ns.kept(stateKey(id), s)
		if err != nil {
			return nil, err
		}
		if value != nil {
			if n, _, err = decodeKept("", value); err != nil {
				return nil, err
			}
		}
	}
	if n == nil {
		now, err := ns.stateNow(id)
		if err != nil || now == nil {
			return nil, err
		}
		n = now.shown()
	}
	if f := n.file; f != nil {
		c := &file{blocks: slices.Clone(n.finished()), blockSize: f.blockSize, replication: f.replication, erasure: f.erasure}
		c.small, c.crc = f.small && len(c.blocks) > 0, f.crc
		for _, b := range c.blocks {
			c.length += b.Length
		}
		n.file = c
	}
	n.epoch, n.hash = ghostEpoch, uint64(s)
	return n, nil
}

// shown is what a ghost has of an inode: what readers look at, without the entries of a directory. The rest changes while others read, too.
func (n *inode) shown() *inode {
	c := &inode{
		id: n.id, parent: n.parent, name: n.name, owner: n.owner, group: n.group, mtime: n.mtime, atime: n.atime, mode: n.mode, file: n.file,
	}
	if n.dir != nil {
		c.dir = &directory{entries: n.dir.entries}
	}
	if n.extra != nil {
		c.extra = new(*n.extra)
	}
	return c
}

// present stands for the present state where a snapshot may be meant. No snapshot has that number.
const present = ^uint32(0)

// stateNow finds an inode, in memory or not, without loading it; nil when there is none.
func (ns *Namespace) stateNow(id metadata.INodeID) (*inode, error) {
	if n := ns.inodes[id]; n != nil {
		return n, nil
	}
	where, err := ns.getNow(idKey(classINode, uint64(id)))
	if err != nil || where == nil {
		return nil, err
	}
	parent, name, ok := splitEntry(where)
	if !ok {
		return nil, corrupt("record of inode %d", id)
	}
	n, err := ns.readEntryNow(parent, name)
	if err == nil && (n == nil || n.id != id) {
		err = corrupt("record of inode %d does not lead to it", id)
	}
	return n, err
}

// readEntryNow is readEntry with the lock held.
func (ns *Namespace) readEntryNow(parent metadata.INodeID, name string) (*inode, error) {
	key := entryKey(parent, name)
	value, err := ns.getNow(key)
	if err != nil || value == nil {
		return nil, err
	}
	return decodeEntry(name, []byte(key), value)
}

// entryAt is the inode that a name stands for in a directory at a snapshot, or now if s is present; 0: there is none.
func (ns *Namespace) entryAt(dir metadata.INodeID, name string, s uint32) (metadata.INodeID, error) {
	if s != present {
		_, value, err := ns.kept(placeKey(dir, name), s)
		if err != nil {
			return 0, err
		}
		if value != nil {
			return entryOfRecord(value)
		}
	}
	if d := ns.inodes[dir]; d != nil {
		if !d.isDir() {
			return 0, nil
		}
		if n := d.dir.children.get(name); n != nil {
			return n.id, nil
		}
		if d.complete() {
			return 0, nil
		}
	}
	n, err := ns.readEntryNow(dir, name)
	if err != nil || n == nil {
		return 0, err
	}
	return n.id, nil
}

func entryOfRecord(value []byte) (metadata.INodeID, error) {
	var r logpb.SnapshotEntry
	if err := r.UnmarshalVT(value); err != nil {
		return 0, corrupt("record of an entry in a snapshot: %v", err)
	}
	return metadata.INodeID(r.Inode), nil
}

// named is an entry of a directory.
type named struct {
	name string
	id   metadata.INodeID
}

// entriesAt lists the entries of a directory at a snapshot, or now if s is present, with names after a name, in their order. It
// looks at about most of those there are now and most of those that were kept; upTo is the last name up to which all are
// listed, and end says that there are no more.
func (ns *Namespace) entriesAt(dir metadata.INodeID, s uint32, after string, most int) (entries []named, upTo string, end bool, err error) {
	now, nowUpTo, nowEnd, err := ns.entriesNow(dir, after, most)
	if err != nil {
		return nil, "", false, err
	}
	if s == present {
		return now, nowUpTo, nowEnd, nil
	}
	// What was kept: of each name the oldest that is not older than the snapshot. All of a name is looked at.
	prefix := idKey(classSnapshotEntry, uint64(dir))
	from := prefix
	if after != "" {
		from = prefix + after + "\x01" // behind all that was kept under that name
	}
	was := map[string]metadata.INodeID{}
	wasUpTo, wasEnd, seen, found := "", true, 0, false
	var bad error
	err = ns.scanKept(prefix, from, func(key, value []byte) bool {
		name, at := key[len(prefix):len(key)-5], binary.BigEndian.Uint32(key[len(key)-4:])
		if seen == 0 || string(name) != wasUpTo {
			if wasEnd = seen < most; !wasEnd {
				return false
			}
			wasUpTo, found = string(name), false
		}
		if seen++; found || at < s {
			return true
		}
		found = true
		was[wasUpTo], bad = entryOfRecord(value)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return nil, "", false, err
	}
	within := func(name string) bool { return (nowEnd || name <= nowUpTo) && (wasEnd || name <= wasUpTo) }
	for _, e := range now {
		if _, ok := was[e.name]; !ok && within(e.name) {
			entries = append(entries, e)
		}
	}
	for name, id := range was {
		if id != 0 && within(name) {
			entries = append(entries, named{name, id})
		}
	}
	slices.SortFunc(entries, func(a, b named) int { return strings.Compare(a.name, b.name) })
	switch {
	case nowEnd && wasEnd:
		return entries, "", true, nil
	case nowEnd:
		upTo = wasUpTo
	case wasEnd:
		upTo = nowUpTo
	default:
		upTo = min(nowUpTo, wasUpTo)
	}
	return entries, upTo, false, nil
}

// entriesNow lists up to most entries that a directory has now, with names after a name, in their order, without loading
// them.
func (ns *Namespace) entriesNow(dir metadata.INodeID, after string, most int) (entries []named, upTo string, end bool, err error) {
	d := ns.inodes[dir]
	have := 0
	if d != nil {
		if !d.isDir() {
			return nil, "", true, nil
		}
		d.dir.children.each(after, func(n *inode) bool {
			entries = append(entries, named{n.name, n.id})
			return len(entries) <= most
		})
		have = len(entries)
	}
	if d == nil || !d.complete() {
		prefix := appendID(nil, classEntry, uint64(dir))
		var bad error
		stored := 0
		err = ns.view.eachEntry(prefix, append(bytes.Clone(prefix), after...), most+1, func(key, value []byte) bool {
			name := string(key[len(prefix):])
			if name == after || ns.deleted(string(key)) {
				return true
			}
			if d != nil {
				if d.dir.children.get(name) != nil {
					return true
				}
			}
			n, err := decodeEntry(name, key, value)
			if err != nil {
				bad = err
				return false
			}
			entries = append(entries, named{name, n.id})
			stored++
			return stored <= most
		})
		if err == nil {
			err = bad
		}
		if err != nil {
			return nil, "", false, err
		}
	}
	if len(entries) > have {
		slices.SortFunc(entries, func(a, b named) int { return strings.Compare(a.name, b.name) })
	}
	if len(entries) <= most {
		return entries, "", true, nil
	}
	entries = entries[:most]
	return entries, entries[most-1].name, false, nil
}

// listGhost adds a page of a ghost's entries to l, and reports where it ended and whether there may be more to add.
func (ns *Namespace) listGhost(l *Listing, dir *inode, after string, limit int, withBlocks bool) (upTo string, more bool, err error) {
	if dir.snapshot() == 0 {
		all := slices.Clone(ns.snaps.live[dir.id])
		slices.SortFunc(all, func(a, b *dirSnapshot) int { return strings.Compare(a.name, b.name) })
		all = slices.DeleteFunc(all, func(s *dirSnapshot) bool { return s.name <= after })
		for _, s := range all[:min(len(all), limit)] {
			n, err := ns.ghostOf(s.root, s.id, s.name, dir)
			if err != nil {
				return "", false, err
			}
			l.add(n, s.name, n.policies(), withBlocks)
		}
		l.Remaining = max(0, len(all)-limit)
		return "", false, nil
	}
	entries, upTo, end, err := ns.entriesAt(dir.id, dir.snapshot(), after, limit)
	if err != nil {
		return "", false, err
	}
	blocks := 0
	for i, e := range entries {
		n, err := ns.ghostOf(e.id, dir.snapshot(), e.name, dir)
		if err != nil {
			return "", false, err
		}
		blocks += l.add(n, e.name, n.policies(), withBlocks)
		if len(l.Entries) >= limit || withBlocks && blocks >= limit {
			if l.Remaining = len(entries) - 1 - i; !end {
				l.Remaining = max(l.Remaining, 1)
			}
			return e.name, false, nil
		}
	}
	l.Remaining = 0
	return upTo, !end, nil
}

// markSnapshottable completes what a listing says of directories.
func (ns *Namespace) markSnapshottable(entries []metadata.FileStatus) {
	if ns.meta.snapshottable == 0 {
		return
	}
	for i := range entries {
		if _, ok := ns.snaps.allowed[entries[i].ID]; ok {
			entries[i].Snapshottable = true
		}
	}
}

// keptBlock finds a block that only snapshots have.
func (ns *Namespace) keptBlock(id metadata.BlockID) (BlockOwner, bool, error) {
	value, err := ns.getNow(idKey(classSnapshotBlock, uint64(id)))
	if err != nil || value == nil {
		return BlockOwner{}, false, err
	}
	owner, err := decodeKeptBlock(id, value)
	return owner, err == nil, err
}

// keptPath is the path of a file with a block that only snapshots have, in the oldest of them that is not being deleted; empty: there is none.
func (ns *Namespace) keptPath(id metadata.BlockID) (string, error) {
	owner, kept, err := ns.keptBlock(id)
	if err != nil || !kept {
		return "", err
	}
	var in *dirSnapshot
	var bad error
	prefix := stateKey(owner.INode)
	err = ns.scanKept(prefix, prefix, func(key, value []byte) bool {
		s := ns.snaps.byID[binary.BigEndian.Uint32(key[len(prefix):])]
		if s == nil || s.deleted {
			return true
		}
		var was *inode
		if was, _, bad = decodeKept("", value); bad == nil && was.file != nil && slices.ContainsFunc(was.file.blocks, func(b metadata.Block) bool { return b.ID == id }) {
			in = s
		}
		return bad == nil && in == nil
	})
	if err = cmp.Or(err, bad); err != nil || in == nil {
		return "", err
	}
	path := ""
	for at := owner.INode; at != in.root; {
		parent, name, err := ns.parentAt(at, in.id)
		if err != nil || parent == 0 {
			return "", err
		}
		at, path = parent, "/"+name+path
	}
	root, err := ns.byID(in.root)
	if err != nil || root == nil || !root.attached() {
		return "", err
	}
	return join2(root.path(), ".snapshot/"+in.name+path), nil
}

func decodeKeptBlock(id metadata.BlockID, value []byte) (BlockOwner, error) {
	var r logpb.SnapshotBlock
	if err := r.UnmarshalVT(value); err != nil || r.Replication < 1 || r.Replication > metadata.MaxReplication || r.Length < 0 || r.Policy > maxPolicy ||
		id.Striped() != (r.Erasure != 0) || r.Erasure > 1<<8-1 || r.Body != nil && (id.Striped() || r.Length < 1 || r.Length > metadata.MaxBody) {
		return BlockOwner{}, corrupt("record of block %d, which a snapshot has: %v", id, err)
	}
	return BlockOwner{
		INode:       metadata.INodeID(r.Inode),
		Block:       metadata.Block{ID: id, Generation: metadata.Generation(r.Generation), Length: r.Length},
		Replication: uint16(r.Replication),
		Policy:      uint8(r.Policy),
		Erasure:     metadata.ErasurePolicyID(r.Erasure),
		body:        r.Body != nil,
		inlined:     r.Inlined,
		crc:         r.Body.GetCrc(),
	}, nil
}

// eachKeptBlock calls fn for the blocks that only snapshots have, until it returns false, with the lock for a moment at a time.
func (ns *Namespace) eachKeptBlock(fn func(BlockOwner) bool) error {
	prefix := string(classSnapshotBlock)
	for from := prefix; from != ""; {
		var found []BlockOwner
		err := ns.read(func() error {
			found = found[:0]
			next := ""
			var bad error
			err := ns.scanKept(prefix, from, func(key, value []byte) bool {
				if len(found) == entriesPerTurn {
					next = string(key)
					return false
				}
				var owner BlockOwner
				owner, bad = decodeKeptBlock(metadata.BlockID(binary.BigEndian.Uint64(key[1:])), value)
				found = append(found, owner)
				return bad == nil
			})
			if err == nil {
				err = bad
			}
			if err == nil {
				from = next
			}
			return err
		})
		if err != nil {
			return err
		}
		for _, owner := range found {
			if !owner.body && !fn(owner) {
				return nil
			}
		}
	}
	return nil
}

// Snapshottable returns the directories that snapshots may be taken of, in the order of the directories above and of their names: all
// for the superuser, their own for others.
func (ns *Namespace) Snapshottable(c metadata.Caller) ([]metadata.SnapshottableDir, error) {
	var ids []metadata.INodeID
	err := ns.read(func() error {
		ids = slices.Sorted(maps.Keys(ns.snaps.allowed))
		return nil
	})
	var dirs, some []metadata.SnapshottableDir
	for turn := range slices.Chunk(ids, snapshotsPerTurn) {
		if err == nil {
			err = ns.read(func() (err error) {
				some, err = ns.appendSnapshottable(some[:0], &c, turn)
				return err
			})
			dirs = append(dirs, some...)
		}
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(dirs, func(a, b metadata.SnapshottableDir) int {
		return cmp.Or(compareSigned(a.Parent, b.Parent), compareSigned(a.Status.Name, b.Status.Name))
	})
	return dirs, err
}

// appendSnapshottable appends those of some directories that are snapshottable and that c may see.
func (ns *Namespace) appendSnapshottable(dirs []metadata.SnapshottableDir, c *metadata.Caller, ids []metadata.INodeID) ([]metadata.SnapshottableDir, error) {
	for _, id := range ids {
		limit, ok := ns.snaps.allowed[id]
		if !ok {
			continue // meanwhile
		}
		n, err := ns.byID(id)
		if err != nil {
			return nil, err
		}
		if n == nil || !n.attached() || !c.Superuser && n.owner.Value() != c.User {
			continue
		}
		d := metadata.SnapshottableDir{Status: n.status(), Snapshots: len(ns.snaps.live[id]), Limit: limit}
		d.Status.Name = n.name
		if n.parent != nil {
			d.Parent = n.parent.path()
		}
		dirs = append(dirs, d)
	}
	return dirs, nil
}

func join2(parent, name string) string { return strings.TrimSuffix(parent, "/") + "/" + name }

// Snapshots returns the snapshots of the directory path, in the order of their names. Those that come and go meanwhile may be among them or not.
//
// Errors: ErrNotExist; ErrSnapshot for a directory that none may be taken of; ErrPermission without READ.
func (ns *Namespace) Snapshots(c metadata.Caller, path string) ([]metadata.Snapshot, error) {
	var all []*dirSnapshot
	var top *inode
	parent := ""
	err := ns.find(c, path, func(p *place, c *caller) error {
		if p.last() != nil {
			if err := checkMode(c, p, len(p.nodes)-1, metadata.Read); err != nil {
				return err
			}
		}
		n, err := ns.snapshottable(p)
		if err != nil {
			return err
		}
		all, top, parent = slices.Clone(ns.snaps.live[n.id]), n, p.String()
		return nil
	})
	var infos []metadata.Snapshot
	for turn := range slices.Chunk(all, snapshotsPerTurn) {
		told := len(infos)
		if err == nil {
			err = ns.read(func() error {
				infos = infos[:told]
				for _, s := range turn {
					if ns.snaps.byID[s.id] != s || s.deleted {
						continue // meanwhile
					}
					g, err := ns.ghostOf(s.root, s.id, s.name, top)
					if err != nil {
						return err
					}
					info := metadata.Snapshot{Status: g.status(), ID: s.id, Parent: parent}
					info.Status.Name = s.name
					infos = append(infos, info)
				}
				return nil
			})
		}
	}
	if err != nil {
		return nil, fileAbove(err)
	}
	slices.SortFunc(infos, func(a, b metadata.Snapshot) int { return strings.Compare(a.Status.Name, b.Status.Name) })
	return infos, nil
}

// snapshotsPerTurn is how many snapshots, or directories that have some, are looked at before waiting commands get a turn.
const snapshotsPerTurn = 256

// snapshottable is the directory that p names, if snapshots may be taken of it (SnapshotManager.getSnapshottableRoot).
func (ns *Namespace) snapshottable(p *place) (*inode, error) {
	n := p.last()
	switch {
	case n == nil:
		return nil, metadata.Errorf(metadata.ErrNotExist, "Directory does not exist: %s", p)
	case !n.isDir():
		return nil, metadata.Errorf(metadata.ErrNotDirectory, "`%s': Is not a directory", p)
	}
	if _, ok := ns.snaps.allowed[n.id]; !ok || n.isGhost() {
		return nil, metadata.Errorf(metadata.ErrSnapshot, "Directory is not a snapshottable directory: %s", p)
	}
	return n, nil
}
