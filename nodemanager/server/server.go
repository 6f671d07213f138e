package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/yarntoken"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/gpu"
	"github.com/gohops/hops/nodemanager/localizer"
	"github.com/gohops/hops/nodemanager/shuffle"
	"github.com/gohops/hops/nodemanager/state"
	"github.com/gohops/hops/nodemanager/supervisor"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// Server is a node manager.
type Server struct {
	config    Config
	log       *slog.Logger
	store     *state.Store
	localizer *localizer.Localizer
	leader    atomic.Pointer[grpc.ClientConn]    // to the resource manager that has acknowledged a report last
	verifier  atomic.Pointer[yarntoken.Verifier] // of YARN's tokens, once there are keys
	placed    atomic.Pointer[place]
	groups    *cgroup.Manager
	boot      string
	born      time.Time
	ready     chan struct{}
	readyOnce sync.Once
	// nudged asks for a report at once.
	nudged chan struct{}

	// Container goroutines live in work, under a context that outlasts Run's by the time it takes to stop them. stopping is
	// closed when it ends.
	work      sync.WaitGroup
	lifetime  context.Context // of containers' goroutines; set by Run before anything is served
	stopping  chan struct{}
	recording atomic.Bool // a goroutine records the term
	// service is what an operator wants of the node; nil: that it serves.
	service   atomic.Pointer[rmpb.NodeService]
	localized latency // preparations of containers' directories

	mu         sync.Mutex
	containers map[nodemanager.ContainerID]*container
	shuffled   *shuffle.Keys // of the applications whose outputs are served from here; nil: none are
	removals   atomic.Int64  // directories of applications that were removed
	appDirs    sync.Mutex    // of who makes one or takes one away; not to be waited for with mu
	forgotten  tombstones[nodemanager.ContainerID]
	expected   map[nodemanager.ContainerID]time.Time // launched through here, and not ordered to start yet
	lostLogs   tombstones[nodemanager.ApplicationID] // applications of which logs were given up
	lease      supervisor.Lease
	leaseMoved chan struct{} // closed and replaced when lease changes
	filesystem map[nodemanager.User]*userFS

	health  healthState
	script  scriptState
	devices deviceState
	streams streams
	shells  streams // sessions in containers

	protection protection
}

// New opens the work directory. It fails, saying why, when another node manager uses it or it cannot be written.
func New(config Config) (*Server, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	store, err := state.Open(config.Work)
	if err != nil {
		return nil, fmt.Errorf("node manager: %w", err)
	}
	loc, err := localizer.New(localizer.Config{Cache: filepath.Join(store.Dir(), "cache"), Boot: state.BootID(), Reserve: config.Reserve, Authorities: authorities(config.Cluster)})
	if err != nil {
		store.Close()
		return nil, fmt.Errorf("node manager: %w", err)
	}
	var shuffled *shuffle.Keys
	if config.Shuffle != nil {
		if shuffled, err = shuffle.Open(filepath.Join(store.Dir(), "shuffle")); err != nil {
			store.Close()
			return nil, fmt.Errorf("node manager: %w", err)
		}
	}
	report := cgroup.Detect()
	if config.Groups != nil {
		report = *config.Groups
	}
	s := &Server{
		config: config, log: config.Logger.With("node", config.NodeID), store: store, localizer: loc,
		boot: state.BootID(), born: time.Now(), ready: make(chan struct{}), nudged: make(chan struct{}, 1),
		containers: map[nodemanager.ContainerID]*container{}, expected: map[nodemanager.ContainerID]time.Time{}, leaseMoved: make(chan struct{}),
		stopping:   make(chan struct{}),
		filesystem: map[nodemanager.User]*userFS{}, shuffled: shuffled,
	}
	s.placed.Store(&place{config.ResourceManagers, config.Cluster})
	// The group's name must not change over restarts, and two node managers of a machine must not share one.
	s.groups = cgroup.Open(report, fmt.Sprintf("%x", sha256.Sum256([]byte(store.Dir())))[:12])
	s.devices.asked = make(chan struct{}, 1)
	s.health.set(s.checkDisk())
	return s, nil
}

// place is where the rest of the cluster is.
type place struct {
	managers []string // gRPC addresses of the resource managers
	cluster  Cluster
}

func (s *Server) place() *place { return s.placed.Load() }

// SetCluster replaces what is known of the rest of the cluster: the gRPC addresses of the resource managers, and what containers are
// told that start from now on. Without resource managers its containers go on as in an outage of all. It may be called from several goroutines.
func (s *Server) SetCluster(resourceManagers []string, c Cluster) error {
	s.placed.Store(&place{slices.Clone(resourceManagers), c})
	s.localizer.SetAuthorities(authorities(c))
	return nil
}

// TellAuthorities has containers that run know by which authorities' certificates servers are known now.
func (s *Server) TellAuthorities() error {
	var failed error
	for _, c := range s.list() {
		failed = errors.Join(failed, c.tellAuthoritiesAgain())
	}
	return failed
}

// authorities are the hosts and ports under which artifacts may name the cluster's filesystem.
func authorities(c Cluster) []string {
	if fs, ok := strings.CutPrefix(c.FS, "hdfs://"); ok && len(c.Namenodes) > 0 {
		return append([]string{strings.TrimSuffix(fs, "/")}, c.Namenodes...)
	}
	return c.Namenodes
}

// Ready is closed when a resource manager has acknowledged the first report.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Groups is what control groups enforce here.
func (s *Server) Groups() cgroup.Report { return s.groups.Report() }

// Run serves until ctx is done. Containers outlive it unless Config.StopContainers says otherwise.
func (s *Server) Run(ctx context.Context) error {
	defer s.store.Close()
	defer s.config.GPUs.Close()
	defer func() { s.closeFilesystems(time.Now()) }()
	s.log.Info("node manager starts", "incarnation", s.store.Incarnation(), "memory", s.config.Memory, "vcores", s.config.VCores,
		"groups", s.groups.Report().String())
	s.recallGPUs()
	if s.config.GPUs.Name() == "nvml" {
		if err := gpu.Complete(ctx); err != nil {
			s.log.Warn("device files of the GPUs are not complete", "error", err)
		}
	}
	if err := s.readDevices(ctx); err != nil {
		s.closeListeners()
		return fmt.Errorf("node manager: %w", err)
	}
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	s.lifetime = work
	s.findIsolation(ctx) // adopted containers may have to be started yet
	if err := s.adopt(work); err != nil {
		s.closeListeners()
		return fmt.Errorf("node manager: %w", err)
	}
	s.findDatanode()
	s.sweep(ctx, sweepPatience)
	s.watchForgotten(ctx)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.serveHTTP(ctx) })
	g.Go(func() error { return s.serveIPC(ctx) })
	g.Go(func() error { return s.serveShuffle(ctx) })
	g.Go(func() error { s.speak(ctx, work); return nil })
	g.Go(func() error { s.watchDevices(ctx); return nil })
	g.Go(func() error { s.watchHealth(ctx); return nil })
	g.Go(func() error { s.runHealthScript(ctx); return nil })
	err := g.Wait()
	if s.config.StopContainers {
		s.stopAll()
	}
	s.noteUse(time.Now(), true)
	stopWork()
	close(s.stopping)
	s.work.Wait()
	s.groups.Close()
	s.log.Info("node manager has stopped", "error", err)
	return err
}

// StopPatience is how long a node manager that ends its containers waits for them when it stops.
const StopPatience = 10 * time.Second

// stopAll ends every container and waits for it, StopPatience at most.
func (s *Server) stopAll() {
	deadline := time.After(StopPatience)
	all := s.list()
	for _, c := range all {
		c.order(&state.StopOrder{Status: nodemanager.Aborted, Reason: "the node manager was stopped"}, time.Second)
	}
	for _, c := range all {
		select {
		case <-c.gone:
		case <-deadline:
			s.log.Error("a container does not end; its supervisor goes on trying", "container", c.id)
			return
		}
	}
}

// adopt takes over the containers that an earlier node manager of this directory left.
func (s *Server) adopt(work context.Context) error {
	records, damaged, err := s.store.Load()
	if err != nil {
		return err
	}
	for id, err := range damaged {
		s.log.Error("a container's record cannot be read; the container is ended", "container", id, "error", err)
		records = append(records, &state.Record{
			Spec: nodemanager.Spec{ID: id}, State: nodemanager.Stopping, Boot: s.boot,
			Stop: &state.StopOrder{Status: nodemanager.Aborted, Reason: fmt.Sprintf("the node manager lost the container's record: %v", err)},
		})
	}
	known := map[string]bool{}
	var adopted []*container
	for _, r := range records {
		c := s.newContainer(r)
		if adopted = append(adopted, c); r.State != nodemanager.Complete {
			c.adoptTrees() // before any of them is prepared, which may remove what nobody uses
		}
		s.mu.Lock()
		s.containers[c.id] = c
		s.mu.Unlock()
		known[string(c.id)] = true
	}
	s.sweepAppDirs(adopted)
	for _, c := range adopted {
		s.work.Go(func() { c.resume(work) })
	}
	for _, name := range s.groups.List() {
		if known[name] {
			continue
		}
		ctx, cancel := context.WithTimeout(work, 5*time.Second)
		if err := supervisor.KillStray(ctx, s.groups.Group(name), supervisor.Mark(filepath.Join(s.store.Dir(), "containers", name, "work"))); err != nil {
			s.log.Error("a control group without a container stays", "container", name, "error", err)
		}
		cancel()
	}
	return nil
}

// list is all containers, forgotten ones included.
func (s *Server) list() []*container {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*container, 0, len(s.containers))
	for _, c := range s.containers {
		all = append(all, c)
	}
	return all
}

func (s *Server) find(id nodemanager.ContainerID) *container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.containers[id]
}

// pause waits, and reports whether the node manager still works afterwards.
func (s *Server) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.stopping:
		return false
	case <-t.C:
		return true
	}
}

// nudge asks for a report now.
func (s *Server) nudge() {
	select {
	case s.nudged <- struct{}{}:
	default:
	}
}

// userFS is the filesystem as one user sees it, while somebody uses it and a little longer.
type userFS struct {
	fs   Filesystem
	uses int
	idle time.Time // since when uses is 0
}

// fsIdle is how long a user's connections to the filesystem stay open for the next container.
const fsIdle = time.Minute

// fs opens the filesystem as a user. Every success wants a releaseFS.
func (s *Server) fs(user nodemanager.User) (Filesystem, error) {
	if s.config.FS == nil {
		return nil, fmt.Errorf("this node has no connection to a filesystem")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.filesystem[user]
	if u == nil {
		f, err := s.config.FS(string(user))
		if err != nil {
			return nil, err
		}
		u = &userFS{fs: f}
		s.filesystem[user] = u
	}
	u.uses++
	return u.fs, nil
}

func (s *Server) releaseFS(user nodemanager.User) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.filesystem[user]
	if u.uses--; u.uses == 0 {
		u.idle = time.Now()
	}
}

// closeFilesystems closes those that nobody has used since a moment.
func (s *Server) closeFilesystems(since time.Time) {
	var unused []Filesystem
	s.mu.Lock()
	for user, u := range s.filesystem {
		if u.uses == 0 && !u.idle.After(since) {
			unused = append(unused, u.fs)
			delete(s.filesystem, user)
		}
	}
	s.mu.Unlock()
	for _, f := range unused {
		if c, ok := f.(io.Closer); ok {
			c.Close()
		}
	}
}

func (s *Server) serveHTTP(ctx context.Context) error {
	return s.config.Door.ServeHTTP(ctx, s.config.HTTP, security.HTTP{
		Doorway: security.Doorway{Name: "node manager HTTP"}, Handler: s.handler(), Hosts: func(host string) bool { return host == s.config.Host },
		ReadTime: 30 * time.Second, // nothing here takes a large body
		Drain:    2 * time.Second, Interrupt: true, Logger: s.log,
	})
}

// tombstones remembers what is gone: containers that were forgotten, so that a late order does not start one again.
type tombstones[ID comparable] struct {
	set   map[ID]bool
	order []ID
}

const maxTombstones = 20000

func (t *tombstones[ID]) add(id ID) {
	if t.set == nil {
		t.set = map[ID]bool{}
	}
	if t.set[id] {
		return
	}
	t.set[id] = true
	t.order = append(t.order, id)
	if len(t.order) > maxTombstones {
		delete(t.set, t.order[0])
		t.order = t.order[1:]
	}
}
