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
	err := ns.warm(t, op)
	if err == nil {
		err = ns.warmMoved(t, op)
	}
	if err != nil {
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

// warm looks at what the steps will look at, as far as it is there now, and ends where something of it is not in memory: nothing was changed, and the
// command starts over when that was read. Behind the first change the store is read with the lock held. What else is wrong the step says. Trees that steps
// delete or move are not looked at again, unless something is changed in them before; here others have turns meanwhile.
//
// Errors: *cold; those of the store.
func (ns *Namespace) warm(t *txn, op *logpb.Publish) error {
	p := newPlace()
	defer p.release()
	for _, step := range op.Steps {
		ns.breathe()
		var source *inode // of a rename
		for i, target := range stepTargets(step) {
			err := ns.resolve(p, &t.caller, metadata.INodeID(target.Base), target.Path, toUse)
			if err == nil {
				err = ns.looked(looksPerName * len(p.nodes))
			}
			if err == nil {
				err = ns.warmTree(t, p, step.GetDelete())
			}
			if err == nil && step.GetRename() != nil {
				if i == 0 {
					source = p.last()
				} else {
					err = ns.warmMove(source, p.parent(), step.GetRename())
				}
			}
			switch {
			case errors.Is(err, errManyLooks):
				return nil
			case err != nil && !isAnswer(err):
				return err
			}
		}
	}
	return nil
}

// warmMoved is warm for what the steps before will have moved to where a step looks for it, and for what they will have moved into the trees that it deletes or moves. Nothing of that
// is kept but that it is in memory: what a publish may look at, which is part of the state machine, does not depend on it.
//
// Errors: as warm.
func (ns *Namespace) warmMoved(t *txn, op *logpb.Publish) error {
	trees := ns.undo.foreseen
	defer func() { ns.undo.foreseen = trees }()
	ns.undo.foreseen = nil
	p := newPlace()
	defer p.release()
	var moved moves
	for i, step := range op.Steps {
		if len(moved.was) == 0 && (step.GetRename() == nil || i == len(op.Steps)-1) {
			continue
		}
		ns.breathe()
		err := ns.warmStep(t, p, step, &moved)
		switch {
		case errors.Is(err, errManyLooks):
			return nil
		case err != nil && !isAnswer(err):
			return err
		}
	}
	return nil
}

// warmStep is warmMoved for one step. p is room.
func (ns *Namespace) warmStep(t *txn, p *place, step *logpb.PublishStep, moved *moves) error {
	rename, remove := step.GetRename(), step.GetDelete()
	var paths [2]string
	var to *inode // the directory that a rename moves to
	// see looks at what was at a path before the first step, which this step has to do with.
	see := func(path string, whole bool) (err error) {
		if err = ns.resolve(p, &t.caller, 0, path, toUse); err != nil {
			return err
		}
		if err = ns.looked(looksPerName * len(p.nodes)); err == nil && whole && remove != nil {
			err = ns.warmTree(t, p, remove)
		}
		if err == nil && whole && rename != nil {
			err = ns.warmMove(p.last(), to, rename)
		}
		return err
	}
	var bad error // what is no answer
	note := func(err error) bool {
		if err != nil && (!isAnswer(err) || errors.Is(err, errManyLooks)) {
			bad = err
		}
		return bad == nil
	}
	targets := stepTargets(step)
	elsewhere := false
	for i, target := range targets {
		var err error
		if paths[i], err = ns.pathAt(p, &t.caller, target, moved); !note(err) {
			return bad
		}
		_, ok := moved.before(paths[i])
		elsewhere = elsewhere || ok
	}
	if elsewhere || moved.within[paths[0]] > 0 {
		for i := range slices.Backward(targets) { // where a rename leads to first
			was, _ := moved.before(paths[i])
			if !note(see(was, i == 0)) {
				return bad
			}
			if i == 1 && len(p.nodes) > 1 {
				to = p.parent()
			}
		}
	}
	if rename == nil && remove == nil {
		return nil
	}
	for _, is := range moved.below(paths[0]) {
		if !note(see(moved.was[is], true)) {
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
type moves struct {
	was    map[string]string // where it was before the first step, by where it is
	within map[string]int    // how many of these are below a directory
}

// before is where that was before the steps which is at a path after them; ok: a rename has moved it.
func (m *moves) before(path string) (was string, ok bool) {
	if len(m.was) == 0 {
		return path, false
	}
	for end := len(path); end > 0; end = strings.LastIndexByte(path[:end], '/') {
		if was, ok := m.was[path[:end]]; ok {
			return was + path[end:], true
		}
	}
	return path, false
}

// after is where that is after the steps which was at a path before them.
func (m *moves) after(path string) string {
	deepest := ""
	after := path
	for is, was := range m.was {
		if len(was) > len(deepest) && (path == was || beneath(path, was)) {
			deepest, after = was, is+path[len(was):]
		}
	}
	return after
}

// below are those that are below a directory.
func (m *moves) below(dir string) (all []string) {
	if m.within[dir] == 0 {
		return nil
	}
	for is := range m.was {
		if beneath(is, dir) {
			all = append(all, is)
		}
	}
	return all
}

// set notes that something is at a path, and unset that it is not any more.
func (m *moves) set(is, was string) {
	if m.was == nil {
		m.was, m.within = map[string]string{}, map[string]int{}
	}
	m.was[is] = was
	for end := strings.LastIndexByte(is, '/'); end > 0; end = strings.LastIndexByte(is[:end], '/') {
		m.within[is[:end]]++
	}
}

func (m *moves) unset(is string) {
	if _, ok := m.was[is]; !ok {
		return
	}
	delete(m.was, is)
	for end := strings.LastIndexByte(is, '/'); end > 0; end = strings.LastIndexByte(is[:end], '/') {
		m.within[is[:end]]--
	}
}

// rename is one more step.
func (m *moves) rename(from, to string) {
	if from == to || from == "" || to == "" {
		return
	}
	was, _ := m.before(from)
	m.drop(to)
	for _, is := range m.below(from) {
		was := m.was[is]
		m.unset(is)
		m.set(to+is[len(from):], was)
	}
	m.unset(from)
	m.set(to, was)
}

// drop is a step that deletes what is at a path.
func (m *moves) drop(path string) {
	for _, is := range m.below(path) {
		m.unset(is)
	}
	m.unset(path)
}

// beneath reports whether a path is below a directory.
func beneath(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && path[:len(dir)] == dir
}

// pathAt is the path of a target when its step is taken, behind those that have moved something. p is room.
func (ns *Namespace) pathAt(p *place, c *caller, target *logpb.Target, moved *moves) (string, error) {
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
