package blockmanager

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Some blocks are to be in the memory of datanodes that have a replica of them. The server says which, and on how many nodes (CacheBlocks); the datanodes say what they have there, each
// change and all of it after a registration. Nothing of it is stored: a new leader's server says all of it anew, and until it has (CacheReady), nothing is ordered.

// caching is what is known of blocks in memory.
type caching struct {
	want    map[metadata.BlockID]uint16 // only while leading
	at      map[metadata.BlockID][]*node
	asked   map[metadata.BlockID][]*node // that have been asked to, and have not answered
	queue   queue                        // blocks to be looked at
	short   queue                        // blocks for which there are too few nodes now
	againAt time.Time                    // when those are looked at again
	epoch   uint64                       // another one when what is wanted was forgotten
	ready   bool
	changes uint64 // of what is in memory
}

// nodeCache is what a node keeps in memory, and is to.
type nodeCache struct {
	capacity, used int64                      // as it says
	holds          map[metadata.BlockID]int64 // what they take
	bytes          int64                      // of holds
	asked          map[metadata.BlockID]*cacheOrder
	askedBytes     int64
	drop           map[metadata.BlockID]time.Time // when the order was sent
	refused        map[metadata.BlockID]time.Time
}

type cacheOrder struct {
	block       metadata.Block
	asked, sent time.Time
}

const (
	// cachePerTick is at how many blocks a Tick looks, and cachePerOrder how many one order has.
	cachePerTick, cachePerOrder = 1000, 500
	// cacheAhead is how many blocks a node is asked for at a time.
	cacheAhead = 4096
	// cacheAgain is when blocks are looked at again that too few nodes have room for, cacheRepeat when an order is sent again, cachePatience when another node is asked, and cacheRefused
	// how long one that could not is not asked again.
	cacheAgain, cacheRepeat, cachePatience, cacheRefused = 10 * time.Second, 30 * time.Second, 10 * time.Minute, time.Minute
)

// cacheCost is what a replica takes in the memory of a datanode: whole pages of data and of checksums.
func cacheCost(length int64) int64 {
	const page = 4096
	return (length+page-1)/page*page + (length/128+64+page-1)/page*page
}

// CacheWish is on how many nodes a block is to be in memory.
type CacheWish struct {
	ID       metadata.BlockID
	Replicas uint16
}

// CacheEpoch is another number when what CacheBlocks has said was forgotten.
func (m *Manager) CacheEpoch() uint64 { return m.caching.epoch }

// CacheBlocks says of some blocks on how many nodes they are to be in memory; 0: on none. False: what was said before was forgotten meanwhile.
func (m *Manager) CacheBlocks(epoch uint64, wishes []CacheWish) bool {
	c := &m.caching
	if epoch != c.epoch || !m.leading {
		return false
	}
	if c.want == nil {
		c.want = map[metadata.BlockID]uint16{}
	}
	for _, w := range wishes {
		if w.Replicas == 0 {
			delete(c.want, w.ID)
		} else {
			c.want[w.ID] = w.Replicas
		}
		c.queue.push(w.ID)
	}
	return true
}

// CacheReady says that CacheBlocks has named all blocks: what else is in memory need not be.
func (m *Manager) CacheReady(epoch uint64) {
	if epoch == m.caching.epoch {
		m.caching.ready = true
	}
}

// CacheChanges is another number when something came into memory, or left it.
func (m *Manager) CacheChanges() uint64 { return m.caching.changes }

// InMemory is how many nodes have a good replica of a block in memory.
func (m *Manager) InMemory(id metadata.BlockID) int {
	at := m.caching.at[id]
	if len(at) == 0 {
		return 0
	}
	b := m.blocks.peek(id)
	if b == nil || b.open {
		return 0
	}
	n := 0
	for _, p := range b.good {
		if v := m.volumes[p]; v.usable() && slices.Contains(at, v.node) {
			n++
		}
	}
	return n
}

// CacheCapacity is how many bytes live nodes may keep in memory.
func (m *Manager) CacheCapacity() (capacity, used int64) {
	for _, n := range m.order {
		if n.alive {
			capacity += n.cache.capacity
			used += n.cache.used
		}
	}
	return capacity, used
}

// forgetCaching forgets what was wanted and ordered, but not what is in memory.
func (m *Manager) forgetCaching() {
	c := &m.caching
	c.epoch++
	c.want, c.asked, c.ready = nil, nil, false
	c.queue, c.short = queue{}, queue{}
	for _, id := range sortedKeys(c.at) {
		c.queue.push(id)
	}
	for _, n := range m.order {
		n.cache.asked, n.cache.askedBytes, n.cache.drop, n.cache.refused = nil, 0, nil, nil
	}
}

// emptyCache forgets what a node has in memory, and was to have.
func (m *Manager) emptyCache(n *node) {
	for _, id := range sortedKeys(n.cache.holds) {
		m.leaveCache(n, id)
	}
	for _, id := range sortedKeys(n.cache.asked) {
		m.unaskCache(n, id)
		m.caching.queue.push(id)
	}
	n.cache = nodeCache{capacity: n.cache.capacity}
}

// entered notes that a node has a replica in memory. What it cannot have, or has no room for by its own words, is not believed.
func (m *Manager) entered(n *node, blk metadata.Block) {
	id := blk.ID
	m.unaskCache(n, id)
	if !slices.ContainsFunc(n.order, func(v *volume) bool { return v.blocks.has(id) }) {
		return
	}
	if _, known := n.cache.holds[id]; known {
		return
	}
	length := blk.Length
	if b := m.blocks.peek(id); b != nil {
		length = b.length
	}
	cost := cacheCost(max(length, 0))
	if n.cache.bytes+cost > n.cache.capacity {
		return
	}
	if n.cache.holds == nil {
		n.cache.holds = map[metadata.BlockID]int64{}
	}
	n.cache.holds[id] = cost
	n.cache.bytes += cost
	c := &m.caching
	if c.at == nil {
		c.at = map[metadata.BlockID][]*node{}
	}
	c.at[id] = append(c.at[id], n)
	c.changes++
	if m.leading {
		c.queue.push(id)
	}
}

// left notes that a node has no replica of a block in memory, or could not take it there.
func (m *Manager) left(now time.Time, n *node, id metadata.BlockID) {
	if m.unaskCache(n, id) {
		if n.cache.refused == nil {
			n.cache.refused = map[metadata.BlockID]time.Time{}
		}
		n.cache.refused[id] = now
	}
	m.leaveCache(n, id)
	if m.leading {
		m.caching.queue.push(id)
	}
}

func (m *Manager) leaveCache(n *node, id metadata.BlockID) {
	c := &m.caching
	delete(n.cache.drop, id)
	cost, known := n.cache.holds[id]
	if !known {
		return
	}
	delete(n.cache.holds, id)
	n.cache.bytes -= cost
	c.changes++
	if c.at[id] = slices.DeleteFunc(c.at[id], func(o *node) bool { return o == n }); len(c.at[id]) == 0 {
		delete(c.at, id)
	}
	if m.leading {
		c.queue.push(id)
	}
}

// unask takes an order back, or notes that it was answered. False: there was none.
func (m *Manager) unaskCache(n *node, id metadata.BlockID) bool {
	o := n.cache.asked[id]
	if o == nil {
		return false
	}
	delete(n.cache.asked, id)
	n.cache.askedBytes -= cacheCost(o.block.Length)
	c := &m.caching
	if c.asked[id] = slices.DeleteFunc(c.asked[id], func(x *node) bool { return x == n }); len(c.asked[id]) == 0 {
		delete(c.asked, id)
	}
	return true
}

// cacheBlocks decides for some blocks which nodes are to have them in memory.
func (m *Manager) cacheBlocks(now time.Time) {
	c := &m.caching
	if !c.ready {
		return
	}
	if now.Sub(c.againAt) >= cacheAgain {
		c.againAt = now
		for range c.short.len() {
			id, _ := c.short.pop()
			c.queue.push(id)
		}
		for _, n := range m.order {
			for _, id := range sortedKeys(n.cache.asked) {
				if now.Sub(n.cache.asked[id].asked) >= cachePatience {
					m.left(now, n, id)
				}
			}
			for id, at := range n.cache.refused {
				if now.Sub(at) >= cacheRefused {
					delete(n.cache.refused, id)
				}
			}
		}
	}
	for range min(c.queue.len(), cachePerTick) {
		id, _ := c.queue.pop()
		m.cacheBlock(now, id)
	}
}

func (m *Manager) cacheBlock(now time.Time, id metadata.BlockID) {
	c := &m.caching
	want := int(c.want[id])
	b := m.blocks.peek(id)
	if b == nil || b.open {
		if want > 0 {
			c.short.push(id)
		}
		want = 0
	}
	good := func(n *node) bool {
		return b != nil && slices.ContainsFunc(b.good, func(p place) bool { v := m.volumes[p]; return v.node == n && v.usable() })
	}
	has := 0
	var spare []*node
	for _, n := range c.at[id] {
		switch _, dropping := n.cache.drop[id]; {
		case dropping:
		case want == 0 || !good(n):
			m.uncache(n, id)
		default:
			has++
			spare = append(spare, n)
		}
	}
	asked := slices.Clone(c.asked[id])
	for has+len(asked) > want && len(asked) > 0 { // the order may have been sent
		n := asked[len(asked)-1]
		asked = asked[:len(asked)-1]
		m.unaskCache(n, id)
		m.uncache(n, id)
	}
	for ; has > want; has-- { // from the fullest
		i := 0
		for j, n := range spare {
			if n.room() < spare[i].room() {
				i = j
			}
		}
		m.uncache(spare[i], id)
		spare = slices.Delete(spare, i, i+1)
	}
	for n := has + len(asked); n < want; n++ {
		to := m.cacheTarget(id, b)
		if to == nil {
			c.short.push(id)
			return
		}
		m.askCache(now, to, metadata.Block{ID: id, Generation: b.generation, Length: b.length})
	}
}

// room is how many thousandths of what it may keep in memory are free.
func (n *node) room() int64 {
	if n.cache.capacity <= 0 {
		return 0
	}
	return (n.cache.capacity - max(n.cache.used, n.cache.bytes) - n.cache.askedBytes) * 1000 / n.cache.capacity
}

// cacheTarget is the node with a good replica of a block that has most room for it, one with the replica on a slow volume, from which it would have to be read, only if there is no other; nil: none has.
func (m *Manager) cacheTarget(id metadata.BlockID, b *block) (best *node) {
	slow := false
	for _, p := range b.good {
		v := m.volumes[p]
		n := v.node
		_, held := n.cache.holds[id]
		_, refused := n.cache.refused[id]
		switch {
		case !v.usable() || n.stale || !n.stays() || n.dooms(id) || held || refused || n.cache.asked[id] != nil || len(n.cache.asked) >= cacheAhead,
			n.cache.capacity-max(n.cache.used, n.cache.bytes)-n.cache.askedBytes < cacheCost(b.length):
		case best == nil || slow && !v.slow || slow == v.slow && n.room() > best.room():
			best, slow = n, v.slow
		}
	}
	return best
}

func (m *Manager) askCache(now time.Time, n *node, b metadata.Block) {
	c := &m.caching
	if n.cache.asked == nil {
		n.cache.asked = map[metadata.BlockID]*cacheOrder{}
	}
	if c.asked == nil {
		c.asked = map[metadata.BlockID][]*node{}
	}
	delete(n.cache.drop, b.ID)
	n.cache.asked[b.ID] = &cacheOrder{block: b, asked: now}
	n.cache.askedBytes += cacheCost(b.Length)
	c.asked[b.ID] = append(c.asked[b.ID], n)
	n.dirty = true
}

func (m *Manager) uncache(n *node, id metadata.BlockID) {
	if n.cache.drop == nil {
		n.cache.drop = map[metadata.BlockID]time.Time{}
	}
	if _, known := n.cache.drop[id]; !known {
		n.cache.drop[id] = time.Time{}
		n.dirty = true
	}
}

// cacheOrders adds what a node is to take into memory, and out of it.
func (m *Manager) cacheOrders(now time.Time, n *node, out *Orders) {
	due := func(sent time.Time) bool { return sent.IsZero() || now.Sub(sent) >= cacheRepeat }
	for _, id := range sortedKeys(n.cache.drop) {
		if len(out.Uncache) == cachePerOrder {
			n.dirty = true
			break
		}
		if due(n.cache.drop[id]) {
			n.cache.drop[id] = now
			out.Uncache = append(out.Uncache, id)
		}
	}
	for _, id := range sortedKeys(n.cache.asked) {
		o := n.cache.asked[id]
		if len(out.Cache) == cachePerOrder {
			n.dirty = true
			break
		}
		if due(o.sent) {
			o.sent = now
			out.Cache = append(out.Cache, o.block)
		}
	}
}

// cached reports whether a node has said that it has a block in memory.
func (n *node) cached(id metadata.BlockID) bool {
	if len(n.cache.holds) == 0 {
		return false
	}
	_, held := n.cache.holds[id]
	return held
}

// located is a volume as the place of a replica of a block.
func (v *volume) located(id metadata.BlockID) namenode.Location {
	l := v.location()
	l.Cached = v.node.cached(id)
	return l
}
