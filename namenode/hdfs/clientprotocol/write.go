package clientprotocol

import (
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The bits of createFlag that matter here. SHOULD_REPLICATE (128) is always so, unknown bits are ignored.
const (
	flagCreate    = uint32(pb.CreateFlagProto_CREATE)
	flagOverwrite = uint32(pb.CreateFlagProto_OVERWRITE)
	flagLazy      = uint32(pb.CreateFlagProto_LAZY_PERSIST)
	flagNewBlock  = uint32(pb.CreateFlagProto_NEW_BLOCK)
	flagReplicate = uint32(pb.CreateFlagProto_SHOULD_REPLICATE)
)

func (p *protocol) create(c *hrpc.Call, r *pb.CreateRequestProto) {
	request, err := createRequest(c, r)
	if err != nil {
		c.Fail(err)
		return
	}
	p.service.Create(c.Caller, request, func(f *metadata.FileStatus, err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		p.replyInfo(c, f)
	})
}

// createRequest is what a call asks for that makes a file.
func createRequest(c *hrpc.Call, r *pb.CreateRequestProto) (namenode.CreateRequest, error) {
	err, policy := client(r.GetClientName()), r.GetEcPolicyName()
	switch {
	case err != nil:
	case policy != "" && r.GetCreateFlag()&flagReplicate != 0:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "SHOULD_REPLICATE flag and ecPolicyName are exclusive parameters. Set both is not allowed!")
	case r.GetCreateFlag()&flagReplicate != 0:
		policy = namenode.ReplicationPolicy
	}
	flags := r.GetCreateFlag()
	return namenode.CreateRequest{
		Retry: retry(c), Path: r.GetSrc(), Mode: mode(r.Masked), Client: r.GetClientName(), Unmasked: unmasked(r.Unmasked),
		Create: flags&flagCreate != 0, Overwrite: flags&flagOverwrite != 0, Parents: r.GetCreateParent(),
		Replication: int(int16(r.GetReplication())), BlockSize: int64(r.GetBlockSize()), Policy: policy, LazyPersist: flags&flagLazy != 0,
	}, err
}

func (p *protocol) addBlock(c *hrpc.Call, r *pb.AddBlockRequestProto) {
	previous, err := p.block(r.Previous)
	if err == nil {
		err = client(r.GetClientName())
	}
	if err != nil {
		c.Fail(err)
		return
	}
	request := namenode.AddBlockRequest{
		File: file(r.GetFileId(), r.GetSrc()), Client: r.GetClientName(), Previous: previous,
		Exclude: ids(r.ExcludeNodes), Favoured: r.FavoredNodes, Tail: r.GetTail(),
	}
	for _, f := range r.Flags {
		switch f {
		case pb.AddBlockFlagProto_NO_LOCAL_WRITE:
			request.NoLocal = true
		case pb.AddBlockFlagProto_IGNORE_CLIENT_LOCALITY:
			request.Anywhere = true
		}
	}
	p.service.AddBlock(c.Caller, request, result(c, func(b *namenode.LocatedBlock) hrpc.Message {
		return p.encode.answer(b)
	}))
}

func file(id uint64, path string) namenode.FileRef {
	return namenode.FileRef{INode: metadata.INodeID(id), Path: path}
}

func (p *protocol) abandonBlock(c *hrpc.Call, r *pb.AbandonBlockRequestProto) {
	b, err := p.must(r.B)
	if err != nil {
		c.Fail(err)
		return
	}
	p.service.AbandonBlock(c.Caller, file(r.GetFileId(), r.GetSrc()), r.GetHolder(), b, done(c))
}

func (p *protocol) getAdditionalDatanode(c *hrpc.Call, r *pb.GetAdditionalDatanodeRequestProto) {
	b, err := p.must(r.Blk)
	if err == nil && r.GetNumAdditionalNodes() > metadata.MaxReplication {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "%d additional datanodes are more than %d", r.GetNumAdditionalNodes(), metadata.MaxReplication)
	}
	if err != nil {
		c.Fail(err)
		return
	}
	request := namenode.MoreTargetsRequest{
		File: file(r.GetFileId(), r.GetSrc()), Client: r.GetClientName(), Block: b,
		Exclude: ids(r.Excludes), Want: int(r.GetNumAdditionalNodes()),
	}
	for i, id := range ids(r.Existings) {
		l := namenode.Location{Node: &namenode.Node{ID: id}}
		if i < len(r.ExistingStorageUuids) {
			l.Volume = namenode.VolumeID(r.ExistingStorageUuids[i])
		}
		request.Existing = append(request.Existing, l)
	}
	p.service.MoreTargets(c.Caller, request, result(c, func(b *namenode.LocatedBlock) hrpc.Message {
		return p.encode.answer(b)
	}))
}

func (p *protocol) complete(c *hrpc.Call, r *pb.CompleteRequestProto) {
	last, err := p.block(r.Last)
	if err != nil {
		c.Fail(err)
		return
	}
	p.service.Complete(c.Caller, file(r.GetFileId(), r.GetSrc()), r.GetClientName(), last, result(c, func(ok bool) hrpc.Message {
		return resultOf(ok)
	}))
}

func (p *protocol) append(c *hrpc.Call, r *pb.AppendRequestProto) {
	if err := client(r.GetClientName()); err != nil {
		c.Fail(err)
		return
	}
	p.service.Append(c.Caller, namenode.AppendRequest{
		Retry: retry(c), Path: r.GetSrc(), Client: r.GetClientName(), NewBlock: r.GetFlag()&flagNewBlock != 0, Tails: r.GetTails(),
	}, func(b *namenode.LocatedBlock, f *metadata.FileStatus, err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		c.Reply(&appendAnswer{encoder: &p.encode, block: b, status: f, pool: *p.blockPool()})
	})
}

func (p *protocol) updateBlockForPipeline(c *hrpc.Call, r *pb.UpdateBlockForPipelineRequestProto) {
	b, err := p.must(r.Block)
	if err != nil {
		c.Fail(err)
		return
	}
	p.service.BumpBlock(c.Caller, r.GetClientName(), b, result(c, func(b *namenode.LocatedBlock) hrpc.Message {
		return p.encode.answer(b)
	}))
}

func (p *protocol) updatePipeline(c *hrpc.Call, r *pb.UpdatePipelineRequestProto) {
	before, err := p.must(r.OldBlock)
	if err != nil {
		c.Fail(err)
		return
	}
	after, err := p.must(r.NewBlock)
	if err != nil {
		c.Fail(err)
		return
	}
	request := namenode.UpdatePipelineRequest{Retry: retry(c), Client: r.GetClientName(), Old: before, New: after}
	for _, n := range r.NewNodes {
		id := namenode.NodeID(n.GetDatanodeUuid())
		if id == namenode.NoNode && after.ID.Striped() {
			id = ""
		}
		request.Nodes = append(request.Nodes, id)
	}
	for _, v := range r.StorageIDs {
		request.Volumes = append(request.Volumes, namenode.VolumeID(v))
	}
	p.service.UpdatePipeline(c.Caller, request, done(c))
}

func (p *protocol) fsync(c *hrpc.Call, r *pb.FsyncRequestProto) {
	p.service.Fsync(c.Caller, file(r.GetFileId(), r.GetSrc()), r.GetClient(), r.GetLastBlockLength(), done(c))
}

func (p *protocol) renewLease(c *hrpc.Call, r *pb.RenewLeaseRequestProto) {
	if err := client(r.GetClientName()); err != nil {
		c.Fail(err)
		return
	}
	p.service.RenewLease(c.Caller, r.GetClientName(), done(c))
}

func (p *protocol) recoverLease(c *hrpc.Call, r *pb.RecoverLeaseRequestProto) {
	p.service.RecoverLease(c.Caller, r.GetSrc(), r.GetClientName(), result(c, func(closed bool) hrpc.Message {
		return resultOf(closed)
	}))
}

func (p *protocol) rename(c *hrpc.Call, r *pb.RenameRequestProto) {
	p.service.Rename(c.Caller, retry(c), r.GetSrc(), r.GetDst(), result(c, func(ok bool) hrpc.Message {
		return resultOf(ok)
	}))
}

func (p *protocol) rename2(c *hrpc.Call, r *pb.Rename2RequestProto) {
	p.service.RenameTo(c.Caller, retry(c), r.GetSrc(), r.GetDst(), r.GetOverwriteDest(), r.GetMoveToTrash(), done(c))
}

func (p *protocol) delete(c *hrpc.Call, r *pb.DeleteRequestProto) {
	p.service.Delete(c.Caller, retry(c), r.GetSrc(), r.GetRecursive(), result(c, func(ok bool) hrpc.Message {
		return resultOf(ok)
	}))
}

func (p *protocol) mkdirs(c *hrpc.Call, r *pb.MkdirsRequestProto) {
	p.service.Mkdirs(c.Caller, namenode.MkdirsRequest{
		Path: r.GetSrc(), Mode: mode(r.Masked), Unmasked: unmasked(r.Unmasked), Parents: r.GetCreateParent(),
	}, func(err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		c.Reply(resultOf(true))
	})
}

func (p *protocol) setReplication(c *hrpc.Call, r *pb.SetReplicationRequestProto) {
	p.service.SetReplication(c.Caller, r.GetSrc(), int(int16(r.GetReplication())), result(c, func(ok bool) hrpc.Message {
		return resultOf(ok)
	}))
}

func (p *protocol) setPermission(c *hrpc.Call, r *pb.SetPermissionRequestProto) {
	p.service.SetPermission(c.Caller, r.GetSrc(), mode(r.Permission), done(c))
}

func (p *protocol) setOwner(c *hrpc.Call, r *pb.SetOwnerRequestProto) {
	p.service.SetOwner(c.Caller, r.GetSrc(), r.GetUsername(), r.GetGroupname(), done(c))
}

func (p *protocol) setTimes(c *hrpc.Call, r *pb.SetTimesRequestProto) {
	p.service.SetTimes(c.Caller, r.GetSrc(), metadata.Time(r.GetMtime()), metadata.Time(r.GetAtime()), done(c))
}

func (p *protocol) reportBadBlocks(c *hrpc.Call, r *pb.ReportBadBlocksRequestProto) {
	var bad []namenode.LocatedBlock
	for _, b := range r.Blocks {
		blk, err := p.must(b.GetB())
		if err != nil {
			c.Fail(err)
			return
		}
		l := namenode.LocatedBlock{Block: blk}
		for _, id := range ids(b.GetLocs()) {
			l.Locations = append(l.Locations, namenode.Location{Node: &namenode.Node{ID: id}})
		}
		bad = append(bad, l)
	}
	p.service.ReportBad(c.Caller, bad, done(c))
}
