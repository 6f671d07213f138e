// Package program starts the parts of a process in the order in which they depend on each other and stops them in
// reverse, so that nobody loses what it stands on.
package program

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Part is something that runs: it works until its context is done, then drains and returns nil.
type Part struct {
	Name string
	Run  func(ctx context.Context) error
	// Ready, if not nil, is closed when the part can be used; later parts start only then.
	Ready <-chan struct{}
}

// Program runs parts. The zero value is ready to use.
type Program struct {
	// StopTimeout is how long one part may take to drain; default 3 s. A part that takes longer is left behind.
	StopTimeout time.Duration
	Logger      *slog.Logger

	parts []Part
}

// Add appends parts; each may rely on those before it.
func (p *Program) Add(parts ...Part) { p.parts = append(p.parts, parts...) }

type running struct {
	Part
	stop context.CancelFunc
	done chan struct{}
	err  error
}

// Run starts the parts one after the other, calls ready when the last one is, and works until ctx is done or a part
// ends by itself, which ends the program with that part's error. Then it stops the parts in reverse order.
func (p *Program) Run(ctx context.Context, ready func()) error {
	log := p.Logger
	if log == nil {
		log = slog.Default()
	}
	timeout := p.StopTimeout
	if timeout == 0 {
		timeout = 3 * time.Second
	}
	var started []*running
	ended := make(chan *running, len(p.parts)) // each part sends once
	err := func() error {
		for _, part := range p.parts {
			// A part's context is not a child of ctx: it is cancelled in its turn.
			partCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
			r := &running{Part: part, stop: stop, done: make(chan struct{})}
			started = append(started, r)
			go func() {
				r.err = r.Run(partCtx)
				close(r.done)
				ended <- r
			}()
			if part.Ready == nil {
				continue
			}
			select {
			case <-part.Ready:
			case r := <-ended:
				return endedEarly(r)
			case <-ctx.Done():
				return nil
			}
		}
		if ready != nil {
			ready()
		}
		select {
		case r := <-ended:
			return endedEarly(r)
		case <-ctx.Done():
			return nil
		}
	}()
	for i := len(started) - 1; i >= 0; i-- {
		r := started[i]
		r.stop()
		select {
		case <-r.done:
			if r.err != nil && !errors.Is(r.err, context.Canceled) && err == nil {
				err = r.named()
			}
		case <-time.After(timeout):
			log.Warn("part does not stop", "part", r.Name, "after", timeout)
		}
	}
	return err
}

func endedEarly(r *running) error {
	if r.err == nil {
		return fmt.Errorf("%s ended", r.Name)
	}
	return r.named()
}

// named is the part's error with its name in front, once.
func (r *running) named() error {
	if strings.HasPrefix(r.err.Error(), r.Name+": ") {
		return r.err
	}
	return fmt.Errorf("%s: %w", r.Name, r.err)
}
