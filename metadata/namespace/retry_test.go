package namespace

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// numbered makes a command a request that may be repeated.
func numbered(cmd *logpb.Command, client string, call int32) *logpb.Command {
	cmd.ClientId, cmd.CallId = []byte(client), call
	return cmd
}

// Ten minutes of the greatest rate that is promised, 40,000 changes a second of which half have an answer, fit, and the
// first answer is there after all the others.
func TestAnswersOfTenMinutesFit(t *testing.T) {
	if testing.Short() {
		t.Skip("two million answers, one after the other")
	}
	if most := RetryBytes / answerBytes; most < 20_000*600 {
		t.Errorf("%d answers fit", most)
	}
	w := newWorld(t, Config{})
	ns := w.ns
	victim := retryKey{client: [16]byte{1, 2, 3}, call: 7}
	ns.remember(victim, opRename, &Result{OK: true})
	const others = 2_000_000
	var key retryKey
	for i := range others {
		binary.LittleEndian.PutUint64(key.client[:], uint64(i%1000)+1000)
		key.call = int32(i / 1000)
		ns.meta.logTime = LogTime(i) * RetryExpiry / others
		ns.expireRetries()
		ns.remember(key, opRename, &Result{OK: true})
	}
	ns.settle()
	if r, err := ns.replay(victim, opRename); r == nil || err != nil || !r.OK {
		t.Errorf("forgotten after %d answers to others: %v, %v", others, r, err)
	}
	for i := range others / 1000 {
		key.call = int32(i)
		if r, _ := ns.replay(key, opRename); r == nil {
			t.Fatalf("answer %d is forgotten", i)
		}
	}
	if c := ns.Counts(); c.Retries != others+1 || c.RetriesEvicted != 0 || c.RetryBytes > RetryBytes {
		t.Errorf("%+v", c)
	}
	// As many commands as came let all of it go.
	ns.meta.logTime += RetryExpiry + chunkSpan
	for range len(ns.retries.chunks) {
		ns.expireRetries()
	}
	if c := ns.Counts(); c.Retries != 0 || c.RetryBytes != 0 || len(ns.retries.table) != len(ns.retries.free) {
		t.Errorf("later: %+v", c)
	}
}

// A request is answered again after 200,000 changes of others, on a member that has restarted too.
func TestRepeatedRequestAfterMuchElse(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, &logpb.Mkdirs{Target: to("/victim"), Mode: 0o755})
	request := numbered(command(super, &logpb.Rename{Source: to("/victim"), Target: to("/renamed")}), "0123456789abcdef", 7)
	if r := w.apply(request); r.Err != nil {
		t.Fatal(r.Err)
	}
	var entry [][]byte
	for i := range int32(200_000) {
		// A file that is deleted and is not there has no answer; one that is has.
		data, err := numbered(command(super, &logpb.SetXAttr{
			Target: to("/renamed"), Create: true, Replace: true, Attribute: &logpb.XAttr{Name: "a"},
		}), "other-client-000", i).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		if entry = append(entry, data); len(entry) == 1000 {
			w.entry(entry...)
			entry = nil
		}
	}
	for _, when := range []string{"before", "after"} {
		if r := w.apply(request); r.Err != nil || !r.Replayed {
			t.Errorf("%s a restart: %+v", when, r)
		}
		w.reopen()
	}
	w.check()
}

// When the bound is reached the oldest answers go, and it is counted.
func TestAnswersAreBounded(t *testing.T) {
	w := newWorld(t, Config{})
	ns := w.ns
	key := func(i int) retryKey {
		var k retryKey
		binary.LittleEndian.PutUint64(k.client[:], uint64(i))
		k.call = int32(i)
		return k
	}
	// A client for each answer, which is what costs most.
	const limit = 8 << 20
	ns.retries.limit = limit
	const fit = limit / (answerBytes + clientBytes)
	for i := range fit + 3*chunkAnswers {
		ns.remember(key(i), opDelete, &Result{OK: true})
	}
	c := ns.Counts()
	if c.RetryBytes > limit || c.RetryBytes < limit*9/10 || c.RetriesEvicted < 3*chunkAnswers || c.RetriesEvicted > 5*chunkAnswers {
		t.Errorf("%+v", c)
	}
	if r, _ := ns.replay(key(0), opDelete); r != nil {
		t.Error("the oldest is kept")
	}
	for _, i := range []int{int(c.RetriesEvicted), fit, fit + 3*chunkAnswers - 1} {
		if r, _ := ns.replay(key(i), opDelete); r == nil {
			t.Errorf("%d is forgotten", i)
		}
	}
	for name, id := range map[string]string{"short": "client", "long": "client-0000-0000-0000", "none": ""} {
		if _, ok := retryKeyOf("ann", []byte(id), 1); ok {
			t.Errorf("%s client id is cached", name)
		}
	}
	if _, ok := retryKeyOf("ann", []byte("client-0000-0000"), -1); ok {
		t.Error("a negative call id is cached")
	}
}

// The index against a map, while answers come, repeat, go and are loaded.
func TestRetryIndexAgreesWithAMap(t *testing.T) {
	w := newWorld(t, Config{})
	r := rand.New(rand.NewPCG(3, 4))
	type kept struct {
		op uint32
		at LogTime
	}
	model := map[retryKey]kept{}
	w.do(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	ops := []uint32{opRename, opDelete, opConcat}
	for round := range 12 {
		ns := w.ns
		for range 4000 {
			k := retryKey{client: [16]byte{byte(r.IntN(40))}, call: int32(r.IntN(3000))}
			op := ops[r.IntN(len(ops))]
			ns.remember(k, op, &Result{OK: true})
			model[k] = kept{op, ns.meta.logTime}
			if r.IntN(50) == 0 {
				ns.meta.logTime += LogTime(r.IntN(9000))
				ns.expireRetries()
			}
		}
		w.now = metadata.Time(ns.meta.logTime)
		w.do(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
		if round%3 == 2 {
			w.reopen()
			ns = w.ns
		}
		for k, want := range model {
			got, ok := ns.retries.find(k)
			young := ns.meta.logTime-want.at <= RetryExpiry
			if young && (!ok || got.op() != want.op) || ok && ns.meta.logTime-want.at > RetryExpiry+chunkSpan+RetryExpiry {
				t.Fatalf("round %d: %v of %d at %d: %v, %v", round, k, want.at, ns.meta.logTime, got, ok)
			}
		}
		w.check()
	}
}

// What is told of a file is how it is now; one that is gone is an error, not a second file.
func TestRepeatedCreateTellsOfTheFileAsItIs(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, &logpb.ReserveIDs{Blocks: 1, Generations: 1})
	request := numbered(command(super, create("/f", "c")), "0123456789abcdef", 7)
	first := w.apply(request)
	if first.Err != nil {
		t.Fatal(first.Err)
	}
	w.do(super, &logpb.Rename{Source: to("/f"), Target: to("/g")})
	w.do(super, &logpb.SetPermission{Target: to("/g"), Mode: 0o600})
	if r := w.apply(request); r.Err != nil || !r.Replayed || r.Status.ID != first.Status.ID || r.Status.Mode != 0o600 || !r.Status.UnderConstruction {
		t.Errorf("%+v %+v", r, r.Status)
	}
	reopened := numbered(command(super, &logpb.Append{Target: to("/g"), ClientName: "d"}), "0123456789abcdef", 8)
	block := &logpb.Block{Id: int64(metadata.FirstBlockID), Generation: uint64(metadata.FirstGeneration)}
	w.do(super, &logpb.AddBlock{Inode: uint64(first.Status.ID), ClientName: "c", Block: block})
	block.Length = 5
	w.do(super, &logpb.Complete{Inode: uint64(first.Status.ID), ClientName: "c", Last: block})
	opened := w.apply(reopened)
	w.reopen()
	if r := w.apply(reopened); opened.Err != nil || r.Err != nil || !r.Replayed || *r.Block != *opened.Block || r.Offset != opened.Offset || *r.Status != *opened.Status {
		t.Errorf("%+v %+v, first %+v %+v", r, r.Block, opened, opened.Block)
	}
	w.do(super, &logpb.Delete{Target: to("/g")})
	if r := w.apply(request); !errors.Is(r.Err, metadata.ErrNotExist) || !r.Replayed {
		t.Errorf("%+v", r)
	}
	if st, err := w.ns.Stat(super, "/f"); st != nil || err != nil {
		t.Error("it is made again")
	}
	w.check()
}

// BenchmarkLoadRetries reads the records of 10 M answers, as a start does after ten minutes at 17,000 of them a second.
func BenchmarkLoadRetries(b *testing.B) {
	const answers = 10_000_000
	filled := newRetryCache()
	var records [][]byte
	for sequence := uint64(1); sequence <= answers/chunkAnswers; sequence++ {
		last := &chunk{sequence: sequence}
		filled.chunks = append(filled.chunks, last)
		filled.open.begin(sequence, 0)
		for i := range chunkAnswers {
			key := retryKey{call: int32(sequence*chunkAnswers) + int32(i)}
			key.client[0] = byte(i % 64)
			client, a := filled.number(key.client), answer(opCreate)|answer(sequence)<<answerINode
			filled.add(client, key.call, a, 0)
			filled.open.append(client, key, a, 0)
		}
		records = append(records, slices.Clone(filled.open.record))
	}
	for b.Loop() {
		c := newRetryCache()
		c.index.reserve(c, answers)
		linking := c.linkBeside(linkersHere())
		for i, record := range records {
			last := &chunk{sequence: uint64(i) + 1}
			c.chunks = append(c.chunks, last)
			if err := c.decode(last, record, false); err != nil {
				b.Fatal(err)
			}
			linking.add(last)
		}
		linking.wait()
	}
}
