package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/scheduler"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// grantBytes bounds the groups of one command, and so any group, below the largest that the Raft group takes
// (raftstore.MaxCommand).
const grantBytes = raftstore.MaxCommand * 3 / 4

// What one slice of planning may grant and look at: milliseconds. Commits go on beside it, so many at a time.
const (
	sliceContainers = 1_000
	sliceSteps      = 10_000
	commitsAtOnce   = 2
)

// newsPause lies between two looks at the reasons of those whose masters listen.
const newsPause = 250 * time.Millisecond

// maxReasons is for how many sorts of asks of one application nodes are looked at in one answer: for the others a reason that was found
// before has to do, or that there is no room.
const maxReasons = 100

// planner is the scheduler of a reign: the model, and what has changed that the model was not told of.
type planner struct {
	changes sync.Mutex // guards the next three
	all     bool
	nodes   map[rm.NodeID]bool
	apps    map[rm.ApplicationID]bool

	answers sync.Mutex // is held by who collects reasons; taken before mu

	mu     sync.Mutex // guards everything below
	model  *scheduler.Model
	queues *rm.Queues
	// preempt is what the model was told of preemption.
	preempt scheduler.Preemption
	// told are the reasons of applications whose masters listen, as they were looked at last.
	told map[rm.ApplicationID][]scheduler.Waiting
	// failed are grants that could not be recorded, by ask.
	failed map[rm.ApplicationID]map[string]rm.Reason
	// heldBack are the applications whose asks the model was not told of because of what others of their user have not acknowledged.
	heldBack map[rm.ApplicationID]bool
}

// note keeps what the model has to be told of.
func (p *planner) note(e state.Effects) {
	p.changes.Lock()
	defer p.changes.Unlock()
	if e.Restored {
		p.all = true
	}
	if p.nodes == nil {
		p.nodes, p.apps = map[rm.NodeID]bool{}, map[rm.ApplicationID]bool{}
	}
	for id := range e.Nodes {
		p.nodes[id] = true
	}
	for id := range e.Applications {
		p.apps[id] = true
	}
}

// again has the applications told anew that are held back: what ends that is acknowledged for others.
func (p *planner) again() {
	p.mu.Lock()
	held := maps.Clone(p.heldBack)
	p.mu.Unlock()
	p.note(state.Effects{Applications: held})
}

// stir tells the scheduler that what the leader knows of a node is another. r.mu is held.
func (r *reign) stir(id rm.NodeID) {
	r.plans.note(state.Effects{Nodes: map[rm.NodeID]bool{id: true}})
	kick(r.wake)
}

// commitment is some groups of a plan, which the model has assumed, and what became of them.
type commitment struct {
	model   *scheduler.Model
	groups  []grant
	granted int
	err     error
}

// schedule plans whenever something changed, slice by slice, and commits what it planned while it plans the next: grants are assumed
// in the model until the state says what became of them. The state refuses what does not hold any more; then it is planned again.
func (r *reign) schedule() {
	const shortest, longest = 20 * time.Millisecond, time.Second
	var (
		committed = make(chan commitment, commitsAtOnce)
		backlog   []commitment // not proposed yet
		running   int          // commits
		more      bool         // there is something to plan
		pause     = shortest
		resting   <-chan time.Time // after a refusal, so that no busy loop comes of it
		news      <-chan time.Time // there are new reasons to be told of
		telling   chan bool        // they are being told
		told      time.Time        // since then
	)
	var wg sync.WaitGroup
	defer wg.Wait()
	ticker := pace.NewBeat(time.Second)
	defer ticker.Stop()
	r.plans.reset()
	take := func(done commitment) {
		running--
		r.settled(done)
		if n := len(done.groups) - done.granted; n > 0 {
			r.s.log.Debug("grants were refused", "groups", n, "of", len(done.groups))
			resting = time.After(pause)
			pause = min(2*pause, longest)
		} else {
			pause = shortest
			more = true
		}
	}
	for {
		for running < commitsAtOnce && len(backlog) > 0 {
			next := backlog[0]
			backlog = backlog[1:]
			running++
			wg.Go(func() {
				start := time.Now()
				next.granted, next.err = r.commit(next.groups)
				r.s.figures.commits.add(time.Since(start))
				committed <- next
			})
		}
		if more && resting == nil && len(backlog) < commitsAtOnce {
			select {
			case <-r.ctx.Done():
				return
			case done := <-committed:
				take(done)
				continue
			default:
			}
			start := time.Now()
			view, model, plan := r.plan(r.s.clock.moment().State)
			r.s.figures.passes.add(time.Since(start))
			more = plan.More
			for _, groups := range r.entries(view, plan.Groups) {
				backlog = append(backlog, commitment{model: model, groups: groups})
			}
			if !more && news == nil && telling == nil {
				news = time.After(0)
			}
			continue
		}
		select {
		case <-r.ctx.Done():
			return
		case <-r.wake:
			more = true
		case done := <-committed:
			take(done)
		case <-resting:
			resting, more = nil, true
		case <-ticker.C: // reservations depend on the time
			ticker.Next()
			r.plans.again()
			more = true
		case <-news:
			news = nil
			if more {
				news = time.After(newsPause)
				continue
			}
			told = time.Now()
			done := make(chan bool, 1)
			telling = done
			wg.Go(func() { done <- r.tellReasons() })
		case listened := <-telling:
			telling = nil
			if listened {
				news = time.After(max(newsPause, restAfter(time.Since(told)))) // and again, for what changed meanwhile, or without a plan
			}
		}
	}
}

func (p *planner) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.model, p.queues = nil, nil
	p.told, p.failed = map[rm.ApplicationID][]scheduler.Waiting{}, map[rm.ApplicationID]map[string]rm.Reason{}
	p.heldBack = map[rm.ApplicationID]bool{}
}

// plan tells the model what has changed and plans one slice. The view is what it was told of. Whoever tells it next may put another model in
// its place, which has assumed nothing of the plan.
func (r *reign) plan(now metadata.Time) (*state.View, *scheduler.Model, scheduler.Plan) {
	r.plans.mu.Lock()
	defer r.plans.mu.Unlock()
	view, model := r.tell(), r.plans.model
	return view, model, model.Plan(scheduler.Budget{Containers: sliceContainers, Bytes: r.s.config.grantBytes, Steps: sliceSteps}, now)
}

// settled takes back what the model assumed of groups, after it was told what became of them.
func (r *reign) settled(done commitment) {
	if done.err != nil && r.ctx.Err() == nil && !errors.Is(done.err, metadata.ErrStandby) {
		r.s.log.Warn("grants were not committed", "groups", len(done.groups), "err", done.err)
	}
	p := &r.plans
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.model != done.model {
		return
	}
	view := r.tell()
	numbers := make([]int64, 0, len(done.groups))
	for _, g := range done.groups {
		numbers = append(numbers, g.Number)
		switch {
		case done.err != nil && !known(view, g.App): // nobody would take it off
		case done.err != nil:
			if p.failed[g.App] == nil {
				p.failed[g.App] = map[string]rm.Reason{}
			}
			p.failed[g.App][g.Ask] = rm.Reason{
				Code: rm.ReasonNotRecorded, Text: fmt.Sprintf("there is room, but the grant could not be recorded: %v", done.err),
			}
		case p.failed[g.App] != nil:
			delete(p.failed[g.App], g.Ask)
		}
	}
	p.model.Settle(numbers...)
}

// tell tells the model what has changed. p.mu is held.
func (r *reign) tell() *state.View {
	p := &r.plans
	p.changes.Lock()
	all, nodes, apps := p.all || p.model == nil, p.nodes, p.apps
	p.all, p.nodes, p.apps = false, map[rm.NodeID]bool{}, map[rm.ApplicationID]bool{}
	p.changes.Unlock()
	view := r.s.state.View() // which has all of them
	queues := r.s.Queues()
	config := scheduler.Config{Queues: queues, GroupBytes: r.s.config.grantBytes, Preempt: r.s.preemption()}
	switch {
	case all:
		p.model, p.queues, p.preempt = scheduler.NewModel(config), queues, config.Preempt
		for n := range view.Nodes() {
			r.tellNode(view, n.ID)
		}
		for a := range view.Live() {
			r.tellApp(view, a.ID)
		}
		return view
	case p.queues != queues || p.preempt != config.Preempt:
		p.model.Configure(config)
		p.queues, p.preempt = queues, config.Preempt
	}
	for id := range nodes {
		r.tellNode(view, id)
	}
	for id := range apps {
		r.tellApp(view, id)
	}
	return view
}

// tellNode joins the replicated state of a node with what the leader knows of it.
func (r *reign) tellNode(view *state.View, id rm.NodeID) {
	n := view.Node(id)
	if n == nil || n.State == rm.NodeLost {
		r.plans.model.RemoveNode(id)
		return
	}
	node := scheduler.Node{
		ID: n.ID, Host: n.Host, Rack: n.Rack, Labels: n.Labels, Attributes: n.Attributes, Capacity: n.Capacity, Used: n.Used, Containers: n.Live, Exclusive: n.Exclusive,
		GPUs: make([]scheduler.GPU, 0, len(n.GPUs)),
	}
	node.Capacity.GPUs = n.WholeGPUs()
	if n.Wish != nil { // the cluster has no more of it than is in use
		node.Capacity = n.Used
	}
	held := map[string]bool{}
	for _, c := range view.On(id) {
		hold := scheduler.Hold{
			App: c.ID.Attempt.Application, Resource: c.Resource, GPUs: c.GPUs, Container: c.ID, Master: c.Master, Gang: c.Gang, Saved: c.Saved(), Tags: c.Tags,
			Stopping: c.StopStatus != 0 || c.Notice != nil && c.Notice.Resized != "", // it goes soon, whoever wants its room
			Began:    c.Granted, Asked: c.Asked, Checkpoints: c.Checkpointed > 0,
		}
		if c.Notice != nil {
			hold.For, hold.ForApp, hold.ForAsk, hold.Moves = c.Notice.Queue, c.Notice.For, c.Notice.Ask, c.Notice.Moves
		}
		node.Holds = append(node.Holds, hold)
		for _, u := range c.GPUs {
			held[u] = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	soft := r.nodes[id]
	node.Closed = !n.Takes() || soft == nil || !soft.open || !soft.healthy || soft.losing
	for _, g := range n.GPUs {
		// An instance of a GPU that is somebody's as a whole, from before it was divided, is nobody's until that ends.
		broken := !g.Usable() || soft != nil && soft.busy[g.UUID] || g.Parent != "" && held[g.Parent]
		node.GPUs = append(node.GPUs, scheduler.GPU{
			UUID: g.UUID, Model: g.Model, Memory: g.Memory, Island: g.Island, Minor: g.Minor, Profile: g.Profile, Free: !held[g.UUID] && !broken, Broken: broken,
		})
	}
	if soft != nil {
		node.Used = node.Used.Add(soft.taken)
		node.Containers += soft.strangers
	}
	r.plans.model.SetNode(node)
}

// known reports whether the model knows an application: it has not ended, or has something still.
func known(view *state.View, id rm.ApplicationID) bool {
	a := view.Application(id)
	return a != nil && (!a.State.Final() || a.Live > 0)
}

// tellApp says what an application has and wants.
func (r *reign) tellApp(view *state.View, id rm.ApplicationID) {
	if !known(view, id) {
		r.plans.model.RemoveApp(id)
		delete(r.plans.failed, id)
		delete(r.plans.heldBack, id)
		r.finder.forget(id)
		return
	}
	a := view.Application(id)
	app := scheduler.App{ID: a.ID, Queue: a.Queue, User: a.User, Priority: a.Priority, Submitted: a.Submitted, Used: a.Used, Lasts: a.Timeout, Ends: a.Expiry()}
	if m := view.Master(a); m != nil && m.Live() {
		app.Masters = m.Resource
	}
	delete(r.plans.heldBack, id)
	if !a.State.Final() {
		if a.WantsMaster() && r.credentialed(view, a) {
			app.Asks = append(app.Asks, masterAsk(a))
		}
		switch {
		case a.Deaf():
		case view.HeldBack(a.User):
			r.plans.heldBack[id] = true
		default:
			for _, ask := range view.Asks(a.ID) {
				if ask, ok := r.finder.resolve(a, ask); ok {
					app.Asks = append(app.Asks, ask)
				}
			}
		}
	}
	r.plans.model.SetApp(app)
}

// masterAsk is the ask for an application's master. That of a job of kind master may want a node with a label.
func masterAsk(a *rm.Application) rm.Ask {
	ask := rm.Ask{Resource: a.Master, Count: 1}
	if a.Kind == rm.KindMaster {
		var document struct {
			Resources struct {
				Label string `json:"label"`
			} `json:"resources"`
		}
		if json.Unmarshal(a.Document, &document) == nil {
			ask.Label = document.Resources.Label
		}
	}
	return ask
}

// grant is a group of a plan with the form in which it is recorded.
type grant struct {
	scheduler.Group
	record *statepb.Group
}

// entries divides a plan's groups, in their order, into what fits into one command each.
func (r *reign) entries(view *state.View, groups []scheduler.Group) [][]grant {
	var out [][]grant
	most := r.s.config.grantBytes
	size := most
	for _, g := range groups {
		p := &statepb.Group{Application: state.ApplicationID(g.App), Ask: g.Ask}
		if a := view.Application(g.App); a != nil && a.Attempt() != nil {
			p.Attempt = int32(a.Attempt().Number)
		}
		for _, at := range g.Placements {
			p.Placements = append(p.Placements, &statepb.Placement{
				Node: string(at.Node), Resource: state.Resource(g.Gets(at)), Gpus: at.GPUs,
				Salt: newSalt(),
			})
		}
		p.Gang = len(g.Placements) > 1 && r.s.notices()
		p.KeepsAsk = g.Ask != "" && r.s.config.Preemption.Defragment && r.s.notices()
		n := proto.Size(p) + 8 // and its frame
		if size += n; size > most {
			out, size = append(out, nil), n
		}
		out[len(out)-1] = append(out[len(out)-1], grant{g, p})
	}
	return out
}

// commit proposes groups and returns how many were granted.
func (r *reign) commit(groups []grant) (int, error) {
	c := &statepb.Grant{Epoch: r.epoch}
	for _, g := range groups {
		c.Groups = append(c.Groups, g.record)
	}
	result, err := r.s.propose(r.ctx, &statepb.Command{Op: &statepb.Command_Grant{Grant: c}})
	if err != nil {
		return 0, err
	}
	n := 0
	for i, g := range result.Groups {
		if g.Reason.IsZero() {
			n++
		} else {
			r.s.log.Debug("grant refused", "app", groups[i].App, "ask", groups[i].Ask, "reason", g.Reason.Text)
		}
	}
	return n, nil
}

// tellReasons looks at the reasons of the applications whose masters listen, and wakes those to whom they are news. It reports whether
// any listens.
func (r *reign) tellReasons() bool {
	r.mu.Lock()
	ids := make([]rm.ApplicationID, 0, len(r.streams))
	for id := range r.streams {
		ids = append(ids, id)
	}
	r.mu.Unlock()
	p := &r.plans
	var news []rm.ApplicationID
	now := map[rm.ApplicationID][]scheduler.Waiting{}
	for _, id := range ids {
		now[id] = r.waiting(id)
	}
	p.mu.Lock()
	for id, w := range now {
		if !slices.Equal(w, p.told[id]) {
			news = append(news, id)
		}
	}
	p.told = now
	p.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range news {
		for stream := range r.streams[id] {
			kick(stream.wake)
		}
	}
	return len(ids) > 0
}

// waitingFor lists the reasons of an application's asks, by ask: of one whose master listens, those that it is told.
func (r *reign) waitingFor(id rm.ApplicationID) []scheduler.Waiting {
	r.plans.mu.Lock()
	told, ok := r.plans.told[id]
	r.plans.mu.Unlock()
	if ok {
		return told
	}
	return r.waiting(id)
}

// wants reports whether an ask is there.
func wants(view *state.View, id rm.ApplicationID, ask string) bool {
	if a := view.Application(id); ask == "" {
		return a != nil && a.WantsMaster()
	}
	return slices.ContainsFunc(view.Asks(id), func(a rm.Ask) bool { return a.ID == ask })
}

// unacknowledged says why nothing is granted to an application whose master, or whose user's masters, do not acknowledge what they are told.
func unacknowledged(a *rm.Application) rm.Reason {
	text := fmt.Sprintf("masters of user %s have not acknowledged the ends of many containers: as many wait as one user may have", a.User)
	if a.Deaf() {
		text = "the application's master has not handled the events of many containers: as many wait as one may have"
	}
	return rm.Reason{Code: rm.ReasonUnacknowledged, Text: text}
}

// lookingUp adds to the reasons of an application's asks what is to be said of the paths that they name.
func (r *reign) lookingUp(view *state.View, id rm.ApplicationID, list []scheduler.Waiting) []scheduler.Waiting {
	for _, ask := range view.Asks(id) {
		if !ask.Near.HasPaths() {
			continue
		}
		pending, problem := r.finder.said(id, &ask)
		i := slices.IndexFunc(list, func(w scheduler.Waiting) bool { return w.Ask == ask.ID })
		switch {
		case i >= 0 && problem != "":
			list[i].Reason.Text += "; " + problem
		case i < 0 && !pending.Reason.IsZero():
			list = append(list, pending)
		}
	}
	return list
}

// waiting asks the model for the reasons of an application's asks: one answer at a time, and the scheduler has its turns in between.
func (r *reign) waiting(id rm.ApplicationID) []scheduler.Waiting {
	p := &r.plans
	p.answers.Lock()
	defer p.answers.Unlock()
	view := r.s.state.View()
	var out []scheduler.Waiting
	effort := scheduler.Effort{Shapes: maxReasons}
	for next, more := 0, true; more; more = next > 0 {
		var part []scheduler.Waiting
		p.mu.Lock()
		if p.model == nil {
			next = 0
		} else {
			part, next = p.model.WaitingPart(id, next, &effort)
		}
		p.mu.Unlock()
		out = append(out, part...)
	}
	p.mu.Lock()
	for ask, reason := range p.failed[id] {
		if wants(view, id, ask) && !slices.ContainsFunc(out, func(w scheduler.Waiting) bool { return w.Ask == ask }) {
			out = append(out, scheduler.Waiting{App: id, Ask: ask, Reason: reason})
		}
	}
	p.mu.Unlock()
	out = r.lookingUp(view, id, out)
	if w := r.uncredentialed(view, id); !w.Reason.IsZero() {
		out = append(out, w)
	}
	if a := view.Application(id); a != nil && len(a.After) > 0 {
		out = append(out, scheduler.Waiting{App: id, Reason: rm.Reason{Code: rm.ReasonDependency, Text: a.AwaitedText()}})
	}
	if a := view.Application(id); a != nil && (a.Deaf() || view.HeldBack(a.User)) {
		for _, ask := range view.Asks(id) {
			out = append(out, scheduler.Waiting{App: id, Ask: ask.ID, Reason: unacknowledged(a)})
		}
	}
	slices.SortFunc(out, func(a, b scheduler.Waiting) int { return cmp.Compare(a.Ask, b.Ask) })
	return slices.CompactFunc(out, func(a, b scheduler.Waiting) bool { return a.Ask == b.Ask }) // its asks may change between two parts
}
