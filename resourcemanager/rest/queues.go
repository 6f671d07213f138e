package rest

import (
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// queueRoutes are those of queues, ours and YARN's.
var queueRoutes = []Route{
	{Method: "GET", Path: "/api/v1/queues", Right: security.Anyone, handle: (*request).listQueues},
	{Method: "PUT", Path: "/api/v1/queues", Right: security.Superuser, handle: (*request).putQueues},
	{Method: "PATCH", Path: "/api/v1/queues", Right: security.Superuser, handle: (*request).patchQueues},
	{Method: "GET", Path: "/api/v1/queues/{queue}", Right: security.Anyone, handle: (*request).showQueue},
	{Method: "PUT", Path: "/api/v1/queues/{queue}", Right: security.Superuser, handle: (*request).putQueue},
	{Method: "PATCH", Path: "/api/v1/queues/{queue}", Right: security.Superuser, handle: (*request).patchQueue},
	{Method: "DELETE", Path: "/api/v1/queues/{queue}", Right: security.Superuser, handle: (*request).deleteQueue},
	{Method: "GET", Path: "/ws/v1/cluster/scheduler-conf", Right: security.Superuser, handle: (*request).schedulerConf, refusal: onlyAdmins},
	{Method: "PUT", Path: "/ws/v1/cluster/scheduler-conf", Right: security.Superuser, handle: (*request).putSchedulerConf, refusal: onlyAdmins},
	{Method: "POST", Path: "/ws/v1/cluster/scheduler-conf/validate", Right: security.Superuser, handle: (*request).validateSchedulerConf, refusal: onlyAdmins},
	{Method: "GET", Path: "/ws/v1/cluster/scheduler-conf/version", Right: security.Superuser, handle: (*request).schedulerConfVersion, refusal: onlyAdmins},
	{Method: "GET", Path: "/ws/v1/cluster/scheduler-conf/format", Right: security.Superuser, handle: (*request).formatSchedulerConf, refusal: onlyAdmins},
	{Method: "GET", Path: "/ws/v1/cluster/queues/{queue}/access", Right: security.Anyone, handle: (*request).queueAccess},
}

// onlyAdmins is YARN's refusal.
const onlyAdmins = "Only admins can carry out this operation."

// QueueView is a queue as GET /api/v1/queues shows it. Shares are of the cluster, 0..1.
type QueueView struct {
	Path  string        `json:"path"`
	State rm.QueueState `json:"state"`
	// Created: the queue was made for its applications and is gone with them.
	Created bool `json:"created,omitempty"`
	// Capacity and Max are the parts of the cluster that Guaranteed and Maximum are of the resource of which they are most.
	Capacity float64 `json:"capacity"`
	Max      float64 `json:"max"`
	// Guaranteed and Maximum are what the queue is guaranteed of the present nodes, and the most that it may use.
	Guaranteed   Amount  `json:"guaranteed"`
	Maximum      Amount  `json:"maximum"`
	UsedShare    float64 `json:"used_share"`
	Used         Amount  `json:"used"`
	Pending      Amount  `json:"pending"`
	Applications int     `json:"applications"`
	Running      int     `json:"running"`
	// Config are the words of the configuration, without those of the queues below.
	Config   rm.QueueConfig `json:"config"`
	Submit   []string       `json:"acl_submit,omitempty"`
	Children []QueueView    `json:"children,omitempty"`
}

// QueuesView is the answer of GET /api/v1/queues.
type QueuesView struct {
	Root QueueView `json:"root"`
	// Version counts the changes; 0: the queues are those of the leader's file. By made the last one, at Since, in milliseconds.
	Version uint64 `json:"version,omitempty"`
	By      string `json:"by,omitempty"`
	Since   int64  `json:"since,omitempty"`
	Hash    string `json:"hash"`
}

// queueState is DRAINING for a stopped queue that is not empty, as in YARN.
func queueState(k *rm.Queue, u *queueUse) rm.QueueState {
	if k.State == rm.QueueStopped && u.apps > 0 {
		return rm.QueueDraining
	}
	return k.State
}

func (q *request) queueViews() func(k *rm.Queue) QueueView {
	p := q.queuePage()
	config := q.queues().Config()
	var show func(k *rm.Queue) QueueView
	show = func(k *rm.Queue) QueueView {
		u := p.uses[k]
		_, _, ofAll, atMost := p.shares(k)
		v := QueueView{
			Path: k.Path, State: queueState(k, u), Created: k.Created, Capacity: ofAll, Max: atMost, UsedShare: dominant(u.used, p.total),
			Guaranteed: amountOf(p.low[k]), Maximum: amountOf(p.high[k]),
			Used: amountOf(u.used), Pending: amountOf(u.pending), Applications: u.apps, Running: u.active, Submit: k.Submit,
		}
		if words, ok := config.QueueAt(k.Path); ok {
			words.Children, words.Mapping = nil, nil
			v.Config = words
		}
		if k.Parent == nil {
			v.Config.Mapping = config.Mapping
		}
		for _, c := range k.Children {
			v.Children = append(v.Children, show(c))
		}
		return v
	}
	return show
}

func (q *request) listQueues() {
	version, by, since := q.view.QueuesVersion()
	q.json(QueuesView{q.queueViews()(q.queues().Root), version, by, int64(since), q.queues().Hash()})
}

func (q *request) showQueue() {
	k := q.queues().Find(q.r.PathValue("queue"))
	if k == nil {
		q.fail(metadata.Errorf(metadata.ErrNotExist, "there is no queue %q", q.r.PathValue("queue")))
		return
	}
	q.json(q.queueViews()(k))
}

// queueOptions reads what changes of queues have in common: ?dry_run=true, ?force=true, ?version=.
func (q *request) queueOptions() (o QueueOptions, ok bool) {
	if o.DryRun, ok = q.truth("dry_run"); !ok {
		return o, false
	}
	if o.Force, ok = q.truth("force"); !ok {
		return o, false
	}
	if text := q.r.URL.Query().Get("version"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n == 0 {
			q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "version: %.40q is no number from 1 on", text))
			return o, false
		}
		o.Version = n
	}
	return o, q.operated()
}

// changeQueues ends a request with what a change did.
func (q *request) changeQueues(change func(rm.QueueConfig) (rm.QueueConfig, error)) {
	o, ok := q.queueOptions()
	if !ok {
		return
	}
	done, err := q.Operator.ChangeQueues(q.r.Context(), q.caller, o, change)
	q.answered(done, err)
}

// words reads a body that is the words of a queue, or of the whole tree.
func (q *request) words() (c rm.QueueConfig, body []byte, ok bool) {
	body, err := io.ReadAll(q.r.Body)
	if err == nil {
		c, err = rm.ParseQueueConfig(body)
	}
	if err != nil {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "%v", err))
	}
	return c, body, err == nil
}

func (q *request) putQueues() {
	if c, _, ok := q.words(); ok {
		q.changeQueues(func(rm.QueueConfig) (rm.QueueConfig, error) { return c, nil })
	}
}

// queuePath is the full path of the queue that a request is about; one that there is not is taken as it is.
func (q *request) queuePath(name string) string {
	if k := q.queues().Find(name); k != nil {
		return k.Path
	}
	return name
}

func (q *request) putQueue() {
	words, _, ok := q.words()
	if !ok {
		return
	}
	path := q.queuePath(q.r.PathValue("queue"))
	q.changeQueues(func(c rm.QueueConfig) (rm.QueueConfig, error) {
		return c.Edit(path, func(old rm.QueueConfig, _ bool) (rm.QueueConfig, bool, error) {
			next := words
			if next.Children == nil {
				next.Children = old.Children
			}
			return next, true, nil
		})
	})
}

func (q *request) patchQueue() {
	body, err := io.ReadAll(q.r.Body)
	if err != nil {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "%v", err))
		return
	}
	path := q.queuePath(q.r.PathValue("queue"))
	q.changeQueues(func(c rm.QueueConfig) (rm.QueueConfig, error) { return c.Edit(path, patching(path, body, false)) })
}

// patching changes a queue by a patch; create: it may be new.
func patching(path string, patch []byte, create bool) func(rm.QueueConfig, bool) (rm.QueueConfig, bool, error) {
	return func(old rm.QueueConfig, exists bool) (rm.QueueConfig, bool, error) {
		if !exists && !create {
			return old, false, metadata.Errorf(metadata.ErrNotExist, "there is no queue %q", path)
		}
		next, err := old.Patch(patch)
		return next, true, err
	}
}

// patchQueues changes several queues at once, as capacities of siblings have to be: the body maps paths to patches, null takes a queue
// away.
func (q *request) patchQueues() {
	body, err := io.ReadAll(q.r.Body)
	patches := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(body, &patches)
	}
	if err != nil || len(patches) == 0 {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "the body is an object of paths of queues with their changes, as {\"root.a\": {\"capacity\": \"40%%\"}, \"root.b\": null}"))
		return
	}
	named := map[string]string{} // by path, what it is called in the body
	for _, name := range slices.Sorted(maps.Keys(patches)) {
		path := q.queuePath(name)
		if other, twice := named[path]; twice {
			q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "%.100q and %.100q are one queue, %s: give all its changes under one of them", other, name, path))
			return
		}
		named[path] = name
	}
	o, ok := q.queueOptions()
	if !ok {
		return
	}
	done, err := q.Operator.ChangeQueues(q.r.Context(), q.caller, o, func(c rm.QueueConfig) (rm.QueueConfig, error) {
		for _, path := range slices.Sorted(maps.Keys(named)) { // parents before children
			patch := patches[named[path]]
			edit := patching(path, patch, true)
			if string(patch) == "null" {
				edit = removing(path, o.Force)
			}
			if c, err = c.Edit(path, edit); err != nil {
				return c, err
			}
		}
		return c, nil
	})
	q.answered(done, err)
}

// removing takes a queue away that is stopped.
func removing(path string, force bool) func(rm.QueueConfig, bool) (rm.QueueConfig, bool, error) {
	return func(old rm.QueueConfig, exists bool) (rm.QueueConfig, bool, error) {
		switch {
		case !exists:
			return old, false, metadata.Errorf(metadata.ErrNotExist, "there is no queue %q", path)
		case old.State != rm.QueueStopped && !force && path != "root": // which Edit refuses
			return old, false, metadata.Errorf(metadata.ErrExist, "queue %s takes applications: stop it first (state: %s), or force the change", path, rm.QueueStopped)
		}
		return old, false, nil
	}
}

func (q *request) deleteQueue() {
	path := q.queuePath(q.r.PathValue("queue"))
	o, ok := q.queueOptions()
	if !ok {
		return
	}
	done, err := q.Operator.ChangeQueues(q.r.Context(), q.caller, o, func(c rm.QueueConfig) (rm.QueueConfig, error) {
		return c.Edit(path, removing(path, o.Force))
	})
	q.answered(done, err)
}

// queueAccess says whether a user may do something in a queue, as YARN's RMWebServices.checkUserAccessToQueue. All values are quoted.
func (q *request) queueAccess() {
	p := q.r.URL.Query()
	name, user, kind := q.r.PathValue("queue"), p.Get("user"), p.Get("queue-acl-type")
	k := q.queues().Find(name)
	switch {
	case user == "" || len(user) > security.MaxUserName:
		q.badRequest("java.lang.Exception: user must be specified")
	case k == nil:
		q.badRequest("java.lang.Exception: Specified queue (" + name + ") is not found")
	case kind != "SUBMIT_APPLICATIONS" && kind != "ADMINISTER_QUEUE":
		q.badRequest("java.lang.Exception: Specified queueAclType (" + kind + ") is not a valid type. Valid types are: [SUBMIT_APPLICATIONS, ADMINISTER_QUEUE]")
	case !q.caller.Superuser && !k.MayAdminister(q.caller.User, q.caller.Groups...):
		q.forbidden("User=" + q.caller.User + " doesn't have access to queue=" + name + " with acl-type=ADMINISTER_QUEUE")
	default:
		groups := q.Door.Caller(user).Groups
		allowed := k.MayAdminister(user, groups...) || kind == "SUBMIT_APPLICATIONS" && k.MaySubmit(user, groups...)
		why := ""
		if !allowed {
			why = "User=" + user + " doesn't have access to queue=" + name + " with acl-type=" + kind
		}
		q.json(struct {
			Allowed     string `json:"allowed"`
			User        string `json:"user"`
			Diagnostics string `json:"diagnostics"`
		}{strconv.FormatBool(allowed), user, why})
	}
}

// plain answers text, under YARN's content type.
func (q *request) plain(code int, text string) {
	q.w.Header().Set("Content-Type", "application/json;charset=utf-8")
	q.w.WriteHeader(code)
	_, _ = io.WriteString(q.w, text)
}
