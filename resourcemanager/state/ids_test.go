package state

import (
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

// A submission may bring an id of its own, as in YARN. The ids that we give come from our own sequence all the same: one
// request of any user would otherwise decide about everybody's.
func TestSubmittedIDsDoNotMoveOurs(t *testing.T) {
	c := newCluster(t, Config{})
	first := c.submit(&rm.Application{}).Application
	for _, sequence := range []int64{first.Sequence + 1, 1 << 20, 1<<31 - 1} {
		id := rm.ApplicationID{Cluster: first.Cluster, Sequence: sequence}
		if r := c.submit(&rm.Application{ID: id}); r.Err != nil || r.Application != id {
			t.Fatalf("%v: %+v", id, r)
		}
	}
	if got, want := c.submit(&rm.Application{}).Application.Sequence, first.Sequence+2; got != want {
		t.Errorf("the next application has number %d, want %d: the one between is taken", got, want)
	}
	for _, sequence := range []int64{1 << 31, 1<<63 - 1, -1} {
		if r := c.submit(&rm.Application{ID: rm.ApplicationID{Cluster: first.Cluster, Sequence: sequence}}); r.Err == nil {
			t.Errorf("sequence %d is taken in", sequence)
		}
	}
	c.sound()
}
