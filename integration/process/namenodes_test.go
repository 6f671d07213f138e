package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
)

// One cluster of three namenodes and three datanodes goes through all of this, a fault after the other, as clusters do.
func TestFilesystemOfProcessesThatDie(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("six processes")
	}
	k := Start(t, processes.Config{
		Namenodes: 3, Datanodes: 3,
		Properties: map[string]string{"dfs.replication": "2", "dfs.blocksize": "1MiB"},
	})
	fs := Dial(t, k.Conf(), "").FS()
	faults := []struct {
		name string
		run  func(*testing.T, *Cluster, *dfs.Client)
	}{
		{"each namenode killed in turn", eachNamenodeKilled},
		{"the leader frozen and thawed reads nothing stale", leaderFrozen},
		{"a datanode killed in the middle of a write", datanodeKilledMidWrite},
		{"the leader's disk takes no more", leaderCannotWrite},
		{"all processes killed at once", allKilled},
	}
	for _, f := range faults {
		ok := t.Run(f.name, func(t *testing.T) { f.run(t, &Cluster{k.Cluster, t}, fs) })
		if !ok {
			break // what follows would fail for the same reason
		}
	}
}

func mkdir(t *testing.T, fs *dfs.Client, dir string) {
	t.Helper()
	if err := fs.Mkdirs(Context(t), dir, 0o755, true); err != nil {
		t.Fatal(err)
	}
}

func eachNamenodeKilled(t *testing.T, k *Cluster, fs *dfs.Client) {
	mkdir(t, fs, "/turns")
	h := NewHistory(t, "/turns")
	h.Start(
		func(ctx context.Context) { h.Puts(ctx, 1, k.Conf()) },
		func(ctx context.Context) { h.Calls(ctx, 2, fs) },
	)
	for _, n := range k.File().Namenodes {
		h.More(30)
		leads := k.Leader(fs) == n.ID
		k.must(k.Kill(n.ID))
		t.Logf("%s killed, leader: %v; 10 more operations acknowledged after %v", n.ID, leads, h.More(10))
		k.must(k.Start(n.ID))
		k.AwaitMember(fs, n.IPC)
	}
	h.More(10)
	h.End()
	h.Verify(fs)
}

// leaderFrozen stops the leader for longer than its followers wait. When it goes on it must not answer from its old state.
func leaderFrozen(t *testing.T, k *Cluster, fs *dfs.Client) {
	ctx := Context(t)
	dial := func(namenodes ...string) *dfs.Client {
		c, err := dfs.New(dfs.Config{Namenodes: namenodes, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	if err := fs.WriteFile(ctx, "/frozen", []byte("old"), true); err != nil {
		t.Fatal(err)
	}
	var leader, address string
	var others []string
	var old *dfs.Client
	k.Await("a leader that answers", func() error { // on a busy machine another one may be elected meanwhile
		leader, others = k.Leader(fs), nil
		for _, n := range k.File().Namenodes {
			if n.ID == leader {
				address = n.IPC
			} else {
				others = append(others, n.IPC)
			}
		}
		old = dial(address)
		asking, cancel := context.WithTimeout(ctx, Patience/4)
		defer cancel()
		got, err := old.ReadFile(asking, "/frozen")
		if err == nil && string(got) != "old" {
			err = fmt.Errorf("%q", got)
		}
		return err
	})
	fresh := dial(others...)
	k.must(k.Signal(leader, syscall.SIGSTOP))
	defer func() { _ = k.Signal(leader, syscall.SIGCONT) }()
	started := time.Now()
	if err := fresh.WriteFile(ctx, "/frozen", []byte("new"), true); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s frozen; next write acknowledged after %v", leader, time.Since(started))
	// Reads that begin after the write was acknowledged wait at the frozen leader's door. They are answered when it goes
	// on, and none may be answered with what was there before.
	type answer struct {
		data []byte
		err  error
	}
	answers := make(chan answer, 8)
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	for range cap(answers) {
		go func() {
			got, err := old.ReadFile(asking, "/frozen")
			answers <- answer{got, err}
		}()
	}
	time.Sleep(max(0, 5*time.Second-time.Since(started)))
	k.must(k.Signal(leader, syscall.SIGCONT))
	time.AfterFunc(time.Second, cancel) // a namenode that leads no more leaves them waiting
	stale := 0
	for range cap(answers) {
		a := <-answers
		if a.err == nil && string(a.data) != "new" {
			stale++
		}
	}
	if stale > 0 {
		t.Errorf("%d reads were answered with what had been overwritten", stale)
	}
	k.AwaitMember(fs, address)
	if got, err := fs.ReadFile(ctx, "/frozen"); err != nil || string(got) != "new" {
		t.Errorf("%q, %v", got, err)
	}
}

// datanodeKilledMidWrite kills each datanode in turn while a file is written; the writer must finish.
func datanodeKilledMidWrite(t *testing.T, k *Cluster, fs *dfs.Client) {
	ctx := Context(t)
	mkdir(t, fs, "/midwrite")
	for _, name := range []string{"dn1", "dn2", "dn3"} {
		file := "/midwrite/" + name
		w, err := fs.Create(ctx, file, dfs.CreateOptions{Replication: 3})
		if err != nil {
			t.Fatal(err)
		}
		chunk := bytes.Repeat([]byte(name+" "), 100<<10/4)
		var want []byte
		write := func(n int) {
			t.Helper()
			for range n {
				if _, err := w.Write(chunk); err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				want = append(want, chunk...)
			}
		}
		write(3)
		if err := w.Hflush(ctx); err != nil {
			t.Fatal(err)
		}
		flushed := len(want)
		k.must(k.Kill(name))
		started := time.Now()
		write(12) // over the end of the block, too
		if err := w.Close(); err != nil {
			t.Fatalf("%s: close: %v", file, err)
		}
		took := time.Since(started)
		got, err := fs.ReadFile(ctx, file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes that are not the %d written (%d flushed before the kill)", file, len(got), len(want), flushed)
		}
		k.must(k.Start(name))
		k.AwaitDatanodes(fs, 3)
		t.Logf("%s killed after %d bytes; the rest took %v", name, flushed, took)
	}
}

// allKilled ends every process at once, in the middle of writes, as a power cut would (the kernel keeps what was written).
func allKilled(t *testing.T, k *Cluster, fs *dfs.Client) {
	mkdir(t, fs, "/cut")
	h := NewHistory(t, "/cut")
	h.Start(
		func(ctx context.Context) { h.Puts(ctx, 1, k.Conf()) },
		func(ctx context.Context) { h.Calls(ctx, 2, fs) },
	)
	t.Logf("60 operations took %v", h.More(60))
	k.must(k.Kill(k.Names()...))
	started := time.Now()
	h.End()
	t.Logf("clients whose cluster is gone were stopped after %v", time.Since(started))
	k.must(k.StartAll())
	started = time.Now()
	k.Ready()
	t.Logf("all there again after %v", time.Since(started))
	h.Verify(fs)
	k.Await("the end of the safe mode", func() error { // another leader may have come, who hears of the blocks anew
		safe, err := fs.SafeMode(Context(t), dfs.SafeModeGet)
		if err == nil && safe {
			err = errors.New("on")
		}
		return err
	})
}

// leaderCannotWrite makes every write of the leader fail. It must acknowledge nothing from then on; the others go on.
func leaderCannotWrite(t *testing.T, k *Cluster, fs *dfs.Client) {
	mkdir(t, fs, "/nodisk")
	h := NewHistory(t, "/nodisk")
	h.Start(func(ctx context.Context) { h.Calls(ctx, 2, fs) })
	h.More(20)
	leader := k.Leader(fs)
	k.MayEnd(leader)
	limitFiles(t, k.Pid(leader), 0)
	t.Logf("%s cannot write; 10 more operations acknowledged after %v", leader, h.More(10))
	select {
	case <-k.Ended(leader):
		t.Logf("it has ended itself, saying:\n%s", processes.Tail(k.Log(leader), 1))
	default:
		t.Logf("it runs on")
		k.must(k.Kill(leader))
	}
	k.must(k.Start(leader))
	h.More(10)
	h.End()
	h.Verify(fs)
	k.Ready()
}
