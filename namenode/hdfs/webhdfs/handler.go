// Package webhdfs is the namenode's door of WebHDFS: everything about names is answered here, everything with data in
// it is redirected to a datanode's door (CREATE, APPEND, OPEN, GETFILECHECKSUM).
package webhdfs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs"
)

// Prefix is where WebHDFS lives.
const Prefix = "/webhdfs/v1"

// patience is how long the service may take to answer.
const patience = time.Minute

// maxDiscard is how much of a body is read that a client sends to the namenode instead of to the datanode.
const maxDiscard = 64 << 20

// Handler serves paths below Prefix.
type Handler struct {
	service namenode.Service
	door    *security.Door
	answers *security.Budget
	// requests is the process's budget, another one in tests.
	requests *security.Budget
	log      *slog.Logger

	doorTokens doorTokens
}

// New makes a Handler. answers bounds what answers may hold; nil means the process's budget. A nil logger means
// slog.Default().
func New(service namenode.Service, door *security.Door, answers *security.Budget, log *slog.Logger) *Handler {
	if answers == nil {
		answers = security.Answers()
	}
	if log == nil {
		log = slog.Default()
	}
	return &Handler{service: service, door: door, answers: answers, requests: security.Requests(), log: log}
}

// request is one request on its way.
type request struct {
	*Handler
	http   *http.Request
	caller metadata.Caller
	path   string
	op     string
	params params
	token  string // a delegation token by which the caller is known, as it came; empty: in another way
	tab    tab    // of the answers' budget
	said   tab    // of that of requests
	// audited: of each path, or step, it was recorded whether the caller was let.
	audited bool
	undone  bool   // the answer is false: nothing was done
	made    string // the path of the snapshot that was made
	changed metadata.Changed
}

// response is what an operation answers: a body, bytes, one that is written bit by bit, nothing, or a redirect.
type response struct {
	body     any
	bytes    []byte
	stream   func(*stream) error
	empty    bool
	redirect string
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-cache")
	header.Set("Pragma", "no-cache")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "SAMEORIGIN")
	header.Set("X-XSS-Protection", "1; mode=block")
	q := &request{Handler: h, http: r}
	defer q.said.settle()
	defer q.tab.settle()
	answer, err := q.answer()
	q.audit(err)
	// Whatever a client sends here instead of to the datanode is read, so that it sees the answer.
	_, _ = io.CopyN(io.Discard, r.Body, maxDiscard)
	switch {
	case err != nil:
		h.fail(w, r, err)
	case answer.redirect != "":
		header.Set("Location", answer.redirect)
		header.Set("Content-Type", "application/octet-stream")
		header.Set("Content-Length", "0")
		w.WriteHeader(http.StatusTemporaryRedirect)
	case answer.empty:
		header.Set("Content-Type", "application/octet-stream")
		header.Set("Content-Length", "0")
		w.WriteHeader(http.StatusOK)
	case answer.bytes != nil:
		header.Set("Content-Type", "application/octet-stream")
		header.Set("Content-Length", strconv.Itoa(len(answer.bytes)))
		within(w, patience)
		_, _ = w.Write(answer.bytes) // fails only when the client is gone
		within(w, 0)
	case answer.stream != nil:
		header.Set("Content-Type", "application/json")
		s := newStream(w)
		err := answer.stream(s)
		if err == nil {
			err = s.close()
		}
		if err != nil {
			// Half of an answer must not look like all of it.
			h.log.Info("answer broken off", "op", q.op, "path", q.path, "error", err)
			panic(http.ErrAbortHandler)
		}
	default:
		h.write(w, http.StatusOK, answer.body)
	}
}

func (h *Handler) write(w http.ResponseWriter, code int, body any) {
	var buf bytes.Buffer
	encoder := json.NewEncoder(&buf)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(body); err != nil {
		h.log.Error("answer cannot be encoded", "error", err)
		code = http.StatusInternalServerError
		buf.Reset()
	}
	w.Header().Set("Content-Type", "application/json")
	within(w, patience)
	defer within(w, 0)
	w.WriteHeader(code)
	_, _ = w.Write(bytes.TrimSuffix(buf.Bytes(), []byte("\n"))) // fails only when the client is gone
}

func (q *request) answer() (response, error) {
	h, r := q.Handler, q.http
	path, ok := strings.CutPrefix(r.URL.Path, Prefix)
	if !ok || (path != "" && path[0] != '/') {
		return response{}, metadata.Errorf(metadata.ErrNotExist, "%s is not below %s", r.URL.Path, Prefix)
	}
	if path == "" {
		path = "/"
	}
	if len(path) > 1 {
		path = strings.TrimRight(path, "/")
		if path == "" {
			path = "/"
		}
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return response{}, &parameterError{"the query cannot be read: " + err.Error()}
	}
	q.path, q.params = path, paramsOf(query)
	q.op = strings.ToUpper(q.params["op"])
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if q.op == "" || q.op == "NULL" {
		return response{}, metadata.Errorf(metadata.ErrUnsupported, "op=NULL is not supported")
	}
	op, ok := operations[method][q.op]
	if !ok {
		return response{}, invalid("op", "%s is not a valid %s operation.", q.params["op"], method)
	}
	if v := q.params["user.name"]; v != "" && !userName.MatchString(v) && !userID.MatchString(v) {
		return response{}, invalid("user.name", "Invalid value: %q does not belong to the domain %s", v, userName)
	}
	if q.caller, err = q.who(); err != nil {
		return response{}, err
	}
	if method != http.MethodGet {
		if q.door.Audits(false) {
			q.caller.Changed = &q.changed
		}
		if err := security.MayWrite(q.caller); err != nil {
			return response{}, err
		}
	}
	if !h.service.Active() {
		return response{}, namenode.ErrStandbyRead
	}
	if op.right == security.Superuser && !q.caller.Superuser {
		return response{}, metadata.NeedsSuperuser(q.caller.User, q.operation())
	}
	return op.serve(q)
}

// userName is dfs.webhdfs.user.provider.user.pattern's default. userID is what the door calls users without a name, as containers
// have them; HDFS needs another pattern for them.
var (
	userName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9._-]*[$]?$`)
	userID   = regexp.MustCompile(`^[0-9]+$`)
)

// operation is what HDFS calls an operation of the superuser's in its refusals.
func (q *request) operation() string {
	switch q.op {
	case "SETQUOTA":
		names, _ := q.params.integer("namespacequota", metadata.QuotaKeep, 64, metadata.QuotaUnset)
		space, _ := q.params.integer("storagespacequota", metadata.QuotaKeep, 64, metadata.QuotaUnset)
		return metadata.QuotaOperation(names, space)
	case "SETQUOTABYSTORAGETYPE":
		space, _ := q.params.integer("storagespacequota", metadata.QuotaKeep, 64, metadata.QuotaUnset)
		return metadata.QuotaOperation(metadata.QuotaKeep, space)
	case "ALLOWSNAPSHOT":
		return "allowSnapshot"
	case "DISALLOWSNAPSHOT":
		return "disallowSnapshot"
	case "ENABLEECPOLICY":
		return "enableErasureCodingPolicy"
	case "DISABLEECPOLICY":
		return "disableErasureCodingPolicy"
	}
	return q.op
}

// commands are the names that HDFS's audit log has for operations, by whatever door they come.
var commands = map[string]string{
	"OPEN": "open", "OPENMANY": "open", "GETFILESTATUS": "getfileinfo", "GETFILELINKSTATUS": "getfileinfo", "LISTSTATUS": "listStatus", "LISTSTATUS_BATCH": "listStatus",
	"GETCONTENTSUMMARY": "contentSummary", "GETQUOTAUSAGE": "quotaUsage", "CHECKACCESS": "checkAccess", "GET_BLOCK_LOCATIONS": "open",
	"GETFILEBLOCKLOCATIONS": "open", "GETACLSTATUS": "getAclStatus", "GETXATTRS": "getXAttrs", "LISTXATTRS": "listXAttrs",
	"GETSTORAGEPOLICY": "getStoragePolicy", "CREATE": "create", "MKDIRS": "mkdirs", "RENAME": "rename", "SETREPLICATION": "setReplication",
	"SETOWNER": "setOwner", "SETPERMISSION": "setPermission", "SETTIMES": "setTimes", "MODIFYACLENTRIES": "modifyAclEntries",
	"REMOVEACLENTRIES": "removeAclEntries", "REMOVEDEFAULTACL": "removeDefaultAcl", "REMOVEACL": "removeAcl", "SETACL": "setAcl",
	"SETXATTR": "setXAttr", "REMOVEXATTR": "removeXAttr", "SETQUOTA": "setQuota", "SETSTORAGEPOLICY": "setStoragePolicy",
	"UNSETSTORAGEPOLICY": "unsetStoragePolicy", "APPEND": "append", "CONCAT": "concat", "TRUNCATE": "truncate", "DELETE": "delete", "PUBLISH": "publish",
	"SATISFYSTORAGEPOLICY": "satisfyStoragePolicy", "SETQUOTABYSTORAGETYPE": "setQuota", "SETECPOLICY": "setErasureCodingPolicy", "UNSETECPOLICY": "unsetErasureCodingPolicy",
	"ENABLEECPOLICY": "enableErasureCodingPolicy", "DISABLEECPOLICY": "disableErasureCodingPolicy", "GETECPOLICY": "getErasureCodingPolicy",
	"GETECPOLICIES": "getErasureCodingPolicies", "GETECCODECS": "getErasureCodingCodecs",
	"ALLOWSNAPSHOT": "allowSnapshot", "DISALLOWSNAPSHOT": "disallowSnapshot", "CREATESNAPSHOT": "createSnapshot", "DELETESNAPSHOT": "deleteSnapshot",
	"RENAMESNAPSHOT": "renameSnapshot", "GETSNAPSHOTTABLEDIRECTORYLIST": "listSnapshottableDirectory", "GETSNAPSHOTLIST": "ListSnapshot",
	"GETSNAPSHOTDIFF": "computeSnapshotDiff", "GETSNAPSHOTDIFFLISTING": "computeSnapshotDiff", "GETDELEGATIONTOKEN": "getDelegationToken",
	"RENEWDELEGATIONTOKEN": "renewDelegationToken", "CANCELDELEGATIONTOKEN": "cancelDelegationToken",
}

// command is the name that HDFS's audit log has for the request.
func (q *request) command() string {
	switch option := q.params["renameoptions"]; {
	case q.op == "SETQUOTA" || q.op == "SETQUOTABYSTORAGETYPE":
		return q.operation()
	case q.op == "RENAME" && option != "":
		return security.RenameCommand(option == "OVERWRITE", option == "TO_TRASH")
	}
	return cmp.Or(commands[q.op], q.op)
}

// audit records that the caller was let, or was refused.
func (q *request) audit(err error) {
	read := q.http.Method == http.MethodGet || q.http.Method == http.MethodHead || q.op == "OPENMANY"
	if q.audited && (err == nil || q.op == "PUBLISH") || q.undone && q.op == "SETREPLICATION" {
		return
	}
	source, target := q.path, q.params["destination"]
	switch q.op {
	case "CREATESNAPSHOT":
		target = q.made
	case "DELETESNAPSHOT":
		source = security.SnapshotPath(q.path, q.params["snapshotname"])
	case "RENAMESNAPSHOT", "GETSNAPSHOTDIFF", "GETSNAPSHOTDIFFLISTING":
		source, target = security.SnapshotPath(q.path, q.params["oldsnapshotname"]), security.SnapshotPath(q.path, q.params["snapshotname"])
	case "ENABLEECPOLICY", "DISABLEECPOLICY":
		source = q.params["ecpolicy"]
	case "CONCAT":
		source, target = security.PathList(strings.Split(q.params["sources"], ",")), q.path
	}
	q.record(source, target, read, err)
}

// record is audit of what the request is about.
func (q *request) record(source, target string, read bool, err error) {
	if q.caller.User == "" || err != nil && !security.Refused(err) || err == nil && !q.door.Audits(read) {
		return
	}
	d := security.Decision{Allowed: err == nil && !q.undone, Caller: q.caller, Port: "webhdfs", Command: q.command(), Source: source, Target: target, Read: read}
	if err != nil {
		d.Reason = err.Error()
	} else {
		d.Changed = q.changed
	}
	q.door.Record(d)
}

func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	class, message := hdfs.Exception(err)
	code := http.StatusForbidden
	parameter, isParameter := errors.AsType[*parameterError](err)
	switch kind := metadata.KindOf(err); {
	case isParameter:
		class, message, code = hdfs.JavaIllegalArgument, parameter.message, http.StatusBadRequest
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		class, code = hdfs.Retriable, http.StatusForbidden
	case kind == metadata.ErrUnauthorized && security.Challenged(w.Header()):
		code = http.StatusUnauthorized
	case kind == metadata.ErrNotExist:
		code = http.StatusNotFound
	case kind == metadata.ErrInvalidArgument, kind == metadata.ErrUnsupported, kind == metadata.ErrInvalidPath:
		code = http.StatusBadRequest
	}
	if busy, ok := errors.AsType[*busyError](err); ok {
		code = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", strconv.Itoa(busy.seconds))
	}
	h.write(w, code, exceptionOf(class, message))
}

// wait turns a call with a callback into one that returns.
func wait[T any](q *request, call func(func(T, error))) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	call(func(v T, err error) { done <- outcome{v, err} })
	ctx, cancel := context.WithTimeout(q.http.Context(), patience)
	defer cancel()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// finish is wait for calls without a value.
func finish(q *request, call func(func(error))) error {
	_, err := wait(q, func(done func(struct{}, error)) { call(func(err error) { done(struct{}{}, err) }) })
	return err
}

// stat describes the request's path, which has to be there; message is what is said when it is not.
func (q *request) stat(missing func(path string) string) (*metadata.FileStatus, error) {
	f, err := wait(q, func(done func(*metadata.FileStatus, error)) { q.service.Stat(q.caller, q.path, done) })
	if err == nil && f == nil {
		err = metadata.Errorf(metadata.ErrNotExist, "%s", missing(q.path))
	}
	return f, err
}

func doesNotExist(path string) string { return "File does not exist: " + path }

// redirect sends the client to a datanode's door, or tells where that is.
func (q *request) redirect(read bool, offset int64) (response, error) {
	door := namenode.DoorRequest{Path: q.path, Read: read, Offset: offset}
	for x := range strings.SplitSeq(q.params["excludedatanodes"], ",") {
		if x != "" {
			door.Exclude = append(door.Exclude, x)
		}
	}
	node, err := wait(q, func(done func(*namenode.Node, error)) { q.service.DoorFor(q.caller, door, done) })
	if err != nil {
		return response{}, err
	}
	if err := q.doorToken(); err != nil {
		return response{}, err
	}
	u := url.URL{
		Scheme: security.Scheme(q.http, node.Host), Host: net.JoinHostPort(node.Host, strconv.FormatUint(uint64(node.HTTPPort), 10)),
		Path: Prefix + q.path, RawQuery: q.dataQuery(),
	}
	if no, err := q.params.boolean("noredirect", false); err != nil || no {
		return response{body: struct{ Location string }{u.String()}}, err
	}
	return response{redirect: u.String()}, nil
}

// dataQuery is the query of a redirect: who and what first, then the parameters by name, with the defaults that HDFS
// spells out.
func (q *request) dataQuery() string {
	pairs := []string{q.identityQuery(q.op), "namenoderpcaddress=" + url.QueryEscape(q.service.Address())}
	rest := params{}
	for name, value := range q.params {
		switch name {
		case "op", "user.name", "doas", "namenoderpcaddress", "noredirect", "delegation":
		default:
			rest[name] = value
		}
	}
	switch q.op {
	case "CREATE":
		rest["createflag"] = strings.ToUpper(rest["createflag"])
		rest.fallback("createparent", "true")
		rest.fallback("overwrite", "false")
	case "OPEN":
		rest.fallback("offset", "0")
	}
	names := make([]string, 0, len(rest))
	for name := range rest {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		pairs = append(pairs, url.QueryEscape(name)+"="+url.QueryEscape(rest[name]))
	}
	return strings.Join(pairs, "&")
}

// identityQuery is the operation and who asks for it, as a query to a datanode begins.
func (q *request) identityQuery(op string) string {
	query := "op=" + op
	add := func(name, value string) { query += "&" + name + "=" + url.QueryEscape(value) }
	switch user, real := q.caller.User, q.caller.RealUser; {
	case q.token != "":
		add("delegation", q.token)
	case real != "":
		add("user.name", real)
		add("doas", user)
	default:
		add("user.name", user)
	}
	return query
}

func (p params) fallback(name, value string) {
	if _, ok := p[name]; !ok {
		p[name] = value
	}
}
