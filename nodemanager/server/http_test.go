package server

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/gpu/fake"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

func (n *node) get(path, accept string) (int, string, http.Header) {
	n.t.Helper()
	r, err := http.NewRequest("GET", n.url+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), resp.Header
}

func TestRESTSpeaksYARN(t *testing.T) {
	m := newManager(t, "")
	c := baseConfig(t, t.TempDir(), m.address)
	c.GPUs = fake.Simulate(2, "x")
	devices, _ := c.GPUs.Devices(t.Context())
	n := run(t, c)
	s := spec(t, 2, "sh", "-c", "printf 'one\\ntwo\\n<b>'; ln -s /etc/passwd $LOG_DIRS/secret; echo > up; exec sleep 100")
	s.GpuUuids = []string{devices[1].UUID}
	s.User = "alice"
	m.start(s)
	id := s.ContainerId
	eventually(t, "up", func() bool {
		_, err := os.Stat(filepath.Join(n.store.ContainerDir(nodemanager.ContainerID(id)), "work", "up"))
		return err == nil
	})
	m.untilState(id, rmpb.ContainerStatus_RUNNING)

	parse := func(path string) map[string]any {
		code, body, h := n.get(path, "")
		var v map[string]any
		if err := json.Unmarshal([]byte(body), &v); err != nil || code != 200 || h.Get("Content-Type") != "application/json;charset=utf-8" {
			t.Fatalf("%s: %d %v %s", path, code, err, body)
		}
		return v
	}
	for _, path := range []string{"/ws/v1/node", "/ws/v1/node/", "/ws/v1/node/info"} {
		info := parse(path)["nodeInfo"].(map[string]any)
		if info["id"] != n.config.NodeID || info["nodeHealthy"] != true || info["totalPmemAllocatedContainersMB"] != 1024.0 || info["simulatedGPUs"] != 2.0 {
			t.Errorf("%s: %v", path, info)
		}
	}
	list := parse("/ws/v1/node/containers")["containers"].(map[string]any)["container"].([]any)
	one := parse("/ws/v1/node/containers/" + id)["container"].(map[string]any)
	if len(list) != 1 || one["id"] != id || one["state"] != "RUNNING" || one["exitCode"] != -1000.0 || one["user"] != "alice" || one["totalMemoryNeededMB"] != 512.0 {
		t.Errorf("%v", one)
	}
	app := parse("/ws/v1/node/apps")["apps"].(map[string]any)["app"].([]any)[0].(map[string]any)
	if app["id"] != appID || app["state"] != "RUNNING" {
		t.Errorf("%v", app)
	}
	res := parse("/ws/v1/node/resources/yarn.io%2Fgpu")
	if len(res["totalGpuDevices"].([]any)) != 2 || res["assignedGpuDevices"].([]any)[0].(map[string]any)["containerId"] != id {
		t.Errorf("%v", res)
	}
	if _, body, _ := n.get("/ws/v1/node/resources/fpga", ""); strings.TrimSpace(body) != "{}" {
		t.Errorf("fpga: %s", body)
	}
	superuser := "?user.name=" + me()
	_, body, _ := n.get("/ws/v1/node/containers/"+id+"/logs"+superuser, "")
	if !strings.Contains(body, `"fileName":"stdout","fileSize":"11"`) || !strings.Contains(body, `"logAggregationType":"LOCAL"`) || strings.Contains(body, "secret") {
		t.Errorf("logs: %s", body)
	}
	_, body, _ = n.get("/ws/v1/node/containers/"+id+"/logs/stdout"+superuser, "text/plain")
	if !strings.Contains(body, "LogLength:11\nLogContents:\none\ntwo\n<b>\nEnd of LogType:stdout.This log file belongs to a running container ("+id+")") {
		t.Errorf("log: %s", body)
	}
	for size, want := range map[string]string{"4": "LogContents:\none\nEnd", "-4": "LogContents:\n\n<b>\nEnd", "-900": "LogContents:\none", "0": "LogContents:\nEnd"} {
		if _, body, _ := n.get("/ws/v1/node/containerlogs/"+id+"/stdout"+superuser+"&size="+size, ""); !strings.Contains(body, want) {
			t.Errorf("size %s: %s", size, body)
		}
	}
	if _, body, _ := n.get("/node/containerlogs/"+id+"/alice/stdout/"+superuser+"&start=4", ""); !strings.Contains(body, "<pre>two\n&lt;b&gt;</pre>") {
		t.Errorf("page: %s", body)
	}
	if _, body, _ := n.get("/node/containerlogs/"+id+"/alice"+superuser, ""); !strings.Contains(body, "stdout : Total file length is 11 bytes.") {
		t.Errorf("page: %s", body)
	}
	for _, test := range []struct {
		path, accept string
		code         int
		want         string
	}{
		{"/ws/v1/node/containers/zz", "", 400, `"message":"java.lang.Exception: invalid container id, zz"`},
		{"/ws/v1/node/containers/" + containerName(99), "", 404, "container with id, " + containerName(99) + ", not found"},
		{"/ws/v1/node/containers/" + containerName(99) + "/logs", "", 200, `{"containerLogsInfo":{"logAggregationType":"LOCAL","containerId":"` + containerName(99) + `"`},
		{"/ws/v1/node/containers/" + id + "/logs/stdout", "", 500, "User [dr.who] is not authorized to view the logs for application " + appID},
		{"/ws/v1/node/containers/" + id + "/logs/stdout" + superuser, "application/json", 503, "WebApplicationException"},
		{"/ws/v1/node/containers/" + id + "/logs/nothing" + superuser, "", 404, "Cannot find this log on the local disk."},
		{"/ws/v1/node/containers/" + id + "/logs/secret" + superuser, "", 404, "Cannot find this log on the local disk."},
		{"/ws/v1/node/containers/" + id + "/logs/..%2Frecord.json" + superuser, "", 404, "Cannot find this log on the local disk."},
		{"/ws/v1/node/containers/" + id + "/logs/stdout" + superuser + "&size=x", "", 503, "WebApplicationException"},
		{"/ws/v1/node/containers/" + id + "/logs/stdout" + superuser + "&format=xml", "", 400, "valid values"},
		{"/ws/v1/node/apps/application_1_0001", "", 404, "app with id application_1_0001 not found"},
		{"/health", "", 200, `"lease":true`},
	} {
		code, body, _ := n.get(test.path, test.accept)
		if code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%s: got %d %s, want %d %s", test.path, code, body, test.code, test.want)
		}
	}
	r, _ := http.NewRequest("GET", n.url+"/ws/v1/node/info", nil)
	r.Host = "evil.example"
	resp, err := http.DefaultClient.Do(r)
	if err != nil || resp.StatusCode != http.StatusForbidden {
		t.Fatalf("a foreign Host: %v %v", resp, err)
	}
	resp.Body.Close()
}

func TestEveryRouteHasARight(t *testing.T) {
	for _, r := range routes {
		if !r.right.Valid() {
			t.Errorf("%s has no right", r.pattern)
		}
		if (strings.Contains(r.pattern, "log") || strings.Contains(r.pattern, "exec")) != (r.right == security.Owner) {
			t.Errorf("%s: logs and sessions are for the owner", r.pattern)
		}
	}
}
