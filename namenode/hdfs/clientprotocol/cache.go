package clientprotocol

import (
	"math"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// short is a number that is one of 16 bits in Java.
func short(v *uint32) (*int, error) {
	if v == nil {
		return nil, nil
	}
	if *v > math.MaxInt16 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "Out of range: %d", int32(*v))
	}
	return ptr(int(*v)), nil
}

func poolChange(i *pb.CachePoolInfoProto) (p namenode.CachePoolChange, err error) {
	p = namenode.CachePoolChange{Name: i.GetPoolName(), Owner: i.OwnerName, Group: i.GroupName, Limit: i.Limit, MaxTTL: i.MaxRelativeExpiry}
	if i.Mode != nil {
		p.Mode = ptr(metadata.Mode(*i.Mode & 0o1777))
	}
	p.Replication, err = short(i.DefaultReplication)
	return p, err
}

func directiveChange(i *pb.CacheDirectiveInfoProto) (d namenode.CacheDirectiveChange, err error) {
	d = namenode.CacheDirectiveChange{Path: i.Path, Pool: i.Pool}
	if e := i.Expiration; e != nil {
		d.Expires = &metadata.Expiration{Millis: e.GetMillis(), Relative: e.GetIsRelative()}
		if e.GetIsRelative() && e.GetMillis() > metadata.CacheForever {
			return d, metadata.Errorf(metadata.ErrInvalidArgument, "Expiration time is too far in the future!")
		}
	}
	if i.Path != nil && *i.Path == "" {
		return d, metadata.Errorf(metadata.ErrInvalidArgument, "Can not create a Path from an empty string")
	}
	d.Replication, err = short(i.Replication)
	return d, err
}

func forced(flags uint32) bool { return flags&uint32(pb.CacheFlagProto_FORCE) != 0 }

func (p *protocol) addCachePool(c *hrpc.Call, r *pb.AddCachePoolRequestProto) {
	change, err := poolChange(r.GetInfo())
	if err != nil {
		c.Fail(err)
		return
	}
	p.service.AddCachePool(c.Caller, retry(c), change, done(c))
}

func (p *protocol) modifyCachePool(c *hrpc.Call, r *pb.ModifyCachePoolRequestProto) {
	change, err := poolChange(r.GetInfo())
	if err != nil {
		c.Fail(err)
		return
	}
	p.service.ModifyCachePool(c.Caller, retry(c), change, done(c))
}

func (p *protocol) removeCachePool(c *hrpc.Call, r *pb.RemoveCachePoolRequestProto) {
	p.service.RemoveCachePool(c.Caller, retry(c), r.GetPoolName(), done(c))
}

func (p *protocol) addCacheDirective(c *hrpc.Call, r *pb.AddCacheDirectiveRequestProto) {
	change, err := directiveChange(r.GetInfo())
	if err == nil && r.GetInfo().Id != nil {
		err = metadata.Errorf(metadata.ErrIO, "addDirective: you cannot specify an ID for this operation.")
	}
	if err != nil {
		c.Fail(err)
		return
	}
	p.service.AddCacheDirective(c.Caller, retry(c), change, forced(r.GetCacheFlags()), result(c, func(id int64) hrpc.Message {
		return &pb.AddCacheDirectiveResponseProto{Id: &id}
	}))
}

func (p *protocol) modifyCacheDirective(c *hrpc.Call, r *pb.ModifyCacheDirectiveRequestProto) {
	change, err := directiveChange(r.GetInfo())
	if err == nil && r.GetInfo().Id == nil {
		err = metadata.Errorf(metadata.ErrInvalidRequest, "Must supply an ID.")
	}
	if err != nil {
		c.Fail(err)
		return
	}
	p.service.ModifyCacheDirective(c.Caller, retry(c), r.GetInfo().GetId(), change, forced(r.GetCacheFlags()), done(c))
}

func (p *protocol) removeCacheDirective(c *hrpc.Call, r *pb.RemoveCacheDirectiveRequestProto) {
	p.service.RemoveCacheDirective(c.Caller, retry(c), r.GetId(), done(c))
}

func (p *protocol) listCachePools(c *hrpc.Call, r *pb.ListCachePoolsRequestProto) {
	p.service.CachePools(c.Caller, r.GetPrevPoolName(), result(c, func(page *namenode.CachePoolPage) hrpc.Message {
		m := &pb.ListCachePoolsResponseProto{HasMore: &page.More}
		for i := range page.Pools {
			one := &page.Pools[i]
			info := &pb.CachePoolInfoProto{PoolName: &one.Name}
			if one.Readable {
				info.OwnerName, info.GroupName, info.Mode, info.Limit = &one.Owner, &one.Group, ptr(int32(one.Mode)), &one.Limit
				info.DefaultReplication, info.MaxRelativeExpiry = ptr(uint32(one.Replication)), &one.MaxTTL
			}
			m.Entries = append(m.Entries, &pb.CachePoolEntryProto{Info: info, Stats: &pb.CachePoolStatsProto{
				BytesNeeded: &one.BytesNeeded, BytesCached: &one.BytesCached, BytesOverlimit: ptr(one.Overlimit()),
				FilesNeeded: &one.FilesNeeded, FilesCached: &one.FilesCached,
			}})
		}
		return m
	}))
}

func (p *protocol) listCacheDirectives(c *hrpc.Call, r *pb.ListCacheDirectivesRequestProto) {
	f := r.GetFilter()
	if f != nil && f.Replication != nil {
		c.Fail(metadata.Errorf(metadata.ErrInvalidRequest, "Filtering by replication is unsupported."))
		return
	}
	var filter namenode.CacheFilter
	if f != nil {
		filter = namenode.CacheFilter{ID: f.Id, Path: f.Path, Pool: f.Pool}
	}
	p.service.CacheDirectives(c.Caller, r.GetPrevId(), filter, result(c, func(page *namenode.CacheDirectivePage) hrpc.Message {
		m := &pb.ListCacheDirectivesResponseProto{HasMore: &page.More}
		for i := range page.Directives {
			d := &page.Directives[i]
			m.Elements = append(m.Elements, &pb.CacheDirectiveEntryProto{
				Info: &pb.CacheDirectiveInfoProto{
					Id: &d.ID, Path: &d.Path, Replication: ptr(uint32(d.Replication)), Pool: &d.Pool,
					Expiration: &pb.CacheDirectiveInfoExpirationProto{Millis: ptr(int64(d.Expires)), IsRelative: no},
				},
				Stats: &pb.CacheDirectiveStatsProto{
					BytesNeeded: &d.BytesNeeded, BytesCached: &d.BytesCached, FilesNeeded: &d.FilesNeeded, FilesCached: &d.FilesCached, HasExpired: &d.Expired,
				},
			})
		}
		return m
	}))
}
