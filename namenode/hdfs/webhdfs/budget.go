package webhdfs

import (
	"context"
	"math"
	"sync"

	"github.com/gohops/hops/internal/security"
)

const (
	// entrySize is about how many bytes an entry of a listing takes, in memory and as JSON.
	entrySize = 1 << 10
	// shortFile is what the blocks of a file take that are located without asking; longer ones take jsonCost times what
	// the service says.
	shortFile = 320 << 10
	jsonCost  = 3
)

// tab is what one request has taken of a budget.
type tab struct {
	account *security.Account

	mu     sync.Mutex
	taken  int64
	closed bool
}

// busyError is the refusal of a budget: 503, which says for how long.
type busyError struct {
	error
	seconds int
}

func (e *busyError) Unwrap() error { return e.error }

// take gets room for n bytes of answer until the request ends. It may wait, and outlive the request.
func (q *request) take(n int64) error { return q.tab.take(q, q.answers, n) }

// receive gets room for n bytes of what the request says, as take does, of another budget: many that hold theirs and want more of the same for the answer would wait for each other. Who holds
// something of the answers' does not receive.
func (q *request) receive(n int64) error { return q.said.take(q, q.requests, n) }

func (t *tab) take(q *request, b *security.Budget, n int64) error {
	n = min(n, b.Most())
	t.mu.Lock()
	if t.account == nil && !t.closed {
		t.account = b.Account(q.door.UIDOfRequest(q.http))
	}
	account := t.account
	t.mu.Unlock()
	if account == nil {
		return context.DeadlineExceeded
	}
	if err := account.Take(q.http.Context(), n); err != nil {
		if q.http.Context().Err() != nil {
			return err
		}
		return &busyError{err, max(1, int(math.Ceil(b.Patience().Seconds())))}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		account.Give(n)
		return context.DeadlineExceeded
	}
	t.taken += n
	return nil
}

// settle gives back what a request took.
func (t *tab) settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed = true; t.account != nil {
		t.account.Give(t.taken)
		t.account.Close()
	}
}

// pageSize is about what a page of a listing takes.
func (q *request) pageSize() int64 { return int64(q.service.Defaults().ListLimit) * entrySize }
