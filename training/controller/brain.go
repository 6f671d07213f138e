package controller

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/experiment"
	"github.com/gohops/hops/training/protocol"
	"github.com/gohops/hops/training/search"
)

// brain runs what a user wrote in Python to steer the search, in a process of its own: docs/reference/brain-protocol.md. It is told
// what is in the journal, in that order, and what it says becomes entries. The loop never waits for it: it leaves what is to be told
// in a queue. A process that ends, hangs or talks nonsense is killed and started again, and told everything again.
type brain struct {
	c    *controller
	log  *slog.Logger
	more chan struct{} // capacity 1: there is something to tell, or somebody is free
	// ended is closed when nobody will be told anything any more.
	ended chan struct{}
	dir   string // work directory
	zip   string // the Python package

	mu      sync.Mutex
	history []told // all that a new process has to know, in order
	checks  map[training.TrialID]experiment.Check
	order   []training.TrialID // of checks
	reports bool               // events of kind reported are wanted, or nobody has said so yet

	stderr headTail
}

// told is a line of history: the encoded entry, and whose end it tells.
type told struct {
	entry    json.RawMessage
	ends     training.TrialID
	reported bool
}

// The limits of brain-protocol.md.
const (
	brainLine     = 1 << 20
	brainFailures = 3
	brainIdle     = 60 // times that an idle optimizer is asked while nothing runs
	brainAsk      = 1000
	brainLog      = 512 << 10
	brainLogName  = "optimizer.log"
	maxCodeFiles  = 20_000
	maxCodeBytes  = 1 << 30
)

// brainTimes are the deadlines: of init, replay and finish, and of all others; and the pause after a failure.
type brainTimes struct{ slow, quick, pause time.Duration }

func newBrain(c *controller) *brain {
	return &brain{c: c, log: c.log.With("part", "brain"), more: make(chan struct{}, 1), ended: make(chan struct{}), checks: map[training.TrialID]experiment.Check{}, reports: true}
}

// brainError is what user code raised, or what was wrong with its process.
type brainError struct {
	Type      string `json:"type"`
	Message   string `json:"message"`
	Traceback string `json:"traceback,omitempty"`
}

func (e *brainError) Error() string { return e.Type + ": " + e.Message }

func suggestions(list []protocol.TrialSuggestion) (out []search.Suggestion) {
	for _, s := range list {
		out = append(out, search.Suggestion{Trial: training.TrialID(s.Trial), Params: s.Params, Budget: s.Budget, Last: s.Last == nil || *s.Last, Label: experiment.Middle(s.Label, 100)})
	}
	return out
}

// brainAnswer is a line of the brain.
type brainAnswer struct {
	ID    int64 `json:"id"`
	Ready *struct {
		Protocol  int  `json:"protocol"`
		Optimizer bool `json:"optimizer"`
		EarlyStop bool `json:"early_stop"`
		Reports   bool `json:"reports"`
	} `json:"ready"`
	OK      bool                       `json:"ok"`
	Differs int                        `json:"differs"`
	Suggest []protocol.TrialSuggestion `json:"suggest"`
	Idle    bool                       `json:"idle"`
	Done    bool                       `json:"done"`
	Stop    *struct {
		Trial  int    `json:"trial"`
		Reason string `json:"reason"`
	} `json:"stop"`
	Error *brainError `json:"error"`
}

// client reports whether a client steers, which asks over HTTP, not a process.
func (b *brain) client() bool {
	return b.c.x.Spec.Optimizer.Entry+b.c.x.Spec.EarlyStop.Entry == ""
}

// feed takes what is to be told; called in the order of the journal, after it is written. free: somebody may ask for work.
func (b *brain) feed(steer []experiment.Steered) {
	b.mu.Lock()
	for _, s := range steer {
		switch {
		case s.Suggested != nil:
			q := s.Suggested
			b.noteLocked(told{}, map[string]any{"suggested": protocol.TrialSuggestion{Trial: int(q.Trial), Params: q.Params, Budget: q.Budget, Last: &q.Last, Label: q.Label}})
		case s.Event != nil && s.Event.Kind == "reported":
			if b.reports {
				b.noteLocked(told{reported: true}, map[string]any{"event": s.Event})
			}
		case s.Event != nil:
			b.noteLocked(told{ends: training.TrialID(s.Event.Trial)}, map[string]any{"event": s.Event})
			delete(b.checks, training.TrialID(s.Event.Trial))
		case s.Check != nil:
			if _, waits := b.checks[s.Check.Trial]; !waits {
				b.order = append(b.order, s.Check.Trial)
			}
			b.checks[s.Check.Trial] = *s.Check
		case s.Resumed != 0: // what was told of its end does not hold
			for i := range b.history {
				if b.history[i].ends == s.Resumed {
					b.history[i].entry = nil
				}
			}
		}
	}
	b.mu.Unlock()
	select {
	case b.more <- struct{}{}:
	default:
	}
}

func (b *brain) noteLocked(t told, v any) {
	t.entry, _ = json.Marshal(v) // of numbers, text and metrics: it can be encoded
	b.history = append(b.history, t)
}

// from is the history from entry i on, and where it ends.
func (b *brain) from(i int) ([]told, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.history[min(i, len(b.history)):], len(b.history)
}

// check is the next question of a rule.
func (b *brain) check() (c experiment.Check, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.order) > 0 {
		id := b.order[0]
		b.order = b.order[1:]
		if c, ok = b.checks[id]; ok {
			delete(b.checks, id)
			return c, true
		}
	}
	return c, false
}

// run steers the experiment to its end. It returns nil also if it could not: then the experiment has failed.
func (b *brain) run(ctx context.Context) error {
	defer close(b.ended)
	if b.client() {
		return nil
	}
	defer b.writeLog(context.WithoutCancel(ctx))
	if err := b.prepare(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return b.broken(ctx, &brainError{Type: "CodeUnusable", Message: err.Error()})
	}
	failures := 0
	for pause := b.c.times.brain.pause; ; pause = min(2*pause, time.Minute) {
		good, err := b.live(ctx, &failures)
		if ctx.Err() != nil || err == nil {
			return nil
		}
		if good {
			failures, pause = 0, b.c.times.brain.pause
		}
		failures++
		b.log.Warn("the brain is started again", "err", err, "failures", failures)
		b.writeLog(ctx)
		found, ok := errors.AsType[*brainError](err)
		if !ok {
			found = &brainError{Type: "BrainDied", Message: err.Error()}
		}
		if fatal, _ := errors.AsType[*fatalError](err); fatal != nil || failures >= brainFailures {
			return b.broken(ctx, found)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// fatalError: starting again would end the same way.
type fatalError struct{ *brainError }

func (e *fatalError) Unwrap() error { return e.brainError }

// broken ends the experiment.
func (b *brain) broken(ctx context.Context, why *brainError) error {
	entry := b.c.x.Spec.Optimizer.Entry
	if entry == "" {
		entry = b.c.x.Spec.EarlyStop.Entry
	}
	reason := fmt.Sprintf("%s: %s (log: %s)", entry, experiment.Middle(strings.Join(strings.Fields(why.Error()), " "), 600), path.Join(b.c.dir, brainLogName))
	err := b.c.propose(ctx, func(x *experiment.Experiment, now training.Millis) error {
		if x.Closing() {
			return nil
		}
		_, err := x.Propose(now, &experiment.Entry{Broken: &experiment.Broken{Reason: reason, Traceback: experiment.Middle(why.Traceback, 32<<10)}})
		return err
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// prepare makes the work directory: the Python package and the user's code.
func (b *brain) prepare(ctx context.Context) (err error) {
	if b.dir, err = os.MkdirTemp(b.c.env.WorkDir, "brain-"); err != nil {
		return err
	}
	if b.c.env.SDK != nil {
		data, _ := b.c.env.SDK()
		b.zip = filepath.Join(b.dir, sdkName)
		if err := os.WriteFile(b.zip, data, 0o600); err != nil {
			return err
		}
	}
	code := filepath.Join(b.dir, codeDir)
	if err := os.Mkdir(code, 0o700); err != nil {
		return err
	}
	k := b.c.x.Spec.Code
	if k == nil {
		return nil
	}
	r, err := b.c.env.FS.Open(ctx, k.URI, 0)
	if err != nil {
		return fmt.Errorf("code %s: %w", k.URI, err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxCodeBytes))
	if err != nil {
		return fmt.Errorf("code %s: %w", k.URI, err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != k.SHA256 {
		return fmt.Errorf("code %s: its content is not that of the specification, sha256 %s", k.URI, k.SHA256)
	}
	return unzip(data, code)
}

// unzip unpacks code into a directory, and nothing beside it.
func unzip(data []byte, dir string) error {
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return fmt.Errorf("the code is no zip: %w", err)
	}
	if len(z.File) > maxCodeFiles {
		return fmt.Errorf("the code has %d files, at most %d", len(z.File), maxCodeFiles)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	left := int64(maxCodeBytes)
	for _, f := range z.File {
		name := path.Clean(f.Name)
		if !filepath.IsLocal(name) {
			return fmt.Errorf("the code has a file outside of its directory, %.100q", f.Name)
		}
		if strings.HasSuffix(f.Name, "/") {
			if err := root.MkdirAll(name, 0o700); err != nil {
				return err
			}
			continue
		}
		if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
			return err
		}
		n, err := unpack(root, f, name, left)
		if err != nil {
			return fmt.Errorf("code file %.100q: %w", f.Name, err)
		}
		if left -= n; left <= 0 {
			return fmt.Errorf("the code has more than %d bytes", int64(maxCodeBytes))
		}
	}
	return nil
}

func unpack(root *os.Root, f *zip.File, name string, limit int64) (int64, error) {
	in, err := f.Open()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := root.Create(name)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(out, io.LimitReader(in, limit))
	return n, errors.Join(err, out.Close())
}

// conversation is a process and what goes to and fro.
type conversation struct {
	stop context.CancelFunc
	in   io.Writer
	out  chan []byte // lines; closed when it has ended
	id   int64
}

// start starts the process.
func (b *brain) start(ctx context.Context) (*conversation, error) {
	ctx, stop := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, b.c.x.Spec.Interpreter(b.c.env.Python), "-m", "hops.brain")
	cmd.Dir = b.dir
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != "HOPS_TOKEN" && name != "PYTHONPATH" {
			cmd.Env = append(cmd.Env, v)
		}
	}
	for k, v := range b.c.x.Spec.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Env = append(cmd.Env, "PYTHONPATH="+strings.TrimSuffix(b.zip+":"+b.c.x.Spec.Env["PYTHONPATH"], ":"), "PYTHONUNBUFFERED=1", "ML_ID="+b.c.id)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // children that hold its output are not waited for
	cmd.Stderr = &b.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		stop()
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		stop()
		return nil, err
	}
	k := &conversation{stop: stop, in: in, out: make(chan []byte)}
	started := make(chan error, 1)
	go func() {
		// The process dies with the thread that made it (PR_SET_PDEATHSIG): the thread is this goroutine's, until it has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		for which, limit := range map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: 4096} {
			_ = unix.Prlimit(cmd.Process.Pid, which, &unix.Rlimit{Cur: limit, Max: limit}, nil)
		}
		started <- nil
		read := make(chan struct{})
		go func() {
			defer close(read)
			defer close(k.out)
			r := bufio.NewReaderSize(out, 64<<10)
			for {
				text, err := readLine(r)
				if err != nil || len(text) > brainLine {
					return
				}
				select {
				case k.out <- text:
				case <-ctx.Done():
					return
				}
			}
		}()
		<-read
		stop()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it forked
		_ = cmd.Wait()
	}()
	if err := <-started; err != nil {
		stop()
		return nil, err
	}
	return k, nil
}

// ask sends a request and waits for its answer.
func (k *conversation) ask(ctx context.Context, patience time.Duration, kind string, body any) (*brainAnswer, error) {
	k.id++
	line, err := json.Marshal(map[string]any{"id": k.id, kind: body})
	if err != nil {
		return nil, err
	}
	late := make(chan struct{})
	defer time.AfterFunc(patience, func() { close(late) }).Stop()
	written := make(chan error, 1)
	go func() {
		_, err := k.in.Write(append(line, '\n'))
		written <- err
	}()
	var text []byte
	var ok bool
	select {
	case text, ok = <-k.out:
	case <-late:
		select {
		case text, ok = <-k.out: // in time, and this process was not
		default:
			return nil, fmt.Errorf("it did not answer %q within %s", kind, patience)
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !ok {
		return nil, fmt.Errorf("it ended at %q", kind)
	}
	select { // what the user's code has printed may look like an answer, before all was read
	case err = <-written:
	case <-late:
		select {
		case err = <-written:
		default:
			return nil, fmt.Errorf("it did not read %q within %s", kind, patience)
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	var a brainAnswer
	if err := json.Unmarshal(text, &a); err != nil || a.ID != k.id {
		return nil, fmt.Errorf("it answered %q with %.200q", kind, text)
	}
	if a.Error != nil {
		return &a, a.Error
	}
	return &a, nil
}

// live is the life of one process. nil: the search is over, or ctx. good: it suggested something. failures counts failed asks too.
func (b *brain) live(ctx context.Context, failures *int) (good bool, err error) {
	k, err := b.start(ctx)
	if err != nil {
		return false, &fatalError{&brainError{Type: "BrainNotStarted", Message: err.Error()}}
	}
	defer func() {
		k.stop()
		for range k.out { // until it has ended
		}
	}()
	times := b.c.times.brain
	var spec *training.Spec
	b.c.view(func(x *experiment.Experiment) { spec = x.Spec })
	a, err := k.ask(ctx, times.slow, "init", map[string]any{"protocol": 1, "experiment": b.c.id, "directory": b.c.dir, "code_dir": codeDir, "spec": spec})
	if found, ok := errors.AsType[*brainError](err); ok {
		return false, &fatalError{found}
	}
	if err != nil {
		return false, err
	}
	if a.Ready == nil || a.Ready.Protocol != 1 {
		return false, errors.New("it is of another version")
	}
	b.mu.Lock()
	if !a.Ready.Reports && b.reports {
		kept := b.history[:0]
		for _, t := range b.history {
			if !t.reported {
				kept = append(kept, t)
			}
		}
		b.history, b.reports = kept, false
	}
	b.mu.Unlock()
	past, at := b.from(0)
	for len(past) > 0 {
		var some []json.RawMessage
		size := 0
		for len(past) > 0 && (size == 0 || size+len(past[0].entry) < brainLine/2) {
			if e := past[0].entry; e != nil {
				some = append(some, e)
				size += len(e)
			}
			past = past[1:]
		}
		if len(some) == 0 {
			continue
		}
		a, err := k.ask(ctx, times.slow, "replay", some)
		if err != nil {
			return false, err
		}
		if a.Differs > 0 {
			b.log.Info("the optimizer suggests otherwise than it did", "times", a.Differs)
		}
	}
	return b.steer(ctx, k, at, a.Ready.Optimizer, failures)
}

// steer tells what happens and asks for suggestions, from entry at of the history on.
func (b *brain) steer(ctx context.Context, k *conversation, at int, suggests bool, failures *int) (good bool, err error) {
	times := b.c.times.brain
	idle, complained := 0, false
	waitsForEvent := false
	// soft takes an error of user code that ends nothing.
	soft := func(err error) error {
		found, ok := errors.AsType[*brainError](err)
		if !ok {
			return err
		}
		if !complained {
			complained = true
			b.log.Warn("the user's code raised", "err", found)
			b.note(ctx, "the rule or optimizer raised "+found.Error(), found.Traceback)
		}
		return nil
	}
	for {
		news, end := b.from(at)
		at = end
		for _, t := range news {
			var e struct {
				Event json.RawMessage `json:"event"`
			}
			if t.entry == nil || json.Unmarshal(t.entry, &e) != nil || e.Event == nil {
				continue // what it suggested itself
			}
			waitsForEvent, idle = false, 0
			if _, err := k.ask(ctx, times.quick, "event", e.Event); soft(err) != nil {
				return good, err
			}
		}
		for c, ok := b.check(); ok; c, ok = b.check() {
			a, err := k.ask(ctx, times.quick, "check", map[string]any{"trial": int(c.Trial), "params": c.Params, "curve": c.Curve})
			if soft(err) != nil {
				return good, err
			}
			if err == nil && a.Stop != nil {
				reason := experiment.Middle(strings.Join(strings.Fields(a.Stop.Reason), " "), 300)
				if err := b.c.propose(ctx, func(x *experiment.Experiment, now training.Millis) error {
					return x.Decide(now, experiment.Decided{Trial: c.Trial, Attempt: c.Attempt, Reason: reason})
				}); err != nil {
					return good, err
				}
			}
		}
		var n, held int
		var next training.TrialID
		over := false
		b.c.view(func(x *experiment.Experiment) {
			over, held = x.Closing(), x.Held
			n, next = x.Asked()
		})
		if over {
			_, _ = k.ask(ctx, times.slow, "finish", map[string]any{}) // an error changes no result
			return good, nil
		}
		pause := time.Hour
		if _, fresh := b.from(at); suggests && n > 0 && !waitsForEvent && fresh == at {
			switch a, err := k.ask(ctx, times.quick, "ask", map[string]any{"n": min(n, brainAsk), "next": int(next)}); {
			case err != nil:
				if found, ok := errors.AsType[*brainError](err); !ok {
					return good, err
				} else if *failures++; *failures >= brainFailures {
					return false, &fatalError{found}
				}
				pause = time.Second
			case len(a.Suggest) > brainAsk:
				return false, &brainError{Type: "BadSuggestion", Message: fmt.Sprintf("%d suggestions at once, at most %d", len(a.Suggest), brainAsk)}
			case len(a.Suggest) > 0 || a.Done:
				s := experiment.Suggested{Suggestions: suggestions(a.Suggest), Done: a.Done}
				err := b.c.propose(ctx, func(x *experiment.Experiment, now training.Millis) error { return x.Suggest(now, s) })
				if re, ok := errors.AsType[*experiment.Refusal](err); ok {
					return false, &brainError{Type: "BadSuggestion", Message: re.Message}
				}
				if err != nil {
					return good, err
				}
				good, *failures, idle = true, 0, 0
				pause = 0
			case a.Idle && held > 0:
				waitsForEvent = true
			case a.Idle:
				if idle++; idle >= brainIdle {
					return good, b.c.propose(ctx, func(x *experiment.Experiment, now training.Millis) error {
						return x.Suggest(now, experiment.Suggested{Done: true, Reason: "it waits, and nothing runs that it could wait for"})
					})
				}
				pause = times.pause
			default:
				return good, errors.New("it answered \"ask\" with nothing")
			}
		} else if fresh != at {
			continue
		}
		if pause == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return good, ctx.Err()
		case <-b.more:
		case <-time.After(pause):
		}
		if pause < time.Hour { // after an error or an idle answer the pause counts
			select {
			case <-ctx.Done():
				return good, ctx.Err()
			case <-time.After(pause / 2):
			}
		}
	}
}

// note writes lines into controller.log.
func (b *brain) note(_ context.Context, line, traceback string) {
	lines := []string{line}
	if traceback != "" {
		lines = append(lines, strings.Split(strings.TrimSpace(traceback), "\n")...)
	}
	b.c.files.add(experiment.Effects{Lines: lines})
}

// writeLog stores what the process has printed.
func (b *brain) writeLog(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if text := b.stderr.text(); len(text) > 0 {
		if err := writeFile(ctx, b.c.env.FS, path.Join(b.c.dir, brainLogName), text); err != nil {
			b.log.Warn(brainLogName, "err", err)
		}
	}
}

// headTail keeps the beginning and the end of what is written.
type headTail struct {
	mu         sync.Mutex
	head, tail []byte
	cut        int64
}

func (h *headTail) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(p)
	if room := brainLog - len(h.head); room > 0 {
		k := min(room, len(p))
		h.head = append(h.head, p[:k]...)
		p = p[k:]
	}
	h.tail = append(h.tail, p...)
	if over := len(h.tail) - brainLog; over > brainLog {
		h.cut += int64(over)
		h.tail = append([]byte(nil), h.tail[over:]...)
	}
	return n, nil
}

func (h *headTail) text() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := bytes.Clone(h.head)
	tail, cut := h.tail, h.cut
	if over := len(tail) - brainLog; over > 0 {
		tail, cut = tail[over:], cut+int64(over)
	}
	if cut > 0 {
		out = fmt.Appendf(out, "\n… %d bytes …\n", cut)
	}
	return append(out, tail...)
}

// askPatience is how long nothing may run before a client that suggests is taken for gone.
const askPatience = 10 * time.Minute
