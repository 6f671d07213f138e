package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/state"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
)

// obey carries out orders. Each but a signal is idempotent by container id: the resource manager repeats what it does not see
// reflected.
func (s *Server) obey(work context.Context, o *rmpb.NodeOrders) {
	for _, p := range o.GetStop() {
		stop := &state.StopOrder{Status: nodemanager.ExitStatus(p.GetExitStatus()), Reason: p.GetReason()}
		if c := s.find(nodemanager.ContainerID(p.GetContainerId())); c != nil {
			c.order(stop, -1)
		} else {
			s.neverStarted(work, nodemanager.ContainerID(p.GetContainerId()), stop)
		}
	}
	for _, p := range o.GetStart() {
		s.start(work, specOf(p))
	}
	for _, p := range o.GetSignal() {
		if c := s.find(nodemanager.ContainerID(p.GetContainerId())); c != nil {
			s.work.Go(func() { c.signal(work, int(p.GetSignal())) })
		}
	}
	for _, p := range o.GetDevices() {
		s.judge(p.GetUuid(), nodemanager.GPUHealth(p.GetHealth()), p.GetBy())
	}
	s.heed(o.GetNotices())
	for _, app := range o.GetEnded() {
		s.endShuffle(app)
	}
	for _, id := range o.GetCleanup() {
		if c := s.find(nodemanager.ContainerID(id)); c != nil {
			c.forget()
		}
	}
}

// start admits a container. A known one, or one that was forgotten, is not started again.
func (s *Server) start(work context.Context, spec nodemanager.Spec) {
	s.mu.Lock()
	known := s.containers[spec.ID] != nil || s.forgotten.set[spec.ID]
	s.mu.Unlock()
	if known {
		return
	}
	if !s.leaseHolds() {
		s.log.Warn("start order waits: this node holds no lease", "container", spec.ID)
		return
	}
	problem := spec.Validate()
	status := nodemanager.Invalid
	if problem == nil {
		problem, status = s.checkGPUs(&spec), nodemanager.Aborted
	}
	step, err := nodemanager.Next(nodemanager.New, nodemanager.Admitted)
	if err != nil {
		panic(err) // the table is broken
	}
	r := &state.Record{Spec: spec, State: step.Next, Boot: s.boot, Admitted: time.Now().UnixMilli()}
	if problem != nil {
		r.Spec.Artifacts, r.Spec.Argv, r.Spec.Env = nil, nil, nil
	}
	c := s.newContainer(r)
	c.unrecorded = true // until its directory is made, which is no work for who reads orders
	if !s.admit(c) {
		return // its master has stopped it meanwhile
	}
	s.nudge()
	if problem != nil {
		s.work.Go(func() { c.refuse(work, status, problem) })
		return
	}
	s.work.Go(func() { c.live(work) })
}

// admit takes a container in, unless one of its id is or was here.
func (s *Server) admit(c *container) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.containers[c.id] != nil || s.forgotten.set[c.id] {
		return false
	}
	s.containers[c.id] = c
	return true
}

// neverStarted answers a stop for a container that this node never saw, and that a start order on its way must not start.
func (s *Server) neverStarted(work context.Context, id nodemanager.ContainerID, stop *state.StopOrder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.containers[id] != nil || s.forgotten.set[id] {
		return
	}
	status := stop.Status
	if status == nodemanager.Success {
		status = nodemanager.Terminated
	}
	c := s.newContainer(&state.Record{
		Spec: nodemanager.Spec{ID: id}, State: nodemanager.Complete, Boot: s.boot, Finished: time.Now().UnixMilli(),
		Exit: &state.Exit{Status: status, Diagnostics: "stopped before it was started: " + stop.Reason},
	})
	c.unrecorded = true
	close(c.shipped)
	s.containers[id] = c
	s.nudge()
	s.work.Go(func() { c.after(work) })
}

// checkGPUs makes sure that the granted devices exist and that no container here holds one of them, whatever the resource
// manager believes.
func (s *Server) checkGPUs(spec *nodemanager.Spec) error {
	if len(spec.Resources.GPUs) == 0 {
		return nil
	}
	devices := s.devices.current()
	var family []string // what is granted, and what that is a part of
	for i, uuid := range spec.Resources.GPUs {
		at := slices.IndexFunc(devices, func(d nodemanager.GPU) bool { return d.UUID == uuid })
		if at < 0 {
			return fmt.Errorf("GPU %.100s is not on this node", uuid)
		}
		if devices[at].Divided {
			return fmt.Errorf("GPU %s is in MIG mode: only instances of it are granted", uuid)
		}
		family = append(family, uuid)
		for _, d := range devices { // what was granted before it was divided, or when it was
			if d.UUID == devices[at].Parent || d.Parent == uuid {
				family = append(family, d.UUID)
			}
		}
		if slices.Contains(spec.Resources.GPUs[:i], uuid) {
			return fmt.Errorf("GPU %s is granted twice", uuid)
		}
	}
	for uuid, why := range s.occupied() {
		if slices.Contains(spec.Resources.GPUs, uuid) {
			return fmt.Errorf("GPU %s is held back: %s", uuid, why)
		}
	}
	for _, c := range s.list() {
		r, _, _ := c.view()
		if r.State == nodemanager.Complete {
			continue
		}
		for _, uuid := range r.Spec.Resources.GPUs {
			if slices.Contains(family, uuid) {
				return fmt.Errorf("GPU %s is held by container %s, which is %s", uuid, c.id, strings.ToLower(string(r.State)))
			}
		}
	}
	return nil
}

// signalTime is how long a supervisor may take with a signal. Nobody repeats one, so a machine that is slow must not lose it.
const signalTime = time.Minute

func (c *container) signal(work context.Context, sig int) {
	ctx, cancel := context.WithTimeout(work, signalTime)
	defer cancel()
	if err := c.client.Signal(ctx, sig); err != nil {
		c.log.Warn("signal not delivered", "signal", sig, "error", err)
	}
}
