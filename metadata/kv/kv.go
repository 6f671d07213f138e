// Package kv is the ordered, versioned key-value contract over which state machines keep their checkpoints.
//
// A checkpoint is written at a timestamp of the writer's choice (the log index that it contains) and becomes the
// current one when a marker at the same timestamp is durable; see DESIGN.md for the crash argument. A store is a derived
// cache of a log and its snapshots: it may always be thrown away and built anew.
//
// Siblings: badger is the one on disk, mem the one in memory, faulty fails on request, kvtest is the conformance suite.
package kv

import (
	"errors"
	"math"
)

// Newest is the timestamp at which a view shows the last version of every key.
const Newest uint64 = math.MaxUint64

// Limits on what a store takes. Longer keys and values are errors of Put: the greatest record of a state machine has to be
// below them, or its checkpoint fails for good.
const (
	MaxKey   = 16 << 10
	MaxValue = 960 << 10
)

// ErrNotFound is returned by Get for a key that has no value at the view's timestamp.
var ErrNotFound = errors.New("kv: key not found")

// ErrTooLarge is returned for keys and values beyond MaxKey and MaxValue.
var ErrTooLarge = errors.New("kv: key or value too large")

// Store is a map from byte strings to byte strings with versions. It is safe for concurrent use; Replace, when fill has returned, and
// Close need every View and Batch to be closed.
//
// Errors other than ErrNotFound and ErrTooLarge mean that the store cannot be trusted any more: callers stop, and call
// Condemn when what they read was damaged.
type Store interface {
	// View shows what the store held at timestamp at: for each key the version with the greatest timestamp that is
	// not above it.
	View(at uint64) View

	// Batch collects writes at timestamp at. Writes may become visible to views at or above it at any time, and
	// survive a crash or not, independently of each other, until Flush and then Sync have returned.
	// Writing one key twice in a batch is a mistake of the caller.
	Batch(at uint64) Batch

	// Sync returns when everything flushed before it is durable.
	Sync() error

	// Discard allows the store to forget versions that no view at or above timestamp at can see.
	Discard(at uint64)

	// Last returns the greatest timestamp of all that may be in it, also of what no marker makes current; 0 when it is empty.
	Last() uint64

	// Replace exchanges the whole content for what fill puts, written at timestamp at and durable on return. When
	// fill or the store fails, or the process dies, the former content stays.
	Replace(at uint64, fill func(put func(key, value []byte) error) error) error

	// SetAside empties the store because its content makes no sense, for the reason given. A store with files keeps them beside the new
	// ones, for people to look at. It needs every View and Batch to be closed.
	SetAside(cause error) error

	// Condemn is SetAside at the next opening of the store. It is best effort, and an error after Close.
	Condemn() error

	// Close releases the store. It is idempotent. Calls of a View that is not closed after all fail from then on.
	Close() error
}

// View is a consistent picture of a store. It must be closed. It is safe for concurrent use.
type View interface {
	// Get returns a copy of the key's value, or ErrNotFound.
	Get(key []byte) ([]byte, error)

	// Scan calls fn for every key that starts with prefix and is not below from, in ascending order of bytes, until
	// fn returns false. Key and value are valid only during the call.
	Scan(prefix, from []byte, fn func(key, value []byte) bool) error

	Close()
}

// Batch collects writes. It is used by one goroutine. Key and value are the caller's again when a call has returned.
type Batch interface {
	Put(key, value []byte) error
	Delete(key []byte) error

	// Flush hands everything to the store. The batch is done with then.
	Flush() error

	// Cancel gives up what Flush has not handed over yet. It does nothing after Flush.
	Cancel()
}

// CheckSize is what implementations apply to every Put.
func CheckSize(key, value []byte) error {
	if len(key) == 0 || len(key) > MaxKey || len(value) > MaxValue {
		return ErrTooLarge
	}
	return nil
}
