package rest

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/internal/token"
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
	q.answer("new-application", jersey.Bare, struct {
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
		Tag []string `json:"tag"`
	} `json:"application-tags"`
	Unmanaged bool `json:"unmanaged-AM"`
	// Label is what nodes must carry on which its containers run; MasterLabel the same for the master alone.
	Label       string `json:"app-node-label-expression"`
	MasterLabel string `json:"am-container-node-label-expression"`
	Timeouts    struct {
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
		Command []string `json:"command"`
	} `json:"commands"`
	Environment map[string]string       `json:"environment"`
	Local       map[string]yarnArtifact `json:"local-resources"`
	// Credentials are tokens, each as Hadoop has them in text, and secrets in base64, by their names in the file of credentials.
	Credentials struct {
		Tokens  map[string]string `json:"tokens"`
		Secrets map[string]string `json:"secrets"`
	} `json:"credentials"`
	ServiceData map[string]string `json:"service-data"`
}

// credentials are those of a submission as a file of Hadoop's (HDTS); empty: it has none.
func (s *containerSpec) credentials() ([]byte, error) {
	var f token.File
	for _, name := range sortedKeys(s.Credentials.Tokens) {
		t, err := token.ParseText(s.Credentials.Tokens[name])
		if err != nil {
			return nil, fmt.Errorf("credentials: token %.100s: %w", name, err)
		}
		f.Tokens = append(f.Tokens, token.Entry{Alias: name, Token: t})
	}
	for _, name := range sortedKeys(s.Credentials.Secrets) {
		text := strings.NewReplacer("+", "-", "/", "_", "\r", "", "\n", "").Replace(s.Credentials.Secrets[name]) // Hadoop's decoder takes both alphabets
		secret, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
		if err != nil {
			return nil, fmt.Errorf("credentials: secret %.100s is not base64", name)
		}
		f.Secrets = append(f.Secrets, token.Secret{Alias: name, Secret: secret})
	}
	if len(f.Tokens)+len(f.Secrets) == 0 {
		return nil, nil
	}
	return f.Encode(), nil
}

type yarnArtifact struct {
	Resource   string `json:"resource"`
	Type       string `json:"type"`
	Visibility string `json:"visibility"`
	Size       int64  `json:"size"`
	Timestamp  int64  `json:"timestamp"`
}

// read reads a body of JSON or XML into an object of YARN's; bad ones are answered as YARN does. plain are the members whose keys are the
// caller's own.
func (q *request) read(root string, d jersey.Dialect, into any, plain ...string) bool {
	kind, _, _ := mime.ParseMediaType(q.r.Header.Get("Content-Type"))
	isXML := kind == "application/xml" || kind == "text/xml"
	if kind != "application/json" && !isXML {
		jersey.Unservable(q.w, q.r)
		return false
	}
	body, err := io.ReadAll(q.r.Body)
	if err == nil && !isXML {
		err = job.Plain(body, plain...)
	}
	if err == nil {
		err = jersey.Read(body, isXML, root, d, into)
	}
	if err != nil {
		q.remoteException(http.StatusBadRequest, "WebApplicationException", "javax.xml.bind.UnmarshalException\n - with linked exception:\n["+err.Error()+"]", "javax.ws.rs.WebApplicationException")
		return false
	}
	return true
}

// submitYARN takes an application: see SubmissionContext.
func (q *request) submitYARN() {
	var s yarnSubmission
	if !q.read("application-submission-context", jersey.Bare, &s, "environment", "local-resources", "tokens", "secrets", "service-data") {
		return
	}
	id, err := rm.ParseApplicationID(s.ID)
	if err != nil {
		q.badRequest("java.lang.Exception: Could not parse application id " + s.ID)
		return
	}
	for _, label := range []string{s.Label, s.MasterLabel} {
		if !q.knownLabel(label) {
			q.badRequest("java.lang.Exception: Invalid label resource request, cluster do not contain , label= " + label) // sic
			return
		}
	}
	context, err := s.context(id)
	var submission Submission
	if err == nil {
		submission, err = context.Submission()
	}
	if err != nil {
		q.badRequest("java.lang.Exception: " + err.Error())
		return
	}
	if submission.Failure == "" {
		if why := TooLargeYARN(q.Cluster, q.view, context.Resource); why != "" {
			q.badRequest("java.lang.Exception: org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException: " + why)
			return
		}
	}
	submission.Foreign = !q.Door.Own(q.r)
	if _, _, err := q.Cluster.Submit(q.r.Context(), q.caller, submission); err != nil {
		if errors.Is(err, metadata.ErrPermission) {
			q.badRequest("java.lang.Exception: org.apache.hadoop.security.AccessControlException: " + err.Error())
			return
		}
		q.fail(err)
		return
	}
	q.w.Header().Set("Location", ownScheme(q.r)+q.r.Host+"/ws/v1/cluster/apps/"+id.String())
	jersey.Text(q.w, q.r, http.StatusAccepted, "")
}

// yarnKinds translates types of local resources.
var yarnKinds = map[string]string{"": "file", "FILE": "file", "ARCHIVE": "archive"}

// context is what is submitted, without what no wire has.
func (s *yarnSubmission) context(id rm.ApplicationID) (SubmissionContext, error) {
	out := SubmissionContext{
		ID: id, Name: s.Name, Queue: s.Queue, Type: s.Type, Priority: s.Priority, MaxAttempts: s.Attempts, Keep: s.Keep, Tags: s.Tags.Tag,
		Label: s.MasterLabel, Resource: rm.Resource{Memory: mebibytes(s.Resource.Memory), VCores: s.Resource.VCores},
	}
	switch {
	case s.Unmanaged:
		return out, fmt.Errorf("an unmanaged application master is not supported")
	case s.Label != "":
		return out, fmt.Errorf("a label for all containers of an application is not supported: name the master's as am-container-node-label-expression, and the others' in each request")
	}
	for _, t := range s.Timeouts.Timeout {
		if strings.EqualFold(t.Type, "LIFETIME") && t.Seconds > 0 {
			out.Lifetime = time.Duration(min(t.Seconds, 1<<31)) * time.Second
		}
	}
	other := map[string]int64{}
	for _, r := range s.Resource.Informations.List {
		switch r.Name {
		case rm.GPUName:
			out.Resource.GPUs = int(r.Value)
		case rm.MemoryName:
			out.Resource.Memory = mebibytes(r.Value)
		case rm.VCoresName:
			out.Resource.VCores = int(r.Value)
		default:
			other[r.Name] = r.Value
		}
	}
	var err error
	if out.Resource.Other, err = rm.NewAmounts(other); err != nil || s.Master == nil {
		return out, err
	}
	for _, name := range sortedKeys(s.Master.ServiceData) {
		return out, fmt.Errorf("The auxService:%.200s does not exist", name)
	}
	if out.Tokens, err = s.Master.credentials(); err != nil {
		return out, err
	}
	out.Commands, out.Env = s.Master.Commands.Command, s.Master.Environment
	for _, name := range sortedKeys(s.Master.Local) {
		f := s.Master.Local[name]
		kind, ok := yarnKinds[f.Type]
		if !ok {
			return out, fmt.Errorf("local resource %s: type %s is not supported", name, f.Type)
		}
		out.Local = append(out.Local, rm.Artifact{Name: name, URI: f.Resource, Kind: kind, Size: f.Size, Timestamp: f.Timestamp, Visibility: strings.ToLower(f.Visibility)})
	}
	return out, nil
}

// mebibytes is an amount in bytes. What would overflow into another amount becomes one that is out of range.
func mebibytes(n int64) int64 {
	if n < 0 || n > math.MaxInt64/rm.MiB {
		return math.MaxInt64 / 2
	}
	return n * rm.MiB
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
		jersey.Text(q.w, q.r, http.StatusBadRequest, fmt.Sprintf("Invalid command: %s, valid commands are: [OUTPUT_THREAD_DUMP, GRACEFUL_SHUTDOWN, FORCEFUL_SHUTDOWN]", strings.ToUpper(command)))
		return
	}
	c := q.view.Container(q.containerID)
	if c == nil || !c.Live() || q.app == nil {
		jersey.Text(q.w, q.r, http.StatusInternalServerError, fmt.Sprintf("Trying to signal an absent container %v", q.containerID))
		return
	}
	if err := q.Cluster.Signal(q.containerID, signal); err != nil {
		q.fail(err)
		return
	}
	jersey.Text(q.w, q.r, http.StatusOK, "")
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
