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

// Crowded is a StateMachine whose memory is over its budget at times because of what has changed since the last snapshot: one
// is taken then, whatever the log's size.
type Crowded interface {
	Crowded() bool
}

// Behind is a StateMachine that may fall behind with letting memory go. While Behind is not nil each entry waits until it is closed, for heldBack
// at most, so that those who wait for their answers propose less.
type Behind interface {
	Behind() <-chan struct{}
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

// Versioned is a StateMachine whose checkpoint store keeps versions. A snapshot of it is a reference to one: nothing of the size of
// the state is written when one is taken, and a member that needs it pulls its content from another.
type Versioned interface {
	StateMachine
	// Freeze returns a Checkpoint.
	Freeze() (Snapshot, error)
	// Retain names the versions that have to stay readable, also after a restart. Others may go, but for the newest and those that are open.
	// Before the first call all stay.
	Retain(indexes []uint64)
	// Version opens a version for reading. Error: fs.ErrNotExist when the store has it no more.
	Version(ref Reference) (Version, error)
	// Receive begins to take a version from elsewhere, beside Apply. One that was being received is given up.
	Receive(ref Reference) (Intake, error)
}

// Checkpoint is the Snapshot of a Versioned state machine. Its WriteTo writes a copy of the whole state.
type Checkpoint interface {
	Snapshot
	// Write makes a version of what was frozen, concurrently with Apply: durable, and readable until Retain no longer names it and a
	// newer one has come. Its cost is that of what has changed since the last one.
	//
	// Errors: ErrStoreFailed ends the member; after others it goes on, and the next snapshot tries again.
	Write() (Reference, error)
}

// Reference names a version of a state machine. It is the same on every member that has it.
type Reference struct {
	// Index is the state machine's, Hash that of its state.
	Index, Hash uint64
	// Bytes is about how much its records take.
	Bytes int64
}

// Version is a state of a state machine that does not change. It is used by one goroutine.
type Version interface {
	// Read returns a piece of at most MaxPiece bytes, which is good until the next call, and the position behind it; nil: it was the
	// last. The first piece is at position nil.
	Read(position []byte) (piece, next []byte, err error)
	// WriteTo writes a copy of it, for StateMachine.Restore.
	WriteTo(w io.Writer) (int64, error)
	// Close lets the version go.
	Close()
}

// Intake takes the pieces of a version, and changes nothing before Commit.
type Intake interface {
	// Position is where the next piece begins.
	Position() []byte
	// Put takes the next piece. An error of kind metadata.ErrCorrupt means that it is not one of the version; the intake is to be
	// cancelled after any error.
	Put(piece []byte) error
	// Complete: the last piece has come, and all of it is what the reference promised.
	Complete() bool
	// Commit replaces the state by it. It is called by the goroutine of Apply, or before there is one. The state is as before after an error.
	Commit() error
	// Cancel gives it up, unless it was committed.
	Cancel()
}

// MaxPiece and MaxPosition are the most bytes that a piece of a version, and a position in one, have.
const (
	MaxPiece    = 4 << 20
	MaxPosition = 32 << 10
)
