package resourcemanager

import (
	"slices"
	"strconv"
	"time"

	"github.com/gohops/hops/metadata"
)

// State is where an application is in its life, in YARN's words.
//
//	SUBMITTED ── queue known ──► ACCEPTED ── master registers ──► RUNNING ── master finishes ──► FINISHED
//	    │                         │    ▲                            │
//	    │                         │    └── master lost, tries left ─┤
//	    └─► FAILED ◄── no tries left ─────────────────────────────--┤
//	                  KILLED ◄── user, timeout ─────────────────────┘
type State string

// The states. NEW and SUBMITTED are passed within the submission itself and seen by nobody.
const (
	StateAccepted State = "ACCEPTED"
	StateRunning  State = "RUNNING"
	StateFinished State = "FINISHED"
	StateFailed   State = "FAILED"
	StateKilled   State = "KILLED"
)

// Final reports whether the application has ended.
func (s State) Final() bool { return s == StateFinished || s == StateFailed || s == StateKilled }

// FinalStatus is the result of an application, as its master tells it.
type FinalStatus string

// The final statuses.
const (
	FinalUndefined FinalStatus = "UNDEFINED"
	FinalSucceeded FinalStatus = "SUCCEEDED"
	FinalFailed    FinalStatus = "FAILED"
	FinalKilled    FinalStatus = "KILLED"
)

// MaxPriority is the highest priority of an application, YARN's default (yarn.cluster.max-application-priority).
const MaxPriority = 10

// Kind says which master runs an application.
type Kind string

// The kinds.
const (
	KindCommand    Kind = "command"
	KindExperiment Kind = "experiment"
	// KindMaster: what the job runs is the master itself, which asks for containers by REST, gRPC or YARN's RPC.
	KindMaster Kind = "master"
)

// Application is a submitted job with all that happened to it.
type Application struct {
	ID    ApplicationID
	Name  string
	User  string
	Queue string // full path, or the raw text when no such queue exists
	Kind  Kind
	// Type is YARN's free-text application type.
	Type string
	Tags []string
	// Priority: larger is served first; -1 was not given.
	Priority int
	// Master is what the master's container gets.
	Master Resource
	// Document is the job as submitted, in JSON; the master reads it as job.json.
	Document []byte
	// Tokens are what the master's launch brings, see Launch.Tokens.
	Tokens []byte
	// MaxAttempts bounds the tries that end by the master's own fault.
	MaxAttempts int
	// KeepContainers: containers outlive the attempt that asked for them and are given to the next.
	KeepContainers bool
	// Timeout counts from the first start of the master; 0 is none. See Expiry.
	Timeout time.Duration
	// Expires is when the application is ended, if somebody has changed that since it was submitted; 0: nobody has.
	Expires metadata.Time
	// Deadline is when it is ended whatever it does; 0: there is none. See Expiry and Late.
	Deadline metadata.Time
	// After is what it still waits for; before that nothing of it is started.
	After []Dependency
	// Size is how many instances a command has; zero: as many as its document says.
	Size Size
	// Members are those of an array of which somebody has wished something, by number; never changed in place.
	Members []Member
	// Succeeded are the instances of which a container that succeeded is forgotten, if it Remembers them: a master that starts again must not run
	// them again.
	Succeeded Numbers
	Remembers bool
	// IdempotencyKey, unique per user when not empty, with the SHA-256 of the submission it came with.
	IdempotencyKey string
	Digest         string

	State       State
	Final       FinalStatus
	Diagnostics string
	TrackingURL string
	Submitted   metadata.Time
	// Launched is when the first master started to run; 0: not yet.
	Launched metadata.Time
	Finished metadata.Time
	// Attempts in order; the last one is the current one.
	Attempts []Attempt
	// Failures counts attempts that ended by the master's own fault.
	Failures int

	// Used is the sum over the live containers, Live their number.
	Used Resource
	Live int
	// Spent sums resource x milliseconds over ended containers: memory in MiB.
	Spent Spent
	// Containers, LastEvent and LastLaunch are the numbers given last; events up to Acknowledged are handled.
	Containers   int64
	LastEvent    uint64
	LastLaunch   uint64
	Acknowledged uint64
	// Ended orders applications by their end; 0 while not final.
	Ended uint64
}

// Size is how many instances a command has, since it was resized.
type Size struct {
	// Max instances have the numbers from 0 on; 0: it was never resized.
	Max int
	// Min of them at least start at once; 0: each on its own.
	Min int
}

// Member is one of an array, with what somebody has wished of it.
type Member struct {
	Number int32
	// Killed: it is to run no more.
	Killed bool
	// Forgiven is the number of the application's container up to which its failures count no more.
	Forgiven int64
}

// Surplus reports whether an instance is one too many since the application was resized.
func (a *Application) Surplus(instance int) bool { return a.Size.Max > 0 && instance >= a.Size.Max }

// MemberOf is what is wished of a member.
func (a *Application) MemberOf(number int32) Member {
	at, ok := slices.BinarySearchFunc(a.Members, number, func(m Member, n int32) int { return int(m.Number) - int(n) })
	if !ok {
		return Member{Number: number}
	}
	return a.Members[at]
}

// Spent is resource x time, in milliseconds.
type Spent struct {
	MiB, VCores, GPUs int64
}

// Add returns s plus d milliseconds of r.
func (s Spent) Add(r Resource, ms int64) Spent {
	return Spent{s.MiB + r.MemoryMiB()*ms, s.VCores + int64(r.VCores)*ms, s.GPUs + int64(r.GPUs)*ms}
}

// Expiry is when the application is ended because its time is over; 0: never, or not known before its master starts.
func (a *Application) Expiry() metadata.Time {
	at := metadata.Time(0)
	switch {
	case a.Expires > 0:
		at = a.Expires
	case a.Timeout > 0 && a.Launched > 0:
		at = a.Launched + metadata.Time(a.Timeout.Milliseconds())
	}
	if a.Deadline > 0 && (at == 0 || a.Deadline < at) {
		return a.Deadline
	}
	return at
}

// Late reports whether the application has not started at a time after which, with its timeout, it could not end before its deadline.
func (a *Application) Late(now metadata.Time) bool {
	return a.Deadline > 0 && a.Launched == 0 && now+metadata.Time(a.Timeout.Milliseconds()) > a.Deadline
}

// Attempt returns the current attempt, nil before the first.
func (a *Application) Attempt() *Attempt {
	if len(a.Attempts) == 0 {
		return nil
	}
	return &a.Attempts[len(a.Attempts)-1]
}

// maxUnhandled is more than a master that handles its events ever has before it: each container of a job makes two.
const maxUnhandled = 50_000

// Deaf reports whether so many events wait for the application's master that nothing more is granted to it until it has
// handled some.
func (a *Application) Deaf() bool { return a.LastEvent-a.Acknowledged >= maxUnhandled }

// WantsMaster reports whether the current attempt waits for its master's container, and for nothing else.
func (a *Application) WantsMaster() bool {
	t := a.Attempt()
	return !a.State.Final() && t != nil && t.State == AttemptScheduled && len(a.After) == 0
}

// AttemptState is where an attempt is, in YARN's words.
type AttemptState string

// The states of an attempt.
const (
	AttemptScheduled AttemptState = "SCHEDULED" // waits for a container
	AttemptAllocated AttemptState = "ALLOCATED" // has one that does not run yet
	AttemptLaunched  AttemptState = "LAUNCHED"  // runs, has not registered
	AttemptRunning   AttemptState = "RUNNING"
	AttemptFinishing AttemptState = "FINISHING" // has said how it ended, its container still runs
	AttemptFinished  AttemptState = "FINISHED"
	AttemptFailed    AttemptState = "FAILED"
	AttemptKilled    AttemptState = "KILLED"
)

// Final reports whether the attempt has ended.
func (s AttemptState) Final() bool {
	return s == AttemptFinished || s == AttemptFailed || s == AttemptKilled
}

// Attempt is one try of an application's master.
type Attempt struct {
	Number    int
	State     AttemptState
	Container ContainerID
	Node      NodeID
	Started   metadata.Time
	Finished  metadata.Time
	// HTTP is host:port of the master's HTTP server, empty when it has none.
	HTTP string
	// Certificate is the SHA-256 of that server's certificate, by which alone it is known; empty: the server is plain.
	Certificate []byte
	TrackingURL string
	// Host and Port are where the master says that it listens for its own protocol, as YARN's reports show them; empty and 0: it
	// does not say.
	Host string
	Port int
	// Epoch is given at registration; 0: not registered.
	Epoch uint64
	// Sequence is that of the last Allocate that took effect.
	Sequence    uint64
	Diagnostics string
}

// Ask is a wish of an application for containers, all alike.
type Ask struct {
	// ID is the application's; a later ask with the same id replaces it. Empty: the master's own container.
	ID string
	// Priority: smaller is served first, as in YARN.
	Priority int
	Resource Resource
	// Count is how many are still to be granted.
	Count int
	// Gang: at least so many at once or none; 0 when each comes on its own.
	Gang int
	// Model of GPU, a part of the model's name in any case; empty: any.
	Model string
	// Island: all GPUs of a container in one NVLink island.
	Island bool
	// Nodes preferred, by host name or node id; required when Strict.
	Nodes  []string
	Strict bool
	// Excluded nodes, by host name or node id.
	Excluded []string
	// Label that a node must carry; empty: none needed.
	Label string
	// GPUMemory is the least memory of each of its devices, in bytes; 0: any.
	GPUMemory int64
	// Within is the level of the network inside which a gang has to be: "node", or the depth of a rack's path, "1" being the
	// outermost; empty: as near together as there is room.
	Within string
	// Placement says more about the nodes.
	Placement
	// Near says where its data lies; required, as Nodes are, when Strict.
	Near Near
	// Walltime is how long each container runs at most, as far as its application knows; 0: unknown. It lets the container pass
	// others that wait for a reservation; nothing is ended by it.
	Walltime time.Duration
	// Held: the containers are granted without anything to run. They hold their resources until their application launches
	// or releases them, and end when it does neither in time (LaunchContainers; as YARN's containers do).
	Held bool
	// Launch numbers what runs in each container granted; 0 when Held.
	Launch uint64
	// Instances are the numbers of those still to be granted, in the order in which they are given; empty: they have none.
	Instances []int32
}

// MaxDepth bounds the depth of a rack's path.
const MaxDepth = 16

// ValidWithin reports whether a word names a level of the network, see Ask.Within.
func ValidWithin(s string) bool {
	if s == "" || s == "node" {
		return true
	}
	n, err := strconv.Atoi(s)
	return err == nil && n >= 1 && n <= MaxDepth && s == strconv.Itoa(n)
}

// Launch is what runs in a container.
type Launch struct {
	Argv      []string
	Env       []EnvVar // sorted by name
	Artifacts []Artifact
	// Grace lies between SIGTERM and SIGKILL; 0 is the node manager's default.
	Grace time.Duration
	// Fenced: no process of it lives longer than its node's lease, so that a second try never runs beside the first. An
	// outage of the resource managers that is longer ends it.
	Fenced bool
	// Dialect says how Argv and Env are meant.
	Dialect string
	// Tokens are the credentials that the launch brings, as a file of Hadoop's (HDTS): sealed by the cluster's secret in the state.
	Tokens []byte
}

// The dialects of a launch.
const (
	// DialectOurs: Argv is the program with its arguments, and nothing is expanded.
	DialectOurs = ""
	// DialectYARN: Argv[0] is a command line for bash, in which, as in Env, {{X}}, <CPS> and <LOG_DIR> are expanded
	// (ApplicationConstants of YARN).
	DialectYARN = "yarn"
)

// EnvVar is one variable of an environment.
type EnvVar struct{ Name, Value string }

// Artifact is something that has to lie in the work directory before the program starts.
type Artifact struct {
	Name string `json:"name"`
	// URI is a path of the cluster's file system, or hdfs://…; empty: Content.
	URI string `json:"uri,omitempty"`
	// Kind is file, archive, code or, of launches in YARN's dialect, pattern.
	Kind   string `json:"kind,omitempty"`
	Size   int64  `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	// Timestamp is the modification time in milliseconds, checked when set and SHA256 is empty.
	Timestamp int64 `json:"timestamp,omitempty"`
	// Visibility is public, private or application.
	Visibility string `json:"visibility,omitempty"`
	// Pattern is a regular expression for the names of files that are unpacked, of kind pattern.
	Pattern string `json:"pattern,omitempty"`
	Content []byte `json:"content,omitempty"`
}
