package raftstore

import (
	"context"
	"io"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// repeatEvery is how often the same complaint of the library comes through as a warning; in between it is for debugging.
// With a dead peer raft complains a hundred times a second.
const repeatEvery = 30 * time.Second

// logger gives hashicorp/raft an slog.Logger. What raft calls information is for debugging here: the group logs changes
// of state itself.
type logger struct {
	out    *slog.Logger
	name   string
	args   []any
	recent *recent
}

// recent remembers when a message was last passed on.
type recent struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

func (r *recent) due(msg string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if last, ok := r.seen[msg]; ok && now.Sub(last) < repeatEvery {
		return false
	}
	r.seen[msg] = now
	return true
}

func newLogger(out *slog.Logger) hclog.Logger {
	return &logger{out: out, recent: &recent{seen: make(map[string]time.Time)}}
}

func (l *logger) Log(level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	switch {
	case level <= hclog.Debug:
		to -= 4
	case level == hclog.Error && l.recent.due(msg):
		to = slog.LevelWarn
	}
	if !l.out.Enabled(context.Background(), to) {
		return
	}
	attrs := make([]slog.Attr, 0, len(args)/2)
	for i := 0; i+1 < len(args); i += 2 {
		key, _ := args[i].(string)
		attrs = append(attrs, slog.Any(key, args[i+1]))
	}
	l.out.LogAttrs(context.Background(), to, msg, attrs...)
}

func (l *logger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l *logger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *logger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *logger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *logger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l *logger) IsTrace() bool { return false }
func (l *logger) IsDebug() bool { return l.out.Enabled(context.Background(), slog.LevelDebug-4) }
func (l *logger) IsInfo() bool  { return l.out.Enabled(context.Background(), slog.LevelDebug) }
func (l *logger) IsWarn() bool  { return l.IsInfo() }
func (l *logger) IsError() bool { return true }

func (l *logger) ImpliedArgs() []any { return l.args }

func (l *logger) With(args ...any) hclog.Logger {
	return &logger{out: l.out.With(args...), name: l.name, args: append(l.args[:len(l.args):len(l.args)], args...), recent: l.recent}
}

func (l *logger) Name() string                   { return l.name }
func (l *logger) Named(string) hclog.Logger      { return l }
func (l *logger) ResetNamed(string) hclog.Logger { return l }
func (l *logger) SetLevel(hclog.Level)           {}
func (l *logger) GetLevel() hclog.Level          { return hclog.Debug }

func (l *logger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(l.out.Handler(), slog.LevelDebug)
}

func (l *logger) StandardWriter(o *hclog.StandardLoggerOptions) io.Writer {
	return l.StandardLogger(o).Writer()
}
