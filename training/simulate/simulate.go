package simulate

import (
	"container/heap"
	"fmt"
	"math"
	"path"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

// Study is one search to be simulated.
type Study struct {
	// Spec says what is searched and how; its executors are the workers.
	Spec  *training.Spec
	Table *Table
	// Budget ends the search after this much time of each worker, in full trials of median length; trials that are at work then
	// do not count. 0: when the search is over.
	Budget float64
	// Scratch: trials save no checkpoints, so that a promoted one begins again.
	Scratch bool
	// Barrier: workers get new trials only when all have ended theirs, as tasks of a bulk-synchronous stage do.
	Barrier bool

	// note is told every entry of the journal.
	note func(*experiment.Entry)
}

// Outcome is what came of it.
type Outcome struct {
	// Best is the best value that a trial had at any of its epochs, Test the value on other data at that epoch. Of trials that
	// ended or paused in time. Nil if there is none.
	Best *float64 `json:"best"`
	Test *float64 `json:"test,omitempty"`
	// BestFinal is the best of the last values of those trials, TestFinal the value on other data then.
	BestFinal *float64 `json:"best_final"`
	TestFinal *float64 `json:"test_final,omitempty"`
	// Trials that began, Ended those of them that ended or paused in time, Stopped those that were stopped early.
	Trials  int `json:"trials"`
	Ended   int `json:"ended"`
	Stopped int `json:"stopped"`
	// Epochs that were trained, those of trials that did not end in time included.
	Epochs int `json:"epochs"`
	// Time is the virtual time that it took, in milliseconds.
	Time float64 `json:"time_ms"`
}

// Run simulates a search.
func Run(s Study) (Outcome, error) {
	if err := s.Table.Check(s.Spec.Space); err != nil {
		return Outcome{}, err
	}
	if n := len(s.Spec.Objectives); n > 1 {
		return Outcome{}, fmt.Errorf("%d objectives are not supported here: the curves have one metric", n)
	}
	r := &run{Study: s, x: experiment.New(), trials: map[training.TrialID]*progress{}, workers: make([]worker, s.Spec.Executors)}
	r.end = math.Inf(1)
	if s.Budget > 0 {
		r.end = s.Budget * s.Table.FullCost()
	}
	spec := *s.Spec
	for _, e := range []*experiment.Entry{
		{Created: &experiment.Created{Version: experiment.Version, ID: "simulated", Application: "simulated", User: spec.Project, Directory: "/simulated", Spec: &spec}},
		{Started: &experiment.Started{Attempt: 1}},
	} {
		if err := r.noted(r.x.Propose(0, e)); err != nil {
			return Outcome{}, err
		}
	}
	if err := r.loop(); err != nil {
		return Outcome{}, err
	}
	r.out.Trials, r.out.Epochs = len(r.x.Trials), r.x.Counters.Epochs
	return r.out, nil
}

type run struct {
	Study
	x       *experiment.Experiment
	end     float64 // of the time
	now     float64
	workers []worker
	busy    queue
	joined  int // executors so far
	trials  map[training.TrialID]*progress
	out     Outcome
}

// worker is an executor, or none while container is empty.
type worker struct {
	container, executor string
	job                 *job // nil: idle
}

// job is an attempt.
type job struct {
	assignment *protocol.Assignment
	row        *Row
	seq        int64
	epoch      int // that the next report is of
	left       int // reports until the budget is used; 0: to the end of the curve
}

// progress is what is known of a trial.
type progress struct {
	best, last moment
	counted    bool
}

// moment is a value and the one on other data.
type moment struct {
	value float64
	test  *float64
}

func (r *run) loop() error {
	for {
		if err := r.give(); err != nil {
			return err
		}
		if r.busy.Len() == 0 {
			return nil
		}
		next := heap.Pop(&r.busy).(event)
		if next.at > r.end {
			r.out.Time = r.end
			return nil
		}
		r.now, r.out.Time = next.at, next.at
		if err := r.step(&r.workers[next.worker], next.worker); err != nil {
			return err
		}
	}
}

// noted hands on what was proposed.
func (r *run) noted(e *experiment.Entry, err error) error {
	r.x.Take()
	if r.note != nil && e != nil {
		r.note(e)
	}
	return err
}

func (r *run) millis() training.Millis { return training.Millis(r.now) }

// give lets the idle workers ask for work.
func (r *run) give() error {
	if r.Barrier && r.busy.Len() > 0 {
		return nil
	}
	for i := range r.workers {
		w := &r.workers[i]
		if w.job != nil {
			continue
		}
		if w.container == "" {
			if r.x.Over() || r.x.Usable(false) >= r.x.Wanted(false) {
				continue
			}
			r.joined++
			w.container = fmt.Sprintf("c%d", r.joined)
			x, _, e, err := r.x.Register(r.millis(), protocol.RegisterExecutor{ContainerID: w.container, Instance: "1", Host: "simulated"}, "", false)
			if err := r.noted(e, err); err != nil {
				return err
			}
			w.executor = x.ID
		}
		next, e, err := r.x.Next(r.millis(), w.executor, 0)
		if err := r.noted(e, err); err != nil {
			return err
		}
		switch next.Action {
		case protocol.ActionTrial:
			if err := r.begin(w, next.Trial); err != nil {
				return err
			}
			heap.Push(&r.busy, event{r.now + w.job.row.Cost, i})
		case protocol.ActionDrain, protocol.ActionStop:
			if err := r.noted(r.x.Propose(r.millis(), &experiment.Entry{Lost: &experiment.Lost{Executor: w.executor, Told: true}})); err != nil {
				return err
			}
			w.container = ""
		}
	}
	return nil
}

func (r *run) begin(w *worker, a *protocol.Assignment) error {
	row, err := r.Table.find(r.Spec.Space, a.Params)
	if err != nil {
		return err
	}
	w.job = &job{assignment: a, row: row}
	if a.Resume != nil {
		w.job.epoch = int(a.Resume.Step)
	}
	w.job.left = max(a.Budget.To-a.Budget.From, 0)
	if w.job.epoch >= len(row.Curve) { // nothing is recorded beyond
		return fmt.Errorf("trial %v goes on after epoch %d, and the curve of row %d has %d", a.Trial, w.job.epoch, row.ID, len(row.Curve))
	}
	return nil
}

// step ends an epoch of a worker.
func (r *run) step(w *worker, i int) error {
	j, a := w.job, w.job.assignment
	j.seq++
	j.epoch++
	m := moment{value: j.row.Curve[j.epoch-1]}
	if len(j.row.Test) >= j.epoch {
		m.test = &j.row.Test[j.epoch-1]
	}
	p := r.trials[a.Trial]
	if p == nil || j.seq == 1 && j.epoch == 1 { // also one that begins again
		p = &progress{best: m, counted: p != nil && p.counted}
		r.trials[a.Trial] = p
	}
	p.last = m
	if r.Spec.Direction.Better(m.value, p.best.value) {
		p.best = m
	}
	report := protocol.Report{Events: []protocol.MetricEvent{{Seq: j.seq, Step: int64(j.epoch), Metrics: map[string]training.Metric{r.Spec.Metric: training.M(m.value)}}}}
	reported, e, err := r.x.Report(r.millis(), w.container, a.Trial, a.Attempt, report)
	if err := r.noted(e, err); err != nil {
		return err
	}
	final := protocol.Final{Seq: j.seq, Status: training.Completed}
	switch {
	case reported.Op == protocol.OpStop:
		final.Status = training.Stopped
	case reported.Op == protocol.OpPause:
		final.Status = training.Paused
	case j.epoch < len(j.row.Curve) && int64(j.left) != j.seq:
		heap.Push(&r.busy, event{r.now + j.row.Cost, i})
		return nil
	}
	if !r.Scratch {
		c := protocol.Commit{Step: int64(j.epoch), URI: path.Join(a.Dirs.Checkpoints, fmt.Sprintf("step-%d", j.epoch)), Files: []training.File{{Name: "state", Size: 1}}}
		_, e, err := r.x.Commit(r.millis(), w.container, a.Trial, a.Attempt, c)
		if err := r.noted(e, err); err != nil {
			return err
		}
	}
	finished, e, err := r.x.Final(r.millis(), w.container, a.Trial, a.Attempt, final)
	if err := r.noted(e, err); err != nil {
		return err
	}
	w.job = nil
	r.count(p, finished.State)
	return nil
}

// count takes a trial that ended or paused into the outcome.
func (r *run) count(p *progress, state training.State) {
	if !p.counted {
		p.counted = true
		r.out.Ended++
	}
	if state == training.Stopped {
		r.out.Stopped++
	}
	better := func(a float64, b *float64) bool { return b == nil || r.Spec.Direction.Better(a, *b) }
	if better(p.best.value, r.out.Best) {
		r.out.Best, r.out.Test = new(p.best.value), p.best.test
	}
	if better(p.last.value, r.out.BestFinal) {
		r.out.BestFinal, r.out.TestFinal = new(p.last.value), p.last.test
	}
}

// event is the end of a worker's epoch.
type event struct {
	at     float64
	worker int
}

// queue is a heap of events by time; of equal times the lower worker comes first.
type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].worker < q[j].worker
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}
