package dfs

import (
	"context"
)

// ReadFile returns the contents of a file.
func (c *Client) ReadFile(ctx context.Context, name string) ([]byte, error) {
	return c.readOne(ctx, name, 0, 0)
}

// WriteFile makes a file with the given contents; one that is there is replaced only if overwrite. A file that cannot be
// finished, or is not when ctx ends, is removed.
func (c *Client) WriteFile(ctx context.Context, name string, data []byte, overwrite bool) error {
	w, err := c.Create(ctx, name, CreateOptions{Overwrite: overwrite, Late: len(data) <= c.small.most()})
	if err != nil {
		return err
	}
	if w.held != nil && len(data) <= w.held.most {
		w.held.data = data
		done, failed := w.finishHeld()
		if done || w.INode() == 0 { // a failure leaves nothing that would have to be removed
			w.settled, w.closed = true, true
			w.end()
			return failed
		}
		if err = failed; err == nil {
			err = w.Close()
		}
	} else if _, err = w.Write(data); err == nil {
		err = w.Close()
	}
	if err != nil {
		w.Abort()
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.times.abort)
		defer cancel()
		_, _ = c.Delete(after, name, false) // err says more
		if ctx.Err() != nil {
			err = wrap("write", name, ctx.Err())
		}
	}
	return err
}
