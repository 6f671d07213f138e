package server

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
)

// A node may say what it likes of its devices: nobody's page breaks.
func TestWhatANodeSaysOfItsDevices(t *testing.T) {
	const id = "container_1795248047013_0002_01_000002"
	n := &softNode{}
	n.observe(&pb.NodeReport{
		Gpus: []*pb.GPU{
			{Uuid: "a", Load: &pb.GPULoad{Utilization: math.NaN(), MemoryUsed: -1, Power: math.Inf(1), Temperature: -1}}, {Uuid: "b"},
			{Uuid: "c", Load: &pb.GPULoad{Utilization: 50, Blind: true, MemoryUsed: 7, Power: 9}},
		},
		Containers: []*pb.ContainerStatus{
			{ContainerId: id, GpuUse: []*pb.GPUUse{{Uuid: "a", HeldMs: -5, Energy: math.NaN(), IdleMs: 3, Idle: true}}},
			{ContainerId: "../x", GpuUse: []*pb.GPUUse{{}}}, {ContainerId: "container_1795248047013_0002_01_000003"},
		},
	})
	loads, err := json.Marshal(gpuLoads(n.loads))
	if want := `{"a":{"utilization":0,"memory_used":0},"c":{"memory_used":7,"power":9}}`; err != nil || string(loads) != want {
		t.Errorf("%s, %v, want %s", loads, err, want)
	}
	uses := gpuUses(n.uses)
	known, _ := rm.ParseContainerID(id)
	text, err := json.Marshal(uses[known])
	if err != nil || len(uses) != 1 || !strings.Contains(string(text), `[{"uuid":"a","held":0,"busy":0,"memory_peak":0,"energy":0,"idle":3,"unused":true}]`) {
		t.Errorf("%s, %v", text, err)
	}
	if n.observe(&pb.NodeReport{}); gpuLoads(n.loads) != nil || gpuUses(n.uses) != nil {
		t.Error("what is said no more stays")
	}
}
