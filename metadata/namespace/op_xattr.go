package namespace

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// unreadableBySuperuser is the one attribute of the security namespace that anyone may set, once and for good: the
// superuser may not read the file's content then.
const unreadableBySuperuser = "security.hdfs.unreadable.by.superuser"

func compareXAttrs(a, b metadata.XAttr) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// checkXAttr is HDFS's XAttrPermissionFilter: who may name an attribute at all.
func (c *caller) checkXAttr(a metadata.XAttr) error {
	switch {
	case a.Namespace == metadata.XAttrUser, a.Namespace == metadata.XAttrTrusted && c.superuser:
		return nil
	case a.FullName() == unreadableBySuperuser:
		if len(a.Value) > 0 {
			return metadata.Errorf(metadata.ErrPermission,
				"Attempt to set a value for '%s'. Values are not allowed for this xattr.", unreadableBySuperuser)
		}
		return nil
	}
	return metadata.Errorf(metadata.ErrPermission, "User doesn't have permission for xattr: %s", printable(a.FullName()))
}

// sees reports whether c gets to see an attribute that it did not ask for by name.
func (c *caller) sees(a metadata.XAttr) bool {
	return a.Namespace == metadata.XAttrUser || a.Namespace == metadata.XAttrTrusted && c.superuser ||
		a.FullName() == unreadableBySuperuser
}

// unreadableBy reports whether n has content that c, the superuser, is not to read.
func (n *inode) unreadableBy(c *caller) bool {
	return c.superuser && n.extra != nil && slices.ContainsFunc(n.extra.xattrs, func(a metadata.XAttr) bool { return a.FullName() == unreadableBySuperuser })
}

// xattrTarget resolves what an attribute is to be changed of. User attributes need WRITE, those of a sticky directory its
// owner.
func (ns *Namespace) xattrTarget(p *place, t *txn, target *logpb.Target, a metadata.XAttr) (*inode, error) {
	if err := t.caller.checkXAttr(a); err != nil {
		return nil, err
	}
	if err := ns.resolveTarget(p, t, target, toUse); err != nil {
		return nil, err
	}
	n := p.last()
	if n == nil {
		return nil, cannotFind(p)
	}
	if a.Namespace == metadata.XAttrUser {
		rights := checks{last: metadata.Write}
		if n.isDir() && n.mode&metadata.Sticky != 0 {
			rights = checks{owner: true}
		}
		if err := ns.check(p, &t.caller, rights); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func cannotFind(p *place) error { return metadata.Errorf(metadata.ErrNotExist, "cannot find %s", p) }

// validNamespace: an enum of a message may hold any number.
func validNamespace(n logpb.XAttr_Namespace) bool {
	return n >= logpb.XAttr_USER && n <= logpb.XAttr_RAW
}

// setXAttr makes an attribute or replaces its value (FSDirXAttrOp.setXAttr).
//
// Errors: ErrInvalidArgument for one that is too large, or flags that allow nothing; ErrIO when the flags do not allow
// what would be needed, or there are too many; ErrNotExist; ErrPermission.
func (ns *Namespace) setXAttr(t *txn, op *logpb.SetXAttr) {
	p := newPlace()
	defer p.release()
	a := metadata.XAttr{
		Namespace: metadata.XAttrNamespace(op.Attribute.GetNamespace()),
		Name:      strings.Clone(op.Attribute.GetName()), Value: bytes.Clone(op.Attribute.GetValue()),
	}
	switch size := len(a.Name) + len(a.Value); {
	case a.Name == "" || !validNamespace(op.Attribute.GetNamespace()):
		t.failf(metadata.ErrInvalidArgument, "XAttr name can not be empty.")
		return
	case size > metadata.MaxXAttrSize:
		t.failf(metadata.ErrInvalidArgument, "The XAttr is too big. The maximum combined size of the name and value is %d, but the total size is %d",
			metadata.MaxXAttrSize, size)
		return
	}
	n, err := ns.xattrTarget(p, t, op.Target, a)
	if err != nil {
		t.fail(err)
		return
	}
	if a.FullName() == unreadableBySuperuser && n.isDir() {
		t.failf(metadata.ErrIO, "Can only set '%s' on a file.", unreadableBySuperuser)
		return
	}
	var have []metadata.XAttr
	if n.extra != nil {
		have = n.extra.xattrs
	}
	i, found := slices.BinarySearchFunc(have, a, compareXAttrs)
	switch {
	case !op.Create && !op.Replace:
		t.failf(metadata.ErrInvalidArgument, "A flag must be specified.")
		return
	case found && !op.Replace:
		t.failf(metadata.ErrIO, "XAttr: %s already exists. The REPLACE flag must be specified.", a.Name)
		return
	case !found && !op.Create:
		t.failf(metadata.ErrIO, "XAttr: %s does not exist. The CREATE flag must be specified.", a.Name)
		return
	case !found && a.Namespace <= metadata.XAttrTrusted && visible(have) >= metadata.MaxXAttrs:
		t.failf(metadata.ErrIO, "Cannot add additional XAttr to inode, would exceed limit of %d", metadata.MaxXAttrs)
		return
	}
	ns.touch(n)
	x := n.own()
	if found {
		x.xattrs[i] = a
	} else {
		x.xattrs = slices.Insert(x.xattrs, i, a)
	}
	ns.tellUpdate(n, metadata.UpdateXAttrs, func(e *metadata.Event) { e.XAttrs = []metadata.XAttr{a} })
	t.changed(n)
}

// visible counts the attributes that count.
func visible(all []metadata.XAttr) int {
	n := 0
	for _, a := range all {
		if a.Namespace <= metadata.XAttrTrusted {
			n++
		}
	}
	return n
}

// removeXAttr removes an attribute. Errors: ErrIO when it is not there; ErrNotExist; ErrPermission.
func (ns *Namespace) removeXAttr(t *txn, op *logpb.RemoveXAttr) {
	p := newPlace()
	defer p.release()
	if !validNamespace(op.Namespace) {
		t.failf(metadata.ErrInvalidArgument, "XAttr namespace %d is none", op.Namespace)
		return
	}
	a := metadata.XAttr{Namespace: metadata.XAttrNamespace(op.Namespace), Name: op.Name}
	n, err := ns.xattrTarget(p, t, op.Target, a)
	if err != nil {
		t.fail(err)
		return
	}
	if n.extra != nil {
		if i, found := slices.BinarySearchFunc(n.extra.xattrs, a, compareXAttrs); found {
			if a.FullName() == unreadableBySuperuser {
				t.failf(metadata.ErrPermission, "The xattr '%s' can not be deleted.", unreadableBySuperuser)
				return
			}
			ns.touch(n)
			n.extra.xattrs = slices.Delete(n.extra.xattrs, i, i+1)
			n.tidy()
			ns.tellUpdate(n, metadata.UpdateXAttrs, func(e *metadata.Event) { e.XAttrs, e.Removed = []metadata.XAttr{a}, true })
			t.changed(n)
			return
		}
	}
	t.failf(metadata.ErrIO, "No matching attributes found for remove operation")
}

// XAttrs returns the extended attributes of path that c may see; with names those, in their order.
//
// Errors: ErrNotExist; ErrPermission without READ on path, or for names that are not for c; ErrNoAttribute when one is not
// there.
func (ns *Namespace) XAttrs(c metadata.Caller, path string, names []metadata.XAttr) ([]metadata.XAttr, error) {
	who := callerOf(c)
	for _, a := range names {
		if err := who.checkXAttr(metadata.XAttr{Namespace: a.Namespace, Name: a.Name}); err != nil {
			return nil, err
		}
	}
	var out []metadata.XAttr
	err := ns.find(c, path, func(p *place, c *caller) error {
		if err := ns.check(p, c, checks{last: metadata.Read}); err != nil {
			return err
		}
		var err error
		out, err = visibleXAttrs(p, c, names)
		return err
	})
	return out, err
}

// ListXAttrs returns the extended attributes of path that c may see, for their names.
//
// Errors: ErrNotExist; ErrPermission without READ on path; those of Stat.
func (ns *Namespace) ListXAttrs(c metadata.Caller, path string) ([]metadata.XAttr, error) {
	var out []metadata.XAttr
	err := ns.find(c, path, func(p *place, c *caller) error {
		if err := ns.check(p, c, checks{last: metadata.Read}); err != nil {
			return err
		}
		var err error
		out, err = visibleXAttrs(p, c, nil)
		return err
	})
	return out, err
}

func visibleXAttrs(p *place, c *caller, names []metadata.XAttr) (out []metadata.XAttr, err error) {
	n := p.last()
	if n == nil {
		return nil, cannotFind(p)
	}
	var have []metadata.XAttr
	if n.extra != nil {
		have = n.extra.xattrs
	}
	if len(names) == 0 {
		for _, a := range have {
			if c.sees(a) {
				out = append(out, a)
			}
		}
		return out, nil
	}
	for _, want := range names {
		i, found := slices.BinarySearchFunc(have, want, compareXAttrs)
		if !found {
			return nil, metadata.Errorf(metadata.ErrNoAttribute, "At least one of the attributes provided was not found.")
		}
		out = append(out, have[i])
	}
	return out, nil
}
