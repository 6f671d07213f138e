package state

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// Queues in the state: a change, what limits them, queues that are made, and all of it by a replay and by a snapshot.
func TestQueuesOfTheCluster(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	var log [][]byte
	do := func(c *statepb.Command) *Result {
		t.Helper()
		c.NowMs = int64(1000 + len(log))
		b, err := Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		log = append(log, b)
		return s.Apply(uint64(len(log)), [][]byte{b})[0].(*Result)
	}
	set := func(config rm.QueueConfig, after uint64, force bool) *Result {
		t.Helper()
		return do(&statepb.Command{Op: &statepb.Command_SetQueues{SetQueues: &statepb.SetQueues{
			Epoch: 1, Document: config.Document(), After: after, Force: force, By: "boss",
		}}})
	}
	submit := func(user, queue string) *Result {
		t.Helper()
		return do(&statepb.Command{Op: &statepb.Command_Submit{Submit: &statepb.Submit{Application: Application(&rm.Application{
			User: user, Queue: queue, Kind: rm.KindCommand, Master: rm.Resource{Memory: rm.MiB, VCores: 1}, MaxAttempts: 1,
		})}}})
	}
	config := rm.QueueConfig{Children: map[string]rm.QueueConfig{
		"a":     {Capacity: "40%", MaxApplications: 3, MaxApplicationsPerUser: 2},
		"b":     {Capacity: "30%", State: rm.QueueStopped},
		"users": {Capacity: "30%", MaxApplications: 3, AutoCreate: &rm.QueueConfig{MaxApplications: 2}},
	}}
	do(&statepb.Command{Op: &statepb.Command_Begin{Begin: &statepb.Begin{Leader: "rm1", QueuesHash: "of a file"}}})
	if s.View().Queues() != nil {
		t.Error("queues before there are any")
	}
	if r := submit("ann", "root.whatever"); r.Err != nil {
		t.Errorf("by the leader's own queues: %v", r.Err)
	} else {
		do(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(r.Application)}}})
	}
	if r := set(config, 1, false); !errors.Is(r.Err, metadata.ErrRetriable) {
		t.Errorf("a change of queues that there are not: %v", r.Err)
	}
	if r := set(config, 0, false); r.Err != nil || r.Version != 1 {
		t.Fatalf("%+v", r)
	}
	if r := set(rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "1%"}}}, 1, true); !errors.Is(r.Err, metadata.ErrInvalidArgument) {
		t.Errorf("queues that are wrong: %v", r.Err)
	}
	var apps []rm.ApplicationID
	for _, c := range []struct {
		user, queue string
		want        error
	}{
		{"ann", "a", nil},
		{"ann", "root.a", nil},
		{"ann", "root.a", rm.ErrQueueFull},
		{"bob", "root.a", nil},
		{"eve", "root.a", rm.ErrBusy},
		{"ann", "root.b", metadata.ErrPermission},
		{"ann", "root.users", metadata.ErrInvalidArgument},
		{"ann", "root.c", metadata.ErrInvalidArgument},
		{"ann", "root.users.ann", nil},
		{"ann", "root.users.ann", nil},
		{"bob", "root.users.ann", rm.ErrQueueFull},
		{"bob", "root.users.bob", nil},
		{"eve", "root.users.eve", rm.ErrQueueFull},
	} {
		r := submit(c.user, c.queue)
		if c.want == nil && r.Err != nil || !errors.Is(r.Err, c.want) {
			t.Errorf("%s to %s: %v, want %v", c.user, c.queue, r.Err, c.want)
		}
		if r.Err == nil {
			apps = append(apps, r.Application)
		}
	}
	if a := s.View().Application(apps[0]); a.Queue != "root.a" {
		t.Errorf("queue %s", a.Queue)
	}
	if q := s.View().Queues().Find("root.users.bob"); q == nil || !q.Created || s.View().Queues().Find("root.users.eve") != nil {
		t.Errorf("made: %v", s.View().Queues().Made())
	}
	move := func(id rm.ApplicationID, queue string) error {
		priority := int32(9)
		r := do(&statepb.Command{Op: &statepb.Command_UpdateApplication{UpdateApplication: &statepb.UpdateApplication{Application: ApplicationID(id), Queue: queue, Priority: &priority}}})
		a := s.View().Application(id)
		if moved := a.Queue == queue && a.Priority == 9; moved != (r.Err == nil) {
			t.Errorf("%v to %s: %v, and it is in %s with priority %d", id, queue, r.Err, a.Queue, a.Priority)
		}
		for _, err := range s.Check() {
			t.Errorf("%v to %s: %v", id, queue, err)
		}
		return r.Err
	}
	bob := apps[len(apps)-1]
	for _, c := range []struct {
		queue string
		want  error
	}{
		{"root.b", metadata.ErrPermission},
		{"root.a", rm.ErrQueueFull},
		{"root.c", metadata.ErrInvalidArgument},
		{"root.users", metadata.ErrInvalidArgument},
		{"root.users.ann", rm.ErrQueueFull},
		{"root.users.eve", nil}, // root.users is full, with this one
		{"root.users.bob", nil},
	} {
		if err := move(bob, c.queue); c.want == nil && err != nil || !errors.Is(err, c.want) {
			t.Errorf("to %s: %v, want %v", c.queue, err, c.want)
		}
		if eve := s.View().Queues().Find("root.users.eve") != nil; eve != (c.queue == "root.users.eve") {
			t.Errorf("after the move to %s: eve's queue is made: %v", c.queue, eve)
		}
	}
	less := rm.QueueConfig{Children: map[string]rm.QueueConfig{"a": {Capacity: "100%"}}}
	if r := set(less, 1, false); !errors.Is(r.Err, metadata.ErrExist) {
		t.Errorf("queues without a place for applications: %v", r.Err)
	}
	check := func(what string, other *State) {
		t.Helper()
		if other.Hash() != s.Hash() {
			t.Errorf("%s: another state", what)
		}
		a, b := other.View().Queues(), s.View().Queues()
		if a.Hash() != b.Hash() || len(a.All) != len(b.All) {
			t.Errorf("%s: %d queues, not %d", what, len(a.All), len(b.All))
		}
		for _, err := range other.Check() {
			t.Errorf("%s: %v", what, err)
		}
		if v, by, since := other.View().QueuesVersion(); v != 1 || by != "boss" || since == 0 {
			t.Errorf("%s: version %d by %s", what, v, by)
		}
	}
	replayed := New(Config{})
	replayed.Apply(uint64(len(log)), log)
	// All at once has one index and one time per command: the same state.
	check("replay", replayed)
	var snapshot bytes.Buffer
	if _, err := s.freeze().WriteTo(&snapshot); err != nil {
		t.Fatal(err)
	}
	restored := New(Config{})
	if err := restored.Restore(&snapshot); err != nil {
		t.Fatal(err)
	}
	check("snapshot", restored)

	kill := func(s *State, index uint64, id rm.ApplicationID) {
		b, err := Encode(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(id)}}})
		if err != nil {
			t.Fatal(err)
		}
		s.Apply(index, [][]byte{b})
	}
	kill(restored, uint64(len(log)+1), apps[len(apps)-1])
	if restored.View().Queues().Find("root.users.bob") != nil || restored.View().Queues().Find("root.users.ann") == nil {
		t.Errorf("made: %v", restored.View().Queues().Made())
	}
	if r := set(less, 1, true); r.Err != nil || r.Version != 2 || len(s.View().Queues().All) != 2 {
		t.Errorf("forced: %+v", r)
	}
	do(&statepb.Command{Op: &statepb.Command_Begin{Begin: &statepb.Begin{Leader: "rm2", QueuesHash: "of another file"}}})
	if id, hash := s.View().Leader(); id != "rm2" || hash != s.View().Queues().Hash() {
		t.Errorf("%s grants by %s", id, hash)
	}
	if r := set(config, 2, false); !errors.Is(r.Err, rm.ErrStaleEpoch) {
		t.Errorf("a leader that was: %v", r.Err)
	}
}

// Below one queue only so many are made; who has one of them, or another queue, goes on.
func TestQueuesThatAreMadeAreBounded(t *testing.T) {
	c := newCluster(t, Config{})
	config := rm.QueueConfig{Children: map[string]rm.QueueConfig{"default": {Capacity: "50%"}, "users": {Capacity: "50%", AutoCreate: &rm.QueueConfig{}}}}
	c.must(&statepb.Command{Op: &statepb.Command_SetQueues{SetQueues: &statepb.SetQueues{Epoch: 1, Document: config.Document()}}})
	submit := func(user, queue string) *Result {
		return c.do(&statepb.Command{Op: &statepb.Command_Submit{Submit: &statepb.Submit{Application: Application(&rm.Application{
			User: user, Queue: queue, Kind: rm.KindCommand, Master: master, MaxAttempts: 1,
		})}}})
	}
	made, first := 0, rm.ApplicationID{}
	for ; made < 2000; made++ {
		r := submit(fmt.Sprint("u", made/100), fmt.Sprint("root.users.q", made))
		if r.Err != nil {
			if !errors.Is(r.Err, rm.ErrQueueFull) {
				t.Fatal(r.Err)
			}
			break
		}
		if made == 0 {
			first = r.Application
		}
	}
	if made != 1000 || len(c.View().Queues().Made()) != made {
		t.Errorf("%d queues are made, %d are there", made, len(c.View().Queues().Made()))
	}
	a := &rm.Application{User: "eve", Queue: "root.users.eve"}
	if err := c.QueueRoom(c.View().Queues(), a); !errors.Is(err, rm.ErrQueueFull) {
		t.Errorf("the leader would propose it: %v", err)
	}
	for _, queue := range []string{"root.users.q7", "root.default"} {
		if r := submit("eve", queue); r.Err != nil {
			t.Errorf("to %s: %v", queue, r.Err)
		}
	}
	c.must(&statepb.Command{Op: &statepb.Command_Kill{Kill: &statepb.Kill{Application: ApplicationID(first)}}})
	if r := submit("eve", "root.users.eve"); r.Err != nil {
		t.Errorf("after one has gone: %v", r.Err)
	}
	c.sound()
}
