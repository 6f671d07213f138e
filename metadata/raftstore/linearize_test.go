package raftstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/gohops/hops/metadata"
)

// registerOp is one operation on one register; write is "" for a read.
type registerOp struct{ key, write string }

var registerModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := make(map[string][]porcupine.Operation)
		for _, op := range history {
			key := op.Input.(registerOp).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, p := range byKey {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		in := input.(registerOp)
		if in.write != "" {
			return true, in.write
		}
		return output == state, state
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string {
		in := input.(registerOp)
		if in.write != "" {
			return fmt.Sprintf("%s=%s", in.key, in.write)
		}
		return fmt.Sprintf("%s is %v", in.key, output)
	},
}

// history records operations of many clients.
type history struct {
	began time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
	acked int
}

func (h *history) now() int64 { return time.Since(h.began).Nanoseconds() }

// acknowledged is how many operations were.
func (h *history) acknowledged() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.acked
}

// progress waits until so many operations were acknowledged, however long that takes where some are.
func (h *history) progress(t *testing.T, n int) {
	t.Helper()
	for now := h.acknowledged(); now < n; {
		before := now
		eventually(t, "an operation is acknowledged", func() bool { now = h.acknowledged(); return now > before })
	}
}

func (h *history) add(client int, call int64, in registerOp, out string, err error) {
	ret := h.now()
	if err != nil {
		if in.write == "" || !errors.Is(err, ErrUnknown) {
			return // it did not happen
		}
		ret = math.MaxInt64 // it may happen at any time
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: ret})
	if err == nil {
		h.acked++
	}
}

func TestHistoryIsLinearizableWhileLeadersDie(t *testing.T) {
	c := newCluster(t, 3)
	c.start("a")
	c.leader("a")
	var mu sync.RWMutex // guards c.nodes' contents against the one who kills
	type at struct {
		g *Group
		m *machine
	}
	pick := func(n int) at {
		mu.RLock()
		defer mu.RUnlock()
		nd := c.nodes[c.members[n%len(c.members)].ID]
		return at{nd.groups["a"], nd.machines["a"]}
	}
	h := &history{began: time.Now()}
	var glances atomic.Int64
	done := make(chan struct{})
	var clients sync.WaitGroup
	for client := range 6 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(client), 7))
			id := client * 1_000_000 // a client that does not know an outcome goes on under another name
			for n, member := 0, client; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				where := pick(member)
				if where.g == nil {
					member++
					time.Sleep(time.Millisecond)
					continue
				}
				op := registerOp{key: fmt.Sprint("k", rng.IntN(3))}
				var out string
				var err error
				call := h.now()
				if rng.IntN(2) == 0 {
					op.write = fmt.Sprintf("%d.%d", client, n)
					limit, cancel := context.WithTimeout(context.Background(), 2*time.Second)
					_, err = where.g.Propose(limit, set(op.key, op.write))
					cancel()
				} else if where.g.Glance(func() {
					out = where.m.get(op.key)
					if rng.IntN(20) == 0 { // a process that is stopped in between
						time.Sleep(time.Duration(rng.IntN(3)) * c.timers.Heartbeat)
					}
				}) {
					glances.Add(1)
				} else {
					got := make(chan error, 1)
					where.g.Read(func(err error) {
						if err == nil {
							out = where.m.get(op.key)
						}
						got <- err
					})
					err = <-got
				}
				h.add(id, call, op, out, err)
				if err != nil {
					id++
					if errors.Is(err, metadata.ErrStandby) {
						member++
						time.Sleep(time.Millisecond)
					}
				}
			}
		})
	}
	rounds := 5
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		h.progress(t, h.acknowledged()+120)
		g := c.leader("a")
		id := g.host.cfg.ID
		switch round % 3 {
		case 0: // the process dies
			mu.Lock()
			g.wire.cut.Store(true) // no handover
			c.stop(id)
			mu.Unlock()
			c.leader("a", id)
			mu.Lock()
			c.host(id)
			c.open(id, "a", false, nil)
			mu.Unlock()
		case 1: // the network is cut, and heals
			g.wire.cut.Store(true)
			c.leader("a", id)
			time.Sleep(50 * time.Millisecond)
			g.wire.cut.Store(false)
		case 2: // planned
			if err := g.TransferLeadership(ctx(t), ""); err != nil {
				t.Log(err)
			}
		}
	}
	c.leader("a")
	h.progress(t, 500) // enough to show something
	close(done)
	clients.Wait()
	t.Logf("%d operations, %d acknowledged, %d under a lease", len(h.ops), h.acked, glances.Load())
	if glances.Load() == 0 {
		t.Fatal("nothing was read under a lease")
	}
	if result := porcupine.CheckOperationsTimeout(registerModel, h.ops, 2*patience); result != porcupine.Ok {
		t.Fatalf("the history is not linearizable: %v", result)
	}
}
