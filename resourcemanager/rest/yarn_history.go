package rest

import (
	"fmt"
	"iter"
	"net/http"
	"strings"

	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/internal/security"
	rm "github.com/gohops/hops/resourcemanager"
)

// YARN's history of applications, which is a server of its own there (port 8188). Here the resource manager remembers those that have ended
// for a while, with their containers, and answers for them. Objects have no root.

var historyRoutes = []Route{
	{Method: "GET", Path: history + "/about", Right: security.Anyone, handle: (*request).historyAbout},
	{Method: "GET", Path: history + "/apps", Right: security.Anyone, handle: (*request).historyApps},
	{Method: "GET", Path: history + "/apps/{app}", Right: security.Anyone, handle: (*request).historyApp},
	{Method: "GET", Path: history + "/apps/{app}/appattempts", Right: security.Anyone, handle: (*request).historyAttempts},
	{Method: "GET", Path: history + "/apps/{app}/appattempts/{attempt}", Right: security.Anyone, handle: (*request).historyAttempt},
	{Method: "GET", Path: history + "/apps/{app}/appattempts/{attempt}/containers", Right: security.Anyone, handle: (*request).historyContainers},
	{Method: "GET", Path: history + "/apps/{app}/appattempts/{attempt}/containers/{container}", Right: security.Anyone, handle: (*request).historyContainer},
}

const history = "/ws/v1/applicationhistory"

func (q *request) historyAbout() {
	q.answer("about", jersey.Bare, struct {
		About       string `json:"About"`
		Version     string `json:"timeline-service-version"`
		Build       string `json:"timeline-service-build-version"`
		BuiltOn     string `json:"timeline-service-version-built-on"`
		Hadoop      string `json:"hadoop-version"`
		HadoopBuild string `json:"hadoop-build-version"`
		HadoopBuilt string `json:"hadoop-version-built-on"`
	}{"Generic History Service API", version, version + " of hops", "", version, version + " of hops", ""})
}

type historyApp struct {
	ID             string `json:"appId"`
	Attempt        string `json:"currentAppAttemptId,omitempty"`
	User           string `json:"user"`
	Name           string `json:"name"`
	Queue          string `json:"queue"`
	Type           string `json:"type"`
	Host           string `json:"host"`
	Port           int    `json:"rpcPort"`
	State          string `json:"appState"`
	Running        int    `json:"runningContainers"`
	Progress       float  `json:"progress"`
	Diagnostics    string `json:"diagnosticsInfo"`
	OriginalURL    string `json:"originalTrackingUrl"`
	TrackingURL    string `json:"trackingUrl"`
	Final          string `json:"finalAppStatus"`
	Submitted      int64  `json:"submittedTime"`
	Started        int64  `json:"startedTime"`
	Launched       int64  `json:"launchTime"`
	Finished       int64  `json:"finishedTime"`
	Elapsed        int64  `json:"elapsedTime"`
	Tags           string `json:"applicationTags,omitempty"`
	Priority       int    `json:"priority"`
	VCores         int    `json:"allocatedCpuVcores"`
	Memory         int64  `json:"allocatedMemoryMB"`
	GPUs           int    `json:"allocatedGpus"`
	ReservedVCores int    `json:"reservedCpuVcores"`
	ReservedMemory int64  `json:"reservedMemoryMB"`
	ReservedGPUs   int    `json:"reservedGpus"`
	Unmanaged      bool   `json:"unmanagedApplication"`
	AppLabel       string `json:"appNodeLabelExpression"`
	MasterLabel    string `json:"amNodeLabelExpression"`
	Spent          string `json:"aggregateResourceAllocation"`
	Preempted      string `json:"aggregatePreemptedResourceAllocation"`
}

// spentText is YARN's sentence of what was used.
func spentText(s rm.Spent) string {
	return fmt.Sprintf("%d MB-seconds, %d vcore-seconds, %d %s-seconds", s.MiB/1000, s.VCores/1000, s.GPUs/1000, rm.GPUName)
}

func (q *request) historyInfo(a *rm.Application) historyApp {
	i := q.appInfo(a)
	out := historyApp{
		ID: i.ID, User: a.User, Name: a.Name, Queue: a.Queue, Type: a.Type, Host: "N/A", Port: -1, State: i.State, Running: a.Live, Progress: i.Progress,
		Diagnostics: i.Diagnostics, OriginalURL: "N/A", TrackingURL: i.TrackingURL, Final: i.FinalStatus, Submitted: i.StartedTime, Started: i.StartedTime,
		Launched: i.LaunchTime, Finished: i.FinishedTime, Elapsed: i.ElapsedTime, Tags: i.Tags, Priority: a.Priority, VCores: a.Used.VCores, Memory: a.Used.MemoryMiB(),
		GPUs: a.Used.GPUs, AppLabel: "<Not set>", MasterLabel: defaultPartition, Spent: spentText(q.spent(a, q.view.Now())), Preempted: spentText(rm.Spent{}),
	}
	if t := a.Attempt(); t != nil {
		out.Attempt = rm.AttemptID{Application: a.ID, Number: t.Number}.String()
		if n := q.view.Node(t.Node); n != nil {
			out.Host = n.Host
		}
	}
	if a.TrackingURL != "" {
		out.OriginalURL = a.TrackingURL
	}
	return out
}

// remembered answers 404, without a root, for an application that is not known any more.
func (q *request) remembered() bool {
	if q.app != nil {
		return true
	}
	jersey.Write(q.w, q.r, http.StatusNotFound, jersey.Object{Root: "RemoteException", Dialect: jersey.Bare, Value: jersey.Exception{
		Name: "NotFoundException", Class: "org.apache.hadoop.yarn.webapp.NotFoundException",
		Message: fmt.Sprintf("org.apache.hadoop.yarn.exceptions.ApplicationNotFoundException: The entity for application %v doesn't exist in the timeline store", q.id),
	}})
	return false
}

func (q *request) historyApps() {
	keep := q.appFilter()
	if keep == nil {
		return
	}
	limit, ok := q.limit()
	if !ok {
		return
	}
	streamYARN(q, jersey.Bare, "apps", "app", func(yield func(historyApp) bool) {
		for a := range q.view.Applications() {
			if !keep(a) {
				continue
			}
			if limit--; !yield(q.historyInfo(a)) || limit == 0 {
				return
			}
		}
	})
}

func (q *request) historyApp() {
	if q.remembered() {
		q.answer("app", jersey.Bare, q.historyInfo(q.app))
	}
}

func (q *request) historyAttempts() {
	if !q.remembered() {
		return
	}
	var out struct {
		List []attemptReport `json:"appAttempt,omitempty"`
	}
	for i := range q.app.Attempts {
		out.List = append(out.List, q.attemptReport(&q.app.Attempts[i]))
	}
	q.answer("appAttempts", jersey.Bare, out)
}

func (q *request) historyAttempt() {
	if !q.remembered() {
		return
	}
	if t := q.theAttempt(); t != nil {
		q.answer("appAttempt", jersey.Bare, q.attemptReport(t))
	}
}

type historyContainer struct {
	ID          string `json:"containerId"`
	MemoryMB    int64  `json:"allocatedMB"`
	VCores      int64  `json:"allocatedVCores"`
	Node        string `json:"assignedNodeId"`
	Priority    int64  `json:"priority"`
	Started     int64  `json:"startedTime"`
	Finished    int64  `json:"finishedTime"`
	Elapsed     int64  `json:"elapsedTime"`
	Diagnostics string `json:"diagnosticsInfo"`
	LogURL      string `json:"logUrl"`
	Exit        int64  `json:"containerExitStatus"`
	State       string `json:"containerState"`
	NodeHTTP    string `json:"nodeHttpAddress"`
}

// historyContainersOf are those of an attempt, ended ones too.
func (q *request) historyContainersOf(t *rm.Attempt) iter.Seq[historyContainer] {
	return func(yield func(historyContainer) bool) {
		for _, c := range q.view.Containers(q.id) {
			if c.ID.Attempt.Number != t.Number {
				continue
			}
			i := q.containerInfo(c)
			h := historyContainer{
				i.ID, i.AllocatedMB, i.AllocatedVCores, i.AssignedNode, i.Priority, i.Started, i.Finished, i.Elapsed, q.shown(q.app, c.Diagnostics), i.LogURL,
				int64(c.Exit), i.State, i.NodeHTTP,
			}
			if !c.Live() {
				h.State, h.Elapsed = "COMPLETE", int64(c.Finished-c.Granted)
			}
			if !yield(h) {
				return
			}
		}
	}
}

func (q *request) historyContainers() {
	if !q.remembered() {
		return
	}
	if t := q.theAttempt(); t != nil {
		streamYARN(q, jersey.Bare, "containers", "container", q.historyContainersOf(t))
	}
}

func (q *request) historyContainer() {
	if !q.remembered() {
		return
	}
	t := q.theAttempt()
	if t == nil {
		return
	}
	id := q.r.PathValue("container")
	for c := range q.historyContainersOf(t) {
		if strings.EqualFold(c.ID, id) {
			q.answer("container", jersey.Bare, c)
			return
		}
	}
	jersey.NotFound(q.w, q.r, "org.apache.hadoop.yarn.exceptions.ContainerNotFoundException: The entity for container "+id+" doesn't exist in the timeline store")
}
