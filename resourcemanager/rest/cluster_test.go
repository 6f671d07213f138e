package rest

import (
	"net/http"
	"strings"
	"testing"
)

// What a node says of its devices shows where people look for it, and an idle one warns the owner of the job, once it is unusual.
func TestWhatIsDoneWithDevicesIsShown(t *testing.T) {
	c := newFakeCluster(t)
	id := c.fill()
	s := serve(t, c, nil)
	const load, used = `"load":{"utilization":37.5,"memory_used":1073741824,"power":321}`, `"held":2700000,"busy":1000,"memory_peak":2147483648,"energy":7200,"idle":2640000`
	code, _, body := call(t, s, "GET", "/api/v1/nodes", "")
	if code != http.StatusOK || strings.Count(body, load) != 2 || strings.Count(body, `"use":{"uuid":"GPU-0",`+used+`}`) != 1 || strings.Count(body, `"use":{"uuid":"GPU-1",`+used+`,"unused":true}`) != 1 {
		t.Errorf("nodes: %d %s", code, body)
	}
	code, _, body = call(t, s, "GET", "/api/v1/jobs/"+id.String(), "")
	if code != http.StatusOK || strings.Count(body, `"gpu_use":[{`) != 1 || strings.Count(body, used) != 2 || strings.Count(body, "has done nothing") != 1 ||
		!strings.Contains(body, ` holds GPU GPU-1 and has done nothing with it for 44m0s"]`) {
		t.Errorf("job: %d %s", code, body)
	}
}
