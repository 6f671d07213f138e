package transfer

import (
	"fmt"
	"sync"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/localsocket"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

const (
	// sheetLeast is what a sheet counts for at least, in bytes: it has a descriptor of this process, too.
	sheetLeast = 256 << 10
	// sheetKept is how long a sheet is kept that nobody holds.
	sheetKept = 30 * time.Second
	// sheetLargest bounds the data that is copied to share it. What has no file of its own is small.
	sheetLargest = 1 << 20
)

// sheets are the memories with checksums, and with the data of replicas without a file, that readers on this machine share
// with the server. A user has one of a replica, however many descriptors of it they ask for; it is paid for by the user's
// share of a budget until nobody has it any more, which the kernel tells.
type sheets struct {
	budget *security.Budget

	mu     sync.Mutex
	all    map[sheetKey]*sheet
	payers map[uint32]*payer
	purge  *time.Timer
	closed bool
}

// payer is a user with what they have taken of the budget.
type payer struct {
	account *security.Account
	size    int64
}

type sheetKey struct {
	user uint32
	id   metadata.BlockID
	gen  metadata.Generation
}

type sheet struct {
	sums, data *localsocket.Memory // data is nil where the replica has a file
	size       int64
	used       time.Time
	opening    int // requests that are about to open it
}

func (h *sheet) close() {
	h.sums.Close()
	if h.data != nil {
		h.data.Close()
	}
}

// held reports whether anybody else has it, or is going to.
func (h *sheet) held() bool {
	return h.opening > 0 || h.sums.Held() || h.data != nil && h.data.Held()
}

func newSheets(b *security.Budget) *sheets {
	return &sheets{budget: b, all: map[sheetKey]*sheet{}, payers: map[uint32]*payer{}}
}

// of is the sheet of a replica for a user. The caller opens it and calls opened.
func (s *sheets) of(user uint32, rd datanode.Reader) (*sheet, error) {
	r := rd.Replica()
	key := sheetKey{user, r.Block.ID, r.Block.Generation}
	size := max(metaSize(r.Visible), sheetLeast)
	s.mu.Lock()
	h := s.takeLocked(key)
	if h != nil {
		s.mu.Unlock()
		return h, nil
	}
	err := s.payLocked(user, size)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	h, err = makeSheet(rd, size) // which reads the disk, for which nobody else waits
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.closed {
		err = errStops
		h.close()
	}
	if err != nil {
		s.giveLocked(user, size)
		return nil, err
	}
	if other := s.takeLocked(key); other != nil { // somebody was quicker
		h.close()
		s.giveLocked(user, size)
		return other, nil
	}
	s.all[key] = h
	if s.purge == nil {
		s.purge = time.AfterFunc(sheetKept, s.purgeIdle)
	}
	return s.takeLocked(key), nil
}

var errStops = metadata.Errorf(metadata.ErrRetriable, "the datanode stops")

// takeLocked is a sheet that there is, to be opened.
func (s *sheets) takeLocked(key sheetKey) *sheet {
	h := s.all[key]
	if h != nil {
		h.used = time.Now()
		h.opening++
	}
	return h
}

func (s *sheets) opened(h *sheet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.opening--
}

// payLocked takes what a sheet counts for of a user's share, when need be of what nobody has any more.
func (s *sheets) payLocked(user uint32, size int64) error {
	if s.closed {
		return errStops
	}
	for swept := false; ; swept = true {
		p := s.payers[user]
		if p == nil {
			p = &payer{account: s.budget.Account(user)}
			s.payers[user] = p
		}
		if p.account.Try(size) {
			p.size += size
			return nil
		}
		if p.size == 0 {
			s.giveLocked(user, 0)
		}
		if swept {
			return fmt.Errorf("%w: %w", errSheets, metadata.ErrRetriable)
		}
		s.sweepLocked(time.Now())
	}
}

// giveLocked gives back what was taken. What is left after close was given back there.
func (s *sheets) giveLocked(user uint32, size int64) {
	p := s.payers[user]
	if p == nil {
		return
	}
	p.account.Give(size)
	if p.size -= size; p.size == 0 {
		p.account.Close()
		delete(s.payers, user)
	}
}

// makeSheet copies the checksums of a replica, and its data if that has no file of its own.
func makeSheet(rd datanode.Reader, size int64) (*sheet, error) {
	packed := rd.File() == nil
	if visible := rd.Replica().Visible; packed && visible > sheetLargest {
		return nil, metadata.Errorf(metadata.ErrUnsupported, "%d bytes without a file of their own are not copied", visible)
	}
	meta, err := metaOf(rd)
	if err != nil {
		return nil, err
	}
	h := &sheet{size: size}
	if h.sums, err = localsocket.Seal("hops checksums", meta); err != nil || !packed {
		return h, err
	}
	data, err := dataOf(rd)
	if err == nil {
		h.data, err = localsocket.Seal("hops block", data)
	}
	if err != nil {
		h.sums.Close()
	}
	return h, err
}

// sweepLocked drops what nobody has and was last asked for before.
func (s *sheets) sweepLocked(before time.Time) {
	for key, h := range s.all {
		if h.used.After(before) || h.held() {
			continue
		}
		delete(s.all, key)
		h.close()
		s.giveLocked(key.user, h.size)
	}
}

// purgeIdle drops what has not been asked for lately, and comes again while anything is left.
func (s *sheets) purgeIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.purge = nil
	if s.closed {
		return
	}
	s.sweepLocked(time.Now().Add(-sheetKept))
	if len(s.all) > 0 {
		s.purge = time.AfterFunc(sheetKept, s.purgeIdle)
	}
}

// size is how many bytes are shared, of how many replicas.
func (s *sheets) size() (bytes int64, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.all {
		bytes += h.size
	}
	return bytes, len(s.all)
}

func (s *sheets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, h := range s.all {
		h.close()
	}
	for _, p := range s.payers {
		p.account.Give(p.size)
		p.account.Close()
	}
	clear(s.all)
	clear(s.payers)
	if s.purge != nil {
		s.purge.Stop()
	}
}
