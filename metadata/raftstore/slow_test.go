package raftstore

import (
	"bytes"
	"log/slog"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/internal/slowlog"
	"github.com/gohops/hops/metadata"
)

// written is a log that is written by many.
type written struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(b)
}

func TestSlowAppendsAreToldAndCommandsKnowWhatTheyWaitedFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	log := &written{}
	slow := &slowlog.Log{Logger: slog.New(slog.NewTextHandler(log, nil))}
	appends := slow.Operation("append", time.Nanosecond) // each takes that long
	c.configure = func(h *HostConfig) { h.SlowAppend = appends }
	c.start("a")
	g := c.leader("a")
	var w metadata.Waits
	done := make(chan error, 1)
	g.ProposeAsync(set("x", 1), &w, func(_ any, err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if w.Queue <= 0 || w.Disk <= 0 || w.Others < 0 || w.Apply <= 0 {
		t.Errorf("%+v", w)
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if want := regexp.MustCompile(`Sync of transaction range \d+-\d+ took \d+ms \(threshold=0ms\), group=a`); !want.Match(log.buf.Bytes()) || appends.Count() == 0 {
		t.Errorf("%d: %s", appends.Count(), &log.buf)
	}
}
