package am

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/internal/authority"
	rm "github.com/gohops/hops/resourcemanager"
	pb "github.com/gohops/hops/resourcemanager/api/v1"
	"github.com/gohops/hops/resourcemanager/job"
)

// Env is the environment of a master: what the node manager and the resource manager tell it.
type Env struct {
	// ResourceManagers are gRPC addresses (HOPS_RM_GRPC).
	ResourceManagers []string
	Application      rm.ApplicationID // HOPS_APPLICATION_ID
	Attempt          int              // HOPS_ATTEMPT
	Container        string           // HOPS_CONTAINER_ID
	Token            string           // the content of the file HOPS_TOKEN
	Trust            *authority.Trust // of the file HOPS_AUTHORITY
	// WorkDir holds job.json (HOPS_WORK_DIR; default: the current directory).
	WorkDir string
	Logger  *slog.Logger
}

// EnvFrom reads the environment variables of a container and its token file. The error names what is missing.
func EnvFrom(getenv func(string) string) (Env, error) {
	e := Env{WorkDir: getenv("HOPS_WORK_DIR"), Container: getenv("HOPS_CONTAINER_ID")}
	var errs []error
	if e.Container == "" {
		errs = append(errs, errors.New("HOPS_CONTAINER_ID is empty"))
	}
	var err error
	if e.Application, err = rm.ParseApplicationID(getenv("HOPS_APPLICATION_ID")); err != nil {
		errs = append(errs, fmt.Errorf("HOPS_APPLICATION_ID: %w", err))
	}
	if e.Attempt, err = strconv.Atoi(getenv("HOPS_ATTEMPT")); err != nil {
		errs = append(errs, fmt.Errorf("HOPS_ATTEMPT: %w", err))
	}
	for _, a := range strings.Split(getenv("HOPS_RM_GRPC"), ",") {
		if a = strings.TrimSpace(a); a != "" {
			e.ResourceManagers = append(e.ResourceManagers, a)
		}
	}
	if len(e.ResourceManagers) == 0 {
		errs = append(errs, errors.New("HOPS_RM_GRPC is empty"))
	}
	if file := getenv("HOPS_TOKEN"); file == "" {
		errs = append(errs, errors.New("HOPS_TOKEN is empty"))
	} else if token, err := readSome(file, 4096); err != nil {
		errs = append(errs, fmt.Errorf("HOPS_TOKEN: %w", err))
	} else {
		e.Token = strings.TrimSpace(string(token))
	}
	if e.Trust, err = authority.TrustFile(getenv("HOPS_AUTHORITY")); err != nil {
		errs = append(errs, fmt.Errorf("HOPS_AUTHORITY: %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return e, fmt.Errorf("not in the container of a master: %w", err)
	}
	return e, nil
}

func readSome(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is longer than %d bytes", name, limit)
	}
	return b, err
}

// Run is the life of a command's master: it asks for a container per instance, runs failed ones again as the document
// allows, and finishes the application. It returns nil when the application was finished, whatever its result, and also
// when it goes on or has ended without this master.
func Run(ctx context.Context, e Env) error {
	log := e.Logger
	if log == nil {
		log = slog.Default()
	}
	log = log.With("app", e.Application.String(), "attempt", e.Attempt)
	document, err := readSome(filepath.Join(e.WorkDir, job.File), 2*job.MaxBytes)
	if err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	session, err := Dial(SessionConfig{ResourceManagers: e.ResourceManagers, Application: e.Application, Attempt: e.Attempt, Container: e.Container, Token: e.Token, Trust: e.Trust, Logger: log})
	if err != nil {
		return err
	}
	defer session.Close()
	registered, err := session.Register(ctx, "", "")
	if err == nil {
		var spec *job.Spec
		if spec, err = job.Read(document); err != nil {
			err = session.Finish(ctx, rm.FinalFailed, fmt.Sprintf("the job cannot be read: %v", err))
		} else {
			err = newMaster(session, spec, log).run(ctx, registered)
			if status.Code(err) == codes.InvalidArgument { // asking again, also from another attempt, will not help
				err = session.Finish(ctx, rm.FinalFailed, fmt.Sprintf("the job cannot run: %s", status.Convert(err).Message()))
			}
		}
	}
	if errors.Is(err, rm.ErrStaleAttempt) {
		log.Warn("the application goes on or has ended without this master", "err", err)
		return nil
	}
	return err
}

// instance is one of the command's containers-to-be.
type instance struct {
	number    int
	container string // that runs now; empty: none
	tries     int    // that have ended
	preempted int    // of them, because others needed the room
	done      bool
	// noticed: its container is to make room for others, and saves its work.
	noticed bool
	failed  bool // for good: a member of an array, without which the others go on
	// killed: a member of an array that is to run no more, by its user's wish.
	killed bool
	// forgiven is the number of the application's container up to which failures count no more, by its user's wish; pardoned of the tries
	// are up to there, and last is the number of the last that failed.
	forgiven, last int64
	pardoned       int
	// surplus: the job has fewer instances now.
	surplus bool
}

// over reports whether nothing of the instance is to run any more.
func (i *instance) over() bool { return i.done || i.failed || i.killed }

type master struct {
	session *Session
	spec    *job.Spec
	log     *slog.Logger
	// instances are those that the job has now; byNumber are also those that it had.
	instances []*instance
	byNumber  map[int32]*instance
	// least is how many instances of a gang start at once.
	least int
	// asked are the tries for which there is an ask, of an array.
	asked map[int]bool
	// gathering: a member of a gang has failed, and what still runs of it has been released. When all have ended, the gang is
	// asked for again as a whole: members that are asked for one by one could wait for ever for those of another gang.
	gathering bool
	// faults counts the containers that ended by the cluster's fault and cost no try.
	faults  int
	failure string
	// failed is the member of an array that failure tells of.
	failed *instance
	// counted are the containers of the list of those that had ended when this master began: the event of an end that it has counted may be
	// yet to come. It comes before all grants, because who is granted was asked for later: with the first grant they are forgotten.
	counted map[string]bool
}

func newMaster(session *Session, spec *job.Spec, log *slog.Logger) *master {
	m := &master{session: session, spec: spec, log: log, byNumber: map[int32]*instance{}, asked: map[int]bool{}, counted: map[string]bool{}}
	for _, n := range spec.Numbers() {
		i := &instance{number: n}
		m.instances = append(m.instances, i)
		m.byNumber[int32(n)] = i
	}
	m.least = spec.Gang.Size(len(m.instances))
	return m
}

// askPrefix is followed by the number of the try: instances of the same try have one ask together.
const askPrefix = "try-"

// of finds the instance of a container.
func (m *master) of(ask string, number int32) *instance {
	if !strings.HasPrefix(ask, askPrefix) {
		return nil
	}
	return m.byNumber[number]
}

// errOver ends the stream of events.
var errOver = errors.New("over")

func (m *master) run(ctx context.Context, r *pb.RegisterResponse) error {
	ended, err := m.session.Ended(ctx)
	if err != nil {
		return err
	}
	m.takeOver(r, ended)
	if m.over() {
		return m.finish(ctx)
	}
	if err := m.demand(ctx); err != nil {
		return err
	}
	err = m.session.Events(ctx, func(e *pb.Event) error { return m.event(ctx, e) })
	if errors.Is(err, errOver) {
		return m.finish(ctx)
	}
	return err
}

// takeOver takes in what earlier attempts have left: the containers that ran at the registration, and those that had ended some time after
// it. The end of one that ended between is also among the events. It need not be among those that ran: a registration whose answer was lost
// is answered again by what runs then, and the events are those since the first time.
func (m *master) takeOver(r *pb.RegisterResponse, ended []*pb.Completed) {
	m.change(r.Change)
	for _, n := range r.Succeeded { // their containers are forgotten
		if i := m.byNumber[n]; i != nil {
			i.done = true
		}
	}
	for _, c := range ended {
		m.completed(c)
		m.counted[c.ContainerId] = true
	}
	for _, c := range r.Containers {
		if i := m.of(c.AskId, c.Instance); i != nil && !m.counted[c.ContainerId] {
			i.container = c.ContainerId
		}
	}
}

func (m *master) event(ctx context.Context, e *pb.Event) error {
	switch v := e.Event.(type) {
	case *pb.Event_Granted:
		clear(m.counted)
		i := m.of(v.Granted.AskId, v.Granted.Instance)
		if i == nil || i.over() || i.surplus || i.container != "" && i.container != v.Granted.ContainerId {
			return m.session.Allocate(ctx, Request{Release: []string{v.Granted.ContainerId}, Progress: m.progress()})
		}
		i.container = v.Granted.ContainerId
		if m.gathering || m.tooMany() { // granted before the ask was withdrawn
			return m.session.Allocate(ctx, Request{Release: []string{i.container}, Progress: m.progress()})
		}
		m.log.Info("container granted", "instance", i.number, "container", i.container, "node", v.Granted.NodeId)
	case *pb.Event_Completed:
		if m.counted[v.Completed.ContainerId] {
			delete(m.counted, v.Completed.ContainerId)
			return m.session.Allocate(ctx, Request{Progress: m.progress()})
		}
		i := m.completed(v.Completed)
		if m.over() {
			return errOver
		}
		if i != nil && (!i.over() || m.gathering || m.limited()) { // who has succeeded may be the last for whom the others wait
			return m.demand(ctx)
		}
		return m.session.Allocate(ctx, Request{Progress: m.progress()})
	case *pb.Event_Preempt: // its program hears of it by itself
		at := slices.IndexFunc(m.instances, func(i *instance) bool { return i.container == v.Preempt.ContainerId })
		if at >= 0 {
			m.instances[at].noticed = !v.Preempt.Withdrawn
			if m.gathering && v.Preempt.Withdrawn { // the others have ended meanwhile
				return m.session.Allocate(ctx, Request{Release: []string{v.Preempt.ContainerId}, Progress: m.progress()})
			}
		}
		m.log.Info("container is to make room", "container", v.Preempt.ContainerId, "reason", v.Preempt.Reason, "until", v.Preempt.DeadlineMs, "withdrawn", v.Preempt.Withdrawn)
	case *pb.Event_Changed:
		if m.change(v.Changed); m.over() {
			return errOver
		}
		return m.demand(ctx)
	case *pb.Event_Pending:
		m.log.Info("waiting", "ask", v.Pending.AskId, "code", v.Pending.Code, "reason", v.Pending.Message)
	}
	return nil
}

// released is the reason of the resource manager for a container that its application gave back.
const released = "released by its application"

// maxFaults bounds the containers that end by the cluster's fault without costing a try.
const maxFaults = 100

// completed notes the end of a container and returns its instance, if it was that instance's.
func (m *master) completed(c *pb.Completed) *instance {
	i := m.of(c.AskId, c.Instance)
	if i == nil || i.done || i.failed || i.container != "" && i.container != c.ContainerId {
		return nil
	}
	i.container, i.noticed = "", false
	exit := rm.ExitStatus(c.ExitStatus)
	number := int64(0)
	if id, err := rm.ParseContainerID(c.ContainerId); err == nil {
		number = id.Number
	}
	m.log.Info("container ended", "instance", i.number, "container", c.ContainerId, "exit", int(exit))
	switch {
	case exit == rm.ExitSuccess:
		i.done = !i.killed
		return i
	case i.surplus || i.killed, number <= i.forgiven:
		i.tries++
		i.pardoned = i.tries - i.preempted
		return i
	case exit == rm.ExitAborted && (strings.Contains(c.Diagnostics, released) || strings.Contains(c.Diagnostics, rm.Resized)):
		return i
	case exit == rm.ExitNoFilesystem && m.faults < maxFaults:
		m.faults++
		return i
	case exit == rm.ExitPreempted && (m.spec.Retry == nil || m.mayRetryOn(job.OnPreempted)): // costs no try
		i.tries++
		i.preempted++
		return i
	}
	i.tries++
	if !m.mayRetry(i, exit) {
		i.failed, i.last = m.spec.Array != nil, number
		if i.failed && m.failure != "" {
			return i // the first is told
		}
		who := fmt.Sprintf("instance %d of %d", i.number, len(m.instances))
		if i.failed {
			who = fmt.Sprintf("member %d", i.number)
			m.failed = i
		}
		m.failure = fmt.Sprintf("%s failed after %d tries: container %s on %s ended with %v", who, i.tries, c.ContainerId, c.NodeId, exit)
		if c.Diagnostics != "" {
			m.failure += ": " + c.Diagnostics
		}
		m.failure += "; its log is in " + c.LogDir
	}
	return i
}

func (m *master) mayRetry(i *instance, exit rm.ExitStatus) bool {
	r := m.spec.Retry
	if r == nil || i.tries-i.preempted-i.pardoned > r.Max {
		return false
	}
	cause := job.OnFailure
	switch exit {
	case rm.ExitAborted, rm.ExitDisksFailed:
		cause = job.OnNodeLost
	case rm.ExitPreempted:
		cause = job.OnPreempted
	}
	return m.mayRetryOn(cause)
}

func (m *master) mayRetryOn(cause string) bool {
	return len(m.spec.Retry.On) == 0 || slices.Contains(m.spec.Retry.On, cause)
}

// over reports whether the application's result is known. What is one too many has time to save its work.
func (m *master) over() bool {
	if m.failure != "" && m.spec.Array == nil {
		return true
	}
	if slices.ContainsFunc(m.instances, func(i *instance) bool { return !i.over() }) {
		return false
	}
	if len(m.byNumber) > len(m.instances) {
		for _, i := range m.byNumber {
			if i.surplus && i.container != "" {
				return false
			}
		}
	}
	return true
}

// limited reports whether only some members of an array may run at once.
func (m *master) limited() bool { return m.spec.Array != nil && m.spec.Array.AtOnce > 0 }

// tooMany reports whether more members of an array run than may at once.
func (m *master) tooMany() bool {
	if !m.limited() {
		return false
	}
	running := 0
	for _, i := range m.instances {
		if i.container != "" {
			running++
		}
	}
	return running > m.spec.Array.AtOnce
}

// demandMembers asks for containers for the members of an array that have none, as many as may run at once. An ask of a try of which nothing
// is wanted any more is withdrawn.
func (m *master) demandMembers(ctx context.Context, running int, waiting []*instance) error {
	if n := m.spec.Array.AtOnce; n > 0 {
		waiting = waiting[:max(0, min(len(waiting), n-running))]
	}
	byTry := map[int][]*instance{}
	for _, i := range waiting {
		byTry[i.tries+1] = append(byTry[i.tries+1], i)
	}
	var cancel []string
	for _, try := range slices.Sorted(maps.Keys(m.asked)) {
		if byTry[try] == nil {
			cancel = append(cancel, askPrefix+strconv.Itoa(try))
			delete(m.asked, try)
		}
	}
	if len(cancel) > 0 || len(waiting) == 0 {
		if err := m.session.Allocate(ctx, Request{Cancel: cancel, Progress: m.progress()}); err != nil {
			return err
		}
	}
	for _, try := range slices.Sorted(maps.Keys(byTry)) {
		if err := m.ask(ctx, try, 0, byTry[try]); err != nil {
			return err
		}
		m.asked[try] = true
	}
	return nil
}

// failures says which members of an array have failed, the first with its reason.
func (m *master) failures() string {
	n, list := m.named(func(i *instance) bool { return i.failed })
	return fmt.Sprintf("%d of %d members failed (%s); %s", n, len(m.instances), list, m.failure)
}

// named counts some members of an array, and lists the numbers of the first of them.
func (m *master) named(are func(*instance) bool) (n int, list string) {
	var numbers []string
	for _, i := range m.instances {
		if are(i) {
			numbers = append(numbers, strconv.Itoa(i.number))
		}
	}
	list = strings.Join(numbers[:min(len(numbers), maxNamed)], ", ")
	if len(numbers) > maxNamed {
		list += ", …"
	}
	return len(numbers), list
}

// maxNamed bounds the members that a diagnosis names.
const maxNamed = 20

func (m *master) progress() float32 {
	done := 0
	for _, i := range m.instances {
		if i.over() {
			done++
		}
	}
	return float32(done) / float32(len(m.instances))
}

// demand asks for containers for the instances that have none: one ask for those of the same try, with all that wait for
// it, because an ask replaces the one before it.
func (m *master) demand(ctx context.Context) error {
	var waiting []*instance
	var running, free []string // free were not given time to save their work
	latest := 0
	for _, i := range m.instances {
		latest = max(latest, i.tries)
		switch {
		case i.over() && i.container == "":
		case i.container != "": // also of a member that was killed, and takes its time
			running = append(running, i.container)
			if !i.noticed {
				free = append(free, i.container)
			}
		default:
			waiting = append(waiting, i)
		}
	}
	if m.spec.Array != nil {
		return m.demandMembers(ctx, len(running), waiting)
	}
	if len(waiting) == 0 {
		return nil
	}
	if len(running) == 0 {
		m.gathering = false
	}
	if m.gathering {
		return m.session.Allocate(ctx, Request{Progress: m.progress()})
	}
	gang := min(m.least, len(waiting)+len(running)) // what is done runs no more
	if gang <= 1 || len(running) >= gang {
		byTry := map[int][]*instance{}
		for _, i := range waiting {
			byTry[i.tries+1] = append(byTry[i.tries+1], i)
		}
		for _, try := range slices.Sorted(maps.Keys(byTry)) {
			if err := m.ask(ctx, try, 0, byTry[try]); err != nil {
				return err
			}
		}
		return nil
	}
	if len(running) == 0 {
		return m.ask(ctx, latest+1, gang, waiting)
	}
	m.gathering = true
	m.log.Info("a member of the gang has ended: the others are released, and all start again together", "running", len(running))
	var cancel []string
	for try := range latest + 1 {
		cancel = append(cancel, askPrefix+strconv.Itoa(try+1))
	}
	return m.session.Allocate(ctx, Request{Cancel: cancel, Release: free, Progress: m.progress()})
}

// ask wants a container for each of the instances, gang of them at once.
func (m *master) ask(ctx context.Context, try, gang int, instances []*instance) error {
	amount := m.spec.Resources.Amount()
	env := map[string]string{"HOPS_INSTANCES": strconv.Itoa(len(m.instances)), "HOPS_TRY": strconv.Itoa(try)}
	if m.spec.Array != nil {
		maps.Copy(env, m.spec.Array.Environment())
	}
	l := m.spec.Launch(env)
	p := &pb.Launch{Argv: l.Argv, Env: map[string]string{}, GraceMs: l.Grace.Milliseconds()}
	if l.Fenced {
		p.Fencing = pb.Fencing_FENCING_STRICT
	}
	for _, v := range l.Env {
		p.Env[v.Name] = v.Value
	}
	for _, a := range l.Artifacts {
		p.Artifacts = append(p.Artifacts, &pb.Artifact{
			Name: a.Name, Uri: a.URI, Kind: a.Kind, Size: a.Size, Sha256: a.SHA256, Timestamp: a.Timestamp,
			Visibility: a.Visibility, Content: a.Content,
		})
	}
	q := &pb.Ask{
		AskId: askPrefix + strconv.Itoa(try), Priority: 1, Count: int32(len(instances)), GangMin: int32(gang),
		Resources: &pb.Resources{Memory: amount.Memory, Vcores: int32(amount.VCores), Gpus: int32(amount.GPUs), Other: amount.Other.Map()},
		GpuModel:  m.spec.Resources.Model, GpuIsland: m.spec.Resources.Island, Label: m.spec.Resources.Label, Launch: p,
		GpuMemory: int64(m.spec.Resources.GPUMemory), Within: m.spec.Resources.Within,
	}
	if w := m.spec.Placement; !w.IsZero() {
		q.Placement = &pb.Placement{Attributes: w.Attributes, Exclusive: w.Exclusive, Tags: w.Tags}
		for _, c := range w.Constraints {
			x := &pb.Constraint{Tag: c.Tag, Scope: c.Scope, Min: int32(c.Min)}
			if c.Max != nil {
				x.Max = new(int32(*c.Max))
			}
			q.Placement.Constraints = append(q.Placement.Constraints, x)
		}
	}
	if w := m.spec.Near; !w.IsZero() {
		q.Near = &pb.Near{Paths: w.Paths, Racks: w.Racks}
		for _, h := range w.Hosts {
			q.Near.Hosts = append(q.Near.Hosts, &pb.NearHost{Host: h})
		}
		if w.Wait != nil {
			q.Near.WaitMs = new(time.Duration(*w.Wait).Milliseconds())
		}
	}
	for _, i := range instances {
		q.Instances = append(q.Instances, int32(i.number))
	}
	return m.session.Allocate(ctx, Request{Asks: []*pb.Ask{q}, Progress: m.progress()})
}

// finishPatience is how long the master tries to tell the result after its own end was asked for.
const finishPatience = 20 * time.Second

func (m *master) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishPatience)
	defer cancel()
	if m.spec.Array != nil && m.failure != "" {
		m.failure = m.failures()
	}
	if m.failure != "" {
		m.log.Error("failed", "why", m.failure)
		return m.session.Finish(ctx, rm.FinalFailed, m.failure)
	}
	if n, list := m.named(func(i *instance) bool { return i.killed }); n > 0 { // who waits for its success waits for all members
		return m.session.Finish(ctx, rm.FinalKilled, fmt.Sprintf("%d of %d members were killed (%s)", n, len(m.instances), list))
	}
	return m.session.Finish(ctx, rm.FinalSucceeded, "")
}
