package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// setErasurePolicy says how files that are made below a directory from now on are coded, or that the directory above says so. What is there keeps
// what it was made under.
//
// Errors: ErrPermission without WRITE on the path; ErrNotExist; ErrIO for a file; ErrInvalidArgument for a number that is none;
// ErrNoErasureCoding when a policy is to be taken away that the directory has not.
func (ns *Namespace) setErasurePolicy(t *txn, op *logpb.SetErasurePolicy) {
	p := newPlace()
	defer p.release()
	if op.Policy != 0 {
		if err := checkErasure(op.Policy); err != nil {
			t.fail(err)
			return
		}
	}
	if err := ns.resolveTarget(p, t, op.Target, toUse); err != nil {
		t.fail(err)
		return
	}
	if err := ns.check(p, &t.caller, checks{last: metadata.Write}); err != nil {
		t.fail(err)
		return
	}
	n := p.last()
	had := n != nil && n.extra != nil && n.extra.erasure != 0
	switch {
	case n == nil:
		t.failf(metadata.ErrNotExist, "Path not found: %s", p)
		return
	case n.file != nil && op.Policy == 0:
		t.failf(metadata.ErrIO, "Cannot unset an erasure coding policy on a file %s", p)
		return
	case n.file != nil:
		t.failf(metadata.ErrIO, "Attempt to set an erasure coding policy for a file %s", p)
		return
	case op.Policy == 0 && !had:
		t.failf(metadata.ErrNoErasureCoding, "No erasure coding policy explicitly set on %s", p)
		return
	}
	t.changed(n)
	if had && n.extra.erasure == uint8(op.Policy) {
		return
	}
	ns.touch(n)
	n.own().erasure = uint8(op.Policy)
	n.tidy()
}
