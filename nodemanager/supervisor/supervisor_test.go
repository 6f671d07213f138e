package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/durable"
)

// A supervisor, and the stage of a command, run beside the first thread of their process, as package early has it.
func init() {
	if len(os.Args) > 1 && os.Args[1] == "supervisor" {
		runtime.LockOSThread()
	}
}

// TestMain makes this binary the supervisor and the programs that containers run.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervisor":
			status := make(chan int)
			go func() { status <- Main(os.Args[2:]) }()
			os.Exit(<-status)
		case "call":
			call(os.Args[2:])
			os.Exit(0)
		case "kill-all":
			killAllMain()
		case "sleep":
			time.Sleep(time.Hour)
		case "orphan": // double-forks: the child lives in a session of its own, the parent goes on or ends
			cmd := exec.Command("/proc/self/exe", "sleep")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := cmd.Start(); err != nil {
				os.Exit(9)
			}
			os.WriteFile("orphan.pid", []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
			os.Exit(0)
		case "allocate":
			n, _ := strconv.Atoi(os.Args[2])
			block := make([]byte, n<<20)
			for i := 0; i < len(block); i += 4096 {
				block[i] = 1
			}
			os.WriteFile("allocated", nil, 0o600)
			time.Sleep(time.Hour)
			fmt.Print(block[0])
		}
	}
	os.Setenv("GORACE", race)
	os.Exit(m.Run())
}

// race keeps programs that are built with the race detector from sleeping a second before they exit.
const race = "atexit_sleep_ms=0"

const id = nodemanager.ContainerID("container_1700000000000_0001_01_000002")

// container is a directory in which a test runs one command.
type container struct {
	t       *testing.T
	dir     string
	launch  Launch
	secrets map[string][]byte
	client  *Client
}

func newContainer(t *testing.T, argv ...string) *container {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"work", "logs"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	work := filepath.Join(dir, "work")
	c := &container{t: t, dir: dir, client: NewClient(dir), launch: Launch{
		Container: id, Argv: argv, Env: []string{"PATH=" + os.Getenv("PATH"), Mark(work), "SELF=" + self(t), "GORACE=" + race}, Dir: work,
		Stdout: filepath.Join(dir, "logs", "stdout"), Stderr: filepath.Join(dir, "logs", "stderr"), LogDir: filepath.Join(dir, "logs"),
		Grace: 2 * time.Second, Poll: 20 * time.Millisecond,
	}}
	t.Cleanup(func() {
		c.client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = c.client.Stop(ctx, StopRequest{})
		_, _ = NewClient(dir).Wait(ctx)
		for alive, _ := Alive(dir); alive && ctx.Err() == nil; alive, _ = Alive(dir) { // it may still write the end into the directory
			time.Sleep(10 * time.Millisecond)
		}
		if err := KillStray(ctx, c.launch.Group, Mark(work)); err != nil {
			t.Error(err)
		}
	})
	return c
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func (c *container) start() Started {
	c.t.Helper()
	s, err := Start(c.t.Context(), []string{self(c.t), "supervisor"}, []string{"PATH=" + os.Getenv("PATH"), "GORACE=" + race}, c.dir, c.launch, Handed{Secrets: c.secrets})
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(c.dir, logFile))
		c.t.Fatalf("start: %v\n%s", err, log)
	}
	return s
}

// end waits for the supervisor's process to be gone and returns what it wrote down.
func (c *container) end() *Exit {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Minute)
	defer cancel()
	_, err := c.client.Wait(ctx)
	if err != nil && !errors.Is(err, ErrGone) {
		c.t.Fatal(err)
	}
	eventually(c.t, "supervisor ends", func() bool { alive, _ := Alive(c.dir); return !alive })
	e, err := ReadExit(c.dir)
	if err != nil || e == nil {
		log, _ := os.ReadFile(filepath.Join(c.dir, logFile))
		c.t.Fatalf("exit = %v, %v\n%s", e, err, log)
	}
	return e
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within two minutes: %s", what)
}

func (c *container) pidIn(file string) int {
	c.t.Helper()
	var pid int
	eventually(c.t, file+" is written", func() bool {
		text, err := os.ReadFile(filepath.Join(c.launch.Dir, file))
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return pid
}

func lives(pid int) bool {
	p, ok := readProcess(pid)
	return ok && !p.zombie
}

func TestExitStatusAndOutputAreKept(t *testing.T) {
	for _, test := range []struct {
		script      string
		status      nodemanager.ExitStatus
		diagnostics string
	}{
		{"echo hello; echo oops >&2", 0, ""},
		{"exit 7", 7, "non-zero exit code 7"},
		{"kill -9 $$", 137, "signal 9"},
		{"kill -15 $$", 143, "signal 15"},
	} {
		c := newContainer(t, "sh", "-c", test.script)
		c.start()
		e := c.end()
		if e.Status != test.status || !strings.Contains(e.Diagnostics, test.diagnostics) {
			t.Errorf("%q: got %d %q, want %d %q", test.script, e.Status, e.Diagnostics, test.status, test.diagnostics)
		}
		if test.status == 0 {
			out, _ := os.ReadFile(c.launch.Stdout)
			errs, _ := os.ReadFile(c.launch.Stderr)
			if string(out) != "hello\n" || string(errs) != "oops\n" {
				t.Errorf("stdout %q, stderr %q", out, errs)
			}
			if e.Started == 0 || e.Finished < e.Started {
				t.Errorf("times %d..%d", e.Started, e.Finished)
			}
		}
	}
}

func TestCommandThatCannotStartSaysWhy(t *testing.T) {
	c := newContainer(t, "no-such-command")
	if s := c.start(); s.Exit == nil || s.Exit.Status != nodemanager.NotFound || !strings.Contains(s.Exit.Diagnostics, "no-such-command") {
		t.Errorf("missing: %+v", s.Exit)
	}
	c.end()
	c = newContainer(t, "./script")
	if err := os.WriteFile(filepath.Join(c.launch.Dir, "script"), []byte("not a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	if s := c.start(); s.Exit == nil || s.Exit.Status != nodemanager.NotExecutable {
		t.Errorf("no program: %+v", s.Exit)
	}
	c.end()
}

func TestCommandDoesNotInheritTheSupervisor(t *testing.T) {
	c := newContainer(t, "ls", "/proc/self/fd")
	c.start()
	c.end()
	if out, _ := os.ReadFile(c.launch.Stdout); string(out) != "0\n1\n2\n3\n" { // 3 is ls's own
		t.Errorf("descriptors: %q", out)
	}
	c = newContainer(t, "sh", "-c", `grep SigIgn /proc/self/status; env`)
	c.launch.Env = append(c.launch.Env, "GIVEN=1")
	c.start()
	c.end()
	out, _ := os.ReadFile(c.launch.Stdout)
	// Signals 32 and 33 are the C library's own; posix_spawn (of make, for one) has its children ignore them.
	const internal = 1<<31 | 1<<32
	var ignored uint64
	if _, err := fmt.Sscanf(string(out), "SigIgn: %x", &ignored); err != nil || ignored&^internal != 0 {
		t.Errorf("ignored signals are inherited: %v: %s", err, out)
	}
	if !strings.Contains(string(out), "GIVEN=1") || strings.Contains(string(out), "HOME=") {
		t.Errorf("environment: %s", out)
	}
}

func TestNothingSurvivesTheCommand(t *testing.T) {
	c := newContainer(t, "sh", "-c", `"$SELF" orphan; sleep 0.1; exit 3`)
	c.start()
	orphan := c.pidIn("orphan.pid")
	if e := c.end(); e.Status != 3 {
		t.Errorf("status %d", e.Status)
	}
	if lives(orphan) {
		t.Error("a setsid child outlives its container")
	}
}

func TestStopKillsDoubleForkedChildAfterGrace(t *testing.T) {
	c := newContainer(t, "sh", "-c", `trap '' TERM; "$SELF" orphan; while :; do sleep 0.05; done`)
	c.start()
	orphan := c.pidIn("orphan.pid")
	if !lives(orphan) {
		t.Fatal("the orphan does not live")
	}
	begin := time.Now()
	if err := c.client.Stop(t.Context(), StopRequest{Status: nodemanager.Preempted, Reason: "preempted for queue b", Grace: 300 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	e := c.end()
	if took := time.Since(begin); took < 250*time.Millisecond {
		t.Errorf("the grace was not granted: ended after %v", took)
	}
	if e.Status != nodemanager.Preempted || e.Diagnostics != "preempted for queue b" || !e.Stopped {
		t.Errorf("exit %+v", e)
	}
	if lives(orphan) {
		t.Error("a setsid child outlives the stop")
	}
}

func TestStopLetsTheTreeSaveItsWork(t *testing.T) {
	c := newContainer(t, "sh", "-c", `sh -c 'trap "sleep 0.1; echo saved > saved; exit 0" TERM; echo x > up; while :; do sleep 0.02; done' & wait`)
	c.launch.Grace = time.Minute // what it takes on a busy machine
	c.start()
	eventually(t, "up", func() bool { _, err := os.Stat(filepath.Join(c.launch.Dir, "up")); return err == nil })
	if err := c.client.Stop(t.Context(), StopRequest{Grace: -1}); err != nil {
		t.Fatal(err)
	}
	if e := c.end(); e.Status != nodemanager.Terminated {
		t.Errorf("status %d, want 143", e.Status)
	}
	if _, err := os.Stat(filepath.Join(c.launch.Dir, "saved")); err != nil {
		t.Error("the child of the command had no time to save:", err)
	}
}

func TestLeaseEndsTheContainerAndRenewalKeepsIt(t *testing.T) {
	// A machine may be too busy to renew a lease in time. That is no fault of the container's, and a longer lease tells.
	for lease := 2 * time.Second; !leaseEndsAndIsRenewed(t, lease); lease *= 2 {
		if lease > time.Minute {
			t.Fatalf("no lease of %v could be renewed in time", lease)
		}
	}
}

// leaseEndsAndIsRenewed renews leases of a length for as long as one of them, and then no more. ok is false when this process
// was too slow for that.
func leaseEndsAndIsRenewed(t *testing.T, length time.Duration) (ok bool) {
	c := newContainer(t, "sh", "-c", `trap '' TERM; "$SELF" orphan; while :; do sleep 0.05; done`)
	c.start()
	orphan := c.pidIn("orphan.pid")
	lease := func() Lease {
		until := Now().Add(length)
		return Lease{Term: until, Kill: until.Add(50 * time.Millisecond)}
	}
	var held Lease
	for first := lease(); Now() < first.Kill.Add(100*time.Millisecond); time.Sleep(50 * time.Millisecond) {
		next := lease()
		st, err := c.client.Renew(t.Context(), next)
		if late := Now() >= next.Term || held.Term != 0 && Now() >= held.Term; late && (err != nil || st.Stopping) {
			return false
		}
		if err != nil || st.Stopping {
			t.Fatalf("ended although renewed: %+v, %v", st, err)
		}
		held = next
	}
	living := lives(orphan)
	st, err := c.client.Renew(t.Context(), Lease{Term: 1, Kill: 1}) // a late message
	if Now() >= held.Term {
		return false
	}
	if !living {
		t.Fatal("ended although renewed")
	}
	if err != nil || st.Stopping {
		t.Fatalf("a late renewal: %+v, %v", st, err)
	}
	e := c.end()
	if Now() < st.Lease.Term {
		t.Error("ended before its lease")
	}
	if e.Status != nodemanager.Aborted || !strings.Contains(e.Diagnostics, "lease") || e.Stopped {
		t.Errorf("exit %+v", e)
	}
	if lives(orphan) {
		t.Error("a setsid child outlives the lease")
	}
	return true
}

// A supervisor that a busy machine did not let look in time gets the next lease first.
func TestALeaseThatHasEndedIsNotRenewed(t *testing.T) {
	next := Lease{Term: Now().Add(time.Hour), Kill: Now().Add(2 * time.Hour)}
	for what, test := range map[string]struct {
		held Lease
		ends bool
	}{
		"over":  {Lease{Term: Now().Add(-time.Millisecond), Kill: Now().Add(time.Hour)}, true},
		"holds": {Lease{Term: Now().Add(time.Hour), Kill: Now().Add(time.Hour)}, false},
		"none":  {Lease{}, false},
	} {
		s := &supervisor{launch: Launch{Container: id}, log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1), lease: test.held}
		if a := s.handle(request{Op: "renew", Lease: &next}); a.Status == nil || a.Status.Stopping != test.ends {
			t.Errorf("%s: %+v", what, a)
		}
		if c := s.currentCause(); test.ends && (c == nil || c.status != nodemanager.Aborted || c.killAt != test.held.Kill) {
			t.Errorf("%s: %+v", what, c)
		}
	}
}

// A node manager that gave up on one request, or one that came after another, refreshes while that is still at it.
func TestCredentialsAreRefreshedFromTwoSides(t *testing.T) {
	s := &supervisor{launch: Launch{Container: id, CredentialsDir: t.TempDir()}}
	for range 200 {
		var both sync.WaitGroup
		for _, tokens := range []string{"one", "another"} {
			both.Go(func() {
				if a := s.handle(request{Op: "refresh", Tokens: []byte(tokens)}); a.Error != "" {
					t.Error(a.Error)
				}
			})
		}
		both.Wait()
		if got, err := os.ReadFile(filepath.Join(s.launch.CredentialsDir, TokensFile)); string(got) != "one" && string(got) != "another" {
			t.Errorf("%q, %v", got, err)
		}
	}
}

func TestLeaseThatHasEndedStartsNothing(t *testing.T) {
	c := newContainer(t, "sh", "-c", "echo ran")
	c.launch.Lease = Lease{Term: Now() - 1, Kill: Now()}
	if s := c.start(); s.Exit == nil || s.Exit.Status != nodemanager.Aborted {
		t.Errorf("%+v", s)
	}
	c.end()
	if out, _ := os.ReadFile(c.launch.Stdout); len(out) > 0 {
		t.Error("the command ran")
	}
}

func TestMemoryBeyondLimitByPolling(t *testing.T) {
	c := newContainer(t, self(t), "allocate", "200")
	c.launch.Limits.Memory = 64 << 20
	c.start()
	wantMemoryExit(t, c.end())
}

// TestFrequentRenewalsDoNotPutOffTheLooks: once they did, and a container with a busy node manager had no memory limit.
func TestFrequentRenewalsDoNotPutOffTheLooks(t *testing.T) {
	c := newContainer(t, self(t), "allocate", "200")
	c.launch.Limits.Memory = 64 << 20
	c.start()
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := c.client.Renew(t.Context(), Lease{Term: Now().Add(time.Minute), Kill: Now().Add(time.Hour)}); err != nil {
			break // it has ended
		}
		if time.Now().After(deadline) {
			t.Fatal("not looked at for a minute")
		}
		time.Sleep(time.Millisecond)
	}
	wantMemoryExit(t, c.end())
}

func TestMemoryBeyondLimitByControlGroup(t *testing.T) {
	m := groups(t)
	c := newContainer(t, self(t), "allocate", "200")
	c.launch.Limits = cgroup.Limits{Memory: 64 << 20, VCores: 1, Pids: 500}
	c.launch.Group = m.Group(string(id))
	if s := c.start(); s.Degraded != "" {
		t.Fatal(s.Degraded)
	}
	wantMemoryExit(t, c.end())
	if _, err := os.Stat(filepath.Join(c.launch.Dir, "allocated")); err == nil {
		t.Error("the command got all it asked for")
	}
	if left := m.List(); len(left) != 0 {
		t.Errorf("groups left behind: %v", left)
	}
}

func wantMemoryExit(t *testing.T, e *Exit) {
	t.Helper()
	want := "64 MB physical memory used"
	if e.Status != nodemanager.KilledExceededPMem || !strings.Contains(e.Diagnostics, want) ||
		!strings.Contains(e.Diagnostics, string(id)) || !strings.HasSuffix(e.Diagnostics, "Killing container.") {
		t.Errorf("got %d %q, want -104 with %q", e.Status, e.Diagnostics, want)
	}
}

// groups skips where control groups are not writable.
func groups(t *testing.T) *cgroup.Manager {
	t.Helper()
	r := cgroup.Detect()
	if !r.Memory {
		t.Skipf("needs a writable memory controller: %v", r)
	}
	m := cgroup.Open(r, "test-"+strconv.Itoa(os.Getpid()))
	if !m.Report().Memory {
		t.Skipf("needs a writable memory controller: %v", m.Report())
	}
	t.Cleanup(m.Close)
	return m
}

func TestForkBombEndsInControlGroup(t *testing.T) {
	m := groups(t)
	c := newContainer(t, "sh", "-c", `f() { f | f & }; (f) & exec sleep 100`) // one fork: at a second one the bomb may have left no process id to it
	c.launch.Limits = cgroup.Limits{Pids: 60}
	c.launch.Group = m.Group(string(id))
	c.start()
	time.Sleep(100 * time.Millisecond)
	if err := c.client.Stop(t.Context(), StopRequest{Status: nodemanager.KilledByResourceManager, Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	if e := c.end(); e.Status != nodemanager.KilledByResourceManager {
		t.Errorf("%+v", e)
	}
	if left := m.List(); len(left) != 0 {
		t.Errorf("groups left behind: %v", left)
	}
}

// manyProcesses starts 10,000 if nobody stops it, and gives up at the first one that it does not get.
const manyProcesses = `i=0; while [ $i -lt 10000 ]; do sleep 1000 & i=$((i+1)); done; echo all`

func TestTooManyProcessesAreNamed(t *testing.T) {
	for name, group := range map[string]func(t *testing.T) cgroup.Group{
		"by polling":        func(*testing.T) cgroup.Group { return cgroup.Group{} },
		"by control groups": func(t *testing.T) cgroup.Group { return groups(t).Group(string(id)) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, "sh", "-c", manyProcesses)
			c.launch.Limits = cgroup.Limits{Pids: 40}
			c.launch.Group = group(t)
			c.start()
			e := c.end()
			if e.Status == nodemanager.Success || !strings.Contains(e.Diagnostics, "40 (nodemanager.pids)") {
				t.Errorf("%+v", e)
			}
			if out, _ := os.ReadFile(c.launch.Stdout); len(out) > 0 {
				t.Errorf("it made all of its processes")
			}
		})
	}
}

func TestTooMuchLogEndsTheContainer(t *testing.T) {
	for name, test := range map[string]struct {
		command string
		rate    int64
		want    string // however much of it a look has found
	}{
		"in all":                          {"while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done", 0, "exceeded the limit of its log files"},
		"and ended before anybody looked": {"head -c 200000 /dev/zero", 0, "KB of 100 KB used"},
		"too fast":                        {"head -c 60000 /dev/zero; sleep 100", 1, "wrote its log files too fast: "},
		"of another name":                 {"head -c 200000 /dev/zero > ../logs/own", 0, "KB of 100 KB used"},
		"of too many names":               {"mkdir ../logs/d; cd ../logs/d; seq 10001 | xargs touch; sleep 100", 0, "more than 10000 files"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, "sh", "-c", test.command)
			c.launch.LogLimit, c.launch.LogRate = 100<<10, test.rate
			c.start()
			if e := c.end(); e.Status != nodemanager.KilledForExcessLogs || e.Stopped || !strings.Contains(e.Diagnostics, test.want) {
				t.Errorf("%+v, want %q", e, test.want)
			}
		})
	}
	c := newContainer(t, "sh", "-c", "head -c 90000 /dev/zero; mkfifo ../logs/pipe; ln -s / ../logs/all")
	c.launch.LogLimit = 100 << 10
	c.start()
	if e := c.end(); e.Status != nodemanager.Success {
		t.Errorf("%+v", e)
	}
}

func TestLogAllowance(t *testing.T) {
	l := &Launch{LogLimit: 1000, LogRate: 10}
	for ran, want := range map[time.Duration]int64{
		-time.Second: 250, 0: 250, time.Second: 260, 75 * time.Second: 1000, time.Hour: 1000, math.MaxInt64: 1000,
	} {
		if got := l.logAllowance(ran); got != want {
			t.Errorf("after %v %d bytes are allowed, want %d", ran, got, want)
		}
	}
	if got := (&Launch{LogLimit: 1000}).logAllowance(0); got != 1000 {
		t.Errorf("without a rate %d bytes are allowed at once", got)
	}
}

func TestKilledSupervisorLeavesStraysThatAreFound(t *testing.T) {
	c := newContainer(t, "sh", "-c", `"$SELF" orphan; sleep 100`)
	s := c.start()
	orphan := c.pidIn("orphan.pid")
	st, err := c.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(st.Supervisor, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.Wait(t.Context()); !errors.Is(err, ErrGone) {
		t.Errorf("wait: %v", err)
	}
	eventually(t, "command dies with its supervisor", func() bool { return !lives(s.Main) })
	eventually(t, "lock is free", func() bool { alive, _ := Alive(c.dir); return !alive })
	if e, err := ReadExit(c.dir); e != nil || err != nil {
		t.Errorf("exit %v %v", e, err)
	}
	if !lives(orphan) {
		t.Fatal("the orphan should still live: nobody is left to end it")
	}
	if err := KillStray(t.Context(), cgroup.Group{}, Mark(c.launch.Dir)); err != nil {
		t.Fatal(err)
	}
	if lives(orphan) {
		t.Error("stray not killed")
	}
}

func TestACommandDiesWithItsSupervisor(t *testing.T) {
	for name, confinement := range map[string]*Confinement{"as it is": nil, "after its stage": {Umask: -1, Files: 100}} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, "sleep", "1000")
			c.launch.Confinement = confinement
			s := c.start()
			st, err := c.client.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Kill(st.Supervisor, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the command dies with its supervisor", func() bool { return !lives(s.Main) })
		})
	}
}

func TestSecondSupervisorIsRefused(t *testing.T) {
	c := newContainer(t, "sleep", "100")
	c.start()
	if _, err := Start(t.Context(), []string{self(t), "supervisor"}, nil, c.dir, c.launch, Handed{Secrets: c.secrets}); !errors.Is(err, errLocked) {
		t.Errorf("second start: %v", err)
	}
	if err := c.client.Signal(t.Context(), int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	if e := c.end(); e.Status != nodemanager.Killed {
		t.Errorf("%+v", e)
	}
	if _, err := Start(t.Context(), []string{self(t), "supervisor"}, nil, c.dir, c.launch, Handed{Secrets: c.secrets}); err == nil || !strings.Contains(err.Error(), "already ended") {
		t.Errorf("start after the end: %v", err)
	}
}

// Who looks whether a supervisor lives holds the lock for a moment, and on a busy machine that may be long.
func TestALookKeepsNoSupervisorFromStarting(t *testing.T) {
	defer func(before time.Duration) { lookTime = before }(lookTime)
	lookTime = time.Minute
	c := newContainer(t, "true")
	lock, err := acquire(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	looked := time.AfterFunc(100*time.Millisecond, func() { lock.Close() })
	defer looked.Stop()
	c.start()
	if e := c.end(); e.Status != nodemanager.Success {
		t.Errorf("%+v", e)
	}
}

func TestBadRequestsAreAnswered(t *testing.T) {
	c := newContainer(t, "sleep", "100")
	c.start()
	for _, r := range []request{{Op: "fly"}, {Op: "renew"}, {Op: "stop"}, {Op: "signal", Signal: 900}} {
		if _, err := c.client.call(t.Context(), r); err == nil {
			t.Errorf("%+v was accepted", r)
		}
	}
	conn, err := c.client.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write([]byte(strings.Repeat("x", 2*maxLine)))
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	if n, _ := conn.Read(make([]byte, 10)); n != 0 {
		t.Error("an endless line was answered")
	}
	if _, err := c.client.Status(t.Context()); err != nil {
		t.Error("the supervisor does not answer any more:", err)
	}
}

func TestDeepDirectoryStillHasASocket(t *testing.T) {
	c := newContainer(t, "sleep", "100")
	deep := filepath.Join(c.dir, strings.Repeat("d", 100), strings.Repeat("e", 100))
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	c.dir, c.client = deep, NewClient(deep)
	c.start()
	if _, err := c.client.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Stop(t.Context(), StopRequest{}); err != nil {
		t.Fatal(err)
	}
	c.end()
}

func TestFullDiskKeepsTheExitInTheSocket(t *testing.T) {
	c := newContainer(t, "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 5")
	c.start()
	// The name that the exit is written to first is taken by a directory, so writing fails until it goes.
	block := filepath.Join(c.dir, exitFile+".tmp")
	if err := os.MkdirAll(filepath.Join(block, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.launch.Dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := c.client.Wait(t.Context())
	if err != nil || e.Status != 5 {
		t.Fatalf("%v, %v", e, err)
	}
	if err := os.RemoveAll(block); err != nil {
		t.Fatal(err)
	}
	if e := c.end(); e.Status != 5 {
		t.Errorf("%+v", e)
	}
}

func TestDamagedLaunchFileIsAnError(t *testing.T) {
	c := newContainer(t, "true")
	if err := durable.WriteFile(filepath.Join(c.dir, launchFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self(t), "supervisor", c.dir)
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "damaged") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestParseStatWithStrangeName(t *testing.T) {
	p, ok := parseStat(7, []byte("7 (a) b (c) S 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 1\n"))
	if !ok || p.parent != 3 || p.start != 4711 || p.zombie || p.threads != 1 {
		t.Errorf("%+v %v", p, ok)
	}
	for _, bad := range []string{"", "7 (x", "7 (x) S", "7 (x) S p 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 0"} {
		if _, ok := parseStat(7, []byte(bad)); ok {
			t.Errorf("%q parsed", bad)
		}
	}
}

func TestAContainerWhoseDirectoryWasRemovedEnds(t *testing.T) {
	c := newContainer(t, "sh", "-c", "echo $$ > main.pid; exec sleep 1000")
	c.start()
	main := c.pidIn("main.pid")
	if err := os.RemoveAll(c.dir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command ends", func() bool { p, ok := readProcess(main); return !ok || p.zombie })
}

// A container whose control group cannot be made runs without it, unless nothing else would keep it from other containers' devices.
func TestAContainerThatNothingKeepsFromDevicesDoesNotStart(t *testing.T) {
	for _, devices := range [][]cgroup.Device{nil, cgroup.Everyday()} {
		c := newContainer(t, "true")
		c.launch.Group = cgroup.Group{Version: 2, Dirs: map[string]string{"unified": filepath.Join(c.dir, "group")}, MemoryLimited: true} // none that has files
		c.launch.Limits = cgroup.Limits{Memory: 1 << 30, Devices: devices}
		s := c.start()
		if devices == nil {
			if s.Exit != nil || !strings.Contains(s.Degraded, "could not be made") {
				t.Errorf("%+v", s)
			}
			continue
		}
		if s.Exit == nil || s.Exit.Status != nodemanager.Invalid || !strings.Contains(s.Exit.Diagnostics, "nothing would keep it from devices") {
			t.Errorf("%+v", s)
		}
	}
}
