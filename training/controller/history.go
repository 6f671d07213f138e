package controller

import (
	"context"
	"fmt"
	"log/slog"
	"path"

	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

// History folds the journal in an experiment's directory: what is known of an experiment that has left no result, because
// its controller is gone or still at work. The journal's writer is not disturbed. metadata.ErrNotExist: there is no journal.
func History(ctx context.Context, f FS, dir string) (*protocol.ExperimentStatus, error) {
	x, err := fold(ctx, f, path.Join(dir, journalName), false)
	if err != nil {
		return nil, err
	}
	s := x.Status(x.Now, true)
	return &s, nil
}

// CheckReplay reads a journal and compares each suggestion in it with what this program's search would have suggested. nil:
// it is the same search, and deterministic. Controllers do not check: they adopt what the journal says.
func CheckReplay(ctx context.Context, f FS, dir string) error {
	_, err := fold(ctx, f, path.Join(dir, journalName), true)
	return err
}

func fold(ctx context.Context, f FS, name string, compare bool) (*experiment.Experiment, error) {
	x := experiment.New()
	x.Compare = compare
	j := &journal{fs: f, path: name, log: slog.New(slog.DiscardHandler)}
	if err := j.read(ctx, func(e *experiment.Entry) error {
		err := x.Apply(e)
		x.Take()
		return err
	}); err != nil {
		return nil, err
	}
	if x.N == 0 {
		return nil, fmt.Errorf("%s is empty", name)
	}
	return x, nil
}
