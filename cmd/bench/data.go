package bench

import (
	"bytes"
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
	write, err := b.Files(ctx, fmt.Sprintf("write seq x%d", b.Replication), 1, b.WriteFile)
	if err != nil {
		return nil, err
	}
	read, err := b.Files(ctx, fmt.Sprintf("read seq x%d", b.Replication), 1, b.ReadFile)
	return []Result{write, read}, err
}

// Files measures large files that are moved one after the other, in megabytes per second. move does that with the file of a name, and is called
// with the same names in every phase.
func (b *Bench) Files(ctx context.Context, name string, files int, move func(ctx context.Context, name string) error) (Result, error) {
	one := *b
	one.Options.Outstanding, one.Options.Ops, one.Options.Time = 1, files, time.Hour
	defer b.moved.Store(0)
	return one.measureUnits(ctx, name, "MB/s", float64(b.Bytes)/1e6, files, func(ctx context.Context, _ *dfs.Client, _, n int) error {
		return move(ctx, path.Join(b.Root, fmt.Sprintf("sequential%d", n)))
	})
}

// WriteFile writes a file of Bytes bytes, the pattern again and again.
func (b *Bench) WriteFile(ctx context.Context, name string) error {
	w, err := b.clients[0].Create(ctx, name, dfs.CreateOptions{Parents: true, Overwrite: true, Replication: b.Replication})
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
}

// ReadFile reads what WriteFile has written, and looks at its length.
func (b *Bench) ReadFile(ctx context.Context, name string) error {
	return b.read(ctx, name, counter{b.moved})
}

// CheckFile reads a file, and looks at every byte.
func (b *Bench) CheckFile(ctx context.Context, name string) error {
	return b.read(ctx, name, new(checker))
}

func (b *Bench) read(ctx context.Context, name string, to io.Writer) error {
	r, err := b.clients[0].Open(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.Copy(to, r)
	if err == nil && n != b.Bytes {
		err = fmt.Errorf("%d bytes in place of %d", n, b.Bytes)
	}
	return err
}

// counter throws away what is written to it, and counts it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// checker compares what is written to it with the pattern.
type checker struct{ at int64 }

func (c *checker) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		want := pattern()[c.at%int64(len(pattern())):]
		m := min(len(want), len(p)-n)
		if !bytes.Equal(p[n:n+m], want[:m]) {
			return n, fmt.Errorf("wrong bytes between %d and %d", c.at, c.at+int64(m))
		}
		c.at += int64(m)
		n += m
	}
	return len(p), nil
}
