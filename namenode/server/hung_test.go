package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/kv/faulty"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// silentDisk is a disk of which no read comes back while it is silent.
type silentDisk struct {
	mu      sync.Mutex
	silent  chan struct{} // nil: it answers
	waiting int
}

func (d *silentDisk) before(_ int, call faulty.Call) error {
	d.mu.Lock()
	silent := d.silent
	if silent != nil && (call == faulty.Get || call == faulty.Scan) {
		d.waiting++
	} else {
		silent = nil
	}
	d.mu.Unlock()
	if silent != nil {
		<-silent
	}
	return nil
}

func (d *silentDisk) fallSilent() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.silent, d.waiting = make(chan struct{}), 0
}

func (d *silentDisk) answer() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.silent != nil {
		close(d.silent)
		d.silent = nil
	}
}

func (d *silentDisk) waits() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting > 0
}

// watcher asks for pages, and gives up those that do not come.
type watcher struct {
	t    *testing.T
	m    *member
	http http.Client
}

func (w *watcher) get(path string) (code int, body string) {
	w.t.Helper()
	answer, err := w.http.Get("http://" + w.m.http + path)
	if err != nil {
		w.t.Error(err)
		return 0, ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Errorf("%s: %v", path, err)
	}
	return answer.StatusCode, string(text)
}

func (w *watcher) says(path string, code int, want ...string) {
	w.t.Helper()
	got, body := w.get(path)
	if got != code {
		w.t.Errorf("%s: %d, want %d: %s", path, got, code, body)
	}
	for _, text := range want {
		if !strings.Contains(body, text) {
			if path == "/metrics" {
				body = strings.Join(figureLines(body, "hops_"), "")
			}
			w.t.Errorf("%s says no %q: %s", path, text, body)
		}
	}
}

// figureLines are the lines of figures whose names begin so.
func figureLines(body, name string) (out []string) {
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, name) {
			out = append(out, line)
		}
	}
	return out
}

// A reader of a snapshot waits for a silent disk with the namespace locked, an entry waits for it, and everybody else for the entry. Who watches this namenode is told so, by every
// page, with what was known last; and however often they ask, what does not come is waited for once.
func TestPagesOfANamenodeWhoseDiskIsSilentAnswer(t *testing.T) {
	var disk silentDisk
	c := newCluster(t, 1, func(conf *Config) {
		conf.store = func(s kv.Store) kv.Store { return faulty.New(s, disk.before) }
		conf.Search = true
	})
	c.nodes[0].stop()
	c.slowApply = 200 * time.Millisecond
	c.start(0)
	c.await(0)
	t.Cleanup(disk.answer) // before it is stopped
	c.datanode("dn1")
	m := c.leader()
	if err := m.group.Raise(release.Snapshots); err != nil {
		t.Fatal(err)
	}
	ctx, fs := t.Context(), c.root()
	if err := fs.Mkdirs(ctx, "/d/gone", 0o755, true); err != nil {
		t.Fatal(err)
	}
	if err := fs.AllowSnapshot(ctx, "/d", true); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.CreateSnapshot(ctx, "/d", "s"); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Delete(ctx, "/d/gone", true); err != nil {
		t.Fatal(err)
	}
	if err := m.group.Save(); err != nil {
		t.Fatal(err)
	}
	// One that this namenode has never heard of: only the namespace says what is wanted of it.
	m.known.nodes.Store(&map[string]knownNode{"lost": {IP: "127.0.0.1", Host: "lost", Transfer: 1}})
	m.started.Store(new(time.Now().Add(-time.Hour)))

	w := &watcher{t: t, m: m, http: http.Client{Timeout: limit}}
	pages := []string{"/", "/livez", "/readyz", "/health", "/metrics", "/jmx", "/api/v1/datanodes"}
	_, body := w.get("/metrics")
	known := append(figureLines(body, "hops_namenode_directories "), "hops_namenode_datanodes{state=\"live\"} 1\n", "hops_namenode_datanodes{state=\"dead\"} 1\n")
	fresh := fmt.Sprintf("hops_namenode_figures_late_seconds{of=%q} 0\n", theNamespace)
	w.says("/health", 200, `"ready":true`, `"dead_datanodes":1`)
	w.says("/metrics", 200, append(known, fresh, "hops_raft_stuck{group=\"namespace\"} 0\n", "hops_raft_stuck_seconds{group=\"namespace\"} 0\n")...)
	w.says("/jmx", 200, "FSNamesystemState")

	var hung sync.WaitGroup
	t.Cleanup(hung.Wait)
	t.Cleanup(disk.answer)
	began := time.Now()
	disk.fallSilent()
	hung.Go(func() { _, _ = fs.Stat(ctx, "/d/.snapshot/s/gone") }) // how it ends is no matter here
	eventually(t, "a reader waits for the disk", disk.waits)
	hung.Go(func() { _ = c.root().Mkdirs(ctx, "/e", 0o755, true) })
	eventually(t, "the namespace is stuck", func() bool { return m.group.Status().Stuck })

	eventually(t, "it is said to hang", func() bool { // the figures have to be late for as long
		_, body := w.get("/metrics")
		return !strings.Contains(body, fresh)
	})
	w.says("/livez", 200, "ok\n")
	w.says("/readyz", 503, "[-]active its namespace is stuck at entry ", ", since 20")
	w.says("/", 200, "not ready (active): its namespace is stuck at entry ")
	w.says("/metrics", 200, append(known, "hops_ready{role=\"namenode\"} 0\n", "hops_raft_stuck{group=\"namespace\"} 1\n", "hops_figures_late_seconds{role=\"namenode\"} 0\n")...)
	w.says("/jmx", 200, "FSNamesystemState", "\"FilesTotal\"")
	w.says("/api/v1/datanodes", 200, `"uuid":"dn1"`, `"uuid":"lost"`)
	w.says("/api/v1/cluster/machines?user.name="+m.config.Door.Daemon(), 503, "its namespace is stuck at entry ")
	code, text := w.get("/health")
	var h struct {
		status.Health
		Stuck      bool      `json:"stuck"`
		StuckAt    uint64    `json:"stuck_at"`
		StuckSince time.Time `json:"stuck_since"`
		Late       []overdue `json:"late"`
		Live       int       `json:"live_datanodes"`
		Dead       int       `json:"dead_datanodes"`
	}
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		t.Fatal(err, text)
	}
	if code != 503 || h.Ready || h.State != "active" || !h.Stuck || h.StuckAt == 0 || !strings.Contains(h.Problem, "is stuck at entry") || h.Live != 1 || h.Dead != 1 {
		t.Errorf("/health: %d %+v", code, h)
	}
	if since := h.StuckSince; since.Before(began.Add(-time.Second)) || since.After(time.Now()) {
		t.Errorf("it is said to be stuck since %v, the disk is silent since %v", since, began)
	}
	if len(h.Late) == 0 || h.Late[0].What != theNamespace || h.Late[0].AsOf == "" {
		t.Errorf("late is %+v", h.Late)
	}

	rpc := m.rpc(t)
	all := hadoop.DatanodeReportTypeProto_ALL
	var report hadoop.GetDatanodeReportResponseProto
	if err := rpc.Call(ctx, clientprotocol.Name, "getDatanodeReport", &hadoop.GetDatanodeReportRequestProto{Type: &all}, &report); err != nil || len(report.Di) != 2 {
		t.Errorf("datanodes by RPC: %v, %v", report.Di, err)
	}
	if err := rpc.Call(ctx, clientprotocol.Name, "getFsStats", &hadoop.GetFsStatusRequestProto{}, new(hadoop.GetFsStatsResponseProto)); err != nil {
		t.Error(err)
	}
	ha, err := hrpc.Dial(ctx, m.ipc, hrpc.DialConfig{Protocol: clientprotocol.HAName, User: m.config.Door.Daemon(), DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer ha.Close()
	var st hadoop.GetServiceStatusResponseProto
	if err := ha.Call(ctx, clientprotocol.HAName, "getServiceStatus", &hadoop.GetServiceStatusRequestProto{}, &st); err != nil ||
		st.GetReadyToBecomeActive() || !strings.Contains(st.GetNotReadyReason(), "is stuck at entry") {
		t.Errorf("its service status is %v, %v", &st, err)
	}

	var asking sync.WaitGroup
	for _, path := range pages {
		for range 20 {
			asking.Go(func() { w.get(path) })
		}
	}
	asking.Wait()
	var stacks bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(stacks.String(), "internal/latest.(*Value[...]).run("); n != 3 { // for the state, for the datanodes that were not heard of, and who looks whether it is stuck
		t.Errorf("%d wait for what does not come, want one for each of three kinds", n)
	}

	// Datanodes go on to be heard, those that come anew too: else each of them would leave a stream behind whenever it tries again.
	heard := func() time.Time {
		for _, n := range m.Datanodes() {
			if n.Node.ID == "dn1" {
				return n.LastBeat
			}
		}
		t.Error("dn1 is not there any more")
		return time.Time{}
	}
	for range 3 { // one beat is taken in before the one before is answered
		last := heard()
		eventually(t, "another beat is heard", func() bool { return heard().After(last) })
	}
	c.datanode("dn2")

	disk.answer()
	hung.Wait()
	eventually(t, "it works", func() bool { return !m.group.Status().Stuck })
	w.says("/health", 200, `"ready":true`)
	if _, body := w.get("/metrics"); strings.Contains(body, known[0]) {
		t.Errorf("the directory that was made meanwhile is not there: still %s", known[0])
	}
	w.says("/metrics", 200, fresh, "hops_raft_stuck{group=\"namespace\"} 0\n")
}

// What a namenode that is asked for the first time while it hangs cannot say, it leaves out.
func TestFiguresThatAreNotKnownAreLeftOut(t *testing.T) {
	x := &sight{}
	x.state.Late = time.Now().Add(-time.Hour)
	late := x.late()
	if len(late) != 1 || late[0].What != theNamespace || late[0].AsOf != "" || strings.Contains(late[0].String(), "what is shown") {
		t.Errorf("late is %+v", late)
	}
	h := health{Leader: "nn1", State: "standby", Late: late}
	if problem := h.problem(); problem != late[0].String() {
		t.Errorf("its problem is %q", problem)
	}
	x.state.Late = time.Now()
	if h.Late = x.late(); len(h.Late) != 1 || h.problem() != "" {
		t.Errorf("a moment is a problem: %q", h.problem())
	}
}
