package dfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gohops/hops/metadata"
)

// Close finishes the file: when it returns nil, all of it is stored and readable. Closing twice is an error.
func (w *Writer) Close() error {
	w.turn.wait()
	defer w.turn.give()
	if w.closed {
		return fmt.Errorf("close %s: %w", w.path, fs.ErrClosed)
	}
	w.closed = true
	if w.err == nil && w.life.Err() != nil {
		_ = w.fail(w.ended("close"))
	}
	if w.err != nil {
		return w.err
	}
	if w.held != nil {
		if done, err := w.finishHeld(); err != nil {
			return err
		} else if done {
			w.settled = true
			w.end()
			return nil
		}
	}
	if w.block != nil {
		if err := w.finishBlock(); err != nil {
			return w.fail(err)
		}
	}
	if w.group != nil {
		if err := w.finishGroup(); err != nil {
			return w.fail(err)
		}
	}
	if w.unsealed {
		if err := w.seal(); err != nil { // all bytes are safe, and the namenode has it done later
			w.log(w.life, "the end of the file stays replicated for the moment", "path", w.path, "error", err)
		}
	}
	if err := w.complete(w.life); err != nil {
		return w.fail(err)
	}
	w.settled = true
	w.end()
	return nil
}

// Abort gives the file up without finishing it: what datanodes have acknowledged may remain. It asks the namenode to
// close the file, so that others need not wait for the lease to run out. After a Close that succeeded it does nothing,
// after one that failed it does that.
func (w *Writer) Abort() {
	w.kill()
	w.turn.wait()
	defer w.turn.give()
	if w.settled {
		return
	}
	w.closed, w.settled = true, true
	_ = w.fail(fmt.Errorf("write %s: aborted", w.path))
	w.giveUp()
}

// giveUp asks the namenode to close the file, if it was made.
func (w *Writer) giveUp() {
	if w.fileID.Load() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.c.times.abort)
	defer cancel()
	// By its id, because meanwhile it may have another name, and another file this one.
	if _, err := w.c.RecoverLease(ctx, w.byID()); err != nil && !errors.Is(err, metadata.ErrNotExist) {
		w.c.log.Debug("aborted file stays open until its lease runs out", "path", w.path, "error", err)
	}
}

// abandon breaks the pipeline under a call that may be going on, when the life of the writer is over, and lets go of the
// lease.
func (w *Writer) abandon() {
	w.c.leases.remove(w)
	w.breakMu.Lock()
	defer w.breakMu.Unlock()
	if w.breakup != nil {
		w.breakup()
	}
}

// breakWith says how to break what the writer waits for; nil: it waits for nothing. If the writer's life is over, that is
// done at once.
func (w *Writer) breakWith(breakup func()) {
	w.breakMu.Lock()
	w.breakup = breakup
	w.breakMu.Unlock()
	if breakup != nil && w.life.Err() != nil {
		breakup()
	}
}

func (w *Writer) usable(op string) error {
	if w.closed {
		return fmt.Errorf("%s %s: %w", op, w.path, fs.ErrClosed)
	}
	if w.err == nil && w.life.Err() != nil {
		return w.fail(w.ended(op))
	}
	return w.err
}

// ended is the error of an operation after the writer's life.
func (w *Writer) ended(op string) error { return wrap(op, w.path, context.Cause(w.life)) }

// fail makes the writer useless, with err as the reason.
func (w *Writer) fail(err error) error {
	if w.err == nil {
		w.err = w.reason(err)
	}
	if w.block != nil {
		w.block.disconnect()
		w.block.release()
		w.block = nil
	}
	if w.group != nil {
		w.group.close()
		w.group = nil
	}
	w.end()
	return w.err
}

// end lets go of the lease.
func (w *Writer) end() {
	w.kill()
	w.c.leases.remove(w)
}
