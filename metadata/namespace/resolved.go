package namespace

import (
	"errors"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// A proposer may resolve the paths of a command before it proposes it. A target that is resolved is a name in a directory, by the directory's inode, with
// the version of the tree under which the path led there and its caller could search every directory on the way. The version changes with everything
// that can change either:
//
//	a directory moves, or one with entries is deleted
//	a directory gets another mode, owner, group or list of access entries
//
// While the state has that version, and the directory, the path leads there still. Otherwise the command is answered with ErrStale and has changed
// nothing. A directory that is deleted empty changes no version: nothing can be below it, and it is not found itself. New directories change none:
// what a path leads to when all above its last name is there does not depend on what else there is.

// ErrStale is the answer to a command whose targets were resolved under another version of the tree. It has changed nothing, and no client is told: the
// proposer proposes it with its paths.
var ErrStale = &metadata.Error{Kind: metadata.ErrRetriable, Message: "The path was resolved before a directory above was moved or got other rights. Try again"}

// rerouted notes that a path through a directory may lead somewhere else now, or be closed to a caller. It counts from the first resolved target on,
// which is stale therefore: until then members may run a program that does not count, and have the same state.
func (ns *Namespace) rerouted(n *inode) {
	if n.isDir() && ns.meta.tree > 0 {
		ns.meta.tree++
	}
}

// version is what resolved targets have; never 0.
func (m *meta) version() uint64 { return max(m.tree, 1) }

// resolved makes p the place of a target that its proposer has resolved.
//
// Errors: ErrStale; ErrInvalidPath for a name that may not be made; ErrInvalidArgument for a target that is none.
func (ns *Namespace) resolved(p *place, target *logpb.Target, why intent) error {
	name := target.Path
	if target.Base == 0 || name == "" || name == snapshotFolder || strings.IndexByte(name, '/') >= 0 {
		return metadata.Errorf(metadata.ErrInvalidArgument, "A resolved target is not a name in a directory: it comes from a faulty program")
	}
	if ns.meta.tree == 0 {
		ns.meta.tree = 1
		return ErrStale
	}
	if target.Version != ns.meta.tree {
		return ErrStale
	}
	dir, err := ns.byID(metadata.INodeID(target.Base))
	if err != nil {
		return err
	}
	if dir == nil || dir.dead || !dir.isDir() {
		return ErrStale
	}
	p.names, p.nodes = p.names[:0], p.nodes[:0]
	ns.climb(p, dir)
	if p.nodes[0] != ns.root {
		return ErrStale
	}
	if why == toMake && !validName(name) {
		return metadata.Errorf(metadata.ErrInvalidPath, "Invalid file name: %s", printable(p.String()+"/"+name))
	}
	n, err := ns.lookup(dir, name)
	if err != nil {
		return err
	}
	p.push(name, n)
	return nil
}

// Resolution is what ResolveTargets has done to a command.
type Resolution struct {
	targets [2]*logpb.Target
	paths   [2]string
	sources map[*logpb.Target]string // of a concat
}

// Done reports whether a target was resolved.
func (r *Resolution) Done() bool {
	return r.targets[0] != nil || r.targets[1] != nil || len(r.sources) > 0
}

// Undo makes the command what it was.
func (r *Resolution) Undo() {
	for i, t := range r.targets {
		if t != nil {
			t.Base, t.Path, t.Version = 0, r.paths[i], 0
		}
	}
	for t, path := range r.sources {
		t.Base, t.Path, t.Version = 0, path, 0
	}
}

// resolvedSources is how many sources of a concat are resolved at most: the state is looked at for all of them at once.
const resolvedSources = 256

// ResolveTargets puts inodes in the place of paths in a command of c, where all above the last name is there and open to c. What is not in memory is
// read now, while other commands go on, and not when the command is applied. It does not wait for the state: while a command changes that, paths stay.
// What it finds wrong is left to the command to tell.
func (ns *Namespace) ResolveTargets(c metadata.Caller, cmd *logpb.Command) (r Resolution) {
	var few [2]*logpb.Target
	targets := few[:0]
	switch op := operation(cmd).(type) {
	case *logpb.SurveyTree, nil:
		return r
	case *logpb.Rename:
		targets = append(targets, op.Source, op.Target)
	case *logpb.Concat:
		if len(op.Sources) > resolvedSources {
			return r
		}
		targets = append(append(targets, op.Target), op.Sources...)
	case *logpb.Store:
		targets = append(targets, op.GetCreate().GetTarget())
	case interface{ GetTarget() *logpb.Target }:
		targets = append(targets, op.GetTarget())
	}
	for _, t := range targets {
		if t == nil || !resolvable(t) {
			return r
		}
	}
	if len(targets) == 0 {
		return r
	}
	p := newPlace()
	defer p.release()
	p.reader = callerOf(c)
	var some [2]*inode
	found := some[:]
	if len(targets) > len(some) {
		found = make([]*inode, len(targets))
	}
	var version uint64
	look := func() error {
		version = ns.meta.version()
		for i, t := range targets {
			if err := ns.reach(p, t.Path); err != nil {
				return err
			}
			found[i] = p.parent()
			if found[i] == nil || found[i] == ns.root || !found[i].isDir() || slices.ContainsFunc(p.nodes, func(n *inode) bool { return n != nil && n.isGhost() }) {
				found[i] = nil
			}
		}
		return nil
	}
	for range resolveTries {
		if !ns.mu.TryRLock() {
			return r
		}
		err := ns.broken
		if err == nil {
			err = look()
		}
		ns.mu.RUnlock()
		if err == nil {
			break
		}
		miss, ok := errors.AsType[*cold](err)
		if !ok || ns.fetch(miss) != nil {
			return r
		}
		clear(found)
	}
	for i, dir := range found {
		if dir == nil {
			continue
		}
		t := targets[i]
		if i < len(r.targets) {
			r.targets[i], r.paths[i] = t, t.Path
		} else {
			if r.sources == nil {
				r.sources = map[*logpb.Target]string{}
			}
			r.sources[t] = t.Path
		}
		t.Base, t.Path, t.Version = uint64(dir.id), t.Path[strings.LastIndexByte(t.Path, '/')+1:], version
	}
	return r
}

// reach is resolve of a path from the root for p's reader. What the last name leads to is looked up only where that may have to be read: otherwise the command
// looks it up, and once is enough.
func (ns *Namespace) reach(p *place, path string) error {
	p.names, p.nodes = p.names[:0], p.nodes[:0]
	if name, at := ns.approach(p, path); at != nil && at.complete() {
		p.push(name, nil)
		return p.checkTraverse(&p.reader, toUse)
	}
	return ns.resolve(p, &p.reader, 0, path, toUse)
}

// resolveTries is how often a resolution starts over because something was not in memory: a path has no more names than that, mostly.
const resolveTries = 64

// resolvable reports whether a path is one that may be resolved before: a plain one, of which a part says as much as the whole.
func resolvable(t *logpb.Target) bool {
	path := t.Path
	i := strings.LastIndexByte(path, '/')
	return t.Base == 0 && t.Version == 0 && i > 0 && i < len(path)-1 && path[0] != '/' && len(path) < metadata.MaxPathDepth &&
		path[i+1:] != snapshotFolder && !strings.Contains(path, "//") && !strings.HasPrefix(path, reserved)
}
