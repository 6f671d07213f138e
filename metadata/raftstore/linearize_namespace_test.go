package raftstore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/raftstore"
)

var (
	linearizeFor  = flag.Duration("linearize", 0, "how long TestNamespaceIsLinearizable goes on; 0: one fault of each kind")
	linearizeSeed = flag.Uint64("seed", 1, "what TestNamespaceIsLinearizable draws its operations and faults from")
)

// While members stand still, are cut off, die, come and go, and while clocks step, what clients are told of a small tree is what one copy of it, which does
// one thing after the other, would have told them: of changes and of the reads that a leader answers, under its lease or after it has asked. Reads of
// members that do not lead are of one order of all changes, never older than what their client knows (TestObserverReads has the doors).
//
// What has no answer may happen at any time, or not: it is no mistake. An operation that was answered late is one with a late answer.
func TestNamespaceIsLinearizable(t *testing.T) {
	t.Parallel()
	l := newTrial(t)
	for id := range 4 {
		l.clients.Go(func() { l.client(id) })
	}
	for id := range 2 {
		w := &watcher{id: 100 + id}
		l.watchers = append(l.watchers, w)
		l.clients.Go(func() { l.watch(w) })
	}
	faults := []func(){l.pause, l.exchange, l.kill, l.handOver}
	began := time.Now()
	for n := 0; n < len(faults) || time.Since(began) < *linearizeFor; n++ {
		l.progress(250)
		if n%len(faults) == 0 && n > 0 {
			l.rng.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		}
		faults[n%len(faults)]()
	}
	l.progress(250)
	l.finish()
	l.late.Wait()
	l.check()
}

// finish ends the clients.
func (l *trial) finish() {
	l.finished.Do(func() { close(l.done) })
	l.clients.Wait()
}

// timers: a failover takes a second, and a machine on which others work loses no leader.
var timers = raftstore.Timers{Heartbeat: 500 * time.Millisecond, Lease: 500 * time.Millisecond, Commit: 10 * time.Millisecond}

// patience is how long the test waits for what takes moments on an idle machine.
const patience = time.Minute

// trial is a group of namespaces, with who uses it and what they were told.
type trial struct {
	t           *testing.T
	rng         *rand.Rand
	credentials security.Credentials
	dir         string
	ports       processes.Ports
	members     map[string]*member // that there are; their processes may not run
	next        int                // number of a member

	mu   sync.RWMutex
	runs map[string]*running // guarded by mu

	done     chan struct{} // closed: nobody begins anything
	finished sync.Once
	wires    struct {
		sync.Mutex
		open []net.Conn
	}
	clients  sync.WaitGroup
	late     sync.WaitGroup // requests whose client has gone on
	watchers []*watcher

	began time.Time
	// skew is added to the wall clocks of proposers, in milliseconds.
	skew   atomic.Int64
	blocks atomic.Uint64
	tree   atomic.Int64
	turn   sync.Mutex // held while a tree is made
	told   atomic.Int64
	stale  atomic.Int64 // commands that were resolved before something moved
	// acknowledged is the last entry of which somebody was told that it was done.
	acknowledged atomic.Uint64

	book struct {
		sync.Mutex
		ops                     []porcupine.Operation
		entries                 map[uint64][][]byte
		leases, quorums, maybes int
	}
}

// member is what outlives a process.
type member struct {
	id, dir, address string
	store            *mem.Store
	stall            *stall
	// owes is how many answers are late.
	owes atomic.Int64
}

// ask notes that somebody asks the member something; what it returns is called when there is an answer.
func (m *member) ask() (answered func()) {
	timer := time.AfterFunc(late, func() { m.owes.Add(1) })
	return func() {
		if !timer.Stop() {
			m.owes.Add(-1)
		}
	}
}

// running is a process: one life of a member.
type running struct {
	*member
	host  *raftstore.Host
	group *raftstore.Group
	ns    *namespace.Namespace
	stop  context.CancelFunc
	ended chan error
	// ahead is by how much the clock of leases has stepped.
	ahead atomic.Int64
}

// stall is what makes a member stand still, with its connections. When it goes on, requests may come first and raft later.
type stall struct {
	mu         sync.Mutex
	gate, raft chan struct{} // closed: it goes on
}

func newStall() *stall {
	s := &stall{gate: make(chan struct{}), raft: make(chan struct{})}
	close(s.gate)
	close(s.raft)
	return s
}

func (s *stall) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate, s.raft = make(chan struct{}), make(chan struct{})
}

// goOn lets it go on, if it does not: those who wait, and after a moment raft and the network.
func (s *stall) goOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if open(s.gate) {
		return
	}
	close(s.gate)
	raft := s.raft
	time.AfterFunc(30*time.Millisecond, func() { close(raft) })
}

func open(gate chan struct{}) bool {
	select {
	case <-gate:
		return true
	default:
		return false
	}
}

// stopped reports whether the process stands still.
func (s *stall) stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !open(s.gate)
}

// waitBelow is wait for raft and the network.
func (s *stall) waitBelow() {
	s.mu.Lock()
	gate := s.raft
	s.mu.Unlock()
	<-gate
}

// wait waits until the process does not stand still.
func (s *stall) wait() {
	s.mu.Lock()
	gate := s.gate
	s.mu.Unlock()
	<-gate
}

// Enabled, Handle, WithAttrs and WithGroup implement slog.Handler: who says something while the process stands still does so when it goes on. raft's main
// loop says something before it gives up leadership.
func (s *stall) Enabled(context.Context, slog.Level) bool { return true }
func (s *stall) WithAttrs([]slog.Attr) slog.Handler       { return s }
func (s *stall) WithGroup(string) slog.Handler            { return s }
func (s *stall) Handle(context.Context, slog.Record) error {
	s.waitBelow()
	return nil
}

// copied is a state machine whose entries are written down.
type copied struct {
	*namespace.Namespace
	trial *trial
	stall *stall
}

// done is what a command answered, and in which entry.
type done struct {
	*namespace.Result
	entry uint64
}

func (c *copied) Apply(index uint64, commands [][]byte) []any {
	c.stall.waitBelow()
	c.trial.note(index, commands)
	results := c.Namespace.Apply(index, commands)
	for i, r := range results {
		if r, ok := r.(*namespace.Result); ok {
			results[i] = done{r, index}
		}
	}
	return results
}

func (l *trial) note(index uint64, commands [][]byte) {
	b := &l.book
	b.Lock()
	defer b.Unlock()
	if has, ok := b.entries[index]; !ok {
		b.entries[index] = commands
	} else if !slices.EqualFunc(has, commands, bytes.Equal) {
		l.t.Errorf("two members have applied different entries %d", index)
	}
}

// user is who does everything in the trees.
var user = metadata.Caller{User: "bob", Groups: []string{"staff"}, Host: "127.0.0.1"}

func newTrial(t *testing.T) *trial {
	l := &trial{
		t: t, rng: rand.New(rand.NewPCG(*linearizeSeed, 1)), credentials: securitytest.Credentials(t), dir: t.TempDir(), members: map[string]*member{}, runs: map[string]*running{},
		done: make(chan struct{}), began: time.Now(),
	}
	l.book.entries = map[uint64][][]byte{}
	t.Cleanup(func() {
		for _, m := range l.members {
			m.stall.goOn()
		}
		l.finish()
		l.late.Wait()
		for _, r := range l.all() {
			l.end(r)
		}
		l.ports.Close()
	})
	for range 3 {
		l.add()
	}
	for _, m := range l.members {
		l.run(m, true)
	}
	for _, r := range l.all() {
		eventually(t, r.id+" votes", func() bool { return !r.group.Status().Joining })
	}
	l.route()
	root := metadata.Caller{User: "hops", Superuser: true}
	for _, c := range []*logpb.Command{
		{Op: &logpb.Command_ReserveIds{ReserveIds: &logpb.ReserveIDs{Blocks: 1 << 30, Generations: 1 << 30, Owner: "hops", Group: "supergroup"}}},
		{Op: &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: &logpb.Target{Path: "w"}, Mode: 0o777}}},
	} {
		command := namespace.NewCommand(root, nil, -1, 1)
		command.Op = c.Op
		l.insist(command)
	}
	l.plant()
	return l
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// add makes a member that does not run yet.
func (l *trial) add() *member {
	l.t.Helper()
	address, err := l.ports.Take(1)
	if err != nil {
		l.t.Fatal(err)
	}
	l.next++
	m := &member{id: fmt.Sprint("m", l.next), dir: filepath.Join(l.dir, fmt.Sprint("m", l.next)), address: address[0], store: mem.New(), stall: newStall()}
	l.members[m.id] = m
	return m
}

// run starts a member's process. One that is not a founder joins the others.
func (l *trial) run(m *member, founder bool) {
	l.t.Helper()
	ns, err := namespace.Open(namespace.Config{Store: m.store, Owner: "hops", Supergroup: "supergroup", MinBlockSize: 1})
	if err != nil {
		l.t.Fatal(err)
	}
	r := &running{member: m, ns: ns, ended: make(chan error, 1)}
	listener, err := net.Listen("tcp", m.address)
	if err != nil {
		l.t.Fatal(err)
	}
	r.host, err = raftstore.NewHost(raftstore.HostConfig{
		ID: m.id, Listener: listener, Dir: m.dir, Door: security.NewDoor(security.Config{}), Credentials: l.credentials, Role: authority.Namenode, Reserve: -1,
		Logger: slog.New(m.stall), WriteDeadline: time.Hour, OnFatal: func(err error) { l.t.Errorf("%s: %v", m.id, err) },
	})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- r.host.Run(ctx) }()
	rate, start := 0.96+0.08*l.rng.Float64(), raftstore.BootTime()
	cfg := raftstore.GroupConfig{Name: "a", Bootstrap: founder, Timers: timers, SegmentBytes: 1 << 20, SnapshotBytes: 256 << 10}
	cfg.SetClock(func() time.Duration {
		return start + time.Duration(rate*float64(raftstore.BootTime()-start)) + time.Duration(r.ahead.Load())
	})
	for _, id := range slices.Sorted(maps.Keys(l.members)) {
		cfg.Members = append(cfg.Members, raftstore.Member{ID: id, Address: l.road(m, l.members[id])})
	}
	if r.group, err = r.host.Open(cfg, &copied{ns, l, m.stall}); err != nil {
		l.t.Fatalf("%s: %v", m.id, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[m.id] = r
}

// end ends a process.
func (l *trial) end(r *running) {
	l.mu.Lock()
	delete(l.runs, r.id)
	l.mu.Unlock()
	r.stop()
	if err := <-r.ended; err != nil {
		l.t.Errorf("%s ended with %v", r.id, err)
	}
}

// leader waits for a member that leads, other than one.
func (l *trial) leader(but *running) (leader *running) {
	l.t.Helper()
	eventually(l.t, "a member leads", func() bool {
		for _, r := range l.all() {
			if r != but && r.group.Leadership().Leader {
				leader = r
				return true
			}
		}
		return false
	})
	return leader
}

// road is the address at which a member reaches another one: whatever is on the way stands still when one of the two does.
func (l *trial) road(from, to *member) string {
	if from == to {
		return to.address
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.t.Fatal(err)
	}
	a, b := from.stall, to.stall
	var accepting, all sync.WaitGroup
	carry := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			a.waitBelow()
			b.waitBelow()
			if n > 0 {
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	accepting.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			l.keep(in)
			all.Go(func() {
				a.waitBelow()
				b.waitBelow()
				out, err := net.Dial("tcp", to.address)
				if err != nil {
					in.Close()
					return
				}
				l.keep(out)
				all.Go(func() { carry(in, out) })
				carry(out, in)
			})
		}
	})
	l.t.Cleanup(func() {
		a.goOn() // after a test that ended early it may stand still
		b.goOn()
		listener.Close()
		accepting.Wait() // now all connections are known
		l.hangUp()
		all.Wait()
	})
	return listener.Addr().String()
}

func (l *trial) keep(c net.Conn) {
	l.wires.Lock()
	defer l.wires.Unlock()
	l.wires.open = append(l.wires.open, c)
}

// hangUp closes all connections between members.
func (l *trial) hangUp() {
	l.wires.Lock()
	defer l.wires.Unlock()
	for _, c := range l.wires.open {
		c.Close()
	}
	l.wires.open = nil
}

// route has each member reach the others by roads of its own. When the group is made, and when its members change, all take the addresses that were
// told, which are roads of somebody else.
func (l *trial) route() {
	l.t.Helper()
	at := l.leader(nil).group.Applied()
	for _, r := range l.all() {
		eventually(l.t, r.id+" knows of all members", func() bool { return r.group.Applied() >= at })
		for _, other := range l.all() {
			if other != r {
				r.group.Reach(raftstore.Member{ID: other.id, Address: l.road(r.member, other.member)})
			}
		}
	}
	l.hangUp()
}

// insist proposes a command, which may be done twice, until it is done.
func (l *trial) insist(c *logpb.Command) *namespace.Result {
	l.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, r := range l.all() {
			if r.stall.stopped() {
				continue
			}
			limit, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			result, err := l.propose(limit, r, c)
			cancel()
			if err == nil && result.Err == nil {
				return result.Result
			}
		}
	}
	l.t.Errorf("nobody does %v", c)
	return nil
}

// plant makes another tree, in which everything happens from now on: what was not answered before does not matter there, and a short history is
// checked quickly.
func (l *trial) plant() {
	n := l.tree.Load() + 1
	c := namespace.NewCommand(user, nil, -1, 1)
	c.Op = &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: &logpb.Target{Path: fmt.Sprintf("w/t%d", n)}, Mode: 0o755}}
	l.insist(c)
	l.tree.Store(n)
}

// opsPerTree is how many operations happen in a tree, about.
const opsPerTree = 60

// counted notes that an operation was answered.
func (l *trial) counted() {
	if l.told.Add(1)/opsPerTree >= l.tree.Load() && l.turn.TryLock() {
		l.plant()
		l.turn.Unlock()
	}
}

func (l *trial) all() []*running {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Collect(maps.Values(l.runs))
}

// progress waits until so many more operations were answered, however long that takes where some are.
func (l *trial) progress(n int64) {
	l.t.Helper()
	for had, now := l.told.Load(), l.told.Load(); now < had+n; {
		before := now
		eventually(l.t, "an operation is answered", func() bool { now = l.told.Load(); return now > before })
	}
}

// propose proposes a command with the time of a clock that may be wrong, and the time for which members have led.
func (l *trial) propose(ctx context.Context, r *running, c *logpb.Command) (done, error) {
	c.LogTime = time.Since(l.began).Milliseconds() + 1
	c.Now = c.LogTime + 1e12 + l.skew.Load()
	data, err := c.MarshalVT()
	if err != nil {
		return done{}, err
	}
	if r.stall.stopped() && rand.IntN(8) > 0 { // it takes no connection
		return done{}, metadata.ErrStandby
	}
	defer r.ask()()
	r.stall.wait()
	result, err := r.group.Propose(ctx, data)
	r.stall.wait()
	if err != nil {
		return done{}, err
	}
	d, ok := result.(done)
	if !ok {
		return done{}, raftstore.ErrUnknown
	}
	return d, nil
}

// The faults.

// pause has the leader stand still until another one has answered, and its clock jump a bit, as that of a machine that slept.
func (l *trial) pause() {
	r := l.leader(nil)
	r.stall.stop()
	l.leader(r)
	l.skew.Store(l.rng.Int64N(7_200_000) - 3_600_000)
	l.progress(250)
	for n := range 8 { // who asks it now is told nothing older than what others were told before
		q := draw(l.rng, fmt.Sprintf("/w/t%d", l.tree.Load()), "", new([]handle))
		if q.verb = doList; n%2 == 0 {
			q.path = q.tree
		} else if n%4 == 1 {
			q.verb = doStat
		}
		source := rand.New(rand.NewPCG(l.rng.Uint64(), 0))
		call := time.Since(l.began).Nanoseconds()
		l.late.Go(func() {
			if a, known := l.readAt(source, q, r); known {
				l.record(200, call, q, a, true)
			}
		})
	}
	if l.rng.IntN(2) == 0 {
		r.ahead.Add(int64(timers.Heartbeat))
	}
	r.stall.goOn()
}

// kill ends a process without a word, the leader's mostly, and starts it again when others have gone on.
func (l *trial) kill() {
	r := l.leader(nil)
	if l.rng.IntN(4) == 0 {
		all := l.all()
		r = all[l.rng.IntN(len(all))]
	}
	r.group.Cut()
	l.end(r)
	l.leader(nil)
	l.progress(100)
	l.run(r.member, true)
}

// handOver has another member lead, as an operator does.
func (l *trial) handOver() {
	l.skew.Store(l.rng.Int64N(7_200_000) - 3_600_000)
	limit, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	if err := l.leader(nil).group.TransferLeadership(limit, ""); err != nil {
		l.t.Log(err)
	}
}

// exchange puts a new member in the place of one, the leader perhaps.
func (l *trial) exchange() {
	all := l.all()
	m := l.add()
	l.run(m, false)
	address := l.road(&member{stall: newStall()}, m)
	l.change(m.id+" is added", func(ctx context.Context, g *raftstore.Group) error {
		return g.AddMember(ctx, raftstore.Member{ID: m.id, Address: address})
	})
	gone := all[l.rng.IntN(len(all))]
	l.change(gone.id+" is removed", func(ctx context.Context, g *raftstore.Group) error { return g.RemoveMember(ctx, gone.id) })
	delete(l.members, gone.id)
	l.end(gone)
	l.route()
}

// change has whoever leads change the members.
func (l *trial) change(what string, fn func(ctx context.Context, g *raftstore.Group) error) {
	l.t.Helper()
	limit, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	eventually(l.t, what, func() bool {
		err := fn(limit, l.leader(nil).group)
		if err != nil && !errors.Is(err, metadata.ErrStandby) && !errors.Is(err, raftstore.ErrUnknown) {
			l.t.Logf("%s: %v", what, err)
		}
		return err == nil
	})
}

// The clients.

// patient is how many answers a member may owe before it is asked nothing more.
const patient = 3

// at picks a member, mostly one that leads as far as it knows. Few ask one that does not answer.
func (l *trial) at(rng *rand.Rand) *running {
	all := l.all()
	if answer := slices.DeleteFunc(slices.Clone(all), func(r *running) bool { return r.owes.Load() >= patient }); len(answer) > 0 {
		all = answer
	}
	if rng.IntN(4) > 0 {
		if lead := slices.DeleteFunc(slices.Clone(all), func(r *running) bool { return !r.group.Leadership().Leader }); len(lead) > 0 {
			all = lead
		}
	}
	return all[rng.IntN(len(all))]
}

// late is after how long a client goes on without the answer.
const late = 100 * time.Millisecond

// client does operations until the trial is over. One that is not answered goes on beside the next ones.
func (l *trial) client(id int) {
	rng := rand.New(rand.NewPCG(*linearizeSeed, uint64(id)))
	var open []handle // files that it may write
	behind := make(chan struct{}, 3)
	for n := 0; ; n++ {
		select {
		case <-l.done:
			return
		case <-time.After(time.Duration(rng.IntN(4)) * time.Millisecond):
		}
		tree := fmt.Sprintf("/w/t%d", l.tree.Load())
		if len(open) > 0 && open[0].tree != tree {
			open = nil
		}
		r := draw(rng, tree, fmt.Sprintf("c%d.%d", id, n), &open)
		var file handle
		if r.verb == doComplete {
			file, open = open[0], open[1:]
		}
		told := make(chan answer, 1)
		behind <- struct{}{}
		source := rand.New(rand.NewPCG(rng.Uint64(), 0))
		l.late.Go(func() {
			told <- l.perform(source, id, n, r, file)
			<-behind
		})
		select {
		case a := <-told:
			if a.ok && a.id != 0 && (r.verb == doCreate || r.verb == doAppend) {
				open = append(open, handle{tree, a.id, r.holder, a.last})
			}
		case <-time.After(late):
		}
	}
}

// handle is a file that a client writes, and its last block when it was opened.
type handle struct {
	tree   string
	id     metadata.INodeID
	holder string
	last   metadata.Block
}

// draw makes up an operation.
func draw(rng *rand.Rand, tree, holder string, open *[]handle) *request {
	path := func() string {
		p := tree
		for range 1 + rng.IntN(3) {
			p += "/" + string(rune('a'+rng.IntN(2)))
		}
		return p
	}
	r := &request{tree: tree, path: path()}
	if len(*open) > 0 && rng.IntN(3) == 0 {
		h := (*open)[0]
		r.verb, r.path, r.id, r.holder = doComplete, "", h.id, h.holder
		return r
	}
	switch n := rng.IntN(26); {
	case n >= 24:
		r.verb, r.path, r.to = doRename, tree+"/c", tree+"/"+string(rune('a'+rng.IntN(2)))
	case n < 4:
		r.verb, r.mode, r.flag = doMkdirs, 0o755, rng.IntN(2) == 0
	case n < 8:
		r.verb, r.mode, r.flag, r.overwrite, r.holder = doCreate, 0o644, rng.IntN(2) == 0, rng.IntN(3) == 0, holder
	case n < 11:
		r.verb, r.to = doRename, path()
		if rng.IntN(2) == 0 { // what is above all else moves
			r.path, r.to = tree+"/"+string(rune('a'+rng.IntN(2))), tree+"/"+string(rune('a'+rng.IntN(3)))
		}
	case n < 13:
		r.verb, r.flag = doDelete, rng.IntN(2) == 0
	case n < 15:
		r.verb, r.mode = doSetPermission, []metadata.Mode{0o755, 0o755, 0o755, 0o555, 0o655, 0o355}[rng.IntN(6)]
	case n < 17:
		r.verb, r.holder = doAppend, holder
	case n < 21:
		r.verb = doStat
	default:
		r.verb = doList
		r.path = parentOf(r.path)
	}
	return r
}

func target(path string) *logpb.Target { return &logpb.Target{Path: path[1:]} }

// command is the command of a request.
func (r *request) command() *logpb.Command {
	c := namespace.NewCommand(user, nil, -1, 0)
	switch r.verb {
	case doMkdirs:
		c.Op = &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: target(r.path), Mode: uint32(r.mode), CreateParent: r.flag}}
	case doCreate:
		c.Op = &logpb.Command_Create{Create: &logpb.Create{
			Target: target(r.path), Mode: uint32(r.mode), ClientName: r.holder, Create: true, Overwrite: r.overwrite, CreateParent: r.flag, Replication: 1, BlockSize: 1 << 20,
		}}
	case doRename:
		c.Op = &logpb.Command_Rename{Rename: &logpb.Rename{Source: target(r.path), Target: target(r.to), Legacy: true}}
	case doDelete:
		c.Op = &logpb.Command_Delete{Delete: &logpb.Delete{Target: target(r.path), Recursive: r.flag}}
	case doSetPermission:
		c.Op = &logpb.Command_SetPermission{SetPermission: &logpb.SetPermission{Target: target(r.path), Mode: uint32(r.mode)}}
	case doAppend:
		c.Op = &logpb.Command_Append{Append: &logpb.Append{Target: target(r.path), ClientName: r.holder, NewBlock: true}}
	case doComplete:
		c.Op = &logpb.Command_Complete{Complete: &logpb.Complete{
			Inode: uint64(r.id), ClientName: r.holder, Last: &logpb.Block{Id: int64(r.block.ID), Generation: uint64(r.block.Generation), Length: r.block.Length},
		}}
	}
	return c
}

// fill adds a block to a file that is open, which shows nothing of it before it is completed, and returns it with the length that it is to have.
func (l *trial) fill(rng *rand.Rand, r *request, h handle) metadata.Block {
	n := l.blocks.Add(1)
	b := metadata.Block{ID: metadata.FirstBlockID + metadata.BlockID(n), Generation: metadata.FirstGeneration + metadata.Generation(n), Length: 1 + rng.Int64N(1000)}
	op := &logpb.AddBlock{Inode: uint64(r.id), ClientName: r.holder, Block: &logpb.Block{Id: int64(b.ID), Generation: uint64(b.Generation)}}
	if h.last.ID != 0 {
		op.Previous = &logpb.Block{Id: int64(h.last.ID), Generation: uint64(h.last.Generation), Length: h.last.Length}
	}
	c := namespace.NewCommand(user, nil, -1, 0)
	c.Op = &logpb.Command_AddBlock{AddBlock: op}
	for range 20 {
		limit, cancel := context.WithTimeout(context.Background(), late)
		result, err := l.propose(limit, l.at(rng), c)
		cancel()
		switch {
		case err != nil:
			time.Sleep(5 * time.Millisecond)
		case result.Err != nil:
			return metadata.Block{}
		default:
			return b
		}
	}
	return metadata.Block{}
}

// perform does an operation and writes down what it was told. file is the one that is to be completed.
func (l *trial) perform(rng *rand.Rand, client, n int, r *request, file handle) answer {
	if r.verb == doComplete {
		if r.block = l.fill(rng, r, file); r.block.ID == 0 {
			return answer{}
		}
	}
	call := time.Since(l.began).Nanoseconds()
	var a answer
	var known bool
	if r.verb == doStat || r.verb == doList {
		if a, known = l.read(rng, r); !known {
			return answer{}
		}
	} else {
		a, known = l.submit(rng, client, n, r, nil)
	}
	l.record(client, call, r, a, known)
	return a
}

// record notes an operation. What is not known may happen at any time from the call on.
func (l *trial) record(client int, call int64, r *request, a answer, known bool) {
	a.last = metadata.Block{}
	op := porcupine.Operation{ClientId: client, Input: r, Output: a, Call: call, Return: time.Since(l.began).Nanoseconds()}
	if !known {
		op.Output, op.Return = answer{untold: true}, math.MaxInt64
	}
	l.book.Lock()
	l.book.ops = append(l.book.ops, op)
	if !known {
		l.book.maybes++
	}
	l.book.Unlock()
	if known {
		l.counted()
	}
}

// submit proposes a change until it is answered. What the state machine would answer again is asked again, also when the answer was lost on its way.
// at, if not nil, gets the entry of the answer, and the member that gave it.
func (l *trial) submit(rng *rand.Rand, client, n int, r *request, at func(*running, uint64)) (a answer, known bool) {
	c := r.command()
	again := r.verb == doCreate || r.verb == doRename || r.verb == doDelete || r.verb == doAppend
	if again {
		c.ClientId = make([]byte, 16)
		binary.BigEndian.PutUint64(c.ClientId, uint64(client+1))
		c.CallId = int32(n)
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		where := l.at(rng)
		var resolved namespace.Resolution
		if rng.IntN(3) > 0 { // by whoever, who may know less than who leads
			resolved = l.at(rng).ns.ResolveTargets(user, c)
			time.Sleep(time.Duration(rng.IntN(4)*rng.IntN(6)) * time.Millisecond)
		}
		limit, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		result, err := l.propose(limit, where, c)
		cancel()
		resolved.Undo()
		switch {
		case err == nil && errors.Is(result.Err, namespace.ErrStale):
			l.stale.Add(1)
		case err == nil && again && rng.IntN(8) == 0: // the connection breaks
		case err == nil:
			for old := l.acknowledged.Load(); old < result.entry && !l.acknowledged.CompareAndSwap(old, result.entry); old = l.acknowledged.Load() {
			}
			if at != nil {
				at(where, result.entry)
			}
			return answered(r, result.Result), true
		case errors.Is(err, raftstore.ErrUnknown) && !again:
			return answer{}, false
		default:
			time.Sleep(5 * time.Millisecond)
		}
	}
	return answer{}, false
}

// answered is what a result says to a client.
func answered(r *request, result *namespace.Result) answer {
	switch {
	case result.Replayed && result.Err != nil:
		return answer{gone: true}
	case result.Err != nil:
		return answer{kind: metadata.KindOf(result.Err)}
	}
	a := answer{ok: result.OK, again: result.Replayed}
	if s := result.Status; s != nil {
		a.id, a.mode, a.length = s.ID, s.Mode, s.Length
	}
	if result.Block != nil {
		a.last = *result.Block
	}
	return a
}

// look reads the state of a member, which may stand still at any moment.
func (r *running) look(q *request) (a answer, err error) {
	r.stall.wait()
	defer r.stall.wait()
	if q.verb == doStat {
		s, err := r.ns.Stat(user, q.path)
		switch {
		case err != nil:
			return answer{kind: metadata.KindOf(err)}, nil
		case s == nil:
			return answer{}, nil
		}
		a = answer{ok: true, dir: s.Type == metadata.TypeDirectory, mode: s.Mode, length: s.Length}
		if !a.dir {
			a.id = s.ID
		}
		return a, nil
	}
	list, err := r.ns.List(user, q.path, "", 0)
	switch {
	case err != nil:
		return answer{kind: metadata.KindOf(err)}, nil
	case list == nil:
		return answer{}, nil
	}
	a = answer{ok: true, dir: true}
	for i, e := range list.Entries {
		if e.Name == "" { // a file lists as itself
			return answer{ok: true}, nil
		}
		if i > 0 {
			a.names += " "
		}
		a.names += e.Name
	}
	return a, nil
}

// read asks as namenodes do, under the lease if there is one, or after asking the others.
func (l *trial) read(rng *rand.Rand, q *request) (a answer, known bool) {
	return l.readAt(rng, q, l.at(rng))
}

func (l *trial) readAt(rng *rand.Rand, q *request, where *running) (a answer, known bool) {
	defer where.ask()()
	where.stall.wait()
	if rng.IntN(4) > 0 && where.group.Glance(func() { a, _ = where.look(q) }) {
		l.book.Lock()
		l.book.leases++
		l.book.Unlock()
		return a, true
	}
	got := make(chan error, 1)
	where.group.Read(func(err error) {
		if err == nil {
			a, _ = where.look(q)
		}
		got <- err
	})
	if err := <-got; err != nil {
		time.Sleep(time.Millisecond)
		return answer{}, false
	}
	l.book.Lock()
	l.book.quorums++
	l.book.Unlock()
	return a, true
}

// watcher is a client that reads from members which do not lead, and says how much it has seen.
type watcher struct {
	id   int
	seen uint64
	// saw is what it did, in its order.
	saw []sight
}

// sight is a read of the state at an entry from low to high. Without a request: what follows is of low at the least.
type sight struct {
	request   *request
	answer    answer
	low, high uint64
}

// watch does what a watcher does until the trial is over.
func (l *trial) watch(w *watcher) {
	rng := rand.New(rand.NewPCG(*linearizeSeed, uint64(w.id)))
	for n := 0; ; n++ {
		select {
		case <-l.done:
			return
		case <-time.After(time.Duration(rng.IntN(8)) * time.Millisecond):
		}
		tree := fmt.Sprintf("/w/t%d", l.tree.Load())
		switch k := rng.IntN(10); {
		case k < 2: // what it has done itself it sees
			r := draw(rng, tree, fmt.Sprintf("w%d.%d", w.id, n), new([]handle))
			if r.verb == doStat || r.verb == doList {
				continue
			}
			call := time.Since(l.began).Nanoseconds()
			a, known := l.submit(rng, w.id, n, r, func(at *running, entry uint64) {
				w.seen = max(w.seen, at.group.Shown())
				w.saw = append(w.saw, sight{low: entry})
			})
			l.record(w.id, call, r, a, known)
		case k < 4: // msync
			before := l.acknowledged.Load()
			at := l.at(rng)
			if at.stall.stopped() {
				continue
			}
			limit, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			if at.group.ReadWait(limit) == nil {
				w.seen = max(w.seen, at.group.Shown())
				w.saw = append(w.saw, sight{low: before})
			}
			cancel()
		default:
			l.observe(rng, w, tree)
		}
	}
}

// observe reads as namenodes do that do not lead.
func (l *trial) observe(rng *rand.Rand, w *watcher, tree string) {
	all := l.all()
	at := all[rng.IntN(len(all))]
	if at.stall.stopped() && rng.IntN(8) > 0 {
		return // whoever reads one thing after the other waits for it until it goes on
	}
	at.stall.wait()
	limit, cancel := context.WithTimeout(context.Background(), late)
	defer cancel()
	if !at.group.Current() || at.group.AwaitApplied(limit, w.seen) != nil {
		return
	}
	var none []handle
	q := draw(rng, tree, "", &none)
	q.verb = doStat
	if rng.IntN(2) == 0 {
		q.verb, q.path = doList, parentOf(q.path)
	}
	a, err := at.look(q)
	if err != nil {
		return
	}
	high := at.group.Shown()
	w.seen = max(w.seen, high)
	w.saw = append(w.saw, sight{request: q, answer: a, high: high})
}

// check looks whether all of it can be.
func (l *trial) check() {
	t := l.t
	b := &l.book
	eventually(t, "all members have all entries", func() bool {
		at := l.leader(nil).group.Applied()
		for _, r := range l.all() {
			if r.group.Applied() < at {
				return false
			}
		}
		return true
	})
	entries := slices.Sorted(maps.Keys(b.entries))
	parts := treeModel.Partition(b.ops)
	longest, undecided := 0, 0
	for _, part := range parts {
		longest = max(longest, len(part))
		switch porcupine.CheckOperationsTimeout(porcupineOf(treeModel), part, patience) {
		case porcupine.Illegal:
			t.Errorf("the history of %s is not linearizable:", part[0].Input.(*request).tree)
			slices.SortFunc(part, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
			for _, op := range part {
				until := fmt.Sprint(op.Return / 1000)
				if op.Return == math.MaxInt64 {
					until = "?"
				}
				t.Logf("%8d %8s us, %3d: %s", op.Call/1000, until, op.ClientId, treeModel.DescribeOperation(op.Input, op.Output))
			}
		case porcupine.Unknown:
			undecided++
		}
	}
	reads := l.replay(entries)
	t.Logf("%d operations in %d trees, the longest of %d, %d undecided; %d without an answer; %d reads under a lease, %d after asking, %d of members that do not lead; %d entries; %d commands were stale",
		len(b.ops), len(parts), longest, undecided, b.maybes, b.leases, b.quorums, reads, len(entries), l.stale.Load())
	if b.leases == 0 || b.quorums == 0 || reads == 0 || l.stale.Load() == 0 || undecided > len(parts)/4 {
		t.Error("that shows nothing")
	}
}

// porcupineOf is a model without partitions, for one.
func porcupineOf(m porcupine.Model) porcupine.Model {
	m.Partition = nil
	return m
}

// replay carries the log out once more and looks whether the watchers' reads, each in its order, are of states that came one after the other, none of
// them older than what its client knew: the earliest state that fits leaves the most for what follows. It returns how many reads there were.
func (l *trial) replay(entries []uint64) (reads int) {
	ns, err := namespace.Open(namespace.Config{Store: mem.New(), Owner: "hops", Supergroup: "supergroup", MinBlockSize: 1})
	if err != nil {
		l.t.Fatal(err)
	}
	r := &running{member: &member{stall: newStall()}, ns: ns}
	at := make([]int, len(l.watchers))
	low := make([]uint64, len(l.watchers))
	for n, index := range entries {
		ns.Apply(index, l.book.entries[index])
		following := uint64(math.MaxUint64)
		if n+1 < len(entries) {
			following = entries[n+1]
		}
		for i, w := range l.watchers {
			for at[i] < len(w.saw) {
				s := w.saw[at[i]]
				if s.request == nil {
					low[i] = max(low[i], s.low)
					at[i]++
					continue
				}
				if following <= low[i] {
					break // the state is not of low yet
				}
				if a, _ := r.look(s.request); a != s.answer {
					break
				}
				reads++
				at[i]++
			}
			if at[i] < len(w.saw) && w.saw[at[i]].request != nil && w.saw[at[i]].high < following {
				s := w.saw[at[i]]
				l.t.Errorf("watcher %d was told %v of %v at %d at the latest, and knew of %d", w.id, s.answer, s.request, s.high, low[i])
				at[i]++
			}
		}
	}
	for id, other := range l.runs {
		if index, hash := other.ns.StateHash(); index == ns.AppliedIndex() && hash != ns.Hash() {
			l.t.Errorf("%s has another state", id)
		}
	}
	return reads
}
