package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// setReplication sets how many replicas a file's blocks are to have. A directory, a file with an erasure coding
// policy and a missing path are not OK, as in HDFS.
//
// Errors: ErrIO for a number out of range; ErrPermission without WRITE on the path.
func (ns *Namespace) setReplication(t *txn, op *logpb.SetReplication) {
	p := newPlace()
	defer p.release()
	if err := checkReplication(op.Replication, func() string { return "/" + printable(op.Target.GetPath()) }, ""); err != nil {
		t.fail(err)
		return
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
	if n == nil || n.file == nil || n.file.coded() {
		return
	}
	if n.file.replication == uint16(op.Replication) {
		t.result.OK = true
		ns.tellUpdate(n, metadata.UpdateReplication, nil)
		return
	}
	more, err := ns.replicationUsage(n, uint16(op.Replication))
	if err != nil {
		ns.fatal(err)
	}
	if err := ns.checkQuota(n.parent, nil, usage{}, usage{space: more, types: n.spreadWith(uint16(op.Replication)).minus(n.spreadWith(n.file.replication))}); err != nil {
		t.fail(err)
		return
	}
	t.result.OK = true
	before := ns.metered(n)
	ns.touch(n)
	n.file.replication = uint16(op.Replication)
	ns.recharge(n, before)
	ns.tellUpdate(n, metadata.UpdateReplication, nil)
	ns.allChanged(n)
}

// spreadWith is on which types what a file takes lies with so many replicas.
func (n *inode) spreadWith(replication uint16) typed {
	return n.spread(n.file.space()/int64(n.file.replication)*int64(replication), replication)
}

// replicationUsage is what a file would count more with another replication.
func (ns *Namespace) replicationUsage(n *inode, replication uint16) (int64, error) {
	space := n.file.space()
	other := space / int64(n.file.replication) * int64(replication)
	if ns.meta.quotas == 0 || !ns.hasHistory(n) {
		return other - space, nil
	}
	h, err := ns.historyOf(n.id, n.file)
	return other + h.beyond(n.file, replication) - space - h.beyond(n.file, n.file.replication), err
}
