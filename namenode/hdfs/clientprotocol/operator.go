package clientprotocol

import (
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// What operators ask: Hadoop's calls of dfsadmin and haadmin, and hops' own for what Hadoop has no call for, the feed of changes, search, statuses of many paths and small files among them.

func (p *protocol) operatorMethods() []hrpc.Method {
	methods := []hrpc.Method{
		on("setDatanodeState", security.Superuser, p.setDatanodeState),
		on("transferLeadership", security.Superuser, p.transferLeadership),
		on("balance", security.Superuser, p.balance),
		on("tier", security.ByPath, p.tier),
		waits(large(on("getEvents", security.ByPath, p.getEvents))),
		waits(large(on("search", security.ByPath, p.search))),
		on("beginRewrite", security.ByPath, p.beginRewrite),
		on("endRewrite", security.ByPath, p.endRewrite),
		on("publish", security.ByPath, p.publish),
		large(on("getFileInfos", security.ByPath, p.getFileInfos)),
		on("searchStatus", security.Named, p.searchStatus),
		on("rebuildSearch", security.Superuser, p.rebuildSearch),
	}
	methods = append(methods, p.smallMethods()...)
	for i := range methods {
		methods[i] = withAudit(methods[i])
	}
	return methods
}

func (p *protocol) refreshNodes(c *hrpc.Call, _ *pb.RefreshNodesRequestProto) {
	p.service.RefreshNodes(done(c))
}

func (p *protocol) saveNamespace(c *hrpc.Call, _ *pb.SaveNamespaceRequestProto) {
	p.service.SaveNamespace(func(err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		c.Reply(&pb.SaveNamespaceResponseProto{Saved: yes})
	})
}

func (p *protocol) metaSave(c *hrpc.Call, r *pb.MetaSaveRequestProto) {
	p.service.MetaSave(r.GetFilename(), done(c))
}

func (p *protocol) setBalancerBandwidth(c *hrpc.Call, r *pb.SetBalancerBandwidthRequestProto) {
	p.service.SetBalancerBandwidth(r.GetBandwidth(), done(c))
}

// rollingUpgrade is ClientProtocol.rollingUpgrade. There are no images to go back to: the formats on disk stay those of the version before until the
// end, so that they always stand ready.
func (p *protocol) rollingUpgrade(c *hrpc.Call, r *pb.RollingUpgradeRequestProto) {
	actions := map[pb.RollingUpgradeActionProto]namenode.UpgradeAction{
		pb.RollingUpgradeActionProto_QUERY: namenode.QueryUpgrade, pb.RollingUpgradeActionProto_START: namenode.PrepareUpgrade,
		pb.RollingUpgradeActionProto_FINALIZE: namenode.FinalizeUpgrade,
	}
	p.service.RollingUpgrade(c.Caller, actions[r.GetAction()], func(u *namenode.Upgrade, err error) {
		if err != nil {
			c.Fail(err)
			return
		}
		answer := &pb.RollingUpgradeResponseProto{}
		if u != nil {
			ms := func(t time.Time) *uint64 {
				if t.IsZero() {
					return new(uint64)
				}
				return new(uint64(t.UnixMilli()))
			}
			answer.RollingUpgradeInfo = &pb.RollingUpgradeInfoProto{
				Status:    &pb.RollingUpgradeStatusProto{BlockPoolId: new(p.service.BlockPool()), Finalized: new(!u.Finalized.IsZero())},
				StartTime: ms(u.Started), FinalizeTime: ms(u.Finalized), CreatedRollbackImages: new(true),
			}
		}
		c.Reply(answer)
	})
}

func (p *protocol) setDatanodeState(c *hrpc.Call, r *pb.SetDatanodeStateRequestProto) {
	var state namenode.AdminState
	switch r.GetState() {
	case pb.SetDatanodeStateRequestProto_IN_SERVICE:
	case pb.SetDatanodeStateRequestProto_DECOMMISSIONED:
		state = namenode.Decommissioned
	case pb.SetDatanodeStateRequestProto_IN_MAINTENANCE:
		state = namenode.InMaintenance
	default:
		c.Fail(metadata.Errorf(metadata.ErrInvalidArgument, "state %d of a datanode", r.GetState()))
		return
	}
	const most = int64(1<<63-1) / int64(time.Millisecond)
	life := time.Duration(min(max(r.GetDuration(), -1), most)) * time.Millisecond
	p.service.SetAdmin(c.Caller, r.GetDatanodes(), state, life, result(c, func(names []string) hrpc.Message {
		return &pb.SetDatanodeStateResponseProto{Datanodes: names}
	}))
}

func (p *protocol) balance(c *hrpc.Call, r *pb.BalanceRequestProto) {
	p.service.Balance(c.Caller, namenode.BalanceRequest{
		Session: r.GetSession(), Threshold: r.GetThreshold(), Include: r.GetInclude(), Exclude: r.GetExclude(), Source: r.GetSource(), Stop: r.GetStop(),
	}, result(c, func(b *namenode.Balanced) hrpc.Message {
		return &pb.BalanceResponseProto{
			Moved: &b.Moved, Blocks: &b.Blocks, Moving: &b.Moving, Left: &b.Left, Failed: &b.Failed, Over: ptr(int32(b.Over)), Under: ptr(int32(b.Under)),
		}
	}))
}

func (p *protocol) tier(c *hrpc.Call, r *pb.TierRequestProto) {
	p.service.Tier(c.Caller, namenode.TierRequest{Path: r.GetPath(), Start: r.GetStart()}, result(c, func(t *namenode.Tiered) hrpc.Message {
		return &pb.TierResponseProto{
			Waiting: &t.Waiting, Known: &t.Known, Stuck: &t.Stuck, Paths: ptr(int64(t.Paths)), Blocks: ptr(int64(t.Blocks)),
			Moving: &t.Moving, Moved: &t.Moved, Replicas: &t.Replicas, Failed: &t.Failed,
		}
	}))
}

func (p *protocol) transferLeadership(c *hrpc.Call, r *pb.TransferLeadershipRequestProto) {
	p.service.Transfer(c.Caller, r.GetTo(), done(c))
}

// transitionToActive has this namenode lead: that is done when it does.
func (p *protocol) transitionToActive(c *hrpc.Call, _ *pb.TransitionToActiveRequestProto) {
	p.service.Lead(c.Caller, done(c))
}

// transitionToStandby has another namenode lead, if this one does: there is always one that leads.
func (p *protocol) transitionToStandby(c *hrpc.Call, _ *pb.TransitionToStandbyRequestProto) {
	if !p.service.Active() {
		c.Reply(nil)
		return
	}
	p.service.Transfer(c.Caller, "", done(c))
}
