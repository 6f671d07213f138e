package server

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// Time-outs of a session.
const (
	callTime   = 10 * time.Second
	minBackoff = 50 * time.Millisecond
	maxBackoff = 3 * time.Second
	// reportTime is for a whole full report.
	reportTime = 5 * time.Minute
)

// session is what connects the datanode with one namenode: registration, beats and orders, reports. It is rebuilt from
// registration on whenever any part of it fails, so that a namenode that restarted learns everything again.
type session struct {
	*Server
	addr        string
	conn        *grpc.ClientConn
	client      pb.DatanodesClient
	incarnation uint64
	// late: it came with a list that was set while the datanode worked.
	late bool
	// refused: the namenode is of another cluster, by its last word.
	refused atomic.Bool
	beat    chan struct{} // capacity 1: send one now
	report  chan struct{} // capacity 1: report in full now
	renew   atomic.Bool   // register before that: the namenode has lost what it knew
	pending chan struct{} // capacity 1: queue has changes that are told at once
	later   chan struct{} // capacity 1: queue has changes that can wait
	untold  chan struct{} // capacity 1: the namenode has another trust than trusted
	trusted atomic.Uint64 // the version of the trust that it told last

	mu         sync.Mutex
	registered bool // changes are collected
	queue      []*pb.BlockChange
	// receiving is where queue announces that a replica is being written.
	receiving map[metadata.BlockID]int
	orders    *pb.Orders // the last heard
	heard     time.Time
	reporting bool            // a full report is under way or due
	reported  bool            // one was delivered
	problem   string          // why there is no session, for /health
	beaten    time.Time       // when the last beat was sent
	failures  int             // how many failed volumes it named
	notTaken  []*pb.NotCopied // what the next one tells
}

func newSession(s *Server, addr string, incarnation uint64) (*session, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, dialOptions(s.cfg.Credentials.Key(authority.Namenode))...)
	if err != nil {
		return nil, err
	}
	return &session{
		Server: s, addr: addr, conn: conn, client: pb.NewDatanodesClient(conn), incarnation: incarnation,
		beat: make(chan struct{}, 1), report: make(chan struct{}, 1), pending: make(chan struct{}, 1), later: make(chan struct{}, 1),
		untold:    make(chan struct{}, 1),
		receiving: map[metadata.BlockID]int{},
		problem:   "not tried yet",
	}, nil
}

// dialOptions are those of all connections: a peer that comes back is found within seconds.
func dialOptions(key security.Key) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(key.Credentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32 << 20)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: callTime,
		}),
	}
}

// poke makes a channel of capacity 1 full.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (n *session) beatNow()   { poke(n.beat) }
func (n *session) reportNow() { poke(n.report) }

// checkReady opens the gate of Ready once a leader has a full report.
func (n *session) checkReady() {
	n.mu.Lock()
	reported := n.reported
	n.mu.Unlock()
	if reported && n.leads() {
		n.readyOnce.Do(func() { close(n.ready) })
	}
}

// errFatal is the refusal by a namenode of another cluster. It ends the datanode when all refuse it.
var errFatal = errors.New("fatal")

// run keeps the session up until ctx is done.
func (n *session) run(ctx context.Context) error {
	wait := minBackoff
	for ctx.Err() == nil {
		start := time.Now()
		err := n.live(ctx)
		n.down(err)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, errFatal) {
			n.refused.Store(true)
			if n.refusedByAll() {
				return fmt.Errorf("datanode: %w", errors.Unwrap(err))
			}
		}
		if time.Since(start) > 10*time.Second {
			wait = minBackoff
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)):
		}
		wait = min(2*wait, maxBackoff)
	}
	return nil
}

// refusedByAll: no namenode of the configuration takes this datanode. One that does, or does not answer, may be right.
func (s *Server) refusedByAll() bool {
	return !slices.ContainsFunc(s.all(), func(n *session) bool { return n.late || !n.refused.Load() })
}

// down forgets what only a registered datanode needs.
func (n *session) down(cause error) {
	n.mu.Lock()
	text := "closed"
	if cause != nil {
		text = cause.Error()
	}
	changed := text != n.problem
	n.problem, n.registered, n.orders, n.reported, n.reporting, n.failures = text, false, nil, false, false, 0
	n.queue = nil // the next full report contains them
	n.notTaken = nil
	clear(n.receiving)
	n.mu.Unlock()
	if changed && cause != nil && !errors.Is(cause, context.Canceled) {
		n.log.Warn("namenode lost", "namenode", n.addr, "err", cause)
	}
}

type fatal struct{ error }

func (f fatal) Is(target error) bool { return target == errFatal }
func (f fatal) Unwrap() error        { return f.error }

// live is one session, from registration to the first error.
func (n *session) live(ctx context.Context) error {
	n.renew.Store(false) // before it: volumes that change while it is under way are told of by another one
	interval, err := n.register(ctx)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	poke(n.report)
	g.Go(func() error { return n.heartbeats(ctx, interval) })
	g.Go(func() error { return n.reports(ctx) })
	g.Go(func() error { return n.changes(ctx) })
	g.Go(func() error { return n.trusts(ctx) })
	return g.Wait()
}

// register introduces the datanode and returns the time between beats.
func (n *session) register(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	own := n.store.Identity()
	answer, err := n.client.Register(ctx, &pb.RegisterRequest{
		Datanode: n.id, ClusterId: own.Cluster, SoftwareVersion: SoftwareVersion, LayoutVersion: blockstore.LayoutVersion,
		Volumes: n.volumes(), Incarnation: n.incarnation,
	})
	if err != nil {
		n.stranger.Tried(n.addr, err)
		back := pb.FromStatus(err)
		if _, kinded := errors.AsType[*metadata.Error](back); !kinded && status.Code(err) == codes.FailedPrecondition {
			return 0, fatal{fmt.Errorf("namenode %s refuses this datanode: %s", n.addr, status.Convert(err).Message())}
		}
		return 0, fmt.Errorf("register: %w", back)
	}
	n.stranger.Tried(n.addr, nil)
	n.refused.Store(false)
	if err := n.store.Join(answer.ClusterId, answer.BlockPool); err != nil {
		if errors.Is(err, datanode.ErrVolumeOwner) {
			return 0, fatal{fmt.Errorf("namenode %s: %w", n.addr, err)}
		}
		return 0, err
	}
	n.trust.learn(n.addr, answer.Trust, time.Now())
	n.trusted.Store(answer.GetTrust().GetVersion())
	n.mu.Lock()
	n.registered, n.problem, n.heard, n.reporting = true, "", time.Now(), true
	n.mu.Unlock()
	n.log.Info("registered", "namenode", n.addr, "cluster", answer.ClusterId)
	interval := time.Duration(answer.HeartbeatMs) * time.Millisecond
	if n.cfg.Heartbeat > 0 {
		interval = n.cfg.Heartbeat
	}
	if interval <= 0 {
		interval = 3 * time.Second
	}
	return interval, nil
}

func (s *Server) volumes() []*pb.Volume {
	var out []*pb.Volume
	for _, v := range s.store.Volumes() {
		out = append(out, &pb.Volume{
			Id: v.ID, Type: v.Type.String(), Capacity: v.Capacity, Used: v.Used, Remaining: v.Remaining, Failed: v.Failed != nil, Slow: v.Slow,
		})
	}
	return out
}

func failures(volumes []*pb.Volume) (n int) {
	for _, v := range volumes {
		if v.Failed {
			n++
		}
	}
	return n
}

// ignorant: the namenode knows this datanode, and has not yet answered a beat that names all volumes that have failed.
func (n *session) ignorant() bool {
	failed := failures(n.volumes())
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.registered && (n.failures < failed || !n.heard.After(n.beaten))
}

// heartbeats sends beats and takes orders. A namenode answers every beat; one that does not for long is given up.
func (n *session) heartbeats(ctx context.Context, interval time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := n.client.Heartbeat(ctx)
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	var g errgroup.Group
	g.Go(func() error {
		defer cancel()
		for {
			o, err := stream.Recv()
			if err != nil {
				return fmt.Errorf("heartbeat: %w", pb.FromStatus(err))
			}
			n.obey(o)
		}
	})
	g.Go(func() error {
		defer cancel()
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			b := &pb.Beat{DatanodeUuid: n.id.Uuid, Volumes: n.volumes(), Xceivers: uint32(n.transfer.Active())}
			b.CacheCapacity, b.CacheUsed, _ = n.memory.Figures()
			b.Copies, b.Rebuilds = n.replicas.progress(), n.rebuilds.progress()
			n.mu.Lock()
			b.NotCopied, n.notTaken = n.notTaken, nil
			n.mu.Unlock()
			if err := stream.Send(b); err != nil {
				return nil // Recv tells why
			}
			n.mu.Lock()
			n.beaten, n.failures = time.Now(), failures(b.Volumes)
			n.mu.Unlock()
			select {
			case <-tick.C:
			case <-n.beat:
			case <-ctx.Done():
				return nil
			}
			n.mu.Lock()
			silent := time.Since(n.heard)
			n.mu.Unlock()
			if silent > max(5*interval, callTime) {
				return metadata.Errorf(metadata.ErrIO, "heartbeat: no answer for %v", silent.Round(time.Second))
			}
		}
	})
	return g.Wait()
}

// chunkReplicas is how many replicas a message of a full report names.
const chunkReplicas = 10_000

// reports sends full reports: at registration, when asked to, and now and then.
func (n *session) reports(ctx context.Context) error {
	// Spread, so that the datanodes of a cluster do not report at the same time.
	timer := time.NewTimer(n.cfg.FullReport/2 + rand.N(n.cfg.FullReport))
	defer timer.Stop()
	var again <-chan time.Time // after a registration that failed
	for {
		select {
		case <-n.report:
		case <-again:
		case <-timer.C:
			timer.Reset(n.cfg.FullReport)
		case <-ctx.Done():
			return ctx.Err()
		}
		// Here, and not beside a report: what a namenode was told before a registration it expects in the report that follows.
		if n.renew.Swap(false) {
			if _, err := n.register(ctx); err != nil {
				n.log.Warn("registration failed", "namenode", n.addr, "err", err)
				n.renew.Store(true)
				n.mu.Lock()
				n.reporting = false
				n.mu.Unlock()
				n.beatNow() // asks again, if it was the namenode that wanted it
				again = time.After(maxBackoff)
				continue
			}
		}
		again = nil
		if err := n.reportAll(ctx); err != nil {
			return fmt.Errorf("block report: %w", pb.FromStatus(err))
		}
		n.mu.Lock()
		n.reporting, n.reported = false, true
		n.mu.Unlock()
		n.checkReady()
	}
}

// chunks are the pieces of a full report. The volumes are listed side by side: one whose disk does not answer keeps back what is
// on it, until it answers or is given up, and nothing of the others. They end early with ctx.
func (n *session) chunks(ctx context.Context) iter.Seq[*pb.BlockReport] {
	return func(yield func(*pb.BlockReport) bool) {
		ctx, cancel := context.WithCancel(ctx) // also when the consumer wants no more
		defer cancel()
		made := make(chan *pb.BlockReport)
		var listing sync.WaitGroup // not waited for when ctx is done: it may be as long as a disk takes
		for _, v := range n.store.Volumes() {
			listing.Go(func() { n.list(ctx, v.ID, made) })
		}
		go func() {
			listing.Wait()
			close(made)
		}()
		for {
			select {
			case chunk, more := <-made:
				if !more || !yield(chunk) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// list makes the chunks of one volume, at least one.
func (n *session) list(ctx context.Context, volume string, to chan<- *pb.BlockReport) {
	chunk := &pb.BlockReport{VolumeId: volume}
	send := func() bool {
		select {
		case to <- chunk:
			chunk = &pb.BlockReport{VolumeId: volume}
			return true
		case <-ctx.Done():
			return false
		}
	}
	n.store.Each(volume, func(r datanode.Replica) bool {
		state := wireState(r.State)
		if state == pb.ReplicaState_REPLICA_STATE_UNSPECIFIED {
			return ctx.Err() == nil
		}
		if len(chunk.Replicas) == chunkReplicas && !send() {
			return false
		}
		chunk.Replicas = append(chunk.Replicas, &pb.Replica{Block: wireBlock(r.Block), State: state})
		return true
	})
	send()
}

// reportAll sends one full report, and again what is known to be corrupt.
func (n *session) reportAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	stream, err := n.client.ReportBlocks(ctx)
	if err != nil {
		return err
	}
	id := rand.Uint64()
	// The report begins before anything is listed, which may take long: what is told from here on is later than what it lists.
	sendErr := stream.Send(&pb.BlockReport{DatanodeUuid: n.id.Uuid, ReportId: id})
	if sendErr == nil {
		for chunk := range n.chunks(ctx) {
			chunk.DatanodeUuid, chunk.ReportId = n.id.Uuid, id
			if sendErr = stream.Send(chunk); sendErr != nil {
				break // CloseAndRecv tells why
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if sendErr == nil {
		_ = stream.Send(&pb.BlockReport{DatanodeUuid: n.id.Uuid, ReportId: id, Last: true})
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		return err
	}
	n.store.EachCorrupt(func(r datanode.Replica) {
		n.enqueue(wireChange(datanode.Change{Kind: datanode.Corrupt, Block: r.Block, Volume: r.Volume}))
	})
	for _, b := range n.memory.Held() {
		n.enqueue(wireChange(datanode.Change{Kind: datanode.Cached, Block: b}))
		if !n.memory.Has(b.ID) { // it has left, and that was told before
			n.enqueue(wireChange(datanode.Change{Kind: datanode.Uncached, Block: b}))
		}
	}
	return nil
}

// wireState is UNSPECIFIED for replicas that nobody hears of.
func wireState(s datanode.ReplicaState) pb.ReplicaState {
	switch s {
	case datanode.Finalized:
		return pb.ReplicaState_FINALIZED
	case datanode.RBW:
		return pb.ReplicaState_RBW
	case datanode.RWR:
		return pb.ReplicaState_RWR
	default:
		return pb.ReplicaState_REPLICA_STATE_UNSPECIFIED
	}
}

func wireBlock(b metadata.Block) *pb.Block {
	return &pb.Block{Id: int64(b.ID), Generation: uint64(b.Generation), Length: b.Length}
}

func blockOf(b *pb.Block) metadata.Block {
	return metadata.Block{ID: metadata.BlockID(b.GetId()), Generation: metadata.Generation(b.GetGeneration()), Length: b.GetLength()}
}

var changeKinds = map[datanode.ChangeKind]pb.BlockChange_Kind{
	datanode.Receiving: pb.BlockChange_RECEIVING,
	datanode.Received:  pb.BlockChange_RECEIVED,
	datanode.Deleted:   pb.BlockChange_DELETED,
	datanode.Corrupt:   pb.BlockChange_CORRUPT,
	datanode.Verified:  pb.BlockChange_VERIFIED,
	datanode.Cached:    pb.BlockChange_CACHED,
	datanode.Uncached:  pb.BlockChange_UNCACHED,
}

func wireChange(c datanode.Change) *pb.BlockChange {
	return &pb.BlockChange{Kind: changeKinds[c.Kind], Block: wireBlock(c.Block), VolumeId: c.Volume, Instead: c.Instead}
}

// enqueue takes a change to be told, which nobody modifies any more. Without a registration it is dropped: the full report will have it. That a replica
// has been received is said in the place of its being received, if nobody has heard of that yet.
func (n *session) enqueue(told *pb.BlockChange) {
	id := metadata.BlockID(told.Block.Id)
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.registered {
		return
	}
	if at, ok := n.receiving[id]; ok && told.Kind == pb.BlockChange_RECEIVED && n.queue[at].VolumeId == told.VolumeId {
		n.queue[at] = told
	} else {
		n.queue = append(n.queue, told)
	}
	if told.Kind == pb.BlockChange_RECEIVING {
		n.receiving[id] = len(n.queue) - 1
	} else {
		delete(n.receiving, id)
	}
	if told.Kind != pb.BlockChange_RECEIVING && n.leadsLocked() {
		poke(n.pending)
	} else {
		poke(n.later)
	}
}

// Limits of what tells of changes.
const (
	// maxChanges is how many changes one call tells.
	maxChanges = 4096
	// laterTime is how long changes may wait that nobody waits for: those that a namenode hears which does not lead, and
	// that a replica is being received.
	laterTime = 50 * time.Millisecond
	// callSpacing is the least time from one call's start to the next one's.
	callSpacing = 4 * time.Millisecond
)

// changes tells of changes. What the leader has to know goes out at once if it has not been called for callSpacing, so
// that under load a call carries what many writers have finished.
func (n *session) changes(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	wait := func(d time.Duration, early <-chan struct{}) error {
		timer.Reset(d)
		select {
		case <-timer.C:
		case <-early:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	var last time.Time
	for {
		var err error
		select {
		case <-n.pending:
		case <-n.later:
			err = wait(laterTime, n.pending)
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err == nil {
			if since := time.Since(last); since < callSpacing {
				err = wait(callSpacing-since, nil)
			} else {
				runtime.Gosched() // who is about to tell something comes along
			}
		}
		last = time.Now()
		for more := true; more && err == nil; {
			more, err = n.tell(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// tell makes one call with what is in the queue, if there is anything, and says whether something was left.
func (n *session) tell(ctx context.Context) (more bool, err error) {
	n.mu.Lock()
	batch := n.queue[:min(len(n.queue), maxChanges)]
	n.queue = n.queue[len(batch):]
	more = len(n.queue) > 0
	clear(n.receiving)
	n.mu.Unlock()
	if len(batch) == 0 {
		return false, nil
	}
	call, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if _, err := n.client.BlocksChanged(call, &pb.BlocksChangedRequest{DatanodeUuid: n.id.Uuid, Changes: batch}); err != nil {
		return false, fmt.Errorf("blocks changed: %w", pb.FromStatus(err))
	}
	return more, nil
}

// leads reports whether the namenode said last that it leads, in the highest term known.
func (n *session) leads() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leadsLocked()
}

func (n *session) leadsLocked() bool {
	return n.orders != nil && n.orders.Leader && n.orders.Term == n.term.Load()
}
