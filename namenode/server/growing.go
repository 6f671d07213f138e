package server

import (
	"fmt"
	"sync"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
)

// A small file in a directory whose files are coded has no policy: a few bytes are cheapest with the namenodes. When something is to be appended to it, it becomes
// coded first, as a file that is converted does: a datanode reads the body here and makes a group of it, and one command puts that in its place. What follows is written as to any
// file with a policy.

// codePatience is how long an append waits for that. Then, and if it fails, the file goes on replicated.
const codePatience = 20 * time.Second

// mostCodings is how many are coded at a time: one more goes on replicated, and waits for nobody.
const mostCodings = 256

// codings are the small files that are being coded. Who appends to one at the same time waits for the same.
type codings struct {
	mu    sync.Mutex
	files map[metadata.INodeID]chan struct{} // closed when it is done, or has failed
}

// codeFirst makes a coded file of a small one that the caller may append to, by a client that knows how to go on behind groups, and then calls then; at once if there is nothing to do.
func (s *Server) codeFirst(c metadata.Caller, r *namenode.AppendRequest, then func()) {
	reign := s.reign.Load()
	if reign == nil || !r.Tails && !r.NewBlock || s.group.Level() < release.SealedTails || s.safe.check(s) != nil {
		then()
		return
	}
	id, err := s.ns.Resolve(c, r.Path)
	if err != nil {
		then()
		return
	}
	f, policy, ok := s.ns.Codable(id)
	if !ok || s.ns.CheckChange(c, r.Path) != nil { // the command tells why not
		then()
		return
	}
	go func() {
		patience := time.NewTimer(codePatience)
		defer patience.Stop()
		select {
		case <-s.coded(reign, f, policy):
		case <-patience.C:
		case <-s.stopped:
		}
		then()
	}()
}

// coded begins to code a small file, if that is not under way. What it returns is closed when that has ended.
func (s *Server) coded(r *reign, f *namespace.FileInfo, policy metadata.ErasurePolicy) <-chan struct{} {
	x := &r.codings
	x.mu.Lock()
	defer x.mu.Unlock()
	id := f.Status.ID
	if running, ok := x.files[id]; ok {
		return running
	}
	ended := make(chan struct{})
	if len(x.files) >= mostCodings {
		s.log.Warn("a small file stays replicated when it grows, because many others are being coded: `hops ec convert` codes it", "file", f.Path, "policy", policy.Name)
		close(ended)
		return ended
	}
	if x.files == nil {
		x.files = map[metadata.INodeID]chan struct{}{}
	}
	x.files[id] = ended
	go func() {
		if err := s.code(r, f, policy); err != nil && s.reign.Load() == r {
			s.log.Warn("a small file stays replicated when it grows, though files of its directory are coded: `hops ec convert` codes it", "file", f.Path, "policy", policy.Name, "error", err)
		}
		x.mu.Lock()
		delete(x.files, id)
		x.mu.Unlock()
		close(ended)
	}()
	return ended
}

// code puts a group in place of the body that a small file is.
func (s *Server) code(r *reign, f *namespace.FileInfo, policy metadata.ErasurePolicy) error {
	if err := s.ns.CheckConvert(f.Status.ID, policy.ID, 1); err != nil {
		return err
	}
	source, _, err := s.groupBeside(r, f, f.Blocks[0], policy, s.doorLocations())
	if err == nil {
		op := &logpb.ConvertFile{Blocks: namespace.BlocksSum(f.Blocks), Source: uint64(source)}
		if op.Target, err = target(fmt.Sprintf("/.reserved/.inodes/%d", f.Status.ID)); err == nil {
			e := newEnvelope()
			e.command.Op = &logpb.Command_ConvertFile{ConvertFile: op}
			err = s.await(func(done func(error)) {
				c := s.myself()
				s.simple(&c, namenode.Retry{}, e, done)
			})
		}
	}
	if err != nil && source != 0 {
		_ = s.await(func(done func(error)) { s.dropCopy(s.myself(), source, func() { done(nil) }) })
	}
	return err
}
