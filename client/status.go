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
	Started   int64 `json:"started"`
	Finished  int64 `json:"finished"`
	// PendingReason says what the job waits for.
	PendingReason *rm.Reason `json:"pending_reason,omitempty"`
}

// Ended reports whether the job has ended.
func (s JobStatus) Ended() bool { return s.State.Final() }

// Succeeded reports whether it has ended well.
func (s JobStatus) Succeeded() bool {
	return s.State == rm.StateFinished && s.FinalStatus == rm.FinalSucceeded
}

// Grant is one GPU in one container for a time.
type Grant struct {
	GPU       string `json:"gpu"`
	Node      string `json:"node"`
	Container string `json:"container"`
	// From and To are milliseconds since 1970; To 0: still granted.
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Node is one node manager.
type Node struct {
	ID       string      `json:"id"`
	Host     string      `json:"host"`
	HTTP     string      `json:"http_address"`
	State    string      `json:"state"`
	Healthy  bool        `json:"healthy"`
	Report   string      `json:"health_report"`
	Capacity rm.Resource `json:"capacity"`
	Used     rm.Resource `json:"used"`
	GPUs     []rm.GPU    `json:"gpus"`
}
