package bench

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/client/dfs"
)

// pattern is what files are filled with, made at its first use: every start of the program would wait for it.
var pattern = sync.OnceValue(func() []byte {
	p := make([]byte, 1<<20)
	x := uint32(1)
	for i := range p {
		x = x*1664525 + 1013904223
		p[i] = byte(x >> 24)
	}
	return p
})

// manyFiles is how many files one client reads with a call of ReadMany.
const manyFiles = 4096

// Small measures files of one size in bytes: write (create, one block, close) and read, one by one and many at a time, the latter by one client, in files a second.
func (b *Bench) Small(ctx context.Context, size int) ([]Result, error) {
	label := fmt.Sprintf("%d KiB x%d", size>>10, b.Replication)
	made := make([]int, b.Outstanding)
	write, err := b.measure(ctx, "write "+label, 0, func(ctx context.Context, c *dfs.Client, w, n int) error {
		made[w] = n + 1
		return b.create(ctx, c, b.file(w, n), pattern()[:size])
	})
	if err != nil {
		return nil, err
	}
	read, err := b.measure(ctx, "read "+label, 0, func(ctx context.Context, c *dfs.Client, w, n int) error {
		data, err := c.ReadFile(ctx, b.file(w, n%max(1, made[w])))
		if err == nil && len(data) != size {
			err = fmt.Errorf("%d bytes in place of %d", len(data), size)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var names []string
	for n := 0; len(names) < manyFiles && n < slices.Max(made); n++ {
		for w := range made {
			if n < made[w] {
				names = append(names, b.file(w, n))
			}
		}
	}
	one := *b
	one.Options.Outstanding = 1
	many, err := one.measureUnits(ctx, "many "+label, "files/s", float64(len(names)), 0, func(ctx context.Context, c *dfs.Client, _, _ int) error {
		got, err := c.ReadMany(ctx, names, 0)
		if err != nil {
			return err
		}
		for i, data := range got.Data {
			if err := got.Errors[i]; err != nil {
				return err
			}
			if len(data) != size {
				return fmt.Errorf("%s: %d bytes in place of %d", names[i], len(data), size)
			}
		}
		return nil
	})
	return []Result{write, read, many}, err
}

// Sequential measures one large file, written and read by one stream, in megabytes per second.
func (b *Bench) Sequential(ctx context.Context) ([]Result, error) {
	one := *b
	one.Options.Outstanding, one.Options.Ops, one.Options.Time = 1, 1, time.Hour
	name := path.Join(b.Root, "sequential")
	megabytes := float64(b.Bytes) / 1e6
	write, err := one.measureUnits(ctx, fmt.Sprintf("write seq x%d", b.Replication), "MB/s", megabytes, 1, func(ctx context.Context, c *dfs.Client, _, _ int) error {
		w, err := c.Create(ctx, name, dfs.CreateOptions{Parents: true, Overwrite: true, Replication: b.Replication})
		if err != nil {
			return err
		}
		for left := b.Bytes; left > 0; left -= int64(len(pattern())) {
			if _, err := w.Write(pattern()[:min(int64(len(pattern())), left)]); err != nil {
				w.Abort()
				return err
			}
			b.moved.Add(int64(len(pattern())))
		}
		return w.Close()
	})
	b.moved.Store(0)
	if err != nil {
		return nil, err
	}
	read, err := one.measureUnits(ctx, fmt.Sprintf("read seq x%d", b.Replication), "MB/s", megabytes, 1, func(ctx context.Context, c *dfs.Client, _, _ int) error {
		r, err := c.Open(ctx, name)
		if err != nil {
			return err
		}
		defer r.Close()
		n, err := io.Copy(counter{b.moved}, r)
		if err == nil && n != b.Bytes {
			err = fmt.Errorf("%d bytes in place of %d", n, b.Bytes)
		}
		return err
	})
	b.moved.Store(0)
	return []Result{write, read}, err
}

// counter throws away what is written to it, and counts it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// Flush measures writes of 200 bytes at the end of a file that was opened for append, with hflush after each, one file a
// worker.
func (b *Bench) Flush(ctx context.Context, writers int) ([]Result, error) {
	some := *b
	some.Options.Outstanding = writers
	open := make([]*dfs.Writer, writers)
	for w := range open {
		c, name := b.clients[w%len(b.clients)], path.Join(b.Root, fmt.Sprintf("flush%d", w))
		err := b.create(ctx, c, name, pattern()[:200])
		if err == nil {
			open[w], err = c.Append(ctx, name)
		}
		if err != nil {
			return nil, err
		}
	}
	r, err := some.measure(ctx, fmt.Sprintf("hflush x%d", b.Replication), 0, func(ctx context.Context, _ *dfs.Client, w, _ int) error {
		if _, err := open[w].Write(pattern()[:200]); err != nil {
			return err
		}
		return open[w].Hflush(ctx)
	})
	for _, w := range open {
		if cerr := w.Close(); err == nil {
			err = cerr
		}
	}
	return []Result{r}, err
}
