package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestListsOfAMachineThatJoined(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "hops.yaml")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("hops.yaml", "cluster: {name: lab, identity: "+dir+"/identity.pem}\ndatanode: {volumes: [{path: /d}]}\n")
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "servers.yaml") || !strings.Contains(err.Error(), "let this one join") {
		t.Errorf("without the list: %v", err)
	}
	want := Servers{
		Namenodes:        []NamenodeMember{{ID: "m1", IPC: "127.0.0.1:1", HTTP: "127.0.0.1:2", GRPC: "127.0.0.1:3", Raft: "127.0.0.1:4"}},
		ResourceManagers: []ManagerMember{{ID: "m1", HTTP: "127.0.0.1:5", GRPC: "127.0.0.1:6", Raft: "127.0.0.1:7"}}, Removed: map[string]uint64{"m9": 2}, Revoked: []string{"a1"},
	}
	if err := want.Write(filepath.Join(dir, "servers.yaml")); err != nil {
		t.Fatal(err)
	}
	f, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	got := Servers{f.Namenodes, f.ResourceManagers, f.Removed, f.Revoked}
	if !f.Followed || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	for what, text := range map[string]string{"half a file": "namenodes:\n- id: m1\n  ip", "another key": "namenods: []\n", "too much": strings.Repeat("#", maxServers+1)} {
		write("servers.yaml", text)
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "servers.yaml") {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Lists in the file itself count.
	write("hops.yaml", "cluster: {name: lab, identity: "+dir+"/identity.pem}\nnamenodes:\n  - {id: nn1, ipc: \"127.0.0.1:1\", http: \"127.0.0.1:2\", grpc: \"127.0.0.1:3\", raft: \"127.0.0.1:4\"}\ndatanode: {volumes: [{path: /d}]}\n")
	if f, err = Load(path); err != nil || f.Followed || len(f.Namenodes) != 1 {
		t.Errorf("%+v %v", f, err)
	}
	// A namenode or resource manager has the secret.
	write("hops.yaml", "cluster: {name: lab, identity: "+dir+"/identity.pem}\nnamenodes:\n  - {id: nn1, ipc: \"127.0.0.1:1\", http: \"127.0.0.1:2\", grpc: \"127.0.0.1:3\", raft: \"127.0.0.1:4\"}\nnamenode: {id: nn1, data: /n}\n")
	if _, err = Load(path); err == nil || !strings.Contains(err.Error(), "cluster.secret_file is missing") {
		t.Errorf("a namenode without it: %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("%v %v", left, err)
	}
}
