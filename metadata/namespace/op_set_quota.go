package namespace

import (
	"errors"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// setQuota limits a directory, which may use more already.
//
// Errors: ErrPermission for all but the superuser; ErrNotExist; ErrNotDirectory; ErrInvalidArgument for a negative limit;
// ErrRetriable with INode for a tree that has to be surveyed, again if op carries a survey.
func (ns *Namespace) setQuota(t *txn, op *logpb.SetQuota) {
	p := newPlace()
	defer p.release()
	if !t.caller.superuser {
		t.fail(metadata.NeedsSuperuser(t.caller.user, metadata.QuotaOperation(op.Names, op.Space)))
		return
	}
	if err := ns.resolveTarget(p, t, op.Target, toUse); err != nil {
		t.fail(err)
		return
	}
	if op.Type == 0 && (op.Names < metadata.QuotaUnset || op.Space < metadata.QuotaUnset) {
		t.failf(metadata.ErrInvalidArgument, "Illegal value for nsQuota or ssQuota : %d and %d", op.Names, op.Space)
		return
	}
	n := p.last()
	switch {
	case n == nil:
		t.failf(metadata.ErrNotExist, "Directory does not exist: %s", p)
		return
	case !n.isDir():
		t.failf(metadata.ErrNotDirectory, "`%s': Is not a directory", p)
		return
	}
	next := quota{names: metadata.QuotaUnset, space: metadata.QuotaUnset}
	old := n.quota()
	if old != nil {
		next = *old
	}
	if op.Type != 0 {
		i, ok := metadata.QuotaTypeOf(op.Type)
		if !ok || op.TypeSpace < metadata.QuotaUnset || op.TypeSpace == metadata.QuotaKeep {
			t.failf(metadata.ErrInvalidArgument, "Don't support Quota for storage type : %d, or not of %d bytes", op.Type, op.TypeSpace)
			return
		}
		next.types = next.types.with(i, op.TypeSpace)
	} else {
		if op.Names != metadata.QuotaKeep {
			next.names = op.Names
		}
		if op.Space != metadata.QuotaKeep {
			next.space = op.Space
		}
	}
	_, counted := ns.surveyed(&t.caller, n, op.Survey)
	t.result.OK = true
	set := next.names >= 0 || next.space >= 0 || next.types != nil
	typed := old != nil && old.types != nil
	if set && (old == nil || next.types != nil && !typed) {
		u, ok := ns.counted(counted, op.UsedNames, op.UsedSpace, op.UsedTypes)
		if _, all := typedOf(op.UsedTypes); !ok || next.types != nil && !all {
			most := smallTree
			if op.Count {
				most = 0
			}
			var err error
			if u, err = ns.usageFor(n, next.types != nil, most); err != nil {
				t.fail(err)
				if t.result.OK = false; errors.Is(err, errLargeTree) {
					t.result.INode = n.id
				}
				return
			}
		}
		if old == nil {
			next.used = u.total()
		}
		if next.types != nil {
			next.types.used = u.types
		}
		ns.endSurveys(func(*logpb.Survey) bool { return true }) // they began under other quotas
	}
	switch {
	case old == nil && !set, old != nil && old.same(&next):
		return
	case old == nil:
		ns.touch(n)
		n.own().quota = &next
		ns.meta.quotas++
	case !set:
		ns.touch(n)
		n.extra.quota = nil
		n.tidy()
		ns.meta.quotas--
	default:
		ns.touch(n)
		*old = next
	}
	switch {
	case next.types != nil && !typed:
		ns.meta.typeQuotas++
	case next.types == nil && typed:
		ns.meta.typeQuotas--
	}
}

// same reports whether two quotas limit the same.
func (q *quota) same(other *quota) bool {
	return q.names == other.names && q.space == other.space && (q.types == nil) == (other.types == nil) && (q.types == nil || q.types.limits == other.types.limits)
}

// limits are the quotas of an inode as HDFS reports them.
func (n *inode) limits() (names, space int64) {
	names, space = metadata.QuotaUnset, metadata.QuotaUnset
	if q := n.quota(); q != nil {
		names, space = q.names, q.space
	}
	if n.id == metadata.RootID && names < 0 {
		names = metadata.QuotaKeep
	}
	return names, space
}

// QuotaUsage returns what path uses of its quotas. A directory with a quota knows; anything else is counted.
//
// Errors: ErrNotExist; ErrPermission without READ and EXECUTE on a directory.
func (ns *Namespace) QuotaUsage(c metadata.Caller, path string) (*metadata.QuotaUsage, error) {
	var u *metadata.QuotaUsage
	err := ns.find(c, path, func(p *place, c *caller) error {
		u = nil
		n := p.last()
		if n == nil {
			return metadata.Errorf(metadata.ErrNotExist, "File/Directory does not exist: %s", p)
		}
		if err := checkMode(c, p, len(p.nodes)-1, metadata.Read|metadata.Execute); err != nil && n.isDir() {
			return err
		}
		if q := n.quota(); q != nil {
			u = &metadata.QuotaUsage{Names: q.used.names, NameQuota: q.names, Space: q.used.space, SpaceQuota: q.space, Types: q.types.list()}
			u.NameQuota, u.SpaceQuota = n.limits()
		}
		return nil
	})
	if err != nil || u != nil {
		return u, err
	}
	sum, err := ns.ContentSummary(c, path)
	if err != nil {
		return nil, err
	}
	return &metadata.QuotaUsage{
		Names: sum.Files + sum.Directories, NameQuota: sum.Quota, Space: sum.SpaceConsumed, SpaceQuota: sum.SpaceQuota,
	}, nil
}
