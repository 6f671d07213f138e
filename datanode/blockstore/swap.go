package blockstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/metadata"
)

// Volumes come and go while the store serves. What is on one that comes is found as at a start, and the namenode hears of it by the report that its
// owner makes then; that what was on one that went is gone it hears the same way.

// Add opens one more volume, as Open does, or one anew that has failed. The owner reports it to the namenode afterwards.
//
// Errors: ErrInvalidArgument, the path is not usable or there already; datanode.ErrVolumeInUse, ErrVolumeOwner and ErrVolumeVersion; and those of the disk.
func (s *Store) Add(c VolumeConfig) error {
	s.takeSwap()
	defer s.swapMu.Unlock()
	return s.add(c)
}

// takeSwap takes s.swapMu for an administrator, for whom Revive gives up a disk that does not answer (watchOpening).
func (s *Store) takeSwap() {
	s.swappers.Add(1)
	defer s.swappers.Add(-1)
	for !s.swapMu.TryLock() { // as Leave does
		time.Sleep(time.Millisecond)
	}
}

// add is Add with s.swapMu held.
func (s *Store) add(c VolumeConfig) error {
	select {
	case <-s.leaves:
		return errLeft
	default:
	}
	others := slices.Clone(s.all())
	path, _ := filepath.Abs(c.Path) // newVolume says what is wrong with it
	name := unknownName(path)       // what it was called, if that was a guess
	if at := slices.IndexFunc(others, func(v *volume) bool { return v.path == path && v.err() != nil }); at >= 0 {
		if !others[at].ended(others[at].endWait) { // they may change what is found
			return metadata.Errorf(metadata.ErrIO, "volume %s: calls of its disk that did not come back before it was given up are still under way", path)
		}
		if others[at].inMemory() {
			s.persist(context.Background(), others[at]) // what was saved of it is here
		}
		if others[at].guessed {
			name = others[at].id.Storage
		}
		s.retire(others[at], nil) // it stays in the list as failed until this one works
		others = slices.Delete(others, at, at+1)
	}
	if old := s.removed[path]; old != nil && !(old.ended(old.endWait) && old.freed(old.endWait)) { // they may change what is found
		return metadata.Errorf(metadata.ErrIO, "volume %s: calls of its disk that did not come back before it was given back are still under way", path)
	}
	delete(s.removed, path)
	v, err := s.newVolume(c, others)
	if err != nil {
		return err
	}
	before := slices.Clone(others)
	end := s.watchOpening([]*volume{v})
	err = s.openLate(v, others, name)
	end()
	if err == nil {
		err = v.err()
	}
	s.settleNames(before, others, err == nil)
	if err != nil {
		if !s.retire(v, err) {
			s.removed[v.path] = v // it is not tried again before they have come back
		}
		return fmt.Errorf("volume %s: %w", v.path, explain(err))
	}
	list := append(others, v)
	s.tellSiblings(list)
	s.listed.Store(&list)
	s.log.Info("volume added", "volume", v.id.Storage, "path", v.path, "replicas", v.replicas.Load())
	return nil
}

// Revive opens the volumes anew that were given up because their disk did not answer, or that it did not open for that or because another process had locked them, if no call is under way there any more, and returns the paths of those that
// work again. The owner reports them to the namenode afterwards. A volume that is given up for that over and over has to wait, for a minute, then two, and so on up to an hour; one that was
// well for calmTimes as long as it has to wait begins anew. One that is locked, or does not answer yet, is tried again after lockedPause, or minPatience, however often. Who calls Add or Remove meanwhile waits for a disk that answers, and some seconds for one that does not.
func (s *Store) Revive() []string {
	s.swapMu.Lock()
	defer s.swapMu.Unlock()
	s.reviving.Store(true)
	defer s.reviving.Store(false)
	var back []string
	for _, v := range s.all() {
		if s.swappers.Load() > 0 { // the rest comes with the next call
			break
		}
		old := s.removed[v.path]
		if !v.hung.Load() || v.err() == nil || v.calls.oldest() >= 0 || old != nil && old.calls.oldest() >= 0 || s.cfg.Now().Before(s.patient[v.path].until) {
			continue
		}
		p := s.patient[v.path]
		if time.Unix(0, v.gaveUp.Load()).Sub(p.tried) >= calmTimes*p.pause {
			p.pause = 0
		}
		before := p
		p.pause = min(max(2*p.pause, minPatience), maxPatience)
		p.tried, p.locked = s.cfg.Now(), false
		err := s.add(VolumeConfig{Path: v.path, Type: v.typ})
		next := p.pause
		switch { // what nobody has opened has not been given up again
		case errors.Is(err, datanode.ErrVolumeInUse):
			p, next = before, lockedPause
			p.locked = true
		case errors.Is(err, errSilent):
			p.pause, next = before.pause, minPatience
		}
		p.until = s.cfg.Now().Add(next)
		s.patient[v.path] = p
		if err != nil {
			if !p.locked || !before.locked { // that is said once
				s.log.Warn("volume whose disk answers again cannot be opened", "volume", v.id.Storage, "path", v.path, "err", err, "next", next)
			}
			continue
		}
		back = append(back, v.path)
	}
	return back
}

// patience is how long a volume is not opened anew again, and when it was last.
type patience struct {
	pause        time.Duration
	tried, until time.Time
	locked       bool // by another process, when it was tried last
}

const (
	minPatience = time.Minute
	maxPatience = time.Hour
	calmTimes   = 10
	// lockedPause is how soon a volume is tried again that another process has locked: its lock is free when that ends.
	lockedPause = 5 * time.Second
)

// mistaken is what takes the place of a volume that was never opened, and that was given the name of one that has come: name is what that one was called, if it was given one, too.
// What a volume is called does not change, as everybody reads it.
func (s *Store) mistaken(old *volume, name string) (*volume, error) {
	v, err := s.newVolume(VolumeConfig{Path: old.path, Type: old.typ}, nil)
	if err != nil {
		return nil, err
	}
	v.id.Storage, v.guessed = name, true
	v.hung.Store(old.hung.Load())
	v.gaveUp.Store(old.gaveUp.Load())
	v.failed.Store(old.failed.Load()) // it is told already
	close(v.gone)
	return v, nil
}

// settleNames ends what mistaken began: those that it made stay, in the place of those before, or go.
func (s *Store) settleNames(before, after []*volume, stay bool) {
	for i, v := range after {
		old := before[i]
		switch {
		case v == old:
		case !stay:
			s.places.remove(v)
		default:
			s.places.remove(old)
			v.lock, old.lock = old.lock, nil
			if old.calls.oldest() >= 0 {
				s.removed[old.path] = old // it is waited for
			}
		}
	}
}

// openLate claims a volume that is to be beside others, gives it an identity if it has none, and finds its replicas. If another one that has failed was given its name, that one is
// called name in others. s.swapMu is held.
func (s *Store) openLate(v *volume, others []*volume, name string) error {
	f, silent := answerOf(v, func() claimed { return claim(v.fs, v.path) }, claimed.release)
	if err := errors.Join(f.err, silent); err != nil {
		return err
	}
	if f.fresh {
		if missing := missing(others); len(missing) > 0 && !f.accepted && !v.inMemory() {
			return fmt.Errorf("there is nothing, but volume %s of this datanode is missing: is its disk not mounted? If it was replaced by a new one, put an empty file named %s there: %w",
				strings.Join(missing, " or "), acceptFile, datanode.ErrVolumeVersion)
		}
		f, silent = answerOf(v, func() claimed {
			if err := mkdirAll(v.fs, v.path); err != nil {
				return claimed{err: err}
			}
			lock, err := lockVolume(v.fs, v.path)
			return claimed{lock: lock, err: err, fresh: true}
		}, claimed.release)
		if err := errors.Join(f.err, silent); err != nil {
			return err
		}
	}
	v.id, v.lock = f.id, f.lock
	own := s.Identity()
	var err error
	switch {
	case f.fresh:
		v.id = newIdentity(s.datanode)
	case v.id.Datanode != s.datanode:
		return fmt.Errorf("it is of datanode %s, this is datanode %s: %w", v.id.Datanode, s.datanode, datanode.ErrVolumeOwner)
	case v.id.Cluster != "" && own.Cluster != "" && v.id.Cluster != own.Cluster:
		return fmt.Errorf("it is of cluster %s, this datanode of cluster %s: %w", v.id.Cluster, own.Cluster, datanode.ErrVolumeOwner)
	}
	for i, other := range others {
		switch {
		case other.id.Storage != v.id.Storage:
		case other.guessed && other.err() != nil:
			if others[i], err = s.mistaken(other, name); err != nil {
				return err
			}
		default:
			return fmt.Errorf("it is a copy of volume %s: %w", other.path, datanode.ErrVolumeOwner)
		}
	}
	if err := s.size(v); err != nil {
		return err
	}
	v.id.Cluster, v.id.BlockPool = own.Cluster, own.BlockPool
	v.id.Siblings = siblings(append(slices.Clone(others), v))
	v.id.Unsynced = v.id.Unsynced || s.cfg.Unsynced
	want := v.id
	err = v.ask(func() error {
		err := writeIdentity(v.fs, v.path, want)
		if err == nil && f.fresh {
			err = removeFile(v.fs, filepath.Join(v.path, acceptFile))
		}
		return err
	})
	if err != nil {
		return err
	}
	return v.ask(func() error { return s.load(v) })
}

// siblings are the storage uuids of volumes, as Identity has them.
func siblings(all []*volume) string {
	var ids []string
	for _, v := range all {
		if !v.inMemory() && !strings.HasPrefix(v.id.Storage, "DS-unknown-") { // memory may be gone at the next start
			ids = append(ids, v.id.Storage)
		}
	}
	slices.Sort(ids)
	return strings.Join(ids, ",")
}

// tellSiblings has every volume that works know which others there are. One whose disk does not answer is not waited for. s.swapMu is held.
func (s *Store) tellSiblings(all []*volume) {
	list := siblings(all)
	for _, v := range all {
		s.idMu.Lock()
		want := v.id
		s.idMu.Unlock()
		if v.err() != nil || want.Siblings == list {
			continue
		}
		want.Siblings = list
		var on atomic.Pointer[volume]
		on.Store(v)
		err := patiently(&on, func() error {
			v.telling.Lock()
			defer v.telling.Unlock()
			err := v.check(writeIdentity(v.fs, v.path, want))
			if err == nil {
				s.idMu.Lock()
				v.id.Siblings = list
				s.idMu.Unlock()
			}
			return err
		})
		if errors.Is(err, errSilent) {
			s.log.Warn("volume does not hear which others there are before its disk answers", "volume", v.id.Storage, "path", v.path)
		}
	}
}

// admitLate enters a replica of a volume that comes while the store serves. If the block is here already that one stays, and what was found goes if it is
// surely no better: otherwise it is left alone for the next start, which decides.
func (s *Store) admitLate(r *replica) error {
	sh := s.shard(r.id)
	for {
		old := s.hold(r.id)
		defer s.letGo(old)
		if old != nil && old.vol.failed.Load() == nil {
			if !old.acquire(&old.mu) {
				continue // its volume has failed meanwhile
			}
			view := old.viewLocked()
			old.mu.Unlock()
			if view.State == datanode.Finalized && view.Block.Generation >= r.gen {
				s.log.Warn("block is here twice, one replica is removed", "block", r.blockLocked().String(), "volume", r.vol.id.Storage)
				return r.discard()
			}
			s.log.Warn("block is here twice, one replica is left alone until the next start", "block", r.blockLocked().String(), "volume", r.vol.id.Storage)
			r.vol.leaveAlone(r)
			return nil
		}
		sh.mu.Lock()
		if r.vol.leaving.Load() || r.vol.err() != nil { // its disk was given up while it was read
			sh.mu.Unlock()
			return errRemoved
		}
		if sh.replicas[r.id] != old || sh.resting.find(r.id) >= 0 {
			sh.mu.Unlock()
			continue
		}
		if old != nil && s.arrives(old) { // from a volume that has failed: that one is the block's replica, as if it were there already
			sh.mu.Unlock()
			s.log.Warn("block is here twice, one replica is left alone until the next start", "block", r.blockLocked().String(), "volume", r.vol.id.Storage)
			r.vol.leaveAlone(r)
			return nil
		}
		size := r.length + sumsSize(r.length)
		s.enterLocked(sh, r) // from here on it is everybody's
		sh.mu.Unlock()
		r.vol.replicas.Add(1)
		r.vol.used.Add(size)
		r.vol.finalized(r)
		return nil
	}
}

// errRemoved is why a volume that was removed does not work.
var errRemoved = metadata.Errorf(metadata.ErrIO, "it was taken out of the datanode")

// Remove gives a volume back, which may have failed: its replicas are not here any more, writers to it have lost them, and reads under way come to their
// end. What is on it stays there. From memory everything is brought to disks first, and what is being written goes on there. The owner tells the namenode
// afterwards. The last volume that works cannot be removed.
func (s *Store) Remove(path string) error {
	s.takeSwap()
	defer s.swapMu.Unlock()
	path, err := filepath.Abs(path)
	if err != nil {
		return metadata.Errorf(metadata.ErrInvalidArgument, "volume path %q is not usable", path)
	}
	var v *volume
	var rest []*volume
	works := false
	for _, other := range s.all() {
		if other.path == path {
			v = other
			continue
		}
		rest = append(rest, other)
		works = works || other.err() == nil && !other.inMemory()
	}
	switch {
	case v == nil:
		return metadata.Errorf(metadata.ErrInvalidArgument, "there is no volume %s", path)
	case !works:
		return metadata.Errorf(metadata.ErrInvalidArgument, "volume %s is the last one that works", path)
	}
	s.indexAtEnd(v) // so that whoever has it next need not scan it
	before := s.all()
	s.listed.Store(&rest)
	if v.inMemory() { // which may never come back
		if err := s.vacate(v); err != nil {
			s.listed.Store(&before)
			return err
		}
	}
	s.tellSiblings(rest)
	if !s.retire(v, errRemoved) {
		s.removed[v.path] = v
	}
	s.log.Info("volume removed", "volume", v.id.Storage, "path", v.path)
	return nil
}

// Leave releases the volumes whose disks answer, in a moment, when the store is given up while somebody waits for the disk of another one. Its process may not come to its end before that
// one answers, and whoever is started in its place has to have the rest. Nothing can be changed there any more, so what goes on in the process does no harm. Who opens a volume
// meanwhile gives it up.
func (s *Store) Leave() {
	s.leaveOnce.Do(func() { close(s.leaves) })
	for end := time.Now().Add(leaveWait); !s.swapMu.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) { // a volume is being given back, and its disk does not answer
			return
		}
	}
	defer s.swapMu.Unlock()
	var g sync.WaitGroup
	for _, v := range s.all() {
		if v.quiet() || v.lock == nil {
			continue
		}
		g.Go(func() {
			if !v.failed.CompareAndSwap(nil, &errLeft) {
				return
			}
			close(v.gone)
			if v.ended(leaveWait) {
				_ = v.lock.Close()
			}
		})
	}
	g.Wait()
}

// leaveWait is how long Leave waits for what is under way on a volume.
const leaveWait = 500 * time.Millisecond

var errLeft = errors.New("its datanode has ended")

// ended waits until no call is under way on a volume that was given back, and reports whether that has come: some were about to end when it was, and others' disk does not answer.
func (v *volume) ended(limit time.Duration) bool {
	for end := time.Now().Add(limit); v.calls.oldest() >= 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// freed waits until the lock of a volume that was given back is free, and reports whether it is.
func (v *volume) freed(limit time.Duration) bool {
	if v.unlocked == nil { // it had none
		return true
	}
	select {
	case <-v.unlocked:
		return true
	case <-time.After(limit):
		return false
	}
}

// on are the replicas of a volume that are not at rest; if it is leaving, all that there will ever be.
func (s *Store) on(v *volume) []*replica {
	var all []*replica
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.RLock()
		for _, r := range sh.replicas {
			if r.vol == v {
				all = append(all, r)
			}
		}
		sh.mu.RUnlock()
	}
	return all
}

// retire takes a volume that is not in the list out of everything, and closes what is open there. False: calls of its disk are still under way. They may change something there when the disk answers, so the volume
// stays locked, for every process, until they have come back.
func (s *Store) retire(v *volume, cause error) bool {
	v.leaving.Store(true)
	s.forgetResting(v)
	all := s.on(v)
	// What is under way there ends before somebody else has the volume, also on one that has failed, unless its disk does not answer: nobody watches over it any more.
	end := time.Now().Add(v.endWait)
	silent := false
	take := func(mu *sync.Mutex) bool {
		for wait := 50 * time.Microsecond; !mu.TryLock(); wait = min(2*wait, 10*time.Millisecond) {
			if silent = silent || time.Now().After(end); silent {
				return false
			}
			time.Sleep(wait)
		}
		return true
	}
	for _, r := range all {
		if !take(&r.mu) {
			continue
		}
		r.fenceLocked()
		r.gone = true
		r.wakeLocked() // it stays open for a call of its writer that is under way
		r.mu.Unlock()
		if take(&r.io) { // the last call of its writer is over
			if take(&r.mu) {
				r.fenceLocked() // who was about to take it over has it by now
				r.mu.Unlock()
			}
			r.io.Unlock()
		}
	}
	failed := silent || v.failed.Load() != nil
	if v.failed.CompareAndSwap(nil, &cause) {
		close(v.gone)
	}
	for _, r := range all {
		s.forget(r)
	}
	packs := s.places.remove(v)
	if failed { // somebody may still wait for the disk, with a pack in hand
		packs = nil
	} else {
		v.packMu.Lock()
		v.pack = nil
		v.packMu.Unlock()
		v.unsettled.take(time.Now())
	}
	lock := v.lock
	v.lock = nil
	v.unlocked = make(chan struct{})
	go func() {
		defer close(v.unlocked)
		for _, p := range packs {
			_ = p.f.Close() // nothing of it is used any more
		}
		if lock == nil {
			return
		}
		for v.calls.oldest() >= 0 {
			time.Sleep(look)
		}
		_ = lock.Close()
	}()
	wait := min(leaveWait, v.endWait)
	select {
	case <-s.leaves: // which waits for who opens a volume
		wait = 0
	default:
	}
	return v.ended(wait) && v.freed(v.endWait)
}
