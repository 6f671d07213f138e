package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// jobTool runs hops job against a resource manager that answers as given, and returns what it was sent.
func jobTool(t *testing.T, answer string, args ...string) (status int, stdout, stderr, sent string) {
	t.Helper()
	var asked bytes.Buffer
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(&asked, "%s %s ", r.Method, r.URL.RequestURI())
		_, _ = io.Copy(&asked, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	t.Setenv("HOPS_RM", s.URL)
	t.Setenv("HADOOP_CONF_DIR", "")
	t.Setenv("HOPS_LOGIN", "")
	t.Setenv("HOME", t.TempDir())
	var out, errs bytes.Buffer
	status = run(append([]string{"hops", "job"}, args...), strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String(), asked.String()
}

const waitingAsk = `{"ask":"try1","resources":{"memory":1073741824,"vcores":2,"gpus":4},"waiting":8,"together":8,"reason":{"code":"GANG","text":"a gang of 8 needs room at once; there is room for 6 of it"},
"blockers":[{"job":"application_1_0002","user":"bob","queue":"root.b","resource":"yarn.io/gpu","amount":12}],"would_start":[{"change":"members","members":6,"text":"with 6 at once in place of 8"}]}`

func TestJobExplain(t *testing.T) {
	answer := `{"id":"application_1_0001","user":"ann","queue":"root.a","phase":"PENDING","text":"1 of its asks wait","asks":[` + waitingAsk + `],"out_of_service":["node a:1 is cordoned by bob: new disks"],"out_of_service_more":2,"used":{"memory":0,"vcores":0,"gpus":0},"live":0}`
	status, got, stderr, sent := jobTool(t, answer, "explain", "application_1_0001")
	want := `application_1_0001 PENDING in queue root.a: 1 of its asks wait
ask try1: 8 containers of 1024 MiB, 2 vcores, 4 GPUs, 8 at once
  waits: a gang of 8 needs room at once; there is room for 6 of it (GANG)
  held by: application_1_0002 of bob in queue root.b has 12 GPUs
  would start now with 6 at once in place of 8
out of service: node a:1 is cordoned by bob: new disks
and 2 nodes more are out of service: hops node list
`
	if status != 0 || got != want || !strings.HasPrefix(sent, "GET /api/v1/jobs/application_1_0001/explain") {
		t.Errorf("%d %s%s\n%s", status, got, stderr, sent)
	}
	if status, got, stderr, _ := jobTool(t, answer, "explain", "-o", "json", "application_1_0001"); status != 0 || !strings.Contains(got, `"would_start"`) {
		t.Errorf("%d %s%s", status, got, stderr)
	}
	if status, _, _, sent := jobTool(t, answer, "explain"); status != exitUsage || sent != "" {
		t.Errorf("without an id: %d %s", status, sent)
	}
}

func TestAJobThatIsAnArray(t *testing.T) {
	status, _, errs, sent := jobTool(t, `{"id":"application_1_0003"}`, "run", "-d", "--array", "0-99:2%10", "--", "true")
	if want := `"array":{"to":99,"step":2,"at_once":10}`; status != 0 || !strings.Contains(sent, want) {
		t.Errorf("%d %s%s", status, errs, sent)
	}
	if status, _, errs, sent := jobTool(t, `{}`, "run", "--array", "9-", "--", "true"); status != exitUsage || sent != "" || !strings.Contains(errs, "want FROM-TO") {
		t.Errorf("%d %s%s", status, errs, sent)
	}
	answer := `{"id":"application_1_0001","phase":"RUNNING","state":"RUNNING","members":{"total":9,"waiting":1,"running":2,"succeeded":5,"failed":1}}`
	if _, out, _, _ := jobTool(t, answer, "status", "application_1_0001"); !strings.Contains(out, "9: 1 wait, 2 run, 5 succeeded, 1 failed") {
		t.Errorf("status: %s", out)
	}
}

func TestAJobThatWaitsForOthers(t *testing.T) {
	status, _, errs, sent := jobTool(t, `{"id":"application_1_0003"}`, "run", "-d", "--after", "application_1_0001", "--after", "application_1_0002:ended", "--deadline", "8h", "--", "true")
	if want := `"after":[{"application":"application_1_0001"},{"application":"application_1_0002","state":"ended"}],"deadline":"8h"`; status != 0 || !strings.Contains(sent, want) {
		t.Errorf("%d %s%s", status, errs, sent)
	}
	if _, _, _, sent := jobTool(t, `{"id":"application_1_0003"}`, "run", "-d", "--deadline", "2027-01-31T18:00", "--", "true"); !strings.Contains(sent, `"deadline":"2027-01-31T18:00:00`) {
		t.Errorf("a time of here: %s", sent)
	}
}

func TestJobPlan(t *testing.T) {
	status, got, stderr, sent := jobTool(t, `{"queue":"root.a","priority":0,"starts":true,"placements":[{"ask":"","master":true,"node":"n1:1"},{"ask":"instances","node":"n1:1","gpus":["GPU-1","GPU-2"]}]}`,
		"plan", "--gpus", "2", "--queue", "a", "--", "python3", "train.py")
	want := `in queue root.a all of it would start now:
RUNS      NODE  GPUS
master    n1:1  -
instance  n1:1  GPU-1,GPU-2
`
	if status != 0 || got != want || !strings.HasPrefix(sent, "POST /api/v1/jobs?dry_run=true") || !strings.Contains(sent, `"gpus":2`) || !strings.Contains(sent, `"train.py"`) {
		t.Errorf("%d %s%s\n%s", status, got, stderr, sent)
	}
	status, got, stderr, _ = jobTool(t, `{"queue":"root.a","priority":0,"starts":false,"placements":[],"waits":[`+waitingAsk+`]}`, "plan", "--", "true")
	if status != exitFailed || !strings.Contains(got, "would start now with 6") {
		t.Errorf("%d %s%s", status, got, stderr)
	}
	if status, _, stderr, sent := jobTool(t, `{}`, "plan"); status != exitUsage || sent != "" || !strings.Contains(stderr, "job plan: give a command") {
		t.Errorf("nothing to plan: %d %s %s", status, stderr, sent)
	}
}
