package raftstore

import "io"

// StateMachine is what a group replicates. Apply, Freeze and Restore are called from one goroutine at a time; members
// that apply the same commands must end in the same state, so Apply reads no clock, no random source and no disk.
type StateMachine interface {
	// Apply executes the commands of one log entry and returns one result per command. Indexes strictly increase,
	// except after a restart, when entries come again: those with index <= AppliedIndex() are skipped and nil is
	// returned. Commands may be kept but not changed. A panic stops the process; one with an error of kind release.ErrOlder, for a
	// command of a later version, with that line and nothing else.
	Apply(index uint64, commands [][]byte) []any
	// AppliedIndex is the last index contained in the state; 0: the state is empty.
	AppliedIndex() uint64
	// Freeze returns the present state for a snapshot. It blocks Apply, so it is O(1).
	Freeze() (Snapshot, error)
	// Restore replaces everything by a snapshot's content, after which AppliedIndex is the snapshot's Index. An error
	// is final: the state is in doubt and the group stops.
	Restore(r io.Reader) error
}

// Snapshot is a state machine's state at one index.
type Snapshot interface {
	// Index is the state machine's AppliedIndex at the time of Freeze.
	Index() uint64
	// WriteTo writes the state for Restore, concurrently with Apply. A state machine with a checkpoint of its own makes
	// that durable up to Index before it returns: entries up to Index may leave the log afterwards.
	WriteTo(w io.Writer) (int64, error)
	// Release is called once, whether WriteTo was or not.
	Release()
}
