package server

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/gohops/hops/datanode"
	datanodepb "github.com/gohops/hops/datanode/api/v1"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/datanode/transfer"
	"github.com/gohops/hops/internal/security"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// Server is a datanode.
type Server struct {
	cfg      Config
	log      *slog.Logger
	store    *blockstore.Store
	id       *pb.DatanodeID
	started  time.Time
	sessions []*session
	transfer *transfer.Server
	suspects *suspects
	clients  *clients
	peers    peers
	replicas crew // executes replicate orders
	deletes  crew
	recovers crew
	// term is the highest Raft term heard of.
	term atomic.Uint64

	ready     chan struct{}
	readyOnce sync.Once
	closeOnce sync.Once
}

// Concurrency of orders. More is asked for again by the namenode, orders repeat until they are reflected.
const (
	replicateWorkers = 4
	deleteWorkers    = 2
	recoverWorkers   = 4
)

// New opens the volumes and builds a datanode. Its errors are for the operator: a volume that is in use, of another
// layout, datanode or cluster, or not accessible; an address that must not be listened on.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	volumes, err := cfg.volumes()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, started: time.Now(), ready: make(chan struct{}),
		replicas: newCrew("replicate", replicateWorkers), deletes: newCrew("delete", deleteWorkers), recovers: newCrew("recover", recoverWorkers),
	}
	s.store, err = blockstore.Open(blockstore.Config{
		Volumes: volumes, FS: cfg.FS, Reserve: cfg.Reserve, Logger: cfg.Logger,
		OnChange:       s.changed,
		OnVolumeFailed: func(datanode.VolumeStatus) { s.volumeFailed() },
	})
	if err != nil {
		return nil, fmt.Errorf("datanode: %w", err)
	}
	s.id = cfg.id(s.store.Identity().Datanode)
	s.suspects = newSuspects(s.store, s.log)
	s.clients = newClients(s)
	s.peers = peers{secret: cfg.Secret}
	s.transfer = transfer.New(transfer.Config{
		Share:        s.cfg.Door.ShareOf,
		Store:        s.store,
		BlockPool:    func() string { return s.store.Identity().BlockPool },
		Suspect:      s.suspects.add,
		UseHostnames: cfg.UseHostnames,
		Logger:       s.log,
	})
	incarnation := rand.Uint64()
	for _, addr := range cfg.NamenodesGRPC {
		n, err := newSession(s, addr, incarnation)
		if err != nil {
			return nil, fmt.Errorf("datanode: namenode %s: %w", addr, joinClose(err, s.Close()))
		}
		s.sessions = append(s.sessions, n)
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
		for _, n := range s.sessions {
			n.conn.Close()
		}
		s.clients.close()
		s.peers.close()
		err = s.store.Shutdown()
	})
	return err
}

// Run serves until ctx is done and returns nil, or the error that makes the datanode useless: a namenode of another
// cluster, or a listener that broke.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	rpc := grpc.NewServer(s.cfg.Secret.GRPCServerOptions()...)
	datanodepb.RegisterReplicasServer(rpc, &replicasService{store: s.store})
	g.Go(func() error {
		stop := context.AfterFunc(ctx, rpc.Stop)
		defer stop()
		if err := rpc.Serve(security.LimitConnections(s.cfg.GRPC, 0)); err != nil && ctx.Err() == nil {
			return fmt.Errorf("datanode gRPC listener: %w", err)
		}
		return nil
	})
	g.Go(func() error { return s.transfer.Serve(ctx, s.cfg.Transfer) })
	g.Go(func() error { return s.ipcServer().Serve(ctx, s.cfg.IPC) })
	g.Go(func() error { return s.serveHTTP(ctx) })
	g.Go(func() error { s.suspects.run(ctx); return nil })
	g.Go(func() error { s.clients.run(ctx); return nil })
	for _, c := range []*crew{&s.replicas, &s.deletes, &s.recovers} {
		g.Go(func() error { c.run(ctx); return nil })
	}
	for _, n := range s.sessions {
		g.Go(func() error { return n.run(ctx) })
	}
	s.log.Info("datanode runs", "node", s.id.Uuid, "transfer", s.cfg.Transfer.Addr().String(), "volumes", len(s.cfg.Volumes))
	err := g.Wait()
	return joinClose(err, s.Close())
}

func joinClose(err, closeErr error) error {
	if err == nil {
		return closeErr
	}
	return err
}

func (s *Server) serveHTTP(ctx context.Context) error {
	names := map[string]bool{s.cfg.AdvertiseHost: true, s.cfg.AdvertiseIP: true}
	srv := &http.Server{
		Handler:           security.GuardHTTP(http.HandlerFunc(s.route), func(host string) bool { return names[host] }),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		drain, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if srv.Shutdown(drain) != nil {
			srv.Close()
		}
	})
	err := srv.Serve(security.LimitConnections(s.cfg.HTTP, 0))
	if !stop() {
		<-done
		return nil
	}
	return fmt.Errorf("datanode HTTP listener: %w", err)
}

// changed hears every change of a replica from the store.
func (s *Server) changed(c datanode.Change) {
	told := wireChange(c)
	for _, n := range s.sessions {
		n.enqueue(told)
	}
}

func (s *Server) volumeFailed() {
	for _, n := range s.sessions {
		n.beatNow()
		n.reportNow()
	}
}

// leader is the session with the namenode that leads, nil if none is known.
func (s *Server) leader() *session {
	for _, n := range s.sessions {
		if n.leads() {
			return n
		}
	}
	return nil
}
