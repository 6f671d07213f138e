package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
)

// cluster is a number of namenodes in this process, with real sockets and disks.
type cluster struct {
	t           testing.TB
	dir         string
	credentials security.Credentials
	members     []raftstore.Member
	nodes       []*member
	change      func(*Config)
	ports       processes.Ports // that nobody takes while a namenode is down
	reserve     int64
	// disk is what the members take for the free and all bytes of their disks; nil: the kernel is asked.
	disk func(dir string) (free, total int64, err error)
	// slowApply is how long the namespace may take for an entry; 0: so long that no busy machine takes it.
	slowApply time.Duration
}

type member struct {
	*Server
	ipc, http, grpc string
	stop            func()
}

// newCluster starts n namenodes and waits until they are ready. change may alter each one's configuration. Several namenodes need seconds
// for each election: their tests are parallel.
func newCluster(t testing.TB, n int, change func(*Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), credentials: securitytest.Credentials(t), change: change, reserve: -1}
	t.Cleanup(func() { c.ports.Close() })
	for i := range n {
		addr, err := c.ports.Take(1)
		if err != nil {
			t.Fatal(err)
		}
		c.members = append(c.members, raftstore.Member{ID: fmt.Sprintf("nn%d", i+1), Address: addr[0]})
	}
	c.nodes = make([]*member, n)
	for i := range n {
		c.start(i)
	}
	t.Cleanup(func() {
		for _, m := range c.nodes {
			if m != nil {
				m.stop()
			}
		}
	})
	for i := range n {
		c.await(i)
	}
	return c
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// start starts the ith namenode, again on the same Raft address.
func (c *cluster) start(i int) {
	c.t.Helper()
	id := c.members[i].ID
	raft, err := net.Listen("tcp", c.members[i].Address)
	if err != nil {
		c.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("HOPS_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	host := c.host(id, raft, log)
	ipc, http, rpc, transfer := listen(c.t), listen(c.t), listen(c.t), listen(c.t)
	properties := config.DefaultProperties()
	properties.MinBlockSize = 0
	conf := Config{
		ID: id, Dir: filepath.Join(c.dir, id, "data"), IPC: ipc, HTTP: http, GRPC: rpc, Transfer: transfer, Host: host, Members: c.members, Bootstrap: true,
		// Long enough that nobody loses leadership because the machine is busy, or stands still for some seconds. Who stops hands it over, and nobody waits for so long.
		Timers: raftstore.Timers{Heartbeat: 8 * time.Second, Lease: 8 * time.Second}, Credentials: c.credentials,
		Door:       security.NewDoor(security.Config{Supergroup: "supergroup"}),
		Properties: properties, SmallFiles: true, Logger: log,
	}
	if c.change != nil {
		c.change(&conf)
	}
	s, err := New(conf)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := host.Run(ctx); err != nil {
			c.t.Errorf("%s: host: %v", id, err)
		}
	})
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			c.t.Errorf("%s: %v", id, err)
		}
	})
	m := &member{Server: s, ipc: ipc.Addr().String(), http: http.Addr().String(), grpc: rpc.Addr().String()}
	var once sync.Once
	m.stop = func() {
		once.Do(func() {
			cancel()
			wg.Wait()
			if n := s.ipc.Counts().Again; n > 0 {
				c.t.Errorf("%s: %d calls were answered more than once", id, n)
			}
		})
	}
	c.nodes[i] = m
}

func (c *cluster) host(id string, raft net.Listener, log *slog.Logger) *raftstore.Host {
	c.t.Helper()
	host, err := raftstore.NewHost(raftstore.HostConfig{
		ID: id, Listener: raft, Dir: filepath.Join(c.dir, id, "raft"), Door: security.NewDoor(security.Config{}), Credentials: c.credentials, Role: authority.Namenode, Reserve: c.reserve, DiskSpace: c.disk, Logger: log,
		// A disk that many share hangs for seconds: no leader gives up for that, and nobody fails.
		WriteDeadline: 2 * limit, SlowWrite: limit, SlowApply: c.slowApply,
		OnFatal: func(err error) { c.t.Errorf("%s: the Raft store failed: %v", id, err) },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return host
}

// await waits until the ith namenode serves, and has listed the blocks that were there before: it refuses changes until then.
func (c *cluster) await(i int) {
	c.t.Helper()
	select {
	case <-c.nodes[i].Ready():
	case <-time.After(limit):
		c.t.Fatalf("%s is not ready after %v", c.members[i].ID, limit)
	}
	eventually(c.t, c.members[i].ID+" has listed its blocks", func() bool { return !c.nodes[i].listing.Load() })
}

// leader waits for a namenode that leads.
func (c *cluster) leader() *member {
	c.t.Helper()
	var found *member
	eventually(c.t, "a namenode leads", func() bool {
		for _, m := range c.nodes {
			if m != nil && m.Active() {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

func (c *cluster) client(user string) *dfs.Client {
	c.t.Helper()
	var addrs []string
	for _, m := range c.nodes {
		addrs = append(addrs, m.ipc)
	}
	client, err := dfs.New(dfs.Config{Namenodes: addrs, User: user, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { client.Close() })
	return client
}

// root is the superuser.
func (c *cluster) root() *dfs.Client { return c.client(c.nodes[0].config.Door.Daemon()) }

// rpc is a bare IPC connection of the superuser.
func (m *member) rpc(t testing.TB) *hrpc.Client {
	t.Helper()
	client, err := hrpc.Dial(t.Context(), m.ipc, hrpc.DialConfig{Protocol: clientprotocol.Name, User: m.config.Door.Daemon(), DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func (m *member) caller() metadata.Caller {
	c := m.config.Door.Caller(m.config.Door.Daemon())
	c.Host = "127.0.0.1"
	return c
}

// limit is how long a test waits for what has to happen: it bounds a hang, and nothing else.
const limit = 3 * time.Minute

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// datanode is a datanode that keeps no data: it registers, beats, reports, and obeys if told to.
type datanode struct {
	t    testing.TB
	c    *cluster
	uuid string
	ip   string
	port uint32
	room int64 // of each volume
	// memory is how many bytes of replicas it says that it may keep in memory.
	memory atomic.Int64
	slow   atomic.Bool // its disk

	mu       sync.Mutex
	replicas map[int64]*pb.Replica
	orders   []*pb.Orders // with something to do in them
	links    []*link
	cached   map[int64]*pb.Block // in memory, as ordered
	mute     bool                // does not obey
	stop     context.CancelFunc
	wg       sync.WaitGroup
}

// link is the connection to one namenode.
type link struct {
	addr    string
	client  pb.DatanodesClient
	changes chan *pb.BlockChange
	next    *pb.BlockChange // of changes, until the namenode has heard of it; only the session
}

var ports atomic.Uint32

// datanode starts a datanode that speaks to all namenodes and has the replicas.
func (c *cluster) datanode(uuid string, replicas ...*pb.Replica) *datanode {
	c.t.Helper()
	return c.datanodeAt(uuid, "127.0.0.1", 1<<40, replicas...)
}

// datanodeAt starts one at an address, of which the volumes have so much room.
func (c *cluster) datanodeAt(uuid, ip string, room int64, replicas ...*pb.Replica) *datanode {
	c.t.Helper()
	d := &datanode{t: c.t, c: c, uuid: uuid, ip: ip, room: room, port: 20000 + ports.Add(1), replicas: map[int64]*pb.Replica{}, cached: map[int64]*pb.Block{}}
	for _, r := range replicas {
		d.replicas[r.Block.Id] = r
	}
	for _, m := range c.nodes {
		d.connect(m.grpc, c.credentials)
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.stop = func() { cancel(); d.wg.Wait() }
	c.t.Cleanup(d.stop)
	for _, l := range d.links {
		d.wg.Go(func() { d.serve(ctx, l) })
	}
	for _, m := range c.nodes {
		eventually(c.t, uuid+" is registered with "+m.config.ID, func() bool {
			return slices.ContainsFunc(m.Datanodes(), func(r namenode.NodeReport) bool { return string(r.Node.ID) == uuid && !r.LastReport.IsZero() })
		})
	}
	return d
}

// knows waits until the namenode has heard from n datanodes that they have the block to its end.
func (m *member) knows(t testing.TB, b metadata.Block, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d replicas of %v are known", n, b), func() bool {
		m.soft.mu.Lock()
		defer m.soft.mu.Unlock()
		r, _ := m.soft.m.Describe(b.ID)
		whole := 0
		for _, at := range r.At {
			if at.State == namenode.Finalized && !at.Corrupt {
				whole++
			}
		}
		return whole >= n
	})
}

// know waits until all namenodes have heard from n datanodes that they have the block to its end: who follows hears of it by itself, and may lead next.
func (c *cluster) know(b metadata.Block, n int) {
	c.t.Helper()
	for _, m := range c.nodes {
		if m != nil {
			m.knows(c.t, b, n)
		}
	}
}

// die stops the datanode, and has the namenodes believe that it was silent for longer than they wait.
func (d *datanode) die() {
	d.t.Helper()
	d.stop()
	for _, m := range d.c.nodes {
		m.buries(d.t, d.uuid)
	}
}

// buries has the namenode believe that a datanode that was stopped was silent for longer than it waits.
func (m *member) buries(t testing.TB, uuid string) {
	t.Helper()
	eventually(t, m.config.ID+" holds "+uuid+" for dead", func() bool {
		id := namenode.NodeID(uuid)
		m.soft.mu.Lock()
		defer m.soft.mu.Unlock()
		m.soft.m.Beat(time.Now().Add(-m.config.DeadAfter), id, nil, 0)
		return m.soft.m.Dead(id)
	})
}

func (d *datanode) connect(addr string, credentials security.Credentials) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.Key(authority.Namenode).Credentials()))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { conn.Close() })
	d.links = append(d.links, &link{addr: addr, client: pb.NewDatanodesClient(conn), changes: make(chan *pb.BlockChange, 10000)})
}

func (d *datanode) id() *pb.DatanodeID {
	return &pb.DatanodeID{Uuid: d.uuid, Ip: d.ip, Host: "localhost", TransferPort: d.port, HttpPort: d.port + 10000, IpcPort: d.port + 20000, GrpcPort: d.port + 30000}
}

func (d *datanode) volumes() []*pb.Volume {
	return []*pb.Volume{
		{Id: "DS-" + d.uuid, Type: "DISK", Capacity: 1 << 40, Remaining: d.room, Slow: d.slow.Load()}, {Id: "SSD-" + d.uuid, Type: "SSD", Capacity: 1 << 40, Remaining: d.room},
	}
}

func (d *datanode) serve(ctx context.Context, l *link) {
	for ctx.Err() == nil {
		if err := d.session(ctx, l); err != nil && ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// session ends when one of its goroutines does, and with all of them.
func (d *datanode) session(ctx context.Context, l *link) error {
	g, ctx := errgroup.WithContext(ctx)
	defer func() { _ = g.Wait() }()
	if _, err := l.client.Register(ctx, &pb.RegisterRequest{Datanode: d.id(), Volumes: d.volumes(), Incarnation: 1}); err != nil {
		return err
	}
	report, err := l.client.ReportBlocks(ctx)
	if err != nil {
		return err
	}
	d.mu.Lock()
	chunk := &pb.BlockReport{DatanodeUuid: d.uuid, ReportId: uint64(time.Now().UnixNano()), VolumeId: "DS-" + d.uuid, Last: true}
	for _, r := range d.replicas {
		chunk.Replicas = append(chunk.Replicas, proto.CloneOf(r)) // which a recovery changes
	}
	d.mu.Unlock()
	if err := report.Send(chunk); err != nil {
		return err
	}
	if _, err := report.CloseAndRecv(); err != nil {
		return err
	}
	beats, err := l.client.Heartbeat(ctx)
	if err != nil {
		return err
	}
	g.Go(func() error {
		for {
			if err := beats.Send(&pb.Beat{DatanodeUuid: d.uuid, Volumes: d.volumes(), CacheCapacity: d.memory.Load()}); err != nil {
				return err
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	g.Go(func() error {
		for {
			o, err := beats.Recv()
			if err == nil && o.Report {
				err = fmt.Errorf("asked to report")
			}
			if err != nil {
				return err
			}
			d.obey(ctx, l, o)
		}
	})
	g.Go(func() error {
		for {
			if l.next == nil {
				select {
				case l.next = <-l.changes:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if _, err := l.client.BlocksChanged(ctx, &pb.BlocksChangedRequest{DatanodeUuid: d.uuid, Changes: []*pb.BlockChange{l.next}}); err != nil {
				return err
			}
			l.next = nil
		}
	})
	return g.Wait()
}

func (d *datanode) obey(ctx context.Context, l *link, o *pb.Orders) {
	d.mu.Lock()
	if len(o.Replicate)+len(o.Delete)+len(o.Discard)+len(o.Recover)+len(o.Rebuild)+len(o.Cache)+len(o.Uncache) > 0 {
		d.orders = append(d.orders, o)
	}
	mute := d.mute
	d.mu.Unlock()
	if mute {
		return
	}
	for _, b := range slices.Concat(o.Delete, o.Discard) {
		d.mu.Lock()
		delete(d.replicas, b.Id)
		d.mu.Unlock()
		d.tell(pb.BlockChange_DELETED, b)
	}
	for _, b := range o.Cache {
		d.mu.Lock()
		d.cached[b.Id] = b
		d.mu.Unlock()
		d.tell(pb.BlockChange_CACHED, b)
	}
	for _, id := range o.Uncache {
		d.mu.Lock()
		delete(d.cached, id)
		d.mu.Unlock()
		d.tell(pb.BlockChange_UNCACHED, &pb.Block{Id: id})
	}
	for _, r := range o.Recover {
		d.mu.Lock()
		mine := d.replicas[r.Block.Id]
		if source := d.replicas[r.GetSource().GetId()]; r.Source != nil && source != nil {
			mine = proto.CloneOf(source)
			mine.Block.Id = r.Block.Id
			d.replicas[r.Block.Id] = mine
		}
		d.mu.Unlock()
		done := &pb.CommitBlockSynchronizationRequest{Block: r.Block, RecoveryId: r.RecoveryId, Close: true, DeleteBlock: true}
		if mine != nil {
			d.mu.Lock()
			mine.State, mine.Block.Generation = pb.ReplicaState_FINALIZED, r.RecoveryId
			if r.Truncate > 0 {
				mine.Block.Length = r.Truncate - 1
			}
			b := proto.CloneOf(mine.Block)
			d.mu.Unlock()
			done.DeleteBlock, done.Length, done.Locations = false, b.Length, []*pb.DatanodeID{d.id()}
			d.tell(pb.BlockChange_RECEIVED, b)
		}
		_, _ = l.client.CommitBlockSynchronization(ctx, done)
	}
}

func (d *datanode) tell(kind pb.BlockChange_Kind, b *pb.Block) {
	c := &pb.BlockChange{Kind: kind, Block: &pb.Block{Id: b.Id, Generation: b.Generation, Length: b.Length}, VolumeId: "DS-" + d.uuid}
	for _, l := range d.links {
		l.changes <- c
	}
}

// has puts a replica on the datanode and tells the namenodes.
func (d *datanode) has(b metadata.Block, state pb.ReplicaState) {
	w := wireBlock(b)
	d.mu.Lock()
	d.replicas[w.Id] = &pb.Replica{Block: wireBlock(b), State: state}
	d.mu.Unlock()
	kind := pb.BlockChange_RECEIVED
	if state != pb.ReplicaState_FINALIZED {
		kind = pb.BlockChange_RECEIVING
	}
	d.tell(kind, w)
}

// received waits for orders that satisfy ok.
func (d *datanode) received(what string, ok func(*pb.Orders) bool) {
	d.t.Helper()
	eventually(d.t, d.uuid+" is ordered to "+what, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return slices.ContainsFunc(d.orders, ok)
	})
}
