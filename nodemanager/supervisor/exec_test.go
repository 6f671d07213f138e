package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/shell"
)

// in runs a session of a container to its end.
func (c *container) in(r shell.Request, stdin string) (status int, stdout, stderr string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	conn, err := c.client.Exec(ctx, r)
	if err != nil {
		c.t.Fatal(err)
	}
	var out, errs bytes.Buffer
	s := shell.Streams{Stdout: &out, Stderr: &errs}
	if r.Stdin {
		s.Stdin = strings.NewReader(stdin)
	}
	status, text, err := shell.Attach(ctx, conn, s)
	if err != nil {
		c.t.Fatal(err)
	}
	return status, out.String(), errs.String() + text
}

func waiting(t *testing.T) *container {
	return newContainer(t, "sh", "-c", "echo $$ > pid; exec sleep 1000")
}

func testSessions(t *testing.T, c *container) {
	c.start()
	sh := func(script string) shell.Request { return shell.Request{Argv: []string{"sh", "-c", script}} }
	tty := shell.Request{Argv: []string{"sh", "-c", "tty >/dev/null && stty size && echo $TERM && echo x > /dev/tty"}, Terminal: true, Term: "vt100", Size: shell.Size{Rows: 33, Columns: 101}}
	reads := sh("cat; echo over")
	reads.Stdin = true
	large := strings.Repeat("0123456789abcde\n", 40_000)
	for _, test := range []struct {
		name           string
		r              shell.Request
		stdin          string
		status         int
		stdout, stderr string
	}{
		{"output", sh("echo out; echo err >&2"), "", 0, "out\n", "err\n"},
		{"exit status", sh("exit 7"), "", 7, "", ""},
		{"a signal", sh("kill -9 $$"), "", 137, "", ""},
		{"no input", sh("cat"), "", 0, "", ""},
		{"input", reads, large, 0, large + "over\n", ""},
		{"directory and environment", sh("pwd; echo $HOPS_WORK_DIR"), "", 0, c.launch.Dir + "\n" + c.launch.Dir + "\n", ""},
		{"a terminal", tty, "", 0, "33 101\r\nvt100\r\nx\r\n", ""},
		{"no such command", shell.Request{Argv: []string{"no-such-command"}}, "", 127, "", "no-such-command"},
		{"no program", shell.Request{Argv: []string{"/etc/passwd"}}, "", 126, "", "permission denied"},
		{"who goes on", sh("sleep 1000 & echo $! > left"), "", 0, "", ""},
	} {
		status, out, errs := c.in(test.r, test.stdin)
		if status != test.status || out != test.stdout || !strings.Contains(errs, test.stderr) || test.stderr == "" && errs != "" {
			t.Errorf("%s: %d %.200q %.200q, want %d %.200q %q", test.name, status, out, errs, test.status, test.stdout, test.stderr)
		}
	}
}

func TestASessionRunsInItsContainer(t *testing.T) { testSessions(t, waiting(t)) }

func TestASessionIsConfinedAsItsContainer(t *testing.T) {
	c := waiting(t)
	c.launch.Confinement = &Confinement{Umask: 0o27, Files: 100}
	testSessions(t, c)
	if _, out, _ := c.in(shell.Request{Argv: []string{"sh", "-c", "umask; ulimit -n; grep -E 'NoNewPrivs|Seccomp:' /proc/self/status"}}, ""); out != "0027\n100\nNoNewPrivs:\t1\nSeccomp:\t2\n" {
		t.Errorf("%q", out)
	}
}

func TestASessionIsIsolatedAsItsContainer(t *testing.T) {
	isolates(t)
	c := waiting(t)
	c.launch.Isolation = &Isolation{Hide: []string{"/etc/passwd"}, Show: []string{c.dir}}
	c.launch.Confinement = &Confinement{Umask: -1, Files: 100}
	c.start()
	if status, out, errs := c.in(shell.Request{Argv: []string{"sh", "-c", "cat /etc/passwd; stty size"}, Terminal: true, Size: shell.Size{Rows: 5, Columns: 6}}, ""); status != 0 || strings.Contains(out, "root:") || !strings.HasSuffix(out, "5 6\r\n") {
		t.Errorf("%d %q %q", status, out, errs)
	}
}

func TestATerminalIsResizedAndInterrupted(t *testing.T) {
	c := waiting(t)
	c.start()
	conn, err := c.client.Exec(t.Context(), shell.Request{
		Argv: []string{"sh", "-c", "trap 'echo got; stty size; exit 3' INT; trap 'echo winch' WINCH; echo ready; while :; do sleep 0.01; done"}, Terminal: true, Stdin: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	input, keys := io.Pipe()
	defer keys.Close()
	sizes := make(chan shell.Size)
	out, said := newSaid()
	done := make(chan string)
	go func() {
		status, text, err := shell.Attach(t.Context(), conn, shell.Streams{Stdin: input, Stdout: out, Stderr: io.Discard, Resize: sizes})
		done <- fmt.Sprint(status, text, err)
	}()
	said(t, "ready")
	sizes <- shell.Size{Rows: 40, Columns: 132}
	said(t, "winch")
	if _, err := keys.Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	said(t, "got\r\n40 132")
	if got := <-done; got != "3<nil>" && got != "3 <nil>" {
		t.Errorf("ended with %q", got)
	}
}

// newSaid is a writer and a wait for what is written.
func newSaid() (io.Writer, func(*testing.T, string)) {
	r, w := io.Pipe()
	lines := make(chan string, 1000)
	go func() {
		buffer := make([]byte, 1000)
		for {
			n, err := r.Read(buffer)
			if err != nil {
				return
			}
			lines <- string(buffer[:n])
		}
	}()
	all := ""
	return w, func(t *testing.T, want string) {
		t.Helper()
		deadline := time.After(time.Minute)
		for !strings.Contains(all, want) {
			select {
			case l := <-lines:
				all += l
			case <-deadline:
				t.Fatalf("said %q, not %q", all, want)
			}
		}
	}
}

func TestTheProgramsOfAClientThatVanishesEnd(t *testing.T) {
	c := waiting(t)
	c.start()
	for _, terminal := range []bool{false, true} {
		os.Remove(c.launch.Dir + "/shell")
		os.Remove(c.launch.Dir + "/child")
		conn, err := c.client.Exec(t.Context(), shell.Request{Argv: []string{"sh", "-c", "echo $$ > shell; sleep 1000 & echo $! > child; wait"}, Terminal: terminal, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		first, second := c.pidIn("shell"), c.pidIn("child")
		conn.Close()
		eventually(t, "the session's processes end", func() bool { return !lives(first) && !lives(second) })
	}
	if !lives(c.pidIn("pid")) {
		t.Error("the container has ended with them")
	}
}

func TestAClientThatSendsNonsenseEndsItsSession(t *testing.T) {
	c := waiting(t)
	c.start()
	for _, bad := range []string{"\xff\x00\x00\x00\x00", "\x03\x00\x00\x00\x00", strings.Repeat("\x01\x00\x00\x80\x00"+strings.Repeat("x", 32<<10), 16)} {
		os.Remove(c.launch.Dir + "/shell")
		conn, err := c.client.Exec(t.Context(), shell.Request{Argv: []string{"sh", "-c", "echo $$ > shell; exec sleep 1000"}, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		pid := c.pidIn("shell")
		go io.WriteString(conn, bad)
		eventually(t, "the session ends", func() bool { return !lives(pid) })
		conn.Close()
	}
}

func TestSessionsEndWithTheirContainer(t *testing.T) {
	c := waiting(t)
	c.start()
	var ends []chan string
	for n := range maxSessions {
		conn, err := c.client.Exec(t.Context(), shell.Request{Argv: []string{"sh", "-c", "trap '' TERM; while :; do sleep 100; done"}, Terminal: n%2 == 0})
		if err != nil {
			t.Fatal(err)
		}
		end := make(chan string, 1)
		ends = append(ends, end)
		go func() {
			status, text, err := shell.Attach(t.Context(), conn, shell.Streams{Stdout: io.Discard, Stderr: io.Discard})
			end <- fmt.Sprint(status, " ", text, " ", err)
		}()
	}
	if _, err := c.client.Exec(t.Context(), shell.Request{Argv: []string{"true"}}); err == nil || !strings.Contains(err.Error(), "8 sessions already") {
		t.Errorf("one more: %v", err)
	}
	if err := c.client.Stop(t.Context(), StopRequest{Grace: 10 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	for _, end := range ends {
		// SIGTERM may come before the trap, and a supervisor waits for a second until all have heard the end.
		if got := <-end; got != "137 the container has ended <nil>" && got != "143 the container has ended <nil>" && !strings.Contains(got, "broke off") {
			t.Errorf("ended with %q", got)
		}
	}
	c.end()
	if _, err := c.client.Exec(t.Context(), shell.Request{Argv: []string{"true"}}); err == nil {
		t.Error("a session in a container that has ended")
	}
}

// A session that has begun while the command's stage looked for the command keeps nobody waiting when there is none.
func TestASessionOfACommandThatDoesNotStart(t *testing.T) {
	c := newContainer(t, "no-such-command")
	c.launch.Confinement = &Confinement{Umask: -1, Files: 100}
	c.launch.Env = append(c.launch.Env, "PATH="+strings.Repeat("/none:", 10_000)) // to look through
	started := make(chan Started, 1)
	go func() {
		s, err := Start(t.Context(), []string{self(t), "supervisor"}, []string{"PATH=" + os.Getenv("PATH"), "GORACE=" + race}, c.dir, c.launch, Handed{})
		if err != nil {
			t.Error(err)
		}
		started <- s
	}()
	for len(started) == 0 {
		conn, err := c.client.Exec(t.Context(), shell.Request{Argv: []string{"/bin/sleep", "1000"}})
		if err == nil { // its client stays
			go shell.Attach(t.Context(), conn, shell.Streams{Stdout: io.Discard, Stderr: io.Discard})
			break
		}
	}
	select {
	case s := <-started:
		if s.Exit == nil || s.Exit.Status != nodemanager.NotFound {
			t.Errorf("%+v", s.Exit)
		}
	case <-time.After(time.Minute):
		t.Error("it waits for the session")
	}
}

// With a user, a process namespace and devices of its own the session has the same ones.
func TestASessionIsItsContainersUser(t *testing.T) {
	c := privately(t, "sleep", "1000")
	c.start()
	script := `id -u; tty; stat -c %u $(tty); exec 3<>$(tty); grep -e NoNewPrivs -e Seccomp: -e CapEff /proc/self/status | tr -d '\t'; kill -0 $(pidof sleep) && echo sees; echo over; exit 3`
	want := "54321\r\n/dev/pts/0\r\n54321\r\nCapEff:0000000000000000\r\nNoNewPrivs:1\r\nSeccomp:2\r\nsees\r\nover\r\n"
	if status, out, errs := c.in(shell.Request{Argv: []string{"sh", "-c", script}, Terminal: true}, ""); status != 3 || out != want {
		t.Errorf("%d %q %q, want %q", status, out, errs, want)
	}
	conn, err := c.client.Exec(t.Context(), shell.Request{Argv: []string{"sh", "-c", "echo x > begun; exec sleep 1001"}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it begins", func() bool { _, err := os.Stat(c.launch.Dir + "/begun"); return err == nil })
	conn.Close()
	eventually(t, "what it ran is gone", func() bool {
		_, out, _ := c.in(shell.Request{Argv: []string{"sh", "-c", "pgrep -f 'sleep 100[1]' || echo gone"}}, "")
		return out == "gone\n"
	})
}
