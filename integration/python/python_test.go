// Package python tests experiments as people write them: Python scripts that import the package of client/python and
// search on a running cluster.
package python

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/integration/cluster"
	"github.com/gohops/hops/integration/process"
	"github.com/gohops/hops/training/protocol"
	"github.com/gohops/hops/training/tensorboard"
)

func TestMain(m *testing.M) { process.Main(m) }

// start makes a cluster for scripts.
func start(t *testing.T) *cluster.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("trials are processes")
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	return cluster.Start(t, cluster.Config{NodeManager: true, Executable: process.Binary(t)})
}

// command runs a script of testdata as a user of the cluster would.
func command(t *testing.T, k *cluster.Cluster, script string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	path, err := filepath.Abs("../../client/python")
	if err != nil {
		t.Fatal(err)
	}
	// A script of many searches may take as long as the test on a machine that is busy.
	ctx := t.Context()
	if end, ok := t.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-30*time.Second))
		t.Cleanup(cancel)
	}
	cmd := exec.CommandContext(ctx, "python3", append([]string{filepath.Join("testdata", script)}, args...)...)
	cmd.Env = process.Environ(t, k.Conf(), "PYTHONPATH="+path, "PYTHONDONTWRITEBYTECODE=1")
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

func TestSearchesFromAScript(t *testing.T) {
	t.Parallel()
	k := start(t)
	cmd, out := command(t, k, "searches.py")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// Event files that the trials wrote can be read by others.
	_, line, _ := strings.Cut(out.String(), "EVENTS ")
	line, _, _ = strings.Cut(line, "\n")
	var files []string
	if err := json.Unmarshal([]byte(line), &files); err != nil {
		t.Fatal(err)
	}
	tags := map[string]int{}
	for _, name := range files {
		data, err := k.Client("").FS().ReadFile(process.Context(t), name)
		if err != nil {
			t.Fatal(err)
		}
		for r := tensorboard.NewReader(bytes.NewReader(data)); ; {
			e, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, s := range e.Scalars {
				tags[s.Tag]++
			}
		}
	}
	if tags["metric"] != 3 || tags["mine"] != 3 {
		t.Errorf("the event files have %v, want three steps each of metric and mine", tags)
	}
}

func TestFunctionsThatGoWrongEndWithOneClearError(t *testing.T) {
	t.Parallel()
	k := start(t)
	cmd, out := command(t, k, "failures.py")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log(out)
	noneRuns(t, k)
}

// noneRuns waits until no job runs and no process of one is left.
func noneRuns(t *testing.T, k *cluster.Cluster) {
	t.Helper()
	c := k.Client("")
	process.Eventually(t, "the end of all jobs", func() error {
		jobs, err := c.Jobs().List(process.Context(t))
		for _, j := range jobs {
			if !j.Ended() {
				err = fmt.Errorf("%s is %s", j.ID, j.State)
			}
		}
		return err
	})
}

// Executors import the script to find its function; its search must not begin again there.
func TestAScriptWithoutAGuardSubmitsOnce(t *testing.T) {
	t.Parallel()
	k := start(t)
	cmd, out := command(t, k, "deck.py")
	err := cmd.Run()
	if err != nil || !strings.Contains(out.String(), "BEST [('dropout', 5), ('learning_rate', 2)] 10") {
		t.Errorf("%v\n%s", err, out)
	}
	jobs, err := k.Client("").Jobs().List(process.Context(t))
	if err != nil || len(jobs) != 1 {
		t.Errorf("%d applications for one search, %v", len(jobs), err)
	}
	noneRuns(t, k)
}

func TestInterruptedStoppedResumed(t *testing.T) {
	t.Parallel()
	k := start(t)
	cmd, out := command(t, k, "resumed.py")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(out.String(), "the search goes on; to end it: hops experiment stop application_") {
		t.Errorf("Ctrl-C does not say how to end the search:\n%s", out)
	}
	list, err := k.Client("").Experiments().List(process.Context(t), "")
	if err != nil || len(list) != 1 || list[0].State != protocol.ExperimentFinished || list[0].Started == 0 || list[0].Finished < list[0].Started || list[0].Best == nil || list[0].Best.Epochs == 0 {
		t.Errorf("%+v, %v", list, err)
	}
	noneRuns(t, k)
}

// An experiment whose controller is killed until its attempts are spent has left no result; it must not look as if it ran.
func TestAnExperimentWhoseControllerIsKilledForGoodHasFailed(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("processes")
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	dev := process.StartDev(t, process.Dir(t))
	id := strings.TrimSpace(dev.Hops().OK("experiment", "run", "--detach", "-f", writeStudy(t, "import time\ndef train():\n    time.sleep(600)\n")))
	c := dev.Client()
	began := func() error {
		s, err := c.Experiments().Status(process.Context(t), id)
		if err == nil && (s.State != protocol.ExperimentRunning || len(s.Trials) != 1) {
			err = fmt.Errorf("%s with %d trials", s.State, len(s.Trials))
		}
		return err
	}
	// A controller killed before that has left nothing to show.
	process.Eventually(t, "a trial", began)
	process.Eventually(t, "the end of the job", func() error {
		for _, pid := range processes.Find(dev.Data+"/", " controller") {
			if began() == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		j, err := c.Jobs().Get(process.Context(t), id)
		if err == nil && !j.Ended() {
			err = fmt.Errorf("%s is %s", id, j.State)
		}
		return err
	})
	s, err := c.Experiments().Status(process.Context(t), id)
	if err != nil || s.State != protocol.ExperimentFailed || !strings.Contains(s.Reason, "SIGKILL") || s.Name != "study" {
		t.Errorf("%+v, %v", s, err)
	}
	if len(s.Trials) != 1 { // from the journal: there is no result
		t.Errorf("the experiment's one trial is not shown: %+v", s.Trials)
	}
	list, err := c.Experiments().List(process.Context(t), "")
	if err != nil || len(list) != 1 || list[0].State != protocol.ExperimentFailed {
		t.Errorf("%+v, %v", list, err)
	}
	dev.Stop(syscall.SIGTERM)
}

// writeStudy writes a study of one trial, and its program.
func writeStudy(t *testing.T, program string) string {
	t.Helper()
	study := filepath.Join(t.TempDir(), "study.yaml")
	for name, text := range map[string]string{
		study: "name: study\nproject: p\nentry: train.py:train\nmetric: m\noptimizer: {type: none}\nresources: {memory: 128MiB, vcores: 1}\n",
		filepath.Join(filepath.Dir(study), "train.py"): program,
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return study
}

// Without Python an experiment cannot run; that is said where the experiment is waited for.
func TestAnExperimentOnANodeWithoutPython(t *testing.T) {
	if testing.Short() {
		t.Skip("a process")
	}
	bin := t.TempDir()
	for _, name := range []string{"sh", "sleep"} { // a machine has some programs
		if path, err := exec.LookPath(name); err == nil {
			_ = os.Symlink(path, filepath.Join(bin, name))
		}
	}
	t.Setenv("PATH", bin+":"+filepath.Join(filepath.Dir(process.Binary(t))))
	dev := process.StartDev(t, process.Dir(t))
	h := dev.Hops()
	h.Timeout = 2 * process.Patience // each attempt of the controller is a process
	r := h.Run("experiment", "run", "-f", writeStudy(t, "def train():\n    return {'m': 1}\n"))
	if r.Status != 1 || !strings.Contains(r.Stderr, "python3") {
		t.Errorf("status %d\n%s%s", r.Status, r.Stdout, r.Stderr)
	}
	t.Run("and the demo", func(t *testing.T) {
		process.Hops{T: t}.Fails(1, []string{"python3 is not installed", "install Python 3.9 or newer"}, "demo")
	})
	dev.Stop(syscall.SIGTERM)
}
