package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/rest"
	"github.com/gohops/hops/resourcemanager/state"
)

// raised is a cluster in which everything of this version counts.
func raised(t *testing.T, n int, change func(*Config)) *testCluster {
	t.Helper()
	c := newTestCluster(t, n, change)
	c.raise()
	eventually(t, "the queues of the file to be the cluster's", func() bool {
		l := c.leader()
		return l != nil && l.View().Queues() != nil
	})
	return c
}

func TestQueuesAreTheClusters(t *testing.T) {
	c := raised(t, 1, func(c *Config) {
		c.Queues = rm.QueueConfig{
			Mapping: []rm.MappingRule{{Application: "nightly", Queue: "root.users.nobody_else", Fallback: rm.FallbackReject}, {User: "ann", Queue: "root.users.%user"}},
			Submit:  []string{"*"},
			Children: map[string]rm.QueueConfig{
				"default": {Capacity: "30%", MaxApplications: 1, DefaultPriority: 4, MaxPriority: 6, MaxLifetime: "1h"},
				"stopped": {Capacity: "10%", State: rm.QueueStopped},
				"users":   {Capacity: "60%", AutoCreate: &rm.QueueConfig{MaxApplications: 2}},
			},
		}
	})
	l := c.leader()
	ctx := context.Background()
	submit := func(user string, b rest.Submission) (*rm.Application, error) {
		t.Helper()
		b.Kind = rm.KindCommand
		id, _, err := l.Submit(ctx, metadata.Caller{User: user, Groups: []string{"staff"}}, b)
		if err != nil {
			return nil, err
		}
		return l.View().Application(id), nil
	}
	for _, test := range []struct {
		user     string
		b        rest.Submission
		queue    string
		priority int
		state    rm.State
		err      error
		text     string
	}{
		{"ann", rest.Submission{Queue: "default"}, "root.users.ann", 0, rm.StateAccepted, nil, ""},
		{"ann", rest.Submission{Queue: "root.default", Priority: 9}, "root.default", 6, rm.StateAccepted, nil, ""},
		{"bob", rest.Submission{Queue: "default"}, "", 0, "", rm.ErrQueueFull, "Queue root.default already has 1 applications, cannot accept submission of"},
		{"bob", rest.Submission{Queue: "default", AcceptAnyQueue: true, Priority: -1}, "root.default", 4, rm.StateFailed, nil, "org.apache.hadoop.security.AccessControlException: Queue root.default already has 1 applications"},
		{"bob", rest.Submission{Queue: "root.users.bob"}, "root.users.bob", 0, rm.StateAccepted, nil, ""},
		{"eve", rest.Submission{Queue: "default", Name: "nightly"}, "root.users.nobody_else", 0, rm.StateAccepted, nil, ""},
		{"eve", rest.Submission{Queue: "stopped"}, "", 0, "", metadata.ErrPermission, "which is stopped"},
		{"eve", rest.Submission{Queue: "users"}, "", 0, "", metadata.ErrPermission, "holds queues"},
		{"eve", rest.Submission{Queue: "root.users.a b"}, "", 0, "", metadata.ErrInvalidArgument, "there is no queue"},
	} {
		a, err := submit(test.user, test.b)
		if test.err != nil {
			if !errors.Is(err, test.err) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("%s %+v: %v", test.user, test.b, err)
			}
			continue
		}
		if err != nil || a.Queue != test.queue || a.Priority != test.priority || a.State != test.state || !strings.Contains(a.Diagnostics, test.text) {
			t.Errorf("%s %+v: %v, %+v", test.user, test.b, err, a)
		}
	}
	if q := l.Queues().Find("root.users.bob"); q == nil || !q.Created {
		t.Error("bob has no queue")
	}

	// A change of an application that lives heeds its queue's highest priority, and the queue that it would move into.
	var moves rm.ApplicationID
	for a := range l.View().Live() {
		if a.Queue == "root.default" {
			moves = a.ID
		}
	}
	for _, test := range []struct {
		set, want int
		queue     string
		err       error
	}{
		{99, 6, "", nil}, {0, 0, "", nil}, {-4, 0, "root.default", nil}, {3, 0, "users", metadata.ErrInvalidArgument}, {3, 0, "stopped", metadata.ErrPermission},
	} {
		if _, err := l.Update(ctx, moves, rest.Update{Priority: &test.set, Queue: test.queue}); test.err == nil && err != nil || !errors.Is(err, test.err) {
			t.Errorf("%+v: %v", test, err)
		}
		if a := l.View().Application(moves); a.Priority != test.want || a.Queue != "root.default" {
			t.Errorf("%+v: priority %d in %s", test, a.Priority, a.Queue)
		}
	}

	// Changes: looked at first, refused where they hurt, forced, and by one who knows an old version only.
	boss := metadata.Caller{User: "boss"}
	without := func(q rm.QueueConfig) (rm.QueueConfig, error) {
		delete(q.Children, "users")
		d := q.Children["default"]
		d.Capacity = "90%"
		q.Children["default"] = d
		q.Mapping = nil
		return q, nil
	}
	seen, err := l.ChangeQueues(ctx, boss, rest.QueueOptions{DryRun: true}, without)
	if err != nil || len(seen.Affected) != 3 || !strings.Contains(seen.Affected[0].Text, "loses its queue root.users.ann") || seen.Version != 1 {
		t.Errorf("dry run: %v %+v", err, seen)
	}
	if _, err := l.ChangeQueues(ctx, boss, rest.QueueOptions{}, without); !errors.Is(err, metadata.ErrExist) {
		t.Errorf("applications would lose their queue: %v", err)
	}
	if _, err := l.ChangeQueues(ctx, boss, rest.QueueOptions{Version: 7}, without); !errors.Is(err, metadata.ErrExist) {
		t.Errorf("a version that was not: %v", err)
	}
	if _, err := l.ChangeQueues(ctx, boss, rest.QueueOptions{}, func(q rm.QueueConfig) (rm.QueueConfig, error) {
		q.Children["x"] = rm.QueueConfig{Capacity: "1%"}
		return q, nil
	}); !errors.Is(err, metadata.ErrInvalidArgument) || !errors.As(err, new(*rm.SumError)) {
		t.Errorf("too much: %v", err)
	}
	done, err := l.ChangeQueues(ctx, boss, rest.QueueOptions{Force: true}, without)
	if err != nil || done.Version != 2 || l.Queues().Find("users") != nil {
		t.Errorf("forced: %v %+v", err, done)
	}
	c.check()
}

// Three resource managers go by the same queues, whoever of them leads and whatever its file says.
func TestTheNextLeaderGoesByTheSameQueues(t *testing.T) {
	c := raised(t, 3, nil)
	var old *member
	eventually(t, "the queues to be changed", func() bool { // on a busy machine leaders change, and nobody knows what has become of it
		old = c.leader()
		_, err := old.ChangeQueues(context.Background(), metadata.Caller{User: "boss"}, rest.QueueOptions{}, func(q rm.QueueConfig) (rm.QueueConfig, error) {
			q.Children = map[string]rm.QueueConfig{"default": {Capacity: "1w"}, "x": {Capacity: "3w"}}
			return q, nil
		})
		if err != nil {
			t.Log(err)
		}
		return err == nil
	})
	c.kill(slices.Index(c.live, old))
	eventually(t, "another one to lead", func() bool { l := c.leader(); return l != nil && l != old })
	if l := c.leader(); l.Queues().Find("x") == nil || l.queues.Load().Find("x") != nil {
		t.Error("the next leader goes by its file")
	}
}

func TestQueuesBeforeTheClusterIsRaised(t *testing.T) {
	c := newTestCluster(t, 1, func(c *Config) {
		c.Queues = rm.QueueConfig{Submit: []string{"*"}, Children: map[string]rm.QueueConfig{"default": {Capacity: "50%", MaxApplications: 1}, "users": {Capacity: "50%", AutoCreate: &rm.QueueConfig{}}}}
	})
	l := c.leader()
	submit := func(queue string) error {
		_, _, err := l.Submit(context.Background(), metadata.Caller{User: "ann"}, rest.Submission{Queue: queue, Kind: rm.KindCommand})
		return err
	}
	if err := submit("root.users.ann"); !errors.Is(err, metadata.ErrUnsupported) {
		t.Errorf("a queue is made: %v", err)
	}
	if err := errors.Join(submit("default")); err != nil {
		t.Error(err)
	}
	if err := submit("default"); !errors.Is(err, rm.ErrQueueFull) {
		t.Errorf("one too many: %v", err)
	}
	if _, err := l.ChangeQueues(context.Background(), metadata.Caller{}, rest.QueueOptions{}, nil); !errors.Is(err, metadata.ErrUnsupported) {
		t.Errorf("a change: %v", err)
	}
}

// Queues that no command of the log has room for are refused at the start, and when they are read anew.
func TestQueuesThatCannotBeRecorded(t *testing.T) {
	long := rm.QueueConfig{Children: map[string]rm.QueueConfig{}}
	for i := range 100 {
		q := rm.QueueConfig{Capacity: "1%"}
		for k := range 900 {
			q.Submit = append(q.Submit, fmt.Sprintf("user%05d", k))
		}
		long.Children[fmt.Sprint("q", i)] = q
	}
	if n := len(long.Document()); n <= state.MaxQueues || n > raftstore.MaxCommand*5/4 {
		t.Fatalf("%d bytes", n)
	}
	if _, err := newQueues(long); err == nil || !strings.Contains(err.Error(), "there is room for 786432") {
		t.Errorf("at the start: %v", err)
	}
	var now rm.QueueConfig
	c := newTestCluster(t, 1, func(config *Config) {
		config.Configured = func() (Configured, error) { return Configured{Queues: now}, nil }
	})
	now = long
	if _, err := c.leader().RefreshQueues(t.Context(), metadata.Caller{User: "boss", Superuser: true}, rest.QueueOptions{}); !errors.Is(err, metadata.ErrInvalidArgument) || !strings.Contains(err.Error(), "there is room for 786432") {
		t.Errorf("read anew: %v", err)
	}
}
