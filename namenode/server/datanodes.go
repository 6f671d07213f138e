package server

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/blockmanager"
)

// Limits of what a datanode may say at once.
const (
	maxMessage  = 32 << 20
	maxVolumes  = 1024
	maxIDLength = 255
)

// datanodes is the gRPC door. The secret's interceptors have made sure that the peer belongs to the cluster.
type datanodes struct {
	pb.UnimplementedDatanodesServer
	server *Server

	mu      sync.Mutex
	streams map[*stream]struct{}
}

// stream is an open heartbeat stream.
type stream struct {
	node namenode.NodeID
	kick chan struct{} // capacity 1: there may be orders
}

// Register implements pb.DatanodesServer.
func (d *datanodes) Register(ctx context.Context, r *pb.RegisterRequest) (*pb.RegisterResponse, error) {
	s := d.server
	id := s.cluster.Load()
	if id == nil {
		return nil, pb.Status(metadata.Errorf(metadata.ErrRetriable, "%s does not know yet which cluster it belongs to", s.config.ID))
	}
	if r.ClusterId != "" && r.ClusterId != id.cluster {
		return nil, status.Errorf(codes.FailedPrecondition, "datanode %s belongs to cluster %s, this is cluster %s",
			r.GetDatanode().GetUuid(), r.ClusterId, id.cluster)
	}
	n, err := nodeOf(r.Datanode)
	if err != nil {
		return nil, pb.Status(err)
	}
	if who, ok := security.PrincipalOf(ctx); ok && who.Server != nil {
		n.Machine = who.Server.Machine
	}
	volumes, err := volumesOf(r.Volumes)
	if err != nil {
		return nil, pb.Status(err)
	}
	if !s.admits(&n) {
		s.log.Warn("datanode refused: it is not in the list of those that may serve", "node", n.ID, "address", n.TransferAddr())
		return nil, pb.Status(notIncluded(&n))
	}
	s.soft.mu.Lock()
	if err := ctx.Err(); err != nil { // given up while it waited: a later one may have come, and say what volumes there are
		s.soft.mu.Unlock()
		return nil, pb.Status(err)
	}
	n.Rack = s.racks.Lookup(n.IP) // setRack waits for the lock
	now := time.Now()
	if other := s.soft.m.Twin(now, &n, r.Incarnation); other != nil {
		s.soft.mu.Unlock()
		s.log.Error("datanode refused: another one with its uuid lives; is its disk a copy?", "node", n.ID, "address", n.TransferAddr(), "lives", other.TransferAddr())
		return nil, pb.Status(metadata.Errorf(metadata.ErrRetriable, "datanode %s lives at %s: the volumes of the one at %s are a copy of its, or it has moved and is taken when the other one is silent",
			n.ID, other.TransferAddr(), n.TransferAddr()))
	}
	s.soft.m.Register(now, n, volumes, r.Incarnation)
	s.soft.mu.Unlock()
	s.log.Info("datanode registered", "node", n.ID, "address", n.TransferAddr(), "volumes", len(volumes), "version", r.SoftwareVersion)
	return &pb.RegisterResponse{
		ClusterId: id.cluster, BlockPool: id.pool, HeartbeatMs: s.config.Heartbeat.Milliseconds(), Trust: s.currentTrust().message,
	}, nil
}

// Heartbeat implements pb.DatanodesServer: every beat is answered, and orders come whenever there are some.
func (d *datanodes) Heartbeat(g grpc.BidiStreamingServer[pb.Beat, pb.Orders]) error {
	first, err := g.Recv()
	if err != nil {
		return ended(err)
	}
	id := namenode.NodeID(first.DatanodeUuid)
	st := &stream{node: id, kick: make(chan struct{}, 1)}
	d.mu.Lock()
	if d.streams == nil {
		d.streams = map[*stream]struct{}{}
	}
	d.streams[st] = struct{}{}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.streams, st)
		d.mu.Unlock()
	}()

	// One goroutine sends; this one receives, and ends when the stream does.
	beats := make(chan bool) // whether the node is known
	sent := make(chan error, 1)
	go func() { sent <- d.send(g, id, st, beats) }()
	for beat := first; ; {
		known, err := d.beat(id, beat)
		if err != nil {
			return pb.Status(err)
		}
		select {
		case beats <- known:
		case err := <-sent:
			return ended(err)
		}
		if beat, err = g.Recv(); err != nil {
			return ended(err)
		}
	}
}

// ended is the status of a stream that is over: nil when the peer closed it.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (d *datanodes) beat(id namenode.NodeID, b *pb.Beat) (known bool, err error) {
	if namenode.NodeID(b.DatanodeUuid) != id {
		return false, metadata.Errorf(metadata.ErrInvalidArgument, "a stream of datanode %s carries a beat of %s", id, b.DatanodeUuid)
	}
	volumes, err := volumesOf(b.Volumes)
	if err != nil {
		return false, err
	}
	s := d.server
	rebuilds := progressOf(b.Rebuilds)
	if r := s.reign.Load(); r != nil {
		r.ends.progress(time.Now(), id, rebuilds)
		for _, x := range b.NotCopied[:min(len(b.NotCopied), mostNotCopied)] {
			r.ends.notTaken(time.Now(), id, metadata.Block{ID: metadata.BlockID(x.GetBlock().GetId()), Generation: metadata.Generation(x.GetBlock().GetGeneration())}, namenode.NodeID(x.Target))
		}
	}
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	if n, ok := s.soft.m.Node(id); ok && !s.admits(n) {
		return false, notIncluded(n)
	}
	s.soft.m.BeatCache(id, b.CacheCapacity, b.CacheUsed)
	s.soft.m.BeatProgress(time.Now(), id, progressOf(b.Copies), rebuilds)
	for _, x := range b.NotCopied[:min(len(b.NotCopied), mostNotCopied)] {
		s.soft.m.NotCopied(time.Now(), id, metadata.BlockID(x.GetBlock().GetId()), metadata.Generation(x.GetBlock().GetGeneration()), namenode.NodeID(x.Target))
	}
	return s.soft.m.Beat(time.Now(), id, volumes, int(b.Xceivers)), nil
}

// send answers beats and passes on orders until the stream ends.
func (d *datanodes) send(g grpc.BidiStreamingServer[pb.Beat, pb.Orders], id namenode.NodeID, st *stream, beats <-chan bool) error {
	var told uint64 // the version of the trust
	for {
		answer, known := false, true
		select {
		case known = <-beats:
			answer = true
		case <-st.kick:
		case <-g.Context().Done():
			return g.Context().Err()
		}
		orders, work := d.orders(id)
		if !known {
			orders.Report, work = true, true
		}
		orders.TrustVersion = d.server.currentTrust().message.Version
		if !answer && !work && orders.TrustVersion == told {
			continue
		}
		if err := g.Send(orders); err != nil {
			return err
		}
		told = orders.TrustVersion
	}
}

// orders is what a node is told now, and whether there is anything to do in it.
func (d *datanodes) orders(id namenode.NodeID) (*pb.Orders, bool) {
	s := d.server
	r := s.reign.Load()
	if r == nil {
		// Without a term: a member that is cut off may be in a higher one than the leader, whose orders must count.
		return &pb.Orders{}, false
	}
	s.soft.mu.Lock()
	o := s.soft.m.Orders(time.Now(), id)
	s.soft.mu.Unlock()
	if s.reign.Load() != r {
		return &pb.Orders{}, false // given by one who does not lead any more; they are found again
	}
	m := &pb.Orders{Term: r.term, Leader: true, Report: o.Report, Bandwidth: s.balancerBandwidth()}
	for _, x := range o.Replicate {
		r := &pb.Replicate{Block: wireBlock(x.Block), Targets: wireNodes([]*namenode.Node{x.Target}), Types: []uint32{uint32(x.Type)}}
		if x.Balance {
			r.Bandwidth = m.Bandwidth
		}
		m.Replicate = append(m.Replicate, r)
	}
	for _, x := range o.Delete {
		m.Delete = append(m.Delete, wireBlock(x))
	}
	for _, x := range o.Discard {
		m.Discard = append(m.Discard, wireBlock(x))
	}
	for _, x := range o.Verify {
		m.Verify = append(m.Verify, wireBlock(x))
	}
	for _, x := range o.Rebuild {
		m.Rebuild = append(m.Rebuild, &pb.Rebuild{
			Group: wireBlock(x.Group), Erasure: uint32(x.Erasure), Sources: wireParts(x.Sources), Targets: wireParts(x.Targets),
		})
	}
	for _, x := range o.Cache {
		m.Cache = append(m.Cache, wireBlock(x))
	}
	for _, x := range o.Uncache {
		m.Uncache = append(m.Uncache, int64(x))
	}
	seals := r.ends.orders(time.Now(), id)
	m.Rebuild = append(m.Rebuild, seals...)
	for _, x := range o.Recover {
		r := &pb.Recover{
			Block: wireBlock(x.Block), RecoveryId: uint64(x.RecoveryID), Replicas: wireNodes(x.Replicas),
			PatienceOver: x.PatienceOver,
		}
		r.Truncate, r.Source = s.truncation(x.Block.ID, x.RecoveryID)
		r.Erasure = uint32(x.Erasure)
		for _, p := range x.Parts {
			r.Replicas, r.Units = append(r.Replicas, wireNode(p.Node)), append(r.Units, uint32(p.Unit))
		}
		for _, id := range x.Missing {
			r.Missing = append(r.Missing, string(id))
		}
		m.Recover = append(m.Recover, r)
	}
	return m, !o.Empty() || len(seals) > 0
}

// kick makes the streams of these nodes look for orders.
func (s *Server) kick(nodes []namenode.NodeID) {
	if len(nodes) == 0 {
		return
	}
	due := make(map[namenode.NodeID]bool, len(nodes))
	for _, id := range nodes {
		due[id] = true
	}
	d := s.datanodes
	d.mu.Lock()
	defer d.mu.Unlock()
	for st := range d.streams {
		if due[st.node] {
			select {
			case st.kick <- struct{}{}:
			default:
			}
		}
	}
}

// kickAll makes every stream look for orders.
func (s *Server) kickAll() {
	d := s.datanodes
	d.mu.Lock()
	defer d.mu.Unlock()
	for st := range d.streams {
		select {
		case st.kick <- struct{}{}:
		default:
		}
	}
}

// unknown is what a datanode hears that has to register first.
func unknown(id string) error {
	return pb.Status(metadata.Errorf(metadata.ErrNotExist, "datanode %s is not registered here", id))
}

// reportStep is how many replicas of a full report, or changes, are taken in at a time under the mutex: 1-3 ms.
const reportStep = 1000

// ReportBlocks implements pb.DatanodesServer.
func (d *datanodes) ReportBlocks(g grpc.ClientStreamingServer[pb.BlockReport, pb.BlockReportResponse]) error {
	s := d.server
	var replicas []namenode.Replica
	for {
		chunk, err := g.Recv()
		if errors.Is(err, io.EOF) {
			return g.SendAndClose(&pb.BlockReportResponse{})
		}
		if err != nil {
			return err
		}
		if len(chunk.VolumeId) > maxIDLength {
			return pb.Status(metadata.Errorf(metadata.ErrInvalidArgument, "a volume id of %d bytes", len(chunk.VolumeId)))
		}
		replicas = replicas[:0]
		for _, r := range chunk.Replicas {
			state := namenode.ReplicaState(r.State)
			if r.Block == nil || state < namenode.Finalized || state > namenode.Waiting {
				return pb.Status(metadata.Errorf(metadata.ErrInvalidArgument, "a replica without block or state"))
			}
			replicas = append(replicas, namenode.Replica{Block: fromWire(r.Block), State: state})
		}
		for rest := replicas; ; {
			step := rest[:min(len(rest), reportStep)]
			rest = rest[len(step):]
			s.soft.mu.Lock()
			known := s.soft.m.Report(time.Now(), namenode.NodeID(chunk.DatanodeUuid), chunk.ReportId, namenode.VolumeID(chunk.VolumeId), step, chunk.Last && len(rest) == 0)
			woken := s.soft.satisfied()
			s.soft.mu.Unlock()
			wake(woken)
			if !known {
				return unknown(chunk.DatanodeUuid)
			}
			if len(rest) == 0 {
				break
			}
		}
		if chunk.Last {
			s.log.Info("full block report", "node", chunk.DatanodeUuid)
			if s.reign.Load() != nil {
				s.leaveSafeMode()
			}
		}
	}
}

// BlocksChanged implements pb.DatanodesServer. What a datanode has given up to tell is not taken in: it registers anew and reports all that it has, and what changes after that is newer.
func (d *datanodes) BlocksChanged(ctx context.Context, r *pb.BlocksChangedRequest) (*pb.BlocksChangedResponse, error) {
	s := d.server
	changes := make([]namenode.Change, 0, len(r.Changes))
	for _, c := range r.Changes {
		kind := namenode.ChangeKind(c.Kind)
		if c.Block == nil || kind < namenode.Receiving || kind > namenode.Uncached || len(c.VolumeId) > maxIDLength || len(c.Instead) > maxIDLength {
			return nil, pb.Status(metadata.Errorf(metadata.ErrInvalidArgument, "a change without block or kind"))
		}
		changes = append(changes, namenode.Change{Kind: kind, Block: fromWire(c.Block), Volume: namenode.VolumeID(c.VolumeId), Instead: namenode.NodeID(c.Instead)})
	}
	for rest := changes; ; {
		step := rest[:min(len(rest), reportStep)]
		rest = rest[len(step):]
		s.soft.mu.Lock()
		if err := ctx.Err(); err != nil { // while it waited
			s.soft.mu.Unlock()
			return nil, pb.Status(err)
		}
		known := s.soft.m.Changes(time.Now(), namenode.NodeID(r.DatanodeUuid), step)
		woken := s.soft.satisfied()
		s.soft.mu.Unlock()
		wake(woken)
		if !known {
			return nil, unknown(r.DatanodeUuid)
		}
		if len(rest) == 0 {
			return &pb.BlocksChangedResponse{}, nil
		}
	}
}

// CommitBlockSynchronization implements pb.DatanodesServer.
func (d *datanodes) CommitBlockSynchronization(ctx context.Context, r *pb.CommitBlockSynchronizationRequest) (*pb.CommitBlockSynchronizationResponse, error) {
	s := d.server
	if s.reign.Load() == nil {
		return nil, pb.Status(namenode.ErrStandbyWrite)
	}
	if r.Block == nil {
		return nil, pb.Status(metadata.Errorf(metadata.ErrInvalidArgument, "the request names no block"))
	}
	b := fromWire(r.Block)
	if b.ID.Striped() && (b.ID.Group() != b.ID || len(r.Units) != len(r.Locations)) {
		return nil, pb.Status(metadata.Errorf(metadata.ErrInvalidArgument, "a recovery of %v with %d locations of %d internal blocks", b, len(r.Locations), len(r.Units)))
	}
	lost := false
	if r.DeleteBlock {
		units := slices.Clone(r.Units)
		slices.Sort(units)
		var err error
		if lost, err = s.mayDrop(b.ID, len(slices.Compact(units))); err != nil {
			return nil, pb.Status(err)
		}
	} else {
		if err := s.mayShorten(b.ID, r); err != nil {
			return nil, pb.Status(err)
		}
		s.expectRecovered(b.ID, r)
	}
	done := make(chan error, 1)
	s.send(&logpb.Command{Op: &logpb.Command_CommitRecovery{CommitRecovery: &logpb.CommitRecovery{
		Block: blockOf(b), RecoveryId: r.RecoveryId, Length: r.Length, Close: r.Close, DeleteBlock: r.DeleteBlock, AcceptLoss: lost,
	}}}, func(_ *namespace.Result, err error) { done <- err })
	select {
	case err := <-done:
		if err != nil {
			return nil, pb.Status(err)
		}
		s.log.Info("block recovered", "block", b, "recovery", r.RecoveryId, "length", r.Length, "deleted", r.DeleteBlock)
		return &pb.CommitBlockSynchronizationResponse{}, nil
	case <-ctx.Done():
		return nil, pb.Status(ctx.Err())
	}
}

// expectRecovered notes where what a recovery has made of a block lies: the datanodes report it soon.
func (s *Server) expectRecovered(id metadata.BlockID, r *pb.CommitBlockSynchronizationRequest) {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	var at []namenode.Location
	var parts []blockmanager.Placed
	for i, n := range r.Locations {
		l, ok := s.soft.m.Location(namenode.NodeID(n.GetUuid()), "")
		if !ok {
			continue
		}
		if at = append(at, l); id.Striped() {
			parts = append(parts, blockmanager.Placed{Unit: int(min(r.Units[i], stripe.MaxUnits)), Location: l})
		}
	}
	switch {
	case len(at) == 0:
	case id.Striped():
		s.soft.m.ExpectGroup(id, parts)
	default:
		s.soft.m.Expect(id, at)
	}
}

// mayDrop refuses to drop a block because the primary of its recovery found no replica, or too few internal blocks of a group, while other datanodes may have
// one. Found is how many internal blocks it has found. The namespace refuses for a block of which bytes were promised, unless lost: an operator gave up a datanode that had it.
func (s *Server) mayDrop(id metadata.BlockID, found int) (lost bool, err error) {
	o, ok := s.ns.BlockOwner(id)
	if !ok {
		return false, nil
	}
	f, ok := s.ns.FileByID(o.INode)
	if !ok || !f.UnderConstruction {
		return false, nil
	}
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	if s.soft.m.Unwritten(id, f.Nodes, found) {
		return s.soft.m.GivenUp(f.Nodes), nil
	}
	return false, metadata.Errorf(metadata.ErrRetriable, "block %v of %s is not dropped: datanodes %v may have it", o.Block, f.Path, s.soft.m.Late(f.Nodes))
}

// mayShorten refuses to end the recovery of a group with fewer bytes than are known of it, unless those who may have more have been waited for long enough, or an operator gave one of them up. It
// is looked at here, and not by the command, which means the same to all members: what is known of a block under recovery changes with the id of the recovery only, which the command compares.
func (s *Server) mayShorten(id metadata.BlockID, r *pb.CommitBlockSynchronizationRequest) error {
	o, ok := s.ns.BlockOwner(id)
	if !ok || !id.Striped() {
		return nil
	}
	f, ok := s.ns.FileByID(o.INode)
	if !ok || !f.UnderConstruction || uint64(f.RecoveryID) != r.RecoveryId || len(f.Blocks) == 0 {
		return nil // the command says what is wrong
	}
	last := f.Blocks[len(f.Blocks)-1]
	if last.ID != id || r.Length >= last.Length {
		return nil
	}
	s.soft.mu.Lock()
	accepted := s.soft.m.Waited(time.Now(), id) || s.soft.m.GivenUp(f.Nodes)
	s.soft.mu.Unlock()
	if !accepted {
		return metadata.Errorf(metadata.ErrIO, "block %v of %s is not cut to %d bytes: %d were acknowledged", last, f.Path, r.Length, last.Length)
	}
	s.log.Error("the last block group of a file loses bytes that were acknowledged: too few of its internal blocks have them, and the others were waited for long enough, or given up",
		"file", f.Path, "block", last, "length", r.Length)
	return nil
}

func nodeOf(d *pb.DatanodeID) (namenode.Node, error) {
	n := namenode.Node{
		ID: namenode.NodeID(d.GetUuid()), IP: d.GetIp(), Host: d.GetHost(),
		TransferPort: d.GetTransferPort(), HTTPPort: d.GetHttpPort(), IPCPort: d.GetIpcPort(), GRPCPort: d.GetGrpcPort(),
	}
	ip := net.ParseIP(n.IP)
	switch {
	case n.ID == "" || n.ID == namenode.NoNode || len(n.ID) > maxIDLength:
		return n, metadata.Errorf(metadata.ErrInvalidArgument, "a datanode registers without a uuid")
	case ip == nil || ip.IsUnspecified():
		return n, metadata.Errorf(metadata.ErrInvalidArgument, "datanode %s registers with address %q, which clients cannot dial", n.ID, n.IP)
	case n.TransferPort == 0 || n.TransferPort > 65535 || n.HTTPPort > 65535 || n.IPCPort > 65535 || n.GRPCPort > 65535:
		return n, metadata.Errorf(metadata.ErrInvalidArgument, "datanode %s registers with a port out of range", n.ID)
	case len(n.Host) > maxIDLength:
		return n, metadata.Errorf(metadata.ErrInvalidArgument, "datanode %s registers with a host name of %d bytes", n.ID, len(n.Host))
	}
	if n.Host == "" {
		n.Host = n.IP
	}
	return n, nil
}

func volumesOf(list []*pb.Volume) ([]namenode.Volume, error) {
	if len(list) > maxVolumes {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "a datanode with %d volumes", len(list))
	}
	out := make([]namenode.Volume, len(list))
	for i, v := range list {
		if v.Id == "" || len(v.Id) > maxIDLength {
			return nil, metadata.Errorf(metadata.ErrInvalidArgument, "a volume without an id")
		}
		out[i] = namenode.Volume{
			ID: namenode.VolumeID(v.Id), Type: namenode.ParseStorageType(v.Type),
			Capacity: v.Capacity, Used: v.Used, Remaining: v.Remaining, Failed: v.Failed, Slow: v.Slow,
		}
	}
	return out, nil
}

// mostNotCopied is how many copies that did not come about a beat may tell of.
const mostNotCopied = 1024

func progressOf(list []*pb.Progress) []blockmanager.Progress {
	out := make([]blockmanager.Progress, len(list))
	for i, p := range list {
		out[i] = blockmanager.Progress{ID: metadata.BlockID(p.GetBlock().GetId()), Generation: metadata.Generation(p.GetBlock().GetGeneration()), Target: namenode.NodeID(p.Target), Percent: int(min(p.Percent, 100)), Waits: p.Waits}
	}
	return out
}

func fromWire(b *pb.Block) metadata.Block {
	return metadata.Block{ID: metadata.BlockID(b.Id), Generation: metadata.Generation(b.Generation), Length: b.Length}
}

func wireBlock(b metadata.Block) *pb.Block {
	return &pb.Block{Id: int64(b.ID), Generation: uint64(b.Generation), Length: b.Length}
}

func wireNodes(ns []*namenode.Node) []*pb.DatanodeID {
	out := make([]*pb.DatanodeID, len(ns))
	for i, n := range ns {
		out[i] = wireNode(n)
	}
	return out
}

func wireNode(n *namenode.Node) *pb.DatanodeID {
	return &pb.DatanodeID{
		Uuid: string(n.ID), Ip: n.IP, Host: n.Host,
		TransferPort: n.TransferPort, HttpPort: n.HTTPPort, IpcPort: n.IPCPort, GrpcPort: n.GRPCPort,
	}
}

func wireParts(parts []blockmanager.Part) []*pb.Part {
	out := make([]*pb.Part, len(parts))
	for i, p := range parts {
		out[i] = &pb.Part{Unit: uint32(p.Unit), Node: wireNode(p.Node), Type: uint32(p.Type)}
	}
	return out
}
