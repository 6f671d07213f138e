package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/gohops/hops/datanode"
	datanodepb "github.com/gohops/hops/datanode/api/v1"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// Time-outs of a block recovery.
const (
	peerTime   = 4 * time.Second  // for each question to another datanode; the namenode waits 10 s for the whole (what Server.peerTime is, but in tests)
	commitTime = 30 * time.Second // to find a leader that takes the result
	settleTime = 10 * time.Second // for what works on replicas when the datanode ends
)

// offer is what a datanode has of the block in recovery.
type offer struct {
	node  *pb.DatanodeID
	block metadata.Block
	state datanode.ReplicaState
}

// recoverBlock is the primary's part of a block recovery (HDFS's append design, HDFS-265):
//
//  1. every replica's writer is stopped and the replica fenced with the recovery id;
//  2. decide says which replicas take part and how long the block is;
//  3. they are cut to that, restamped with the recovery id and finalized;
//  4. the leader is told.
//
// With truncate, 1 + a length, the block is cut to that length in step 2: the file is being truncated.
//
// With a source the block is made of another one, which copyBlock does. Groups are recoverGroup's.
//
// A recovery that fails is tried again by the namenode under a higher id.
func (s *Server) recoverBlock(ctx context.Context, order *pb.Recover) {
	b, recovery, truncate := blockOf(order.Block), metadata.Generation(order.RecoveryId), order.Truncate
	log := s.log.With("block", b.String(), "recovery", uint64(recovery))
	if b.ID.Striped() {
		s.recoverGroup(ctx, order, log)
		return
	}
	if order.Source != nil {
		s.copyBlock(ctx, order, log)
		return
	}
	offers, silent, err := s.collect(ctx, b, recovery, order.Replicas)
	if err != nil {
		log.Warn("block recovery given up", "err", err)
		return
	}
	for _, id := range order.Missing {
		silent = append(silent, fmt.Errorf("%s is dead", id))
	}
	part, length, err := decide(b, offers)
	if err == nil && len(silent) > 0 {
		if err = worthWaiting(b, part, length); err != nil && order.PatienceOver && (len(part) > 0 || b.Length == 0) {
			log.Error("block recovery goes on without datanodes that may have more of the block: they were waited for long enough, and what they come back with goes to their trash",
				"length", length, "reason", err, "absent", errors.Join(silent...))
			err = nil
		}
		if err != nil {
			err = fmt.Errorf("%w, and some datanodes do not answer: %w", err, errors.Join(silent...))
		}
	}
	if cut := truncate - 1; err == nil && truncate > 0 {
		if len(part) == 0 || length < cut {
			err = fmt.Errorf("the replicas have %d bytes, %d are to stay", length, cut)
		}
		length = cut
	}
	if err != nil {
		log.Warn("block recovery failed", "err", err)
		return
	}
	request := &pb.CommitBlockSynchronizationRequest{Block: wireBlock(b), RecoveryId: uint64(recovery), Length: length, Close: true}
	if len(part) == 0 {
		request.DeleteBlock = true
	} else {
		request.Locations = s.update(ctx, b, recovery, length, part, 0)
		if len(request.Locations) == 0 {
			log.Warn("block recovery failed: no replica could be updated")
			return
		}
	}
	if err := s.commit(ctx, request); err != nil {
		log.Warn("block recovery not committed", "err", err)
		return
	}
	log.Info("block recovered", "length", length, "replicas", len(request.Locations), "deleted", request.DeleteBlock)
}

// concerned are the replicas of this datanode on which the primary of a recovery will work.
func (s *Server) concerned(order *pb.Recover) []metadata.BlockID {
	id := blockOf(order.Block).ID
	if order.Source != nil {
		return []metadata.BlockID{blockOf(order.Source).ID, id}
	}
	ids := []metadata.BlockID{id}
	for i, d := range order.Replicas {
		if id.Striped() && i < len(order.Units) && d.GetUuid() == s.id.Uuid {
			ids = append(ids, id.Internal(int(min(order.Units[i], stripe.MaxUnits))))
		}
	}
	return ids
}

// collect asks all replicas at once. silent holds why some did not answer; a replica that is in a newer recovery ends
// this one.
func (s *Server) collect(ctx context.Context, b metadata.Block, recovery metadata.Generation, nodes []*pb.DatanodeID) (offers []offer, silent []error, err error) {
	answers := make([]*offer, len(nodes))
	errs := make([]error, len(nodes))
	var g sync.WaitGroup
	for i, d := range nodes {
		g.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, s.peerTime)
			defer cancel()
			var r datanode.Replica
			r, _, errs[i] = s.initReplica(ctx, d, b, recovery)
			if errs[i] == nil {
				answers[i] = &offer{node: d, block: r.Block, state: r.State}
			}
		})
	}
	g.Wait()
	for i := range nodes {
		switch e := errs[i]; {
		case e == nil:
			offers = append(offers, *answers[i])
		case errors.Is(e, metadata.ErrRecoveryInProgress):
			return nil, nil, fmt.Errorf("%s: %w", nodes[i].GetUuid(), e)
		case errors.Is(e, metadata.ErrReplicaNotFound):
		default:
			silent = append(silent, fmt.Errorf("%s: %w", nodes[i].GetUuid(), e))
		}
	}
	if len(silent) == len(nodes) {
		return nil, nil, fmt.Errorf("no datanode answers: %w", errors.Join(silent...))
	}
	return offers, silent, nil
}

// initReplica asks one datanode. Decided is how long the group of an internal block was to be by the earlier recovery that has cut it; 0: that is not known.
func (s *Server) initReplica(ctx context.Context, d *pb.DatanodeID, b metadata.Block, recovery metadata.Generation) (r datanode.Replica, decided int64, err error) {
	if d.GetUuid() == s.id.Uuid {
		r, err := s.answered(ctx, func() (datanode.Replica, error) { return s.store.InitRecovery(b, recovery) })
		return r, s.decided.of(r.Block), err
	}
	peer, release, err := s.peers.get(d)
	if err != nil {
		return r, 0, err
	}
	defer release()
	m, err := peer.InitReplicaRecovery(ctx, &datanodepb.InitReplicaRecoveryRequest{Block: wireBlock(b), RecoveryId: uint64(recovery)})
	if err != nil {
		return r, 0, pb.FromStatus(err)
	}
	r.Block = blockOf(m.Block)
	switch m.State {
	case pb.ReplicaState_FINALIZED:
		r.State = datanode.Finalized
	case pb.ReplicaState_RBW:
		r.State = datanode.RBW
	case pb.ReplicaState_RWR:
		r.State = datanode.RWR
	default:
		return r, 0, metadata.Errorf(metadata.ErrIO, "replica in state %v", m.State)
	}
	return r, m.GroupLength, nil
}

// answered is the result of f, or an error when ctx is done before: this datanode's own disk may not answer either.
func (s *Server) answered(ctx context.Context, f func() (datanode.Replica, error)) (datanode.Replica, error) {
	type result struct {
		r   datanode.Replica
		err error
	}
	done := make(chan result, 1)
	s.unanswered.Go(func() {
		r, err := f()
		done <- result{r, err}
	})
	select {
	case x := <-done:
		return x.r, x.err
	case <-ctx.Done():
		return datanode.Replica{}, ctx.Err()
	}
}

// settle waits for what nobody waits for any more and that still works on replicas, but not for a disk that does not answer.
func (s *Server) settle() {
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		s.unanswered.Wait()
	}()
	select {
	case <-settled:
	case <-time.After(settleTime):
	}
}

// worthWaiting says why datanodes that do not answer should be waited for: they may have bytes that were acknowledged and
// that everybody else lacks. A deviation from HDFS, which goes on unless nobody answers. Bytes of an RBW or finalized
// replica are all there; one that waits for recovery (RWR) may have lost its end with the power of its machine.
func worthWaiting(b metadata.Block, part []offer, length int64) error {
	switch {
	case len(part) == 0:
		return errors.New("no replica among those that answer")
	case length < b.Length:
		return fmt.Errorf("the replicas of those that answer have %d bytes, and %d were acknowledged", length, b.Length)
	case part[0].state == datanode.RWR:
		return fmt.Errorf("those that answer have restarted, and may have lost what is behind the %d bytes that they have", length)
	}
	return nil
}

// decide applies the rules: replicas older than the block or empty take no part, nor do those shorter than what the
// namenode knows to have been acknowledged, b.Length, if there are others. If one is finalized, its length is the
// block's, and finalized ones and RBW of that length take part; else the shortest RBW decides, and RBW take part; else
// the shortest RWR. No part means that the block is empty and goes away.
func decide(b metadata.Block, offers []offer) (part []offer, length int64, err error) {
	var candidates, complete []offer
	for _, o := range offers {
		if o.block.Generation >= b.Generation && o.block.Length > 0 {
			candidates = append(candidates, o)
			if o.block.Length >= b.Length {
				complete = append(complete, o)
			}
		}
	}
	if len(complete) > 0 {
		candidates = complete
	}
	best := datanode.Temporary
	for _, o := range candidates {
		best = better(best, o.state)
	}
	length = -1
	for _, o := range candidates {
		if o.state != best {
			continue
		}
		switch {
		case length < 0:
			length = o.block.Length
		case best == datanode.Finalized && length != o.block.Length:
			return nil, 0, fmt.Errorf("finalized replicas of %v have %d and %d bytes: %w", b, length, o.block.Length, metadata.ErrCorrupt)
		default:
			length = min(length, o.block.Length)
		}
	}
	for _, o := range candidates {
		if o.state == best || best == datanode.Finalized && o.state == datanode.RBW && o.block.Length == length {
			part = append(part, o)
		}
	}
	return part, max(length, 0), nil
}

// better is the state that says more about what was acknowledged: FINALIZED, RBW, RWR.
func better(a, b datanode.ReplicaState) datanode.ReplicaState {
	rank := map[datanode.ReplicaState]int{datanode.RWR: 1, datanode.RBW: 2, datanode.Finalized: 3}
	if rank[b] > rank[a] {
		return b
	}
	return a
}

// update has all participants cut and restamped, and returns those that did it. Of an internal block, group is how long its group is to be; else it is 0.
func (s *Server) update(ctx context.Context, b metadata.Block, recovery metadata.Generation, length int64, part []offer, group int64) []*pb.DatanodeID {
	errs := make([]error, len(part))
	var g sync.WaitGroup
	for i, o := range part {
		g.Go(func() {
			if o.node.GetUuid() == s.id.Uuid {
				own, cancel := context.WithTimeout(ctx, commitTime)
				defer cancel()
				_, errs[i] = s.answered(own, func() (datanode.Replica, error) {
					return updateReplica(s.store, &s.decided, b, recovery, length, group)
				})
				return
			}
			ctx, cancel := context.WithTimeout(ctx, s.peerTime)
			defer cancel()
			peer, release, err := s.peers.get(o.node)
			if err == nil {
				defer release()
				_, err = peer.UpdateReplica(ctx, &datanodepb.UpdateReplicaRequest{Block: wireBlock(b), RecoveryId: uint64(recovery), Length: length, GroupLength: group})
			}
			errs[i] = pb.FromStatus(err)
		})
	}
	g.Wait()
	var done []*pb.DatanodeID
	for i, o := range part {
		if errs[i] != nil {
			s.log.Warn("replica not updated in block recovery", "block", b.String(), "node", o.node.GetUuid(), "err", errs[i])
			continue
		}
		done = append(done, o.node)
	}
	return done
}

// commit tells the leader, whoever that is by now.
func (s *Server) commit(ctx context.Context, request *pb.CommitBlockSynchronizationRequest) error {
	ctx, cancel := context.WithTimeout(ctx, commitTime)
	defer cancel()
	var last error
	for {
		order := s.all()
		if n := s.leader(); n != nil {
			order = append([]*session{n}, order...)
		}
		for _, n := range order {
			call, cancel := context.WithTimeout(ctx, callTime)
			_, err := n.client.CommitBlockSynchronization(call, request)
			cancel()
			if err == nil {
				return nil
			}
			last = fmt.Errorf("namenode %s: %w", n.addr, pb.FromStatus(err))
			if kind, ok := errors.AsType[*metadata.Error](last); ok && kind.Kind != metadata.ErrStandby && kind.Kind != metadata.ErrRetriable && kind.Kind != metadata.ErrSafeMode {
				return last
			}
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// replicasService is what other datanodes ask for.
type replicasService struct {
	datanodepb.UnimplementedReplicasServer
	store   datanode.BlockStore
	decided *decisions
}

func (r *replicasService) InitReplicaRecovery(_ context.Context, m *datanodepb.InitReplicaRecoveryRequest) (*datanodepb.InitReplicaRecoveryResponse, error) {
	v, err := r.store.InitRecovery(blockOf(m.GetBlock()), metadata.Generation(m.GetRecoveryId()))
	if err != nil {
		return nil, pb.Status(err)
	}
	return &datanodepb.InitReplicaRecoveryResponse{Block: wireBlock(v.Block), State: wireState(v.State), GroupLength: r.decided.of(v.Block)}, nil
}

func (r *replicasService) UpdateReplica(_ context.Context, m *datanodepb.UpdateReplicaRequest) (*datanodepb.UpdateReplicaResponse, error) {
	v, err := updateReplica(r.store, r.decided, blockOf(m.GetBlock()), metadata.Generation(m.GetRecoveryId()), m.GetLength(), m.GetGroupLength())
	if err != nil {
		return nil, pb.Status(err)
	}
	return &datanodepb.UpdateReplicaResponse{VolumeId: v.Volume}, nil
}

func (r *replicasService) CopyReplica(ctx context.Context, m *datanodepb.CopyReplicaRequest) (*datanodepb.CopyReplicaResponse, error) {
	if err := copyReplica(ctx, r.store, blockOf(m.GetSource()), blockOf(m.GetBlock())); err != nil {
		return nil, pb.Status(err)
	}
	return &datanodepb.CopyReplicaResponse{}, nil
}

// peers are the connections to other datanodes' gRPC.
type peers struct {
	credentials security.Credentials
	most        int // connections that are kept
	mu          sync.Mutex
	conns       map[string]*peer
}

// peer is a connection, with how many use it.
type peer struct {
	*grpc.ClientConn
	uses int
}

// maxPeers is how many connections are kept; recoveries are rare.
const maxPeers = 64

// get returns the connection to a datanode, which stays open until release is called. There are more of them than are kept as long as all are used.
func (p *peers) get(d *pb.DatanodeID) (client datanodepb.ReplicasClient, release func(), err error) {
	addr := net.JoinHostPort(d.GetIp(), strconv.Itoa(int(d.GetGrpcPort())))
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[addr]
	if c == nil {
		conn, err := grpc.NewClient("passthrough:///"+addr, dialOptions(p.credentials.Key(authority.Datanode))...)
		if err != nil {
			return nil, nil, err
		}
		if p.conns == nil {
			p.conns = map[string]*peer{}
		}
		c = &peer{ClientConn: conn}
		p.conns[addr] = c
	}
	c.uses++
	p.shrinkLocked()
	return datanodepb.NewReplicasClient(c.ClientConn), sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		c.uses--
		p.shrinkLocked()
	}), nil
}

// shrinkLocked closes connections that nobody uses until there are no more than are kept. p.mu is held.
func (p *peers) shrinkLocked() {
	for addr, c := range p.conns {
		if len(p.conns) <= p.most {
			return
		}
		if c.uses == 0 {
			c.Close()
			delete(p.conns, addr)
		}
	}
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, c := range p.conns {
		c.Close()
		delete(p.conns, a)
	}
}
