package localizer

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/nodemanager"
)

// cache holds downloaded artifacts under the hash of their content, or of path, size and time where no hash is promised.
// Containers get copies, never the file itself: they run under the same user and could change it.
//
// A file is complete as soon as it has its name. Its bytes are compared with the promise again at every use, so a rotten
// one is fetched anew.
type cache struct {
	dir   string
	limit int64

	mu   sync.Mutex
	busy map[string]chan struct{} // closed when the download of the key is over
}

func openCache(dir string, limit int64) (*cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".part") { // of a download that a crash cut off
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return &cache{dir: dir, limit: limit, busy: map[string]chan struct{}{}}, nil
}

// get opens the cached bytes of key; download makes them when they are not there. Several callers share one download.
func (c *cache) get(ctx context.Context, key string, a *nodemanager.Artifact, download func(io.Writer) error) (*blob, error) {
	for {
		c.mu.Lock()
		wait, ok := c.busy[key]
		if !ok {
			c.busy[key] = make(chan struct{})
			c.mu.Unlock()
			break
		}
		c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer func() {
		c.mu.Lock()
		close(c.busy[key])
		delete(c.busy, key)
		c.mu.Unlock()
	}()
	name := filepath.Join(c.dir, key)
	b, err := c.open(name, a)
	if err == nil {
		now := time.Now()
		os.Chtimes(name, now, now) // the order of eviction
		return b, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		os.Remove(name) // rotten: get it again
	}
	part, err := os.OpenFile(name+".part", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o400)
	if err != nil {
		return nil, err
	}
	err = download(part)
	if closeErr := part.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(part.Name(), name)
	}
	if err != nil {
		os.Remove(part.Name())
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	c.evict(key)
	return &blob{ReaderAt: f, size: info.Size(), close: f.Close}, nil
}

// open verifies a cached file.
func (c *cache) open(name string, a *nodemanager.Artifact) (*blob, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	check := verify(a)
	n, err := io.Copy(check, f)
	if err == nil {
		err = check.done()
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &blob{ReaderAt: f, size: n, close: f.Close}, nil
}

// evict removes the least recently used files beyond the limit, except the one just made. Who has one open keeps it.
func (c *cache) evict(keep string) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	type file struct {
		name string
		size int64
		used time.Time
	}
	var files []file
	var total int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || strings.HasSuffix(e.Name(), ".part") {
			continue
		}
		total += info.Size()
		if e.Name() != keep {
			files = append(files, file{e.Name(), info.Size(), info.ModTime()})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name)) })
	for _, f := range files {
		if total <= c.limit {
			return
		}
		if os.Remove(filepath.Join(c.dir, f.name)) == nil {
			total -= f.size
		}
	}
}
