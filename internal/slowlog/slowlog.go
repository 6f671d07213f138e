// Package slowlog tells of operations that took too long: a line each in the server's log, a few at a time, and a figure that counts all
// of them.
package slowlog

import (
	"cmp"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/internal/status"
)

// Limits are after how long an operation is slow; 0: never.
type Limits struct {
	// RPC is a call of Hadoop's RPC, from its arrival to its answer.
	RPC time.Duration
	// IO is a call of a datanode's disk, or of the network to the next datanode (dfs.datanode.slow.io.warning.threshold.ms).
	IO time.Duration
	// Append is an append to the log of a Raft group, fsync included.
	Append time.Duration
}

// atOnce lines of an operation are written in a window; what comes beyond is counted, and told when the window is over.
const (
	atOnce = 10
	window = 10 * time.Second
)

// Log is where the slow operations of a server are told. A nil Log tells of none.
type Log struct {
	Limits Limits
	// Logger; nil means slog.Default().
	Logger *slog.Logger

	mu         sync.Mutex
	operations []*Operation
	lines      []string // that the logger has not got yet
	writes     bool     // somebody gives them to it
	// after calls a function later; a test has its own.
	after func(time.Duration, func())
}

// Operation is one kind of operation. It is safe for concurrent use; a nil Operation is never slow.
type Operation struct {
	log   *Log
	name  string
	limit time.Duration
	count atomic.Int64

	mu      sync.Mutex
	said    int // in this window
	leftOut int
}

// Operation makes a kind of operation that is slow from a limit on. The name is the figure's label.
func (l *Log) Operation(name string, limit time.Duration) *Operation {
	if l == nil {
		return nil
	}
	o := &Operation{log: l, name: name, limit: limit}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.operations = append(l.operations, o)
	return o
}

// Limit is from when on the operation is slow; 0: never.
func (o *Operation) Limit() time.Duration {
	if o == nil {
		return 0
	}
	return o.limit
}

// Slow reports whether an operation that took so long is one to tell of.
func (o *Operation) Slow(took time.Duration) bool { return o != nil && o.limit > 0 && took >= o.limit }

// Tell counts an operation and writes its line, unless there have been too many. It does not wait for the log.
func (o *Operation) Tell(format string, args ...any) {
	o.count.Add(1)
	o.mu.Lock()
	if o.said == 0 {
		later := o.log.after
		if later == nil {
			later = func(d time.Duration, f func()) { time.AfterFunc(d, f) }
		}
		later(window, o.next)
	}
	if o.said >= atOnce {
		o.leftOut++
		o.mu.Unlock()
		return
	}
	o.said++
	o.mu.Unlock()
	if !o.log.say(fmt.Sprintf(format, args...)) {
		o.mu.Lock()
		o.leftOut++
		o.mu.Unlock()
	}
}

// next ends a window.
func (o *Operation) next() {
	o.mu.Lock()
	n := o.leftOut
	o.said, o.leftOut = 0, 0
	o.mu.Unlock()
	if n > 0 && !o.log.say(fmt.Sprintf("Slow operations were left out: %d of %s in %v", n, o.name, window)) {
		o.mu.Lock()
		o.leftOut += n // they are told of at the end of the next window that there is
		o.mu.Unlock()
	}
}

// waiting is how many lines wait for the logger, whose writer may hang.
const waiting = 64

// say has a line logged by somebody else; false: too many wait.
func (l *Log) say(line string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == waiting {
		return false
	}
	l.lines = append(l.lines, line)
	if !l.writes {
		l.writes = true
		go l.write()
	}
	return true
}

// write logs until no line waits.
func (l *Log) write() {
	for {
		l.mu.Lock()
		if len(l.lines) == 0 {
			l.lines, l.writes = nil, false
			l.mu.Unlock()
			return
		}
		line := l.lines[0]
		l.lines = l.lines[1:]
		l.mu.Unlock()
		l.logger().Warn(line)
	}
}

func (l *Log) logger() *slog.Logger { return cmp.Or(l.Logger, slog.Default()) }

// Count is how many there have been.
func (o *Operation) Count() int64 {
	if o == nil {
		return 0
	}
	return o.count.Load()
}

// Figures gives the counts to Prometheus.
func (l *Log) Figures(to status.Sample) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.operations {
		to.Counter("hops_slow_operations_total", "Operations that took longer than the limits in the section slow of hops.yaml.", float64(o.count.Load()), "operation", o.name)
	}
}
