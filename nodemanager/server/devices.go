package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/gpu"
)

// deviceState is the last inventory and what happened to the devices since.
type deviceState struct {
	monitor gpu.Monitor

	mu   sync.Mutex
	list []nodemanager.GPU
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
	list, err := s.config.GPUs.Devices(ctx)
	if err != nil {
		return fmt.Errorf("list GPUs: %w", err)
	}
	s.devices.mu.Lock()
	s.devices.list = list
	s.devices.mu.Unlock()
	return nil
}

// watchDevices follows events and load until ctx is done.
func (s *Server) watchDevices(ctx context.Context) {
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			err := s.config.GPUs.Watch(ctx, func(e nodemanager.GPUEvent) {
				changed := s.devices.monitor.Observe(e, time.Now())
				s.log.Warn("GPU event", "gpu", e.UUID, "xid", e.XID, "reason", e.Reason, "health_changed", changed)
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
	for sleep(ctx, 5*time.Second) {
		if err := s.readDevices(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("GPUs cannot be read; the last inventory stands", "error", err)
		}
	}
	watching.Wait()
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
