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

// cache holds downloaded artifacts under their cacheKey. Containers get copies, never the file itself: they run under the
// same user and could change it.
//
// A file is complete as soon as it has its name. Its bytes are compared with the promise again at every use, so a rotten
// one is fetched anew.
type cache struct {
	dir   string
	limit int64
	disk  *disk

	mu      sync.Mutex
	busy    map[string]chan struct{} // closed when the download of the key is over
	loading int64                    // bytes of the downloads under way
}

// maxCached bounds the files of the cache: empty ones take no bytes, and each new one looks at all.
const maxCached = 10_000

func openCache(dir string, limit int64, d *disk) (*cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		// Cut off by a crash, or named as no artifact is (earlier versions did not have the user in the name).
		known := strings.HasPrefix(e.Name(), "public-") || strings.HasPrefix(e.Name(), "private-")
		if !known || strings.HasSuffix(e.Name(), ".part") {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return &cache{dir: dir, limit: limit, disk: d, busy: map[string]chan struct{}{}}, nil
}

// get opens the cached bytes of key; download makes them, a.Size of them, when they are not there. Several callers share
// one download.
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
	if err := c.makeRoom(a.Size); err != nil {
		return nil, err
	}
	defer func() {
		c.mu.Lock()
		c.loading -= a.Size
		c.mu.Unlock()
	}()
	part, err := os.OpenFile(name+".part", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o400)
	if err != nil {
		return nil, err
	}
	defer os.Remove(part.Name()) // it has its own name by then, or is of no use
	if err := download(part); err != nil {
		part.Close()
		return nil, err
	}
	if a.Size <= c.limit {
		if err := os.Rename(part.Name(), name); err != nil {
			part.Close()
			return nil, err
		}
	}
	return &blob{ReaderAt: part, size: a.Size, close: part.Close}, nil
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

// makeRoom counts a download in, and removes the least recently used files until it fits: into the limit, and onto the
// disk. Who has one open keeps it.
func (c *cache) makeRoom(size int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	type file struct {
		name string
		size int64
		used time.Time
	}
	var files []file
	total := c.loading + size
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || strings.HasSuffix(e.Name(), ".part") {
			continue
		}
		total += info.Size()
		files = append(files, file{e.Name(), info.Size(), info.ModTime()})
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name)) })
	// How much of the downloads under way is on the disk already nobody knows; all of it counts.
	full := c.disk.takes(c.dir, c.loading+size, 1)
	for len(files) > 0 && (total > c.limit || len(files) >= maxCached || full != nil) {
		if os.Remove(filepath.Join(c.dir, files[0].name)) == nil {
			total -= files[0].size
		}
		files = files[1:]
		if full != nil {
			full = c.disk.takes(c.dir, c.loading+size, 1)
		}
	}
	if full != nil {
		return full
	}
	c.loading += size
	return nil
}
