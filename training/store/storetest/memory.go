// Package storetest is the filesystem of the training layer in memory, for tests: it tells what was synced from what was
// only written, and loses the latter when a writer is taken away.
package storetest

import (
	"bytes"
	"context"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training/store"
)

// Memory is a store.FS. The zero value is not ready: New.
type Memory struct {
	mu    sync.Mutex
	nodes map[string]*node
	next  metadata.INodeID
	// Now is the time that files get, in milliseconds.
	Now int64
	// Syncs counts calls of Hsync that had something to do.
	Syncs int
	// FailSync makes so many calls of Hsync fail.
	FailSync int
	// Who acts.
	Who string
}

type node struct {
	id         metadata.INodeID
	dir        bool
	data       []byte
	synced     int
	writer     *writer
	mtime      int64
	attributes map[string]string
}

type writer struct {
	m    *Memory
	n    *node
	path string
}

// New makes an empty filesystem.
func New() *Memory {
	return &Memory{nodes: map[string]*node{"/": {dir: true, id: 1}}, next: 2, Who: "ann", Now: 1_700_000_000_000}
}

func missing(p string) error {
	return metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", p)
}

func (m *Memory) mkdirs(p string) {
	for ; m.nodes[p] == nil; p = path.Dir(p) {
		m.nodes[p] = &node{dir: true, id: m.next, mtime: m.Now}
		m.next++
	}
}

// Mkdirs is store.FS's.
func (m *Memory) Mkdirs(_ context.Context, p string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mkdirs(p)
	return nil
}

// Create is store.FS's.
func (m *Memory) Create(ctx context.Context, p string, overwrite bool) (store.Writer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.nodes[p] != nil && (!overwrite || m.nodes[p].dir) {
		return nil, metadata.Errorf(metadata.ErrExist, "%s exists", p)
	}
	m.mkdirs(path.Dir(p))
	n := &node{id: m.next, mtime: m.Now}
	m.next++
	m.nodes[p] = n
	n.writer = &writer{m, n, p}
	return n.writer, nil
}

// Append is store.FS's.
func (m *Memory) Append(_ context.Context, p string) (store.Writer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[p]
	if n == nil {
		return nil, missing(p)
	}
	if n.writer != nil {
		return nil, metadata.Errorf(metadata.ErrBeingCreated, "%s is open", p)
	}
	n.writer = &writer{m, n, p}
	return n.writer, nil
}

// Seal is store.FS's.
func (m *Memory) Seal(_ context.Context, p string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[p]
	if n == nil {
		return missing(p)
	}
	if n.writer != nil {
		n.data, n.writer = n.data[:n.synced], nil
	}
	return nil
}

// Open is store.FS's.
func (m *Memory) Open(_ context.Context, p string, offset int64) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[p]
	if n == nil || n.dir {
		return nil, missing(p)
	}
	return io.NopCloser(bytes.NewReader(bytes.Clone(n.data[min(int(offset), n.synced):n.synced]))), nil
}

func (m *Memory) status(p string, n *node) metadata.FileStatus {
	s := metadata.FileStatus{Name: path.Base(p), ID: n.id, Length: int64(len(n.data)), MTime: metadata.Time(n.mtime), Owner: m.Who}
	if n.dir {
		s.Type = metadata.TypeDirectory
	}
	return s
}

// Stat is store.FS's.
func (m *Memory) Stat(_ context.Context, p string) (metadata.FileStatus, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[p]
	if n == nil {
		return metadata.FileStatus{}, missing(p)
	}
	return m.status(p, n), nil
}

// List is store.FS's.
func (m *Memory) List(_ context.Context, p string) ([]metadata.FileStatus, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.nodes[p] == nil {
		return nil, missing(p)
	}
	var out []metadata.FileStatus
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		if name != "/" && path.Dir(name) == p {
			out = append(out, m.status(name, m.nodes[name]))
		}
	}
	return out, nil
}

// Move is store.FS's.
func (m *Memory) Move(_ context.Context, src, dst string) error { return m.move(src, dst, false) }

// Replace is store.FS's.
func (m *Memory) Replace(_ context.Context, src, dst string) error { return m.move(src, dst, true) }

func (m *Memory) move(src, dst string, overwrite bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.nodes[src] == nil {
		return missing(src)
	}
	if m.nodes[dst] != nil && !overwrite {
		return metadata.Errorf(metadata.ErrExist, "%s exists", dst)
	}
	if m.nodes[path.Dir(dst)] == nil {
		return missing(path.Dir(dst))
	}
	for name, n := range maps.Clone(m.nodes) {
		if name == src || strings.HasPrefix(name, src+"/") {
			delete(m.nodes, name)
			m.nodes[dst+name[len(src):]] = n
		}
	}
	return nil
}

// Delete is store.FS's.
func (m *Memory) Delete(_ context.Context, p string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range maps.Clone(m.nodes) {
		if name == p || strings.HasPrefix(name, p+"/") {
			delete(m.nodes, name)
		}
	}
	return nil
}

// Attributes is store.FS's.
func (m *Memory) Attributes(_ context.Context, p string) (map[string]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[p]
	if n == nil {
		return nil, missing(p)
	}
	return maps.Clone(n.attributes), nil
}

// SetAttribute is store.FS's.
func (m *Memory) SetAttribute(_ context.Context, p, name, value string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[p]
	if n == nil {
		return missing(p)
	}
	if n.attributes == nil {
		n.attributes = map[string]string{}
	}
	if _, ok := n.attributes[name]; !ok && len(n.attributes) == metadata.MaxXAttrs {
		return metadata.Errorf(metadata.ErrIO, "Cannot add additional XAttr to inode, would exceed limit of %d", metadata.MaxXAttrs)
	}
	n.attributes[name] = value
	return nil
}

// RemoveAttribute is store.FS's.
func (m *Memory) RemoveAttribute(_ context.Context, p, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[p]
	if n == nil {
		return missing(p)
	}
	delete(n.attributes, name)
	return nil
}

// User is store.FS's.
func (m *Memory) User() string { return m.Who }

// Put makes a closed file.
func (m *Memory) Put(p, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mkdirs(path.Dir(p))
	m.nodes[p] = &node{id: m.next, data: []byte(text), synced: len(text), mtime: m.Now}
	m.next++
}

// Paths are the paths of all files and directories below one, sorted.
func (m *Memory) Paths(below string) (out []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		if strings.HasPrefix(name, below+"/") {
			out = append(out, name[len(below)+1:])
		}
	}
	return out
}

func (w *writer) gone() error {
	if w.n.writer != w {
		return metadata.Errorf(metadata.ErrLeaseExpired, "%s is not open for this writer", w.path)
	}
	return nil
}

func (w *writer) Write(p []byte) (int, error) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if err := w.gone(); err != nil {
		return 0, err
	}
	w.n.data = append(w.n.data, p...)
	return len(p), nil
}

func (w *writer) Hsync(context.Context) error {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if err := w.gone(); err != nil {
		return err
	}
	if w.m.FailSync > 0 {
		w.m.FailSync--
		return metadata.Errorf(metadata.ErrIO, "%s: the pipeline failed", w.path)
	}
	w.m.Syncs++
	w.n.synced = len(w.n.data)
	return nil
}

func (w *writer) Close() error {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if err := w.gone(); err != nil {
		return err
	}
	w.n.synced, w.n.writer, w.n.mtime = len(w.n.data), nil, w.m.Now
	return nil
}

func (w *writer) Abort() {}
