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
	// quiet is how long a suspect device must be without a new event to be healthy again.
	quiet = time.Minute
	// strikes within window make a suspect device quarantined.
	strikes = 3
	window  = time.Hour
)

// Monitor remembers what happened to devices and derives their health. Times come from the caller. Safe for concurrent use.
//
//	            transient XID                third within an hour, or hardware XID
//	HEALTHY ───────────────────► SUSPECT ────────────────────────────────────────► QUARANTINED
//	   ▲                            │                                                   │
//	   └──── quiet for a minute ────┘          (an event that says HEALTHY, e.g. after a reset)
type Monitor struct {
	mu      sync.Mutex
	devices map[string]*history
}

type history struct {
	health    nodemanager.GPUHealth
	reason    string
	last      time.Time
	transient []time.Time
}

// Observe takes in an event. changed is false when health stays as it was, as it does for an application's XID.
func (m *Monitor) Observe(e nodemanager.GPUEvent, now time.Time) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.devices == nil {
		m.devices = map[string]*history{}
	}
	h := m.devices[e.UUID]
	if h == nil {
		h = &history{health: nodemanager.Healthy}
		m.devices[e.UUID] = h
	}
	h.age(now)
	before := h.health
	switch {
	case e.Health != "":
		h.health, h.reason, h.last = e.Health, e.Reason, now
		if e.Health == nodemanager.Healthy {
			h.transient = nil
		}
	case e.XID != 0:
		class, text := Classify(e.XID)
		reason := fmt.Sprintf("XID %d: %s", e.XID, text)
		switch class {
		case Application:
			return false
		case Hardware:
			h.health, h.reason, h.last = nodemanager.Quarantined, reason, now
		case Transient:
			if h.health == nodemanager.Quarantined {
				return false
			}
			h.transient = append(h.transient, now)
			for now.Sub(h.transient[0]) > window || len(h.transient) > strikes {
				h.transient = h.transient[1:]
			}
			h.health, h.reason, h.last = nodemanager.Suspect, reason, now
			if len(h.transient) >= strikes {
				h.health, h.reason = nodemanager.Quarantined, fmt.Sprintf("%s; the third within an hour", reason)
			}
		}
	}
	return h.health != before
}

// Records are what happened to devices, by UUID; of those that are as good as new there is none.
func (m *Monitor) Records() []nodemanager.GPURecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []nodemanager.GPURecord
	for _, uuid := range slices.Sorted(maps.Keys(m.devices)) {
		if h := m.devices[uuid]; h.health != nodemanager.Healthy || len(h.transient) > 0 {
			all = append(all, nodemanager.GPURecord{UUID: uuid, Health: h.health, Reason: h.reason, Last: h.last, Transient: slices.Clone(h.transient)})
		}
	}
	return all
}

// Recall takes in the records of an earlier monitor, before any event. Times after now come from a clock that was wrong, and
// count as now.
func (m *Monitor) Recall(records []nodemanager.GPURecord, now time.Time) {
	past := func(t time.Time) time.Time {
		if t.After(now) {
			return now
		}
		return t
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices = map[string]*history{}
	for _, r := range records {
		h := &history{health: r.Health, reason: r.Reason, last: past(r.Last)}
		for _, t := range r.Transient {
			h.transient = append(h.transient, past(t))
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
}

func worse(h nodemanager.GPUHealth) int {
	switch h {
	case nodemanager.Suspect:
		return 1
	case nodemanager.Quarantined:
		return 2
	}
	return 0
}
