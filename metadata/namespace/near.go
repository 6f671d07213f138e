package namespace

import (
	"strings"
	"sync/atomic"
)

// near remembers directories that paths have led to, so that the next path into one does not search every directory
// above it: each of those searches waits for memory several times. A directory is looked up by the hash of its path, and
// whether that is still its path is read off the names above it; so nothing has to be told here when the tree changes. One
// that was forgotten has nothing above it any more.
type near struct {
	sets [1 << nearBits]nearSet // in front, where lines of the cache begin
	root *inode                 // of the tree that the directories are of
}

// nearSet is where directories are remembered whose paths have hashes that begin alike: one line of the processor's cache, so that
// looking for one among four costs what looking at one does.
type nearSet struct {
	hashes [nearWays]atomic.Uint64
	nodes  [nearWays]atomic.Pointer[inode]
}

const (
	nearBits = 13
	nearWays = 4
	// nearDepth is the deepest directory that is remembered.
	nearDepth = 24
)

// nearby is what is remembered of the tree as it is now. mu is held, shared or alone.
func (ns *Namespace) nearby() *near {
	t := ns.near.Load()
	if t == nil || t.root != ns.root {
		t = &near{root: ns.root} // several readers may make one: the last stays
		ns.near.Store(t)
	}
	return t
}

// approach makes p the directory that path, from the root, ends in, if that is remembered, and returns what is left of
// the path; else nil.
func (ns *Namespace) approach(p *place, path string) (rest string, at *inode) {
	dir, name, ok := inDirectory(path)
	if !ok {
		return path, nil
	}
	t := ns.nearby()
	if at = t.get(hashName(dir)); at == nil || !t.enter(p, at, dir) {
		return path, nil
	}
	at.use()
	return name, at
}

// Prefetch reads what finding the files at paths will read, as far as their directories are remembered and small; and nothing of what it
// reads for one path waits for what it reads for another, so that the processor waits for the memory of many at a time. Nobody's
// rights are looked at, and nothing is told.
func (ns *Namespace) Prefetch(paths [][]byte) {
	if !ns.mu.TryRLock() {
		return
	}
	defer ns.mu.RUnlock()
	seekEach(ns.nearby(), paths)
}

// seekEach is Prefetch under the lock.
func seekEach[S string | []byte](t *near, paths []S) {
	var room [16]seeker
	for len(paths) > 1 {
		n := min(len(paths), len(room))
		seekers := room[:0]
		for _, path := range paths[:n] {
			i := lastSlash(path)
			if i <= 1 || path[0] != '/' {
				continue
			}
			seekers = append(seekers, seeker{way: hashName(path[1:i]), hash: hashName(path[i+1:])})
		}
		t.seek(seekers)
		paths = paths[n:]
	}
}

// lastSlash returns where the last slash of a path is; -1 if there is none.
func lastSlash[S string | []byte](path S) int {
	i := len(path) - 1
	for i >= 0 && path[i] != '/' {
		i--
	}
	return i
}

// seeker is on the way to a file.
type seeker struct {
	way  uint64 // the hash of its directory's path
	hash uint64 // of its name
	at   *inode // its directory, if that is remembered
	dir  *directory
	few  []child
	node *inode
}

// seek goes step by step with all of them. What it returns is of no use but that the compiler leaves the reads in.
//
//go:noinline
func (t *near) seek(all []seeker) (sum int64) {
	for i := range all {
		all[i].at = t.get(all[i].way)
	}
	for i := range all {
		if n := all[i].at; n != nil {
			all[i].dir = n.dir
			sum += int64(n.epoch)
			if len(n.name) > 0 {
				sum += int64(n.name[0])
			}
		}
	}
	for i := range all {
		if d := all[i].dir; d != nil {
			all[i].few = d.children.few
		}
	}
	for i := range all {
		for few := all[i].few; len(few) > 0; few = few[min(len(few), perLine):] {
			sum += int64(few[0].hash)
		}
	}
	for i := range all {
		for _, c := range all[i].few {
			if c.hash == all[i].hash {
				all[i].node = c.node
				break
			}
		}
	}
	for i := range all {
		if n := all[i].node; n != nil {
			sum += int64(n.mode) + int64(n.mtime)
		}
	}
	for i := range all {
		if n := all[i].node; n != nil {
			if n.file != nil {
				sum += n.file.length + int64(n.file.replication)
			}
			if len(n.name) > 0 {
				sum += int64(n.name[0])
			}
		}
	}
	return sum
}

// perLine is how many of a directory's few entries lie in what the processor reads of memory at a time.
const perLine = 4

// keepNear notes the directory that path, from the root, ends in: what p has come to.
func (ns *Namespace) keepNear(p *place, path string) {
	dir, _, ok := inDirectory(path)
	if !ok {
		return
	}
	if at := p.parent(); at != nil && at.isDir() && !at.isGhost() {
		ns.nearby().put(hashName(dir), at)
	}
}

// inDirectory cuts a path into a directory below the root and a name.
func inDirectory(path string) (dir, name string, ok bool) {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 || i == len(path)-1 {
		return "", "", false
	}
	return path[:i], path[i+1:], true
}

// get returns what is remembered under the hash of a path from the root without the slashes around it: as good as always the directory
// that was there; nil: nothing is.
func (t *near) get(hash uint64) *inode {
	set := &t.sets[hash>>(64-nearBits)]
	for i := range set.hashes {
		if set.hashes[i].Load() == hash {
			return set.nodes[i].Load()
		}
	}
	return nil
}

// put remembers a directory, in the place of the one that came first if its set is full. Readers who put at the same time may leave a hash with the
// directory of another one: whoever finds that sees that it has another path.
func (t *near) put(hash uint64, n *inode) {
	set := &t.sets[hash>>(64-nearBits)]
	for i := range set.hashes {
		if set.hashes[i].Load() == hash {
			set.nodes[i].Store(n)
			return
		}
	}
	for i := nearWays - 1; i > 0; i-- {
		set.nodes[i].Store(set.nodes[i-1].Load())
		set.hashes[i].Store(set.hashes[i-1].Load())
	}
	set.nodes[0].Store(n)
	set.hashes[0].Store(hash)
}

// forget lets go of a directory, whatever hash it is remembered under. mu is held alone.
func (t *near) forget(hash uint64, n *inode) {
	set := &t.sets[hash>>(64-nearBits)]
	for i := range set.nodes {
		set.nodes[i].CompareAndSwap(n, nil)
	}
}

// enter makes p the place dir, if n, which may be nil, is what is there.
func (t *near) enter(p *place, n *inode, dir string) bool {
	var chain [nearDepth]*inode
	depth := 0
	for ; n != t.root; n = n.parent {
		if n == nil || depth == nearDepth {
			return false
		}
		rest := len(dir) - len(n.name)
		if rest < 0 || dir[rest:] != n.name {
			return false
		}
		chain[depth] = n
		depth++
		switch {
		case rest == 0:
			if n.parent != t.root {
				return false
			}
			dir = ""
		case rest == 1 || dir[rest-1] != '/':
			return false
		default:
			dir = dir[:rest-1]
		}
	}
	if dir != "" || depth == 0 {
		return false
	}
	p.nodes = append(p.nodes, t.root)
	for depth--; depth >= 0; depth-- {
		p.push(chain[depth].name, chain[depth])
	}
	return true
}
