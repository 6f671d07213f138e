package server

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/gohops/hops/metadata"
)

// A request that panics on a goroutine beside its handler fails, and the namenode goes on.
func TestAPanicBesideFailsItsRequest(t *testing.T) {
	s := &Server{log: slog.New(slog.DiscardHandler), stopped: make(chan struct{})}
	failed := make(chan error, 1)
	var files []string
	s.beside(func(err error) { failed <- err }, func() { _ = files[3] })
	if err := <-failed; !errors.Is(err, metadata.ErrIO) {
		t.Errorf("it failed with %v", err)
	}
	s.aside("alice", nil, 0, func(err error) {
		if err == nil {
			panic("as asked")
		}
		failed <- err
	})
	if err := <-failed; !errors.Is(err, metadata.ErrIO) {
		t.Errorf("it failed with %v", err)
	}
}
