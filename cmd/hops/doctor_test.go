package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/namenode"
	rm "github.com/gohops/hops/resourcemanager"
)

func TestTheDoctorTellsWhatNodesSayOfThemselves(t *testing.T) {
	nodes := []client.Node{
		{ID: "sick:1", State: rm.NodeUnhealthy, HealthReport: "1/1 local-dirs have errors"},
		{ID: "gone:1", State: rm.NodeLost, HealthReport: "silent for 10s"},
		{ID: "a:1", State: rm.NodeRunning, HealthReport: "GPU GPU-1 is held back: process 7 uses it; 2 GPUs are simulated", GPUs: []client.GPU{{Simulated: true}, {Simulated: true}}},
	}
	for i := range 6 {
		nodes = append(nodes, client.Node{ID: fmt.Sprintf("n%d:1", i), State: rm.NodeRunning, HealthReport: "containers are not isolated"})
	}
	found, running := nodeFindings(nodes)
	if len(running) != 7 {
		t.Errorf("%d are asked", len(running))
	}
	want := []finding{
		{"nodemanager", false, "sick:1 is UNHEALTHY: 1/1 local-dirs have errors", "mend it; it takes work again by itself"},
		{"nodemanager", false, "gone:1 is LOST: silent for 10s", "start it (hops server --role nodemanager), or look at its log"},
		{"nodemanager", false, "a:1: GPU GPU-1 is held back: process 7 uses it", ""},
		{"nodemanager", false, "n0:1, n1:1, n2:1, n3:1, n4:1 and 1 more: containers are not isolated", ""},
		{"nodes", true, "7 that take work, with 2 GPUs (2 simulated)", ""},
	}
	for i := range max(len(found), len(want)) {
		if i >= len(found) || i >= len(want) || found[i] != want[i] {
			t.Fatalf("%+v\nwant %+v", found, want)
		}
	}
}

// A member of the group counts whether or not the configuration still names it.
func TestTheDoctorSeesMembersThatDoNotAnswer(t *testing.T) {
	leader := serverHealth{Index: 50_000, Members: []namenode.Member{
		{ID: "nn1", Voter: true, Known: true, Match: 50_000},
		{ID: "nn2", Voter: true, Known: true, Match: 49_000, Silent: 0.2},
		{ID: "nn3", Voter: true},
		{ID: "nn4", Voter: true, Known: true, Match: 50_000, Silent: 61},
		{ID: "nn5", Voter: true, Known: true, Match: 1},
		{ID: "nn6", Known: true, Match: 50_000},
	}}
	leader.ID = "nn1"
	var said []string
	for _, f := range memberFindings(leader) {
		if f.ok || f.remedy == "" {
			t.Errorf("%+v is no failure", f)
		}
		said = append(said, f.detail)
	}
	want := []string{
		"nn3 has never answered nn1, which leads", "nn4 has not answered nn1, which leads, for 61s", "nn5 is 49999 entries behind", "nn6 has no vote yet",
	}
	if !slices.Equal(said, want) {
		t.Errorf("%q\nwant %q", said, want)
	}
}

func TestTheDoctorSaysWhoIsNoMember(t *testing.T) {
	s := &server{role: "namenode", address: "127.0.0.1:1", health: serverHealth{Stranger: "nn4 is not a member of the group. It has to be added: hops namenode add nn4 X"}}
	s.health.Problem = "no leader is known"
	if f := findings("namenode", []*server{s}); len(f) != 1 || f[0].ok || f[0].detail != "127.0.0.1:1: "+s.health.Stranger {
		t.Errorf("%+v", f)
	}
}
