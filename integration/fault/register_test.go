package fault

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/metadata"
)

// registers are files whose time of modification one writer counts up and many readers look at: the history is linearizable if no read
// is answered with less than what was acknowledged, or read by anybody, before it began, nor with more than was tried before it ended.
// Each register belongs to one writer, which leaves it for another one when it was not told how a write ended.
type registers struct {
	t    testing.TB
	dir  string
	fs   *dfs.Client
	now  atomic.Pointer[register]
	made int

	reads, writes, stale atomic.Int64
	stop                 context.CancelFunc
	done                 sync.WaitGroup
}

type register struct {
	name                string
	tried, acknowledged atomic.Int64
	seen                atomic.Int64
}

func raise(v *atomic.Int64, to int64) {
	for {
		was := v.Load()
		if was >= to || v.CompareAndSwap(was, to) {
			return
		}
	}
}

// startRegisters runs a writer, and a reader for each list of namenodes.
func startRegisters(t testing.TB, fs *dfs.Client, dir string, readers ...[]string) *registers {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	g := &registers{t: t, dir: dir, fs: fs, stop: stop}
	g.done.Go(func() { g.write(ctx) })
	for _, namenodes := range readers {
		c, err := dfs.New(dfs.Config{Namenodes: namenodes, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		g.done.Go(func() { g.read(ctx, c) })
	}
	return g
}

func (g *registers) write(ctx context.Context) {
	const origin = 1_000_000 // no file is made in 1970
	for ctx.Err() == nil {
		g.made++
		r := &register{name: fmt.Sprintf("%s/register-%d", g.dir, g.made)}
		value := int64(origin)
		set := func() bool {
			trying, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			value++
			raise(&r.tried, value)
			if g.fs.SetTimes(trying, r.name, metadata.Time(value), -1) != nil {
				return false
			}
			raise(&r.acknowledged, value)
			g.writes.Add(1)
			return true
		}
		if err := g.fs.WriteFile(ctx, r.name, nil, false); err != nil || !set() {
			continue
		}
		g.now.Store(r)
		for set() {
			time.Sleep(time.Millisecond)
		}
	}
}

func (g *registers) read(ctx context.Context, c *dfs.Client) {
	for ctx.Err() == nil {
		r := g.now.Load()
		if r == nil {
			time.Sleep(time.Millisecond)
			continue
		}
		least := max(r.acknowledged.Load(), r.seen.Load())
		asking, cancel := context.WithTimeout(ctx, 30*time.Second)
		st, err := c.Stat(asking, r.name)
		cancel()
		if err != nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		most, got := r.tried.Load(), int64(st.MTime)
		if got < least || got > most {
			g.stale.Add(1)
			g.t.Errorf("%s: a read was answered with %d, between %d and %d were right", r.name, got, least, most)
		}
		raise(&r.seen, got)
		g.reads.Add(1)
	}
}

// end stops them and says how much was compared.
func (g *registers) end() string {
	g.stop()
	g.done.Wait()
	return fmt.Sprintf("%d reads beside %d writes, %d wrong", g.reads.Load(), g.writes.Load(), g.stale.Load())
}
