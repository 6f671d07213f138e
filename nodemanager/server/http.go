package server

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/hadoop"
	"github.com/gohops/hops/nodemanager/state"
)

// route is one address of the node manager's REST, YARN's names and shapes (NMWebServices) where YARN has them.
type route struct {
	pattern string
	right   security.Right
	serve   func(*Server, http.ResponseWriter, *http.Request)
}

var routes = []route{
	{"GET /ws/v1/node/{$}", security.Anyone, (*Server).info},
	{"GET /ws/v1/node", security.Anyone, (*Server).info},
	{"GET /ws/v1/node/info", security.Anyone, (*Server).info},
	{"GET /ws/v1/node/apps", security.Anyone, (*Server).apps},
	{"GET /ws/v1/node/apps/{app}", security.Anyone, (*Server).app},
	{"GET /ws/v1/node/containers", security.Anyone, (*Server).allContainers},
	{"GET /ws/v1/node/containers/{container}", security.Anyone, (*Server).oneContainer},
	{"GET /ws/v1/node/containers/{container}/logs", security.Owner, (*Server).logFiles},
	{"GET /ws/v1/node/containers/{container}/logs/{file}", security.Owner, (*Server).logFile},
	{"GET /ws/v1/node/containerlogs/{container}/{file}", security.Owner, (*Server).logFile},
	{"GET /ws/v1/node/resources/{resource}", security.Anyone, (*Server).resource},
	{"GET /node/containerlogs/{container}/{user}", security.Owner, (*Server).logPage},
	{"GET /node/containerlogs/{container}/{user}/{file}", security.Owner, (*Server).logPage},
	{"GET /node/containerlogs/{container}/{user}/{file}/{$}", security.Owner, (*Server).logPage},
	{"GET /api/v1/containers/{container}/logs/{file}", security.Owner, (*Server).liveLog},
}

// Routes lists what the port of a node manager does, and the right that each thing needs.
func Routes() []security.Route {
	var out []security.Route
	for _, r := range routes {
		out = append(out, security.Route{Port: "node manager HTTP", Name: r.pattern, Right: r.right})
	}
	return slices.Concat(out, (*Server)(nil).pages().Routes(), hadoop.Routes())
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", s.pages())
	for _, r := range routes {
		mux.HandleFunc(r.pattern, func(w http.ResponseWriter, req *http.Request) {
			h := w.Header()
			h.Set("Cache-Control", "no-cache")
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("X-FRAME-OPTIONS", "SAMEORIGIN")
			h.Set("X-XSS-Protection", "1; mode=block")
			caller, err := s.config.Door.HTTPCaller(req)
			if err != nil {
				remoteException(w, http.StatusUnauthorized, "AuthorizationException", "org.apache.hadoop.security.authorize.AuthorizationException", err.Error())
				return
			}
			id := req.PathValue("container")
			allowed := r.right != security.Owner || s.mayRead(caller, req)
			s.config.Door.Record(security.Decision{Allowed: allowed, Caller: caller, Port: "rest", Command: r.pattern, Source: id, Read: true})
			if !allowed && strings.HasPrefix(req.URL.Path, "/api/") {
				problem(w, http.StatusForbidden, fmt.Sprintf("user %s may not read the logs of container %s", caller.User, id))
				return
			}
			if !allowed {
				w.Header().Set("Content-Type", "text/plain;charset=utf-8")
				w.WriteHeader(http.StatusInternalServerError) // YARN's answer, recorded
				fmt.Fprintf(w, "User [%s] is not authorized to view the logs for application %s", caller.User, applicationOf(nodemanager.ContainerID(id)))
				return
			}
			r.serve(s, w, req)
		})
	}
	return mux
}

// mayRead: a container that is not here hides nothing.
func (s *Server) mayRead(caller metadata.Caller, r *http.Request) bool {
	c := s.find(nodemanager.ContainerID(r.PathValue("container")))
	if c == nil || caller.Superuser {
		return true
	}
	record, _, _ := c.view()
	return caller.User == string(record.Spec.User)
}

// applicationOf derives the application's id from a container's, as YARN's ids allow.
func applicationOf(id nodemanager.ContainerID) string {
	parts := strings.Split(strings.TrimPrefix(string(id), "container_"), "_")
	if len(parts) == 5 {
		parts = parts[1:] // epoch
	}
	if len(parts) < 2 {
		return ""
	}
	return "application_" + parts[0] + "_" + parts[1]
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json;charset=utf-8")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // the client has gone
}

// remoteException is YARN's error envelope; its members have this order.
func remoteException(w http.ResponseWriter, status int, name, class, message string) {
	type exception struct {
		Exception     string `json:"exception"`
		Message       string `json:"message,omitempty"`
		JavaClassName string `json:"javaClassName"`
	}
	writeJSON(w, status, map[string]exception{"RemoteException": {name, message, class}})
}

func badRequest(w http.ResponseWriter, format string, args ...any) {
	remoteException(w, http.StatusBadRequest, "BadRequestException", "org.apache.hadoop.yarn.webapp.BadRequestException",
		"java.lang.Exception: "+fmt.Sprintf(format, args...))
}

func notFound(w http.ResponseWriter, format string, args ...any) {
	remoteException(w, http.StatusNotFound, "NotFoundException", "org.apache.hadoop.yarn.webapp.NotFoundException",
		"java.lang.Exception: "+fmt.Sprintf(format, args...))
}

func (s *Server) info(w http.ResponseWriter, _ *http.Request) {
	healthy, report := s.healthReport()
	s.health.mu.Lock()
	checked := s.health.checked
	s.health.mu.Unlock()
	mib := s.config.Memory >> 20
	devices := s.devices.current()
	simulated := 0
	for _, d := range devices {
		if d.Simulated {
			simulated++
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"nodeInfo": map[string]any{
		"healthReport": report, "nodeHealthy": healthy, "id": s.config.NodeID, "nodeHostName": s.config.Host,
		"totalVmemAllocatedContainersMB": mib, "totalPmemAllocatedContainersMB": mib, "totalVCoresAllocatedContainers": s.config.VCores,
		"vmemCheckEnabled": false, "pmemCheckEnabled": true, "lastNodeUpdateTime": checked.UnixMilli(),
		"resourceTypes":      "yarn.io/gpu, memory-mb (unit=Mi), vcores",
		"nodeManagerVersion": s.config.Version, "nodeManagerBuildVersion": s.config.Version, "nodeManagerVersionBuiltOn": "",
		"hadoopVersion": s.config.Version, "hadoopBuildVersion": s.config.Version, "hadoopVersionBuiltOn": "",
		"nmStartupTime": s.born.UnixMilli(),
		// Ours.
		"totalGPUs": len(devices), "simulatedGPUs": simulated, "controlGroups": s.groups.Report().String(), "incarnation": s.store.Incarnation(),
		"isolated": s.protection.exposed == "", "containersAsUsers": s.protection.users,
	}})
}

// containerInfo is YARN's ContainerInfo, with the memory used, the GPUs and YARN's missing times added.
type containerInfo struct {
	ID                  string   `json:"id"`
	State               string   `json:"state"`
	ExitCode            int      `json:"exitCode"`
	Diagnostics         string   `json:"diagnostics"`
	User                string   `json:"user"`
	TotalMemoryNeededMB int64    `json:"totalMemoryNeededMB"`
	TotalVCoresNeeded   int      `json:"totalVCoresNeeded"`
	ExecutionType       string   `json:"executionType"`
	ContainerLogsLink   string   `json:"containerLogsLink"`
	NodeID              string   `json:"nodeId"`
	ContainerLogFiles   []string `json:"containerLogFiles"`
	UsedMemoryMB        int64    `json:"usedMemoryMB"`
	GPUs                []string `json:"gpus,omitempty"`
	StartedTime         int64    `json:"startedTime,omitempty"`
	FinishedTime        int64    `json:"finishedTime,omitempty"`
	Degraded            string   `json:"degraded,omitempty"`
	// StuckProcesses do not end although they were killed.
	StuckProcesses []int `json:"stuckProcesses,omitempty"`
}

// yarnStates are NMWebServices' names of our states.
var yarnStates = map[nodemanager.State]string{
	nodemanager.New: "NEW", nodemanager.Localizing: "LOCALIZING", nodemanager.Running: "RUNNING", nodemanager.Stopping: "KILLING",
	nodemanager.Complete: "DONE",
}

// describe hides the lines of the diagnostics behind the first, which quote what the program printed, from those who may
// not read its logs.
func (s *Server) describe(req *http.Request, c *container, caller metadata.Caller) containerInfo {
	r, memory, stuck := c.view()
	scheme := "http"
	if req.TLS != nil {
		scheme = "https"
	}
	i := containerInfo{
		ID: string(c.id), State: yarnStates[r.State], ExitCode: int(nodemanager.Invalid), User: string(r.Spec.User),
		TotalMemoryNeededMB: r.Spec.Resources.Memory >> 20, TotalVCoresNeeded: r.Spec.Resources.VCores, ExecutionType: "GUARANTEED",
		ContainerLogsLink: fmt.Sprintf("%s://%s/node/containerlogs/%s/%s", scheme, s.config.HTTP.Addr(), c.id, url.PathEscape(string(r.Spec.User))),
		NodeID:            s.config.NodeID, ContainerLogFiles: []string{}, UsedMemoryMB: memory >> 20, GPUs: r.Spec.Resources.GPUs,
		StartedTime: r.Started, FinishedTime: r.Finished, Degraded: r.Degraded, StuckProcesses: stuck,
	}
	i.Diagnostics = c.waiting()
	if r.Exit != nil {
		i.ExitCode, i.Diagnostics = int(r.Exit.Status), r.Exit.Diagnostics
		if !caller.Superuser && caller.User != string(r.Spec.User) {
			i.Diagnostics, _, _ = strings.Cut(i.Diagnostics, "\n")
		}
	}
	if root, err := os.OpenRoot(c.logsPath()); err == nil {
		i.ContainerLogFiles = append(i.ContainerLogFiles, logNames(root)...)
		slices.Sort(i.ContainerLogFiles)
		root.Close()
	}
	return i
}

// shown lists the containers that pages show, oldest id first.
func (s *Server) shown() []*container {
	all := slices.DeleteFunc(s.list(), func(c *container) bool { r, _, _ := c.view(); return r.Forgotten })
	slices.SortFunc(all, func(a, b *container) int { return strings.Compare(string(a.id), string(b.id)) })
	return all
}

func (s *Server) allContainers(w http.ResponseWriter, r *http.Request) {
	caller, _ := s.config.Door.HTTPCaller(r) // of no right when the connection has gone meanwhile
	list := struct {
		Container []containerInfo `json:"container,omitempty"`
	}{}
	for _, c := range s.shown() {
		list.Container = append(list.Container, s.describe(r, c, caller))
	}
	writeJSON(w, http.StatusOK, map[string]any{"containers": list})
}

// named finds the container of a request, or answers that there is none.
func (s *Server) named(w http.ResponseWriter, r *http.Request) *container {
	id := nodemanager.ContainerID(r.PathValue("container"))
	if !id.Valid() {
		badRequest(w, "invalid container id, %s", id)
		return nil
	}
	c := s.find(id)
	if c == nil {
		notFound(w, "container with id, %s, not found", id)
	}
	return c
}

func (s *Server) oneContainer(w http.ResponseWriter, r *http.Request) {
	if c := s.named(w, r); c != nil {
		caller, _ := s.config.Door.HTTPCaller(r)
		writeJSON(w, http.StatusOK, map[string]any{"container": s.describe(r, c, caller)})
	}
}

// appInfo is YARN's AppInfo of a node.
type appInfo struct {
	ID           string   `json:"id"`
	State        string   `json:"state"`
	User         string   `json:"user"`
	ContainerIDs []string `json:"containerids"`
}

func (s *Server) appInfos() []appInfo {
	var list []appInfo
	for _, c := range s.shown() {
		r, _, _ := c.view()
		app := string(r.Spec.Application)
		if app == "" {
			app = applicationOf(c.id)
		}
		i := slices.IndexFunc(list, func(a appInfo) bool { return a.ID == app })
		if i < 0 {
			i = len(list)
			list = append(list, appInfo{ID: app, State: "FINISHED", User: string(r.Spec.User), ContainerIDs: []string{}})
		}
		if r.State != nodemanager.Complete {
			list[i].State = "RUNNING"
		}
		list[i].ContainerIDs = append(list[i].ContainerIDs, string(c.id))
	}
	return list
}

func (s *Server) apps(w http.ResponseWriter, r *http.Request) {
	list := struct {
		App []appInfo `json:"app,omitempty"`
	}{}
	wantState, wantUser := r.URL.Query().Get("state"), r.URL.Query().Get("user")
	for _, a := range s.appInfos() {
		if (wantState == "" || strings.EqualFold(wantState, a.State)) && (wantUser == "" || wantUser == a.User) {
			list.App = append(list.App, a)
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"apps": list})
}

func (s *Server) app(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("app")
	for _, a := range s.appInfos() {
		if a.ID == id {
			writeJSON(w, http.StatusOK, map[string]any{"app": a})
			return
		}
	}
	notFound(w, "app with id %s not found", id)
}

// javaTime is how NMWebServices writes times of files.
func javaTime(t time.Time) string { return t.UTC().Format("Mon Jan 02 15:04:05 -0700 2006") }

func (s *Server) logFiles(w http.ResponseWriter, r *http.Request) {
	id := nodemanager.ContainerID(r.PathValue("container"))
	if !id.Valid() {
		badRequest(w, "invalid container id, %s", id)
		return
	}
	type file struct {
		FileName         string `json:"fileName"`
		FileSize         string `json:"fileSize"`
		LastModifiedTime string `json:"lastModifiedTime"`
	}
	info := struct {
		Files       []file `json:"containerLogInfo,omitempty"`
		Aggregation string `json:"logAggregationType"`
		ContainerID string `json:"containerId"`
		NodeID      string `json:"nodeId"`
	}{Aggregation: "LOCAL", ContainerID: string(id), NodeID: s.config.NodeID}
	if c := s.find(id); c != nil {
		if root, err := os.OpenRoot(c.logsPath()); err == nil {
			defer root.Close()
			for _, name := range logNames(root) {
				if st, err := root.Lstat(name); err == nil {
					info.Files = append(info.Files, file{name, strconv.FormatInt(st.Size(), 10), javaTime(st.ModTime())})
				}
			}
		}
	}
	slices.SortFunc(info.Files, func(a, b file) int { return strings.Compare(a.FileName, b.FileName) })
	writeJSON(w, http.StatusOK, map[string]any{"containerLogsInfo": info})
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain;charset=utf-8")
	w.WriteHeader(status)
	io.WriteString(w, text)
}

// logFile answers one log file in YARN's frame. size cuts it: n the first, -n the last bytes.
func (s *Server) logFile(w http.ResponseWriter, r *http.Request) {
	if accept := r.Header.Get("Accept"); accept != "" && !strings.Contains(accept, "text/plain") && !strings.Contains(accept, "*/*") &&
		!strings.Contains(accept, "text/*") && !strings.Contains(accept, "application/octet-stream") {
		remoteException(w, http.StatusServiceUnavailable, "WebApplicationException", "javax.ws.rs.WebApplicationException", "")
		return
	}
	query := r.URL.Query()
	size, limited := int64(0), query.Has("size")
	if limited {
		var err error
		if size, err = strconv.ParseInt(query.Get("size"), 10, 64); err != nil {
			remoteException(w, http.StatusServiceUnavailable, "WebApplicationException", "javax.ws.rs.WebApplicationException", "")
			return
		}
	}
	format := query.Get("format")
	if format != "" && format != "text" && format != "octet-stream" {
		plain(w, http.StatusBadRequest, "The valid values for the parameter : format are [text, octet-stream]")
		return
	}
	c := s.named(w, r)
	if c == nil {
		return
	}
	root, err := os.OpenRoot(c.logsPath())
	if err != nil {
		plain(w, http.StatusNotFound, "java.lang.Exception: Cannot find this log on the local disk.")
		return
	}
	defer root.Close()
	name := r.PathValue("file")
	f, info, err := openLog(root, name)
	if err != nil || strings.ContainsRune(name, '/') {
		plain(w, http.StatusNotFound, "java.lang.Exception: Cannot find this log on the local disk.")
		return
	}
	defer f.Close()
	from, n := int64(0), info.Size()
	switch {
	case limited && size >= 0:
		n = min(n, size)
	case limited:
		from = max(0, n+size)
		n -= from
	}
	if format == "octet-stream" {
		w.Header().Set("Content-Type", "application/octet-stream;charset=utf-8")
	} else {
		w.Header().Set("Content-Type", "text/plain;charset=utf-8")
	}
	title := fmt.Sprintf("Container: %s on %s", c.id, s.config.NodeID)
	fmt.Fprintf(w, "%s\nLogAggregationType: LOCAL\n%s\nLogType:%s\nLogLastModifiedTime:%s\nLogLength:%d\nLogContents:\n",
		title, strings.Repeat("=", len(title)), name, javaTime(info.ModTime()), info.Size())
	if _, err := io.Copy(w, io.NewSectionReader(f, from, n)); err != nil {
		panic(http.ErrAbortHandler) // the reader must see that the rest is missing
	}
	end := "End of LogType:" + name
	stars := strings.Repeat("*", len(end)+50)
	var last [1]byte
	if _, err := f.ReadAt(last[:], from+n-1); n > 0 && err == nil && last[0] != '\n' {
		end = "\n" + end
	}
	if record, _, _ := c.view(); record.State != nodemanager.Complete {
		end += fmt.Sprintf(".This log file belongs to a running container (%s) and so may not be complete.", c.id)
	}
	fmt.Fprintf(w, "%s\n%s\n\n", end, stars)
}

// logPage is the link that YARN's clients build for people: the list of files, or the end of one.
func (s *Server) logPage(w http.ResponseWriter, r *http.Request) {
	c := s.named(w, r)
	if c == nil {
		return
	}
	w.Header().Set("Content-Type", "text/html;charset=utf-8")
	title := "Logs for " + string(c.id)
	fmt.Fprintf(w, "<!DOCTYPE html>\n<html><head><meta charset=\"UTF-8\"><title>%s</title></head><body><h1>%[1]s</h1>\n", html.EscapeString(title))
	defer io.WriteString(w, "</body></html>\n")
	root, err := os.OpenRoot(c.logsPath())
	if err != nil {
		io.WriteString(w, "<p>No logs available for container.</p>\n")
		return
	}
	defer root.Close()
	base := fmt.Sprintf("/node/containerlogs/%s/%s", c.id, url.PathEscape(r.PathValue("user")))
	name := r.PathValue("file")
	if name == "" {
		for _, name := range logNames(root) {
			if st, err := root.Lstat(name); err == nil {
				fmt.Fprintf(w, "<p><a href=\"%s/%s/?start=-4096\">%s : Total file length is %d bytes.</a></p>\n",
					html.EscapeString(base), url.PathEscape(name), html.EscapeString(name), st.Size())
			}
		}
		return
	}
	f, info, err := openLog(root, name)
	if err != nil {
		io.WriteString(w, "<p>Cannot find this log on the local disk.</p>\n")
		return
	}
	defer f.Close()
	start, err := strconv.ParseInt(r.URL.Query().Get("start"), 10, 64)
	if err != nil {
		start = -4096
	}
	if start < 0 {
		start += info.Size()
	}
	start = min(max(0, start), info.Size())
	if start > 0 {
		fmt.Fprintf(w, "<p>Showing %d bytes. Click <a href=\"%s/%s/?start=0\">here</a> for full log</p>\n",
			info.Size()-start, html.EscapeString(base), url.PathEscape(name))
	}
	io.WriteString(w, "<pre>")
	io.Copy(escaping{w}, io.NewSectionReader(f, start, info.Size()-start))
	io.WriteString(w, "</pre>\n")
}

// escaping makes text safe inside HTML.
type escaping struct{ w io.Writer }

func (e escaping) Write(b []byte) (int, error) {
	if _, err := io.WriteString(e.w, html.EscapeString(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// resource answers YARN's plug-in page of a resource; only GPUs have one.
func (s *Server) resource(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("resource") != "yarn.io/gpu" || s.config.GPUs.Name() == "none" {
		writeJSON(w, http.StatusOK, struct{}{})
		return
	}
	type device struct {
		Index       int    `json:"index"`
		MinorNumber int    `json:"minorNumber"`
		ContainerID string `json:"containerId,omitempty"`
		UUID        string `json:"uuid"`
	}
	gpus, total, assigned := []map[string]any{}, []device{}, []device{}
	holders, occupied := s.holders(), s.occupied()
	for i, d := range s.devices.current() {
		g := map[string]any{
			"productName": d.Model, "uuid": d.UUID, "minorNumber": d.Minor, "simulated": d.Simulated, "health": d.Health,
			"healthReason": d.HealthReason, "island": d.Island, "pci": d.PCI,
		}
		if why := occupied[d.UUID]; why != "" {
			g["heldBack"] = why
		}
		if u := d.Usage; u != nil {
			g["gpuUtilizations"] = map[string]any{"overallGpuUtilization": u.Utilization}
			g["gpuMemoryUsage"] = map[string]any{
				"usedMemoryMiB": u.MemoryUsed >> 20, "availMemoryMiB": (d.Memory - u.MemoryUsed) >> 20, "totalMemoryMiB": d.Memory >> 20,
			}
			g["temperature"] = map[string]any{"currentGpuTemp": u.Temperature}
			g["powerDraw"], g["processes"] = u.Power, u.Processes
		}
		gpus = append(gpus, g)
		total = append(total, device{Index: i, MinorNumber: d.Minor, UUID: d.UUID})
		if c := holders[d.UUID]; c != "" {
			assigned = append(assigned, device{i, d.Minor, string(c), d.UUID})
		}
	}
	var driver string
	if d, ok := s.config.GPUs.(interface{ Driver() string }); ok {
		driver = d.Driver()
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"gpuDeviceInformation": map[string]any{"gpus": gpus, "driverVersion": driver}, "totalGpuDevices": total, "assignedGpuDevices": assigned,
	})
}

// holders says which container holds which device.
func (s *Server) holders() map[string]nodemanager.ContainerID {
	held := map[string]nodemanager.ContainerID{}
	for _, c := range s.list() {
		var r state.Record
		if r, _, _ = c.view(); r.State != nodemanager.Complete {
			for _, uuid := range r.Spec.Resources.GPUs {
				held[uuid] = c.id
			}
		}
	}
	return held
}
