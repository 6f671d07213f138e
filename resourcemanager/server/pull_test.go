package server

import (
	"context"
	"errors"
	"testing"
)

// A user whose secrets are slow to read keeps half of the places free for others.
func TestOneUserLeavesPlacesForOthers(t *testing.T) {
	p := newPlaces(4)
	ended, end := context.WithCancel(t.Context())
	end()
	enter := func(user string, want error) (leave func()) {
		t.Helper()
		ctx := t.Context()
		if want != nil {
			ctx = ended
		}
		leave, err := p.enter(ctx, user)
		if !errors.Is(err, want) {
			t.Fatalf("%s: %v, want %v", user, err, want)
		}
		return leave
	}
	first, second := enter("ann", nil), enter("ann", nil)
	enter("ann", context.Canceled)
	enter("bob", nil)
	bob := enter("bob", nil)
	enter("cat", context.Canceled)
	first()
	enter("cat", nil)()
	enter("ann", nil)()
	second()
	bob()
	if len(p.users) != 1 || p.in["bob"] != 1 || len(p.all) != 1 {
		t.Errorf("%v %v, %d places taken", p.users, p.in, len(p.all))
	}
}
