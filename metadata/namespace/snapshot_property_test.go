package namespace

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// A snapshot of the dumb twin is a copy of the whole tree, by paths from the directory on.

func (m model) copyOf(root string) model {
	c := model{}
	for p, n := range m {
		if p != root && !below(p, root) {
			continue
		}
		n.number()
		twin := *n
		twin.serial = slices.Clone(n.serial)
		twin.holder, twin.lastOpen, twin.snapshots = "", false, nil
		twin.blocks = slices.Clone(n.blocks)
		if n.lastOpen {
			twin.blocks = twin.blocks[:len(twin.blocks)-1]
		}
		rest := strings.TrimPrefix(p, root)
		c["/"+strings.TrimPrefix(rest, "/")] = &twin
	}
	return c
}

// serials counts the blocks that were numbered.
var serials int

// number gives each block a number of its own.
func (n *modelNode) number() {
	n.serial = n.serial[:min(len(n.serial), len(n.blocks))]
	for len(n.serial) < len(n.blocks) {
		serials++
		n.serial = append(n.serial, serials)
	}
}

// truncate cuts a closed file. A cut inside of a block that a snapshot has makes another one of it; apart says so.
func (m model) truncate(n *modelNode, length int64) (apart bool) {
	n.number()
	at := int64(0)
	n.small = n.small && length > 0
	for i, b := range n.blocks {
		if i == 0 && n.small && length < b {
			n.blocks, n.serial = []int64{length}, nil
			return false
		}
		if at < length && length < at+b {
			apart = m.snapshotHas(n.id, i)
			n.blocks, n.serial = append(slices.Clone(n.blocks[:i]), length-at), slices.Clone(n.serial[:i+1])
			if apart {
				n.serial = n.serial[:i]
			}
			return apart
		}
		if at == length {
			n.blocks, n.serial = slices.Clone(n.blocks[:i]), slices.Clone(n.serial[:i])
			return false
		}
		at += b
	}
	return false
}

// snapshotHas reports whether a snapshot has the ith block of a file.
func (m model) snapshotHas(id, i int) bool {
	mine := m.byID(id)
	mine.number()
	for _, n := range m {
		for _, s := range n.snapshots {
			for _, was := range s {
				if was.id == id && !was.dir && i < len(was.blocks) && was.serial[i] == mine.serial[i] {
					return true
				}
			}
		}
	}
	return false
}

// space is what a file takes with the blocks that only snapshots have of it, all with the most replicas that it has there or now.
func (m model) space(n *modelNode) int64 {
	n.number()
	lengths, replication := map[int]int64{}, n.replication
	for _, d := range m {
		for _, s := range d.snapshots {
			for _, was := range s {
				if was.id != n.id || was.dir {
					continue
				}
				replication = max(replication, was.replication)
				for i, b := range was.blocks {
					lengths[was.serial[i]] = b
				}
			}
		}
	}
	for i, b := range n.blocks {
		if n.lastOpen && i == len(n.blocks)-1 {
			b = 1 << 20 // one that is being written counts as a full one
		}
		lengths[n.serial[i]] = b
	}
	all := int64(0)
	for _, b := range lengths {
		all += b
	}
	return all * int64(replication)
}

// hasSnapshots reports whether there are snapshots of path or of something below it.
func (m model) hasSnapshots(path string) bool {
	for p, n := range m {
		if (p == path || below(p, path)) && len(n.snapshots) > 0 {
			return true
		}
	}
	return false
}

// fixed reports whether src, which has no snapshots, may not be renamed to dst for the sake of snapshots.
func (m model) fixed(src, dst string) bool {
	for p, n := range m {
		if n.allowed && (p == src || below(p, src)) {
			for _, a := range ancestors(dst) {
				if m[a].allowed {
					return true
				}
			}
		}
	}
	return false
}

// snapshottable checks what operations on snapshots have in common.
func (m model) snapshottable(c metadata.Caller, path string) (*modelNode, *metadata.Kind) {
	if k := m.attribute(c, path, true, 0); k != nil {
		return nil, k
	}
	switch n := m[path]; {
	case !n.dir:
		return nil, metadata.ErrNotDirectory
	case !n.allowed:
		return n, metadata.ErrSnapshot
	default:
		return n, nil
	}
}

func (m model) allow(path string, allow bool) *metadata.Kind {
	if k := m.traverse(super, path, true); k != nil {
		return k
	}
	n, k := m.snapshottable(super, path)
	if n == nil {
		return k
	}
	if !allow {
		if len(n.snapshots) > 0 {
			return metadata.ErrSnapshot
		}
		n.allowed = false
		return nil
	}
	for p, other := range m {
		if other.allowed && (below(p, path) || below(path, p)) && !n.allowed {
			return metadata.ErrSnapshot
		}
	}
	n.allowed = true
	return nil
}

// follow keeps account of what effects tell of blocks.
func (s *machine) follow(e Effects) {
	for _, b := range e.Added {
		s.blocks[b.Block.ID] = true
	}
	for _, b := range e.Removed {
		if !s.blocks[b.ID] {
			panic(fmt.Sprintf("block %v was removed twice", b))
		}
		delete(s.blocks, b.ID)
	}
}

func drawSnapshot(t *rapid.T, label string) string {
	return rapid.SampledFrom([]string{"s1", "s2", "s3"}).Draw(t, label)
}

// drawRoot draws a directory that snapshots may be taken of, mostly.
func (s *machine) drawRoot(t *rapid.T) string {
	var roots []string
	for p, n := range s.m {
		if n.allowed {
			roots = append(roots, p)
		}
	}
	if len(roots) == 0 || rapid.IntRange(0, 9).Draw(t, "any") == 0 {
		return drawPath(t, "path")
	}
	slices.Sort(roots)
	return rapid.SampledFrom(roots).Draw(t, "root")
}

// takeSnapshot takes one of a directory.
func (s *machine) takeSnapshot(t *rapid.T, c metadata.Caller, path string) {
	name := drawSnapshot(t, "name")
	r := s.do(t, c, &logpb.ChangeSnapshots{Target: to(path), Change: logpb.ChangeSnapshots_CREATE, Name: name})
	n, k := s.m.snapshottable(c, path)
	if k == nil && n.snapshots[name] != nil {
		k = metadata.ErrSnapshot
	}
	if !s.same(t, "createSnapshot "+path+" "+name, r, k) {
		return
	}
	if n.snapshots == nil {
		n.snapshots, n.age = map[string]model{}, map[string]uint32{}
	}
	n.age[name] = uint32(r.INode)
	s.adoptAll()
	n.snapshots[name] = s.m.copyOf(path)
}

func (s *machine) snapshotActions() map[string]func(*rapid.T) {
	create := func(t *rapid.T) { s.takeSnapshot(t, drawCaller(t), s.drawRoot(t)) }
	return map[string]func(*rapid.T){
		"allow snapshots": func(t *rapid.T) {
			path := drawPath(t, "path")
			r := s.do(t, super, &logpb.ChangeSnapshots{Target: to(path), Change: logpb.ChangeSnapshots_ALLOW})
			s.same(t, "allowSnapshot "+path, r, s.m.allow(path, true))
		},
		"disallow snapshots": func(t *rapid.T) {
			path := s.drawRoot(t)
			r := s.do(t, super, &logpb.ChangeSnapshots{Target: to(path), Change: logpb.ChangeSnapshots_DISALLOW})
			s.same(t, "disallowSnapshot "+path, r, s.m.allow(path, false))
		},
		"create a snapshot": create, "create another snapshot": create,
		"delete a snapshot": func(t *rapid.T) {
			c, path, name := drawCaller(t), s.drawRoot(t), drawSnapshot(t, "name")
			r := s.do(t, c, &logpb.ChangeSnapshots{Target: to(path), Change: logpb.ChangeSnapshots_DELETE, Name: name})
			n, k := s.m.snapshottable(c, path)
			if k == nil && n.snapshots[name] == nil {
				k = metadata.ErrSnapshot
			}
			if s.same(t, "deleteSnapshot "+path+" "+name, r, k) {
				delete(n.snapshots, name)
			}
		},
		"rename a snapshot": func(t *rapid.T) {
			c, path, name, other := drawCaller(t), s.drawRoot(t), drawSnapshot(t, "name"), drawSnapshot(t, "to")
			r := s.do(t, c, &logpb.ChangeSnapshots{Target: to(path), Change: logpb.ChangeSnapshots_RENAME, Name: name, NewName: other})
			n, k := s.m.snapshottable(c, path)
			if k == nil && (n.snapshots[name] == nil || name != other && n.snapshots[other] != nil) {
				k = metadata.ErrSnapshot
			}
			if s.same(t, "renameSnapshot "+path+" "+name+" "+other, r, k) && name != other {
				n.snapshots[other], n.age[other] = n.snapshots[name], n.age[name]
				delete(n.snapshots, name)
			}
		},
		"set a quota": func(t *rapid.T) {
			path := drawPath(t, "path")
			if n := s.m[path]; n == nil || !n.dir {
				t.Skip("no directory")
			}
			op := &logpb.SetQuota{Target: to(path), Names: 1 << 40, Space: 1 << 60}
			if s.m[path].quota = rapid.IntRange(0, 3).Draw(t, "clear") > 0; !s.m[path].quota {
				op.Names, op.Space = metadata.QuotaUnset, metadata.QuotaUnset
			}
			s.same(t, "setQuota "+path, s.do(t, super, op), nil)
		},
		"truncate": s.truncate, "truncate again": s.truncate,
		"write into a snapshot": func(t *rapid.T) {
			path := s.drawRoot(t)
			if n := s.m[path]; n == nil || !n.allowed {
				t.Skip("no snapshot can be here")
			}
			inside := join(path, ".snapshot/s1/a")
			s.same(t, "mkdirs "+inside, s.do(t, super, &logpb.Mkdirs{Target: to(inside)}), metadata.ErrSnapshotReadOnly)
			s.same(t, "rename "+inside, s.do(t, super, &logpb.Rename{Source: to(inside), Target: to("/x")}), metadata.ErrSnapshotReadOnly)
		},
	}
}

// truncate cuts a file, mostly one that a snapshot has, and ends what that begins, in between deleting a snapshot.
func (s *machine) truncate(t *rapid.T) {
	path := drawPath(t, "path")
	n := s.m[path]
	if n == nil || n.dir || n.holder != "" || len(n.blocks) == 0 {
		t.Skip("no closed file with blocks")
	}
	s.adopt(path)
	size := int64(0)
	for _, b := range n.blocks {
		size += b
	}
	length := rapid.Int64Range(0, size).Draw(t, "length")
	b := s.block(t)
	op := &logpb.Truncate{Target: to(path), Length: length, ClientName: "c1", RecoveryId: b.Generation, NewBlock: b.Id}
	if n.small && length > 0 && length < n.blocks[0] {
		if r := s.do(t, super, op); metadata.KindOf(r.Err) != metadata.ErrRetriable {
			t.Fatal("a cut inside of a body without what stays", r.Err)
		}
		f, _ := s.w.ns.FileByID(metadata.INodeID(n.id))
		op = cutOf(path, f.Blocks[0], b, length)
	}
	r := s.do(t, super, op)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	before := len(n.blocks)
	if length == size {
		return
	}
	apart := s.m.truncate(n, length)
	if r.File == nil {
		return
	}
	last := r.File.Blocks[len(r.File.Blocks)-1]
	if apart != (last.ID == metadata.BlockID(b.Id)) || apart != (r.File.Source.ID != 0) {
		t.Fatalf("truncating %s of %d blocks to %d makes another block: %v; %+v", path, before, length, apart, r.File)
	}
	if rapid.Bool().Draw(t, "between") {
		for _, root := range slices.Sorted(maps.Keys(s.m)) {
			n := s.m[root]
			if name := drawSnapshot(t, "name"); n.snapshots[name] != nil {
				if r := s.do(t, super, &logpb.ChangeSnapshots{Target: to(root), Change: logpb.ChangeSnapshots_DELETE, Name: name}); r.Err != nil {
					t.Fatal(r.Err)
				}
				delete(n.snapshots, name)
				break
			}
		}
		s.do(t, super, &logpb.Reclaim{Limit: 1000})
		if src := r.File.Source; src.ID != 0 && !s.blocks[src.ID] {
			t.Fatalf("block %v is gone while it is copied", src)
		}
	}
	if rapid.IntRange(0, 4).Draw(t, "delete") == 0 {
		s.same(t, "delete "+path, s.do(t, super, &logpb.Delete{Target: to(path)}), nil)
		delete(s.m, path)
		return
	}
	r = s.do(t, super, &logpb.CommitRecovery{
		Block: &logpb.Block{Id: int64(last.ID), Generation: uint64(last.Generation)}, RecoveryId: uint64(r.File.RecoveryID), Length: r.File.TruncateTo, Close: true,
	})
	if r.Err != nil || !r.OK {
		t.Fatal(r.Err, r.OK)
	}
}

// compareSnapshots compares every snapshot with the model's copy.
func (s *machine) compareSnapshots(t *rapid.T, what string, ns *Namespace) {
	for path, n := range s.m {
		if !n.allowed {
			continue
		}
		infos, err := ns.Snapshots(super, path)
		var names []string
		for _, i := range infos {
			names = append(names, i.Status.Name)
		}
		if err != nil || !slices.Equal(names, slices.Sorted(maps.Keys(n.snapshots))) {
			t.Fatalf("%s: %s has the snapshots %v (%v), the model %v", what, path, names, err, n.snapshots)
		}
		for name, m := range n.snapshots {
			if got, want := dumpSnapshot(ns, join(path, ".snapshot/"+name)), m.dump(); got != want {
				t.Fatalf("%s: snapshot %s of %s:\n%s\nthe model:\n%s", what, name, path, got, want)
			}
			sum, err := ns.ContentSummary(super, join(path, ".snapshot/"+name))
			files := 0
			for _, one := range m {
				if !one.dir {
					files++
				}
			}
			if err != nil || int(sum.Files) != files || int(sum.Directories) != len(m)-files {
				t.Fatalf("%s: snapshot %s of %s: %+v (%v), the model has %d files of %d", what, name, path, sum, err, files, len(m))
			}
		}
	}
}

// adoptAll gives the model's nodes the ids of the real ones.
func (s *machine) adoptAll() {
	for path, n := range s.m {
		if n.id == 0 {
			s.adopt(path)
		}
	}
}

// compareDiffs compares the differences between all snapshots of a directory, and between them and now, with those of the
// model's copies.
func (s *machine) compareDiffs(t *rapid.T, what string, ns *Namespace) {
	s.adoptAll()
	for path, n := range s.m {
		if !n.allowed {
			continue
		}
		states := maps.Clone(n.snapshots)
		if states == nil {
			continue
		}
		states[""] = s.m.copyOf(path)
		infos, err := ns.Snapshots(super, path)
		if err != nil {
			t.Fatal(err)
		}
		age := map[string]uint32{"": present}
		for _, i := range infos {
			age[i.Status.Name] = i.ID
		}
		for from := range states {
			for to := range states {
				entries, err := ns.SnapshotDiff(super, path, from, to)
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, e := range entries {
					got = append(got, e.Type.Label()+" "+e.Path+" "+e.Target)
				}
				slices.Sort(got)
				if want := dumbDiff(states[from], states[to], age[from] > age[to]); !slices.Equal(got, want) {
					t.Fatalf("%s: %s from %q to %q:\n%s\nthe model:\n%s", what, path, from, to, strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				if pages := pagedDiff(t, ns, path, from, to); !slices.Equal(got, pages) {
					t.Fatalf("%s: %s from %q to %q:\n%s\nby pages:\n%s", what, path, from, to, strings.Join(got, "\n"), strings.Join(pages, "\n"))
				}
			}
		}
	}
}

// pagedDiff lists what is different by pages as small as can be.
func pagedDiff(t *rapid.T, ns *Namespace, path, from, to string) []string {
	var got []string
	for after, more := "", true; more; {
		page, err := ns.snapshotDiffPage(super, path, from, to, after, 1, 2)
		if err != nil {
			t.Fatal(err)
		}
		came, went := "+", "-"
		if page.Backwards {
			came, went = went, came
		}
		for _, r := range page.Modified {
			got = append(got, "M "+r.Path+" ")
		}
		for _, r := range page.Created {
			got = append(got, came+" "+r.Path+" ")
		}
		for _, r := range page.Deleted {
			switch {
			case r.Target == "":
				got = append(got, went+" "+r.Path+" ")
			case page.Backwards:
				got = append(got, "R "+r.Target+" "+r.Path)
			default:
				got = append(got, "R "+r.Path+" "+r.Target)
			}
		}
		after, more = page.Next, page.Next != ""
	}
	slices.Sort(got)
	return got
}

// dumbDiff lists what is different between two copies, in no order that means anything.
func dumbDiff(from, to model, backwards bool) []string {
	a, b, came, went := from, to, "+", "-"
	if backwards {
		a, b, came, went = to, from, "-", "+"
	}
	where := func(m model) map[int]string {
		ids := map[int]string{}
		for p, n := range m {
			ids[n.id] = p
		}
		return ids
	}
	size := func(n *modelNode) (sum int64) {
		for _, b := range n.blocks {
			sum += b
		}
		return sum
	}
	rel := func(p string) string { return strings.TrimPrefix(p, "/") }
	inA, inB := where(a), where(b)
	var out []string
	for id, pa := range inA {
		pb, ok := inB[id]
		if !ok {
			continue
		}
		x, y := a[pa], b[pb]
		changed := x.mode != y.mode || x.owner != y.owner || x.group != y.group || x.replication != y.replication || size(x) != size(y) || x.quota != y.quota || x.tag != y.tag
		names := a.children(pa)
		for _, name := range b.children(pb) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		for _, name := range names {
			was, is := a[join(pa, name)], b[join(pb, name)]
			if was != nil && is != nil && was.id == is.id {
				continue
			}
			changed = true
			if is != nil {
				from, moved := inA[is.id]
				if moved { // but nothing is told of what was in a directory that has gone
					_, moved = inB[a[parentOf(from)].id]
				}
				if !moved {
					out = append(out, came+" "+rel(join(pa, name))+" ")
				}
			}
			if was == nil {
				continue
			}
			switch target, ok := inB[was.id]; {
			case !ok:
				out = append(out, went+" "+rel(join(pa, name))+" ")
			case backwards:
				out = append(out, "R "+rel(target)+" "+rel(join(pa, name)))
			default:
				out = append(out, "R "+rel(join(pa, name))+" "+rel(target))
			}
		}
		if changed {
			out = append(out, "M "+rel(pa)+" ")
		}
	}
	slices.Sort(out)
	return out
}

// dumpSnapshot prints the tree below path as model.dump does.
func dumpSnapshot(ns *Namespace, root string) string {
	var lines []string
	var walk func(path string)
	walk = func(path string) {
		rel := "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		st, err := ns.Stat(super, path)
		if err != nil || st == nil {
			lines = append(lines, fmt.Sprintf("%s: %v, %v", rel, st, err))
			return
		}
		if !st.IsDir() {
			f, err := ns.Blocks(super, path, 0, 1<<40)
			if err != nil {
				lines = append(lines, fmt.Sprintf("%s: %v", rel, err))
				return
			}
			lengths := []int64{}
			for _, b := range f.Blocks {
				lengths = append(lengths, b.Block.Length)
			}
			lines = append(lines, fmt.Sprintf("%s -%v %s:%s x%d %v open=%v", rel, st.Mode, st.Owner, st.Group, st.Replication, lengths, f.UnderConstruction))
			return
		}
		lines = append(lines, fmt.Sprintf("%s d%v %s:%s %d", rel, st.Mode, st.Owner, st.Group, st.Children))
		for after, more := "", true; more; {
			l, err := ns.List(super, path, after, 2)
			if err != nil || l == nil || l.Remaining > 0 && len(l.Entries) == 0 {
				lines = append(lines, fmt.Sprintf("%s: %v, %v", rel, l, err))
				return
			}
			for _, e := range l.Entries {
				after = e.Name
				walk(join(path, e.Name))
			}
			more = l.Remaining > 0
		}
	}
	walk(root)
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// used is what counts for a quota of path: what is there, and what only snapshots have of directories that are there.
func (m model) used(path string) (u usage) {
	inside := func(p string) bool { return p == path || below(p, path) }
	there := map[int]bool{}
	for p, n := range m {
		if there[n.id] = true; inside(p) {
			if u.names++; !n.dir {
				u.space += m.space(n)
			}
		}
	}
	type lost struct {
		age         uint32 // of the newest snapshot that has it
		root        string
		lengths     map[int]int64
		replication int
	}
	gone := map[int]*lost{}
	for p, n := range m {
		for name, s := range n.snapshots {
			for _, was := range s {
				if there[was.id] {
					continue
				}
				l := gone[was.id]
				if l == nil {
					l = &lost{lengths: map[int]int64{}}
					gone[was.id] = l
				}
				if n.age[name] > l.age {
					l.age, l.root = n.age[name], p
				}
				l.replication = max(l.replication, was.replication)
				for i, b := range was.blocks {
					l.lengths[was.serial[i]] = b
				}
			}
		}
	}
	for _, l := range gone {
		if !inside(l.root) {
			continue
		}
		u.names++
		for _, length := range l.lengths {
			u.space += length * int64(l.replication)
		}
	}
	return u
}

// compareQuotas compares what quotas say is used with the model, when nothing is left to be taken apart.
func (s *machine) compareQuotas(t *rapid.T) {
	for path, n := range s.m {
		if !n.quota {
			continue
		}
		u, err := s.w.ns.QuotaUsage(super, path)
		if err != nil || u.NameQuota != 1<<40 {
			t.Fatalf("%s: %+v, %v", path, u, err)
		}
		if got, want := (usage{names: u.Names, space: u.Space}), s.m.used(path); got != want {
			t.Fatalf("%s uses %+v of its quota, the model says %+v", path, got, want)
		}
	}
}

// compareBlocks compares the blocks that effects told of with those of the present state and of all snapshots, when nothing is
// left to be taken apart.
func (s *machine) compareBlocks(t *rapid.T) {
	for ns := s.w.ns; ns.Counts().Reclaiming > 0 || ns.Counts().DeletedSnapshots > 0; {
		s.do(t, super, &logpb.Reclaim{Limit: 1000})
	}
	want := map[metadata.BlockID]bool{}
	s.eachBlock(t, "/", want)
	for path, n := range s.m {
		for name := range n.snapshots {
			s.eachBlock(t, join(path, ".snapshot/"+name), want)
		}
	}
	listed := map[metadata.BlockID]bool{}
	if err := s.cold.EachBlock(func(b BlockOwner) bool {
		listed[b.Block.ID] = true
		return true
	}); err != nil {
		t.Fatal(err)
	}
	for id := range listed {
		if _, ok := s.w.ns.BlockOwner(id); !ok {
			t.Fatalf("block %d has no owner", id)
		}
	}
	if !maps.Equal(want, listed) || !maps.Equal(want, s.blocks) {
		t.Fatalf("blocks of files and snapshots %v, listed %v, told %v", slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(s.blocks)))
	}
	for name, ns := range map[string]*Namespace{"the one": s.w.ns, "the other one": s.cold} {
		if errs := ns.Check(); len(errs) > 0 {
			t.Fatalf("%s: %v", name, errors.Join(errs...))
		}
	}
	if a, b := s.w.ns.Hash(), s.cold.Hash(); a != b {
		t.Fatalf("hashes differ: %016x, %016x", a, b)
	}
}

func (s *machine) eachBlock(t *rapid.T, path string, blocks map[metadata.BlockID]bool) {
	l, err := s.w.ns.ListWithBlocks(super, path, "", 1000)
	if err != nil || l == nil {
		t.Fatalf("%s: %v %v", path, l, err)
	}
	for i, e := range l.Entries {
		if f := l.Files[i]; f != nil {
			for _, b := range f.Blocks {
				if !b.Small {
					blocks[b.Block.ID] = true
				}
			}
			if f.Last != nil && !f.Last.Small {
				blocks[f.Last.Block.ID] = true
			}
			continue
		}
		s.eachBlock(t, join(path, e.Name), blocks)
	}
}
