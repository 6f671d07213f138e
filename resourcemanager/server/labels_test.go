package server

import (
	"net/http"
	"strings"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
)

// A job that wants a label runs where an administrator has set it; the node's reports do not take it back, and what runs there stays when
// it goes.
func TestLabelsAreSetWhileTheClusterRuns(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.node("127.0.0.1:1001", 0, programs(c, untilStopped))
	c.awaitOpen(n)
	boss := c.door.Daemon()
	mark := func(user string, m rest.NodeMarks, want int, words string) {
		t.Helper()
		var text string
		if code, _ := c.http("POST", "/api/v1/admin/marks", user, rest.MarksRequest{Marks: []rest.NodeMarks{m}}, &text); code != want || !strings.Contains(text, words) {
			t.Errorf("%+v of %s: %d %s, want %d %s", m, user, code, text, want, words)
		}
	}
	mark(boss, rest.NodeMarks{Node: n.id, AddLabels: []string{"ssd"}}, http.StatusBadRequest, "until the cluster is raised")
	c.raise()
	id := c.submit("ann", `{"argv":["train"],"resources":{"label":"ssd"}}`)
	eventually(t, "a reason", func() bool { return c.waits(id) == rm.ReasonLabel })
	mark("ann", rest.NodeMarks{Node: n.id, AddLabels: []string{"ssd"}}, http.StatusForbidden, "User ann doesn't have permission to call 'replaceLabelsOnNode'")
	mark(boss, rest.NodeMarks{Node: "m9", AddLabels: []string{"ssd"}}, http.StatusNotFound, "no node")
	mark(boss, rest.NodeMarks{Node: n.id, AddLabels: []string{"-ssd"}}, http.StatusBadRequest, "label name should only contains")
	mark(boss, rest.NodeMarks{Node: n.id, DropLabels: []string{"ssd"}, DropAttributes: []string{"driver"}}, http.StatusOK, "") // gone already, as for a repeat
	mark(boss, rest.NodeMarks{Node: n.id}, http.StatusBadRequest, "nothing is said of it")
	for body, words := range map[string]string{
		`{"marks":[{"node":"` + n.id + `","add_labels":["a"]},{"node":"127.0.0.1","add_labels":["b"]}]}`: "is named twice",
		`{"marks":[{"node":"` + n.id + `","labels":["a"],"add":["b"]}]}`:                                 `unknown field \"add\"`,
	} {
		var text string
		if code, _ := c.http("POST", "/api/v1/admin/marks", boss, body, &text); code != http.StatusBadRequest || !strings.Contains(text, words) {
			t.Errorf("%s: %d %s", body, code, text)
		}
	}
	mark(boss, rest.NodeMarks{Node: n.id, SetAttributes: map[string]string{"a b": "1"}}, http.StatusBadRequest, "is no name of an attribute")
	mark(boss, rest.NodeMarks{Node: "127.0.0.1:0", AddLabels: []string{"ssd"}, SetAttributes: map[string]string{"driver": "570"}}, http.StatusOK, "")
	eventually(t, "the command to run", func() bool { return c.job(id).Phase == "RUNNING" })
	n.poke()
	var text string
	if c.http("GET", "/api/v1/nodes", "", nil, &text); !strings.Contains(text, `"labels":["ssd"]`) || !strings.Contains(text, `"driver":"570"`) {
		t.Errorf("nodes: %s", text)
	}
	if code, _ := c.http("POST", "/ws/v1/cluster/nodes/"+n.id+"/replace-labels?labels=none", boss, nil, &text); code != http.StatusBadRequest || !strings.Contains(text, "known label collections") {
		t.Errorf("an unknown label: %d %s", code, text)
	}
	if code, _ := c.http("POST", "/ws/v1/cluster/remove-node-labels?labels=ssd", boss, nil, nil); code != http.StatusOK {
		t.Errorf("removed: %d", code)
	}
	mark(boss, rest.NodeMarks{Node: n.id, AddLabels: []string{"one", "two"}}, http.StatusOK, "")
	mark(boss, rest.NodeMarks{Node: n.id, DropLabels: []string{"one", "two"}}, http.StatusOK, "")
	if l := c.leader().View().Node(rm.NodeID(n.id)).Labels; len(l) != 0 || c.job(id).Phase != "RUNNING" {
		t.Errorf("labels %v, the job is %s", l, c.job(id).Phase)
	}
	c.check()
}
