package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
)

// newApplication hands out an id.
func (q *request) newApplication() {
	id, err := q.Cluster.NewApplication(q.r.Context())
	if err != nil {
		q.fail(err)
		return
	}
	largest, _ := q.most()
	q.json(struct {
		ID      string       `json:"application-id"`
		Maximum resourceInfo `json:"maximum-resource-capability"`
	}{id.String(), resource(largest)})
}

// yarnSubmission is the body of POST /apps. Unknown members are ignored, as YARN does.
type yarnSubmission struct {
	ID       string         `json:"application-id"`
	Name     string         `json:"application-name"`
	Queue    string         `json:"queue"`
	Priority *int           `json:"priority"`
	Master   *containerSpec `json:"am-container-spec"`
	Attempts int            `json:"max-app-attempts"`
	Resource yarnResource   `json:"resource"`
	Type     string         `json:"application-type"`
	Keep     bool           `json:"keep-containers-across-application-attempts"`
	Tags     struct {
		Tag stringList `json:"tag"`
	} `json:"application-tags"`
	Unmanaged bool `json:"unmanaged-AM"`
	Timeouts  struct {
		Timeout []struct {
			Type string `json:"type"`
			// Seconds is our addition: the life of the application.
			Seconds int64 `json:"seconds"`
		} `json:"timeout"`
	} `json:"timeouts"`
}

type yarnResource struct {
	Memory       int64 `json:"memory"` // MiB
	VCores       int   `json:"vCores"`
	Informations struct {
		List []struct {
			Name  string `json:"name"`
			Value int64  `json:"value"`
		} `json:"resourceInformation"`
	} `json:"resourceInformations"`
}

type containerSpec struct {
	Commands struct {
		Command stringList `json:"command"`
	} `json:"commands"`
	Environment entryList[string]       `json:"environment"`
	Local       entryList[yarnArtifact] `json:"local-resources"`
}

type yarnArtifact struct {
	Resource   string `json:"resource"`
	Type       string `json:"type"`
	Visibility string `json:"visibility"`
	Size       int64  `json:"size"`
	Timestamp  int64  `json:"timestamp"`
}

// stringList reads a string or an array of strings.
type stringList []string

// UnmarshalJSON implements json.Unmarshaler.
func (l *stringList) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*l = []string{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(l))
}

// entryList reads a map as YARN's dialects write it, {"entry":[{"key","value"}]} with an array or a single object, or as
// a plain object.
type entryList[T any] map[string]T

// UnmarshalJSON implements json.Unmarshaler.
func (m *entryList[T]) UnmarshalJSON(b []byte) error {
	type pair struct {
		Key   string `json:"key"`
		Value T      `json:"value"`
	}
	var wrapped struct {
		Entry json.RawMessage `json:"entry"`
	}
	out := entryList[T]{}
	if err := json.Unmarshal(b, &wrapped); err != nil {
		return err
	}
	if wrapped.Entry == nil {
		plain := map[string]T{}
		if err := json.Unmarshal(b, &plain); err != nil {
			return err
		}
		*m = plain
		return nil
	}
	var many []pair
	if err := json.Unmarshal(wrapped.Entry, &many); err != nil {
		var one pair
		if err := json.Unmarshal(wrapped.Entry, &one); err != nil {
			return err
		}
		many = []pair{one}
	}
	for _, p := range many {
		out[p.Key] = p.Value
	}
	*m = out
	return nil
}

// readJSON reads a body of JSON; bad ones are answered as YARN does.
func (q *request) readJSON(v any) bool {
	if kind, _, _ := mime.ParseMediaType(q.r.Header.Get("Content-Type")); kind != "application/json" {
		remoteException(q.w, http.StatusServiceUnavailable, "WebApplicationException", "", "javax.ws.rs.WebApplicationException")
		return false
	}
	body, err := io.ReadAll(q.r.Body)
	if err == nil {
		err = job.Plain(body, "environment", "local-resources")
	}
	if err == nil {
		err = json.Unmarshal(body, v)
	}
	if err != nil {
		remoteException(q.w, http.StatusBadRequest, "WebApplicationException", "javax.xml.bind.UnmarshalException: "+err.Error(), "javax.ws.rs.WebApplicationException")
		return false
	}
	return true
}

// submitYARN takes an application whose master's command is a shell command: it runs as a job of kind command.
func (q *request) submitYARN() {
	var s yarnSubmission
	if !q.readJSON(&s) {
		return
	}
	id, err := rm.ParseApplicationID(s.ID)
	if err != nil {
		badRequest(q.w, "java.lang.Exception: Could not parse application id "+s.ID)
		return
	}
	submission, err := s.job(id)
	if err != nil {
		badRequest(q.w, "java.lang.Exception: "+err.Error())
		return
	}
	if spec, err := job.Parse(submission.Document); err == nil && submission.Failure == "" {
		if why := q.tooLargeYARN(spec.Resources.Amount()); why != "" {
			badRequest(q.w, "java.lang.Exception: org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException: "+why)
			return
		}
	}
	submission.Foreign = !q.Door.Own(q.r)
	if _, _, err := q.Cluster.Submit(q.r.Context(), q.caller, submission); err != nil {
		if errors.Is(err, metadata.ErrPermission) {
			badRequest(q.w, "java.lang.Exception: org.apache.hadoop.security.AccessControlException: "+err.Error())
			return
		}
		q.fail(err)
		return
	}
	q.w.Header().Set("Location", ownScheme(q.r)+q.r.Host+"/ws/v1/cluster/apps/"+id.String())
	q.w.Header().Set("Content-Type", "application/json;charset=utf-8")
	q.w.WriteHeader(http.StatusAccepted)
}

// yarnKinds translates types of local resources.
var yarnKinds = map[string]string{"": "file", "FILE": "file", "ARCHIVE": "archive"}

func (s *yarnSubmission) job(id rm.ApplicationID) (Submission, error) {
	out := Submission{
		ID: id, Name: s.Name, Queue: s.Queue, Type: s.Type, Kind: rm.KindCommand, Priority: -1, MaxAttempts: s.Attempts,
		KeepContainers: s.Keep, AcceptAnyQueue: true,
	}
	if out.Name == "" {
		out.Name = "N/A"
	}
	if out.Queue == "" {
		out.Queue = "default"
	}
	if len(out.Type) > 20 {
		out.Type = out.Type[:20]
	}
	if s.Priority != nil {
		out.Priority = *s.Priority
	}
	if len(s.Tags.Tag) > 10 {
		return out, fmt.Errorf("Too many applicationTags, a maximum of only 10 are allowed!")
	}
	for _, t := range s.Tags.Tag {
		if len(t) > 100 || strings.ContainsFunc(t, func(r rune) bool { return r < ' ' || r > '~' }) {
			return out, fmt.Errorf("Tag %.100q is longer than 100 characters or not printable ASCII", t)
		}
		out.Tags = append(out.Tags, strings.ToLower(t))
	}
	for _, t := range s.Timeouts.Timeout {
		if strings.EqualFold(t.Type, "LIFETIME") && t.Seconds > 0 {
			out.Timeout = time.Duration(min(t.Seconds, 1<<31)) * time.Second
		}
	}
	if s.Unmanaged {
		return out, fmt.Errorf("an unmanaged application master is not supported")
	}
	spec := job.Spec{
		Name: out.Name, Kind: rm.KindCommand, Queue: out.Queue, Env: map[string]string{},
		Resources: job.Resources{Memory: mebibytes(s.Resource.Memory), VCores: s.Resource.VCores},
	}
	for _, r := range s.Resource.Informations.List {
		switch r.Name {
		case rm.GPUName:
			spec.Resources.GPUs = int(r.Value)
		case rm.MemoryName:
			spec.Resources.Memory = mebibytes(r.Value)
		case rm.VCoresName:
			spec.Resources.VCores = int(r.Value)
		default:
			if spec.Resources.Other == nil {
				spec.Resources.Other = map[string]int64{}
			}
			spec.Resources.Other[r.Name] = r.Value
		}
	}
	if s.Master == nil || len(s.Master.Commands.Command) == 0 {
		out.Failure = "the submission has no command to run: am-container-spec.commands is missing"
		spec.Run = "false"
	} else {
		spec.Run = strings.Join(s.Master.Commands.Command, " ")
		spec.Env = s.Master.Environment
		for _, name := range sortedKeys(s.Master.Local) {
			f := s.Master.Local[name]
			kind, ok := yarnKinds[f.Type]
			if !ok {
				return out, fmt.Errorf("local resource %s: type %s is not supported", name, f.Type)
			}
			spec.Artifacts = append(spec.Artifacts, rm.Artifact{
				Name: name, URI: f.Resource, Kind: kind, Size: f.Size, Timestamp: f.Timestamp,
				Visibility: strings.ToLower(f.Visibility),
			})
		}
	}
	document, err := json.Marshal(spec)
	if err != nil {
		return out, err
	}
	if _, err := job.Parse(document); err != nil {
		return out, err
	}
	out.Document = document
	return out, nil
}

// mebibytes is an amount in bytes. What would overflow into another amount becomes one that is out of range.
func mebibytes(n int64) job.Memory {
	if n < 0 || n > math.MaxInt64/rm.MiB {
		return math.MaxInt64 / 2
	}
	return job.Memory(n * rm.MiB)
}

// setAppState kills.
func (q *request) setAppState() {
	if !q.known() {
		return
	}
	var body struct {
		State       string `json:"state"`
		Diagnostics string `json:"diagnostics"`
	}
	if !q.readJSON(&body) {
		return
	}
	if body.State != "KILLED" {
		badRequest(q.w, "java.lang.Exception: Only 'KILLED' is allowed as a target state.")
		return
	}
	if q.app.State.Final() {
		q.json(map[string]string{"state": string(yarnState(q.app))})
		return
	}
	state, err := q.kill(body.Diagnostics)
	if err != nil {
		q.fail(err)
		return
	}
	q.w.Header().Set("Location", ownScheme(q.r)+q.r.Host+q.r.URL.Path)
	writeJSON(q.w, http.StatusAccepted, "application/json;charset=utf-8", map[string]string{"state": string(state)})
}

// containerSignals are YARN's SignalContainerCommand.
var containerSignals = map[string]syscall.Signal{
	"OUTPUT_THREAD_DUMP": syscall.SIGQUIT, "GRACEFUL_SHUTDOWN": syscall.SIGTERM, "FORCEFUL_SHUTDOWN": syscall.SIGKILL,
}

// signalContainer sends a signal to the command of a container. In YARN anybody may: it acts as the resource manager then.
func (q *request) signalContainer() {
	command := q.r.PathValue("command")
	signal, ok := containerSignals[strings.ToUpper(command)]
	if !ok {
		q.text(http.StatusBadRequest, fmt.Sprintf("Invalid command: %s, valid commands are: [OUTPUT_THREAD_DUMP, GRACEFUL_SHUTDOWN, FORCEFUL_SHUTDOWN]", strings.ToUpper(command)))
		return
	}
	c := q.view.Container(q.containerID)
	if c == nil || !c.Live() || q.app == nil {
		q.w.Header().Set("Content-Type", "application/json;charset=utf-8")
		q.w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(q.w, "Trying to signal an absent container %v", q.containerID)
		return
	}
	if err := q.Cluster.Signal(q.containerID, signal); err != nil {
		q.fail(err)
		return
	}
	q.w.Header().Set("Content-Type", "application/json;charset=utf-8")
	q.w.WriteHeader(http.StatusOK)
}

// kill ends the application of the path, naming who did it.
func (q *request) kill(why string) (rm.State, error) {
	text := fmt.Sprintf("killed by user %s from %s", q.caller.User, q.caller.Host)
	if why != "" {
		if len(why) > 1000 {
			why = why[:1000]
		}
		text += ": " + strings.ToValidUTF8(why, "?")
	}
	return q.Cluster.Kill(q.r.Context(), q.id, text)
}

// isJSON reports whether a body begins like an object.
func isJSON(b []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) }
