package gpu

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/nodemanager"
)

// Class says whom an XID blames.
type Class int

// The classes of XIDs.
const (
	// Application: the program did something wrong; the device is fine.
	Application Class = iota + 1
	// Transient: may pass by itself.
	Transient
	// Hardware: the device must not be used before a reset or repair.
	Hardware
)

// xids classifies the driver's error numbers after NVIDIA's catalogue ("XID Errors", docs.nvidia.com/deploy/xid-errors).
// A number that is not here is Transient: it takes the device out for a while, not for ever.
var xids = map[int]struct {
	class Class
	text  string
}{
	13:  {Application, "graphics engine exception"},
	31:  {Application, "memory page fault"},
	43:  {Application, "the program stopped the device"},
	45:  {Application, "preemptive cleanup after an earlier error or the end of the program"},
	68:  {Application, "video decoder exception"},
	69:  {Application, "graphics engine class error"},
	109: {Application, "context switch timeout"},
	137: {Application, "NVLink fabric privilege error"},

	32:  {Transient, "invalid or corrupted push buffer stream"},
	38:  {Transient, "driver firmware error"},
	63:  {Transient, "row remapping or page retirement recorded"},
	92:  {Transient, "high rate of corrected memory errors"},
	121: {Transient, "corrected error on the chip-to-chip link"},

	48:  {Hardware, "uncorrectable memory error"},
	61:  {Hardware, "internal micro-controller breakpoint"},
	62:  {Hardware, "internal micro-controller halt"},
	64:  {Hardware, "row remapping or page retirement failed"},
	74:  {Hardware, "NVLink error"},
	79:  {Hardware, "the device has fallen off the bus"},
	94:  {Hardware, "contained memory error"},
	95:  {Hardware, "uncontained memory error"},
	119: {Hardware, "GSP firmware does not answer"},
	120: {Hardware, "GSP firmware error"},
	140: {Hardware, "unrecovered memory error"},
	143: {Hardware, "the device failed to initialise"},
}

// Classify tells whom an XID blames and what it means.
func Classify(xid int) (Class, string) {
	if e, ok := xids[xid]; ok {
		return e.class, e.text
	}
	return Transient, "not in the catalogue"
}

const (
	// quiet is how long a suspect device must be without a new event to be healthy again, and one that the driver itself has called
	// bad before it is probed.
	quiet = time.Minute
	// rest is how long a device must be without an event, and without a process, before it is probed after events have quarantined it.
	rest = 10 * time.Minute
	// strikes within window make a suspect device quarantined.
	strikes = 3
	window  = time.Hour
	// quarantines within term retire a device.
	quarantines = 3
	term        = 7 * 24 * time.Hour
)

// Monitor remembers what happened to devices and derives their health. Times come from the caller. Safe for concurrent use.
//
//	            transient XID                third within an hour, hardware XID, or the driver says so
//	HEALTHY ───────────────────► SUSPECT ────────────────────────────────────────► QUARANTINED ──── third within a week ───► RETIRED
//	   ▲                            │                                               │      ▲                                   │
//	   ├──── quiet for a minute ────┘        rested, and the driver asks nothing    ▼      │ the probe fails                   │
//	   ├──────────────────── the probe is good ────────────────────────────────── PROBING ─┘                                   │
//	   └──────────────────── a person says so ─────────────────────────────────────────────────────────────────────────────────┘
type Monitor struct {
	mu      sync.Mutex
	devices map[string]*history
}

type history struct {
	health      nodemanager.GPUHealth
	reason      string
	last        time.Time
	transient   []time.Time
	quarantines []time.Time
	// hardware: only a reset takes the cause away. driver: it was the driver's view, not an event.
	hardware, driver bool
}

// Observe takes in an event. changed is false when health stays as it was, as it does for an application's XID.
func (m *Monitor) Observe(e nodemanager.GPUEvent, now time.Time) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.of(e.UUID)
	h.age(now)
	before := h.health
	switch {
	case e.Health == nodemanager.Healthy: // after a reset or a repair
		*h = history{health: nodemanager.Healthy}
	case e.Health != "":
		h.health, h.reason, h.last = e.Health, e.Reason, now
	case e.XID != 0:
		class, text := Classify(e.XID)
		reason := fmt.Sprintf("XID %d: %s", e.XID, text)
		switch {
		case class == Application, h.health == nodemanager.Retired:
			return false
		case class == Hardware:
			h.hardware, h.driver = true, false
			h.quarantine(reason, now)
		case h.health == nodemanager.Quarantined:
			h.last = now // it has not rested
			return false
		case h.health == nodemanager.Probing:
			h.quarantine(reason, now)
		default:
			h.transient = append(h.transient, now)
			for now.Sub(h.transient[0]) > window || len(h.transient) > strikes {
				h.transient = h.transient[1:]
			}
			h.health, h.reason, h.last = nodemanager.Suspect, reason, now
			if len(h.transient) >= strikes {
				h.driver = false
				h.quarantine(reason+"; the third within an hour", now)
			}
		}
	}
	return h.health != before
}

func (m *Monitor) of(uuid string) *history {
	if m.devices == nil {
		m.devices = map[string]*history{}
	}
	h := m.devices[uuid]
	if h == nil {
		h = &history{health: nodemanager.Healthy}
		m.devices[uuid] = h
	}
	return h
}

// quarantine takes a device out, for good if that has happened too often. One that is out already counts once.
func (h *history) quarantine(reason string, now time.Time) {
	if h.health != nodemanager.Quarantined {
		h.quarantines = append(h.quarantines, now)
	}
	for len(h.quarantines) > 0 && now.Sub(h.quarantines[0]) > term {
		h.quarantines = h.quarantines[1:]
	}
	h.health, h.reason, h.last = nodemanager.Quarantined, reason, now
	if len(h.quarantines) >= quarantines {
		h.health, h.reason = nodemanager.Retired, fmt.Sprintf("quarantined %d times within a week; the last time: %s", len(h.quarantines), reason)
	}
}

// Look takes in the driver's own view of its devices: one that it calls bad stays out, when it is not any more, until it is probed.
// Simulated devices have no driver. It reports whether anything has changed.
func (m *Monitor) Look(devices []nodemanager.GPU, now time.Time) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range devices {
		if d.Simulated || worse(d.Health) < worse(nodemanager.Quarantined) {
			continue
		}
		h := m.of(d.UUID)
		before := h.health
		switch {
		case h.health == nodemanager.Retired:
		case d.Health == nodemanager.Retired:
			h.health, h.reason, h.last = d.Health, d.HealthReason, now
		default: // does not count for retirement: a driver that is being replaced calls all of them bad
			h.driver, h.hardware = true, false // it tells when that is over
			h.health, h.reason, h.last = nodemanager.Quarantined, d.HealthReason, now
		}
		changed = changed || h.health != before
	}
	return changed
}

// Due takes the devices that have rested for probing: each of them is PROBING until Probed is called. One that a hardware error has
// taken out comes back by itself only where the driver says that it needs no reset.
func (m *Monitor) Due(devices []nodemanager.GPU, now time.Time) (uuids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range devices {
		h := m.devices[d.UUID]
		if h == nil || h.health != nodemanager.Quarantined || worse(d.Health) > 0 || h.hardware && !d.Recovers {
			continue
		}
		if d.Usage != nil && len(d.Usage.Processes) > 0 {
			h.last = now
			continue
		}
		if pause := map[bool]time.Duration{true: quiet, false: rest}[h.driver]; now.Sub(h.last) >= pause {
			h.health = nodemanager.Probing
			uuids = append(uuids, d.UUID)
		}
	}
	return uuids
}

// Probed ends the probing of a device. One that was taken out otherwise in the meantime stays as it is.
func (m *Monitor) Probed(uuid string, problem error, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.of(uuid)
	if h.health != nodemanager.Probing {
		return
	}
	if problem != nil {
		h.quarantine(fmt.Sprintf("the probe failed: %v", problem), now)
		return
	}
	*h = history{health: nodemanager.Healthy, quarantines: h.quarantines}
}

// Records are what happened to devices, by UUID; of those that are as good as new there is none. A device that is being probed is
// quarantined for whoever comes after us.
func (m *Monitor) Records() []nodemanager.GPURecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []nodemanager.GPURecord
	for _, uuid := range slices.Sorted(maps.Keys(m.devices)) {
		h := m.devices[uuid]
		if h.health == nodemanager.Healthy && len(h.transient) == 0 && len(h.quarantines) == 0 {
			continue
		}
		r := nodemanager.GPURecord{
			UUID: uuid, Health: h.health, Reason: h.reason, Last: h.last, Transient: slices.Clone(h.transient),
			Quarantines: slices.Clone(h.quarantines), Hardware: h.hardware,
		}
		if r.Health == nodemanager.Probing {
			r.Health = nodemanager.Quarantined
		}
		all = append(all, r)
	}
	return all
}

// Recall takes in the records of an earlier monitor, before any event. Times after now come from a clock that was wrong, and
// count as now. restarted: the machine was, which resets its devices; what is retired stays so.
func (m *Monitor) Recall(records []nodemanager.GPURecord, restarted bool, now time.Time) {
	past := func(all []time.Time) (out []time.Time) {
		for _, t := range all {
			if t.After(now) {
				t = now
			}
			out = append(out, t)
		}
		return out
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices = map[string]*history{}
	for _, r := range records {
		h := &history{
			health: r.Health, reason: r.Reason, last: past([]time.Time{r.Last})[0], transient: past(r.Transient), quarantines: past(r.Quarantines),
			hardware: r.Hardware,
		}
		if restarted && r.Health != nodemanager.Retired {
			h = &history{health: nodemanager.Healthy, quarantines: h.quarantines}
		}
		m.devices[r.UUID] = h
	}
}

func (h *history) age(now time.Time) {
	if h.health == nodemanager.Suspect && now.Sub(h.last) >= quiet {
		h.health, h.reason = nodemanager.Healthy, ""
	}
}

// Apply puts the health that follows from events into devices, where it is worse than the source's own view.
func (m *Monitor) Apply(devices []nodemanager.GPU, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range devices {
		d := &devices[i]
		if d.Health == "" {
			d.Health = nodemanager.Healthy
		}
		h := m.devices[d.UUID]
		if h == nil {
			continue
		}
		h.age(now)
		if worse(h.health) > worse(d.Health) {
			d.Health, d.HealthReason = h.health, h.reason
		}
	}
	for i := range devices { // a GPU takes its MIG instances with it
		d := &devices[i]
		if d.Parent == "" {
			continue
		}
		for j := range devices {
			if g := &devices[j]; g.UUID == d.Parent && worse(g.Health) > worse(d.Health) {
				d.Health, d.HealthReason = g.Health, OfGPU+g.UUID+": "+g.HealthReason
			}
		}
	}
}

// OfGPU begins the reason of a MIG instance's health that is its GPU's.
const OfGPU = "its GPU "

func worse(h nodemanager.GPUHealth) int {
	switch h {
	case nodemanager.Suspect:
		return 1
	case nodemanager.Probing:
		return 2
	case nodemanager.Quarantined:
		return 3
	case nodemanager.Retired:
		return 4
	}
	return 0
}
