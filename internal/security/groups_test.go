package security

import (
	"slices"
	"sync"
	"testing"
)

// A directory service that does not answer for one user holds up nobody else.
func TestALookupHoldsNobodyUp(t *testing.T) {
	asked, answer := make(chan string, 10), make(chan struct{})
	d := NewDoor(Config{Groups: func(user string) []string {
		if user == "slow" {
			asked <- user
			<-answer
		}
		return []string{"of " + user}
	}})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if g := d.groupsOf("slow"); !slices.Equal(g, []string{"of slow"}) {
				t.Errorf("groups %v", g)
			}
		})
	}
	<-asked
	if g := d.groupsOf("ann"); !slices.Equal(g, []string{"of ann"}) {
		t.Errorf("groups %v", g)
	}
	d.ChangeRules(func(r *UserRules) { r.Supergroup = "wheel" })
	close(answer)
	wg.Wait()
	if d.Supergroup() != "wheel" {
		t.Error(d.Supergroup())
	}
}
