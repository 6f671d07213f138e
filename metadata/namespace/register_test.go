package namespace

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// modelRegister is the register told plainly.
type modelRegister struct {
	values   map[string]string
	versions map[string]uint64
	changes  uint64
}

func (m *modelRegister) compare(t *rapid.T, name string, ns *Namespace) {
	got := map[string]string{}
	for item, value := range ns.Items("") {
		got[item] = string(value)
		if _, version := ns.Item(item); version != m.versions[item] {
			t.Fatalf("%s: item %s of the register has version %d, the model's %d", name, item, version, m.versions[item])
		}
	}
	if !maps.Equal(got, m.values) || ns.RegisterVersion() != m.changes {
		t.Fatalf("%s: the register has %q, version %d; the model %q, %d", name, got, ns.RegisterVersion(), m.values, m.changes)
	}
}

// changeRegister changes one to three items, sometimes after somebody else has.
func (s *machine) changeRegister(t *rapid.T) {
	m := &s.items
	if m.values == nil {
		m.values, m.versions = map[string]string{}, map[string]uint64{}
	}
	op, fits := &logpb.ChangeRegister{}, true
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "a/b", "b", "c"}), 1, 3, rapid.ID).Draw(t, "items") {
		seen := m.versions[name]
		if rapid.IntRange(0, 7).Draw(t, "late") == 0 {
			seen += uint64(rapid.IntRange(1, 2).Draw(t, "by"))
			fits = false
		}
		op.Changes = append(op.Changes, &logpb.ItemChange{
			Name: name, Value: rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "value"), Remove: rapid.IntRange(0, 3).Draw(t, "remove") == 0, Version: seen,
		})
	}
	if rapid.IntRange(0, 7).Draw(t, "recovered") == 0 {
		op.AtLeast = m.changes + uint64(rapid.IntRange(0, 20).Draw(t, "lost"))
	}
	r := s.do(t, super, op)
	if r.Err != nil || r.OK != fits {
		t.Fatalf("%v: %v, %v, want %v", op, r.OK, r.Err, fits)
	}
	if !fits {
		return
	}
	if op.AtLeast > m.changes {
		m.changes = op.AtLeast - 1
	}
	for _, c := range op.Changes {
		m.changes++
		if c.Remove {
			delete(m.values, c.Name)
			delete(m.versions, c.Name)
		} else {
			m.values[c.Name], m.versions[c.Name] = string(c.Value), m.changes
		}
	}
}

// After a recovery versions go on at a moment's, above those that were lost, and never go back.
func TestVersionsOfTheRegisterAreLifted(t *testing.T) {
	w := newWorld(t, Config{})
	change := func(atLeast, seen uint64) uint64 {
		t.Helper()
		if r := w.do(super, &logpb.ChangeRegister{AtLeast: atLeast, Changes: []*logpb.ItemChange{{Name: "a", Version: seen}}}); !r.OK {
			t.Fatal(r.Err)
		}
		_, version := w.ns.Item("a")
		return version
	}
	seen := uint64(0)
	for _, c := range []struct{ atLeast, want uint64 }{{0, 1}, {2, 2}, {1795248047, 1795248047}, {1795248047, 1795248048}, {5, 1795248049}, {0, 1795248050}} {
		if seen = change(c.atLeast, seen); seen != c.want || w.ns.RegisterVersion() != c.want {
			t.Errorf("at least %d: %d, want %d", c.atLeast, seen, c.want)
		}
	}
	if r := w.do(super, &logpb.ChangeRegister{AtLeast: 1 << 50, Changes: []*logpb.ItemChange{{Name: "b"}}}); !errors.Is(r.Err, metadata.ErrInvalidArgument) {
		t.Error(r.Err)
	}
}

func TestRegisterIsChangedWhollyOrNotAtAll(t *testing.T) {
	w := newWorld(t, Config{})
	change := func(changes ...*logpb.ItemChange) *Result {
		return w.do(super, &logpb.ChangeRegister{Changes: changes})
	}
	set := func(name, value string, version uint64) *logpb.ItemChange {
		return &logpb.ItemChange{Name: name, Value: []byte(value), Version: version}
	}
	if r := change(set("machine/m1", "1", 0), set("invitation/7", "uses 2", 0)); !r.OK {
		t.Fatal(r)
	}
	_, version := w.ns.Item("invitation/7")
	if r := change(set("machine/m2", "1", 0), set("invitation/7", "uses 1", version+9)); r.OK || r.Err != nil {
		t.Errorf("one change is of another version: %v", r)
	}
	if r := change(set("machine/m2", "1", 0), set("invitation/7", "uses 1", version)); !r.OK {
		t.Errorf("both fit: %v", r)
	}
	if r := change(set("machine/m3", "1", 0), set("invitation/7", "uses 0", version)); r.OK {
		t.Error("a second one who saw the same use the item")
	}
	// An item that went and came back is another one.
	_, before := w.ns.Item("machine/m1")
	change(&logpb.ItemChange{Name: "machine/m1", Remove: true, Version: before})
	change(set("machine/m1", "2", 0))
	if r := change(set("machine/m1", "3", before)); r.OK {
		t.Error("the version of the former item is taken")
	}
	w.snapshot()
	w.open()
	var names []string
	for name := range w.ns.Items("machine/") {
		names = append(names, name)
	}
	if !slices.Equal(names, []string{"machine/m1", "machine/m2"}) {
		t.Errorf("after a restart: %q", names)
	}
	w.check()

	long := strings.Repeat("x", MaxItemName+1)
	for what, changes := range map[string][]*logpb.ItemChange{
		"nothing":          {},
		"no name":          {set("", "", 0)},
		"too long a name":  {set(long, "", 0)},
		"too long a value": {{Name: "a", Value: make([]byte, MaxItem+1)}},
		"one twice":        {set("a", "1", 0), set("a", "2", 0)},
		"too many":         slices.Repeat([]*logpb.ItemChange{set("a", "1", 0)}, maxItemChanges+1),
	} {
		if r := change(changes...); !errors.Is(r.Err, metadata.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, r.Err)
		}
	}
}

func TestRegisterIsBounded(t *testing.T) {
	w := newWorld(t, Config{})
	w.ns.itemBytes = maxRegister - MaxItem - itemOverhead - 2 // as if there were as many
	big := &logpb.ItemChange{Name: "a", Value: make([]byte, MaxItem)}
	if r := w.do(super, &logpb.ChangeRegister{Changes: []*logpb.ItemChange{big}}); !r.OK {
		t.Fatal(r)
	}
	for i := range 2 {
		if r := w.do(super, &logpb.ChangeRegister{Changes: []*logpb.ItemChange{{Name: fmt.Sprint(i)}}}); !errors.Is(r.Err, metadata.ErrInvalidArgument) {
			t.Errorf("%d: %v", i, r)
		}
	}
	_, version := w.ns.Item("a")
	if r := w.do(super, &logpb.ChangeRegister{Changes: []*logpb.ItemChange{{Name: "a", Version: version, Remove: true}}}); !r.OK {
		t.Errorf("what makes it smaller: %v", r)
	}
}
