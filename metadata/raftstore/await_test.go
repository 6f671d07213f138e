package raftstore

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// showing is a state machine that looks at its group while it carries an entry out.
type showing struct {
	*machine
	look func()
}

func (s showing) Apply(index uint64, commands [][]byte) []any {
	results := s.machine.Apply(index, commands)
	s.look()
	return results
}

// A read may see an entry before the group knows that it was applied: who is told what it has seen must be told of that entry.
func TestWhatShowsIsCounted(t *testing.T) {
	g := &Group{}
	m := newMachine()
	looked := false
	g.fsm = &fsm{group: g, machine: showing{m, func() {
		looked = true
		if m.get("x") != "1" || g.Shown() != 5 || g.Applied() != 0 {
			t.Errorf("x is %q, entry %d shows, and %d was applied", m.get("x"), g.Shown(), g.Applied())
		}
	}}}
	g.fsm.Apply(&raft.Log{Index: 5, Data: encodeBatch([]*proposal{{command: set("x", 1)}})})
	if !looked || g.Shown() != 5 || g.Applied() != 5 {
		t.Fatal(looked, g.Shown(), g.Applied())
	}
}

// An entry wakes those who wait for it, and nobody else.
func TestAwaitApplied(t *testing.T) {
	g := &Group{dying: make(chan struct{})}
	g.fsm = &fsm{group: g}
	far := g.fsm.waiters.join(math.MaxUint64)
	var all sync.WaitGroup
	for i := range uint64(100) {
		all.Go(func() {
			for _, entry := range []uint64{i, 100 - i} {
				if err := g.AwaitApplied(t.Context(), entry); err != nil || g.Applied() < entry {
					t.Error(entry, g.Applied(), err)
				}
			}
		})
		all.Go(func() { g.fsm.advance(i + 1) })
	}
	all.Wait()
	ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	if err := g.AwaitApplied(ctx, 101); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if len(g.fsm.waiters.queue) != 1 || far.at != 0 {
		t.Fatal("who has gone still waits, or who waits was woken")
	}
	g.fsm.waiters.leave(far)
	if g.fsm.waiters.lowest.Load() != 0 {
		t.Fatal("somebody waits")
	}
}
