package raftstore

import (
	"errors"

	"github.com/gohops/hops/metadata"
)

// ErrUnknown: leadership was lost, or the caller's patience ended, while the command was on its way. It may take effect
// or not, now or later; whoever must know puts an identity into the command and asks the state machine.
var ErrUnknown = errors.New("outcome unknown: the command may or may not take effect")

// ErrStoreFailed marks the error of a Checkpoint.Write after which the state machine's store takes nothing more until it is opened again. The member
// hands over and ends: staying would let the log grow until the disk is full. What was acknowledged is in the log.
var ErrStoreFailed = errors.New("the checkpoint store failed")

// errClosed is why a group that was closed, or whose disk failed, refuses.
var errClosed = errors.New("the group is closed")

// NotLeader means that nothing happened and that another member may serve. Both fields are empty when no leader is
// known. While this member has won an election and is not ready yet, they name itself.
type NotLeader struct {
	LeaderID      string
	LeaderAddress string
}

func (e *NotLeader) Error() string {
	if e.LeaderID == "" {
		return "this member does not lead the group and knows of no leader"
	}
	return "this member does not lead the group: " + e.LeaderID + " at " + e.LeaderAddress + " does"
}

// Unwrap makes errors.Is(err, metadata.ErrStandby) true.
func (e *NotLeader) Unwrap() error { return metadata.ErrStandby }
