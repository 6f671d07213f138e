package resourcemanager

import "errors"

// The errors that are the resource manager's own; the others are kinds of package metadata.
var (
	// ErrStaleAttempt: a newer attempt of the application exists, or the application has ended. Whoever asked exits.
	ErrStaleAttempt = errors.New("STALE_ATTEMPT")
	// ErrStaleEpoch: the order comes from a leader that leads no more.
	ErrStaleEpoch = errors.New("the order is of an earlier epoch")
	// ErrBusy: the applications, or those of one user, are as many, or hold as much, as there is room for.
	ErrBusy = errors.New("too many applications")
	// ErrLaunched: something else runs in the container already.
	ErrLaunched = errors.New("the container was launched with something else")
	// ErrKeyReused: the idempotency key came with another submission before.
	ErrKeyReused = errors.New("the idempotency key was used for another submission")
)
