// Package server is the resource manager as a process: one of several members of a Raft group over the replicated
// state, of which the leader schedules, talks to node managers and masters, and answers users. See DESIGN.md.
package server

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/topology"
	"github.com/gohops/hops/internal/yarntoken"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/hadoop"
	"github.com/gohops/hops/resourcemanager/rest"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// GroupName is the name of the resource managers' Raft group.
const GroupName = "resourcemanager"

// maxConnections of the gRPC port: each node manager keeps one, and each master. The process's descriptors may be fewer.
const maxConnections = 1 << 15

// Server is a resource manager.
type Server struct {
	config Config
	log    *slog.Logger
	queues atomic.Pointer[rm.Queues]
	state  *state.State
	group  atomic.Pointer[raftstore.Group]
	// reign is what this process does and knows as the leader; nil while it is not.
	reign atomic.Pointer[reign]
	ready chan struct{}
	// questions is held by whoever asks the model for an explanation or a plan.
	questions chan struct{}
	// marking is held from what an operator's change of labels is made of to its end.
	marking sync.Mutex
	// peers are all resource managers of now.
	peers atomic.Pointer[[]Peer]
	// surroundings are what containers that start now are told of the cluster.
	surroundings atomic.Pointer[Environment]
	readyOnce    sync.Once
	started      time.Time
	racks        *topology.Racks
	clock        *clock
	// logs is what nodes still have to copy.
	logs    logStates
	figures figures
	// mostOfNodes is what largest has worked out last.
	mostOfNodes atomic.Pointer[mostOfNodes]
	// opening has a place for each container whose secrets are being read.
	opening *places
	// yarnTokens makes the tokens of YARN's protocols.
	yarnTokens *yarntoken.Issuer
}

// New checks the configuration. It starts nothing.
func New(c Config) (*Server, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	queues, err := newQueues(c.Queues)
	if err != nil {
		return nil, fmt.Errorf("resource manager: %w", err)
	}
	s := &Server{
		config: c, log: c.Logger.With("rm", c.ID), ready: make(chan struct{}), questions: make(chan struct{}, 1), started: time.Now(), clock: newClock(c.Logger.With("rm", c.ID), machineClock), opening: newPlaces(opensAtOnce),
		yarnTokens: yarntoken.NewIssuer(c.Credentials.MAC),
	}
	s.queues.Store(queues)
	s.racks = topology.New(topology.Config{Script: c.RackScript, Table: c.RackTable, Logger: s.log})
	s.SetPeers(c.Peers)
	s.SetEnvironment(c.Environment)
	c.limits.OnEffects = s.applied
	s.state = state.New(c.limits)
	return s, nil
}

// Ready is closed when the server serves and a leader is known.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run opens the group and serves until ctx is done. The listeners are closed when it returns; the Raft host is the
// caller's and must be running.
func (s *Server) Run(ctx context.Context) error {
	defer s.config.HTTP.Close()
	defer s.config.GRPC.Close()
	for _, l := range s.config.IPC {
		defer l.Close()
	}
	group, err := s.config.Host.Open(raftstore.GroupConfig{
		Name: GroupName, Members: s.config.Members, Bootstrap: s.config.Bootstrap,
		Timers: s.config.Timers, Command: "hops resourcemanager",
	}, s.state)
	if err != nil {
		return fmt.Errorf("open the resource manager's group: %w", err)
	}
	s.group.Store(group)
	defer group.Close()

	leadership := make(chan raftstore.Leadership, 1) // the latest only
	group.Watch(func(l raftstore.Leadership) {
		select {
		case <-leadership:
		default:
		}
		leadership <- l
	})

	web := rest.New(rest.Config{Cluster: s, Masters: s, ID: s.config.ID, Group: group, Door: s.config.Door, Logs: s.config.Logs, Secrets: s.secrets(), Operator: s, Another: s.another, Figures: s.Figures, Slow: s.config.Slow, Logger: s.log})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.lead(ctx, leadership) })
	g.Go(func() error { return s.racks.Run(ctx) })
	g.Go(func() error { return s.heedLevel(ctx) })
	g.Go(func() error { return s.serveHadoop(ctx) })
	g.Go(func() error {
		return s.config.Door.ServeGRPC(ctx, s.config.GRPC, security.GRPC{
			Doorway: security.Doorway{Name: "resource manager gRPC", Limit: maxConnections}, Keys: security.Keyring{Member: s.config.Credentials.Member, Roles: []authority.Role{authority.NodeManager, authority.ResourceManager}, Token: s.tokenOf}, MaxMessage: 8 << 20,
			Services: s.services(),
		})
	})
	g.Go(func() error {
		return s.config.Door.ServeHTTP(ctx, s.config.HTTP, security.HTTP{Doorway: security.Doorway{Name: "resource manager HTTP"}, Handler: web, OwnToken: web.MasterToken, Logger: s.log})
	})
	return g.Wait()
}

// secrets is what users ask for theirs; nil: nothing, which a Secrets that is nil would not be.
func (s *Server) secrets() rest.Secrets {
	if s.config.Secrets == nil {
		return nil
	}
	return s.config.Secrets
}

// Routes lists what the ports of a resource manager do, and the right that each thing needs.
func Routes() []security.Route {
	out := append(rest.New(rest.Config{}).Routes(), hadoop.New(hadoop.Config{Door: security.NewDoor(security.Config{})}).Routes()...)
	return append(out, security.Routes("resource manager gRPC", (*Server)(nil).services()...)...)
}

func (s *Server) services() []security.Service {
	return []security.Service{
		{Desc: &pb.NodeManagers_ServiceDesc, Server: &nodeManagers{s: s}, Right: security.ServersOnly, Roles: []authority.Role{authority.NodeManager}},
		{Desc: &pb.ResourceManagers_ServiceDesc, Server: &resourceManagers{s: s}, Right: security.ServersOnly, Roles: []authority.Role{authority.ResourceManager}},
		{Desc: &pb.ApplicationMasters_ServiceDesc, Server: &applicationMasters{s: s}, Right: security.ContainersOnly},
	}
}

// lead follows the leadership: a reign begins with each election of this member and ends with its loss.
func (s *Server) lead(ctx context.Context, leadership <-chan raftstore.Leadership) error {
	var end func()
	stop := func() {
		if end != nil {
			s.reign.Store(nil)
			end()
			end = nil
		}
	}
	defer stop()
	var term uint64
	for {
		select {
		case <-ctx.Done():
			return nil
		case l := <-leadership:
			if !l.Leader || l.Term != term {
				stop()
			}
			if l.Leader && end == nil {
				end = s.begin(ctx, l)
				term = l.Term
			}
			if !l.Leader && l.LeaderID != "" && l.LeaderID != s.config.ID {
				s.readyOnce.Do(func() { close(s.ready) })
			}
		}
	}
}

// propose replicates a command and returns its result. The error is the group's or the command's own.
func (s *Server) propose(ctx context.Context, c *statepb.Command) (*state.Result, error) {
	c.NowMs = int64(s.clock.moment().State)
	b, err := state.Encode(c)
	if err != nil {
		return nil, err
	}
	answer, err := s.group.Load().Propose(ctx, b)
	if err != nil {
		return nil, err
	}
	r := answer.(*state.Result)
	return r, r.Err
}

// applied wakes those whom new commands concern. It runs on the group's apply goroutine.
func (s *Server) applied(e state.Effects) {
	if e.Begun || e.Restored {
		s.compareQueues()
	}
	if r := s.reign.Load(); r != nil {
		r.applied(e)
	}
}

// SetPeers replaces the list of all resource managers, this one included, and tells the masters. Who is a member of the group is not
// changed by it.
func (s *Server) SetPeers(peers []Peer) {
	s.peers.Store(&peers)
	if r := s.reign.Load(); r != nil {
		r.wakeMasters()
	}
}

// webs are the HTTP addresses of all resource managers.
func (s *Server) webs() []string {
	var out []string
	for _, p := range *s.peers.Load() {
		out = append(out, p.HTTP)
	}
	return out
}

// managers are the gRPC addresses of all resource managers.
func (s *Server) managers() []string {
	var out []string
	for _, p := range *s.peers.Load() {
		out = append(out, p.GRPC)
	}
	return out
}

// SetEnvironment replaces what containers that start from now on are told of the cluster.
func (s *Server) SetEnvironment(e Environment) { s.surroundings.Store(&e) }

// peer finds a resource manager by id; the zero Peer when it is unknown.
func (s *Server) peer(id string) Peer {
	for _, p := range *s.peers.Load() {
		if p.ID == id {
			return p
		}
	}
	return Peer{}
}

// another reports whether another resource manager serves HTTP at an address.
func (s *Server) another(host string) bool {
	own := s.peer(s.config.ID).HTTP
	return host != own && slices.ContainsFunc(*s.peers.Load(), func(p Peer) bool { return p.HTTP == host })
}

// kick wakes a goroutine that waits on a channel of capacity 1; it runs once for any number of kicks.
func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
