package namenode

import (
	"context"
	"time"

	"github.com/gohops/hops/metadata"
)

// Feed are the calls about what changes in the namespace. Every member that leads, or follows closely, has the same events at the same positions,
// as far as they are kept.
type Feed interface {
	// Events is a page of the feed. A caller who is no superuser gets what happens in directories that are still where they were and that it may
	// list now. It ends with ctx, too.
	Events(ctx context.Context, c metadata.Caller, r EventsRequest, done func(*metadata.EventPage, error))
	// EventsEnd is the position behind all that this member has applied: who goes on there gets every change that is made from now on.
	EventsEnd(c metadata.Caller, done func(metadata.Position, error))
}

// MaxEventsWait is how long a request for events may wait for the first one, at most.
const MaxEventsWait = 30 * time.Second

// MaxEvents is how many events an answer has at most, but that those of one operation stay together.
const MaxEvents = 1000

// EventsRequest asks for a page of the feed.
type EventsRequest struct {
	// After is the position of the last event that the caller knows, or EventPage.Next.
	After metadata.Position
	// Path: only what happens there, below, or to a directory above; empty: everything.
	Path string
	// Most is how many events are wanted; 0, and more than MaxEvents: as many as that.
	Most int
	// Wait is how long the request waits if there is none.
	Wait time.Duration
	// Admit is asked before the answer is made.
	Admit Admit
}
