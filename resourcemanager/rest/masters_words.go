package rest

import (
	"fmt"
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
)

// The documents of what masters ask and are told. Times are milliseconds since 1970.

// Registration is what a master says of itself when it begins.
type Registration struct {
	// HTTP is host:port of the master's HTTP server on its own node, which users reach under /proxy; empty: it has none.
	HTTP string `json:"http,omitempty"`
	// Certificate is the SHA-256 of that server's certificate in hexadecimal; empty: it is plain, and on loopback.
	Certificate string `json:"http_certificate,omitempty"`
	TrackingURL string `json:"tracking_url,omitempty"`
}

// Registered answers a Registration.
type Registered struct {
	// Maximum is the most that one container can get of each resource.
	Maximum Amount `json:"maximum"`
	Queue   string `json:"queue"`
	// SilenceMs is how long the master may ask nothing before it is ended.
	SilenceMs int64 `json:"silence_ms"`
	// Containers live: of earlier attempts, and of this one when it registers again.
	Containers []MasterContainer `json:"containers"`
}

// MasterRequest is what a master wants.
type MasterRequest struct {
	// Asks replace those of the same id.
	Asks []WantedAsk `json:"asks,omitempty"`
	// Cancel names asks that are wanted no more.
	Cancel []string `json:"cancel,omitempty"`
	// Release names containers that are to end.
	Release []string `json:"release,omitempty"`
	// Acknowledged: events up to it are handled, and grants after it count against the asks of this request.
	Acknowledged uint64 `json:"acknowledged,omitempty"`
	// Progress is 0 to 1, as shown to users.
	Progress *float64 `json:"progress,omitempty"`
}

// WantedAsk is a wish for containers that are all alike. Without a launch its containers are held: they are granted and wait for theirs.
type WantedAsk struct {
	// ID is the master's own choice, up to 255 bytes.
	ID string `json:"id"`
	// Count is how many are wanted beyond those that the master knows to be granted; a gang MIN..MAX says it, too.
	Count int `json:"count,omitempty"`
	// Priority: smaller is served first.
	Priority int `json:"priority,omitempty"`
	// Resources of each, with what their GPUs and nodes must be like, as in a job.
	Resources job.Resources `json:"resources,omitzero"`
	// Gang is true: all at once or none; a number: so many at once at least; or "MIN..MAX", and MAX is the count.
	Gang job.Gang `json:"gang,omitzero"`
	// Placement says beside what they may be, as in a job.
	Placement job.Placement `json:"placement,omitzero"`
	// Near says where its data lies; with strict, its hosts and racks are required.
	Near job.Near `json:"near,omitzero"`
	// Nodes are preferred, and required if strict.
	Nodes  []string `json:"nodes,omitempty"`
	Strict bool     `json:"strict,omitempty"`
	// Excluded are nodes that are not wanted.
	Excluded []string `json:"excluded_nodes,omitempty"`
	// Instances are numbers that the containers get, one for each of count.
	Instances []int32       `json:"instances,omitempty"`
	Launch    *MasterLaunch `json:"launch,omitempty"`
}

// MasterLaunch is what runs in a container.
type MasterLaunch struct {
	Argv []string `json:"argv,omitempty"`
	// Run is a shell command in place of argv.
	Run       string            `json:"run,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Artifacts []rm.Artifact     `json:"artifacts,omitempty"`
	// Grace lies between SIGTERM and SIGKILL.
	Grace job.Duration `json:"grace,omitempty"`
	// Fencing is none (default) or strict, as in a job.
	Fencing string `json:"fencing,omitempty"`
}

// wanted is the one place where an ask of REST becomes one of ours. What is checked for every wire is not checked here.
func (a *WantedAsk) wanted() (rm.WantedAsk, error) {
	bad := func(format string, args ...any) (rm.WantedAsk, error) {
		return rm.WantedAsk{}, metadata.Errorf(metadata.ErrInvalidArgument, "ask %.100q: "+format, append([]any{a.ID}, args...)...)
	}
	if err := a.Resources.Check(); err != nil {
		return bad("%v", err)
	}
	count := a.Count
	switch {
	case a.Gang.Max > 0 && count == 0:
		count = a.Gang.Max
	case a.Gang.Max > 0 && count != a.Gang.Max:
		return bad("gang is of %d, but count says %d", a.Gang.Max, count)
	}
	out := rm.WantedAsk{Ask: rm.Ask{
		ID: a.ID, Priority: a.Priority, Count: count, Resource: a.Resources.Amount(), Gang: a.Gang.Size(count), Model: a.Resources.Model, Island: a.Resources.Island,
		Label: a.Resources.Label, Nodes: a.Nodes, Strict: a.Strict, Excluded: a.Excluded, Instances: a.Instances, Held: a.Launch == nil,
		GPUMemory: int64(a.Resources.GPUMemory), Within: a.Resources.Within,
	}}
	var err error
	if out.Placement, err = a.Placement.Words(); err != nil {
		return bad("placement: %v", err)
	}
	if out.Near, err = a.Near.Words(); err != nil {
		return bad("%v", err)
	}
	if a.Launch != nil {
		if out.Run, err = a.Launch.launch(); err != nil {
			return bad("%v", err)
		}
	}
	return out, nil
}

func (l *MasterLaunch) launch() (*rm.Launch, error) {
	switch {
	case l.Run != "" && len(l.Argv) > 0:
		return nil, fmt.Errorf("argv and run: give one of them")
	case !slices.Contains([]string{"", job.FencingNone, job.FencingStrict}, l.Fencing):
		return nil, fmt.Errorf("fencing: %.40q is neither none nor strict", l.Fencing)
	}
	spec := job.Spec{Argv: l.Argv, Run: l.Run, Env: l.Env, Artifacts: l.Artifacts, Grace: l.Grace, Fencing: l.Fencing}
	launch := spec.Launch(nil)
	return &launch, nil
}

// Asks are what an application waits for.
type Asks struct {
	Asks []AskState `json:"asks"`
}

// AskState is an ask that waits.
type AskState struct {
	ID        string `json:"id"`
	Count     int    `json:"count"`
	Priority  int    `json:"priority"`
	Resources Amount `json:"resources"`
	// Held: its containers will wait for their launch.
	Held bool `json:"held"`
	// Pending is why it waits.
	Pending *rm.Reason `json:"pending,omitempty"`
}

// AskSize is how many containers an ask still wants.
type AskSize struct {
	Count int `json:"count"`
}

// Launches say what runs in containers that are held.
type Launches struct {
	Launches []Launch `json:"launches"`
}

// Launch is what runs in each of some containers.
type Launch struct {
	Containers []string     `json:"containers"`
	Launch     MasterLaunch `json:"launch"`
}

// Launched answers Launches, container by container.
type Launched struct {
	Launches []LaunchOutcome `json:"launches"`
}

// LaunchOutcome says what became of one.
type LaunchOutcome struct {
	Container string `json:"container"`
	// Problem is why it stays as it was; absent: it is launched, or was before with the same.
	Problem *Problem `json:"problem,omitempty"`
}

// Result is how an application ends.
type Result struct {
	// FinalStatus is SUCCEEDED, FAILED or KILLED.
	FinalStatus rm.FinalStatus `json:"final_status"`
	Diagnostics string         `json:"diagnostics,omitempty"`
	TrackingURL string         `json:"tracking_url,omitempty"`
}

// MasterContainers is a page of an application's containers, in the order of their grants.
type MasterContainers struct {
	Containers []MasterContainer `json:"containers"`
	// More: there is another page, after the last of these.
	More bool `json:"more"`
}

// MasterContainer is a container as its master is told of it.
type MasterContainer struct {
	ID  string `json:"id"`
	Ask string `json:"ask"`
	// Instance is its number, where its ask gives numbers.
	Instance *int   `json:"instance,omitempty"`
	Node     string `json:"node"`
	Host     string `json:"host,omitempty"`
	NodeHTTP string `json:"node_http,omitempty"`
	// State is HELD while it waits for its launch, and one of YARN's then.
	State     string   `json:"state"`
	Resources Amount   `json:"resources"`
	GPUs      []string `json:"gpus,omitempty"`
	// Devices describe its GPUs, in events.
	Devices []MasterGPU `json:"devices,omitempty"`
	Granted int64       `json:"granted"`
	Started int64       `json:"started,omitempty"`
	// Finished, ExitStatus (YARN's numbers) and Diagnostics are of one that has ended.
	Finished    int64  `json:"finished,omitempty"`
	ExitStatus  *int   `json:"exit_status,omitempty"`
	Diagnostics string `json:"diagnostics,omitempty"`
	// LogDir is the directory of the filesystem for its logs.
	LogDir string `json:"log_dir,omitempty"`
	// Token is the secret that it presents to its master; for the master alone.
	Token string `json:"token,omitempty"`
}

// MasterGPU is one device.
type MasterGPU struct {
	UUID   string `json:"uuid"`
	Model  string `json:"model"`
	Memory int64  `json:"memory"`
	Minor  int    `json:"minor"`
	// Island: devices of a node with the same one are joined by NVLink.
	Island string `json:"island,omitempty"`
	// Profile is that of a MIG instance, Parent the UUID of its GPU.
	Profile string `json:"profile,omitempty"`
	Parent  string `json:"parent,omitempty"`
}

func (q *request) masterContainerOf(c *rm.MasterContainer) MasterContainer {
	out := MasterContainer{
		ID: c.ID.String(), Ask: c.Ask, Node: string(c.Node), Host: c.Host, NodeHTTP: c.NodeHTTP, State: string(c.State), Resources: amountOf(c.Resource),
		GPUs: c.GPUs, Granted: int64(c.Granted), Started: int64(c.Started), Finished: int64(c.Finished), LogDir: c.LogDir,
	}
	if c.Instance >= 0 {
		out.Instance = &c.Instance
	}
	if c.Held() {
		out.State = "HELD"
	}
	if !c.Live() {
		exit := int(c.Exit)
		out.ExitStatus, out.Diagnostics = &exit, c.Diagnostics
	}
	if q.master {
		out.Token = c.Token
	}
	for _, g := range c.Devices {
		out.Devices = append(out.Devices, MasterGPU{g.UUID, g.Model, g.Memory, g.Minor, g.Island, g.Profile, g.Parent})
	}
	return out
}

// Events answers GET events.
type Events struct {
	Events []Event `json:"events"`
	// Last is what to say next as after.
	Last uint64 `json:"last"`
}

// Event is something that happened to an application. One of the others is set, as its type says.
type Event struct {
	// Type is granted, completed, preempt, node_lost, pending, managers, or gone: what it was about is forgotten.
	Type string `json:"type"`
	// Sequence numbers what is to be acknowledged; absent: a hint, which is not repeated.
	Sequence  uint64           `json:"sequence,omitempty"`
	Container *MasterContainer `json:"container,omitempty"`
	Preempt   *Preempt         `json:"preempt,omitempty"`
	Node      string           `json:"node,omitempty"`
	// Pending is why an ask waits.
	Pending *Waiting `json:"pending,omitempty"`
	// Managers are the HTTP addresses of all resource managers.
	Managers []string `json:"managers,omitempty"`
}

// Preempt tells that a container is to leave its node.
type Preempt struct {
	Container string `json:"container"`
	// Deadline is when it is ended, unless it says before that its work is saved; 0: never.
	Deadline int64  `json:"deadline"`
	Reason   string `json:"reason"`
	// Withdrawn: it may stay after all.
	Withdrawn bool `json:"withdrawn,omitempty"`
}

// Saved says up to which step containers have saved their work, a number of the application's own.
type Saved struct {
	Step int64 `json:"step"`
}

func (q *request) event(e rm.MasterEvent) Event {
	out := Event{Type: "gone", Sequence: e.Sequence}
	container := func(c *rm.MasterContainer) *MasterContainer { k := q.masterContainerOf(c); return &k }
	switch {
	case e.Granted != nil:
		out.Type, out.Container = "granted", container(e.Granted)
	case e.Completed != nil:
		out.Type, out.Container = "completed", container(e.Completed)
	case e.Preempt != nil:
		out.Type, out.Preempt = "preempt", &Preempt{e.Preempt.Container.String(), int64(e.Preempt.Deadline), e.Preempt.Reason, e.Preempt.Withdrawn}
	case e.NodeLost != "":
		out.Type, out.Node = "node_lost", string(e.NodeLost)
	case e.Pending != nil:
		out.Type, out.Pending = "pending", &Waiting{e.Pending.Ask, e.Pending.Reason}
	case e.Managers != nil:
		out.Type, out.Managers = "managers", e.Web
	}
	return out
}
