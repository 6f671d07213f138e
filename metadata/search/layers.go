package search

import (
	"bytes"
	"errors"
	"strings"
	"sync"

	"github.com/tidwall/btree"

	"github.com/gohops/hops/metadata/kv"
)

// layer is what has changed and is in memory only. A nil value means that the key is gone.
type layer struct {
	keys  *btree.Map[string, []byte]
	bytes int // about how much memory it takes
	// swept: some of it is not what the feed tells, but what a sweep has found.
	swept bool
}

func newLayer() layer { return layer{keys: new(btree.Map[string, []byte])} }

// weight is about what a key takes in a layer, beside its bytes and its value's.
const weight = 64

func (l *layer) set(key string, value []byte) {
	former, there := l.keys.Set(key, value)
	if l.bytes += len(value) - len(former); !there {
		l.bytes += len(key) + weight
	}
}

// layers is the content: two layers over the store at a timestamp. Newer ones hide older ones.
type layers struct {
	recent, frozen layer
	view           kv.View
}

// get is the value of a key, nil where there is none.
func (l *layers) get(key string) ([]byte, error) {
	if v, ok := l.recent.keys.Get(key); ok {
		return v, nil
	}
	if v, ok := l.frozen.keys.Get(key); ok {
		return v, nil
	}
	v, err := l.view.Get([]byte(key))
	if errors.Is(err, kv.ErrNotFound) {
		return nil, nil
	}
	return v, err
}

// cursor goes through the keys of a layer.
type cursor struct {
	iter   btree.MapIter[string, []byte]
	prefix string
	ok     bool
}

func (l *layer) from(prefix, from string) cursor {
	c := cursor{iter: l.keys.Iter(), prefix: prefix}
	c.ok = c.iter.Seek(max(prefix, from))
	c.check()
	return c
}

func (c *cursor) check() { c.ok = c.ok && strings.HasPrefix(c.iter.Key(), c.prefix) }

func (c *cursor) next() {
	c.ok = c.iter.Next()
	c.check()
}

// scan calls fn for keys with a prefix that are not below from, in ascending order, until it returns false. Key and value are good during the call.
func (l *layers) scan(prefix, from string, fn func(key, value []byte) bool) error {
	a, b := l.recent.from(prefix, from), l.frozen.from(prefix, from)
	more := true
	// below hands out what the layers have in front of a key, or to their ends; held: they had the key itself.
	below := func(limit []byte, all bool) (held bool) {
		for more && (a.ok || b.ok) {
			c, both := &a, false
			switch {
			case !a.ok || b.ok && b.iter.Key() < a.iter.Key():
				c = &b
			case b.ok && b.iter.Key() == a.iter.Key():
				both = true
			}
			key := c.iter.Key()
			if !all && bytes.Compare([]byte(key), limit) > 0 {
				return false
			}
			value, is := c.iter.Value(), !all && key == string(limit)
			if both {
				b.next()
			}
			c.next()
			if value != nil {
				more = fn([]byte(key), value)
			}
			if is {
				return true
			}
		}
		return false
	}
	err := l.view.Scan([]byte(prefix), []byte(from), func(key, value []byte) bool {
		if !below(key, false) && more {
			more = fn(key, value)
		}
		return more
	})
	if err != nil {
		return err
	}
	below(nil, true)
	return nil
}

// pins are the timestamps at which the store is being read.
type pins struct {
	mu   sync.Mutex
	open map[uint64]int
}

// pin notes one, unpin lets it go and says which is the oldest that is left, at most most.
func (p *pins) pin(at uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open = map[uint64]int{}
	}
	p.open[at]++
}

func (p *pins) unpin(at uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[at]--; p.open[at] == 0 {
		delete(p.open, at)
	}
}

func (p *pins) oldest(most uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at := range p.open {
		most = min(most, at)
	}
	return most
}
