package namespace

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Limits of one publish, which are part of the state machine: others wait for all of it.
const (
	// MaxPublishSteps is how many steps one has, MaxPublishBytes how many bytes they take in the command.
	MaxPublishSteps = 256
	MaxPublishBytes = 512 << 10
)

// publish does several things in one go, all of them or none. Each step looks at what is there, with what the steps before have done, and changes it;
// when one fails, what was changed is taken back (undo.go). Nothing is removed for good meanwhile: what a step deletes or replaces goes to the reclaim
// directory. Step of the result is the one that failed, from 1 on; Snapshot is the path of the snapshot that the last one made.
//
// Errors: those of the steps, with the step in front; ErrRetriable with INode and Step for a tree that has to be surveyed before; ErrInvalidArgument for
// steps that cannot be, or too many of them, or that look at too much together.
func (ns *Namespace) publish(t *txn, op *logpb.Publish) {
	if err := checkPublish(op); err != nil {
		t.fail(err)
		return
	}
	ns.beginUndo()
	defer func() { ns.undo = nil }()
	if err := ns.warm(t, op); err != nil {
		t.fail(err)
		return
	}
	trees := ns.undo.foreseen
	ns.beginUndo() // looks count anew
	ns.undo.foreseen = trees
	for i, step := range op.Steps {
		r := ns.tryStep(t, step)
		if err := r.Err; err != nil {
			ns.rollBack()
			if !isAnswer(err) { // something is not in memory, and nothing was changed, or the store fails
				t.fail(err)
				return
			}
			t.result.INode, t.result.Step = r.INode, i+1
			t.failf(metadata.KindOf(err), "step %d of %d (%s): %s", i+1, len(op.Steps), describeStep(step), err)
			return
		}
		if step.GetSnapshot() != nil {
			t.result.Snapshot, t.result.INode = r.Snapshot, r.INode
		}
	}
	ns.continued(ns.undo.told)
	t.result.OK = true
}

// tryStep does one step. A mistake of the program that panics while it looks, before it has changed anything itself, is none of a command that has changed something:
// what the steps before have done is taken back, and it is answered as any other (try). Without that it would stop every member at every start. Where
// the step has begun to change something nobody knows what is done, and the member stops.
func (ns *Namespace) tryStep(t *txn, step *logpb.PublishStep) *Result {
	one := &txn{caller: t.caller, index: t.index, result: &Result{}}
	before, loading := ns.changed, ns.loading
	if ns.changed = false; before && loading == onceChanged {
		ns.loading = always // what is not in memory is read at once, as it was before
	}
	sound := false
	defer func() {
		if !sound && !ns.changed {
			ns.rollBack()
			return // with changed false, for try to see
		}
		ns.changed, ns.loading = ns.changed || before, loading
	}()
	ns.publishStep(one, step)
	sound = true
	return one.result
}

// checkPublish refuses what can be no publish, whatever the state is.
func checkPublish(op *logpb.Publish) error {
	bad := func(format string, args ...any) error {
		return metadata.Errorf(metadata.ErrInvalidArgument, "publish: "+format, args...)
	}
	switch n := len(op.Steps); {
	case n == 0:
		return bad("there are no steps")
	case n > MaxPublishSteps:
		return bad("there are %d steps, and %d is the most", n, MaxPublishSteps)
	}
	if size := op.SizeVT(); size > MaxPublishBytes {
		return bad("the steps take %d bytes, and %d is the most", size, MaxPublishBytes)
	}
	for i, step := range op.Steps {
		for _, target := range stepTargets(step) {
			if target.GetVersion() != 0 {
				return bad("step %d has a target that was resolved before", i+1)
			}
		}
		if step.IfThere && step.GetDelete() == nil {
			return bad("step %d is not a delete, which alone may be of what is not there", i+1)
		}
		switch {
		case step.GetRename().GetLegacy(), step.GetRename().GetToTrash():
			return bad("step %d is a rename of another kind", i+1)
		case step.GetSnapshot() != nil && step.GetSnapshot().Change != logpb.ChangeSnapshots_CREATE:
			return bad("step %d changes snapshots otherwise than by making one", i+1)
		case step.GetSnapshot() != nil && i < len(op.Steps)-1:
			return bad("step %d makes a snapshot, which only the last one may", i+1)
		}
	}
	return nil
}

func (ns *Namespace) publishStep(t *txn, step *logpb.PublishStep) {
	switch s := step.Op.(type) {
	case *logpb.PublishStep_Rename:
		ns.rename(t, s.Rename)
	case *logpb.PublishStep_Delete:
		ns.delete(t, s.Delete)
		r := t.result
		if base := s.Delete.Target.Base; step.IfThere && base > uint64(noINode) && metadata.KindOf(r.Err) == metadata.ErrNotExist {
			r.Err = nil // the inode where the path begins is not there
		}
		if r.Err == nil && !r.OK {
			switch {
			case (s.Delete.Target.Base == 0 || s.Delete.Target.Base == uint64(metadata.RootID)) && strings.Trim(s.Delete.Target.Path, "/") == "":
				t.failf(metadata.ErrIO, "the root directory cannot be deleted")
			case !step.IfThere:
				t.failf(metadata.ErrNotExist, "File does not exist: %s", describeTarget(s.Delete.Target))
			}
		}
	case *logpb.PublishStep_SetXattr:
		ns.setXAttr(t, s.SetXattr)
	case *logpb.PublishStep_RemoveXattr:
		ns.removeXAttr(t, s.RemoveXattr)
	case *logpb.PublishStep_Snapshot:
		ns.changeSnapshots(t, s.Snapshot)
	}
}

// warm looks at what the steps will look at, as far as it is there now, wherever the steps before will have moved it to, and ends where something of it is not in memory: nothing was changed, and the
// command starts over when that was read. Behind the first change the store is read with the lock held. What else is wrong the step says. Trees that steps
// delete or move are not looked at again, unless something is changed in them before; here others have turns meanwhile.
//
// Errors: *cold; those of the store.
func (ns *Namespace) warm(t *txn, op *logpb.Publish) error {
	p, q := newPlace(), newPlace()
	defer p.release()
	defer q.release()
	var moved moves
	for _, step := range op.Steps {
		ns.breathe()
		err := ns.warmStep(t, p, q, step, &moved)
		switch {
		case errors.Is(err, errManyLooks):
			return nil
		case err != nil && !isAnswer(err):
			return err
		}
	}
	return nil
}

// warmStep is warm for one step. p and q are room.
func (ns *Namespace) warmStep(t *txn, p, q *place, step *logpb.PublishStep, moved *moves) (bad error) {
	note := func(err error) { // what no answer is ends it, and so do too many looks
		if bad == nil && err != nil && (!isAnswer(err) || errors.Is(err, errManyLooks)) {
			bad = err
		}
	}
	rename := step.GetRename()
	var source *inode // of a rename
	var paths [2]string
	for i, target := range stepTargets(step) {
		base, path := metadata.INodeID(target.Base), target.Path
		if rename != nil || len(*moved) > 0 {
			at, err := ns.pathAt(p, &t.caller, target, *moved)
			note(err)
			if paths[i] = at; err == nil {
				if was, ok := moved.before(at); ok {
					base, path = 0, was
				}
			}
		}
		err := ns.resolve(p, &t.caller, base, path, toUse)
		if err == nil {
			err = ns.looked(looksPerName*len(p.nodes) + len(*moved)/movesPerLook)
		}
		if err == nil {
			err = ns.warmTree(t, p, step.GetDelete())
		}
		switch {
		case err != nil || rename == nil:
		case i == 0:
			source = p.last()
		default:
			err = ns.warmMove(source, p.parent(), rename)
		}
		if note(err); bad != nil {
			return bad
		}
	}
	if rename == nil && step.GetDelete() == nil {
		return nil
	}
	for _, m := range *moved { // what was moved into the tree
		if !beneath(m.is, paths[0]) {
			continue
		}
		err := ns.resolve(q, &t.caller, 0, m.was, toUse)
		if err == nil {
			err = ns.warmTree(t, q, step.GetDelete())
		}
		if err == nil && rename != nil && len(p.nodes) > 1 {
			err = ns.warmMove(q.last(), p.parent(), rename)
		}
		if note(err); bad != nil {
			return bad
		}
	}
	if rename != nil {
		moved.rename(paths[0], paths[1])
	} else {
		moved.drop(paths[0])
	}
	return nil
}

// moves is what the renames of some steps have moved. Paths have no slashes around them.
type moves []move

type move struct{ was, is string }

// movesPerLook is how many of them are one look.
const movesPerLook = 8

// before is where that was before the steps which is at a path after them, where a rename has moved it.
func (m moves) before(path string) (was string, ok bool) {
	deepest := 0
	for _, v := range m {
		if len(v.is) > deepest && (path == v.is || beneath(path, v.is)) {
			was, ok, deepest = v.was+path[len(v.is):], true, len(v.is)
		}
	}
	return was, ok
}

// after is where that is after the steps which was at a path before them.
func (m moves) after(path string) string {
	is, deepest := path, 0
	for _, v := range m {
		if len(v.was) > deepest && (path == v.was || beneath(path, v.was)) {
			is, deepest = v.is+path[len(v.was):], len(v.was)
		}
	}
	return is
}

// rename is one more step.
func (m *moves) rename(from, to string) {
	if from == to || from == "" || to == "" {
		return
	}
	was, ok := m.before(from)
	if !ok {
		was = from
	}
	m.drop(to)
	found := false
	for i := range *m {
		v := &(*m)[i]
		switch {
		case v.is == from:
			v.is, found = to, true
		case beneath(v.is, from):
			v.is = to + v.is[len(from):]
		}
	}
	if !found {
		*m = append(*m, move{was, to})
	}
}

// drop is a step that deletes what is at a path.
func (m *moves) drop(path string) {
	*m = slices.DeleteFunc(*m, func(v move) bool { return v.is == path || beneath(v.is, path) })
}

// beneath reports whether a path is below a directory.
func beneath(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && path[:len(dir)] == dir
}

// pathAt is the path of a target when its step is taken, behind those that have moved something. p is room.
func (ns *Namespace) pathAt(p *place, c *caller, target *logpb.Target, moved moves) (string, error) {
	path := strings.Trim(target.Path, "/")
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	base := metadata.INodeID(target.Base)
	if base == 0 || base == metadata.RootID {
		return path, nil
	}
	if err := ns.resolve(p, c, base, "", toUse); err != nil {
		return "", err
	}
	return strings.Trim(moved.after(p.String()[1:])+"/"+path, "/"), nil
}

// warmTree looks at what a delete, or none, looks at below the place p.
func (ns *Namespace) warmTree(t *txn, p *place, op *logpb.Delete) error {
	n := p.last()
	if op == nil || op.Survey != 0 || n == nil || n.isGhost() {
		return nil
	}
	if err := ns.check(p, &t.caller, checks{subtree: true}); err != nil {
		return err
	}
	tree := foreseen{free: true}
	if ns.limited(n.parent, nil) {
		u, err := ns.usageOf(n, smallTree)
		if err != nil {
			return err
		}
		tree.counted, tree.usage = true, u
	}
	ns.foresee(n, tree)
	return nil
}

// warmMove looks at what a rename of n into the directory to, as far as they are there, has to count for quotas.
func (ns *Namespace) warmMove(n, to *inode, op *logpb.Rename) error {
	if n == nil || to == nil || n.parent == nil || n.isGhost() || to.isGhost() || !n.isDir() || op.Survey != 0 || ns.foresaw(n).counted {
		return nil
	}
	if common := commonAncestor(n.parent, to); !ns.limited(n.parent, common) && !ns.limited(to, common) {
		return nil
	}
	u, err := ns.usageOf(n, smallTree)
	if err == nil {
		ns.foresee(n, foreseen{free: ns.foresaw(n).free, counted: true, usage: u})
	}
	return err
}

// foresee keeps what was found of a tree before the first step.
func (ns *Namespace) foresee(n *inode, tree foreseen) {
	if !n.isDir() || n.dir.entries == 0 { // there is nothing to it
		return
	}
	if ns.undo.foreseen == nil {
		ns.undo.foreseen = map[metadata.INodeID]foreseen{}
	}
	ns.undo.foreseen[n.id] = tree
}

// foresaw is what was found of a tree before the first step, if that still holds.
func (ns *Namespace) foresaw(n *inode) foreseen {
	if ns.undo == nil || n == nil {
		return foreseen{}
	}
	return ns.undo.foreseen[n.id]
}

// stepTargets are what a step is about.
func stepTargets(step *logpb.PublishStep) []*logpb.Target {
	switch s := step.Op.(type) {
	case *logpb.PublishStep_Rename:
		return []*logpb.Target{s.Rename.Source, s.Rename.Target}
	case *logpb.PublishStep_Delete:
		return []*logpb.Target{s.Delete.Target}
	case *logpb.PublishStep_SetXattr:
		return []*logpb.Target{s.SetXattr.Target}
	case *logpb.PublishStep_RemoveXattr:
		return []*logpb.Target{s.RemoveXattr.Target}
	case *logpb.PublishStep_Snapshot:
		return []*logpb.Target{s.Snapshot.Target}
	}
	return nil
}

// describeStep is a step in a few words, for messages.
func describeStep(step *logpb.PublishStep) string {
	switch s := step.Op.(type) {
	case *logpb.PublishStep_Rename:
		return fmt.Sprintf("rename %s to %s", describeTarget(s.Rename.Source), describeTarget(s.Rename.Target))
	case *logpb.PublishStep_Delete:
		return "delete " + describeTarget(s.Delete.Target)
	case *logpb.PublishStep_SetXattr:
		a := s.SetXattr.Attribute
		return fmt.Sprintf("set %s of %s", describeAttribute(a.Namespace, a.Name), describeTarget(s.SetXattr.Target))
	case *logpb.PublishStep_RemoveXattr:
		return fmt.Sprintf("remove %s of %s", describeAttribute(s.RemoveXattr.Namespace, s.RemoveXattr.Name), describeTarget(s.RemoveXattr.Target))
	default:
		return "snapshot of " + describeTarget(step.GetSnapshot().GetTarget())
	}
}

func describeTarget(t *logpb.Target) string {
	if t.Base != 0 {
		return printable(fmt.Sprintf("%s%d/%s", inodesPrefix, t.Base, t.Path))
	}
	return printable("/" + t.Path)
}

func describeAttribute(space logpb.XAttr_Namespace, name string) string {
	if !validNamespace(space) {
		return "attribute " + printable(name)
	}
	return printable((&metadata.XAttr{Namespace: metadata.XAttrNamespace(space), Name: name}).FullName())
}

// throwOut is where what a command has detached goes: it is taken apart from there. has is the newest snapshot that has it, 0 for none; u is what it
// counted for quotas, if one is above where it was.
func (ns *Namespace) throwOut(t *txn, n *inode, has uint32, u usage) {
	if n.isDir() && n.dir.entries > 0 {
		ns.rerouted(n)
	}
	name := fmt.Sprintf("%016x-%04x", t.index, ns.number) // behind what was deleted before
	if j := ns.undo; j != nil {
		name += fmt.Sprintf("-%04x", j.thrownOut)
		j.thrownOut++
	}
	ns.attach(ns.trash, name, n)
	ns.owed = ReclaimDelete
	if has != 0 && u != (usage{}) {
		ns.lay(n, has, u)
	}
}

// newestLeaving is the newest snapshot that has what was detached last; 0: none.
func (ns *Namespace) newestLeaving() uint32 {
	if ns.meta.snapshots == 0 {
		return 0
	}
	return ns.snaps.leaving.newest
}
