package server

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/nodemanager"
	"github.com/gohops/hops/nodemanager/state"
	"github.com/gohops/hops/nodemanager/supervisor"
)

// interrupted calls once when somebody makes a logger of it, which is what a container is made with.
type interrupted struct {
	slog.Handler
	done *atomic.Bool
	call func()
}

func (h interrupted) WithAttrs(a []slog.Attr) slog.Handler {
	if !h.done.Swap(true) {
		h.call()
	}
	return h.Handler.WithAttrs(a)
}

// A master stops what it has launched through here in the moment in which the order to start it is carried out: it does not run.
func TestAStopThatMeetsTheStart(t *testing.T) {
	store, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	until := supervisor.Now().Add(time.Hour)
	s := &Server{
		store: store, nudged: make(chan struct{}, 1), containers: map[nodemanager.ContainerID]*container{}, lease: supervisor.Lease{Term: until, Kill: until}, stopping: make(chan struct{}),
	}
	work, cancel := context.WithCancel(t.Context())
	id := nodemanager.ContainerID(containerName(2))
	s.log = slog.New(interrupted{slog.DiscardHandler, new(atomic.Bool), func() {
		s.neverStarted(work, id, &state.StopOrder{Status: nodemanager.KilledByAppMaster, Reason: "enough"})
	}})
	s.start(work, specOf(spec(t, 2, "sleep", "100")))
	if r, _, _ := s.find(id).view(); r.State != nodemanager.Complete || r.Exit.Status != nodemanager.KilledByAppMaster {
		t.Errorf("it is %s", r.State)
	}
	cancel()
	close(s.stopping)
	s.work.Wait()
}

// A term that is obeyed in the moment in which the one before it has been written is written, too.
func TestEveryTermIsWritten(t *testing.T) {
	store, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s := &Server{store: store, log: slog.New(slog.DiscardHandler), stopping: make(chan struct{})}
	for term, end := uint64(0), time.Now().Add(2*time.Second); term < 500 && time.Now().Before(end); term++ {
		if store.Obey(term + 1) {
			s.recordTerm()
		}
		for end := time.Now().Add(time.Minute); store.RecordedTerm() <= term; {
			if time.Now().After(end) {
				t.Fatalf("term %d is not written", term+1)
			}
		}
	}
	s.work.Wait()
}
