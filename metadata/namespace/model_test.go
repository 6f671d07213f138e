package namespace

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
)

// model is the dumb twin: HDFS's rules over a map from paths to nodes. It is as slow as it looks.
type model map[string]*modelNode

type modelNode struct {
	id           int // given by the test, from the real thing
	dir          bool
	mode         metadata.Mode
	owner, group string
	replication  int
	blocks       []int64 // lengths
	serial       []int   // which blocks they are, as far as somebody asked
	lastOpen     bool    // the last block is being written
	blind        bool    // the append that opened the file handed out no block, and the writer has named none since
	small        bool    // the first block is a body
	holder       string  // of an open file
	allowed      bool    // snapshots may be taken of it
	quota        bool    // it has one
	tag          string  // the value of its attribute user.tag; empty: it has none
	snapshots    map[string]model
	age          map[string]uint32 // when each of snapshots was taken
}

func newModel() model {
	return model{"/": {dir: true, mode: 0o755, owner: "hops", group: "supergroup", id: int(metadata.RootID)}}
}

func join(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

func parentOf(path string) string {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "/"
	}
	return path[:i]
}

func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

func below(path, dir string) bool {
	return path != dir && (dir == "/" || strings.HasPrefix(path, dir+"/"))
}

// ancestors of a path, the root first.
func ancestors(path string) []string {
	if path == "/" {
		return nil
	}
	return append(ancestors(parentOf(path)), parentOf(path))
}

func (m model) may(c metadata.Caller, n *modelNode, want metadata.Access) bool {
	switch {
	case c.Superuser:
		return true
	case c.User == n.owner:
		return metadata.Access(n.mode>>6)&want == want
	case slices.Contains(c.Groups, n.group):
		return metadata.Access(n.mode>>3)&want == want
	}
	return metadata.Access(n.mode)&want == want
}

func (m model) traverse(c metadata.Caller, path string, forMaking bool) *metadata.Kind {
	for _, a := range ancestors(path) {
		n := m[a]
		if n == nil {
			return nil
		}
		if !n.dir {
			if forMaking {
				return metadata.ErrParentNotDirectory
			}
			return metadata.ErrPermission
		}
		if !m.may(c, n, metadata.Execute) {
			return metadata.ErrPermission
		}
	}
	return nil
}

// deepest is the deepest ancestor that exists.
func (m model) deepest(path string) *modelNode {
	a := ancestors(path)
	for i := len(a) - 1; i >= 0; i-- {
		if n := m[a[i]]; n != nil {
			return n
		}
	}
	return nil
}

func (m model) sticky(c metadata.Caller, path string) bool {
	if c.Superuser || path == "/" || m[path] == nil {
		return false
	}
	p := m[parentOf(path)]
	return p.mode&metadata.Sticky != 0 && p.owner != c.User && m[path].owner != c.User
}

func (m model) children(path string) []string {
	var names []string
	for other := range m {
		if other != "/" && parentOf(other) == path {
			names = append(names, base(other))
		}
	}
	slices.Sort(names)
	return names
}

func (m model) makeDirs(c metadata.Caller, path string, mode metadata.Mode) {
	if m[path] != nil {
		return
	}
	m.makeDirs(c, parentOf(path), mode)
	m[path] = &modelNode{dir: true, mode: mode&0o777 | 0o300, owner: c.User, group: m[parentOf(path)].group}
}

func (m model) mkdirs(c metadata.Caller, path string, mode metadata.Mode, parents bool) (bool, *metadata.Kind) {
	if k := m.traverse(c, path, true); k != nil {
		return false, k
	}
	if n := m[path]; n != nil {
		if !n.dir {
			return false, metadata.ErrExist
		}
		return true, nil
	}
	if !m.may(c, m.deepest(path), metadata.Write) {
		return false, metadata.ErrPermission
	}
	if !parents && m[parentOf(path)] == nil {
		return false, metadata.ErrNotExist
	}
	m.makeDirs(c, parentOf(path), mode)
	m[path] = &modelNode{dir: true, mode: mode, owner: c.User, group: m[parentOf(path)].group}
	return true, nil
}

func (m model) create(c metadata.Caller, path, client string, mode metadata.Mode, overwrite, parents bool) *metadata.Kind {
	if k := m.traverse(c, path, true); k != nil {
		return k
	}
	if path != "/" && !m.may(c, m.deepest(path), metadata.Write) {
		return metadata.ErrPermission
	}
	n := m[path]
	switch {
	case n == nil && !parents && m[parentOf(path)] == nil:
		return metadata.ErrNotExist
	case n != nil && n.dir:
		return metadata.ErrExist
	case n != nil && overwrite && !m.may(c, n, metadata.Write):
		return metadata.ErrPermission
	case n != nil && !overwrite && n.holder != "":
		return metadata.ErrBeingCreated
	case n != nil && !overwrite:
		return metadata.ErrExist
	}
	above := m.deepest(path)
	m.makeDirs(c, parentOf(path), above.mode)
	m[path] = &modelNode{mode: mode, owner: c.User, group: m[parentOf(path)].group, replication: 3, holder: client}
	return nil
}

// store makes a small file of so many bytes.
func (m model) store(c metadata.Caller, path string, mode metadata.Mode, length int64, overwrite, parents bool) *metadata.Kind {
	if k := m.create(c, path, "", mode, overwrite, parents); k != nil {
		return k
	}
	if n := m[path]; length > 0 {
		n.blocks, n.small = []int64{length}, true
	}
	return nil
}

func (m model) keep(c metadata.Caller, path string, length int64, inPlace bool) *metadata.Kind {
	if k := m.traverse(c, path, false); k != nil {
		return k
	}
	n := m[path]
	switch {
	case !m.may(c, n, metadata.Write):
		return metadata.ErrPermission
	case n.holder != "":
		return metadata.ErrBeingCreated
	case n.small || length == 0 || length > 1<<20:
		return metadata.ErrUnsupported
	case length > metadata.MaxBody:
		return metadata.ErrIO
	}
	for i := range n.blocks {
		if inPlace && m.snapshotHas(n.id, i) {
			return metadata.ErrUnsupported
		}
	}
	n.number()
	n.blocks, n.serial, n.small = []int64{length}, nil, true
	return nil
}

func (m model) append(c metadata.Caller, path, client string, exact bool) *metadata.Kind {
	if k := m.traverse(c, path, false); k != nil {
		return k
	}
	n := m[path]
	switch {
	case n != nil && n.dir:
		return metadata.ErrExist
	case n != nil && !m.may(c, n, metadata.Write):
		return metadata.ErrPermission
	case n == nil:
		return metadata.ErrNotExist
	case n.holder != "":
		return metadata.ErrBeingCreated
	}
	n.holder = client
	n.lastOpen = len(n.blocks) > 0 && n.blocks[len(n.blocks)-1] < 1<<20 && !(n.small && len(n.blocks) == 1) && !n.unaligned() && !(exact && n.misleads()) && !m.snapshotHas(n.id, len(n.blocks)-1)
	n.blind = exact && !n.lastOpen
	return nil
}

// unaligned reports whether a body makes the last block begin elsewhere than blocks of the same size would: a client of Hadoop's does not go on in it.
func (n *modelNode) unaligned() bool {
	if !n.small || len(n.blocks) < 2 {
		return false
	}
	before := int64(0)
	for _, b := range n.blocks[:len(n.blocks)-1] {
		before += b
	}
	return before%(1<<20) != 0
}

// misleads reports whether a client of Hadoop's fails in the last block: it takes its place there for that in the file.
func (n *modelNode) misleads() bool {
	before := int64(0)
	for _, b := range n.blocks[:len(n.blocks)-1] {
		before += b
	}
	return before%512 != 0 || (before+n.blocks[len(n.blocks)-1])%(1<<20) == 0
}

func (m model) subtree(c metadata.Caller, path string) bool {
	for p, n := range m {
		if p != path && !below(p, path) || !n.dir || len(m.children(p)) == 0 {
			continue
		}
		if !m.may(c, n, metadata.Read|metadata.Write|metadata.Execute) {
			return false
		}
		for _, name := range m.children(p) {
			if m.sticky(c, join(p, name)) {
				return false
			}
		}
	}
	return true
}

func (m model) delete(c metadata.Caller, path string, recursive bool) (bool, *metadata.Kind) {
	if k := m.traverse(c, path, false); k != nil {
		return false, k
	}
	if m.sticky(c, path) {
		return false, metadata.ErrPermission
	}
	if p := m[parentOf(path)]; path != "/" && p != nil && !m.may(c, p, metadata.Write) {
		return false, metadata.ErrPermission
	}
	if m[path] != nil && m[path].dir && !m.subtree(c, path) {
		return false, metadata.ErrPermission
	}
	if len(m.children(path)) > 0 && !recursive {
		return false, metadata.ErrNotEmpty
	}
	if path == "/" || m[path] == nil {
		return false, nil
	}
	if m.hasSnapshots(path) {
		return false, metadata.ErrSnapshot
	}
	maps.DeleteFunc(m, func(p string, _ *modelNode) bool { return p == path || below(p, path) })
	return true, nil
}

func (m model) move(src, dst string) {
	moved := model{}
	for p, n := range m {
		if p == src || below(p, src) {
			moved[dst+p[len(src):]] = n
			delete(m, p)
		}
	}
	maps.Copy(m, moved)
}

// mayRename are the checks that both renames begin with.
func (m model) mayRename(c metadata.Caller, src, dst string) *metadata.Kind {
	if m.sticky(c, src) {
		return metadata.ErrPermission
	}
	if p := m[parentOf(src)]; src != "/" && p != nil && !m.may(c, p, metadata.Write) {
		return metadata.ErrPermission
	}
	if dst != "/" && !m.may(c, m.deepest(dst), metadata.Write) {
		return metadata.ErrPermission
	}
	return nil
}

func (m model) rename(c metadata.Caller, src, dst string) (bool, *metadata.Kind) {
	if k := m.traverse(c, src, false); k != nil {
		return false, k
	}
	if k := m.traverse(c, dst, true); k != nil {
		return false, k
	}
	if n := m[dst]; n != nil && n.dir && src != "/" {
		dst = join(dst, base(src))
		if k := m.traverse(c, dst, true); k != nil {
			return false, k
		}
	}
	if k := m.mayRename(c, src, dst); k != nil {
		return false, k
	}
	if m[src] == nil || src == "/" {
		return false, nil
	}
	if m.hasSnapshots(src) {
		return false, metadata.ErrSnapshot
	}
	if dst == src {
		return true, nil
	}
	if below(dst, src) || m[dst] != nil || m[parentOf(dst)] == nil {
		return false, nil
	}
	if m.fixed(src, dst) {
		return false, metadata.ErrSnapshot
	}
	m.move(src, dst)
	return true, nil
}

func (m model) rename2(c metadata.Caller, src, dst string, overwrite bool) *metadata.Kind {
	if k := m.traverse(c, src, false); k != nil {
		return k
	}
	if k := m.traverse(c, dst, true); k != nil {
		return k
	}
	if k := m.mayRename(c, src, dst); k != nil {
		return k
	}
	n, old := m[src], m[dst]
	switch {
	case n == nil:
		return metadata.ErrNotExist
	case src == "/":
		return metadata.ErrIO
	case m.hasSnapshots(src):
		return metadata.ErrSnapshot
	case src == dst:
		return metadata.ErrExist
	case below(dst, src), dst == "/", old != nil && old.dir != n.dir:
		return metadata.ErrIO
	case old != nil && !overwrite:
		return metadata.ErrExist
	case len(m.children(dst)) > 0:
		return metadata.ErrIO
	case m[parentOf(dst)] == nil:
		return metadata.ErrNotExist
	case m.sticky(c, dst):
		return metadata.ErrPermission
	case m.fixed(src, dst) || m.hasSnapshots(dst):
		return metadata.ErrSnapshot
	}
	delete(m, dst)
	m.move(src, dst)
	return nil
}

// attribute checks what setPermission and its like have in common.
func (m model) attribute(c metadata.Caller, path string, owner bool, want metadata.Access) *metadata.Kind {
	if k := m.traverse(c, path, false); k != nil {
		return k
	}
	n := m[path]
	if n != nil && (owner && !c.Superuser && n.owner != c.User || !m.may(c, n, want)) {
		return metadata.ErrPermission
	}
	if n == nil {
		return metadata.ErrNotExist
	}
	return nil
}

// addBlock appends a block; previous is the length of the one before.
func (m model) addBlock(n *modelNode, previous int64) {
	if len(n.blocks) > 0 && n.lastOpen {
		n.blocks[len(n.blocks)-1] = previous
	}
	n.blocks = append(n.blocks, 0)
	n.lastOpen = true
}

// addBlind adds a block behind none that is named, if the append that opened the file handed out none, or finds the one that was.
func (m model) addBlind(n *modelNode) *metadata.Kind {
	switch last := len(n.blocks) - 1; {
	case !n.lastOpen:
		n.blocks, n.lastOpen = append(n.blocks, 0), true
	case n.blocks[last] > 0:
		return metadata.ErrIO
	}
	return nil
}

// byID finds a node by the inode that the test gave it.
func (m model) byID(id int) *modelNode {
	for _, n := range m {
		if n.id == id {
			return n
		}
	}
	return nil
}

func (m model) dump() string {
	var out strings.Builder
	for _, path := range slices.Sorted(maps.Keys(m)) {
		n := m[path]
		if n.dir {
			fmt.Fprintf(&out, "%s d%v %s:%s %d\n", path, n.mode, n.owner, n.group, len(m.children(path)))
			continue
		}
		fmt.Fprintf(&out, "%s -%v %s:%s x%d %v open=%v\n", path, n.mode, n.owner, n.group, n.replication, n.blocks, n.holder != "")
	}
	return out.String()
}

// dumpNamespace prints a namespace as dump prints a model, through the read methods.
func dumpNamespace(ns *Namespace) string {
	var out strings.Builder
	var lines []string
	var walk func(path string)
	walk = func(path string) {
		st, err := ns.Stat(super, path)
		if err != nil || st == nil {
			lines = append(lines, fmt.Sprintf("%s: %v, %v", path, st, err))
			return
		}
		if st.IsDir() {
			lines = append(lines, fmt.Sprintf("%s d%v %s:%s %d", path, st.Mode, st.Owner, st.Group, st.Children))
			after := ""
			for {
				l, err := ns.List(super, path, after, 3)
				if err != nil || l == nil {
					lines = append(lines, fmt.Sprintf("%s: %v, %v", path, l, err))
					return
				}
				for _, e := range l.Entries {
					after = e.Name
					walk(join(path, e.Name))
				}
				if l.Remaining == 0 {
					return
				}
			}
		}
		f, ok := ns.FileByID(st.ID)
		if !ok || f.Path != path {
			lines = append(lines, fmt.Sprintf("%s: its inode %d is %v, %v", path, st.ID, f, ok))
			return
		}
		lengths := []int64{}
		for _, b := range f.Blocks {
			lengths = append(lengths, b.Length)
		}
		lines = append(lines, fmt.Sprintf("%s -%v %s:%s x%d %v open=%v", path, st.Mode, st.Owner, st.Group, st.Replication, lengths, f.UnderConstruction))
	}
	walk("/")
	slices.Sort(lines)
	for _, l := range lines {
		out.WriteString(l + "\n")
	}
	return out.String()
}
