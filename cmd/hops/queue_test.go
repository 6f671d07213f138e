package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/resourcemanager/rest"
)

// queueTool runs hops queue against a resource manager that has the queues of the recordings, and returns what it was asked to change.
func queueTool(t *testing.T, args ...string) (status int, stdout, stderr, change string) {
	t.Helper()
	leaf := func(path, state string, capacity int) string {
		return fmt.Sprintf(`{"queueName":%q,"queuePath":%q,"state":%q,"capacity":%d.0,"usedCapacity":0.0,"maxCapacity":100.0,"weight":-1.0,"maxParallelApps":2147483647,"nodeLabels":["*"],"preemptionDisabled":true,"intraQueuePreemptionDisabled":true}`,
			path[strings.LastIndex(path, ".")+1:], path, state, capacity)
	}
	prod := strings.TrimSuffix(leaf("root.prod", "RUNNING", 60), "}") + `,"queues":{"queue":[` + strings.Join([]string{
		leaf("root.prod.stopped", "STOPPED", 10), leaf("root.prod.b", "RUNNING", 30), leaf("root.prod.a", "RUNNING", 40), leaf("root.prod.plan", "RUNNING", 20),
	}, ",") + `]}}`
	var asked bytes.Buffer
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ws/v1/cluster/scheduler", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"scheduler":{"schedulerInfo":{"queueName":"root","queuePath":"root","queues":{"queue":[%s,%s]}}}}`, leaf("root.default", "RUNNING", 40), prod)
	})
	mux.HandleFunc("GET /api/v1/queues", func(w http.ResponseWriter, _ *http.Request) {
		child := func(path string) rest.QueueView { return rest.QueueView{Path: path, State: "RUNNING"} }
		_ = json.NewEncoder(w).Encode(rest.QueuesView{Root: rest.QueueView{Path: "root", Children: []rest.QueueView{
			child("root.default"), {Path: "root.prod", Children: []rest.QueueView{child("root.prod.a"), child("root.prod.b")}}, child("root.b"),
		}}})
	})
	mux.HandleFunc("PATCH /api/v1/queues", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(&asked, "dry_run=%s force=%s ", r.URL.Query().Get("dry_run"), r.URL.Query().Get("force"))
		_, _ = io.Copy(&asked, r.Body)
		fmt.Fprint(w, `{"hash":"x","version":3,"affected":[{"queue":"root.b","text":"queue root.b uses too much"}]}`)
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	t.Setenv("HOPS_RM", s.URL)
	t.Setenv("HADOOP_CONF_DIR", "")
	t.Setenv("HOPS_LOGIN", "")
	t.Setenv("HOME", t.TempDir())
	var out, errs bytes.Buffer
	status = run(append([]string{"hops", "queue"}, args...), strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String(), strings.TrimSpace(asked.String())
}

func TestQueuesInYarnsWords(t *testing.T) {
	for name, args := range map[string][]string{
		"cli-queue-status": {"-status", "default"}, "cli-queue-status-unknown": {"-status", "nosuch"}, "cli-queue-list": {"-list", "all"},
	} {
		b, err := os.ReadFile(filepath.Join("testdata", "yarn", name+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		head, rest, _ := strings.Cut(string(b), "--- stdout\n")
		want, _, _ := strings.Cut(rest, "--- stderr")
		if name == "cli-queue-list" { // without the queue that is the plan's: narrower, and the same otherwise
			status, got, _, _ := queueTool(t, args...)
			fields := func(s string) (out []string) {
				for line := range strings.Lines(s) {
					if strings.HasPrefix(line, "| ") && !strings.Contains(line, "plan-default") && !strings.Contains(line, "queues were") {
						out = append(out, strings.Join(strings.Fields(line), " "))
					}
				}
				return out
			}
			if status != 0 || fmt.Sprint(fields(got)) != fmt.Sprint(fields(want)) || !strings.Contains(got, "6 queues were found") {
				t.Errorf("%s: %d\n%s", name, status, got)
			}
			lines := strings.Split(strings.TrimSpace(got), "\n")
			for _, line := range lines {
				if len(line) != len(lines[0]) {
					t.Errorf("a line of %d, not %d: %q", len(line), len(lines[0]), line)
				}
			}
			continue
		}
		status, got, _, _ := queueTool(t, args...)
		if got != want || !strings.Contains(head, fmt.Sprintf("exit code: %d", status)) {
			t.Errorf("%s: %d\n%s\nwant\n%s", name, status, got, want)
		}
	}
	if status, got, _, _ := queueTool(t, "-status", "root.prod.a"); status != 0 || !strings.Contains(got, "Queue Path : root.prod.a\n") {
		t.Errorf("%d %s", status, got)
	}
}

func TestQueuesAreChangedByCommands(t *testing.T) {
	for _, test := range []struct {
		args   string
		status int
		change string
		says   string
	}{
		{
			"set root.prod.a capacity=40% max_applications=10 acl_submit=ann,bob max= root.prod.b capacity=[memory=60%,gpu=8]", 0,
			`dry_run=false force=false {"root.prod.a":{"acl_submit":["ann","bob"],"capacity":"40%","max":null,"max_applications":10},"root.prod.b":{"capacity":"[memory=60%,gpu=8]"}}`, "queues are of version 3",
		},
		{"set --dry-run a preemption_disabled=true", 0, `dry_run=true force=false {"root.prod.a":{"preemption_disabled":true}}`, "queue root.b uses too much\n1 affected; nothing was changed"},
		{"create root.c capacity=10% default capacity=30%", 0, `dry_run=false force=false {"root.c":{"capacity":"10%"},"root.default":{"capacity":"30%"}}`, ""},
		{"delete --force root.prod.a root.prod.b capacity=100%", 0, `dry_run=false force=true {"root.prod.a":null,"root.prod.b":{"capacity":"100%"}}`, ""},
		{"stop a root.b", 0, `dry_run=false force=false {"root.b":{"state":"STOPPED"},"root.prod.a":{"state":"STOPPED"}}`, ""},
		{"start a", 0, `dry_run=false force=false {"root.prod.a":{"state":"RUNNING"}}`, ""},
		{"set b capacity=1%", exitUsage, "", "several queues are named b"},
		{"set root.nosuch capacity=1%", 1, "", "no queue"},
		{"set root.prod.a colour=red", exitUsage, "", "no word \"colour\""},
		{"set root.prod.a", exitUsage, "", "no word is given"},
		{"set capacity=1%", exitUsage, "", "name a queue first"},
		{"set root.prod.a max_applications=many", exitUsage, "", "neither a number"},
		{"create root.prod.a", 1, "", "there is a queue root.prod.a already"},
		{"create c", exitUsage, "", "as root.c"},
		{"stop a state=STOPPED", exitUsage, "", "name queues only"},
		{"delete a default root.b capacity=1w", 0, `dry_run=false force=false {"root.b":{"capacity":"1w"},"root.default":null,"root.prod.a":null}`, ""},
		{"delete a capacity=1%", exitUsage, "", "name queues only"},
		{"set root.b capacity=1% a", exitUsage, "", "no word is given for root.prod.a"},
		{"set a root.b capacity=1%", exitUsage, "", "no word is given for root.prod.a"},
		{"create root.c default", exitUsage, "", "no word is given for root.default"},
		{"set a acl_submit=ann,,bob,", 0, `dry_run=false force=false {"root.prod.a":{"acl_submit":["ann","bob"]}}`, ""},
		{"set a cells=node/8=4", 0, `dry_run=false force=false {"root.prod.a":{"cells":{"node/8":4}}}`, ""},
		{"set a cells=", 0, `dry_run=false force=false {"root.prod.a":{"cells":null}}`, ""},
		{"set a cells=node=4", exitUsage, "", "is not node/GPUS"},
		{"set a acl_submit=,", exitUsage, "", "no name in it"},
		{"stop a a", exitUsage, "", "named twice"},
	} {
		status, out, errs, change := queueTool(t, strings.Fields(test.args)...)
		if status != test.status || change != test.change || !strings.Contains(out+errs, test.says) {
			t.Errorf("%s: %d %s\n%s%s", test.args, status, change, out, errs)
		}
	}
	if status, _, errs, change := queueTool(t, "set", "a", "acl_submit= ann , bob"); status != 0 || !strings.Contains(change, `["ann","bob"]`) {
		t.Error(status, change, errs)
	}
}
