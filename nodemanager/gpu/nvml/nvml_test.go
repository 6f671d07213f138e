//go:build cgo && linux

package nvml

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/gohops/hops/nodemanager"
)

// board is go-nvml's DGX H100 with the questions it does not answer by itself.
func board(t *testing.T) *server.Server {
	t.Helper()
	s := dgxh100.New()
	s.ErrorStringFunc = nvml.Return.Error
	for i, d := range s.Devices {
		d := d.(*server.Device)
		d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) { return pci(i), nvml.SUCCESS }
		d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
			if link >= 18 {
				return 0, nvml.ERROR_INVALID_ARGUMENT
			}
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		}
		d.GetNvLinkRemoteDeviceTypeFunc = func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		}
		d.GetNvLinkRemotePciInfoFunc = func(int) (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED }
		d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 42}, nvml.SUCCESS }
		d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 123456, nvml.SUCCESS }
		d.GetTotalEnergyConsumptionFunc = func() (uint64, nvml.Return) { return 7_654_321, nvml.SUCCESS }
		d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 35, nvml.SUCCESS }
		d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{{Pid: 77}}, nvml.SUCCESS
		}
		d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, nvml.ERROR_NOT_SUPPORTED }
		d.GetFieldValuesFunc = func([]nvml.FieldValue) nvml.Return { return nvml.ERROR_NOT_SUPPORTED }
	}
	return s
}

func pci(i int) nvml.PciInfo {
	var p nvml.PciInfo
	for j, c := range []byte("00000000:0" + string(rune('1'+i)) + ":00.0") {
		p.BusId[j] = int8(c)
	}
	return p
}

func devices(t *testing.T, s *Source) []nodemanager.GPU {
	t.Helper()
	all, err := s.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestInventoryOfADGX(t *testing.T) {
	b := board(t)
	s, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	all := devices(t, s)
	if len(all) != 8 || s.Driver() != "550.54.15" {
		t.Fatalf("%d devices, driver %s", len(all), s.Driver())
	}
	for i, d := range all {
		uuid, _ := b.Devices[i].GetUUID()
		if d.UUID != uuid || !strings.Contains(d.Model, "H100") || d.Memory < 79<<30 || d.Minor != i || d.Simulated ||
			d.Health != nodemanager.Healthy || d.PCI != "00000000:0"+string(rune('1'+i))+":00.0" {
			t.Errorf("device %d: %+v", i, d)
		}
		if d.Island == "" || d.Island != all[0].Island {
			t.Errorf("device %d is in island %q, the first in %q", i, d.Island, all[0].Island)
		}
		if u := d.Usage; u.Utilization != 42 || u.Power != 123.456 || u.Temperature != 35 || len(u.Processes) != 1 {
			t.Errorf("usage %+v", u)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestDirectLinksMakePairs(t *testing.T) {
	b := board(t)
	for i, d := range b.Devices {
		d := d.(*server.Device)
		d.GetNvLinkRemoteDeviceTypeFunc = func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
		}
		d.GetNvLinkRemotePciInfoFunc = func(int) (nvml.PciInfo, nvml.Return) { return pci(i ^ 1), nvml.SUCCESS }
		if i >= 6 {
			d.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		}
	}
	s, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	all := devices(t, s)
	for i, d := range all {
		want := all[i&^1].UUID
		if i >= 6 {
			want = ""
		}
		if d.Island != want {
			t.Errorf("device %d: island %q, want %q", i, d.Island, want)
		}
	}
}

func TestLostDeviceIsQuarantinedAndTheOthersStay(t *testing.T) {
	b := board(t)
	s, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	before := devices(t, s)
	b.Devices[3].(*server.Device).GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	b.Devices[5].(*server.Device).GetFieldValuesFunc = func(v []nvml.FieldValue) nvml.Return {
		v[0].Value[0] = byte(nvml.GPU_RECOVERY_ACTION_GPU_RESET)
		return nvml.SUCCESS
	}
	for i, d := range devices(t, s) {
		want := nodemanager.Healthy
		if i == 3 || i == 5 {
			want = nodemanager.Quarantined
		}
		if d.Health != want || d.UUID != before[i].UUID || d.Island != before[i].Island {
			t.Errorf("device %d: %+v", i, d)
		}
		if want != nodemanager.Healthy && d.HealthReason == "" {
			t.Errorf("device %d: no reason", i)
		}
	}
}

func TestXIDsAreReported(t *testing.T) {
	b := board(t)
	waits := make(chan nvml.EventData, 1)
	freed := false
	b.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				select {
				case e := <-waits:
					return e, nvml.SUCCESS
				case <-time.After(5 * time.Millisecond):
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
			},
			FreeFunc: func() nvml.Return { freed = true; return nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	for _, d := range b.Devices {
		d.(*server.Device).RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
	}
	s, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	waits <- nvml.EventData{Device: b.Devices[2], EventType: nvml.EventTypeXidCriticalError, EventData: 79}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got nodemanager.GPUEvent
	if err := s.Watch(ctx, func(e nodemanager.GPUEvent) { got = e; cancel() }); err != nil {
		t.Fatal(err)
	}
	uuid, _ := b.Devices[2].GetUUID()
	if got.UUID != uuid || got.XID != 79 || !freed {
		t.Errorf("%+v, freed %v", got, freed)
	}
}

func TestMachineWithoutDriver(t *testing.T) {
	b := board(t)
	b.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
	if _, err := open(b); !errors.Is(err, ErrUnavailable) {
		t.Errorf("no library: %v", err)
	}
	b.InitFunc = func() nvml.Return { return nvml.ERROR_LIB_RM_VERSION_MISMATCH }
	if _, err := open(b); err == nil || errors.Is(err, ErrUnavailable) {
		t.Errorf("a driver that does not fit its library: %v", err)
	}
}

// TestRealDriver shows what a machine with GPUs says. HOPS_TEST_GPU=1 makes the absence of a driver a failure.
func TestRealDriver(t *testing.T) {
	source, err := Open()
	if errors.Is(err, ErrUnavailable) {
		if os.Getenv("HOPS_TEST_GPU") != "" {
			t.Fatal(err)
		}
		t.Skipf("no GPU here (HOPS_TEST_GPU=1 makes this a failure): %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	all, err := source.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		t.Logf("%+v usage %+v", d, d.Usage)
	}
}
