// Package server is the namenode: it hosts the namespace's Raft member, keeps the replica map, does the duties of the
// leader, and serves Hadoop IPC, WebHDFS and the datanodes' gRPC. ../DESIGN.md tells how a request travels.
//
// Locks: reignMu, ids.mu, leases.mu, clock.mu and soft.mu are never held together, and no callback runs under them.
// trustMu is taken before soft.mu.
// soft.mu is held while the block manager, which is pure, works.
package server

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/datanode/transfer"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/slowlog"
	"github.com/gohops/hops/internal/topology"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/feed"
	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/metadata/raftstore/journal"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/blockmanager"
	"github.com/gohops/hops/namenode/hdfs"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	"github.com/gohops/hops/namenode/hdfs/webhdfs"
	"github.com/gohops/hops/namenode/roster"
)

// Group is the name of the namenodes' Raft group.
const Group = "namespace"

// Peer is another namenode, for messages and pages.
type Peer struct{ ID, IPC, HTTP string }

// Config describes a namenode. ID, Dir, the listeners, Host, Credentials and Door are required.
type Config struct {
	// ID is the member's name in the Raft group.
	ID string
	// ClusterID names a new cluster; empty: made up by its first leader. A directory or a group of another cluster is
	// refused.
	ClusterID string
	// Dir holds the checkpoint of the namespace.
	Dir string
	// IPC, HTTP, GRPC and Transfer are the doors; the server owns them. Transfer is the data transfer of small files.
	IPC, HTTP, GRPC, Transfer net.Listener
	// AdvertiseIP and AdvertiseHost are how clients reach Transfer; empty: as it listens.
	AdvertiseIP, AdvertiseHost string
	// Host carries the Raft group; the caller runs it.
	Host *raftstore.Host
	// Members are the namenodes of the group. Bootstrap makes it, at the first start of a cluster.
	Members   []raftstore.Member
	Bootstrap bool
	// Timers of the group; zero: its defaults.
	Timers      raftstore.Timers
	QuorumReads bool // see raftstore.GroupConfig
	Credentials security.Credentials
	Door        *security.Door
	// Offers are methods of SASL on Hadoop IPC beside delegation tokens.
	Offers []hrpc.Offer
	// Properties are Hadoop's settings; zero: Hadoop's defaults.
	Properties config.Properties
	// Heartbeat is how often datanodes are told to beat. Default 3 s.
	Heartbeat time.Duration
	// StaleAfter and DeadAfter are the silences after which a datanode is avoided and given up. Defaults 10 s, 90 s.
	StaleAfter, DeadAfter time.Duration
	// RecoveryPatience is how long a block recovery waits for datanodes that may have more of the block than those that
	// answer. Default 10 min.
	RecoveryPatience time.Duration
	// Memory is how many bytes files, directories and their blocks may take in memory, by an estimate; less when the process has no room. Default: a quarter of
	// what the process may use, and 64 MiB at least.
	Memory int64
	// SmallFiles says whether the namenodes keep small files below directories of which nobody has said whether they may.
	SmallFiles bool
	// SmallFileLimit is how many bytes a small file has at most. Default metadata.MaxBody, which is the most.
	SmallFileLimit int
	// SmallFileDelay is how long a file stays on datanodes after it was closed, before the namenodes keep it if it is no larger than that; 0: always. It takes a feed.
	SmallFileDelay time.Duration
	// FeedBytes is how much the feed of changes may take on disk, FeedAge after how long its events go. Defaults 256 MiB, 7 days; a negative number
	// of bytes: there is no feed.
	FeedBytes int64
	FeedAge   time.Duration
	// Search: there is an index of names, tags and sizes, which follows the feed.
	Search bool
	// CompactEvery is how often bodies of small files that nobody needs any more are looked for. Default 10 min.
	CompactEvery time.Duration
	// ScrubRate is how many bytes a second of the small files are read to verify them, and ScrubEvery the least time between the beginnings of two passes
	// over all. Defaults 8 MiB, 21 days.
	ScrubRate  int64
	ScrubEvery time.Duration
	// BlockTokenLifetime is how long a block token is good, and BlockKeyInterval how often a new key takes over to sign
	// them (Hadoop's dfs.block.access.token.lifetime and dfs.block.access.key.update.interval). Default 10 h each.
	BlockTokenLifetime, BlockKeyInterval time.Duration
	// MaxTokens is how many delegation tokens there may be, MaxTokensOfUser how many of one user. Defaults 200,000 and 20,000.
	MaxTokens, MaxTokensOfUser int
	Peers                      []Peer
	// OIDC, when set, is the identity provider whose users get tokens.
	OIDC *config.OIDC
	// Name is the cluster's, Servers are its namenodes and resource managers as configured, and Settings what was configured under
	// Hadoop's names: for machines that join. Static: the list is this machine's own, and others take it from here.
	Name     string
	Servers  config.Servers
	Static   bool
	Settings map[string]string
	// Founding is asked by the leader of a cluster whose register has no authority; nil, or nothing: this machine does not found it.
	// Founded is told when the register has one.
	Founding func() (*Founding, error)
	Founded  func(*authority.Trust)
	// Requests and Answers bound the bytes that clients make the namenode hold; nil: the process's budgets.
	Requests, Answers *security.Budget
	// Slow is told of calls that take too long; nil: nobody is.
	Slow *slowlog.Log
	// Logger; nil means slog.Default().
	Logger *slog.Logger

	// store is what the checkpoint is written to and read from, given the one on disk. Tests set it; nil: that one.
	store func(kv.Store) kv.Store
	// readFormer, if not nil, is between this namenode and its former bodies.
	readFormer func(id metadata.BlockID, get func(metadata.BlockID) ([]byte, error)) ([]byte, error)
	// formerDisk, if not nil, is what these lie on, and bodiesDisk what the present ones do.
	formerDisk, bodiesDisk journal.Disk
	// beat is how long a stream of events says nothing, and patience how long its reader may take to read. Tests set them; default 15 s, 30 s.
	beat, patience time.Duration
}

func (c *Config) validate() error {
	var mistakes []error
	require := func(ok bool, what string) {
		if !ok {
			mistakes = append(mistakes, errors.New(what+" is missing"))
		}
	}
	require(c.ID != "", "the id")
	require(c.Dir != "", "the data directory")
	require(c.IPC != nil, "the IPC listener")
	require(c.HTTP != nil, "the HTTP listener")
	require(c.GRPC != nil, "the gRPC listener")
	require(c.Transfer != nil, "the data transfer listener")
	require(c.Host != nil, "the Raft host")
	require(c.Door != nil, "the door")
	if c.DeadAfter > 0 && c.StaleAfter > 0 && c.DeadAfter < c.StaleAfter {
		mistakes = append(mistakes, fmt.Errorf("a datanode would be dead (%v) before it is stale (%v)", c.DeadAfter, c.StaleAfter))
	}
	if err := errors.Join(mistakes...); err != nil {
		return fmt.Errorf("namenode: %w", err)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Properties.BlockSize == 0 {
		c.Properties = config.DefaultProperties()
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = 3 * time.Second
	}
	if c.StaleAfter <= 0 {
		c.StaleAfter = 10 * time.Second
	}
	if c.BlockTokenLifetime <= 0 {
		c.BlockTokenLifetime = 10 * time.Hour
	}
	if c.BlockKeyInterval <= 0 {
		c.BlockKeyInterval = 10 * time.Hour
	}
	if c.MaxTokens <= 0 {
		c.MaxTokens = 200_000
	}
	if c.MaxTokensOfUser <= 0 {
		c.MaxTokensOfUser = 20_000
	}
	if c.ScrubRate <= 0 {
		c.ScrubRate = DefaultScrubRate
	}
	if c.ScrubEvery <= 0 {
		c.ScrubEvery = DefaultScrubEvery
	}
	if c.Memory <= 0 {
		c.Memory = max(security.Memory()/4, 64<<20)
	}
	if c.beat <= 0 {
		c.beat = 15 * time.Second
	}
	if c.patience <= 0 {
		c.patience = 30 * time.Second
	}
	if c.FeedBytes == 0 {
		c.FeedBytes = 256 << 20
	}
	if c.FeedAge <= 0 {
		c.FeedAge = 7 * 24 * time.Hour
	}
	if c.DeadAfter <= 0 {
		c.DeadAfter = max(90*time.Second, c.StaleAfter)
	}
	return nil
}

// Server is a namenode. It implements namenode.Service.
type Server struct {
	config Config
	log    *slog.Logger
	store  *badger.Store
	ns     *namespace.Namespace
	group  *raftstore.Group
	bodies *bodyStore
	mends  chan struct{} // a place for each body that is got from another namenode
	// bodyReads has a place for each call that reads bodies from the disk. Half of them may be one user's.
	bodyReads turns
	// formerPending: bodies of before the state was lost are to be looked through, so what is missing or damaged here may be among them.
	formerPending atomic.Bool
	silent        sync.Map // ids of namenodes that did not answer in time when they were asked for a body last
	mended        atomic.Int64
	scrub         bodyScrub
	// adoptions are the files that became small ones by themselves.
	adoptions adoptions
	// lazyRemoved counts lazily persisted files that were removed because they were lost.
	lazyRemoved atomic.Int64
	feed        *feed.Log // nil: there is none
	search      searching
	// watchers are those who read the feed of changes.
	watchers watchers
	// feedWarned is when it was said last that the feed cannot be read, in seconds since 1970.
	feedWarned atomic.Int64
	watching   context.Context // of Run: who waits for events waits no longer

	ipc       *hrpc.Server
	slowRPC   *slowlog.Operation
	web       http.Handler
	datanodes *datanodes
	blockDoor *transfer.Server
	doors     doors

	soft     soft
	racks    *topology.Racks
	admin    admin
	known    knowing
	started  atomic.Pointer[time.Time] // when Run has opened the namespace
	fscks    atomic.Int32              // walks under way
	moving   atomic.Bool               // one of them moves files to /lost+found
	balancer balancer
	// balancing is what the register said last of how fast it may be; nil: it was not asked.
	balancing atomic.Pointer[balancing]
	tiers     tiers
	caching   caching
	saving    atomic.Bool // a file of MetaSave is being written
	leases    leases
	clock     clock
	safe      safeMode
	// accesses are the files whose access time is being set.
	accesses sync.Map // metadata.INodeID

	// paths is how many commands are to be proposed with their paths, as they came.
	paths atomic.Int64
	// reign is what this member has while it leads, nil while it follows.
	reign   atomic.Pointer[reign]
	reignMu sync.Mutex
	latest  raftstore.Leadership // under reignMu
	changed chan struct{}        // capacity 1: leadership changed

	// trust is what datanodes are told, with the keys that sign block tokens; nil before Run has opened the namespace.
	trust   atomic.Pointer[trust]
	trustMu sync.Mutex // held while another one is made
	told    uint64     // the version of the trust that streams were made to look at; only the duties

	few        few
	users      userKeys
	provider   provider
	roster     *roster.Roster // nil before Run has opened the namespace
	membersNow atomic.Pointer[pb.Members]
	news       news
	followers  followers
	heeded     uint64 // version of the register whose level was heeded; only the duties
	unnoted    string // why the level could not be noted, as was said; only the duties

	// ids of the cluster; set once known.
	cluster atomic.Pointer[identity]

	sights  sights
	list    chan struct{} // there is something to list
	listing atomic.Bool   // soft.listing is not nil

	long      turns // of reads that would hold up others
	ready     chan struct{}
	readyOnce sync.Once
	stopped   chan struct{} // closed when Run has ended
}

// identity is what a cluster is called.
type identity struct{ cluster, pool string }

// maxClients is how many connections of Hadoop clients are open at a time.
const maxClients = 10_000

// copyStreams is how many copies are under way from a datanode, and to one. How fast they are datanodes bound (rebuild_rate), so it is no matter for large
// blocks; small ones wait for syncs that they share.
const copyStreams = 16

// New checks the configuration and makes the doors' handlers. Nothing is opened and nobody is served before Run.
func New(c Config) (*Server, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		config: c, log: c.Logger.With("namenode", c.ID),
		mends: make(chan struct{}, maxMends), bodyReads: turns{most: maxBodyReads, mostOfOne: maxBodyReads / 2}, changed: make(chan struct{}, 1), list: make(chan struct{}, 1), ready: make(chan struct{}), stopped: make(chan struct{}), watching: context.Background(),
	}
	if c.Slow != nil {
		s.slowRPC = c.Slow.Operation("rpc", c.Slow.Limits.RPC)
	}
	s.soft.init(blockmanager.Config{
		DeadAfter: c.DeadAfter, StaleAfter: c.StaleAfter, RecoveryPatience: c.RecoveryPatience, Seed: seedOf(c.ID), Streams: copyStreams,
		DefaultReplication: c.Properties.Replication, MaintenanceReplication: maintenanceReplication(c.Properties.MaintenanceReplication),
	})
	s.leases.init()
	s.caching.init()
	s.racks = topology.New(topology.Config{Script: c.Properties.RackScript, Table: c.Properties.RackTable, Changed: s.setRack, Logger: s.log})
	s.provider.places = make(chan struct{}, maxLogins)
	if err := s.openUserKeys(); err != nil {
		return nil, err
	}
	s.serveWith()
	return s, nil
}

// open opens the checkpoint and the namespace on it, and joins the group.
func (s *Server) open() error {
	c := &s.config
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	if err := c.Host.Clear(Group); err != nil {
		return err
	}
	checkpoint := filepath.Join(c.Dir, "checkpoint")
	if err := openable(checkpoint); err != nil {
		return err
	}
	var err error
	if s.store, err = badger.Open(checkpoint, badger.Options{Apart: namespace.Apart, Logger: s.log}); err != nil {
		return err
	}
	store := kv.Store(s.store)
	if c.store != nil {
		store = c.store(store)
	}
	conf := namespace.Config{
		Store: guarded{store, c.Host.Room}, Owner: c.Door.Daemon(), Supergroup: c.Door.Supergroup(),
		MinBlockSize: int64(c.Properties.MinBlockSize), Memory: c.Memory, OnEffects: s.effects,
		OnMistake: func(index uint64, what any, stack []byte) {
			s.log.Error("a mistake of this program: a request was refused because carrying it out panicked; please report it",
				"entry", index, "panic", what, "stack", string(stack))
		},
	}
	conf.Sheets = func() bool { return s.started.Load() != nil && s.group.Level() >= release.Sheets } // before that the group is being opened
	if c.FeedBytes > 0 {
		conf.OnEvents, conf.OnCheckpoint = s.onEvents, s.onCheckpoint
	}
	if err = s.openBodies(); err != nil {
		return err
	}
	conf.Bodies, conf.MendBody = s.bodies, func(r namespace.BodyRef, why error) ([]byte, error) { return s.mendBody(s.watching, &r, why) }
	if s.ns, err = namespace.Open(conf); err != nil {
		return err
	}
	if err := s.emptyBodies(); err != nil {
		return err
	}
	s.openFeed()
	s.openSearch()
	if err := s.checkCluster(); err != nil {
		return err
	}
	s.relist()
	s.currentTrust()
	s.roster, err = roster.New(roster.Config{Register: register{s}, Seal: Seal(c.Credentials.Secret), Now: time.Now})
	if err != nil {
		return err
	}
	s.group, err = c.Host.Open(raftstore.GroupConfig{
		Name: Group, Cluster: c.ClusterID, Members: c.Members, Bootstrap: c.Bootstrap, Timers: c.Timers, QuorumReads: c.QuorumReads,
		Command: "hops namenode", Headroom: s.headroom(checkpoint),
	}, s.ns)
	return err
}

func (s *Server) serveWith() {
	s.ipc = hrpc.NewServer(hrpc.ServerConfig{
		Door: s.config.Door, Offers: append([]hrpc.Offer{clientprotocol.TokenOffer(s, s.config.Properties.RPCProtection), hrpc.BearerOffer(s.config.Door.Users())}, s.config.Offers...),
		Exception: hdfs.Exception, State: s.State, Prefetch: func(paths [][]byte) { s.ns.Prefetch(paths) }, Requests: s.config.Requests, Answers: s.config.Answers, Slow: s.slowRPC, Logger: s.log,
	})
	clientprotocol.Register(s.ipc, s, func(user string) []string { return s.config.Door.Caller(user).Groups })
	s.web = s.routes(webhdfs.New(s, s.config.Door, s.config.Answers, s.log))
	s.datanodes = &datanodes{server: s}
	s.blockDoor = s.newBlockDoor()
}

// checkCluster refuses a checkpoint of another cluster.
func (s *Server) checkCluster() error {
	id := s.ns.ClusterID()
	if id == "" {
		return nil
	}
	if want := s.config.ClusterID; want != "" && want != id {
		return metadata.Errorf(metadata.ErrInvalidArgument, "%s belongs to cluster %s, this is cluster %s", s.config.Dir, id, want)
	}
	s.setCluster(id)
	return nil
}

func (s *Server) setCluster(id string) {
	if s.cluster.Load() == nil && id != "" {
		s.cluster.Store(&identity{cluster: id, pool: poolOf(id)})
		if s.started.Load() != nil { // before that Run does it: the group, which may call, is being opened
			s.nameGroup(id)
		}
	}
}

// nameGroup has the group's directory remember the cluster, so that no other cluster's member gets in.
func (s *Server) nameGroup(id string) {
	if err := s.group.NameCluster(id); err != nil {
		s.log.Warn("the Raft directory does not know the cluster's id yet", "error", err)
	}
}

// poolOf derives the id of the block pool from the cluster's, in the shape that Hadoop gives it.
func poolOf(cluster string) string {
	sum := sha256.Sum256([]byte("block pool of " + cluster))
	const since = 1_600_000_000_000 // such ids end in a time
	return fmt.Sprintf("BP-%d-127.0.0.1-%d", binary.BigEndian.Uint32(sum[:])>>1, since+int64(binary.BigEndian.Uint32(sum[4:])))
}

func seedOf(id string) uint64 {
	sum := sha256.Sum256([]byte(id))
	return binary.BigEndian.Uint64(sum[:]) ^ uint64(time.Now().UnixNano())
}

// newClusterID makes up a name in Hadoop's shape. It is the namespace's, not the authority's: volumes that belong to a namespace
// which is gone do not belong to the next one.
func newClusterID() string { return "CID-" + uuid.NewString() }

// Ready is closed when the namenode serves and a leader is known.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// ClusterID is empty until the first leader of the cluster has settled it.
func (s *Server) ClusterID() string {
	if id := s.cluster.Load(); id != nil {
		return id.cluster
	}
	return ""
}

// Run opens the data directory, joins the group and serves until ctx is done; then it lets calls in flight finish and
// returns nil. It returns earlier, with the reason, when something cannot be opened or a door fails. The Raft host must
// be running; it may stop at the same time.
func (s *Server) Run(ctx context.Context) (err error) {
	defer close(s.stopped)
	defer func() {
		for _, l := range []net.Listener{s.config.IPC, s.config.HTTP, s.config.GRPC, s.config.Transfer} {
			l.Close()
		}
		s.closeBodies()
		if s.group != nil {
			err = errors.Join(err, s.group.Close())
		}
		if s.store != nil {
			err = errors.Join(err, s.store.Close())
		}
		s.closeSearch()
		s.closeFeed()
	}()
	g, work := errgroup.WithContext(ctx)
	s.watching = work // before the group is opened, which asks for bodies
	if err := s.open(); err != nil {
		return fmt.Errorf("namenode %s: %w", s.config.ID, err)
	}
	s.started.Store(new(time.Now()))
	if id := s.ClusterID(); id != "" {
		s.nameGroup(id)
	}
	s.group.Watch(s.leadership)
	g.Go(func() error { return s.duties(work) })
	g.Go(func() error { return s.listBlocks(work) })
	g.Go(func() error { return s.racks.Run(work) })
	g.Go(func() error { return s.runSearch(work) })
	g.Go(func() error { return s.watchCache(work) })
	g.Go(func() error { return s.compactBodies(work) })
	g.Go(func() error { return s.scrubBodies(work) })
	g.Go(func() error { return s.useFormer(work) })
	g.Go(func() error { return s.adopt(work) })
	g.Go(func() error {
		return s.ipc.Serve(work, s.config.Door.Guard(s.config.IPC, security.Doorway{Name: "namenode IPC", Limit: maxClients}))
	})
	g.Go(func() error { return s.serveHTTP(work) })
	g.Go(func() error { return s.serveGRPC(work) })
	g.Go(func() error { return s.serveBlockDoor(work) })
	g.Go(func() error { return s.learnDoors(work) })
	err = g.Wait()
	s.soft.abandon()
	return err
}

// setRack hears where the datanodes at an address stand.
func (s *Server) setRack(ip, rack string) {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	s.soft.m.SetRack(ip, rack)
}

func (s *Server) serveHTTP(ctx context.Context) error {
	return s.config.Door.ServeHTTP(ctx, s.config.HTTP, security.HTTP{
		Doorway: security.Doorway{Name: "namenode HTTP"}, Handler: s.web, Calls: calls(s), ReadTime: 2 * time.Minute, Logger: s.log,
	})
}

func services(s *Server, d *datanodes) []security.Service {
	return []security.Service{
		{Desc: &pb.Datanodes_ServiceDesc, Server: d, Right: security.ServersOnly, Roles: []authority.Role{authority.Datanode}},
		{Desc: &pb.Membership_ServiceDesc, Server: &membership{server: s}, Right: security.ServersOnly},
		{Desc: &pb.Admission_ServiceDesc, Server: &admission{server: s, places: make(chan struct{}, maxJoins)}, Right: security.Joining},
	}
}

func (s *Server) serveGRPC(ctx context.Context) error {
	return s.config.Door.ServeGRPC(ctx, s.config.GRPC, security.GRPC{
		Doorway: security.Doorway{Name: "namenode gRPC", Servers: true}, Keys: security.Keyring{Member: s.config.Credentials.Member, Joining: true}, MaxMessage: maxMessage,
		Services: services(s, s.datanodes),
	})
}
