package namespace

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"sync"

	"github.com/gohops/hops/metadata"
)

// Bounds of the retry cache. They are part of the state machine.
const (
	// RetryExpiry is for how much log time an answer is kept at least (dfs.namenode.retrycache.expirytime.millis).
	RetryExpiry = LogTime(10 * 60 * 1000)
	// RetryBytes is how much memory all answers may take; the oldest go first. It is enough for RetryExpiry at 20,000
	// answers per second, which is 40,000 changes of creates and completes.
	RetryBytes = 256 << 20
	// answerBytes and clientBytes are what an answer, and a client that has answers, count as.
	answerBytes = 22
	clientBytes = 64
	// chunkAnswers is how many answers are one record. chunkSpan is how far apart the first and the last of them may be: so
	// much longer than RetryExpiry is an answer kept at most.
	chunkAnswers = 255
	chunkSpan    = LogTime(60 * 1000)
)

// retryKey is the identity of a request. client is a hash of the client's id and of the user: another user who repeats
// the numbers of a request does not get its answer (in HDFS they do).
type retryKey struct {
	client [16]byte
	call   int32
}

// retryKeyOf returns the key of a request; ok is false for one that is not to be cached (hdfs-wire 1.10).
func retryKeyOf(user string, clientID []byte, call int32) (key retryKey, ok bool) {
	if len(clientID) != len(key.client) || call < 0 {
		return key, false
	}
	var buf [64]byte
	sum := sha256.Sum256(append(append(buf[:0], clientID...), user...))
	copy(key.client[:], sum[:])
	key.call = call
	return key, true
}

// answer is what there is to know of a success: the operation (6 bits), whether a block came with it (1 bit), and from
// bit 8 on the inode of the file that create and append tell of, whose state is told when the answer is given again.
type answer uint64

const (
	answerOp    answer = 1<<6 - 1
	answerBlock answer = 1 << 6
	answerINode        = 8 // shift
	maxAnswerOp        = uint32(answerOp)
)

func answerOf(op uint32, r *Result) answer {
	a := answer(op)
	if r.Block != nil {
		a |= answerBlock
	}
	if r.Status != nil {
		a |= answer(r.Status.ID) << answerINode
	}
	if op == opSnapshots || op == opPublish { // 1 + the number of the snapshot that was made, 1 for none
		a |= answer(r.INode+1) << answerINode
	}
	if op == opAddDirective {
		a |= answer(r.Directive) << answerINode
	}
	return a
}

func (a answer) op() uint32              { return uint32(a & answerOp) }
func (a answer) inode() metadata.INodeID { return metadata.INodeID(a >> answerINode) }

// retryCache remembers the answers of operations that must not be done twice. Only successes are in it: an operation that
// failed, or answered false, is tried again. All of it is in memory.
//
// Answers lie in chunks, in the order in which they came. A chunk is one record: it is written when it changed, which is
// once or twice, and goes as a whole. An index by hash leads to the newest answer of a bucket, and each answer to the next
// older one of its bucket; what lies before the first chunk is gone, and ends the way.
type retryCache struct {
	chunks  []*chunk // by sequence, without gaps; the last one takes the next answer
	answers int
	clients map[[16]byte]uint32 // to their number
	table   []retryClient       // by number
	free    []uint32            // numbers of clients without answers
	index   retryIndex
	open    chunkWriter // of the last chunk
	limit   int         // RetryBytes; tests fill less
	// evicted counts the answers that went before their time. It is no part of the state.
	evicted int64
}

type retryClient struct {
	key  [16]byte
	live uint32 // answers
	// high is the greatest number of a call that has an answer, or had one since the client has this place. Clients count upwards, so that most
	// requests have a greater one and cannot be repetitions: that is known without the index, whose memory is seldom in a cache.
	high int32
}

// chunk holds answers that came one after the other.
type chunk struct {
	sequence    uint64
	n           int
	first, last LogTime // when the first and the last answer came
	hash        uint64  // of the record, as it is in the state's hash
	what        [chunkAnswers]answer
	client      [chunkAnswers]uint32
	call        [chunkAnswers]int32
	older       [chunkAnswers]position
}

// position is where an answer is: its chunk's sequence, modulo 2^24, and its place in there.
type position uint32

const nowhere position = 0xff // no chunk has so many

// chunkWriter encodes the last chunk as it grows (FORMAT.md). The bytes written once stay as they are: a checkpoint may be
// writing them.
type chunkWriter struct {
	key     string
	record  []byte
	refs    map[uint32]uint64 // of clients in the record, from 1
	call    int64
	inode   int64
	changed bool // since the last settle
}

func newRetryCache() *retryCache {
	c := &retryCache{clients: map[[16]byte]uint32{}, limit: RetryBytes}
	c.open.refs = map[uint32]uint64{}
	c.index.init()
	return c
}

// size is what the cache counts as, in bytes.
func (c *retryCache) size() int { return c.answers*answerBytes + len(c.clients)*clientBytes }

// at finds the chunk of a position; nil when it is gone.
func (c *retryCache) at(p position) (*chunk, int) {
	if len(c.chunks) == 0 || p&0xff == nowhere {
		return nil, 0
	}
	i := (uint32(p>>8) - uint32(c.chunks[0].sequence)) & (1<<24 - 1)
	if int(i) >= len(c.chunks) || int(p&0xff) >= c.chunks[i].n {
		return nil, 0
	}
	return c.chunks[i], int(p & 0xff)
}

// find returns the newest answer to a request.
func (c *retryCache) find(key retryKey) (answer, bool) {
	client, ok := c.clients[key.client]
	if !ok || key.call > c.table[client].high {
		return 0, false
	}
	p := *c.index.bucket(client, key.call)
	for newer := uint64(1<<63 - 1); ; {
		chunk, i := c.at(p)
		if chunk == nil || chunk.sequence<<8|uint64(i) >= newer { // what is gone may look like something that is there
			return 0, false
		}
		if chunk.client[i] == client && chunk.call[i] == key.call {
			return chunk.what[i], true
		}
		newer, p = chunk.sequence<<8|uint64(i), chunk.older[i]
	}
}

// add puts an answer into the last chunk, which has room.
func (c *retryCache) add(client uint32, call int32, a answer, now LogTime) {
	c.place(client, call, a, now)
	c.index.grow(c)
	last := c.chunks[len(c.chunks)-1]
	i := last.n - 1
	c.link(last, i, c.index.number(last.client[i], last.call[i]))
}

// place is add without the index, which then has to be told of it.
func (c *retryCache) place(client uint32, call int32, a answer, now LogTime) {
	one := &c.table[client]
	one.live++
	one.high = max(one.high, call)
	last := c.chunks[len(c.chunks)-1]
	i := last.n
	last.n++
	last.last = now
	last.what[i], last.client[i], last.call[i] = a, client, call
	c.answers++
}

// link lets bucket b of the index lead to its answer in the last chunk, which is newer than all it leads to.
func (c *retryCache) link(last *chunk, i, b int) {
	head := c.index.head(b)
	last.older[i] = *head
	*head = position(uint32(last.sequence)<<8 | uint32(i))
}

// number is that of a client, which may be new here.
func (c *retryCache) number(key [16]byte) uint32 {
	client, ok := c.clients[key]
	if ok {
		return client
	}
	if n := len(c.free); n > 0 {
		client, c.free = c.free[n-1], c.free[:n-1]
	} else {
		client = uint32(len(c.table))
		c.table = append(c.table, retryClient{})
	}
	c.table[client] = retryClient{key: key}
	c.clients[key] = client
	return client
}

// remove forgets the oldest chunk.
func (c *retryCache) remove() *chunk {
	old := c.chunks[0]
	c.chunks[0] = nil
	c.chunks = c.chunks[1:]
	for _, client := range old.client[:old.n] {
		one := &c.table[client]
		if one.live--; one.live == 0 {
			delete(c.clients, one.key)
			c.free = append(c.free, client)
		}
	}
	c.answers -= old.n
	return old
}

// retryIndex leads from requests to the newest answer of a bucket. It grows by one bucket at a time (linear hashing), so
// that no command pays for many.
type retryIndex struct {
	seed  maphash.Seed
	pages [][]position
	n     int // buckets
	half  int // the greatest power of two that is not above n
}

const (
	indexPage     = 4096
	fewestBuckets = 64
	bucketAnswers = 2 // on average
)

func (x *retryIndex) init() {
	x.seed = maphash.MakeSeed() // of the layout in memory only
	x.n, x.half = fewestBuckets, fewestBuckets
	x.pages = [][]position{newIndexPage(fewestBuckets)}
}

func newIndexPage(n int) []position { return slices.Repeat([]position{nowhere}, n) }

func (x *retryIndex) hash(client uint32, call int32) int {
	return int(maphash.Comparable(x.seed, uint64(client)<<32|uint64(uint32(call))) >> 1)
}

func (x *retryIndex) number(client uint32, call int32) int {
	h := x.hash(client, call)
	if b := h & (2*x.half - 1); b < x.n {
		return b
	}
	return h & (x.half - 1)
}

func (x *retryIndex) bucket(client uint32, call int32) *position {
	return x.head(x.number(client, call))
}

func (x *retryIndex) head(b int) *position { return &x.pages[b/indexPage][b%indexPage] }

// grow adds a bucket when there are many answers, and shares out those of the bucket that it splits, in their order.
func (x *retryIndex) grow(c *retryCache) {
	if c.answers > x.n*bucketAnswers {
		x.split(c)
	}
}

// reserve makes the buckets for so many answers, before there are any: sharing out empty ones costs next to nothing.
func (x *retryIndex) reserve(c *retryCache, answers int) {
	for answers > x.n*bucketAnswers {
		x.split(c)
	}
}

func (x *retryIndex) split(c *retryCache) {
	if x.n%indexPage == 0 {
		x.pages = append(x.pages, newIndexPage(indexPage))
	} else if len(x.pages[len(x.pages)-1]) <= x.n%indexPage { // the first page begins small
		last := &x.pages[len(x.pages)-1]
		*last = append(*last, nowhere)
	}
	b := x.n - x.half
	p := *x.head(b)
	x.n++
	ends := [2]*position{x.head(b), x.head(x.n - 1)}
	*ends[0], *ends[1] = nowhere, nowhere
	for newer := uint64(1<<63 - 1); ; {
		chunk, i := c.at(p)
		if chunk == nil || chunk.sequence<<8|uint64(i) >= newer {
			break
		}
		newer = chunk.sequence<<8 | uint64(i)
		which := 0
		if x.number(chunk.client[i], chunk.call[i]) != b {
			which = 1
		}
		*ends[which] = p
		ends[which] = &chunk.older[i]
		p = chunk.older[i]
		*ends[which] = nowhere
	}
	if x.n == 2*x.half {
		x.half = x.n
	}
}

// remember stores the answer of an operation.
func (ns *Namespace) remember(key retryKey, op uint32, r *Result) {
	c := ns.retries
	now := ns.meta.logTime
	var last *chunk
	if len(c.chunks) > 0 {
		last = c.chunks[len(c.chunks)-1]
	}
	if last == nil || last.n == chunkAnswers || now-last.first > chunkSpan {
		ns.settleRetries()
		last = &chunk{sequence: ns.meta.nextRetry, first: now, last: now}
		ns.meta.nextRetry++
		c.chunks = append(c.chunks, last)
		c.open.begin(last.sequence, now)
	}
	a := answerOf(op, r)
	before := last.last
	client := c.number(key.client)
	c.add(client, key.call, a, now)
	c.open.append(client, key, a, now-before)
	for c.size() > c.limit && len(c.chunks) > 1 {
		c.evicted += int64(c.chunks[0].n)
		ns.forgetRetries()
	}
}

func (w *chunkWriter) begin(sequence uint64, now LogTime) {
	clear(w.refs)
	w.key, w.record = idKey(classRetry, sequence), binary.AppendUvarint(make([]byte, 0, 64), uint64(now))
	w.call, w.inode = 0, 0
}

func (w *chunkWriter) append(client uint32, key retryKey, a answer, later LogTime) {
	b := w.record
	ref, ok := w.refs[client]
	if b = binary.AppendUvarint(b, ref); !ok {
		b = append(b, key.client[:]...)
		w.refs[client] = uint64(len(w.refs) + 1)
	}
	b = binary.AppendVarint(b, int64(key.call)-w.call)
	b = binary.AppendUvarint(b, uint64(later))
	b = append(b, byte(a))
	if id := int64(a.inode()); id != 0 {
		b = binary.AppendVarint(b, id-w.inode)
		w.inode = id
	}
	w.call, w.record, w.changed = int64(key.call), b, true
}

// settleRetries brings hash and record of the last chunk up to date.
func (ns *Namespace) settleRetries() {
	c := ns.retries
	if !c.open.changed {
		return
	}
	c.open.changed = false
	last := c.chunks[len(c.chunks)-1]
	record := c.open.record[:len(c.open.record):len(c.open.record)]
	ns.hash -= last.hash
	last.hash = hashRecord([]byte(c.open.key), record)
	ns.hash += last.hash
	ns.pending[c.open.key] = record
}

// expireRetries forgets a chunk whose answers are all older than RetryExpiry. One goes at a time, so that no command pays
// for many.
func (ns *Namespace) expireRetries() {
	if c := ns.retries; len(c.chunks) > 0 && ns.meta.logTime-c.chunks[0].last > RetryExpiry {
		ns.forgetRetries()
	}
}

// forgetRetries forgets the oldest chunk.
func (ns *Namespace) forgetRetries() {
	c := ns.retries
	if len(c.chunks) == 1 {
		c.open.changed = false
	}
	old := c.remove()
	ns.hash -= old.hash
	ns.pending[idKey(classRetry, old.sequence)] = nil
}

// replay returns the answer to a repeated request, nil for a new one. A file is told of as it is now: its client has not
// done anything to it, because it did not have the answer.
//
// Errors: those of reading the checkpoint. A file that is gone meanwhile is the answer's error.
func (ns *Namespace) replay(key retryKey, op uint32) (*Result, error) {
	a, ok := ns.retries.find(key)
	if !ok || a.op() != op { // another operation under a used number: the client starts over
		return nil, nil
	}
	r := &Result{OK: true, Replayed: true}
	id := a.inode()
	if id == 0 {
		return r, nil
	}
	if op == opAddDirective {
		r.Directive = int64(id)
		return r, nil
	}
	if op == opSnapshots || op == opPublish {
		again, err := ns.replaySnapshot(r, uint32(id-1))
		if op == opPublish && err == nil && again.Err != nil { // the rest of it was done all the same
			return r, nil
		}
		return again, err
	}
	n, err := ns.byID(id)
	if err != nil {
		return nil, err
	}
	if n == nil || n.file == nil || !n.attached() {
		return &Result{Replayed: true, Err: metadata.Errorf(metadata.ErrNotExist,
			"The request was carried out, and its file (inode %d) was deleted since", id)}, nil
	}
	r.Status = new(n.status())
	if last := n.file.last(); last != nil && a&answerBlock != 0 {
		r.Block, r.Offset = new(*last), n.file.length-last.Length
	}
	return r, nil
}

// loadRetries reads the chunks.
func (ns *Namespace) loadRetries() error {
	c := ns.retries
	linking := c.linkBeside(linkersHere())
	var bad error
	err := ns.view.Scan([]byte{classRetry}, nil, func(key, value []byte) bool {
		if len(key) != 9 {
			bad = fmt.Errorf("record %x", key)
			return false
		}
		sequence := binary.BigEndian.Uint64(key[1:])
		if n := len(c.chunks); n > 0 && sequence != c.chunks[n-1].sequence+1 {
			bad = fmt.Errorf("record %d comes after record %d", sequence, c.chunks[n-1].sequence)
			return false
		}
		if len(c.chunks) == 0 && ns.meta.nextRetry > sequence {
			c.index.reserve(c, int(min((ns.meta.nextRetry-sequence)*chunkAnswers, uint64(c.limit/answerBytes))))
		}
		last := &chunk{sequence: sequence, hash: hashRecord(key, value)}
		c.chunks = append(c.chunks, last)
		if bad = c.decode(last, value, sequence == ns.meta.nextRetry-1); bad != nil {
			return false
		}
		linking.add(last)
		return true
	})
	linking.wait()
	c.index.reserve(c, c.answers)
	if err != nil {
		return err
	}
	if n := len(c.chunks); bad == nil && n > 0 {
		last := c.chunks[n-1]
		if last.sequence != ns.meta.nextRetry-1 || last.last > ns.meta.logTime {
			bad = fmt.Errorf("record %d at %d is not the last one before %d at %d", last.sequence, last.last, ns.meta.nextRetry, ns.meta.logTime)
		}
	}
	if bad != nil {
		return fmt.Errorf("retry cache: %w: %w", bad, metadata.ErrCorrupt)
	}
	return nil
}

// linkers lead the index to answers of chunks that are complete, beside who decodes more of them. Buckets are anywhere in memory, so most of the time goes in waiting for
// it: each linker has its share of them. There must be room for all answers in the index: while there are linkers it does not grow.
type linkers struct {
	each []chan *chunk
	done sync.WaitGroup
}

// linkersHere is how many linkers are worth it: who decodes has a processor, too.
func linkersHere() int { return max(1, min(runtime.GOMAXPROCS(0)-1, 4)) }

// linkBeside starts n linkers.
func (c *retryCache) linkBeside(n int) *linkers {
	l := &linkers{each: make([]chan *chunk, n)}
	for k := range l.each {
		l.each[k] = make(chan *chunk, 64)
		l.done.Go(func() {
			for one := range l.each[k] {
				for i := range one.n {
					if b := c.index.number(one.client[i], one.call[i]); b%n == k {
						c.link(one, i, b)
					}
				}
			}
		})
	}
	return l
}

// add hands over the next chunk.
func (l *linkers) add(one *chunk) {
	for _, c := range l.each {
		c <- one
	}
}

// wait returns when all of them are in the index.
func (l *linkers) wait() {
	for _, c := range l.each {
		close(c)
	}
	l.done.Wait()
}

// decode fills the last chunk from its record; its answers are not in the index yet. open: it may go on to grow.
func (c *retryCache) decode(last *chunk, record []byte, open bool) error {
	rest := record
	bad := false
	unsigned := func(limit uint64) uint64 {
		v, n := binary.Uvarint(rest)
		if n <= 0 || v > limit {
			bad = true
			return 0
		}
		rest = rest[n:]
		return v
	}
	signed := func(before int64, limit int64) int64 {
		v, n := binary.Varint(rest)
		if n <= 0 || before+v < 0 || before+v > limit {
			bad = true
			return 0
		}
		rest = rest[n:]
		return before + v
	}
	const never = 1 << 62
	last.first = LogTime(unsigned(never))
	now := last.first
	w := &c.open
	if open {
		w.begin(last.sequence, now)
	}
	var keys [][16]byte
	var numbers []uint32 // of the clients in the record
	var key retryKey
	var id int64
	for len(rest) > 0 && !bad {
		ref := unsigned(uint64(len(keys)))
		if bad || ref == 0 && len(rest) < len(key.client) {
			bad = true
			break
		}
		if ref == 0 {
			rest = rest[copy(key.client[:], rest):]
			keys, numbers = append(keys, key.client), append(numbers, c.number(key.client))
			ref = uint64(len(keys))
		}
		key.client = keys[ref-1]
		key.call = int32(signed(int64(key.call), 1<<31-1))
		later := LogTime(unsigned(never))
		if now += later; now > never || len(rest) == 0 || bad || last.n == chunkAnswers {
			bad = true
			break
		}
		a := answer(rest[0])
		rest = rest[1:]
		if a.op() == opCreate || a.op() == opAppend || a.op() == opSnapshots || a.op() == opPublish || a.op() == opStore || a.op() == opAddDirective {
			id = signed(id, 1<<56-1)
			a |= answer(id) << answerINode
			if a.inode() == 0 {
				bad = true
			}
		}
		if bad = bad || a&0x80 != 0; bad {
			break
		}
		c.place(numbers[ref-1], key.call, a, now)
		if open {
			w.append(numbers[ref-1], key, a, later)
		}
	}
	if bad || last.n == 0 || open && string(w.record) != string(record) {
		return fmt.Errorf("record %d of %d bytes makes no sense after %d answers", last.sequence, len(record), last.n)
	}
	w.changed = false
	return nil
}
