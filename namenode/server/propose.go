package server

import (
	"errors"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode"
)

// envelope is a command with its caller in one allocation.
type envelope struct {
	command logpb.Command
	caller  logpb.Caller
}

// change proposes a command in somebody's name, unless nothing may be changed now. done runs on the group's goroutine;
// with an error of the state machine the result comes too.
func (s *Server) change(c *metadata.Caller, retry namenode.Retry, e *envelope, done func(*namespace.Result, error)) {
	if s.reign.Load() == nil {
		done(nil, namenode.ErrStandbyWrite)
		return
	}
	if err := s.safe.check(s); err != nil {
		done(nil, err)
		return
	}
	e.caller.User, e.caller.Groups, e.caller.Superuser, e.caller.Host = c.User, c.Groups, c.Superuser, c.Host
	e.command.Caller = &e.caller
	if len(retry.ClientID) == 16 {
		e.command.ClientId, e.command.CallId = retry.ClientID, retry.CallID
	}
	if s.group.Level() < release.Resolved {
		s.sendFor(&e.command, c.Waits, done)
		return
	}
	if s.paths.Load() > 0 { // much is moved just now
		s.paths.Add(-1)
		s.sendFor(&e.command, c.Waits, done)
		return
	}
	resolved := s.ns.ResolveTargets(*c, &e.command)
	if !resolved.Done() {
		s.sendFor(&e.command, c.Waits, done)
		return
	}
	waits := c.Waits
	s.sendFor(&e.command, waits, func(r *namespace.Result, err error) {
		resolved.Undo()
		if errors.Is(err, namespace.ErrStale) {
			s.paths.Store(pathsAfterStale)
			s.sendFor(&e.command, waits, done)
			return
		}
		done(r, err)
	})
}

// pathsAfterStale is how many commands are proposed with their paths after one whose paths led elsewhere when it was applied: where directories are
// moved all the time, few commands are proposed twice.
const pathsAfterStale = 1024

// send proposes a command of the namenode's own. Safe mode does not hold it.
func (s *Server) send(cmd *logpb.Command, done func(*namespace.Result, error)) {
	s.sendFor(cmd, nil, done)
}

// sendFor is send; waits, if not nil, is told what it waited for.
func (s *Server) sendFor(cmd *logpb.Command, waits *metadata.Waits, done func(*namespace.Result, error)) {
	cmd.Now, cmd.LogTime = int64(s.clock.wall()), int64(s.clock.log(time.Now()))
	data, err := cmd.MarshalVT()
	if err != nil {
		done(nil, err)
		return
	}
	s.group.ProposeAsync(data, waits, func(result any, err error) {
		if err != nil {
			done(nil, s.notDone(err))
			return
		}
		r, ok := result.(*namespace.Result)
		if !ok { // an entry that was in the state before: not one that this process has just proposed
			done(nil, metadata.Errorf(metadata.ErrRetriable, "the outcome of the request is not known, ask again"))
			return
		}
		done(r, r.Err)
	})
}

// notDone words what the group answers when it does not carry a command out.
func (s *Server) notDone(err error) error {
	switch {
	case errors.Is(err, metadata.ErrStandby):
		return namenode.ErrStandbyWrite
	case errors.Is(err, raftstore.ErrUnknown):
		// Perhaps it is done, perhaps not. The client asks again with the same identity, and the retry cache knows.
		if s.reign.Load() == nil {
			return namenode.ErrStandbyWrite
		}
		return metadata.Errorf(metadata.ErrRetriable, "%v", err)
	case errors.Is(err, metadata.ErrNoSpace):
		return metadata.Errorf(metadata.ErrSafeMode, "%s", lowResources(err))
	}
	return err
}

// read calls fn when the local state is new enough to answer a caller's read.
func (s *Server) read(c *metadata.Caller, fn func(error)) {
	if c.Local {
		fn(nil)
		return
	}
	if s.reign.Load() == nil {
		fn(namenode.ErrStandbyRead)
		return
	}
	s.group.Read(func(err error) {
		if err != nil {
			if errors.Is(err, metadata.ErrStandby) {
				err = namenode.ErrStandbyRead
			}
			fn(err)
			return
		}
		fn(nil)
	})
}

// readLong is read for work that would hold up other reads: it gets a goroutine of its own, of which there are few.
func (s *Server) readLong(c *metadata.Caller, fn func(error)) {
	s.read(c, func(err error) {
		if err != nil {
			fn(err)
			return
		}
		s.aside(c.User, nil, 0, fn)
	})
}

// aside runs fn on a goroutine when there is room for an answer of n bytes, and for one more long read of the user. Whoever
// waits for that holds nothing but its request.
func (s *Server) aside(user string, admit namenode.Admit, n int64, fn func(error)) {
	go func() {
		if admit != nil {
			if err := admit(n); err != nil {
				fn(err)
				return
			}
		}
		if s.long.take(user, s.stopped) {
			defer s.long.give(user)
		}
		fn(nil)
	}()
}

// target is the form in which commands carry a path.
func target(path string) (*logpb.Target, error) { return namespace.TargetOf(path) }

func blockOf(b metadata.Block) *logpb.Block {
	return &logpb.Block{Id: int64(b.ID), Generation: uint64(b.Generation), Length: b.Length}
}
