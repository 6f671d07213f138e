package rest

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// What may be read and changed of one application at its own address: state, queue, priority, timeout.

type appState struct {
	State string `json:"state"`
	// Diagnostics are read, never answered.
	Diagnostics string `json:"diagnostics,omitempty"`
}

type queueOf struct {
	Queue string `json:"queue"`
}

type priorityOf struct {
	Priority int `json:"priority"`
}

func (q *request) appState() {
	if q.known() {
		q.answer("appstate", jersey.Mapped, appState{State: string(yarnState(q.app))})
	}
}

func (q *request) appQueue() {
	if q.known() {
		q.answer("appqueue", jersey.Bare, queueOf{q.app.Queue})
	}
}

func (q *request) appPriority() {
	if q.known() {
		q.answer("applicationpriority", jersey.Bare, priorityOf{q.app.Priority})
	}
}

// setAppState kills.
func (q *request) setAppState() {
	if !q.known() {
		return
	}
	var body appState
	if !q.read("appstate", jersey.Mapped, &body) {
		return
	}
	if body.State != "KILLED" {
		q.badRequest("java.lang.Exception: Only 'KILLED' is allowed as a target state.")
		return
	}
	if q.app.State.Final() {
		q.answer("appstate", jersey.Mapped, appState{State: string(yarnState(q.app))})
		return
	}
	state, err := q.kill(body.Diagnostics)
	if err != nil {
		q.fail(err)
		return
	}
	q.w.Header().Set("Location", ownScheme(q.r)+q.r.Host+q.r.URL.Path)
	jersey.Write(q.w, q.r, http.StatusAccepted, jersey.Object{Root: "appstate", Dialect: jersey.Mapped, Value: appState{State: string(state)}})
}

// updated makes a change and says what came of it; what could not be done is answered, and ok is false.
func (q *request) updated(u Update) (state rm.State, ok bool) {
	state, err := q.Cluster.Update(q.r.Context(), q.id, u)
	if errors.Is(err, metadata.ErrUnsupported) || errors.Is(err, rm.ErrQueueFull) || errors.Is(err, metadata.ErrPermission) {
		jersey.Text(q.w, q.r, http.StatusBadRequest, err.Error())
		return "", false
	}
	if err != nil {
		q.fail(err)
		return "", false
	}
	return state, true
}

// MoveTarget finds the queue into which a caller may move an application. nil: there is none of the name, or the caller may not submit
// into it; one is not told from the other. Foreign is as in Submission.
func MoveTarget(tree *rm.Queues, name string, caller metadata.Caller, foreign bool) *rm.Queue {
	q := tree.Place(name)
	switch {
	case q == nil || caller.Superuser || q.MayAdminister(caller.User, caller.Groups...):
		return q
	case !q.MaySubmit(caller.User, caller.Groups...) || foreign && !q.Invites(caller.User, caller.Groups...):
		return nil
	}
	return q
}

// setAppQueue moves an application to another queue, with all that it holds.
func (q *request) setAppQueue() {
	if !q.known() {
		return
	}
	var body queueOf
	if !q.read("appqueue", jersey.Bare, &body) {
		return
	}
	plain := func(code int, format string, args ...any) { jersey.Text(q.w, q.r, code, fmt.Sprintf(format, args...)) }
	if q.app.State.Final() {
		plain(http.StatusBadRequest, "App in %s state cannot be moved.", yarnState(q.app))
		return
	}
	target := MoveTarget(q.queues(), body.Queue, q.caller, !q.Door.Own(q.r))
	switch {
	case target == nil:
		plain(http.StatusForbidden, "Unauthorized attempt to move appid %v by remote user %s", q.id, q.caller.User)
		return
	case !target.Leaf():
		plain(http.StatusBadRequest, "Queue %s holds queues, not applications: name one of those.", target.Path)
		return
	case target.State == rm.QueueStopped && target.Path != q.app.Queue:
		plain(http.StatusBadRequest, "Queue %s is stopped and takes no application.", target.Path)
		return
	case target.Path != q.app.Queue:
		state, ok := q.updated(Update{Queue: target.Path})
		if !ok {
			return
		}
		if state.Final() { // it has just ended
			plain(http.StatusBadRequest, "App in %s state cannot be moved.", state)
			return
		}
	}
	q.answer("appqueue", jersey.Bare, queueOf{target.Path})
}

// setAppPriority answers the priority that the application has then: the highest there is in place of a higher one, and what it had when it
// has ended.
func (q *request) setAppPriority() {
	if !q.known() {
		return
	}
	var body struct {
		Priority *int `json:"priority"`
	}
	if !q.read("applicationpriority", jersey.Bare, &body) {
		return
	}
	highest := q.queues().Find(q.app.Queue).HighestPriority()
	if body.Priority == nil || *body.Priority < 0 {
		q.badRequest(fmt.Sprintf("java.lang.Exception: priority is missing, or below 0: give a number from 0 to %d", highest))
		return
	}
	out := min(*body.Priority, highest)
	if q.app.State.Final() {
		out = q.app.Priority
	} else if out != q.app.Priority {
		if _, ok := q.updated(Update{Priority: &out}); !ok {
			return
		}
	}
	q.answer("applicationpriority", jersey.Bare, priorityOf{out})
}

type timeouts struct {
	List []timeoutInfo `json:"timeout"`
}

// timeoutInfo is one time limit of an application; LIFETIME is the only type there is.
type timeoutInfo struct {
	Type      string `json:"type"`
	Expiry    string `json:"expiryTime"`
	Remaining int64  `json:"remainingTimeInSeconds"`
}

// lifetime is how long an application may live.
func lifetime(a *rm.Application, now metadata.Time) timeoutInfo {
	return timeoutAt(a.Expiry(), a.State.Final(), now)
}

func timeoutAt(expiry metadata.Time, over bool, now metadata.Time) timeoutInfo {
	if expiry == 0 {
		return timeoutInfo{Type: "LIFETIME", Expiry: "UNLIMITED", Remaining: -1}
	}
	left := int64(0)
	if !over {
		left = max(0, int64(expiry-now)/1000)
	}
	return timeoutInfo{"LIFETIME", expiry.Time().UTC().Format(jersey.Timeout), left}
}

func (q *request) appTimeouts() {
	if q.known() {
		q.answer("timeouts", jersey.Natural, timeouts{[]timeoutInfo{lifetime(q.app, q.now())}})
	}
}

// isTimeout answers 400 for a type of timeout that there is none of.
func (q *request) isTimeout(name string) bool {
	if strings.EqualFold(strings.TrimSpace(name), "LIFETIME") {
		return true
	}
	q.badRequest(fmt.Sprintf("java.lang.Exception: Invalid application-state %.100s specified. It should be one of [LIFETIME]", strings.TrimSpace(name))) // sic
	return false
}

func (q *request) appTimeout() {
	if q.known() && q.isTimeout(q.r.PathValue("type")) {
		q.answer("timeout", jersey.Natural, lifetime(q.app, q.now()))
	}
}

// ParseExpiry reads the time at which an application is to be ended: as YARN writes it, or as others write such times.
func ParseExpiry(text string) (at time.Time, err error) {
	for _, form := range []string{jersey.Timeout, "2006-01-02T15:04:05.000Z07:00", time.RFC3339} {
		if at, err = time.Parse(form, text); err == nil {
			break
		}
	}
	return at, err
}

// setAppTimeout sets when an application is ended, as a time. (Stock YARN answers 503 for a time that is none or that is over.)
func (q *request) setAppTimeout() {
	if !q.known() {
		return
	}
	var body timeoutInfo
	if !q.read("timeout", jersey.Natural, &body) || !q.isTimeout(body.Type) {
		return
	}
	at, err := ParseExpiry(body.Expiry)
	now := time.Now()
	switch {
	case err != nil:
		q.badRequest(fmt.Sprintf("java.lang.Exception: expiryTime %.100q is no time: write it as %s", body.Expiry, jersey.Timeout))
		return
	case q.app.State.Final(): // as it is asked for, and nothing changes
		q.answer("timeout", jersey.Natural, timeoutAt(metadata.TimeOf(at), false, metadata.TimeOf(now)))
		return
	case !at.After(now):
		q.badRequest(fmt.Sprintf("java.lang.Exception: expiryTime %s is over", at.UTC().Format(jersey.Timeout)))
		return
	}
	if _, ok := q.updated(Update{Expires: metadata.TimeOf(at)}); ok {
		q.answer("timeout", jersey.Natural, timeoutAt(metadata.TimeOf(at), false, metadata.TimeOf(now)))
	}
}
