package rest

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/job"
	"github.com/gohops/hops/resourcemanager/state"
)

// jobChangeRoutes change a job that lives, and look at its members.
var jobChangeRoutes = []Route{
	{Method: "POST", Path: "/api/v1/jobs/{app}/resize", Right: security.Owner, handle: (*request).resizeJob},
	{Method: "GET", Path: "/api/v1/jobs/{app}/members", Right: security.Anyone, handle: (*request).jobMembers},
	{Method: "GET", Path: "/api/v1/jobs/{app}/members/{numbers}", Right: security.Anyone, handle: (*request).jobMembers},
	{Method: "DELETE", Path: "/api/v1/jobs/{app}/members/{numbers}", Right: security.Owner, handle: (*request).killMembers},
	{Method: "POST", Path: "/api/v1/jobs/{app}/members/{numbers}/retry", Right: security.Owner, handle: (*request).retryMembers},
}

// Size is how many instances a command has, of which Min at least start at once; 0: each on its own.
type Size struct {
	Min int `json:"min,omitempty"`
	Max int `json:"max"`
}

// Resized answers POST /api/v1/jobs/{app}/resize.
type Resized struct {
	ID   string `json:"id"`
	Size Size   `json:"size"`
}

// ended answers 409 for a job that has.
func (q *request) ended(a rm.State) bool {
	if a.Final() {
		problem(q.w, http.StatusConflict, "ended", fmt.Sprintf("%v has ended: %s", q.id, a))
	}
	return a.Final()
}

// spec is the document of a live job. Those that came by YARN's interface have one that no submitter has written.
func (q *request) spec() (*job.Spec, bool) {
	if !q.knownJob() || q.ended(q.app.State) {
		return nil, false
	}
	spec, err := job.Parse(q.app.Document)
	if err != nil {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "%v is no job with instances: its master decides how many containers it has", q.id))
		return nil, false
	}
	return spec, true
}

// resizeJob gives a command another number of instances.
func (q *request) resizeJob() {
	var b Size
	if !q.body(&b) {
		return
	}
	spec, ok := q.spec()
	if !ok {
		return
	}
	now := spec.SizeOf(q.app)
	size, err := spec.Resize(now, b.Min, b.Max)
	if err != nil {
		q.fail(err)
		return
	}
	if n := q.instances(); size.Min > now.Min && n > 0 && n < size.Min {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "at least %d instances at once, and %d run: these would have to end, to start together with the others; "+
			"choose a least of %d at most, or stop the job and submit it anew", size.Min, n, n))
		return
	}
	reason := fmt.Sprintf("%s to %d instances by %s", rm.Resized, size.Max, q.caller.User)
	if ended, err := q.Cluster.ResizeJob(q.r.Context(), q.id, size, reason); err != nil {
		q.fail(err)
	} else if !q.ended(ended) {
		q.json(Resized{q.id.String(), Size{size.Min, size.Max}})
	}
}

// instances is how many of a command live.
func (q *request) instances() (n int) {
	for _, c := range q.view.Containers(q.id) {
		if c.Live() && !c.Master {
			n++
		}
	}
	return n
}

// Member is one of an array, or an instance of a command.
type Member struct {
	Number int `json:"number"`
	// State is WAITING, RUNNING, SUCCEEDED, FAILED or KILLED. One that has failed may be run again.
	State string `json:"state"`
	// Containers are those that it has had, as far as they are remembered, oldest first.
	Containers []JobContainer `json:"containers,omitempty"`
}

// The states of members.
const (
	memberWaiting   = "WAITING"
	memberRunning   = "RUNNING"
	memberSucceeded = "SUCCEEDED"
	memberFailed    = "FAILED"
	memberKilled    = "KILLED"
)

// memberState is the state of a member by its last container, nil where it has had none, and what is wished of it.
func memberState(a *rm.Application, number int, last *rm.Container) string {
	m := a.MemberOf(int32(number))
	switch {
	case last != nil && last.Live() && last.Started > 0:
		return memberRunning
	case last != nil && !last.Live() && last.Exit == rm.ExitSuccess, a.Succeeded.Has(number):
		return memberSucceeded
	case m.Killed || last != nil && last.StopStatus == rm.ExitKilledByResourceManager && last.ID.Number > m.Forgiven:
		return memberKilled
	case last == nil || last.Live() || last.ID.Number <= m.Forgiven:
		return memberWaiting
	}
	return memberFailed
}

// byNumber are the containers of a job by the number of their instance, oldest first.
func byNumber(view *state.View, id rm.ApplicationID) map[int][]*rm.Container {
	out := map[int][]*rm.Container{}
	for _, c := range view.Containers(id) {
		if !c.Master && c.Instance >= 0 {
			out[c.Instance] = append(out[c.Instance], c)
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b *rm.Container) int { return int(a.ID.Number - b.ID.Number) })
	}
	return out
}

// lastOf is the last of some containers; nil: there is none.
func lastOf(list []*rm.Container) *rm.Container {
	if len(list) == 0 {
		return nil
	}
	return list[len(list)-1]
}

// named are the numbers that the path names, of those that there are; without a name they are all.
func (q *request) named(numbers []int) ([]int, bool) {
	text := q.r.PathValue("numbers")
	if text == "" {
		return numbers, true
	}
	ranges, err := job.ParseRanges(text)
	if err == nil {
		numbers, err = job.In(ranges, numbers)
	}
	if err != nil {
		q.fail(err)
		return nil, false
	}
	return numbers, true
}

// jobMembers shows the members of an array, or the instances of a command. Of a job that has ended they are those that have begun.
func (q *request) jobMembers() {
	if !q.knownJob() {
		return
	}
	containers := byNumber(q.view, q.id)
	var numbers []int
	if q.app.State.Final() {
		for n := range containers {
			numbers = append(numbers, n)
		}
		slices.Sort(numbers)
	} else {
		spec, ok := q.spec()
		if !ok {
			return
		}
		if spec.Kind != rm.KindCommand {
			q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "%v is of kind %s, and has no members", q.id, spec.Kind))
			return
		}
		if spec.Array == nil {
			spec.Instances = spec.SizeOf(q.app).Max
		}
		numbers = spec.Numbers()
	}
	numbers, ok := q.named(numbers)
	if !ok {
		return
	}
	show := q.containerOf(q.app)
	stream(q, `{"members":[`, `]}`, "", func(yield func(Member) bool) {
		for _, n := range numbers {
			m := Member{Number: n, State: memberState(q.app, n, lastOf(containers[n]))}
			for _, c := range containers[n] {
				m.Containers = append(m.Containers, show(c))
			}
			if !yield(m) {
				return
			}
		}
	})
}

func (q *request) killMembers() {
	why := fmt.Sprintf("killed by %s", q.caller.User)
	if r := q.r.URL.Query().Get("reason"); r != "" {
		why += ": " + r
	}
	q.changeMembers(false, why)
}

func (q *request) retryMembers() { q.changeMembers(true, "") }

// changeMembers ends members of an array, or has them run again, and answers what they do then.
func (q *request) changeMembers(retry bool, reason string) {
	spec, ok := q.spec()
	if !ok {
		return
	}
	if spec.Array == nil {
		q.fail(metadata.Errorf(metadata.ErrInvalidArgument, "%v is no array, and its instances end together: stop the job, or resize it", q.id))
		return
	}
	numbers, ok := q.named(spec.Numbers())
	if !ok {
		return
	}
	ended, err := q.Cluster.ChangeMembers(q.r.Context(), q.id, numbers, retry, reason)
	if err != nil {
		q.fail(err)
		return
	}
	view := q.Cluster.View()
	a := view.Application(q.id)
	if q.ended(ended) || a == nil {
		return
	}
	containers := byNumber(view, q.id)
	stream(q, `{"members":[`, `]}`, "", func(yield func(Member) bool) {
		for _, n := range numbers {
			if !yield(Member{Number: n, State: memberState(a, n, lastOf(containers[n]))}) {
				return
			}
		}
	})
}
