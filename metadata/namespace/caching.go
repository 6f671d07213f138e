package namespace

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/tidwall/btree"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Limits of cache pools and directives, which are wholly in memory. One pool's users can use up no more than its part.
const (
	MaxCachePools      = 1024
	MaxCacheDirectives = 100_000
	// MaxPoolDirectives are those of one pool, maxPoolBytes what they may take in memory, maxCachingBytes what those of all may.
	MaxPoolDirectives = 10_000
	maxPoolBytes      = 8 << 20
	maxCachingBytes   = 64 << 20
	// directiveOverhead is what a directive counts beside its path.
	directiveOverhead = 128
	maxReplicas       = math.MaxInt16 // Java's
)

// cachePool is a pool with what it counts for.
type cachePool struct {
	metadata.CachePool
	hash       uint64
	directives int
	bytes      int
}

type cacheDirective struct {
	metadata.CacheDirective
	hash uint64
}

func (d *cacheDirective) size() int { return len(d.Path) + directiveOverhead }

// caching are the pools by name and the directives by number.
type caching struct {
	pools      btree.Map[string, *cachePool] // nobody changes what is in it
	directives btree.Map[int64, *cacheDirective]
	bytes      int // of all directives
	// version goes up with every change, and when all is replaced. It is no part of the state.
	version uint64
}

// clear forgets all but the version.
func (c *caching) clear() { *c = caching{version: c.version + 1} }

func poolKey(name string) string { return string(classPool) + name }

func directiveKey(id int64) string { return idKey(classCache, uint64(id)) }

func encodePool(p *metadata.CachePool) []byte {
	return marshal(nil, &logpb.CachePool{
		Owner: p.Owner, Group: p.Group, Mode: uint32(p.Mode), Limit: p.Limit, DefaultReplication: int32(p.Replication), MaxTtl: p.MaxTTL,
	})
}

func encodeDirective(d *metadata.CacheDirective) []byte {
	return marshal(nil, &logpb.CacheDirective{Path: d.Path, Replication: int32(d.Replication), Pool: d.Pool, Expires: int64(d.Expires)})
}

// putPool stores a pool in place of the one of its name, whose directives it has.
func (ns *Namespace) putPool(p metadata.CachePool) {
	key, value := poolKey(p.Name), encodePool(&p)
	one := &cachePool{CachePool: p, hash: hashRecord([]byte(key), value)}
	if old, ok := ns.caching.pools.Get(p.Name); ok {
		one.directives, one.bytes = old.directives, old.bytes
		ns.hash -= old.hash
	}
	ns.changed = true
	ns.caching.version++
	ns.caching.pools.Set(p.Name, one)
	ns.hash += one.hash
	ns.pending[key] = value
}

// dropPool removes a pool that has no directives any more.
func (ns *Namespace) dropPool(p *cachePool) {
	ns.changed = true
	ns.caching.version++
	ns.caching.pools.Delete(p.Name)
	ns.hash -= p.hash
	ns.pending[poolKey(p.Name)] = nil
}

func (ns *Namespace) putDirective(d metadata.CacheDirective) {
	key, value := directiveKey(d.ID), encodeDirective(&d)
	one := &cacheDirective{d, hashRecord([]byte(key), value)}
	ns.changed = true
	ns.caching.add(one)
	ns.hash += one.hash
	ns.pending[key] = value
}

func (ns *Namespace) dropDirective(d *cacheDirective) {
	ns.changed = true
	ns.caching.remove(d)
	ns.hash -= d.hash
	ns.pending[directiveKey(d.ID)] = nil
}

// add and remove count a directive for its pool, which is there.
func (c *caching) add(d *cacheDirective) {
	c.version++
	c.directives.Set(d.ID, d)
	c.count(d, 1)
}

func (c *caching) remove(d *cacheDirective) {
	c.version++
	c.directives.Delete(d.ID)
	c.count(d, -1)
}

func (c *caching) count(d *cacheDirective, n int) {
	c.bytes += n * d.size()
	if p, ok := c.pools.Get(d.Pool); ok {
		p.directives += n
		p.bytes += n * d.size()
	}
}

func (ns *Namespace) loadCaching() error {
	var bad error
	err := ns.view.Scan([]byte{classPool}, nil, func(key, value []byte) bool {
		var r logpb.CachePool
		if bad = r.UnmarshalVT(value); bad != nil {
			return false
		}
		p := metadata.CachePool{
			Name: string(key[1:]), Owner: strings.Clone(r.Owner), Group: strings.Clone(r.Group), Mode: metadata.Mode(r.Mode), Limit: r.Limit,
			Replication: int(r.DefaultReplication), MaxTTL: r.MaxTtl,
		}
		if p.Name == "" || string(encodePool(&p)) != string(value) {
			bad = fmt.Errorf("record %x", key)
			return false
		}
		ns.caching.pools.Set(p.Name, &cachePool{CachePool: p, hash: hashRecord(key, value)})
		return true
	})
	if err != nil || bad != nil {
		return cachingDamage(err, bad)
	}
	err = ns.view.Scan([]byte{classCache}, nil, func(key, value []byte) bool {
		var r logpb.CacheDirective
		if bad = r.UnmarshalVT(value); bad != nil {
			return false
		}
		d := metadata.CacheDirective{Path: strings.Clone(r.Path), Replication: int(r.Replication), Pool: strings.Clone(r.Pool), Expires: metadata.Time(r.Expires)}
		if len(key) == 9 {
			d.ID = int64(binary.BigEndian.Uint64(key[1:]))
		}
		_, known := ns.caching.pools.Get(d.Pool)
		if d.ID <= 0 || d.ID > ns.meta.lastCached || !known || string(encodeDirective(&d)) != string(value) {
			bad = fmt.Errorf("record %x", key)
			return false
		}
		ns.caching.add(&cacheDirective{d, hashRecord(key, value)})
		return true
	})
	return cachingDamage(err, bad)
}

func cachingDamage(err, bad error) error {
	if err == nil && bad != nil {
		err = fmt.Errorf("cache pools and directives: %w: %w", bad, metadata.ErrCorrupt)
	}
	return err
}

// caching checks that pools and directives are those of their records.
func (c *checker) caching() {
	ns := c.ns
	bytes := 0
	type count struct{ directives, bytes int }
	counts := map[string]count{}
	record := func(key string, want []byte, hash uint64) {
		value, err := ns.getNow(key)
		if err != nil {
			c.report("record %q: %w", key, err)
			return
		}
		h := hashRecord([]byte(key), value)
		if string(value) != string(want) || h != hash {
			c.report("the cache pool or directive of record %q is not that of the record", key)
		}
		c.hash += h
	}
	ns.caching.directives.Scan(func(id int64, d *cacheDirective) bool {
		record(directiveKey(id), encodeDirective(&d.CacheDirective), d.hash)
		if id != d.ID || id > ns.meta.lastCached {
			c.report("cache directive %d is under %d, the last one is %d", d.ID, id, ns.meta.lastCached)
		}
		n := counts[d.Pool]
		counts[d.Pool] = count{n.directives + 1, n.bytes + d.size()}
		bytes += d.size()
		return true
	})
	ns.caching.pools.Scan(func(name string, p *cachePool) bool {
		record(poolKey(name), encodePool(&p.CachePool), p.hash)
		if n := counts[name]; name != p.Name || n.directives != p.directives || n.bytes != p.bytes {
			c.report("cache pool %s has %+v, %d and %d are counted", name, n, p.directives, p.bytes)
		}
		delete(counts, name)
		return true
	})
	if len(counts) > 0 || bytes != ns.caching.bytes {
		c.report("%d pools of directives are not there, %d bytes of directives, %d are counted", len(counts), bytes, ns.caching.bytes)
	}
}

// mayCache checks what a caller may do in a pool: WRITE to have directives there, READ to see them.
func (c *caller) mayCache(p *metadata.CachePool, want metadata.Access) error {
	owner, member := c.user == p.Owner, c.inGroup(p.Group)
	has := func(shift int) bool { return metadata.Access(p.Mode>>shift)&want == want }
	if c.superuser || owner && has(6) || member && has(3) || !owner && !member && has(0) { // an owner in the group has both rights, unlike with files
		return nil
	}
	return metadata.Errorf(metadata.ErrPermission, "Permission denied while accessing pool %s: user %s does not have %s permissions.", p.Name, c.user, want)
}

// CachingVersion is another number whenever pools or directives have changed.
func (ns *Namespace) CachingVersion() uint64 {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return ns.caching.version
}

// Caching are all pools and directives in their order, and the CachingVersion that they are of.
func (ns *Namespace) Caching() (pools []metadata.CachePool, directives []metadata.CacheDirective, version uint64) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	ns.caching.pools.Scan(func(_ string, p *cachePool) bool {
		pools = append(pools, p.CachePool)
		return true
	})
	directives = make([]metadata.CacheDirective, 0, ns.caching.directives.Len())
	ns.caching.directives.Scan(func(_ int64, d *cacheDirective) bool {
		directives = append(directives, d.CacheDirective)
		return true
	})
	return pools, directives, ns.caching.version
}

// CachePool is a pool, if the caller may do something in it. Errors: ErrInvalidRequest, in HDFS's words; ErrPermission.
func (ns *Namespace) CachePool(c metadata.Caller, name string, want metadata.Access) (metadata.CachePool, error) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	p, ok := ns.caching.pools.Get(name)
	if !ok {
		return metadata.CachePool{}, unknownPool(name)
	}
	who := callerOf(c)
	if err := who.mayCache(&p.CachePool, want); err != nil {
		return metadata.CachePool{}, err
	}
	return p.CachePool, nil
}

// CacheDirective is one; ok: it is there.
func (ns *Namespace) CacheDirective(id int64) (d metadata.CacheDirective, ok bool) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if one, ok := ns.caching.directives.Get(id); ok {
		return one.CacheDirective, true
	}
	return d, false
}

// ListedPool is a pool as a caller may see it: without READ in it, its name.
type ListedPool struct {
	metadata.CachePool
	Readable bool
}

// CachePools is a page of the pools with names behind one.
func (ns *Namespace) CachePools(c metadata.Caller, after string, limit int) (page []ListedPool, more bool) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	who := callerOf(c)
	ns.caching.pools.Ascend(after, func(name string, p *cachePool) bool {
		if name == after {
			return true
		}
		if len(page) == limit {
			more = true
			return false
		}
		one := ListedPool{Readable: who.mayCache(&p.CachePool, metadata.Read) == nil}
		one.Name = name
		if one.Readable {
			one.CachePool = p.CachePool
		}
		page = append(page, one)
		return true
	})
	return page, more
}

// CacheFilter is which directives are asked for. What is nil does not matter.
type CacheFilter struct {
	ID         *int64
	Path, Pool *string
}

// CacheDirectives is a page of the directives with numbers above one, of pools that the caller may READ.
//
// Errors: ErrInvalidRequest for the number of a directive that is not there, and for a path that cannot be one.
func (ns *Namespace) CacheDirectives(c metadata.Caller, after int64, f CacheFilter, limit int) (page []metadata.CacheDirective, more bool, err error) {
	path := ""
	if f.Path != nil {
		if path, err = metadata.CachePath(*f.Path); err != nil {
			return nil, false, err
		}
	}
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if f.ID != nil {
		if _, ok := ns.caching.directives.Get(*f.ID); !ok {
			return nil, false, metadata.Errorf(metadata.ErrInvalidRequest, "Did not find requested id %d", *f.ID)
		}
		after = *f.ID - 1
	}
	who := callerOf(c)
	readable := map[string]bool{}
	ns.caching.directives.Ascend(after, func(id int64, d *cacheDirective) bool {
		switch {
		case id == after:
			return true
		case f.ID != nil && id != *f.ID:
			return false
		case len(page) == limit:
			more = true
			return false
		case f.Pool != nil && d.Pool != *f.Pool, f.Path != nil && d.Path != path:
			return true
		}
		ok, known := readable[d.Pool]
		if !known {
			if p, there := ns.caching.pools.Get(d.Pool); there {
				ok = who.mayCache(&p.CachePool, metadata.Read) == nil
			}
			readable[d.Pool] = ok
		}
		if ok {
			page = append(page, d.CacheDirective)
		}
		return true
	})
	return page, more, nil
}

// CachedFile is a file that a directive wants.
type CachedFile struct {
	// Length is that of its complete blocks, InBody how much of it is the body of a small file.
	Length, InBody int64
	// Blocks are the complete ones that datanodes have, Coding is the policy of those that are groups.
	Blocks []metadata.Block
	Coding metadata.ErasurePolicyID
}

// CachedFiles goes through what a directive with a path wants: the file, or the files in the directory, some at a time, and lets commands in between: what comes or goes meanwhile may be
// left out. fn is called without a lock, and its error ends the walk. Of what is not there, or cannot be reached, there are none.
func (ns *Namespace) CachedFiles(path string, fn func([]CachedFile) error) error {
	var id metadata.INodeID
	err := ns.find(metadata.Caller{Superuser: true}, path, func(p *place, _ *caller) error {
		if n := p.last(); n != nil && !n.isGhost() {
			id = n.id
		}
		return nil
	})
	switch metadata.KindOf(err) {
	case metadata.ErrPermission, metadata.ErrParentNotDirectory, metadata.ErrInvalidPath, metadata.ErrNotExist:
		err = nil
	}
	if err != nil || id == 0 {
		return err
	}
	var pages page
	for after, more := "", true; more; {
		var files []CachedFile
		err := ns.read(func() error {
			files, more = files[:0], false
			n, err := ns.byID(id)
			if err != nil || n == nil || !n.attached() {
				return err
			}
			if !n.isDir() {
				files = append(files, n.cachedFile())
				return nil
			}
			upTo, again, err := ns.turn(n, after, &pages, func(child *inode) error {
				if !child.isDir() {
					files = append(files, child.cachedFile())
				}
				return nil
			})
			if err == nil {
				after, more = upTo, again
			}
			return err
		})
		if err == nil && len(files) > 0 {
			err = fn(files)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (n *inode) cachedFile() CachedFile {
	f := n.file
	c := CachedFile{Coding: f.erasure}
	for i, b := range f.blocks {
		switch {
		case n.isBody(i):
			c.InBody += b.Length
		case i == len(f.blocks)-1 && f.lastState() != Complete:
			continue
		default:
			c.Blocks = append(c.Blocks, b)
		}
		c.Length += b.Length
	}
	return c
}
