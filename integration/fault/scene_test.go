package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/integration/process"
)

// scene is a cluster under load.
type scene struct {
	*row
	k       *process.Cluster
	fs      *dfs.Client
	history *process.History
}

// properties of a cluster for faults: small blocks, so that files have several.
func properties(replication string) map[string]string {
	return map[string]string{"dfs.replication": replication, "dfs.blocksize": "1MiB"}
}

// start runs a cluster, and users that write, rename and delete.
func (r *row) start(c processes.Config) *scene {
	r.t.Helper()
	s := &scene{row: r, k: process.Start(r.t, c)}
	s.loaded()
	return s
}

func (s *scene) loaded() {
	s.t.Helper()
	s.fs = process.Dial(s.t, s.k.Conf(), "").FS()
	const dir = "/fault/users"
	if err := s.fs.Mkdirs(process.Context(s.t), dir, 0o755, true); err != nil {
		s.t.Fatal(err)
	}
	s.history = process.NewHistory(s.t, dir)
	s.history.Keep = s.keep
	s.history.Start(s.load)
	s.t.Cleanup(s.history.End)
}

// load is what users do until ctx is done.
func (s *scene) load(ctx context.Context) { s.history.Calls(ctx, 8, s.fs) }

// warm waits until there was load, and notes whether it was enough.
func (s *scene) warm() {
	s.t.Helper()
	const operations = 60
	took := s.history.More(operations)
	s.busy++
	if float64(operations)/took.Seconds() >= leastLoad {
		s.calm++
	}
}

// settled ends the load and compares: everything acknowledged is there and nothing else, no member has another state, and no block is
// missing.
func (s *scene) settled() {
	s.t.Helper()
	s.history.More(20)
	s.history.End()
	for _, n := range s.k.File().Namenodes {
		s.k.AwaitMember(s.fs, n.IPC)
	}
	s.history.Verify(s.fs)
	s.healthy(process.Patience)
	s.same()
	acknowledged, failed := s.history.Counts()
	s.note("%d operations acknowledged, %d not", acknowledged, failed)
}

// same fails if the log of a namenode says that states differ.
func (s *scene) same() {
	s.t.Helper()
	for _, n := range s.k.File().Namenodes {
		text, err := os.ReadFile(s.k.Log(n.ID))
		if err != nil {
			s.t.Error(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "state of the members differs") || strings.Contains(line, "not that of the others") || strings.Contains(line, "panic:") {
				s.t.Errorf("%s says: %s", n.ID, line)
			}
		}
	}
}

// healthy waits until all blocks have all their replicas and returns how long it took.
func (s *scene) healthy(patience time.Duration) time.Duration {
	s.t.Helper()
	return s.healthyBelow("/fault", patience)
}

// healthyBelow is healthy of the files below a directory.
func (s *scene) healthyBelow(dir string, patience time.Duration) time.Duration {
	s.t.Helper()
	began := time.Now()
	h := s.k.Hops()
	if err := s.k.Cluster.Await(patience, "enough replicas of all blocks", func() error {
		r := h.Run("fsck", dir)
		if r.Status != 0 || !strings.Contains(r.Stdout, "is HEALTHY") {
			return fmt.Errorf("status %d: %s", r.Status, last(r.Stdout, 25))
		}
		for line := range strings.Lines(r.Stdout) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch strings.TrimSpace(name) {
			case "Under-replicated blocks", "Mis-replicated blocks", "Missing blocks", "Corrupt blocks", "Under-erasure-coded block groups", "Missing block groups", "Corrupt block groups",
				"Missing internal blocks":
				if value = strings.TrimSpace(value); value != "0" && !strings.HasPrefix(value, "0 ") {
					return errors.New(strings.TrimSpace(line))
				}
			}
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	return time.Since(began)
}

func last(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// worst keeps the longest of some times.
type worst []time.Duration

func (w *worst) add(d time.Duration) { *w = append(*w, d) }

func (w worst) String() string {
	if len(w) == 0 {
		return "-"
	}
	all := slices.Clone(w)
	slices.Sort(all)
	return fmt.Sprintf("median %.2f s, longest of %d %.2f s", all[len(all)/2].Seconds(), len(all), all[len(all)-1].Seconds())
}

// disturb runs strace on a process, with rules for its system calls, until the returned function is called.
func (r *row) disturb(pid int, rules ...string) (end func()) {
	r.t.Helper()
	tool, err := exec.LookPath("strace")
	if err != nil {
		r.skip("strace is not installed")
	}
	args := []string{"-f", "-q", "-o", filepath.Join(r.t.TempDir(), "calls"), "-p", fmt.Sprint(pid)}
	for _, rule := range rules {
		args = append(args, "-e", rule)
	}
	cmd := exec.Command(tool, args...)
	said := new(strings.Builder)
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err == nil { // so has the process
			return func() {}
		}
		r.skip(fmt.Sprintf("strace cannot look at processes here: %v %s", err, strings.TrimSpace(said.String())))
	case <-time.After(time.Second):
	}
	stopped := false
	end = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Signal(os.Interrupt)
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				_ = cmd.Process.Kill()
				<-ended
			}
		}
	}
	r.t.Cleanup(end)
	return end
}

// timeout is a context of so long.
func timeout(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
