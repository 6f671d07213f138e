package namespace

import (
	"slices"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Whoever deletes a tree has to be allowed to empty each of its directories. Looking at a large one inside of a command
// would hold up every member, so its proposer does it beforehand:
//
//	SurveyTree          announces it; what changes in the tree from now on and is not for the caller to delete ends the survey
//	Survey              looks at the tree, in turns, beside the commands
//	Delete, Rename      with the survey's number, which stands for the look; when the survey has ended, all over again
//
// It also counts what the tree uses, for the quotas above or for SetQuota, as long as nothing of that changes. A small tree
// is looked at by the command itself.
const (
	// smallTree is how many entries a command looks at. While there are snapshots it counts historiesPerTurn.
	smallTree = 1024
	// surveyExpiry is how long a survey lasts at most, maxSurveys how many there are; the oldest goes first.
	surveyExpiry = LogTime(10 * 60 * 1000)
	maxSurveys   = 64
	// surveyGroups is how many groups of its caller a survey remembers. With fewer it ends more easily.
	surveyGroups = 16
)

// errLargeTree is the answer to a command that would have to look at a large tree: its proposer has to survey it.
var errLargeTree = &metadata.Error{Kind: metadata.ErrRetriable, Message: "The tree is large, and changed while the right to delete it was being checked. Try again"}

// surveyTree begins the survey of a directory, which Survey and INode of the result name, or ends the one with op.End.
//
// Errors: ErrNotExist; ErrNotDirectory; ErrPermission for a directory above that the caller may not search;
// ErrInvalidArgument.
func (ns *Namespace) surveyTree(t *txn, op *logpb.SurveyTree) {
	if op.End != 0 {
		ns.endSurveys(func(s *logpb.Survey) bool { return s.Id == op.End })
		t.result.OK = true
		return
	}
	p := newPlace()
	defer p.release()
	if err := ns.resolveTarget(p, t, op.Target, toUse); err != nil {
		t.fail(err)
		return
	}
	n := p.last()
	switch {
	case n == nil:
		t.failf(metadata.ErrNotExist, "File does not exist: %s", p)
		return
	case !n.isDir():
		t.failf(metadata.ErrNotDirectory, "`%s': Is not a directory", p)
		return
	case len(t.caller.user) > MaxName:
		t.failf(metadata.ErrInvalidArgument, "User name is longer than %d bytes", MaxName)
		return
	}
	who := &logpb.Caller{User: t.caller.user, Superuser: t.caller.superuser}
	for _, g := range t.caller.groups {
		if len(who.Groups) < surveyGroups && len(g) <= MaxName {
			who.Groups = append(who.Groups, g)
		}
	}
	m := &ns.meta
	m.lastSurvey++
	s := &logpb.Survey{Id: m.lastSurvey, Inode: uint64(n.id), Caller: who, Expires: int64(m.logTime + surveyExpiry)}
	ns.endSurveys(func(s *logpb.Survey) bool { return LogTime(s.Expires) < m.logTime })
	m.surveys = append(slices.Clone(m.surveys[max(0, len(m.surveys)-maxSurveys+1):]), s)
	t.result.OK, t.result.Survey, t.result.INode = true, s.Id, n.id
}

// endSurveys removes the surveys that are over. The list is another one afterwards: nobody changes what is in it.
func (ns *Namespace) endSurveys(over func(*logpb.Survey) bool) {
	if slices.ContainsFunc(ns.meta.surveys, over) {
		ns.meta.surveys = slices.DeleteFunc(slices.Clone(ns.meta.surveys), over)
	}
}

// surveyed reports whether c surveyed the tree of n under a number and nothing was done to it since that takes the right
// to delete it away (free), or that changes what it uses (counted). The survey is over.
func (ns *Namespace) surveyed(c *caller, n *inode, id uint64) (free, counted bool) {
	if id == 0 || n == nil {
		return false, false
	}
	ns.endSurveys(func(s *logpb.Survey) bool {
		if s.Id != id {
			return false
		}
		free = metadata.INodeID(s.Inode) == n.id && s.Caller.GetUser() == c.user && s.Caller.GetSuperuser() == c.superuser && LogTime(s.Expires) >= ns.meta.logTime
		counted = free && !s.Unsteady
		return true
	})
	return free, counted
}

// unsettle notes that what the directory dir uses has changed.
func (ns *Namespace) unsettle(dir *inode) {
	for i, s := range ns.meta.surveys {
		at := dir
		for ; at != nil && uint64(at.id) != s.Inode; at = at.parent {
		}
		if at != nil && !s.Unsteady {
			ns.meta.surveys = slices.Clone(ns.meta.surveys)
			ns.meta.surveys[i] = &logpb.Survey{Id: s.Id, Inode: s.Inode, Caller: s.Caller, Expires: s.Expires, Unsteady: true}
		}
	}
}

// disturb ends the surveys of trees in which n was entered, or in which it has other rights now, unless their callers may
// delete it all the same. entered: n has come below its parent.
func (ns *Namespace) disturb(n *inode, entered bool) {
	if len(ns.meta.surveys) == 0 {
		return
	}
	if entered { // also what only moves inside the tree: it may have been counted twice, or not at all
		ns.unsettle(n.parent)
	}
	ns.endSurveys(func(s *logpb.Survey) bool {
		at := n
		if entered {
			at = n.parent
		}
		for ; at != nil && uint64(at.id) != s.Inode; at = at.parent {
		}
		if at == nil {
			return false
		}
		who := callerOfCommand(s.Caller)
		if who.superuser {
			return false
		}
		const all = metadata.Read | metadata.Write | metadata.Execute
		if n.isDir() && n.dir.entries > 0 && (entered || !who.may(n, all) || n.mode&metadata.Sticky != 0 && !who.owns(n)) {
			return true
		}
		if n.parent == nil || at == n { // the tree itself, whose parent the command looks at
			return false
		}
		return !who.may(n.parent, all) || checkSticky(&who, n.parent, n, n.path) != nil
	})
}

// Usage is what counts for quotas: inodes, and bytes in all replicas, with what only snapshots have.
type Usage struct {
	Names, Space int64
	// Types is what of Space is on volumes of types, in the order of metadata.QuotaTypes.
	Types [quotaTypes]int64
}

// Survey says whether c may delete a directory with all that is below, and counts it. It looks at large trees in turns,
// between which commands go on.
//
// Errors: ErrPermission, as the command would answer.
func (ns *Namespace) Survey(c metadata.Caller, top metadata.INodeID) (u Usage, err error) {
	who := callerOf(c)
	stack := []metadata.INodeID{top}
	var pages page
	for len(stack) > 0 {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		u.Names++
		for after, more := "", true; more; {
			err := ns.read(func() error {
				n, err := ns.byID(id)
				if err != nil {
					return err
				}
				more = false
				if n == nil || !n.isDir() {
					return nil
				}
				var files Usage
				if after == "" {
					files = Usage{Names: n.kept().names, Space: n.kept().space}
				}
				if n.dir.entries == 0 {
					u.Names, u.Space = u.Names+files.Names, u.Space+files.Space
					return nil
				}
				if err := who.mayEmpty(n); err != nil {
					return err
				}
				var below []metadata.INodeID
				upTo, again, err := ns.turn(n, after, &pages, func(child *inode) error {
					if child.isDir() {
						below = append(below, child.id)
					} else {
						space, err := ns.spaceOf(child)
						if err != nil {
							return err
						}
						files.Names++
						files.Space += space
						files.Types = typed(files.Types).plus(child.spread(child.file.space(), child.file.replication))
					}
					if who.superuser {
						return nil
					}
					return checkSticky(&who, n, child, child.path)
				})
				if err == nil {
					stack = append(stack, below...)
					u.Names, u.Space, u.Types = u.Names+files.Names, u.Space+files.Space, typed(u.Types).plus(files.Types)
					after, more = upTo, again
				}
				return err
			})
			if err != nil {
				return u, err
			}
		}
	}
	return u, nil
}

// mayEmpty says whether c may take the entries out of a directory, sticky bits aside.
func (c *caller) mayEmpty(n *inode) error {
	const all = metadata.Read | metadata.Write | metadata.Execute
	if !c.may(n, all) {
		return denied(c, n, n.path(), all)
	}
	return nil
}
