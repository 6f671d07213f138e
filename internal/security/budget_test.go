package security

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

const stranger = 70000 // a user who is neither root nor this process's own

func TestNobodyTakesTheLastOfABudget(t *testing.T) {
	b := NewBudget(BudgetConfig{Purpose: "requests", Total: 64 << 20})
	const piece = 64 << 10
	var held [4]int64
	for i := range held {
		a := b.Account(uint32(stranger + i))
		for a.Try(piece) {
			held[i] += piece
		}
	}
	for i, want := range []int64{32 << 20, 16 << 20, 8 << 20, 4 << 20} {
		if held[i] > want || held[i] < want-piece {
			t.Errorf("user %d came to hold %d bytes, want about %d", i, held[i], want)
		}
	}
	own := b.Account(uint32(os.Geteuid()))
	left := b.Total() - b.Used()
	if !own.Try(left) || b.Used() != b.Total() {
		t.Errorf("the servers' own user did not get the %d bytes that are left", left)
	}
}

func TestWhoGetsNothingWaitsAndIsThenRefused(t *testing.T) {
	b := NewBudget(BudgetConfig{Purpose: "answers", Total: 1 << 20, Patience: 20 * time.Millisecond})
	a := b.Account(stranger)
	if err := a.Take(t.Context(), 500<<10); err != nil {
		t.Fatal(err)
	}
	err := a.Take(t.Context(), 100<<10)
	if metadata.KindOf(err) != metadata.ErrRetriable {
		t.Fatalf("got %v, want to be told to come again", err)
	}
	b.config.Patience = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Take(ctx, 100<<10); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want the context's error", err)
	}
	a.Give(500 << 10)
	a.Close()
	if b.Used() != 0 || len(b.shares) != 0 {
		t.Errorf("%d bytes and %d users are left", b.Used(), len(b.shares))
	}
}

func TestWhoWaitsIsServedWhenSomethingComesBack(t *testing.T) {
	b := NewBudget(BudgetConfig{Total: 1 << 20, Patience: time.Hour})
	first, second := b.Account(stranger), b.Account(stranger)
	if err := first.Take(t.Context(), 400<<10); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 3)
	for range cap(done) {
		go func() { done <- second.Take(t.Context(), 150<<10) }()
	}
	for b.waiters() != cap(done) {
		time.Sleep(time.Millisecond)
	}
	first.Give(400 << 10)
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func (b *Budget) waiters() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.shares {
		n += len(s.waiting)
	}
	return n
}

// TestBudgetCountsRight lets accounts take and give at random: never more than the total is held, and at the end nothing.
func TestBudgetCountsRight(t *testing.T) {
	b := NewBudget(BudgetConfig{Total: 1 << 20, Patience: time.Millisecond})
	b.release = func() {}
	var held atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		uid := uint32(stranger + i%3)
		if i%4 == 0 {
			uid = 0
		}
		a := b.Account(uid)
		for range 2 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 7))
				for range 300 {
					n := r.Int64N(100 << 10)
					switch r.IntN(4) {
					case 0:
						if !a.Try(n) {
							continue
						}
					case 1:
						a.Rest()
						continue
					default:
						if a.Take(t.Context(), n) != nil {
							continue
						}
					}
					if now := held.Add(n); now > b.Total() {
						t.Errorf("%d bytes are held", now)
					}
					held.Add(-n)
					a.Give(n)
				}
			})
		}
		defer func() {
			a.Close()
			if i == 0 && (b.Used() != 0 || len(b.shares) != 0 || b.Peak() > b.Total()) {
				t.Errorf("%d bytes and %d users are left, at most %d were held", b.Used(), len(b.shares), b.Peak())
			}
		}()
	}
	wg.Wait()
}

func TestMemoryIsGivenBackAfterMuchOfIt(t *testing.T) {
	b := NewBudget(BudgetConfig{Total: 1 << 20})
	released := 0
	b.release = func() { released++ }
	a := b.Account(0)
	for range 3 {
		a.Force(30 << 10)
		a.Give(30 << 10)
		a.Rest()
	}
	if released != 0 {
		t.Error("memory was given back after little of it")
	}
	a.Force(2 << 20)
	a.Give(2 << 20)
	if released != 1 {
		t.Errorf("memory was given back %d times, want once", released)
	}
}

func TestMemoryIsThatOfTheControlGroup(t *testing.T) {
	machine := available(func(string) ([]byte, error) { return nil, fs.ErrNotExist })
	if machine < 64<<20 {
		t.Fatalf("the machine has %d bytes", machine)
	}
	for _, c := range []struct {
		name, own string
		files     map[string]string
		want      int64
	}{
		{"version 2", "0::/a/b\n", map[string]string{"/sys/fs/cgroup/a/b/memory.max": "33554432\n"}, 32 << 20},
		{"a group above", "0::/a/b\n", map[string]string{
			"/sys/fs/cgroup/a/b/memory.max": "max\n", "/sys/fs/cgroup/a/memory.max": "16777216\n",
		}, 16 << 20},
		{"in a container", "0::/host/path\n", map[string]string{"/sys/fs/cgroup/memory.max": "8388608\n"}, 8 << 20},
		{"version 1", "5:cpu:/x\n4:memory:/x\n", map[string]string{
			"/sys/fs/cgroup/memory/x/memory.limit_in_bytes": "33554432\n",
		}, 32 << 20},
		{"none", "0::/\n", nil, machine},
		{"nonsense", "x\n0::/\n:::\n", map[string]string{"/sys/fs/cgroup/memory.max": "-5"}, machine},
	} {
		got := available(func(name string) ([]byte, error) {
			if name == "/proc/self/cgroup" {
				return []byte(c.own), nil
			}
			if text, ok := c.files[name]; ok {
				return []byte(text), nil
			}
			return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		})
		if got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.want)
		}
	}
}

// BenchmarkBudget is what a request pays: bytes for itself and for its answer, taken and given back.
func BenchmarkBudget(b *testing.B) {
	requests, answers := NewBudget(BudgetConfig{Total: 128 << 20}), NewBudget(BudgetConfig{Total: 128 << 20})
	b.RunParallel(func(pb *testing.PB) {
		in, out := requests.Account(stranger), answers.Account(stranger)
		defer in.Close()
		defer out.Close()
		for pb.Next() {
			if in.Take(b.Context(), 5000) != nil || out.Take(b.Context(), 1024) != nil {
				b.Fatal("refused")
			}
			out.Give(1024)
			in.Give(5000)
		}
	})
}
