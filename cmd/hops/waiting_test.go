package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal returns the two ends of a pseudo-terminal: what a program sees, and what a person does.
func terminal(t *testing.T) (program, person *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminals: %v", err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program, person
}

// Nobody answers: a person at a terminal is told before the command gives up, and may end it.
func TestAPersonIsToldWhatACommandWaitsFor(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HADOOP_CONF_DIR", dir)
	for name, properties := range map[string][][2]string{
		"core-site.xml": {{"fs.defaultFS", "hdfs://lab"}},
		"hdfs-site.xml": {
			{"dfs.nameservices", "lab"},
			{"dfs.ha.namenodes.lab", "a,b"},
			{"dfs.namenode.rpc-address.lab.a", "127.0.0.1:1"},
			{"dfs.namenode.rpc-address.lab.b", "127.0.0.1:2"},
		},
	} {
		text := "<configuration>"
		for _, p := range properties {
			text += fmt.Sprintf("<property><name>%s</name><value>%s</value></property>", p[0], p[1])
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"</configuration>"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program, person := terminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan int, 1)
	go func() {
		done <- fsMain(ctx, []string{"-ls", "/"}, strings.NewReader(""), new(bytes.Buffer), program)
	}()
	line, err := bufio.NewReader(person).ReadString('\n')
	if err != nil || !strings.Contains(line, "waiting for the cluster") || !strings.Contains(line, "127.0.0.1:2") {
		t.Errorf("it says %q: %v", line, err)
	}
	cancel()
	<-done
}

func TestAScriptIsNotToldWhatACommandWaitsFor(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if waiting(w) != nil || waiting(new(bytes.Buffer)) != nil {
		t.Error("it is told")
	}
}
