package namespace

import logpb "github.com/gohops/hops/metadata/logpb/v1"

// renewLease says that a client lives, or that all do. A client without a lease is no error: clients renew whether they
// write or not.
func (ns *Namespace) renewLease(t *txn, op *logpb.RenewLease) {
	t.result.OK = true
	if op.Everybody {
		ns.meta.leasesRenewed = ns.meta.logTime
	}
	if l := ns.leases[op.ClientName]; l != nil && l.renewed < ns.meta.logTime {
		ns.touchLease(l)
		l.renewed = ns.meta.logTime
	}
}
