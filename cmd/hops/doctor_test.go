package main

import (
	"fmt"
	"testing"

	"github.com/gohops/hops/client"
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
