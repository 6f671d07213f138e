package namenode

import (
	"context"
	"time"

	"github.com/gohops/hops/metadata"
)

// Search are the calls about the index of names, tags and sizes. Each member that has one answers of its own.
type Search interface {
	// Search is a page of what a query finds, of what the caller may list. It ends with ctx, too.
	//
	// Errors: ErrUnsupported where there is no index, ErrRetriable where it is being rebuilt, or is behind for longer than is to be waited.
	Search(ctx context.Context, c metadata.Caller, r SearchRequest, done func(*metadata.FoundPage, error))
	// SearchStatus says how the index of this member is, whether it leads or not.
	SearchStatus(c metadata.Caller, done func(*SearchStatus, error))
	// RebuildSearch has this member make its index anew, from nothing, and does not wait for that.
	RebuildSearch(c metadata.Caller, done func(error))
}

// MaxSearchWait is how long a request may wait for the index, at most; DefaultSearchWait if it does not say.
const (
	MaxSearchWait     = 30 * time.Second
	DefaultSearchWait = 10 * time.Second
)

// SearchRequest asks for a page.
type SearchRequest struct {
	metadata.Query
	// After is a position of the feed of changes: what is in front of it is taken into account. 0: as the index is.
	After metadata.Position
	// Wait is how long to wait for that.
	Wait time.Duration
	// Admit is asked before the answer is made.
	Admit Admit
}

// SearchStatus is how an index is.
type SearchStatus struct {
	// State is following, rebuilding or failing; Problem says why it is failing, or why a rebuild is.
	State   string `json:"state"`
	Problem string `json:"problem,omitempty"`
	// Done and Total are how many files and directories a rebuild has looked at, and about how many there are.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
	// Position: what is in front of it can be searched. FeedEnd is where the feed of changes ends.
	Position metadata.Position `json:"position"`
	FeedEnd  metadata.Position `json:"feedEnd"`
	// Lag is how long the last change took until it could be searched, or how long it has been waiting, in milliseconds.
	Lag int64 `json:"lag"`
	// Entries are the files and directories in the index. Those of trees that were deleted count until they are swept out.
	Entries int64 `json:"entries"`
	// Bytes is what it takes on disk, Waiting what of it is in memory only.
	Bytes   int64 `json:"bytes"`
	Waiting int64 `json:"waiting"`
	// Rebuilds is how often it was made anew since the start.
	Rebuilds int64 `json:"rebuilds"`
}
