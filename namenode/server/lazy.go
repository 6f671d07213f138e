package server

import (
	"fmt"
	"math"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
)

// Files of the policy LAZY_PERSIST may lose blocks: what was in the memory of a datanode, and not saved yet, goes with its machine. What is left of such a file is of no use, and the leader
// removes it (HDFS's LazyPersistFileScrubber). Because what was saved comes back with its datanode, it does so only while all datanodes and their disks are there, unlike HDFS, and only at the second
// look at which a block has no replica.

// lazyPolicy is HDFS's number of LAZY_PERSIST.
const lazyPolicy = 15

// checkLazy looks for such files when it is time, on a goroutine of its own, one at a time.
func (s *Server) checkLazy(r *reign, now time.Time) {
	every := time.Duration(s.config.Properties.LazyScrubInterval) * time.Second
	if every == 0 || now.Sub(r.lazyAt) < every || !r.scrubbing.CompareAndSwap(false, true) {
		return
	}
	r.lazyAt = now
	go func() {
		defer r.scrubbing.Store(false)
		s.scrubLazy(r)
	}()
}

// allHere reports whether no datanode is away that may have a replica that nobody else has.
func (s *Server) allHere() bool {
	began := s.started.Load()
	if began == nil || time.Since(*began) < s.config.DeadAfter { // those that were here before may be on their way
		return false
	}
	s.soft.mu.Lock()
	complete, reports := s.soft.m.Complete(), s.soft.m.Nodes()
	s.soft.mu.Unlock()
	if !complete {
		return false
	}
	for _, n := range s.unseen(s.missing(reports)) {
		if n.Node.Admin != namenode.Decommissioned {
			return false
		}
	}
	return true
}

// scrubLazy removes lazily persisted files of which a block has had no replica at the last look and has none now.
func (s *Server) scrubLazy(r *reign) {
	if s.safe.check(s) != nil || s.listing.Load() || !s.allHere() {
		r.lazyLost = nil // it begins again
		return
	}
	lost := map[metadata.BlockID]bool{}
	for after, more := metadata.BlockID(math.MinInt64), true; more && s.reign.Load() == r; {
		s.soft.mu.Lock()
		some := s.soft.m.Lost(after, lostStep)
		var gone []metadata.BlockID
		for _, id := range some {
			if s.soft.m.Vanished(id) {
				gone = append(gone, id)
			}
		}
		s.soft.mu.Unlock()
		if more = len(some) == lostStep; more {
			after = some[len(some)-1]
		}
		for _, id := range gone {
			if o, ok := s.ns.BlockOwner(id); !ok || o.Policy != lazyPolicy {
				continue
			}
			lost[id] = true
			if r.lazyLost[id] {
				s.removeLazy(id)
			}
		}
	}
	r.lazyLost = lost
}

// removeLazy removes the file of a block that is lost. One that is being written is its writer's to end.
func (s *Server) removeLazy(id metadata.BlockID) {
	o, ok := s.ns.BlockOwner(id)
	var f *namespace.FileInfo
	if ok {
		f, ok = s.ns.FileByID(o.INode)
	}
	if !ok || f.UnderConstruction || f.Policy != lazyPolicy || !s.allHere() {
		return
	}
	me := s.myself()
	err := s.await(func(done func(error)) { // by its number: another file may have the name by then
		s.Delete(me, namenode.Retry{}, fmt.Sprintf("/.reserved/.inodes/%d", f.Status.ID), false, func(_ bool, err error) { done(err) })
	})
	d := security.Decision{Allowed: err == nil, Caller: me, Port: "namenode", Command: "scrubLazyPersist", Source: f.Path}
	if err != nil {
		s.log.Warn("a lazily persisted file that was lost cannot be removed", "path", f.Path, "block", o.Block.String(), "error", err)
	} else {
		s.lazyRemoved.Add(1)
		s.log.Warn("removed a lazily persisted file: a block was in memory alone and is lost", "path", f.Path, "block", o.Block.String())
	}
	s.config.Door.Record(d)
}
