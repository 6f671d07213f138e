package dfs

import "github.com/gohops/hops/metadata"

// pages follows a list that comes page by page, each asked for by a cursor. A server that gives the same pages again would have it go on for ever: the same cursor twice is the end of
// it. Besides the last cursor only one is kept, the latest whose number is a power of two (Brent), which is enough for pages that come again in turns.
type pages[C comparable] struct {
	op, name   string
	last, kept C
	turned     int
	next       int // the page whose cursor is kept next
}

// pagesFrom follows the list of an operation from a cursor on.
func pagesFrom[C comparable](op, name string, first C) *pages[C] {
	return &pages[C]{op: op, name: name, last: first, kept: first, next: 1}
}

// turn goes on to the page behind a cursor.
//
// Errors: ErrIO when the list has been there before.
func (p *pages[C]) turn(to C) error {
	if to == p.last || to == p.kept {
		return &Error{Op: p.op, Path: p.name, Kind: metadata.ErrIO, Message: "the server gives a page of the list again: the cursor of the next one does not move on"}
	}
	p.last = to
	if p.turned++; p.turned == p.next {
		p.kept, p.next = to, 2*p.next
	}
	return nil
}
