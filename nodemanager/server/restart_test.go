package server

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gohops/hops/nodemanager/gpu/fake"
	"github.com/gohops/hops/nodemanager/supervisor"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

func TestContainersOutliveTheNodeManagerAndAreAdopted(t *testing.T) {
	m, files, work := newManager(t, ""), newMemoryFS(), t.TempDir()
	config := func() Config {
		c := baseConfig(t, work, m.address)
		c.FS = func(string) (Filesystem, error) { return files, nil }
		c.NodeID = os.Getenv(nodeVariable)
		return c
	}
	n := run(t, config())
	long := spec(t, 2, "sh", "-c", "echo begin; while [ ! -e go ]; do sleep 0.02; done; echo end; exit 5")
	long.LogDir = "/logs"
	short := spec(t, 3, "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 6")
	m.start(long)
	m.start(short)
	m.untilState(long.ContainerId, rmpb.ContainerStatus_RUNNING)
	m.untilState(short.ContainerId, rmpb.ContainerStatus_RUNNING)
	eventually(t, "first line shipped", func() bool { return files.get("/logs/"+long.ContainerId+"/stdout") == "begin\n" })
	incarnation, sequence := m.report().Incarnation, m.report().Sequence
	n.close(false)
	release := func(n int) {
		if err := os.WriteFile(filepath.Join(work, "containers", containerName(n), "work", "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	release(3) // ends while nobody watches
	eventually(t, "short ends", func() bool {
		e, _ := supervisor.ReadExit(filepath.Join(work, "containers", short.ContainerId))
		return e != nil
	})
	m.forget()
	run(t, config())
	if got := m.untilState(short.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != 6 {
		t.Errorf("the exit status was lost: %v", got)
	}
	m.untilState(long.ContainerId, rmpb.ContainerStatus_RUNNING)
	if r := m.report(); r.Incarnation != incarnation || r.Sequence <= sequence {
		t.Errorf("incarnation %s then %s, sequence %d then %d", incarnation, r.Incarnation, sequence, r.Sequence)
	}
	release(2)
	if got := m.untilState(long.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != 5 {
		t.Errorf("%v", got)
	}
	eventually(t, "log goes on where it was", func() bool { return files.get("/logs/"+long.ContainerId+"/stdout") == "begin\nend\n" })
}

// nodeManagerMain is a node manager in a process of its own: work directory, resource manager.
func nodeManagerMain(args []string) int {
	t := &processTest{}
	c := baseConfig(t, args[0], args[1])
	c.NodeID = os.Getenv(nodeVariable)
	c.GPUs = fake.Simulate(4, "x")
	c.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := New(c)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := s.Run(context.Background()); err != nil {
		return 1
	}
	return 0
}

// processTest stands in for a testing.TB where there is no test.
type processTest struct{ testing.TB }

func (*processTest) Helper() {}

func (*processTest) Fatal(args ...any) { fmt.Fprintln(os.Stderr, args...); os.Exit(1) }

func TestKilledNodeManagerThatComesBackKeepsItsContainers(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	t.Cleanup(func() { supervisorsEnd(t, work) })
	start := func() *exec.Cmd {
		cmd := exec.Command(self(t), "nodemanager", work, m.address)
		cmd.Stderr = testWriter{t}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	nm := start()
	s := spec(t, 2, "sh", "-c", `echo $$ > main.pid; "$SELF" orphan; while :; do sleep 0.02; done`)
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	main, orphan := pidIn(t, work, 2, "main.pid"), pidIn(t, work, 2, "orphan.pid")
	nm.Process.Kill()
	nm.Wait()
	m.forget()
	start()
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	if !lives(main) || !lives(orphan) {
		t.Fatal("the container did not survive")
	}
	m.order(&rmpb.NodeOrders{Stop: []*rmpb.Stop{{ContainerId: s.ContainerId, ExitStatus: -105, Reason: "enough"}}})
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -105 {
		t.Errorf("%v", got)
	}
	if lives(main) || lives(orphan) {
		t.Error("processes outlive the stop")
	}
}

func TestKilledSupervisorIsNoticedAndItsTreeEnded(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	run(t, baseConfig(t, work, m.address))
	s := spec(t, 2, "sh", "-c", `"$SELF" orphan; sleep 100`)
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	orphan := pidIn(t, work, 2, "orphan.pid")
	st, err := supervisor.NewClient(filepath.Join(work, "containers", s.ContainerId)).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	syscall.Kill(st.Supervisor, syscall.SIGKILL)
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -100 || !strings.Contains(got.Diagnostics, "supervisor was killed") {
		t.Errorf("%v", got)
	}
	if lives(orphan) {
		t.Error("the orphan outlives its container")
	}
}

func TestWorkDirectoryIsLocked(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	run(t, baseConfig(t, work, m.address))
	if _, err := New(baseConfig(t, work, m.address)); err == nil || !strings.Contains(err.Error(), "in use by another node manager") {
		t.Errorf("got %v", err)
	}
	_, err := New(Config{})
	for _, want := range []string{"no work directory", "no HTTP listener", "no command that starts", "no door"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

func TestDamagedRecordEndsItsContainer(t *testing.T) {
	m, work := newManager(t, ""), t.TempDir()
	n := run(t, baseConfig(t, work, m.address))
	s := spec(t, 2, "sh", "-c", "echo $$ > main.pid; exec sleep 100")
	m.start(s)
	m.untilState(s.ContainerId, rmpb.ContainerStatus_RUNNING)
	main := pidIn(t, work, 2, "main.pid")
	n.close(false)
	if err := os.WriteFile(filepath.Join(work, "containers", s.ContainerId, "record.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.forget()
	run(t, baseConfig(t, work, m.address))
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != -100 || !strings.Contains(got.Diagnostics, "damaged") {
		t.Errorf("%v", got)
	}
	if lives(main) {
		t.Error("still alive")
	}
}
