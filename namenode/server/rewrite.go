package server

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"strconv"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
)

// A file gets another form while it is there: groups take the place of its open end, or all of it is coded, or replicated. The same bytes are written to a
// file beside it, whose blocks one command then puts where the old ones were.

// rewrites is the directory of the files that are copied to, one at most for each file, named by its inode. They count for no quota, so that who writes one has its inode
// and its lease for that, and nothing else: whose it is reaches it by no path, neither to append to it later nor to make it look younger than it is.
const (
	rewrites     = "/system/rewrites"
	rewritesMode = metadata.Mode(0o700)
)

// rewriteStays is how long a file that was copied to stays there when it is closed and nobody has exchanged it.
const rewriteStays = 10 * time.Minute

// myself acts for the namenode.
func (s *Server) myself() metadata.Caller {
	return metadata.Caller{User: s.config.Door.Daemon(), Superuser: true}
}

// rewritten is the file that one in the directory of rewrites is a copy of.
func (s *Server) rewritten(name string) (*namespace.FileInfo, bool) {
	dir, base := path.Split(name)
	if dir != rewrites+"/" {
		return nil, false
	}
	id, err := strconv.ParseUint(base, 10, 64)
	if err != nil {
		return nil, false
	}
	return s.ns.FileByID(metadata.INodeID(id))
}

// placing is the storage policy of a file's blocks: that of the file that they will be of.
func (s *Server) placing(f *namespace.FileInfo) uint8 {
	if of, ok := s.rewritten(f.Path); ok {
		return of.Policy
	}
	return f.Policy
}

// mayRewrite refuses to rewrite while members may run that do not know it.
func (s *Server) mayRewrite() error {
	_, err := s.leading()
	if err == nil {
		err = s.safe.check(s)
	}
	if err == nil && s.group.Level() < release.SealedTails {
		err = metadata.Errorf(metadata.ErrUnsupported, "rewriting files with an erasure coding policy needs a cluster of level %d: raise it (`hops cluster finalize`)", release.SealedTails)
	}
	return err
}

// BeginRewrite implements namenode.Erasure.
func (s *Server) BeginRewrite(c metadata.Caller, r namenode.RewriteRequest, done func(*namenode.Rewrite, error)) {
	err := s.mayRewrite()
	var id metadata.INodeID
	if err == nil {
		id, err = s.file(c, r.File)
	}
	if err != nil {
		done(nil, err)
		return
	}
	f, ok := s.ns.FileByID(id)
	if !ok {
		done(nil, metadata.Errorf(metadata.ErrNotExist, "Path is not a file: %s (inode %d)", r.File.Path, id))
		return
	}
	erasure, replication := 1+uint32(f.Status.Erasure), int(f.Status.Replication)
	if r.Tail {
		n := len(f.Blocks)
		if err = s.ns.CheckLease(c, id, r.Client); err == nil && (f.Status.Erasure == 0 || n == 0 || f.Blocks[n-1].ID.Striped()) {
			err = metadata.Errorf(metadata.ErrInvalidArgument, "%s has no open end that could be sealed", f.Path)
		}
	} else {
		erasure, replication, err = s.otherForm(c, f, r)
	}
	if err != nil {
		done(nil, err)
		return
	}
	s.copyBeside(c, f, r.Retry, r.Client, erasure, replication, true, func(made *metadata.FileStatus, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		done(&namenode.Rewrite{Status: *made, Blocks: namespace.BlocksSum(f.Blocks), Length: f.Status.Length}, nil)
	})
}

// otherForm is how a file that is to be converted will be stored.
func (s *Server) otherForm(c metadata.Caller, f *namespace.FileInfo, r namenode.RewriteRequest) (erasure uint32, replication int, err error) {
	name := r.File.Path
	if r.File.INode != 0 { // then it is that file, whatever path is named beside it
		name = f.Path
	}
	if err = s.ns.CheckChange(c, name); err == nil {
		err = s.ns.CheckAccess(c, name, metadata.Read)
	}
	if err == nil && f.UnderConstruction {
		err = metadata.Errorf(metadata.ErrBeingCreated, "%s is being written by %s: it can be converted when it is closed", f.Path, f.Holder)
	}
	if err == nil {
		erasure, err = s.erasureNamed(r.Policy)
	}
	if replication = r.Replication; replication == 0 || erasure > 1 {
		replication = s.Defaults().Replication
	}
	if err == nil && erasure > 0 {
		err = s.ns.CheckConvert(f.Status.ID, metadata.ErasurePolicyID(erasure-1), uint16(min(max(replication, 1), math.MaxUint16)))
	}
	return erasure, replication, err
}

// besidePath is where the copy of a file is.
func besidePath(f *namespace.FileInfo) string {
	return rewrites + "/" + strconv.FormatUint(uint64(f.Status.ID), 10)
}

// copyBeside makes the file that f is copied to. One that is there is replaced, if that is wanted: whoever writes it finds it deleted. Else it is an error as for any file that is made.
func (s *Server) copyBeside(
	c metadata.Caller, f *namespace.FileInfo, retry namenode.Retry, client string, erasure uint32, replication int, replace bool, done func(*metadata.FileStatus, error),
) {
	if _, ok := s.rewritten(f.Path); ok {
		done(nil, metadata.Errorf(metadata.ErrInvalidArgument, "%s is itself what a file is copied to", f.Path))
		return
	}
	t, err := target(besidePath(f))
	if err != nil {
		done(nil, err)
		return
	}
	s.makeRewrites(func(err error) {
		if err != nil {
			done(nil, err)
			return
		}
		writer := c
		writer.Superuser = true // to write there; the file is the caller's
		e := newEnvelope()
		e.command.Op = &logpb.Command_Create{Create: &logpb.Create{
			Target: t, Mode: 0o600, ClientName: client, Overwrite: replace, Create: true, Replication: uint32(max(replication, 1)), BlockSize: f.Status.BlockSize,
			ClientNode: string(namenode.WriterNode(client)), MinBlockSize: 1, Erasure: erasure,
		}}
		s.change(&writer, retry, e, func(result *namespace.Result, err error) {
			if err != nil {
				done(nil, err)
				return
			}
			s.leases.opened(client, s.clock.now())
			done(result.Status, nil)
		})
	})
}

// makeRewrites makes the directory if it is missing, and closes one that is open to others.
func (s *Server) makeRewrites(done func(error)) {
	st, err := s.ns.Stat(s.myself(), rewrites)
	switch {
	case err != nil || st == nil:
		s.Mkdirs(s.myself(), namenode.MkdirsRequest{Path: path.Dir(rewrites), Mode: 0o711, Parents: true}, func(err error) {
			if err != nil {
				done(err)
				return
			}
			s.Mkdirs(s.myself(), namenode.MkdirsRequest{Path: rewrites, Mode: rewritesMode, Parents: true}, done)
		})
	case st.Mode&^rewritesMode != 0:
		s.SetPermission(s.myself(), rewrites, rewritesMode, done)
	default:
		done(nil)
	}
}

// mayGrow refuses another block to a copy that is as long already as the file that it is of. previous is the block that its writer has finished, if there is one.
func (s *Server) mayGrow(f *namespace.FileInfo, previous *metadata.Block) error {
	of, ok := s.rewritten(f.Path)
	if !ok {
		return nil
	}
	length, most := f.Status.Length, of.Status.Length
	if n := len(f.Blocks); n > 0 && previous != nil && previous.ID == f.Blocks[n-1].ID {
		length += previous.Length - f.Blocks[n-1].Length
	}
	if of.UnderConstruction { // the end of it that is sealed may be longer than is known
		most += of.Status.BlockSize
	}
	if length < most {
		return nil
	}
	return metadata.Errorf(metadata.ErrIO, "%s has %d bytes and is a copy of %s, which has %d: it gets no more blocks", f.Path, length, of.Path, of.Status.Length)
}

// EndRewrite implements namenode.Erasure.
func (s *Server) EndRewrite(c metadata.Caller, r namenode.EndRewriteRequest, done func(*namenode.LocatedBlock, error)) {
	err := s.mayRewrite()
	e := newEnvelope()
	var id metadata.INodeID
	switch {
	case err != nil:
	case r.Tail != nil:
		if id, err = s.file(c, r.File); err == nil {
			e.command.Op = &logpb.Command_SealTail{SealTail: &logpb.SealTail{Inode: uint64(id), ClientName: r.Client, Tail: blockOf(*r.Tail), Source: uint64(r.Source)}}
		}
	case r.File.Path == "":
		err = metadata.Errorf(metadata.ErrInvalidArgument, "a file that is converted is named by its path")
	default:
		r.File.INode = 0 // its path counts
		op := &logpb.ConvertFile{Blocks: r.Blocks, Source: uint64(r.Source)}
		op.Target, err = target(r.File.Path)
		e.command.Op = &logpb.Command_ConvertFile{ConvertFile: op}
	}
	if err == nil {
		err = s.isCopy(c, r)
	}
	switch {
	case metadata.KindOf(err) == metadata.ErrNotExist: // the file went, or moved, while it was copied
		s.dropCopy(c, r.Source, func() { done(nil, err) })
		return
	case err != nil:
		done(nil, err)
		return
	}
	s.whole(r.Source, func(err error) {
		if err != nil { // what is late may come: the copy stays for that
			done(nil, err)
			return
		}
		s.change(&c, r.Retry, e, func(result *namespace.Result, err error) {
			switch {
			case err != nil && result != nil: // it is refused
				s.dropCopy(c, r.Source, func() { done(nil, err) })
				return
			case err != nil || r.Tail == nil:
				done(nil, err)
				return
			}
			f, ok := s.ns.FileByID(id)
			if !ok || len(f.Blocks) == 0 {
				done(nil, nil)
				return
			}
			last := f.Blocks[len(f.Blocks)-1]
			done(&namenode.LocatedBlock{Block: last, Offset: f.Status.Length - last.Length}, nil)
		})
	})
}

// whole waits until all of a copy is stored, on as many datanodes as there are: the blocks that it takes the place of are deleted at once. A writer may close a file that lacks replicas, or
// internal blocks, which are made later; after soft.whole that is enough here, too, if one more of each block may be lost.
//
// Errors: ErrNotReplicatedYet, which may be over when it is asked for again; ErrRetriable while it is not known what is stored.
func (s *Server) whole(source metadata.INodeID, done func(error)) {
	f, there := s.ns.FileByID(source)
	if !there || f.UnderConstruction || len(f.Blocks) == 0 { // the command says what is wrong with it, if it has not been exchanged by the same request before
		done(nil)
		return
	}
	if err := s.unreported(); err != nil {
		done(s.orStandby(err))
		return
	}
	replication := int(f.Status.Replication)
	all := func(b metadata.Block, places func() int) bool {
		stored, wanted, _ := s.soft.m.Stored(b, replication)
		return stored >= wanted || stored > 0 && stored >= places()
	}
	s.soft.awaitAll(f.Blocks, &s.soft.whole, all, func(ok bool) {
		if ok {
			done(nil)
			return
		}
		if err := s.unreported(); err != nil {
			done(s.orStandby(err))
			return
		}
		var err error
		s.soft.mu.Lock()
		places := s.soft.places()
		for _, b := range f.Blocks {
			if stored, wanted, spare := s.soft.m.Stored(b, replication); spare < 1 && !all(b, places) {
				err = metadata.Errorf(metadata.ErrNotReplicatedYet, "%v of %s is stored on %d datanodes, it should be on %d: it does not take the place of anything yet", b, f.Path, stored, wanted)
				break
			}
		}
		s.soft.mu.Unlock()
		done(s.orStandby(err))
	})
}

// unreported says why nothing is said about what is stored: the blocks are being listed, or a datanode that lives has not reported.
func (s *Server) unreported() error {
	s.soft.mu.Lock()
	known := s.soft.listing == nil && s.soft.m.Reported()
	s.soft.mu.Unlock()
	if known {
		return nil
	}
	return metadata.Errorf(metadata.ErrRetriable, "which blocks are stored is not known yet: they are being listed, or datanodes have not reported all of theirs")
}

// clearBeside removes the copy of a file that nobody is at work on, before the leader makes one: that of a try before, or of a client that was silent for as long as another may take its lease, or
// has given up. One that somebody else is writing, or has just written and will have exchanged, stays.
//
// Errors: ErrBeingCreated for such a one.
func (s *Server) clearBeside(f *namespace.FileInfo) error {
	id, err := s.ns.Resolve(s.myself(), besidePath(f))
	if err != nil {
		if metadata.KindOf(err) == metadata.ErrNotExist {
			err = nil
		}
		return err
	}
	made, there := s.ns.FileByID(id)
	if !there {
		return nil
	}
	writing := made.UnderConstruction && made.Holder != sealClient && made.Holder != namespace.RecoveryHolder && !s.leases.silent(made.Holder, s.clock.now())
	written := !made.UnderConstruction && made.Status.Erasure != f.Status.Erasure && made.Status.Length == f.Status.Length && s.clock.wall()-made.Status.MTime <= metadata.Time(rewriteStays.Milliseconds())
	if writing || written {
		return metadata.Errorf(metadata.ErrBeingCreated, "%s is being converted to another form by %s", f.Path, cmp.Or(made.Holder, made.Status.Owner))
	}
	return s.await(func(done func(error)) {
		s.Delete(s.myself(), namenode.Retry{}, fmt.Sprintf("/.reserved/.inodes/%d", id), false, func(_ bool, err error) { done(err) })
	})
}

// isCopy refuses a source that was not made for the file. One that is gone may have been exchanged by the same request, whose answer was lost.
func (s *Server) isCopy(c metadata.Caller, r namenode.EndRewriteRequest) error {
	source, there := s.ns.FileByID(r.Source)
	if !there {
		return nil
	}
	id, err := s.file(c, r.File)
	if err != nil {
		return err
	}
	if of, ok := s.rewritten(source.Path); !ok || of.Status.ID != id {
		return metadata.Errorf(metadata.ErrInvalidArgument, "inode %d was not made to take the place of inode %d", r.Source, id)
	}
	return nil
}

// dropCopy removes what a file was copied to and nobody will exchange, if it is the caller's. What is left over, sweepRewrites finds.
func (s *Server) dropCopy(c metadata.Caller, source metadata.INodeID, done func()) {
	f, there := s.ns.FileByID(source)
	if !there || path.Dir(f.Path) != rewrites || !c.Superuser && f.Status.Owner != c.User {
		done()
		return
	}
	s.Delete(s.myself(), namenode.Retry{}, fmt.Sprintf("/.reserved/.inodes/%d", source), false, func(_ bool, err error) {
		if err != nil {
			s.log.Warn("a copy of a file that nobody needs stays for the moment", "file", f.Path, "error", err)
		}
		done()
	})
}
