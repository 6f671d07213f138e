package server

import (
	"testing"
	"time"

	"github.com/gohops/hops/internal/config"
)

func TestTheTrashIsEmptiedUserByUser(t *testing.T) {
	c := newCluster(t, 1, nil)
	fs, ctx := c.root(), t.Context()
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.Local)
	for _, dir := range []string{
		"/user/alice/.Trash/Current/a", "/user/alice/.Trash/260504100000/old", "/user/alice/.Trash/260504100000-1/old",
		"/user/alice/.Trash/260504113000/young", "/user/alice/.Trash/mine", "/user/alice/.Trash/260504120000/taken",
		"/user/bob/.Trash/Current/b", "/user/carol",
	} {
		if err := fs.Mkdirs(ctx, dir, 0o700, true); err != nil {
			t.Fatal(err)
		}
	}
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
