package namenode

import "github.com/gohops/hops/metadata"

// AdminState is where a datanode stands between service, decommission and maintenance. The values are those of Hadoop's
// DatanodeInfoProto.AdminState.
type AdminState uint8

// The states. A datanode that is decommissioned, or in maintenance, can be stopped and nothing is lost by it.
const (
	Normal AdminState = iota
	DecommissionInProgress
	Decommissioned
	EnteringMaintenance
	InMaintenance
)

// String is Hadoop's word for reports.
func (s AdminState) String() string {
	names := [...]string{"Normal", "Decommission in progress", "Decommissioned", "Entering maintenance", "In maintenance"}
	if int(s) < len(names) {
		return names[s]
	}
	return names[Normal]
}

// Word is the state for pages and JSON.
func (s AdminState) Word() string {
	words := [...]string{"in service", "decommissioning", "decommissioned", "entering maintenance", "in maintenance"}
	if int(s) < len(words) {
		return words[s]
	}
	return words[Normal]
}

// InService: the datanode is to have its share of replicas.
func (s AdminState) InService() bool { return s == Normal }

// Leaving is what keeps a datanode that is decommissioned, or enters maintenance, from being let go.
type Leaving struct {
	// Blocks have too few replicas elsewhere; of them Only have none elsewhere, and Open are being written.
	Blocks, Only, Open int
	// Looked: all blocks of the datanode have been looked at once; before, the counts are of those looked at.
	Looked bool
}

// OpenBlock is a block that is being written and keeps a datanode from being let go.
type OpenBlock struct {
	Block metadata.BlockID
	Node  NodeID
}
