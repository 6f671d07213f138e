package supervisor

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/nodemanager"
)

// watch lives with the running command until no process of it is left, and says how it ended.
func (s *supervisor) watch() *Exit {
	var main *syscall.WaitStatus
	// Renewals wake this loop often; they must not put off the looks, which therefore have a ticker of their own.
	look := time.NewTicker(s.launch.Poll)
	defer look.Stop()
	deadline := time.NewTimer(s.untilDeadline())
	defer deadline.Stop()
	gone := s.treeGone
	for {
		select {
		case status := <-s.mainDone:
			main = &status
			s.inspectAtEnd(status)
		case <-gone:
			if main == nil { // both were ready
				status := <-s.mainDone
				main = &status
				s.inspectAtEnd(status)
			}
			return s.conclude(*main)
		case <-s.wake:
		case <-deadline.C:
		case <-look.C:
			if main == nil {
				s.inspect()
			}
		}
		s.checkLease()
		s.checkDirectory()
		if c := s.currentCause(); (c != nil && Now() >= c.killAt) || (c == nil && main != nil) {
			s.destroy()
		}
		deadline.Reset(s.untilDeadline())
	}
}

// untilDeadline is how long to sleep before a deadline can pass. It is never long, because the timer does not go on while
// the machine is suspended, and the lease does.
func (s *supervisor) untilDeadline() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := 500 * time.Millisecond
	until := func(t Instant) { d = max(0, min(d, t.Sub(Now()))) }
	switch {
	case s.cause != nil:
		until(s.cause.killAt)
	case s.lease.Term != 0:
		until(s.lease.Term)
	}
	return d + time.Millisecond
}

func (s *supervisor) currentCause() *cause {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// end sets the cause unless there is one, and asks the tree to end.
func (s *supervisor) end(c cause) {
	s.mu.Lock()
	if s.cause != nil {
		s.cause.killAt = min(s.cause.killAt, c.killAt)
		s.mu.Unlock()
		return
	}
	s.cause = &c
	main := s.main
	s.mu.Unlock()
	s.log.Info("ending container", "container", s.launch.Container, "status", int(c.status), "reason", c.diagnostics)
	if main != 0 && Now() < c.killAt {
		for _, p := range descendants(unix.Getpid()) {
			p.signal(unix.SIGTERM)
			p.signal(unix.SIGCONT) // a stopped process handles SIGTERM only when it goes on
		}
	}
	s.poke()
}

func (s *supervisor) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *supervisor) stop(r StopRequest) {
	grace := r.Grace
	if grace < 0 {
		grace = s.launch.Grace
	}
	grace = min(max(0, grace), nodemanager.MaxGrace)
	reason := r.Reason
	if reason == "" {
		reason = "stopped on request"
	}
	s.end(cause{status: r.Status, diagnostics: reason, killAt: Now().Add(grace), ordered: true})
}

func (s *supervisor) checkLease() {
	s.mu.Lock()
	lease, over := s.lease, s.lease.Term != 0 && Now() >= s.lease.Term
	if over && s.cause != nil {
		s.cause.killAt = min(s.cause.killAt, lease.Kill)
		over = false
	}
	s.mu.Unlock()
	if over {
		s.end(cause{
			status:      nodemanager.Aborted,
			diagnostics: fmt.Sprintf("Container %s ended: the lease of its node was not renewed", s.launch.Container),
			killAt:      lease.Kill,
		})
	}
}

// checkDirectory ends a container whose directory was removed: no node manager can ever find it again, and its devices would
// be held for as long as its command likes.
func (s *supervisor) checkDirectory() {
	var st unix.Stat_t
	if s.currentCause() != nil || unix.Stat(".", &st) != nil || st.Nlink > 0 {
		return
	}
	s.end(cause{
		status: nodemanager.Aborted, killAt: Now().Add(s.launch.Grace),
		diagnostics: fmt.Sprintf("Container %s ended: its directory was removed", s.launch.Container),
	})
}

// renew moves the deadlines. An earlier lease than the present one comes from a late message and is ignored.
func (s *supervisor) renew(l Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.Term > s.lease.Term || s.lease.Term == 0 {
		s.lease = l
	}
}

// inspect looks at memory, and at the number of processes and threads.
func (s *supervisor) inspect() {
	if s.currentCause() != nil {
		return
	}
	if most := s.launch.Limits.Pids; most > 0 && !s.group.PidsLimited {
		have := 0
		for _, p := range descendants(unix.Getpid()) {
			have += p.threads
		}
		if have > most {
			s.end(cause{
				status: nodemanager.Killed, killAt: Now(),
				diagnostics: fmt.Sprintf("Container [pid=%d,containerID=%s] has %d processes and threads, the most are %d (nodemanager.pids). Killing container.",
					s.mainPid(), s.launch.Container, have, most),
			})
			return
		}
	}
	limit := s.launch.Limits.Memory
	if now, peak, ok := s.group.Memory(); ok {
		s.observe(now, peak)
		if s.group.OOMKills() > s.oomBase {
			s.exceeded(max(peak, now), limit, 0)
			return
		}
	} else {
		tree := descendants(unix.Getpid())
		used := resident(tree)
		if limit > 0 && used > limit {
			used = proportional(tree)
		}
		s.observe(used, used)
		if limit > 0 && used > limit {
			s.exceeded(used, limit, virtual(tree))
			return
		}
	}
}

// inspectAtEnd finds out what happened between two looks: whether the command was killed for its memory, or wrote too much
// and ended. Whether a limit was kept must not depend on when somebody looked.
func (s *supervisor) inspectAtEnd(status syscall.WaitStatus) {
	s.inspectLogs()
	s.mu.Lock()
	s.refused = s.group.ForksRefused()
	s.mu.Unlock()
	now, peak, ok := s.group.Memory()
	if !ok {
		return
	}
	s.observe(now, peak)
	if s.currentCause() == nil && (status.Signaled() || status.ExitStatus() != 0) && s.group.OOMKills() > s.oomBase {
		s.exceeded(max(now, peak), s.launch.Limits.Memory, 0)
	}
}

func (s *supervisor) observe(now, peak int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory, s.peak = now, max(s.peak, peak)
}

// exceeded ends the container for its memory, in the words of YARN's ContainersMonitorImpl.
func (s *supervisor) exceeded(used, limit, vmem int64) {
	text := fmt.Sprintf("Container [pid=%d,containerID=%s] is running %dB beyond the 'PHYSICAL' memory limit. "+
		"Current usage: %s of %s physical memory used", s.mainPid(), s.launch.Container, max(0, used-limit),
		nodemanager.ByteSize(used), nodemanager.ByteSize(limit))
	if vmem > 0 {
		text += fmt.Sprintf("; %s virtual memory used", nodemanager.ByteSize(vmem))
	}
	s.end(cause{status: nodemanager.KilledExceededPMem, killAt: Now(), diagnostics: text + ". Killing container."})
}

func (s *supervisor) mainPid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.main
}

// destroy kills until nothing is left. It never gives up: a GPU whose process hangs in the driver is not free.
func (s *supervisor) destroy() {
	pause := 5 * time.Millisecond
	begin := time.Now()
	for {
		if err := s.group.Kill(); err != nil {
			s.log.Warn("kill control group", "container", s.launch.Container, "error", err)
		}
		left := killAll(func() []process { return descendants(unix.Getpid()) })
		select {
		case <-s.treeGone:
			s.setStuck(nil)
			return
		case <-time.After(pause):
		}
		if pause < 500*time.Millisecond {
			pause *= 2
		}
		if time.Since(begin) > 5*time.Second {
			s.setStuck(left)
		}
	}
}

// maxStuck bounds the processes that a status names: it must fit a line.
const maxStuck = 100

func (s *supervisor) setStuck(left []process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(left) > 0 && len(s.stuck) == 0 {
		s.log.Error("processes do not end although killed", "container", s.launch.Container, "count", len(left))
	}
	s.stuck = nil
	for _, p := range left[:min(len(left), maxStuck)] {
		s.stuck = append(s.stuck, p.pid)
	}
}

// conclude makes the record of a tree that is gone.
func (s *supervisor) conclude(main syscall.WaitStatus) *Exit {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &Exit{
		Container: s.launch.Container, Started: s.startedAt.UnixMilli(), Finished: time.Now().UnixMilli(), PeakMemory: s.peak,
	}
	own := nodemanager.ExitStatus(main.ExitStatus())
	said := fmt.Sprintf("The command exited with a non-zero exit code %d", own)
	if main.Signaled() {
		own = nodemanager.OfSignal(int(main.Signal()))
		said = fmt.Sprintf("The command was ended by signal %d (%v), exit code %d", main.Signal(), main.Signal(), own)
	}
	switch {
	case s.cause == nil:
		e.Status = own
		if own != nodemanager.Success {
			e.Diagnostics = said
		}
	case s.cause.status != 0:
		e.Status, e.Stopped, e.Diagnostics = s.cause.status, s.cause.ordered, s.cause.diagnostics
	default:
		e.Status, e.Stopped, e.Diagnostics = own, s.cause.ordered, s.cause.diagnostics
	}
	if e.Status != nodemanager.Success && s.refused > 0 {
		e.Diagnostics += fmt.Sprintf(". It had as many processes and threads as it may, %d (nodemanager.pids): %d more were refused", s.launch.Limits.Pids, s.refused)
	}
	return e
}
