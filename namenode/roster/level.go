package roster

import (
	"context"
	"fmt"
	"time"

	"github.com/gohops/hops/internal/release"
)

// Level is the level that the cluster has been raised to: nothing of a higher one is written, so that versions which know only this one can
// take part.
type Level struct {
	Level int `json:"level"`
	// Raised is when it was; zero: the cluster began with it.
	Raised time.Time `json:"raised,omitzero"`
	// Prepared is when somebody said that an upgrade begins; zero: nobody did since it was raised last.
	Prepared time.Time `json:"prepared,omitzero"`
}

// Level is the cluster's. One from before there were levels has the first.
func (r *Roster) Level() (Level, error) {
	l, _, err := item[Level](r, levelItem)
	if err != nil || l == nil {
		return Level{Level: 1}, err
	}
	return *l, nil
}

// Prepare notes that an upgrade begins. It is no error when one has begun.
func (r *Roster) Prepare(ctx context.Context) error {
	return r.relevel(ctx, func(l *Level) error {
		if l.Prepared.IsZero() {
			l.Prepared = r.now().UTC().Truncate(time.Millisecond)
		}
		return nil
	})
}

// Raise raises the cluster to a level, for good, and ends the upgrade that was prepared. It is no error when the cluster is there already.
func (r *Roster) Raise(ctx context.Context, level int) error {
	return r.relevel(ctx, func(l *Level) error {
		switch {
		case level < l.Level:
			return fmt.Errorf("the cluster is at level %d and does not go back to %d: %w", l.Level, level, release.ErrOlder)
		case level > l.Level:
			l.Level, l.Raised = level, r.now().UTC().Truncate(time.Millisecond)
		case !l.Prepared.IsZero():
			l.Raised = r.now().UTC().Truncate(time.Millisecond)
		}
		l.Prepared = time.Time{}
		return nil
	})
}

// relevel changes the item of the level.
func (r *Roster) relevel(ctx context.Context, alter func(*Level) error) error {
	return r.decide(ctx, func() ([]Change, error) {
		old, version, err := item[Level](r, levelItem)
		if err != nil {
			return nil, err
		}
		if old == nil {
			old = &Level{Level: 1}
		}
		now := *old
		if err := alter(&now); err != nil || now == *old {
			return nil, err
		}
		return []Change{change(levelItem, now, version)}, nil
	})
}
