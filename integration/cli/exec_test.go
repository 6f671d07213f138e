package cli

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/integration/process"
)

// What people type to look into a job that runs, and to work in one, on a whole cluster.
func TestSessionsOfTheCommandLine(t *testing.T) {
	dev := process.StartDev(t, process.Dir(t))
	hops := dev.Hops()
	id := strings.TrimSpace(hops.OK("job", "run", "--detach", "--", "sh", "-c", "echo here > file; exec sleep 1000"))
	cl := dev.Client()
	var container string
	process.Eventually(t, "the job runs", func() error {
		r := hops.Run("job", "exec", id, "--", "cat", "file")
		if r.Status == 0 && r.Stdout == "here\n" {
			return nil
		}
		return errorOf(r)
	})
	s, err := cl.Jobs().Get(process.Context(t), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range s.Containers {
		if !k.Master {
			container = k.ID
		}
	}
	if r := hops.Input("one\ntwo\n", "job", "exec", "-i", container, "--", "sh", "-c", "cat; echo err >&2; exit 7"); r.Status != 7 || r.Stdout != "one\ntwo\n" || !strings.Contains(r.Stderr, "err\n") {
		t.Errorf("%+v", r)
	}
	for _, test := range []struct {
		status int
		words  string
		args   []string
	}{
		{127, "no-such-command", []string{id, "--", "no-such-command"}},
		{2, "no terminal", []string{"-it", id, "--", "sh"}},
		{2, "a command after --", []string{id}},
		{2, "is a container", []string{"--instance", "0", container, "--", "true"}},
		{1, "no instance 3", []string{"--instance", "3", id, "--", "true"}},
		{1, "has no container", []string{container[:len(container)-6] + "999999", "--", "true"}},
	} {
		hops.Fails(test.status, []string{test.words}, append([]string{"job", "exec"}, test.args...)...)
	}
	if s.User != cl.User() {
		t.Errorf("the job is %s's", s.User)
	}
	hops.OK("job", "stop", id)

	// A job whose command is the session.
	r := hops.Input("hello\n", "job", "run", "-i", "--", "sh", "-c", "cat; pwd; exit 5")
	if r.Status != 5 || !strings.HasPrefix(r.Stdout, "hello\n/") {
		t.Errorf("%+v", r)
	}
	session := regexp.MustCompile(`application_\d+_\d+`).FindString(r.Stderr)
	if s, err := cl.Jobs().Get(process.Context(t), session); err != nil || s.Phase != "FAILED" || s.ExitStatus() != 5 {
		t.Errorf("%v %s %d %s", err, s.Phase, s.ExitStatus(), s.Diagnostics)
	}
	// One whose client is killed ends too.
	cmd := exec.CommandContext(process.Context(t), process.Binary(t), "job", "run", "-i", "--", "sh", "-c", "echo begun; exec sleep 1000")
	cmd.Env = process.Environ(t, dev.Conf())
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	process.Eventually(t, "the job of a client that was killed ends", func() error {
		jobs, err := cl.Jobs().List(process.Context(t))
		if err == nil && (jobs[0].ID == session || jobs[0].Name != "session" || jobs[0].Phase != "FAILED") {
			err = errors.New(jobs[0].ID + " is " + jobs[0].Phase)
		}
		return err
	})
	hops.Fails(2, []string{"no terminal"}, "job", "run", "-it", "--", "sh")
	hops.Fails(2, []string{"one instance"}, "job", "run", "-i", "--instances", "2", "--", "sh")
	hops.Fails(2, []string{"--detach"}, "job", "run", "-i", "--detach", "--", "sh")
	if r := hops.Run("job", "exec", session, "--", "true"); r.Status != 1 || !strings.Contains(r.Stderr, "has ended") {
		t.Errorf("%+v", r)
	}
}

// A shell in a job of its own, at a terminal: sizes and Ctrl-C go through, the exit status comes back.
func TestASessionAtATerminal(t *testing.T) {
	dev := process.StartDev(t, process.Dir(t))
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer master.Close()
	fd := int(master.Fd())
	if err := errors.Join(unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0), unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 37, Col: 91})); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(process.Context(t), process.Binary(t), "job", "run", "-it", "--", "env", "PS1=ready>", "sh")
	cmd.Env = append(process.Environ(t, dev.Conf()), "TERM=vt100")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1000)
	go func() {
		defer close(said)
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			if err != nil {
				return
			}
			said <- string(buffer[:n])
		}
	}()
	all := ""
	until := func(want string) {
		t.Helper()
		late := time.After(process.Patience)
		for !strings.Contains(all, want) {
			select {
			case s, more := <-said:
				if !more {
					t.Fatalf("said %q, and ended", all)
				}
				all += s
			case <-late:
				t.Fatalf("said %q, not %q", all, want)
			}
		}
		all = ""
	}
	write := func(keys string) {
		if _, err := master.WriteString(keys); err != nil {
			t.Fatal(err)
		}
	}
	until("ready>")
	write("stty size; echo $TERM\r")
	until("37 91\r\nvt100\r\n")
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 60}); err != nil {
		t.Fatal(err)
	}
	write("until stty size | grep '20 60'; do sleep 0.05; done; sh -c 'echo be\"\"gun; exec sleep 1000'\r")
	until("begun")
	write("\x03")
	until("ready>")
	write("exit 9\r")
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Errorf("exit status %d", code)
	}
	if after, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil || *after != *before {
		t.Errorf("the terminal is not as it was: %v %v", after, err)
	}
}

func errorOf(r process.Result) error {
	return &client.Error{Status: r.Status, Message: r.Stderr}
}
