package namespace

import logpb "github.com/gohops/hops/metadata/logpb/v1"

// setSafeMode remembers that an administrator wants nothing to be changed, or wants it no more. Commands are not held up
// by it: proposers ask SafeMode before they propose what users want, and the namenode's own work goes on.
func (ns *Namespace) setSafeMode(t *txn, op *logpb.SetSafeMode) {
	ns.meta.safeMode = op.On
	t.result.OK = true
}

// SafeMode reports whether an administrator wants nothing to be changed. It takes no lock.
func (ns *Namespace) SafeMode() bool { return ns.safeMode.Load() }
