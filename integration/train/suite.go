package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/config"
)

// The cluster: each server a process of its own.
const (
	datanodes    = 3
	nodeManagers = 3
	nodeMemory   = 24 << 30 // claimed: what fits is up to those who run this
	gpusPerNode  = 4        // simulated
)

// patience is how long one case may take where it says nothing else; the machine may be slow.
const patience = 12 * time.Minute

// suite is a run.
type suite struct {
	kit     *kit
	binary  string
	dir     string
	cluster *processes.Cluster
	rows    []row
	noted   string // of the case that runs
}

// note is something for the table.
func (s *suite) note(format string, args ...any) { s.noted = fmt.Sprintf(format, args...) }

type row struct {
	name string
	took time.Duration
	said string // what the case has measured
	err  error
	// skipped: it was not run.
	skipped bool
}

// start brings the cluster up.
func (s *suite) start(ctx context.Context, binary string) (err error) {
	s.binary = binary
	say("starting a cluster")
	s.cluster, err = processes.New(processes.Config{
		Binary: binary, Dir: s.dir, Name: "train", Namenodes: 1, Datanodes: datanodes, NodeManagers: nodeManagers, GPUs: gpusPerNode,
		Properties: map[string]string{"dfs.replication": "2", "dfs.blocksize": "32m"},
		Adjust: func(_ string, f *config.File) {
			if m := f.NodeManager; m != nil {
				m.Memory, m.VCores = nodeMemory, 16
			}
		},
	})
	if err != nil {
		return err
	}
	if err := s.cluster.StartAll(); err != nil {
		s.stop()
		return err
	}
	if err := s.nodesRun(ctx); err != nil {
		s.stop()
		return err
	}
	return nil
}

// nodesRun waits until all node managers do.
func (s *suite) nodesRun(ctx context.Context) error {
	return s.cluster.Await(2*time.Minute, "the node managers are there", func() error {
		out, err := s.hops(ctx, "node", "-list")
		if n := strings.Count(out, "RUNNING"); err == nil && n < nodeManagers {
			err = fmt.Errorf("%d of %d run", n, nodeManagers)
		}
		return err
	})
}

// stop ends the servers, and what runs on them.
func (s *suite) stop() {
	if err := s.cluster.Stop(); err != nil {
		say("stopping the cluster: %v", err)
	}
	for _, pid := range s.cluster.Leftovers() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func (s *suite) environ() []string {
	sdk, err := filepath.Abs("client/python")
	if err != nil {
		sdk = "client/python"
	}
	return append(os.Environ(), "HADOOP_CONF_DIR="+s.cluster.Conf(), "PYTHONPATH="+sdk, "PYTHONDONTWRITEBYTECODE=1", "HOPS_PYTHON="+s.kit.python,
		"TF_CPP_MIN_LOG_LEVEL=3", "CUDA_VISIBLE_DEVICES=", "OMP_NUM_THREADS=1", "PATH="+filepath.Dir(s.kit.python)+":"+os.Getenv("PATH"))
}

// hops runs a command of the program and returns what it printed.
func (s *suite) hops(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary, args...)
	cmd.Env = s.environ()
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("hops %s: %w: %s", strings.Join(args, " "), err, lastLines(string(out), 5))
	}
	return string(out), err
}

// run runs one case and judges it.
func (s *suite) run(ctx context.Context, c example) {
	begin := time.Now()
	said, err := s.attempt(ctx, c)
	took := time.Since(begin)
	s.rows = append(s.rows, row{name: c.name, took: took, said: said, err: err})
	verdict := "ok"
	if err != nil {
		verdict = "FAILED: " + err.Error()
	}
	say("%s (%.0f s): %s", c.name, took.Seconds(), verdict)
}

// attempt runs the script of a case to its end, with whatever disturbs it.
func (s *suite) attempt(ctx context.Context, c example) (said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.noted = ""
	for _, args := range c.prepare {
		if _, err := s.hops(ctx, args...); err != nil {
			return "", err
		}
	}
	if c.setup != nil {
		if err := c.setup(ctx, s); err != nil {
			return "", err
		}
	}
	if c.run != nil {
		err := c.run(ctx, s)
		return s.noted, err
	}
	script, elsewhere := strings.CutPrefix(c.script, "{{dir}}/")
	if elsewhere {
		script = filepath.Join(s.dir, script)
	} else {
		script = filepath.Join("examples", script)
	}
	argv := []string{s.kit.python, script}
	if strings.HasSuffix(script, ".yaml") {
		argv = []string{s.binary, "experiment", "run", script}
	}
	for _, a := range c.args {
		argv = append(argv, strings.NewReplacer("{{hops}}", s.binary, "{{conf}}", s.cluster.Conf()).Replace(a))
	}
	log := filepath.Join(s.dir, regexp.MustCompile(`\W+`).ReplaceAllString(c.name, "-")+".log")
	out, err := os.Create(log)
	if err != nil {
		return "", err
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, s.environ()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := processes.Spawn(cmd, syscall.SIGKILL); err != nil {
		return "", err
	}
	ended := make(chan struct{})
	trouble := make(chan error, 1)
	go func() {
		if c.disturb == nil {
			trouble <- nil
			return
		}
		trouble <- c.disturb(ctx, s, log, ended)
	}()
	failed := cmd.Wait()
	close(ended)
	err = <-trouble
	text, readErr := os.ReadFile(log)
	if readErr != nil {
		return "", readErr
	}
	output := string(text)
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("it has not ended within %v; %s", patience, lastLines(output, 12))
	case failed != nil:
		return "", fmt.Errorf("%w; %s", failed, lastLines(output, 15))
	case err != nil:
		return "", err
	}
	for _, want := range c.prints {
		if !regexp.MustCompile(want).MatchString(output) {
			return "", fmt.Errorf("%q is not printed; the end of what is: %s", want, lastLines(output, 12))
		}
	}
	if c.check != nil {
		err = c.check(ctx, s, output)
	}
	said = s.noted
	if m := regexp.MustCompile(`(?m)^RESULT (.*)$`).FindStringSubmatch(output); m != nil {
		said = m[1]
	}
	return said, err
}

// when waits until the log of a case matches, and gives up when the case ends.
func when(log, pattern string, ended <-chan struct{}) error {
	want := regexp.MustCompile(pattern)
	for {
		text, err := os.ReadFile(log)
		if err != nil || want.Match(text) {
			return err
		}
		select {
		case <-ended:
			return fmt.Errorf("%q was not printed before the end", pattern)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *suite) failed() (n int) {
	for _, r := range s.rows {
		if r.err != nil {
			n++
		}
	}
	return n
}

// report prints the table. It fails when some case has.
func (s *suite) report() error {
	t := table.NewWriter()
	t.SetOutputMirror(os.Stdout)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"example", "seconds", "result", ""})
	for _, r := range s.rows {
		result := "ok"
		switch {
		case r.err != nil:
			result = "FAILED"
		case r.skipped:
			result = "-"
		}
		t.AppendRow(table.Row{r.name, fmt.Sprintf("%.0f", r.took.Seconds()), result, r.said})
	}
	t.Render()
	if n := s.failed(); n > 0 || len(s.rows) == 0 || !slices.ContainsFunc(s.rows, func(r row) bool { return !r.skipped }) {
		fmt.Printf("%d of %d have failed\n", n, len(s.rows))
		return errFailures
	}
	return nil
}
