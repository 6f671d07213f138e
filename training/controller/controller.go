// Package controller runs one experiment: it is the application master that gives trials to executors, hears what they
// report, decides which go on, and writes everything down so that no crash loses a metric, a trial or a decision.
//
//	executors ──HTTP/JSON──► server ──► propose ──► experiment (pure state machine)
//	people    ──proxy─────►    │           │             │ entries
//	                           │           ▼             ▼
//	resource manager ◄─gRPC── fleet     journal.jsonl (flushed before any answer) ──► snapshot
//	                                                      │ effects
//	                                                      ▼
//	                                       files · hub (server-sent events) · fleet
//
// One goroutine, the loop, owns the experiment: it takes proposals one after the other, writes the entries of a batch
// to the journal in one flush, and only then answers. See DESIGN.md.
package controller

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	rmpb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
)

// Env is where a controller runs; FromEnvironment makes it from a container's environment.
type Env struct {
	// Application, Attempt and User are those of the container.
	Application string
	Attempt     int
	User        string
	// Job is the content of job.json.
	Job []byte
	// FS is the cluster's filesystem, as User.
	FS FS
	// RM is the resource manager, with the container's token.
	RM ResourceManager
	// Listener is the HTTP server's; Run closes it.
	Listener net.Listener
	// Certificate is by what executors and the resource manager know the server, in TLS; nil: it is for this machine alone, and plain.
	// The Door has the same.
	Certificate *authority.Pinned
	// Door knows and bounds the connections; nil: one of the running user.
	Door *security.Door
	// Caller says which user sends a request that comes through the resource manager's proxy. nil: users are not served.
	Caller func(*http.Request) (metadata.Caller, error)
	// Ended asks whether the application has reached its end without this controller, and why: somebody killed it. It is
	// asked when Run is told to stop; only then may the experiment be written down as over. nil: not known.
	Ended func(ctx context.Context) (reason string, ended bool)
	// SDK is the Python package as a zip, with its SHA-256. nil: executors have it already.
	SDK func() (data []byte, sha256 string)
	// WorkDir is where files of this process may be; "": the system's temporary directory.
	WorkDir string
	// Python is the interpreter of the executors. Default "python3".
	Python string
	// Times may be left zero.
	Times Times
	// Logger; nil means slog.Default().
	Logger *slog.Logger

	now func() time.Time // for tests; nil: time.Now
}

// url is where the server is.
func (e *Env) url() string {
	if e.Certificate != nil {
		return "https://" + e.Listener.Addr().String()
	}
	return "http://" + e.Listener.Addr().String()
}

// certificate is what the server shows, in DER; nil: it is plain.
func (e *Env) certificate() []byte {
	if e.Certificate == nil {
		return nil
	}
	return e.Certificate.DER()
}

// hasHost reports whether the server is called by a name.
func (e *Env) hasHost(name string) bool {
	host, _, _ := net.SplitHostPort(e.Listener.Addr().String())
	return name == host
}

// Times are the controller's time limits. Zero fields are the defaults.
type Times struct {
	// Lease: an executor that is silent for so long is lost. Default 10s, at most 4s where trials are gangs. Shorter finds dead
	// executors sooner and takes slow ones for dead.
	Lease time.Duration
	// Report is how often executors report. Default 1s.
	Report time.Duration
	// Grace is what executors have to re-attach after a restart of the controller. Default 30s, at least Lease.
	Grace time.Duration
	// Start is what a container has until its executor registers. Default 2m.
	Start time.Duration
	// Grant is how long a request with an unknown token waits for the grant that brings it: an executor may be faster
	// than the event that announces its container. Default 3s.
	Grant time.Duration
	// Drain is what an executor that is told to end has until its container is released, to write the files of its last
	// trials. Default 15s.
	Drain time.Duration
	// Amnesty: an excluded node is used again when no other gives a container for so long, or at once if the resource
	// manager says that no other could. Default 10s.
	Amnesty time.Duration
	// Tick is how often limits are looked at. Default 100ms.
	Tick time.Duration
	// Snapshot is the least number of journal entries between snapshots. There are more when the journal has not grown by
	// snapshotRatio times the size of the last snapshot: what snapshots cost in all stays in proportion to the journal,
	// however large the state. Default 2000.
	Snapshot int

	brain brainTimes
}

// gangLease is the lease of executors whose trials are gangs: while one of them is dead all others wait for it.
const gangLease = 4 * time.Second

func (t *Times) setDefaults() {
	def := func(to *time.Duration, v time.Duration) {
		if *to == 0 {
			*to = v
		}
	}
	def(&t.Lease, 10*time.Second)
	def(&t.Report, time.Second)
	def(&t.Grace, max(30*time.Second, t.Lease))
	def(&t.Start, 2*time.Minute)
	def(&t.Grant, 3*time.Second)
	def(&t.Drain, 15*time.Second)
	def(&t.Amnesty, 10*time.Second)
	def(&t.Tick, 100*time.Millisecond)
	def(&t.brain.slow, 5*time.Minute)
	def(&t.brain.quick, 10*time.Minute)
	def(&t.brain.pause, time.Second)
	if t.Snapshot == 0 {
		t.Snapshot = 2000
	}
}

// Names in the experiment's directory and in the executors' work directory.
const (
	journalName  = "journal.jsonl"
	snapshotName = ".snapshot.json"
	logName      = "controller.log"
	resultName   = "result.json"
	summaryName  = ".summary.json"
	sdkName      = "hops-sdk.zip"
	codeDir      = "code"
)

// job is what the controller reads of job.json; the resource manager has checked the rest.
type job struct {
	ID         string              `json:"id"`
	Name       string              `json:"name"`
	Env        map[string]string   `json:"env"`
	Artifacts  []training.Artifact `json:"artifacts"`
	Fencing    string              `json:"fencing"`
	Experiment json.RawMessage     `json:"experiment"`
}

// controller is a running experiment.
type controller struct {
	env   *Env
	times Times
	log   *slog.Logger
	id    string
	dir   string

	ready     atomic.Bool
	proposals chan *proposal
	fleet     fleet
	hub       *hub
	files     *files
	journal   *journal
	brain     *brain // nil: the search needs none

	shadow     *shadow
	overOnce   sync.Once
	over       chan struct{} // closed when the experiment is over and that is in the journal
	lastSeen   map[seat]training.Millis
	idle       map[seat]time.Duration // for how long processes had done nothing when they were last seen
	began      training.Millis        // the loop
	graceUntil training.Millis        // for executors that this attempt has not heard of yet
	pausedTill training.Millis        // for all, after a pause of this process
	lastTick   time.Time
	ahead      time.Duration   // how much the experiment's time is ahead of this machine's clock
	asked      training.Millis // by a client that suggests
	wakeMu     sync.Mutex
	wake       chan struct{} // closed when executors that wait should ask again
	mu         sync.RWMutex  // guards x: the loop writes, anybody reads
	x          *experiment.Experiment
}

// proposal is a request on its way through the loop.
type proposal struct {
	run  func(*experiment.Experiment, training.Millis) error
	done chan error // capacity 1
}

// Run runs the experiment of env to its end and tells the resource manager how it ended. It returns nil when the
// experiment is over, whatever its result; an error when this attempt cannot go on, so that another may. If ctx ends,
// the journal is closed and nil is returned: the next attempt goes on from it, or, if the application was killed, the
// experiment is written down as KILLED.
func Run(ctx context.Context, env Env) error {
	c := &controller{
		env: &env, times: env.Times, log: env.Logger, proposals: make(chan *proposal, 64),
		over: make(chan struct{}), lastSeen: map[seat]training.Millis{}, idle: map[seat]time.Duration{}, wake: make(chan struct{}),
	}
	c.times.setDefaults()
	if c.log == nil {
		c.log = slog.Default()
	}
	c.log = c.log.With("app", env.Application, "attempt", env.Attempt)
	if env.Door == nil {
		env.Door = security.NewDoor(security.Config{Pinned: env.Certificate, Logger: c.log})
	}
	if env.now == nil {
		start := time.Now()
		env.now = func() time.Time { return start.Add(time.Since(start)) } // it goes on evenly when somebody sets the clock
	}
	if env.Python == "" {
		env.Python = "python3"
	}
	c.fleet = fleet{rm: env.RM, log: c.log, times: c.times, app: env.Application, try: env.Attempt, experiment: c}
	c.fleet.init()
	inner, stop := context.WithCancel(ctx)
	defer stop()
	g, inner2 := errgroup.WithContext(inner)
	g.Go(func() error {
		return env.Door.ServeHTTP(inner2, env.Listener, security.HTTP{Doorway: security.Doorway{Name: "controller HTTP"}, Handler: c.handler(), Hosts: env.hasHost, Interrupt: true, Logger: c.log})
	})
	g.Go(func() error {
		defer stop()
		return c.run(inner2)
	})
	err := g.Wait()
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

// run is the experiment's life.
func (c *controller) run(ctx context.Context) error {
	env := c.env
	request := &rmpb.RegisterRequest{ApplicationId: env.Application, Attempt: int32(env.Attempt), HttpAddress: env.Listener.Addr().String()}
	if env.Certificate != nil {
		pin := env.Certificate.Fingerprint()
		request.HttpCertificate = pin[:]
	}
	registration, err := env.RM.Register(ctx, request)
	if err != nil {
		return fmt.Errorf("register with the resource manager: %w", err)
	}
	c.fleet.epoch = registration.GetEpoch()
	var containers []string
	for _, k := range registration.GetContainers() {
		c.fleet.add(k, 0)
		containers = append(containers, k.GetContainerId())
	}
	spec, doc, err := c.specification()
	if err != nil {
		c.log.Error("the experiment cannot run", "err", err)
		return c.finish(ctx, protocol.ExperimentFailed, "the experiment cannot run: "+err.Error())
	}
	if err := c.open(ctx, spec, containers); err != nil {
		if not, ok := errors.AsType[*cannotResume](err); ok {
			return c.finish(ctx, protocol.ExperimentFailed, not.Error())
		}
		return fmt.Errorf("experiment %s: %w", c.id, err)
	}
	spec = c.x.Spec // the journal's: another one, if it was resumed
	c.fleet.describe(spec)
	if spec.Distributed != nil {
		c.times.Lease = min(c.times.Lease, gangLease)
	}
	if !c.x.Over() {
		if c.fleet.launch, err = c.launch(ctx, spec, doc); err != nil {
			return err
		}
	}

	g, group := errgroup.WithContext(ctx)
	work, stop := context.WithCancel(group)
	defer stop()
	g.Go(func() error { return c.files.run(work) })
	g.Go(func() error { return c.shadow.run(work) })
	g.Go(func() error { return c.loop(work) })
	if c.brain != nil {
		g.Go(func() error { return c.brain.run(work) })
	}
	g.Go(func() error { return c.fleet.watch(work) })
	g.Go(func() error { return c.fleet.run(work) })
	g.Go(func() error {
		defer stop()
		select {
		case <-c.over:
			return c.conclude(work)
		case <-work.Done():
			return nil
		}
	})
	c.ready.Store(true)
	err = g.Wait()
	if (ctx.Err() != nil || errors.Is(err, errStaleAttempt)) && !c.x.Over() && c.epilogue() {
		err = nil
	}
	return errors.Join(err, c.journal.close())
}

// epiloguePatience bounds epilogue; it lies within the time between SIGTERM and SIGKILL.
const epiloguePatience = 4 * time.Second

// epilogue writes down the end of an experiment whose application was killed, so that what it found can be looked at.
// It runs when nothing else does any more but the server, which may still be asked for the state. It reports whether the
// application has ended; if not, another attempt goes on.
func (c *controller) epilogue() bool {
	if c.env.Ended == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), epiloguePatience)
	defer cancel()
	reason, ended := c.env.Ended(ctx)
	if !ended {
		return false
	}
	now := training.MillisOf(c.now())
	record := func(e *experiment.Entry) {
		if _, err := c.x.Propose(now, e); err != nil {
			c.log.Error("ending the experiment", "err", err)
		}
	}
	c.mu.Lock()
	if !c.x.Closing() {
		record(&experiment.Entry{Stopped: &experiment.Stopped{User: "the resource manager", Reason: reason}})
	}
	for _, w := range c.x.Executors {
		if w.Alive() && !c.x.Over() {
			record(&experiment.Entry{Lost: &experiment.Lost{Executor: w.ID, Reason: "the application has ended"}})
		}
	}
	fx := c.x.Take()
	c.mu.Unlock()
	lines, err := encodeLines(fx.Entries)
	if err == nil {
		err = c.journal.append(ctx, lines)
	}
	if err != nil {
		c.log.Error("ending the experiment", "err", err)
		return true
	}
	story := fx.Lines
	fx.Lines = nil
	c.files.add(fx)
	c.files.work(ctx, c.files.dirty, nil)
	if w, err := c.files.writeLog(ctx, nil, path.Join(c.dir, logName), story); err == nil {
		_ = w.Close() // its lines are in the journal too
	}
	if err := c.files.finish(ctx); err != nil {
		c.log.Error("writing the result", "err", err)
	}
	return true
}

// specification reads the job and checks the experiment in it.
func (c *controller) specification() (*training.Spec, *job, error) {
	var doc job
	if err := json.Unmarshal(c.env.Job, &doc); err != nil {
		return nil, nil, fmt.Errorf("job.json: %w", err)
	}
	if len(doc.Experiment) == 0 {
		return nil, nil, errors.New(`job.json has no "experiment"`)
	}
	spec, err := training.ParseSpec(doc.Experiment, c.env.User)
	if err != nil {
		return nil, nil, err
	}
	if spec.Name == "no-name" && doc.Name != "" {
		spec.Name = doc.Name
	}
	if spec.Seed == nil {
		spec.Seed = new(uint64(rand.Uint32())) // the entry created records it
	}
	c.id = cmp.Or(spec.Resume, c.env.Application+"_1")
	c.dir = path.Join("/Projects", spec.Project, "Experiments", c.id)
	return spec, &doc, nil
}

// cannotResume: the experiment that is to be gone on with is not there, or over for good. Trying again would not help.
type cannotResume struct{ why string }

func (c *cannotResume) Error() string { return "the experiment cannot be resumed: " + c.why }

// open makes the experiment's directory and journal, or takes over those of an earlier attempt.
func (c *controller) open(ctx context.Context, spec *training.Spec, containers []string) error {
	f := c.env.FS
	if spec.Resume != "" {
		if _, err := f.Stat(ctx, path.Join(c.dir, journalName)); missing(err) {
			return &cannotResume{fmt.Sprintf("there is no journal in %s", c.dir)}
		} else if err != nil {
			return err
		}
	}
	if err := f.Mkdirs(ctx, c.dir); err != nil {
		return fmt.Errorf("make the experiment's directory (may %s write in /Projects/%s?): %w", c.env.User, spec.Project, err)
	}
	name := path.Join(c.dir, journalName)
	x, offset := experiment.New(), int64(0)
	var redo experiment.Effects
	_, err := f.Stat(ctx, name)
	switch {
	case missing(err):
		if c.journal, err = createJournal(ctx, f, name, c.log); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if data, err := readFile(ctx, f, path.Join(c.dir, snapshotName)); err == nil {
			if y, at, err := experiment.Restore(data); err == nil {
				if !y.Steered() { // else who steers is to be told everything
					x, offset = y, at
				}
			} else {
				c.log.Warn("the snapshot is not used, the journal is read from its beginning", "err", err)
			}
		}
		from := x.N
		c.journal, err = resumeJournal(ctx, f, name, offset, x.N, c.log, x.Apply)
		if err != nil {
			return err
		}
		redo = x.Take()
		redo.Lines = nil // they were written, or are not missed
		c.log.Info("took over the journal", "entries", x.N, "read", x.N-from, "state", x.State)
	}
	if ahead := x.Now.Time().Sub(c.env.now()); ahead > 0 {
		c.ahead = ahead
		c.log.Warn("the journal is ahead of this machine's clock, and its time goes on from there", "by", ahead)
	}
	c.x = x
	c.hub = newHub(x.N)
	c.shadow = newShadow(x, f, path.Join(c.dir, snapshotName), c.times.Snapshot, c.log)
	c.files = newFiles(f, c.dir, c.log, c.view)
	redo.Events = nil
	c.files.add(redo)
	steer := redo.Steer

	now := training.MillisOf(c.now())
	record := func(e *experiment.Entry) error {
		_, err := x.Propose(now, e)
		return err
	}
	if x.N == 0 {
		if err := record(&experiment.Entry{Created: &experiment.Created{Version: experiment.Version, ID: c.id, Application: c.env.Application, User: c.env.User, Directory: c.dir, Spec: spec}}); err != nil {
			return err
		}
	}
	if spec.Resume != "" && x.Application != c.env.Application {
		if why := x.NotResumable(); why != "" {
			return errors.Join(&cannotResume{why}, c.journal.close())
		}
		for _, name := range []string{resultName, summaryName} {
			if err := f.Delete(ctx, path.Join(c.dir, name)); err != nil {
				return err
			}
		}
		if err := record(&experiment.Entry{Resumed: &experiment.Resumed{Application: c.env.Application, User: c.env.User}}); err != nil {
			return err
		}
	}
	if !x.Over() {
		if err := record(&experiment.Entry{Started: &experiment.Started{Attempt: c.env.Attempt, Containers: containers}}); err != nil {
			return err
		}
	}
	fx := x.Take()
	lines, err := encodeLines(fx.Entries)
	if err != nil {
		return err
	}
	if err := c.journal.append(ctx, lines); err != nil {
		return err
	}
	c.shadow.add(lines, c.journal.size)
	c.hub.publish(fx.Events)
	c.files.add(fx)
	c.fleet.giveBack(fx.Release)
	if x.Steered() && !x.Over() {
		c.brain = newBrain(c)
		c.brain.feed(append(steer, fx.Steer...))
	}
	if x.Over() {
		c.overOnce.Do(func() { close(c.over) })
	}
	return c.announce(ctx, x.Spec, now)
}

// announce writes where the controller is and what it runs.
func (c *controller) announce(ctx context.Context, spec *training.Spec, now training.Millis) error {
	where, err := json.Marshal(protocol.Whereabouts{URL: c.env.url(), Certificate: c.env.certificate(), Attempt: c.env.Attempt, Since: now, Application: c.env.Application})
	if err != nil {
		return err
	}
	if err := writeFile(ctx, c.env.FS, path.Join(c.dir, protocol.WhereaboutsName), where); err != nil {
		return err
	}
	kind := spec.Kind
	doc, err := json.MarshalIndent(map[string]any{
		"id": c.id, "application": c.env.Application, "user": c.env.User, "name": spec.Name, "project": spec.Project, "experimentType": kind,
		"description": spec.Description, "function": spec.Entry, "direction": spec.Direction, "optimizationKey": spec.Metric,
		"created": c.x.Created, "directory": c.dir, "spec": spec,
	}, "", " ")
	if err != nil {
		return err
	}
	return writeFile(ctx, c.env.FS, path.Join(c.dir, "experiment.json"), doc)
}

// launch says what runs in the executors' containers, and brings the Python package there.
func (c *controller) launch(ctx context.Context, spec *training.Spec, doc *job) (*rmpb.Launch, error) {
	l := &rmpb.Launch{
		Argv: []string{spec.Interpreter(c.env.Python), "-m", "hops.executor"},
		Env: map[string]string{
			"HOPS_CONTROLLER": c.env.url(), "HOPS_EXPERIMENT_DIR": c.dir, "ML_ID": c.id, "PYTHONUNBUFFERED": "1",
		},
		GraceMs: 5000,
	}
	if der := c.env.certificate(); der != nil {
		l.Env["HOPS_CONTROLLER_CERTIFICATE"] = base64.StdEncoding.EncodeToString(der)
	}
	if doc.Fencing == "strict" {
		l.Fencing = rmpb.Fencing_FENCING_STRICT
	}
	add := func(a training.Artifact) {
		kind := a.Kind
		if kind == "" {
			kind = "file"
		}
		l.Artifacts = append(l.Artifacts, &rmpb.Artifact{Name: a.Name, Uri: a.URI, Kind: kind, Sha256: a.SHA256, Visibility: "private"})
	}
	maps.Copy(l.Env, doc.Env)
	maps.Copy(l.Env, spec.Env)
	if c.env.SDK != nil {
		data, sum := c.env.SDK()
		uri := path.Join("/user", c.env.User, ".hops/artifacts", sum+".zip")
		if err := upload(ctx, c.env.FS, uri, data); err != nil {
			return nil, fmt.Errorf("upload the Python package: %w", err)
		}
		l.Artifacts = append(l.Artifacts, &rmpb.Artifact{Name: sdkName, Uri: uri, Kind: "file", Size: int64(len(data)), Sha256: sum, Visibility: "private"})
		l.Env["PYTHONPATH"] = strings.TrimSuffix(sdkName+":"+l.Env["PYTHONPATH"], ":")
	}
	if spec.Code != nil {
		add(training.Artifact{Name: codeDir, URI: spec.Code.URI, Kind: "code", SHA256: spec.Code.SHA256})
	}
	for _, a := range slices.Concat(doc.Artifacts, spec.Files) {
		if a.Name != "job.json" {
			add(a)
		}
	}
	return l, nil
}

// upload stores content under a name made of its hash, unless it is there.
func upload(ctx context.Context, f FS, uri string, data []byte) error {
	if s, err := f.Stat(ctx, uri); err == nil && s.Length == int64(len(data)) {
		return nil
	} else if err != nil && !missing(err) {
		return err
	}
	return writeFile(ctx, f, uri, data)
}

// propose takes a request through the loop. It returns when what it changed is in the journal. The function runs on the
// loop's goroutine; what it proposes is written together. An error that is no refusal ends the controller.
func (c *controller) propose(ctx context.Context, run func(*experiment.Experiment, training.Millis) error) error {
	p := &proposal{run: run, done: make(chan error, 1)}
	select {
	case c.proposals <- p:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// now is the experiment's time: this machine's, but never before what the journal says. Else, after a controller whose clock was ahead,
// no limit would pass until this one's has come there too.
func (c *controller) now() time.Time { return c.env.now().Add(c.ahead) }

// view reads the experiment. What it shows may be a flush ahead of the journal.
func (c *controller) view(fn func(*experiment.Experiment)) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	fn(c.x)
}

func (c *controller) status(curves bool) (s protocol.ExperimentStatus) {
	c.view(func(x *experiment.Experiment) { s = x.Status(training.MillisOf(c.now()), curves) })
	if s.Reason == "" && s.State == protocol.ExperimentRunning {
		s.Reason = c.fleet.reason()
	}
	return s
}

// seat is a slot of an executor; slot -1 is the executor, by whichever call.
type seat struct {
	executor string
	slot     int
}

// heard notes a sign of life of executors' slots; on the loop's goroutine.
func (c *controller) heard(id string, slots ...int) {
	now := training.MillisOf(c.now())
	c.lastSeen[seat{id, -1}] = now
	for _, n := range slots {
		c.lastSeen[seat{id, n}] = now
	}
}

// didNothing notes for how long a member has done nothing.
func (c *controller) didNothing(x *experiment.Experiment, id training.TrialID, rank int, d time.Duration) {
	if executor, slot, ok := x.Seat(id, rank); ok {
		c.idle[seat{executor, slot}] = d
	}
}

// heardMember notes that the container of an executor was heard of, and, if it was believed, the slot of its member.
func (c *controller) heardMember(x *experiment.Experiment, err error, container string, id training.TrialID, rank int) {
	w := x.InContainer(container)
	if w == nil {
		return
	}
	c.heard(w.ID)
	if err == nil {
		if executor, slot, ok := x.Seat(id, rank); ok && executor == w.ID {
			c.heard(w.ID, slot)
		}
	}
}

// waker is closed at the next moment at which an executor that waits might get something.
func (c *controller) waker() <-chan struct{} {
	c.wakeMu.Lock()
	defer c.wakeMu.Unlock()
	return c.wake
}

// maxBatch bounds the requests that share a flush.
const maxBatch = 256

// begin is the moment from which on executors can be heard: what open has to write may take minutes.
func (c *controller) begin(now time.Time) {
	c.lastTick, c.began = now, training.MillisOf(now)
	c.graceUntil = c.began.Add(c.times.Grace)
}

// since is from when on the time after a moment counts for an executor and its trials: of what was before this attempt from the end of the grace,
// and after a pause from the end of that.
func (c *controller) since(at training.Millis) training.Millis {
	if at < c.began {
		at = max(at, c.graceUntil)
	}
	return max(at, c.pausedTill)
}

// loop owns the experiment until ctx ends.
func (c *controller) loop(ctx context.Context) error {
	tick := time.NewTicker(c.times.Tick)
	defer tick.Stop()
	c.begin(c.now())
	for {
		var batch []*proposal
		ticked := false
		select {
		case <-ctx.Done():
			return nil
		case p := <-c.proposals:
			batch = append(batch, p)
		case <-tick.C:
			ticked = true
		}
	more:
		for len(batch) < maxBatch {
			select {
			case p := <-c.proposals:
				batch = append(batch, p)
			default:
				break more
			}
		}
		if err := c.turn(ctx, batch, ticked); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// turn takes a batch of proposals, and what time has brought about, into the experiment, the journal and the world, in
// this order.
func (c *controller) turn(ctx context.Context, batch []*proposal, ticked bool) error {
	now := c.now()
	millis := training.MillisOf(now)
	results := make([]error, len(batch))
	var broken error
	check := func(err error) error {
		if _, ok := errors.AsType[*experiment.Refusal](err); err != nil && !ok {
			broken = err
		}
		return err
	}
	c.mu.Lock()
	for i, p := range batch {
		results[i] = check(p.run(c.x, millis))
	}
	if ticked {
		for _, e := range c.due(now) {
			_, err := c.x.Propose(millis, e)
			_ = check(err) // kept in broken
		}
	}
	fx := c.x.Take()
	over := c.x.Over()
	c.mu.Unlock()

	lines, err := encodeLines(fx.Entries)
	if broken == nil {
		broken = err
	}
	if broken == nil {
		broken = c.journal.append(ctx, lines)
	}
	if broken != nil {
		for _, p := range batch {
			p.done <- experiment.Refuse(503, protocol.CodeNotReady, "the controller is ending: %v", broken)
		}
		return broken
	}
	c.hub.publish(fx.Events)
	c.files.add(fx)
	if len(lines) > 0 {
		c.fleet.giveBack(fx.Release)
		c.fleet.poke()
		if c.brain != nil {
			c.brain.feed(fx.Steer)
		}
	}
	for i, p := range batch {
		p.done <- results[i]
	}
	if fx.Wake || len(fx.Steer) > 0 {
		c.wakeMu.Lock()
		close(c.wake)
		c.wake = make(chan struct{})
		c.wakeMu.Unlock()
	}
	c.shadow.add(lines, c.journal.size)
	if over {
		c.overOnce.Do(func() { close(c.over) })
	}
	return nil
}

// due asks the experiment what time has brought about. After a pause of this process (it was stopped, or the journal
// was slow), and after the absence of any controller, executors first get the chance to be heard.
func (c *controller) due(now time.Time) []*experiment.Entry {
	millis := training.MillisOf(now)
	if pause := now.Sub(c.lastTick); pause > c.times.Lease/2 { // it does not count
		c.pausedTill = millis.Add(min(pause, c.times.Lease))
	}
	c.lastTick = now
	var out []*experiment.Entry
	if x := c.x; c.brain != nil && c.brain.client() && x.Open() && !x.Closing() {
		if c.asked = max(c.asked, c.graceUntil); x.Held > 0 {
			c.asked = max(c.asked, millis)
		} else if millis > c.asked.Add(askPatience) {
			out = append(out, &experiment.Entry{Broken: &experiment.Broken{Reason: fmt.Sprintf("the client that suggests has not asked for %s; or name an entry for the optimizer, which runs beside the controller", askPatience)}})
		}
	}
	out = append(out, c.x.Idle(millis, func(id string, slot int) time.Duration { return c.idle[seat{id, slot}] })...)
	return append(out, c.x.Due(millis, c.times.Lease, func(id string, slot int) training.Millis {
		seen, ok := c.lastSeen[seat{id, slot}]
		if !ok {
			seen = c.graceUntil.Add(-c.times.Lease)
		}
		return max(seen, c.pausedTill.Add(-c.times.Lease))
	}, c.since)...)
}

// finishPatience bounds the end: the files and the result are written, executors leave by themselves, then their containers
// are taken.
const finishPatience = 5 * time.Minute

// brainEnd bounds how long the end waits for the user's optimizer to finish.
const brainEnd = 2 * time.Minute

// conclude writes the result of an experiment that is over and tells the resource manager.
func (c *controller) conclude(ctx context.Context) error {
	c.hub.close()
	patient, cancel := context.WithTimeout(ctx, finishPatience)
	defer cancel()
	if c.brain != nil { // it is told that it is over
		select {
		case <-c.brain.ended:
		case <-patient.Done():
		case <-time.After(brainEnd):
		}
	}
	if err := c.files.drained(patient); err != nil {
		return err
	}
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := c.files.finish(patient)
		if err == nil {
			break
		}
		c.log.Warn("writing the result", "err", err)
		select {
		case <-patient.Done():
			return fmt.Errorf("write the result: %w", err)
		case <-time.After(pause):
		}
	}
	c.files.sweep(patient)
	c.fleet.left(patient)
	var state, reason string
	c.view(func(x *experiment.Experiment) {
		state, reason = x.State, x.Reason
		if b := x.BestSoFar(); b != nil && state == protocol.ExperimentFinished {
			reason = strings.TrimPrefix(reason+fmt.Sprintf("; best %s %.6g in trial %v", x.Spec.Metric, b.Metric, b.Trial), "; ")
		}
	})
	return c.finish(patient, state, reason)
}

// finish ends the application.
func (c *controller) finish(ctx context.Context, state, reason string) error {
	c.fleet.finished()
	final := map[string]string{protocol.ExperimentFinished: "SUCCEEDED", protocol.ExperimentFailed: "FAILED", protocol.ExperimentKilled: "KILLED"}[state]
	err := c.env.RM.Finish(ctx, &rmpb.FinishRequest{
		ApplicationId: c.env.Application, Attempt: int32(c.env.Attempt), Epoch: c.fleet.epoch, FinalStatus: final, Diagnostics: reason,
	})
	if err != nil {
		return fmt.Errorf("tell the resource manager that the experiment is %s: %w", state, err)
	}
	c.log.Info("the experiment is over", "state", state, "reason", reason)
	return nil
}
