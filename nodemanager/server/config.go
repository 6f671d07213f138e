// Package server is the node manager: it reports to the leading resource manager, carries out its orders, keeps containers
// supervised and their leases renewed, ships their logs, and answers YARN's node REST.
//
// # Goroutines and locks
//
// Run owns all goroutines. One speaks to the resource manager (session.go), one reads the devices (devices.go), one looks
// after disks (health.go), and each container has one that takes it through its life (container.go) and one that ships its
// logs (logs.go). Server.mu guards the map of containers and the lease; container.mu guards one container's record. Server.mu
// may be held when container.mu is taken, never the other way round, and neither is held during input or output except that
// a container's record is written to disk under container.mu.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/account"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/gpu"
	"github.com/gohops/hops/nodemanager/localizer"
	rm "github.com/gohops/hops/resourcemanager"
)

// Filesystem is the cluster's filesystem as one user sees it. OverDFS makes it of client/dfs.
type Filesystem interface {
	localizer.Filesystem
	// OpenLog opens a log file for appending; it and its directories are made if need be.
	OpenLog(ctx context.Context, path string) (LogFile, error)
	// ListLogs names the files of a directory with their sizes, which of one that is written may be behind; none if it is not there.
	ListLogs(ctx context.Context, dir string) (map[string]int64, error)
	// RemoveLog removes a file, if it is there.
	RemoveLog(ctx context.Context, path string) error
}

// LogFile is one open log file of the cluster's filesystem. It has one writer.
type LogFile interface {
	// Size is the length of the file, with everything written so far.
	Size() int64
	Write(p []byte) (int, error)
	// Flush makes what was written readable by others. After an error the file is of no more use: Abort it.
	Flush(ctx context.Context) error
	Close() error
	Abort()
}

// Cluster is what containers are told about the cluster in their environment.
type Cluster struct {
	// FS is the filesystem's URI, hdfs://host:port.
	FS string
	// Namenodes are the host:port under which artifacts may name this filesystem; FS's own is always one of them. Empty: any.
	Namenodes []string
	// WebHDFS are the base URLs or host:port of all namenodes' HTTP.
	WebHDFS []string
	// ResourceManagers are the base URLs or host:port of the resource managers' HTTP.
	ResourceManagers []string
	HadoopConfDir    string
}

// Config of a node manager.
type Config struct {
	// NodeID is YARN's node id, host:port; default the address of HTTP.
	NodeID string
	// Host is the name under which the machine is known; default the host of NodeID.
	Host string
	// Work is the node manager's directory; see package state.
	Work string
	// Memory in bytes and VCores are what containers may use together; 0: what the machine has.
	Memory int64
	VCores int
	// Other is what else the machine has, by name.
	Other rm.Amounts
	// GPUs; nil: none.
	GPUs gpu.Source
	// GPUProbe is a program that tries a device before it is granted again, with CUDA_VISIBLE_DEVICES set to it: status 0 means that
	// it is good. Empty: what the driver says is all that counts.
	GPUProbe string
	// HTTP is closed by Run.
	HTTP net.Listener
	// IPC is where masters of applications speak YARN's ContainerManagementProtocol; nil: nowhere. It is closed by Run.
	IPC net.Listener
	// Shuffle is where reduces of MapReduce fetch the outputs of maps (package shuffle); nil: nowhere, and masters that ask for the
	// service are refused. It is closed by Run.
	Shuffle net.Listener
	// RPCProtection are the qualities of protection that masters are offered there (hadoop.rpc.protection); none: authentication alone.
	RPCProtection []sasl.Quality
	// ResourceManagers are the gRPC addresses of all resource managers; the leader is found among them. None: there will be some, see
	// SetCluster.
	ResourceManagers []string
	Credentials      security.Credentials
	// Door decides who may read logs.
	Door *security.Door
	// Supervisor is the argv prefix that starts a supervisor: {hops binary, "supervisor"}.
	Supervisor []string
	// FS opens the cluster's filesystem as a user, once for all containers of the user that are here; nil: there is none.
	FS      func(user string) (Filesystem, error)
	Cluster Cluster
	Labels  []string
	// Attributes are what else is true of this node.
	Attributes rm.Attributes
	Rack       string // default /default-rack
	Version    string
	// Datanode tells the uuid of a datanode on the same machine, for locality; empty while it is not known. It is asked until it
	// is; nil: there is none.
	Datanode func() string

	// Heartbeat is the time between reports when nothing changes; default 1 s. A change is reported at once.
	Heartbeat time.Duration
	// Outage is how long a container waits for its inputs while the filesystem does not answer, before it ends with -1001 and
	// another node may try; default 10 minutes.
	Outage time.Duration
	// LogPatience is how long one write of a log file to the filesystem may take; default 30 s.
	LogPatience time.Duration
	// LogInterval is the time between shipments of log files; default 3 s.
	LogInterval time.Duration
	// LogLimit bounds a container's log files in bytes, here and in the filesystem; beyond it the container ends with -109.
	// Default 1 GiB.
	LogLimit int64
	// LogRate bounds how fast they may grow, in bytes a second, once a quarter of LogLimit is written; beyond it the container
	// ends the same way. Default 4 MiB.
	LogRate int64
	// LogRolled are names, or patterns of path.Match, of log files that are rolled: when they are long they lose their beginning on this
	// machine, and the filesystem has them in pieces of LogKeep bytes, the first and the last. nil: stdout and stderr.
	LogRolled []string
	// LogKeep is how many bytes of a rolled file are kept on this machine, at least; a quarter more at most, beside what is written
	// between two looks. Default an eighth of LogLimit, 64 MiB at most; from LogLimit on nothing is rolled.
	LogKeep int64
	// DiskLimit bounds what a container has on the work directory's disk besides its logs, in bytes; beyond it the container
	// ends with -109. Default: four fifths of what is free, less Reserve, when the container starts.
	DiskLimit int64
	// Reserve is how much of the work directory's disk must be free for the node to be healthy; default 256 MiB.
	Reserve int64
	// Pids bounds the processes and threads of one container; default 32768.
	Pids int
	// Grace is the time between SIGTERM and SIGKILL for containers that name none; default nodemanager.DefaultGrace.
	Grace time.Duration
	// HardCPU: its vcores are the most that a container gets. GPUCores: one with devices runs on the cores near them only. Both where
	// control groups can.
	HardCPU, GPUCores bool
	// GPUIdle is how long a container may hold a device that does nothing before that is reported; default 30 minutes.
	GPUIdle time.Duration
	// HealthScript is a program that says whether the machine is well; without a path there is none.
	HealthScript HealthScript
	// Poll is how often supervisors look at memory and log size; default 500 ms.
	Poll time.Duration
	// Groups is what control groups are used; nil: what cgroup.Detect finds.
	Groups *cgroup.Report
	// StopContainers ends all containers when Run ends, within StopPatience. Otherwise they go on and the next node manager of
	// the directory adopts them; fenced ones if it comes before their lease ends.
	StopContainers bool
	// Isolation says under which user id containers run; default IsolationAuto.
	Isolation Isolation
	// Accounts says which users' containers run here, where they run as their users; FindAccount finds their accounts, by default
	// account.Find.
	Accounts    account.Rules
	FindAccount func(ctx context.Context, name string) (*account.Account, error)
	// Hidden are the files and directories of this machine's servers, besides Work, that containers must not see: the secret
	// and the data. Shown are those that they must see wherever they are. Absolute.
	Hidden, Shown []string
	Logger        *slog.Logger
}

func (c *Config) complete() error {
	var errs []error
	if c.Work == "" {
		errs = append(errs, errors.New("no work directory"))
	}
	if c.HTTP == nil {
		errs = append(errs, errors.New("no HTTP listener"))
	} else {
		if c.Door != nil {
			errs = append(errs, c.Door.CheckBind(c.HTTP.Addr().String()))
			for _, l := range []net.Listener{c.IPC, c.Shuffle} {
				if l != nil {
					errs = append(errs, c.Door.CheckBind(l.Addr().String()))
				}
			}
		}
		if c.NodeID == "" {
			c.NodeID = c.HTTP.Addr().String()
		}
	}
	if len(c.Supervisor) == 0 {
		errs = append(errs, errors.New("no command that starts a supervisor"))
	}
	if c.Door == nil {
		errs = append(errs, errors.New("no door to decide who may read logs"))
	}
	if c.Memory < 0 || c.VCores < 0 || c.Heartbeat < 0 || c.Outage < 0 || c.LogPatience < 0 || c.LogLimit < 0 || c.LogRate < 0 || c.LogKeep < 0 || c.DiskLimit < 0 || c.Grace < 0 || c.GPUIdle < 0 {
		errs = append(errs, errors.New("memory, vcores, heartbeat, outage, log patience, log limit, log rate, log keep, disk limit, grace and idle time cannot be negative"))
	}
	if !c.Other.Instances().IsZero() {
		errs = append(errs, fmt.Errorf("resources that begin with %s are MIG instances, which are counted and not declared", rm.MIGPrefix))
	}
	c.Isolation = cmp.Or(c.Isolation, IsolationAuto)
	if !slices.Contains([]Isolation{IsolationAuto, IsolationAny, IsolationOff}, c.Isolation) {
		errs = append(errs, fmt.Errorf("isolation %q is none of auto, any and off", c.Isolation))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("node manager: %w", err)
	}
	if c.Host == "" {
		c.Host, _, _ = net.SplitHostPort(c.NodeID)
	}
	if c.GPUs == nil {
		c.GPUs = gpu.None{}
	}
	c.Memory = cmp.Or(c.Memory, machineMemory())
	c.VCores = cmp.Or(c.VCores, runtime.NumCPU())
	c.Rack = cmp.Or(c.Rack, "/default-rack")
	c.Heartbeat = cmp.Or(c.Heartbeat, time.Second)
	c.Outage = cmp.Or(c.Outage, 10*time.Minute)
	c.LogPatience = cmp.Or(c.LogPatience, 30*time.Second)
	c.LogInterval = cmp.Or(c.LogInterval, 3*time.Second)
	c.LogLimit = cmp.Or(c.LogLimit, 1<<30)
	c.LogRate = cmp.Or(c.LogRate, 4<<20)
	c.LogKeep = cmp.Or(c.LogKeep, min(c.LogLimit/8, 64<<20))
	if c.LogRolled == nil {
		c.LogRolled = []string{"stdout", "stderr"}
	}
	c.Reserve = cmp.Or(c.Reserve, 256<<20)
	c.Pids = cmp.Or(c.Pids, 32768)
	c.Grace = cmp.Or(c.Grace, nodemanager.DefaultGrace)
	c.GPUIdle = cmp.Or(c.GPUIdle, 30*time.Minute)
	c.Poll = cmp.Or(c.Poll, 500*time.Millisecond)
	if c.FindAccount == nil {
		c.FindAccount = account.Find
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// machineMemory is the machine's memory less a tenth, which the system and we need.
func machineMemory() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 1 << 30
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			if fields := strings.Fields(rest); len(fields) > 0 {
				n, _ := strconv.ParseInt(fields[0], 10, 64)
				return (n << 10) / 10 * 9
			}
		}
	}
	return 1 << 30
}
