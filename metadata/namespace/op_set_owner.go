package namespace

import (
	"unique"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// setOwner changes owner and group, each unless empty.
//
// Errors: ErrNotExist; ErrPermission unless the caller is the superuser, or owns the inode, leaves the owner and is
// member of the new group.
func (ns *Namespace) setOwner(t *txn, op *logpb.SetOwner) {
	for _, name := range []string{op.Owner, op.Group} {
		if err := checkPrincipal(name); err != nil {
			t.fail(err)
			return
		}
	}
	if err := checkNotReserved(op.Target); err != nil {
		t.fail(err)
		return
	}
	ns.setAttribute(t, op.Target, checks{owner: true}, noSuchPath, func(p *place, n *inode) {
		c := &t.caller
		if !c.superuser {
			if op.Owner != "" && op.Owner != c.user {
				t.failf(metadata.ErrPermission, "User %s is not a super user (non-super user cannot change owner).", c.user)
				return
			}
			if op.Group != "" && !c.inGroup(op.Group) {
				t.failf(metadata.ErrPermission, "User %s does not belong to %s", c.user, op.Group)
				return
			}
		}
		if op.Owner != "" {
			n.owner = unique.Make(op.Owner)
		}
		if op.Group != "" {
			n.group = unique.Make(op.Group)
		}
		ns.rerouted(n)
		ns.tellUpdate(n, metadata.UpdateOwner, func(e *metadata.Event) { e.Owner, e.Group = op.Owner, op.Group })
	})
}
