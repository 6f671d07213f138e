//go:build cgo && linux

package nvml

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gohops/hops/nodemanager"
)

// Built reports whether this binary can speak to a driver.
const Built = true

// library is what we use of NVML.
type library interface {
	Init() nvml.Return
	Shutdown() nvml.Return
	ErrorString(nvml.Return) string
	SystemGetDriverVersion() (string, nvml.Return)
	DeviceGetCount() (int, nvml.Return)
	DeviceGetHandleByIndex(int) (nvml.Device, nvml.Return)
	EventSetCreate() (nvml.EventSet, nvml.Return)
}

// device is what we use of a device.
type device interface {
	GetUUID() (string, nvml.Return)
	GetName() (string, nvml.Return)
	GetMinorNumber() (int, nvml.Return)
	GetMemoryInfo() (nvml.Memory, nvml.Return)
	GetPciInfo() (nvml.PciInfo, nvml.Return)
	GetNvLinkState(int) (nvml.EnableState, nvml.Return)
	GetNvLinkRemoteDeviceType(int) (nvml.IntNvLinkDeviceType, nvml.Return)
	GetNvLinkRemotePciInfo(int) (nvml.PciInfo, nvml.Return)
	GetUtilizationRates() (nvml.Utilization, nvml.Return)
	GetPowerUsage() (uint32, nvml.Return)
	GetTotalEnergyConsumption() (uint64, nvml.Return)
	GetTemperature(nvml.TemperatureSensors) (uint32, nvml.Return)
	GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return)
	GetFieldValues([]nvml.FieldValue) nvml.Return
	GetMigMode() (current, pending int, ret nvml.Return)
	GetMaxMigDeviceCount() (int, nvml.Return)
	GetMigDeviceHandleByIndex(int) (nvml.Device, nvml.Return)
	GetRemappedRows() (corrected, uncorrected int, pending, failed bool, ret nvml.Return)
}

var _ device = nvml.Device(nil)

// Source reads the driver's devices. It implements nodemanager.GPUSource.
type Source struct {
	lib    library
	driver string

	mu sync.Mutex
	// islands by UUID: NVLink does not change while a driver is loaded, but for the GPUs that are divided, which linked names.
	islands map[string]string
	linked  string
	// known holds what each index was when it last answered: a GPU, and its instances if it is divided.
	known map[int][]nodemanager.GPU
}

// Open starts NVML. ErrUnavailable: there is no driver.
func Open() (nodemanager.GPUSource, error) {
	return open(nvml.New())
}

func open(lib library) (*Source, error) {
	s := &Source{lib: lib}
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, fmt.Errorf("%w: no NVIDIA driver on this machine (%s)", ErrUnavailable, lib.ErrorString(ret))
	default:
		return nil, s.failure("start NVML", ret)
	}
	var ret nvml.Return
	if s.driver, ret = lib.SystemGetDriverVersion(); ret != nvml.SUCCESS {
		lib.Shutdown()
		return nil, s.failure("driver version", ret)
	}
	return s, nil
}

func (s *Source) failure(what string, ret nvml.Return) error {
	return fmt.Errorf("nvml: %s: %s", what, s.lib.ErrorString(ret))
}

// Name implements nodemanager.GPUSource.
func (s *Source) Name() string { return "nvml" }

// Driver is the version of the driver.
func (s *Source) Driver() string { return s.driver }

// Close implements nodemanager.GPUSource.
func (s *Source) Close() error {
	if ret := s.lib.Shutdown(); ret != nvml.SUCCESS {
		return s.failure("shut down", ret)
	}
	return nil
}

// Devices implements nodemanager.GPUSource. A device that does not answer stays in the list, quarantined: under its last
// known identity, or under a name that says that it has none. The others stay useful.
func (s *Source) Devices(ctx context.Context) ([]nodemanager.GPU, error) {
	n, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, s.failure("count devices", ret)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = map[int][]nodemanager.GPU{}
	}
	var handles []nvml.Device
	var whole, devices []nodemanager.GPU // GPUs that answer; all
	divided := ""
	for i := range max(n, len(s.known)) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var d nodemanager.GPU
		var instances []nodemanager.GPU
		handle, ret := s.lib.DeviceGetHandleByIndex(i)
		err := error(nil)
		if ret != nvml.SUCCESS {
			err = s.failure("handle", ret)
		} else {
			if d, err = s.device(handle); err == nil {
				instances, err = s.divide(handle, &d)
			}
		}
		if err != nil {
			known := slices.Clone(s.known[i])
			if known == nil {
				known = []nodemanager.GPU{{UUID: fmt.Sprintf("unknown-device-%d", i), Model: "unknown", Minor: i}}
			}
			known[0].Health, known[0].HealthReason = nodemanager.Quarantined, err.Error()
			for j := range known {
				known[j].Usage = nil
			}
			devices = append(devices, known...)
			continue
		}
		if d.Divided {
			divided += d.UUID + " "
		}
		s.known[i] = append([]nodemanager.GPU{d}, instances...)
		handles, whole, devices = append(handles, handle), append(whole, d), append(devices, s.known[i]...)
	}
	if (s.islands == nil || s.linked != divided) && len(handles) == max(n, len(s.known)) {
		s.islands, s.linked = islands(handles, whole), divided
	}
	for i := range devices {
		if d := &devices[i]; d.Whole() {
			d.Island = s.islands[d.UUID]
		}
	}
	slices.SortStableFunc(devices, func(a, b nodemanager.GPU) int {
		return cmp.Or(cmp.Compare(a.PCI, b.PCI), cmp.Compare(a.Minor, b.Minor))
	})
	return devices, nil
}

func (s *Source) device(h device) (nodemanager.GPU, error) {
	d := nodemanager.GPU{Health: nodemanager.Healthy}
	var ret nvml.Return
	if d.UUID, ret = h.GetUUID(); ret != nvml.SUCCESS {
		return d, s.failure("uuid", ret)
	}
	if d.Model, ret = h.GetName(); ret != nvml.SUCCESS {
		return d, s.failure("name of "+d.UUID, ret)
	}
	memory, ret := h.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return d, s.failure("memory of "+d.UUID, ret)
	}
	d.Memory = int64(memory.Total)
	if d.Minor, ret = h.GetMinorNumber(); ret != nvml.SUCCESS {
		return d, s.failure("minor number of "+d.UUID, ret)
	}
	if pci, ret := h.GetPciInfo(); ret == nvml.SUCCESS {
		d.PCI = busID(pci)
	}
	d.Usage = usage(h, memory)
	d.Health, d.HealthReason, d.Recovers = recovery(h)
	if _, _, _, failed, ret := h.GetRemappedRows(); ret == nvml.SUCCESS && failed {
		d.Health, d.HealthReason = nodemanager.Retired, "a row of its memory is broken and cannot be replaced by a spare one any more"
	}
	return d, nil
}

// usage asks for what a device tells about its load; each question may be unsupported.
func usage(h device, memory nvml.Memory) *nodemanager.GPUUsage {
	u := &nodemanager.GPUUsage{MemoryUsed: int64(memory.Used)}
	if rates, ret := h.GetUtilizationRates(); ret == nvml.SUCCESS {
		u.Utilization = float64(rates.Gpu)
	} else {
		u.Blind = true // as one that is split by MIG
	}
	if milliwatts, ret := h.GetPowerUsage(); ret == nvml.SUCCESS {
		u.Power = float64(milliwatts) / 1000
	}
	if millijoules, ret := h.GetTotalEnergyConsumption(); ret == nvml.SUCCESS {
		u.Energy = float64(millijoules) / 1000
	}
	if celsius, ret := h.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
		u.Temperature = float64(celsius)
	}
	if processes, ret := h.GetComputeRunningProcesses(); ret == nvml.SUCCESS {
		for _, p := range processes {
			u.Processes = append(u.Processes, int(p.Pid))
		}
	}
	return u
}

// recoveryActions are the values of FI_DEV_GET_GPU_RECOVERY_ACTION (nvmlDeviceGpuRecoveryAction_t).
var recoveryActions = map[uint32]string{
	uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET):           "the driver asks for a reset of the device",
	uint32(nvml.GPU_RECOVERY_ACTION_NODE_REBOOT):         "the driver asks for a restart of the machine",
	uint32(nvml.GPU_RECOVERY_ACTION_DRAIN_P2P):           "the driver asks to drain peer-to-peer traffic",
	uint32(nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET):     "the driver asks to drain and reset the device",
	uint32(nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN): "the driver asks to recover the IMEX domain",
}

// recovery asks the driver whether the device needs something before it can be used; told: it says so by itself.
func recovery(h device) (health nodemanager.GPUHealth, reason string, told bool) {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if h.GetFieldValues(values) != nvml.SUCCESS || nvml.Return(values[0].NvmlReturn) != nvml.SUCCESS {
		return nodemanager.Healthy, "", false // an older driver does not know the field
	}
	action := binary.NativeEndian.Uint32(values[0].Value[:])
	if action == 0 {
		return nodemanager.Healthy, "", true
	}
	text, ok := recoveryActions[action]
	if !ok {
		text = fmt.Sprintf("the driver asks for recovery action %d", action)
	}
	return nodemanager.Quarantined, text, true
}

func busID(pci nvml.PciInfo) string {
	var b strings.Builder
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return strings.ToLower(b.String())
}

// islands finds which devices NVLink joins, directly or through switches. All devices that have a link to a switch form
// one island, as they do in every HGX board.
func islands(handles []nvml.Device, devices []nodemanager.GPU) map[string]string {
	root := make([]int, len(devices))
	byPCI := map[string]int{}
	for i, d := range devices {
		root[i] = i
		if d.PCI != "" {
			byPCI[d.PCI] = i
		}
	}
	find := func(i int) int {
		for root[i] != i {
			i = root[i]
		}
		return i
	}
	linked := make([]bool, len(devices))
	join := func(i, j int) {
		linked[i], linked[j] = true, true
		a, b := find(i), find(j)
		root[max(a, b)] = min(a, b)
	}
	switched := -1
	for i, handle := range handles {
		h := device(handle)
		for link := range nvml.NVLINK_MAX_LINKS {
			state, ret := h.GetNvLinkState(link)
			if ret != nvml.SUCCESS {
				break // no such link, or no NVLink at all
			}
			if state != nvml.FEATURE_ENABLED {
				continue
			}
			if kind, ret := h.GetNvLinkRemoteDeviceType(link); ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
				if switched >= 0 && switched != i {
					join(switched, i)
				}
				switched = i
				continue
			}
			if remote, ret := h.GetNvLinkRemotePciInfo(link); ret == nvml.SUCCESS {
				if j, ok := byPCI[busID(remote)]; ok && j != i {
					join(i, j)
				}
			}
		}
	}
	names := map[string]string{}
	for i, d := range devices {
		if linked[i] {
			names[d.UUID] = devices[find(i)].UUID
		}
	}
	return names
}

// Watch implements nodemanager.GPUSource: XIDs as the driver reports them.
func (s *Source) Watch(ctx context.Context, report func(nodemanager.GPUEvent)) error {
	set, ret := s.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return s.failure("create event set", ret)
	}
	defer set.Free()
	n, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return s.failure("count devices", ret)
	}
	for i := range n {
		h, ret := s.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // Devices shows it quarantined
		}
		if ret := h.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			return s.failure("register for events", ret)
		}
	}
	const patience = 500 // ms; also how late the end of ctx is seen
	for ctx.Err() == nil {
		data, ret := set.Wait(patience)
		switch ret {
		case nvml.SUCCESS:
			uuid, ret := data.Device.GetUUID()
			if ret == nvml.SUCCESS && data.EventType == nvml.EventTypeXidCriticalError {
				report(nodemanager.GPUEvent{UUID: uuid, At: time.Now(), XID: int(data.EventData)})
			}
		case nvml.ERROR_TIMEOUT:
		case nvml.ERROR_GPU_IS_LOST:
			// Which one it was shows in Devices and in XID 79; waiting goes on for the others.
			pause(ctx, time.Second)
		default:
			return s.failure("wait for events", ret)
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
