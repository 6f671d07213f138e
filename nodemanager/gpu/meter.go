package gpu

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/nodemanager"
)

// idleBelow is the utilization, in percent, up to which a device does nothing: a driver shows one percent for what is none.
const idleBelow = 1

// Meter adds up what containers do with their devices, from one look at them to the next. What a device did in between belongs to
// those who held it, each for its time. A Meter is safe for concurrent use; its zero value is ready.
type Meter struct {
	mu     sync.Mutex
	before time.Time // of the last look; zero: there was none
	last   map[string]nodemanager.GPUUsage
	held   []holding
	uses   map[nodemanager.ContainerID]map[string]*nodemanager.GPUUse
}

// holding is a device in the hands of a container. A zero end: it still is.
type holding struct {
	container  nodemanager.ContainerID
	uuid       string
	begin, end time.Time
}

// Begin says that a container holds devices from a moment on; before is what an earlier node manager has added up for it.
func (m *Meter) Begin(c nodemanager.ContainerID, devices []string, before []nodemanager.GPUUse, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.uses == nil {
		m.uses = map[nodemanager.ContainerID]map[string]*nodemanager.GPUUse{}
	}
	if len(devices) == 0 || m.uses[c] != nil {
		return
	}
	m.uses[c] = map[string]*nodemanager.GPUUse{}
	for _, uuid := range devices {
		m.uses[c][uuid] = &nodemanager.GPUUse{UUID: uuid}
		m.held = append(m.held, holding{container: c, uuid: uuid, begin: at})
	}
	for _, u := range before {
		if now := m.uses[c][u.UUID]; now != nil {
			*now = u
		}
	}
}

// End says that it holds them no more. What it did since the last look is added by the next one.
func (m *Meter) End(c nodemanager.ContainerID, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.held {
		if h := &m.held[i]; h.container == c && h.end.IsZero() {
			h.end = at
		}
	}
}

// Forget drops what was added up for a container.
func (m *Meter) Forget(c nodemanager.ContainerID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.uses, c)
	m.held = slices.DeleteFunc(m.held, func(h holding) bool { return h.container == c })
}

// Of is what was added up for a container, in the order of the devices' UUIDs; nil: nothing.
func (m *Meter) Of(c nodemanager.ContainerID) []nodemanager.GPUUse {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []nodemanager.GPUUse
	for _, u := range m.uses[c] {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b nodemanager.GPUUse) int { return strings.Compare(a.UUID, b.UUID) })
	return out
}

// Look takes in what the devices said at a moment. The first look only begins; so does one after a clock that went backwards.
func (m *Meter) Look(devices []nodemanager.GPU, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	between := at.Sub(m.before)
	known := !m.before.IsZero() && between > 0
	now := map[string]nodemanager.GPUUsage{}
	for _, d := range devices {
		if d.Usage == nil {
			continue // it does not tell: nobody used anything
		}
		now[d.UUID] = *d.Usage
		last, again := m.last[d.UUID]
		if !known || !again {
			continue
		}
		energy := spent(last, *d.Usage, between)
		for _, h := range m.held {
			use := m.uses[h.container][h.uuid]
			if h.uuid != d.UUID || use == nil {
				continue
			}
			living := h.end.IsZero()
			begin, end := h.begin, at
			if begin.Before(m.before) {
				begin = m.before
			}
			if !living && h.end.Before(at) {
				end = h.end
			}
			if part := end.Sub(begin); part > 0 {
				add(use, d.Usage, part, energy*part.Seconds()/between.Seconds(), living)
			}
		}
	}
	m.before, m.last = at, now
	m.held = slices.DeleteFunc(m.held, func(h holding) bool { return !h.end.IsZero() && !h.end.After(at) })
}

// add adds a stretch of time in which a container held a device.
func add(use *nodemanager.GPUUse, now *nodemanager.GPUUsage, part time.Duration, energy float64, living bool) {
	use.Held += part
	use.Energy += energy
	if !now.Blind {
		use.Busy += time.Duration(now.Utilization / 100 * float64(part))
	}
	if living {
		use.MemoryPeak = max(use.MemoryPeak, now.MemoryUsed)
	}
	if now.Blind || now.Utilization > idleBelow {
		use.Idle = 0
	} else {
		use.Idle += part
	}
}

// spent is the energy of a device between two looks, in joules: by its own counter, which begins anew when the driver is loaded, or by
// its power.
func spent(last, now nodemanager.GPUUsage, between time.Duration) float64 {
	if last.Energy > 0 && now.Energy >= last.Energy {
		return now.Energy - last.Energy
	}
	return (last.Power + now.Power) / 2 * between.Seconds()
}
