package server

import (
	"errors"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/blockmanager"
)

// simple proposes a command of which only success matters.
func (s *Server) simple(c *metadata.Caller, retry namenode.Retry, e *envelope, done func(error)) {
	s.change(c, retry, e, func(_ *namespace.Result, err error) { done(err) })
}

// yesNo proposes a command that answers a boolean.
func (s *Server) yesNo(c *metadata.Caller, retry namenode.Retry, e *envelope, done func(bool, error)) {
	s.change(c, retry, e, func(r *namespace.Result, err error) { done(err == nil && r.OK, err) })
}

// Mkdirs implements namenode.Writer.
func (s *Server) Mkdirs(c metadata.Caller, r namenode.MkdirsRequest, done func(error)) {
	e := newEnvelope()
	if err := namespace.SetTarget(&e.target, r.Path); err != nil {
		done(err)
		return
	}
	e.mkdirs = logpb.Mkdirs{Target: &e.target, Mode: uint32(r.Mode), CreateParent: r.Parents, Unmasked: unmasked(r.Unmasked)}
	e.command.Op = &e.kinds.mkdirs
	s.simple(&c, namenode.Retry{}, e, done)
}

// Create implements namenode.Writer.
func (s *Server) Create(c metadata.Caller, r namenode.CreateRequest, done func(*metadata.FileStatus, error)) {
	e := newEnvelope()
	if err := namespace.SetTarget(&e.target, r.Path); err != nil {
		done(nil, err)
		return
	}
	erasure := uint32(0)
	if r.Policy != "" {
		_, err := s.leading()
		if err == nil {
			erasure, err = s.erasureNamed(r.Policy)
		}
		if err != nil {
			done(nil, err)
			return
		}
		if s.group.Level() < release.ErasureCoding { // all is replicated
			erasure = 0
		}
	}
	if s.config.Properties.MinBlockSize == 0 && r.BlockSize == 0 {
		r.BlockSize = 1 // HDFS's header of a file has no smaller one
	}
	client := r.Client
	e.create = logpb.Create{
		Target: &e.target, Mode: uint32(r.Mode), Unmasked: unmasked(r.Unmasked), ClientName: client, Overwrite: r.Overwrite, Create: r.Create, CreateParent: r.Parents,
		Replication: uint32(max(r.Replication, 0)), BlockSize: r.BlockSize, ClientNode: string(namenode.WriterNode(client)),
		MinBlockSize: max(1, int64(s.config.Properties.MinBlockSize)), // 0 there means no minimum, here HDFS's
		Erasure:      erasure,
		LazyPersist:  s.lazily(&r),
	}
	e.command.Op = &e.kinds.create
	s.change(&c, r.Retry, e, func(result *namespace.Result, err error) {
		if err != nil {
			if result != nil {
				s.expired(result.Expired)
			}
			done(nil, err)
			return
		}
		s.leases.opened(client, s.clock.now())
		done(result.Status, nil)
	})
}

// lazily says whether the file that is asked for is to be lazily persisted; members of an older release do not know that it can be.
func (s *Server) lazily(r *namenode.CreateRequest) bool {
	return r.LazyPersist && s.group.Level() >= release.LazyPersist
}

// Append implements namenode.Writer.
func (s *Server) Append(c metadata.Caller, r namenode.AppendRequest, done func(*namenode.LocatedBlock, *metadata.FileStatus, error)) {
	t, err := target(r.Path)
	if err == nil {
		err = s.readable(c, r.Path)
	}
	if err != nil {
		done(nil, nil, err)
		return
	}
	s.codeFirst(c, &r, func() { s.reopen(c, t, r, done) })
}

// reopen proposes an append.
func (s *Server) reopen(c metadata.Caller, t *logpb.Target, r namenode.AppendRequest, done func(*namenode.LocatedBlock, *metadata.FileStatus, error)) {
	e := newEnvelope()
	e.command.Op = &logpb.Command_Append{Append: &logpb.Append{
		Target: t, ClientName: r.Client, NewBlock: r.NewBlock, ClientNode: string(namenode.WriterNode(r.Client)),
		Tails: r.Tails && s.group.Level() >= release.SealedTails, Exact: s.group.Level() >= release.ExactAppends,
	}}
	s.change(&c, r.Retry, e, func(result *namespace.Result, err error) {
		if err != nil {
			if result != nil {
				s.expired(result.Expired)
			}
			done(nil, nil, err)
			return
		}
		s.leases.opened(r.Client, s.clock.now())
		if result.Block == nil {
			done(nil, result.Status, nil)
			return
		}
		l := &namenode.LocatedBlock{Block: *result.Block, Offset: result.Offset}
		// The answer may be a repeated one: a token is for who writes the block now. An open end that a snapshot has, or that is full, is not written to any
		// more, and has no places.
		written := s.ns.CheckPipeline(c, l.Block, r.Client) == nil
		if written {
			l.Token = s.sign(&c, l.Block.ID, security.WriteBlock)
		}
		if !r.NewBlock && (written || result.Status.Erasure == 0) {
			s.soft.mu.Lock()
			l.Locations, l.Corrupt = s.soft.m.Locate(l.Block.ID, c.Host)
			s.soft.m.Expect(l.Block.ID, l.Locations)
			s.soft.mu.Unlock()
		}
		done(l, result.Status, nil)
	})
}

// readable refuses to reopen a file whose last block nobody has reported yet: the client could not append to it. What it
// cannot find out is left to the state machine.
func (s *Server) readable(c metadata.Caller, path string) error {
	id, err := s.ns.Resolve(c, path)
	if err != nil {
		return nil
	}
	f, ok := s.ns.FileByID(id)
	if !ok || f.UnderConstruction || len(f.Blocks) == 0 {
		return nil
	}
	if f.IsBody(len(f.Blocks) - 1) { // what is appended begins a block
		return nil
	}
	last := f.Blocks[len(f.Blocks)-1]
	s.soft.mu.Lock()
	durable := s.soft.m.Durable(last)
	s.soft.mu.Unlock()
	if last.Length >= f.Status.BlockSize || durable {
		return nil
	}
	return metadata.Errorf(metadata.ErrRetriable, "append: lastBlock=blk_%d_%d of src=%s is COMMITTED but not yet COMPLETE.", last.ID, last.Generation, path)
}

// Rename implements namenode.Writer.
func (s *Server) Rename(c metadata.Caller, retry namenode.Retry, src, dst string, done func(bool, error)) {
	e := newEnvelope()
	e.rename = logpb.Rename{Legacy: true}
	s.rename(&c, retry, src, dst, e, done)
}

// RenameTo implements namenode.Writer.
func (s *Server) RenameTo(c metadata.Caller, retry namenode.Retry, src, dst string, overwrite, toTrash bool, done func(error)) {
	e := newEnvelope()
	e.rename = logpb.Rename{Overwrite: overwrite, ToTrash: toTrash}
	s.rename(&c, retry, src, dst, e, func(_ bool, err error) { done(err) })
}

func (s *Server) rename(c *metadata.Caller, retry namenode.Retry, src, dst string, e *envelope, done func(bool, error)) {
	err := namespace.SetTarget(&e.source, src)
	if err == nil {
		err = namespace.SetTarget(&e.target, dst)
	}
	if err == nil {
		err = s.checkProtected(src)
	}
	if err != nil {
		done(false, err)
		return
	}
	e.rename.Source, e.rename.Target = &e.source, &e.target
	e.command.Op = &e.kinds.rename
	s.change(c, retry, e, func(r *namespace.Result, err error) {
		if !large(r, err) {
			done(err == nil && r.OK, err)
			return
		}
		c, old := e.who(), &e.rename
		op := &logpb.Rename{Source: targetLike(&e.source), Target: targetLike(&e.target), Legacy: old.Legacy, Overwrite: old.Overwrite, ToTrash: old.ToTrash}
		// Only who sends a tree to the trash has to be allowed to delete it; for a quota it is counted whoever's it is.
		s.surveyFirst(surveys, &c, op.Source, op.ToTrash, func(survey uint64, u namespace.Usage, done func(*namespace.Result, error)) {
			op.Survey, op.Names, op.Space, op.Types = survey, u.Names, u.Space, s.typesOf(survey, u)
			e := newEnvelope()
			e.command.Op = &logpb.Command_Rename{Rename: op}
			s.change(&c, retry, e, done)
		}, done)
	})
}

// Delete implements namenode.Writer.
func (s *Server) Delete(c metadata.Caller, retry namenode.Retry, path string, recursive bool, done func(bool, error)) {
	e := newEnvelope()
	err := namespace.SetTarget(&e.target, path)
	if err == nil && recursive { // otherwise it must be empty
		err = s.checkProtected(path)
	}
	if err != nil {
		done(false, err)
		return
	}
	e.delete = logpb.Delete{Target: &e.target, Recursive: recursive}
	e.command.Op = &e.kinds.delete
	s.change(&c, retry, e, func(r *namespace.Result, err error) {
		if !large(r, err) {
			done(err == nil && r.OK, err)
			return
		}
		c, op := e.who(), &logpb.Delete{Target: targetLike(&e.target), Recursive: e.delete.Recursive}
		s.surveyFirst(surveys, &c, op.Target, true, func(survey uint64, u namespace.Usage, done func(*namespace.Result, error)) {
			op.Survey, op.Names, op.Space, op.Types = survey, u.Names, u.Space, s.typesOf(survey, u)
			e := newEnvelope()
			e.command.Op = &logpb.Command_Delete{Delete: op}
			s.change(&c, retry, e, done)
		}, done)
	})
}

// targetLike is a target with another's path, in memory of its own.
func targetLike(t *logpb.Target) *logpb.Target { return &logpb.Target{Base: t.Base, Path: t.Path} }

// large reports whether the answer to a command is that its tree has to be surveyed before.
func large(r *namespace.Result, err error) bool { return r != nil && r.INode != 0 && err != nil }

// surveys is how often a tree is looked at anew because it was changed meanwhile, before the client is told to try again.
const surveys = 5

// surveyed proposes what a tree has to be looked at for. One that is too large to be looked at inside of the command is
// surveyed before, on a goroutine of its own, of which there are few. right: the caller must be allowed to delete it.
func (s *Server) surveyed(left int, c *metadata.Caller, t *logpb.Target, right bool, survey uint64, u namespace.Usage, propose proposal, done func(bool, error)) {
	propose(survey, u, func(r *namespace.Result, err error) {
		if !large(r, err) || left == 0 {
			done(err == nil && r.OK, err)
			return
		}
		s.surveyFirst(left, c, t, right, propose, done)
	})
}

// proposal proposes what a survey, if there was one, has found.
type proposal func(survey uint64, u namespace.Usage, done func(*namespace.Result, error))

// surveyFirst is surveyed for a tree that is known to be large.
func (s *Server) surveyFirst(left int, c *metadata.Caller, t *logpb.Target, right bool, propose proposal, done func(bool, error)) {
	s.aside(c.User, nil, 0, func(err error) {
		var survey uint64
		var u namespace.Usage
		if err == nil {
			survey, u, err = s.survey(*c, t, right)
		}
		if err != nil {
			done(false, err)
			return
		}
		s.surveyed(left-1, c, t, right, survey, u, propose, done)
	})
}

// survey looks whether a caller may delete all of a large tree, if that needs a right, and returns the number that says so to the command, and what
// the tree uses.
func (s *Server) survey(c metadata.Caller, t *logpb.Target, right bool) (uint64, namespace.Usage, error) {
	order := func(op *logpb.SurveyTree) (*namespace.Result, error) {
		e := newEnvelope()
		e.command.Op = &logpb.Command_SurveyTree{SurveyTree: op}
		answer := make(chan *namespace.Result, 1)
		err := s.await(func(done func(error)) {
			s.change(&c, namenode.Retry{}, e, func(r *namespace.Result, err error) {
				answer <- r
				done(err)
			})
		})
		if err != nil {
			return nil, err
		}
		return <-answer, nil
	}
	began, err := order(&logpb.SurveyTree{Target: t})
	if err != nil {
		return 0, namespace.Usage{}, err
	}
	who := c
	who.Superuser = who.Superuser || !right // who may do anything
	u, err := s.ns.Survey(who, began.INode)
	if err != nil {
		_, _ = order(&logpb.SurveyTree{Target: t, End: began.Survey}) // it would end by itself
		return 0, u, err
	}
	return began.Survey, u, nil
}

// SetPermission implements namenode.Writer.
func (s *Server) SetPermission(c metadata.Caller, path string, mode metadata.Mode, done func(error)) {
	t, err := target(path)
	if err != nil {
		done(err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_SetPermission{SetPermission: &logpb.SetPermission{Target: t, Mode: uint32(mode)}}
	s.simple(&c, namenode.Retry{}, e, done)
}

// SetOwner implements namenode.Writer.
func (s *Server) SetOwner(c metadata.Caller, path, owner, group string, done func(error)) {
	t, err := target(path)
	if err != nil {
		done(err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_SetOwner{SetOwner: &logpb.SetOwner{Target: t, Owner: owner, Group: group}}
	s.simple(&c, namenode.Retry{}, e, done)
}

// SetTimes implements namenode.Writer.
func (s *Server) SetTimes(c metadata.Caller, path string, mtime, atime metadata.Time, done func(error)) {
	t, err := target(path)
	if err != nil {
		done(err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_SetTimes{SetTimes: &logpb.SetTimes{Target: t, Mtime: int64(mtime), Atime: int64(atime)}}
	s.simple(&c, namenode.Retry{}, e, done)
}

// SetReplication implements namenode.Writer.
func (s *Server) SetReplication(c metadata.Caller, path string, replication int, done func(bool, error)) {
	t, err := target(path)
	if err == nil {
		err = namespace.CheckReplication(uint32(max(replication, 0)), path)
	}
	if err != nil {
		done(false, err)
		return
	}
	e := newEnvelope()
	e.command.Op = &logpb.Command_SetReplication{SetReplication: &logpb.SetReplication{Target: t, Replication: uint32(max(replication, 0))}}
	s.yesNo(&c, namenode.Retry{}, e, done)
}

// ReportBad implements namenode.Writer. Whoever may not read a block's file has not read the block, and is not heard. What is
// heard makes replicas suspect until their datanodes have verified them; it is soft state, a leader that does not know
// asks again by the next reader.
func (s *Server) ReportBad(c metadata.Caller, blocks []namenode.LocatedBlock, done func(error)) {
	if _, err := s.leading(); err != nil {
		done(err)
		return
	}
	var refused error
	unheard := 0
	for _, b := range blocks {
		path, ok := s.ns.FileOfBlock(b.Block.ID)
		if !ok {
			continue // deleted meanwhile
		}
		if err := s.ns.CheckAccess(c, path, metadata.Read); err != nil {
			if refused == nil && !errors.Is(err, metadata.ErrNotExist) {
				refused = err
			}
			continue
		}
		for _, l := range b.Locations {
			s.soft.mu.Lock()
			heard := s.soft.m.Suspect(time.Now(), l.Node.ID, b.Block, c.User)
			s.soft.mu.Unlock()
			switch heard {
			case blockmanager.Suspected:
				s.log.Warn("a reader says that a replica is corrupt, its datanode is asked to verify it", "block", b.Block, "node", l.Node.ID, "user", c.User)
			case blockmanager.TooMany:
				unheard++
			}
		}
	}
	if unheard > 0 {
		s.log.Warn("too many replicas are suspect, a reader is not heard", "replicas", unheard, "user", c.User)
	}
	s.soft.mu.Lock()
	due := s.soft.m.Due(time.Now())
	s.soft.mu.Unlock()
	s.kick(due)
	done(refused)
}
