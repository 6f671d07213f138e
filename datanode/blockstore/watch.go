package blockstore

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/metadata"
)

// A disk, or the path to it, may stop to answer: calls do not fail, they do not come back. The goroutines that made them are
// lost; everybody else must not be. So every call on a volume is counted from its beginning to its end. While one of them is
// older than slowTicks ticks the volume is slow: who can do without it leaves it alone. While one that reads is, the volume is mute: whoever reads there is told so, and not waited
// for. (That a disk with much to write takes long for it says nothing about reads.) When one is older than hangAfter ticks a watchdog
// gives the volume up. Age is counted in ticks of the watchdog, not in time: when the whole process stood still (a paused
// machine), no disk is to blame.
const (
	slowTicks = 30
	// hangTicks is after how many ticks a call is given up where it may take diskTimeout or less.
	hangTicks = 300
	// ringSize is how many ticks can be told apart at once.
	ringSize = 512
	// diskTimeout is how long a call of a disk may take.
	diskTimeout = 30 * time.Second
)

// tickOf is how long a tick of the watchdog is where a call may take limit. However long that is a tick stays short: what is slow is found after
// seconds, and a call that comes back at once is not taken for one that does not.
func tickOf(limit time.Duration) time.Duration {
	return max(min(cmp.Or(max(limit, 0), diskTimeout), diskTimeout)/hangTicks, 1)
}

// hangAfter is after how many ticks a call that may take limit is given up.
func hangAfter(limit time.Duration) int64 {
	return max(int64(cmp.Or(max(limit, 0), diskTimeout)/tickOf(limit)), hangTicks)
}

// calls counts the calls under way on a volume by the tick in which they began, those that read apart. Each tick takes the next slot that is empty, so that
// calls keep their age for as long as they are under way.
type calls struct {
	now, at      atomic.Int64 // the tick, and its slot
	began        [ringSize]atomic.Int64
	reads, other [ringSize]atomic.Int64
}

// begin and read note the beginning of a call; what they return is called at its end.
func (c *calls) begin() *atomic.Int64 { return c.enter(&c.other) }
func (c *calls) read() *atomic.Int64  { return c.enter(&c.reads) }

func (c *calls) enter(ring *[ringSize]atomic.Int64) *atomic.Int64 {
	slot := &ring[c.at.Load()]
	slot.Add(1)
	return slot
}

// tick lets a tick pass and returns the age of the oldest call, in ticks. One goroutine does that.
func (c *calls) tick() int64 {
	now, at := c.now.Add(1), c.at.Load()
	next := at
	for i := int64(1); i < ringSize; i++ {
		if slot := (at + i) % ringSize; c.reads[slot].Load() == 0 && c.other[slot].Load() == 0 {
			next = slot
			break
		}
	}
	c.began[next].Store(now) // if all are taken those of the last tick are younger than they were
	c.at.Store(next)
	return c.oldest()
}

// oldest is the age of the oldest call under way, in ticks; -1: there is none.
func (c *calls) oldest() int64 { return max(c.oldestRead(), c.oldestOf(&c.other)) }

// oldestRead is oldest of those that read.
func (c *calls) oldestRead() int64 { return c.oldestOf(&c.reads) }

func (c *calls) oldestOf(ring *[ringSize]atomic.Int64) int64 {
	now, age := c.now.Load(), int64(-1)
	for i := range ring {
		if ring[i].Load() > 0 { // looked at first: a slot that is taken anew meanwhile is young
			age = max(age, now-c.began[i].Load(), 0)
		}
	}
	return age
}

// watched is a volume's disk with its calls counted. On one that was given up nothing is changed or synced any more: who waited for it in
// vain, and goes on when it answers, may have a successor there.
type watched struct {
	vfs.FS
	v *volume
}

func (w watched) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	if flag&(os.O_CREATE|os.O_TRUNC) == 0 {
		defer w.v.calls.read().Add(-1)
	} else {
		defer w.v.calls.begin().Add(-1)
		if err := w.v.err(); err != nil {
			return nil, err
		}
	}
	f, err := w.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return watchedFile{f, w.v}, nil
}

func (w watched) Rename(from, to string) error {
	defer w.v.calls.begin().Add(-1)
	if err := w.v.err(); err != nil {
		return err
	}
	return w.FS.Rename(from, to)
}

func (w watched) Remove(name string) error {
	defer w.v.calls.begin().Add(-1)
	if err := w.v.err(); err != nil {
		return err
	}
	return w.FS.Remove(name)
}

func (w watched) Mkdir(name string, perm os.FileMode) error {
	defer w.v.calls.begin().Add(-1)
	if err := w.v.err(); err != nil {
		return err
	}
	return w.FS.Mkdir(name, perm)
}

func (w watched) ReadDir(name string) ([]vfs.Entry, error) {
	defer w.v.calls.begin().Add(-1)
	return w.FS.ReadDir(name)
}

func (w watched) Stat(name string) (vfs.Info, error) {
	defer w.v.calls.begin().Add(-1)
	return w.FS.Stat(name)
}

func (w watched) SyncDir(name string) error {
	defer w.v.calls.begin().Add(-1)
	if err := w.v.err(); err != nil {
		return err
	}
	return w.FS.SyncDir(name)
}

func (w watched) Usage(name string) (vfs.Usage, error) {
	defer w.v.calls.begin().Add(-1)
	return w.FS.Usage(name)
}

func (w watched) Lock(name string) (io.Closer, error) {
	defer w.v.calls.begin().Add(-1)
	return w.FS.Lock(name)
}

// watchedFile is a file of a watched disk. What sendfile reads is not counted: see sends.
type watchedFile struct {
	vfs.File
	v *volume
}

func (w watchedFile) ReadAt(p []byte, off int64) (int, error) {
	defer w.v.calls.read().Add(-1)
	return w.File.ReadAt(p, off)
}

func (w watchedFile) WriteAt(p []byte, off int64) (int, error) {
	defer w.v.calls.begin().Add(-1)
	if err := w.v.err(); err != nil {
		return 0, err
	}
	return w.File.WriteAt(p, off)
}

func (w watchedFile) WriteAllAt(pieces [][]byte, off int64) error {
	defer w.v.calls.begin().Add(-1)
	if err := w.v.err(); err != nil {
		return err
	}
	return w.File.WriteAllAt(pieces, off)
}

func (w watchedFile) Sync() error {
	defer w.v.calls.begin().Add(-1)
	if err := w.v.err(); err != nil {
		return err
	}
	return w.File.Sync()
}

func (w watchedFile) Truncate(size int64) error {
	defer w.v.calls.begin().Add(-1)
	if err := w.v.err(); err != nil {
		return err
	}
	return w.File.Truncate(size)
}

func (w watchedFile) Size() (int64, error) {
	defer w.v.calls.begin().Add(-1)
	return w.File.Size()
}

func (w watchedFile) Punch(off, n int64) error {
	defer w.v.calls.begin().Add(-1)
	if err := w.v.err(); err != nil {
		return err
	}
	return w.File.Punch(off, n)
}

func (w watchedFile) Allocate(off, n int64) {
	defer w.v.calls.begin().Add(-1)
	w.File.Allocate(off, n)
}

func (w watchedFile) Writeback(off, n int64) {
	defer w.v.calls.begin().Add(-1)
	w.File.Writeback(off, n)
}

func (w watchedFile) Forget(off, n int64) {
	defer w.v.calls.begin().Add(-1)
	w.File.Forget(off, n)
}

func (w watchedFile) Close() error {
	defer w.v.calls.begin().Add(-1)
	return w.File.Close()
}

// Watch finds volumes that are slow, and gives up those whose disk does not answer, until ctx is done. A call may take limit; 0 is 30 s.
func (s *Store) Watch(ctx context.Context, limit time.Duration) {
	limit = cmp.Or(max(limit, 0), diskTimeout)
	t := pace.NewBeat(tickOf(limit))
	defer t.Stop()
	for {
		select {
		case <-t.C:
			t.Next()
			s.watch(limit)
		case <-ctx.Done():
			return
		}
	}
}

// watch is one tick of the watchdog.
func (s *Store) watch(limit time.Duration) {
	s.tidy()
	stuck, hangAt := false, hangAfter(limit)
	for _, v := range s.all() {
		age := v.calls.tick()
		if v.err() != nil {
			stuck, v.left = stuck || !v.left, true
			continue
		}
		if age >= hangAt {
			v.gaveUp.Store(s.cfg.Now().UnixNano())
			v.hung.Store(true)
			v.fail(fmt.Errorf("a call of the disk has not come back for %v", limit))
			continue
		}
		if slow := age >= slowTicks; v.slow.Swap(slow) != slow {
			if slow {
				v.log.Warn("volume is slow: a call of its disk does not come back", "volume", v.id.Storage, "path", v.path, "for", slowTicks*tickOf(limit))
			} else {
				v.log.Info("volume is slow no more", "volume", v.id.Storage, "path", v.path)
			}
			if s.cfg.OnVolumeSlow != nil {
				s.cfg.OnVolumeSlow()
			}
		}
		mute := v.calls.oldestRead() >= slowTicks
		v.mute.Store(mute)
		stuck = stuck || mute
		v.sends.tick()
	}
	if stuck && s.cfg.OnStuck != nil {
		s.cfg.OnStuck()
	}
}

// look is how often it is looked whether a disk has answered.
const look = 20 * time.Millisecond

// Answers reports whether the disk of a replica answers: it waits for the calls under way there until they have come back, or the disk is
// slow. Of a block without a replica it says true, as nobody need wait for a disk then. False also when ctx is done.
func (s *Store) Answers(ctx context.Context, id metadata.BlockID) bool {
	at, to := s.whereIs(id)
	if at == nil || at.failed.Load() != nil {
		return true
	}
	disks := []*volume{at}
	if to != nil {
		disks = append(disks, to)
	}
	for _, v := range disks {
		for began := v.calls.now.Load(); ; {
			if v.err() == nil && v.slow.Load() {
				return false
			}
			if v.err() != nil || v.calls.oldest() < v.calls.now.Load()-began {
				break
			}
			select {
			case <-time.After(look):
			case <-ctx.Done():
				return false
			}
		}
	}
	return true
}

// Silent reports whether the disk of a volume does not answer: it is slow, has failed, or is not there.
func (s *Store) Silent(storage string) bool {
	for _, v := range s.all() {
		if v.id.Storage == storage {
			return v.quiet()
		}
	}
	return true
}

// AnyLate reports whether a disk has had somebody wait for so long, or has failed.
func (s *Store) AnyLate(wait time.Duration) bool {
	tick := tickOf(s.cfg.DiskTimeout)
	return slices.ContainsFunc(s.all(), func(v *volume) bool { return v.quiet() || time.Duration(v.calls.oldest())*tick >= wait })
}

// Mute says why nobody should wait for the bytes of a replica: a read of its disk has not come back for long. nil: they can be had, as far as is known, or there is no replica.
func (s *Store) Mute(id metadata.BlockID) error {
	if v, _ := s.whereIs(id); v != nil && v.failed.Load() == nil && v.mute.Load() {
		return fmt.Errorf("block %d is on volume %s: %w", id, v.path, errSilent)
	}
	return nil
}

// GaveUp reports whether the volume of a replica was given up.
func (s *Store) GaveUp(id metadata.BlockID) bool {
	v, _ := s.whereIs(id)
	return v != nil && v.failed.Load() != nil
}

// Lost reports whether a volume was given up, or is not there.
func (s *Store) Lost(storage string) bool {
	for _, v := range s.all() {
		if v.id.Storage == storage {
			return v.err() != nil
		}
	}
	return true
}

// quiet: who calls the disk may have to wait for long.
func (v *volume) quiet() bool { return v.slow.Load() || v.failed.Load() != nil }

// Patiently does what calls the disk of a block's replica, on a goroutine of its own, and waits for it unless that disk is slow or has failed. Then the error is of kind ErrIO, and
// f may still come to its end: nothing that it uses may be used again.
func (s *Store) Patiently(id metadata.BlockID, f func() error) error {
	var at *volume
	return waitFor(func() *volume {
		v, to := s.whereIs(id)
		if to != nil && to.quiet() {
			return to
		}
		if v != nil {
			at = v
		}
		return at
	}, f)
}

// patiently does what calls a disk, on a goroutine of its own, and waits for it unless that disk is slow or has failed. Then the error is errSilent, and
// f may still come to its end. on is the disk, nil as long as f has none.
func patiently(on *atomic.Pointer[volume], f func() error) error { return waitFor(on.Load, f) }

func waitFor(on func() *volume, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	t := time.NewTicker(look)
	defer t.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-t.C:
		}
		if v := on(); v != nil && v.quiet() {
			select {
			case err := <-done:
				return err
			default:
				return fmt.Errorf("volume %s: %w", v.path, errSilent)
			}
		}
	}
}

// sends are the readers of a volume whose data the kernel sends. Such a call takes as long as the client that it sends to,
// or as the disk, which cannot be told apart from outside. Where one does not get on, the watchdog touches what it is to
// send: on a disk that answers that is in memory then, and on one that does not it is a call that is counted.
type sends struct {
	mu       sync.Mutex
	readers  map[*reader]struct{}
	touching atomic.Bool // by one goroutine at a time
}

// sending is what the kernel sends for a reader.
type sending struct {
	known  bool         // to the volume; only the reader's goroutine looks
	off, n atomic.Int64 // n is 0 while nothing is sent
	// Only the watchdog looks at these: where it was at the last tick, and for how many it has been there.
	at, still int64
}

// Sending implements datanode.Reader. But for the first call of a reader it is two stores.
func (rd *reader) Sending(off, n int64) {
	if !rd.sending.known {
		rd.sending.known = true
		rd.r.vol.sends.add(rd)
	}
	rd.sending.off.Store(off)
	rd.sending.n.Store(n)
}

func (s *sends) add(rd *reader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers == nil {
		s.readers = map[*reader]struct{}{}
	}
	s.readers[rd] = struct{}{}
}

func (s *sends) remove(rd *reader) {
	if !rd.sending.known {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.readers, rd)
}

// tick looks for calls that were there at the last tick, at the one before that, and again after 4, 8, 16... ticks.
func (s *sends) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var slow []*reader
	for rd := range s.readers {
		at, x := rd.sending.off.Load(), &rd.sending
		if x.n.Load() == 0 || at != x.at {
			x.at, x.still = at, 0
			continue
		}
		if x.still++; x.still > 1 && x.still&(x.still-1) == 0 {
			slow = append(slow, rd)
		}
	}
	if len(slow) > 0 && s.touching.CompareAndSwap(false, true) {
		go func() {
			defer s.touching.Store(false)
			for _, rd := range slow {
				rd.touch()
			}
		}()
	}
}

// pageSize is the least that is read from a disk.
const pageSize = 4 << 10

// touch reads a byte of each page that the kernel is to send. The file may be closed meanwhile, and errors are for who reads.
func (rd *reader) touch() {
	var b [1]byte
	off := rd.sending.off.Load()
	for end := off + rd.sending.n.Load(); off < end; off += pageSize {
		if _, err := rd.data.ReadAt(b[:], off); err != nil {
			return
		}
	}
}

// acquire takes a lock of the replica, which somebody may hold who waits for the disk. False: the volume has failed.
func (r *replica) acquire(mu *sync.Mutex) bool {
	for wait := 50 * time.Microsecond; !mu.TryLock(); wait = min(2*wait, 10*time.Millisecond) {
		if r.vol.failed.Load() != nil {
			return false
		}
		time.Sleep(wait)
	}
	return true
}

// usage is how full the volume's disk is. A disk that does not answer within usageWait is not waited for again until it has:
// then what is known is told, with errSilent.
func (v *volume) usage() (vfs.Usage, error) {
	v.usageMu.Lock()
	defer v.usageMu.Unlock()
	ask := v.asking
	if ask == nil {
		ask = &asking{done: make(chan struct{})}
		v.asking = ask
		go func() {
			u, err := v.fs.Usage(v.path)
			v.usageMu.Lock()
			defer v.usageMu.Unlock()
			if ask.err = err; err == nil {
				v.lastUse = u
			}
			v.asking = nil
			close(ask.done)
		}()
	}
	if !ask.silent {
		v.usageMu.Unlock()
		// In slices, of which one is all that a process that stands still for a while counts: its disk may have answered meanwhile.
		answered := false
		for i := 0; i < usageSlices && !answered; i++ {
			t := time.NewTimer(v.usageWait / usageSlices)
			select {
			case <-ask.done:
				answered = true
			case <-t.C:
			}
			t.Stop()
		}
		v.usageMu.Lock()
	}
	select {
	case <-ask.done:
		return v.lastUse, ask.err
	default:
		ask.silent = true
		return v.lastUse, errSilent
	}
}

// asking is a question to the disk how full it is.
type asking struct {
	done   chan struct{} // closed when it has answered
	err    error
	silent bool // somebody has waited for it in vain
}

// usageWait is how long a disk may take to say how full it is before it is passed over, in slices.
const (
	usageWait   = time.Second
	usageSlices = 10
	// endWait is how long it is waited for what is under way on a volume that goes.
	endWait = 5 * time.Second
)

var errSilent = metadata.Errorf(metadata.ErrIO, "the disk does not answer")
