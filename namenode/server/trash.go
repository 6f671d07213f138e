package server

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
)

// The emptier of the trash (Hadoop's TrashPolicyDefault): once per fs.trash.checkpoint.interval, at whole multiples of it,
// the leader removes the checkpoints of every user's trash that are older than fs.trash.interval, and makes what was
// removed since the last time into a new one. So a removed file stays for the one interval and at most
// the other longer.
//
// How old a checkpoint is its name says, by the wall clock and in the zone of who made it. A leader with a wrong clock, or in another zone, would remove what
// everybody has just trashed. So a checkpoint has to be so old in log time as well, since an emptier has seen it first, of which it has a note.

// checkpointForm is the name of a checkpoint: yyMMddHHmmss, local time, as clients make them too.
const checkpointForm = "060102150405"

// trashNote is the attribute of a checkpoint in which an emptier notes when it has seen that first: in log time, behind the number of the inode, so that the
// note of a copy is none.
var trashNote = metadata.XAttr{Namespace: metadata.XAttrTrusted, Name: "hops.trashed"}

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

// emptyUser does it for a user. What fails of a checkpoint keeps neither the others, nor a new one.
func (s *Server) emptyUser(c metadata.Caller, root string, now time.Time, keep time.Duration) error {
	list, err := s.entries(c, root)
	if err != nil {
		return err
	}
	at := s.clock.now()
	if at == 0 { // this namenode leads no more
		return namenode.ErrStandbyWrite
	}
	var failures []error
	failed := func(name string, err error) {
		if err != nil {
			failures = append(failures, fmt.Errorf("%s/%s: %w", root, name, err))
		}
	}
	current := false
	for i := range list {
		e := &list[i]
		if e.Name == "" {
			return nil // a file of that name
		}
		if e.Name == "Current" { // what it has is trashed anew, whatever it was before
			current = true
			failed(e.Name, s.noteTrashed(c, root, e, at))
			continue
		}
		stamp, _, _ := strings.Cut(e.Name, "-")
		made, err := time.ParseInLocation(checkpointForm, stamp, time.Local)
		if err != nil {
			continue // nothing that a checkpoint made
		}
		since, noted, err := s.trashedSince(c, root, e)
		switch {
		case err != nil:
		case !noted || since > at:
			err = s.noteTrashed(c, root, e, at)
		case at-since > namespace.LogTime(keep.Milliseconds()) && (now.Sub(made) > keep || made.After(now)): // a name of times to come says nothing
			err = s.await(func(done func(error)) {
				s.Delete(c, namenode.Retry{}, root+"/"+e.Name, true, func(_ bool, err error) { done(err) })
			})
		}
		if !errors.Is(err, metadata.ErrNotExist) { // the user was faster
			failed(e.Name, err)
		}
	}
	if current {
		failures = append(failures, s.makeCheckpoint(c, root, now))
	}
	return errors.Join(failures...)
}

// trashedSince is the log time at which an emptier has seen a checkpoint first, if it is known.
func (s *Server) trashedSince(c metadata.Caller, root string, e *metadata.FileStatus) (at namespace.LogTime, noted bool, err error) {
	attributes, err := s.ns.XAttrs(c, root+"/"+e.Name, nil)
	if err != nil {
		return 0, false, err
	}
	for _, a := range attributes {
		if a.FullName() != trashNote.FullName() {
			continue
		}
		inode, text, _ := strings.Cut(string(a.Value), " ")
		ms, err := strconv.ParseInt(text, 10, 64)
		return namespace.LogTime(ms), err == nil && inode == strconv.FormatUint(uint64(e.ID), 10), nil
	}
	return 0, false, nil
}

// noteTrashed notes that an emptier has seen a checkpoint at a log time.
func (s *Server) noteTrashed(c metadata.Caller, root string, e *metadata.FileStatus, at namespace.LogTime) error {
	note := trashNote
	note.Value = fmt.Appendf(nil, "%d %d", e.ID, at)
	return s.await(func(done func(error)) {
		s.SetXAttr(c, namenode.SetXAttrRequest{Path: root + "/" + e.Name, Attribute: note, Create: true, Replace: true}, done)
	})
}

// makeCheckpoint makes a checkpoint of what was removed since the last one.
func (s *Server) makeCheckpoint(c metadata.Caller, root string, now time.Time) error {
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
