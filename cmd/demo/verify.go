package demo

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"path"
	"slices"
	"sync"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// findings are what verify counted.
type findings struct {
	files, bytes, checkpoints, checkpointBytes, metrics, grants, resumed int
}

// journalLine is what the demo reads of the experiment's journal.
type journalLine struct {
	Reported *struct {
		Trial   training.TrialID       `json:"trial"`
		Attempt int                    `json:"attempt"`
		Events  []protocol.MetricEvent `json:"events"`
	} `json:"reported"`
}

// verify reads back everything that was acknowledged, by the demo's own records.
func (d *Demo) verify(ctx context.Context) error {
	d.say("reading back everything that was acknowledged")
	found := &findings{}
	facts, err := readFacts(d.record())
	if err != nil {
		return err
	}
	if d.status, err = d.client.Experiments().Status(ctx, d.job); err != nil {
		return err
	}
	if len(d.status.Trials) < 24 || d.status.Best == nil {
		return fmt.Errorf("the search tried %d configurations, 24 were wanted", len(d.status.Trials))
	}
	for _, check := range []func(context.Context, []fact, *findings) error{
		d.verifyFiles, d.verifyMetrics, d.verifyCheckpoints, d.verifyResumes, d.verifyGrants,
	} {
		if err := check(ctx, facts, found); err != nil {
			return fmt.Errorf("verification failed: %w", err)
		}
	}
	d.say("nothing is missing: %d files (%.1f MB) byte for byte, %d metric steps, %d checkpoints, %d resumed runs; %d GPU grants, none double",
		found.files, float64(found.bytes)/1e6, found.metrics, found.checkpoints, found.resumed, found.grants)
	return nil
}

// verifyFiles compares every acknowledged file with what was written.
func (d *Demo) verifyFiles(ctx context.Context, _ []fact, found *findings) error {
	acks := d.recorder.all()
	if len(acks) < 20 {
		return fmt.Errorf("only %d writes were acknowledged", len(acks))
	}
	var mu sync.Mutex
	var errs []error
	var group sync.WaitGroup
	work := make(chan fileAck)
	for range 4 {
		group.Go(func() {
			for ack := range work {
				data, err := d.client.FS().ReadFile(ctx, ack.path)
				if err == nil && sha256.Sum256(data) != ack.sum {
					err = fmt.Errorf("%s has other bytes than were written", ack.path)
				}
				mu.Lock()
				if err != nil {
					errs = append(errs, fmt.Errorf("acknowledged file: %w", err))
				}
				found.files++
				found.bytes += len(data)
				mu.Unlock()
			}
		})
	}
	for _, ack := range acks {
		work <- ack
	}
	close(work)
	group.Wait()
	return errors.Join(errs...)
}

// verifyMetrics finds every acknowledged step in the experiment's journal, with its value.
func (d *Demo) verifyMetrics(ctx context.Context, facts []fact, found *findings) error {
	text, err := d.client.FS().ReadFile(ctx, path.Join(d.status.Directory, "journal.jsonl"))
	if err != nil {
		return err
	}
	type key struct {
		trial   string
		attempt int
		step    int64
	}
	journal := map[key]float64{}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		var line journalLine
		if err := json.Unmarshal(s.Bytes(), &line); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		if r := line.Reported; r != nil {
			for _, e := range r.Events {
				journal[key{r.Trial.String(), r.Attempt, e.Step}] = e.Metrics["accuracy"].Value
			}
		}
	}
	for _, f := range facts {
		if f.Kind != "metric" {
			continue
		}
		found.metrics++
		value, ok := journal[key{f.Trial, f.Attempt, f.Step}]
		if !ok || value != f.Value {
			return fmt.Errorf("trial %s attempt %d step %d: accuracy %v was acknowledged, the journal has %v (%v)", f.Trial, f.Attempt, f.Step, f.Value, value, ok)
		}
	}
	if found.metrics == 0 {
		return errors.New("no metric was acknowledged")
	}
	return nil
}

// verifyCheckpoints reads every acknowledged checkpoint that retention has kept, and finds each that the search believes
// in.
func (d *Demo) verifyCheckpoints(ctx context.Context, facts []fact, found *findings) error {
	kept := map[string]bool{}
	for _, t := range d.status.Trials {
		for _, step := range t.Steps {
			kept[fmt.Sprintf("%v %d", t.Trial, step)] = true
		}
	}
	for _, f := range facts {
		if f.Kind != "checkpoint" {
			continue
		}
		name := fmt.Sprintf("%s %d", f.Trial, f.Step)
		if _, err := d.client.FS().Stat(ctx, f.URI); errors.Is(err, metadata.ErrNotExist) {
			if kept[name] && !newerAttempt(facts, f) {
				return fmt.Errorf("checkpoint %s was acknowledged and is gone", f.URI)
			}
			continue // retention removed it
		} else if err != nil {
			return err
		}
		for _, file := range f.Files {
			data, err := d.client.FS().ReadFile(ctx, path.Join(f.URI, file.Name))
			if err != nil {
				return err
			}
			if int64(len(data)) != file.Size || crc32.ChecksumIEEE(data) != file.CRC32 {
				return fmt.Errorf("checkpoint %s: %s is not what was written", f.URI, file.Name)
			}
			found.checkpointBytes += len(data)
		}
		delete(kept, name)
		found.checkpoints++
	}
	// Of one that was not noted nobody knows the content, but it has to be there.
	step, uri := unnoted(facts, d.kills[2])
	if name := fmt.Sprintf("%s %d", d.kills[2].trial, step); kept[name] {
		files, err := d.client.FS().List(ctx, uri)
		if err != nil {
			return fmt.Errorf("checkpoint that the search counts on: %w", err)
		}
		if len(files) == 0 {
			return fmt.Errorf("checkpoint %s, which the search counts on, is empty", uri)
		}
		delete(kept, name)
	}
	if len(kept) > 0 {
		return fmt.Errorf("checkpoints that the search counts on are missing: %v", kept)
	}
	return nil
}

// unnoted is the checkpoint that the killed executor may have had acknowledged and did not live to note: the one after its
// last, which may be the one that it resumed from. It notes each before it makes the next, so there is no other.
func unnoted(facts []fact, killed *kill) (step int64, uri string) {
	var dir string
	for _, f := range facts {
		if f.Trial != killed.trial {
			continue
		}
		if f.Kind == "checkpoint" {
			dir = path.Dir(f.URI)
		}
		switch {
		case f.Attempt != killed.attempt:
		case f.Kind == "start":
			step = f.Resume + 1
		case f.Kind == "checkpoint":
			step = f.Step + 1
		}
	}
	return step, path.Join(dir, fmt.Sprintf("step-%d", step))
}

// newerAttempt: a later attempt of the trial made the same step again.
func newerAttempt(facts []fact, f fact) bool {
	return slices.ContainsFunc(facts, func(g fact) bool {
		return g.Kind == "checkpoint" && g.Trial == f.Trial && g.Step == f.Step && g.Attempt > f.Attempt
	})
}

// verifyResumes checks that every run that had a checkpoint went on at the next epoch, the killed one among them.
func (d *Demo) verifyResumes(_ context.Context, facts []fact, found *findings) error {
	type run struct {
		trial   string
		attempt int
	}
	first := map[run]int64{}
	for _, f := range facts {
		r := run{f.Trial, f.Attempt}
		if _, seen := first[r]; f.Kind == "metric" && !seen {
			first[r] = f.Step
		}
	}
	killed := d.kills[2]
	after, _ := unnoted(facts, killed)
	var last int64 // checkpoint acknowledged for the killed trial before the kill's attempt ended
	attempts := map[string]int{}
	for _, f := range facts {
		r := run{f.Trial, f.Attempt}
		if f.Kind == "checkpoint" && f.Trial == killed.trial {
			last = f.Step
		}
		if f.Kind != "start" {
			continue
		}
		if f.Resume == 0 {
			continue
		}
		if step, ok := first[r]; ok && step != f.Resume+1 {
			return fmt.Errorf("trial %s attempt %d resumed from epoch %d and first reported %d", f.Trial, f.Attempt, f.Resume, step)
		}
		found.resumed++
		attempts[f.Trial]++
		most := last
		if f.Attempt == killed.attempt+1 {
			most = max(last, after)
		}
		if f.Trial == killed.trial && f.Resume > most {
			return fmt.Errorf("trial %s resumed from epoch %d, only %d was acknowledged", f.Trial, f.Resume, most)
		}
	}
	for _, t := range d.status.Trials {
		if t.Trial.String() == killed.trial {
			if t.Attempt < 3 || attempts[killed.trial] < 2 {
				return fmt.Errorf("trial %s, whose executor was killed, was not resumed (%d runs, %d from a checkpoint)", killed.trial, t.Attempt, attempts[killed.trial])
			}
			var at int64
			for _, f := range facts {
				if f.Kind == "start" && f.Trial == killed.trial && f.Attempt == killed.attempt+1 {
					at = f.Resume
				}
			}
			killed.cost = fmt.Sprintf("trial %s went on at epoch %d, after its checkpoint of epoch %d", killed.trial, at+1, at)
			return nil
		}
	}
	return fmt.Errorf("trial %s, whose executor was killed, is not in the result", killed.trial)
}

// hold is a container's hold on its devices as its own processes have noted it.
type hold struct {
	container string
	gpus      []string
	from, to  int64
}

// holds are the times between the first and the last note of every container.
func holds(facts []fact) []hold {
	var out []hold
	for _, f := range facts {
		if len(f.GPUs) == 0 || f.TimeMS == 0 {
			continue
		}
		i := slices.IndexFunc(out, func(h hold) bool { return h.container == f.Container })
		if i < 0 {
			out = append(out, hold{f.Container, f.GPUs, f.TimeMS, f.TimeMS})
			continue
		}
		out[i].from, out[i].to = min(out[i].from, f.TimeMS), max(out[i].to, f.TimeMS)
	}
	return out
}

// doubled finds two containers that had the same device at the same time.
func doubled(all []hold) error {
	for i, a := range all {
		for _, b := range all[:i] {
			shared := slices.ContainsFunc(a.gpus, func(gpu string) bool { return slices.Contains(b.gpus, gpu) })
			if shared && a.from < b.to && b.from < a.to {
				return fmt.Errorf("GPUs %v and %v were in %s and %s at once", a.gpus, b.gpus, a.container, b.container)
			}
		}
	}
	return nil
}

// verifyGrants checks that no GPU was ever in two containers, by what the processes in them have noted: the resource
// manager's ledger is made such that it shows none. And what they had was granted to them.
func (d *Demo) verifyGrants(ctx context.Context, facts []fact, found *findings) error {
	grants, err := d.client.Jobs().Grants(ctx)
	if err != nil {
		return err
	}
	all := holds(facts)
	if len(all) < executors {
		return fmt.Errorf("%d executors have noted their GPUs, the search used %d", len(all), executors)
	}
	if err := doubled(all); err != nil {
		return err
	}
	for _, h := range all {
		for _, gpu := range h.gpus {
			if !slices.ContainsFunc(grants, func(g client.Grant) bool { return g.Container == h.container && slices.Contains(g.GPUs, gpu) }) {
				return fmt.Errorf("%s used GPU %s, which was not granted to it", h.container, gpu)
			}
		}
	}
	found.grants = len(grants)
	return nil
}
