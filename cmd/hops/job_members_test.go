package main

import (
	"strings"
	"testing"
)

const twoMembers = `{"members":[{"number":3,"state":"SUCCEEDED","containers":[{"id":"container_1_0001_01_000002","node":"a:1","state":"COMPLETE","exit_status":1},
{"id":"container_1_0001_01_000007","node":"b:1","state":"COMPLETE","exit_status":0}]},{"number":4,"state":"WAITING"}]}`

func TestMembersOfAJob(t *testing.T) {
	status, got, stderr, sent := jobTool(t, twoMembers, "status", "application_1_0001[3-4]")
	if status != 0 || !strings.HasPrefix(sent, "GET /api/v1/jobs/application_1_0001/members/3-4?") || !strings.Contains(got, "container_1_0001_01_000007") ||
		strings.Contains(got, "container_1_0001_01_000002") || !strings.Contains(got, "\n4       WAITING    0      -") {
		t.Errorf("%d %s%s\n%s", status, got, stderr, sent)
	}
	status, _, stderr, sent = jobTool(t, twoMembers, "kill", "application_1_0001_3-4")
	if status != 0 || !strings.HasPrefix(sent, "DELETE /api/v1/jobs/application_1_0001/members/3-4?") || stderr != "application_1_0001_3 has succeeded already\n" {
		t.Errorf("%d %s\n%s", status, stderr, sent)
	}
	status, got, stderr, sent = jobTool(t, twoMembers, "retry", "application_1_0001[3,4]")
	if status != 0 || !strings.HasPrefix(sent, "POST /api/v1/jobs/application_1_0001/members/3%2C4/retry?") || got != "application_1_0001_3 SUCCEEDED\napplication_1_0001_4 WAITING\n" {
		t.Errorf("%d %s%s\n%s", status, got, stderr, sent)
	}
	for _, wrong := range [][]string{{"retry", "application_1_0001"}, {"logs", "application_1_0001[3-4]"}, {"logs", "--instance", "2", "application_1_0001_3"}} {
		if status, _, stderr, sent := jobTool(t, twoMembers, wrong...); status != exitUsage || sent != "" {
			t.Errorf("%v: %d %s\n%s", wrong, status, stderr, sent)
		}
	}
}

func TestAJobIsResized(t *testing.T) {
	answer := `{"id":"application_1_0001","size":{"min":2,"max":8}}`
	status, got, stderr, sent := jobTool(t, answer, "resize", "application_1_0001", "2..8")
	if status != 0 || got != "application_1_0001 instances: 8, of which 2 at least start at once\n" || !strings.HasPrefix(sent, "POST /api/v1/jobs/application_1_0001/resize?") || !strings.HasSuffix(sent, ` {"min":2,"max":8}`) {
		t.Errorf("%d %s%s\n%s", status, got, stderr, sent)
	}
	if status, _, stderr, sent := jobTool(t, answer, "resize", "application_1_0001", "8"); status != 0 || !strings.HasSuffix(sent, ` {"max":8}`) {
		t.Errorf("%d %s\n%s", status, stderr, sent)
	}
	for _, wrong := range [][]string{{"resize", "application_1_0001"}, {"resize", "application_1_0001", "0"}, {"resize", "application_1_0001", "4..2"}, {"resize", "application_1_0001", "workers=3"}} {
		if status, _, stderr, sent := jobTool(t, answer, wrong...); status != exitUsage || sent != "" {
			t.Errorf("%v: %d %s\n%s", wrong, status, stderr, sent)
		}
	}
}

func TestWhatIsToGoIsShown(t *testing.T) {
	job := `{"id":"application_1_0001","kind":"command","state":"RUNNING","phase":"RUNNING","leaving":1,"size":{"min":2,"max":4},"containers":[
{"id":"container_1_0001_01_000002","instance":0,"node":"a:1","state":"RUNNING","checkpointed":1000,"step":1200},
{"id":"container_1_0001_01_000003","instance":1,"node":"a:1","state":"RUNNING","checkpointed":900,"step":1300,
 "preempted":{"job":"application_1_0002","queue":"root.b","reason":"preempted for application_1_0002 of queue root.b","since":1,"deadline":1000}}]}`
	status, got, stderr, _ := jobTool(t, job, "status", "application_1_0001")
	for _, want := range []string{"instances   4, of which 2 at least start at once\n", "checkpoint  step 1200 at " + clock(1000), "leaves      container_1_0001_01_000003 at " + clock(1000) + ": preempted for application_1_0002 of queue root.b\n", "  STEP\n", "  1300\n"} {
		if status != 0 || !strings.Contains(got, want) {
			t.Errorf("%d %s%s\nlacks %q", status, got, stderr, want)
		}
	}
	if status, got, _, _ := jobTool(t, job, "status", "-o", "json", "application_1_0001"); status != 0 || !strings.Contains(got, `"preempted":{"job":"application_1_0002"`) || !strings.Contains(got, `"step":1300`) {
		t.Errorf("%d %s", status, got)
	}
	if status, got, stderr, _ := jobTool(t, `{"jobs":[`+job+`]}`, "list"); status != 0 || !strings.Contains(got, "1 container is to go") {
		t.Errorf("%d %s%s", status, got, stderr)
	}
}
