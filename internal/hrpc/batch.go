package hrpc

import (
	"math"
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
	method   *Method
	cost     int64           // of the requests, once decoded
	ids      [MaxBatch]int32 // of the calls
	ends     [MaxBatch]int   // where their frames do
	lengths  [MaxBatch]int   // of their paths
	room     [MaxBatch]string
	names    []byte           // the paths, one behind the other
	seen     [MaxBatch][]byte // the paths of what was looked at, where they arrived
	answered int
}

var batches = sync.Pool{New: func() any { return new(Batch) }}

// keepNames is how much memory for paths is kept.
const keepNames = 8 << 10

// release gives the memory to other calls.
func (b *Batch) release() {
	clear(b.Paths)
	clear(b.seen[:])
	b.Caller, b.Paths, b.conn, b.method, b.cost, b.answered = metadata.Caller{}, nil, nil, nil, 0, 0
	if b.names = b.names[:0]; cap(b.names) > keepNames {
		b.names = nil
	}
	batches.Put(b)
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
			h.callID = b.ids[i]
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

// lookAhead looks at the calls that have arrived, MaxBatch at most. Those in front that can be served together are; of others Prefetch is told the
// paths. It returns how many frames it has served, and how many behind them it has looked at.
//
// Looking for a path is waiting for memory a dozen times, each time for what the last one has told. Of several paths the first
// steps are waited for together, then the second ones, and so on: asynchronous memory access chaining (Kocberber et al., VLDB 2015).
func (c *serverConn) lookAhead() (served, left int) {
	switch {
	case c.server.config.Prefetch == nil && !c.server.batches || c.layer != nil:
		return 0, math.MaxInt
	case !c.known:
		return 0, 1 // the first calls come together with what says who calls
	case c.alone():
		return 0, 1
	}
	b := batches.Get().(*Batch)
	defer b.release()
	paths, together, looked := b.seen[:0], 0, 0
	for at := c.frames.start; looked < MaxBatch; looked++ {
		frame, end, ok := c.frames.peek(at)
		if !ok {
			break
		}
		g := c.glimpse(frame)
		if g.path != nil {
			paths = append(paths, g.path)
		}
		if g.method != nil && together == looked && (looked == 0 || g.method == b.method) {
			b.method = g.method
			b.cost += g.cost
			b.ids[looked], b.ends[looked], b.lengths[looked] = g.id, end, len(g.path)
			b.names = append(b.names, g.path...)
			together++
		}
		at = end
	}
	if together > 0 {
		if served = c.serveTogether(b, together); served > 0 {
			c.frames.start = b.ends[served-1]
		}
	}
	if paths = paths[served:]; len(paths) > 1 && c.server.config.Prefetch != nil { // each that was served had one
		c.server.config.Prefetch(paths)
	}
	return served, looked - served
}

// alone reports whether one frame has arrived, with a call that is served by itself in any case, or none.
func (c *serverConn) alone() bool {
	frame, end, ok := c.frames.peek(c.frames.start)
	if !ok {
		return false
	}
	if _, _, more := c.frames.peek(end); more {
		return false
	}
	_, n := cut(frame)
	head, k := cut(frame[n:])
	if n == 0 || k == 0 {
		return true
	}
	t, err := c.target(head)
	return err != nil || t.method == nil || t.method.Batch == nil
}

// glimpse is what can be told of a frame, which may be anything, before it is its turn.
type glimpse struct {
	path   []byte  // what the call is about, if its method says where that is; nil: nobody knows
	method *Method // if it has a Batch, and the frame is a call of it that differs in nothing but the path from what those look like that are all in order; else nil
	id     int32   // of that call
	cost   int64   // of its request, once decoded
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
	if len(tail) == 0 || !c.headers.again(tail) || unzigzag32(id) < 0 {
		return g
	}
	count := elements(body, maxDepth, maxElements)
	if count > maxElements {
		return g
	}
	g.method, g.id, g.cost = t.method, unzigzag32(id), decodedCost*int64(len(body))+elementCost*int64(count)
	return g
}

// serveTogether serves the first n of the calls together, and returns how many of them: 0 where something about them is not as mostly, or where one of them would
// have to wait. What holds for all of them is looked at once, and they count as one call for what is held.
func (c *serverConn) serveTogether(b *Batch, n int) (served int) {
	m, config := b.method, &c.server.config
	if m.Right == security.Superuser || c.lasting != nil && c.lasting.Good() != nil || m.Command != "" && config.Door.Audits(m.Read) {
		return 0
	}
	held := callCost + b.cost
	if c.full(c.load.Load()+oneCall+held) || !c.requests.Try(held) {
		return 0
	}
	defer c.requests.Give(held)
	answer := int64(n) * m.Answer
	if !c.answers.Try(answer) {
		return 0
	}
	defer c.answers.Give(answer)
	if c.free == 0 {
		c.free = clock()
	}
	b.conn, b.Caller, b.Paths = c, c.caller, b.room[:n]
	names := string(b.names)
	for i, size := range b.lengths[:n] {
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
