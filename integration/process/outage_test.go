package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/yaml"
)

// No resource manager is there for longer than the lease of the nodes. Who asked for fencing is ended, and runs again when
// one is back; all others do not notice. By the notes of the processes no device is ever in two.
func TestOutageLongerThanTheLease(t *testing.T) {
	if testing.Short() {
		t.Skip("four processes")
	}
	t.Parallel() // it waits most of the time
	k := Start(t, processes.Config{
		Namenodes: 1, Datanodes: 1, NodeManagers: 1, GPUs: 2,
		Properties: map[string]string{"dfs.replication": "1"},
		Adjust: func(name string, f *config.File) {
			if name == "rm1" {
				f.ResourceManager.Lease = 10 * time.Second
			}
		},
	})
	c := Dial(t, k.Conf(), "")
	one := client.JobResources{GPUs: 1}
	goesOn := submitWorkerAs(t, c, client.Job{Resources: one})
	fenced := submitWorkerAs(t, c, client.Job{Resources: one, Fencing: "strict", Retry: &client.JobRetry{Max: 20}})
	goesOn.started()
	fenced.started()
	waits := submitWorker(t, c, 1) // for what the fenced one leaves, if that were given away

	k.must(k.Kill("rm1"))
	fenced.gone()
	goesOn.alive()
	tries := len(fenced.pids())
	if n := len(waits.pids()); n != 0 {
		t.Errorf("a job without a device was started while no resource manager was there")
	}

	// A long lease from now on, so that a slow machine does not lose its node by itself.
	var f config.File
	file := filepath.Join(filepath.Dir(k.Log("rm1")), "rm1.yaml")
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(file, text, &f)
	}
	if err == nil {
		f.ResourceManager.Lease = time.Minute
		text, err = yaml.Marshal(f)
	}
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	k.must(err)
	k.must(k.Start("rm1"))
	k.managed(c)
	goesOn.alive()
	if s := goesOn.finish("0"); !s.Succeeded() {
		t.Errorf("the job without fencing: %s %s: %s", s.State, s.FinalStatus, s.Diagnostics)
	}
	Eventually(t, "another try of the fenced container", func() error {
		if len(fenced.pids()) <= tries {
			s, err := c.Jobs().Get(Context(t), fenced.id)
			return errors.Join(err, fmt.Errorf("%s %s", s.State, s.Diagnostics))
		}
		return nil
	})
	waits.started()
	for _, w := range []*worker{fenced, waits} {
		if s := w.finish("0"); !s.Succeeded() {
			t.Errorf("%s: %s %s: %s", w.id, s.State, s.FinalStatus, s.Diagnostics)
		}
	}
	noDeviceTwice(t, goesOn, fenced, waits)
}
