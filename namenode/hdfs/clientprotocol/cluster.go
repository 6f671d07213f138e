package clientprotocol

import (
	"strings"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func (p *protocol) getServerDefaults(c *hrpc.Call, _ *pb.GetServerDefaultsRequestProto) {
	d := p.service.Defaults()
	c.Reply(&pb.GetServerDefaultsResponseProto{ServerDefaults: &pb.FsServerDefaultsProto{
		BlockSize: ptr(uint64(d.BlockSize)), BytesPerChecksum: ptr(uint32(d.BytesPerChecksum)), WritePacketSize: ptr(uint32(d.PacketSize)),
		Replication: ptr(uint32(d.Replication)), FileBufferSize: ptr(uint32(d.FileBufferSize)), EncryptDataTransfer: ptr(d.EncryptTransfer),
		TrashInterval: ptr(uint64(d.TrashMinutes)), ChecksumType: pb.ChecksumTypeProto_CHECKSUM_CRC32C.Enum(),
		KeyProviderUri: empty, PolicyId: ptr(uint32(namenode.HotPolicy.ID)), SnapshotTrashRootEnabled: no,
	}})
}

func (p *protocol) getFsStats(c *hrpc.Call, _ *pb.GetFsStatusRequestProto) {
	s := p.service.Statistics()
	c.Reply(&pb.GetFsStatsResponseProto{
		Capacity: ptr(uint64(s.Capacity)), Used: ptr(uint64(s.Used)), Remaining: ptr(uint64(s.Remaining)),
		UnderReplicated: ptr(uint64(s.UnderReplicated)), CorruptBlocks: ptr(uint64(s.Corrupt)), MissingBlocks: ptr(uint64(s.Missing)),
		MissingReplOneBlocks: ptr(uint64(s.MissingReplicationOne)), BlocksInFuture: new(uint64),
		PendingDeletionBlocks: ptr(uint64(s.PendingDeletion)),
	})
}

func (p *protocol) getFsReplicatedBlockStats(c *hrpc.Call, _ *pb.GetFsReplicatedBlockStatsRequestProto) {
	s := p.service.Statistics()
	c.Reply(&pb.GetFsReplicatedBlockStatsResponseProto{
		LowRedundancy: ptr(uint64(s.UnderReplicated - s.Groups.UnderReplicated)), CorruptBlocks: ptr(uint64(s.Corrupt - s.Groups.Corrupt)),
		MissingBlocks: ptr(uint64(s.Missing - s.Groups.Missing)), MissingReplOneBlocks: ptr(uint64(s.MissingReplicationOne)), BlocksInFuture: new(uint64),
		PendingDeletionBlocks: ptr(uint64(s.PendingDeletion)), HighestPrioLowRedundancyBlocks: ptr(uint64(s.Critical)),
	})
}

// getFsECBlockGroupStats tells of no deletions: those of internal blocks are counted with the others'.
func (p *protocol) getFsECBlockGroupStats(c *hrpc.Call, _ *pb.GetFsECBlockGroupStatsRequestProto) {
	g := p.service.Statistics().Groups
	c.Reply(&pb.GetFsECBlockGroupStatsResponseProto{
		LowRedundancy: ptr(uint64(g.UnderReplicated)), CorruptBlocks: ptr(uint64(g.Corrupt)), MissingBlocks: ptr(uint64(g.Missing)),
		BlocksInFuture: new(uint64), PendingDeletionBlocks: new(uint64), HighestPrioLowRedundancyBlocks: new(uint64),
	})
}

func wanted(t pb.DatanodeReportTypeProto, r *namenode.NodeReport) bool {
	switch t {
	case pb.DatanodeReportTypeProto_ALL:
		return true
	case pb.DatanodeReportTypeProto_LIVE:
		return r.Alive
	case pb.DatanodeReportTypeProto_DEAD:
		return !r.Alive
	case pb.DatanodeReportTypeProto_DECOMMISSIONING:
		return r.Node.Admin == namenode.DecommissionInProgress
	case pb.DatanodeReportTypeProto_ENTERING_MAINTENANCE:
		return r.Node.Admin == namenode.EnteringMaintenance
	case pb.DatanodeReportTypeProto_IN_MAINTENANCE:
		return r.Node.Admin == namenode.InMaintenance
	}
	return false
}

func (p *protocol) getDatanodeReport(c *hrpc.Call, r *pb.GetDatanodeReportRequestProto) {
	m := &pb.GetDatanodeReportResponseProto{}
	nodes := p.service.Datanodes()
	for i := range nodes {
		if wanted(r.GetType(), &nodes[i]) {
			m.Di = append(m.Di, report(&nodes[i]))
		}
	}
	c.Reply(m)
}

// getSlowDatanodeReport tells of datanodes with a slow volume, where HDFS's tells of those that others call slow to answer.
func (p *protocol) getSlowDatanodeReport(c *hrpc.Call, _ *pb.GetSlowDatanodeReportRequestProto) {
	m := &pb.GetSlowDatanodeReportResponseProto{}
	nodes := p.service.Datanodes()
	for i := range nodes {
		if nodes[i].Slow() > 0 {
			m.DatanodeInfoProto = append(m.DatanodeInfoProto, report(&nodes[i]))
		}
	}
	c.Reply(m)
}

func (p *protocol) getDatanodeStorageReport(c *hrpc.Call, r *pb.GetDatanodeStorageReportRequestProto) {
	m := &pb.GetDatanodeStorageReportResponseProto{}
	nodes := p.service.Datanodes()
	for i := range nodes {
		if wanted(r.GetType(), &nodes[i]) {
			m.DatanodeStorageReports = append(m.DatanodeStorageReports, &pb.DatanodeStorageReportProto{
				DatanodeInfo: report(&nodes[i]), StorageReports: storages(&nodes[i]),
			})
		}
	}
	c.Reply(m)
}

func (p *protocol) setSafeMode(c *hrpc.Call, r *pb.SetSafeModeRequestProto) {
	if r.GetAction() == pb.SafeModeActionProto_SAFEMODE_GET {
		if r.GetChecked() && !p.service.Active() {
			// "checked" asks for the answer of the active namenode.
			c.Fail(metadata.Errorf(metadata.ErrStandby, "Operation category UNCHECKED is not supported in state standby. Visit https://s.apache.org/sbnn-error"))
			return
		}
		c.Reply(&pb.SetSafeModeResponseProto{Result: ptr(p.service.SafeMode() != "")})
		return
	}
	if !c.Caller.Superuser {
		c.Fail(metadata.NeedsSuperuser(c.Caller.User, strings.ToLower(r.GetAction().String())))
		return
	}
	if c.Proof == security.Vouched {
		c.Fail(security.NoOperator("setSafeMode"))
		return
	}
	if err := p.service.SetSafeMode(r.GetAction() == pb.SafeModeActionProto_SAFEMODE_ENTER); err != nil {
		c.Fail(err)
		return
	}
	c.Reply(&pb.SetSafeModeResponseProto{Result: ptr(p.service.SafeMode() != "")})
}

func (p *protocol) state() *pb.HAServiceStateProto {
	if p.service.Active() {
		return pb.HAServiceStateProto_ACTIVE.Enum()
	}
	return pb.HAServiceStateProto_STANDBY.Enum()
}

func (p *protocol) getHAServiceState(c *hrpc.Call, _ *pb.GetHAServiceStateRequestProto) {
	state := p.state()
	if c.Aligned && p.service.Observes() { // to others it is a standby
		state = pb.HAServiceStateProto_OBSERVER.Enum()
	}
	c.Reply(&pb.GetHAServiceStateResponseProto{State: state})
}

func (p *protocol) msync(c *hrpc.Call, _ *pb.MsyncRequestProto) { p.service.Sync(done(c)) }

func (p *protocol) getServiceStatus(c *hrpc.Call, _ *pb.GetServiceStatusRequestProto) {
	m := &pb.GetServiceStatusResponseProto{State: p.state(), ReadyToBecomeActive: yes}
	if err := p.service.Healthy(); err != nil {
		m.ReadyToBecomeActive, m.NotReadyReason = no, ptr(err.Error())
	}
	c.Reply(m)
}

func (p *protocol) monitorHealth(c *hrpc.Call, _ *pb.MonitorHealthRequestProto) {
	if err := p.service.Healthy(); err != nil {
		c.Fail(&hrpc.RemoteError{Class: "org.apache.hadoop.ha.HealthCheckFailedException", Message: err.Error()})
		return
	}
	c.Reply(nil)
}

func (p *protocol) getGroupsForUser(c *hrpc.Call, r *pb.GetGroupsForUserRequestProto) {
	c.Reply(&pb.GetGroupsForUserResponseProto{Groups: p.groups(r.GetUser())})
}

func (p *protocol) getStoragePolicies(c *hrpc.Call, _ *pb.GetStoragePoliciesRequestProto) {
	m := &pb.GetStoragePoliciesResponseProto{}
	for i := range namenode.StoragePolicies {
		m.Policies = append(m.Policies, policyMessage(&namenode.StoragePolicies[i]))
	}
	c.Reply(m)
}

func policyMessage(p *namenode.StoragePolicy) *pb.BlockStoragePolicyProto {
	types := func(ts []namenode.StorageType) *pb.StorageTypesProto {
		m := &pb.StorageTypesProto{}
		for _, t := range ts {
			m.StorageTypes = append(m.StorageTypes, storageType(t))
		}
		return m
	}
	return &pb.BlockStoragePolicyProto{
		PolicyId: ptr(uint32(p.ID)), Name: &p.Name, CreationPolicy: types(p.Types),
		CreationFallbackPolicy: types(p.CreationFallback), ReplicationFallbackPolicy: types(p.ReplicationFallback),
	}
}
