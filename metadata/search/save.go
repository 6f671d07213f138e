package search

import (
	"fmt"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
)

// save has written what waits in memory, when that is much or old.
func (x *Index) save() error {
	x.mu.Lock()
	flushing := x.flushing
	x.mu.Unlock()
	if flushing != nil {
		select {
		case err := <-flushing:
			x.ended(err)
		default:
			return nil
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.frozen.keys.Len() > 0: // it could not be written
		if time.Now().Before(x.retry) {
			return nil
		}
	case x.recent.bytes > x.cfg.Memory || !x.born.IsZero() && time.Since(x.born) > flushAge:
		if !x.freeze() {
			return nil
		}
	default:
		return nil
	}
	ended := make(chan error, 1)
	x.flushing = ended
	l, m := x.frozen, x.frozenAt
	go func() { ended <- write(x.cfg.Store, l, m) }()
	return nil
}

// freeze begins a new layer. It is called with mu held. False: what has changed belongs to a position that has been written, and waits for the next one.
func (x *Index) freeze() bool {
	if uint64(x.position) <= x.stored || x.recent.keys.Len() == 0 {
		return false
	}
	x.frozen, x.frozenAt = x.recent, marker{x.position, x.entries}
	x.recent, x.born = newLayer(), time.Time{}
	return true
}

// write writes a layer, and then that it is whole. When it fails, or is cut, what is there is in no view of before.
func write(store kv.Store, l layer, m marker) error {
	at := uint64(m.position)
	if l.swept { // what a cut leaves of it does not come again: Open has to know
		if err := writeSwept(store, m.position); err != nil {
			return err
		}
	}
	b := store.Batch(at)
	defer b.Cancel()
	var err error
	l.keys.Scan(func(key string, value []byte) bool {
		if value == nil {
			err = b.Delete([]byte(key))
		} else {
			err = b.Put([]byte(key), value)
		}
		return err == nil
	})
	if err == nil {
		err = b.Flush()
	}
	if err != nil {
		return fmt.Errorf("writing the search index: %w", err)
	}
	return writeMarker(store, m)
}

// writeSwept makes durable that a layer is going to be written that is not made of the feed alone.
func writeSwept(store kv.Store, at metadata.Position) error {
	return putDurably(store, sweptKey, marker{position: at})
}

// putDurably writes a marker at its position, durably.
func putDurably(store kv.Store, key []byte, m marker) error {
	b := store.Batch(uint64(m.position))
	defer b.Cancel()
	err := b.Put(key, m.encode())
	if err == nil {
		err = b.Flush()
	}
	if err == nil {
		err = store.Sync()
	}
	if err != nil {
		return fmt.Errorf("writing the search index: %w", err)
	}
	return nil
}

// writeMarker makes what was written up to a position durable, and then the beginning of everything else.
func writeMarker(store kv.Store, m marker) error {
	if err := store.Sync(); err != nil {
		return fmt.Errorf("writing the search index: %w", err)
	}
	return putDurably(store, markerKey, m)
}

// ended notes how the writing of the frozen layer has ended.
func (x *Index) ended(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.flushing = nil
	if err != nil {
		if x.failed == nil {
			x.log.Warn("changes of the search index cannot be written, and wait in memory", "error", err)
		}
		x.failed, x.retry = err, time.Now().Add(patience)
		return
	}
	x.failed = nil
	x.stored, x.frozen = uint64(x.frozenAt.position), newLayer()
	x.cfg.Store.Discard(x.pins.oldest(x.stored))
}

// finish writes what there is, for the next start.
func (x *Index) finish() {
	x.mu.Lock()
	flushing := x.flushing
	x.mu.Unlock()
	if flushing != nil {
		x.ended(<-flushing)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wanted || x.state == Rebuilding || x.frozen.keys.Len() > 0 || !x.freeze() {
		return
	}
	if err := write(x.cfg.Store, x.frozen, x.frozenAt); err != nil {
		x.log.Warn("the search index was not written whole: the next start goes on where it was", "error", err)
	}
}
