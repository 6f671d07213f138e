package rest

import (
	"net/http"
	"strings"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

// Nothing is done whose answer the caller does not take.
func TestWhoTakesNoAnswerChangesNothing(t *testing.T) {
	c := newFakeCluster(t)
	running := c.fill()
	s := serve(t, c, nil)
	path := "/ws/v1/cluster/apps/" + running.String() + "/state?user.name=alice"
	if code, _, body := call(t, s, "PUT", path, `{"state":"KILLED"}`, "Accept", "text/html"); code != 500 || !strings.Contains(body, "<html") {
		t.Errorf("%d %s", code, body)
	}
	if a := c.View().Application(running); a.State != rm.StateRunning {
		t.Errorf("the application is %s", a.State)
	}
}

func TestApplicationsMoveWhereTheirUsersMaySubmit(t *testing.T) {
	c := newFakeCluster(t)
	running := c.fill() // in root.prod.a
	s := serve(t, c, nil)
	app := "/ws/v1/cluster/apps/" + running.String()
	for _, test := range []struct {
		body, user string
		code       int
		want       string
	}{
		{`{"queue":"root.prod.b"}`, "alice", 403, "Unauthorized attempt to move appid"},
		{`{"queue":"stopped"}`, "alice", 400, "is stopped"},
		{`{"queue":"prod"}`, "alice", 400, "holds queues"},
		{`{"queue":"root.prod.a"}`, "alice", 200, `{"queue":"root.prod.a"}`},
		{`{"queue":"default"}`, "eve", 403, "by remote user eve"},
		{`{"queue":5`, "alice", 400, "UnmarshalException"},
		{`{"queue":"default"}`, "alice", 200, `{"queue":"root.default"}`},
	} {
		if code, _, body := call(t, s, "PUT", app+"/queue?user.name="+test.user, test.body); code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%s as %s: %d %s", test.body, test.user, code, body)
		}
	}
	if a := c.View().Application(running); a.Queue != "root.default" {
		t.Errorf("it is in %s", a.Queue)
	}
	c.level = 1
	if code, _, body := call(t, s, "PUT", app+"/priority?user.name=alice", `{"priority":2}`); code != 400 || !strings.Contains(body, "raised") {
		t.Errorf("%d %s", code, body)
	}
}

// What XML says is what JSON says.
func TestSubmissionsInXML(t *testing.T) {
	c := newFakeCluster(t)
	c.fill()
	s := serve(t, c, nil)
	body := `<?xml version="1.0"?><application-submission-context><application-id>application_1_0007</application-id><application-name>x</application-name>
		<queue>default</queue><priority>3</priority><am-container-spec><commands><command>sleep 1 &amp;&amp; true</command></commands>
		<environment><entry><key>A</key><value>b</value></entry></environment></am-container-spec><resource><memory>128</memory><vCores>1</vCores></resource>
		<application-tags><tag>one</tag></application-tags></application-submission-context>`
	if code, _, answer := call(t, s, "POST", "/ws/v1/cluster/apps?user.name=alice", body, "Content-Type", "application/xml"); code != http.StatusAccepted || answer != "" {
		t.Fatalf("%d %s", code, answer)
	}
	id, _ := rm.ParseApplicationID("application_1_0007")
	if a := c.View().Application(id); a == nil || a.Name != "x" || a.Priority != 3 || !strings.Contains(string(a.Document), `sleep 1 \u0026\u0026 true`) || !strings.Contains(string(a.Document), `"A":"b"`) || len(a.Tags) != 1 {
		t.Errorf("%+v", a)
	}
	for _, bad := range []string{"<x/>", "<application-submission-context>", "<!DOCTYPE a [<!ENTITY b 'c'>]><application-submission-context/>"} {
		if code, _, answer := call(t, s, "POST", "/ws/v1/cluster/apps?user.name=alice", bad, "Content-Type", "application/xml"); code != 400 || !strings.Contains(answer, "UnmarshalException") {
			t.Errorf("%s: %d %s", bad, code, answer)
		}
	}
}

// Finished containers are remembered, with what they were and how they ended, for those who may read their diagnostics.
func TestHistoryHasEndedContainers(t *testing.T) {
	c := newFakeCluster(t)
	running := c.fill()
	c.Kill(t.Context(), running, "enough")
	s := serve(t, c, nil)
	path := "/ws/v1/applicationhistory/apps/" + running.String()
	if code, _, body := call(t, s, "GET", path+"/appattempts/"+rm.AttemptID{Application: running, Number: 1}.String()+"/containers", ""); code != 200 || strings.Count(body, `"containerId"`) != 2 || !strings.HasPrefix(body, `{"container":[`) {
		t.Errorf("%d %s", code, body)
	}
	if code, _, body := call(t, s, "GET", "/ws/v1/applicationhistory/apps?limit=1", ""); code != 200 || strings.Count(body, `"appId"`) != 1 {
		t.Errorf("%d %s", code, body)
	}
	if code, _, body := call(t, s, "GET", "/ws/v1/applicationhistory/apps", "", "Accept", "application/xml"); code != 200 || !strings.Contains(body, "<apps><app><appId>") {
		t.Errorf("%d %s", code, body)
	}
}

func TestLabelsOfSubmissions(t *testing.T) {
	c := newFakeCluster(t)
	c.fill() // its node has the label h100
	s := serve(t, c, nil)
	submit := func(id, label string) (int, string) {
		code, _, body := call(t, s, "POST", "/ws/v1/cluster/apps?user.name=alice", `{"application-id":"`+id+`","am-container-node-label-expression":"`+label+`","am-container-spec":{"commands":{"command":"x"}}}`)
		return code, body
	}
	if code, body := submit("application_1_0008", "h100"); code != 202 {
		t.Fatalf("%d %s", code, body)
	}
	id, _ := rm.ParseApplicationID("application_1_0008")
	if a := c.View().Application(id); !strings.Contains(string(a.Document), `"label":"h100"`) {
		t.Errorf("%s", a.Document)
	}
	if code, body := submit("application_1_0009", "v100"); code != 400 || !strings.Contains(body, "label= v100") {
		t.Errorf("%d %s", code, body)
	}
}
