package state

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gohops/hops/nodemanager"
)

const id = nodemanager.ContainerID("container_1700000000000_0001_01_000002")

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestRecordsSurviveReopening(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nm")
	s := open(t, dir)
	r := &Record{
		Spec:  nodemanager.Spec{ID: id, Argv: []string{"true"}, Resources: nodemanager.Resources{GPUs: []string{"GPU-a"}}},
		State: nodemanager.Running, Boot: BootID(), Admitted: 5,
	}
	if err := s.Create(r); err != nil {
		t.Fatal(err)
	}
	if !s.Obey(7) || !s.Obey(3) || s.Term() != 7 || s.RecordedTerm() != 0 { // 3: an older leader
		t.Errorf("term %d, %d on disk", s.Term(), s.RecordedTerm())
	}
	if err := s.RecordTerm(); err != nil || s.Obey(7) {
		t.Fatal(err)
	}
	incarnation := s.Incarnation()
	r.State, r.Exit = nodemanager.Complete, &Exit{Status: -104}
	if err := s.Put(r); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = open(t, dir)
	if s.Incarnation() != incarnation || s.Term() != 7 {
		t.Errorf("incarnation %s then %s, term %d", incarnation, s.Incarnation(), s.Term())
	}
	records, damaged, err := s.Load()
	if err != nil || len(damaged) != 0 || len(records) != 1 {
		t.Fatal(records, damaged, err)
	}
	if diff := cmp.Diff(r, records[0]); diff != "" {
		t.Error(diff)
	}
	if err := s.Delete(id); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(id); err != nil {
		t.Error("a second time:", err)
	}
	if records, _, _ := s.Load(); len(records) != 0 {
		t.Error(records)
	}
}

func TestDirectoryInUseIsRefused(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	if _, err := Open(dir); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
}

func TestDirectoryThatCannotBeUsedSaysWhy(t *testing.T) {
	for name, make := range map[string]func(dir string) error{
		"layout 9": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "node.json"), []byte(`{"layout":9}`), 0o600)
		},
		"is damaged": func(dir string) error { return os.WriteFile(filepath.Join(dir, "node.json"), []byte(`{`), 0o600) },
		"no incarnation": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "node.json"), []byte(`{"layout":1}`), 0o600)
		},
		"not a directory": func(dir string) error { return os.WriteFile(filepath.Join(dir, "containers"), nil, 0o600) },
	} {
		dir := t.TempDir()
		if err := make(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestDamagedRecordIsNamed(t *testing.T) {
	s := open(t, t.TempDir())
	if err := s.Create(&Record{Spec: nodemanager.Spec{ID: id}}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.ContainerDir(id), "record.json"), []byte(`{"spec":`), 0o600); err != nil {
		t.Fatal(err)
	}
	records, damaged, err := s.Load()
	if err != nil || len(records) != 0 || damaged[id] == nil {
		t.Error(records, damaged, err)
	}
	if err := s.Create(&Record{Spec: nodemanager.Spec{ID: "../x"}}); err == nil {
		t.Error("a container id became a path")
	}
}

func TestDeleteRemovesWhatAContainerLocked(t *testing.T) {
	s := open(t, t.TempDir())
	if err := s.Create(&Record{Spec: nodemanager.Spec{ID: id}}); err != nil {
		t.Fatal(err)
	}
	deep := filepath.Join(s.ContainerDir(id), "work", "a", "b")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	os.Chmod(filepath.Dir(deep), 0o500)
	if err := s.Delete(id); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.ContainerDir(id)); !os.IsNotExist(err) {
		t.Error(err)
	}
}
