package bench

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/client/dfs"
)

// record is what is written before each flush, in bytes.
const record = 200

// Flush measures writes of 200 bytes at the end of a file that was opened for append, with hflush after each, one file a
// worker.
func (b *Bench) Flush(ctx context.Context, writers int) ([]Result, error) {
	f, err := b.appended(ctx, writers, "")
	if err != nil {
		return nil, err
	}
	r, err := f.measure(ctx, fmt.Sprintf("hflush x%d", b.Replication))
	return []Result{r}, errors.Join(err, f.close())
}

// FlushSeen is Flush in a directory with an erasure coding policy (empty: none), first without and then with a reader that follows one of
// the files. The latencies of the second result are how long after the return of hflush that reader had the bytes, 0 if it had them before.
func (b *Bench) FlushSeen(ctx context.Context, writers int, policy string) ([]Result, error) {
	name := fmt.Sprintf("hflush x%d", b.Replication)
	if policy != "" {
		name = "hflush " + policy
	}
	f, err := b.appended(ctx, writers, policy)
	if err != nil {
		return nil, err
	}
	alone, err := f.measure(ctx, name)
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	t := f.follow(ctx, b.clients[0])
	followed, err := f.measure(ctx, name+", followed")
	seen, failed := t.end()
	if err = errors.Join(err, failed, f.close()); err != nil {
		return nil, err
	}
	if len(seen) == 0 {
		return nil, errors.New("the reader that follows saw nothing")
	}
	slices.Sort(seen)
	followed.P50, followed.P99, followed.Max = quantile(seen, 0.5), quantile(seen, 0.99), quantile(seen, 1)
	return []Result{alone, followed}, nil
}

// flushed are files that are open for append, one a worker.
type flushed struct {
	b     *Bench
	open  []*dfs.Writer
	names []string
	tail  *tail // of the first file; nil: nobody follows it
}

func (b *Bench) appended(ctx context.Context, writers int, policy string) (*flushed, error) {
	f := &flushed{b: b}
	dir := b.Root
	if policy != "" {
		dir = path.Join(b.Root, policy)
		err := b.clients[0].Mkdirs(ctx, dir, 0o755, true)
		if err == nil {
			err = b.clients[0].SetErasurePolicy(ctx, dir, policy)
		}
		if err != nil {
			return nil, err
		}
	}
	for w := range writers {
		c, name := b.clients[w%len(b.clients)], path.Join(dir, fmt.Sprintf("flush%d", w))
		// Not one call: a file that the namenodes keep has no policy.
		made, err := c.Create(ctx, name, dfs.CreateOptions{Overwrite: true, Replication: b.Replication})
		if err == nil {
			_, err = made.Write(pattern()[:record])
			err = errors.Join(err, made.Close())
		}
		var open *dfs.Writer
		if err == nil {
			open, err = c.Append(ctx, name)
		}
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.open, f.names = append(f.open, open), append(f.names, name)
	}
	return f, nil
}

func (f *flushed) measure(ctx context.Context, name string) (Result, error) {
	some := *f.b
	some.Options.Outstanding = len(f.open)
	return some.measure(ctx, name, 0, func(ctx context.Context, _ *dfs.Client, w, _ int) error {
		if _, err := f.open[w].Write(pattern()[:record]); err != nil {
			return err
		}
		err := f.open[w].Hflush(ctx)
		if w == 0 && f.tail != nil && err == nil {
			f.tail.flushed(f.open[w].Size(), time.Now())
		}
		return err
	})
}

func (f *flushed) close() error {
	var errs []error
	for _, w := range f.open {
		errs = append(errs, w.Close())
	}
	return errors.Join(errs...)
}

// tail follows a file that is being written: it opens it again and again, because a reader has the length of its opening.
type tail struct {
	stop context.CancelFunc
	done chan struct{}
	err  error           // after done
	seen []time.Duration // after done

	mu   sync.Mutex
	ends []flushedEnd // that the reader has not seen, guarded by mu
	at   int64        // that it has seen, guarded by mu
}

// flushedEnd is an end of the file that a flush has returned with.
type flushedEnd struct {
	size int64
	at   time.Time
}

// pollEvery is how long the reader rests when it has seen all there was.
const pollEvery = time.Millisecond

func (f *flushed) follow(ctx context.Context, c *dfs.Client) *tail {
	t := &tail{done: make(chan struct{}), at: f.open[0].Size()}
	ctx, t.stop = context.WithCancel(ctx)
	f.tail = t
	go func() {
		defer close(t.done)
		for ctx.Err() == nil {
			if err := t.look(ctx, c, f.names[0]); err != nil && ctx.Err() == nil {
				t.err = err
				return
			}
			select {
			case <-time.After(pollEvery):
			case <-ctx.Done():
			}
		}
	}()
	return t
}

// flushed notes that a flush has returned.
func (t *tail) flushed(size int64, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if size <= t.at { // seen before the writer knew
		t.seen = append(t.seen, 0)
		return
	}
	t.ends = append(t.ends, flushedEnd{size, at})
}

// look reads what is new.
func (t *tail) look(ctx context.Context, c *dfs.Client, name string) error {
	r, err := c.Open(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()
	t.mu.Lock()
	from := t.at
	t.mu.Unlock()
	size := r.Size()
	if size <= from {
		return nil
	}
	data := make([]byte, size-from)
	if n, err := r.ReadAt(data, from); n < len(data) {
		return err
	}
	t.saw(size, time.Now())
	return nil
}

// saw notes that the reader has all bytes up to a size.
func (t *tail) saw(size int64, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at = size
	for len(t.ends) > 0 && t.ends[0].size <= size {
		t.seen = append(t.seen, at.Sub(t.ends[0].at))
		t.ends = t.ends[1:]
	}
}

// end returns how long after each flush the reader had the bytes, when it has seen all of them.
func (t *tail) end() ([]time.Duration, error) {
	const patience = 10 * time.Second
	behind := func() int {
		t.mu.Lock()
		defer t.mu.Unlock()
		return len(t.ends)
	}
	for deadline := time.Now().Add(patience); behind() > 0 && time.Now().Before(deadline); {
		select {
		case <-t.done:
			return nil, t.err
		case <-time.After(pollEvery):
		}
	}
	t.stop()
	<-t.done
	if n := behind(); n > 0 && t.err == nil {
		return nil, fmt.Errorf("the reader that follows has not seen %d flushes, %v after the last one", n, patience)
	}
	return t.seen, t.err
}
