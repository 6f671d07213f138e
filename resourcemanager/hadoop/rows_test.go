package hadoop

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/hrpc"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/hadoop/yarnpb"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// unlimited is a cluster of which nothing but the limits is asked.
type unlimited struct{ Cluster }

func (unlimited) Limits() (minimum, maximum rm.Resource) {
	return rm.Resource{Memory: rm.MiB}, rm.Resource{}
}

// rowCall is a call on a cluster of four nodes in three racks, of which the last does not speak YARN's protocol.
func rowCall(t *testing.T) *call {
	t.Helper()
	s := state.New(state.Config{})
	apply := func(index uint64, c *statepb.Command) {
		t.Helper()
		c.NowMs = time.Now().UnixMilli()
		b, err := state.Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		if r := s.Apply(index, [][]byte{b})[0].(*state.Result); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	apply(1, &statepb.Command{Op: &statepb.Command_Begin{Begin: &statepb.Begin{Leader: "rm1"}}})
	for i, n := range []rm.Node{
		{ID: "a:1", Rack: "/r1", IPC: "a:2"}, {ID: "b:1", Rack: "/r1/x", IPC: "b:2"}, {ID: "c:1", Rack: "/r10", IPC: "c:2"}, {ID: "mute:1", Rack: "/r2"},
	} {
		n.Incarnation, n.Host, n.State = "one", strings.TrimSuffix(string(n.ID), ":1"), rm.NodeRunning
		n.Capacity = rm.Resource{Memory: 8 << 30, VCores: 8}
		apply(uint64(i+2), &statepb.Command{Op: &statepb.Command_RegisterNode{RegisterNode: &statepb.RegisterNode{Epoch: 1, Node: state.Node(&n)}}})
	}
	return &call{Server: &Server{Config: Config{Cluster: unlimited{}}}, view: s.View()}
}

func asked(name string, n int32, strict bool) *pb.ResourceRequestProto {
	return &pb.ResourceRequestProto{
		Priority: &pb.PriorityProto{Priority: new(int32(3))}, ResourceName: &name, Capability: pb.Resource(rm.Resource{Memory: 1 << 30, VCores: 1}, nil), NumContainers: &n,
		RelaxLocality: new(!strict),
	}
}

// Hosts are preferred before racks, and how far a master does not relax that is required.
func TestRowsOfHostsAndRacks(t *testing.T) {
	c := rowCall(t)
	for name, s := range map[string]struct {
		rows         []*pb.ResourceRequestProto
		hosts, racks []string
		strict       bool
		count        int
	}{
		"anywhere":                        {rows: []*pb.ResourceRequestProto{asked("*", 2, false)}, count: 2},
		"a host, relaxed":                 {rows: []*pb.ResourceRequestProto{asked("a", 1, false), asked("/r1", 1, false), asked("*", 1, false)}, hosts: []string{"a"}, racks: []string{"/r1"}, count: 1},
		"a host, in whatever order":       {rows: []*pb.ResourceRequestProto{asked("*", 1, false), asked("/r1", 1, false), asked("a", 1, false)}, hosts: []string{"a"}, racks: []string{"/r1"}, count: 1},
		"a rack with those below":         {rows: []*pb.ResourceRequestProto{asked("/r1", 1, false), asked("*", 1, false)}, racks: []string{"/r1"}, count: 1},
		"a host and nothing else":         {rows: []*pb.ResourceRequestProto{asked("a", 1, false), asked("*", 1, true)}, hosts: []string{"a"}, strict: true, count: 1},
		"a host or its rack":              {rows: []*pb.ResourceRequestProto{asked("c", 1, false), asked("/r1", 1, false), asked("*", 1, true)}, hosts: []string{"c"}, racks: []string{"/r1"}, strict: true, count: 1},
		"a host and not its rack":         {rows: []*pb.ResourceRequestProto{asked("a", 1, false), asked("/r1", 1, true), asked("*", 1, true)}, hosts: []string{"a"}, strict: true, count: 1}, // as AMRMClient asks
		"a rack that is none":             {rows: []*pb.ResourceRequestProto{asked("/", 1, false), asked("*", 1, false)}, count: 1},
		"strict, with no place":           {rows: []*pb.ResourceRequestProto{asked("*", 1, true)}, count: 1},
		"a host that is taken back":       {rows: []*pb.ResourceRequestProto{asked("a", 1, false), asked("*", 1, false), asked("a", 0, false)}, count: 1},
		"a count that replaces the other": {rows: []*pb.ResourceRequestProto{asked("*", 7, false), asked("*", 4, false)}, count: 4},
	} {
		w := newWants()
		changed, err := w.take(c, &pb.AllocateRequestProto{Ask: s.rows})
		if err != nil || len(changed) != 1 {
			t.Errorf("%s: %v %v", name, changed, err)
			continue
		}
		a, ok := only(t, w, c, changed[0])
		words := a.Near.Words()
		var hosts []string
		for _, h := range words.Hosts {
			hosts = append(hosts, h.Host)
		}
		if !ok || !slices.Equal(hosts, s.hosts) || !slices.Equal(words.Racks, s.racks) || a.Strict != s.strict || a.Count != s.count || !slices.Equal(a.Excluded, []string{"mute:1"}) || a.Priority != 3 || !a.Held {
			t.Errorf("%s: %+v %v", name, a, ok)
		}
	}
	w := newWants()
	if _, err := w.take(c, &pb.AllocateRequestProto{Ask: []*pb.ResourceRequestProto{asked("*", 2, false)}}); err != nil {
		t.Fatal(err)
	}
	changed, err := w.take(c, &pb.AllocateRequestProto{Ask: []*pb.ResourceRequestProto{asked("*", 0, false)}})
	if err != nil || len(changed) != 1 {
		t.Fatal(changed, err)
	}
	if a, ok := only(t, w, c, changed[0]); ok || len(w.by) != 0 {
		t.Errorf("what nobody wants any more stays: %+v %v", a, w.by)
	}
}

// A blacklist counts for what was asked before and after, and ends when the master says so.
func TestBlacklists(t *testing.T) {
	c, w := rowCall(t), newWants()
	say := func(add, remove []string, rows ...*pb.ResourceRequestProto) ([]askKey, error) {
		return w.take(c, &pb.AllocateRequestProto{Ask: rows, BlacklistRequest: &pb.ResourceBlacklistRequestProto{BlacklistAdditions: add, BlacklistRemovals: remove}})
	}
	excluded := func(want ...string) {
		t.Helper()
		for key := range w.by {
			if a, ok := only(t, w, c, key); !ok || !slices.Equal(a.Excluded, want) {
				t.Errorf("%+v", a)
			}
		}
	}
	if _, err := say(nil, nil, asked("*", 1, false)); err != nil {
		t.Fatal(err)
	}
	if changed, err := say([]string{"c", "a"}, nil); err != nil || len(changed) != 1 { // what was asked before
		t.Error(changed, err)
	}
	excluded("a", "c", "mute:1")
	if changed, err := say([]string{"b"}, []string{"c", "b", "never"}); err != nil || len(changed) != 1 { // removed after it was added, as in YARN
		t.Error(changed, err)
	}
	excluded("a", "mute:1")
	for _, bad := range []string{"*", "", "a b", strings.Repeat("x", 256)} {
		_, err := say([]string{bad}, nil)
		if remote, ok := errors.AsType[*hrpc.RemoteError](err); !ok || remote.Class != invalidBlacklist {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	many := make([]string, maxPlaces+1)
	for i := range many {
		many[i] = fmt.Sprint("n", i)
	}
	if _, err := say(many, nil); err == nil || !strings.Contains(err.Error(), "20000 at most") {
		t.Errorf("%.200v", err)
	}
}

// A request that is refused in its middle changes nothing of what was wanted before: it is taken by a copy.
func TestRowsThatAreRefused(t *testing.T) {
	c := rowCall(t)
	w := newWants()
	if _, err := w.take(c, &pb.AllocateRequestProto{Ask: []*pb.ResourceRequestProto{asked("a", 1, false), asked("*", 1, false)}}); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*pb.ResourceRequestProto){
		"no name":             func(r *pb.ResourceRequestProto) { r.ResourceName = new("") },
		"a count below 0":     func(r *pb.ResourceRequestProto) { r.NumContainers = new(int32(-1)) },
		"a count of too many": func(r *pb.ResourceRequestProto) { r.NumContainers = new(int32(maxCount + 1)) },
		"a priority below 0":  func(r *pb.ResourceRequestProto) { r.Priority.Priority = new(int32(-1)) },
		"more than a node":    func(r *pb.ResourceRequestProto) { r.Capability = pb.Resource(rm.Resource{Memory: 9 << 30}, nil) },
		"two labels":          func(r *pb.ResourceRequestProto) { r.NodeLabelExpression = new("x && y") },
	} {
		bad := asked("*", 5, false)
		spoil(bad)
		copied := w.clone()
		if _, err := copied.take(c, &pb.AllocateRequestProto{Ask: []*pb.ResourceRequestProto{asked("c", 1, false), asked("*", 5, true), bad}}); err == nil {
			t.Errorf("%s is taken", name)
		}
		for key := range w.by {
			if a, ok := only(t, w, c, key); !ok || a.Count != 1 || a.Strict || len(a.Near.Words().Hosts) != 1 {
				t.Errorf("%s: %+v", name, a)
			}
		}
	}
}

// only is one ask as the scheduler is told of it; false: it is cancelled.
func only(t *testing.T, w wants, c *call, key askKey) (rm.Ask, bool) {
	t.Helper()
	asks, cancel, err := w.asks(c, []askKey{key})
	if err != nil || len(asks)+len(cancel) != 1 {
		t.Fatal(asks, cancel, err)
	}
	if len(cancel) == 1 {
		return rm.Ask{}, false
	}
	return asks[0].Ask, true
}
