package dfs

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// NamenodeState is what one namenode says of itself.
type NamenodeState struct {
	Address string
	// State is "active", "standby", "observer" or "initializing"; empty with Err.
	State string
	Err   error
}

// dialConfig is for a connection to a server of that role.
func (c *Client) dialConfig(protocol string, role authority.Role) hrpc.DialConfig {
	dial := hrpc.DialConfig{
		Protocol: protocol, User: c.config.User, RealUser: c.config.RealUser, Bearer: c.config.Bearer, Qualities: c.config.Qualities,
		Dial: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return c.config.Dial(ctx, string(role), addr)
		},
	}
	if c.config.Token != nil {
		dial.Token = func(string) (hrpc.Token, bool) {
			t := c.config.Token
			if c.config.Refresh != nil {
				t = cmp.Or(c.config.Refresh(), t)
			}
			return hrpc.Token{Identifier: t.Identifier, Password: t.Password}, true
		}
	}
	if c.config.Login != nil && c.config.Token == nil {
		dial.Login = c.config.exchange
	}
	return dial
}

// HAState asks every namenode for its state, all at once.
func (c *Client) HAState(ctx context.Context) []NamenodeState {
	states := make([]NamenodeState, len(c.config.Namenodes))
	var wg sync.WaitGroup
	for i, addr := range c.config.Namenodes {
		wg.Go(func() {
			state, err := c.haState(ctx, addr)
			states[i] = NamenodeState{Address: addr, State: state, Err: err}
		})
	}
	wg.Wait()
	return states
}

// haState asks a namenode for its state on a connection of its own.
func (c *Client) haState(ctx context.Context, addr string) (string, error) {
	conn, err := hrpc.Dial(ctx, addr, c.dialConfig(clientProtocol, authority.Namenode))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	var answer hadooppb.GetHAServiceStateResponseProto
	err = conn.Call(ctx, clientProtocol, "getHAServiceState", new(hadooppb.GetHAServiceStateRequestProto), &answer)
	if remote, ok := errors.AsType[*hrpc.RemoteError](err); ok && strings.Contains(remote.Message, "HA for namenode is not enabled") {
		return "active", nil // Hadoop's only namenode
	}
	if err != nil {
		return "", wrap("state of", addr, err)
	}
	return strings.ToLower(answer.GetState().String()), nil
}

// Datanode is one datanode as the namenode knows it; sizes are in bytes.
type Datanode struct {
	UUID, Hostname, IP        string
	TransferPort, HTTPPort    int
	IPCPort                   int
	Rack                      string
	Capacity, Used, Remaining int64
	Blocks                    int
	// NonDFS is what others have on its volumes, in bytes.
	NonDFS int64
	// CacheCapacity is how many bytes of replicas it may keep in memory, CacheUsed how many it does.
	CacheCapacity, CacheUsed int64
	// Transfers are under way.
	Transfers int
	// LastContact is when it was heard of last, LastReport when its last full report ended; 0: never.
	LastContact, LastReport metadata.Time
	// Admin is what an operator has made of it.
	Admin namenode.AdminState
}

// DatanodeState selects datanodes of a report.
type DatanodeState int

// The states, with HDFS's numbers.
const (
	AllDatanodes  DatanodeState = 1
	LiveDatanodes DatanodeState = 2
	DeadDatanodes DatanodeState = 3
	// DecommissioningDatanodes are on their way out of service, EnteringMaintenance on their way into maintenance, and InMaintenanceNow
	// have arrived there.
	DecommissioningDatanodes DatanodeState = 4
	EnteringMaintenance      DatanodeState = 5
	InMaintenanceNow         DatanodeState = 6
	// SlowDatanodes have a volume of which a call has not come back for seconds. It is no number of HDFS's: they are asked for in another way.
	SlowDatanodes DatanodeState = -1
)

// Datanodes lists the datanodes of a state.
func (c *Client) Datanodes(ctx context.Context, state DatanodeState) ([]Datanode, error) {
	var err error
	var found []*hadooppb.DatanodeInfoProto
	if state == SlowDatanodes {
		var answer hadooppb.GetSlowDatanodeReportResponseProto
		err = c.call(ctx, "slow datanode report", "", "getSlowDatanodeReport", &hadooppb.GetSlowDatanodeReportRequestProto{}, &answer)
		found = answer.GetDatanodeInfoProto()
	} else {
		var answer hadooppb.GetDatanodeReportResponseProto
		err = c.call(ctx, "datanode report", "", "getDatanodeReport",
			&hadooppb.GetDatanodeReportRequestProto{Type: hadooppb.DatanodeReportTypeProto(state).Enum()}, &answer)
		found = answer.GetDi()
	}
	if err != nil {
		return nil, err
	}
	nodes := make([]Datanode, len(found))
	for i, p := range found {
		nodes[i] = datanodeOf(p)
	}
	return nodes, nil
}

func datanodeOf(p *hadooppb.DatanodeInfoProto) Datanode {
	return Datanode{
		UUID:          p.GetId().GetDatanodeUuid(),
		Hostname:      p.GetId().GetHostName(),
		IP:            p.GetId().GetIpAddr(),
		TransferPort:  int(p.GetId().GetXferPort()),
		HTTPPort:      int(p.GetId().GetInfoPort()),
		IPCPort:       int(p.GetId().GetIpcPort()),
		Rack:          p.GetLocation(),
		Capacity:      int64(p.GetCapacity()),
		Used:          int64(p.GetDfsUsed()),
		Remaining:     int64(p.GetRemaining()),
		Blocks:        int(p.GetNumBlocks()),
		NonDFS:        int64(p.GetNonDfsUsed()),
		Transfers:     int(p.GetXceiverCount()),
		CacheCapacity: int64(p.GetCacheCapacity()),
		CacheUsed:     int64(p.GetCacheUsed()),
		LastContact:   metadata.Time(p.GetLastUpdate()),
		LastReport:    metadata.Time(p.GetLastBlockReportTime()),
		Admin:         namenode.AdminState(p.GetAdminState()),
	}
}

// BlockLocation is where a block of a file lies.
type BlockLocation struct {
	Block metadata.Block
	// Offset of the block in the file, Length of what it holds, in bytes.
	Offset, Length int64
	Datanodes      []Datanode
	// Corrupt: no replica is good.
	Corrupt bool
}

// BlockLocations says where the blocks lie that overlap length bytes at offset.
func (c *Client) BlockLocations(ctx context.Context, name string, offset, length int64) ([]BlockLocation, error) {
	name, err := clean("locate", name)
	if err != nil {
		return nil, err
	}
	located, err := c.locate(ctx, c.read, name, offset, length)
	if err != nil {
		return nil, err
	}
	var locations []BlockLocation
	for _, b := range located.GetBlocks() {
		l := BlockLocation{
			Block: metadata.Block{
				ID:         metadata.BlockID(b.GetB().GetBlockId()),
				Generation: metadata.Generation(b.GetB().GetGenerationStamp()),
				Length:     int64(b.GetB().GetNumBytes()),
			},
			Offset:  int64(b.GetOffset()),
			Length:  int64(b.GetB().GetNumBytes()),
			Corrupt: b.GetCorrupt(),
		}
		for _, node := range b.GetLocs() {
			l.Datanodes = append(l.Datanodes, datanodeOf(node))
		}
		locations = append(locations, l)
	}
	return locations, nil
}

// locate asks for the blocks that overlap length bytes at offset of a cleaned path, by read or, where what any namenode says will not do, by call.
func (c *Client) locate(ctx context.Context, ask func(ctx context.Context, op, name, method string, request, response hrpc.Message) error, name string, offset, length int64) (*hadooppb.LocatedBlocksProto, error) {
	if offset < 0 || length < 0 {
		return nil, &Error{Op: "locate", Path: name, Kind: metadata.ErrInvalidArgument, Message: "negative offset or length"}
	}
	var answer hadooppb.GetBlockLocationsResponseProto
	err := ask(ctx, "open", name, "getBlockLocations",
		&hadooppb.GetBlockLocationsRequestProto{Src: &name, Offset: new(uint64(offset)), Length: new(uint64(length)), Tails: new(true)}, &answer)
	if err != nil {
		return nil, err
	}
	located := answer.GetLocations()
	if located == nil {
		return nil, notExist("open", name)
	}
	if located.GetFileEncryptionInfo() != nil {
		return nil, &Error{Op: "open", Path: name, Kind: metadata.ErrUnsupported, Message: "encrypted files are not supported"}
	}
	if located.GetEcPolicy().GetId() == 0 && slices.ContainsFunc(located.GetBlocks(), striped) {
		return nil, &Error{Op: "open", Path: name, Kind: metadata.ErrIO, Message: "the namenode gave block groups without an erasure coding policy"}
	}
	return located, nil
}

// visibleLength asks the datanodes of a block that is being written how much of it can be read. A block that no datanode
// has begun yet has length zero.
func (c *Client) visibleLength(ctx context.Context, name string, b *hadooppb.LocatedBlockProto) (int64, error) {
	length, causes := firstAnswer(ctx, c, c.preferred(b.GetLocs()), func(ctx context.Context, node *hadooppb.DatanodeInfoProto) (int64, error) {
		return c.visibleLengthAt(ctx, node.GetId(), b.GetB())
	})
	if causes == nil && len(b.GetLocs()) > 0 {
		return length, nil
	}
	if ctx.Err() != nil {
		return 0, wrap("open", name, ctx.Err())
	}
	absent := 0
	for _, err := range causes {
		if errors.Is(err, metadata.ErrReplicaNotFound) {
			absent++
		}
	}
	if absent == len(b.GetLocs()) && b.GetB().GetNumBytes() == 0 {
		return 0, nil
	}
	if len(b.GetLocs()) == 0 {
		causes = append(causes, errors.New("no datanode that has it is there"))
	}
	return 0, &Error{
		Op: "open", Path: name, Kind: metadata.ErrIO,
		Message: "cannot obtain the length of the block being written: " + errors.Join(causes...).Error(),
	}
}

func (c *Client) visibleLengthAt(ctx context.Context, id *hadooppb.DatanodeIDProto, b *hadooppb.ExtendedBlockProto) (int64, error) {
	addr := ipcAddr(id, c.config.UseHostname)
	var answer hadooppb.GetReplicaVisibleLengthResponseProto
	err := c.callDatanode(ctx, addr, clientDatanodeProtocol, "getReplicaVisibleLength", &hadooppb.GetReplicaVisibleLengthRequestProto{Block: b}, &answer)
	if err != nil {
		return 0, wrap("length at", addr, err)
	}
	return int64(answer.GetLength()), nil
}
