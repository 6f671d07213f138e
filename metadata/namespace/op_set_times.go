package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// setTimes sets modification and access time, each unless negative. A directory has an access time only if it
// was set.
//
// Errors: ErrNotExist; ErrPermission without WRITE on the path.
func (ns *Namespace) setTimes(t *txn, op *logpb.SetTimes) {
	ns.setAttribute(t, op.Target, checks{last: metadata.Write}, "File/Directory %s does not exist.", func(_ *place, n *inode) {
		if op.Mtime >= 0 {
			n.mtime = metadata.Time(op.Mtime)
		}
		if op.Atime >= 0 {
			n.atime = metadata.Time(op.Atime)
		}
		ns.tellUpdate(n, metadata.UpdateTimes, func(e *metadata.Event) {
			e.MTime, e.ATime = metadata.Time(max(op.Mtime, -1)), metadata.Time(max(op.Atime, -1))
		})
	})
}
