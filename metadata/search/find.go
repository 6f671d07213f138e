package search

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/internal/glob"
	"github.com/gohops/hops/metadata"
)

const (
	maxPattern = 1024
	// maxLooked and maxTime are how much work a request does, and maxBytes is about how much memory an answer takes before it ends.
	maxLooked = 50_000
	maxTime   = 300 * time.Millisecond
	maxBytes  = 512 << 10
	// stint is how long a request works before it lets others have the processor for as long.
	stint = 10 * time.Millisecond
	// glance is how many entries are looked at between two looks at the clock.
	glance = 16
	// probe is how far the number of candidates is counted.
	probe = 256
)

// query is a metadata.Query that was understood.
type query struct {
	metadata.Query
	name        *regexp.Regexp
	min, max    int64
	sized       bool
	files, dirs bool
	prefix      string // of names
	exact       bool
	conditions  []tag // of Tags with values
	unvalued    []string
	top         metadata.INodeID
	caller      metadata.Caller
}

func parse(q metadata.Query) (*query, error) {
	bad := func(format string, args ...any) error {
		return metadata.Errorf(metadata.ErrInvalidArgument, format, args...)
	}
	p := &query{Query: q, min: 0, max: math.MaxInt64, files: q.Files || !q.Directories, dirs: q.Directories || !q.Files}
	if !strings.HasPrefix(q.Path, "/") {
		return nil, bad("search: path %.100q is not absolute", q.Path)
	}
	if len(q.Name) > maxPattern {
		return nil, bad("search: the pattern of names has %d bytes, %d is the most", len(q.Name), maxPattern)
	}
	if q.Name != "" {
		pattern := q.Name
		if q.Fold {
			pattern = strings.ToLower(pattern)
		}
		var err error
		if p.name, err = glob.Compile(pattern); err != nil {
			return nil, bad("%v", err)
		}
		if !q.Fold {
			p.prefix, p.exact = glob.Prefix(q.Name)
		}
	}
	if len(q.Tags) > metadata.MaxQueryTags {
		return nil, bad("search: %d tags, %d is the most", len(q.Tags), metadata.MaxQueryTags)
	}
	for _, t := range q.Tags {
		name := strings.TrimPrefix(t.Name, "user.")
		a := metadata.XAttr{Namespace: metadata.XAttrUser, Name: name}
		if t.Value != nil {
			a.Value = []byte(*t.Value)
		}
		kept, ok := tagOf(a)
		if !ok || len(a.Value) > metadata.MaxXAttrSize {
			return nil, bad("search: the tag %.100q has no name, one of more than %d bytes, or a value of more than %d bytes", t.Name, maxKeptName, metadata.MaxXAttrSize)
		}
		if t.Value == nil {
			p.unvalued = append(p.unvalued, name)
		} else {
			p.conditions = append(p.conditions, kept)
		}
	}
	if q.Min != nil || q.Max != nil {
		p.sized, p.dirs = true, false
		if q.Directories && !q.Files {
			return nil, bad("search: directories have no size")
		}
		if q.Min != nil {
			p.min = max(*q.Min, 0)
		}
		if q.Max != nil {
			p.max = *q.Max
		}
	}
	if p.Limit <= 0 {
		p.Limit = metadata.DefaultQueryLimit
	}
	p.Limit = min(p.Limit, metadata.MaxQueryLimit)
	return p, nil
}

// Find answers a query with what a caller would see who lists the tree. Cursors are keys of the index, which may be of what the caller may not see: they
// are not for the caller's eyes, and neither is how much was looked at.
//
// Errors: ErrInvalidArgument; ErrNotExist and ErrPermission for the path; ErrRetriable where the index is being rebuilt or cannot go on; that of ctx; those
// of the store.
func (x *Index) Find(ctx context.Context, c metadata.Caller, asked metadata.Query) (*metadata.FoundPage, error) {
	q, err := parse(asked)
	if err != nil {
		return nil, err
	}
	q.caller = c
	if q.top, err = x.cfg.Namespace.Resolve(c, q.Path); err != nil {
		return nil, err
	}
	x.settle()
	x.exchange.RLock()
	defer x.exchange.RUnlock()
	x.mu.Lock()
	if err := x.refusal(); err != nil {
		x.mu.Unlock()
		return nil, err
	}
	at := x.stored
	x.pins.pin(at)
	answer := &metadata.FoundPage{Position: x.position}
	content := layers{recent: layer{keys: x.recent.keys.Copy()}, frozen: x.frozen, view: x.cfg.Store.View(at)}
	x.mu.Unlock()
	defer x.pins.unpin(at)
	defer content.view.Close()
	now := time.Now()
	f := finder{x: x, q: q, content: &content, answer: answer, end: now.Add(maxTime), rested: now}
	if err := f.run(ctx); err != nil {
		return nil, err
	}
	return answer, nil
}

// stretch is a part of the index in which everything that is looked for has a key.
type stretch struct {
	prefix, from string
	// to is the first key behind it; empty: it ends with the prefix.
	to string
}

// has reports whether a key is in the stretch.
func (s *stretch) has(key string) bool {
	return strings.HasPrefix(key, s.prefix) && key >= s.from && (s.to == "" || key < s.to)
}

// stretches are where a query may be answered from, the likely best ones first.
func (q *query) stretches() []stretch {
	var all []stretch
	for _, t := range q.conditions {
		all = append(all, stretch{prefix: tagPlace(t)})
	}
	switch {
	case q.exact && q.prefix != "":
		all = append(all, stretch{prefix: string(className) + q.prefix + "\x00"})
	case q.prefix != "":
		all = append(all, stretch{prefix: string(className) + q.prefix})
	}
	for _, name := range q.unvalued {
		all = append(all, stretch{prefix: tagNamed(name)})
	}
	if q.sized {
		s := stretch{prefix: string(classSize), from: sizePlace(q.min)}
		if q.max < math.MaxInt64 {
			s.to = sizePlace(max(q.max, -1) + 1)
		}
		all = append(all, s)
	}
	return append(all, stretch{prefix: string(classINode)})
}

// finder answers one request.
type finder struct {
	x       *Index
	q       *query
	content *layers
	answer  *metadata.FoundPage
	end     time.Time // when it has worked for long enough
	rested  time.Time // since when it has worked without a pause
	last    []byte    // the last key that was looked at
	bytes   int64     // what the answer takes
}

func (f *finder) run(ctx context.Context) error {
	s, from, err := f.begin()
	if err != nil || f.q.sized && f.q.min > f.q.max {
		return err
	}
	up := climber{layers: f.content, top: f.q.top, known: map[metadata.INodeID]bool{}}
	var bad error
	more := false
	err = f.content.scan(s.prefix, from, func(key, value []byte) bool {
		if string(key) == f.q.Cursor {
			return true
		}
		if s.to != "" && string(key) >= s.to {
			return false
		}
		if more = f.enough(ctx); more {
			return false
		}
		f.answer.Looked++
		f.last = append(f.last[:0], key...)
		bad = f.look(key, value, &up)
		return bad == nil
	})
	if err = cmp.Or(bad, err, ctx.Err()); err != nil {
		return err
	}
	if more {
		f.answer.Next = string(f.last)
	}
	return nil
}

// enough reports whether the page ends here. It lets others work now and then.
func (f *finder) enough(ctx context.Context) bool {
	if len(f.answer.Found) >= f.q.Limit || f.bytes >= maxBytes || f.answer.Looked >= maxLooked || ctx.Err() != nil {
		return true
	}
	if f.answer.Looked == 0 || f.answer.Looked%glance > 0 {
		return false
	}
	now := time.Now()
	if now.After(f.end) {
		return true
	}
	if worked := now.Sub(f.rested); worked > stint {
		_ = pause(ctx, worked) // of which the next look hears
		f.rested = time.Now()
	}
	return false
}

// begin is the stretch that is read, and from where.
func (f *finder) begin() (s stretch, from string, err error) {
	all := f.q.stretches()
	if f.q.Cursor != "" {
		i := slices.IndexFunc(all, func(s stretch) bool { return s.has(f.q.Cursor) })
		if i < 0 || len(f.q.Cursor) < 9 {
			return s, "", metadata.Errorf(metadata.ErrInvalidArgument, "search: the cursor is not one of this query")
		}
		return all[i], f.q.Cursor, nil
	}
	if len(all) > 1 {
		least := probe + 1
		for _, one := range all[:len(all)-1] { // the last one is everything
			n := 0
			err := f.content.scan(one.prefix, one.from, func(key, _ []byte) bool {
				if one.to != "" && string(key) >= one.to {
					return false
				}
				n++
				return n < min(least, probe)
			})
			if err != nil {
				return s, "", err
			}
			if n < least {
				s, least = one, n
			}
		}
		return s, s.from, nil
	}
	return all[0], all[0].from, nil
}

// look looks at the inode of a key.
func (f *finder) look(key, value []byte, up *climber) error {
	id := idOf(key)
	if id == metadata.RootID {
		return nil
	}
	var n *node
	var err error
	if key[0] == classINode {
		n, err = decode(value)
	} else {
		n, err = f.content.node(id)
	}
	if n == nil || err != nil || !f.q.wants(n) {
		return err
	}
	if f.q.top != metadata.RootID && id != f.q.top {
		if inside, err := up.under(n.parent); err != nil || !inside {
			return err
		}
	}
	return f.check(id)
}

// wants holds what the index knows against the query.
func (q *query) wants(n *node) bool {
	if n.dir && !q.dirs || !n.dir && !q.files || q.sized && (!n.sized || n.size < q.min || n.size > q.max) || !q.named(n.name) {
		return false
	}
	for _, want := range q.conditions {
		i, ok := n.tag(want.name)
		if !ok || n.tags[i] != want {
			return false
		}
	}
	for _, name := range q.unvalued {
		if _, ok := n.tag(name); !ok {
			return false
		}
	}
	return true
}

func (n *node) tag(name string) (int, bool) {
	return slices.BinarySearchFunc(n.tags, name, func(t tag, name string) int { return cmp.Compare(t.name, name) })
}

func (q *query) named(name string) bool {
	if q.name == nil {
		return true
	}
	if q.Fold {
		name = strings.ToLower(name)
	}
	return q.name.MatchString(name)
}

// check looks for an inode in the namespace, as the caller sees it now.
func (f *finder) check(id metadata.INodeID) error {
	found, err := f.x.cfg.Namespace.FindBelow(f.q.caller, f.q.top, []metadata.INodeID{id})
	if err != nil || found[0] == nil || !f.q.holds(found[0]) {
		return err
	}
	f.answer.Found = append(f.answer.Found, *found[0])
	f.bytes += found[0].Size()
	return nil
}

// holds holds what is there now against the query.
func (q *query) holds(n *metadata.Found) bool {
	if n.IsDir() && !q.dirs || !n.IsDir() && !q.files || q.sized && (n.Length < q.min || n.Length > q.max) || !q.named(n.Name) {
		return false
	}
	for _, want := range q.Tags {
		name := strings.TrimPrefix(want.Name, "user.")
		i := slices.IndexFunc(n.XAttrs, func(a metadata.XAttr) bool { return a.Namespace == metadata.XAttrUser && a.Name == name })
		if i < 0 || want.Value != nil && !bytes.Equal(n.XAttrs[i].Value, []byte(*want.Value)) {
			return false
		}
	}
	return true
}
