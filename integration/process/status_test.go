package process

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/gohops/hops/client/dfs"
)

// TestEveryServerTellsOfItself asks each role of a running hops dev for its page, its probes and its figures, which have to
// pass the checks of promtool check metrics.
func TestEveryServerTellsOfItself(t *testing.T) {
	dev := StartDev(t, Dir(t), "--gpus", "sim:2")
	ask := func(url, accept string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", accept)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	// await asks until the answer is one that ok likes: on a busy machine a server may miss another's beats for a while.
	await := func(what, url, accept string, ok func(int, string) bool) (body string) {
		t.Helper()
		Eventually(t, what, func() error {
			code, text := ask(url, accept)
			if body = text; !ok(code, text) {
				return fmt.Errorf("%d %s", code, text)
			}
			return nil
		})
		return body
	}
	servers := map[string]string{"namenode": dev.HTTP, "resourcemanager": dev.RM}
	nodes, err := dev.Client().Jobs().Nodes(t.Context())
	if err != nil || len(nodes) != 1 {
		t.Fatal(nodes, err)
	}
	servers["nodemanager"] = "http://" + nodes[0].HTTP
	datanodes, err := dev.Client().FS().Datanodes(t.Context(), dfs.LiveDatanodes)
	if err != nil || len(datanodes) != 1 {
		t.Fatal(datanodes, err)
	}
	servers["datanode"] = fmt.Sprintf("http://%s:%d", datanodes[0].IP, datanodes[0].HTTPPort)
	want := map[string]string{
		"namenode": "\nhops_namenode_active 1\n", "resourcemanager": "\nhops_resourcemanager_gpus{of=\"total\"} 2\n",
		"nodemanager": "\nhops_nodemanager_gpu_healthy{gpu=", "datanode": "\nhops_datanode_volume_failed{",
	}
	document, err := os.ReadFile("../../docs/reference/status.md")
	if err != nil {
		t.Fatal(err)
	}
	for role, address := range servers {
		await("the page of the "+role, address+"/", "text/html", func(code int, body string) bool {
			return code == 200 && strings.Contains(body, "<h1>hops "+role) && strings.Contains(body, ">ready<")
		})
		for _, probe := range []string{"/livez", "/readyz"} {
			await(probe+" of the "+role, address+probe, "*/*", func(code int, body string) bool { return code == 200 && strings.HasSuffix(body, "ok\n") })
		}
		await("/health of the "+role, address+"/health", "*/*", func(code int, body string) bool {
			return code == 200 && strings.Contains(body, `"role":"`+role+`"`) && strings.Contains(body, `"ready":true`)
		})
		body := await("/metrics of the "+role, address+"/metrics", "*/*", func(code int, body string) bool {
			return code == 200 && strings.Contains(body, want[role]) && strings.Contains(body, "\nhops_ready{role=\""+role+"\"} 1\n")
		})
		if problems, err := promlint.New(strings.NewReader(body)).Lint(); err != nil || len(problems) > 0 {
			t.Errorf("/metrics of the %s: %v %v\n%s", role, problems, err, body)
		}
		for line := range strings.Lines(body) {
			if name, ok := strings.CutPrefix(line, "# TYPE hops_"); ok {
				name, _, _ = strings.Cut(name, " ")
				if !strings.Contains(string(document), "`hops_"+name+"`") {
					t.Errorf("docs/reference/status.md does not have hops_%s", name)
				}
			}
		}
	}
	if code, body := ask(dev.RM+"/cluster", "text/html"); code != 200 || !strings.Contains(body, "GPUs") {
		t.Errorf("YARN's page: %d %s", code, body)
	}
}
