package bench

import (
	"context"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/client/dfs"
)

// Fill creates n empty files in one directory, b.Root/big/..., a thousand a directory, as many of them as the time allows,
// and says how that went. They stay until Subtrees or Close.
func (b *Bench) Fill(ctx context.Context, n int, within time.Duration) (Result, error) {
	all := *b
	all.Ops, all.Time = n, within
	var next atomic.Int64
	return all.measure(ctx, fmt.Sprintf("fill %d", n), 0, func(ctx context.Context, c *dfs.Client, _, _ int) error {
		i := next.Add(1) - 1
		return b.create(ctx, c, path.Join(b.big(), fmt.Sprintf("d%d/f%d", i/1000, i%1000)), nil)
	})
}

func (b *Bench) big() string { return path.Join(b.Root, "big") }

// Resident is the memory of each server that the system counts as its own, in bytes.
func (b *Bench) Resident() map[string]int64 {
	out := map[string]int64{}
	for name, pid := range b.Servers {
		out[name] = Resident(pid)
	}
	return out
}

// Resident is the resident memory of a process in bytes, 0 when there is none.
func Resident(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// Subtree is what work on a large directory costs who asked for it and everybody else.
type Subtree struct {
	Name string `json:"name"`
	// Seconds until it was acknowledged.
	Seconds float64 `json:"seconds"`
	// Stall is the longest time that another client waited for a stat meanwhile, and until a second after it, in
	// milliseconds; Quiet the same for two seconds before.
	Stall float64 `json:"stall_ms"`
	Quiet float64 `json:"quiet_ms"`
}

func (s Subtree) String() string {
	return fmt.Sprintf("%-14s acknowledged after %.3f s; another client's stat took %.1f ms at most (%.1f ms before)", s.Name, s.Seconds, s.Stall, s.Quiet)
}

// Subtrees renames the directory that Fill filled, some times, and then deletes it, while another client asks for the
// status of a file all the time.
func (b *Bench) Subtrees(ctx context.Context, renames int) ([]Subtree, error) {
	if err := b.create(ctx, b.clients[0], path.Join(b.Root, "watched"), nil); err != nil {
		return nil, err
	}
	type step struct {
		name string
		do   func() (bool, error)
	}
	var work []step
	at := b.big()
	for i := range renames {
		from, to := at, fmt.Sprintf("%s-%d", b.big(), i)
		work = append(work, step{"rename", func() (bool, error) { return b.clients[0].Rename(ctx, from, to) }})
		at = to
	}
	work = append(work, step{"delete", func() (bool, error) { return b.clients[0].Delete(ctx, at, true) }})
	var out []Subtree
	for _, w := range work {
		s := Subtree{Name: w.name + " large"}
		watch := b.watch(ctx)
		pause(ctx, 2*time.Second)
		s.Quiet = watch(false)
		started := time.Now()
		ok, err := w.do()
		s.Seconds = time.Since(started).Seconds()
		pause(ctx, time.Second)
		s.Stall = watch(true)
		if err == nil && !ok {
			err = fmt.Errorf("%s of %s was refused", w.name, b.big())
		}
		if err != nil {
			return out, err
		}
		if b.Progress != nil {
			fmt.Fprintln(b.Progress, s)
		}
		out = append(out, s)
	}
	return out, ctx.Err()
}

// watch stats a file all the time with the last client. What it returns gives the longest time in milliseconds since the
// last call, and ends the watch if it is told to.
func (b *Bench) watch(ctx context.Context) func(end bool) float64 {
	ctx, stop := context.WithCancel(ctx)
	var worst atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		c := b.clients[len(b.clients)-1]
		for ctx.Err() == nil {
			t := time.Now()
			_, _ = c.Stat(ctx, path.Join(b.Root, "watched"))
			if took := int64(time.Since(t)); took > worst.Load() {
				worst.Store(took)
			}
			pause(ctx, time.Millisecond)
		}
	}()
	return func(end bool) float64 {
		took := worst.Swap(0)
		if end {
			stop()
			<-done
			took = max(took, worst.Load())
		}
		return float64(took) / 1e6
	}
}
