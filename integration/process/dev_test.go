package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
)

// A workstation that loses power, as far as processes are concerned, in the middle of writes, again and again.
func TestDevKilledWhileFilesArePutKeepsEveryAcknowledgedFile(t *testing.T) {
	data := Dir(t)
	dev := StartDev(t, data)
	dev.Hops().OK("fs", "-mkdir", "/puts")
	h := NewHistory(t, "/puts")
	for range 3 {
		h.Start(func(ctx context.Context) { h.Puts(ctx, 3, dev.Conf()) })
		h.More(15)
		dev.Kill()
		h.End()
		dev = StartDev(t, data)
		if safe, err := dev.Client().FS().SafeMode(Context(t), dfs.SafeModeGet); err != nil || safe {
			t.Errorf("it is ready, and its filesystem in safe mode: %v, %v", safe, err)
		}
	}
	h.Verify(dev.Client().FS())
	dev.Stop(syscall.SIGTERM)
}

// stubborn is a job that ignores polite requests to end and leaves a process of its own session behind.
const stubborn = `trap "" TERM INT HUP; setsid sh -c 'trap "" TERM INT HUP; while :; do sleep 0.2; done' & while :; do sleep 0.2; done`

func TestDevStopsWithinSecondsAndLeavesNoProcess(t *testing.T) {
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		job    bool
	}{
		{"Ctrl-C", syscall.SIGINT, false},
		{"the terminal is closed while containers run", syscall.SIGHUP, true},
		{"SIGTERM while containers run", syscall.SIGTERM, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if signal.Ignored(c.signal) {
				t.Skip("under nohup, which hops obeys")
			}
			dev := StartDev(t, Dir(t))
			if c.job {
				dev.Hops().OK("job", "run", "--detach", "--", "sh", "-c", stubborn)
				Eventually(t, "the job's processes", func() error {
					if n := len(processes.Find(dev.Data+"/", "sh -c trap")); n < 2 {
						return fmt.Errorf("%d of 2", n)
					}
					return nil
				})
			}
			t.Logf("took %v", dev.Stop(c.signal))
			if c.job && !strings.Contains(dev.Output(), "stopping with application_") {
				t.Errorf("it does not say that a job ends with it:\n%s", dev.Output())
			}
		})
	}
}

func TestEphemeralDevRemovesItsDirectory(t *testing.T) {
	tmp := Dir(t)
	cmd := exec.Command(Binary(t), "dev", "--ephemeral", "--ports", "random", "--gpus", "none", "--datanodes", "1")
	cmd.Env = Environ(t, "", "TMPDIR="+tmp)
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	Eventually(t, "hops dev is ready", func() error {
		if !readyLine.MatchString(out.String()) {
			return fmt.Errorf("it printed %q", out)
		}
		return nil
	})
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The containers of a workstation outlive a crash of everything else, as those of a cluster do.
func TestDevKilledTakesItsContainersUpAgain(t *testing.T) {
	var ports processes.Ports
	t.Cleanup(func() { ports.Close() })
	free, err := ports.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	_, base, _ := strings.Cut(free[0], ":")
	data := Dir(t)
	args := []string{"--gpus", "sim:1", "--ports", base} // the same ports again: the master in its container knows them
	dev := StartDev(t, data, args...)
	w := startWorker(t, dev.Client(), 1)
	dev.Kill()
	w.alive()
	dev = StartDev(t, data, args...)
	w.c = dev.Client()
	w.alive()
	if s := w.finish("0"); !s.Succeeded() {
		t.Errorf("%s %s: %s", s.State, s.FinalStatus, s.Diagnostics)
	}
	dev.Stop(syscall.SIGTERM)
}
