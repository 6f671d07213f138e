package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/leaktest"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// within polls until ok, for what other goroutines bring about.
func within(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// fakeNamenode says and remembers what a test wants.
type fakeNamenode struct {
	pb.UnimplementedDatanodesServer
	addr string
	stop func()
	// registering is called when somebody registers, and may refuse it; nil: nothing.
	registering func() error

	mu        sync.Mutex
	cluster   string
	term      uint64
	leader    bool
	standby   bool // refuses commits
	refuses   bool // commits, for good
	registers []*pb.RegisterRequest
	replicas  map[string]map[int64]*pb.Replica // datanode, block
	named     map[int64]bool                   // blocks of full reports, also of those that have not ended
	changes   []string                         // "uuid KIND blk"
	commits   []*pb.CommitBlockSynchronizationRequest
	begun     int // full reports
	full      int // those that have ended
	streams   map[string]chan *pb.Orders
	lastKey   int32               // the newest key of block tokens
	hidden    string              // a datanode that is not told of
	silent    bool                // about its trust having changed
	version   uint64              // of its trust; while it is silent the one of before
	asked     int                 // about its trust
	failed    int                 // volumes, by the beats
	beats     map[string]*pb.Beat // the last one of each datanode
	refusals  []string            // "uuid blk_gen uuid": what the first one has not copied, or made, to the second one
}

func startNamenode(t testing.TB, credentials security.Credentials, cluster string) *fakeNamenode {
	return startNamenodeOn(t, credentials, cluster, listen(t))
}

func startNamenodeOn(t testing.TB, credentials security.Credentials, cluster string, l net.Listener) *fakeNamenode {
	t.Helper()
	n := &fakeNamenode{
		addr: l.Addr().String(), cluster: cluster, term: 1, leader: true, lastKey: 2,
		replicas: map[string]map[int64]*pb.Replica{}, named: map[int64]bool{}, streams: map[string]chan *pb.Orders{},
		beats: map[string]*pb.Beat{},
	}
	keys := security.Keyring{Member: credentials.Member}
	srv := grpc.NewServer(grpc.Creds(keys.Credentials()))
	pb.RegisterDatanodesServer(srv, n)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(keys.Listen(l))
	}()
	n.stop = sync.OnceFunc(func() {
		srv.Stop()
		<-done
	})
	t.Cleanup(n.stop)
	return n
}

func (n *fakeNamenode) Register(_ context.Context, r *pb.RegisterRequest) (*pb.RegisterResponse, error) {
	if n.registering != nil {
		if err := n.registering(); err != nil {
			return nil, pb.Status(err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.ClusterId != "" && r.ClusterId != n.cluster {
		return nil, status.Errorf(codes.FailedPrecondition, "datanode belongs to cluster %s, this is cluster %s", r.ClusterId, n.cluster)
	}
	n.registers = append(n.registers, r)
	return &pb.RegisterResponse{ClusterId: n.cluster, BlockPool: "BP-" + n.cluster, HeartbeatMs: 20, Trust: n.trust()}, nil
}

// trust names whoever registered. n.mu is held.
func (n *fakeNamenode) trust() *pb.Trust {
	if !n.silent {
		n.version = uint64(len(n.registers))<<8 | uint64(n.lastKey)
	}
	m := &pb.Trust{Version: n.version}
	for id := max(n.lastKey-3, 0) + 1; id <= n.lastKey; id++ {
		m.Keys = append(m.Keys, &pb.BlockKey{Id: id, Key: fmt.Appendf(nil, "%032d", id)})
	}
	for _, r := range n.registers {
		if d := r.Datanode; d.Uuid != n.hidden {
			m.Datanodes = append(m.Datanodes, net.JoinHostPort(d.Ip, strconv.Itoa(int(d.TransferPort))))
		}
	}
	return m
}

func (n *fakeNamenode) GetTrust(context.Context, *pb.GetTrustRequest) (*pb.Trust, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	return n.trust(), nil
}

func (n *fakeNamenode) Heartbeat(g grpc.BidiStreamingServer[pb.Beat, pb.Orders]) error {
	first, err := g.Recv()
	if err != nil {
		return err
	}
	orders := make(chan *pb.Orders, 16)
	n.mu.Lock()
	n.streams[first.DatanodeUuid] = orders
	n.mu.Unlock()
	beats := make(chan error, 1)
	go func() {
		for {
			beat, err := g.Recv()
			if err == nil {
				n.mu.Lock()
				n.failed = max(n.failed, failures(beat.Volumes))
				n.beats[beat.DatanodeUuid] = beat
				for _, x := range beat.NotCopied {
					n.refusals = append(n.refusals, fmt.Sprintf("%s %d_%d %s", beat.DatanodeUuid, x.Block.Id, x.Block.Generation, x.Target))
				}
				n.mu.Unlock()
			}
			select {
			case beats <- err:
			case <-g.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for {
		n.mu.Lock()
		o := &pb.Orders{Term: n.term, Leader: n.leader, TrustVersion: n.trust().Version}
		n.mu.Unlock()
		if err := g.Send(o); err != nil {
			return err
		}
		select {
		case err := <-beats:
			if err != nil {
				return nil
			}
		case o := <-orders:
			if err := g.Send(o); err != nil {
				return err
			}
		case <-g.Context().Done():
			return nil
		}
	}
}

func (n *fakeNamenode) order(d *Server, o *pb.Orders) {
	n.mu.Lock()
	if o.Term == 0 {
		o.Term, o.Leader = n.term, n.leader
	}
	c := n.streams[d.UUID()]
	n.mu.Unlock()
	select {
	case c <- o:
	default: // no stream yet, or nobody reads: namenodes repeat their orders, so do tests that rely on it
	}
}

func (n *fakeNamenode) ReportBlocks(g grpc.ClientStreamingServer[pb.BlockReport, pb.BlockReportResponse]) error {
	got := map[int64]*pb.Replica{}
	for first := true; ; first = false {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		n.mu.Lock()
		if first {
			n.begun++
		}
		for _, r := range m.Replicas {
			got[r.Block.Id] = r
			n.named[r.Block.Id] = true
		}
		n.mu.Unlock()
		if m.Last {
			n.mu.Lock()
			n.replicas[m.DatanodeUuid] = got
			n.full++
			n.mu.Unlock()
			return g.SendAndClose(&pb.BlockReportResponse{})
		}
	}
}

func (n *fakeNamenode) BlocksChanged(_ context.Context, r *pb.BlocksChangedRequest) (*pb.BlocksChangedResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range r.Changes {
		n.changes = append(n.changes, fmt.Sprintf("%s %v %d_%d", r.DatanodeUuid, c.Kind, c.Block.Id, c.Block.Generation))
	}
	return &pb.BlocksChangedResponse{}, nil
}

func (n *fakeNamenode) CommitBlockSynchronization(_ context.Context, r *pb.CommitBlockSynchronizationRequest) (*pb.CommitBlockSynchronizationResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.standby {
		return nil, pb.Status(metadata.Errorf(metadata.ErrStandby, "not the leader"))
	}
	n.commits = append(n.commits, r)
	if n.refuses {
		return nil, pb.Status(metadata.Errorf(metadata.ErrIO, "refused"))
	}
	return &pb.CommitBlockSynchronizationResponse{}, nil
}

func (n *fakeNamenode) heard(d *Server, change string) bool { return n.times(d, change) > 0 }

// times is how often a change was told.
func (n *fakeNamenode) times(d *Server, change string) (times int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.changes {
		if c == d.UUID()+" "+change {
			times++
		}
	}
	return times
}

// startDatanode runs a datanode until the test ends or the function returned is called.
func startDatanode(t testing.TB, credentials security.Credentials, dir string, namenodes ...*fakeNamenode) (*Server, func() error) {
	t.Helper()
	return runDatanode(t, configOf(t, credentials, dir, namenodes...))
}

func configOf(t testing.TB, credentials security.Credentials, dir string, namenodes ...*fakeNamenode) Config {
	t.Helper()
	cfg := Config{
		Volumes: []Volume{{Path: filepath.Join(dir, "a")}, {Path: filepath.Join(dir, "b"), Type: "SSD"}}, Reserve: -1,
		Transfer: listen(t), HTTP: listen(t), IPC: listen(t), GRPC: listen(t),
		NamenodesIPC: []string{"127.0.0.1:1"}, Credentials: credentials, Door: security.NewDoor(security.Config{}),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, n := range namenodes {
		cfg.NamenodesGRPC = append(cfg.NamenodesGRPC, n.addr)
	}
	return cfg
}

func runDatanode(t testing.TB, cfg Config) (*Server, func() error) {
	t.Helper()
	s, err := New(cfg)
	check(t, err)
	s.trust.askTime, s.trust.askAllTime, s.peerTime = time.Minute, time.Minute, time.Minute // a busy machine is not silent
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return s, stop
}

// waitReady waits until a leader has reports and beats of all nodes, so that orders reach them.
func waitReady(t testing.TB, nodes ...*Server) {
	t.Helper()
	for _, d := range nodes {
		select {
		case <-d.Ready():
		case <-time.After(time.Minute):
			t.Fatal("datanode is not ready")
		}
	}
}

func put(t testing.TB, d *Server, id, gen int64, data string) metadata.Block {
	t.Helper()
	b := metadata.Block{ID: metadata.BlockID(id), Generation: metadata.Generation(gen)}
	w, err := d.store.Create(b, datanode.CreateOptions{})
	check(t, err)
	check(t, w.Write(0, []byte(data), nil))
	r, err := w.Finalize()
	check(t, err)
	return r.Block
}

// putOpen leaves a replica being written, everything acknowledged.
func putOpen(t testing.TB, d *Server, id, gen int64, data string) {
	t.Helper()
	w, err := d.store.Create(metadata.Block{ID: metadata.BlockID(id), Generation: metadata.Generation(gen)}, datanode.CreateOptions{})
	check(t, err)
	check(t, w.Write(0, []byte(data), nil))
	w.Acked(int64(len(data)))
	check(t, w.Close())
}

func TestRegistersWithEveryNamenodeAndReports(t *testing.T) {
	credentials := securitytest.Credentials(t)
	a, b := startNamenode(t, credentials, "lab"), startNamenode(t, credentials, "lab")
	b.leader = false
	dir := t.TempDir()
	d, stop := startDatanode(t, credentials, dir, a, b)
	waitReady(t, d)
	within(t, "both have a full report", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		b.mu.Lock()
		defer b.mu.Unlock()
		return a.full > 0 && b.full > 0
	})
	a.mu.Lock()
	r := a.registers[0]
	a.mu.Unlock()
	if r.Datanode.Uuid != d.UUID() || r.Datanode.TransferPort == 0 || len(r.Volumes) != 2 || r.Volumes[1].Type != "SSD" || r.ClusterId != "" {
		t.Errorf("registered as %v", r)
	}
	put(t, d, 7, 1001, "data")
	within(t, "the leader hears of a block", func() bool { return a.heard(d, "RECEIVED 7_1001") })
	within(t, "the other hears it too", func() bool { return b.heard(d, "RECEIVED 7_1001") })
	check(t, stop())

	d, _ = startDatanode(t, credentials, dir, a, b)
	waitReady(t, d)
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.registers[len(a.registers)-1]
	if last.ClusterId != "lab" || last.Datanode.Uuid != r.Datanode.Uuid || last.Incarnation == r.Incarnation {
		t.Errorf("registered again as %v", last)
	}
	if rep := a.replicas[d.UUID()][7]; rep == nil || rep.State != pb.ReplicaState_FINALIZED || rep.Block.Length != 4 {
		t.Errorf("reported %v", a.replicas[d.UUID()])
	}
}

// A namenode that comes with a new list gets everything, and may lead; one that leaves the list is left alone; the one that
// stays notices nothing.
func TestDatanodeFollowsTheListOfNamenodes(t *testing.T) {
	credentials := securitytest.Credentials(t)
	a, b, c := startNamenode(t, credentials, "lab"), startNamenode(t, credentials, "lab"), startNamenode(t, credentials, "lab")
	b.leader, c.leader = false, false
	d, _ := startDatanode(t, credentials, t.TempDir(), a, b)
	waitReady(t, d)
	put(t, d, 7, 1001, "data")
	registered := func(n *fakeNamenode) int {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.registers)
	}
	within(t, "both know the datanode", func() bool { return registered(a) == 1 && registered(b) == 1 })
	for _, wrong := range [][]string{nil, {c.addr, "127.0.0.1:1"}} {
		if err := d.SetNamenodes(wrong, []string{"127.0.0.1:1"}); !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("the list %v: %v", wrong, err)
		}
	}
	ipc := []string{"127.0.0.1:1", "127.0.0.1:1"}
	check(t, d.SetNamenodes([]string{a.addr, c.addr}, ipc))
	within(t, "the new one has a full report", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.replicas[d.UUID()][7] != nil
	})
	put(t, d, 8, 1002, "more")
	within(t, "the new one hears of a block", func() bool { return c.heard(d, "RECEIVED 8_1002") })
	within(t, "the first one hears of it too", func() bool { return a.heard(d, "RECEIVED 8_1002") })
	if b.heard(d, "RECEIVED 8_1002") {
		t.Error("a namenode that left the list hears of a block")
	}
	if h := d.health(); len(h.Namenodes) != 2 || h.Namenodes[1].Address != c.addr {
		t.Errorf("health names %v", h.Namenodes)
	}
	if n := registered(a); n != 1 {
		t.Errorf("the one that stayed was registered with %d times", n)
	}

	other := startNamenode(t, credentials, "another") // a mistake in a list must not end all datanodes of a cluster
	check(t, d.SetNamenodes([]string{a.addr, other.addr}, ipc))
	within(t, "the mistake is told", func() bool {
		h := d.health()
		return strings.Contains(h.Namenodes[1].Problem, "another") && h.Namenodes[0].Registered
	})
}

func TestNamenodeThatComesBackLearnsEverything(t *testing.T) {
	credentials := securitytest.Credentials(t)
	l := listen(t)
	n := startNamenodeOn(t, credentials, "lab", l)
	d, _ := startDatanode(t, credentials, t.TempDir(), n)
	waitReady(t, d)
	n.stop()
	put(t, d, 7, 1001, "data")
	var again net.Listener
	within(t, "its port is free", func() bool { // somebody's connection may have got it for a moment
		var err error
		again, err = net.Listen("tcp", l.Addr().String())
		return err == nil
	})
	n = startNamenodeOn(t, credentials, "lab", again)
	within(t, "a full report with the new block", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.replicas[d.UUID()][7] != nil
	})
	n.mu.Lock()
	full := n.full
	n.mu.Unlock()
	within(t, "another report when asked for", func() bool {
		n.order(d, &pb.Orders{Term: 1, Leader: false, Report: true}) // namenodes repeat it
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.full > full && len(n.registers) >= 2
	})
}

func TestOrdersOfDeposedLeadersAreRefused(t *testing.T) {
	credentials := securitytest.Credentials(t)
	old, now := startNamenode(t, credentials, "lab"), startNamenode(t, credentials, "lab")
	now.leader = false
	d, _ := startDatanode(t, credentials, t.TempDir(), old, now)
	waitReady(t, d)
	b := put(t, d, 7, 1001, "data")
	now.mu.Lock()
	now.term = 5
	now.mu.Unlock()
	within(t, "the newer term is seen", func() bool { return d.term.Load() == 5 })
	for i, o := range []*pb.Orders{{Term: 1, Leader: true}, {Term: 5, Leader: false}} {
		o.Delete = []*pb.Block{wireBlock(b)}
		d.all()[i].obey(o)
	}
	for _, c := range d.deletes.of {
		c.mu.Lock()
		if len(c.known) > 0 {
			t.Error("the replica is being deleted")
		}
		c.mu.Unlock()
	}
	if _, ok := d.store.Replica(7); !ok {
		t.Fatal("the replica was deleted")
	}
	now.mu.Lock()
	now.leader = true
	now.mu.Unlock()
	within(t, "the leader's order is obeyed", func() bool {
		now.order(d, &pb.Orders{Term: 5, Leader: true, Delete: []*pb.Block{wireBlock(b)}})
		return old.heard(d, "DELETED 7_1001")
	})
}

func TestReplicateOrder(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	a, _ := startDatanode(t, credentials, t.TempDir(), n)
	b, _ := startDatanode(t, credentials, t.TempDir(), n)
	c, _ := startDatanode(t, credentials, t.TempDir(), n)
	waitReady(t, a, b, c)
	blk := put(t, a, 7, 1001, strings.Repeat("data", 50_000))
	within(t, "both have it", func() bool {
		var lack []*pb.DatanodeID // a copy that was not passed on is ordered again
		for _, d := range []*Server{b, c} {
			if _, there := d.store.Replica(7); !there {
				lack = append(lack, d.id)
			}
		}
		if len(lack) > 0 {
			n.order(a, &pb.Orders{Replicate: []*pb.Replicate{{Block: wireBlock(blk), Targets: lack}}})
		}
		return n.heard(b, "RECEIVED 7_1001") && n.heard(c, "RECEIVED 7_1001")
	})
	for _, d := range []*Server{b, c} {
		if r, _ := d.store.Replica(7); r.Block != blk || r.State != datanode.Finalized {
			t.Errorf("replica is %v", r)
		}
	}
}

// An order about a replica that is not here is answered: the namenode would repeat it, and not copy the block here.
func TestOrdersForWhatIsNotHereAreAnswered(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	d, _ := startDatanode(t, credentials, t.TempDir(), n)
	waitReady(t, d)
	lost := func(id int64) *pb.Block { return &pb.Block{Id: id, Generation: 1001} }
	within(t, "it says that there is none", func() bool {
		n.order(d, &pb.Orders{
			Delete: []*pb.Block{lost(7)}, Discard: []*pb.Block{lost(8)}, Replicate: []*pb.Replicate{{Block: lost(9), Targets: []*pb.DatanodeID{d.id}}},
		})
		return n.heard(d, "DELETED 7_0") && n.heard(d, "DELETED 8_0") && n.heard(d, "DELETED 9_0")
	})
}

func TestBlockRecoveryThroughThePrimary(t *testing.T) {
	credentials := securitytest.Credentials(t)
	standby, n := startNamenode(t, credentials, "lab"), startNamenode(t, credentials, "lab")
	standby.leader, standby.standby = false, true
	var nodes []*Server
	var ids []*pb.DatanodeID
	for range 3 {
		d, _ := startDatanode(t, credentials, t.TempDir(), standby, n)
		nodes = append(nodes, d)
		ids = append(ids, d.id)
	}
	waitReady(t, nodes...)
	for i, d := range nodes {
		putOpen(t, d, 7, 1001, strings.Repeat("x", 1000-100*i))
	}
	n.order(nodes[0], &pb.Orders{Recover: []*pb.Recover{{Block: &pb.Block{Id: 7, Generation: 1001}, RecoveryId: 1010, Replicas: ids}}})
	within(t, "the result is committed", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.commits) == 1
	})
	m := n.commits[0]
	if m.Length != 800 || m.RecoveryId != 1010 || !m.Close || m.DeleteBlock || len(m.Locations) != 3 {
		t.Errorf("committed %v", m)
	}
	for _, d := range nodes {
		if r, _ := d.store.Replica(7); r.Block != (metadata.Block{ID: 7, Generation: 1010, Length: 800}) || r.State != datanode.Finalized {
			t.Errorf("replica is %v", r)
		}
		within(t, "reported", func() bool { return n.heard(d, "RECEIVED 7_1010") })
	}

	// A block that nobody has a byte of goes away.
	putOpen(t, nodes[1], 8, 1001, "")
	n.order(nodes[0], &pb.Orders{Recover: []*pb.Recover{{Block: &pb.Block{Id: 8, Generation: 1001}, RecoveryId: 1011, Replicas: ids}}})
	within(t, "the empty block is committed", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.commits) == 2
	})
	if m := n.commits[1]; !m.DeleteBlock || m.Length != 0 || len(m.Locations) != 0 {
		t.Errorf("committed %v", m)
	}

	// But not while somebody who may have bytes does not answer.
	gone := &pb.DatanodeID{Uuid: "gone", Ip: "127.0.0.1", GrpcPort: 1}
	nodes[0].recoverBlock(context.Background(), &pb.Recover{Block: &pb.Block{Id: 9, Generation: 1001}, RecoveryId: 1012, Replicas: append([]*pb.DatanodeID{gone}, ids...)})
	if len(n.commits) != 2 {
		t.Errorf("committed %v", n.commits[2])
	}
}

// The rules of HDFS-265.
func TestWhoTakesPartInARecovery(t *testing.T) {
	const fin, rbw, rwr = datanode.Finalized, datanode.RBW, datanode.RWR
	type o struct {
		state       datanode.ReplicaState
		gen, length int64
	}
	for _, c := range []struct {
		name   string
		offers []o
		part   []int
		length int64
		err    bool
		known  int64 // what the namenode knows to have been acknowledged
	}{
		{"finalized decides, RBW of its length join", []o{{fin, 1, 100}, {rbw, 1, 100}, {rbw, 1, 120}, {rwr, 1, 100}}, []int{0, 1}, 100, false, 0},
		{"the shortest RBW", []o{{rbw, 1, 100}, {rbw, 1, 90}, {rwr, 1, 10}}, []int{0, 1}, 90, false, 0},
		{"else the shortest RWR", []o{{rwr, 1, 100}, {rwr, 1, 90}}, []int{0, 1}, 90, false, 0},
		{"old ones take no part", []o{{fin, 0, 100}, {rbw, 1, 90}}, []int{1}, 90, false, 0},
		{"empty ones take no part", []o{{rbw, 1, 0}, {rwr, 1, 90}}, []int{1}, 90, false, 0},
		{"nothing", []o{{rbw, 1, 0}}, nil, 0, false, 0},
		{"newer ones do", []o{{rbw, 2, 80}, {rbw, 1, 90}}, []int{0, 1}, 80, false, 0},
		{"finalized of two lengths", []o{{fin, 1, 100}, {fin, 1, 90}}, nil, 0, true, 0},
		{"of finalized ones of two lengths the one that is too short is left out", []o{{fin, 1, 276207}, {fin, 1, 227640}, {fin, 1, 276207}}, []int{0, 2}, 276207, false, 229660},
		{"so is an RBW", []o{{rbw, 1, 100}, {rbw, 1, 90}}, []int{0}, 100, false, 95},
		{"a finalized one that is too short does not decide", []o{{fin, 1, 90}, {rwr, 1, 100}}, []int{1}, 100, false, 95},
		{"when all are too short there is nothing better", []o{{rbw, 1, 80}, {rbw, 1, 90}}, []int{0, 1}, 80, false, 95},
	} {
		var offers []offer
		for i, x := range c.offers {
			offers = append(offers, offer{
				node:  &pb.DatanodeID{Uuid: fmt.Sprint(i)},
				block: metadata.Block{ID: 7, Generation: metadata.Generation(x.gen), Length: x.length}, state: x.state,
			})
		}
		part, length, err := decide(metadata.Block{ID: 7, Generation: 1, Length: c.known}, offers)
		var who []int
		for _, p := range part {
			who = append(who, int(p.node.Uuid[0]-'0'))
		}
		if fmt.Sprint(who) != fmt.Sprint(c.part) || length != c.length || (err != nil) != c.err {
			t.Errorf("%s: %v with length %d, %v; want %v with %d", c.name, who, length, err, c.part, c.length)
		}
	}
}

// A recovery does not settle on what those have who lost the end of their replicas, while others may come back with it. When
// they have been waited for long enough it does.
func TestRecoveryWaitsForWhoMayHaveMore(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	dir := t.TempDir()
	d, stop := startDatanode(t, credentials, dir, n)
	waitReady(t, d)
	putOpen(t, d, 7, 1001, strings.Repeat("x", 1000))
	putOpen(t, d, 8, 1001, strings.Repeat("x", 1000))
	check(t, stop())
	d, _ = startDatanode(t, credentials, dir, n) // its replicas wait for recovery now
	waitReady(t, d)
	putOpen(t, d, 9, 1001, strings.Repeat("x", 1000))
	silent := &pb.DatanodeID{Uuid: "silent", Ip: "127.0.0.1", GrpcPort: 1}
	recovery := uint64(2000)
	for _, c := range []struct {
		name    string
		order   *pb.Recover
		settles bool
		length  int64
	}{
		{"one does not answer", &pb.Recover{Block: &pb.Block{Id: 7}, Replicas: []*pb.DatanodeID{d.id, silent}}, false, 0},
		{"one is dead", &pb.Recover{Block: &pb.Block{Id: 7}, Replicas: []*pb.DatanodeID{d.id}, Missing: []string{"dead"}}, false, 0},
		{"patience is over", &pb.Recover{Block: &pb.Block{Id: 7}, Replicas: []*pb.DatanodeID{d.id}, Missing: []string{"dead"}, PatienceOver: true}, true, 1000},
		{"everybody answers", &pb.Recover{Block: &pb.Block{Id: 8}, Replicas: []*pb.DatanodeID{d.id}}, true, 1000},
		{"too short, and one is dead", &pb.Recover{Block: &pb.Block{Id: 9, Length: 1001}, Replicas: []*pb.DatanodeID{d.id}, Missing: []string{"dead"}}, false, 0},
		{"nobody has it, and one is dead", &pb.Recover{Block: &pb.Block{Id: 10}, Replicas: []*pb.DatanodeID{d.id}, Missing: []string{"dead"}}, false, 0},
		{"acknowledged bytes are waited for without an end", &pb.Recover{Block: &pb.Block{Id: 10, Length: 5}, Replicas: []*pb.DatanodeID{d.id}, Missing: []string{"dead"}, PatienceOver: true}, false, 0},
		{"an RBW has everything", &pb.Recover{Block: &pb.Block{Id: 9, Length: 900}, Replicas: []*pb.DatanodeID{d.id, silent}}, true, 1000},
	} {
		recovery++
		c.order.Block.Generation, c.order.RecoveryId = 1001, recovery
		n.mu.Lock()
		n.commits = nil
		n.mu.Unlock()
		d.recoverBlock(t.Context(), c.order)
		n.mu.Lock()
		if (len(n.commits) == 1) != c.settles || c.settles && n.commits[0].Length != c.length {
			t.Errorf("%s: committed %v", c.name, n.commits)
		}
		n.mu.Unlock()
	}
}

func TestOtherClusterEndsTheDatanode(t *testing.T) {
	credentials := securitytest.Credentials(t)
	dir := t.TempDir()
	d, stop := startDatanode(t, credentials, dir, startNamenode(t, credentials, "lab"))
	waitReady(t, d)
	check(t, stop())
	d, err := New(configOf(t, credentials, dir, startNamenode(t, credentials, "other"), startNamenode(t, credentials, "third")))
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := d.Run(ctx); err == nil || !strings.Contains(err.Error(), "belongs to cluster lab, this is cluster ") {
		t.Errorf("ended with %v", err)
	}
}

// One namenode that was made anew, as another cluster, does not end the datanodes of all.
func TestOneNamenodeOfAnotherClusterEndsNothing(t *testing.T) {
	credentials := securitytest.Credentials(t)
	dir := t.TempDir()
	good := startNamenode(t, credentials, "lab")
	d, stop := startDatanode(t, credentials, dir, good)
	waitReady(t, d)
	check(t, stop())
	d, stop = startDatanode(t, credentials, dir, startNamenode(t, credentials, "other"), good)
	within(t, "the refusal shows", func() bool {
		return strings.Contains(d.health().Namenodes[0].Problem, "belongs to cluster lab, this is cluster other")
	})
	waitReady(t, d)
	put(t, d, 7, 1001, "data")
	within(t, "the other one hears of a block", func() bool { return good.heard(d, "RECEIVED 7_1001") })
	if err := stop(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestCertificateOfAnotherClusterIsNotFatalButSaid(t *testing.T) {
	n := startNamenode(t, securitytest.Credentials(t), "lab")
	d, _ := startDatanode(t, securitytest.Credentials(t), t.TempDir(), n)
	within(t, "the problem shows", func() bool {
		s := d.all()[0]
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.problem, "not of this cluster")
	})
}

func TestStartErrors(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	dir := t.TempDir()
	cfg := func() Config {
		return Config{
			Volumes: []Volume{{Path: dir}}, Transfer: listen(t), HTTP: listen(t), IPC: listen(t), GRPC: listen(t),
			NamenodesGRPC: []string{n.addr}, NamenodesIPC: []string{n.addr}, Credentials: credentials, Door: security.NewDoor(security.Config{}),
			Logger: slog.New(slog.DiscardHandler),
		}
	}
	running, err := New(cfg())
	check(t, err)
	defer running.Close()
	file := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(file, nil, 0o600))
	for name, c := range map[string]struct {
		change func(*Config)
		text   string
	}{
		"in use":       {func(*Config) {}, "another datanode runs on it"},
		"no volume":    {func(c *Config) { c.Volumes = nil }, "no volumes"},
		"file":         {func(c *Config) { c.Volumes[0].Path = file }, "is not a directory"},
		"type":         {func(c *Config) { c.Volumes[0].Type = "TAPE" }, `"TAPE" is none of`},
		"no namenode":  {func(c *Config) { c.NamenodesGRPC = nil }, "no namenode"},
		"any address":  {func(c *Config) { c.AdvertiseIP = "0.0.0.0" }, "clients have to dial it"},
		"no listeners": {func(c *Config) { c.HTTP = nil }, "no HTTP listener"},
	} {
		c2 := cfg()
		c.change(&c2)
		if s, err := New(c2); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: error %v, want %q", name, err, c.text)
			if s != nil {
				s.Close()
			}
		}
	}
}

func TestFailedVolumeIsReported(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	d, _ := startDatanode(t, credentials, t.TempDir(), n)
	waitReady(t, d)
	put(t, d, 1, 1, "x")
	w, err := d.store.Create(metadata.Block{ID: 2, Generation: 1}, datanode.CreateOptions{Type: datanode.SSD})
	check(t, err)
	_, err = w.Finalize()
	check(t, err)
	var gone string
	for _, v := range d.store.Volumes() {
		if r, _ := d.store.Replica(1); r.Volume == v.ID {
			gone = v.Path
		}
	}
	within(t, "somebody removes a disk", func() bool { return os.RemoveAll(gone) == nil }) // in which the scrubber may be making a file
	for id := int64(10); id < 14; id++ {
		w, err := d.store.Create(metadata.Block{ID: metadata.BlockID(id), Generation: 1}, datanode.CreateOptions{})
		if err == nil {
			_, err = w.Finalize()
		}
		if err != nil && !errors.Is(err, metadata.ErrIO) {
			t.Errorf("create: %v", err)
		}
	}
	within(t, "a report without the lost replica", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.replicas[d.UUID()][2] != nil && n.replicas[d.UUID()][1] == nil
	})
}
