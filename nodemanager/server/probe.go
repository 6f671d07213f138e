package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/nodemanager"
)

const (
	// probeTime is how long the program that tries a device may take.
	probeTime = 5 * time.Minute
	// leakSlack is how much more memory than at its best a device may use when nobody has it, and leakTime how long it may have more
	// before it is quarantined. A driver frees what a process had some time after its end.
	leakSlack = 256 << 20
	leakTime  = 2 * time.Minute
)

// probeDevices tries those that have rested. While it lasts they are PROBING, and nobody is granted them.
func (s *Server) probeDevices(ctx context.Context) {
	s.devices.mu.Lock()
	list := slices.Clone(s.devices.list) // with the driver's own view of their health
	s.devices.mu.Unlock()
	due := s.devices.monitor.Due(list, time.Now())
	for _, uuid := range due {
		parts := partsOf(list, uuid)
		s.work.Go(func() {
			var problem error
			for _, part := range parts {
				if problem == nil {
					problem = s.probe(ctx, part)
				}
			}
			if ctx.Err() != nil {
				return // the next node manager tries it again
			}
			s.devices.monitor.Probed(uuid, problem, time.Now())
			s.log.Warn("a GPU was probed", "gpu", uuid, "problem", problem)
			s.recordGPUs()
			s.nudge()
		})
	}
	if len(due) > 0 {
		s.nudge()
	}
}

// partsOf are the devices by which one is tried: itself, or the instances of a GPU in MIG mode.
func partsOf(list []nodemanager.GPU, uuid string) (parts []string) {
	divided := false
	for _, d := range list {
		divided = divided || d.Divided && d.UUID == uuid
		if d.Parent == uuid {
			parts = append(parts, d.UUID)
		}
	}
	if !divided {
		return []string{uuid}
	}
	return parts
}

// probe says what is wrong with a device; nil: nothing that can be found out.
func (s *Server) probe(ctx context.Context, uuid string) error {
	if why := s.occupied()[uuid]; why != "" {
		return errors.New(why)
	}
	if s.config.GPUProbe == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.config.GPUProbe)
	cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+uuid, "NVIDIA_VISIBLE_DEVICES="+uuid, "CUDA_DEVICE_ORDER=PCI_BUS_ID")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out := &lastLine{}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s has not ended within %v", s.config.GPUProbe, probeTime)
	case err != nil && len(out.text) > 0:
		return fmt.Errorf("%s: %w: %s", s.config.GPUProbe, err, nodemanager.Shorten(strings.TrimSpace(string(out.text)), 200))
	case err != nil:
		return fmt.Errorf("%s: %w", s.config.GPUProbe, err)
	}
	return nil
}

// lastLine keeps the end of what is written.
type lastLine struct{ text []byte }

func (l *lastLine) Write(p []byte) (int, error) {
	l.text = append(l.text, p...)
	if len(l.text) > 4<<10 {
		l.text = slices.Clone(l.text[len(l.text)-2<<10:])
	}
	if i := strings.LastIndexByte(strings.TrimRight(string(l.text), "\n"), '\n'); i >= 0 {
		l.text = l.text[i+1:]
	}
	return len(p), nil
}

// weigh notes how much memory of a device is used while nobody has it. The caller holds the lock.
func (d *deviceState) weigh(g nodemanager.GPU, held bool, now time.Time) {
	if d.base == nil {
		d.base, d.over = map[string]int64{}, map[string]time.Time{}
	}
	if g.Simulated || g.Divided || g.Usage == nil || held || len(g.Usage.Processes) > 0 {
		delete(d.over, g.UUID)
		return
	}
	used := g.Usage.MemoryUsed
	if base, ok := d.base[g.UUID]; !ok || used < base {
		// A device whose memory was leaked before we looked first has no good base: a driver's own is below that.
		d.base[g.UUID] = min(used, max(1<<30, g.Memory/32))
	}
	if used <= d.base[g.UUID]+leakSlack {
		delete(d.over, g.UUID)
	} else if d.over[g.UUID].IsZero() {
		d.over[g.UUID] = now
	}
}

// leaked are the devices whose memory has not come back, and why they are quarantined. The caller holds the lock.
func (d *deviceState) leaked(now time.Time) map[string]string {
	out := map[string]string{}
	for _, g := range d.list {
		if since := d.over[g.UUID]; !since.IsZero() && now.Sub(since) > leakTime {
			out[g.UUID] = d.excess(g)
		}
	}
	return out
}

// excess says that a device has memory in use that is nobody's.
func (d *deviceState) excess(g nodemanager.GPU) string {
	return fmt.Sprintf("%s of its memory are used, though no process is on it; otherwise it is %s", nodemanager.ByteSize(g.Usage.MemoryUsed), nodemanager.ByteSize(d.base[g.UUID]))
}
