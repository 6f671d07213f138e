package rest

import rm "github.com/gohops/hops/resourcemanager"

// QueueOptions say how queues are changed.
type QueueOptions struct {
	// DryRun changes nothing and says what would be affected.
	DryRun bool
	// Force changes them although applications are affected.
	Force bool
	// Version other than 0 is that of the queues which are to be changed, and of no others.
	Version uint64
}

// QueueChange is what a change of the queues does.
type QueueChange struct {
	// Hash tells configurations apart, rm.Queues.Hash.
	Hash string `json:"hash"`
	// Version of the cluster's queues after the change; of a dry run, before it; 0: they are those of the leader's file.
	Version uint64 `json:"version,omitempty"`
	// Affected is what is beyond a limit afterwards and was not before.
	Affected []Affected `json:"affected,omitempty"`
	// Queues are the configuration afterwards.
	Queues *rm.QueueConfig `json:"-"`
}

// Affected is something that a change of the queues does to what there is.
type Affected struct {
	Queue string `json:"queue"`
	// Application is empty where it is about the whole queue.
	Application string `json:"application,omitempty"`
	Text        string `json:"text"`
}
