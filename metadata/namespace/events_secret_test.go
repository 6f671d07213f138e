package namespace

import (
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// What was moved to where somebody cannot go is read there by nobody else, whatever its mode is now, and what a file replaced there is not told.
func TestVisibleEventsOfWhatWasMovedAway(t *testing.T) {
	var told []metadata.Event
	w := newWorld(t, Config{OnEvents: func(index uint64, _ LogTime, events []metadata.Event) {
		for i, e := range events {
			e.Position = metadata.PositionOf(index, i)
			told = append(told, e)
		}
	}})
	w.do(super, &logpb.Mkdirs{Target: to("/open"), Mode: 0o755})
	w.do(super, &logpb.Mkdirs{Target: to("/secret"), Mode: 0o700})
	w.file("/open/f", 1)
	w.file("/secret/f", 1)
	chmod(w, "/open/f", 0o600)
	if r := w.do(super, &logpb.SetXAttr{Target: to("/open/f"), Attribute: &logpb.XAttr{Name: "tag", Value: []byte("value")}, Create: true}); r.Err != nil {
		t.Fatal(r.Err)
	}
	if r := w.do(super, &logpb.Rename{Source: to("/open/f"), Target: to("/secret/f"), Overwrite: true}); r.Err != nil {
		t.Fatal(r.Err)
	}
	chmod(w, "/secret/f", 0o644)
	visible, err := w.ns.VisibleEvents(bob, told)
	if err != nil {
		t.Fatal(err)
	}
	moved := false
	for _, e := range visible {
		if len(e.XAttrs) > 0 {
			t.Errorf("an attribute of what was never to be read: %+v", e)
		}
		if e.Kind == metadata.EventRename {
			if moved = true; e.Target != "" || e.Overwrite {
				t.Errorf("what is there where it went: %+v", e)
			}
		}
	}
	if !moved {
		t.Error("nobody is told that it went")
	}
}
