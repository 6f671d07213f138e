package server

import (
	"slices"
	"testing"
	"time"

	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/metadata/namespace"
)

func TestTheTrashIsEmptiedUserByUser(t *testing.T) {
	c := newCluster(t, 1, nil)
	fs, ctx := c.root(), t.Context()
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.Local)
	trash := func(dirs ...string) {
		t.Helper()
		for _, dir := range dirs {
			if err := fs.Mkdirs(ctx, dir, 0o700, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	trash("/user/alice/.Trash/260504100000/old", "/user/alice/.Trash/260504100000-1/old", "/user/alice/.Trash/260504113000/young", "/user/alice/.Trash/mine", "/user/carol")
	if err := c.leader().emptyTrash(now.Add(-2*time.Hour), time.Hour); err != nil {
		t.Fatal(err)
	}
	c.leader().clock.pass(namespace.LogTime(2 * time.Hour.Milliseconds()))
	trash("/user/alice/.Trash/Current/a", "/user/alice/.Trash/260504120000/taken", "/user/bob/.Trash/Current/b")
	if err := c.leader().emptyTrash(now, time.Hour); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		"/user/alice/.Trash": {"260504113000", "260504120000", "260504120000-1", "mine"},
		"/user/bob/.Trash":   {"260504120000"},
		"/user/carol":        nil,
	} {
		list, err := fs.List(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) != len(want) {
			t.Errorf("%s: %d entries, want %v", path, len(list), want)
			continue
		}
		for i := range want {
			if list[i].Name != want[i] {
				t.Errorf("%s has %s, want %s", path, list[i].Name, want[i])
			}
		}
	}
	if _, err := fs.Stat(ctx, "/user/alice/.Trash/260504120000-1/a"); err != nil {
		t.Error(err)
	}
}

// A checkpoint goes when it has been there for the interval in log time, whoever has led meanwhile. A leader whose clock is wrong removes nothing before, and one
// whose clock was wrong when it gave a checkpoint its name keeps that for no longer.
func TestNoWallClockEmptiesTheTrash(t *testing.T) {
	c := newCluster(t, 3, nil)
	fs, ctx := c.root(), t.Context()
	now := time.Now().Truncate(time.Second)
	name := func(at time.Time) string { return at.Local().Format(checkpointForm) }
	empty := func(m *member, at time.Time, want ...string) {
		t.Helper()
		must(t, m.emptyTrash(at, time.Hour))
		list, err := fs.List(ctx, "/user/ann/.Trash")
		must(t, err)
		var got []string
		for _, e := range list {
			got = append(got, e.Name)
		}
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Fatalf("there are %v, want %v", got, want)
		}
	}
	remove := func(what string) { must(t, fs.Mkdirs(ctx, "/user/ann/.Trash/Current/"+what, 0o700, true)) }
	hour := namespace.LogTime(time.Hour.Milliseconds())
	first := c.leader()

	// Its clock is two days ahead, and then right again.
	must(t, fs.Mkdirs(ctx, "/user/ann/.Trash/"+name(now)+"/expunged", 0o700, true))
	remove("a")
	ahead := now.Add(48 * time.Hour)
	empty(first, ahead, name(now), name(ahead))
	first.clock.pass(hour / 2)
	remove("b")
	empty(first, ahead.Add(48*time.Hour), name(now), name(ahead), name(ahead.Add(48*time.Hour)))

	// Another one leads, whose clock is as wrong, until the first two have been there for long enough.
	second := c.handOver(t, func(m *member) bool { return m != first }, "")
	ahead = ahead.Add(48 * time.Hour)
	empty(second, ahead.Add(time.Hour), name(now), name(ahead.Add(-48*time.Hour)), name(ahead))
	second.clock.pass(hour/2 + 1000)
	empty(second, ahead.Add(2*time.Hour), name(ahead))

	// What it has named so is kept no longer than other checkpoints.
	second.clock.pass(hour / 2)
	empty(second, now.Add(2*time.Hour))

	// What was taken out of the trash, and removed again, begins anew.
	remove("c")
	empty(second, now, name(now))
	if ok, err := fs.Rename(ctx, "/user/ann/.Trash/"+name(now), "/user/ann/.Trash/Current"); err != nil || !ok {
		t.Fatal(ok, err)
	}
	second.clock.pass(2 * hour)
	empty(second, now.Add(-3*time.Hour), name(now.Add(-3*time.Hour)))
	empty(second, now, name(now.Add(-3*time.Hour)))
	second.clock.pass(2 * hour)
	empty(second, now)
}

func TestCheckpointsOfTheTrashAreMadeAtLeastOncePerInterval(t *testing.T) {
	for _, x := range []struct{ interval, checkpoint, keep, every int }{{60, 0, 60, 60}, {60, 15, 60, 15}, {60, 61, 60, 60}, {0, 15, 0, 0}} {
		keep, every := trashIntervals(&config.Properties{TrashInterval: x.interval, TrashCheckpoint: x.checkpoint})
		if keep != time.Duration(x.keep)*time.Minute || every != time.Duration(x.every)*time.Minute {
			t.Errorf("%+v: kept for %v, made every %v", x, keep, every)
		}
	}
}

func TestTheTrashIsDueAtTheEndOfAnInterval(t *testing.T) {
	at := time.Date(2026, 5, 4, 12, 59, 0, 0, time.UTC)
	for _, x := range []struct {
		now      time.Time
		interval time.Duration
		want     bool
	}{
		{at.Add(30 * time.Second), time.Hour, false},
		{at.Add(time.Minute), time.Hour, true},
		{at.Add(time.Minute), 0, false},
		{at.Add(-time.Hour), time.Hour, false},
	} {
		if got := trashDue(at, x.now, x.interval); got != x.want {
			t.Errorf("%v, every %v: %v", x.now, x.interval, got)
		}
	}
}
