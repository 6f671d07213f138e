package roster

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gohops/hops/internal/release"
)

func TestTheLevelIsRaisedForGood(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	want := func(what string, want Level) {
		t.Helper()
		if l, err := f.Level(); err != nil || l != want {
			t.Errorf("%s: %+v %v, want %+v", what, l, err, want)
		}
	}
	want("a new cluster has all that its program knows", Level{Level: release.Level})
	next := release.Level + 1
	for range 2 {
		if err := f.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		want("prepared", Level{Level: release.Level, Prepared: f.now})
	}
	prepared := f.now
	f.now = f.now.Add(time.Hour)
	f.g.meddle = func() { // somebody else was quicker
		if err := f.Raise(context.Background(), next); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := f.Raise(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		want("raised", Level{Level: next, Raised: f.now})
	}
	if err := f.Raise(t.Context(), release.Level); !errors.Is(err, release.ErrOlder) {
		t.Errorf("going back: %v", err)
	}
	want("nothing changed", Level{Level: next, Raised: prepared.Add(time.Hour)})
}

func TestAClusterFromBeforeThereWereLevels(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	delete(f.g.values, levelItem)
	delete(f.g.version, levelItem)
	if l, err := f.Level(); err != nil || l.Level != 1 {
		t.Errorf("%+v %v", l, err)
	}
	if err := f.Raise(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if l, err := f.Level(); err != nil || l.Level != 2 {
		t.Errorf("%+v %v", l, err)
	}
}
