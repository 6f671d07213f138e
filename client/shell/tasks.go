package shell

import (
	"context"
	"errors"
	"strconv"
	"sync"
)

// Copies of put, get and cp: how many files at a time, and how many more may wait for their turn (-t and -q; Hadoop copies
// one at a time by default, and lets 1024 wait).
const (
	defaultThreads = 8
	maxThreads     = 256
	defaultQueue   = 1024
)

// tasks run copies several at a time. Their errors are reported as if they had run one after the other, in the order in
// which they were added: what the shell prints does not depend on who was faster.
type tasks struct {
	s       *Shell
	ctx     context.Context
	cancel  context.CancelFunc
	room    chan struct{} // a place per thread
	ordered chan *task
	over    chan struct{} // all of ordered is reported
	wrong   error         // of usage: ends everything
	later   []func() error
	open    sync.WaitGroup // tasks that are not reported yet
	claimed map[string]bool
}

type task struct {
	done chan struct{}
	err  error
}

// copies reports whether a verb copies files.
func copies(verb string) bool {
	switch verb {
	case "put", "copyFromLocal", "moveFromLocal", "get", "copyToLocal", "cp", "getmerge":
		return true
	}
	return false
}

// threads reads an option whose value is a number. What is below 1 is the least that there can be, as in Hadoop.
func (s *Shell) threads(option string, otherwise, least, most int) (int, error) {
	text, ok := s.options[option]
	if !ok {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, usageError{"For input string: \"" + text + "\""}
	}
	if n < 1 {
		return least, nil
	}
	return min(n, most), nil
}

// newTasks reads -t and -q. The caller calls wait when it has added everything.
func (s *Shell) newTasks(ctx context.Context) (*tasks, error) {
	threads, err := s.threads("t", defaultThreads, 1, maxThreads)
	if err != nil {
		return nil, err
	}
	queue, err := s.threads("q", defaultQueue, defaultQueue, 1<<20)
	if err != nil {
		return nil, err
	}
	t := &tasks{s: s, room: make(chan struct{}, threads), ordered: make(chan *task, queue), over: make(chan struct{}), claimed: map[string]bool{}}
	t.ctx, t.cancel = context.WithCancel(ctx)
	go t.report()
	return t, nil
}

// report prints the errors of the tasks, in order. Nobody else reports while tasks run.
func (t *tasks) report() {
	defer close(t.over)
	for k := range t.ordered {
		<-k.done
		if wrong := (usageError{}); errors.As(k.err, &wrong) {
			if t.wrong == nil {
				t.wrong = k.err
			}
			t.cancel()
		} else if k.err != nil && t.wrong == nil {
			t.s.report(k.err)
		}
		t.open.Done()
	}
}

// add runs a function when there is room.
func (t *tasks) add(f func(ctx context.Context) error) {
	k := &task{done: make(chan struct{})}
	t.open.Add(1)
	t.ordered <- k
	t.room <- struct{}{}
	go func() {
		defer func() { <-t.room; close(k.done) }()
		if k.err = t.ctx.Err(); k.err == nil {
			k.err = f(t.ctx)
		}
	}()
}

// failed is add for what has failed already; nil adds nothing.
func (t *tasks) failed(err error) {
	if err == nil {
		return
	}
	k := &task{done: make(chan struct{}), err: err}
	close(k.done)
	t.open.Add(1)
	t.ordered <- k
}

// claim is called with the name that a source gets at the destination. A second source of that name waits for the first, so
// that it finds what is there.
func (t *tasks) claim(name string) {
	if t.claimed[name] {
		t.settle()
	}
	t.claimed[name] = true
}

// afterwards runs a function when everything that was added before settle is done: times and modes of directories.
func (t *tasks) afterwards(f func() error) { t.later = append(t.later, f) }

// settle waits for what was added so far, and for its errors to be reported.
func (t *tasks) settle() {
	t.open.Wait()
	for _, f := range t.later {
		if t.ctx.Err() == nil {
			t.failed(f())
		}
	}
	t.later = nil
	t.open.Wait()
}

// wait settles and ends. The error is one of usage, or the context's.
func (t *tasks) wait() error {
	t.settle()
	close(t.ordered)
	<-t.over
	interrupted := t.ctx.Err()
	t.cancel()
	if t.wrong != nil {
		return t.wrong
	}
	return interrupted
}
