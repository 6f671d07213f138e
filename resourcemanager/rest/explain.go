package rest

import (
	"fmt"
	"strings"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
	"github.com/gohops/hops/resourcemanager/scheduler"
)

// Explanation says why an ask waits, who holds what it waits for, and what would start now. Times are milliseconds.
type Explanation struct {
	// Ask is empty for the master's own container.
	Ask string `json:"ask"`
	// Resources of each of Waiting containers, of which Together come at once; 0 when the scheduler knows nothing of them (any more).
	Resources Amount    `json:"resources"`
	Waiting   int       `json:"waiting"`
	Together  int       `json:"together"`
	Reason    rm.Reason `json:"reason"`
	// Limit and Used are of reason.resource (applications where that is empty) where a limit of reason.queue says no.
	Limit int64 `json:"limit,omitempty"`
	Used  int64 `json:"used,omitempty"`
	// Since is when it began to wait, as far as is known.
	Since    int64     `json:"since,omitempty"`
	Blockers []Blocker `json:"blockers,omitempty"`
	// WouldStart are changes with any one of which the next of it would start now.
	WouldStart []Change `json:"would_start,omitempty"`
	// Starts is when there is room at the latest, if nobody else takes it, from the known ends of what runs.
	Starts int64 `json:"starts,omitempty"`
	// Preempts are the containers that make room for it, or would when it has waited for long enough; without any NotPreempted says why.
	Preempts     []PreemptedContainer `json:"preempts,omitempty"`
	NotPreempted string               `json:"not_preempted,omitempty"`
}

// PreemptedContainer is one that makes room for others.
type PreemptedContainer struct {
	Container string `json:"container"`
	Job       string `json:"job"`
	Queue     string `json:"queue"`
	Node      string `json:"node"`
	// LostGPUSeconds is its work since it was last known to be saved.
	LostGPUSeconds float64 `json:"lost_gpu_seconds"`
}

// maxPreemptedTold bounds those that an explanation names.
const maxPreemptedTold = 100

// Blocker is a live application that holds some of what an ask waits for.
type Blocker struct {
	Job   string `json:"job"`
	User  string `json:"user"`
	Queue string `json:"queue"`
	// Resource by YARN's name, memory in bytes; empty: containers or applications.
	Resource string `json:"resource,omitempty"`
	Amount   int64  `json:"amount"`
	// Reserved: it waits itself, and the room is kept for it.
	Reserved bool `json:"reserved,omitempty"`
}

// Change is one that would let an ask start now.
type Change struct {
	// Change is members, gpus, queue, or the requirement that would be left out: island, within, label, gpu_model, nodes, excluded.
	Change  string `json:"change"`
	Members int    `json:"members,omitempty"`
	GPUs    int    `json:"gpus,omitempty"`
	Queue   string `json:"queue,omitempty"`
	Text    string `json:"text"`
}

// ExplainedJob is what GET /api/v1/jobs/{id}/explain answers.
type ExplainedJob struct {
	ID    string `json:"id"`
	User  string `json:"user"`
	Queue string `json:"queue"`
	Phase string `json:"phase"`
	// Text is the whole in one sentence.
	Text string `json:"text"`
	// Asks that wait, the master first; More are left out.
	Asks []Explanation `json:"asks"`
	More int           `json:"more,omitempty"`
	// OutOfService says of nodes that operators keep work from, and why, if something of the job waits; OutOfServiceMore are left out.
	OutOfService     []string `json:"out_of_service,omitempty"`
	OutOfServiceMore int      `json:"out_of_service_more,omitempty"`
	// Used is what its live containers have, Live their number.
	Used Amount `json:"used"`
	Live int    `json:"live"`
	// Deadline is when it is ended whatever it does; 0: there is none.
	Deadline int64 `json:"deadline,omitempty"`
}

// maxOutOfService bounds the nodes out of service that an explanation names.
const maxOutOfService = 10

// Planned is what POST /api/v1/jobs?dry_run=true answers. Nothing was submitted.
type Planned struct {
	// Queue and Priority that it would have.
	Queue    string `json:"queue"`
	Priority int    `json:"priority"`
	// Starts: all of it would be placed now.
	Starts     bool               `json:"starts"`
	Placements []PlannedContainer `json:"placements"`
	// Waits explains what would wait.
	Waits []Explanation `json:"waits,omitempty"`
}

// PlannedContainer is where a container would be placed.
type PlannedContainer struct {
	Ask    string   `json:"ask"`
	Master bool     `json:"master,omitempty"`
	Node   string   `json:"node"`
	GPUs   []string `json:"gpus,omitempty"`
}

// Explained is an explanation of the scheduler for people.
func Explained(e scheduler.Explanation) Explanation {
	out := Explanation{
		Ask: e.Ask.ID, Resources: amountOf(e.Ask.Resource), Waiting: e.Ask.Count, Together: e.Unit, Reason: e.Reason, Limit: e.Limit, Used: e.Used,
		Since: int64(e.Since), Starts: int64(e.Starts),
	}
	out.NotPreempted = e.NoPreemption
	if e.Preempts != nil {
		for _, v := range e.Preempts.Victims[:min(len(e.Preempts.Victims), maxPreemptedTold)] {
			out.Preempts = append(out.Preempts, PreemptedContainer{v.Container.String(), v.Container.Attempt.Application.String(), v.Queue, string(v.Node), v.Lost})
		}
	}
	for _, b := range e.Blockers {
		out.Blockers = append(out.Blockers, Blocker{b.App.String(), b.User, b.Queue, b.Resource, b.Amount, b.Reserved})
	}
	for _, c := range e.Changes {
		out.WouldStart = append(out.WouldStart, Change{string(c.Kind), c.Members, c.GPUs, c.Queue, changed(&e.Ask, e.Unit, c)})
	}
	return out
}

// changed says a change in words that follow "it would start now ".
func changed(ask *rm.Ask, unit int, c scheduler.Change) string {
	switch c.Kind {
	case scheduler.FewerMembers:
		return fmt.Sprintf("with %d at once in place of %d", c.Members, unit)
	case scheduler.FewerGPUs:
		return fmt.Sprintf("with gpus: %d for each container in place of %d", c.GPUs, ask.Resource.GPUs)
	case scheduler.OtherQueue:
		return "in queue " + c.Queue
	case scheduler.AnyIsland:
		return "if its GPUs need not be in one NVLink island"
	case scheduler.AnyPlace:
		return fmt.Sprintf("without within: %s", ask.Within)
	case scheduler.AnyLabel:
		return fmt.Sprintf("without the label %q", ask.Label)
	case scheduler.AnyModel:
		return "with GPUs of any model and memory"
	case scheduler.AnyAttributes:
		return fmt.Sprintf("without the attributes %v", ask.Attributes)
	case scheduler.SharedNode:
		return "if it shared its node"
	case scheduler.AnyNeighbours:
		return fmt.Sprintf("without the constraints: %v", ask.Constraints)
	case scheduler.AnyNode:
		return "if it did not insist on its nodes"
	}
	return "if it excluded no nodes"
}

// otherQueues are the queues to which a user may submit.
func (q *request) otherQueues(user string, groups []string) []string {
	var out []string
	for _, k := range q.queues().All {
		if k.Leaf() && k.State != rm.QueueStopped && len(out) < scheduler.MaxOtherQueues &&
			(k.MaySubmit(user, groups...) || k.MayAdminister(user, groups...)) {
			out = append(out, k.Path)
		}
	}
	return out
}

// explainJob says why a job waits, or what it has.
func (q *request) explainJob() {
	if !q.knownJob() {
		return
	}
	a := q.app
	out := ExplainedJob{ID: a.ID.String(), User: a.User, Queue: a.Queue, Phase: q.phase(a), Asks: []Explanation{}, Used: amountOf(a.Used), Live: a.Live, Deadline: int64(a.Deadline)}
	if !a.State.Final() {
		list, more, err := q.Cluster.Explain(q.r.Context(), a.ID, q.otherQueues(a.User, q.Door.Caller(a.User).Groups))
		if err != nil {
			q.fail(err)
			return
		}
		out.Asks, out.More = append(out.Asks, list...), more
	}
	has := fmt.Sprintf("it has %d containers with %v", a.Live, a.Used)
	switch {
	case a.State.Final():
		first, _, _ := strings.Cut(a.Diagnostics, "\n")
		if out.Text = "it has ended: " + out.Phase; first != "" {
			out.Text += ": " + first
		}
	case len(out.Asks) > 0:
		out.Text = fmt.Sprintf("%d of its asks wait; %s", len(out.Asks)+out.More, has)
		for n := range q.view.Nodes() {
			switch why := n.Why(); {
			case why == "":
			case len(out.OutOfService) < maxOutOfService:
				out.OutOfService = append(out.OutOfService, why)
			default:
				out.OutOfServiceMore++
			}
		}
	case out.Phase == "PENDING":
		out.Text = "what it asked for is looked at, or being started; " + has
	default:
		out.Text = "nothing of it waits; " + has
	}
	if a.Deadline > 0 && !a.State.Final() {
		out.Text += "; it is ended at " + a.Deadline.Time().UTC().Format(time.RFC3339)
		if a.Launched == 0 && a.Timeout > 0 {
			out.Text += fmt.Sprintf(", and at %s if it has not started by then", (a.Deadline - metadata.Time(a.Timeout.Milliseconds())).Time().UTC().Format(time.RFC3339))
		}
	}
	q.json(out)
}

// planJob answers a dry run of a submission.
func (q *request) planJob(b Submission, spec *job.Spec) {
	out, err := q.Cluster.Plan(q.r.Context(), q.caller, b, spec, q.otherQueues(q.caller.User, q.caller.Groups))
	if err != nil {
		q.fail(err)
		return
	}
	q.json(out)
}
