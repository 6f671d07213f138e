package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/cmd/processes"
)

// Small files by Hadoop's own client, unchanged: one virtual machine with so many threads.
const (
	javaThreads = 64
	javaBytes   = 4 << 10
	// javaWarm is how long it writes and reads before it is measured: the virtual machine goes on compiling for as long (files a second: 220, 410, 500, 540, 590, 670 in turns of 8 s).
	javaWarm     = 100 * time.Second
	javaTime     = 4 * time.Second // for each of writing and reading
	rowJavaWrite = "write 4 KiB x1, Hadoop's client"
	rowJavaRead  = "read 4 KiB x1, Hadoop's client"
)

// javaSmall has Hadoop's client write and read small files on hops and on HDFS, in turns, and adds what comes of it to the table of the group.
func (r *runner) javaSmall(ctx context.Context, sides []side) error {
	t := r.report.Tables[len(r.report.Tables)-1]
	var jars *hadoop
	for _, s := range sides {
		if h, ok := s.(*hadoop); ok {
			jars = h
		}
	}
	clients := make([]*javaClient, len(sides))
	defer func() {
		for _, c := range clients {
			c.stop()
		}
	}()
	run := func(i int, what string, patience time.Duration) ([]bench.Result, error) {
		s := sides[i]
		b, err := r.load(ctx, s, func(o *bench.Options) { o.Connections, o.Outstanding, o.Client = 1, 1, clients[i].pid() })
		if err != nil {
			return nil, err
		}
		results, err := clients[i].small(ctx, s, b.Root, patience)
		if err != nil {
			err = fmt.Errorf("Hadoop's client on %s, %s: %w", s.label(), what, err)
		}
		return results, errors.Join(err, end(ctx, b))
	}
	for i, s := range sides {
		namenode := ""
		switch s := s.(type) {
		case *ours:
			namenode = s.addresses()[0]
		case *hadoop:
			namenode = s.nodes[0]
		}
		var err error
		if clients[i], err = r.startJavaClient(jars, namenode); err != nil {
			return err
		}
		if _, err := run(i, "warm-up", javaWarm/2); err != nil {
			return err
		}
	}
	for round := range (r.rounds + 1) / 2 {
		for turn := range sides {
			i := turn
			if round%2 == 1 {
				i = len(sides) - 1 - turn
			}
			r.quiet(sides, sides[i])
			if err := r.written(); err != nil {
				return err
			}
			results, err := run(i, fmt.Sprintf("round %d", round+1), javaTime)
			if err != nil {
				return err
			}
			for _, res := range results {
				r.say("%s on %s: p50 %.2f ms", res.Name, sides[i].label(), res.P50)
				t.add(sides[i].label(), res)
			}
		}
	}
	return nil
}

// small has the client write small files into a directory and read them, for a time each.
func (j *javaClient) small(ctx context.Context, s side, dir string, patience time.Duration) (results []bench.Result, err error) {
	servers := func() (sum float64) {
		for _, pid := range s.servers() {
			sum += bench.ProcessCPU(pid)
		}
		return sum
	}
	for _, phase := range []struct{ order, row string }{{"writes", rowJavaWrite}, {"reads", rowJavaRead}} {
		machine, server, client := bench.MachineCPU(), servers(), bench.ProcessCPU(j.pid())
		began := time.Now()
		answer, err := j.ask(ctx, fmt.Sprintf("%s %s %d %d %d", phase.order, dir, javaBytes, javaThreads, patience.Milliseconds()))
		if err != nil {
			return nil, err
		}
		took := time.Since(began)
		server, client = servers()-server, bench.ProcessCPU(j.pid())-client
		res := bench.Result{Name: phase.row, Unit: "ops/s", Others: (bench.MachineCPU() - machine - server - client) / float64(took.Microseconds())}
		if _, err := fmt.Sscan(answer, &res.Ops, &res.PerSecond, &res.P50, &res.P99); err != nil {
			return nil, fmt.Errorf("Hadoop's client answers %q: %w", answer, err)
		}
		res.ServerCPU, res.ClientCPU = server/float64(res.Ops), client/float64(res.Ops)
		results = append(results, res)
	}
	return results, nil
}

//go:embed java/FilesDriver.java
var filesDriver []byte

// javaClient is Hadoop's client in a virtual machine of its own; nil: there is none.
type javaClient struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out chan string // closed when it ends
	log string
}

// startJavaClient runs the client with the jars of an HDFS, for the namenode at an address.
func (r *runner) startJavaClient(h *hadoop, namenode string) (*javaClient, error) {
	source := filepath.Join(h.dir, "FilesDriver.java")
	if err := os.WriteFile(source, filesDriver, 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(h.log("client-" + strings.ReplaceAll(namenode, ":", "-")))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	j := &javaClient{cmd: exec.Command("java", h.args("1g", source, []string{"hdfs://" + namenode})...), out: make(chan string), log: log.Name()}
	j.cmd.Stderr = log
	if j.in, err = j.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := processes.Spawn(j.cmd, syscall.SIGKILL); err != nil {
		return nil, err
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			j.out <- lines.Text()
		}
		_ = j.cmd.Wait()
		close(j.out)
	}()
	return j, nil
}

func (j *javaClient) pid() int {
	if j == nil {
		return 0
	}
	return j.cmd.Process.Pid
}

// do has the client do something with a file, and waits for it. A client that was interrupted is of no use any more.
func (j *javaClient) do(ctx context.Context, what, name string, size int64) error {
	_, err := j.ask(ctx, fmt.Sprintf("%s %s %d", what, name, size))
	return err
}

// ask is do for an order, and returns what is behind the "ok".
func (j *javaClient) ask(ctx context.Context, order string) (string, error) {
	if _, err := fmt.Fprintln(j.in, order); err != nil {
		return "", err
	}
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case answer, open := <-j.out:
		if !open {
			return "", fmt.Errorf("Hadoop's client ended by itself (%v)%s", j.cmd.ProcessState, complaint(processes.Tail(j.log, 100)))
		}
		rest, ok := strings.CutPrefix(answer, "ok")
		if !ok {
			return "", errors.New(answer)
		}
		return rest, nil
	}
}

func (j *javaClient) stop() {
	if j == nil {
		return
	}
	_ = j.cmd.Process.Kill()
	for range j.out {
		continue
	}
}
