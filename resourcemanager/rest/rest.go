// Package rest is the resource manager's HTTP face: YARN's REST interface under /ws/v1/cluster, byte-shaped as the
// recorded answers of Hadoop 3.4.1, our own under /api/v1, and the way to the applications' masters under /proxy.
package rest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/slowlog"
	"github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
	"github.com/gohops/hops/resourcemanager/state"
)

// Cluster is the resource manager behind the interface. Its methods are safe for concurrent use.
type Cluster interface {
	// Leading reports whether this process leads; only then are requests served.
	Leading() bool
	// LeaderHTTP is host:port of the leader; empty: unknown.
	LeaderHTTP() string
	// Started is when this process began.
	Started() time.Time
	View() *state.View
	Queues() *rm.Queues
	// Limits are the least that a container gets, and the most that one may ask for; zero amounts of that are no limit.
	Limits() (minimum, maximum rm.Resource)
	// NewApplication sets an id aside.
	NewApplication(ctx context.Context) (rm.ApplicationID, error)
	// Submit takes an application in. It is durable when the answer comes; existing: it was there already.
	Submit(ctx context.Context, caller metadata.Caller, s Submission) (id rm.ApplicationID, existing bool, err error)
	// Kill ends an application; durable when the answer comes. The state is that of the application then.
	Kill(ctx context.Context, id rm.ApplicationID, diagnostics string) (rm.State, error)
	// Update changes an application that lives; durable when the answer comes. The state is that of the application then: one that has
	// ended stays as it is.
	Update(ctx context.Context, id rm.ApplicationID, u Update) (rm.State, error)
	// ResizeJob gives a command another number of instances; durable when the answer comes. Those that are too many have as long to save their
	// work as what is preempted, and are told the reason. ErrUnsupported before the cluster has been raised to release.Requests.
	ResizeJob(ctx context.Context, id rm.ApplicationID, size rm.Size, reason string) (rm.State, error)
	// ChangeMembers ends members of an array for good, or has them run again that have failed or were ended so; durable when the answer comes.
	// Errors: as ResizeJob; ErrBusy.
	ChangeMembers(ctx context.Context, id rm.ApplicationID, numbers []int, retry bool, reason string) (rm.State, error)
	// Signal has the container's node send a signal to its command, once; nobody says whether it arrived. ErrRetriable: the
	// node does not speak, or has too many to deliver.
	Signal(id rm.ContainerID, signal syscall.Signal) error
	// Waiting lists what an application waits for and why.
	Waiting(id rm.ApplicationID) []Waiting
	// Explain explains what an application waits for; queues are others to which its user may submit. more are left out.
	Explain(ctx context.Context, id rm.ApplicationID, queues []string) (list []Explanation, more int, err error)
	// Plan is a dry run of Submit: it takes or refuses as that does, and says what would be placed where now, without any effect.
	Plan(ctx context.Context, caller metadata.Caller, s Submission, spec *job.Spec, queues []string) (Planned, error)
	// Progress is 0..1 as the master says.
	Progress(id rm.ApplicationID) float64
	// Liveness is what the leader hears of a node.
	Liveness(id rm.NodeID) Liveness
	// ProxyKey signs requests that are passed on to a master in this container.
	ProxyKey(c *rm.Container) security.RequestKey
	// ContainerOf is the token and the user of a container that runs, and whether its job may submit others; ok is false when
	// there is none of that name.
	ContainerOf(container string) (c Container, ok bool)
	// LogDir is the directory of the file system under which an application's containers put their logs.
	LogDir(a *rm.Application) string
	// LogAggregation says in YARN's words (LogAggregationStatus) whether the logs of an application that has ended are in that
	// directory.
	LogAggregation(id rm.ApplicationID) string
}

// Container is by what a container's requests are known.
type Container struct {
	Token, User string
	// MaySubmit: its job's environment says so (HOPS_MAY_SUBMIT).
	MaySubmit func() bool
}

// Submission is an application to be.
type Submission struct {
	// ID is zero to let the resource manager choose.
	ID                rm.ApplicationID
	Name, Queue, Type string
	Tags              []string
	Kind              rm.Kind
	Priority          int
	Document          []byte
	// Tokens are what the launch of a master brings (rm.Launch.Tokens), in plain. Only with an ID.
	Tokens  []byte
	Timeout time.Duration
	// Array: it is one.
	Array bool
	// After is what it waits for, and Deadline when it is ended; 0: there is no such time.
	After          []rm.Dependency
	Deadline       metadata.Time
	MaxAttempts    int
	KeepContainers bool
	// Key and Digest make a repeat harmless.
	Key, Digest string
	// AcceptAnyQueue: an unknown queue fails the application after it was accepted, as YARN does, not the submission.
	AcceptAnyQueue bool
	// Foreign: the request came from a process of another local user than the one who runs the servers.
	Foreign bool
	// Failure other than empty fails the application at once, for the reason given.
	Failure string
}

// Update is what is to be changed of an application; zero values stay as they are.
type Update struct {
	Priority *int
	// Queue is a full path.
	Queue   string
	Expires metadata.Time
}

// Waiting is an ask that is not granted; Ask is empty for the master.
type Waiting struct {
	Ask    string    `json:"ask"`
	Reason rm.Reason `json:"reason"`
}

// Liveness is what the leader hears of a node.
type Liveness struct {
	// Open: the node takes work.
	Open bool
	// Heard is when it last reported.
	Heard time.Time
	// Refused says why its last report was not taken in; empty: it was.
	Refused string
	// Memory used by its containers, in bytes, as far as reported.
	Memory map[rm.ContainerID]int64
	// GPUs are what its devices do, by UUID, and Uses what containers have done with theirs, as far as reported.
	GPUs map[string]GPULoad
	Uses map[rm.ContainerID][]GPUUse
	// Divided are its GPUs in MIG mode.
	Divided []DividedGPU
}

// GPULoad is what a device does at one moment; what it does not tell is absent.
type GPULoad struct {
	// Utilization is the percentage of time in which a kernel ran, MemoryUsed is in bytes, Power in watts, Temperature in degrees Celsius.
	Utilization *float64 `json:"utilization,omitempty"`
	MemoryUsed  int64    `json:"memory_used"`
	Power       float64  `json:"power,omitempty"`
	Temperature float64  `json:"temperature,omitempty"`
}

// GPUUse is what a container has done with one of its devices since it began. Times are in milliseconds.
type GPUUse struct {
	UUID string `json:"uuid"`
	// Held is how long it had the device while its node looked, Busy how much of that a kernel ran.
	Held int64 `json:"held"`
	Busy int64 `json:"busy"`
	// MemoryPeak is the most memory of it that was seen in use, in bytes; Energy is the device's in that time, in joules.
	MemoryPeak int64   `json:"memory_peak"`
	Energy     float64 `json:"energy"`
	// Idle is for how long it has done nothing now; Unused: longer than its node finds usual (nodemanager.gpu_idle).
	Idle   int64 `json:"idle"`
	Unused bool  `json:"unused,omitempty"`
}

// Logs reads the log files of containers from the file system, as a user.
type Logs interface {
	// List returns the files under a directory, at any depth, in the order of their paths. ErrNotExist: the directory
	// is not there (yet).
	List(ctx context.Context, user, dir string) ([]LogFile, error)
	Open(ctx context.Context, user, path string) (io.ReadCloser, error)
}

// LogFile is one file of logs.
type LogFile struct {
	// Path is absolute.
	Path     string
	Size     int64
	Modified metadata.Time
}

// Config is what the interface needs. Cluster and Door are required.
type Config struct {
	Cluster Cluster
	// Masters answers applications' masters.
	Masters rm.Masters
	Door    *security.Door
	// ID is the member's name, Group its Raft group; nil: it is told nothing of, and not changed.
	ID    string
	Group Group
	// Logs may be nil: requests for logs are then refused.
	Logs Logs
	// Secrets may be nil: none are kept then.
	Secrets Secrets
	// Operator may be nil: there are no operator's commands then.
	Operator Operator
	// Another says whether a host:port is where another resource manager serves HTTP; nil: there is none.
	Another func(host string) bool
	// Figures are more of them than the state has; nil: there are none.
	Figures func(status.Sample)
	// Slow counts what took too long; may be nil.
	Slow   *slowlog.Log
	Logger *slog.Logger
}

// API is the handler.
type API struct {
	Config
	mux    *http.ServeMux
	pages  *status.Pages
	routes []Route
	// numbers are those of the requests that are passed on.
	numbers security.Numbers
	// signers are the containers that sign their requests.
	signers security.Containers
}

// Route is one method of one path. The part {app} of a path is an application's id, {containerid} a container's.
type Route struct {
	Method, Path string
	Right        security.Right
	handle       func(*request)
	// admin is YARN's name of an operator's method, for the words of a refusal; refusal are other words.
	admin, refusal string
	// act says in YARN's words what an owner's method does to "appid X"; empty: it ends it.
	act string
	// each: every member answers for itself.
	each bool
}

// Routes lists what is served, for tests and documentation.
func (a *API) Routes() []security.Route {
	out := a.pages.Routes()
	for _, r := range a.routes {
		out = append(out, security.Route{Port: "resource manager HTTP", Name: r.Method + " " + r.Path, Right: r.Right})
	}
	return out
}

// request is a request at its handler: the caller is known and has the route's right.
type request struct {
	*API
	w      http.ResponseWriter
	r      *http.Request
	caller metadata.Caller
	view   *state.View
	// tree are the queues, once they have been asked for: they may be replaced at any time.
	tree *rm.Queues
	// total is what the nodes have together, once it has been asked for.
	total *rm.Resource
	// noticed counts the containers that are to go, once it has been asked for.
	noticed map[rm.ApplicationID]int
	// id and app are set on routes with {app}; app is nil when it is unknown.
	id  rm.ApplicationID
	app *rm.Application
	// containerID is set on routes with {containerid}, and then id and app are its application's.
	containerID rm.ContainerID
	// speaks is the attempt that is spoken for, set by attemptKnown; master: the caller has proved the token of its container.
	speaks rm.AttemptID
	master bool
}

// maxBody bounds what is read of a request.
const maxBody = 2 << 20

// bodyPatience is how long a caller may take to send a body that is for us.
const bodyPatience = 30 * time.Second

// New builds the handler.
func New(c Config) *API {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	a := &API{Config: c, mux: http.NewServeMux(), signers: security.Containers{Another: c.Another}}
	a.pages = a.newPages()
	a.routes = append(a.routes, healthRoutes...)
	a.routes = append(a.routes, yarnRoutes...)
	a.routes = append(a.routes, historyRoutes...)
	a.routes = append(a.routes, jobRoutes...)
	a.routes = append(a.routes, jobChangeRoutes...)
	a.routes = append(a.routes, openAPIRoutes...)
	a.routes = append(a.routes, masterRoutes...)
	a.routes = append(a.routes, secretRoutes...)
	a.routes = append(a.routes, clusterRoutes...)
	a.routes = append(a.routes, queueRoutes...)
	a.routes = append(a.routes, memberRoutes...)
	a.routes = append(a.routes, adminRoutes...)
	for method, right := range map[string]security.Right{
		"GET": security.Anyone, "HEAD": security.Anyone,
		"POST": security.Owner, "PUT": security.Owner, "PATCH": security.Owner, "DELETE": security.Owner,
	} {
		a.routes = append(a.routes, Route{Method: method, Path: "/proxy/{app}/{rest...}", Right: right, handle: (*request).proxy})
	}
	byPath := map[string]map[string]Route{}
	for _, r := range a.routes {
		if byPath[r.Path] == nil {
			byPath[r.Path] = map[string]Route{}
		}
		byPath[r.Path][r.Method] = r
	}
	for path, methods := range byPath {
		a.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { a.dispatch(w, r, methods) })
	}
	a.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { a.noRoute(w, r) })
	return a
}

// ServeHTTP answers a request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	jersey.Headers(w.Header())
	if isYARN(r) || r.URL.Path == "/conf" || r.URL.Path == "/jmx" {
		var done func()
		w, done = jersey.Compress(w, r)
		defer done()
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead && !strings.HasPrefix(r.URL.Path, "/proxy/") {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	}
	if r.ContentLength != 0 && !strings.HasPrefix(r.URL.Path, "/proxy/") {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyPatience)) // recorders in tests have none
	}
	a.mux.ServeHTTP(w, r)
}

// isYARN tells the two dialects of errors apart.
func isYARN(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/ws/") }

// noRoute answers paths that are not served.
func (a *API) noRoute(w http.ResponseWriter, r *http.Request) {
	switch {
	case a.pages.Serves(r):
		a.pages.ServeHTTP(w, r)
	case isYARN(r) || !strings.HasPrefix(r.URL.Path, "/api/"):
		w.Header().Set("Content-Type", "text/html;charset=utf-8")
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, "<!DOCTYPE html><html><head><title>Sorry, got error 404</title></head><body><h1>Sorry, got error 404</h1>"+
			"<p>Nothing is served at this path.</p></body></html>\n")
	default:
		problem(w, http.StatusNotFound, "not-found", "nothing is served at "+r.URL.Path)
	}
}

// dispatch finds the method, sends followers' callers to the leader, and lets in who has the route's right.
func (a *API) dispatch(w http.ResponseWriter, r *http.Request, methods map[string]Route) {
	method := r.Method
	route, ok := methods[method]
	if !ok && method == http.MethodHead {
		route, ok = methods[http.MethodGet]
	}
	if !ok {
		if isYARN(r) { // as recorded: not 405
			jersey.Unservable(w, r)
			return
		}
		problem(w, http.StatusMethodNotAllowed, "method-not-allowed", r.Method+" is not served here")
		return
	}
	if isYARN(r) && jersey.Wants(r) == jersey.None { // before anything is changed whose answer could not be given
		jersey.Unservable(w, r)
		return
	}
	q := &request{API: a, w: w, r: r}
	if route.Right == security.Open {
		route.handle(q)
		return
	}
	if !route.each && !a.Cluster.Leading() {
		a.redirect(w, r)
		return
	}
	var err error
	if q.caller, err = q.who(); err != nil {
		q.fail(err)
		return
	}
	q.view = a.Cluster.View()
	if text := r.PathValue("app"); text != "" {
		if q.id, err = rm.ParseApplicationID(text); err != nil {
			if isYARN(r) {
				q.badRequest("java.lang.IllegalArgumentException: Invalid ApplicationId: " + text)
			} else {
				q.fail(err)
			}
			return
		}
		q.app = q.view.Application(q.id)
	}
	if text := r.PathValue("containerid"); text != "" {
		if q.containerID, err = rm.ParseContainerID(text); err != nil {
			q.badRequest("java.lang.IllegalArgumentException: Invalid ContainerId: " + text)
			return
		}
		q.id = q.containerID.Attempt.Application
		q.app = q.view.Application(q.id)
	}
	switch right := route.Right; {
	case right == security.Anyone:
	case right == security.Superuser:
		if !q.caller.Superuser {
			text := fmt.Sprintf("%s is not a superuser", q.caller.User)
			if route.refusal != "" {
				text = route.refusal
			}
			if route.admin != "" { // RMServerUtils.verifyAdminAccess
				text = fmt.Sprintf("User %s doesn't have permission to call '%s'", q.caller.User, route.admin)
			}
			q.audit(route, text)
			q.forbidden(text)
			return
		}
	case security.MayWrite(q.caller) != nil:
		q.audit(route, security.MayWrite(q.caller).Error())
		q.forbidden(security.MayWrite(q.caller).Error())
		return
	case right == security.Named:
	case right == security.Owner:
		if q.app != nil && !q.mayModify(q.app) { // of unknown ones the handler says so
			q.audit(route, "the application is of "+q.app.User)
			q.notOwner(route)
			return
		}
	default:
		q.fail(metadata.Errorf(metadata.ErrPermission, "%s %s is registered without a right", route.Method, route.Path))
		return
	}
	q.audit(route, "")
	route.handle(q)
}

// who acts: the user of the container that has signed the request, or whom the door knows. What a container changes, its job has to be
// allowed to.
func (q *request) who() (metadata.Caller, error) {
	if q.r.PathValue("attempt") != "" {
		if caller, ok, err := q.masterCaller(); ok {
			return caller, err
		}
	}
	var from Container
	caller, container, err := q.signers.Caller(q.Door, q.r, func(id string) (token, user string, ok bool) {
		from, ok = q.Cluster.ContainerOf(id)
		return from.Token, from.User, ok
	})
	switch {
	case container == "" && err == nil:
		return q.Door.HTTPCaller(q.r)
	case err == nil && (q.isMaster(container) || container != "" && q.itself() == container):
		q.master = true
	case err == nil && q.r.Method != http.MethodGet && q.r.Method != http.MethodHead && !from.MaySubmit():
		err = metadata.Errorf(metadata.ErrPermission, "this comes from %s, whose job may not submit or change others: if it is to, submit it with HOPS_MAY_SUBMIT=1 in its env", container)
		q.Door.Record(security.Decision{Caller: caller, Port: "rest", Command: q.r.Method, Source: container, Target: q.r.URL.Path, Reason: err.Error()})
	}
	return caller, err
}

// audit records that the caller was let in at a route, or why not.
func (q *request) audit(route Route, refused string) {
	d := security.Decision{
		Allowed: refused == "", Caller: q.caller, Port: "rest", Command: route.Method + " " + route.Path, Reason: refused,
		Read: route.Right == security.Anyone,
	}
	if !q.id.IsZero() {
		d.Source = q.id.String()
	} else if route.Right == security.Superuser {
		d.Source, d.Target = q.r.PathValue("id")+q.r.PathValue("node"), q.r.URL.RawQuery
	}
	q.Door.Record(d)
}

// queues are the same for the whole of a request.
func (q *request) queues() *rm.Queues {
	if q.tree == nil {
		q.tree = q.Cluster.Queues()
	}
	return q.tree
}

// mayModify reports whether the caller owns an application, administers its queue, or is a superuser.
func (q *request) mayModify(a *rm.Application) bool {
	if q.caller.User == security.DrWho {
		return false
	}
	if q.caller.Superuser || q.caller.User == a.User {
		return true
	}
	return q.queues().Find(a.Queue).MayAdminister(q.caller.User, q.caller.Groups...)
}

// shown is what the caller gets to see of an application's diagnostics: those who may not read its logs see the first
// line, because behind it stands what the program printed last.
func (q *request) shown(a *rm.Application, diagnostics string) string {
	first, _, more := strings.Cut(diagnostics, "\n")
	if more && !q.mayModify(a) {
		return first
	}
	return diagnostics
}

// redirect sends the caller to the leader, as a standby of YARN does; of our own interface with no body.
func (a *API) redirect(w http.ResponseWriter, r *http.Request) {
	leader, ours := a.Cluster.LeaderHTTP(), strings.HasPrefix(r.URL.Path, "/api/")
	if leader == "" {
		const text = "This resource manager does not lead, and no leader is known at the moment. Try again."
		w.Header().Set("Retry-After", "1")
		if ours {
			problem(w, http.StatusServiceUnavailable, "no-leader", text)
		} else {
			http.Error(w, text, http.StatusServiceUnavailable)
		}
		return
	}
	target := schemeOf(r, leader) + leader + r.URL.RequestURI()
	w.Header().Set("Location", target)
	if ours {
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	w.Header().Set("Content-Type", "text/plain;charset=utf-8")
	w.WriteHeader(http.StatusTemporaryRedirect)
	io.WriteString(w, "This is standby RM. The redirect url is: "+target+"\n")
}

// schemeOf is the beginning of a link to an address, host:port, for who made the request.
func schemeOf(r *http.Request, address string) string {
	host, _, _ := net.SplitHostPort(address)
	return security.Scheme(r, host) + "://"
}

// ownScheme is the beginning of a link to where a request came.
func ownScheme(r *http.Request) string {
	if r.TLS != nil {
		return "https://"
	}
	return "http://"
}

// healthRoutes are served by every member.
var healthRoutes = []Route{
	{Method: "GET", Path: "/isActive", Right: security.Open, handle: func(q *request) {
		if q.Cluster.Leading() {
			q.text(http.StatusOK, "I am Active!")
			return
		}
		q.text(http.StatusMethodNotAllowed, "I am not Active!\n")
	}},
	{Method: "GET", Path: "/{$}", Right: security.Open, handle: func(q *request) {
		q.w.Header().Set("Location", ownScheme(q.r)+q.r.Host+"/cluster")
		q.w.Header().Set("Content-Type", "text/plain;charset=utf-8")
		q.w.WriteHeader(http.StatusFound)
	}},
	{Method: "GET", Path: "/cluster/app/{app}", Right: security.Anyone, handle: func(q *request) {
		http.Redirect(q.w, q.r, "/ws/v1/cluster/apps/"+q.id.String(), http.StatusFound)
	}},
}

func (q *request) text(code int, text string) {
	q.w.Header().Set("Content-Type", "text/plain;charset=utf-8")
	q.w.WriteHeader(code)
	io.WriteString(q.w, text)
}
