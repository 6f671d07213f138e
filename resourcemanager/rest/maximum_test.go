package rest

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// The largest node of these tests has 8 GiB, 16 vcores and 8 GPUs.
func TestWhatNoNodeCanHoldIsRefused(t *testing.T) {
	c := newFakeCluster(t)
	s := serve(t, c, nil)
	huge := `{"argv":["x"],"resources":{"memory":"500GiB","vcores":1000,"gpus":900}}`
	if code, _, body := call(t, s, "POST", "/api/v1/jobs?user.name=alice", huge); code != http.StatusCreated {
		t.Errorf("before a node has registered: %d %s", code, body)
	}
	c.fill()
	for _, test := range []struct{ document, want string }{
		{`{"argv":["x"],"resources":{"memory":"500GiB"}}`, "resources.memory: 512000 MiB in one container, the most is 8192"},
		{`{"argv":["x"],"resources":{"vcores":100}}`, "resources.vcores: 100 in one container, the most is 16"},
		{`{"argv":["x"],"resources":{"gpus":9}}`, "resources.gpus: 9 in one container, the most is 8"},
		{`{"kind":"experiment","experiment":{"resources":{"memory":"1GiB","gpus":9}}}`, "resources.gpus: 9 in one container, the most is 8"},
	} {
		if code, _, body := call(t, s, "POST", "/api/v1/jobs?user.name=alice", test.document); code != http.StatusBadRequest || !strings.Contains(body, test.want) {
			t.Errorf("%s: %d %s", test.document, code, body)
		}
	}
	if code, _, body := call(t, s, "POST", "/api/v1/jobs?user.name=alice", `{"argv":["x"],"resources":{"memory":"8GiB","vcores":16,"gpus":8}}`); code != http.StatusCreated {
		t.Errorf("the whole node: %d %s", code, body)
	}
	yarn := `{"application-id": "application_1_0050", "application-name": "big", "am-container-spec": {"commands": {"command": "x"}},
		"resource": {"memory": 896, "vCores": 1, "resourceInformations": {"resourceInformation": [{"name": "yarn.io/gpu", "value": 9}]}}}`
	code, _, body := call(t, s, "POST", "/ws/v1/cluster/apps?user.name=alice", yarn)
	want := "Invalid resource request! Cannot allocate containers as requested resource is greater than maximum allowed allocation. " +
		"Requested resource type=[yarn.io/gpu], Requested resource=<memory:896, vCores:1, yarn.io/gpu: 9>, maximum allowed allocation=<memory:8192, vCores:16, yarn.io/gpu: 8>, " +
		"please note that maximum allowed allocation is calculated by scheduler based on maximum resource of registered NodeManagers, " +
		"which might be less than configured maximum allocation="
	if code != http.StatusBadRequest || !strings.Contains(body, want) {
		t.Errorf("%d %s", code, body)
	}
	if _, _, body := call(t, s, "GET", "/ws/v1/cluster/apps?user.name=alice", ""); strings.Contains(body, `"big"`) {
		t.Error("the refused application is there")
	}
}

func TestAFailedCommandIsFailedInYARNsWords(t *testing.T) {
	c := newFakeCluster(t)
	id := c.fill()
	e := c.View().Application(id).Attempt().Epoch
	c.do(&statepb.Command{Op: &statepb.Command_Finish{Finish: &statepb.Finish{Application: state.ApplicationID(id), Attempt: 1, Epoch: e, Final: "FAILED", Diagnostics: "exit status 3"}}})
	s := serve(t, c, nil)
	app := "/ws/v1/cluster/apps/" + id.String()
	for path, want := range map[string]string{
		app: `"state":"FAILED","finalStatus":"FAILED"`, app + "/state": `{"state":"FAILED"}`,
		"/ws/v1/cluster/apps?states=FAILED": id.String(), "/ws/v1/cluster/metrics": `"appsFailed":1`,
		"/api/v1/jobs/" + id.String(): `"state":"FINISHED"`,
	} {
		if code, _, body := call(t, s, "GET", path, ""); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d lacks %s: %s", path, code, want, body)
		}
	}
	if _, _, body := call(t, s, "GET", "/ws/v1/cluster/apps?states=FINISHED", ""); strings.Contains(body, id.String()) {
		t.Errorf("it is among the finished: %s", body)
	}
}

func TestDeSelects(t *testing.T) {
	c := newFakeCluster(t)
	id := c.fill()
	s := serve(t, c, nil)
	for _, path := range []string{"/ws/v1/cluster/apps", "/ws/v1/cluster/apps/" + id.String()} {
		code, _, body := call(t, s, "GET", path+"?deSelects=bogus", "")
		want := `{"RemoteException":{"exception":"BadRequestException","message":"java.lang.Exception: Invalid deSelects string bogus specified. It should be one of ` +
			`[resourceRequests, timeouts, appNodeLabelExpression, amNodeLabelExpression, resourceInfo]","javaClassName":"org.apache.hadoop.yarn.webapp.BadRequestException"}}`
		if code != http.StatusBadRequest || body != want {
			t.Errorf("%s: %d %s", path, code, body)
		}
		code, _, body = call(t, s, "GET", path+"?deSelects=resourceInfo,TIMEOUTS&deSelects=amNodeLabelExpression", "")
		if code != http.StatusOK || strings.Contains(body, `"resourceInfo":`) || strings.Contains(body, "timeouts") || strings.Contains(body, "amNodeLabel") || !strings.Contains(body, "appNodeLabel") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// A job of which only the master runs waits, whatever YARN's state says; at its end the master runs alone as well.
func TestAJobThatWaitsIsPending(t *testing.T) {
	c := newFakeCluster(t)
	running := c.fill()
	waits, _, err := c.Submit(t.Context(), metadata.Caller{User: "alice"}, Submission{Name: "w", Queue: "default", Kind: rm.KindCommand, Document: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, c, nil)
	phase := func(id rm.ApplicationID) (string, *rm.Reason) {
		var j Job
		_, _, body := call(t, s, "GET", "/api/v1/jobs/"+id.String(), "")
		if err := json.Unmarshal([]byte(body), &j); err != nil {
			t.Fatal(err)
		}
		return j.Phase, j.PendingReason
	}
	if p, r := phase(running); p != "RUNNING" || r != nil {
		t.Errorf("with a container: %s %v", p, r)
	}
	for _, k := range c.View().Containers(running) {
		if !k.Master && k.Live() {
			c.do(&statepb.Command{Op: &statepb.Command_Statuses{Statuses: &statepb.Statuses{
				Epoch: 1, Node: "host.example:8041", Incarnation: "i",
				Statuses: []*statepb.Status{{Container: state.ContainerID(k.ID), State: string(rm.ContainerComplete)}},
			}}})
		}
	}
	if p, r := phase(running); p != "RUNNING" || r != nil {
		t.Errorf("when its containers have ended and it waits for nothing: %s %v", p, r)
	}
	if p, r := phase(waits); p != "PENDING" || r == nil || r.Code != rm.ReasonStarting {
		t.Errorf("without: %s %v", p, r)
	}
	c.waiting = []Waiting{{Reason: rm.Reason{Code: rm.ReasonResources, Text: "needs 3 GPUs"}}}
	if p, r := phase(waits); p != "PENDING" || r == nil || r.Code != rm.ReasonResources {
		t.Errorf("waiting: %s %v", p, r)
	}
	if _, err := c.Kill(t.Context(), waits, "enough"); err != nil {
		t.Fatal(err)
	}
	if p, _ := phase(waits); p != "KILLED" {
		t.Errorf("killed: %s", p)
	}
}
