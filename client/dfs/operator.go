package dfs

import (
	"context"
	"slices"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The protocols of operators: Hadoop's, and hops' own for what Hadoop has no call for.
const (
	haServiceProtocol = "org.apache.hadoop.ha.HAServiceProtocol"
	operatorProtocol  = "io.gohops.OperatorProtocol"
)

// Namenodes are the IPC addresses of the namenodes, in the order of the configuration.
func (c *Client) Namenodes() []string { return slices.Clone(c.config.Namenodes) }

// at calls one server by its address: a namenode whether it leads or not, or a datanode.
func (c *Client) at(ctx context.Context, op, addr, protocol, method string, request, response hrpc.Message) error {
	role := authority.Datanode
	if slices.Contains(c.config.Namenodes, addr) {
		role = authority.Namenode
	}
	conn, err := hrpc.Dial(ctx, addr, c.dialConfig(protocol, role))
	if err != nil {
		return err
	}
	defer conn.Close()
	return wrap(op, "", conn.Call(ctx, protocol, method, request, response))
}

// Report is what a namenode says of all datanodes and blocks together; sizes are in bytes.
type Report struct {
	Capacity, Used, Remaining                                    int64
	Under, Corrupt, Missing, MissingOne, Critical, PendingDelete int64
	// Of block groups; the figures above are of replicated blocks.
	GroupsUnder, GroupsCorrupt, GroupsMissing, GroupsCritical, GroupsPendingDelete int64
}

// Report asks for the figures of dfsadmin -report.
func (c *Client) Report(ctx context.Context) (Report, error) {
	var stats hadooppb.GetFsStatsResponseProto
	if err := c.call(ctx, "report", "", "getFsStats", new(hadooppb.GetFsStatusRequestProto), &stats); err != nil {
		return Report{}, err
	}
	var blocks hadooppb.GetFsReplicatedBlockStatsResponseProto
	if err := c.call(ctx, "report", "", "getFsReplicatedBlockStats", new(hadooppb.GetFsReplicatedBlockStatsRequestProto), &blocks); err != nil {
		return Report{}, err
	}
	var groups hadooppb.GetFsECBlockGroupStatsResponseProto
	if err := c.call(ctx, "report", "", "getFsECBlockGroupStats", new(hadooppb.GetFsECBlockGroupStatsRequestProto), &groups); err != nil {
		return Report{}, err
	}
	return Report{
		Capacity: int64(stats.GetCapacity()), Used: int64(stats.GetUsed()), Remaining: int64(stats.GetRemaining()),
		Under: int64(blocks.GetLowRedundancy()), Corrupt: int64(blocks.GetCorruptBlocks()), Missing: int64(blocks.GetMissingBlocks()),
		MissingOne: int64(blocks.GetMissingReplOneBlocks()), Critical: int64(blocks.GetHighestPrioLowRedundancyBlocks()),
		PendingDelete: int64(blocks.GetPendingDeletionBlocks()),
		GroupsUnder:   int64(groups.GetLowRedundancy()), GroupsCorrupt: int64(groups.GetCorruptBlocks()), GroupsMissing: int64(groups.GetMissingBlocks()),
		GroupsCritical: int64(groups.GetHighestPrioLowRedundancyBlocks()), GroupsPendingDelete: int64(groups.GetPendingDeletionBlocks()),
	}, nil
}

// SafeModeAt is SafeMode of the namenode at an address, whether it leads or not.
func (c *Client) SafeModeAt(ctx context.Context, addr string, action SafeModeAction) (bool, error) {
	var answer hadooppb.SetSafeModeResponseProto
	err := c.at(ctx, "safe mode", addr, clientProtocol, "setSafeMode",
		&hadooppb.SetSafeModeRequestProto{Action: hadooppb.SafeModeActionProto(action).Enum()}, &answer)
	return answer.GetResult(), err
}

// SaveNamespace has the namenode at an address write its state to disk now. A leader does it in safe mode only.
func (c *Client) SaveNamespace(ctx context.Context, addr string) error {
	return c.at(ctx, "save namespace", addr, clientProtocol, "saveNamespace", new(hadooppb.SaveNamespaceRequestProto), new(hadooppb.SaveNamespaceResponseProto))
}

// RefreshNodes has the namenode at an address read its host lists anew; those of the one that leads count.
func (c *Client) RefreshNodes(ctx context.Context, addr string) error {
	return c.at(ctx, "refresh nodes", addr, clientProtocol, "refreshNodes", new(hadooppb.RefreshNodesRequestProto), new(hadooppb.RefreshNodesResponseProto))
}

// MetaSave has the namenode that leads write what it knows of blocks that are not as they should be to a file of its own.
func (c *Client) MetaSave(ctx context.Context, name string) error {
	return c.call(ctx, "metasave", "", "metaSave", &hadooppb.MetaSaveRequestProto{Filename: &name}, new(hadooppb.MetaSaveResponseProto))
}

// SetBalancerBandwidth says how many bytes a second a datanode sends at most for the balancer.
func (c *Client) SetBalancerBandwidth(ctx context.Context, bytes int64) error {
	return c.call(ctx, "balancer bandwidth", "", "setBalancerBandwidth", &hadooppb.SetBalancerBandwidthRequestProto{Bandwidth: &bytes}, new(hadooppb.SetBalancerBandwidthResponseProto))
}

// UpgradeAction is what RollingUpgrade asks for.
type UpgradeAction = hadooppb.RollingUpgradeActionProto

// The actions.
const (
	UpgradeQuery    = hadooppb.RollingUpgradeActionProto_QUERY
	UpgradePrepare  = hadooppb.RollingUpgradeActionProto_START
	UpgradeFinalize = hadooppb.RollingUpgradeActionProto_FINALIZE
)

// Upgrade is an upgrade of the cluster. Times are milliseconds since 1970; 0: not yet.
type Upgrade struct {
	BlockPool          string
	Started, Finalized int64
}

// RollingUpgrade asks about an upgrade of the cluster, prepares or finalizes it; nil: there is none under way. Superusers only.
func (c *Client) RollingUpgrade(ctx context.Context, action UpgradeAction) (*Upgrade, error) {
	var answer hadooppb.RollingUpgradeResponseProto
	if err := c.call(ctx, "rolling upgrade", "", "rollingUpgrade", &hadooppb.RollingUpgradeRequestProto{Action: &action}, &answer); err != nil {
		return nil, err
	}
	i := answer.GetRollingUpgradeInfo()
	if i == nil {
		return nil, nil
	}
	return &Upgrade{BlockPool: i.GetStatus().GetBlockPoolId(), Started: int64(i.GetStartTime()), Finalized: int64(i.GetFinalizeTime())}, nil
}

// OpenFile is a file that somebody writes.
type OpenFile struct {
	INode              metadata.INodeID
	Path, Client, Host string
}

// OpenFiles calls yield with all files below path that are being written, by inode, page by page, until it returns false. With blocking only those
// that keep a datanode from being let go.
func (c *Client) OpenFiles(ctx context.Context, path string, blocking bool, yield func(OpenFile) bool) error {
	for turns := pagesFrom("open files", path, metadata.INodeID(0)); ; {
		files, more, err := c.openFilesPage(ctx, turns.last, path, blocking)
		if err != nil {
			return err
		}
		for _, f := range files {
			if !yield(f) {
				return nil
			}
		}
		if !more || len(files) == 0 {
			return nil
		}
		if err := turns.turn(files[len(files)-1].INode); err != nil {
			return err
		}
	}
}

// openFilesPage is a page of OpenFiles behind an inode, and whether there are more.
func (c *Client) openFilesPage(ctx context.Context, after metadata.INodeID, path string, blocking bool) ([]OpenFile, bool, error) {
	kind := hadooppb.OpenFilesTypeProto_ALL_OPEN_FILES
	if blocking {
		kind = hadooppb.OpenFilesTypeProto_BLOCKING_DECOMMISSION
	}
	var answer hadooppb.ListOpenFilesResponseProto
	err := c.call(ctx, "open files", "", "listOpenFiles", &hadooppb.ListOpenFilesRequestProto{
		Id: new(int64(after)), Types: []hadooppb.OpenFilesTypeProto{kind}, Path: &path,
	}, &answer)
	var out []OpenFile
	for _, e := range answer.GetEntries() {
		out = append(out, OpenFile{INode: metadata.INodeID(e.GetId()), Path: e.GetPath(), Client: e.GetClientName(), Host: e.GetClientMachine()})
	}
	return out, answer.GetHasMore(), err
}

// AllowSnapshot asks for snapshots of a directory.
func (c *Client) AllowSnapshot(ctx context.Context, path string, allow bool) error {
	if allow {
		return c.call(ctx, "allow snapshot", path, "allowSnapshot", &hadooppb.AllowSnapshotRequestProto{SnapshotRoot: &path}, new(hadooppb.AllowSnapshotResponseProto))
	}
	return c.call(ctx, "disallow snapshot", path, "disallowSnapshot", &hadooppb.DisallowSnapshotRequestProto{SnapshotRoot: &path}, new(hadooppb.DisallowSnapshotResponseProto))
}

// DatanodeInfo is what a datanode says of itself.
type DatanodeInfo struct {
	Software, Config string
	Uptime           time.Duration
}

// DatanodeInfo asks the datanode at an IPC address.
func (c *Client) DatanodeInfo(ctx context.Context, addr string) (DatanodeInfo, error) {
	var answer hadooppb.GetDatanodeInfoResponseProto
	err := c.at(ctx, "datanode", addr, clientDatanodeProtocol, "getDatanodeInfo", new(hadooppb.GetDatanodeInfoRequestProto), &answer)
	i := answer.GetLocalInfo()
	return DatanodeInfo{Software: i.GetSoftwareVersion(), Config: i.GetConfigVersion(), Uptime: time.Duration(i.GetUptime()) * time.Second}, err
}

// TriggerBlockReport has the datanode at an IPC address report to the namenodes.
func (c *Client) TriggerBlockReport(ctx context.Context, addr string, incremental bool) error {
	return c.at(ctx, "block report", addr, clientDatanodeProtocol, "triggerBlockReport", &hadooppb.TriggerBlockReportRequestProto{Incremental: &incremental}, new(hadooppb.TriggerBlockReportResponseProto))
}

// ServiceWish is what is to become of a datanode.
type ServiceWish int

// The wishes.
const (
	InService ServiceWish = iota
	Decommissioned
	InMaintenance
)

// SetDatanodes takes datanodes out of service, or back into it, and returns the addresses of those that are meant. Names are HOST,
// HOST:PORT of the data transfer, or uuids; life is after how long a maintenance ends by itself, 0: by hand.
func (c *Client) SetDatanodes(ctx context.Context, wish ServiceWish, life time.Duration, names ...string) ([]string, error) {
	var answer hadooppb.SetDatanodeStateResponseProto
	err := c.rpc.Call(ctx, operatorProtocol, "setDatanodeState", &hadooppb.SetDatanodeStateRequestProto{
		Datanodes: names, State: hadooppb.SetDatanodeStateRequestProto_StateProto(wish).Enum(), Duration: new(life.Milliseconds()),
	}, &answer)
	return answer.GetDatanodes(), wrap("datanodes", "", c.hinted(err))
}

// BalanceRequest is what a balancer wants.
type BalanceRequest struct {
	Session                  string
	Threshold                float64 // percent
	Include, Exclude, Source []string
	Stop                     bool
}

// Balanced is how far a balancer has come, with the namenode that leads now; sizes are in bytes.
type Balanced struct {
	Moved, Blocks, Moving, Left, Failed int64
	Over, Under                         int
}

// Balance begins, or goes on, to move replicas from full datanodes to empty ones, for ten seconds. metadata.ErrExist: another session
// does.
func (c *Client) Balance(ctx context.Context, r BalanceRequest) (Balanced, error) {
	var a hadooppb.BalanceResponseProto
	err := c.rpc.Call(ctx, operatorProtocol, "balance", &hadooppb.BalanceRequestProto{
		Session: &r.Session, Threshold: &r.Threshold, Include: r.Include, Exclude: r.Exclude, Source: r.Source, Stop: &r.Stop,
	}, &a)
	return Balanced{
		Moved: a.GetMoved(), Blocks: a.GetBlocks(), Moving: a.GetMoving(), Left: a.GetLeft(), Failed: a.GetFailed(), Over: int(a.GetOver()), Under: int(a.GetUnder()),
	}, wrap("balance", "", c.hinted(err))
}

// TransferLeadership has the namenode with an id or IPC address lead; empty: the one that is best.
func (c *Client) TransferLeadership(ctx context.Context, to string) error {
	err := c.rpc.Call(ctx, operatorProtocol, "transferLeadership", &hadooppb.TransferLeadershipRequestProto{To: &to}, new(hadooppb.TransferLeadershipResponseProto))
	return wrap("leadership", "", c.hinted(err))
}

// ServiceStatus is what a namenode says to haadmin.
type ServiceStatus struct {
	State string // active, standby, observer, initializing
	Ready bool   // to lead
	Why   string // it is not ready
}

// ServiceStatus asks the namenode at an address.
func (c *Client) ServiceStatus(ctx context.Context, addr string) (ServiceStatus, error) {
	var answer hadooppb.GetServiceStatusResponseProto
	err := c.at(ctx, "service status", addr, haServiceProtocol, "getServiceStatus", new(hadooppb.GetServiceStatusRequestProto), &answer)
	state := map[hadooppb.HAServiceStateProto]string{
		hadooppb.HAServiceStateProto_ACTIVE: "active", hadooppb.HAServiceStateProto_STANDBY: "standby", hadooppb.HAServiceStateProto_OBSERVER: "observer",
	}[answer.GetState()]
	if state == "" {
		state = "initializing"
	}
	return ServiceStatus{State: state, Ready: answer.GetReadyToBecomeActive(), Why: answer.GetNotReadyReason()}, err
}

// CheckHealth is nil while the namenode at an address can do its work.
func (c *Client) CheckHealth(ctx context.Context, addr string) error {
	return c.at(ctx, "health", addr, haServiceProtocol, "monitorHealth", new(hadooppb.MonitorHealthRequestProto), new(hadooppb.MonitorHealthResponseProto))
}

// Transition has the namenode at an address lead, or cease to.
func (c *Client) Transition(ctx context.Context, addr string, active bool) error {
	info := &hadooppb.HAStateChangeRequestInfoProto{ReqSource: hadooppb.HARequestSource_REQUEST_BY_USER.Enum()}
	if active {
		return c.at(ctx, "transition", addr, haServiceProtocol, "transitionToActive", &hadooppb.TransitionToActiveRequestProto{ReqInfo: info}, new(hadooppb.TransitionToActiveResponseProto))
	}
	return c.at(ctx, "transition", addr, haServiceProtocol, "transitionToStandby", &hadooppb.TransitionToStandbyRequestProto{ReqInfo: info}, new(hadooppb.TransitionToStandbyResponseProto))
}
