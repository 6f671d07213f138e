package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// What an operator asks of the leader during an election is asked when there is one; if nobody answers it fails at once.
func TestAnElectionIsWaitedFor(t *testing.T) {
	looks := 0
	untilLed(t.Context(), func() (led, answered bool) {
		looks++
		return looks == 3, true
	})
	if looks != 3 {
		t.Errorf("%d looks until somebody led after two", looks)
	}
	looks = 0
	untilLed(t.Context(), func() (led, answered bool) {
		looks++
		return false, false
	})
	if looks != 1 {
		t.Errorf("%d looks where nobody answers", looks)
	}
	ctx, cancel := context.WithCancel(t.Context())
	untilLed(ctx, func() (led, answered bool) {
		cancel()
		return false, true
	})
}

// fakeManagers are two resource managers, of which the first leads.
type fakeManagers struct {
	mu      sync.Mutex // guards the next three
	leads   int
	hashes  []string
	calls   []string
	servers []*httptest.Server
}

func newFakeManagers(t *testing.T) *fakeManagers {
	f := &fakeManagers{hashes: []string{"same", "same"}}
	var addresses []string
	for i := range 2 {
		id := fmt.Sprint("rm", i+1)
		mux := http.NewServeMux()
		mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
			f.mu.Lock()
			defer f.mu.Unlock()
			state := "standby"
			if f.leads == i {
				state = "active"
			}
			fmt.Fprintf(w, `{"id":%q,"state":%q,"ready":true}`, id, state)
		})
		mux.HandleFunc("POST /api/v1/leader", func(w http.ResponseWriter, r *http.Request) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.leads = 1 - f.leads
			fmt.Fprint(w, "{}")
			f.calls = append(f.calls, id+" hands over to "+r.URL.Query().Get("to"))
		})
		mux.HandleFunc("POST /api/v1/admin/{what}", func(w http.ResponseWriter, r *http.Request) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.calls = append(f.calls, strings.TrimSpace(id+" "+r.PathValue("what")+" "+r.URL.Query().Get("check")))
			fmt.Fprintf(w, `{"hash":%q}`, f.hashes[i])
		})
		s := httptest.NewServer(mux)
		t.Cleanup(s.Close)
		f.servers = append(f.servers, s)
		addresses = append(addresses, s.URL)
	}
	t.Setenv("HOPS_RM", strings.Join(addresses, ","))
	t.Setenv("HADOOP_CONF_DIR", "")
	t.Setenv("HOPS_LOGIN", "")
	t.Setenv("HOME", t.TempDir())
	return f
}

func runRMAdmin(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	var text bytes.Buffer
	code, err := rmadmin(&hadoopTool{ctx: t.Context(), name: "rmadmin", out: &text, errOut: &text, properties: map[string]string{}}, args)
	if err != nil {
		t.Fatal(err)
	}
	return code, text.String()
}

func TestRMAdminOfSeveralResourceManagers(t *testing.T) {
	f := newFakeManagers(t)
	_, second, _ := strings.Cut(f.servers[1].URL, "://")
	for _, row := range []struct {
		args  string
		code  int
		words string
		calls string
	}{
		{"-getServiceState rm1", 0, "active\n", ""},
		{"-getServiceState rm2", 0, "standby\n", ""},
		{"-getServiceState rm9", 255, "Illegal argument: rm9 is not a valid serviceId. It should be one of rm1 rm2 \n", ""},
		{"-getServiceState", 255, "getServiceState: incorrect number of arguments", ""},
		{"-getAllServiceState", 0, fmt.Sprintf("%-50s %-10s\n", second, "standby"), ""},
		{"-checkHealth rm2", 0, "", ""},
		{"-transitionToActive rm1", 0, "", ""},
		{"-transitionToStandby rm2", 0, "", ""},
		{"-failover rm2 rm1", 0, "rm1 is active already", ""},
		{"-failover rm1 rm1", 255, "Failover failed: Can't failover a service to itself", ""},
		{"-failover rm1 rm2", 0, "Failover from rm1 to rm2 successful\n", "rm1 hands over to rm2"},
		{"-failover rm1 rm2", 0, "rm2 is active already", ""},
		{"-transitionToStandby rm2", 0, "", "rm2 hands over to"},
		{"-transitionToObserver rm2", 255, "transitionToObserver: not supported", ""},
		{"-refreshQueues", 0, "", "rm1 refresh-queues true|rm2 refresh-queues true|rm2 refresh-queues|rm1 refresh-queues"},
		{"-refreshAdminAcls", 0, "", "rm2 refresh-superusers|rm1 refresh-superusers"},
	} {
		f.calls = nil
		code, out := runRMAdmin(t, strings.Fields(row.args)...)
		if calls := strings.Join(f.calls, "|"); code != row.code || !strings.Contains(out, row.words) || strings.TrimSpace(calls) != row.calls {
			t.Errorf("%s: %d %q, calls %q; want %d %q, calls %q", row.args, code, out, calls, row.code, row.words, row.calls)
		}
	}
	f.calls, f.hashes[1] = nil, "other"
	if code, out := runRMAdmin(t, "-refreshQueues"); code != 255 || !strings.Contains(out, "rm1 and rm2 have different queues") || len(f.calls) != 2 {
		t.Errorf("files that differ: %d %q %v", code, out, f.calls)
	}
	f.hashes[1] = "same"
	f.servers[1].Close()
	if code, out := runRMAdmin(t, "-refreshQueues"); code != 0 || !strings.Contains(out, "does not answer, and will read its configuration when it starts") {
		t.Errorf("one is down: %d %q", code, out)
	}
	if code, out := runRMAdmin(t, "-getAllServiceState"); code != 255 || !strings.Contains(out, "Failed to connect: ") {
		t.Errorf("one is down: %d %q", code, out)
	}
}

func TestLabelsAreChangedInYARNsWords(t *testing.T) {
	for _, row := range []struct {
		args   []string
		status int
		words  string
		sent   string
	}{
		{[]string{"-addToClusterNodeLabels", "gpuA100(exclusive=true), h100( exclusive = false ),x"}, 0, "", `POST /ws/v1/cluster/add-node-labels {"nodeLabelInfo":[{"exclusivity":"true","name":"gpuA100"},{"exclusivity":"false","name":"h100"},{"exclusivity":"true","name":"x"}]}`},
		{[]string{"-addToClusterNodeLabels", "x(exclusive=maybe)"}, 255, "addToClusterNodeLabels: Input format for adding node-labels is not correct", ""},
		{[]string{"-addToClusterNodeLabels"}, 255, "addToClusterNodeLabels: No cluster node-labels are specified", ""},
		{[]string{"-removeFromClusterNodeLabels", "x,y"}, 0, "", "POST /ws/v1/cluster/remove-node-labels"},
		{[]string{"-removeFromClusterNodeLabels", " , "}, 255, "No cluster node-labels are specified", ""},
		{[]string{"-replaceLabelsOnNode", "n1=x,y n2:8041=z n3,w n4=", "-failOnUnknownNodes"}, 0, "", `POST /ws/v1/cluster/replace-node-to-labels {"nodeToLabels":[{"nodeId":"n1","labels":["x","y"]},{"nodeId":"n2:8041","labels":["z"]},{"nodeId":"n3","labels":["w"]},{"nodeId":"n4","labels":[]}]}`},
		{[]string{"-replaceLabelsOnNode", "=x"}, 255, "node name cannot be empty", ""},
		{[]string{"-replaceLabelsOnNode"}, 255, "No node-to-labels mappings are specified", ""},
	} {
		status, out, errs, sent := asked(t, map[string]string{
			"GET /health": `{"id":"rm1","state":"active","ready":true}`, "POST /ws/v1/cluster/add-node-labels": "", "POST /ws/v1/cluster/remove-node-labels": "", "POST /ws/v1/cluster/replace-node-to-labels": "",
		}, append([]string{"rmadmin"}, row.args...)...)
		if status != row.status || !strings.Contains(out+errs, row.words) || strings.Join(sent, "|") != row.sent {
			t.Errorf("%v: %d %s%s%v; want %d %s %s", row.args, status, out, errs, sent, row.status, row.words, row.sent)
		}
	}
}

// A directory that is meant and names no resource manager is a mistake: another cluster's is not asked instead, and nothing is no answer.
func TestRMAdminOfADirectoryWithoutResourceManagers(t *testing.T) {
	t.Setenv("HOPS_RM", "")
	t.Setenv("HADOOP_CONF_DIR", "")
	t.Setenv("HOPS_LOGIN", "")
	t.Setenv("HOME", t.TempDir())
	dir := t.TempDir()
	site := `<configuration><property><name>fs.defaultFS</name><value>hdfs://lab</value></property></configuration>`
	if err := os.WriteFile(filepath.Join(dir, "core-site.xml"), []byte(site), 0o644); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	tool := &hadoopTool{ctx: t.Context(), name: "rmadmin", out: &text, errOut: &text, properties: map[string]string{"-conf": dir}}
	if code, err := rmadmin(tool, []string{"-getAllServiceState"}); err == nil || !strings.Contains(err.Error(), dir+" names no resource manager") {
		t.Errorf("%d %v %s", code, err, text.String())
	}
}
