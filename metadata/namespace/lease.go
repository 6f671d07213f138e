package namespace

import (
	"fmt"
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// lease is a client's right to write the files it has open. All leases are in memory.
type lease struct {
	holder     string
	clientNode string
	renewed    LogTime
	files      map[metadata.INodeID]struct{}

	hash    uint64
	touched bool
}

func leaseKey(holder string) string { return string(classLease) + holder }

func (ns *Namespace) touchLease(l *lease) {
	ns.changed = true
	if !l.touched {
		l.touched = true
		ns.touchedLeases = append(ns.touchedLeases, l)
	}
}

// openFile gives the lease of a touched file to holder and renews it.
func (ns *Namespace) openFile(n *inode, c *construction) {
	n.file.open = c
	l := ns.leases[c.holder]
	if l == nil {
		l = &lease{holder: c.holder, files: map[metadata.INodeID]struct{}{}}
		ns.leases[c.holder] = l
	}
	ns.touchLease(l)
	l.renewed = ns.meta.logTime
	if c.clientNode != "" {
		l.clientNode = c.clientNode
	}
	before := len(l.files)
	l.files[n.id] = struct{}{}
	ns.openFiles += len(l.files) - before
}

// closeFile ends the lease of a touched file.
func (ns *Namespace) closeFile(n *inode) {
	l := ns.leases[n.file.open.holder]
	n.file.open = nil
	if l == nil {
		return
	}
	ns.touchLease(l)
	before := len(l.files)
	delete(l.files, n.id)
	ns.openFiles += len(l.files) - before
	if len(l.files) == 0 {
		delete(ns.leases, l.holder)
	}
}

func (ns *Namespace) settleLeases() {
	for i, l := range ns.touchedLeases {
		l.touched = false
		ns.touchedLeases[i] = nil
		key := leaseKey(l.holder)
		ns.hash -= l.hash
		l.hash = 0
		if len(l.files) == 0 {
			if ns.leases[l.holder] == nil {
				ns.pending[key] = nil
			}
			continue
		}
		r := &ns.enc.lease
		r.Renewed, r.ClientNode = int64(l.renewed), l.clientNode
		value := marshal(nil, r)
		l.hash = hashRecord([]byte(key), value)
		ns.hash += l.hash
		ns.pending[key] = value
	}
	ns.touchedLeases = ns.touchedLeases[:0]
}

func (ns *Namespace) loadLeases() error {
	var bad error
	err := ns.view.Scan([]byte{classLease}, nil, func(key, value []byte) bool {
		var r logpb.Lease
		if bad = r.UnmarshalVT(value); bad != nil {
			return false
		}
		holder := string(key[1:])
		ns.leases[holder] = &lease{
			holder: holder, clientNode: r.ClientNode, renewed: LogTime(r.Renewed),
			files: map[metadata.INodeID]struct{}{}, hash: hashRecord(key, value),
		}
		return true
	})
	if err == nil && bad == nil {
		err = ns.view.Scan([]byte{classOpen}, nil, func(key, value []byte) bool {
			id, _, ok := splitEntry(key[1:])
			l := ns.leases[string(value)]
			if !ok || l == nil {
				bad = fmt.Errorf("open file %x without a lease", key[1:])
				return false
			}
			l.files[metadata.INodeID(id)] = struct{}{}
			ns.openFiles++
			return true
		})
	}
	if err != nil {
		return err
	}
	if bad != nil {
		return fmt.Errorf("leases: %w: %w", bad, metadata.ErrCorrupt)
	}
	return nil
}

// renewed is when a lease was renewed last, by its holder or with all others.
func (ns *Namespace) renewed(l *lease) LogTime { return max(l.renewed, ns.meta.leasesRenewed) }

// expired reports whether a lease was not renewed for limit.
func (ns *Namespace) expired(l *lease, limit LogTime) bool {
	return ns.meta.logTime-ns.renewed(l) > limit
}

// describe is how HDFS names a holder in the messages of a lost lease.
func (ns *Namespace) describe(path string, id metadata.INodeID, holder string) string {
	who := fmt.Sprintf("Holder %s does not have any open files.", holder)
	if l := ns.leases[holder]; l != nil {
		who = fmt.Sprintf("[Lease.  Holder: %s, pending creates: %d]", holder, len(l.files))
	}
	return strings.TrimPrefix(fmt.Sprintf("%s (inode %d) %s", path, id, who), " ")
}

// checkLease returns the open file that holder writes (FSNamesystem.checkLease).
//
// Errors: ErrNotExist when the inode is gone; ErrLeaseExpired when the file is closed or somebody else's; ErrPermission
// when it is another user's.
func (ns *Namespace) checkLease(c *caller, id metadata.INodeID, holder string) (*inode, error) {
	n, err := ns.byID(id)
	switch {
	case err != nil:
		return nil, err
	case n == nil:
		return nil, metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", ns.describe("", id, holder))
	case !n.attached():
		return nil, metadata.Errorf(metadata.ErrNotExist, "File is deleted: %s", ns.describe(n.path(), id, holder))
	case n.file == nil:
		return nil, metadata.Errorf(metadata.ErrLeaseExpired, "INode is not a regular file: %s", ns.describe(n.path(), id, holder))
	case n.file.open == nil:
		return nil, metadata.Errorf(metadata.ErrLeaseExpired, "File is not open for writing: %s", ns.describe(n.path(), id, holder))
	case n.file.open.holder != holder:
		return nil, metadata.Errorf(metadata.ErrLeaseExpired, "Client (=%s) is not the lease owner (=%s: %s",
			holder, n.file.open.holder, ns.describe(n.path(), id, holder))
	}
	if err := n.file.open.checkUser(c); err != nil {
		return nil, err
	}
	return n, nil
}

// checkUser refuses who is not the user that opened the file. HDFS asks for the name of the client only, which errors
// tell everybody; here it would give a stranger tokens for the file's last block.
func (o *construction) checkUser(c *caller) error {
	if c.superuser || c.user == o.user {
		return nil
	}
	return metadata.Errorf(metadata.ErrPermission, "Permission denied: user=%s is not the user that opened the file as %s", c.user, o.holder)
}

// checkTakeover decides whether an open file may be opened by somebody else now: never, but the error says whether
// waiting helps (FSNamesystem.recoverLeaseInternal). The result tells the proposer whether to start a recovery.
func (ns *Namespace) checkTakeover(t *txn, n *inode, op, path, holder string) *ExpiredLease {
	o := n.file.open
	refuse := func(kind *metadata.Kind, format string, args ...any) {
		t.result.Err = metadata.Errorf(kind, "Failed to %s %s for %s on %s because %s",
			op, path, holder, t.caller.host, fmt.Sprintf(format, args...))
	}
	l := ns.leases[o.holder]
	switch {
	case o.holder == holder:
		refuse(metadata.ErrBeingCreated, "%s is already the current lease holder.", holder)
	case l == nil:
		refuse(metadata.ErrBeingCreated, "the file is under construction but no leases found.")
	case ns.expired(l, SoftLimit):
		refuse(metadata.ErrRecoveryInProgress, "lease recovery is in progress. Try again later.")
		return &ExpiredLease{INode: n.id, Holder: o.holder}
	case o.state == UnderRecovery:
		refuse(metadata.ErrRecoveryInProgress, "another recovery is in progress by %s on %s", o.holder, o.clientHost)
	default:
		refuse(metadata.ErrBeingCreated, "this file lease is currently owned by %s on %s", o.holder, o.clientHost)
	}
	return nil
}
