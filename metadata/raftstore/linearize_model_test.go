package raftstore_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/gohops/hops/metadata"
)

// The model of a small tree, by paths and by hand: what a sequence of operations of one user, who owns all of it, answers. Trees do not know of one
// another, so each is checked by itself.

type verb uint8

const (
	doMkdirs verb = iota
	doCreate
	doRename
	doDelete
	doSetPermission
	doAppend
	doComplete
	doStat
	doList
)

func (v verb) String() string {
	return [...]string{"mkdirs", "create", "rename", "delete", "setPermission", "append", "complete", "stat", "list"}[v]
}

// request is what a client asks for.
type request struct {
	verb     verb
	tree     string // "/t7", where everything happens
	path, to string
	// flag: make parents, of mkdirs and create; recursively, of delete.
	flag      bool
	overwrite bool
	mode      metadata.Mode
	holder    string
	id        metadata.INodeID // of complete
	block     metadata.Block   // of complete: the file's last, with its length
}

// answer is what it is told.
type answer struct {
	// kind is why it was refused, nil if it was not.
	kind *metadata.Kind
	ok   bool
	// untold: nothing is known of what was answered, gone: that it was carried out, and no more. again: by an earlier request, and id is right.
	untold, gone, again bool
	id                  metadata.INodeID // of a file
	dir                 bool
	mode                metadata.Mode
	length              int64
	names               string
	last                metadata.Block // of a file that was opened to append; the model does not know it
}

// entry is a file or a directory of the model. id is 0 while nobody was told it.
type entry struct {
	path   string
	dir    bool
	mode   metadata.Mode
	id     metadata.INodeID
	holder string
	last   metadata.BlockID
	length int64
}

// tree is sorted by path. It does not change; without makes another one.
type tree []entry

func (t tree) find(path string) (int, bool) {
	return slices.BinarySearchFunc(t, path, func(e entry, path string) int { return strings.Compare(e.path, path) })
}

func (t tree) at(path string) *entry {
	if i, ok := t.find(path); ok {
		return &t[i]
	}
	return nil
}

// with is the tree with an entry put in place of what is there.
func (t tree) with(e entry) tree {
	i, ok := t.find(e.path)
	if ok {
		t = slices.Clone(t)
		t[i] = e
		return t
	}
	return slices.Insert(slices.Clone(t), i, e)
}

func under(path, dir string) bool { return strings.HasPrefix(path, dir+"/") }

// without is the tree without what is at a path and below it.
func (t tree) without(path string) tree {
	return slices.DeleteFunc(slices.Clone(t), func(e entry) bool { return e.path == path || under(e.path, path) })
}

func parentOf(path string) string { return path[:strings.LastIndexByte(path, '/')] }

func nameOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// traverse looks whether all above a path can be searched, as far as it is there. made: the path may be made.
func (t tree) traverse(root, path string, made bool) *metadata.Kind {
	for i := len(root); i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		switch e := t.at(path[:i]); {
		case e == nil:
			return nil
		case !e.dir && made:
			return metadata.ErrParentNotDirectory
		case !e.dir || !allows(e, metadata.Execute):
			return metadata.ErrPermission
		}
	}
	return nil
}

func allows(e *entry, want metadata.Access) bool { return metadata.Access(e.mode>>6)&want == want }

// deepest is the deepest directory above a path that is there.
func (t tree) deepest(path string) *entry {
	for {
		path = parentOf(path)
		if e := t.at(path); e != nil {
			return e
		}
	}
}

// ancestors makes what is missing above a path.
func (t tree) ancestors(path string, mode metadata.Mode) tree {
	above := parentOf(path)
	if t.at(above) != nil {
		return t
	}
	return t.ancestors(above, mode).with(entry{path: above, dir: true, mode: mode&0o777 | 0o300})
}

func (t tree) mkdirs(r *request) (answer, tree) {
	if k := t.traverse(r.tree, r.path, true); k != nil {
		return answer{kind: k}, t
	}
	if e := t.at(r.path); e != nil {
		if !e.dir {
			return answer{kind: metadata.ErrExist}, t
		}
		return answer{ok: true}, t
	}
	if !allows(t.deepest(r.path), metadata.Write) {
		return answer{kind: metadata.ErrPermission}, t
	}
	if !r.flag && t.at(parentOf(r.path)) == nil {
		return answer{kind: metadata.ErrNotExist}, t
	}
	return answer{ok: true}, t.ancestors(r.path, r.mode).with(entry{path: r.path, dir: true, mode: r.mode})
}

func (t tree) create(r *request, told answer) (answer, tree) {
	if k := t.traverse(r.tree, r.path, true); k != nil {
		return answer{kind: k}, t
	}
	if !allows(t.deepest(r.path), metadata.Write) {
		return answer{kind: metadata.ErrPermission}, t
	}
	old := t.at(r.path)
	switch {
	case old == nil && !r.flag && t.at(parentOf(r.path)) == nil:
		return answer{kind: metadata.ErrNotExist}, t
	case old == nil:
	case old.dir:
		return answer{kind: metadata.ErrExist}, t
	case r.overwrite && !allows(old, metadata.Write):
		return answer{kind: metadata.ErrPermission}, t
	case !r.overwrite && old.holder != "":
		return answer{kind: metadata.ErrBeingCreated}, t
	case !r.overwrite:
		return answer{kind: metadata.ErrExist}, t
	}
	made := t.ancestors(r.path, t.deepest(r.path).mode)
	return answer{ok: true, id: told.id, mode: r.mode}, made.with(entry{path: r.path, mode: r.mode, id: told.id, holder: r.holder})
}

func (t tree) rename(r *request) (answer, tree) {
	if k := t.traverse(r.tree, r.path, false); k != nil {
		return answer{kind: k}, t
	}
	to := r.to
	if k := t.traverse(r.tree, to, true); k != nil {
		return answer{kind: k}, t
	}
	if d := t.at(to); d != nil && d.dir {
		to += "/" + nameOf(r.path)
		if !allows(d, metadata.Execute) {
			return answer{kind: metadata.ErrPermission}, t
		}
	}
	if p := t.at(parentOf(r.path)); p != nil && !allows(p, metadata.Write) {
		return answer{kind: metadata.ErrPermission}, t
	}
	if !allows(t.deepest(to), metadata.Write) {
		return answer{kind: metadata.ErrPermission}, t
	}
	n := t.at(r.path)
	switch {
	case n == nil:
		return answer{}, t
	case to == r.path:
		return answer{ok: true}, t
	case t.at(to) != nil || t.at(parentOf(to)) == nil || under(to, r.path):
		return answer{}, t
	}
	moved := t.without(r.path)
	for _, e := range t {
		if e.path == r.path || under(e.path, r.path) {
			e.path = to + e.path[len(r.path):]
			moved = moved.with(e)
		}
	}
	return answer{ok: true}, moved
}

func (t tree) remove(r *request) (answer, tree) {
	if k := t.traverse(r.tree, r.path, false); k != nil {
		return answer{kind: k}, t
	}
	if p := t.at(parentOf(r.path)); p != nil && !allows(p, metadata.Write) {
		return answer{kind: metadata.ErrPermission}, t
	}
	n := t.at(r.path)
	if n == nil {
		return answer{}, t
	}
	for i := range t {
		if e := &t[i]; e.dir && (e == n || under(e.path, r.path)) && t.full(e.path) && !allows(e, 7) {
			return answer{kind: metadata.ErrPermission}, t
		}
	}
	if n.dir && t.full(r.path) && !r.flag {
		return answer{kind: metadata.ErrNotEmpty}, t
	}
	return answer{ok: true}, t.without(r.path)
}

// full reports whether a directory has entries.
func (t tree) full(path string) bool {
	return slices.ContainsFunc(t, func(e entry) bool { return under(e.path, path) })
}

func (t tree) setPermission(r *request) (answer, tree) {
	if k := t.traverse(r.tree, r.path, false); k != nil {
		return answer{kind: k}, t
	}
	e := t.at(r.path)
	if e == nil {
		return answer{kind: metadata.ErrNotExist}, t
	}
	changed := *e
	changed.mode = r.mode
	return answer{ok: true}, t.with(changed)
}

func (t tree) reopen(r *request, told answer) (answer, tree) {
	if k := t.traverse(r.tree, r.path, false); k != nil {
		return answer{kind: k}, t
	}
	e := t.at(r.path)
	switch {
	case e == nil:
		return answer{kind: metadata.ErrNotExist}, t
	case e.dir:
		return answer{kind: metadata.ErrExist}, t
	case !allows(e, metadata.Write):
		return answer{kind: metadata.ErrPermission}, t
	case e.holder != "":
		return answer{kind: metadata.ErrBeingCreated}, t
	}
	open := *e
	open.holder = r.holder
	if open.id == 0 {
		open.id = told.id
	}
	return answer{ok: true, id: open.id, mode: e.mode, length: e.length}, t.with(open)
}

func (t tree) complete(r *request) (answer, tree) {
	i := slices.IndexFunc(t, func(e entry) bool { return e.id == r.id })
	if i < 0 {
		return answer{kind: metadata.ErrNotExist}, t
	}
	e := t[i]
	switch {
	case e.holder == r.holder:
		e.holder, e.last = "", r.block.ID
		e.length += r.block.Length
		return answer{ok: true}, t.with(e)
	case e.holder == "" && e.last == r.block.ID:
		return answer{ok: true}, t
	}
	return answer{kind: metadata.ErrLeaseExpired}, t
}

func (t tree) stat(r *request, told answer) (answer, tree) {
	if k := t.traverse(r.tree, r.path, false); k != nil {
		return answer{kind: k}, t
	}
	e := t.at(r.path)
	if e == nil {
		return answer{}, t
	}
	if !e.dir && e.id == 0 && told.ok {
		known := *e
		known.id = told.id
		t = t.with(known)
		e = &known
	}
	return answer{ok: true, dir: e.dir, id: e.id, mode: e.mode, length: e.length}, t
}

func (t tree) list(r *request) (answer, tree) {
	if k := t.traverse(r.tree, r.path, false); k != nil {
		return answer{kind: k}, t
	}
	e := t.at(r.path)
	if e == nil || !e.dir {
		return answer{ok: e != nil}, t
	}
	if !allows(e, metadata.Read|metadata.Execute) {
		return answer{kind: metadata.ErrPermission}, t
	}
	var names []string
	for _, c := range t {
		if under(c.path, r.path) && parentOf(c.path) == r.path {
			names = append(names, nameOf(c.path))
		}
	}
	return answer{ok: true, dir: true, names: strings.Join(names, " ")}, t
}

// step is what a request answers and leaves. told is what the client was answered: numbers that the model does not know are taken from it.
func (t tree) step(r *request, told answer) (answer, tree) {
	switch r.verb {
	case doMkdirs:
		return t.mkdirs(r)
	case doCreate:
		return t.create(r, told)
	case doRename:
		return t.rename(r)
	case doDelete:
		return t.remove(r)
	case doSetPermission:
		return t.setPermission(r)
	case doAppend:
		return t.reopen(r, told)
	case doComplete:
		return t.complete(r)
	case doStat:
		return t.stat(r, told)
	}
	return t.list(r)
}

// agrees reports whether told is what should be told.
func (told answer) agrees(should answer) bool {
	switch {
	case told.untold:
		return true
	case told.gone:
		return should.ok
	case told.again:
		return should.ok && told.id == should.id
	}
	return told == should
}

var treeModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byTree := make(map[string][]porcupine.Operation)
		for _, op := range history {
			at := op.Input.(*request).tree
			byTree[at] = append(byTree[at], op)
		}
		var parts [][]porcupine.Operation
		for _, p := range byTree {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return tree(nil) },
	Step: func(state, input, output any) (bool, any) {
		t, r, told := state.(tree), input.(*request), output.(answer)
		if len(t) == 0 { // every operation of a partition is in one tree, which is there from the beginning
			t = tree{{path: r.tree, dir: true, mode: 0o755}}
		}
		should, next := t.step(r, told)
		return told.agrees(should), next
	},
	Equal:             func(a, b any) bool { return slices.Equal(a.(tree), b.(tree)) },
	DescribeOperation: func(input, output any) string { return fmt.Sprint(input.(*request), " ", output.(answer)) },
}

func (r *request) String() string {
	s := r.verb.String() + " " + r.path
	switch r.verb {
	case doRename:
		s += " " + r.to
	case doMkdirs, doDelete:
		s += fmt.Sprint(" ", r.flag)
	case doCreate:
		s += fmt.Sprintf(" parents %t overwrite %t %s", r.flag, r.overwrite, r.holder)
	case doSetPermission:
		s += fmt.Sprintf(" %o", r.mode)
	case doAppend:
		s += " " + r.holder
	case doComplete:
		s += fmt.Sprintf("%d by %s to %v", r.id, r.holder, r.block)
	}
	return s
}

func (told answer) String() string {
	switch {
	case told.untold:
		return "?"
	case told.gone:
		return "done, and gone"
	case told.kind != nil:
		return told.kind.Error()
	}
	return fmt.Sprintf("%t id %d dir %t %o %d bytes %q", told.ok, told.id, told.dir, told.mode, told.length, told.names)
}
