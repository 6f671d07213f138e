package controller

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gohops/hops/metadata"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// memFS is a filesystem in memory that tells flushed bytes from others: what was not flushed is lost when its writer is
// taken away, except for a part.
type memFS struct {
	mu    sync.Mutex
	files map[string]*memFile
	dirs  map[string]bool
	// failFlush fails so many flushes; of the bytes written, keep(n) arrive nevertheless.
	failFlush int
	failure   error // of such a flush, if it is not the usual one
	keep      func(n int) int
	// slow is called once, by the next flush of the journal.
	slow func()
}

type memFile struct {
	data    []byte
	flushed int
	synced  int // survives a power cut
	writer  *memWriter
}

type memWriter struct {
	fs   *memFS
	path string
	f    *memFile
}

func newMemFS() *memFS { return &memFS{files: map[string]*memFile{}, dirs: map[string]bool{"/": true}} }

func notExist(p string) error {
	return metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", p)
}

func (m *memFS) Mkdirs(_ context.Context, p string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ; !m.dirs[p]; p = path.Dir(p) {
		m.dirs[p] = true
	}
	return nil
}

func (m *memFS) Create(ctx context.Context, p string, overwrite bool) (FileWriter, error) {
	_ = m.Mkdirs(ctx, path.Dir(p))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files[p] != nil && !overwrite {
		return nil, metadata.Errorf(metadata.ErrExist, "%s exists", p)
	}
	f := &memFile{}
	m.files[p] = f
	f.writer = &memWriter{m, p, f}
	return f.writer, nil
}

func (m *memFS) Append(_ context.Context, p string) (FileWriter, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[p]
	if f == nil {
		return nil, notExist(p)
	}
	if f.writer != nil {
		return nil, metadata.Errorf(metadata.ErrBeingCreated, "%s is open", p)
	}
	f.writer = &memWriter{m, p, f}
	return f.writer, nil
}

func (m *memFS) Seal(_ context.Context, p string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[p]
	if f == nil {
		return notExist(p)
	}
	if f.writer != nil {
		more := 0
		if m.keep != nil {
			more = m.keep(len(f.data) - f.flushed)
		}
		f.data = f.data[:f.flushed+more]
		f.flushed = len(f.data)
		f.writer = nil
	}
	return nil
}

func (m *memFS) Open(_ context.Context, p string, offset int64) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[p]
	if f == nil {
		return nil, notExist(p)
	}
	return io.NopCloser(bytes.NewReader(bytes.Clone(f.data[min(int(offset), f.flushed):f.flushed]))), nil
}

func (m *memFS) Stat(_ context.Context, p string) (metadata.FileStatus, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.files[p]; f != nil {
		return metadata.FileStatus{Type: metadata.TypeFile, Length: int64(f.flushed)}, nil
	}
	if m.dirs[p] {
		return metadata.FileStatus{Type: metadata.TypeDirectory}, nil
	}
	return metadata.FileStatus{}, notExist(p)
}

func (m *memFS) List(_ context.Context, p string) ([]metadata.FileStatus, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dirs[p] {
		return nil, notExist(p)
	}
	var out []metadata.FileStatus
	for name, f := range m.files {
		if path.Dir(name) == p {
			out = append(out, metadata.FileStatus{Name: path.Base(name), Type: metadata.TypeFile, Length: int64(f.flushed)})
		}
	}
	for name := range m.dirs {
		if path.Dir(name) == p && name != "/" {
			out = append(out, metadata.FileStatus{Name: path.Base(name), Type: metadata.TypeDirectory})
		}
	}
	slices.SortFunc(out, func(a, b metadata.FileStatus) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (m *memFS) Replace(_ context.Context, src, dst string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[src]
	if f == nil {
		return notExist(src)
	}
	delete(m.files, src)
	m.files[dst] = f
	return nil
}

func (m *memFS) Delete(_ context.Context, p string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, p)
	delete(m.dirs, p)
	for name := range m.files {
		if strings.HasPrefix(name, p+"/") {
			delete(m.files, name)
		}
	}
	for name := range m.dirs {
		if strings.HasPrefix(name, p+"/") {
			delete(m.dirs, name)
		}
	}
	return nil
}

func (m *memFS) put(p string, data []byte) {
	w, _ := m.Create(context.Background(), p, true)
	_, _ = w.Write(data)
	_ = w.Close()
}

func (m *memFS) get(t testing.TB, p string) []byte {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[p]
	if f == nil {
		t.Fatalf("no file %s", p)
	}
	return bytes.Clone(f.data[:f.flushed])
}

func (w *memWriter) usable() error {
	if w.f.writer != w {
		return metadata.Errorf(metadata.ErrLeaseExpired, "%s was taken away", w.path)
	}
	return nil
}

func (w *memWriter) Write(b []byte) (int, error) {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	if err := w.usable(); err != nil {
		return 0, err
	}
	w.f.data = append(w.f.data, b...)
	return len(b), nil
}

func (w *memWriter) Hflush(context.Context) error {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	if err := w.usable(); err != nil {
		return err
	}
	if w.fs.slow != nil && strings.HasSuffix(w.path, journalName) {
		w.fs.slow()
		w.fs.slow = nil
	}
	if w.fs.failFlush > 0 && strings.HasSuffix(w.path, journalName) {
		w.fs.failFlush--
		if w.fs.failure != nil {
			return w.fs.failure
		}
		return metadata.Errorf(metadata.ErrIO, "a pipeline of %s broke", w.path)
	}
	w.f.flushed = len(w.f.data)
	return nil
}

func (w *memWriter) Hsync(ctx context.Context) error {
	err := w.Hflush(ctx)
	if err == nil {
		w.fs.mu.Lock()
		w.f.synced = w.f.flushed
		w.fs.mu.Unlock()
	}
	return err
}

func (w *memWriter) Close() error {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	if err := w.usable(); err != nil {
		return err
	}
	w.f.flushed, w.f.writer = len(w.f.data), nil
	return nil
}

func (w *memWriter) Abort() {}

// fakeRM grants containers at once and starts what the test gives it in each.
type fakeRM struct {
	start func(rm *fakeRM, c *rmpb.Container, l *rmpb.Launch) // in its own goroutine
	// started are those goroutines; all there will be when the controllers have ended.
	started sync.WaitGroup

	mu         sync.Mutex
	seq        uint64
	events     []*rmpb.Event
	more       chan struct{}
	running    map[string]*rmpb.Container
	n          int
	asks       []*rmpb.Ask
	registered *rmpb.RegisterRequest // the last
	finished   *rmpb.FinishRequest
	nodes      int
	released   []string
}

func newFakeRM(nodes int, start func(*fakeRM, *rmpb.Container, *rmpb.Launch)) *fakeRM {
	return &fakeRM{start: start, nodes: nodes, more: make(chan struct{}), running: map[string]*rmpb.Container{}}
}

func (f *fakeRM) Register(_ context.Context, q *rmpb.RegisterRequest) (*rmpb.RegisterResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.registered = q
	r := &rmpb.RegisterResponse{Epoch: 1}
	for _, c := range f.running {
		r.Containers = append(r.Containers, c)
	}
	f.events = nil
	return r, nil
}

func (f *fakeRM) pushLocked(e *rmpb.Event) {
	f.seq++
	e.Sequence = f.seq
	f.events = append(f.events, e)
	close(f.more)
	f.more = make(chan struct{})
}

func (f *fakeRM) Allocate(_ context.Context, r *rmpb.AllocateRequest) (*rmpb.AllocateResponse, error) {
	f.mu.Lock()
	for _, a := range r.Asks {
		f.asks = append(f.asks, a)
		count := int(a.Count)
		for _, e := range f.events {
			if r.Acknowledged > 0 && e.Sequence > r.Acknowledged && e.GetGranted().GetAskId() == a.AskId {
				count--
			}
		}
		for range count {
			f.grantLocked(a)
		}
	}
	f.mu.Unlock()
	for _, id := range r.Release {
		f.mu.Lock()
		f.released = append(f.released, id)
		f.mu.Unlock()
		f.complete(id, -100)
	}
	return &rmpb.AllocateResponse{Sequence: r.Sequence}, nil
}

// grantLocked gives one container, if a node may be used.
func (f *fakeRM) grantLocked(a *rmpb.Ask) {
	node := ""
	for range f.nodes {
		node = fmt.Sprintf("node%d:8042", f.n%f.nodes+1)
		if !slices.Contains(a.ExcludedNodes, node) {
			break
		}
		node = ""
		f.n++
	}
	if node == "" {
		return
	}
	f.n++
	c := &rmpb.Container{ContainerId: fmt.Sprintf("container_1_0001_01_%06d", f.n), NodeId: node, Host: strings.Split(node, ":")[0], AskId: a.AskId, Token: fmt.Sprintf("token-%d", f.n)}
	f.running[c.ContainerId] = c
	f.pushLocked(&rmpb.Event{Event: &rmpb.Event_Granted{Granted: c}})
	if f.start != nil {
		f.started.Go(func() { f.start(f, c, a.Launch) })
	}
}

// tell sends an event.
func (f *fakeRM) tell(e *rmpb.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pushLocked(e)
}

// complete ends a container.
func (f *fakeRM) complete(id string, status int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.running[id]
	if c == nil {
		return
	}
	delete(f.running, id)
	f.pushLocked(&rmpb.Event{Event: &rmpb.Event_Completed{Completed: &rmpb.Completed{ContainerId: id, ExitStatus: status, NodeId: c.NodeId}}})
}

func (f *fakeRM) Events(ctx context.Context, r *rmpb.EventsRequest, handle func(*rmpb.Event) error) error {
	at := r.Acknowledged
	for {
		f.mu.Lock()
		var next []*rmpb.Event
		for _, e := range f.events {
			if e.Sequence > at {
				next = append(next, e)
			}
		}
		more := f.more
		f.mu.Unlock()
		for _, e := range next {
			if err := handle(e); err != nil {
				return err
			}
			at = e.Sequence
		}
		if len(next) > 0 {
			continue
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeRM) Finish(_ context.Context, r *rmpb.FinishRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finished = r
	return nil
}
