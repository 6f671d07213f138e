package namespace

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// MaxSnapshotDiff is how many records of changes a report looks at. One of more has to be made of snapshots that are less
// far apart.
const MaxSnapshotDiff = 1 << 20

// SnapshotDiff lists what is different in the directory path between two of its snapshots, or of a directory above, in HDFS's
// order; an empty name is the present state, whose changes meanwhile may be in the list or not. It costs what changed, and not what there is.
//
// Errors: ErrNotExist, ErrNotDirectory; ErrSnapshot for a directory without snapshots, a name of none, and too many changes;
// ErrPermission for a directory above a difference without READ and EXECUTE.
func (ns *Namespace) SnapshotDiff(c metadata.Caller, path, from, to string) ([]metadata.DiffEntry, error) {
	d, backwards, err := ns.beginDiff(c, path, from, to)
	if err != nil || d == nil {
		return nil, err
	}
	if err := d.collect(); err != nil {
		return nil, err
	}
	if err := d.compare(d.keys); err != nil {
		return nil, err
	}
	return d.report(backwards), nil
}

// beginDiff finds the two states that are to be compared; nil when they are the same one.
func (ns *Namespace) beginDiff(c metadata.Caller, path, from, to string) (d *differ, backwards bool, err error) {
	d = &differ{
		ns: ns, c: callerOf(c), where: map[stateID]place2{}, listed: map[stateID]bool{}, dirs: map[metadata.INodeID]*dirDiff{}, modified: map[metadata.INodeID]modification{},
	}
	if isReservedRoot(path) {
		return nil, false, metadata.Errorf(metadata.ErrNotExist, "Directory does not exist: %s", path)
	}
	err = ns.find(c, path, func(p *place, _ *caller) error {
		n, err := ns.snapshotRoot(p)
		if err != nil {
			return err
		}
		d.snapshots, d.root = n.id, p.last().id
		for _, end := range []struct {
			name string
			id   *uint32
		}{{from, &d.earlier}, {to, &d.later}} {
			if *end.id = present; end.name == "" {
				continue
			}
			s := ns.snaps.find(n.id, end.name)
			if s == nil {
				return metadata.Errorf(metadata.ErrSnapshot, "Cannot find the snapshot of directory %s with name %s", n.path(), printable(end.name))
			}
			*end.id = s.id
		}
		return nil
	})
	if err != nil || d.earlier == d.later {
		return nil, false, err
	}
	if backwards = d.earlier > d.later; backwards {
		d.earlier, d.later = d.later, d.earlier
	}
	return d, backwards, nil
}

// snapshotRoot is the snapshottable directory at or above the directory p.
func (ns *Namespace) snapshotRoot(p *place) (*inode, error) {
	var root *inode
	n, from := p.last(), len(p.nodes)-1
	if from > 0 && (n == nil || !n.isDir()) {
		if from--; p.nodes[from] == nil {
			return nil, metadata.Errorf(metadata.ErrNotExist, "Directory does not exist: %s", p.upTo(from))
		}
	}
	for i := from; i >= 0 && root == nil && !p.nodes[i].isGhost(); i-- {
		if _, ok := ns.snaps.allowed[p.nodes[i].id]; ok {
			root = p.nodes[i]
		}
	}
	switch {
	case root == nil:
		return nil, metadata.Errorf(metadata.ErrSnapshot, "The path %s is neither snapshottable nor under a snapshot root!", p)
	case n == nil:
		return nil, metadata.Errorf(metadata.ErrNotExist, "Directory does not exist: %s", p)
	case !n.isDir():
		return nil, metadata.Errorf(metadata.ErrNotDirectory, "`%s': Is not a directory", p)
	}
	return root, nil
}

// differ makes one list.
type differ struct {
	ns             *Namespace
	c              caller
	snapshots      metadata.INodeID // the directory that they are of
	root           metadata.INodeID // the directory at or below it that is looked at
	earlier, later uint32
	keys           []string // of records, without the snapshot
	seen           map[string]bool
	where          map[stateID]place2
	listed         map[stateID]bool // directories that the caller may list
	dirs           map[metadata.INodeID]*dirDiff
	modified       map[metadata.INodeID]modification
}

type stateID struct {
	id metadata.INodeID
	s  uint32
}

// place2 is where an inode was, below the directory.
type place2 struct {
	path string
	ok   bool
}

// modification is an inode that looks different, or a directory with other entries.
type modification struct {
	path string // where it was
	now  string // where it is
	dir  bool
	own  bool // it looks different itself
}

// dirDiff is what is different in a directory.
type dirDiff struct {
	created, deleted []named
	renamed          map[metadata.INodeID][2]string
}

// diffTurn is how many records are looked at before waiting commands get a turn.
const diffTurn = 256

// collect lists what was kept for the snapshots from the earlier up to the later state.
func (d *differ) collect() error {
	d.seen = map[string]bool{}
	for s, from := d.earlier, ""; s != present; {
		err := d.ns.read(func() error {
			prefix := keptKey(string(classSnapshotIndex), s)
			n, more := 0, false
			err := d.ns.scanKept(prefix, max(prefix, from), func(key, _ []byte) bool {
				if n++; n > entriesPerTurn {
					from, more = string(key), true
					return false
				}
				if k := string(key[len(prefix):]); !d.seen[k] {
					d.seen[k] = true
					d.keys = append(d.keys, k)
				}
				return true
			})
			if err != nil || more {
				return err
			}
			from, s = "", d.nextSnapshot(s)
			return nil
		})
		if err != nil {
			return err
		}
		if len(d.keys) > MaxSnapshotDiff {
			return metadata.Errorf(metadata.ErrSnapshot, "There are more than %d changes between the two: compare snapshots that are less far apart", MaxSnapshotDiff)
		}
	}
	d.seen = nil
	return nil
}

// nextSnapshot is the snapshot behind s, if it is older than the later state; else present.
func (d *differ) nextSnapshot(s uint32) uint32 {
	all := d.ns.snaps.of[d.snapshots]
	if i := sort.Search(len(all), func(i int) bool { return all[i].id > s }); i < len(all) && all[i].id < d.later {
		return all[i].id
	}
	return present
}

// compare looks at what changed, by its keys, at both ends.
func (d *differ) compare(keys []string) error {
	for rest := keys; len(rest) > 0; {
		turn := rest[:min(len(rest), diffTurn)]
		rest = rest[len(turn):]
		err := d.ns.read(func() error {
			for _, key := range turn {
				id, name, _ := splitEntry([]byte(key[1:]))
				var err error
				if key[0] == classSnapshotINode {
					err = d.compareINode(id)
				} else {
					err = d.compareEntry(id, strings.TrimSuffix(name, "\x00"))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// both is where an inode was and is; not ok unless it is in both states.
func (d *differ) both(id metadata.INodeID) (was, is string, ok bool, err error) {
	a, err := d.placeAt(id, d.earlier)
	if err != nil || !a.ok {
		return "", "", false, err
	}
	b, err := d.placeAt(id, d.later)
	return a.path, b.path, b.ok, err
}

// renamed reports whether an inode is told of where it was. If the directory that it was in has gone, nothing is told of that but its end.
func (d *differ) renamed(id metadata.INodeID) (bool, error) {
	_, _, ok, err := d.both(id)
	if err != nil || !ok {
		return false, err
	}
	dir, _, err := d.ns.parentAt(id, d.earlier)
	if err != nil || dir == 0 {
		return false, err
	}
	_, _, ok, err = d.both(dir)
	return ok, err
}

// placeAt is where an inode was below the directory at a snapshot, or is now.
func (d *differ) placeAt(id metadata.INodeID, s uint32) (place2, error) {
	type step struct {
		id   metadata.INodeID
		name string
	}
	var up []step
	at := id
	found := place2{ok: true}
	for at != d.root {
		if known, ok := d.where[stateID{at, s}]; ok {
			found = known
			if found.ok && len(up) > 0 { // whoever asked for it before did not ask for what is in it
				if err := d.mayList(at, s, found.path); err != nil {
					return place2{}, err
				}
			}
			break
		}
		parent, name, err := d.ns.parentAt(at, s)
		if err != nil {
			return place2{}, err
		}
		if parent != 0 { // what was not there yet seems to have been where it is now
			there, err := d.ns.entryAt(parent, name, s)
			if err != nil {
				return place2{}, err
			}
			if there != at {
				parent = 0
			}
		}
		if parent == 0 || len(up) > 4*metadata.MaxPathDepth {
			up = append(up, step{at, ""})
			found = place2{}
			break
		}
		up = append(up, step{at, name})
		at = parent
	}
	if found.ok && at == d.root {
		if err := d.mayList(at, s, ""); err != nil {
			return place2{}, err
		}
	}
	for i := len(up) - 1; i >= 0; i-- {
		if found.ok {
			found.path = strings.TrimPrefix(found.path+"/"+up[i].name, "/")
			if i > 0 {
				if err := d.mayList(up[i].id, s, found.path); err != nil {
					return place2{}, err
				}
			}
		}
		d.where[stateID{up[i].id, s}] = found
	}
	return found, nil
}

// mayList checks that the caller may read a directory.
func (d *differ) mayList(id metadata.INodeID, s uint32, path string) error {
	if d.c.superuser || d.listed[stateID{id, s}] {
		return nil
	}
	n, err := d.ns.stateAt(id, s)
	if err != nil {
		return err
	}
	if n == nil || d.c.may(n, metadata.Read|metadata.Execute) {
		d.listed[stateID{id, s}] = true
		return nil
	}
	return denied(&d.c, n, path, metadata.Read|metadata.Execute)
}

// parentAt is where an inode was at a snapshot, or is now if s is present; 0: nowhere, or at the top.
func (ns *Namespace) parentAt(id metadata.INodeID, s uint32) (parent metadata.INodeID, name string, err error) {
	if s != present {
		_, value, err := ns.kept(stateKey(id), s)
		if err != nil {
			return 0, "", err
		}
		if value != nil {
			var r logpb.SnapshotINode
			if err := r.UnmarshalVT(value); err != nil {
				return 0, "", corrupt("record of inode %d in a snapshot: %v", id, err)
			}
			return metadata.INodeID(r.Parent), r.Name, nil
		}
	}
	if n := ns.inodes[id]; n != nil {
		if n.parent == nil {
			return 0, "", nil
		}
		return n.parent.id, n.name, nil
	}
	value, err := ns.getNow(idKey(classINode, uint64(id)))
	if err != nil || value == nil {
		return 0, "", err
	}
	parent, name, _ = splitEntry(value)
	return parent, name, nil
}

func (d *differ) compareINode(id metadata.INodeID) error {
	path, now, ok, err := d.both(id)
	if err != nil || !ok {
		return err
	}
	was, differs, err := d.looksOtherwise(id)
	if err == nil && differs {
		d.modified[id] = modification{path, now, was.isDir(), true}
	}
	return err
}

// looksOtherwise reports whether an inode that is in both states looks different in them; was is the earlier one.
func (d *differ) looksOtherwise(id metadata.INodeID) (was *inode, differs bool, err error) {
	if was, err = d.ns.stateAt(id, d.earlier); err != nil || was == nil {
		return nil, false, err
	}
	is, err := d.ns.stateAt(id, d.later)
	return was, err == nil && is != nil && !looksLike(was, is), err
}

// looksLike compares what HDFS compares of two states of an inode: times, and what a quota counts, are not part of it.
func looksLike(a, b *inode) bool {
	if a.mode != b.mode || a.owner != b.owner || a.group != b.group {
		return false
	}
	if a.file != nil && b.file != nil &&
		(a.file.length != b.file.length || a.file.replication != b.file.replication || a.file.blockSize != b.file.blockSize) {
		return false
	}
	var none extra
	x, y := cmp.Or(a.extra, &none), cmp.Or(b.extra, &none)
	sameXAttr := func(a, b metadata.XAttr) bool {
		return a.Namespace == b.Namespace && a.Name == b.Name && string(a.Value) == string(b.Value)
	}
	names, space := a.limits()
	names2, space2 := b.limits()
	return names == names2 && space == space2 && x.erasure == y.erasure && slices.Equal(x.access, y.access) && slices.Equal(x.inherited, y.inherited) &&
		slices.EqualFunc(x.xattrs, y.xattrs, sameXAttr)
}

func (d *differ) compareEntry(dir metadata.INodeID, name string) error {
	path, now, ok, err := d.both(dir)
	if err != nil || !ok {
		return err
	}
	if err := d.mayList(dir, d.earlier, path); err != nil {
		return err
	}
	if err := d.mayList(dir, d.later, now); err != nil {
		return err
	}
	was, err := d.ns.entryAt(dir, name, d.earlier)
	if err != nil {
		return err
	}
	is, err := d.ns.entryAt(dir, name, d.later)
	if err != nil || was == is {
		return err
	}
	one := d.dirs[dir]
	if one == nil {
		one = &dirDiff{renamed: map[metadata.INodeID][2]string{}}
		d.dirs[dir] = one
	}
	if _, ok := d.modified[dir]; !ok {
		d.modified[dir] = modification{path, now, true, false}
	}
	if is != 0 {
		told, err := d.renamed(is)
		if err != nil {
			return err
		}
		if !told {
			one.created = append(one.created, named{name, is})
		}
	}
	if was != 0 {
		from, to, ok, err := d.both(was)
		if err != nil {
			return err
		}
		one.deleted = append(one.deleted, named{name, was})
		if ok {
			one.renamed[was] = [2]string{from, to}
		}
	}
	return nil
}

// report puts the differences into HDFS's order: of directories and files that are different one after the other, those that
// are less deep now first, and below each directory what came and then what went.
func (d *differ) report(backwards bool) []metadata.DiffEntry {
	ids := slices.SortedFunc(maps.Keys(d.modified), func(a, b metadata.INodeID) int { return compareLevels(d.modified[a].now, d.modified[b].now) })
	var out []metadata.DiffEntry
	came, went := metadata.DiffCreate, metadata.DiffDelete
	if backwards {
		came, went = went, came
	}
	for _, id := range ids {
		path := d.modified[id].path
		out = append(out, metadata.DiffEntry{Type: metadata.DiffModify, Path: path})
		one := d.dirs[id]
		if one == nil {
			continue
		}
		one.sort()
		for _, e := range one.created {
			out = append(out, metadata.DiffEntry{Type: came, Path: entryPath(path, e.name)})
		}
		for _, e := range one.deleted {
			way, renamed := one.renamed[e.id]
			switch {
			case !renamed:
				out = append(out, metadata.DiffEntry{Type: went, Path: entryPath(path, e.name)})
			case backwards:
				out = append(out, metadata.DiffEntry{Type: metadata.DiffRename, Path: way[1], Target: way[0]})
			default:
				out = append(out, metadata.DiffEntry{Type: metadata.DiffRename, Path: way[0], Target: way[1]})
			}
		}
	}
	return out
}

// entryPath is the path of an entry of a directory, both below the one that is looked at.
func entryPath(path, name string) string { return strings.TrimPrefix(path+"/"+name, "/") }

func (d *dirDiff) sort() {
	byName := func(a, b named) int { return compareSigned(a.name, b.name) }
	slices.SortFunc(d.created, byName)
	slices.SortFunc(d.deleted, byName)
}

// compareLevels orders paths by their depth, and those of one depth by their names from the top.
func compareLevels(a, b string) int {
	if a == "" || b == "" {
		return cmp.Compare(len(a), len(b))
	}
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	return cmp.Or(cmp.Compare(len(x), len(y)), slices.CompareFunc(x, y, compareSigned))
}

// compareSigned compares as Java compares bytes.
func compareSigned(a, b string) int {
	return slices.CompareFunc([]byte(a), []byte(b), func(x, y byte) int { return cmp.Compare(int8(x), int8(y)) })
}
