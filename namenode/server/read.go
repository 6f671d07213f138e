package server

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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

// fileRooms holds memory of files that have been located.
var fileRooms = sync.Pool{New: func() any { return new(namespace.FileBlocks) }}

// keepEntries is how large a listing may be whose memory is kept for the next one.
const keepEntries = 4096

// Stat implements namenode.Reader.
func (s *Server) Stat(c metadata.Caller, path string, done func(*metadata.FileStatus, error)) {
	if status, ok, err := s.StatNow(c, path, new(metadata.FileStatus)); ok {
		done(status, err)
		return
	}
	s.statGroup(c, path, done)
}

// StatNow implements namenode.Reader.
func (s *Server) StatNow(c metadata.Caller, path string, room *metadata.FileStatus) (f *metadata.FileStatus, ok bool, err error) {
	ok = s.glance(func() { f, err = s.ns.StatInto(room, c, path) })
	return f, ok, err
}

// StatEach implements namenode.Reader.
func (s *Server) StatEach(c metadata.Caller, paths []string, rooms []metadata.FileStatus) (n int) {
	if !s.glance(func() { n = s.ns.StatEach(rooms, c, paths) }) {
		return 0
	}
	return n
}

func (s *Server) statGroup(c metadata.Caller, path string, done func(*metadata.FileStatus, error)) {
	askGroup(s, &c, done, func() (*metadata.FileStatus, error) { return s.ns.Stat(c, path) })
}

// quickStats is how large, by entrySize, the answer of a StatMany may be that is made beside other reads, as a short listing is.
const quickStats = shortList * entrySize

// StatMany implements namenode.Reader. Many paths are looked up on another goroutine than the other reads. The namespace is held for one path at a time.
func (s *Server) StatMany(c metadata.Caller, r namenode.StatManyRequest, done func([]namenode.Found, error)) {
	size := int64(len(r.Paths)) * entrySize
	for _, path := range r.Paths {
		size += int64(len(path)) // errors have it in their messages
	}
	if size <= quickStats {
		ask(s, &c, done, func() ([]namenode.Found, error) { return s.statEach(c, r.Paths), nil })
		return
	}
	s.read(&c, func(err error) {
		if err != nil {
			done(nil, err)
			return
		}
		s.aside(c.User, r.Admit, size, func(err error) {
			if err != nil {
				done(nil, err)
				return
			}
			done(s.statEach(c, r.Paths), nil)
		})
	})
}

func (s *Server) statEach(c metadata.Caller, paths []string) []namenode.Found {
	found, room := make([]namenode.Found, len(paths)), make([]metadata.FileStatus, len(paths))
	for i, path := range paths {
		found[i].Status, found[i].Err = s.ns.StatInto(&room[i], c, path)
	}
	return found
}

// List implements namenode.Reader. Large directories are listed on another goroutine than the other reads.
func (s *Server) List(c metadata.Caller, r namenode.ListRequest, done func(*namenode.Listing, error)) {
	limit := s.config.Properties.ListLimit
	if r.Locations {
		s.listLocated(c, r, limit, done)
		return
	}
	short := min(limit, shortList)
	var p page
	var err error
	if s.glance(func() { p, err = s.page(c, r, short) }) {
		s.answerPage(c, r, p, err, done)
		return
	}
	s.listGroup(c, r, short, done)
}

func (s *Server) listLocated(c metadata.Caller, r namenode.ListRequest, limit int, done func(*namenode.Listing, error)) {
	s.read(&c, func(err error) {
		if err != nil {
			done(nil, err)
			return
		}
		s.aside(c.User, r.Admit, int64(limit)*blockSize, func(err error) {
			if err != nil {
				done(nil, err)
				return
			}
			done(s.listWithBlocks(c, r, limit))
		})
	})
}

func (s *Server) listGroup(c metadata.Caller, r namenode.ListRequest, short int, done func(*namenode.Listing, error)) {
	askGroup(s, &c, func(p page, err error) { s.answerPage(c, r, p, err, done) }, func() (page, error) { return s.page(c, r, short) })
}

// answerPage answers with the first entries of a page, if these are all.
func (s *Server) answerPage(c metadata.Caller, r namenode.ListRequest, p page, err error, done func(*namenode.Listing, error)) {
	limit := s.config.Properties.ListLimit
	if err != nil || p.listing == nil || p.listing.Remaining == 0 || len(p.listing.Entries) >= limit {
		p.answer(err, done)
		return
	}
	p.giveBack() // there is more that belongs to the page
	s.listLong(c, r, limit, done)
}

func (s *Server) listLong(c metadata.Caller, r namenode.ListRequest, limit int, done func(*namenode.Listing, error)) {
	s.aside(c.User, r.Admit, int64(limit)*entrySize, func(err error) {
		if err != nil {
			done(nil, err)
			return
		}
		p, err := s.page(c, r, limit)
		p.answer(err, done)
	})
}

// page is a part of a listing, and the memory that is lent to it, nil where none is.
type page struct {
	listing *namespace.Listing
	lent    *[]metadata.FileStatus
}

// page lists up to limit entries.
func (s *Server) page(c metadata.Caller, r namenode.ListRequest, limit int) (p page, err error) {
	var room []metadata.FileStatus
	if r.Passing {
		p.lent = rooms.Get().(*[]metadata.FileStatus)
		room = *p.lent
	}
	p.listing, err = s.ns.ListInto(room, c, r.Path, r.After, limit)
	return p, err
}

func (p page) answer(err error, done func(*namenode.Listing, error)) {
	defer p.giveBack()
	if err != nil || p.listing == nil {
		done(nil, err)
		return
	}
	done(&namenode.Listing{Entries: p.listing.Entries, Remaining: p.listing.Remaining}, nil)
}

// giveBack lends the memory to the next one.
func (p page) giveBack() {
	if p.lent == nil {
		return
	}
	if p.listing != nil && cap(p.listing.Entries) <= keepEntries {
		*p.lent = p.listing.Entries[:0]
	}
	rooms.Put(p.lent)
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
		f.WithoutOpenEnd() // Hadoop's clients ask for lists like this
		out.Files[i] = new(namenode.LocatedFile)
		if err = s.locate(out.Files[i], f, &c); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// shortFile is how many blocks may be located beside other reads.
const shortFile = 64

// Locate implements namenode.Reader.
func (s *Server) Locate(c metadata.Caller, r namenode.LocateRequest, done func(*namenode.LocatedFile, error)) {
	var f *namespace.FileBlocks
	var err error
	room := fileRooms.Get().(*namespace.FileBlocks)
	defer giveFileBack(room)
	if s.glance(func() { f, err = s.ns.BlocksInto(room, c, r.Path, r.Offset, r.Length) }) {
		s.located(c, r, f, err, done)
		return
	}
	s.locateGroup(c, r, done)
}

// giveFileBack lends the memory to the next one; nothing of the file stays but room for a short list.
func giveFileBack(room *namespace.FileBlocks) {
	blocks := room.Blocks[:0]
	if cap(blocks) > shortFile {
		blocks = nil
	}
	*room = namespace.FileBlocks{Blocks: blocks}
	fileRooms.Put(room)
}

func (s *Server) locateGroup(c metadata.Caller, r namenode.LocateRequest, done func(*namenode.LocatedFile, error)) {
	askGroup(s, &c, func(f *namespace.FileBlocks, err error) { s.located(c, r, f, err, done) },
		func() (*namespace.FileBlocks, error) { return s.ns.Blocks(c, r.Path, r.Offset, r.Length) })
}

// located answers with the places of a file's blocks. f is not kept.
func (s *Server) located(c metadata.Caller, r namenode.LocateRequest, f *namespace.FileBlocks, err error, done func(*namenode.LocatedFile, error)) {
	if err == nil && !r.Unnoticed && !f.InSnapshot && s.unread(&f.Status) {
		if err = s.accessed(&c, &f.Status); err != nil {
			f = nil
		}
	}
	if err == nil && !r.Tails {
		f.WithoutOpenEnd()
	}
	switch {
	case err != nil:
		done(nil, err)
	case len(f.Blocks) <= shortFile && r.Passing:
		s.locatePassing(&c, f, done)
	case len(f.Blocks) <= shortFile:
		done(s.locateFor(&c, f))
	default: // looked up once more then, so as not to hold it while waiting
		s.locateLong(c, r, len(f.Blocks), done)
	}
}

// locatedFiles holds memory of answers that are Passing.
var locatedFiles = sync.Pool{New: func() any { return new(namenode.LocatedFile) }}

// locatePassing answers with the places of a short file, whose memory serves the next one when done has returned.
func (s *Server) locatePassing(c *metadata.Caller, f *namespace.FileBlocks, done func(*namenode.LocatedFile, error)) {
	out := locatedFiles.Get().(*namenode.LocatedFile)
	if err := s.locateInto(out, c, f); err != nil {
		done(nil, err)
	} else {
		done(out, nil)
	}
	clear(out.Blocks)
	*out = namenode.LocatedFile{Blocks: out.Blocks[:0]}
	locatedFiles.Put(out)
}

func (s *Server) locateLong(c metadata.Caller, r namenode.LocateRequest, blocks int, done func(*namenode.LocatedFile, error)) {
	s.aside(c.User, r.Admit, int64(blocks)*blockSize, func(err error) {
		var f *namespace.FileBlocks
		if err == nil {
			f, err = s.ns.Blocks(c, r.Path, r.Offset, r.Length)
		}
		if err != nil {
			done(nil, err)
			return
		}
		if !r.Tails {
			f.WithoutOpenEnd()
		}
		done(s.locateFor(&c, f))
	})
}

// unread reports whether a file's access time is to be set when it is read: that was not done lately.
func (s *Server) unread(f *metadata.FileStatus) bool {
	precision := metadata.Time(s.config.Properties.AccessTimePrecision)
	now := s.clock.wall()
	// One that lies ahead was set by somebody, or by a clock that was wrong.
	recent := now-f.ATime <= precision && f.ATime-now <= precision
	return precision > 0 && !recent
}

// accessed has a file's access time set. The reader does not wait for it: a file read for the first time in an hour is not read later for that. Who
// asks a namenode that does not lead is to ask the one that does, as in HDFS.
func (s *Server) accessed(c *metadata.Caller, f *metadata.FileStatus) error {
	if c.Local {
		return namenode.ErrRetryOnActive
	}
	if s.safe.check(s) != nil {
		return nil
	}
	id := f.ID
	if _, others := s.accesses.LoadOrStore(id, nil); others {
		return nil
	}
	s.send(&logpb.Command{Caller: &logpb.Caller{Superuser: true}, Op: &logpb.Command_SetTimes{SetTimes: &logpb.SetTimes{
		Target: &logpb.Target{Base: uint64(id)}, Mtime: -1, Atime: int64(s.clock.wall()),
	}}}, func(*namespace.Result, error) { s.accesses.Delete(id) })
	return nil
}

// ContentSummary implements namenode.Reader.
func (s *Server) ContentSummary(c metadata.Caller, path string, done func(*metadata.ContentSummary, error)) {
	s.readLong(&c, func(err error) {
		if err != nil {
			done(nil, err)
			return
		}
		done(s.ns.ContentSummary(c, path))
	})
}

// CheckAccess implements namenode.Reader.
func (s *Server) CheckAccess(c metadata.Caller, path string, access metadata.Access, done func(error)) {
	ask(s, &c, func(_ struct{}, err error) { done(err) }, func() (struct{}, error) { return struct{}{}, s.ns.CheckAccess(c, path, access) })
}

// Sync implements namenode.Reader.
func (s *Server) Sync(done func(error)) { s.read(&metadata.Caller{}, done) }

// State implements namenode.Reader.
func (s *Server) State() int64 {
	if s.group == nil {
		return 0
	}
	return int64(s.group.Shown())
}

// Observes implements namenode.Reader.
func (s *Server) Observes() bool { return s.group != nil && s.reign.Load() == nil && s.group.Current() }

const (
	// behindPatience is how long a namenode that does not lead takes to come to where a caller has been.
	behindPatience = time.Second
	// behindMost is how far it comes in that time at the most.
	behindMost = 1 << 17
)

// Await implements namenode.Reader.
func (s *Server) Await(seen int64, done func(error)) {
	if !s.Observes() {
		done(namenode.ErrStandbyRead)
		return
	}
	s.reach(seen, done)
}

// Within implements namenode.Reader.
func (s *Server) Within(age time.Duration, seen int64, done func(fresh func() bool, err error)) {
	if s.group == nil {
		done(nil, namenode.ErrStandbyRead)
		return
	}
	s.group.ReadWithin(age, func(fresh func() bool, err error) {
		defer s.caught(func(err error) { done(nil, err) })
		if err != nil {
			done(nil, namenode.ErrStandbyRead)
			return
		}
		s.reach(seen, func(err error) { done(fresh, err) })
	})
}

// reach calls done when the state has all that somebody has seen. ErrRetriable: that takes too long.
func (s *Server) reach(seen int64, done func(error)) {
	applied := int64(s.group.Applied())
	behind := func() {
		done(metadata.Errorf(metadata.ErrRetriable, "Observer Node is too far behind: serverStateId = %d clientStateId = %d", s.group.Applied(), seen))
	}
	switch {
	case seen <= applied:
		done(nil)
		return
	case seen-applied > behindMost:
		behind()
		return
	}
	s.beside(done, func() {
		ctx, stop := context.WithTimeout(context.Background(), behindPatience)
		defer stop()
		if err := s.group.AwaitApplied(ctx, uint64(seen)); err != nil {
			behind()
			return
		}
		done(nil)
	})
}

// openPage is how many open files one call of OpenFiles returns.
const openPage = 1000

// OpenFiles implements namenode.Reader.
func (s *Server) OpenFiles(c metadata.Caller, after metadata.INodeID, path string, blocking bool, done func([]namenode.OpenFile, bool, error)) {
	s.readLong(&c, func(err error) {
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
	s.readLong(&c, func(err error) {
		after := metadata.BlockID(math.MinInt64)
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
		if err == nil && (!s.safe.started.Load() || s.listing.Load()) {
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
