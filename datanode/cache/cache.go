// Package cache keeps replicas of a datanode in memory that a namenode wants there (HDFS's centralized cache management): what it takes is bounded, what it has is told, and what changes on
// the disk leaves it.
package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/blockstore"
	"github.com/gohops/hops/metadata"
)

// Store keeps replicas in memory.
type Store interface {
	Pin(ctx context.Context, b metadata.Block, memory func(n int64) error) (*blockstore.Pin, error)
}

// Config configures a Cache.
type Config struct {
	Store Store
	// Most is how many bytes may be kept in memory; 0: none.
	Most int64
	// Told hears that a block is in memory, or is not, also as the answer to Add and Drop. It must be quick and must not call the Cache.
	Told func(b metadata.Block, there bool)
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Cache is what a datanode keeps in memory. Its methods are safe for concurrent use.
type Cache struct {
	cfg Config
	log *slog.Logger

	mu     sync.Mutex
	all    map[metadata.BlockID]*entry
	used   int64
	closed bool
	told   bool // that there is no room
}

// entry is a replica in memory, or on its way there.
type entry struct {
	block metadata.Block
	pin   *blockstore.Pin // nil: on its way
	size  int64
	gone  bool // it is not wanted any more
	// failed are the volumes that have gone while it was on its way: it may have come from one of them.
	failed []string
}

// New makes an empty Cache.
func New(c Config) *Cache {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &Cache{cfg: c, log: c.Logger, all: map[metadata.BlockID]*entry{}}
}

var errFull = errors.New("there is no room in memory")

// Add takes the replica of b into memory, which takes as long as reading it. What there is no room for is not taken.
func (c *Cache) Add(ctx context.Context, b metadata.Block) {
	c.mu.Lock()
	if old := c.all[b.ID]; old != nil && !old.gone && (old.pin == nil || old.block.Generation == b.Generation) {
		there := old.pin != nil
		c.mu.Unlock()
		if there { // the namenode has not heard of it
			c.tell(b)
		}
		return
	}
	if c.closed || c.cfg.Most <= 0 {
		c.mu.Unlock()
		c.cfg.Told(b, false)
		return
	}
	old := c.takeLocked(b.ID)
	e := &entry{block: b}
	c.all[b.ID] = e
	c.mu.Unlock()
	c.release(old)
	pin, err := c.cfg.Store.Pin(ctx, b, func(n int64) error { return c.reserve(e, n) })
	c.mu.Lock()
	there := err == nil && !e.gone && !c.closed && !slices.Contains(e.failed, pin.Replica.Volume)
	if there {
		e.pin, c.told = pin, false
	} else {
		c.used -= e.size
		if c.all[b.ID] == e {
			delete(c.all, b.ID)
		}
	}
	full := errors.Is(err, errFull)
	tell := err != nil && (!full || !c.told)
	c.told = c.told || full
	c.mu.Unlock()
	if pin != nil && !there {
		c.unpin(pin)
	}
	if tell {
		c.log.Warn("replica not taken into memory", "block", b.String(), "err", err)
	}
	if there {
		c.tell(b)
	} else {
		c.cfg.Told(b, false)
	}
}

// tell tells that a block is in memory, and takes it back if it has left meanwhile.
func (c *Cache) tell(b metadata.Block) {
	c.cfg.Told(b, true)
	if !c.Has(b.ID) {
		c.cfg.Told(b, false)
	}
}

// Has reports whether a block is in memory.
func (c *Cache) Has(id metadata.BlockID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.all[id]
	return e != nil && e.pin != nil
}

// reserve takes room for an entry.
func (c *Cache) reserve(e *entry, n int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.gone || c.closed:
		return context.Canceled
	case c.used+n > c.cfg.Most:
		return fmt.Errorf("%w: %d bytes of %d are taken, it needs %d", errFull, c.used, c.cfg.Most, n)
	}
	c.used += n
	e.size = n
	return nil
}

// takeLocked takes an entry out; nil: there is none that has a pin.
func (c *Cache) takeLocked(id metadata.BlockID) *entry {
	e := c.all[id]
	if e == nil {
		return nil
	}
	delete(c.all, id)
	e.gone = true
	if e.pin == nil { // whoever takes it into memory sees that
		return nil
	}
	c.used -= e.size
	return e
}

func (c *Cache) release(e *entry) {
	if e != nil {
		c.unpin(e.pin)
	}
}

func (c *Cache) unpin(p *blockstore.Pin) {
	if err := p.Close(); err != nil {
		c.log.Error("memory of a replica is not given back", "block", p.Replica.Block.String(), "err", err)
	}
}

// Drop lets a block leave memory.
func (c *Cache) Drop(id metadata.BlockID) {
	c.mu.Lock()
	e := c.takeLocked(id)
	c.mu.Unlock()
	c.release(e)
	c.cfg.Told(metadata.Block{ID: id}, false)
}

// Changed hears what has happened to a replica: what is not as it was when it was taken into memory leaves it. It waits for nothing, and its caller may hold locks.
func (c *Cache) Changed(change datanode.Change) {
	if change.Kind == datanode.Verified {
		return
	}
	c.mu.Lock()
	e := c.all[change.Block.ID]
	if e == nil || change.Kind == datanode.Received && e.pin != nil && e.pin.Replica.Block == change.Block && e.pin.Replica.Volume == change.Volume {
		c.mu.Unlock()
		return
	}
	had := c.takeLocked(change.Block.ID)
	c.mu.Unlock()
	if had != nil { // else whoever takes it into memory tells
		go c.release(had)
		c.cfg.Told(metadata.Block{ID: change.Block.ID}, false)
	}
}

// VolumeFailed lets all leave memory that lies on a volume that has failed, or was given back.
func (c *Cache) VolumeFailed(volume string) {
	c.mu.Lock()
	var gone []*entry
	for id, e := range c.all {
		switch {
		case e.pin == nil:
			e.failed = append(e.failed, volume)
		case e.pin.Replica.Volume == volume:
			gone = append(gone, c.takeLocked(id))
		}
	}
	c.mu.Unlock()
	for _, e := range gone {
		c.cfg.Told(metadata.Block{ID: e.block.ID}, false)
		go c.release(e) // the disk may not answer
	}
}

// Held are the blocks in memory, in the order of their ids.
func (c *Cache) Held() []metadata.Block {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []metadata.Block
	for _, e := range c.all {
		if e.pin != nil {
			out = append(out, e.block)
		}
	}
	slices.SortFunc(out, func(a, b metadata.Block) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return out
}

// Figures are how many bytes may be in memory, how many are, and of how many blocks.
func (c *Cache) Figures() (capacity, used int64, blocks int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.all {
		if e.pin != nil {
			blocks++
		}
	}
	return c.cfg.Most, c.used, blocks
}

// Close lets all leave memory, and takes nothing any more.
func (c *Cache) Close() {
	c.mu.Lock()
	c.closed = true
	var all []*entry
	for id := range c.all {
		if e := c.takeLocked(id); e != nil {
			all = append(all, e)
		}
	}
	c.mu.Unlock()
	for _, e := range all {
		c.release(e)
	}
}
