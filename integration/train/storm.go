package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

//go:embed storm.py
var stormFunction []byte

// What is killed in a search of so many trials, each kill when as many more trials have begun.
const (
	stormTrials       = 200
	stormControllers  = 20
	stormExecutors    = 20
	stormDatanodes    = 5
	stormNodeManagers = 2
)

const stormStudy = `name: storm
entry: storm.py:train
metric: value
optimizer: {type: asha, eta: 3, r_min: 1, r_max: 9}
space: {x: {type: DOUBLE, range: [0, 1]}, y: {type: DOUBLE, range: [0, 1]}}
trials: %d
executors: 4
resources: {memory: 512MiB, vcores: 1}
seed: 11
arguments: {acknowledged: %s, pause: 0.2}
`

// storm runs a search while processes of every kind are killed, and looks then whether anything is lost.
func storm(ctx context.Context, s *suite) error {
	acknowledged := filepath.Join(s.dir, "storm.acknowledged")
	study := filepath.Join(s.dir, "storm.yaml")
	if err := errors.Join(
		os.WriteFile(acknowledged, nil, 0o666),
		os.WriteFile(filepath.Join(s.dir, "storm.py"), stormFunction, 0o644),
		os.WriteFile(study, fmt.Appendf(nil, stormStudy, stormTrials, acknowledged), 0o644),
	); err != nil {
		return err
	}
	out, err := s.hops(ctx, "experiment", "run", "-d", study)
	if err != nil {
		return err
	}
	h := &harm{suite: s, id: experimentID.FindString(out) + "_1", acknowledged: acknowledged, random: rand.New(rand.NewPCG(1, 2)), dead: map[int]bool{}}
	begun := time.Now()
	if err := h.all(ctx); err != nil {
		return err
	}
	status, err := h.finished(ctx)
	if err != nil {
		return err
	}
	took := time.Since(begun)
	entries, err := journalOf(ctx, s, h.id)
	if err != nil {
		return err
	}
	acks, attempts, err := h.exactlyOnce(entries)
	if err != nil {
		return err
	}
	if err := sameAgain(entries, status); err != nil {
		return err
	}
	if _, err := s.hops(ctx, "experiment", "replay", h.id); err != nil {
		return err
	}
	s.note("%d controllers, %d executors, %d datanodes, %d node managers killed in %.0f s, resumed %d times; %d of %d acknowledged steps once, %d attempts, trial %v is best again",
		stormControllers, stormExecutors, stormDatanodes, stormNodeManagers, took.Seconds(), h.resumed, acks, acks, attempts, status.Best.Trial)
	return nil
}

// harm kills processes of a search.
type harm struct {
	*suite
	id           string // the experiment's
	acknowledged string
	random       *rand.Rand
	down         string // a datanode that is to be started again
	since        time.Time
	resumed      int
	dead         map[int]bool
}

// all kills everybody in a drawn order, each when the search has come further.
func (h *harm) all(ctx context.Context) error {
	var order []func(context.Context) error
	for _, k := range []struct {
		kill  func(context.Context) error
		times int
	}{{h.controller, stormControllers}, {h.executor, stormExecutors}, {h.datanode, stormDatanodes}, {h.nodeManager, stormNodeManagers}} {
		order = append(order, slices.Repeat([]func(context.Context) error{k.kill}, k.times)...)
	}
	h.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for i, kill := range order {
		if err := h.until(ctx, "the search has come further", func() (bool, error) {
			steps, err := h.steps()
			begun := map[float64]bool{}
			for _, step := range steps {
				begun[step.X] = true
			}
			return len(begun) >= i*(stormTrials-10)/len(order), err
		}); err != nil {
			return err
		}
		if err := errors.Join(h.up(), kill(ctx)); err != nil {
			return err
		}
	}
	return h.up()
}

// up starts the datanode that is down, if one is.
func (h *harm) up() error {
	name := h.down
	if h.down = ""; name == "" {
		return nil
	}
	return h.cluster.Start(name)
}

// datanodeGone is how long a datanode is down where the search does not come further: it may be the only one that has the end of the journal.
const datanodeGone = 5 * time.Second

// until waits for something, and resumes the experiment whenever it has no controller any more: the resource manager starts one once more
// within ten minutes, a person as often as it takes.
func (h *harm) until(ctx context.Context, what string, done func() (bool, error)) error {
	deadline, seen := time.Now().Add(3*time.Minute), time.Now()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if h.down != "" && time.Since(h.since) > datanodeGone {
			if err := h.up(); err != nil {
				return err
			}
		}
		if h.find("hops controller") != 0 {
			seen = time.Now()
		} else if time.Since(seen) > 2*time.Second {
			if _, err := h.hops(ctx, "experiment", "resume", "-d", h.id); err == nil {
				h.resumed++
			}
			seen = time.Now()
		}
		if time.Now().After(deadline) {
			out, err := h.hops(ctx, "experiment", "show", h.id)
			return errors.Join(fmt.Errorf("%s has not come true within 3 minutes: %s", what, lastLines(out, 30)), err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// find chooses a process of a command that was not killed, 0: there is none.
func (h *harm) find(command string) int {
	pids := slices.DeleteFunc(processes.Find(h.dir+"/", command), func(pid int) bool { return h.dead[pid] })
	if len(pids) == 0 {
		return 0
	}
	return pids[h.random.IntN(len(pids))]
}

// process kills one of a command as soon as there is one.
func (h *harm) process(ctx context.Context, command string) error {
	pid := 0
	if err := h.until(ctx, command+" runs", func() (bool, error) {
		pid = h.find(command)
		return pid != 0, nil
	}); err != nil {
		return err
	}
	h.dead[pid] = true
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

func (h *harm) controller(ctx context.Context) error { return h.process(ctx, "hops controller") }
func (h *harm) executor(ctx context.Context) error   { return h.process(ctx, "-m hops.executor") }

// datanode kills one, which is started again before the next harm or after a while.
func (h *harm) datanode(context.Context) error {
	h.down, h.since = fmt.Sprintf("dn%d", 1+h.random.IntN(datanodes)), time.Now()
	return h.cluster.Kill(h.down)
}

// nodeManager kills one and starts it again: its containers run on meanwhile.
func (h *harm) nodeManager(context.Context) error {
	name := fmt.Sprintf("nm%d", 1+h.random.IntN(nodeManagers))
	return errors.Join(h.cluster.Kill(name), h.cluster.Start(name))
}

// acknowledgedStep is what the function wrote down.
type acknowledgedStep struct {
	X     float64 `json:"x"`
	Step  int64   `json:"step"`
	Value float64 `json:"value"`
}

func (h *harm) steps() (out []acknowledgedStep, err error) {
	f, err := os.Open(h.acknowledged)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var step acknowledgedStep
		if err := json.Unmarshal(lines.Bytes(), &step); err != nil {
			continue // it was killed while it wrote
		}
		out = append(out, step)
	}
	return out, nil
}

// finished waits for the end of the search.
func (h *harm) finished(ctx context.Context) (*protocol.ExperimentStatus, error) {
	var status protocol.ExperimentStatus
	err := h.until(ctx, "the search has ended", func() (bool, error) {
		out, err := h.hops(ctx, "experiment", "show", h.id, "-o", "json")
		if err != nil {
			return false, nil // its controller is about to start
		}
		status = protocol.ExperimentStatus{}
		if err := json.Unmarshal([]byte(out), &status); err != nil {
			return false, err
		}
		return status.State == protocol.ExperimentFinished, nil
	})
	return &status, err
}

// exactlyOnce looks for what was acknowledged in the journal: the step is reported once in the attempt that saved it, recorded once as saved, and
// never done again after that; and no attempt has an event twice.
func (h *harm) exactlyOnce(entries []*experiment.Entry) (acks, attempts int, err error) {
	steps, err := h.steps()
	if err != nil {
		return 0, 0, err
	}
	type place struct {
		trial training.TrialID
		step  int64
	}
	type attempt struct {
		trial  training.TrialID
		number int
	}
	trials := map[float64]training.TrialID{}
	saved := map[place]int{}      // the attempt
	values := map[place]float64{} // of that
	reported := map[attempt]map[int64]float64{}
	last := map[attempt]int64{}
	var wrong []string
	for _, e := range entries {
		if a := e.Assigned; a != nil {
			attempts++
			if a.Suggestion != nil && a.Suggestion.Params != nil {
				x, _ := a.Suggestion.Params["x"].Float()
				trials[x] = a.Trial
			}
			reported[attempt{a.Trial, a.Attempt}] = map[int64]float64{}
		}
		if r := e.Reported; r != nil {
			for _, event := range r.Events {
				k, at := attempt{r.Trial, r.Attempt}, place{r.Trial, event.Step}
				_, twice := reported[k][event.Step]
				if event.Seq != last[k]+1 || twice || saved[at] != 0 {
					wrong = append(wrong, fmt.Sprintf("entry %d: event %d of %v/%d, step %d, after event %d; attempt %d had saved it", e.N, event.Seq, r.Trial, r.Attempt, event.Step, last[k], saved[at]))
				}
				last[k] = event.Seq
				reported[k][event.Step] = event.Metrics["value"].Value
			}
		}
		if c := e.Committed; c != nil {
			at := place{c.Trial, c.Step}
			value, there := reported[attempt{c.Trial, c.Attempt}][c.Step]
			if saved[at] != 0 || !there {
				wrong = append(wrong, fmt.Sprintf("entry %d: step %d of %v/%d is saved after it was by attempt %d, reported: %v", e.N, c.Step, c.Trial, c.Attempt, saved[at], there))
			}
			saved[at], values[at] = c.Attempt, value
		}
	}
	if len(trials) != stormTrials {
		return 0, 0, fmt.Errorf("%d trials were suggested, not %d", len(trials), stormTrials)
	}
	seen := map[place]bool{}
	for _, step := range steps {
		at := place{trials[step.X], step.Step}
		if saved[at] == 0 || values[at] != step.Value || seen[at] {
			wrong = append(wrong, fmt.Sprintf("step %d of trial %v was acknowledged with %v, and is there with %v of attempt %d", step.Step, at.trial, step.Value, values[at], saved[at]))
		}
		seen[at] = true
	}
	if len(wrong) > 0 {
		return 0, 0, fmt.Errorf("%d things are wrong with %d acknowledged steps: %s", len(wrong), len(steps), strings.Join(wrong[:min(len(wrong), 5)], "; "))
	}
	return len(steps), attempts, nil
}

// sameAgain makes every suggestion of the journal again, compares, and looks whether what comes out is what the experiment has told.
func sameAgain(entries []*experiment.Entry, told *protocol.ExperimentStatus) error {
	x := experiment.New()
	x.Compare = true
	for _, e := range entries {
		if err := x.Apply(e); err != nil {
			return err
		}
		x.Take()
	}
	again := x.Status(x.Now, true)
	if told.Best == nil || again.Best == nil || told.Best.Trial != again.Best.Trial || told.Best.Metric != again.Best.Metric {
		return fmt.Errorf("the best trial is %+v, after a replay %+v", told.Best, again.Best)
	}
	if len(again.Trials) != stormTrials || len(told.Trials) != stormTrials {
		return fmt.Errorf("%d trials, after a replay %d", len(told.Trials), len(again.Trials))
	}
	for i, t := range again.Trials {
		for n, p := range t.Curve {
			if p.Step != int64(n+1) {
				return fmt.Errorf("trial %v has step %d in place %d of its curve", t.Trial, p.Step, n+1)
			}
		}
		if !t.State.Final() || t.State != told.Trials[i].State || t.Epochs != told.Trials[i].Epochs {
			return fmt.Errorf("trial %v is %s after %d epochs, after a replay %s after %d", t.Trial, told.Trials[i].State, told.Trials[i].Epochs, t.State, t.Epochs)
		}
	}
	return nil
}
