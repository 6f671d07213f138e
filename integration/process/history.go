package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// History remembers what users of the filesystem were told, for a comparison with what is there. Every path belongs to
// one worker.
type History struct {
	t   testing.TB
	dir string
	// Keep is how many files Calls leaves there, of which the oldest go; 0: all.
	Keep int

	mu sync.Mutex
	// files by path: what must be there. Unsure: the last operation on the path was not acknowledged.
	files map[string]*expectation
	acks  atomic.Int64
	stop  context.CancelFunc
	done  sync.WaitGroup
	// failed counts unacknowledged operations, serial makes names.
	failed, serial atomic.Int64
	// latest is the highest number of a file whose writing was acknowledged to one of calls.
	latest atomic.Int64
}

type expectation struct {
	data    []byte // nil: nothing is there
	unsure  bool
	attempt []byte // what is there if the operation took place all the same; nil: nothing
}

func NewHistory(t testing.TB, dir string) *History {
	return &History{t: t, dir: dir, files: map[string]*expectation{}}
}

// contents are different for every file, and from empty to a few packets long.
func contents(name string, n int) []byte {
	size := []int{0, 1, 511, 512, 4096, 70000, 300000}[n%7]
	return bytes.Repeat([]byte(name+"\n"), size/len(name)+1)[:size]
}

// attempt notes the start of an operation after which data is at a path; the returned function notes its end.
func (h *History) attempt(name string, data []byte) func(error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.files[name]
	if e == nil {
		e = &expectation{}
		h.files[name] = e
	}
	e.unsure, e.attempt = true, data
	return func(err error) {
		if err != nil {
			h.failed.Add(1)
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		e.unsure, e.data = false, data
		h.acks.Add(1)
	}
}

// Puts runs one `hops fs -put` after the other with each worker, until stopped.
func (h *History) Puts(ctx context.Context, workers int, conf string) {
	binary, env := Binary(h.t), Environ(h.t, conf)
	for range workers {
		h.done.Go(func() {
			for ctx.Err() == nil {
				n := int(h.serial.Add(1))
				name := path.Join(h.dir, fmt.Sprintf("put-%d", n))
				data := contents(name, n)
				end := h.attempt(name, data)
				cmd := exec.CommandContext(ctx, binary, "fs", "-put", "-", name)
				cmd.Env, cmd.Stdin = env, bytes.NewReader(data)
				end(cmd.Run())
			}
		})
	}
}

// Calls writes, renames and deletes through a client with each worker, until stopped.
func (h *History) Calls(ctx context.Context, workers int, fs *dfs.Client) {
	for range workers {
		h.done.Go(func() {
			var kept []string // by this worker, the oldest first
			for ctx.Err() == nil {
				n := int(h.serial.Add(1))
				if name := h.callOnce(ctx, fs, fmt.Sprintf("call-%d", n), n); name != "" && h.Keep > 0 {
					kept = append(kept, name)
				}
				for len(kept) > h.Keep/workers {
					h.remove(ctx, fs, kept[0])
					kept = kept[1:]
				}
			}
		})
	}
}

// callTime is how long an operation, with those that follow on the same file, may take.
const callTime = 20 * time.Second

// callOnce returns the file that it was told is there at the end; empty: none.
func (h *History) callOnce(ctx context.Context, fs *dfs.Client, base string, n int) string {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	name := path.Join(h.dir, base)
	data := contents(name, n)
	end := h.attempt(name, data)
	err := fs.WriteFile(ctx, name, data, false)
	if end(err); err != nil {
		return ""
	}
	for {
		was := h.latest.Load()
		if was >= int64(n) || h.latest.CompareAndSwap(was, int64(n)) {
			break
		}
	}
	switch n % 4 {
	case 1:
		gone, there := h.attempt(name, nil), h.attempt(name+"-renamed", data)
		ok, err := fs.Rename(ctx, name, name+"-renamed")
		if err == nil && !ok {
			h.t.Errorf("rename of %s answered false: the first of two tries has taken place, or none", name)
		}
		gone(err)
		if there(err); err != nil {
			return ""
		}
		return name + "-renamed"
	case 3:
		h.remove(ctx, fs, name)
		return ""
	}
	return name
}

// remove deletes a file.
func (h *History) remove(ctx context.Context, fs *dfs.Client, name string) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	end := h.attempt(name, nil)
	ok, err := fs.Delete(ctx, name, false)
	if err == nil && !ok {
		h.t.Errorf("delete of %s answered false: the first of two tries has taken place, or none", name)
	}
	end(err)
}

// Start runs the workers.
func (h *History) Start(run ...func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	for _, f := range run {
		f(ctx)
	}
}

// More waits until a number of further operations was acknowledged, and returns how long that took.
func (h *History) More(n int64) time.Duration {
	h.t.Helper()
	want, started := h.acks.Load()+n, time.Now()
	Eventually(h.t, "acknowledgements", func() error {
		if got := h.acks.Load(); got < want {
			return fmt.Errorf("%d of %d, %d failed", got, want, h.failed.Load())
		}
		return nil
	})
	return time.Since(started)
}

// Counts are the operations that were acknowledged, and those that were not.
func (h *History) Counts() (acknowledged, failed int64) { return h.acks.Load(), h.failed.Load() }

// End stops the workers.
func (h *History) End() {
	h.stop()
	h.done.Wait()
}

// Verify compares with what is there: everything acknowledged, byte for byte, and nothing that nobody wrote.
func (h *History) Verify(fs *dfs.Client) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*Patience+time.Duration(len(h.files))*50*time.Millisecond)
	defer cancel()
	entries, err := fs.List(ctx, h.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	there := map[string]bool{}
	for _, e := range entries {
		name := path.Join(h.dir, e.Name)
		there[name] = true
		if plain := strings.TrimSuffix(name, "._COPYING_"); h.files[plain] == nil {
			h.t.Errorf("%s is there and nobody wrote it", name)
		}
	}
	type file struct {
		name string
		*expectation
	}
	work := make(chan file)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for f := range work {
				h.verifyFile(ctx, fs, f.name, f.expectation, there[f.name])
			}
		})
	}
	for name, e := range h.files {
		work <- file{name, e}
	}
	close(work)
	readers.Wait()
	h.t.Logf("%d operations acknowledged, %d not; %d files", h.acks.Load(), h.failed.Load(), len(entries))
}

func (h *History) verifyFile(ctx context.Context, fs *dfs.Client, name string, e *expectation, listed bool) {
	got, err := fs.ReadFile(ctx, name)
	if err != nil && e.unsure && !errors.Is(err, metadata.ErrNotExist) {
		// Nobody has promised that its writer's last block can be read; closing it for the writer must make it so.
		h.recover(ctx, fs, name)
		got, err = fs.ReadFile(ctx, name)
	}
	if errors.Is(err, metadata.ErrNotExist) {
		if e.data != nil && !(e.unsure && e.attempt == nil) {
			h.t.Errorf("%s was acknowledged and is gone", name)
		}
		if listed && !e.unsure { // what was not acknowledged may take place at any time, also after the list
			h.t.Errorf("%s is listed and cannot be found", name)
		}
		return
	}
	switch {
	case err != nil:
		h.t.Errorf("%s: %v", name, err)
	case !e.unsure && e.data == nil:
		h.t.Errorf("%s was acknowledged as gone and is there", name)
	case e.data != nil && bytes.Equal(got, e.data):
	case e.unsure && (bytes.Equal(got, e.attempt) || strings.HasPrefix(path.Base(name), "call-") && bytes.HasPrefix(e.attempt, got)):
		// A write whose end was not acknowledged may be a part of itself; put gives a file its name only when it is whole.
	default:
		h.t.Errorf("%s has %d bytes that are not the %d written (unsure: %v)", name, len(got), len(e.data), e.unsure)
	}
}

// recover closes a file that its writer left open.
func (h *History) recover(ctx context.Context, fs *dfs.Client, name string) {
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		closed, err := fs.RecoverLease(ctx, name)
		if closed || errors.Is(err, metadata.ErrNotExist) {
			return
		}
	}
	h.t.Errorf("%s, which its writer has left, cannot be closed", name)
}

// writeFile writes a local file of a test.
func writeFile(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
