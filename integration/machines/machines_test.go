package machines

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// inLab runs a test in a lab: in a process of its own, which is this test again.
func inLab(t *testing.T) bool {
	t.Helper()
	if Inside() {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip(ErrNotRoot)
	}
	if os.Getenv("HOPS_TEST_MACHINES") == "" {
		t.Skip("HOPS_TEST_MACHINES is not set: make cluster sets it; not every machine lets root make namespaces")
	}
	args := os.Args
	os.Args = []string{args[0], "-test.run=^" + t.Name() + "$", "-test.v"}
	defer func() { os.Args = args }()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if status, err := Enter(ctx); err != nil || status != 0 {
		t.Errorf("in the lab: exit status %d, %v", status, err)
	}
	return false
}

// Machines have files, names, users and processes of their own, reach each other by both kinds of addresses and by name, not so with a cable that is
// pulled, and have their files again after a power failure, but not their processes.
func TestMachinesAreMachines(t *testing.T) {
	if !inLab(t) {
		return
	}
	ctx := t.Context()
	l, err := New(ctx, User(ctx, "ada", 5001))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Add(ctx, "m1", "m2", "m3"); err != nil {
		t.Fatal(err)
	}
	one, two := l.Machines()[0], l.Machines()[1]
	run := func(m *Machine, user string, words ...string) string {
		t.Helper()
		out, err := m.Run(ctx, user, words...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	if got := run(one, "ada", "sh", "-c", "id -un; hostname; echo $HOME; pwd"); got != "ada\nm1\n/home/ada\n/" {
		t.Errorf("ada is %q", got)
	}
	if err := one.Write("/etc/own", "of m1", 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := one.Run(ctx, "ada", "cat", "/etc/own"); err == nil || !strings.Contains(out, "Permission denied") {
		t.Errorf("ada reads root's file: %q, %v", out, err)
	}
	if out, err := two.Run(ctx, "root", "cat", "/etc/own"); err == nil {
		t.Errorf("m2 reads m1's file: %q", out)
	}
	if _, err := os.Stat("/etc/own"); err == nil {
		t.Error("a file of m1 is on the machine that the lab runs on")
	}
	if got := run(one, "root", "cat", "/proc/1/comm"); got != "machines.test" {
		t.Errorf("process 1 is %s", got)
	}
	// A connection that has to come has half a minute; for one that must not a few tries of the kernel are enough.
	reaches := func(address string, seconds int) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		server := two.Command(ctx, "root", "python3", "-c", `
import socket, sys
s = socket.socket(socket.AF_INET6); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("::", 7777)); s.listen(); print("up", flush=True)
s.accept()[0].sendall(b"hello")`)
		out, err := server.StdoutPipe()
		if err != nil {
			return err
		}
		if err := server.Start(); err != nil {
			return err
		}
		defer func() { cancel(); _ = server.Wait() }()
		if _, err := out.Read(make([]byte, 8)); err != nil {
			return err
		}
		text, err := one.Run(ctx, "ada", "python3", "-c", fmt.Sprintf(`import socket; print(socket.create_connection((%q, 7777), %d).recv(9).decode())`, address, seconds))
		if err == nil && strings.TrimSpace(text) != "hello" {
			err = fmt.Errorf("said %q", text)
		}
		return err
	}
	for _, address := range []string{two.Address.String(), two.Address6.String(), "m2"} {
		if err := reaches(address, 30); err != nil {
			t.Errorf("from m1 to %s: %v", address, err)
		}
	}
	if err := two.Link(ctx, false); err != nil {
		t.Fatal(err)
	}
	if err := reaches("m2", 5); err == nil {
		t.Error("m1 reaches m2, whose cable is pulled")
	}
	if err := two.Link(ctx, true); err != nil {
		t.Fatal(err)
	}
	if err := reaches("m2", 30); err != nil {
		t.Errorf("with the cable plugged in again: %v", err)
	}
	run(one, "root", "sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
	if err := one.PowerOff(ctx); err != nil {
		t.Fatal(err)
	}
	if err := one.Boot(ctx); err != nil {
		t.Fatal(err)
	}
	if got := run(one, "root", "cat", "/etc/own"); got != "of m1" {
		t.Errorf("after a power failure the file says %q", got)
	}
	if out, err := one.Run(ctx, "root", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"); err != nil || strings.Contains(out, "sleep") {
		t.Errorf("after a power failure %q, %v", out, err)
	}
	if err := reaches("m2", 30); err != nil {
		t.Errorf("after a power failure: %v", err)
	}
}

// When the program that made a lab is killed, no process of it is left.
func TestNothingIsLeftOfAKilledLab(t *testing.T) {
	if !Inside() && os.Geteuid() != 0 {
		t.Skip(ErrNotRoot)
	}
	if os.Getenv("HOPS_TEST_MACHINES") == "" {
		t.Skip("HOPS_TEST_MACHINES is not set: make cluster sets it")
	}
	mark := os.Getenv("HOPS_TEST_MARK")
	if Inside() { // the child below, in its lab
		l, err := New(t.Context())
		if err == nil {
			err = l.Add(t.Context(), "m1")
		}
		if err != nil {
			t.Fatal(err)
		}
		out, err := l.Machines()[0].Run(t.Context(), "root", "sh", "-c", "setsid sleep 98765 "+mark+" >/dev/null 2>&1 & echo started")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Print(out)
		select {}
	}
	if mark != "" { // the child
		if _, err := Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		return
	}
	mark = fmt.Sprint(1e6 + os.Getpid())
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "HOPS_TEST_MARK="+mark)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	if n, err := out.Read(b); err != nil || !strings.Contains(string(b[:n]), "started") {
		t.Fatalf("%q, %v", b[:n], err)
	}
	for deadline := time.Now().Add(time.Minute); len(withArgument(t, mark)) == 0; time.Sleep(10 * time.Millisecond) { // the shell does not wait for it to begin
		if time.Now().After(deadline) {
			t.Fatal("the machine's process is not seen from outside")
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	for deadline := time.Now().Add(30 * time.Second); len(withArgument(t, mark)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("left: %v", withArgument(t, mark))
		}
	}
}

// withArgument are the processes with an argument.
func withArgument(t *testing.T, argument string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), "\x00"+argument+"\x00") {
			found = append(found, f)
		}
	}
	return found
}
