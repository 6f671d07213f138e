package hrpc

import (
	"runtime/debug"
	"sync"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

// MaxBatch is how many calls are looked at together before the first is served.
const MaxBatch = 16

// Batch is calls of one method by one caller that have come together, in the order in which they came.
type Batch struct {
	// Caller is who asks, as the door saw it.
	Caller metadata.Caller
	// Paths are what the calls are about, MaxBatch at most.
	Paths []string

	conn     *serverConn
	calls    []glimpse // that Paths are of: a part of seen
	room     [MaxBatch]string
	names    []byte // the paths, one behind the other
	answered int

	seen [MaxBatch]glimpse // calls that were looked at
}

var batches = sync.Pool{New: func() any { return new(Batch) }}

// keepNames is how much memory for paths is kept.
const keepNames = 8 << 10

// clear empties what is of the calls that were served together last.
func (b *Batch) clear() {
	clear(b.Paths)
	b.Caller, b.Paths, b.conn, b.calls, b.answered = metadata.Caller{}, nil, nil, nil, 0
	if b.names = b.names[:0]; cap(b.names) > keepNames {
		b.names = nil
	}
}

// Reply answers the first of the calls, each with a message, nil for an empty one, which is encoded before Reply returns. It is called once.
func (b *Batch) Reply(answers []Message) {
	c := b.conn
	if b.answered > 0 || len(answers) > len(b.Paths) {
		panic("hrpc: answers to calls that are answered, or that there are not")
	}
	like := &c.headers.like
	h := responseHeader{retry: like.retry, clientID: like.clientID}
	if like.told && c.server.config.State != nil {
		h.stateID = new(c.server.config.State())
	}
	err := c.out.add(func(dst []byte) ([]byte, error) {
		var err error
		for i, m := range answers {
			h.callID = b.calls[i].id
			if dst, err = appendResponse(dst, &h, m); err != nil {
				return nil, err
			}
		}
		return dst, nil
	})
	if err == nil || c.gone() {
		b.answered = len(answers)
	} // else the one that cannot be encoded is found when they are served by themselves
}

// ahead is what was looked at of the calls that have arrived, MaxBatch at a time. The zero value is that nothing was.
type ahead struct {
	b     *Batch // where they are; nil: there are none
	at, n int    // of b.seen: the one that is served next, and how many there are
	left  int    // by a Batch that has answered those before it: that one is Handle's; 0: none is
	vain  int    // how often in a row a Batch has answered none
}

// maxVain is how often in a row a Batch may answer none before the others are served one by one.
const maxVain = 2

// release gives the memory to others.
func (a *ahead) release() {
	if a.b != nil {
		clear(a.b.seen[:a.n])
		batches.Put(a.b)
		*a = ahead{}
	}
}

// serveAhead serves the next calls that have arrived together, where they can be; false: the next one has to be served by itself. Where none is left of those that were
// looked at it looks at the next, and Prefetch is told the paths of those that it does not serve.
//
// Looking for a path is waiting for memory a dozen times, each time for what the last one has told. Of several paths the first
// steps are waited for together, then the second ones, and so on: asynchronous memory access chaining (Kocberber et al., VLDB 2015).
func (c *serverConn) serveAhead(a *ahead) bool {
	switch {
	case c.server.config.Prefetch == nil && !c.server.batches || c.layer != nil:
		return false
	case !c.known:
		return false // the first calls come together with what says who calls
	}
	fresh := a.at == a.n
	if fresh {
		a.release()
		c.look(a)
	}
	served := 0
	if n := c.together(a); n > 0 {
		if served = c.serveTogether(a.b, a.b.seen[a.at:a.at+n]); served > 0 {
			a.vain = 0
		} else {
			a.vain++
		}
		if served < n {
			a.left = a.at + served
		}
	}
	next := a.at + max(served, 1)
	if fresh && c.server.config.Prefetch != nil {
		c.prefetch(a.b.seen[a.at+served : a.n])
	}
	if served > 0 {
		c.frames.start = a.b.seen[next-1].end
	}
	a.at = next
	return served > 0
}

// look looks at the calls that have arrived, of which there is one.
func (c *serverConn) look(a *ahead) {
	a.b = batches.Get().(*Batch)
	for at := c.frames.start; a.n < MaxBatch; a.n++ {
		frame, end, ok := c.frames.peek(at)
		if !ok {
			return
		}
		a.b.seen[a.n] = c.glimpse(frame)
		a.b.seen[a.n].end, at = end, end
	}
}

// together returns how many of the next calls can be served together.
func (c *serverConn) together(a *ahead) (n int) {
	if a.vain == maxVain || a.left > 0 && a.left == a.at {
		return 0
	}
	next := a.b.seen[a.at:a.n]
	for n < len(next) && next[n].method != nil && next[n].method == next[0].method && c.headers.again(next[n].tail) {
		n++
	}
	return n
}

func (c *serverConn) prefetch(calls []glimpse) {
	var room [MaxBatch][]byte
	paths := room[:0]
	for i := range calls {
		if path := calls[i].path; path != nil {
			paths = append(paths, path)
		}
	}
	if len(paths) > 1 {
		c.server.config.Prefetch(paths)
	}
}

// glimpse is what can be told of a frame, which may be anything, before it is its turn.
type glimpse struct {
	path   []byte  // what the call is about, if its method says where that is; nil: nobody knows
	method *Method // if it has a Batch, and the frame is a call of it that differs in nothing but the path and tail from what those look like that are all in order; else nil
	tail   []byte  // of that call's header, behind its number
	id     int32   // of that call
	cost   int64   // of its request, once decoded
	end    int     // where the frame ends among those that have arrived
}

func (c *serverConn) glimpse(frame []byte) (g glimpse) {
	first, n := cut(frame)
	if n == 0 {
		return g
	}
	head, k := cut(frame[n:])
	if k == 0 {
		return g
	}
	body, k2 := cut(frame[n+k:])
	if k2 == 0 || len(body) == 0 || body[0] != 1<<3|2 {
		return g
	}
	t, err := c.target(head)
	if err != nil || t.method == nil || !t.method.Source {
		return g
	}
	path, size := cut(body[1:])
	if g.path = path; size == 0 || t.method.Batch == nil || len(t.head) == 0 || 1+size != len(body) || len(frame) > c.frames.limit {
		return g
	}
	id, tail := splitHeader(first)
	if len(tail) == 0 || unzigzag32(id) < 0 {
		return g
	}
	count := elements(body, maxDepth, maxElements)
	if count > maxElements {
		return g
	}
	g.method, g.tail, g.id, g.cost = t.method, tail, unzigzag32(id), decodedCost*int64(len(body))+elementCost*int64(count)
	return g
}

// serveTogether serves the first of calls of one method together, and returns how many of them: 0 where something about them is not as mostly, or where one of them would
// have to wait. What holds for all of them is looked at once, and they count as one call for what is held.
func (c *serverConn) serveTogether(b *Batch, calls []glimpse) (served int) {
	m, config := calls[0].method, &c.server.config
	if m.Right == security.Superuser || c.lasting != nil && c.lasting.Good() != nil || m.Command != "" && config.Door.Audits(m.Read) {
		return 0
	}
	held := int64(callCost)
	for i := range calls {
		held += calls[i].cost
	}
	if c.full(c.load.Load()+oneCall+held) || !c.requests.Try(held) {
		return 0
	}
	defer c.requests.Give(held)
	answer := int64(len(calls)) * m.Answer
	if !c.answers.Try(answer) {
		return 0
	}
	defer c.answers.Give(answer)
	if c.free == 0 {
		c.free = clock()
	}
	defer b.clear()
	b.conn, b.Caller, b.calls, b.Paths = c, c.caller, calls, b.room[:len(calls)]
	for i := range calls {
		b.names = append(b.names, calls[i].path...)
	}
	names := string(b.names)
	for i := range calls {
		size := len(calls[i].path)
		b.Paths[i], names = names[:size], names[size:]
	}
	c.runTogether(m, b)
	if served = b.answered; served > 0 {
		c.timedTogether(m, int64(served))
	}
	return served
}

// runTogether runs a Batch. What panics does so once more by itself, and is answered then.
func (c *serverConn) runTogether(m *Method, b *Batch) {
	defer func() {
		if r := recover(); r != nil {
			c.log.Error("handler panicked", "method", m.Name, "panic", r, "stack", string(debug.Stack()))
		}
	}()
	m.Batch(b)
}

// timedTogether is timed for n calls that were served together. Each has waited for those before it, and for as long as all of them have taken together
// its answer was not sent; the time that it took counts once.
func (c *serverConn) timedTogether(m *Method, n int64) {
	now := clock()
	queued, took := max(c.free-c.came, 0), now-c.free
	c.free = now
	c.calls.Add(n)
	c.answered.Add(n)
	c.queued.Add(n*int64(queued) + (n-1)*int64(took)/2)
	c.took.Add(int64(took))
	if !m.Waits && c.server.config.Slow.Slow(queued+took) {
		for range n {
			c.tellSlow(m.Name, c.caller.User, queued, took, &metadata.Waits{})
		}
	}
}
