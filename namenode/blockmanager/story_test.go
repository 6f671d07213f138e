package blockmanager

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/placement"
)

var rewrite = flag.Bool("rewrite", false, "write what the stories in testdata print now")

// TestStories replays testdata/*.txt: commands up to a line of dashes, then what they print, then an empty line.
//
//	node NAME [rack=R] [free=N] [volumes=N]   register; a beat every tick follows until `silent NAME`
//	silent NAME... | awake NAME...            stop and resume its beats
//	block ID gen=N len=N want=N [open]        Put            remove ID       Remove
//	expect ID NAME...                         pipeline of an open block
//	report NAME [ID:GEN:LEN[:rbw|rwr]]...     a full report of its first volume; report2 of a second one
//	volume NAME fails | volume NAME gone      the latter shows when it registers again
//	volume NAME slow | volume NAME quick      shows with its next beat
//	receiving|received|deleted|damaged|verified NAME ID:GEN:LEN
//	received NAME ID:GEN:LEN instead NAME     a balancer of Hadoop has it moved
//	suspect NAME ID:GEN:LEN by USER           a reader's word
//	restart NAME                              register with another incarnation
//	lead TERM | follow | pause | resume | horizon ID | reset
//	tick DURATION                             time passes, beats arrive, Tick; prints what it noticed
//	orders                                    what every node is told
//	recover ID as GEN                         begin a block recovery
//	show ID | locate ID from HOST | stats | admin NAME
//	decommission|maintain|recommission NAME...  what an operator wants
//	choose N                                  places for a new block
//	durable ID:GEN:LEN                        may its file be closed?
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { play(t, f) })
	}
}

func play(t *testing.T, file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := newStage()
	var out strings.Builder
	failed := false
	for _, scene := range strings.Split(strings.TrimSpace(string(data)), "\n\n") {
		script, want, checked := strings.Cut(scene, "\n----\n")
		if !checked {
			script, checked = strings.CutSuffix(scene, "\n----")
		}
		var got strings.Builder
		for _, line := range strings.Split(script, "\n") {
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			got.WriteString(s.do(t, line))
		}
		result := strings.TrimRight(got.String(), "\n")
		if !checked && result == "" {
			fmt.Fprintf(&out, "%s\n\n", scene)
			continue
		}
		fmt.Fprintf(&out, "%s\n----\n%s\n\n", script, result)
		if result != strings.TrimRight(want, "\n") && !*rewrite {
			failed = true
			t.Errorf("%s:\n%s\n---- got\n%s\n---- want\n%s", file, script, result, want)
		}
		s.m.check(t)
	}
	if *rewrite && !failed {
		if err := os.WriteFile(file, []byte(strings.TrimRight(out.String(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type stage struct {
	m       *Manager
	now     time.Time
	volumes map[string][]namenode.Volume
	names   []string
	silent  map[string]bool
	reports uint64
	// incarnation is that of who registers.
	incarnation uint64
	wishes      map[string]namenode.AdminState
}

func newStage() *stage {
	return &stage{
		m: New(Config{Seed: 1}), now: time.Unix(1e9, 0), volumes: map[string][]namenode.Volume{}, silent: map[string]bool{},
		wishes: map[string]namenode.AdminState{},
	}
}

func (s *stage) do(t *testing.T, line string) string {
	f := strings.Fields(line)
	args, opts := split(f[1:])
	id := func(i int) namenode.NodeID { return namenode.NodeID(args[i]) }
	switch f[0] {
	case "node":
		s.register(args[0], opts)
	case "silent", "awake":
		for _, n := range args {
			s.silent[n] = f[0] == "silent"
		}
	case "block":
		s.m.Put(s.now, Block{
			Block:       metadata.Block{ID: blockID(args[0]), Generation: metadata.Generation(number(opts["gen"])), Length: number(opts["len"])},
			Replication: int(number(opts["want"])), Open: slices.Contains(args, "open"),
		})
	case "remove":
		s.m.Remove(blockID(args[0]))
	case "expect":
		var ls []namenode.Location
		for _, n := range args[1:] {
			ls = append(ls, namenode.Location{Node: s.m.nodes[namenode.NodeID(n)].info, Volume: namenode.VolumeID(n + "1")})
		}
		s.m.Expect(blockID(args[0]), ls)
	case "report", "report2":
		s.reports++
		var rs []namenode.Replica
		for _, r := range args[1:] {
			rs = append(rs, replica(r))
		}
		if !s.m.Report(s.now, id(0), s.reports, namenode.VolumeID(args[0]+strings.TrimPrefix(f[0]+"1", "report")[:1]), rs, true) {
			return args[0] + " has to register\n"
		}
	case "volume":
		if args[1] == "gone" {
			s.volumes[args[0]] = nil
			break
		}
		for i := range s.volumes[args[0]] {
			switch v := &s.volumes[args[0]][i]; args[1] {
			case "fails":
				v.Failed = true
			case "slow", "quick":
				v.Slow = args[1] == "slow"
			default:
				t.Fatalf("unknown command %q", line)
			}
		}
	case "receiving", "received", "deleted", "damaged", "verified":
		kind := map[string]namenode.ChangeKind{"receiving": namenode.Receiving, "received": namenode.Received, "deleted": namenode.Deleted, "damaged": namenode.Corrupt, "verified": namenode.Verified}[f[0]]
		change := namenode.Change{Kind: kind, Block: replica(args[1]).Block, Volume: namenode.VolumeID(args[0] + "1")}
		if len(args) > 3 && args[2] == "instead" {
			change.Instead = id(3)
		}
		if !s.m.Changes(s.now, id(0), []namenode.Change{change}) {
			return args[0] + " has to register\n"
		}
	case "refused":
		b := replica(args[1]).Block
		s.m.NotCopied(s.now, id(0), b.ID, b.Generation, id(3))
	case "suspect":
		heard := s.m.Suspect(s.now, id(0), replica(args[1]).Block, args[3])
		return [...]string{Suspected: "suspected", Known: "known", TooMany: "too many"}[heard] + "\n"
	case "restart":
		s.incarnation++
		s.register(args[0], opts)
	case "lead":
		s.m.Lead(s.now, uint64(number(args[0])))
	case "follow":
		s.m.Follow()
	case "pause", "resume":
		s.m.Pause(f[0] == "pause")
	case "horizon":
		s.m.SetHorizon(blockID(args[0]))
	case "reset":
		s.m.Reset()
	case "tick":
		return s.tick(t, args[0])
	case "orders":
		return s.orders()
	case "recover":
		s.m.Recover(s.now, blockID(args[0]), metadata.Generation(number(args[2])))
	case "show":
		return s.m.show(blockID(args[0]))
	case "decommission", "maintain", "recommission":
		for _, n := range args {
			s.wishes[n] = map[string]namenode.AdminState{"decommission": namenode.Decommissioned, "maintain": namenode.InMaintenance}[f[0]]
		}
		s.m.Administer(func(n *namenode.Node) namenode.AdminState { return s.wishes[string(n.ID)] })
	case "admin":
		for _, n := range s.m.Nodes() {
			if string(n.Node.ID) == args[0] {
				return fmt.Sprintf("%s: %d blocks, %d of them nowhere else, %d open\n", n.Node.Admin, n.Leaving.Blocks, n.Leaving.Only, n.Leaving.Open)
			}
		}
		return "not in the list\n"
	case "choose":
		c := s.m.Choose(placement.Request{Want: int(number(args[0])), BlockSize: 1})
		found := names(c.Targets)
		slices.Sort(found)
		return fmt.Sprintf("%v %s\n", found, c.Reasons)
	case "durable":
		return fmt.Sprintf("%t\n", s.m.Durable(replica(args[0]).Block))
	case "locate":
		ls, corrupt := s.m.Locate(blockID(args[0]), args[2])
		return fmt.Sprintf("%v corrupt=%t\n", names(ls), corrupt)
	case "stats":
		st := s.m.Statistics()
		return fmt.Sprintf("blocks=%d under=%d missing=%d corrupt=%d critical=%d deleting=%d\n", st.Blocks, st.UnderReplicated, st.Missing, st.Corrupt, st.Critical, st.PendingDeletion)
	default:
		t.Fatalf("unknown command %q", line)
	}
	return ""
}

func (s *stage) register(name string, opts map[string]string) {
	if _, ok := s.volumes[name]; !ok {
		s.names = append(s.names, name)
		free := int64(1 << 40)
		if f := opts["free"]; f != "" {
			free = number(f)
		}
		s.volumes[name] = []namenode.Volume{{ID: namenode.VolumeID(name + "1"), Type: namenode.Disk, Capacity: 1 << 40, Remaining: free}}
	}
	s.silent[name] = false
	s.m.Register(s.now, namenode.Node{ID: namenode.NodeID(name), IP: "ip-" + name, Host: "host-" + name, Rack: opts["rack"], TransferPort: 9866}, s.volumes[name], s.incarnation)
}

func (s *stage) tick(t *testing.T, d string) string {
	step, err := time.ParseDuration(d)
	if err != nil {
		t.Fatal(err)
	}
	s.now = s.now.Add(step)
	var out strings.Builder
	for _, n := range s.names {
		if !s.silent[n] && !s.m.Beat(s.now, namenode.NodeID(n), s.volumes[n], 0) {
			fmt.Fprintf(&out, "%s has to register\n", n)
		}
	}
	ev := s.m.Tick(s.now)
	for _, n := range ev.Died {
		fmt.Fprintf(&out, "%s died\n", n)
	}
	for _, b := range ev.Overdue {
		fmt.Fprintf(&out, "recovery of %d is overdue\n", b)
	}
	return out.String()
}

func (s *stage) orders() string {
	var out strings.Builder
	for _, n := range s.names {
		o := s.m.Orders(s.now, namenode.NodeID(n))
		for _, r := range o.Replicate {
			fmt.Fprintf(&out, "%s: copy %d to %s\n", n, r.Block.ID, r.Target.ID)
		}
		for _, d := range o.Delete {
			fmt.Fprintf(&out, "%s: delete %d_%d\n", n, d.ID, d.Generation)
		}
		for _, d := range o.Discard {
			fmt.Fprintf(&out, "%s: discard %d_%d\n", n, d.ID, d.Generation)
		}
		for _, v := range o.Verify {
			fmt.Fprintf(&out, "%s: verify %d_%d\n", n, v.ID, v.Generation)
		}
		for _, r := range o.Recover {
			fmt.Fprintf(&out, "%s: recover %d_%d as %d from %s", n, r.Block.ID, r.Block.Generation, r.RecoveryID, nodeNames(r.Replicas))
			if len(r.Missing) > 0 {
				fmt.Fprintf(&out, " missing %v", r.Missing)
			}
			if r.PatienceOver {
				out.WriteString(" patience is over")
			}
			out.WriteString("\n")
		}
		if o.Report {
			fmt.Fprintf(&out, "%s: report\n", n)
		}
	}
	if out.Len() == 0 {
		return "no orders\n"
	}
	return out.String()
}

// show prints a block: its health, and each replica as NAME or NAME:GENERATION:LENGTH:STATE.
func (m *Manager) show(id metadata.BlockID) string {
	if list, ok := m.orphans[id]; ok {
		return "orphan on" + m.showOdd(list) + "\n"
	}
	b := m.blocks.peek(id)
	if b == nil {
		return "unknown\n"
	}
	out := [...]string{"healthy", "under-replicated", "missing", "corrupt"}[b.health]
	if b.open {
		out = "open"
	}
	var good []string
	for _, p := range b.good {
		good = append(good, string(m.volumes[p].node.info.ID))
	}
	slices.Sort(good)
	out += fmt.Sprintf(" good=%v", good)
	if d := b.inDoubt(); d != nil && len(d.suspects) > 0 {
		var bad []string
		for _, k := range d.suspects {
			bad = append(bad, string(m.volumes[k.at].node.info.ID))
		}
		slices.Sort(bad)
		out += fmt.Sprintf(" suspect=%v", bad)
	}
	if odds := b.odds(); len(odds) > 0 {
		out += " odd=" + m.showOdd(odds)
	}
	return out + "\n"
}

func (m *Manager) showOdd(list []odd) string {
	var out []string
	for _, o := range list {
		s := fmt.Sprintf("%s:%d:%d:%s", m.volumes[o.at].node.info.ID, o.generation, o.length, o.state)
		if o.corrupt {
			s += ":CORRUPT"
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

// check verifies the invariants that hold between any two calls.
func (m *Manager) check(t checker) {
	t.Helper()
	var want counts
	for id, b := range m.blocks.all() {
		if !id.Striped() {
			if !b.open {
				want.complete++
			}
			want.by[b.health]++
		}
		if _, ok := m.orphans[id]; ok {
			t.Errorf("block %d is also an orphan", id)
		}
		seen := map[*node]bool{}
		each := func(p place) {
			v := m.volumes[p]
			if !v.blocks.has(id) {
				t.Errorf("block %d: volume %s does not index it", id, v.id)
			}
			if seen[v.node] {
				t.Errorf("block %d: twice on %s", id, v.node.info.ID)
			}
			seen[v.node] = true
		}
		for _, p := range b.good {
			each(p)
		}
		for _, o := range b.odds() {
			each(o.at)
			if b.matches(o) {
				t.Errorf("block %d: replica on %s is good but filed as odd", id, m.volumes[o.at].node.info.ID)
			}
		}
		if b.more != nil {
			for _, c := range b.more.copies {
				if c.over() {
					t.Errorf("block %d: a copy that is over is pending", id)
					continue
				}
				to := m.volumes[c.target].node
				if i := m.indexOnNode(b.odds(), to); i >= 0 && !b.more.odd[i].corrupt && c.block.Generation == b.generation {
					t.Errorf("block %d: a copy is pending to %s, which refuses it", id, to.info.ID)
				}
			}
		}
		if b.open && len(b.good) > 0 {
			t.Errorf("block %d is open and has good replicas", id)
		}
	}
	for id, g := range m.groups {
		if !g.open {
			want.complete++
		}
		want.by[g.health]++
		want.groups[g.health]++
		if m.lost.has(id) != (g.health >= missing) {
			t.Errorf("group %d: lost=%t, health %d", id, m.lost.has(id), g.health)
		}
	}
	if want.groups[under] != m.counts.groups[under] || want.groups[missing] != m.counts.groups[missing] || want.groups[corrupt] != m.counts.groups[corrupt] {
		t.Errorf("counts of groups are %v, want %v", m.counts.groups, want.groups)
	}
	if want.complete != m.counts.complete || want.by[under] != m.counts.by[under] || want.by[missing] != m.counts.by[missing] || want.by[corrupt] != m.counts.by[corrupt] {
		t.Errorf("counts are %+v, want %+v", m.counts, want)
	}
	for _, v := range m.volumes {
		for id := range v.blocks.all() {
			found := slices.ContainsFunc(m.orphans[id], func(o odd) bool { return o.at == v.place })
			if b := m.blocks.peek(id); b != nil {
				found = slices.Contains(b.good, v.place) || slices.ContainsFunc(b.odds(), func(o odd) bool { return o.at == v.place })
			}
			if !found {
				t.Errorf("volume %s indexes block %d, which does not know it", v.id, id)
			}
		}
	}
	words, suspected := map[string]int{}, 0
	for id, b := range m.blocks.all() {
		d := b.inDoubt()
		if d == nil {
			continue
		}
		for _, k := range d.suspects {
			words[k.by]++
			suspected++
			if !m.volumes[k.at].blocks.has(id) {
				t.Errorf("block %d: suspect on %s, where it is not", id, m.volumes[k.at].id)
			}
		}
	}
	if !maps.Equal(words, m.words) || suspected != m.suspected {
		t.Errorf("counted suspects %v, %d; want %v, %d", m.words, m.suspected, words, suspected)
	}
	silent := 0
	for _, n := range m.order {
		if n.awaited() {
			silent++
		}
		out, in := 0, 0
		for _, c := range m.copies {
			if c.source == n && !c.over() {
				out++
			}
			if m.to(c, n) {
				in++
			}
		}
		if n.candidate.Full != (n.incoming >= m.config.Streams) {
			t.Errorf("%s: full=%t with %d incoming copies", n.info.ID, n.candidate.Full, n.incoming)
		}
		if n.outgoing != out || n.incoming != in {
			t.Errorf("%s: %d outgoing and %d incoming copies, want %d and %d", n.info.ID, n.outgoing, n.incoming, out, in)
		}
	}
	if silent != m.unreported {
		t.Errorf("%d nodes have not reported, counted %d", silent, m.unreported)
	}
}

func split(f []string) (args []string, opts map[string]string) {
	opts = map[string]string{}
	for _, a := range f {
		if k, v, ok := strings.Cut(a, "="); ok {
			opts[k] = v
		} else {
			args = append(args, a)
		}
	}
	return args, opts
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func blockID(s string) metadata.BlockID { return metadata.BlockID(number(s)) }

func replica(s string) namenode.Replica {
	p := strings.Split(s, ":")
	r := namenode.Replica{Block: metadata.Block{ID: blockID(p[0]), Generation: metadata.Generation(number(p[1])), Length: number(p[2])}, State: namenode.Finalized}
	if len(p) == 4 {
		r.State = map[string]namenode.ReplicaState{"rbw": namenode.Writing, "rwr": namenode.Waiting}[p[3]]
	}
	return r
}

func names(ls []namenode.Location) []string {
	out := []string{}
	for _, l := range ls {
		out = append(out, string(l.Node.ID))
	}
	return out
}

func nodeNames(ns []*namenode.Node) string {
	var out []string
	for _, n := range ns {
		out = append(out, string(n.ID))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

type checker interface {
	Helper()
	Errorf(format string, args ...any)
}
