package client

import (
	rm "github.com/gohops/hops/resourcemanager"
)

// JobStatus describes a job.
type JobStatus struct {
	ID          string         `json:"id"`
	Name        string         `json:"name"`
	User        string         `json:"user"`
	Queue       string         `json:"queue"`
	Kind        string         `json:"kind"`
	Priority    int            `json:"priority"`
	State       rm.State       `json:"state"`
	FinalStatus rm.FinalStatus `json:"final_status"`
	Diagnostics string         `json:"diagnostics"`
	Progress    float64        `json:"progress"`
	TrackingURL string         `json:"tracking_url"`
	// Times in milliseconds since 1970; 0: not yet.
	Submitted int64 `json:"submitted"`
	Started   int64 `json:"launched"`
	Finished  int64 `json:"finished"`
	// LogDir is where the containers' logs lie in the filesystem.
	LogDir string `json:"log_dir"`
	// Phase is PENDING while no container of the user's runs, then RUNNING, and at the end SUCCEEDED, FAILED or KILLED. It is
	// what people are told; State and FinalStatus are YARN's words.
	Phase string `json:"phase"`
	// PendingReason says what the job, or a part of it, waits for. A job whose phase is PENDING always has one.
	PendingReason *rm.Reason `json:"pending_reason,omitempty"`
	// Size is how many instances a command has; nil: it is none, or has ended. List leaves it out.
	Size *JobSize `json:"size,omitempty"`
	// Leaving is how many of its containers have a notice that they are to go; see JobContainer.Preempted.
	Leaving int `json:"leaving,omitempty"`
	// Members counts those of an array; nil: it is none.
	Members *JobMembers `json:"members,omitempty"`
	// After is what it still waits for of other jobs, Deadline when it is ended whatever it does (milliseconds; 0: there is none).
	After    []JobAfter `json:"after,omitempty"`
	Deadline int64      `json:"deadline,omitempty"`
	// Command is what its containers run, if the server says; List leaves it out.
	Command []string `json:"command,omitempty"`
	// Used is what its live containers have, the master's among them.
	Used Amount `json:"used"`
	// Containers that the job has had, as far as they are remembered. List leaves them out.
	Containers []JobContainer `json:"containers,omitempty"`
	// Warnings are what its owner should look at. List leaves them out.
	Warnings []string `json:"warnings,omitempty"`
}

// JobMembers counts the members of an array by what they do. Those that failed are run again as far as the job says.
type JobMembers struct {
	Total     int `json:"total"`
	Waiting   int `json:"waiting"`
	Running   int `json:"running"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	// Killed are those that were ended alone, for good.
	Killed int `json:"killed,omitempty"`
}

// PhasePending is the phase of a job that waits.
const PhasePending = "PENDING"

// EndedError is the answer to the wish to end what has ended already.
type EndedError struct {
	ID    string // of a job or an experiment
	Phase string
}

func (e *EndedError) Error() string { return e.ID + " has ended already: " + e.Phase }

// JobContainer is one container of a job.
type JobContainer struct {
	ID string `json:"id"`
	// Ask is the wish that it was granted for; Number the instance of the command, if the server says.
	Ask    string `json:"ask,omitempty"`
	Number *int   `json:"instance,omitempty"`
	Master bool   `json:"master,omitempty"`
	// Node is host:port of its node manager.
	Node      string            `json:"node"`
	State     rm.ContainerState `json:"state"`
	Resources Amount            `json:"resources"`
	// ExitStatus is there when the container has ended.
	ExitStatus  *int     `json:"exit_status,omitempty"`
	Diagnostics string   `json:"diagnostics,omitempty"`
	GPUs        []string `json:"gpus,omitempty"`
	// GPUUse is what it has done with them, while its node says so.
	GPUUse []GPUUse `json:"gpu_use,omitempty"`
	// Times in milliseconds since 1970; 0: not yet.
	Granted  int64 `json:"granted"`
	Started  int64 `json:"started"`
	Finished int64 `json:"finished"`
	// LogDir is where its logs lie in the filesystem.
	LogDir string `json:"log_dir"`
	// Preempted says that it is to go; nil: it may stay.
	Preempted *JobPreempted `json:"preempted,omitempty"`
	// Checkpointed is when it was said last that its work is saved, up to Step; 0: never.
	Checkpointed int64 `json:"checkpointed,omitempty"`
	Step         int64 `json:"step,omitempty"`
}

// JobPreempted says why a container is to go. Times are in milliseconds since 1970.
type JobPreempted struct {
	// Job and Queue are for whom it makes room; empty: for nobody, as where its own job was resized or its node leaves.
	Job    string `json:"job,omitempty"`
	Queue  string `json:"queue,omitempty"`
	Reason string `json:"reason"`
	Since  int64  `json:"since"`
	// Deadline is when its program is ended, unless it has said before that its work is saved.
	Deadline int64 `json:"deadline"`
}

// JobSize is how many instances a command has, of which Min at least start at once; 0: each on its own.
type JobSize struct {
	Min int `json:"min,omitempty"`
	Max int `json:"max"`
}

// JobMember is one of an array, or an instance of a command.
type JobMember struct {
	Number int `json:"number"`
	// State is one of the following. One that has failed may be run again, by the job's retry.
	State string `json:"state"`
	// Containers are those that it has had, as far as they are remembered, oldest first; what changes members leaves them out.
	Containers []JobContainer `json:"containers,omitempty"`
}

// The states of members.
const (
	MemberWaiting   = "WAITING"
	MemberRunning   = "RUNNING"
	MemberSucceeded = "SUCCEEDED"
	MemberFailed    = "FAILED"
	MemberKilled    = "KILLED"
)

// Ended reports whether the job has ended.
func (s JobStatus) Ended() bool { return s.State.Final() }

// Succeeded reports whether it has ended well.
func (s JobStatus) Succeeded() bool {
	return s.State == rm.StateFinished && s.FinalStatus == rm.FinalSucceeded
}

// Amount is a bundle of resources; Memory is in bytes.
type Amount struct {
	Memory int64 `json:"memory"`
	VCores int   `json:"vcores"`
	GPUs   int   `json:"gpus"`
}

// Grant is a container's GPUs for a time.
type Grant struct {
	Container   string   `json:"container"`
	Application string   `json:"application"`
	Node        string   `json:"node"`
	GPUs        []string `json:"gpus"`
	// From and To are milliseconds since 1970; To 0: still granted.
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Node is one node manager.
type Node struct {
	ID      string `json:"id"`
	Host    string `json:"host"`
	HTTP    string `json:"http"`
	Version string `json:"version"`
	Rack    string `json:"rack"`
	// Labels and Attributes that jobs may ask for.
	Labels     []string          `json:"labels"`
	Attributes map[string]string `json:"attributes"`
	// Level is the newest of the cluster's formats that its program knows; 0: not known.
	Level        int          `json:"level"`
	Machine      string       `json:"machine"`
	State        rm.NodeState `json:"state"`
	Leaving      *Leaving     `json:"leaving,omitempty"`
	HealthReport string       `json:"health_report"`
	Capacity     Amount       `json:"capacity"`
	Used         Amount       `json:"used"`
	Containers   []string     `json:"containers"`
	// Open: it takes work.
	Open bool  `json:"open"`
	GPUs []GPU `json:"gpus"`
	// Divided are its GPUs in MIG mode, which nobody gets: their instances are among its GPUs.
	Divided []DividedGPU `json:"divided_gpus,omitempty"`
}

// DividedGPU is a GPU in MIG mode.
type DividedGPU struct {
	UUID  string `json:"uuid"`
	Model string `json:"model"`
	// Instances are how many MIG instances it has; with none, nobody gets anything of it.
	Instances    int          `json:"instances"`
	Simulated    bool         `json:"simulated"`
	Health       rm.GPUHealth `json:"health"`
	HealthReason string       `json:"health_reason,omitempty"`
	Load         *GPULoad     `json:"load,omitempty"`
}

// Leaving is what an operator wants of a node that is to leave. Times are in milliseconds since 1970; 0: there is none.
type Leaving struct {
	By    string `json:"by"`
	Since int64  `json:"since"`
	// Deadline is when what still runs there is ended, Until when a maintenance is over.
	Deadline int64 `json:"deadline"`
	Until    int64 `json:"until"`
	// Cordon: it gets nothing new, and what runs there goes on. Reason is the operator's.
	Cordon bool   `json:"cordon"`
	Reason string `json:"reason"`
}

// GPU is one device of a node.
type GPU struct {
	UUID         string       `json:"uuid"`
	Model        string       `json:"model"`
	Memory       int64        `json:"memory"`
	Island       string       `json:"island"`
	Simulated    bool         `json:"simulated"`
	Health       rm.GPUHealth `json:"health"`
	HealthReason string       `json:"health_reason"`
	// Profile is that of a MIG instance, Parent the UUID of its GPU; empty: it is a whole GPU.
	Profile string `json:"profile,omitempty"`
	Parent  string `json:"parent,omitempty"`
	// Container has it now; empty: it is free.
	Container string `json:"container"`
	// Load is what it does now, Use what the container that holds it has done with it; nil: its node does not say.
	Load *GPULoad `json:"load,omitempty"`
	Use  *GPUUse  `json:"use,omitempty"`
}

// GPULoad is what a device does at one moment.
type GPULoad struct {
	// Utilization is the percentage of time in which a kernel ran; nil: it does not tell.
	Utilization *float64 `json:"utilization,omitempty"`
	MemoryUsed  int64    `json:"memory_used"` // bytes
	// Power is in watts, Temperature in degrees Celsius; 0: it does not tell.
	Power       float64 `json:"power,omitempty"`
	Temperature float64 `json:"temperature,omitempty"`
}

// GPUUse is what a container has done with one of its devices since it began. Times are in milliseconds.
type GPUUse struct {
	UUID string `json:"uuid"`
	// Held is how long it had the device while its node looked, Busy how much of that a kernel ran.
	Held int64 `json:"held"`
	Busy int64 `json:"busy"`
	// MemoryPeak is the most memory of it that was seen in use, in bytes; Energy is the device's in that time, in joules.
	MemoryPeak int64   `json:"memory_peak"`
	Energy     float64 `json:"energy"`
	// Idle is for how long it has done nothing now; Unused: longer than its node finds usual.
	Idle   int64 `json:"idle"`
	Unused bool  `json:"unused,omitempty"`
}
