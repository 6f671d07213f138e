package simulator

import (
	"slices"
	"time"

	rm "github.com/gohops/hops/resourcemanager"
)

// stats are the integrals of a simulation. GPU amounts are GPU-milliseconds.
type stats struct {
	gpus     int // of nodes that are up
	busyNow  int // that work
	heldNow  int // that are granted
	working  int // containers that work
	byQueue  map[*rm.Queue]*queueStats
	order    []*queueStats
	liveness float64 // integral of the number of live jobs

	capacity, busyTime, heldTime int64
	// trialCapacity and trialBusy count only while a container of one GPU waits.
	trialCapacity, trialBusy int64
	lostToPreemption         int64
	lostToFailures           int64
	preemptions              int // containers
	moved                    int // of these
	lostToMoving             int64
	gaveUp                   int // gangs that held containers and could not begin
	// samples are the busy GPU-milliseconds of every hour, beside what there was.
	samples []sample
	grants  int
	passes  int
	cpu     time.Duration
	waiting map[rm.ReasonCode]int64 // job-milliseconds by the reason of the job's first part that waits
}

type sample struct{ busy, held, capacity int64 }

type queueStats struct {
	queue     *rm.Queue
	guarantee float64 // GPUs
	gpus      int     // granted now
	time      int64   // GPU-milliseconds that were granted
	// owed are GPU-milliseconds by which the queue was below its guarantee while it wanted more.
	owed float64
	want int // GPUs that it waits for, see pass
}

func newStats(w *world) *stats {
	s := &stats{byQueue: map[*rm.Queue]*queueStats{}, waiting: map[rm.ReasonCode]int64{}}
	for _, n := range w.nodes {
		s.gpus += n.GPUs
	}
	for _, q := range w.queues.All {
		if q.Leaf() {
			own := &queueStats{queue: q, guarantee: float64(w.guaranteed[q].GPUs)}
			s.byQueue[q] = own
			s.order = append(s.order, own)
		}
	}
	return s
}

// hold counts n containers of a part that are granted, or given back.
func (s *stats) hold(p *part, n int) {
	s.heldNow += n * p.GPUs
	s.byQueue[p.run.queue].gpus += n * p.GPUs
}

// busy counts n containers of a part that begin to work, or end it.
func (s *stats) busy(p *part, n int) {
	s.busyNow += n * p.GPUs
	s.working += n
}

// pass lets time go on to at, with everything as it is.
func (s *stats) pass(w *world, at int64) {
	dt := at - w.now
	if dt <= 0 {
		return
	}
	trial := false
	for _, q := range s.order {
		q.want = 0
	}
	for _, r := range w.live {
		var first *part
		for _, p := range r.parts {
			if !p.open || p.wanted == 0 {
				continue
			}
			if first == nil {
				first = p
			}
			trial = trial || p.GPUs == 1 && p.Gang <= 1
			s.byQueue[r.queue].want += p.wanted * p.GPUs
		}
		if first != nil && first.reason != "" {
			s.waiting[first.reason] += dt
		}
	}
	for _, q := range s.order {
		q.time += int64(q.gpus) * dt
		if missing := min(q.guarantee-float64(q.gpus), float64(q.want)); missing > 0 {
			q.owed += missing * float64(dt)
		}
	}
	s.liveness += float64(len(w.live)) * float64(dt)
	s.capacity += int64(s.gpus) * dt
	s.busyTime += int64(s.busyNow) * dt
	s.heldTime += int64(s.heldNow) * dt
	if trial {
		s.trialCapacity += int64(s.gpus) * dt
		s.trialBusy += int64(s.busyNow) * dt
	}
	for from := w.now; from < at; {
		k := int(from / hour)
		to := min(at, int64(k+1)*hour)
		for len(s.samples) <= k && len(s.samples) < 1_000_000 {
			s.samples = append(s.samples, sample{})
		}
		if k < len(s.samples) {
			x := &s.samples[k]
			x.busy += int64(s.busyNow) * (to - from)
			x.held += int64(s.heldNow) * (to - from)
			x.capacity += int64(s.gpus) * (to - from)
		}
		from = to
	}
}

// finish notes the end of a job.
func (s *stats) finish(w *world, r *run) {
	// The fair share of a job is one n-th of the cluster, n being how many jobs there were on average while it was there.
	lived := r.ended - r.Arrival
	if lived > 0 {
		r.liveness = (s.liveness - r.liveness) / float64(lived)
	} else {
		r.liveness = 1
	}
}

// rho is the finish-time fairness of Themis (NSDI 2020): the completion time over what it would have been on a share of 1/n of the
// cluster that is the job's own. Above 1 the job would have been better off with its own share.
func (r *run) rho(total int) float64 {
	alone := float64(r.Alone())
	if g := float64(r.GPUs()); g > 0 && total > 0 {
		if share := float64(total) / max(1, r.liveness); g > share {
			alone *= g / share
		}
	}
	return float64(r.ended-r.Arrival) / alone
}

// quantile of values that are sorted; 0 when there are none.
func quantile(sorted []int64, q float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func mean(v []int64) int64 {
	if len(v) == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range v {
		sum += float64(x)
	}
	return int64(sum / float64(len(v)))
}

// Spread is the distribution of a duration, in milliseconds.
type Spread struct {
	Mean int64 `json:"mean_ms"`
	P50  int64 `json:"p50_ms"`
	P90  int64 `json:"p90_ms"`
	P99  int64 `json:"p99_ms"`
	Max  int64 `json:"max_ms"`
}

func spreadOf(v []int64) Spread {
	slices.Sort(v)
	return Spread{mean(v), quantile(v, 0.5), quantile(v, 0.9), quantile(v, 0.99), quantile(v, 1)}
}
