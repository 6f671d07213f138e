//go:build cgo && linux

package nvml

import (
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/gohops/hops/nodemanager"
)

// migDevice is a MIG device as a driver shows it: its name says the profile.
func migDevice(gpu, gi, ci int, profile string, gigabytes uint64, pids ...uint32) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:              func() (string, nvml.Return) { return fmt.Sprintf("MIG-%d-%d-%d", gpu, gi, ci), nvml.SUCCESS },
		GetNameFunc:              func() (string, nvml.Return) { return "NVIDIA H100 80GB HBM3 MIG " + profile, nvml.SUCCESS },
		GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return gi, nvml.SUCCESS },
		GetComputeInstanceIdFunc: func() (int, nvml.Return) { return ci, nvml.SUCCESS },
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: gigabytes << 30, Used: 7 << 20}, nvml.SUCCESS
		},
		GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
			var list []nvml.ProcessInfo
			for _, pid := range pids {
				list = append(list, nvml.ProcessInfo{Pid: pid})
			}
			return list, nvml.SUCCESS
		},
	}
}

// divideGPU puts a GPU of the board into MIG mode. A nil device is a gap in its indexes.
func divideGPU(b *server.Server, gpu int, devices ...*mock.Device) {
	d := b.Devices[gpu].(*server.Device)
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS }
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i >= len(devices) || devices[i] == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return devices[i], nvml.SUCCESS
	}
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED }
}

// shown is a list in few words: GPUs by number, those in MIG mode with a slash, and profiles of instances.
func shown(all []nodemanager.GPU) string {
	var words []string
	for _, d := range all {
		switch {
		case d.Profile != "":
			words = append(words, d.Profile)
		case d.Divided:
			words = append(words, fmt.Sprintf("%d/", d.Minor))
		default:
			words = append(words, fmt.Sprint(d.Minor))
		}
	}
	return strings.Join(words, " ")
}

func TestInstancesStandInForTheirGPU(t *testing.T) {
	b := board(t)
	var seven []*mock.Device
	for i := range 7 {
		seven = append(seven, migDevice(0, 7+i, 0, "1g.10gb", 10))
	}
	divideGPU(b, 0, seven...)
	divideGPU(b, 1, nil, migDevice(1, 9, 0, "1g.10gb", 10), migDevice(1, 2, 0, "3g.40gb", 40, 77), migDevice(1, 5, 0, "2g.20gb", 20))
	divideGPU(b, 2)
	s, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	all := devices(t, s)
	if got, want := shown(all), "0/ 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1/ 3g.40gb 2g.20gb 1g.10gb 2/ 3 4 5 6 7"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	g := all[9]
	if g.UUID != "MIG-1-2-0" || g.Parent != all[8].UUID || g.Minor != 1 || g.PCI != all[8].PCI || g.Memory != 40<<30 || g.Instance != 2 || g.Compute != 0 ||
		g.Island != "" || g.Health != nodemanager.Healthy || g.Usage.MemoryUsed != 7<<20 || !g.Usage.Blind || fmt.Sprint(g.Usage.Processes) != "[77]" {
		t.Errorf("%+v usage %+v", g, g.Usage)
	}
	if p := all[8]; p.Island != "" || p.Usage.Power != 123.456 {
		t.Errorf("the GPU of it: %+v", p)
	}

	// An administrator divides them anew, and takes one out of the mode.
	divideGPU(b, 0)
	divideGPU(b, 1, migDevice(1, 1, 0, "7g.80gb", 80))
	b.Devices[2].(*server.Device).GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_DISABLE, nvml.SUCCESS }
	all = devices(t, s)
	if got, want := shown(all), "0/ 1/ 7g.80gb 2 3 4 5 6 7"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	if all[3].Island == "" || all[3].Island != all[4].Island {
		t.Errorf("a GPU that is whole again is in island %q, the others in %q", all[3].Island, all[4].Island)
	}
}

func TestInstancesOfALostGPUStayKnown(t *testing.T) {
	b := board(t)
	divideGPU(b, 3, migDevice(3, 1, 0, "3g.40gb", 40), migDevice(3, 2, 0, "3g.40gb", 40))
	s, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	before := devices(t, s)
	b.Devices[3].(*server.Device).GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
	after := devices(t, s)
	if shown(after) != shown(before) || after[3].Health != nodemanager.Quarantined || after[4].UUID != before[4].UUID || after[4].Usage != nil {
		t.Errorf("%+v", after[3:6])
	}
}

// What ends while it is listed is left out; another error is the GPU's.
func TestAnInstanceThatEndsIsLeftOut(t *testing.T) {
	b := board(t)
	gone := migDevice(0, 1, 0, "1g.10gb", 10)
	divideGPU(b, 0, gone, migDevice(0, 2, 0, "1g.10gb", 10))
	s, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	gone.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NOT_FOUND }
	if all := devices(t, s); all[0].Health != nodemanager.Healthy || all[1].UUID != "MIG-0-2-0" || all[2].Profile != "" {
		t.Errorf("%+v", all[:3])
	}
	gone.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_UNKNOWN }
	if all := devices(t, s); all[0].Health != nodemanager.Quarantined || !strings.Contains(all[0].HealthReason, "MIG instance 0") {
		t.Errorf("%+v", all[0])
	}
}

// Older drivers do not name profiles, and show processes by their GPU only.
func TestProfilesAndProcessesOfOlderDrivers(t *testing.T) {
	b := board(t)
	x := migDevice(0, 4, 1, "", 20)
	x.GetNameFunc = func() (string, nvml.Return) { return "NVIDIA H100", nvml.SUCCESS }
	x.GetAttributesFunc = func() (nvml.DeviceAttributes, nvml.Return) {
		return nvml.DeviceAttributes{GpuInstanceSliceCount: 3, ComputeInstanceSliceCount: 1, MemorySizeMB: 40192}, nvml.SUCCESS
	}
	x.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	divideGPU(b, 0, x)
	b.Devices[0].(*server.Device).GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 1, GpuInstanceId: 4}, {Pid: 2, GpuInstanceId: 4, ComputeInstanceId: 1}, {Pid: 3, GpuInstanceId: 5, ComputeInstanceId: 1}}, nvml.SUCCESS
	}
	s, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	if g := devices(t, s)[1]; g.Profile != "1c.3g.40gb" || fmt.Sprint(g.Usage.Processes) != "[2]" {
		t.Errorf("%+v %v", g, g.Usage.Processes)
	}
	for _, test := range []struct {
		slices    uint32
		megabytes uint64
		memory    int64
		want      string
	}{ // of an A100 with 40 GB, one with 80 GB, and an H200
		{1, 4864, 42_285_268_992, "1g.5gb"},
		{2, 9856, 42_285_268_992, "2g.10gb"},
		{3, 19968, 42_285_268_992, "3g.20gb"},
		{7, 40192, 42_285_268_992, "7g.40gb"},
		{1, 9728, 85_520_809_984, "1g.10gb"},
		{1, 19968, 85_520_809_984, "1g.20gb"},
		{3, 40448, 85_520_809_984, "3g.40gb"},
		{1, 16384, 150_754_820_096, "1g.18gb"},
	} {
		if got := profile(nvml.DeviceAttributes{GpuInstanceSliceCount: test.slices, ComputeInstanceSliceCount: test.slices, MemorySizeMB: test.megabytes}, test.memory); got != test.want {
			t.Errorf("%d slices with %d MB of %d: %s, want %s", test.slices, test.megabytes, test.memory, got, test.want)
		}
	}
}
