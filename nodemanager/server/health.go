package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/gpu"
)

// healthState is the result of the last look at the disk: empty means well.
type healthState struct {
	mu      sync.Mutex
	problem string
	checked time.Time
	// datanode is the uuid of the datanode beside us, as far as it is known.
	datanode string
}

func (h *healthState) neighbour() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.datanode
}

// findDatanode asks for the datanode beside us, which may be made after us.
func (s *Server) findDatanode() {
	if s.config.Datanode == nil || s.health.neighbour() != "" {
		return
	}
	if uuid := s.config.Datanode(); uuid != "" {
		s.health.mu.Lock()
		s.health.datanode = uuid
		s.health.mu.Unlock()
		s.nudge()
	}
}

func (h *healthState) set(err error) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	changed = text != h.problem
	h.problem, h.checked = text, time.Now()
	return changed
}

// healthReport is whether the node should get work, and a text for people: what is wrong, or what is not enforced.
func (s *Server) healthReport() (healthy bool, report string) {
	return s.healthWith(s.devices.current(), s.occupied())
}

// healthWith is healthReport where devices and occupied are what else is said of them.
func (s *Server) healthWith(devices []nodemanager.GPU, occupied map[string]string) (healthy bool, report string) {
	s.health.mu.Lock()
	problem := s.health.problem
	s.health.mu.Unlock()
	var notes []string
	if problem != "" {
		notes = append(notes, problem)
	}
	complaint, note := s.script.said()
	for _, n := range []string{complaint, note} {
		if n != "" {
			notes = append(notes, n)
		}
	}
	if d := s.groups.Report().Degradation(); d != "" {
		notes = append(notes, "degraded: "+d)
	}
	if s.config.GPUCores && !s.groups.Report().CPUSet {
		notes = append(notes, "containers run on all cores, not on those near their GPUs: control groups name none (cpuset)")
	}
	if n := s.isolationNote(); n != "" {
		notes = append(notes, n)
	}
	real, simulated := 0, 0
	var divided []nodemanager.GPU
	parts := map[string]int{}
	for _, d := range devices {
		switch {
		case d.Divided:
			divided = append(divided, d)
		case d.Simulated:
			simulated++
		default:
			real++
		}
		if d.Parent != "" {
			parts[d.Parent]++
		}
		if d.Health != nodemanager.Healthy && !strings.HasPrefix(d.HealthReason, gpu.OfGPU) {
			notes = append(notes, fmt.Sprintf("GPU %s is %s: %s", d.UUID, d.Health, d.HealthReason))
		}
	}
	for _, d := range divided {
		if parts[d.UUID] == 0 {
			notes = append(notes, fmt.Sprintf("GPU %s is in MIG mode and has no instances, so nobody is granted anything of it: make some (nvidia-smi mig -cgi ... -C), or leave the mode", d.UUID))
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(occupied)) {
		notes = append(notes, fmt.Sprintf("GPU %s is held back: %s", uuid, occupied[uuid]))
	}
	if n := s.gpuNote(); n != "" && real > 0 {
		notes = append(notes, n)
	}
	if simulated > 0 {
		notes = append(notes, fmt.Sprintf("%d GPUs are simulated", simulated))
	}
	return problem == "" && complaint == "", strings.Join(notes, "; ")
}

// watchHealth looks every 10 s.
func (s *Server) watchHealth(ctx context.Context) {
	for sleep(ctx, 10*time.Second) {
		s.findDatanode()
		s.closeFilesystems(time.Now().Add(-fsIdle))
		err := s.checkDisk()
		if s.health.set(err) {
			s.log.Warn("health of the node has changed", "problem", err)
			s.nudge()
		}
	}
}

// diskLimit is what a container that starts now, with nothing on the disk yet, may have there.
func (s *Server) diskLimit() int64 {
	if s.config.DiskLimit > 0 {
		return s.config.DiskLimit
	}
	return max(1, s.freeSpace()/5*4)
}

// freeSpace is what containers may take of the work directory's disk.
func (s *Server) freeSpace() int64 {
	var st unix.Statfs_t
	if unix.Statfs(s.store.Dir(), &st) != nil {
		return 0
	}
	return max(0, int64(st.Bavail)*st.Bsize-s.config.Reserve)
}

// checkDisk tries what containers need of the work directory.
func (s *Server) checkDisk() error {
	dir := s.store.Dir()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("1/1 local-dirs have errors: [ %s : %w ]", dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < s.config.Reserve {
		return fmt.Errorf("1/1 local-dirs usable space is below configured utilization percentage/no more usable space [ %s : %s free, %s must be ]",
			dir, nodemanager.ByteSize(free), nodemanager.ByteSize(s.config.Reserve))
	}
	if st.Files > 0 && st.Ffree < 1000 {
		return fmt.Errorf("1/1 local-dirs have errors: [ %s : no more inodes ]", dir)
	}
	probe := filepath.Join(dir, "probe")
	err := os.WriteFile(probe, []byte("x"), 0o600)
	if err = errors.Join(err, os.Remove(probe)); err != nil {
		return fmt.Errorf("1/1 local-dirs have errors: [ %s : cannot write: %w ]", dir, err)
	}
	return nil
}
