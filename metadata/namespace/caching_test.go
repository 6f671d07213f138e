package namespace

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// modelCaching are the cache pools and directives told plainly.
type modelCaching struct {
	pools      map[string]metadata.CachePool
	directives map[int64]metadata.CacheDirective
	last       int64
}

func (m *modelCaching) compare(t *rapid.T, name string, ns *Namespace) {
	pools, directives, _ := ns.Caching()
	byName := func(a, b metadata.CachePool) int { return cmp.Compare(a.Name, b.Name) }
	byID := func(a, b metadata.CacheDirective) int { return cmp.Compare(a.ID, b.ID) }
	if want := slices.SortedFunc(maps.Values(m.pools), byName); !slices.Equal(pools, want) {
		t.Fatalf("%s: the cache pools are %v, the model's %v", name, pools, want)
	}
	if want := slices.SortedFunc(maps.Values(m.directives), byID); !slices.Equal(directives, want) {
		t.Fatalf("%s: the cache directives are %v, the model's %v", name, directives, want)
	}
}

// may says whether a user may write in a pool.
func (m *modelCaching) may(c metadata.Caller, pool string) bool {
	p := m.pools[pool]
	if c.Superuser {
		return true
	}
	mode := p.Mode & 0o002
	if c.User == p.Owner {
		mode = p.Mode & 0o200
	}
	if slices.Contains(c.Groups, p.Group) {
		if c.User != p.Owner {
			mode = 0
		}
		mode |= p.Mode & 0o020
	}
	return mode != 0
}

// changeCaching does one of the things that can be done to pools and directives.
func (s *machine) changeCaching(t *rapid.T) {
	m := &s.caches
	if m.pools == nil {
		m.pools, m.directives = map[string]metadata.CachePool{}, map[int64]metadata.CacheDirective{}
	}
	now := s.w.now + 10 // of the command
	c := drawCaller(t)
	pool := rapid.SampledFrom([]string{"p", "q", "r"}).Draw(t, "pool")
	_, there := m.pools[pool]
	info := func() *logpb.CachePoolInfo {
		i := &logpb.CachePoolInfo{Name: pool}
		if rapid.Bool().Draw(t, "owned") {
			i.Owner, i.Group = new(rapid.SampledFrom([]string{"alice", "bob"}).Draw(t, "owner")), new(rapid.SampledFrom([]string{"staff", "dev"}).Draw(t, "group"))
		}
		if rapid.Bool().Draw(t, "moded") {
			i.Mode = new(rapid.SampledFrom([]uint32{0o777, 0o700, 0o020, 0}).Draw(t, "mode"))
		}
		if rapid.Bool().Draw(t, "limited") {
			i.Limit, i.DefaultReplication = new(rapid.Int64Range(-1, 5).Draw(t, "limit")), new(rapid.Int32Range(-1, 3).Draw(t, "default"))
			i.MaxTtl = new(rapid.Int64Range(-1, 100).Draw(t, "most"))
		}
		return i
	}
	apply := func(p metadata.CachePool, i *logpb.CachePoolInfo) metadata.CachePool {
		if i.Owner != nil {
			p.Owner, p.Group = *i.Owner, *i.Group
		}
		if i.Mode != nil {
			p.Mode = metadata.Mode(*i.Mode)
		}
		if i.Limit != nil {
			p.Limit, p.Replication, p.MaxTTL = *i.Limit, int(*i.DefaultReplication), *i.MaxTtl
		}
		return p
	}
	sound := func(i *logpb.CachePoolInfo) bool {
		return min(i.GetLimit(), int64(i.GetDefaultReplication()), i.GetMaxTtl()) >= 0
	}
	directive := func() *logpb.CacheDirectiveInfo {
		d := &logpb.CacheDirectiveInfo{}
		if rapid.IntRange(0, 5).Draw(t, "pathless") > 0 {
			d.Path = new(rapid.SampledFrom([]string{"/a", "/a//b/", "a", "/a/..", "/"}).Draw(t, "path"))
		}
		if rapid.Bool().Draw(t, "replicated") {
			d.Replication = new(rapid.Int32Range(0, 3).Draw(t, "replication"))
		}
		if rapid.IntRange(0, 5).Draw(t, "poolless") > 0 {
			d.Pool = &pool
		}
		if rapid.Bool().Draw(t, "ends") {
			d.Relative = rapid.Bool().Draw(t, "relative")
			d.Expires = new(rapid.Int64Range(-1, 110).Draw(t, "expires"))
			if !d.Relative {
				*d.Expires += int64(now) - 5
			}
		}
		return d
	}
	// change is what a directive becomes; ok: it can.
	change := func(d metadata.CacheDirective, i *logpb.CacheDirectiveInfo) (_ metadata.CacheDirective, ok bool) {
		if i.Path != nil {
			switch *i.Path {
			case "/a", "/":
				d.Path = *i.Path
			case "/a//b/":
				d.Path = "/a/b"
			default:
				return d, false
			}
		}
		if i.Replication != nil {
			d.Replication = int(*i.Replication)
		}
		if i.Pool != nil {
			d.Pool = *i.Pool
		}
		p, ok := m.pools[d.Pool]
		if i.Expires != nil {
			if d.Expires = metadata.Time(*i.Expires); i.Relative {
				d.Expires += now
			}
			ok = ok && *i.Expires >= 0
		}
		return d, ok && d.Replication > 0 && int64(d.Expires-now) <= p.MaxTTL
	}
	same := func(what string, r *Result, want bool) bool {
		if r.OK != want || (r.Err == nil) != want {
			t.Fatalf("%s: %v, %v, the model says %v", what, r.OK, r.Err, want)
		}
		return want
	}
	which := func() (int64, metadata.CacheDirective, bool) {
		id := rapid.Int64Range(0, max(m.last, 1)).Draw(t, "directive")
		d, ok := m.directives[id]
		return id, d, ok && m.may(c, d.Pool)
	}
	switch rapid.IntRange(0, 8).Draw(t, "what") {
	case 0, 1:
		i := info()
		ok := c.Superuser && !there && sound(i) && (i.Group != nil || len(c.Groups) > 0)
		if same("add pool", s.do(t, c, &logpb.AddCachePool{Pool: i}), ok) {
			p := metadata.CachePool{Name: pool, Owner: c.User, Mode: 0o755, Limit: metadata.CacheUnlimited, Replication: 1, MaxTTL: metadata.CacheForever}
			if len(c.Groups) > 0 {
				p.Group = c.Groups[0]
			}
			m.pools[pool] = apply(p, i)
		}
	case 2:
		i := info()
		if same("modify pool", s.do(t, c, &logpb.ModifyCachePool{Pool: i}), c.Superuser && there && sound(i)) {
			m.pools[pool] = apply(m.pools[pool], i)
		}
	case 3:
		if rapid.IntRange(0, 2).Draw(t, "seldom") > 0 {
			t.Skip("pools stay for a while")
		}
		if same("remove pool", s.do(t, c, &logpb.RemoveCachePool{Name: pool}), c.Superuser && there) {
			delete(m.pools, pool)
			maps.DeleteFunc(m.directives, func(_ int64, d metadata.CacheDirective) bool { return d.Pool == pool })
		}
	case 4, 5:
		i := directive()
		p := m.pools[pool]
		d, ok := change(metadata.CacheDirective{Replication: p.Replication, Expires: now + metadata.Time(p.MaxTTL)}, i)
		r := s.do(t, c, &logpb.AddCacheDirective{Directive: i})
		if same("add directive", r, ok && i.Path != nil && i.Pool != nil && m.may(c, pool)) {
			m.last++
			d.ID = m.last
			m.directives[m.last] = d
			if r.Directive != m.last {
				t.Fatalf("directive %d, want %d", r.Directive, m.last)
			}
		}
	case 6, 7:
		id, old, ok := which()
		i := directive()
		d, can := change(old, i)
		if same("modify directive", s.do(t, c, &logpb.ModifyCacheDirective{Id: id, Directive: i}), ok && can && m.may(c, d.Pool)) {
			m.directives[id] = d
		}
	case 8:
		id, _, ok := which()
		if same("remove directive", s.do(t, c, &logpb.RemoveCacheDirective{Id: id}), ok) {
			delete(m.directives, id)
		}
	}
}

// What goes wrong says so in HDFS's words.
func TestCachingIsRefusedAsInHDFS(t *testing.T) {
	w := newWorld(t, Config{})
	do := func(c metadata.Caller, op any) error { return w.do(c, op).Err }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	root := metadata.Caller{User: "hdfs", Groups: []string{"supergroup"}, Superuser: true}
	must(do(root, &logpb.AddCachePool{Pool: &logpb.CachePoolInfo{Name: "p", Owner: new("bob"), Group: new("staff"), Mode: new(uint32(0o700)), MaxTtl: new(int64(60_000))}}))
	must(do(root, &logpb.AddCachePool{Pool: &logpb.CachePoolInfo{Name: "q"}}))
	in := func(path, pool string) *logpb.CacheDirectiveInfo {
		return &logpb.CacheDirectiveInfo{Path: &path, Pool: &pool}
	}
	add := func(path, pool string) *logpb.AddCacheDirective {
		return &logpb.AddCacheDirective{Directive: in(path, pool)}
	}
	must(do(bob, add("/data", "p")))
	ending := func(ms int64, relative bool) *logpb.AddCacheDirective {
		op := add("/data", "p")
		op.Directive.Expires, op.Directive.Relative = &ms, relative
		return op
	}
	for _, test := range []struct {
		c    metadata.Caller
		op   any
		kind *metadata.Kind
		want string
	}{
		{root, &logpb.AddCachePool{Pool: &logpb.CachePoolInfo{Name: "p"}}, metadata.ErrInvalidRequest, "Cache pool p already exists."},
		{root, &logpb.AddCachePool{Pool: &logpb.CachePoolInfo{}}, metadata.ErrIO, "invalid empty cache pool name"},
		{root, &logpb.AddCachePool{Pool: &logpb.CachePoolInfo{Name: "n", Limit: new(int64(-1))}}, metadata.ErrInvalidRequest, "Limit is negative."},
		{root, &logpb.AddCachePool{Pool: &logpb.CachePoolInfo{Name: "n", MaxTtl: new(metadata.CacheForever + 1)}}, metadata.ErrInvalidRequest, "Max relative expiry is too big."},
		{bob, &logpb.AddCachePool{Pool: &logpb.CachePoolInfo{Name: "n"}}, metadata.ErrPermission, "Access denied for user bob. Superuser privilege is required for operation addCachePool"},
		{root, &logpb.ModifyCachePool{Pool: &logpb.CachePoolInfo{Name: "n"}}, metadata.ErrInvalidRequest, "Cache pool n does not exist."},
		{root, &logpb.RemoveCachePool{Name: "n"}, metadata.ErrInvalidRequest, "Cannot remove non-existent cache pool n"},
		{bob, add("/data", "n"), metadata.ErrInvalidRequest, "Unknown pool n"},
		{bob, add("/data", ""), metadata.ErrInvalidRequest, "Invalid empty pool name."},
		{bob, &logpb.AddCacheDirective{Directive: &logpb.CacheDirectiveInfo{Path: new("/data")}}, metadata.ErrInvalidRequest, "No pool specified."},
		{bob, &logpb.AddCacheDirective{Directive: &logpb.CacheDirectiveInfo{Pool: new("p")}}, metadata.ErrInvalidRequest, "No path specified."},
		{bob, add("data", "p"), metadata.ErrInvalidRequest, "Invalid path 'data'."},
		{alice, add("/data", "p"), metadata.ErrPermission, "Permission denied while accessing pool p: user alice does not have WRITE permissions."},
		{bob, ending(-1, true), metadata.ErrInvalidRequest, "Cannot set a negative expiration: -1"},
		{bob, ending(61_000, true), metadata.ErrInvalidRequest, "Expiration 000:00:01:01.000 exceeds the max relative expiration time of 60000 ms."},
		{bob, &logpb.ModifyCacheDirective{Id: 7, Directive: in("/data", "p")}, metadata.ErrInvalidRequest, "No directive with ID 7 found."},
		{bob, &logpb.ModifyCacheDirective{Id: 1, Directive: in("/data", "q")}, metadata.ErrPermission, "Permission denied while accessing pool q: user bob does not have WRITE permissions."},
		{bob, &logpb.ModifyCacheDirective{Id: 1, Directive: &logpb.CacheDirectiveInfo{Replication: new(int32(0))}}, metadata.ErrInvalidRequest, "Invalid replication factor 0 <= 0"},
		{alice, &logpb.RemoveCacheDirective{Id: 1}, metadata.ErrPermission, "Permission denied while accessing pool p: user alice does not have WRITE permissions."},
		{bob, &logpb.RemoveCacheDirective{Id: 0}, metadata.ErrInvalidRequest, "Invalid negative ID."},
		{bob, &logpb.RemoveCacheDirective{Id: 7}, metadata.ErrInvalidRequest, "No directive with ID 7 found."},
	} {
		before := w.ns.Hash()
		err := do(test.c, test.op)
		if err == nil || err.Error() != test.want || metadata.KindOf(err) != test.kind {
			t.Errorf("%T: %v, want %s", test.op, err, test.want)
		}
		if _, ok := test.op.(*logpb.AddCacheDirective); ok && before == 0 {
			t.Error("no state")
		}
	}
	w.check()
}

// A request that is repeated has its effect once, and the same answer.
func TestRepeatedCacheDirectiveIsOne(t *testing.T) {
	w := newWorld(t, Config{})
	root := metadata.Caller{User: "hdfs", Groups: []string{"supergroup"}, Superuser: true}
	if r := w.do(root, &logpb.AddCachePool{Pool: &logpb.CachePoolInfo{Name: "p"}}); r.Err != nil {
		t.Fatal(r.Err)
	}
	client := []byte("0123456789abcdef")
	op := &logpb.AddCacheDirective{Directive: &logpb.CacheDirectiveInfo{Path: new("/d"), Pool: new("p")}}
	ask := func() *Result {
		cmd := command(root, op)
		cmd.ClientId, cmd.CallId = client, 7
		return w.apply(cmd)
	}
	first := ask()
	w.reopen()
	again := ask()
	if first.Err != nil || first.Directive != 1 || !again.Replayed || again.Directive != 1 {
		t.Errorf("%+v, then %+v", first, again)
	}
	if _, all, _ := w.ns.Caching(); len(all) != 1 {
		t.Errorf("%v", all)
	}
	w.check()
}

// One pool's users take what is theirs, and nothing of the others'.
func TestCacheDirectivesAreBounded(t *testing.T) {
	w := newWorld(t, Config{})
	root := metadata.Caller{User: "hdfs", Groups: []string{"supergroup"}, Superuser: true}
	for _, pool := range []string{"p", "q"} {
		if r := w.do(root, &logpb.AddCachePool{Pool: &logpb.CachePoolInfo{Name: pool}}); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	long := "/" + strings.Repeat("x", metadata.MaxPathLength-10)
	add := func(pool string) error {
		return w.do(root, &logpb.AddCacheDirective{Directive: &logpb.CacheDirectiveInfo{Path: &long, Pool: &pool}}).Err
	}
	n := 0
	for ; n <= maxPoolBytes/len(long); n++ {
		if err := add("p"); err != nil {
			if !errors.Is(err, metadata.ErrInvalidRequest) {
				t.Fatal(err)
			}
			break
		}
	}
	if n < 1000 || n > maxPoolBytes/len(long) {
		t.Errorf("%d directives of %d bytes", n, len(long))
	}
	if err := add("q"); err != nil {
		t.Error(err)
	}
	if r := w.do(root, &logpb.RemoveCachePool{Name: "p"}); r.Err != nil {
		t.Error(r.Err)
	}
	if err := add("q"); err != nil {
		t.Error(err)
	}
	w.check()
}

func TestCacheListsComeInPages(t *testing.T) {
	w := newWorld(t, Config{})
	root := metadata.Caller{User: "hdfs", Groups: []string{"supergroup"}, Superuser: true}
	for i := range 5 {
		mode := uint32(0o755)
		if i == 2 {
			mode = 0o700
		}
		if r := w.do(root, &logpb.AddCachePool{Pool: &logpb.CachePoolInfo{Name: fmt.Sprint("p", i), Mode: &mode}}); r.Err != nil {
			t.Fatal(r.Err)
		}
		for j := range 3 {
			if r := w.do(root, &logpb.AddCacheDirective{Directive: &logpb.CacheDirectiveInfo{Path: new(fmt.Sprint("/d", j)), Pool: new(fmt.Sprint("p", i))}}); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	var names []string
	for after, more := "", true; more; {
		var page []ListedPool
		page, more = w.ns.CachePools(bob, after, 2)
		for _, p := range page {
			after = p.Name
			names = append(names, fmt.Sprint(p.Name, p.Readable, p.Owner))
		}
	}
	if got := strings.Join(names, " "); got != "p0truehdfs p1truehdfs p2false p3truehdfs p4truehdfs" {
		t.Error(got)
	}
	list := func(c metadata.Caller, f CacheFilter) (ids []int64) {
		for after, more := int64(0), true; more; {
			page, again, err := w.ns.CacheDirectives(c, after, f, 2)
			if err != nil {
				t.Fatal(err)
			}
			more = again
			for _, d := range page {
				after = d.ID
				ids = append(ids, d.ID)
			}
		}
		return ids
	}
	for _, test := range []struct {
		c    metadata.Caller
		f    CacheFilter
		want string
	}{
		{bob, CacheFilter{}, "[1 2 3 4 5 6 10 11 12 13 14 15]"},
		{root, CacheFilter{Path: new("/d1/")}, "[2 5 8 11 14]"},
		{bob, CacheFilter{Pool: new("p2")}, "[]"},
		{root, CacheFilter{Pool: new("p2"), Path: new("/d0")}, "[7]"},
		{bob, CacheFilter{ID: new(int64(5))}, "[5]"},
		{bob, CacheFilter{ID: new(int64(8))}, "[]"},
	} {
		if got := fmt.Sprint(list(test.c, test.f)); got != test.want {
			t.Errorf("%+v: %s, want %s", test.f, got, test.want)
		}
	}
	if _, _, err := w.ns.CacheDirectives(bob, 0, CacheFilter{ID: new(int64(99))}, 2); err == nil || err.Error() != "Did not find requested id 99" {
		t.Error(err)
	}
	w.reopen()
	if got := fmt.Sprint(list(bob, CacheFilter{})); got != "[1 2 3 4 5 6 10 11 12 13 14 15]" {
		t.Error(got)
	}
}
