package server

import (
	"context"
	"errors"
	"path"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// LogTree is the logs of all users, for whoever may remove them.
type LogTree interface {
	// List lists a directory. Error: metadata.ErrNotExist among others.
	List(ctx context.Context, dir string) ([]metadata.FileStatus, error)
	// Remove removes a directory with what is in it.
	Remove(ctx context.Context, dir string) error
}

// DFSLogTree is the file system's, through a client of a superuser, which the function keeps.
func DFSLogTree(client func() (*dfs.Client, error)) LogTree { return dfsLogTree(client) }

type dfsLogTree func() (*dfs.Client, error)

// List implements LogTree.
func (t dfsLogTree) List(ctx context.Context, dir string) ([]metadata.FileStatus, error) {
	c, err := t()
	if err != nil {
		return nil, err
	}
	return c.List(ctx, dir)
}

// Remove implements LogTree.
func (t dfsLogTree) Remove(ctx context.Context, dir string) error {
	c, err := t()
	if err != nil {
		return err
	}
	_, err = c.Delete(ctx, dir, true)
	return err
}

const (
	// sweepEvery is how often old logs are looked for, and sweepFirst how long after the beginning of a reign for the first time.
	sweepEvery = time.Hour
	sweepFirst = time.Minute
)

// sweep removes old logs for as long as the reign lasts.
func (r *reign) sweep() {
	if r.s.config.LogTree == nil {
		return
	}
	timer := time.NewTimer(sweepFirst)
	defer timer.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-timer.C:
		}
		removed, err := r.s.removeOldLogs(r.ctx, r.s.clock.now())
		if removed > 0 {
			r.s.log.Info("old logs removed", "applications", removed, "root", r.s.config.LogRoot, "retention", r.s.config.LogRetention)
		}
		if err != nil && r.ctx.Err() == nil {
			r.s.log.Warn("old logs are not all removed, trying again", "in", sweepEvery, "err", err)
		}
		timer.Reset(sweepEvery)
	}
}

// removeOldLogs removes the directories of applications that have ended longer ago than the retention. One that was
// forgotten meanwhile counts from the last change below its directory. What bears no id of this cluster stays: it is not
// known whether it lives. It goes on after an error and returns all of them.
//
// The retention counts back from now, or from the last time that somebody's first log of an application came, if that is
// earlier. That is by the file system's clock: ours alone, which may be wrong, removes nothing. So the last logs of a
// cluster that rests stay until it is used again.
func (s *Server) removeOldLogs(ctx context.Context, now time.Time) (removed int, err error) {
	users, err := s.config.LogTree.List(ctx, s.config.LogRoot)
	if errors.Is(err, metadata.ErrNotExist) {
		return 0, nil
	}
	var errs []error
	fail := func(err error) {
		if err != nil && !errors.Is(err, metadata.ErrNotExist) && len(errs) < 10 {
			errs = append(errs, err)
		}
	}
	fail(err)
	var used metadata.Time
	for _, user := range users {
		used = max(used, user.MTime)
	}
	limit := min(metadata.TimeOf(now), used) - metadata.Time(s.config.LogRetention.Milliseconds())
	for _, user := range users {
		if !user.IsDir() || ctx.Err() != nil {
			continue
		}
		dir := path.Join(s.config.LogRoot, user.Name)
		apps, err := s.config.LogTree.List(ctx, dir)
		fail(err)
		view := s.state.View() // after the list: what is in that was submitted before
		for _, app := range apps {
			id, err := rm.ParseApplicationID(app.Name)
			if err != nil || !app.IsDir() || !view.Ours(id) || ctx.Err() != nil {
				continue
			}
			name := path.Join(dir, app.Name)
			if a := view.Application(id); a != nil {
				if !a.State.Final() || a.Live > 0 || a.Finished > limit {
					continue
				}
			} else if old, err := s.unchanged(ctx, name, app, limit, 2); !old {
				fail(err)
				continue
			}
			if err := s.config.LogTree.Remove(ctx, name); err != nil {
				fail(err)
				continue
			}
			removed++
		}
	}
	return removed, errors.Join(append(errs, ctx.Err())...)
}

// unchanged reports whether nothing in a directory, to some depth, was changed after a time or is being written.
func (s *Server) unchanged(ctx context.Context, name string, what metadata.FileStatus, since metadata.Time, depth int) (bool, error) {
	if what.MTime > since || what.UnderConstruction {
		return false, nil
	}
	if !what.IsDir() || depth == 0 {
		return true, nil
	}
	entries, err := s.config.LogTree.List(ctx, name)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if old, err := s.unchanged(ctx, path.Join(name, e.Name), e, since, depth-1); !old {
			return false, err
		}
	}
	return true, nil
}
