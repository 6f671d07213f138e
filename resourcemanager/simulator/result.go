package simulator

import (
	"fmt"
	"slices"
	"strings"

	rm "github.com/gohops/hops/resourcemanager"
)

// Result is what a simulation found out. It has nothing of the machine it ran on but CPU, which only a clock fills.
type Result struct {
	Policy string `json:"policy"`
	// Label tells results of one policy apart, see Compare; empty: the policy's name does.
	Label string `json:"label,omitempty"`
	GPUs  int    `json:"gpus"`
	Nodes int    `json:"nodes"`
	// Finished of the jobs; Refused were not taken, by their reasons; Unfinished waited when nothing moved any more.
	Jobs       int            `json:"jobs"`
	Finished   int            `json:"finished"`
	Refused    map[string]int `json:"refused,omitempty"`
	Unfinished int            `json:"unfinished,omitempty"`
	// Makespan is the time of the last end.
	Makespan   int64   `json:"makespan_ms"`
	Waiting    Spread  `json:"waiting"`
	Completion Spread  `json:"completion"`
	Sizes      []Class `json:"by_size"`
	Queues     []Queue `json:"by_queue"`
	// Utilisation is the part of the GPUs that worked, until the last arrival and over all; Held the part that was granted.
	Utilisation     float64 `json:"utilisation"`
	UtilisationAll  float64 `json:"utilisation_to_the_end"`
	Held            float64 `json:"held_to_the_end"`
	BusyWhileTrials float64 `json:"busy_while_a_trial_waits"` // of one GPU; 0: none ever waited
	TrialsWaited    int64   `json:"a_trial_waited_ms"`
	// WorkedGPUSeconds is the time that GPUs worked, with what was lost.
	WorkedGPUSeconds int64 `json:"worked_gpu_seconds"`
	// HeldIdle are GPU-seconds that gangs held which could not begin.
	HeldIdle         int64 `json:"held_idle_gpu_seconds"`
	LostToPreemption int64 `json:"lost_to_preemption_gpu_seconds"`
	LostToFailures   int64 `json:"lost_to_failures_gpu_seconds"`
	Preemptions      int   `json:"containers_preempted"`
	// Moved are those of them for whom room elsewhere was kept, at the price of LostToMoving of the work that is lost to preemption.
	Moved        int   `json:"containers_moved"`
	LostToMoving int64 `json:"lost_to_moving_gpu_seconds"`
	GaveUp       int   `json:"gangs_gave_up"` // after holding some of their containers in vain
	// Rho is the finish-time fairness: see DESIGN.md.
	RhoMean  float64 `json:"rho_mean"`
	RhoP99   float64 `json:"rho_p99"`
	RhoWorst float64 `json:"rho_worst"`
	Unfair   float64 `json:"part_with_rho_above_1"`
	// Gangs of GPUs: how many were placed on as few nodes as possible, and within one rack.
	Gangs   int          `json:"gangs"`
	Compact float64      `json:"gangs_on_fewest_nodes"`
	OneRack float64      `json:"gangs_in_one_rack"`
	Grants  int          `json:"containers_granted"`
	Passes  int          `json:"passes"`
	Reasons []ReasonTime `json:"reasons,omitempty"`
	Hours   []Hour       `json:"hours"`
	CPU     float64      `json:"scheduler_cpu_seconds,omitempty"`
	PerJob  []JobResult  `json:"per_job,omitempty"`
	sorted  []int64      // completion times
}

// Class are the jobs of a size.
type Class struct {
	Name       string  `json:"name"`
	Jobs       int     `json:"jobs"`
	Waiting    Spread  `json:"waiting"`
	Completion Spread  `json:"completion"`
	Rho        float64 `json:"rho_mean"`
}

// Queue are the jobs of a queue.
type Queue struct {
	Class
	Guarantee float64 `json:"guarantee"` // part of the GPUs
	Share     float64 `json:"share"`     // of the GPU time that was granted
	// Owed are GPU-hours that the queue was below its guarantee while it waited for more.
	Owed float64 `json:"owed_gpu_hours"`
}

// ReasonTime is how long jobs waited for a reason.
type ReasonTime struct {
	Code  rm.ReasonCode `json:"code"`
	Hours float64       `json:"job_hours"`
}

// Hour is one hour of the cluster, parts of its GPUs.
type Hour struct {
	Hour int     `json:"hour"`
	Busy float64 `json:"busy"`
	Held float64 `json:"held"`
}

// JobResult is what became of a job; times in milliseconds, -1 where it did not happen.
type JobResult struct {
	ID      string `json:"id"`
	Queue   string `json:"queue"`
	GPUs    int    `json:"gpus"`
	Arrival int64  `json:"arrival_ms"`
	Began   int64  `json:"began_ms"`
	Ended   int64  `json:"ended_ms"`
	Refused string `json:"refused,omitempty"`
}

// classes are those of sizes, by the GPUs of a job.
var classes = []struct {
	name string
	most int
}{{"no GPU", 0}, {"1", 1}, {"2-4", 4}, {"5-8", 8}, {"9-16", 16}, {"17-32", 32}, {"33-64", 64}, {"65 and more", 1 << 62}}

func classOf(gpus int) string {
	for _, c := range classes {
		if gpus <= c.most {
			return c.name
		}
	}
	return ""
}

// Name is the label, or the policy's.
func (r *Result) Name() string {
	if r.Label != "" {
		return r.Label
	}
	return r.Policy
}

// group collects the jobs of a class.
type group struct {
	wait, completion []int64
	rho              float64
}

func (g *group) class(name string) Class {
	n := len(g.completion)
	c := Class{Name: name, Jobs: n, Waiting: spreadOf(g.wait), Completion: spreadOf(g.completion)}
	if n > 0 {
		c.Rho = g.rho / float64(n)
	}
	return c
}

func (w *world) result(c Config) *Result {
	s := w.stats
	out := &Result{
		Policy: c.Policy.Name(), GPUs: w.total.GPUs, Nodes: len(w.nodes), Jobs: len(w.all), Refused: map[string]int{},
		WorkedGPUSeconds: s.busyTime / second, HeldIdle: (s.heldTime - s.busyTime) / second, LostToPreemption: s.lostToPreemption / second, LostToFailures: s.lostToFailures / second,
		Preemptions: s.preemptions, Moved: s.moved, LostToMoving: s.lostToMoving / second, GaveUp: s.gaveUp, Grants: s.grants, Passes: s.passes, CPU: s.cpu.Seconds(),
		UtilisationAll: ratio(s.busyTime, s.capacity), Held: ratio(s.heldTime, s.capacity),
		BusyWhileTrials: ratio(s.trialBusy, s.trialCapacity),
	}
	if w.total.GPUs > 0 {
		out.TrialsWaited = s.trialCapacity / int64(w.total.GPUs)
	}
	var all group
	bySize, byQueue := map[string]*group{}, map[*rm.Queue]*group{}
	var rhos []float64
	lastArrival, compact, oneRack := int64(0), 0, 0
	for _, r := range w.all {
		out.PerJob = append(out.PerJob, JobResult{r.ID, r.Queue, r.GPUs(), r.Arrival, r.begun, r.ended, r.refused})
		lastArrival = max(lastArrival, r.Arrival)
		switch {
		case r.refused != "":
			out.Refused[r.refused]++
			continue
		case r.ended < 0:
			out.Unfinished++
			continue
		}
		out.Finished++
		out.Makespan = max(out.Makespan, r.ended)
		rho := r.rho(w.total.GPUs)
		rhos = append(rhos, rho)
		size := classOf(r.GPUs())
		if bySize[size] == nil {
			bySize[size] = &group{}
		}
		if byQueue[r.queue] == nil {
			byQueue[r.queue] = &group{}
		}
		for _, g := range []*group{&all, bySize[size], byQueue[r.queue]} {
			g.wait = append(g.wait, r.begun-r.Arrival)
			g.completion = append(g.completion, r.ended-r.Arrival)
			g.rho += rho
		}
		if r.nodes > 0 {
			out.Gangs++
			if r.nodes <= r.least {
				compact++
			}
			if r.racks == 1 {
				oneRack++
			}
		}
	}
	out.Waiting, out.Completion = spreadOf(all.wait), spreadOf(all.completion)
	out.sorted = all.completion
	for _, c := range classes {
		if g := bySize[c.name]; g != nil {
			out.Sizes = append(out.Sizes, g.class(c.name))
		}
	}
	granted := int64(0)
	for _, q := range s.order {
		granted += q.time
	}
	for _, q := range s.order {
		g := byQueue[q.queue]
		if g == nil {
			g = &group{}
		}
		out.Queues = append(out.Queues, Queue{
			Class: g.class(q.queue.Path), Guarantee: ratio(int64(q.guarantee), int64(w.total.GPUs)), Share: ratio(q.time, granted), Owed: q.owed / float64(hour),
		})
	}
	slices.Sort(rhos)
	for _, r := range rhos {
		out.RhoMean += r / float64(len(rhos))
		if r > 1 {
			out.Unfair += 1 / float64(len(rhos))
		}
	}
	if n := len(rhos); n > 0 {
		out.RhoP99, out.RhoWorst = rhos[min(n-1, n*99/100)], rhos[n-1]
	}
	out.Compact, out.OneRack = ratio(int64(compact), int64(out.Gangs)), ratio(int64(oneRack), int64(out.Gangs))
	var busy, capacity int64
	for k, x := range s.samples {
		if int64(k+1)*hour <= lastArrival {
			busy, capacity = busy+x.busy, capacity+x.capacity
		}
		out.Hours = append(out.Hours, Hour{k, ratio(x.busy, x.capacity), ratio(x.held, x.capacity)})
	}
	out.Utilisation = ratio(busy, capacity)
	for code, ms := range s.waiting {
		out.Reasons = append(out.Reasons, ReasonTime{code, float64(ms) / float64(hour)})
	}
	slices.SortFunc(out.Reasons, func(a, b ReasonTime) int { return strings.Compare(string(a.Code), string(b.Code)) })
	return out
}

func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// span prints milliseconds for people: 35s, 12m, 3.4h, 2.1d.
func span(ms int64) string {
	switch {
	case ms < 0:
		return "-" + span(-ms)
	case ms < 10*second:
		return fmt.Sprintf("%.1fs", float64(ms)/float64(second))
	case ms < 2*minute:
		return fmt.Sprintf("%ds", ms/second)
	case ms < 2*hour:
		return fmt.Sprintf("%dm", ms/minute)
	case ms < 2*day:
		return fmt.Sprintf("%.1fh", float64(ms)/float64(hour))
	}
	return fmt.Sprintf("%.1fd", float64(ms)/float64(day))
}
