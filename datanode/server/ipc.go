package server

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gohops/hops/datanode/diskbalance"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// clientDatanodeProtocol is the protocol's name on the wire.
const clientDatanodeProtocol = "org.apache.hadoop.hdfs.protocol.ClientDatanodeProtocol"

// ipcServer serves the few calls of ClientDatanodeProtocol that clients make.
func (s *Server) ipcServer() *hrpc.Server {
	srv := hrpc.NewServer(hrpc.ServerConfig{Door: s.cfg.Door, Offers: append([]hrpc.Offer{s.tokenOffer(), hrpc.BearerOffer(s.cfg.Door.Users())}, s.cfg.Offers...), Name: s.caller, Exception: exception, Logger: s.log})
	handle := func(name string, right security.Right, request func() hrpc.Message, do func(hrpc.Message) (hrpc.Message, error)) {
		srv.Handle(clientDatanodeProtocol, hrpc.Method{Name: name, New: request, Right: right, Handle: func(c *hrpc.Call) {
			if m, err := do(c.Request); err != nil {
				c.Fail(err)
			} else {
				c.Reply(m)
			}
		}})
	}
	handle("getReplicaVisibleLength", security.Anyone, func() hrpc.Message { return new(hadooppb.GetReplicaVisibleLengthRequestProto) }, s.visibleLength)
	handle("getDatanodeInfo", security.Anyone, func() hrpc.Message { return new(hadooppb.GetDatanodeInfoRequestProto) }, s.datanodeInfo)
	handle("getVolumeReport", security.Superuser, func() hrpc.Message { return new(hadooppb.GetVolumeReportRequestProto) }, s.volumeReport)
	handle("triggerBlockReport", security.Superuser, func() hrpc.Message { return new(hadooppb.TriggerBlockReportRequestProto) }, s.triggerReport)
	handle("submitDiskBalancerPlan", security.Superuser, func() hrpc.Message { return new(hadooppb.SubmitDiskBalancerPlanRequestProto) }, s.submitPlan)
	handle("cancelDiskBalancerPlan", security.Superuser, func() hrpc.Message { return new(hadooppb.CancelDiskBalancerPlanRequestProto) }, s.cancelPlan)
	handle("queryDiskBalancerPlan", security.Superuser, func() hrpc.Message { return new(hadooppb.QueryDiskBalancerPlanRequestProto) }, s.queryPlan)
	handle("getDiskBalancerSetting", security.Superuser, func() hrpc.Message { return new(hadooppb.GetDiskBalancerSettingRequestProto) }, s.balancerSetting)
	handle("startReconfiguration", security.Superuser, func() hrpc.Message { return new(hadooppb.StartReconfigurationRequestProto) }, s.startReconfiguration)
	handle("getReconfigurationStatus", security.Superuser, func() hrpc.Message { return new(hadooppb.GetReconfigurationStatusRequestProto) }, s.reconfigurationStatus)
	handle("listReconfigurableProperties", security.Superuser, func() hrpc.Message { return new(hadooppb.ListReconfigurablePropertiesRequestProto) }, s.reconfigurable)
	return srv
}

// tokenBearer is the name of who is known by a block token: of nobody, so that it has no right that a user has.
const tokenBearer = "bearer of a block token"

// tokenOffer is how Hadoop's clients show a block token when they ask for the length of a block.
func (s *Server) tokenOffer() hrpc.Offer {
	return hrpc.Offer{
		Method: sasl.Token, Mechanism: sasl.DigestMD5, Protocol: hrpc.TokenService, ServerID: hrpc.TokenServer, First: true,
		New: func(*security.Peer) (sasl.Mechanism, error) {
			return sasl.NewAcceptor(sasl.AcceptorConfig{
				Service: hrpc.TokenService, Server: hrpc.TokenServer,
				Lookup: func(name string) (string, sasl.Identity, error) {
					identifier, err := sasl.DecodeName(name)
					if err != nil {
						return "", sasl.Identity{}, err
					}
					password, err := s.trust.Password(context.Background(), identifier)
					if err != nil {
						return "", sasl.Identity{}, metadata.Errorf(metadata.ErrToken, "%v", err)
					}
					return sasl.EncodePassword(password), sasl.Identity{Name: tokenBearer, Method: sasl.Token}, nil
				},
			}), nil
		},
	}
}

// caller is who asks: Hadoop's clients give the name of a block in place of a user's when they ask for its length
// (DFSUtilClient.createClientDatanodeProtocolProxy), and the token that would go with it only through SASL.
func (s *Server) caller(p *security.Peer, claimed string) string {
	if strings.HasPrefix(claimed, "blk_") {
		return s.cfg.Door.OwnerName(p)
	}
	return claimed
}

// exception names the Java class of what the handlers fail with.
func exception(err error) (class, message string) {
	if errors.Is(err, metadata.ErrReplicaNotFound) {
		return "org.apache.hadoop.hdfs.server.datanode.ReplicaNotFoundException", err.Error()
	}
	if errors.Is(err, metadata.ErrToken) {
		return "org.apache.hadoop.security.token.SecretManager$InvalidToken", err.Error()
	}
	if _, refused := errors.AsType[*diskbalance.Error](err); refused {
		return "org.apache.hadoop.hdfs.server.diskbalancer.DiskBalancerException", err.Error()
	}
	return "java.io.IOException", err.Error()
}

func (s *Server) visibleLength(m hrpc.Message) (hrpc.Message, error) {
	b := m.(*hadooppb.GetReplicaVisibleLengthRequestProto).GetBlock()
	r, ok := s.store.Replica(metadata.BlockID(b.GetBlockId()))
	if !ok || uint64(r.Block.Generation) < b.GetGenerationStamp() {
		return nil, metadata.Errorf(metadata.ErrReplicaNotFound, "Replica not found for blk_%d_%d", b.GetBlockId(), b.GetGenerationStamp())
	}
	if !r.Readable() {
		// Not ReplicaNotFoundException: clients that hear that from all take the block for empty.
		return nil, metadata.Errorf(metadata.ErrIO, "Replica is not readable: blk_%d_%d", b.GetBlockId(), b.GetGenerationStamp())
	}
	return &hadooppb.GetReplicaVisibleLengthResponseProto{Length: new(uint64(r.Visible))}, nil
}

func (s *Server) datanodeInfo(hrpc.Message) (hrpc.Message, error) {
	return &hadooppb.GetDatanodeInfoResponseProto{LocalInfo: &hadooppb.DatanodeLocalInfoProto{
		SoftwareVersion: new(SoftwareVersion), ConfigVersion: new("core-0,hdfs-0"), Uptime: new(uint64(time.Since(s.started).Seconds())),
	}}, nil
}

func (s *Server) volumeReport(hrpc.Message) (hrpc.Message, error) {
	m := &hadooppb.GetVolumeReportResponseProto{}
	for _, v := range s.store.Volumes() {
		if v.Failed != nil {
			continue
		}
		m.VolumeInfo = append(m.VolumeInfo, &hadooppb.DatanodeVolumeInfoProto{
			Path: new(v.Path), StorageType: hadooppb.StorageTypeProto(v.Type).Enum(), UsedSpace: new(uint64(v.Used)), FreeSpace: new(uint64(v.Remaining)),
			ReservedSpace: new(uint64(0)), ReservedSpaceForReplicas: new(uint64(0)), NumBlocks: new(uint64(v.Replicas)),
		})
	}
	return m, nil
}

func (s *Server) triggerReport(m hrpc.Message) (hrpc.Message, error) {
	if !m.(*hadooppb.TriggerBlockReportRequestProto).GetIncremental() {
		for _, n := range s.all() {
			n.reportNow()
		}
	}
	return new(hadooppb.TriggerBlockReportResponseProto), nil
}
