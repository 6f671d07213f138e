package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/supervisor"
)

// sweepPatience is how long a starting node manager waits for forgotten processes to end. What is left then holds its
// devices back, and is killed again every few seconds.
const sweepPatience = 10 * time.Second

// cluster identifies the cluster in the environment of its containers.
func (s *Server) cluster() string {
	sum := sha256.Sum256([]byte("name of the cluster in containers: " + s.config.Credentials.Member.Self().Cluster))
	return hex.EncodeToString(sum[:8])
}

// forgottenProcesses tells two kinds of strangers apart. forgotten are the processes of containers that were started under this node's name in this cluster and are not in the work
// directory: another work directory was configured, or this one was lost. Whoever started them has gone, because we have its
// address. foreign are the processes of all other containers that are not ours: of node managers beside this one.
func (s *Server) forgottenProcesses() (forgotten, foreign []supervisor.Process) {
	_, port, _ := net.SplitHostPort(s.config.NodeID)
	cluster := s.cluster()
	// The processes first: the supervisor of each that a container of ours has can be found by then, also of one that starts just now.
	all, ours := supervisor.Carrying("HOPS_CONTAINER_ID"), map[int]bool{}
	for _, c := range s.list() {
		if r, _, _ := c.view(); r.State != nodemanager.Complete {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			ours[c.client.Find(ctx)] = true
			cancel()
		}
	}
	delete(ours, 0) // none yet
	for _, p := range all {
		if p.Below(ours) {
			continue // whatever it says of itself: it ends with its container
		}
		if c := s.find(nodemanager.ContainerID(p.Get("HOPS_CONTAINER_ID"))); c != nil {
			// By its id alone: the directory may have another name than when it was started.
			if r, _, _ := c.view(); r.State != nodemanager.Complete {
				continue
			}
		}
		if p.Get("HOPS_CLUSTER") == cluster && p.Get("NM_HOST") == s.config.Host && p.Get("NM_PORT") == port {
			forgotten = append(forgotten, p)
		} else {
			foreign = append(foreign, p)
		}
	}
	return forgotten, foreign
}

// sweep ends forgotten processes. No report is sent before: its incarnation may be a new one, and then the resource
// manager counts every container that was here as ended.
func (s *Server) sweep(ctx context.Context, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list := func() []supervisor.Process {
		forgotten, _ := s.forgottenProcesses()
		for _, p := range forgotten {
			if s.devices.remember(p) {
				s.log.Warn("ending a process of a container that is not in the work directory", "pid", p.PID,
					"container", p.Get("HOPS_CONTAINER_ID"), "dir", p.Get("HOPS_WORK_DIR"))
			}
		}
		return forgotten
	}
	if err := supervisor.End(ctx, list); err != nil {
		s.log.Error("processes of a forgotten container do not end; their devices are held back", "error", err)
	}
}

// remember takes in a process that holds devices until it is gone. It reports whether it is a new one.
func (d *deviceState) remember(p supervisor.Process) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, known := range d.strays {
		if known.PID == p.PID && known.Lives() {
			return false
		}
	}
	d.strays = append(d.strays, p)
	return true
}

// hold keeps devices from being offered until the driver has been asked anew whether anybody uses them.
func (d *deviceState) hold(uuids []string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := false
	for _, g := range d.list {
		if !g.Simulated && slices.Contains(uuids, g.UUID) { // a simulated one has no driver
			if d.unverified == nil {
				d.unverified = map[string]time.Time{}
			}
			d.unverified[g.UUID] = now
			held = true
		}
	}
	if held {
		select {
		case d.asked <- struct{}{}:
		default:
		}
	}
}

// occupied says of each device that must not be granted, although no container here holds it, why.
func (s *Server) occupied() map[string]string {
	held := s.holders()
	out := map[string]string{}
	s.devices.mu.Lock()
	defer s.devices.mu.Unlock()
	d := &s.devices
	d.strays = slices.DeleteFunc(d.strays, func(p supervisor.Process) bool { return !p.Lives() })
	for _, g := range d.list {
		if held[g.UUID] != "" || g.Divided { // nobody is granted that
			continue
		}
		for _, p := range d.strays {
			if slices.Contains(strings.Split(p.Get("CUDA_VISIBLE_DEVICES"), ","), g.UUID) {
				out[g.UUID] = fmt.Sprintf("process %d of %s, which this node manager does not know, has it", p.PID, p.Get("HOPS_CONTAINER_ID"))
			}
		}
		switch {
		case out[g.UUID] != "":
		case g.Usage != nil && len(g.Usage.Processes) > 0:
			out[g.UUID] = fmt.Sprintf("process %d, which belongs to no container here, computes on it", g.Usage.Processes[0])
		case !d.unverified[g.UUID].IsZero():
			out[g.UUID] = "the driver has not said yet that the processes of the last container are gone"
		case !d.over[g.UUID].IsZero():
			out[g.UUID] = d.excess(g)
		}
	}
	return out
}

// occupiedList is whom occupied is about.
func (s *Server) occupiedList() []string { return slices.Sorted(maps.Keys(s.occupied())) }

// forgottenEvery is how often processes are looked for that have our devices where there are none, and nothing was forgotten lately.
const forgottenEvery = time.Minute

// seeks reports whether to look for such processes now, which costs a look at every process of the machine. sought is when that was done last.
func (s *Server) seeks(now, sought time.Time) bool {
	s.devices.mu.Lock()
	defer s.devices.mu.Unlock()
	return len(s.devices.list)+len(s.devices.strays) > 0 || now.Sub(s.born) < forgottenEvery || now.Sub(sought) >= forgottenEvery
}

// watchForgotten looks for processes that have our devices and are none of ours.
func (s *Server) watchForgotten(ctx context.Context) {
	forgotten, foreign := s.forgottenProcesses()
	if len(forgotten) > 0 {
		s.sweep(ctx, time.Second)
	}
	devices := s.devices.current()
	for _, p := range foreign {
		visible := strings.Split(p.Get("CUDA_VISIBLE_DEVICES"), ",")
		same := p.Get("HOPS_CLUSTER") == s.cluster()
		if slices.ContainsFunc(devices, func(g nodemanager.GPU) bool {
			return (same || !g.Simulated) && slices.Contains(visible, g.UUID) // another cluster's simulated device is another one
		}) {
			s.devices.remember(p)
		}
	}
}
