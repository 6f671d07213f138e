package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/gohops/hops/cmd/processes"
)

// The user ids of the parts. Neither of them runs the servers.
const (
	attackerID = 65534
	healthyID  = 65533
)

// childWord is the argument after which this program is a child.
const childWord = "child"

// tasks are what a child may do, by name.
func tasks() map[string]task {
	return map[string]task{
		"healthy":    taskOf(beHealthy),
		"vanish":     taskOf(vanish),
		"listings":   taskOf(floodListings),
		"frames":     taskOf(floodFrames),
		"elements":   taskOf(floodElements),
		"liststatus": taskOf(floodList),
		"packets":    taskOf(floodPackets),
		"strangers":  taskOf(strangers),
		"stats":      taskOf(floodStats),
		"squat":      taskOf(squat),
		"knock":      taskOf(knock),
		"ask":        taskOf(ask),
		"blocks":     taskOf(attackBlocks),
		"fatjobs":    taskOf(submitFat),
		"garble":     taskOf(garble),
		"crawl":      taskOf(crawl),
	}
}

// task is one of them. It works until ctx is done, or it is through.
type task func(ctx context.Context, p *part, order json.RawMessage) (any, error)

// taskOf decodes a task's order.
func taskOf[Order, Answer any](run func(context.Context, *part, Order) (Answer, error)) task {
	return func(ctx context.Context, p *part, order json.RawMessage) (any, error) {
		var o Order
		if err := json.Unmarshal(order, &o); err != nil {
			return nil, err
		}
		return run(ctx, p, o)
	}
}

// part is the child's end of what it tells the director.
type part struct {
	mu  sync.Mutex
	out *json.Encoder
}

// word is one line of a child's standard output: something it tells, or its last answer.
type word struct {
	Told  json.RawMessage `json:"told,omitempty"`
	Done  json.RawMessage `json:"done,omitempty"`
	Error string          `json:"error,omitempty"`
}

// tell sends the director something before the end.
func (p *part) tell(what any) {
	text, err := json.Marshal(what)
	if err == nil {
		p.say(word{Told: text})
	}
}

func (p *part) say(w word) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.out.Encode(w) // the director has gone: so does this process
}

// runChild is main of a child: the name of its task and its user's id. The order comes by standard input.
func runChild(args []string) int {
	p := &part{out: json.NewEncoder(os.Stdout)}
	if len(args) != 2 || args[1] != strconv.Itoa(os.Geteuid()) {
		// An attack by the servers' user would show nothing, and look as if it did.
		p.say(word{Error: fmt.Sprintf("user %d is given %v", os.Geteuid(), args)})
		return 2
	}
	run := tasks()[args[0]]
	if run == nil {
		p.say(word{Error: "there is no task " + args[0]})
		return 2
	}
	order, err := io.ReadAll(newline(os.Stdin))
	if err != nil {
		p.say(word{Error: err.Error()})
		return 2
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	answer, err := run(ctx, p, order)
	var w word
	if err != nil {
		w.Error = err.Error()
	}
	w.Done, err = json.Marshal(answer)
	if err != nil {
		w.Error = err.Error()
	}
	p.say(w)
	return 0
}

// newline reads up to the end of a line, byte by byte: what follows is for somebody else.
func newline(r io.Reader) io.Reader { return &lineReader{r: r} }

type lineReader struct {
	r    io.Reader
	done bool
}

func (l *lineReader) Read(p []byte) (int, error) {
	if l.done || len(p) == 0 {
		return 0, io.EOF
	}
	n, err := l.r.Read(p[:1])
	if n == 1 && p[0] == '\n' {
		l.done = true
		return 0, io.EOF
	}
	return n, err
}

// child is a running one, as the director sees it.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	told  chan json.RawMessage // closed at its end
	last  word
	errs  opening
	ended chan struct{}
}

// root reports whether children can be other users.
func root() bool { return os.Geteuid() == 0 }

// start runs a task as a user. Without root it is this one.
func (h *harness) start(uid uint32, name string, order any) (*child, error) {
	if !root() {
		uid = uint32(os.Geteuid())
	}
	text, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	c := &child{name: name, cmd: exec.Command(h.program, childWord, name, strconv.FormatUint(uint64(uid), 10)), told: make(chan json.RawMessage, 64), ended: make(chan struct{})}
	c.cmd.Dir = "/"
	c.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	c.cmd.Stderr = &c.errs
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if root() {
		c.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	if err := processes.Spawn(c.cmd, syscall.SIGKILL); err != nil {
		return nil, fmt.Errorf("task %s: %w", name, err)
	}
	go c.listen(out)
	if _, err := c.stdin.Write(append(text, '\n')); err != nil {
		c.kill()
		return nil, fmt.Errorf("task %s: %w: %s", name, err, c.errs.String())
	}
	return c, nil
}

// listen takes what the child says until its end.
func (c *child) listen(out io.Reader) {
	defer close(c.ended)
	defer close(c.told)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		var w word
		if err == nil && json.Unmarshal(line, &w) == nil {
			if w.Told != nil {
				c.told <- w.Told
			} else {
				c.last = w
			}
		}
		if err != nil {
			break
		}
	}
	_ = c.cmd.Wait() // how it ended shows in what it said last
}

// await returns the next thing that it tells.
func (c *child) await(ctx context.Context, patience time.Duration, into any) error {
	select {
	case text, ok := <-c.told:
		if !ok {
			return fmt.Errorf("task %s ended: %s%s", c.name, c.last.Error, c.errs.String())
		}
		return json.Unmarshal(text, into)
	case <-time.After(patience):
		return fmt.Errorf("task %s has said nothing for %v", c.name, patience)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end tells it to stop, and returns its answer.
func (c *child) end(into any) error {
	_ = c.stdin.Close() // it may have ended already
	deadline := time.NewTimer(15 * time.Second)
	defer deadline.Stop()
	for open := true; open; {
		select {
		case _, open = <-c.told:
		case <-deadline.C:
			c.kill()
			return fmt.Errorf("task %s did not stop", c.name)
		}
	}
	<-c.ended
	if c.last.Error != "" || c.last.Done == nil {
		return fmt.Errorf("task %s: %s%s", c.name, c.last.Error, c.errs.String())
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(c.last.Done, into)
}

// kill ends it without an answer, if it has not ended yet.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	for range c.told {
	}
	<-c.ended
}

// ownName is the user of this process as servers call them.
func ownName() string {
	id := strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// nameOf is the user name of a part's id.
func nameOf(uid uint32) string {
	if !root() {
		return ownName()
	}
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// copySelf puts this program where every user may run it.
func copySelf(dir string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	in, err := os.Open(self)
	if err != nil {
		return "", err
	}
	defer in.Close()
	path := filepath.Join(dir, "attack")
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	return path, errors.Join(err, out.Close())
}

// opening keeps the beginning of what a child writes to its standard error.
type opening struct {
	mu   sync.Mutex
	text []byte
}

func (t *opening) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p[:min(len(p), max(0, 2000-len(t.text)))]...)
	return len(p), nil
}

func (t *opening) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
