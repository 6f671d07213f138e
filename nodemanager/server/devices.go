package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/gpu"
	"github.com/gohops/hops/nodemanager/supervisor"
)

// deviceState is the last inventory and what happened to the devices since.
type deviceState struct {
	monitor gpu.Monitor
	meter   gpu.Meter

	asked chan struct{} // for a new look, of capacity 1

	mu   sync.Mutex
	list []nodemanager.GPU
	// strays are processes that have devices and are of no container of ours.
	strays []supervisor.Process
	// unverified: since when a device is held back until the driver is asked whether anybody uses it.
	unverified map[string]time.Time
	// base is the least memory that was used on a device while nobody had it, in bytes; over: since when an unused one has more.
	base map[string]int64
	over map[string]time.Time
	// unrecorded: something happened that is not on disk; recording: a goroutine writes it.
	unrecorded, recording bool
}

// current is a copy with the health of this moment.
func (d *deviceState) current() []nodemanager.GPU {
	d.mu.Lock()
	list := slices.Clone(d.list)
	d.mu.Unlock()
	d.monitor.Apply(list, time.Now())
	return list
}

// readDevices asks the source. It is kept off the path of reports, because a driver may take its time.
func (s *Server) readDevices(ctx context.Context) error {
	begin := time.Now()
	list, err := s.config.GPUs.Devices(ctx)
	if err != nil {
		return fmt.Errorf("list GPUs: %w", err)
	}
	held := s.holders()
	s.devices.mu.Lock()
	divided := s.devices.list != nil && !slices.EqualFunc(s.devices.list, list, func(a, b nodemanager.GPU) bool { return a.UUID == b.UUID && a.Divided == b.Divided })
	s.devices.list = list
	for _, g := range list {
		if since := s.devices.unverified[g.UUID]; since.Before(begin) {
			delete(s.devices.unverified, g.UUID) // what it says of processes is newer
		}
		s.devices.weigh(g, held[g.UUID] != "", begin)
	}
	leaked := s.devices.leaked(begin)
	s.devices.mu.Unlock()
	s.devices.meter.Look(list, begin)
	s.noteUse(begin, false)
	changed := s.devices.monitor.Look(list, time.Now())
	for uuid, why := range leaked {
		changed = s.devices.monitor.Observe(nodemanager.GPUEvent{UUID: uuid, At: begin, Health: nodemanager.Quarantined, Reason: why}, time.Now()) || changed
	}
	if divided { // an administrator has divided a GPU anew, or some came or went
		s.log.Warn("the GPUs are not those that they were", "now", gpu.Describe(list))
		s.nudge()
	}
	if changed {
		s.recordGPUs()
		s.nudge()
	}
	return nil
}

// useRecorded is how often what containers do with their devices goes into their records, besides the end of the node manager.
const useRecorded = time.Minute

// noteUse takes what the meter has added up into the containers' records; atOnce: on the disk too.
func (s *Server) noteUse(now time.Time, atOnce bool) {
	for _, c := range s.list() {
		use := s.devices.meter.Of(c.id)
		if len(use) == 0 {
			continue
		}
		c.mu.Lock()
		c.record.GPUs = use
		if (atOnce || now.Sub(c.used) >= useRecorded) && c.record.State != nodemanager.Complete {
			c.used = now
			c.saveLocked()
		}
		c.mu.Unlock()
	}
}

// idle says of each device for how long the container that holds it has done nothing with it, where that is longer than is usual.
func (s *Server) idle() map[string]time.Duration {
	idle := map[string]time.Duration{}
	for _, c := range s.list() {
		r, _, _ := c.view()
		for _, u := range r.GPUs {
			if r.State != nodemanager.Complete && u.Idle >= s.config.GPUIdle {
				idle[u.UUID] = u.Idle
			}
		}
	}
	return idle
}

// watchDevices follows events and load until ctx is done.
func (s *Server) watchDevices(ctx context.Context) {
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			err := s.config.GPUs.Watch(ctx, func(e nodemanager.GPUEvent) {
				changed := s.devices.monitor.Observe(e, time.Now())
				s.log.Warn("GPU event", "gpu", e.UUID, "xid", e.XID, "reason", e.Reason, "health_changed", changed)
				s.recordGPUs()
				if changed {
					s.nudge()
				}
			})
			if err != nil {
				s.log.Error("GPU events are not seen, trying again", "error", err)
				sleep(ctx, 10*time.Second)
			}
		}
	})
	before := s.occupiedList()
	sought := time.Now()
	for look := time.NewTicker(5 * time.Second); ; {
		select {
		case <-ctx.Done():
			look.Stop()
			watching.Wait()
			return
		case now := <-look.C:
			if s.seeks(now, sought) {
				sought = now
				s.watchForgotten(ctx)
			}
		case <-s.devices.asked:
		}
		if err := s.readDevices(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("GPUs cannot be read; the last inventory stands", "error", err)
		}
		s.probeDevices(ctx)
		if now := s.occupiedList(); !slices.Equal(now, before) {
			s.log.Info("devices that are held back have changed", "before", before, "now", now)
			before = now
			s.nudge()
		}
	}
}

// judge takes a device back into service or out of it, because a person says so.
func (s *Server) judge(uuid string, health nodemanager.GPUHealth, by string) {
	known := slices.ContainsFunc(s.devices.current(), func(g nodemanager.GPU) bool { return g.UUID == uuid })
	if !known || health != nodemanager.Healthy && health != nodemanager.Retired {
		s.log.Warn("what is said of a device is not heeded: it is not here, or that is none of HEALTHY and RETIRED", "gpu", uuid, "health", health, "by", by)
		return
	}
	s.devices.monitor.Observe(nodemanager.GPUEvent{UUID: uuid, At: time.Now(), Health: health, Reason: "retired by " + by}, time.Now())
	s.log.Warn("an operator has judged a GPU", "gpu", uuid, "health", health, "by", by)
	s.recordGPUs()
	s.nudge()
}

// recallGPUs goes on from what an earlier node manager of the directory knew of the devices.
func (s *Server) recallGPUs() {
	records, restarted, err := s.store.GPUs()
	if err != nil {
		s.log.Error("what happened to the GPUs before the start is not known; they count as healthy", "error", err)
		return
	}
	s.devices.monitor.Recall(records, restarted, time.Now())
}

// recordGPUs has what happened to the devices written down, when the disk takes it, and once a second at most. What happened to a
// simulated one is told again by its script.
func (s *Server) recordGPUs() {
	d := &s.devices
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unrecorded = true
	if d.recording {
		return
	}
	d.recording = true
	s.work.Go(func() {
		for failed, goesOn := false, true; ; {
			d.mu.Lock()
			if !d.unrecorded || !goesOn && failed {
				d.recording = false
				d.mu.Unlock()
				return
			}
			d.unrecorded = false
			d.mu.Unlock()
			err := s.store.PutGPUs(s.realRecords())
			if err != nil {
				if !failed {
					s.log.Error("what happened to the GPUs cannot be recorded, trying again", "error", err)
				}
				d.mu.Lock()
				d.unrecorded = true
				d.mu.Unlock()
			}
			failed = err != nil
			goesOn = s.pause(time.Second)
		}
	})
}

func (s *Server) realRecords() []nodemanager.GPURecord {
	devices := s.devices.current()
	return slices.DeleteFunc(s.devices.monitor.Records(), func(r nodemanager.GPURecord) bool {
		return slices.ContainsFunc(devices, func(d nodemanager.GPU) bool { return d.UUID == r.UUID && d.Simulated })
	})
}

// sleep reports whether the time has passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
