package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

// files writes what the directory of the experiment shows beside the journal: small files of trials, the log for
// people, and the removal of checkpoints. All of it follows from the journal, so that it may lag behind and is made
// again after a restart.
type files struct {
	fs   FS
	dir  string
	log  *slog.Logger
	view func(func(*experiment.Experiment))

	more chan struct{} // capacity 1

	mu      sync.Mutex
	dirty   map[training.TrialID]bool
	deletes []string
	lines   []string
	busy    bool
	idle    chan struct{} // closed while nothing is left to do
}

func newFiles(f FS, dir string, log *slog.Logger, view func(func(*experiment.Experiment))) *files {
	w := &files{fs: f, dir: dir, log: log, view: view, more: make(chan struct{}, 1), dirty: map[training.TrialID]bool{}, idle: make(chan struct{})}
	close(w.idle)
	return w
}

// add queues work.
func (f *files) add(fx experiment.Effects) {
	if len(fx.Touched)+len(fx.Deletes)+len(fx.Lines) == 0 {
		return
	}
	f.mu.Lock()
	for id := range fx.Touched {
		f.dirty[id] = true
	}
	f.deletes = append(f.deletes, fx.Deletes...)
	f.lines = append(f.lines, fx.Lines...)
	if !f.busy {
		f.busy = true
		f.idle = make(chan struct{})
	}
	f.mu.Unlock()
	select {
	case f.more <- struct{}{}:
	default:
	}
}

// drained returns when everything queued is written, or ctx ends.
func (f *files) drained(ctx context.Context) error {
	f.mu.Lock()
	idle := f.idle
	f.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("files of trials in %s: %w", f.dir, ctx.Err())
	}
}

// filesPause gathers work, so that a trial that changes three times in a moment is written once.
const filesPause = 50 * time.Millisecond

// run writes until ctx ends. What fails is tried again.
func (f *files) run(ctx context.Context) error {
	logPath := path.Join(f.dir, logName)
	var log FileWriter
	defer func() {
		if log != nil {
			_ = log.Close() // its lines are in the journal too
		}
	}()
	pause := filesPause
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.more:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		f.mu.Lock()
		dirty, deletes, lines := f.dirty, f.deletes, f.lines
		f.dirty, f.deletes, f.lines = map[training.TrialID]bool{}, nil, nil
		f.mu.Unlock()

		var err error
		if len(lines) > 0 {
			if log, err = f.writeLog(ctx, log, logPath, lines); err != nil {
				f.log.Warn("controller.log", "path", logPath, "err", err)
			}
		}
		again := f.work(ctx, dirty, deletes)
		pause = filesPause
		if len(again.Touched)+len(again.Deletes) > 0 {
			pause = time.Second
		}
		f.add(again)
		f.mu.Lock()
		if len(f.dirty)+len(f.deletes)+len(f.lines) == 0 && f.busy {
			f.busy = false
			close(f.idle)
		}
		f.mu.Unlock()
	}
}

// work writes the files of trials and removes checkpoints; what failed comes back.
func (f *files) work(ctx context.Context, dirty map[training.TrialID]bool, deletes []string) experiment.Effects {
	var mu sync.Mutex
	again := experiment.Effects{Touched: map[training.TrialID]bool{}}
	var g errgroup.Group
	g.SetLimit(4)
	for id := range dirty {
		g.Go(func() error {
			if err := f.writeTrial(ctx, id); err != nil && ctx.Err() == nil {
				f.log.Warn("files of a trial", "trial", id, "err", err)
				mu.Lock()
				again.Touched[id] = true
				mu.Unlock()
			}
			return nil
		})
	}
	for _, dir := range deletes {
		g.Go(func() error {
			if err := f.fs.Delete(ctx, dir); err != nil && ctx.Err() == nil {
				f.log.Warn("removing a checkpoint", "path", dir, "err", err)
				mu.Lock()
				again.Deletes = append(again.Deletes, dir)
				mu.Unlock()
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return nothing
	return again
}

// writeLog appends lines to the log for people.
func (f *files) writeLog(ctx context.Context, w FileWriter, name string, lines []string) (FileWriter, error) {
	if w == nil {
		var err error
		if w, err = f.fs.Create(ctx, name, false); err != nil {
			if err := f.fs.Seal(ctx, name); err != nil {
				return nil, err
			}
			if w, err = f.fs.Append(ctx, name); err != nil {
				return nil, err
			}
		}
	}
	_, err := w.Write([]byte(strings.Join(lines, "\n") + "\n"))
	if err == nil {
		err = w.Hflush(ctx)
	}
	if err != nil {
		w.Abort()
		return nil, err
	}
	return w, nil
}

// writeTrial writes a trial's files as far as it has come: .hparams.json when it starts, the rest when it pauses or ends.
func (f *files) writeTrial(ctx context.Context, id training.TrialID) error {
	var row protocol.TrialStatus
	var outputs any
	var metric *float64
	first := false
	f.view(func(x *experiment.Experiment) {
		t := x.Trial(id)
		row, outputs, metric = x.Row(t, true), x.Outputs(t), t.Metric
		first = t.Attempt <= 1
	})
	dir := path.Join(f.dir, id.String())
	write := func(name string, v any) error {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return writeFile(ctx, f.fs, path.Join(dir, name), b)
	}
	done := row.State.Final() || row.State == training.Paused
	var errs []error
	if first || done {
		errs = append(errs, write(".hparams.json", row.Params))
	}
	if done {
		errs = append(errs, write(".outputs.json", outputs), write("trial.json", row))
		if metric != nil {
			errs = append(errs, write(".metric", *metric))
		}
	}
	return errors.Join(errs...)
}

// finish writes the sums of an experiment that is over.
func (f *files) finish(ctx context.Context) error {
	var result experiment.Result
	var all experiment.Combinations
	f.view(func(x *experiment.Experiment) { result, all = x.Result(), x.Combinations() })
	for _, file := range []struct {
		name string
		v    any
	}{{summaryName, all}, {resultName, result}} {
		b, err := json.MarshalIndent(file.v, "", " ")
		if err != nil {
			return err
		}
		if err := writeFile(ctx, f.fs, path.Join(f.dir, file.name), b); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes what attempts that were lost left behind: checkpoints that were never committed. Best effort.
func (f *files) sweep(ctx context.Context) {
	keep := map[string]bool{}
	var dirs []string
	f.view(func(x *experiment.Experiment) {
		for _, t := range x.Trials {
			for _, c := range t.Checks {
				keep[c.URI] = true
			}
			for a := 1; a <= t.Attempt; a++ {
				dirs = append(dirs, path.Join(x.Directory, t.ID.String(), "checkpoints", fmt.Sprint(a)))
			}
		}
	})
	var g errgroup.Group
	g.SetLimit(8)
	for _, dir := range dirs {
		g.Go(func() error {
			entries, err := f.fs.List(ctx, dir)
			if err != nil {
				return nil
			}
			kept := false
			for _, e := range entries {
				p := path.Join(dir, e.Name)
				if keep[p] {
					kept = true
				} else if err := f.fs.Delete(ctx, p); err != nil {
					f.log.Debug("removing an orphaned checkpoint", "path", p, "err", err)
				}
			}
			if !kept {
				_ = f.fs.Delete(ctx, dir) // empty now; if it stays, it does no harm
			}
			return nil
		})
	}
	_ = g.Wait()
}
