package resourcemanager

import (
	"net"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
)

// The states of a node that an operator takes out of service, as they are shown: in YARN's words, which has none for maintenance.
const (
	// NodeDecommissioning: it gets nothing new, and what runs there may end.
	NodeDecommissioning NodeState = "DECOMMISSIONING"
	// NodeDecommissioned: it holds nothing any more.
	NodeDecommissioned NodeState = "DECOMMISSIONED"
)

// The same for a node in maintenance, as our own interfaces show it.
const (
	NodeEnteringMaintenance NodeState = "ENTERING_MAINTENANCE"
	NodeInMaintenance       NodeState = "IN_MAINTENANCE"
	// NodeCordoned: it gets nothing new, and what runs there goes on. To YARN's clients it serves, with nothing free.
	NodeCordoned NodeState = "CORDONED"
)

// Wish is what an operator wants of a node that is to leave.
type Wish struct {
	// Maintenance: it is to come back, by itself at Until.
	Maintenance bool
	// Listed: the list of excluded nodes names it, which alone can take it back.
	Listed bool
	Since  metadata.Time
	// Deadline is when what still runs there is ended; 0: never, it is waited for.
	Deadline metadata.Time
	// Until is when a maintenance is over; 0: when an operator says so.
	Until metadata.Time
	// By is who wished it, and Reason why, in their words.
	By, Reason string
	// Cordon: it gets nothing new, and that is all. What runs there is told nothing, and it is never let go.
	Cordon bool
}

// Leaves reports whether the node is to become empty.
func (n *Node) Leaves() bool { return n.Wish != nil && !n.Wish.Cordon }

// Named reports whether a name means the node: its id, or its host, address or machine, which may be that of several.
func (n *Node) Named(name string) bool {
	if name == "" {
		return false
	}
	host, _, _ := net.SplitHostPort(string(n.ID))
	return name == string(n.ID) || strings.EqualFold(name, host) || strings.EqualFold(name, n.Host) || strings.EqualFold(name, n.Machine)
}

// Takes reports whether the node is to get work, as far as the replicated state knows.
func (n *Node) Takes() bool { return n.State == NodeRunning && n.Wish == nil }

// Shown is the node's state in YARN's words, with what operators want of it.
func (n *Node) Shown() NodeState {
	switch {
	case !n.Leaves():
		return n.State
	case n.Retired:
		return NodeDecommissioned
	}
	return NodeDecommissioning
}

// ShownHere is Shown, with words of our own for maintenance.
func (n *Node) ShownHere() NodeState {
	switch s := n.Shown(); {
	case n.Wish != nil && n.Wish.Cordon && n.State == NodeRunning:
		return NodeCordoned
	case n.Wish == nil || !n.Wish.Maintenance:
		return s
	case s == NodeDecommissioned:
		return NodeInMaintenance
	}
	return NodeEnteringMaintenance
}

// Why says for people why the node gets no work, and until when what it runs may go on; empty: nobody wants it to leave.
func (n *Node) Why() string {
	if n.Wish == nil {
		return ""
	}
	doing, done := "is being decommissioned", "is decommissioned"
	if n.Wish.Cordon {
		doing = "is cordoned"
	}
	if n.Wish.Maintenance {
		doing, done = "is being taken into maintenance", "is in maintenance"
	}
	text := "node " + string(n.ID) + " " + doing
	if n.Retired {
		text = "node " + string(n.ID) + " " + done
	}
	if n.Wish.By != "" {
		text += " by " + n.Wish.By
	}
	if n.Wish.Deadline > 0 && !n.Retired {
		text += ", and what still runs there is ended at " + when(n.Wish.Deadline)
	}
	if n.Wish.Until > 0 {
		text += ", until " + when(n.Wish.Until)
	}
	if n.Wish.Reason != "" {
		text += ": " + n.Wish.Reason
	}
	return text
}

func when(t metadata.Time) string {
	return time.UnixMilli(int64(t)).UTC().Format("2006-01-02 15:04:05 UTC")
}
