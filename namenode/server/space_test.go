package server

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
)

// page fetches one of the pages about health.
func (m *member) page(t *testing.T, name string) (code int, h health) {
	t.Helper()
	answer, err := http.Get("http://" + m.http + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if name == "health" {
		var head status.Health
		body, err := io.ReadAll(answer.Body)
		if err = errors.Join(err, json.Unmarshal(body, &h), json.Unmarshal(body, &head)); err != nil {
			t.Fatal(err)
		}
		h.ID, h.State = head.ID, head.State
	}
	return answer.StatusCode, h
}

func TestFullDiskIsSafeModeOnAllDoors(t *testing.T) {
	var free atomic.Int64
	free.Store(8 << 30)
	c := newCluster(t, 1, nil)
	c.nodes[0].stop()
	c.reserve = 1 << 30
	c.disk = func(string) (int64, int64, error) { return free.Load(), 10 << 30, nil }
	c.start(0)
	c.await(0)
	m := c.leader()
	fs := c.root()
	if err := fs.Mkdirs(t.Context(), "/a", 0o755, true); err != nil {
		t.Fatal(err)
	}
	if status, h := m.page(t, "health"); status != 200 || h.SafeMode != "" || h.FreeBytes != 8<<30 || h.ReserveBytes != 1<<30 {
		t.Fatalf("with space: %d %+v", status, h)
	}
	free.Store(900 << 20)
	eventually(t, "the namespace is read-only", func() bool {
		return errors.Is(fs.Mkdirs(t.Context(), "/b", 0o755, true), metadata.ErrSafeMode)
	})
	if on, err := fs.SafeMode(t.Context(), dfs.SafeModeGet); err != nil || !on {
		t.Errorf("safe mode: %v, %v", on, err)
	}
	if status, h := m.page(t, "health"); status != 503 || !strings.Contains(h.SafeMode, "Resources are low on NN") {
		t.Errorf("/health: %d %q", status, h.SafeMode)
	}
	if status, _ := m.page(t, "readyz"); status != 503 {
		t.Errorf("/readyz: %d", status)
	}
	if _, err := fs.Stat(t.Context(), "/a"); err != nil {
		t.Errorf("a read: %v", err)
	}
	free.Store(8 << 30)
	eventually(t, "it goes on", func() bool { return fs.Mkdirs(t.Context(), "/b", 0o755, true) == nil })
	if status, _ := m.page(t, "readyz"); status != 200 {
		t.Errorf("/readyz with space again: %d", status)
	}
}

func TestCheckpointGivesUpBeforeTheDiskIsFull(t *testing.T) {
	store := mem.New()
	full := metadata.Errorf(metadata.ErrNoSpace, "full")
	asked, room := 0, error(nil)
	g := guarded{store, func() error { asked++; return room }}
	value := make([]byte, 512<<10)
	b := g.Batch(1)
	for i := range 16 {
		if err := b.Put([]byte{byte(i)}, value); err != nil {
			t.Fatal(err)
		}
	}
	if asked != 2 { // at the first byte, and after 4 MiB more
		t.Fatalf("asked %d times for 8 MiB", asked)
	}
	room = full
	var err error
	for i := 0; i < 16 && err == nil; i++ {
		err = b.Put([]byte{1, byte(i)}, value)
	}
	if !errors.Is(err, metadata.ErrNoSpace) {
		t.Fatalf("a batch went on: %v", err)
	}
	b.Cancel()
	err = g.Replace(2, func(put func(key, value []byte) error) error { return put([]byte("k"), value) })
	if !errors.Is(err, metadata.ErrNoSpace) {
		t.Fatalf("a replacement went on: %v", err)
	}
}

func TestEmptyMemberIsJoiningUntilItHasAVote(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	m := c.leader()
	eventually(t, "the leader has heard of the others", func() bool {
		status, h := m.page(t, "health")
		if status != 200 || h.Joining || len(h.Members) != 3 || !h.Members[0].Voter {
			t.Fatalf("the leader: %d %+v", status, h)
		}
		return h.Members[0].Known && h.Members[1].Known && h.Members[2].Known
	})
	for _, n := range c.nodes {
		n.stop()
	}
	if err := os.RemoveAll(filepath.Join(c.dir, "nn1")); err != nil {
		t.Fatal(err)
	}
	c.start(0)
	eventually(t, "the empty member says that it joins", func() bool {
		if !c.nodes[0].listens() {
			return false
		}
		status, h := c.nodes[0].page(t, "health")
		ready, _ := c.nodes[0].page(t, "readyz")
		return status == 503 && ready == 503 && h.Joining && h.State == "joining"
	})
	c.start(1)
	c.start(2)
	eventually(t, "it has a vote again", func() bool {
		status, h := c.nodes[0].page(t, "health")
		return status == 200 && !h.Joining && h.Lag == 0
	})
}

// listens: the HTTP port answers.
func (m *member) listens() bool {
	answer, err := http.Get("http://" + m.http + "/livez")
	if err != nil {
		return false
	}
	return answer.Body.Close() == nil
}

// What merging may write unasked grows with the tables, up to all that one merge takes.
func TestHeadroomGrowsWithTheTables(t *testing.T) {
	for tables, want := range map[int64]int64{0: headroomTables, 10 << 20: headroomTables + 20<<20, 4 << 30: headroomTables + 8<<30, 32 << 30: headroomTables + headroomCompact} {
		dir := t.TempDir()
		f, err := os.Create(filepath.Join(dir, "000001.sst"))
		if err == nil {
			err = errors.Join(f.Truncate(tables), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := (&headroom{dir: dir}).bytes(); got != want {
			t.Errorf("%d bytes of tables: %d are kept free, want %d", tables, got, want)
		}
	}
}
