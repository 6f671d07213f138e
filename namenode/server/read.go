package server

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
)

const (
	// shortList is how many entries a listing may have that is made beside other reads.
	shortList = 128
	// entrySize and blockSize are about how many bytes an entry of a listing and a located block take in memory and in an
	// answer together.
	entrySize = 400
	blockSize = 1536
)

// rooms holds memory of listings that are over.
var rooms = sync.Pool{New: func() any { return new([]metadata.FileStatus) }}

// keepEntries is how large a listing may be whose memory is kept for the next one.
const keepEntries = 4096

// Stat implements namenode.Reader.
func (s *Server) Stat(c metadata.Caller, path string, done func(*metadata.FileStatus, error)) {
	s.read(func(err error) {
		if err != nil {
			done(nil, err)
			return
		}
		done(s.ns.Stat(c, path))
	})
}

// List implements namenode.Reader. Large directories are listed on another goroutine than the other reads.
func (s *Server) List(c metadata.Caller, r namenode.ListRequest, done func(*namenode.Listing, error)) {
	s.read(func(err error) {
		limit := s.config.Properties.ListLimit
		switch {
		case err != nil:
			done(nil, err)
		case r.Locations:
			s.aside(c.User, r.Admit, int64(limit)*blockSize, func(err error) {
				if err != nil {
					done(nil, err)
					return
				}
				done(s.listWithBlocks(c, r, limit))
			})
		case !s.list(c, r, min(limit, shortList), limit, done):
			s.aside(c.User, r.Admit, int64(limit)*entrySize, func(err error) {
				if err != nil {
					done(nil, err)
					return
				}
				s.list(c, r, limit, limit, done)
			})
		}
	})
}

// list answers with up to limit entries. False: there are more that belong to the page, and nothing was answered.
func (s *Server) list(c metadata.Caller, r namenode.ListRequest, limit, page int, done func(*namenode.Listing, error)) bool {
	var room []metadata.FileStatus
	if r.Passing {
		lent := rooms.Get().(*[]metadata.FileStatus)
		defer func() {
			if cap(room) <= keepEntries {
				*lent = room[:0]
				rooms.Put(lent)
			}
		}()
		room = *lent
	}
	l, err := s.ns.ListInto(room, c, r.Path, r.After, limit)
	if err != nil || l == nil {
		done(nil, err)
		return true
	}
	room = l.Entries
	if l.Remaining > 0 && len(l.Entries) < page {
		return false
	}
	done(&namenode.Listing{Entries: l.Entries, Remaining: l.Remaining}, nil)
	return true
}

func (s *Server) listWithBlocks(c metadata.Caller, r namenode.ListRequest, limit int) (*namenode.Listing, error) {
	l, err := s.ns.ListWithBlocks(c, r.Path, r.After, limit)
	if err != nil || l == nil {
		return nil, err
	}
	out := &namenode.Listing{Entries: l.Entries, Remaining: l.Remaining, Files: make([]*namenode.LocatedFile, len(l.Entries))}
	for i, f := range l.Files {
		if f == nil {
			continue
		}
		if out.Files[i], err = s.locate(f, c.Host); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// shortFile is how many blocks may be located beside other reads.
const shortFile = 64

// Locate implements namenode.Reader.
func (s *Server) Locate(c metadata.Caller, r namenode.LocateRequest, done func(*namenode.LocatedFile, error)) {
	s.read(func(err error) {
		var f *namespace.FileBlocks
		if err == nil {
			f, err = s.ns.Blocks(c, r.Path, r.Offset, r.Length)
		}
		if err == nil && !r.Unnoticed {
			s.accessed(&f.Status)
		}
		switch {
		case err != nil:
			done(nil, err)
		case len(f.Blocks) <= shortFile:
			done(s.locateFor(&c, f))
		default: // looked up once more then, so as not to hold it while waiting
			s.aside(c.User, r.Admit, int64(len(f.Blocks))*blockSize, func(err error) {
				var f *namespace.FileBlocks
				if err == nil {
					f, err = s.ns.Blocks(c, r.Path, r.Offset, r.Length)
				}
				if err != nil {
					done(nil, err)
					return
				}
				done(s.locateFor(&c, f))
			})
		}
	})
}

// accessed has a file's access time set, unless that was done lately. The reader does not wait for it: a file read for the
// first time in an hour is not read later for that.
func (s *Server) accessed(f *metadata.FileStatus) {
	precision := metadata.Time(s.config.Properties.AccessTimePrecision)
	now := s.clock.wall()
	// One that lies ahead was set by somebody, or by a clock that was wrong.
	recent := now-f.ATime <= precision && f.ATime-now <= precision
	if precision == 0 || recent || s.safe.check(s) != nil {
		return
	}
	if _, others := s.accesses.LoadOrStore(f.ID, nil); others {
		return
	}
	s.send(&logpb.Command{Caller: &logpb.Caller{Superuser: true}, Op: &logpb.Command_SetTimes{SetTimes: &logpb.SetTimes{
		Target: &logpb.Target{Base: uint64(f.ID)}, Mtime: -1, Atime: int64(now),
	}}}, func(*namespace.Result, error) { s.accesses.Delete(f.ID) })
}

// ContentSummary implements namenode.Reader.
func (s *Server) ContentSummary(c metadata.Caller, path string, done func(*metadata.ContentSummary, error)) {
	s.readLong(c.User, func(err error) {
		if err != nil {
			done(nil, err)
			return
		}
		done(s.ns.ContentSummary(c, path))
	})
}

// CheckAccess implements namenode.Reader.
func (s *Server) CheckAccess(c metadata.Caller, path string, access metadata.Access, done func(error)) {
	s.read(func(err error) {
		if err == nil {
			err = s.ns.CheckAccess(c, path, access)
		}
		done(err)
	})
}

// Sync implements namenode.Reader.
func (s *Server) Sync(done func(error)) { s.read(done) }

// openPage is how many open files one call of OpenFiles returns.
const openPage = 1000

// OpenFiles implements namenode.Reader.
func (s *Server) OpenFiles(c metadata.Caller, after metadata.INodeID, path string, blocking bool, done func([]namenode.OpenFile, bool, error)) {
	s.readLong(c.User, func(err error) {
		if err == nil && !c.Superuser {
			err = metadata.NeedsSuperuser(c.User, "listOpenFiles")
		}
		if err != nil {
			done(nil, false, err)
			return
		}
		keeps := s.keepers(blocking)
		var ids []metadata.INodeID
		for _, l := range s.ns.Leases() {
			for _, id := range l.Files {
				if id > after && (!blocking || keeps[id]) {
					ids = append(ids, id)
				}
			}
		}
		slices.Sort(ids)
		var out []namenode.OpenFile
		for _, id := range ids {
			f, ok := s.ns.FileByID(id)
			if !ok || !f.UnderConstruction || !below(f.Path, path) {
				continue
			}
			if len(out) == openPage {
				done(out, true, nil)
				return
			}
			out = append(out, namenode.OpenFile{INode: id, Path: f.Path, Client: f.Holder, Host: f.ClientHost})
		}
		done(out, false, nil)
	})
}

// lostStep is how many blocks without a good replica are taken from the block manager at a time.
const lostStep = 1000

// LostFiles implements namenode.Reader (FSNamesystem.listCorruptFileBlocks). The cookie is the id of the last block that was looked
// at, where HDFS counts blocks, so that what is mended or lost meanwhile moves nothing.
func (s *Server) LostFiles(c metadata.Caller, path, cookie string, done func([]string, string, error)) {
	s.readLong(c.User, func(err error) {
		var after metadata.BlockID
		if err == nil && !c.Superuser {
			err = metadata.NeedsSuperuser(c.User, "listCorruptFileBlocks")
		}
		if err == nil && cookie != "" {
			id, bad := strconv.ParseInt(cookie, 10, 64)
			if bad != nil {
				err = metadata.Errorf(metadata.ErrInvalidArgument, "cookie %q: want that of the answer before, or none to begin", cookie)
			}
			after = metadata.BlockID(id)
		}
		if err == nil && !strings.HasPrefix(path, "/") {
			err = metadata.Errorf(metadata.ErrInvalidArgument, "path %q is not absolute", path)
		}
		if err == nil && !s.safe.started.Load() {
			err = metadata.Errorf(metadata.ErrSafeMode, "Cannot run listCorruptFileBlocks because the replicas have not all been reported yet. %s", s.waiting())
		}
		if err != nil {
			done(nil, "", err)
			return
		}
		files := []string{}
		for {
			s.soft.mu.Lock()
			lost := s.soft.m.Lost(after, lostStep)
			s.soft.mu.Unlock()
			for _, id := range lost {
				after = id
				if f, ok := s.ns.FileOfBlock(id); ok && below(f, path) {
					if files = append(files, f); len(files) == s.config.Properties.CorruptFilesReturned {
						done(files, strconv.FormatInt(int64(after), 10), nil)
						return
					}
				}
			}
			switch {
			case s.reign.Load() == nil:
				done(nil, "", namenode.ErrStandbyRead)
				return
			case len(lost) < lostStep:
				done(files, strconv.FormatInt(int64(after), 10), nil)
				return
			}
		}
	})
}

// below reports whether path is dir or lies in it; an empty dir is the root.
func below(path, dir string) bool {
	for len(dir) > 0 && dir[len(dir)-1] == '/' {
		dir = dir[:len(dir)-1]
	}
	return dir == "" || path == dir || len(path) > len(dir) && path[:len(dir)] == dir && path[len(dir)] == '/'
}
