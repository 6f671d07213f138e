package resourcemanager

import (
	"fmt"

	"github.com/gohops/hops/metadata"
)

// ContainerState is where a container is in its life.
type ContainerState string

// The states of a container. A container is live, and holds its resources, until it is complete.
const (
	// ContainerGranted: its node manager has not confirmed it.
	ContainerGranted    ContainerState = "GRANTED"
	ContainerLocalizing ContainerState = "LOCALIZING"
	ContainerRunning    ContainerState = "RUNNING"
	ContainerStopping   ContainerState = "STOPPING"
	ContainerComplete   ContainerState = "COMPLETE"
)

// containerOrder is the order in which a container passes its states; none is passed twice.
var containerOrder = map[ContainerState]int{ContainerGranted: 0, ContainerLocalizing: 1, ContainerRunning: 2, ContainerStopping: 3, ContainerComplete: 4}

// After reports whether s comes later in a container's life than o.
func (s ContainerState) After(o ContainerState) bool { return containerOrder[s] > containerOrder[o] }

// Container is a grant of resources on a node with what became of it.
type Container struct {
	ID       ContainerID
	Node     NodeID
	User     string
	Resource Resource
	// GPUs are the UUIDs of the devices granted.
	GPUs     []string
	Ask      string
	Priority int
	// Launch numbers what runs in it; 0 for a master, and while it is held.
	Launch uint64
	// Instance is its number among those of its ask, see Ask.Instances; -1: it has none.
	Instance int
	Master   bool
	// Exclusive: its node is its own.
	Exclusive bool
	// Tags are those of its ask.
	Tags  Tags
	State ContainerState
	// Salt is what its token is made of, beside the cluster's secret.
	Salt     []byte
	Granted  metadata.Time
	Started  metadata.Time
	Finished metadata.Time
	// StopStatus other than 0: the node manager is told to end it, for StopReason.
	StopStatus  ExitStatus
	StopReason  string
	Exit        ExitStatus
	Diagnostics string
	// Ended orders containers by their end; 0 while live.
	Ended uint64
	// Gang is the number of the first container of those of its ask that were granted at once with it; 0: it came alone.
	Gang int64
	// Checkpointed is when it was said last that its work is saved, up to Step; 0: never.
	Checkpointed metadata.Time
	Step         int64
	// Notice tells it to go; nil: it may stay.
	Notice *Notice
	// Asked is what it was asked for as, without counts, instances and launch, while it is live; nil: not known. It is not changed.
	Asked *Ask
}

// Notice tells a container that it is to go so that others find room.
type Notice struct {
	Since metadata.Time
	// Deadline is when it is ended, unless it says before that its work is saved.
	Deadline metadata.Time
	// For and Ask find room then, in Queue.
	For   ApplicationID
	Ask   string
	Queue string
	// Resized: its job was, as this says, and it is one too many; then it goes for nobody else, and the three before are empty.
	Resized string
	// Moves: there is room for it elsewhere, which is kept until it is asked for again.
	Moves bool
}

// Resized begins what Notice.Resized says, and the diagnostics of who went for it.
const Resized = "its job was resized"

// String says it to whom it concerns.
func (n *Notice) String() string {
	if n.Resized != "" {
		return n.Resized
	}
	if n.Moves {
		return fmt.Sprintf("defragmentation: moved for %v of queue %s, which finds no room in one piece otherwise; its own room elsewhere is kept", n.For, n.Queue)
	}
	return fmt.Sprintf("preempted for %v of queue %s, which finds no room otherwise", n.For, n.Queue)
}

// Exit is how a container ends that goes for the notice.
func (n *Notice) Exit() ExitStatus {
	if n.Resized != "" {
		return ExitAborted
	}
	return ExitPreempted
}

// Saved is until when a live container's work is known to be saved: before its start there is none.
func (c *Container) Saved() metadata.Time {
	if c.Started == 0 {
		return max(c.Granted, c.Checkpointed)
	}
	return max(c.Started, c.Checkpointed)
}

// Live reports whether the container holds its resources.
func (c *Container) Live() bool { return c.State != ContainerComplete }

// Held reports whether the container waits for its application to say what runs in it. Its node has not been told of it.
func (c *Container) Held() bool { return c.Launch == 0 && !c.Master && c.Live() }

// NodeState is what the replicated state knows of a node, in YARN's words. Whether it is silent right now is the
// leader's own knowledge.
type NodeState string

// The states of a node.
const (
	NodeRunning NodeState = "RUNNING"
	// NodeLost: silent for longer than its lease. No fenced process of it is alive; others may be, until it is back and ends
	// them.
	NodeLost NodeState = "LOST"
	// NodeUnhealthy: it says itself that it should get no work.
	NodeUnhealthy NodeState = "UNHEALTHY"
)

// MaxContainersPerNode bounds the live containers of one node: each is a process tree with files, and a line of every
// report.
const MaxContainersPerNode = 1_000

// Node is a machine that runs containers.
type Node struct {
	ID NodeID
	// Incarnation changes when the node manager has lost its state: its containers are gone.
	Incarnation string
	Host        string
	// Machine is the name in the certificate that the node manager has shown; empty: it has shown none. Nobody else's word counts for the
	// node until it is lost.
	Machine string
	HTTP    string
	// IPC is host:port of its ContainerManagementProtocol, by which YARN\'s clients know the node; empty: it does not speak that.
	IPC    string
	Rack   string
	Labels []string
	// Attributes are what else is true of it, which asks can require.
	Attributes Attributes
	// OwnLabels and OwnAttributes are the node manager's. Labels are SetLabels where an operator has set some (Labelled), Attributes are the
	// own ones and over these what an operator has set; see Mark.
	OwnLabels, SetLabels         []string
	Labelled                     bool
	OwnAttributes, SetAttributes Attributes
	Version                      string
	// Level is the newest of the cluster's formats that its program knows; 0: it is not known, while the cluster has not been raised to
	// release.NodePrograms.
	Level        int
	Datanode     string
	State        NodeState
	HealthReport string
	// Capacity is what it has for containers: what it has Reported, with memory and vcores as an operator has Resized them; zero:
	// nobody has.
	Capacity, Reported, Resized Resource
	GPUs                        []GPU
	Registered                  metadata.Time
	// Wish is what an operator wants of the node; nil: it serves. Retired: it holds nothing any more, and has been let go.
	Wish    *Wish
	Retired bool
	// Used is the sum over its live containers, Live their number. Exclusive: the one that lives there has it for itself.
	Used      Resource
	Live      int
	Exclusive bool
}

// Grant is one line of the ledger of GPUs: who held which devices from when to when.
type Grant struct {
	Container ContainerID
	Node      NodeID
	GPUs      []string
	From      metadata.Time
	// To is 0 while the container is live.
	To metadata.Time
}
