package security

import (
	"cmp"
	"context"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/metadata"
)

// patience is how long Take waits before it refuses.
const patience = 5 * time.Second

const (
	// accountStep is taken beside what was asked for, so that few calls need the budget's lock.
	accountStep = 16 << 10
	// accountSlack is the most that an account keeps and does not use.
	accountSlack = 64 << 10
)

// BudgetConfig describes a Budget. Total is required.
type BudgetConfig struct {
	// Purpose is what the bytes are for, for messages: "requests", "answers".
	Purpose string
	// Total is how many bytes may be held at a time.
	Total int64
	// Patience is how long Take waits before it refuses. Default 5 s.
	Patience time.Duration
}

// Budget bounds the bytes that peers make this process hold for one purpose, all together. A user may hold as much as is
// left free beside it: the first one half of the total, the next one half of the rest. So nobody can take the last, and
// several who want more than there is come to hold the same (dynamic thresholds, Choudhury and Hahne 1998). root and the
// user of this process, which other users' work goes through, may take all that is left.
//
// Who gets nothing waits, which holds up its own connection and no other; after a while it is refused.
type Budget struct {
	config  BudgetConfig
	release func() // gives the process's memory back
	wanted  atomic.Bool

	mu     sync.Mutex
	used   int64 // by the accounts, with what they keep ready
	peak   int64 // the most that was ever used
	high   bool  // much was used, and its memory has not been given back
	shares map[uint32]*share
}

// share is what one user holds.
type share struct {
	uid       uint32
	unlimited bool
	used      int64
	accounts  int
	waiting   []*waiter // in the order in which they came
}

type waiter struct {
	account *Account
	n       int64
	ready   chan struct{} // closed when it has been granted
	granted bool
}

// NewBudget makes a budget of which nothing is used.
func NewBudget(c BudgetConfig) *Budget {
	c.Patience = cmp.Or(c.Patience, patience)
	return &Budget{config: c, release: releaseMemory, shares: map[uint32]*share{}}
}

// The budgets of this process: for requests and for their answers a sixteenth each of the memory that it may use, and no
// more than 128 MiB; for packets of blocks that are being written twice that. Writers are held up for longer before they
// are refused: they have data to lose. Another eighth, no more than 256 MiB, is for what readers of a datanode on the same
// machine share with it.
var (
	Requests = processBudget(BudgetConfig{Purpose: "requests", Total: 128 << 20})
	Answers  = processBudget(BudgetConfig{Purpose: "answers", Total: 128 << 20})
	Packets  = processBudget(BudgetConfig{Purpose: "packets", Total: 256 << 20, Patience: 30 * time.Second})
	Shared   = processBudget(BudgetConfig{Purpose: "checksums that readers share", Total: 256 << 20})
)

// processBudget makes a budget on a machine whose memory may be too small for it: 128 MiB want 2 GiB.
func processBudget(c BudgetConfig) func() *Budget {
	return sync.OnceValue(func() *Budget {
		const least, wanted = 16 << 20, 2 << 30
		if memory := Memory(); memory < wanted {
			c.Total = max(least, c.Total/1024*(memory/(wanted/1024)))
		}
		return NewBudget(c)
	})
}

// Total is how many bytes may be held.
func (b *Budget) Total() int64 { return b.config.Total }

// Most is the largest amount that should be taken at a time: everybody gets that much sooner or later.
func (b *Budget) Most() int64 { return b.config.Total / 4 }

// Patience is how long Take waits, and how long who was refused should wait before it asks again.
func (b *Budget) Patience() time.Duration { return b.config.Patience }

// Used is how many bytes are held, and Peak the most that ever were.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Peak is the most bytes that were ever held.
func (b *Budget) Peak() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.peak
}

// ownUser reports whether uid is root or the user of this process: what they do, they do for others.
func ownUser(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }

// Account opens an account of a user, one for each connection. It has to be closed.
func (b *Budget) Account(uid uint32) *Account {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.shares[uid]
	if s == nil {
		s = &share{uid: uid, unlimited: ownUser(uid)}
		b.shares[uid] = s
	}
	s.accounts++
	return &Account{budget: b, share: s}
}

// allows reports whether a share may hold n bytes more. mu is held.
func (b *Budget) allows(s *share, n int64) bool {
	left := b.config.Total - b.used - n
	if s.unlimited {
		return left >= 0
	}
	return left >= s.used+n
}

// add counts n bytes of a share in. mu is held.
func (b *Budget) add(s *share, n int64) {
	b.used += n
	s.used += n
	b.peak = max(b.peak, b.used)
	b.high = b.high || b.used > b.config.Total/4
}

// sub counts n bytes of a share out and serves who waits. mu is held.
func (b *Budget) sub(s *share, n int64) {
	b.used -= n
	s.used -= n
	b.forget(s)
	b.serve()
	if b.high && b.used <= b.config.Total/16 {
		b.high = false
		b.release()
	}
}

// forget drops a share that nobody has any more. mu is held.
func (b *Budget) forget(s *share) {
	if s.accounts == 0 && s.used == 0 {
		delete(b.shares, s.uid)
	}
}

// serve grants what those who wait may have now: of each user the one who came first. mu is held.
func (b *Budget) serve() {
	wanted := false
	for _, s := range b.shares {
		for len(s.waiting) > 0 && b.allows(s, s.waiting[0].n) {
			w := s.waiting[0]
			s.waiting = s.waiting[1:]
			b.add(s, w.n)
			w.granted = true
			close(w.ready)
		}
		wanted = wanted || len(s.waiting) > 0
	}
	b.wanted.Store(wanted)
}

// Account is the part of a user's share that one connection holds. Its methods may be called by any goroutine.
type Account struct {
	budget *Budget
	share  *share
	free   atomic.Int64 // granted and not in use
	closed atomic.Bool
}

// Take gets n bytes, waiting for them until the budget's patience is at its end or ctx is done. The error is then of kind
// metadata.ErrRetriable, or ctx's.
func (a *Account) Take(ctx context.Context, n int64) error {
	if a.takeFree(n) {
		return nil
	}
	b := a.budget
	b.mu.Lock()
	if a.grant(n) {
		b.mu.Unlock()
		return nil
	}
	w := &waiter{account: a, n: n, ready: make(chan struct{})}
	a.share.waiting = append(a.share.waiting, w)
	b.wanted.Store(true)
	b.mu.Unlock()

	timer := time.NewTimer(b.config.Patience)
	defer timer.Stop()
	select {
	case <-w.ready:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.granted {
		return nil
	}
	a.share.waiting = slices.DeleteFunc(a.share.waiting, func(x *waiter) bool { return x == w })
	b.serve() // those behind it, who may want less
	if err := ctx.Err(); err != nil {
		return err
	}
	return a.Refusal(n)
}

// Refusal is what Take says to who waited for n bytes and did not get them.
func (a *Account) Refusal(n int64) error {
	c := &a.budget.config
	return metadata.Errorf(metadata.ErrRetriable, "The server's memory for %s is taken (%d bytes, of which a user has a share), "+
		"and %d more were not free within %v. Ask again in %v, and ask for less at a time.", c.Purpose, c.Total, n, c.Patience, c.Patience)
}

// Try is Take for who cannot wait.
func (a *Account) Try(n int64) bool {
	if a.takeFree(n) {
		return true
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	return a.grant(n)
}

// Force takes n bytes that are held already, whether there are any or not: the next Take waits the longer.
func (a *Account) Force(n int64) {
	if a.takeFree(n) {
		return
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.budget.add(a.share, n)
}

// takeFree uses what was granted before.
func (a *Account) takeFree(n int64) bool {
	for {
		free := a.free.Load()
		if free < n {
			return false
		}
		if a.free.CompareAndSwap(free, free-n) {
			return true
		}
	}
}

// grant takes n bytes of the budget, and some more for the next time. Little is granted although somebody waits, who
// wants more than there is. The budget's mu is held.
func (a *Account) grant(n int64) bool {
	b := a.budget
	if len(a.share.waiting) > 0 && n > accountStep || !b.allows(a.share, n) {
		return false
	}
	if n < accountStep && len(a.share.waiting) == 0 && !a.closed.Load() && b.used < b.config.Total/2 && b.allows(a.share, n+accountStep) {
		b.add(a.share, accountStep)
		a.free.Add(accountStep)
	}
	b.add(a.share, n)
	return true
}

// Give gives n bytes back.
func (a *Account) Give(n int64) {
	free := a.free.Add(n)
	switch {
	case a.closed.Load(), a.budget.wanted.Load():
		a.settle(0)
	case free > accountSlack:
		a.settle(accountStep)
	}
}

// Rest gives back what the account keeps ready, for a connection that is quiet.
func (a *Account) Rest() {
	if a.free.Load() > 0 {
		a.settle(0)
	}
}

// Close ends the account. What it holds still has to be given back.
func (a *Account) Close() {
	if a.closed.Swap(true) {
		return
	}
	a.settle(0)
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.share.accounts--
	a.budget.forget(a.share)
}

// settle gives back all that is free but keep.
func (a *Account) settle(keep int64) {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	for {
		free := a.free.Load()
		if free <= keep {
			return
		}
		if a.free.CompareAndSwap(free, keep) {
			a.budget.sub(a.share, free-keep)
			return
		}
	}
}

const (
	// releaseAfter lets a few more give back what they hold.
	releaseAfter = time.Second
	// releaseEvery is how far apart two returns of memory are at least: each is a full collection.
	releaseEvery = 30 * time.Second
)

var lastRelease atomic.Int64 // when memory was given back, or will be, in Unix nanoseconds

// releaseMemory has the memory that is free given back to the system soon. Otherwise it comes back minutes later, because
// a process in which nothing happens does not collect.
func releaseMemory() {
	now, last := time.Now(), lastRelease.Load()
	at := now.Add(releaseAfter)
	if earliest := time.Unix(0, last).Add(releaseEvery); at.Before(earliest) {
		at = earliest
	}
	if last > now.UnixNano() || !lastRelease.CompareAndSwap(last, at.UnixNano()) {
		return // it is going to be done
	}
	time.AfterFunc(at.Sub(now), debug.FreeOSMemory)
}
