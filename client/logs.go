package client

import (
	"context"
	"errors"
	"path"
	"time"

	"github.com/gohops/hops/metadata"
)

// AwaitLogs waits until everything that the containers of an ended job have written is in the filesystem: node managers
// copy logs while containers run, and the last of them a moment after they have ended. It gives up when ctx ends, or when
// it may not look.
func (c *Client) AwaitLogs(ctx context.Context, id string) error {
	job, err := c.jobs.Get(ctx, id)
	if err != nil {
		return err
	}
	for _, k := range job.Containers {
		if k.Started == 0 {
			continue
		}
		for _, name := range []string{"stdout", "stderr"} {
			if err := c.awaitClosed(ctx, path.Join(k.LogDir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Client) awaitClosed(ctx context.Context, name string) error {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		closed, err := c.fs.IsFileClosed(ctx, name)
		if closed || err != nil && !errors.Is(err, metadata.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
