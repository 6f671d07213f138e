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
// A checkpoint that is uploaded while the function trains on counts only with what it kept the next report from being.
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

// meteredTrial is a trial with the attempt that runs.
type meteredTrial struct {
	attempt int
	members []*meteredExecutor // several: a gang; none: it does not run
	mark    training.Millis
	steps   map[int64]Overhead // what each step that counts has cost, as Training
	rest    Overhead           // of attempts that ended well, behind their last report
	failed  bool               // the last attempt ended in failure and nothing came after it
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
	} `json:"registered"`
	Assigned *struct {
		Executor string
		Trial    training.TrialID
		Attempt  int
	} `json:"assigned"`
	Reported *struct {
		Trial   training.TrialID
		Attempt int
		Rank    int
		Events  []struct{ Step int64 }
	} `json:"reported"`
	Committed *struct {
		Trial   training.TrialID
		Attempt int
		Rank    int
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
		if gpus == 0 {
			gpus = m.gpus
		}
		name := fmt.Sprintf("e%04d", len(m.executors)+1)
		m.executors = append(m.executors, &meteredExecutor{name: name, container: e.Registered.Container, since: m.now, gpus: gpus})
	case e.Started != nil:
		m.leave(func(x *meteredExecutor) bool { return !slices.Contains(e.Started.Containers, x.container) })
	case e.Assigned != nil:
		k := slices.IndexFunc(m.executors, func(x *meteredExecutor) bool { return x.name == e.Assigned.Executor })
		if k < 0 {
			return
		}
		t := m.trials[e.Assigned.Trial]
		if t == nil {
			t = &meteredTrial{steps: map[int64]Overhead{}}
			m.trials[e.Assigned.Trial] = t
		}
		if len(t.members) > 0 && t.attempt == e.Assigned.Attempt { // one more of a gang
			m.span(t).addTo(&t.rest)
			t.members = append(t.members, m.executors[k])
			return
		}
		m.end(t, false)
		t.attempt, t.members, t.mark, t.failed = e.Assigned.Attempt, []*meteredExecutor{m.executors[k]}, m.now, false
	case e.Reported != nil:
		if t := m.running(e.Reported.Trial, e.Reported.Attempt, e.Reported.Rank); t != nil {
			steps := make([]int64, 0, len(e.Reported.Events))
			for _, event := range e.Reported.Events {
				steps = append(steps, event.Step)
			}
			m.report(t, steps)
		}
	case e.Committed != nil:
		if t := m.running(e.Committed.Trial, e.Committed.Attempt, e.Committed.Rank); t != nil {
			s := m.span(t)
			m.out.Executors.Checkpointing += s.Executors.Training
			m.out.GPUs.Checkpointing += s.GPUs.Training
		}
	case e.Ended != nil:
		if t := m.running(e.Ended.Trial, e.Ended.Attempt, e.Ended.Rank); t != nil {
			m.end(t, e.Ended.Status == "COMPLETED" || e.Ended.Status == "STOPPED" || e.Ended.Status == "PAUSED")
		}
	case e.Expired != nil && e.Expired.Trial != 0:
		if t := m.running(e.Expired.Trial, e.Expired.Attempt, 0); t != nil {
			m.end(t, false)
		}
	case e.Lost != nil:
		m.leave(func(x *meteredExecutor) bool { return x.name == e.Lost.Executor })
	}
}

// running is the trial if that attempt of it is under way; members of a gang beside the first make no curve.
func (m *Meter) running(id training.TrialID, attempt, rank int) *meteredTrial {
	if t := m.trials[id]; t != nil && len(t.members) > 0 && t.attempt == attempt && rank == 0 {
		return t
	}
	return nil
}

// span takes the time since the mark of an attempt, as Training.
func (m *Meter) span(t *meteredTrial) (o Overhead) {
	s := float64(m.now-t.mark) / 1000 / float64(m.slots)
	t.mark = m.now
	for _, x := range t.members {
		x.busy += s
		o.Executors.Training += s
		o.GPUs.Training += s * float64(x.gpus)
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
	for step, cost := range t.steps {
		if step >= first {
			m.waste(cost)
			delete(t.steps, step)
		}
	}
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
	if len(t.members) == 0 {
		return
	}
	s := m.span(t)
	if well {
		s.addTo(&t.rest)
	} else {
		m.waste(s)
	}
	t.members, t.failed = nil, !well
}

// leave closes executors, with the attempts that they have.
func (m *Meter) leave(which func(*meteredExecutor) bool) {
	for _, x := range m.executors {
		if x.gone || !which(x) {
			continue
		}
		for _, t := range m.trials {
			if slices.Contains(t.members, x) {
				m.end(t, false)
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
			if slices.Contains(t.members, x) {
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
