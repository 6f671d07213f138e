package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
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

// Output copies what the programs of a job have written so far, container by container: their standard output to stdout and
// their standard error to stderr. What the application master wrote goes to stderr, if master is set. Where
// several containers have written, a line on stderr says whose turn it is.
func (c *Client) Output(ctx context.Context, job JobStatus, master bool, stdout, stderr io.Writer) error {
	shown := slices.DeleteFunc(slices.Clone(job.Containers), func(k JobContainer) bool { return k.Started == 0 || k.Master && !master })
	for _, k := range shown {
		if len(shown) > 1 {
			fmt.Fprintf(stderr, "== %s on %s\n", k.ID, k.Node)
		}
		out := stdout
		if k.Master {
			out = stderr
		}
		if err := errors.Join(c.copyLog(ctx, path.Join(k.LogDir, "stdout"), out), c.copyLog(ctx, path.Join(k.LogDir, "stderr"), stderr)); err != nil {
			return err
		}
	}
	return nil
}

// copyLog copies a file of a log; one that is not there is empty.
func (c *Client) copyLog(ctx context.Context, name string, w io.Writer) error {
	r, err := c.fs.Open(ctx, name)
	if errors.Is(err, metadata.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}
