package rest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
)

// Problem is an error under /api/v1, RFC 9457.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func problem(w http.ResponseWriter, code int, kind, detail string) {
	writeJSON(w, code, "application/problem+json", Problem{Type: "urn:hops:" + kind, Title: http.StatusText(code), Status: code, Detail: detail})
}

// exception is YARN's envelope; the order of its fields is YARN's.
type exception struct {
	Exception     string `json:"exception"`
	Message       string `json:"message,omitempty"`
	JavaClassName string `json:"javaClassName"`
}

func remoteException(w http.ResponseWriter, code int, name, message, class string) {
	writeJSON(w, code, "application/json;charset=utf-8", map[string]exception{"RemoteException": {name, message, class}})
}

func badRequest(w http.ResponseWriter, message string) {
	remoteException(w, http.StatusBadRequest, "BadRequestException", message, "org.apache.hadoop.yarn.webapp.BadRequestException")
}

func illegalArgument(w http.ResponseWriter, message string) {
	remoteException(w, http.StatusBadRequest, "IllegalArgumentException", message, "java.lang.IllegalArgumentException")
}

func writeJSON(w http.ResponseWriter, code int, contentType string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(code)
	w.Write(b)
}

// listPatience is how long a caller may take to read a list.
const listPatience = time.Minute

// pageBytes is how much of a list is held at a time, about.
const pageBytes = 64 << 10

// stream answers 200 with before, the elements as a list, and after. A long list is written while it is made, so that it
// costs a page of memory however many callers ask for it at once; none, if not empty, is the answer without elements.
func stream[T any](q *request, before, after, none string, elements iter.Seq[T]) {
	control := http.NewResponseController(q.w)
	_ = control.SetWriteDeadline(time.Now().Add(listPatience)) // recorders in tests have none
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	q.w.Header().Set("Content-Type", "application/json;charset=utf-8")
	w := bufio.NewWriterSize(q.w, pageBytes)
	n := 0
	for e := range elements {
		b, err := json.Marshal(e)
		if err != nil { // too late for another status: a broken answer is not taken for a whole one
			q.Logger.Error("element of a list cannot be encoded", "path", q.r.URL.Path, "err", err)
			panic(http.ErrAbortHandler)
		}
		if n++; n == 1 {
			w.WriteString(before)
		} else {
			w.WriteByte(',')
		}
		if _, err := w.Write(b); err != nil {
			return
		}
	}
	if n == 0 && none != "" {
		w.WriteString(none)
	} else if n == 0 {
		w.WriteString(before + after)
	} else {
		w.WriteString(after)
	}
	w.Flush() // a caller that is gone asks again
}

// json answers 200 with a body.
func (q *request) json(v any) { writeJSON(q.w, http.StatusOK, "application/json;charset=utf-8", v) }

// kinds maps errors to HTTP: the first that matches counts.
var kinds = []struct {
	kind error
	code int
	name string
	// YARN's exception.
	exception, class string
}{
	{metadata.ErrStandby, http.StatusServiceUnavailable, "no-leader", "StandbyException", "org.apache.hadoop.ipc.StandbyException"},
	{rm.ErrStaleEpoch, http.StatusServiceUnavailable, "no-leader", "StandbyException", "org.apache.hadoop.ipc.StandbyException"},
	{raftstore.ErrUnknown, http.StatusGatewayTimeout, "outcome-unknown", "IOException", "java.io.IOException"},
	{context.DeadlineExceeded, http.StatusGatewayTimeout, "outcome-unknown", "IOException", "java.io.IOException"},
	{metadata.ErrUnauthorized, http.StatusUnauthorized, "unauthorized", "AuthorizationException", "org.apache.hadoop.security.authorize.AuthorizationException"},
	{metadata.ErrPermission, http.StatusForbidden, "forbidden", "ForbiddenException", "org.apache.hadoop.yarn.webapp.ForbiddenException"},
	{metadata.ErrNotExist, http.StatusNotFound, "not-found", "NotFoundException", "org.apache.hadoop.yarn.webapp.NotFoundException"},
	{metadata.ErrInvalidArgument, http.StatusBadRequest, "invalid-argument", "BadRequestException", "org.apache.hadoop.yarn.webapp.BadRequestException"},
	{metadata.ErrUnsupported, http.StatusBadRequest, "unsupported", "BadRequestException", "org.apache.hadoop.yarn.webapp.BadRequestException"},
	{rm.ErrKeyReused, http.StatusUnprocessableEntity, "idempotency-key-reused", "BadRequestException", "org.apache.hadoop.yarn.webapp.BadRequestException"},
	{metadata.ErrExist, http.StatusConflict, "exists", "BadRequestException", "org.apache.hadoop.yarn.webapp.BadRequestException"},
	{rm.ErrStaleAttempt, http.StatusGone, "stale-attempt", "ApplicationAttemptNotFoundException", "org.apache.hadoop.yarn.exceptions.ApplicationAttemptNotFoundException"},
	{rm.ErrLaunched, http.StatusConflict, "launched", "YarnException", "org.apache.hadoop.yarn.exceptions.YarnException"},
	{rm.ErrBusy, http.StatusTooManyRequests, "too-many-applications", "YarnException", "org.apache.hadoop.yarn.exceptions.YarnException"},
	{metadata.ErrRetriable, http.StatusServiceUnavailable, "try-again", "IOException", "java.io.IOException"},
	{metadata.ErrNoSpace, http.StatusInsufficientStorage, "no-space", "IOException", "java.io.IOException"},
}

// fail answers an error in the dialect of the path.
func (q *request) fail(err error) {
	code, name, exception, class := http.StatusInternalServerError, "internal", "WebApplicationException", "javax.ws.rs.WebApplicationException"
	for _, k := range kinds {
		if errors.Is(err, k.kind) {
			code, name, exception, class = k.code, k.name, k.exception, k.class
			break
		}
	}
	if code == http.StatusInternalServerError {
		q.Logger.Error("request failed", "method", q.r.Method, "path", q.r.URL.Path, "err", err)
		if isYARN(q.r) {
			code = http.StatusServiceUnavailable
		}
	}
	switch code {
	case http.StatusServiceUnavailable:
		q.w.Header().Set("Retry-After", "1")
	case http.StatusTooManyRequests: // until something ends
		q.w.Header().Set("Retry-After", "10")
	}
	if isYARN(q.r) {
		remoteException(q.w, code, exception, "java.lang.Exception: "+err.Error(), class)
		return
	}
	problem(q.w, code, name, err.Error())
}

func (q *request) forbidden(text string) {
	q.fail(metadata.Errorf(metadata.ErrPermission, "%s", text))
}

// notOwner refuses a caller who may not change an application; YARN's words for a kill are plain text.
func (q *request) notOwner() {
	text := fmt.Sprintf("Unauthorized attempt to kill appid %v by remote user %s", q.id, q.caller.User)
	if isYARN(q.r) {
		q.w.Header().Set("Content-Type", "application/json;charset=utf-8")
		q.w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(q.w, text)
		return
	}
	q.forbidden(fmt.Sprintf("%s belongs to %s: user %s may not change it or read its logs", q.id, q.app.User, q.caller.User))
}
