package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/state"
	"github.com/gohops/hops/nodemanager/supervisor"
)

// adoptedAgain is when the credentials of an adopted container are refreshed, at the latest: not those of all at once.
const adoptedAgain = 3 * time.Second

// attend stays with a running container until it is gone, or work ends (then it goes on without us).
func (c *container) attend(work context.Context) nodemanager.Action {
	exits := make(chan *supervisor.Exit, 1)
	ctx, cancel := context.WithCancel(work)
	defer cancel()
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	waiting.Go(func() { exits <- c.awaitExit(ctx) })
	stopped := c.stopped
	r, _, _ := c.view()
	waiting.Go(func() { c.refresh(ctx, &r.Spec, c.again) })
	lease, moved := c.server.watchLease()
	if !r.Spec.Strict {
		moved = nil // it does not matter to this one
	}
	look := time.NewTicker(5 * time.Second)
	defer look.Stop()
	for {
		c.renew(ctx, c.leaseOf(&r.Spec, lease))
		select {
		case exit := <-exits:
			switch {
			case exit != nil:
				return c.finish(exit)
			case work.Err() == nil:
				return c.lost(work, false)
			}
			return nodemanager.Nothing
		case <-work.Done():
			return nodemanager.Nothing
		case <-stopped:
			stopped = nil
			c.sendStop(ctx)
		case <-c.hurry:
			c.sendStop(ctx)
		case <-moved:
			lease, moved = c.server.watchLease()
		case <-look.C:
			if c.isStopped() {
				c.sendStop(ctx) // in case the first one was lost; repeating it does no harm
			}
		}
	}
}

// renew passes the lease on, and takes home how much memory is used.
func (c *container) renew(ctx context.Context, lease supervisor.Lease) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var status *supervisor.Status
	var err error
	if lease.Term == 0 {
		status, err = c.client.Status(ctx)
	} else {
		status, err = c.client.Renew(ctx, lease)
	}
	if err != nil {
		if !errors.Is(err, supervisor.ErrGone) {
			c.log.Warn("lease not renewed", "error", err)
		}
		return
	}
	if n := c.sharers(); n != c.sharing {
		if err := c.client.Share(ctx, n); err != nil && !errors.Is(err, supervisor.ErrGone) {
			c.log.Warn("the container is not told how many share its application's directory", "error", err)
		}
		c.sharing = n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memory, c.stuck = status.Memory, status.Stuck
}

func (c *container) sendStop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, _, _ := c.view()
	c.mu.Lock()
	grace := c.grace
	c.mu.Unlock()
	err := c.client.Stop(ctx, supervisor.StopRequest{
		Status: r.Stop.Status, Reason: nodemanager.Shorten(r.Stop.Reason, nodemanager.MaxDiagnostics), Grace: grace,
	})
	if err != nil && !errors.Is(err, supervisor.ErrGone) {
		c.log.Warn("stop not delivered, trying again", "error", err)
	}
}

// awaitExit waits until the supervisor tells how the container ended; nil when it is gone without telling.
func (c *container) awaitExit(ctx context.Context) *supervisor.Exit {
	for ctx.Err() == nil {
		exit, err := c.client.Wait(ctx)
		if err == nil {
			return exit
		}
		alive, aliveErr := supervisor.Alive(c.dir)
		if !alive && aliveErr == nil {
			exit, err := supervisor.ReadExit(c.dir)
			if err != nil {
				c.log.Error("the exit status cannot be read", "error", err)
			}
			return exit
		}
		sleep(ctx, 50*time.Millisecond) // it is just starting or just ending
	}
	return nil
}

// finish records how a container ended. For one that failed by itself the end of its stderr helps.
func (c *container) finish(exit *supervisor.Exit) nodemanager.Action {
	e := &state.Exit{Status: exit.Status, Diagnostics: exit.Diagnostics, PeakMemory: exit.PeakMemory}
	if exit.Status > 0 && !exit.Stopped {
		if tail := tailOf(c.logsPath(), "stderr", 2048); tail != "" {
			e.Diagnostics += "\nLast bytes of stderr:\n" + tail
		}
	}
	return c.complete(e)
}

// lostStart ends a container whose supervisor could not be started, making sure that it did not start after all.
func (c *container) lostStart(work context.Context, cause error) nodemanager.Action {
	if alive, _ := supervisor.Alive(c.dir); alive {
		do := c.move(nodemanager.Launched, func(r *state.Record) { r.Started = time.Now().UnixMilli() })
		c.order(&state.StopOrder{Status: nodemanager.Aborted, Reason: cause.Error()}, 0)
		return do
	}
	c.killStray(work)
	return c.complete(&state.Exit{Status: nodemanager.Aborted, Diagnostics: fmt.Sprintf("Container %s could not be launched: %v", c.id, cause)})
}

// lost ends a container whose supervisor is gone without a word: killed by force, or by a restart of the machine.
func (c *container) lost(work context.Context, rebooted bool) nodemanager.Action {
	text := fmt.Sprintf("Container %s was lost: its supervisor was killed", c.id)
	if rebooted {
		text = fmt.Sprintf("Container %s was lost: the machine was restarted", c.id)
	} else if !c.killStray(work) {
		return nodemanager.Nothing // not gone: the next node manager goes on trying
	}
	r, _, _ := c.view()
	if r.Stop != nil {
		return c.complete(nil)
	}
	return c.complete(&state.Exit{Status: nodemanager.Aborted, Diagnostics: text})
}

func (c *container) killStray(work context.Context) bool {
	for {
		ctx, cancel := context.WithTimeout(work, 10*time.Second)
		err := supervisor.KillStray(ctx, c.server.groups.Group(string(c.id)), mark(c.dir))
		if err == nil {
			err = c.client.AwaitEnd(ctx)
		}
		cancel()
		if err == nil {
			return true
		}
		if work.Err() != nil {
			return false
		}
		c.log.Error("processes of a lost container do not end", "error", err)
	}
}
