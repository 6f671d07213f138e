package dfs

import (
	"context"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// AddCachePool makes a pool of what datanodes keep in memory. Superusers only, as are ModifyCachePool and RemoveCachePool.
func (c *Client) AddCachePool(ctx context.Context, p namenode.CachePoolChange) error {
	return c.call(ctx, "add cache pool", p.Name, "addCachePool", &hadooppb.AddCachePoolRequestProto{Info: poolInfo(&p)}, new(hadooppb.AddCachePoolResponseProto))
}

// ModifyCachePool changes what is not nil.
func (c *Client) ModifyCachePool(ctx context.Context, p namenode.CachePoolChange) error {
	return c.call(ctx, "modify cache pool", p.Name, "modifyCachePool", &hadooppb.ModifyCachePoolRequestProto{Info: poolInfo(&p)}, new(hadooppb.ModifyCachePoolResponseProto))
}

// RemoveCachePool removes a pool with its directives.
func (c *Client) RemoveCachePool(ctx context.Context, name string) error {
	return c.call(ctx, "remove cache pool", name, "removeCachePool", &hadooppb.RemoveCachePoolRequestProto{PoolName: &name}, new(hadooppb.RemoveCachePoolResponseProto))
}

// CachePools lists all pools. Of those that the caller may not read there is only the name.
func (c *Client) CachePools(ctx context.Context) ([]namenode.ListedCachePool, error) {
	var all []namenode.ListedCachePool
	for turns := pagesFrom("list cache pools", "", ""); ; {
		var answer hadooppb.ListCachePoolsResponseProto
		if err := c.call(ctx, "list cache pools", "", "listCachePools", &hadooppb.ListCachePoolsRequestProto{PrevPoolName: &turns.last}, &answer); err != nil {
			return nil, err
		}
		for _, e := range answer.GetEntries() {
			i, s := e.GetInfo(), e.GetStats()
			one := namenode.ListedCachePool{Readable: i.OwnerName != nil, CacheFigures: namenode.CacheFigures{
				BytesNeeded: s.GetBytesNeeded(), BytesCached: s.GetBytesCached(), FilesNeeded: s.GetFilesNeeded(), FilesCached: s.GetFilesCached(),
			}}
			one.CachePool = metadata.CachePool{
				Name: i.GetPoolName(), Owner: i.GetOwnerName(), Group: i.GetGroupName(), Mode: metadata.Mode(i.GetMode()), Limit: i.GetLimit(),
				Replication: int(i.GetDefaultReplication()), MaxTTL: i.GetMaxRelativeExpiry(),
			}
			all = append(all, one)
		}
		if !answer.GetHasMore() || len(answer.GetEntries()) == 0 {
			return all, nil
		}
		if err := turns.turn(all[len(all)-1].Name); err != nil {
			return nil, err
		}
	}
}

// AddCacheDirective wants a file, or the files in a directory, to be in the memory of datanodes, and answers its number. It is refused when the pool's limit would be exceeded, unless
// force is set; as is ModifyCacheDirective.
func (c *Client) AddCacheDirective(ctx context.Context, d namenode.CacheDirectiveChange, force bool) (int64, error) {
	var answer hadooppb.AddCacheDirectiveResponseProto
	err := c.call(ctx, "add cache directive", pathOf(&d), "addCacheDirective",
		&hadooppb.AddCacheDirectiveRequestProto{Info: directiveInfo(&d), CacheFlags: cacheFlags(force)}, &answer)
	return answer.GetId(), err
}

// ModifyCacheDirective changes what is not nil.
func (c *Client) ModifyCacheDirective(ctx context.Context, id int64, d namenode.CacheDirectiveChange, force bool) error {
	info := directiveInfo(&d)
	info.Id = &id
	return c.call(ctx, "modify cache directive", pathOf(&d), "modifyCacheDirective",
		&hadooppb.ModifyCacheDirectiveRequestProto{Info: info, CacheFlags: cacheFlags(force)}, new(hadooppb.ModifyCacheDirectiveResponseProto))
}

// RemoveCacheDirective ends one.
func (c *Client) RemoveCacheDirective(ctx context.Context, id int64) error {
	return c.call(ctx, "remove cache directive", "", "removeCacheDirective", &hadooppb.RemoveCacheDirectiveRequestProto{Id: &id}, new(hadooppb.RemoveCacheDirectiveResponseProto))
}

// CacheDirectives lists the directives of pools that the caller may read, those that fit a filter.
func (c *Client) CacheDirectives(ctx context.Context, f namenode.CacheFilter) ([]namenode.ListedCacheDirective, error) {
	var all []namenode.ListedCacheDirective
	for turns := pagesFrom("list cache directives", "", int64(0)); ; {
		var answer hadooppb.ListCacheDirectivesResponseProto
		if err := c.call(ctx, "list cache directives", "", "listCacheDirectives", &hadooppb.ListCacheDirectivesRequestProto{
			PrevId: &turns.last, Filter: &hadooppb.CacheDirectiveInfoProto{Id: f.ID, Path: f.Path, Pool: f.Pool},
		}, &answer); err != nil {
			return nil, err
		}
		for _, e := range answer.GetElements() {
			i, s := e.GetInfo(), e.GetStats()
			all = append(all, namenode.ListedCacheDirective{
				CacheDirective: metadata.CacheDirective{
					ID: i.GetId(), Path: i.GetPath(), Replication: int(i.GetReplication()), Pool: i.GetPool(), Expires: metadata.Time(i.GetExpiration().GetMillis()),
				},
				CacheFigures: namenode.CacheFigures{BytesNeeded: s.GetBytesNeeded(), BytesCached: s.GetBytesCached(), FilesNeeded: s.GetFilesNeeded(), FilesCached: s.GetFilesCached()},
				Expired:      s.GetHasExpired(),
			})
		}
		if !answer.GetHasMore() || len(answer.GetElements()) == 0 {
			return all, nil
		}
		if err := turns.turn(all[len(all)-1].ID); err != nil {
			return nil, err
		}
	}
}

func pathOf(d *namenode.CacheDirectiveChange) string {
	if d.Path == nil {
		return ""
	}
	return *d.Path
}

func cacheFlags(force bool) *uint32 {
	if force {
		return new(uint32(hadooppb.CacheFlagProto_FORCE))
	}
	return new(uint32)
}

func poolInfo(p *namenode.CachePoolChange) *hadooppb.CachePoolInfoProto {
	i := &hadooppb.CachePoolInfoProto{PoolName: &p.Name, OwnerName: p.Owner, GroupName: p.Group, Limit: p.Limit, MaxRelativeExpiry: p.MaxTTL}
	if p.Mode != nil {
		i.Mode = new(int32(*p.Mode))
	}
	if p.Replication != nil {
		i.DefaultReplication = new(uint32(*p.Replication))
	}
	return i
}

func directiveInfo(d *namenode.CacheDirectiveChange) *hadooppb.CacheDirectiveInfoProto {
	i := &hadooppb.CacheDirectiveInfoProto{Path: d.Path, Pool: d.Pool}
	if d.Replication != nil {
		i.Replication = new(uint32(*d.Replication))
	}
	if e := d.Expires; e != nil {
		i.Expiration = &hadooppb.CacheDirectiveInfoExpirationProto{Millis: &e.Millis, IsRelative: &e.Relative}
	}
	return i
}
