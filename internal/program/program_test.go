package program

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type trace struct {
	mu    sync.Mutex
	lines []string
}

func (t *trace) add(s string) {
	t.mu.Lock()
	t.lines = append(t.lines, s)
	t.mu.Unlock()
}

func (t *trace) part(name string) Part {
	ready := make(chan struct{})
	return Part{Name: name, Ready: ready, Run: func(ctx context.Context) error {
		t.add("+" + name)
		close(ready)
		<-ctx.Done()
		t.add("-" + name)
		return nil
	}}
}

func TestPartsStopInReverse(t *testing.T) {
	var tr trace
	p := Program{StopTimeout: time.Minute}
	p.Add(tr.part("a"), tr.part("b"), tr.part("c"))
	ctx, stop := context.WithCancel(context.Background())
	if err := p.Run(ctx, func() { tr.add("ready"); stop() }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"+a", "+b", "+c", "ready", "-c", "-b", "-a"}; !slices.Equal(tr.lines, want) {
		t.Errorf("order %v, want %v", tr.lines, want)
	}
}

func TestAPartThatFailsEndsTheProgram(t *testing.T) {
	var tr trace
	p := Program{StopTimeout: time.Minute}
	p.Add(tr.part("a"), Part{Name: "b", Ready: make(chan struct{}), Run: func(context.Context) error { return errors.New("port taken") }}, tr.part("c"))
	err := p.Run(context.Background(), func() { t.Error("ready") })
	if err == nil || err.Error() != "b: port taken" {
		t.Errorf("error = %v", err)
	}
	if want := []string{"+a", "-a"}; !slices.Equal(tr.lines, want) {
		t.Errorf("order %v, want %v", tr.lines, want)
	}
}

func TestAPartThatHangsDoesNotHoldTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tr trace
		release := make(chan struct{})
		p := Program{StopTimeout: time.Second}
		p.Add(tr.part("a"), Part{Name: "stuck", Run: func(context.Context) error { <-release; return nil }})
		ctx, stop := context.WithCancel(context.Background())
		err := p.Run(ctx, stop)
		close(release)
		if err != nil || !strings.Contains(strings.Join(tr.lines, " "), "-a") {
			t.Errorf("%v, %v", tr.lines, err)
		}
	})
}
