package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/slowlog"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
	"github.com/gohops/hops/resourcemanager/state"
)

// Config describes one resource manager. ID, HTTP, GRPC, Host, Door and Executable are required.
type Config struct {
	// ID is this process among Members and Peers.
	ID string
	// HTTP serves users, GRPC node managers and application masters; the server owns both listeners.
	HTTP, GRPC net.Listener
	// IPC are where YARN's RPC is spoken, all of its protocols at each; empty: nowhere. The server owns them. RPCProtection are the
	// qualities of protection that masters are offered there.
	IPC           []net.Listener
	RPCProtection []sasl.Quality
	// Host carries the Raft group "resourcemanager"; the caller runs it.
	Host      *raftstore.Host
	Members   []raftstore.Member
	Bootstrap bool
	Timers    raftstore.Timers
	// Peers are all resource managers, this one included, so that a follower can name the leader; SetPeers changes them.
	Peers       []Peer
	Credentials security.Credentials
	Door        *security.Door
	// Queues is the configuration of the queue "root"; the zero value has one leaf, "default".
	Queues rm.QueueConfig
	// Configured reads what operators may change while the server runs, from where the values here came from; nil: nothing can be
	// read anew.
	Configured func() (Configured, error)
	// NodesExclude is a file on this machine that names the nodes that are to leave, as YARN's
	// yarn.resourcemanager.nodes.exclude-path; empty: there is none.
	NodesExclude string
	// NodeLease is how long a node manager may be silent before it counts as lost, and its containers as ended; processes of
	// fenced containers are dead by then, counted from the sending of its last acknowledged report. Default 60 s. Longer:
	// outages cost less, the work of a dead machine is tried again later. It may be changed at any start: the longest one
	// that a node may still hold counts.
	NodeLease time.Duration
	// LeaseMargin is waited beyond a lease before a silent node's containers count as dead: for clocks that run at
	// different speeds and for the kernel to end processes. Default a fifth of NodeLease, between 100 ms and 5 s.
	LeaseMargin time.Duration
	// MasterExpiry is how long a running master may neither register nor call; default 10 min, as in YARN.
	MasterExpiry time.Duration
	// LaunchWithin is how long a container may be granted without anything to run in it; default 10 min, as YARN's
	// yarn.resourcemanager.rm.container-allocation.expiry-interval-ms.
	LaunchWithin time.Duration
	// Preemption says when containers are ended so that others find room.
	Preemption Preemption
	// FinishGrace is how long a master may run on after it finished its application; default 10 s.
	FinishGrace time.Duration
	// MaxAttempts of an application's master by default; default 2.
	MaxAttempts int
	// RackScript and RackTable say where nodes stand whose own configuration does not, as in topology.Config.
	RackScript, RackTable string
	// Logs reads the log files of containers; nil: requests for logs are refused.
	Logs rest.Logs
	// Secrets keeps users' secrets for their jobs; nil: they have none.
	Secrets Secrets
	// Tokens are the filesystem's, by which containers are known there as their users; nil: there is no filesystem, and containers get
	// none.
	Tokens Tokens
	// Locations says where files lie near which containers are wanted; nil: nobody does, and they are placed anywhere.
	Locations Locations
	// TokenPatience is how long an application that has no token yet waits for a filesystem that gives none, before it fails; default 10
	// min.
	TokenPatience time.Duration
	// LogRoot is the directory of the file system under which node managers put logs; default /logs.
	LogRoot string
	// LogRetention is how long the logs of an application are kept after its end; default a week. LogTree removes them; nil:
	// they are kept for ever.
	LogRetention time.Duration
	LogTree      LogTree
	// Executable is the path of the hops program on node managers, for "am" and "controller".
	Executable string
	// CommandMaster and ExperimentMaster are what masters get; defaults 256 MiB and 512 MiB with one vcore.
	CommandMaster, ExperimentMaster rm.Resource
	// Minimum is the least that a container gets: smaller asks are raised to it, and memory to whole MiB. Default 128 MiB
	// and one vcore. Lower: more containers on a node, of which each costs some 30 MiB beside its program.
	Minimum rm.Resource
	// Maximum is the most that one container may ask for where no node has registered yet, and where nodes have more; a zero
	// amount is no limit.
	Maximum     rm.Resource
	Environment Environment
	// Slow counts what took too long; may be nil.
	Slow   *slowlog.Log
	Logger *slog.Logger
	// limits of the replicated state, grantBytes of one command and endedPerPage of Ended; tests have smaller ones than the
	// defaults.
	limits       state.Config
	grantBytes   int
	endedPerPage int
	// locateTime bounds a look at where files lie.
	locateTime time.Duration
	// levelEvery is how often it is looked whether the cluster has been raised.
	levelEvery time.Duration
	// tokenRest is how long no look at all applications' tokens begins after one that took so long.
	tokenRest func(took time.Duration) time.Duration
}

// Configured is what a resource manager reads anew while it runs.
type Configured struct {
	Queues rm.QueueConfig
	// Users are who is a superuser and who may act for others.
	Users security.UserRules
}

// Environment is what containers are told about the cluster; SetEnvironment changes it.
type Environment struct {
	// FS is the file system's URI, hdfs://host:port.
	FS string
	// WebHDFS lists the namenodes' HTTP addresses, host:port.
	WebHDFS []string
	// HadoopConfDir holds core-site.xml on every node; empty: not set.
	HadoopConfDir string
}

// Peer is one of the resource managers.
type Peer struct{ ID, HTTP, GRPC string }

func (c *Config) check() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("resource manager: %s is missing", what))
		}
	}
	need(c.ID != "", "the id")
	need(c.HTTP != nil, "the HTTP listener")
	need(c.GRPC != nil, "the gRPC listener")
	need(c.Host != nil, "the Raft host")
	need(c.Door != nil, "the door")
	need(c.Executable != "", "the path of the program that masters run")
	for _, l := range append([]net.Listener{c.HTTP, c.GRPC}, c.IPC...) {
		if l != nil && c.Door != nil {
			errs = append(errs, c.Door.CheckBind(l.Addr().String()))
		}
	}
	if c.NodeLease <= 0 {
		c.NodeLease = time.Minute
	}
	if c.LeaseMargin <= 0 {
		c.LeaseMargin = min(max(c.NodeLease/5, 100*time.Millisecond), 5*time.Second)
	}
	if c.MasterExpiry <= 0 {
		c.MasterExpiry = 10 * time.Minute
	}
	c.Preemption.defaults()
	if c.LaunchWithin <= 0 {
		c.LaunchWithin = 10 * time.Minute
	}
	if c.TokenPatience <= 0 {
		c.TokenPatience = 10 * time.Minute
	}
	if c.FinishGrace <= 0 {
		c.FinishGrace = 10 * time.Second
	}
	if c.MaxAttempts <= 0 {
		c.MaxAttempts = 2
	}
	if c.LogRoot == "" {
		c.LogRoot = "/logs"
	}
	if c.LogRetention <= 0 {
		c.LogRetention = 7 * 24 * time.Hour
	}
	if c.CommandMaster.IsZero() {
		c.CommandMaster = rm.Resource{Memory: 256 * rm.MiB, VCores: 1}
	}
	if c.ExperimentMaster.IsZero() {
		c.ExperimentMaster = rm.Resource{Memory: 512 * rm.MiB, VCores: 1}
	}
	if c.Minimum.Memory <= 0 {
		c.Minimum.Memory = 128 * rm.MiB
	}
	if c.Minimum.VCores <= 0 {
		c.Minimum.VCores = 1
	}
	c.CommandMaster, c.ExperimentMaster = c.CommandMaster.Raise(c.Minimum), c.ExperimentMaster.Raise(c.Minimum)
	if c.tokenRest == nil {
		c.tokenRest = tokenRest
	}
	if c.endedPerPage <= 0 {
		c.endedPerPage = endedPerPage
	}
	if c.locateTime <= 0 {
		c.locateTime = locateTime
	}
	if c.levelEvery <= 0 {
		c.levelEvery = levelEvery
	}
	if c.grantBytes <= 0 {
		c.grantBytes = grantBytes
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if len(c.Peers) == 0 && c.HTTP != nil && c.GRPC != nil {
		c.Peers = []Peer{{c.ID, c.HTTP.Addr().String(), c.GRPC.Addr().String()}}
	}
	return errors.Join(errs...)
}

// Queues translates the queues of a configuration file. What is wrong with them NewQueues says.
func Queues(from config.Queues) rm.QueueConfig { return queue(from["root"]) }

func queue(q config.Queue) rm.QueueConfig {
	out := rm.QueueConfig{
		Capacity: q.Capacity, Max: q.Max, Submit: q.ACLSubmit, SubmitGroups: q.ACLSubmitGroups,
		Administer: q.ACLAdminister, AdministerGroups: q.ACLAdministerGroups, State: rm.QueueState(q.State), UserLimit: q.UserLimit, UserLimitFactor: q.UserLimitFactor,
		MaxApplications: q.MaxApplications, MaxApplicationsPerUser: q.MaxApplicationsPerUser, MasterShare: q.MasterShare, Priority: q.Priority,
		Ordering: q.Ordering, PreemptionDisabled: q.PreemptionDisabled, PreemptByPriority: q.PreemptByPriority, Cells: q.Cells, DefaultPriority: q.DefaultPriority, MaxPriority: q.MaxPriority,
		MaxLifetime: q.MaxLifetime, DefaultLifetime: q.DefaultLifetime,
	}
	if q.Stopped && q.State == "" {
		out.State = rm.QueueStopped
	}
	if q.AutoCreate != nil {
		made := queue(*q.AutoCreate)
		out.AutoCreate = &made
	}
	for _, r := range q.Mapping {
		out.Mapping = append(out.Mapping, rm.MappingRule(r))
	}
	for name, child := range q.Children {
		if out.Children == nil {
			out.Children = map[string]rm.QueueConfig{}
		}
		out.Children[name] = queue(child)
	}
	return out
}
