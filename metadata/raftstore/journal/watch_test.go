package journal

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stopped makes the test binary a process that stops itself in the middle of an append to a log in that directory.
const stopped = "HOPS_JOURNAL_STOPPED"

func TestMain(m *testing.M) {
	if dir := os.Getenv(stopped); dir != "" {
		stopInAppend(dir)
		return
	}
	os.Exit(m.Run())
}

// stopInAppend stops the process in an append, which takes a while after it goes on. It does not touch the disk, which may be
// slow.
func stopInAppend(dir string) {
	cfg := testConfig(dir)
	disk := newMemoryDisk()
	cfg.Disk = disk
	cfg.Deadline = time.Second
	cfg.Fatal = func(err error) {
		fmt.Println("fatal", err)
		os.Exit(1)
	}
	j, err := Open(cfg)
	disk.before = func(op, path string) error {
		if op != "write" || filepath.Ext(path) != segmentSuffix {
			return nil
		}
		fmt.Println("stopping")
		if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
		return nil
	}
	if err == nil {
		err = j.StoreLog(entry(1))
	}
	fmt.Println("stored", err)
}

// A virtual machine that is moved, or a process under SIGSTOP, has not waited for its disk.
func TestStoppedProcessDoesNotBlameTheDisk(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), stopped+"="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "stopping" {
		t.Fatalf("the process said %q", lines.Text())
	}
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		if strings.HasPrefix(state, "T") {
			break
		}
		if strings.HasPrefix(state, "Z") {
			t.Fatal("the process has ended")
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(1100 * time.Millisecond) // longer than the deadline, by the clock
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	lines.Scan()
	if err := cmd.Wait(); err != nil || lines.Text() != "stored <nil>" {
		t.Fatalf("after the pause: %q, %v", lines.Text(), err)
	}
}

func TestPatienceCountsOnlyTimeInWhichTheProcessRan(t *testing.T) {
	p := Patience{Tick: 100 * time.Millisecond}
	now := time.Now()
	if got := p.Pass(now); got != 0 {
		t.Fatalf("it began with %v", got)
	}
	if got := p.Pass(now.Add(100 * time.Millisecond)); got != 100*time.Millisecond {
		t.Fatalf("a tick counts %v", got)
	}
	if got := p.Pass(now.Add(time.Hour)); got != 300*time.Millisecond {
		t.Fatalf("after an hour's pause %v are counted", got)
	}
	p.Reset()
	if got := p.Pass(now.Add(2 * time.Hour)); got != 0 {
		t.Fatalf("after Reset it began with %v", got)
	}
}
