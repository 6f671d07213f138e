package blockmanager

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// server is a datanode as it really is: its process ends and begins again in the middle of writes, and refuses copies of what it has.
type server struct {
	id          namenode.NodeID
	rack        string
	up          bool
	incarnation uint64
	has         map[metadata.BlockID]namenode.Replica
	reports     uint64
	term        uint64
	inbox       []pendingOrders
	links       [2]link
}

// link is a session with one of two namenodes. Changes and full reports come late, each in their order, but not in that of the other.
type link struct {
	up      bool
	joining bool // a registration is on its way
	changes []func() (known bool)
	reports []func() (known bool)
}

// written is a block as its writer and the namespace know it.
type written struct {
	id       metadata.BlockID
	gen      metadata.Generation
	length   int64
	want     int
	open     bool
	ended    bool // all of its pipeline have finalized it
	pipeline []*server
}

func (w *written) block() metadata.Block {
	return metadata.Block{ID: w.id, Generation: w.gen, Length: w.length}
}

// lab is two namenodes, one of which leads, their datanodes, and the blocks.
type lab struct {
	mgr     [2]*Manager
	logs    [2][]func(*Manager) // what the namespace of one that follows has not applied yet
	leader  int
	term    uint64
	now     time.Time
	servers []*server
	blocks  map[metadata.BlockID]*written
	nextID  metadata.BlockID
	nextGen metadata.Generation
}

func (l *lab) volume(s *server) namenode.VolumeID { return "v-" + namenode.VolumeID(s.id) }

func (l *lab) volumes(s *server) []namenode.Volume {
	return []namenode.Volume{{ID: l.volume(s), Type: namenode.Disk, Capacity: 1 << 40, Remaining: 1 << 39}}
}

// register sends a registration, which a full report follows; neither overtakes another report.
func (l *lab) register(s *server, to int) {
	k := &s.links[to]
	if k.joining {
		return
	}
	k.joining = true
	k.reports = append(k.reports, func() bool {
		l.mgr[to].Register(l.now, namenode.Node{ID: s.id, IP: string(s.id), Rack: s.rack, TransferPort: 1}, l.volumes(s), s.incarnation)
		k.up, k.joining = true, false
		l.report(s, to)
		return true
	})
}

// connect begins a new session: what the last one did not deliver is lost.
func (l *lab) connect(s *server, to int) {
	s.links[to] = link{}
	l.register(s, to)
}

// report sends what is there now, in two chunks.
func (l *lab) report(s *server, to int) {
	var all []namenode.Replica
	for _, id := range sortedKeys(s.has) {
		all = append(all, s.has[id])
	}
	s.reports++
	seq, half := s.reports, len(all)/2
	send := func(rs []namenode.Replica, last bool) {
		s.links[to].reports = append(s.links[to].reports, func() bool {
			return l.mgr[to].Report(l.now, s.id, seq, l.volume(s), rs, last)
		})
	}
	send(all[:half], false)
	send(all[half:], true)
}

func (l *lab) tell(s *server, kind namenode.ChangeKind, b metadata.Block) {
	change := []namenode.Change{{Kind: kind, Block: b, Volume: l.volume(s)}}
	for to := range s.links {
		if s.links[to].up {
			s.links[to].changes = append(s.links[to].changes, func() bool { return l.mgr[to].Changes(l.now, s.id, change) })
		}
	}
}

// deliver delivers the first message of a wire.
func (l *lab) deliver(s *server, to int, full bool) bool {
	wire := &s.links[to].changes
	if full {
		wire = &s.links[to].reports
	}
	if len(*wire) == 0 {
		return false
	}
	f := (*wire)[0]
	*wire = (*wire)[1:]
	if !f() {
		l.connect(s, to)
	}
	return true
}

func (l *lab) start(s *server) {
	s.up = true
	s.incarnation++
	for to := range s.links {
		l.connect(s, to)
	}
}

// kill ends a process. What was being written waits for recovery after the next start; of what had no byte there is nothing.
func (l *lab) kill(s *server) {
	s.up, s.inbox, s.links = false, nil, [2]link{}
	for id, r := range s.has {
		switch {
		case r.State != namenode.Writing:
		case r.Block.Length == 0:
			delete(s.has, id)
		default:
			r.State = namenode.Waiting
			s.has[id] = r
		}
	}
}

// commit applies a command, on the leader at once.
func (l *lab) commit(f func(*Manager)) {
	for i := range l.mgr {
		if i == l.leader {
			f(l.mgr[i])
		} else {
			l.logs[i] = append(l.logs[i], f)
		}
	}
}

// apply has a namenode apply what it has not yet.
func (l *lab) apply(i int) {
	for _, f := range l.logs[i] {
		f(l.mgr[i])
	}
	l.logs[i] = nil
}

// hear has all that is on its way to a namenode arrive.
func (l *lab) hear(i int) {
	l.apply(i)
	for _, s := range l.servers {
		for _, full := range []bool{false, true, false} {
			for l.deliver(s, i, full) {
			}
		}
	}
}

func (l *lab) lead(i int) {
	l.mgr[l.leader].Follow()
	l.apply(i)
	l.leader = i
	l.term++
	l.mgr[i].Lead(l.now, l.term)
}

func (l *lab) put(w *written) {
	b := Block{Block: w.block(), Replication: w.want, Open: w.open}
	l.commit(func(m *Manager) { m.Put(l.now, b) })
	if !w.open {
		return
	}
	var at []namenode.Location
	for _, s := range w.pipeline {
		if n, ok := l.mgr[l.leader].Node(s.id); ok {
			at = append(at, namenode.Location{Node: n, Volume: l.volume(s)})
		}
	}
	l.mgr[l.leader].Expect(w.id, at)
}

func (l *lab) set(s *server, w *written, state namenode.ReplicaState) {
	s.has[w.id] = namenode.Replica{Block: w.block(), State: state}
	kind := namenode.Receiving
	if state == namenode.Finalized {
		kind = namenode.Received
	}
	l.tell(s, kind, w.block())
}

// setUp makes a pipeline in a new generation.
func (l *lab) setUp(w *written, pipeline []*server) {
	l.nextGen++
	w.gen, w.open, w.ended, w.pipeline = l.nextGen, true, false, pipeline
	for _, s := range pipeline {
		l.set(s, w, namenode.Writing)
	}
	l.put(w)
}

// able are the servers that run and have the replica of a block that it has now, in a state.
func (l *lab) able(w *written, state namenode.ReplicaState) (out []*server) {
	for _, s := range l.servers {
		if r, ok := s.has[w.id]; ok && s.up && r.State == state && r.Block == w.block() {
			out = append(out, s)
		}
	}
	return out
}

// write adds to a block. If its pipeline broke it goes on without those that do not answer.
func (l *lab) write(w *written, n int64) {
	live := l.able(w, namenode.Writing)
	if !w.open || w.ended || len(live) == 0 {
		return
	}
	if len(live) < len(w.pipeline) {
		l.setUp(w, live)
	}
	w.length += n
	for _, s := range live {
		s.has[w.id] = namenode.Replica{Block: w.block(), State: namenode.Writing}
	}
}

// finish has the pipeline finalize a block, and closes it when the leader knows of that.
func (l *lab) finish(w *written) {
	if w.open && !w.ended {
		l.write(w, 1)
		live := l.able(w, namenode.Writing)
		for _, s := range live {
			l.set(s, w, namenode.Finalized)
		}
		w.ended = len(live) > 0
		for _, s := range live { // the writer waits for that
			for l.deliver(s, l.leader, false) {
			}
		}
	}
	if w.open && w.ended && l.mgr[l.leader].Durable(w.block()) {
		w.open = false
		l.put(w)
	}
}

func (l *lab) remove(w *written) {
	delete(l.blocks, w.id)
	l.commit(func(m *Manager) { m.Remove(w.id) })
}

func (l *lab) tick(d time.Duration) {
	l.now = l.now.Add(d)
	for i, m := range l.mgr {
		for _, s := range l.servers {
			if s.links[i].up && !m.Beat(l.now, s.id, l.volumes(s), 0) {
				l.register(s, i)
			}
		}
		m.Tick(l.now)
		for _, s := range l.servers {
			if !s.links[i].up {
				continue
			}
			if o := m.Orders(l.now, s.id); !o.Empty() {
				s.inbox = append(s.inbox, pendingOrders{m.term, o})
			}
		}
	}
}

// obey carries out the first orders that a server has got.
func (l *lab) obey(s *server) {
	if len(s.inbox) == 0 {
		return
	}
	p := s.inbox[0]
	s.inbox = s.inbox[1:]
	if p.term < s.term {
		return
	}
	s.term = p.term
	for _, b := range slices.Concat(p.orders.Delete, p.orders.Discard) {
		if r, ok := s.has[b.ID]; ok && r.Block.Generation > b.Generation {
			continue
		}
		delete(s.has, b.ID)
		l.tell(s, namenode.Deleted, b)
	}
	for _, r := range p.orders.Replicate {
		have, ok := s.has[r.Block.ID]
		if !ok {
			l.tell(s, namenode.Deleted, r.Block)
		}
		if !ok || have.State != namenode.Finalized || have.Block != r.Block {
			continue
		}
		t := l.servers[slices.IndexFunc(l.servers, func(s *server) bool { return s.id == r.Target.ID })]
		if _, occupied := t.has[r.Block.ID]; t.up && !occupied {
			t.has[r.Block.ID] = have
			l.tell(t, namenode.Received, r.Block)
			continue
		}
		for to := range s.links { // its next beat says so
			if s.links[to].up {
				s.links[to].changes = append(s.links[to].changes, func() bool {
					l.mgr[to].NotCopied(l.now, s.id, r.Block.ID, r.Block.Generation, t.id)
					return true
				})
			}
		}
	}
	if p.orders.Report {
		for i := range l.mgr {
			l.register(s, i)
		}
	}
}

// settle lets nothing more happen, and all messages arrive.
func (l *lab) settle(d time.Duration) {
	for end := l.now.Add(d); l.now.Before(end); l.tick(time.Second) {
		for i := range l.mgr {
			l.hear(i)
		}
		for _, s := range l.servers {
			for len(s.inbox) > 0 {
				l.obey(s)
			}
		}
	}
}

// TestEveryBlockIsMendedSoonAfterRestarts ends and begins datanodes in the middle of writes, and loses and delays what they say, in any
// interleaving with the blocks being completed and with changes of the leader. When that is over it takes less than the time-out of a copy until
// every block has the replicas that it should have, on two racks where there are two, and nothing else of it is anywhere.
func TestEveryBlockIsMendedSoonAfterRestarts(t *testing.T) {
	for range 10 { // what it looks for is rare
		rapid.Check(t, mends)
	}
}

func mends(t *rapid.T) {
	config := Config{Seed: rapid.Uint64().Draw(t, "seed")}
	if rapid.Bool().Draw(t, "impatient") {
		config.StaleAfter, config.DeadAfter = 2*time.Second, 4*time.Second
	}
	l := &lab{now: time.Unix(1e9, 0), blocks: map[metadata.BlockID]*written{}, nextGen: 1000}
	for i := range l.mgr {
		l.mgr[i] = New(config)
		l.mgr[i].SetHorizon(1 << 40)
	}
	racks := []string{"/a", "/b"}[:rapid.IntRange(1, 2).Draw(t, "racks")]
	for i := range rapid.IntRange(3, 4).Draw(t, "datanodes") {
		s := &server{id: namenode.NodeID(fmt.Sprintf("n%d", i)), has: map[metadata.BlockID]namenode.Replica{}}
		s.rack = rapid.SampledFrom(racks).Draw(t, "rack")
		l.servers = append(l.servers, s)
		l.start(s)
	}
	l.lead(0)
	l.settle(2 * time.Second)

	pick := func(t *rapid.T) *server { return rapid.SampledFrom(l.servers).Draw(t, "datanode") }
	some := func(t *rapid.T, from []*server, n int) []*server {
		return rapid.Permutation(from).Draw(t, "datanodes")[:min(n, len(from))]
	}
	withBlock := func(f func(t *rapid.T, w *written)) func(*rapid.T) {
		return func(t *rapid.T) {
			if len(l.blocks) > 0 {
				f(t, l.blocks[rapid.SampledFrom(sortedKeys(l.blocks)).Draw(t, "block")])
			}
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"create": func(t *rapid.T) {
			up := slices.DeleteFunc(slices.Clone(l.servers), func(s *server) bool { return !s.up })
			if len(up) == 0 {
				return
			}
			l.nextID++
			w := &written{id: l.nextID, want: rapid.IntRange(1, 3).Draw(t, "want")}
			l.blocks[w.id] = w
			l.setUp(w, some(t, up, w.want))
			l.write(w, int64(rapid.IntRange(0, 1).Draw(t, "bytes")))
		},
		"write":  withBlock(func(_ *rapid.T, w *written) { l.write(w, 5) }),
		"finish": withBlock(func(_ *rapid.T, w *written) { l.finish(w) }),
		"append": withBlock(func(t *rapid.T, w *written) {
			if have := l.able(w, namenode.Finalized); !w.open && len(have) > 0 {
				l.setUp(w, some(t, have, rapid.IntRange(1, 3).Draw(t, "pipeline")))
			}
		}),
		"setReplication": withBlock(func(t *rapid.T, w *written) {
			w.want = rapid.IntRange(1, 3).Draw(t, "want")
			b := Block{Block: w.block(), Replication: w.want, Open: w.open}
			l.commit(func(m *Manager) { m.Put(l.now, b) })
		}),
		"remove": withBlock(func(_ *rapid.T, w *written) { l.remove(w) }),
		"restart": func(t *rapid.T) {
			s := pick(t)
			if s.up {
				l.kill(s)
			}
			if rapid.Bool().Draw(t, "at once") {
				l.start(s)
			}
		},
		"break": func(t *rapid.T) {
			if s := pick(t); s.up {
				l.connect(s, rapid.IntRange(0, 1).Draw(t, "namenode"))
			}
		},
		"report": func(t *rapid.T) {
			s, to := pick(t), rapid.IntRange(0, 1).Draw(t, "namenode")
			if s.links[to].up && len(s.links[to].reports) == 0 {
				l.report(s, to)
			}
		},
		"deliver": func(t *rapid.T) {
			s, to, full := pick(t), rapid.IntRange(0, 1).Draw(t, "namenode"), rapid.Bool().Draw(t, "full report")
			for range rapid.IntRange(1, 5).Draw(t, "messages") {
				l.deliver(s, to, full)
			}
		},
		"move": func(t *rapid.T) {
			s := pick(t)
			s.rack = rapid.SampledFrom(racks).Draw(t, "rack")
			for i := range l.mgr {
				l.mgr[i].SetRack(string(s.id), s.rack)
			}
		},
		"hear":  func(t *rapid.T) { l.hear(rapid.IntRange(0, 1).Draw(t, "namenode")) },
		"elect": func(*rapid.T) { l.lead(1 - l.leader) },
		"tick": func(t *rapid.T) {
			l.tick(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
		},
		"obey": func(t *rapid.T) { l.obey(pick(t)) },
		"": func(t *rapid.T) {
			for i := range l.mgr {
				l.mgr[i].check(t)
			}
		},
	})

	for _, s := range l.servers {
		if !s.up {
			l.start(s)
		}
	}
	l.settle(3 * time.Second)
	for _, id := range sortedKeys(l.blocks) {
		w := l.blocks[id]
		l.finish(w)
		l.settle(time.Second)
		if l.finish(w); w.open { // its recovery is not of interest here
			l.remove(w)
		}
	}
	l.settle(60 * time.Second)
	m := l.mgr[l.leader]
	for _, s := range l.servers {
		for _, id := range sortedKeys(s.has) {
			if w := l.blocks[id]; w == nil || s.has[id] != (namenode.Replica{Block: w.block(), State: namenode.Finalized}) {
				t.Errorf("%s still has %+v", s.id, s.has[id])
			}
		}
	}
	for _, id := range sortedKeys(l.blocks) {
		w := l.blocks[id]
		at := l.able(w, namenode.Finalized)
		if len(at) != w.want {
			t.Errorf("block %d has %d replicas, wants %d: %s", id, len(at), w.want, m.show(id))
		}
		other := func(s *server) bool { return s.rack != at[0].rack }
		if len(at) > 1 && !slices.ContainsFunc(at, other) && slices.ContainsFunc(l.servers, other) {
			t.Errorf("block %d has all its replicas on rack %s: %s", id, at[0].rack, m.show(id))
		}
	}
	if s := m.Statistics(); s.UnderReplicated+s.Missing+s.PendingDeletion > 0 {
		t.Errorf("%+v", s)
	}
}
