package fault

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/integration/process"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/metadata"
)

// codedDir is where files are erasure coded, each stripe of a group in six cells of 1 MiB and three of parity.
const codedDir = "/fault/coded"

// codedSizes are of less than a cell, of one, across cells and stripes, and of several groups.
var codedSizes = []int{100_000, 1 << 20, 2<<20 + 1, 6 << 20, 7<<20 + 12_345, 15<<20 + 1}

// coded starts a cluster with a directory of RS-6-3 and returns files in it.
func (r *row) coded(datanodes int) (*scene, []*writing) {
	r.t.Helper()
	s := r.start(processes.Config{
		Namenodes: 1, Datanodes: datanodes, Properties: properties("2"),
		Adjust: func(_ string, f *config.File) {
			if f.Datanode != nil {
				f.Datanode.RebuildRate = 16 << 20 // slow enough to be disturbed
			}
		},
	})
	s.must(s.fs.Mkdirs(process.Context(r.t), codedDir, 0o755, true))
	s.k.Hops().OK("ec", "-enablePolicy", "-policy", "RS-6-3-1024k")
	s.k.Hops().OK("ec", "-setPolicy", "-path", codedDir, "-policy", "RS-6-3-1024k")
	var files []*writing
	for i, size := range codedSizes {
		w := s.create(fmt.Sprintf("%s/%d", codedDir, i), dfs.CreateOptions{})
		w.more(size)
		s.must(w.Close())
		files = append(files, w)
	}
	s.healthy(process.Patience)
	return s, files
}

// checkAll reads files side by side.
func checkAll(files []*writing) {
	var reading sync.WaitGroup
	for _, w := range files {
		reading.Go(w.check)
	}
	reading.Wait()
}

// group are the datanodes of a file's first block group, those of the cells before those of the parity.
func (w *writing) group() []string {
	w.s.t.Helper()
	blocks, err := w.s.fs.BlockLocations(process.Context(w.s.t), w.name, 0, 1)
	w.s.must(err)
	names := w.s.named(blocks[0])
	if len(names) == 0 {
		w.s.t.Fatalf("%s lies nowhere: %+v", w.name, blocks)
	}
	return names
}

// some are n of the names, by chance.
func (s *scene) some(names []string, n int) []string {
	names = slices.Clone(names)
	s.random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names[:n]
}

func (s *scene) startAgain(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.must(s.k.Start(name))
	}
}

// E1: of nine datanodes one, two and three are killed while files are read; then three of twelve for good, twice, so that the second three have what was
// computed for the first.
func TestE1(t *testing.T) {
	s, files := begin(t, "E1", "one, two and three of the datanodes of block groups killed").coded(12)
	var reads, rebuilt worst
	for round := range *repeats {
		for lost := 1; lost <= 3; lost++ {
			s.warm()
			killed := s.some(files[(round+lost)%len(files)].group(), min(lost, len(files[(round+lost)%len(files)].group())))
			began := time.Now()
			s.must(s.k.Kill(killed...))
			checkAll(files)
			reads.add(time.Since(began))
			s.startAgain(killed...)
			s.healthy(2 * process.Patience)
		}
	}
	var gone []string
	for range 2 {
		whole := files[len(files)-1].group()
		killed := s.some(slices.DeleteFunc(whole, func(name string) bool { return slices.Contains(gone, name) }), 3)
		s.must(s.k.Kill(killed...))
		checkAll(files)
		s.dead(3)
		rebuilt.add(s.healthyBelow(codedDir, 4*process.Patience)) // of the load's files two replicas may be gone
		checkAll(files)
		s.startAgain(killed...)
		s.until("all datanodes", func() error { return s.live(12) })
		gone = killed
	}
	s.healthy(2 * process.Patience)
	s.note("all files read right after: %s; computed again after three were declared dead: %s", reads, rebuilt)
	s.settled()
}

// live is an error unless so many datanodes are.
func (s *scene) live(n int) error {
	all, err := s.fs.Datanodes(timeout(s.t, process.Patience/2), dfs.LiveDatanodes)
	if err == nil && len(all) != n {
		err = fmt.Errorf("%d live", len(all))
	}
	return err
}

// E2: four of the nine datanodes of a group are killed. Readers get an error or, from what is left of a short file, the right bytes; and when the
// datanodes are back, everything.
func TestE2(t *testing.T) {
	s, files := begin(t, "E2", "four of the datanodes of block groups killed").coded(9)
	refused, read := 0, 0
	for range *repeats {
		ctx := process.Context(t)
		s.warm()
		s.history.End() // two replicas of a load's file may lie on the four
		killed := s.some(files[len(files)-1].group(), 4)
		s.must(s.k.Kill(killed...))
		s.dead(4)
		for _, w := range files {
			began := time.Now()
			r, err := s.fs.Open(ctx, w.name)
			var got []byte
			if err == nil {
				got, err = io.ReadAll(r)
				r.Close()
			}
			switch {
			case !bytes.HasPrefix(w.want, got), err == nil && len(got) != len(w.want):
				t.Fatalf("%s: %d bytes that are not those written, %v", w.name, len(got), err)
			case err == nil:
				read++
			default:
				refused++
				if !errors.Is(err, metadata.ErrIO) && !errors.Is(err, metadata.ErrCorrupt) && !strings.Contains(err.Error(), "block") {
					t.Errorf("%s: %v", w.name, err)
				}
			}
			if d := time.Since(began); d > 2*process.Patience {
				t.Errorf("%s: an answer after %v", w.name, d)
			}
		}
		s.until("a corrupt filesystem", func() error {
			if r := s.k.Hops().Run("fsck", codedDir); !strings.Contains(r.Stdout, "is CORRUPT") {
				return errors.New(last(r.Stdout, 25))
			}
			return nil
		})
		s.startAgain(killed...)
		s.until("all datanodes", func() error { return s.live(9) })
		s.healthy(2 * process.Patience)
		checkAll(files)
		s.history.Start(s.load)
	}
	if refused == 0 {
		t.Error("every file was read without four of nine datanodes")
	}
	s.note("%d reads refused, %d of what was left", refused, read)
	s.settled()
}

// E3: datanodes are killed while stripes are written, the writer is, and datanodes are while lost blocks are computed.
func TestE3(t *testing.T) {
	s, files := begin(t, "E3", "kills while stripes are written, and computed").coded(11)
	for round := range *repeats {
		ctx := process.Context(t)
		// Datanodes, one after the other.
		s.warm()
		w := s.create(fmt.Sprintf("%s/written-%d", codedDir, round), dfs.CreateOptions{})
		w.more(2_500_000)
		killed := s.some(w.pipeline(), 2)
		s.must(s.k.Kill(killed[0]))
		w.more(5_000_000)
		s.must(s.k.Kill(killed[1]))
		w.more(7_000_000)
		s.must(w.Close())
		w.check()
		files = append(files, w)
		s.startAgain(killed...)
		s.until("all datanodes", func() error { return s.live(11) })
		s.healthy(4 * process.Patience)
		w.check()

		// The writer.
		name := fmt.Sprintf("%s/cut-%d", codedDir, round)
		want := bytes.Repeat([]byte("0123456789abcdef"), 600_000)
		cmd := exec.Command(process.Binary(t), "fs", "-put", "-", name)
		cmd.Env = process.Environ(t, s.k.Conf())
		in, err := cmd.StdinPipe()
		s.must(err)
		s.must(cmd.Start())
		_, err = in.Write(want[:7_000_000+s.random.IntN(2_000_000)])
		s.must(err)
		s.must(cmd.Process.Kill())
		_ = cmd.Wait()
		cut := ""
		s.until("its file is closed", func() error {
			for _, at := range []string{name + "._COPYING_", name} {
				closed, err := s.fs.RecoverLease(ctx, at)
				if errors.Is(err, metadata.ErrNotExist) {
					continue
				}
				if err == nil && !closed {
					err = errors.New("not yet")
				}
				cut = at
				return err
			}
			return nil
		})
		if cut != "" {
			got, err := s.fs.ReadFile(ctx, cut)
			if err != nil || !bytes.HasPrefix(want, got) {
				t.Errorf("what a killed writer left: %d bytes that are not those written, %v", len(got), err)
			}
			files = append(files, &writing{s: s, name: cut, want: got})
		}

		// Datanodes while blocks are computed of what two others had.
		lost := s.some(files[0].s.k.Names()[1:], 2)
		lost = slices.DeleteFunc(lost, func(name string) bool { return !strings.HasPrefix(name, "dn") })
		s.must(s.k.Kill(lost...))
		s.dead(len(lost))
		for range 4 {
			time.Sleep(time.Duration(200+s.random.IntN(800)) * time.Millisecond)
			one := s.some(s.running(lost), 1)[0]
			s.must(s.k.Kill(one))
			s.startAgain(one)
		}
		s.healthyBelow(codedDir, 4*process.Patience)
		checkAll(files)
		s.startAgain(lost...)
		s.until("all datanodes", func() error { return s.live(11) })
		s.healthy(2 * process.Patience)
	}
	checkAll(files)
	s.note("%d times; %d files", *repeats, len(files))
	s.settled()
}

// running are the datanodes that are not among those that are down.
func (s *scene) running(down []string) []string {
	return slices.DeleteFunc(slices.Clone(s.k.Names()), func(name string) bool { return !strings.HasPrefix(name, "dn") || slices.Contains(down, name) })
}

// E4: bits flip in what one datanode has of the groups, and two others are killed.
func TestE4(t *testing.T) {
	s, files := begin(t, "E4", "a damaged datanode of block groups and two dead ones").coded(9)
	s.history.End()
	var places int
	// All damage is to one datanode: nothing looks for what it does to files of two replicas before the next round.
	all := files[len(files)-1].group()
	one := s.some(all, 1)[0]
	others := slices.DeleteFunc(all, func(name string) bool { return name == one })
	for range *repeats {
		group := append([]string{one}, s.some(others, 2)...)
		damaged := s.files(filepath.Join(filepath.Dir(s.k.Log(group[0])), group[0]))
		damaged = slices.DeleteFunc(damaged, func(name string) bool { // a volume whose VERSION is damaged is one that failed, and its only one
			return filepath.Base(name) == "VERSION" || strings.HasSuffix(name, ".log")
		})
		places += strings.Count(s.flip(damaged, 1000), ",") + 1
		s.must(s.k.Kill(group[1:]...))
		checkAll(files)
		checkAll(files) // with what the first readers have said of it
		s.startAgain(group[1:]...)
		s.until("all datanodes", func() error { return s.live(9) })
		s.until("what is damaged is found", func() error {
			r := s.k.Hops().Run("fsck", codedDir)
			if r.Status != 0 {
				return errors.New(last(r.Stdout, 25))
			}
			return nil
		})
		s.healthy(4 * process.Patience)
		checkAll(files)
	}
	s.history.Verify(s.fs)
	s.note("%d places in %d rounds", places, *repeats)
}
