package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// asked runs the command line against a resource manager that answers what is in answers, by method and path; everything else is not there.
// It returns the status, what was printed, and the bodies of the changes that were asked for.
func asked(t *testing.T, answers map[string]string, args ...string) (status int, stdout, stderr string, changes []string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			b, _ := io.ReadAll(r.Body)
			changes = append(changes, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+string(b)))
		}
		path := r.URL.Path
		if r.URL.Query().Has("states") {
			path += "?" + r.URL.RawQuery
			if i := strings.Index(path, "&user.name="); i > 0 {
				path = path[:i]
			}
		}
		answer, ok := answers[r.Method+" "+path]
		if !ok {
			w.Header().Set("Content-Type", "application/json;charset=utf-8")
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"RemoteException":{"exception":"NotFoundException","message":"java.lang.Exception: not found","javaClassName":"x"}}`)
			return
		}
		code := http.StatusOK
		if n, err := fmt.Sscanf(answer, "%d ", &code); n == 1 && err == nil {
			answer = answer[4:]
		}
		w.WriteHeader(code)
		io.WriteString(w, answer)
	}))
	defer s.Close()
	t.Setenv("HOPS_RM", s.URL)
	t.Setenv("HADOOP_CONF_DIR", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var out, errs bytes.Buffer
	status = run(append([]string{"hops"}, args...), strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String(), changes
}

// recordedCLI is what the stock command (Hadoop 3.4.1) printed, its arguments and its status.
func recordedCLI(t *testing.T, name string) (args []string, status int, stdout string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/yarn", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(b), "--- stdout\n")
	stdout, _, _ = strings.Cut(rest, "--- stderr")
	lines := strings.Split(head, "\n")
	fmt.Sscanf(lines[2], "exit code: %d", &status)
	return strings.Fields(strings.TrimPrefix(lines[0], "$ yarn ")), status, stdout
}

const (
	runningApp = `{"app":{"id":"application_1795248047013_0002","user":"alice","name":"ds-gpu","queue":"root.prod.a","state":"RUNNING","finalStatus":"UNDEFINED","progress":50.0,
		"trackingUrl":"http://host.example:8088/proxy/application_1795248047013_0002/","diagnostics":"","applicationType":"YARN","priority":1,"startedTime":1795248416832,"finishedTime":0,
		"memorySeconds":246447,"vcoreSeconds":908,"resourceSecondsMap":{"entry":[{"key":"memory-mb","value":"246447"},{"key":"yarn.io/gpu","value":"1141"},{"key":"vcores","value":"908"}]},
		"logAggregationStatus":"NOT_START","timeouts":{"timeout":[{"type":"LIFETIME","expiryTime":"UNLIMITED","remainingTimeInSeconds":-1}]}}}`
	finishedApp = `{"app":{"id":"application_1795248047013_0001","user":"alice","name":"ds-quick","queue":"root.default","state":"FINISHED","finalStatus":"SUCCEEDED","progress":100.0,
		"diagnostics":"","applicationType":"YARN","priority":0,"startedTime":1795248235495,"finishedTime":1795248274571,"memorySeconds":19258,"vcoreSeconds":39,
		"resourceSecondsMap":{"entry":[{"key":"yarn.io/gpu","value":"0"}]},"logAggregationStatus":"SUCCEEDED",
		"timeouts":{"timeout":[{"type":"LIFETIME","expiryTime":"2026-11-22T08:03:54.907+0000","remainingTimeInSeconds":0}]}}}`
	oneAttempt = `{"appAttemptId":"appattempt_1795248047013_000N_000001","host":"host.example/host.example","rpcPort":"-1",
		"trackingUrl":"http://host.example:8088/proxy/application_1795248047013_000N/","originalTrackingUrl":"N/A","diagnosticsInfo":"","appAttemptState":"RUNNING",
		"amContainerId":"container_1795248047013_000N_01_000001"}`
	endedContainer = `{"containerId":"container_1795248047013_0002_01_000002","assignedNodeId":"host.example:8041","startedTime":1795248432834,"finishedTime":1795248680896,"containerState":"COMPLETE",
		"nodeHttpAddress":"http://host.example:8042","logUrl":"http://host.example:8188/applicationhistory/logs/host.example:8041/container_1795248047013_0002_01_000002/container_1795248047013_0002_01_000002/alice",
		"diagnosticsInfo":"[2026-11-21 08:11:20.862]Container killed on request. Exit code is 143\n[2026-11-21 08:11:20.869]Sent signal OUTPUT_THREAD_DUMP (SIGQUIT) to pid 19582 as user alice for container container_1795248047013_0002_01_000002, result=success\n[2026-11-21 08:11:20.869]Container exited with a non-zero exit code 143. \n[2026-11-21 08:11:20.869]Killed by external signal\n[2026-11-21 08:11:20.869]Sent signal GRACEFUL_SHUTDOWN (SIGTERM) to pid 19582 as user alice for container container_1795248047013_0002_01_000002, result=success\n"}`
	aNode = `{"node":{"rack":"/default-rack","state":"RUNNING","id":"host.example:8041","nodeHTTPAddress":"host.example:8042","lastHealthUpdate":1795248667847,"healthReport":"","numContainers":2,
		"usedMemoryMB":640,"usedVirtualCores":2,"totalResource":{"memory":8192,"vCores":15},
		"resourceUtilization":{"nodePhysicalMemoryMB":15131,"nodeVirtualMemoryMB":15131,"nodeCPUUsage":1.93,"aggregatedContainersPhysicalMemoryMB":123,"aggregatedContainersVirtualMemoryMB":2024,"containersCPUUsage":0.024}}}`
)

// What the stock commands printed, these print too, to the letter.
func TestYARNsCommandsPrintWhatYARNPrints(t *testing.T) {
	apps, past := "GET /ws/v1/cluster/apps/", "GET /ws/v1/applicationhistory/apps/"
	attempt := func(n string) string { return strings.ReplaceAll(oneAttempt, "000N", n) }
	answers := map[string]string{
		apps + "application_1795248047013_0002":                                                                                                    runningApp,
		apps + "application_1795248047013_0001":                                                                                                    finishedApp,
		apps + "application_1795248047013_0002/appattempts":                                                                                        `{"appAttempts":{"appAttempt":[{"appAttemptId":"appattempt_1795248047013_0002_000001"}]}}`,
		apps + "application_1795248047013_0001/appattempts":                                                                                        `{"appAttempts":{"appAttempt":[{"appAttemptId":"appattempt_1795248047013_0001_000001"}]}}`,
		apps + "application_1795248047013_0002/appattempts/appattempt_1795248047013_0002_000001":                                                   attempt("0002"),
		apps + "application_1795248047013_0001/appattempts/appattempt_1795248047013_0001_000001":                                                   attempt("0001"),
		past + "application_1795248047013_0002/appattempts/appattempt_1795248047013_0002_000001/containers/container_1795248047013_0002_01_000002": endedContainer,
		"GET /ws/v1/cluster/nodes/host.example:8041":                                                                                               aNode,
	}
	for _, name := range []string{
		"cli-application-status-running", "cli-application-status-finished", "cli-application-list-badstate", "cli-applicationattempt-list",
		"cli-applicationattempt-status", "cli-container-status", "cli-node-status", "cli-node-status-unknown", "cli-logs-notfound",
	} {
		args, want, stdout := recordedCLI(t, name)
		status, have, stderr, _ := asked(t, answers, args...)
		if status != want || have != stdout {
			t.Errorf("%v: status %d, want %d; %s\n%s\nwant\n%s", args, status, want, stderr, have, stdout)
		}
		if name == "cli-logs-notfound" && !strings.Contains(stderr, "Could not locate application logs for application_1795248047013_9999") {
			t.Errorf("%v: %s", args, stderr)
		}
	}
}

func TestApplicationsAreChangedInYARNsWords(t *testing.T) {
	id := "application_1795248047013_0002"
	app := "/ws/v1/cluster/apps/" + id
	answers := map[string]string{
		"GET " + app: runningApp, "PUT " + app + "/queue": `{"queue":"root.default"}`, "PUT " + app + "/priority": `{"priority":10}`,
		"PUT " + app + "/timeout":                                `{"timeout":{"type":"LIFETIME","expiryTime":"2026-11-22T08:03:54.907+0000","remainingTimeInSeconds":60}}`,
		"GET /ws/v1/cluster/apps/application_1795248047013_0001": finishedApp,
		"POST /ws/v1/cluster/containers/container_1795248047013_0002_01_000002/signal/GRACEFUL_SHUTDOWN":        "",
		"GET /ws/v1/cluster/apps?applicationTags=a%2Cb&applicationTypes=spark&states=FINISHED%2CRUNNING":        `{"apps":{}}`,
		"GET /ws/v1/applicationhistory/apps/application_1_0001/appattempts/appattempt_1_0001_000001/containers": `{"container":[` + endedContainer + `]}`,
		"PUT /ws/v1/cluster/apps/application_1795248047013_0003/queue":                                          "403 Unauthorized attempt to move appid application_1795248047013_0003 by remote user eve",
		"GET /ws/v1/cluster/apps/application_1795248047013_0003":                                                runningApp,
		"GET /ws/v1/cluster/nodes?states=LOST,UNHEALTHY":                                                        `{"nodes":{}}`,
		"GET /api/v1/nodes": `{"nodes":[]}`,
		"GET /ws/v1/cluster/apps?states=SUBMITTED%2CACCEPTED%2CRUNNING": `{"apps":{}}`,
	}
	for _, test := range []struct {
		args   []string
		status int
		out    string
		change string
	}{
		{[]string{"app", "-movetoqueue", id, "-queue", "default"}, 0, "Moving application " + id + " to queue default\nSuccessfully completed move.\n", "PUT " + app + `/queue {"queue":"default"}`},
		{[]string{"application", "-appId", id, "-changeQueue", "default"}, 0, "Moving application " + id + " to queue default\nSuccessfully completed move.\n", "PUT " + app + `/queue {"queue":"default"}`},
		{[]string{"app", "-movetoqueue", "application_1795248047013_0001", "-queue", "default"}, 0, "Application application_1795248047013_0001 has already finished \n", ""},
		{[]string{"app", "-movetoqueue", "application_1795248047013_0003", "-queue", "default"}, 255, "Moving application", "PUT /ws/v1/cluster/apps/application_1795248047013_0003/queue"},
		{[]string{"app", "-movetoqueue", id}, 255, "", ""},
		{[]string{"app", "-appId", id, "-updatePriority", "10"}, 0, "Successfully updated the application " + id + " with priority '10'\n", `{"priority":10}`},
		{[]string{"app", "-appId", id, "-updatePriority", "99"}, 0, "Updated priority of an application  " + id + " to cluster max priority", `{"priority":99}`},
		{[]string{"app", "-appId", id, "-updateLifetime", "60"}, 0, "New expiry time is 2026-11-22T08:03:54.907+0000", `"expiryTime":"20`},
		{[]string{"app", "-appId", id, "-updateLifetime", "0"}, 255, "", ""},
		{[]string{"app", "-appId", id}, 255, "", ""},
		{[]string{"app", "-updatePriority", "1"}, 255, "", ""},
		{[]string{"app", "-list", "-appStates", "finished,running", "-appTypes", "spark", "-appTags", "a,b"}, 0, "Total number of applications (application-types: [spark], states: [RUNNING, FINISHED] and tags: [a, b]):0\n", ""},
		{[]string{"container", "-signal", "container_1795248047013_0002_01_000002", "GRACEFUL_SHUTDOWN"}, 0, "Signalling container container_1795248047013_0002_01_000002\n", "signal/GRACEFUL_SHUTDOWN"},
		{[]string{"container", "-list", "appattempt_1_0001_000001"}, 0, "Total number of containers :1\n", ""},
		{[]string{"container", "-list", "zz"}, 255, "", ""},
		{[]string{"container", "-status", "container_1_0009_01_000001"}, 255, "Application for Container with id 'container_1_0009_01_000001' doesn't exist in RM or Timeline Server.\n", ""},
		{[]string{"applicationattempt", "-list", "application_1_0009"}, 255, "", ""},
		{[]string{"node", "-list", "-states", "lost,unhealthy"}, 0, "Total Nodes:0\n", ""},
		{[]string{"node", "-list", "-states", "lost", "-all"}, 255, "", ""},
		{[]string{"app", "-list", "-appStates", ","}, 0, "states: [SUBMITTED, ACCEPTED, RUNNING]", ""},
		{[]string{"app", "-status", ""}, 255, "", ""},
		{[]string{"applicationattempt", "-list", ""}, 255, "", ""},
		{[]string{"gpu", "return", ""}, exitUsage, "", ""},
		{[]string{"job", "explain", ""}, exitUsage, "", ""},
		{[]string{"job", "run", "-i", "--array", "0-2", "--", "cat"}, exitUsage, "", ""},
		{[]string{"container", "-signal", ""}, 255, "", ""},
		{[]string{"top", "-delay", "10000000000"}, 255, "", ""},
		{[]string{"node", "-list", "-states", "busy"}, 255, "The node state BUSY is invalid.\n", ""},
		{[]string{"node", "-status", "x"}, 255, "", ""},
		{[]string{"logs"}, 255, "", ""},
		{[]string{"logs", "-containerId", "zz"}, 255, "", ""},
	} {
		status, out, stderr, changes := asked(t, answers, test.args...)
		if status != test.status || !strings.Contains(out, test.out) || !strings.Contains(strings.Join(changes, "\n"), test.change) || test.change == "" && len(changes) > 0 || status != 0 && out == "" && stderr == "" {
			t.Errorf("%v: %d %q %q %q", test.args, status, out, stderr, changes)
		}
	}
}

func TestLogsAreChosen(t *testing.T) {
	jobs := "/api/v1/jobs/application_1_0001/logs"
	answers := map[string]string{"GET " + jobs: `{"logs":[{"container":"container_1_0001_01_000001","file":"stdout","size":3,"modified":1},{"container":"container_1_0001_01_000002","file":"stderr","size":4,"modified":1}]}`}
	if status, out, stderr, _ := asked(t, answers, "logs", "-applicationId", "application_1_0001", "-show_container_log_info", "-log_files", "stderr"); status != 0 ||
		!strings.Contains(out, "Container: container_1_0001_01_000002\n") || strings.Contains(out, "stdout") || !strings.Contains(out, "stderr") {
		t.Errorf("%d %s %s", status, out, stderr)
	}
	if status, _, stderr, _ := asked(t, answers, "logs", "-containerId", "container_1_0001_01_000001", "-log_files", "nothing"); status != 255 ||
		!strings.Contains(stderr, "Can not find any log file matching the pattern: [nothing] for the container: container_1_0001_01_000001 within the application: application_1_0001") {
		t.Errorf("%d %s", status, stderr)
	}
	dir := t.TempDir()
	if status, out, stderr, _ := asked(t, answers, "logs", "-applicationId", "application_1_0001", "-out", dir); status != 0 || out != "" {
		t.Errorf("%d %s %s", status, out, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "container_1_0001_01_000002", "stderr")); err != nil {
		t.Error(err)
	}
}

func TestTopIsPlainInAPipe(t *testing.T) {
	answers := map[string]string{
		"GET /ws/v1/cluster/info":    `{"clusterInfo":{"startedOn":1795248047013}}`,
		"GET /ws/v1/cluster/metrics": `{"clusterMetrics":{"appsRunning":1,"totalNodes":1,"totalUsedResourcesAcrossPartition":{"resourceInformations":{"resourceInformation":[{"name":"yarn.io/gpu","value":2}]}},"totalClusterResourcesAcrossPartition":{"resourceInformations":{"resourceInformation":[{"name":"yarn.io/gpu","value":8}]}}}}`,
		"GET /ws/v1/cluster/apps?deSelects=resourceRequests,resourceInfo,timeouts&states=RUNNING": `{"apps":{"app":[]}}`,
		"GET /ws/v1/cluster/apps?states=RUNNING&deSelects=resourceRequests,resourceInfo,timeouts": `{"apps":{"app":[{"id":"application_1_0001","user":"alice","queue":"root.prod.a","name":"x"},{"id":"application_1_0002","user":"bob","queue":"root.b","name":"y"}]}}`,
	}
	status, out, stderr, _ := asked(t, answers, "top", "-users", "alice")
	if status != 0 || strings.Contains(out, "\x1b") || !strings.Contains(out, "yarn.io/gpu: 6 available, 2 allocated") || !strings.Contains(out, "application_1_0001") || strings.Contains(out, "application_1_0002") {
		t.Errorf("%d %s %s", status, out, stderr)
	}
}
