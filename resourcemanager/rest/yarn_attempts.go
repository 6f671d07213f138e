package rest

import (
	"net/http"
	"strconv"

	"github.com/gohops/hops/internal/jersey"
	rm "github.com/gohops/hops/resourcemanager"
)

type attemptInfo struct {
	ID          int    `json:"id"`
	Start       int64  `json:"startTime"`
	Finished    int64  `json:"finishedTime"`
	Container   string `json:"containerId"`
	NodeHTTP    string `json:"nodeHttpAddress"`
	Node        string `json:"nodeId"`
	Logs        string `json:"logsLink"`
	Blacklisted string `json:"blacklistedNodes"`
	// BySystem is absent until the attempt is launched.
	BySystem    *string `json:"nodesBlacklistedBySystem,omitempty"`
	AttemptID   string  `json:"appAttemptId"`
	ExportPorts string  `json:"exportPorts"`
	State       string  `json:"appAttemptState"`
}

type attemptList struct {
	List []attemptInfo `json:"appAttempt,omitempty"`
}

func (q *request) attempts() {
	if !q.known() {
		return
	}
	var list []attemptInfo
	for _, t := range q.app.Attempts {
		out := attemptInfo{
			ID: t.Number, Start: int64(t.Started), Finished: int64(t.Finished), State: string(t.State),
			AttemptID: rm.AttemptID{Application: q.id, Number: t.Number}.String(),
		}
		if !t.Container.IsZero() {
			out.Container, out.Node = t.Container.String(), string(t.Node)
			out.BySystem, out.ExportPorts = new(string), "null"
			if n, c := q.view.Node(t.Node), q.view.Container(t.Container); n != nil && c != nil {
				out.NodeHTTP, out.Logs = n.HTTP, logLink(q.r, n, c)
			}
		}
		list = append(list, out)
	}
	q.answer("appAttempts", jersey.Natural, attemptList{list})
}

// attemptReport is what one attempt is answered as: another object than in the list.
type attemptReport struct {
	AttemptID   string `json:"appAttemptId"`
	Host        string `json:"host"`
	RPCPort     int64  `json:"rpcPort"`
	TrackingURL string `json:"trackingUrl"`
	OriginalURL string `json:"originalTrackingUrl"`
	Diagnostics string `json:"diagnosticsInfo"`
	State       string `json:"appAttemptState"`
	Container   string `json:"amContainerId"`
	Started     int64  `json:"startedTime"`
	Finished    int64  `json:"finishedTime"`
}

// theAttempt finds the attempt of the path; answers when there is none.
func (q *request) theAttempt() *rm.Attempt {
	text := q.r.PathValue("attempt")
	id, err := rm.ParseAttemptID(text)
	if err != nil {
		q.badRequest("java.lang.IllegalArgumentException: Invalid AppAttemptId: " + text)
		return nil
	}
	if !q.known() {
		return nil
	}
	if id.Application != q.id || id.Number < 1 || id.Number > len(q.app.Attempts) {
		q.remoteException(http.StatusNotFound, "NotFoundException", "org.apache.hadoop.yarn.exceptions.ApplicationAttemptNotFoundException: ApplicationAttempt with id '"+
			text+"' doesn't exist in RM.", "org.apache.hadoop.yarn.webapp.NotFoundException")
		return nil
	}
	return &q.app.Attempts[id.Number-1]
}

func (q *request) attempt() {
	if t := q.theAttempt(); t != nil {
		q.answer("appAttempt", jersey.Mapped, q.attemptReport(t))
	}
}

func (q *request) attemptReport(t *rm.Attempt) attemptReport {
	out := attemptReport{
		AttemptID: rm.AttemptID{Application: q.id, Number: t.Number}.String(), Host: "N/A", RPCPort: -1,
		TrackingURL: ownScheme(q.r) + q.r.Host + "/proxy/" + q.id.String() + "/", OriginalURL: "N/A", Diagnostics: q.shown(q.app, t.Diagnostics), State: string(t.State),
		Started: int64(t.Started), Finished: int64(t.Finished),
	}
	if t.TrackingURL != "" {
		out.OriginalURL = t.TrackingURL
	}
	if !t.Container.IsZero() {
		out.Container = t.Container.String()
	}
	if n := q.view.Node(t.Node); n != nil && t.Epoch != 0 {
		out.Host = n.Host
	}
	return out
}

type containerInfo struct {
	ID              string  `json:"containerId"`
	AllocatedMB     int64   `json:"allocatedMB"`
	AllocatedVCores int64   `json:"allocatedVCores"`
	AssignedNode    string  `json:"assignedNodeId"`
	Priority        int64   `json:"priority"`
	Started         int64   `json:"startedTime"`
	Finished        int64   `json:"finishedTime"`
	Elapsed         int64   `json:"elapsedTime"`
	LogURL          string  `json:"logUrl"`
	Exit            int64   `json:"containerExitStatus"`
	State           string  `json:"containerState"`
	NodeHTTP        string  `json:"nodeHttpAddress"`
	Node            string  `json:"nodeId"`
	Allocated       entries `json:"allocatedResources"`
	ExposedPorts    string  `json:"exposedPorts"`
}

func (q *request) containerInfo(c *rm.Container) containerInfo {
	out := containerInfo{
		ID: c.ID.String(), AllocatedMB: c.Resource.MemoryMiB(), AllocatedVCores: int64(c.Resource.VCores),
		AssignedNode: string(c.Node), Priority: int64(c.Priority), Started: int64(c.Granted), Finished: int64(c.Finished),
		Elapsed: int64(q.now() - c.Granted), State: "RUNNING", Node: string(c.Node),
	}
	out.Allocated.Put(rm.MemoryName, strconv.FormatInt(c.Resource.MemoryMiB(), 10))
	out.Allocated.Put(rm.GPUName, strconv.Itoa(c.Resource.GPUs))
	out.Allocated.Put(rm.VCoresName, strconv.Itoa(c.Resource.VCores))
	for name, n := range c.Resource.Other.All() {
		out.Allocated.Put(name, strconv.FormatInt(n, 10))
	}
	if c.State == rm.ContainerGranted {
		out.State = "NEW"
	}
	if n := q.view.Node(c.Node); n != nil {
		out.NodeHTTP, out.LogURL = schemeOf(q.r, n.HTTP)+n.HTTP, logLink(q.r, n, c)
	}
	return out
}

// liveContainers of an attempt; YARN's resource manager knows no others.
func (q *request) liveContainers(t *rm.Attempt) []containerInfo {
	var list []containerInfo
	for _, c := range q.view.Containers(q.id) {
		if c.Live() && c.ID.Attempt.Number == t.Number {
			list = append(list, q.containerInfo(c))
		}
	}
	return list
}

func (q *request) containers() {
	t := q.theAttempt()
	if t == nil {
		return
	}
	q.answer("containers", jersey.Mapped, struct {
		List []containerInfo `json:"container"`
	}{q.liveContainers(t)})
}

func (q *request) container() {
	t := q.theAttempt()
	if t == nil {
		return
	}
	text := q.r.PathValue("container")
	if _, err := rm.ParseContainerID(text); err != nil {
		q.badRequest("java.lang.IllegalArgumentException: Invalid ContainerId: " + text)
		return
	}
	for _, c := range q.liveContainers(t) {
		if c.ID == text {
			q.answer("container", jersey.Mapped, c)
			return
		}
	}
	q.remoteException(http.StatusNotFound, "NotFoundException", "org.apache.hadoop.yarn.exceptions.ContainerNotFoundException: Container with id '"+
		text+"' doesn't exist in RM.", "org.apache.hadoop.yarn.webapp.NotFoundException")
}
