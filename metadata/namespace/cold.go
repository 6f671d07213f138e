package namespace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// How what is not in memory is read: whoever holds the lock and misses something ends with an error that says what, a *cold.
// The lock is let go, the last complete checkpoint is read, what was found comes into memory with the lock held for a
// moment, and all starts over. What a checkpoint says never changes, so there is one thing to look at when the lock is
// held again: whether that checkpoint is still the last one. All else, such as a deletion meanwhile, is seen by whoever
// starts over, in memory.

// cold is what somebody misses: a record, all entries of a directory, or a page of them.
type cold struct {
	key  string           // of a record of class entry, inode or block
	dir  metadata.INodeID // all its entries, in memory
	room int              // unless they take more than so many bytes; 0: in any case
	page *page
}

func (*cold) Error() string { return "namespace: not in memory" }

// loading is whether the store is read while the lock is held, by whoever holds it alone.
type loading uint8

const (
	// never: readers, which share the lock, and who has just taken it.
	never loading = iota
	// onceChanged: a command that has begun to change something cannot start over.
	onceChanged
	always
)

// inline reports whether what is not in memory is read at once. mu is held.
func (ns *Namespace) inline() bool {
	return ns.loading == always || ns.loading == onceChanged && ns.changed
}

// maxTries is how often somebody starts over before the lock is kept while the store is read: what was read could be
// forgotten again and again before it is used, where the budget is next to nothing.
const maxTries = 4096

// checkpointView is the last complete checkpoint while it is that, and for as long as somebody reads it.
type checkpointView struct {
	kv.View
	at    uint64 // its index; 0: there is none
	users atomic.Int64
	// What was given out when it was taken: it has no records of later inodes and blocks.
	ids
	layout
	notes notes
}

// layout is how a checkpoint keeps what may be kept in two ways.
type layout struct {
	// sheets is the first inode that a sheet has the way to; 0: there are none.
	sheets metadata.INodeID
	// apart: directories have a class of their own.
	apart bool
}

func layoutOf(m *logpb.Marker) layout {
	return layout{sheets: metadata.INodeID(m.Sheets), apart: m.DirectoriesApart}
}

func (v *checkpointView) release() {
	if v.users.Add(-1) == 0 {
		v.Close()
	}
}

// openView makes the checkpoint at an index the one that is read. mu is held alone, unless this is the start.
func (ns *Namespace) openView(at uint64, given ids, l layout) {
	v := &checkpointView{View: ns.cfg.Store.View(at), at: at, ids: given, layout: l}
	v.users.Store(1)
	ns.view = v
	ns.versions.use(at, l.apart)
	ns.ring.vain = 0 // what it has may go
}

// closeView ends that. Who still reads it finds another one when it is done, and starts over.
func (ns *Namespace) closeView() { ns.view.release() }

// pin keeps the current view open until unpin. mu is held, shared or alone.
func (ns *Namespace) pin() *checkpointView {
	ns.pins.Add(1)
	ns.view.users.Add(1)
	return ns.view
}

func (ns *Namespace) unpin(v *checkpointView) {
	v.release()
	ns.pins.Done()
}

// notes are records of a checkpoint that were read lately, other than entries, which come into memory as inodes; and what
// it does not have.
type notes struct {
	mu         sync.Mutex
	young, old map[string][]byte // nil: it has none
}

// maxNotes is how many of the young ones there are before they are the old ones.
const maxNotes = 2048

func (c *notes) get(key string) (value []byte, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if value, ok = c.young[key]; ok {
		return value, true
	}
	if value, ok = c.old[key]; ok {
		c.putLocked(key, value)
	}
	return value, ok
}

func (c *notes) put(key string, value []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(key, value)
}

func (c *notes) putLocked(key string, value []byte) {
	if c.young == nil || len(c.young) >= maxNotes {
		c.young, c.old = map[string][]byte{}, c.young
	}
	c.young[key] = value
}

// flight is a fetch that others wait for, too.
type flight struct {
	done chan struct{}
	err  error
}

// fetch reads what somebody misses, once for all who miss it at a time. The lock is not held. Whether it helped is seen by
// who starts over.
//
// Errors: those of the store, and ErrCorrupt; the state is broken then.
func (ns *Namespace) fetch(c *cold) error {
	ns.misses.Add(1)
	if c.page != nil {
		return ns.fetchPage(c)
	}
	key := c.key
	if key == "" {
		key = idKey(classEntry, uint64(c.dir))
	}
	ns.flightsMu.Lock()
	if f := ns.flights[key]; f != nil {
		ns.flightsMu.Unlock()
		<-f.done
		return f.err
	}
	f := &flight{done: make(chan struct{})}
	ns.flights[key] = f
	ns.flightsMu.Unlock()
	defer func() {
		ns.flightsMu.Lock()
		delete(ns.flights, key)
		ns.flightsMu.Unlock()
		close(f.done)
	}()
	switch {
	case c.key == "":
		f.err = ns.fetchAll(c.dir, c.room)
	case c.key[0] == classEntry:
		f.err = ns.fetchEntry(c.key)
	case c.key[0] == classINode:
		f.err = ns.fetchINode(c.key)
	default:
		f.err = ns.fetchNote(c.key)
	}
	return f.err
}

// pinned is pin for who does not hold the lock.
func (ns *Namespace) pinned() (*checkpointView, error) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if ns.broken != nil {
		return nil, ns.broken
	}
	return ns.pin(), nil
}

// settleFetch takes the lock and runs fn, if the view that was read is still the current one. It gives the view back before
// that: who replaces the store waits for it with the lock held. bad is what reading it ended in, which does not matter
// when it is not the current one.
func (ns *Namespace) settleFetch(v *checkpointView, bad error, fn func() error) error {
	ns.unpin(v)
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.broken != nil {
		return ns.broken
	}
	if ns.view != v {
		return nil
	}
	if bad == nil {
		ns.makeRoom()
		bad = fn()
	}
	if bad != nil {
		ns.doubt(bad)
	}
	return bad
}

// fetchNote reads a derived record.
func (ns *Namespace) fetchNote(key string) error {
	v, err := ns.pinned()
	if err != nil {
		return err
	}
	value, err := v.record(key)
	return ns.settleFetch(v, err, func() error {
		v.notes.put(key, value)
		return nil
	})
}

// record is a record of the checkpoint; nil: it has none. That of class inode is the way to the inode, that of class entry what has the name, however
// it is kept.
func (v *checkpointView) record(key string) ([]byte, error) {
	switch key[0] {
	case classINode:
		return v.way(metadata.INodeID(binary.BigEndian.Uint64([]byte(key[1:]))))
	case classEntry:
		return v.entry([]byte(key))
	}
	return v.get([]byte(key))
}

func (v *checkpointView) get(key []byte) ([]byte, error) {
	value, err := v.Get(key)
	if errors.Is(err, kv.ErrNotFound) {
		return nil, nil
	}
	if err == nil && value == nil {
		value = []byte{}
	}
	return value, err
}

// fetchEntry brings an entry into memory, or notes that there is none.
func (ns *Namespace) fetchEntry(key string) error {
	parent, name, _ := splitEntry([]byte(key[1:]))
	v, err := ns.pinned()
	if err != nil {
		return err
	}
	value, err := v.record(key)
	var n *inode
	if err == nil && value != nil {
		n, err = decodeEntry(name, []byte(key), value)
	}
	return ns.settleFetch(v, err, func() error {
		if n == nil {
			v.notes.put(key, nil)
			return nil
		}
		return ns.attachRead(parent, n, key)
	})
}

// attachRead brings an entry that was read from the current checkpoint into memory, unless it is there, has gone since, or
// nobody knows its directory.
func (ns *Namespace) attachRead(parent metadata.INodeID, n *inode, key string) error {
	dir := ns.inodes[parent]
	if dir == nil || !dir.isDir() {
		return nil
	}
	if dir.dir.children.get(n.name) != nil || ns.deleted(key) {
		return nil
	}
	return ns.install(dir, n)
}

// fetchINode notes the record of an inode, and those of all above it up to something in memory, and brings the entries in
// between into memory: one after the other, each would be a turn of its own for who misses them.
func (ns *Namespace) fetchINode(key string) error {
	v, err := ns.pinned()
	if err != nil {
		return err
	}
	type step struct {
		key, entry string
		value      []byte
		parent     metadata.INodeID
		node       *inode
	}
	var up []step
	for err == nil {
		s := step{key: key}
		if s.value, err = v.record(key); err != nil {
			break
		}
		if s.value == nil {
			up = append(up, s)
			break
		}
		var name string
		var ok bool
		if s.parent, name, ok = splitEntry(s.value); !ok {
			err = corrupt("record %x: %x", key, s.value)
			break
		}
		s.entry = entryKey(s.parent, name)
		var value []byte
		if value, err = v.record(s.entry); err == nil && value != nil {
			s.node, err = decodeEntry(name, []byte(s.entry), value)
		}
		up = append(up, s)
		key = idKey(classINode, uint64(s.parent))
		if err != nil || s.parent <= metadata.RootID || len(up) > maxTries {
			break
		}
		// Nobody takes the lock who keeps a view open: see Restore.
		ns.unpin(v)
		ns.mu.RLock()
		stale, known := ns.view != v, ns.inodes[s.parent] != nil
		if !known {
			_, known = ns.changedRecord(key) // it is somewhere else now: whoever starts over sees where
		}
		if !stale {
			ns.pin()
		}
		ns.mu.RUnlock()
		if stale {
			return nil
		}
		if known {
			break
		}
	}
	return ns.settleFetch(v, err, func() error {
		for i := len(up) - 1; i >= 0; i-- {
			s := up[i]
			v.notes.put(s.key, s.value)
			if s.node == nil {
				continue
			}
			if err := ns.attachRead(s.parent, s.node, s.entry); err != nil {
				return err
			}
		}
		return nil
	})
}

// smallDirectory is how many entries a directory may have to come into memory as a whole.
const smallDirectory = 1024

// heavyKey is what is noted of a directory whose entries take more than pageBytes.
func heavyKey(dir metadata.INodeID) string { return idKey('h', uint64(dir)) }

// fetchAll brings all entries of a small directory into memory, or notes that they take more than room.
func (ns *Namespace) fetchAll(dir metadata.INodeID, room int) error {
	v, err := ns.pinned()
	if err != nil {
		return err
	}
	g := page{dir: dir}
	if room == 0 {
		room = math.MaxInt
	}
	bad := g.read(v, "", smallDirectory+1, room) // a part of it would help nobody
	return ns.settleFetch(v, bad, func() error {
		if !g.end && room != math.MaxInt {
			v.notes.put(heavyKey(dir), []byte{})
			return nil
		}
		evicted := ns.evicted
		if err := ns.installPage(&g); err != nil {
			return err
		}
		if n := ns.inodes[dir]; n != nil && n.isDir() && g.end && ns.view == v && ns.evicted == evicted {
			return n.mustBeComplete()
		}
		return nil
	})
}

// page is a part of a directory as a checkpoint has it, for one reader.
type page struct {
	view  *checkpointView
	dir   metadata.INodeID
	after string   // names behind that
	upTo  string   // up to and including that; if end is set, all
	end   bool     // there are no more
	names []string // in their order
	nodes []*inode // which are in nobody's memory but the page's; nil: it came into the namespace's
	want  int      // how many entries
}

// A page has at most so many entries, and so many bytes and one record. Each reader of a cold directory has one.
const (
	pageEntries = 1024
	pageBytes   = 1 << 20
)

// read fills the page with up to most entries with names after a name, of so many bytes.
func (g *page) read(v *checkpointView, after string, most, room int) error {
	g.view, g.after, g.upTo, g.end = v, after, after, true
	g.names, g.nodes = g.names[:0], g.nodes[:0]
	var bad error
	prefix := appendID(nil, classEntry, uint64(g.dir))
	err := v.eachEntry(prefix, append(appendID(nil, classEntry, uint64(g.dir)), after...), most+1, func(key, value []byte) bool {
		name := string(key[len(prefix):])
		if name == after && after != "" {
			return true
		}
		if len(g.names) == most || room < 0 {
			g.end = false
			return false
		}
		var n *inode
		if n, bad = decodeEntry(name, key, value); bad != nil {
			return false
		}
		room -= len(value)
		g.names, g.nodes, g.upTo = append(g.names, name), append(g.nodes, n), name
		return true
	})
	return errors.Join(err, bad)
}

// fetchPage reads a page for who misses it. While there is room its entries come into memory, too: what follows finds them
// there.
func (ns *Namespace) fetchPage(c *cold) error {
	ns.mu.RLock()
	full := ns.memory > 0 && ns.resident > ns.memory/8*7
	ns.mu.RUnlock()
	v, err := ns.pinned()
	if err != nil {
		return err
	}
	g := c.page
	if err := g.read(v, g.after, min(max(g.want, 16), pageEntries), pageBytes); err != nil {
		g.view = nil
		return ns.settleFetch(v, err, nil)
	}
	if full {
		ns.unpin(v)
		return nil
	}
	return ns.settleFetch(v, nil, func() error { return ns.installPage(g) })
}

// So many entries, or blocks, come into memory before the others get a turn: some hundred microseconds' work.
const (
	installsPerTurn = 128
	blocksPerTurn   = 2048
)

// installPage brings the entries of a page into memory. mu is held alone, and let go in between.
func (ns *Namespace) installPage(g *page) error {
	turn := 0
	for i, n := range g.nodes {
		if turn++; turn > installsPerTurn {
			turn = 1
			ns.mu.Unlock()
			runtime.Gosched()
			ns.mu.Lock()
			if ns.broken != nil {
				return ns.broken
			}
			if ns.view != g.view {
				return nil
			}
			ns.makeRoom()
		}
		g.nodes[i] = nil
		if n.file != nil {
			turn += len(n.file.blocks) * installsPerTurn / blocksPerTurn
		}
		if err := ns.attachRead(g.dir, n, entryKey(g.dir, g.names[i])); err != nil {
			return err
		}
	}
	return nil
}

// merge calls fn with the entries of a directory with names after a name, in their order, until it returns false: those in
// memory, and those of the page, which has to be of it. It returns the last name seen, and whether there may be more than
// the page has. mu is held.
//
// Errors: *cold, for another page, of want entries.
func (ns *Namespace) merge(dir *inode, after string, g *page, want int, fn func(n *inode) bool) (last string, more bool, err error) {
	if dir.complete() {
		last = after
		dir.dir.children.each(after, func(n *inode) bool {
			more = !fn(n)
			last = n.name
			return !more
		})
		return last, more, nil
	}
	miss := func() (string, bool, error) {
		g.dir, g.view, g.after, g.want = dir.id, nil, after, want
		return after, true, &cold{page: g}
	}
	if g.view != ns.view || g.dir != dir.id || g.after != after {
		if !ns.inline() {
			return miss()
		}
		g.dir, g.want = dir.id, want
		if err := g.read(ns.view, after, want, pageBytes); err != nil {
			return after, true, err
		}
	}
	last = after
	i, stopped, lost := 0, false, false
	key := appendID(make([]byte, 0, 9+metadata.MaxNameLength), classEntry, uint64(dir.id))
	// fromPage passes on what the page has below a name; the empty name: all.
	fromPage := func(below string) bool {
		for ; i < len(g.names) && (below == "" || g.names[i] < below); i++ {
			if ns.deletedKey(append(key, g.names[i]...)) {
				continue
			}
			n := g.nodes[i]
			if n == nil { // it came into memory, and has gone again
				lost = true
				return false
			}
			n.parent = dir
			last = g.names[i]
			if stopped = !fn(n); stopped {
				return false
			}
		}
		return true
	}
	dir.dir.children.each(after, func(n *inode) bool {
		name := n.name
		if !g.end && name > g.upTo {
			return false
		}
		if !fromPage(name) {
			return false
		}
		if i < len(g.names) && g.names[i] == name {
			i++ // that one, or another that took its name
		}
		last = name
		stopped = !fn(n)
		return !stopped
	})
	if !stopped && !lost {
		fromPage("")
	}
	switch {
	case lost && last == after:
		return miss()
	case lost, stopped:
		return last, true, nil
	case g.end:
		return last, false, nil
	}
	return g.upTo, true, nil
}

// doubt makes the next start build the checkpoint anew, when what was read from it is damaged. mu is held alone.
func (ns *Namespace) doubt(err error) {
	ns.broken = fmt.Errorf("namespace: reading the checkpoint at %d: %w", ns.applied, err)
	if cerr := ns.cfg.Store.Condemn(); cerr != nil {
		ns.broken = errors.Join(ns.broken, cerr)
	}
}
