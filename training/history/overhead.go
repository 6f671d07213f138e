package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/gohops/hops/training"
)

// Overhead is where the time of the executors went, in seconds of one executor, and of one GPU where they had any.
//
//	training       between the reports of attempts whose steps count
//	checkpointing  from the report before a checkpoint to its commit
//	wasted         steps that were lost with an attempt and done again, attempts that failed, what was not reported any more
//	waiting        an executor is there and has no trial
//
// A checkpoint that is uploaded while the function trains on counts only with what it kept the next report from being. A gang costs what all
// of its members cost, until each of them has ended; a trial that shares its executor with k-1 others costs a k-th of it. Executors that
// only serve (parameter servers) have no GPU.
type Overhead struct {
	Executors Spent `json:"executor_seconds"`
	GPUs      Spent `json:"gpu_seconds"`
}

// Spent are seconds by what they went to.
type Spent struct {
	Training      float64 `json:"training"`
	Waiting       float64 `json:"waiting"`
	Checkpointing float64 `json:"checkpointing"`
	Wasted        float64 `json:"wasted"`
}

// Total is all of it.
func (s Spent) Total() float64 { return s.Training + s.Waiting + s.Checkpointing + s.Wasted }

// maxLine bounds an entry of the journal, in bytes (FORMAT.md).
const maxLine = 8 << 20

// MeterJournal reads journal.jsonl and tells where the time went. Lines that are not whole entries, and entries of kinds that it
// does not know, are passed over, as FORMAT.md says.
func MeterJournal(r io.Reader) (*Overhead, error) {
	m := NewMeter()
	b := bufio.NewReaderSize(r, 1<<16)
	for {
		line, err := readLine(b)
		if errors.Is(err, io.EOF) {
			return m.Overhead(), nil
		}
		if err != nil {
			return nil, err
		}
		m.Entry(line)
	}
}

// readLine returns a line, or nothing of one that is too long.
func readLine(b *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := b.ReadSlice('\n')
		if len(line)+len(part) <= maxLine {
			line = append(line, part...)
		}
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// Meter adds up a journal, entry by entry.
type Meter struct {
	last      int64
	now       training.Millis
	slots     int
	gpus      int                // of an executor, as specified
	executors []*meteredExecutor // in the order in which they registered, from which they have their names
	trials    map[training.TrialID]*meteredTrial
	out       Overhead
}

type meteredExecutor struct {
	name, container string
	since           training.Millis // registered
	gpus            int
	busy            float64 // executor-seconds with a trial
	gone            bool
}

// seat is where a member of an attempt runs.
type seat struct {
	rank, slot int
	executor   *meteredExecutor
}

// meteredTrial is a trial with the attempt that runs.
type meteredTrial struct {
	attempt int
	seats   []seat // several: a gang; none: it does not run
	// stopping: it was told to end, so a member that fails changes nothing.
	stopping bool
	// returned: the chief of the gang has its result, the others only have to end.
	returned bool
	mark     training.Millis
	steps    map[int64]Overhead // what each step that counts has cost, as Training
	last     int64              // no step is above it
	rest     Overhead           // of attempts that ended well, behind their last report
	failed   bool               // the last attempt ended in failure and nothing came after it
}

// NewMeter makes an empty meter.
func NewMeter() *Meter {
	return &Meter{slots: 1, trials: map[training.TrialID]*meteredTrial{}}
}

// journalLine is what the meter reads of an entry.
type journalLine struct {
	N       int64           `json:"n"`
	Time    training.Millis `json:"t"`
	Created *struct {
		Spec struct {
			Resources struct{ GPUs int }
			Slots     int `json:"trials_per_executor"`
		} `json:"spec"`
	} `json:"created"`
	Registered *struct {
		Container string
		GPUs      []string
		Serves    bool
	} `json:"registered"`
	Assigned *struct {
		Trial   training.TrialID
		Attempt int
		Seats   []struct {
			Executor string
			Slot     int
		}
	} `json:"assigned"`
	Reported *struct {
		Trial    training.TrialID
		Attempt  int
		Rank     int
		Events   []struct{ Step int64 }
		Decision *struct{}
	} `json:"reported"`
	Decided *struct {
		Trial   training.TrialID
		Attempt int
	} `json:"decided"`
	Committed *struct {
		Trial   training.TrialID
		Attempt int
	} `json:"committed"`
	Ended *struct {
		Trial   training.TrialID
		Attempt int
		Rank    int
		Status  string
	} `json:"ended"`
	Expired *struct {
		Trial   training.TrialID
		Attempt int
	} `json:"expired"`
	Lost    *struct{ Executor string }     `json:"lost"`
	Stopped *struct{}                      `json:"stopped"`
	Started *struct{ Containers []string } `json:"started"`
	Resumed *struct{}                      `json:"resumed"`
}

// Entry adds a line of the journal.
func (m *Meter) Entry(line []byte) {
	var e journalLine
	if json.Unmarshal(line, &e) != nil || e.N <= m.last {
		return
	}
	if e.Resumed != nil { // nothing ran between the end and this
		m.leave(func(*meteredExecutor) bool { return true })
	}
	m.last, m.now = e.N, max(m.now, e.Time)
	switch {
	case e.Created != nil:
		m.slots, m.gpus = max(e.Created.Spec.Slots, 1), e.Created.Spec.Resources.GPUs
	case e.Registered != nil:
		m.leave(func(x *meteredExecutor) bool { return x.container == e.Registered.Container }) // an earlier process of it
		gpus := len(e.Registered.GPUs)
		if gpus == 0 && !e.Registered.Serves {
			gpus = m.gpus
		}
		name := fmt.Sprintf("e%04d", len(m.executors)+1)
		m.executors = append(m.executors, &meteredExecutor{name: name, container: e.Registered.Container, since: m.now, gpus: gpus})
	case e.Started != nil:
		m.leave(func(x *meteredExecutor) bool { return !slices.Contains(e.Started.Containers, x.container) })
	case e.Assigned != nil:
		m.assign(e.Assigned.Trial, e.Assigned.Attempt, func(yield func(executor string, slot int)) {
			for _, s := range e.Assigned.Seats {
				yield(s.Executor, s.Slot)
			}
		})
	case e.Reported != nil:
		if t := m.running(e.Reported.Trial, e.Reported.Attempt, e.Reported.Rank); t != nil {
			steps := make([]int64, 0, len(e.Reported.Events))
			for _, event := range e.Reported.Events {
				steps = append(steps, event.Step)
			}
			m.report(t, steps)
			t.stopping = t.stopping || e.Reported.Decision != nil
		}
	case e.Decided != nil:
		if t := m.running(e.Decided.Trial, e.Decided.Attempt, 0); t != nil {
			t.stopping = true
		}
	case e.Stopped != nil:
		for _, t := range m.trials {
			t.stopping = true
		}
	case e.Committed != nil:
		if t := m.running(e.Committed.Trial, e.Committed.Attempt, 0); t != nil {
			s := m.span(t)
			m.out.Executors.Checkpointing += s.Executors.Training
			m.out.GPUs.Checkpointing += s.GPUs.Training
		}
	case e.Ended != nil:
		if t := m.running(e.Ended.Trial, e.Ended.Attempt, 0); t != nil {
			m.memberEnds(t, e.Ended.Rank, e.Ended.Status == "COMPLETED" || e.Ended.Status == "STOPPED" || e.Ended.Status == "PAUSED")
		}
	case e.Expired != nil && e.Expired.Trial != 0:
		if t := m.running(e.Expired.Trial, e.Expired.Attempt, 0); t != nil {
			m.end(t, t.returned)
		}
	case e.Lost != nil:
		m.leave(func(x *meteredExecutor) bool { return x.name == e.Lost.Executor })
	}
}

// assign begins an attempt.
func (m *Meter) assign(id training.TrialID, attempt int, seats func(yield func(executor string, slot int))) {
	t := m.trials[id]
	if t == nil {
		t = &meteredTrial{steps: map[int64]Overhead{}, last: math.MinInt64}
		m.trials[id] = t
	}
	m.end(t, false)
	t.attempt, t.mark, t.failed, t.stopping, t.returned = attempt, m.now, false, false, false
	seats(func(name string, slot int) {
		k := slices.IndexFunc(m.executors, func(x *meteredExecutor) bool { return x.name == name })
		if k < 0 || m.executors[k].gone {
			return
		}
		s := seat{len(t.seats), slot, m.executors[k]}
		for _, u := range m.trials { // an attempt that ended without a word of its own, to make room
			if u != t && slices.ContainsFunc(u.seats, func(o seat) bool { return o.executor == s.executor && o.slot == s.slot }) {
				m.end(u, false)
			}
		}
		t.seats = append(t.seats, s)
	})
}

// memberEnds takes the end of a member: that of one that trains alone, of a chief that fails, and of any that fails before there is a
// result is that of the attempt.
func (m *Meter) memberEnds(t *meteredTrial, rank int, well bool) {
	k := slices.IndexFunc(t.seats, func(s seat) bool { return s.rank == rank })
	if k < 0 {
		return
	}
	late := t.returned || t.stopping && rank != 0
	if !late && (!well || len(t.seats) == 1 || t.stopping) {
		m.end(t, well || t.stopping)
		return
	}
	if len(t.seats) == 1 { // the last one
		m.end(t, t.returned || t.stopping)
		return
	}
	m.span(t).addTo(&t.rest)
	t.returned = t.returned || rank == 0
	t.seats = slices.Delete(t.seats, k, k+1)
}

// running is the trial if that attempt of it is under way; members of a gang beside the first make no curve.
func (m *Meter) running(id training.TrialID, attempt, rank int) *meteredTrial {
	if t := m.trials[id]; t != nil && len(t.seats) > 0 && t.attempt == attempt && rank == 0 {
		return t
	}
	return nil
}

// span takes the time since the mark of an attempt, as Training.
func (m *Meter) span(t *meteredTrial) (o Overhead) {
	s := float64(m.now-t.mark) / 1000 / float64(m.slots)
	t.mark = m.now
	for _, at := range t.seats {
		at.executor.busy += s
		o.Executors.Training += s
		o.GPUs.Training += s * float64(at.executor.gpus)
	}
	return o
}

// addTo adds what was trained.
func (o Overhead) addTo(to *Overhead) {
	to.Executors.Training += o.Executors.Training
	to.GPUs.Training += o.GPUs.Training
}

// report spreads the time since the mark over steps. Steps of earlier attempts from the first of them on are done again.
func (m *Meter) report(t *meteredTrial, steps []int64) {
	if len(steps) == 0 {
		return // a sign of life
	}
	s := m.span(t)
	first := steps[0]
	if first <= t.last { // else there are none, and a long curve is not looked through at each of its steps
		for step, cost := range t.steps {
			if step >= first {
				m.waste(cost)
				delete(t.steps, step)
			}
		}
		t.last = first
	}
	t.last = max(t.last, slices.Max(steps))
	n := float64(len(steps))
	for _, step := range steps {
		c := t.steps[step]
		Overhead{Spent{Training: s.Executors.Training / n}, Spent{Training: s.GPUs.Training / n}}.addTo(&c)
		t.steps[step] = c
	}
}

func (m *Meter) waste(cost Overhead) {
	m.out.Executors.Wasted += cost.Executors.Training
	m.out.GPUs.Wasted += cost.GPUs.Training
}

// end closes an attempt.
func (m *Meter) end(t *meteredTrial, well bool) {
	if len(t.seats) == 0 {
		return
	}
	s := m.span(t)
	if well {
		s.addTo(&t.rest)
	} else {
		m.waste(s)
	}
	t.seats, t.failed = nil, !well
}

// leave closes executors, with the attempts that they have.
func (m *Meter) leave(which func(*meteredExecutor) bool) {
	for _, x := range m.executors {
		if x.gone || !which(x) {
			continue
		}
		for _, t := range m.trials {
			if slices.ContainsFunc(t.seats, func(s seat) bool { return s.executor == x }) {
				m.end(t, t.returned)
			}
		}
		x.gone = true
		idle := max(float64(m.now-x.since)/1000-x.busy, 0)
		m.out.Executors.Waiting += idle
		m.out.GPUs.Waiting += idle * float64(x.gpus)
	}
}

// Overhead is the sum up to the last entry. Attempts under way count as training so far.
func (m *Meter) Overhead() *Overhead {
	out := m.out
	for _, x := range m.executors {
		if x.gone {
			continue
		}
		busy := x.busy
		for _, t := range m.trials {
			for _, at := range t.seats {
				if at.executor != x {
					continue
				}
				s := float64(m.now-t.mark) / 1000 / float64(m.slots)
				busy += s
				out.Executors.Training += s
				out.GPUs.Training += s * float64(x.gpus)
			}
		}
		idle := max(float64(m.now-x.since)/1000-busy, 0)
		out.Executors.Waiting += idle
		out.GPUs.Waiting += idle * float64(x.gpus)
	}
	for _, t := range m.trials {
		sum := t.rest
		for _, c := range t.steps {
			c.addTo(&sum)
		}
		if t.failed { // given up
			out.Executors.Wasted += sum.Executors.Training
			out.GPUs.Wasted += sum.GPUs.Training
			continue
		}
		sum.addTo(&out)
	}
	for _, s := range []*Spent{&out.Executors, &out.GPUs} {
		for _, f := range []*float64{&s.Training, &s.Waiting, &s.Checkpointing, &s.Wasted} {
			*f = math.Round(*f*1000) / 1000 // the journal's times are no finer, and the order of sums leaves no trace
		}
	}
	return &out
}

// String is one line for people: GPU-seconds where there were GPUs, else those of executors.
func (o *Overhead) String() string {
	s, of := o.GPUs, "GPU"
	if s.Total() == 0 {
		s, of = o.Executors, "executor"
	}
	total := s.Total()
	if total == 0 {
		return "no time of executors"
	}
	part := func(f float64) string { return fmt.Sprintf("%.1f s (%.0f %%)", f, 100*f/total) }
	return fmt.Sprintf("%.1f %s-seconds: training %s, waiting %s, checkpointing %s, wasted %s",
		total, of, part(s.Training), part(s.Waiting), part(s.Checkpointing), part(s.Wasted))
}
