package state

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gohops/hops/nodemanager"
)

// FuzzRecord puts anything in the place of a container's record. It is named damaged or can be relied on: the life of the
// container goes on from its state without anything missing, and it is the same after it was written again.
func FuzzRecord(f *testing.F) {
	for _, r := range []*Record{
		{Spec: nodemanager.Spec{ID: id, Argv: []string{"true"}}, State: nodemanager.Running},
		{Spec: nodemanager.Spec{ID: id}, State: nodemanager.Complete, Exit: &Exit{Status: -109, Diagnostics: "x"}, Forgotten: true},
		{Spec: nodemanager.Spec{ID: id}, State: nodemanager.Stopping, Stop: &StopOrder{Status: -100, Reason: "y"}},
		{Spec: nodemanager.Spec{ID: id, Artifacts: []nodemanager.Artifact{{Name: "a", Content: []byte("b")}}}, State: nodemanager.Localizing},
	} {
		text, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"spec":{"id":"` + id + `"},"state":"COMPLETE"}`))
	dir := f.TempDir()
	s, err := Open(dir)
	if err != nil {
		f.Fatal(err)
	}
	defer s.Close()
	if err := os.Mkdir(s.ContainerDir(id), 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(filepath.Join(s.ContainerDir(id), "record.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		records, damaged, err := s.Load()
		if err != nil || len(records)+len(damaged) != 1 {
			t.Fatalf("%d records, %d damaged, %v; want one of them", len(records), len(damaged), err)
		}
		if len(records) == 0 {
			if damaged[id] == nil {
				t.Errorf("damaged is %v", damaged)
			}
			return
		}
		r := records[0]
		if r.Spec.ID != id || !r.State.Known() || r.State == nodemanager.Complete && r.Exit == nil || r.State == nodemanager.Stopping && r.Stop == nil {
			t.Errorf("%+v cannot be gone on from", r)
		}
		if err := s.Put(r); err != nil {
			t.Fatal(err)
		}
		again, _, err := s.Load()
		if err != nil || len(again) != 1 {
			t.Fatal(again, err)
		}
		first, _ := json.Marshal(r)
		second, _ := json.Marshal(again[0])
		if diff := cmp.Diff(string(first), string(second)); diff != "" {
			t.Error(diff)
		}
	})
}

// FuzzNode puts anything in the place of the file that names the node's life: it is refused, or names one.
func FuzzNode(f *testing.F) {
	f.Add([]byte(`{"layout":1,"incarnation":"x","term":7}`))
	f.Add([]byte(`{"layout":9}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, "node.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir)
		if err != nil {
			return
		}
		defer s.Close()
		if s.Incarnation() == "" || s.node.Layout != layout {
			t.Errorf("%q became %+v", text, s.node)
		}
	})
}
