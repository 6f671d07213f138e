package namespace

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Bounds of the retry cache. They are part of the state machine.
const (
	// RetryExpiry is how long an answer is kept (dfs.namenode.retrycache.expirytime.millis).
	RetryExpiry = LogTime(10 * 60 * 1000)
	// RetryPerClient and RetryTotal are how many are kept; the oldest go first.
	RetryPerClient = 4096
	RetryTotal     = 131072
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

// retryEntry is an answer, as its record. It does not change, but for the time of its end.
type retryEntry struct {
	key      retryKey
	sequence uint64
	time     LogTime
	value    []byte
	hash     uint64
	epoch    uint32 // in which it came
	gone     uint32 // the epoch in which it was forgotten; 0: it is not
}

// retryRecord is the key of an answer. Sequence numbers do not come again, so that a record is written once and deleted
// once, whatever clients do with their numbers.
func retryRecord(sequence uint64) string { return idKey(classRetry, sequence) }

// retryCache remembers the answers of operations that must not be done twice. Only successes are in it: an operation that
// failed, or answered false, is tried again. All of it is in memory.
type retryCache struct {
	entries map[retryKey]*retryEntry
	order   queue // oldest first, with entries that are gone in between
	clients map[[16]byte]*queue
}

// queue is a first-in-first-out list.
type queue struct {
	items []*retryEntry
	head  int
	live  int // items that are not gone
}

func (q *queue) push(e *retryEntry) {
	q.items = append(q.items, e)
	q.live++
}

// front is the oldest entry that is not gone, or nil.
func (q *queue) front() *retryEntry {
	for q.head < len(q.items) && q.items[q.head].gone != 0 {
		q.items[q.head] = nil
		q.head++
	}
	if q.head > 64 && q.head > len(q.items)/2 {
		q.items = append([]*retryEntry(nil), q.items[q.head:]...)
		q.head = 0
	}
	if q.head == len(q.items) {
		return nil
	}
	return q.items[q.head]
}

func newRetryCache() *retryCache {
	return &retryCache{entries: map[retryKey]*retryEntry{}, clients: map[[16]byte]*queue{}}
}

func (c *retryCache) insert(e *retryEntry) {
	c.entries[e.key] = e
	c.order.push(e)
	q := c.clients[e.key.client]
	if q == nil {
		q = &queue{}
		c.clients[e.key.client] = q
	}
	q.push(e)
}

// remember stores the answer of an operation.
func (ns *Namespace) remember(key retryKey, op uint32, r *Result) {
	c := ns.retries
	if old := c.entries[key]; old != nil {
		ns.forget(old)
	}
	e := &retryEntry{
		key: key, sequence: ns.meta.nextRetry, time: ns.meta.logTime,
		value: ns.enc.retry(key, op, ns.meta.logTime, r), epoch: ns.epoch,
	}
	e.hash = e.sum()
	ns.meta.nextRetry++
	ns.hash += e.hash
	if len(ns.newRetries) >= 2*RetryTotal {
		// Most have gone since; those that came and went between two checkpoints concern neither.
		ns.newRetries = slices.DeleteFunc(ns.newRetries, func(e *retryEntry) bool { return e.gone != 0 })
	}
	ns.newRetries = append(ns.newRetries, e)
	c.insert(e)
	if q := c.clients[key.client]; q.live > RetryPerClient {
		ns.forget(q.front())
	}
	if len(c.entries) > RetryTotal {
		ns.forget(c.order.front())
	}
}

// retry encodes an answer into bytes of its own.
func (e *encoder) retry(key retryKey, op uint32, now LogTime, r *Result) []byte {
	record := &e.answer
	record.Client = append(record.Client[:0], key.client[:]...)
	record.Call, record.Time, record.Op = key.call, int64(now), op
	record.Ok, record.Offset = r.OK, r.Offset
	record.Status, record.Block = nil, nil
	if s := r.Status; s != nil {
		t := &e.status
		t.Id, t.Length, t.Mode, t.Owner, t.Group = uint64(s.ID), s.Length, uint32(s.Mode), s.Owner, s.Group
		t.Mtime, t.Atime, t.Replication = int64(s.MTime), int64(s.ATime), uint32(s.Replication)
		t.BlockSize, t.UnderConstruction, t.Acl = s.BlockSize, s.UnderConstruction, s.ACL
		record.Status = t
	}
	if b := r.Block; b != nil {
		record.Block = &logpb.Block{Id: int64(b.ID), Generation: uint64(b.Generation), Length: b.Length}
	}
	return marshal(nil, record)
}

func (e *retryEntry) sum() uint64 {
	var buf [9]byte
	return hashRecord(appendID(buf[:0], classRetry, e.sequence), e.value)
}

// expireRetries forgets what is older than RetryExpiry. At most a few go at a time, so that no command pays for many.
func (ns *Namespace) expireRetries() {
	for range 4 {
		e := ns.retries.order.front()
		if e == nil || ns.meta.logTime-e.time <= RetryExpiry {
			return
		}
		ns.forget(e)
	}
}

func (ns *Namespace) forget(e *retryEntry) {
	c := ns.retries
	e.gone = ns.epoch
	delete(c.entries, e.key)
	ns.hash -= e.hash
	if e.epoch != ns.epoch {
		ns.goneRetries = append(ns.goneRetries, e.sequence)
	}
	c.order.live--
	c.order.front()
	q := c.clients[e.key.client]
	if q.live--; q.live == 0 {
		delete(c.clients, e.key.client)
		return
	}
	q.front()
}

// replay returns the stored answer of a repeated request; nil for a new one.
func (ns *Namespace) replay(key retryKey, op uint32) *Result {
	e := ns.retries.entries[key]
	if e == nil || ns.meta.logTime-e.time > RetryExpiry {
		return nil
	}
	var record logpb.Retry
	if err := record.UnmarshalVT(e.value); err != nil {
		panic(fmt.Sprintf("namespace: retry record %x: %v", e.value, err)) // it was checked when it was loaded
	}
	if record.Op != op {
		return nil // another operation under a used number: the client starts over
	}
	r := &Result{OK: record.Ok, Offset: record.Offset, Replayed: true}
	if s := record.Status; s != nil {
		r.Status = &metadata.FileStatus{
			ID: metadata.INodeID(s.Id), Type: metadata.TypeFile, Length: s.Length, Mode: metadata.Mode(s.Mode),
			Owner: s.Owner, Group: s.Group, MTime: metadata.Time(s.Mtime), ATime: metadata.Time(s.Atime),
			Replication: uint16(s.Replication), BlockSize: s.BlockSize, UnderConstruction: s.UnderConstruction, ACL: s.Acl,
		}
	}
	if b := record.Block; b != nil {
		r.Block = new(blockOf(b))
	}
	return r
}

func (ns *Namespace) loadRetries() error {
	var bad error
	err := ns.view.Scan([]byte{classRetry}, nil, func(key, value []byte) bool {
		var r logpb.Retry
		if bad = r.UnmarshalVT(value); bad != nil {
			return false
		}
		id := retryKey{call: r.Call}
		if copy(id.client[:], r.Client) != len(id.client) || len(r.Client) != len(id.client) || r.Call < 0 || len(key) != 9 {
			bad = fmt.Errorf("record %x", key)
			return false
		}
		e := &retryEntry{
			key: id, sequence: binary.BigEndian.Uint64(key[1:]), time: LogTime(r.Time),
			value: slices.Clone(value), hash: hashRecord(key, value), epoch: loadedEpoch,
		}
		ns.retries.insert(e) // in the order of keys, which is that of age
		return true
	})
	if err != nil {
		return err
	}
	if bad != nil {
		return fmt.Errorf("retry cache: %w: %w", bad, metadata.ErrCorrupt)
	}
	return nil
}
