package namespace

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// caller is metadata.Caller as far as permissions need it.
type caller struct {
	user      string
	groups    []string
	superuser bool
	host      string
}

// checkPrincipal refuses what no user or group is called: such names come into answers, logs and lists by lines. "" is no
// name, and good.
func checkPrincipal(name string) error {
	if len(name) > MaxName {
		return metadata.Errorf(metadata.ErrInvalidArgument, "User or group name is longer than %d bytes", MaxName)
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return metadata.Errorf(metadata.ErrInvalidArgument, "User or group name %q is not UTF-8 or has control characters", name)
	}
	return nil
}

func callerOf(c metadata.Caller) caller {
	return caller{user: c.User, groups: c.Groups, superuser: c.Superuser, host: c.Host}
}

func callerOfCommand(c *logpb.Caller) caller {
	if c == nil {
		return caller{}
	}
	return caller{user: c.User, groups: c.Groups, superuser: c.Superuser, host: c.Host}
}

func (c *caller) inGroup(group string) bool { return slices.Contains(c.groups, group) }

func (c *caller) owns(n *inode) bool { return c.user == n.owner.Value() }

// may reports whether the mode of n gives c the rights.
func (c *caller) may(n *inode, want metadata.Access) bool {
	if c.superuser {
		return true
	}
	if n.extra != nil && len(n.extra.access) > 0 {
		return c.mayByACL(n, want)
	}
	shift := 0
	switch {
	case c.owns(n):
		shift = 6
	case c.inGroup(n.group.Value()):
		shift = 3
	}
	return metadata.Access(n.mode>>shift)&want == want
}

// checks are HDFS's FSPermissionChecker.checkPermission: what c has to be allowed on the parts of a path. The traversal
// was checked when the path was resolved.
type checks struct {
	ancestor metadata.Access // on the deepest directory above the last component that exists
	parent   metadata.Access // on the parent; with Write the sticky bit counts
	last     metadata.Access // on what the path names
	subtree  bool            // all rights on the directories below it that are not empty, sticky bits included
	owner    bool            // c must own what the path names
}

// check applies k to p. It fails with ErrPermission; or errLargeTree, when the subtree is wanted and has to be surveyed.
func (ns *Namespace) check(p *place, c *caller, k checks) error {
	if c.superuser {
		return nil
	}
	end := len(p.nodes) - 1
	last := p.nodes[end]
	if k.parent&metadata.Write != 0 && end > 0 && last != nil {
		if err := checkSticky(c, p.nodes[end-1], last, p.String); err != nil {
			return err
		}
	}
	if k.ancestor != 0 && end > 0 {
		i := end - 1
		for p.nodes[i] == nil {
			i--
		}
		if err := checkMode(c, p, i, k.ancestor); err != nil {
			return err
		}
	}
	if k.parent != 0 && end > 0 {
		if err := checkMode(c, p, end-1, k.parent); err != nil {
			return err
		}
	}
	if k.last != 0 {
		if err := checkMode(c, p, end, k.last); err != nil {
			return err
		}
	}
	if k.subtree && last != nil && last.isDir() {
		if err := ns.checkSubtree(c, last); err != nil {
			return err
		}
	}
	if k.owner && last != nil && !c.owns(last) {
		return metadata.Errorf(metadata.ErrPermission, "Permission denied. user=%s is not the owner of inode=%s", c.user, p)
	}
	return nil
}

func checkMode(c *caller, p *place, i int, want metadata.Access) error {
	if n := p.nodes[i]; n != nil && !c.may(n, want) {
		return denied(c, n, p.upTo(i), want)
	}
	return nil
}

func denied(c *caller, n *inode, path string, want metadata.Access) error {
	return metadata.Errorf(metadata.ErrPermission, "Permission denied: user=%s, access=%s, inode=\"%s\":%s", c.user, want, path, rights(n))
}

// rights is owner:group:drwxr-xr-x.
func rights(n *inode) string {
	letter := "-"
	if n.isDir() {
		letter = "d"
	}
	return n.owner.Value() + ":" + n.group.Value() + ":" + letter + n.mode.String()
}

func checkSticky(c *caller, parent, n *inode, path func() string) error {
	if parent.mode&metadata.Sticky == 0 || c.owns(parent) || c.owns(n) {
		return nil
	}
	return metadata.Errorf(metadata.ErrPermission, "Permission denied by sticky bit: user=%s, path=\"%s\":%s, parent=\"%s\":%s",
		c.user, path(), rights(n), parent.path(), rights(parent))
}

// checkSubtree checks every directory at and below top, except empty ones, and the sticky bits on their entries. It gives
// up with errLargeTree when there are many.
func (ns *Namespace) checkSubtree(c *caller, top *inode) error {
	stack := []*inode{top}
	entries := 0
	for len(stack) > 0 {
		d := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if d.dir.entries == 0 {
			continue
		}
		if err := c.mayEmpty(d); err != nil {
			return err
		}
		if entries += d.dir.entries; entries > smallTree {
			return errLargeTree
		}
		if err := ns.looked(looksPerDirectory + looksPerEntry*d.dir.entries); err != nil {
			return err
		}
		if err := ns.loadAll(d); err != nil {
			return err
		}
		var err error
		sticky := d.mode&metadata.Sticky != 0 && !c.owns(d)
		d.dir.children.each("", func(n *inode) bool {
			if sticky {
				if err = checkSticky(c, d, n, n.path); err != nil {
					return false
				}
			}
			if n.isDir() {
				stack = append(stack, n)
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkTraverse checks that every ancestor is a directory that c may search (FSDirectory.checkTraverse).
func (p *place) checkTraverse(c *caller, why intent) error {
	for i, n := range p.nodes[:len(p.nodes)-1] {
		if n == nil {
			break
		}
		if !n.isDir() {
			kind := metadata.ErrPermission
			if why == toMake {
				kind = metadata.ErrParentNotDirectory
			}
			return metadata.Errorf(kind, "%s (is not a directory)", p.upTo(i))
		}
		if !c.may(n, metadata.Execute) {
			return denied(c, n, p.upTo(i), metadata.Execute)
		}
	}
	return nil
}
