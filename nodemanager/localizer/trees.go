package localizer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/nodemanager/state"
)

// treeFile in a tree says what it is. A tree is complete when it has its name.
const treeFile = ".tree.json"

// treeRecord is the content of treeFile.
type treeRecord struct {
	Boot string `json:"boot,omitempty"`
	extent
}

// extent is what a tree takes on the disk.
type extent struct {
	// Bytes of all, a block for each file among them.
	Bytes int64 `json:"bytes"`
	// Files, directories and links.
	Files int `json:"files"`
}

// fileBytes is what a file takes beside its content: a block at least, and an inode.
const fileBytes = 4096

func extentOf(content int64, files int) extent {
	return extent{content + fileBytes*int64(files+1), files}
}

// content is the bytes of the files themselves.
func (e extent) content() int64 { return max(0, e.Bytes-fileBytes*int64(e.Files+1)) }

// trees are shared artifacts, unpacked, each in a directory of its own. Those that containers use stay; of the others the
// least recently used go when there is no room. The directory of all is ours alone (0700): a container sees those that are
// mounted where it runs, or runs as ourselves.
type trees struct {
	dir, boot string
	limit     int64
	disk      *disk

	mu      sync.Mutex
	all     map[string]*tree
	busy    map[string]chan struct{} // closed when the tree is made, or not
	loading int64                    // bytes of the downloads under way
	removed int                      // names given to what is being removed
}

// tree is one of them.
type tree struct {
	extent
	used time.Time
	uses int // containers that use it now
}

// openTrees finds what an earlier node manager has left, and removes what is of no use.
func openTrees(dir, boot string, limit int64, d *disk) (*trees, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(dir) // links to it must lead there from everywhere
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	t := &trees{dir: dir, boot: boot, limit: limit, disk: d, all: map[string]*tree{}, busy: map[string]chan struct{}{}}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		var record treeRecord
		info, err := e.Info()
		if err == nil && !strings.Contains(e.Name(), ".") {
			var text []byte
			if text, err = os.ReadFile(filepath.Join(name, treeFile)); err == nil {
				err = json.Unmarshal(text, &record)
			}
		} else {
			err = errors.New("cut off")
		}
		if err == nil && record.Boot == boot {
			t.all[e.Name()] = &tree{extent: record.extent, used: info.ModTime()}
		} else if err := state.RemoveAll(name); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// get takes hold of a tree; make puts its parts into a directory when there is none, and returns what it takes on the disk. size is that
// of the download. Several callers share one download.
func (t *trees) get(ctx context.Context, key string, size int64, make_ func(part string) (extent, error)) (extent, error) {
	for {
		t.mu.Lock()
		if found := t.all[key]; found != nil {
			found.uses++
			found.used = time.Now()
			t.mu.Unlock()
			now := time.Now()
			_ = os.Chtimes(filepath.Join(t.dir, key), now, now) // the order of eviction after a restart
			return found.extent, nil
		}
		wait, ok := t.busy[key]
		if !ok {
			t.busy[key] = make(chan struct{})
			t.mu.Unlock()
			break
		}
		t.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return extent{}, ctx.Err()
		}
	}
	takes, err := t.build(key, size, make_)
	t.mu.Lock()
	if err == nil {
		t.all[key] = &tree{extent: takes, used: time.Now(), uses: 1}
	}
	close(t.busy[key])
	delete(t.busy, key)
	t.mu.Unlock()
	return takes, err
}

func (t *trees) build(key string, size int64, make_ func(part string) (extent, error)) (extent, error) {
	if err := t.makeRoom(size); err != nil {
		return extent{}, err
	}
	defer func() {
		t.mu.Lock()
		t.loading -= size
		t.mu.Unlock()
	}()
	part := filepath.Join(t.dir, key+".part")
	if err := state.RemoveAll(part); err != nil {
		return extent{}, err
	}
	if err := os.Mkdir(part, 0o755); err != nil {
		return extent{}, err
	}
	takes, err := make_(part)
	if err == nil {
		var text []byte
		text, err = json.Marshal(treeRecord{t.boot, takes})
		if err == nil {
			err = os.WriteFile(filepath.Join(part, treeFile), text, 0o400)
		}
	}
	if err == nil {
		err = os.Rename(part, filepath.Join(t.dir, key))
	}
	if err != nil {
		return extent{}, errors.Join(err, state.RemoveAll(part))
	}
	return takes, nil
}

// makeRoom counts a download in, and removes unused trees, the least recently used first, until it fits: into the limit, and
// onto the disk. Trees in use may be more than the limit; the disk's reserve stays whatever is in use.
func (t *trees) makeRoom(size int64) error {
	t.mu.Lock()
	t.loading += size
	total := t.loading
	var unused []string
	for key, tree := range t.all {
		total += tree.Bytes
		if tree.uses == 0 {
			unused = append(unused, key)
		}
	}
	slices.SortFunc(unused, func(a, b string) int { return cmp.Or(t.all[a].used.Compare(t.all[b].used), cmp.Compare(a, b)) })
	loading := t.loading
	t.mu.Unlock()
	for {
		full := t.disk.takes(t.dir, loading, 1)
		if full == nil && total <= t.limit {
			return nil
		}
		if len(unused) == 0 {
			if full == nil {
				return nil
			}
			t.mu.Lock()
			t.loading -= size
			t.mu.Unlock()
			return full
		}
		total -= t.remove(unused[0])
		unused = unused[1:]
	}
}

// remove takes a tree away that nobody uses, and returns how many bytes that are.
func (t *trees) remove(key string) int64 {
	t.mu.Lock()
	found := t.all[key]
	if found == nil || found.uses > 0 {
		t.mu.Unlock()
		return 0
	}
	t.removed++
	gone := filepath.Join(t.dir, "gone."+strconv.Itoa(t.removed))
	err := os.Rename(filepath.Join(t.dir, key), gone)
	if err == nil {
		delete(t.all, key)
	}
	t.mu.Unlock()
	if err != nil || state.RemoveAll(gone) != nil {
		return 0 // the next node manager tries again
	}
	return found.Bytes
}

func (t *trees) hold(keys []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		if found := t.all[key]; found != nil {
			found.uses++
		}
	}
}

func (t *trees) release(keys []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		if found := t.all[key]; found != nil && found.uses > 0 {
			found.uses--
		}
	}
}

// size adds up what trees take on the disk, each once.
func (t *trees) size(keys []string) (bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, key := range keys {
		if found := t.all[key]; found != nil && !slices.Contains(keys[:i], key) {
			bytes += found.Bytes
		}
	}
	return bytes
}
