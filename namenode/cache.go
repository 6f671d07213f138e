package namenode

import "github.com/gohops/hops/metadata"

// Caching are the calls about what datanodes keep in memory: pools, and directives in them. All are refused with ErrUnsupported before the cluster has been raised to release.Caching, but
// for the lists, which are empty then.
type Caching interface {
	AddCachePool(c metadata.Caller, retry Retry, p CachePoolChange, done func(error))
	ModifyCachePool(c metadata.Caller, retry Retry, p CachePoolChange, done func(error))
	RemoveCachePool(c metadata.Caller, retry Retry, name string, done func(error))
	// CachePools is a page of the pools behind a name.
	CachePools(c metadata.Caller, after string, done func(*CachePoolPage, error))
	// AddCacheDirective answers the number of the new directive. It is refused when the pool's limit would be exceeded, unless force is set; as is ModifyCacheDirective.
	AddCacheDirective(c metadata.Caller, retry Retry, d CacheDirectiveChange, force bool, done func(int64, error))
	ModifyCacheDirective(c metadata.Caller, retry Retry, id int64, d CacheDirectiveChange, force bool, done func(error))
	RemoveCacheDirective(c metadata.Caller, retry Retry, id int64, done func(error))
	// CacheDirectives is a page of the directives above a number. What is nil of f does not matter.
	CacheDirectives(c metadata.Caller, after int64, f CacheFilter, done func(*CacheDirectivePage, error))
}

// CachePoolChange is what is to be of a pool; what is nil stays, or becomes the default.
type CachePoolChange struct {
	Name         string
	Owner, Group *string
	Mode         *metadata.Mode
	Limit        *int64
	Replication  *int
	MaxTTL       *int64
}

// CacheDirectiveChange is what is to be of a directive; what is nil stays, or becomes the default.
type CacheDirectiveChange struct {
	Path        *string
	Replication *int
	Pool        *string
	Expires     *metadata.Expiration
}

// CacheFilter is which directives are asked for.
type CacheFilter struct {
	ID         *int64
	Path, Pool *string
}

// CacheFigures are what directives want, and have, in bytes in all replicas. A file counts as cached when all of it is.
type CacheFigures struct {
	BytesNeeded, BytesCached, FilesNeeded, FilesCached int64
}

// ListedCachePool is a pool with its figures. Who may not READ in it learns its name.
type ListedCachePool struct {
	metadata.CachePool
	Readable bool
	CacheFigures
}

// Overlimit is by how many bytes its directives want more than its limit.
func (p *ListedCachePool) Overlimit() int64 { return max(p.BytesNeeded-p.Limit, 0) }

// CachePoolPage is a page of pools.
type CachePoolPage struct {
	Pools []ListedCachePool
	More  bool
}

// ListedCacheDirective is a directive with its figures.
type ListedCacheDirective struct {
	metadata.CacheDirective
	CacheFigures
	Expired bool
}

// CacheDirectivePage is a page of directives.
type CacheDirectivePage struct {
	Directives []ListedCacheDirective
	More       bool
}
