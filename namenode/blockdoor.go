package namenode

import (
	"strconv"
	"strings"
)

// doorPrefix begins the made-up ids of datanodes that are the data-transfer doors of namenodes.
const doorPrefix = "namenode-"

// DoorID is the id of the datanode that clients take a namenode's data-transfer door for; cluster tells it from those of other clusters.
func DoorID(namenode, cluster string) NodeID { return NodeID(doorPrefix + namenode + "-" + cluster) }

// AgainID is the id of a door that is told of for the nth time, as if it were another datanode.
func AgainID(door NodeID, n int) NodeID { return door + NodeID("-"+strconv.Itoa(n)) }

// IsDoor reports whether a datanode is the data-transfer door of a namenode.
func IsDoor(id NodeID) bool { return strings.HasPrefix(string(id), doorPrefix) }
