package kerberos

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"sync"
	"time"
)

// maxReplays bounds how many authenticators are remembered: 48 bytes each. Who fills it has a ticket.
const maxReplays = 1 << 19

var (
	errReplay = errors.New("it was shown before: somebody repeats what a client sent")
	errFull   = errors.New("too many logins within a few minutes: try again")
)

// replays remembers authenticators for as long as they would be taken (RFC 4120, section 3.2.3). It is safe for concurrent use.
type replays struct {
	limit int // how many; 0: maxReplays

	mu     sync.Mutex
	seen   map[[sha256.Size]byte]struct{}
	queue  []replay // in the order in which they came
	oldest int      // index of the first in queue that is still in seen
}

type replay struct {
	sum   [sha256.Size]byte
	until time.Time
}

// add takes an authenticator that would be taken until then. Errors: errReplay, errFull.
func (r *replays) add(cipher []byte, now, until time.Time) error {
	sum := sha256.Sum256(cipher)
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.oldest < len(r.queue) && r.queue[r.oldest].until.Before(now) {
		delete(r.seen, r.queue[r.oldest].sum)
		r.oldest++
	}
	if r.oldest > 1024 && r.oldest > len(r.queue)/2 {
		r.queue = append([]replay(nil), r.queue[r.oldest:]...)
		r.oldest = 0
	}
	if _, ok := r.seen[sum]; ok {
		return errReplay
	}
	if len(r.seen) >= cmp.Or(r.limit, maxReplays) {
		return errFull
	}
	if r.seen == nil {
		r.seen = map[[sha256.Size]byte]struct{}{}
	}
	r.seen[sum] = struct{}{}
	r.queue = append(r.queue, replay{sum, until})
	return nil
}
