// Package config reads hops.yaml, the one file that describes a cluster and the roles of a machine in it, and the server
// settings that carry Hadoop's own names. Unknown keys are errors that name the nearest known one, and Validate lists
// every mistake at once.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/topology"
	"github.com/gohops/hops/internal/yaml"
	"github.com/gohops/hops/nodemanager"
)

// File is hops.yaml. The lists of namenodes and resource managers are the same on every machine, or left to servers.yaml; each role's
// own section is there where the role runs.
type File struct {
	Cluster          Cluster           `yaml:"cluster"`
	Namenodes        []NamenodeMember  `yaml:"namenodes"`
	ResourceManagers []ManagerMember   `yaml:"resourcemanagers"`
	Namenode         *Namenode         `yaml:"namenode"`
	Datanode         *Datanode         `yaml:"datanode"`
	ResourceManager  *ResourceManager  `yaml:"resourcemanager"`
	NodeManager      *NodeManager      `yaml:"nodemanager"`
	Audit            Audit             `yaml:"audit"`
	Log              Log               `yaml:"log"`
	Slow             Slow              `yaml:"slow"`
	Users            Users             `yaml:"users"`
	Clients          Clients           `yaml:"clients"`
	Properties       map[string]string `yaml:"properties"`
	properties       Properties
	// Followed: the lists are those of servers.yaml, and follow what the cluster says.
	Followed bool `yaml:"-"`
	// Removed are the machines that servers.yaml says were removed.
	Removed map[string]uint64 `yaml:"-"`
	// Revoked are the certificates of users that it says were revoked, by their ids.
	Revoked []string `yaml:"-"`
}

// Cluster names the cluster and its secret.
type Cluster struct {
	Name string `yaml:"name"`
	// SecretFile is shared by all namenodes and resource managers, mode 0600; the first one started with --bootstrap makes it.
	SecretFile string `yaml:"secret_file"`
	// Identity is this machine's certificate and key, mode 0600, which all of its servers show; default: identity.pem beside the
	// secret.
	Identity string `yaml:"identity"`
	// Servers is the list of the cluster's namenodes and resource managers where this file has none; default: servers.yaml beside the
	// identity.
	Servers string `yaml:"servers"`
	// Address is the name or IP address at which other machines reach this one; default 127.0.0.1. It is where the servers are
	// whose sections name no address of their own.
	Address string `yaml:"address"`
	// Bind is the IP address that servers listen at in place of the one that others reach them at, such as 0.0.0.0 on a machine
	// with several networks. Servers on loopback stay there.
	Bind string `yaml:"bind"`
	// Hosts are more names by which clients call the web servers of this machine.
	Hosts []string `yaml:"hosts"`
	// Conf, when set, is a directory into which a starting namenode writes core-site.xml, hdfs-site.xml and yarn-site.xml.
	Conf string `yaml:"conf"`
}

// Clients says who may connect without a proof of who they are.
type Clients struct {
	// Simple are networks, as 10.0.0.0/8, whose clients are believed to be who they say, as in a Hadoop without security. Whoever
	// can send from there is whoever they like.
	Simple []string `yaml:"simple"`
}

// maxNetworks bounds the networks that are trusted: each connection is compared with them.
const maxNetworks = 64

// Networks are those that Simple names.
func (c Clients) Networks() ([]netip.Prefix, error) {
	var out []netip.Prefix
	var errs []error
	for i, text := range c.Simple {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("clients.simple[%d]: %q is no network, as 10.0.0.0/8 or fd00::/8", i, text))
		case p != p.Masked():
			errs = append(errs, fmt.Errorf("clients.simple[%d]: %s has bits behind its length: the network is %s", i, text, p.Masked()))
		case p.Addr().Is4In6():
			errs = append(errs, fmt.Errorf("clients.simple[%d]: write %s as a network of IPv4", i, text))
		default:
			out = append(out, p)
		}
	}
	if len(c.Simple) > maxNetworks {
		errs = append(errs, fmt.Errorf("clients.simple has %d networks, %d are allowed", len(c.Simple), maxNetworks))
	}
	return out, errors.Join(errs...)
}

// Audit says what is kept of who was let do what, and where.
type Audit struct {
	// Dir is the directory of the audit logs, one a role; default: the role's own data directory.
	Dir string `yaml:"dir"`
	// Reads are kept too when they are allowed; default: changes and refusals only.
	Reads bool `yaml:"reads"`
	// Size is where a file ends and the next one begins; default 64MiB. Keep is how many ended ones stay; default 10.
	Size Size `yaml:"size"`
	Keep int  `yaml:"keep"`
}

// Log says where servers write their logs.
type Log struct {
	// Dir is the directory of the servers' logs, one a role; default: none, they go to standard error.
	Dir string `yaml:"dir"`
	// Size is where a file ends and the next one begins; default 64MiB. Keep is how many ended ones stay; default 10.
	Size Size `yaml:"size"`
	Keep int  `yaml:"keep"`
}

// Slow says from when on an operation is told in the log.
type Slow struct {
	// RPC is of calls of Hadoop's RPC; default 1s. IO is of a datanode's disks and connections; default 300ms. Append is of appends to
	// the logs of namenodes and resource managers; default 1s.
	RPC    time.Duration `yaml:"rpc"`
	IO     time.Duration `yaml:"io"`
	Append time.Duration `yaml:"append"`
}

// Users says what servers know of users beside what the operating system does.
type Users struct {
	// GroupsFile is a YAML file with the groups of users, a line for each (name: [group, group]); users who are not in it have the
	// groups that the operating system says.
	GroupsFile string `yaml:"groups_file"`
}

// OIDC is a provider of identities (OpenID Connect), whose users get a token of this cluster by `hops login`.
type OIDC struct {
	// Issuer is the provider's URL, without /.well-known/openid-configuration.
	Issuer string `yaml:"issuer"`
	// ClientID is what hops is called there: a public client with the device flow.
	ClientID string `yaml:"client_id"`
	// UserClaim is the claim with the user's name; default preferred_username. GroupsClaim is the one with the user's groups;
	// empty: groups are those that servers find.
	UserClaim   string `yaml:"user_claim"`
	GroupsClaim string `yaml:"groups_claim"`
}

// NamenodeMember is one namenode as everybody reaches it.
type NamenodeMember struct {
	ID   string `yaml:"id"`
	IPC  string `yaml:"ipc"`
	HTTP string `yaml:"http"`
	GRPC string `yaml:"grpc"`
	Raft string `yaml:"raft"`
}

// ManagerMember is one resource manager as everybody reaches it.
type ManagerMember struct {
	ID string `yaml:"id"`
	// IPC is where YARN's protocols are spoken, all of them; empty: nowhere.
	IPC  string `yaml:"ipc,omitempty"`
	HTTP string `yaml:"http"`
	GRPC string `yaml:"grpc"`
	Raft string `yaml:"raft"`
}

// leastMemory is the least that a namenode's files and directories get.
const leastMemory Size = 64 << 20

// leastFeed is the least that a feed of changes gets.
const leastFeed Size = 1 << 20

// mostSmallFile is the most that small_file_limit may be: metadata.MaxBody.
const mostSmallFile Size = 64 << 10

// leastSmallFileDelay and mostSmallFileDelay bound small_file_delay: what is closed and changed again at once is not worth the work, and the feed of changes,
// from which it is known what was closed, has an end.
const (
	leastSmallFileDelay = time.Second
	mostSmallFileDelay  = 24 * time.Hour
)

// Namenode is the namenode of this machine.
type Namenode struct {
	ID   string `yaml:"id"`
	Data string `yaml:"data"`
	// Transfer is where clients read small files over the data transfer protocol; default: port 8488 beside a grpc of 8486, otherwise any port that is
	// free. The namenodes tell each other, and clients.
	Transfer string `yaml:"transfer,omitempty"`
	// SmallFiles says whether small files may be kept by the namenodes below directories of which nobody has said whether they may; default true.
	SmallFiles *bool `yaml:"small_files,omitempty"`
	// SmallFileLimit is how large a file may be that the namenodes keep; default and most 64KiB.
	SmallFileLimit Size `yaml:"small_file_limit,omitempty"`
	// SmallFileDelay is how long after a file was closed that was written to datanodes the namenodes keep it if it is that small; 0: never by themselves. Default 10m.
	SmallFileDelay *time.Duration `yaml:"small_file_delay,omitempty"`
	// ScrubRate is how much of the small files that this namenode keeps is verified a second; default 8MiB. ScrubEvery is the least time between the
	// beginnings of two passes over all; default 504h.
	ScrubRate  Size          `yaml:"scrub_rate,omitempty"`
	ScrubEvery time.Duration `yaml:"scrub_every,omitempty"`
	// Reserve is the free space below which the namespace turns read-only; default 256MiB.
	Reserve Size `yaml:"reserve"`
	// Memory is what files, directories and their blocks may take in memory; the rest is read from the checkpoint. Default: a
	// quarter of what the process may use, and at least 64MiB, which is the least.
	Memory Size `yaml:"memory"`
	// DeadAfter is how long a silent datanode counts as alive; default 90s. StaleAfter is when it is avoided; default 10s.
	DeadAfter  time.Duration `yaml:"dead_after"`
	StaleAfter time.Duration `yaml:"stale_after"`
	// RecoveryPatience is how long the recovery of a block waits for datanodes that are away and may have more of it; default 10m.
	RecoveryPatience time.Duration `yaml:"recovery_patience"`
	// Heartbeat is what datanodes are told; default 3s.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// Reads is why the leader may answer one: lease (default), because a majority of the namenodes votes for nobody else for a while, or quorum,
	// because a majority was asked after the read had come.
	Reads string `yaml:"reads"`
	// Feed is how much the feed of changes may take on disk, 1MiB at least; 0: there is none. Default 256MiB. FeedAge is after how long its events go;
	// default 168h.
	Feed    *Size         `yaml:"feed"`
	FeedAge time.Duration `yaml:"feed_age"`
	// Search has this namenode keep an index of names, tags and sizes, which takes a feed. Default false.
	Search bool `yaml:"search"`
	// OIDC, when set, lets users log in with an identity provider.
	OIDC *OIDC `yaml:"oidc"`
}

// Datanode is the datanode of this machine.
type Datanode struct {
	Volumes  []Volume `yaml:"volumes"`
	Transfer string   `yaml:"transfer"`
	HTTP     string   `yaml:"http"`
	IPC      string   `yaml:"ipc"`
	GRPC     string   `yaml:"grpc"`
	// DomainSocket is the path of the Unix-domain socket for clients and datanodes on this machine, in which _PORT stands for the port
	// of Transfer; default: dfs.domain.socket.path of the properties. "none": there is none.
	DomainSocket string `yaml:"domain_socket,omitempty"`
	// Reserve is the free space on each volume below which it takes no new replicas; default 256MiB.
	Reserve Size `yaml:"reserve"`
	// ScrubRate is how much of each volume is verified a second; default 8MiB. ScrubEvery is the least time between the
	// beginnings of two passes over everything; default 504h.
	ScrubRate  Size          `yaml:"scrub_rate"`
	ScrubEvery time.Duration `yaml:"scrub_every"`
	// RebuildRate is how much is read a second of other datanodes to compute lost internal blocks of files with erasure coding, and sent to where replicas are
	// missing; default 128MiB.
	RebuildRate Size `yaml:"rebuild_rate"`
	// LockedMemory is how much memory of the machine replicas may take that cache directives want there; default: dfs.datanode.max.locked.memory of the properties, 0: none.
	LockedMemory Size `yaml:"locked_memory,omitempty"`
	// Trash is how long replicas are kept that are not wanted but whose file nobody deleted; default 24h.
	Trash time.Duration `yaml:"trash"`
	// FailedVolumesTolerated is how many volumes of the datanode may not work: with more the process does not start, and ends when they fail later.
	// Without it the datanode starts with all but one, and goes on with none.
	FailedVolumesTolerated *int `yaml:"failed_volumes_tolerated"`
}

// NoSocket in place of a path says that there is no Unix-domain socket.
const NoSocket = "none"

// SocketPath is the template of the path of the Unix-domain socket of a datanode with this section, of which the clients on this
// machine hear; empty: there is none.
func (f *File) SocketPath(d *Datanode) string {
	switch {
	case d == nil || d.DomainSocket == "":
		return f.properties.DomainSocket
	case d.DomainSocket == NoSocket:
		return ""
	}
	return d.DomainSocket
}

// ReplicasMemory is how much memory replicas may take at a datanode with this section; 0: none.
func (f *File) ReplicasMemory(d *Datanode) Size {
	if d == nil || d.LockedMemory == 0 {
		return f.properties.LockedMemory
	}
	return d.LockedMemory
}

// Volume is one directory of block files.
type Volume struct {
	Path string `yaml:"path"`
	// Type is DISK (default), SSD, ARCHIVE, RAM_DISK or NVDIMM.
	Type string `yaml:"type"`
}

// ResourceManager is the resource manager of this machine.
type ResourceManager struct {
	ID   string `yaml:"id"`
	Data string `yaml:"data"`
	// Scheduler and Admin are more addresses where YARN's protocols are spoken, for clients that look for them at ports of their own
	// (YARN's 8030 and 8033); empty: the ipc of the list is enough, and is what the clients' configuration says.
	Scheduler string `yaml:"scheduler,omitempty"`
	Admin     string `yaml:"admin,omitempty"`
	// Lease is how long a node may be silent before it is given up and its work tried again elsewhere; processes of fenced
	// containers are dead by then. Default 60s.
	Lease   time.Duration `yaml:"lease"`
	Reserve Size          `yaml:"reserve"`
	// MinimumAllocation is the memory that a container gets at least: what asks for less is raised to it. Default 128MiB.
	MinimumAllocation Size `yaml:"minimum_allocation"`
	// MaximumAllocation is the most that one container may ask for; what is left out is bounded by the nodes alone.
	MaximumAllocation Allocation `yaml:"maximum_allocation"`
	// LaunchWithin is how long a container may be granted to a master that does not say what runs in it. Default 10m.
	LaunchWithin time.Duration `yaml:"launch_within,omitempty"`
	// Preemption says when containers are ended so that others find room.
	Preemption Preemption `yaml:"preemption,omitempty"`
	// LogRetention is how long the logs of a job are kept in the filesystem after its end. Default 168h, a week.
	LogRetention time.Duration `yaml:"log_retention"`
	Queues       Queues        `yaml:"queues"`
}

// Preemption says when containers are ended so that others find room.
type Preemption struct {
	// Disabled: never.
	Disabled bool `yaml:"disabled,omitempty"`
	// After is how long an ask to which room is due finds none before others make room. Default 15s.
	After time.Duration `yaml:"after,omitempty"`
	// Notice is how long a container has to save its work. Default 1m.
	Notice time.Duration `yaml:"notice,omitempty"`
	// MaxShare is the part of the cluster that may be on its way out at a time, 0 to 1. Default 0.1.
	MaxShare float64 `yaml:"max_share,omitempty"`
	// Defragment: containers that say that they write checkpoints are moved so that others find room in one piece.
	Defragment bool `yaml:"defragment,omitempty"`
	// DefragmentAfter is how long an ask finds no room before somebody is moved for it. Default 5m.
	DefragmentAfter time.Duration `yaml:"defragment_after,omitempty"`
	// DefragmentPrice is what moving may cost for each GPU that finds room: the time since the last checkpoint, and a minute for the new start, of
	// each GPU that is moved. Default 5m.
	DefragmentPrice time.Duration `yaml:"defragment_price,omitempty"`
	// DefragmentRest is how long a container stays where it is before it is moved. Default 30m.
	DefragmentRest time.Duration `yaml:"defragment_rest,omitempty"`
}

// Allocation is an amount of each resource.
type Allocation struct {
	Memory Size `yaml:"memory"`
	VCores int  `yaml:"vcores"`
	GPUs   int  `yaml:"gpus"`
}

// Queues is the tree of queues, by name; its one root is named root.
type Queues map[string]Queue

// Queue is one queue of the tree.
type Queue struct {
	// Capacity and Max are percentages of the parent, "40%", weights, "2w", or vectors of these and of amounts,
	// "[memory=60GiB, yarn.io/gpu=8]". Max defaults to 100% and has no weights.
	Capacity  string   `yaml:"capacity"`
	Max       string   `yaml:"max"`
	ACLSubmit []string `yaml:"acl_submit"`
	// ACLAdminister lists who may end any application in the queue and see its logs, besides superusers and those of the
	// queues above.
	ACLAdminister       []string `yaml:"acl_administer"`
	ACLSubmitGroups     []string `yaml:"acl_submit_groups,omitempty"`
	ACLAdministerGroups []string `yaml:"acl_administer_groups,omitempty"`
	// State is RUNNING or STOPPED: a stopped queue, and those below it, take no new application; what runs goes on. Stopped is the same.
	State   string `yaml:"state,omitempty"`
	Stopped bool   `yaml:"stopped"`
	// What follows is as in resourcemanager.QueueConfig.
	UserLimit              string         `yaml:"user_limit,omitempty"`
	UserLimitFactor        float64        `yaml:"user_limit_factor,omitempty"`
	MaxApplications        int            `yaml:"max_applications,omitempty"`
	MaxApplicationsPerUser int            `yaml:"max_applications_per_user,omitempty"`
	MasterShare            string         `yaml:"master_share,omitempty"`
	Priority               int            `yaml:"priority,omitempty"`
	Ordering               string         `yaml:"ordering,omitempty"`
	PreemptionDisabled     bool           `yaml:"preemption_disabled,omitempty"`
	PreemptByPriority      bool           `yaml:"preempt_by_priority,omitempty"`
	Cells                  map[string]int `yaml:"cells,omitempty"`
	DefaultPriority        int            `yaml:"default_priority,omitempty"`
	MaxPriority            int            `yaml:"max_priority,omitempty"`
	MaxLifetime            string         `yaml:"max_lifetime,omitempty"`
	DefaultLifetime        string         `yaml:"default_lifetime,omitempty"`
	AutoCreate             *Queue         `yaml:"auto_create,omitempty"`
	Mapping                []MappingRule  `yaml:"mapping,omitempty"`
	Children               Queues         `yaml:"children"`
}

// MappingRule is a rule of the root that puts applications into queues.
type MappingRule struct {
	User        string `yaml:"user,omitempty"`
	Group       string `yaml:"group,omitempty"`
	Application string `yaml:"application,omitempty"`
	Queue       string `yaml:"queue,omitempty"`
	Fallback    string `yaml:"fallback,omitempty"`
}

// Off turns off what has an address otherwise.
const Off = "off"

// NodeManager is the node manager of this machine.
type NodeManager struct {
	Work string `yaml:"work"`
	HTTP string `yaml:"http"`
	// IPC is where masters of applications speak YARN's ContainerManagementProtocol; default: port 8041 beside an http of 8042,
	// otherwise any port that is free.
	IPC string `yaml:"ipc,omitempty"`
	// Shuffle is where reduces of MapReduce fetch the outputs of maps (the auxiliary service mapreduce_shuffle), or off; default:
	// port 13562 beside an http of 8042, otherwise any port that is free.
	Shuffle string `yaml:"shuffle,omitempty"`
	Memory  Size   `yaml:"memory"`
	VCores  int    `yaml:"vcores"`
	// Resources are amounts of what else the machine has, by name: jobs ask for them as resources.other.
	Resources map[string]int64 `yaml:"resources,omitempty"`
	// GPUs is auto, none, sim:N, or the path of a file that describes simulated devices; default auto.
	GPUs string `yaml:"gpus"`
	// GPUProbe is the path of a program that tries a device which was quarantined before it is granted again, with
	// CUDA_VISIBLE_DEVICES set to it: status 0 within 5 minutes means that it is good.
	GPUProbe string `yaml:"gpu_probe,omitempty"`
	// GPUIdle is how long a container may hold a device that does nothing before that is reported; default 30m.
	GPUIdle time.Duration `yaml:"gpu_idle,omitempty"`
	// Labels are matched by jobs that ask for one.
	Labels []string `yaml:"labels"`
	// Attributes are what is true of the machine, by name, which jobs can require: gpu_driver: "570".
	Attributes map[string]string `yaml:"attributes,omitempty"`
	// LogLimit is how much log a container may write; default 1GiB. LogRate is how much of it a second, once a quarter of the
	// limit is written; default 4MiB. A container that exceeds one of them is ended.
	LogLimit Size `yaml:"log_limit"`
	LogRate  Size `yaml:"log_rate"`
	// LogRolled are names, or patterns as of a shell, of log files that are rolled: when they are long they lose their beginning on the
	// machine, where LogKeep of each stays at least, and count no more than that for LogLimit. Defaults: stdout and stderr; an eighth of
	// LogLimit, 64MiB at most. With a LogKeep from LogLimit on nothing is rolled.
	LogRolled []string `yaml:"log_rolled,omitempty"`
	LogKeep   Size     `yaml:"log_keep,omitempty"`
	// DiskLimit is how much a container may have in its directory, without its logs; default: four fifths of what is free when the
	// node manager starts. A container that exceeds it is ended.
	DiskLimit Size `yaml:"disk_limit"`
	// Pids is how many processes and threads a container may have together; default 32768.
	Pids int `yaml:"pids,omitempty"`
	// Grace is the time between SIGTERM and SIGKILL for jobs that name none; default 5s.
	Grace time.Duration `yaml:"grace,omitempty"`
	// CPU is shares (default: a container's vcores are its share when processors are short) or limit (they are the most that it gets).
	CPU string `yaml:"cpu,omitempty"`
	// CPUSet is any (default) or gpu: a container with devices runs on the cores near them only.
	CPUSet string `yaml:"cpuset,omitempty"`
	// HealthScript is a program that says whether the machine is well, as YARN's health-checker.script.
	HealthScript *HealthScript `yaml:"health_script,omitempty"`
	// Isolation says as whom containers run: auto (default; as their users, if the node manager is root, and otherwise only
	// those of its own user), any (everybody's as the node manager's user) or off (likewise, and nothing is hidden from them).
	Isolation string `yaml:"isolation"`
	// MinUserID, BannedUsers and AllowedSystemUsers say whose containers run as their users (min.user.id, banned.users and
	// allowed.system.users of YARN's container-executor.cfg); defaults: 1000; root, hdfs, yarn, mapred and bin; nobody.
	MinUserID          *int     `yaml:"min_user_id"`
	BannedUsers        []string `yaml:"banned_users"`
	AllowedSystemUsers []string `yaml:"allowed_system_users"`
	// Rack is where the machine stands, as /site/row7; default /default-rack.
	Rack string `yaml:"rack"`
}

// HealthScript is run as the node manager's user. A line of its output that begins with ERROR makes the node unhealthy, and so does
// one that takes longer than Timeout.
type HealthScript struct {
	Path string   `yaml:"path"`
	Args []string `yaml:"args,omitempty"`
	// Interval is the time from its end to the next run, default 10m; Timeout how long it may take, default 20m.
	Interval time.Duration `yaml:"interval,omitempty"`
	Timeout  time.Duration `yaml:"timeout,omitempty"`
}

// Load reads and validates a file.
func Load(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w (name another file with -c; docs/reference/configuration.md shows one)", err)
	}
	return parse(path, text, (*File).withServers)
}

// Parse reads and validates the text of the file called name, without servers.yaml.
func Parse(name string, text []byte) (*File, error) {
	return parse(name, text, nil)
}

// parse reads a file, completes it and validates it.
func parse(name string, text []byte, complete func(*File) error) (*File, error) {
	f := &File{}
	err := yaml.UnmarshalStrict(name, text, f)
	if wrong, ok := errors.AsType[*yaml.Mistakes](err); err != nil && (!ok || wrong.Hides()) {
		return nil, err
	}
	f.places()
	if complete != nil {
		if bad := complete(f); bad != nil {
			return nil, errors.Join(err, fmt.Errorf("%s: %w", name, bad))
		}
	}
	if invalid := f.Validate(); invalid != nil {
		err = errors.Join(err, fmt.Errorf("%s: %w", name, invalid))
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// HadoopProperties are the file's properties over Hadoop's defaults.
func (f *File) HadoopProperties() Properties { return f.properties }

// places fills in where the files are that this one does not name.
func (f *File) places() {
	c := &f.Cluster
	if c.Identity == "" && c.SecretFile != "" {
		c.Identity = filepath.Join(filepath.Dir(c.SecretFile), "identity.pem")
	}
	if c.Servers == "" && c.Identity != "" {
		c.Servers = filepath.Join(filepath.Dir(c.Identity), "servers.yaml")
	}
}

// Validate fills in defaults and lists every mistake at once.
func (f *File) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	need := func(where, value string) {
		if value == "" {
			wrong("%s is missing", where)
		}
	}
	address := func(where, value string) {
		if value == "" {
			wrong("%s is missing", where)
		} else if err := checkAddress(value); err != nil {
			wrong("%s: %w", where, err)
		}
	}
	for _, files := range []struct {
		where string
		size  *Size
		keep  *int
	}{{"audit", &f.Audit.Size, &f.Audit.Keep}, {"log", &f.Log.Size, &f.Log.Keep}} {
		*files.size, *files.keep = cmp.Or(*files.size, 64<<20), cmp.Or(*files.keep, 10)
		if *files.size < 1<<20 {
			wrong("%s.size: %v is less than 1MiB, for which a file is not worth it", files.where, *files.size)
		}
		if *files.keep < 1 || *files.keep > 1000 {
			wrong("%s.keep: %d is not 1 to 1000", files.where, *files.keep)
		}
	}
	for _, limit := range []struct {
		where string
		value *time.Duration
		usual time.Duration
	}{{"slow.rpc", &f.Slow.RPC, time.Second}, {"slow.io", &f.Slow.IO, 300 * time.Millisecond}, {"slow.append", &f.Slow.Append, time.Second}} {
		if *limit.value = cmp.Or(*limit.value, limit.usual); *limit.value < time.Millisecond {
			wrong("%s: %v is less than 1ms: everything would be slow", limit.where, *limit.value)
		}
	}
	need("cluster.name", f.Cluster.Name)
	f.places()
	if f.Namenode != nil || f.ResourceManager != nil || f.Cluster.Identity == "" {
		need("cluster.secret_file", f.Cluster.SecretFile)
	}
	f.Cluster.Address = cmp.Or(f.Cluster.Address, "127.0.0.1")
	if err := checkAddress(net.JoinHostPort(f.Cluster.Address, "0")); err != nil {
		wrong("cluster.address: %w", err)
	}
	if a, err := netip.ParseAddr(f.Cluster.Bind); f.Cluster.Bind != "" && (err != nil || a.Is4In6()) {
		wrong("cluster.bind: %q is no IP address, as 0.0.0.0 or 10.0.0.5", f.Cluster.Bind)
	}
	for i, h := range f.Cluster.Hosts {
		if err := checkAddress(net.JoinHostPort(h, "0")); err != nil {
			wrong("cluster.hosts[%d]: %w", i, err)
		}
	}
	if _, err := f.Clients.Networks(); err != nil {
		wrong("%w", err)
	}
	ids := map[string]bool{}
	for i, n := range f.Namenodes {
		where := fmt.Sprintf("namenodes[%d]", i)
		need(where+".id", n.ID)
		if ids[n.ID] {
			wrong("%s.id: %s stands twice", where, n.ID)
		}
		ids[n.ID] = true
		address(where+".ipc", n.IPC)
		address(where+".http", n.HTTP)
		address(where+".grpc", n.GRPC)
		address(where+".raft", n.Raft)
	}
	managers := map[string]bool{}
	for i, m := range f.ResourceManagers {
		where := fmt.Sprintf("resourcemanagers[%d]", i)
		need(where+".id", m.ID)
		if managers[m.ID] {
			wrong("%s.id: %s stands twice", where, m.ID)
		}
		managers[m.ID] = true
		if m.IPC != "" {
			address(where+".ipc", m.IPC)
		}
		address(where+".http", m.HTTP)
		address(where+".grpc", m.GRPC)
		address(where+".raft", m.Raft)
	}
	if n := f.Namenode; n != nil {
		need("namenode.data", n.Data)
		if !ids[n.ID] {
			wrong("namenode.id: %q is not in the list of namenodes", n.ID)
		}
		for _, m := range f.Namenodes {
			if host, port, err := net.SplitHostPort(m.GRPC); m.ID == n.ID && n.Transfer == "" && err == nil {
				n.Transfer = net.JoinHostPort(host, "0")
				if port == "8486" {
					n.Transfer = net.JoinHostPort(host, "8488")
				}
			}
		}
		address("namenode.transfer", n.Transfer)
		n.Reserve = cmp.Or(n.Reserve, 256<<20)
		if n.Memory != 0 && n.Memory < leastMemory {
			wrong("namenode.memory: %v is less than %v, which a namenode needs", n.Memory, leastMemory)
		}
		if n.SmallFiles == nil {
			n.SmallFiles = new(true)
		}
		if n.SmallFileLimit = cmp.Or(n.SmallFileLimit, mostSmallFile); n.SmallFileLimit < 1 || n.SmallFileLimit > mostSmallFile {
			wrong("namenode.small_file_limit: %v is not between 1 and %v bytes, which is the most that namenodes keep of a file: to keep none set namenode.small_files to false", n.SmallFileLimit, mostSmallFile)
		}
		if n.ScrubRate = cmp.Or(n.ScrubRate, 8<<20); n.ScrubRate < 64<<10 {
			wrong("namenode.scrub_rate: %v a second would never come to an end; the least is 64KiB", n.ScrubRate)
		}
		if n.ScrubEvery = cmp.Or(n.ScrubEvery, 504*time.Hour); n.ScrubEvery < 0 {
			wrong("namenode.scrub_every: %v is negative", n.ScrubEvery)
		}
		n.DeadAfter = cmp.Or(n.DeadAfter, 90*time.Second)
		n.StaleAfter = cmp.Or(n.StaleAfter, 10*time.Second)
		if n.Reads = cmp.Or(n.Reads, "lease"); n.Reads != "lease" && n.Reads != "quorum" {
			wrong("namenode.reads: %q is none of lease quorum", n.Reads)
		}
		n.Heartbeat = cmp.Or(n.Heartbeat, 3*time.Second)
		n.RecoveryPatience = cmp.Or(n.RecoveryPatience, 10*time.Minute)
		if n.Heartbeat < 0 || n.StaleAfter < 0 {
			wrong("namenode: heartbeat is %v and stale_after %v, both have to be above 0", n.Heartbeat, n.StaleAfter)
		}
		if n.RecoveryPatience < 0 {
			wrong("namenode.recovery_patience: %v is negative", n.RecoveryPatience)
		}
		if n.Feed == nil {
			n.Feed = new(Size(256 << 20))
		}
		if *n.Feed != 0 && *n.Feed < leastFeed {
			wrong("namenode.feed: %v is less than %v; 0 is for no feed of changes", *n.Feed, leastFeed)
		}
		if n.Search && *n.Feed == 0 {
			wrong("namenode.search: it follows the feed of changes, and namenode.feed is 0")
		}
		if n.FeedAge = cmp.Or(n.FeedAge, 7*24*time.Hour); n.FeedAge < time.Minute {
			wrong("namenode.feed_age: %v is less than a minute", n.FeedAge)
		}
		if n.SmallFileDelay == nil {
			n.SmallFileDelay = new(min(10*time.Minute, n.FeedAge/2))
		}
		switch d := *n.SmallFileDelay; {
		case d != 0 && (d < leastSmallFileDelay || d > mostSmallFileDelay):
			wrong("namenode.small_file_delay: %v is not between %v and %v, nor 0, with which the namenodes keep no file by themselves that was written to datanodes", d, leastSmallFileDelay, mostSmallFileDelay)
		case d >= n.FeedAge:
			wrong("namenode.small_file_delay: %v is as long as the feed of changes goes back (namenode.feed_age: %v), from which it is known which files were closed", d, n.FeedAge)
		}
		if o := n.OIDC; o != nil {
			o.UserClaim = cmp.Or(o.UserClaim, "preferred_username")
			need("namenode.oidc.client_id", o.ClientID)
			if u, err := url.Parse(o.Issuer); err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !security.Loopback(u.Hostname())) {
				wrong("namenode.oidc.issuer: %q is not an https address", o.Issuer)
			}
		}
		if n.DeadAfter <= n.Heartbeat {
			wrong("namenode.dead_after: %v is not above the heartbeat of %v", n.DeadAfter, n.Heartbeat)
		}
	}
	if d := f.Datanode; d != nil {
		if len(d.Volumes) == 0 {
			wrong("datanode.volumes is empty: a datanode needs a directory")
		}
		for i := range d.Volumes {
			need(fmt.Sprintf("datanode.volumes[%d].path", i), d.Volumes[i].Path)
			d.Volumes[i].Type = cmp.Or(d.Volumes[i].Type, "DISK")
			if types := []string{"DISK", "SSD", "ARCHIVE", "RAM_DISK", "NVDIMM"}; !slices.Contains(types, d.Volumes[i].Type) {
				wrong("datanode.volumes[%d].type: %q is none of %s", i, d.Volumes[i].Type, strings.Join(types, " "))
			}
		}
		if len(d.Volumes) > 0 && !slices.ContainsFunc(d.Volumes, func(v Volume) bool { return v.Type != "RAM_DISK" }) {
			wrong("datanode.volumes: all are of type RAM_DISK; what is in memory is saved on another one")
		}
		for _, a := range []struct {
			name string
			addr *string
			port string
		}{{"transfer", &d.Transfer, "9866"}, {"http", &d.HTTP, "9864"}, {"ipc", &d.IPC, "9867"}, {"grpc", &d.GRPC, "9868"}} {
			*a.addr = cmp.Or(*a.addr, net.JoinHostPort(f.Cluster.Address, a.port))
			address("datanode."+a.name, *a.addr)
		}
		if d.DomainSocket != "" && d.DomainSocket != NoSocket {
			if err := localsocket.CheckForm(d.DomainSocket); err != nil {
				wrong("datanode.domain_socket: %w", err)
			}
		}
		d.Reserve = cmp.Or(d.Reserve, 256<<20)
		d.ScrubRate = cmp.Or(d.ScrubRate, 8<<20)
		d.ScrubEvery = cmp.Or(d.ScrubEvery, 504*time.Hour)
		d.RebuildRate = cmp.Or(d.RebuildRate, 128<<20)
		d.Trash = cmp.Or(d.Trash, 24*time.Hour)
		if n := d.FailedVolumesTolerated; n != nil && (*n < 0 || *n >= len(d.Volumes)) {
			wrong("datanode.failed_volumes_tolerated: %d of %d volumes; at least one has to work", *n, len(d.Volumes))
		}
		if d.ScrubRate < 64<<10 {
			wrong("datanode.scrub_rate: %v a second would never come to an end; the least is 64KiB", d.ScrubRate)
		}
		if d.RebuildRate < 8<<20 {
			wrong("datanode.rebuild_rate: %v a second is too little to copy or compute a large block before the namenode asks another datanode; the least is 8MiB", d.RebuildRate)
		}
		if d.LockedMemory < 0 {
			wrong("datanode.locked_memory: %v may not be negative", d.LockedMemory)
		}
		if d.ScrubEvery < 0 || d.Trash < 0 {
			wrong("datanode: scrub_every is %v and trash %v, neither may be negative", d.ScrubEvery, d.Trash)
		}
	}
	if r := f.ResourceManager; r != nil {
		need("resourcemanager.data", r.Data)
		if !managers[r.ID] {
			wrong("resourcemanager.id: %q is not in the list of resourcemanagers", r.ID)
		}
		if r.Scheduler != "" {
			address("resourcemanager.scheduler", r.Scheduler)
		}
		if r.Admin != "" {
			address("resourcemanager.admin", r.Admin)
		}
		r.Lease = cmp.Or(r.Lease, time.Minute)
		if r.Lease < time.Second || r.Lease > 24*time.Hour {
			wrong("resourcemanager.lease: %v is not between 1s and 24h", r.Lease)
		}
		if p := r.Preemption; p.After < 0 || p.Notice < 0 || p.Notice > 24*time.Hour || p.MaxShare < 0 || p.MaxShare > 1 {
			wrong("resourcemanager.preemption: after and notice are times (notice up to 24h), max_share is a number from 0 to 1")
		}
		for _, t := range []struct {
			key string
			d   time.Duration
		}{{"after", r.Preemption.DefragmentAfter}, {"price", r.Preemption.DefragmentPrice}, {"rest", r.Preemption.DefragmentRest}} {
			if t.d != 0 && (t.d < time.Second || t.d > 30*24*time.Hour) {
				wrong("resourcemanager.preemption.defragment_%s: %v is not between 1s and 720h", t.key, t.d)
			}
		}
		r.LogRetention = cmp.Or(r.LogRetention, 7*24*time.Hour)
		if r.LogRetention < time.Hour {
			wrong("resourcemanager.log_retention: %v is less than 1h; to keep logs for good say 876000h", r.LogRetention)
		}
		r.MinimumAllocation = cmp.Or(r.MinimumAllocation, 128<<20)
		if r.MinimumAllocation < 1<<20 {
			wrong("resourcemanager.minimum_allocation: %d bytes are less than 1MiB", r.MinimumAllocation)
		}
		if m := r.MaximumAllocation; m.Memory < 0 || m.VCores < 0 || m.GPUs < 0 {
			wrong("resourcemanager.maximum_allocation: amounts are not negative")
		} else if m.Memory > 0 && m.Memory < r.MinimumAllocation {
			wrong("resourcemanager.maximum_allocation.memory is below the minimum_allocation")
		}
		r.Reserve = cmp.Or(r.Reserve, 256<<20)
		if r.Queues == nil {
			r.Queues = DefaultQueues()
		}
		if _, ok := r.Queues["root"]; !ok || len(r.Queues) != 1 {
			wrong("resourcemanager.queues: the one queue at the top is named root")
		}
	}
	if n := f.NodeManager; n != nil {
		need("nodemanager.work", n.Work)
		if !f.Followed && len(f.ResourceManagers) == 0 {
			wrong("nodemanager: there is no resource manager to report to in the list of resourcemanagers")
		}
		n.HTTP = cmp.Or(n.HTTP, net.JoinHostPort(f.Cluster.Address, "8042"))
		address("nodemanager.http", n.HTTP)
		for _, p := range []struct {
			name     string
			field    *string
			standard string
		}{{"ipc", &n.IPC, "8041"}, {"shuffle", &n.Shuffle, "13562"}} {
			if host, port, err := net.SplitHostPort(n.HTTP); *p.field == "" && err == nil {
				*p.field = net.JoinHostPort(host, "0")
				if port == "8042" {
					*p.field = net.JoinHostPort(host, p.standard)
				}
			}
			if p.field == &n.Shuffle && n.Shuffle == Off {
				continue
			}
			if host, port, err := net.SplitHostPort(*p.field); err != nil || host == "" || port != "0" {
				address("nodemanager."+p.name, *p.field)
			}
		}
		n.GPUs = cmp.Or(n.GPUs, "auto")
		n.LogLimit = cmp.Or(n.LogLimit, 1<<30)
		n.LogRate = cmp.Or(n.LogRate, 4<<20)
		n.Isolation = cmp.Or(n.Isolation, "auto")
		if choices := []string{"auto", "any", "off"}; !slices.Contains(choices, n.Isolation) {
			wrong("nodemanager.isolation: %q is none of %s", n.Isolation, strings.Join(choices, " "))
		}
		if n.MinUserID != nil && (*n.MinUserID < 1 || *n.MinUserID > math.MaxInt32) {
			wrong("nodemanager.min_user_id: %d is no user id that containers could run from: 1 or more", *n.MinUserID)
		}
		if n.GPUProbe != "" && !path.IsAbs(n.GPUProbe) {
			wrong("nodemanager.gpu_probe: %q is no absolute path of a program", n.GPUProbe)
		}
		if n.Pids < 0 || n.Pids > 0 && n.Pids < 16 {
			wrong("nodemanager.pids: %d processes and threads are too few for any program; the least is 16", n.Pids)
		}
		if n.Grace < 0 || n.Grace > nodemanager.MaxGrace {
			wrong("nodemanager.grace: %v is outside 0..%v", n.Grace, nodemanager.MaxGrace)
		}
		if n.CPU != "" && n.CPU != "shares" && n.CPU != "limit" {
			wrong("nodemanager.cpu: %q is none of shares limit", n.CPU)
		}
		if n.CPUSet != "" && n.CPUSet != "any" && n.CPUSet != "gpu" {
			wrong("nodemanager.cpuset: %q is none of any gpu", n.CPUSet)
		}
		if n.GPUIdle < 0 || n.GPUIdle > 0 && n.GPUIdle < time.Minute {
			wrong("nodemanager.gpu_idle: %v is too short to say that a device is idle; the least is 1m", n.GPUIdle)
		}
		if h := n.HealthScript; h != nil {
			if !path.IsAbs(h.Path) {
				wrong("nodemanager.health_script.path: %q is no absolute path of a program", h.Path)
			}
			h.Interval, h.Timeout = cmp.Or(h.Interval, 10*time.Minute), cmp.Or(h.Timeout, 20*time.Minute)
			if h.Interval < time.Second || h.Timeout < time.Second {
				wrong("nodemanager.health_script: an interval of %v and a timeout of %v: the least is 1s", h.Interval, h.Timeout)
			}
		}
		n.Rack = cmp.Or(n.Rack, topology.DefaultRack)
		if err := topology.Check(n.Rack); err != nil {
			wrong("nodemanager.rack: %v", err)
		}
		if n.DiskLimit < 0 {
			wrong("nodemanager.disk_limit: %v is negative", n.DiskLimit)
		}
		if n.Memory <= 0 {
			wrong("nodemanager.memory is missing: how much may containers use, as 60GiB")
		}
		if n.LogKeep != 0 && n.LogKeep < 64<<10 {
			wrong("nodemanager.log_keep: %v of a log file are too few lines to see why a program failed; the least is 64KiB", n.LogKeep)
		}
		for _, pattern := range n.LogRolled {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" || strings.Contains(pattern, "/") {
				wrong("nodemanager.log_rolled: %q is neither the name of a file in a log directory nor a pattern of such names", pattern)
			}
		}
		if n.LogLimit < 1<<20 {
			wrong("nodemanager.log_limit: %v would end containers for a few lines of log; the least is 1MiB", n.LogLimit)
		}
		if n.VCores <= 0 {
			wrong("nodemanager.vcores is missing: how many cores may containers use")
		}
	}
	f.properties = DefaultProperties()
	for _, name := range slices.Sorted(maps.Keys(f.Properties)) {
		if err := f.properties.Set(name, f.Properties[name]); err != nil {
			wrong("properties: %w", err)
		}
	}
	if err := f.properties.Kerberos.check(); err != nil {
		wrong("properties: %w", err)
	}
	if p := f.properties; p.RackScript != "" && p.RackTable != "" {
		wrong("properties: %s and %s are both set: which of them counts?", rackScript, rackTable)
	}
	return errors.Join(errs...)
}

// hostName is labels of letters, digits, dashes and, as machines in some networks have them, underscores.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?$`)

// checkAddress says what is wrong with an address at which others reach a server.
func checkAddress(value string) error {
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		return fmt.Errorf("%q is not host:port", value)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: the port is a number up to 65535", value)
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err == nil && ip.IsUnspecified():
		return fmt.Errorf("%s is no address that anybody can reach: give this machine's own (cluster.bind: %s listens on all networks)", value, host)
	case err != nil && (!hostName.MatchString(host) || len(host) > 253):
		return fmt.Errorf("%q is neither an IP address nor the name of a host", host)
	}
	return nil
}

// DefaultQueues is a root with the one child default.
func DefaultQueues() Queues {
	return Queues{"root": {Children: Queues{"default": {Capacity: "100%"}}}}
}
