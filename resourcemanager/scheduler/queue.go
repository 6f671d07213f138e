package scheduler

import (
	"cmp"
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// queue is a queue of the model.
type queue struct {
	position // in its parent's active
	*rm.Queue
	number int // in rm.Queues.All
	// replaced: it is not in the tree that is about to count.
	replaced bool
	parent   *queue
	children []*queue
	used     rm.Resource
	// guaranteed and maximum of the cluster as it is now. bounded: the maximum is less than the cluster.
	guaranteed, maximum rm.Resource
	bounded             bool
	// ratio is the dominant share: the largest used/guaranteed.
	ratio float64
	// active are the children under which asks are open, the neediest first.
	active heap[*queue]
	// blocked are the lanes that wait for less use of the queue.
	blocked []*lane
	// running counts the applications here and below that hold something.
	running int
	cells   cells

	// The rest belongs to leaves.
	masters rm.Resource
	users   map[string]*user
	// asking is how many users have asks that wait; grown: one of them may have more than when lanes were closed for it.
	asking int
	grown  bool
	// lanes that are open, by the first ask of each; all by what tells them apart.
	lanes heap[*lane]
	all   map[laneKey]*lane
	// head is the first ask that found no room, see reserve.go.
	head head
	// served is the head before it, which began.
	served head
	// fruitless is when it was last looked in vain for whom to end for one of its asks, see preempt.go.
	fruitless metadata.Time
	// mend is from when on somebody may be moved for it again.
	mend metadata.Time
}

// user is a user of a leaf with a limit for users.
type user struct {
	used rm.Resource
	// running counts applications that hold something, open the asks that wait.
	running, open int
}

// want is an ask of which something is open.
type want struct {
	position // in its lane
	app      *app
	rm.Ask
	// assumed of Count are granted by plans that are not settled.
	assumed int
	lane    *lane
	// pace is that of the lane that it was in last.
	pace pace
	// waits is since when it has waited as the first of its lane, as far as Preempt has seen; again is when another look is worth it, after
	// failed ones in vain.
	waits, again metadata.Time
	failed       int
	// mend is the same for who is moved.
	mend metadata.Time
	// tried: it belongs to nobody, and is in no lane, see Try.
	tried bool
}

func (w *want) master() bool { return w.ID == "" }

// open is how many are still to be planned.
func (w *want) open() int { return w.Count - w.assumed }

// unit is how many come at once: the least of the gang first, then one after the other.
func (w *want) unit() int {
	if w.Gang > 1 && w.assumed == 0 {
		return w.Gang
	}
	return 1
}

// before is the order within a queue: applications by priority, then, in a fair queue, by what they use, then by age; their master
// first, then by their own order.
func before(a, b *want) bool {
	if a.app == b.app {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.ID, b.ID)) < 0
	}
	return cmp.Or(
		-cmp.Compare(a.app.Priority, b.app.Priority),
		cmp.Compare(a.app.share, b.app.share),
		cmp.Compare(a.app.Submitted, b.app.Submitted),
		a.app.ID.Compare(b.app.ID)) < 0
}

// lane holds the asks of a leaf that have one verdict: of one shape, and of one user where users have limits.
type lane struct {
	position // in its leaf's lanes
	laneKey
	queue *queue
	wants heap[*want]
	// closed: the first ask, and so every other, was refused at the last plan, by a limit of by; nil: for want of room.
	closed bool
	by     *queue
	// blocked is where it lies in by.blocked.
	blocked int
	// delay is why it is closed where the room that there is is too far from its data, see near.go.
	delay *delay
	pace
}

type laneKey struct {
	shape  *shape
	user   string
	master bool
}

func (l *lane) first() *want { return l.wants.list[0] }

// neediest walks down from q to the leaf whose turn it is; nil: nothing is open.
func (m *Model) neediest() *queue {
	q := m.root
	for q != nil && !q.Leaf() {
		if len(q.active.list) == 0 {
			return nil
		}
		q = q.active.list[0]
	}
	if q == nil || len(q.lanes.list) == 0 {
		return nil
	}
	return q
}

// needier is the order among siblings: those within their guarantee first, among these by their priority, then the one that uses the
// smallest part of its guarantee, equal ones in the order of their names.
func needier(a, b *queue) bool {
	over := func(q *queue) int {
		if q.ratio >= 1 {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(over(a), over(b)), -cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.ratio, b.ratio), cmp.Compare(a.number, b.number)) < 0
}

// activate puts a queue with open asks among its parent's, and those above it likewise; settle takes it off when nothing is open.
func (q *queue) activate() {
	for ; q.parent != nil && q.at() < 0; q = q.parent {
		q.parent.active.push(q)
	}
}

func (q *queue) deactivate() {
	for ; q.parent != nil && q.at() >= 0 && len(q.active.list) == 0 && len(q.lanes.list) == 0; q = q.parent {
		q.parent.active.remove(q)
	}
}

// unguaranteed puts queues without a guarantee behind all that have one.
const unguaranteed = 1e9

// share is the largest part that used is of what there is.
func share(used, of *rm.Resource) float64 {
	dominant := 0.0
	part := func(n, of int64) {
		switch {
		case of > 0:
			dominant = max(dominant, float64(n)/float64(of))
		case n > 0:
			dominant = max(dominant, unguaranteed)
		}
	}
	part(used.Memory, of.Memory)
	part(int64(used.VCores), int64(of.VCores))
	part(int64(used.GPUs), int64(of.GPUs))
	if !used.Other.IsZero() {
		for name, n := range used.Other.All() {
			part(n, of.Other.Get(name))
		}
	}
	return dominant
}

func (m *Model) rate(q *queue) {
	if q.guaranteed.IsZero() {
		q.ratio = unguaranteed + share(&q.used, &m.total)
	} else {
		q.ratio = share(&q.used, &q.guaranteed)
	}
	if q.at() >= 0 {
		q.parent.active.fix(q)
	}
}

// use counts r against a queue and all above it, or takes it off again.
func (m *Model) use(q *queue, r rm.Resource, sign int) {
	if r.IsZero() {
		return
	}
	if sign < 0 {
		r = rm.Resource{}.Sub(r)
	}
	q.grown = q.grown || sign > 0 && q.UserLimitPercent > 0 && len(q.blocked) > 0
	for ; q != nil; q = q.parent {
		q.used = q.used.Add(r)
		m.rate(q)
		if sign < 0 {
			m.unblock(q)
		}
	}
}

// unblock opens the lanes that waited for less use of a queue.
func (m *Model) unblock(q *queue) {
	if m.still {
		return
	}
	for len(q.blocked) > 0 {
		l := q.blocked[len(q.blocked)-1]
		l.unblock()
		m.reopen(l)
	}
}

// admit opens the lanes that waited for a limit of users of a leaf that has grown with what others use.
func (m *Model) admit(q *queue) {
	if !q.grown {
		return
	}
	q.grown = false
	for i := len(q.blocked) - 1; i >= 0; i-- {
		if l := q.blocked[i]; m.limit(l, l.first()).by == nil {
			m.reopen(l) // the last one takes its place
		}
	}
}

// resolve works out what queues are guaranteed and may use of the cluster as it is now.
func (m *Model) resolve() {
	m.unresolved = false
	guaranteed, maximum := m.config.Queues.Resolve(m.total)
	for i, q := range m.queues {
		q.guaranteed, q.maximum = guaranteed[i], maximum[i]
		q.bounded = !m.total.FitsIn(q.maximum)
		m.rate(q)
		m.unblock(q)
	}
	if m.cells.stale {
		m.recell()
	}
	if m.weighedBy != m.total {
		m.weighedBy = m.total
		for _, a := range m.apps {
			if a.queue != nil && a.queue.Ordering == rm.OrderFair {
				m.weigh(a)
			}
		}
	}
}

// becomes reports whether a queue may go on as another one of its path: all that depends on what differs is worked out anew by resolve.
func (q *queue) becomes(to *rm.Queue) bool {
	if !q.Leaf() || !to.Leaf() {
		return q.Leaf() == to.Leaf()
	}
	return q.Ordering == to.Ordering && q.limitsUsers() == (&queue{Queue: to}).limitsUsers()
}

// setQueues replaces the tree, but for queues that are not replaced: these have all of their applications still, others have none.
func (m *Model) setQueues(t *rm.Queues) {
	stay := make(map[string]*queue, len(m.queues))
	var active []*queue
	for _, q := range m.queues {
		for _, child := range q.active.list { // whose order may be another
			child.put(-1)
			if !child.replaced {
				active = append(active, child)
			}
		}
		q.active.list, q.children = nil, nil
		if !q.replaced {
			stay[q.Path] = q
		}
	}
	m.config.Queues = t
	m.queues, m.byQueue = make([]*queue, 0, len(t.All)), make(map[*rm.Queue]*queue, len(t.All))
	for i, q := range t.All {
		own := stay[q.Path]
		if own == nil {
			own = &queue{users: map[string]*user{}, all: map[laneKey]*lane{}}
			own.active.less = needier
			own.lanes.less = func(a, b *lane) bool { return before(a.first(), b.first()) }
		}
		own.Queue, own.number, own.parent = q, i, m.byQueue[q.Parent]
		if own.parent != nil {
			own.parent.children = append(own.parent.children, own)
		}
		m.byQueue[q] = own
		m.queues = append(m.queues, own)
	}
	for _, q := range active {
		q.parent.active.push(q)
	}
	m.root = m.queues[0]
	m.unresolved = true
	m.setCells()
}

// userOf is the user's account in a leaf.
func (q *queue) userOf(name string) *user {
	u := q.users[name]
	if u == nil {
		u = &user{}
		q.users[name] = u
	}
	return u
}

// asks counts asks of a user of a leaf that wait, or takes them off; true: among how many the leaf is divided is another number now.
func (q *queue) asks(u *user, n int) bool {
	before := u.open > 0
	u.open += n
	switch {
	case before == (u.open > 0):
		return false
	case before:
		q.asking--
	default:
		q.asking++
	}
	return true
}

// limitsUsers reports whether what one user may have depends on who they are.
func (q *queue) limitsUsers() bool {
	return q.UserLimitFactor > 0 || q.UserLimitPercent > 0 && q.UserLimitPercent < 100 || q.MaxApplicationsPerUser > 0
}

// formFor is the form of an ask's next unit.
func (m *Model) formFor(w *want) form {
	f := m.formOf(w.app.ID, &w.Ask, w.unit())
	if d := w.app.Lasts; d > 0 && (f.Lasts == 0 || d < f.Lasts) {
		f.Lasts = roundUp(d)
	}
	f.Pins = m.pins(w.app.queue, w.master())
	if q := w.app.queue; q != nil {
		if r := q.head.reservation; r != nil && r.want == w {
			f.Reservation, f.Wait = r.number, 0
		}
	}
	if len(m.berths) > 0 && f.Reservation == 0 && !w.tried {
		f.Reservation = m.berthFor(w, f)
	}
	return f
}

// enter puts an ask into the lane where it belongs, leave takes it out.
func (m *Model) enter(w *want) {
	q := w.app.queue
	if w.open() <= 0 {
		w.pace = pace{}
	}
	if q == nil || w.lane != nil || w.open() <= 0 || w.tried {
		return
	}
	k := laneKey{shape: m.shape(m.formFor(w)), master: w.master()}
	if q.limitsUsers() {
		k.user = w.app.User
		if u := q.userOf(k.user); q.asks(u, 1) {
			m.unblock(q) // one more among whom the queue is divided; less for others, which nobody waits for, but the shares are new
		}
	}
	l := q.all[k]
	if l == nil {
		l = &lane{laneKey: k, queue: q, pace: w.pace}
		l.wants.less = before
		q.all[k] = l
		k.shape.lanes = append(k.shape.lanes, l)
	}
	w.lane = l
	l.wants.push(w)
	switch {
	case len(l.wants.list) == 1:
		q.lanes.push(l)
		q.activate()
	case l.at() >= 0:
		q.lanes.fix(l)
	}
}

func (m *Model) leave(w *want) {
	l := w.lane
	if l == nil {
		return
	}
	q := l.queue
	w.lane, w.pace = nil, l.pace
	if q.limitsUsers() {
		if u := q.userOf(l.user); q.asks(u, -1) {
			m.unblock(q) // less users to divide the queue among
		}
	}
	if len(l.wants.list) > 1 {
		first := l.wants.list[0] == w
		l.wants.remove(w)
		if first && l.at() >= 0 {
			q.lanes.fix(l)
		}
		return
	}
	if l.at() >= 0 {
		q.lanes.remove(l)
		q.deactivate()
	}
	l.wants.remove(w)
	l.unblock()
	m.unhold(l)
	l.closed = true
	delete(q.all, l.laneKey)
	s := l.shape
	s.lanes = slices.DeleteFunc(s.lanes, func(x *lane) bool { return x == l })
	if len(s.lanes) == 0 {
		delete(m.shapes, s.form)
		m.forgetShape(s)
	}
}

// close refuses all asks of a lane until reopen. by is the queue whose limit says no; nil: there is no room.
func (m *Model) close(l *lane, by *queue) {
	l.closed, l.by = true, by
	switch {
	case l.delay != nil:
		m.delays.push(l.delay)
	case by == nil && l.shape.closed: // everything is in use: whatever is free next, near or not, is a new beginning
		l.pace = pace{}
	}
	l.queue.lanes.remove(l)
	l.queue.deactivate()
	if by != nil {
		l.blocked = len(by.blocked)
		by.blocked = append(by.blocked, l)
	}
}

// unblock takes a lane off the list of the queue whose limit holds it back.
func (l *lane) unblock() {
	if l.by == nil {
		return
	}
	list := l.by.blocked
	last := list[len(list)-1]
	list[l.blocked], last.blocked = last, l.blocked
	list[len(list)-1] = nil
	l.by.blocked, l.by = list[:len(list)-1], nil
}

func (m *Model) reopen(l *lane) {
	if !l.closed || len(l.wants.list) == 0 {
		return
	}
	l.unblock()
	m.unhold(l)
	l.closed = false
	l.queue.lanes.push(l)
	l.queue.activate()
}
