package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/datanode"
	datanodepb "github.com/gohops/hops/datanode/api/v1"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/datanode/cache"
	"github.com/gohops/hops/datanode/diskbalance"
	"github.com/gohops/hops/datanode/scrub"
	"github.com/gohops/hops/datanode/transfer"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// Server is a datanode.
type Server struct {
	cfg         Config
	log         *slog.Logger
	store       *blockstore.Store
	left        bool // at the end somebody waits for a disk, and was left behind
	id          *pb.DatanodeID
	started     time.Time
	sessions    atomic.Pointer[[]*session] // see namenodes.go, as for the next four
	ipc         atomic.Pointer[[]string]   // the namenodes' addresses for clients
	rpc         atomic.Pointer[hrpc.Server]
	listMu      sync.Mutex    // held while the list is replaced
	listed      chan struct{} // capacity 1: it was
	incarnation uint64
	transfer    *transfer.Server
	slots       atomic.Pointer[transfer.Server] // transfer; nil while the store is opened, which has news by then
	remembers   atomic.Pointer[cache.Cache]     // memory, as slots
	near        *localsocket.Near
	trust       *trust
	stranger    *security.Stranger
	scrub       *scrub.Scrubber
	balancer    *diskbalance.Balancer // of the volumes
	clients     *clients
	peers       peers
	pages       *status.Pages
	replicas    *crews // executes replicate orders
	deletes     *crews
	caching     *crews
	memory      *cache.Cache
	recovers    *crews
	rebuilds    crew
	readers     lostReaders
	rebuilt     rebuilding
	decided     decisions
	reconfig    reconfiguration
	changing    sync.Mutex     // held by who opens volumes and gives them back
	hurt        chan struct{}  // capacity 1: a volume has failed
	unanswered  sync.WaitGroup // work on replicas for which nobody may wait any more
	peerTime    time.Duration  // the constant, more in tests
	sourceTime  time.Duration  // the constant, less in tests
	// requests and answers are the process's budgets, others in tests. Who holds something of answers does not wait for requests.
	requests, answers *security.Budget
	// term is the highest Raft term heard of, bandwidth what its leader leaves to balancers of Hadoop; 0: it has not said so.
	term      atomic.Uint64
	bandwidth atomic.Int64

	ready     chan struct{}
	readyOnce sync.Once
	closeOnce sync.Once
}

// Concurrency of orders, for each volume but of those to compute. More is asked for again by the namenode, orders repeat until they are reflected.
const (
	replicateWorkers = 16
	deleteWorkers    = 2
	recoverWorkers   = 4
	rebuildWorkers   = 2
	cacheWorkers     = 1
)

// New opens the volumes and builds a datanode. Its errors are for the operator: a volume that is in use, of another
// layout, datanode or cluster, or not accessible; an address that must not be listened on.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	volumes, err := volumesOf(cfg.Volumes)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, started: time.Now(), ready: make(chan struct{}), listed: make(chan struct{}, 1), hurt: make(chan struct{}, 1), incarnation: rand.Uint64(),
		rebuilds: newCrew("rebuild", rebuildWorkers),
		stranger: &security.Stranger{Logger: cfg.Logger}, peerTime: peerTime, sourceTime: sourceTime, requests: security.Requests(), answers: security.Answers(),
	}
	s.sessions.Store(&[]*session{}) // the store has news while it is opened
	s.ipc.Store(&cfg.NamenodesIPC)
	s.store, err = blockstore.Open(blockstore.Config{
		Volumes: volumes, FS: cfg.FS, Reserve: cfg.Reserve, Keep: cfg.TrashKeep, Tolerated: cfg.Tolerated, DiskTimeout: cfg.DiskTimeout,
		Unsynced: cfg.Unsynced, Logger: cfg.Logger,
		OnChange:       s.changed,
		OnVolumeFailed: s.volumeFailed,
		OnVolumeSlow:   s.volumeSlow,
		OnStuck:        func() { s.transfer.HangUp() }, // the watchdog runs when that is there
	})
	if err != nil {
		return nil, fmt.Errorf("datanode: %w", err)
	}
	s.memory = cache.New(cache.Config{Store: s.store, Most: cfg.LockedMemory, Told: s.inMemory, Logger: s.log})
	s.remembers.Store(s.memory)
	s.caching = newCrews(s.store, "cache", cacheWorkers)
	s.recovers = newCrews(s.store, "recover", recoverWorkers)
	others := newCrew("recover", recoverWorkers)
	s.recovers.elsewhere = &others
	s.replicas, s.deletes = newCrews(s.store, "replicate", replicateWorkers), newCrews(s.store, "delete", deleteWorkers)
	s.id = cfg.id(s.store.Identity().Datanode)
	s.scrub = scrub.New(scrub.Config{Store: s.store, Rate: cfg.ScrubRate, Every: cfg.ScrubEvery, Logger: s.log})
	s.balancer = diskbalance.New(diskbalance.Config{Store: s.store, Datanode: s.id.Uuid, Logger: s.log})
	s.clients = newClients(s)
	s.peers = peers{credentials: cfg.Credentials, most: maxPeers}
	s.trust = newTrust(cfg.Door.Daemon(), s.askTrust)
	s.near = localsocket.NewNear(cfg.NearPath, s.log)
	s.transfer = transfer.New(transfer.Config{
		MendRate: s.cfg.RebuildRate,
		Near:     s.dialNear,
		Share:    func(c net.Conn) uint32 { return s.cfg.Door.Peer(c).UID() },
		Unwelcome: func(c net.Conn, proved bool) error {
			p := s.cfg.Door.Peer(c)
			if proved && !p.Secure() { // in plain, wherever from
				return nil
			}
			return p.Refused()
		},
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return s.dial(ctx, string(authority.Datanode), addr)
		},
		Store:        s.store,
		UUID:         s.id.Uuid,
		Move:         s.store.Move,
		Bandwidth:    s.bandwidth.Load,
		Trust:        s.trust,
		BlockPool:    func() string { return s.store.Identity().BlockPool },
		Broken:       s.scrub.Order,
		Answers:      s.store.Answers,
		Silent:       s.silent,
		Mute:         s.store.Mute,
		GaveUp:       s.store.GaveUp,
		Accused:      s.scrub.Accuse,
		Refused:      s.cfg.Door.Record,
		Protection:   cfg.Protection,
		Encrypt:      cfg.Encrypt,
		Prove:        func(c net.Conn) bool { return !s.cfg.Door.Carries(s.cfg.Door.Peer(c)) },
		UseHostnames: cfg.UseHostnames,
		Slow:         cfg.Slow,
		Logger:       s.log,
	})
	s.slots.Store(s.transfer)
	s.pages = s.newPages()
	var sessions []*session
	for _, addr := range cfg.NamenodesGRPC {
		n, err := newSession(s, addr, s.incarnation)
		if err != nil {
			return nil, fmt.Errorf("datanode: namenode %s: %w", addr, joinClose(err, s.Close()))
		}
		sessions = append(sessions, n)
		list := slices.Clone(sessions)
		s.sessions.Store(&list)
	}
	return s, nil
}

// UUID identifies the datanode for the life of its data.
func (s *Server) UUID() string { return s.id.Uuid }

// Store is the datanode's block store.
func (s *Server) Store() datanode.BlockStore { return s.store }

// Ready is closed when a namenode that leads has the first full report.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Close releases the volumes of a server that does not run. Run calls it at its end. Idempotent.
func (s *Server) Close() error {
	var err error
	s.closeOnce.Do(func() {
		for _, n := range s.all() {
			n.conn.Close()
		}
		s.clients.close()
		s.peers.close()
		if s.left { // somebody still uses it: the end of the process closes it, which may take as long as the disk
			s.store.Leave()
			return
		}
		s.settle()
		s.memory.Close()
		err = s.store.Shutdown()
	})
	return err
}

// endWait is how long a datanode that ends waits for what is under way while a disk does not answer, endLook how often it looks whether that is so.
const (
	endWait = 2 * time.Second
	endLook = 100 * time.Millisecond
)

// await waits until all parts have ended. Once ctx is done, what waits for a disk that does not answer is left behind.
func (s *Server) await(ctx context.Context, parts *errgroup.Group) error {
	ended := make(chan error, 1)
	go func() { ended <- parts.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	for end := time.Now().Add(endWait); ; {
		select {
		case err := <-ended:
			return err
		case <-time.After(endLook):
		}
		if time.Now().After(end) && s.store.AnyLate(endWait/2) {
			s.left = true
			s.log.Warn("a disk does not answer: the datanode ends without what waits for it")
			if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		}
	}
}

// Run serves until ctx is done and returns nil, or the error that makes the datanode useless: a namenode of another
// cluster, a listener that broke, or more volumes that failed than may.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.serveGRPC(ctx) })
	g.Go(func() error {
		listeners := []net.Listener{s.guard(s.cfg.Transfer, "datanode data transfer", transferDescriptors)}
		if s.cfg.Near != nil {
			listeners = append(listeners, s.guard(s.cfg.Near, "datanode domain socket", transferDescriptors))
		}
		return s.transfer.Serve(ctx, listeners...)
	})
	rpc := s.ipcServer()
	s.rpc.Store(rpc)
	g.Go(func() error { return rpc.Serve(ctx, s.guard(s.cfg.IPC, "datanode IPC", 1)) })
	g.Go(func() error { return s.serveHTTP(ctx) })
	g.Go(func() error { s.trust.run(ctx); return nil })
	g.Go(func() error { s.scrub.Run(ctx); return nil })
	g.Go(func() error { s.balancer.Run(ctx); return nil })
	g.Go(func() error { s.clients.run(ctx); return nil })
	g.Go(func() error { s.rebuilds.run(ctx); return nil })
	for _, crews := range []*crews{s.replicas, s.deletes, s.caching, s.recovers} {
		g.Go(func() error { crews.run(ctx); return nil })
	}
	watching, end := context.WithCancel(context.WithoutCancel(ctx)) // to the end of all others, who may wait for a disk
	defer end()
	go s.store.Watch(watching, s.cfg.DiskTimeout)
	g.Go(func() error { s.store.Persist(ctx, s.cfg.SaveEvery); return nil })
	g.Go(func() error { s.store.Settle(ctx); return nil })
	g.Go(func() error { s.store.Index(ctx); return nil })
	g.Go(func() error { s.revive(ctx); return nil })
	g.Go(func() error { return s.speak(ctx) })
	g.Go(func() error { return s.suffer(ctx) })
	s.log.Info("datanode runs", "node", s.id.Uuid, "transfer", s.cfg.Transfer.Addr().String(), "volumes", len(s.cfg.Volumes))
	err := s.await(ctx, g)
	return joinClose(err, s.Close())
}

// dial connects to another server of the cluster.
func (s *Server) dial(ctx context.Context, role, addr string) (net.Conn, error) {
	return s.cfg.Credentials.Dialer().Dial(ctx, addr, authority.Role(role))
}

// dialNear connects to a datanode of this machine.
func (s *Server) dialNear(ctx context.Context, addr string) net.Conn {
	if !s.near.Names() {
		return nil
	}
	if c := s.near.Dial(ctx, addr); c != nil {
		return c
	}
	return nil // and no UnixConn that is nil
}

// within connects to this datanode if that is the one.
func (s *Server) within(datanode string) net.Conn {
	if datanode != s.id.Uuid {
		return nil
	}
	return s.transfer.Within()
}

func joinClose(err, closeErr error) error {
	if err == nil {
		return closeErr
	}
	return err
}

// transferDescriptors is how many descriptors a transfer uses: its connection, the block's two files, and the connection
// to the next datanode.
const transferDescriptors = 4

func (s *Server) guard(l net.Listener, name string, descriptors int) net.Listener {
	return s.cfg.Door.Guard(l, security.Doorway{Name: name, Descriptors: descriptors})
}

func services(r *replicasService, c *contentsService) []security.Service {
	return []security.Service{
		{Desc: &datanodepb.Replicas_ServiceDesc, Server: r, Right: security.ServersOnly, Roles: []authority.Role{authority.Datanode}},
		{Desc: &datanodepb.Contents_ServiceDesc, Server: c, Right: security.ServersOnly, Roles: []authority.Role{authority.Namenode}},
	}
}

func (s *Server) serveGRPC(ctx context.Context) error {
	return s.cfg.Door.ServeGRPC(ctx, s.cfg.GRPC, security.GRPC{
		Doorway: security.Doorway{Name: "datanode gRPC", Servers: true}, Keys: security.Keyring{Member: s.cfg.Credentials.Member, Roles: []authority.Role{authority.Datanode, authority.Namenode}},
		Services: services(&replicasService{store: s.store, decided: &s.decided}, newContents(s)),
	})
}

func (s *Server) serveHTTP(ctx context.Context) error {
	names := map[string]bool{s.cfg.AdvertiseHost: true, s.cfg.AdvertiseIP: true}
	return s.cfg.Door.ServeHTTP(ctx, s.cfg.HTTP, security.HTTP{
		Doorway: security.Doorway{Name: "datanode HTTP"}, Handler: http.HandlerFunc(s.route),
		Hosts: func(host string) bool { return names[host] }, Logger: s.log,
	})
}

// changed hears every change of a replica from the store.
func (s *Server) changed(c datanode.Change) {
	if t := s.slots.Load(); t != nil && c.Kind != datanode.Verified {
		t.Changed(c.Block.ID)
	}
	defer func() {
		if m := s.remembers.Load(); m != nil { // behind what has happened to it
			m.Changed(c)
		}
	}()
	told := wireChange(c)
	for _, n := range s.all() {
		n.enqueue(told)
	}
}

// inMemory hears that a replica is kept in memory, or is not.
func (s *Server) inMemory(b metadata.Block, there bool) {
	kind := datanode.Uncached
	if there {
		kind = datanode.Cached
	}
	told := wireChange(datanode.Change{Kind: kind, Block: b})
	for _, n := range s.all() {
		n.enqueue(told)
	}
}

func (s *Server) volumeFailed(v datanode.VolumeStatus) {
	if m := s.remembers.Load(); m != nil {
		m.VolumeFailed(v.ID)
	}
	for _, n := range s.all() {
		n.beatNow()
		n.reportNow()
	}
	poke(s.hurt)
}

// silent reports whether the disk of a replica is known not to answer.
func (s *Server) silent(id metadata.BlockID) bool {
	v, here := s.store.VolumeOf(id)
	return here && s.store.Silent(v)
}

// volumeSlow tells the namenodes at once that a volume is slow, or is no more.
func (s *Server) volumeSlow() {
	for _, n := range s.all() {
		n.beatNow()
	}
}

// farewell is how long a datanode that ends for want of volumes waits for the namenodes to have heard of them.
const farewell = 5 * time.Second

// suffer ends the datanode, by its error, when more volumes have failed than the configuration lets fail, as HDFS's DataNode does (checkDiskError).
func (s *Server) suffer(ctx context.Context) error {
	for s.cfg.Tolerated != nil {
		select {
		case <-s.hurt:
		case <-ctx.Done():
			return nil
		}
		cause := s.store.Tolerable()
		if cause == nil {
			continue
		}
		// First the namenodes hear which volumes have failed: that those that work have gone too they find out by the silence.
		for end := time.Now().Add(farewell); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			if !slices.ContainsFunc(s.all(), func(n *session) bool { return n.ignorant() }) {
				break
			}
		}
		return fmt.Errorf("datanode: it ends, because no more than %d volumes may fail (failed_volumes_tolerated): %w", *s.cfg.Tolerated, cause)
	}
	return nil
}

// leader is the session with the namenode that leads, nil if none is known.
func (s *Server) leader() *session {
	for _, n := range s.all() {
		if n.leads() {
			return n
		}
	}
	return nil
}
