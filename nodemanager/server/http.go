package server

import (
	"context"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/hadoop"
	"github.com/gohops/hops/nodemanager/shuffle"
	"github.com/gohops/hops/nodemanager/state"
	rm "github.com/gohops/hops/resourcemanager"
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
	{"GET /ws/v1/node/auxiliaryservices", security.Anyone, (*Server).auxiliaryServices},
	{"GET /node/containerlogs/{container}/{user}", security.Owner, (*Server).logPage},
	{"GET /node/containerlogs/{container}/{user}/{file}", security.Owner, (*Server).logPage},
	{"GET /node/containerlogs/{container}/{user}/{file}/{$}", security.Owner, (*Server).logPage},
	{"GET /api/v1/containers/{container}/logs/{file}", security.Owner, (*Server).liveLog},
	{"POST /api/v1/containers/{container}/exec", security.Owner, (*Server).exec},
}

// Routes lists what the port of a node manager does, and the right that each thing needs.
func Routes() []security.Route {
	var out []security.Route
	for _, r := range routes {
		out = append(out, security.Route{Port: "node manager HTTP", Name: r.pattern, Right: r.right})
	}
	return slices.Concat(out, (*Server)(nil).pages().Routes(), hadoop.Routes(), shuffle.Routes())
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", s.pages())
	for _, r := range routes {
		if path := strings.TrimPrefix(r.pattern, "GET "); strings.HasPrefix(path, "/ws/") { // with another method
			mux.HandleFunc(path, func(w http.ResponseWriter, req *http.Request) {
				jersey.Headers(w.Header())
				jersey.Unservable(w, req)
			})
		}
		mux.HandleFunc(r.pattern, func(w http.ResponseWriter, req *http.Request) {
			jersey.Headers(w.Header())
			if strings.HasPrefix(req.URL.Path, "/ws/") {
				var done func()
				w, done = jersey.Compress(w, req)
				defer done()
			}
			caller, err := s.config.Door.HTTPCaller(req)
			if err != nil {
				jersey.Fail(w, req, http.StatusUnauthorized, jersey.Exception{Name: "AuthorizationException", Message: err.Error(), Class: "org.apache.hadoop.security.authorize.AuthorizationException"})
				return
			}
			id := req.PathValue("container")
			c := s.find(nodemanager.ContainerID(id))
			req = req.WithContext(context.WithValue(req.Context(), askedKey{}, c))
			allowed, reads := r.right != security.Owner || owns(caller, c), strings.HasPrefix(r.pattern, "GET ")
			s.config.Door.Record(security.Decision{Allowed: allowed, Caller: caller, Port: "rest", Command: r.pattern, Source: id, Read: reads})
			if !allowed && !reads {
				problem(w, http.StatusForbidden, fmt.Sprintf("user %s may not run anything in container %s", caller.User, id))
				return
			}
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

// askedKey is what a request's context has its container under.
type askedKey struct{}

// asked is the container that a request names, as it was when the right to it was judged; nil: it was not here. One that has come since is
// somebody else's, perhaps.
func asked(r *http.Request) *container {
	c, _ := r.Context().Value(askedKey{}).(*container)
	return c
}

// owns: the container is the caller's, who may be an administrator. One that is not here hides nothing.
func owns(caller metadata.Caller, c *container) bool {
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

func answer(w http.ResponseWriter, r *http.Request, root string, d jersey.Dialect, v any) {
	jersey.Write(w, r, http.StatusOK, jersey.Object{Root: root, Dialect: d, Value: v})
}

// nodeInfo is YARN's NodeInfo, with what is ours at its end.
type nodeInfo struct {
	HealthReport string `json:"healthReport"`
	VirtualMB    int64  `json:"totalVmemAllocatedContainersMB"`
	PhysicalMB   int64  `json:"totalPmemAllocatedContainersMB"`
	VCores       int    `json:"totalVCoresAllocatedContainers"`
	VirtualCheck bool   `json:"vmemCheckEnabled"`
	PhysCheck    bool   `json:"pmemCheckEnabled"`
	LastUpdate   int64  `json:"lastNodeUpdateTime"`
	Types        string `json:"resourceTypes"`
	Healthy      bool   `json:"nodeHealthy"`
	Version      string `json:"nodeManagerVersion"`
	Build        string `json:"nodeManagerBuildVersion"`
	BuiltOn      string `json:"nodeManagerVersionBuiltOn"`
	Hadoop       string `json:"hadoopVersion"`
	HadoopBuild  string `json:"hadoopBuildVersion"`
	HadoopBuilt  string `json:"hadoopVersionBuiltOn"`
	ID           string `json:"id"`
	Host         string `json:"nodeHostName"`
	Started      int64  `json:"nmStartupTime"`

	GPUs          int    `json:"totalGPUs"`
	Simulated     int    `json:"simulatedGPUs"`
	ControlGroups string `json:"controlGroups"`
	Incarnation   string `json:"incarnation"`
	Isolated      bool   `json:"isolated"`
	AsUsers       bool   `json:"containersAsUsers"`
}

func (s *Server) info(w http.ResponseWriter, r *http.Request) {
	healthy, report := s.healthReport()
	s.health.mu.Lock()
	checked := s.health.checked
	s.health.mu.Unlock()
	mib := s.config.Memory >> 20
	devices, simulated := 0, 0
	for _, d := range s.devices.current() {
		if d.Whole() {
			devices++
			if d.Simulated {
				simulated++
			}
		}
	}
	answer(w, r, "nodeInfo", jersey.Natural, nodeInfo{
		HealthReport: report, Healthy: healthy, ID: s.config.NodeID, Host: s.config.Host, VirtualMB: mib, PhysicalMB: mib, VCores: s.config.VCores,
		PhysCheck: true, LastUpdate: checked.UnixMilli(), Types: "yarn.io/gpu, memory-mb (unit=Mi), vcores", Started: s.born.UnixMilli(),
		Version: s.config.Version, Build: s.config.Version, Hadoop: s.config.Version, HadoopBuild: s.config.Version,
		GPUs: devices, Simulated: simulated, ControlGroups: s.groups.Report().String(), Incarnation: s.store.Incarnation(),
		Isolated: s.protection.exposed == "", AsUsers: s.protection.users,
	})
}

// containerInfo is YARN's ContainerInfo, with the memory used, the GPUs and YARN's missing times added.
type containerInfo struct {
	ID                  string    `json:"id"`
	State               string    `json:"state"`
	ExitCode            int       `json:"exitCode"`
	Diagnostics         string    `json:"diagnostics"`
	User                string    `json:"user"`
	TotalMemoryNeededMB int64     `json:"totalMemoryNeededMB"`
	TotalVCoresNeeded   int       `json:"totalVCoresNeeded"`
	ExecutionType       string    `json:"executionType"`
	ContainerLogsLink   string    `json:"containerLogsLink"`
	NodeID              string    `json:"nodeId"`
	ContainerLogFiles   []string  `json:"containerLogFiles"`
	UsedMemoryMB        int64     `json:"usedMemoryMB"`
	GPUs                []string  `json:"gpus,omitempty"`
	GPUUse              []usedGPU `json:"gpuUse,omitempty"`
	StartedTime         int64     `json:"startedTime,omitempty"`
	FinishedTime        int64     `json:"finishedTime,omitempty"`
	Degraded            string    `json:"degraded,omitempty"`
	// StuckProcesses do not end although they were killed.
	StuckProcesses []int `json:"stuckProcesses,omitempty"`
}

// usedGPU is what a container has done with one of its devices: times in seconds, memory in MiB, energy in joules.
type usedGPU struct {
	UUID       string       `json:"uuid"`
	Held       jersey.Float `json:"heldSeconds"`
	Busy       jersey.Float `json:"busySeconds"`
	MemoryPeak int64        `json:"peakMemoryMiB"`
	Energy     jersey.Float `json:"energyJoules"`
	Idle       jersey.Float `json:"idleSeconds"`
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
	for _, u := range r.GPUs {
		i.GPUUse = append(i.GPUUse, usedGPU{
			u.UUID, jersey.Float(u.Held.Seconds()), jersey.Float(u.Busy.Seconds()), u.MemoryPeak >> 20, jersey.Float(u.Energy), jersey.Float(u.Idle.Seconds()),
		})
	}
	i.Diagnostics = c.waiting()
	if r.Exit != nil {
		i.ExitCode, i.Diagnostics = int(r.Exit.Status), r.Exit.Diagnostics
		if !caller.Superuser && caller.User != string(r.Spec.User) {
			i.Diagnostics, _, _ = strings.Cut(i.Diagnostics, "\n")
		}
	}
	if root, err := os.OpenRoot(c.logsPath()); err == nil {
		names, _ := logNames(root) // those that can be listed
		i.ContainerLogFiles = append(i.ContainerLogFiles, names...)
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
	answer(w, r, "containers", jersey.Natural, list)
}

// named finds the container of a request, or answers that there is none.
func (s *Server) named(w http.ResponseWriter, r *http.Request) *container {
	id := nodemanager.ContainerID(r.PathValue("container"))
	if !id.Valid() {
		jersey.BadRequest(w, r, "java.lang.Exception: invalid container id, "+string(id))
		return nil
	}
	c := asked(r)
	if c == nil {
		jersey.NotFound(w, r, fmt.Sprintf("java.lang.Exception: container with id, %s, not found", id))
	}
	return c
}

func (s *Server) oneContainer(w http.ResponseWriter, r *http.Request) {
	if c := s.named(w, r); c != nil {
		caller, _ := s.config.Door.HTTPCaller(r)
		answer(w, r, "container", jersey.Natural, s.describe(r, c, caller))
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
	answer(w, r, "apps", jersey.Natural, list)
}

func (s *Server) app(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("app")
	if _, err := rm.ParseApplicationID(id); err != nil {
		jersey.BadRequest(w, r, "java.lang.IllegalArgumentException: Invalid ApplicationId: "+id)
		return
	}
	for _, a := range s.appInfos() {
		if a.ID == id {
			answer(w, r, "app", jersey.Natural, a)
			return
		}
	}
	jersey.NotFound(w, r, fmt.Sprintf("java.lang.Exception: app with id %s not found", id))
}

func (s *Server) logFiles(w http.ResponseWriter, r *http.Request) {
	id := nodemanager.ContainerID(r.PathValue("container"))
	if !id.Valid() {
		jersey.BadRequest(w, r, "java.lang.Exception: invalid container id, "+string(id))
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
	if c := asked(r); c != nil {
		if root, err := os.OpenRoot(c.logsPath()); err == nil {
			defer root.Close()
			names, _ := logNames(root)
			for _, name := range names {
				if st, err := root.Lstat(name); err == nil {
					info.Files = append(info.Files, file{name, strconv.FormatInt(st.Size(), 10), jersey.FileTime(st.ModTime())})
				}
			}
		}
	}
	slices.SortFunc(info.Files, func(a, b file) int { return strings.Compare(a.FileName, b.FileName) })
	answer(w, r, "containerLogsInfo", jersey.Natural, info)
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain;charset=utf-8")
	w.WriteHeader(status)
	io.WriteString(w, text)
}

// logFile answers one log file in YARN's frame. size cuts it: n the first, -n the last bytes.
func (s *Server) logFile(w http.ResponseWriter, r *http.Request) {
	if !jersey.Takes(r, "text", "plain") && !jersey.Takes(r, "application", "octet-stream") {
		jersey.Unservable(w, r)
		return
	}
	query := r.URL.Query()
	size, limited := int64(0), query.Has("size")
	if limited {
		var err error
		if size, err = strconv.ParseInt(query.Get("size"), 10, 64); err != nil {
			jersey.Unservable(w, r)
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
	record, _, _ := c.view()
	frame := jersey.Log{
		Container: string(c.id), Node: s.config.NodeID, Aggregation: "LOCAL", File: name, Modified: info.ModTime(), Length: info.Size(),
		Running: record.State != nodemanager.Complete,
	}
	_ = frame.Begin(w) // the client has gone
	if _, err := io.Copy(w, &section{logReader{f, s.config.rolls(name)}, from, from + n}); err != nil {
		panic(http.ErrAbortHandler) // the reader must see that the rest is missing
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], from+n-1)
	_ = frame.End(w, n == 0 || err != nil || last[0] == '\n')
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
		names, _ := logNames(root)
		for _, name := range names {
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
	io.Copy(escaping{w}, &section{logReader{f, s.config.rolls(name)}, start, info.Size()})
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

// resource answers YARN's plug-in page of a resource; only GPUs have one, and MIG instances by the name of their resource.
func (s *Server) resource(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("resource")
	profile, instances := rm.ProfileOf(name)
	if name != rm.GPUName && !instances || s.config.GPUs.Name() == "none" {
		answer(w, r, "nmResourceInfo", jersey.Bare, struct{}{})
		return
	}
	out := gpuResource{Information: gpuInformation{GPUs: []gpuInfo{}}, Total: []gpuDevice{}, Assigned: []gpuDevice{}}
	holders, occupied := s.holders(), s.occupied()
	for i, d := range s.devices.current() {
		if instances && (d.Profile == "" || rm.ProfileResource(d.Profile) != rm.ProfileResource(profile)) || !instances && !d.Whole() {
			continue
		}
		g := gpuInfo{
			Product: d.Model, UUID: d.UUID, Minor: d.Minor, Simulated: d.Simulated, Health: string(d.Health), HealthReason: d.HealthReason,
			Island: d.Island, PCI: d.PCI, HeldBack: occupied[d.UUID], Profile: d.Profile, Parent: d.Parent,
		}
		if u := d.Usage; u != nil {
			g.Use = &gpuUse{jersey.Float(u.Utilization)}
			g.Memory = &gpuMemory{u.MemoryUsed >> 20, (d.Memory - u.MemoryUsed) >> 20, d.Memory >> 20}
			g.Temperature = &gpuTemperature{jersey.Float(u.Temperature)}
			g.Power, g.Energy, g.Processes = jersey.Float(u.Power), jersey.Float(u.Energy), u.Processes
		}
		out.Information.GPUs = append(out.Information.GPUs, g)
		out.Total = append(out.Total, gpuDevice{Index: i, Minor: d.Minor, UUID: d.UUID})
		if c := holders[d.UUID]; c != "" {
			out.Assigned = append(out.Assigned, gpuDevice{i, d.Minor, string(c), d.UUID})
		}
	}
	if d, ok := s.config.GPUs.(interface{ Driver() string }); ok {
		out.Information.Driver = d.Driver()
	}
	answer(w, r, "nmGpuResourceInfo", jersey.Bare, out)
}

// gpuResource is YARN's NMGpuResourceInfo, with what is ours.
type gpuResource struct {
	Information gpuInformation `json:"gpuDeviceInformation"`
	Total       []gpuDevice    `json:"totalGpuDevices"`
	Assigned    []gpuDevice    `json:"assignedGpuDevices"`
}

type gpuInformation struct {
	GPUs   []gpuInfo `json:"gpus"`
	Driver string    `json:"driverVersion"`
}

type gpuInfo struct {
	Product string `json:"productName"`
	UUID    string `json:"uuid"`
	Minor   int    `json:"minorNumber"`
	// These three are absent where the device does not tell.
	Use         *gpuUse         `json:"gpuUtilizations,omitempty"`
	Memory      *gpuMemory      `json:"gpuMemoryUsage,omitempty"`
	Temperature *gpuTemperature `json:"temperature,omitempty"`

	Simulated    bool         `json:"simulated"`
	Health       string       `json:"health"`
	HealthReason string       `json:"healthReason"`
	Island       string       `json:"island"`
	PCI          string       `json:"pci"`
	HeldBack     string       `json:"heldBack,omitempty"`
	Profile      string       `json:"migProfile,omitempty"`
	Parent       string       `json:"migParent,omitempty"`
	Power        jersey.Float `json:"powerDraw,omitempty"`
	Energy       jersey.Float `json:"energyJoules,omitempty"` // since the driver was loaded
	Processes    []int        `json:"processes,omitempty"`
}

type gpuUse struct {
	Overall jersey.Float `json:"overallGpuUtilization"`
}

type gpuMemory struct {
	Used      int64 `json:"usedMemoryMiB"`
	Available int64 `json:"availMemoryMiB"`
	Total     int64 `json:"totalMemoryMiB"`
}

type gpuTemperature struct {
	Current jersey.Float `json:"currentGpuTemp"`
}

type gpuDevice struct {
	Index     int    `json:"index"`
	Minor     int    `json:"minorNumber"`
	Container string `json:"containerId,omitempty"`
	UUID      string `json:"uuid"`
}

// auxiliaryServices: there is no manifest of them, and that is YARN's answer then.
func (s *Server) auxiliaryServices(w http.ResponseWriter, r *http.Request) {
	jersey.BadRequest(w, r, "java.lang.Exception: Auxiliary services manifest is not enabled")
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
