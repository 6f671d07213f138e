package main

import (
	"strings"
	"testing"
)

const twoNodes = `{"nodes":[{"id":"gpu-2:8041","host":"gpu-2","state":"CORDONED","machine":"m2","rack":"/r","labels":["ssd"],"leaving":{"by":"root","since":1795248416832,"deadline":0,"until":0,"reason":"a fan"},
"health_report":"node gpu-2:8041 is cordoned by root: a fan","capacity":{"memory":2147483648,"vcores":4,"gpus":2},"used":{"memory":1073741824,"vcores":1,"gpus":1},"containers":["container_1_0001_01_000002"],
"gpus":[{"uuid":"GPU-1","model":"H200","health":"HEALTHY","container":"container_1_0001_01_000002"}]},
{"id":"gpu-1:8041","host":"gpu-1","state":"RUNNING","capacity":{"memory":2147483648,"vcores":4,"gpus":2},"used":{"memory":0,"vcores":0,"gpus":0}}]}`

func TestNodesAreTakenOutOfService(t *testing.T) {
	answers := map[string]string{
		"POST /api/v1/admin/nodes": `{"nodes":["gpu-1:8041","gpu-2:8041"]}`, "GET /api/v1/nodes": twoNodes,
	}
	for _, row := range []struct {
		args   string
		status int
		words  string
		sent   string
	}{
		{"drain --timeout 90s --for 2h --reason fan gpu-1 gpu-2", 0, "gpu-1:8041 is being drained", `POST /api/v1/admin/nodes {"action":"maintenance","nodes":["gpu-1","gpu-2"],"timeout_s":90,"for_s":7200,"reason":"fan"}`},
		{"drain gpu-1", 0, "gpu-2:8041 is being drained", `POST /api/v1/admin/nodes {"action":"maintenance","nodes":["gpu-1"]}`},
		{"drain --timeout 0s gpu-1", 0, "is being drained", `POST /api/v1/admin/nodes {"action":"maintenance","nodes":["gpu-1"],"timeout_s":0}`},
		{"cordon gpu-1", 0, "gpu-1:8041 is cordoned", `POST /api/v1/admin/nodes {"action":"cordon","nodes":["gpu-1"]}`},
		{"uncordon gpu-1", 0, "gpu-1:8041 is in service", `POST /api/v1/admin/nodes {"action":"recommission","nodes":["gpu-1"]}`},
		{"uncordon -o json gpu-1", 0, `{"nodes":["gpu-1:8041","gpu-2:8041"]}`, `POST /api/v1/admin/nodes {"action":"recommission","nodes":["gpu-1"]}`},
		{"drain", exitUsage, "node drain: name nodes", ""},
		{"drain --timeout soon gpu-1", exitUsage, "--timeout soon: want a time as 90s", ""},
		{"cordon --for 0s gpu-1", exitUsage, "--for 0s: want a time", ""},
		{"list", 0, "gpu-2:8041  CORDONED  1     1024/2048 MiB  1/4     1/2   ssd     node gpu-2:8041 is cordoned by root: a fan", ""},
		{"list gpu-1", exitUsage, "takes no argument", ""},
		{"show m2", 0, "reason:     a fan", ""},
		{"show gpu-1 GPU-2:8041", exitFailed, `no node "GPU-2:8041"`, ""},
		{"show", exitUsage, "node show: name nodes", ""},
		{"show -o json gpu-1", 0, `"id":"gpu-1:8041"`, ""},
	} {
		status, out, errs, sent := asked(t, answers, append([]string{"node"}, strings.Fields(row.args)...)...)
		if status != row.status || !strings.Contains(out+errs, row.words) || strings.Join(sent, "|") != row.sent {
			t.Errorf("node %s: %d %s%s%v; want %d %s %s", row.args, status, out, errs, sent, row.status, row.words, row.sent)
		}
	}
	for _, row := range []struct {
		args   string
		status int
		sent   string
	}{
		{"node label gpu-1,gpu-2 ssd nvme-", 0, `POST /api/v1/admin/marks {"marks":[{"node":"gpu-1","add_labels":["ssd"],"drop_labels":["nvme"]},{"node":"gpu-2","add_labels":["ssd"],"drop_labels":["nvme"]}]}`},
		{"node label --own gpu-1", 0, `POST /api/v1/admin/marks {"marks":[{"node":"gpu-1","own_labels":true}]}`},
		{"node label gpu-1", exitUsage, ""},
		{"node label --own gpu-1 ssd", exitUsage, ""},
		{"node attribute gpu-1 driver=570 zone-", 0, `POST /api/v1/admin/marks {"marks":[{"node":"gpu-1","set_attributes":{"driver":"570"},"drop_attributes":["zone"]}]}`},
		{"node attribute gpu-1 driver", exitUsage, ""},
	} {
		status, out, errs, sent := asked(t, map[string]string{"POST /api/v1/admin/marks": "{}"}, strings.Fields(row.args)...)
		if status != row.status || strings.Join(sent, "|") != row.sent {
			t.Errorf("%s: %d %s%s%v; want %d %s", row.args, status, out, errs, sent, row.status, row.sent)
		}
	}
	refused := map[string]string{"POST /api/v1/admin/nodes": `403 {"title":"Forbidden","status":403,"detail":"User ann doesn't have permission to call 'refreshNodes'"}`}
	if status, _, errs, _ := asked(t, refused, "node", "cordon", "gpu-1"); status != exitDenied || !strings.Contains(errs, "doesn't have permission") {
		t.Errorf("who may not: %d %s", status, errs)
	}
}
