package rest

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/internal/logpiece"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
)

// jobRoutes are those of jobs.
var jobRoutes = []Route{
	{Method: "POST", Path: "/api/v1/jobs", Right: security.Named, handle: (*request).submitJob},
	{Method: "GET", Path: "/api/v1/jobs", Right: security.Anyone, handle: (*request).listJobs},
	{Method: "GET", Path: "/api/v1/jobs/{app}", Right: security.Anyone, handle: (*request).showJob},
	{Method: "GET", Path: "/api/v1/jobs/{app}/explain", Right: security.Anyone, handle: (*request).explainJob},
	{Method: "DELETE", Path: "/api/v1/jobs/{app}", Right: security.Owner, handle: (*request).stopJob},
	{Method: "GET", Path: "/api/v1/jobs/{app}/logs", Right: security.Owner, handle: (*request).jobLogs},
}

// Job is a job as GET /api/v1/jobs shows it. Times are milliseconds, 0 when they have not come.
type Job struct {
	ID          string         `json:"id"`
	Name        string         `json:"name"`
	User        string         `json:"user"`
	Queue       string         `json:"queue"`
	Kind        rm.Kind        `json:"kind"`
	Priority    int            `json:"priority"`
	State       rm.State       `json:"state"`
	FinalStatus rm.FinalStatus `json:"final_status"`
	Diagnostics string         `json:"diagnostics,omitempty"`
	Submitted   int64          `json:"submitted"`
	Launched    int64          `json:"launched"`
	Finished    int64          `json:"finished"`
	Progress    float64        `json:"progress"`
	Attempt     int            `json:"attempt"`
	// Phase is for people: PENDING while no container of the user's has started and runs, RUNNING, and at the end SUCCEEDED,
	// FAILED or KILLED. State is that of the application, whose master may run long before.
	Phase string `json:"phase"`
	// PendingReason is why it, or a part of it, waits; a job whose phase is PENDING always has one.
	PendingReason *rm.Reason `json:"pending_reason,omitempty"`
	Pending       []Waiting  `json:"pending,omitempty"`
	// After is what it still waits for of other applications, and Deadline when it is ended whatever it does (milliseconds; 0: there is none).
	After       []job.After `json:"after,omitempty"`
	Deadline    int64       `json:"deadline,omitempty"`
	LogDir      string      `json:"log_dir"`
	TrackingURL string      `json:"tracking_url,omitempty"`
	// Proxy is the path under which this server passes requests on to the master.
	Proxy string `json:"proxy,omitempty"`
	// Used is what live containers have; Live is their number, with the master's.
	Used Amount `json:"used"`
	Live int    `json:"live"`
	// Command is what the containers of a command run, for those who may stop it; lists leave it out.
	Command []string `json:"command,omitempty"`
	// Size is how many instances a command has; lists leave it out, and it is not known of one that has ended.
	Size *Size `json:"size,omitempty"`
	// Leaving is how many of its containers are to go; see JobContainer.Preempted.
	Leaving int `json:"leaving,omitempty"`
	// Members counts those of an array that has not ended; lists leave it out.
	Members    *MemberCounts  `json:"members,omitempty"`
	Spent      SpentSeconds   `json:"spent"`
	Containers []JobContainer `json:"containers,omitempty"`
	// Warnings are what its owner should look at; lists leave them out.
	Warnings []string `json:"warnings,omitempty"`
}

// MemberCounts counts the members of an array by what their last container did, as far as it is remembered.
type MemberCounts struct {
	Total     int `json:"total"`
	Waiting   int `json:"waiting"`
	Running   int `json:"running"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	Killed    int `json:"killed,omitempty"`
}

// members counts the members of an array; nil: it is none, or has ended.
func (q *request) members(a *rm.Application, spec *job.Spec) *MemberCounts {
	if spec.Array == nil {
		return nil
	}
	containers := byNumber(q.view, a.ID)
	out := &MemberCounts{Total: spec.Array.Count()}
	for _, n := range spec.Numbers() {
		switch memberState(a, n, lastOf(containers[n])) {
		case memberRunning:
			out.Running++
		case memberSucceeded:
			out.Succeeded++
		case memberKilled:
			out.Killed++
		case memberFailed:
			out.Failed++
		default:
			out.Waiting++
		}
	}
	return out
}

// Amount is a resource in JSON; memory in bytes.
type Amount struct {
	Memory int64 `json:"memory"`
	VCores int   `json:"vcores"`
	GPUs   int   `json:"gpus"`
	// Other is what else there is, by name.
	Other map[string]int64 `json:"other,omitempty"`
}

// SpentSeconds is resource x time.
type SpentSeconds struct {
	MiBSeconds   int64 `json:"mib_seconds"`
	VCoreSeconds int64 `json:"vcore_seconds"`
	GPUSeconds   int64 `json:"gpu_seconds"`
}

// maxWarnings bounds those of one job.
const maxWarnings = 100

// JobContainer is a container of a job.
type JobContainer struct {
	ID  string `json:"id"`
	Ask string `json:"ask,omitempty"`
	// Instance is the number of the command's instance that runs in it, from 0.
	Instance *int              `json:"instance,omitempty"`
	Master   bool              `json:"master,omitempty"`
	Node     string            `json:"node"`
	State    rm.ContainerState `json:"state"`
	// ExitStatus is meaningful when the state is COMPLETE.
	ExitStatus  *int     `json:"exit_status,omitempty"`
	Diagnostics string   `json:"diagnostics,omitempty"`
	Resources   Amount   `json:"resources"`
	GPUs        []string `json:"gpus,omitempty"`
	// GPUUse is what it has done with them, while its node says so.
	GPUUse   []GPUUse `json:"gpu_use,omitempty"`
	Granted  int64    `json:"granted"`
	Started  int64    `json:"started"`
	Finished int64    `json:"finished"`
	LogDir   string   `json:"log_dir"`
	// Preempted: it is to make room for others.
	Preempted *Preempted `json:"preempted,omitempty"`
	// Checkpointed is when it was said last that its work is saved, up to Step; absent: never.
	Checkpointed int64 `json:"checkpointed,omitempty"`
	Step         int64 `json:"step,omitempty"`
}

// Preempted says why a container is to go, and until when; times are milliseconds.
type Preempted struct {
	// Job and Queue are for whom it makes room; absent: for nobody, as where its own job was resized or its node leaves.
	Job      string `json:"job,omitempty"`
	Queue    string `json:"queue,omitempty"`
	Reason   string `json:"reason"`
	Since    int64  `json:"since"`
	Deadline int64  `json:"deadline"`
}

func amountOf(r rm.Resource) Amount { return Amount{r.Memory, r.VCores, r.GPUs, r.Other.Map()} }

// submitJob takes a job in. Idempotency-Key makes a repeat answer the same job.
func (q *request) submitJob() {
	dry, ok := q.truth("dry_run")
	if !ok {
		return
	}
	key := q.r.Header.Get("Idempotency-Key")
	if len(key) > 255 {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "Idempotency-Key is longer than 255 bytes"))
		return
	}
	if kind, _, _ := mime.ParseMediaType(q.r.Header.Get("Content-Type")); kind != "application/json" {
		problem(q.w, http.StatusUnsupportedMediaType, "unsupported-media-type", "a job is a JSON document: send it with Content-Type: application/json")
		return
	}
	body, err := io.ReadAll(io.LimitReader(q.r.Body, job.MaxBytes+1))
	if err != nil {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "the body cannot be read: %v", err))
		return
	}
	if !isJSON(body) {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "the body is not a JSON object"))
		return
	}
	spec, err := job.Parse(body)
	if err != nil {
		q.fail(err)
		return
	}
	if why := q.tooLarge(wants(spec)); why != "" {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "%s", why))
		return
	}
	sum := sha256.Sum256(body)
	name := spec.Name
	if name == "" {
		name = string(spec.Kind)
	}
	b := Submission{
		Name: name, Queue: spec.Queue, Type: "hops-" + string(spec.Kind), Kind: spec.Kind,
		Priority: spec.Priority, Document: body, Timeout: time.Duration(spec.Timeout), Array: spec.Array != nil, After: spec.Dependencies(), Deadline: spec.Due(time.Now()), KeepContainers: true, Foreign: !q.Door.Own(q.r), Key: key, Digest: hex.EncodeToString(sum[:]),
	}
	if dry {
		q.planJob(b, spec)
		return
	}
	id, existing, err := q.Cluster.Submit(q.r.Context(), q.caller, b)
	if err != nil {
		q.fail(err)
		return
	}
	code := http.StatusCreated
	if existing {
		code = http.StatusOK
	}
	q.w.Header().Set("Location", "/api/v1/jobs/"+id.String())
	writeJSON(q.w, code, "application/json;charset=utf-8", map[string]string{"id": id.String()})
}

func (q *request) job(a *rm.Application, containers bool) Job {
	spent := q.spent(a, q.now())
	out := Job{
		ID: a.ID.String(), Name: a.Name, User: a.User, Queue: a.Queue, Kind: a.Kind, Priority: a.Priority, State: a.State, FinalStatus: a.Final,
		Diagnostics: q.shown(a, a.Diagnostics), Submitted: int64(a.Submitted), Launched: int64(a.Launched), Finished: int64(a.Finished), Progress: q.Cluster.Progress(a.ID),
		Attempt: len(a.Attempts), Pending: q.Cluster.Waiting(a.ID), LogDir: q.Cluster.LogDir(a), TrackingURL: a.TrackingURL, Used: amountOf(a.Used), Live: a.Live,
		Spent: SpentSeconds{spent.MiB / 1000, spent.VCores / 1000, spent.GPUs / 1000}, Deadline: int64(a.Deadline),
	}
	for _, d := range a.After {
		out.After = append(out.After, job.After{Application: d.Application.String(), State: d.Outcome})
	}
	if len(out.Pending) > 0 {
		out.PendingReason = &out.Pending[0].Reason
	}
	if out.Phase = q.phase(a); out.Phase == "PENDING" && out.PendingReason == nil {
		out.PendingReason = &rm.Reason{Code: rm.ReasonStarting, Text: "what was granted to it is being started"}
	}
	if t := a.Attempt(); a.State == rm.StateRunning && t.HTTP != "" {
		out.Proxy = "/proxy/" + a.ID.String() + "/"
	}
	out.Leaving = q.leaving()[a.ID]
	if !containers {
		return out
	}
	spec, err := job.Parse(a.Document)
	if err == nil {
		out.Members = q.members(a, spec)
		if spec.Kind == rm.KindCommand && spec.Array == nil {
			size := spec.SizeOf(a)
			out.Size = &Size{size.Min, size.Max}
		}
	}
	if err == nil && spec.Kind == rm.KindCommand && q.mayModify(a) { // others do not see arguments
		if out.Command = spec.Argv; spec.Run != "" {
			out.Command = []string{"/bin/sh", "-c", spec.Run}
		}
	}
	show := q.containerOf(a)
	for _, c := range q.view.Containers(a.ID) {
		k := show(c)
		for _, u := range k.GPUUse {
			if u.Unused && c.Live() && len(out.Warnings) < maxWarnings {
				idle := time.Duration(u.Idle) * time.Millisecond
				out.Warnings = append(out.Warnings, fmt.Sprintf("container %s holds GPU %s and has done nothing with it for %v", c.ID, u.UUID, idle.Round(time.Minute)))
			}
		}
		out.Containers = append(out.Containers, k)
	}
	return out
}

// containerOf shows containers of a job, one by one.
func (q *request) containerOf(a *rm.Application) func(*rm.Container) JobContainer {
	uses := map[rm.NodeID]map[rm.ContainerID][]GPUUse{}
	logs := q.Cluster.LogDir(a)
	return func(c *rm.Container) JobContainer {
		if _, ok := uses[c.Node]; !ok && len(c.GPUs) > 0 {
			uses[c.Node] = q.Cluster.Liveness(c.Node).Uses
		}
		k := JobContainer{
			ID: c.ID.String(), Ask: c.Ask, Master: c.Master, Node: string(c.Node), State: c.State, Diagnostics: q.shown(a, c.Diagnostics),
			Resources: amountOf(c.Resource), GPUs: c.GPUs, Granted: int64(c.Granted), Started: int64(c.Started), Finished: int64(c.Finished),
			LogDir: path.Join(logs, c.ID.String()), GPUUse: uses[c.Node][c.ID], Preempted: q.preempted(c),
			Checkpointed: int64(c.Checkpointed), Step: c.Step,
		}
		if c.Instance >= 0 {
			k.Instance = &c.Instance
		}
		if !c.Live() {
			exit := int(c.Exit)
			k.ExitStatus = &exit
		}
		return k
	}
}

// preempted says why a container is to go; nil: it may stay, or has ended.
func (q *request) preempted(c *rm.Container) *Preempted {
	if n := c.Notice; n != nil {
		out := &Preempted{Queue: n.Queue, Reason: n.String(), Since: int64(n.Since), Deadline: int64(n.Deadline)}
		if !n.For.IsZero() {
			out.Job = n.For.String()
		}
		return out
	}
	if n := q.view.Node(c.Node); n != nil && c.Live() && n.Leaves() && n.Wish.Deadline > 0 {
		return &Preempted{Reason: n.Why(), Since: int64(n.Wish.Since), Deadline: int64(n.Wish.Deadline)}
	}
	return nil
}

// leaving counts the containers that have a notice, by application.
func (q *request) leaving() map[rm.ApplicationID]int {
	if q.noticed == nil {
		q.noticed = map[rm.ApplicationID]int{}
		for c := range q.view.Noticed() {
			q.noticed[c.ID.Attempt.Application]++
		}
	}
	return q.noticed
}

// phase says how far a job is, see Job.Phase.
func (q *request) phase(a *rm.Application) string {
	switch {
	case a.State == rm.StateFinished && a.Final == rm.FinalSucceeded:
		return "SUCCEEDED"
	case a.State == rm.StateFinished: // as its master said
		return string(a.Final)
	case a.State.Final():
		return string(a.State)
	case a.Live > 0:
		began, starts := false, false
		for _, c := range q.view.Containers(a.ID) {
			switch {
			case c.Master:
			case c.Live() && c.Started > 0:
				return string(rm.StateRunning)
			case c.Live():
				starts = true
			default:
				began = true
			}
		}
		// Its containers have ended and nothing is to come: the master sums up.
		if began && !starts && a.State == rm.StateRunning && len(q.Cluster.Waiting(a.ID)) == 0 {
			return string(rm.StateRunning)
		}
	}
	return "PENDING"
}

func (q *request) listJobs() {
	p := q.r.URL.Query()
	limit := 1000
	if text := p.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 10_000 {
			q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "limit: %q is not a number between 1 and 10000", text))
			return
		}
		limit = n
	}
	var states []string
	for _, s := range q.list("state") {
		if !slices.Contains(appStates, strings.ToUpper(s)) {
			q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "state: %q is not one of %s", s, strings.Join(appStates, ", ")))
			return
		}
		states = append(states, strings.ToUpper(s))
	}
	stream(q, `{"jobs":[`, `]}`, "", func(yield func(Job) bool) {
		for a := range q.view.Applications() {
			if len(states) > 0 && !slices.Contains(states, string(a.State)) || p.Get("user") != "" && p.Get("user") != a.User ||
				p.Get("queue") != "" && p.Get("queue") != a.Queue {
				continue
			}
			if limit--; !yield(q.job(a, false)) || limit == 0 {
				return
			}
		}
	})
}

// knownJob answers 404 for an unknown job.
func (q *request) knownJob() bool {
	if q.app == nil {
		q.fail(metadata.Errorf(metadata.ErrNotExist, "there is no job %v", q.id))
		return false
	}
	return true
}

func (q *request) showJob() {
	if q.knownJob() {
		q.json(q.job(q.app, true))
	}
}

// stopJob ends a job; one that has ended stays as it is.
func (q *request) stopJob() {
	if !q.knownJob() {
		return
	}
	state, err := q.kill(q.r.URL.Query().Get("reason"))
	if err != nil {
		q.fail(err)
		return
	}
	writeJSON(q.w, http.StatusAccepted, "application/json;charset=utf-8", map[string]string{"id": q.id.String(), "state": string(state)})
}

// jobLogs answers the log files of a job's containers one after the other as text, or with ?list=true their names.
// ?container= and ?file= choose some.
func (q *request) jobLogs() {
	if !q.knownJob() {
		return
	}
	p := q.r.URL.Query()
	if f := p.Get("follow"); f != "" && f != "0" && f != "false" {
		q.fail(metadata.Errorf(metadata.ErrUnsupported, "follow is not supported: ask again"))
		return
	}
	if q.Logs == nil {
		q.fail(metadata.Errorf(metadata.ErrUnsupported, "this resource manager has no file system to read logs from"))
		return
	}
	dir := q.Cluster.LogDir(q.app)
	files, err := q.Logs.List(q.r.Context(), q.app.User, dir)
	if err != nil && !errors.Is(err, metadata.ErrNotExist) {
		q.fail(fmt.Errorf("list %s: %w", dir, err))
		return
	}
	container, name := p.Get("container"), p.Get("file")
	files = slices.DeleteFunc(files, func(f LogFile) bool {
		return container != "" && path.Base(path.Dir(f.Path)) != container || name != "" && path.Base(f.Path) != name && !pieceOf(path.Base(f.Path), name)
	})
	if list := p.Get("list"); list != "" && list != "false" {
		out := []map[string]any{}
		for _, f := range files {
			out = append(out, map[string]any{
				"container": path.Base(path.Dir(f.Path)), "file": path.Base(f.Path), "path": f.Path, "size": f.Size,
				"modified": int64(f.Modified),
			})
		}
		q.json(map[string]any{"logs": out})
		return
	}
	if len(files) == 0 {
		q.fail(metadata.Errorf(metadata.ErrNotExist, "%v has no logs in %s yet", q.id, dir))
		return
	}
	q.w.Header().Set("Content-Type", "text/plain;charset=utf-8")
	for _, f := range files {
		q.writeLog(f)
	}
}

// pieceOf reports whether a name is that of a later piece of a log file that was rolled.
func pieceOf(name, file string) bool {
	of, begin := logpiece.Parse(name)
	return begin > 0 && of == file
}

// writeLog writes a file under YARN's header.
func (q *request) writeLog(f LogFile) {
	id := path.Base(path.Dir(f.Path))
	frame := jersey.Log{Container: id, Aggregation: "AGGREGATED", File: path.Base(f.Path), Modified: f.Modified.Time(), Length: f.Size}
	if k, err := rm.ParseContainerID(id); err == nil {
		if c := q.view.Container(k); c != nil {
			frame.Node = string(c.Node)
		}
	}
	_ = frame.Begin(q.w) // a caller that is gone asks again
	r, err := q.Logs.Open(q.r.Context(), q.app.User, f.Path)
	if err != nil {
		fmt.Fprintf(q.w, "(cannot be read: %v)\n", err)
	} else {
		if _, err := io.Copy(q.w, r); err != nil {
			fmt.Fprintf(q.w, "\n(reading broke off: %v)", err)
		}
		r.Close()
	}
	_ = frame.End(q.w, false)
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
