package namenode

import "strings"

// doorWriter marks lease holders that are the HTTP door of a datanode.
const doorWriter = "hops-door:"

// DoorWriter is the client name under which a datanode writes for users of its HTTP door (WebHDFS CREATE and APPEND).
// When the datanode dies, the leases of these writers are recovered at once instead of after the soft limit: nobody
// else can go on writing.
func DoorWriter(node NodeID, unique string) string { return doorWriter + string(node) + ":" + unique }

// WriterNode is the datanode of a DoorWriter, empty for any other client name.
func WriterNode(clientName string) NodeID {
	rest, ok := strings.CutPrefix(clientName, doorWriter)
	if !ok {
		return ""
	}
	node, _, ok := strings.Cut(rest, ":")
	if !ok {
		return ""
	}
	return NodeID(node)
}
