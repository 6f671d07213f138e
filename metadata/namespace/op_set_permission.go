package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// setPermission sets the mode. Errors: ErrNotExist; ErrPermission for all but the owner and the superuser.
func (ns *Namespace) setPermission(t *txn, op *logpb.SetPermission) {
	if err := checkNotReserved(op.Target); err != nil {
		t.fail(err)
		return
	}
	ns.setAttribute(t, op.Target, checks{owner: true}, noSuchPath, func(p *place, n *inode) {
		n.mode = metadata.Mode(op.Mode) & modeMask
		ns.rerouted(n)
		ns.tellUpdate(n, metadata.UpdatePermission, nil)
	})
}

// noSuchPath is what HDFS says where neither a file nor a directory is.
const noSuchPath = "Directory/File does not exist %s"

// setAttribute resolves a target that has to exist, checks rights on it and changes it; missing is said with the path when
// it does not.
func (ns *Namespace) setAttribute(t *txn, target *logpb.Target, rights checks, missing string, change func(p *place, n *inode)) {
	p := newPlace()
	defer p.release()
	if err := ns.resolveTarget(p, t, target, toUse); err != nil {
		t.fail(err)
		return
	}
	if err := ns.check(p, &t.caller, rights); err != nil {
		t.fail(err)
		return
	}
	n := p.last()
	if n == nil {
		t.failf(metadata.ErrNotExist, missing, p)
		return
	}
	ns.touch(n)
	change(p, n)
	ns.disturb(n, false)
	if t.result.Err == nil {
		t.changed(n)
	}
}
