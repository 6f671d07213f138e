package hadoop

import (
	"strings"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
)

// admin registers ResourceManagerAdministrationProtocol and HAServiceProtocol, for `yarn rmadmin`.
func (s *Server) admin() {
	operate := security.Superuser
	handle(s, adminProtocol, "refreshQueues", operate, users, func(c *call, _ *pb.RefreshQueuesRequestProto) (hrpc.Message, error) {
		if err := c.operated(); err != nil {
			return nil, err
		}
		_, err := c.Operator.RefreshQueues(c.ctx, c.Caller, false)
		return &pb.RefreshQueuesResponseProto{}, err
	})
	handle(s, adminProtocol, "refreshNodes", operate, users, (*call).refreshNodes)
	handle(s, adminProtocol, "refreshSuperUserGroupsConfiguration", operate, users, func(c *call, _ *pb.RefreshSuperUserGroupsConfigurationRequestProto) (hrpc.Message, error) {
		if err := c.operated(); err != nil {
			return nil, err
		}
		return &pb.RefreshSuperUserGroupsConfigurationResponseProto{}, c.Operator.RefreshUsers(c.ctx, c.Caller, true)
	})
	handle(s, adminProtocol, "refreshAdminAcls", operate, users, func(c *call, _ *pb.RefreshAdminAclsRequestProto) (hrpc.Message, error) {
		if err := c.operated(); err != nil {
			return nil, err
		}
		return &pb.RefreshAdminAclsResponseProto{}, c.Operator.RefreshUsers(c.ctx, c.Caller, false)
	})
	handle(s, adminProtocol, "refreshUserToGroupsMappings", operate, users, func(c *call, _ *pb.RefreshUserToGroupsMappingsRequestProto) (hrpc.Message, error) {
		c.Door.ForgetGroups()
		return &pb.RefreshUserToGroupsMappingsResponseProto{}, nil
	})
	handle(s, adminProtocol, "getGroupsForUser", security.Named, users, func(c *call, q *pb.GetGroupsForUserRequestProto) (hrpc.Message, error) {
		if len(q.GetUser()) > security.MaxUserName {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "a user's name has %d bytes at most", security.MaxUserName)
		}
		return &pb.GetGroupsForUserResponseProto{Groups: c.Door.Caller(q.GetUser()).Groups}, nil
	})
	handle(s, adminProtocol, "updateNodeResource", operate, users, (*call).updateNodeResource)
	for _, name := range []string{
		"refreshServiceAcls", "refreshNodesResources", "addToClusterNodeLabels", "removeFromClusterNodeLabels", "replaceLabelsOnNode",
		"checkForDecommissioningNodes", "refreshClusterMaxPriority", "mapAttributesToNodes",
	} {
		handle(s, adminProtocol, name, operate, users, func(*call, *ignored) (hrpc.Message, error) { return nil, unsupportedHere(name) })
	}
	handle(s, haProtocol, "getServiceStatus", security.Anyone, users, func(c *call, _ *hadooppb.GetServiceStatusRequestProto) (hrpc.Message, error) {
		state := hadooppb.HAServiceStateProto_STANDBY
		if c.Cluster.Leading() {
			state = hadooppb.HAServiceStateProto_ACTIVE
		}
		return &hadooppb.GetServiceStatusResponseProto{State: &state, ReadyToBecomeActive: new(true)}, nil
	})
	handle(s, haProtocol, "monitorHealth", security.Anyone, users, func(*call, *hadooppb.MonitorHealthRequestProto) (hrpc.Message, error) {
		return &hadooppb.MonitorHealthResponseProto{}, nil
	})
	for _, name := range []string{"transitionToActive", "transitionToStandby"} {
		handle(s, haProtocol, name, operate, users, func(*call, *ignored) (hrpc.Message, error) {
			return nil, metadata.Errorf(metadata.ErrUnsupported, "the resource managers elect their leader themselves; stop the one that leads to have another one")
		})
	}
}

func (c *call) operated() error {
	if c.Operator == nil {
		return metadata.Errorf(metadata.ErrUnsupported, "this resource manager has no operator's commands")
	}
	return nil
}

// refreshNodes reads the list of excluded nodes anew. As in YARN nodes that it names leave at once, or when what they run has ended;
// with a time, then at last.
func (c *call) refreshNodes(q *pb.RefreshNodesRequestProto) (hrpc.Message, error) {
	if err := c.operated(); err != nil {
		return nil, err
	}
	timeout := time.Duration(0)
	if q.GetDecommissionType() == pb.DecommissionTypeProto_GRACEFUL {
		timeout = -1
		if q.DecommissionTimeout != nil && *q.DecommissionTimeout >= 0 {
			timeout = time.Duration(*q.DecommissionTimeout) * time.Second
		}
	}
	return &pb.RefreshNodesResponseProto{}, c.Operator.RefreshNodes(c.ctx, c.Caller, timeout)
}

func (c *call) updateNodeResource(q *pb.UpdateNodeResourceRequestProto) (hrpc.Message, error) {
	if err := c.operated(); err != nil {
		return nil, err
	}
	if len(q.NodeResourceMap) > 1_000 {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%d nodes at once, 1000 at most", len(q.NodeResourceMap))
	}
	for _, m := range q.NodeResourceMap {
		r, err := pb.ParseResource(m.GetResourceOption().GetResource())
		if err != nil {
			return nil, err
		}
		id, address := rm.NodeID(""), pb.ParseNode(m.GetNodeId())
		for n := range c.view.Nodes() {
			if strings.EqualFold(n.IPC, address) || strings.EqualFold(string(n.ID), address) {
				id = n.ID
			}
		}
		if id == "" {
			return nil, metadata.Errorf(metadata.ErrNotExist, "no node %.100s", address)
		}
		if err := c.Operator.Resize(c.ctx, c.Caller, id, rm.Resource{Memory: r.Memory, VCores: r.VCores}); err != nil {
			return nil, err
		}
	}
	return &pb.UpdateNodeResourceResponseProto{}, nil
}
