package python

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/code"
	"github.com/gohops/hops/integration/process"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

const endless = `
import time
from hops import checkpoint, hdfs

def train(x, reporter):
    saved = checkpoint.load()
    step = saved[0] if saved else 0
    while step < 2 or not hdfs.exists("/go"):
        step += 1
        reporter.broadcast(x * step, step)
        checkpoint.save(step, step)
        time.sleep(0.05)
    return {"m": x}
`

// The Go client asks, stops and resumes; the experiment keeps its id while another job runs it.
func TestAnExperimentIsStoppedAndResumedByTheClient(t *testing.T) {
	k := start(t)
	ctx, c := process.Context(t), k.Client("")
	x := c.Experiments()
	file := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(file, []byte(endless), 0o644); err != nil {
		t.Fatal(err)
	}
	program, err := code.Pack(file + ":train")
	if err != nil {
		t.Fatal(err)
	}
	study := client.Study{Spec: training.Spec{
		Project: "p", Metric: "m", Optimizer: training.Optimizer{Type: training.Grid}, Resources: training.Resources{Memory: 256 << 20, VCores: 1},
		Space: training.Space{{Name: "x", Type: training.Discrete, Values: []training.Value{training.Int(1), training.Int(2)}}},
	}}
	id, err := x.Submit(ctx, study, program)
	if err != nil {
		t.Fatal(err)
	}
	process.Eventually(t, "a checkpoint", func() error {
		s, err := x.Status(ctx, id)
		if err == nil && (len(s.Trials) == 0 || len(s.Trials[0].Steps) == 0) {
			err = fmt.Errorf("%s %d trials", s.State, len(s.Trials))
		}
		return err
	})
	if s, err := x.Summary(ctx, id); err != nil || s.State != protocol.ExperimentRunning || s.Planned != 2 || s.Ended != 0 || s.Best == nil {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := x.Resume(ctx, id, ""); err == nil || !strings.Contains(err.Error(), "runs") {
		t.Errorf("an experiment that runs is resumed: %v", err)
	}
	ctx = process.Context(t) // each run has its own time
	if err := x.Stop(ctx, id, "lunch"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Jobs().Wait(ctx, id, nil); err != nil {
		t.Fatal(err)
	}
	if s, err := x.Status(ctx, id); err != nil || s.State != protocol.ExperimentKilled || !strings.Contains(s.Reason, "lunch") || len(s.Trials) != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := x.Stop(ctx, id, ""); err == nil || !strings.Contains(err.Error(), "has ended already") {
		t.Errorf("stopped twice: %v", err)
	}
	if err := c.FS().WriteFile(ctx, "/go", nil, false); err != nil {
		t.Fatal(err)
	}
	ctx = process.Context(t)
	job, err := x.Resume(ctx, id, "")
	if err != nil || job == id {
		t.Fatal(job, err)
	}
	if j, err := c.Jobs().Wait(ctx, job, nil); err != nil || !j.Succeeded() {
		t.Fatalf("%+v, %v", j, err)
	}
	s, err := x.Status(ctx, id)
	if err != nil || s.State != protocol.ExperimentFinished || len(s.Trials) != 2 || s.Best == nil || s.Best.Metric != 2 || s.Trials[0].Attempt != 2 || s.Trials[0].Resumed != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if a, err := x.Application(ctx, id); err != nil || a != job {
		t.Errorf("%s runs it, want %s, %v", a, job, err)
	}
	if _, err := x.Resume(ctx, id, ""); err == nil || !strings.Contains(err.Error(), "has finished") {
		t.Errorf("a finished experiment is resumed: %v", err)
	}
	if _, err := x.Resume(ctx, "application_1_0001", ""); !errors.Is(err, metadata.ErrNotExist) {
		t.Errorf("an experiment that there is not: %v", err)
	}
	noneRuns(t, k)
}
