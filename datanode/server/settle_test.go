package server

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/gohops/hops/datanode"
)

// A datanode that ends waits for what still works on a replica although the recovery that began it is over, so that its files are not
// closed under it; for a disk that does not answer it does not wait for ever.
func TestTheEndWaitsForWorkOnReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		begin := func(disk chan struct{}) {
			t.Helper()
			if _, err := s.answered(over, func() (datanode.Replica, error) { <-disk; return datanode.Replica{}, nil }); err == nil {
				t.Fatal("an answer of a disk that has not answered")
			}
		}
		end := func() chan struct{} {
			ended := make(chan struct{})
			go func() { s.settle(); close(ended) }()
			synctest.Wait()
			return ended
		}
		disk := make(chan struct{})
		begin(disk)
		ended := end()
		select {
		case <-ended:
			t.Error("it did not wait")
		default:
		}
		close(disk)
		<-ended

		disk = make(chan struct{})
		begin(disk)
		<-end() // after settleTime of the test's clock
		close(disk)
	})
}
