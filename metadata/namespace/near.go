package namespace

import (
	"bytes"
	"strings"
	"sync/atomic"
)

// near remembers directories that paths have led to, so that the next path into one does not search every directory
// above it: each of those searches waits for memory several times. A directory is looked up by the hash of its path, and
// whether that is still its path is read off the names above it; so nothing has to be told here when the tree changes. One
// that was forgotten has nothing above it any more.
type near struct {
	root  *inode // of the tree that the directories are of
	slots [nearSlots]atomic.Pointer[inode]
}

const (
	nearBits  = 15
	nearSlots = 1 << nearBits
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
	if at = t.slot(dir).Load(); at == nil || !t.enter(p, at, dir) {
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
	t := ns.nearby()
	var room [16]seeker
	for len(paths) > 0 {
		n := min(len(paths), len(room))
		seekers := room[:0]
		for _, path := range paths[:n] {
			i := bytes.LastIndexByte(path, '/')
			if i <= 1 || path[0] != '/' {
				continue
			}
			seekers = append(seekers, seeker{slot: &t.slots[hashName(path[1:i])>>(64-nearBits)], hash: hashName(path[i+1:])})
		}
		seek(seekers)
		paths = paths[n:]
	}
}

// seeker is on the way to a file.
type seeker struct {
	slot *atomic.Pointer[inode] // where its directory is remembered
	hash uint64                 // of its name
	dir  *directory
	few  []child
	node *inode
}

// seek goes step by step with all of them. What it returns is of no use but that the compiler leaves the reads in.
//
//go:noinline
func seek(all []seeker) (sum int64) {
	for i := range all {
		if n := all[i].slot.Load(); n != nil {
			all[i].dir = n.dir
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
		ns.nearby().slot(dir).Store(at)
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

// slot is where the directory dir is remembered, a path from the root without the slashes around it.
func (t *near) slot(dir string) *atomic.Pointer[inode] {
	return &t.slots[hashName(dir)>>(64-nearBits)]
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
