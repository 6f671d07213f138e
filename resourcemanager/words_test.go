package resourcemanager

import (
	"strings"
	"testing"
)

func TestIDsReadBack(t *testing.T) {
	app := ApplicationID{1795248047013, 2}
	attempt := AttemptID{app, 1}
	for want, got := range map[string]string{
		"application_1795248047013_0002":               app.String(),
		"application_1795248047013_12345":              ApplicationID{1795248047013, 12345}.String(),
		"appattempt_1795248047013_0002_000001":         attempt.String(),
		"container_1795248047013_0002_01_000003":       ContainerID{attempt, 0, 3}.String(),
		"container_e17_1795248047013_0002_01_000003":   ContainerID{attempt, 17, 3}.String(),
		"container_e1234_1795248047013_0002_01_000003": ContainerID{attempt, 1234, 3}.String(),
	} {
		if want != got {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, id := range []ContainerID{{attempt, 0, 3}, {attempt, 17, 1234567}} {
		if got, err := ParseContainerID(id.String()); err != nil || got != id {
			t.Errorf("%v: %v %v", id, got, err)
		}
	}
	if got, err := ParseApplicationID(app.String()); err != nil || got != app {
		t.Error(got, err)
	}
	if got, err := ParseAttemptID(attempt.String()); err != nil || got != attempt {
		t.Error(got, err)
	}
}

func TestNumbersBeyondYARNsAreNoIDs(t *testing.T) {
	if _, err := ParseApplicationID("application_1795248047013_2147483647"); err != nil {
		t.Error(err)
	}
	for _, number := range []string{"2147483648", "1000000000000", "9223372036854775807"} {
		if _, err := ParseApplicationID("application_1795248047013_" + number); err == nil {
			t.Errorf("application %s is an id", number)
		}
		if _, err := ParseAttemptID("appattempt_1795248047013_" + number + "_000001"); err == nil {
			t.Errorf("attempt of application %s is an id", number)
		}
		if _, err := ParseContainerID("container_1795248047013_" + number + "_01_000001"); err == nil {
			t.Errorf("container of application %s is an id", number)
		}
	}
}

func FuzzIDs(f *testing.F) {
	for _, s := range []string{"", "application_1_0001", "container_e01_1_0001_01_000001", "container_e_1_1_1_1", "appattempt_1_1_99999999999999", "application_-1_1", "application_+1_1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseContainerID(s); err == nil {
			if again, err := ParseContainerID(id.String()); err != nil || again != id {
				t.Errorf("%q: %v, then %v %v", s, id, again, err)
			}
		}
		if id, err := ParseApplicationID(s); err == nil && strings.ContainsAny(s, "+-") {
			t.Errorf("%q: %v", s, id)
		}
		ParseAttemptID(s)
	})
}

func TestQueues(t *testing.T) {
	q, err := NewQueues(QueueConfig{Children: map[string]QueueConfig{
		"default":  {Capacity: "40%"},
		"research": {Capacity: "60%", Max: "80%", Submit: []string{"ann"}, Administer: []string{"boss"}, Children: map[string]QueueConfig{"a": {Capacity: "25%"}, "b": {Capacity: "75%", Submit: []string{"*"}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	a := q.Find("root.research.a")
	if a == nil || a != q.Find("a") || a.AbsoluteCapacity != 0.15 || a.AbsoluteMax != 0.8 || !a.Leaf() || q.Find("research").Leaf() {
		t.Errorf("%+v", a)
	}
	for user, want := range map[string][3]bool{"ann": {true, true, true}, "bob": {true, false, true}} {
		if got := [3]bool{q.Find("default").MaySubmit(user), a.MaySubmit(user), q.Find("b").MaySubmit(user)}; got != want {
			t.Errorf("%s may submit to default, a, b: %v", user, got)
		}
	}
	for user, want := range map[string][3]bool{"ann": {false, true, true}, "bob": {false, false, true}} {
		if got := [3]bool{q.Find("default").Invites(user), a.Invites(user), q.Find("b").Invites(user)}; got != want {
			t.Errorf("default, a, b invite %s: %v", user, got)
		}
	}
	if !a.MayAdminister("boss") || a.MayAdminister("ann") {
		t.Error("administrators")
	}
	if q, err := NewQueues(QueueConfig{}); err != nil || q.Find("default").AbsoluteCapacity != 1 {
		t.Error("the default tree:", err)
	}
}

func TestTheHashOfQueuesTellsWhatMatters(t *testing.T) {
	hash := func(c QueueConfig) string {
		t.Helper()
		q, err := NewQueues(QueueConfig{Children: map[string]QueueConfig{"a": c, "b": {Capacity: "60%"}}})
		if err != nil {
			t.Fatal(err)
		}
		return q.Hash()
	}
	base := hash(QueueConfig{Capacity: "40%", Submit: []string{"ann", "bob"}})
	if got := hash(QueueConfig{Capacity: "40%", Max: "100%", Submit: []string{"bob", "ann"}}); got != base {
		t.Errorf("written otherwise: %s and %s", got, base)
	}
	seen := map[string]QueueConfig{base: {}}
	for _, c := range []QueueConfig{
		{Capacity: "40%"},
		{Capacity: "40%", Max: "90%", Submit: []string{"ann", "bob"}},
		{Capacity: "40%", Submit: []string{"ann"}},
		{Capacity: "40%", Submit: []string{"ann bob"}},
		{Capacity: "40%", Submit: []string{"ann", "bob"}, Administer: []string{"eve"}},
		{Capacity: "40%", Submit: []string{"ann", "bob"}, State: QueueStopped},
		{Capacity: "40%", Submit: []string{"ann", "bob"}, Children: map[string]QueueConfig{"c": {Capacity: "100%"}}},
	} {
		if other, ok := seen[hash(c)]; ok {
			t.Errorf("%+v and %+v have one hash", c, other)
		}
		seen[hash(c)] = c
	}
}

func TestWrongQueuesAreNamed(t *testing.T) {
	_, err := NewQueues(QueueConfig{Children: map[string]QueueConfig{"a b": {Capacity: "50%"}, "c": {Capacity: "40%", Max: "30%"}}})
	for _, want := range []string{`"root.a b"`, "root.c: max 30% is below", "add up to 90%"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}
