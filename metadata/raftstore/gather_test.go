package raftstore

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

func TestAnEntryWaitsForTheCrowd(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1, 0)
	for _, c := range []struct {
		name       string
		n, waiting int
		took       time.Duration
		target     int
		most       time.Duration
	}{
		{"one client", 1, 0, time.Millisecond, 0, 0},
		{"two", 1, 1, time.Millisecond, 2, time.Millisecond},
		{"seven", 3, 4, time.Millisecond, 7, time.Millisecond},
		{"eight", 8, 0, time.Millisecond, 7, time.Millisecond},
		{"who was in the entry and who came behind it", 20, 44, time.Millisecond, 56, time.Millisecond},
		{"an entry that took long", 64, 0, time.Minute, 56, gatherMost},
		{"more than make an entry worthwhile", 250, 250, time.Millisecond, worthwhile, time.Millisecond},
	} {
		var g gathering
		g.landed(c.n, c.waiting, c.took, begin)
		if c.target == 0 {
			if !g.over(1, begin) {
				t.Errorf("%s: it waits", c.name)
			}
			continue
		}
		if g.over(c.target-1, begin.Add(c.most-1)) {
			t.Errorf("%s: it does not wait for %d", c.name, c.target)
		}
		late := g
		if !late.over(1, begin.Add(c.most)) {
			t.Errorf("%s: it waits for longer than %v", c.name, c.most)
		}
		if !g.over(c.target, begin) {
			t.Errorf("%s: it waits for more than %d", c.name, c.target)
		}
	}
}

func TestACrowdThatIsGoneIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	var g gathering
	g.landed(64, 0, time.Millisecond, now)
	now = now.Add(900 * time.Microsecond)
	if g.first(now); g.over(1, now.Add(time.Millisecond-1)) {
		t.Error("the crowd is not waited for from the first command on")
	}
	if now = now.Add(time.Millisecond); !g.over(1, now) {
		t.Error("it is waited for too long")
	}
	g.landed(1, 0, time.Millisecond, now)
	if g.first(now); !g.over(1, now) {
		t.Error("it is waited for once more")
	}
	g.landed(64, 0, time.Millisecond, now)
	now = now.Add(time.Millisecond)
	if g.first(now); !g.over(1, now) {
		t.Error("one that comes later waits")
	}
}

// An entry that once took very long must not have others wait for long.
func TestHowLongEntriesTakeIsForgotten(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	var g gathering
	g.landed(8, 0, 200*time.Microsecond, now)
	if g.landed(8, 0, time.Minute, now); g.most() > gatherMost/2 {
		t.Errorf("after one that took a minute it waits for %v", g.most())
	}
	for range 30 {
		g.landed(8, 0, 200*time.Microsecond, now)
	}
	if g.most() < 200*time.Microsecond || g.most() > 220*time.Microsecond {
		t.Errorf("it waits for %v", g.most())
	}
}

// crowd lets clients with one command at a time propose through the rule, in time that is counted. An entry takes took; a client comes back between
// soon and late after it was answered, each after a time of its own. It returns the commands of each entry and what the clients waited for at most.
func crowd(g *gathering, clients int, took, soon, late time.Duration, entries int) (sizes []int, longest time.Duration) {
	now := time.Unix(1, 0)
	var arrivals []time.Time // of those who are to come, in order
	for i := range clients {
		arrivals = append(arrivals, now.Add(time.Duration(i)*time.Microsecond))
	}
	var queue []time.Time
	flying := false
	come := func(until time.Time) {
		for len(arrivals) > 0 && !arrivals[0].After(until) {
			queue, arrivals = append(queue, arrivals[0]), arrivals[1:]
			if len(queue) == 1 && !flying {
				g.first(queue[0])
			}
		}
	}
	for len(sizes) < entries {
		come(now)
		for len(queue) == 0 || g.target > 0 && !g.over(len(queue), now) {
			next := g.until // of what happens
			if len(arrivals) > 0 && (len(queue) == 0 || arrivals[0].Before(next)) {
				next = arrivals[0]
			}
			now = next
			come(now)
		}
		batch := queue
		queue, g.target = nil, 0
		now, flying = now.Add(took), true
		come(now)
		flying = false
		for i, from := range batch {
			longest = max(longest, now.Sub(from))
			arrivals = append(arrivals, now.Add(soon+(late-soon)*time.Duration(i+1)/time.Duration(len(batch))))
		}
		slices.SortFunc(arrivals, time.Time.Compare)
		g.landed(len(batch), len(queue), took, now)
		sizes = append(sizes, len(batch))
	}
	return sizes, longest
}

func TestEntriesCarryTheCrowd(t *testing.T) {
	t.Parallel()
	const took = time.Millisecond
	for _, c := range []struct {
		clients    int
		soon, late time.Duration
		least      int // commands of an entry, on average
		longest    time.Duration
	}{
		{1, 50 * time.Microsecond, 50 * time.Microsecond, 1, took},
		{2, 50 * time.Microsecond, 100 * time.Microsecond, 2, 2*took + 100*time.Microsecond},
		{4, 50 * time.Microsecond, 100 * time.Microsecond, 4, 2*took + 100*time.Microsecond},
		{16, 50 * time.Microsecond, 500 * time.Microsecond, 14, 3 * took},
		{64, 50 * time.Microsecond, 900 * time.Microsecond, 54, 3 * took},
		{64, 50 * time.Microsecond, 10 * time.Millisecond, 8, 3 * took}, // it does not come back soon
	} {
		name := fmt.Sprintf("%d clients, back after %v to %v", c.clients, c.soon, c.late)
		sizes, longest := crowd(new(gathering), c.clients, took, c.soon, c.late, 200)
		sum := 0
		for _, n := range sizes[20:] {
			sum += n
		}
		if mean := sum / len(sizes[20:]); mean < c.least {
			t.Errorf("%s: %d commands an entry, not %d: %v", name, mean, c.least, sizes)
		}
		if longest > c.longest {
			t.Errorf("%s: one waited for %v", name, longest)
		}
	}
}

// gathers is a group whose next entry waits until so many commands are there, however long.
func gathers(t *testing.T, members, target int) (*cluster, *Group) {
	t.Helper()
	c := newCluster(t, members)
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	b := g.batches
	eventually(t, "nothing is under way", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.flying > 0 || len(b.queue) > 0 {
			return false
		}
		b.gather.target, b.gather.until = target, time.Now().Add(time.Hour)
		return true
	})
	return c, g
}

// proposeHeld proposes commands that wait for more.
func proposeHeld(t *testing.T, g *Group, n int) <-chan error {
	t.Helper()
	done := make(chan error, n)
	for i := range n {
		g.ProposeAsync(set("x", i), nil, func(_ any, err error) { done <- err })
	}
	if g.batches.mu.Lock(); len(g.batches.queue) != n {
		t.Errorf("%d of %d commands wait", len(g.batches.queue), n)
	}
	g.batches.mu.Unlock()
	return done
}

func TestWhatWaitsForTheCrowdGoesTogether(t *testing.T) {
	t.Parallel()
	_, g := gathers(t, 1, 5)
	before := g.Status().Last
	done := proposeHeld(t, g, 4)
	if _, err := g.Propose(ctx(t), set("x", 9)); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if after := g.Status().Last; after != before+1 {
		t.Errorf("%d entries", after-before)
	}
}

func TestTheBellEndsTheWait(t *testing.T) {
	t.Parallel()
	_, g := gathers(t, 1, 64)
	done := proposeHeld(t, g, 3)
	b := g.batches
	b.mu.Lock()
	b.gather.until = time.Now().Add(time.Millisecond)
	b.bell.Reset(time.Millisecond)
	b.mu.Unlock()
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestManyBytesDoNotWaitForTheCrowd(t *testing.T) {
	t.Parallel()
	_, g := gathers(t, 1, 64)
	large := append([]byte("set x "), make([]byte, worthwhileBytes)...)
	if _, err := g.Propose(ctx(t), large); err != nil {
		t.Fatal(err)
	}
}

func TestWhatWaitsForTheCrowdIsRefusedAtTheEnd(t *testing.T) {
	t.Parallel()
	c, g := gathers(t, 1, 64)
	done := proposeHeld(t, g, 3)
	c.stop(g.host.cfg.ID)
	for range 3 {
		var not *NotLeader
		if err := <-done; !errors.As(err, &not) {
			t.Errorf("a command that was not carried out: %v", err)
		}
	}
}

func TestWhatWaitsForTheCrowdIsRefusedWhenLeadershipEnds(t *testing.T) {
	t.Parallel()
	_, g := gathers(t, 3, 64)
	done := proposeHeld(t, g, 3)
	g.batches.mu.Lock()
	g.batches.gather.until = time.Now().Add(time.Hour) // they wait for as long as the handover takes
	g.batches.mu.Unlock()
	if err := g.TransferLeadership(ctx(t), ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it leads no more", func() bool { return g.reign.Load() == nil })
	g.batches.mu.Lock()
	g.batches.gather.until = time.Now()
	g.batches.mu.Unlock()
	g.batches.ring()
	for range 3 {
		if err := <-done; !errors.Is(err, metadata.ErrStandby) {
			t.Errorf("a command that was not carried out: %v", err)
		}
	}
}
