package rest

import (
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
)

// masterRoutes are for applications' masters: everything that a program needs to be one, with HTTP and JSON alone.
var masterRoutes = []Route{
	{Method: "PUT", Path: attemptPath + "/registration", Right: security.Owner, handle: (*request).registerMaster},
	{Method: "POST", Path: attemptPath + "/requests", Right: security.Owner, handle: (*request).requestContainers},
	{Method: "GET", Path: attemptPath + "/asks", Right: security.Owner, handle: (*request).listAsks},
	{Method: "PATCH", Path: attemptPath + "/asks/{ask}", Right: security.Owner, handle: (*request).resizeAsk},
	{Method: "GET", Path: attemptPath + "/containers", Right: security.Owner, handle: (*request).masterContainers},
	{Method: "PATCH", Path: attemptPath + "/containers/{container}", Right: security.Owner, handle: (*request).resizeContainer},
	{Method: "POST", Path: attemptPath + "/containers/{container}" + checkpointed, Right: security.Owner, handle: (*request).containerCheckpointed},
	{Method: "POST", Path: attemptPath + "/launches", Right: security.Owner, handle: (*request).launchContainers},
	{Method: "GET", Path: attemptPath + "/events", Right: security.Owner, handle: (*request).masterEvents},
	{Method: "PUT", Path: attemptPath + "/result", Right: security.Owner, handle: (*request).finishMaster},
}

// checkpointed ends the path by which a container's own program, too, may speak.
const checkpointed = "/checkpointed"

const attemptPath = "/api/v1/applications/{app}/attempts/{attempt}"

// attemptOf reads an attempt as it stands in a path.
func attemptOf(application, number string) (rm.AttemptID, error) {
	app, err := rm.ParseApplicationID(application)
	if err != nil {
		return rm.AttemptID{}, err
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > 1<<30 {
		return rm.AttemptID{}, metadata.Errorf(metadata.ErrInvalidArgument, "attempt %.40q is not a number from 1", number)
	}
	return rm.AttemptID{Application: app, Number: n}, nil
}

func (q *request) attemptOf() (rm.AttemptID, error) {
	return attemptOf(q.r.PathValue("app"), q.r.PathValue("attempt"))
}

// isMaster reports whether a container is that of the master whose attempt the path names.
func (q *request) isMaster(container string) bool {
	if q.r.PathValue("attempt") == "" || container == "" {
		return false
	}
	id, err := q.attemptOf()
	return err == nil && q.masterOf(id) == container
}

// masterOf is the container of an attempt's master; empty: there is none.
func (a *API) masterOf(id rm.AttemptID) string {
	app := a.Cluster.View().Application(id.Application)
	if app == nil || id.Number > len(app.Attempts) || app.Attempts[id.Number-1].Container.IsZero() {
		return ""
	}
	return app.Attempts[id.Number-1].Container.String()
}

// MasterToken reports whether a request for an attempt shows the token of its master's container. A token that is not known here is one of
// its user, or the leader's to know.
func (a *API) MasterToken(r *http.Request, token string) bool {
	rest, ok := strings.CutPrefix(r.URL.Path, "/api/v1/applications/")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) < 4 || parts[1] != "attempts" {
		return false
	}
	id, err := attemptOf(parts[0], parts[2])
	if err != nil {
		return false
	}
	_, ok = a.masterUser(id, token)
	if !ok && len(parts) == 6 && parts[3] == "containers" && "/"+parts[5] == checkpointed {
		_, ok = a.userOf(parts[4], token)
	}
	return ok || !a.Cluster.Leading() // who asks is sent to the leader
}

// masterUser is the user of an attempt whose master's container has a token, while it runs.
func (a *API) masterUser(id rm.AttemptID, token string) (user string, ok bool) {
	return a.userOf(a.masterOf(id), token)
}

// itself is the container whose checkpoint the path tells of; empty: it is another route.
func (q *request) itself() string {
	if q.r.Method == http.MethodPost && strings.HasSuffix(q.r.URL.Path, checkpointed) {
		return q.r.PathValue("container")
	}
	return ""
}

// userOf is the user of a container that has a token, while it runs.
func (a *API) userOf(container, token string) (user string, ok bool) {
	c, runs := a.Cluster.ContainerOf(container)
	if container == "" || !runs || subtle.ConstantTimeCompare([]byte(token), []byte(c.Token)) != 1 {
		return "", false
	}
	return c.User, true
}

// masterCaller is the user of the attempt that the path names, if the request shows the token of its container; ok is false when it does not.
// The door has made sure that nobody could read it.
func (q *request) masterCaller() (caller metadata.Caller, ok bool, err error) {
	scheme, token, _ := strings.Cut(q.r.Header.Get("Authorization"), " ")
	id, err := q.attemptOf()
	if err != nil || !strings.EqualFold(scheme, "Bearer") {
		return caller, false, nil
	}
	user, ok := q.masterUser(id, strings.TrimSpace(token))
	if !ok {
		user, ok = q.userOf(q.itself(), strings.TrimSpace(token))
	}
	if !ok {
		return caller, false, nil
	}
	caller, err = q.Door.AuthenticatedRequest(q.r, user, "")
	caller.Superuser = false
	q.master = err == nil
	return caller, true, err
}

// attemptKnown answers 404 for an attempt that is not there, and 403 for who is neither its master nor its user.
func (q *request) attemptKnown() bool {
	id, err := q.attemptOf()
	switch {
	case err != nil:
		q.fail(err)
	case q.app == nil || id.Number > len(q.app.Attempts):
		q.fail(metadata.Errorf(metadata.ErrNotExist, "there is no attempt %d of %v", id.Number, q.id))
	case !q.master && q.caller.User != q.app.User && !q.caller.Superuser:
		q.forbidden(fmt.Sprintf("only its master and user %s speak for %v", q.app.User, q.id))
	default:
		q.speaks = id
		return true
	}
	return false
}

// body reads a JSON object into v, strictly.
func (q *request) body(v any, names ...string) bool {
	if kind, _, _ := mime.ParseMediaType(q.r.Header.Get("Content-Type")); kind != "application/json" {
		problem(q.w, http.StatusUnsupportedMediaType, "unsupported-media-type", "the body is a JSON object: send it with Content-Type: application/json")
		return false
	}
	b, err := io.ReadAll(q.r.Body)
	if err != nil {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "the body cannot be read: %v", err))
		return false
	}
	if !isJSON(b) {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "the body is not a JSON object"))
		return false
	}
	if err := job.Plain(b, append(names, "env", "other")...); err != nil {
		q.fail(err)
		return false
	}
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "the body cannot be read: %s", strings.TrimPrefix(err.Error(), "json: ")))
		return false
	}
	return true
}

func (q *request) registerMaster() {
	var b Registration
	if !q.attemptKnown() || !q.body(&b) {
		return
	}
	pin, err := hex.DecodeString(b.Certificate)
	if err != nil {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "http_certificate: %.80q is not the SHA-256 of a certificate, in hexadecimal", b.Certificate))
		return
	}
	r, err := q.Masters.RegisterMaster(q.r.Context(), q.speaks, rm.Registration{HTTP: b.HTTP, Certificate: pin, TrackingURL: b.TrackingURL})
	if err != nil {
		q.fail(err)
		return
	}
	out := Registered{Maximum: amountOf(r.Maximum), Queue: r.Queue, SilenceMs: r.Silence.Milliseconds(), Containers: []MasterContainer{}}
	for i := range r.Containers {
		out.Containers = append(out.Containers, q.masterContainerOf(&r.Containers[i]))
	}
	q.json(out)
}

// requestContainers is what a master wants; an empty one is a sign of life.
func (q *request) requestContainers() {
	var b MasterRequest
	if !q.attemptKnown() || !q.body(&b) {
		return
	}
	r := rm.Request{Cancel: b.Cancel, Acknowledged: b.Acknowledged, Progress: -1}
	if b.Progress != nil {
		if r.Progress = *b.Progress; r.Progress < 0 || r.Progress > 1 {
			q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "progress: %v is not between 0 and 1", r.Progress))
			return
		}
	}
	if key := q.r.Header.Get("Idempotency-Key"); key != "" {
		n, err := strconv.ParseUint(key, 10, 63)
		if err != nil || n == 0 {
			q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "Idempotency-Key: %.40q is not a number above 0, larger with each request of the attempt", key))
			return
		}
		r.Sequence = n
	}
	if len(b.Asks) > maxAsksAtOnce || len(b.Release) > maxAsksAtOnce || len(b.Cancel) > maxAsksAtOnce {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "at most %d asks, cancel and release each in one request", maxAsksAtOnce))
		return
	}
	for _, a := range b.Asks {
		w, err := a.wanted()
		if err == nil {
			if why := q.tooLarge(w.Resource); why != "" {
				err = metadata.Errorf(metadata.ErrInvalidArgument, "ask %.100q: %s", w.ID, why)
			}
		}
		if err != nil {
			q.fail(err)
			return
		}
		r.Asks = append(r.Asks, w)
	}
	for _, text := range b.Release {
		id, err := rm.ParseContainerID(text)
		if err != nil {
			q.fail(err)
			return
		}
		r.Release = append(r.Release, id)
	}
	if err := q.Masters.Allocate(q.r.Context(), q.speaks, r); err != nil {
		q.fail(err)
		return
	}
	q.json(struct{}{})
}

// maxAsksAtOnce bounds the asks of one request.
const maxAsksAtOnce = 1_000

func (q *request) listAsks() {
	if !q.attemptKnown() {
		return
	}
	reasons := map[string]rm.Reason{}
	for _, w := range q.Cluster.Waiting(q.id) {
		reasons[w.Ask] = w.Reason
	}
	out := Asks{Asks: []AskState{}}
	for _, a := range q.view.Asks(q.id) {
		s := AskState{ID: a.ID, Count: a.Count, Priority: a.Priority, Resources: amountOf(a.Resource), Held: a.Held}
		if r, ok := reasons[a.ID]; ok {
			s.Pending = &r
		}
		out.Asks = append(out.Asks, s)
	}
	q.json(out)
}

// resizeAsk changes how many containers an ask still wants.
func (q *request) resizeAsk() {
	var b AskSize
	if !q.attemptKnown() || !q.body(&b) {
		return
	}
	name := q.r.PathValue("ask")
	for _, a := range q.view.Asks(q.id) {
		if a.ID != name {
			continue
		}
		w := rm.WantedAsk{Ask: a}
		if w.Count = b.Count; len(a.Instances) > 0 {
			q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "ask %.100q numbers its containers: send all of it anew", name))
			return
		}
		if !a.Held {
			if w.Run = q.view.Launch(q.id, a.Launch); w.Run != nil && len(w.Run.Tokens) > 0 {
				q.fail(metadata.Errorf(metadata.ErrUnsupported, "ask %.100q brings tokens: resizing it is not supported", name))
				return
			}
		}
		if err := q.Masters.Allocate(q.r.Context(), q.speaks, rm.Request{Asks: []rm.WantedAsk{w}, Progress: -1}); err != nil {
			q.fail(err)
			return
		}
		q.json(struct{}{})
		return
	}
	q.fail(metadata.Errorf(metadata.ErrNotExist, "%v has no ask %.100q that waits", q.id, name))
}

func (q *request) resizeContainer() {
	if q.attemptKnown() {
		q.fail(metadata.Errorf(metadata.ErrUnsupported, "resizing a container is not supported: ask for another one and release this one"))
	}
}

// containerCheckpointed says that a container has saved its work: by its master, its user, or its own program.
func (q *request) containerCheckpointed() {
	var b Saved
	if !q.attemptKnown() || !q.body(&b) {
		return
	}
	id, err := rm.ParseContainerID(q.r.PathValue("container"))
	if err == nil {
		err = q.Masters.Checkpointed(q.r.Context(), q.speaks, []rm.ContainerID{id}, b.Step)
	}
	if err != nil {
		q.fail(err)
		return
	}
	q.json(struct{}{})
}

// containersPerPage bounds an answer of masterContainers.
const containersPerPage = 1_000

// masterContainers lists the application's containers in the order of their grants, without the masters', a page at a time.
func (q *request) masterContainers() {
	if !q.attemptKnown() {
		return
	}
	var after rm.ContainerID
	if text := q.r.URL.Query().Get("after"); text != "" {
		var err error
		if after, err = rm.ParseContainerID(text); err != nil {
			q.fail(err)
			return
		}
	}
	out := MasterContainers{Containers: []MasterContainer{}}
	for _, c := range q.view.Containers(q.id) {
		if c.Master || !after.IsZero() && c.ID.Compare(after) <= 0 {
			continue
		}
		if len(out.Containers) == containersPerPage {
			out.More = true
			break
		}
		told := rm.MasterContainer{Container: c}
		if n := q.view.Node(c.Node); n != nil {
			told.Host, told.NodeHTTP = n.Host, n.HTTP
		}
		out.Containers = append(out.Containers, q.masterContainerOf(&told))
	}
	q.json(out)
}

func (q *request) launchContainers() {
	var b Launches
	if !q.attemptKnown() || !q.body(&b) {
		return
	}
	var launches []rm.ContainerLaunch
	for i, l := range b.Launches {
		launch, err := l.Launch.launch()
		if err != nil {
			q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "launches[%d]: %v", i, err))
			return
		}
		for _, text := range l.Containers {
			id, err := rm.ParseContainerID(text)
			if err != nil {
				q.fail(err)
				return
			}
			launches = append(launches, rm.ContainerLaunch{Container: id, Launch: launch})
		}
	}
	errs, err := q.Masters.LaunchContainers(q.r.Context(), q.speaks, launches)
	if err != nil {
		q.fail(err)
		return
	}
	out := Launched{Launches: []LaunchOutcome{}}
	for i, l := range launches {
		o := LaunchOutcome{Container: l.Container.String()}
		if errs[i] != nil {
			p := problemOf(errs[i])
			o.Problem = &p
		}
		out.Launches = append(out.Launches, o)
	}
	q.json(out)
}

func (q *request) finishMaster() {
	var b Result
	if !q.attemptKnown() || !q.body(&b) {
		return
	}
	err := q.Masters.FinishMaster(q.r.Context(), q.speaks, rm.Finish{Final: b.FinalStatus, Diagnostics: b.Diagnostics, TrackingURL: b.TrackingURL})
	if err != nil {
		q.fail(err)
		return
	}
	q.json(struct{}{})
}

// The times of streams of events.
const (
	// longestPoll bounds the wait of one request, defaultPoll is it where none is said.
	longestPoll, defaultPoll = time.Minute, 30 * time.Second
	// heartbeatEvery is after how long a stream without news says that it is there, streamLife after how long it ends, so that nobody keeps
	// one for ever, and writePatience how long its reader may take.
	heartbeatEvery, streamLife, writePatience = 15 * time.Second, time.Hour, 10 * time.Second
)

// masterEvents answers what happens to the application, as one answer when there is something, or as a stream of server-sent events.
func (q *request) masterEvents() {
	if !q.attemptKnown() {
		return
	}
	number := func(what, text string) (n uint64, ok bool) {
		if text == "" {
			return 0, true
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "%s: %.40q is not the number of an event", what, text))
		}
		return n, err == nil
	}
	after, ok := number("after", q.r.URL.Query().Get("after"))
	if !ok {
		return
	}
	last, ok := number("Last-Event-ID", q.r.Header.Get("Last-Event-ID"))
	if !ok {
		return
	}
	wait := defaultPoll
	if text := q.r.URL.Query().Get("wait"); text != "" {
		var err error
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 || wait > longestPoll {
			q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "wait: %.40q is not a duration up to %v (example: 30s)", text, longestPoll))
			return
		}
	}
	events, err := q.Masters.MasterEvents(q.r.Context(), q.speaks, max(after, last))
	if err != nil {
		q.fail(err)
		return
	}
	defer events.Close()
	if strings.Contains(q.r.Header.Get("Accept"), "text/event-stream") {
		q.streamEvents(events)
		return
	}
	news, err := events.Next(q.r.Context(), 0)
	if err == nil && onlyHints(news) { // which a new stream always begins with: they are no reason to answer at once
		var more []rm.MasterEvent
		more, err = events.Next(q.r.Context(), wait)
		news = append(news, more...)
	}
	if err != nil {
		q.fail(err)
		return
	}
	out := Events{Events: []Event{}, Last: max(after, last)}
	for _, e := range news {
		out.Events = append(out.Events, q.event(e))
		out.Last = max(out.Last, e.Sequence)
	}
	q.json(out)
}

func onlyHints(events []rm.MasterEvent) bool {
	for _, e := range events {
		if e.Sequence > 0 {
			return false
		}
	}
	return true
}

// streamEvents writes server-sent events (HTML, 9.2) until the reader is gone, or does not read, or has had its time.
func (q *request) streamEvents(events rm.MasterStream) {
	control := http.NewResponseController(q.w)
	q.w.Header().Set("Content-Type", "text/event-stream")
	end := time.Now().Add(streamLife)
	write := func(text string) bool {
		_ = control.SetWriteDeadline(time.Now().Add(writePatience)) // recorders in tests have none
		_, err := io.WriteString(q.w, text)
		return err == nil && control.Flush() == nil
	}
	if !write("retry: 1000\n\n") {
		return
	}
	for q.r.Context().Err() == nil && time.Now().Before(end) {
		news, err := events.Next(q.r.Context(), heartbeatEvery)
		var b strings.Builder
		for _, e := range news {
			event := q.event(e)
			if e.Sequence > 0 {
				fmt.Fprintf(&b, "id: %d\n", e.Sequence)
			}
			data, _ := json.Marshal(event) // of plain values
			fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", event.Type, data)
		}
		if err != nil {
			data, _ := json.Marshal(problemOf(err))
			fmt.Fprintf(&b, "event: problem\ndata: %s\n\n", data)
		} else if len(news) == 0 {
			b.WriteString(": still here\n\n")
		}
		if !write(b.String()) || err != nil {
			return
		}
	}
}
