package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/integration/process"
)

// named are the datanodes of a block, by the names of their servers, in the order of its pipeline.
func (s *scene) named(b dfs.BlockLocation) []string {
	s.t.Helper()
	var names []string
	for _, d := range b.Datanodes {
		for _, name := range s.k.Names() {
			f, err := s.k.Server(name)
			s.must(err)
			if f.Datanode != nil && strings.HasSuffix(f.Datanode.Transfer, ":"+strconv.Itoa(d.TransferPort)) {
				names = append(names, name)
			}
		}
	}
	return names
}

// writing is a file that is being written, its blocks with so many replicas.
type writing struct {
	*dfs.Writer
	s    *scene
	name string
	want []byte
}

func (s *scene) write(name string, replicas int) *writing {
	s.t.Helper()
	return s.create(name, dfs.CreateOptions{Replication: replicas})
}

func (s *scene) create(name string, o dfs.CreateOptions) *writing {
	s.t.Helper()
	o.Parents = true
	w, err := s.fs.Create(context.Background(), name, o)
	s.must(err)
	return &writing{w, s, name, nil}
}

// more writes so many bytes, of which each says where it is.
func (w *writing) more(n int) {
	w.s.t.Helper()
	data := make([]byte, n)
	for i := range data {
		at := len(w.want) + i
		data[i] = byte(at>>16) ^ byte(at>>8) ^ byte(at)
	}
	if _, err := w.Write(data); err != nil {
		w.s.t.Fatalf("%s: %v", w.name, err)
	}
	w.want = append(w.want, data...)
}

// check reads the file.
func (w *writing) check() {
	w.s.t.Helper()
	got, err := w.s.fs.ReadFile(process.Context(w.s.t), w.name)
	if err != nil || !bytes.Equal(got, w.want) {
		w.s.t.Errorf("%s: %d bytes that are not the %d written, %v", w.name, len(got), len(w.want), err)
	}
}

// rest reads the file from a place on, where r is, in pieces of 64 KiB, and returns the longest wait for one.
func (w *writing) rest(r io.Reader, at int) (longest time.Duration) {
	buffer := make([]byte, 64<<10)
	for {
		began := time.Now()
		n, err := r.Read(buffer)
		longest = max(longest, time.Since(began))
		if at+n > len(w.want) || !bytes.Equal(buffer[:n], w.want[at:at+n]) {
			w.s.t.Errorf("%s: wrong bytes at %d", w.name, at)
			return longest
		}
		if at += n; err != nil {
			if !errors.Is(err, io.EOF) || at != len(w.want) {
				w.s.t.Errorf("%s: %d of %d bytes: %v", w.name, at, len(w.want), err)
			}
			return longest
		}
	}
}

// pipeline are the datanodes of the block that is being written.
func (w *writing) pipeline() []string {
	w.s.t.Helper()
	blocks, err := w.s.fs.BlockLocations(process.Context(w.s.t), w.name, 0, 1<<40)
	w.s.must(err)
	if len(blocks) == 0 {
		w.s.t.Fatalf("%s has no block", w.name)
	}
	return w.s.named(blocks[len(blocks)-1])
}

// dead waits until so many datanodes are declared dead.
func (s *scene) dead(n int) {
	s.t.Helper()
	s.until("dead datanodes", func() error {
		dead, err := s.fs.Datanodes(timeout(s.t, process.Patience/2), dfs.DeadDatanodes)
		if err == nil && len(dead) != n {
			err = fmt.Errorf("%d are", len(dead))
		}
		return err
	})
}

// D1: each datanode of a pipeline is killed in the middle of a write, then two of three.
func TestD1(t *testing.T) {
	s := begin(t, "D1", "each datanode of a pipeline killed; two of three").start(processes.Config{Namenodes: 1, Datanodes: 5, Properties: properties("2")})
	var rest, back worst
	for round, positions := range [][]int{{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}} {
		ctx := process.Context(t)
		s.warm()
		w := s.write(fmt.Sprintf("/fault/d1/%d", round), 3)
		w.more(300_000)
		s.must(w.Hflush(ctx))
		line := w.pipeline()
		if len(line) != 3 {
			t.Fatalf("a pipeline of %v", line)
		}
		began := time.Now()
		var killed []string
		for _, p := range positions {
			killed = append(killed, line[p])
		}
		s.must(s.k.Kill(killed...))
		w.more(2_500_000)
		s.must(w.Close())
		rest.add(time.Since(began))
		w.check()
		for _, name := range killed {
			s.must(s.k.Start(name))
		}
		back.add(s.healthy(2 * process.Patience))
	}
	s.note("the rest of the write: %s; all replicas there: %s", rest, back)
	s.settled()
}

// D3: bits flip in the files of one datanode's disk while it serves. Readers never see a wrong byte, and what is damaged is replaced.
func TestD3(t *testing.T) {
	s := begin(t, "D3", "1,000 bits flipped on one datanode's disk").start(processes.Config{
		Namenodes: 1, Datanodes: 3, Properties: properties("2"),
	})
	var files []*writing
	for i, size := range []int{1, 511, 512, 4096, 20_000, 70_000, 500_000, 1 << 20, 3_000_000} {
		for j := range 12 {
			w := s.write(fmt.Sprintf("/fault/kept/%d-%d", i, j), 2)
			w.more(size)
			s.must(w.Close())
			files = append(files, w)
		}
	}
	s.healthy(process.Patience)
	s.history.End()
	// A volume whose VERSION is damaged is one that failed, which a datanode with nothing else ends for.
	damaged := s.flip(slices.DeleteFunc(s.files(filepath.Join(filepath.Dir(s.k.Log("dn1")), "dn1")), func(name string) bool {
		return filepath.Base(name) == "VERSION"
	}), 1000)
	began := time.Now()
	var reading sync.WaitGroup
	for i := range 4 {
		reading.Go(func() {
			for j := i; j < len(files); j += 4 {
				files[j].check()
			}
		})
	}
	reading.Wait()
	read := time.Since(began)
	// What readers have found, and what its own look at its files finds, is replaced. Then dn1's copies are good: they are read alone.
	s.k.MayEnd("dn1")
	s.history.Verify(s.fs)
	_ = s.k.Kill("dn1")
	s.dead(1)
	healed := s.healthy(2 * process.Patience)
	for _, w := range files {
		w.check()
	}
	s.must(s.k.Start("dn1"))
	s.healthy(2 * process.Patience)
	s.note("%d places; %d files read right beside them in %.1f s; without that datanode all replicas there %.1f s after it was declared dead",
		strings.Count(damaged, ",")+1, len(files), read.Seconds(), healed.Seconds())
}

// D4: a volume of a datanode that has two is full, the other one is not.
func TestD4(t *testing.T) {
	r := begin(t, "D4", "a datanode's disk is full, and has room again")
	dir := process.Dir(t)
	disk := filepath.Join(dir, "dn1")
	r.mount(disk, 256<<20)
	s := r.start(processes.Config{Dir: dir, Namenodes: 1, Datanodes: 3, Properties: properties("2")})
	for range *repeats {
		s.warm()
		empty := s.fill(disk, 16<<10)
		s.history.More(60)
		empty()
		s.history.More(60)
	}
	s.note("%d times, writers went on", *repeats)
	s.settled()
}

// D5: a datanode is frozen while files on it are read and written.
func TestD5(t *testing.T) {
	s := begin(t, "D5", "a datanode frozen for 20 s").start(processes.Config{Namenodes: 1, Datanodes: 4, Properties: properties("2")})
	w := s.write("/fault/read", 2)
	w.more(24 << 20)
	s.must(w.Close())
	var reads, writes worst
	for range *repeats {
		ctx := process.Context(t)
		s.warm()
		r, err := s.fs.Open(ctx, w.name)
		s.must(err)
		first := make([]byte, 64<<10)
		if _, err := io.ReadFull(r, first); err != nil {
			t.Fatal(err)
		}
		blocks, err := s.fs.BlockLocations(ctx, w.name, 0, 1)
		s.must(err)
		frozen := s.named(blocks[0])[0]
		s.must(s.k.Signal(frozen, syscall.SIGSTOP))
		thaw := time.AfterFunc(20*time.Second, func() { _ = s.k.Signal(frozen, syscall.SIGCONT) })
		var longestWrite time.Duration
		var both sync.WaitGroup
		both.Go(func() {
			out := s.write(fmt.Sprintf("/fault/written-%d", len(writes)), 3)
			for range 12 {
				began := time.Now()
				out.more(1 << 20)
				if err := out.Hflush(ctx); err != nil {
					t.Error(err)
				}
				longestWrite = max(longestWrite, time.Since(began))
			}
			s.must(out.Close())
			out.check()
		})
		reads.add(w.rest(r, len(first)))
		r.Close()
		both.Wait()
		writes.add(longestWrite)
		thaw.Stop()
		s.must(s.k.Signal(frozen, syscall.SIGCONT))
		s.healthy(2 * process.Patience)
	}
	s.note("longest wait of a reader: %s; of a writer: %s", reads, writes)
	s.settled()
}

// D6: a datanode is away, its files are changed meanwhile, and it comes back.
func TestD6(t *testing.T) {
	row := begin(t, "D6", "a datanode dead while files grow, and back")
	row.keep = 2000 // what has to be copied would grow with each time
	s := row.start(processes.Config{Namenodes: 1, Datanodes: 3, Properties: properties("2")})
	var files []*writing
	for i := range 40 {
		w := s.write(fmt.Sprintf("/fault/grows/%d", i), 2)
		w.more(100_000 + i)
		s.must(w.Close())
		files = append(files, w)
	}
	read := s.write("/fault/read", 2)
	read.more(24 << 20)
	s.must(read.Close())
	var copied, reads, writes worst
	for range *repeats {
		s.warm()
		// Each operation has a time of its own: on a busy machine all of them together may take long, and none of them should.
		blocks, err := s.fs.BlockLocations(process.Context(t), read.name, 0, 1)
		s.must(err)
		away := s.named(blocks[0])[0]
		r, err := s.fs.Open(process.Context(t), read.name)
		s.must(err)
		first := make([]byte, 64<<10)
		_, err = io.ReadFull(r, first)
		s.must(err)
		s.must(s.k.Kill(away))
		var reading sync.WaitGroup
		reading.Go(func() { reads.add(read.rest(r, len(first))) })
		var longest time.Duration
		for _, w := range files {
			began := time.Now()
			more, err := s.fs.Append(process.Context(t), w.name)
			s.must(err)
			w.Writer = more
			w.more(1000)
			s.must(w.Close())
			longest = max(longest, time.Since(began))
		}
		writes.add(longest)
		reading.Wait()
		r.Close()
		s.dead(1)
		copied.add(s.healthy(2 * process.Patience))
		s.must(s.k.Start(away))
		s.k.AwaitDatanodes(s.fs, 3)
		s.healthy(2 * process.Patience)
		for _, w := range files {
			w.check()
		}
	}
	s.note("longest wait of a reader: %s; longest append of 1,000 bytes, with opening and closing: %s; after it was declared dead all replicas there: %s", reads, writes, copied)
	s.settled()
}

// D7: the leader is killed while a datanode that was away reports.
func TestD7(t *testing.T) {
	s := begin(t, "D7", "leader and a datanode killed together").start(three("2"))
	for i := range 4 * *repeats {
		s.warm()
		leader, datanode := s.k.Leader(s.fs), fmt.Sprintf("dn%d", i%3+1)
		s.must(s.k.Kill(datanode, leader))
		s.must(s.k.Start(datanode))
		time.Sleep(time.Duration(s.random.IntN(500)) * time.Millisecond)
		s.must(s.k.Start(leader))
		s.history.More(9)
		s.k.AwaitMember(s.fs, s.address(leader))
		s.k.AwaitDatanodes(s.fs, 3)
	}
	s.note("%d times", 4**repeats)
	s.settled()
}

// N7: a writer is frozen, another one takes its file over, and the first one goes on.
func TestN7(t *testing.T) {
	s := begin(t, "N7", "a frozen writer whose file another one takes").start(processes.Config{Namenodes: 1, Datanodes: 3, Properties: properties("2")})
	for i := range *repeats {
		ctx := process.Context(t)
		s.warm()
		name := fmt.Sprintf("/fault/n7-%d", i)
		cmd := exec.Command(process.Binary(t), "fs", "-appendToFile", "-", name)
		cmd.Env = process.Environ(t, s.k.Conf())
		var said bytes.Buffer
		cmd.Stderr = &said
		in, err := cmd.StdinPipe()
		s.must(err)
		s.must(cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		line := bytes.Repeat([]byte("first\n"), 100_000)
		_, err = in.Write(line)
		s.must(err)
		s.until("the file grows", func() error {
			st, err := s.fs.Stat(ctx, name)
			if err == nil && st.ID == 0 {
				err = errors.New("not yet")
			}
			return err
		})
		s.must(cmd.Process.Signal(syscall.SIGSTOP))
		s.until("the file is closed for it", func() error {
			closed, err := s.fs.RecoverLease(ctx, name)
			if err == nil && !closed {
				err = errors.New("not yet")
			}
			return err
		})
		second, err := s.fs.Append(ctx, name)
		s.must(err)
		_, err = second.Write([]byte("second\n"))
		s.must(errors.Join(err, second.Close()))
		want, err := s.fs.ReadFile(ctx, name)
		s.must(err)
		s.must(cmd.Process.Signal(syscall.SIGCONT))
		_, _ = in.Write(line)
		_ = in.Close()
		if err := cmd.Wait(); err == nil {
			t.Error("the first writer ended well")
		}
		got, err := s.fs.ReadFile(ctx, name)
		s.must(err)
		if !bytes.Equal(got, want) || !bytes.HasSuffix(got, []byte("second\n")) || len(got)-7 > len(line) {
			t.Errorf("%d bytes, %d when the second writer had ended", len(got), len(want))
		}
		t.Logf("the first one said: %s", strings.TrimSpace(said.String()))
	}
	s.note("%d times, the first one was refused", *repeats)
	s.settled()
}
