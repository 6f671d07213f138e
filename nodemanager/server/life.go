package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/state"
	"github.com/gohops/hops/nodemanager/supervisor"
)

// supervisorLinger is how long a supervisor of an ended container may still write.
const supervisorLinger = 2 * time.Second

// move changes the state by an event, with what else changes, has the record written, and does what follows at once. What takes its
// time, to localize or to attend, it returns: that is for the container's own goroutine. The record in memory is what counts while we
// live, so neither a full disk nor a slow one stops a container from ending, or anybody from reporting.
func (c *container) move(e nodemanager.Event, change func(*state.Record)) nodemanager.Action {
	c.mu.Lock()
	from := c.record.State
	step, err := nodemanager.Next(from, e)
	if err != nil {
		c.mu.Unlock()
		c.log.Error("container out of step", "error", err)
		return nodemanager.Nothing
	}
	c.record.State = step.Next
	if change != nil {
		change(c.record)
	}
	c.saveLocked()
	exit, held, use := c.record.Exit, c.record.Spec.Resources.GPUs, c.record.GPUs
	c.mu.Unlock()
	switch step.Do {
	case nodemanager.Attend:
		c.server.devices.meter.Begin(c.id, held, use, time.Now())
	case nodemanager.Release:
		c.server.devices.meter.End(c.id, time.Now())
		c.dropTrees()
	}
	if step.Next != from {
		attrs := []any{"from", from, "to", step.Next}
		if exit != nil {
			attrs = append(attrs, "status", int(exit.Status), "diagnostics", firstLine(exit.Diagnostics))
		}
		c.log.Info("container", attrs...)
		c.server.nudge()
	}
	switch step.Do {
	case nodemanager.Interrupt:
		c.stopOnce.Do(func() { close(c.stopped) })
	case nodemanager.Release:
		c.goneOnce.Do(func() { close(c.gone) })
	case nodemanager.Remove:
		c.forgotOnce.Do(func() { close(c.forgot) })
	default:
		return step.Do
	}
	return nodemanager.Nothing
}

// run does what follows from event after event, until the container is gone or the node manager ends.
func (c *container) run(work context.Context, do nodemanager.Action) {
	for do != nodemanager.Nothing {
		switch do {
		case nodemanager.Localize:
			do = c.prepare(work)
		case nodemanager.Attend:
			do = c.attend(work)
		}
	}
}

// order asks the container to end. The first order counts; a later one can only shorten its grace.
func (c *container) order(stop *state.StopOrder, grace time.Duration) {
	c.mu.Lock()
	lives := c.record.State != nodemanager.Complete
	first := lives && c.record.Stop == nil
	sooner := lives && !first && grace >= 0 && (c.grace < 0 || grace < c.grace)
	if first {
		c.record.Stop = stop
	}
	if first || sooner {
		c.grace = grace
	}
	c.mu.Unlock()
	if first {
		c.move(nodemanager.Stop, nil)
	}
	if sooner {
		select {
		case c.hurry <- struct{}{}:
		default: // somebody is about to tell it
		}
	}
}

func (c *container) isStopped() bool {
	select {
	case <-c.stopped:
		return true
	default:
		return false
	}
}

// complete ends the container's life here. exit is nil for one that was stopped before it ran.
func (c *container) complete(exit *state.Exit) nodemanager.Action {
	r, _, _ := c.view()
	c.server.devices.hold(r.Spec.Resources.GPUs, time.Now()) // before a report can say that it is gone
	return c.move(nodemanager.Gone, func(r *state.Record) {
		if exit == nil {
			exit = &state.Exit{Status: r.Stop.Status, Diagnostics: r.Stop.Reason}
			if exit.Status == nodemanager.Success {
				exit.Status = nodemanager.Terminated
			}
		}
		exit.Diagnostics = nodemanager.Shorten(exit.Diagnostics, nodemanager.MaxDiagnostics)
		r.Exit, r.Finished = exit, time.Now().UnixMilli()
	})
}

// live is the whole life of a new container. Its record is written before anything else of it is.
func (c *container) live(work context.Context) {
	r, _, _ := c.view()
	if err := c.server.store.Create(&r); err != nil {
		c.mu.Lock()
		c.unrecorded = true
		c.mu.Unlock()
		c.refuse(work, nodemanager.DisksFailed, fmt.Errorf("the node cannot record it: %w", err))
		return
	}
	c.mu.Lock()
	c.unrecorded = false
	c.saveLocked() // what changed meanwhile
	c.mu.Unlock()
	c.server.work.Go(func() { c.ship(work) })
	c.run(work, nodemanager.Localize)
	c.after(work)
}

// refuse answers an order to start a container that does not start here.
func (c *container) refuse(work context.Context, status nodemanager.ExitStatus, problem error) {
	close(c.shipped) // nothing to ship
	c.complete(&state.Exit{Status: status, Diagnostics: fmt.Sprintf("Container %s was refused: %v", c.id, problem)})
	c.after(work)
}

// resume takes up the life of a container that an earlier node manager began.
func (c *container) resume(work context.Context) {
	c.server.work.Go(func() { c.ship(work) })
	r, _, _ := c.view()
	if r.State != nodemanager.Complete {
		c.run(work, c.find(work, &r))
	}
	c.after(work)
}

// find looks what has become of the container's processes, and says what to do now.
func (c *container) find(work context.Context, r *state.Record) nodemanager.Action {
	if exit, err := supervisor.ReadExit(c.dir); err == nil && exit != nil {
		return c.finish(exit)
	}
	alive, err := supervisor.Alive(c.dir)
	if err != nil {
		c.log.Error("cannot tell whether the supervisor lives", "error", err)
	}
	_, launchErr := os.Lstat(filepath.Join(c.dir, "launch.json"))
	never := errors.Is(launchErr, fs.ErrNotExist)
	early := r.State == nodemanager.New || r.State == nodemanager.Localizing
	switch {
	case alive:
		c.log.Info("container adopted", "state", r.State)
		c.again = 1 + rand.N(adoptedAgain) // it is not known when it was
		return c.move(nodemanager.Adopted, func(r *state.Record) {
			if early {
				r.Started = time.Now().UnixMilli()
			}
		})
	case never && r.Stop != nil:
		return c.complete(nil)
	case never && early:
		return c.move(nodemanager.Unstarted, nil)
	}
	return c.lost(work, r.Boot != c.server.boot)
}

// after ships the rest of the logs, and removes the container once it is forgotten.
func (c *container) after(work context.Context) {
	defer c.client.Close()
	select {
	case <-c.gone:
	default:
		return // the node manager ends, the container does not
	}
	select {
	case <-c.forgot:
	case <-work.Done():
		return
	}
	// The logs get a while to leave, then they are given up: a filesystem that is down must not fill this disk.
	giveUp := time.After(10 * time.Minute)
	select {
	case <-c.shipped:
	case <-giveUp:
		c.log.Warn("logs were not shipped completely")
		r, _, _ := c.view()
		c.server.mu.Lock()
		c.server.lostLogs.add(r.Spec.Application)
		c.server.mu.Unlock()
	case <-work.Done():
		return
	}
	for _, u := range c.server.devices.meter.Of(c.id) {
		c.log.Info("use of a GPU", "gpu", u.UUID, "held", u.Held.Round(time.Second), "busy", u.Busy.Round(time.Second), "peak_memory", u.MemoryPeak, "joules", int64(u.Energy))
	}
	// Nothing of the container runs any more, and the resource manager knows how it ended. A supervisor that is still
	// there writes that down, or cannot because the disk is full: it ends when its directory is gone.
	linger := time.Now().Add(supervisorLinger)
	for pause := 50 * time.Millisecond; c.id.Valid(); {
		alive, _ := supervisor.Alive(c.dir)
		if !alive || time.Now().After(linger) {
			err := c.server.store.Delete(c.id)
			if err == nil {
				break
			}
			c.log.Warn("container's directory not removed, trying again", "error", err)
			pause = min(2*pause, time.Minute)
		}
		if !sleep(work, pause) {
			return
		}
	}
	c.server.mu.Lock()
	delete(c.server.containers, c.id)
	c.server.mu.Unlock()
	c.server.devices.meter.Forget(c.id)
	c.dropAppDir()
}

// forget is the resource manager's word that it has recorded the end.
func (c *container) forget() {
	if r, _, _ := c.view(); r.State != nodemanager.Complete {
		c.log.Warn("told to forget a container that has not ended")
		return
	}
	c.server.mu.Lock()
	c.server.forgotten.add(c.id)
	c.server.mu.Unlock()
	c.move(nodemanager.Forgotten, func(r *state.Record) { r.Forgotten = true })
}
