package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/client/shell"
	"github.com/gohops/hops/integration/cluster"
	"github.com/gohops/hops/integration/process"
)

// shellOn runs `hops fs` on clusters; the first one is the default.
func shellOn(ctx context.Context, t *testing.T, k []*cluster.Cluster, args ...string) (out, errs string, status int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	s := &shell.Shell{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr}
	s.Dial = func(uri string, _ map[string]string) (*dfs.Client, string, error) {
		address := strings.TrimPrefix(uri, "hdfs://")
		if uri == "" {
			address = address0(k[0])
		}
		c, err := dfs.New(dfs.Config{Namenodes: []string{address}, Replication: 1, Logger: slog.New(slog.DiscardHandler)})
		return c, "hdfs://" + address, err
	}
	status = s.Run(ctx, args)
	return stdout.String(), stderr.String(), status
}

func address0(k *cluster.Cluster) string { return k.File().Namenodes[0].IPC }

// cancelling cancels when something is written, and counts.
type cancelling struct {
	cancel context.CancelFunc
	n      int
}

func (w *cancelling) Write(p []byte) (int, error) {
	w.cancel()
	w.n += len(p)
	return len(p), nil
}

// A pipe stands where the copy writes, so that the copy is in its middle when it is interrupted.
func TestAnInterruptedCopyEndsInTheMiddleAndLeavesNothingHalf(t *testing.T) {
	k := cluster.Start(t, cluster.Config{})
	text := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // 16 MiB
	if err := k.Client("").FS().WriteFile(process.Context(t), "/big", text, false); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, c := range []struct{ verb, target, pipe string }{{"-cat", "", ""}, {"-get", "g", "g._COPYING_"}, {"-getmerge", "m", "m"}} {
		ctx, cancel := context.WithCancel(process.Context(t))
		defer cancel()
		args, written := []string{c.verb, "/big"}, make(chan int, 1)
		var held *os.File
		if c.pipe != "" {
			pipe := filepath.Join(dir, c.pipe)
			if err := syscall.Mkfifo(pipe, 0o644); err != nil {
				t.Fatal(err)
			}
			args = append(args, filepath.Join(dir, c.target))
			f, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			// Somebody has it open for writing, so that it ends when the copy has ended, whether that has opened it or not.
			if held, err = os.OpenFile(pipe, os.O_WRONLY, 0); err != nil {
				t.Fatal(err)
			}
			go func() {
				w := &cancelling{cancel: cancel}
				_, _ = io.Copy(w, f)
				written <- w.n
			}()
		}
		stdout, stderr := &cancelling{cancel: cancel}, &bytes.Buffer{}
		s := &shell.Shell{Stdout: stdout, Stderr: stderr, Dial: func(string, map[string]string) (*dfs.Client, string, error) {
			client, err := dfs.New(dfs.Config{Namenodes: []string{address0(k)}, Logger: slog.New(slog.DiscardHandler)})
			return client, "hdfs://" + address0(k), err
		}}
		status := s.Run(ctx, args)
		n := stdout.n
		if c.pipe != "" {
			held.Close()
			n = <-written
		}
		if status != shell.ExitAborted || n >= len(text) {
			t.Errorf("%v: status %d after %d of %d bytes", args, status, n, len(text))
		}
		if want := c.verb[1:] + ": interrupted\n"; stderr.String() != want {
			t.Errorf("%v: it says %q, want %q", args, stderr, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "g._COPYING_")); err == nil {
			t.Errorf("%v: the half file is left", args)
		}
	}
}

// -t says how many files are copied at a time: a pipe is a file whose copy ends when the test wants.
func TestCopiesRunAsManyAtATimeAsIsSaid(t *testing.T) {
	k := cluster.Start(t, cluster.Config{})
	for _, c := range []struct {
		threads string
		both    bool
	}{{"1", false}, {"2", true}, {"", true}} {
		ctx, cancel := context.WithTimeout(t.Context(), cluster.Patience)
		defer cancel()
		dir := filepath.Join(t.TempDir(), "tree"+c.threads)
		a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		if err := errors.Join(os.Mkdir(dir, 0o755), syscall.Mkfifo(a, 0o644), syscall.Mkfifo(b, 0o644)); err != nil {
			t.Fatal(err)
		}
		args := []string{"-put", dir, "/"}
		if c.threads != "" {
			args = []string{"-put", "-t", c.threads, dir, "/"}
		}
		ended := make(chan string, 1)
		go func() {
			_, errs, status := shellOn(ctx, t, []*cluster.Cluster{k}, args...)
			ended <- fmt.Sprintf("%d %s", status, errs)
		}()
		first, second := a, b
		if c.both { // the second one is being read before the first one has ended
			first, second = b, a
		}
		for _, name := range []string{first, second} {
			for {
				f, err := os.OpenFile(name, os.O_WRONLY|syscall.O_NONBLOCK, 0)
				if errors.Is(err, syscall.ENXIO) && ctx.Err() == nil { // nobody reads it yet
					syscall.Nanosleep(&syscall.Timespec{Nsec: 1e6}, nil)
					continue
				}
				if err != nil {
					t.Fatalf("-t %q: %s is not read: %v", c.threads, name, cmpErr(ctx.Err(), err))
				}
				if !c.both && name == a {
					if g, err := os.OpenFile(b, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
						g.Close()
						t.Errorf("-t 1: the second file is read beside the first")
					}
				}
				fmt.Fprintln(f, name)
				f.Close()
				break
			}
		}
		if got := <-ended; got != "0 " {
			t.Errorf("-t %q: %s", c.threads, got)
		}
	}
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// What copies say does not depend on which of them was faster.
func TestErrorsOfParallelCopiesComeInOrder(t *testing.T) {
	k := cluster.Start(t, cluster.Config{})
	ctx := process.Context(t)
	from, to := filepath.Join(t.TempDir(), "tree"), t.TempDir()
	var want strings.Builder
	for i := range 40 {
		name := fmt.Sprintf("%02d", i)
		if err := os.MkdirAll(from, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), []byte(strings.Repeat(name, i*1000)), 0o644); err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			if err := os.MkdirAll(filepath.Join(to, "tree", name), 0o755); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&want, "get: `%s': File exists\n", filepath.Join(to, "tree", name))
		}
	}
	if _, errs, status := shellOn(ctx, t, []*cluster.Cluster{k}, "-put", from, "/"); status != 0 {
		t.Fatal(errs)
	}
	_, errs, status := shellOn(ctx, t, []*cluster.Cluster{k}, "-get", "/tree", to)
	if status != shell.ExitError || errs != want.String() {
		t.Errorf("status %d:\n%s\nwant:\n%s", status, errs, want.String())
	}
	if text, err := os.ReadFile(filepath.Join(to, "tree", "38")); err != nil || len(text) != 2*38*1000 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	// Two sources of one name: the second one finds the first.
	same := []string{"-put", filepath.Join(from, "01"), filepath.Join(to, "tree", "01"), "/tree"}
	if _, errs, status := shellOn(ctx, t, []*cluster.Cluster{k}, append(same[:1:1], append([]string{"-f"}, same[1:]...)...)...); status != 0 {
		t.Error(errs)
	}
}

func TestPathsMayBeInSeveralFilesystems(t *testing.T) {
	k := []*cluster.Cluster{cluster.Start(t, cluster.Config{}), cluster.Start(t, cluster.Config{})}
	ctx := process.Context(t)
	one, two, here := "hdfs://"+address0(k[0]), "hdfs://"+address0(k[1]), t.TempDir()
	if err := os.WriteFile(filepath.Join(here, "f"), []byte("of this machine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := k[0].Client("").FS().Mkdirs(ctx, "/d", 0o755, true); err != nil {
		t.Fatal(err)
	}
	if err := k[0].Client("").FS().WriteFile(ctx, "/d/f", []byte("of the first\n"), false); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		out  string
	}{
		{"-cp " + one + "/d " + two + "/", ""},
		{"-cat " + two + "/d/f", "of the first\n"},
		{"-cp " + two + "/d/f /again", ""},
		{"-cat /again " + two + "/d/f file://" + here + "/f", "of the first\nof the first\nof this machine\n"},
		{"-ls -C file://" + here, "file://" + here + "/f\n"},
		{"-put file:" + here + "/f " + two + "/put", ""},
		{"-get " + two + "/put file://" + here + "/got", ""},
		{"-cp file://" + here + "/f " + one + "/d " + two + "/d", ""},
		{"-ls -C -R " + two + "/d", two + "/d/d\n" + two + "/d/d/f\n" + two + "/d/f\n"},
		{"-mkdir -p file://" + here + "/x/y", ""},
		{"-cp -f /d/f file://" + here + "/got", ""},
		{"-mv file://" + here + "/got file://" + here + "/x/y", ""},
		{"-du -s file://" + here + "/x/y/got", "13  13  file://" + here + "/x/y/got\n"},
		{"-count file://" + here + "/x", "           2            1                 13 file://" + here + "/x\n"},
		{"-test -d file://" + here + "/x", ""},
		{"-stat %n,%b,%F file://" + here + "/f", "f,16,regular file\n"},
		{"-rm -r file://" + here + "/x", "Deleted file://" + here + "/x\n"},
	} {
		out, errs, status := shellOn(ctx, t, k, strings.Fields(c.args)...)
		if strings.HasPrefix(c.args, "-cp file:") { // /d/f is there already; the rest is copied
			if status != 1 || errs != "cp: `"+two+"/d/f': File exists\n" {
				t.Errorf("%s: status %d, %s", c.args, status, errs)
			}
			continue
		}
		if status != 0 || out != c.out || errs != "" {
			t.Errorf("%s: status %d, %q, %s; want %q", c.args, status, out, errs, c.out)
		}
	}
	if _, errs, status := shellOn(ctx, t, k, "-setrep", "2", "file://"+here+"/f"); status != 1 || !strings.Contains(errs, "not on files of this machine") {
		t.Errorf("status %d, %s", status, errs)
	}
	if _, errs, status := shellOn(ctx, t, k, "-mv", one+"/d/f", two+"/"); status != 1 || !strings.Contains(errs, "Does not match target filesystem") {
		t.Errorf("status %d, %s", status, errs)
	}
}

// -l has one replica written to memory first.
func TestPutLazily(t *testing.T) {
	k := cluster.Start(t, cluster.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Patience)
	defer cancel()
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, bytes.Repeat([]byte("lazy"), 50_000), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, args := range map[string][]string{"/lazy": {"-put", "-l", file, "/lazy"}, "/hot": {"-put", file, "/hot"}} {
		if _, errs, status := shellOn(ctx, t, []*cluster.Cluster{k}, args...); status != 0 {
			t.Fatal(errs)
		}
		st, err := k.Client("").FS().Stat(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		if lazy := path == "/lazy"; (st.StoragePolicy == 15) != lazy || lazy && st.Replication != 1 {
			t.Errorf("%s has the storage policy %d and %d replicas", path, st.StoragePolicy, st.Replication)
		}
	}
}
