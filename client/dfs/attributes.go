package dfs

import (
	"context"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// XAttrFlags say whether SetXAttr may make an attribute, and whether it may replace one.
type XAttrFlags uint32

// The flags, with HDFS's numbers.
const (
	XAttrCreate  XAttrFlags = 1
	XAttrReplace XAttrFlags = 2
)

func xattrProto(a metadata.XAttr) *hadooppb.XAttrProto {
	return &hadooppb.XAttrProto{
		Namespace: hadooppb.XAttrProto_XAttrNamespaceProto(a.Namespace).Enum(), Name: &a.Name, Value: a.Value,
	}
}

func xattrsOf(list []*hadooppb.XAttrProto) []metadata.XAttr {
	out := make([]metadata.XAttr, len(list))
	for i, x := range list {
		out[i] = metadata.XAttr{Namespace: metadata.XAttrNamespace(x.GetNamespace()), Name: x.GetName(), Value: x.GetValue()}
	}
	return out
}

// SetXAttr sets an extended attribute.
func (c *Client) SetXAttr(ctx context.Context, name string, a metadata.XAttr, flags XAttrFlags) error {
	name, err := clean("setfattr", name)
	if err != nil {
		return err
	}
	return c.call(ctx, "setfattr", name, "setXAttr",
		&hadooppb.SetXAttrRequestProto{Src: &name, XAttr: xattrProto(a), Flag: new(uint32(flags))}, new(hadooppb.SetXAttrResponseProto))
}

// RemoveXAttr removes an extended attribute, which has to be there.
func (c *Client) RemoveXAttr(ctx context.Context, name string, a metadata.XAttr) error {
	name, err := clean("setfattr", name)
	if err != nil {
		return err
	}
	a.Value = nil
	return c.call(ctx, "setfattr", name, "removeXAttr",
		&hadooppb.RemoveXAttrRequestProto{Src: &name, XAttr: xattrProto(a)}, new(hadooppb.RemoveXAttrResponseProto))
}

// XAttrs returns extended attributes with their values: those named, or without names all that the user may read.
func (c *Client) XAttrs(ctx context.Context, name string, names ...metadata.XAttr) ([]metadata.XAttr, error) {
	name, err := clean("getfattr", name)
	if err != nil {
		return nil, err
	}
	request := &hadooppb.GetXAttrsRequestProto{Src: &name}
	for _, a := range names {
		a.Value = nil
		request.XAttrs = append(request.XAttrs, xattrProto(a))
	}
	var answer hadooppb.GetXAttrsResponseProto
	err = c.read(ctx, "getfattr", name, "getXAttrs", request, &answer)
	return xattrsOf(answer.XAttrs), err
}

// ListXAttrs returns the names of the extended attributes.
func (c *Client) ListXAttrs(ctx context.Context, name string) ([]metadata.XAttr, error) {
	name, err := clean("getfattr", name)
	if err != nil {
		return nil, err
	}
	var answer hadooppb.ListXAttrsResponseProto
	err = c.read(ctx, "getfattr", name, "listXAttrs", &hadooppb.ListXAttrsRequestProto{Src: &name}, &answer)
	return xattrsOf(answer.XAttrs), err
}

// ACL returns the access control list.
func (c *Client) ACL(ctx context.Context, name string) (metadata.ACL, error) {
	name, err := clean("getfacl", name)
	if err != nil {
		return metadata.ACL{}, err
	}
	var answer hadooppb.GetAclStatusResponseProto
	if err := c.read(ctx, "getfacl", name, "getAclStatus", &hadooppb.GetAclStatusRequestProto{Src: &name}, &answer); err != nil {
		return metadata.ACL{}, err
	}
	r := answer.GetResult()
	acl := metadata.ACL{Owner: r.GetOwner(), Group: r.GetGroup(), Mode: metadata.Mode(r.GetPermission().GetPerm() & 0o1777)}
	for _, e := range r.GetEntries() {
		acl.Entries = append(acl.Entries, metadata.ACLEntry{
			Default: e.GetScope() == hadooppb.AclEntryProto_DEFAULT, Type: metadata.ACLType(e.GetType()),
			Name: e.GetName(), Rights: metadata.Access(e.GetPermissions() & 7),
		})
	}
	return acl, nil
}

func aclSpec(entries []metadata.ACLEntry) []*hadooppb.AclEntryProto {
	out := make([]*hadooppb.AclEntryProto, len(entries))
	for i := range entries {
		e := &entries[i]
		out[i] = &hadooppb.AclEntryProto{
			Type: hadooppb.AclEntryProto_AclEntryTypeProto(e.Type).Enum(), Scope: hadooppb.AclEntryProto_ACCESS.Enum(),
			Permissions: hadooppb.AclEntryProto_FsActionProto(e.Rights & 7).Enum(),
		}
		if e.Default {
			out[i].Scope = hadooppb.AclEntryProto_DEFAULT.Enum()
		}
		if e.Name != "" {
			out[i].Name = &e.Name
		}
	}
	return out
}

// SetACL replaces the access control list, scope by scope; it needs the entries of owner, group and others.
func (c *Client) SetACL(ctx context.Context, name string, entries []metadata.ACLEntry) error {
	return c.changeACL(ctx, name, "setAcl", func(name *string) hrpc.Message {
		return &hadooppb.SetAclRequestProto{Src: name, AclSpec: aclSpec(entries)}
	}, new(hadooppb.SetAclResponseProto))
}

// ModifyACL adds entries, or gives those that are there other rights.
func (c *Client) ModifyACL(ctx context.Context, name string, entries []metadata.ACLEntry) error {
	return c.changeACL(ctx, name, "modifyAclEntries", func(name *string) hrpc.Message {
		return &hadooppb.ModifyAclEntriesRequestProto{Src: name, AclSpec: aclSpec(entries)}
	}, new(hadooppb.ModifyAclEntriesResponseProto))
}

// RemoveACLEntries removes entries; their rights do not matter.
func (c *Client) RemoveACLEntries(ctx context.Context, name string, entries []metadata.ACLEntry) error {
	return c.changeACL(ctx, name, "removeAclEntries", func(name *string) hrpc.Message {
		return &hadooppb.RemoveAclEntriesRequestProto{Src: name, AclSpec: aclSpec(entries)}
	}, new(hadooppb.RemoveAclEntriesResponseProto))
}

// RemoveDefaultACL removes what new entries of a directory inherit.
func (c *Client) RemoveDefaultACL(ctx context.Context, name string) error {
	return c.changeACL(ctx, name, "removeDefaultAcl", func(name *string) hrpc.Message {
		return &hadooppb.RemoveDefaultAclRequestProto{Src: name}
	}, new(hadooppb.RemoveDefaultAclResponseProto))
}

// RemoveACL removes all but the mode.
func (c *Client) RemoveACL(ctx context.Context, name string) error {
	return c.changeACL(ctx, name, "removeAcl", func(name *string) hrpc.Message {
		return &hadooppb.RemoveAclRequestProto{Src: name}
	}, new(hadooppb.RemoveAclResponseProto))
}

func (c *Client) changeACL(ctx context.Context, name, method string, request func(name *string) hrpc.Message, answer hrpc.Message) error {
	name, err := clean("setfacl", name)
	if err != nil {
		return err
	}
	return c.call(ctx, "setfacl", name, method, request(&name), answer)
}

// SetQuota limits the inodes below a directory, itself included, and the bytes in all replicas. metadata.QuotaKeep
// leaves a limit, metadata.QuotaUnset takes it away.
func (c *Client) SetQuota(ctx context.Context, name string, names, space int64) error {
	name, err := clean("set quota of", name)
	if err != nil {
		return err
	}
	return c.call(ctx, "set quota of", name, "setQuota", &hadooppb.SetQuotaRequestProto{
		Path: &name, NamespaceQuota: new(uint64(names)), StoragespaceQuota: new(uint64(space)),
	}, new(hadooppb.SetQuotaResponseProto))
}

// SetTypeQuota limits the bytes in all replicas below a directory that storage policies want on volumes of a type, by HDFS's number of it. metadata.QuotaUnset takes the limit away.
func (c *Client) SetTypeQuota(ctx context.Context, name string, kind namenode.StorageType, space int64) error {
	name, err := clean("set quota of", name)
	if err != nil {
		return err
	}
	return c.call(ctx, "set quota of", name, "setQuota", &hadooppb.SetQuotaRequestProto{
		Path: &name, NamespaceQuota: new(uint64(metadata.QuotaKeep)), StoragespaceQuota: new(uint64(space)), StorageType: hadooppb.StorageTypeProto(kind).Enum(),
	}, new(hadooppb.SetQuotaResponseProto))
}

// QuotaUsage returns what a directory uses of its quotas.
func (c *Client) QuotaUsage(ctx context.Context, name string) (metadata.QuotaUsage, error) {
	name, err := clean("count", name)
	if err != nil {
		return metadata.QuotaUsage{}, err
	}
	var answer hadooppb.GetQuotaUsageResponseProto
	err = c.read(ctx, "count", name, "getQuotaUsage", &hadooppb.GetQuotaUsageRequestProto{Path: &name}, &answer)
	u := answer.GetUsage()
	return metadata.QuotaUsage{
		Names: int64(u.GetFileAndDirectoryCount()), NameQuota: int64(u.GetQuota()),
		Space: int64(u.GetSpaceConsumed()), SpaceQuota: int64(u.GetSpaceQuota()),
	}, err
}

// TypeQuota is the quota of a storage type, in bytes; -1: none.
type TypeQuota struct{ Quota, Consumed int64 }

// TypeQuotas are the quotas of a directory by storage type, under HDFS's names: SSD, DISK, ARCHIVE. A type without one may
// be missing.
func (c *Client) TypeQuotas(ctx context.Context, name string) (map[string]TypeQuota, error) {
	name, err := clean("count", name)
	if err != nil {
		return nil, err
	}
	var answer hadooppb.GetQuotaUsageResponseProto
	if err := c.read(ctx, "count", name, "getQuotaUsage", &hadooppb.GetQuotaUsageRequestProto{Path: &name}, &answer); err != nil {
		return nil, err
	}
	quotas := map[string]TypeQuota{}
	for _, q := range answer.GetUsage().GetTypeQuotaInfos().GetTypeQuotaInfo() {
		quotas[q.GetType().String()] = TypeQuota{int64(q.GetQuota()), int64(q.GetConsumed())}
	}
	return quotas, nil
}
