package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// outcome is what one command did.
type outcome struct {
	status         int
	stdout, stderr string
}

// runner runs one command line of a shell as a user against a cluster.
type runner func(ctx context.Context, c *cluster, user, stdin string, args []string) (outcome, error)

// driver is the JVM in which FsShell runs.
type driver struct {
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

// startDriver starts the JVM for some clusters.
func startDriver(classPath, dir string, clusters ...*cluster) (*driver, error) {
	conf := filepath.Join(dir, "driver-conf")
	if err := writeSite(conf, nil); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "driver.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	argv := append(append([]string{}, javaFlags...), "-cp", conf+":"+classPath, "ShellDriver")
	for _, c := range clusters {
		argv = append(argv, c.name+"="+c.conf)
	}
	d := &driver{process: exec.Command("java", argv...)}
	d.process.Env = append(os.Environ(), javaEnv()...)
	d.process.Stderr = log
	if d.in, err = d.process.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := d.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.out = bufio.NewReaderSize(out, 1<<20)
	return d, spawn(d.process)
}

// run is a runner.
func (d *driver) run(_ context.Context, c *cluster, user, stdin string, args []string) (outcome, error) {
	fields := []string{c.name, user, base64.StdEncoding.EncodeToString([]byte(stdin))}
	for _, a := range args {
		fields = append(fields, base64.StdEncoding.EncodeToString([]byte(a)))
	}
	if _, err := io.WriteString(d.in, strings.Join(fields, "\t")+"\n"); err != nil {
		return outcome{}, fmt.Errorf("the JVM of FsShell is gone: %w", err)
	}
	line, err := d.out.ReadString('\n')
	if err != nil {
		return outcome{}, fmt.Errorf("the JVM of FsShell is gone: %w", err)
	}
	answer := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
	if len(answer) != 3 {
		return outcome{}, fmt.Errorf("the JVM of FsShell answered %q", line)
	}
	status, err := strconv.Atoi(answer[0])
	if err != nil {
		return outcome{}, fmt.Errorf("the JVM of FsShell answered %q", line)
	}
	stdout, err := base64.StdEncoding.DecodeString(answer[1])
	if err != nil {
		return outcome{}, err
	}
	stderr, err := base64.StdEncoding.DecodeString(answer[2])
	if err != nil {
		return outcome{}, err
	}
	return outcome{status & 0xff, string(stdout), string(stderr)}, nil
}

// stop ends the JVM.
func (d *driver) stop() {
	d.in.Close()
	_ = d.process.Process.Kill()
	_ = d.process.Wait()
}
