package resourcemanager

import (
	"context"
	"time"

	"github.com/gohops/hops/metadata"
)

// Masters is what an application's master may ask of the resource manager, whatever wire it speaks. Who calls has found out which
// attempt speaks. All errors may be ErrStaleAttempt (a newer attempt exists, or the application has ended: whoever asked exits),
// metadata.ErrStandby (another member leads) and metadata.ErrRetriable.
type Masters interface {
	// RegisterMaster begins the attempt, or answers its beginning again. Error: metadata.ErrInvalidArgument.
	RegisterMaster(ctx context.Context, id AttemptID, r Registration) (*Registered, error)
	// Allocate states what the application wants. Asks are absolute per id, so a repeat is harmless. Nothing of a request that is refused
	// counts. Errors: metadata.ErrInvalidArgument; metadata.ErrPermission when it releases what is another application's; ErrBusy.
	Allocate(ctx context.Context, id AttemptID, r Request) error
	// LaunchContainers says what runs in containers that are held. It answers when that is recorded, for each launch in order: nil, also when
	// the same was said before; metadata.ErrNotExist when the container has ended or never was; ErrLaunched; metadata.ErrPermission when it
	// is another application's; metadata.ErrInvalidArgument; ErrBusy. The error is of the whole.
	LaunchContainers(ctx context.Context, id AttemptID, launches []ContainerLaunch) ([]error, error)
	// Checkpointed says that containers have saved their work up to a step, a number of the application's own. One that is to go is ended
	// then. Errors: metadata.ErrNotExist when none of them lives; metadata.ErrPermission; metadata.ErrInvalidArgument;
	// metadata.ErrUnsupported while the cluster has not been raised to release.Requests.
	Checkpointed(ctx context.Context, id AttemptID, containers []ContainerID, step int64) error
	// FinishMaster ends the application. A repeat is no error. Error: metadata.ErrInvalidArgument.
	FinishMaster(ctx context.Context, id AttemptID, f Finish) error
	// MasterEvents begins a stream of what happens to the application, after an event up to which all are handled: those are forgotten.
	// Error: ErrBusy when the application has too many streams open.
	MasterEvents(ctx context.Context, id AttemptID, after uint64) (MasterStream, error)
}

// Registration is what a master says of itself when it begins.
type Registration struct {
	// HTTP is host:port of its HTTP server on its own node, which users reach through the resource manager's proxy; empty: it has none.
	HTTP string
	// Certificate is the SHA-256 of that server's certificate; empty: the server is plain, which it may be on loopback only.
	Certificate []byte
	TrackingURL string
	// Host and Port are shown in YARN's reports.
	Host string
	Port int
}

// Registered answers a registration.
type Registered struct {
	// Epoch numbers the attempt among all that ever registered.
	Epoch uint64
	// Maximum is the most that one container can get of each resource.
	Maximum Resource
	// Silence is how long the master may be silent before it is ended.
	Silence time.Duration
	// Queue is the path of the application's queue.
	Queue string
	// Containers live: of earlier attempts, and on a second registration of this one.
	Containers []MasterContainer
	// Succeeded are the numbers of instances that have succeeded and whose containers are forgotten; Ended does not list those.
	Succeeded []int32
	// Change is what users have changed of a command since it was submitted.
	Change JobChange
}

// JobChange is all that users have changed of a command since it was submitted.
type JobChange struct {
	Size    Size
	Members []Member
}

// MasterContainer is a container as its application's master is told of it.
type MasterContainer struct {
	*Container
	// Host and NodeHTTP are its node's.
	Host, NodeHTTP string
	// Devices are its GPUs.
	Devices []GPU
	// Token is the secret that the container presents to its master.
	Token string
	// LogDir is the directory of the filesystem for its logs.
	LogDir string
}

// Request is what a master wants at one time.
type Request struct {
	// Epoch is what the registration answered; 0: the attempt's, whatever it is.
	Epoch uint64
	// Sequence orders the requests of an attempt: one that is not larger than that of the last has no effect. 0: it has no number.
	Sequence uint64
	Asks     []WantedAsk
	// Cancel names asks that are wanted no more.
	Cancel []string
	// Release names containers that are to end. Those that have ended are passed over.
	Release []ContainerID
	// Acknowledged: events up to it are handled, and grants after it count against the asks of this request. 0: says nothing.
	Acknowledged uint64
	// Progress is 0 to 1, as shown to users; negative: says nothing.
	Progress float64
}

// WantedAsk is an ask with what runs in its containers; nil when it is held, or wants nothing any more.
type WantedAsk struct {
	Ask
	Run *Launch
}

// ContainerLaunch is what is to run in a container. Tokens of the launch are plain here. Launches that are the same pointer are stored once.
type ContainerLaunch struct {
	Container ContainerID
	Launch    *Launch
}

// Finish is how an application ends, by its master's word.
type Finish struct {
	// Epoch as in Request.
	Epoch uint64
	// Final is SUCCEEDED, FAILED or KILLED.
	Final       FinalStatus
	Diagnostics string
	// TrackingURL replaces the one before, unless it is empty.
	TrackingURL string
}

// MasterStream is a stream of events, for one goroutine at a time.
type MasterStream interface {
	// Next answers what has happened since the last call, oldest first. When there is nothing it waits for so long, or until ctx ends; then
	// the answer may be empty without an error. A wait of 0 looks once.
	Next(ctx context.Context, wait time.Duration) ([]MasterEvent, error)
	Close()
}

// MasterEvent is something that happened to an application. Exactly one of the others is set.
type MasterEvent struct {
	// Sequence numbers what has to be acknowledged. 0: a hint, which is not repeated.
	Sequence  uint64
	Granted   *MasterContainer
	Completed *MasterContainer
	Preempt   *Preemption
	// Changed is all that users have changed of a command, as of now.
	Changed  *JobChange
	NodeLost NodeID
	// Pending says why an ask is not granted, once for each change of the reason.
	Pending *Pending
	// Managers are the gRPC addresses of all resource managers, and Web those of their HTTP, in the same order: the first event of a
	// stream, and another one whenever they change.
	Managers, Web []string
}

// Preemption tells a master that a container is to leave its node.
type Preemption struct {
	Container ContainerID
	// Deadline is when it is ended, unless it says before that its work is saved (Checkpointed); 0: never.
	Deadline metadata.Time
	Reason   string
	// Withdrawn: it may stay after all.
	Withdrawn bool
}

// Pending is an ask with the reason why it waits.
type Pending struct {
	Ask    string
	Reason Reason
}
