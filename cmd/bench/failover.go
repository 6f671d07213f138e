package bench

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/metadata"
)

// FailoverConfig says what dies and how long is waited.
type FailoverConfig struct {
	// Writers create and close files all the time, each over a connection of its own as far as there are clients.
	Writers int
	// Kill ends a server. It returns when the server is gone.
	Kill func() error
	// Before and After are how long the load runs before the kill and after the first success behind it; defaults 3 s, 2 s.
	Before, After time.Duration
	// Patience is how long a success may take; default 60 s.
	Patience time.Duration
}

// Failover is what the death of a server cost.
type Failover struct {
	// Seconds from the kill to the first acknowledged create that some writer got from the next leader, and to the first
	// of the last writer.
	Seconds float64 `json:"seconds"`
	Last    float64 `json:"last_writer_seconds"`
	// Acknowledged creates over the whole run, and those of them that are missing afterwards.
	Acknowledged int64 `json:"acknowledged"`
	Lost         int64 `json:"lost"`
	// Failed creates, about which the filesystem promises nothing.
	Failed int64 `json:"failed"`
	// FirstLost is the path of a lost file.
	FirstLost string `json:"first_lost,omitempty"`
}

func (f Failover) String() string {
	s := fmt.Sprintf("failover       first success after %.2f s, last writer's after %.2f s; %d creates acknowledged, %d lost, %d failed",
		f.Seconds, f.Last, f.Acknowledged, f.Lost, f.Failed)
	if f.Lost > 0 {
		s += ": " + f.FirstLost
	}
	return s
}

// Failover kills a server while files are created, and looks for every acknowledged file afterwards.
func (b *Bench) Failover(ctx context.Context, config FailoverConfig) (Failover, error) {
	setDefault(&config.Writers, 16)
	setDefault(&config.Before, 3*time.Second)
	setDefault(&config.After, 2*time.Second)
	setDefault(&config.Patience, time.Minute)
	root := path.Join(b.Root, fmt.Sprintf("failover-%d", time.Now().UnixNano()))
	type writer struct {
		acknowledged []string
		times        []time.Time
		failed       int64
		recovered    chan struct{} // closed at the first success of a create that began after the kill
	}
	writers := make([]*writer, config.Writers)
	load, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	killed := make(chan struct{})
	var count atomic.Int64
	for w := range writers {
		writers[w] = &writer{recovered: make(chan struct{})}
		group.Go(func() {
			own, c := writers[w], b.clients[w%len(b.clients)]
			recovered := false
			for n := 0; load.Err() == nil; n++ {
				name := path.Join(root, fmt.Sprintf("w%d/%d", w, n))
				after := false
				select {
				case <-killed:
					after = true
				default:
				}
				if err := b.create(load, c, name, nil); err != nil {
					if load.Err() == nil {
						own.failed++
						pause(load, 5*time.Millisecond)
					}
					continue
				}
				own.acknowledged = append(own.acknowledged, name)
				own.times = append(own.times, time.Now())
				count.Add(1)
				if after && !recovered {
					recovered = true
					close(own.recovered)
				}
			}
		})
	}
	end := func() {
		stop()
		group.Wait()
	}
	defer end()
	began := time.Now()
	hide := b.show("failover", "creates/s", func() (part, perSecond float64) {
		passed := time.Since(began)
		return float64(passed) / float64(config.Before+config.After+time.Second), float64(count.Load()) / passed.Seconds()
	})
	defer hide()
	pause(ctx, config.Before)
	if err := config.Kill(); err != nil {
		return Failover{}, fmt.Errorf("kill: %w", err)
	}
	at := time.Now()
	close(killed)
	patience := time.After(config.Patience)
	for _, w := range writers {
		select {
		case <-w.recovered:
		case <-patience:
			return Failover{}, fmt.Errorf("no create succeeded within %v of the kill", config.Patience)
		case <-ctx.Done():
			return Failover{}, ctx.Err()
		}
	}
	pause(ctx, config.After)
	end()
	hide()
	if err := ctx.Err(); err != nil {
		return Failover{}, err
	}
	var f Failover
	var all []time.Time
	for _, w := range writers {
		f.Acknowledged += int64(len(w.acknowledged))
		f.Failed += w.failed
		all = append(all, w.times...)
		f.Last = max(f.Last, resumed(w.times, at))
	}
	slices.SortFunc(all, time.Time.Compare)
	f.Seconds = resumed(all, at)
	missing := make([][]string, len(writers))
	errs := make([]error, len(writers))
	var looking sync.WaitGroup
	for i, w := range writers {
		looking.Go(func() {
			for _, name := range w.acknowledged {
				_, err := b.clients[i%len(b.clients)].Stat(ctx, name)
				if errors.Is(err, metadata.ErrNotExist) {
					missing[i] = append(missing[i], name)
				} else if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	looking.Wait()
	if err := errors.Join(errs...); err != nil {
		return f, err
	}
	if lost := slices.Concat(missing...); len(lost) > 0 {
		f.Lost, f.FirstLost = int64(len(lost)), lost[0]
	}
	if b.Progress != nil {
		fmt.Fprintln(b.Progress, f)
	}
	return f, nil
}

// resumed is how long after the kill acknowledgements went on, in seconds: where the longest gap that ends behind the kill
// ends. What the dead server had already sent still comes in, so the first one behind the kill proves nothing.
func resumed(times []time.Time, kill time.Time) float64 {
	var longest time.Duration
	var end time.Time
	last := kill
	for _, t := range times {
		if t.Before(kill) {
			continue
		}
		if gap := t.Sub(last); gap > longest {
			longest, end = gap, t
		}
		last = t
	}
	return max(0, end.Sub(kill).Seconds())
}

// Outage measures one thing only: from the kill to the next acknowledged create of a single writer, in seconds.
func (b *Bench) Outage(ctx context.Context, kill func() error) (float64, error) {
	dir := path.Join(b.Root, fmt.Sprintf("outage-%d", time.Now().UnixNano()))
	c := b.clients[0]
	if err := b.create(ctx, c, path.Join(dir, "before"), nil); err != nil {
		return 0, err
	}
	if err := kill(); err != nil {
		return 0, err
	}
	started := time.Now()
	for n := 0; ; n++ {
		err := b.create(ctx, c, path.Join(dir, fmt.Sprint(n)), nil)
		if err == nil {
			return time.Since(started).Seconds(), nil
		}
		if ctx.Err() != nil || time.Since(started) > time.Minute {
			return 0, err
		}
		pause(ctx, 5*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
