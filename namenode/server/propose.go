package server

import (
	"errors"
	"sync"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/raftstore"
	"github.com/gohops/hops/namenode"
)

// envelope is a command with its caller on its way. Its memory serves another one when what became of the command has been told.
type envelope struct {
	command logpb.Command
	caller  logpb.Caller
	// The operations of most changes, and what they are about. Who makes one sets all of it.
	source, target logpb.Target
	mkdirs         logpb.Mkdirs
	create         logpb.Create
	complete       logpb.Complete
	rename         logpb.Rename
	delete         logpb.Delete
	kinds          struct {
		mkdirs   logpb.Command_Mkdirs
		create   logpb.Command_Create
		complete logpb.Command_Complete
		rename   logpb.Command_Rename
		delete   logpb.Command_Delete
	}

	server   *Server
	waits    *metadata.Waits
	changed  *metadata.Changed // of who asked
	resolved namespace.Resolution
	data     []byte // the command, encoded
	done     func(*namespace.Result, error)
	landed   func(any, error) // land
}

var envelopes sync.Pool

// newEnvelope is for one change, which is the end of it.
func newEnvelope() *envelope {
	if e, ok := envelopes.Get().(*envelope); ok {
		return e
	}
	e := new(envelope)
	e.kinds.mkdirs.Mkdirs, e.kinds.create.Create, e.kinds.complete.Complete = &e.mkdirs, &e.create, &e.complete
	e.kinds.rename.Rename, e.kinds.delete.Delete = &e.rename, &e.delete
	e.landed = e.land
	return e
}

// keptData is of how large a command the memory is kept.
const keptData = 4 << 10

func (e *envelope) release() {
	e.command, e.caller = logpb.Command{}, logpb.Caller{}
	e.server, e.waits, e.changed, e.done, e.resolved = nil, nil, nil, nil, namespace.Resolution{}
	if cap(e.data) > keptData {
		e.data = nil
	}
	envelopes.Put(e)
}

// who is in whose name the command is, as far as another one needs to know.
func (e *envelope) who() metadata.Caller {
	return metadata.Caller{User: e.caller.User, Groups: e.caller.Groups, Superuser: e.caller.Superuser, Host: e.caller.Host, Waits: e.waits, Changed: e.changed}
}

// change proposes a command in somebody's name, unless nothing may be changed now. done runs on the group's goroutine;
// with an error of the state machine the result comes too. The envelope is done's until it returns, and nobody's then.
func (s *Server) change(c *metadata.Caller, retry namenode.Retry, e *envelope, done func(*namespace.Result, error)) {
	e.server, e.done, e.waits, e.changed = s, done, c.Waits, c.Changed
	if s.reign.Load() == nil {
		e.end(nil, namenode.ErrStandbyWrite)
		return
	}
	if err := s.safe.check(s); err != nil {
		e.end(nil, err)
		return
	}
	e.caller.User, e.caller.Groups, e.caller.Superuser, e.caller.Host = c.User, c.Groups, c.Superuser, c.Host
	e.command.Caller = &e.caller
	if len(retry.ClientID) == 16 {
		e.command.ClientId, e.command.CallId = retry.ClientID, retry.CallID
	}
	switch {
	case s.group.Level() < release.Resolved, e.command.GetConcat() != nil && s.group.Level() < release.ResolvedConcat:
	case s.paths.Load() > 0: // much is moved just now
		s.paths.Add(-1)
	default:
		e.resolved = s.ns.ResolveTargets(*c, &e.command)
	}
	e.propose()
}

func (e *envelope) propose() {
	var err error
	if e.data, err = e.server.encode(e.data, &e.command); err != nil {
		e.end(nil, err)
		return
	}
	e.server.group.ProposeAsync(e.data, e.waits, e.landed)
}

// land takes what became of the command.
func (e *envelope) land(result any, err error) {
	r, err := e.server.outcome(result, err)
	if e.resolved.Done() {
		e.resolved.Undo()
		e.resolved = namespace.Resolution{}
		if errors.Is(err, namespace.ErrStale) {
			e.server.paths.Store(pathsAfterStale)
			e.propose()
			return
		}
	}
	e.end(r, err)
}

func (e *envelope) end(r *namespace.Result, err error) {
	if e.changed != nil && r != nil && err == nil {
		*e.changed = r.Changed()
	}
	e.done(r, err)
	e.release()
}

// pathsAfterStale is how many commands are proposed with their paths after one whose paths led elsewhere when it was applied: where directories are
// moved all the time, few commands are proposed twice.
const pathsAfterStale = 1024

// send proposes a command of the namenode's own. Safe mode does not hold it.
func (s *Server) send(cmd *logpb.Command, done func(*namespace.Result, error)) {
	data, err := s.encode(nil, cmd)
	if err != nil {
		done(nil, err)
		return
	}
	s.group.ProposeAsync(data, nil, func(result any, err error) { done(s.outcome(result, err)) })
}

// encode encodes a command of this moment, into buf if that is large enough.
func (s *Server) encode(buf []byte, cmd *logpb.Command) ([]byte, error) {
	now := time.Now()
	cmd.Now, cmd.LogTime = now.UnixMilli(), int64(s.clock.log(now))
	size := cmd.SizeVT()
	if cap(buf) < size {
		buf = make([]byte, size, size+size/2)
	}
	buf = buf[:size]
	_, err := cmd.MarshalToSizedBufferVT(buf)
	return buf, err
}

// outcome is what the group answers in the namespace's words.
func (s *Server) outcome(result any, err error) (*namespace.Result, error) {
	if err != nil {
		return nil, s.notDone(err)
	}
	r, ok := result.(*namespace.Result)
	if !ok { // an entry that was in the state before: not one that this process has just proposed
		return nil, metadata.Errorf(metadata.ErrRetriable, "the outcome of the request is not known, ask again")
	}
	return r, r.Err
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
		defer s.caught(fn)
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
	s.beside(fn, func() {
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
	})
}

// target is the form in which commands carry a path.
func target(path string) (*logpb.Target, error) { return namespace.TargetOf(path) }

func blockOf(b metadata.Block) *logpb.Block {
	return &logpb.Block{Id: int64(b.ID), Generation: uint64(b.Generation), Length: b.Length}
}
