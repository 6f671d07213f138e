package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/namespace"
)

// inodesPerTurn is how many inodes are looked at before a rebuild, or a sweep, lets others have the processor.
const inodesPerTurn = 1024

// errAgain: the rebuild has to begin anew.
var errAgain = errors.New("the rebuild of the search index begins anew")

// rebuild makes the index anew: of the namespace's newest checkpoint, which is the state at an entry of the log. The feed goes on behind that.
func (x *Index) rebuild(ctx context.Context) (err error) {
	began := time.Now()
	if err := x.empty(); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		x.mu.Lock()
		x.wanted = true
		x.mu.Unlock()
		if errors.Is(err, errAgain) || errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}()
	picture, err := x.beginning()
	if err != nil {
		return err
	}
	defer picture.Close()
	x.mu.Lock()
	x.problem = "" // of an attempt before
	x.mu.Unlock()
	m, err := x.fill(ctx, picture)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wanted {
		return errAgain
	}
	x.stored, x.entries, x.state, x.problem = uint64(m.position), m.entries, Following, ""
	x.rebuilds++
	x.reach(m.position)
	x.log.Info("the search index was made anew", "entries", m.entries, "position", m.position, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// empty throws the content away. A crash from here on, up to the marker, is followed by a rebuild.
func (x *Index) empty() error {
	x.mu.Lock()
	flushing := x.flushing
	x.mu.Unlock()
	if flushing != nil {
		<-flushing
		x.mu.Lock()
		x.flushing = nil // it says no second word
		x.mu.Unlock()
	}
	counts := x.cfg.Namespace.Counts()
	x.exchange.Lock()
	defer x.exchange.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	var err error
	if x.damage != nil {
		err = x.cfg.Store.SetAside(x.damage)
	} else {
		err = x.cfg.Store.Replace(0, func(func(key, value []byte) error) error { return nil })
	}
	if err != nil {
		return fmt.Errorf("emptying the search index: %w", err)
	}
	x.damage, x.sweep = nil, sweep{}
	x.failed, x.frozen, x.recent, x.born = nil, newLayer(), newLayer(), time.Time{}
	x.wanted, x.state, x.stored, x.position, x.entries = false, Rebuilding, 0, 0, 0
	x.done, x.total = 0, counts.Files+counts.Directories
	return nil
}

// beginning is a checkpoint of the namespace, of which the feed has all that came later.
func (x *Index) beginning() (*namespace.Picture, error) {
	for tries := 0; ; tries++ {
		p := x.cfg.Namespace.Picture()
		page, err := x.cfg.Feed.Read(metadata.EndOf(p.Index), 1, 1)
		if err == nil && !page.Missing {
			return p, nil
		}
		p.Close()
		if err != nil {
			return nil, err
		}
		if tries == 2 || x.cfg.Checkpoint == nil {
			return nil, fmt.Errorf("the feed of changes begins at %v, behind the newest checkpoint, at %v: it keeps too little", page.From, metadata.EndOf(p.Index))
		}
		if err := x.cfg.Checkpoint(); err != nil {
			return nil, fmt.Errorf("a new checkpoint is needed: %w", err)
		}
	}
}

// fill writes what a picture has, with the marker.
func (x *Index) fill(ctx context.Context, picture *namespace.Picture) (m marker, err error) {
	m.position = metadata.EndOf(picture.Index)
	b := x.cfg.Store.Batch(uint64(m.position))
	defer b.Cancel()
	put := func(id metadata.INodeID, n *node) error {
		m.entries++
		err := b.Put([]byte(idKey(classINode, id)), n.encode())
		n.each(id, func(key string) { err = errors.Join(err, b.Put([]byte(key), present)) })
		return err
	}
	if picture.Index == 0 {
		err = put(metadata.RootID, &node{dir: true})
	}
	for next, more := []byte(nil), err == nil; more; {
		began := time.Now()
		next, err = picture.Read(next, inodesPerTurn, func(p *namespace.Pictured) error { return put(p.ID, nodeOf(p)) })
		more = err == nil && next != nil
		x.mu.Lock()
		x.done = m.entries
		again := x.wanted
		x.mu.Unlock()
		if again {
			return m, errAgain
		}
		if err := pause(ctx, time.Since(began)); err != nil {
			return m, err
		}
	}
	if err == nil {
		err = b.Flush()
	}
	if err != nil {
		return m, err
	}
	return m, writeMarker(x.cfg.Store, m)
}

// pause lets others work for as long as this has worked: it takes half of a processor at most.
func pause(ctx context.Context, worked time.Duration) error {
	t := time.NewTimer(min(worked, time.Second))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nodeOf is what the index keeps of a file or directory of the namespace. A file that is open may be one that was closed before, and then its finished
// blocks are what it had, or have grown since.
func nodeOf(p *namespace.Pictured) *node {
	n := &node{parent: p.Parent, name: p.Name, dir: p.Dir, sized: !p.Dir && !p.Open, size: p.Length}
	for _, a := range p.XAttrs {
		if t, ok := tagOf(a); ok {
			n.tags = append(n.tags, t)
		}
	}
	slices.SortFunc(n.tags, func(a, b tag) int { return cmp.Compare(a.name, b.name) })
	if !n.sized {
		n.size = 0
	}
	return n
}

// sweep takes what was below directories that are gone out of the index. No event tells of these, because a tree goes at once, however large it is.
type sweep struct {
	// orphans: there are some.
	orphans bool
	active  bool
	from    string // where the next turn begins
	// left is how many entries the last sweep has left.
	left int64
}

// sweepSlack is how many entries more than the namespace has are no reason to sweep, beside a quarter.
const sweepSlack = 10_000

// sweepSome looks at some of the index for what hangs under nothing. False: there was nothing to do.
func (x *Index) sweepSome() (bool, error) {
	s := &x.sweep
	if !s.active {
		if !s.orphans {
			return false, nil
		}
		counts := x.cfg.Namespace.Counts()
		x.mu.Lock()
		many := x.entries > max(counts.Files+counts.Directories, s.left)*5/4+sweepSlack
		x.mu.Unlock()
		if !many {
			return false, nil
		}
		s.active, s.orphans, s.from = true, false, ""
	}
	x.exchange.RLock()
	defer x.exchange.RUnlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wanted || x.recent.bytes > x.cfg.Memory {
		return false, nil
	}
	view := x.cfg.Store.View(x.stored)
	defer view.Close()
	return true, x.sweepTurn(view)
}

// sweepTurn is called with mu held.
func (x *Index) sweepTurn(view kv.View) error {
	s := &x.sweep
	w := writer{layers: layers{x.recent, x.frozen, view}, entries: x.entries}
	up := climber{layers: &w.layers, top: metadata.RootID, known: map[metadata.INodeID]bool{}}
	type orphan struct {
		id metadata.INodeID
		n  *node
	}
	var orphans []orphan
	left, more := inodesPerTurn, false
	var bad error
	err := w.scan(string(classINode), s.from, func(key, value []byte) bool {
		if left--; left < 0 {
			more = true
			s.from = string(key)
			return false
		}
		id := idOf(key)
		n, err := decode(value)
		if err == nil && id != metadata.RootID {
			inside := false
			if inside, err = up.under(n.parent); err == nil && !inside {
				orphans = append(orphans, orphan{id, n})
			}
		}
		bad = err
		return bad == nil
	})
	if err := errors.Join(bad, err); err != nil {
		return damaged{err}
	}
	for _, o := range orphans {
		w.replace(o.id, o.n, nil)
	}
	x.recent.bytes, x.entries = w.recent.bytes, w.entries
	x.recent.swept = x.recent.swept || len(orphans) > 0
	if x.recent.keys.Len() > 0 && x.born.IsZero() {
		x.born = time.Now()
	}
	if !more {
		s.active, s.left = false, x.entries
	}
	return nil
}

// climber finds out which directories are below another one, by the index.
type climber struct {
	*layers
	top   metadata.INodeID
	known map[metadata.INodeID]bool
}

// under reports whether a directory is top, or below it.
func (c *climber) under(id metadata.INodeID) (inside bool, err error) {
	var way []metadata.INodeID
	for {
		known, ok := c.known[id]
		if inside = known || id == c.top; inside || ok || id == 0 {
			break
		}
		way = append(way, id)
		n, err := c.node(id)
		if err != nil {
			return false, err
		}
		if n == nil || len(way) > maxDepth {
			break
		}
		id = n.parent
	}
	for _, id := range way {
		c.known[id] = inside
	}
	return inside, nil
}

// maxDepth is how deep a tree may be; deeper ones are not climbed.
const maxDepth = 100_000
