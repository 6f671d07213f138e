package resourcemanager

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// What NewNear takes comes back in order; what is none is refused with what to do.
func TestNear(t *testing.T) {
	n, err := NewNear(NearWords{
		Paths: []string{"/b", "/a b", "/b"}, Hosts: []NearHost{{"h2", 3}, {"h1", 0}, {"h2", 8}}, Racks: []string{"/r1/x", "/r1/", "/r10", "/r0"}, Wait: 1500 * time.Millisecond,
	})
	want := NearWords{Paths: []string{"/a b", "/b"}, Hosts: []NearHost{{"h1", 1}, {"h2", 8}}, Racks: []string{"/r0", "/r1", "/r10"}, Wait: 1500 * time.Millisecond}
	if err != nil || !reflect.DeepEqual(n.Words(), want) || !n.HasPaths() {
		t.Errorf("%+v %v", n.Words(), err)
	}
	if again, err := NewNear(n.Words()); err != nil || again != n {
		t.Errorf("%+v %v", again, err)
	}
	for _, w := range []NearWords{{}, {Wait: NoWait, Hosts: []NearHost{{"p", 2}}}, {Racks: []string{"/p"}}, {Wait: time.Hour, Paths: []string{"/p"}}} {
		if n, err := NewNear(w); err != nil || !reflect.DeepEqual(n.Words(), w) || n.IsZero() != (w.Wait == 0 && w.Racks == nil) || n.HasPaths() != (w.Paths != nil) {
			t.Errorf("%+v: %+v %v", w, n.Words(), err)
		}
	}
	for text, w := range map[string]NearWords{
		"begins with /":        {Paths: []string{"data"}},
		"at most 4096 bytes":   {Paths: []string{"/" + strings.Repeat("x", MaxNearPath)}},
		"is no path of a rack": {Racks: []string{"/"}},
		"at most 16 parts":     {Racks: []string{strings.Repeat("/x", 17)}},
		"is no name of a host": {Hosts: []NearHost{{"a b", 1}}},
		"weight 9":             {Hosts: []NearHost{{"a", 9}}},
		"17 paths":             {Paths: make([]string, 17)},
		"from 0s to 1h":        {Hosts: []NearHost{{"a", 1}}, Wait: 2 * time.Hour},
		"nothing to wait for":  {Wait: time.Second},
		`"/a\x00b"`:            {Paths: []string{"/a\x00b"}},
	} {
		if _, err := NewNear(w); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}
