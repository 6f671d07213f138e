package clientprotocol

import (
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The flags of setXAttr.
const (
	flagXAttrCreate  = 1
	flagXAttrReplace = 2
)

func xattr(x *pb.XAttrProto) metadata.XAttr {
	return metadata.XAttr{Namespace: metadata.XAttrNamespace(x.GetNamespace()), Name: x.GetName(), Value: x.GetValue()}
}

func xattrs(all []metadata.XAttr) []*pb.XAttrProto {
	out := make([]*pb.XAttrProto, len(all))
	for i := range all {
		out[i] = &pb.XAttrProto{Namespace: pb.XAttrProto_XAttrNamespaceProto(all[i].Namespace).Enum(), Name: &all[i].Name, Value: all[i].Value}
	}
	return out
}

func (p *protocol) setXAttr(c *hrpc.Call, r *pb.SetXAttrRequestProto) {
	if x := r.XAttr; x.GetNamespace() == pb.XAttrProto_SECURITY && x.GetName() == "hdfs.unreadable.by.superuser" && x.Value != nil &&
		len(x.GetName())+len(x.Value) <= metadata.MaxXAttrSize {
		c.Fail(metadata.Errorf(metadata.ErrPermission, "Attempt to set a value for 'security.%s'. Values are not allowed for this xattr.", x.GetName()))
		return
	}
	p.service.SetXAttr(c.Caller, namenode.SetXAttrRequest{
		Retry: retry(c), Path: r.GetSrc(), Attribute: xattr(r.XAttr),
		Create: r.GetFlag()&flagXAttrCreate != 0, Replace: r.GetFlag()&flagXAttrReplace != 0,
	}, done(c))
}

func (p *protocol) removeXAttr(c *hrpc.Call, r *pb.RemoveXAttrRequestProto) {
	p.service.RemoveXAttr(c.Caller, retry(c), r.GetSrc(), xattr(r.XAttr), done(c))
}

func (p *protocol) getXAttrs(c *hrpc.Call, r *pb.GetXAttrsRequestProto) {
	names := make([]metadata.XAttr, len(r.XAttrs))
	for i, x := range r.XAttrs {
		names[i] = xattr(x)
	}
	p.service.XAttrs(c.Caller, r.GetSrc(), names, result(c, func(all []metadata.XAttr) hrpc.Message {
		return &pb.GetXAttrsResponseProto{XAttrs: xattrs(all)}
	}))
}

func (p *protocol) listXAttrs(c *hrpc.Call, r *pb.ListXAttrsRequestProto) {
	p.service.ListXAttrs(c.Caller, r.GetSrc(), result(c, func(all []metadata.XAttr) hrpc.Message {
		return &pb.ListXAttrsResponseProto{XAttrs: xattrs(all)}
	}))
}

func aclEntries(spec []*pb.AclEntryProto) []metadata.ACLEntry {
	out := make([]metadata.ACLEntry, len(spec))
	for i, e := range spec {
		out[i] = metadata.ACLEntry{
			Default: e.GetScope() == pb.AclEntryProto_DEFAULT, Type: metadata.ACLType(e.GetType()),
			Name: e.GetName(), Rights: metadata.Access(e.GetPermissions()) & 7,
		}
	}
	return out
}

func aclSpec(entries []metadata.ACLEntry) []*pb.AclEntryProto {
	out := make([]*pb.AclEntryProto, len(entries))
	for i := range entries {
		e := &entries[i]
		m := &pb.AclEntryProto{
			Type: pb.AclEntryProto_AclEntryTypeProto(e.Type).Enum(), Scope: pb.AclEntryProto_ACCESS.Enum(),
			Permissions: pb.AclEntryProto_FsActionProto(e.Rights).Enum(),
		}
		if e.Default {
			m.Scope = pb.AclEntryProto_DEFAULT.Enum()
		}
		if e.Name != "" {
			m.Name = &e.Name
		}
		out[i] = m
	}
	return out
}

func (p *protocol) modifyAclEntries(c *hrpc.Call, r *pb.ModifyAclEntriesRequestProto) {
	p.service.SetACL(c.Caller, r.GetSrc(), namenode.ACLModify, aclEntries(r.AclSpec), done(c))
}

func (p *protocol) removeAclEntries(c *hrpc.Call, r *pb.RemoveAclEntriesRequestProto) {
	p.service.SetACL(c.Caller, r.GetSrc(), namenode.ACLRemoveEntries, aclEntries(r.AclSpec), done(c))
}

func (p *protocol) removeDefaultAcl(c *hrpc.Call, r *pb.RemoveDefaultAclRequestProto) {
	p.service.SetACL(c.Caller, r.GetSrc(), namenode.ACLRemoveDefault, nil, done(c))
}

func (p *protocol) removeAcl(c *hrpc.Call, r *pb.RemoveAclRequestProto) {
	p.service.SetACL(c.Caller, r.GetSrc(), namenode.ACLRemove, nil, done(c))
}

func (p *protocol) setAcl(c *hrpc.Call, r *pb.SetAclRequestProto) {
	p.service.SetACL(c.Caller, r.GetSrc(), namenode.ACLSet, aclEntries(r.AclSpec), done(c))
}

func (p *protocol) getAclStatus(c *hrpc.Call, r *pb.GetAclStatusRequestProto) {
	p.service.ACL(c.Caller, r.GetSrc(), result(c, func(a *metadata.ACL) hrpc.Message {
		return &pb.GetAclStatusResponseProto{Result: &pb.AclStatusProto{
			Owner: &a.Owner, Group: &a.Group, Sticky: ptr(a.Mode&metadata.Sticky != 0), Entries: aclSpec(a.Entries),
			Permission: &pb.FsPermissionProto{Perm: ptr(uint32(a.Mode))},
		}}
	}))
}

func (p *protocol) setQuota(c *hrpc.Call, r *pb.SetQuotaRequestProto) {
	if r.StorageType != nil {
		p.service.SetTypeQuota(c.Caller, r.GetPath(), uint32(r.GetStorageType()), int64(r.GetStoragespaceQuota()), done(c))
		return
	}
	p.service.SetQuota(c.Caller, r.GetPath(), int64(r.GetNamespaceQuota()), int64(r.GetStoragespaceQuota()), done(c))
}

func (p *protocol) getQuotaUsage(c *hrpc.Call, r *pb.GetQuotaUsageRequestProto) {
	p.service.QuotaUsage(c.Caller, r.GetPath(), result(c, func(u *metadata.QuotaUsage) hrpc.Message {
		return &pb.GetQuotaUsageResponseProto{Usage: &pb.QuotaUsageProto{
			FileAndDirectoryCount: ptr(uint64(u.Names)), Quota: ptr(uint64(u.NameQuota)),
			SpaceConsumed: ptr(uint64(u.Space)), SpaceQuota: ptr(uint64(u.SpaceQuota)), TypeQuotaInfos: typeQuotas(u.Types),
		}}
	}))
}

// typeQuotas are the quotas of a directory by storage type; nil: it has none.
func typeQuotas(all []metadata.TypeQuota) *pb.StorageTypeQuotaInfosProto {
	if all == nil {
		return nil
	}
	m := &pb.StorageTypeQuotaInfosProto{}
	for _, q := range all {
		m.TypeQuotaInfo = append(m.TypeQuotaInfo, &pb.StorageTypeQuotaInfoProto{
			Type: pb.StorageTypeProto(q.Number).Enum(), Quota: ptr(uint64(q.Quota)), Consumed: ptr(uint64(q.Consumed)),
		})
	}
	return m
}

func (p *protocol) setStoragePolicy(c *hrpc.Call, r *pb.SetStoragePolicyRequestProto) {
	policy, err := hdfs.PolicyByName(r.GetPolicyName())
	if err != nil {
		c.Fail(err)
		return
	}
	p.service.SetStoragePolicy(c.Caller, r.GetSrc(), policy.ID, done(c))
}

func (p *protocol) satisfyStoragePolicy(c *hrpc.Call, r *pb.SatisfyStoragePolicyRequestProto) {
	p.service.SatisfyStoragePolicy(c.Caller, r.GetSrc(), done(c))
}

func (p *protocol) unsetStoragePolicy(c *hrpc.Call, r *pb.UnsetStoragePolicyRequestProto) {
	p.service.SetStoragePolicy(c.Caller, r.GetSrc(), 0, done(c))
}

func (p *protocol) truncate(c *hrpc.Call, r *pb.TruncateRequestProto) {
	if err := client(r.GetClientName()); err != nil {
		c.Fail(err)
		return
	}
	// A length beyond the largest is a negative one, which the service refuses by name.
	length := int64(r.GetNewLength())
	p.service.Truncate(c.Caller, retry(c), r.GetSrc(), length, r.GetClientName(), result(c, func(ok bool) hrpc.Message {
		return &pb.TruncateResponseProto{Result: &ok}
	}))
}

func (p *protocol) concat(c *hrpc.Call, r *pb.ConcatRequestProto) {
	p.service.Concat(c.Caller, retry(c), r.GetTrg(), r.Srcs, done(c))
}
