package namespace

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

func unknownPool(name string) error {
	return metadata.Errorf(metadata.ErrInvalidRequest, "Unknown pool %s", printable(name))
}

// checkPool refuses what no pool can be (CachePoolInfo.validate).
func checkPool(info *logpb.CachePoolInfo) error {
	invalid := func(message string, args ...any) error {
		return metadata.Errorf(metadata.ErrInvalidRequest, message, args...)
	}
	switch {
	case info.GetLimit() < 0:
		return invalid("Limit is negative.")
	case info.GetDefaultReplication() < 0:
		return invalid("Default Replication is negative")
	case info.GetDefaultReplication() > maxReplicas:
		return invalid("Default Replication is above %d", maxReplicas)
	case info.GetMaxTtl() < 0:
		return invalid("Max relative expiry is negative.")
	case info.GetMaxTtl() > metadata.CacheForever:
		return invalid("Max relative expiry is too big.")
	}
	if err := checkPoolName(info.Name); err != nil {
		return err
	}
	if err := checkPrincipal(info.GetOwner()); err != nil {
		return err
	}
	return checkPrincipal(info.GetGroup())
}

func checkPoolName(name string) error {
	switch {
	case name == "":
		return metadata.Errorf(metadata.ErrIO, "invalid empty cache pool name")
	case len(name) > MaxName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return metadata.Errorf(metadata.ErrInvalidRequest, "Cache pool name %q is longer than %d bytes, not UTF-8 or has control characters", printable(name), MaxName)
	}
	return nil
}

// setPool gives a pool what a command says of it.
func setPool(p *metadata.CachePool, info *logpb.CachePoolInfo) {
	if info.Owner != nil {
		p.Owner = strings.Clone(*info.Owner)
	}
	if info.Group != nil {
		p.Group = strings.Clone(*info.Group)
	}
	if info.Mode != nil {
		p.Mode = metadata.Mode(*info.Mode & modeMask)
	}
	if info.Limit != nil {
		p.Limit = *info.Limit
	}
	if info.DefaultReplication != nil {
		p.Replication = int(*info.DefaultReplication)
	}
	if info.MaxTtl != nil {
		p.MaxTTL = *info.MaxTtl
	}
}

// addCachePool makes a pool.
//
// Errors: ErrPermission for all but the superuser; ErrInvalidRequest for one that is there, that cannot be, or when there are too many; ErrIO without a
// name, or without a group.
func (ns *Namespace) addCachePool(t *txn, op *logpb.AddCachePool) {
	info := op.Pool
	err := checkPool(info)
	_, there := ns.caching.pools.Get(info.Name)
	switch {
	case !t.caller.superuser:
		err = metadata.NeedsSuperuser(t.caller.user, "addCachePool")
	case err != nil:
	case there:
		err = metadata.Errorf(metadata.ErrInvalidRequest, "Cache pool %s already exists.", info.Name)
	case info.Group == nil && len(t.caller.groups) == 0:
		err = metadata.Errorf(metadata.ErrIO, "There is no primary group for UGI %s", t.caller.user)
	case ns.caching.pools.Len() >= MaxCachePools:
		err = metadata.Errorf(metadata.ErrInvalidRequest, "There are %d cache pools, which is the limit", MaxCachePools)
	}
	if err != nil {
		t.fail(err)
		return
	}
	p := metadata.CachePool{
		Name: strings.Clone(info.Name), Owner: strings.Clone(t.caller.user), Mode: 0o755, Limit: metadata.CacheUnlimited, Replication: 1, MaxTTL: metadata.CacheForever,
	}
	if len(t.caller.groups) > 0 {
		p.Group = strings.Clone(t.caller.groups[0])
	}
	setPool(&p, info)
	ns.putPool(p)
	t.result.OK = true
}

// modifyCachePool changes a pool.
//
// Errors: ErrPermission for all but the superuser; ErrInvalidRequest for one that is not there, or cannot be so; ErrIO without a name.
func (ns *Namespace) modifyCachePool(t *txn, op *logpb.ModifyCachePool) {
	info := op.Pool
	err := checkPool(info)
	old, there := ns.caching.pools.Get(info.Name)
	switch {
	case !t.caller.superuser:
		err = metadata.NeedsSuperuser(t.caller.user, "modifyCachePool")
	case err == nil && !there:
		err = metadata.Errorf(metadata.ErrInvalidRequest, "Cache pool %s does not exist.", info.Name)
	}
	if err != nil {
		t.fail(err)
		return
	}
	p := old.CachePool
	setPool(&p, info)
	ns.putPool(p)
	t.result.OK = true
}

// removeCachePool removes a pool and its directives.
//
// Errors: ErrPermission for all but the superuser; ErrInvalidRequest for one that is not there; ErrIO without a name.
func (ns *Namespace) removeCachePool(t *txn, op *logpb.RemoveCachePool) {
	p, there := ns.caching.pools.Get(op.Name)
	var err error
	switch {
	case !t.caller.superuser:
		err = metadata.NeedsSuperuser(t.caller.user, "removeCachePool")
	case op.Name == "":
		err = checkPoolName("")
	case !there:
		err = metadata.Errorf(metadata.ErrInvalidRequest, "Cannot remove non-existent cache pool %s", printable(op.Name))
	}
	if err != nil {
		t.fail(err)
		return
	}
	var own []*cacheDirective
	ns.caching.directives.Scan(func(_ int64, d *cacheDirective) bool {
		if d.Pool == op.Name {
			own = append(own, d)
		}
		return true
	})
	for _, d := range own {
		ns.dropDirective(d)
	}
	ns.dropPool(p)
	t.result.OK = true
}

// poolOf is the pool that a directive is, or is to be, in, in which the caller has to have WRITE.
func (ns *Namespace) poolOf(t *txn, name string) (*cachePool, error) {
	if name == "" {
		return nil, metadata.Errorf(metadata.ErrInvalidRequest, "Invalid empty pool name.")
	}
	p, ok := ns.caching.pools.Get(name)
	if !ok {
		return nil, unknownPool(name)
	}
	return p, t.caller.mayCache(&p.CachePool, metadata.Write)
}

// expiry is when a directive of a pool ends that is to end then.
func (ns *Namespace) expiry(e metadata.Expiration, p *cachePool) (metadata.Time, error) {
	now := int64(ns.meta.now)
	if e.Millis < 0 {
		return 0, metadata.Errorf(metadata.ErrInvalidRequest, "Cannot set a negative expiration: %d", e.Millis)
	}
	relative := e.Millis
	if !e.Relative {
		relative -= now
	}
	if relative > metadata.CacheForever {
		return 0, metadata.Errorf(metadata.ErrInvalidRequest, "Expiration %v is too far in the future!", e)
	}
	if relative > p.MaxTTL {
		return 0, metadata.Errorf(metadata.ErrInvalidRequest, "Expiration %v exceeds the max relative expiration time of %d ms.", e, p.MaxTTL)
	}
	if e.Relative {
		return metadata.Time(now + e.Millis), nil
	}
	return metadata.Time(e.Millis), nil
}

// room refuses a directive for which there is none. old is the one that it takes the place of, or nil.
func (ns *Namespace) room(p *cachePool, d *metadata.CacheDirective, old *cacheDirective) error {
	size := (&cacheDirective{CacheDirective: *d}).size()
	n, poolBytes, bytes := p.directives, p.bytes+size, ns.caching.bytes+size
	all := ns.caching.directives.Len()
	if old != nil {
		all--
		bytes -= old.size()
		if old.Pool == p.Name {
			n--
			poolBytes -= old.size()
		}
	}
	switch {
	case n >= MaxPoolDirectives || poolBytes > maxPoolBytes:
		return metadata.Errorf(metadata.ErrInvalidRequest, "Cache pool %s has %d directives, whose paths take %d bytes: %d, and %d bytes, are the limit", p.Name, p.directives, p.bytes, MaxPoolDirectives, maxPoolBytes)
	case all >= MaxCacheDirectives || bytes > maxCachingBytes:
		return metadata.Errorf(metadata.ErrInvalidRequest, "There are %d cache directives, whose paths take %d bytes: %d, and %d bytes, are the limit", ns.caching.directives.Len(), ns.caching.bytes, MaxCacheDirectives, maxCachingBytes)
	}
	return nil
}

func checkReplicas(n int) error {
	switch {
	case n <= 0:
		return metadata.Errorf(metadata.ErrInvalidRequest, "Invalid replication factor %d <= 0", n)
	case n > maxReplicas:
		return metadata.Errorf(metadata.ErrInvalidArgument, "Out of range: %d", n)
	}
	return nil
}

// addCacheDirective makes a directive; its number is in the result.
//
// Errors: ErrPermission without WRITE in the pool; ErrInvalidRequest for what cannot be, in HDFS's words.
func (ns *Namespace) addCacheDirective(t *txn, op *logpb.AddCacheDirective) {
	info := op.Directive
	d, err := ns.newDirective(t, info)
	if err != nil {
		t.fail(err)
		return
	}
	ns.meta.lastCached++
	d.ID = ns.meta.lastCached
	ns.putDirective(d)
	t.result.OK, t.result.Directive = true, d.ID
}

func (ns *Namespace) newDirective(t *txn, info *logpb.CacheDirectiveInfo) (d metadata.CacheDirective, err error) {
	if info.Pool == nil {
		return d, metadata.Errorf(metadata.ErrInvalidRequest, "No pool specified.")
	}
	p, err := ns.poolOf(t, *info.Pool)
	if err != nil {
		return d, err
	}
	if info.Path == nil {
		return d, metadata.Errorf(metadata.ErrInvalidRequest, "No path specified.")
	}
	path, err := metadata.CachePath(*info.Path)
	if err != nil {
		return d, err
	}
	d = metadata.CacheDirective{Path: path, Replication: p.Replication, Pool: p.Name, Expires: ns.meta.now + metadata.Time(p.MaxTTL)}
	if info.Replication != nil {
		d.Replication = int(*info.Replication)
	}
	if err := checkReplicas(d.Replication); err != nil {
		return d, err
	}
	if info.Expires != nil {
		if d.Expires, err = ns.expiry(metadata.Expiration{Millis: *info.Expires, Relative: info.Relative}, p); err != nil {
			return d, err
		}
	}
	if ns.meta.lastCached >= 1<<56-1 { // as many as answers are kept of
		return d, metadata.Errorf(metadata.ErrIO, "No more available IDs.")
	}
	return d, ns.room(p, &d, nil)
}

// findDirective is the directive of a number.
func (ns *Namespace) findDirective(id int64) (*cacheDirective, error) {
	if id <= 0 {
		return nil, metadata.Errorf(metadata.ErrInvalidRequest, "Invalid negative ID.")
	}
	if d, ok := ns.caching.directives.Get(id); ok {
		return d, nil
	}
	return nil, metadata.Errorf(metadata.ErrInvalidRequest, "No directive with ID %d found.", id)
}

// modifyCacheDirective changes a directive.
//
// Errors: ErrPermission without WRITE in its pool and in the one that it is to be in; ErrInvalidRequest for what cannot be, in HDFS's words.
func (ns *Namespace) modifyCacheDirective(t *txn, op *logpb.ModifyCacheDirective) {
	old, err := ns.findDirective(op.Id)
	var d metadata.CacheDirective
	if err == nil {
		d, err = ns.changedDirective(t, old, op.Directive)
	}
	if err != nil {
		t.fail(err)
		return
	}
	ns.dropDirective(old)
	ns.putDirective(d)
	t.result.OK = true
}

func (ns *Namespace) changedDirective(t *txn, old *cacheDirective, info *logpb.CacheDirectiveInfo) (d metadata.CacheDirective, err error) {
	p, err := ns.poolOf(t, old.Pool)
	if err != nil {
		return d, err
	}
	d = old.CacheDirective
	if info.Path != nil {
		if d.Path, err = metadata.CachePath(*info.Path); err != nil {
			return d, err
		}
	}
	if info.Replication != nil {
		d.Replication = int(*info.Replication)
	}
	if err := checkReplicas(d.Replication); err != nil {
		return d, err
	}
	if info.Pool != nil && *info.Pool != old.Pool {
		if p, err = ns.poolOf(t, *info.Pool); err != nil {
			return d, err
		}
		d.Pool = p.Name
	}
	e := metadata.Expiration{Millis: int64(old.Expires)}
	if info.Expires != nil {
		e = metadata.Expiration{Millis: *info.Expires, Relative: info.Relative}
	}
	if d.Expires, err = ns.expiry(e, p); err != nil {
		return d, err
	}
	return d, ns.room(p, &d, old)
}

// removeCacheDirective removes a directive.
//
// Errors: ErrPermission without WRITE in its pool; ErrInvalidRequest for one that is not there.
func (ns *Namespace) removeCacheDirective(t *txn, op *logpb.RemoveCacheDirective) {
	d, err := ns.findDirective(op.Id)
	if err == nil {
		_, err = ns.poolOf(t, d.Pool)
	}
	if err != nil {
		t.fail(err)
		return
	}
	ns.dropDirective(d)
	t.result.OK = true
}
