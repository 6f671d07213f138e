package resourcemanager

import "fmt"

// ReasonCode classifies why something waits or is refused. Codes are stable: programs may test them.
type ReasonCode string

// The codes.
const (
	// ReasonNoNodes: no node manager is there and well.
	ReasonNoNodes ReasonCode = "NO_NODES"
	// ReasonTooLarge: no node of the cluster, were it empty, could hold one container of the ask.
	ReasonTooLarge ReasonCode = "TOO_LARGE"
	// ReasonResources: nodes that could hold it have too little left.
	ReasonResources ReasonCode = "RESOURCES"
	// ReasonIsland: enough GPUs are free on a node, but not in one NVLink island.
	ReasonIsland ReasonCode = "ISLAND"
	// ReasonModel: no node has that model of GPU.
	ReasonModel ReasonCode = "GPU_MODEL"
	// ReasonProfile: no node has a MIG instance of that profile.
	ReasonProfile ReasonCode = "GPU_PROFILE"
	// ReasonLabel: no node carries the label.
	ReasonLabel ReasonCode = "LABEL"
	// ReasonAttributes: no node has the attributes.
	ReasonAttributes ReasonCode = "ATTRIBUTES"
	// ReasonCells: there is room, but only on nodes that are guaranteed to another queue as cells, to which it could not be given back.
	ReasonCells ReasonCode = "CELLS"
	// ReasonExclusive: no node is empty for an ask that wants one for itself, or all that could hold an ask are somebody's alone.
	ReasonExclusive ReasonCode = "EXCLUSIVE"
	// ReasonConstraints: there is room, but not with as many containers of its application near it as it wants.
	ReasonConstraints ReasonCode = "CONSTRAINTS"
	// ReasonExcluded: only nodes that the application excluded are left.
	ReasonExcluded ReasonCode = "EXCLUDED"
	// ReasonLocality: the ask insists on nodes that cannot take it.
	ReasonLocality ReasonCode = "LOCALITY"
	// ReasonGang: some of the gang would fit, not all of it.
	ReasonGang ReasonCode = "GANG"
	// ReasonQueueMaximum: the queue, or one above it, would exceed its maximum.
	ReasonQueueMaximum ReasonCode = "QUEUE_MAXIMUM"
	// ReasonQueueStopped: the queue takes no work.
	ReasonQueueStopped ReasonCode = "QUEUE_STOPPED"
	// ReasonQueueMissing: the queue is configured no more.
	ReasonQueueMissing ReasonCode = "QUEUE_MISSING"
	// ReasonMasterShare: masters already use the share of the queue that they may.
	ReasonMasterShare ReasonCode = "MASTER_SHARE"
	// ReasonUserLimit: the user has as much of the queue as one user may.
	ReasonUserLimit ReasonCode = "USER_LIMIT"
	// ReasonApplicationLimit: as many applications run in the queue, or of its user there, as may.
	ReasonApplicationLimit ReasonCode = "APPLICATION_LIMIT"
	// ReasonTopology: there is room, but not as near together as the ask insists on.
	ReasonTopology ReasonCode = "TOPOLOGY"
	// ReasonReserved: there is room, but it is kept for an ask that waits longer and needs more.
	ReasonReserved ReasonCode = "RESERVED"
	// ReasonContainers: every node that could hold it runs as many containers as a node may.
	ReasonContainers ReasonCode = "CONTAINERS"
	// ReasonGrantTooLarge: the gang has more members than can be granted at once.
	ReasonGrantTooLarge ReasonCode = "GRANT_TOO_LARGE"
	// ReasonNotRecorded: it was granted, but the grant could not be replicated; it is tried again.
	ReasonNotRecorded ReasonCode = "NOT_RECORDED"
	// ReasonStarting: it has what it needs, and that is being started.
	ReasonStarting ReasonCode = "STARTING"
	// ReasonCredential: the filesystem has not given a delegation token for its user yet.
	ReasonCredential ReasonCode = "CREDENTIAL"
	// ReasonDependency: it waits for another application.
	ReasonDependency ReasonCode = "DEPENDENCY"
	// ReasonUnacknowledged: its user's masters do not acknowledge what they are told.
	ReasonUnacknowledged ReasonCode = "UNACKNOWLEDGED"
	// ReasonConflict: between plan and commit the state changed; the next pass plans again.
	ReasonConflict ReasonCode = "CONFLICT"
)

// Reason is one "no", for people in Text and for programs in the rest.
type Reason struct {
	Code ReasonCode `json:"code"`
	Text string     `json:"text"`
	// Resource that is short, by YARN's name; empty when none is.
	Resource string `json:"resource,omitempty"`
	// Queue whose limit says no; empty when none does.
	Queue string `json:"queue,omitempty"`
	// Need and Have are amounts of Resource (memory in bytes): what it takes and what there is.
	Need int64 `json:"need,omitempty"`
	Have int64 `json:"have,omitempty"`
}

// IsZero reports whether there is no reason.
func (r Reason) IsZero() bool { return r.Code == "" }

func (r Reason) String() string { return fmt.Sprintf("%s: %s", r.Code, r.Text) }
