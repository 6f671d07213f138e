package namespace

import (
	"errors"
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// A clock that is ten years off for one command, in either direction, ends no lease and no answer, and does not stop time.
func TestClockThatWasWrongOnce(t *testing.T) {
	const year = 365 * 24 * 3600 * 1000
	const y2026 = metadata.Time(1_767_225_600_000)
	for name, wrong := range map[string]metadata.Time{"ahead": y2026 + 10*year, "behind": y2026 - 10*year} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			w.clock(y2026)
			w.do(super, &logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
			w.do(super, create("/d/a", "w"))
			once := command(super, &logpb.Mkdirs{Target: to("/once"), Mode: 0o755})
			moved := command(super, &logpb.Rename{Source: to("/once"), Target: to("/twice")})
			moved.ClientId, moved.CallId = []byte("0123456789abcdef"), 7
			w.apply(once)
			if r := w.apply(moved); r.Err != nil {
				t.Fatal(r.Err)
			}
			w.clock(wrong)
			w.do(super, &logpb.Mkdirs{Target: to("/d/wrong"), Mode: 0o755})
			w.clock(y2026)
			w.now += 1000
			if r := w.apply(moved); r.Err != nil || !r.Replayed {
				t.Errorf("the answer is forgotten: %+v", r)
			}
			if r := w.do(super, create("/d/a", "other")); !errors.Is(r.Err, metadata.ErrBeingCreated) || r.Expired != nil {
				t.Errorf("the lease is over: %v, %+v", r.Err, r.Expired)
			}
			w.do(super, create("/d/b", "w2"))
			if name == "ahead" { // the modification time of a directory never falls by itself
				w.do(super, &logpb.SetTimes{Target: to("/d"), Mtime: int64(w.now), Atime: -1})
			}
			for _, path := range []string{"/d", "/d/b"} {
				if st, err := w.ns.Stat(super, path); err != nil || st.MTime != w.now {
					t.Errorf("%s was changed at %v, %v; it is %d", path, st, err, w.now)
				}
			}
			w.now += metadata.Time(SoftLimit) + 1
			if r := w.do(super, create("/d/b", "other")); !errors.Is(r.Err, metadata.ErrRecoveryInProgress) || r.Expired == nil {
				t.Errorf("time stands still: %v, %+v", r.Err, r.Expired)
			}
			w.now += metadata.Time(RetryExpiry)
			w.do(super, &logpb.Mkdirs{Target: to("/later"), Mode: 0o755})
			if r := w.apply(moved); r.Replayed {
				t.Error("the answer is kept for ever")
			}
			w.check()
		})
	}
}
