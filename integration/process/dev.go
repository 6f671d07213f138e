package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
)

// Dev is a running `hops dev`.
type Dev struct {
	T testing.TB
	// Data is its directory, FS, HTTP and RM what it printed: URIs.
	Data, FS, HTTP, RM string

	cmd    *exec.Cmd
	out    *output
	done   chan struct{}
	err    error
	client *client.Client
}

// output collects what a process prints and can be waited on.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

var readyLine = regexp.MustCompile(`(?m)^ready in [0-9.]+s  fs=(\S+)  http=(\S+)  rm=(\S+)$`)

// Patience is how long a test waits for what takes less than a second on an idle machine.
const Patience = 60 * time.Second

// StartDev starts `hops dev` on a directory and waits until it is ready. It is killed at the end of the test, with
// whatever is left of it. Without other wishes it has one datanode and no GPUs and keeps one replica.
func StartDev(t testing.TB, data string, args ...string) *Dev {
	t.Helper()
	d := LaunchDev(t, data, args...)
	Eventually(t, "hops dev is ready", func() error {
		select {
		case <-d.done:
			t.Fatalf("hops dev ended: %v\n%s", d.err, d.out)
		default:
		}
		m := readyLine.FindStringSubmatch(d.out.String())
		if m == nil {
			return fmt.Errorf("it printed %q", d.out)
		}
		d.FS, d.HTTP, d.RM = m[1], m[2], m[3]
		return nil
	})
	return d
}

// LaunchDev is StartDev without the wait.
func LaunchDev(t testing.TB, data string, args ...string) *Dev {
	t.Helper()
	d := &Dev{T: t, Data: data, out: &output{}, done: make(chan struct{})}
	args = append([]string{"dev", "--data", data, "--ports", "random", "--gpus", "none", "--datanodes", "1", "-D", "dfs.replication=1"}, args...)
	d.cmd = exec.Command(Binary(t), args...)
	d.cmd.Env = Environ(t, "", "HOPS_CLUSTER_DIR="+data+"/")
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	if err := processes.Spawn(d.cmd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	t.Cleanup(func() {
		d.Kill()
		for _, pid := range d.Processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("hops dev printed:\n%s", d.out)
		}
	})
	return d
}

// Conf is the directory of its clients' configuration.
func (d *Dev) Conf() string { return filepath.Join(d.Data, "conf") }

// Output is what it has printed so far.
func (d *Dev) Output() string { return d.out.String() }

// Hops runs commands against it.
func (d *Dev) Hops() Hops { return Hops{T: d.T, Conf: d.Conf()} }

// Signal sends it a signal.
func (d *Dev) Signal(s syscall.Signal) { _ = d.cmd.Process.Signal(s) }

// Kill ends its process at once, SIGKILL, and no other.
func (d *Dev) Kill() {
	_ = d.cmd.Process.Kill()
	<-d.done
}

// Stop sends a signal that ends it well, and returns how long that took. One that does not end, or with a status other than
// 0, fails the test, and so does a process that is left.
func (d *Dev) Stop(s syscall.Signal) time.Duration {
	d.T.Helper()
	started := time.Now()
	d.Signal(s)
	select {
	case <-d.done:
	case <-time.After(Patience):
		left := ""
		for _, pid := range d.Processes() {
			left += fmt.Sprintf("\n%d: %s", pid, processes.Command(pid))
		}
		_ = d.cmd.Process.Signal(syscall.SIGQUIT) // the runtime says where it hangs
		time.Sleep(time.Second)
		d.T.Fatalf("hops dev did not end within %v of %v; of its processes there are:%s\n%s", Patience, s, left, d.Output())
	}
	took := time.Since(started)
	if d.err != nil {
		d.T.Errorf("hops dev ended with %v after %v", d.err, s)
	}
	for _, pid := range d.Processes() {
		d.T.Errorf("hops dev has ended and left process %d: %s", pid, processes.Command(pid))
	}
	return took
}

// Wait returns the exit status once it has ended by itself.
func (d *Dev) Wait() Result {
	d.T.Helper()
	select {
	case <-d.done:
	case <-time.After(Patience):
		d.T.Fatalf("hops dev does not end; it printed:\n%s", d.out)
	}
	return Result{Stderr: d.out.String(), Status: d.cmd.ProcessState.ExitCode()}
}

// Processes are its own process and those it made, as far as they run.
func (d *Dev) Processes() []int { return processes.Find(d.Data+"/", "") }

// Client is a client of it as the user who runs the test.
func (d *Dev) Client() *client.Client {
	d.T.Helper()
	if d.client == nil {
		d.client = Dial(d.T, d.Conf(), "")
	}
	return d.client
}

// Dial makes a client by a directory of configuration. Empty user: who runs the test.
func Dial(t testing.TB, conf, user string) *client.Client {
	t.Helper()
	files, err := dfs.LoadHadoopConf(conf)
	if err != nil {
		t.Fatal(err)
	}
	location, err := files.LocateAs("/", user)
	if err != nil {
		t.Fatal(err)
	}
	location.Config.Logger = slog.New(slog.DiscardHandler)
	c, err := client.New(client.Config{ConfDir: conf, FS: &location.Config, User: user})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Eventually waits until check returns nil, and fails the test when that does not come.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, Patience, err)
		}
		time.Sleep(pause)
	}
}

// Context ends with the test, or when it takes unreasonably long.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 2*Patience, errors.New("the test takes too long"))
	t.Cleanup(cancel)
	return ctx
}

// Dir is a directory for a cluster, with a short name.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // a container that was being started when its servers ended writes until it notices
		for end := time.Now().Add(Patience); os.RemoveAll(dir) != nil && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
	})
	return dir
}
