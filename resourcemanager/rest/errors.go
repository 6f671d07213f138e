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

	"github.com/gohops/hops/internal/jersey"
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

func (q *request) remoteException(code int, name, message, class string) {
	jersey.Fail(q.w, q.r, code, jersey.Exception{Name: name, Message: message, Class: class})
}

// badRequest answers 400; message begins with the Java class of what YARN throws.
func (q *request) badRequest(message string) { jersey.BadRequest(q.w, q.r, message) }

func (q *request) illegalArgument(message string) {
	q.remoteException(http.StatusBadRequest, "IllegalArgumentException", message, "java.lang.IllegalArgumentException")
}

// answer is one of YARN's, in the form that the caller takes.
func (q *request) answer(root string, d jersey.Dialect, v any) {
	jersey.Write(q.w, q.r, http.StatusOK, jersey.Object{Root: root, Dialect: d, Value: v})
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
	q.w.Header().Set("Content-Type", "application/json;charset=utf-8")
	streamAs(q, func(e T) ([]byte, error) { return json.Marshal(e) }, ",", before, after, none, elements)
}

func streamAs[T any](q *request, encode func(T) ([]byte, error), between, before, after, none string, elements iter.Seq[T]) {
	control := http.NewResponseController(q.w)
	_ = control.SetWriteDeadline(time.Now().Add(listPatience)) // recorders in tests have none
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	w := bufio.NewWriterSize(q.w, pageBytes)
	n := 0
	for e := range elements {
		b, err := encode(e)
		if err != nil { // too late for another status: a broken answer is not taken for a whole one
			q.Logger.Error("element of a list cannot be encoded", "path", q.r.URL.Path, "err", err)
			panic(http.ErrAbortHandler)
		}
		if n++; n == 1 {
			w.WriteString(before)
		} else {
			w.WriteString(between)
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

// streamYARN answers 200 with a list of YARN's natural dialect, {"roots":{"name":[…]}}, or the bare one, {"name":[…]}, written while it is
// made; an empty one is {"roots":{}} or {}.
func streamYARN[T any](q *request, d jersey.Dialect, root, name string, elements iter.Seq[T]) {
	switch jersey.Wants(q.r) {
	case jersey.JSON:
		if d == jersey.Bare {
			stream(q, fmt.Sprintf(`{%q:[`, name), `]}`, `{}`, elements)
			return
		}
		stream(q, fmt.Sprintf(`{%q:{%q:[`, root, name), `]}}`, fmt.Sprintf(`{%q:{}}`, root), elements)
	case jersey.XML:
		q.w.Header().Set("Content-Type", jersey.XMLType)
		encode := func(e T) ([]byte, error) { return jersey.Element(name, e) }
		streamAs(q, encode, "", jersey.XMLHead+"<"+root+">", "</"+root+">", jersey.XMLHead+"<"+root+"/>", elements)
	default:
		jersey.Unservable(q.w, q.r)
	}
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

// problemOf is an error as one of our problems.
func problemOf(err error) Problem {
	code, name := http.StatusInternalServerError, "internal"
	for _, k := range kinds {
		if errors.Is(err, k.kind) {
			code, name = k.code, k.name
			break
		}
	}
	return Problem{Type: "urn:hops:" + name, Title: http.StatusText(code), Status: code, Detail: err.Error()}
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
		q.remoteException(code, exception, "java.lang.Exception: "+err.Error(), class)
		return
	}
	problem(q.w, code, name, err.Error())
}

func (q *request) forbidden(text string) {
	q.fail(metadata.Errorf(metadata.ErrPermission, "%s", text))
}

// notOwner refuses a caller who may not change an application; YARN's words for that are plain text.
func (q *request) notOwner(route Route) {
	if isYARN(q.r) {
		act := route.act
		if act == "" {
			act = "kill appid"
		}
		jersey.Text(q.w, q.r, http.StatusForbidden, fmt.Sprintf("Unauthorized attempt to %s %v by remote user %s", act, q.id, q.caller.User))
		return
	}
	q.forbidden(fmt.Sprintf("%s belongs to %s: user %s may not change it or read its logs", q.id, q.app.User, q.caller.User))
}
