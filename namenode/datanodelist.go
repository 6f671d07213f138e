package namenode

// DatanodeList is what a namenode answers to GET /api/v1/datanodes, which `hops datanode list` asks. Like the pages of a server it names no
// user, path or file.
type DatanodeList struct {
	// Leader: this namenode leads, and what it says of datanodes is what counts.
	Leader    bool             `json:"leader"`
	Datanodes []DatanodeStatus `json:"datanodes"`
}

// DatanodeStatus is a datanode as beats and reports tell it. Sizes are in bytes, times in seconds before now.
type DatanodeStatus struct {
	UUID     string `json:"uuid"`
	Transfer string `json:"transfer"`
	HTTP     string `json:"http"`
	// State is live; stale: silent for so long that it is avoided; or dead: its blocks are replicated again.
	State string `json:"state"`
	// Admin is what an operator has made of it: in service, decommissioning, decommissioned, entering maintenance or in maintenance.
	Admin string `json:"admin"`
	// Left is how many blocks have too few replicas elsewhere for it to be let go, LeftOnly how many of them none, and LeftOpen how
	// many are being written. LeftLooked: all of its blocks have been looked at.
	Left       int     `json:"left,omitempty"`
	LeftOnly   int     `json:"left_only,omitempty"`
	LeftOpen   int     `json:"left_open,omitempty"`
	LeftLooked bool    `json:"left_looked,omitempty"`
	Silent     float64 `json:"silent_s"`
	// Reported is how long ago the last full block report ended; -1: there was none yet.
	Reported  float64        `json:"reported_s"`
	Blocks    int            `json:"blocks"`
	Transfers int            `json:"transfers"`
	Volumes   []VolumeStatus `json:"volumes"`
}

// VolumeStatus is a volume of a datanode.
type VolumeStatus struct {
	ID        string `json:"id"`
	Type      string `json:"type"`
	Capacity  int64  `json:"capacity"`
	Used      int64  `json:"used"`
	Remaining int64  `json:"remaining"`
	Failed    bool   `json:"failed"`
	// Slow: a call of its disk has not come back for seconds.
	Slow bool `json:"slow,omitempty"`
}
