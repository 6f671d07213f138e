package namespace

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/faulty"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// A member that is older than the proposer stops instead of doing something else than the others.
func TestNewerCommandStops(t *testing.T) {
	known, err := command(super, &logpb.Mkdirs{Target: to("/a"), Mode: 0o755}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	field := func(number protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
	}
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"an operation":                {field(500, []byte("x")), "newer version"},
		"a field of the command":      {append(field(400, []byte("x")), known...), "newer version"},
		"a field of the operation":    {field(10, field(77, []byte("x"))), "newer version"},
		"a field of the target":       {field(10, field(1, field(77, []byte("x")))), "newer version"},
		"a field of the caller":       {append(field(1, field(77, []byte("x"))), known...), "newer version"},
		"bytes that are no message":   {[]byte{0xff, 0xff, 0xff}, "damaged"},
		"a message that is cut short": {known[:len(known)-2], "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			defer func() {
				r := recover()
				if r == nil || !strings.Contains(fmt.Sprint(r), test.want) || !strings.Contains(fmt.Sprint(r), "entry 1") {
					t.Errorf("panic %v, want one with %q", r, test.want)
				}
				if err, ok := r.(error); !ok || errors.Is(err, release.ErrOlder) != (test.want == "newer version") {
					t.Errorf("panic %v is of no kind by which the store stops in one line", r)
				}
			}()
			w.entry(test.data)
			t.Error("it was applied")
		})
	}
}

// A command without a message that it is made of is refused by every member alike: a panic would come again at every
// start. The operations and their messages are those of the schema, so that no new one is forgotten.
func TestCommandWithoutAPartIsRefused(t *testing.T) {
	optional := map[protoreflect.FullName]bool{
		"hops.metadata.log.v1.AddBlock.previous": true, "hops.metadata.log.v1.Complete.last": true, "hops.metadata.log.v1.Store.body": true,
	}
	ops := new(logpb.Command).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	w := newWorld(t, Config{})
	if r := w.apply(NewCommand(super, nil, -1, 1)); !errors.Is(r.Err, metadata.ErrInvalidArgument) || !strings.Contains(r.Err.Error(), "has no operation") {
		t.Errorf("no operation: %v", r.Err)
	}
	w.check()
	for i := range ops.Len() {
		op := ops.Get(i)
		fields := op.Message().Fields()
		whole := func() (*logpb.Command, protoreflect.Message) {
			cmd := NewCommand(super, nil, -1, 1)
			m := cmd.ProtoReflect().Mutable(op).Message()
			for j := range fields.Len() {
				if f := fields.Get(j); f.Message() != nil && !f.IsList() {
					m.Mutable(f)
				}
			}
			return cmd, m
		}
		for j := range fields.Len() {
			part := fields.Get(j)
			if part.Message() == nil || part.IsList() {
				continue
			}
			t.Run(string(part.FullName()), func(t *testing.T) {
				for _, there := range []bool{true, false} {
					w := newWorld(t, Config{})
					w.do(super, &logpb.Mkdirs{Target: to("/a"), Mode: 0o755})
					cmd, m := whole()
					if !there {
						m.Clear(part)
					}
					err := w.apply(cmd).Err
					refused := errors.Is(err, metadata.ErrInvalidArgument) && strings.Contains(err.Error(), "has no "+string(part.Name()))
					if want := !there && !optional[part.FullName()]; refused != want {
						t.Errorf("there: %v, refused: %v, want %v", there, refused, want)
					}
					w.check()
				}
			})
		}
	}
}

func TestAppliedEntriesAreSkipped(t *testing.T) {
	w := newWorld(t, Config{})
	scribble(w, rand.New(rand.NewPCG(1, 1)), 30)
	hash := w.ns.Hash()
	for i, commands := range w.log {
		for _, r := range w.ns.Apply(uint64(i+1), commands) {
			if r != nil {
				t.Fatalf("entry %d was applied again", i+1)
			}
		}
	}
	if w.ns.Hash() != hash {
		t.Error("the state changed")
	}
}

// How commands are put into entries is the proposer's affair.
func TestEntriesOfManyCommandsDoTheSame(t *testing.T) {
	w := newWorld(t, Config{})
	scribble(w, rand.New(rand.NewPCG(7, 7)), 300)
	var all [][]byte
	for _, commands := range w.log {
		all = append(all, commands...)
	}
	ns := fresh(t, mem.New(), 0)
	ns.Apply(w.index, all)
	if ns.Hash() != w.ns.Hash() {
		t.Error("in one entry they give another state")
	}
	checkSound(t, ns)
}

func TestLogTimeNeverGoesBackNorFarAhead(t *testing.T) {
	w := newWorld(t, Config{})
	at := func(now LogTime) LogTime {
		cmd := command(super, &logpb.RenewLease{ClientName: "c"})
		cmd.LogTime = int64(now)
		data, err := cmd.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		w.entry(data)
		return w.ns.LogTime()
	}
	for _, step := range []struct{ given, want LogTime }{{5000, 5000}, {1000, 5000}, {6000, 6000}, {math.MaxInt64, 6000}, {math.MinInt64, 6000}, {maxIdle, maxIdle}} {
		if got := at(step.given); got != step.want {
			t.Errorf("after a command of %d it is %d, want %d", step.given, got, step.want)
		}
	}
	w.reopen()
	if got := w.ns.LogTime(); got != maxIdle {
		t.Errorf("%d after a restart", got)
	}
}

// A new leader renews all leases in one command; none was renewed while nobody led.
func TestAllLeasesAreRenewedTogether(t *testing.T) {
	w := newWorld(t, Config{})
	for i := range 3 {
		w.do(super, create(fmt.Sprintf("/f%d", i), fmt.Sprintf("c%d", i)))
	}
	w.now += metadata.Time(SoftLimit) - 1
	w.do(super, &logpb.RenewLease{Everybody: true})
	w.reopen()
	w.now += metadata.Time(SoftLimit)
	for i, l := range w.ns.Leases() {
		if r := w.do(super, create(fmt.Sprintf("/f%d", i), "other")); r.Expired != nil || !errors.Is(r.Err, metadata.ErrBeingCreated) {
			t.Errorf("%s: %v", l.Holder, r.Err)
		}
	}
	w.check()
	w.now += 2
	if r := w.do(super, create("/f0", "other")); r.Expired == nil {
		t.Errorf("they never end: %v", r.Err)
	}
}

// The bounds act the same on a member that has loaded the cache as on one that has seen it grow.
func TestRetryEvictionSurvivesRestart(t *testing.T) {
	w := newWorld(t, Config{})
	r := rand.New(rand.NewPCG(8, 8))
	for range 5 {
		scribble(w, r, 100)
		w.reopen()
		w.now += metadata.Time(RetryExpiry) / 3
	}
	again := fresh(t, mem.New(), 0)
	w.replay(again)
	if again.Hash() != w.ns.Hash() {
		t.Error("the states differ")
	}
	w.check()
}

func TestAnswersSurviveInSnapshots(t *testing.T) {
	w := newWorld(t, Config{})
	cmd := command(super, create("/f", "c1"))
	cmd.ClientId, cmd.CallId = []byte("0123456789abcdef"), 7
	first := w.apply(cmd)
	other := restore(t, w.snapshot())
	data, _ := cmd.MarshalVT()
	again := other.Apply(w.index+1, [][]byte{data})[0].(*Result)
	if again.Err != nil || !again.Replayed || *again.Status != *first.Status {
		t.Errorf("got %+v %+v, first was %+v", again, again.Status, first.Status)
	}
}

// Another user who repeats the numbers of a request gets neither its answer nor its effect.
func TestAnswersAreForTheUserWhoAsked(t *testing.T) {
	w := newWorld(t, Config{})
	w.do(super, &logpb.Mkdirs{Target: to("/secret"), Mode: 0o777})
	w.do(super, &logpb.SetOwner{Target: to("/secret"), Owner: "bob"})
	numbered := func(c metadata.Caller) *logpb.Command {
		cmd := command(c, create("/secret/f", "c1"))
		cmd.ClientId, cmd.CallId = []byte("0123456789abcdef"), 7
		return cmd
	}
	first := w.apply(numbered(bob))
	if first.Err != nil {
		t.Fatal(first.Err)
	}
	w.do(bob, &logpb.SetPermission{Target: to("/secret"), Mode: 0o700})
	if r := w.apply(numbered(alice)); !errors.Is(r.Err, metadata.ErrPermission) || r.Replayed || r.Status != nil {
		t.Errorf("alice gets %+v", r)
	}
	if r := w.apply(numbered(bob)); r.Err != nil || !r.Replayed || *r.Status != *first.Status {
		t.Errorf("bob gets %+v", r)
	}
	w.reopen()
	if r := w.apply(numbered(alice)); !errors.Is(r.Err, metadata.ErrPermission) {
		t.Errorf("alice gets %+v after a restart", r)
	}
	w.check()
}

// Reads see whole commands while entries are applied and checkpoints written; run with -race.
func TestReadsBesideApply(t *testing.T) {
	slow := func(int, faulty.Call) error {
		for range 10 {
			runtime.Gosched()
		}
		return nil
	}
	w := newWorld(t, Config{Memory: 1, Store: faulty.New(mem.New(), slow)})
	r := rand.New(rand.NewPCG(10, 10))
	scribble(w, r, 100)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(11, 11))
			for {
				select {
				case <-stop:
					return
				default:
				}
				path := fmt.Sprintf("/%c/%c", 'a'+r.IntN(4), 'a'+r.IntN(4))
				w.ns.Prefetch([][]byte{[]byte(path), []byte("/a/b")})
				w.ns.Stat(bob, path)
				w.ns.StatEach(make([]metadata.FileStatus, 3), bob, []string{path, "/a/b", "/"})
				if l, err := w.ns.List(super, "/", "", 2); err != nil || l == nil {
					t.Error("the root does not list", err)
				}
				w.ns.Blocks(super, path, 0, 100)
				w.ns.ContentSummary(super, "/")
				for _, l := range w.ns.Leases() {
					w.ns.FileByID(l.Files[0])
					w.ns.CheckLease(bob, l.Files[0], l.Holder)
				}
				w.ns.BlockOwner(metadata.FirstBlockID)
				w.ns.EachBlock(func(BlockOwner) bool { return true })
				w.ns.StateHash()
				w.ns.Counts()
			}
		})
	}
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if errs := w.ns.Check(); errs != nil {
					t.Error(errs)
					return
				}
				time.Sleep(time.Millisecond)
			}
		}
	})
	for range 20 {
		scribble(w, r, 10)
		s, err := w.ns.Freeze()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := s.WriteTo(new(strings.Builder))
			s.Release()
			done <- err
		}()
		scribble(w, r, 20)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	readers.Wait()
	w.check()
	w.catchUp(t, "restarted", fresh(t, w.cfg.Store, 0))
}

// Effects tell the block map everything: added, changed and removed blocks lead to what EachBlock shows.
func TestEffectsKeepABlockMap(t *testing.T) {
	known := map[metadata.BlockID]BlockOwner{}
	w := newWorld(t, Config{})
	w.cfg.OnEffects = func(e Effects) {
		if e.Index != w.index {
			t.Errorf("effects of entry %d while %d is applied", e.Index, w.index)
		}
		for _, list := range [][]BlockOwner{e.Added, e.Changed} {
			for _, b := range list {
				known[b.Block.ID] = b
			}
		}
		for _, b := range e.Removed {
			delete(known, b.ID)
		}
	}
	w.open()
	r := rand.New(rand.NewPCG(12, 12))
	for range 10 {
		scribble(w, r, 100)
		var all []BlockOwner
		if err := w.ns.EachBlock(func(b BlockOwner) bool { all = append(all, b); return true }); err != nil {
			t.Fatal(err)
		}
		if len(all) != len(known) {
			t.Errorf("%d blocks, %d are known", len(all), len(known))
		}
		for _, b := range all {
			if known[b.Block.ID] != b {
				t.Errorf("block %+v is known as %+v", b, known[b.Block.ID])
			}
			if owner, ok := w.ns.BlockOwner(b.Block.ID); !ok || owner != b {
				t.Errorf("block %+v is found as %+v", b, owner)
			}
		}
		w.reopen()
	}
}

// A listing has the blocks within the length that it states: the next one, whose length nobody knows, begins behind it.
func TestListedBlocksLieWithinTheListedLength(t *testing.T) {
	w := newWorld(t, Config{})
	v := w.do(super, &logpb.ReserveIDs{Blocks: 10, Generations: 10}).Reserved
	r := w.do(super, create("/f", "c"))
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	var previous *logpb.Block
	for i := range 3 {
		next := &logpb.Block{Id: int64(v.FirstBlock) + int64(i), Generation: uint64(v.FirstGeneration) + uint64(i)}
		if r := w.do(super, &logpb.AddBlock{Inode: uint64(r.Status.ID), ClientName: "c", Previous: previous, Block: next}); r.Err != nil {
			t.Fatal(r.Err)
		}
		l, err := w.ns.ListWithBlocks(super, "/", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		want := max(1, i) // an only block is shown whatever its length
		if s := l.Entries[0]; s.Length != int64(i)<<20 || len(l.Files[0].Blocks) != want {
			t.Errorf("with %d blocks: length %d and blocks %v", i+1, s.Length, l.Files[0].Blocks)
		}
		previous = &logpb.Block{Id: next.Id, Generation: next.Generation, Length: 1 << 20}
	}
}
