package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// A search of trials as short as can be on one executor: what is left between them is the platform's. Clocks are those of the
// machine, which all processes share.
const (
	measuredTrials = 200
	trialStudy     = `name: gaps
project: bench
entry: trial.py:train
metric: value
optimizer: {type: random}
space: {x: {type: DOUBLE, range: [0, 1]}}
trials: %d
executors: 1
resources: {memory: 256MiB, vcores: 1}
arguments: {times: %q}
`
	trialProgram = `import time

def train(x, times, reporter):
    began = time.clock_gettime(time.CLOCK_MONOTONIC)
    print("trial with", x)
    for step in range(1, 4):
        reporter.broadcast(x * step, step)
    with open(times, "a") as f:
        f.write("%.6f %.6f\n" % (began, time.clock_gettime(time.CLOCK_MONOTONIC)))
    return x
`
)

// trials measures the gap between two trials of an executor: from the last line of one function to the first of the next.
func (r *runner) trials(ctx context.Context) error {
	if _, err := exec.LookPath("python3"); err != nil {
		r.say("the gap between trials is left out: python3 is not installed")
		return nil
	}
	dir := filepath.Join(r.dir, "trials")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	times, study := filepath.Join(dir, "times"), filepath.Join(dir, "study.yaml")
	for name, text := range map[string]string{study: fmt.Sprintf(trialStudy, measuredTrials, times), filepath.Join(dir, "trial.py"): trialProgram} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	data := filepath.Join(dir, "data")
	d, err := r.startDev(ctx, data)
	if err != nil {
		return err
	}
	defer d.stop()
	if out, err := exec.CommandContext(ctx, r.hops, "experiment", "run", "--conf", filepath.Join(data, "conf"), study).CombinedOutput(); err != nil {
		return fmt.Errorf("experiment run: %w: %s", err, lastLine(out))
	}
	written, err := os.ReadFile(times)
	if err != nil {
		return err
	}
	gaps, err := gapsOf(written)
	if err != nil {
		return fmt.Errorf("times of trials: %w", err)
	}
	if len(gaps) != measuredTrials-1 {
		return fmt.Errorf("there are %d gaps between %d trials", len(gaps), measuredTrials)
	}
	slices.Sort(gaps)
	s := spreadOf(gaps)
	r.keep("gap between two trials of an executor, 95th percentile", "ms", []float64{gaps[len(gaps)*95/100]}, 50, false,
		fmt.Sprintf("median %s ms, longest %s ms", number(s.median), number(s.high)))
	r.report.Promises[len(r.report.Promises)-1].N = len(gaps)
	return nil
}

// gapsOf reads lines of a beginning and an end in seconds, in their order; the gaps between are in milliseconds.
func gapsOf(lines []byte) (gaps []float64, err error) {
	last := 0.0
	for line := range bytes.Lines(lines) {
		var began, ended float64
		if n, _ := fmt.Sscan(string(line), &began, &ended); n != 2 || began < last || ended < began {
			return nil, fmt.Errorf("%q follows an end at %f", line, last)
		}
		if last > 0 {
			gaps = append(gaps, 1000*(began-last))
		}
		last = ended
	}
	return gaps, nil
}
