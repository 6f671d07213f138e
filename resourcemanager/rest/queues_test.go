package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// queueOperator changes the queues of a fake cluster.
type queueOperator struct {
	Operator
	c         *fakeCluster
	refreshed int
}

func (o *queueOperator) RefreshQueues(context.Context, metadata.Caller, QueueOptions) (QueueChange, error) {
	o.refreshed++
	return QueueChange{}, nil
}

func (o *queueOperator) ChangeQueues(_ context.Context, _ metadata.Caller, opts QueueOptions, change func(rm.QueueConfig) (rm.QueueConfig, error)) (QueueChange, error) {
	c, err := rm.ParseQueueConfig(o.c.queues.Config().Document())
	if err == nil {
		c, err = change(c)
	}
	if err != nil {
		return QueueChange{}, err
	}
	next, err := rm.NewQueues(c)
	if err != nil {
		return QueueChange{}, fmt.Errorf("%w: %w", metadata.ErrInvalidArgument, err)
	}
	if !opts.DryRun {
		o.c.queues = next
	}
	return QueueChange{Hash: next.Hash(), Queues: &c}, nil
}

// boss lets in; who runs the test is the superuser.
var boss = security.NewDoor(security.Config{})

func newQueueServer(t *testing.T, config rm.QueueConfig) (*fakeCluster, *queueOperator, *httptest.Server) {
	t.Helper()
	c := newFakeCluster(t)
	c.fill()
	q, err := rm.NewQueues(config)
	if err != nil {
		t.Fatal(err)
	}
	c.queues = q
	o := &queueOperator{c: c}
	s := httptest.NewServer(New(Config{Cluster: c, Door: boss, Operator: o}))
	t.Cleanup(s.Close)
	return c, o, s
}

// recordedQueues is the tree of the recordings.
func recordedQueues() rm.QueueConfig {
	return rm.QueueConfig{Administer: []string{"root", "admin"}, Submit: []string{"nobody"}, Children: map[string]rm.QueueConfig{
		"default": {Capacity: "40%", UserLimitFactor: 10, Submit: []string{"*"}}, "prod": {Capacity: "60%", Children: map[string]rm.QueueConfig{
			"a": {Capacity: "40%", DefaultPriority: 3}, "b": {Capacity: "30%", Submit: []string{"bob"}}, "stopped": {Capacity: "10%", State: rm.QueueStopped}, "plan": {Capacity: "20%", Submit: []string{"*"}},
		}},
	}}
}

func TestSchedulerConfAsRecorded(t *testing.T) {
	for _, name := range []string{
		"151-scheduler-conf-get-alice", "152-scheduler-conf-put", "153-scheduler-conf-put-alice", "154-scheduler-conf-put-invalid", "159-scheduler-conf-global", "160-scheduler-conf-put-xml",
		"161-scheduler-conf-validate", "162-scheduler-conf-validate-bad", "164-scheduler-conf-format", "165-scheduler-conf-unwrapped-params", "166-scheduler-conf-unknown-queue", "181-queue-access",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, o, s := newQueueServer(t, recordedQueues())
			b, err := os.ReadFile(filepath.Join(vectors, name+".http"))
			if err != nil {
				t.Fatal(err)
			}
			asked, _, _ := strings.Cut(string(b), "\nHTTP/1.1 ")
			head, body, _ := strings.Cut(asked, "\n\n")
			first := strings.Fields(head)
			kind := "application/json"
			if strings.Contains(head, "Content-Type: application/xml") {
				kind = "application/xml"
			}
			status, want := recorded(t, name)
			code, _, got := call(t, s, first[0], strings.Replace(first[1], "user.name=root", "user.name="+boss.Daemon(), 1), strings.TrimSpace(body), "Content-Type", kind)
			if fmt.Sprint(code) != status {
				t.Fatalf("%d %s, want %s %s", code, got, status, want)
			}
			want = strings.TrimSpace(want)
			if !strings.HasPrefix(want, `{"property"`) {
				if got != want {
					t.Errorf("%s\nwant %s", got, want)
				}
			} else {
				var have, recorded struct{ Property []schedProperty }
				if err := errors.Join(json.Unmarshal([]byte(got), &have), json.Unmarshal([]byte(want), &recorded)); err != nil {
					t.Fatal(err)
				}
				for _, p := range []string{"root.prod.a.user-limit-factor", "root.prod.capacity", "root.prod.a.capacity", "root.acl_administer_queue", "root.prod.b.acl_submit_applications", "resource-calculator"} {
					i := slices.IndexFunc(recorded.Property, func(x schedProperty) bool { return x.Name == schedPrefix+p })
					if i < 0 || !slices.Contains(have.Property, recorded.Property[i]) {
						t.Errorf("%s is not as recorded: %s", p, got)
					}
				}
			}
			for prefix, factor := range map[string]float64{"152": 3, "160": 4, "161": 0, "165": 2} {
				if strings.HasPrefix(name, prefix) && c.queues.Find("root.prod.a").UserLimitFactor != factor {
					t.Errorf("user-limit-factor %v", c.queues.Find("root.prod.a").UserLimitFactor)
				}
			}
			if (o.refreshed == 1) != strings.HasPrefix(name, "164") {
				t.Errorf("the file was read %d times", o.refreshed)
			}
		})
	}
}

func TestSchedulerConfChangesQueues(t *testing.T) {
	t.Parallel()
	c, _, s := newQueueServer(t, recordedQueues())
	put := func(body string) (int, string) {
		code, _, text := call(t, s, "PUT", "/ws/v1/cluster/scheduler-conf?user.name="+boss.Daemon(), body)
		return code, text
	}
	for body, want := range map[string]string{
		`{"remove-queue":"root.prod.a"}`:                                                                 "root.prod.a cannot be deleted from the capacity scheduler configuration, as the queue is not yet in stopped state. Current State : RUNNING",
		`{"remove-queue":"root.prod.x"}`:                                                                 "Queue root.prod.x not found",
		`{"add-queue":{"queue-name":"root.prod.a","params":{}}}`:                                         "already existing queue root.prod.a",
		`{"add-queue":{"queue-name":"root.x.y","params":{}}}`:                                            "there is no queue",
		`{"update-queue":{"queue-name":"root.prod.a","params":{"cells":"node=4"}}}`:                      "is not node/GPUS",
		`{"update-queue":{"queue-name":"root.prod.a","params":{"cells":"node/8=4"}}}`:                    "those of its children add up to 4, and it has 0",
		`{"update-queue":{"queue-name":"root.prod.a","params":{"capacity":"x"}}}`:                        "yarn.scheduler.capacity.root.prod.a.capacity",
		`{"update-queue":{"queue-name":"root.prod.a","params":{"accessible-node-labels":"x"}}}`:          "is not supported",
		`{"global-updates":{"yarn.scheduler.capacity.resource-calculator":"x"}}`:                         "is not supported",
		`{"update-queue":{"queue-name":"root.prod.a","params":{"maximum-capacity":"30"}}}`:               "max 30% is below",
		`{"remove-queue":["root.prod.stopped"]}`:                                                         "Illegal capacity sum of 0.9 for children of queue prod for label=. It should be either 0 or 1.0",
		`{"update-queue":{"queue-name":"root.default","params":{"auto-queue-creation-v2.enabled":"?"}}}`: "auto-queue-creation-v2.enabled",
	} {
		if code, text := put(body); code != http.StatusBadRequest || !strings.Contains(text, want) || strings.Contains(text, "\n") {
			t.Errorf("%s: %d %s", body, code, text)
		}
	}
	if code, text := put(`{"remove-queue":["root.prod.stopped"],"add-queue":[{"queue-name":"root.prod.new","params":{"entry":[
		{"key":"capacity","value":"[memory=50%,vcores=2w,yarn.io/gpu=8]"},{"key":"cells","value":"node/8=1"},{"key":"auto-queue-creation-v2.enabled","value":"true"},{"key":"auto-queue-creation-v2.leaf-template.maximum-applications","value":"3"}]}}],
		"update-queue":[{"queue-name":"root.prod","params":{"cells":"node/8=2"}},{"queue-name":"root.prod.a","params":{"capacity":"[memory=40%]","maximum-application-lifetime":"3600","acl_submit_applications":"ann,bob staff","maximum-am-resource-percent":"0.2"}},
		{"queue-name":"root.prod.b","params":{"capacity":"[memory=10%]"}},{"queue-name":"root.prod.plan","params":{"capacity":"2w","state":"stopped","maximum-capacity":"-1"}}]}`); code != http.StatusOK {
		t.Fatal(text)
	}
	made, a := c.queues.Find("root.prod.new"), c.queues.Find("root.prod.a")
	if made.AutoCreate == nil || made.AutoCreate.MaxApplications != 3 || made.Cells != 1 || made.CellGPUs != 8 || made.Guarantee.String() != "[memory-mb=50%,vcores=2w,yarn.io/gpu=8]" || c.queues.Find("stopped") != nil {
		t.Errorf("%+v", made)
	}
	if a.MaxLifetime.Hours() != 1 || !a.MaySubmit("eve", "staff") || a.MaySubmit("eve", "x") || a.MasterShare != 0.2 || c.queues.Find("plan").State != rm.QueueStopped {
		t.Errorf("%+v", a)
	}
	// What is shown can be put again.
	_, _, text := call(t, s, "GET", "/ws/v1/cluster/scheduler-conf?user.name="+boss.Daemon(), "")
	var shown struct{ Property []schedProperty }
	if err := json.Unmarshal([]byte(text), &shown); err != nil {
		t.Fatal(err)
	}
	before := c.queues.Hash()
	for _, p := range shown.Property {
		path := strings.TrimPrefix(p.Name, schedPrefix)
		for _, w := range words {
			if queue, ok := strings.CutSuffix(path, "."+w.name); ok && !strings.Contains(queue, "leaf-template") {
				if code, text := put(fmt.Sprintf(`{"update-queue":{"queue-name":%q,"params":{%q:%q}}}`, queue, w.name, p.Value)); code != http.StatusOK {
					t.Errorf("%v: %s", p, text)
				}
			}
		}
	}
	if c.queues.Hash() != before {
		t.Error("what is shown is not what there is")
	}
	if code, _, text := call(t, s, "GET", "/ws/v1/cluster/scheduler-conf/version?user.name="+boss.Daemon(), ""); code != http.StatusOK || text != `{"versionID":"0"}` {
		t.Errorf("%d %s", code, text)
	}
}

func TestQueuesAreChanged(t *testing.T) {
	t.Parallel()
	c, _, s := newQueueServer(t, recordedQueues())
	do := func(method, path, body string) (int, string) {
		joiner := "?"
		if strings.Contains(path, "?") {
			joiner = "&"
		}
		code, _, text := call(t, s, method, "/api/v1/queues"+path+joiner+"user.name="+boss.Daemon(), body)
		return code, text
	}
	for _, test := range []struct {
		method, path, body string
		code               int
		words              string
	}{
		{"PATCH", "/root.prod.a", `{"max_applications":7}`, 200, `"hash"`},
		{"PATCH", "/a", `{"max_applications":"x"}`, 400, "max_applications"},
		{"PATCH", "/a", `{"colour":1}`, 400, "colour"},
		{"PATCH", "/a", `[]`, 400, "object of its words"},
		{"PATCH", "/root.nowhere", `{}`, 404, "no queue"},
		{"PUT", "/root.prod.c", `{"capacity":"0%"}`, 200, ""},
		{"PUT", "/root.prod.d", `{"capacity":"1%"}`, 400, "add up to 101%"},
		{"PUT", "/else.where", `{}`, 404, "paths begin with root"},
		{"DELETE", "/root.prod.c", ``, 409, "stop it first"},
		{"PATCH", "/c", `{"state":"STOPPED"}`, 200, ""},
		{"DELETE", "/c", ``, 200, ""},
		{"DELETE", "/root", ``, 400, "stays"},
		{"PATCH", "", `{"root.prod.a":{"capacity":"50%"},"root.prod.stopped":null}`, 200, ""},
		{"PATCH", "", `{}`, 400, "object of paths"},
		{"PATCH", "", `{"root.prod.a":{"max_applications":8},"a":{"max_applications":9}}`, 400, `are one queue, root.prod.a`},
		{"PATCH", "/a", `{"acl_submit":["ann"," bob"]}`, 400, `\" bob\" is no name`},
		{"PATCH", "/a", `{"acl_administer_groups":[""]}`, 400, "is no name"},
		{"PATCH", "/a?dry_run=1", `{"max_applications":9}`, 400, "neither true nor false"},
		{"PATCH", "?dry_run=True", `{"a":{"max_applications":9}}`, 400, "neither true nor false"},
		{"DELETE", "/a?force=yes", ``, 400, "neither true nor false"},
		{"PATCH", "/a?dry_run=false&force=", `{"max_applications":7}`, 200, ""},
		{"PUT", "", `{"children":{"x":{"capacity":"90%"}}}`, 400, "add up to 90%"},
	} {
		code, text := do(test.method, test.path, test.body)
		if code != test.code || !strings.Contains(text, test.words) {
			t.Errorf("%s %s %s: %d %s", test.method, test.path, test.body, code, text)
		}
	}
	if a := c.queues.Find("root.prod.a"); a.MaxApplications != 7 || a.Capacity != 0.5 || a.DefaultPriority != 3 || c.queues.Find("stopped") != nil {
		t.Errorf("%+v", a)
	}
	var view QueueView
	_, text := do("GET", "/root.prod.a", "")
	if err := json.Unmarshal([]byte(text), &view); err != nil || view.Path != "root.prod.a" || view.Capacity != 0.3 || view.Config.MaxApplications != 7 || view.State != rm.QueueRunning {
		t.Errorf("%v %s", err, text)
	}
	for _, query := range []string{"check=1", "force=TRUE"} {
		if code, _, text := call(t, s, "POST", "/api/v1/admin/refresh-queues?"+query+"&user.name="+boss.Daemon(), ""); code != http.StatusBadRequest || !strings.Contains(text, "neither true nor false") {
			t.Errorf("%s: %d %s", query, code, text)
		}
	}
	if code, text := do("GET", "/x", ""); code != http.StatusNotFound {
		t.Errorf("%d %s", code, text)
	}
	if code, _, text := call(t, s, "PATCH", "/api/v1/queues/a?user.name=ann", `{}`); code != http.StatusForbidden {
		t.Errorf("somebody: %d %s", code, text)
	}
}

// recorded is the answer of a recorded exchange.
func recorded(t *testing.T, name string) (status string, body string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(vectors, name+".http"))
	if err != nil {
		t.Fatal(err)
	}
	_, answer, ok := strings.Cut(string(b), "\nHTTP/1.1 ")
	if !ok {
		t.Fatalf("%s holds no answer", name)
	}
	head, body, _ := strings.Cut(answer, "\n\n")
	status, _, _ = strings.Cut(head, " ")
	return status, body
}
