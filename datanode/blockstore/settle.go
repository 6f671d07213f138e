package blockstore

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// With Config.Unsynced a replica is finalized by a rename of its checksum file alone, to a name that says its length (unsyncedName); what that is worth after a crash is
// found out at the next start (judge). Settle syncs it some seconds later, and gives it the name of one that is durable, so that
// little has to be compared at a start. A record of a pack is finalized by its state alone, and the pack is synced then.

// unsettled are replicas of a volume that were finalized without being synced. One that has left its pack since, or changed, is not any more.
type unsettled struct {
	busy atomic.Bool // somebody syncs them
	mu   sync.Mutex
	list []unsettledOne // the oldest first
}

type unsettledOne struct {
	r     *replica
	p     *pack // nil, or what is to be synced in place of r
	since time.Time
}

// add enters a finalized replica. r.io is held, or nobody else knows r.
func (u *unsettled) add(r *replica) {
	one := unsettledOne{r: r}
	if at := r.packed; at != nil {
		if !at.p.unsettled.CompareAndSwap(false, true) {
			return // it waits already
		}
		at.p.live.Add(1)
		one.r, one.p = nil, at.p
	}
	u.put(one)
}

// put enters one that is the youngest.
func (u *unsettled) put(one unsettledOne) {
	u.mu.Lock()
	defer u.mu.Unlock()
	one.since = time.Now()
	u.list = append(u.list, one)
}

// take takes those out that were there at a time.
func (u *unsettled) take(before time.Time) []unsettledOne {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := 0
	for n < len(u.list) && !u.list[n].since.After(before) {
		n++
	}
	out := slices.Clone(u.list[:n])
	u.list = slices.Delete(u.list, 0, n)
	return out
}

const (
	// settleAfter is for how long a replica is left alone: what is deleted before costs nothing.
	settleAfter = 10 * time.Second
	settleEvery = 2 * time.Second
	// settlers is how many replicas of a volume are synced at the same time: small ones would else come faster than they are synced.
	settlers = 16
)

// Settle syncs replicas that were finalized unsynced, until ctx is done. A disk that does not answer keeps no other one waiting.
func (s *Store) Settle(ctx context.Context) {
	t := time.NewTicker(settleEvery)
	defer t.Stop()
	var g sync.WaitGroup
	defer g.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			for _, v := range s.all() {
				if v.unsettled.busy.CompareAndSwap(false, true) {
					g.Go(func() {
						defer v.unsettled.busy.Store(false)
						s.settle(ctx, v, now.Add(-settleAfter))
					})
				}
			}
		}
	}
}

// settle syncs what was finalized on a volume before a time.
func (s *Store) settle(ctx context.Context, v *volume, before time.Time) {
	var g errgroup.Group
	g.SetLimit(settlers)
	defer func() { _ = g.Wait() }() // there are no errors
	for _, one := range v.unsettled.take(before) {
		if v.err() != nil || ctx.Err() != nil { // the next start finds it
			return
		}
		if p := one.p; p != nil {
			p.unsettled.Store(false)       // whoever comes now waits for the next sync
			_ = v.commit(&commit{pack: p}) // an error is the volume's end
			p.release()
			continue
		}
		g.Go(func() error {
			err := s.settleOne(one.r)
			if err == nil || v.err() != nil {
				return nil
			}
			s.log.Warn("replica cannot be synced", "block", int64(one.r.id), "volume", v.id.Storage, "err", err)
			if !errors.Is(err, metadata.ErrCorrupt) { // it is tried again: the disk is full, or the process has too many files open
				v.unsettled.put(one)
			}
			return nil
		})
	}
}

// settleOne syncs a replica, most of it while others may go on with it.
func (s *Store) settleOne(r *replica) error {
	v := r.vol
	if !r.acquire(&r.mu) {
		return v.err()
	}
	still, length := !r.gone && r.suffix == sufUnsynced, r.length
	var data vfs.File
	var err error
	if still {
		data, err = v.fs.OpenFile(v.dataPath(r.id), os.O_RDWR, 0)
	}
	r.mu.Unlock()
	if !still {
		return nil
	}
	if err != nil {
		return v.check(err)
	}
	for off := int64(0); off < length; off += writebackStep { // so that others' syncs get between
		data.Writeback(off, min(writebackStep, length-off))
	}
	err = v.checkSync(data.Sync())
	if err = errors.Join(err, data.Close()); err != nil {
		return err
	}
	if !r.acquire(&r.io) {
		return v.err()
	}
	defer r.io.Unlock()
	r.mu.Lock()
	still = !r.gone && r.suffix == sufUnsynced && r.state == datanode.Finalized
	gen := r.gen
	r.mu.Unlock()
	if !still || !s.is(r) {
		return nil
	}
	return s.makeDurable(r, gen)
}

// makeDurable gives a finalized replica in files the name of one that is durable, with a generation; one that was not synced is synced before. r.io is held.
func (s *Store) makeDurable(r *replica, gen metadata.Generation) error {
	c := &commit{rename: func() error { return r.rename(gen, sufMeta) }, dir: r.vol.dirOf(r.id)}
	if r.suffix == sufUnsynced {
		w := newWriter(s, r)
		if err := w.openFiles(); err != nil {
			return err
		}
		defer w.closeFiles()
		length := r.view().Block.Length
		o, err := w.readTail(length)
		if err != nil {
			if errors.Is(err, metadata.ErrCorrupt) {
				s.markCorrupt(r)
			}
			return err
		}
		if length%chunk != 0 { // as finalize writes it
			c.tail = &tail{length: length, crc: o.lastCRC, seq: o.tailSeq + 1}
		}
		c.files = []vfs.File{w.data, w.sums}
	}
	return r.vol.commit(c)
}
