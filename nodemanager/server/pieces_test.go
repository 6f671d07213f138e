package server

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/logpiece"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// pieces are those of a rolled log, in order, with their bytes.
func (m *memoryFS) pieces(name string) (begins []int64, texts []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for n := range m.files {
		if file, _ := logpiece.Parse(n); file == name {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		_, begin := logpiece.Parse(n)
		begins, texts = append(begins, begin), append(texts, m.files[n].String())
	}
	return begins, texts
}

// lines is what seq prints.
func lines(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// TestAnEndlessLogIsInPiecesOfTheFilesystem: a program that prints more than anybody keeps goes on, through a restart of the node manager and an
// outage of the filesystem, and what it printed first and last can be read where the container's directory is gone.
func TestAnEndlessLogIsInPiecesOfTheFilesystem(t *testing.T) {
	m, files, work := newManager(t, ""), newMemoryFS(), t.TempDir()
	configured := func() Config {
		c := baseConfig(t, work, m.address)
		c.NodeID = os.Getenv(nodeVariable)
		c.FS = func(string) (Filesystem, error) { return files, nil }
		c.LogLimit, c.LogRate, c.LogKeep = 1<<20, 1<<40, 64<<10
		return c
	}
	n := run(t, configured())
	const first, second, third = 10_000, 300_000, 600_000 // 49 kB are shipped before anything is cut, the whole is 4 MB
	s := spec(t, 2, "sh", "-c", fmt.Sprintf(`wait() { while [ ! -e $1 ]; do sleep 0.02; done; }
		seq 1 %d; wait go1; (setsid sh -c 'seq %d %d; touch printed' &); wait go2; seq %d %d`, first, first+1, second, second+1, third))
	s.LogDir = "/logs/" + s.ContainerId
	stdout := s.LogDir + "/stdout"
	m.start(s)
	touch := func(name string) {
		if err := os.WriteFile(filepath.Join(work, "containers", s.ContainerId, "work", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	begin := lines(first)
	eventually(t, "the first lines", func() bool { return files.get(stdout) == begin })
	n.close(false)
	touch("go1")
	eventually(t, "lines of an orphan while there is no node manager", func() bool {
		_, err := os.Stat(filepath.Join(work, "containers", s.ContainerId, "work", "printed"))
		return err == nil
	})
	run(t, configured())
	middle := lines(second)
	eventually(t, "the last of them", func() bool {
		begins, texts := files.pieces(stdout)
		last := len(texts) - 1
		return last > 0 && begins[last]+int64(len(texts[last])) == int64(len(middle)) && strings.HasSuffix(middle, texts[last])
	})
	files.setDown(true)
	touch("go2")
	if got := m.untilState(s.ContainerId, rmpb.ContainerStatus_COMPLETE); got.ExitStatus != 0 {
		t.Fatalf("%d %q", got.ExitStatus, got.Diagnostics)
	}
	files.setDown(false)
	m.order(&rmpb.NodeOrders{Cleanup: []string{s.ContainerId}})
	eventually(t, "directory removed", func() bool {
		_, err := os.Stat(filepath.Join(work, "containers", s.ContainerId))
		return os.IsNotExist(err)
	})
	all := lines(third)
	begins, texts := files.pieces(stdout)
	sum, end := 0, int64(0)
	for i, text := range texts {
		if begins[i] < end || !strings.HasPrefix(all[begins[i]:], text) || i > 0 && all[begins[i]-1] != '\n' { // each begins with a line
			t.Errorf("piece at %d of %d bytes is not what was printed there", begins[i], len(text))
		}
		end = begins[i] + int64(len(text))
		sum += len(text)
	}
	if !strings.HasPrefix(texts[0], begin) || end != int64(len(all)) || sum > 1<<20 {
		t.Errorf("%d pieces from %v, %d bytes, to %d of %d", len(texts), begins, sum, end, len(all))
	}
}

// TestOldPiecesGo: of a log that is shipped as it comes and never ends the filesystem has a bounded part.
func TestOldPiecesGo(t *testing.T) {
	files := newMemoryFS()
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	c.LogLimit, c.LogRate, c.LogKeep = 1<<20, 1<<40, 64<<10
	c.FS = func(string) (Filesystem, error) { return files, nil }
	n := run(t, c)
	s := &shipper{c: &container{server: n.Server, log: n.log}, files: map[string]*shipment{}, fsys: files, began: time.Now()}
	f := &shipment{done: -1, rolled: true}
	s.files["stdout"] = f
	log, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	reader, err := os.Open(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	all := lines(600_000)
	for at := 0; at < len(all); at += 100_000 {
		if _, err := io.WriteString(log, all[at:min(len(all), at+100_000)]); err != nil {
			t.Fatal(err)
		}
		if err := s.pieces(t.Context(), logReader{reader, true}, f, "/l/stdout", int64(min(len(all), at+100_000)), false); err != nil {
			t.Fatal(err)
		}
		begins, texts := files.pieces("/l/stdout")
		if sum := len(strings.Join(texts, "")); sum > 1<<20 || int64(sum) != f.most {
			t.Fatalf("%d bytes in the filesystem, %d counted", sum, f.most)
		}
		if end := begins[len(begins)-1] + int64(len(texts[len(texts)-1])); end != int64(min(len(all), at+100_000)) {
			t.Fatalf("the end is at %d", end)
		}
	}
	begins, texts := files.pieces("/l/stdout")
	if begins[0] != 0 || begins[1] == int64(len(texts[0])) || len(strings.Join(texts, "")) < 500_000 {
		t.Errorf("pieces from %v", begins)
	}
	for i := 2; i < len(begins); i++ {
		if begins[i] != begins[i-1]+int64(len(texts[i-1])) {
			t.Errorf("a piece between %d and %d is missing", begins[i-1], begins[i])
		}
	}
}

func TestAPieceEndsWithALine(t *testing.T) {
	long := strings.Repeat("x", lineSearch+10)
	for _, c := range []struct {
		read string
		more int64
		n    int
		full bool
	}{
		{"a\nb\n", 10, 4, false}, {"a\nb\n", 4, 4, false}, {"aa\nb\nc", 1, 3, true}, {"aa\nb\nc", 3, 5, true}, {"a\nb", -5, 2, true}, {"abc", 1, 3, false}, {long, 1, len(long), true},
	} {
		if n, full := pieceEnds([]byte(c.read), c.more); n != c.n || full != c.full {
			t.Errorf("%.10q and %d more: %d %v", c.read, c.more, n, full)
		}
	}
}
