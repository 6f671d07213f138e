package security

import "fmt"

// Right is what a caller needs to be let in at a route: a method of Hadoop IPC or gRPC, a path of HTTP, an operation on
// blocks. The zero value is none: what has no right cannot be registered.
type Right uint8

// The rights.
const (
	_ Right = iota
	// Open: anybody, and nobody asks who.
	Open
	// Anyone: every caller with a name, dr.who included where a request may come without one. What is told belongs to
	// nobody.
	Anyone
	// Named: every caller but dr.who.
	Named
	// ByPath: as the permissions of the paths, blocks and leases allow that the request names; the handler checks.
	ByPath
	// Owner: who owns the application or container, administers its queue, or is a superuser.
	Owner
	// Superuser: others are refused before the handler runs.
	Superuser
	// Self: processes of the servers' own user, whatever name they send.
	Self
	// ServersOnly: a machine with a certificate of the cluster.
	ServersOnly
	// ContainersOnly: who has proved the token of a container, for the container's own application.
	ContainersOnly
	// Joining: a machine that has no certificate yet and shows a token to join with.
	Joining
	// BlockToken: who shows a token of the namenode's for the block and what is done to it.
	BlockToken
	// ThisMachine: a process of the same machine, on a socket that never leaves it.
	ThisMachine
	// JobToken: who signs with the token of a MapReduce job.
	JobToken
	rights
)

var rightNames = [...]string{
	Open: "open", Anyone: "anyone", Named: "named", ByPath: "by path", Owner: "owner", Superuser: "superuser", Self: "self",
	ServersOnly: "servers", ContainersOnly: "containers", Joining: "join token", BlockToken: "block token", ThisMachine: "this machine", JobToken: "job token",
}

// Valid reports whether r is one of the rights.
func (r Right) Valid() bool { return r > 0 && r < rights }

func (r Right) String() string {
	if !r.Valid() {
		return fmt.Sprintf("right %d", uint8(r))
	}
	return rightNames[r]
}

// Route is one thing that a port does, and the right that it needs.
type Route struct {
	// Port is the server and protocol, such as "namenode IPC".
	Port string
	// Name is the method, path or operation.
	Name  string
	Right Right
}
