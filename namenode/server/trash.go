package server

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// The emptier of the trash (Hadoop's TrashPolicyDefault): once per fs.trash.checkpoint.interval, at whole multiples of it,
// the leader removes the checkpoints of every user's trash that are older than fs.trash.interval, and makes what was
// removed since the last time into a new one. So a removed file stays for the one interval and at most
// the other longer.

// checkpointForm is the name of a checkpoint: yyMMddHHmmss, local time, as clients make them too.
const checkpointForm = "060102150405"

// maxCheckpointTries is how many checkpoints of one second are told apart.
const maxCheckpointTries = 1000

// trashIntervals are how long a checkpoint is kept, and how often one is made. 0: there is no trash.
func trashIntervals(p *config.Properties) (keep, every time.Duration) {
	minutes := p.TrashCheckpoint
	if minutes == 0 || minutes > p.TrashInterval {
		minutes = p.TrashInterval
	}
	return time.Duration(p.TrashInterval) * time.Minute, time.Duration(minutes) * time.Minute
}

// trashDue reports whether an interval ended between two times.
func trashDue(last, now time.Time, interval time.Duration) bool {
	return interval > 0 && now.Truncate(interval).After(last.Truncate(interval))
}

// checkTrash empties the trash when it is time, on a goroutine of its own, one at a time.
func (s *Server) checkTrash(r *reign, now time.Time) {
	keep, every := trashIntervals(&s.config.Properties)
	if !trashDue(r.trashAt, now, every) || !r.emptying.CompareAndSwap(false, true) {
		return
	}
	r.trashAt = now
	go func() {
		defer r.emptying.Store(false)
		if err := s.emptyTrash(now, keep); err != nil && s.reign.Load() == r {
			s.log.Warn("emptying the trash", "error", err)
		}
	}()
}

// emptyTrash does it for all users. The error joins those of the users' trashes; one does not keep the others from being
// emptied.
func (s *Server) emptyTrash(now time.Time, keep time.Duration) error {
	c := metadata.Caller{User: s.config.Door.Daemon(), Superuser: true}
	users, err := s.entries(c, "/user")
	if err != nil {
		return err
	}
	var failures []error
	for _, user := range users {
		if user.IsDir() {
			failures = append(failures, s.emptyUser(c, "/user/"+user.Name+"/.Trash", now, keep))
		}
	}
	return errors.Join(failures...)
}

// entries lists a directory; one that is missing has none.
func (s *Server) entries(c metadata.Caller, path string) ([]metadata.FileStatus, error) {
	var all []metadata.FileStatus
	for after := ""; ; {
		if s.reign.Load() == nil {
			return nil, namenode.ErrStandbyRead
		}
		l, err := s.ns.List(c, path, after, 0)
		if err != nil || l == nil {
			return nil, err
		}
		all = append(all, l.Entries...)
		if l.Remaining == 0 || len(l.Entries) == 0 {
			return all, nil
		}
		after = l.Entries[len(l.Entries)-1].Name
	}
}

func (s *Server) emptyUser(c metadata.Caller, root string, now time.Time, keep time.Duration) error {
	list, err := s.entries(c, root)
	if err != nil {
		return err
	}
	current := false
	for _, e := range list {
		if e.Name == "" {
			return nil // a file of that name
		}
		if e.Name == "Current" {
			current = true
			continue
		}
		stamp, _, _ := strings.Cut(e.Name, "-")
		made, err := time.ParseInLocation(checkpointForm, stamp, time.Local)
		if err != nil || now.Sub(made) <= keep {
			continue // nothing that a checkpoint made, or too young
		}
		if err := s.await(func(done func(error)) {
			s.Delete(c, namenode.Retry{}, root+"/"+e.Name, true, func(_ bool, err error) { done(err) })
		}); err != nil {
			return fmt.Errorf("%s/%s: %w", root, e.Name, err)
		}
	}
	if !current {
		return nil
	}
	base := root + "/" + now.Local().Format(checkpointForm)
	for try, name := 1, base; ; try++ {
		err := s.await(func(done func(error)) {
			s.RenameTo(c, namenode.Retry{}, root+"/Current", name, false, false, done)
		})
		switch {
		case errors.Is(err, metadata.ErrExist) && try < maxCheckpointTries:
			name = fmt.Sprintf("%s-%d", base, try)
			continue
		case errors.Is(err, metadata.ErrNotExist): // the user was faster
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", root, err)
		}
		return nil
	}
}

// await turns a call with a callback into one that returns.
func (s *Server) await(call func(func(error))) error {
	done := make(chan error, 1)
	call(func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-s.stopped:
		return namenode.ErrStandbyWrite
	}
}
