package namespace

import (
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// setACL changes an access control list (FSDirAclOp). The mode follows: its group digit is the mask.
//
// Errors: ErrACL for what would not be a list; ErrNotExist; ErrPermission for all but the owner and the superuser.
func (ns *Namespace) setACL(t *txn, op *logpb.SetACL) {
	p := newPlace()
	defer p.release()
	if err := ns.resolveTarget(p, t, op.Target, toUse); err != nil {
		t.fail(err)
		return
	}
	n := p.last()
	if n == nil {
		t.failf(metadata.ErrNotExist, noSuchPath, p)
		return
	}
	if err := ns.check(p, &t.caller, checks{owner: true}); err != nil {
		t.fail(err)
		return
	}
	spec := make(aclList, 0, len(op.Entries))
	for _, e := range op.Entries {
		if len(e.Name) > MaxName || e.Rights > 7 || e.Type < 0 || e.Type > logpb.ACLEntry_OTHER {
			t.failf(metadata.ErrInvalidArgument, "Invalid ACL entry of type %d with rights %d and a name of %d bytes", e.Type, e.Rights, len(e.Name))
			return
		}
		if err := checkPrincipal(e.Name); err != nil {
			t.fail(err)
			return
		}
		entry := entryOf(e)
		entry.Name = strings.Clone(entry.Name)
		spec = append(spec, entry)
	}
	have := n.logicalACL()
	var list aclList
	var err error
	switch change := op.Change; {
	case change == logpb.SetACL_REMOVE, change == logpb.SetACL_SET && len(spec) == 0:
		list = minimal(have)
	case change == logpb.SetACL_SET:
		list, err = replaceACL(have, spec)
	case change == logpb.SetACL_MODIFY:
		list, err = mergeACL(have, spec)
	case change == logpb.SetACL_REMOVE_ENTRIES:
		list, err = removeEntries(have, spec)
	case change == logpb.SetACL_REMOVE_DEFAULT:
		list, err = removeDefaults(have)
	default:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "Unknown change of an ACL: %d", change)
	}
	if err == nil && !n.isDir() && list[len(list)-1].Default {
		err = badACL("only directories may have a default ACL. Path: %s", p)
	}
	if err != nil {
		if metadata.KindOf(err) == metadata.ErrACL {
			err = metadata.Errorf(metadata.ErrACL, "%v Path: %s", err, p)
		}
		t.fail(err)
		return
	}
	ns.touch(n)
	n.storeACL(list)
	ns.rerouted(n)
	ns.tellUpdate(n, metadata.UpdateACL, nil)
	ns.disturb(n, false)
	t.changed(n)
}

// minimal is a list's entries for the owner, the owning group and others. The group gets its own rights, not the mask's.
func minimal(list aclList) aclList {
	var out aclList
	for _, e := range list {
		if !e.Default && e.Name == "" && e.Type != aclMask {
			out = append(out, e)
		}
	}
	return out
}

// ACL returns the access control list of path. Errors: ErrNotExist; those of Stat.
func (ns *Namespace) ACL(c metadata.Caller, path string) (*metadata.ACL, error) {
	var acl *metadata.ACL
	err := ns.find(c, path, func(p *place, _ *caller) error {
		n := p.last()
		if n == nil {
			return cannotFind(p)
		}
		acl = &metadata.ACL{Owner: n.owner.Value(), Group: n.group.Value(), Mode: n.mode}
		if n.extra != nil {
			acl.Entries = append(acl.Entries, n.extra.access...)
			acl.Entries = append(acl.Entries, n.extra.inherited...)
		}
		return nil
	})
	return acl, err
}
