// Package protocol has the messages between the controller of an experiment, its executors and people, and their limits.
package protocol

import (
	"encoding/json"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/checkpoint"
	"github.com/gohops/hops/training/rendezvous"
)

// The executor protocol, version 1: HTTP/1.1 and JSON between the controller of an experiment and its executors, and
// between the controller and people (through the resource manager's proxy). docs/reference/executor-protocol.md tells
// the rules; every message has a golden vector in testdata/protocol, read by the Go and the Python tests alike.
//
// Fields that a reader does not know are ignored, so that either side may be the newer one.

// ProtocolVersion is the v in /v1/ and in RegisterExecutor.Protocol.
const ProtocolVersion = 1

// Limits of requests; a request beyond them is answered 413 or 400 by name.
const (
	MaxBody           = 1 << 20 // bytes of any request
	MaxReportEvents   = 1000    // events of one report
	MaxEventMetrics   = 64      // metrics of one event
	MaxMetricName     = training.MaxMetricName
	MaxCheckpointFile = checkpoint.MaxFiles
	MaxErrorText      = 64 << 10 // bytes of a traceback; longer ones are cut in the middle
	MaxOutputs        = 256 << 10
	MaxWaitSeconds    = 60 // long poll
)

// RegisterExecutor is the body of POST /v1/executors: an executor process has started, or found the controller again.
type RegisterExecutor struct {
	Protocol int `json:"protocol"`
	// ContainerID is HOPS_CONTAINER_ID; the key that signs must be this container's.
	ContainerID string `json:"container_id"`
	// Instance is chosen at random by each executor process. The same instance re-attaches to what it held, another one
	// in the same container has lost it.
	Instance string `json:"instance"`
	Host     string `json:"host"`
	PID      int    `json:"pid"`
	// GPUs are the devices of CUDA_VISIBLE_DEVICES.
	GPUs []string `json:"gpus,omitempty"`
	// Python is the interpreter's version, SDK the version of hops.
	Python string `json:"python,omitempty"`
	SDK    string `json:"sdk,omitempty"`
	// Holding is the attempt that the executor works on in slot 0 while it re-attaches, Held those of its other slots.
	Holding *Held  `json:"holding,omitempty"`
	Held    []Held `json:"held,omitempty"`
}

// Held names an attempt, of a gang the member.
type Held struct {
	Trial   training.TrialID `json:"trial"`
	Attempt int              `json:"attempt"`
	Slot    int              `json:"slot,omitempty"`
	Rank    int              `json:"rank,omitempty"`
}

// RegisteredExecutor answers RegisterExecutor: 201 for a new executor, 200 for one that re-attached.
type RegisteredExecutor struct {
	// Executor names the executor in URLs: "e0001".
	Executor string `json:"executor"`
	// Experiment is <application>_<run>, also ML_ID.
	Experiment string `json:"experiment"`
	// LeaseMS: an executor that is not heard of for so long is lost and its trial goes elsewhere.
	LeaseMS int64 `json:"lease_ms"`
	// ReportMS is how often a running trial reports, with or without events.
	ReportMS int64 `json:"report_ms"`
	// ControllerAttempt rises when the controller was restarted.
	ControllerAttempt int `json:"controller_attempt"`
	// Directory of the experiment in the cluster's filesystem.
	Directory string `json:"directory"`
	// What the executor runs.
	Entry   string `json:"entry"`
	CodeDir string `json:"code_dir,omitempty"` // in the work directory; "" if there is no artifact
	Mode    string `json:"mode"`               // inproc, fork, spawn
	// Slots is how many trials the executor runs at once; 0 is 1. Each slot asks Next for itself; all share the devices.
	Slots int `json:"slots,omitempty"`
	// Framework of the gangs that it takes part in: what that needs is imported before a trial is there.
	Framework training.Framework         `json:"framework,omitempty"`
	Preload   []string                   `json:"preload,omitempty"`
	Arguments map[string]json.RawMessage `json:"arguments,omitempty"`
	Metric    string                     `json:"metric"`
	Direction training.Direction         `json:"direction"`
	// MetricOptional: the function need not return or report the metric (optimizer none).
	MetricOptional bool `json:"metric_optional,omitempty"`
	// StopGraceMS is what a trial that was told to stop has until its process is killed.
	StopGraceMS int64 `json:"stop_grace_ms"`
}

// The actions of Next.
const (
	ActionTrial = "trial" // run Next.Trial
	ActionWait  = "wait"  // nothing now; ask again at once
	ActionDrain = "drain" // no more work for this executor: exit 0
	ActionStop  = "stop"  // the controller does not know this executor any more: exit now
)

// Next answers GET /v1/executors/{executor}/next?wait=30.
type Next struct {
	Action string `json:"action"`
	// Reason is for the log.
	Reason string      `json:"reason,omitempty"`
	Trial  *Assignment `json:"trial,omitempty"`
}

// Assignment is one attempt at a trial. (Trial, Attempt) is the fencing token of every later call.
type Assignment struct {
	Trial   training.TrialID `json:"trial"`
	Attempt int              `json:"attempt"`
	Params  training.Params  `json:"params"`
	Budget  training.Budget  `json:"budget"`
	// Seed is for the function's own random numbers; the same for every attempt of the trial.
	Seed uint64 `json:"seed"`
	// Resume is the checkpoint to go on from; the first reported step is Resume.Step+1.
	Resume *training.Checkpoint `json:"resume,omitempty"`
	// Checkpoints are those of the trial that are kept, in order of commit, without their files.
	Checkpoints []training.Checkpoint `json:"checkpoints,omitempty"`
	Dirs        Directories           `json:"dirs"`
	// Env is for the trial's process.
	Env map[string]string `json:"env,omitempty"`
	// Gang is this executor's part of an attempt that several run together; nil: it runs alone.
	Gang *Gang `json:"gang,omitempty"`
}

// Gang is the part of one member of an attempt that several executors run together. The attempt is the gang's generation:
// when a member fails or is lost, all of them are STALE_ATTEMPT and get the next attempt.
type Gang struct {
	Framework training.Framework `json:"framework"`
	Rank      int                `json:"rank"`
	World     int                `json:"world"` // members of all roles
	Role      training.Role      `json:"role"`
	Index     int                `json:"index"` // within the role
	// LocalRank of LocalWorld: among the members of the host that see the same devices.
	LocalRank  int `json:"local_rank"`
	LocalWorld int `json:"local_world"`
	// Ports is how many ports the executor reserves before it joins.
	Ports int `json:"ports"`
}

// Join is the body of POST /v1/trials/{trial}/{attempt}/join?wait=30: a member is there and has reserved its ports. It renews
// the lease; sending it again, also with other ports, is harmless until the gang is ready.
type Join struct {
	Rank int `json:"rank"`
	// Host is the address at which the other members reach this one, Interface the network interface that has it, if known.
	Host      string `json:"host"`
	Interface string `json:"interface,omitempty"`
	Ports     []int  `json:"ports"`
}

// Joined answers Join as soon as all members have joined, or with Ready false after the wait: join again.
type Joined struct {
	Ready bool `json:"ready"`
	// Members by rank; Env is for this member's process, Files are for its work directory.
	Members []rendezvous.Member `json:"members,omitempty"`
	Env     map[string]string   `json:"env,omitempty"`
	Files   map[string]string   `json:"files,omitempty"`
	// Op is stop or pause if the trial is to end before it began: send the final. Absent otherwise.
	Op     string `json:"op,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Directories are paths of the cluster's filesystem. All but Trial are this attempt's own, so that a lost attempt that
// still runs cannot disturb its successor.
type Directories struct {
	Trial string `json:"trial"`
	// TensorBoard receives event files; their names carry the attempt.
	TensorBoard string `json:"tensorboard"`
	// Log is the file that receives the trial's standard output and error.
	Log string `json:"log"`
	// Checkpoints receives step-N/ directories.
	Checkpoints string `json:"checkpoints"`
	// Blobs receives the files that checkpoints share: <first two digits>/<sha256>-<trial>-<attempt>-<step>.
	Blobs string `json:"blobs,omitempty"`
}

// Report is the body of POST /v1/trials/{trial}/{attempt}/report. Without events it renews the lease and asks for the op.
type Report struct {
	// Rank is the member of a gang that reports. The events of rank 0 are the trial's; those of others are acknowledged, no more.
	Rank   int    `json:"rank,omitempty"`
	Events Events `json:"events"`
	// LogBytes is how much of the log the executor has written.
	LogBytes int64 `json:"log_bytes,omitempty"`
	// IdleMS is for how long the processes of a member of a gang have used next to no processor time.
	IdleMS int64 `json:"idle_ms,omitempty"`
}

// MetricEvent is one reporter.broadcast. Seq counts the events of the attempt: 1, 2, 3, ….
type MetricEvent struct {
	Seq     int64                      `json:"seq"`
	Step    int64                      `json:"step"`
	Time    training.Millis            `json:"t"`
	Metrics map[string]training.Metric `json:"metrics"`
}

// The ops of Reported and Committed.
const (
	OpContinue   = "continue"
	OpStop       = "stop"       // end the trial: broadcast raises EarlyStopException
	OpPause      = "pause"      // the same; the trial may be resumed from its last checkpoint
	OpCheckpoint = "checkpoint" // save a checkpoint soon: the container will be taken away
)

// Reported answers Report. All events up to Ack are in the journal: the executor forgets them and sends what follows.
type Reported struct {
	Ack int64  `json:"ack"`
	Op  string `json:"op"`
	// Reason says why the op is not continue.
	Reason string `json:"reason,omitempty"`
	// GraceMS goes with stop and pause: kill the trial's process when it still runs after that.
	GraceMS int64 `json:"grace_ms,omitempty"`
}

// Commit is the body of POST /v1/trials/{trial}/{attempt}/checkpoint, sent after step-N/ has its final name.
type Commit struct {
	// Rank is the member of a gang that commits; one commits a step for all.
	Rank int   `json:"rank,omitempty"`
	Step int64 `json:"step"`
	// URI is the directory's path, below Directories.Checkpoints.
	URI    string           `json:"uri"`
	Files  []training.File  `json:"files"`
	Metric *training.Metric `json:"metric,omitempty"`
}

// Committed answers Commit. The checkpoint is in the journal.
type Committed struct {
	// Keep lists the trial's checkpoints that remain.
	Keep []int64 `json:"keep"`
	// Delete lists those that the controller removes now, by retention; the executor does nothing about them.
	Delete []int64 `json:"delete"`
	Op     string  `json:"op"`
	Reason string  `json:"reason,omitempty"`
}

// Final is the body of POST /v1/trials/{trial}/{attempt}/final: the attempt has ended. The rest of its log and event files
// is written after the answer, before the executor ends. Sending it again is harmless.
type Final struct {
	// Rank is the member of a gang that has ended.
	Rank int `json:"rank,omitempty"`
	// Next: the executor asks for work in the same breath, for its slot Slot. The answer to Final may carry it.
	Next bool `json:"next,omitempty"`
	Slot int  `json:"slot,omitempty"`
	// Seq is the number of events of the attempt; all of them must be acknowledged before.
	Seq int64 `json:"seq"`
	// Status is COMPLETED, STOPPED, PAUSED (after these ops), FAILED or INVALID (the function raised InvalidParams).
	Status training.State `json:"status"`
	// Metric is what the function returned as the metric; absent if it returned none.
	Metric *training.Metric `json:"metric,omitempty"`
	// Outputs is the returned dict: JSON, and the names of files that were written to the trial's directory.
	Outputs map[string]json.RawMessage `json:"outputs,omitempty"`
	Error   *training.TrialError       `json:"error,omitempty"`
	// LogBytes is the length of the log.
	LogBytes int64 `json:"log_bytes,omitempty"`
}

// Finished answers Final.
type Finished struct {
	// State is what became of the trial: COMPLETED, STOPPED, PAUSED, PENDING (will be tried again), FAILED, INVALID.
	// Of a gang that goes on without the member: RUNNING.
	State  training.State `json:"state"`
	Reason string         `json:"reason,omitempty"`
	// Next is what GET …/next would answer, if Final asked for it and that is known at once. Where it is absent the executor asks.
	Next *Next `json:"next,omitempty"`
}

// Error codes.
const (
	CodeBadRequest      = "BAD_REQUEST"           // 400 not JSON, a field of the wrong kind, a limit
	CodeUnauthorized    = "UNAUTHORIZED"          // 401 no good signature
	CodeClockSkew       = "CLOCK_SKEW"            // 401 signed too long ago or too far ahead
	CodeForbidden       = "FORBIDDEN"             // 403 the container or user has no right to this
	CodeNotFound        = "NOT_FOUND"             // 404 no such experiment, trial or call
	CodeUnknownExecutor = "UNKNOWN_EXECUTOR"      // 404 register again
	CodeStaleAttempt    = "STALE_ATTEMPT"         // 409 the trial has moved on: kill its process, write nothing more, ask next
	CodeRepeated        = "REPEATED"              // 409 the same signed request again: sign it anew
	CodeUnreported      = "UNREPORTED"            // 409 final before all events are acknowledged: Ack says which are
	CodeTooLarge        = "TOO_LARGE"             // 413
	CodeIncomplete      = "CHECKPOINT_INCOMPLETE" // 422 manifest or files are not there in the sizes stated
	CodeNotReady        = "NOT_READY"             // 503 the controller is starting or cannot write its journal: try again
)

// ErrorBody is the body of every answer that is not 2xx.
type ErrorBody struct {
	Error ErrorDetail `json:"error"`
}

// ErrorDetail says what is wrong. Message is one line for people.
type ErrorDetail struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	// Ack goes with UNREPORTED.
	Ack int64 `json:"ack,omitempty"`
}

func (e *ErrorDetail) Error() string { return e.Message }

// Whereabouts is the file .controller.json in the experiment's directory: where the controller is now. An executor that
// cannot reach it reads this file until it changes.
type Whereabouts struct {
	URL string `json:"url"`
	// Certificate is the one of an https URL, in DER: whoever shows another one is not the controller.
	Certificate []byte          `json:"certificate,omitempty"`
	Attempt     int             `json:"attempt"`
	Since       training.Millis `json:"since"`
	// Application runs the experiment, or ran it last: another one than that of its id if it was resumed.
	Application string `json:"application"`
}

// WhereaboutsName is that file's name.
const WhereaboutsName = ".controller.json"

// The states of an experiment.
const (
	ExperimentRunning  = "RUNNING"
	ExperimentFinished = "FINISHED"
	ExperimentFailed   = "FAILED"
	ExperimentKilled   = "KILLED"
)

// ExperimentStatus answers GET /v1/experiments/{id}. ?curves=0 leaves out the per-epoch values.
type ExperimentStatus struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Project     string `json:"project"`
	User        string `json:"user"`
	Application string `json:"application"`
	State       string `json:"state"`
	// Reason says why it failed, was killed, or what it waits for.
	Reason    string             `json:"reason,omitempty"`
	Directory string             `json:"directory"`
	Optimizer string             `json:"optimizer"`
	Metric    string             `json:"metric"`
	Direction training.Direction `json:"direction"`
	Seed      uint64             `json:"seed"`
	Started   training.Millis    `json:"started"`
	Finished  training.Millis    `json:"finished,omitempty"`
	// ControllerAttempt rises when the controller was restarted. It and Event are not told of an experiment that has ended.
	ControllerAttempt int `json:"controller_attempt,omitempty"`
	// Event is the last event contained, for Last-Event-ID.
	Event     int64            `json:"event,omitempty"`
	Planned   int              `json:"planned"`          // configurations to try
	Trials    []TrialStatus    `json:"trials,omitempty"` // a list of experiments leaves them out
	Best      *BestTrial       `json:"best,omitempty"`
	Executors []ExecutorStatus `json:"executors,omitempty"`
	Counters  Counters         `json:"counters"`
}

// TrialStatus is a row of the table of trials.
type TrialStatus struct {
	Trial    training.TrialID     `json:"trial"`
	State    training.State       `json:"state"`
	Params   training.Params      `json:"params"`
	Label    string               `json:"label,omitempty"` // where the search has its last suggestion from, for people
	Attempt  int                  `json:"attempt"`
	Failures int                  `json:"failures,omitempty"`
	Epochs   int                  `json:"epochs"`
	Metric   *float64             `json:"metric,omitempty"`
	Values   []float64            `json:"values,omitempty"` // one per objective, where there are several
	Curve    []CurvePoint         `json:"curve,omitempty"`
	Budget   training.Budget      `json:"budget"`
	Promoted int                  `json:"promoted,omitempty"` // how often it was resumed at a rung
	Resumed  int                  `json:"resumed,omitempty"`  // how often an attempt went on from a checkpoint
	Executor string               `json:"executor,omitempty"`
	Host     string               `json:"host,omitempty"`
	Reason   string               `json:"reason,omitempty"`
	Error    *training.TrialError `json:"error,omitempty"`
	Steps    []int64              `json:"checkpoints,omitempty"` // steps of the checkpoints kept
	Dir      string               `json:"dir"`
	Log      string               `json:"log,omitempty"`
	Members  []MemberStatus       `json:"members,omitempty"` // of a gang, by rank
	Started  training.Millis      `json:"started,omitempty"`
	Ended    training.Millis      `json:"ended,omitempty"`
}

// MemberStatus is a member of a gang.
type MemberStatus struct {
	Rank     int           `json:"rank"`
	Role     training.Role `json:"role"`
	Executor string        `json:"executor"`
	Host     string        `json:"host,omitempty"`
	GPUs     []string      `json:"gpus,omitempty"`
	Joined   bool          `json:"joined,omitempty"`
	// Done is how it ended; absent while it works.
	Done     training.State `json:"done,omitempty"`
	Events   int64          `json:"events"` // reported
	Step     *int64         `json:"step,omitempty"`
	Log      string         `json:"log"`
	LogBytes int64          `json:"log_bytes,omitempty"`
}

// CurvePoint is the searched metric at a step, as [step, value].
type CurvePoint struct {
	Step  int64
	Value float64
}

// MarshalJSON writes the pair.
func (p CurvePoint) MarshalJSON() ([]byte, error) { return json.Marshal([2]any{p.Step, p.Value}) }

// UnmarshalJSON reads the pair.
func (p *CurvePoint) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[2]any{&p.Step, &p.Value})
}

// BestTrial is the best trial so far.
type BestTrial struct {
	Trial  training.TrialID `json:"trial"`
	Metric float64          `json:"metric"`
	Params training.Params  `json:"params"`
	Epochs int              `json:"epochs"`
	Dir    string           `json:"dir"`
	// Checkpoint is the path of its newest checkpoint, if it has one.
	Checkpoint string `json:"checkpoint,omitempty"`
}

// ExecutorStatus is a row of the table of executors.
type ExecutorStatus struct {
	Executor  string   `json:"executor"`
	Container string   `json:"container"`
	Node      string   `json:"node,omitempty"`
	Host      string   `json:"host"`
	GPUs      []string `json:"gpus,omitempty"`
	// State is IDLE, BUSY, DRAINING (told to end), GONE (ended as told) or LOST.
	State  string `json:"state"`
	Trial  string `json:"trial,omitempty"` // "0007/2"; of several slots those that have one, with blanks between them
	Reason string `json:"reason,omitempty"`
	Trials int    `json:"trials"` // attempts ended here
}

// Counters is what the search cost.
type Counters struct {
	Epochs        int `json:"epochs"`         // reported, wasted ones included
	EpochsWasted  int `json:"epochs_wasted"`  // reported, lost with an attempt and done again or given up
	EpochsResumed int `json:"epochs_resumed"` // not done again, thanks to a checkpoint
	Attempts      int `json:"attempts"`
	Lost          int `json:"lost"`       // attempts that ended with their executor
	Failed        int `json:"failed"`     // attempts that failed
	Promotions    int `json:"promotions"` // resumptions at a rung
	EarlyStopped  int `json:"early_stopped"`
	Checkpoints   int `json:"checkpoints"` // committed
	// Executor time in milliseconds: with a trial, and waiting for one.
	BusyMS int64 `json:"busy_ms"`
	IdleMS int64 `json:"idle_ms"`
}

// Server-sent events of GET /v1/experiments/{id}/events: the name of each and the type of its data. The id of an event is
// a journal number; a client that comes back with Last-Event-ID misses nothing and sees nothing twice. A client without
// it, or with one that is no longer held, first gets EventReset.
const (
	EventReset      = "reset"      // ExperimentStatus: forget what you knew
	EventReport     = "report"     // Reports
	EventTrial      = "trial"      // TrialStatus without its curve: the trial changed its state
	EventCheckpoint = "checkpoint" // CheckpointEvent
	EventExecutor   = "executor"   // ExecutorStatus
	EventExperiment = "experiment" // ExperimentSummary: state, best or counters changed
)

// Reports are points appended to a trial's curve. A step at or below one that is known replaces it and all after it.
type Reports struct {
	Trial   training.TrialID `json:"trial"`
	Attempt int              `json:"attempt"`
	Points  []CurvePoint     `json:"points"`
}

// CheckpointEvent is a committed checkpoint.
type CheckpointEvent struct {
	Trial   training.TrialID `json:"trial"`
	Attempt int              `json:"attempt"`
	Step    int64            `json:"step"`
	URI     string           `json:"uri"`
}

// ExperimentSummary is the experiment without its tables: what GET /v1/experiments/{id}/summary answers, for those who ask
// again and again.
type ExperimentSummary struct {
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	State    string          `json:"state"`
	Reason   string          `json:"reason,omitempty"`
	Metric   string          `json:"metric"`
	Planned  int             `json:"planned"` // configurations to try
	Ended    int             `json:"ended"`   // trials that have ended or are paused
	Started  training.Millis `json:"started"`
	Finished training.Millis `json:"finished,omitempty"`
	Best     *BestTrial      `json:"best,omitempty"`
	Counters Counters        `json:"counters"`
}

// TrialEvent tells who steers a search what became of a trial; the words are those of brain-protocol.md.
type TrialEvent struct {
	Kind   string           `json:"kind"` // reported, finished, stopped, failed
	Trial  int              `json:"trial"`
	Params training.Params  `json:"params,omitempty"`
	Epochs int              `json:"epochs"`
	Step   *int64           `json:"step,omitempty"` // of reported
	Value  *training.Metric `json:"value,omitempty"`
	Values []float64        `json:"values,omitempty"` // one per objective
	Curve  *[]CurvePoint    `json:"curve,omitempty"`  // not of reported
	// Started and Ended are the trial's.
	Started training.Millis `json:"started,omitempty"`
	Ended   training.Millis `json:"ended,omitempty"`
}

// Ask is the body of POST /v1/experiments/{id}/ask?wait=30, of a client that steers a search whose optimizer is external and has no
// entry. It returns when there is something to suggest or to know.
type Ask struct {
	// Seen is that of the last answer: what it had is not told again. 0: everything from the beginning.
	Seen int `json:"seen"`
}

// Asked answers it.
type Asked struct {
	State string `json:"state"` // of the experiment; after RUNNING nothing more is asked
	// N is how many suggestions could be run now, Next the number of the next new trial.
	N    int `json:"n"`
	Next int `json:"next,omitempty"`
	// News are entries of brain-protocol.md, {"suggested": …} or {"event": …}, in the order in which they happened; Checks are trials that a
	// rule of the client's may stop.
	News   []json.RawMessage `json:"news,omitempty"`
	Checks []Check           `json:"checks,omitempty"`
	Seen   int               `json:"seen"`
}

// Check is a trial that has reported.
type Check struct {
	Trial   int             `json:"trial"`
	Attempt int             `json:"attempt"`
	Params  training.Params `json:"params,omitempty"`
	Curve   []CurvePoint    `json:"curve"`
}

// Tell is the body of POST /v1/experiments/{id}/tell: suggestions, in the order in which they are to run. Done: there are no more.
type Tell struct {
	Suggestions []TrialSuggestion `json:"suggestions"`
	Done        bool              `json:"done,omitempty"`
}

// TrialSuggestion is a trial to run: with the number Next, Next+1, … a new one, with an earlier one a trial that is paused.
type TrialSuggestion struct {
	Trial  int             `json:"trial"`
	Params training.Params `json:"params,omitempty"` // of a paused one absent: it keeps its own
	// Budget in epochs, 0: until the function returns. Last (absent: true): the trial is complete then, and does not pause.
	Budget int    `json:"budget"`
	Last   *bool  `json:"last,omitempty"`
	Label  string `json:"label,omitempty"` // for people
}

// Told answers it.
type Told struct {
	Next int `json:"next"` // the number of the next new trial
}

// ShouldStop is the body of POST /v1/experiments/{id}/should_stop: the client's rule ends a trial. Attempt 0: whichever runs.
type ShouldStop struct {
	Trial   int    `json:"trial"`
	Attempt int    `json:"attempt,omitempty"`
	Reason  string `json:"reason"`
}

// StopExperiment is the body of POST /v1/experiments/{id}/stop.
type StopExperiment struct {
	Reason string `json:"reason,omitempty"`
}

// StoppedExperiment answers it, 202.
type StoppedExperiment struct {
	State string `json:"state"`
}
