package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/blockmanager"
)

// Which blocks are to be in memory is found by the leader, by going through the files that directives want: when pools or directives have changed, and a while after anything else has. The
// walk holds no lock between its pages, and takes a twentieth of one processor's time at most. The block manager is told of the differences only, and decides where each block goes.

const (
	// cacheScanLeast and cacheScanMost are how long the walk rests at least, and at most when something has changed (dfs.namenode.path.based.cache.refresh.interval.ms); cacheScanShare: as
	// many times as long as it took.
	cacheScanLeast, cacheScanMost = 2 * time.Second, 30 * time.Second
	cacheScanShare                = 20
	// cacheScanFiles is how many files the directives of one pool are looked for in, in one walk: nobody's pool holds up all others.
	cacheScanFiles = 4 << 20
	// cacheWanted is how many blocks may be wanted in memory. cacheAhead: they may have so many times the bytes that there is memory for, because not each datanode can take each.
	cacheWanted = 1 << 20
	cacheAhead  = 4
	// cacheStep is how many blocks are named, or counted, with the block manager's lock held.
	cacheStep = 1000
	// cacheAwait is how long a list waits for a walk that knows of the last change.
	cacheAwait = 5 * time.Second
	// cachePage is how many pools, or directives, a page has (dfs.namenode.list.cache.pools.num.responses).
	cachePage = 100
)

// caching is what the leader knows of pools and directives beside the namespace.
type caching struct {
	kick chan struct{} // capacity 1: something has changed that is to be looked at now

	mu         sync.Mutex
	version    uint64 // of pools and directives that the figures know
	term       uint64 // the reign that they are of
	pools      map[string]namenode.CacheFigures
	directives map[int64]namenode.CacheFigures
	news       chan struct{} // closed when there are other figures
}

func (c *caching) init() {
	c.kick, c.news = make(chan struct{}, 1), make(chan struct{})
	c.pools, c.directives = map[string]namenode.CacheFigures{}, map[int64]namenode.CacheFigures{}
}

func (c *caching) now() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// publish replaces the figures.
func (c *caching) publish(w *cacheWalk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version, c.term, c.pools, c.directives = w.version, w.reign.term, w.pools, w.directives
	close(c.news)
	c.news = make(chan struct{})
}

// reserve counts a directive that is going to be made for its pool, until the next walk counts it. False: there is no room.
func (c *caching) reserve(p *metadata.CachePool, bytes int64) (left int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.pools[p.Name]
	if left = p.Limit - f.BytesNeeded; bytes > left {
		return left, false
	}
	f.BytesNeeded += bytes
	c.pools[p.Name] = f
	return left, true
}

// await waits until the figures know a version of pools and directives, for a while.
func (c *caching) await(version, term uint64, stopped <-chan struct{}) {
	t := time.NewTimer(cacheAwait)
	defer t.Stop()
	for {
		c.mu.Lock()
		known, news := c.version >= version && c.term == term, c.news
		c.mu.Unlock()
		if known {
			return
		}
		c.now()
		select {
		case <-news:
		case <-t.C:
			return
		case <-stopped:
			return
		}
	}
}

// cacheWalk is one walk through what directives want.
type cacheWalk struct {
	reign      *reign
	version    uint64
	limits     map[string]int64
	looked     map[string]int // files, by pool
	pools      map[string]namenode.CacheFigures
	directives map[int64]namenode.CacheFigures
	want       map[metadata.BlockID]uint16
	bytes      int64         // of want
	ends       metadata.Time // when the next directive ends; 0: none does
	room       int64         // for them
}

// watchCache has blocks come into memory and leave it while this namenode leads, until ctx is done.
func (s *Server) watchCache(ctx context.Context) error {
	var last struct {
		reign            *reign
		version, changes uint64
		index            uint64
		room             int64 // that datanodes have
		began            time.Time
		took             time.Duration
		want             map[metadata.BlockID]uint16
		epoch            uint64
		ends             metadata.Time
	}
	t := pace.NewBeat(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.caching.kick:
		case <-t.C:
			t.Next()
		}
		r := s.reign.Load()
		if r == nil {
			last.reign, last.want = nil, nil
			continue
		}
		if s.group.Level() < release.Caching || s.listing.Load() {
			continue
		}
		version, index := s.ns.CachingVersion(), s.ns.AppliedIndex()
		s.soft.mu.Lock()
		changes, epoch := s.soft.m.CacheChanges(), s.soft.m.CacheEpoch()
		room, _ := s.soft.m.CacheCapacity() // a walk wants no more than that
		s.soft.mu.Unlock()
		ended := last.ends > 0 && s.clock.wall() >= last.ends
		fresh := !ended && r == last.reign && version == last.version && epoch == last.epoch
		rested := time.Since(last.began)
		if fresh && (changes == last.changes && index == last.index && room == last.room || rested < min(max(cacheScanLeast, cacheScanShare*last.took), cacheScanMost)) {
			continue
		}
		began := time.Now()
		w, err := s.walkCache(ctx, r)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, errReignOver) {
				s.log.Warn("cache directives could not be looked through, trying again", "error", err)
			}
			continue
		}
		if epoch != last.epoch || r != last.reign {
			last.want = nil
		}
		if !s.tellCache(epoch, last.want, w.want) {
			last.reign = nil
			continue
		}
		last.reign, last.version, last.changes, last.index, last.room, last.began, last.took = r, w.version, changes, index, room, began, time.Since(began)
		last.want, last.epoch, last.ends = w.want, epoch, w.ends
		s.caching.publish(w)
	}
}

// walkCache goes through all directives.
func (s *Server) walkCache(ctx context.Context, r *reign) (*cacheWalk, error) {
	pools, directives, version := s.ns.Caching()
	w := &cacheWalk{
		reign: r, version: version, limits: map[string]int64{}, looked: map[string]int{},
		pools: map[string]namenode.CacheFigures{}, directives: map[int64]namenode.CacheFigures{}, want: map[metadata.BlockID]uint16{},
	}
	for _, p := range pools {
		w.limits[p.Name] = p.Limit
	}
	s.soft.mu.Lock()
	w.room, _ = s.soft.m.CacheCapacity()
	s.soft.mu.Unlock()
	if w.room < 1<<60 {
		w.room *= cacheAhead
	}
	now := s.clock.wall()
	for i := range directives {
		d := &directives[i]
		if d.Expired(now) {
			continue
		}
		if d.Expires > 0 && (w.ends == 0 || d.Expires < w.ends) {
			w.ends = d.Expires
		}
		err := s.ns.CachedFiles(d.Path, func(files []namespace.CachedFile) error {
			if ctx.Err() != nil || s.reign.Load() != r {
				return errReignOver
			}
			if w.looked[d.Pool] += len(files); w.looked[d.Pool] > cacheScanFiles {
				return errCacheFiles
			}
			for i := range files {
				s.walkFile(w, d, &files[i])
			}
			return nil
		})
		if errors.Is(err, errCacheFiles) {
			s.log.Warn("the directives of a cache pool want more files than are looked at: the rest of them is not kept in memory", "pool", d.Pool, "directive", d.ID, "files", cacheScanFiles)
			err = nil
		}
		if err != nil {
			return nil, err
		}
	}
	return w, nil
}

var errCacheFiles = errors.New("too many files")

// walkFile counts a file for a directive and its pool, and wants its blocks in memory if they have room for it.
func (s *Server) walkFile(w *cacheWalk, d *metadata.CacheDirective, f *namespace.CachedFile) {
	one, pool := w.directives[d.ID], w.pools[d.Pool]
	needed := f.Length * int64(d.Replication)
	for _, g := range []*namenode.CacheFigures{&one, &pool} {
		g.FilesNeeded++
		g.BytesNeeded += needed
	}
	if pool.BytesNeeded <= w.limits[d.Pool] {
		cached := f.InBody * int64(d.Replication) // no datanode reads it from a disk
		for rest := f.Blocks; len(rest) > 0; {
			step := rest[:min(len(rest), cacheStep)]
			rest = rest[len(step):]
			s.soft.mu.Lock()
			for _, b := range step {
				cached += s.walkBlock(w, d, b, f.Coding)
			}
			s.soft.mu.Unlock()
		}
		for _, g := range []*namenode.CacheFigures{&one, &pool} {
			g.BytesCached += cached
			if cached == needed {
				g.FilesCached++
			}
		}
	}
	w.directives[d.ID], w.pools[d.Pool] = one, pool
}

// walkBlock wants a block in memory, of a group its internal blocks with data, and is how many bytes are there. s.soft.mu is held.
func (s *Server) walkBlock(w *cacheWalk, d *metadata.CacheDirective, b metadata.Block, code metadata.ErasurePolicyID) int64 {
	policy, coded := metadata.ErasurePolicyOf(code)
	if !b.ID.Striped() || !coded {
		w.wish(b.ID, d.Replication, b.Length)
		return int64(min(s.soft.m.InMemory(b.ID), d.Replication)) * b.Length
	}
	cached := int64(0)
	for i := range policy.Layout.Data {
		if n := policy.Layout.UnitLength(b.Length, i); n > 0 {
			w.wish(b.ID.Internal(i), 1, n)
			cached += int64(min(s.soft.m.InMemory(b.ID.Internal(i)), 1)) * n * int64(d.Replication) // there is one of each
		}
	}
	return cached
}

func (w *cacheWalk) wish(id metadata.BlockID, replicas int, length int64) {
	had := w.want[id]
	more := int64(replicas-int(had)) * length
	if replicas <= int(had) || w.bytes+more > w.room || had == 0 && len(w.want) >= cacheWanted {
		return
	}
	w.bytes += more
	w.want[id] = uint16(replicas)
}

// tellCache tells the block manager what is different. False: it has forgotten the rest.
func (s *Server) tellCache(epoch uint64, before, want map[metadata.BlockID]uint16) bool {
	var wishes []blockmanager.CacheWish
	flush := func(least int) bool {
		if len(wishes) < least {
			return true
		}
		s.soft.mu.Lock()
		defer s.soft.mu.Unlock()
		known := s.soft.m.CacheBlocks(epoch, wishes)
		wishes = wishes[:0]
		return known
	}
	for id, n := range want {
		if before[id] != n {
			if wishes = append(wishes, blockmanager.CacheWish{ID: id, Replicas: n}); !flush(cacheStep) {
				return false
			}
		}
	}
	for id := range before {
		if _, still := want[id]; !still {
			if wishes = append(wishes, blockmanager.CacheWish{ID: id}); !flush(cacheStep) {
				return false
			}
		}
	}
	if !flush(0) {
		return false
	}
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	s.soft.m.CacheReady(epoch)
	return true
}

// caches refuses changes of pools and directives while members may run that do not know them.
func (s *Server) caches() error {
	if s.group.Level() < release.Caching {
		return metadata.Errorf(metadata.ErrUnsupported, "cache pools and directives need a cluster of level %d: raise it (`hops cluster finalize`)", release.Caching)
	}
	return nil
}

// changeCache proposes a change of pools or directives.
func (s *Server) changeCache(c metadata.Caller, retry namenode.Retry, e *envelope, done func(*namespace.Result, error)) {
	if err := s.caches(); err != nil {
		done(nil, err)
		return
	}
	s.change(&c, retry, e, func(r *namespace.Result, err error) {
		if err == nil {
			s.caching.now()
		}
		done(r, err)
	})
}

func poolInfo(p *namenode.CachePoolChange) *logpb.CachePoolInfo {
	i := &logpb.CachePoolInfo{Name: p.Name, Owner: p.Owner, Group: p.Group, Limit: p.Limit, MaxTtl: p.MaxTTL}
	if p.Mode != nil {
		i.Mode = new(uint32(*p.Mode))
	}
	if p.Replication != nil {
		i.DefaultReplication = new(int32(*p.Replication))
	}
	return i
}

func directiveInfo(d *namenode.CacheDirectiveChange) *logpb.CacheDirectiveInfo {
	i := &logpb.CacheDirectiveInfo{Path: d.Path, Pool: d.Pool}
	if d.Replication != nil {
		i.Replication = new(int32(*d.Replication))
	}
	if d.Expires != nil {
		i.Expires, i.Relative = new(d.Expires.Millis), d.Expires.Relative
	}
	return i
}

// AddCachePool implements namenode.Caching.
func (s *Server) AddCachePool(c metadata.Caller, retry namenode.Retry, p namenode.CachePoolChange, done func(error)) {
	e := newEnvelope()
	e.command.Op = &logpb.Command_AddCachePool{AddCachePool: &logpb.AddCachePool{Pool: poolInfo(&p)}}
	s.changeCache(c, retry, e, func(_ *namespace.Result, err error) { done(err) })
}

// ModifyCachePool implements namenode.Caching.
func (s *Server) ModifyCachePool(c metadata.Caller, retry namenode.Retry, p namenode.CachePoolChange, done func(error)) {
	e := newEnvelope()
	e.command.Op = &logpb.Command_ModifyCachePool{ModifyCachePool: &logpb.ModifyCachePool{Pool: poolInfo(&p)}}
	s.changeCache(c, retry, e, func(_ *namespace.Result, err error) { done(err) })
}

// RemoveCachePool implements namenode.Caching.
func (s *Server) RemoveCachePool(c metadata.Caller, retry namenode.Retry, name string, done func(error)) {
	e := newEnvelope()
	e.command.Op = &logpb.Command_RemoveCachePool{RemoveCachePool: &logpb.RemoveCachePool{Name: name}}
	s.changeCache(c, retry, e, func(_ *namespace.Result, err error) { done(err) })
}

// AddCacheDirective implements namenode.Caching.
func (s *Server) AddCacheDirective(c metadata.Caller, retry namenode.Retry, d namenode.CacheDirectiveChange, force bool, done func(int64, error)) {
	e := newEnvelope()
	e.command.Op = &logpb.Command_AddCacheDirective{AddCacheDirective: &logpb.AddCacheDirective{Directive: directiveInfo(&d)}}
	s.withinLimit(c, &d, force, func(err error) {
		if err != nil {
			done(0, err)
			return
		}
		s.changeCache(c, retry, e, func(r *namespace.Result, err error) {
			if err != nil {
				done(0, err)
				return
			}
			done(r.Directive, nil)
		})
	})
}

// ModifyCacheDirective implements namenode.Caching. Only what comes into another pool is held against its limit.
func (s *Server) ModifyCacheDirective(c metadata.Caller, retry namenode.Retry, id int64, d namenode.CacheDirectiveChange, force bool, done func(error)) {
	e := newEnvelope()
	e.command.Op = &logpb.Command_ModifyCacheDirective{ModifyCacheDirective: &logpb.ModifyCacheDirective{Id: id, Directive: directiveInfo(&d)}}
	change := func(err error) {
		if err != nil {
			done(err)
			return
		}
		s.changeCache(c, retry, e, func(_ *namespace.Result, err error) { done(err) })
	}
	old, ok := s.ns.CacheDirective(id)
	if !ok || d.Pool == nil || *d.Pool == old.Pool {
		change(nil)
		return
	}
	if _, err := s.ns.CachePool(c, old.Pool, metadata.Write); err != nil {
		change(nil) // which says so
		return
	}
	moved := d
	if moved.Path == nil {
		moved.Path = &old.Path
	}
	if moved.Replication == nil {
		moved.Replication = &old.Replication
	}
	s.withinLimit(c, &moved, force, change)
}

// RemoveCacheDirective implements namenode.Caching.
func (s *Server) RemoveCacheDirective(c metadata.Caller, retry namenode.Retry, id int64, done func(error)) {
	e := newEnvelope()
	e.command.Op = &logpb.Command_RemoveCacheDirective{RemoveCacheDirective: &logpb.RemoveCacheDirective{Id: id}}
	s.changeCache(c, retry, e, func(_ *namespace.Result, err error) { done(err) })
}

// withinLimit refuses a directive that its pool's limit has no room for. All else that may be wrong the command finds.
func (s *Server) withinLimit(c metadata.Caller, d *namenode.CacheDirectiveChange, force bool, done func(error)) {
	r, err := s.leading()
	if err != nil || force || d.Path == nil || d.Pool == nil {
		done(err)
		return
	}
	path, err := metadata.CachePath(*d.Path)
	if err != nil {
		done(nil)
		return
	}
	s.read(&c, func(err error) {
		if err != nil {
			done(err)
			return
		}
		pool, err := s.ns.CachePool(c, *d.Pool, metadata.Write)
		replication := pool.Replication
		if d.Replication != nil {
			replication = *d.Replication
		}
		if err != nil || pool.Limit == metadata.CacheUnlimited || replication <= 0 || s.caches() != nil {
			done(nil)
			return
		}
		s.aside(c.User, nil, 0, func(error) {
			s.caching.await(s.ns.CachingVersion(), r.term, s.stopped)
			size, files := int64(0), 0
			err := s.ns.CachedFiles(path, func(page []namespace.CachedFile) error {
				if files += len(page); files > cacheScanFiles || s.reign.Load() != r {
					return errCacheFiles
				}
				for i := range page {
					size += page[i].Length
				}
				return nil
			})
			switch {
			case errors.Is(err, errCacheFiles):
				err = metadata.Errorf(metadata.ErrRetriable, "%s has more than %d files, or another namenode leads", path, cacheScanFiles)
			case err == nil:
				if left, ok := s.caching.reserve(&pool, size*int64(replication)); !ok {
					err = metadata.Errorf(metadata.ErrInvalidRequest, "Caching path %s of size %d bytes at replication %d would exceed pool %s's remaining capacity of %d bytes.",
						path, size, replication, pool.Name, left)
				}
			}
			done(err)
		})
	})
}

// listCache calls fn, on a goroutine of its own, when the figures know of the last change.
func (s *Server) listCache(c metadata.Caller, fn func(error)) {
	r, err := s.leading()
	if err != nil {
		fn(namenode.ErrStandbyRead)
		return
	}
	s.readLong(&c, func(err error) {
		if err == nil && s.group.Level() >= release.Caching {
			s.caching.await(s.ns.CachingVersion(), r.term, s.stopped)
		}
		fn(err)
	})
}

// CachePools implements namenode.Caching.
func (s *Server) CachePools(c metadata.Caller, after string, done func(*namenode.CachePoolPage, error)) {
	s.listCache(c, func(err error) {
		if err != nil {
			done(nil, err)
			return
		}
		listed, more := s.ns.CachePools(c, after, cachePage)
		page := &namenode.CachePoolPage{More: more}
		s.caching.mu.Lock()
		for _, p := range listed {
			one := namenode.ListedCachePool{CachePool: p.CachePool, Readable: p.Readable}
			if p.Readable {
				one.CacheFigures = s.caching.pools[p.Name]
			}
			page.Pools = append(page.Pools, one)
		}
		s.caching.mu.Unlock()
		done(page, nil)
	})
}

// CacheDirectives implements namenode.Caching.
func (s *Server) CacheDirectives(c metadata.Caller, after int64, f namenode.CacheFilter, done func(*namenode.CacheDirectivePage, error)) {
	s.listCache(c, func(err error) {
		var listed []metadata.CacheDirective
		var more bool
		if err == nil {
			listed, more, err = s.ns.CacheDirectives(c, after, namespace.CacheFilter(f), cachePage)
		}
		if err != nil {
			done(nil, err)
			return
		}
		page := &namenode.CacheDirectivePage{More: more}
		now := s.clock.wall()
		s.caching.mu.Lock()
		for _, d := range listed {
			page.Directives = append(page.Directives, namenode.ListedCacheDirective{CacheDirective: d, CacheFigures: s.caching.directives[d.ID], Expired: d.Expired(now)})
		}
		s.caching.mu.Unlock()
		done(page, nil)
	})
}
