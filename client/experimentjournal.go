package client

import (
	"context"
	"io"
	"path"

	"github.com/gohops/hops/training/controller"
)

// Journal opens an experiment's journal; of one that runs, what is written so far. Its writer is not disturbed.
func (e *Experiments) Journal(ctx context.Context, id string) (io.ReadCloser, error) {
	p, err := e.find(ctx, id)
	if err != nil {
		return nil, err
	}
	return controller.DFS(e.c.fs).Open(ctx, path.Join(p.dir, "journal.jsonl"), 0)
}
