package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/gpu"
	"github.com/gohops/hops/nodemanager/gpu/fake"
	"github.com/gohops/hops/nodemanager/state"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// TestReportAlwaysFitsAMessage: a node whose report is too large for the resource manager is lost, with everybody's work.
func TestReportAlwaysFitsAMessage(t *testing.T) {
	n, err := New(baseConfig(t, t.TempDir(), "127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer n.store.Close()
	defer n.config.HTTP.Close()
	long := strings.Repeat("x\xff", 10<<10)
	for i := range 1500 {
		c := n.newContainer(&state.Record{Spec: nodemanager.Spec{ID: nodemanager.ContainerID(containerName(i))}, State: nodemanager.Running})
		c.unrecorded = true
		c.complete(&state.Exit{Status: 1, Diagnostics: fmt.Sprintf("container %d\n%s", i, long)})
		n.mu.Lock()
		n.containers[c.id] = c
		n.mu.Unlock()
	}
	r := n.report(1)
	if size := proto.Size(r); size > 7<<20 {
		t.Errorf("%d containers make a report of %d bytes", len(r.Containers), size)
	}
	for _, c := range r.Containers {
		if !strings.HasPrefix(c.Diagnostics, "container ") {
			t.Fatalf("the first line is lost: %.100q", c.Diagnostics)
		}
	}
}

func TestGPUHealthIsReportedAtOnce(t *testing.T) {
	source, err := fake.Parse("gpus.yaml", []byte("gpus: [{uuid: GPU-a, model: Simulated H100, memory: 80GiB}]\nscript: [{at: 50ms, gpu: GPU-a, xid: 79}]"))
	if err != nil {
		t.Fatal(err)
	}
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	c.GPUs = gpu.Source(source)
	run(t, c)
	r := m.until("quarantine", func(r *rmpb.NodeReport) bool { return len(r.Gpus) == 1 && r.Gpus[0].Health == "QUARANTINED" })
	if !r.Gpus[0].Simulated || !strings.Contains(r.Gpus[0].HealthReason, "XID 79") || !strings.Contains(r.HealthReport, "simulated") || r.Capacity.Gpus != 1 {
		t.Errorf("%v", r)
	}
}

func TestDiskThatFillsUpMakesTheNodeUnhealthy(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	c.Reserve = 1 << 60
	n := run(t, c)
	r := m.until("report", func(*rmpb.NodeReport) bool { return true })
	if r.Healthy || !strings.Contains(r.HealthReport, "no more usable space") {
		t.Errorf("%v", r)
	}
	code, _, _ := n.get("/health", "")
	if code != http.StatusServiceUnavailable {
		t.Errorf("/health answers %d", code)
	}
}

// A node that an operator has leave says so, and is ready all the same; it forgets that when it serves again.
func TestANodeThatLeavesSaysSo(t *testing.T) {
	m := newManager(t, "")
	n := run(t, baseConfig(t, t.TempDir(), m.address))
	set := func(s *rmpb.NodeService) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.service = s
	}
	for _, row := range []struct {
		service *rmpb.NodeService
		words   []string
	}{
		{&rmpb.NodeService{State: "DECOMMISSIONING", By: "ops", DeadlineMs: 1_800_000_000_000}, []string{`"service":"DECOMMISSIONING"`, `"state":"decommissioning"`, "decommissioning, by ops: it gets no work, and what still runs is ended at 2027-01-15 08:00:00 UTC"}},
		{&rmpb.NodeService{State: "IN_MAINTENANCE", By: "ops", UntilMs: 1_800_000_000_000}, []string{`"service":"IN_MAINTENANCE"`, "in maintenance, by ops: it gets no work, until 2027-01-15 08:00:00 UTC"}},
		{nil, []string{`"state":"running"`}},
	} {
		set(row.service)
		var text string
		eventually(t, "/health to say "+strings.Join(row.words, " and "), func() bool {
			var code int
			code, text, _ = n.get("/health", "")
			return code == http.StatusOK && !slices.ContainsFunc(row.words, func(w string) bool { return !strings.Contains(text, w) })
		})
	}
}
