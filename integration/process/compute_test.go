package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
)

// One cluster with two simulated GPUs on one node goes through all of this.
func TestContainersOutliveTheServersThatManageThem(t *testing.T) {
	if testing.Short() {
		t.Skip("four processes")
	}
	k := Start(t, processes.Config{
		Namenodes: 1, Datanodes: 1, NodeManagers: 1, GPUs: 2,
		Properties: map[string]string{"dfs.replication": "1"}, Adjust: patient,
	})
	c := Dial(t, k.Conf(), "")
	for _, fault := range []struct {
		name string
		run  func(*testing.T, *Cluster, *client.Client)
	}{
		{"two gangs that each need all GPUs", twoGangs},
		{"the resource manager killed", resourceManagerKilled},
		{"the node manager killed", nodeManagerKilled},
		{"both killed at once", bothManagersKilled},
	} {
		if !t.Run(fault.name, func(t *testing.T) { fault.run(t, &Cluster{k.Cluster, t}, c) }) {
			break
		}
	}
}

// patient has resource managers lose no node by themselves because the machine is slow.
func patient(_ string, f *config.File) {
	if f.ResourceManager != nil {
		f.ResourceManager.Lease = time.Minute
	}
}

// worker is a job whose one container writes its process id to a file, notes again and again that it lives, and runs until
// another file is there, whose text is its exit status.
type worker struct {
	t       *testing.T
	c       *client.Client
	id, dir string
}

// hold is one process of a container as it has noted itself: its devices, and from when to when it was there, in nanoseconds.
type hold struct {
	job, pid string
	gpus     []string
	from, to int64
}

func (w *worker) holds() []hold {
	var all []hold
	text, _ := os.ReadFile(filepath.Join(w.dir, "held"))
	for line := range strings.Lines(string(text)) {
		pid, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		at, gpus, complete := strings.Cut(rest, " ")
		n, err := strconv.ParseInt(at, 10, 64)
		if !complete || err != nil {
			continue // cut short when it was killed
		}
		i := slices.IndexFunc(all, func(h hold) bool { return h.pid == pid })
		if i < 0 {
			i = len(all)
			all = append(all, hold{job: w.id, pid: pid, from: n})
			if gpus != "" {
				all[i].gpus = strings.Split(gpus, ",")
			}
		}
		all[i].to = n
	}
	return all
}

// noDeviceTwice checks, by what the processes have noted, that none had another's device while that one lived. The resource
// manager's ledger would not show it: it is made such that its lines are disjoint.
func noDeviceTwice(t *testing.T, workers ...*worker) {
	t.Helper()
	var all []hold
	for _, w := range workers {
		own := w.holds()
		if len(own) < len(w.pids()) {
			t.Errorf("%d processes of %s, %d have noted something", len(w.pids()), w.id, len(own))
		}
		all = append(all, own...)
	}
	for i, a := range all {
		for _, b := range all[:i] {
			shared := slices.ContainsFunc(a.gpus, func(gpu string) bool { return slices.Contains(b.gpus, gpu) })
			if shared && a.from < b.to && b.from < a.to {
				t.Errorf("process %s of %s with %v and %s of %s with %v ran at the same time", a.pid, a.job, a.gpus, b.pid, b.job, b.gpus)
			}
		}
	}
}

func submitWorker(t *testing.T, c *client.Client, gpus int) *worker {
	t.Helper()
	return submitWorkerAs(t, c, client.Job{Resources: client.JobResources{GPUs: gpus}})
}

// submitWorkerAs completes a job that says what is special about it.
func submitWorkerAs(t *testing.T, c *client.Client, j client.Job) *worker {
	t.Helper()
	w := &worker{t: t, c: c, dir: t.TempDir()}
	script := fmt.Sprintf(`cd %s; echo "$CUDA_VISIBLE_DEVICES" > gpus
note() { echo "$$ $(date +%%s%%N) $CUDA_VISIBLE_DEVICES" >> held; }
note; echo $$ >> pids; while [ ! -e end ]; do note; sleep 0.05; done; exit $(cat end)`, w.dir)
	j.Name, j.Argv = "worker", []string{"sh", "-c", script}
	j.Resources.Memory, j.Resources.VCores = "64MiB", 1
	var err error
	if w.id, err = c.Jobs().Submit(Context(t), j, ""); err != nil {
		t.Fatal(err)
	}
	return w
}

func startWorker(t *testing.T, c *client.Client, gpus int) *worker {
	t.Helper()
	w := submitWorker(t, c, gpus)
	w.started()
	return w
}

// started waits until its first process is there.
func (w *worker) started() {
	w.t.Helper()
	Eventually(w.t, "the container's process", func() error {
		if len(w.pids()) == 0 {
			s, err := w.c.Jobs().Get(Context(w.t), w.id)
			return fmt.Errorf("job %s %s %v", s.State, s.Diagnostics, err)
		}
		return nil
	})
}

// pids are the processes that its container has had.
func (w *worker) pids() []string {
	text, _ := os.ReadFile(filepath.Join(w.dir, "pids"))
	return strings.Fields(string(text))
}

// alive fails the test unless the one process that the container ever had runs.
func (w *worker) alive() {
	w.t.Helper()
	pids := w.pids()
	if len(pids) != 1 {
		w.t.Fatalf("the container was started %d times", len(pids))
	}
	pid, err := strconv.Atoi(pids[0])
	if err == nil {
		err = syscall.Kill(pid, 0)
	}
	if err != nil {
		w.t.Fatalf("process %s: %v", pids[0], err)
	}
}

// gone waits until the last process that it had is no more.
func (w *worker) gone() {
	w.t.Helper()
	pids := w.pids()
	pid, err := strconv.Atoi(pids[len(pids)-1])
	if err != nil {
		w.t.Fatal(err)
	}
	Eventually(w.t, "the end of the container's process", func() error {
		if syscall.Kill(pid, 0) == nil {
			return errors.New("it runs")
		}
		return nil
	})
}

// finish lets it end with a status and waits until its job has ended.
func (w *worker) finish(status string) client.JobStatus {
	w.t.Helper()
	w.exit(status)
	return w.wait()
}

func (w *worker) exit(status string) {
	w.t.Helper()
	writeFile(w.t, filepath.Join(w.dir, "end.tmp"), status)
	if err := os.Rename(filepath.Join(w.dir, "end.tmp"), filepath.Join(w.dir, "end")); err != nil {
		w.t.Fatal(err)
	}
}

func (w *worker) wait() client.JobStatus {
	w.t.Helper()
	var s client.JobStatus
	Eventually(w.t, "the end of "+w.id, func() (err error) {
		if s, err = w.c.Jobs().Get(Context(w.t), w.id); err == nil && !s.Ended() {
			err = fmt.Errorf("%s", s.State)
		}
		return err
	})
	return s
}

// managed waits until the resource manager answers and has its node.
func (k *Cluster) managed(c *client.Client) {
	k.T.Helper()
	k.Await("a node of the resource manager", func() error {
		nodes, err := c.Jobs().Nodes(Context(k.T))
		if err == nil && len(nodes) != 1 {
			err = errors.New("none")
		}
		return err
	})
}

// Each job's instances wait for each other, so that a job that has one GPU of the two never ends.
func twoGangs(t *testing.T, _ *Cluster, c *client.Client) {
	var ids []string
	for range 2 {
		script := fmt.Sprintf(`cd %s; touch $HOPS_INSTANCE; while [ ! -e 0 ] || [ ! -e 1 ]; do sleep 0.05; done`, t.TempDir())
		id, err := c.Jobs().Submit(Context(t), client.Job{
			Name: "gang", Argv: []string{"sh", "-c", script}, Instances: 2, Gang: client.Gang{All: true}, Resources: client.JobResources{Memory: "64MiB", GPUs: 1},
		}, "")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	for _, id := range ids {
		if s := (&worker{t: t, c: c, id: id}).wait(); !s.Succeeded() {
			t.Errorf("%s: %s %s", id, s.State, s.Diagnostics)
		}
	}
}

func resourceManagerKilled(t *testing.T, k *Cluster, c *client.Client) {
	one := startWorker(t, c, 1)
	waits := submitWorker(t, c, 2) // both GPUs: it must wait for the one that is taken
	k.must(k.Kill("rm1"))
	one.alive()
	k.must(k.Start("rm1"))
	k.managed(c)
	one.alive()
	three := startWorker(t, c, 1) // the free GPU still is given out
	if a, b := one.gpus(), three.gpus(); a == b || a == "" || b == "" {
		t.Errorf("GPU %q is in one container, %q in another", a, b)
	}
	if n := len(waits.pids()); n != 0 {
		t.Errorf("a job of two GPUs runs beside one that has one of the two")
	}
	noDeviceTwice(t, one, three)
	for _, w := range []*worker{one, three} {
		if s := w.finish("0"); !s.Succeeded() {
			t.Errorf("%s: %s %s: %s", w.id, s.State, s.FinalStatus, s.Diagnostics)
		}
	}
	Eventually(t, "the job of two GPUs", func() error {
		if len(waits.pids()) == 0 {
			return errors.New("it does not run")
		}
		return nil
	})
	if s := waits.finish("0"); !s.Succeeded() {
		t.Errorf("%s: %s", waits.id, s.Diagnostics)
	}
	noDeviceTwice(t, one, three, waits)
}

func (w *worker) gpus() string {
	text, _ := os.ReadFile(filepath.Join(w.dir, "gpus"))
	return strings.TrimSpace(string(text))
}

func nodeManagerKilled(t *testing.T, k *Cluster, c *client.Client) {
	stays, ends := startWorker(t, c, 1), startWorker(t, c, 1)
	k.must(k.Kill("nm1"))
	ends.exit("7") // while nobody looks
	ends.gone()
	stays.alive()
	k.must(k.Start("nm1"))
	if s := ends.wait(); s.Succeeded() || !strings.Contains(s.Diagnostics, "7") {
		t.Errorf("a container ended with status 7 while its node manager was down; the job: %s %s %q", s.State, s.FinalStatus, s.Diagnostics)
	}
	stays.alive()
	noDeviceTwice(t, stays, ends)
	if s := stays.finish("0"); !s.Succeeded() {
		t.Errorf("%s: %s %s: %s", stays.id, s.State, s.FinalStatus, s.Diagnostics)
	}
}

func bothManagersKilled(t *testing.T, k *Cluster, c *client.Client) {
	w := startWorker(t, c, 2)
	k.must(k.Kill("rm1", "nm1"))
	w.alive()
	k.must(k.Start("rm1"))
	k.must(k.Start("nm1"))
	k.managed(c)
	w.alive()
	if s := w.finish("0"); !s.Succeeded() {
		t.Errorf("%s: %s %s: %s", w.id, s.State, s.FinalStatus, s.Diagnostics)
	}
}
