package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/account"
	"github.com/gohops/hops/nodemanager/cgroup"
	"github.com/gohops/hops/nodemanager/durable"
	"github.com/gohops/hops/nodemanager/localizer"
	"github.com/gohops/hops/nodemanager/state"
	"github.com/gohops/hops/nodemanager/supervisor"
)

// adoptedAgain is when the credentials of an adopted container are refreshed, at the latest: not those of all at once.
const adoptedAgain = 3 * time.Second

// supervisorLinger is how long a supervisor of an ended container may still write.
const supervisorLinger = 2 * time.Second

// container is one container on this node, from its order until it is forgotten and its logs are away.
type container struct {
	server *Server
	id     nodemanager.ContainerID
	dir    string
	log    *slog.Logger
	client *supervisor.Client

	// unrecorded: there is no directory on disk for it, because the disk refused or because it never ran.
	unrecorded bool

	// stopped is closed by the first stop order.
	stopped  chan struct{}
	stopOnce sync.Once
	// gone is closed when the container is COMPLETE; forgot when the resource manager has recorded that.
	gone       chan struct{}
	goneOnce   sync.Once
	forgot     chan struct{}
	forgotOnce sync.Once
	// shipped is closed when the log files are in the filesystem completely, or go nowhere.
	shipped chan struct{}

	disk    int64             // that it may take, in bytes; of the goroutine that prepares it
	account *account.Account  // it runs as; nil: our own; of the same goroutine
	handed  supervisor.Handed // until its supervisor has it; of the same goroutine
	again   time.Duration     // when its credentials are refreshed; 0: never; of the same goroutine
	trees   []string          // of the localizer's cache that it uses; of the same goroutine

	mu     sync.Mutex
	record *state.Record
	// unsaved: the record on disk is older than record; saving: a goroutine writes it.
	unsaved, saving bool
	grace           time.Duration // of the stop order; negative: the spec's
	memory          int64
	stuck           []int
	// unshipped: the last shipment of logs has failed.
	unshipped bool
	// waits says what keeps the container from starting; empty: nothing.
	waits string
	// heeded: notice is what its file says.
	heeded bool
	notice string
}

func (s *Server) newContainer(r *state.Record) *container {
	dir := s.store.ContainerDir(r.Spec.ID)
	if !r.Spec.ID.Valid() {
		dir = filepath.Join(s.store.Dir(), "refused") // is never made
	}
	c := &container{
		server: s, id: r.Spec.ID, dir: dir, unrecorded: !r.Spec.ID.Valid(), record: r, log: s.log.With("container", r.Spec.ID, "app", r.Spec.Application),
		client: supervisor.NewClient(dir), grace: -1,
		stopped: make(chan struct{}), gone: make(chan struct{}), forgot: make(chan struct{}), shipped: make(chan struct{}),
	}
	if r.Stop != nil {
		c.stopOnce.Do(func() { close(c.stopped) })
	}
	if r.State == nodemanager.Complete {
		c.goneOnce.Do(func() { close(c.gone) })
	}
	if r.Forgotten {
		c.forgotOnce.Do(func() { close(c.forgot) })
	}
	return c
}

// view is a copy of the record for reports and pages.
func (c *container) view() (state.Record, int64, []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.record, c.memory, c.stuck
}

func (c *container) logsPath() string { return filepath.Join(c.dir, "logs") }

// move changes the state by an event, with what else changes, and has the record written. The record in memory is what counts
// while we live, so neither a full disk nor a slow one stops a container from ending, or anybody from reporting.
func (c *container) move(e nodemanager.Event, change func(*state.Record)) {
	c.mu.Lock()
	next, err := nodemanager.Next(c.record.State, e)
	if err != nil {
		c.mu.Unlock()
		c.log.Error("container out of step", "error", err)
		return
	}
	from := c.record.State
	c.record.State = next
	if change != nil {
		change(c.record)
	}
	c.saveLocked()
	exit := c.record.Exit
	c.mu.Unlock()
	if next == nodemanager.Complete {
		c.dropTrees()
	}
	if next != from {
		attrs := []any{"from", from, "to", next}
		if exit != nil {
			attrs = append(attrs, "status", int(exit.Status), "diagnostics", firstLine(exit.Diagnostics))
		}
		c.log.Info("container", attrs...)
		c.server.nudge()
	}
	if next == nodemanager.Complete {
		c.goneOnce.Do(func() { close(c.gone) })
	}
}

// saveLocked has the record written, and again until it is on disk as it is in memory.
func (c *container) saveLocked() {
	c.unsaved = true
	if c.unrecorded || c.saving {
		return
	}
	c.saving = true
	c.server.work.Go(func() {
		failed := false
		for {
			c.mu.Lock()
			if !c.unsaved || c.unrecorded {
				c.saving = false
				c.mu.Unlock()
				return
			}
			c.unsaved = false
			record := *c.record
			c.mu.Unlock()
			err := c.server.store.Put(&record)
			if err == nil {
				continue
			}
			if _, gone := os.Lstat(c.dir); errors.Is(gone, fs.ErrNotExist) {
				continue // the container is removed
			}
			if !failed {
				c.log.Error("container's record not written, trying again", "error", err)
				failed = true
			}
			c.mu.Lock()
			c.unsaved = true
			c.mu.Unlock()
			if !c.server.pause(time.Second) {
				c.mu.Lock()
				c.saving = false
				c.mu.Unlock()
				return
			}
		}
	})
}

func firstLine(s string) string {
	if before, _, ok := strings.Cut(s, "\n"); ok {
		return before
	}
	return s
}

// order asks the container to end. The first order counts.
func (c *container) order(stop *state.StopOrder, grace time.Duration) {
	c.mu.Lock()
	first := c.record.Stop == nil && c.record.State != nodemanager.Complete
	if first {
		c.record.Stop, c.grace = stop, grace
	}
	c.mu.Unlock()
	if first {
		c.move(nodemanager.Stop, nil)
		c.stopOnce.Do(func() { close(c.stopped) })
	}
}

// complete ends the container's life here. exit is nil for one that was stopped before it ran.
func (c *container) complete(exit *state.Exit) {
	r, _, _ := c.view()
	c.server.devices.hold(r.Spec.Resources.GPUs, time.Now())
	c.move(nodemanager.Gone, func(r *state.Record) {
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
	if c.isStopped() {
		c.complete(nil)
	} else if c.prepare(work) {
		c.attend(work)
	}
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
		c.find(work, &r)
	}
	c.after(work)
}

// find looks what has become of the container's processes and goes on from there.
func (c *container) find(work context.Context, r *state.Record) {
	if exit, err := supervisor.ReadExit(c.dir); err == nil && exit != nil {
		c.finish(exit)
		return
	}
	alive, err := supervisor.Alive(c.dir)
	if err != nil {
		c.log.Error("cannot tell whether the supervisor lives", "error", err)
	}
	_, launchErr := os.Lstat(filepath.Join(c.dir, "launch.json"))
	switch {
	case alive:
		c.log.Info("container adopted", "state", r.State)
		c.again = 1 + rand.N(adoptedAgain) // it is not known when it was
		if r.State == nodemanager.New || r.State == nodemanager.Localizing {
			if r.State == nodemanager.New {
				c.move(nodemanager.Admitted, nil)
			}
			c.move(nodemanager.Launched, func(r *state.Record) { r.Started = time.Now().UnixMilli() })
		}
		c.attend(work)
	case errors.Is(launchErr, fs.ErrNotExist) && r.Stop != nil:
		c.complete(nil)
	case errors.Is(launchErr, fs.ErrNotExist) && (r.State == nodemanager.New || r.State == nodemanager.Localizing):
		// Nothing of it ever ran.
		if r.State == nodemanager.New {
			c.move(nodemanager.Admitted, nil)
		}
		if c.prepare(work) {
			c.attend(work)
		}
	default:
		c.lost(work, r.Boot != c.server.boot)
	}
}

// prepare localizes and launches. It reports whether the container runs.
func (c *container) prepare(work context.Context) bool {
	ctx, cancel := context.WithCancel(work)
	defer cancel()
	go func() {
		select {
		case <-c.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	r, _, _ := c.view()
	c.disk = c.server.diskLimit() // before its inputs are on the disk, because they count
	err := c.admit(ctx, &r.Spec)
	if err == nil {
		err = c.localize(ctx, &r.Spec)
	}
	if err == nil {
		err = c.collect(ctx, &r.Spec)
	}
	if c.isStopped() {
		c.complete(nil)
		return false
	}
	if work.Err() != nil {
		return false // the next node manager localizes anew
	}
	if err != nil {
		status, what := nodemanager.Invalid, "could not be localized"
		if passes(err) {
			status = nodemanager.NoFilesystem
		}
		if _, refused := errors.AsType[*refusal](err); refused {
			what = "was refused"
		}
		c.complete(&state.Exit{Status: status, Diagnostics: fmt.Sprintf("Container %s %s: %v", c.id, what, err)})
		return false
	}
	launch, err := c.launch(&r.Spec)
	if err == nil && len(c.trees) > 0 {
		err = durable.ReplaceJSON(filepath.Join(c.dir, treesFile), c.trees, 0o600)
	}
	if err != nil {
		c.complete(&state.Exit{Status: nodemanager.Invalid, Diagnostics: fmt.Sprintf("Container %s could not be launched: %v", c.id, err)})
		return false
	}
	if !c.awaitLease(ctx) {
		if c.isStopped() {
			c.complete(nil)
		}
		return false
	}
	// From here on a supervisor may exist, so a stop goes through it; only the end of the process cuts this short.
	started, err := supervisor.Start(work, c.server.config.Supervisor, supervisorEnvironment(), c.dir, launch, c.handed)
	c.handed = supervisor.Handed{}
	switch {
	case work.Err() != nil:
		return false
	case err != nil:
		c.lostStart(work, err)
		return false
	case started.Exit != nil:
		c.finish(started.Exit)
		return false
	}
	if started.Degraded != "" {
		c.log.Warn("limits are polled", "reason", started.Degraded)
	}
	c.move(nodemanager.Launched, func(r *state.Record) { r.Started, r.Degraded = time.Now().UnixMilli(), started.Degraded })
	return true
}

// awaitLease waits until the node holds a lease, which it may have lost during a long localization, or not have yet after
// a restart. Nothing is ever started without one.
func (c *container) awaitLease(ctx context.Context) bool {
	for {
		_, moved := c.server.watchLease()
		if c.server.leaseHolds() {
			return true
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return false
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

// refusal is why a user has no containers here.
type refusal struct{ error }

// admit finds the account of the container's user and lets it come through the container's directory, which stays ours: nobody
// else can put anything in place of a file or a directory in it.
func (c *container) admit(ctx context.Context, spec *nodemanager.Spec) error {
	a, err := c.server.accountOf(ctx, spec.User)
	if err != nil {
		return &refusal{err}
	}
	if c.account = a; a == nil {
		return nil
	}
	return errors.Join(os.Chown(c.dir, -1, int(a.GID)), os.Chmod(c.dir, 0o710))
}

// put writes a file of the container's directory that only the container's user can read.
func (c *container) put(name string, data []byte) error {
	file := filepath.Join(c.dir, name)
	if err := durable.ReplaceFile(file, data, 0o600); err != nil || c.account == nil {
		return err
	}
	return errors.Join(os.Chmod(file, 0o400), os.Chown(file, int(c.account.UID), int(c.account.GID)))
}

// tellAuthorities writes by which authorities' certificates the container knows the cluster's servers.
func (c *container) tellAuthorities() error {
	roots := authority.MarshalRoots(c.server.config.Credentials.Member.Roots())
	return c.put("authority.pem", roots)
}

// localize fills the work directory and writes the token.
func (c *container) localize(ctx context.Context, spec *nodemanager.Spec) error {
	if spec.Token != "" {
		if err := c.put("token", []byte(spec.Token+"\n")); err != nil {
			return err
		}
		if err := c.tellAuthorities(); err != nil {
			return err
		}
	}
	var fsys Filesystem
	if slices.ContainsFunc(spec.Artifacts, func(a nodemanager.Artifact) bool { return a.URI != "" }) {
		var err error
		if fsys, err = c.server.fs(spec.User); err != nil {
			return err
		}
		defer c.server.releaseFS(spec.User)
	}
	dir, begin := filepath.Join(c.dir, "work"), time.Now()
	defer func() { c.server.localized.add(time.Since(begin)) }()
	return c.patiently(ctx, "filesystem", func() error {
		if err := emptyDir(dir); err != nil {
			return err
		}
		err := c.fill(ctx, fsys, spec, dir)
		if a := c.account; err == nil && a != nil {
			err = state.Give(dir, a.UID, a.GID)
		}
		return err
	})
}

// fill puts into a work directory what is in it before the command starts.
func (c *container) fill(ctx context.Context, fsys Filesystem, spec *nodemanager.Spec, dir string) error {
	loc := c.server.localizer
	if spec.Dialect != nodemanager.YARN {
		return loc.Localize(ctx, fsys, spec.User, dir, spec.Artifacts)
	}
	var err error
	if c.account != nil && c.server.protection.shared != "" {
		// Without a mount namespace the user could not reach the cache: copies, as YARN makes them on one disk per user.
		err = errors.Join(loc.Localize(ctx, fsys, spec.User, dir, spec.Artifacts), executable(dir))
	} else {
		var trees []string
		trees, err = loc.Link(ctx, fsys, localizer.Consumer{User: spec.User, Application: spec.Application}, dir, spec.Artifacts)
		c.hold(trees)
	}
	if err != nil {
		return err
	}
	return errors.Join(furnish(dir, spec), c.makeAppDir(spec))
}

// treesFile in a container's directory lists the trees of the cache that it is linked to.
const treesFile = "trees.json"

// hold notes which trees the container uses, also for a node manager that comes after us.
func (c *container) hold(trees []string) {
	c.dropTrees()
	c.trees = trees
}

// dropTrees is the end of the container's use of trees.
func (c *container) dropTrees() {
	c.server.localizer.Release(c.trees)
	c.trees = nil
}

// adoptTrees holds what the container has been linked to by an earlier node manager.
func (c *container) adoptTrees() {
	var trees []string
	err := durable.ReadJSON(filepath.Join(c.dir, treesFile), &trees)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.log.Error("it is not known which shared artifacts the container uses", "error", err)
	}
	c.server.localizer.Hold(trees)
	c.trees = trees
}

// patiently tries again what fails because somebody does not answer, for as long as the configured outage: that is not the container's
// fault.
func (c *container) patiently(ctx context.Context, somebody string, try func() error) error {
	begin := time.Now()
	for pause := 250 * time.Millisecond; ; pause = min(2*pause, 8*time.Second) {
		err := try()
		if err == nil || !passes(err) || time.Since(begin) > c.server.config.Outage || ctx.Err() != nil {
			c.setWaits("")
			return err
		}
		if c.setWaits(fmt.Sprintf("waits for the %s: %v", somebody, err)) {
			c.log.Warn("the container cannot start yet", "waits for", somebody, "error", err)
		}
		sleep(ctx, pause)
	}
}

// setWaits says what keeps the container from starting. It reports whether that is news.
func (c *container) setWaits(why string) bool {
	c.mu.Lock()
	before := c.waits
	c.waits = nodemanager.Shorten(why, 1024)
	news := c.waits != before
	c.mu.Unlock()
	if news {
		c.server.nudge()
	}
	return news && before == ""
}

func (c *container) waiting() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waits
}

// passes reports whether an error of the filesystem, or of the resource manager, may be gone in a moment.
func passes(err error) bool {
	if _, ok := errors.AsType[*notYet](err); ok {
		return true
	}
	for _, kind := range []*metadata.Kind{metadata.ErrStandby, metadata.ErrRetriable, metadata.ErrSafeMode, metadata.ErrNotReplicatedYet, metadata.ErrReplicaNotFound, metadata.ErrIO} {
		if errors.Is(err, kind) {
			return true
		}
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET)
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := state.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (c *container) launch(spec *nodemanager.Spec) (supervisor.Launch, error) {
	simulated := false
	var granted []nodemanager.GPU
	for _, d := range c.server.devices.current() {
		if slices.Contains(spec.Resources.GPUs, d.UUID) {
			granted = append(granted, d)
			simulated = simulated || d.Simulated
		}
	}
	grace := spec.Grace
	if grace == 0 {
		grace = nodemanager.DefaultGrace
	}
	logs := filepath.Join(c.dir, "logs")
	argv, env := spec.Argv, c.server.environment(spec, c, simulated)
	if spec.Dialect == nodemanager.YARN {
		own := map[string]string{}
		for _, name := range ownVariables {
			if value, ok := env[name]; ok {
				own[name] = value
			}
		}
		text, err := script(spec, own, c.dir)
		if err == nil {
			err = c.put(scriptFile, []byte(text))
		}
		if err != nil {
			return supervisor.Launch{}, err
		}
		argv = []string{"/bin/bash", filepath.Join(c.dir, scriptFile)}
	}
	l := supervisor.Launch{
		Container: c.id, Argv: argv, Env: pairs(env),
		Dir: filepath.Join(c.dir, "work"), Stdout: filepath.Join(logs, "stdout"), Stderr: filepath.Join(logs, "stderr"),
		Grace: grace, LogDir: logs, LogLimit: c.server.config.LogLimit, LogRate: c.server.config.LogRate,
		DiskDirs: []string{filepath.Join(c.dir, "work"), filepath.Join(c.dir, "tmp")}, DiskLimit: c.disk, Poll: c.server.config.Poll,
		Limits: cgroup.Limits{Memory: spec.Resources.Memory, VCores: spec.Resources.VCores, Pids: c.server.config.Pids},
		Group:  c.server.groups.Group(string(c.id)),
		Lease:  c.leaseOf(spec, c.server.currentLease()),
	}
	if shared := c.appDir(spec); shared != "" {
		l.DiskDirs = append(l.DiskDirs, shared)
	}
	if len(c.handed.Secrets) > 0 {
		l.SecretsDir = c.secretsDir()
	}
	if c.handed.Tokens != nil {
		l.CredentialsDir = c.credentialsDir()
	}
	return l, c.isolate(&l, spec, granted)
}

// leaseOf is what of the node's lease a container lives by.
func (c *container) leaseOf(spec *nodemanager.Spec, lease supervisor.Lease) supervisor.Lease {
	if !spec.Strict {
		return supervisor.Lease{}
	}
	return lease
}

// attend stays with a running container until it is gone, or work ends (then it goes on without us).
func (c *container) attend(work context.Context) {
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
				c.finish(exit)
			case work.Err() == nil:
				c.lost(work, false)
			}
			return
		case <-work.Done():
			return
		case <-stopped:
			stopped = nil
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
func (c *container) finish(exit *supervisor.Exit) {
	e := &state.Exit{Status: exit.Status, Diagnostics: exit.Diagnostics, PeakMemory: exit.PeakMemory}
	if exit.Status > 0 && !exit.Stopped {
		if tail := tailOf(c.logsPath(), "stderr", 2048); tail != "" {
			e.Diagnostics += "\nLast bytes of stderr:\n" + tail
		}
	}
	c.complete(e)
}

// lostStart ends a container whose supervisor could not be started, making sure that it did not start after all.
func (c *container) lostStart(work context.Context, cause error) {
	if alive, _ := supervisor.Alive(c.dir); alive {
		c.move(nodemanager.Launched, func(r *state.Record) { r.Started = time.Now().UnixMilli() })
		c.order(&state.StopOrder{Status: nodemanager.Aborted, Reason: cause.Error()}, 0)
		c.attend(work)
		return
	}
	c.killStray(work)
	c.complete(&state.Exit{Status: nodemanager.Aborted, Diagnostics: fmt.Sprintf("Container %s could not be launched: %v", c.id, cause)})
}

// lost ends a container whose supervisor is gone without a word: killed by force, or by a restart of the machine.
func (c *container) lost(work context.Context, rebooted bool) {
	text := fmt.Sprintf("Container %s was lost: its supervisor was killed", c.id)
	if rebooted {
		text = fmt.Sprintf("Container %s was lost: the machine was restarted", c.id)
	} else if !c.killStray(work) {
		return // not gone: the next node manager goes on trying
	}
	r, _, _ := c.view()
	if r.Stop != nil {
		c.complete(nil)
		return
	}
	c.complete(&state.Exit{Status: nodemanager.Aborted, Diagnostics: text})
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
	r, _, _ := c.view()
	c.dropAppDir(&r.Spec)
}

// forget is the resource manager's word that it has recorded the end.
func (c *container) forget() {
	c.mu.Lock()
	if c.record.State != nodemanager.Complete {
		c.mu.Unlock()
		c.log.Warn("told to forget a container that has not ended")
		return
	}
	if !c.record.Forgotten {
		c.record.Forgotten = true
		c.saveLocked()
	}
	c.mu.Unlock()
	c.server.mu.Lock()
	c.server.forgotten.add(c.id)
	c.server.mu.Unlock()
	c.forgotOnce.Do(func() { close(c.forgot) })
}
